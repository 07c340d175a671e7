//! Changes that are made as a whole or not at all (what `dmu_tx_hold_*` and `dmu_tx_check_ioerr` are for in
//! OpenZFS).
//!
//! # Idea
//!
//! A change reads and changes in turn. Any of its reads may fail: a block cannot be read, or its contents make
//! no sense. So whatever a change does to the object set is noted, and taken back if the change does not come
//! to its end. It is so for changes of data sets in use and for changes of the meta object set.
//!
//! OpenZFS reads all that a change will touch before it begins. That list is kept by hand for
//! each operation, and whatever fails later is fatal there. Here nothing is
//! listed, and every error is covered, also of contents. It costs little, because
//! most of what a change touches is new to the transaction group and is taken back by forgetting it:
//!
//! - an object that was allocated, a block that was not dirty before: nothing is kept;
//! - a dnode that was changed before in this group: it is shared, and copied when it is changed;
//! - a dirty block: a few bytes are copied where it is known which will change (an entry of a micro
//!   ZAP, a pointer, the header of a fat ZAP); else the block is shared, and copied when it is changed;
//! - the bytes of a write that comes last in its change: nothing ([`OpenObjectSet::write_last`]).
//!
//! Changes nest: sync tasks are made of steps that may fail for themselves. What is kept of an inner change is
//! part of the outer one, and is taken back with it.
//!
//! # Structures
//!
//! The set has one list of [`Event`]s, oldest first, and knows for each change under way where in the list it
//! began. An object that is being changed has the list meanwhile ([`Journal`]), and notes there what it was.
//! Changes have numbers that grow; an object remembers the number of the change in which it last noted its
//! dnode. If that is the innermost change or a later one, it need not do so again.
//!
//! # Invariants
//!
//! - Events are taken back in reverse order, up to where the change began.
//! - What can be seen after [`OpenObjectSet::undo_change`] is what could be seen before
//!   [`OpenObjectSet::begin_change`]. What a change has only read may stay in memory.
//! - In what a change noted, the dnode of an object comes before all else of that object.
//! - After a sealed change began to copy it cannot be taken back: nothing may fail then.
//! - An object set is neither synced nor quiesced in the middle of a change.

use super::journal::{Before, Event, Journal, Log, RootBefore};
use super::object::{OpenObject, Place};
use super::slots::PER_BLOCK;
use super::{Chunk, OpenObjectSet, Result, WriteError};
use crate::objset::PROJECT_USED;
use crate::overlay::Parts;
use cenote_format::invariant;
use cenote_format::invariant::broken;
use cenote_store::write::Payload;
use cenote_store::{BlockError, Bookmark, held};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Events noted last among which a block is sought that has to be noted only once.
const RECENT: usize = 64;
/// Events for which the list keeps its memory from change to change.
const KEPT: usize = 1024;

impl OpenObject {
    /// Whether to note what is going to be changed. The dnode is noted here.
    fn notes(&mut self) -> bool {
        let Journal { log, dnode, nothing, .. } = &self.journal;
        let (change, object) = (log.change, log.object);
        if change == 0 || *nothing >= change {
            return false;
        }
        if *dnode < change {
            let (before, changed) = self.before();
            let event = Event::Dnode(object, before, changed, self.pending.top.indirect());
            self.journal.dnode = change;
            self.journal.log.events.push(event);
        }
        true
    }

    /// The dnode or whether there are changes is going to be changed.
    pub(super) fn note_dnode(&mut self) {
        self.notes();
    }

    fn note(&mut self, blkid: u64, before: impl FnOnce(&Payload) -> Before) {
        if self.notes() {
            let before = match self.pending.top.cloned(blkid) {
                Some(bp) => Before::Clone(*bp),
                None => self.pending.top.dirty(blkid).map_or(Before::Clean, before),
            };
            let Log { events, object, .. } = &mut self.journal.log;
            events.push(Event::Block(*object, blkid, before));
        }
    }

    /// Whether the innermost change has just noted all of block `blkid`, so that its bytes need not be noted.
    fn has_noted(&self, blkid: u64) -> bool {
        let log = &self.journal.log;
        let whole = |event: &Event| match event {
            Event::Block(object, noted, Before::Clean | Before::Whole(_) | Before::Clone(_)) => {
                *object == log.object && *noted == blkid
            }
            _ => false,
        };
        log.of_change().iter().rev().take(RECENT).any(whole)
    }

    /// Block `blkid` is going to be replaced or to go.
    pub(super) fn note_block(&mut self, blkid: u64) {
        self.note(blkid, |data| Before::Whole(data.clone()));
    }

    /// Block `blkid` is going to be changed in place.
    pub(super) fn note_bytes(&mut self, blkid: u64) {
        if self.notes() && !self.has_noted(blkid) {
            self.note_block(blkid);
        }
    }

    /// Some bytes of block `blkid`, which is dirty, are going to be changed in place.
    pub(super) fn note_part(&mut self, blkid: u64, range: Range<usize>) {
        if !self.notes() || self.has_noted(blkid) {
            return;
        }
        self.note(blkid, |data| {
            let mut old = vec![0; range.len()];
            match data.plain().and_then(|data| data.copy_to(range.start, &mut old)) {
                Some(()) => Before::Part(range.start, old),
                None => Before::Whole(data.clone()),
            }
        });
    }

    /// Some bytes of block `blkid`, which is dirty, were changed in place: these they were.
    pub(super) fn note_old(&mut self, blkid: u64, at: usize, old: Vec<u8>) {
        self.note(blkid, |_| Before::Part(at, old));
    }

    /// Block `blkid` is going to be longer.
    pub(super) fn note_length(&mut self, blkid: u64) {
        self.note(blkid, |data| Before::Length(data.len()));
    }

    /// Ranges are going to be freed or forced.
    pub(super) fn note_ranges(&mut self) {
        if self.notes() && self.journal.ranges < self.journal.log.change {
            let ranges = Box::new(self.pending.top.ranges());
            let Journal { log, ranges: noted, .. } = &mut self.journal;
            *noted = log.change;
            log.events.push(Event::Ranges(log.object, ranges));
        }
    }

    /// The spill block is going to be changed.
    pub(super) fn note_spill(&mut self) {
        if self.notes() {
            let spill = self.pending.top.spill.clone();
            let log = &mut self.journal.log;
            log.events.push(Event::Spill(log.object, spill));
        }
    }

    /// Makes block `blkid` what it was.
    fn take_back(&mut self, blkid: u64, before: Before) {
        let top = &mut self.pending.top;
        match before {
            Before::Clean => top.remove(blkid),
            Before::Whole(data) => {
                top.put(blkid, data);
            }
            Before::Clone(bp) => top.put_clone(blkid, bp),
            Before::Length(len) => top.resize(blkid, len),
            Before::Part(at, old) => {
                let data = top.dirty_mut(blkid);
                let (part, len) =
                    (data.and_then(|data| data.get_mut(at..at + old.len())), old.len());
                match part {
                    Some(part) => part.copy_from_slice(&old),
                    None => {
                        broken(format_args!("block {blkid}: no {len} bytes at {at} to take back"))
                    }
                }
            }
        }
    }
}

/// A change under way.
#[derive(Debug)]
struct Level {
    number: u64,
    /// Which event is its first.
    start: usize,
    /// Figures of the set as they were: bytes to be written, pointers freed, objects more than on disk.
    figures: (u64, u64, i64),
}

/// The changes that are being made, each within the one before.
#[derive(Debug, Default)]
pub(super) struct Change {
    log: Log,
    /// What was open of the objects that were freed, one for each such event.
    freed: Vec<Option<Arc<OpenObject>>>,
    levels: Vec<Level>,
    /// Number of the last change that was begun.
    last: u64,
    /// What was done cannot be taken back any more.
    sealed: bool,
}

impl Change {
    /// An empty undo, of a set with objects that `of` may have changed.
    fn after(of: &Change) -> Change {
        Change { last: of.last, ..Change::default() }
    }

    fn begin(&mut self, figures: (u64, u64, i64)) {
        self.last += 1;
        let (number, start) = (self.last, self.log.events.len());
        self.levels.push(Level { number, start, figures });
        (self.log.change, self.log.start) = (number, start);
    }

    /// Ends the innermost change. Nothing is forgotten as long as there is another one around it.
    fn end(&mut self) -> Level {
        let Some(ended) = self.levels.pop() else {
            broken(format_args!("a change ends that did not begin"));
        };
        let outer = self.levels.last();
        (self.log.change, self.log.start) =
            outer.map_or((0, 0), |outer| (outer.number, outer.start));
        if outer.is_none() {
            self.log.events.clear();
            self.log.events.shrink_to(KEPT);
            self.freed.clear();
            self.sealed = false;
        }
        ended
    }

    fn note(&mut self, event: Event) {
        if self.log.change != 0 {
            self.log.events.push(event);
        }
    }

    /// An object is going to be changed by `f`, perhaps.
    pub(super) fn with<T>(
        &mut self,
        number: u64,
        object: &mut OpenObject,
        f: impl FnOnce(&mut OpenObject) -> T,
    ) -> T {
        self.log.object = number;
        object.journal.log = std::mem::take(&mut self.log);
        let done = f(object);
        self.log = std::mem::take(&mut object.journal.log);
        done
    }

    /// An object of so many slots was allocated, of which the group had `freed` these.
    pub(super) fn allocated(
        &mut self,
        (number, slots, freed): (u64, u64, u32),
        object: &mut OpenObject,
    ) {
        object.journal.nothing = self.log.change;
        self.note(Event::Allocated(number, slots, freed));
    }

    /// An object of so many slots was freed.
    pub(super) fn freed(
        &mut self,
        number: u64,
        slots: u64,
        object: Option<Arc<OpenObject>>,
        doomed: bool,
    ) {
        if self.log.change != 0 {
            self.freed.push(object);
        }
        self.note(Event::Freed(number, slots, doomed));
    }
}

impl OpenObjectSet {
    /// Begins a change, which ends with [`OpenObjectSet::keep_change`] or [`OpenObjectSet::undo_change`]. It
    /// may be within another one.
    pub fn begin_change(&mut self) {
        let figures = (self.unwritten.dirty, self.transaction.freed, self.more);
        self.transaction.change.begin(figures);
    }

    /// Ends the change that was begun last, and keeps what it did.
    pub fn keep_change(&mut self) {
        self.transaction.change.end();
    }

    /// Ends the change that was begun last, and takes back what it did (`dmu_tx_abort`); false if that is not possible any
    /// more, after [`OpenObjectSet::write_last`].
    pub fn undo_change(&mut self) -> bool {
        if self.transaction.change.sealed {
            return false;
        }
        while self.transaction.change.log.events.len() > self.transaction.change.log.start
            && let Some(event) = self.transaction.change.log.events.pop()
        {
            self.take_back(event);
        }
        let figures = self.transaction.change.end().figures;
        (self.unwritten.dirty, self.transaction.freed, self.more) = figures;
        true
    }

    fn take_back(&mut self, event: Event) {
        match event {
            Event::Dnode(number, dnode, changed, indirect) => self.back(number, |object| {
                object.journal.dnode = 0;
                object.pending.top.set_indirect(indirect);
                object.pending.micro = None;
                object.restore(dnode, changed);
            }),
            Event::Block(number, blkid, before) => {
                self.back(number, |object| object.take_back(blkid, before));
            }
            Event::Ranges(number, ranges) => self.back(number, |object| {
                object.journal.ranges = 0;
                object.pending.top.set_ranges(*ranges);
            }),
            Event::Spill(number, spill) => {
                self.back(number, |object| object.pending.top.spill = spill);
            }
            Event::Allocated(number, slots, freed) => {
                let open = self.unwritten.objects.remove(&number).is_some();
                invariant!(open, "object {number}: allocated, and not open");
                self.slots.put_back(number, slots, freed);
            }
            Event::Freed(number, slots, doomed) => {
                let Some(object) = self.transaction.change.freed.pop() else {
                    broken(format_args!("object {number}: freed, and it is not known what it was"));
                };
                self.unwritten.objects.extend(object.map(|object| (number, object)));
                let known = !doomed || self.unwritten.doomed.remove(&number).is_some();
                invariant!(known, "object {number}: it was to be freed, and that is not known");
                self.slots.take_back(number, slots);
            }
            Event::Root(root) => {
                let here = &mut self.unwritten.root;
                (here.phys.flags, here.phys.zil) = root.phys;
                (here.changed, self.over) = (root.changed, root.over);
            }
        }
    }

    fn back(&mut self, number: u64, f: impl FnOnce(&mut OpenObject)) {
        match self.unwritten.objects.get_mut(&number) {
            Some(object) => f(Arc::make_mut(object)),
            None => broken(format_args!("object {number}: changed, and not open")),
        }
    }

    /// Nothing is written or quiesced in the middle of a change.
    pub(super) fn check_no_change(&self) {
        let (objset, under_way) = (self.id(), self.transaction.change.levels.len());
        invariant!(
            under_way == 0,
            "objset {objset} is written in the middle of {under_way} changes"
        );
    }

    /// What the root block says is going to be changed.
    pub(super) fn note_root(&mut self) {
        let here = &self.unwritten.root;
        let phys = (here.phys.flags, here.phys.zil);
        let root = RootBefore { phys, over: self.over, changed: here.changed };
        self.transaction.change.note(Event::Root(Box::new(root)));
    }

    /// Half of a change was made: nothing of this object set may be written.
    pub(crate) fn poison(&mut self) {
        self.unwritten.failed = true;
        let change = &mut self.transaction.change;
        *change = Change::after(change);
    }

    /// As [`OpenObjectSet::write`], as the last thing that a change does: what is overwritten is not
    /// kept to be taken back.
    pub fn write_last(&mut self, number: u64, offset: u64, chunk: &Chunk<'_>) -> Result<()> {
        self.seal(number, offset, chunk)?;
        self.with(number, |object, place| object.write(place, offset, chunk))
    }

    /// Gets what a write reads, after which nothing can fail.
    fn seal(&mut self, number: u64, offset: u64, chunk: &Chunk<'_>) -> Result<()> {
        self.with(number, |object, place| object.prepare_write(place, offset, chunk))?;
        if held::has_missed() {
            // Something before did not mind. The change is not going to be kept.
            let at = Bookmark { objset: self.id(), object: number, level: 0, blkid: 0 };
            return Err(WriteError::from(BlockError::NotHeld { at }));
        }
        let change = self.transaction.change.log.change;
        if change != 0 {
            self.transaction.change.sealed = true;
            self.with(number, |object, _| {
                object.journal.nothing = change;
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Reads what the sync will have to read for the change that was begun last: blocks of dnodes, and indirect
    /// blocks above dirty and freed blocks. What cannot be read is found while the change can still be undone.
    ///
    /// # Errors
    /// A block of dnodes or an indirect block cannot be read.
    pub fn check_change(&self) -> Result<()> {
        let (mut changed, mut dnode_blocks) = (BTreeSet::new(), BTreeSet::new());
        for event in self.transaction.change.log.of_change() {
            match event {
                Event::Dnode(number, ..) | Event::Allocated(number, ..) => {
                    changed.insert(*number);
                }
                Event::Freed(number, _, true) => {
                    dnode_blocks.insert(number / PER_BLOCK);
                }
                _ => {}
            }
        }
        for number in changed {
            let Some(object) = self.unwritten.objects.get(&number).filter(|object| object.changed)
            else {
                continue;
            };
            if number < PROJECT_USED {
                dnode_blocks.insert(number / PER_BLOCK);
            }
            object.read_for_sync(&self.unwritten.place(number))?;
        }
        let meta = self.unwritten.meta_tree();
        dnode_blocks.into_iter().try_for_each(|blkid| Ok(meta.block(blkid).map(drop)?))
    }
}

impl OpenObject {
    /// Reads what the sync will have to read for it: indirect blocks above dirty and freed blocks.
    ///
    /// # Errors
    /// An indirect block cannot be read.
    pub(super) fn read_for_sync(&self, place: &Place<'_>) -> Result<()> {
        let Some(disk) = self.disk().filter(|disk| disk.phys.levels > 1) else { return Ok(()) };
        let Parts { dirty, freed, .. } = self.pending.top.clone().into_parts();
        let edges = freed.edges().filter(|edge| *edge <= disk.phys.max_block);
        let tree = self.tree(place);
        for blkid in dirty.iter().map(|(blkid, _)| blkid).chain(edges) {
            tree.read_indirect(blkid, blkid)?;
        }
        Ok(())
    }
}
