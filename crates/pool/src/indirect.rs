//! Mappings of removed top-level vdevs, for reading through them (`vdev_indirect_mapping_t`).
//!
//! When a vdev is removed, its allocated segments are copied to other vdevs, and it stays behind as
//! an *indirect* vdev with a mapping from its old offsets to the new places
//! ([`Mapping`] decodes it). Block pointers are not rewritten: a
//! read of one that leads to the removed vdev goes through the mapping.
//!
//! A mapping may itself lie on a vdev that was removed later, so they are loaded newest first: the
//! MOS entry `com.delphix:removing` names the newest, each one's config the one before it.

mod mapping;
pub mod removing;

pub use mapping::{Condensing, Header, Mapping, Segment, births};

use crate::directory::Directory;
use cenote_dmu::{Error, ObjectSet, Result};
use cenote_vdev::{IndirectMap, Remap, Vdev, VdevTree};
use removing::Removing;
use std::collections::BTreeMap;
use std::sync::Arc;

impl IndirectMap for Mapping {
    fn remap(&self, offset: u64, size: u64) -> Option<Vec<Remap>> {
        let pieces = self.pieces(offset, offset.checked_add(size)?)?;
        let remap = |(_, s): (usize, Segment)| Remap {
            vdev: u64::from(s.vdev),
            offset: s.offset,
            size: s.size,
        };
        Some(pieces.into_iter().map(remap).collect())
    }
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
    let mut next = Removing::load(directory)?.map(|removal| removal.prev);
    let mut total = 0u64;
    // Every step takes a vdev out of `waiting`: the chain cannot go round.
    while let Some(v) =
        next.and_then(|id| waiting.remove(&id)).or_else(|| waiting.pop_last().map(|(_, v)| v))
    {
        total += load(mos, tree, v)?;
        next = v.config().u64("com.delphix:prev_indirect_vdev");
    }
    Ok(total)
}

fn load(mos: &Arc<ObjectSet>, tree: &VdevTree, v: &Vdev) -> Result<u64> {
    let Some(number) = v.config().u64("com.delphix:indirect_object").filter(|n| *n != 0) else {
        return Ok(0);
    };
    let mapping = Mapping::load(mos, number)?;
    let bytes = mapping.memory();
    tree.set_indirect(v.id(), Box::new(mapping)).map_err(|e| Error::Corrupt {
        objset: mos.id(),
        object: number,
        why: format!("indirect mapping of vdev {}: {e}", v.id()),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_split_and_join() {
        let segment = |source, size, vdev, offset| Segment { source, size, vdev, offset };
        let segments = vec![
            segment(0x1000, 0x1000, 1, 0x8000),
            segment(0x2000, 0x1000, 2, 0),
            segment(0x4000, 0x200, 1, 0),
        ];
        let m = Mapping { object: 1, max_offset: 0, bytes_mapped: 0, counts_object: 0, segments };
        let remap = |offset, size| {
            let pieces = m.remap(offset, size)?;
            Some(pieces.iter().map(|r| (r.vdev, r.offset, r.size)).collect::<Vec<_>>())
        };
        assert_eq!(remap(0x1200, 0x200), Some(vec![(1, 0x8200, 0x200)]));
        assert_eq!(remap(0x1e00, 0x400), Some(vec![(1, 0x8e00, 0x200), (2, 0, 0x200)]));
        // Before the first, over a gap, past the end.
        assert_eq!(remap(0xe00, 0x200), None);
        assert_eq!(remap(0x2e00, 0x400), None);
        assert_eq!(remap(0x4200, 0x200), None);
        assert_eq!(remap(u64::MAX, 2), None);
    }
}
