//! Deadlists and livelists (`dsl_deadlist_t`).
//!
//! The *deadlist* of a dataset holds the blocks that its previous snapshot references and it
//! does not: what destroying that snapshot might free. It is a ZAP that maps a transaction group
//! (in hexadecimal) to a [`bpobj`]: entry *t* holds the blocks born after *t* and
//! not after the next entry's *t*. So the blocks born before some older snapshot are found, and
//! their sizes summed up, without looking at a single block pointer. Pools older than version 26
//! have one plain bpobj instead.
//!
//! The *livelist* of a clone has the same shape, and holds the blocks that were born (and, marked
//! as freed, those that died again) in the clone: what destroying the clone frees. The
//! *remap deadlist* belongs to removed devices.

use crate::bpobj::{self, BpobjEntry};
use crate::{Dataset, Dsl, corrupt, number_in_name};
use cenote_dmu::zap::Zap;
use cenote_dmu::{Error, Object, ObjectSet, Result};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_format::dsl::DeadlistPhys;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Field of a zapified directory: a clone's livelist (`DD_FIELD_LIVELIST`).
pub(crate) const LIVELIST: &str = "com.delphix:livelist";
/// Field of a zapified dataset (`DS_FIELD_REMAP_DEADLIST`).
const REMAP_DEADLIST: &str = "com.delphix:remap_deadlist";

/// Whether a block counts: holes do not, and neither do those left out of redacted datasets.
pub(crate) fn counts(bp: &BlockPointer) -> bool {
    !bp.is_hole() && !bp.is_redacted()
}

/// Sums over block pointers, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// As allocated, without the share of RAID-Z parity (deflated).
    pub used: u64,
    /// Physical.
    pub compressed: u64,
    /// Logical.
    pub uncompressed: u64,
}

impl Sizes {
    /// Adds; sums of damaged lists may be anything, so they wrap.
    pub(crate) fn add(&mut self, other: Sizes) {
        self.used = self.used.wrapping_add(other.used);
        self.compressed = self.compressed.wrapping_add(other.compressed);
        self.uncompressed = self.uncompressed.wrapping_add(other.uncompressed);
    }

    /// Subtracts; wraps likewise.
    pub(crate) fn take(&mut self, other: Sizes) {
        self.used = self.used.wrapping_sub(other.used);
        self.compressed = self.compressed.wrapping_sub(other.compressed);
        self.uncompressed = self.uncompressed.wrapping_sub(other.uncompressed);
    }
}

/// An open deadlist or livelist.
#[derive(Debug, Clone)]
pub struct Deadlist {
    /// Its object in the MOS.
    pub object: u64,
    /// Sums over all entries.
    pub total: Sizes,
    /// Lower bound of the birth transaction groups, exclusive, and the bpobj; in ascending order.
    /// Empty if [`Deadlist::is_plain`].
    pub lists: Vec<(u64, u64)>,
    /// A single bpobj of the oldest format.
    pub is_plain: bool,
}

impl Deadlist {
    /// Opens the deadlist (or livelist, or remap deadlist) that is object `object` of `mos` (`dsl_deadlist_open`).
    pub fn open(mos: &Arc<ObjectSet>, object: u64) -> Result<Deadlist> {
        let holder = mos.object(object)?;
        let total = total_of(&holder)?;
        if holder.dnode().kind == DmuType::BPOBJ {
            return Ok(Deadlist { object, total, lists: Vec::new(), is_plain: true });
        }
        let mut lists = Vec::new();
        for entry in Zap::open(&holder)?.entries()? {
            match (number_in_name(&entry), entry.u64()) {
                (Some(txg), Some(bpobj)) => lists.push((txg, bpobj)),
                _ => return Err(corrupt(mos, object, "bad deadlist entry")),
            }
        }
        lists.sort_unstable();
        Ok(Deadlist { object, total, lists, is_plain: false })
    }
}

/// The sums over the deadlist that `holder` is.
fn total_of(holder: &Object) -> Result<Sizes> {
    if holder.dnode().kind == DmuType::BPOBJ {
        return bpobj_sizes(holder.objset(), holder.number());
    }
    let phys = DeadlistPhys::decode(&holder.bonus()).map_err(|source| Error::Decode {
        objset: holder.objset().id(),
        object: holder.number(),
        source,
    })?;
    Ok(Sizes { used: phys.used, compressed: phys.compressed, uncompressed: phys.uncompressed })
}

fn bpobj_sizes(mos: &Arc<ObjectSet>, object: u64) -> Result<Sizes> {
    let phys = bpobj::header(mos, object)?;
    Ok(Sizes { used: phys.bytes, compressed: phys.compressed, uncompressed: phys.uncompressed })
}

/// Blocks of a livelist that were freed, while its entries are gone through from the newest to the oldest
/// (`livelist_entry_t`). A free is met before its allocation, so that only frees need be remembered. There
/// is more than one of each where blocks were cloned.
#[derive(Debug, Default)]
pub struct Freed(HashMap<(u64, u64, u64), u64>);

impl Freed {
    /// What tells the entries of a block from others: where it is and when it was written.
    pub fn key(bp: &BlockPointer) -> (u64, u64, u64) {
        (bp.0[0], bp.0[1], bp.logical_birth())
    }

    /// The next entry is one of a freed block.
    pub fn free(&mut self, bp: &BlockPointer) {
        *self.0.entry(Freed::key(bp)).or_default() += 1;
    }

    /// The next entry is one of an allocated block. Whether that is still there.
    pub fn is_live(&mut self, bp: &BlockPointer) -> bool {
        let Entry::Occupied(mut entry) = self.0.entry(Freed::key(bp)) else { return true };
        *entry.get_mut() -= 1;
        if *entry.get() == 0 {
            entry.remove();
        }
        false
    }

    /// The frees that have not met their allocation, by block.
    pub fn left(&self) -> impl Iterator<Item = ((u64, u64, u64), u64)> + '_ {
        self.0.iter().map(|(key, count)| (*key, *count))
    }

    /// How many frees have not met their allocation: 0 at the end of a list that is right.
    pub fn unmatched(&self) -> u64 {
        self.0.values().sum()
    }
}

/// Calls `f` for every block that bpobj `object` of a livelist has as allocated and not as freed
/// (`dsl_process_sub_livelist`, `dsl_livelist_iterate`).
pub fn live_blocks(
    mos: &Arc<ObjectSet>,
    object: u64,
    f: &mut dyn FnMut(&BlockPointer),
) -> Result<()> {
    let mut freed = Freed::default();
    bpobj::iterate(mos, object, &mut |entry| {
        if entry.freed {
            freed.free(&entry.bp);
        } else if freed.is_live(&entry.bp) {
            f(&entry.bp);
        }
        Ok(())
    })
}

impl Dsl {
    /// Opens the deadlist (or livelist, or remap deadlist) that is object `object` of the MOS.
    pub fn deadlist_at(&self, object: u64) -> Result<Deadlist> {
        Deadlist::open(&self.mos, object)
    }

    /// The sums over a deadlist alone.
    pub(crate) fn deadlist_total(&self, object: u64) -> Result<Sizes> {
        total_of(&self.mos.object(object)?)
    }

    /// The deadlist of a file system, volume or snapshot.
    pub fn deadlist(&self, d: &Dataset) -> Result<Deadlist> {
        self.deadlist_at(d.ds.deadlist)
    }

    /// The livelist of a clone, if it has one.
    pub fn livelist(&self, d: &Dataset) -> Result<Option<Deadlist>> {
        let object = if d.is_head() { self.field_u64(d.dir_obj, LIVELIST)? } else { None };
        object.map(|o| self.deadlist_at(o)).transpose()
    }

    /// The list of old locations of a dataset's blocks on removed devices, if it has one
    /// (`dsl_dataset_get_remap_deadlist_object`).
    pub fn remap_deadlist(&self, d: &Dataset) -> Result<Option<Deadlist>> {
        let object = self.field_u64(d.ds_obj, REMAP_DEADLIST)?;
        object.map(|o| self.deadlist_at(o)).transpose()
    }

    /// Calls `f` for every entry of a deadlist or livelist. See [`bpobj::iterate`].
    pub fn iterate_deadlist(
        &self,
        list: &Deadlist,
        f: &mut dyn FnMut(&BpobjEntry) -> Result<()>,
    ) -> Result<()> {
        if list.is_plain {
            return bpobj::iterate(&self.mos, list.object, f);
        }
        list.lists.iter().try_for_each(|(_, bpobj)| bpobj::iterate(&self.mos, *bpobj, f))
    }

    /// Sizes of a deadlist's blocks that were born after `after` and not after `until`;
    /// both must be transaction groups of snapshots, or zero (`dsl_deadlist_space_range`).
    pub fn deadlist_range(&self, list: &Deadlist, after: u64, until: u64) -> Result<Sizes> {
        let mut sum = Sizes::default();
        if list.is_plain {
            bpobj::iterate(&self.mos, list.object, &mut |entry| {
                let birth = entry.bp.birth();
                if birth > after && birth <= until {
                    sum.add(self.sizes(&entry.bp));
                }
                Ok(())
            })?;
            return Ok(sum);
        }
        for (_, bpobj) in list.lists.iter().filter(|(t, _)| (after..until).contains(t)) {
            sum.add(bpobj_sizes(&self.mos, *bpobj)?);
        }
        Ok(sum)
    }

    /// Sizes of one block as space accounting counts it.
    fn sizes(&self, bp: &BlockPointer) -> Sizes {
        let vdevs = self.mos.store().vdevs().root().clone();
        let used = bp.dvas().map(|dva| {
            let vdev = vdevs.children().iter().find(|v| v.id() == u64::from(dva.vdev));
            vdev.map_or(0, |v| v.deflate(dva.asize))
        });
        let physical = if bp.is_embedded() { 0 } else { bp.psize() };
        // Metadata is charged by its physical size throughout.
        let metadata = bp.level() > 0 || DmuType(bp.object_type()).is_metadata();
        Sizes {
            used: used.fold(0, u64::wrapping_add),
            compressed: physical,
            uncompressed: if metadata { physical } else { bp.lsize() },
        }
    }
}
