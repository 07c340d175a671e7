//! Permissions and lists: what follows what.

use crate::world::World;
use cenote_dmu::live::Cost;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_zpl::{CreateProps, NewNode, NodeKind, SetAttr, SetXattr, Settings};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0];
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

fn new(kind: NodeKind, mode: u32) -> NewNode {
    NewNode { kind, mode, umask: 0o077, uid: 1000, gid: 100, keep_setgid: false }
}

fn set(world: &World, ino: u64, name: &[u8], value: &[u8]) -> Result<(), i32> {
    world.fs.set_xattr(ino, name, value, SetXattr::default()).map_err(|e| e.errno())
}

#[test]
fn lists_and_modes_follow_each_other() {
    for xattr_sa in [true, false] {
        let settings = Settings { xattr_sa, ..Settings::default() };
        let world = World::new(&CreateProps::default(), settings);
        let fs = &world.fs;
        let mode = |ino| fs.attr(ino).unwrap().mode & 0o7777;
        let dir = fs.create(fs.root(), b"d", &new(NodeKind::Dir, 0o755)).unwrap().ino;
        assert_eq!(mode(dir), 0o700);
        let full = list(&[(1, 7, !0), (2, 6, 5), (4, 5, !0), (16, 7, !0), (32, 5, !0)]);
        set(&world, dir, DEFAULT, &full).unwrap();
        // The umask does not count, the list does.
        let file = fs.create(dir, b"f", &new(NodeKind::File, 0o666)).unwrap().ino;
        assert_eq!(mode(file), 0o664);
        let expected = list(&[(1, 6, !0), (2, 6, 5), (4, 5, !0), (16, 6, !0), (32, 4, !0)]);
        assert_eq!(fs.getxattr(file, ACCESS).unwrap(), Some(expected));
        assert_eq!(fs.getxattr(file, DEFAULT).unwrap(), None);
        let sub = fs.create(dir, b"sub", &new(NodeKind::Dir, 0o777)).unwrap().ino;
        assert_eq!(fs.getxattr(sub, DEFAULT).unwrap(), Some(full.clone()));
        let link = fs.create(dir, b"l", &new(NodeKind::Symlink(b"t".to_vec()), 0)).unwrap();
        assert_eq!((link.mode, fs.listxattr(link.ino).unwrap().len()), (0o120_777, 0));
        // chmod changes the mask.
        fs.setattr(file, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        let expected = list(&[(1, 6, !0), (2, 6, 5), (4, 5, !0), (16, 0, !0), (32, 0, !0)]);
        assert_eq!(fs.getxattr(file, ACCESS).unwrap(), Some(expected));
        // A list that says no more than a mode is one.
        set(&world, file, ACCESS, &list(&[(1, 7, !0), (4, 5, !0), (32, 1, !0)])).unwrap();
        assert_eq!((mode(file), fs.getxattr(file, ACCESS).unwrap()), (0o751, None));
        set(&world, file, ACCESS, &full).unwrap();
        assert_eq!(mode(file), 0o775);
        fs.remove_xattr(file, ACCESS).unwrap();
        fs.remove_xattr(file, ACCESS).unwrap();
        assert_eq!((mode(file), fs.listxattr(file).unwrap().len()), (0o775, 0));
        assert_eq!(set(&world, file, DEFAULT, &full), Err(13));
        assert_eq!(set(&world, file, ACCESS, &list(&[(1, 7, !0)])), Err(22));
        assert_eq!(set(&world, file, ACCESS, b"junk"), Err(22));
        world.sync(|| {});
    }
}

#[test]
fn the_group_of_a_directory_is_handed_down() {
    let world = World::new(&CreateProps::default(), Settings::default());
    let fs = &world.fs;
    let dir = fs.create(fs.root(), b"d", &new(NodeKind::Dir, 0o755)).unwrap().ino;
    let change = SetAttr { mode: Some(0o2770), gid: Some(77), ..SetAttr::default() };
    assert_eq!(fs.setattr(dir, &change).unwrap().mode & 0o7777, 0o2770);
    let sub = fs.create(dir, b"sub", &new(NodeKind::Dir, 0o777)).unwrap();
    assert_eq!((sub.gid, sub.mode & 0o7777), (77, 0o2700));
    let file = fs.create(dir, b"f", &new(NodeKind::File, 0o2777)).unwrap();
    assert_eq!((file.gid, file.mode & 0o7777), (77, 0o700));
    let may = NewNode { keep_setgid: true, ..new(NodeKind::File, 0o6777) };
    assert_eq!(fs.create(dir, b"g", &may).unwrap().mode & 0o7777, 0o6700);
}

#[test]
fn writing_takes_set_ids_away() {
    let world = World::new(&CreateProps::default(), Settings::default());
    let fs = &world.fs;
    let file = fs.create(fs.root(), b"f", &new(NodeKind::File, 0)).unwrap().ino;
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    // After a change of the contents, and of the owner.
    for (before, after, owned) in [
        (0o6755, 0o755, 0o755),
        (0o6744, 0o744, 0o2744),
        (0o6646, 0o2646, 0o2646),
        (0o2767, 0o767, 0o2767),
        (0o2701, 0o701, 0o2701),
        (0o1755, 0o1755, 0o1755),
    ] {
        fs.setattr(file, &mode(before)).unwrap();
        fs.write(file, 0, b"x", false).unwrap();
        assert_eq!(fs.attr(file).unwrap().mode & 0o7777, before);
        fs.write(file, 0, b"x", true).unwrap();
        assert_eq!(fs.attr(file).unwrap().mode & 0o7777, after);
        fs.setattr(file, &mode(before)).unwrap();
        let truncate = SetAttr { size: Some(0), clear_ids: true, ..SetAttr::default() };
        assert_eq!(fs.setattr(file, &truncate).unwrap().mode & 0o7777, after);
        fs.setattr(file, &mode(before)).unwrap();
        let chown = SetAttr { uid: Some(1), clear_ids: true, ..SetAttr::default() };
        assert_eq!(fs.setattr(file, &chown).unwrap().mode & 0o7777, owned);
    }
}

/// How many objects there are.
fn objects(world: &World) -> u64 {
    let count = |os: &mut OpenObjectSet, _| Ok::<_, WriteError>(os.object_count());
    world.live.transact(Cost::default(), count).unwrap()
}

/// Has a directory of many entries, a fat ZAP, take the next block far past all that there can be.
fn damage(world: &World, dir: u64) {
    // `zap_freeblk`.
    let far = (1u64 << 60).to_le_bytes();
    world.live.transact(Cost::default(), |os, _| os.write(dir, 56, &far)).unwrap();
}

#[test]
fn what_a_node_inherited_goes_with_it_if_it_cannot_get_a_name() {
    for xattr_sa in [true, false] {
        let settings = Settings { xattr_sa, ..Settings::default() };
        let world = World::new(&CreateProps::default(), settings);
        let fs = &world.fs;
        let dir = fs.create(fs.root(), b"d", &new(NodeKind::Dir, 0o755)).unwrap().ino;
        let full = list(&[(1, 7, !0), (2, 6, 5), (4, 5, !0), (16, 7, !0), (32, 5, !0)]);
        set(&world, dir, DEFAULT, &full).unwrap();
        let name = |n: u64| format!("{n:0200}").into_bytes();
        fs.create(dir, &name(0), &new(NodeKind::Dir, 0o777)).unwrap();
        world.sync(|| {});
        damage(&world, dir);
        let (mut before, mut made) = (objects(&world), 1);
        while fs.create(dir, &name(made), &new(NodeKind::Dir, 0o777)).is_ok() {
            (before, made) = (objects(&world), made + 1);
        }
        assert!(made > 10 && fs.lookup(dir, &name(made)).is_err());
        assert_eq!(objects(&world), before);
    }
}
