//! What can be tuned, with defaults. The program that opens a space hands it over.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// What can be tuned.
#[derive(Debug, Clone)]
pub struct Tunables {
    /// Bytes of blocks in an object, at most (a longer block has an object of its own).
    pub object_bytes: u64,
    /// Uploads at once, and objects that wait in memory for one.
    pub uploads: usize,
    /// Ranges read at once.
    pub reads: usize,
    /// Bytes between two ranges of one object that are read along, at most: one request instead of two.
    pub read_gap: u64,
    /// Bytes that one request reads, at most.
    pub read_bytes: u64,
    /// Bytes of index pages kept in memory. Pages that changed since the last checkpoint are kept beyond it.
    pub index_bytes: usize,
    /// Bytes of tables of objects that are not dense, kept in memory.
    pub table_bytes: usize,
    /// Bytes of log in the root; what is longer goes to an object.
    pub inline_bytes: usize,
    /// Bytes of log after which the pages that changed are written.
    pub log_bytes: usize,
    /// Objects of log after which the pages that changed are written.
    pub log_objects: usize,
    /// How long one try of a request may take.
    pub deadline: Duration,
    /// A read that somebody waits for is asked a second time after this, at the earliest: when it takes much longer than others do, and
    /// others end meanwhile.
    pub hedge: Duration,
    /// First pause between two tries; each further one is twice as long, with jitter.
    pub pause: Duration,
    /// Longest pause between two tries.
    pub pause_max: Duration,
    /// How long a request is tried again, in all.
    pub budget: Duration,
    /// Where no credentials are found, or those that are have expired, it is tried again as with a store that is away.
    pub await_credentials: bool,
    /// How long an object that no root names any more is kept: longer than a signed request is valid.
    pub grace: Duration,
    /// Entries of a page of the index, from 4 to 1,024.
    pub page_entries: usize,
    /// Percent of live bytes below which an object is written anew.
    pub live_percent: u64,
    /// Bytes read ahead of one reader at most.
    pub ahead_max: u64,
    /// Seed of the jitter of pauses, and of nothing else. By default it is random.
    pub seed: u64,
}

impl Default for Tunables {
    fn default() -> Self {
        Self {
            object_bytes: 4 << 20,
            uploads: 32,
            reads: 64,
            read_gap: 128 << 10,
            read_bytes: 8 << 20,
            index_bytes: 256 << 20,
            table_bytes: 64 << 20,
            inline_bytes: 64 << 10,
            log_bytes: 8 << 20,
            log_objects: 128,
            deadline: Duration::from_secs(30),
            hedge: Duration::from_millis(500),
            pause: Duration::from_millis(50),
            pause_max: Duration::from_secs(10),
            budget: Duration::from_secs(120),
            await_credentials: true,
            grace: Duration::from_secs(20 * 60),
            page_entries: crate::page::PAGE_ENTRIES,
            live_percent: 50,
            ahead_max: 128 << 20,
            seed: RandomState::new().build_hasher().finish(),
        }
    }
}
