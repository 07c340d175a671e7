//! Reads and writes past the ARC: Direct I/O (`O_DIRECT`, `zfs_setup_direct`).
//!
//! # Idea
//!
//! A program that reads directly keeps what it reads, so the ARC need not. While a thread reads
//! [directly](Store::read_directly), data that is missing in the caches is read from the devices and not put into them
//! (`dmu_read_abd`). What is there, or is being read or written, is taken from there: both ways see the same bytes. Metadata
//! goes through the caches as always.
//!
//! A direct write of whole blocks waits in memory for its transaction group, as every write does, and so do the figures of what is
//! dirty. The blocks are noted ([`Store::wrote_directly`]), and the group that writes them does not put them into the
//! ARC. A block that was noted and never written, since it was freed or is a hole, is forgotten when too many are noted; a
//! block that is not noted goes through the ARC, which costs memory only.
//!
//! # Invariants
//!
//! - Nothing depends on a note but what the ARC keeps.
//! - At most [`MOST_NOTED`] blocks are noted.

use crate::{Bookmark, Store};
use ahash::HashSet;
use parking_lot::Mutex;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Most blocks that are noted: as many as 8 GiB of 128 KiB.
const MOST_NOTED: usize = 1 << 16;

thread_local! {
    static READS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread reads data past the ARC.
pub(crate) fn reads_directly() -> bool {
    READS.get()
}

/// How much was read and written directly: blocks and bytes (`spa_iostats_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectStats {
    /// Blocks that were read, whole or in part.
    pub reads: u64,
    /// Bytes that were asked for and read.
    pub read_bytes: u64,
    /// Blocks that were written.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
}

/// What a store knows of Direct I/O.
#[derive(Default)]
pub(crate) struct Direct {
    /// Blocks that were written directly and wait for their group: dataset, object, number.
    noted: Mutex<HashSet<(u64, u64, u64)>>,
    /// How many there are.
    count: AtomicUsize,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Direct {
    /// Whether a block that a group has written was written directly. It is not noted any more.
    pub fn takes(&self, at: Bookmark) -> bool {
        if at.level != 0 || self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut noted = self.noted.lock();
        let was = noted.remove(&(at.objset, at.object, at.blkid));
        self.count.store(noted.len(), Ordering::Relaxed);
        was
    }

    pub fn stats(&self) -> DirectStats {
        DirectStats {
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }
}

/// Ends direct reads of the thread, also by a panic.
struct Reading(bool);

impl Drop for Reading {
    fn drop(&mut self) {
        READS.set(self.0);
    }
}

impl Store {
    /// Has this thread read data past the ARC while `read` runs.
    pub fn read_directly<T>(&self, read: impl FnOnce() -> T) -> T {
        let _reading = Reading(READS.replace(true));
        read()
    }

    /// Counts blocks that were read directly, and the bytes of them that were asked for.
    pub fn count_direct_read(&self, blocks: u64, bytes: u64) {
        self.direct.reads.fetch_add(blocks, Ordering::Relaxed);
        self.direct.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whole blocks of an object, with so many bytes, were written directly: the group that writes them leaves them out of the
    /// ARC.
    pub fn wrote_directly(&self, (objset, object): (u64, u64), blocks: Range<u64>, bytes: u64) {
        self.direct.writes.fetch_add(blocks.end - blocks.start, Ordering::Relaxed);
        self.direct.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut noted = self.direct.noted.lock();
        for block in blocks {
            if noted.len() >= MOST_NOTED {
                noted.clear();
            }
            noted.insert((objset, object, block));
        }
        self.direct.count.store(noted.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_noted_until_they_are_written_and_no_more_than_so_many() {
        let direct = Direct::default();
        let at = |object, level, blkid| Bookmark { objset: 54, object, level, blkid };
        assert!(!direct.takes(at(2, 0, 0)));
        direct.noted.lock().insert((54, 2, 1));
        direct.count.store(1, Ordering::Relaxed);
        assert!(!direct.takes(at(2, 0, 0)) && !direct.takes(at(2, 1, 1)));
        assert!(direct.takes(at(2, 0, 1)) && !direct.takes(at(2, 0, 1)));
    }
}
