//! How long changes of one dataset hold its lock, and what several writers get out of it.
//!
//! `cargo bench -p cenote-zpl --bench locks`
//!
//! A pool in memory, without a daemon and without an intent log. What is shown is the time from the place in the
//! transaction group to the made change: what the lock is held for, and with several writers what it is waited for as
//! well. What is made ready before, or read again after a miss, is not in it.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use cenote_dmu::live::{Assigned, Cost, LiveObjectSet, TxAssign};
use cenote_dmu::write::intent::Intent;
use cenote_dmu::write::{OpenObjectSet, Result};
use cenote_format::dmu::ObjsetType;
use cenote_store::alloc::ReadEpochs;
use cenote_testsink::MemSink;
use cenote_zpl::{
    CreateProps, FileSystem, NewNode, NodeKind, RenameFlags, SetAttr, Settings, Volume, format,
    format_volume,
};

const RECORD: usize = 128 << 10;
/// Blocks of a file; together they fit into the cache.
const BLOCKS: usize = 8;
const VOLUME: u64 = 2 << 20;
const VOLUME_BLOCK: u64 = 16 << 10;
const ROUNDS: usize = 16;
const WRITERS: [usize; 3] = [1, 2, 4];

thread_local! {
    /// When this thread got its place, and how long its changes took from there, in nanoseconds.
    static TIMES: RefCell<(Option<Instant>, Vec<u64>)> = const { RefCell::new((None, Vec::new())) };
}

#[derive(Default)]
struct Txgs(AtomicU64, Arc<ReadEpochs>);

impl TxAssign for Txgs {
    fn readers(&self) -> Arc<ReadEpochs> {
        self.1.clone()
    }

    fn assign(&self, _: u64, _: &Cost, _: &AtomicU64) -> Result<Assigned> {
        let txg = self.0.load(Ordering::SeqCst);
        TIMES.with_borrow_mut(|times| times.0 = Some(Instant::now()));
        Ok(Assigned::new(txg, ()))
    }

    fn changed(&self, _: u64, _: Intent) {
        TIMES.with_borrow_mut(|(start, times)| {
            times.extend(start.take().map(|start| start.elapsed().as_nanos() as u64));
        });
    }
}

struct World {
    sink: MemSink,
    txgs: Arc<Txgs>,
    live: Arc<LiveObjectSet>,
}

impl World {
    fn new(kind: ObjsetType, make: impl FnOnce(&mut OpenObjectSet)) -> World {
        let sink = MemSink::new(8 << 30);
        let txgs = Arc::new(Txgs(AtomicU64::new(10), Arc::default()));
        let mut os = OpenObjectSet::create(sink.store.clone(), 54, kind).unwrap();
        make(&mut os);
        let (_, os) = sink.write_new(os, 10);
        txgs.0.store(11, Ordering::SeqCst);
        World { sink, live: LiveObjectSet::new(os, txgs.clone()), txgs }
    }

    fn sync(&self) {
        let mut quiesced = self.live.quiesce();
        let txg = self.txgs.0.fetch_add(1, Ordering::SeqCst);
        quiesced.sync(txg, &self.sink).unwrap();
        self.live.sync_done(quiesced.finish());
        self.txgs.1.group_done(txg);
    }
}

fn at(sorted: &[u64], percent: usize) -> f64 {
    sorted.get(sorted.len().saturating_sub(1) * percent / 100).map_or(0.0, |ns| *ns as f64 / 1000.0)
}

/// Runs `op` on `writers` threads in each of some groups; `before` is called when a group begins, and not measured.
fn row(
    what: &str,
    world: &World,
    writers: usize,
    before: impl Fn(),
    op: impl Fn(usize, usize, usize) + Sync,
    times: usize,
) {
    let mut made = Vec::new();
    for round in 0..ROUNDS {
        world.sync();
        before();
        thread::scope(|scope| {
            let op = &op;
            let run = |writer| {
                scope.spawn(move || {
                    TIMES.take();
                    (0..times).for_each(|i| op(writer, round, i));
                    TIMES.take().1
                })
            };
            let threads: Vec<_> = (0..writers).map(run).collect();
            threads.into_iter().for_each(|thread| made.extend(thread.join().unwrap()));
        });
    }
    made.sort_unstable();
    println!("{what:<44} {writers:>7} {:>10.1} {:>10.1}", at(&made, 50), at(&made, 99));
}

fn node(kind: NodeKind) -> NewNode {
    NewNode { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, keep_setgid: false }
}

fn files() {
    let props = CreateProps::default();
    let world = World::new(ObjsetType::Zfs, |os| format(os, &props, 10).unwrap());
    let fs = FileSystem::open_live(world.live.clone(), Settings::default()).unwrap();
    let root = fs.root();
    let data = vec![7; RECORD];
    let fill = |ino: u64| {
        for b in 0..BLOCKS {
            fs.write(ino, (b * RECORD) as u64, &data, false).unwrap();
        }
    };
    let make = |i: usize| {
        let ino =
            fs.create(root, format!("file{i}").as_bytes(), &node(NodeKind::File)).unwrap().ino;
        fill(ino);
        ino
    };
    let files: Vec<u64> = (0..4).map(make).collect();
    let warm = || {
        for ino in &files {
            fs.read(*ino, 0, &mut vec![0; BLOCKS * RECORD]).unwrap();
        }
    };
    for writers in WRITERS {
        let write = |len: usize, skip: usize| {
            let (fs, files, data) = (&fs, &files, &data);
            move |w: usize, _: usize, i: usize| {
                let at = (i % BLOCKS * RECORD + skip) as u64;
                fs.write(files[w], at, &data[..len], false).unwrap();
            }
        };
        row("128 KiB, whole blocks", &world, writers, || {}, write(RECORD, 0), BLOCKS);
        row("4 KiB, blocks clean and cached", &world, writers, warm, write(4096, 4096), BLOCKS);
        let dirty = || files.iter().for_each(|ino| fill(*ino));
        row("4 KiB, blocks dirty", &world, writers, dirty, write(4096, 4096), 4 * BLOCKS);
        row("64 KiB, blocks dirty", &world, writers, dirty, write(65536, 4096), 4 * BLOCKS);
        let names = |w: usize, round: usize, i: usize| format!("{writers}.{w}.{round}.{i}");
        let create = |w: usize, round: usize, i: usize| {
            fs.create(root, names(w, round, i).as_bytes(), &node(NodeKind::File)).unwrap();
        };
        row("create", &world, writers, || {}, create, 4 * BLOCKS);
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let chmod = |w: usize, _: usize, _: usize| {
            fs.setattr(files[w], &set).unwrap();
        };
        row("chmod", &world, writers, || {}, chmod, 4 * BLOCKS);
        let rename = |w: usize, round: usize, i: usize| {
            let (old, new) = (names(w, round, i), format!("new{}", names(w, round, i)));
            let (old, new) = (old.as_bytes(), new.as_bytes());
            fs.rename(root, old, root, new, RenameFlags::default(), &|_| false).unwrap();
        };
        row("rename", &world, writers, || {}, rename, 4 * BLOCKS);
        let unlink = |w: usize, round: usize, i: usize| {
            let name = format!("new{}", names(w, round, i));
            fs.unlink(root, name.as_bytes(), &|_| false).unwrap();
        };
        row("unlink", &world, writers, || {}, unlink, 4 * BLOCKS);
    }
}

fn volume() {
    let world = World::new(ObjsetType::Zvol, |os| format_volume(os, VOLUME, VOLUME_BLOCK).unwrap());
    let volume = Volume::open_live(world.live.clone()).unwrap();
    // Compresses to about the half, as data may.
    let data: Vec<u8> =
        (0..VOLUME as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 28) as u8).collect();
    volume.write(0, &data).unwrap();
    let blocks = (VOLUME / VOLUME_BLOCK) as usize;
    let warm = || {
        volume.read(0, &mut vec![0; VOLUME as usize]).unwrap();
    };
    for writers in WRITERS {
        let each = blocks / writers;
        let write = |len: usize, skip: u64| {
            let (volume, data) = (&volume, &data);
            move |w: usize, _: usize, i: usize| {
                let at = (w * each + i) as u64 * VOLUME_BLOCK + skip;
                volume.write(at, &data[..len]).unwrap();
            }
        };
        let whole = write(VOLUME_BLOCK as usize, 0);
        row("volume: 16 KiB, whole blocks", &world, writers, || {}, whole, each);
        let part = write(4096, 4096);
        row("volume: 4 KiB, clean, cached, compressed", &world, writers, warm, part, each);
    }
}

fn main() {
    let head = ("change of one dataset", "writers", "median us", "99% us");
    println!("{:<44} {:>7} {:>10} {:>10}", head.0, head.1, head.2, head.3);
    files();
    volume();
}
