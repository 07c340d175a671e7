//! The assembled pool: finding pools, importing them, their health, properties and history.
//!
//! Floor 5 of cenote: below it devices, blocks, objects and datasets; above it file systems and the
//! commands.
//!
//! ```text
//! discover ── Candidate ──┬── report ── ImportReport        (zpool import)
//!                         └── Pool::import ── Pool ──┬── get, get_all      (zpool get)
//!                                                    ├── status            (zpool status)
//!                                                    ├── data_errors       (zpool status -v)
//!                                                    ├── history           (zpool history)
//!                                                    └── dsl, mos, store   (the floors below)
//! ```
//!
//! | room | what |
//! |---|---|
//! | [`discover`](mod@discover) | labels of files and devices, put together to pools |
//! | [`devices`], [`reopen`] | the devices of a pool; those that come back |
//! | [`caches`] | cache devices: which are used |
//! | [`cachefile`] | files that name imported pools |
//! | [`config`], [`surgery`] | the nvlists that describe a pool and its vdevs; how they change |
//! | [`import`] | choosing an uberblock, reading the MOS, rewinding |
//! | [`host`], [`claim`] | host ids, multihost protection |
//! | [`features`], [`compat`], [`version`] | feature flags, compatibility sets, and versions from before them |
//! | [`indirect`], [`dtl`] | mappings of removed vdevs; what stale devices lack |
//! | [`status`], [`scan`], [`rebuild`], [`errlog`] | health, scrubs, sequential rebuilds, data errors |
//! | [`props`], [`savings`] | pool properties, deduplication and cloning figures |
//! | [`history`] | the log of commands |
//! | [`vdev_figures`], [`vdev_props`] | sizes, space and properties of single vdevs |
//! | [`spacemap`], [`logsm`], [`metaslab`] | free space |
//! | [`brt`], [`ddt`], [`ddt_stats`] | tables of cloned and of deduplicated blocks |

pub mod brt;
pub mod cachefile;
pub mod caches;
pub mod checkpoint;
pub mod claim;
pub mod compat;
pub mod config;
pub mod config_write;
pub mod ddt;
pub mod ddt_stats;
pub mod devices;
pub mod diagnosis;
pub mod directory;
pub mod discover;
pub mod dtl;
pub mod errlog;
pub mod error;
pub mod events;
pub mod expansion;
pub mod features;
mod foreign;
pub mod history;
pub mod host;
pub mod import;
pub mod indirect;
pub mod logsm;
pub mod metaslab;
mod names;
pub mod props;
pub mod rebuild;
pub mod reopen;
mod rewind;
pub mod savings;
pub mod scan;
pub mod spacemap;
pub mod split;
pub mod status;
pub mod surgery;
pub mod time;
pub mod tunables;
pub mod txg_times;
pub mod vdev_figures;
pub mod vdev_props;
pub mod version;

pub use discover::{Candidate, discover};
pub use error::ImportError;
pub use import::ImportOptions;
pub use names::DEFAULT_DIRS;
pub use rewind::Rewind;
pub use status::{ImportReport, PoolStatus};

use crate::devices::DeviceSet;
use crate::directory::Directory;
use crate::features::PoolFeatures;
use crate::import::{Imported, Loaded};
use crate::metaslab::{AllocClass, PoolSpace};
use crate::savings::Savings;
use crate::scan::Pass;
use crate::status::ConfigTree;
use cenote_dmu::{ObjectSet, Result};
use cenote_dsl::Dsl;
use cenote_format::label::Uberblock;
use cenote_format::nvlist::NvList;
use cenote_store::Store;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// An imported pool, as it is after one transaction group. What is being written is in
/// `cenote-engine`, which hands out a new one after each.
pub struct Pool {
    name: String,
    guid: u64,
    load_guid: u64,
    altroot: Option<PathBuf>,
    rewind: Option<Rewind>,
    loaded: Loaded,
    readonly: bool,
    space: OnceLock<Option<PoolSpace>>,
    embedded_logs: BTreeMap<u64, Option<u64>>,
    savings: OnceLock<Option<Savings>>,
    spares: Vec<NvList>,
    caches: Vec<NvList>,
    devices: Arc<DeviceSet>,
    scan: Arc<Mutex<Option<Pass>>>,
}

impl Pool {
    /// Imports a pool read-only.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import(
        candidate: &Candidate,
        options: &ImportOptions,
    ) -> std::result::Result<Arc<Pool>, ImportError> {
        if !options.readonly {
            let (name, new_name) = (candidate.name.clone(), options.new_name.clone());
            return Err(ImportError::ReadWrite(error::Target { name, new_name }));
        }
        let devices = Arc::new(DeviceSet::new(candidate, false));
        let mut imported = import::import(candidate, &devices, options)?;
        imported.settle();
        let pool = Pool::around(Origin::of(candidate, options), imported, devices);
        pool.tell_dsl();
        // An inspection must see what is on the pool's own devices.
        if !options.no_caches {
            pool.use_caches(&pool.store().l2arc().alone());
        }
        events::learn(&pool);
        events::Sysevent::of_pool("pool_import").post(pool.store());
        Ok(Arc::new(pool))
    }

    /// The pool, given what was imported and settled.
    pub fn around(origin: Origin, imported: Imported, devices: Arc<DeviceSet>) -> Pool {
        let loaded = imported.loaded;
        // What was met on the way to an open pool is no error of its data.
        loaded.store.forget_errors(|_| true);
        events::register(&imported.name, &loaded.store);
        Pool {
            guid: origin.guid,
            load_guid: random(),
            altroot: origin.altroot,
            readonly: origin.readonly,
            rewind: imported.rewind,
            spares: devices.looked_for(&loaded.directory, "spares"),
            caches: devices.looked_for(&loaded.directory, "l2cache"),
            name: imported.name,
            loaded,
            space: OnceLock::new(),
            embedded_logs: BTreeMap::new(),
            savings: OnceLock::new(),
            devices,
            scan: Arc::default(),
        }
    }

    /// The same pool after another transaction group. `embedded_logs`: of each vdev the metaslab that is kept for
    /// intent logs.
    pub fn after(&self, loaded: Loaded, embedded_logs: BTreeMap<u64, Option<u64>>) -> Pool {
        Pool {
            name: self.name.clone(),
            guid: config::number(&loaded.config, "pool_guid"),
            load_guid: self.load_guid,
            altroot: self.altroot.clone(),
            readonly: self.readonly,
            rewind: self.rewind,
            spares: self.devices.listed(&loaded.directory, "spares"),
            caches: self.devices.listed(&loaded.directory, "l2cache"),
            loaded,
            space: OnceLock::new(),
            embedded_logs,
            savings: OnceLock::new(),
            devices: self.devices.clone(),
            scan: self.scan.clone(),
        }
    }

    /// Tells the datasets where they are mounted.
    pub fn tell_altroot(&self) {
        let altroot = self.altroot.as_ref().and_then(|p| p.to_str()).map(String::from);
        self.dsl().set_altroot(altroot);
    }

    /// Tells the datasets how large the pool is and where it is mounted.
    fn tell_dsl(&self) {
        self.tell_altroot();
        let Some(space) = self.space() else { return };
        let vdevs = self.store().vdevs();
        let of = |class| space.deflated(class, &vdevs);
        self.dsl().set_pool_space(cenote_dsl::PoolSpace {
            normal: of(AllocClass::Normal).size,
            nonallocating: space.deflated_non_allocating(AllocClass::Normal, &vdevs).size,
            embedded_log: of(AllocClass::EmbeddedLog).size,
            special_allocated: of(AllocClass::Special).alloc + of(AllocClass::Dedup).alloc,
            // Of savings that are not known none are counted.
            dedup_saved: self.savings().map_or(0, Savings::dedup_saved),
            clone_saved: self.savings().map_or(0, |savings| savings.clone_saved),
            checkpoint: self
                .checkpoint_space()
                .inspect_err(|e| tracing::warn!(pool = self.name, "space of the checkpoint: {e}"))
                .unwrap_or(0),
        });
    }

    /// The name that the pool is imported under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pool's guid.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// A number that is new with every import (`load_guid`).
    pub fn load_guid(&self) -> u64 {
        self.load_guid
    }

    /// The blocks.
    pub fn store(&self) -> &Arc<Store> {
        &self.loaded.store
    }

    /// The meta object set.
    pub fn mos(&self) -> &Arc<ObjectSet> {
        &self.loaded.mos
    }

    /// The datasets.
    pub fn dsl(&self) -> &Arc<Dsl> {
        &self.loaded.dsl
    }

    /// The config out of the MOS, with the paths where devices were found.
    pub fn config(&self) -> &NvList {
        &self.loaded.config
    }

    /// The uberblock that the pool was opened at.
    pub fn uberblock(&self) -> &Uberblock {
        &self.loaded.uberblock
    }

    /// Its version: see [`version`].
    pub fn version(&self) -> u64 {
        self.loaded.uberblock.version
    }

    /// The features enabled.
    pub fn features(&self) -> &Arc<PoolFeatures> {
        &self.loaded.features
    }

    /// The directory under which the pool's file systems are mounted.
    pub fn altroot(&self) -> Option<&Path> {
        self.altroot.as_deref()
    }

    /// How far the import had to step back; `None`: not at all.
    pub fn rewind(&self) -> Option<&Rewind> {
        self.rewind.as_ref()
    }

    /// Free space by vdev and metaslab; `None` if it could not be read.
    pub fn space(&self) -> Option<&PoolSpace> {
        let load = || {
            let has_checkpoint = self.features().is_active("zpool_checkpoint");
            PoolSpace::load(self.mos(), &self.loaded.config)
                .map(|space| space.keeping(&self.embedded_logs))
                .map(|space| if has_checkpoint { space } else { space.without_checkpoint() })
                .inspect_err(|e| tracing::warn!(pool = self.name, "free space is not known: {e}"))
                .ok()
        };
        self.space.get_or_init(load).as_ref()
    }

    /// What deduplication and block cloning save; `None`: it could not be read.
    pub fn savings(&self) -> Option<&Savings> {
        let load = || {
            Savings::load(self.mos(), &self.loaded.directory, &self.store().vdevs())
                .inspect_err(|e| tracing::warn!(pool = self.name, "savings are not known: {e}"))
                .ok()
        };
        self.savings.get_or_init(load).as_ref()
    }

    /// Bytes that block cloning saves; the deduplication tables are not read for it. `None`: it could not be read.
    pub fn clone_saved(&self) -> Option<u64> {
        let vdevs = self.store().vdevs().root().children().len() as u64;
        let saved = |tables: Vec<brt::Table>| {
            let sum = ddt_stats::sum(tables.iter().map(|table| table.saved));
            sum.ok_or_else(|| brt::uncountable(self.mos()))
        };
        brt::load(self.mos(), vdevs)
            .and_then(saved)
            .inspect_err(|e| tracing::warn!(pool = self.name, "savings are not known: {e}"))
            .ok()
    }

    /// Whether nothing can be changed: it was imported read-only.
    pub fn readonly(&self) -> bool {
        self.readonly
    }

    /// Configs of the hot spares.
    pub fn spares(&self) -> &[NvList] {
        &self.spares
    }

    /// Configs of the cache devices.
    pub fn caches(&self) -> &[NvList] {
        &self.caches
    }

    /// `ONLINE`, `DEGRADED`, …
    pub fn health(&self) -> &'static str {
        let vdevs = self.store().vdevs();
        let root = vdevs.root();
        status::state_name(root.state())
    }

    /// What `zpool status` shows.
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub fn status(&self) -> Result<PoolStatus> {
        PoolStatus::of(self)
    }

    /// The records of the pool's history, oldest first: see [`history::format_record`].
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn history(&self) -> Result<Vec<NvList>> {
        history::read(self.directory())
    }

    /// The records of the pool's history behind this place in it, and the place behind them all; without a place
    /// the latter only.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn history_since(&self, place: Option<u64>) -> Result<(Vec<NvList>, u64)> {
        history::read_since(self.directory(), place)
    }

    /// Bytes that only the checkpoint holds.
    pub fn checkpoint_space(&self) -> Result<u64> {
        let (mut bytes, mut seen) = (0u64, HashSet::new());
        for v in self.space().into_iter().flat_map(|s| &s.vdevs).filter(|v| v.checkpoint_map != 0) {
            let region = spacemap::Region::new(0, v.asize, v.ashift);
            let map = spacemap::SpaceMap::open(self.mos(), v.checkpoint_map, region)?;
            let (object, alloc) = (v.checkpoint_map, map.phys().alloc);
            let more = bytes.checked_add(alloc.unsigned_abs());
            // The map records frees only, so what it says is allocated is not above zero. Only where blocks are there is one.
            let has_blocks = v.concrete && v.metaslab_array != 0;
            match more.filter(|_| has_blocks && alloc <= 0 && seen.insert(object)) {
                Some(more) => bytes = more,
                None => {
                    let why = format!("checkpoint's space map of vdev {}: {alloc} bytes", v.id);
                    return Err(cenote_dmu::Error::Corrupt {
                        objset: self.mos().id(),
                        object,
                        why,
                    });
                }
            }
        }
        Ok(bytes)
    }

    /// Bytes by which devices have grown without being used (`expandsize`, `metaslab_class_expandable_space`); 0, too, if they
    /// are so large that the sum is no number.
    pub fn expandable(&self) -> u64 {
        let vdevs = self.store().vdevs();
        ddt_stats::sum(vdevs.root().children().iter().map(|v| expandable(v))).unwrap_or(0)
    }

    /// Bytes charged to a hidden directory below the root: `$FREE`, `$LEAK`.
    pub fn directory_used(&self, name: &str) -> u64 {
        let find = || {
            let dsl = self.dsl();
            let root = dsl.find(dsl.pool_name()).ok()??;
            let children = cenote_dmu::zap::Zap::open(&self.mos().object(root.dir.children).ok()?);
            let object = self.mos().object(children.ok()?.u64(name.as_bytes()).ok()??).ok()?;
            cenote_format::dsl::DslDirPhys::decode(&object.bonus()).ok()
        };
        find().map_or(0, |dir| dir.used)
    }

    /// What is known of the scan that is under way since the pool was imported; `None`: nothing is scanned.
    pub fn scan_pass(&self) -> Option<Pass> {
        *self.scan.lock()
    }

    /// Changes what is known of the scan under way. This view of the pool and all later ones tell it.
    pub fn note_scan(&self, change: impl FnOnce(&mut Option<Pass>)) {
        change(&mut self.scan.lock());
    }

    /// The object directory.
    pub fn directory(&self) -> &Directory {
        &self.loaded.directory
    }

    /// Bytes that the mappings of removed vdevs take.
    pub fn mapping_bytes(&self) -> u64 {
        self.loaded.mapping_bytes
    }

    /// The devices that the pool was opened with, and those that joined since.
    pub fn devices(&self) -> &Arc<DeviceSet> {
        &self.devices
    }

    /// Whether a spare can step in: its device is there, or it is a distributed one and its vdev works.
    pub(crate) fn has_spare(&self, config: &NvList) -> bool {
        if config.str("type") != Some("dspare") {
            return self.has_device(config);
        }
        let top = self.store().vdevs().find(config::number(config, "top_guid"));
        top.is_some_and(|top| top.state().readable())
    }

    pub(crate) fn has_device(&self, config: &NvList) -> bool {
        self.devices.is_there(config::number(config, "guid"))
    }

    /// Bytes of the device of a spare or cache device; `None` if it cannot be opened, or has never answered.
    pub fn device_size(&self, config: &NvList) -> Option<u64> {
        self.devices.size(config::number(config, "guid"))
    }

    /// The vdevs with their states, spares and cache devices too.
    pub fn tree(&self) -> ConfigTree {
        ConfigTree::of_pool(self)
    }
}

/// Where a pool comes from.
pub struct Origin {
    /// Its guid.
    pub guid: u64,
    /// The directory under which its file systems are mounted (`-R`).
    pub altroot: Option<PathBuf>,
    /// Whether nothing of it can be changed.
    pub readonly: bool,
}

impl Origin {
    /// Of a pool that is imported.
    pub fn of(candidate: &Candidate, options: &ImportOptions) -> Origin {
        let altroot = options.altroot.clone();
        Origin { guid: candidate.guid, altroot, readonly: options.readonly }
    }
}

/// A random number, from the entropy that hash maps are seeded with.
fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// What a top-level vdev could grow by, in whole metaslabs: the smallest growth of its devices,
/// times their number for RAID-Z. Nothing, where a device does not say how large it is by now.
pub fn expandable(top: &cenote_vdev::Vdev) -> u64 {
    let shift = config::number(top.config(), "metaslab_shift").min(63);
    let usable = |v: &cenote_vdev::Vdev| {
        let size = v.seen()?.size;
        size.checked_sub(cenote_format::LABEL_START + cenote_format::label::LABEL_END)
    };
    let smallest = |children: &[Arc<cenote_vdev::Vdev>]| {
        children.iter().map(|c| usable(c)).collect::<Option<Vec<_>>>()?.into_iter().min()
    };
    let children = top.children();
    let now = match top.kind() {
        _ if children.is_empty() => usable(top),
        "raidz" => smallest(children).and_then(|s| s.checked_mul(children.len() as u64)),
        _ => smallest(children).and_then(|s| top.draid().map_or(Some(s), |shape| shape.asize(s))),
    };
    let growth = now.and_then(|n| n.checked_sub(top.asize())).unwrap_or(0);
    growth >> shift << shift
}
