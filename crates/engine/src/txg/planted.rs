//! Faults planted in the transaction groups.

#![allow(clippy::unwrap_used)]

use super::*;
use cenote_format::invariant::{caught, is_broken};

fn groups(synced: u64) -> Arc<TxState> {
    let txgs = TxState::new(synced, Some(1 << 20), Timer::default());
    txgs.begin();
    txgs
}

#[test]
fn a_group_that_does_not_grow_is_found() {
    let txgs = groups(9);
    drop(txgs.assign(1, false).unwrap());
    let (quiesced, (), ()) = txgs.quiesce(|_| (), || ());
    for wrong in [9, 11] {
        let why = caught(|| txgs.synced(wrong)).unwrap_err();
        assert!(is_broken(&why), "{why}");
        assert!(
            why.ends_with(&format!("group {wrong} is on disk after 9, and 11 is open")),
            "{why}"
        );
    }
    txgs.synced(quiesced.txg);
}

#[test]
fn dirty_bytes_that_nobody_has_are_found() {
    let txgs = groups(9);
    drop(txgs.assign(1, false).unwrap());
    txgs.quiesce(|_| (), || ());
    txgs.state.lock().throttle.enter(11, 77);
    let why = caught(|| txgs.synced(10)).unwrap_err();
    assert!(why.ends_with("all groups up to 10 are on disk, and 77 bytes are dirty"), "{why}");
}

/// A count of changes below zero would have a group written with a change in it. The pool fails, and those that
/// wait are told.
#[test]
fn a_change_that_ends_twice_fails_the_pool() {
    let txgs = groups(9);
    let held = txgs.assign(1, false).unwrap();
    txgs.state.lock().holds = 0;
    let other = txgs.clone();
    let waiting = std::thread::spawn(move || other.wait_for(10));
    drop(held);
    assert!(waiting.join().unwrap().is_err());
    let why = txgs.failure().unwrap();
    assert!(why.contains("a change of group 10 ends that does not hold it"), "{why}");
    assert!(txgs.assign(1, false).is_err());
}

/// A change that gives back more than it was assigned with.
#[test]
fn a_change_that_was_never_counted_fails_the_pool() {
    let txgs = groups(9);
    let mut held = txgs.assign(100, false).unwrap();
    held.spare = 101;
    drop(held);
    assert!(txgs.failure().unwrap().contains("group 10"));
}
