//! The tree of blocks below a dnode (`dbuf_findbp`).
//!
//! A dnode of `levels` levels has 1 to 3 block pointers of level `levels - 1`. A pointer of level
//! 0 leads to data; one of level *l* to an indirect block, which is an array of 2^`fan` pointers
//! of level *l* - 1. Block `b` of level *l* is pointer `b mod 2^fan` of block `b >> fan` of level
//! *l* + 1. A hole stands for a subtree of holes.
//!
//! Invariants: a pointer that is followed has the level and the size that its place demands, and one
//! that leads to pointers leads to a stored block; block numbers past `max_block` are holes. What is read at level 0 is
//! little-endian, whatever machine wrote it.

use crate::{Error, Result};
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dmu::{DmuType, DnodePhys};
use cenote_format::{ByteOrder, Bytes, DecodeError, turn};
use cenote_store::{Block, BlockError, Bookmark, Store};
use std::collections::HashSet;
use std::sync::Arc;

/// A dnode with what it takes to read the blocks below it.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    /// Where the blocks are read.
    pub store: &'a Arc<Store>,
    /// The object set, by the number that it has in bookmarks.
    pub objset: u64,
    /// The object.
    pub object: u64,
    /// Its dnode.
    pub dnode: &'a DnodePhys,
    /// Its pointers are of this group (see [`Store::as_of`]).
    pub as_of: Option<u64>,
}

/// A block pointer and its place: level and number within the level.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// 0 for data.
    pub level: u8,
    /// Number within the level.
    pub blkid: u64,
    /// The pointer.
    pub bp: BlockPointer,
}

impl<'a> Tree<'a> {
    /// log2 of the pointers in an indirect block.
    pub fn fan(&self) -> u32 {
        u32::from(self.dnode.indirect_shift).saturating_sub(BLKPTR_SIZE.trailing_zeros())
    }

    /// Level of the pointers in the dnode.
    pub(crate) fn top(&self) -> u8 {
        self.dnode.levels.saturating_sub(1)
    }

    /// Data blocks below one pointer of level `level`.
    pub(crate) fn span(&self, level: u8) -> u64 {
        1u64.checked_shl(self.fan().saturating_mul(level.into())).unwrap_or(u64::MAX)
    }

    /// The number, at level `up` levels higher, of the block above block `blkid`.
    fn ancestor(&self, blkid: u64, up: u8) -> u64 {
        blkid.checked_shr(self.fan().saturating_mul(up.into())).unwrap_or(0)
    }

    /// Checks that the tree is deep enough for the last block.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self) -> Result<()> {
        let d = self.dnode;
        let roots = self.ancestor(d.max_block, self.top());
        if roots < d.pointers.len() as u64 {
            return Ok(());
        }
        let (levels, n) = (d.levels, d.pointers.len());
        Err(self.corrupt(format!("{levels} levels, {n} pointers, but last block {}", d.max_block)))
    }

    /// What is wrong with the object.
    pub fn corrupt(&self, why: impl Into<String>) -> Error {
        Error::Corrupt { objset: self.objset, object: self.object, why: why.into() }
    }

    /// Something of the object that cannot be decoded.
    pub fn decode_error(&self, source: DecodeError) -> Error {
        Error::Decode { objset: self.objset, object: self.object, source }
    }

    /// The block's name in errors and error logs.
    pub fn bookmark(&self, level: u8, blkid: u64) -> Bookmark {
        Bookmark { objset: self.objset, object: self.object, level: level.into(), blkid }
    }

    /// The pointers in the dnode.
    pub fn roots(&self) -> impl Iterator<Item = Node> + use<'a> {
        let level = self.top();
        (0u64..).zip(&self.dnode.pointers).map(move |(blkid, bp)| Node { level, blkid, bp: *bp })
    }

    /// Checks that a pointer that is not a hole fits its place.
    ///
    /// # Errors
    /// It has another level or size.
    pub fn check_node(&self, node: &Node) -> Result<()> {
        let size = match node.level {
            0 => self.dnode.block_size,
            _ => 1 << self.dnode.indirect_shift.min(63),
        };
        let (level, lsize) = (node.bp.level(), node.bp.lsize());
        if level > 0 && node.bp.is_embedded() {
            // OpenZFS embeds data only. A few bytes of embedded pointers could stand for a tree
            // of any size, nothing of which is stored.
            return Err(self.corrupt(format!("block {} of level {level}: embedded", node.blkid)));
        }
        if level == node.level && lsize == size {
            return Ok(());
        }
        Err(self.corrupt(format!(
            "block {} of level {}: pointer of level {level}, {lsize} bytes instead of {size}",
            node.blkid, node.level
        )))
    }

    /// Reads the block behind a pointer that is not a hole. One of level 0 is little-endian.
    pub(crate) fn read_node(&self, node: &Node) -> Result<Block> {
        self.check_node(node)?;
        let at = self.bookmark(node.level, node.blkid);
        let block = Store::as_of(self.as_of, || self.store.read(&node.bp, at))?;
        Ok(turned(&node.bp, block))
    }

    /// Reads blocks of the tree, as one batch. Those of level 0 are little-endian.
    pub(crate) fn read_many<'n>(
        &self,
        nodes: impl IntoIterator<Item = &'n Node>,
    ) -> Vec<std::result::Result<Block, BlockError>> {
        let wanted = nodes.into_iter().map(|n| (n.bp, self.bookmark(n.level, n.blkid)));
        let wanted: Vec<_> = wanted.collect();
        let read = Store::as_of(self.as_of, || self.store.read_many(&wanted));
        let turn = |(block, (bp, _)): (std::result::Result<_, _>, &(BlockPointer, _))| {
            block.map(|block| turned(bp, block))
        };
        read.into_iter().zip(&wanted).map(turn).collect()
    }

    /// Pointer `index` of an indirect block. Decodes that pointer only.
    fn child_pointer(&self, block: &Block, index: u64) -> Result<BlockPointer> {
        let at = (index as usize).saturating_mul(BLKPTR_SIZE);
        let mut copy = [0; BLKPTR_SIZE];
        let bytes = match block.data.as_contiguous() {
            Some(all) => all.get(at..at.saturating_add(BLKPTR_SIZE)),
            None => block.data.copy_to(at, &mut copy).map(|()| copy.as_slice()),
        };
        let bytes =
            bytes.ok_or_else(|| self.corrupt(format!("indirect block without pointer {index}")))?;
        let bytes = Bytes::new(bytes, block.order, "indirect block");
        BlockPointer::decode(&bytes, 0).map_err(|e| self.decode_error(e))
    }

    /// Pointers in an indirect block.
    pub fn fan_out(&self) -> u64 {
        1 << self.fan()
    }

    /// Pointer `index` of the indirect block behind `node`, with its place.
    ///
    /// # Errors
    /// The block is too short, or the pointer cannot be decoded.
    pub fn child(&self, node: &Node, block: &Block, index: u64) -> Result<Node> {
        let blkid = node.blkid.saturating_mul(self.fan_out()).saturating_add(index);
        let bp = self.child_pointer(block, index)?;
        Ok(Node { level: node.level.saturating_sub(1), blkid, bp })
    }

    /// The pointers of the indirect block behind `node` that are not holes.
    pub(crate) fn children(&self, node: &Node, block: &Block) -> Result<Vec<Node>> {
        let children = (0..self.fan_out()).map(|index| self.child(node, block, index));
        children.filter(|n| n.as_ref().map_or(true, |n| !n.bp.is_hole())).collect()
    }

    /// The pointer at (level, blkid); [`BlockPointer::HOLE`] below a hole and past the end.
    pub(crate) fn pointer(&self, level: u8, blkid: u64) -> Result<BlockPointer> {
        let top = self.top();
        if level > top || blkid > self.ancestor(self.dnode.max_block, level) {
            return Ok(BlockPointer::HOLE);
        }
        let root = self.ancestor(blkid, top - level);
        let roots = &self.dnode.pointers;
        let Some(bp) = usize::try_from(root).ok().and_then(|i| roots.get(i)) else {
            return Ok(BlockPointer::HOLE);
        };
        let mut node = Node { level: top, blkid: root, bp: *bp };
        while node.level > level {
            if node.bp.is_hole() {
                return Ok(BlockPointer::HOLE);
            }
            let block = self.read_node(&node)?;
            let below = node.level - 1;
            let child = self.ancestor(blkid, below - level);
            let bp = self.child_pointer(&block, child & (self.fan_out() - 1))?;
            node = Node { level: below, blkid: child, bp };
        }
        Ok(node.bp)
    }

    /// Reads the indirect blocks above the data blocks from `first` to `last`
    /// (`dmu_tx_check_ioerr`): what a sync reads that changes or frees these. One batch for each level.
    pub(crate) fn read_indirect(&self, first: u64, last: u64) -> Result<()> {
        let wanted = |node: &Node| {
            let start = node.blkid.saturating_mul(self.span(node.level));
            let end = start.saturating_add(self.span(node.level) - 1);
            node.level > 0 && !node.bp.is_hole() && start <= last && end >= first
        };
        let mut nodes: Vec<Node> = self.roots().filter(wanted).collect();
        let mut seen = HashSet::new();
        while !nodes.is_empty() {
            nodes.iter().try_for_each(|node| self.check_node(node))?;
            if nodes.len() > 1 && !nodes.iter().all(|node| seen.insert(node.bp.dva(0))) {
                return Err(self.corrupt("an indirect block is linked twice"));
            }
            let blocks = self.read_many(&nodes);
            let mut below = Vec::new();
            for (node, block) in nodes.iter().zip(blocks) {
                let block = block?;
                if node.level > 1 {
                    let span = self.span(node.level - 1);
                    let start = node.blkid.saturating_mul(self.span(node.level));
                    let to = (last.saturating_sub(start) / span).min(self.fan_out() - 1);
                    for index in first.saturating_sub(start) / span..=to {
                        below.extend(Some(self.child(node, &block, index)?).filter(wanted));
                    }
                }
            }
            nodes = below;
        }
        Ok(())
    }

    /// The data blocks that are not holes among `count` blocks from `first`.
    pub(crate) fn data_pointers(&self, first: u64, count: u64) -> Result<Vec<Node>> {
        let end = first.saturating_add(count).min(self.dnode.max_block.saturating_add(1));
        let mut out = Vec::new();
        if self.top() == 0 {
            out.extend(self.roots().filter(|n| (first..end).contains(&n.blkid) && !n.bp.is_hole()));
            return Ok(out);
        }
        let (fan, fan_out) = (self.fan(), self.fan_out());
        let mut next = first;
        while next < end {
            let parent = Node { level: 1, blkid: next >> fan, bp: self.pointer(1, next >> fan)? };
            let stop = end.min((parent.blkid + 1).saturating_mul(fan_out));
            if !parent.bp.is_hole() {
                let block = self.read_node(&parent)?;
                for blkid in next..stop {
                    let bp = self.child_pointer(&block, blkid & (fan_out - 1))?;
                    if !bp.is_hole() {
                        out.push(Node { level: 0, blkid, bp });
                    }
                }
            }
            next = stop;
        }
        Ok(out)
    }

    /// Data block `blkid`; `None` for a hole.
    pub(crate) fn block(&self, blkid: u64) -> Result<Option<Block>> {
        let bp = self.pointer(0, blkid)?;
        if bp.is_hole() {
            Ok(None)
        } else {
            self.read_node(&Node { level: 0, blkid, bp }).map(Some)
        }
    }
}

/// A block of level 0 as this machine would have written it (`arc_byteswap_func`); others are as they were.
pub(crate) fn turned(bp: &BlockPointer, block: Block) -> Block {
    if block.order == ByteOrder::Little || bp.level() > 0 {
        return block;
    }
    let (kind, order) = (DmuType(bp.object_type()), ByteOrder::Little);
    if turn::has_no_order(kind) {
        return Block { order, ..block };
    }
    let mut data = block.data.to_vec();
    turn::from_big_endian(kind, &mut data);
    Block { data: Abd::from_vec(data), order }
}
