//! Writing blocks anew as they are (`zfs rewrite`, `dmu_buf_will_dirty` without a change).
//!
//! # Idea
//!
//! What is on disk is [gathered](crate::live::LiveObjectSet::gather) without any lock: the blocks of
//! a range with their pointers. Then, in a transaction, [`OpenObjectSet::rewrite`] makes those dirty
//! that are still the same. A block whose pointer is another one by then was written meanwhile, and
//! so has a new place already; one that became a hole stays a hole.
//!
//! Such a block is *forced*: the floor below must not leave it where it is because its contents are
//! what they were (`nopwrite`). With [`Births::Kept`] it also keeps its logical birth (`dmu_buf_will_rewrite`),
//! as long as nothing else changes it in the same group.
//!
//! Invariant: a rewrite changes nothing that can be read, and only makes blocks dirty.

use super::object::{OpenObject, Place};
use super::{OpenObjectSet, Result};
use crate::Object;
use crate::overlay::Pending;
use crate::read::read_nodes;
use crate::tree::Node;
use cenote_format::blkptr::BlockPointer;
use cenote_store::Block;
use std::collections::BTreeMap;

/// A block as it was when it was gathered.
struct Gathered {
    blkid: u64,
    /// The pointer on disk; a hole if there was none and the block was pending.
    bp: BlockPointer,
    block: Block,
}

/// What blocks that are written anew are born in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Births {
    /// The group that writes them: incremental streams contain them.
    #[default]
    New,
    /// The group that changed their contents last (feature `physical_rewrite`).
    Kept,
}

/// Which blocks of an object are left alone; a pointer on disk is asked for.
pub type Spare<'a> = dyn Fn(&BlockPointer) -> bool + 'a;

/// Blocks of an object to be written anew.
pub struct Gather {
    block_size: u64,
    blocks: Vec<Gathered>,
}

impl Gather {
    /// Logical bytes of the blocks.
    pub fn bytes(&self) -> u64 {
        self.block_size * self.blocks.len() as u64
    }
}

impl Object {
    /// The data blocks that hold `len` bytes from byte `offset`: what is stored, or is going to be.
    /// Left out are holes, embedded blocks, which have no place, and blocks on disk that are to be spared. To be given
    /// to [`OpenObjectSet::rewrite`].
    pub fn gather(&self, offset: u64, len: u64, spare: &Spare<'_>) -> crate::Result<Gather> {
        let block_size = self.dnode().block_size.max(1);
        let Some(last) = len.checked_sub(1).map(|len| offset.saturating_add(len) / block_size)
        else {
            return Ok(Gather { block_size, blocks: Vec::new() });
        };
        let first = offset / block_size;
        let (mut nodes, mut pending) = (Vec::new(), BTreeMap::new());
        pending.extend(self.pending_data(first..=last)?);
        let tree = self.visible_tree();
        if let Some(tree) = &tree {
            nodes = tree.data_pointers(first, (last - first).saturating_add(1))?;
        }
        let pointers: BTreeMap<u64, BlockPointer> = nodes.iter().map(|n| (n.blkid, n.bp)).collect();
        nodes.retain(|n: &Node| {
            let clean = self.overlay().is_none_or(|overlay| overlay.is_clean(n.blkid));
            clean && !n.bp.is_embedded() && !spare(&n.bp)
        });
        let read = match &tree {
            Some(tree) => read_nodes(tree, &nodes)?,
            None => Vec::new(),
        };
        let clean = nodes.iter().map(|n| n.blkid).zip(read);
        let with_pointer = |(blkid, block)| {
            let bp = pointers.get(&blkid).copied().unwrap_or(BlockPointer::HOLE);
            Gathered { blkid, bp, block }
        };
        let blocks = clean.chain(pending).map(with_pointer).collect();
        Ok(Gather { block_size, blocks })
    }
}

impl OpenObject {
    /// Makes blocks that are still what was gathered dirty. Returns the bytes that are written anew.
    fn rewrite(&mut self, place: &Place<'_>, gathered: &Gather, births: Births) -> Result<u64> {
        let size = self.phys().block_size;
        if size != gathered.block_size {
            // The one block of the object has grown: it was written meanwhile.
            return Ok(0);
        }
        self.check_size(place, size)?;
        let mut bytes = 0u64;
        for Gathered { blkid, bp, block } in &gathered.blocks {
            let open = self.pending.top.dirty(*blkid).is_some();
            // What this group has changed by now is born in it.
            let is_changed = self.pending.top.is_dirty(*blkid);
            let below = match self.pending.block(*blkid) {
                _ if open => None,
                Some(Pending::Hole) => continue,
                Some(Pending::Data(quiesced)) => Some(quiesced.clone()),
                Some(Pending::Clone(_)) => self.block(place, *blkid)?.map(Into::into),
                None if bp.is_hole() || self.on_disk(place, *blkid)? != *bp => continue,
                None => Some(block.data.clone().into()),
            };
            if let Some(data) = below {
                self.put(*blkid, data);
            }
            self.note_ranges();
            match births {
                Births::Kept if !is_changed => self.pending.top.keep_birth(*blkid),
                _ => self.pending.top.force(*blkid),
            }
            bytes += size;
        }
        Ok(bytes)
    }

    /// The pointer on disk of a block of which nothing is pending.
    pub(super) fn on_disk(&self, place: &Place<'_>, blkid: u64) -> Result<BlockPointer> {
        let tree = self.tree(place);
        match tree.dnode.block_size == self.phys().block_size {
            true => Ok(tree.pointer(0, blkid)?),
            false => Ok(BlockPointer::HOLE),
        }
    }
}

impl OpenObjectSet {
    /// Has the blocks of an object written anew, at another place, as far as they are what was
    /// gathered; nothing else about the object changes. Returns the bytes that are written: of whole
    /// blocks, before compression.
    pub fn rewrite(&mut self, number: u64, gathered: &Gather, births: Births) -> Result<u64> {
        self.with(number, |object, place| object.rewrite(place, gathered, births))
    }
}
