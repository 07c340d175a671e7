//! An object: a dnode and the blocks below it (`dnode_t`).
//!
//! An object of an object set that is being written may have an overlay of pending changes. Whatever
//! reads the object reads through it; only [`Object::walk`] does not, since what is pending has no
//! pointers.

use crate::dnode::Dnode;
use crate::overlay::{Overlay, Pending, pending_pointer};
use crate::tree::{Node, Tree, turned};
use crate::{Error, ObjectSet, Result};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DnodePhys;
use cenote_format::{ByteOrder, Bytes, DecodeError};
use cenote_store::{Block, Bookmark, Store};
use std::sync::Arc;

/// `DMU_SPILL_BLKID`: the block number under which the spill block goes in bookmarks.
pub const SPILL_BLKID: u64 = u64::MAX - 1;

/// An object of an object set (`dnode_t`): cheap to clone.
#[derive(Clone)]
pub struct Object {
    objset: Arc<ObjectSet>,
    dnode: Arc<Dnode>,
    overlay: Option<Arc<Overlay>>,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "object {} of objset {}", self.number(), self.objset.id())
    }
}

impl Object {
    pub(crate) fn new(objset: Arc<ObjectSet>, dnode: Arc<Dnode>) -> Object {
        Object { objset, dnode, overlay: None }
    }

    /// Whether some of it is not on disk yet.
    pub fn is_pending(&self) -> bool {
        self.overlay.is_some()
    }

    /// The object as `dnode` and `overlay` say that it is going to be.
    pub(crate) fn pending(
        objset: Arc<ObjectSet>,
        dnode: Arc<Dnode>,
        overlay: Arc<Overlay>,
    ) -> Object {
        Object { objset, dnode, overlay: Some(overlay) }
    }

    /// The tree of blocks on disk.
    pub(crate) fn tree(&self) -> Tree<'_> {
        let on_disk = self.overlay.as_ref().map_or(&self.dnode, |overlay| &overlay.disk);
        Tree {
            store: self.objset.store(),
            objset: self.objset.id(),
            object: self.dnode.number,
            dnode: &on_disk.phys,
            as_of: self.objset.as_of(),
        }
    }

    pub(crate) fn overlay(&self) -> Option<&Overlay> {
        self.overlay.as_deref()
    }

    /// The tree of blocks on disk, if anything of it can be seen.
    pub(crate) fn visible_tree(&self) -> Option<Tree<'_>> {
        let tree = self.tree();
        let same_size = tree.dnode.block_size == self.dnode.phys.block_size;
        Some(tree).filter(|_| same_size || self.overlay.is_none())
    }

    /// The dnode as it is going to be: what clones of blocks on disk are read by.
    pub(crate) fn pending_tree(&self) -> Tree<'_> {
        let (store, objset, as_of) = (self.objset.store(), self.objset.id(), self.objset.as_of());
        Tree { store, objset, object: self.dnode.number, dnode: &self.dnode.phys, as_of }
    }

    pub(crate) fn arc_dnode(&self) -> &Arc<Dnode> {
        &self.dnode
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

    /// The bonus buffer (`dmu_bonus_hold`).
    pub fn bonus(&self) -> Bytes<'_> {
        Bytes::new(&self.dnode.phys.bonus, ByteOrder::Little, "bonus buffer")
    }

    /// The spill block, if there is one (`dmu_spill_hold_existing`).
    pub fn spill(&self) -> Result<Option<Block>> {
        if let Some(pending) = self.overlay().and_then(Overlay::spill) {
            let order = ByteOrder::Little;
            let Some(pending) = pending else { return Ok(None) };
            let (objset, object) = (self.objset.id(), self.dnode.number);
            let decode = |source| Error::Decode { objset, object, source };
            let data = pending.unpacked().map_err(decode)?;
            return Ok(Some(Block { data, order }));
        }
        let Some(bp) = self.dnode.phys.spill.filter(|bp| !bp.is_hole()) else { return Ok(None) };
        let (objset, object) = (self.objset.id(), self.dnode.number);
        let at = Bookmark { objset, object, level: 0, blkid: SPILL_BLKID };
        let read = || self.objset.store().read(&bp, at);
        let block = Store::as_of(self.objset.as_of(), read)?;
        Ok(Some(turned(&bp, block)))
    }

    /// The block pointer of block `blkid` of level `level`; a hole where an ancestor is a hole, past
    /// the last block, and above the top level. For a data block that is pending, some pointer that
    /// is no hole and cannot be read, unless it is a clone; for indirect blocks the pointer on disk.
    pub fn block_pointer(&self, level: u8, blkid: u64) -> Result<BlockPointer> {
        if let Some(overlay) = self.overlay().filter(|_| level == 0) {
            match overlay.block(blkid) {
                Some(Pending::Data(data)) => {
                    return Ok(pending_pointer(self.dnode.phys.kind, data.len()));
                }
                Some(Pending::Clone(bp)) => return Ok(*bp),
                Some(Pending::Hole) => return Ok(BlockPointer::HOLE),
                None => {}
            }
        }
        let tree = self.visible_tree();
        tree.map_or(Ok(BlockPointer::HOLE), |tree| tree.pointer(level, blkid))
    }

    /// What is pending of the object makes no sense.
    pub(crate) fn undecodable(&self, source: DecodeError) -> Error {
        Error::Decode { objset: self.objset.id(), object: self.dnode.number, source }
    }

    /// Data block `blkid`; `None` for a hole (`dbuf_hold`, `dbuf_read`, `dbuf_read_impl`, `dbuf_hold_impl`).
    pub fn block(&self, blkid: u64) -> Result<Option<Block>> {
        match self.overlay().and_then(|overlay| overlay.block(blkid)) {
            Some(Pending::Data(data)) => {
                let data = data.unpacked().map_err(|e| self.undecodable(e))?;
                Ok(Some(Block { data, order: ByteOrder::Little }))
            }
            Some(Pending::Clone(bp)) => {
                self.pending_tree().read_node(&Node { level: 0, blkid, bp: *bp }).map(Some)
            }
            Some(Pending::Hole) => Ok(None),
            None => self.visible_tree().map_or(Ok(None), |tree| tree.block(blkid)),
        }
    }
}
