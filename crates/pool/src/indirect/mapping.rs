//! The mapping of a removed vdev (`vdev_indirect_mapping_t`): where its space went, and how much of it is obsolete.
//!
//! On disk (`vdev_indirect_mapping_phys_t` in the bonus of the mapping object) an array of
//! entries `source offset (63 bits, in sectors) | destination DVA` sorted by source, and
//! optionally an object with one 32-bit count per entry: bytes of it that were obsolete when the
//! mapping was last condensed. Bytes that became obsolete later are in the vdev's obsolete space
//! map (units of one byte), and bytes of the last transaction group in the MOS's obsolete bpobj.
//! The births object says in which transaction group each part was copied.

use crate::directory::{Directory, for_each_word};
use cenote_dmu::{Error, Object, ObjectSet, Result};
use cenote_format::invariant::broken;
use cenote_format::{ByteOrder, Bytes, SECTOR_SHIFT};
use std::sync::Arc;

/// Entries that memory is set aside for before they are read.
const AHEAD: u64 = 1 << 16;

/// One contiguous piece of the mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// First byte on the removed vdev.
    pub source: u64,
    /// Bytes.
    pub size: u64,
    /// Top-level vdev that has the data now.
    pub vdev: u32,
    /// First byte there.
    pub offset: u64,
}

/// The head of a mapping (`vdev_indirect_mapping_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Space from here on is not mapped.
    pub max_offset: u64,
    /// Bytes mapped.
    pub bytes_mapped: u64,
    /// Pieces.
    pub entries: u64,
    /// Object of obsolete counts; 0 without one.
    pub counts_object: u64,
}

impl Header {
    /// Reads the head of the mapping object `number`.
    pub fn load(mos: &Arc<ObjectSet>, number: u64) -> Result<Header> {
        let object = mos.object(number)?;
        let bad = |why: String| corrupt(mos, number, why);
        let b = object.bonus();
        let [max_offset, bytes_mapped, entries] = b.u64s(0).map_err(|e| bad(e.to_string()))?;
        let counts_object =
            if b.len() >= 32 { b.u64(24).map_err(|e| bad(e.to_string()))? } else { 0 };
        if !holds(&object, entries, Mapping::ENTRY_SIZE) {
            return Err(bad(format!("its object has no room for {entries} entries")));
        }
        Ok(Header { max_offset, bytes_mapped, entries, counts_object })
    }
}

/// The mapping of a removed vdev that OpenZFS is making shorter (`spa_condensing_indirect_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condensing {
    /// The vdev.
    pub vdev: u64,
    /// Object of the obsolete space map that the new mapping leaves out.
    pub obsolete_map: u64,
    /// Object of the new, incomplete mapping; 0 without one.
    pub next: u64,
}

impl Condensing {
    /// Its entry in the object directory (`DMU_POOL_CONDENSING_INDIRECT`).
    pub const ENTRY: &str = "com.delphix:condensing_indirect";

    /// What the object directory says, if a mapping is being made shorter.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
    pub fn find(directory: &Directory) -> Result<Option<Condensing>> {
        let Some(words) = directory.words(Condensing::ENTRY)? else { return Ok(None) };
        let &[vdev, obsolete_map, next, ..] = &words[..] else {
            let why = format!("{}: {} words", Condensing::ENTRY, words.len());
            return Err(directory.corrupt(why));
        };
        Ok(Some(Condensing { vdev, obsolete_map, next }))
    }
}

/// A mapping.
#[derive(Debug, Clone)]
pub struct Mapping {
    /// The mapping object.
    pub object: u64,
    /// Space from here on is not mapped.
    pub max_offset: u64,
    /// Bytes mapped.
    pub bytes_mapped: u64,
    /// Object of obsolete counts; 0 without one.
    pub counts_object: u64,
    /// The pieces, by source.
    pub segments: Vec<Segment>,
}

/// Obsolete bytes of a segment that are counted at most. There are fewer in one, but maps on disk may say so again and again.
const MOST_OBSOLETE: u64 = 1 << 48;

fn corrupt(mos: &ObjectSet, object: u64, why: String) -> Error {
    Error::Corrupt { objset: mos.id(), object, why: format!("indirect mapping: {why}") }
}

impl Segment {
    /// The entry on disk (`vdev_indirect_mapping_entry_phys_t`).
    pub fn encode(&self) -> [u64; 3] {
        let dva = u64::from(self.vdev) << 32 | self.size >> SECTOR_SHIFT;
        [self.source >> SECTOR_SHIFT, dva, self.offset >> SECTOR_SHIFT]
    }
}

impl Mapping {
    /// Bytes of an entry on disk.
    pub const ENTRY_SIZE: u64 = 24;

    /// Bytes that OpenZFS says it takes in memory.
    pub fn memory(&self) -> u64 {
        self.segments.len() as u64 * Mapping::ENTRY_SIZE
    }

    /// Reads the mapping object `number` (`vdev_indirect_mapping_open`).
    pub fn load(mos: &Arc<ObjectSet>, number: u64) -> Result<Mapping> {
        let bad = |why: String| corrupt(mos, number, why);
        let Header { max_offset, bytes_mapped, entries, counts_object } =
            Header::load(mos, number)?;
        let mut segments = Vec::with_capacity(entries.min(AHEAD) as usize);
        let mut end = 0u64;
        for_each_entry(mos, number, entries, &mut |w: [u64; 3]| {
            let seg = Segment {
                source: (w[0] & (u64::MAX >> 1)) << SECTOR_SHIFT,
                size: (w[1] & 0xff_ffff) << SECTOR_SHIFT,
                vdev: (w[1] >> 32) as u32 & 0xff_ffff,
                offset: (w[2] & (u64::MAX >> 1)) << SECTOR_SHIFT,
            };
            if seg.size == 0 || seg.source < end {
                return Err(bad(format!("segments out of order at {:#x}", seg.source)));
            }
            end = seg.source.checked_add(seg.size).ok_or_else(|| bad("overflow".into()))?;
            seg.offset.checked_add(seg.size).ok_or_else(|| bad("overflow".into()))?;
            segments.push(seg);
            Ok(())
        })?;
        Ok(Mapping { object: number, max_offset, bytes_mapped, counts_object, segments })
    }

    /// Index of the segment that holds byte `offset`, if it is mapped.
    fn find(&self, offset: u64) -> Option<usize> {
        let i = self.segments.partition_point(|s| s.source <= offset).checked_sub(1)?;
        let s = self.segments.get(i)?;
        (offset < s.source + s.size).then_some(i)
    }

    /// Whether the first and the last byte of `start..end` are mapped.
    pub fn has_ends_of(&self, start: u64, end: u64) -> bool {
        start < end && self.find(start).is_some() && self.find(end - 1).is_some()
    }

    /// The pieces `(segment's index, piece)` that hold `start..end`; `None` if some of it is not
    /// mapped.
    pub fn pieces(&self, start: u64, end: u64) -> Option<Vec<(usize, Segment)>> {
        let mut out = Vec::new();
        let mut at = start;
        let mut i = self.find(start)?;
        while at < end {
            let s = self.segments.get(i).filter(|s| s.source <= at && at < s.source + s.size)?;
            let inner = at - s.source;
            let size = (end - at).min(s.size - inner);
            out.push((i, Segment { source: at, size, vdev: s.vdev, offset: s.offset + inner }));
            at += size;
            i += 1;
        }
        Some(out)
    }

    /// Obsolete bytes per segment from the counts object (zeros without that object).
    pub fn counts(&self, mos: &Arc<ObjectSet>) -> Result<Vec<u64>> {
        let mut counts = vec![0; self.segments.len()];
        if self.counts_object == 0 {
            return Ok(counts);
        }
        let object = mos.object(self.counts_object)?;
        let mut data = vec![0; counts.len() * 4];
        object.read(0, &mut data)?;
        let bytes = Bytes::new(&data, ByteOrder::Little, "obsolete counts");
        for (i, count) in counts.iter_mut().enumerate() {
            let n =
                bytes.u32(i * 4).map_err(|e| corrupt(mos, self.counts_object, e.to_string()))?;
            *count = u64::from(n);
        }
        Ok(counts)
    }

    /// Adds `start..end` to the obsolete bytes per segment; `false` if some of it is not mapped, or is so for more bytes than can be counted.
    pub fn add_obsolete(&self, counts: &mut [u64], start: u64, end: u64) -> bool {
        let Some(pieces) = self.pieces(start, end) else { return false };
        for (i, piece) in pieces {
            let Some(count) = counts.get_mut(i) else {
                broken(format_args!(
                    "piece {i} of a mapping, of which {} are counted",
                    self.segments.len()
                ))
            };
            match count.checked_add(piece.size).filter(|count| *count <= MOST_OBSOLETE) {
                Some(more) => *count = more,
                None => return false,
            }
        }
        true
    }
}

/// `(offset, txg)` (`vdev_indirect_births_open`): the part of a removed vdev up to `offset` was copied in `txg`
/// (`vdev_indirect_birth_phys_t` in the bonus of `object`).
pub fn births(mos: &Arc<ObjectSet>, object: u64) -> Result<Vec<(u64, u64)>> {
    let o = mos.object(object)?;
    let count = o.bonus().u64(0).map_err(|e| corrupt(mos, object, e.to_string()))?;
    if !holds(&o, count, BIRTH_SIZE) {
        return Err(corrupt(mos, object, format!("its object has no room for {count} births")));
    }
    let mut births = Vec::with_capacity(count.min(AHEAD) as usize);
    for_each_entry(mos, object, count, &mut |[offset, txg]| {
        if txg == 0 {
            return Err(corrupt(mos, object, format!("no birth up to {offset:#x}")));
        }
        births.push((offset, txg));
        Ok(())
    })?;
    Ok(births)
}

/// Bytes of an entry of a births object.
const BIRTH_SIZE: u64 = 16;

/// Whether an object has the bytes of so many entries of this size.
fn holds(object: &Object, entries: u64, size: u64) -> bool {
    let dnode = object.dnode();
    let bytes = (u128::from(dnode.max_block) + 1) * u128::from(dnode.block_size);
    u128::from(entries) * u128::from(size) <= bytes
}

/// Calls `each` with the first entries of `N` words in an object.
fn for_each_entry<const N: usize>(
    mos: &Arc<ObjectSet>,
    number: u64,
    entries: u64,
    each: &mut dyn FnMut([u64; N]) -> Result<()>,
) -> Result<()> {
    let (mut entry, mut known) = ([0; N], 0);
    let words = entries.checked_mul(N as u64);
    let words = words.ok_or_else(|| corrupt(mos, number, format!("{entries} entries")))?;
    for_each_word(mos, number, words, &mut |word| {
        if let Some(place) = entry.get_mut(known) {
            *place = word;
        }
        known += 1;
        if known < N {
            return Ok(());
        }
        known = 0;
        each(entry)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping() -> Mapping {
        let seg = |source, size, vdev, offset| Segment { source, size, vdev, offset };
        Mapping {
            object: 1,
            max_offset: 0x1000,
            bytes_mapped: 0xa00,
            counts_object: 0,
            segments: vec![
                seg(0, 0x400, 1, 0x8000),
                seg(0x400, 0x400, 2, 0),
                seg(0xa00, 0x200, 1, 0),
            ],
        }
    }

    #[test]
    fn pieces_cross_segments_but_not_gaps() {
        let m = mapping();
        let pieces = m.pieces(0x200, 0x600).unwrap();
        assert_eq!(pieces.len(), 2);
        assert_eq!(pieces[0].1, Segment { source: 0x200, size: 0x200, vdev: 1, offset: 0x8200 });
        assert_eq!(pieces[1].1, Segment { source: 0x400, size: 0x200, vdev: 2, offset: 0 });
        assert!(m.pieces(0x600, 0xb00).is_none());
        assert!(m.pieces(0xc00, 0xd00).is_none());
        let mut counts = vec![0; 3];
        assert!(m.add_obsolete(&mut counts, 0x200, 0x600));
        assert_eq!(counts, [0x200, 0x200, 0]);
    }
}
