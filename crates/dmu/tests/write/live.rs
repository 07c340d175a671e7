//! Object sets in use: read and changed by several threads while they are synced.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use cenote_dmu::live::{Assigned, Cost, LiveObjectSet, TxAssign};
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{Chunk, NewObject, OpenObjectSet, Result, SyncingSet, WriteError, ZapMut};
use cenote_dmu::zap::{Match, Zap};
use cenote_dmu::{Error, ObjectSet};
use cenote_format::dmu::{DmuType, ObjsetType};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::zap::norm::TO_UPPER;
use cenote_store::alloc::ReadEpochs;

use cenote_testsink::MemSink;

/// Lets everything in, but for what is too large.
struct Txgs(AtomicU64, Arc<ReadEpochs>, Mutex<Option<String>>);

impl TxAssign for Txgs {
    fn readers(&self) -> Arc<ReadEpochs> {
        self.1.clone()
    }

    fn assign(&self, objset: u64, cost: &Cost, _: &AtomicU64) -> Result<Assigned> {
        assert_eq!(objset, 7);
        match cost.write {
            0..1_000_000 => Ok(Assigned::new(self.0.load(Ordering::SeqCst), ())),
            _ => Err(WriteError::NoSpace),
        }
    }

    fn panicked(&self, why: &str) {
        *self.2.lock() = Some(why.to_owned());
    }
}

pub struct Live {
    pub sink: MemSink,
    pub set: Arc<LiveObjectSet>,
    txgs: Arc<Txgs>,
}

impl Live {
    /// What the txgs was told of a panic.
    pub fn panicked(&self) -> Option<String> {
        self.txgs.2.lock().clone()
    }
}

pub const COST: Cost = Cost { write: 1, objects: 1, frees: false };

impl Live {
    pub fn new() -> Live {
        let sink = MemSink::new(96 << 20);
        let set = OpenObjectSet::create(sink.store.clone(), 7, ObjsetType::Zfs).unwrap();
        let txgs = Arc::new(Txgs(AtomicU64::new(5), Arc::default(), Mutex::default()));
        let set = LiveObjectSet::new(sink.write_new(set, 4).1, txgs.clone());
        Live { sink, set, txgs }
    }

    pub fn change<T>(&self, mut f: impl FnMut(&mut OpenObjectSet) -> Result<T>) -> T {
        self.set.transact(COST, |os, _| f(os)).unwrap()
    }

    pub fn sync(&self) -> Arc<ObjectSet> {
        self.write_group(self.set.quiesce());
        self.set.base()
    }

    /// Writes what was quiesced.
    pub fn write_group(&self, mut quiesced: SyncingSet) {
        let txg = self.txgs.0.fetch_add(1, Ordering::SeqCst);
        quiesced.sync(txg, &self.sink).unwrap();
        self.set.sync_done(quiesced.finish());
        self.txgs.1.group_done(txg);
    }

    pub fn file(&self) -> u64 {
        let new =
            NewObject { indirect_shift: 12, ..NewObject::new(DmuType::PLAIN_FILE_CONTENTS, 1024) };
        self.change(|os| os.allocate(&new))
    }
}

#[test]
fn readers_see_whole_changes_while_others_write_and_sync() {
    let live = Live::new();
    let files: Vec<u64> = (0..3).map(|_| live.file()).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = files
            .iter()
            .map(|n| {
                let live = &live;
                scope.spawn(move || {
                    for version in 1..250u64 {
                        // Six blocks, the first and the last in part; sometimes freed before.
                        let data = version.to_le_bytes().repeat(700);
                        live.change(|os| {
                            if version % 7 == 0 {
                                os.truncate(*n, 0)?;
                            }
                            os.write(*n, 48 * 1000, &data)
                        });
                    }
                })
            })
            .collect();
        for n in &files {
            let (live, done) = (&live, &done);
            scope.spawn(move || {
                let mut last = 0;
                loop {
                    let finished = done.load(Ordering::Acquire);
                    let mut data = vec![1; 5600];
                    live.set.read(*n, 48 * 1000, &mut data).unwrap();
                    let version = u64::from_le_bytes(data[..8].try_into().unwrap());
                    assert!(version >= last && data == version.to_le_bytes().repeat(700));
                    last = version;
                    if finished {
                        break;
                    }
                }
                assert_eq!(last, 249);
            });
        }
        while !writers.iter().all(|w| w.is_finished()) {
            live.sync();
        }
        done.store(true, Ordering::Release);
    });
    live.sink.store.drop_caches();
    let base = live.sync();
    let set = ObjectSet::open(live.sink.store.clone(), 7, *base.root_bp()).unwrap();
    for n in files {
        let mut data = vec![1; 5600];
        set.object(n).unwrap().read(48 * 1000, &mut data).unwrap();
        assert_eq!(data, 249u64.to_le_bytes().repeat(700));
    }
}

#[test]
fn what_did_not_change_is_not_read_again() {
    let live = Live::new();
    let files: Vec<u64> = (0..200).map(|_| live.file()).collect();
    live.change(|os| files.iter().try_for_each(|n| os.write(*n, 0, &[1; 600])));
    let base = live.sync();
    for n in &files {
        live.set.object(*n).unwrap();
    }
    live.change(|os| os.write(files[3], 0, &[2; 600]));
    live.change(|os| os.free(files[5]));
    let next = live.sync();
    // Nothing can be read from disk any more, and nothing has to be.
    live.sink.store.drop_caches();
    live.sink.forget();
    for n in files.iter().filter(|n| **n != files[5]) {
        assert_eq!(live.set.object(*n).unwrap().dnode().max_block, 0);
        assert_eq!(next.object(*n).unwrap().number(), *n);
    }
    let birth = |set: &Arc<ObjectSet>| set.object(files[3]).unwrap().dnode().pointers[0];
    assert!(birth(&next).logical_birth() == 6);
    // The old one has no cache any more.
    assert!(matches!(base.object(files[4]), Err(Error::Block(_))));
}

#[test]
fn a_refused_change_is_none() {
    let live = Live::new();
    let cost = Cost { write: 2_000_000, ..COST };
    let refused: Result<()> = live.set.transact(cost, |_, _| unreachable!());
    assert!(matches!(refused, Err(WriteError::NoSpace)));
    assert!(!live.set.is_dirty() && live.set.dirty_bytes() == 0);
    let n = live.file();
    assert!(live.set.is_dirty() && live.set.next_object(0).unwrap() == Some(n));
    assert_eq!(live.set.transact(COST, |_, txg| Ok::<_, WriteError>(txg)).unwrap(), 5);
}

#[test]
fn what_was_quiesced_must_be_synced() {
    let live = Live::new();
    let n = live.file();
    drop(live.set.quiesce());
    live.change(|os| os.free(n));
    live.set.give_up();
    assert!(live.set.is_dirty());
    assert!(live.set.transact(COST, |os, _| os.free(n)).is_err());
}

#[test]
fn whole_blocks_are_copied_before_the_change() {
    let live = Live::new();
    let n = live.file();
    live.change(|os| os.write(n, 2048, &[1; 4096]));
    let data: Vec<u8> = (0..6000u32).map(|i| i as u8).collect();
    // As it turns out, the second one was cut for blocks of another size, the third for another place.
    for (offset, chunk) in [
        (100, Chunk::new(100, &data, 1024)),
        (200, Chunk::new(200, &data, 512)),
        (300, Chunk::new(200, &data, 1024)),
    ] {
        live.change(|os| os.write_last(n, offset, &chunk));
        let mut back = vec![0; 6500];
        live.set.read(n, 0, &mut back).unwrap();
        assert!(back[offset as usize..][..6000] == data);
        assert!(back[..100].iter().all(|b| *b == 0));
    }
}

#[test]
fn names_that_match() {
    let live = Live::new();
    let new = NewObject::new(DmuType::DIRECTORY_CONTENTS, 512);
    let format = ZapFormat { salt: 3, norm_flags: TO_UPPER, ..ZapFormat::default() };
    let n = live.change(|os| ZapMut::create(os, &new, format));
    for fat in [false, true] {
        let value: &[u64] = if fat { &[1, 2] } else { &[1] };
        live.change(|os| ZapMut::open(os, n).add(&Key::Name(b"Name"), &Value::U64(value)));
        assert_eq!(Zap::open(&live.set.object(n).unwrap()).unwrap().is_micro(), !fat);
        live.change(|os| {
            let mut zap = ZapMut::open(os, n);
            assert!(zap.matching(b"name", Match::default())?.is_none());
            let fold = Match { fold_case: true };
            assert_eq!(zap.matching(b"nAME", fold)?.unwrap().name, b"Name");
            assert!(zap.remove_matching(b"other", fold).is_err());
            assert_eq!(zap.remove_matching(b"NAME", fold)?.value, value);
            assert!(zap.lookup(&Key::Name(b"Name"))?.is_none());
            Ok(())
        });
        live.sync();
    }
}
