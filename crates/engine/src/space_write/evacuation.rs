//! The mapping of a vdev that is being removed, while its space is copied (`vdev_indirect_mapping_add_entries`,
//! `vdev_indirect_births_add_entry`).
//!
//! The mapping object grows with each group that copies: pieces in the order of their offsets on the vdev, in the object of
//! counts a zero for each, and in the births object up to which offset the group came. In memory there is one mapping, which
//! all share that look into it: a group costs what it adds.

use super::map::{Maps, feature_uses, zap_u64};
use super::mappings::{BLOCK, HALF_WORDS, WORDS};
use super::obsolete::{FEATURE, MAP};
use super::{CountFeature, invalid};
use cenote_dmu::ObjectSet;
use cenote_dmu::write::{NewObject, OpenObjectSet, Result, ZapMut};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::invariant;
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_pool::indirect::{Mapping, Segment, births};
use cenote_vdev::{IndirectMap, Remap};
use parking_lot::RwLock;
use std::sync::Arc;

/// The feature that counts removed vdevs.
const REMOVAL: &str = "com.delphix:device_removal";
/// Entry of the top ZAP: no count of what is obsolete was ever left out (`VDEV_TOP_ZAP_OBSOLETE_COUNTS_ARE_PRECISE`).
const PRECISE: &str = "com.delphix:obsolete_counts_are_precise";

/// What was copied so far.
#[derive(Debug)]
pub(crate) struct Grows(RwLock<Mapping>);

impl Grows {
    /// What is allocated below this offset is mapped.
    pub fn end(&self) -> u64 {
        self.0.read().max_offset
    }

    /// The mapping as it is now.
    pub fn now(&self) -> Mapping {
        self.0.read().clone()
    }
}

impl IndirectMap for Grows {
    fn remap(&self, offset: u64, size: u64) -> Option<Vec<Remap>> {
        self.0.read().remap(offset, size)
    }
}

/// See the head of the module.
#[derive(Debug, Clone)]
pub(crate) struct Evacuation {
    /// The vdev.
    pub vdev: u64,
    /// What was copied so far.
    pub mapping: Arc<Grows>,
    /// The births object, and how many entries it has.
    births: (u64, u64),
}

/// What a group adds to a mapping, as the pending MOS has it.
pub(crate) struct More {
    segments: Vec<Segment>,
    max_offset: u64,
    bytes_mapped: u64,
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
        let births = (births, 0);
        let head = Head { end: 0, bytes: 0, entries: 0 };
        write_heads(mos, (object, counts_object), &head, births)?;
        Ok(Evacuation { vdev, mapping: Arc::new(Grows(RwLock::new(mapping))), births })
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
        let mapping = Arc::new(Grows(RwLock::new(mapping)));
        Ok(Evacuation { vdev, mapping, births: (object, known) })
    }

    /// The numbers of the mapping object and the births object.
    pub fn objects(&self) -> (u64, u64) {
        (self.mapping.0.read().object, self.births.0)
    }

    /// Writes more pieces, which come behind the others, into the pending MOS of group `txg`. [`Evacuation::grow`] makes them
    /// known.
    ///
    /// Errors: the MOS cannot be changed.
    pub fn write(&self, mos: &mut OpenObjectSet, txg: u64, segments: Vec<Segment>) -> Result<More> {
        let mapping = self.mapping.0.read();
        let (object, counts, known) =
            (mapping.object, mapping.counts_object, mapping.segments.len() as u64);
        let (mut end, mut bytes) = (mapping.max_offset, mapping.bytes_mapped);
        let vdev = self.vdev;
        for Segment { source, size, .. } in segments.iter().copied() {
            invariant!(
                source >= end && size > 0,
                "vdev {vdev}: {size} bytes at {source:#x} are mapped after {end:#x}"
            );
            end = source + size;
            // The sum of before is what the pool says.
            let sum = bytes.checked_add(size).filter(|sum| *sum <= end);
            let Some(sum) = sum else {
                return invalid(object, format!("{bytes} bytes mapped before {source:#x}"));
            };
            bytes = sum;
        }
        let entries: Vec<u8> =
            segments.iter().flat_map(Segment::encode).flat_map(u64::to_le_bytes).collect();
        mos.write(object, known * Mapping::ENTRY_SIZE, &entries)?;
        if counts != 0 {
            mos.write(counts, known * 4, &vec![0; segments.len() * 4])?;
        }
        let (births, count) = self.births;
        let birth: Vec<u8> = [end, txg].iter().flat_map(|word| word.to_le_bytes()).collect();
        mos.write(births, count.saturating_mul(16), &birth)?;
        // Where that was written there is room for one more.
        let births = (births, count + 1);
        let head = Head { end, bytes, entries: known + segments.len() as u64 };
        write_heads(mos, (object, counts), &head, births)?;
        Ok(More { segments, max_offset: end, bytes_mapped: bytes, births })
    }

    /// The group that is being written has `more` in its MOS.
    pub fn grow(&mut self, more: More) {
        let mut mapping = self.mapping.0.write();
        let (vdev, before, now) = (self.vdev, mapping.max_offset, more.max_offset);
        invariant!(before < now, "vdev {vdev} was mapped up to {before:#x}, and is up to {now:#x}");
        let (before, now) = (self.births.1, more.births.1);
        invariant!(before + 1 == now, "vdev {vdev}: {now} births of pieces, and {before} before");
        mapping.segments.extend(more.segments);
        (mapping.max_offset, mapping.bytes_mapped) = (more.max_offset, more.bytes_mapped);
        self.births = more.births;
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
        let (object, counts) = {
            let mapping = self.mapping.0.read();
            (mapping.object, mapping.counts_object)
        };
        if counts != 0 {
            mos.free(counts)?;
            count(mos, FEATURE, -1)?;
        }
        mos.free(object)?;
        mos.free(self.births.0)
    }
}

/// What the head of a mapping says.
struct Head {
    end: u64,
    bytes: u64,
    entries: u64,
}

/// Writes the heads of a mapping object, which has an object of counts or 0, and of a births object with so many entries.
fn write_heads(
    mos: &mut OpenObjectSet,
    (object, counts): (u64, u64),
    head: &Head,
    (births, known): (u64, u64),
) -> Result<()> {
    let words = [head.end, head.bytes, head.entries, counts];
    let len = mos.dnode(object)?.bonus.len();
    let mut bonus: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bonus.truncate(len);
    mos.set_bonus(object, WORDS, &bonus)?;
    mos.set_bonus(births, WORDS, &known.to_le_bytes())
}

/// Creates an array of integers whose head has so many.
fn array(mos: &mut OpenObjectSet, words: usize) -> Result<u64> {
    let bonus = vec![0; words * 8];
    mos.allocate(&NewObject { bonus_kind: WORDS, bonus, ..NewObject::new(WORDS, BLOCK) })
}
