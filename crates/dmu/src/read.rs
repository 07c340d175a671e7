//! Bytes of an object (`dmu_read_impl`, `dmu_buf_hold_array_by_dnode`).
//!
//! A range of bytes is turned into the pointers of the data blocks that it touches; those that are
//! no holes are read in batches, so that the devices see many requests at once and checksums and
//! decompression use all cores. A batch is bounded in bytes: a huge range takes bounded memory.

use crate::tree::{Node, Tree};
use crate::{Object, Result, tunables};
use cenote_format::abd::Abd;
use cenote_store::{Access, Block, Bookmark};
use std::ops::RangeInclusive;

/// Bytes of data blocks in one batch.
const BATCH: u64 = 32 << 20;

impl Object {
    /// Reads into `buf` from byte `offset`; zeros in holes and past the last block (`dmu_read`). Fails if any
    /// block of the range cannot be read; `buf` then holds nothing of use.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let len = self.batch_len(at, rest.len());
            let (now, later) = rest.split_at_mut(len);
            let mut filled = 0;
            for piece in self.pieces(at, len)? {
                if let Some(dst) = now.get_mut(filled..filled + piece.len()) {
                    filled += dst.len();
                    piece.copy_to(0, dst);
                }
            }
            at = at.saturating_add(len as u64);
            rest = later;
        }
        Ok(())
    }

    /// `len` bytes from byte `offset`, which share the memory of the cache and of what is pending;
    /// zeros in holes and past the last block (`dmu_buf_hold_array`). The caller bounds `len`: all of it is in memory
    /// at once. Fails if any block of the range cannot be read.
    pub fn read_abd(&self, offset: u64, len: usize) -> Result<Abd> {
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < len {
            let at = offset.saturating_add(done as u64);
            let now = self.batch_len(at, len - done);
            pieces.append(&mut self.pieces(at, now)?);
            done += now;
        }
        Ok(Abd::gang(pieces))
    }

    /// Bytes of the batch that begins at byte `at`, where `left` remain to be read: at least one.
    fn batch_len(&self, at: u64, left: usize) -> usize {
        let size = self.dnode().block_size.max(1);
        let first = at / size;
        if first > self.dnode().max_block {
            return left;
        }
        let past = first.saturating_add((BATCH / size).max(1)).saturating_mul(size);
        past.saturating_sub(at).min(left as u64).max(1) as usize
    }

    /// The ones among `count` blocks from block `first` on that are no holes, with their numbers, in
    /// order; read as one batch, which the caller bounds.
    pub fn blocks(&self, first: u64, count: u64) -> Result<Vec<(u64, Block)>> {
        let Some(last) = first.checked_add(count).and_then(|end| end.checked_sub(1)) else {
            return Ok(Vec::new());
        };
        let mut blocks = self.pending_data(first..=last)?;
        let mut nodes = self.clones(first, last);
        let mut pending = !blocks.is_empty();
        if !nodes.is_empty() {
            pending = true;
            let read = read_nodes(&self.pending_tree(), &nodes)?;
            blocks.extend(nodes.drain(..).map(|n| n.blkid).zip(read));
        }
        if (blocks.len() as u64) < count
            && let Some(tree) = self.visible_tree()
        {
            let nodes = self.stored(&tree, first, last)?;
            let read = read_nodes(&tree, &nodes)?;
            blocks.extend(nodes.iter().map(|n| n.blkid).zip(read));
        }
        if pending {
            blocks.sort_unstable_by_key(|(blkid, _)| *blkid);
        }
        Ok(blocks)
    }

    /// What is pending among some blocks.
    pub(crate) fn pending_data(&self, blocks: RangeInclusive<u64>) -> Result<Vec<(u64, Block)>> {
        let Some(overlay) = self.overlay() else { return Ok(Vec::new()) };
        overlay.data(blocks).map_err(|e| self.undecodable(e))
    }

    /// Starts background reads of the blocks that hold `len` bytes (at most [`tunables::DMU_PREFETCH_MAX`]) from byte
    /// `offset` (`dmu_prefetch`). Errors are left for the read that needs the block.
    pub fn prefetch(&self, offset: u64, len: u64) {
        let _ = self.prefetch_for(offset, len, Access::Ahead);
    }

    /// As [`Object::prefetch`]; `access` says what is to become of the blocks when they were read.
    /// False if there was no room for some.
    pub(crate) fn prefetch_for(&self, offset: u64, len: u64, access: Access) -> bool {
        let size = self.dnode().block_size.max(1);
        let len = len.min(tunables::DMU_PREFETCH_MAX.get());
        let Some(last) = len.checked_sub(1).map(|len| offset.saturating_add(len) / size) else {
            return true;
        };
        let mut all = true;
        let first = offset / size;
        let (visible, pending) = (self.visible_tree(), self.pending_tree());
        let stored = visible.and_then(|tree| Some((tree, self.stored(&tree, first, last).ok()?)));
        for (tree, nodes) in stored.into_iter().chain([(pending, self.clones(first, last))]) {
            let wanted: Vec<_> = requests(&tree, &nodes).collect();
            if !wanted.is_empty() && nodes.iter().all(|n| tree.check_node(n).is_ok()) {
                all &= self.objset().store().prefetch(wanted, access);
            }
        }
        all
    }

    /// Starts background reads of the pointers of what comes behind byte `end`: to read that ahead does not wait for them then.
    pub(crate) fn prefetch_pointers(&self, end: u64) {
        let Some(tree) = self.visible_tree() else { return };
        let first = (end / self.dnode().block_size.max(1)).checked_shr(tree.fan()).unwrap_or(0);
        let node = |blkid| {
            let node = Node { level: 1, blkid, bp: tree.pointer(1, blkid).ok()? };
            (!node.bp.is_hole() && tree.check_node(&node).is_ok()).then_some(node)
        };
        let nodes: Vec<Node> = (first..=first.saturating_add(1)).filter_map(node).collect();
        if !nodes.is_empty() {
            // What finds no room is read by the reader.
            let _ =
                self.objset().store().prefetch(requests(&tree, &nodes).collect(), Access::Ahead);
        }
    }

    /// The data blocks on disk, from `first` to `last`, that are no holes and are still as they are
    /// on disk.
    fn stored(&self, tree: &Tree<'_>, first: u64, last: u64) -> Result<Vec<Node>> {
        let mut nodes = tree.data_pointers(first, last - first + 1)?;
        if let Some(overlay) = self.overlay() {
            nodes.retain(|n| overlay.is_clean(n.blkid));
        }
        Ok(nodes)
    }

    /// The pending clones among the blocks from `first` to `last`.
    fn clones(&self, first: u64, last: u64) -> Vec<Node> {
        let clones = self.overlay().map_or_else(Vec::new, |overlay| overlay.clones(first..=last));
        clones.into_iter().map(|(blkid, bp)| Node { level: 0, blkid, bp }).collect()
    }

    /// A batch of `len` bytes from byte `at`, in order: what blocks hold of it, and zeros.
    fn pieces(&self, at: u64, len: usize) -> Result<Vec<Abd>> {
        let size = self.dnode().block_size.max(1);
        let first = at / size;
        if first > self.dnode().max_block || at == u64::MAX {
            return Ok(vec![Abd::zeros(len)]);
        }
        let last = at.saturating_add(len as u64 - 1) / size;
        let blocks = self.blocks(first, last - first + 1)?;
        let mut pieces = Vec::with_capacity(blocks.len() + 1);
        let mut filled = 0;
        for (blkid, block) in &blocks {
            let start = blkid * size;
            let skip = at.saturating_sub(start) as usize;
            let to = (start.saturating_sub(at) as usize).min(len);
            if to > filled {
                pieces.push(Abd::zeros(to - filled));
            }
            let take = (size as usize - skip).min(len - to);
            let short =
                || self.tree().corrupt(format!("block {blkid}: {} bytes", block.data.len()));
            pieces.push(block.data.slice(skip, take).ok_or_else(short)?);
            filled = to + take;
        }
        if filled < len {
            pieces.push(Abd::zeros(len - filled));
        }
        Ok(pieces)
    }
}

fn requests<'t>(
    tree: &'t Tree<'_>,
    nodes: &'t [Node],
) -> impl Iterator<Item = (cenote_format::blkptr::BlockPointer, Bookmark)> + 't {
    nodes.iter().map(|n| (n.bp, tree.bookmark(n.level, n.blkid)))
}

/// Reads data blocks, as one batch.
pub(crate) fn read_nodes(tree: &Tree<'_>, nodes: &[Node]) -> Result<Vec<Block>> {
    match nodes {
        [] => Ok(Vec::new()),
        [one] => Ok(vec![tree.read_node(one)?]),
        many => {
            many.iter().try_for_each(|n| tree.check_node(n))?;
            let read = tree.read_many(many);
            Ok(read.into_iter().collect::<std::result::Result<Vec<_>, _>>()?)
        }
    }
}
