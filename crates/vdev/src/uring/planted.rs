//! Faults planted in what a ring has in flight.

use super::*;
use cenote_format::invariant::{caught, is_broken};

/// A completion that no read was waiting for: what the kernel writes to is not known.
#[test]
fn a_completion_of_no_read_is_found_and_the_buffers_stay() {
    let Ok(ring) = IoUring::new(DEPTH) else { return };
    let file = tempfile::tempfile().unwrap();
    let mut batch = Batch { ring, file: &file, direct: None, buffers: Buffers::default() };
    let nothing = opcode::Nop::new().build().user_data(7);
    // SAFETY: it has no buffer.
    unsafe { batch.ring.submission().push(&nothing) }.unwrap();
    batch.wait().unwrap();
    let why = caught(|| batch.reap(&mut [])).unwrap_err();
    assert!(is_broken(&why) && why.contains("ended read 7, with 0 in flight"), "{why}");
    assert_eq!(batch.buffers.in_flight, usize::MAX);
}
