//! What happened to the pools of this process, the newest of it (`zfs_zevent_post`, `zpool events`).
//!
//! An event is an nvlist, with the names that OpenZFS gives its pairs. There are three kinds: what was done to a pool
//! (`sysevent.fs.zfs.*`), what went wrong (`ereport.fs.zfs.*`), and vdevs that are in another state
//! (`resource.fs.zfs.statechange`). The last two are told by vdevs, which do not know whose they are: pools are
//! registered here with their stores.

use crate::config;
use crate::tunables::{EREPORTS, ZEVENT_LEN_MAX};
use crate::vdev_props::{parent, state_number};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_store::Store;
use cenote_vdev::events::{Happening, listen};
use cenote_vdev::{Aux, Vdev, VdevState};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

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
    /// The second in which errors were last reported, and how many of each vdev.
    reports: (u64, HashMap<u64, u64>),
}

struct Known {
    name: String,
    store: Weak<Store>,
}

static RING: LazyLock<Mutex<Ring>> = LazyLock::new(Mutex::default);
static POOLS: LazyLock<Mutex<Vec<Known>>> = LazyLock::new(Mutex::default);

/// From now on events of this pool are listed.
pub(crate) fn register(name: &str, store: &Arc<Store>) {
    listen(happened);
    let mut pools = POOLS.lock();
    pools.retain(|known| known.store.strong_count() > 0);
    pools.push(Known { name: name.into(), store: Arc::downgrade(store) });
}

/// The events after the one with this number, oldest first, and how many of them are not kept any more.
pub fn since(eid: u64) -> (Vec<Event>, u64) {
    let ring = RING.lock();
    let kept = ring.events.iter().filter(|event| event.eid > eid).cloned().collect::<Vec<_>>();
    let missed = ring.newest.saturating_sub(eid).saturating_sub(kept.len() as u64);
    (kept, missed)
}

/// The number before that of the oldest event that is kept.
pub fn oldest() -> u64 {
    let ring = RING.lock();
    ring.newest.saturating_sub(ring.events.len() as u64)
}

/// Forgets all events; how many that were.
pub fn clear() -> usize {
    std::mem::take(&mut RING.lock().events).len()
}

fn post(mut payload: NvList) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
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
}

/// Whether one more report of an error of this vdev may be listed in this second (`zfs_is_ratelimiting_event`).
fn may_report(vdev: &Vdev) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut ring = RING.lock();
    if ring.reports.0 != now {
        ring.reports = (now, HashMap::new());
    }
    let reports = ring.reports.1.entry(vdev.guid()).or_default();
    *reports += 1;
    *reports <= EREPORTS.get()
}

/// Something that was done to a pool, or to a vdev of it (`spa_event_notify`).
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

/// The pool that has a vdev.
fn owner(vdev: &Vdev) -> Option<(String, Arc<Store>)> {
    let pools: Vec<(String, Arc<Store>)> = {
        let pools = POOLS.lock();
        pools.iter().filter_map(|k| Some((k.name.clone(), k.store.upgrade()?))).collect()
    };
    let has = |store: &Store| {
        let found = store.vdevs().find(vdev.guid());
        found.is_some_and(|found| std::ptr::eq(Arc::as_ptr(&found), vdev))
    };
    pools.into_iter().find(|(_, store)| has(store))
}

/// What every event of a pool says first (`zfs_event_create`).
fn begun(class: &str, pool: &str, store: &Store, state: u64) -> NvList {
    let mut payload = NvList::default();
    payload.set("version", NvValue::Uint8(0));
    payload.set("class", NvValue::String(class.into()));
    of_pool(pool, store, state, &mut payload);
    payload
}

fn of_pool(pool: &str, store: &Store, state: u64, payload: &mut NvList) {
    payload.set("pool", NvValue::String(pool.into()));
    payload.set("pool_guid", NvValue::Uint64(store.vdevs().root().guid()));
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

/// Lists what happened to a vdev.
fn happened(vdev: &Vdev, what: &Happening<'_>) {
    if !matches!(what, Happening::State(_)) && !may_report(vdev) {
        return;
    }
    // A pool that is being opened or closed is nobody's.
    let Some((pool, store)) = owner(vdev) else { return };
    match what {
        Happening::State(before) => {
            let class = "resource.fs.zfs.statechange";
            let mut payload = begun(class, &pool, &store, config::STATE_ACTIVE);
            describe(vdev, &mut payload);
            payload.set("vdev_laststate", NvValue::Uint64(state_number(*before)));
            post(payload);
        }
        Happening::Mismatch { offset, size } => {
            // `ECKSUM`, which is `EBADE`.
            let errno = nix::errno::Errno::EBADE as i32;
            post(report("checksum", (&pool, &store), vdev, (errno, *offset, *size)));
        }
        Happening::Failed { offset, size, why, .. } => {
            let errno = why.raw_os_error().unwrap_or(nix::errno::Errno::EIO as i32);
            post(report("io", (&pool, &store), vdev, (errno, *offset, *size)));
        }
    }
}

/// Something that went wrong (`zfs_ereport_start`).
fn report(
    kind: &str,
    (pool, store): (&str, &Store),
    vdev: &Vdev,
    (errno, offset, size): (i32, u64, u64),
) -> NvList {
    let tree = store.vdevs();
    let mut detector = NvList::default();
    detector.set("version", NvValue::Uint8(0));
    detector.set("scheme", NvValue::String("zfs".into()));
    detector.set("pool", NvValue::Uint64(tree.root().guid()));
    detector.set("vdev", NvValue::Uint64(vdev.guid()));
    let mut list = NvList::default();
    list.set("class", NvValue::String(format!("ereport.fs.zfs.{kind}")));
    list.set("ena", NvValue::Uint64(ena()));
    list.set("detector", NvValue::NvList(detector));
    of_pool(pool, store, config::STATE_ACTIVE, &mut list);
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
    list.set("zio_err", NvValue::Int32(errno));
    list.set("zio_offset", NvValue::Uint64(offset));
    list.set("zio_size", NvValue::Uint64(size));
    list
}

/// A number that no other report of this second has (`fm_ena_generate`, format 1).
fn ena() -> u64 {
    const TIME: u32 = 14;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64) << TIME | 1
}
