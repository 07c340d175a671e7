//! Opening a pool (`spa_load`, `spa_ld_*`), for reading; what it takes to write to it as well is in `cenote-engine`.
//!
//! ```text
//! labels ── untrusted config ── vdev tree ── best uberblock ── MOS ── config, complete
//!                                                                       │
//!            datasets, features, properties ── MOS ── vdev tree, devices by guid
//! ```
//!
//! The labels know only part of the pool each, and may be stale; but the MOS is stored three times
//! over, so whatever tree they make is enough to read the complete config from it. The tree is then
//! built anew with devices found by their guids, at the paths where they are now.
//!
//! An import chooses the uberblock with the greatest rank over all labels of all devices. A rewind
//! (`-F`) goes on to earlier ones while the pool does not open; blocks freed in the last
//! [`SAFE_REWIND`] transaction groups are never reused, so that far back is safe, and farther only
//! checksums tell. `-T` starts at a given transaction group. `--rewind-to-checkpoint` looks up the checkpoint in the MOS of what was chosen,
//! and opens the pool anew by that one's uberblock.
//!
//! Invariants: nothing is written; a [`Loaded`] pool has every top-level vdev (but logs the caller
//! gave up), a guid sum that agrees with its uberblock, and no active feature that reading needs
//! and this program does not know.

mod alone;
mod other_hosts;
mod refusal;

pub use alone::{Alone, import_alone};
pub use other_hosts::{activity_check_required, keeps_claim, still_ours};

use crate::checkpoint;
use crate::config;
use crate::devices::DeviceSet;
use crate::directory::Directory;
use crate::discover::Candidate;
use crate::error::{ImportError, MissingVdev, Target};
use crate::features::{PoolFeatures, Unsupported};
use crate::host;
use crate::indirect;
use crate::rewind::Rewind;
use crate::split;
use crate::tunables;
use crate::version;
use cenote_dmu::ObjectSet;
use cenote_dmu::zap::Zap;
use cenote_dsl::Dsl;
use cenote_format::checksum::Salt;
use cenote_format::label::Uberblock;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_store::{Notes, Store};
use cenote_vdev::object::is_object;
use cenote_vdev::{Vdev, VdevError, VdevState, VdevTree};
use other_hosts::{check_activity, check_host};
use refusal::{heed_silence, refused};
use std::cmp::Ordering;
use std::path::PathBuf;
use std::sync::Arc;

/// Transaction groups whose freed blocks are not reused yet (`TXG_DEFER_SIZE`).
const SAFE_REWIND: u64 = 2;

/// How to import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Import under this name.
    pub new_name: Option<String>,
    /// `-t`: the new name counts until the pool is exported; its labels keep the old one.
    pub temporary_name: bool,
    /// `-o readonly=on`: nothing is written, and what cannot be written to can be imported.
    pub readonly: bool,
    /// `-f`: also if another system may have it.
    pub force: bool,
    /// `-R`: directory under which its file systems are mounted.
    pub altroot: Option<PathBuf>,
    /// `-F`: go back to an earlier state if the newest cannot be opened.
    pub rewind: bool,
    /// `-X`: as far back as there are uberblocks.
    pub extreme_rewind: bool,
    /// `-T`: open the state of this transaction group, or of the last one before it.
    pub txg: Option<u64>,
    /// Bytes for a cache of the pool's own; if not given it shares that of the process.
    pub arc_bytes: Option<u64>,
    /// `-m`: also if log devices are missing.
    pub allow_missing_log: bool,
    /// `--rewind-to-checkpoint`: open the state that the pool's checkpoint has.
    pub checkpoint: bool,
    /// The id of this system, if it is not to be looked up.
    pub hostid: Option<u32>,
    /// Do not watch a `multihost=on` pool for activity: for inspection.
    pub skip_activity_check: bool,
    /// Use no cache devices: who inspects a pool (`zdb`) is to see what is on its own devices. Of a pool that is imported for reading.
    pub no_caches: bool,
}

/// A pool whose MOS is open and whose config is complete.
pub struct Loaded {
    /// The config out of the MOS, with the paths where devices were found.
    pub config: NvList,
    /// The blocks.
    pub store: Arc<Store>,
    /// The meta object set.
    pub mos: Arc<ObjectSet>,
    /// The object directory.
    pub directory: Directory,
    /// The features.
    pub features: Arc<PoolFeatures>,
    /// The datasets.
    pub dsl: Arc<Dsl>,
    /// The uberblock that it was opened at.
    pub uberblock: Uberblock,
    /// Bytes that the mappings of removed vdevs take.
    pub mapping_bytes: u64,
}

/// What stopped a pool from being loaded.
#[derive(Debug, Clone)]
pub enum Cause {
    /// The on-disk version is not supported.
    Version(u64),
    /// Something in its config is not supported.
    Unsupported(String),
    /// It can be read as it is asked for, and not be written.
    NotWritable(&'static str),
    /// Features are in use that are not known.
    Features(Vec<Unsupported>),
    /// Top-level vdevs are missing.
    Missing(Vec<MissingVdev>),
    /// Log vdevs are missing.
    MissingLogs(Vec<MissingVdev>),
    /// The guids do not add up to the uberblock's sum.
    GuidSum,
    /// It is damaged.
    Damaged(String),
}

/// A pool that was not loaded, with as much of its tree as was there.
pub struct Failure {
    /// Why.
    pub cause: Cause,
    /// The config and the tree last built: the MOS's if that was read, else the labels'.
    pub tree: Option<(NvList, Arc<VdevTree>)>,
    /// The features, as far as they were read.
    pub features: Option<Arc<PoolFeatures>>,
}

impl From<Cause> for Failure {
    fn from(cause: Cause) -> Failure {
        Failure { cause, tree: None, features: None }
    }
}

fn damaged(e: impl std::fmt::Display) -> Cause {
    Cause::Damaged(e.to_string())
}

fn vdev_failure(e: VdevError) -> Cause {
    match e {
        VdevError::Unsupported(what) => Cause::Unsupported(what),
        e => damaged(e),
    }
}

/// The uberblocks of all labels (`spa_load_best` tries them in turn), best first, one for each transaction group
/// (`vdev_uberblock_load`).
pub fn uberblocks(c: &Candidate) -> Vec<Uberblock> {
    let all = c.devices.iter().flat_map(|d| d.uberblocks.iter().map(|(_, _, ub)| ub));
    let mut list: Vec<Uberblock> = all.filter(|ub| ub.txg > 0).cloned().collect();
    list.sort_by_key(|ub| std::cmp::Reverse(ub.rank()));
    list.dedup_by_key(|ub| ub.txg);
    list
}

/// How to load: the parts of [`ImportOptions`] that matter once an uberblock is chosen.
pub struct LoadOptions {
    /// The name that the pool is imported under.
    pub name: String,
    /// Bytes of a cache of its own; `None`: it shares that of the process.
    pub arc_bytes: Option<u64>,
    /// `-m`: whether log vdevs may be missing.
    pub allow_missing_log: bool,
    /// How many other top-level vdevs may be missing (`spa_missing_tvds_allowed`).
    pub missing_tops: u64,
}

/// Opens the pool at an uberblock (`spa_load_impl`).
pub fn load(
    c: &Candidate,
    devices: &DeviceSet,
    ub: &Uberblock,
    o: &LoadOptions,
) -> Result<Loaded, Failure> {
    check_label(c, ub)?;
    if devices.writable() {
        check_roots(c, ub)?;
    }
    let (config, tree, sum) = trusted_tree(c, devices, ub)?;
    let mut features = None;
    let loaded = match sum == ub.guid_sum {
        true => open_trusted(&config, &tree, ub, o, &mut features),
        false => check_devices(&tree, o).and(Err(Cause::GuidSum)),
    };
    match loaded {
        Ok(loaded) => {
            // Dirty time logs do not know of devices that went away in the last group.
            tree.lag_behind(ub.txg, &|leaf| newest_on(c, leaf.guid()));
            Ok(loaded)
        }
        Err(cause) => Err(Failure { cause, tree: Some((config, tree)), features }),
    }
}

/// The transaction group of the newest uberblock on the device with this guid that is no heartbeat, if the search came upon that.
fn newest_on(c: &Candidate, guid: u64) -> Option<u64> {
    let device = c.devices.iter().find(|device| device.config.u64("guid") == Some(guid))?;
    cenote_vdev::newest_group(device.uberblocks.iter().map(|(.., uberblock)| uberblock))
}

/// Why a pool of which no device was found does not open: each of its top-level vdevs is missing.
pub fn without_devices(c: &Candidate, devices: &DeviceSet) -> Failure {
    let root = c.config.list("vdev_tree").cloned().unwrap_or_default();
    match devices.build(&root) {
        Ok(tree) => Failure {
            cause: Cause::Missing(missing_tops(&tree)),
            tree: Some((c.config.clone(), tree)),
            features: None,
        },
        Err(e) => Failure { cause: vdev_failure(e), tree: None, features: None },
    }
}

/// Refuses to write to a pool in an object store from another group on than the last one that the store has: its index says of that
/// group alone what is alive.
fn check_roots(c: &Candidate, ub: &Uberblock) -> Result<(), Cause> {
    for device in c.devices.iter().filter(|device| is_object(&device.path)) {
        let newest = device.uberblocks.iter().map(|(.., ub)| ub.txg).max();
        match newest.map(|newest| newest.cmp(&ub.txg)) {
            Some(Ordering::Equal) => {}
            Some(Ordering::Greater) => {
                return Err(Cause::NotWritable(
                    "going back to an earlier transaction group of a pool in an object store",
                ));
            }
            _ => {
                return Err(Cause::NotWritable(
                    "a pool with devices that are newer than what its object store has",
                ));
            }
        }
    }
    Ok(())
}

/// What must hold before the MOS is read at all.
fn check_label(c: &Candidate, ub: &Uberblock) -> Result<(), Cause> {
    if !version::is_supported(ub.version) {
        return Err(Cause::Version(ub.version));
    }
    // What an uberblock leads to that is older than the latest sectors that have moved may be overwritten.
    let uberblocks = c.devices.iter().flat_map(|d| d.uberblocks.iter().map(|(.., ub)| ub));
    let latest = Uberblock::best(uberblocks).map_or(ub.raidz_reflow, |latest| latest.raidz_reflow);
    if latest != ub.raidz_reflow && ub.checkpoint_txg == 0 {
        let why = "going back to before sectors of an expanded RAID-Z vdev have moved";
        return Err(Cause::Unsupported(why.into()));
    }
    let needed = c.config.list("features_for_read").map(|l| l.pairs.as_slice()).unwrap_or_default();
    let unknown = needed.iter().filter(|(g, _)| cenote_format::features::by_guid(g).is_none());
    let unknown: Vec<Unsupported> =
        unknown.map(|(g, _)| Unsupported { guid: g.clone(), description: String::new() }).collect();
    if unknown.is_empty() { Ok(()) } else { Err(Cause::Features(unknown)) }
}

/// Opens the MOS at the root block pointer (`spa_ld_open_rootbp`, `spa_ld_mos_init`).
fn open_mos(
    tree: &Arc<VdevTree>,
    ub: &Uberblock,
    arc_bytes: Option<u64>,
) -> Result<(Arc<Store>, Arc<ObjectSet>, Directory), Cause> {
    let store = Store::of_size(tree.clone(), arc_bytes);
    let mos = ObjectSet::open(store.clone(), 0, ub.rootbp).map_err(damaged)?;
    let directory = Directory::open(&mos).map_err(damaged)?;
    Ok((store, mos, directory))
}

/// Reads the complete config through the tree that the labels make, and builds the tree it
/// describes (`spa_ld_trusted_config`, `spa_ld_parse_config`). The last of the three: the sum of guids that the uberblock is
/// to have.
fn trusted_tree(
    c: &Candidate,
    devices: &DeviceSet,
    ub: &Uberblock,
) -> Result<(NvList, Arc<VdevTree>, u64), Failure> {
    let as_of = config::assemble_as_of(&c.devices, ub.txg);
    let labels = as_of.as_ref().unwrap_or(&c.config);
    let untrusted = labels.list("vdev_tree").cloned().unwrap_or_default();
    let tree = devices.build(&untrusted).map_err(vdev_failure)?;
    tree.reflow_at(ub).map_err(vdev_failure)?;
    let read = || {
        let (_, mos, directory) = open_mos(&tree, ub, Some(16 << 20))?;
        let config = directory.nvlist_of("config").map_err(damaged)?;
        let mut config = config.ok_or_else(|| damaged("the MOS holds no config"))?;
        let sum_of = |config: &NvList| config.list("vdev_tree").map_or(0, config::guid_sum);
        let before = sum_of(&config);
        if config.u64("pool_guid") != Some(c.guid) {
            let others = || damaged("the MOS holds another pool's config");
            config = split::taken_over(&config, labels).ok_or_else(others)?;
        }
        // The uberblock of a pool that was split off may be the other pool's still.
        let sum = Some(before).filter(|sum| *sum == ub.guid_sum).unwrap_or(sum_of(&config));
        let Some(mut root) = config.list("vdev_tree").cloned() else {
            return Err(damaged("the MOS's config has no vdev tree"));
        };
        config::for_each_leaf_mut(&mut root, &mut |leaf| devices.place(leaf));
        add_biases(&mos, &mut root);
        let tree = devices.build(&root).map_err(vdev_failure)?;
        tree.reflow_at(ub).map_err(vdev_failure)?;
        config::set(&mut config, "vdev_tree", NvValue::NvList(root));
        Ok((config, tree, sum))
    };
    read().map_err(|cause| Failure {
        // A tree that lacks whole vdevs explains a MOS that cannot be read.
        cause: match (&cause, missing_tops(&tree)) {
            (Cause::Damaged(_), missing) if !missing.is_empty() => Cause::Missing(missing),
            _ => cause,
        },
        tree: Some((c.config.clone(), tree.clone())),
        features: None,
    })
}

/// Notes in the configs of top-level vdevs which class of data they are for. The MOS's config does
/// not say; the vdevs' ZAPs do (`org.zfsonlinux:allocation_bias` in `vdev_zap_top`).
fn add_biases(mos: &Arc<ObjectSet>, root: &mut NvList) {
    let Some((_, NvValue::NvListArray(tops))) =
        root.pairs.iter_mut().find(|(n, _)| n == "children")
    else {
        return;
    };
    for top in tops {
        let zap = top.u64("com.delphix:vdev_zap_top").filter(|n| *n != 0);
        let bias = zap.and_then(|number| {
            let zap = Zap::open(&mos.object(number).ok()?).ok()?;
            zap.lookup(b"org.zfsonlinux:allocation_bias").ok()?
        });
        let Some(bias) = bias else { continue };
        let name = crate::features::text(&bias.bytes());
        config::set(top, "alloc_bias", NvValue::String(name));
    }
}

/// Every top-level vdev must be there, but for those that the caller gives up. A log that was taken
/// offline or faulted by order is not missed.
fn check_devices(tree: &VdevTree, o: &LoadOptions) -> Result<(), Cause> {
    let (logs, others): (Vec<_>, Vec<_>) =
        tree.root().children().iter().filter(|v| is_missing(v)).partition(|v| v.is_log());
    if others.len() as u64 > o.missing_tops {
        return Err(Cause::Missing(others.into_iter().map(|v| describe_missing(v)).collect()));
    }
    let is_lost =
        |v: &&Arc<Vdev>| matches!(v.state(), VdevState::CantOpen(_)) && !v.is_log_left_out();
    let lost = logs.into_iter().filter(is_lost);
    let lost: Vec<MissingVdev> = lost.map(|v| describe_missing(v)).collect();
    if lost.is_empty() || o.allow_missing_log { Ok(()) } else { Err(Cause::MissingLogs(lost)) }
}

/// Opens the pool over the tree of its own config (`spa_ld_open_vdevs`).
fn open_trusted(
    config: &NvList,
    tree: &Arc<VdevTree>,
    ub: &Uberblock,
    o: &LoadOptions,
    seen_features: &mut Option<Arc<PoolFeatures>>,
) -> Result<Loaded, Cause> {
    check_devices(tree, o)?;
    let (store, mos, directory) = open_mos(tree, ub, o.arc_bytes)?;
    let mapping_bytes = indirect::load_all(&mos, &directory, tree).map_err(damaged)?;
    let features = Arc::new(PoolFeatures::load(&directory).map_err(damaged)?);
    *seen_features = Some(features.clone());
    let unknown = features.unsupported(true);
    if !unknown.is_empty() {
        return Err(Cause::Features(unknown));
    }
    if let Some(salt) = salt(&directory).map_err(damaged)? {
        store.set_salt(Salt::new(salt));
    }
    crate::dtl::load_all(&mos, tree);
    let dsl = Dsl::open(mos.clone(), &o.name).map_err(damaged)?;
    Ok(Loaded {
        config: config.clone(),
        store,
        mos,
        directory,
        features,
        dsl,
        uberblock: ub.clone(),
        mapping_bytes,
    })
}

/// The salt of the checksums that have one (`org.illumos:checksum_salt`).
fn salt(directory: &Directory) -> cenote_dmu::Result<Option<[u8; 32]>> {
    let entry = directory.entry("org.illumos:checksum_salt")?;
    Ok(entry.and_then(|e| e.bytes().try_into().ok()))
}

fn is_missing(v: &Vdev) -> bool {
    v.kind() == "missing" || !v.state().readable()
}

fn missing_tops(tree: &VdevTree) -> Vec<MissingVdev> {
    tree.root().children().iter().filter(|v| is_missing(v)).map(|v| describe_missing(v)).collect()
}

fn describe_missing(v: &Vdev) -> MissingVdev {
    let mut devices = Vec::new();
    collect_dead(v, &mut devices);
    MissingVdev {
        id: v.id(),
        name: crate::status::vdev_name(v.config(), &Default::default()),
        guid: v.guid(),
        devices,
    }
}

fn collect_dead(v: &Vdev, out: &mut Vec<(u64, Option<PathBuf>)>) {
    if v.children().is_empty() && !matches!(v.state(), VdevState::Healthy | VdevState::Degraded) {
        out.push((v.guid(), config::path(v.config())));
    }
    v.children().iter().for_each(|c| collect_dead(c, out));
}

/// An import that succeeded.
pub struct Imported {
    /// The pool.
    pub loaded: Loaded,
    /// How far it had to step back; `None`: not at all.
    pub rewind: Option<Rewind>,
    /// The name that it is imported under.
    pub name: String,
    /// Wrong bytes that were met, not counted yet.
    pub notes: Notes,
}

impl Imported {
    /// Counts the wrong bytes that were met. They are healed if the pool is going to be written to, and is
    /// in its newest state: what an older one leads to may have been overwritten.
    pub fn settle(&mut self) {
        let newest = self.rewind.is_none();
        std::mem::take(&mut self.notes).confirm(&self.loaded.store, &|| newest);
    }
}

/// Imports: see the head of this file.
pub fn import(
    c: &Candidate,
    devices: &DeviceSet,
    o: &ImportOptions,
) -> Result<Imported, ImportError> {
    let (newest, list) = take(c, devices, o)?;
    import_taken(c, devices, o, (&newest, &list))
}

/// Takes the devices of a pool that may be imported. Returns its newest uberblock, and all, best first.
fn take(
    c: &Candidate,
    devices: &DeviceSet,
    o: &ImportOptions,
) -> Result<(Uberblock, Vec<Uberblock>), ImportError> {
    let target = Target { name: c.name.clone(), new_name: o.new_name.clone() };
    if let Some(name) = &o.new_name {
        check_name(name).map_err(|why| ImportError::InvalidName { name: name.clone(), why })?;
    }
    if o.checkpoint && !o.readonly && (o.txg.is_some() || o.extreme_rewind) {
        // An earlier state may have a checkpoint that was discarded since, whose space is in use again.
        let what = "going back to the checkpoint of an earlier state".into();
        return Err(ImportError::Unsupported { target, what });
    }
    let version = config::number(&c.config, "version");
    if !version::is_supported(version) {
        return Err(ImportError::Version { name: c.name.clone(), version });
    }
    if c.devices.is_empty() {
        let e = explain(without_devices(c, devices).cause, c, &target);
        return Err(refused(c, devices, e));
    }
    let list = uberblocks(c);
    let newest = list.first().cloned().ok_or_else(|| ImportError::Damaged {
        target: target.clone(),
        why: "no valid uberblock found".into(),
        recovery: None,
    })?;
    check_host(c, &newest, o.hostid.unwrap_or_else(host::system_hostid), o.force)?;
    // This holds for devices that the pool could do without as well: their user may write to the others.
    let paths = devices.in_use(c.devices.iter().filter_map(|d| d.config.u64("guid")));
    if !paths.is_empty() {
        return Err(ImportError::InUse { target, paths });
    }
    Ok((newest, list))
}

/// Imports a pool whose devices are [taken](take), given its uberblocks.
fn import_taken(
    c: &Candidate,
    devices: &DeviceSet,
    o: &ImportOptions,
    (newest, list): (&Uberblock, &[Uberblock]),
) -> Result<Imported, ImportError> {
    let target = Target { name: c.name.clone(), new_name: o.new_name.clone() };
    if !o.skip_activity_check {
        check_activity(c, devices, newest, o.hostid.unwrap_or_else(host::system_hostid))?;
    }
    let chosen = choose(c, devices, list, newest, o, &target);
    let chosen = match o.checkpoint {
        true => chosen.and_then(|chosen| rewound(c, devices, newest, o, chosen)),
        false => chosen,
    };
    let imported = chosen.map_err(|e| refused(c, devices, e))?;
    if devices.writable() && !o.force {
        heed_silence(c, devices, &imported.loaded, target)?;
    }
    Ok(imported)
}

/// Opens the pool as its checkpoint has it, given the pool as it is (`spa_ld_checkpoint_rewind`). The uberblock
/// is newer than all others, so that it is the best once it is on the devices.
fn rewound(
    c: &Candidate,
    devices: &DeviceSet,
    newest: &Uberblock,
    o: &ImportOptions,
    now: Imported,
) -> Result<Imported, ImportError> {
    let target = Target { name: c.name.clone(), new_name: o.new_name.clone() };
    let found = checkpoint::load(&now.loaded.directory);
    let found = found.map_err(|e| explain(damaged(e), c, &target))?;
    let Some(uberblock) = found else { return Err(ImportError::NoCheckpoint(target)) };
    let name = now.name.clone();
    drop(now);
    let seconds = crate::time::since_1970().as_secs();
    let last = || damaged("its last transaction group is the last of all numbers");
    let txg = newest.txg.checked_add(1).ok_or_else(|| explain(last(), c, &target))?;
    let uberblock = Uberblock { txg, timestamp: newest.timestamp.max(seconds), ..uberblock };
    let (loaded, notes) = Store::attempt(|| load(c, devices, &uberblock, &load_options(&name, o)));
    let loaded = loaded.map_err(|failure| explain(failure.cause, c, &target))?;
    // Nothing is healed: the import may still be refused, and the pool's newest state stay.
    notes.confirm(&loaded.store, &|| false);
    Ok(Imported { loaded, rewind: None, name, notes: Notes::default() })
}

/// What of the options matters once an uberblock is chosen.
fn load_options(name: &str, o: &ImportOptions) -> LoadOptions {
    LoadOptions {
        name: name.into(),
        arc_bytes: o.arc_bytes,
        allow_missing_log: o.allow_missing_log,
        missing_tops: if o.readonly { tunables::MAX_MISSING_TVDS.get() } else { 0 },
    }
}

/// Tries uberblocks until one opens or the options allow no more.
fn choose(
    c: &Candidate,
    devices: &DeviceSet,
    list: &[Uberblock],
    newest: &Uberblock,
    o: &ImportOptions,
    target: &Target,
) -> Result<Imported, ImportError> {
    let name = o.new_name.clone().unwrap_or_else(|| c.name.clone());
    let load_options = load_options(&name, o);
    let start = o.txg.unwrap_or(u64::MAX);
    let tried: Vec<&Uberblock> = list.iter().filter(|ub| ub.txg <= start).collect();
    let Some((&first, earlier)) = tried.split_first() else {
        return Err(ImportError::NoTxg { target: target.clone(), txg: start });
    };
    let deep = o.extreme_rewind || o.txg.is_some();
    let floor = if deep { 0 } else { first.txg.saturating_sub(SAFE_REWIND) };
    let done = |loaded: Loaded, notes: Notes, ub: &Uberblock| Imported {
        rewind: (ub.txg != newest.txg).then(|| Rewind::between(newest, ub)),
        loaded,
        name: name.clone(),
        notes,
    };
    let load = |ub: &Uberblock| Store::attempt(|| load(c, devices, ub, &load_options));
    let cause = match load(first) {
        (Ok(loaded), notes) => return Ok(done(loaded, notes, first)),
        (Err(failure), _) => failure.cause,
    };
    if let Cause::Damaged(why) = &cause {
        // As OpenZFS does, one step is taken whatever its size; more only from within the floor.
        let mut last = first;
        for ub in earlier {
            if last.txg < floor {
                break;
            }
            // What came after a checkpoint that the pool went back to may have been overwritten since.
            if last.checkpoint_txg != 0 && !o.extreme_rewind {
                break;
            }
            last = ub;
            let (loaded, notes) = match load(ub) {
                (Ok(loaded), notes) => (loaded, notes),
                (Err(Failure { cause: cause @ Cause::NotWritable(_), .. }), _)
                    if o.rewind || o.txg.is_some() =>
                {
                    return Err(explain(cause, c, target));
                }
                (Err(Failure { cause: Cause::NotWritable(_), .. }), _) => {
                    let hint = "earlier transaction groups may be readable: -o readonly=on -F";
                    let why = format!("{why}; {hint}");
                    return Err(ImportError::Damaged {
                        target: target.clone(),
                        why,
                        recovery: None,
                    });
                }
                (Err(_), _) => continue,
            };
            if o.rewind || o.txg.is_some() {
                return Ok(done(loaded, notes, ub));
            }
            return Err(ImportError::Damaged {
                target: target.clone(),
                why: why.clone(),
                recovery: Some(Rewind::between(newest, ub)),
            });
        }
    }
    Err(explain(cause, c, target))
}

fn explain(cause: Cause, c: &Candidate, target: &Target) -> ImportError {
    let target = target.clone();
    match cause {
        Cause::Version(version) => ImportError::Version { name: c.name.clone(), version },
        Cause::Unsupported(what) => ImportError::Unsupported { target, what },
        Cause::NotWritable(what) => ImportError::NotWritable { target, what: what.into() },
        Cause::Features(features) => ImportError::Features { target, features },
        Cause::Missing(vdevs) => ImportError::MissingDevices { target, vdevs },
        Cause::MissingLogs(vdevs) => ImportError::MissingLogs { target, vdevs },
        Cause::GuidSum => ImportError::MissingDevices { target, vdevs: vec![] },
        Cause::Damaged(why) => ImportError::Damaged { target, why, recovery: None },
    }
}

/// The rules for names of pools; the message says which is broken (`pool_namecheck`).
fn check_name(name: &str) -> Result<(), String> {
    let bad = name.chars().find(|c| !(c.is_ascii_alphanumeric() || "-_.: ".contains(*c)));
    if name.len() >= 256 {
        return Err("name is too long".into());
    }
    if let Some(c) = bad {
        return Err(format!("invalid character '{c}' in pool name"));
    }
    let mut chars = name.chars();
    let first = chars.next();
    if !first.is_some_and(|c| c.is_ascii_alphabetic()) {
        return Err("name must begin with a letter".into());
    }
    if first == Some('c') && chars.next().is_some_and(|c| c.is_ascii_digit()) {
        return Err("pool name is reserved".into());
    }
    let reserved = ["mirror", "raidz", "draid", "spare"];
    if name == "log" || reserved.iter().any(|r| name.starts_with(r)) {
        return Err("name is reserved".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["tank", "a-b_c.d:e f", "cache", "logs"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in ["", "1tank", "c0pool", "mirror1", "log", "a/b", "a@b"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rewinds_say_what_is_lost() {
        let r = Rewind { from_txg: 9, to_txg: 7, to_time: 0, lost_seconds: 300 };
        let time = |seconds: u64| format!("<{seconds}>");
        assert_eq!(
            r.done("tank", &time),
            "Pool tank returned to its state as of <0>.\n\
             Discarded approximately 5 minutes of transactions.\n"
        );
        let explained = r.explain("tank", &time);
        assert!(explained.contains("zpool import -F tank") && explained.contains("as of <0>\n"));
        let r = Rewind { lost_seconds: 30, ..r };
        assert!(r.explain("tank", &time).contains("Approximately 30 seconds of data\n"));
    }
}
