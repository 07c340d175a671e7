//! Random trees, and what is seen of them.

use super::find;
use crate::rig::{NODE, bytes};
use cenote_engine::Engine;
use cenote_manifest_check::{TreeReader, ZplTree};
use cenote_testpools::Random;
use cenote_zpl::{FileSystem, SetAttr, SetXattr};
use std::collections::BTreeMap;

/// Changes files of the root directory at random.
pub fn scribble(fs: &FileSystem, random: &mut Random, changes: u64) {
    for _ in 0..changes {
        let name = format!("f{}", random.below(24));
        let there = fs.lookup(fs.root(), name.as_bytes());
        let ino = match there {
            Ok(ino) => ino,
            Err(_) => fs.create(fs.root(), name.as_bytes(), &NODE).unwrap().ino,
        };
        let offset = [0, random.below(300_000), random.below(8 << 20)][random.below(3) as usize];
        match random.below(8) {
            0 => drop(fs.unlink(fs.root(), name.as_bytes(), &|_| false).unwrap()),
            1 => {
                let set = SetAttr { size: Some(offset), ..SetAttr::default() };
                fs.setattr(ino, &set).unwrap();
            }
            2 => {
                let value = bytes(random.next(), random.below(3000) as usize);
                fs.set_xattr(ino, b"user.note", &value, SetXattr::default()).unwrap();
            }
            3 => {
                let zeros = vec![0; 1 + random.below(200_000) as usize];
                fs.write(ino, offset, &zeros, false).map(drop).unwrap();
            }
            _ => {
                let data = bytes(random.next(), 1 + random.below(150_000) as usize);
                fs.write(ino, offset, &data, false).map(drop).unwrap();
            }
        }
    }
}

/// What is seen of a snapshot: attributes, contents and extended attributes by name.
pub fn seen(engine: &Engine, name: &str) -> BTreeMap<Vec<u8>, String> {
    let dataset = find(engine, name);
    let set = engine.pool().dsl().open_objset(&dataset).unwrap();
    let tree = ZplTree::new(FileSystem::open(set).unwrap());
    let mut all = BTreeMap::new();
    for name in tree.list(b".").unwrap() {
        let (stat, xattrs) = (tree.stat(&name).unwrap(), tree.xattrs(&name).unwrap());
        let (mut file, mut at, mut sum) = (tree.open(&name).unwrap(), 0, 0u64);
        let mut buf = vec![0; 1 << 20];
        loop {
            let n = file.read_at(at, &mut buf).unwrap();
            if n == 0 {
                break;
            }
            for byte in &buf[..n] {
                sum = sum.wrapping_mul(31).wrapping_add(u64::from(*byte) + 1);
            }
            at += n as u64;
        }
        all.insert(name, format!("{stat:?} {xattrs:?} {at} {sum}"));
    }
    all
}
