//! Finding pools (`zpool_search_import`): reading the labels of files and devices and putting them
//! together.
//!
//! A search looks at the entries of directories (not below them) and at single files. Of everything
//! that is a block device or a regular file with room for a label, the four labels are read,
//! several devices at a time; of a file without labels, the labels of the partitions in it. Devices whose
//! labels name the same pool guid make a [`Candidate`]. What does not answer in time is named and passed over
//! ([`cenote_vdev::deadline`]). A search inside ([`search_inside`]) reads what has no labels from its beginning to its end; each read has
//! the same time.
//!
//! One device can be seen under several names (links under `/dev/disk`, partitions, copies of an
//! image): the one with the newest label is taken, then one that lacks nothing and may be written to, then the one whose path
//! is the path in its label, then the one with most labels intact, then the one that the search found first.
//!
//! Where the change of a pool's guid was cut short (`spa_change_guid`), labels of one device name both guids: then
//! devices with either are of one pool, whose guid is the one that belongs to the newest uberblock.
//!
//! Invariants: a candidate's devices have distinct guids; its config is what [`config::assemble`]
//! makes of them.

use crate::config::{self, Membership, STATE_DESTROYED};
use crate::error::{ImportError, Target};
use crate::foreign;
use crate::names::DEFAULT_DIRS;
use crate::status::ImportReport;
use cenote_format::nvlist::NvList;
use cenote_vdev::deadline::{self, ask_each, is_silent};
use cenote_vdev::object::is_object;
use cenote_vdev::{
    Device, DeviceLabels, Partition, ReadReq, is_in_image, is_later_part, open_device, partitions,
    path_at, read_labels, sought,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Smallest file that is looked at: it has room for the first two labels. OpenZFS looks at no file
/// below 64 MiB, but an image may have lost its end.
const MIN_DEVICE: u64 = 512 << 10;

/// How old labels may be that an import goes by.
const FRESH: Duration = Duration::from_secs(5);

/// A pool that could be imported, assembled from the labels found.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Name of the pool, by its newest label.
    pub name: String,
    /// Guid of the pool.
    pub guid: u64,
    /// State of the pool: `config::STATE_*`.
    pub state: u64,
    /// Transaction group of the newest label.
    pub txg: u64,
    /// The untrusted config: see [`crate::config`].
    pub config: NvList,
    /// The devices found, each guid once; empty for a pool that a cache file names and whose devices are missing.
    pub devices: Vec<DeviceLabels>,
    /// Spares and cache devices found by the same search: their labels name no pool.
    pub aux: Vec<DeviceLabels>,
    /// Devices that are open already: see [`on_devices`].
    pub opened: Opened,
    /// What did not answer the search in time: devices of the pool may be among them.
    pub silent: Vec<PathBuf>,
    /// When the search began: no label was read before.
    pub looked: Instant,
}

/// Devices that are open already, by guid.
#[derive(Clone, Default)]
pub struct Opened(pub HashMap<u64, Arc<dyn Device>>);

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Candidate {
    /// A pool of which no device was found, by its config in a cache file. It cannot be imported; why not is told
    /// by the report and by the import.
    pub(crate) fn without_devices(name: &str, guid: u64, config: &NvList) -> Candidate {
        Candidate {
            name: name.into(),
            guid,
            state: config::number(config, "state"),
            txg: config::number(config, "txg"),
            config: config.clone(),
            devices: Vec::new(),
            aux: Vec::new(),
            opened: Opened::default(),
            silent: Vec::new(),
            looked: Instant::now(),
        }
    }

    /// Whether the pool was destroyed; such pools are listed and imported only on request (`-D`).
    pub fn is_destroyed(&self) -> bool {
        self.state == STATE_DESTROYED
    }

    /// The pool as its devices have it now, if its labels were read so long ago that another host or program may have
    /// imported it since. `None`: they are fresh, or the devices have been open from then on.
    ///
    /// # Errors
    /// A device does not answer any more; the devices have no such pool any more.
    pub fn read_again(&self) -> Result<Option<Candidate>, ImportError> {
        let open = !self.opened.0.is_empty();
        if open || self.devices.is_empty() || self.looked.elapsed() < FRESH {
            return Ok(None);
        }
        self.read_now().map(Some)
    }

    /// As [`Candidate::read_again`], however fresh the labels are.
    ///
    /// # Errors
    /// As of that.
    pub fn read_now(&self) -> Result<Candidate, ImportError> {
        if self.devices.is_empty() {
            return Ok(self.clone());
        }
        let looked = Instant::now();
        let paths = || self.devices.iter().map(|labels| vec![labels.path.clone()]);
        let answers = ask_each(paths().collect(), deadline::answer(), read_one);
        let (mut members, mut silent) = (Vec::new(), Vec::new());
        for (order, (path, answer)) in paths().flatten().zip(answers).enumerate() {
            match answer {
                Ok(all) => members.extend(all.into_iter().map(|labels| Seen { order, labels })),
                Err(e) if is_silent(&e) => silent.push(path),
                Err(_) => {}
            }
        }
        if !silent.is_empty() {
            let target = Target { name: self.name.clone(), new_name: None };
            return Err(ImportError::Silent { target, paths: silent });
        }
        let same = |c: &Candidate| c.guid == self.guid && c.is_destroyed() == self.is_destroyed();
        let pools = by_pool(members).into_iter();
        let again = pools.filter_map(|devices| candidate(devices, &self.aux)).find(same);
        let again = again.ok_or_else(|| ImportError::NotFound(self.name.clone()))?;
        Ok(Candidate { silent: self.silent.clone(), looked, ..again })
    }

    /// What `zpool import` shows about the pool (`spa_tryimport`): opens its devices and reads its MOS.
    pub fn report(&self) -> ImportReport {
        ImportReport::of(self, crate::host::system_hostid())
    }
}

/// What a search found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The pools, by name, then by guid; destroyed ones too.
    pub candidates: Vec<Candidate>,
    /// Search paths that could not be looked at, and why.
    pub errors: Vec<(PathBuf, String)>,
    /// Images there that are no copies of a disk as it is, or cannot be understood, and what to do about it.
    pub foreign: Vec<(PathBuf, String)>,
    /// Files and devices there that the user may not read.
    pub forbidden: Vec<PathBuf>,
    /// Files, devices and directories that did not answer in time.
    pub silent: Vec<PathBuf>,
}

impl Found {
    /// What could not be looked at, a line each in OpenZFS's words.
    pub fn complaints(&self) -> impl Iterator<Item = String> {
        let line = |path: &Path, why: &str| format!("cannot open '{}': {why}", path.display());
        let reason = |why: &'_ str| why.split(" (os error").next().unwrap_or_default().to_string();
        let errors = self.errors.iter().chain(&self.foreign);
        let errors = errors.map(move |(path, why)| line(path, &reason(why)));
        let forbidden = self.forbidden.iter().map(move |path| line(path, "Permission denied"));
        let silent = self.silent.iter().map(move |path| line(path, "the device does not answer"));
        errors.chain(forbidden).chain(silent)
    }
}

/// The pools in directories and files (the places where OpenZFS looks, if the list is empty), without
/// the destroyed ones.
pub fn discover(paths: &[PathBuf]) -> Vec<Candidate> {
    let mut candidates = search(paths).candidates;
    candidates.retain(|c| !c.is_destroyed());
    candidates
}

/// Everything that is found in directories and files (`zpool_find_config`): see [`discover`].
pub fn search(paths: &[PathBuf]) -> Found {
    search_by(paths, deadline::answer(), None)
}

/// As [`search`], and looks in all that is found without labels of its own for vdevs that begin somewhere in it
/// ([`cenote_vdev::sought`]); they can be read only. `go_on` is told at what it looks, how many bytes of it are done and how
/// many there are, and says whether to go on.
pub fn search_inside(paths: &[PathBuf], go_on: &mut dyn FnMut(&Path, u64, u64) -> bool) -> Found {
    search_by(paths, deadline::answer(), Some(go_on))
}

/// Told how far a search inside is, says whether to go on.
type GoOn<'a> = &'a mut dyn FnMut(&Path, u64, u64) -> bool;

fn search_by(paths: &[PathBuf], limit: Duration, inside: Option<GoOn<'_>>) -> Found {
    let looked = Instant::now();
    let mut found = Found::default();
    let names = match paths {
        [] => default_names(),
        _ => names_in(paths, limit, &mut found),
    };
    let named = by_identity(names, paths, limit, &mut found);
    let firsts: Vec<_> =
        named.iter().filter_map(|(order, names)| Some((*order, names.first()?.clone()))).collect();
    let mut devices = read_all(named, paths, limit, &mut found);
    if let Some(go_on) = inside {
        look_inside(firsts, &mut devices, (go_on, limit), &mut found);
    }
    if paths.is_empty() {
        // Of the places where OpenZFS looks, most are for others.
        found.forbidden.clear();
    }
    let (members, aux): (Vec<_>, Vec<_>) =
        devices.into_iter().partition(|s| Membership::of(&s.labels.config).is_some());
    let aux: Vec<DeviceLabels> = aux.into_iter().map(|s| s.labels).collect();
    let pools = by_pool(members);
    found.candidates = pools.into_iter().filter_map(|devices| candidate(devices, &aux)).collect();
    for candidate in &mut found.candidates {
        (candidate.silent, candidate.looked) = (found.silent.clone(), looked);
    }
    found.candidates.sort_by(|a, b| (&a.name, a.guid).cmp(&(&b.name, b.guid)));
    found
}

/// The pools on devices that are open already, for this caller alone if they are to be written;
/// destroyed ones too. An import uses these devices and opens no others.
pub fn on_devices(devices: &[Arc<dyn Device>]) -> Vec<Candidate> {
    let mut opened = Opened::default();
    let mut members = Vec::new();
    for (order, device) in devices.iter().enumerate() {
        let Ok(Some(labels)) = read_labels(device.as_ref()) else { continue };
        let Some(m) = Membership::of(&labels.config) else { continue };
        opened.0.insert(m.guid, device.clone());
        members.push(Seen { order, labels });
    }
    let found = by_pool(members).into_iter().filter_map(|devices| candidate(devices, &[]));
    found.map(|c| Candidate { opened: opened.clone(), ..c }).collect()
}

/// The pool that a user names by name or by guid.
pub fn find<'a>(candidates: &'a [Candidate], wanted: &str) -> Result<&'a Candidate, ImportError> {
    let guid = wanted.parse::<u64>().ok();
    let mut matching = candidates.iter().filter(|c| match guid {
        Some(guid) => c.guid == guid,
        None => c.name == wanted,
    });
    match (matching.next(), matching.next()) {
        (Some(c), None) => Ok(c),
        (None, _) => Err(ImportError::NotFound(wanted.into())),
        (Some(_), Some(_)) => Err(ImportError::Ambiguous(wanted.into())),
    }
}

/// A device with its labels, and its place in the search order.
struct Seen {
    order: usize,
    labels: DeviceLabels,
}

impl Seen {
    /// How good this name for a device is; greater is better.
    fn merit(&self) -> (u64, bool, bool, usize, std::cmp::Reverse<usize>) {
        let txg = config::number(&self.labels.config, "txg");
        let intact = self.labels.labels.iter().flatten().count();
        let (whole, at_home) = (self.labels.whole, at_home(&self.labels));
        (txg, whole, at_home, intact, std::cmp::Reverse(self.order))
    }
}

/// Whether the device is at the path that its label says.
fn at_home(labels: &DeviceLabels) -> bool {
    let (Some(tree), guid) = (labels.config.list("vdev_tree"), labels.config.u64("guid")) else {
        return false;
    };
    let mut same = false;
    config::for_each_leaf(tree, &mut |leaf| {
        same |= leaf.u64("guid") == guid && config::path(leaf).as_ref() == Some(&labels.path);
    });
    same
}

/// The guids that a device's labels name its pool by, that of the newest first: more than one only where the pool's
/// guid was changed. A pool that was split off is another one.
fn guids(labels: &DeviceLabels) -> Vec<u64> {
    let Some(newest) = Membership::of(&labels.config) else { return Vec::new() };
    let mut guids = vec![newest.pool];
    if labels.config.u64("split_guid").is_some() {
        return guids;
    }
    for m in labels.labels.iter().flatten().filter_map(Membership::of) {
        if (m.guid, m.top) == (newest.guid, newest.top) && !guids.contains(&m.pool) {
            guids.push(m.pool);
        }
    }
    guids
}

/// The devices of each pool, by its guid.
fn by_pool(members: Vec<Seen>) -> Vec<Vec<Seen>> {
    // What a guid was, or is going to be.
    let mut same: BTreeMap<u64, u64> = BTreeMap::new();
    let mut pools: BTreeMap<u64, Vec<Seen>> = BTreeMap::new();
    for seen in members {
        if let [newest, older @ ..] = guids(&seen.labels).as_slice() {
            same.extend(older.iter().map(|guid| (*guid, *newest)));
            pools.entry(*newest).or_default().push(seen);
        }
    }
    for (older, newest) in same {
        let devices = |guid| pools.get(&guid).into_iter().flatten().map(device_guid);
        let known: HashSet<u64> = devices(newest).collect();
        // Of one pool each device has the one guid or the other. With the same devices on both sides it is a copy
        // whose guid was changed, and what it was copied from.
        if devices(older).all(|device| !known.contains(&device)) {
            let rest = pools.remove(&older).unwrap_or_default();
            pools.entry(newest).or_default().extend(rest);
        }
    }
    pools.into_values().collect()
}

fn device_guid(seen: &Seen) -> u64 {
    config::number(&seen.labels.config, "guid")
}

/// The config that the labels make. Where they name the pool by several guids, it is the one that was right when
/// the newest uberblock was written.
fn assembled(devices: &[DeviceLabels]) -> Option<NvList> {
    if devices.iter().all(|labels| guids(labels).len() < 2) {
        return config::assemble(devices);
    }
    let uberblocks = devices.iter().flat_map(|d| d.uberblocks.iter().map(|(_, _, ub)| ub));
    let newest = uberblocks.max_by_key(|ub| ub.rank())?;
    config::assemble_as_of(devices, newest.txg)
}

fn candidate(devices: Vec<Seen>, aux: &[DeviceLabels]) -> Option<Candidate> {
    let mut best: BTreeMap<u64, Seen> = BTreeMap::new();
    for seen in devices {
        let guid = device_guid(&seen);
        match best.get(&guid) {
            Some(other) if other.merit() >= seen.merit() => (),
            _ => drop(best.insert(guid, seen)),
        }
    }
    let devices: Vec<DeviceLabels> = best.into_values().map(|s| s.labels).collect();
    let config = assembled(&devices)?;
    Some(Candidate {
        name: config.str("name")?.to_string(),
        guid: config.u64("pool_guid")?,
        state: config::number(&config, "state"),
        txg: config::number(&config, "txg"),
        config,
        devices,
        aux: aux.to_vec(),
        opened: Opened::default(),
        silent: Vec::new(),
        looked: Instant::now(),
    })
}

/// The names to look at, in search order.
fn names_in(paths: &[PathBuf], limit: Duration, found: &mut Found) -> Vec<PathBuf> {
    let places = paths.iter().map(|path| vec![path.clone()]).collect();
    let list = |path: &Path| match std::fs::metadata(path) {
        _ if is_object(path) => Ok(vec![path.to_path_buf()]),
        Ok(facts) if facts.is_dir() => entries(path),
        Err(e) if !is_in_image(path) => Err(e),
        _ => absolute(path).map(|p| vec![p]),
    };
    let listed =
        ask_each(places, limit, move |path| path.first().map_or(Ok(Vec::new()), |p| list(p)));
    let mut names = Vec::new();
    for (path, listed) in paths.iter().zip(listed) {
        match listed {
            Ok(mut list) => names.append(&mut list),
            Err(e) if is_silent(&e) => found.silent.push(path.clone()),
            Err(e) => found.errors.push((path.clone(), e.to_string())),
        }
    }
    names
}

/// A file's own name in its directory's real path: links to devices keep their names.
fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    let whole = std::path::absolute(path)?;
    match (whole.parent(), whole.file_name()) {
        (Some(dir), Some(name)) => Ok(dir.canonicalize()?.join(name)),
        _ => Ok(whole),
    }
}

/// Whether `name` may be [that](absolute) of a search path.
fn ends_alike(path: &Path, name: &Path) -> bool {
    path.file_name().is_some() && path.file_name() == name.file_name()
}

fn entries(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let dir = dir.canonicalize()?;
    let mut list: Vec<PathBuf> =
        std::fs::read_dir(&dir)?.filter_map(|e| Some(e.ok()?.path())).collect();
    list.sort();
    Ok(list)
}

/// What is in the directories where OpenZFS looks, and all block devices that the kernel knows.
fn default_names() -> Vec<PathBuf> {
    let mut names: Vec<PathBuf> = Vec::new();
    for dir in DEFAULT_DIRS {
        names.extend(entries(Path::new(dir)).unwrap_or_default());
    }
    for disk in entries(Path::new("/sys/block")).unwrap_or_default() {
        let parts = entries(&disk).unwrap_or_default();
        let parts = parts.into_iter().filter(|p| p.join("partition").exists());
        for device in std::iter::once(disk).chain(parts) {
            names.extend(device.file_name().map(|n| Path::new("/dev").join(n)));
        }
    }
    names
}

/// Groups names that lead to the same device; names that cannot be one are left out. Without search `paths` these are those of
/// files; one of the paths may be a file of whatever size.
fn by_identity(
    names: Vec<PathBuf>,
    paths: &[PathBuf],
    limit: Duration,
    found: &mut Found,
) -> Vec<(usize, Vec<PathBuf>)> {
    let (objects, names): (Vec<_>, Vec<_>) =
        names.into_iter().enumerate().partition(|(_, name)| is_object(name));
    let mut groups: Vec<(usize, Vec<PathBuf>)> =
        objects.into_iter().map(|(order, name)| (order, vec![name])).collect();
    let each = names.iter().map(|(_, name)| vec![name.clone()]).collect();
    let looked = ask_each(each, limit, |name| match name.first() {
        Some(name) if is_in_image(name) => Ok(None),
        Some(name) => std::fs::metadata(name).map(Some),
        None => Err(ErrorKind::NotFound.into()),
    });
    let mut index: HashMap<(bool, u64, u64), usize> = HashMap::new();
    for ((order, name), looked) in names.into_iter().zip(looked) {
        let meta = match looked {
            Ok(Some(meta)) => meta,
            Ok(None) => {
                groups.push((order, vec![name]));
                continue;
            }
            Err(e) => {
                found.silent.extend(Some(name).filter(|_| is_silent(&e)));
                continue;
            }
        };
        let block = meta.file_type().is_block_device();
        let is_small =
            || meta.len() < MIN_DEVICE && !paths.iter().any(|path| ends_alike(path, &name));
        if !block && (paths.is_empty() || !meta.is_file() || is_small()) {
            continue;
        }
        let identity = if block { (true, meta.rdev(), 0) } else { (false, meta.dev(), meta.ino()) };
        let at = *index.entry(identity).or_insert(groups.len());
        match groups.get_mut(at) {
            Some((_, names)) => names.push(name),
            None => groups.push((order, vec![name])),
        }
    }
    groups
}

/// Reads the labels of all devices, several at a time; results in search order. Devices that may not be read, or do not
/// answer, are noted in `found`, and those of the search `paths` that cannot be opened or read.
fn read_all(
    groups: Vec<(usize, Vec<PathBuf>)>,
    paths: &[PathBuf],
    limit: Duration,
    found: &mut Found,
) -> Vec<Seen> {
    let asked_for = |name: &PathBuf| {
        if is_object(name) {
            return Some(name.clone());
        }
        let mut alike = paths.iter().filter(|path| ends_alike(path, name));
        alike.find(|path| absolute(path).is_ok_and(|path| path == *name)).cloned()
    };
    let (orders, devices): (Vec<usize>, Vec<Vec<PathBuf>>) = groups.into_iter().unzip();
    let firsts: Vec<_> = devices.iter().map(|names| names.first().cloned()).collect();
    let mut seen = Vec::new();
    for ((order, first), answer) in
        orders.into_iter().zip(firsts).zip(ask_each(devices, limit, read_one))
    {
        match answer {
            Ok(all) => seen.extend(all.into_iter().map(|labels| Seen { order, labels })),
            Err(e) if is_silent(&e) => found.silent.extend(first),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => found.forbidden.extend(first),
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                found.foreign.extend(first.map(|path| (path, e.to_string())));
            }
            Err(e) => {
                let path = first.as_ref().and_then(asked_for);
                found.errors.extend(path.map(|path| (path, e.to_string())));
            }
        }
    }
    found.forbidden.sort();
    seen
}

/// Looks for vdevs inside the devices with these names and orders that have no labels of their own. What else is in
/// `devices` already is not added again. What does not answer is noted in `found`, and passed over.
fn look_inside(
    names: Vec<(usize, PathBuf)>,
    devices: &mut Vec<Seen>,
    (go_on, limit): (GoOn<'_>, Duration),
    found: &mut Found,
) {
    for (order, name) in names {
        let own = |seen: &Seen| seen.order == order && !is_in_image(&seen.labels.path);
        // Nothing more is asked about what does not answer.
        let mut known = found.foreign.iter().map(|(path, _)| path).chain(&found.silent);
        if known.any(|path| *path == name) || is_object(&name) {
            continue;
        }
        if is_in_image(&name) || devices.iter().any(own) {
            continue;
        }
        let device = match deadline::ask_within(&name, limit, open_device) {
            Ok(device) => device,
            Err(e) => {
                found.silent.extend(Some(name).filter(|_| is_silent(&e)));
                continue;
            }
        };
        let device = Asked { device, path: name.clone(), limit, silent: AtomicBool::new(false) };
        if !look_inside_one((order, &device), devices, &mut *go_on, found) {
            break;
        }
        if device.is_silent() {
            found.silent.push(name);
        }
    }
}

/// As [`look_inside`] one device. Whether to go on.
fn look_inside_one(
    (order, device): (usize, &Asked),
    devices: &mut Vec<Seen>,
    go_on: GoOn<'_>,
    found: &mut Found,
) -> bool {
    let (name, total, mut ended) = (&device.path, device.size(), false);
    let sought = sought::vdevs_in(device, &mut |done| {
        ended = ended || !go_on(name, done, total);
        !ended && !device.is_silent()
    });
    if sought.too_many {
        found.foreign.push((name.clone(), "too many places look like labels".into()));
    }
    let tables = partitions(device);
    for begin in sought.begins {
        if ended || !go_on(name, total, total) {
            return false;
        }
        if tables.iter().all(|part| part.start != begin) {
            let labels = |path: &Path| open_device(path).and_then(|d| read_labels(d.as_ref()));
            let labels = deadline::ask_within(&path_at(name, begin), device.limit, labels);
            if labels.as_ref().is_err_and(is_silent) {
                break;
            }
            devices.extend(labels.ok().flatten().map(|labels| Seen { order, labels }));
        }
    }
    !ended
}

/// A device that other threads ask, for so long at most. What did not answer once is not asked again.
struct Asked {
    device: Arc<dyn Device>,
    path: PathBuf,
    limit: Duration,
    silent: AtomicBool,
}

impl Asked {
    fn is_silent(&self) -> bool {
        self.silent.load(Relaxed)
    }
}

impl Device for Asked {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        let places: Vec<(u64, usize)> = reqs.iter().map(|req| (req.offset, req.len)).collect();
        let device = Arc::clone(&self.device);
        let read = move |_: &Path| {
            let mut own: Vec<_> = places.iter().map(|(at, len)| ReadReq::new(*at, *len)).collect();
            device.read_batch(&mut own);
            Ok(own)
        };
        let answer = match self.is_silent() {
            true => Err(ErrorKind::TimedOut.into()),
            false => deadline::ask_within(&self.path, self.limit, read),
        };
        match answer {
            Ok(own) => reqs.iter_mut().zip(own).for_each(|(req, done)| req.result = done.result),
            Err(e) => {
                self.silent.fetch_or(is_silent(&e), Relaxed);
                reqs.iter_mut().for_each(|req| req.result = Some(Err(e.kind().into())));
            }
        }
    }
}

/// The labels of the device that has these names, under the name that its label says, if that is
/// among them; or the labels of its partitions, if it is a file.
///
/// Errors: it cannot be opened or read.
fn read_one(names: &[PathBuf]) -> io::Result<Vec<DeviceLabels>> {
    let Some(first) = names.first() else { return Ok(Vec::new()) };
    if is_later_part(first) {
        return Ok(Vec::new());
    }
    let device = open_device(first)?;
    let Some(mut labels) = read_labels(device.as_ref())? else {
        if is_object(first) || is_in_image(first) || !first.metadata()?.is_file() {
            return Ok(Vec::new());
        }
        let inside = in_partitions(device.as_ref(), first);
        if inside.is_empty()
            && let Some(why) = foreign::complaint(device.as_ref(), first)
        {
            return Err(io::Error::new(ErrorKind::Unsupported, why));
        }
        return Ok(inside);
    };
    for name in names.iter().rev() {
        labels.path.clone_from(name);
        if at_home(&labels) {
            break;
        }
    }
    Ok(vec![labels])
}

/// The labels of the partitions in an image.
fn in_partitions(image: &dyn Device, path: &Path) -> Vec<DeviceLabels> {
    let labels = |partition: &Partition| {
        let device = open_device(&partition.path(path)).ok()?;
        read_labels(device.as_ref()).ok()?
    };
    partitions(image).iter().filter_map(labels).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_vdev::inject::MemDevice;
    use cenote_vdev::latency::{SlowDevice, Slowness};

    /// A device that stops answering while it is looked through is passed over.
    #[test]
    fn a_device_that_falls_silent_is_not_asked_again() {
        let slowness = Slowness { latency: Duration::from_secs(3), ..Slowness::default() };
        let memory = MemDevice::new("falls-silent", vec![7; 64 << 20]);
        let device = Arc::new(SlowDevice::new(memory, slowness));
        let (path, limit) = (PathBuf::from("falls-silent"), Duration::from_millis(300));
        let asked = Asked { device, path, limit, silent: AtomicBool::new(false) };
        let (begun, mut devices, mut found) = (Instant::now(), Vec::new(), Found::default());
        let mut told = 0;
        let go_on = &mut |_: &Path, _, _| {
            told += 1;
            true
        };
        assert!(look_inside_one((0, &asked), &mut devices, go_on, &mut found));
        assert!(asked.is_silent() && begun.elapsed() < Duration::from_secs(2));
        assert!(told <= 2 && devices.is_empty());
        let quick = MemDevice::new("answers", vec![7; 1 << 20]);
        let path = PathBuf::from("answers");
        let asked = Asked { device: quick, path, limit, silent: AtomicBool::new(false) };
        let mut reqs = [ReadReq::new(5, 3), ReadReq::new(1 << 20, 1)];
        asked.read_batch(&mut reqs);
        let [good, bad] = reqs.map(ReadReq::take);
        assert!(good.unwrap().to_vec() == [7; 3] && bad.is_err() && !asked.is_silent());
    }
}
