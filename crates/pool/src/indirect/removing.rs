//! The last removal of a top-level vdev (`spa_removing_phys_t`), in the object directory.

use crate::directory::Directory;
use cenote_dmu::Result;

/// A removal is under way (`DSS_SCANNING`).
const SCANNING: u64 = 1;
/// It is done (`DSS_FINISHED`).
pub const FINISHED: u64 = 2;
/// It was cancelled (`DSS_CANCELED`).
pub const CANCELED: u64 = 3;

/// What is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removing {
    /// Whether it is under way: [`FINISHED`], [`CANCELED`] (`dsl_scan_state_t`).
    pub state: u64,
    /// The vdev.
    pub vdev: u64,
    /// The vdev that was removed last; `u64::MAX` if none was.
    pub prev: u64,
    /// When it began and ended: seconds since 1970.
    pub start: u64,
    /// See `start`.
    pub end: u64,
    /// Bytes that were allocated when it began.
    pub to_copy: u64,
    /// Bytes of these that were copied, or freed before that.
    pub copied: u64,
}

impl Removing {
    /// Its entry in the object directory (`DMU_POOL_REMOVING`).
    pub const ENTRY: &str = "com.delphix:removing";

    /// A removal that begins.
    pub fn begin(vdev: u64, prev: u64, start: u64, to_copy: u64) -> Removing {
        Removing { state: SCANNING, vdev, prev, start, end: 0, to_copy, copied: 0 }
    }

    /// By the integers of the entry.
    pub fn of(words: &[u64]) -> Option<Removing> {
        let &[state, vdev, prev, start, end, to_copy, copied, ..] = words else { return None };
        Some(Removing { state, vdev, prev, start, end, to_copy, copied })
    }

    /// The integers of the entry.
    pub fn words(&self) -> [u64; 7] {
        let Removing { state, vdev, prev, start, end, to_copy, copied } = *self;
        [state, vdev, prev, start, end, to_copy, copied]
    }

    /// What the object directory says.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn load(directory: &Directory) -> Result<Option<Removing>> {
        let Some(words) = directory.words(Removing::ENTRY)? else { return Ok(None) };
        let why = || directory.corrupt(format!("{}: {} words", Removing::ENTRY, words.len()));
        Removing::of(&words).ok_or_else(why).map(Some)
    }

    /// Whether it is under way.
    pub fn is_running(&self) -> bool {
        self.state == SCANNING
    }
}
