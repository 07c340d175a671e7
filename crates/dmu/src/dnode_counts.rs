//! How often the process looked for objects and made new ones (`dnode_stats_t`).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DnodeCounts {
    /// Objects that were looked for and found (`dnode_hold_alloc_hits`).
    pub found: u64,
    /// Those that were not there (`dnode_hold_alloc_misses`).
    pub absent: u64,
    /// Those whose dnode could not be read (`dnode_hold_dbuf_read`).
    pub unreadable: u64,
    /// New objects (`dnode_allocate`).
    pub allocated: u64,
    /// Numbers that were asked for and taken (`dnode_hold_free_misses`).
    pub taken: u64,
}

/// What is counted: a field of [`DnodeCounts`].
#[derive(Clone, Copy)]
pub(crate) enum What {
    Found,
    Absent,
    Unreadable,
    Allocated,
    Taken,
}

static COUNTS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

/// Counts one more.
pub(crate) fn count(what: What) {
    COUNTS[what as usize].fetch_add(1, Relaxed);
}

/// The counts so far.
pub fn dnode_counts() -> DnodeCounts {
    let of = |what: What| COUNTS[what as usize].load(Relaxed);
    DnodeCounts {
        found: of(What::Found),
        absent: of(What::Absent),
        unreadable: of(What::Unreadable),
        allocated: of(What::Allocated),
        taken: of(What::Taken),
    }
}
