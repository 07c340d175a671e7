//! Which part of an object one transaction may free: a *delete chunk* (`get_next_chunk`).
//!
//! A transaction group has all pointers that are freed in it in memory, and reads every indirect block
//! that they are in. So long ranges are freed in chunks, from their end, with a transaction for each
//! (`dmu_free_long_range`). Fill counts tell how much is below an indirect block, so that one block of
//! each level is read to find where a chunk begins.
//!
//! What is pending does not count: it is in memory anyway, and more of it than its pointers.
//!
//! Invariants: a chunk is not empty unless the range is, so that chunks come to an end; a search reads
//! one block of each level at most, whatever fill counts say.

use crate::tree::{Node, Tree};
use crate::{Object, Result};

/// What an indirect block, which has to be read, counts for in pointers, which only have to be freed.
const INDIRECT: u64 = 64;

/// The last part of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeleteChunk {
    /// Byte where it begins: that of a block, or of the range.
    pub start: u64,
    /// Pointers in it that are on disk, indirect blocks counted several times.
    pub pointers: u64,
}

/// The search for the start of a chunk, in numbers of data blocks.
struct Search {
    first: u64,
    end: u64,
    most: u64,
    taken: u64,
}

impl Object {
    /// The last part of the bytes from `from` to `end` that has about `most` pointers: more if a single
    /// indirect block has.
    pub fn last_delete_chunk(&self, from: u64, end: u64, most: u64) -> Result<DeleteChunk> {
        let size = self.dnode().block_size.max(1);
        let whole = |pointers| Ok(DeleteChunk { start: from, pointers });
        let Some(tree) = self.visible_tree() else { return whole(1) };
        let end = end.min(self.blocks_end());
        if from >= end {
            return whole(0);
        }
        let mut search = Search { first: from / size, end: end.div_ceil(size), most, taken: 0 };
        let roots: Vec<Node> = tree.roots().collect();
        for node in roots.iter().rev() {
            if let Some(block) = tree.cut(node, &mut search)? {
                let start = block.saturating_mul(size).max(from);
                return Ok(DeleteChunk { start, pointers: search.taken });
            }
        }
        whole(search.taken)
    }
}

impl Tree<'_> {
    /// What a pointer and all below it count for.
    fn weight(&self, node: &Node) -> u64 {
        if node.bp.is_hole() {
            return 0;
        }
        let data = if node.level == 0 { 1 } else { node.bp.fill().clamp(1, self.span(node.level)) };
        let indirect = (0..node.level).map(|above| data.min(self.span(above)));
        let indirect = indirect.fold(0, u64::saturating_add).saturating_mul(INDIRECT);
        data.saturating_add(indirect)
    }

    /// Takes from the end what is below `node`; the block that the chunk begins with, if not all of
    /// it fits.
    fn cut(&self, node: &Node, search: &mut Search) -> Result<Option<u64>> {
        let span = self.span(node.level);
        let start = node.blkid.saturating_mul(span);
        let past = start.saturating_add(span).min(search.end);
        if past <= search.first || start >= search.end {
            return Ok(None);
        }
        let weight = self.weight(node);
        let all = search.taken.saturating_add(weight);
        if all <= search.most {
            search.taken = all;
            return Ok(None);
        }
        if node.level <= 1 {
            let empty = search.taken == 0;
            search.taken = if empty { weight } else { search.taken };
            return Ok(Some(if empty { start } else { past }));
        }
        let block = self.read_node(node)?;
        let below = self.span(node.level - 1).max(1);
        let first = search.first.saturating_sub(start) / below;
        let last = (past - 1 - start) / below;
        for index in (first..=last.min(self.fan_out() - 1)).rev() {
            if let Some(found) = self.cut(&self.child(node, &block, index)?, search)? {
                return Ok(Some(found));
            }
        }
        // There was less than the fill count said. To look further is not worth it, and could take as
        // long as fill counts that lie make it.
        Ok(Some(start))
    }
}
