//! Every block pointer of an object.
//!
//! Depth first, parents before children. The indirect blocks among a block's children are read in
//! batches, so that a traversal keeps the devices busy. An indirect block belongs to one place in
//! one tree; a second pointer to the same one is reported as corruption and not followed, which
//! bounds the walk of a hostile tree by what is stored.

use crate::tree::{Node, Tree};
use crate::{Error, Object, Result};
use cenote_format::blkptr::{BlockPointer, Dva};
use std::collections::HashSet;

/// Bytes of indirect blocks that are read at once.
const BATCH: u64 = 4 << 20;

/// What is called for each pointer: level (-1: the spill block), block number, pointer.
pub type Visit<'f> = dyn FnMut(i64, u64, &BlockPointer) -> Result<()> + 'f;

impl Object {
    /// Calls `f` for every block pointer below the dnode on disk that is not a hole. An indirect block
    /// that cannot be read does not end the walk: the rest is walked, and the first such error
    /// is returned at the end. An error of `f` ends it at once.
    pub fn walk(&self, f: &mut Visit<'_>) -> Result<()> {
        let tree = self.tree();
        let mut walk = Walk { f, seen: HashSet::new(), first_error: None };
        let roots: Vec<Node> = tree.roots().filter(|n| !n.bp.is_hole()).collect();
        walk.nodes(&tree, &roots)?;
        if let Some(bp) = tree.dnode.spill.filter(|bp| !bp.is_hole()) {
            (walk.f)(-1, 0, &bp)?;
        }
        walk.first_error.map_or(Ok(()), Err)
    }
}

struct Walk<'w, 'f> {
    f: &'w mut Visit<'f>,
    seen: HashSet<Dva>,
    first_error: Option<Error>,
}

impl Walk<'_, '_> {
    fn note(&mut self, error: Error) {
        self.first_error.get_or_insert(error);
    }

    /// Walks pointers of one level and everything below.
    fn nodes(&mut self, tree: &Tree<'_>, nodes: &[Node]) -> Result<()> {
        if tree.dnode.levels == 1 || nodes.first().is_none_or(|n| n.level == 0) {
            return nodes.iter().try_for_each(|n| (self.f)(n.level.into(), n.blkid, &n.bp));
        }
        let batch = (BATCH >> tree.dnode.indirect_shift.min(63)).max(1) as usize;
        for batch in nodes.chunks(batch) {
            let mut good: Vec<&Node> = Vec::with_capacity(batch.len());
            for node in batch {
                if self.may_follow(tree, node) {
                    good.push(node);
                } else {
                    (self.f)(node.level.into(), node.blkid, &node.bp)?;
                }
            }
            let blocks = tree.read_many(good.iter().copied());
            for (node, block) in good.into_iter().zip(blocks) {
                (self.f)(node.level.into(), node.blkid, &node.bp)?;
                match block.map_err(Error::from).and_then(|b| tree.children(node, &b)) {
                    Ok(children) => self.nodes(tree, &children)?,
                    Err(error) => self.note(error),
                }
            }
        }
        Ok(())
    }

    /// Whether the indirect block behind `node` is sound in its place and new.
    fn may_follow(&mut self, tree: &Tree<'_>, node: &Node) -> bool {
        if let Err(error) = tree.check_node(node) {
            self.note(error);
            return false;
        }
        if node.bp.dva(0).is_some_and(|dva| !self.seen.insert(dva)) {
            let why = format!("block {} of level {} is linked twice", node.blkid, node.level);
            self.note(tree.corrupt(why));
            return false;
        }
        true
    }
}
