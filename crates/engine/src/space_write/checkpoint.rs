//! What only the pool's checkpoint refers to (`vdev_checkpoint_sm`, `spa_checkpoint_discard_thread_sync`).
//!
//! Each top-level vdev has a *checkpoint space map*, made when there is the first entry, that its top ZAP names:
//! frees only, of the whole vdev, each within one metaslab. What it has stays allocated in the maps of metaslabs,
//! until the checkpoint is discarded: then a piece of each map after the other goes, from its end, and what it had is freed.
//!
//! Invariant: the headers of these maps say together what the allocator has as kept.

use super::map::{Covered, Free, Maps};
use super::{CountFeature, SpaceMaps, Stats, VdevMaps, invalid};
use cenote_dmu::write::{OpenObjectSet, Result, WriteError, ZapMut};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::invariant::broken;
use cenote_format::spacemap::{Change, Entries, Entry};
use cenote_format::{ByteOrder, Bytes, invariant, less};
use cenote_store::alloc::Allocator;
use cenote_store::rangetree::RangeTree;

/// Bytes of a block of such a map (`zfs_vdev_standard_sm_blksz`).
const BLOCK: u64 = 128 << 10;
/// Least bytes of entries that are taken out of a map at once.
const LEAST: u64 = 4 << 10;
/// Entry of the top ZAP (`VDEV_TOP_ZAP_POOL_CHECKPOINT_SM`).
const MAP: &str = "com.delphix:pool_checkpoint_sm";
/// Units that an entry of one word can name (`SM_OFFSET_MAX`).
const MOST_UNITS: u64 = 1 << 47;

/// A piece of what a checkpoint kept, taken out of its space maps.
#[derive(Debug, Default)]
pub struct Discard {
    /// Ranges that are to be freed: vdev, start, end.
    pub ranges: Vec<(u64, u64, u64)>,
    /// Vdevs that have no such map any more.
    gone: Vec<u64>,
    /// Whether there is no such map any more at all.
    pub all: bool,
}

impl VdevMaps {
    /// What a map of the whole vdev covers.
    fn whole(&self) -> Covered {
        let size = (self.maps.len() as u64).checked_shl(self.ms_shift).unwrap_or(u64::MAX);
        Covered { start: 0, size, shift: self.ashift }
    }
}

impl SpaceMaps {
    /// Whether space maps of whole vdevs can be made (`spa_top_vdevs_spacemap_addressable`).
    pub fn can_keep(&self) -> bool {
        self.vdevs.values().all(|v| {
            let whole = v.whole();
            v.top_zap != 0 && whole.size >> whole.shift.min(63) <= MOST_UNITS
        })
    }

    /// Writes down what the allocator keeps for the checkpoint since the last pass.
    ///
    /// Errors: a vdev that there is not; what is in the MOS makes no sense.
    pub(super) fn sync_kept(
        &mut self,
        mos: &mut OpenObjectSet,
        (txg, pass): (u64, u32),
        allocator: &Allocator,
        count: CountFeature<'_>,
    ) -> Result<Stats> {
        let mut stats = Stats::default();
        let kept = allocator.take_kept(txg);
        if kept.is_empty() {
            return Ok(stats);
        }
        let mut maps = Maps::open(mos, txg, pass, count)?;
        for of_vdev in kept.chunk_by(|a, b| a.vdev == b.vdev) {
            let Some(vdev) = of_vdev.first().map(|kept| kept.vdev) else {
                broken(format_args!("a vdev of which nothing is kept for the checkpoint"))
            };
            let Some(v) = self.vdevs.get_mut(&vdev).filter(|v| v.top_zap != 0) else {
                return invalid(0, format!("vdev {vdev} cannot have a checkpoint's space map"));
            };
            if v.checkpoint == 0 {
                v.checkpoint = maps.create(BLOCK)?;
                let (key, value) = (Key::Name(MAP.as_bytes()), Value::U64(&[v.checkpoint]));
                ZapMut::open(maps.mos(), v.top_zap).add(&key, &value)?;
                stats.created += 1;
            }
            let ranges: Vec<(u64, u64)> =
                of_vdev.iter().flat_map(|kept| &kept.ranges).copied().collect();
            let freed = [(Change::Free, ranges.as_slice())];
            stats.bytes += maps.append(v.checkpoint, &v.whole(), &freed, Free::Same)?;
            stats.maps += 1;
        }
        self.verify_kept(&mut maps, allocator)?;
        Ok(stats)
    }

    /// The maps have what the allocator keeps.
    fn verify_kept(&self, maps: &mut Maps<'_>, allocator: &Allocator) -> Result<()> {
        let mut said = 0;
        for v in self.vdevs.values().filter(|v| v.checkpoint != 0) {
            said -= i128::from(maps.header(v.checkpoint)?.alloc);
        }
        let kept = allocator.kept();
        invariant!(
            said == i128::from(kept),
            "{kept} bytes are kept for the checkpoint, and its space maps have {said}"
        );
        Ok(())
    }

    /// Takes the end of the checkpoint's space maps out of the pending MOS, at most about `longest` bytes of entries. Once that
    /// is kept, the ranges are to be freed, and [`SpaceMaps::discarded`] is to be called.
    ///
    /// Errors: a map cannot be read, or has what is no range of a metaslab, or a range twice.
    pub fn discard(
        &self,
        mos: &mut OpenObjectSet,
        txg: u64,
        longest: u64,
        count: CountFeature<'_>,
    ) -> Result<Discard> {
        let (mut done, mut left) = (Discard::default(), longest.max(LEAST));
        let mut maps = Maps::open(mos, txg, 1, count)?;
        let with_map = || self.vdevs.iter().filter(|(_, v)| v.checkpoint != 0);
        for (vdev, v) in with_map() {
            if left == 0 {
                break;
            }
            let mut header = maps.header(v.checkpoint)?;
            let from = header.length.saturating_sub(left);
            let (start, ranges) = v.kept_from(&mut maps, from, header.length)?;
            let taken = less!(header.length, start, "bytes of the checkpoint's map of vdev {vdev}");
            left = left.saturating_sub(taken);
            let mut once = RangeTree::new();
            for (from, to) in &ranges {
                let added = once.add(*from, *to);
                added.map_err(|why| wrong(v.checkpoint, &why.to_string()))?;
            }
            let bytes = i128::from(once.space());
            done.ranges.extend(ranges.into_iter().map(|(from, to)| (*vdev, from, to)));
            let alloc = i128::from(header.alloc) + bytes;
            // What it says beside these entries is what the others keep.
            if alloc > 0 || start == 0 {
                if alloc != 0 {
                    let why = format!("{alloc} bytes beside those of the entries");
                    return invalid(v.checkpoint, why);
                }
                maps.free(v.checkpoint)?;
                ZapMut::open(maps.mos(), v.top_zap).remove(&Key::Name(MAP.as_bytes()))?;
                done.gone.push(*vdev);
                continue;
            }
            (header.length, header.alloc) = (start, i64::try_from(alloc).unwrap_or(i64::MIN));
            maps.shorten(v.checkpoint, &header)?;
        }
        done.all = done.gone.len() == with_map().count();
        Ok(done)
    }

    /// What was taken out of the checkpoint's space maps is kept so.
    pub fn discarded(&mut self, done: &Discard) {
        for vdev in &done.gone {
            let known = self.vdevs.get_mut(vdev).filter(|v| v.checkpoint != 0);
            match known {
                Some(v) => v.checkpoint = 0,
                None => broken(format_args!("vdev {vdev} had no space map of a checkpoint")),
            }
        }
    }
}

#[cfg(feature = "planted")]
impl SpaceMaps {
    /// A fault: the checkpoint's space map of a vdev goes.
    pub(crate) fn plant_discarded(&mut self, vdev: u64) {
        self.discarded(&Discard { gone: vec![vdev], ..Discard::default() });
    }
}

impl VdevMaps {
    /// The ranges that the checkpoint's map has in its bytes from `from` to `length`, and where the first entry of these
    /// begins: no entry is cut in two.
    fn kept_from(
        &self,
        maps: &mut Maps<'_>,
        from: u64,
        length: u64,
    ) -> Result<(u64, Vec<(u64, u64)>)> {
        let (object, whole) = (self.checkpoint, self.whole());
        let block_size = maps.block_size(object)?.max(1);
        let (mut ranges, mut first) = (Vec::new(), length);
        let mut block_at = from - from % block_size;
        while block_at < length {
            let len = usize::try_from((length - block_at).min(block_size));
            let mut block = vec![0; len.map_err(|e| wrong(object, &e.to_string()))?];
            maps.mos().read(object, block_at, &mut block)?;
            let entries = Bytes::new(&block, ByteOrder::Little, "space map");
            let mut at = block_at;
            for entry in Entries::new(entries, block.len()) {
                let (entry, begin) = (entry?, at);
                at = at.saturating_add(8 * entry.words() as u64);
                if begin < from {
                    continue;
                }
                first = first.min(begin);
                let Entry::Range { change, offset, run, .. } = entry else { continue };
                let (start, end) = whole.bytes(object, offset, run)?;
                let ms = |byte: u64| byte.checked_shr(self.ms_shift);
                if change != Change::Free || ms(start) != ms(end - 1) {
                    return Err(wrong(object, &format!("{change:?} of {start:#x}-{end:#x}")));
                }
                ranges.push((start, end));
            }
            block_at = block_at.saturating_add(block_size);
        }
        Ok((first, ranges))
    }
}

/// An error about a checkpoint's space map.
fn wrong(object: u64, why: &str) -> WriteError {
    WriteError::Invalid { object, why: format!("the checkpoint's space map: {why}") }
}
