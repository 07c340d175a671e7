//! Stretches of a top-level vdev, read as its devices hold them.
//!
//! Blocks that lie side by side are read at once, and taken from the stretch one by one when it is known where each
//! begins. Of RAID-Z a stretch is a part of each child, which the columns of a block are taken from. A stretch is a
//! hint (dRAID has no stretches): it is not verified, nothing in it is reconstructed, and no leaf is blamed for what cannot be read.

use std::sync::Arc;

use cenote_format::MAX_BLOCK;
use cenote_format::abd::Abd;
use cenote_format::invariant;

use crate::queue::Priority;
use crate::raidz::map::Geometry;
use crate::submit::{LeafRead, Submit, read_leaves};
use crate::tree::VdevTree;
use crate::vdev::{Kind, Vdev};
use crate::{BlockRead, mirror};

/// See the [module](self).
pub struct Stretch {
    /// How blocks are divided among the parts; `None`: there is one part, with whole blocks.
    geometry: Option<Geometry>,
    /// Byte in each part's vdev at which it begins.
    start: u64,
    /// Those that were read.
    parts: Vec<Option<Abd>>,
}

impl VdevTree {
    /// Reads the `size` bytes of top-level vdev `vdev` from `offset` on, of RAID-Z with parity. `None` where they are
    /// in no such order (a removed vdev, dRAID, expanded RAID-Z), more than a block can have, past the end of the vdev, or where no device has
    /// them.
    pub fn read_stretch(&self, vdev: u64, offset: u64, size: u64) -> Option<Stretch> {
        let top = self.top(vdev)?;
        if size == 0 || size > MAX_BLOCK || offset.checked_add(size)? > top.asize() {
            return None;
        }
        if top.vdev_kind() == Kind::RaidZ && !top.widths().is_plain() {
            // How wide a block is that is somewhere in it is not known.
            return None;
        }
        if let Some(geometry) = top.geometry() {
            return self.read_columns(top, geometry, offset, size);
        }
        if !top.is_leaf() && top.vdev_kind() != Kind::Mirror {
            return None;
        }
        let whole = BlockRead { vdev, offset, size, txg: 0, verify: &|_| true };
        let data = self.read_one(&whole).block.ok()?;
        Some(Stretch { geometry: None, start: offset, parts: vec![Some(data)] })
    }

    fn read_columns(
        &self,
        top: &Arc<Vdev>,
        geometry: Geometry,
        offset: u64,
        size: u64,
    ) -> Option<Stretch> {
        let (start, len) = geometry.rows(offset, size)?;
        let leaf = |child: &Arc<Vdev>| mirror::leaves_by_trust(child, start, 0).into_iter().next();
        let leaves: Vec<_> = top.children().iter().map(leaf).collect();
        let read = |leaf: Arc<Vdev>| LeafRead { leaf, offset: start, len };
        let reads: Vec<LeafRead> = leaves.iter().flatten().cloned().map(read).collect();
        let submit = Submit::new(&self.pool, Priority::of_reads());
        let mut found = read_leaves(submit, &reads).into_iter();
        let part = |leaf: Option<Arc<Vdev>>| leaf.and_then(|_| found.next()?.ok());
        let parts = leaves.into_iter().map(part).map(|part| part.map(|p| p.bytes)).collect();
        let left = found.count();
        invariant!(left == 0, "vdev {}: {left} reads of a stretch are of no part", top.id());
        Some(Stretch { geometry: Some(geometry), start, parts })
    }
}

impl Stretch {
    /// The block of `size` bytes at `offset` of the vdev. `None` if it is not there in full.
    pub fn block(&self, offset: u64, size: u64) -> Option<Abd> {
        let part = |child: usize, offset: u64, len: usize| {
            let at = usize::try_from(offset.checked_sub(self.start)?).ok()?;
            self.parts.get(child)?.as_ref()?.slice(at, len)
        };
        let size = usize::try_from(size).ok()?;
        let Some(geometry) = self.geometry else { return part(0, offset, size) };
        let columns = geometry.columns(offset, size as u64)?;
        let data = columns.iter().skip(geometry.nparity as usize);
        let data = data.map(|c| part(c.child, c.offset, c.len)).collect::<Option<Vec<_>>>()?;
        Abd::gang(data).slice(0, size)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ColumnExtent;
    use proptest::prelude::*;

    const SECTOR: u64 = 512;

    /// What is in a sector of a child.
    fn sector(child: usize, row: u64) -> Vec<u8> {
        let tag = [&(child as u64).to_le_bytes()[..], &row.to_le_bytes()].concat();
        tag.repeat(SECTOR as usize / tag.len())
    }

    proptest! {
        /// All blocks within a stretch are in it, and what is missing on a child is not.
        #[test]
        fn blocks_of_a_stretch(
            columns in 2u64..8, nparity in 1u64..4, first in 0u64..5000, sectors in 1u64..200,
            before in 0u64..300, after in 0u64..300,
        ) {
            prop_assume!(columns > nparity);
            let geometry = Geometry { columns, nparity, ashift: 9 };
            let psize = sectors * SECTOR - 100;
            let (offset, asize) = ((first + before) * SECTOR, geometry.asize(psize));
            let (start, len) = geometry.rows(first * SECTOR, before * SECTOR + asize + after * SECTOR).unwrap();
            let rows = start / SECTOR..(start + len as u64) / SECTOR;
            let part = |child| Abd::from_vec(rows.clone().flat_map(|row| sector(child, row)).collect());
            let parts = (0..columns as usize).map(|child| Some(part(child))).collect();
            let mut stretch = Stretch { geometry: Some(geometry), start, parts };
            let data: Vec<ColumnExtent> =
                geometry.columns(offset, psize).unwrap().split_off(nparity as usize);
            let mut want = Vec::new();
            for c in &data {
                let rows = c.offset / SECTOR..(c.offset + c.len as u64) / SECTOR;
                want.extend(rows.flat_map(|row| sector(c.child, row)));
            }
            want.truncate(psize as usize);
            prop_assert!(stretch.block(offset, psize).unwrap().to_vec() == want);
            stretch.parts[data[0].child] = None;
            prop_assert!(stretch.block(offset, psize).is_none());
        }
    }

    #[test]
    fn hostile_places() {
        let raidz = Geometry { columns: 3, nparity: 1, ashift: 9 };
        let parts = || vec![Some(Abd::from_vec(vec![0; 4096])); 3];
        for geometry in [Some(raidz), None] {
            let stretch = Stretch { geometry, start: 1 << 20, parts: parts() };
            for offset in [0, 1 << 20, u64::MAX - 511, u64::MAX] {
                for size in [0, 1 << 24, u64::MAX] {
                    let block = stretch.block(offset, size);
                    assert!(block.is_none_or(|block| block.is_empty()));
                }
            }
        }
        assert_eq!(raidz.rows(u64::MAX, 1), None);
    }
}
