//! An object: a dnode and the blocks below it.

use crate::tree::Tree;
use crate::{ObjectSet, Result};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DnodePhys;
use cenote_format::{ByteOrder, Bytes};
use cenote_store::{Block, Bookmark};
use std::sync::Arc;

/// `DMU_SPILL_BLKID`: the block number under which the spill block goes in bookmarks.
pub const SPILL_BLKID: u64 = u64::MAX - 1;

/// A decoded dnode with its number and the byte order that its bonus buffer is in.
#[derive(Debug)]
pub(crate) struct Dnode {
    pub(crate) number: u64,
    pub(crate) phys: DnodePhys,
    pub(crate) order: ByteOrder,
}

/// An object of an object set: cheap to clone.
#[derive(Clone)]
pub struct Object {
    objset: Arc<ObjectSet>,
    dnode: Arc<Dnode>,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "object {} of objset {}", self.number(), self.objset.id())
    }
}

impl Object {
    pub(crate) fn new(objset: Arc<ObjectSet>, dnode: Arc<Dnode>) -> Object {
        Object { objset, dnode }
    }

    pub(crate) fn tree(&self) -> Tree<'_> {
        Tree {
            store: self.objset.store(),
            objset: self.objset.id(),
            object: self.dnode.number,
            dnode: &self.dnode.phys,
        }
    }

    /// The object's number: 0 for the meta dnode, `u64::MAX` and below for the accounting objects.
    pub fn number(&self) -> u64 {
        self.dnode.number
    }

    /// The object set it belongs to.
    pub fn objset(&self) -> &Arc<ObjectSet> {
        &self.objset
    }

    /// The decoded dnode.
    pub fn dnode(&self) -> &DnodePhys {
        &self.dnode.phys
    }

    /// Byte order in which the dnode (and so its bonus) was written.
    pub fn order(&self) -> ByteOrder {
        self.dnode.order
    }

    /// The bonus buffer.
    pub fn bonus(&self) -> Bytes<'_> {
        Bytes::new(&self.dnode.phys.bonus, self.dnode.order, "bonus buffer")
    }

    /// The spill block, if there is one.
    pub fn spill(&self) -> Result<Option<Block>> {
        let Some(bp) = self.dnode.phys.spill.filter(|bp| !bp.is_hole()) else { return Ok(None) };
        let (objset, object) = (self.objset.id(), self.dnode.number);
        let at = Bookmark { objset, object, level: 0, blkid: SPILL_BLKID };
        Ok(Some(self.objset.store().read(&bp, at)?))
    }

    /// The block pointer of block `blkid` of level `level`; a hole where an ancestor is a hole, past
    /// the last block, and above the top level.
    pub fn block_pointer(&self, level: u8, blkid: u64) -> Result<BlockPointer> {
        self.tree().pointer(level, blkid)
    }

    /// Data block `blkid`; `None` for a hole.
    pub fn block(&self, blkid: u64) -> Result<Option<Block>> {
        self.tree().block(blkid)
    }
}
