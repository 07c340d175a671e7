//! What is done to leaves where nothing is allocated: devices are told what is free (`vdev_trim`, `vdev_autotrim`), or a
//! pattern is written there (`vdev_initialize`).
//!
//! Each [`Activity`] of a leaf has a thread, which goes through the metaslabs of the leaf's top-level vdev in order
//! ([`walk`]). The allocator disables one of them for a moment and says what is free there
//! ([`Disabled`](cenote_store::alloc::Disabled)): nothing is allocated in it until the devices have done their work. How
//! far a thread is stands in the leaf's ZAP as OpenZFS has it ([`state`]), so an import goes on where the thread was.
//!
//! With `autotrim=on` metaslabs remember what is freed once it may be allocated, and another thread tells the devices of
//! it after a transaction group, metaslab by metaslab: when `zfs_trim_txg_batch` groups have passed since it did so
//! last, so that neighbours are told together, or when much was freed ([`auto`]).
//!
//! # Invariants
//!
//! - Only what is allocatable is touched: no uberblock that can be imported leads there, no deferred free, no reader and
//!   no hold keeps it. What was freed in the last groups before an import is allocatable at once, so threads begin when
//!   as many groups as defer frees are on disk. The import claims the blocks of intent logs before that; where it could
//!   not claim all of them, nothing goes on by itself.
//! - A leaf is looked up in the tree that is in use each time before a metaslab is disabled. A device that leaves the
//!   pool, or goes out of use, is let go when no request of these is under way ([`Vdev::is_vacant_idle_within`]).
//! - A leaf counts as done only if all of it was: what failed is done again when the activity is begun again. A
//!   leaf that is out of use meanwhile stays active, and goes on when it comes back. A thread that is about to end then
//!   is followed by another one. On a vdev that is being removed it waits as well, and goes on if that is cancelled. A
//!   secure trim, which OpenZFS began, does not go on as one that is not secure.
//! - Threads wait for devices and transaction groups without any lock.

mod auto;
mod state;
mod walk;

pub(crate) use auto::Auto;
pub use state::ActivityState;

use super::{Engine, EngineError, Shared};
use cenote_pool::config;
use cenote_pool::events::Sysevent;
use cenote_pool::vdev_props::Activity;
use cenote_store::alloc::TXG_DEFER_SIZE;
use cenote_vdev::Vdev;
use parking_lot::{Condvar, Mutex};
use state::{Note, Noted, noted, write};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use walk::place;

/// The name of the threads.
const NAME: &str = "vdev-vacant";
/// How long a device that is to be let go is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityRequest {
    /// Begin, or go on if it is suspended.
    Start {
        /// Most bytes a second; 0: as fast as it goes.
        rate: u64,
        /// What [`Activity::Initialize`] writes; else what it wrote before, or `zfs_initialize_value`.
        value: Option<u64>,
    },
    /// Give it up.
    Cancel,
    /// Stop for now.
    Suspend,
    /// Forget that it was ever begun.
    Forget,
}

impl ActivityRequest {
    /// To begin, as fast as it goes.
    pub const START: ActivityRequest = ActivityRequest::Start { rate: 0, value: None };
}

fn doing(activity: Activity) -> &'static str {
    match activity {
        Activity::Initialize => "initializing",
        Activity::Trim => "trimming",
    }
}

fn deed(activity: Activity) -> &'static str {
    match activity {
        Activity::Initialize => "initialization",
        Activity::Trim => "trim",
    }
}

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum ActivityError {
    /// There is no such leaf.
    #[error("no such device in pool")]
    NoDevice,
    /// It cannot be written to.
    #[error("device is not writable")]
    NotWritable,
    /// A thread does it already, or the vdev is being removed, of which OpenZFS says the same.
    #[error("currently {}", doing(*.0))]
    UnderWay(Activity),
    /// There is nothing to stop.
    #[error("there is no active {}", deed(*.0))]
    Nothing(Activity),
    /// A distributed spare has no device of its own.
    #[error("a distributed spare is not initialized or trimmed")]
    Distributed,
    /// What is free on the vdev is about to hold something.
    #[error("raidz expansion in progress")]
    Expanding,
    /// An object store keeps nothing where nothing is allocated.
    #[error("an object store is not initialized")]
    Object,
    /// The device does not know how.
    #[error("trim operations are not supported by this device")]
    Unsupported,
    /// How far it is has no place: the pool was made before devices had ZAPs.
    #[error("the pool has no vdev ZAP for this device")]
    NoZap,
    /// What is noted of it cannot be read; the pool is suspended, or is being exported.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A thread that works on a leaf.
#[derive(Default)]
struct Running {
    stop: AtomicBool,
    /// Another one is to follow when it ends, if the leaf is to be worked on then.
    again: AtomicBool,
    /// Bytes of the leaf that are not looked at yet.
    left: AtomicU64,
}

type Key = (Activity, u64);

/// What works on leaves of a pool where nothing is allocated.
#[derive(Default)]
pub(crate) struct Vacant {
    running: Mutex<BTreeMap<Key, Arc<Running>>>,
    /// Rings when one ends, or is to.
    changed: Condvar,
    stopped: AtomicBool,
    /// So many groups are to be written before threads begin.
    unsettled: AtomicU64,
    pub auto: Auto,
}

impl Vacant {
    /// Ends all threads, and lets no other begin (`vdev_autotrim_stop_all`, `vdev_trim_stop_all`). They go on with the next
    /// import.
    ///
    /// # Errors
    /// A device does not answer.
    pub fn stop(&self) -> Result<(), EngineError> {
        let until = Instant::now() + PATIENCE;
        let unanswered = || Err(EngineError::Unanswered);
        self.stopped.store(true, Ordering::Release);
        self.running.lock().values().for_each(|own| own.stop.store(true, Ordering::Release));
        self.changed.notify_all();
        let auto = self.auto.end(until);
        let mut running = self.running.lock();
        while !running.is_empty() {
            if self.changed.wait_until(&mut running, until).timed_out() {
                return unanswered();
            }
        }
        if auto { Ok(()) } else { unanswered() }
    }

    /// A transaction group is on disk.
    pub fn group_done(&self, shared: &Shared) {
        let less = |left: u64| left.checked_sub(1);
        // None is left in most cases.
        let _ = self.unsettled.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        self.auto.group_done(shared);
    }

    /// Ends one (`vdev_trim_stop`, `vdev_initialize_stop`); whether there was one.
    ///
    /// # Errors
    /// The device does not answer: the activity goes on as soon as it does.
    fn stop_one(&self, key: Key) -> Result<bool, EngineError> {
        let until = Instant::now() + PATIENCE;
        let mut running = self.running.lock();
        let Some(own) = running.get(&key).cloned() else { return Ok(false) };
        own.stop.store(true, Ordering::Release);
        own.again.store(false, Ordering::Release);
        self.changed.notify_all();
        while running.get(&key).is_some_and(|now| Arc::ptr_eq(now, &own)) {
            if self.changed.wait_until(&mut running, until).timed_out() {
                own.again.store(true, Ordering::Release);
                return Err(EngineError::Unanswered);
            }
        }
        Ok(true)
    }
}

/// The place of a thread among those that run.
struct Reserved {
    shared: Arc<Shared>,
    key: Key,
    own: Arc<Running>,
}

impl Reserved {
    /// If a thread has it, with `again` another one follows it.
    fn take(shared: &Arc<Shared>, key: Key, again: bool) -> Result<Reserved, ActivityError> {
        let vacant = &shared.vacant;
        let mut running = vacant.running.lock();
        if vacant.stopped.load(Ordering::Acquire) {
            return Err(EngineError::Suspended("it is being exported".into()).into());
        }
        if let Some(own) = running.get(&key) {
            own.again.fetch_or(again, Ordering::AcqRel);
            return Err(ActivityError::UnderWay(key.0));
        }
        let own: Arc<Running> = Arc::default();
        running.insert(key, own.clone());
        Ok(Reserved { shared: shared.clone(), key, own })
    }

    /// Ends the thread that has the place, and takes it; and whether there was one.
    fn take_from_thread(shared: &Arc<Shared>, key: Key) -> Result<(Reserved, bool), ActivityError> {
        let mut was_there = false;
        loop {
            was_there |= shared.vacant.stop_one(key)?;
            match Reserved::take(shared, key, false) {
                // Another one began meanwhile.
                Err(ActivityError::UnderWay(_)) => {}
                taken => return taken.map(|reserved| (reserved, was_there)),
            }
        }
    }

    /// Has a thread work, as is noted of the leaf.
    fn start(self) -> Result<(), ActivityError> {
        let run = move || {
            let alarm = self.shared.disk.store.alarm().clone();
            alarm.guard(NAME, || walk::run(&self.shared, self.key, &self.own));
        };
        let spawned = std::thread::Builder::new().name(NAME.into()).spawn(run);
        spawned.map_err(|e| EngineError::Unsupported(format!("a thread: {e}")))?;
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let vacant = &self.shared.vacant;
        let mut running = vacant.running.lock();
        running.remove(&self.key);
        // An export that fails has all of them go on.
        let again =
            self.own.again.load(Ordering::Acquire) && !vacant.stopped.load(Ordering::Acquire);
        drop(running);
        vacant.changed.notify_all();
        if again && !std::thread::panicking() {
            self.shared.resume_activities(|leaf| leaf == self.key.1);
        }
    }
}

/// Tells that an activity of a leaf begins or ends.
fn tell(shared: &Shared, activity: Activity, what: &str, leaf: &Vdev) {
    let event = format!("{}_{what}", activity.name());
    Sysevent { vdev: Some(leaf), ..Sysevent::of_pool(&event) }.post(&shared.disk.store);
}

/// Whether the device of a leaf can do it.
fn is_able(activity: Activity, leaf: &Vdev) -> bool {
    activity == Activity::Initialize || leaf.can_trim()
}

impl Engine {
    /// Begins an activity of the leaf with this guid, or stops it (`spa_vdev_trim`, `spa_vdev_initialize`,
    /// `zfs_ioc_pool_trim`, `zfs_ioc_pool_initialize`).
    ///
    /// # Errors
    /// See [`ActivityError`].
    pub fn activity(
        &self,
        activity: Activity,
        leaf: u64,
        request: ActivityRequest,
    ) -> Result<(), ActivityError> {
        let (shared, key) = (&self.shared, (activity, leaf));
        let vdev = place(shared, leaf).ok_or(ActivityError::NoDevice)?.leaf;
        let before = noted(shared, key)?.state;
        let begun = before == Some(ActivityState::Active);
        let (state, event, _alone) = match request {
            ActivityRequest::Start { rate, value } => {
                return self.begin_activity(activity, &vdev, rate, value);
            }
            ActivityRequest::Forget => {
                let _alone = Reserved::take(shared, key, false)?;
                return Ok(write(shared, key, Note { forget: true, ..Note::default() })?);
            }
            ActivityRequest::Cancel => {
                let (alone, stopped) = Reserved::take_from_thread(shared, key)?;
                if !stopped && !begun && before != Some(ActivityState::Suspended) {
                    return Err(ActivityError::Nothing(activity));
                }
                (ActivityState::Canceled, "cancel", alone)
            }
            ActivityRequest::Suspend => {
                let (alone, stopped) = Reserved::take_from_thread(shared, key)?;
                if !stopped && !begun {
                    return Err(ActivityError::Nothing(activity));
                }
                (ActivityState::Suspended, "suspend", alone)
            }
        };
        // It may have ended by itself before it was stopped.
        if noted(shared, key)?.state == Some(ActivityState::Complete) {
            return Err(ActivityError::Nothing(activity));
        }
        write(shared, key, Note { state: Some(state), ..Note::default() })?;
        tell(shared, activity, event, &vdev);
        Ok(())
    }

    fn begin_activity(
        &self,
        activity: Activity,
        vdev: &Vdev,
        rate: u64,
        value: Option<u64>,
    ) -> Result<(), ActivityError> {
        let (shared, key) = (&self.shared, (activity, vdev.guid()));
        if !vdev.writable() {
            return Err(ActivityError::NotWritable);
        }
        if vdev.is_distributed() {
            return Err(ActivityError::Distributed);
        }
        if shared.is_expanding(vdev.guid()) {
            return Err(ActivityError::Expanding);
        }
        if vdev.kind() == "object" && activity == Activity::Initialize {
            return Err(ActivityError::Object);
        }
        if !is_able(activity, vdev) {
            return Err(ActivityError::Unsupported);
        }
        let reserved = Reserved::take(shared, key, false)?;
        if shared.is_removing(vdev.guid()) {
            return Err(ActivityError::UnderWay(activity));
        }
        let noted = noted(shared, key)?;
        let begun = [ActivityState::Active, ActivityState::Suspended].map(Some);
        // What a secure trim has not told yet is not erased by one that is not secure: this begins anew.
        let goes_on = begun.contains(&noted.state) && !noted.secure;
        let offset = (!goes_on).then_some(0);
        let state = Some(ActivityState::Active);
        write(shared, key, Note { state, offset, rate: Some(rate), value, forget: false })?;
        tell(shared, activity, if goes_on { "resume" } else { "start" }, vdev);
        reserved.start()
    }

    /// Goes on with what was under way when the pool was last in use (`vdev_trim_restart`, `vdev_initialize_restart`). If
    /// not all intent logs were claimed it is suspended: blocks that nothing else has are free space.
    pub(super) fn begin_activities(&self, all_claimed: bool) {
        self.shared.vacant.unsettled.store(TXG_DEFER_SIZE, Ordering::Release);
        match all_claimed {
            true => self.shared.resume_activities(|_| true),
            false => self.shared.for_each_active(
                |_| true,
                |key, leaf, _| {
                    self.shared.suspend_activity(key, leaf, "not all intent logs were claimed");
                },
            ),
        }
        self.follow_autotrim();
    }

    /// Where an activity of the leaf with this guid is; `None`: it was never begun.
    ///
    /// # Errors
    /// See [`ActivityError`].
    pub fn activity_state(
        &self,
        activity: Activity,
        leaf: u64,
    ) -> Result<Option<ActivityState>, ActivityError> {
        Ok(noted(&self.shared, (activity, leaf))?.state)
    }

    /// Leaves that have a thread for this, and the bytes of each that are left to look at.
    pub fn active(&self, activity: Activity) -> Vec<(u64, u64)> {
        let running = self.shared.vacant.running.lock();
        let of_it = running.iter().filter(|((found, _), _)| *found == activity);
        of_it.map(|((_, leaf), own)| (*leaf, own.left.load(Ordering::Relaxed))).collect()
    }

    /// Lets threads begin again after [`Vacant::stop`].
    pub(super) fn let_activities_go_on(&self) {
        self.shared.vacant.stopped.store(false, Ordering::Release);
        self.shared.vacant.auto.begin_again();
        self.shared.resume_activities(|_| true);
        self.follow_autotrim();
    }
}

impl Shared {
    /// Whether the leaf is below a RAID-Z vdev that is being expanded.
    fn is_expanding(&self, leaf: u64) -> bool {
        let tree = self.disk.tree();
        tree.top_of(leaf).is_some_and(|top| top.reflow().is_some())
    }

    /// Whether the leaf is of a top-level vdev that is being removed: its threads end, and what is noted of it stays.
    pub(crate) fn is_removing(&self, leaf: u64) -> bool {
        let tree = self.disk.tree();
        tree.top_of(leaf).is_some_and(|top| config::flag(top.config(), "removing"))
    }

    /// Has threads that wait look at what has become of their vdevs.
    pub(crate) fn wake_activities(&self) {
        let _running = self.vacant.running.lock();
        self.vacant.changed.notify_all();
    }

    /// Whether a thread initializes or trims a leaf at or below the vdev with this guid.
    pub(crate) fn is_worked_on(&self, vdev: u64) -> bool {
        let tree = self.disk.tree();
        let mut leaves = Vec::new();
        tree.find(vdev).into_iter().for_each(|vdev| vdev.collect_leaves(&mut leaves));
        let running = self.vacant.running.lock();
        running.keys().any(|(_, leaf)| leaves.iter().any(|l| l.guid() == *leaf))
    }

    /// Goes on with what is noted as under way on leaves that came back.
    pub(crate) fn resume_activities(self: &Arc<Self>, which: impl Fn(u64) -> bool) {
        self.for_each_active(which, |key, leaf, noted| {
            if !leaf.writable() {
                return;
            }
            if noted.secure {
                return self.suspend_activity(key, leaf, "a secure trim is not supported");
            }
            if self.is_expanding(leaf.guid()) || self.is_removing(leaf.guid()) {
                // It goes on when that has ended.
                return;
            }
            if leaf.is_distributed() {
                return self.suspend_activity(key, leaf, &ActivityError::Distributed.to_string());
            }
            if !is_able(key.0, leaf) {
                return self.suspend_activity(key, leaf, &ActivityError::Unsupported.to_string());
            }
            match Reserved::take(self, key, true).and_then(Reserved::start) {
                Ok(()) => tell(self, key.0, "resume", leaf),
                // Another thread follows that one.
                Err(ActivityError::UnderWay(_)) => {}
                Err(e) => tracing::warn!(?leaf, activity = ?key.0, "it does not go on: {e}"),
            }
        });
    }

    /// What is noted as under way.
    fn for_each_active(&self, which: impl Fn(u64) -> bool, work: impl Fn(Key, &Arc<Vdev>, &Noted)) {
        for leaf in self.disk.tree().leaves().iter().filter(|leaf| which(leaf.guid())) {
            for activity in Activity::ALL {
                let key = (activity, leaf.guid());
                match noted(self, key) {
                    Ok(noted) if noted.state == Some(ActivityState::Active) => {
                        work(key, leaf, &noted);
                    }
                    // Nothing can be under way.
                    Ok(_) | Err(ActivityError::NoZap | ActivityError::NoDevice) => {}
                    Err(e) => {
                        tracing::warn!(?leaf, ?activity, "whether it goes on is not known: {e}");
                    }
                }
            }
        }
    }

    /// What is under way does not go on, until it is begun again.
    fn suspend_activity(self: &Arc<Self>, key: Key, leaf: &Vdev, why: &str) {
        tracing::warn!(?leaf, activity = ?key.0, "it does not go on, and is suspended: {why}");
        let suspend = || -> Result<(), ActivityError> {
            let _alone = Reserved::take(self, key, false)?;
            let state = Some(ActivityState::Suspended);
            write(self, key, Note { state, ..Note::default() })?;
            tell(self, key.0, "suspend", leaf);
            Ok(())
        };
        if let Err(e) = suspend() {
            tracing::warn!(?leaf, activity = ?key.0, "it is not suspended: {e}");
        }
    }

    /// Waits until the device of a leaf, which is leaving or out of use, has no request any more where nothing is
    /// allocated. Whether that is so: a device that does not answer is not waited for longer.
    pub(crate) fn is_let_go(&self, leaf: &Vdev) -> bool {
        // Threads that wait between requests look for the leaf, and end.
        self.vacant.changed.notify_all();
        let idle = leaf.is_vacant_idle_within(PATIENCE);
        if !idle {
            tracing::warn!(
                ?leaf,
                "its device does not answer a request to trim, initialize or rebuild it"
            );
        }
        idle
    }
}
