//! What is noted of a change, so that it can be taken back: see `undo`.
//!
//! Invariant: events are in the order in which they came about.

use super::Over;
use crate::dnode::Dnode;
use crate::ranges::Ranges;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ZilHeader;
use cenote_format::invariant::broken;
use cenote_store::write::Payload;
use std::sync::Arc;

/// A block as it was before.
#[derive(Debug, Clone)]
pub(super) enum Before {
    /// It was not dirty.
    Clean,
    /// It was this.
    Whole(Payload),
    /// It would have become a clone with this pointer.
    Clone(BlockPointer),
    /// It had these bytes at this offset.
    Part(usize, Vec<u8>),
    /// It was as long as this.
    Length(usize),
}

/// What changes of the root block consist of: flags, header of the intent log; what of them will be set when
/// another group was written; whether the root block will be written.
#[derive(Debug, Clone)]
pub(super) struct RootBefore {
    pub(super) phys: (u64, ZilHeader),
    pub(super) over: Over,
    pub(super) changed: bool,
}

/// What a change did, and how to take it back. Numbers of objects come first.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// It changed an object first: the dnode before, whether anything was changed, bytes of the indirect blocks
    /// that lead to dirty blocks.
    Dnode(u64, Arc<Dnode>, bool, u64),
    /// It changed a block.
    Block(u64, u64, Before),
    /// It changed the ranges of [`Layer::ranges`](crate::overlay::Layer::ranges).
    Ranges(u64, Box<[Ranges; 3]>),
    /// It changed the pending spill block.
    Spill(u64, Option<Option<Payload>>),
    /// It allocated an object of so many slots, of which these had been freed in the group.
    Allocated(u64, u64, u32),
    /// It freed an object of so many slots, and noted it as doomed if it did. What was open of it is kept beside the log.
    Freed(u64, u64, bool),
    /// It changed what the root block says.
    Root(Box<RootBefore>),
}

/// What was done, oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    pub(super) events: Vec<Event>,
    /// Number of the innermost change, and which event is its first; number 0: no change is being made.
    pub(super) change: u64,
    pub(super) start: usize,
    /// The object that has the log.
    pub(super) object: u64,
}

impl Log {
    /// What the innermost change did.
    pub(super) fn of_change(&self) -> &[Event] {
        let (start, all) = (self.start, self.events.len());
        self.events.get(start..).unwrap_or_else(|| {
            let (object, change) = (self.object, self.change);
            broken(format_args!(
                "object {object}: change {change} begins at event {start} of {all}"
            ))
        })
    }
}

/// What an object noted of what it was.
#[derive(Debug, Clone, Default)]
pub(super) struct Journal {
    /// The set's, while the object may be changed.
    pub(super) log: Log,
    /// The last change in which the dnode was noted, and the one in which the ranges were.
    pub(super) dnode: u64,
    pub(super) ranges: u64,
    /// The change in which nothing has to be noted: the object was allocated in it, or nothing is taken back
    /// any more.
    pub(super) nothing: u64,
}
