//! The map of free space: every metaslab with what is allocated in it, how its free space is cut up,
//! and, on request, whose blocks it holds.
//!
//! A [`SpaceMapReport`] is plain data: it can be written to a file and compared with a later one, or
//! be made from figures that are known or predicted ([`MetaslabMap::new`],
//! [`MetaslabMap::with_free_segments`]). [`SpaceMapReport::of`] takes it from a pool.
//!
//! | figure | from |
//! |---|---|
//! | allocated, free | the space map's header and the unflushed changes of log space maps: exact |
//! | free segments, largest, fragmentation | the histogram in the space map's header; where there are unflushed changes, the segments themselves: in memory if the pool is in use, else replayed |
//! | fragmentation of vdevs and the pool | headers, as `zpool list` has it |
//! | owners | a traversal of every block pointer ([`owners`]) |
//!
//! A pool that is in use is looked at as one transaction group left it ([`InUse`]): nothing that this
//! group leads to is overwritten meanwhile.
//!
//! Invariants of a report, which [`SpaceMapReport::check`] looks for in one that was read from a
//! file: in every metaslab allocated and free bytes add up to its size; ids of vdevs and of a vdev's
//! metaslabs ascend; shares name owners that are listed.

mod in_use;
pub mod owners;

pub use in_use::InUse;

use cenote_dmu::Result;
use cenote_pool::Pool;
use cenote_pool::metaslab::stats::fragmentation_of;
use cenote_pool::metaslab::{AllocClass, Metaslab, PoolSpace, VdevSpace};
use cenote_pool::status::{NameStyle, vdev_name};
use cenote_store::histogram::Histogram;
use owners::Owners;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Version of the report; another one is not read.
pub const VERSION: u32 = 1;
/// A free metaslab is spoiled if all of its free segments are smaller than `1 <<` this: 128 KiB, a
/// record of the default size.
pub const SPOILED_SHIFT: u32 = 17;

/// The space of a pool, metaslab by metaslab.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceMapReport {
    /// [`VERSION`].
    pub version: u32,
    /// Name of the pool.
    pub pool: String,
    /// Its guid.
    pub guid: u64,
    /// The transaction group that the figures are of.
    pub txg: u64,
    /// When that was written, seconds since 1970.
    pub time: u64,
    /// Fragmentation of the pool's normal class, 0 to 100, as `zpool list` has it.
    pub fragmentation: Option<u64>,
    /// The top-level vdevs that have space, by id.
    pub vdevs: Vec<VdevMap>,
    /// Whose blocks there are; `None` if that was not asked for.
    pub owners: Option<Owners>,
}

/// The space of one top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VdevMap {
    /// Its id.
    pub id: u64,
    /// Name of its layout as `zpool status` has it: `raidz2-0`; a single device's path.
    pub name: String,
    /// What the space is for.
    pub class: AllocClass,
    /// log2 of the smallest allocation.
    pub ashift: u32,
    /// log2 of the bytes of a metaslab.
    pub metaslab_shift: u32,
    /// Fragmentation, 0 to 100, as `zpool list -v` has it.
    pub fragmentation: Option<u64>,
    /// The metaslabs, by id.
    pub metaslabs: Vec<MetaslabMap>,
}

/// One metaslab.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaslabMap {
    /// Its id in the vdev.
    pub id: u64,
    /// First byte in the vdev's allocatable space.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes allocated, unflushed changes included.
    pub allocated: u64,
    /// Bytes free, unflushed changes included.
    pub free: u64,
    /// 0 to 100; `None` if unknown.
    pub fragmentation: Option<u64>,
    /// log2 of the bytes of the largest free segments; `None` without free segments, or if it is unknown.
    pub largest: Option<u32>,
    /// Free segments by size: `(log2 of the bytes, how many)`, ascending, without zeros.
    pub segments: Vec<(u32, u64)>,
    /// Changes that only log space maps have.
    pub unflushed: UnflushedMap,
    /// Whether the free space is in memory (of a pool that is imported for writing).
    pub loaded: bool,
    /// Whether it is kept for the intent log.
    pub embedded_log: bool,
    /// Whose blocks are in it, most bytes first.
    pub owners: Vec<Share>,
}

/// Bytes of unflushed changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnflushedMap {
    /// Allocated.
    pub allocated: u64,
    /// Freed.
    pub freed: u64,
}

/// What one owner has in a metaslab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Index in [`Owners::list`].
    pub owner: u32,
    /// Bytes.
    pub bytes: u64,
}

impl MetaslabMap {
    /// A metaslab of which no more is known than what is allocated: at most `size`.
    pub fn new(id: u64, offset: u64, size: u64, allocated: u64) -> MetaslabMap {
        let allocated = allocated.min(size);
        MetaslabMap { id, offset, size, allocated, free: size - allocated, ..Default::default() }
    }

    /// The same with its free segments, and what follows from them.
    pub fn with_free_segments(mut self, free: &Histogram) -> MetaslabMap {
        let counts = (0u32..).zip(free.counts());
        self.segments = counts.filter(|(_, n)| **n > 0).map(|(i, n)| (i, *n)).collect();
        self.largest = self.segments.last().map(|(i, _)| *i);
        self.fragmentation = Some(fragmentation_of(free));
        self
    }

    /// Percentage that is free, rounded down.
    pub fn free_percent(&self) -> u64 {
        percent(self.free, self.size)
    }

    /// Whether there is free space, but only in pieces that do not hold a record of the default
    /// size.
    pub fn is_spoiled(&self) -> bool {
        self.free > 0 && self.largest.is_some_and(|shift| shift < SPOILED_SHIFT)
    }

    /// Bytes of `owner`'s.
    pub fn owned_by(&self, owner: u32) -> u64 {
        let shares = self.owners.iter().filter(|s| s.owner == owner);
        shares.map(|s| s.bytes).sum()
    }

    /// Bytes that are allocated and that no owner was found for: none, where owners have more than the space maps say is allocated.
    pub fn unaccounted(&self) -> u64 {
        let owned = self.owners.iter().map(|s| s.bytes).sum();
        self.allocated.saturating_sub(owned)
    }
}

/// `part` of `whole` in percent, rounded down; 0 of nothing.
pub fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100).checked_div(u128::from(whole)).unwrap_or(0) as u64
}

impl VdevMap {
    /// Bytes allocated and bytes in all.
    pub fn usage(&self) -> (u64, u64) {
        self.metaslabs
            .iter()
            .fold((0u64, 0u64), |(alloc, size), m| (alloc + m.allocated, size + m.size))
    }
}

impl SpaceMapReport {
    /// The map of a pool as its last transaction group left it, without owners.
    ///
    /// # Errors
    /// The space maps cannot be read.
    pub fn of(pool: &Pool) -> Result<SpaceMapReport> {
        SpaceMapReport::knowing(pool, &HashMap::new())
    }

    /// The same; the free segments of some metaslabs, `(vdev, metaslab)`, are known.
    fn knowing(pool: &Pool, free: &HashMap<(u64, u64), Histogram>) -> Result<SpaceMapReport> {
        let loaded;
        let space = match pool.space() {
            Some(space) => space,
            None => {
                loaded = PoolSpace::load(pool.mos(), pool.config())?;
                &loaded
            }
        };
        let configs = pool.config().list("vdev_tree").and_then(|t| t.lists("children"));
        let configs = configs.unwrap_or_default();
        let name = |v: &VdevSpace| {
            let config = usize::try_from(v.id).ok().and_then(|i| configs.get(i));
            config.map_or_else(|| v.kind.clone(), |c| vdev_name(c, &NameStyle::default()))
        };
        let mut vdevs = Vec::new();
        for v in space.vdevs.iter().filter(|v| v.concrete && !v.metaslabs.is_empty()) {
            vdevs.push(of_vdev(pool, v, name(v), free)?);
        }
        Ok(SpaceMapReport {
            version: VERSION,
            pool: pool.name().to_string(),
            guid: pool.guid(),
            txg: pool.uberblock().txg,
            time: pool.uberblock().timestamp,
            fragmentation: space.pool().fragmentation,
            vdevs,
            owners: None,
        })
    }

    /// All metaslabs.
    pub fn metaslabs(&self) -> impl Iterator<Item = &MetaslabMap> {
        self.vdevs.iter().flat_map(|v| &v.metaslabs)
    }

    /// The vdev `id`.
    pub fn vdev(&self, id: u64) -> Option<&VdevMap> {
        self.vdevs.iter().find(|v| v.id == id)
    }

    /// Bytes allocated and bytes in all, of all vdevs.
    pub fn usage(&self) -> (u64, u64) {
        self.vdevs.iter().map(VdevMap::usage).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }

    /// Free segments by size of all metaslabs.
    pub fn segments(&self) -> Histogram {
        let mut counts = [0u64; 64];
        for (shift, n) in self.metaslabs().flat_map(|m| &m.segments) {
            if let Some(slot) = counts.get_mut(*shift as usize) {
                *slot += *n;
            }
        }
        Histogram::from_shifted(&counts, 0)
    }

    /// Index of the owner called `name`.
    pub fn owner(&self, name: &str) -> Option<u32> {
        let list = &self.owners.as_ref()?.list;
        list.iter().position(|o| o.name == name).map(|i| i as u32)
    }

    /// Whether a report from elsewhere is one; why not.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> std::result::Result<(), String> {
        if self.version != VERSION {
            return Err(format!("version {} instead of {VERSION}", self.version));
        }
        let owners = self.owners.as_ref().map_or(0, |o| o.list.len());
        if !self.vdevs.is_sorted_by(|a, b| a.id < b.id) {
            return Err("vdevs are out of order".into());
        }
        for v in &self.vdevs {
            let bad = |m: &MetaslabMap, why: &str| {
                Err(format!("vdev {}, metaslab {}: {why}", v.id, m.id))
            };
            if !v.metaslabs.is_sorted_by(|a, b| a.id < b.id) {
                return Err(format!("vdev {}: metaslabs are out of order", v.id));
            }
            for m in &v.metaslabs {
                if m.allocated.checked_add(m.free) != Some(m.size) {
                    return bad(m, "allocated and free bytes are not its size");
                }
                if m.offset.checked_add(m.size).is_none() {
                    return bad(m, "it ends nowhere");
                }
                if m.segments.iter().any(|(shift, _)| *shift >= 64)
                    || m.largest.is_some_and(|shift| shift >= 64)
                {
                    return bad(m, "free segments of more than 64 bits");
                }
                if m.owners.iter().any(|s| s.owner as usize >= owners) {
                    return bad(m, "an owner that is not listed");
                }
            }
        }
        Ok(())
    }
}

fn of_vdev(
    pool: &Pool,
    v: &VdevSpace,
    name: String,
    free: &HashMap<(u64, u64), Histogram>,
) -> Result<VdevMap> {
    let metaslabs = v.metaslabs.iter().map(|m| of_metaslab(pool, v, m, free.get(&(v.id, m.id))));
    Ok(VdevMap {
        id: v.id,
        name,
        class: v.class,
        ashift: v.ashift,
        metaslab_shift: v.metaslab_shift,
        fragmentation: v.fragmentation(),
        metaslabs: metaslabs.collect::<Result<_>>()?,
    })
}

fn of_metaslab(
    pool: &Pool,
    v: &VdevSpace,
    m: &Metaslab,
    free: Option<&Histogram>,
) -> Result<MetaslabMap> {
    let mut map = MetaslabMap::new(m.id, m.start, m.size, v.alloc_of(m));
    match &m.header {
        // Nothing was ever written to its space map: it is one free segment.
        None => {
            let mut whole = Histogram::default();
            whole.add(m.size);
            map = map.with_free_segments(&whole);
        }
        Some(header) => {
            if let Some(counts) = header.histogram {
                map = map.with_free_segments(&Histogram::from_shifted(&counts, v.ashift));
            }
        }
    }
    // Where the pool keeps no histograms, fragmentation is not known of any metaslab.
    map.fragmentation = m.fragmentation;
    map.embedded_log = m.embedded_log;
    if let Some(unflushed) = v.unflushed.get(&m.id) {
        map.unflushed =
            UnflushedMap { allocated: unflushed.allocs.space(), freed: unflushed.frees.space() };
        // The header is of the metaslab's last flush.
        map = match free {
            Some(free) => map.with_free_segments(free),
            None => {
                let free = PoolSpace::load_free(pool.mos(), v, m)?;
                map.with_free_segments(&free.histogram())
            }
        };
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(metaslabs: Vec<MetaslabMap>) -> SpaceMapReport {
        let vdev = VdevMap {
            id: 3,
            name: "mirror-3".into(),
            class: AllocClass::Normal,
            ashift: 12,
            metaslab_shift: 24,
            fragmentation: None,
            metaslabs,
        };
        SpaceMapReport { version: VERSION, vdevs: vec![vdev], ..SpaceMapReport::default() }
    }

    #[test]
    fn what_follows_from_free_segments() {
        let mut free = Histogram::default();
        (0..16).for_each(|_| free.add(65536));
        let m = MetaslabMap::new(0, 0, 2 << 20, 1 << 20).with_free_segments(&free);
        assert_eq!((m.free, m.free_percent(), m.largest), (1 << 20, 50, Some(16)));
        assert_eq!((m.fragmentation, m.is_spoiled()), (Some(71), true));
        free.add(128 << 10);
        assert!(!m.with_free_segments(&free).is_spoiled());
        let full = MetaslabMap::new(0, 0, 1 << 20, u64::MAX);
        assert_eq!((full.allocated, full.free, full.is_spoiled()), (1 << 20, 0, false));
    }

    #[test]
    fn a_report_that_cannot_be_is_refused() {
        let good = MetaslabMap::new(1, 16 << 20, 16 << 20, 5);
        assert_eq!(report(vec![good.clone()]).check(), Ok(()));
        let mut unversioned = report(vec![]);
        unversioned.version = 9;
        let sums = MetaslabMap { free: 7, ..good.clone() };
        let owner = MetaslabMap { owners: vec![Share { owner: 0, bytes: 1 }], ..good.clone() };
        let far = MetaslabMap { offset: u64::MAX, ..good.clone() };
        let sizes = MetaslabMap { segments: vec![(64, 1)], ..good.clone() };
        for (bad, why) in [
            (unversioned, "version"),
            (report(vec![sums]), "not its size"),
            (report(vec![owner]), "not listed"),
            (report(vec![far]), "ends nowhere"),
            (report(vec![sizes]), "64 bits"),
            (report(vec![good.clone(), good]), "out of order"),
        ] {
            assert!(bad.check().unwrap_err().contains(why), "{why}");
        }
    }
}
