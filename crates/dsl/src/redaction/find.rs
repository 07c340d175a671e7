//! Which blocks a redaction list has to have (`perform_thread_merge`, `perform_redaction`, `redact_traverse_thread`).
//!
//! ```text
//! snapshot 1 ── walk ─┐
//! snapshot 2 ── walk ─┼─> what each of them changed ──> blocks that the snapshot has ──> entries
//! snapshot n ── walk ─┘
//! ```
//!
//! A thread walks each of the later snapshots, down where blocks were born after the snapshot that is redacted. A block or
//! hole that changed is a range; so are all blocks of an object that is not there any more, or waits to be deleted. So is what
//! lies behind the last block that the tree of an object has a place for, and in the slots of its dnode but the first: the
//! snapshot may have had another object there, which was larger, or several. (OpenZFS does not count these.) Ranges of
//! a walk come in order, and neighbours are one. All walks go side by side. Of the ranges at their fronts the part that lies in
//! each of them is redacted; the one that ends first is done. When a walk has ended nothing more can be in all of them.
//!
//! What is left is cut to the blocks of objects that the snapshot has, and that hold no metadata. Neighbours of one object
//! become one entry.
//!
//! *Going on.* Each piece that is found says where to go on: at the start of the entry that is not yet handed on. A search
//! goes on behind the last entry that was handed on. What lies before that is not walked again, but for what lies in the same block of dnodes.
//!
//! Invariants: the memory of a walk is bounded by what waits in its channel, by what it reads ahead, and by the objects that wait
//! to be deleted. Of a range of a walk only what lies behind the one before it counts, so that ranges are in order. An indirect block
//! that is linked twice ends a walk as damage, so a hostile pool cannot make it endless.

use super::Error;
use crate::traverse::{self, DNODES, Mark, Place, Stopped, Traversal, Visitor};
use crate::{Dataset, DatasetKind, Dsl};
use cenote_dmu::object::SPILL_BLKID;
use cenote_dmu::objset::META_DNODE;
use cenote_dmu::zap::Zap;
use cenote_dmu::{ObjectSet, Tree};
use cenote_format::ByteOrder;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::dmu::ObjsetType;
use cenote_format::redaction::{MAX_COUNT, RedactBlocks};
use cenote_store::Bookmark;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Ranges that a walk hands on at once.
const BATCH: usize = 256;
/// Batches that wait for the other walks.
const WAITING: usize = 4;
/// How often it is asked whether the search is to stop, while the walks find nothing.
const LOOK: Duration = Duration::from_millis(100);
/// Object of a file system that names the others.
const MASTER_NODE: u64 = 1;

/// An object and a block in it.
type At = (u64, u64);
/// Blocks from the first place to before the second one, of all objects between them.
type Range = (At, At);

/// A piece of what must be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// An entry that does not grow any more.
    pub entry: Option<RedactBlocks>,
    /// Object and block where to go on, with the entries so far.
    pub next: (u64, u64),
}

/// Why there is no redaction list.
#[derive(Debug, thiserror::Error)]
pub enum RedactError {
    /// A snapshot cannot be read.
    #[error(transparent)]
    Read(#[from] Error),
    /// There is nothing to redact by.
    #[error("no redaction snapshots")]
    Nothing,
    /// One of the snapshots does not come after the one that is redacted.
    #[error("redaction snapshot must be descendent of snapshot being redacted")]
    NotAfter,
    /// One of the snapshots is redacted itself.
    #[error("attempted to redact redacted dataset or with respect to redacted dataset")]
    Redacted,
    /// One of the snapshots is no snapshot.
    #[error("'{0}' is not a snapshot")]
    NoSnapshot(String),
    /// It was to stop.
    #[error("interrupted")]
    Stopped,
    /// A thread cannot be started.
    #[error("{0}")]
    Thread(std::io::Error),
}

type Result<T> = std::result::Result<T, RedactError>;

impl Dsl {
    /// Whether a snapshot can be redacted by others (`dmu_redact_snap`).
    ///
    /// # Errors
    /// It cannot; they cannot be read.
    pub fn check_redaction(&self, snapshot: &Dataset, by: &[Dataset]) -> Result<()> {
        for dataset in std::iter::once(snapshot).chain(by) {
            if dataset.kind != DatasetKind::Snapshot {
                return Err(RedactError::NoSnapshot(dataset.name.clone()));
            }
        }
        if by.is_empty() {
            return Err(RedactError::Nothing);
        }
        if self.redacted_by(snapshot)?.is_some() {
            return Err(RedactError::Redacted);
        }
        for later in by {
            if !self.is_before(later, snapshot.dir_obj, snapshot.ds.creation_txg)? {
                return Err(RedactError::NotAfter);
            }
            if self.redacted_by(later)?.is_some() {
                return Err(RedactError::Redacted);
            }
        }
        Ok(())
    }

    /// Finds the blocks of a snapshot that each of the snapshots `by`, which were
    /// [checked](Dsl::check_redaction), changed; from `from` on. `take` is told of each, in order; its error ends the
    /// search, as `E`. So does `stops`, which is asked all the time, soon after it says so.
    ///
    /// # Errors
    /// A snapshot cannot be read; `take` failed; `Stopped`.
    pub fn find_redaction<E: From<RedactError>>(
        &self,
        (snapshot, by): (&Dataset, &[Dataset]),
        from: Option<Mark>,
        stops: &dyn Fn() -> bool,
        mut take: impl FnMut(Found) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let refused = |e: Error| E::from(RedactError::Read(e));
        let objset = self.open_objset(snapshot).map_err(refused)?;
        let mut later = Vec::new();
        for dataset in by {
            later.push(self.open_objset(dataset).map_err(refused)?);
        }
        let (after, over) = (snapshot.ds.creation_txg, AtomicBool::new(false));
        let (over, share) = (&over, by.len());
        std::thread::scope(|scope| {
            // Also where a thread cannot be started, or something panics: no walk goes on then.
            let _ends = Ends(over);
            let (mut fronts, mut walks) = (Vec::new(), Vec::new());
            for objset in &later {
                let (put, ranges) = sync_channel(WAITING);
                fronts.push(Front { ranges, batch: Vec::new().into_iter() });
                let walk = move || walk((objset, after), from, share, (put, over));
                let thread = std::thread::Builder::new().name("redact-walk".into());
                let started = thread.spawn_scoped(scope, walk);
                walks.push(started.map_err(|e| E::from(RedactError::Thread(e)))?);
            }
            let mut entries =
                Entries { objset: &objset, object: None, open: None, take: &mut take };
            let merged = Merge::new(fronts).run(stops, |range| entries.range(range));
            // The walks that are left stop: no thread receives their ranges any more.
            over.store(true, Ordering::Relaxed);
            let mut walked = Vec::new();
            for walk in walks {
                let panicked = |_| RedactError::Thread(std::io::Error::other("internal error"));
                walked.push(walk.join().map_err(panicked)?);
            }
            // What another walk than the one that ended met behind that does not matter.
            let ended = merged?;
            walked.into_iter().nth(ended).unwrap_or(Ok(()))?;
            entries.finish()
        })
    }
}

/// Ends all walks when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The front of a walk: its ranges as they come.
struct Front {
    ranges: Receiver<Vec<Range>>,
    batch: std::vec::IntoIter<Range>,
}

impl Front {
    /// The next range; `None`: the walk has ended.
    fn next(&mut self, stops: &dyn Fn() -> bool) -> Result<Option<Range>> {
        loop {
            if let Some(range) = self.batch.next() {
                return Ok(Some(range));
            }
            if stops() {
                return Err(RedactError::Stopped);
            }
            match self.ranges.recv_timeout(LOOK) {
                Ok(batch) => self.batch = batch.into_iter(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }
}

/// The walks, side by side.
struct Merge {
    fronts: Vec<Front>,
    /// The range at the front of each.
    ranges: Vec<Range>,
    /// Their starts and their ends.
    starts: BTreeSet<(At, usize)>,
    ends: BTreeSet<(At, usize)>,
}

impl Merge {
    fn new(fronts: Vec<Front>) -> Merge {
        let ranges = vec![((0, 0), (0, 0)); fronts.len()];
        Merge { fronts, ranges, starts: BTreeSet::new(), ends: BTreeSet::new() }
    }

    /// Puts the next range of a walk to its front; false if the walk has ended.
    fn pull(&mut self, index: usize, stops: &dyn Fn() -> bool) -> Result<bool> {
        let (Some(front), Some(now)) = (self.fronts.get_mut(index), self.ranges.get_mut(index))
        else {
            return Ok(false);
        };
        self.starts.remove(&(now.0, index));
        self.ends.remove(&(now.1, index));
        let Some(range) = front.next(stops)? else { return Ok(false) };
        *now = range;
        self.starts.insert((range.0, index));
        self.ends.insert((range.1, index));
        Ok(true)
    }

    /// Hands on what lies in a range of each walk. Returns the walk that has ended.
    fn run<E: From<RedactError>>(
        mut self,
        stops: &dyn Fn() -> bool,
        mut take: impl FnMut(Range) -> std::result::Result<(), E>,
    ) -> std::result::Result<usize, E> {
        for index in 0..self.fronts.len() {
            if !self.pull(index, stops)? {
                return Ok(index);
            }
        }
        while let (Some((start, _)), Some((end, index))) = (self.starts.last(), self.ends.first()) {
            let (start, end, index) = (*start, *end, *index);
            if start < end {
                take((start, end))?;
            }
            if !self.pull(index, stops)? {
                return Ok(index);
            }
        }
        // There is no walk.
        Ok(0)
    }
}

/// What a snapshot changed (`redact_cb`).
struct Changed<'a> {
    put: SyncSender<Vec<Range>>,
    /// No thread receives its ranges any more.
    over: &'a AtomicBool,
    batch: Vec<Range>,
    /// The last range, which may grow.
    open: Option<Range>,
    after: u64,
    /// Where to begin.
    from: At,
    /// Objects that wait to be deleted.
    deleted: BTreeSet<u64>,
    /// Indirect blocks that were met: of the meta dnode, and of the object.
    seen: [HashSet<Dva>; 2],
}

/// Why a walk ends: an error; `None`: no thread receives its ranges any more.
type Stop = Option<Error>;

impl Changed<'_> {
    fn check_over(&self) -> std::result::Result<(), Stop> {
        if self.over.load(Ordering::Relaxed) { Err(None) } else { Ok(()) }
    }

    /// Adds a range. What lies before the place to begin, or was added already, is left out.
    fn range(&mut self, (start, end): Range) -> std::result::Result<(), Stop> {
        let start = start.max(self.from);
        let start = self.open.map_or(start, |open| start.max(open.1));
        if start >= end {
            return Ok(());
        }
        match &mut self.open {
            Some(open) if open.1 == start => {
                open.1 = end;
                return Ok(());
            }
            open => self.batch.extend(open.replace((start, end))),
        }
        if self.batch.len() < BATCH {
            return Ok(());
        }
        self.put.send(std::mem::take(&mut self.batch)).map_err(|_| None)
    }

    /// All blocks of the objects from `first` to before `end`.
    fn objects(&mut self, first: u64, end: u64) -> std::result::Result<(), Stop> {
        self.range(((first.max(1), 0), (end, 0)))
    }

    fn finish(mut self) -> std::result::Result<(), Stop> {
        self.batch.extend(self.open);
        self.put.send(self.batch).map_err(|_| None)
    }
}

impl Visitor for Changed<'_> {
    type Stop = Stop;

    fn wants(&self, bp: &BlockPointer) -> bool {
        traverse::is_changed(bp, self.after)
    }

    fn free_slot(&mut self, number: u64) -> std::result::Result<(), Stop> {
        self.check_over()?;
        self.objects(number, number.saturating_add(1))
    }

    fn object(&mut self, tree: &Tree<'_>, _: ByteOrder) -> std::result::Result<bool, Stop> {
        self.check_over()?;
        if !self.deleted.contains(&tree.object) {
            self.seen[1].clear();
            return Ok(true);
        }
        self.objects(tree.object, behind(tree)).map(|()| false)
    }

    /// What the snapshot has here and this tree has no place for was another object's.
    fn object_done(&mut self, tree: &Tree<'_>) -> std::result::Result<(), Stop> {
        self.range(((tree.object, traverse::reach(tree)), (behind(tree), 0)))
    }

    fn pre(&mut self, place: &Place<'_>) -> std::result::Result<bool, Stop> {
        self.check_over()?;
        let (object, (first, end)) = (place.tree.object, place.span());
        let is_hole = place.node.bp.is_hole();
        if place.node.blkid == SPILL_BLKID || place.leads_on() {
            let twice = |dva| !self.seen[usize::from(object != META_DNODE)].insert(dva);
            if place.node.level > 0 && place.node.bp.dva(0).is_some_and(twice) {
                return Err(Some(place.linked_twice()));
            }
            return Ok(true);
        }
        match object {
            META_DNODE if is_hole => {
                self.objects(first.saturating_mul(DNODES), end.saturating_mul(DNODES))?;
            }
            META_DNODE => {}
            object => self.range(((object, first), (object, end)))?,
        }
        Ok(true)
    }

    fn damaged(
        &mut self,
        _: Bookmark,
        _: &BlockPointer,
        why: Error,
    ) -> std::result::Result<(), Stop> {
        Err(Some(why))
    }
}

/// The number behind the slots of an object.
fn behind(tree: &Tree<'_>) -> u64 {
    tree.object.saturating_add(1).saturating_add(u64::from(tree.dnode.extra_slots))
}

/// Objects of a file system that were unlinked, and wait to be deleted (`zfs_get_deleteq`).
fn unlinked(objset: &Arc<ObjectSet>) -> cenote_dmu::Result<BTreeSet<u64>> {
    if !matches!(objset.phys().kind, ObjsetType::Zfs) {
        return Ok(BTreeSet::new());
    }
    let master = Zap::open(&objset.object(MASTER_NODE)?)?;
    let Some(queue) = master.u64(b"DELETE_QUEUE")? else { return Ok(BTreeSet::new()) };
    let entries = Zap::open(&objset.object(queue)?)?.entries()?;
    Ok(entries.iter().filter_map(|entry| entry.u64()).collect())
}

/// Walks a snapshot, beside `walks` in all (`redact_traverse_thread`).
fn walk(
    (objset, after): (&Arc<ObjectSet>, u64),
    from: Option<Mark>,
    walks: usize,
    (put, over): (SyncSender<Vec<Range>>, &AtomicBool),
) -> Result<()> {
    let deleted = unlinked(objset)?;
    let begin = from.map_or((1, 0), |from| (from.object, from.blkid));
    let mut changed = Changed {
        put,
        over,
        batch: Vec::new(),
        open: None,
        after,
        from: begin,
        deleted,
        seen: Default::default(),
    };
    // The slots of a dnode before the place may hold it.
    let start = |from: Mark| Mark { object: (from.object / DNODES * DNODES).max(1), blkid: 0 };
    let walk = Traversal::new(objset.store(), objset.id(), from.map(start), &mut changed);
    let walked = walk.one_of(walks).objects(objset.phys()).map_err(|Stopped { why, .. }| why);
    match walked.and_then(|()| changed.finish()) {
        Ok(()) | Err(None) => Ok(()),
        Err(Some(why)) => Err(why.into()),
    }
}

/// Makes entries of ranges (`perform_redaction`, `update_redaction_list`).
struct Entries<'a, F> {
    objset: &'a Arc<ObjectSet>,
    /// What is known of the object that was met last.
    object: Option<Known>,
    /// The entry that may grow.
    open: Option<RedactBlocks>,
    take: F,
}

#[derive(Clone, Copy)]
struct Known {
    number: u64,
    block_size: u64,
    /// How many blocks it has; none of metadata.
    blocks: u64,
}

impl<F, E> Entries<'_, F>
where
    F: FnMut(Found) -> std::result::Result<(), E>,
    E: From<RedactError>,
{
    /// The first object that is there from `number` on.
    fn object_from(&mut self, number: u64) -> cenote_dmu::Result<Option<Known>> {
        if let Some(known) = self.object.filter(|known| known.number == number) {
            return Ok(Some(known));
        }
        let Some(number) = self.objset.next_object(number)? else { return Ok(None) };
        let object = self.objset.object(number)?;
        let dnode = object.dnode();
        let has_blocks = !dnode.kind.is_metadata();
        let blocks = if has_blocks { dnode.max_block.saturating_add(1) } else { 0 };
        self.object = Some(Known { number, block_size: dnode.block_size, blocks });
        Ok(self.object)
    }

    fn range(&mut self, (start, end): Range) -> std::result::Result<(), E> {
        let mut from = start.0;
        loop {
            let found = self.object_from(from).map_err(|e| E::from(RedactError::Read(e)))?;
            let Some(known) = found.filter(|known| (known.number, 0) < end) else { return Ok(()) };
            let Known { number, blocks, .. } = known;
            let first = if number == start.0 { start.1 } else { 0 };
            let end = if number == end.0 { end.1.min(blocks) } else { blocks };
            self.blocks(known, first, end)?;
            from = number.saturating_add(1);
        }
    }

    /// The blocks of an object from `first` to before `end`.
    fn blocks(&mut self, known: Known, first: u64, end: u64) -> std::result::Result<(), E> {
        let (object, size, mut first) = (known.number, known.block_size, first);
        while first < end {
            let count = (end - first).min(MAX_COUNT);
            let grown = self.open.as_mut().filter(|open| {
                open.object == object && open.end() == first && open.count + count <= MAX_COUNT
            });
            match grown {
                Some(open) => {
                    open.count += count;
                    let next = (object, open.first);
                    (self.take)(Found { entry: None, next })?;
                }
                None => {
                    let entry = self.open.replace(RedactBlocks { object, first, count, size });
                    (self.take)(Found { entry, next: (object, first) })?;
                }
            }
            first += count;
        }
        Ok(())
    }

    fn finish(mut self) -> std::result::Result<(), E> {
        let next = cenote_format::redaction::RedactionList::COMPLETE;
        (self.take)(Found { entry: self.open.take(), next })
    }
}
