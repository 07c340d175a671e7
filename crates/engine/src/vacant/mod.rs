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
//!   no hold keeps it. An import claims the blocks of intent logs before a thread goes on.
//! - A leaf is looked up in the tree that is in use each time before a metaslab is disabled. A device that leaves the
//!   pool, or goes out of use, is let go when no request of these is under way ([`Vdev::is_vacant_idle_within`]).
//! - A leaf counts as done only if all of it was: what failed is done again when the activity is begun again. A
//!   leaf that is out of use meanwhile stays active, and goes on when it comes back.
//! - Threads wait for devices and transaction groups without any lock.

mod auto;
mod state;
mod walk;

pub(crate) use auto::Auto;
pub use state::ActivityState;

use super::{Engine, EngineError, Shared};
use cenote_pool::events::Sysevent;
use cenote_pool::vdev_props::Activity;
use cenote_vdev::Vdev;
use parking_lot::{Condvar, Mutex};
use state::{Note, noted, write};
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
    /// A thread does it already.
    #[error("currently {}", doing(*.0))]
    UnderWay(Activity),
    /// There is nothing to stop.
    #[error("there is no active {}", deed(*.0))]
    Nothing(Activity),
    /// The device does not know how.
    #[error("trim operations are not supported by this device")]
    Unsupported,
    /// The pool is suspended, or is being exported.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A thread that works on a leaf.
#[derive(Default)]
struct Running {
    stop: AtomicBool,
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
    pub auto: Auto,
}

impl Vacant {
    /// Ends all threads, and lets no other begin. They go on with the next import.
    ///
    /// # Errors
    /// A device does not answer.
    pub fn stop(&self) -> Result<(), EngineError> {
        let until = Instant::now() + PATIENCE;
        let unanswered = || Err(EngineError::Unanswered);
        self.stopped.store(true, Ordering::Release);
        let auto = self.auto.end(until);
        let mut running = self.running.lock();
        running.values().for_each(|own| own.stop.store(true, Ordering::Release));
        self.changed.notify_all();
        while !running.is_empty() {
            if self.changed.wait_until(&mut running, until).timed_out() {
                return unanswered();
            }
        }
        if auto { Ok(()) } else { unanswered() }
    }

    /// Ends one; whether there was one.
    ///
    /// # Errors
    /// The device does not answer.
    fn stop_one(&self, key: Key) -> Result<bool, EngineError> {
        let until = Instant::now() + PATIENCE;
        let mut running = self.running.lock();
        let Some(own) = running.get(&key).cloned() else { return Ok(false) };
        own.stop.store(true, Ordering::Release);
        self.changed.notify_all();
        while running.get(&key).is_some_and(|now| Arc::ptr_eq(now, &own)) {
            if self.changed.wait_until(&mut running, until).timed_out() {
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
    fn take(shared: &Arc<Shared>, key: Key) -> Result<Reserved, ActivityError> {
        let vacant = &shared.vacant;
        let mut running = vacant.running.lock();
        if vacant.stopped.load(Ordering::Acquire) {
            return Err(EngineError::Suspended("it is being exported".into()).into());
        }
        if running.contains_key(&key) {
            return Err(ActivityError::UnderWay(key.0));
        }
        let own: Arc<Running> = Arc::default();
        running.insert(key, own.clone());
        Ok(Reserved { shared: shared.clone(), key, own })
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
        self.shared.vacant.running.lock().remove(&self.key);
        self.shared.vacant.changed.notify_all();
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
    /// Begins an activity of the leaf with this guid, or stops it (`spa_vdev_trim`, `spa_vdev_initialize`).
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
        let is = |state: ActivityState| {
            noted(shared, key).is_some_and(|noted| noted.state == state as u64)
        };
        let begun = is(ActivityState::Active);
        let (state, event) = match request {
            ActivityRequest::Start { rate, value } => {
                return self.begin_activity(activity, &vdev, rate, value);
            }
            ActivityRequest::Forget => {
                let _alone = Reserved::take(shared, key)?;
                return Ok(write(shared, key, Note { forget: true, ..Note::default() })?);
            }
            ActivityRequest::Cancel => {
                let stopped = shared.vacant.stop_one(key)?;
                if !stopped && !begun && !is(ActivityState::Suspended) {
                    return Err(ActivityError::Nothing(activity));
                }
                (ActivityState::Canceled, "cancel")
            }
            ActivityRequest::Suspend => {
                if !shared.vacant.stop_one(key)? && !begun {
                    return Err(ActivityError::Nothing(activity));
                }
                (ActivityState::Suspended, "suspend")
            }
        };
        // It may have ended by itself before it was stopped.
        if is(ActivityState::Complete) {
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
        if !is_able(activity, vdev) {
            return Err(ActivityError::Unsupported);
        }
        let reserved = Reserved::take(shared, key)?;
        let goes_on = noted(shared, key).is_some_and(|noted| {
            [ActivityState::Active, ActivityState::Suspended]
                .map(|s| s as u64)
                .contains(&noted.state)
        });
        let offset = (!goes_on).then_some(0);
        let state = Some(ActivityState::Active);
        write(shared, key, Note { state, offset, rate: Some(rate), value, forget: false })?;
        tell(shared, activity, if goes_on { "resume" } else { "start" }, vdev);
        reserved.start()
    }

    /// Goes on with what was under way when the pool was last in use (`vdev_trim_restart`, `vdev_initialize_restart`).
    pub(super) fn resume_activities(&self) {
        self.shared.resume_activities(|_| true);
        self.follow_autotrim();
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
        self.resume_activities();
    }
}

impl Shared {
    /// Goes on with what is noted as under way on leaves that came back.
    pub(crate) fn resume_activities(self: &Arc<Self>, which: impl Fn(u64) -> bool) {
        for leaf in self.disk.tree().leaves().iter().filter(|leaf| which(leaf.guid())) {
            for activity in Activity::ALL {
                let key = (activity, leaf.guid());
                let active = noted(self, key)
                    .is_some_and(|noted| noted.state == ActivityState::Active as u64);
                if !active || !leaf.writable() || !is_able(activity, leaf) {
                    continue;
                }
                match Reserved::take(self, key).and_then(Reserved::start) {
                    Ok(()) => tell(self, activity, "resume", leaf),
                    Err(ActivityError::UnderWay(_)) => {}
                    Err(e) => tracing::warn!(?leaf, ?activity, "it does not go on: {e}"),
                }
            }
        }
    }

    /// Waits until the device of a leaf, which is leaving or out of use, has no request any more where nothing is
    /// allocated. Whether that is so: a device that does not answer is not waited for longer.
    pub(crate) fn is_let_go(&self, leaf: &Vdev) -> bool {
        // Threads that wait between requests look for the leaf, and end.
        self.vacant.changed.notify_all();
        let idle = leaf.is_vacant_idle_within(PATIENCE);
        if !idle {
            tracing::warn!(?leaf, "its device does not answer a request to trim or initialize it");
        }
        idle
    }
}
