//! Reads that wait for no device that hangs while other devices have the bytes.
//!
//! A read goes to one side of a mirror, or to the data columns of RAID-Z, and the caller's own thread waits for the
//! device: that costs least. If the device hangs, the caller does, too, although others have the same. A command that
//! shows something is *impatient* ([`impatiently`]): the reads of its thread are done by other threads, and what a
//! device has not answered in [`PATIENCE`] is read from others. The thread that waits for the device is left behind; it
//! is one of those that a device may keep. Only where too few others answer are they waited for after all.
//!
//! Invariant: a device is not to blame for an answer that no thread waited for.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

/// How long an impatient thread waits for a device.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a thread that waits for devices looks whether it still does.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// How long devices are waited for.
#[derive(Clone, Copy)]
pub(crate) enum Patience<'a> {
    /// So long.
    Most(Duration),
    /// Until this says that they are waited for no longer.
    Until(&'a (dyn Fn() -> bool + Sync)),
}

impl Patience<'_> {
    /// How long a thread waits at once, that began to then.
    pub(crate) fn pause(self, begun: Instant) -> Duration {
        match self {
            Patience::Most(most) => most.saturating_sub(begun.elapsed()),
            Patience::Until(_) => LOOK,
        }
    }

    /// Whether devices are waited for no longer.
    pub(crate) fn is_over(self, begun: Instant) -> bool {
        match self {
            Patience::Most(most) => begun.elapsed() >= most,
            Patience::Until(ends) => ends(),
        }
    }
}

thread_local! {
    static IMPATIENT: Cell<bool> = const { Cell::new(false) };
}

/// Does something. Meanwhile this thread's reads leave devices alone that do not answer, as far as others can stand in.
pub fn impatiently<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IMPATIENT.set(self.0);
        }
    }
    let _restore = Restore(IMPATIENT.replace(true));
    work()
}

/// How long this thread waits for a device; `None`: until it answers.
pub fn of_thread() -> Option<Duration> {
    IMPATIENT.get().then_some(PATIENCE)
}

/// No thread waits for the answer to a read any more.
#[derive(Debug)]
pub(crate) struct GaveUp;

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the device does not answer")
    }
}

impl std::error::Error for GaveUp {}

impl GaveUp {
    pub(crate) fn error() -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, GaveUp)
    }

    pub(crate) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|why| why.is::<GaveUp>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Leaf, checksum_errors};
    use crate::vdev::Kind;
    use crate::{BlockRead, VdevTree};

    const ROOM: usize = 4 << 20;

    /// Reads a block, from whichever leaf answers.
    fn read(tree: &VdevTree, offset: u64, data: &[u8]) -> Vec<u8> {
        let verify = |abd: &cenote_format::abd::Abd| *abd.bytes() == *data;
        let size = data.len() as u64;
        let begun = Instant::now();
        let outcome = tree.read_one(&BlockRead { vdev: 0, offset, size, txg: 1, verify: &verify });
        assert!(begun.elapsed() < PATIENCE * 20);
        assert!(outcome.faults.is_empty(), "{:?}", outcome.faults);
        outcome.block.unwrap().to_vec()
    }

    fn answer(disks: &[Leaf]) {
        disks.iter().for_each(|disk| disk.faults.set_hung(false));
    }

    #[test]
    fn the_other_side_of_a_mirror_answers() {
        let disks = testing::leaves(2, ROOM);
        let tree =
            testing::tree(vec![testing::mirror_like(Kind::Mirror, 0, testing::files(&disks))]);
        let data = vec![7; 4096];
        disks.iter().for_each(|disk| disk.write(8192, &data));
        for hung in [0, 1] {
            disks[hung].faults.set_hung(true);
            assert_eq!(impatiently(|| read(&tree, 8192, &data)), data);
            answer(&disks);
        }
        assert_eq!(checksum_errors(&tree), [0, 0]);
    }

    #[test]
    fn parity_stands_in() {
        let disks = testing::leaves(4, ROOM);
        let tree = testing::tree(vec![testing::raidz(1, 9, testing::files(&disks))]);
        let data: Vec<u8> = (0..6000u32).map(|i| (i % 251) as u8).collect();
        let mut block = data.clone();
        block.resize(6144, 0);
        let txg = 1;
        let (abd, content) =
            (cenote_format::abd::Abd::from_vec(block.clone()), crate::traffic::Content::Data);
        let write =
            crate::BlockWrite { vdev: 0, offset: 0, data: abd, txg, content, sides: Vec::new() };
        tree.write_many(&[write]).pop().unwrap().unwrap();
        for hung in 0..4 {
            disks[hung].faults.set_hung(true);
            assert_eq!(impatiently(|| read(&tree, 0, &block)), block);
            answer(&disks);
        }
    }

    #[test]
    fn the_only_device_is_waited_for() {
        let disks = testing::leaves(1, ROOM);
        let tree = testing::tree(vec![testing::file(0, &disks[0])]);
        let data = vec![9; 512];
        disks[0].write(0, &data);
        disks[0].faults.set_hung(true);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| impatiently(|| read(&tree, 0, &data)));
            std::thread::sleep(PATIENCE * 2);
            assert!(!reading.is_finished());
            answer(&disks);
            assert_eq!(reading.join().unwrap(), data);
        });
    }
}
