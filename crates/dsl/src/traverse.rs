//! One walk over the blocks of an object set (`traverse_dataset`, `traverse_impl`), for all code that looks at each block.
//!
//! Blocks are met in the order of their numbers: blocks of dnodes, and with each of these the blocks of its objects. A
//! [`Visitor`] is told of a pointer before what is below it (`TRAVERSE_PRE`) and after it (`TRAVERSE_POST`). It says
//! what it wants, and ends the walk when it likes: because of the clock, a budget, a reader that went away.
//!
//! **Resuming.** A walk that ended says where ([`Mark`]): the first block of level 0 that is not done. The next one
//! goes on there. What lies before that place in the order, and every block above it that has nothing from there on, is
//! not read again; so it may be gone.
//!
//! **Reading ahead** (`zfs_pd_*`). The blocks below a pointer that lead on are known once it is read. They are read in
//! batches of up to [`AHEAD_BLOCKS`], so that a walk keeps the devices busy. Blocks of all objects in a block of dnodes
//! share their batches: a tree of small files costs a wait for some dozens of them, not for each. A walk holds one
//! batch for each level that it is in.
//!
//! Invariants:
//! - A pointer is followed only if it has the level and size that its place demands ([`Tree`]). So a walk is no deeper
//!   than its dnodes say.
//! - Each block is read once, but for one that two pointers lead to: visitors bound these.
//! - What cannot be read ends nothing but what is below it, unless the visitor says so.

use cenote_dmu::object::SPILL_BLKID;
use cenote_dmu::objset::{GROUP_USED, META_DNODE, PROJECT_USED, USER_USED};
use cenote_dmu::{Error, Node, Tree};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::{DNODE_BLOCK, DNODE_SLOT, DnodePhys, ObjsetPhys};
use cenote_format::{ByteOrder, Bytes};
use cenote_store::{Block, BlockError, Bookmark, Store};
use std::collections::VecDeque;
use std::sync::Arc;

/// Number by which the object sets of destroyed datasets go in bookmarks (`ZB_DESTROYED_OBJSET`).
pub const DESTROYED: u64 = u64::MAX;
/// Dnode slots in a block of them.
pub const DNODES: u64 = DNODE_BLOCK / DNODE_SLOT as u64;
/// Blocks that are read at once.
pub const AHEAD_BLOCKS: usize = 64;
/// Bytes that are read at once, unpacked, but for the last block.
const AHEAD_BYTES: u64 = 8 << 20;

/// Where a walk goes on: a block of level 0 (`td_resume`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The object.
    pub object: u64,
    /// The block.
    pub blkid: u64,
}

impl Mark {
    /// Before all blocks of an object.
    fn start_of(object: u64) -> Mark {
        Mark { object: object.max(1), blkid: 0 }
    }
}

/// Why and where a walk ended early.
#[derive(Debug)]
pub struct Stopped<S> {
    /// What the visitor said.
    pub why: S,
    /// Where the next walk goes on.
    pub at: Mark,
}

/// A pointer, and where it stands.
#[derive(Clone, Copy)]
pub struct Place<'t> {
    /// The object.
    pub tree: Tree<'t>,
    /// Level, number and pointer.
    pub node: Node,
}

impl Place<'_> {
    /// The block's name in errors.
    pub fn at(&self) -> Bookmark {
        self.tree.bookmark(self.node.level, self.node.blkid)
    }

    /// Whether the pointer leads to further pointers or to dnodes.
    pub fn leads_on(&self) -> bool {
        let dnodes = self.tree.object == META_DNODE && !self.is_spill();
        !self.node.bp.is_hole() && (self.node.level > 0 || dnodes)
    }

    /// Whether it leads to a spill block.
    pub fn is_spill(&self) -> bool {
        self.node.level == 0 && self.node.blkid == SPILL_BLKID
    }

    /// The first block of level 0 below it, and the first one behind those.
    pub fn span(&self) -> (u64, u64) {
        let (at, fan) = (self.at(), self.tree.fan());
        (first(&at, fan), first(&Bookmark { blkid: at.blkid.saturating_add(1), ..at }, fan))
    }

    /// What ends a walk that would go down here again.
    pub(crate) fn linked_twice(&self) -> Error {
        let Node { level, blkid, .. } = self.node;
        self.tree.corrupt(format!("block {blkid} of level {level} is linked twice"))
    }

    fn mark(&self) -> Mark {
        Mark { object: self.tree.object, blkid: self.span().0 }
    }

    /// Where to go on to meet all below it again.
    pub fn start(&self) -> Mark {
        match self.mark() {
            // The first object in the block of dnodes: the block itself would mean that they are done.
            Mark { object: META_DNODE, blkid } => Mark::start_of(blkid.saturating_mul(DNODES)),
            mark => mark,
        }
    }
}

/// The first block of level 0 below a block of a tree with 2^`fan` pointers in an indirect block.
fn first(at: &Bookmark, fan: u32) -> u64 {
    let shift = fan.saturating_mul(u32::try_from(at.level).unwrap_or(0));
    let scaled = u128::from(at.blkid).checked_shl(shift).unwrap_or(u128::MAX);
    if at.blkid == 0 { 0 } else { u64::try_from(scaled).unwrap_or(u64::MAX) }
}

/// The first block that the tree of an object has no place for.
pub(crate) fn reach(tree: &Tree<'_>) -> u64 {
    let pointers = tree.dnode.pointers.len() as u64;
    first(&tree.bookmark(tree.dnode.levels.saturating_sub(1), pointers), tree.fan())
}

/// Whether all of a block, and what is below, comes before `mark` (`zbookmark_subtree_completed`, `zbookmark_compare`).
fn is_before(at: &Bookmark, fan: u32, mark: Mark) -> bool {
    let end = first(&Bookmark { blkid: at.blkid.saturating_add(1), ..*at }, fan);
    let own = match at.object {
        META_DNODE => (end.saturating_mul(DNODES), 0),
        object => (object, end),
    };
    let other = match mark.object {
        META_DNODE => (mark.blkid.saturating_mul(DNODES), 0),
        object => (object, mark.blkid),
    };
    if own != other {
        return own < other;
    }
    // The higher one comes first; blocks of dnodes are above the objects in them.
    (at.object == META_DNODE, at.level) >= (mark.object == META_DNODE, 0)
}

/// Whether a block, or a hole, came to be after transaction group `after`. Holes that do not say when count as changed.
pub fn is_changed(bp: &BlockPointer, after: u64) -> bool {
    match bp.logical_birth() {
        0 => bp.is_hole(),
        birth => birth > after,
    }
}

/// A visitor of the blocks. An error of it ends the walk.
pub trait Visitor {
    /// Its errors.
    type Stop;

    /// Whether it wants to know of a pointer and what is below it. The answer for a pointer stays the same.
    fn wants(&self, bp: &BlockPointer) -> bool;

    /// A free slot, in a block of dnodes.
    ///
    /// # Errors
    /// The walk is to end.
    fn free_slot(&mut self, _number: u64) -> Result<(), Self::Stop> {
        Ok(())
    }

    /// An object, before its blocks; false if these are not wanted. `order` is that of its bonus buffer.
    ///
    /// # Errors
    /// The walk is to end.
    fn object(&mut self, _tree: &Tree<'_>, _order: ByteOrder) -> Result<bool, Self::Stop> {
        Ok(true)
    }

    /// An object whose blocks were wanted, after them.
    ///
    /// # Errors
    /// The walk is to end.
    fn object_done(&mut self, _tree: &Tree<'_>) -> Result<(), Self::Stop> {
        Ok(())
    }

    /// A pointer, before what is below it (`TRAVERSE_PRE`); false if that is not wanted.
    ///
    /// # Errors
    /// The walk is to end.
    fn pre(&mut self, _place: &Place<'_>) -> Result<bool, Self::Stop> {
        Ok(true)
    }

    /// A pointer, after what is below it (`TRAVERSE_POST`).
    ///
    /// # Errors
    /// The walk is to end.
    fn post(&mut self, _place: &Place<'_>) -> Result<(), Self::Stop> {
        Ok(())
    }

    /// What is below a pointer, or the dnode of an object in it, cannot be read.
    ///
    /// # Errors
    /// The walk is to end. If not, it goes on behind that.
    fn damaged(&mut self, at: Bookmark, bp: &BlockPointer, why: Error) -> Result<(), Self::Stop>;
}

/// The root block of an object set.
///
/// # Errors
/// It cannot be read.
pub fn read_root(
    store: &Arc<Store>,
    objset: u64,
    bp: &BlockPointer,
) -> cenote_dmu::Result<ObjsetPhys> {
    let block = store.read(bp, Bookmark::root(objset))?;
    let data = block.data.bytes();
    let phys = ObjsetPhys::decode(&Bytes::new(&data, block.order, "object set"));
    phys.map_err(|source| Error::Decode { objset, object: META_DNODE, source })
}

/// A slot of a block of dnodes, and what is in it.
pub(crate) type Slot = (u64, cenote_dmu::Result<Option<DnodePhys>>);

/// The slots in block `blkid` of dnodes, but for those that a dnode before them takes, and slot 0 of all, which
/// stands for the meta dnode.
pub(crate) fn slots(objset: u64, blkid: u64, block: &Block) -> Vec<Slot> {
    let data = block.data.bytes();
    let bytes = Bytes::new(&data, block.order, "block of dnodes");
    let (mut slot, mut slots) = (0, Vec::new());
    while slot < data.len() / DNODE_SLOT {
        let object = blkid.saturating_mul(DNODES).saturating_add(slot as u64);
        let dnode = DnodePhys::decode(&bytes, slot * DNODE_SLOT);
        slot += 1;
        if let Ok(Some(dnode)) = &dnode {
            slot += usize::from(dnode.extra_slots);
        }
        if object != META_DNODE {
            slots.push((object, dnode.map_err(|source| Error::Decode { objset, object, source })));
        }
    }
    slots
}

/// A walk; see the [module](self).
pub struct Traversal<'v, V: Visitor> {
    store: &'v Arc<Store>,
    objset: u64,
    visitor: &'v mut V,
    resume: Option<Mark>,
    /// Part of what a walk reads ahead: one in so many.
    share: usize,
}

type Step<V> = Result<(), Stopped<<V as Visitor>::Stop>>;

impl<'v, V: Visitor> Traversal<'v, V> {
    /// Over the object set that goes by the number `objset` in bookmarks, from `resume` on.
    pub fn new(
        store: &'v Arc<Store>,
        objset: u64,
        resume: Option<Mark>,
        visitor: &'v mut V,
    ) -> Traversal<'v, V> {
        Traversal { store, objset, visitor, resume, share: 1 }
    }

    /// As one of so many walks side by side, which read ahead as much together as one alone, but at least a block each.
    pub fn one_of(self, walks: usize) -> Traversal<'v, V> {
        Traversal { share: walks.max(1), ..self }
    }

    /// All objects, then the accounting objects.
    ///
    /// # Errors
    /// The visitor ended the walk.
    pub fn all(&mut self, phys: &ObjsetPhys) -> Step<V> {
        self.objects(phys)?;
        let accounting = [
            (PROJECT_USED, &phys.project_used),
            (GROUP_USED, &phys.group_used),
            (USER_USED, &phys.user_used),
        ];
        for (number, dnode) in accounting {
            if let Some(dnode) = dnode {
                self.dnode(number, dnode)?;
            }
        }
        Ok(())
    }

    /// All objects.
    ///
    /// # Errors
    /// The visitor ended the walk.
    pub fn objects(&mut self, phys: &ObjsetPhys) -> Step<V> {
        self.dnode(META_DNODE, &phys.meta_dnode)
    }

    /// The blocks of one object.
    ///
    /// # Errors
    /// The visitor ended the walk.
    pub(crate) fn dnode(&mut self, object: u64, dnode: &DnodePhys) -> Step<V> {
        let tree = self.tree(object, dnode);
        if let Err(why) = tree.check() {
            let at = tree.bookmark(0, 0);
            return self.damaged(at, &BlockPointer::HOLE, Mark::start_of(object), why);
        }
        self.visit_all(&self.roots(tree))
    }

    fn tree<'t>(&self, object: u64, dnode: &'t DnodePhys) -> Tree<'t>
    where
        'v: 't,
    {
        Tree { store: self.store, objset: self.objset, object, dnode, as_of: None }
    }

    /// The pointers in a dnode that are wanted.
    fn roots<'t>(&self, tree: Tree<'t>) -> Vec<Place<'t>> {
        let spill = tree.dnode.spill.map(|bp| Node { level: 0, blkid: SPILL_BLKID, bp });
        let places = tree.roots().chain(spill).map(|node| Place { tree, node });
        places.filter(|place| self.is_wanted(place)).collect()
    }

    fn is_wanted(&self, place: &Place<'_>) -> bool {
        let done = |mark| is_before(&place.at(), place.tree.fan(), mark);
        self.visitor.wants(&place.node.bp) && !self.resume.is_some_and(done)
    }

    /// Whether to meet what is below a pointer. Below the block where the walk before ended, all was.
    fn follows(&self, place: &Place<'_>) -> bool {
        place.leads_on() && (place.node.level > 0 || self.resume != Some(place.mark()))
    }

    fn visit_all(&mut self, places: &[Place<'_>]) -> Step<V> {
        let mut ahead = Ahead { places, read: VecDeque::new() };
        (0..places.len()).try_for_each(|index| self.visit(index, &mut ahead))
    }

    fn visit(&mut self, index: usize, ahead: &mut Ahead<'_, '_>) -> Step<V> {
        let Some(place) = ahead.places.get(index) else { return Ok(()) };
        let goes_on = self.visitor.pre(place);
        let goes_on = goes_on.map_err(|why| Stopped { why, at: place.start() })?;
        if goes_on && self.follows(place) {
            let sound = place.tree.check_node(&place.node);
            match sound.and_then(|()| Ok(ahead.take(index, place, self)?)) {
                Ok(block) if place.node.level == 0 => self.dnodes(place, &block)?,
                Ok(block) => self.children(place, &block)?,
                Err(why) => self.damaged(place.at(), &place.node.bp, place.start(), why)?,
            }
        }
        self.visitor.post(place).map_err(|why| Stopped { why, at: place.mark() })
    }

    fn damaged(&mut self, at: Bookmark, bp: &BlockPointer, mark: Mark, why: Error) -> Step<V> {
        self.visitor.damaged(at, bp, why).map_err(|why| Stopped { why, at: mark })
    }

    /// What is below an indirect block.
    fn children(&mut self, place: &Place<'_>, block: &Block) -> Step<V> {
        let (mut children, tree) = (Vec::new(), place.tree);
        for index in 0..tree.fan_out() {
            match tree.child(&place.node, block, index) {
                Ok(node) => {
                    children.extend(Some(Place { tree, node }).filter(|p| self.is_wanted(p)))
                }
                Err(why) => {
                    return self.damaged(place.at(), &place.node.bp, place.start(), why);
                }
            }
        }
        self.visit_all(&children)
    }

    /// The objects in a block of dnodes.
    fn dnodes(&mut self, above: &Place<'_>, block: &Block) -> Step<V> {
        let done = self.resume.map_or(0, |mark| mark.object);
        let mut slots = slots(self.objset, above.node.blkid, block);
        slots.retain(|(number, _)| *number >= done);
        for (number, dnode) in &mut slots {
            if let Ok(Some(sound)) = dnode
                && let Err(why) = self.tree(*number, sound).check()
            {
                *dnode = Err(why);
            }
        }
        let (mut places, mut ends) = (Vec::new(), Vec::new());
        for (number, dnode) in &slots {
            if let Ok(Some(dnode)) = dnode {
                places.extend(self.roots(self.tree(*number, dnode)));
            }
            ends.push(places.len());
        }
        let (mut ahead, mut next) = (Ahead { places: &places, read: VecDeque::new() }, 0);
        for ((number, dnode), end) in slots.iter().zip(ends) {
            let mark = Mark::start_of(*number);
            let stopped = |why| Stopped { why, at: mark };
            match dnode {
                Ok(None) => self.visitor.free_slot(*number).map_err(stopped)?,
                Ok(Some(dnode)) => {
                    let tree = self.tree(*number, dnode);
                    if self.visitor.object(&tree, block.order).map_err(stopped)? {
                        (next..end).try_for_each(|index| self.visit(index, &mut ahead))?;
                        self.visitor.object_done(&tree).map_err(stopped)?;
                    }
                }
                Err(why) => {
                    let at = Bookmark { object: *number, ..above.at() };
                    self.damaged(at, &above.node.bp, mark, why.clone())?;
                }
            }
            next = end;
        }
        Ok(())
    }
}

/// The blocks behind a list of pointers, read in batches.
struct Ahead<'p, 't> {
    places: &'p [Place<'t>],
    /// What was read, with the indexes in `places`.
    read: VecDeque<(usize, Result<Block, BlockError>)>,
}

impl Ahead<'_, '_> {
    /// The block behind a pointer that is followed, and sound.
    fn take<V: Visitor>(
        &mut self,
        index: usize,
        place: &Place<'_>,
        walk: &Traversal<'_, V>,
    ) -> Result<Block, BlockError> {
        while self.read.front().is_some_and(|(read, _)| *read < index) {
            self.read.pop_front();
        }
        if self.read.is_empty() {
            let (mut wanted, mut bytes) = (Vec::new(), 0u64);
            let most = ((AHEAD_BLOCKS / walk.share).max(1), AHEAD_BYTES / walk.share as u64);
            let rest = self.places.iter().enumerate().skip(index);
            let sound = |p: &Place<'_>| walk.follows(p) && p.tree.check_node(&p.node).is_ok();
            for (index, place) in rest.filter(|(_, place)| sound(place)) {
                if wanted.len() >= most.0 || (bytes >= most.1 && !wanted.is_empty()) {
                    break;
                }
                bytes += place.node.bp.lsize();
                wanted.push((index, (place.node.bp, place.at())));
            }
            let requests: Vec<_> = wanted.iter().map(|(_, request)| *request).collect();
            let blocks = walk.store.read_many(&requests);
            self.read = wanted.iter().map(|(index, _)| *index).zip(blocks).collect();
        }
        match self.read.pop_front() {
            Some((read, block)) if read == index => block,
            _ => walk.store.read(&place.node.bp, place.at()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(object: u64, level: i64, blkid: u64) -> Bookmark {
        Bookmark { objset: 0, object, level, blkid }
    }

    #[test]
    fn blocks_come_in_the_order_of_the_walk() {
        const META: u64 = META_DNODE;
        let is_before = |at, mark| is_before(&at, 10, mark);
        let mark = Mark { object: 40, blkid: 1030 };
        // Blocks of dnodes: 0 has objects up to 31, 1 those up to 63.
        assert!(is_before(at(META, 0, 0), mark));
        assert!(!is_before(at(META, 0, 1), mark) && !is_before(at(META, 1, 0), mark));
        // Blocks of the object and of its neighbours.
        assert!(is_before(at(40, 0, 1029), mark) && !is_before(at(40, 0, 1030), mark));
        assert!(is_before(at(40, 1, 0), mark) && !is_before(at(40, 1, 1), mark));
        assert!(is_before(at(39, 2, 0), mark) && !is_before(at(41, 0, 0), mark));
        assert!(!is_before(at(USER_USED, 0, 0), mark));
        // Stopped at a block of dnodes itself: all before it is done, and so are its objects.
        let mark = Mark { object: META, blkid: 2 };
        assert!(is_before(at(META, 0, 1), mark) && !is_before(at(META, 0, 2), mark));
        assert!(is_before(at(META, 0, 0), Mark { object: PROJECT_USED, blkid: 0 }));
    }
}
