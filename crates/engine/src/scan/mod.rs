//! Scrub and resilver (`dsl_scan_t`): every block of the pool is found, read, and written anew where it is wrong or
//! lacking.
//!
//! # Idea
//!
//! A scan walks the trees of all data sets and looks at blocks that were born in a range of transaction groups: all up
//! to the group in which a *scrub* began, or what devices missed for a *resilver*. It goes on in *rounds*, in a thread
//! of its own:
//!
//! ```text
//!  epoch of reads ── newest view ── walk from the bookmark: pointers of blocks    (find)
//!        │                            up to a bound of memory and bytes
//!        │                          sort them by vdev and offset, read, repair    (issue)
//!  end of the epoch ── sync task: the bookmark, figures                           (state)
//! ```
//!
//! So metadata is read in the order of trees, and all else in the order of devices. While a round lasts its epoch
//! keeps what is freed from being given out again: a pointer that it found stays good. Where space is short the epoch
//! is let go; then the round is made once more, and nothing that it saw counts.
//!
//! # On disk
//!
//! The state is OpenZFS's (`dsl_scan_phys_t`, [`cenote_pool::scan::ScanPhys`]): the next block of the data set that is
//! walked, and a queue of data sets that come next. It is written when all that was found up to the bookmark has been
//! read, so a crash skips nothing; what is behind the bookmark is found again. There is no other state: the thread
//! reads it anew for each round, so that it goes on with what OpenZFS began.
//!
//! Data sets are walked after the data sets that they came from: the queue has each data set whose previous snapshot is done,
//! with that snapshot's group. Blocks that were born up to it belong to the snapshot, and so each block is met once.
//! A group that changes data sets puts the state right (`position`): what a snapshot that is destroyed had alone is
//! gone, the rest belongs to the next one; of a file system of which a snapshot is taken that snapshot is walked. What a round comes
//! to, which is right for its view, follows all that was changed meanwhile (`moves`). So does what a data set gains that is
//! walked already: blocks that are cloned into it, or that a deduplication table has.
//!
//! # Resilver
//!
//! A leaf that missed groups and takes writes again has a resilver begin. What could not be written to it is noted by
//! leaf and group; at the end all else is taken off its dirty time log (`vdev_dtl_reassess`). A leaf that comes back
//! while a resilver is under way has it begin anew, or is *deferred* if that one is well under way: another one begins
//! behind it. One begins also where something could not be read or written that may be by now, as long as each leaves less than the
//! one before. A resilver that was under way when the pool was imported begins anew: it is not known what leaves were given.
//!
//! A device that does not answer, and that its vdev cannot do without, is waited for. A resilver waits no longer than a round may take,
//! so that leaves of other vdevs are given what they lack; another one begins when the device is back.
//!
//! OpenZFS goes on with a resilver that was under way, and takes leaves to be given all by then. So leaves that are not are
//! marked as deferred on disk ([`resilver`]), in the group in which that is found out.
//!
//! # Invariants
//!
//! - A round counts, and repairs, only what its epoch kept (`ReadEpoch::is_safe`).
//! - The state on disk names data sets that are there, and leads to all blocks that must be looked at and were not (`position`).
//! - No lock is held while a device is waited for. The thread ends before the pool is exported.

mod errors;
mod find;
mod issue;
mod mend;
mod moves;
mod orders;
mod position;
mod resilver;
mod state;

use super::Shared;
use super::background::Background;
use super::error::EngineError;
use super::tunables::{SCAN_CHECKPOINT_INTVAL, SCAN_SUSPEND_PROGRESS};
use cenote_dmu::outside::Time;
use cenote_format::blkptr::BlockPointer;
use cenote_pool::scan::{Pass, ScanPhys};
use cenote_store::{Bookmark, Priority, ScanFunc, ScanKeys, Scanned, Store};
use cenote_vdev::{FlushFailures, VdevTree};
use find::{Course, Found};
use issue::Issued;
use moves::Moves;
use parking_lot::Mutex;
use position::Position;
use resilver::Given;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The name of the thread.
const NAME: &str = "scan";
/// How long devices are waited for that are looked at before a scrub.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a round waits after one that was let go, or failed; twice as long after each further one.
const PAUSE: Duration = Duration::from_millis(20);
/// How often that is doubled at most after a round that was let go, and after one that failed.
const MOST_DOUBLED: u32 = 8;
const MOST_DOUBLED_FAILED: u32 = 14;
/// Rounds that take longer than this are too long for what is freed meanwhile, however short they are to be.
const SHORTEST: Duration = Duration::from_secs(1);
/// Rounds in a row that may fail where nothing goes on meanwhile.
const MOST_IN_VAIN: u32 = 100;

/// Why a scan did not begin, stop or pause.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// A scrub is under way.
    #[error("currently scrubbing; use 'zpool scrub -s' to cancel current scrub")]
    Scrubbing,
    /// A scrub is paused.
    #[error("scrub is paused; use 'zpool scrub' to resume")]
    Paused,
    /// A resilver is under way.
    #[error("currently resilvering")]
    Resilvering,
    /// There is no scrub under way.
    #[error("there is no active scrub")]
    NoScrub,
    /// A scrub is paused, and another kind of scrub is asked for.
    #[error("scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to cancel scrub")]
    PausedToCancel,
    /// An error scrub is under way.
    #[error("currently error scrubbing; use 'zpool scrub -s' to cancel error scrub")]
    ErrorScrubbing,
    /// An error scrub is paused.
    #[error("error scrub is paused; use 'zpool scrub -e' to resume error scrub")]
    ErrorScrubPaused,
    /// The pool lacks a feature.
    #[error("operation not supported on this type of pool")]
    NotSupported,
    /// A resilver is to begin anew in a pool without the feature for that.
    #[error("this action requires the resilver_defer feature")]
    NoDefer,
    /// The change could not be made.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What scans.
#[derive(Default)]
pub(crate) struct Scanner {
    /// The thread that does it.
    pub background: Background,
    /// Counts changes of what is to be done: a round that began before one ends.
    orders: AtomicU64,
    /// A scan is under way, as far as is known: groups keep its state right.
    active: AtomicBool,
    /// What leaves are given by the resilver under way.
    given: Mutex<Given>,
    /// The state on disk could not be put right: the walk begins anew.
    astray: AtomicBool,
    /// A resilver is to begin if leaves lack something.
    due: AtomicBool,
    /// How many resilvers have begun by themselves, each behind the one before.
    begun_again: AtomicU64,
    /// What the resilver before left, if another one began for that: (a part was not seen, blocks).
    left_before: Mutex<Option<(bool, usize)>>,
    /// Why the last round failed, if it did.
    waits: Mutex<Option<String>>,
    /// A checkpoint is gone: what waited for that is still to be done.
    owed: AtomicBool,
    /// The last round of this scan was handed to the sync thread: what follows its end is still to be done.
    ending: Mutex<Option<ScanPhys>>,
    /// What groups have moved.
    moves: Mutex<Moves>,
}

impl Scanner {
    /// What is to be done is another thing now. To be called where the state is changed, for rounds that began before,
    /// and once that is on disk, for those that began with the view of before.
    fn ordered(&self) {
        self.orders.fetch_add(1, SeqCst);
    }
}

impl Shared {
    /// Has a thread scan as the state on disk says, unless one does.
    pub(crate) fn wake_scan(self: &Arc<Self>) {
        self.scanner.background.wake(self, NAME, Shared::scan);
    }

    /// Scans until there is nothing to be done.
    fn scan(self: &Arc<Self>) {
        let mut pace = Pace::default();
        loop {
            match self.round(&mut pace) {
                Ok(Round::Done) => self.goes_well(&mut pace),
                Ok(Round::LetGo) => self.rest(&mut pace, MOST_DOUBLED),
                Ok(Round::Nothing) => {
                    self.goes_well(&mut pace);
                    if self.scanner.background.is_over() {
                        return;
                    }
                }
                Err(why) => {
                    if pace.in_vain == 0 || pace.in_vain > MOST_DOUBLED {
                        tracing::warn!("the scan waits: {why}");
                    }
                    *self.scanner.waits.lock() = Some(why.to_string());
                    self.rest(&mut pace, MOST_DOUBLED_FAILED);
                }
            }
            if self.options.deterministic
                && pace.in_vain > MOST_IN_VAIN
                && self.scanner.background.is_over()
            {
                return;
            }
        }
    }

    /// A round came to something, or there is nothing to be done.
    fn goes_well(&self, pace: &mut Pace) {
        pace.in_vain = 0;
        *self.scanner.waits.lock() = None;
    }

    /// Waits before a round is made once more, the longer the more often that was in vain: the pause is doubled so often at most.
    /// An order ends it. A call to look again ([`Shared::wake_scan`]) shortens it once.
    fn rest(&self, pace: &mut Pace, most_doubled: u32) {
        let scanner = &self.scanner;
        let is_called = scanner.background.take_call();
        let doubled = if is_called { 0 } else { pace.in_vain.min(most_doubled) };
        let most = PAUSE * (1 << doubled);
        pace.in_vain = pace.in_vain.saturating_add(1);
        let (begun, orders) = (Instant::now(), scanner.orders.load(SeqCst));
        let ends = || {
            let stopped = scanner.background.is_stopped() || self.tx_state.closed().is_some();
            stopped || scanner.orders.load(SeqCst) != orders || scanner.background.is_called()
        };
        while !self.options.deterministic && !ends() && begun.elapsed() < most {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Rounds in a row that are made again since a device did not answer for a while; then what could not be read counts.
const MOST_SILENT: u32 = 8;
/// Rounds in a row that are made again since a flush failed of what they wrote; then that counts as repaired.
const MOST_UNKEPT: u32 = 3;

/// How rounds are made.
#[derive(Default)]
struct Pace {
    /// How often the bounds of rounds are halved.
    shorter: u32,
    /// Rounds in a row of which nothing counts.
    in_vain: u32,
    /// Rounds in a row that were made again since a device did not answer for a while.
    silent: u32,
    /// Rounds in a row that were made again since a flush failed, and the most bytes that one of them wrote.
    unkept: u32,
    repaired: u64,
    /// Since when a device does not answer that is needed.
    away: Option<Time>,
    /// Blocks that could not be read on the walk of the last round that counted, and [`Scanner::orders`] then.
    told: (u64, BTreeSet<Bookmark>),
    /// Data sets of which the rounds that counted have told that their key cannot be read, and [`Scanner::orders`] then.
    keyless: (u64, BTreeSet<u64>),
}

impl Pace {
    /// The data sets of which rounds of the same scan have told that their key cannot be read.
    fn keyless(&self, orders: u64) -> BTreeSet<u64> {
        let (of, told) = &self.keyless;
        if *of == orders { told.clone() } else { BTreeSet::new() }
    }

    /// A round wrote so many bytes, and a flush failed. Returns whether it is made again.
    fn loses(&mut self, repaired: u64) -> bool {
        if self.unkept >= MOST_UNKEPT {
            return false;
        }
        self.unkept += 1;
        self.repaired = self.repaired.max(repaired);
        true
    }

    /// A round wrote so many bytes, and counts. Returns what is repaired: where nothing was lost after all a round that was made
    /// again finds it right.
    fn keeps(&mut self, repaired: u64) -> u64 {
        self.unkept = 0;
        repaired.max(std::mem::take(&mut self.repaired))
    }

    /// How many of the blocks that a walk could not read the round before has not told of, if it was of the same scan.
    fn not_told(&self, orders: u64, blocks: &BTreeSet<Bookmark>) -> u64 {
        let (of, told) = &self.told;
        let is_new = |at: &&Bookmark| *of != orders || !told.contains(at);
        blocks.iter().filter(is_new).count() as u64
    }

    /// A round was let go, or took that long, where it may take `most`.
    fn learn(&mut self, took: Option<Duration>, most: Duration) {
        match took {
            Some(took) if took.saturating_mul(4) < most => {
                self.shorter = self.shorter.saturating_sub(1);
            }
            Some(took) if took <= most.saturating_mul(2) => {}
            _ => self.shorter = (self.shorter + 1).min(u64::BITS),
        }
    }
}

/// What came of a round.
enum Round {
    /// Its outcome is on disk.
    Done,
    /// Nothing of it counts.
    LetGo,
    /// There is nothing to be done.
    Nothing,
}

impl Shared {
    /// Finds some blocks, looks at them, and notes how far the scan is.
    fn round(self: &Arc<Self>, pace: &mut Pace) -> Result<Round, EngineError> {
        let scanner = &self.scanner;
        let orders = scanner.orders.load(SeqCst);
        // What a suspended pool cannot read or write says nothing of its blocks. The thread is woken when it goes on.
        let held = || self.tx_state.held().is_some();
        let over = || scanner.background.is_stopped() || self.tx_state.closed().is_some() || held();
        while SCAN_SUSPEND_PROGRESS.is_on() && !over() && !self.options.deterministic {
            std::thread::sleep(PAUSE);
        }
        if over() {
            return Ok(Round::Nothing);
        }
        self.pay_resilver()?;
        if scanner.due.load(SeqCst) {
            if self.begins_another(self.is_resilvering()?) {
                self.begin_resilver().inspect_err(|_| {
                    scanner.begun_again.fetch_sub(1, SeqCst);
                })?;
            }
            scanner.due.store(false, SeqCst);
        }
        let clock = &self.disk.outside.clock;
        let (begun, most) = (clock.now(), Duration::from_secs(SCAN_CHECKPOINT_INTVAL.get()));
        let silences = self.disk.tree().silences();
        let tree = self.disk.tree().clone();
        let failures = tree.flush_failures();
        if !self.disk.tree().has_outage() {
            pace.away = None;
        }
        let reading = self.disk.allocator.readers().begin();
        // A key that is changed after this may not open what the view has of it.
        let generation = self.view().dsl().keystore().generation();
        let walked = self.view_for_round();
        let view = &walked.view;
        let phys = ScanPhys::load(view.directory())?;
        let Some(phys) = phys.filter(ScanPhys::is_running) else {
            self.end_scan_if_over(phys.as_ref());
            return match self.error_round(view, &reading, orders)? {
                Round::Nothing if self.begin_owed_scrub(view)? => Ok(Round::Done),
                round => Ok(round),
            };
        };
        if phys.is_paused() {
            return Ok(Round::Nothing);
        }
        scanner.active.store(true, SeqCst);
        // It reads now: what the round before failed by is over, or found again.
        *scanner.waits.lock() = None;
        let func = if phys.is_resilver() { ScanFunc::Resilver } else { ScanFunc::Scrub };
        let ends =
            || scanner.background.is_stopped() || scanner.orders.load(SeqCst) != orders || held();
        // Half of the time is for what was found.
        let walks = most / 2u32.saturating_pow(pace.shorter + 1);
        let late = || clock.since(begun) >= walks;
        let mut position = match scanner.astray.load(SeqCst) {
            true => position::ANEW,
            false => Position::load(view, &phys),
        };
        let keystore = view.dsl().keystore();
        let keys = keystore.keys_for_scan();
        let mut found = Found::new(func, &phys, pace.shorter, keys.clone());
        found.knows_keyless(pace.keyless(orders));
        let progress = |change: &dyn Fn(&mut Pass)| {
            view.note_scan(|pass| {
                if let Some(pass) = pass {
                    change(pass);
                }
            })
        };
        let course = Course { ends: &ends, late: &late, progress: &progress };
        let walk = || find::walk(view, &mut position, &mut found, course);
        let walk = || Priority::Scrub.for_reads(|| Store::by_pointers(&keys, walk));
        #[cfg(feature = "planted")]
        self.reach(crate::planted::Moment::RoundBegun);
        let (all, mut notes) = Store::attempt(walk);
        #[cfg(feature = "planted")]
        self.reach(crate::planted::Moment::RoundFound);
        let is_changed = || found.is_keyless() && keystore.generation() != generation;
        if ends() || is_changed() {
            view.note_scan(|pass| pass.iter_mut().for_each(|pass| pass.ahead = [0; 4]));
            return Ok(Round::LetGo);
        }
        let (totals, unseen, hides) = (found.totals(), found.unseen(), found.hides());
        let keyless = found.keyless().clone();
        let (blocks, keys, senseless) = found.into_blocks();
        // A resilver goes on without a device that stays away: other vdevs may need what it gives them.
        let gave_up = |since: Time| func == ScanFunc::Resilver && clock.since(since) >= most;
        let patient = pace.silent < MOST_SILENT && !pace.away.is_some_and(gave_up);
        let met = notes.wrong();
        let what = (func, blocks, &*keys, &met);
        let mut done = match issue::issue(self, what, &reading, (patient, &ends), &progress) {
            Issued::All(done) if reading.is_safe() && !ends() => done,
            issued => {
                view.note_scan(|pass| pass.iter_mut().for_each(|pass| pass.ahead = [0; 4]));
                if !ends() {
                    pace.learn(None, most.max(SHORTEST));
                }
                if matches!(issued, Issued::Silent) {
                    if self.looks_in_vain() {
                        pace.away.get_or_insert_with(|| clock.now());
                        return Err(EngineError::Suspended("devices do not answer".into()));
                    }
                    pace.silent += 1;
                }
                return Ok(Round::LetGo);
            }
        };
        let doubted = notes.unreadable();
        let hides = if hides { Some(true) } else { self.hides_more(notes.doubted(), &keys, &ends) };
        let Some(hides) = hides.filter(|_| reading.is_safe()) else {
            view.note_scan(|pass| pass.iter_mut().for_each(|pass| pass.ahead = [0; 4]));
            if !ends() {
                pace.learn(None, most.max(SHORTEST));
            }
            return Ok(Round::LetGo);
        };
        notes.leave(&done.met);
        notes.leave_weak();
        notes.confirm(&self.disk.store, &|| reading.is_safe());
        self.disk.store.list_senseless(senseless);
        drop(reading);
        pace.learn(Some(clock.since(begun)), most.max(SHORTEST));
        // What cannot be walked is an error, and mostly one of the blocks that cannot be read. So is what is walked though its MAC is wrong.
        // Each round passes those again that lead to where it begins.
        done.errors = done.errors.max(unseen).max(pace.not_told(orders, &doubted));
        let away = done.errors > 0 && self.looks_in_vain() && !pace.away.is_some_and(gave_up);
        // A device that did not answer in the midst of the round may do so by now: what it holds was not read again.
        let was_silent = done.errors > 0 && self.disk.tree().silences() != silences;
        if away || was_silent && patient {
            view.note_scan(|pass| pass.iter_mut().for_each(|pass| pass.ahead = [0; 4]));
            if away {
                // The round is made again once the devices are back.
                pace.away.get_or_insert_with(|| clock.now());
                return Err(EngineError::Suspended("devices do not answer".into()));
            }
            pace.silent += 1;
            pace.learn(None, most.max(SHORTEST));
            return Ok(Round::LetGo);
        }
        pace.silent = 0;
        #[cfg(feature = "planted")]
        self.reach(crate::planted::Moment::RoundWalked);
        if done.repaired > 0 && !self.keeps_repairs(&tree, &failures) && pace.loses(done.repaired) {
            view.note_scan(|pass| pass.iter_mut().for_each(|pass| pass.ahead = [0; 4]));
            return Ok(Round::LetGo);
        }
        done.repaired = pace.keeps(done.repaired);
        done.warn_of_disputes();
        let group = view.uberblock().txg;
        let end = Ended { group, position, totals, done, hides, all, orders };
        Ok(match self.note_round(end, phys)? {
            true => {
                pace.told = (orders, doubted);
                pace.keyless = (orders, keyless);
                Round::Done
            }
            false => Round::LetGo,
        })
    }
}

impl Shared {
    /// Whether another block may be in the place of one that a walk with `keys` has followed by its pointer alone. `None`: the round `ends`.
    fn hides_more(
        &self,
        doubted: &BTreeMap<Bookmark, BlockPointer>,
        keys: &Arc<ScanKeys>,
        ends: &dyn Fn() -> bool,
    ) -> Option<bool> {
        Store::by_pointers(keys, || {
            for (at, bp) in doubted {
                #[cfg(feature = "planted")]
                self.reach(crate::planted::Moment::RoundDoubts);
                if ends() {
                    return None;
                }
                if !self.disk.store.stays_doubted(bp, *at) {
                    return Some(true);
                }
            }
            Some(false)
        })
    }

    /// Makes what a round wrote durable. False: a flush failed since there were these `failures`, and what was written may be lost.
    fn keeps_repairs(&self, tree: &VdevTree, failures: &FlushFailures) -> bool {
        if let Err(e) = self.disk.tree().flush_all() {
            tracing::warn!("what a scan wrote is not durable: {e}");
            return false;
        }
        tree.flush_failures() == *failures
    }

    /// Whether devices are away that are needed.
    fn looks_in_vain(&self) -> bool {
        let tree = self.disk.tree();
        if let Err(error) = tree.recheck() {
            tracing::warn!(%error, "devices are not looked at anew");
        }
        tree.has_outage()
    }

    /// Does what was put off while no group got on disk: takes out what was replaced, begins a resilver if leaves lack
    /// something that none under way gives to them, and goes on with the scan that is under way.
    pub(crate) fn scan_goes_on(self: &Arc<Self>) -> Result<(), EngineError> {
        self.let_go_of_replaced();
        self.assess_resilver()
    }

    /// See [`Engine::assess_resilver`](crate::Engine::assess_resilver).
    pub(crate) fn assess_resilver(self: &Arc<Self>) -> Result<(), EngineError> {
        self.scanner.begun_again.store(0, SeqCst);
        *self.scanner.left_before.lock() = None;
        let assessed = self.assess();
        if assessed.is_err() {
            // The thread tries again.
            self.scanner.due.store(true, SeqCst);
        }
        // Whatever was under way goes on.
        self.wake_scan();
        assessed
    }

    /// The checkpoint is gone, for which what devices missed stayed noted: it is given to them now, and what was replaced leaves.
    pub(crate) fn owe_resilver(self: &Arc<Self>) {
        self.scanner.due.store(true, SeqCst);
        self.scanner.owed.store(true, SeqCst);
        // The sync thread, which calls this, makes no rounds itself.
        if !self.options.deterministic {
            self.wake_scan();
        }
    }

    /// See [`Shared::owe_resilver`].
    fn pay_resilver(self: &Arc<Self>) -> Result<(), EngineError> {
        if !self.scanner.owed.swap(false, SeqCst) {
            return Ok(());
        }
        self.let_go_of_replaced();
        self.assess().inspect_err(|_| self.scanner.owed.store(true, SeqCst))
    }

    /// Whether a resilver is under way, as the last group left it.
    pub(crate) fn is_resilvering(&self) -> Result<bool, EngineError> {
        let phys = ScanPhys::load(self.view().directory())?;
        Ok(phys.is_some_and(|phys| phys.is_running() && phys.is_resilver()))
    }

    fn assess(self: &Arc<Self>) -> Result<(), EngineError> {
        // What leaves lack besides is given to them once no rebuild is under way.
        if !self.needs_resilver() || self.is_rebuilding() {
            return Ok(());
        }
        let phys = ScanPhys::load(self.view().directory())?;
        let resilver = phys.filter(|phys| phys.is_running() && phys.is_resilver());
        match resilver {
            Some(_) if !self.needs_another() => Ok(()),
            // It is marked as deferred.
            Some(phys) if self.defers(&phys) => self.scan_task(|_, _| Ok(())),
            _ => self.begin_resilver().map(drop),
        }
    }
}

/// What a scrub looks at.
#[derive(Clone, Copy)]
pub(crate) enum Extent {
    /// All that is there.
    All,
    /// What was written since the last scrub that was complete began.
    SinceLast,
    /// What was born after the first group and up to the second; `None`: the one that is written.
    Groups(u64, Option<u64>),
}

/// What a round comes to.
struct Ended {
    /// The group of its view.
    group: u64,
    /// Right for that group.
    position: Position,
    /// Bytes found, and bytes of blocks that need not be read.
    totals: (u64, u64),
    done: Scanned,
    /// A part of the pool could not be walked, and may be readable later.
    hides: bool,
    /// It was the last one.
    all: bool,
    /// [`Scanner::orders`] when it began.
    orders: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::Engine;
    use crate::EngineOptions;
    use cenote_dsl::write::DslWriteError;
    use cenote_pool::{ImportOptions, discover};

    /// A resilver that does not begin after all leaves what the one before gives as it was: else that one would take off
    /// the logs of leaves what it has not given.
    #[test]
    fn a_resilver_that_fails_to_begin_changes_nothing() {
        let temp = cenote_testpools::copy("mir3");
        let candidate = discover(std::slice::from_ref(&temp.pool.dir)).remove(0);
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let engine = EngineOptions { deterministic: true, ..EngineOptions::default() };
        let engine = Engine::import(&candidate, &options, engine).unwrap();
        let shared = &engine.shared;
        let leaf = engine.pool().store().vdevs().leaves()[0].clone();
        let lost = 3..4;
        engine.pool().store().vdevs().miss(leaf.guid(), lost).unwrap();
        let is_given = || shared.scanner.given.lock().gives_all(&leaf);
        let orders = shared.scanner.orders.load(SeqCst);
        let failed = shared.scan_task(|shared, context| {
            context.begin_resilver(shared)?;
            Err::<(), _>(DslWriteError::NotFound)
        });
        assert!(matches!(failed, Err(EngineError::Dsl(DslWriteError::NotFound))));
        assert!(!is_given() && !shared.scanner.active.load(SeqCst));
        assert_eq!(shared.scanner.orders.load(SeqCst), orders);
        shared.scan_task(|shared, context| context.begin_resilver(shared)).unwrap();
        assert!(is_given() && shared.scanner.active.load(SeqCst));
        shared.wake_scan();
        assert!(!leaf.is_behind());
        engine.export(false).unwrap();
    }

    /// The last round of a scan was handed to the sync thread, whose group failed: what ended otherwise is not told to be finished.
    #[test]
    fn only_the_end_that_is_on_disk_is_told() {
        let temp = cenote_testpools::copy("mir3");
        let candidate = discover(std::slice::from_ref(&temp.pool.dir)).remove(0);
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let engine = EngineOptions { deterministic: true, ..EngineOptions::default() };
        let engine = Engine::import(&candidate, &options, engine).unwrap();
        let scanner = &engine.shared.scanner;
        let of = |state, start| ScanPhys { func: 1, state, start, ..ScanPhys::default() };
        let is_told = |now: Option<ScanPhys>| {
            scanner.active.store(true, SeqCst);
            *scanner.ending.lock() = Some(of(1, 5));
            engine.shared.end_scan_if_over(now.as_ref());
            assert!(scanner.ending.lock().is_none());
            !scanner.active.load(SeqCst)
        };
        assert!(is_told(Some(of(2, 5))));
        // It was stopped; another one has ended; it is not known.
        assert!(!is_told(Some(of(3, 5))) && !is_told(Some(of(2, 6))) && !is_told(None));
        engine.export(false).unwrap();
    }

    #[test]
    fn what_leads_to_each_round_is_told_once() {
        let block = |object| Bookmark { objset: 1, object, level: 1, blkid: 0 };
        let of = |objects: &[u64]| objects.iter().map(|o| block(*o)).collect::<BTreeSet<_>>();
        let mut pace = Pace::default();
        assert_eq!(pace.not_told(7, &of(&[1, 2])), 2);
        pace.told = (7, of(&[1, 2]));
        assert_eq!((pace.not_told(7, &of(&[2, 3])), pace.not_told(8, &of(&[2, 3]))), (1, 2));
    }

    #[test]
    fn what_a_flush_loses_is_counted_once() {
        let mut pace = Pace::default();
        assert!(pace.loses(5) && pace.loses(7) && pace.loses(6) && !pace.loses(9));
        assert_eq!((pace.keeps(0), pace.keeps(3)), (7, 3));
        assert!(pace.loses(1));
    }

    #[test]
    fn rounds_in_vain_are_shorter_and_short_ones_longer() {
        let (mut pace, most) = (Pace::default(), Duration::from_secs(60));
        (0..200).for_each(|_| pace.learn(None, most));
        assert_eq!(pace.shorter, u64::BITS);
        pace.learn(Some(Duration::from_secs(60)), most);
        assert_eq!(pace.shorter, u64::BITS);
        pace.learn(Some(Duration::from_secs(1)), most);
        assert_eq!(pace.shorter, u64::BITS - 1);
        pace.learn(Some(Duration::from_secs(200)), most);
        assert_eq!(pace.shorter, u64::BITS);
    }
}
