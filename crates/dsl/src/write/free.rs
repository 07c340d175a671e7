//! Freeing what was destroyed, some in each txg.
//!
//! Three things wait: the list `free_bpobj`, of blocks that destroyed snapshots had, the queue
//! `bptree_obj`, of root blocks of destroyed datasets, and [livelists](super::livelist::delete) of destroyed
//! clones. The directory `$FREE` is charged for all of
//! it, less with each block freed. While there is a queue, `async_destroy` is active.
//!
//! The queue's entries lie one after the other in the object's data, from number `begin` to `end` of
//! the header in the bonus buffer:
//!
//! ```text
//! header   begin end bytes compressed uncompressed
//! entry    root block pointer (128) | only blocks born after this txg | bookmark (4 words)
//! ```
//!
//! A tree is walked in the order of its blocks, and a block is freed after all that is below it, so
//! that the walk can be taken up again: the *bookmark* is the first block of level 0 that was not
//! freed yet. Everything before it in that order, and every indirect block that has nothing from
//! there on, is gone and must not be read.
//!
//! One transaction group frees so many blocks, and takes so much time (`zfs_free_min_time_ms`). Blocks that
//! the walk is going to need are read in batches ahead of it.
//!
//! A tree that cannot be read in full stays in the queue with its bookmark; those behind it are
//! freed all the same, and marked as done. With `zfs_free_leak_on_eio` what is below a block that cannot
//! be read is left out instead. What `$FREE` is charged for when nothing waits any more is then charged to
//! `$LEAK`, as are the entries of `free_bpobj` that could not be read.

use super::mos::{WORDS_METADATA, corrupt};
use super::space::Delta;
use super::{
    DslWriteError, Result, Sizes, Tx, bpobj, dataset, deadlist, features, livelist, pool, remaps,
};
use crate::{bounds, tunables};
use cenote_dmu::object::SPILL_BLKID;
use cenote_dmu::write::NewObject;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dmu::{DNODE_SLOT, DnodePhys, ObjsetPhys};
use cenote_format::{ByteOrder, Bytes};
use cenote_store::{Access, Block, Bookmark, Store};
use std::sync::Arc;

mod reads;

const ASYNC_DESTROY: &str = "com.delphix:async_destroy";
/// Entry of the object directory.
const QUEUE: &str = "bptree_obj";
/// Bytes of the queue's header and of an entry.
const HEADER: usize = 40;
const ENTRY: usize = BLKPTR_SIZE + 40;
/// Number by which the object sets of destroyed datasets go in bookmarks.
const DESTROYED: u64 = u64::MAX;
/// Accounting objects in the order in which they are walked.
const PROJECT_USED: u64 = u64::MAX - 2;
const GROUP_USED: u64 = u64::MAX - 1;
const USER_USED: u64 = u64::MAX;
/// The meta dnode.
const META: u64 = 0;
/// Dnodes in a block of them.
const DNODES: u64 = 32;
/// Blocks that are read at once ahead of the walk.
const AHEAD: usize = 64;
/// Blocks that are freed between two looks at the clock.
const LOOK_AT_CLOCK: usize = 64;
/// Deepest tree of an object.
const MAX_LEVELS: u8 = 20;

/// The queue's header.
struct Header {
    begin: u64,
    end: u64,
    sizes: Sizes,
}

impl Header {
    fn read(tx: &mut Tx<'_>, queue: u64) -> Result<Header> {
        let bonus = tx.mos.dnode(queue)?.bonus.clone();
        let bytes = Bytes::new(&bonus, ByteOrder::Little, "queue of destroyed datasets");
        let [begin, end, used, compressed, uncompressed] = bytes.u64s(0)?;
        Ok(Header { begin, end, sizes: Sizes { used, compressed, uncompressed } })
    }

    fn write(&self, tx: &mut Tx<'_>, queue: u64) -> Result<()> {
        let Sizes { used, compressed, uncompressed } = self.sizes;
        let words = [self.begin, self.end, used, compressed, uncompressed];
        let bonus: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        Ok(tx.mos.set_bonus(queue, WORDS_METADATA, &bonus)?)
    }
}

/// An entry of the queue.
struct Entry {
    root: BlockPointer,
    after_txg: u64,
    resume: Option<Mark>,
}

/// Where a walk is taken up again: a block of level 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    object: u64,
    blkid: u64,
}

fn entry_offset(index: u64) -> u64 {
    index.wrapping_mul(ENTRY as u64)
}

impl Entry {
    fn read(tx: &mut Tx<'_>, queue: u64, index: u64) -> Result<Entry> {
        let mut data = [0; ENTRY];
        tx.mos.read(queue, entry_offset(index), &mut data)?;
        let bytes = Bytes::new(&data, ByteOrder::Little, "destroyed dataset");
        let root = BlockPointer::decode(&bytes, 0)?;
        let [after_txg, objset, object, _, blkid] = bytes.u64s(BLKPTR_SIZE)?;
        let resume = (objset == DESTROYED).then_some(Mark { object, blkid });
        Ok(Entry { root, after_txg, resume })
    }

    fn write(&self, tx: &mut Tx<'_>, queue: u64, index: u64) -> Result<()> {
        let mark = match self.resume {
            Some(Mark { object, blkid }) => [DESTROYED, object, 0, blkid],
            None => [0; 4],
        };
        let words = self.root.0.iter().chain([&self.after_txg]).chain(&mark);
        let data: Vec<u8> = words.flat_map(|w| w.to_le_bytes()).collect();
        Ok(tx.mos.write(queue, entry_offset(index), &data)?)
    }
}

/// Puts a destroyed dataset on the queue: all below `root` that was born after `after_txg`, so many
/// bytes.
pub(super) fn queue_tree(
    tx: &mut Tx<'_>,
    root: &BlockPointer,
    after_txg: u64,
    sizes: Sizes,
) -> Result<()> {
    let queue = match pool::entry(tx, QUEUE)? {
        Some(queue) => queue,
        None => {
            features::increment(tx, ASYNC_DESTROY)?;
            let queue = tx.mos.allocate(&NewObject {
                bonus_kind: WORDS_METADATA,
                bonus: vec![0; HEADER],
                ..NewObject::new(WORDS_METADATA, bpobj::BLOCK)
            })?;
            pool::set_entry(tx, QUEUE, queue)?;
            queue
        }
    };
    let mut header = Header::read(tx, queue)?;
    Entry { root: *root, after_txg, resume: None }.write(tx, queue, header.end)?;
    header.end = header.end.wrapping_add(1);
    header.sizes.add(sizes);
    header.write(tx, queue)
}

/// How much of what waits is freed in a transaction group.
#[derive(Clone, Copy)]
pub struct Budget<'b> {
    /// Blocks.
    pub blocks: u64,
    /// Whether the time is up.
    pub is_late: &'b dyn Fn() -> bool,
}

/// Frees some of what is waiting (`free_bpobj`, `bptree_obj` and `deleted_clones` of the object directory;
/// `dsl_process_async_destroys`); true if there is more that can be freed. Progress is in the MOS. To be
/// called once in a txg, after the sync tasks.
pub fn destroy_step(tx: &mut Tx<'_>, budget: Budget<'_>) -> Result<bool> {
    let mut left = budget.blocks;
    if remaps::step(tx, &mut left)? {
        return Ok(true);
    }
    if let Some(list) = pool::entry(tx, pool::FREE_BPOBJ)? {
        let blocks = bpobj::take(tx, list, left)?;
        left = left.saturating_sub(blocks.len() as u64);
        let mut sum = Sizes::default();
        for bp in &blocks {
            sum.add((tx.space)(bp));
            tx.free(bp);
        }
        pool::charge_free(tx, Delta::less(sum))?;
        if !bpobj::is_empty(tx, list)? {
            return Ok(true);
        }
        let lost = bpobj::take_lost(tx, list)?;
        if lost != Sizes::default() {
            pool::charge_free(tx, Delta::less(lost))?;
            pool::charge_leak(tx, lost)?;
        }
    }
    if livelist::delete::step(tx, &mut left, budget)? {
        return Ok(true);
    }
    if let Some(queue) = pool::entry(tx, QUEUE)? {
        let more = free_trees(tx, queue, Budget { blocks: left, ..budget })?;
        if more || pool::entry(tx, QUEUE)?.is_some() {
            return Ok(more);
        }
    }
    if tunables::FREE_LEAK_ON_EIO.get() != 0 && !livelist::delete::is_waiting(tx)? {
        pool::leak_rest(tx)?;
    }
    Ok(false)
}

/// All blocks below `root` that were born after `after_txg`.
///
/// Errors: `Invalid` if not all of them can be read.
pub(super) fn below_root(
    tx: &Tx<'_>,
    root: &BlockPointer,
    after_txg: u64,
) -> Result<Vec<BlockPointer>> {
    let entry = Entry { root: *root, after_txg, resume: None };
    let mut walk = Walk::new(tx, &entry, Budget { blocks: u64::MAX, is_late: &|| false });
    if let Err(Stop::Failed(why)) = walk.root(root) {
        return Err(DslWriteError::Invalid(format!("not all of it can be read: {why}")));
    }
    // The root comes last, unless it is somebody else's, as all the rest is then.
    walk.freed.pop();
    Ok(walk.freed)
}

/// Whether walking all below `root` that was born after `after_txg` takes fewer than `than` reads. They are
/// counted level by level: a level is read only if the count goes on. What was read stays in the ARC for the
/// walk. A walk that cannot be made reads no less.
pub(super) fn walk_reads_less(tx: &Tx<'_>, root: &BlockPointer, after_txg: u64, than: u64) -> bool {
    let entry = Entry { root: *root, after_txg, resume: None };
    let walk = Walk::new(tx, &entry, Budget { blocks: u64::MAX, is_late: &|| false });
    reads::count(walk, root, than).is_ok_and(|n| n < than)
}

/// Bytes that are waiting to be freed (pool property `freeing`).
pub fn freeing(tx: &mut Tx<'_>) -> Result<u64> {
    pool::free_dir_used(tx)
}

fn free_trees(tx: &mut Tx<'_>, queue: u64, budget: Budget<'_>) -> Result<bool> {
    let mut header = Header::read(tx, queue)?;
    let (mut left, mut failed, mut paused) = (budget.blocks, false, false);
    let room = tx.mos.dnode(queue)?;
    let room = room.max_block.saturating_add(1).saturating_mul(room.block_size);
    if header.end.saturating_mul(ENTRY as u64) > room || header.begin > header.end {
        return Err(corrupt(queue, "bad queue of destroyed datasets"));
    }
    for index in header.begin..header.end {
        let mut entry = Entry::read(tx, queue, index)?;
        let mut walk = Walk::new(tx, &entry, Budget { blocks: left, ..budget });
        walk.leaks = tunables::FREE_LEAK_ON_EIO.get() != 0;
        let done = walk.root(&entry.root);
        let (freed, sum, resume) = (walk.freed, walk.sum, walk.stopped_at);
        left = walk.left;
        header.sizes.used = header.sizes.used.wrapping_sub(sum.used);
        header.sizes.compressed = header.sizes.compressed.wrapping_sub(sum.compressed);
        header.sizes.uncompressed = header.sizes.uncompressed.wrapping_sub(sum.uncompressed);
        freed.iter().for_each(|bp| tx.free(bp));
        pool::charge_free(tx, Delta::less(sum))?;
        match done {
            Err(stop) => {
                entry.resume = resume.or(entry.resume);
                entry.write(tx, queue, index)?;
                if let Stop::Failed(why) = stop {
                    tracing::warn!("destroyed dataset {index} cannot be freed in full: {why}");
                    failed = true;
                    continue;
                }
                paused = true;
                break;
            }
            // Not the first any more: it is marked, so that nothing is walked again.
            Ok(()) if failed => {
                entry.after_txg = u64::MAX;
                entry.write(tx, queue, index)?;
            }
            Ok(()) => {
                header.begin = header.begin.wrapping_add(1);
                tx.mos.free_range(queue, entry_offset(index), ENTRY as u64)?;
            }
        }
    }
    header.write(tx, queue)?;
    if header.begin == header.end {
        features::decrement(tx, ASYNC_DESTROY)?;
        pool::remove_entry(tx, QUEUE)?;
        tx.mos.free(queue)?;
    }
    Ok(paused)
}

/// Why a walk ended early.
enum Stop {
    Paused,
    Failed(String),
}

type Step = std::result::Result<(), Stop>;

fn failed(why: impl ToString) -> Stop {
    Stop::Failed(why.to_string())
}

/// A block in a walk.
#[derive(Clone, Copy)]
struct At {
    object: u64,
    level: u8,
    blkid: u64,
    /// log2 of the pointers of an indirect block of the object.
    fan: u32,
}

impl At {
    fn bookmark(&self) -> Bookmark {
        let At { object, level, blkid, .. } = *self;
        Bookmark { objset: DESTROYED, object, level: level.into(), blkid }
    }

    /// The first block of level 0 below the block `blkid` of this level.
    fn first(&self, blkid: u64) -> u64 {
        let shift = self.fan.saturating_mul(self.level.into());
        let scaled = u128::from(blkid).checked_shl(shift).unwrap_or(u128::MAX);
        if blkid == 0 { 0 } else { u64::try_from(scaled).unwrap_or(u64::MAX) }
    }

    /// Whether all of the block, and what is below, comes before `mark`.
    fn is_before(&self, mark: Mark) -> bool {
        let end = self.first(self.blkid.saturating_add(1));
        let own = match self.object {
            META => (end.saturating_mul(DNODES), 0),
            object => (object, end),
        };
        let other = match mark.object {
            META => (mark.blkid.saturating_mul(DNODES), 0),
            object => (object, mark.blkid),
        };
        if own != other {
            return own < other;
        }
        // The higher one comes first; blocks of dnodes are above the objects in them.
        let height = |object: u64, level: u8| (object == META, level);
        height(self.object, self.level) >= height(mark.object, 0)
    }
}

/// A walk through the tree of a destroyed dataset.
struct Walk<'t> {
    store: Arc<Store>,
    space: &'t dyn Fn(&BlockPointer) -> Sizes,
    after_txg: u64,
    resume: Option<Mark>,
    /// Blocks of level 0 that may still be freed.
    left: u64,
    is_late: &'t dyn Fn() -> bool,
    /// What is below a block that cannot be read is left out.
    leaks: bool,
    /// Blocks that may still be read.
    reads_left: u64,
    freed: Vec<BlockPointer>,
    sum: Sizes,
    stopped_at: Option<Mark>,
}

impl<'t> Walk<'t> {
    fn new(tx: &Tx<'t>, entry: &Entry, budget: Budget<'t>) -> Walk<'t> {
        let mos = tx.mos.synced();
        Walk {
            store: mos.store().clone(),
            space: tx.space,
            after_txg: entry.after_txg,
            resume: entry.resume,
            left: budget.blocks,
            is_late: budget.is_late,
            leaks: false,
            reads_left: bounds::max_blocks(mos),
            freed: Vec::new(),
            sum: Sizes::default(),
            stopped_at: None,
        }
    }

    /// Whether a block was born too early to be freed here, or is none.
    fn is_foreign(&self, bp: &BlockPointer) -> bool {
        bp.logical_birth() == 0 || deadlist::birth(bp) <= self.after_txg || !dataset::counts(bp)
    }

    fn free(&mut self, bp: &BlockPointer) {
        self.sum.add((self.space)(bp));
        self.freed.push(*bp);
    }

    fn read(&mut self, bp: &BlockPointer, at: Bookmark) -> std::result::Result<Block, Stop> {
        let Some(left) = self.reads_left.checked_sub(1) else {
            return Err(failed("more blocks than the pool has"));
        };
        self.reads_left = left;
        self.store.read(bp, at).map_err(failed)
    }

    /// What was read; `None` if it cannot be, and what is below is to be leaked.
    fn or_leak<T>(
        &self,
        read: std::result::Result<T, Stop>,
    ) -> std::result::Result<Option<T>, Stop> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(Stop::Failed(why)) if self.leaks => {
                tracing::warn!("blocks of a destroyed dataset are leaked: {why}");
                Ok(None)
            }
            Err(stop) => Err(stop),
        }
    }

    /// Reads the blocks among these that the walk is going to need, all at once.
    fn read_ahead(&self, blocks: &[(BlockPointer, At)]) {
        let needed = |(bp, at): &&(BlockPointer, At)| {
            let done = self.resume.is_some_and(|mark| at.is_before(mark));
            (at.level > 0 || at.object == META) && !done && !self.is_foreign(bp)
        };
        let needed = blocks.iter().filter(needed).map(|(bp, at)| (*bp, at.bookmark()));
        let needed: Vec<_> = needed.collect();
        if needed.len() > 1 {
            self.store.load(&needed, Access::Once);
        }
    }

    fn visit_all(&mut self, blocks: &[(BlockPointer, At)]) -> Step {
        for some in blocks.chunks(AHEAD) {
            self.read_ahead(some);
            some.iter().try_for_each(|(bp, at)| self.visit(bp, *at))?;
        }
        Ok(())
    }

    fn read_root(&mut self, bp: &BlockPointer) -> std::result::Result<ObjsetPhys, Stop> {
        let at = Bookmark { objset: DESTROYED, object: META, level: -1, blkid: 0 };
        let block = self.read(bp, at)?;
        let data = block.data.bytes();
        ObjsetPhys::decode(&Bytes::new(&data, block.order, "object set")).map_err(failed)
    }

    /// The root block and all below it.
    fn root(&mut self, bp: &BlockPointer) -> Step {
        if self.is_foreign(bp) {
            return Ok(());
        }
        let read = self.read_root(bp);
        let Some(phys) = self.or_leak(read)? else {
            self.free(bp);
            return Ok(());
        };
        self.dnode(META, &phys.meta_dnode)?;
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
        self.free(bp);
        Ok(())
    }

    fn dnode(&mut self, object: u64, dnode: &DnodePhys) -> Step {
        if object != META && self.resume.is_some_and(|mark| object < mark.object) {
            return Ok(());
        }
        if dnode.levels == 0 || dnode.levels > MAX_LEVELS {
            self.stop_before(object);
            let bad = Err(failed(format!("object {object} of {} levels", dnode.levels)));
            return self.or_leak(bad).map(|_: Option<()>| ());
        }
        let fan = u32::from(dnode.indirect_shift).saturating_sub(7);
        self.visit_all(&roots(object, dnode))?;
        match &dnode.spill {
            Some(bp) => self.visit(bp, At { object, level: 0, blkid: SPILL_BLKID, fan }),
            None => Ok(()),
        }
    }

    /// The walk goes on with this object; those before it are done.
    fn stop_before(&mut self, object: u64) {
        self.stopped_at = Some(Mark { object: object.max(1), blkid: 0 });
    }

    fn visit(&mut self, bp: &BlockPointer, at: At) -> Step {
        if self.resume.is_some_and(|mark| at.is_before(mark)) || self.is_foreign(bp) {
            return Ok(());
        }
        let here = Mark { object: at.object, blkid: at.blkid };
        // What is below the block where the walk stopped was freed before.
        let resumed = at.level == 0 && self.resume == Some(here);
        let below = if resumed { Ok(()) } else { self.below(bp, at) };
        let done = below.and_then(|()| {
            if at.level == 0 {
                let late = self.freed.len().is_multiple_of(LOOK_AT_CLOCK) && (self.is_late)();
                if late && !self.freed.is_empty() {
                    return Err(Stop::Paused);
                }
                self.left = self.left.checked_sub(1).ok_or(Stop::Paused)?;
            }
            self.free(bp);
            Ok(())
        });
        if let Err(stop) = &done
            && self.stopped_at.is_none()
        {
            self.stopped_at = Some(stopped(stop, at));
        }
        done
    }

    /// What is below a block: blocks below an indirect one, or objects in a block of dnodes.
    fn below(&mut self, bp: &BlockPointer, at: At) -> Step {
        if at.level == 0 && at.object != META {
            return Ok(());
        }
        let read = self.read(bp, at.bookmark());
        let Some(block) = self.or_leak(read)? else { return Ok(()) };
        let data = block.data.bytes();
        let bytes = Bytes::new(&data, block.order, "block of a destroyed dataset");
        if at.level > 0 {
            let child = |i: usize| -> std::result::Result<(BlockPointer, At), Stop> {
                let child = BlockPointer::decode(&bytes, i * BLKPTR_SIZE).map_err(failed)?;
                let blkid = at.blkid.checked_shl(at.fan).unwrap_or(0).saturating_add(i as u64);
                Ok((child, At { level: at.level - 1, blkid, ..at }))
            };
            let children = (0..data.len() / BLKPTR_SIZE).map(child);
            return self.visit_all(&children.collect::<std::result::Result<Vec<_>, _>>()?);
        }
        self.objects(at, &bytes)
    }

    /// The objects in a block of dnodes.
    fn objects(&mut self, at: At, bytes: &Bytes<'_>) -> Step {
        let (mut slot, mut dnodes) = (0, Vec::new());
        let mut bad = Ok(());
        while slot < bytes.len() / DNODE_SLOT {
            let number = at.blkid.wrapping_mul(DNODES).wrapping_add(slot as u64);
            let dnode = DnodePhys::decode(bytes, slot * DNODE_SLOT).map_err(failed);
            slot += 1;
            match dnode {
                Ok(Some(dnode)) => {
                    slot += usize::from(dnode.extra_slots);
                    dnodes.extend((number != META).then_some((number, dnode)));
                }
                Ok(None) => {}
                Err(stop) if self.leaks => drop(self.or_leak::<()>(Err(stop))),
                Err(stop) => {
                    bad = Err((number, stop));
                    break;
                }
            }
        }
        let roots: Vec<_> =
            dnodes.iter().flat_map(|(number, dnode)| roots(*number, dnode)).collect();
        roots.chunks(AHEAD).for_each(|some| self.read_ahead(some));
        dnodes.iter().try_for_each(|(number, dnode)| self.dnode(*number, dnode))?;
        bad.map_err(|(number, stop)| {
            self.stop_before(number);
            stop
        })
    }
}

/// The pointers in a dnode.
fn roots(object: u64, dnode: &DnodePhys) -> Vec<(BlockPointer, At)> {
    let fan = u32::from(dnode.indirect_shift).saturating_sub(7);
    let level = dnode.levels.saturating_sub(1);
    let at = |blkid| At { object, level, blkid, fan };
    (0..).zip(&dnode.pointers).map(|(blkid, bp)| (*bp, at(blkid))).collect()
}

/// Where to go on after a stop at a block, below which nothing was freed if it failed.
fn stopped(stop: &Stop, at: At) -> Mark {
    match stop {
        // The first object in the block of dnodes: the block itself would mean that they are done.
        Stop::Failed(_) if at.object == META => {
            let first = at.first(at.blkid).saturating_mul(DNODES);
            Mark { object: first.max(1), blkid: 0 }
        }
        _ => Mark { object: at.object, blkid: at.first(at.blkid) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(object: u64, level: u8, blkid: u64) -> At {
        At { object, level, blkid, fan: 10 }
    }

    #[test]
    fn blocks_come_in_the_order_of_the_walk() {
        let mark = Mark { object: 40, blkid: 1030 };
        // Blocks of dnodes: 0 has objects up to 31, 1 those up to 63.
        assert!(at(META, 0, 0).is_before(mark));
        assert!(!at(META, 0, 1).is_before(mark) && !at(META, 1, 0).is_before(mark));
        // Blocks of the object and of its neighbours.
        assert!(at(40, 0, 1029).is_before(mark) && !at(40, 0, 1030).is_before(mark));
        assert!(at(40, 1, 0).is_before(mark) && !at(40, 1, 1).is_before(mark));
        assert!(at(39, 2, 0).is_before(mark) && !at(41, 0, 0).is_before(mark));
        assert!(!at(USER_USED, 0, 0).is_before(mark));
        // Stopped at a block of dnodes itself: all before it is done, and so are its objects.
        let mark = Mark { object: META, blkid: 2 };
        assert!(at(META, 0, 1).is_before(mark) && !at(META, 0, 2).is_before(mark));
        assert!(at(META, 0, 0).is_before(Mark { object: PROJECT_USED, blkid: 0 }));
    }

    #[test]
    fn a_block_of_dnodes_that_failed_is_gone_through_again() {
        let mark = stopped(&failed("bad"), at(META, 0, 3));
        assert_eq!(mark, Mark { object: 96, blkid: 0 });
        assert!(!at(META, 0, 3).is_before(mark) && at(META, 0, 2).is_before(mark));
        assert_eq!(stopped(&failed("bad"), at(META, 0, 0)), Mark { object: 1, blkid: 0 });
        assert_eq!(stopped(&Stop::Paused, at(META, 0, 3)), Mark { object: META, blkid: 3 });
    }
}
