//! Mappings of removed vdevs made shorter, by what is obsolete of them (`spa_condense_indirect_start_sync`).
//!
//! A piece of a mapping of which every byte is obsolete is of no use. The new mapping has the others; beside it stand
//! how many bytes of each are obsolete (the *counts*), and the obsolete space map goes. That is worth it when much is
//! obsolete ([`is_worth_it`]), which is looked at in each group after one in which more became obsolete. One vdev's
//! mapping is made shorter in a group.
//!
//! OpenZFS does it over many groups, and notes in the object directory how far it got. Here it is done within one
//! group: all is read first, and what cannot be read leaves the mapping as it is. What OpenZFS has begun is done anew
//! from the same obsolete space map, in the first group after the import; its new mapping goes. What became obsolete
//! since then is in a space map of its own, which stays.
//!
//! A pointer to what was freed leads nowhere then. So nothing is made shorter while a reader is active that began
//! before the last group was on disk.

use super::SpaceMaps;
use super::map::{DIRECTORY_OBJECT, Maps, feature_uses, zap_u64};
use super::obsolete::{FEATURE, MAP, Removed};
use crate::features::count_feature;
use crate::tunables::{
    CONDENSE_INDIRECT_OBSOLETE_PCT, CONDENSE_INDIRECT_VDEVS_ENABLE, CONDENSE_MAX_OBSOLETE_BYTES,
    CONDENSE_MIN_MAPPING_BYTES,
};
use cenote_dmu::outside::Outside;
use cenote_dmu::write::{NewObject, OpenObjectSet, WriteError, ZapMut};
use cenote_dmu::{Error, ObjectSet};
use cenote_dsl::write::{Result, Tx, features};
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::Key;
use cenote_format::invariant::broken;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::spacemap::Change;
use cenote_format::{invariant, less};
use cenote_pool::config;
use cenote_pool::directory::Directory;
use cenote_pool::indirect::{Condensing, Header, Mapping, Segment};
use cenote_pool::spacemap::{Region, SpaceMap};
use std::sync::Arc;

/// Entry of a removed vdev's config (`ZPOOL_CONFIG_INDIRECT_OBJECT`).
const OBJECT: &str = "com.delphix:indirect_object";
/// 64-bit and 32-bit integers of metadata (`DMU_OTN_UINT64_METADATA`, `DMU_OTN_UINT32_METADATA`).
pub(super) const WORDS: DmuType = DmuType(0xc3);
pub(super) const HALF_WORDS: DmuType = DmuType(0xc2);
/// Bytes of a block of either (`SPA_OLD_MAXBLOCKSIZE`).
pub(super) const BLOCK: u64 = 128 << 10;

/// A mapping that was made shorter.
pub struct Shorter {
    /// The vdev.
    pub vdev: u64,
    /// Pieces that it has less.
    pub less: u64,
    /// What it is now.
    pub mapping: Mapping,
}

/// The mapping to be made shorter, as it is on disk.
struct Found {
    vdev: u64,
    removed: Removed,
    object: u64,
    /// The obsolete space map.
    map: u64,
    /// What OpenZFS has begun.
    begun: Option<Condensing>,
}

/// Whether much of a mapping is obsolete (`vdev_indirect_should_condense`).
fn is_worth_it(header: &Header, map: &SpaceMap) -> bool {
    let (alloc, length) = (u64::try_from(map.phys().alloc).unwrap_or(0), map.phys().length);
    let percent = (u128::from(alloc) * 100).checked_div(header.bytes_mapped.into()).unwrap_or(0);
    let bytes = header.entries.saturating_mul(Mapping::ENTRY_SIZE);
    percent >= CONDENSE_INDIRECT_OBSOLETE_PCT.get().into()
        && bytes > CONDENSE_MIN_MAPPING_BYTES.get()
        || length >= CONDENSE_MAX_OBSOLETE_BYTES.get()
}

impl SpaceMaps {
    /// Makes the mapping of a removed vdev shorter, if that is worth it for one. `vdevs` is the pool's vdev tree as
    /// the config has it, which is changed then. To be called before anything is obsolete in this group.
    ///
    /// Errors: the group cannot be written.
    pub fn condense_mapping(
        &mut self,
        tx: &mut Tx<'_>,
        outside: &Outside,
        vdevs: &mut NvList,
    ) -> Result<Option<Shorter>> {
        if self.removed.is_empty() || !std::mem::take(&mut self.obsolete_grew) {
            return Ok(None);
        }
        if feature_uses(tx.mos, FEATURE)?.is_none() {
            return Ok(None);
        }
        let what = "the mapping of a removed vdev is not made shorter";
        let done = tx.unless_unreadable(what, |tx| {
            let Some(found) = self.find(tx, vdevs)? else { return Ok(None) };
            Ok(Some((found.vdev, shorten(tx, outside, &found)?)))
        });
        let Some((vdev, (mapping, less))) = done?.flatten() else { return Ok(None) };
        // There may be another one.
        self.obsolete_grew = true;
        if let Some(config) = config_of(vdevs, vdev) {
            config.set(OBJECT, NvValue::Uint64(mapping.object));
        }
        Ok(Some(Shorter { vdev, less, mapping }))
    }

    /// The first mapping to be made shorter.
    fn find(&self, tx: &mut Tx<'_>, vdevs: &NvList) -> Result<Option<Found>> {
        let mos = tx.mos.synced().clone();
        let begun = read(Directory::open(&mos).and_then(|directory| Condensing::find(&directory)))?;
        let enabled = CONDENSE_INDIRECT_VDEVS_ENABLE.is_on();
        for (vdev, removed) in self.removed.iter().map(|(id, removed)| (*id, *removed)) {
            if self.evacuation().is_some_and(|evacuation| evacuation.vdev == vdev) {
                continue;
            }
            let of_it = begun.filter(|begun| begun.vdev == vdev);
            if of_it.is_none() && (begun.is_some() || !enabled) || removed.top_zap == 0 {
                continue;
            }
            let map = match of_it {
                Some(begun) => Some(begun.obsolete_map),
                None => zap_u64(tx.mos, removed.top_zap, MAP)?,
            };
            let config = usize::try_from(vdev).ok().and_then(|at| config::children(vdevs).get(at));
            let object = config.and_then(|config| config.u64(OBJECT)).filter(|n| *n != 0);
            let (Some(map), Some(object)) = (map.filter(|map| *map != 0), object) else { continue };
            let header = read(Header::load(&mos, object))?;
            let region = Region::new(0, removed.asize, 0);
            if of_it.is_some() || is_worth_it(&header, &read(SpaceMap::open(&mos, map, region))?) {
                return Ok(Some(Found { vdev, removed, object, map, begun: of_it }));
            }
        }
        Ok(None)
    }
}

fn read<T>(done: std::result::Result<T, Error>) -> Result<T> {
    Ok(done.map_err(WriteError::Read)?)
}

/// The config of a top-level vdev.
pub(crate) fn config_of(vdevs: &mut NvList, vdev: u64) -> Option<&mut NvList> {
    match vdevs.pairs.iter_mut().find(|(name, _)| name == "children")? {
        (_, NvValue::NvListArray(tops)) => tops.get_mut(usize::try_from(vdev).ok()?),
        _ => None,
    }
}

/// Puts a shorter mapping in the place of one; how many pieces it has less.
fn shorten(tx: &mut Tx<'_>, outside: &Outside, found: &Found) -> Result<(Mapping, u64)> {
    let mos = tx.mos.synced().clone();
    let old = read(Mapping::load(&mos, found.object))?;
    let counts = read(obsolete(&mos, &old, found))?;
    let next = match found.begun.map(|begun| begun.next).filter(|next| *next != 0) {
        Some(next) => Some((next, read(Header::load(&mos, next))?.counts_object)),
        None => None,
    };
    let all = old.segments.iter().copied().zip(counts);
    let (kept, counts): (Vec<Segment>, Vec<u64>) = all.filter(|(s, n)| *n < s.size).unzip();
    let less = less!(old.segments.len(), kept.len(), "pieces of mapping {}", old.object) as u64;
    let new = write(tx, kept, &counts)?;
    for (object, counts_object) in [(old.object, old.counts_object)].into_iter().chain(next) {
        tx.mos.free(object)?;
        if counts_object != 0 {
            tx.mos.free(counts_object)?;
            features::decrement(tx, FEATURE)?;
        }
    }
    let (zap, entry) = match found.begun {
        Some(_) => (DIRECTORY_OBJECT, Condensing::ENTRY),
        None => (found.removed.top_zap, MAP),
    };
    ZapMut::open(tx.mos, zap).remove(&Key::Name(entry.as_bytes()))?;
    let txg = tx.txg;
    let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
        count_feature(mos, txg, outside, guid, delta)
    };
    let mut maps = Maps::open(tx.mos, txg, 1, &mut count)?;
    maps.free(found.map)?;
    maps.count(FEATURE, -1)?;
    Ok((new, less))
}

/// Obsolete bytes of each piece, by the counts and the obsolete space map.
fn obsolete(
    mos: &Arc<ObjectSet>,
    mapping: &Mapping,
    found: &Found,
) -> std::result::Result<Vec<u64>, Error> {
    let mut counts = mapping.counts(mos)?;
    let corrupt = |why: String| Error::Corrupt { objset: mos.id(), object: found.map, why };
    let map = SpaceMap::open(mos, found.map, Region::new(0, found.removed.asize, 0))?;
    map.for_each(&mut |c| {
        let (start, end) = (c.start, c.end);
        match c.change {
            Change::Alloc if mapping.add_obsolete(&mut counts, start, end) => Ok(()),
            _ => Err(corrupt(format!("obsolete space {start:#x}-{end:#x} is not mapped"))),
        }
    })?;
    // What stays is counted in 32 bits. Another system may have made a piece larger than that.
    let bad = |(s, n): &(&Segment, &u64)| **n > s.size || **n < s.size && **n > u32::MAX.into();
    match mapping.segments.iter().zip(&counts).find(bad) {
        Some((s, n)) => Err(corrupt(format!("{n} of {} bytes from {:#x}", s.size, s.source))),
        None => Ok(counts),
    }
}

/// Writes a mapping with its counts (`vdev_indirect_mapping_alloc`, `vdev_indirect_mapping_add_entries`).
fn write(tx: &mut Tx<'_>, segments: Vec<Segment>, counts: &[u64]) -> Result<Mapping> {
    let counts_object = tx.mos.allocate(&NewObject::new(HALF_WORDS, BLOCK))?;
    features::increment(tx, FEATURE)?;
    // They lie behind each other, and each was checked to end before the last number.
    let max_offset = segments.last().map_or(0, |s| s.source + s.size);
    let bytes_mapped: u64 = segments.iter().map(|s| s.size).sum();
    let head = [max_offset, bytes_mapped, segments.len() as u64, counts_object];
    let object = tx.mos.allocate(&NewObject {
        bonus_kind: WORDS,
        bonus: head.iter().flat_map(|word| word.to_le_bytes()).collect(),
        ..NewObject::new(WORDS, BLOCK)
    })?;
    let entries: Vec<u8> =
        segments.iter().flat_map(Segment::encode).flat_map(u64::to_le_bytes).collect();
    let mut words = Vec::with_capacity(counts.len() * 4);
    for count in counts {
        match u32::try_from(*count) {
            Ok(count) => words.extend(count.to_le_bytes()),
            Err(_) => {
                broken(format_args!("mapping {object}: {count} bytes of a piece are obsolete"))
            }
        }
    }
    let (pieces, of) = (segments.len(), counts.len());
    invariant!(pieces == of, "mapping {object}: {of} counts for {pieces} pieces");
    tx.mos.write(object, 0, &entries)?;
    tx.mos.write(counts_object, 0, &words)?;
    Ok(Mapping { object, max_offset, bytes_mapped, counts_object, segments })
}
