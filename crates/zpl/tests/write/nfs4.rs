//! NFSv4 lists: set, shown, handed down, and changed with the mode and the owner.

use crate::world::World;
use cenote_format::acl::{Ace, flag, kind};
use cenote_zpl::{
    AclInherit, AclMode, CreateProps, NewNode, NodeKind, SetAttr, SetXattr, Settings, Visibility,
};

const NAME: &[u8] = b"system.nfs4_acl_xdr";
const READ: u32 = 0x1;
const WRITE: u32 = 0x2;
const EXECUTE: u32 = 0x20;
const WRITE_ACL: u32 = 0x4_0000;
const BOTH: u16 = flag::FILE_INHERIT | flag::DIRECTORY_INHERIT;
/// `zp_flags`: handed down, trivial, protected, inherited by itself, nobody is denied to execute.
const INHERIT: u64 = 0x2;
const TRIVIAL: u64 = 0x4;
const PROTECTED: u64 = 0x10;
const AUTO: u64 = 0x40;
const NO_EXECS_DENIED: u64 = 0x100;
const ALL_FLAGS: u64 = 0x17f;

fn settings() -> Settings {
    let visibility = Visibility { posix_acl: false, nfs4_acl: true, xattr: true };
    Settings { visibility, ..Settings::default() }
}

fn world(change: impl FnOnce(&mut Settings)) -> World {
    let mut settings = settings();
    change(&mut settings);
    World::new(&CreateProps::default(), settings)
}

fn new(kind: NodeKind, mode: u32) -> NewNode {
    NewNode { kind, mode, umask: 0o022, uid: 1000, gid: 100, keep_setgid: false }
}

fn ace(kind: u16, flags: u16, mask: u32, who: Option<u64>) -> Ace {
    Ace { kind, flags, mask, who, objects: None }
}

/// The value of the attribute, word by word.
fn value(whole: u32, list: &[Ace]) -> Vec<u8> {
    let mut words = vec![whole, list.len() as u32];
    for ace in list {
        let (special, who) = match ace.about() {
            flag::OWNER => (1, 1),
            flag::OWNING_GROUP => (1, 2),
            flag::EVERYONE => (1, 3),
            _ => (0, ace.who.unwrap() as u32),
        };
        words.extend([ace.kind.into(), (ace.flags & 0xcf).into(), special, ace.mask, who]);
    }
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}

impl World {
    fn mode_of(&self, ino: u64) -> u32 {
        self.fs.attr(ino).unwrap().mode & 0o7777
    }

    fn flags_of(&self, ino: u64) -> u64 {
        self.fs.attr(ino).unwrap().flags & ALL_FLAGS
    }

    fn set(&self, ino: u64, value: &[u8]) -> Result<(), i32> {
        let set = self.fs.set_xattr(ino, NAME, value, SetXattr::default());
        set.map_err(|e| e.errno())
    }

    fn chmod(&self, ino: u64, mode: u32) -> Result<u32, i32> {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let attr = self.fs.setattr(ino, &set).map_err(|e| e.errno())?;
        assert_eq!(attr.mode & 0o7777, self.mode_of(ino));
        Ok(attr.mode & 0o7777)
    }

    fn make(&self, dir: u64, name: &str, kind: NodeKind, mode: u32) -> u64 {
        let made = self.fs.create(dir, name.as_bytes(), &new(kind, mode)).unwrap();
        assert_eq!(made.mode & 0o7777, self.mode_of(made.ino), "{name}");
        made.ino
    }

    /// A directory with a list, which only its owner may use.
    fn dir_with(&self, name: &str, list: &[Ace]) -> u64 {
        let dir = self.make(self.fs.root(), name, NodeKind::Dir, 0o700);
        let all = ace(kind::ALLOWED, flag::OWNER, READ | WRITE | EXECUTE, None);
        let list: Vec<Ace> = [all].iter().chain(list).copied().collect();
        self.set(dir, &value(0, &list)).unwrap();
        dir
    }
}

/// A file has the list that stands for its mode, and a directory hands nothing down.
#[test]
fn lists_are_shown_and_set() {
    let world = world(|_| {});
    let fs = &world.fs;
    let file = world.make(fs.root(), "f", NodeKind::File, 0o644);
    let trivial = fs.nfs4_acl(file).unwrap();
    assert_eq!(trivial.len(), 3);
    assert_eq!(fs.getxattr(file, NAME).unwrap().unwrap(), value(0, &trivial));
    assert!(fs.listxattr(file).unwrap().is_empty(), "it says what the mode does");
    let list = [
        ace(kind::DENIED, 0, WRITE, Some(1234)),
        ace(kind::ALLOWED, flag::IDENTIFIER_GROUP, READ, Some(u32::MAX as u64 - 1)),
        ace(kind::ALLOWED, flag::OWNER, READ | WRITE | WRITE_ACL, None),
        ace(kind::ALLOWED, flag::OWNING_GROUP, READ, None),
    ];
    world.set(file, &value(2, &list)).unwrap();
    assert_eq!((world.mode_of(file), world.flags_of(file)), (0o640, PROTECTED));
    assert_eq!(fs.nfs4_acl(file).unwrap(), list);
    assert_eq!(fs.getxattr(file, NAME).unwrap().unwrap(), value(2, &list));
    assert_eq!(fs.listxattr(file).unwrap(), [NAME]);
    // It is there, and can be taken away: then the file has the list of its mode again.
    let how = |create, replace| SetXattr { create, replace, clear_setgid: false };
    let set = |how| fs.set_xattr(file, NAME, &value(0, &list), how).map_err(|e| e.errno());
    assert_eq!((set(how(true, false)), set(how(false, true))), (Err(17), Ok(())));
    fs.remove_xattr(file, NAME).unwrap();
    assert_eq!((world.mode_of(file), world.flags_of(file)), (0o640, TRIVIAL));
    assert!(fs.listxattr(file).unwrap().is_empty());
    // What is no list, and what may have none.
    let bad = [ace(kind::ALLOWED, flag::EVERYONE | flag::INHERIT_ONLY, READ, None)];
    for bad in [&[][..], &[0; 8], &[0; 27], &value(0, &bad)] {
        assert_eq!(world.set(file, bad), Err(22), "{bad:?}");
    }
    let many = vec![list[0]; 1025];
    assert_eq!(world.set(file, &value(0, &many)), Err(27));
    let link = world.make(fs.root(), "l", NodeKind::Symlink(b"t".to_vec()), 0);
    assert_eq!(world.set(link, &value(0, &list)), Err(95));
    world.fs.set_settings(Settings::default());
    assert_eq!(world.set(file, &value(0, &list)), Err(95), "acltype is another one");
    assert_eq!(fs.getxattr(file, NAME).map_err(|e| e.errno()), Err(95));
    world.sync(|| {});
}

#[test]
fn the_largest_list_is_kept_and_handed_down() {
    let world = world(|s| s.acl_inherit = AclInherit::Restricted);
    let user = |i| ace(kind::ALLOWED, BOTH, READ, Some(i));
    let list: Vec<Ace> = (0..1023).map(user).collect();
    let dir = world.dir_with("d", &list);
    let file = world.make(dir, "f", NodeKind::File, 0o077);
    let sub = world.make(dir, "s", NodeKind::Dir, 0o077);
    for ino in [file, sub] {
        // All of the directory's, and four for the mode.
        assert_eq!(world.fs.nfs4_acl(ino).unwrap().len(), 1023 + 4);
        assert_eq!(world.fs.getxattr(ino, NAME).unwrap().unwrap().len(), 8 + 20 * 1027);
    }
    assert_eq!(world.chmod(file, 0o600), Ok(0o600));
    world.sync(|| {});
}

#[test]
fn what_is_handed_down_goes_by_aclinherit() {
    let all = READ | WRITE | EXECUTE | WRITE_ACL;
    let list = [
        ace(kind::DENIED, flag::IDENTIFIER_GROUP | BOTH, WRITE, Some(7)),
        ace(kind::ALLOWED, BOTH, all, Some(1234)),
        ace(kind::ALLOWED, flag::EVERYONE | flag::FILE_INHERIT | flag::INHERIT_ONLY, READ, None),
    ];
    let files = |how| {
        let world = world(|s| s.acl_inherit = how);
        let dir = world.dir_with("d", &list);
        assert_eq!(world.flags_of(dir) & (INHERIT | TRIVIAL), INHERIT);
        let file = world.make(dir, "f", NodeKind::File, 0o600);
        let entries = world.fs.nfs4_acl(file).unwrap();
        (world.mode_of(file), world.flags_of(file), entries)
    };
    let handed = |ace: Ace, mask| Ace {
        mask,
        flags: ace.flags & !(BOTH | flag::INHERIT_ONLY) | flag::INHERITED,
        ..ace
    };
    let own = |mode: u32| {
        let world = world(|_| {});
        let file = world.make(world.fs.root(), "f", NodeKind::File, mode);
        world.fs.nfs4_acl(file).unwrap()
    };
    assert_eq!(files(AclInherit::Discard), (0o600, TRIVIAL, own(0o600)));
    let expected: Vec<Ace> = [handed(list[0], WRITE)].into_iter().chain(own(0o600)).collect();
    assert_eq!(files(AclInherit::NoAllow), (0o600, 0, expected));
    let taken = [handed(list[0], WRITE), handed(list[1], all & !WRITE_ACL), handed(list[2], READ)];
    let expected: Vec<Ace> = taken.into_iter().chain(own(0o600)).collect();
    // An entry about everyone gives the group and others what the mode did not ask for.
    assert_eq!(files(AclInherit::Restricted), (0o644, 0, expected));
    let taken = vec![handed(list[0], WRITE), handed(list[1], all), handed(list[2], READ)];
    assert_eq!(files(AclInherit::Passthrough), (0o444, 0, taken.clone()));
    let mut without = taken;
    without[1].mask &= !EXECUTE;
    assert_eq!(files(AclInherit::PassthroughX), (0o444, 0, without));
}

#[test]
fn directories_hand_on_what_they_take_over() {
    let world = world(|_| {});
    let list = [
        ace(kind::ALLOWED, BOTH, READ, Some(5)),
        ace(kind::ALLOWED, flag::FILE_INHERIT, READ, Some(6)),
        ace(kind::ALLOWED, flag::DIRECTORY_INHERIT | flag::NO_PROPAGATE_INHERIT, READ, Some(7)),
    ];
    let dir = world.dir_with("d", &list);
    let sub = world.make(dir, "s", NodeKind::Dir, 0o750);
    assert_eq!((world.mode_of(sub), world.flags_of(sub)), (0o750, INHERIT | AUTO));
    let of = |ino| {
        let named = world.fs.nfs4_acl(ino).unwrap().into_iter().filter(|ace| ace.who.is_some());
        named.map(|ace| (ace.who.unwrap(), ace.flags)).collect::<Vec<_>>()
    };
    let only = flag::FILE_INHERIT | flag::INHERIT_ONLY | flag::INHERITED;
    assert_eq!(of(sub), [(5, BOTH | flag::INHERITED), (6, only), (7, flag::INHERITED)]);
    let file = world.make(sub, "f", NodeKind::File, 0o640);
    assert_eq!(of(file), [(5, flag::INHERITED), (6, flag::INHERITED)]);
    // Links have no lists of their own, and files without names take over what others do.
    let link = world.make(sub, "l", NodeKind::Symlink(b"t".to_vec()), 0);
    assert_eq!((of(link), world.mode_of(link)), (vec![], 0o777));
    let nameless = world.fs.tmpfile(sub, &new(NodeKind::File, 0o640)).unwrap();
    assert_eq!(of(nameless.ino), of(file));
    // Attributes in files of their own take over nothing.
    let dir_settings = Settings { xattr_sa: false, ..settings() };
    world.fs.set_settings(dir_settings);
    world.fs.set_xattr(file, b"user.x", b"value", SetXattr::default()).unwrap();
    assert_eq!(world.fs.getxattr(file, b"user.x").unwrap().unwrap(), b"value");
    world.sync(|| {});
}

#[test]
fn chmod_goes_by_aclmode() {
    let user = ace(kind::ALLOWED, 0, READ | WRITE | EXECUTE, Some(1234));
    let owner = ace(kind::ALLOWED, flag::OWNER | BOTH, READ | WRITE, None);
    let run = |how| {
        let world = world(|s| s.acl_mode = how);
        let file = world.make(world.fs.root(), "f", NodeKind::File, 0o640);
        let dir = world.make(world.fs.root(), "d", NodeKind::Dir, 0o750);
        for ino in [file, dir] {
            world.set(ino, &value(2, &[user, owner])).unwrap();
            assert_eq!(world.mode_of(ino), 0o600);
        }
        let after = |ino| {
            let mode = world.chmod(ino, 0o751);
            let list = world.fs.nfs4_acl(ino).unwrap();
            let kept = list.into_iter().filter(|a| a.who == Some(1234) || a.flags & BOTH != 0);
            (mode, world.flags_of(ino), kept.map(|a| (a.flags, a.mask)).collect::<Vec<_>>())
        };
        (after(file), after(dir))
    };
    let all = READ | WRITE | EXECUTE;
    let kept = |mask| (0u16, mask);
    let only = (flag::OWNER | BOTH | flag::INHERIT_ONLY, READ | WRITE);
    let trivial = (Ok(0o751), PROTECTED | TRIVIAL | NO_EXECS_DENIED, vec![]);
    assert_eq!(run(AclMode::Discard), (trivial.clone(), trivial));
    let (ok, flags) = (Ok(0o751), PROTECTED | NO_EXECS_DENIED);
    let dir = |mask| (ok, flags | INHERIT, vec![kept(mask), only]);
    assert_eq!(run(AclMode::Passthrough), ((ok, flags, vec![kept(all)]), dir(all)));
    let less = READ | EXECUTE;
    assert_eq!(run(AclMode::GroupMask), ((ok, flags, vec![kept(less)]), dir(less)));
    let (file, _) = run(AclMode::Restricted);
    assert_eq!(file.0, Err(1));
    // A list that says no more than the mode is no reason.
    let world = world(|s| s.acl_mode = AclMode::Restricted);
    let file = world.make(world.fs.root(), "f", NodeKind::File, 0o640);
    assert_eq!(world.chmod(file, 0o600), Ok(0o600));
}

/// With `aclmode=restricted` what a new file takes over stays as it is.
#[test]
fn nothing_is_put_around_what_must_not_be_changed() {
    let world = world(|s| s.acl_mode = AclMode::Restricted);
    let dir = world.dir_with("d", &[ace(kind::ALLOWED, BOTH, READ, Some(1000))]);
    let file = world.make(dir, "f", NodeKind::File, 0o666);
    // The entry names the owner.
    assert_eq!(world.fs.nfs4_acl(file).unwrap().len(), 1);
    assert_eq!((world.mode_of(file), world.flags_of(file)), (0o400, 0));
}

#[test]
fn the_mode_follows_the_owner_and_ids_leave_the_list_alone() {
    let world = world(|_| {});
    let file = world.make(world.fs.root(), "f", NodeKind::File, 0o600);
    let list = [
        ace(kind::ALLOWED, 0, READ | WRITE, Some(7)),
        ace(kind::ALLOWED, flag::IDENTIFIER_GROUP, READ, Some(8)),
        ace(kind::ALLOWED, flag::EVERYONE, EXECUTE, None),
    ];
    world.set(file, &value(0, &list)).unwrap();
    assert_eq!((world.mode_of(file), world.flags_of(file)), (0o111, NO_EXECS_DENIED));
    let set = SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() };
    assert_eq!(world.fs.setattr(file, &set).unwrap().mode & 0o7777, 0o751);
    let back = SetAttr { uid: Some(9), ..SetAttr::default() };
    assert_eq!(world.fs.setattr(file, &back).unwrap().mode & 0o7777, 0o151);
    // Bits that no list is about are taken away without touching it.
    world.fs.set_settings(Settings { acl_mode: AclMode::Passthrough, ..settings() });
    assert_eq!(world.chmod(file, 0o6755), Ok(0o6755));
    let before = world.fs.nfs4_acl(file).unwrap();
    let clear = SetAttr { clear_ids: true, size: Some(0), ..SetAttr::default() };
    assert_eq!(world.fs.setattr(file, &clear).unwrap().mode & 0o7777, 0o755);
    assert_eq!(world.fs.nfs4_acl(file).unwrap(), before);
}

/// File systems from before system attributes have no lists to set, and hand none down.
#[test]
fn old_file_systems_have_the_lists_of_their_modes() {
    let props = CreateProps { version: 4, ..CreateProps::default() };
    let world = World::new(&props, settings());
    let dir = world.make(world.fs.root(), "d", NodeKind::Dir, 0o755);
    let list = value(0, &[ace(kind::ALLOWED, BOTH, READ, Some(5))]);
    assert_eq!(world.set(dir, &list), Err(95));
    let trivial = world.fs.getxattr(dir, NAME).unwrap().unwrap();
    assert_eq!(trivial.len(), 8 + 3 * 20);
    world.make(dir, "f", NodeKind::File, 0o644);
    world.sync(|| {});
}
