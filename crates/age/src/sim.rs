//! A simulation: a pool, a workload, and one transaction group after another.
//!
//! The pool is made with [`Engine::create`] on [`SparseDisk`]s. Each group is one sync task, which
//! has the workload allocate and free in syncing context; the passes of the sync then write space
//! maps and the rest of the MOS as they do in any pool. So of everything in the report that comes
//! from the pool nothing is modelled: free space, space maps, logs, what is written for them.
//! Modelled are indirect blocks and dnodes ([`crate::indirect`]), and that the pool holds
//! nothing else.
//!
//! It begins with a pool that is filled in one go, or with the free space of one that is there
//! ([`crate::like`]): then what is allocated there is claimed, metaslab by metaslab.
//!
//! One thread does it all, with no loading ahead of need in the background, so that a seed leads to
//! the same result: time is that of the simulation, and guids come from the seed.

use crate::device::{Bay, Devices, SparseDisk, Traffic};
use crate::like::{PoolModel, VdevModel};
use crate::report::{Counts, Report, Row, Step};
use crate::space::{Books, Space, Stop, Tally};
use crate::spec::{AgeError, Spec};
use crate::workload::{Cut, Layout, Workload, workload};
use cenote_dmu::outside::{Chance, Clock, Outside, Timer};
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dsl::PoolSpace;
use cenote_engine::create::{CreateSpec, FIRST_TXG, Redundancy, VdevSpec};
use cenote_engine::{CreateRequest, Engine, EngineOptions, SyncContext};
use cenote_format::LABEL_START;
use cenote_format::label::{LABEL_END, LABEL_SIZE};
use cenote_inspect::map::{self, MetaslabMap, SpaceMapReport, VdevMap};
use cenote_pool::features::{FeatureChoice, choose_features};
use cenote_pool::metaslab::AllocClass;
use cenote_store::alloc::{Allocator, Class, Extent, Group, Metaslab, Options, TXG_DEFER_SIZE};
use cenote_store::tunables;
use cenote_vdev::Device;
use parking_lot::{Mutex, MutexGuard};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the pool's cache.
const CACHE: u64 = 512 << 20;

/// When simulations begin: 1 January 2000, in seconds since 1970.
const BEGINNING: i64 = 946_684_800;

/// The name of simulated pools.
pub const POOL: &str = "simulated";

/// What a transaction group works on.
struct World {
    workload: Box<dyn Workload>,
    books: Books,
    bays: Arc<Vec<Bay>>,
    sector: u64,
}

/// How far a simulation is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// While the pool is still being filled: bytes that are allocated, out of so many.
    pub filling: Option<(u64, u64)>,
    /// Simulated time.
    pub simulated: Duration,
    /// Time that the simulation of it took.
    pub spent: Duration,
}

/// What happens while a simulation runs.
#[derive(Debug)]
pub enum Event<'a> {
    /// A transaction group is done.
    Progress(Progress),
    /// There is one more row: the report as it is now.
    Row(&'a Report),
}

/// Is told what happens; whether to go on.
pub type Watch<'a> = &'a mut dyn FnMut(Event<'_>) -> bool;

/// Extents that are claimed in one transaction group.
const CLAIM_BATCH: usize = 1 << 20;

/// A top-level vdev of the pool that is made.
struct Top {
    redundancy: Redundancy,
    devices: u64,
    /// Bytes of a device.
    size: u64,
    ashift: u32,
    metaslab_shift: Option<u32>,
}

impl Top {
    /// One as large as `model`.
    fn like(model: &VdevModel) -> Top {
        let share = model.asize.div_ceil(model.devices).next_multiple_of(LABEL_SIZE);
        Top {
            redundancy: model.redundancy,
            devices: model.devices,
            size: share + LABEL_START + LABEL_END,
            ashift: model.ashift,
            metaslab_shift: Some(model.metaslab_shift),
        }
    }
}

/// A simulated pool.
pub struct Simulation {
    spec: Spec,
    engine: Arc<Engine>,
    bays: Arc<Vec<Bay>>,
    /// Ranges that are not claimed yet.
    model: Option<PoolModel>,
    world: Arc<Mutex<World>>,
    target: u64,
    /// Groups that were simulated since the pool was filled.
    groups: u64,
    /// How long these took, in seconds: the engine's clock.
    time: Arc<AtomicU64>,
    /// How long it took to fill the pool, once it is.
    filled: Option<Duration>,
}

/// A file system with nothing in it.
fn format(os: &mut OpenObjectSet) -> Result<(), WriteError> {
    let formatted = cenote_zpl::format(os, &cenote_zpl::CreateProps::default(), FIRST_TXG);
    formatted.map_err(|e| WriteError::Sink(Box::new(e)))
}

/// How the engine works: as in any pool, with metaslabs for data and others for metadata, but nothing
/// happens unless it is asked for, and time is that of the transaction groups, which are `txg` apart.
fn options(spec: &Spec, time: &Arc<AtomicU64>) -> EngineOptions {
    let txg = spec.txg;
    let never = Duration::from_secs(1 << 30);
    let unload =
        Duration::from_millis(tunables::UNLOAD_DELAY_MS.get()).as_nanos() / txg.as_nanos().max(1);
    let unload = u64::try_from(unload).unwrap_or(u64::MAX).max(tunables::UNLOAD_DELAY.get());
    EngineOptions {
        txg_timeout: Some(never),
        allocators: Some(Options::default().allocators),
        unload_after: Some(unload),
        deterministic: true,
        outside: outside(spec.seed, time.clone()),
        ..EngineOptions::default()
    }
}

/// The time of the simulation, in seconds since it began, and guids from its seed.
fn outside(seed: u64, time: Arc<AtomicU64>) -> Outside {
    let rng = Mutex::new(SmallRng::seed_from_u64(seed));
    let chance = move || Ok(rng.lock().random());
    let now = move || (BEGINNING.saturating_add_unsigned(time.load(Ordering::Relaxed)), 0);
    Outside { clock: Clock::new(now), timer: Timer::simulated(), chance: Chance::new(chance) }
}

/// Makes the pool.
fn create(
    spec: &Spec,
    tops: &[Top],
    options: EngineOptions,
) -> Result<(Arc<Engine>, Vec<Bay>), AgeError> {
    let mut number = 0;
    let mut disks = |top: &Top| -> Vec<_> {
        let numbers = number..number + top.devices;
        number = numbers.end;
        numbers.map(|i| SparseDisk::new(i, top.size, top.ashift)).collect()
    };
    let sets: Vec<Vec<_>> = tops.iter().map(&mut disks).collect();
    let vdev = |(top, disks): (&Top, &Vec<Arc<SparseDisk>>)| VdevSpec {
        metaslab_shift: top.metaslab_shift,
        ..VdevSpec::new(top.redundancy, disks.iter().map(|d| d.path().to_path_buf()).collect())
    };
    let specs = tops.iter().zip(&sets).map(vdev).collect();
    let layout = cenote_engine::create::Layout { tops: specs, ..Default::default() };
    let named = [("log_spacemap".to_string(), spec.logs)];
    let choice = FeatureChoice { none: false, compatibility: None, named: &named };
    let (features, _) = choose_features(&choice).map_err(AgeError::Spec)?;
    let all: Vec<_> = sets.iter().flatten().cloned().collect();
    let request = CreateRequest {
        temporary_name: None,
        spec: CreateSpec {
            name: POOL,
            layout: &layout,
            ashift: 0,
            force: true.into(),
            pool: None,
            txg: FIRST_TXG,
            imported: &[],
            devices: &Devices(&all),
            chance: &options.outside.chance.clone(),
        },
        features: &features,
        props: &[],
        root_props: &[],
        encryption: None,
        altroot: None,
        arc_bytes: Some(CACHE),
    };
    let engine = Engine::create(&request, options, format)?;
    let pool = engine.pool();
    let bay = |(id, disks)| {
        let vdev = pool.store().vdevs().top(id).cloned();
        vdev.map(|vdev| Bay { disks, vdev }).ok_or_else(|| AgeError::Broken(format!("vdev {id}")))
    };
    let bays = (0u64..).zip(sets).map(bay).collect::<Result<_, _>>()?;
    Ok((engine, bays))
}

impl Simulation {
    /// Makes an empty pool.
    ///
    /// # Errors
    /// The specification makes no sense; the pool cannot be made.
    pub fn new(spec: Spec) -> Result<Simulation, AgeError> {
        spec.check()?;
        let size = (spec.size / spec.vdevs) >> 20 << 20;
        let top = |_| Top {
            redundancy: Redundancy::Single,
            devices: 1,
            size,
            ashift: spec.ashift,
            metaslab_shift: None,
        };
        let tops: Vec<Top> = (0..spec.vdevs).map(top).collect();
        Simulation::of(spec, &tops, None)
    }

    /// Makes an empty pool that [`Simulation::fill`] has become like `model`. Of the specification
    /// all counts that the pool does not say itself.
    ///
    /// # Errors
    /// As [`Simulation::new`].
    pub fn like(spec: Spec, model: PoolModel) -> Result<Simulation, AgeError> {
        let spec = spec.like(&model);
        spec.check()?;
        let tops: Vec<Top> = model.vdevs.iter().map(Top::like).collect();
        Simulation::of(spec, &tops, Some(model))
    }

    fn of(spec: Spec, tops: &[Top], model: Option<PoolModel>) -> Result<Simulation, AgeError> {
        let time = Arc::default();
        let (engine, bays) = create(&spec, tops, options(&spec, &time))?;
        let groups: Vec<_> = engine.allocator().groups().collect();
        let cut = |(group, bay): (&Arc<Group>, &Bay)| {
            Some(Cut {
                ashift: group.ashift(),
                ms_shift: group.ms_shift(),
                metaslabs: group.metaslabs().len() as u64,
                block: bay.asize(spec.allocated_block()),
            })
        };
        let vdevs: Option<Vec<Cut>> = groups.iter().zip(&bays).map(cut).collect();
        let Some(vdevs) = vdevs.filter(|vdevs| vdevs.len() == bays.len()) else {
            return Err(AgeError::Spec("a pool without metaslabs".into()));
        };
        let space = engine.allocator().figures(Class::Normal).space;
        let target = (space as f64 * spec.fill / 100.0) as u64;
        let bays = Arc::new(bays);
        let world = World {
            workload: workload(&spec, &Layout { vdevs, target }),
            books: Books::new().map_err(|e| AgeError::Spec(e.to_string()))?,
            bays: bays.clone(),
            sector: engine.allocator().smallest(),
        };
        let world = Arc::new(Mutex::new(world));
        Ok(Simulation { spec, engine, bays, model, world, target, groups: 0, time, filled: None })
    }

    /// What is simulated.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The pool's engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    /// Bytes that simulated blocks hold.
    pub fn held(&self) -> u64 {
        self.world().books.held
    }

    /// Data that would have been written so far.
    pub fn data(&self) -> Tally {
        self.world().books.data
    }

    /// Runs one transaction group; `None`: the pool is full.
    fn sync<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Workload, &mut Space<'_>) -> Result<T, Stop> + Send + 'static,
    ) -> Result<Option<T>, AgeError> {
        let world = self.world.clone();
        let task = move |context: &mut SyncContext<'_>| {
            let mut world = world.lock();
            let World { workload, books, bays, sector } = &mut *world;
            let (allocator, txg) = (context.allocator(), context.tx.txg);
            let mut space = Space { allocator, txg, bays, books, sector: *sector };
            let done = work(&mut **workload, &mut space);
            // What was given up before the pool was full is free all the same.
            Ok(space.hand_back().and(done))
        };
        match self.engine.sync_task(task)? {
            Ok(done) => Ok(Some(done)),
            Err(Stop::Full) => Ok(None),
            Err(Stop::Broken(why)) => Err(AgeError::Broken(why)),
        }
    }

    /// Fills the pool, or has it become like its model. Whether it was done to
    /// the end: `watch` may stop it.
    ///
    /// # Errors
    /// The pool failed or is too small for the workload.
    pub fn fill(&mut self, watch: Watch<'_>) -> Result<bool, AgeError> {
        let begun = Instant::now();
        if let Some(model) = self.model.take()
            && !self.claim(model, begun, watch)?
        {
            return Ok(false);
        }
        loop {
            let allocated = self.engine.allocator().figures(Class::Normal).allocated;
            let room = match self.spec.like {
                Some(_) => 0,
                None => self.target.saturating_sub(allocated),
            };
            match self.sync(move |workload, space| workload.fill(room, space))? {
                Some(true) => break,
                Some(false) => {}
                None => return Err(AgeError::Spec("the pool is too small for this".into())),
            }
            if !self.tell(Some((allocated, self.target)), begun, watch) {
                return Ok(false);
            }
        }
        self.settle()?;
        self.world().books.latency.reset();
        self.filled = Some(begun.elapsed());
        Ok(true)
    }

    /// Claims what is allocated in the model of this pool.
    fn claim(
        &mut self,
        model: PoolModel,
        begun: Instant,
        watch: Watch<'_>,
    ) -> Result<bool, AgeError> {
        let model = Arc::new(model);
        let all = |model: &PoolModel| -> Vec<(usize, usize)> {
            let of = |(i, v): (usize, &VdevModel)| (0..v.free.len()).map(move |m| (i, m));
            model.vdevs.iter().enumerate().flat_map(of).collect()
        };
        let mut rest = all(&model).into_iter().peekable();
        while rest.peek().is_some() {
            let (mut batch, mut extents) = (Vec::new(), 0);
            while extents < CLAIM_BATCH
                && let Some((vdev, metaslab)) = rest.next()
            {
                extents += model.vdevs.get(vdev).map_or(0, |v| v.allocated(metaslab).count());
                batch.push((vdev, metaslab));
            }
            let model = model.clone();
            self.sync(move |workload, space| {
                for (id, metaslab) in batch {
                    let Some(vdev) = model.vdevs.get(id) else { continue };
                    space.claim(id as u64, metaslab as u64, vdev.allocated(metaslab))?;
                    workload.adopt(id as u64, &mut vdev.allocated(metaslab));
                }
                Ok(())
            })?;
            let allocated = self.engine.allocator().figures(Class::Normal).allocated;
            if !self.tell(Some((allocated, self.target)), begun, watch) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lets transaction groups pass until everything that was freed can be allocated again. No
    /// simulated time passes.
    ///
    /// # Errors
    /// The pool failed.
    pub fn settle(&self) -> Result<(), AgeError> {
        for _ in 0..=TXG_DEFER_SIZE {
            self.sync(|_, _| Ok(()))?;
        }
        Ok(())
    }

    fn tell(&self, filling: Option<(u64, u64)>, begun: Instant, watch: Watch<'_>) -> bool {
        let (simulated, spent) = (self.simulated(), begun.elapsed());
        watch(Event::Progress(Progress { filling, simulated, spent }))
    }

    fn simulated(&self) -> Duration {
        self.spec.txg.saturating_mul(u32::try_from(self.groups).unwrap_or(u32::MAX))
    }

    /// Simulates a transaction group; whether there was room for it.
    ///
    /// # Errors
    /// The pool failed.
    pub fn group(&mut self) -> Result<bool, AgeError> {
        let from = self.simulated();
        self.groups += 1;
        let to = self.simulated();
        self.time.store(to.as_secs(), Ordering::Relaxed);
        let done = self.sync(move |workload, space| match full(space.allocator) {
            true => Err(Stop::Full),
            false => workload.group(from, to, space),
        })?;
        Ok(done.is_some())
    }

    fn disks(&self) -> impl Iterator<Item = &Arc<SparseDisk>> {
        self.bays.iter().flat_map(|bay| &bay.disks)
    }

    fn traffic(&self) -> Traffic {
        self.disks().map(|d| d.traffic()).fold(Traffic::default(), Traffic::plus)
    }

    /// Fills the pool, if it is not yet, and has it age; a row of the report for each step. `watch` hears of every
    /// transaction group and every row; if it says no, the report ends there, with a last row.
    ///
    /// # Errors
    /// The pool failed.
    pub fn run(&mut self, watch: Watch<'_>) -> Result<Report, AgeError> {
        let mut report = Report::new(self.spec.clone());
        if self.filled.is_none() && !self.fill(watch)? {
            report.interrupted = true;
            return Ok(report);
        }
        report.simulation.fill_seconds = self.filled.unwrap_or_default().as_secs_f64();
        let begun = Instant::now();
        self.add_row(&mut report, &Since::of(self), begun)?;
        let (mut since, mut full) = (Since::of(self), false);
        let (last, mut on) = (self.spec.groups(), watch(Event::Row(&report)));
        while self.groups < last && !full && on {
            let before = self.simulated();
            full = !self.group()?;
            on = self.tell(None, begun, watch);
            let steps = |at: Duration| at.as_nanos() / self.spec.step.as_nanos().max(1);
            let over = full || !on || self.groups == last;
            if over || steps(self.simulated()) > steps(before) {
                report.full = full;
                self.add_row(&mut report, &since, begun)?;
                since = Since::of(self);
                on &= watch(Event::Row(&report));
            }
        }
        report.interrupted = !on && self.groups < last && !full;
        Ok(report)
    }

    fn add_row(&self, report: &mut Report, since: &Since, begun: Instant) -> Result<(), AgeError> {
        let row = self.row(since)?;
        report.add(row, begun.elapsed(), self.memory());
        Ok(())
    }

    /// The map of free space, as the allocator knows it: segments are exact where metaslabs are
    /// loaded, and what waits to become free counts as allocated. `time` is when simulated time
    /// began, in seconds since 1970.
    pub fn map(&self, time: u64) -> SpaceMapReport {
        let pool = self.engine.pool();
        let embedded_logs = self.engine.allocator().embedded_logs();
        let space = pool.space();
        let vdev = |group: Arc<Group>| {
            let embedded_log = embedded_logs.get(&group.vdev()).copied().flatten();
            let metaslab = |m: &Metaslab| {
                let Extent { start, size, .. } = m.extent();
                let map = MetaslabMap::new(m.id(), start, size, m.allocated());
                let mut map = map.with_free_segments(&m.histogram());
                map.loaded = m.is_loaded();
                map.embedded_log = embedded_log == Some(m.id());
                map
            };
            VdevMap {
                id: group.vdev(),
                name: format!("vdev-{}", group.vdev()),
                class: AllocClass::Normal,
                ashift: group.ashift(),
                metaslab_shift: group.ms_shift(),
                fragmentation: space.as_ref().and_then(|s| s.vdev(group.vdev())?.fragmentation),
                metaslabs: group.metaslabs().iter().map(metaslab).collect(),
            }
        };
        SpaceMapReport {
            version: map::VERSION,
            pool: self.spec.like.clone().unwrap_or_else(|| POOL.into()),
            guid: pool.guid(),
            txg: pool.uberblock().txg,
            time: time.saturating_add(self.simulated().as_secs()),
            fragmentation: space.as_ref().and_then(|space| space.pool().fragmentation),
            vdevs: self.engine.allocator().groups().map(vdev).collect(),
            owners: None,
        }
    }

    fn row(&self, since: &Since) -> Result<Row, AgeError> {
        let mut world = self.world();
        let step = Step {
            time: self.simulated().as_secs_f64(),
            groups: self.groups - since.groups,
            traffic: self.traffic().since(since.traffic),
            before: since.counts,
            spent: since.at.elapsed(),
        };
        let row = step.row(&self.engine, &world.books)?;
        world.books.latency.reset();
        Ok(row)
    }

    /// Bytes of memory: of the devices' contents, and of what the workload knows.
    fn memory(&self) -> u64 {
        let disks: u64 = self.disks().map(|d| d.memory()).sum();
        let of = |group: Arc<Group>| group.metaslabs().iter().map(|m| m.memory()).sum::<u64>();
        let loaded: u64 = self.engine.allocator().groups().map(of).sum();
        disks + self.world().workload.memory() + loaded
    }

    /// Ends it: exports the pool and writes its devices to sparse files in `dir`.
    ///
    /// # Errors
    /// The pool failed; the files cannot be written.
    pub fn save(self, dir: &std::path::Path) -> Result<Vec<PathBuf>, AgeError> {
        self.engine.export(false)?;
        let mut paths = Vec::new();
        for (i, disk) in self.disks().enumerate() {
            let path = dir.join(format!("disk{i}"));
            disk.save(&path).map_err(|e| AgeError::Broken(format!("{}: {e}", path.display())))?;
            paths.push(path);
        }
        Ok(paths)
    }
}

/// Whether the pool refuses further data, keeping the rest for itself.
fn full(allocator: &Arc<Allocator>) -> bool {
    let figures = allocator.figures(Class::Normal);
    let embedded_log = allocator.figures(Class::EmbeddedLog).space;
    let slop = PoolSpace { normal: figures.space, embedded_log, ..PoolSpace::default() }.slop();
    figures.allocated - figures.deferred + slop > figures.space
}

/// How things were when a row began.
struct Since {
    groups: u64,
    traffic: Traffic,
    counts: Counts,
    at: Instant,
}

impl Since {
    fn of(simulation: &Simulation) -> Since {
        Since {
            groups: simulation.groups,
            traffic: simulation.traffic(),
            counts: Counts::of(&simulation.world().books),
            at: Instant::now(),
        }
    }
}
