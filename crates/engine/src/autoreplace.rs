//! Devices that come to the places of those that are away (OpenZFS's `zfs_mod`: `zfs_process_add`, `zfs_deliver_check`).
//!
//! A leaf is *away* if its device was not there, or was another one, when it was to be opened, or if it stopped answering and its path
//! leads elsewhere by now. What is at the place of such a leaf is looked at ([`Shared::look_for_missing`]): its path, and for disks
//! also the physical place that OpenZFS noted (`phys_path`, below `/dev/disk/by-path`). If the labels there are the leaf's own, it is
//! brought back. If there is a blank device, and the pool has `autoreplace=on`, that one replaces the old one as `zpool replace` has it.
//!
//! A device is blank if there are only zeros where labels would be, and so no label, file system or table of partitions, and all of
//! that can be read. One that is not, is too small, has too large sectors, or is in use, is refused: the log and an event
//! (`resource.fs.zfs.autoreplace`) say why, once for each device.
//!
//! No events of the system are taken. Places are looked at where spares are called: after a transaction group, and where the sync
//! thread looks for devices that failed. For each leaf that is done at first after [`LEAST`], then at longer and longer times up to [`MOST`]. So
//! a pool without such leaves costs nothing. A device may still be copied to when it is first seen. So it is taken when a second look finds
//! it unchanged.
//!
//! In pools of files nothing comes by itself unless `autoreplace=on` says so: no ZED would be told of a file.
//!
//! Invariants: a leaf that was taken offline, was faulted by order, or has had too many errors stays so. One whose device is where it was
//! stays out of use: it did not answer. Nothing is written to a device that is not blank.

use super::background::Background;
use super::surgery::Attach;
use super::{Engine, EngineError, Shared};
use crate::create::{self, CreateError, NewDevice, OpenDevices, SystemDevices};
use cenote_pool::config;
use cenote_pool::events;
use cenote_pool::reopen::Restore;
use cenote_vdev::deadline::ask_within;
use cenote_vdev::{Aux, Device, Vdev, VdevState, VdevTree, open_device, read_labels};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The name of the thread.
const NAME: &str = "autoreplace";
/// The time from one look at the place of a leaf to the next, at first and at most.
const LEAST: Duration = Duration::from_millis(500);
const MOST: Duration = Duration::from_secs(60);
/// How long a look waits for a device.
const ANSWER: Duration = Duration::from_secs(10);
/// Where links to disks by their physical places are.
const BY_PATH: &str = "/dev/disk/by-path";

/// What looks for devices that come to the places of others.
#[derive(Default)]
pub(crate) struct Returns {
    /// The thread that looks.
    pub background: Background,
    /// What brings leaves back; empty: nothing comes by itself.
    engine: Mutex<Weak<Engine>>,
    /// What was seen at the places of leaves, by guid.
    looks: Mutex<HashMap<u64, Look>>,
    /// A device is being taken in: a resilver may follow.
    busy: AtomicBool,
}

impl Returns {
    /// Whether a device is being taken in, so that a resilver may follow.
    pub fn is_busy(&self) -> bool {
        self.busy.load(SeqCst)
    }
}

/// For as long as this lives a device is being taken in.
struct Busy<'a>(&'a AtomicBool);

impl<'a> Busy<'a> {
    fn begin(busy: &'a AtomicBool) -> Busy<'a> {
        busy.store(true, SeqCst);
        Busy(busy)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// What was seen at the place of a leaf.
#[derive(Clone)]
struct Look {
    next: Instant,
    pause: Duration,
    seen: Option<Sight>,
    /// All was done that could be with what was seen.
    settled: bool,
}

/// A device, as far as it tells whether it is another one, or was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sight {
    place: PathBuf,
    identity: (u64, u64),
    size: u64,
    /// Of a file, when it was changed; of a disk, which one it is of those that had its name.
    changed: (i64, i64),
}

/// What comes of a look.
#[derive(Debug)]
enum Came {
    /// All is done.
    Settled,
    /// It may be another time: why.
    Later(String),
    /// Nothing can be done with this device: why.
    Refused(String),
}

/// Whether a leaf is out of use for want of its device, as far as that is known without asking a device.
fn may_be_away(leaf: &Vdev) -> bool {
    match leaf.state() {
        VdevState::Removed => true,
        VdevState::CantOpen(aux) => {
            matches!(
                aux,
                Aux::None | Aux::OpenFailed | Aux::CorruptData | Aux::BadLabel | Aux::TooSmall
            )
        }
        VdevState::Faulted => !leaf.is_faulted_by_hand() && leaf.device().is_some(),
        _ => false,
    }
}

/// Whether a leaf is to be replaced by what has come: it is away, and no other device is about to replace it.
fn is_to_be_replaced(tree: &VdevTree, leaf: &Vdev) -> bool {
    may_be_away(leaf) && !is_being_replaced(tree, leaf)
}

fn is_being_replaced(tree: &VdevTree, leaf: &Vdev) -> bool {
    tree.parent_of(leaf.guid()).is_some_and(|above| above.kind() == "replacing")
}

/// The device of a leaf that stopped answering. A leaf that could not be opened may have that of another one.
fn silent_device(leaf: &Vdev) -> Option<Arc<dyn Device>> {
    leaf.device().filter(|_| leaf.state() == VdevState::Faulted)
}

/// Where the device of a leaf may come.
fn places(leaf: &Vdev) -> Vec<PathBuf> {
    let own = config::path(leaf.config());
    let physical =
        leaf.config().str("phys_path").filter(|place| !place.is_empty() && !place.contains('/'));
    let physical = physical.map(|place| Path::new(BY_PATH).join(place));
    own.into_iter().chain(physical.filter(|_| leaf.kind() == "disk")).collect()
}

/// What is at a place; `None`: nothing, or `before`, a device that went out of use there.
fn sight(
    place: &Path,
    is_file: bool,
    before: Option<Arc<dyn Device>>,
) -> io::Result<Option<Sight>> {
    let gone =
        |e: &io::Error| matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput);
    ask_within(place, ANSWER, move |place| {
        let (path, facts) = match SystemDevices.find(place) {
            Err(e) if gone(&e) => return Ok(None),
            found => found?,
        };
        if before.as_ref().is_some_and(|device| device.is_there()) {
            return Ok(None);
        }
        let meta = path.metadata()?;
        // A file in the place of a disk is not that disk.
        if meta.is_file() != is_file {
            return Ok(None);
        }
        let changed = match is_file {
            true => (meta.mtime(), meta.mtime_nsec()),
            false => (create::sequence(meta.rdev()).map_or(0, |number| number as i64), 0),
        };
        let size = open_device(&path)?.size();
        Ok(Some(Sight { place: path, identity: facts.identity, size, changed }))
    })
}

/// Whose a device is.
enum Owner {
    /// The leaf's own.
    Leaf,
    /// Nothing is on it.
    Blank,
    /// Something is: what.
    Other(String),
}

/// Looks whose the device at a place is.
fn owner(place: &Path, pool: u64, leaf: u64) -> io::Result<Owner> {
    ask_within(place, ANSWER, move |place| {
        let device = open_device(place)?;
        device.forget_cached();
        let labels = read_labels(&*device)?;
        let is_own = labels.iter().flat_map(|labels| labels.labels.iter().flatten()).any(|label| {
            (config::number(label, "pool_guid"), config::number(label, "guid")) == (pool, leaf)
        });
        if is_own {
            return Ok(Owner::Leaf);
        }
        Ok(create::what_is_on(&*device)?.map_or(Owner::Blank, Owner::Other))
    })
}

impl Shared {
    /// Has a thread look at the places of devices that are away, if it is time to.
    pub(crate) fn look_for_missing(self: &Arc<Self>) {
        if self.options.deterministic || self.returns.engine.lock().strong_count() == 0 {
            return;
        }
        let tree = self.disk.tree();
        let away: Vec<Arc<Vdev>> =
            tree.leaves().into_iter().filter(|leaf| may_be_away(leaf)).collect();
        let mut looks = self.returns.looks.lock();
        looks.retain(|guid, _| away.iter().any(|leaf| leaf.guid() == *guid));
        let now = Instant::now();
        let mut is_due = false;
        for leaf in away.iter().filter(|leaf| self.may_come(leaf)) {
            let first = || Look { next: now + LEAST, pause: LEAST, seen: None, settled: false };
            is_due |= looks.entry(leaf.guid()).or_insert_with(first).next <= now;
        }
        drop(looks);
        if is_due {
            self.returns.background.wake(self, NAME, Shared::look_at_places);
        }
    }

    /// Whether the pool replaces devices by itself.
    fn replaces_by_itself(&self) -> bool {
        self.view().get("autoreplace").is_some_and(|set| set.exact == "on")
    }

    /// Whether something at the place of this leaf is of interest.
    fn may_come(&self, leaf: &Vdev) -> bool {
        match leaf.kind() {
            "disk" => true,
            "file" => self.replaces_by_itself(),
            _ => false,
        }
    }

    /// Looks at the places of all devices that are away and whose time has come.
    fn look_at_places(self: &Arc<Self>) {
        let background = &self.returns.background;
        let engine = self.returns.engine.lock().upgrade();
        if let Some(engine) = engine {
            for leaf in self.disk.tree().leaves() {
                if background.is_stopped() || self.tx_state.closed().is_some() {
                    break;
                }
                let look = self.returns.looks.lock().get(&leaf.guid()).cloned();
                if let Some(look) = look.filter(|look| look.next <= Instant::now())
                    && may_be_away(&leaf)
                    && self.may_come(&leaf)
                {
                    let look = look_at(&engine, &leaf, look);
                    self.returns.looks.lock().insert(leaf.guid(), look);
                }
            }
        }
        // It is called again in time.
        background.ends();
    }
}

/// Looks at the place of a leaf, and does what is to be done with what is there. Returns what was seen.
fn look_at(engine: &Engine, leaf: &Vdev, before: Look) -> Look {
    let seen = places(leaf).iter().find_map(|place| {
        let seen = sight(place, leaf.kind() == "file", silent_device(leaf));
        seen.inspect_err(|error| tracing::debug!(place = %place.display(), %error, "not looked at"))
            .ok()?
    });
    let again = |pause: Duration, settled| {
        let next = Instant::now() + pause;
        Look { next, pause, seen: seen.clone(), settled }
    };
    let longer = before.pause.saturating_mul(2).min(MOST);
    if seen != before.seen {
        // What was just put there may be written to still.
        return again(if seen.is_some() { LEAST } else { longer }, false);
    }
    let Some(sight) = seen.as_ref().filter(|_| !before.settled) else {
        return again(longer, before.settled);
    };
    match engine.take_in(leaf, sight) {
        Came::Settled => again(longer, true),
        Came::Later(why) => {
            tracing::debug!(?leaf, "what came to its place is looked at later: {why}");
            again(longer, false)
        }
        Came::Refused(why) => {
            let place = sight.place.display();
            tracing::warn!(?leaf, "the device {place} does not take its place: {why}");
            events::autoreplace(engine.pool().store(), leaf, Some(&why));
            again(longer, true)
        }
    }
}

impl Engine {
    /// From now on devices that come to the places of those that are away are taken in.
    pub(crate) fn take_in_what_comes(self: &Arc<Self>) {
        *self.shared.returns.engine.lock() = Arc::downgrade(self);
        self.shared.look_for_missing();
    }

    /// Takes in what has come to the place of a leaf.
    fn take_in(&self, leaf: &Vdev, sight: &Sight) -> Came {
        let _busy = Busy::begin(&self.shared.returns.busy);
        let owner = match owner(&sight.place, self.pool().guid(), leaf.guid()) {
            Ok(owner) => owner,
            Err(error) => return Came::Later(format!("its labels cannot be read: {error}")),
        };
        match owner {
            Owner::Leaf => self.bring_back(leaf),
            _ if !self.shared.replaces_by_itself() => Came::Later("autoreplace=off".into()),
            Owner::Other(what) => Came::Refused(format!("it {what}")),
            Owner::Blank => self.replace_by(leaf, &sight.place),
        }
    }

    /// The device of a leaf is there again.
    fn bring_back(&self, leaf: &Vdev) -> Came {
        if let Err(why) = self.restore(&[leaf.guid()], Restore::Removal) {
            return Came::Later(why.to_string());
        }
        let now = self.shared.disk.tree().find(leaf.guid());
        if now.is_none_or(|now| !now.state().readable()) {
            return Came::Later(
                "it has the labels of the device that was there, and is not usable".into(),
            );
        }
        tracing::info!(?leaf, "the device is back");
        Came::Settled
    }

    /// A blank device takes the place of a leaf.
    fn replace_by(&self, leaf: &Vdev, place: &Path) -> Came {
        let shared = &self.shared;
        let barred = || -> Option<&str> {
            if is_being_replaced(&shared.disk.tree(), leaf) {
                return Some("the device is being replaced");
            }
            if shared.has_checkpoint() {
                return Some("the pool has a checkpoint");
            }
            if shared.disk.writer.copied().is_some() {
                return Some("a device is being removed");
            }
            shared.is_rebuilding().then_some("a rebuild is under way")
        };
        if let Some(why) = barred() {
            return Came::Later(why.into());
        }
        let new = match self.blank(place) {
            Ok(new) => new,
            Err(why) => return Came::Refused(why),
        };
        let attach = Attach { beside: leaf.guid(), new, replaces: true };
        match shared.attach(attach, is_to_be_replaced, false) {
            Ok(()) => {
                tracing::warn!(?leaf, "the device {} takes its place", place.display());
                events::autoreplace(self.pool().store(), leaf, None);
                Came::Settled
            }
            Err(EngineError::Suspended(why)) => Came::Later(why),
            Err(why) => {
                barred().map_or(Came::Refused(why.to_string()), |why| Came::Later(why.into()))
            }
        }
    }

    /// The blank device at a place, opened, to join a vdev.
    fn blank(&self, place: &Path) -> Result<NewDevice, String> {
        let pool = self.pool();
        let layout = create::parse(&[place.display().to_string()]).map_err(|e| e.to_string())?;
        // One that hangs must not hold up what waits for this thread.
        create::check_answers(&layout).map_err(|e| e.to_string())?;
        let new = create::prepare_single(&pool, &layout, None, false, &[]).map_err(|e| match e {
            CreateError::Refused { why, .. } => why,
            other => other.to_string(),
        });
        let new = new?.ok_or("it is not a single device")?;
        // It is this process's alone by now: whether it is blank still.
        match create::what_is_on(&*new.device) {
            Ok(None) => Ok(new),
            Ok(Some(what)) => Err(format!("it {what}")),
            Err(error) => Err(error.to_string()),
        }
    }
}
