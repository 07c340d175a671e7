//! Making and importing pools of disks in memory, and OpenZFS's judgement of them.
//!
//! # Idea
//!
//! A [`Lab`] stands in the place of the system's devices: engines find, open and create pools on its disks by their names. In order
//! (the default) an engine does everything in the calling threads, its clock stands still, and its random numbers follow from the
//! transaction group that it begins with: a seed leads to the same history each time.
//!
//! # Judgement
//!
//! | function | question | judge |
//! |---|---|---|
//! | `judge` | leaks, double allocations, checksums; metaslabs and log space maps are what this program reads | OpenZFS's `zdb` |
//! | `judge_newer` | the same of pools that only a newer OpenZFS knows | a newer `zdb`, if there is one |
//! | `account` | each block is counted once, and all that is allocated is found | this program |
//! | `hand_over` | OpenZFS imports the pool for writing, syncs and exports it | OpenZFS's engine with assertions |
//!
//! OpenZFS 2.1 does not write to a pool with cloned blocks or with fast deduplication tables, and its `zdb` sees no leaks there.
//! `account_for_clones` checks those, and a newer `zdb`, if there is one.
//! Images of a pool that fails are kept, and the error says where.

use super::disk::{Disk, Image, Journal};
use super::driver::time;
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::outside::{Chance, Clock, Outside, Timer};
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dsl::crypt::KeyFormat;
use cenote_dsl::write::crypt::{Encryption, RootKey};
use cenote_engine::change::{Contents, Format};
use cenote_engine::create::{
    CreateError, CreateSpec, FIRST_TXG, Layout, LeafKind, OpenDevices, Opened, Prepared,
    Redundancy, SystemDevices, VdevSpec, prepare,
};
use cenote_engine::{CreateRequest, Engine, EngineOptions};
use cenote_format::crypt::{Suite, WrappingKey};
use cenote_inspect::traverse::{self, Options, Subject, Verify};
use cenote_pool::devices::Opener;
use cenote_pool::discover::{Candidate, on_devices};
use cenote_pool::error::Target;
use cenote_pool::features::{FeatureChoice, choose_features};
use cenote_pool::logsm::LogSpaceMap;
use cenote_pool::metaslab::{Metaslab, PoolSpace, VdevSpace};
use cenote_pool::{ImportError, ImportOptions, Pool};
use cenote_testpools::{LogSaid, MetaslabSaid, SpaceSaid};
use cenote_vdev::Device;
use cenote_vdev::object::is_object;
use cenote_zpl::{CreateProps, format};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The pool's name.
pub const POOL: &str = "tank";

/// What a pool is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How its disks are put together: all in one vdev, or each by itself.
    pub redundancy: Redundancy,
    /// Number of disks.
    pub disks: usize,
    /// `ashift`.
    pub ashift: u64,
    /// Bytes of each.
    pub size: u64,
}

/// What a pool does about log space maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logs {
    /// It has the feature from the beginning.
    On,
    /// It never gets it.
    Off,
    /// It gets it while it is in use.
    Midway,
}

/// How engines hold changes back.
#[derive(Clone, Debug)]
pub struct Throttle {
    /// Most dirty bytes.
    pub dirty_max: u64,
    /// Longest time that changes wait in the open transaction group.
    pub txg_timeout: Duration,
    /// The time that passes while they wait.
    pub timer: Timer,
}

impl Default for Throttle {
    /// Nothing happens unless it is asked for.
    fn default() -> Throttle {
        let (dirty_max, txg_timeout) = (1 << 30, Duration::from_secs(1 << 20));
        Throttle { dirty_max, txg_timeout, timer: Timer::simulated() }
    }
}

/// The key of encrypted pools.
fn key() -> WrappingKey {
    WrappingKey::from_hex("5a".repeat(32).as_bytes()).unwrap()
}

/// Loads the key of a pool, if it is encrypted.
fn load_key(pool: &Pool) -> Result<(), String> {
    let root = pool.dsl().root().map_err(|e| e.to_string())?;
    match pool.dsl().crypto_key(&root).map_err(|e| e.to_string())? {
        Some(_) => pool.dsl().load_key(&root, key()).map_err(|e| e.to_string()),
        None => Ok(()),
    }
}

/// A clock that stands still, and numbers that look random but come again.
fn repeated(seed: u64) -> Outside {
    let rng = Mutex::new(SmallRng::seed_from_u64(seed));
    let chance = Chance::new(move || Ok(rng.lock().random()));
    Outside { clock: Clock::new(|| time(0)), timer: Timer::simulated(), chance }
}

/// Disks, and devices in object stores.
#[derive(Clone)]
pub struct Lab {
    disks: Vec<Arc<dyn Device>>,
    /// What devices in object stores are called.
    objects: Vec<PathBuf>,
    in_order: bool,
    throttle: Throttle,
    /// Features that new pools lack.
    without: Vec<&'static str>,
    /// New pools are encrypted: the root file system is an encryption root. Its key is loaded wherever one is imported.
    encrypted: bool,
}

impl OpenDevices for Lab {
    fn find(&self, name: &Path) -> io::Result<(PathBuf, Opened)> {
        if is_object(name) {
            return SystemDevices.find(name);
        }
        let at = self.disks.iter().position(|d| d.path() == name);
        let identity = (0, at.ok_or(io::ErrorKind::NotFound)? as u64);
        let facts = Opened { kind: LeafKind::File, identity, logical_shift: 9, physical_shift: 9 };
        Ok((name.to_path_buf(), facts))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        if is_object(path) {
            return SystemDevices.open(path);
        }
        let found = self.disks.iter().find(|d| d.path() == path);
        found.cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn open_rw(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        if is_object(path) { SystemDevices.open_rw(path) } else { self.open(path) }
    }
}

impl Lab {
    /// With these disks.
    pub fn new(disks: Vec<Arc<dyn Device>>) -> Lab {
        let (objects, without, encrypted) = Default::default();
        Lab { disks, objects, in_order: true, throttle: Throttle::default(), without, encrypted }
    }

    /// With a device in an object store as well; [`cenote_vdev::object::provide`] says where it is.
    pub fn with_object(mut self, name: &Path) -> Lab {
        self.objects.push(name.to_path_buf());
        self
    }

    /// Pools that are made here lack this feature.
    pub fn without(mut self, feature: &'static str) -> Lab {
        self.without.push(feature);
        self
    }

    /// Pools that are made here are encrypted, or not.
    pub fn encrypted(self, encrypted: bool) -> Lab {
        Lab { encrypted, ..self }
    }

    /// Engines hold changes back so.
    pub fn throttled(self, throttle: Throttle) -> Lab {
        Lab { throttle, ..self }
    }

    /// How engines work here: if in order everything in the calling threads, with guids and salts that
    /// are the same in every run for an engine that begins at this transaction group.
    fn options(&self, txg: u64) -> EngineOptions {
        let Throttle { dirty_max, txg_timeout, timer } = self.throttle.clone();
        let outside = if self.in_order { repeated(txg) } else { Outside::default() };
        let lab = self.clone();
        EngineOptions {
            outside: Outside { timer, ..outside },
            opener: Opener::new(move |path, writable| match writable {
                true => lab.open_rw(path),
                false => lab.open(path),
            }),
            txg_timeout: Some(txg_timeout),
            dirty_max: Some(dirty_max),
            free_budget: Some(40),
            replay: cenote::contents::replayer(),
            deterministic: self.in_order,
            ..EngineOptions::default()
        }
    }

    /// Engines work on all processors, as they do for users; a seed leads to one result no longer.
    pub fn on_all_processors(self) -> Lab {
        Lab { in_order: false, ..self }
    }

    /// Its disks.
    pub fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.disks.iter().map(|d| d.path().to_path_buf())
    }

    /// Makes a pool of the first disks.
    ///
    /// # Errors
    /// A disk failed.
    pub fn create(&self, shape: &Shape) -> Result<Arc<Engine>, CreateError> {
        self.create_with(shape, Logs::On)
    }

    /// As [`Lab::create`]; says whether it has log space maps from the beginning.
    ///
    /// # Errors
    /// A disk failed.
    pub fn create_with(&self, shape: &Shape, logs: Logs) -> Result<Arc<Engine>, CreateError> {
        self.create_layout(&self.layout(shape), shape.ashift, logs)
    }

    /// The first disks, put together so.
    pub fn layout(&self, shape: &Shape) -> Layout {
        let paths: Vec<PathBuf> = self.paths().take(shape.disks).collect();
        let groups = match shape.redundancy {
            Redundancy::Single => paths.into_iter().map(|p| vec![p]).collect(),
            _ => vec![paths],
        };
        let top = |devices| VdevSpec::new(shape.redundancy, devices);
        Layout { tops: groups.into_iter().map(top).collect(), ..Layout::default() }
    }

    /// Makes a pool of this layout.
    ///
    /// # Errors
    /// A disk failed.
    pub fn create_layout(
        &self,
        layout: &Layout,
        ashift: u64,
        logs: Logs,
    ) -> Result<Arc<Engine>, CreateError> {
        let mut named = vec![("log_spacemap".to_string(), logs == Logs::On)];
        named.extend(self.without.iter().map(|name| (name.to_string(), false)));
        let choice = FeatureChoice { none: false, compatibility: None, named: &named };
        let (features, _) = choose_features(&choice).unwrap();
        let options = self.options(0);
        let wrapping = Arc::new(key());
        let root = RootKey { format: KeyFormat::Hex, salt: 0, iterations: 0, wrapping };
        let encryption = Encryption::Root(root, Suite::Aes256Gcm, "prompt".into());
        let request = CreateRequest {
            temporary_name: None,
            spec: CreateSpec {
                name: POOL,
                layout,
                ashift,
                force: true.into(),
                pool: None,
                txg: FIRST_TXG,
                imported: &[],
                devices: self,
                chance: &options.outside.chance.clone(),
            },
            features: &features,
            props: &[],
            root_props: &[],
            encryption: self.encrypted.then_some(&encryption),
            altroot: None,
            arc_bytes: Some(16 << 20),
        };
        let fill = |os: &mut OpenObjectSet| {
            let made = format(os, &CreateProps::default(), FIRST_TXG);
            made.map_err(|e| WriteError::Sink(Box::new(e)))
        };
        Engine::create(&request, options, fill)
    }

    /// Disks that are to join a pool.
    ///
    /// # Errors
    /// They cannot.
    pub fn prepare_to_add(&self, pool: &Pool, layout: &Layout) -> Result<Prepared, CreateError> {
        prepare(&CreateSpec {
            name: POOL,
            layout,
            ashift: 0,
            force: true.into(),
            pool: Some(pool.config()),
            txg: FIRST_TXG,
            imported: &[],
            devices: self,
            chance: &self.options(pool.uberblock().txg).outside.chance,
        })
    }

    /// The pool on the disks.
    pub fn find(&self) -> Option<Candidate> {
        let objects = self.objects.iter().filter_map(|name| self.open(name).ok());
        let devices: Vec<_> = self.disks.iter().cloned().chain(objects).collect();
        let mut found = on_devices(&devices).into_iter().next()?;
        // An import opens these by itself, for writing.
        found.opened.0.retain(|_, device| !is_object(device.path()));
        Some(found)
    }

    /// The pool on the disks as it is, to be read.
    ///
    /// # Errors
    /// There is none, or none that can be imported.
    pub fn look(&self) -> Result<Arc<Pool>, String> {
        self.look_with(ImportOptions::default())
    }

    /// As [`Lab::look`], with some of these options.
    ///
    /// # Errors
    /// As for [`Lab::look`].
    pub fn look_with(&self, options: ImportOptions) -> Result<Arc<Pool>, String> {
        let found = self.find().ok_or("there is no pool")?;
        let options = ImportOptions { readonly: true, force: true, ..options };
        let pool = Pool::import(&found, &options).map_err(|e| e.to_string())?;
        load_key(&pool)?;
        Ok(pool)
    }

    /// Imports a pool for writing.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import(&self, candidate: &Candidate) -> Result<Arc<Engine>, ImportError> {
        self.import_with(candidate, ImportOptions::default())
    }

    /// As [`Lab::import`], with some of these options.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import_with(
        &self,
        candidate: &Candidate,
        options: ImportOptions,
    ) -> Result<Arc<Engine>, ImportError> {
        let (force, arc_bytes, hostid) = (true, Some(16 << 20), Some(1));
        let how = ImportOptions { force, arc_bytes, hostid, ..options };
        let engine = Engine::import(candidate, &how, self.options(candidate.txg))?;
        let target = || Target { name: POOL.into(), new_name: None };
        let damaged = |why| ImportError::Damaged { target: target(), why, recovery: None };
        load_key(&engine.pool()).map_err(damaged)?;
        Ok(engine)
    }
}

/// Disks in memory.
pub fn disks(images: &[Image], journal: Option<&Arc<Journal>>) -> Vec<Arc<Disk>> {
    let disk = |(i, image): (usize, &Image)| Disk::new(i, image.clone(), journal.cloned());
    images.iter().enumerate().map(disk).collect()
}

/// A lab with disks in memory.
pub fn lab(disks: &[Arc<Disk>]) -> Lab {
    Lab::new(disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect())
}

/// What zdb thinks of the pool on these disks: leaks, blocks allocated twice, checksums; and of each
/// metaslab and log space map, what we think.
///
/// # Errors
/// What it said, and where the images are kept.
pub fn judge(images: &[Image]) -> super::Verdict {
    let dir = tempfile::tempdir().unwrap();
    for (i, image) in images.iter().enumerate() {
        image.save(&dir.path().join(format!("d{i}")));
    }
    let agreed = cenote_testpools::try_judge_space(dir.path(), POOL)
        .and_then(|said| same_space(&lab(&disks(images, None)), &said))
        .and_then(|()| account_for_clones(&lab(&disks(images, None))))
        .and_then(|()| match is_foreign(&*lab(&disks(images, None)).look()?) {
            true => cenote_testpools::try_judge_newer(dir.path(), POOL),
            false => Ok(()),
        });
    agreed.map_err(|text| format!("{text} (images in {:?})", dir.keep()))
}

/// As [`judge`], of a pool that only a newer OpenZFS knows, if there is one; see
/// [`try_judge_newer`](cenote_testpools::try_judge_newer).
///
/// # Errors
/// What it said, and where the images are kept.
pub fn judge_newer(images: &[Image]) -> super::Verdict {
    account(&lab(&disks(images, None)))?;
    let dir = tempfile::tempdir().unwrap();
    for (i, image) in images.iter().enumerate() {
        image.save(&dir.path().join(format!("d{i}")));
    }
    let said = cenote_testpools::try_judge_newer(dir.path(), POOL);
    said.map_err(|text| format!("{text} (images in {:?})", dir.keep()))
}

/// Whether blocks of the pool are shared in a way of which OpenZFS 2.1 does not know: it does not write to it then, and its zdb sees
/// no leaks.
fn is_foreign(pool: &Pool) -> bool {
    pool.features().is_active("block_cloning") || pool.features().is_active("fast_dedup")
}

/// Whether every block is accounted for, in a pool of which zdb cannot say that.
///
/// # Errors
/// What is wrong.
pub fn account_for_clones(lab: &Lab) -> super::Verdict {
    match is_foreign(&*lab.look()?) {
        true => account(lab),
        false => Ok(()),
    }
}

/// Whether every block of the pool is accounted for.
///
/// # Errors
/// What is wrong.
pub fn account(lab: &Lab) -> super::Verdict {
    let pool = lab.look()?;
    let space = PoolSpace::load(pool.mos(), pool.config()).map_err(|e| e.to_string())?;
    let subject =
        Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() };
    let options = Options { verify: Verify::Metadata, leaks: true, workers: 1 };
    let report = traverse::run(&subject, &space, &options, &|_| {}, &|| false);
    let report = report.map_err(|e| e.to_string())?;
    super::demand!(report.is_clean(), "{:?}", report.leaks);
    super::demand!(report.found() == report.allocated, "found {}", report.found());
    Ok(())
}

/// Whether OpenZFS's own engine, with its assertions, imports the pool on these disks for writing, and
/// writes to it.
///
/// # Errors
/// What it said, and where the images are kept.
pub fn hand_over(images: &[Image]) -> super::Verdict {
    hand_over_and_back(images).map(drop)
}

/// As [`hand_over`]; returns what it left, exported, or the images themselves if there are clones, which it does not
/// take. What intent logs have it has claimed then.
///
/// # Errors
/// What it said, and where the images are kept.
pub fn hand_over_and_back(images: &[Image]) -> Result<Vec<Image>, String> {
    if is_foreign(&*lab(&disks(images, None)).look()?) {
        return Ok(images.to_vec());
    }
    by_openzfs(images, "import\nsync\nexport\n")
}

/// Has OpenZFS's own engine, with its assertions, run a script ([`cenote_testpools::try_openzfs`]) on the pool on
/// these disks; what it left.
///
/// # Errors
/// What it said, and where the images are kept.
pub fn by_openzfs(images: &[Image], script: &str) -> Result<Vec<Image>, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = |i: usize| dir.path().join(format!("d{i}"));
    for (i, image) in images.iter().enumerate() {
        image.save(&path(i));
    }
    match cenote_testpools::try_openzfs(dir.path(), POOL, script) {
        Ok(()) => Ok((0..images.len()).map(|i| Image::load(&path(i))).collect()),
        Err(text) => Err(format!("{text} (images in {:?})", dir.keep())),
    }
}

/// Whether zdb has said of metaslabs and log space maps what is read here.
fn same_space(lab: &Lab, said: &SpaceSaid) -> super::Verdict {
    let pool = lab.look()?;
    let space = PoolSpace::load(pool.mos(), pool.config()).map_err(|e| e.to_string())?;
    let of_vdev = |v: &VdevSpace, m: &Metaslab| MetaslabSaid {
        vdev: v.id,
        offset: m.start,
        space_map: m.space_map,
        length: m.header.as_ref().map_or(0, |h| h.length),
        alloc: m.flushed_alloc(),
        unflushed_txg: m.unflushed_txg,
    };
    let metaslabs = space.vdevs.iter().flat_map(|v| v.metaslabs.iter().map(move |m| (v, m)));
    let metaslabs: Vec<_> = metaslabs.map(|(v, m)| of_vdev(v, m)).collect();
    super::demand!(metaslabs == said.metaslabs, "{metaslabs:?}, but zdb -m: {:?}", said.metaslabs);
    let of_log = |log: &LogSpaceMap| LogSaid {
        txg: log.txg,
        object: log.object,
        length: log.phys.length,
        valid: log.valid,
        entries: log.entries,
    };
    let logs: Vec<_> = space.logs.iter().map(of_log).collect();
    super::demand!(logs == said.logs, "{logs:?}, but zdb -m: {:?}", said.logs);
    Ok(())
}

/// Keeps images for later and says where.
pub fn keep(images: &[Image]) -> String {
    let dir = tempfile::tempdir().unwrap().keep();
    for (i, image) in images.iter().enumerate() {
        image.save(&dir.join(format!("d{i}")));
    }
    dir.display().to_string()
}

/// Files for [`cenote_engine::change::Changes`], the same every time.
pub struct Plain;

impl Contents for Plain {
    fn fill(&self, os: &mut OpenObjectSet, what: &Format, txg: u64) -> Result<(), WriteError> {
        let done = match *what {
            Format::Filesystem { project_quota, .. } => {
                let props = CreateProps { project_quota, ..CreateProps::default() };
                format(os, &props, txg)
            }
            Format::Volume { size, block_size } => cenote_zpl::format_volume(os, size, block_size),
        };
        done.map_err(|e| WriteError::Sink(Box::new(e)))
    }

    fn resize(&self, volume: Arc<LiveObjectSet>, size: u64) -> Result<(), WriteError> {
        let resized = cenote_zpl::Volume::open_live(volume).and_then(|v| v.resize(size));
        resized.map_err(|e| WriteError::Sink(Box::new(e)))
    }
}
