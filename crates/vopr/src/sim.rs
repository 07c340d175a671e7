//! A history: a pool on simulated disks, worked with as the plan says, and compared with the model.
//!
//! What is compared, and when:
//!
//! - what datasets hold while they are in use, at times;
//! - after each loss of power: which datasets and snapshots there are, byte by byte what snapshots hold, and of each
//!   dataset whether it is what its [`History`] lets a crash leave;
//! - in the end: everything, what every dataset and snapshot counts, free space in every metaslab, in memory and on disk.
//!
//! Nothing may fail while there is power and no more than one disk of a vdev with redundancy is bad.

use crate::disk::{BAD, Mood, Power, SimDisk};
use crate::model::{Change, Data, Entry, Model, POOL, listing, same, same_data};
use crate::plan::{Kind, Plant, Step};
use cenote_dsl::send::SendOptions;
use cenote_dsl::Dataset;
use cenote_engine::Engine;
use cenote_engine::change::receive::{NewReceive, Source};
use cenote_engine::change::{self, Changes, NewClone, NewDataset, NewSnapshot};
use cenote_engine::create::Redundancy;
use cenote_pool::reopen::Restore;
use cenote_torture::live::block::{self, Block};
use cenote_torture::live::disk::Image;
use cenote_torture::live::history::{History, Tree};
use cenote_torture::live::lab::{Lab, Logs, Plain, Shape, Throttle};
use cenote_torture::live::model::datasets;
use cenote_torture::live::space::check_metaslabs;
use cenote_torture::live::world::{State, Sync, World, look_at, settings};
use cenote_torture::live::{Moment, Stopped};
use cenote_vdev::Device;
use cenote_zpl::{FileSystem, Volume};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Datasets, and snapshots of each, that there are at most.
const MOST: usize = 5;

const SHAPES: [Shape; 4] = [
    Shape { redundancy: Redundancy::Single, disks: 2, ashift: 9, size: 128 << 20 },
    Shape { redundancy: Redundancy::Mirror, disks: 2, ashift: 12, size: 192 << 20 },
    Shape { redundancy: Redundancy::RaidZ(1), disks: 3, ashift: 12, size: 128 << 20 },
    Shape { redundancy: Redundancy::Mirror, disks: 3, ashift: 9, size: 160 << 20 },
];

type Done<T = ()> = Result<T, Stopped>;

/// A dataset in use.
enum Live {
    Files(World),
    Block(Block),
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
    shape: Shape,
    disks: Vec<Arc<SimDisk>>,
    power: Arc<Power>,
    lab: Lab,
    /// `None` only while there is no power.
    engine: Option<Arc<Engine>>,
    model: Model,
    live: BTreeMap<String, Live>,
    /// A change that is being made, with what comes of it.
    in_flight: Option<(Change, Model)>,
    figures: Figures,
}

fn lab(disks: &[Arc<SimDisk>], dirty_max: u64) -> Lab {
    let throttle = Throttle {
        dirty_max,
        txg_timeout: Duration::from_secs(5),
        timer: cenote_dmu::outside::Timer::default(),
    };
    let disks = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    Lab::new(disks).on_all_processors().throttled(throttle)
}

/// Tells what is done. Always: what it takes in memory is the same then, whoever reads it.
fn tell(what: std::fmt::Arguments<'_>) {
    println!("  {what}");
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
    pub fn new(seed: u64, plant: Option<Plant>) -> Result<Sim, String> {
        Sim::begin(seed, plant).map_err(|Stopped(why)| why)
    }

    fn begin(seed: u64, plant: Option<Plant>) -> Done<Sim> {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed);
        set_tunables(&mut rng)?;
        let shape = SHAPES[rng.random_range(0..SHAPES.len())];
        let power = Power::on();
        let new = |i| SimDisk::new(i, Image::new(shape.size), power.clone(), (seed, plant));
        let disks: Vec<_> = (0..shape.disks).map(new).collect();
        let lab = lab(&disks, [8 << 20, 64 << 20][rng.random_range(0..2)]);
        let logs = if rng.random_ratio(1, 4) { Logs::Off } else { Logs::On };
        let engine = lab.create_with(&shape, logs)?;
        let mut model = Model::default();
        model.add(POOL, Entry::new(Data::Files(Arc::default())));
        let (live, in_flight, figures) = Default::default();
        let engine = Some(engine);
        let mut sim =
            Sim { seed, plant, shape, disks, power, lab, engine, model, live, in_flight, figures };
        tell(format_args!("{shape:?}, log space maps {logs:?}"));
        sim.open(POOL)?;
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
                Live::Files(World::new(rng, engine, fs, self.moment(), state))
            }
            Data::Volume(content) => {
                let content = content.to_vec();
                Live::Block(Block::open(rng, engine, name, self.moment(), content)?)
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
        let done = self.try_step(step.kind, &mut rng);
        if self.power.is_off() {
            if let Err(Stopped(why)) = &done {
                tell(format_args!("the power went: {why}"));
            }
            return self.recover(&mut rng).map_err(|Stopped(why)| format!("after a loss of power: {why}"));
        }
        done.map_err(|Stopped(why)| why)
    }

    fn try_step(&mut self, kind: Kind, rng: &mut SmallRng) -> Done {
        match kind {
            Kind::Work => self.work(None, rng),
            Kind::Change => {
                let change = self.any_change(rng);
                self.work(change, rng)
            }
            Kind::Wait => {
                std::thread::sleep(Duration::from_millis(rng.random_range(1..12_000)));
                Ok(())
            }
            Kind::Sync => {
                self.engine()?.sync()?;
                self.live.values_mut().for_each(Live::is_stable);
                if self.plant == Some(Plant::DoubleFree) { self.free_twice() } else { Ok(()) }
            }
            Kind::Compare => {
                self.live.values().try_for_each(Live::compare)?;
                check_metaslabs(&*self.engine()?).map(drop).map_err(Stopped)
            }
            Kind::Reimport => self.reimport(),
            Kind::Cut => {
                self.power.goes_after(rng.random_range(0..400));
                Ok(())
            }
            Kind::Break => {
                if self.shape.redundancy != Redundancy::Single {
                    // Always the same one: what it missed is on the others only.
                    let mood = BAD[rng.random_range(0..BAD.len())];
                    tell(format_args!("disk 0: {mood:?}"));
                    self.disks[0].set_mood(mood);
                }
                Ok(())
            }
            Kind::Mend => self.mend(),
        }
    }

    /// The bad disk is well again, and is used again.
    fn mend(&mut self) -> Done {
        self.disks[0].set_mood(Mood::Well);
        let engine = self.engine()?;
        let pool = engine.pool();
        let leaves: Vec<u64> = pool.store().vdevs().leaves().iter().map(|l| l.guid()).collect();
        Ok(engine.restore(&leaves, Restore::Failure)?)
    }

    /// A planted fault.
    fn free_twice(&self) -> Done {
        let engine = self.engine()?;
        let bp = engine.pool().dsl().open_objset(&self.find(POOL)?)?.root_bp().clone();
        Ok(engine.sync_task(move |context| {
            context.tx.frees.extend([bp.clone(), bp]);
            Ok(())
        })?)
    }

    fn reimport(&mut self) -> Done {
        if self.disks[0].set_mood(Mood::Well) != Mood::Well {
            self.mend()?;
        }
        self.export()?;
        self.import()?;
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        names.iter().try_for_each(|name| self.open(name))?;
        self.live.values().try_for_each(Live::compare)
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
    fn import(&mut self) -> Done {
        let found = self.lab.find().ok_or_else(|| Stopped("the pool is gone".into()))?;
        let engine = self.lab.import(&found)?;
        let left = cenote::contents::replay_logs(&engine, &|_, _| true)?;
        if !left.is_empty() {
            return Err(Stopped(format!("logs that are not replayed: {left:?}")));
        }
        self.engine = Some(engine);
        Ok(())
    }

    /// Has datasets worked with, each by a thread, and meanwhile a change made.
    fn work(&mut self, change: Option<Change>, rng: &mut SmallRng) -> Done {
        let busy: Vec<String> = change.iter().flat_map(touched).collect();
        let mut all: Vec<&String> = self.live.keys().filter(|n| !busy.contains(n)).collect();
        let most = rng.random_range(if change.is_some() { 0..2 } else { 1..4 });
        let mut chosen = BTreeMap::new();
        while chosen.len() < most && !all.is_empty() {
            let name = all.swap_remove(rng.random_range(0..all.len()));
            chosen.insert(name.clone(), (rng.random::<u64>(), rng.random_range(1..7)));
        }
        tell(format_args!("work with {:?}", chosen.keys()));
        let mut lanes = BTreeMap::new();
        for name in chosen.keys() {
            lanes.extend(self.live.remove_entry(name));
        }
        let others = self.others(&busy, rng)?;
        let mut changed = Ok(());
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
            if let Some(change) = change {
                changed = self.make(change, rng);
            }
            for (name, thread) in running {
                let done = thread.join().unwrap_or_else(|_| Err(Stopped("it panicked".into())));
                if let Err(Stopped(why)) = done {
                    worked = Err(Stopped(format!("{name}: {why}")));
                }
            }
        });
        self.live.extend(lanes);
        for name in chosen.keys() {
            if let (Some(live), Some(entry)) = (self.live.get(name), self.model.datasets.get_mut(name)) {
                entry.data = live.data();
            }
        }
        if let Some((_, after)) = &mut self.in_flight {
            for name in chosen.keys() {
                if let (Some(live), Some(entry)) = (self.live.get(name), after.datasets.get_mut(name)) {
                    entry.data = live.data();
                }
            }
        }
        self.lose_an_update(rng);
        worked.and(changed)
    }

    /// What goes on beside that, for what is not `busy`: datasets are made stable by others too, groups are asked for, snapshots are
    /// read and compared.
    fn others(&self, busy: &[String], rng: &mut SmallRng) -> Done<Vec<(&'static str, Other)>> {
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
        if let Some(Live::Block(block)) = self.live.values_mut().find(|l| matches!(l, Live::Block(_))) {
            block.forget(rng.random());
        }
    }

    fn name(rng: &mut SmallRng) -> String {
        format!("{POOL}/{}", ["a", "b", "c", "d", "e", "f"][rng.random_range(0..6)])
    }

    fn pick<T: Clone>(rng: &mut SmallRng, all: &[T]) -> Option<T> {
        all.get(rng.random_range(0..all.len().max(1))).cloned()
    }

    /// Some change, if it can be made.
    fn any_change(&self, rng: &mut SmallRng) -> Option<Change> {
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        let head = Sim::pick(rng, &names)?;
        let snapshots: Vec<(String, String)> = self
            .model
            .datasets
            .iter()
            .flat_map(|(h, e)| e.snapshots.iter().map(move |s| (h.clone(), s.name.clone())))
            .collect();
        let some = Sim::pick(rng, &snapshots);
        let (to, short) = (Sim::name(rng), format!("s{}", rng.random_range(0..9)));
        let crowded = self.model.datasets.len() >= MOST;
        let change = match rng.random_range(0..100) {
            0..8 if !crowded => {
                let volume = rng.random_ratio(1, 3).then(|| 128 << 10 << rng.random_range(0..2));
                Change::Create { name: to, volume }
            }
            0..14 => Change::Destroy { name: head },
            14..18 => Change::Rename { from: head, to },
            18..42 => {
                let all = rng.random_ratio(1, 4);
                let heads = if all { names } else { vec![head] };
                let full = |h: &String| self.model.datasets[h].snapshots.len() >= MOST;
                if heads.iter().any(full) {
                    return None;
                }
                Change::Snapshot { heads, name: short }
            }
            42..54 => {
                let (head, name) = some?;
                Change::DestroySnapshot { head, name }
            }
            54..57 => {
                let (head, from) = some?;
                Change::RenameSnapshot { head, from, to: short }
            }
            57..66 if !crowded => {
                let (head, snapshot) = some?;
                Change::Clone { head, snapshot, to }
            }
            57..72 => Change::Promote { name: head },
            72..78 => Change::Rollback { name: head },
            78..90 => self.receive(some?, (to, crowded), rng)?,
            _ => Sim::setting(head, rng),
        };
        self.model.after(&change).map(|_| change)
    }

    fn receive(
        &self,
        (head, snapshot): (String, String),
        (to, crowded): (String, bool),
        rng: &mut SmallRng,
    ) -> Option<Change> {
        // Where it can be received on what was received before.
        let entry = &self.model.datasets[&head];
        let mut all = Vec::new();
        for (to, copy) in &self.model.datasets {
            let last = copy.snapshots.last().map(|s| s.id);
            let base = entry.snapshots.iter().find(|s| Some(s.id) == last);
            let base = base.map(|s| s.name.clone()).filter(|_| *to != head);
            all.extend(base.map(|base| (base, to.clone())));
        }
        if let Some((base, to)) = Sim::pick(rng, &all).filter(|_| rng.random_bool(0.8)) {
            return Some(Change::Receive { head, base: Some(base), snapshot, to });
        }
        (!crowded).then_some(Change::Receive { head, base: None, snapshot, to })
    }

    fn setting(name: String, rng: &mut SmallRng) -> Change {
        let all: [(&'static str, &[&str]); 5] = [
            ("sync", &["standard", "always", "disabled"]),
            ("logbias", &["latency", "throughput"]),
            ("compression", &["on", "off", "lz4", "gzip-1", "zle", "zstd-fast"]),
            ("checksum", &["on", "fletcher2", "sha256", "skein", "edonr"]),
            ("copies", &["1", "2"]),
        ];
        // What is set on the root dataset others inherit.
        let first = usize::from(name == POOL);
        let (property, values) = all[rng.random_range(first..all.len())];
        let value = values[rng.random_range(0..values.len())].to_string();
        Change::Set { name, property, value }
    }

    /// Makes a change.
    fn make(&mut self, change: Change, rng: &mut SmallRng) -> Done {
        let Some(after) = self.model.after(&change) else { return Ok(()) };
        tell(format_args!("{change:?}"));
        self.in_flight = Some((change.clone(), after));
        self.apply(&change, rng).map_err(|Stopped(why)| Stopped(format!("{change:?}: {why}")))?;
        if let Some((_, after)) = self.in_flight.take() {
            self.model = after;
        }
        if let Change::Rename { from, to } = &change
            && let Some(live) = self.live.remove(from)
        {
            self.live.insert(to.clone(), live);
        }
        if let Change::Set { name, .. } = &change
            && let Some(live) = self.live.get_mut(name)
        {
            live.set_sync(self.model.datasets[name].sync);
        }
        for name in touched(&change) {
            match self.live.get_mut(&name) {
                Some(live) => live.is_stable(),
                None if self.model.datasets.contains_key(&name) => self.open(&name)?,
                None => {}
            }
        }
        Ok(())
    }

    fn apply(&mut self, change: &Change, rng: &mut SmallRng) -> Done {
        let changes = Changes::new(self.engine()?, Arc::new(Plain), None);
        let with_name = |(name, e): (Option<String>, change::ChangeError)| {
            Stopped(format!("{}: {e}", name.unwrap_or_default()))
        };
        match change {
            Change::Create { name, volume } => {
                let kind = match volume {
                    Some(size) => change::Kind::Volume { size: *size, sparse: true },
                    None => change::Kind::Filesystem,
                };
                let name = name.clone();
                Ok(changes.create(&NewDataset { name, kind, props: Vec::new() })?)
            }
            Change::Destroy { name } => {
                self.close(name)?;
                Ok(changes.destroy(name)?)
            }
            Change::Rename { from, to } => Ok(changes.rename(from, to)?),
            Change::Snapshot { heads, name } => {
                let names = heads.iter().map(|h| format!("{h}@{name}")).collect();
                changes.snapshot(&NewSnapshot { names, props: Vec::new() }).map_err(with_name)
            }
            Change::DestroySnapshot { head, name } => {
                let done = changes.destroy_snapshots(&[format!("{head}@{name}")], false);
                done.map_err(|e| Stopped(format!("{e:?}")))
            }
            Change::RenameSnapshot { head, from, to } => {
                let done = changes.rename_snapshot(&format!("{head}@{from}"), to, false);
                done.map_err(|e| Stopped(format!("{e:?}")))
            }
            Change::Clone { head, snapshot, to } => {
                let origin = format!("{head}@{snapshot}");
                let new = NewClone { origin, name: to.clone(), props: Vec::new() };
                Ok(changes.clone_snapshot(&new)?)
            }
            Change::Promote { name } => changes.promote(name).map_err(with_name),
            Change::Rollback { name } => {
                self.close(name)?;
                let entry = &self.model.datasets[name];
                let last = entry.snapshots.last().map(|s| s.name.clone()).unwrap_or_default();
                Ok(changes.rollback(&format!("{name}@{last}"))?)
            }
            Change::Receive { head, base, snapshot, to } => {
                if base.is_some() {
                    self.close(to)?;
                }
                let stream = self.sent(head, base.as_deref(), snapshot, rng)?;
                let to = format!("{to}@{snapshot}");
                let new = NewReceive { to, force: base.is_some(), ..NewReceive::default() };
                receive(&changes, &new, &stream)
            }
            Change::Set { name, property, value } => {
                let failed = changes.set(name, &[(property.to_string(), value.clone())])?;
                match failed.is_empty() {
                    true => Ok(()),
                    false => Err(Stopped(format!("{failed:?}"))),
                }
            }
        }
    }

    fn sent(
        &self,
        head: &str,
        base: Option<&str>,
        snapshot: &str,
        rng: &mut SmallRng,
    ) -> Done<Vec<u8>> {
        let find = |name: &str| self.find(&format!("{head}@{name}"));
        let (of, base) = (find(snapshot)?, base.map(find).transpose()?);
        let options = SendOptions {
            large_blocks: true,
            embedded: rng.random(),
            compressed: rng.random(),
            pool_embeds: true,
            pool_has_lz4: true,
            resume: None,
            saved: false,
        };
        let mut stream = Vec::new();
        self.engine()?.pool().dsl().send(&of, base.as_ref(), options, &mut stream)?;
        Ok(stream)
    }

    /// Has power again, and goes on with what is left.
    fn recover(&mut self, rng: &mut SmallRng) -> Done {
        self.figures.crashes += 1;
        let at = self.power.operations();
        let live = std::mem::take(&mut self.live);
        let histories: BTreeMap<String, History> =
            live.into_iter().map(|(name, live)| (name, live.into_history())).collect();
        self.lose_engine();
        for again in 0..4 {
            self.restart(rng);
            if again < 2 && rng.random_ratio(1, 4) {
                self.power.goes_after(rng.random_range(0..300));
            }
            match self.go_on(&histories, at) {
                Err(Stopped(why)) if self.power.is_off() => {
                    tell(format_args!("the power went again: {why}"));
                    self.live.clear();
                    self.lose_engine();
                }
                done => {
                    self.power.stays();
                    self.in_flight = None;
                    return done;
                }
            }
        }
        Err(Stopped("the power went although it was to stay".into()))
    }

    fn lose_engine(&mut self) {
        if let Some(engine) = self.engine.take() {
            self.figures.groups += engine.pool().uberblock().txg;
        }
    }

    /// Disks with what the loss of power left.
    fn restart(&mut self, rng: &mut SmallRng) {
        self.figures.operations += self.power.operations();
        self.figures.digest = self.figures.digest.rotate_left(7) ^ self.power.digest();
        let seed = rng.random();
        let images: Vec<Image> = self.disks.iter().map(|d| d.left(seed)).collect();
        self.power = Power::on();
        let all = images.into_iter().enumerate();
        let new = |(i, image)| SimDisk::new(i, image, self.power.clone(), (seed, self.plant));
        self.disks = all.map(new).collect();
        self.lab = lab(&self.disks, 64 << 20);
    }

    fn go_on(&mut self, histories: &BTreeMap<String, History>, at: usize) -> Done {
        self.import()?;
        let pool = self.engine()?.pool();
        let (is, before) = (listing(&pool)?, self.model.listing());
        let after = self.in_flight.as_ref().map(|(_, after)| after.clone());
        let is_after = after.as_ref().is_some_and(|after| after.listing() == is);
        let mut model = match &after {
            Some(after) if is_after => after.clone(),
            _ => self.model.clone(),
        };
        if !is_after && is != before {
            let after = after.map(|after| after.listing());
            return Err(Stopped(format!("there is {is:?}, not {before:?}, nor {after:?}")));
        }
        for (dataset, snapshots) in datasets(&pool)? {
            let entry = &model.datasets[&dataset.name];
            for (found, snapshot) in snapshots.iter().zip(&entry.snapshots) {
                same_data(&pool, found, &snapshot.data)?;
            }
        }
        let names: Vec<String> = model.datasets.keys().cloned().collect();
        for name in &names {
            let data = self.recovered(name, &model.datasets[name].data, (histories, at))?;
            let sync = pool.dsl().get(&self.find(name)?, "sync")?.map(|v| v.exact);
            if let Some(entry) = model.datasets.get_mut(name) {
                entry.data = data;
                entry.sync = match sync.as_deref() {
                    Some("always") => Sync::Always,
                    Some("disabled") => Sync::Disabled,
                    _ => Sync::Standard,
                };
            }
        }
        // If the power goes once more all of this is as before.
        let before = std::mem::replace(&mut self.model, model);
        let opened = names.iter().try_for_each(|name| self.open(name));
        if opened.is_err() || self.power.is_off() {
            self.model = before;
        }
        opened
    }

    /// What a dataset holds after a loss of power, if it may hold that.
    fn recovered(
        &self,
        name: &str,
        data: &Data,
        (histories, at): (&BTreeMap<String, History>, usize),
    ) -> Done<Data> {
        let (tree, volume) = self.look(name, data)?;
        let in_flight = self.in_flight.as_ref();
        let former = match in_flight {
            Some((Change::Rename { from, to }, _)) if to == name => from.as_str(),
            _ => name,
        };
        let mut whys = Vec::new();
        let history = histories.get(former).map(|history| history.check(&tree, at));
        let mut may = matches!(history, Some(Ok(())));
        whys.extend(history.and_then(Result::err));
        let after = in_flight.and_then(|(_, after)| after.datasets.get(name)).map(|e| &e.data);
        let exact = [Some(data), after].into_iter().flatten();
        for data in exact.take(if may { 0 } else { 2 }) {
            match same_tree(data, &tree) {
                Ok(()) => may = true,
                Err(Stopped(why)) => whys.push(why),
            }
        }
        if !may {
            return Err(Stopped(format!("{name}: {}", whys.join("; nor "))));
        }
        Ok(match volume {
            Some(content) => Data::Volume(Arc::new(content)),
            None => {
                let mut last = 1_000_000 * self.figures.crashes as u64;
                Data::Files(Arc::new(State::of(&tree, &mut last)))
            }
        })
    }

    /// What a dataset holds, as seen by those who use it.
    fn look(&self, name: &str, data: &Data) -> Done<(Tree, Option<Vec<u8>>)> {
        match data {
            Data::Files(_) => {
                let fs = self.files(name)?;
                fs.drain_unlinked()?;
                Ok((look_at(&fs)?, None))
            }
            Data::Volume(_) => {
                let live = self.engine()?.live(self.find(name)?.ds_obj)?;
                let content = block::bytes(&Volume::open_live(live)?)?;
                Ok((block::tree(content.clone()), Some(content)))
            }
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
        let images = self.disks.iter().map(|d| d.image()).collect();
        done.map(|()| (self.figures, images)).map_err(|Stopped(why)| format!("in the end: {why}"))
    }

    fn ended(&mut self) -> Done {
        self.live.values().try_for_each(Live::compare)?;
        self.mend()?;
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
        same(&*self.lab.look().map_err(Stopped)?, &self.model)
    }
}

/// Datasets that a change is about.
fn touched(change: &Change) -> Vec<String> {
    match change {
        Change::Create { name, .. }
        | Change::Destroy { name }
        | Change::Promote { name }
        | Change::Rollback { name }
        | Change::Set { name, .. } => vec![name.clone()],
        Change::Rename { from, to } => vec![from.clone(), to.clone()],
        Change::Snapshot { heads, .. } => heads.clone(),
        Change::DestroySnapshot { head, .. } | Change::RenameSnapshot { head, .. } => {
            vec![head.clone()]
        }
        Change::Clone { head, to, .. } | Change::Receive { head, to, .. } => {
            vec![head.clone(), to.clone()]
        }
    }
}

fn same_tree(data: &Data, tree: &Tree) -> Done {
    match data {
        Data::Files(state) => state.compare(tree),
        Data::Volume(content) => {
            let is = tree.values().next().and_then(|f| f.seen.content.as_deref());
            block::same_bytes(is.unwrap_or_default(), content)
        }
    }
    .map_err(Stopped)
}

fn receive(changes: &Changes, new: &NewReceive, mut stream: &[u8]) -> Done {
    let mut source = Source::new(&mut stream);
    let begin = source.begin()?.ok_or_else(|| Stopped("an empty stream".into()))?;
    let list = source.list(&begin)?;
    let receiving = changes.receive(new, &begin, &list)?;
    match receiving.stream(&mut source, &mut |_| {}) {
        Ok(()) => Ok(changes.finish_receive(receiving, new.force)?),
        Err(e) => {
            changes.give_up_receive(receiving);
            Err(e.into())
        }
    }
}
