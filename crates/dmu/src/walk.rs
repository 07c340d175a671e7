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

/// A block pointer that [`Object::walk_changed`] meets: its place, and the pointer.
#[derive(Clone, Copy, Debug)]
pub struct Changed {
    /// Level in the tree; 0 for data. Above 0 it is a hole.
    pub level: u8,
    /// The first data block that is below it.
    pub first: u64,
    /// Data blocks below it.
    pub span: u64,
    /// The pointer.
    pub bp: BlockPointer,
}

impl Object {
    /// Calls `f` for the data blocks, and for the holes of any level, that were born after transaction group
    /// `after`, in the order of their numbers (`traverse_dataset`). Holes that do not say when they came to be
    /// are among them. What comes below an older block is older and is not read. An error ends the walk.
    pub fn walk_changed<E: From<Error>>(
        &self,
        after: u64,
        f: &mut dyn FnMut(Changed) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let tree = self.tree();
        let roots: Vec<Node> = tree.roots().collect();
        WalkChanged { tree, after, f, seen: HashSet::new() }.nodes(&roots)
    }
}

struct WalkChanged<'w, E> {
    tree: Tree<'w>,
    after: u64,
    f: &'w mut dyn FnMut(Changed) -> std::result::Result<(), E>,
    seen: HashSet<Dva>,
}

impl<E: From<Error>> WalkChanged<'_, E> {
    /// Walks pointers of one level and everything below.
    fn nodes(&mut self, nodes: &[Node]) -> std::result::Result<(), E> {
        let changed = |bp: &BlockPointer| match bp.logical_birth() {
            0 => bp.is_hole(),
            birth => birth > self.after,
        };
        let nodes: Vec<&Node> = nodes.iter().filter(|n| changed(&n.bp)).collect();
        let batch = (BATCH >> self.tree.dnode.indirect_shift.min(63)).max(1) as usize;
        for batch in nodes.chunks(batch) {
            let inner = batch.iter().filter(|n| n.level > 0 && !n.bp.is_hole());
            let mut wanted = Vec::new();
            for node in inner {
                self.tree.check_node(node)?;
                if node.bp.dva(0).is_some_and(|dva| !self.seen.insert(dva)) {
                    let (blkid, level) = (node.blkid, node.level);
                    let why = format!("block {blkid} of level {level} is linked twice");
                    return Err(self.tree.corrupt(why).into());
                }
                wanted.push((node.bp, self.tree.bookmark(node.level, node.blkid)));
            }
            let mut blocks = self.tree.store.read_many(&wanted).into_iter();
            for node in batch {
                if node.level > 0 && !node.bp.is_hole() {
                    let Some(block) = blocks.next() else { continue };
                    let block = block.map_err(Error::from)?;
                    let children = (0..self.tree.fan_out())
                        .map(|index| self.tree.child(node, &block, index))
                        .collect::<Result<Vec<Node>>>()?;
                    self.nodes(&children)?;
                    continue;
                }
                if !node.bp.is_hole() {
                    self.tree.check_node(node)?;
                }
                let span = self.tree.span(node.level);
                // Where this overflows no block can be.
                let Some(first) = node.blkid.checked_mul(span) else { continue };
                (self.f)(Changed { level: node.level, first, span, bp: node.bp })?;
            }
        }
        Ok(())
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
            let wanted: Vec<_> =
                good.iter().map(|n| (n.bp, tree.bookmark(n.level, n.blkid))).collect();
            let blocks = tree.store.read_many(&wanted);
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
