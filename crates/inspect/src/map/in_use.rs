//! The map of a pool that is in use.
//!
//! For a moment no transaction group is written: a hold is taken on the last one
//! ([`cenote_store::alloc::Hold`]), and the free segments of metaslabs that are in memory are summed
//! up, as many as there is time for. The rest is read afterwards, under the hold, while the pool goes
//! on: metaslabs that were not in memory are replayed, owners are looked for.
//!
//! While a device hangs a group is written for as long. Then nothing is taken from memory, all is replayed, and the hold is taken
//! beside the group: what that group frees is not allocated before two others have been written.

use super::SpaceMapReport;
use cenote_dmu::Result;
use cenote_engine::{Engine, EngineError};
use cenote_pool::Pool;
use cenote_store::alloc::{Allocator, Hold};
use cenote_store::histogram::Histogram;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The sync thread waits no longer than this, but for the metaslab at hand.
const LOOK_TIMEOUT: Duration = Duration::from_millis(50);

/// A pool in use, as one transaction group left it.
pub struct InUse {
    pool: Arc<Pool>,
    hold: Hold,
    /// The metaslabs, `(vdev, metaslab)`, that are in memory.
    loaded: HashSet<(u64, u64)>,
    /// Free segments of those that there was time for.
    free: HashMap<(u64, u64), Histogram>,
}

impl InUse {
    /// The pool as the last transaction group left it. A group that is being written is waited for no longer than all devices
    /// need that answer.
    ///
    /// # Errors
    /// The group that is being written waits for devices, and the pool is suspended.
    pub fn of(engine: &Engine) -> std::result::Result<InUse, EngineError> {
        let at_rest = engine.at_rest_soon(|_, allocator| {
            let pool = engine.pool();
            let txg = pool.uberblock().txg;
            let (loaded, free) = in_memory(allocator, txg);
            InUse { hold: allocator.hold(txg), pool, loaded, free }
        })?;
        Ok(at_rest.unwrap_or_else(|| InUse::beside_a_group(engine)))
    }

    /// The pool as the last transaction group left it, while another one is being written.
    fn beside_a_group(engine: &Engine) -> InUse {
        loop {
            let txg = engine.pool().uberblock().txg;
            let hold = engine.allocator().hold(txg);
            let pool = engine.pool();
            // A group that ended in between would have been held too late.
            if pool.uberblock().txg == txg {
                return InUse { pool, hold, loaded: HashSet::new(), free: HashMap::new() };
            }
        }
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Whether the pool got so full that it had to go on: what was read since may be wrong, or
    /// unreadable.
    pub fn is_gone(&self) -> bool {
        self.hold.is_broken()
    }

    /// The map, without owners.
    ///
    /// # Errors
    /// The space maps cannot be read.
    pub fn report(&self) -> Result<SpaceMapReport> {
        let mut report = SpaceMapReport::knowing(&self.pool, &self.free)?;
        for v in &mut report.vdevs {
            for m in &mut v.metaslabs {
                m.loaded = self.loaded.contains(&(v.id, m.id));
            }
        }
        Ok(report)
    }
}

type InMemory = (HashSet<(u64, u64)>, HashMap<(u64, u64), Histogram>);

/// What is in memory of free space as it is after `txg`, the last one on disk.
fn in_memory(allocator: &Allocator, txg: u64) -> InMemory {
    let begun = Instant::now();
    let (mut loaded, mut known) = InMemory::default();
    for group in allocator.groups() {
        for metaslab in group.metaslabs().iter().filter(|m| m.is_loaded()) {
            let place = (group.vdev(), metaslab.id());
            loaded.insert(place);
            if begun.elapsed() > LOOK_TIMEOUT {
                continue;
            }
            if let Some(free) = metaslab.free_after(txg) {
                known.insert(place, free.histogram());
            }
        }
    }
    (loaded, known)
}
