//! Importing a pool for writing (`spa_import`, `spa_open`, `spa_activate`).
//!
//! The pool is opened as for reading, but with devices that can be written, and that no other process has, by what is on them
//! then ([`import::import_alone`]). It is refused if it uses something that this software cannot write. Then the first transaction group is written at once:
//! it says in every label that this host has the pool, and goes on with what was being destroyed. It also claims what
//! intent logs have, which no space map knows before: so no other group comes before it, whatever else waits to be noted or
//! replaced meanwhile ([`TxState::begin`]).
//!
//! Its number is above that of every uberblock that is on the devices, also when the import stepped
//! back: what was given up must never look newer than what is written from now on.

use super::autoreplace::Returns;
use super::background::Background;
use super::checkpoint::{self, write_rewound};
use super::commit::tell_savings;
use super::condense::Condenser;
use super::datasets::Datasets;
use super::dedup::Dedup;
use super::error::EngineError;
use super::figures::History;
use super::freeze::Frozen;
use super::intent_log::{ReadLogs, read_logs};
use super::mmp::Mmp;
use super::rebuild::Rebuilder;
use super::removal::copied;
use super::scan::Scanner;
use super::space::pool_space;
use super::surgery::SpareCaller;
use super::sync_core::Core;
use super::task::{Queue, SyncContext};
use super::txg::TxState;
use super::vacant::Vacant;
use super::{Disk, Engine, EngineOptions, Shared, capable};
use crate::space_write::SpaceMaps;
use cenote_dmu::write::{MetaObjectSet, WriteError};
use cenote_dsl::write::DslWriteError;
use cenote_format::label::Uberblock;
use cenote_pool::config_write::PoolConfig;
use cenote_pool::devices::DeviceSet;
use cenote_pool::error::{ImportError, Target};
use cenote_pool::import::{self, Alone, ImportOptions};
use cenote_pool::metaslab::PoolSpace;
use cenote_pool::props::MULTIHOST;
use cenote_pool::version;
use cenote_pool::{Candidate, Origin, Pool, config, events, host};
use cenote_store::Store;
use cenote_store::alloc::{Allocator, Options};
use cenote_store::write::Writer;
use cenote_vdev::stats::Latencies;
use parking_lot::{Mutex, RwLock};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The last group that a pool is opened after for writing: numbers of groups that follow are counted from it. Only a wrong
/// label has a later one.
const LAST_TXG: u64 = u64::MAX / 2;

/// Whether there are numbers for all groups that can follow group `synced`.
fn has_groups_left(synced: u64) -> Result<(), EngineError> {
    match synced <= LAST_TXG {
        true => Ok(()),
        false => Err(EngineError::Unsupported(format!("a pool in transaction group {synced}"))),
    }
}

impl Engine {
    /// Imports a pool for writing (`spa_import`, `zfs_ioc_pool_import`).
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import(
        candidate: &Candidate,
        options: &ImportOptions,
        engine: EngineOptions,
    ) -> Result<Arc<Engine>, ImportError> {
        let open = |c: &Candidate| DeviceSet::new(c, true).opened_by(engine.opener.clone());
        let taken = import::import_alone(candidate, &open, options)?;
        let Alone { candidate, devices, mut imported } = taken;
        let candidate = &*candidate;
        import::keeps_claim(candidate, &devices)?;
        imported.settle();
        let name = imported.name.clone();
        let pool = Pool::around(Origin::of(candidate, options), imported, devices);
        let target = || Target { name: candidate.name.clone(), new_name: options.new_name.clone() };
        let refused = |e: EngineError| match e {
            EngineError::Unsupported(what) => ImportError::NotWritable { target: target(), what },
            e => ImportError::Damaged { target: target(), why: e.to_string(), recovery: None },
        };
        pool.tell_altroot();
        let hostid = options.hostid.unwrap_or_else(host::system_hostid);
        if hostid == 0 && pool.get("multihost").is_some_and(|set| set.exact == "on") {
            return Err(ImportError::NoHostid(candidate.name.clone()));
        }
        let has_multihost = pool.get("multihost").is_some_and(|set| set.exact == "on");
        if has_multihost && pool.config().list("vdev_tree").is_some_and(config::has_objects) {
            return Err(refused(EngineError::Unsupported(MULTIHOST.into())));
        }
        let logs = capable::check_pool(&pool).map_err(refused)?;
        let last = match pool.uberblock() {
            Uberblock { checkpoint_txg: 0, txg, .. } => *txg,
            // Rewound: what the pool has now was written up to then.
            Uberblock { checkpoint_txg, .. } => *checkpoint_txg,
        };
        let opened_in = pool.uberblock().txg;
        let newest = import::uberblocks(candidate).iter().map(|ub| ub.txg).max();
        let synced = newest.unwrap_or(0).max(pool.uberblock().txg);
        has_groups_left(synced).map_err(refused)?;
        let mut config = PoolConfig::from_mos(pool.config());
        config.name = if options.temporary_name { candidate.name.clone() } else { name };
        config.version = pool.version();
        config.state = config::STATE_ACTIVE;
        config.set_host(hostid);
        let (core, disk) = Engine::read(&pool, config, &engine).map_err(refused)?;
        let all_claimed = logs.all;
        let progress = engine.logs.clone();
        let read = |store| read_logs(store, &progress, logs, last).map_err(refused);
        let gone_back = |e: EngineError| ImportError::Damaged {
            target: target(),
            why: format!("it has gone back to its checkpoint; import it again: {e}"),
            recovery: None,
        };
        let (engine, (logs, unreplayed)) = if options.checkpoint {
            // What could be refused is read first: an import that fails so far leaves the newest state.
            let read = read(&disk.store)?;
            import::still_ours(candidate, pool.devices(), hostid)?;
            write_rewound(&pool).map_err(gone_back)?;
            (Engine::assemble(pool, core, synced, engine, disk).map_err(gone_back)?, read)
        } else {
            import::keeps_claim(candidate, pool.devices())?;
            take_over(&pool).map_err(|why| ImportError::NotTaken { target: target(), why })?;
            // Heartbeats are written while logs are read, however long that takes, and no group.
            let engine = Engine::assemble(pool, core, synced, engine, disk).map_err(refused)?;
            let read = read(&engine.shared.disk.store)?;
            (engine, read)
        };
        engine.shared.disk.mmp.check().map_err(|why| refused(EngineError::Suspended(why)))?;
        *engine.shared.unreplayed.lock() = unreplayed;
        // Before the first group, which may clone blocks as it claims logs.
        engine.keep_scrub_right();
        let first = engine.first(logs, last, options.checkpoint);
        first.map_err(|e| if options.checkpoint { gone_back(e) } else { refused(e) })?;
        if let Err(e) = engine.destroy_unfinished() {
            tracing::warn!("what was not received in full is left: {e}");
        }
        if let Err(e) = engine.expand_if_wanted() {
            tracing::warn!("devices that have grown are not grown into: {e}");
        }
        engine.begin_activities(all_claimed);
        events::learn(&engine.pool());
        let pool = engine.pool();
        pool.use_caches_of(&pool.store().l2arc().alone(), opened_in);
        drop(pool);
        engine.tell("pool_import", config::STATE_ACTIVE);
        engine.return_spares();
        engine.resume_scan();
        // A pool that is being imported cannot be cleared: until here no thread waits for devices that fail, and what fails fails
        // the import.
        engine.shared.arm();
        if let Some(why) = engine.shared.tx_state.failure() {
            return Err(refused(EngineError::Suspended(why)));
        }
        engine.let_sides_of_before_go();
        engine.shared.wake_scan();
        engine.shared.wake_evacuation();
        if !all_claimed {
            engine.shared.bar_reflow();
            engine.shared.bar_rebuild();
        }
        engine.shared.wake_rebuild();
        engine.shared.wake_reflow();
        engine.shared.call_spares();
        Ok(engine)
    }

    /// Reads what an engine over a pool needs. Nothing is written.
    ///
    /// # Errors
    /// It cannot be read, or has something that cannot be written.
    pub(super) fn read(
        pool: &Pool,
        config: PoolConfig,
        options: &EngineOptions,
    ) -> Result<(Core, Disk), EngineError> {
        let unknown = || EngineError::Unsupported("a pool whose space is not known".into());
        let space = pool.space().ok_or_else(unknown)?;
        let (mos, txg) = (pool.mos(), pool.uberblock().txg);
        let maps = SpaceMaps::open(space, pool.config(), mos, txg)
            .map_err(|e| EngineError::Unsupported(e.to_string()))?
            .by(&options.outside.chance);
        let mos = MetaObjectSet::open(mos.clone())?;
        let mut core = Core::new(mos, maps, config, pool.uberblock().clone());
        core.load_gang_headers()?;
        let disk = Disk::new(pool.store(), pool.space(), &core, options)?;
        core.allow_gang_headers(&disk);
        checkpoint::begin(pool, &disk)?;
        Ok((core, disk))
    }

    /// Puts together what was opened or created. No group is written before that is said ([`TxState::begin`]).
    pub(super) fn assemble(
        pool: Pool,
        core: Core,
        synced: u64,
        options: EngineOptions,
        disk: Disk,
    ) -> Result<Arc<Engine>, EngineError> {
        let shared = Arc::new(Shared {
            tx_state: TxState::new(synced, options.dirty_max, options.outside.timer.clone()),
            view: RwLock::new(Arc::new(pool)),
            disk,
            datasets: Datasets::default(),
            queue: Queue::default(),
            history: History::default(),
            receives: Arc::default(),
            write_calls: Latencies::default(),
            condenser: Condenser::default(),
            vacant: Vacant::default(),
            scanner: Scanner::default(),
            rebuilder: Rebuilder::default(),
            mender: Background::default(),
            spares: SpareCaller::default(),
            returns: Returns::default(),
            #[cfg(feature = "planted")]
            stops: crate::planted::Stops::default(),
            removing: Mutex::default(),
            evacuator: Background::default(),
            reflower: Background::default(),
            reclaimer: Background::default(),
            reflow_waits: Mutex::default(),
            reflow_barred: AtomicBool::default(),
            removal_waits: Mutex::default(),
            resumed_at: Mutex::default(),
            gone: Mutex::default(),
            settling: Mutex::default(),
            options,
            unreplayed: Mutex::default(),
        });
        shared.listen();
        shared.learn_multihost()?;
        shared.listen_for_errors();
        shared.disk.store.group_on_disk(synced);
        shared.disk.allocator.readers().group_done(synced);
        shared.view().dsl().set_pool_space(pool_space(&shared.disk));
        tell_savings(&shared.view(), &shared.disk);
        Ok(Engine::start(shared, core))
    }

    /// Has groups begin, with the one that claims intent logs; those that are finished go. `last` is
    /// the group that the pool was in, or of which the checkpoint is that it was `rewound` to.
    fn first(&self, logs: ReadLogs, last: u64, rewound: bool) -> Result<(), EngineError> {
        let ReadLogs { finished, claims, others } = logs;
        let pool = self.pool();
        // Software from before that does not know of scans that are under way.
        let unaware = pool.uberblock().software_version < version::SCANS;
        let change = move |context: &mut SyncContext<'_>| {
            // Before anything is allocated.
            let newest = context.claim_intent_logs(claims)?;
            // Whoever was away in the last group did not get what was logged in the next one either.
            context.disk.tree().lag_on(last, newest);
            finished.iter().try_for_each(|ds_obj| context.destroy_intent_log(*ds_obj, last))?;
            if !others && !context.has_checkpoint()? {
                context.free_lost_log_blocks()?;
            }
            context.adopt()?;
            if unaware {
                context.restart_scrub()?;
            }
            context.note_moved_aux(&pool)?;
            context.finish_split()?;
            if rewound {
                context.record("checkpoint rewind", &format!("rewound state to txg={last}"))?;
            }
            Ok(newest)
        };
        // A group that has some of it would have blocks of logs allocated that are not claimed, or overwritten.
        let fatal = |e| match e {
            DslWriteError::Fatal(_) => e,
            e => WriteError::Sink(Box::new(e)).into(),
        };
        let change = move |context: &mut SyncContext<'_>| change(context).map_err(fatal);
        let newest = self.shared.queue.begin_with(&self.shared.tx_state, change)?;
        // Nothing that is on disk is from the future.
        while self.pool().uberblock().txg < newest {
            self.sync_task(|context| {
                context.config_changed = true;
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// From now on this host has what the pool keeps in object stores, and every other one is refused. What was opened must be of the very
/// group that the pool was opened in: labels may have been read before.
fn take_over(pool: &Pool) -> Result<(), String> {
    let txg = pool.uberblock().txg;
    for leaf in pool.store().vdevs().leaves() {
        let Some(growing) = leaf.growing() else { continue };
        let name = leaf.path().unwrap_or(Path::new("a device")).display().to_string();
        let newest = growing.newest_group();
        if newest != txg {
            return Err(format!("{name} has group {newest} by now, and group {txg} was opened"));
        }
        growing.take_over().map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

impl Disk {
    /// The devices of `store`, with the free space that `core` knows. `space` is what an imported
    /// pool has.
    pub(super) fn new(
        store: &Arc<Store>,
        space: Option<&PoolSpace>,
        core: &Core,
        options: &EngineOptions,
    ) -> Result<Disk, EngineError> {
        let chance = options.outside.chance.clone();
        store.keys().set_random(Arc::new(move || chance.number()));
        let vdevs = core.maps.allocator_vdevs(space, &store.vdevs());
        let background = !options.deterministic;
        let usual = if background { Options::default().allocators } else { 1 };
        let allocators = options.allocators.unwrap_or(usual);
        let loader = core.maps.loader();
        let how = Options { allocators, background, unload_after: options.unload_after };
        let allocator = Allocator::new(&vdevs, store.clone(), loader.clone(), how)
            .map_err(|e| EngineError::Unsupported(e.to_string()))?;
        allocator.preload();
        allocator.load_all_if_told();
        let dedup = match space {
            Some(_) => Dedup::open(store, core.mos.synced())?,
            None => Dedup::new(store),
        };
        let dedup = Arc::new(dedup);
        let writer = Writer::new(store.clone(), allocator.clone(), store.clone());
        let writer = writer.with_tables(dedup.clone());
        if let Some(evacuation) = core.maps.evacuation() {
            allocator.passivate(evacuation.vdev);
            writer.set_removing(Some(copied(evacuation)));
        }
        let (added, grown, removed, reflowed) = Default::default();
        let (store, outside) = (store.clone(), options.outside.clone());
        let (frozen, mmp) = (Frozen::default(), Arc::<Mmp>::default());
        Ok(Disk {
            store,
            allocator,
            loader,
            writer,
            dedup,
            outside,
            added,
            grown,
            removed,
            reflowed,
            frozen,
            mmp,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_after_whose_group_none_can_follow_is_not_written() {
        assert!(has_groups_left(0).is_ok() && has_groups_left(1 << 50).is_ok());
        let why = has_groups_left(u64::MAX).unwrap_err().to_string();
        assert!(why.contains("transaction group 18446744073709551615"), "{why}");
    }
}
