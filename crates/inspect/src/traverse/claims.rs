//! Which allocated space has been accounted for (`zdb_leak_init`, `zdb_claim_blkptr`).
//!
//! [`Claims`] starts with everything that the space maps (and the log space maps) have as
//! allocated. Each block found by the traversal *claims* its space: takes it out. What cannot be
//! taken out was claimed before (two blocks share space) or is free according to the space maps;
//! what remains at the end is leaked. A removed vdev starts with what its mapping covers, and a
//! block on it claims both that and the space that the mapping leads to; what remains of the
//! mapping is obsolete and must agree with the counts kept on disk.
//!
//! Invariant: mapped space is looked up only after it was claimed, and space that is said to be
//! obsolete only once, so that all look-ups together take as long as the mapping and the lists are.

use cenote_dmu::zap::Zap;
use cenote_dmu::{Error, ObjectSet, Result};
use cenote_format::blkptr::Dva;
use cenote_format::spacemap::Change;
use cenote_pool::directory::Directory;
use cenote_pool::indirect::{Condensing, Mapping, Segment};
use cenote_pool::metaslab::{PoolSpace, VdevSpace};
use cenote_pool::spacemap::{Region, SpaceMap};
use cenote_store::rangetree::RangeTree;
use std::sync::Arc;

/// Space of one top-level vdev that no block has claimed yet.
struct VdevClaims {
    /// By metaslab; one tree for a removed vdev.
    allocated: Vec<RangeTree>,
    /// log2 of the bytes that a tree covers; `None` where one tree covers all of a removed vdev.
    shift: Option<u32>,
    ashift: u32,
    mapping: Option<Mapping>,
    /// Obsolete bytes by segment of the mapping, as the disk has them.
    obsolete: Vec<u64>,
    /// What of them is in lists and maps, not in counts.
    obsolete_ranges: RangeTree,
    /// Whether the obsolete counts must agree (`com.delphix:obsolete_counts_are_precise`).
    precise: bool,
}

/// Why a block could not claim its space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimError {
    /// No such vdev or metaslab.
    Nowhere,
    /// Some of it is free or was claimed by another block.
    NotAllocated,
    /// It is on a removed vdev, outside of its mapping.
    NotMapped,
}

/// Unclaimed space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leak {
    /// Top-level vdev.
    pub vdev: u64,
    /// Metaslab.
    pub metaslab: u64,
    /// First byte in the vdev.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// Obsolete space of a removed vdev that does not agree with the counts on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObsoleteMismatch {
    /// The removed vdev.
    pub vdev: u64,
    /// `(source offset, size, bytes found obsolete minus bytes counted)` of each such segment.
    pub segments: Vec<(u64, u64, i64)>,
    /// Sum of the differences.
    pub total: u128,
    /// Bytes in the mapping.
    pub mapped: u64,
    /// Whether the counts had to agree.
    pub precise: bool,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Claims {
    vdevs: Vec<VdevClaims>,
}

/// Bytes that are allocated according to free space `free` of `start..end`.
fn complement(free: &RangeTree, start: u64, end: u64) -> RangeTree {
    let mut allocated = RangeTree::new();
    let mut at = start;
    for (s, e) in free.iter().chain([(end, end)]) {
        if at < s {
            // Segments are sorted and disjoint, so the gaps between them are too.
            let _ = allocated.add(at, s);
        }
        at = e;
    }
    allocated
}

impl Claims {
    /// Everything allocated. `loading(vdev, metaslab, of)` is called before each metaslab.
    pub fn load(
        mos: &Arc<ObjectSet>,
        space: &PoolSpace,
        mappings: &[Option<Mapping>],
        loading: &mut dyn FnMut(&VdevSpace, u64, u64) -> Result<()>,
    ) -> Result<Claims> {
        let mut vdevs = Vec::new();
        for (v, mapping) in space.vdevs.iter().zip(mappings) {
            let mut claims = VdevClaims {
                allocated: Vec::new(),
                shift: v.concrete.then_some(v.metaslab_shift),
                ashift: v.ashift,
                mapping: None,
                obsolete: Vec::new(),
                obsolete_ranges: RangeTree::new(),
                precise: false,
            };
            if let Some(mapping) = mapping.as_ref().filter(|_| !v.concrete) {
                let mut tree = RangeTree::new();
                for s in &mapping.segments {
                    let added = tree.add(s.source, s.source + s.size);
                    added.map_err(|e| corrupt(mos, mapping.object, e.to_string()))?;
                }
                claims.allocated.push(tree);
                claims.load_obsolete(mos, v, mapping)?;
            }
            let count = v.metaslabs.len() as u64;
            for ms in &v.metaslabs {
                loading(v, ms.id, count)?;
                let free = PoolSpace::load_free(mos, v, ms)?;
                claims.allocated.push(complement(&free, ms.start, ms.start + ms.size));
            }
            vdevs.push(claims);
        }
        Ok(Claims { vdevs })
    }

    /// Takes the space that only a checkpoint holds out of the vdev's; the bytes.
    pub fn exclude_checkpoint(&mut self, mos: &Arc<ObjectSet>, v: &VdevSpace) -> Result<u64> {
        let mut sum = 0;
        if v.checkpoint_map != 0 {
            let map = SpaceMap::open(mos, v.checkpoint_map, Region::new(0, v.asize, v.ashift))?;
            map.for_each(&mut |c| {
                self.take(v.id, c.start, c.end).map_err(|e| {
                    let why = format!("checkpoint: {:#x}-{:#x}: {e:?}", c.start, c.end);
                    corrupt(mos, v.checkpoint_map, why)
                })?;
                sum += c.end - c.start;
                Ok(())
            })?;
        }
        Ok(sum)
    }

    /// The tree that holds byte `offset` of `vdev`.
    fn tree(&mut self, vdev: u64, offset: u64) -> std::result::Result<&mut RangeTree, ClaimError> {
        let v = usize::try_from(vdev).ok().and_then(|i| self.vdevs.get_mut(i));
        let v = v.ok_or(ClaimError::Nowhere)?;
        let index = v.shift.map_or(Some(0), |shift| offset.checked_shr(shift));
        let index = index.and_then(|index| usize::try_from(index).ok());
        let tree = index.and_then(|i| v.allocated.get_mut(i));
        tree.ok_or(ClaimError::Nowhere)
    }

    fn take(&mut self, vdev: u64, start: u64, end: u64) -> std::result::Result<(), ClaimError> {
        self.tree(vdev, start)?.remove(start, end).map_err(|_| ClaimError::NotAllocated)
    }

    /// Claims `size` bytes at `offset` of `vdev`; on a removed vdev, also what they are mapped to.
    pub fn claim(
        &mut self,
        vdev: u64,
        offset: u64,
        size: u64,
    ) -> std::result::Result<(), ClaimError> {
        let end = offset.checked_add(size).ok_or(ClaimError::Nowhere)?;
        let pieces = self.take_mapped(vdev, offset, end)?;
        self.claim_pieces(pieces)
    }

    /// Takes `start..end` out of `vdev`; where it is mapped to, if the vdev was removed.
    fn take_mapped(
        &mut self,
        vdev: u64,
        start: u64,
        end: u64,
    ) -> std::result::Result<Vec<(usize, Segment)>, ClaimError> {
        let taken = self.take(vdev, start, end);
        let mapping = usize::try_from(vdev).ok().and_then(|i| self.vdevs.get(i)?.mapping.as_ref());
        match (taken, mapping) {
            (taken, None) => taken.map(|()| Vec::new()),
            (Ok(()), Some(m)) => m.pieces(start, end).ok_or(ClaimError::NotMapped),
            (Err(_), Some(m)) if !m.has_ends_of(start, end) => Err(ClaimError::NotMapped),
            (Err(why), Some(_)) => Err(why),
        }
    }

    /// Claims the destinations of mapped space. A destination may itself have been removed since,
    /// so this is a worklist; each step claims, hence it ends.
    fn claim_pieces(
        &mut self,
        mut todo: Vec<(usize, Segment)>,
    ) -> std::result::Result<(), ClaimError> {
        while let Some((_, s)) = todo.pop() {
            todo.extend(self.take_mapped(s.vdev.into(), s.offset, s.offset + s.size)?);
        }
        Ok(())
    }

    /// Claims the space of a copy; `size` is that of its gang header if it is a gang block.
    pub fn claim_copy(&mut self, dva: &Dva, size: u64) -> std::result::Result<(), ClaimError> {
        self.claim(u64::from(dva.vdev), dva.offset, size)
    }

    /// Counts a freed block on a removed vdev, whose space is obsolete from now on.
    pub fn add_obsolete(&mut self, dva: &Dva) {
        if let Some(v) = self.vdevs.get_mut(dva.vdev as usize)
            && let Some(mapping) = &v.mapping
            && let Some(end) = dva.offset.checked_add(dva.asize)
            && v.obsolete_ranges.add(dva.offset, end).is_ok()
        {
            mapping.add_obsolete(&mut v.obsolete, dva.offset, end);
        }
    }

    /// Claims what a removal that is under way has copied: the space of `v` that is still
    /// allocated and mapped already exists a second time where the mapping leads; the bytes.
    pub fn claim_removing(
        &mut self,
        mos: &Arc<ObjectSet>,
        v: &VdevSpace,
        mapping: &Mapping,
    ) -> Result<u64> {
        let mut sum = 0;
        for ms in &v.metaslabs {
            let free = PoolSpace::load_free(mos, v, ms)?;
            for (s, e) in complement(&free, ms.start, ms.start + ms.size).iter() {
                let e = e.min(mapping.max_offset);
                if s >= e {
                    continue;
                }
                let pieces = mapping.pieces(s, e).ok_or(ClaimError::NotMapped);
                pieces.and_then(|p| self.claim_pieces(p)).map_err(|why| {
                    corrupt(mos, mapping.object, format!("{s:#x}-{e:#x}: {why:?}"))
                })?;
                sum += e - s;
            }
        }
        Ok(sum)
    }

    /// Unclaimed space, by vdev, metaslab and offset.
    pub fn leaks(&self) -> Vec<Leak> {
        let mut leaks = Vec::new();
        for (vdev, v) in (0..).zip(&self.vdevs).filter(|(_, v)| v.mapping.is_none()) {
            for (metaslab, tree) in (0..).zip(&v.allocated) {
                leaks.extend(tree.iter().map(|(s, e)| Leak {
                    vdev,
                    metaslab,
                    offset: s,
                    size: e - s,
                }));
            }
        }
        leaks
    }

    /// Removed vdevs whose obsolete space differs from its counts.
    pub fn obsolete_mismatches(&self) -> Vec<ObsoleteMismatch> {
        let mut out = Vec::new();
        for (vdev, v) in (0..).zip(&self.vdevs) {
            let (Some(mapping), Some(tree)) = (&v.mapping, v.allocated.first()) else { continue };
            let mut tree = tree.clone();
            let mut mismatch = ObsoleteMismatch {
                vdev,
                segments: Vec::new(),
                total: 0,
                mapped: mapping.bytes_mapped,
                precise: v.precise,
            };
            for (s, counted) in mapping.segments.iter().zip(&v.obsolete) {
                // Only whole allocation units count, as the counts are made of whole blocks.
                let found = tree.clear(s.source, s.source + s.size) >> v.ashift << v.ashift;
                // Neither is as large as that it would not fit: a segment, and what `Mapping::add_obsolete` counts.
                let diff = found.cast_signed() - counted.cast_signed();
                if diff != 0 {
                    mismatch.segments.push((s.source, s.size, diff));
                    mismatch.total += u128::from(diff.unsigned_abs());
                }
            }
            if mismatch.total != 0 {
                out.push(mismatch);
            }
        }
        out
    }
}

impl VdevClaims {
    /// The obsolete counts of a removed vdev: the mapping's, plus its obsolete space map's.
    fn load_obsolete(
        &mut self,
        mos: &Arc<ObjectSet>,
        v: &VdevSpace,
        mapping: &Mapping,
    ) -> Result<()> {
        let mut counts = mapping.counts(mos)?;
        let mut maps = Vec::new();
        if v.top_zap != 0 {
            let zap = Zap::open(&mos.object(v.top_zap)?)?;
            maps.extend(zap.u64(b"com.delphix:indirect_obsolete_sm")?);
            self.precise = zap.u64(b"com.delphix:obsolete_counts_are_precise")?.unwrap_or(0) != 0;
        }
        // A condensing that was interrupted keeps the map that it was working from.
        let condensing = Condensing::find(&Directory::open(mos)?)?;
        let condensing = condensing.filter(|c| c.vdev == v.id && c.obsolete_map != 0);
        maps.extend(condensing.map(|c| c.obsolete_map));
        for number in maps {
            let map = SpaceMap::open(mos, number, Region::new(0, v.asize, 0))?;
            map.for_each(&mut |c| {
                let bad = |why: &str| {
                    let range = format!("{:#x}-{:#x}", c.start, c.end);
                    Err(corrupt(mos, number, format!("obsolete space {range} {why}")))
                };
                if c.change == Change::Free {
                    return bad("is freed");
                }
                if let Err(e) = self.obsolete_ranges.add(c.start, c.end) {
                    return bad(&e.to_string());
                }
                if !mapping.add_obsolete(&mut counts, c.start, c.end) {
                    return bad("is not mapped");
                }
                Ok(())
            })?;
        }
        self.obsolete = counts;
        self.mapping = Some(mapping.clone());
        Ok(())
    }
}

fn corrupt(mos: &ObjectSet, object: u64, why: String) -> Error {
    Error::Corrupt { objset: mos.id(), object, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Claims {
        let mut a = RangeTree::new();
        a.add(0, 0x4000).unwrap();
        let mut b = RangeTree::new();
        b.add(0x10000, 0x11000).unwrap();
        let mapping = Mapping {
            object: 1,
            max_offset: 0x1000,
            bytes_mapped: 0x1000,
            counts_object: 0,
            segments: vec![Segment { source: 0, size: 0x1000, vdev: 0, offset: 0x10000 }],
        };
        let mut c = RangeTree::new();
        c.add(0, 0x1000).unwrap();
        let vdev = |allocated, shift, mapping: Option<Mapping>| VdevClaims {
            allocated,
            shift,
            ashift: 9,
            obsolete: vec![0; mapping.as_ref().map_or(0, |m| m.segments.len())],
            obsolete_ranges: RangeTree::new(),
            mapping,
            precise: true,
        };
        Claims { vdevs: vec![vdev(vec![a, b], Some(16), None), vdev(vec![c], None, Some(mapping))] }
    }

    #[test]
    fn space_is_claimed_once() {
        let mut c = claims();
        assert_eq!(c.claim(0, 0x1000, 0x1000), Ok(()));
        assert_eq!(c.claim(0, 0x1800, 0x1000), Err(ClaimError::NotAllocated));
        assert_eq!(c.claim(0, 0x20000, 0x200), Err(ClaimError::Nowhere));
        assert_eq!(c.claim(7, 0, 0x200), Err(ClaimError::Nowhere));
        assert_eq!(c.claim(0, u64::MAX - 5, 0x200), Err(ClaimError::Nowhere));
        let sizes: Vec<u64> = c.leaks().iter().map(|l| l.size).collect();
        assert_eq!(sizes, [0x1000, 0x2000, 0x1000]);
    }

    #[test]
    fn a_shift_that_no_metaslab_can_have_leads_nowhere() {
        let mut c = claims();
        c.vdevs[0].shift = Some(64);
        assert_eq!(c.claim(0, 0x1000, 0x1000), Err(ClaimError::Nowhere));
    }

    #[test]
    fn removed_space_claims_its_destination() {
        let mut c = claims();
        assert_eq!(c.claim(1, 0x200, 0x400), Ok(()));
        assert_eq!(c.claim(0, 0x10200, 0x200), Err(ClaimError::NotAllocated));
        assert_eq!(c.claim(1, 0xe00, 0x400), Err(ClaimError::NotMapped));
        let mismatch = c.obsolete_mismatches();
        assert_eq!((mismatch.len(), mismatch[0].total), (1, 0xc00));
        assert!(c.leaks().iter().all(|l| l.vdev == 0));
    }

    #[test]
    fn complement_of_free_space() {
        let mut free = RangeTree::new();
        free.add(0x10, 0x20).unwrap();
        free.add(0x30, 0x40).unwrap();
        let got: Vec<_> = complement(&free, 0, 0x40).iter().collect();
        assert_eq!(got, [(0, 0x10), (0x20, 0x30)]);
    }
}
