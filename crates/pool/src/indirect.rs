//! Mappings of removed top-level vdevs.
//!
//! When a vdev is removed, its allocated segments are copied to other vdevs, and it stays behind as
//! an *indirect* vdev with a mapping from its old offsets to the new places. The mapping is an
//! object of the MOS, an array sorted by source offset, with its length in the bonus buffer:
//!
//! ```text
//! vdev_indirect_mapping_phys_t    max_offset, bytes_mapped, num_entries[, counts_object]
//! vdev_indirect_mapping_entry_phys_t
//!   word 0    mark(1) | source offset in sectors(63)
//!   word 1-2  DVA of the copy; its asize is the length of the segment
//! ```
//!
//! A mapping may itself lie on a vdev that was removed later, so they are loaded newest first: the
//! MOS entry `com.delphix:removing` names the newest, each one's config the one before it.
//!
//! Invariants: entries are sorted and do not overlap; an entry takes 24 bytes in memory, and
//! their number is bounded.

use crate::directory::Directory;
use cenote_dmu::{Error, Object, ObjectSet, Result};
use cenote_format::Bytes;
use cenote_format::SECTOR_SHIFT;
use cenote_vdev::{IndirectMap, Remap, Vdev, VdevTree};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of an entry on disk.
const ENTRY_SIZE: u64 = 24;

/// Entries that are believed: a terabyte in pieces of 64 KiB.
const MAX_ENTRIES: u64 = 1 << 24;

/// A segment and where it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    source: u64,
    target: u64,
    vdev: u32,
    sectors: u32,
}

impl Segment {
    fn size(&self) -> u64 {
        u64::from(self.sectors) << SECTOR_SHIFT
    }

    fn decode(words: [u64; 3]) -> Segment {
        let [source, w0, w1] = words;
        let offset = |w: u64| (w & (u64::MAX >> 1)) << SECTOR_SHIFT;
        Segment {
            source: offset(source),
            target: offset(w1),
            vdev: (w0 >> 32) as u32 & 0xff_ffff,
            sectors: w0 as u32 & 0xff_ffff,
        }
    }
}

/// The mapping of one removed vdev.
#[derive(Debug, Default)]
struct Mapping {
    segments: Vec<Segment>,
}

impl IndirectMap for Mapping {
    fn remap(&self, offset: u64, size: u64) -> Option<Vec<Remap>> {
        let end = offset.checked_add(size)?;
        // The last segment that starts at or before the offset.
        let mut at = self.segments.partition_point(|s| s.source <= offset).checked_sub(1)?;
        let (mut from, mut pieces) = (offset, Vec::new());
        while from < end {
            let s = self.segments.get(at)?;
            let inside = from.checked_sub(s.source).filter(|i| *i < s.size())?;
            let len = (s.size() - inside).min(end - from);
            let target = s.target.checked_add(inside)?;
            pieces.push(Remap { vdev: u64::from(s.vdev), offset: target, size: len });
            from += len;
            at += 1;
        }
        Some(pieces)
    }
}

fn corrupt(object: &Object, why: String) -> Error {
    let objset = object.objset().id();
    Error::Corrupt { objset, object: object.number(), why: format!("indirect mapping: {why}") }
}

/// Reads a mapping object.
fn load(object: &Object) -> Result<Mapping> {
    let decode =
        |source| Error::Decode { objset: object.objset().id(), object: object.number(), source };
    let count = object.bonus().u64(16).map_err(decode)?;
    if count > MAX_ENTRIES {
        return Err(corrupt(object, format!("{count} entries")));
    }
    let bytes = count * ENTRY_SIZE;
    let block_size = object.dnode().block_size;
    // Entries straddle blocks, so the words are taken in one stream.
    let (mut words, mut pending) = (Vec::with_capacity(3), Vec::new());
    for blkid in 0..bytes.div_ceil(block_size) {
        let Some(block) = object.block(blkid)? else {
            return Err(corrupt(object, format!("block {blkid} is a hole")));
        };
        let data = block.data.bytes();
        let view = Bytes::new(&data, block.order, "indirect mapping");
        let len = (bytes - blkid * block_size).min(block_size);
        for at in (0..len as usize).step_by(8) {
            words.push(view.u64(at).map_err(decode)?);
            if let [a, b, c] = *words.as_slice() {
                pending.push(Segment::decode([a, b, c]));
                words.clear();
            }
        }
    }
    let sorted = pending.windows(2).all(|w| match w {
        [a, b] => a.source.checked_add(a.size()).is_some_and(|end| end <= b.source),
        _ => true,
    });
    if !sorted {
        return Err(corrupt(object, "entries overlap or are out of order".into()));
    }
    Ok(Mapping { segments: pending })
}

/// Loads the mappings of all indirect vdevs into the tree. Returns the bytes that OpenZFS says they
/// take (`zpool status`: "memory used for removed device mappings").
pub(crate) fn load_all(
    mos: &Arc<ObjectSet>,
    directory: &Directory,
    tree: &VdevTree,
) -> Result<u64> {
    let mut waiting: BTreeMap<u64, &Vdev> = BTreeMap::new();
    for v in tree.root().children() {
        if v.kind() == "indirect" {
            waiting.insert(v.id(), v);
        }
    }
    let mut next = match directory.words("com.delphix:removing")? {
        Some(words) => words.get(2).copied(),
        None => None,
    };
    let mut total = 0u64;
    // Every step takes a vdev out of `waiting`: the chain cannot go round.
    while let Some(v) =
        next.and_then(|id| waiting.remove(&id)).or_else(|| waiting.pop_last().map(|(_, v)| v))
    {
        total = total.saturating_add(load_vdev(mos, tree, v)?);
        next = v.config().u64("com.delphix:prev_indirect_vdev");
    }
    Ok(total)
}

fn load_vdev(mos: &Arc<ObjectSet>, tree: &VdevTree, v: &Vdev) -> Result<u64> {
    let Some(number) = v.config().u64("com.delphix:indirect_object").filter(|n| *n != 0) else {
        return Ok(0);
    };
    let object = mos.object(number)?;
    let mapping = load(&object)?;
    let bytes = mapping.segments.len() as u64 * ENTRY_SIZE;
    tree.set_indirect(v.id(), Box::new(mapping))
        .map_err(|e| corrupt(&object, format!("vdev {}: {e}", v.id())))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(source: u64, sectors: u32, vdev: u32, target: u64) -> Segment {
        Segment { source, target, vdev, sectors }
    }

    fn remap(m: &Mapping, offset: u64, size: u64) -> Option<Vec<(u64, u64, u64)>> {
        Some(m.remap(offset, size)?.iter().map(|r| (r.vdev, r.offset, r.size)).collect())
    }

    #[test]
    fn segments_split_and_join() {
        let m = Mapping {
            segments: vec![
                segment(0x1000, 8, 1, 0x8000),
                segment(0x2000, 8, 2, 0),
                segment(0x4000, 1, 1, 0),
            ],
        };
        assert_eq!(remap(&m, 0x1200, 0x200), Some(vec![(1, 0x8200, 0x200)]));
        assert_eq!(remap(&m, 0x1e00, 0x400), Some(vec![(1, 0x8e00, 0x200), (2, 0, 0x200)]));
        // Before the first, over a gap, past the end.
        assert_eq!(remap(&m, 0xe00, 0x200), None);
        assert_eq!(remap(&m, 0x2e00, 0x400), None);
        assert_eq!(remap(&m, 0x4200, 0x200), None);
        assert_eq!(remap(&m, u64::MAX, 2), None);
        assert_eq!(remap(&Mapping::default(), 0, 512), None);
    }

    #[test]
    fn entries_decode() {
        let words = [1 << 63 | 8, 5 << 32 | 3, 16];
        assert_eq!(Segment::decode(words), segment(0x1000, 3, 5, 0x2000));
    }
}
