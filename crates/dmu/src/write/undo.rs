//! Changes that are made as a whole or not at all (what `dmu_tx_hold_*` is for in OpenZFS).
//!
//! # Idea
//!
//! A change of a live object set reads and changes in turn. Any of its reads may fail: a block cannot
//! be read, or its contents make no sense. So whatever a change does to the object set is noted, and
//! taken back if the change does not come to its end.
//!
//! OpenZFS reads all that a change will touch before it begins. That list has to be kept by hand for
//! each operation, and whatever fails later than that is fatal there. Here nothing has to be
//! listed, and every error is covered, those of contents too. It costs little, because
//! most of what a change touches is new to the transaction group and is taken back by forgetting it:
//!
//! - an object that was allocated, a block that was not dirty before: nothing is kept;
//! - a dnode that was changed before in this group: it is shared, and copied when it is changed;
//! - a dirty block: a few bytes are copied where it is known which will change (an entry of a micro
//!   ZAP, a pointer, the header of a fat ZAP); else the block is shared, and copied when it is changed;
//! - the bytes of a write that comes last in its change: nothing ([`OpenObjectSet::write_last`]).
//!
//! # Structures
//!
//! The set has a list of [`Event`]s, oldest first; an object that is changed has an [`Undo`] of its own
//! in its [`Journal`]. Both are empty when no change is being made.
//!
//! # Invariants
//!
//! - Events, and what an [`Undo`] has of blocks, are taken back in reverse order.
//! - What can be seen after [`OpenObjectSet::roll_back`] is what could be seen before
//!   [`OpenObjectSet::begin`]. What a change has only read may stay in memory.
//! - After a sealed change began to copy it cannot be taken back: nothing may fail then.

use super::object::OpenObject;
use super::{Chunk, OpenObjectSet, Result, WriteError};
use crate::object::Dnode;
use crate::ranges::Ranges;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ZilHeader;
use cenote_store::{BlockError, Bookmark, held};
use std::ops::Range;
use std::sync::Arc;

/// Blocks noted last among which one is sought that has to be noted only once.
const RECENT: usize = 16;

/// A block as it was before.
#[derive(Debug, Clone)]
enum Before {
    /// It was not dirty.
    Clean,
    /// It was this.
    Whole(Abd),
    /// It was to be a clone with this pointer.
    Clone(BlockPointer),
    /// It had these bytes at this offset.
    Part(usize, Vec<u8>),
    /// It was as long as this.
    Length(usize),
}

/// What an object was before the change.
#[derive(Debug, Clone)]
pub(super) struct Undo {
    dnode: Arc<Dnode>,
    changed: bool,
    blocks: Vec<(u64, Before)>,
    /// The freed and the forced ranges, if they were changed.
    ranges: Option<(Ranges, Ranges)>,
    /// Bytes of the indirect blocks that lead to dirty blocks.
    indirect: u64,
    /// The pending spill block, if it was changed.
    spill: Option<Option<Option<Abd>>>,
    /// The set knows of it.
    listed: bool,
    /// Nothing is noted any more.
    sealed: bool,
}

/// Whether an object notes what it was.
#[derive(Debug, Clone, Default)]
pub(super) enum Journal {
    /// It does not: no change is being made.
    #[default]
    Off,
    /// It will, when it is changed first.
    Armed,
    /// It need not in this change: it was allocated in it, or nothing is taken back any more.
    New(u64),
    /// It does.
    On(Box<Undo>),
}

impl Journal {
    /// Readies it for change number `change`; 0: there is none.
    fn arm(&mut self, change: u64) {
        *self = match std::mem::take(self) {
            Journal::On(undo) if change != 0 => Journal::On(undo),
            Journal::New(number) if change == number && change != 0 => Journal::New(number),
            _ if change != 0 => Journal::Armed,
            _ => Journal::Off,
        };
    }

    /// Whether it has begun, and the set does not know yet.
    fn began(&mut self) -> bool {
        match self {
            Journal::On(undo) => !std::mem::replace(&mut undo.listed, true),
            _ => false,
        }
    }

    /// Nothing is noted any more in change number `change`.
    fn seal(&mut self, change: u64) {
        match self {
            Journal::On(undo) => undo.sealed = true,
            other => *other = Journal::New(change),
        }
    }
}

impl OpenObject {
    /// Where to note what the object was, if that is to be noted: before the object is changed.
    fn undo(&mut self) -> Option<&mut Undo> {
        if matches!(self.journal, Journal::Armed) {
            let (dnode, changed) = self.before();
            let indirect = self.pending.top.indirect();
            let (blocks, ranges, spill) = Default::default();
            let (listed, sealed) = (false, false);
            let undo = Undo { dnode, changed, blocks, ranges, indirect, spill, listed, sealed };
            self.journal = Journal::On(Box::new(undo));
        }
        match &mut self.journal {
            Journal::On(undo) if !undo.sealed => Some(undo),
            _ => None,
        }
    }

    /// The dnode or whether there are changes is going to be changed.
    pub(super) fn note_dnode(&mut self) {
        self.undo();
    }

    fn note(&mut self, blkid: u64, before: impl FnOnce(&Abd) -> Before) {
        if self.undo().is_none() {
            return;
        }
        let before = match self.pending.top.cloned(blkid) {
            Some(bp) => Before::Clone(*bp),
            None => self.pending.top.dirty(blkid).map_or(Before::Clean, before),
        };
        self.undo().into_iter().for_each(|undo| undo.blocks.push((blkid, before.clone())));
    }

    /// Block `blkid` is going to be replaced or to go.
    pub(super) fn note_block(&mut self, blkid: u64) {
        self.note(blkid, |data| Before::Whole(data.clone()));
    }

    /// Block `blkid` is going to be changed in place.
    pub(super) fn note_bytes(&mut self, blkid: u64) {
        let Some(undo) = self.undo() else { return };
        let known = |(noted, before): &(u64, Before)| {
            let whole = matches!(before, Before::Clean | Before::Whole(_) | Before::Clone(_));
            *noted == blkid && whole
        };
        if !undo.blocks.iter().rev().take(RECENT).any(known) {
            self.note_block(blkid);
        }
    }

    /// Some bytes of block `blkid`, which is dirty, are going to be changed in place.
    pub(super) fn note_part(&mut self, blkid: u64, range: Range<usize>) {
        self.note(blkid, |data| {
            let mut old = vec![0; range.len()];
            match data.copy_to(range.start, &mut old) {
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
        if self.undo().is_some_and(|undo| undo.ranges.is_none()) {
            let ranges = self.pending.top.ranges();
            self.undo().into_iter().for_each(|undo| undo.ranges = Some(ranges.clone()));
        }
    }

    /// The spill block is going to be changed.
    pub(super) fn note_spill(&mut self) {
        if self.undo().is_some_and(|undo| undo.spill.is_none()) {
            let spill = self.pending.top.spill.clone();
            self.undo().into_iter().for_each(|undo| undo.spill = Some(spill.clone()));
        }
    }

    /// Makes the object what it was before the change.
    fn take_back(&mut self) {
        let Journal::On(undo) = std::mem::take(&mut self.journal) else { return };
        let Undo { dnode, changed, blocks, ranges, indirect, spill, .. } = *undo;
        let top = &mut self.pending.top;
        for (blkid, before) in blocks.into_iter().rev() {
            match before {
                Before::Clean => top.remove(blkid),
                Before::Whole(data) => top.put(blkid, data),
                Before::Clone(bp) => top.put_clone(blkid, bp),
                Before::Length(len) => top.resize(blkid, len),
                Before::Part(at, old) => {
                    let data = top.dirty_mut(blkid);
                    if let Some(part) = data.and_then(|data| data.get_mut(at..at + old.len())) {
                        part.copy_from_slice(&old);
                    }
                }
            }
        }
        top.set_indirect(indirect);
        if let Some(ranges) = ranges {
            top.set_ranges(ranges);
        }
        if let Some(spill) = spill {
            top.spill = spill;
        }
        self.pending.micro = None;
        self.restore(dnode, changed);
    }
}

/// What a change did to the set.
#[derive(Debug)]
enum Event {
    /// It changed an object.
    Changed(u64),
    /// It allocated an object of so many slots.
    Allocated(u64, u64),
    /// It freed an object of so many slots, and noted it as doomed if it did.
    Freed(u64, u64, Option<Arc<OpenObject>>, bool),
}

/// The change that is being made.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Its number; 0 if there is none.
    number: u64,
    /// Number of the last one.
    last: u64,
    events: Vec<Event>,
    /// Figures of the set as they were.
    figures: (u64, u64, i64),
    /// The header of the intent log, what of it is to be written, and whether the root block is, as they
    /// were before the change set the header.
    header: Option<(ZilHeader, Option<ZilHeader>, bool)>,
    /// It cannot be taken back any more.
    sealed: bool,
}

impl Change {
    fn log(&mut self, event: Event) {
        if self.number != 0 {
            self.events.push(event);
        }
    }

    /// An object is going to be changed by `f`, perhaps.
    pub(super) fn with<T>(
        &mut self,
        number: u64,
        object: &mut OpenObject,
        f: impl FnOnce(&mut OpenObject) -> T,
    ) -> T {
        object.journal.arm(self.number);
        let done = f(object);
        if object.journal.began() {
            self.events.push(Event::Changed(number));
        }
        done
    }

    /// An object of so many slots was allocated.
    pub(super) fn allocated(&mut self, number: u64, slots: u64, object: &mut OpenObject) {
        if self.number != 0 {
            object.journal = Journal::New(self.number);
            self.events.push(Event::Allocated(number, slots));
        }
    }

    /// An object of so many slots was freed.
    pub(super) fn freed(
        &mut self,
        number: u64,
        slots: u64,
        object: Option<Arc<OpenObject>>,
        doomed: bool,
    ) {
        self.log(Event::Freed(number, slots, object, doomed));
    }
}

impl OpenObjectSet {
    /// Begins a change, which ends with [`OpenObjectSet::commit`] or [`OpenObjectSet::roll_back`].
    ///
    /// Errors: the object set is of no use any more.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.usable()?;
        self.settle();
        let change = &mut self.change;
        change.last = change.last.wrapping_add(1).max(1);
        change.number = change.last;
        change.figures = (self.dirty, self.freed, self.more);
        change.sealed = false;
        Ok(())
    }

    /// Ends a change, and keeps what it did.
    pub(crate) fn commit(&mut self) {
        let mut events = std::mem::take(&mut self.change.events);
        for event in events.drain(..) {
            if let Event::Changed(number) = event
                && let Some(object) = self.objects.get_mut(&number)
            {
                Arc::make_mut(object).journal = Journal::Off;
            }
        }
        // The list keeps its memory.
        self.change.events = events;
        self.change.header = None;
        self.change.number = 0;
    }

    /// Ends a change, and takes back what it did; false if that is not possible any more.
    pub(crate) fn roll_back(&mut self) -> bool {
        if self.change.sealed {
            return false;
        }
        while let Some(event) = self.change.events.pop() {
            match event {
                Event::Changed(number) => {
                    if let Some(object) = self.objects.get_mut(&number) {
                        Arc::make_mut(object).take_back();
                    }
                }
                Event::Allocated(number, slots) => {
                    self.objects.remove(&number);
                    self.slots.put_back(number, slots);
                }
                Event::Freed(number, slots, object, doomed) => {
                    self.objects.extend(object.map(|object| (number, object)));
                    if doomed {
                        self.doomed.remove(&number);
                    }
                    self.slots.take_back(number, slots);
                }
            }
        }
        if let Some(before) = self.change.header.take() {
            (self.phys.zil, self.zil, self.changed) = before;
        }
        (self.dirty, self.freed, self.more) = self.change.figures;
        self.change.number = 0;
        true
    }

    /// The header of the intent log is going to be changed.
    pub(super) fn note_header(&mut self) {
        if self.change.number != 0 && self.change.header.is_none() {
            self.change.header = Some((self.phys.zil, self.zil, self.changed));
        }
    }

    /// Half of a change was made: nothing of this object set may be written.
    pub(crate) fn poison(&mut self) {
        self.failed = true;
        self.change.events.clear();
        self.change.number = 0;
    }

    /// As [`OpenObjectSet::write`], as the last thing that a change does: what is overwritten is not
    /// kept to be taken back.
    pub fn write_last(&mut self, number: u64, offset: u64, chunk: &Chunk<'_>) -> Result<()> {
        self.seal(number, offset, chunk.data().len())?;
        self.with(number, |object, place| object.write(place, offset, chunk))
    }

    /// Gets what a write reads, after which nothing can fail.
    fn seal(&mut self, number: u64, offset: u64, len: usize) -> Result<()> {
        self.with(number, |object, place| object.prepare_write(place, offset, len))?;
        if held::has_missed() {
            // Something before did not mind. The change is not going to be kept.
            let at = Bookmark { objset: self.id(), object: number, level: 0, blkid: 0 };
            return Err(WriteError::from(BlockError::NotHeld { at }));
        }
        let change = self.change.number;
        if change != 0 {
            self.change.sealed = true;
            self.with(number, |object, _| {
                object.journal.seal(change);
                Ok(())
            })?;
        }
        Ok(())
    }
}
