//! Changes are made as a whole or not at all, and only a thread that needs a device waits for it.

use crate::live::{COST, Live};
use cenote_dmu::Error;
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{Births, Chunk, NewObject, OpenObjectSet, Result, WriteError, ZapMut};
use cenote_dmu::zap::Zap;
use cenote_format::dmu::{DmuType, DnodePhys, ObjsetType, ZilHeader};
use cenote_format::encode::zap::{Key, Value};
use cenote_testsink::MemSink;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

#[derive(Debug, Clone)]
enum Op {
    Allocate { zap: bool, sectors: u64 },
    Free { object: usize },
    Write { object: usize, at: u64, len: usize, byte: u8 },
    Hole { object: usize, at: u64, len: u64 },
    Bonus { object: usize, len: usize },
    BlockSize { object: usize, sectors: u64 },
    Spill { object: usize, sectors: usize },
    Put { object: usize, names: u16, long: bool },
    Remove { object: usize, names: u16 },
    Rewrite { object: usize, at: u64 },
    Clone { object: usize, from: usize, first: u64, to: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let object = || 0usize..6;
    let at = || prop_oneof![3 => 0u64..3000, 1 => 0u64..90_000];
    prop_oneof![
        3 => (any::<bool>(), 1u64..4).prop_map(|(zap, sectors)| Op::Allocate { zap, sectors }),
        1 => object().prop_map(|object| Op::Free { object }),
        6 => (object(), at(), 1usize..4000, any::<u8>())
            .prop_map(|(object, at, len, byte)| Op::Write { object, at, len, byte }),
        3 => (object(), at(), prop_oneof![1u64..2000, Just(1 << 40)])
            .prop_map(|(object, at, len)| Op::Hole { object, at, len }),
        1 => (object(), 0usize..150).prop_map(|(object, len)| Op::Bonus { object, len }),
        1 => (object(), 1u64..9).prop_map(|(object, sectors)| Op::BlockSize { object, sectors }),
        1 => (object(), 0usize..3).prop_map(|(object, sectors)| Op::Spill { object, sectors }),
        4 => (object(), 1u16..60, prop::bool::weighted(0.2))
            .prop_map(|(object, names, long)| Op::Put { object, names, long }),
        2 => (object(), 1u16..40).prop_map(|(object, names)| Op::Remove { object, names }),
        1 => (object(), at()).prop_map(|(object, at)| Op::Rewrite { object, at }),
        3 => (object(), object(), 0u64..12, 0u64..12)
            .prop_map(|(object, from, first, to)| Op::Clone { object, from, first, to }),
    ]
}

/// A change to make, and how it ends.
#[derive(Debug, Clone)]
enum Step {
    Change {
        ops: Vec<Op>,
        kept: bool,
    },
    /// Writes a group; the caches are empty then.
    Sync {
        cold: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop::collection::vec(op(), 1..6), any::<bool>())
            .prop_map(|(ops, kept)| Step::Change { ops, kept }),
        1 => any::<bool>().prop_map(|cold| Step::Sync { cold }),
    ]
}

/// All that can be seen of an object.
#[derive(Debug, PartialEq)]
struct Seen {
    dnode: (u64, u64, u8, Vec<u8>, u8),
    spill: Option<Vec<u8>>,
    data: Vec<u8>,
    zap: Option<BTreeMap<Vec<u8>, Vec<u64>>>,
}

fn numbers(live: &Live) -> Vec<u64> {
    let (mut all, mut next) = (Vec::new(), 0);
    while let Some(number) = live.set.next_object(next).unwrap() {
        all.push(number);
        next = number + 1;
    }
    all
}

fn see(live: &Live) -> BTreeMap<u64, Seen> {
    let seen = |number: u64| {
        let object = live.set.object(number).unwrap();
        let DnodePhys { block_size, max_block, kind, bonus, indirect_shift, .. } =
            object.dnode().clone();
        let spill = object.spill().unwrap().map(|block| block.data.to_vec());
        let mut data = vec![0; 100_000];
        object.read(0, &mut data).unwrap();
        let zap = kind.is_zap().then(|| {
            let entries = Zap::open(&object).unwrap().entries().unwrap();
            entries.into_iter().map(|e| (e.name, e.value)).collect()
        });
        // The places of a ZAP's entries are not compared.
        let data = if kind.is_zap() { Vec::new() } else { data };
        let sizes = if kind.is_zap() { (0, 0) } else { (block_size, max_block) };
        (
            number,
            Seen { dnode: (sizes.0, sizes.1, kind.0, bonus, indirect_shift), spill, data, zap },
        )
    };
    numbers(live).into_iter().map(seen).collect()
}

fn name(n: u16, long: bool) -> Vec<u8> {
    format!("name {n}{}", if long { "x".repeat(60) } else { String::new() }).into_bytes()
}

/// Does what can be done; what is not possible is left out.
fn apply(os: &mut OpenObjectSet, ops: &[Op], all: &[u64]) -> Result<()> {
    let mut objects = all.to_vec();
    for op in ops {
        let pick = |object: usize| objects.get(object % objects.len().max(1)).copied();
        let done = match *op {
            Op::Allocate { zap: true, sectors } => {
                let new = NewObject::new(DmuType::DIRECTORY_CONTENTS, sectors * 512);
                let format = ZapFormat { salt: 5, ..ZapFormat::default() };
                ZapMut::create(os, &new, format).map(|number| objects.push(number))
            }
            Op::Allocate { zap: false, sectors } => {
                let new = NewObject::new(DmuType::PLAIN_FILE_CONTENTS, sectors * 512);
                os.allocate(&new).map(|number| objects.push(number))
            }
            Op::Free { object } => {
                let Some(number) = pick(object) else { continue };
                objects.retain(|n| *n != number);
                os.free(number)
            }
            Op::Write { object, at, len, byte } => match file(os, pick(object))? {
                Some(number) => os.write(number, at, &vec![byte; len]),
                None => continue,
            },
            Op::Hole { object, at, len } => match file(os, pick(object))? {
                Some(number) => os.free_range(number, at, len),
                None => continue,
            },
            Op::Rewrite { object, at } => match file(os, pick(object))? {
                Some(number) => {
                    let found = os.view(number)?.gather(at, 5000, &|_| false)?;
                    os.rewrite(number, &found, Births::Kept).map(drop)
                }
                None => continue,
            },
            Op::Clone { object, from, first, to } => {
                let (object, from) = (file(os, pick(object))?, file(os, pick(from))?);
                let (Some(object), Some(from)) = (object, from) else { continue };
                match os.view(from)?.clone_pointers(first, 3)? {
                    Ok(pointers) => os.clone_blocks(object, to, &pointers),
                    Err(_) => continue,
                }
            }
            Op::BlockSize { object, sectors } => match file(os, pick(object))? {
                Some(number) => {
                    let shift = os.dnode(number)?.indirect_shift;
                    os.set_block_size(number, sectors * 512, shift)
                }
                None => continue,
            },
            Op::Bonus { object, len } => match pick(object) {
                Some(number) => os.set_bonus(number, DmuType::SA, &vec![len as u8; len]),
                None => continue,
            },
            Op::Spill { object, sectors } => match pick(object) {
                Some(number) => {
                    os.set_spill(number, (sectors > 0).then(|| vec![sectors as u8; sectors * 512]))
                }
                None => continue,
            },
            Op::Put { object, names, long } => match zap(os, pick(object))? {
                Some(number) => {
                    let mut put = |n| {
                        let name = name(n, long);
                        let value = [u64::from(n), u64::from(long)];
                        let value = if long { &value[..] } else { &value[..1] };
                        ZapMut::open(os, number).update(&Key::Name(&name), &Value::U64(value))
                    };
                    (0..names).try_for_each(&mut put)
                }
                None => continue,
            },
            Op::Remove { object, names } => match zap(os, pick(object))? {
                Some(number) => {
                    let mut remove =
                        |n| match ZapMut::open(os, number).remove(&Key::Name(&name(n, false))) {
                            Err(WriteError::NoEntry(_)) => Ok(()),
                            done => done,
                        };
                    (0..names).try_for_each(&mut remove)
                }
                None => continue,
            },
        };
        match done {
            Err(e @ WriteError::Read(Error::Block(_))) => return Err(e),
            Err(WriteError::Invalid { .. }) | Ok(()) => {}
            Err(e) => panic!("{op:?}: {e}"),
        }
    }
    Ok(())
}

fn file(os: &mut OpenObjectSet, number: Option<u64>) -> Result<Option<u64>> {
    let Some(number) = number else { return Ok(None) };
    Ok((!os.dnode(number)?.kind.is_zap()).then_some(number))
}

fn zap(os: &mut OpenObjectSet, number: Option<u64>) -> Result<Option<u64>> {
    let Some(number) = number else { return Ok(None) };
    Ok(os.dnode(number)?.kind.is_zap().then_some(number))
}

/// Changes that are not kept leave nothing behind: what is seen, and what is written, is what it would
/// be without them.
fn run(steps: &[Step]) {
    let (live, twin) = (Live::new(), Live::new());
    for step in steps {
        match step {
            Step::Change { ops, kept } => {
                let all = numbers(&live);
                let before = (!kept).then(|| (see(&live), live.set.dirty_bytes()));
                let done = live.set.transact(COST, |os, _| {
                    apply(os, ops, &all)?;
                    if *kept { Ok(()) } else { Err(WriteError::Quota) }
                });
                assert_eq!(done.is_ok(), *kept, "{done:?}");
                if let Some((seen, dirty)) = before {
                    assert_eq!(see(&live), seen);
                    assert_eq!(live.set.dirty_bytes(), dirty);
                } else {
                    twin.set.transact(COST, |os, _| apply(os, ops, &all)).unwrap();
                    assert_eq!(see(&live), see(&twin));
                }
            }
            Step::Sync { cold } => {
                live.sync();
                twin.sync();
                if *cold {
                    live.sink.store.drop_caches();
                }
                assert_eq!(see(&live), see(&twin));
            }
        }
    }
    live.sync();
    twin.sync();
    live.sink.store.drop_caches();
    assert_eq!(see(&live), see(&twin));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn a_change_that_is_taken_back_leaves_nothing(steps in prop::collection::vec(step(), 1..30)) {
        run(&steps);
    }
}

/// A file with contents on disk and nothing in the caches.
fn cold_file(live: &Live) -> u64 {
    let number = live.file();
    live.change(|os| os.write(number, 0, &[3; 8 * 1024]));
    number
}

#[test]
fn who_needs_a_slow_block_waits_alone() {
    let live = Live::new();
    let (slow, other) = (cold_file(&live), cold_file(&live));
    live.sync();
    live.sink.store.drop_caches();
    live.set.object(other).unwrap();
    live.sink.faults.set_delay(Duration::from_secs(2));
    thread::scope(|scope| {
        let writer =
            scope.spawn(|| live.change(|os| os.write_last(slow, 100, &Chunk::uncut(&[4; 10]))));
        while live.sink.faults.reads() == 0 {
            thread::yield_now();
        }
        for at in 0..500u64 {
            live.change(|os| os.write_last(other, at % 8 * 1024, &Chunk::uncut(&[5; 1024])));
            live.set.read(other, at % 8 * 1024, &mut [0; 1024]).unwrap();
        }
        assert!(live.set.is_dirty() && !writer.is_finished());
    });
    live.sink.faults.repair();
    let mut found = vec![0; 200];
    live.set.read(slow, 0, &mut found).unwrap();
    assert!(found[..100].iter().all(|b| *b == 3) && found[100..110].iter().all(|b| *b == 4));
}

#[test]
fn blocks_that_cannot_be_read_leave_the_object_set_as_it_was() {
    let live = Live::new();
    let file = cold_file(&live);
    let dir = live.change(|os| {
        let new = NewObject::new(DmuType::DIRECTORY_CONTENTS, 512);
        ZapMut::create(os, &new, ZapFormat { salt: 3, ..ZapFormat::default() })
    });
    live.change(|os| ZapMut::open(os, dir).add(&Key::Name(b"a"), &Value::U64(&[1])));
    live.sync();
    live.sink.store.drop_caches();
    live.sink.lose(&live.set.object(file).unwrap().block_pointer(0, 0).unwrap());
    let change = |os: &mut OpenObjectSet| {
        ZapMut::open(os, dir).add(&Key::Name(b"b"), &Value::U64(&[2]))?;
        ZapMut::open(os, dir).remove(&Key::Name(b"a"))?;
        os.write(file, 1024, &[9; 1024])?;
        os.write_last(file, 10, &Chunk::uncut(&[9; 10]))
    };
    for _ in 0..2 {
        let done = live.set.transact(COST, |os, _| change(os));
        assert!(matches!(done, Err(WriteError::Read(Error::Block(_)))), "{done:?}");
        assert!(live.set.dirty_bytes() == 0 && !live.set.is_dirty());
    }
    // A block that is replaced as a whole need not be read.
    live.change(|os| os.write_last(file, 0, &Chunk::uncut(&[7; 1024])));
    live.change(change);
    live.sink.faults.repair();
    let seen = see(&live);
    assert_eq!(seen[&dir].zap, Some(BTreeMap::from([(b"b".to_vec(), vec![2])])));
    assert!(seen[&file].data[..10] == [7; 10] && seen[&file].data[10..20] == [9; 10]);
}

/// What was kept of an inner change is taken back with the outer one: what the root block says as well.
#[test]
fn an_inner_change_goes_with_the_outer_one() {
    let sink = MemSink::new(16 << 20);
    let mut set = OpenObjectSet::create(sink.store.clone(), 7, ObjsetType::Zfs).unwrap();
    let file = set.allocate(&NewObject::new(DmuType::PLAIN_FILE_CONTENTS, 1024)).unwrap();
    set.write(file, 0, &[1; 1024]).unwrap();
    let (_, mut set) = sink.write_new(set, 11);
    set.write(file, 0, &[2; 512]).unwrap();
    let (flags, zil, dirty) = (set.flags(), *set.zil_header(), set.dirty_bytes());
    let seq = zil.replay_seq;

    set.begin_change();
    set.write(file, 100, &[3; 10]).unwrap();
    set.set_flags(flags ^ 1);
    set.begin_change();
    set.write(file, 200, &[4; 10]).unwrap();
    set.set_zil_header(ZilHeader { replay_seq: seq + 9, ..zil });
    let second = set.allocate(&NewObject::new(DmuType::PLAIN_FILE_CONTENTS, 512)).unwrap();
    set.check_change().unwrap();
    set.keep_change();
    // This one is taken back alone.
    set.begin_change();
    set.write(second, 0, &[5; 512]).unwrap();
    set.write(file, 100, &[5; 200]).unwrap();
    set.set_flags(flags ^ 6);
    assert!(set.undo_change());
    assert_eq!((set.flags(), set.zil_header().replay_seq), (flags ^ 1, seq + 9));
    let mut found = [0; 512];
    set.read(second, 0, &mut found).unwrap();
    assert_eq!(found, [0; 512]);
    set.read(file, 0, &mut found).unwrap();
    assert_eq!((found[100], found[110], found[200], found[210]), (3, 2, 4, 2));

    assert!(set.undo_change());
    assert_eq!((set.flags(), set.zil_header().replay_seq, set.dirty_bytes()), (flags, seq, dirty));
    set.read(file, 0, &mut found).unwrap();
    assert_eq!(found, [2; 512]);
    assert!(set.dnode(second).is_err());
    let synced = set.into_syncing().sync(12, &sink).unwrap();
    assert_eq!((synced.phys.flags, synced.phys.zil.replay_seq), (flags, seq));
}

#[test]
fn a_change_that_panics_stops_all_writing() {
    let live = Live::new();
    let file = live.file();
    live.sync();
    let done: Result<()> = live.set.transact(COST, |os, _| {
        os.write(file, 0, &[1; 100])?;
        panic!("half of it is made")
    });
    let Err(WriteError::Suspended(why)) = done else { panic!("{done:?}") };
    assert!(why.contains("half of it is made"), "{why}");
    assert_eq!(live.panicked(), Some(why));
    let next = live.set.transact(COST, |os, _| os.write(file, 0, &[2; 100]));
    assert!(matches!(next, Err(WriteError::Failed)), "{next:?}");
    // The group that it was in cannot be written.
    assert!(live.set.is_dirty());
    let mut quiesced = live.set.quiesce();
    assert!(matches!(quiesced.sync(9, &live.sink), Err(WriteError::Failed)));
    assert!(catch_unwind(AssertUnwindSafe(|| live.set.read(file, 0, &mut [0; 10]))).is_ok());
}
