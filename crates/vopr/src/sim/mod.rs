//! A history: a pool on simulated disks, worked with as the plan says, and compared with the model.
//!
//! What is compared, and when:
//!
//! - what datasets hold while they are in use, at times;
//! - after each loss of power: which datasets and snapshots there are, byte by byte what snapshots hold, and of each
//!   dataset whether it is what its [`History`] lets a crash leave;
//! - at times, and after each loss of power: what disks lack is in their dirty time logs;
//! - in the end: everything, what every dataset and snapshot counts, free space in every metaslab, in memory and on disk.
//!
//! Nothing may fail while there is power and no more than one disk of a vdev with redundancy is bad.

mod changes;
mod devices;
mod kept;
mod logs;
mod recover;
mod tables;

use crate::disk::{Power, SimDisk};
use crate::model::{Change, Data, Entry, Model, POOL, same, same_data};
use crate::plan::{Kind, Plant, Step};
use crate::store::Store;
use cenote_dsl::Dataset;
use cenote_engine::Engine;
use cenote_engine::create::{Class, Layout, Redundancy, VdevSpec};
use cenote_pool::ImportOptions;
use cenote_pool::props::PropChange;
use cenote_torture::live::block::Block;
use cenote_torture::live::disk::Image;
use cenote_torture::live::history::History;
use cenote_torture::live::lab::{self, Lab, Logs, Shape, Throttle};
use cenote_torture::live::space::check_metaslabs;
use cenote_torture::live::world::{State, Sync, World, settings};
use cenote_torture::live::{Moment, Stopped};
use cenote_vdev::{Device, draid};
use cenote_zpl::FileSystem;
use changes::touched;
use devices::{DeviceChange, Devices, EXTRA};
use kept::Kept;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tables::{Blocks, TableChange};

/// Datasets, and snapshots of each, that there are at most.
const MOST: usize = 5;
/// `failmode=wait`, and `panic`.
const FAILMODE: [u64; 2] = [0, 2];
/// How often it is looked whether the power is gone.
const LOOK: Duration = Duration::from_millis(200);
/// How often what disks miss is taken away, where that is planted.
const THEFT: Duration = Duration::from_micros(500);

/// The smallest dRAID vdev without spares.
const DRAID: draid::Shape =
    draid::Shape { ndata: 1, nparity: 1, nspares: 0, children: 3, ngroups: 3 };

const SHAPES: [Shape; 5] = [
    Shape { redundancy: Redundancy::Single, disks: 2, ashift: 9, size: 128 << 20 },
    Shape { redundancy: Redundancy::Mirror, disks: 2, ashift: 12, size: 192 << 20 },
    Shape { redundancy: Redundancy::RaidZ(1), disks: 3, ashift: 12, size: 128 << 20 },
    Shape { redundancy: Redundancy::Mirror, disks: 3, ashift: 9, size: 160 << 20 },
    Shape { redundancy: Redundancy::Draid(DRAID), disks: 3, ashift: 12, size: 128 << 20 },
];

/// What the disks beside an object store are for.
const BESIDE: [&[Class]; 4] =
    [&[], &[Class::Log], &[Class::Special, Class::Log], &[Class::Special]];
/// The disks beside an object store.
const DISKS: Shape = Shape { redundancy: Redundancy::Single, disks: 0, ashift: 9, size: 128 << 20 };
/// How often an import is tried if the pool is in an object store: what the host before wrote may arrive meanwhile.
const IMPORTS: usize = 5;

type Done<T = ()> = Result<T, Stopped>;

/// A dataset in use.
enum Live {
    Files(World),
    Block(Block),
}

/// What is done while datasets are worked with.
enum Beside {
    Nothing,
    Change(Change),
    Devices(DeviceChange),
    Tables(TableChange),
    /// These disks take nothing, until the pool is resumed.
    Outage(Vec<usize>),
    /// The object store is away, until the pool is resumed.
    StoreAway,
}

/// Work beside that of datasets.
type Other = Box<dyn FnOnce() -> Done + Send>;

impl Live {
    fn step(&mut self) -> Done {
        match self {
            Live::Files(world) => world.step(),
            Live::Block(block) => block.step(),
        }
    }

    /// Some steps, with time between them.
    fn steps(&mut self, steps: usize, seed: u64) -> Done {
        for n in 0..steps {
            if (seed >> n) & 3 == 0 {
                std::thread::sleep(Duration::from_millis(seed >> 8 & 0xfff));
            }
            self.step()?;
        }
        Ok(())
    }

    fn reseed(&mut self, seed: u64) {
        let rng = SmallRng::seed_from_u64(seed);
        match self {
            Live::Files(world) => world.rng = rng,
            Live::Block(block) => block.rng = rng,
        }
    }

    fn data(&self) -> Data {
        match self {
            Live::Files(world) => Data::Files(Arc::new(world.state().clone())),
            Live::Block(block) => Data::Volume(Arc::new(block.content().to_vec())),
        }
    }

    /// Whether it is as the model says. Files are read ahead meanwhile.
    fn compare(&self) -> Done {
        match self {
            Live::Files(world) => {
                for ino in world.state().inos.values() {
                    if let Ok(file) = world.fs.open_file(*ino) {
                        file.prefetch(0, 1 << 20);
                    }
                }
                world.compare()
            }
            Live::Block(block) => block.compare(),
        }
    }

    /// All of it is stable.
    fn is_stable(&mut self) {
        match self {
            Live::Files(world) => world.is_stable(),
            Live::Block(block) => block.is_stable(),
        }
    }

    fn set_sync(&mut self, sync: Sync) {
        match self {
            Live::Files(world) => world.sync = sync,
            Live::Block(block) => block.sync = sync,
        }
    }

    fn into_history(self) -> History {
        match self {
            Live::Files(world) => world.history,
            Live::Block(block) => block.history,
        }
    }
}

/// What a history came to.
#[derive(Debug, Default)]
pub struct Figures {
    /// Losses of power.
    pub crashes: usize,
    /// Transaction groups.
    pub groups: u64,
    /// Operations of disks.
    pub operations: usize,
    /// Changes with everything that was written.
    pub digest: u64,
}

/// See the [module](self).
pub struct Sim {
    seed: u64,
    plant: Option<Plant>,
    disks: Vec<Arc<SimDisk>>,
    /// The object store that has the pool's data.
    store: Option<Store>,
    blocks: Blocks,
    power: Arc<Power>,
    lab: Lab,
    /// `None` only while there is no power.
    engine: Option<Arc<Engine>>,
    model: Model,
    live: BTreeMap<String, Live>,
    /// A change that is being made, with what comes of it.
    in_flight: Option<(Change, Model)>,
    devices: Devices,
    /// What the pool's checkpoint has.
    kept: Option<Kept>,
    /// A pool that cannot be written is suspended until it is resumed.
    waits: bool,
    figures: Figures,
}

fn lab(disks: &[Arc<SimDisk>], store: Option<&Store>, blocks: Blocks, dirty_max: u64) -> Lab {
    let throttle = Throttle {
        dirty_max,
        txg_timeout: Duration::from_secs(5),
        timer: cenote_dmu::outside::Timer::default(),
    };
    let disks = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let lab = Lab::new(disks).on_all_processors().throttled(throttle).encrypted(blocks.encrypted);
    let lab = if blocks.fast { lab } else { lab.without("fast_dedup") };
    match store {
        Some(store) => lab.with_object(&store.name),
        None => lab,
    }
}

/// A store, with disks beside it.
fn tops_of(store: &Store, lab: &Lab, beside: &[Class]) -> Vec<VdevSpec> {
    let disks = lab.paths().zip(beside).map(|(path, class)| VdevSpec {
        class: *class,
        ..VdevSpec::new(Redundancy::Single, vec![path])
    });
    let store = VdevSpec::new(Redundancy::Single, vec![store.name.clone()]);
    [store].into_iter().chain(disks).collect()
}

/// Tells what is done. Always: what it takes in memory is the same then, whoever reads it.
fn tell(what: std::fmt::Arguments<'_>) {
    println!("  {what}");
}

/// Devices with too many errors go out of use. Once the power is gone no thread resumes the pool: it gives up what it holds.
fn watch(engine: &Arc<Engine>, power: &Arc<Power>, plant: Option<Plant>) -> Done {
    engine.act_on_errors();
    if plant == Some(Plant::LostLog) {
        lose_logs(engine, power)?;
    }
    let (engine, power) = (Arc::downgrade(engine), power.clone());
    std::thread::Builder::new().name("watcher".into()).spawn(move || {
        loop {
            std::thread::sleep(LOOK);
            match engine.upgrade() {
                Some(engine) if power.is_off() => return engine.hold_no_more(),
                Some(_) => {}
                None => return,
            }
        }
    })?;
    Ok(())
}

/// A planted fault: what disks miss is taken away before a group notes it.
fn lose_logs(engine: &Arc<Engine>, power: &Arc<Power>) -> Done {
    let (engine, power) = (Arc::downgrade(engine), power.clone());
    std::thread::Builder::new().name("thief".into()).spawn(move || {
        while let Some(engine) = engine.upgrade().filter(|_| !power.is_off()) {
            drop(engine.pool().store().vdevs().take_missed());
            drop(engine);
            std::thread::sleep(THEFT);
        }
    })?;
    Ok(())
}

fn set_tunables(rng: &mut SmallRng) -> Done {
    cenote_torture::live::world::shrink();
    cenote_dsl::tunables::LIVELIST_MAX_ENTRIES.set([3, 10, 500_000][rng.random_range(0..3)])?;
    cenote_dsl::tunables::LIVELIST_MIN_PERCENT_SHARED.set([0, 75][rng.random_range(0..2)])?;
    Ok(())
}

impl Sim {
    /// A new pool.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(seed: u64, plant: Option<Plant>, stored: bool) -> Result<Sim, String> {
        Sim::begin(seed, plant, stored).map_err(|Stopped(why)| why)
    }

    fn begin(seed: u64, plant: Option<Plant>, stored: bool) -> Done<Sim> {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed);
        set_tunables(&mut rng)?;
        let blocks = Blocks::of(seed)?;
        let power = Power::on();
        let known = SHAPES.get(rng.random_range(0..=SHAPES.len())).filter(|_| !stored);
        let store = known.is_none().then(|| Store::new(&power, seed));
        let beside = BESIDE[rng.random_range(0..BESIDE.len())];
        let shape = known.copied().unwrap_or(Shape { disks: beside.len(), ..DISKS });
        let new = |i| SimDisk::new(i, Image::new(shape.size), power.clone(), (seed, plant));
        let disks: Vec<_> = (0..shape.disks + EXTRA).map(new).collect();
        let dirty_max = [8 << 20, 64 << 20][rng.random_range(0..2)];
        let lab = lab(&disks, store.as_ref(), blocks, dirty_max);
        let logs = if rng.random_ratio(1, 4) { Logs::Off } else { Logs::On };
        let spare = rng.random_bool(0.5).then_some(shape.disks);
        let spares = spare.and_then(|spare| lab.paths().nth(spare)).into_iter().collect();
        let tops = match &store {
            Some(store) => tops_of(store, &lab, beside),
            None => lab.layout(&shape).tops,
        };
        let layout = Layout { tops, spares, ..Layout::default() };
        let engine = lab.create_layout(&layout, shape.ashift, logs)?;
        let failmode = FAILMODE[rng.random_range(0..2)];
        let autotrim = rng.random_range(0..2);
        engine.set_properties(vec![
            PropChange::Number("failmode", failmode),
            PropChange::Number("autotrim", autotrim),
        ])?;
        watch(&engine, &power, plant)?;
        let mut model = Model::default();
        model.add(POOL, Entry::new(Data::Files(Arc::default())));
        let (live, in_flight, figures) = Default::default();
        let devices = Devices { spare, ..Devices::default() };
        let engine = Some(engine);
        let mut sim = Sim {
            seed,
            plant,
            disks,
            store,
            blocks,
            power,
            lab,
            engine,
            model,
            live,
            in_flight,
            devices,
            kept: None,
            waits: false,
            figures,
        };
        sim.waits = failmode == 0;
        tell(format_args!("store {:?} with {beside:?}", sim.store.as_ref().map(|s| &s.name)));
        tell(format_args!(
            "{shape:?}, spare {spare:?}, log space maps {logs:?}, failmode {failmode}, autotrim {autotrim}"
        ));
        tell(format_args!("{blocks:?}"));
        sim.begin_devices()?;
        sim.open(POOL)?;
        if blocks.dedup {
            let (name, value) = (POOL.into(), tables::VALUES[0].into());
            sim.make(Change::Set { name, property: "dedup", value }, &mut rng)?;
        }
        for (name, volume) in [("tank/a", None), ("tank/v", Some(256 << 10))] {
            sim.make(Change::Create { name: name.into(), volume }, &mut rng)?;
        }
        Ok(sim)
    }

    fn engine(&self) -> Done<Arc<Engine>> {
        self.engine.clone().ok_or_else(|| Stopped("there is no power".into()))
    }

    fn moment(&self) -> Moment {
        let power = self.power.clone();
        Arc::new(move || power.moment())
    }

    fn find(&self, name: &str) -> Done<Dataset> {
        let found = self.engine()?.pool().dsl().find(name)?;
        found.ok_or_else(|| Stopped(format!("{name} is not there")))
    }

    /// Opens a dataset, which holds what the model says.
    fn open(&mut self, name: &str) -> Done {
        let (engine, entry) = (self.engine()?, &self.model.datasets[name]);
        let rng = SmallRng::seed_from_u64(self.seed);
        let mut live = match &entry.data {
            Data::Files(state) => {
                let fs = self.files(name)?;
                fs.drain_unlinked()?;
                let state = State::clone(state);
                let mut world = World::new(rng, engine, fs, self.moment(), state);
                world.repeats = self.blocks.dedup;
                Live::Files(world)
            }
            Data::Volume(content) => {
                let content = content.to_vec();
                let mut block = Block::open(rng, engine, name, self.moment(), content)?;
                block.repeats = self.blocks.dedup;
                Live::Block(block)
            }
        };
        live.set_sync(entry.sync);
        self.live.insert(name.into(), live);
        Ok(())
    }

    fn files(&self, name: &str) -> Done<Arc<FileSystem>> {
        let live = self.engine()?.live(self.find(name)?.ds_obj)?;
        Ok(FileSystem::open_live(live, settings(self.seed.is_multiple_of(2)))?)
    }

    /// Closes a dataset: it can be destroyed, or get other contents.
    fn close(&mut self, name: &str) -> Done {
        let object = self.find(name)?.ds_obj;
        if let Some(Live::Files(world)) = self.live.get_mut(name) {
            world.release_all()?;
            world.fs.finish_freeing();
        }
        self.engine()?.close(object)?;
        // Until here it is worked with, if the power goes.
        self.live.remove(name);
        Ok(())
    }

    /// Does a step of the plan, and goes on after a loss of power.
    ///
    /// # Errors
    /// Something is not as it should be.
    pub fn step(&mut self, step: &Step) -> Result<(), String> {
        let mut rng = SmallRng::seed_from_u64(step.seed);
        tell(format_args!("step {} {:?}", step.number, step.kind));
        let done = self.try_step(step.kind, &mut rng).and_then(|()| self.look_at_logs(&mut rng));
        if self.power.is_off() {
            if let Err(Stopped(why)) = &done {
                tell(format_args!("the power went: {why}"));
            }
            return self
                .recover(&mut rng)
                .map_err(|Stopped(why)| format!("after a loss of power: {why}"));
        }
        done.map_err(|Stopped(why)| why)
    }

    fn try_step(&mut self, kind: Kind, rng: &mut SmallRng) -> Done {
        match kind {
            Kind::Work => {
                let change = self.any_table_change(rng);
                self.work(change.map_or(Beside::Nothing, Beside::Tables), rng)
            }
            Kind::Change => {
                let change = self.any_change(rng);
                self.work(change.map_or(Beside::Nothing, Beside::Change), rng)
            }
            Kind::Devices => {
                if rng.random_ratio(1, 3) {
                    devices::hold_back(rng.random_bool(0.7), rng)?;
                }
                let change = self.any_device_change(rng)?;
                self.work(change.map_or(Beside::Nothing, Beside::Devices), rng)
            }
            Kind::Outage if self.waits && self.store.is_some() && rng.random_bool(0.5) => {
                self.work(Beside::StoreAway, rng)
            }
            Kind::Outage => {
                let disks = self.any_outage(rng)?;
                self.work(disks.map_or(Beside::Nothing, Beside::Outage), rng)
            }
            Kind::Settle => {
                self.settle()?;
                self.prove(rng)
            }
            Kind::Wait => {
                std::thread::sleep(Duration::from_millis(rng.random_range(1..12_000)));
                Ok(())
            }
            Kind::Sync => {
                self.engine()?.sync()?;
                self.live.values_mut().for_each(Live::is_stable);
                if rng.random_bool(0.3) {
                    self.prove_sound()?;
                }
                if self.plant == Some(Plant::DoubleFree) { self.free_twice() } else { Ok(()) }
            }
            Kind::Compare => {
                self.live.values().try_for_each(Live::compare)?;
                check_metaslabs(&*self.engine()?).map(drop).map_err(Stopped)
            }
            Kind::Reimport => self.reimport(rng),
            Kind::Checkpoint => self.checkpoint(),
            Kind::Cut => {
                self.power.goes_after(rng.random_range(0..400));
                Ok(())
            }
            Kind::Break => match &self.store {
                Some(store) if rng.random_bool(0.5) => {
                    tell(format_args!("the store is not well"));
                    store.worsen();
                    Ok(())
                }
                _ => self.break_disk(rng),
            },
            Kind::Mend => self.mend(),
        }
    }

    /// A planted fault.
    fn free_twice(&self) -> Done {
        let engine = self.engine()?;
        let bp = *engine.pool().dsl().open_objset(&self.find(POOL)?)?.root_bp();
        Ok(engine.sync_task(move |context| {
            context.tx.frees.extend([bp, bp]);
            Ok(())
        })?)
    }

    fn reimport(&mut self, rng: &mut SmallRng) -> Done {
        if self.devices.bad.is_some() {
            self.mend()?;
        }
        self.export()?;
        match self.kept.is_some() && rng.random_bool(0.5) {
            true => self.rewind()?,
            false => self.import(ImportOptions::default())?,
        }
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        names.iter().try_for_each(|name| self.open(name))?;
        self.live.values().try_for_each(Live::compare)?;
        self.check_logs(false)
    }

    fn export(&mut self) -> Done {
        for live in self.live.values_mut() {
            if let Live::Files(world) = live {
                world.release_all()?;
                world.fs.finish_freeing();
            }
        }
        self.engine()?.export(false)?;
        self.live.values_mut().for_each(Live::is_stable);
        self.live.clear();
        if let Some(engine) = self.engine.take() {
            self.figures.groups += engine.pool().uberblock().txg;
        }
        Ok(())
    }

    /// Imports the pool and replays its logs.
    fn import(&mut self, options: ImportOptions) -> Done {
        let engine = self.imported(options)?;
        watch(&engine, &self.power, self.plant)?;
        let left = cenote::contents::replay_logs(&engine, &|_, _| true)?;
        if !left.is_empty() {
            return Err(Stopped(format!("logs that are not replayed: {left:?}")));
        }
        self.engine = Some(engine);
        Ok(())
    }

    /// The pool, imported.
    fn imported(&self, options: ImportOptions) -> Done<Arc<Engine>> {
        let mut last = Stopped("the pool is gone".into());
        for _ in 0..if self.store.is_some() { IMPORTS } else { 1 } {
            let Some(found) = self.lab.find() else { continue };
            match self.lab.import_with(&found, options.clone()) {
                Ok(engine) => return Ok(engine),
                Err(why) => last = why.into(),
            }
            if self.power.is_off() {
                break;
            }
            tell(format_args!("it is not imported: {}", last.0));
        }
        Err(last)
    }

    /// Has datasets worked with, each by a thread, and meanwhile something else done.
    fn work(&mut self, beside: Beside, rng: &mut SmallRng) -> Done {
        let change = if let Beside::Change(change) = &beside { Some(change.clone()) } else { None };
        let busy: Vec<String> = change.iter().flat_map(touched).collect();
        let mut all: Vec<&String> = self.live.keys().filter(|n| !busy.contains(n)).collect();
        let most = rng.random_range(if change.is_some() { 0..2 } else { 1..4 });
        // What is read fails while the store is away for long.
        let most = if matches!(beside, Beside::StoreAway) { 0 } else { most };
        let mut chosen = BTreeMap::new();
        while chosen.len() < most && !all.is_empty() {
            let name = all.swap_remove(rng.random_range(0..all.len()));
            chosen.insert(name.clone(), (rng.random::<u64>(), rng.random_range(1..7)));
        }
        tell(format_args!("work with {:?}", chosen.keys()));
        // Its snapshots go to the clone that is promoted.
        let robbed = match &change {
            Some(Change::Promote { name }) => self.model.origin_of(name),
            _ => None,
        };
        let others = match &beside {
            Beside::Outage(_) | Beside::StoreAway => Vec::new(),
            _ => self.others(&busy, robbed.as_deref(), rng)?,
        };
        let mut lanes = BTreeMap::new();
        for name in chosen.keys() {
            lanes.extend(self.live.remove_entry(name));
        }
        let mut changed: Done = Ok(());
        let mut worked = Ok(());
        let mut jobs: Vec<(String, Box<dyn FnOnce() -> Done + Send + '_>)> = Vec::new();
        for (name, lane) in &mut lanes {
            let (seed, steps) = chosen[name];
            lane.reseed(seed);
            jobs.push((name.clone(), Box::new(move || lane.steps(steps, seed))));
        }
        for (name, work) in others {
            jobs.push((name.into(), work));
        }
        std::thread::scope(|scope| {
            let mut running = Vec::new();
            for (name, work) in jobs {
                let thread = std::thread::Builder::new().name(name.clone());
                match thread.spawn_scoped(scope, work) {
                    Ok(thread) => running.push((name, thread)),
                    Err(e) => worked = Err(e.into()),
                }
            }
            changed = match beside {
                Beside::Nothing => Ok(()),
                Beside::Change(change) => self.make(change, rng),
                Beside::Devices(change) => self.change_devices(&change),
                Beside::Tables(change) => self.change_tables(change),
                Beside::Outage(disks) => self.outage(&disks, rng),
                Beside::StoreAway => self.store_away(rng),
            };
            for (name, thread) in running {
                let done = thread.join().unwrap_or_else(|_| Err(Stopped("it panicked".into())));
                if let Err(Stopped(why)) = done {
                    worked = Err(Stopped(format!("{name}: {why}")));
                }
            }
        });
        let after = self.in_flight.as_mut().map(|(_, after)| after);
        for model in [&mut self.model].into_iter().chain(after) {
            for (name, lane) in &lanes {
                model.datasets.entry(name.clone()).and_modify(|entry| entry.data = lane.data());
            }
        }
        self.live.extend(lanes);
        self.lose_an_update(rng);
        worked.and(changed)
    }

    fn pick<T: Clone>(rng: &mut SmallRng, all: &[T]) -> Option<T> {
        all.get(rng.random_range(0..all.len().max(1))).cloned()
    }

    /// What goes on beside that, for what is not `busy`: datasets are made stable by others too, groups are asked for, snapshots
    /// (not those of `robbed`) are read and compared.
    fn others(
        &self,
        busy: &[String],
        robbed: Option<&str>,
        rng: &mut SmallRng,
    ) -> Done<Vec<(&'static str, Other)>> {
        let mut others = Vec::<(&'static str, Other)>::new();
        let free = |name: &&String| !busy.contains(name);
        let heads: Vec<String> = self.model.datasets.keys().filter(free).cloned().collect();
        let pauses = |rng: &mut SmallRng| -> Vec<u64> {
            (0..rng.random_range(1..5)).map(|_| rng.random_range(0..8000)).collect()
        };
        let every = move |pauses: Vec<u64>, work: Box<dyn Fn() -> Done + Send>| -> Other {
            Box::new(move || {
                pauses.into_iter().try_for_each(|pause| {
                    std::thread::sleep(Duration::from_micros(pause));
                    work()
                })
            })
        };
        let engine = self.engine()?;
        if let (Some(head), true) = (Sim::pick(rng, &heads), rng.random_bool(0.5)) {
            let (own, object) = (engine.clone(), self.find(&head)?.ds_obj);
            let work = Box::new(move || Ok(own.commit(object)?));
            others.push(("committer", every(pauses(rng), work)));
        }
        if rng.random_bool(0.4) {
            let own = engine.clone();
            others.push(("grouper", every(pauses(rng), Box::new(move || Ok(own.sync()?)))));
        }
        if let (Some(head), true) = (Sim::pick(rng, &heads), rng.random_bool(0.5))
            && robbed != Some(&*head)
            && let Some(snapshot) = Sim::pick(rng, &self.model.datasets[&head].snapshots)
        {
            let name = format!("{head}@{}", snapshot.name);
            let work = Box::new(move || {
                let pool = engine.pool();
                let found = pool.dsl().find(&name)?;
                let found = found.ok_or_else(|| Stopped(format!("{name} is not there")))?;
                same_data(&pool, &found, &snapshot.data)
            });
            others.push(("reader", every(pauses(rng), work)));
        }
        Ok(others)
    }

    /// A planted fault: the model has a change that was never made.
    fn lose_an_update(&mut self, rng: &mut SmallRng) {
        if self.plant != Some(Plant::LostUpdate) {
            return;
        }
        if let Some(Live::Block(block)) =
            self.live.values_mut().find(|l| matches!(l, Live::Block(_)))
        {
            block.forget(rng.random());
        }
    }

    /// Ends the history: everything is compared, and what is left on the disks.
    ///
    /// # Errors
    /// Something is not as it should be.
    pub fn finish(mut self) -> Result<(Figures, Vec<Image>), String> {
        self.power.stays();
        let done = self.ended();
        let (operations, digest) = (self.power.operations(), self.power.digest());
        self.figures.operations += operations;
        self.figures.digest = self.figures.digest.rotate_left(7) ^ digest;
        // What is beside a store is no pool for OpenZFS.
        let judged = self.disks.iter().filter(|_| self.store.is_none());
        let images = judged.map(|d| d.image()).collect();
        done.map(|()| (self.figures, images)).map_err(|Stopped(why)| format!("in the end: {why}"))
    }

    fn ended(&mut self) -> Done {
        self.live.values().try_for_each(Live::compare)?;
        self.settle()?;
        let engine = self.engine()?;
        loop {
            let before = engine.pool().uberblock().txg;
            engine.sync()?;
            if engine.pool().uberblock().txg == before {
                break;
            }
        }
        check_metaslabs(&engine).map_err(Stopped)?;
        drop(engine);
        self.export()?;
        same(&*self.lab.look().map_err(Stopped)?, &self.model)?;
        self.check_tables()?;
        let Some(store) = &self.store else { return Ok(()) };
        lab::account(&self.lab).map_err(Stopped)?;
        store.audit()
    }
}
