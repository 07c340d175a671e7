//! The allocator against a model: blocks never overlap, freed space waits, and what is handed out
//! to be written down is what happened.

mod disabled;
mod embedded;
mod kept;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_format::blkptr::Dva;
use proptest::prelude::*;

use super::metaslab::View;
use super::testing::{Maps, Sectors, allocator, keeping, sync, vdev};
use super::*;
use crate::histogram::Histogram;
use crate::rangetree::RangeTree;

fn request(psize: u64) -> Request<'static> {
    Request {
        psize,
        copies: 1,
        class: Class::Normal,
        allocator: 0,
        gang: false,
        near: None,
        among: None,
    }
}

/// What should be so: ranges in use per vdev, live blocks, and what waits since which txg.
#[derive(Default)]
struct Model {
    used: BTreeMap<u64, RangeTree>,
    live: Vec<(u64, Vec<Dva>)>,
    waiting: Vec<(u64, Dva)>,
    /// Bytes on disk after each txg, per vdev.
    births: BTreeMap<u64, i64>,
}

impl Model {
    fn take(&mut self, txg: u64, dvas: Vec<Dva>) {
        for d in &dvas {
            let used = self.used.entry(d.vdev.into()).or_default();
            used.add(d.offset, d.offset + d.asize).expect("space that is in use");
            *self.births.entry(txg).or_default() += d.asize as i64;
        }
        self.live.push((txg, dvas));
    }

    fn drop_block(&mut self, txg: u64, dvas: Vec<Dva>) {
        for d in dvas {
            *self.births.entry(txg).or_default() -= d.asize as i64;
            self.waiting.push((txg, d));
        }
    }

    fn synced(&mut self, txg: u64) {
        let (done, waiting) =
            self.waiting.drain(..).partition(|(freed, _)| freed + TXG_DEFER_SIZE <= txg);
        self.waiting = waiting;
        for (_, d) in Vec::<(u64, Dva)>::clone(&done) {
            self.used
                .get_mut(&d.vdev.into())
                .unwrap()
                .remove(d.offset, d.offset + d.asize)
                .unwrap();
        }
    }
}

#[derive(Debug, Clone)]
enum Op {
    /// Sectors, copies, class, allocator, and whether in the txg that is not being synced yet.
    Alloc(u64, usize, u8, usize, bool),
    Free(usize, bool),
    Pass,
    Sync,
    /// All that may be is unloaded.
    Unload,
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![4 => 1..9u64, 2 => 16..257u64, 1 => 256..1500u64];
    prop_oneof![
        12 => (size, 1..4usize, 0..4u8, 0..4usize, any::<bool>())
            .prop_map(|(s, c, k, a, l)| Op::Alloc(s, c, k, a, l)),
        6 => (any::<usize>(), any::<bool>()).prop_map(|(i, l)| Op::Free(i, l)),
        1 => Just(Op::Pass),
        2 => Just(Op::Sync),
        1 => Just(Op::Unload),
    ]
}

fn check_sum(a: &Allocator, maps: &Maps, model: &Model, txg: u64) {
    let expected: i64 = model.births.range(..=txg).map(|(_, bytes)| bytes).sum();
    let on_disk: u64 = a.groups().map(|g| maps.space(g.vdev())).sum();
    assert_eq!(on_disk as i64, expected, "bytes on disk after txg {txg}");
    for group in a.groups() {
        let used = model.used.get(&group.vdev()).map_or(0, RangeTree::space);
        let embedded = a.groups_of(Class::EmbeddedLog);
        let embedded = embedded.iter().filter(|g| g.vdev() == group.vdev());
        let allocated = embedded.map(|g| g.allocated()).sum::<u64>() + group.allocated();
        assert_eq!(allocated, used, "vdev {}", group.vdev());
        for m in group.metaslabs().iter() {
            let on_disk = maps.allocated(group.vdev(), m.id());
            // Whether it is loaded or not.
            assert_eq!(m.allocated_after(txg), Some(on_disk.space()), "metaslab {}", m.id());
            let Some(free) = m.free_after(txg) else { continue };
            assert_eq!(free.space() + on_disk.space(), m.extent().size, "metaslab {}", m.id());
            assert!(on_disk.iter().all(|(s, e)| free.overlap(s, e).is_none()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn nothing_overlaps_and_frees_wait(ops in prop::collection::vec(op(), 1..300)) {
        let (a, maps) = allocator(&[
            (Class::Normal, keeping(2, vdev(0, 18, 8))),
            (Class::Normal, vdev(1, 19, 3)),
            (Class::Special, vdev(2, 18, 2)),
            (Class::Log, vdev(3, 18, 1)),
        ]);
        let (mut model, mut txg) = (Model::default(), 10);
        let classes = [Class::Normal, Class::Special, Class::Log, Class::Dedup];
        for op in ops {
            match op {
                Op::Alloc(sectors, copies, class, allocator, later) => {
                    let class = classes[class as usize];
                    let psize = sectors * 512;
                    let want = Request { psize, copies, class, allocator, gang: false, near: None, among: None };
                    match a.allocate(txg + u64::from(later), &want) {
                        Ok((class, dvas)) => {
                            prop_assert_eq!(dvas.len(), copies);
                            let may = [want.class.fallbacks(), Class::LAST_RESORT].concat();
                            prop_assert!(may.contains(&class));
                            prop_assert!(dvas.iter().all(|d| d.asize == psize));
                            model.take(txg + u64::from(later), dvas);
                        }
                        Err(AllocError::NoSegment { largest }) => {
                            let smaller = Request { psize: largest, copies: 1, ..want };
                            let found = a.allocate(txg, &smaller);
                            prop_assert!(found.is_ok(), "{:?} {:?}", found, a.alarm().why());
                            let (_, dvas) = found.unwrap();
                            model.take(txg, dvas);
                        }
                        Err(e) => prop_assert_eq!(e, AllocError::NoSpace),
                    }
                }
                Op::Free(i, later) if !model.live.is_empty() => {
                    let (birth, dvas) = model.live.swap_remove(i % model.live.len());
                    let txg = birth.max(txg + u64::from(later));
                    for d in &dvas {
                        a.free(txg, d).unwrap();
                        prop_assert!(a.free(txg, d).is_err(), "freed twice");
                    }
                    model.drop_block(txg, dvas);
                }
                Op::Free(..) => {}
                Op::Pass => maps.write(&a.take_changes(txg)),
                Op::Unload => a.make_room(0),
                Op::Sync => {
                    prop_assert_eq!(a.alarm().why(), None);
                    sync(&a, &maps, txg);
                    model.synced(txg);
                    check_sum(&a, &maps, &model, txg);
                    txg += 1;
                }
            }
        }
        // All of it comes back.
        for (birth, dvas) in std::mem::take(&mut model.live) {
            dvas.iter().for_each(|d| a.free(birth.max(txg), d).unwrap());
            model.drop_block(birth.max(txg), dvas);
        }
        for txg in txg..txg + 5 {
            sync(&a, &maps, txg);
            model.synced(txg);
            check_sum(&a, &maps, &model, txg);
        }
        for class in [Class::Normal, Class::EmbeddedLog] {
            prop_assert_eq!(a.figures(class).allocated, 0);
            prop_assert_eq!(a.figures(class).deferred, 0);
        }
    }
}

#[test]
fn a_full_pool_says_so_and_recovers() {
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, 4))]);
    let (mut live, mut txg) = (Vec::new(), 1);
    let full = loop {
        match a.allocate(txg, &request(128 << 10)) {
            Ok((_, dvas)) => live.extend(dvas),
            Err(e) => break e,
        }
        if live.len() % 7 == 0 {
            sync(&a, &maps, txg);
            txg += 1;
        }
    };
    assert_eq!((full, live.len()), (AllocError::NoSpace, 32));
    live.sort_by_key(|d| d.offset);
    // Every second block is freed: still no room until the frees have waited.
    for d in live.iter().step_by(2) {
        a.free(txg, d).unwrap();
    }
    for _ in 0..TXG_DEFER_SIZE {
        sync(&a, &maps, txg);
        txg += 1;
        assert_eq!(a.allocate(txg, &request(512)), Err(AllocError::NoSpace));
    }
    sync(&a, &maps, txg);
    let largest = a.allocate(txg + 1, &request(256 << 10));
    assert_eq!(largest, Err(AllocError::NoSegment { largest: 128 << 10 }));
    for _ in 0..16 {
        a.allocate(txg + 1, &request(128 << 10)).unwrap();
    }
    assert_eq!(a.allocate(txg + 1, &request(512)), Err(AllocError::NoSpace));
}

#[test]
fn copies_are_on_different_vdevs_or_far_apart() {
    let (a, _) = allocator(&[(Class::Normal, vdev(0, 20, 16)), (Class::Normal, vdev(1, 20, 16))]);
    for _ in 0..50 {
        let (_, d) = a.allocate(1, &Request { copies: 2, ..request(4096) }).unwrap();
        assert_ne!(d[0].vdev, d[1].vdev);
    }
    let (a, _) = allocator(&[(Class::Normal, vdev(0, 20, 16))]);
    for _ in 0..50 {
        let (_, d) = a.allocate(1, &Request { copies: 3, ..request(4096) }).unwrap();
        for (x, y) in [(0, 1), (0, 2), (1, 2)] {
            // Two metaslabs, less the one in which they are.
            assert!(d[x].offset.abs_diff(d[y].offset) > 1 << 20);
        }
    }
}

#[test]
fn vdevs_fill_up_at_the_same_time() {
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 24, 8)), (Class::Normal, vdev(1, 24, 24))]);
    for txg in 1..30 {
        for _ in 0..96 {
            a.allocate(txg, &request(128 << 10)).unwrap();
        }
        sync(&a, &maps, txg);
    }
    let full: Vec<u64> = a.groups().map(|g| g.allocated() * 100 / g.space()).collect();
    assert!(full[0].abs_diff(full[1]) <= 15, "{full:?} percent");
}

#[test]
fn classes_fall_back() {
    let (a, _) = allocator(&[(Class::Normal, vdev(0, 20, 4)), (Class::Special, vdev(1, 18, 2))]);
    let special = Request { class: Class::Special, ..request(64 << 10) };
    let classes: Vec<Class> = (0..12).map(|_| a.allocate(1, &special).unwrap().0).collect();
    assert_eq!(classes[..8], [Class::Special; 8]);
    assert_eq!(classes[8..], [Class::Normal; 4]);
    for class in [Class::Dedup, Class::Log] {
        assert_eq!(a.allocate(1, &Request { class, ..special }).unwrap().0, Class::Normal);
    }
}

/// Of ten blocks that are freed, how many can be allocated again some txgs later, while a reader
/// still reads what was there before, or without a reader.
fn given_out_again(reads: bool) -> usize {
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, 4))]);
    let block = |txg| a.allocate(txg, &request(64 << 10)).map(|(_, dvas)| dvas[0].offset);
    let all: Vec<u64> = (0..40).map(|_| block(1).unwrap()).collect();
    sync(&a, &maps, 1);
    a.readers().group_done(1);
    let reading = reads.then(|| a.readers().begin());
    for offset in &all[10..20] {
        a.free(2, &Dva { vdev: 0, offset: *offset, asize: 64 << 10, gang: false }).unwrap();
    }
    for txg in 2..10 {
        sync(&a, &maps, txg);
        a.readers().group_done(txg);
    }
    let found: Vec<u64> = std::iter::from_fn(|| block(10).ok()).collect();
    assert!(found.len() >= 24);
    assert!(reading.is_none_or(|reading| reading.is_safe()));
    found.iter().filter(|offset| all[10..20].contains(offset)).count()
}

#[test]
fn what_is_being_read_is_not_given_out() {
    assert_eq!((given_out_again(false), given_out_again(true)), (10, 0));
}

#[test]
fn a_sector_that_is_not_there_for_each_copy_is_no_room() {
    let (a, _) = allocator(&[(Class::Normal, keeping(1, vdev(0, 18, 3)))]);
    let sizes = (9..17).rev().map(|shift| 1 << shift);
    for psize in [128 << 10; 3].into_iter().chain(sizes) {
        let (class, _) = a.allocate(1, &request(psize)).unwrap();
        assert_eq!(class, Class::Normal);
    }
    // One sector is left, and the metaslab for intent logs. What can be divided does not go there.
    let fits_once = AllocError::NoSegment { largest: 512 };
    assert_eq!(a.allocate(1, &request(1024)), Err(fits_once));
    let (class, dvas) = a.allocate(1, &Request { copies: 3, ..request(512) }).unwrap();
    assert_eq!((class, dvas.len()), (Class::EmbeddedLog, 3));
    let (class, _) = a.allocate(1, &request(512)).unwrap();
    assert_eq!(class, Class::Normal);
}

#[test]
fn requests_that_make_no_sense() {
    let (a, _) = allocator(&[(Class::Normal, vdev(0, 20, 4))]);
    for (psize, copies) in [(0, 1), (512, 0), (512, 4)] {
        assert!(a.allocate(1, &Request { copies, ..request(psize) }).is_err());
    }
    let dva = |vdev, offset, asize| Dva { vdev, offset, asize, gang: false };
    for d in [dva(1, 0, 512), dva(0, 1 << 40, 512), dva(0, 1 << 19, 1 << 20), dva(0, 0, 5)] {
        assert!(a.free(1, &d).is_err(), "{d:?}");
        assert!(a.unallocate(1, &d).is_err(), "{d:?}");
    }
    assert!(a.free(1, &dva(0, u64::MAX - 511, 512)).is_err());
}

#[test]
fn a_metaslab_that_cannot_serve_is_not_loaded() {
    let mut info = vdev(0, 30, 3);
    for m in &mut info.metaslabs {
        m.allocated = 1 << 29;
        m.histogram = Some(crate::histogram::Histogram::from_shifted(&[0, 7, 9], 12));
    }
    struct Never;
    impl LoadMetaslab for Never {
        fn load(&self, _: u64, _: u64, _: Extent) -> Result<Loaded, String> {
            panic!("loaded")
        }
    }
    let options = Options { background: false, ..Options::default() };
    let vdevs = [(Class::Normal, info)];
    let a = Allocator::new(&vdevs, Arc::new(Sectors(9)), Arc::new(Never), options).unwrap();
    let found = a.allocate(1, &request(32 << 10));
    assert_eq!(found, Err(AllocError::NoSegment { largest: 16 << 10 }));
}

/// A histogram bounds the largest segment from below only: on a pool that was just imported, with
/// nothing loaded and a thread that loads ahead, what surely fits waits for a load, and what may fit
/// is refused at once, until the thread has had a look.
#[test]
fn no_load_is_waited_for_in_vain() {
    struct Slow;
    impl LoadMetaslab for Slow {
        fn load(&self, _: u64, _: u64, extent: Extent) -> Result<Loaded, String> {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let mut free = Loading::new(extent, false).unwrap();
            free.free(extent.start, extent.start + (24 << 10)).unwrap();
            Ok(Loaded { free, txg: 0 })
        }
    }
    let mut info = vdev(0, 20, 3);
    for m in &mut info.metaslabs {
        m.allocated = (1 << 20) - (24 << 10);
        m.histogram = Some(crate::histogram::Histogram::from_shifted(&[0, 0, 1], 12));
    }
    let vdevs = [(Class::Normal, info)];
    let new = || {
        let options = Options { background: true, ..Options::default() };
        Allocator::new(&vdevs, Arc::new(Sectors(9)), Arc::new(Slow), options).unwrap()
    };
    let look = |a: &Arc<Allocator>| {
        while !a.is_settled() {
            std::thread::yield_now();
        }
    };
    let refused = |kib: u64| Err(AllocError::NoSegment { largest: kib << 10 });
    let a = new();
    for _ in 0..3 {
        assert_eq!(a.allocate(1, &request(24 << 10)), refused(16));
        look(&a);
        a.allocate(1, &request(24 << 10)).unwrap();
    }
    assert_eq!(a.allocate(1, &request(512)), Err(AllocError::NoSpace));
    assert_eq!(a.waits(), (0, 0));
    let a = new();
    for loaded in 0..3 {
        let known = if loaded == 0 { 16 } else { 24 };
        assert_eq!((a.loaded(), a.allocate(1, &request(28 << 10))), (loaded, refused(known)));
        look(&a);
    }
    assert_eq!((a.loaded(), a.waits()), (3, (0, 0)));
    let a = new();
    a.allocate(1, &request(16 << 10)).unwrap();
    assert_eq!(a.waits(), (1, 0));
    look(&a);
}

/// In a pool that is full all that waited long enough is found at once, though a thread gives it back.
#[test]
fn nothing_is_refused_for_what_is_on_its_way() {
    let maps = Arc::new(Maps::default());
    let vdevs = [(Class::Normal, vdev(0, 20, 4))];
    let options = Options { background: true, ..Options::default() };
    let a = Allocator::new(&vdevs, Arc::new(Sectors(9)), maps.clone(), options).unwrap();
    let fill = |txg| {
        let next = || a.allocate(txg, &request(512)).map(|(_, dvas)| dvas[0]);
        std::iter::repeat_with(next).map_while(Result::ok).collect::<Vec<Dva>>()
    };
    let mut full = fill(1);
    assert_eq!(full.len(), 4 << 11);
    for round in 0..20 {
        let txg = 1 + 3 * round;
        let (go, stay): (Vec<_>, Vec<_>) =
            full.iter().copied().enumerate().partition(|(i, _)| i % 3 == round as usize % 3);
        go.iter().for_each(|(_, dva)| a.free(txg, dva).unwrap());
        (0..=TXG_DEFER_SIZE).for_each(|n| drop(sync(&a, &maps, txg + n)));
        assert_eq!(a.deferred(), 0);
        let new = fill(txg + 3);
        assert_eq!(new.len(), go.len(), "round {round}");
        full = stay.into_iter().map(|(_, dva)| dva).chain(new).collect();
    }
}

/// `txg` is on disk, and what has waited long enough comes back.
fn synced(m: &Metaslab, txg: u64) -> View {
    let due = txg.checked_sub(TXG_DEFER_SIZE);
    m.sync_done(txg, due, true, None).0
}

/// Two blocks side by side that are freed one after the other, in a metaslab that is not loaded, are
/// two segments to its histogram. An allocation that finds no room anywhere else has it loaded, once.
#[test]
fn what_joined_unseen_is_looked_for_last() {
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, 4))]);
    let full: Vec<Dva> = (0..64).map(|_| a.allocate(1, &request(64 << 10)).unwrap().1[0]).collect();
    sync(&a, &maps, 1);
    a.make_room(0);
    let group = a.groups().next().unwrap();
    let metaslabs = group.metaslabs();
    let m = metaslabs.iter().find(|m| !m.is_loaded()).unwrap();
    let start = m.extent().start;
    let dva = |i: u64| full.iter().find(|dva| dva.offset == start + (i << 16)).unwrap();
    // Without loads ahead.
    let sync = |txg: u64| {
        maps.write(&a.take_changes(txg));
        maps.commit(txg);
        for m in metaslabs.iter() {
            group.note(m.id() as usize, synced(m, txg));
        }
    };
    a.free(2, dva(4)).unwrap();
    sync(2);
    a.free(3, dva(5)).unwrap();
    sync(3);
    assert_eq!(
        a.allocate(4, &request(128 << 10)),
        Err(AllocError::NoSpace),
        "what waits is no use"
    );
    (4..7).for_each(sync);
    let loads = || a.load_latency().count();
    let before = loads();
    let refused = |kib: u64| Err(AllocError::NoSegment { largest: kib << 10 });
    assert_eq!(a.allocate(7, &request(192 << 10)), refused(64));
    assert_eq!(loads(), before, "there is no hope for that");
    let (_, dvas) = a.allocate(7, &request(128 << 10)).unwrap();
    assert_eq!((dvas[0].offset, loads()), (start + (4 << 16), before + 1));
    assert_eq!(a.allocate(7, &request(128 << 10)), Err(AllocError::NoSpace));
    assert_eq!(loads(), before + 1);
}

/// Blocks are placed one after the other, and when a segment is used up, in the largest, or in the
/// first that fits if one is looked for; where little is free, or nothing large, in one that just fits.
#[test]
fn little_that_is_free_is_used_for_what_just_fits() {
    use crate::tunables::{DF_ALLOC_THRESHOLD, DF_MAX_SEARCH};
    const BLOCK: u64 = 4 << 10;
    // A metaslab that is full but for these blocks of 256, and where the next ones go.
    let holes = |free: &[std::ops::Range<u64>]| {
        let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, 1))]);
        let mut full: Vec<Dva> =
            (0..256).map(|_| a.allocate(1, &request(BLOCK)).unwrap().1[0]).collect();
        full.sort_by_key(|dva| dva.offset);
        sync(&a, &maps, 1);
        free.iter().cloned().flatten().for_each(|i| a.free(2, &full[i as usize]).unwrap());
        (2..6).for_each(|txg| drop(sync(&a, &maps, txg)));
        move || a.allocate(6, &request(BLOCK)).unwrap().1[0].offset / BLOCK
    };
    let next = holes(&[8..9, 20..22, 50..51, 100..116]);
    DF_ALLOC_THRESHOLD.set(17 * BLOCK).unwrap();
    let just_fits = next();
    DF_ALLOC_THRESHOLD.reset();
    DF_MAX_SEARCH.set(1 << 20).unwrap();
    let first = next();
    DF_MAX_SEARCH.reset();
    assert_eq!((just_fits, first), (8, 20));
    assert_eq!([next(), next(), next()], [21, 100, 101], "side by side, then in the largest");
    // The same where of 256 blocks 11 are free, more than 4%, but not where it is less.
    let next = holes(&[20..22, 50..51, 100..108]);
    let placed: Vec<u64> = (0..11).map(|_| next()).collect();
    assert_eq!(placed, [100, 101, 102, 103, 104, 105, 106, 107, 50, 20, 21]);
}

#[test]
fn little_used_metaslabs_make_room() {
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, 6))]);
    let group = a.groups().next().unwrap();
    let metaslabs = group.metaslabs();
    let (_, dvas) = a.allocate(1, &request(4 << 10)).unwrap();
    let active = (dvas[0].offset >> 20) as usize;
    let others: Vec<usize> = (0..6).filter(|i| *i != active).collect();
    for (txg, i) in (1..).zip(&others) {
        sync(&a, &maps, txg);
        metaslabs.get(*i).unwrap().evict(txg);
        assert!(a.load(0, *i as u64));
    }
    let memory =
        |all: &[usize]| all.iter().map(|i| metaslabs.get(*i).unwrap().memory()).sum::<u64>();
    assert_eq!((a.loaded(), a.memory()), (6, memory(&[0, 1, 2, 3, 4, 5])));
    a.make_room(a.memory());
    assert_eq!(a.loaded(), 6);
    a.make_room(memory(&others[2..]) + memory(&[active]));
    let is_loaded = |i: &usize| metaslabs.get(*i).unwrap().is_loaded();
    assert!(!others[..2].iter().any(is_loaded) && others[2..].iter().all(is_loaded));
    assert_eq!(a.loaded(), 4);
    // What is allocated since the last txg on disk is in no space map.
    let used = others[4];
    assert!(matches!(
        metaslabs.get(used).unwrap().alloc(6, 4096).0,
        super::metaslab::Attempt::Got(_)
    ));
    a.make_room(0);
    assert!(others.iter().all(|i| is_loaded(i) == (*i == used)) && is_loaded(&active));
}

#[test]
fn idle_metaslabs_are_unloaded_when_txgs_and_time_have_passed() {
    use crate::tunables::{PRELOAD_LIMIT, UNLOAD_DELAY, UNLOAD_DELAY_MS};
    let count = PRELOAD_LIMIT.get() + 4;
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, count as usize))]);
    (0..count).for_each(|i| assert!(a.load(0, i)));
    let last = UNLOAD_DELAY.get() + 4;
    (1..=last).for_each(|txg| drop(sync(&a, &maps, txg)));
    assert_eq!(a.loaded(), count, "the time has not passed");
    UNLOAD_DELAY_MS.set(0).unwrap();
    sync(&a, &maps, last + 1);
    UNLOAD_DELAY_MS.reset();
    assert_eq!(a.loaded(), count - 4, "the best ones are kept");
}

#[test]
fn frees_during_a_load_are_not_lost() {
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, 1))]);
    let (_, dvas) = a.allocate(1, &request(64 << 10)).unwrap();
    let (_, kept) = a.allocate(1, &request(64 << 10)).unwrap();
    // So long unused that it is unloaded, but for being the active one: load another allocator.
    sync(&a, &maps, 1);
    let vdevs = [(Class::Normal, vdev(0, 20, 1))];
    let options = Options { background: false, ..Options::default() };
    let mut info = vdevs;
    info[0].1.metaslabs[0].allocated = 128 << 10;
    let b = Allocator::new(&info, Arc::new(Sectors(9)), maps.clone(), options).unwrap();
    let (during, disk) = (b.clone(), maps.clone());
    let freed = dvas.clone();
    *maps.pause.lock() = Some(Box::new(move || {
        during.free(2, &freed[0]).unwrap();
        for txg in 2..6 {
            disk.write(&during.take_changes(txg));
            disk.commit(txg);
            for group in during.groups() {
                for m in group.metaslabs().iter() {
                    synced(m, txg);
                }
            }
        }
    }));
    let group = b.groups().next().unwrap();
    let metaslab = group.metaslabs().get(0).unwrap();
    assert!(b.load(0, 0));
    *maps.pause.lock() = None;
    let free = metaslab.free_after(6).unwrap();
    assert!(free.contains(dvas[0].offset, dvas[0].offset + dvas[0].asize));
    assert!(free.overlap(kept[0].offset, kept[0].offset + kept[0].asize).is_none());
    assert_eq!(metaslab.allocated(), 64 << 10);
}

#[test]
fn threads_allocate_while_metaslabs_load() {
    let maps = Arc::new(Maps::default());
    *maps.pause.lock() = Some(Box::new(|| std::thread::sleep(std::time::Duration::from_millis(3))));
    let vdevs = [(Class::Normal, vdev(0, 20, 12)), (Class::Normal, vdev(1, 20, 12))];
    let options = Options::default();
    let a = Allocator::new(&vdevs, Arc::new(Sectors(9)), maps.clone(), options).unwrap();
    let work = |n: usize| {
        let a = &a;
        move || {
            let want = |psize| Request { allocator: n, ..request(psize) };
            let sizes = (1..400u64).map(|i| (i * 7 % 29 + 1) * 512);
            let got = sizes.map(|psize| a.allocate(1, &want(psize)).unwrap().1[0]);
            got.collect::<Vec<Dva>>()
        }
    };
    let all: Vec<Dva> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|n| scope.spawn(work(n))).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    let mut used = BTreeMap::<u32, RangeTree>::new();
    for d in all {
        used.entry(d.vdev).or_default().add(d.offset, d.offset + d.asize).unwrap();
    }
    let expected: u64 = used.values().map(RangeTree::space).sum();
    assert_eq!(a.figures(Class::Normal).allocated, expected);
}

/// Space that is claimed is allocated as any other: what was allocated already is left alone.
#[test]
fn a_claim_takes_what_is_free() {
    let (allocator, maps) = allocator(&[(Class::Normal, vdev(0, 20, 4))]);
    let (_, dvas) = allocator.allocate(1, &request(4096)).unwrap();
    let (at, end) = (dvas[0].offset, dvas[0].offset + 4096);
    let metaslab = at >> 20;
    let base = metaslab << 20;
    assert_eq!(at, base);
    let wanted =
        [(base + 1024, base + 2048), (base + 3072, base + 8192), (base + 9216, base + 9728)];
    let elsewhere = (base + (1 << 20), base + (1 << 20) + 512);
    let claimed = allocator.claim(1, 0, metaslab, wanted.into_iter().chain([elsewhere])).unwrap();
    assert_eq!(claimed, 4096 + 512);
    sync(&allocator, &maps, 1);
    let allocated = maps.allocated(0, metaslab);
    assert_eq!(
        allocated.iter().collect::<Vec<_>>(),
        [(base, base + 8192), (base + 9216, base + 9728)]
    );
    assert_eq!(end, base + 4096);
    let group = allocator.groups().next().unwrap();
    assert_eq!(group.allocated(), 8192 + 512);
    assert!(allocator.claim(2, 0, 4, [(0, 512)].into_iter()).is_err());
    assert!(allocator.claim(2, 7, 0, [(0, 512)].into_iter()).is_err());
}

/// A guess at how free space lies serves to choose metaslabs, and is never told as what is known.
#[test]
fn what_is_guessed_is_not_known() {
    let extent = Extent { start: 0, size: 1 << 24, shift: 12 };
    let of = |allocated, histogram| {
        let info = super::MetaslabInfo { allocated, histogram, off: 0 };
        let metaslab = super::Metaslab::new(0, 0, extent, info);
        (metaslab.histogram(), metaslab.known_histogram())
    };
    let one = |size| {
        let mut histogram = Histogram::default();
        histogram.add(size);
        histogram
    };
    assert_eq!(of(4096, None), (one((1 << 24) - 4096), Histogram::default()));
    assert_eq!(of(4096, Some(one(8192))), (one(8192), one(8192)));
    assert_eq!(of(0, None), (one(1 << 24), one(1 << 24)));
}

/// Vdevs join while two threads allocate and free: layouts that were replaced are gone, and all vdevs are in use.
#[test]
fn replaced_layouts_are_let_go() {
    const VDEVS: u64 = 24;
    let (a, _maps) = allocator(&[(Class::Normal, vdev(0, 20, 8))]);
    let stop = AtomicBool::new(false);
    let old = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let (_, dvas) = a.allocate(1, &request(512)).unwrap();
                    dvas.iter().for_each(|dva| a.unallocate(1, dva).unwrap());
                }
            });
        }
        let mut old = Vec::new();
        for id in 1..VDEVS {
            old.push(a.layout_in_use());
            a.add_vdev(Class::Normal, &vdev(id, 20, 8)).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        old
    });
    assert!(old.iter().all(|layout| layout.strong_count() == 0));
    assert_eq!(
        a.groups().map(|group| group.vdev()).collect::<Vec<_>>(),
        (0..VDEVS).collect::<Vec<_>>()
    );
    let mut used = BTreeSet::new();
    while used.len() < VDEVS as usize {
        let (_, dvas) = a.allocate(1, &request(512)).unwrap();
        used.extend(dvas.iter().map(|dva| dva.vdev));
    }
}

#[test]
fn a_request_chooses_among_vdevs() {
    let (allocator, _) = allocator(&[
        (Class::Normal, vdev(0, 20, 4)),
        (Class::Normal, vdev(1, 20, 4)),
        (Class::Normal, vdev(2, 20, 4)),
    ]);
    let from = |vdevs: &[u64]| {
        let one = Request { among: Some(vdevs), ..request(64 << 10) };
        let found = allocator.allocate(1, &one);
        found.map(|(_, dvas)| dvas[0].vdev)
    };
    (0..20).for_each(|_| assert_eq!(from(&[1]).unwrap(), 1));
    (0..20).for_each(|_| assert_ne!(from(&[0, 2]).unwrap(), 1));
    assert!(from(&[]).is_err() && from(&[7]).is_err());
}

#[test]
fn a_passive_vdev_gets_empty_and_leaves() {
    let (allocator, maps) =
        allocator(&[(Class::Normal, vdev(0, 20, 4)), (Class::Log, vdev(1, 20, 4))]);
    let log = Request { class: Class::Log, ..request(4096) };
    let (class, dvas) = allocator.allocate(1, &log).unwrap();
    assert_eq!((class, dvas[0].vdev), (Class::Log, 1));
    allocator.passivate(1);
    // The next block goes elsewhere, and what is there can be freed.
    let (class, others) = allocator.allocate(1, &log).unwrap();
    assert_eq!((class, others[0].vdev), (Class::Normal, 0));
    assert!(!allocator.is_empty(1));
    sync(&allocator, &maps, 1);
    assert!(!allocator.is_empty(1));
    allocator.free(2, &dvas[0]).unwrap();
    assert!(!allocator.is_empty(1), "it is free when its group has it so");
    sync(&allocator, &maps, 2);
    assert!(allocator.is_empty(1));
    // A second command wants the same, and the first one gives up.
    allocator.passivate(1);
    allocator.activate(1);
    assert_eq!(allocator.allocate(3, &log).unwrap().1[0].vdev, 0);
    allocator.activate(1);
    let (_, again) = allocator.allocate(3, &log).unwrap();
    assert_eq!(again[0].vdev, 1);
    allocator.passivate(1);
    allocator.unallocate(3, &again[0]).unwrap();
    assert!(allocator.is_empty(1));
    allocator.remove_vdev(1);
    assert!(!allocator.has_vdev(1) && allocator.groups_of(Class::Log).is_empty());
    (3..6).for_each(|txg| drop(sync(&allocator, &maps, txg)));
    assert_eq!(allocator.allocate(6, &log).unwrap().1[0].vdev, 0);
}
