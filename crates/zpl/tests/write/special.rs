//! What random operations do not reach.

use crate::world::{OBJSET, Txgs, World};
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::objset::USER_USED;
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{Accounts, NewObject, OpenObjectSet, WriteError, ZapMut};
use cenote_dmu::{Object, ObjectSet};
use cenote_format::ByteOrder;
use cenote_format::dmu::{DmuType, ObjsetType};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::sa::file_info;
use cenote_testsink::MemSink;
use cenote_zpl::{
    Allocate, CreateProps, Error, FileSystem, NewNode, NodeKind, RenameFlags, SetAttr, SetXattr,
    Settings, Volume, flags, format_volume,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn world() -> World {
    World::new(&CreateProps::default(), Settings::default())
}

fn new(kind: NodeKind) -> NewNode {
    NewNode { kind, mode: 0o755, umask: 0, uid: 7, gid: 8, keep_setgid: true }
}

fn errno<T>(done: Result<T, Error>) -> i32 {
    done.map(drop).unwrap_err().errno()
}

fn disk(world: &World) -> (Arc<ObjectSet>, Arc<FileSystem>) {
    let os = world.sync(|| {});
    (os.clone(), FileSystem::open(os).unwrap())
}

fn owner(object: &Object) -> (u64, u64, u64) {
    let dnode = object.dnode();
    let info = file_info(dnode.bonus_kind, &dnode.bonus, ByteOrder::Little).unwrap();
    (info.uid, info.gid, info.projid)
}

#[test]
fn spill_blocks_come_and_go() {
    for dnode_size in [512, 1024, 2048] {
        let settings = Settings { dnode_size, ..Settings::default() };
        let world = World::new(&CreateProps { dnode_size, ..CreateProps::default() }, settings);
        let fs = &world.fs;
        let target = vec![b't'; 4095];
        let link = fs.create(fs.root(), b"l", &new(NodeKind::Symlink(target.clone()))).unwrap().ino;
        let file = fs.create(fs.root(), b"f", &new(NodeKind::File)).unwrap().ino;
        for len in [10, 3000, 20_000, 32_000, 50] {
            fs.set_xattr(file, b"user.x", &vec![9; len], SetXattr::default()).unwrap();
            let (os, disk) = disk(&world);
            assert_eq!(disk.getxattr(file, b"user.x").unwrap(), Some(vec![9; len]));
            assert_eq!(disk.readlink(link).unwrap(), target);
            let object = os.object(file).unwrap();
            assert_eq!(object.dnode().spill.is_some(), len > dnode_size, "{len}");
            assert_eq!(object.dnode().slots() as usize * 512, dnode_size);
            assert_eq!(owner(&object), (7, 8, 0));
        }
        // Too much for a spill block: the rest is files.
        for n in 0..4 {
            let name = format!("user.{n}");
            fs.set_xattr(file, name.as_bytes(), &[n; 30_000], SetXattr::default()).unwrap();
        }
        let (_, disk) = disk(&world);
        assert_ne!(disk.attr(file).unwrap().xattr, 0);
        assert_eq!(disk.listxattr(file).unwrap().len(), 5);
        assert_eq!(disk.getxattr(file, b"user.3").unwrap(), Some(vec![3; 30_000]));
        assert_eq!(errno(fs.set_xattr(file, b"user.y", &[0; 65_537], SetXattr::default())), 27);
    }
}

#[test]
fn flags_forbid() {
    let world = world();
    let (fs, root, idle) = (&world.fs, world.fs.root(), |_| false);
    let dir = fs.create(root, b"d", &new(NodeKind::Dir)).unwrap().ino;
    let file = fs.create(dir, b"f", &new(NodeKind::File)).unwrap().ino;
    fs.write(file, 0, b"12", false).unwrap();
    let set = |ino, flags| {
        fs.setattr(ino, &SetAttr { flags: Some(flags), ..SetAttr::default() }).unwrap()
    };
    set(file, flags::IMMUTABLE);
    assert_eq!(errno(fs.write(file, 0, b"x", false)), 1);
    assert_eq!(errno(fs.allocate(file, 0, 5, Allocate::Extend)), 1);
    assert_eq!(errno(fs.unlink(dir, b"f", &idle)), 1);
    assert_eq!(errno(fs.link(file, root, b"x")), 1);
    assert_eq!(errno(fs.rename(dir, b"f", root, b"f", RenameFlags::default(), &idle)), 1);
    assert_eq!(errno(fs.set_xattr(file, b"user.x", b"", SetXattr::default())), 1);
    for set in [
        SetAttr { mode: Some(0), ..SetAttr::default() },
        SetAttr { size: Some(0), ..SetAttr::default() },
        SetAttr { uid: Some(0), ..SetAttr::default() },
    ] {
        assert_eq!(errno(fs.setattr(file, &set)), 1);
    }
    set(file, flags::APPEND_ONLY);
    assert_eq!(errno(fs.write(file, 1, b"x", false)), 1);
    assert_eq!(errno(fs.allocate(file, 0, 1, Allocate::PunchHole)), 1);
    assert_eq!(fs.append(file, b"3", false).unwrap(), 2);
    set(file, 0);
    set(dir, flags::IMMUTABLE);
    assert_eq!(errno(fs.create(dir, b"g", &new(NodeKind::File))), 1);
    assert_eq!(errno(fs.unlink(dir, b"f", &idle)), 1);
    set(dir, flags::APPEND_ONLY);
    fs.create(dir, b"g", &new(NodeKind::File)).unwrap();
    assert_eq!(errno(fs.unlink(dir, b"g", &idle)), 1);
    set(dir, 0);
    fs.unlink(dir, b"g", &idle).unwrap();
    let settings = Settings { read_only: true, ..world.settings.clone() };
    fs.set_settings(settings);
    assert_eq!(errno(fs.unlink(dir, b"f", &idle)), 30);
    let (_, disk) = disk(&world);
    assert_eq!(errno(disk.unlink(dir, b"f", &idle)), 30);
}

#[test]
fn projects_are_handed_down_and_bound() {
    let world = world();
    let (fs, root, idle) = (&world.fs, world.fs.root(), |_| false);
    let dir = fs.create(root, b"d", &new(NodeKind::Dir)).unwrap().ino;
    let set =
        SetAttr { projid: Some(5), flags: Some(flags::PROJECT_INHERIT), ..SetAttr::default() };
    assert_eq!(fs.setattr(dir, &set).unwrap().projid, 5);
    let sub = fs.create(dir, b"s", &new(NodeKind::Dir)).unwrap();
    assert_eq!((sub.projid, sub.flags & flags::PROJECT_INHERIT), (5, flags::PROJECT_INHERIT));
    let inside = fs.create(dir, b"f", &new(NodeKind::File)).unwrap();
    assert_eq!(inside.projid, 5);
    let outside = fs.create(root, b"o", &new(NodeKind::File)).unwrap().ino;
    let flags = RenameFlags::default();
    assert_eq!(errno(fs.rename(root, b"o", dir, b"o", flags, &idle)), 18);
    assert_eq!(errno(fs.link(outside, dir, b"o")), 18);
    fs.rename(dir, b"f", root, b"f", flags, &idle).unwrap();
    let (os, _) = disk(&world);
    assert_eq!(owner(&os.object(inside.ino).unwrap()), (7, 8, 5));
    assert_eq!(owner(&os.object(outside).unwrap()), (7, 8, 0));
    // A file system without projects gets them when the feature comes.
    let old = Settings { project_quota: false, ..Settings::default() };
    let world = World::new(&CreateProps { project_quota: false, ..CreateProps::default() }, old);
    let fs = &world.fs;
    let file = fs.create(fs.root(), b"f", &new(NodeKind::File)).unwrap().ino;
    let set = SetAttr { projid: Some(9), ..SetAttr::default() };
    assert_eq!(errno(fs.setattr(file, &set)), 95);
    fs.set_settings(Settings { project_quota: true, ..world.settings.clone() });
    assert_eq!(fs.setattr(file, &set).unwrap().projid, 9);
    let (os, _) = disk(&world);
    assert_eq!(owner(&os.object(file).unwrap()), (7, 8, 9));
}

#[test]
fn large_directories_and_far_offsets() {
    let world = world();
    let (fs, root, idle) = (&world.fs, world.fs.root(), |_| false);
    let names: Vec<String> = (0..6000).map(|n| format!("file number {n}")).collect();
    for name in &names {
        fs.create(root, name.as_bytes(), &new(NodeKind::File)).unwrap();
    }
    for name in names.iter().step_by(2) {
        fs.unlink(root, name.as_bytes(), &idle).unwrap();
    }
    let far = fs.lookup(root, names[1].as_bytes()).unwrap();
    fs.write(far, 1 << 50, b"far", false).unwrap();
    assert_eq!(errno(fs.write(far, i64::MAX as u64 - 2, b"too far", false)), 27);
    assert_eq!(errno(fs.setattr(far, &SetAttr { size: Some(1 << 63), ..SetAttr::default() })), 27);
    let (_, disk) = disk(&world);
    assert_eq!(disk.attr(root).unwrap().size, 3002);
    assert_eq!(disk.readdir(root, 0, 10_000).unwrap().len(), 3000);
    let file = disk.open_file(far).unwrap();
    assert_eq!((file.size(), file.block_size()), ((1 << 50) + 3, 128 << 10));
    assert_eq!(file.seek(0, false).unwrap(), Some(1 << 50));
    // An open file of a live file system shows each change.
    let file = fs.open_file(far).unwrap();
    fs.setattr(far, &SetAttr { size: Some(5), ..SetAttr::default() }).unwrap();
    assert_eq!(file.size(), 5);
    fs.write(far, 3, b"abc", false).unwrap();
    let mut buf = [1; 10];
    assert_eq!(file.read(0, &mut buf).unwrap(), 6);
    assert_eq!(&buf[..6], b"\0\0\0abc");
}

#[test]
fn a_file_of_many_holes_becomes_one_of_a_block_while_it_is_written() {
    const K: usize = 1024;
    let world = world();
    let fs = &world.fs;
    let records = |record_size| fs.set_settings(Settings { record_size, ..world.settings.clone() });
    let resize = |ino, size| {
        fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    };
    records(8 << 10);
    let ino = fs.create(fs.root(), b"f", &new(NodeKind::File)).unwrap().ino;
    fs.write(ino, 0, &[1; 8 * K], false).unwrap();
    resize(ino, 80 << 10);
    world.sync(|| {});
    // What is quiesced needs indirect blocks for its length only.
    records(128 << 10);
    fs.write(ino, 72 << 10, &[2; 8 * K], false).unwrap();
    resize(ino, 72 << 10);
    world.sync(|| {
        resize(ino, 4 << 10);
        fs.write(ino, 0, &[3; 12 * K], false).unwrap();
    });
    fs.write(ino, 200 << 10, &[4; K], false).unwrap();
    let (_, disk) = disk(&world);
    let mut read = vec![9; 300 * K];
    assert_eq!(disk.read(ino, 0, &mut read).unwrap(), 201 * K);
    assert!(read[..12 * K].iter().all(|b| *b == 3));
    assert!(read[12 * K..200 * K].iter().all(|b| *b == 0));
    assert!(read[200 * K..201 * K].iter().all(|b| *b == 4));
}

#[test]
fn atime_is_noted_as_the_properties_say() {
    use cenote_zpl::Atime;
    let world = world();
    let fs = &world.fs;
    let file = fs.create(fs.root(), b"f", &new(NodeKind::File)).unwrap();
    let atime = || fs.attr(file.ino).unwrap().atime;
    let read = |atime| {
        fs.set_settings(Settings { atime, ..world.settings.clone() });
        world.tick();
        fs.touch_atime(file.ino).unwrap();
    };
    read(Atime::Off);
    assert_eq!(atime(), file.atime);
    read(Atime::Relative);
    let first = atime();
    assert!(first > file.atime);
    read(Atime::Relative);
    assert_eq!(atime(), first);
    read(Atime::On);
    assert!(atime() > first);
    let last = atime();
    world.ticks.fetch_add(24 * 3600, Ordering::SeqCst);
    read(Atime::Relative);
    assert!(atime() > last);
    assert_eq!(fs.attr(file.ino).unwrap().mtime, file.mtime);
}

/// A node as version 4 has it: a symbolic link's target follows the structure.
fn old_node(
    os: &mut OpenObjectSet,
    parent: u64,
    mode: u64,
    tail: &[u8],
) -> Result<u64, WriteError> {
    let mut words: Vec<u64> = (1..9).collect();
    words.extend([3, mode, tail.len() as u64, parent, 1, 0, 0, 0, 11, 12, 0, 0, 0, 0]);
    // The list: no object, 24 bytes, version 1, 3 entries, of which one says something odd.
    words.extend([0, 24 | 1 << 32 | 3 << 48, 0x1e_019f_1000_0000, 0x77_2040_0000, 3, 4]);
    let mut bonus: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    bonus.resize(264, 0);
    bonus.extend_from_slice(tail);
    let kind = DmuType::PLAIN_FILE_CONTENTS;
    let new = NewObject { bonus_kind: DmuType::ZNODE, bonus, ..NewObject::new(kind, 512) };
    let ino = os.allocate(&new)?;
    let name = format!("old{mode:o}");
    let value = ino | (mode >> 12) << 60;
    let key = Key::Name(name.as_bytes());
    ZapMut::open(os, parent).add(&key, &Value::U64(&[value]))?;
    Ok(ino)
}

#[test]
fn old_nodes_become_new_ones() {
    let world = world();
    let (fs, root) = (&world.fs, world.fs.root());
    let (file, link) = world
        .live
        .transact(Default::default(), |os, _| {
            let file = old_node(os, root, 0o100_640, b"")?;
            let link = old_node(os, root, 0o120_777, b"the target")?;
            Ok::<_, WriteError>((file, link))
        })
        .unwrap();
    let before = fs.attr(file).unwrap();
    assert_eq!(fs.readlink(link).unwrap(), b"the target");
    fs.write(file, 0, &[5; 1000], false).unwrap();
    fs.setattr(link, &SetAttr { uid: Some(4), ..SetAttr::default() }).unwrap();
    let (os, disk) = disk(&world);
    let object = os.object(file).unwrap();
    assert_eq!(object.dnode().bonus_kind, DmuType::SA);
    let after = disk.attr(file).unwrap();
    assert_eq!((after.mode, after.uid, after.gid), (before.mode, 11, 12));
    assert_eq!((after.crtime, after.gen_, after.size), (before.crtime, before.gen_, 1000));
    assert_eq!((after.parent, after.nlink), (root, 1));
    assert_eq!(disk.readlink(link).unwrap(), b"the target");
    assert_eq!(disk.attr(link).unwrap().uid, 4);
    // The list was kept.
    assert!(object.dnode().bonus.windows(8).any(|w| w == 0x1e_019f_1000_0000u64.to_le_bytes()));
    fs.set_xattr(file, b"user.x", b"1", SetXattr::default()).unwrap();
    fs.unlink(root, b"old100640", &|_| false).unwrap();
}

#[test]
fn volumes_are_written() {
    let sink = MemSink::new(64 << 20);
    let mut os = OpenObjectSet::create(sink.store.clone(), OBJSET, ObjsetType::Zvol).unwrap();
    assert!(format_volume(&mut os, 0, 8192).is_err());
    assert!(format_volume(&mut os, 8191, 8192).is_err());
    assert!(format_volume(&mut os, 8192, 3000).is_err());
    format_volume(&mut os, 10 << 20, 8192).unwrap();
    let (synced, os) = sink.write_new(os, 5);
    sink.follow(&synced);
    let live = LiveObjectSet::new(os, Arc::new(Txgs::default()));
    let volume = Volume::open_live(live.clone()).unwrap();
    assert_eq!((volume.size(), volume.block_size()), (10 << 20, 8192));
    let data: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8 + 1).collect();
    volume.write(5000, &data).unwrap();
    assert!(volume.write((10 << 20) - 5, &data).is_err());
    volume.discard(20_000, 30_000).unwrap();
    let mut expected = vec![0; 10 << 20];
    expected[5000..105_000].copy_from_slice(&data);
    expected[20_000..50_000].fill(0);
    let check = |volume: &Volume, expected: &[u8]| {
        let mut read = vec![1; expected.len() + 5];
        assert_eq!(volume.read(0, &mut read).unwrap(), expected.len());
        assert!(read[..expected.len()] == *expected);
    };
    check(&volume, &expected);
    let mut txg = 6;
    let mut sync = || {
        let mut quiesced = live.quiesce();
        sink.follow(&quiesced.sync(txg, &sink).unwrap());
        let written = quiesced.finish();
        let base = written.base().clone();
        live.sync_done(written);
        txg += 1;
        Volume::open(base).unwrap()
    };
    check(&sync(), &expected);
    assert!(volume.resize(8193).is_err());
    volume.resize(81920).unwrap();
    expected.truncate(81920);
    check(&volume, &expected);
    volume.resize(163_840).unwrap();
    expected.resize(163_840, 0);
    check(&volume, &expected);
    check(&sync(), &expected);
    assert!(sync().write(0, b"x").is_err());
}

#[test]
fn many_work_while_txgs_are_synced() {
    let world = world();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u8)
            .map(|w| {
                let fs = world.fs.clone();
                scope.spawn(move || {
                    let root = fs.root();
                    let dir = fs.create(root, &[b'd', b'0' + w], &new(NodeKind::Dir)).unwrap().ino;
                    let log = fs.create(root, &[b'l', b'0' + w], &new(NodeKind::File)).unwrap().ino;
                    for n in 0..150u64 {
                        let name = n.to_string();
                        let ino =
                            fs.create(dir, name.as_bytes(), &new(NodeKind::File)).unwrap().ino;
                        fs.write(ino, n * 100, &[w; 3000], false).unwrap();
                        fs.append(log, &n.to_le_bytes(), false).unwrap();
                        if n % 3 == 0 {
                            fs.unlink(dir, name.as_bytes(), &|_| false).unwrap();
                        } else {
                            let mut read = vec![0; 4000];
                            assert_eq!(fs.read(ino, n * 100, &mut read).unwrap(), 3000);
                            assert!(read[..3000].iter().all(|b| *b == w));
                        }
                        assert_eq!(
                            fs.readdir(dir, 0, 1000).unwrap().len() as u64,
                            n + 1 - (n / 3 + 1)
                        );
                    }
                })
            })
            .collect();
        let syncer = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                world.sync(|| {});
            }
        });
        let results: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        done.store(true, Ordering::SeqCst);
        syncer.join().unwrap();
        results.into_iter().for_each(|r| r.unwrap());
    });
    let (_, disk) = disk(&world);
    for w in 0..4u8 {
        let log = disk.lookup(disk.root(), &[b'l', b'0' + w]).unwrap();
        let mut read = vec![0; 1200];
        assert_eq!(disk.read(log, 0, &mut read).unwrap(), 1200);
        let numbers = read.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap()));
        assert!(numbers.eq(0..150));
        let dir = disk.lookup(disk.root(), &[b'd', b'0' + w]).unwrap();
        assert_eq!(disk.readdir(dir, 0, 1000).unwrap().len(), 100);
    }
}

#[test]
fn what_is_cut_off_while_it_is_read_is_not_read_as_zeros() {
    let world = world();
    let (current, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let reader = |by_reference: bool| {
        while !done.load(Ordering::SeqCst) {
            let Ok(file) = world.fs.open_file(current.load(Ordering::SeqCst)) else { continue };
            let mut read = vec![0; 8000];
            if by_reference {
                read = file.read_abd(0, 8000).unwrap().to_vec();
            } else {
                let n = file.read(0, &mut read).unwrap();
                read.truncate(n);
            }
            assert!(read.iter().all(|b| *b == 1), "{} bytes", read.len());
        }
    };
    std::thread::scope(|scope| {
        let readers = [false, true].map(|by_reference| {
            scope.spawn({
                let reader = &reader;
                move || reader(by_reference)
            })
        });
        // Each file is empty, then long, then short.
        for n in 0..4000u64 {
            let name = n.to_string();
            let ino = world
                .fs
                .create(world.fs.root(), name.as_bytes(), &new(NodeKind::File))
                .unwrap()
                .ino;
            current.store(ino, Ordering::SeqCst);
            world.fs.write(ino, 0, &[1; 8000], false).unwrap();
            world.fs.setattr(ino, &SetAttr { size: Some(4000), ..SetAttr::default() }).unwrap();
        }
        done.store(true, Ordering::SeqCst);
        readers.into_iter().for_each(|r| r.join().unwrap());
    });
}

#[test]
fn what_is_no_directory_has_no_zap() {
    // A hidden table cannot be taken for a file by its number.
    let world = world();
    let fs = &world.fs;
    assert_eq!(errno(fs.write(1, 0, b"x", false)), 2);
    assert_eq!(errno(fs.setattr(2, &SetAttr::default())), 2);
    assert_eq!(errno(fs.write(fs.root(), 0, b"x", false)), 21);
}

/// Users use so much more.
fn used(accounts: &mut Accounts<'_>, more: &[(&str, i64)]) -> Result<(), WriteError> {
    let new = NewObject::new(DmuType::USERGROUP_USED, 512);
    let format = ZapFormat { salt: 3, ..ZapFormat::default() };
    accounts.create(USER_USED, &new, || Ok::<_, WriteError>(format))?;
    let mut all = more.iter();
    all.try_for_each(|(name, more)| {
        accounts.add(USER_USED, &Key::Name(name.as_bytes()), *more).map(drop)
    })
}

#[test]
fn quotas_that_are_full() {
    let world = world();
    let root = world.fs.root();
    let file = world.fs.create(root, b"f", &new(NodeKind::File)).unwrap().ino;
    let other = NewNode { uid: 9, ..new(NodeKind::File) };
    let other = world.fs.create(root, b"o", &other).unwrap().ino;
    // Quotas are set by the dataset's commands, what is used is counted when a txg is synced.
    let put = |os: &mut OpenObjectSet, zap, name: &str, value| {
        let key = Key::Name(name.as_bytes());
        ZapMut::open(os, zap).update(&key, &Value::U64(&[value]))
    };
    let set = |os: &mut OpenObjectSet, _| {
        let kind = NewObject::new(DmuType::USERGROUP_QUOTA, 512);
        let quota = ZapMut::create(os, &kind, ZapFormat { salt: 1, ..ZapFormat::default() })?;
        put(os, 1, "userquota@", quota)?;
        put(os, 1, "userobjquota@", quota)?;
        put(os, quota, "7", 1000)
    };
    world.live.transact(Default::default(), set).unwrap();
    world.count(|accounts| used(accounts, &[("7", 1000)]));
    let fs = FileSystem::open_live(world.live.clone(), world.settings.clone()).unwrap();
    assert_eq!(errno(fs.write(file, 0, b"x", false)), 122);
    assert_eq!(errno(fs.create(root, b"g", &new(NodeKind::File))), 122);
    let chown = SetAttr { uid: Some(7), ..SetAttr::default() };
    assert_eq!(errno(fs.setattr(other, &chown)), 122);
    assert_eq!(fs.setattr(file, &chown).unwrap().uid, 7);
    fs.write(other, 0, b"x", false).unwrap();
    fs.unlink(root, b"f", &|_| false).unwrap();
    world.count(|accounts| used(accounts, &[("7", -1)]));
    fs.create(root, b"g", &new(NodeKind::File)).unwrap();
}

#[test]
fn default_quotas_hold_for_who_has_no_own() {
    let world = world();
    let root = world.fs.root();
    let node = |uid| NewNode { uid, ..new(NodeKind::File) };
    let files = [7, 9]
        .map(|uid| world.fs.create(root, format!("f{uid}").as_bytes(), &node(uid)).unwrap().ino);
    let put = |os: &mut OpenObjectSet, zap, name: &str, value| {
        let key = Key::Name(name.as_bytes());
        ZapMut::open(os, zap).update(&key, &Value::U64(&[value]))
    };
    let set = |os: &mut OpenObjectSet, _| {
        let kind = NewObject::new(DmuType::USERGROUP_QUOTA, 512);
        let quota = ZapMut::create(os, &kind, ZapFormat { salt: 1, ..ZapFormat::default() })?;
        put(os, 1, "userquota@", quota)?;
        put(os, quota, "7", 5000)?;
        put(os, 1, "defaultuserquota", 1000)?;
        put(os, 1, "defaultuserobjquota", 3)
    };
    world.live.transact(Default::default(), set).unwrap();
    world.count(|accounts| used(accounts, &[("7", 1000), ("9", 1000), ("obj-a", 3)]));
    let fs = FileSystem::open_live(world.live.clone(), world.settings.clone()).unwrap();
    fs.write(files[0], 0, b"x", false).unwrap();
    assert_eq!(errno(fs.write(files[1], 0, b"x", false)), 122);
    // User 10 has as many files as the default allows; user 7 has fewer.
    assert_eq!(errno(fs.create(root, b"g", &node(10))), 122);
    fs.create(root, b"h", &node(7)).unwrap();
    world.count(|accounts| used(accounts, &[("9", -1)]));
    fs.write(files[1], 0, b"x", false).unwrap();
}
