//! Bookmarks that one change keeps in memory, until it writes them: see [`bookmarks`](super::bookmarks).

use cenote_format::dsl::BookmarkPhys;
use std::collections::BTreeMap;

/// Bookmarks of one head that say how much was freed before the next snapshot.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub(super) zap: u64,
    pub(super) by_txg: BTreeMap<u64, Vec<Mark>>,
}

#[derive(Debug)]
pub(super) struct Mark {
    pub(super) name: String,
    pub(super) bookmark: BookmarkPhys,
    /// It is not yet in the ZAP as it is here.
    pub(super) changed: bool,
}

/// Bookmarks of the heads whose snapshots one change destroys.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) heads: BTreeMap<u64, Marks>,
    /// How often the bookmarks of a head were read, and how many bookmarks were written.
    pub(super) reads: u64,
    pub(super) writes: u64,
}

impl Kept {
    /// Adds what another one counted.
    pub(super) fn count(&mut self, other: &Kept) {
        self.reads += other.reads;
        self.writes += other.writes;
    }
}
