//! Blocks that could not be read, on their way to the pool's error log (`spa_errlist_last`, `spa_errlist_scrub`,
//! `spa_errlist_healed`).
//!
//! # Idea
//!
//! The MOS has two error logs: that of the last scrub with all that was found since, and that of the scrub under way.
//! There is a list here for each. A block that cannot be read enters one of them (`spa_log_error`): the scrub's while a
//! scrub is under way, else the last one's. The transaction group that is written next takes what is pending
//! ([`Store::take_errors`]), and forgets it once it is on disk ([`Store::errors_written`]). A scrub that ends has the
//! group make its log the last one ([`Store::rotate_errors`], `spa_errlog_rotate`), so that what it found right is
//! listed no more.
//!
//! # Invariants
//!
//! - A block that a list has logged is not logged again before the list begins anew, so that reading it again and
//!   again writes nothing. What was healed since, through whatever dataset has the block, may be logged again.
//! - No lock is taken with that of the lists; whoever listens for new errors is called without it.

use crate::error::Bookmark;
use crate::notes::{self, Unreadable};
use crate::pipeline::Store;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// Blocks that a list keeps in memory.
const MAX_ERRORS: usize = 100_000;

/// A block that could not be read, and its physical birth (0: not known).
pub type LoggedError = (Bookmark, u64);

/// What goes to one of the logs.
#[derive(Default)]
struct List {
    /// Not in the log yet, with their births.
    pending: BTreeMap<Bookmark, u64>,
    /// Put into the log since it was begun, or since the import; with their births.
    logged: BTreeMap<Bookmark, u64>,
}

impl List {
    fn all(&self) -> impl Iterator<Item = Bookmark> {
        self.pending.keys().chain(self.logged.keys()).copied()
    }

    fn pending(&self) -> Vec<LoggedError> {
        self.pending.iter().map(|(at, birth)| (*at, *birth)).collect()
    }

    fn has(&self, block: &Unreadable) -> bool {
        self.pending.contains_key(&block.at) || self.logged.get(&block.at) == Some(&block.birth)
    }

    /// Those are in the log.
    fn written(&mut self, errors: &[LoggedError]) {
        for (at, birth) in errors {
            self.pending.remove(at);
            if self.logged.len() >= MAX_ERRORS {
                self.logged.clear();
            }
            self.logged.insert(*at, *birth);
        }
    }

    /// Those are right. A snapshot, its head and its clones share blocks, and an error that was logged through one leaves the log when
    /// it is healed through another. So the block may be logged again through each.
    fn remove(&mut self, errors: &[LoggedError]) {
        let place = |at: &Bookmark, birth: u64| (at.object, at.level, at.blkid, birth);
        let places: BTreeSet<_> = errors.iter().map(|(at, birth)| place(at, *birth)).collect();
        for (at, _) in errors {
            self.pending.remove(at);
            self.logged.remove(at);
        }
        self.logged.retain(|at, birth| !places.contains(&place(at, *birth)));
    }

    fn retain(&mut self, keep: impl Fn(&Bookmark) -> bool) {
        self.pending.retain(|at, _| keep(at));
        self.logged.retain(|at, _| keep(at));
    }
}

#[derive(Default)]
struct Lists {
    last: List,
    scrub: List,
    /// Found right: they leave both logs.
    healed: BTreeMap<Bookmark, u64>,
    /// A scan is under way (`spa_scrub_active`).
    scrubbing: bool,
    /// It has ended, and its log becomes the last one (`spa_scrub_finished`).
    finished: Option<Rotation>,
}

impl Lists {
    fn is_pending(&self) -> bool {
        let none = self.last.pending.is_empty() && self.scrub.pending.is_empty();
        !(none && self.healed.is_empty() && self.finished.is_none())
    }
}

/// The lists of a pool.
#[derive(Default)]
pub(crate) struct ErrorLists {
    lists: Mutex<Lists>,
    listener: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Where a scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubStage {
    /// It begins, or goes on after an import.
    Begins,
    /// It ends.
    Ends(Rotation),
}

/// What becomes of the log of a scan that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rotation {
    /// It is added to the last one: the scan says nothing of what it has not looked at.
    Joins,
    /// It takes the place of the last one: the scan has looked at all.
    Replaces,
}

/// What a transaction group does to the error logs, in the order of the fields.
#[derive(Debug, Default)]
pub struct TakenErrors {
    /// They leave both logs.
    pub healed: Vec<LoggedError>,
    /// For the log of the last scrub.
    pub last: Vec<LoggedError>,
    /// The scan's log becomes the last one, after that.
    pub rotate: Option<Rotation>,
    /// For the log of the scan; if that becomes the last one, for that.
    pub scrub: Vec<LoggedError>,
}

impl Store {
    /// Blocks that could not be read since the pool was opened, as far as memory has them.
    pub fn errors(&self) -> Vec<Bookmark> {
        let lists = self.error_lists().lists.lock();
        let all: BTreeSet<Bookmark> = lists.last.all().chain(lists.scrub.all()).collect();
        all.into_iter().collect()
    }

    /// Those that are not in the pool's error log yet.
    pub fn pending_errors(&self) -> Vec<LoggedError> {
        let lists = self.error_lists().lists.lock();
        let mut all = lists.last.pending.clone();
        all.extend(&lists.scrub.pending);
        all.into_iter().collect()
    }

    /// Forgets those of them of which `gone` holds: nothing leads there any more.
    pub fn forget_errors(&self, gone: impl Fn(&Bookmark) -> bool) {
        let mut lists = self.error_lists().lists.lock();
        lists.last.retain(|at| !gone(at));
        lists.scrub.retain(|at| !gone(at));
    }

    /// Blocks that the error logs have are right, or not there any more (`spa_remove_error`).
    pub fn errors_healed(&self, errors: &[LoggedError]) {
        if errors.is_empty() {
            return;
        }
        self.error_lists().lists.lock().healed.extend(errors.iter().copied());
        self.error_lists().tell();
    }

    /// A scan begins or ends (`spa_scrub_active`, `spa_errlog_rotate`).
    pub fn rotate_errors(&self, stage: ScrubStage) {
        let mut lists = self.error_lists().lists.lock();
        lists.scrubbing = stage == ScrubStage::Begins;
        if let ScrubStage::Ends(rotation) = stage {
            lists.finished = lists.finished.max(Some(rotation));
        }
    }

    /// Has the log of the scan under way keep errors which that does not look at. `false`: not all can be kept, and none is.
    pub fn keep_errors(&self, errors: &[LoggedError]) -> bool {
        let mut lists = self.error_lists().lists.lock();
        let mut kept = lists.scrub.pending.clone();
        // A list has one birth for each place.
        let all =
            errors.iter().all(|(at, birth)| kept.insert(*at, *birth).is_none_or(|b| b == *birth));
        let all = all && kept.len() <= MAX_ERRORS;
        if all {
            lists.scrub.pending = kept;
        }
        all
    }

    /// The logs are lost: what they had goes into the new ones with the next group, as far as memory has it.
    pub fn log_errors_again(&self) {
        let mut lists = self.error_lists().lists.lock();
        let Lists { last, scrub, .. } = &mut *lists;
        for list in [last, scrub] {
            list.pending.append(&mut list.logged);
        }
    }

    /// Whether the next group has something to write to the error logs.
    pub fn has_pending_errors(&self) -> bool {
        self.error_lists().lists.lock().is_pending()
    }

    /// Has `listener` told when there is something new for the error logs. It must not wait for devices.
    pub fn listen_for_errors(&self, listener: impl Fn() + Send + Sync + 'static) {
        let _ = self.error_lists().listener.set(Box::new(listener));
    }

    /// What the group that is being written does to the error logs; `None`: nothing (`spa_get_errlists`).
    pub fn take_errors(&self) -> Option<TakenErrors> {
        let mut lists = self.error_lists().lists.lock();
        if !lists.is_pending() {
            return None;
        }
        let healed: Vec<LoggedError> =
            lists.healed.iter().map(|(at, birth)| (*at, *birth)).collect();
        // What is found wrong from now on is logged again.
        if !healed.is_empty() {
            lists.last.remove(&healed);
            lists.scrub.remove(&healed);
        }
        let (last, scrub) = (lists.last.pending(), lists.scrub.pending());
        Some(TakenErrors { rotate: lists.finished, last, scrub, healed })
    }

    /// The group that took those is on disk.
    pub fn errors_written(&self, taken: &TakenErrors) {
        let mut lists = self.error_lists().lists.lock();
        for (at, birth) in &taken.healed {
            if lists.healed.get(at) == Some(birth) {
                lists.healed.remove(at);
            }
        }
        lists.last.written(&taken.last);
        lists.scrub.written(&taken.scrub);
        let Some(rotation) = taken.rotate else { return };
        if lists.finished == taken.rotate {
            lists.finished = None;
        }
        let mut logged = std::mem::take(&mut lists.scrub.logged);
        match rotation {
            Rotation::Joins => lists.last.logged.append(&mut logged),
            Rotation::Replaces => lists.last.logged = logged,
        }
    }

    /// Lists blocks that could not be read (`spa_log_error`), unless devices are away that would have them.
    pub(crate) fn list_unreadable(&self, mut blocks: Vec<Unreadable>) {
        if !blocks.is_empty() && self.vdevs().has_outage() {
            blocks.retain(|block| block.mismatch);
        }
        for block in blocks {
            let new = {
                let mut lists = self.error_lists().lists.lock();
                let is_scrub = lists.scrubbing || lists.finished.is_some();
                let list = if is_scrub { &mut lists.scrub } else { &mut lists.last };
                let new = !list.has(&block) && list.pending.len() < MAX_ERRORS;
                if new {
                    list.pending.insert(block.at, block.birth);
                }
                new
            };
            if new {
                notes::tell(self, &block);
                self.error_lists().tell();
            }
        }
    }
}

impl ErrorLists {
    fn tell(&self) {
        if let Some(listener) = self.listener.get() {
            listener();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use cenote_format::nvlist::{NvList, NvValue};
    use cenote_vdev::VdevTree;

    const AT: Bookmark = Bookmark { objset: 54, object: 2, level: 0, blkid: 1 };

    fn noted(store: &Store, at: Bookmark) {
        store.list_unreadable(vec![Unreadable { at, mismatch: true, birth: 9 }]);
    }

    /// A group is written.
    fn group(store: &Store) -> Option<TakenErrors> {
        let taken = store.take_errors();
        taken.iter().for_each(|taken| store.errors_written(taken));
        taken
    }

    fn store() -> std::sync::Arc<Store> {
        let mut root = NvList::default();
        root.set("type", NvValue::String("root".into()));
        root.set("id", NvValue::Uint64(0));
        root.set("guid", NvValue::Uint64(1));
        root.set("children", NvValue::NvListArray(Vec::new()));
        Store::new(VdevTree::build(&root, &mut |_, _| None).unwrap(), 1 << 20)
    }

    #[test]
    fn an_error_is_logged_once() {
        let store = store();
        noted(&store, AT);
        let taken = group(&store).unwrap();
        assert_eq!((taken.last, taken.scrub), (vec![(AT, 9)], vec![]));
        noted(&store, AT);
        assert!(!store.has_pending_errors() && group(&store).is_none());
        assert_eq!(store.errors(), [AT]);
    }

    #[test]
    fn a_scrub_has_a_list_of_its_own_that_becomes_the_last_one() {
        let (store, other) = (store(), Bookmark { blkid: 7, ..AT });
        noted(&store, AT);
        assert_eq!(group(&store).unwrap().last.len(), 1);
        store.rotate_errors(ScrubStage::Begins);
        assert!(!store.has_pending_errors());
        noted(&store, other);
        assert_eq!(group(&store).unwrap().scrub, [(other, 9)]);
        store.rotate_errors(ScrubStage::Ends(Rotation::Replaces));
        let third = Bookmark { blkid: 8, ..AT };
        noted(&store, third);
        // A group that could not write it leaves it to the next one.
        assert!(store.take_errors().is_some());
        let taken = group(&store).unwrap();
        assert_eq!((taken.rotate, taken.scrub), (Some(Rotation::Replaces), vec![(third, 9)]));
        assert!(!store.has_pending_errors());
        // What the scrub found right may be found wrong again.
        noted(&store, AT);
        noted(&store, other);
        let taken = group(&store).unwrap();
        assert_eq!((taken.rotate, taken.last), (None, vec![(AT, 9)]));
        // One that is cancelled.
        store.rotate_errors(ScrubStage::Begins);
        let fourth = Bookmark { blkid: 9, ..AT };
        noted(&store, fourth);
        store.rotate_errors(ScrubStage::Ends(Rotation::Joins));
        let taken = group(&store).unwrap();
        assert_eq!((taken.rotate, taken.scrub), (Some(Rotation::Joins), vec![(fourth, 9)]));
        assert_eq!(store.errors().len(), 4);
    }

    #[test]
    fn what_healed_leaves_the_lists() {
        let store = store();
        noted(&store, AT);
        store.errors_healed(&[(AT, 9)]);
        let taken = group(&store).unwrap();
        assert_eq!((taken.last, taken.healed), (vec![], vec![(AT, 9)]));
        assert!(store.errors().is_empty() && !store.has_pending_errors());
        noted(&store, AT);
        assert!(store.has_pending_errors());
    }

    #[test]
    fn what_healed_through_a_snapshot_is_logged_again_through_its_head() {
        let (store, snapshot) = (store(), Bookmark { objset: 61, ..AT });
        let (neighbour, older) = (Bookmark { blkid: 2, ..AT }, Bookmark { object: 3, ..AT });
        [AT, neighbour].into_iter().for_each(|at| noted(&store, at));
        store.list_unreadable(vec![Unreadable { at: older, mismatch: true, birth: 5 }]);
        assert_eq!(group(&store).unwrap().last.len(), 3);
        let healed = [(snapshot, 9), (Bookmark { objset: 61, ..older }, 9)];
        store.errors_healed(&healed);
        assert_eq!(group(&store).unwrap().healed, healed);
        // The same block is damaged once more; another one, and another one's successor, are in the log.
        [AT, neighbour].into_iter().for_each(|at| noted(&store, at));
        store.list_unreadable(vec![Unreadable { at: older, mismatch: true, birth: 5 }]);
        assert_eq!(group(&store).unwrap().last, [(AT, 9)]);
    }
}
