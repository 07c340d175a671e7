//! What a read notes of devices and blocks, and when that counts.
//!
//! # Idea
//!
//! A block that reads wrong may be damaged, or its pointer may be out of date: the block was freed, its
//! place was given out again, and what is there now is right for another block. Only the former must be
//! counted, listed and healed. The reader knows which of the two it was, often only afterwards. So a
//! piece of work that may read by stale pointers is made an *attempt* ([`Store::attempt`]): what its
//! thread notes meanwhile is kept, and then
//!
//! - [`Notes::confirm`]ed: the devices are charged, the blocks that could not be read are listed
//!   (`spa_log_error`), and wrong bytes are healed where the right ones are known;
//! - or dropped: no leaf is blamed. The attempt is made once more, or its result was a hint.
//!
//! What is read outside of attempts counts at once. It is healed if the thread vouches for its pointers
//! ([`Store::vouch`]): a sync thread does, which alone gives space out, and so do changes, which see the
//! newest state. Where it does not, as in reads through a view of the pool, the block is remembered ([`Store::take_wrong`]): the
//! engine looks at it once more, by a pointer that it knows to be current.
//!
//! A view does not keep what it reaches from being given out again. So what reads through one says of which group its pointers are
//! ([`Store::as_of`]). What is freed in a group is not given out before two more have ended (`TXG_DEFER_SIZE`), so that a view is
//! good for the group after it and longer. Of one that is older by more nothing counts and nothing is remembered: its pointers may
//! be out of date. Damage that only such a view met is counted when it is met again.
//!
//! # Invariants
//!
//! - Notes belong to one thread: whatever notes something is called on the thread that made the attempt.
//! - An attempt within another one is settled by itself.
//! - Whether a view is too old is asked after its read, and the group on disk is told ([`Store::group_on_disk`]) before what was freed
//!   can be given out: a read of foreign bytes is never taken for one of a view that is good.
//! - Bytes are healed only by a pointer that is current: see `cenote_vdev`'s `fault`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};

use cenote_vdev::{Fault, VdevTree};

use crate::error::Bookmark;
use crate::pipeline::Store;
use crate::verify;
use cenote_format::blkptr::BlockPointer;

/// Most blocks that are remembered as read wrong.
const MOST_WRONG: usize = 4096;

/// Places of devices with wrong bytes ([`Fault::place`]).
pub type Places = BTreeSet<(u64, u64)>;

/// Faults of a block that is in one piece.
struct Faults {
    tree: Arc<VdevTree>,
    at: Bookmark,
    /// Physical birth of the block.
    birth: u64,
    /// Wrong bytes may satisfy its pointer ([`verify::is_weak`]).
    weak: bool,
    faults: Vec<Fault>,
}

/// What was noted.
#[derive(Default)]
#[must_use = "notes are confirmed, or dropped on purpose"]
pub struct Notes {
    faults: Vec<Faults>,
    unreadable: Vec<Unreadable>,
    /// Blocks that a walk has followed though they have no right MAC ([`Store::by_pointers`]).
    doubted: BTreeMap<Bookmark, BlockPointer>,
}

/// A block that could not be read.
#[derive(Clone, Copy, Debug)]
pub struct Unreadable {
    /// The block in its owner's eyes.
    pub at: Bookmark,
    /// It was read, and was wrong.
    pub mismatch: bool,
    /// Its physical birth; 0: not known.
    pub birth: u64,
}

/// A function that is told of blocks that cannot be read and were not known before. It is called with no lock held, and
/// must not wait for devices.
pub type Listener = fn(&Store, &Unreadable);

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// From now on `listener` is told, unless there is another one.
pub fn listen(listener: Listener) {
    let _ = LISTENER.set(listener);
}

/// Tells the listener, if there is one.
pub(crate) fn tell(store: &Store, what: &Unreadable) {
    if let Some(listener) = LISTENER.get() {
        listener(store, what);
    }
}

impl Notes {
    /// Whether nothing was wrong.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty() && self.unreadable.is_empty()
    }

    /// Where bytes were wrong.
    pub fn wrong(&self) -> Places {
        let all = self.faults.iter().flat_map(|of_block| &of_block.faults);
        all.filter(|fault| fault.is_mismatch()).map(Fault::place).collect()
    }

    /// The blocks that could not be read.
    pub fn unreadable(&self) -> BTreeSet<Bookmark> {
        self.unreadable.iter().map(|block| block.at).collect()
    }

    /// The blocks among them that a walk has followed all the same ([`Store::by_pointers`]).
    pub fn doubted(&self) -> &BTreeMap<Bookmark, BlockPointer> {
        &self.doubted
    }

    /// The wrong bytes at these places were counted by now, and written anew as far as that can be.
    pub fn leave(&mut self, counted: &Places) {
        for of_block in &mut self.faults {
            of_block.faults.retain(|f| !f.is_mismatch() || !counted.contains(&f.place()));
        }
    }

    /// What was wrong about blocks whose pointers wrong bytes may satisfy is charged when it is confirmed, and not written anew: where there is a key, it
    /// tells what is right, and where there is none, nothing does.
    pub fn leave_weak(&mut self) {
        for of_block in self.faults.iter_mut().filter(|of_block| of_block.weak) {
            let faults = std::mem::take(&mut of_block.faults).into_iter();
            of_block.faults = faults.map(Fault::unhealed).collect();
        }
    }

    /// The pointers were right: what was noted counts. Bytes are healed if `current` says, at a time when
    /// nothing is written, that the blocks are still allocated.
    pub fn confirm(self, store: &Store, current: &dyn Fn() -> bool) {
        for Faults { tree, birth, faults, .. } in &self.faults {
            faults.iter().for_each(Fault::charge);
            tree.heal(*birth, faults, current);
        }
        store.list_unreadable(self.unreadable);
    }
}

/// How what a thread reads counts.
enum Mode {
    /// Later, if at all.
    Attempt(Notes),
    /// At once; the pointers are current.
    Vouched,
}

thread_local! {
    static MODE: RefCell<Option<Mode>> = const { RefCell::new(None) };
    static AS_OF: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Puts back what was before, however the work ends.
struct Restore(Option<Mode>);

impl Restore {
    fn replacing(mode: Mode) -> Restore {
        Restore(MODE.replace(Some(mode)))
    }

    /// What was noted meanwhile.
    fn notes(mut self) -> Notes {
        let mode = MODE.replace(self.0.take());
        std::mem::forget(self);
        match mode {
            Some(Mode::Attempt(notes)) => notes,
            _ => Notes::default(),
        }
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        MODE.set(self.0.take());
    }
}

impl Store {
    /// Does something that may read by pointers that went stale meanwhile. What it notes counts only when
    /// the notes are confirmed.
    pub fn attempt<T>(work: impl FnOnce() -> T) -> (T, Notes) {
        let restore = Restore::replacing(Mode::Attempt(Notes::default()));
        let done = work();
        (done, restore.notes())
    }

    /// Does something that reads by the newest pointers only: what it notes counts at once, and wrong bytes
    /// are healed.
    pub fn vouch<T>(work: impl FnOnce() -> T) -> T {
        let _restore = Restore::replacing(Mode::Vouched);
        work()
    }

    /// Does something that reads by pointers as they were when `group` was the last one on disk; `None`: by such that
    /// are known to last. Outside of attempts, and where nothing is vouched for, what it notes counts while they can be right.
    pub fn as_of<T>(group: Option<u64>, work: impl FnOnce() -> T) -> T {
        struct Before(Option<u64>);
        impl Drop for Before {
            fn drop(&mut self) {
                AS_OF.set(self.0);
            }
        }
        if group.is_none() {
            return work();
        }
        let _before = Before(AS_OF.replace(group));
        work()
    }

    /// `group` is on disk, and what was freed long enough before it may be given out from now on. It is never told where the
    /// pool is not written to.
    pub fn group_on_disk(&self, group: u64) {
        self.on_disk.fetch_max(group, SeqCst);
    }

    /// Whether the pointers that the thread reads by may be out of date.
    fn is_out_of_date(&self) -> bool {
        AS_OF.get().is_some_and(|group| self.on_disk.load(SeqCst) > group.saturating_add(1))
    }

    /// Notes which leaves gave wrong bytes of the block of `bp` at `at`.
    pub(crate) fn note_faults(
        &self,
        tree: &Arc<VdevTree>,
        (bp, at): (&BlockPointer, Bookmark),
        faults: Vec<Fault>,
    ) {
        if faults.is_empty() {
            return;
        }
        let (tree, birth, weak) = (tree.clone(), bp.physical_birth(), verify::is_weak(bp));
        let faults = Faults { tree, at, birth, weak, faults };
        self.note(Notes { faults: vec![faults], ..Notes::default() });
    }

    /// Notes that a block could not be read.
    pub(crate) fn note_unreadable(&self, what: Unreadable) {
        self.note(Notes { unreadable: vec![what], ..Notes::default() });
    }

    /// Notes that a block is followed that has no right MAC.
    pub(crate) fn note_doubted(&self, bp: &BlockPointer, at: Bookmark) {
        self.note(Notes { doubted: BTreeMap::from([(at, *bp)]), ..Notes::default() });
    }

    /// Notes what was kept.
    pub(crate) fn note(&self, mut new: Notes) {
        let at_once = MODE.with_borrow_mut(|mode| match mode {
            Some(Mode::Attempt(notes)) => {
                notes.faults.append(&mut new.faults);
                notes.unreadable.append(&mut new.unreadable);
                notes.doubted.extend(std::mem::take(&mut new.doubted));
                None
            }
            Some(Mode::Vouched) => Some(true),
            None if self.is_out_of_date() => None,
            None => Some(false),
        });
        // Not while the thread's mode is borrowed: healing writes.
        if let Some(vouched) = at_once {
            if !vouched {
                self.remember_wrong(&new.faults);
            }
            new.confirm(self, &|| vouched);
        }
    }

    /// Whether reads of pointers that nothing vouched for found wrong bytes since this was last taken.
    pub fn has_wrong(&self) -> bool {
        !self.wrong.lock().is_empty()
    }

    /// Takes the blocks of which they did.
    pub fn take_wrong(&self) -> BTreeMap<Bookmark, Places> {
        std::mem::take(&mut *self.wrong.lock())
    }

    fn remember_wrong(&self, all: &[Faults]) {
        let mut wrong = self.wrong.lock();
        for Faults { at, faults, .. } in all {
            // What is beyond that a scrub finds.
            if wrong.len() < MOST_WRONG || wrong.contains_key(at) {
                let counted = faults.iter().filter(|fault| fault.is_mismatch());
                wrong.entry(*at).or_default().extend(counted.map(Fault::place));
            }
        }
    }
}
