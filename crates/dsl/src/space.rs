//! How much space is available to a dataset, and how much was written since a snapshot
//! (`dsl_dir_space_available`, `dsl_dataset_space_written`).
//!
//! The space that is *available* is the least of what the pool has left and what each quota on
//! the way up to the root leaves; a reservation that is not used up adds to what the parent
//! gives. The pool's size for this purpose counts deduplicated and cloned blocks once for each
//! reference, since datasets are charged for each reference, and keeps back *slop*: a 32nd of
//! the pool, at least 128 MiB (or half of a tiny pool) and at most 128 GiB.
//!
//! The space *written* since a snapshot is the growth since then plus what died since then of
//! what the snapshot had. The latter is the sum of the deadlists between the two states,
//! restricted to blocks that are as old as the snapshot.

use crate::deadlist::Sizes;
use crate::{Dataset, DatasetKind, Dsl, bpobj, tunables};
use cenote_dmu::Result;
use cenote_format::dsl::{DslDatasetPhys, ZBM_FLAG_HAS_FBN};

/// Entry of the object directory: the list of deferred frees.
const DEFERRED_FREES: &[u8] = b"sync_bplist";
/// Bounds of what is kept back, in bytes (`spa_min_slop`, `spa_max_slop`).
const MIN_SLOP: u64 = 128 << 20;
const MAX_SLOP: u64 = 128 << 30;

/// What the assembled pool knows about its size. All in bytes, with the RAID-Z parity of a
/// typical block taken off (deflated).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolSpace {
    /// Size of all metaslabs of the normal class.
    pub normal: u64,
    /// Size of vdevs that no longer allocate (part of `normal`).
    pub nonallocating: u64,
    /// Size of the metaslabs set aside for the intent log (not part of `normal`).
    pub embedded_log: u64,
    /// Allocated in the special and dedup classes.
    pub special_allocated: u64,
    /// What deduplication saves.
    pub dedup_saved: u64,
    /// What cloned blocks save.
    pub clone_saved: u64,
    /// Held by the pool's checkpoint only.
    pub checkpoint: u64,
}

/// The quotas that hold for a head, with what is used of each as recorded on disk, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Its refquota, if it has one, and what it refers to.
    pub own: Option<(u64, u64)>,
    /// Its directory and those above it, by object: the quota, if it has one, and what is used there and
    /// below.
    pub dirs: Vec<(u64, Option<u64>, u64)>,
}

impl PoolSpace {
    /// The space that datasets can be charged for (`spa_dspace`).
    pub fn size(&self) -> u64 {
        [self.special_allocated, self.dedup_saved, self.clone_saved]
            .iter()
            .fold(self.real_size(), |sum, n| sum.saturating_add(*n))
    }

    fn real_size(&self) -> u64 {
        self.normal.saturating_sub(self.nonallocating)
    }

    /// The space that is kept back (`spa_get_slop_space`).
    pub fn slop(&self) -> u64 {
        let size = self.real_size();
        let share = size.checked_shr(tunables::SLOP_SHIFT.small()).unwrap_or(0);
        let slop = share.min(MAX_SLOP);
        let slop = slop - self.embedded_log.min(slop >> 1);
        slop.max(MIN_SLOP.min(size >> 1))
    }

    /// The space that datasets may use, when `deferred` bytes are waiting to be freed
    /// (`dsl_pool_adjustedsize`).
    pub fn usable(&self, deferred: u64) -> u64 {
        self.size()
            .saturating_sub(self.checkpoint)
            .saturating_sub(deferred)
            .saturating_sub(self.slop())
    }
}

impl Dsl {
    /// The pool's space that datasets may use; `None` before [`Dsl::set_pool_space`].
    pub fn usable_space(&self) -> Result<Option<u64>> {
        let Some(space) = self.around(|a| a.space) else { return Ok(None) };
        let deferred = match self.zap(crate::OBJECT_DIRECTORY)?.u64(DEFERRED_FREES)? {
            Some(object) => bpobj::header(&self.mos, object)?.bytes,
            None => 0,
        };
        Ok(Some(space.usable(deferred)))
    }

    /// Bytes available to a directory and what is below it, as recorded on disk.
    fn available_to_dir(&self, object: u64) -> Result<Option<u64>> {
        let Some(pool) = self.usable_space()? else { return Ok(None) };
        let mut available = u64::MAX;
        for dir in self.ancestry(object)?.iter().rev() {
            let used = dir.phys.used;
            let mut quota = if dir.phys.quota == 0 { u64::MAX } else { dir.phys.quota };
            if dir.object == self.root {
                quota = quota.min(pool);
            } else {
                available = available.saturating_add(dir.phys.reserved.saturating_sub(used));
            }
            available = if used > quota { 0 } else { available.min(quota - used) };
        }
        Ok(Some(available))
    }

    /// Bytes that can still be written to a file system or volume; `None` before
    /// [`Dsl::set_pool_space`].
    pub fn available(&self, d: &Dataset) -> Result<Option<u64>> {
        let Some(available) = self.available_to_dir(d.dir_obj)? else { return Ok(None) };
        let reserved = self.stored_number(d, "refreservation")?;
        let quota = self.stored_number(d, "refquota")?;
        let available = available.saturating_add(reserved.saturating_sub(d.ds.unique));
        Ok(Some(match quota {
            0 => available,
            quota => available.min(quota.saturating_sub(d.ds.referenced)),
        }))
    }

    /// The quotas that hold for the head `d`: its refquota, then the quotas of its directory and of the
    /// directories above it.
    pub fn quotas(&self, d: &Dataset) -> Result<Quotas> {
        let own = match self.stored_number(d, "refquota")? {
            0 => None,
            quota => Some((quota, d.ds.referenced)),
        };
        let line = self.ancestry(d.dir_obj)?;
        let quota = |phys: &cenote_format::dsl::DslDirPhys| Some(phys.quota).filter(|q| *q != 0);
        let dirs = line.iter().map(|dir| (dir.object, quota(&dir.phys), dir.phys.used)).collect();
        Ok(Quotas { own, dirs })
    }

    /// What is reserved for the head `d` and not used: the object that has the reservation (its own for
    /// its refreservation, directories from its own up) and the bytes that are left of it. What is
    /// written to `d` does not count against the pool's space as long as it fits into them.
    pub fn unused_reservations(&self, d: &Dataset) -> Result<Vec<(u64, u64)>> {
        let own = self.stored_number(d, "refreservation")?.saturating_sub(d.ds.unique);
        let mut unused = vec![(d.ds_obj, own)];
        for dir in self.ancestry(d.dir_obj)?.iter().filter(|dir| dir.object != self.root) {
            unused.push((dir.object, dir.phys.reserved.saturating_sub(dir.phys.used)));
        }
        unused.retain(|(_, bytes)| *bytes > 0);
        Ok(unused)
    }

    /// Bytes written to `d` since its previous snapshot; `None` without a snapshot.
    pub fn written(&self, d: &Dataset) -> Result<Option<u64>> {
        if d.ds.prev_snap == 0 {
            return Ok(None);
        }
        let earlier = self.read_dataset(d.ds.prev_snap)?;
        self.written_after(&d.ds, &Earlier::snapshot(&earlier)).map(|s| Some(s.used))
    }

    /// Bytes written to `d` since `earlier`, a snapshot or bookmark of the same file system or of
    /// one that it descends from (`zfs_ioc_space_written`); `None` if it is not earlier, or a bookmark without sizes.
    pub fn written_since(&self, d: &Dataset, earlier: &Dataset) -> Result<Option<u64>> {
        Ok(self.sizes_since(d, earlier)?.map(|s| s.used))
    }

    /// As [`Dsl::written_since`], with compressed and uncompressed bytes as well (`dsl_dataset_space_written`).
    pub fn sizes_since(&self, d: &Dataset, earlier: &Dataset) -> Result<Option<Sizes>> {
        let since = match (&earlier.bookmark, earlier.kind) {
            (Some(b), _) if b.flags & ZBM_FLAG_HAS_FBN == 0 => return Ok(None),
            (Some(b), _) => Earlier {
                txg: b.creation_txg,
                referenced: b.referenced,
                compressed: b.compressed,
                uncompressed: b.uncompressed,
                freed: Some(Sizes {
                    used: b.freed,
                    compressed: b.freed_compressed,
                    uncompressed: b.freed_uncompressed,
                }),
            },
            (None, DatasetKind::Snapshot) => Earlier::snapshot(&earlier.ds),
            (None, _) => return Ok(None),
        };
        if !self.is_before(d, earlier.dir_obj, since.txg)? {
            return Ok(None);
        }
        self.written_after(&d.ds, &since).map(Some)
    }

    /// Whether the state at `txg` of directory `dir_obj` is an ancestor of `later` (`dsl_dataset_is_before`).
    pub(crate) fn is_before(&self, later: &Dataset, dir_obj: u64, txg: u64) -> Result<bool> {
        let (mut at, mut snapshot) = (later.ds.clone(), later.kind == DatasetKind::Snapshot);
        loop {
            if snapshot && txg >= at.creation_txg {
                return Ok(false);
            }
            if at.dir == dir_obj {
                return Ok(true);
            }
            let origin = self.read_dir(at.dir)?.origin;
            if origin == 0 {
                return Ok(false);
            }
            let next = self.read_dataset(origin)?;
            if next.dir == dir_obj && next.creation_txg == txg {
                return Ok(true);
            }
            // Origins are ever older; anything else would lead in circles.
            if snapshot && next.creation_txg >= at.creation_txg {
                return Err(self.corrupt(origin, "an origin is younger than its clone"));
            }
            (at, snapshot) = (next, true);
        }
    }

    fn written_after(&self, later: &DslDatasetPhys, since: &Earlier) -> Result<Sizes> {
        let mut sum = Sizes {
            used: later.referenced.wrapping_sub(since.referenced),
            compressed: later.compressed.wrapping_sub(since.compressed),
            uncompressed: later.uncompressed.wrapping_sub(since.uncompressed),
        };
        let mut at = later.clone();
        while at.prev_snap_txg > since.txg {
            sum.add(self.deadlist_range(&self.deadlist_at(at.deadlist)?, 0, since.txg)?);
            let previous = self.read_dataset(at.prev_snap)?;
            if previous.prev_snap_txg >= at.prev_snap_txg {
                return Err(self.corrupt(at.prev_snap, "previous snapshot is not older"));
            }
            at = (*previous).clone();
        }
        match since.freed {
            Some(freed) => sum.add(freed),
            None => sum.add(self.deadlist_total(at.deadlist)?),
        }
        Ok(sum)
    }
}

/// The earlier of two states that are compared.
struct Earlier {
    txg: u64,
    referenced: u64,
    compressed: u64,
    uncompressed: u64,
    /// What was freed between it and the snapshot after it, where that is known.
    freed: Option<Sizes>,
}

impl Earlier {
    fn snapshot(ds: &DslDatasetPhys) -> Earlier {
        Earlier {
            txg: ds.creation_txg,
            referenced: ds.referenced,
            compressed: ds.compressed,
            uncompressed: ds.uncompressed,
            freed: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slop_is_a_32nd_within_bounds() {
        let slop = |normal, embedded_log| {
            PoolSpace { normal, embedded_log, ..PoolSpace::default() }.slop()
        };
        assert_eq!(slop(100 << 20, 0), 50 << 20);
        assert_eq!(slop(1 << 30, 0), 128 << 20);
        assert_eq!(slop(1 << 40, 0), 1 << 35);
        assert_eq!(slop(1 << 40, 1 << 30), (1 << 35) - (1 << 30));
        assert_eq!(slop(1 << 40, 1 << 40), 1 << 34);
        assert_eq!(slop(1 << 50, 0), 128 << 30);
    }

    #[test]
    fn damaged_figures_do_not_wrap() {
        let space = PoolSpace {
            normal: 5,
            nonallocating: 9,
            dedup_saved: u64::MAX,
            ..PoolSpace::default()
        };
        assert_eq!(space.usable(u64::MAX), 0);
    }
}
