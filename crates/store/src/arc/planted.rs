//! Faults planted in the lists of the ARC.

#![allow(clippy::unwrap_used)]

use super::cache::MOST_DEAD;
use super::lists::List;
use super::*;
use cenote_format::abd::Abd;
use cenote_format::invariant::caught;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::Duration;

fn name(n: u64) -> Name {
    Name::block(1, &Key { dva0: 1, dva1: n, birth: 7 })
}

fn block() -> Abd {
    Abd::from_vec(vec![1; 1024])
}

fn with_blocks() -> Arc<ArcCache> {
    let arc = ArcCache::new(40_000);
    for n in 0..4 {
        arc.insert(name(n), block(), false, Access::Demand);
    }
    arc
}

fn at(arc: &ArcCache, n: u64) -> u32 {
    arc.inside(|lists| lists.nodes.iter().position(|node| node.name == name(n)).unwrap() as u32)
}

#[test]
fn bytes_of_a_list_that_are_off_are_found() {
    let arc = with_blocks();
    arc.inside(|lists| lists.ends[List::Recent as usize].bytes = 999);
    let why = caught(|| arc.forget(&name(0))).unwrap_err();
    assert!(why.contains("ARC: bytes of Recent: 1024 are taken of 999"), "{why}");
}

/// It is of no use any more, and does not harm those who use it.
#[test]
fn a_cache_that_is_found_wrong_goes_off() {
    let arc = with_blocks();
    let (object, table) = (Arc::new(7u64), Table::new(arc.clone(), 2));
    table.insert(1, object.clone(), 100);
    arc.inside(|lists| lists.ends[List::Recent as usize].bytes = 999);
    assert!(caught(|| arc.forget(&name(0))).is_err());
    assert!(arc.get(&name(1), Some(false)).is_none() && !arc.contains(&name(1)));
    arc.insert(name(2), block(), false, Access::Demand);
    arc.replace(name(2), block(), false);
    assert!(!arc.forget(&name(2)) && arc.get(&name(2), None).is_none());
    arc.forget_all([name(3)]);
    arc.resize(4096);
    arc.clear(1);
    assert_eq!((table.get(1), Arc::strong_count(&object)), (None, 1), "its memory is given back");
    arc.leave(1);
    assert!(!arc.compact() && arc.stats().taken() == 0);
    // One that a pool finds wrong when it leaves is told to others, and that pool goes on.
    let arc = with_blocks();
    arc.inside(|lists| lists.ends[List::Recent as usize].bytes = 999);
    arc.leave(1);
    assert!(arc.get(&name(1), None).is_none());
}

/// Whoever waits for the lists while they are left half changed does not go on in them.
#[test]
fn a_thread_that_waits_for_lists_that_are_wrong_goes_on_without() {
    let arc = with_blocks();
    let (has_them, panics) = (Barrier::new(2), AtomicBool::new(false));
    let puts = arc.puts();
    std::thread::scope(|scope| {
        let wrong = scope.spawn(|| {
            caught(|| {
                arc.misused(|| {
                    has_them.wait();
                    while !panics.load(SeqCst) {
                        std::thread::yield_now();
                    }
                    panic!("half changed");
                });
            })
        });
        has_them.wait();
        let waits: [Box<dyn FnOnce() + Send>; 4] = [
            Box::new(|| arc.insert(name(9), block(), false, Access::Demand)),
            Box::new(|| assert!(!arc.forget(&name(1)))),
            Box::new(|| assert_eq!(arc.stats().taken(), 0)),
            Box::new(|| arc.l2_takes(0, 5000)),
        ];
        let waiting: Vec<_> = waits.into_iter().map(|wait| scope.spawn(|| caught(wait))).collect();
        while arc.puts() == puts {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        panics.store(true, SeqCst);
        assert!(wrong.join().unwrap().is_err());
        assert!(waiting.into_iter().all(|thread| thread.join().unwrap().is_ok()));
    });
    assert!(!arc.contains(&name(0)) && arc.stats().taken() == 0);
}

/// Tables are dropped anywhere, also where a panic is under way.
#[test]
fn a_table_that_is_dropped_does_not_panic() {
    let arc = with_blocks();
    let table = || {
        let table = Table::new(arc.clone(), 1);
        table.insert(1, Arc::new(7u64), 1);
        table
    };
    (1..MOST_DEAD).for_each(|_| drop(table()));
    let last = table();
    arc.inside(|lists| lists.kinds[2].count = 0);
    drop(last);
    assert!(!arc.contains(&name(0)), "it was found wrong");
}

#[test]
fn nodes_that_are_free_and_not_free_are_found() {
    let arc = ArcCache::new(1 << 20);
    (0..100).for_each(|n| arc.insert(name(n), block(), false, Access::Demand));
    assert!((0..90).all(|n| arc.forget(&name(n))));
    assert!(arc.inside(|lists| lists.free.pop()).is_some());
    let why = caught(|| arc.compact()).unwrap_err();
    assert!(why.contains("ARC: 1 free places before the node at 11"), "{why}");
}

#[test]
fn kinds_that_are_not_what_the_lists_have_are_found() {
    let arc = with_blocks();
    arc.inside(|lists| lists.kinds[1].bytes = 5);
    let why = caught(|| arc.insert(name(9), block(), false, Access::Demand)).unwrap_err();
    assert!(why.contains("ARC: 5120 bytes in the lists, 5125 by their kinds"), "{why}");
}

#[test]
fn an_entry_that_the_shard_has_at_another_place_is_found() {
    let arc = with_blocks();
    let (first, second) = (at(&arc, 0), at(&arc, 1));
    arc.inside(|lists| lists.nodes[second as usize].name = name(0));
    let why = caught(|| arc.clear(1)).unwrap_err();
    assert!(why.contains("ARC: Name") && why.contains("is in a list and not there"), "{why}");
    let arc = with_blocks();
    arc.inside(|lists| lists.nodes.swap(first as usize, second as usize));
    let why = caught(|| arc.clear(1)).unwrap_err();
    assert!(why.contains("ARC: Name") && why.contains("not at 0"), "{why}");
}

#[test]
fn more_than_the_budget_is_found() {
    let arc = with_blocks();
    // What is in no list cannot be put out.
    arc.inside(|lists| lists.ends[List::Uncached as usize].bytes = 50_000);
    let why = caught(|| arc.insert(name(9), block(), false, Access::Demand)).unwrap_err();
    assert!(why.contains("ARC: no entry in its lists, and 50"), "{why}");
}
