//! Faults planted in the epochs of reads.

use super::*;
use cenote_format::invariant::caught;

#[test]
fn a_read_that_ends_twice_and_a_group_that_is_older_are_found() {
    let epochs = ReadEpochs::default();
    epochs.group_done(9);
    let read = epochs.begin();
    epochs.slot(9).readers.store(0, SeqCst);
    // Also while its thread panics, which does not end the process.
    let why = caught(|| {
        let _read = read;
        panic!("for the test")
    });
    assert_eq!(why, Err::<(), _>("panicked: for the test".into()));
    let why = epochs.alarm.why().unwrap();
    assert!(why.contains("a read of group 9 ends that did not begin"), "{why}");
    assert_eq!(epochs.oldest(), None);
    let why = caught(|| epochs.group_done(8)).unwrap_err();
    assert!(why.contains("group 8 ends after group 9"), "{why}");
}
