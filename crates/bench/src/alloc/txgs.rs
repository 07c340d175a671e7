//! Transaction groups over spoiled metaslabs, without a pool: what their sync asks of the allocator.
//!
//! Allocations are made in the open group. Another thread closes it, takes the changes, sums up the
//! free space as for each map's header, lists it as for a map that is condensed, and says that the
//! group is on disk. Each group frees [`FREES`] single sectors all over the metaslabs that were
//! allocated there long ago; the blocks of the group before the last come back into circulation.

use parking_lot::{RwLock, RwLockReadGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use cenote_format::blkptr::Dva;
use cenote_store::alloc::{Allocator, Metaslab};

use super::spoil::SHIFT;

/// Blocks that each group frees.
const FREES: usize = 100_000;
/// Groups.
const GROUPS: usize = 6;

/// The open transaction group.
pub struct Txgs(RwLock<u64>);

impl Default for Txgs {
    fn default() -> Txgs {
        Txgs(RwLock::new(1))
    }
}

/// Sets itself at the end, whatever happens.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Txgs {
    /// The open group, which stays open as long as this is held.
    pub fn hold(&self) -> RwLockReadGuard<'_, u64> {
        self.0.read()
    }

    /// Syncs some groups, while `work` goes on until it is told to stop.
    pub fn sync_beside(
        &self,
        allocator: &Arc<Allocator>,
        metaslabs: &[u64],
        work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let group = allocator.groups().next().context("no vdev")?;
        let metaslabs: Vec<&Metaslab> =
            metaslabs.iter().filter_map(|id| group.metaslabs().get(*id as usize)).collect();
        let mut old = Vec::new();
        for metaslab in &metaslabs {
            let free = metaslab.free_after(*self.hold()).context("not loaded")?;
            let ends = free.iter().map(|(_, end)| end);
            // What follows a free segment is allocated.
            let end = metaslab.extent().start + metaslab.extent().size;
            old.push(ends.filter(|at| *at < end).collect::<Vec<u64>>());
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let syncing = scope.spawn(|| {
                let _done = Done(&stop);
                (0..GROUPS).try_for_each(|round| {
                    let each = FREES / metaslabs.len();
                    let step = |all: &Vec<u64>| (all.len() / each).max(1);
                    let freed =
                        old.iter().flat_map(|all| all.iter().skip(round).step_by(step(all)));
                    self.sync(allocator, &metaslabs, freed)
                })
            });
            let worked = work(&|| stop.load(Ordering::Relaxed));
            let synced = syncing.join();
            worked.and(synced.unwrap_or_else(|_| Err(anyhow::anyhow!("the sync panicked"))))
        })
    }

    /// Syncs the open group, in which the blocks at `freed` are freed first.
    fn sync<'a>(
        &self,
        allocator: &Arc<Allocator>,
        metaslabs: &[&Metaslab],
        freed: impl Iterator<Item = &'a u64>,
    ) -> anyhow::Result<()> {
        for offset in freed {
            let dva = Dva { vdev: 0, offset: *offset, asize: 1 << SHIFT, gang: false };
            allocator.free(*self.hold(), &dva)?;
        }
        let txg = {
            let mut open = self.0.write();
            *open += 1;
            *open - 1
        };
        allocator.take_changes(txg);
        for metaslab in metaslabs {
            metaslab.free_histogram().context("not loaded")?;
            metaslab.free_after(txg).context("not loaded")?;
        }
        allocator.sync_done(txg);
        allocator.wait_deferred();
        Ok(())
    }
}
