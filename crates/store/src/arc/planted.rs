//! Faults planted in the lists of the ARC.

#![allow(clippy::unwrap_used)]

use super::*;
use cenote_format::invariant::caught;

fn with_blocks() -> ArcCache {
    let mut arc = ArcCache::new(40_000);
    for n in 0..4 {
        let key = Key { dva0: 1, dva1: n, birth: 7 };
        arc.insert(key, Abd::from_vec(vec![1; 1000]), false, Access::Demand);
    }
    arc
}

const FIRST: Key = Key { dva0: 1, dva1: 0, birth: 7 };

#[test]
fn bytes_of_a_list_that_are_off_are_found() {
    let mut arc = with_blocks();
    arc.lists[List::Recent as usize].bytes = 999;
    let why = caught(|| arc.forget(&FIRST)).map(drop).unwrap_err();
    assert!(why.contains("ARC: bytes of Recent: 1000 are taken of 999"), "{why}");
}

#[test]
fn a_block_that_the_map_has_at_another_place_is_found() {
    let mut arc = with_blocks();
    let key = Key { dva1: 1, ..FIRST };
    let (first, second) = (arc.map[&FIRST], arc.map[&key]);
    arc.map.insert(FIRST, second);
    arc.nodes[second].key = key;
    let why = caught(|| arc.remove(first)).unwrap_err();
    assert!(why.contains("ARC: Key") && why.contains("not at 0"), "{why}");
}

#[test]
fn more_than_the_budget_is_found() {
    let mut arc = with_blocks();
    // What is in no list cannot be put out.
    arc.lists[List::Uncached as usize].bytes = 50_000;
    let key = Key { dva1: 9, ..FIRST };
    let block = Abd::from_vec(vec![1; 1000]);
    let why = caught(|| arc.insert(key, block, false, Access::Demand)).unwrap_err();
    assert!(why.contains("ARC: no block in its lists, and 50000 bytes"), "{why}");
}
