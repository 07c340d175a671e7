//! Bytes of an object.
//!
//! A range of bytes is turned into the pointers of the data blocks that it touches; those that are
//! no holes are read in batches, so that the devices see many requests at once and checksums and
//! decompression use all cores. A batch is bounded in bytes: a huge range takes bounded memory.

use crate::tree::{Node, Tree};
use crate::{Object, Result};
use cenote_store::{Block, Bookmark};

/// Bytes of data blocks in one batch.
const BATCH: u64 = 32 << 20;
/// Bytes that one call of [`Object::prefetch`] covers at most.
const PREFETCH: u64 = 64 << 20;

impl Object {
    /// Reads into `buf` from byte `offset`; zeros in holes and past the last block. Fails if any
    /// block of the range cannot be read; `buf` then holds nothing of use.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let tree = self.tree();
        let size = tree.dnode.block_size.max(1);
        let batch = (BATCH / size).max(1);
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let first = at / size;
            if first > tree.dnode.max_block || at == u64::MAX {
                rest.fill(0);
                break;
            }
            let past = first.saturating_add(batch).saturating_mul(size);
            let len = (past - at).min(rest.len() as u64).max(1) as usize;
            let (now, later) = rest.split_at_mut(len);
            read_batch(&tree, at, now)?;
            at = at.saturating_add(len as u64);
            rest = later;
        }
        Ok(())
    }

    /// Starts background reads of the blocks that hold `len` bytes (at most 64 MiB) from byte
    /// `offset`. Errors are left for the read that needs the block.
    pub fn prefetch(&self, offset: u64, len: u64) {
        let tree = self.tree();
        let size = tree.dnode.block_size.max(1);
        let len = len.min(PREFETCH);
        if len == 0 {
            return;
        }
        let (first, last) = (offset / size, offset.saturating_add(len - 1) / size);
        let Ok(nodes) = tree.data_pointers(first, last - first + 1) else { return };
        let wanted: Vec<_> = requests(&tree, &nodes).collect();
        if !wanted.is_empty() && nodes.iter().all(|n| tree.check_node(n).is_ok()) {
            self.objset().store().prefetch(wanted);
        }
    }
}

fn requests<'t>(
    tree: &'t Tree<'_>,
    nodes: &'t [Node],
) -> impl Iterator<Item = (cenote_format::blkptr::BlockPointer, Bookmark)> + 't {
    nodes.iter().map(|n| (n.bp, tree.bookmark(n.level, n.blkid)))
}

fn read_batch(tree: &Tree<'_>, at: u64, buf: &mut [u8]) -> Result<()> {
    let size = tree.dnode.block_size.max(1);
    let last = at.saturating_add(buf.len() as u64 - 1) / size;
    let nodes = tree.data_pointers(at / size, last - at / size + 1)?;
    let blocks = match nodes.as_slice() {
        [] => Vec::new(),
        [one] => vec![tree.read_node(one)?],
        many => {
            many.iter().try_for_each(|n| tree.check_node(n))?;
            let wanted: Vec<_> = requests(tree, many).collect();
            let read = tree.store.read_many(&wanted);
            read.into_iter().collect::<std::result::Result<Vec<_>, _>>()?
        }
    };
    let mut filled = 0;
    for (node, block) in nodes.iter().zip(&blocks) {
        filled = place(tree, at, buf, filled, node.blkid, block)?;
    }
    if let Some(tail) = buf.get_mut(filled..) {
        tail.fill(0);
    }
    Ok(())
}

/// Copies what `buf` (which starts at byte `at` of the object and is filled up to `filled`) wants
/// of block `blkid`, zeros before it, and returns how far `buf` is filled then.
fn place(
    tree: &Tree<'_>,
    at: u64,
    buf: &mut [u8],
    filled: usize,
    blkid: u64,
    block: &Block,
) -> Result<usize> {
    let start = blkid.saturating_mul(tree.dnode.block_size);
    let skip = at.saturating_sub(start) as usize;
    let to = (start.saturating_sub(at) as usize).min(buf.len());
    let len = (tree.dnode.block_size as usize).saturating_sub(skip).min(buf.len() - to);
    if let Some(gap) = buf.get_mut(filled..to) {
        gap.fill(0);
    }
    let copied = buf.get_mut(to..to + len).and_then(|dst| block.data.copy_to(skip, dst));
    match copied {
        Some(()) => Ok(to + len),
        None => Err(tree.corrupt(format!("block {blkid}: {} bytes", block.data.len()))),
    }
}
