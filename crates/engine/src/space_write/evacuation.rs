//! The mapping of a vdev that is being removed, while its space is copied (`vdev_indirect_mapping_add_entries`,
//! `vdev_indirect_births_add_entry`).
//!
//! The mapping object grows with each group that copies: pieces in the order of their offsets on the vdev, in the object of
//! counts a zero for each, and in the births object up to which offset the group came.

use super::map::{Maps, feature_uses, zap_u64};
use super::mappings::{BLOCK, HALF_WORDS, WORDS};
use super::obsolete::{FEATURE, MAP};
use super::{CountFeature, invalid};
use cenote_dmu::ObjectSet;
use cenote_dmu::write::{NewObject, OpenObjectSet, Result, ZapMut};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_pool::indirect::{Mapping, Segment, births};
use std::sync::Arc;

/// The feature that counts removed vdevs.
const REMOVAL: &str = "com.delphix:device_removal";
/// Entry of the top ZAP: no count of what is obsolete was ever left out (`VDEV_TOP_ZAP_OBSOLETE_COUNTS_ARE_PRECISE`).
const PRECISE: &str = "com.delphix:obsolete_counts_are_precise";

/// See the head of the module.
#[derive(Debug, Clone)]
pub(crate) struct Evacuation {
    /// The vdev.
    pub vdev: u64,
    /// What was copied so far.
    pub mapping: Mapping,
    /// The births object, and how many entries it has.
    births: (u64, u64),
}

impl Evacuation {
    /// Creates what a removal has in the pending MOS. `top_zap`: the ZAP of the vdev.
    ///
    /// Errors: the MOS cannot be changed.
    pub fn begin(
        mos: &mut OpenObjectSet,
        (vdev, top_zap): (u64, u64),
        count: CountFeature<'_>,
    ) -> Result<Evacuation> {
        count(mos, REMOVAL, 1)?;
        let counted = feature_uses(mos, FEATURE)?.is_some();
        let mut counts_object = 0;
        if counted {
            count(mos, FEATURE, 1)?;
            ZapMut::open(mos, top_zap).add(&Key::Name(PRECISE.as_bytes()), &Value::U64(&[1]))?;
            counts_object = mos.allocate(&NewObject::new(HALF_WORDS, BLOCK))?;
            count(mos, FEATURE, 1)?;
        }
        // Without the feature the head ends before the number of the object of counts.
        let words = if counted { 4 } else { 3 };
        let (object, births) = (array(mos, words)?, array(mos, 1)?);
        let (max_offset, bytes_mapped, segments) = Default::default();
        let mapping = Mapping { object, max_offset, bytes_mapped, counts_object, segments };
        let new = Evacuation { vdev, mapping, births: (births, 0) };
        new.write_heads(mos)?;
        Ok(new)
    }

    /// Reads what a removal has that is under way. `config` is that of the vdev.
    ///
    /// Errors: it cannot be read.
    pub fn load(
        mos: &Arc<ObjectSet>,
        vdev: u64,
        config: &NvList,
    ) -> cenote_dmu::Result<Evacuation> {
        let mapping = Mapping::load(mos, config::number(config, "com.delphix:indirect_object"))?;
        let object = config::number(config, "com.delphix:indirect_births");
        let known = births(mos, object)?.len() as u64;
        Ok(Evacuation { vdev, mapping, births: (object, known) })
    }

    /// The numbers of the mapping object and the births object.
    pub fn objects(&self) -> (u64, u64) {
        (self.mapping.object, self.births.0)
    }

    fn write_heads(&self, mos: &mut OpenObjectSet) -> Result<()> {
        let m = &self.mapping;
        let head = [m.max_offset, m.bytes_mapped, m.segments.len() as u64, m.counts_object];
        let len = mos.dnode(m.object)?.bonus.len();
        let mut bonus: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        bonus.truncate(len);
        mos.set_bonus(m.object, WORDS, &bonus)?;
        mos.set_bonus(self.births.0, WORDS, &self.births.1.to_le_bytes())
    }

    /// This one with more pieces, which come behind the others, in the pending MOS of group `txg`.
    ///
    /// Errors: they do not; the MOS cannot be changed.
    pub fn with(
        &self,
        mos: &mut OpenObjectSet,
        txg: u64,
        segments: &[Segment],
    ) -> Result<Evacuation> {
        let mut new = self.clone();
        let Some(last) = segments.last() else { return Ok(new) };
        let mapping = &mut new.mapping;
        let known = mapping.segments.len() as u64;
        let mut end = mapping.max_offset;
        for segment in segments {
            if segment.source < end || segment.size == 0 {
                return invalid(mapping.object, "pieces of a mapping are not in order");
            }
            end = segment.source.saturating_add(segment.size);
            mapping.bytes_mapped = mapping.bytes_mapped.saturating_add(segment.size);
        }
        mapping.max_offset = last.source.saturating_add(last.size);
        mapping.segments.extend_from_slice(segments);
        let entries: Vec<u8> =
            segments.iter().flat_map(Segment::encode).flat_map(u64::to_le_bytes).collect();
        let (object, counts) = (mapping.object, mapping.counts_object);
        mos.write(object, known.saturating_mul(Mapping::ENTRY_SIZE), &entries)?;
        if counts != 0 {
            mos.write(counts, known.saturating_mul(4), &vec![0; segments.len().saturating_mul(4)])?;
        }
        let (births, count) = new.births;
        let birth: Vec<u8> =
            [new.mapping.max_offset, txg].iter().flat_map(|word| word.to_le_bytes()).collect();
        mos.write(births, count.saturating_mul(16), &birth)?;
        new.births.1 = count.saturating_add(1);
        new.write_heads(mos)?;
        Ok(new)
    }

    /// Frees what a removal that is cancelled has in the pending MOS.
    ///
    /// Errors: the MOS cannot be changed.
    pub fn free(
        &self,
        mos: &mut OpenObjectSet,
        (txg, top_zap): (u64, u64),
        count: CountFeature<'_>,
    ) -> Result<()> {
        count(mos, REMOVAL, -1)?;
        if zap_u64(mos, top_zap, PRECISE)?.is_some() {
            ZapMut::open(mos, top_zap).remove(&Key::Name(PRECISE.as_bytes()))?;
            count(mos, FEATURE, -1)?;
        }
        if let Some(map) = zap_u64(mos, top_zap, MAP)? {
            ZapMut::open(mos, top_zap).remove(&Key::Name(MAP.as_bytes()))?;
            Maps::open(mos, txg, 1, &mut *count)?.free(map)?;
            count(mos, FEATURE, -1)?;
        }
        if self.mapping.counts_object != 0 {
            mos.free(self.mapping.counts_object)?;
            count(mos, FEATURE, -1)?;
        }
        mos.free(self.mapping.object)?;
        mos.free(self.births.0)
    }
}

/// Creates an array of integers whose head has so many.
fn array(mos: &mut OpenObjectSet, words: usize) -> Result<u64> {
    let bonus = vec![0; words * 8];
    mos.allocate(&NewObject { bonus_kind: WORDS, bonus, ..NewObject::new(WORDS, BLOCK) })
}
