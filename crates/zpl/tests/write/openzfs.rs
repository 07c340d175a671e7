//! Nodes that OpenZFS made, made again: the attributes are the same, byte by byte.

use crate::world::World;
use cenote_manifest_check::import;
use cenote_zpl::{Attr, CreateProps, FileSystem, NewNode, NodeKind, SetAttr, SetTime, Settings};

/// Generation, parent, flags; ctime and crtime.
const OTHER: [std::ops::Range<usize>; 4] = [16..24, 40..48, 48..56, 88..120];
/// Where the project is.
const PROJECT: usize = 128;
/// `ZFS_PROJID`.
const HAS_PROJECT: u64 = 0x8000_0000_0000;

/// The values in a bonus buffer, without what must differ: up to the list, and all.
fn values(bonus: &[u8], is_device: bool) -> (Vec<u8>, Vec<u8>) {
    let head = usize::from(bonus[5] >> 2) * 8;
    let mut values = bonus[head..].to_vec();
    OTHER.iter().for_each(|r| values[r.clone()].fill(0));
    let list = PROJECT + 8 + if is_device { 8 } else { 0 };
    (values[..list].to_vec(), values)
}

fn again(world: &World, from: &FileSystem, ino: u64, attr: &Attr) -> u64 {
    let kind = match attr.mode & 0o170_000 {
        0o100_000 => NodeKind::File,
        0o040_000 => NodeKind::Dir,
        0o120_000 => NodeKind::Symlink(from.readlink(ino).unwrap()),
        0o010_000 => NodeKind::Fifo,
        0o140_000 => NodeKind::Socket,
        0o020_000 => NodeKind::CharDevice(attr.rdev.0, attr.rdev.1),
        _ => NodeKind::BlockDevice(attr.rdev.0, attr.rdev.1),
    };
    let (mode, uid, gid) = (attr.mode & 0o7777, attr.uid, attr.gid);
    let new = NewNode { kind, mode, umask: 0, uid, gid, keep_setgid: true };
    let (fs, name) = (&world.fs, format!("{}-{ino}", world.tick()));
    let made = fs.create(fs.root(), name.as_bytes(), &new).unwrap().ino;
    for n in 1..attr.nlink {
        match attr.is_dir() {
            false => drop(fs.link(made, fs.root(), format!("{name}-{n}").as_bytes()).unwrap()),
            true if n == 1 => {}
            true => {
                let dir = NewNode { kind: NodeKind::Dir, ..new.clone() };
                fs.create(made, n.to_string().as_bytes(), &dir).unwrap();
            }
        }
    }
    if attr.is_dir() {
        for n in attr.nlink..attr.size {
            let file = NewNode { kind: NodeKind::File, ..new.clone() };
            fs.create(made, format!("f{n}").as_bytes(), &file).unwrap();
        }
    }
    let set = SetAttr {
        size: attr.is_file().then_some(attr.size),
        atime: Some(SetTime::To(attr.atime)),
        mtime: Some(SetTime::To(attr.mtime)),
        ..SetAttr::default()
    };
    fs.setattr(made, &set).unwrap();
    made
}

#[test]
fn nodes_of_openzfs_made_again() {
    let pool = import("basic");
    let (mut compared, mut with_list) = (0, 0);
    for dataset in ["basic", "basic/rec8k", "basic/ci", "basic/xdir"] {
        let found = pool.dsl().find(dataset).unwrap().unwrap();
        let fs = FileSystem::open(pool.dsl().open_objset(&found).unwrap()).unwrap();
        let world = World::new(&CreateProps::default(), Settings::default());
        let mut dirs = vec![fs.root()];
        while let Some(dir) = dirs.pop() {
            for entry in fs.readdir(dir, 0, usize::MAX).unwrap() {
                let (ino, attr) = (entry.ino, fs.attr(entry.ino).unwrap());
                if attr.is_dir() {
                    dirs.push(ino);
                }
                let xattrs = fs.stored_attrs(ino).unwrap().packed_xattrs.is_some();
                // OpenZFS 2.3 gives a project to files and directories only.
                if attr.flags & HAS_PROJECT == 0
                    || xattrs
                    || attr.xattr != 0
                    || attr.size > 10_000 && attr.is_dir()
                {
                    continue;
                }
                let made = again(&world, &fs, ino, &attr);
                let device = attr.rdev != (0, 0);
                let theirs = values(&fs.object(ino).unwrap().dnode().bonus, device);
                let ours = values(&world.fs.object(made).unwrap().dnode().bonus, device);
                assert_eq!(theirs.0, ours.0, "{attr:?}");
                assert_eq!(attr.flags, world.fs.attr(made).unwrap().flags, "{attr:?}");
                compared += 1;
                with_list += usize::from(theirs.1 == ours.1);
            }
        }
    }
    // With POSIX lists OpenZFS makes the list before it applies the umask, so only those that were
    // changed later, or made with the mode that they have, are the same to the end.
    assert!(compared > 5000 && with_list > 1900, "{with_list} of {compared}");
}
