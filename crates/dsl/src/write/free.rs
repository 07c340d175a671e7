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
//! A tree is [walked](traverse) in the order of its blocks, and a block is freed after all that is below it, so
//! that the walk can be taken up again: the *bookmark* is the first block of level 0 that was not
//! freed yet. What lies before it is gone and must not be read.
//!
//! One transaction group frees so many blocks, and takes so much time (`zfs_free_min_time_ms`).
//!
//! A tree that cannot be read in full stays in the queue with its bookmark; those behind it are
//! freed all the same, and marked as done. With `zfs_free_leak_on_eio` what is below a block that cannot
//! be read is left out instead. What `$FREE` is charged for when nothing waits any more is then charged to
//! `$LEAK`, as are the entries of `free_bpobj` that could not be read.

pub use super::budget::Budget;
use super::mos::{WORDS_METADATA, corrupt};
use super::space::Delta;
use super::{
    DslWriteError, Result, Sizes, Tx, bpobj, deadlist, directory, features, livelist, remaps,
    special,
};
use crate::traverse::{self, DESTROYED, Mark, Place, Stopped, Traversal, Visitor};
use crate::{bounds, tunables};
use cenote_dmu::write::NewObject;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::{ByteOrder, Bytes, invariant, less};
use cenote_store::{Bookmark, Store};
use std::sync::Arc;

mod reads;

const ASYNC_DESTROY: &str = "com.delphix:async_destroy";
/// Entry of the object directory.
const QUEUE: &str = "bptree_obj";
/// Bytes of the queue's header and of an entry.
const HEADER: usize = 40;
const ENTRY: usize = BLKPTR_SIZE + 40;
/// Blocks that room is made for at once.
const MOST: usize = 1 << 14;
/// Blocks that are freed between two looks at the clock.
const LOOK_AT_CLOCK: usize = 64;

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

/// Puts a destroyed dataset on the queue (`bptree_add`): all below `root` that was born after `after_txg`, so many
/// bytes.
pub(super) fn queue_tree(
    tx: &mut Tx<'_>,
    root: &BlockPointer,
    after_txg: u64,
    sizes: Sizes,
) -> Result<()> {
    let queue = match directory::entry(tx, QUEUE)? {
        Some(queue) => queue,
        None => {
            features::increment(tx, ASYNC_DESTROY)?;
            let queue = tx.mos.allocate(&NewObject {
                bonus_kind: WORDS_METADATA,
                bonus: vec![0; HEADER],
                ..NewObject::new(WORDS_METADATA, bpobj::BLOCK)
            })?;
            directory::set_entry(tx, QUEUE, queue)?;
            queue
        }
    };
    let mut header = Header::read(tx, queue)?;
    Entry { root: *root, after_txg, resume: None }.write(tx, queue, header.end)?;
    header.end = header.end.wrapping_add(1);
    header.sizes.add(sizes);
    header.write(tx, queue)
}

/// Frees some of what is waiting (`free_bpobj`, `bptree_obj` and `deleted_clones` of the object directory;
/// `dsl_process_async_destroys`); true if there is more that can be freed (`dsl_scan_sync`). Progress is in the MOS. To
/// be called once in a txg, after the sync tasks.
pub fn destroy_step(tx: &mut Tx<'_>, budget: Budget<'_>) -> Result<bool> {
    let mut left = budget.blocks;
    if remaps::step(tx, &mut left)? {
        return Ok(true);
    }
    if let Some(list) = directory::entry(tx, directory::FREE_BPOBJ)? {
        let blocks = bpobj::take(tx, list, left)?;
        left = less!(left, blocks.len() as u64, "blocks that the group may free");
        let mut sum = Sizes::default();
        for bp in &blocks {
            sum.add((tx.space)(bp));
            tx.free(bp);
        }
        special::charge_free(tx, Delta::less(sum))?;
        if !bpobj::is_empty(tx, list)? {
            return Ok(true);
        }
        let lost = bpobj::take_lost(tx, list)?;
        if lost != Sizes::default() {
            special::charge_free(tx, Delta::less(lost))?;
            special::charge_leak(tx, lost)?;
        }
    }
    if livelist::delete::step(tx, &mut left, budget)? {
        return Ok(true);
    }
    if let Some(queue) = directory::entry(tx, QUEUE)? {
        let more = free_trees(tx, queue, Budget { blocks: left, ..budget })?;
        if more || directory::entry(tx, QUEUE)?.is_some() {
            return Ok(more);
        }
    }
    if tunables::FREE_LEAK_ON_EIO.get() != 0 && !livelist::delete::is_waiting(tx)? {
        special::leak_rest(tx)?;
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
    if let Err((Stop::Failed(why), _)) = Store::without_keys(|| walk.root(&entry)) {
        return Err(DslWriteError::Invalid(format!("not all of it can be read: {why}")));
    }
    // The root comes last, unless another dataset refers to it, as it does to all the rest then.
    walk.freed.pop();
    Ok(walk.freed)
}

/// Whether walking all below `root` that was born after `after_txg` takes fewer than `than` reads. They are
/// counted level by level: a level is read only if the count goes on. What was read stays in the ARC for the
/// walk. A walk that cannot be made reads no less.
pub(super) fn walk_reads_less(tx: &Tx<'_>, root: &BlockPointer, after_txg: u64, than: u64) -> bool {
    let store = tx.mos.synced().store();
    // Where blocks are is known without keys.
    let count = || reads::count(store, root, after_txg, than);
    Store::without_keys(count).is_ok_and(|n| n < than)
}

/// Bytes that are waiting to be freed (pool property `freeing`).
pub fn freeing(tx: &mut Tx<'_>) -> Result<u64> {
    special::free_dir_used(tx)
}

/// Frees blocks of the datasets on the queue, as far as the budget goes (`bptree_iterate`).
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
        let done = Store::without_keys(|| walk.root(&entry));
        let (freed, sum) = (walk.freed, walk.sum);
        let (may, now) = (left, walk.left);
        invariant!(now <= may, "a walk may free {now} blocks more, and might free {may} before");
        left = now;
        header.sizes.used = header.sizes.used.wrapping_sub(sum.used);
        header.sizes.compressed = header.sizes.compressed.wrapping_sub(sum.compressed);
        header.sizes.uncompressed = header.sizes.uncompressed.wrapping_sub(sum.uncompressed);
        tx.frees.reserve(freed.len());
        freed.iter().for_each(|bp| tx.free(bp));
        special::charge_free(tx, Delta::less(sum))?;
        match done {
            Err((why, at)) => {
                entry.resume = match (&why, entry.resume) {
                    // What is above the mark is read again. Where that failed, what is before the mark is free
                    // already.
                    (Stop::Failed(_), Some(mark)) if freed.is_empty() => Some(mark),
                    (_, mark) => at.or(mark),
                };
                entry.write(tx, queue, index)?;
                if let Stop::Failed(why) = why {
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
    let (begin, end) = (header.begin, header.end);
    invariant!(begin <= end, "queue of destroyed datasets: from {begin} to {end}");
    header.write(tx, queue)?;
    if header.begin == header.end {
        features::decrement(tx, ASYNC_DESTROY)?;
        directory::remove_entry(tx, QUEUE)?;
        tx.mos.free(queue)?;
    }
    Ok(paused)
}

/// Why a walk ended early.
enum Stop {
    Paused,
    Failed(String),
}

/// A walk through the tree of a destroyed dataset.
struct Walk<'t> {
    store: Arc<Store>,
    space: &'t dyn Fn(&BlockPointer) -> Sizes,
    after_txg: u64,
    /// Blocks of level 0 that may still be freed.
    left: u64,
    is_late: &'t dyn Fn() -> bool,
    /// What is below a block that cannot be read is left out.
    leaks: bool,
    /// Blocks that may still be read.
    reads_left: u64,
    freed: Vec<BlockPointer>,
    sum: Sizes,
}

/// Whether a block was born too early to be freed with what is younger than `after_txg`, or does not count as a block.
fn is_foreign(bp: &BlockPointer, after_txg: u64) -> bool {
    bp.logical_birth() == 0 || bp.birth() <= after_txg || !deadlist::counts(bp)
}

impl<'t> Walk<'t> {
    fn new(tx: &Tx<'t>, entry: &Entry, budget: Budget<'t>) -> Walk<'t> {
        let mos = tx.mos.synced();
        Walk {
            store: mos.store().clone(),
            space: tx.space,
            after_txg: entry.after_txg,
            left: budget.blocks,
            is_late: budget.is_late,
            leaks: false,
            reads_left: bounds::max_blocks(mos),
            // Memory that is not used is not touched.
            freed: Vec::with_capacity(usize::try_from(budget.blocks).unwrap_or(MOST).min(MOST)),
            sum: Sizes::default(),
        }
    }

    fn free(&mut self, bp: &BlockPointer) {
        let after = self.after_txg;
        invariant!(
            !is_foreign(bp, after),
            "a block is freed with a dataset that has only what is younger than group {after}: {bp:?}"
        );
        self.sum.add((self.space)(bp));
        self.freed.push(*bp);
    }

    /// What is below a block cannot be read: it is leaked, or ends the walk.
    fn lose(&self, why: impl ToString) -> std::result::Result<(), Stop> {
        if !self.leaks {
            return Err(Stop::Failed(why.to_string()));
        }
        tracing::warn!("blocks of a destroyed dataset are leaked: {}", why.to_string());
        Ok(())
    }

    /// The root block of an entry and all below it. If that ends early: why, and where to go on.
    fn root(&mut self, entry: &Entry) -> std::result::Result<(), (Stop, Option<Mark>)> {
        if is_foreign(&entry.root, self.after_txg) {
            return Ok(());
        }
        let store = self.store.clone();
        match traverse::read_root(&store, DESTROYED, &entry.root) {
            Ok(phys) => {
                let walked = Traversal::new(&store, DESTROYED, entry.resume, self).all(&phys);
                walked.map_err(|Stopped { why, at }| (why, Some(at)))?;
            }
            Err(why) => self.lose(why).map_err(|why| (why, None))?,
        }
        self.free(&entry.root);
        Ok(())
    }
}

impl Visitor for Walk<'_> {
    type Stop = Stop;

    fn wants(&self, bp: &BlockPointer) -> bool {
        !is_foreign(bp, self.after_txg)
    }

    fn pre(&mut self, place: &Place<'_>) -> std::result::Result<bool, Stop> {
        if !place.leads_on() {
            return Ok(false);
        }
        if self.reads_left == 0 {
            return self.lose("more blocks than the pool has").map(|()| false);
        }
        self.reads_left -= 1;
        Ok(true)
    }

    /// Frees a block, after all that is below it (`bptree_visit_cb`).
    fn post(&mut self, place: &Place<'_>) -> std::result::Result<(), Stop> {
        if place.node.level == 0 {
            let late = self.freed.len().is_multiple_of(LOOK_AT_CLOCK) && (self.is_late)();
            if late && !self.freed.is_empty() {
                return Err(Stop::Paused);
            }
            self.left = self.left.checked_sub(1).ok_or(Stop::Paused)?;
        }
        self.free(&place.node.bp);
        Ok(())
    }

    fn damaged(
        &mut self,
        _: Bookmark,
        _: &BlockPointer,
        why: cenote_dmu::Error,
    ) -> std::result::Result<(), Stop> {
        self.lose(why)
    }
}
