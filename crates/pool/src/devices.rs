//! The devices of a pool that a search found, by guid, opened when first needed.
//!
//! A [`DeviceSet`] has for each guid a path, whether it is a spare that pools share, and the device or why it could
//! not be opened. A device that the search did not come upon is looked for at its last path; its label tells
//! whether it is the leaf's (`vdev_validate`). Only then it is opened as the pool's devices are, and kept.
//!
//! A device is open for writing once at a time, and `O_EXCL` tells whether another process has it. A process that
//! has just let go of one may still hold it for a moment, so the set asks again for a while before it says that it
//! is in use.
//!
//! Questions about a device that may hang (its size, whether it is there) are asked by another thread, and answered
//! from what is known.

use crate::claim::{Claim, Claimed};
use crate::config;
use crate::directory::Directory;
use crate::discover::Candidate;
use crate::host;
use cenote_format::label::Uberblock;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_vdev::deadline::{ask, ask_within};
use cenote_vdev::object::is_by_network;
use cenote_vdev::{
    Device, Vdev, VdevError, VdevState, VdevTree, latency, look::Asked, open_device,
    open_device_rw, read_labels, write_heartbeat,
};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How often and how long a device that is let go of is waited for.
const MOST_WAITS: u32 = 100;
const WAIT: Duration = Duration::from_millis(10);
/// The error of a device that does not answer in time.
const NO_ANSWER: ErrorKind = ErrorKind::TimedOut;
/// How long a device of a pool that is in use may take to be opened anew: the pool's writes wait for that.
const ANEW: Duration = Duration::from_secs(30);
/// How often a device is asked for that another process has.
const MOST_TRIES: u32 = 20;

/// Asks for devices again while another process has some, but not for long. Devices of a pool that was
/// exported a moment ago may still be with a thread that reads ahead, and a program that is being
/// started has a copy of every descriptor until it runs.
pub fn patiently<T>(mut ask: impl FnMut() -> T, busy: impl Fn(&T) -> bool) -> T {
    for _ in 1..MOST_TRIES {
        let answer = ask();
        if !busy(&answer) {
            return answer;
        }
        std::thread::sleep(WAIT);
    }
    ask()
}

#[derive(Clone)]
struct Found {
    path: PathBuf,
    /// It is a spare, which other pools may have too: it is opened for reading.
    shared: bool,
    device: Arc<OnceLock<Result<Arc<dyn Device>, ErrorKind>>>,
    /// One thread opens it; others wait.
    opening: Arc<Mutex<()>>,
    /// The question how many bytes it has.
    size: Asked<Result<u64, ErrorKind>>,
    /// The question which pool has it in use, by guid and name, as its labels say.
    user: Asked<Option<(u64, String)>>,
}

impl Found {
    fn new(
        path: PathBuf,
        shared: bool,
        device: OnceLock<Result<Arc<dyn Device>, ErrorKind>>,
    ) -> Found {
        let (opening, size, user) = Default::default();
        Found { path, shared, device: Arc::new(device), opening, size, user }
    }

    /// The device, opened as the devices of a `writable` pool are, unless it is open. One that does not answer is asked
    /// again the next time.
    fn open(&self, opener: &Opener, writable: bool) -> Result<Arc<dyn Device>, ErrorKind> {
        let _turn = self.device.get().is_none().then(|| self.opening.lock());
        if let Some(opened) = self.device.get() {
            return opened.clone();
        }
        let opened = opener.as_tuned(&self.path, writable && !self.shared);
        if opened.as_ref().is_err_and(|kind| *kind == NO_ANSWER) {
            return opened;
        }
        self.device.get_or_init(|| opened).clone()
    }
}

/// The device of one leaf, apart from the other devices: a thread that waits for it holds no other device.
pub struct Apart {
    guid: u64,
    found: Found,
    opener: Opener,
    writable: bool,
}

impl Apart {
    /// Opens the device as the pool's devices are, unless it is open.
    ///
    /// # Errors
    /// It cannot be.
    pub fn open(&self) -> Result<Arc<dyn Device>, ErrorKind> {
        self.found.open(&self.opener, self.writable)
    }
}

/// How the device at a path is opened, for writing or not.
#[derive(Clone)]
pub struct Opener {
    open: Arc<Open>,
    /// By the path of a file or block device of this system.
    of_system: bool,
}

type Open = dyn Fn(&Path, bool) -> io::Result<Arc<dyn Device>> + Send + Sync;

impl Default for Opener {
    /// As a file or block device of this system. One that does not answer in time is not opened
    /// ([`cenote_vdev::deadline`]).
    fn default() -> Opener {
        let opener = Opener::new(|path, writable| {
            ask(path, move |path| {
                let seen = look_at(path)?;
                if writable { open_device_rw(path) } else { Ok(seen) }
            })
        });
        Opener { of_system: true, ..opener }
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").finish_non_exhaustive()
    }
}

impl Opener {
    /// By `open`, which is told whether it will be written to.
    pub fn new(
        open: impl Fn(&Path, bool) -> io::Result<Arc<dyn Device>> + Send + Sync + 'static,
    ) -> Opener {
        Opener { open: Arc::new(open), of_system: false }
    }

    /// Whether the device at a path, of a pool that is in use, does not answer.
    fn waits_for(&self, path: &Path) -> bool {
        let looked = || ask_within(path, ANEW, |path| look_at(path).map(drop));
        self.of_system && looked().is_err_and(|e| e.kind() == NO_ANSWER)
    }

    /// Opens the device at a path.
    ///
    /// # Errors
    /// It cannot be.
    pub fn open(&self, path: &Path, writable: bool) -> io::Result<Arc<dyn Device>> {
        (self.open)(path, writable)
    }

    fn as_tuned(&self, path: &Path, writable: bool) -> Result<Arc<dyn Device>, ErrorKind> {
        self.open(path, writable).map(latency::as_tuned).map_err(|e| e.kind())
    }
}

/// Opens a device for reading, and reads its labels: what can be opened may hang all the same.
fn look_at(path: &Path) -> io::Result<Arc<dyn Device>> {
    let device = open_device(path)?;
    let _ = read_labels(device.as_ref());
    Ok(device)
}

/// The host was silent for so long that another one may have taken the pool.
#[derive(Debug, thiserror::Error)]
#[error("multihost writes have not succeeded in time: another system may have imported the pool")]
pub struct ClaimLost;

/// The devices.
pub struct DeviceSet {
    by_guid: RwLock<HashMap<u64, Found>>,
    /// Devices are opened for writing.
    writable: bool,
    opener: Opener,
    /// Cache devices that are out of use until the pool is imported again, and their states.
    aside: RwLock<HashMap<u64, VdevState>>,
    /// This host's claim of the pool, until it writes heartbeats of its own.
    claim: Mutex<Option<Claim>>,
    /// Leaves whose devices did not answer when they should have been opened, and where.
    silent: Mutex<HashMap<u64, PathBuf>>,
    /// Where devices in stores by network were that are closed: the search was told to look there.
    closed: Mutex<HashMap<u64, PathBuf>>,
}

impl DeviceSet {
    /// The devices of a candidate, spares and cache devices too.
    pub fn new(c: &Candidate, writable: bool) -> DeviceSet {
        let all = c.aux.iter().chain(&c.devices);
        let mut by_guid: HashMap<u64, Found> = HashMap::new();
        for device in all {
            let Some(guid) = device.config.u64("guid") else { continue };
            let open = c.opened.0.get(&guid).cloned();
            let opened = open.map(|device| OnceLock::from(Ok(device))).unwrap_or_default();
            let shared = device.config.u64("state") == Some(config::STATE_SPARE);
            let found = Found::new(device.path.clone(), shared, opened);
            // Of a change of the leaf's guid that was cut short some labels have the one, some the other.
            let others = device.labels.iter().flatten().filter_map(|label| label.u64("guid"));
            for other in others.filter(|other| *other != guid) {
                by_guid.entry(other).or_insert_with(|| found.clone());
            }
            by_guid.insert(guid, found);
        }
        let (opener, aside, claim, silent, closed) = Default::default();
        let by_guid = RwLock::new(by_guid);
        DeviceSet { by_guid, writable, opener, aside, claim, silent, closed }
    }

    /// Devices that are open already, by guid.
    pub fn of_open(
        devices: impl IntoIterator<Item = (u64, PathBuf, Arc<dyn Device>)>,
    ) -> DeviceSet {
        let (by_guid, opener, aside, claim, silent, closed) = Default::default();
        let set = DeviceSet { by_guid, writable: true, opener, aside, claim, silent, closed };
        set.insert(devices);
        set
    }

    /// Devices are opened so from now on.
    pub fn opened_by(self, opener: Opener) -> DeviceSet {
        DeviceSet { opener, ..self }
    }

    /// Adds devices that are open.
    pub fn insert(&self, devices: impl IntoIterator<Item = (u64, PathBuf, Arc<dyn Device>)>) {
        let found = devices.into_iter().map(|(guid, path, device)| {
            (guid, Found::new(path, false, OnceLock::from(Ok(device))))
        });
        self.by_guid.write().extend(found);
    }

    /// Adds a spare, which other pools may have too.
    pub fn share(&self, guid: u64, path: PathBuf) {
        self.by_guid.write().insert(guid, Found::new(path, true, OnceLock::new()));
    }

    /// The device with the guid `had` has the guid `has` from now on.
    pub fn rename(&self, had: u64, has: u64) {
        let mut by_guid = self.by_guid.write();
        if let Some(found) = by_guid.remove(&had) {
            by_guid.insert(has, found);
        }
    }

    /// Whether devices are opened for writing.
    pub fn writable(&self) -> bool {
        self.writable
    }

    fn found(&self, guid: u64) -> Option<Found> {
        self.by_guid.read().get(&guid).cloned()
    }

    /// The device at a path where that of the leaf with this guid may be, and whether its label is
    /// this leaf's. Only then it is opened as the pool's devices are, and stays open, since it is open
    /// for writing once at a time. Otherwise the tree finds out which pool it belongs
    /// to, if to any; nothing can be written to it.
    fn open_at(&self, path: PathBuf, guid: u64) -> Option<(Arc<dyn Device>, bool)> {
        let opened = self.opener.open(&path, false);
        self.note(guid, &path, opened.as_ref().err().map(io::Error::kind));
        let device = opened.ok()?;
        device.forget_cached();
        let labels = read_labels(device.as_ref()).ok().flatten();
        if !labels.is_some_and(|all| all.labels.iter().flatten().any(|label| is_of(label, guid))) {
            return Some((device, false));
        }
        drop(device);
        let opened = self.opener.as_tuned(&path, self.writable);
        self.note(guid, &path, opened.as_ref().err().copied());
        let device = opened.as_ref().ok().cloned();
        let answered = opened.as_ref().err() != Some(&NO_ANSWER);
        let opened = if answered { OnceLock::from(opened) } else { OnceLock::new() };
        let found = Found::new(path, false, opened);
        self.by_guid.write().insert(guid, found);
        let device = device?;
        Some((device, true))
    }

    /// The device at the last path of a leaf that the search did not come upon. What labels say of a store by network is not believed: somebody
    /// else may have written them, and to look there sends credentials of this host.
    fn open_last(&self, guid: u64, leaf: &NvList) -> Option<Arc<dyn Device>> {
        let path = config::path(leaf).filter(|path| !is_by_network(path))?;
        Some(self.open_at(path, guid)?.0)
    }

    /// The device with this guid.
    pub fn open(&self, guid: u64) -> Option<Arc<dyn Device>> {
        let apart = self.apart(guid)?;
        let opened = apart.open();
        self.note_opened(&apart, opened.as_ref().err().copied());
        opened.ok()
    }

    /// What it takes to open the device with this guid, which does not hold the others.
    pub fn apart(&self, guid: u64) -> Option<Apart> {
        let (found, opener, writable) = (self.found(guid)?, self.opener.clone(), self.writable);
        Some(Apart { guid, found, opener, writable })
    }

    /// Notes with which error a device was opened apart, if with one.
    pub fn note_opened(&self, apart: &Apart, error: Option<ErrorKind>) {
        self.note(apart.guid, &apart.found.path, error);
    }

    /// Notes whether the device of a leaf, asked for at a path, does not answer.
    fn note(&self, guid: u64, path: &Path, error: Option<ErrorKind>) {
        if error == Some(NO_ANSWER) {
            self.silent.lock().insert(guid, path.to_path_buf());
        }
    }

    /// Where the device with this guid did not answer when it was to be opened, if it did not.
    pub fn silent(&self, guid: u64) -> Option<PathBuf> {
        self.silent.lock().get(&guid).cloned()
    }

    /// Bytes of the device with this guid, without waiting for it. `None`: it cannot be opened, or has never answered.
    pub fn size(&self, guid: u64) -> Option<u64> {
        self.ask_size(self.found(guid)?).flatten()
    }

    /// Whether the device with this guid can be opened, without waiting for it: no answer is no refusal.
    pub fn is_there(&self, guid: u64) -> bool {
        let there = |found| self.ask_size(found).is_none_or(|size| size.is_some());
        self.found(guid).is_some_and(there)
    }

    /// The name of a pool other than `pool` that has the spare with this guid in use, as far as its labels say, without waiting for it
    /// (`spa_spare_exists`).
    pub fn other_user(&self, guid: u64, pool: u64) -> Option<String> {
        let (found, opener, writable) = (self.found(guid)?, self.opener.clone(), self.writable);
        let asked = found.user.clone();
        let (of, name) = asked.ask(move || {
            let label = read_labels(found.open(&opener, writable).ok()?.as_ref()).ok()??.config;
            let used = label.u64("state") != Some(config::STATE_SPARE);
            let user = label.u64("pool_guid").zip(label.str("name").map(str::to_string));
            user.filter(|_| used)
        })??;
        (of != pool).then_some(name)
    }

    /// `None`: there is no answer yet. In its place `None`: it cannot be opened.
    fn ask_size(&self, found: Found) -> Option<Option<u64>> {
        let (opener, writable, asked) = (self.opener.clone(), self.writable, found.size.clone());
        match asked.ask(move || Ok(found.open(&opener, writable)?.size()))? {
            Err(NO_ANSWER) => None,
            answer => Some(answer.ok()),
        }
    }

    /// A cache device is in this state until the pool is imported again; `None`: in that which it has.
    pub fn set_aside(&self, guid: u64, state: Option<VdevState>) {
        let mut aside = self.aside.write();
        match state {
            Some(state) => drop(aside.insert(guid, state)),
            None => drop(aside.remove(&guid)),
        }
    }

    /// The state that a cache device was [set aside](DeviceSet::set_aside) in.
    pub fn aside(&self, guid: u64) -> Option<VdevState> {
        self.aside.read().get(&guid).copied()
    }

    /// Lets go of the device with this guid, once the reads from it that are under way have ended.
    pub fn forget(&self, guid: u64) {
        let Some(found) = self.by_guid.write().remove(&guid) else { return };
        if is_by_network(&found.path) {
            self.closed.lock().insert(guid, found.path.clone());
        }
        let Some(Ok(device)) = found.device.get() else { return };
        let device = Arc::downgrade(device);
        drop(found);
        for _ in 0..MOST_WAITS {
            if device.strong_count() == 0 {
                return;
            }
            std::thread::sleep(WAIT);
        }
    }

    /// The device of a leaf without an open device, opened anew: where it was, or else at its last path. If
    /// neither is the leaf's, what is there.
    pub fn open_anew(&self, leaf: &Vdev) -> Option<Arc<dyn Device>> {
        let guid = leaf.guid();
        let closed = self.closed.lock().get(&guid).cloned();
        let said = config::path(leaf.config()).filter(|path| !is_by_network(path));
        let places = [self.found(guid).map(|f| f.path).or(closed), said];
        // It is open for writing once at a time.
        self.forget(guid);
        let mut other = None;
        for path in places.into_iter().flatten().filter(|path| !self.opener.waits_for(path)) {
            match self.open_at(path, guid) {
                Some((device, true)) => return Some(device),
                Some((device, false)) => other = Some(device),
                None => {}
            }
        }
        other
    }

    /// Paths of the ones among these devices that another process has open for itself.
    pub fn in_use(&self, guids: impl IntoIterator<Item = u64>) -> Vec<PathBuf> {
        let guids: Vec<u64> = guids.into_iter().collect();
        let ask = || guids.iter().filter_map(|guid| self.busy(*guid)).collect();
        patiently(ask, |busy: &Vec<PathBuf>| !busy.is_empty())
    }

    /// Why the device with this guid, which is there, could not be opened as the pool's are: it is
    /// write-protected, or not for this user. It is not tried again.
    pub fn refusal(&self, guid: u64) -> Option<ErrorKind> {
        let found = self.found(guid)?;
        found.device.get()?.as_ref().err().copied().filter(is_refusal)
    }

    /// The ones among these devices that are there and cannot be opened as the pool's are, with the reason: see
    /// [`DeviceSet::refusal`].
    pub fn refused(&self, guids: impl IntoIterator<Item = u64>) -> Vec<(u64, PathBuf, ErrorKind)> {
        let refused = |guid| {
            let found = self.found(guid)?;
            let kind = found.open(&self.opener, self.writable).err()?;
            is_refusal(&kind).then_some((guid, found.path, kind))
        };
        guids.into_iter().filter_map(refused).collect()
    }

    /// The path of a device that another process has open for itself; the next time it is opened anew.
    fn busy(&self, guid: u64) -> Option<PathBuf> {
        let found = self.found(guid)?;
        found
            .open(&self.opener, self.writable)
            .err()
            .filter(|kind| *kind == ErrorKind::ResourceBusy)?;
        if let Some(found) = self.by_guid.write().get_mut(&guid) {
            found.device = Arc::default();
        }
        Some(found.path)
    }

    /// Sets the path of a leaf to where its device was found.
    pub fn place(&self, leaf: &mut NvList) {
        let found = leaf.u64("guid").and_then(|guid| self.found(guid));
        if let Some(path) = found.as_ref().and_then(|f| f.path.to_str()) {
            config::set(leaf, "path", NvValue::String(path.into()));
        }
    }

    /// The configs in the list `name` of the object directory (`spares`, `l2cache`), with the paths
    /// where their devices were found; empty if the list cannot be read.
    pub fn listed(&self, directory: &Directory, name: &str) -> Vec<NvList> {
        let list = directory.nvlist_of(name).ok().flatten().unwrap_or_default();
        let mut configs = list.lists(name).unwrap_or_default().to_vec();
        configs.iter_mut().for_each(|c| self.place(c));
        configs
    }

    /// As [`DeviceSet::listed`]; devices that the search did not come upon are looked for at their last
    /// paths before.
    pub fn looked_for(&self, directory: &Directory, name: &str) -> Vec<NvList> {
        // Whatever the label of a spare says: it may be in use in another pool.
        let shared = name == "spares";
        self.listed(directory, name).iter().for_each(|c| self.look_at_last_path(c, shared));
        self.listed(directory, name)
    }

    /// Looks for cache devices at their last paths that were not found.
    pub fn look_for_caches(&self, directory: &Directory) {
        self.looked_for(directory, "l2cache");
    }

    /// Takes a spare or cache device that was not found from its last path, if it is there. `shared`: other pools may have it too.
    fn look_at_last_path(&self, config: &NvList, shared: bool) {
        // The path of a distributed spare is its name.
        if config.str("type") == Some("dspare") {
            return;
        }
        let (Some(guid), Some(path)) = (config.u64("guid"), config::path(config)) else { return };
        if self.found(guid).is_some() || is_by_network(&path) {
            return;
        }
        let Ok(device) = self.opener.open(&path, false) else { return };
        let label = read_labels(device.as_ref()).ok().flatten().map(|labels| labels.config);
        if label.is_none_or(|label| label.u64("guid") != Some(guid)) {
            return;
        }
        let found = Found::new(path, shared, OnceLock::new());
        self.by_guid.write().insert(guid, found);
    }

    /// A vdev tree over the devices. A device that the search did not come upon is looked for at
    /// its last path; its labels tell whether it is the right one.
    pub fn build(&self, root: &NvList) -> Result<Arc<VdevTree>, VdevError> {
        VdevTree::build(root, &mut |guid, leaf| {
            self.open(guid).or_else(|| self.open_last(guid, leaf))
        })
    }

    /// Claims the pool, of which `seen` is the best uberblock, for this host: the claim goes into the last slot of all labels. If it is
    /// the best one after `is_best`, it is held by heartbeats until it is [taken](DeviceSet::take_claim). Returns whether
    /// it is; also if there are images that were cut off alone, with which nothing is imported to be written to.
    pub fn claim(&self, seen: &Uberblock, is_best: impl FnOnce(&Uberblock) -> bool) -> bool {
        let now = crate::time::since_1970();
        let claim = host::claim(seen, now.as_secs(), crate::random());
        let guids: Vec<u64> = self.by_guid.read().keys().copied().collect();
        let (begun, mut places) = (host::since_boot(), Vec::new());
        let (mut tried, mut cut) = (false, false);
        for guid in guids {
            let Some(device) = self.open(guid).filter(|device| device.writable()) else { continue };
            let Ok(Some(labels)) = read_labels(device.as_ref()) else { continue };
            // Of an image that was cut off, what is where labels would be is something else.
            if !labels.whole {
                cut = true;
                continue;
            }
            let top = labels.config.list("vdev_tree");
            // Spares and cache devices have no uberblocks.
            let Some(ashift) = top.and_then(|top| top.u64("ashift")) else { continue };
            let ashift = u32::try_from(ashift).unwrap_or(u32::MAX);
            tried = true;
            if write_heartbeat(device.as_ref(), ashift, &claim).is_ok() {
                places.push((device, ashift));
            }
        }
        if cut && !tried {
            return true;
        }
        let is_ours = !places.is_empty() && is_best(&claim);
        if is_ours {
            *self.claim.lock() = Some(Claim::hold(claim, begun, places));
        }
        is_ours
    }

    /// Whether no other host can have taken the pool since this one claimed it; also where none did.
    pub fn keeps_claim(&self) -> bool {
        self.claim.lock().as_ref().is_none_or(Claim::holds)
    }

    /// Takes this host's claim of the pool, which no heartbeats hold from now on; `None` if this host made no claim.
    ///
    /// # Errors
    /// It is lost.
    pub fn take_claim(&self) -> Result<Option<Claimed>, ClaimLost> {
        let Some(claim) = self.claim.lock().take() else { return Ok(None) };
        claim.hand_over().map(Some).ok_or(ClaimLost)
    }

    /// The best uberblock that is on the devices now.
    pub fn newest_uberblock(&self) -> Option<Uberblock> {
        let mut best: Option<Uberblock> = None;
        let guids: Vec<u64> = self.by_guid.read().keys().copied().collect();
        for guid in guids {
            let Some(device) = self.open(guid) else { continue };
            let Ok(Some(labels)) = read_labels(device.as_ref()) else { continue };
            let newest = Uberblock::best(labels.uberblocks.iter().map(|(_, _, ub)| ub)).cloned();
            best = Uberblock::best(best.iter().chain(&newest)).cloned();
        }
        best
    }
}

/// Whether a device that cannot be opened for this reason is there all the same.
fn is_refusal(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied)
}

/// Whether a label may be that of the leaf with this guid: it says so, or did before a mirror or
/// a replacement was taken apart.
fn is_of(label: &NvList, guid: u64) -> bool {
    let original = label.list("vdev_tree").and_then(|tree| tree.u64("orig_guid"));
    [label.u64("guid"), label.u64("top_guid"), original].contains(&Some(guid))
}
