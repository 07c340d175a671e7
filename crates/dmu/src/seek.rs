//! Next data, next hole (`dnode_next_offset`; `SEEK_DATA`, `SEEK_HOLE`).
//!
//! A depth-first search from the given block. A hole in an indirect block answers for its whole
//! subtree; for holes, so does a pointer whose fill count says that the subtree is full. Hence the
//! cost follows the number of indirect blocks on the way, not the size of the object.
//!
//! With pending changes, the search goes from run to run of blocks that are dirty, freed or on disk.
//!
//! A hostile tree can reach one block from many places and so pretend to be enormous. A block that
//! was searched from its start in vain is not searched again.

use crate::overlay::{Overlay, Pending};
use crate::tree::{Node, Tree};
use crate::{Object, Result};
use cenote_format::blkptr::Dva;
use cenote_format::dmu::DmuType;
use std::collections::HashSet;

/// Where data or a hole begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Blocks that are stored.
    Data,
    /// Blocks that are not.
    Hole,
}

impl Object {
    /// Start of the next data or hole at or after byte `offset` (`dmu_offset_next`): `offset` itself if it is inside
    /// one, else the first byte of a block. `None` if no such byte comes up to the last block.
    pub fn seek(&self, offset: u64, what: Seek) -> Result<Option<u64>> {
        let size = self.dnode().block_size.max(1);
        let found = match self.overlay() {
            None => self.tree().next_block(offset / size, what, &mut |_| Ok(true))?,
            Some(overlay) => self.seek_pending(overlay, offset / size, what)?,
        };
        Ok(found.and_then(|blkid| blkid.checked_mul(size)).map(|start| start.max(offset)))
    }

    /// Where the last block that may be stored ends: what an object holds from there on is a hole.
    pub fn blocks_end(&self) -> u64 {
        let dnode = self.dnode();
        dnode.max_block.saturating_add(1).saturating_mul(dnode.block_size.max(1))
    }

    /// The first block from `from` on that is data, or a hole, among pending changes and what is on
    /// disk: run by run of blocks for which the answer comes from the same place.
    fn seek_pending(&self, overlay: &Overlay, from: u64, what: Seek) -> Result<Option<u64>> {
        let mut blkid = from;
        while blkid <= self.dnode().max_block {
            let state = overlay.block(blkid);
            match (&state, what) {
                (Some(Pending::Data(_) | Pending::Clone(_)), Seek::Data)
                | (Some(Pending::Hole), Seek::Hole) => {
                    return Ok(Some(blkid));
                }
                _ => {}
            }
            let end = overlay.next_change(blkid);
            if state.is_none() {
                let found = self.seek_on_disk(blkid, what)?;
                if let Some(found) = found.filter(|b| *b < end) {
                    return Ok(Some(found).filter(|b| *b <= self.dnode().max_block));
                }
            }
            if end == u64::MAX {
                break;
            }
            blkid = end;
        }
        Ok(None)
    }

    /// As if nothing were pending. Past the end there are holes.
    fn seek_on_disk(&self, from: u64, what: Seek) -> Result<Option<u64>> {
        let Some(tree) = self.visible_tree() else {
            return Ok(Some(from).filter(|_| what == Seek::Hole));
        };
        let found = tree.next_block(from, what, &mut |_| Ok(true))?;
        let past = tree.dnode.max_block.saturating_add(1).max(from);
        Ok(found.or(Some(past).filter(|_| what == Seek::Hole)))
    }
}

/// Whether a data block is one that is searched for.
pub(crate) type Accept<'a> = dyn FnMut(&Node) -> Result<bool> + 'a;

struct Search<'a, 'b> {
    from: u64,
    what: Seek,
    accept: &'a mut Accept<'b>,
    in_vain: HashSet<Dva>,
}

impl Tree<'_> {
    /// The first data block that `accept` wants, or the first hole, from block `from` to the last
    /// one. What `accept` says of a block must not depend on the place it is reached from, but for
    /// block `from`.
    pub(crate) fn next_block(
        &self,
        from: u64,
        what: Seek,
        accept: &mut Accept<'_>,
    ) -> Result<Option<u64>> {
        if from > self.dnode.max_block {
            return Ok(None);
        }
        let mut search = Search { from, what, accept, in_vain: HashSet::new() };
        for node in self.roots() {
            if let Some(found) = self.search(&node, &mut search)? {
                return Ok(Some(found).filter(|b| *b <= self.dnode.max_block));
            }
        }
        Ok(None)
    }

    fn search(&self, node: &Node, search: &mut Search<'_, '_>) -> Result<Option<u64>> {
        let span = self.span(node.level);
        let first = node.blkid.saturating_mul(span);
        let past = first.saturating_add(span);
        if past <= search.from || first > self.dnode.max_block {
            return Ok(None);
        }
        if node.bp.is_hole() {
            return Ok((search.what == Seek::Hole).then_some(first.max(search.from)));
        }
        if search.what == Seek::Hole && self.is_full(node) {
            return Ok(None);
        }
        if node.level == 0 && search.what == Seek::Hole {
            return Ok(None);
        }
        let whole = first > search.from;
        let key = node.bp.dva(0).filter(|_| whole);
        if key.is_some_and(|dva| search.in_vain.contains(&dva)) {
            return Ok(None);
        }
        let found = self.search_block(node, first, search)?;
        if found.is_none() {
            search.in_vain.extend(key);
        }
        Ok(found)
    }

    /// Searches the block behind `node`, whose first data block is `first`.
    fn search_block(
        &self,
        node: &Node,
        first: u64,
        search: &mut Search<'_, '_>,
    ) -> Result<Option<u64>> {
        if node.level == 0 {
            return Ok((search.accept)(node)?.then_some(first));
        }
        let block = self.read_node(node)?;
        let below = self.span(node.level - 1);
        let index = search.from.saturating_sub(first) / below.max(1);
        for index in index..self.fan_out() {
            let child = self.child(node, &block, index)?;
            if let Some(found) = self.search(&child, search)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Whether the fill count says that no data block below is a hole. Blocks of dnodes count
    /// dnodes instead.
    fn is_full(&self, node: &Node) -> bool {
        self.dnode.kind != DmuType::DNODE && node.bp.fill() >= self.span(node.level)
    }
}
