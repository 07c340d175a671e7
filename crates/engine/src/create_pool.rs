//! A new pool: its first transaction group (`spa_create`).
//!
//! Devices get labels of transaction group 0 first, which say whose they are but not that there is a
//! pool. Then the MOS is filled, all of it pending: directories, features, the vdevs' objects, the
//! root file system. One sync writes it, and the uberblock at its end makes the pool.

use super::error::EngineError;
use super::features::count_feature;
use super::figures::Recorder;
use super::space::pool_space;
use super::sync_core::Core;
use super::txg::OpenedAt;
use super::txg::QuiescedTxg;
use super::{Disk, Engine, EngineOptions, SyncContext, space};
use crate::create::{self, CreateError, CreateSpec, FIRST_TXG, NewPool, Prepared};
use crate::space_write::SpaceMaps;
use cenote_dmu::outside::Outside;
use cenote_dmu::write::{MetaObjectSet, OpenObjectSet, WriteError};
use cenote_dsl::Dsl;
use cenote_dsl::write::crypt::{self, Encryption};
use cenote_dsl::write::pool::PoolDirs;
use cenote_dsl::write::props::{self, NewValue, Target};
use cenote_dsl::write::{Tx, pool};
use cenote_format::ByteOrder;
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::Salt;
use cenote_format::dmu::ObjsetType;
use cenote_format::features::Feature;
use cenote_format::label::{MMP_MAGIC, Uberblock};
use cenote_format::nvlist::NvValue;
use cenote_pool::config::STATE_ACTIVE;
use cenote_pool::config_write::PoolConfig;
use cenote_pool::devices::{DeviceSet, Opener};
use cenote_pool::import::Imported;
use cenote_pool::props::{MULTIHOST, PropChange, is_multihost};
use cenote_pool::version;
use cenote_pool::{Origin, Pool, config, events};
use cenote_store::keys::LoadedKey;
use cenote_store::{Notes, Store};
use cenote_vdev::VdevTree;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// What a new pool will be.
pub struct CreateRequest<'a> {
    /// Its name and vdevs.
    pub spec: CreateSpec<'a>,
    /// `-t`: the name that the pool has until it is exported, in place of that of its labels.
    pub temporary_name: Option<&'a str>,
    /// Features to enable: see [`cenote_pool::features::choose_features`].
    pub features: &'a [&'static Feature],
    /// Properties of the pool.
    pub props: &'a [PropChange],
    /// Properties of the root file system.
    pub root_props: &'a [(String, NewValue)],
    /// How the root file system is encrypted, if it is: it is an encryption root then.
    pub encryption: Option<&'a Encryption>,
    /// `-R`.
    pub altroot: Option<PathBuf>,
    /// Bytes for the cache; a moderate default if not given.
    pub arc_bytes: Option<u64>,
}

fn failed(e: impl std::fmt::Display) -> CreateError {
    CreateError::Failed(e.to_string())
}

/// Nothing points to anything yet.
fn no_uberblock() -> Uberblock {
    Uberblock {
        order: ByteOrder::Little,
        version: version::FEATURES,
        txg: 0,
        guid_sum: 0,
        timestamp: 0,
        rootbp: BlockPointer::HOLE,
        software_version: version::FEATURES,
        mmp_magic: MMP_MAGIC,
        mmp_delay: 0,
        mmp_config: 0,
        checkpoint_txg: 0,
        raidz_reflow: 0,
    }
}

impl Engine {
    /// Creates a pool; `format` puts into the root file system what every file system has (`spa_create`,
    /// `zfs_ioc_pool_create`).
    ///
    /// # Errors
    /// See [`CreateError`]. Nothing is written to devices that are in use.
    pub fn create(
        request: &CreateRequest<'_>,
        engine: EngineOptions,
        format: impl FnOnce(&mut OpenObjectSet) -> Result<(), WriteError>,
    ) -> Result<Arc<Engine>, CreateError> {
        let prepared = create::prepare(&request.spec)?;
        create::check_features(&request.spec, request.features)?;
        let features = create::with_needed(&prepared, request.features);
        if config::has_objects(&prepared.root) && request.props.iter().any(is_multihost) {
            return Err(request.spec.refuse(format!("{MULTIHOST} is not supported")));
        }
        let made = Self::make(request, engine, format, (&prepared, &features));
        if made.is_err() {
            prepared.erase_objects();
        }
        made
    }

    /// The pool on devices that were prepared, with these features.
    fn make(
        request: &CreateRequest<'_>,
        engine: EngineOptions,
        format: impl FnOnce(&mut OpenObjectSet) -> Result<(), WriteError>,
        (prepared, features): (&Prepared, &[&'static Feature]),
    ) -> Result<Arc<Engine>, CreateError> {
        let birth = OpenedAt::now();
        let name = request.temporary_name.unwrap_or(request.spec.name);
        let mut config =
            PoolConfig::new(request.spec.name, prepared.pool_guid, prepared.root.clone());
        create::write_labels(prepared, &config).map_err(failed)?;
        let tree = prepared.tree(&mut |_, _| None).map_err(failed)?;
        let outside = &engine.outside;
        let salt = create::new_salt(&outside.chance)?;
        let store = Store::of_size(tree, request.arc_bytes);
        store.set_salt(Salt::new(salt));
        let mut mos = MetaObjectSet::create(store.clone()).map_err(failed)?;
        let sizes = |bp: &BlockPointer| space::sizes(&store.vdevs(), bp);
        let mut tx = Tx { pool: name, ..Tx::new(&mut mos, FIRST_TXG, outside, &sizes) };
        let of = (request, features);
        let (dirs, key) = fill_mos(&mut tx, &store.vdevs(), of, prepared, &mut config, salt)?;
        let maps = vdev_objects(&mut mos, prepared, &mut config, outside)?;
        let mut core = Core::new(mos, maps, config, no_uberblock());
        let disk = Disk::new(&store, None, &core, &engine).map_err(failed)?;
        let mut recorder = Recorder::begin(&disk, FIRST_TXG);
        recorder.quiesced(&QuiescedTxg::at_once(FIRST_TXG, birth));
        let copies = copies_of(request.root_props);
        let root = (dirs.root_ds, copies, key);
        core.write_first(&disk, root, format, &mut recorder).map_err(failed)?;
        let begun = Instant::now();
        core.write_labels(&disk, FIRST_TXG).flatten().map_err(failed)?;
        let pool = core.first_view(&disk, request, prepared, &engine.opener).map_err(failed)?;
        let figures = recorder.end(&disk, &core.maps, begun.elapsed());
        let loads = disk.allocator.load_latency();
        let engine = Engine::assemble(pool, core, FIRST_TXG, engine, disk).map_err(failed)?;
        engine.shared.tx_state.begin();
        engine.shared.history.add(figures, &loads);
        if let Some(Encryption::Root(key, ..)) = request.encryption {
            let view = engine.pool();
            view.dsl().keystore().changed(dirs.root_dir, &key.wrapping, &[]);
            view.dsl().keystore().settled(dirs.root_dir);
        }
        engine.follow_autotrim();
        events::learn(&engine.pool());
        engine.use_caches();
        engine.shared.learn_multihost().map_err(failed)?;
        engine.shared.arm();
        engine.tell("pool_create", STATE_ACTIVE);
        Ok(engine)
    }
}

/// The property `copies` of the root file system.
fn copies_of(props: &[(String, NewValue)]) -> usize {
    let given = props.iter().find(|(name, _)| name == "copies");
    match given {
        Some((_, NewValue::Number(copies))) => usize::try_from(*copies).unwrap_or(1),
        _ => 1,
    }
}

/// Everything of the MOS but the vdevs' objects; returns the directories, and the key of the root file system.
fn fill_mos(
    tx: &mut Tx<'_>,
    tree: &VdevTree,
    (request, features): (&CreateRequest<'_>, &[&'static Feature]),
    prepared: &Prepared,
    config: &mut PoolConfig,
    salt: [u8; 32],
) -> Result<(PoolDirs, Option<Arc<LoadedKey>>), CreateError> {
    let dirs = pool::create_pool_dirs(tx).map_err(failed)?;
    let new = NewPool {
        tree,
        features,
        props: request.props,
        spares: &prepared.spares,
        caches: &prepared.caches,
        salt,
    };
    create::populate(tx, &new, config).map_err(failed)?;
    for (name, value) in request.root_props {
        props::set(tx, Target::Dir(dirs.root_dir), name, value).map_err(failed)?;
    }
    let Some(how) = request.encryption else { return Ok((dirs, None)) };
    let made = crypt::create(tx, (dirs.root_dir, dirs.root_ds), how).map_err(failed)?;
    Ok((dirs, Some(LoadedKey::new(made.0, made.1))))
}

/// The objects of the vdevs: ZAPs and arrays of metaslabs.
fn vdev_objects(
    mos: &mut OpenObjectSet,
    prepared: &Prepared,
    config: &mut PoolConfig,
    outside: &Outside,
) -> Result<SpaceMaps, CreateError> {
    let mut maps = SpaceMaps::create().by(&outside.chance);
    let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
        count_feature(mos, FIRST_TXG, outside, guid, delta)
    };
    let tops = config.vdev_tree.pairs.iter_mut().find(|(name, _)| name == "children");
    let Some((_, NvValue::NvListArray(tops))) = tops else {
        return Err(failed("no vdevs"));
    };
    for top in tops.iter_mut().filter(|t| prepared.new_tops.contains(&config::number(t, "id"))) {
        maps.init_vdev(mos, FIRST_TXG, top, &mut count).map_err(failed)?;
    }
    Ok(maps)
}

impl Core {
    /// Writes the first transaction group, but for labels and the uberblock.
    fn write_first(
        &mut self,
        disk: &Disk,
        (root_ds, copies, key): (u64, usize, Option<Arc<LoadedKey>>),
        format: impl FnOnce(&mut OpenObjectSet) -> Result<(), WriteError>,
        recorder: &mut Recorder,
    ) -> Result<(), EngineError> {
        let begun = Instant::now();
        let features = self.pending_features()?;
        let sizes = |bp: &BlockPointer| space::sizes(&disk.tree(), bp);
        let pool = self.config.name.clone();
        let mut context = SyncContext {
            tx: Tx { pool: &pool, ..Tx::new(&mut self.mos, FIRST_TXG, &disk.outside, &sizes) },
            config: &mut self.config,
            config_changed: true,
            maps: &mut self.maps,
            disk,
            datasets: None,
            abilities: features,
            born: Mutex::default(),
            when_kept: Vec::new(),
        };
        context.create_objset(root_ds, ObjsetType::Zfs, copies, key, format)?;
        self.frees = context.tx.frees;
        recorder.datasets(begun.elapsed());
        Ok(self.passes(disk, FIRST_TXG, features, None, recorder)?)
    }

    /// The pool as its first transaction group left it.
    fn first_view(
        &self,
        disk: &Disk,
        request: &CreateRequest<'_>,
        prepared: &Prepared,
        opener: &Opener,
    ) -> Result<Pool, EngineError> {
        let mos = self.mos.synced().clone();
        let name = request.temporary_name.unwrap_or(request.spec.name).to_string();
        let dsl = Dsl::open(mos.clone(), &name)?;
        dsl.set_pool_space(pool_space(disk));
        let loaded = self.loaded(0, dsl, &Arc::default())?;
        let devices = DeviceSet::of_open(prepared.devices()).opened_by(opener.clone());
        let origin =
            Origin { guid: prepared.pool_guid, altroot: request.altroot.clone(), readonly: false };
        let imported = Imported { loaded, rewind: None, name, notes: Notes::default() };
        let pool = Pool::around(origin, imported, Arc::new(devices));
        pool.tell_altroot();
        disk.loader.advance(mos, FIRST_TXG);
        disk.allocator.sync_done(FIRST_TXG);
        Ok(pool)
    }
}
