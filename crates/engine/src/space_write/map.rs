//! Space map objects: creating, appending, rewriting (`space_map_alloc`, `space_map_write`,
//! `metaslab_condense`).
//!
//! A new map is an object of type `SPACE_MAP` with its header in the bonus buffer; its indirect
//! blocks are small, since appending to a map writes them all anew. What a pass appends is
//! introduced by a debug entry for each kind of change, allocations before frees.

use super::{CONDENSE_BLOCKS, CountFeature, invalid};
use crate::tunables;
use cenote_dmu::write::zap::ZapMut;
use cenote_dmu::write::{NewObject, OpenObjectSet, Result};
use cenote_format::dmu::{DmuType, DnodePhys};
use cenote_format::encode::spacemap::{EntryWriter, ONE_WORD_OFFSETS, ONE_WORD_RUN, TWO_WORD_RUN};
use cenote_format::encode::zap::Key;
use cenote_format::spacemap::{
    Change, Entries, Entry, HISTOGRAM_BUCKETS, SPACE_MAP_SIZE, SPACE_MAP_SIZE_V0, SpaceMapPhys,
    unit_bytes,
};
use cenote_format::{ByteOrder, Bytes, invariant};
use cenote_store::histogram::Histogram;
use cenote_store::rangetree::RangeTree;

/// log2 of the bytes of a space map's indirect blocks (`space_map_ibs`).
const INDIRECT_SHIFT: u8 = 14;
/// Object number of the object directory.
pub(crate) const DIRECTORY_OBJECT: u64 = 1;
/// Passes that a debug entry can tell apart.
const MAX_PASS: u32 = (1 << 10) - 1;

pub(super) const HISTOGRAM: &str = "com.delphix:spacemap_histogram";
pub(super) const TWO_WORDS: &str = "com.delphix:spacemap_v2";

/// What a map's entries are about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Covered {
    /// First byte (or txg).
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// log2 of the bytes of a unit.
    pub shift: u32,
}

/// What becomes of a header's histogram.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Free<'a> {
    /// These are all the free segments.
    Are(&'a Histogram),
    /// There are these besides those counted already.
    More(&'a Histogram),
    /// Nothing.
    Same,
}

/// What a map counts as allocated (`smp_alloc`) when so many bytes changed. The number is of the disk, and the entries say
/// what is right: one that is wrong there keeps nothing from going on.
pub(super) fn counted(object: u64, alloc: i64, change: Change, bytes: u64) -> i64 {
    let sum = match change {
        Change::Alloc => alloc.checked_add_unsigned(bytes),
        Change::Free => alloc.checked_sub_unsigned(bytes),
    };
    sum.unwrap_or_else(|| {
        tracing::warn!(
            "space map {object}: {change:?} of {bytes} bytes where {alloc} are allocated"
        );
        alloc
    })
}

/// The space maps of a pending MOS, in one pass of a sync.
pub(crate) struct Maps<'a> {
    mos: &'a mut OpenObjectSet,
    count: CountFeature<'a>,
    txg: u64,
    pass: u32,
    /// Whether new maps have a histogram: `spacemap_histogram` is enabled.
    histograms: bool,
    /// Whether entries may have two words: `spacemap_v2` is active.
    two_words: bool,
}

/// The integer `name` of ZAP `zap`; `None` if it is absent.
pub(crate) fn zap_u64(mos: &mut OpenObjectSet, zap: u64, name: &str) -> Result<Option<u64>> {
    let found = ZapMut::open(mos, zap).lookup(&Key::Name(name.as_bytes()))?;
    Ok(found.and_then(|(size, value)| value.first().copied().filter(|_| size == 8)))
}

/// Uses of a feature; `None` if it is disabled.
pub(crate) fn feature_uses(mos: &mut OpenObjectSet, guid: &str) -> Result<Option<u64>> {
    for list in ["features_for_write", "features_for_read"] {
        if let Some(zap) = zap_u64(mos, DIRECTORY_OBJECT, list)?
            && let Some(uses) = zap_u64(mos, zap, guid)?
        {
            return Ok(Some(uses));
        }
    }
    Ok(None)
}

impl<'a> Maps<'a> {
    /// Pass `pass` of `txg`. Which features are used is read from the MOS.
    pub(crate) fn open(
        mos: &'a mut OpenObjectSet,
        txg: u64,
        pass: u32,
        count: CountFeature<'a>,
    ) -> Result<Maps<'a>> {
        let histograms = feature_uses(mos, HISTOGRAM)?.is_some();
        let two_words = feature_uses(mos, TWO_WORDS)?.is_some_and(|uses| uses > 0);
        Ok(Maps { mos, count, txg, pass, histograms, two_words })
    }

    pub(crate) fn mos(&mut self) -> &mut OpenObjectSet {
        self.mos
    }

    pub(crate) fn txg(&self) -> u64 {
        self.txg
    }

    /// The pass, as debug entries tell it.
    pub(super) fn debug_pass(&self) -> u16 {
        self.pass.min(MAX_PASS) as u16
    }

    /// Bytes of a block of a map.
    pub(super) fn block_size(&mut self, object: u64) -> Result<u64> {
        Ok(self.dnode(object)?.block_size)
    }

    /// Writes into a map's header what segments are free (`space_map_histogram_add`).
    pub(super) fn set_histogram(
        &mut self,
        object: u64,
        covered: &Covered,
        free: &Histogram,
    ) -> Result<()> {
        let mut header = self.header(object)?;
        header.histogram = header.histogram.map(|_| [0; HISTOGRAM_BUCKETS]);
        header.add_histogram(free.counts(), covered.shift);
        self.mos.set_bonus(object, DmuType::SPACE_MAP_HEADER, &header.encode()?)
    }

    /// Adds to the refcount of a feature.
    pub(crate) fn count(&mut self, feature: &str, delta: i64) -> Result<()> {
        invariant!(matches!(delta, -1 | 1), "feature {feature}: {delta} uses at once");
        (self.count)(self.mos, feature, delta)
    }

    /// Creates an empty map; the number of its object (`space_map_alloc`).
    pub(crate) fn create(&mut self, block_size: u64) -> Result<u64> {
        let size = if self.histograms { SPACE_MAP_SIZE } else { SPACE_MAP_SIZE_V0 };
        let object = self.mos.allocate(&NewObject {
            indirect_shift: INDIRECT_SHIFT,
            bonus_kind: DmuType::SPACE_MAP_HEADER,
            bonus: vec![0; size],
            ..NewObject::new(DmuType::SPACE_MAP, block_size)
        })?;
        if self.histograms {
            self.count(HISTOGRAM, 1)?;
        }
        Ok(object)
    }

    /// Frees a map.
    pub(crate) fn free(&mut self, object: u64) -> Result<()> {
        let histogram = self.dnode(object)?.bonus.len() >= SPACE_MAP_SIZE;
        self.mos.free(object)?;
        if histogram && self.histograms {
            self.count(HISTOGRAM, -1)?;
        }
        Ok(())
    }

    fn dnode(&mut self, object: u64) -> Result<&DnodePhys> {
        let dnode = self.mos.dnode(object)?;
        match dnode.kind {
            DmuType::SPACE_MAP => Ok(dnode),
            kind => invalid(object, format!("{} where a space map was expected", kind.name())),
        }
    }

    /// The header of a map.
    pub(crate) fn header(&mut self, object: u64) -> Result<SpaceMapPhys> {
        let dnode = self.dnode(object)?;
        Ok(SpaceMapPhys::decode(&Bytes::new(&dnode.bonus, ByteOrder::Little, "space map"))?)
    }

    /// Empties a map; the number of the object that it is in from now on (`space_map_truncate`). That is another one if
    /// the blocks are to have another size, or the header has no histogram but could.
    pub(crate) fn rewrite(&mut self, object: u64, block_size: u64) -> Result<u64> {
        let histograms = self.histograms;
        let dnode = self.dnode(object)?;
        let fits = dnode.block_size == block_size
            && dnode.indirect_shift == INDIRECT_SHIFT
            && (!histograms || dnode.bonus.len() == SPACE_MAP_SIZE);
        if !fits {
            self.free(object)?;
            return self.create(block_size);
        }
        let mut header = self.header(object)?;
        self.mos.truncate(object, 0)?;
        (header.length, header.alloc) = (0, 0);
        header.histogram = header.histogram.map(|_| [0; HISTOGRAM_BUCKETS]);
        self.mos.set_bonus(object, DmuType::SPACE_MAP_HEADER, &header.encode()?)?;
        Ok(object)
    }

    /// Cuts the end off a map, and writes its header (`space_map_incremental_destroy`).
    pub(super) fn shorten(&mut self, object: u64, header: &SpaceMapPhys) -> Result<()> {
        self.mos.truncate(object, header.length)?;
        self.mos.set_bonus(object, DmuType::SPACE_MAP_HEADER, &header.encode()?)
    }

    /// Appends changes, in order; the bytes of their entries (`space_map_write`).
    ///
    /// Errors: a range that is not within what the map covers, or not one of whole units.
    pub(crate) fn append(
        &mut self,
        object: u64,
        covered: &Covered,
        changes: &[(Change, &[(u64, u64)])],
        free: Free<'_>,
    ) -> Result<u64> {
        let block_size = self.dnode(object)?.block_size;
        let mut header = self.header(object)?;
        let at = header.length;
        let mut writer = EntryWriter::new(block_size, at, None, self.two_words)?;
        for (change, ranges) in changes.iter().filter(|(_, ranges)| !ranges.is_empty()) {
            writer.debug(*change, self.debug_pass(), self.txg)?;
            for (start, end) in *ranges {
                let (offset, run) = covered.units(object, *start, *end)?;
                writer.range(*change, offset, run)?;
                header.alloc = counted(object, header.alloc, *change, end - start);
            }
        }
        header.object = object;
        header.length = writer.length();
        match free {
            Free::Same => {}
            Free::More(free) => header.add_histogram(free.counts(), covered.shift),
            Free::Are(free) => {
                header.histogram = header.histogram.map(|_| [0; HISTOGRAM_BUCKETS]);
                header.add_histogram(free.counts(), covered.shift);
            }
        }
        let entries = writer.finish();
        let (end, len) = (header.length, entries.len());
        invariant!(
            end - at == len as u64,
            "space map {object}: {len} bytes of entries from {at} to {end}"
        );
        self.mos.write(object, at, &entries)?;
        self.mos.set_bonus(object, DmuType::SPACE_MAP_HEADER, &header.encode()?)?;
        Ok(entries.len() as u64)
    }

    /// What is allocated according to a map of at most `longest` bytes.
    pub(crate) fn allocated(
        &mut self,
        object: u64,
        covered: &Covered,
        longest: u64,
    ) -> Result<RangeTree> {
        let block_size = self.dnode(object)?.block_size;
        let length = self.header(object)?.length;
        if length > longest || block_size == 0 {
            return invalid(object, format!("space map of {length} bytes"));
        }
        let mut tree = RangeTree::new();
        let mut block = vec![0; block_size.min(length) as usize];
        let mut at = 0;
        while at < length {
            let len = (length - at).min(block_size) as usize;
            let Some(part) = block.get_mut(..len) else {
                return invalid(object, format!("a block of {len} bytes"));
            };
            self.mos.read(object, at, part)?;
            for entry in Entries::new(Bytes::new(part, ByteOrder::Little, "space map"), len) {
                let Entry::Range { change, offset, run, .. } = entry? else { continue };
                let (start, end) = covered.bytes(object, offset, run)?;
                tree.clear(start, end);
                if change == Change::Alloc
                    && let Err(why) = tree.add(start, end)
                {
                    return invalid(object, why.to_string());
                }
            }
            at += block_size;
        }
        Ok(tree)
    }

    /// Whether the map is much longer than what it would take to write down what is allocated
    /// (`metaslab_should_condense`); only in the first pass.
    pub(crate) fn worth_condensing(
        &mut self,
        object: u64,
        covered: &Covered,
        free: &Histogram,
    ) -> Result<bool> {
        if self.pass != 1 {
            return Ok(false);
        }
        let block_size = self.dnode(object)?.block_size;
        let length = self.header(object)?.length;
        let record = block_size.max(1u64.checked_shl(covered.shift).unwrap_or(u64::MAX));
        let optimal = self.optimal(covered, free, block_size);
        let bound = u128::from(optimal) * u128::from(tunables::METASLAB_CONDENSE_PCT.get()) / 100;
        Ok(u128::from(length) >= bound && length > record.saturating_mul(CONDENSE_BLOCKS))
    }

    /// Bytes of entries for so many segments, at most (`space_map_estimate_optimal_size`).
    fn optimal(&self, covered: &Covered, free: &Histogram, block_size: u64) -> u64 {
        let (run, words) = match self.two_words {
            true => (TWO_WORD_RUN, 2),
            false => (ONE_WORD_RUN, 1),
        };
        let near = covered.size >> covered.shift.min(63) <= ONE_WORD_OFFSETS;
        let mut bytes = 0u64;
        for (i, count) in (0u32..).zip(free.counts()) {
            let longest = (2u64 << i.saturating_sub(covered.shift).min(62)) - 1;
            let each = match longest <= ONE_WORD_RUN && near {
                true => 8,
                false => longest.div_ceil(run).saturating_mul(words * 8),
            };
            bytes = bytes.saturating_add(count.saturating_mul(each));
        }
        // What is allocated is written down, in runs of their own.
        let all = covered.size.checked_shr(covered.shift).unwrap_or(0);
        bytes = bytes.saturating_add((all / run).saturating_mul(words * 8));
        // A word of padding in each block.
        bytes.saturating_add((bytes / block_size.max(1)).saturating_add(1).saturating_mul(8))
    }

    /// Notes the space map of a metaslab in the metaslab array.
    pub(crate) fn set_array(&mut self, array: u64, id: u64, object: u64) -> Result<()> {
        self.mos.write(array, id * 8, &object.to_le_bytes())
    }
}

impl Covered {
    /// A range of units in bytes.
    pub(super) fn bytes(&self, object: u64, offset: u64, run: u64) -> Result<(u64, u64)> {
        let bytes = |units| unit_bytes(units, self.shift).ok();
        let range = bytes(offset).zip(bytes(run)).and_then(|(offset, len)| {
            let end = offset.checked_add(len).filter(|end| *end <= self.size)?;
            Some((self.start.checked_add(offset)?, self.start.checked_add(end)?))
        });
        match range {
            Some(range) => Ok(range),
            None => invalid(object, format!("{run:#x} units from {offset:#x}: not of the map")),
        }
    }

    /// Offset and length of a range in units.
    pub(super) fn units(&self, object: u64, start: u64, end: u64) -> Result<(u64, u64)> {
        let last = self.start + self.size;
        let unit = 1u64.checked_shl(self.shift).unwrap_or(0);
        let whole = unit != 0 && start.is_multiple_of(unit) && end.is_multiple_of(unit);
        if start >= end || start < self.start || end > last || !whole {
            return invalid(object, format!("{start:#x}-{end:#x} is not of the space map"));
        }
        Ok(((start - self.start) >> self.shift, (end - start) >> self.shift))
    }
}
