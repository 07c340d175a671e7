//! Pieces of a vdev that move to another one as they are (`spa_vdev_copy_one_child`).
//!
//! A piece has no checksum: it is whatever is allocated there, blocks or parts of blocks. So nothing tells which side of a
//! mirror is right where sides differ. Each side of the new vdev then gets the bytes of another side of the old one, as
//! far as there are as many: what could be read before can be read afterwards.

use super::submit::{LeafWrite, write_leaves};
use super::{BlockWrite, error};
use crate::queue::Priority;
use crate::submit::{LeafRead, Submit, read_leaves};
use crate::vdev::{Kind, Vdev};
use crate::{VdevError, VdevTree, mirror, tree};
use cenote_format::abd::Abd;
use std::sync::Arc;

impl VdevTree {
    /// What is on a top-level vdev that is a disk or mirror: the bytes of its sides, once if they are the same.
    ///
    /// # Errors
    /// No side can be read; the vdev is of another kind.
    pub fn read_sides(&self, vdev: u64, offset: u64, size: u64) -> Result<Vec<Abd>, VdevError> {
        let top = tree::top(self.root().children(), vdev)?;
        let failed = |why: &str| VdevError::Io { vdev, offset, why: why.into() };
        let holds = top.is_leaf() || top.vdev_kind() == Kind::Mirror;
        let size = usize::try_from(size).map_err(|_| failed("too large"))?;
        if !holds {
            return Err(failed("neither a disk nor a mirror"));
        }
        let mut leaves = Vec::new();
        mirror::copies(top, &mut leaves);
        // A side that lacks something has anything there.
        leaves.retain(|leaf| leaf.state().readable() && !leaf.is_behind());
        let read = |leaf: &Arc<Vdev>| LeafRead { leaf: leaf.clone(), offset, len: size };
        let reads: Vec<LeafRead> = leaves.iter().map(read).collect();
        let submit = Submit::new(&self.pool, Priority::Removal).patient();
        let results = read_leaves(submit, &reads);
        let mut sides: Vec<Abd> =
            results.into_iter().filter_map(|read| Some(read.ok()?.into_own())).collect();
        let first = sides.first().ok_or_else(|| failed("no side can be read"))?.bytes().to_vec();
        if sides.iter().all(|side| side.bytes()[..] == first[..]) {
            sides.truncate(1);
        }
        Ok(sides)
    }

    /// Writes a piece: to each side of the vdev the bytes of one of `sides`, of which `block` has the first.
    ///
    /// # Errors
    /// A side did not take it.
    pub fn write_sides(&self, block: &BlockWrite, sides: &[Abd]) -> Result<(), VdevError> {
        let mut leaves: Vec<Arc<Vdev>> = Vec::new();
        mirror::copies(tree::top(self.root().children(), block.vdev)?, &mut leaves);
        let done = self.write_many_as(Priority::Removal, std::slice::from_ref(block));
        done.into_iter().collect::<Result<(), VdevError>>()?;
        if leaves.iter().any(|leaf| !leaf.writable() || leaf.lacks(block.txg)) {
            return Err(error(block, "a device of the vdev does not take writes"));
        }
        let others = leaves.into_iter().zip(sides.iter().cycle()).skip(1);
        let others: Vec<LeafWrite> = others
            .filter(|_| sides.len() > 1)
            .map(|(leaf, side)| LeafWrite {
                leaf,
                offset: block.offset,
                data: side.clone(),
                txg: block.txg,
                content: block.content,
            })
            .collect();
        let written = write_leaves(&self.writer, Priority::Removal, &others);
        match written.into_iter().find_map(Result::err) {
            Some(why) => Err(error(block, why.to_string())),
            None => Ok(()),
        }
    }
}
