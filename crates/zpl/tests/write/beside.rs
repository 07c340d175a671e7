//! Threads that write, punch, truncate, rename, take looks and read beside each other, while groups are written. Each
//! thread has a model of what is its own.

use crate::world::World;
use cenote_testpools::Random;
use cenote_zpl::{
    Allocate, CreateProps, FileSystem, NewNode, NodeKind, RenameFlags, SetAttr, Settings,
};
use std::thread;

const WRITERS: u64 = 3;
const STEPS: u64 = 150;
const RECORD: u64 = 16 << 10;
/// Bytes of the file that all write to. Each record has a part of each writer's.
const SHARED: u64 = 8 * RECORD;
const PART: u64 = 2000;
/// Parts that writers write as a whole, so that each read finds one version of it.
const WHOLE: u64 = 24_000;

fn file(fs: &FileSystem, name: &str) -> u64 {
    let kind = NodeKind::File;
    let node = NewNode { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, keep_setgid: false };
    fs.create(fs.root(), name.as_bytes(), &node).unwrap().ino
}

fn contents(fs: &FileSystem, ino: u64) -> Vec<u8> {
    let mut found = vec![0; fs.attr(ino).unwrap().size as usize];
    fs.read(ino, 0, &mut found).unwrap();
    found
}

/// A writer's own file: its name, and what is in it.
struct Own {
    ino: u64,
    name: String,
    data: Vec<u8>,
}

impl Own {
    fn new(fs: &FileSystem, writer: u64) -> Own {
        let name = format!("own{writer}");
        Own { ino: file(fs, &name), name, data: Vec::new() }
    }

    fn put(&mut self, at: usize, data: &[u8]) {
        self.data.resize(self.data.len().max(at + data.len()), 0);
        self.data[at..at + data.len()].copy_from_slice(data);
    }

    fn step(&mut self, fs: &FileSystem, random: &mut Random, step: u64) {
        let (at, len) = (random.below(5 * RECORD), 1 + random.below(2 * RECORD));
        match random.below(8) {
            0 => {
                let size = SetAttr { size: Some(at), ..SetAttr::default() };
                fs.setattr(self.ino, &size).unwrap();
                self.data.resize(at as usize, 0);
            }
            1 => {
                fs.allocate(self.ino, at, len, Allocate::PunchHole).unwrap();
                let end = self.data.len().min((at + len) as usize);
                if let Some(hole) = self.data.get_mut(at as usize..end) {
                    hole.fill(0);
                }
            }
            2 => {
                let new = format!("{}.{step}", self.name);
                let (root, flags) = (fs.root(), RenameFlags::default());
                let (old, name) = (self.name.as_bytes(), new.as_bytes());
                fs.rename(root, old, root, name, flags, &|_| true).unwrap();
                self.name = new;
            }
            3 => {
                let data = vec![step as u8; len as usize];
                let end = fs.append(self.ino, &data, false).unwrap() as usize;
                assert_eq!(end, self.data.len());
                self.put(end, &data);
            }
            _ => {
                let data = vec![step as u8; len as usize];
                fs.write(self.ino, at, &data, false).unwrap();
                self.put(at as usize, &data);
            }
        }
        assert!(contents(fs, self.ino) == self.data, "step {step}");
    }
}

/// Writes to a part of a record of which others write other parts.
fn write_part(fs: &FileSystem, ino: u64, writer: u64, random: &mut Random, model: &mut [u8]) {
    let start = random.below(SHARED / RECORD) * RECORD + writer * PART;
    let (skip, byte) = (random.below(PART - 1), random.below(256) as u8);
    let len = 1 + random.below(PART - skip);
    let at = start + skip;
    let part = &mut model[at as usize..][..len as usize];
    if random.below(5) == 0 {
        fs.allocate(ino, at, len, Allocate::PunchHole).unwrap();
        part.fill(0);
    } else {
        part.fill(byte);
        fs.write(ino, at, part, false).unwrap();
    }
    let mut found = vec![1; len as usize];
    fs.read(ino, at, &mut found).unwrap();
    assert!(found == part);
}

/// What a writer left.
struct Left {
    own: Own,
    shared: Vec<u8>,
}

fn writer(fs: &FileSystem, shared: u64, whole: u64, writer: u64) -> Left {
    let mut random = Random(77 + writer);
    let (mut own, mut model) = (Own::new(fs, writer), vec![0; SHARED as usize]);
    for step in 0..STEPS {
        own.step(fs, &mut random, step);
        write_part(fs, shared, writer, &mut random, &mut model);
        let version = step * WRITERS + writer + 1;
        let data = version.to_le_bytes().repeat(WHOLE as usize / 8);
        fs.write(whole, RECORD - 1000, &data, false).unwrap();
    }
    Left { own, shared: model }
}

fn check(fs: &FileSystem, shared: u64, left: &[Left]) {
    let found = contents(fs, shared);
    for (at, byte) in found.iter().enumerate() {
        let part = at as u64 % RECORD / PART;
        let wanted = left.get(part as usize).map_or(0, |left| left.shared[at]);
        assert_eq!(*byte, wanted, "byte {at}");
    }
    for Left { own, .. } in left {
        assert_eq!(fs.lookup(fs.root(), own.name.as_bytes()).unwrap(), own.ino);
        assert!(contents(fs, own.ino) == own.data);
    }
}

#[test]
fn writers_beside_each_other_do_what_they_do_alone() {
    let settings = Settings { record_size: RECORD, ..Settings::default() };
    let mut world = World::new(&CreateProps::default(), settings);
    let fs = world.fs.clone();
    let (shared, whole) = (file(&fs, "shared"), file(&fs, "whole"));
    let size = SetAttr { size: Some(SHARED), ..SetAttr::default() };
    fs.setattr(shared, &size).unwrap();
    fs.write(whole, RECORD - 1000, &[0; WHOLE as usize], false).unwrap();
    let left: Vec<Left> = thread::scope(|scope| {
        let run = |n: u64| {
            let fs = &fs;
            scope.spawn(move || writer(fs, shared, whole, n))
        };
        let writers: Vec<_> = (0..WRITERS).map(run).collect();
        while !writers.iter().all(|writer| writer.is_finished()) {
            world.write_group(|| {
                let mut found = vec![1; WHOLE as usize];
                fs.read(whole, RECORD - 1000, &mut found).unwrap();
                assert!(found == found[..8].repeat(WHOLE as usize / 8));
            });
        }
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    check(&fs, shared, &left);
    drop(fs);
    world.reopen();
    check(&world.fs, shared, &left);
}
