//! Directories of a fixed file system that stay open, as they were used lately.

use cenote_dmu::zap::Zap;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Directories kept open.
const MAX_OPEN: usize = 64;

/// Directories that are open.
#[derive(Default)]
pub(crate) struct Directories(Mutex<Open>);

/// Open directories by object number.
#[derive(Default)]
struct Open {
    /// Uses so far.
    tick: u64,
    /// Each with the tick of its last use.
    zaps: HashMap<u64, (u64, Arc<Zap>)>,
}

impl Directories {
    /// The directory, if it is open.
    pub(crate) fn get(&self, ino: u64) -> Option<Arc<Zap>> {
        let mut open = self.0.lock();
        open.tick = open.tick.wrapping_add(1);
        let tick = open.tick;
        let (used, zap) = open.zaps.get_mut(&ino)?;
        *used = tick;
        Some(zap.clone())
    }

    /// Keeps a directory open, instead of the one that was used longest ago if there are too many.
    pub(crate) fn put(&self, ino: u64, zap: Arc<Zap>) {
        let mut open = self.0.lock();
        let oldest = open.zaps.iter().min_by_key(|(_, (used, _))| *used).map(|(ino, _)| *ino);
        if let Some(oldest) = oldest.filter(|_| open.zaps.len() >= MAX_OPEN) {
            open.zaps.remove(&oldest);
        }
        open.tick = open.tick.wrapping_add(1);
        let tick = open.tick;
        open.zaps.insert(ino, (tick, zap));
    }
}
