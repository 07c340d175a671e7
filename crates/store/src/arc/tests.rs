//! The cache beside a simple model, traces, and threads.

#![allow(clippy::unwrap_used)]

use super::lists::{List, NIL};
use super::*;
use cenote_format::abd::Abd;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

const POOL: u32 = 1;

fn name(n: u64) -> Name {
    Name::block(POOL, &Key { dva0: 1, dva1: n, birth: 7 })
}

/// Bytes by which it can be told what they are of.
fn data(n: u64, size: usize) -> Abd {
    Abd::from_vec(vec![n as u8; size])
}

/// Everything that is true between calls.
fn check(arc: &ArcCache) {
    let s = arc.stats();
    assert!(s.taken() <= s.c && s.p <= s.c);
    assert_eq!(s.mru_hits + s.mfu_hits + s.uncached_hits, s.hits);
    assert_eq!(
        s.mru_size + s.mfu_size + s.uncached_size,
        s.size + s.unpacked.bytes + s.objects.bytes
    );
    assert!(s.mru_ghost_size + s.mfu_ghost_size <= s.c);
    arc.inside(|lists| {
        let uncached = lists.of(List::Uncached);
        assert!(uncached.bytes <= MAX_UNCACHED || uncached.len == 1);
        assert!(lists.ghost_count() <= MIN_GHOSTS.max(lists.residents()));
        let all =
            [List::Recent, List::Frequent, List::Uncached, List::RecentGhost, List::FrequentGhost];
        let mut seen = 0;
        for list in all {
            let ends = *lists.of(list);
            let (mut at, mut bytes, mut metadata, mut len) = (ends.head, 0, 0, 0);
            while at != NIL {
                let node = &lists.nodes[at as usize];
                assert_eq!(node.list, list);
                assert_eq!(arc.contains(&node.name), !list.is_ghost());
                assert_eq!(lists.ghosts.get(&node.name).copied(), list.is_ghost().then_some(at));
                bytes += u64::from(node.size);
                metadata += if node.metadata { u64::from(node.size) } else { 0 };
                len += 1;
                at = node.next;
            }
            assert_eq!((bytes, metadata, len), (ends.bytes, ends.metadata, ends.len));
            seen += len as usize;
        }
        assert_eq!(seen, lists.nodes.len() - lists.free.len());
    });
}

/// What a call does.
#[derive(Clone, Debug)]
enum Op {
    Read(u64, usize, Access),
    Write(u64, usize),
    Forget(u64),
    Object(u64, usize),
    Resize(u64),
    Compact,
    Leave,
}

fn op() -> impl Strategy<Value = Op> {
    let access = prop_oneof![Just(Access::Demand), Just(Access::Ahead), Just(Access::Once)];
    prop_oneof![
        12 => (0u64..200, 1usize..3000, access).prop_map(|(n, size, access)| Op::Read(n, size, access)),
        3 => (0u64..200, 1usize..3000).prop_map(|(n, size)| Op::Write(n, size)),
        2 => (0u64..200).prop_map(Op::Forget),
        3 => (0u64..50, 1usize..500).prop_map(|(n, size)| Op::Object(n, size)),
        1 => (20_000u64..80_000).prop_map(Op::Resize),
        1 => Just(Op::Compact),
        1 => Just(Op::Leave),
    ]
}

proptest! {
    /// The model knows what was put in last under each name. The cache may have forgotten it, but has nothing else.
    #[test]
    fn it_has_what_was_put_in_last_and_keeps_its_invariants(ops in prop::collection::vec(op(), 1..500)) {
        let arc = ArcCache::new(40_000);
        let table: Table<(u64, usize)> = Table::new(arc.clone(), 2);
        let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut objects: HashMap<u64, usize> = HashMap::new();
        for op in ops {
            match op {
                Op::Read(n, size, access) => {
                    let metadata = n % 5 == 0;
                    match arc.get(&name(n), Some(metadata)) {
                        Some(found) => assert_eq!(Some(&found.to_vec()), model.get(&n)),
                        None if !arc.has_ahead(&name(n), metadata) => {
                            arc.insert(name(n), data(n, size), metadata, access);
                            model.insert(n, vec![n as u8; size]);
                            // It is kept, for it is small.
                            assert!(arc.contains(&name(n)));
                        }
                        None => unreachable!("it was not there"),
                    }
                }
                Op::Write(n, size) => {
                    arc.replace(name(n), data(n + 1, size), false);
                    model.insert(n, vec![(n + 1) as u8; size]);
                    assert!(arc.contains(&name(n)));
                }
                Op::Forget(n) => {
                    let had = arc.contains(&name(n));
                    assert_eq!(arc.forget(&name(n)), had);
                    arc.forget_all([name(n)]);
                    assert!(!arc.contains(&name(n)));
                }
                Op::Object(n, size) => {
                    if let Some(found) = table.get(n) {
                        assert_eq!(*found, (n, objects[&n]));
                    }
                    table.insert(n, Arc::new((n, size)), size);
                    objects.insert(n, size);
                    assert_eq!(*table.get(n).unwrap(), (n, size));
                }
                Op::Resize(budget) => {
                    arc.resize(budget);
                    assert_eq!(arc.stats().c, budget);
                }
                Op::Compact => {
                    let before = arc.stats();
                    if arc.compact() {
                        arc.inside(|lists| assert_eq!(lists.nodes.len() as u64, before.elements));
                    }
                    assert_eq!(arc.stats(), before);
                }
                Op::Leave => {
                    arc.clear(POOL);
                    let s = arc.stats();
                    assert_eq!((s.size, s.unpacked.bytes), (0, 0));
                }
            }
            check(&arc);
        }
        arc.clear(2);
        arc.clear(POOL);
        assert_eq!((arc.stats().taken(), arc.stats().elements), (0, 0));
    }
}

/// What comes of a large cache that has become a small one: nearly no places are kept, and order stays.
#[test]
fn a_cache_that_has_shrunk_keeps_few_places() {
    let arc = ArcCache::new(100 << 20);
    for n in 0..50_000 {
        arc.insert(name(n), data(n, 512), false, Access::Demand);
    }
    assert!(!arc.compact());
    arc.resize(2 << 20);
    let left = arc.stats().elements;
    let order = |arc: &ArcCache| {
        let first = arc.inside(|lists| lists.of(List::Recent).head);
        let next = |at: &u32| arc.inside(|lists| lists.nodes[*at as usize].next);
        let all = std::iter::successors(Some(first), |at| Some(next(at)).filter(|at| *at != NIL));
        all.map(|at| arc.inside(|lists| lists.nodes[at as usize].name)).collect::<Vec<_>>()
    };
    let before = order(&arc);
    assert!(arc.compact() && !arc.compact());
    assert_eq!(order(&arc), before);
    arc.inside(|lists| {
        assert!(lists.nodes.capacity() as u64 == left && lists.free.capacity() == 0);
        assert!(lists.ghosts.capacity() as u64 <= 4 * MIN_GHOSTS.max(left));
    });
    assert!(arc.places() <= 4 * left as usize);
    check(&arc);
    assert!(before.iter().all(|name| arc.get(name, None).is_some()));
}

/// When the budget changes the recent side keeps its share of it.
#[test]
fn targets_follow_the_budget() {
    let arc = ArcCache::new(400 << 10);
    arc.resize(4 << 20);
    assert_eq!(arc.stats().p, 2 << 20);
    arc.inside(|lists| lists.p = 1 << 20);
    arc.resize(1 << 20);
    assert_eq!(arc.stats().p, 256 << 10);
    arc.resize(0);
    assert_eq!((arc.stats().p, arc.stats().c), (0, 0));
    arc.resize(1 << 20);
    assert_eq!(arc.stats().p, 512 << 10);
}

/// A cache that is too small for anything takes nothing, of whatever size.
#[test]
fn hardly_any_memory_is_enough() {
    for budget in [0, 1, 64, 100, 271, 400, 1087, 1088, 4096] {
        let arc = ArcCache::new(budget);
        for n in 0..40 {
            arc.insert(name(n), data(n, 1 << (n % 10)), false, Access::Demand);
            arc.replace(name(n / 2), data(n, 16), true);
            assert!(arc.get(&name(n), Some(false)).is_none_or(|data| !data.is_empty()));
        }
        check(&arc);
    }
}

/// Bytes of a block of the traces.
const BLOCK: usize = 16 << 10;

/// A cache for so many blocks.
fn for_blocks(blocks: u64) -> Arc<ArcCache> {
    ArcCache::new(blocks * (BLOCK as u64 + ENTRY + GHOST))
}

/// A reader of a block; whether it was there.
fn read(arc: &ArcCache, n: u64) -> bool {
    let there = arc.get(&name(n), Some(false)).is_some();
    if !there {
        arc.insert(name(n), data(n, BLOCK), false, Access::Demand);
    }
    there
}

#[test]
fn a_scan_does_not_push_out_the_working_set() {
    for access in [Access::Demand, Access::Ahead, Access::Once] {
        let arc = for_blocks(100);
        for n in (0..40).cycle().take(120) {
            read(&arc, n);
        }
        for n in 1000..5000 {
            if access != Access::Demand {
                arc.insert(name(n), data(n, BLOCK), false, access);
            }
            if arc.get(&name(n), Some(false)).is_none() {
                arc.insert(name(n), data(n, BLOCK), false, access);
            }
        }
        let kept = (0..40).filter(|n| arc.contains(&name(*n))).count();
        assert_eq!(kept, 40, "{access:?}");
        check(&arc);
    }
}

/// A reader of a working set beside one that reads all of a large file again and again. By ghosts the side of what is used
/// grows until it has the set, though the set alone is larger than the half that it begins with.
#[test]
fn what_is_used_beside_scans_is_found() {
    let arc = for_blocks(200);
    let (mut scanned, mut hits, mut random) = (0u64, 0u64, 1u64);
    const ROUNDS: u64 = 40_000;
    for round in 0..ROUNDS {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let found = read(&arc, random % 150);
        hits += u64::from(found && round >= ROUNDS / 2);
        // The scan is as fast as the reader, and comes by the same block after ten times what fits.
        read(&arc, 10_000 + scanned % 2000);
        scanned += 1;
    }
    let share = hits as f64 / (ROUNDS / 2) as f64;
    assert!(share > 0.85, "{share}");
    let s = arc.stats();
    assert!(s.mfu_size > s.mru_size && s.p < s.c / 2, "{s:?}");
    check(&arc);
}

/// With everything new, and then looked at a second time a little later than the recent side lasts, that side grows.
#[test]
fn a_loop_that_just_does_not_fit_the_recent_side_makes_it_grow() {
    let arc = for_blocks(100);
    // What is frequent takes its half and is not used any more.
    for n in (0..60).chain(0..60).chain(0..60) {
        read(&arc, n);
    }
    let before = arc.stats().p;
    let mut hits = 0;
    for start in 0..400u64 {
        for n in 0..70 {
            hits += u64::from(read(&arc, 1000 + (start / 20) * 70 + n));
        }
    }
    assert!(arc.stats().mru_ghost_hits > 0 && arc.stats().p >= before);
    assert!(hits > 400 * 70 * 8 / 10, "{hits}");
    check(&arc);
}

#[test]
fn who_keeps_what_he_reads_goes_through_little_memory_and_finds_the_rest_of_a_block() {
    let budget = 8 * MAX_UNCACHED;
    let arc = ArcCache::new(budget);
    let block = || Abd::zeros(1 << 20);
    let kept = (budget >> 20) - (MAX_UNCACHED >> 20) - 4;
    for n in 0..kept {
        arc.insert(name(n), block(), false, Access::Demand);
    }
    for n in 1000..3000 {
        arc.insert(name(n), block(), false, Access::Once);
        arc.insert(name(n + 1), block(), false, Access::Once);
        for _ in 0..8 {
            assert!(arc.get(&name(n), Some(false)).is_some());
        }
        check(&arc);
    }
    assert!((0..kept).all(|n| arc.contains(&name(n))));
    assert_eq!(arc.stats().mfu_size, 0);
    // One that is larger than all that may be uncached, too.
    arc.insert(name(5000), Abd::zeros(MAX_UNCACHED as usize + 1), false, Access::Once);
    for _ in 0..2 {
        assert!(arc.get(&name(5000), Some(false)).is_some());
    }
    check(&arc);
}

#[test]
fn what_a_buffer_takes_counts_and_one_that_takes_too_much_is_copied() {
    let arc = ArcCache::new(1 << 20);
    // Half of it is not used.
    let mut grown = Vec::with_capacity(32 << 10);
    grown.resize(16 << 10, 1);
    arc.insert(name(1), Abd::from_vec(grown), false, Access::Demand);
    assert_eq!(arc.stats().size, 16 << 10);
    // A piece of a larger one.
    let piece = Abd::from_vec(vec![2; 64 << 10]).slice(0, 8 << 10).unwrap();
    arc.insert(name(2), piece, false, Access::Demand);
    assert_eq!(arc.stats().size, 24 << 10);
    assert!([1, 2].iter().all(|n| {
        let data = arc.get(&name(*n), None).unwrap();
        data.memory() == data.len() && data.chunks().all(|c| c.iter().all(|b| u64::from(*b) == *n))
    }));
    // What is rounded by the allocator, and a little that is left over, counts.
    let mut some = Vec::with_capacity(10 << 10);
    some.resize(9700, 3);
    arc.insert(name(3), Abd::from_vec(some), false, Access::Demand);
    assert_eq!(arc.stats().size, 34 << 10);
}

#[test]
fn pools_do_not_see_each_other_and_what_one_has_goes_with_it() {
    let arc = ArcCache::new(1 << 20);
    let of = |pool| Name::block(pool, &Key { dva0: 1, dva1: 5, birth: 7 });
    let key = Key { dva0: 1, dva1: 5, birth: 7 };
    for pool in [1, 2] {
        arc.insert(of(pool), data(u64::from(pool), 4096), false, Access::Demand);
        arc.replace(Name::unpacked(pool, &key, 9), data(7, 8192), true);
        arc.replace(Name::unpacked(pool, &key, 0), data(8, 8192), true);
    }
    assert_eq!(arc.get(&of(2), None).unwrap().to_vec(), vec![2; 4096]);
    arc.forget_views(1, &[9]);
    assert!(
        !arc.contains(&Name::unpacked(1, &key, 9)) && arc.contains(&Name::unpacked(1, &key, 0))
    );
    assert!(arc.contains(&Name::unpacked(2, &key, 9)));
    arc.leave(1);
    assert!(!arc.contains(&of(1)) && !arc.contains(&Name::unpacked(1, &key, 0)));
    let s = arc.stats();
    assert_eq!((s.size, s.unpacked), (4096, Taken { count: 2, bytes: 16384 }));
    check(&arc);
}

#[test]
fn threads_that_read_write_and_resize_leave_it_whole() {
    let arc = ArcCache::new(300 << 10);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let arc = &arc;
            scope.spawn(move || {
                let mut random = thread + 1;
                for round in 0..20_000u64 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let n = random % 100;
                    match arc.get(&name(n), Some(false)) {
                        Some(found) => assert_eq!(found.bytes()[0], n as u8),
                        None => arc.insert(
                            name(n),
                            data(n, 4096 + (n as usize % 3) * 1024),
                            false,
                            [Access::Demand, Access::Ahead, Access::Once][n as usize % 3],
                        ),
                    }
                    match round % 1000 {
                        7 => drop(arc.forget(&name(n))),
                        8 => arc.replace(name(n), data(n, 5000), false),
                        9 if thread == 0 => arc.resize((100 + random % 300) << 10),
                        10 if thread == 1 => check_sizes(arc),
                        _ => {}
                    }
                }
            });
        }
    });
    check(&arc);
}

fn check_sizes(arc: &ArcCache) {
    let s = arc.stats();
    assert!(s.taken() <= s.c, "{s:?}");
}

/// A pass over many blocks of dnodes asks for each of them again and again while it is there: that is one use.
#[test]
fn a_scan_of_what_is_decoded_does_not_push_out_the_working_set() {
    let arc = for_blocks(100);
    for n in (0..40).cycle().take(120) {
        read(&arc, n);
    }
    let unpacked = |n| Name::unpacked(POOL, &Key { dva0: 2, dva1: n, birth: 7 }, 0);
    for n in 0..5000 {
        arc.insert(unpacked(n), data(n, BLOCK), true, Access::Demand);
        for _ in 0..32 {
            assert!(arc.get(&unpacked(n), None).is_some());
        }
    }
    let kept = (0..40).filter(|n| arc.contains(&name(*n))).count();
    assert_eq!(kept, 40);
    // What is asked for later as well is used.
    let again = unpacked(4990);
    for n in 6000..6080 {
        arc.insert(unpacked(n), data(n, 16), true, Access::Demand);
    }
    assert!(arc.get(&again, None).is_some());
    for n in 7000..12_000 {
        read(&arc, n);
    }
    assert!(arc.contains(&again));
    check(&arc);
}

/// One pass over what is decoded stays one, though data is read between what it asks for.
#[test]
fn a_scan_that_reads_data_between_pushes_nothing_out() {
    let arc = for_blocks(4000);
    for n in (0..1600).cycle().take(4800) {
        read(&arc, n);
    }
    let unpacked = |n| Name::unpacked(POOL, &Key { dva0: 2, dva1: n, birth: 7 }, 0);
    for n in 0..1000 {
        arc.insert(unpacked(n), data(n, BLOCK), true, Access::Demand);
        for piece in 0..128 {
            assert!(arc.get(&unpacked(n), None).is_some());
            read(&arc, 10_000 + n * 128 + piece);
        }
    }
    assert_eq!((0..1600).filter(|n| arc.contains(&name(*n))).count(), 1600);
    check(&arc);
}

/// Burials do not pile up where nobody looks for them.
/// Few large blocks fill the recent side, and many small ones are frequent: what is asked for all the time is not pushed out before it counts as used.
#[test]
fn what_is_decoded_is_used_anew_before_large_blocks_push_it_out() {
    let arc = ArcCache::new(80 << 20);
    for n in 0..100_000 {
        arc.insert(name(n), data(n, 100), false, Access::Demand);
        assert!(arc.get(&name(n), Some(false)).is_some());
    }
    let table = Table::new(arc.clone(), POOL);
    table.insert(1, Arc::new(7u64), 100);
    for n in 100_000..102_000 {
        arc.insert(name(n), data(n, 100_000), false, Access::Demand);
        assert!(table.get(1).is_some(), "gone after {} blocks", n - 100_000);
    }
    assert!(arc.inside(|lists| lists.of(List::Recent).len) < 1000);
}

/// What there is room for while a cache shrinks is what it takes, however much of it is known of cache devices.
#[test]
fn the_least_budget_has_room_for_what_is_taken() {
    let mut lists = lists::Lists::new(0);
    for taken in [0, 1, 7, 1000, 1001, 123_457] {
        for l2 in [0, 1, 999, 3000, 3001, 3004, 10_000, 1 << 30] {
            lists.l2 = l2;
            let room = lists.room_of(lists.least_for(taken));
            // But for what is less than four bytes.
            assert!((taken..taken + 4).contains(&room), "{taken} beside {l2}: {room}");
        }
    }
}

struct Bell(std::sync::atomic::AtomicUsize);

impl super::Sleeper for Bell {
    fn wake(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

#[test]
fn a_budget_that_is_too_small_wakes_what_sleeps() {
    let arc = ArcCache::new(16 << 20);
    let bell = Arc::new(Bell(Default::default()));
    let sleeper: Arc<dyn super::Sleeper> = bell.clone();
    let rung = || bell.0.load(std::sync::atomic::Ordering::SeqCst);
    assert!(arc.sleeps(&sleeper, arc.puts()));
    arc.l2_takes(0, 1 << 20);
    arc.resize(8 << 20);
    assert_eq!(rung(), 0, "of that budget it is no more than its share");
    arc.resize(2 << 20);
    assert_eq!(rung(), 1, "too much is known of cache devices for the budget");
    arc.resize(1 << 20);
    assert_eq!(rung(), 1, "nothing sleeps");
    assert!(arc.sleeps(&sleeper, arc.puts()));
    arc.insert(name(1), data(1, 100), false, Access::Demand);
    assert_eq!(rung(), 2, "something is put in");
}

#[test]
fn what_many_tables_left_goes_by_itself() {
    let arc = ArcCache::new(16 << 20);
    for n in 0..5000 {
        Table::<u64>::new(arc.clone(), POOL).insert(n, Arc::new(n), 100);
    }
    assert!(arc.stats().objects.count < 4096);
    arc.forget_views(POOL, &[]);
    assert_eq!(arc.stats().objects.count, 0);
    check(&arc);
}

/// What tables that are gone have left goes with the next key that is unloaded.
#[test]
fn what_was_decoded_does_not_outlive_its_key() {
    let arc = ArcCache::new(1 << 20);
    let tables = [0; 3].map(|_| Table::<u64>::new(arc.clone(), POOL));
    for (n, table) in tables.iter().enumerate().take(2) {
        (0..10).for_each(|number| table.insert(number, Arc::new(n as u64), 100));
        // In the place of the former one, and of another size.
        table.insert(3, Arc::new(30), 100);
        table.insert(4, Arc::new(40), 200);
        assert_eq!((*table.get(3).unwrap(), *table.get(4).unwrap()), (30, 40));
    }
    assert_eq!(arc.stats().objects.count, 20);
    let [gone, stays, unused] = tables;
    drop((gone, unused));
    arc.forget_views(POOL, &[]);
    assert_eq!(arc.stats().objects.count, 10);
    assert_eq!(stays.get(5).as_deref(), Some(&1));
    check(&arc);
}
