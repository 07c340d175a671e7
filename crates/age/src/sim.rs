//! A simulation: a pool, a workload, and one transaction group after another.
//!
//! The pool is made with [`Engine::create`] on [`SparseDisk`]s. Each group is one sync task, which
//! has the workload allocate and free in syncing context; the passes of the sync then write space
//! maps and the rest of the MOS as they do in any pool. So of everything in the report that comes
//! from the pool nothing is modelled: free space, space maps, logs, what is written for them.
//! Modelled are indirect blocks and dnodes ([`crate::indirect`]), and that the pool holds
//! nothing else.
//!
//! One thread does it all, with one allocator and no loading ahead of need in the background, so that
//! a seed leads to the same result. (The pool's guids are random as those of any pool.)

use crate::device::{Devices, SparseDisk, Traffic};
use crate::report::{Counts, Report, Row, Step, Took};
use crate::space::{Books, Space, Stop, Tally};
use crate::spec::{AgeError, Spec};
use crate::workload::{Layout, Workload, workload};
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dsl::PoolSpace;
use cenote_pool::create::{
    CreateSpec, FIRST_TXG, FeatureChoice, Redundancy, VdevSpec, choose_features,
};
use cenote_pool::engine::{CreateRequest, Engine, EngineOptions, SyncContext};
use cenote_store::alloc::{Allocator, Class, TXG_DEFER_SIZE};
use cenote_vdev::Device;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of the pool's cache.
const CACHE: u64 = 512 << 20;

/// The name of simulated pools.
pub const POOL: &str = "simulated";

/// What a transaction group works on.
struct World {
    workload: Box<dyn Workload>,
    books: Books,
    disks: Vec<Arc<SparseDisk>>,
    sector: u64,
}

/// How far a simulation is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Whether the pool is still being filled.
    pub filling: bool,
    /// Simulated time.
    pub simulated: Duration,
    /// Time that the simulation of it took.
    pub spent: Duration,
}

/// A simulated pool.
pub struct Simulation {
    spec: Spec,
    engine: Arc<Engine>,
    disks: Vec<Arc<SparseDisk>>,
    world: Arc<Mutex<World>>,
    target: u64,
    /// Groups that were simulated since the pool was filled.
    groups: u64,
    began: Instant,
}

/// A file system with nothing in it.
fn format(os: &mut OpenObjectSet) -> Result<(), WriteError> {
    let formatted = cenote_zpl::format(os, &cenote_zpl::CreateProps::default(), FIRST_TXG);
    formatted.map_err(|e| WriteError::Sink(Box::new(e)))
}

/// How the engine works: nothing happens unless it is asked for.
fn options() -> EngineOptions {
    let never = Duration::from_secs(1 << 30);
    EngineOptions { txg_timeout: Some(never), deterministic: true, ..EngineOptions::default() }
}

/// Makes the pool.
fn create(spec: &Spec, disks: &[Arc<SparseDisk>]) -> Result<Arc<Engine>, AgeError> {
    let top = |disk: &Arc<SparseDisk>| VdevSpec {
        redundancy: Redundancy::Single,
        devices: vec![disk.path().to_path_buf()],
        class: Default::default(),
    };
    let tops = disks.iter().map(top).collect();
    let layout = cenote_pool::create::Layout { tops, ..Default::default() };
    let named = [("log_spacemap".to_string(), spec.logs)];
    let choice = FeatureChoice { none: false, compatibility: None, named: &named };
    let (features, _) = choose_features(&choice).map_err(AgeError::Spec)?;
    let request = CreateRequest {
        spec: CreateSpec {
            name: POOL,
            layout: &layout,
            ashift: spec.ashift.into(),
            force: true,
            pool: None,
            txg: FIRST_TXG,
            imported: &[],
            devices: &Devices(disks),
        },
        features: &features,
        props: &[],
        root_props: &[],
        altroot: None,
        arc_bytes: Some(CACHE),
    };
    Ok(Engine::create(&request, options(), format)?)
}

impl Simulation {
    /// Makes an empty pool.
    ///
    /// # Errors
    /// The specification makes no sense; the pool cannot be made.
    pub fn new(spec: Spec) -> Result<Simulation, AgeError> {
        spec.check()?;
        let size = (spec.size / spec.vdevs) >> 20 << 20;
        let disks: Vec<_> = (0..spec.vdevs).map(|i| SparseDisk::new(i, size)).collect();
        let engine = create(&spec, &disks)?;
        let groups: Vec<_> = engine.allocator().groups().cloned().collect();
        let metaslab = groups.first().and_then(|g| Some((g, g.metaslabs().first()?.extent())));
        let Some((group, extent)) = metaslab else {
            return Err(AgeError::Spec("a pool without metaslabs".into()));
        };
        let space = engine.allocator().figures(Class::Normal).space;
        let target = (space as f64 * spec.fill / 100.0) as u64;
        let layout = Layout {
            vdevs: spec.vdevs,
            ms_shift: extent.size.ilog2(),
            metaslabs: group.metaslabs().len() as u64,
            target,
        };
        let world = World {
            workload: workload(&spec, &layout),
            books: Books::new().map_err(|e| AgeError::Spec(e.to_string()))?,
            disks: disks.clone(),
            sector: spec.sector(),
        };
        let (world, began) = (Arc::new(Mutex::new(world)), Instant::now());
        Ok(Simulation { spec, engine, disks, world, target, groups: 0, began })
    }

    /// The pool's engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
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
            let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
            let World { workload, books, disks, sector } = &mut *world;
            let (allocator, txg) = (context.allocator(), context.tx.txg);
            let mut space = Space { allocator, txg, disks, books, sector: *sector };
            if full(allocator) {
                return Ok(Err(Stop::Full));
            }
            Ok(work(&mut **workload, &mut space))
        };
        match self.engine.sync_task(task)? {
            Ok(done) => Ok(Some(done)),
            Err(Stop::Full) => Ok(None),
            Err(Stop::Broken(why)) => Err(AgeError::Broken(why)),
        }
    }

    /// Fills the pool.
    ///
    /// # Errors
    /// The pool failed or is too small for the workload; `watch` said no.
    pub fn fill(&mut self, watch: &mut dyn FnMut(Progress) -> bool) -> Result<(), AgeError> {
        let begun = Instant::now();
        loop {
            let allocated = self.engine.allocator().figures(Class::Normal).allocated;
            let room = self.target.saturating_sub(allocated);
            match self.sync(move |workload, space| workload.fill(room, space))? {
                Some(true) => break,
                Some(false) => {}
                None => return Err(AgeError::Spec("the pool is too small for this".into())),
            }
            self.tell(true, begun, watch)?;
        }
        self.settle()?;
        self.world().books.latency.reset();
        Ok(())
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

    fn tell(
        &self,
        filling: bool,
        begun: Instant,
        watch: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<(), AgeError> {
        let progress = Progress { filling, simulated: self.simulated(), spent: begun.elapsed() };
        if watch(progress) { Ok(()) } else { Err(AgeError::Cancelled) }
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
        let done = self.sync(move |workload, space| workload.group(from, to, space))?;
        Ok(done.is_some())
    }

    fn traffic(&self) -> Traffic {
        self.disks.iter().map(|d| d.traffic()).fold(Traffic::default(), Traffic::plus)
    }

    /// Fills the pool and has it age; a row of the report for each step.
    ///
    /// # Errors
    /// The pool failed; `watch` said no.
    pub fn run(&mut self, watch: &mut dyn FnMut(Progress) -> bool) -> Result<Report, AgeError> {
        self.fill(watch)?;
        let filling = self.began.elapsed();
        let begun = Instant::now();
        let mut rows = vec![self.row(&Since::of(self))?];
        let (mut since, mut full) = (Since::of(self), false);
        let last = self.spec.groups();
        while self.groups < last && !full {
            full = !self.group()?;
            let steps = |at: Duration| at.as_nanos() / self.spec.step.as_nanos().max(1);
            let before = self
                .spec
                .txg
                .saturating_mul(u32::try_from(self.groups.saturating_sub(1)).unwrap_or(u32::MAX));
            if full || self.groups == last || steps(self.simulated()) > steps(before) {
                rows.push(self.row(&since)?);
                since = Since::of(self);
            }
            self.tell(false, begun, watch)?;
        }
        let took = Took { filling, aging: begun.elapsed() };
        Ok(Report::new(self.spec.clone(), rows, self.memory(), full, took))
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
        let disks: u64 = self.disks.iter().map(|d| d.memory()).sum();
        let loaded = self.engine.allocator().groups().flat_map(|g| g.metaslabs());
        disks + self.world().workload.memory() + loaded.map(|m| m.memory()).sum::<u64>()
    }

    /// Ends it: exports the pool and writes its devices to sparse files in `dir`.
    ///
    /// # Errors
    /// The pool failed; the files cannot be written.
    pub fn save(self, dir: &std::path::Path) -> Result<Vec<PathBuf>, AgeError> {
        self.engine.export(false)?;
        let mut paths = Vec::new();
        for (i, disk) in self.disks.iter().enumerate() {
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
    let slop = PoolSpace { normal: figures.space, ..PoolSpace::default() }.slop();
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
