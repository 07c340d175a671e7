//! Faults planted in the counts of a queue.

use super::*;
use crate::testing::{self, leaves};
use cenote_format::invariant::caught;

#[test]
fn a_batch_that_ends_twice_is_found() {
    let disk = leaves(1, 1 << 20).remove(0);
    let leaf = testing::file(0, &disk);
    let (class, size) = (Priority::AsyncWrite, Size { requests: 3, active: 1 });
    assert!(leaf.queue.begin(class, size));
    drop(leaf.queue.done(class, size));
    let why = caught(|| drop(leaf.queue.done(class, size))).unwrap_err();
    assert!(why.contains("active requests of AsyncWrite: 1 are taken of 0"), "{why}");
}
