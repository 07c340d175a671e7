//! What happened to the pools of this process, the newest of it (`fm_ereport_post`, `zfs_zevent_post`,
//! `zpool events`).
//!
//! An event is an nvlist, with the names that OpenZFS gives its pairs. There are three kinds: what was done to a pool
//! (`sysevent.fs.zfs.*`), what went wrong (`ereport.fs.zfs.*`), and vdevs that are in another state
//! (`resource.fs.zfs.statechange`). Vdevs and stores tell what they meet, and do not know whose they are: pools are
//! registered here with their stores. What stops a whole pool is told by the code that sees it ([`PoolFailure`],
//! [`import_failed`]).

use crate::diagnosis::{self, Bounds, Kind, Verdict};
use crate::error::ImportError;
use crate::tunables::{EREPORTS, SLOW_IO_EVENTS, ZEVENT_LEN_MAX};
use crate::vdev_props::{number_of, parent, state_number};
use crate::{Candidate, Pool, config};
use cenote_format::less;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_store::notes::{self, Unreadable};
use cenote_store::{Bookmark, Store};
use cenote_vdev::events::{Happening, Operation, listen};
use cenote_vdev::{Aux, Vdev, VdevState};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its number: one more than that of the event before.
    pub eid: u64,
    /// What it says.
    pub payload: NvList,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<Event>,
    /// Number of the newest event so far.
    newest: u64,
    /// The second in which something was last reported of vdevs, and how many errors and slow requests of each.
    reports: (u64, HashMap<(u64, bool), u64>),
}

struct Known {
    name: String,
    store: Weak<Store>,
    /// The pool's property of this name.
    failmode: String,
    /// The vdevs whose slow requests are not listed (`slow_io_events=off`).
    quiet: Vec<u64>,
    /// How many errors are too many, and what acts by that.
    bounds: Arc<Bounds>,
    act: Option<Act>,
}

/// Does with the leaf of this guid what was found. It is called where a request failed, and must not wait.
pub type Act = Arc<dyn Fn(u64, Verdict) + Send + Sync>;

/// `ECKSUM`, which is `EBADE`.
const ECKSUM: i32 = Errno::BADE.raw_os_error();

static RING: LazyLock<Mutex<Ring>> = LazyLock::new(Mutex::default);
/// Notified at each event.
static NEWS: Condvar = Condvar::new();
static POOLS: LazyLock<Mutex<Vec<Known>>> = LazyLock::new(Mutex::default);

/// From now on events of this pool are listed.
pub(crate) fn register(name: &str, store: &Arc<Store>) {
    listen(happened);
    notes::listen(unreadable);
    let mut pools = POOLS.lock();
    pools.retain(|known| known.store.strong_count() > 0);
    let (store, failmode) = (Arc::downgrade(store), "wait".into());
    let (quiet, bounds, act) = Default::default();
    pools.push(Known { name: name.into(), store, failmode, quiet, bounds, act });
}

/// Notes the properties of a registered pool, and of its vdevs, that decide what is listed. To be called whenever
/// they may be others.
pub fn learn(pool: &Pool) {
    let tree = pool.store().vdevs();
    let is_quiet = |vdev: &Vdev| number_of(pool, vdev, "slow_io_events") == Some(0);
    let leaves = tree.leaves();
    let quiet: Vec<u64> = leaves.iter().filter(|v| is_quiet(v)).map(|v| v.guid()).collect();
    let failmode = pool.get("failmode").map(|value| value.exact);
    let bounds = Arc::new(diagnosis::bounds(pool));
    let mut pools = POOLS.lock();
    let same = |known: &&mut Known| std::ptr::eq(known.store.as_ptr(), Arc::as_ptr(pool.store()));
    if let Some(known) = pools.iter_mut().rev().find(same) {
        (known.quiet, known.bounds) = (quiet, bounds);
        known.failmode = failmode.unwrap_or_else(|| "wait".into());
    }
}

/// From now on errors of the leaves of a registered pool are counted, and `act` does what follows from them
/// (`zfs_agent_post_event`).
pub fn act_by(store: &Arc<Store>, act: Act) {
    let mut pools = POOLS.lock();
    let same = |known: &&mut Known| std::ptr::eq(known.store.as_ptr(), Arc::as_ptr(store));
    if let Some(known) = pools.iter_mut().rev().find(same) {
        known.act = Some(act);
    }
}

/// The pool property `failmode` of a registered pool, as it was [learnt](learn) last.
pub fn failmode(store: &Store) -> String {
    owner_of(store).map_or_else(|| "wait".into(), |owner| owner.failmode)
}

/// The events after the one with this number, oldest first, and how many of them are not kept any more
/// (`zfs_ioc_events_next`).
pub fn since(eid: u64) -> (Vec<Event>, u64) {
    let ring = RING.lock();
    let kept = ring.events.iter().filter(|event| event.eid > eid).cloned().collect::<Vec<_>>();
    // Whoever asks may name an event that is still to come.
    let after = ring.newest.saturating_sub(eid);
    let missed = less!(after, kept.len() as u64, "events after event {eid}");
    (kept, missed)
}

/// Waits until there is an event after the one with this number, or `ends` says so when [`wake`] is called.
pub fn wait(eid: u64, ends: impl Fn() -> bool) {
    let mut ring = RING.lock();
    while ring.newest <= eid && !ends() {
        NEWS.wait(&mut ring);
    }
}

/// Has threads that [`wait`] for events look whether they must end.
pub fn wake() {
    let _ring = RING.lock();
    NEWS.notify_all();
}

/// The number before that of the oldest event that is kept.
pub fn oldest() -> u64 {
    let ring = RING.lock();
    less!(ring.newest, ring.events.len() as u64, "events")
}

/// Forgets all events; how many that were.
pub fn clear() -> usize {
    std::mem::take(&mut RING.lock().events).len()
}

fn post(mut payload: NvList) {
    let now = crate::time::since_1970();
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let time = vec![seconds, i64::from(now.subsec_nanos())];
    payload.set("time", NvValue::Int64Array(time));
    let mut ring = RING.lock();
    ring.newest += 1;
    let eid = ring.newest;
    payload.set("eid", NvValue::Uint64(eid));
    ring.events.push_back(Event { eid, payload });
    let most = usize::try_from(ZEVENT_LEN_MAX.get()).unwrap_or(usize::MAX);
    let surplus = ring.events.len().saturating_sub(most);
    ring.events.drain(..surplus);
    NEWS.notify_all();
}

/// Whether one more report of an error, or of a slow request, of this vdev may be listed in this second
/// (`zfs_is_ratelimiting_event`).
fn may_report(vdev: &Vdev, what: &Happening<'_>) -> bool {
    let (slow, most) = match what {
        Happening::Mismatch { .. } | Happening::Failed { .. } => (false, EREPORTS.get()),
        Happening::Slow { .. } => (true, SLOW_IO_EVENTS.get()),
        Happening::State(_) | Happening::ProbeFailed => return true,
    };
    let now = crate::time::since_1970().as_secs();
    let mut ring = RING.lock();
    if ring.reports.0 != now {
        ring.reports = (now, HashMap::new());
    }
    let reports = ring.reports.1.entry((vdev.guid(), slow)).or_default();
    *reports += 1;
    *reports <= most
}

/// Something that was done to a pool, or to a vdev of it (`spa_event_notify`, `spa_event_post`).
pub struct Sysevent<'a> {
    /// Its name: `pool_import`, ….
    pub name: &'a str,
    /// The vdev.
    pub vdev: Option<&'a Vdev>,
    /// The pool's state: `config::STATE_*`.
    pub state: u64,
    /// Pairs of it alone.
    pub more: Vec<(String, NvValue)>,
}

impl<'a> Sysevent<'a> {
    /// Of a pool that is in use.
    pub fn of_pool(name: &'a str) -> Sysevent<'a> {
        Sysevent { name, vdev: None, state: config::STATE_ACTIVE, more: Vec::new() }
    }

    /// Lists it, if the pool of the store is registered.
    pub fn post(self, store: &Arc<Store>) {
        let mut payload = match name_of(store) {
            Some(pool) => {
                begun(&format!("sysevent.fs.zfs.{}", self.name), &pool, store, self.state)
            }
            None => return,
        };
        if let Some(vdev) = self.vdev {
            describe(vdev, &mut payload);
        }
        payload.pairs.extend(self.more);
        post(payload);
    }
}

/// A device that came to the place of a leaf that is away took it, or was `refused`: why (`zfs_post_autoreplace`).
pub fn autoreplace(store: &Arc<Store>, leaf: &Vdev, refused: Option<&str>) {
    let Some(pool) = name_of(store) else { return };
    let mut payload = begun("resource.fs.zfs.autoreplace", &pool, store, config::STATE_ACTIVE);
    describe(leaf, &mut payload);
    if let Some(why) = refused {
        payload.set("autoreplace_refused", NvValue::String(why.into()));
    }
    post(payload);
}

/// Records of a pool's history that were written (`spa_history_log_notify`): an event for each internal one.
pub fn recorded(store: &Arc<Store>, records: &[NvList]) {
    const NAMES: [(&str, &str); 8] = [
        ("internal_name", "history_internal_name"),
        ("history zone", "history_zone"),
        ("history hostname", "history_hostname"),
        ("dsname", "history_dsname"),
        ("history internal str", "history_internal_str"),
        ("dsid", "history_dsid"),
        ("history txg", "history_txg"),
        ("history time", "history_time"),
    ];
    for record in records.iter().filter(|record| record.contains("internal_name")) {
        let pair =
            |(name, told): &(&str, &str)| Some((told.to_string(), record.get(name)?.clone()));
        let more = NAMES.iter().filter_map(pair).collect();
        Sysevent { more, ..Sysevent::of_pool("history_event") }.post(store);
    }
}

fn name_of(store: &Arc<Store>) -> Option<String> {
    let pools = POOLS.lock();
    let same = |known: &&Known| std::ptr::eq(known.store.as_ptr(), Arc::as_ptr(store));
    pools.iter().rev().find(same).map(|known| known.name.clone())
}

/// A pool that something happened to.
struct Owner {
    name: String,
    store: Arc<Store>,
    failmode: String,
    quiet: Vec<u64>,
    bounds: Arc<Bounds>,
    act: Option<Act>,
}

impl Owner {
    /// Counts an error of a leaf, and has done what follows from it.
    fn diagnose(&self, vdev: &Vdev, kind: Kind) {
        let Some(act) = self.act.as_ref().filter(|_| vdev.is_leaf()) else { return };
        if let Some(verdict) = diagnosis::record(vdev.guid(), kind, &self.bounds) {
            tracing::error!(?vdev, ?kind, ?verdict, "too many errors");
            act(vdev.guid(), verdict);
        }
    }
}

impl Known {
    /// The pool, if it is still there.
    fn owner(&self) -> Option<Owner> {
        let store = self.store.upgrade()?;
        let (failmode, quiet) = (self.failmode.clone(), self.quiet.clone());
        let (bounds, act) = (self.bounds.clone(), self.act.clone());
        Some(Owner { name: self.name.clone(), store, failmode, quiet, bounds, act })
    }
}

/// The pool that has a vdev.
fn owner(vdev: &Vdev) -> Option<Owner> {
    let has = |owner: &Owner| {
        let found = owner.store.vdevs().find(vdev.guid());
        found.is_some_and(|found| std::ptr::eq(Arc::as_ptr(&found), vdev))
    };
    // Not while the pools are locked: the last holder of a pool may end here.
    let owners: Vec<Owner> = POOLS.lock().iter().filter_map(Known::owner).collect();
    owners.into_iter().find(has)
}

/// The pool of a store.
fn owner_of(store: &Store) -> Option<Owner> {
    let pools = POOLS.lock();
    pools.iter().rev().find(|known| std::ptr::eq(known.store.as_ptr(), store))?.owner()
}

/// What every event of a pool says first (`zfs_event_create`).
fn begun(class: &str, pool: &str, store: &Store, state: u64) -> NvList {
    let mut payload = NvList::default();
    payload.set("version", NvValue::Uint8(0));
    payload.set("class", NvValue::String(class.into()));
    of_pool(pool, store.vdevs().root().guid(), state, &mut payload);
    payload
}

fn of_pool(pool: &str, guid: u64, state: u64, payload: &mut NvList) {
    payload.set("pool", NvValue::String(pool.into()));
    payload.set("pool_guid", NvValue::Uint64(guid));
    payload.set("pool_state", NvValue::Uint64(state));
    payload.set("pool_context", NvValue::Int32(0));
}

fn describe(vdev: &Vdev, payload: &mut NvList) {
    payload.set("vdev_guid", NvValue::Uint64(vdev.guid()));
    payload.set("vdev_state", NvValue::Uint64(state_number(vdev.state())));
    if let Some(path) = vdev.path() {
        payload.set("vdev_path", NvValue::String(path.display().to_string()));
    }
}

/// What `zpool events` calls a state (`zpool_state_to_name`).
pub fn state_name(number: u64) -> &'static str {
    crate::status::state_name(match number {
        1 | 2 => VdevState::Offline,
        3 => VdevState::Removed,
        4 => VdevState::CantOpen(Aux::None),
        5 => VdevState::Faulted,
        6 => VdevState::Degraded,
        7 => VdevState::Healthy,
        _ => return "UNKNOWN",
    })
}

/// Lists what happened to a vdev (`zfs_ereport_start_checksum`).
fn happened(vdev: &Vdev, what: &Happening<'_>) {
    if !may_report(vdev, what) {
        return;
    }
    // A pool that is being opened or closed is not in the list.
    let Some(owner) = owner(vdev) else { return };
    let errno_of = |why: &std::io::Error| why.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
    match *what {
        Happening::State(before) => {
            if vdev.state() == VdevState::Healthy {
                diagnosis::reset(vdev.guid());
            }
            if let (VdevState::CantOpen(aux), false) = (vdev.state(), before == vdev.state()) {
                let mut payload = report(open_failure(aux), &owner, Some(vdev));
                payload.set("prev_state", NvValue::Uint64(state_number(before)));
                post(payload);
            }
            let (class, state) = ("resource.fs.zfs.statechange", config::STATE_ACTIVE);
            let mut payload = begun(class, &owner.name, &owner.store, state);
            describe(vdev, &mut payload);
            payload.set("vdev_laststate", NvValue::Uint64(state_number(before)));
            post(payload);
        }
        Happening::ProbeFailed => {
            let mut payload = report("probe_failure", &owner, Some(vdev));
            payload.set("prev_state", NvValue::Uint64(0));
            post(payload);
        }
        Happening::Mismatch { offset, size } => {
            let mut payload = report("checksum", &owner, Some(vdev));
            of_request(Request { errno: ECKSUM, offset, size, ..Request::default() }, &mut payload);
            post(payload);
            owner.diagnose(vdev, Kind::Checksum);
        }
        Happening::Failed { offset, size, operation, why } => {
            let mut payload = report("io", &owner, Some(vdev));
            let (errno, kind) = (errno_of(why), Some(zio_type(operation)));
            of_request(Request { errno, offset, size, kind, took: None }, &mut payload);
            post(payload);
            owner.diagnose(vdev, Kind::Io);
        }
        Happening::Slow { .. } if owner.quiet.contains(&vdev.guid()) => {}
        Happening::Slow { offset, size, write, took } => {
            let mut payload = report("delay", &owner, Some(vdev));
            let operation = if write { Operation::Write } else { Operation::Read };
            let (kind, took) = (Some(zio_type(operation)), Some(took));
            of_request(Request { errno: 0, offset, size, kind, took }, &mut payload);
            post(payload);
            owner.diagnose(vdev, Kind::Slow);
        }
    }
}

/// Lists a block that cannot be read (`FM_EREPORT_ZFS_DATA`).
fn unreadable(store: &Store, what: &Unreadable) {
    let Some(owner) = owner_of(store) else { return };
    let mut payload = report("data", &owner, None);
    let errno = if what.mismatch { ECKSUM } else { Errno::IO.raw_os_error() };
    payload.set("zio_err", NvValue::Int32(errno));
    payload.set("zio_type", NvValue::Uint32(zio_type(Operation::Read)));
    let Bookmark { objset, object, level, blkid } = what.at;
    payload.set("zio_objset", NvValue::Uint64(objset));
    payload.set("zio_object", NvValue::Uint64(object));
    payload.set("zio_level", NvValue::Int64(level));
    payload.set("zio_blkid", NvValue::Uint64(blkid));
    post(payload);
}

/// Something that went wrong with a whole pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolFailure {
    /// Nothing can be written to it any more (`zio_suspend`).
    Suspended,
    /// A cache file that names it cannot be written (`spa_write_cachefile`).
    CacheFile,
}

impl PoolFailure {
    /// Lists it, if the pool of the store is registered.
    pub fn post(self, store: &Store) {
        let kind = match self {
            PoolFailure::Suspended => "io_failure",
            PoolFailure::CacheFile => "config_cache_write",
        };
        if let Some(owner) = owner_of(store) {
            post(report(kind, &owner, None));
        }
    }
}

/// What a vdev that cannot be opened is reported as.
fn open_failure(aux: Aux) -> &'static str {
    match aux {
        Aux::OpenFailed => "vdev.open_failed",
        Aux::CorruptData => "vdev.corrupt_data",
        Aux::NoReplicas => "vdev.no_replicas",
        Aux::BadGuidSum => "vdev.bad_guid_sum",
        Aux::TooSmall => "vdev.too_small",
        Aux::BadLabel => "vdev.bad_label",
        _ => "vdev.unknown",
    }
}

/// `zio_type_t`.
fn zio_type(operation: Operation) -> u32 {
    match operation {
        Operation::Read => 1,
        Operation::Write => 2,
        Operation::Flush => 5,
    }
}

/// The request that a report is about.
#[derive(Default)]
struct Request {
    errno: i32,
    /// Where on the device.
    offset: u64,
    size: u64,
    /// `zio_type_t`, if it is known.
    kind: Option<u32>,
    /// What its device took, if that is why it is reported.
    took: Option<Duration>,
}

fn of_request(request: Request, list: &mut NvList) {
    list.set("zio_err", NvValue::Int32(request.errno));
    if let Some(took) = request.took {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        list.set("zio_delay", NvValue::Uint64(nanoseconds));
    }
    if let Some(kind) = request.kind {
        list.set("zio_type", NvValue::Uint32(kind));
    }
    list.set("zio_offset", NvValue::Uint64(request.offset));
    list.set("zio_size", NvValue::Uint64(request.size));
}

/// Something that went wrong with a pool, or a vdev of it (`zfs_ereport_start`).
fn report(kind: &str, owner: &Owner, vdev: Option<&Vdev>) -> NvList {
    let tree = owner.store.vdevs();
    let guids = (tree.root().guid(), vdev.map_or(0, Vdev::guid));
    let mut list = report_head(kind, guids);
    of_pool(&owner.name, guids.0, config::STATE_ACTIVE, &mut list);
    list.set("pool_failmode", NvValue::String(owner.failmode.clone()));
    let Some(vdev) = vdev else { return list };
    list.set("vdev_guid", NvValue::Uint64(vdev.guid()));
    list.set("vdev_type", NvValue::String(vdev.kind().into()));
    if let Some(path) = vdev.path() {
        list.set("vdev_path", NvValue::String(path.display().to_string()));
    }
    let errors = vdev.errors();
    for (name, value) in [
        ("vdev_ashift", u64::from(vdev.ashift())),
        ("vdev_read_errors", errors.0),
        ("vdev_write_errors", errors.1),
        ("vdev_cksum_errors", errors.2),
        ("vdev_delays", vdev.slow_ios()),
    ] {
        list.set(name, NvValue::Uint64(value));
    }
    if let Some(parent) = parent(tree.root(), vdev.guid()) {
        list.set("parent_guid", NvValue::Uint64(parent.guid()));
        list.set("parent_type", NvValue::String(parent.kind().into()));
    }
    list
}

/// What every report says first, of the pool and the vdev with these guids (`fm_ereport_set`, `fm_fmri_zfs_set`).
fn report_head(kind: &str, (pool, vdev): (u64, u64)) -> NvList {
    let mut detector = NvList::default();
    detector.set("version", NvValue::Uint8(0));
    detector.set("scheme", NvValue::String("zfs".into()));
    detector.set("pool", NvValue::Uint64(pool));
    detector.set("vdev", NvValue::Uint64(vdev));
    let mut list = NvList::default();
    list.set("class", NvValue::String(format!("ereport.fs.zfs.{kind}")));
    list.set("ena", NvValue::Uint64(ena()));
    list.set("detector", NvValue::NvList(detector));
    list
}

/// Lists that a pool could not be imported (`spa_load`), unless it was refused before it was looked at.
pub fn import_failed(candidate: &Candidate, why: &ImportError) {
    let kind = match why {
        ImportError::NotFound(_)
        | ImportError::Ambiguous(_)
        | ImportError::InvalidName { .. }
        | ImportError::ReadWrite(_)
        | ImportError::NoCheckpoint(_)
        | ImportError::OtherHost { .. } => return,
        ImportError::MissingLogs { .. } => "log_replay",
        _ => "zpool",
    };
    let mut list = report_head(kind, (candidate.guid, 0));
    of_pool(&candidate.name, candidate.guid, config::STATE_ACTIVE, &mut list);
    // The default of a pool that nothing is known of.
    list.set("pool_failmode", NvValue::String("wait".into()));
    // `SPA_LOAD_IMPORT`.
    list.set("pool_context", NvValue::Int32(2));
    post(list);
}

/// A number that no other report of this second has (`fm_ena_generate`, format 1).
fn ena() -> u64 {
    const TIME: u32 = 14;
    let now = crate::time::since_1970();
    (now.as_nanos() as u64) << TIME | 1
}
