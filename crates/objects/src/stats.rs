//! Requests and bytes, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A kind of request, as stores bill them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// An object is stored.
    Put,
    /// An object, or a range of it, is read (or asked for: HEAD).
    Get,
    /// Names are listed.
    List,
    /// An object is deleted.
    Delete,
}

impl Verb {
    /// As HTTP names it.
    pub fn name(self) -> &'static str {
        ["PUT", "GET", "LIST", "DELETE"][self as usize]
    }
}

/// What an upload is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Blocks that were written.
    Data,
    /// Blocks that are written again.
    Reclaim,
    /// Pages, directory and log of the index.
    Index,
    /// Roots.
    Root,
}

/// Counters while a space is open.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub requests: [AtomicU64; 4],
    pub bytes: [AtomicU64; 4],
    pub retries: [AtomicU64; 4],
    pub failures: [AtomicU64; 4],
    pub hedges: AtomicU64,
    pub uploaded: [AtomicU64; 4],
    pub written: AtomicU64,
}

impl Stats {
    /// One more.
    pub fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Relaxed);
    }

    /// As they stand.
    pub fn figures(&self) -> Figures {
        let all = |counters: &[AtomicU64; 4]| counters.each_ref().map(|c| c.load(Relaxed));
        Figures {
            requests: all(&self.requests),
            bytes: all(&self.bytes),
            retries: all(&self.retries),
            failures: all(&self.failures),
            hedges: self.hedges.load(Relaxed),
            uploaded: all(&self.uploaded),
            written: self.written.load(Relaxed),
        }
    }
}

/// Figures since the space was opened. Arrays go by [`Verb`] (PUT, GET, LIST, DELETE).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Requests, each try counted.
    pub requests: [u64; 4],
    /// Bytes of bodies that were sent or received in requests that succeeded.
    pub bytes: [u64; 4],
    /// Tries after the first.
    pub retries: [u64; 4],
    /// Requests that were given up.
    pub failures: [u64; 4],
    /// Reads that were asked a second time for want of an answer.
    pub hedges: u64,
    /// Bytes uploaded, by [`Purpose`] (data, reclaim, index, roots).
    pub uploaded: [u64; 4],
    /// Bytes of blocks that the user wrote.
    pub written: u64,
}

impl Figures {
    /// Bytes uploaded for each byte written; 0 before something was written.
    pub fn amplification(&self) -> f64 {
        if self.written == 0 {
            return 0.0;
        }
        self.uploaded.iter().sum::<u64>() as f64 / self.written as f64
    }
}
