//! Telling devices what is free (`vdev_trim`, `vdev_autotrim`).
//!
//! `zpool trim` has a thread for each leaf, which goes through the metaslabs of the leaf's top-level vdev in order. The
//! allocator lends it some free ranges at a time ([`Trimming`](cenote_store::alloc::Trimming)), in which nothing is allocated until the device has
//! been told. How far it is stands in the leaf's ZAP as OpenZFS has it, so an import goes on where the thread was:
//!
//! | entry | what |
//! |---|---|
//! | `org.zfsonlinux:next_offset_to_trim` | byte of the device up to which it was told |
//! | `org.zfsonlinux:vdev_trim_state` | [`TrimState`] |
//! | `org.zfsonlinux:vdev_trim_action_time` | when that state began: seconds since 1970 |
//! | `org.zfsonlinux:vdev_trim_rate` | most bytes a second; 0: as fast as it goes |
//! | `org.zfsonlinux:vdev_trim_partial`, `org.zfsonlinux:vdev_trim_secure` | always 0 here |
//!
//! With `autotrim=on` metaslabs remember what is freed once it may be allocated, and another thread tells the devices of
//! it after a transaction group, metaslab by metaslab: when `zfs_trim_txg_batch` groups have passed since it did so
//! last, so that neighbours are told together, or when much was freed.
//!
//! Only what is allocatable is told: no uberblock that can be imported leads there, no deferred free, no reader
//! and no hold keeps it. Threads wait for devices and transaction groups without any lock.

mod auto;

pub(crate) use auto::Auto;

use super::{Engine, EngineError, Shared, SyncContext};
use crate::tunables::{TRIM_EXTENT_BYTES_MAX, TRIM_EXTENT_BYTES_MIN};
use cenote_dmu::write::ZapMut;
use cenote_dmu::zap::Zap;
use cenote_dsl::write::{DslWriteError, Tx};
use cenote_format::LABEL_START;
use cenote_format::encode::zap::{Key, Value};
use cenote_pool::events::Sysevent;
use cenote_pool::{config, history};
use cenote_store::alloc::TrimRoom;
use cenote_vdev::Vdev;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The name of the threads.
const NAME: &str = "vdev-trim";
/// How much of a metaslab a device is told at a time.
const ROOM: TrimRoom = TrimRoom { ranges: 256, bytes: 1 << 30 };
/// How often it is written down how far a thread is.
const NOTE: Duration = Duration::from_secs(5);

const OFFSET: &str = "org.zfsonlinux:next_offset_to_trim";
const STATE: &str = "org.zfsonlinux:vdev_trim_state";
const TIME: &str = "org.zfsonlinux:vdev_trim_action_time";
const RATE: &str = "org.zfsonlinux:vdev_trim_rate";
const PARTIAL: &str = "org.zfsonlinux:vdev_trim_partial";
const SECURE: &str = "org.zfsonlinux:vdev_trim_secure";

/// Where telling a leaf is (`vdev_trim_state_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrimState {
    /// A thread does it.
    Active = 1,
    /// It was given up.
    Canceled = 2,
    /// It goes on when it is begun again.
    Suspended = 3,
    /// All was told.
    Complete = 4,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrimRequest {
    /// Begin, or go on if it is suspended.
    Start {
        /// Most bytes a second; 0: as fast as it goes.
        rate: u64,
    },
    /// Give it up.
    Cancel,
    /// Stop for now.
    Suspend,
}

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum TrimError {
    /// There is no such leaf.
    #[error("no such device in pool")]
    NoDevice,
    /// It cannot be written to.
    #[error("device is not writable")]
    NotWritable,
    /// A thread does it already.
    #[error("currently trimming")]
    Trimming,
    /// There is nothing to stop.
    #[error("there is no active trim")]
    NoTrim,
    /// The device does not know how.
    #[error("trim operations are not supported by this device")]
    Unsupported,
    /// The pool is suspended.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A thread that tells a leaf.
#[derive(Default)]
struct Running {
    stop: AtomicBool,
    /// Bytes of the leaf that are not looked at yet.
    left: AtomicU64,
}

/// What tells devices of a pool what is free.
#[derive(Default)]
pub(crate) struct Trims {
    running: Mutex<BTreeMap<u64, Arc<Running>>>,
    /// Rings when one ends, or is to.
    changed: Condvar,
    stopped: AtomicBool,
    pub auto: Auto,
}

impl Trims {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Ends all threads, and lets no other begin. Those of `zpool trim` go on with the next import.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.auto.end();
        let mut running = self.running.lock();
        running.values().for_each(|own| own.stop.store(true, Ordering::Release));
        self.changed.notify_all();
        while !running.is_empty() {
            self.changed.wait(&mut running);
        }
    }

    /// Ends one; whether there was one.
    fn stop_one(&self, leaf: u64) -> bool {
        let mut running = self.running.lock();
        let Some(own) = running.get(&leaf).cloned() else { return false };
        own.stop.store(true, Ordering::Release);
        self.changed.notify_all();
        while running.get(&leaf).is_some_and(|now| Arc::ptr_eq(now, &own)) {
            self.changed.wait(&mut running);
        }
        true
    }
}

/// A leaf, and the range of its top-level vdev.
struct Place {
    leaf: Arc<Vdev>,
    top: Arc<Vdev>,
}

fn place(shared: &Shared, leaf: u64) -> Option<Place> {
    let tree = shared.disk.tree();
    let found = tree.find(leaf).filter(|found| found.is_leaf())?;
    let mut tops = tree.root().children().iter();
    let top = tops.find(|top| top.range_on(leaf, 0..top.asize()).is_some())?;
    Some(Place { leaf: found, top: top.clone() })
}

/// What the ZAP of a leaf says.
struct Noted {
    state: u64,
    offset: u64,
    rate: u64,
}

fn noted(shared: &Shared, leaf: u64) -> Option<Noted> {
    let pool = shared.view();
    let own = config::find(pool.config().list("vdev_tree")?, leaf)?;
    let object = own.u64("com.delphix:vdev_zap_leaf").filter(|object| *object != 0)?;
    let zap = Zap::open(&pool.mos().object(object).ok()?).ok()?;
    let number = |name: &str| zap.u64(name.as_bytes()).ok().flatten().unwrap_or(0);
    Some(Noted { state: number(STATE), offset: number(OFFSET), rate: number(RATE) })
}

/// What is written down of a leaf.
#[derive(Clone, Copy, Default)]
struct Note {
    state: Option<TrimState>,
    /// Bytes of the leaf's allocatable space.
    offset: Option<u64>,
    rate: Option<u64>,
}

/// Writes it into the ZAP of the leaf (`vdev_trim_zap_update_sync`), which may be gone by now.
fn note(context: &mut SyncContext<'_>, leaf: u64, note: Note) -> Result<(), DslWriteError> {
    let Some(own) = config::find(&context.config.vdev_tree, leaf) else { return Ok(()) };
    let object = config::number(own, "com.delphix:vdev_zap_leaf");
    if object == 0 {
        return Ok(());
    }
    let path = own.str("path").unwrap_or_default().to_owned();
    let tx = &mut context.tx;
    let offset = note.offset.map(|at| if at == 0 { 0 } else { at.saturating_add(LABEL_START) });
    let state = note.state.map(|state| state as u64);
    let begins = note.state == Some(TrimState::Active);
    let pairs = [
        (OFFSET, offset),
        (STATE, state),
        (TIME, state.map(|_| tx.now)),
        (RATE, note.rate),
        (PARTIAL, begins.then_some(0)),
        (SECURE, begins.then_some(0)),
    ];
    for (name, value) in pairs {
        if let Some(value) = value {
            let key = Key::Name(name.as_bytes());
            ZapMut::open(tx.mos, object).update(&key, &Value::U64(&[value]))?;
        }
    }
    let Some(state) = note.state else { return Ok(()) };
    let what = match state {
        TrimState::Active => "activated",
        TrimState::Canceled => "canceled",
        TrimState::Suspended => "suspended",
        TrimState::Complete => "complete",
    };
    let message = format!("vdev={path} {what}");
    let record = history::internal("trim", &message, None, tx.txg, tx.now);
    let appended = |tx: &mut Tx<'_>| Ok(history::append(tx.mos, &record)?);
    tx.unless_unreadable("the pool's history is not written", appended).map(drop)
}

/// Writes down what is so from now on, and waits until that is on disk.
fn write(shared: &Shared, leaf: u64, what: Note) -> Result<(), EngineError> {
    shared.queue.run(&shared.tx_state, move |context| note(context, leaf, what), |()| true)
}

impl Engine {
    /// Begins to tell the leaf with this guid what is free, or stops it (`spa_vdev_trim`).
    ///
    /// # Errors
    /// See [`TrimError`].
    pub fn trim(&self, leaf: u64, request: TrimRequest) -> Result<(), TrimError> {
        let shared = &self.shared;
        let Place { leaf: vdev, .. } = place(shared, leaf).ok_or(TrimError::NoDevice)?;
        let state = noted(shared, leaf).map_or(0, |noted| noted.state);
        let is = |state: u64, other: TrimState| state == other as u64;
        let (new, event) = match request {
            TrimRequest::Start { rate } => {
                return self.begin_trim(&vdev, rate, is(state, TrimState::Suspended));
            }
            TrimRequest::Cancel => {
                if !shared.trims.stop_one(leaf) && !is(state, TrimState::Suspended) {
                    return Err(TrimError::NoTrim);
                }
                (TrimState::Canceled, "trim_cancel")
            }
            TrimRequest::Suspend => {
                if !shared.trims.stop_one(leaf) {
                    return Err(TrimError::NoTrim);
                }
                (TrimState::Suspended, "trim_suspend")
            }
        };
        // It may have ended by itself before it was stopped.
        if noted(shared, leaf).is_some_and(|now| is(now.state, TrimState::Complete)) {
            return Err(TrimError::NoTrim);
        }
        write(shared, leaf, Note { state: Some(new), ..Note::default() })?;
        tell(shared, event, &vdev);
        Ok(())
    }

    fn begin_trim(&self, vdev: &Vdev, rate: u64, goes_on: bool) -> Result<(), TrimError> {
        let (shared, leaf) = (&self.shared, vdev.guid());
        match () {
            () if !vdev.writable() => return Err(TrimError::NotWritable),
            () if !vdev.can_trim() => return Err(TrimError::Unsupported),
            () if shared.trims.running.lock().contains_key(&leaf) => {
                return Err(TrimError::Trimming);
            }
            () => {}
        }
        let offset = (!goes_on).then_some(0);
        let state = Some(TrimState::Active);
        write(shared, leaf, Note { state, offset, rate: Some(rate) })?;
        tell(shared, if goes_on { "trim_resume" } else { "trim_start" }, vdev);
        start(shared, leaf)
    }

    /// Goes on with what was under way when the pool was last in use (`vdev_trim_restart`).
    pub(super) fn resume_trims(&self) {
        for leaf in self.shared.disk.tree().leaves() {
            let active = noted(&self.shared, leaf.guid())
                .is_some_and(|noted| noted.state == TrimState::Active as u64);
            if active && leaf.can_trim() {
                match start(&self.shared, leaf.guid()) {
                    Ok(()) => tell(&self.shared, "trim_resume", &leaf),
                    Err(e) => tracing::warn!("vdev {}: trim does not go on: {e}", leaf.guid()),
                }
            }
        }
        self.follow_autotrim();
    }

    /// Leaves that are being told what is free, and the bytes of each that are left to look at.
    pub fn trimming(&self) -> Vec<(u64, u64)> {
        let running = self.shared.trims.running.lock();
        let left = |own: &Running| own.left.load(Ordering::Relaxed);
        running.iter().map(|(leaf, own)| (*leaf, left(own))).collect()
    }
}

/// Tells that telling a leaf begins or ends.
fn tell(shared: &Shared, event: &str, leaf: &Vdev) {
    Sysevent { vdev: Some(leaf), ..Sysevent::of_pool(event) }.post(&shared.disk.store);
}

/// Starts the thread of a leaf, of which is noted that it is active.
fn start(shared: &Arc<Shared>, leaf: u64) -> Result<(), TrimError> {
    let mut running = shared.trims.running.lock();
    if shared.trims.is_stopped() || running.contains_key(&leaf) {
        return Err(TrimError::Trimming);
    }
    let own: Arc<Running> = Arc::default();
    let (theirs, its_own) = (shared.clone(), own.clone());
    let run = move || {
        let alarm = theirs.disk.store.alarm().clone();
        alarm.guard(NAME, || run(&theirs, leaf, &its_own));
        theirs.trims.running.lock().remove(&leaf);
        theirs.trims.changed.notify_all();
    };
    let spawned = std::thread::Builder::new().name(NAME.into()).spawn(run);
    spawned.map_err(|e| EngineError::Unsupported(format!("a thread: {e}")))?;
    running.insert(leaf, own);
    Ok(())
}

/// Tells one leaf, and writes down when all is told.
fn run(shared: &Arc<Shared>, leaf: u64, own: &Running) {
    let Some(noted) = noted(shared, leaf) else { return };
    let Some(found) = place(shared, leaf) else { return };
    let from = noted.offset.saturating_sub(LABEL_START);
    let mut trim = Thread {
        shared,
        own,
        rate: noted.rate,
        offset: from,
        noted: Instant::now(),
        unsupported: false,
    };
    if !trim.all(&found) {
        // What was told need not be told again.
        let offset = Some(trim.offset);
        let _suspended = write(shared, leaf, Note { offset, ..Note::default() });
        return;
    }
    let (state, offset) = (Some(TrimState::Complete), Some(trim.offset));
    let state = if trim.unsupported { Some(TrimState::Canceled) } else { state };
    if write(shared, leaf, Note { state, offset, ..Note::default() }).is_ok() {
        let event = if trim.unsupported { "trim_cancel" } else { "trim_finish" };
        tell(shared, event, &found.leaf);
    }
}

/// What the thread of a leaf does.
struct Thread<'a> {
    shared: &'a Arc<Shared>,
    own: &'a Running,
    rate: u64,
    /// Bytes of the leaf's allocatable space before this were told.
    offset: u64,
    noted: Instant,
    unsupported: bool,
}

impl Thread<'_> {
    fn is_stopped(&self) -> bool {
        self.own.stop.load(Ordering::Acquire) || self.shared.tx_state.failure().is_some()
    }

    /// All metaslabs; whether it got to the end.
    fn all(&mut self, found: &Place) -> bool {
        let Place { leaf, top } = found;
        let mut next = 0;
        loop {
            let group = self.shared.disk.allocator.group(top.id());
            let of = |group: &Arc<cenote_store::alloc::Group>| {
                group.metaslabs().get(next).map(|metaslab| metaslab.extent())
            };
            let Some(extent) = group.as_ref().and_then(of) else { return true };
            let whole = extent.start..extent.start + extent.size;
            let last = top.range_on(leaf.guid(), whole.clone()).map_or(0, |range| range.end);
            let end = top.range_on(leaf.guid(), 0..top.asize()).map_or(0, |range| range.end);
            self.own.left.store(end.saturating_sub(self.offset), Ordering::Relaxed);
            if last > self.offset && !self.metaslab(found, next as u64, whole) {
                return self.unsupported;
            }
            self.offset = self.offset.max(last);
            next += 1;
        }
    }

    /// The free ranges of a metaslab, which are somewhere in `whole`; whether it got to the end.
    fn metaslab(&mut self, found: &Place, metaslab: u64, whole: Range<u64>) -> bool {
        let Place { leaf, top } = found;
        let mut from = whole.start;
        let bytes = if self.rate > 0 { self.rate.clamp(1 << 20, ROOM.bytes) } else { ROOM.bytes };
        loop {
            if self.is_stopped() {
                return false;
            }
            let allocator = &self.shared.disk.allocator;
            let room = TrimRoom { bytes, ..ROOM };
            // What cannot be loaded is left alone.
            let Some(trimming) = allocator.trim_free(top.id(), metaslab, from, room) else {
                return true;
            };
            let Some((_, last)) = trimming.ranges.last().copied() else { return true };
            let begun = Instant::now();
            let mut told = 0;
            for (start, end) in &trimming.ranges {
                let Some(range) = top.range_on(leaf.guid(), *start..*end) else { continue };
                let range = range.start.max(self.offset)..range.end;
                match tell_device(self.shared, leaf, range) {
                    Ok(bytes) => told += bytes,
                    Err(ErrorKind::Unsupported) => {
                        self.unsupported = true;
                        return false;
                    }
                    Err(_) => {}
                }
            }
            drop(trimming);
            from = last;
            if let Some(range) = top.range_on(leaf.guid(), whole.start..last) {
                self.offset = self.offset.max(range.end);
            }
            self.go_slow(told, begun);
            self.write_down(leaf.guid());
        }
    }

    /// Waits until so many bytes may be told since `begun`, or it is to stop.
    fn go_slow(&self, bytes: u64, begun: Instant) {
        if self.rate == 0 {
            return;
        }
        let until = begun + Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        let mut running = self.shared.trims.running.lock();
        while !self.is_stopped() && Instant::now() < until {
            self.shared.trims.changed.wait_until(&mut running, until);
        }
    }

    fn write_down(&mut self, leaf: u64) {
        if self.noted.elapsed() >= NOTE {
            let offset = Some(self.offset);
            // A suspended pool ends the thread.
            let _suspended = write(self.shared, leaf, Note { offset, ..Note::default() });
            self.noted = Instant::now();
        }
    }
}

/// Tells a leaf of a range, in pieces that are neither too small nor too large; the bytes that it was told of.
fn tell_device(shared: &Shared, leaf: &Arc<Vdev>, range: Range<u64>) -> Result<u64, ErrorKind> {
    let (least, most) = (TRIM_EXTENT_BYTES_MIN.get(), TRIM_EXTENT_BYTES_MAX.get());
    if range.is_empty() || range.end - range.start < least {
        return Ok(0);
    }
    let tree = shared.disk.tree();
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at.saturating_add(most.max(1 << 20)));
        if let Err(e) = tree.trim(leaf, at..end) {
            tracing::debug!(?leaf, at, end, "trim: {e}");
            return Err(e.kind());
        }
        at = end;
    }
    Ok(range.end - range.start)
}
