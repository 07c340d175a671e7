//! What is counted of a table: where entries were found that were looked up, and how its logs get on (`ddt_kstats_t`).

use super::pace::Pace;
use super::table::{Table, Where};
use super::{CHECKSUMS, Dedup};
use cenote_format::checksum::Checksum;

/// Figures of the table of one checksum function since the import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    live: u64,
    active: u64,
    flushing: u64,
    stored: u64,
    /// In no log, and in no ZAP.
    new: u64,
    /// Not to be read.
    unreadable: u64,
    /// Entries of the logs, and their pace, as the last group left them.
    active_entries: u64,
    flushing_entries: u64,
    rates: [u64; 3],
}

impl Figures {
    /// An entry was looked up that is live now or has to be read.
    pub(super) fn looked(&mut self, found: Where) {
        match found {
            Where::Live => self.live += 1,
            Where::Active => self.active += 1,
            Where::Flushing => self.flushing += 1,
            Where::Elsewhere => {}
        }
    }

    /// One was read: it was there, was not, or cannot be read.
    pub(super) fn read(&mut self, found: Option<bool>) {
        match found {
            Some(true) => self.stored += 1,
            Some(false) => self.new += 1,
            None => self.unreadable += 1,
        }
    }

    /// A group has left the table so.
    pub(super) fn left(&mut self, table: &Table) {
        self.active_entries = table.active.entries.len() as u64;
        self.flushing_entries = table.flushing.entries.len() as u64;
        let Pace { ingest_rate, flush_rate, flush_time_rate, .. } = table.pace;
        self.rates = [ingest_rate, flush_rate, flush_time_rate];
    }

    /// With the names that OpenZFS has for them.
    pub(crate) fn rows(&self) -> [(&'static str, u64); 17] {
        let logged = self.active + self.flushing;
        let read = self.stored + self.new + self.unreadable;
        [
            ("lookup", self.live + logged + read),
            ("lookup_new", self.new),
            ("lookup_existing", self.live + logged + self.stored),
            ("lookup_live_hit", self.live),
            // Threads that look for one entry at the same time read it each.
            ("lookup_live_wait", 0),
            ("lookup_live_miss", logged + read),
            ("lookup_log_hit", logged),
            ("lookup_log_active_hit", self.active),
            ("lookup_log_flushing_hit", self.flushing),
            ("lookup_log_miss", read),
            ("lookup_stored_hit", self.stored),
            ("lookup_stored_miss", self.new),
            ("log_active_entries", self.active_entries),
            ("log_flushing_entries", self.flushing_entries),
            ("log_ingest_rate", self.rates[0]),
            ("log_flush_rate", self.rates[1]),
            ("log_flush_time_rate", self.rates[2]),
        ]
    }
}

impl Dedup {
    /// The figures of a table; all are 0 where there never was one.
    pub(crate) fn figures(&self, checksum: Checksum) -> Figures {
        let state = self.state.lock();
        state.figures.get(&(checksum as u8)).copied().unwrap_or_default()
    }
}

/// The functions that have tables.
pub(crate) const TABLES: [Checksum; 5] = CHECKSUMS;
