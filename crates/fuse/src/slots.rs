//! The slots of a mount's tree: which number leads to which submount, made directory or snapshot.
//!
//! The upper bits of an inode number are a slot ([`tree`](crate::tree)). Slots of submounts and of the directories
//! that were made for them are given out in order; that of a snapshot follows from its name.
//!
//! Invariants: what a place is in has a smaller slot than what is there. A slot is never given to anything else
//! while the mount lasts; one that was left is [`Slot::Gone`].

use crate::branch::{Branch, Made, Place};
use crate::node::{Node, slot_of};
use crate::snapshot::Snapshot;
use ahash::HashMap;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Slots of submounts and made directories; those from here on are of snapshots.
pub(crate) const MAX_SLOTS: usize = FIRST_SNAPSHOT as usize - 1;
/// First slot of snapshots.
const FIRST_SNAPSHOT: u16 = 1 << 15;

/// What has a slot.
#[derive(Clone)]
pub(crate) enum Slot {
    Snapshot(Arc<Snapshot>),
    Submount(Arc<Branch>),
    Made(Arc<Made>),
    Gone,
}

/// Slots and where they lead to each other.
#[derive(Default)]
pub(crate) struct Table {
    /// Slots from 1 on, of submounts and made directories.
    pub(crate) slots: Vec<Slot>,
    /// Slots of snapshots.
    pub(crate) of_snapshots: BTreeMap<u16, Slot>,
    /// Slots of snapshots by the slot of their file system and their name.
    pub(crate) snapshots: HashMap<(u16, String), u16>,
    /// Snapshots, named like that, that nothing leads to for the moment.
    pub(crate) closed: HashSet<(u16, String)>,
    /// Submounts by the inode numbers of the directories that they cover.
    pub(crate) covers: HashMap<u64, Arc<Branch>>,
    /// Added entries, slot and name, by the inode number of the directory.
    pub(crate) added: HashMap<u64, BTreeMap<u16, Vec<u8>>>,
}

/// The slot that a snapshot of this name is to have: by its hash (FNV-1a).
fn preferred_slot(branch: u16, name: &str) -> u16 {
    let bytes = branch.to_le_bytes().into_iter().chain(name.bytes());
    let hash = bytes
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    FIRST_SNAPSHOT | (hash ^ hash >> 16) as u16
}

impl Table {
    pub(crate) fn slot(&self, slot: u16) -> Option<&Slot> {
        if slot >= FIRST_SNAPSHOT {
            return self.of_snapshots.get(&slot);
        }
        usize::from(slot).checked_sub(1).and_then(|i| self.slots.get(i))
    }

    /// Whether nothing leads to a snapshot for the moment, since it may be about to go.
    pub(crate) fn is_closed(&self, key: &(u16, String)) -> bool {
        !self.closed.is_empty() && self.closed.contains(key)
    }

    /// What has a slot, unless it is closed.
    pub(crate) fn open(&self, slot: u16) -> Option<Slot> {
        let found = self.slot(slot)?;
        match found {
            Slot::Snapshot(s) if self.is_closed(&(s.branch.slot, s.name.clone())) => None,
            found => Some(found.clone()),
        }
    }

    /// Fills a new slot; `None` if there are no more.
    pub(crate) fn push(&mut self, new: impl FnOnce(u16) -> Slot) -> Option<u16> {
        let number = self.slots.len().checked_add(1).filter(|n| *n <= MAX_SLOTS)?;
        let number = u16::try_from(number).ok()?;
        self.slots.push(new(number));
        Some(number)
    }

    /// Gives a snapshot the slot that follows from its name, or the next one that is free; `None` if there
    /// is no free slot.
    pub(crate) fn push_snapshot(&mut self, snapshot: Snapshot) -> Option<u16> {
        let first = preferred_slot(snapshot.branch.slot, &snapshot.name);
        let all = (first..=u16::MAX).chain(FIRST_SNAPSHOT..first);
        let slot = all.into_iter().find(|slot| !self.of_snapshots.contains_key(slot))?;
        self.of_snapshots.insert(slot, Slot::Snapshot(Arc::new(snapshot)));
        Some(slot)
    }

    /// All slots with their numbers. What is in something comes later.
    fn numbered(&self) -> impl Iterator<Item = (u16, &Slot)> {
        (1..).zip(&self.slots).chain(self.of_snapshots.iter().map(|(slot, what)| (*slot, what)))
    }

    /// Entries that are added to a directory.
    pub(crate) fn added_to(&self, dir: &Node) -> u64 {
        if self.added.is_empty() {
            return 0;
        }
        self.added.get(&dir.ino()).map_or(0, |entries| entries.len() as u64)
    }

    /// The slots of a branch and of all that is in it, and whether submounts are among these.
    pub(crate) fn within(&self, branch: &Branch) -> (HashSet<u16>, bool) {
        let mut slots = HashSet::from([branch.slot]);
        let mut submounts = false;
        for (number, slot) in self.numbered() {
            let around = match slot {
                Slot::Snapshot(s) => Some(&s.branch),
                Slot::Submount(b) => b.place.as_ref().map(|p| &p.branch),
                Slot::Made(m) => Some(&m.place.branch),
                Slot::Gone => None,
            };
            if around.is_some_and(|b| slots.contains(&b.slot)) {
                submounts |= matches!(slot, Slot::Submount(_));
                slots.insert(number);
            }
        }
        (slots, submounts)
    }

    /// Forgets slots and what leads there. Users of submounts among them get errors from now on.
    pub(crate) fn forget(&mut self, slots: &HashSet<u16>) {
        let snapshots = self.of_snapshots.iter_mut().map(|(slot, what)| (*slot, what));
        for (number, slot) in (1..).zip(&mut self.slots).chain(snapshots) {
            if slots.contains(&number)
                && let Slot::Submount(branch) = std::mem::replace(slot, Slot::Gone)
            {
                branch.set_gone();
            }
        }
        self.snapshots.retain(|_, slot| !slots.contains(slot));
        self.covers.retain(|_, branch| !slots.contains(&branch.slot));
        self.added.retain(|ino, entries| {
            entries.retain(|slot, _| !slots.contains(slot));
            !entries.is_empty() && !slots.contains(&slot_of(*ino))
        });
    }

    /// Takes away directories that were made for a submount that is gone from `place`, as far as they
    /// lead nowhere. Returns the outermost entry that is gone, as directory and name.
    pub(crate) fn tidy<'a>(&mut self, mut place: &'a Place, made: &'a [Arc<Made>]) -> &'a Place {
        loop {
            let ino = place.covered.unwrap_or(place.dir);
            let inside = made.iter().find(|m| m.slot == slot_of(ino));
            let Some(m) = inside else { return place };
            if self.added.contains_key(&ino) || self.covers.contains_key(&ino) {
                return place;
            }
            self.forget(&HashSet::from([m.slot]));
            place = &m.place;
        }
    }

    pub(crate) fn made(&self) -> Vec<Arc<Made>> {
        let made = |slot: &Slot| match slot {
            Slot::Made(m) => Some(m.clone()),
            _ => None,
        };
        self.slots.iter().filter_map(made).collect()
    }
}
