//! Volumes whose size changes.

use crate::world::OBJSET;
use cenote_dmu::live::{Assigned, Cost, Hold, LiveObjectSet, TxAssign};
use cenote_dmu::tunables::DELETE_BLOCKS;
use cenote_dmu::write::{OpenObjectSet, Result, WriteError};
use cenote_format::dmu::ObjsetType;
use cenote_store::alloc::ReadEpochs;
use cenote_testsink::MemSink;
use cenote_zpl::{Volume, format_volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCK: u64 = 512;
/// It has more blocks than are freed in one transaction.
const SIZE: u64 = 48 << 20;

/// Counts what each change frees, and lets so many changes in.
#[derive(Default)]
struct Txgs {
    left: AtomicU64,
    most: Arc<AtomicU64>,
    readers: Arc<ReadEpochs>,
}

struct Counted(Arc<AtomicU64>);

impl Hold for Counted {
    fn settle(&mut self, _: u64, freed: u64) {
        self.0.fetch_max(freed, Ordering::SeqCst);
    }
}

impl TxAssign for Txgs {
    fn readers(&self) -> Arc<ReadEpochs> {
        self.readers.clone()
    }

    fn assign(&self, _: u64, _: &Cost, _: &AtomicU64) -> Result<Assigned> {
        let take = |left: u64| left.checked_sub(1);
        let taken = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        taken.map_err(|_| WriteError::NoSpace)?;
        Ok(Assigned::settling(7, Counted(self.most.clone())))
    }
}

struct World {
    sink: MemSink,
    live: Arc<LiveObjectSet>,
    txgs: Arc<Txgs>,
}

impl World {
    fn new() -> World {
        let sink = MemSink::new(256 << 20);
        let mut os = OpenObjectSet::create(sink.store.clone(), OBJSET, ObjsetType::Zvol).unwrap();
        format_volume(&mut os, SIZE, BLOCK).unwrap();
        let (synced, os) = sink.write_new(os, 5);
        sink.follow(&synced);
        let txgs = Arc::new(Txgs { left: AtomicU64::new(u64::MAX), ..Txgs::default() });
        World { sink, live: LiveObjectSet::new(os, txgs.clone()), txgs }
    }

    fn open(&self) -> Volume {
        Volume::open_live(self.live.clone()).unwrap()
    }

    fn sync(&self) {
        let mut quiesced = self.live.quiesce();
        self.sink.follow(&quiesced.sync(8, &self.sink).unwrap());
        self.live.sync_done(quiesced.finish());
        self.txgs.readers.group_done(8);
    }

    /// The next changes, after so many, fail.
    fn allow(&self, changes: u64) {
        self.txgs.left.store(changes, Ordering::SeqCst);
    }
}

fn is_zeros(volume: &Volume, from: u64, to: u64) -> bool {
    let mut read = vec![1; (to - from) as usize];
    assert_eq!(volume.read(from, &mut read).unwrap(), read.len());
    read.iter().all(|b| *b == 0)
}

#[test]
fn nothing_is_written_past_an_end_that_moved() {
    let world = World::new();
    let (volume, other) = (world.open(), world.open());
    volume.write(40 << 20, &[1; 4096]).unwrap();
    other.resize(20 << 20).unwrap();
    for at in [40 << 20, (20 << 20) - 512] {
        assert_eq!(volume.write(at, &[1; 4096]).unwrap_err().errno(), 22);
        assert_eq!(volume.discard(at, 4096).unwrap_err().errno(), 22);
    }
    assert_eq!(volume.size(), 20 << 20);
    // Where it gets larger it can be written to.
    other.resize(SIZE).unwrap();
    volume.write(SIZE - 512, &[2; 512]).unwrap();
    assert!(is_zeros(&volume, (20 << 20) - 512, SIZE - 512));
    assert!(volume.write(u64::MAX, &[1; 2]).is_err() && volume.discard(u64::MAX, 2).is_err());
}

#[test]
fn a_large_volume_is_cut_chunk_by_chunk() {
    let world = World::new();
    let volume = world.open();
    for at in (0..SIZE).step_by(16 << 20) {
        volume.write(at, &vec![3; 16 << 20]).unwrap();
    }
    world.sync();
    volume.resize(1 << 20).unwrap();
    let most = world.txgs.most.load(Ordering::SeqCst);
    assert!(most > 0 && most < DELETE_BLOCKS.get() * 2, "{most}");
    volume.resize(SIZE).unwrap();
    assert!(is_zeros(&volume, 1 << 20, SIZE) && !is_zeros(&volume, 0, 1 << 20));
    world.sync();
    assert!(is_zeros(&volume, 1 << 20, SIZE) && !is_zeros(&volume, 0, 1 << 20));
}

#[test]
fn a_size_that_was_set_stays_if_freeing_fails() {
    let world = World::new();
    let volume = world.open();
    volume.write(SIZE - 4096, &[4; 4096]).unwrap();
    world.sync();
    // The first changes find that blocks have to be read.
    let mut changes = 0;
    while volume.size() == SIZE {
        assert!(changes < 10);
        world.allow(changes);
        assert!(volume.resize(1 << 20).is_err());
        world.allow(u64::MAX);
        assert_eq!(volume.size(), world.open().size());
        changes += 1;
    }
    assert!(changes > 1 && volume.size() == 1 << 20);
    // What was left there is not seen again.
    volume.resize(SIZE).unwrap();
    assert!(is_zeros(&volume, 1 << 20, SIZE));
}

#[test]
fn blocks_are_read_for_many_writes_at_once() {
    let world = World::new();
    let volume = world.open();
    volume.write(0, &[1; 16 * BLOCK as usize]).unwrap();
    world.sync();
    world.sink.store.drop_caches();
    // All but the blocks of data is in memory.
    volume.write(0, &[2; 10]).unwrap();
    let faults = &world.sink.faults;
    faults.set_hung(true);
    std::thread::scope(|scope| {
        for block in 1..=4 {
            let volume = world.open();
            scope.spawn(move || volume.write(block * BLOCK + 1, &[3; 10]).unwrap());
        }
        let end = Instant::now() + Duration::from_secs(30);
        while faults.waiting() < 4 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let together = faults.waiting();
        faults.repair();
        assert_eq!(together, 4);
    });
    let mut read = [0; 12];
    volume.read(4 * BLOCK, &mut read).unwrap();
    assert_eq!(read, [1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 1]);
}
