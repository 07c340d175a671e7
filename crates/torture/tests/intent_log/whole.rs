//! A change of several records is whole after a crash, or not there, whoever commits what.

use crate::SHAPES;
use crate::records::{begun, images, new};
use cenote_engine::Engine;
use cenote_torture::live::disk::{Disk, Image, Journal, Replay};
use cenote_torture::live::lab::{Logs, disks, judge, keep, lab};
use cenote_torture::live::side_by_side;
use cenote_torture::live::world::{self, root};
use cenote_torture::long;
use cenote_zpl::{FileSystem, NodeKind, SetAttr, SetXattr, Settings};
use std::sync::Arc;

const NAME: &[u8] = b"user.a";
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// What a crash leaves of these disks, with its logs replayed.
fn after(disks: &[Arc<Disk>]) -> (Arc<Engine>, Arc<FileSystem>) {
    let left = images(disks);
    judge(&left).unwrap();
    let again = lab(&cenote_torture::live::lab::disks(&left, None));
    let engine = again.import(&again.find().unwrap()).unwrap();
    let fs = root(&engine, true);
    (engine, fs)
}

fn find(fs: &FileSystem, name: &[u8]) -> Option<u64> {
    fs.readdir(fs.root(), 0, 100).unwrap().into_iter().find(|e| e.name == name).map(|e| e.ino)
}

fn set(fs: &FileSystem, ino: u64, name: &[u8], value: &[u8]) {
    fs.set_xattr(ino, name, value, SetXattr::default()).unwrap();
}

/// A list that gives user 7 something.
fn acl(mode: u32) -> Vec<u8> {
    let entries = [
        (1, mode >> 6 & 7, !0),
        (2, 5, 7),
        (4, 4, !0),
        (0x10, mode >> 3 & 7, !0),
        (0x20, mode & 7, !0),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        list.extend((tag as u16).to_le_bytes());
        list.extend((perm as u16).to_le_bytes());
        list.extend(u32::to_le_bytes(id));
    }
    list
}

/// An attribute that moves between the hidden directory and the system attributes has one of its values.
#[test]
fn an_attribute_is_the_old_or_the_new_one() {
    for (old, new_value) in [(40_000, 10), (10, 40_000), (40_000, 50_000), (50_000, 40_000)] {
        let (disks, engine, fs) = begun(world::settings(true));
        let id = fs.objset().id();
        let ino = fs.create(fs.root(), b"file", &new(NodeKind::File)).unwrap().ino;
        set(&fs, ino, NAME, &vec![b'o'; old]);
        engine.sync().unwrap();
        // The feature of logs with such attributes is active by now.
        fs.create(fs.root(), b"more", &new(NodeKind::File)).unwrap();
        engine.commit(id).unwrap();
        set(&fs, ino, NAME, &vec![b'n'; new_value]);
        let other = fs.create(fs.root(), b"other", &new(NodeKind::File)).unwrap().ino;
        engine.commit_objects(id, &[other]).unwrap();
        let (engine2, found) = after(&disks);
        assert!(find(&found, b"other").is_some());
        let value = found.getxattr(ino, NAME).unwrap().unwrap();
        assert!(value == vec![b'o'; old] || value == vec![b'n'; new_value], "{}", value.len());
        engine2.export(false).unwrap();
        engine.export(false).unwrap();
    }
}

/// A new file has the lists that it inherits, and a list and a mode change together, where lists are system
/// attributes and where they are files.
#[test]
fn lists_come_with_their_files_and_modes() {
    for xattr_sa in [true, false] {
        let (disks, engine, fs) = begun(Settings { xattr_sa, ..world::settings(true) });
        let (id, top) = (fs.objset().id(), fs.root());
        set(&fs, top, DEFAULT, &acl(0o777));
        let file = fs.create(top, b"file", &new(NodeKind::File)).unwrap().ino;
        set(&fs, file, ACCESS, &acl(0o640));
        engine.sync().unwrap();
        let more = fs.create(top, b"more", &new(NodeKind::File)).unwrap().ino;
        fs.setattr(file, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        let dir = fs.create(top, b"dir", &new(NodeKind::Dir)).unwrap().ino;
        let other = fs.create(top, b"other", &new(NodeKind::File)).unwrap().ino;
        engine.commit_objects(id, &[other]).unwrap();
        let (engine2, found) = after(&disks);
        for ino in [more, dir, other] {
            let of = |fs: &FileSystem, name| fs.getxattr(ino, name).unwrap();
            assert_eq!(of(&found, ACCESS), of(&fs, ACCESS), "xattr_sa {xattr_sa}, object {ino}");
            assert_eq!(of(&found, DEFAULT), of(&fs, DEFAULT), "xattr_sa {xattr_sa}, object {ino}");
        }
        let list = found.getxattr(file, ACCESS).unwrap().unwrap();
        let mode = found.attr(file).unwrap().mode & 0o777;
        let pairs = [(acl(0o640), 0o640), (acl(0o600), 0o600)];
        assert!(pairs.contains(&(list, mode)), "xattr_sa {xattr_sa}: mode {mode:o}");
        engine2.export(false).unwrap();
        engine.export(false).unwrap();
    }
}

/// A write that takes several records, in one log block, in several, or with blocks of its own, is there as a whole
/// after a loss of power, or not at all.
#[test]
fn a_write_of_many_records_is_whole() {
    let seeds = if long() { 8 } else { 1 };
    for (n, record_size) in [16 << 10, 128 << 10].into_iter().enumerate() {
        for shape in &SHAPES {
            let journal = Arc::new(Journal::default());
            let first = vec![Image::new(shape.size); shape.disks];
            let engine = lab(&disks(&first, Some(&journal))).create_with(shape, Logs::On).unwrap();
            let fs = root(&engine, true);
            fs.set_settings(Settings { record_size, ..world::settings(true) });
            let ino = fs.create(fs.root(), b"file", &new(NodeKind::File)).unwrap().ino;
            let size = 500 << 10;
            fs.write(ino, 0, &vec![1; size], false).unwrap();
            engine.commit(fs.objset().id()).unwrap();
            let (begun, mut acknowledged) = (journal.len(), Vec::new());
            for value in 2..5 {
                fs.write(ino, 0, &vec![value; size], false).unwrap();
                engine.commit_objects(fs.objset().id(), &[ino]).unwrap();
                acknowledged.push((journal.len(), value));
            }
            let mut replay = Replay::new(first, &journal);
            let all = (begun..=journal.len()).flat_map(|at| {
                replay.advance(at);
                (0..seeds)
                    .map(|seed| (at, replay.crash(seed * 7919 + at as u64)))
                    .collect::<Vec<_>>()
            });
            side_by_side(all, |(at, images)| {
                let disks = disks(&images, None);
                let (engine, _) = crate::recover(&disks, at);
                let fs = root(&engine, true);
                let mut data = vec![0; size];
                assert_eq!(fs.read(ino, 0, &mut data).unwrap(), size);
                let least = acknowledged.iter().rev().find(|(then, _)| *then <= at);
                let least = least.map_or(1, |(_, value)| *value);
                let whole = data.iter().all(|byte| *byte == data[0]) && data[0] >= least;
                assert!(whole, "{shape:?}, {n}, at {at}: in {}", keep(&images));
                engine.export(false).unwrap();
            });
        }
    }
}
