//! The intent log and the loss of power: what was committed is there after the import, whatever the crash
//! left of the writes since the last flush.
//!
//! Two file systems and a volume are changed in turn. Transaction groups are written only when they are asked for,
//! so that most of what a crash leaves is in the logs. Changes are made stable in all ways that there are: all of a
//! dataset, some files or directories (`fsync`), each change (`sync=always`), none (`sync=disabled`). So what is there
//! after a crash is what the [`History`] of the dataset lets it leave.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dsl::write::props::{self, NewValue, Target};
use cenote_dsl::zil::{Item, walk};
use cenote_engine::Engine;
use cenote_engine::change::{Changes, Kind, NewDataset};
use cenote_engine::create::Redundancy;
use cenote_format::zil::{Body, Record};
use cenote_torture::live::block::{self, Block};
use cenote_torture::live::disk::{Disk, Image, Journal, Replay};
use cenote_torture::live::driver::Seed;
use cenote_torture::live::history::History;
use cenote_torture::live::lab::{
    Logs, Plain, Shape, account_for_clones, disks, hand_over_and_back, judge, keep, lab,
};
use cenote_torture::live::world::{self, State, Sync, World, look, root};
use cenote_torture::live::{Moment, side_by_side};
use cenote_torture::long;
use cenote_zpl::{FileSystem, NewNode, NodeKind, SetAttr, Settings, Volume};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

mod acl;
mod chains;
mod devices;
mod fields;
mod frozen;
mod gang;
mod records;
mod restarts;
mod same;
mod threads;
mod unclaimed;
mod unreplayed;
mod whole;

const SHAPES: [Shape; 3] = [
    Shape { redundancy: Redundancy::Single, disks: 2, ashift: 9, size: 96 << 20 },
    Shape { redundancy: Redundancy::Mirror, disks: 2, ashift: 12, size: 96 << 20 },
    Shape { redundancy: Redundancy::RaidZ(1), disks: 3, ashift: 12, size: 64 << 20 },
];
/// A feature that OpenZFS 2.1 does not know.
const SA_XATTRS: &str = "zilsaxattr";
/// The datasets: file systems, and the volume last.
const DATASETS: [&str; 3] = ["tank", "tank/second", "tank/volume"];
/// Bytes of the volume.
const VOLUME: u64 = 256 << 10;
/// The feature of pools in which blocks can be cloned.
const CLONING: &str = "block_cloning";

/// Sets a property of a dataset.
fn set_property(engine: &Engine, dataset: &str, name: &'static str, value: u64) {
    let dir = engine.pool().dsl().find(dataset).unwrap().unwrap().ds.dir;
    engine
        .sync_task(move |context| {
            let value = NewValue::Number(value);
            props::set(&mut context.tx, Target::Dir(dir), name, &value)
        })
        .unwrap();
}

/// Sets the property `logbias` of the root dataset.
fn log_for_throughput(engine: &Engine, throughput: bool) {
    set_property(engine, DATASETS[0], "logbias", throughput.into());
}

/// Whether OpenZFS's own engine takes part in a story: its pool has nothing that is too new for that.
fn is_for_openzfs(seed: u64) -> bool {
    seed % 4 == 3
}

/// One in so many logs is handed over to OpenZFS, if it may be.
const HANDED_OVER: usize = 10;

/// What was done.
struct Story {
    first: Vec<Image>,
    journal: Arc<Journal>,
    begun: usize,
    end: usize,
    /// Of each of the [`DATASETS`].
    histories: Vec<History>,
}

/// The datasets at work.
struct Work {
    rng: SmallRng,
    engine: Arc<Engine>,
    worlds: Vec<World>,
    block: Block,
    /// A group is written while changes of the next one are committed, which may give out numbers that were freed
    /// in it.
    syncing: Option<JoinHandle<()>>,
}

impl Work {
    fn step(&mut self) {
        if self.syncing.as_ref().is_none_or(JoinHandle::is_finished) && self.rng.random_ratio(1, 7)
        {
            self.worlds.iter_mut().for_each(|world| world.release_all().unwrap());
            let engine = self.engine.clone();
            self.syncing = Some(std::thread::spawn(move || engine.sync().unwrap()));
        }
        match self.rng.random_range(0..40) {
            0..2 => self.engine.sync().unwrap(),
            2 => self.engine.sync_task(|_| Ok(())).unwrap(),
            3 => {
                let dataset = DATASETS[self.rng.random_range(0..DATASETS.len())];
                set_property(&self.engine, dataset, "logbias", self.rng.random_range(0..2));
            }
            4..6 => {
                let which = self.rng.random_range(0..self.worlds.len());
                let at = self.rng.random_range(0..3);
                set_property(&self.engine, DATASETS[which], "sync", at as u64);
                self.worlds[which].sync = [Sync::Standard, Sync::Always, Sync::Disabled][at];
            }
            6..10 => self.block.step().unwrap(),
            10..20 => self.worlds[1].step().unwrap(),
            _ => self.worlds[0].step().unwrap(),
        }
    }
}

fn at_of(journal: &Arc<Journal>) -> Moment {
    let journal = journal.clone();
    Arc::new(move || journal.len())
}

fn tell(seed: u64, shape: &Shape, steps: usize) -> Story {
    world::shrink();
    let journal = Arc::new(Journal::default());
    let first = vec![Image::new(shape.size); shape.disks];
    let lab = lab(&disks(&first, Some(&journal)));
    let lab = if is_for_openzfs(seed) { lab.without(SA_XATTRS).without(CLONING) } else { lab };
    let engine = lab.create_with(shape, Logs::On).unwrap();
    engine.sync().unwrap();
    let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
    let sparse = true;
    for (name, kind) in
        [(DATASETS[1], Kind::Filesystem), (DATASETS[2], Kind::Volume { size: VOLUME, sparse })]
    {
        changes.create(&NewDataset { name: name.into(), kind, props: Vec::new() }).unwrap();
    }
    log_for_throughput(&engine, seed % 3 == 1);
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut world = |at: usize| {
        let fs = world::open(&engine, DATASETS[at], (seed + at as u64).is_multiple_of(2));
        let (rng, at) = (SmallRng::seed_from_u64(rng.random()), at_of(&journal));
        World::new(rng, engine.clone(), fs, at, State::default())
    };
    let worlds = vec![world(0), world(1)];
    let (engine2, zeros) = (engine.clone(), vec![0; VOLUME as usize]);
    let rng2 = SmallRng::seed_from_u64(rng.random());
    let block = Block::open(rng2, engine2, DATASETS[2], at_of(&journal), zeros).unwrap();
    engine.sync().unwrap();
    let begun = journal.len();
    let mut work = Work { rng, engine, worlds, block, syncing: None };
    (0..steps).for_each(|_| work.step());
    work.syncing.take().into_iter().for_each(|sync| sync.join().unwrap());
    let end = journal.len();
    let mut histories: Vec<_> = work.worlds.into_iter().map(|world| world.history).collect();
    histories.push(work.block.history);
    Story { first, journal, begun, end, histories }
}

/// A crash.
struct Point {
    at: usize,
    images: Vec<Image>,
    judged: bool,
    /// OpenZFS's own engine may claim the logs before they are replayed.
    for_openzfs: bool,
    /// Crashes during the replays after it.
    again: usize,
}

/// What crashes came to.
#[derive(Default)]
struct Count {
    /// Crashes.
    points: AtomicUsize,
    /// Those that left a log.
    logs: AtomicUsize,
    /// Those after which something would be missing without the log.
    needed: AtomicUsize,
    /// Crashes during the replay of such a log.
    again: AtomicUsize,
    /// Those after which OpenZFS's engine claimed the logs.
    handed_over: AtomicUsize,
}

/// Imports the pool and replays its logs, some of them in another import than the one that claimed them. Returns the
/// engine, and how many records there were.
fn recover(disks: &[Arc<Disk>], at: usize) -> (Arc<Engine>, usize) {
    let lab = lab(disks);
    let mut engine = lab.import(&lab.find().unwrap()).unwrap();
    if at.is_multiple_of(4) {
        match at.is_multiple_of(8) {
            true => engine.export(false).unwrap(),
            // As a crash would leave it: no write is lost.
            false => drop(engine),
        }
        engine = lab.import(&lab.find().unwrap()).unwrap();
    }
    let records = AtomicUsize::new(0);
    let count = |_: &str, done: &cenote_zpl::Replayed| {
        records.fetch_max(done.records as usize, Ordering::Relaxed);
        true
    };
    assert_eq!(cenote::contents::replay_logs(&engine, &count).unwrap(), []);
    (engine, records.into_inner())
}

/// Whether the datasets are what a crash after `at` operations may leave.
fn check(story: &Story, engine: &Engine, at: usize) -> Result<(), String> {
    for (name, history) in DATASETS.iter().zip(&story.histories) {
        let tree = if *name == DATASETS[2] {
            let objset = engine.pool().dsl().find(name).unwrap().unwrap().ds_obj;
            block::look(&Volume::open_live(engine.live(objset).unwrap()).unwrap())
        } else {
            look(&world::open(engine, name, true))
        };
        history.check(&tree, at).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

/// Whether what is in the file systems without their logs is what the crash may leave.
fn is_enough_without_log(story: &Story, point: &Point) -> bool {
    let pool = lab(&disks(&point.images, None)).look().unwrap();
    DATASETS.iter().zip(&story.histories).take(2).all(|(name, history)| {
        let dataset = pool.dsl().find(name).unwrap().unwrap();
        let set = pool.dsl().open_objset(&dataset).unwrap();
        let fs = FileSystem::open_as(set, world::settings(true)).unwrap();
        history.check(&look(&fs), point.at).is_ok()
    })
}

fn survive(story: &Story, shape: &Shape, point: &Point, count: &Count) {
    let survives = |engine: &Engine, what: &str| {
        if let Err(why) = check(story, engine, point.at) {
            let (at, end, kept) = (point.at, story.end, keep(&point.images));
            panic!("{shape:?}, crash at {at} of {end}{what}: {why}; images in {kept}");
        }
    };
    count.points.fetch_add(1, Ordering::Relaxed);
    if point.judged {
        judge(&point.images).unwrap();
    }
    let journal = Arc::new(Journal::default());
    let disks = disks(&point.images, Some(&journal));
    let (engine, records) = recover(&disks, point.at);
    survives(&engine, "");
    let end = journal.len();
    engine.export(false).unwrap();
    account_for_clones(&lab(&disks)).unwrap();
    if point.judged {
        judge(&disks.iter().map(|disk| disk.image()).collect::<Vec<_>>()).unwrap();
    }
    if records == 0 {
        return;
    }
    let earlier = count.logs.fetch_add(1, Ordering::Relaxed);
    if !is_enough_without_log(story, point) {
        count.needed.fetch_add(1, Ordering::Relaxed);
    }
    if point.for_openzfs && earlier.is_multiple_of(HANDED_OVER) {
        let claimed = hand_over_and_back(&point.images).unwrap();
        let (engine, _) = recover(&cenote_torture::live::lab::disks(&claimed, None), point.at);
        survives(&engine, " and a claim by OpenZFS");
        count.handed_over.fetch_add(1, Ordering::Relaxed);
    }
    // Crashes while the logs are claimed, replayed and destroyed, each on the way back from the one before.
    let (mut images, mut journal, mut end) = (point.images.clone(), journal, end);
    let mut rng = SmallRng::seed_from_u64(point.at as u64);
    for round in 0..point.again {
        let mut replay = Replay::new(images.clone(), &journal);
        replay.advance(rng.random_range(0..=end));
        images = replay.crash(rng.random());
        journal = Arc::new(Journal::default());
        let disks = cenote_torture::live::lab::disks(&images, Some(&journal));
        let (engine, _) = recover(&disks, point.at);
        survives(&engine, &format!(" and {} more during replay", round + 1));
        end = journal.len();
        count.again.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many crashes there are.
struct Plan {
    steps: usize,
    points: usize,
    /// One in so many is judged by OpenZFS's `zdb`.
    judged: usize,
    /// Crashes during the replays after each.
    again: usize,
}

fn crash(seed: u64, shape: &Shape, plan: &Plan, count: &Count) {
    let _seed = Seed(format!("seed {seed}, {shape:?}"));
    let story = tell(seed, shape, plan.steps);
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x11);
    // At every operation, or at as many as there is time for.
    let all = story.end - story.begun + 1;
    let mut at: Vec<usize> = match plan.points < all {
        true => (0..plan.points).map(|_| rng.random_range(story.begun..=story.end)).collect(),
        false => (story.begun..=story.end).collect(),
    };
    at.sort_unstable();
    let mut replay = Replay::new(story.first.clone(), &story.journal);
    let points = at.into_iter().enumerate().map(|(i, at)| {
        replay.advance(at);
        let judged = i % plan.judged == plan.judged / 2;
        let (images, for_openzfs) = (replay.crash(rng.random()), is_for_openzfs(seed));
        Point { at, images, judged, for_openzfs, again: plan.again }
    });
    side_by_side(points, |point| {
        let _seed = Seed(format!("seed {seed}, {shape:?}"));
        survive(&story, shape, &point, count);
    });
}

/// Seeds of CI, or of one's own: `CENOTE_SEEDS=100..200`.
fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("CENOTE_SEEDS") else { return usual };
    let (from, to) = text.split_once("..").expect("CENOTE_SEEDS is FROM..TO");
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn what_was_committed_is_there_after_any_crash() {
    let (rounds, plan) = match long() {
        true => (24, Plan { steps: 200, points: 850, judged: 50, again: 2 }),
        false => (4, Plan { steps: 70, points: 65, judged: 30, again: 2 }),
    };
    let count = Count::default();
    for seed in seeds(0..rounds) {
        crash(seed, &SHAPES[seed as usize % SHAPES.len()], &plan, &count);
    }
    let Count { points, logs, needed, again, handed_over } = count;
    let [points, logs, needed, again, handed_over] =
        [points, logs, needed, again, handed_over].map(AtomicUsize::into_inner);
    println!(
        "{points} crashes, of which {logs} left a log and {needed} needed it; {again} crashes during replay; \
         OpenZFS claimed {handed_over}"
    );
    // Without replay something would be missing: the test can fail.
    assert!(needed * 4 > logs && again > 0, "{logs} logs, {needed} of them needed, {again}");
    if std::env::var_os("CENOTE_SEEDS").is_none() {
        assert!(points + again >= if long() { 20_000 } else { 380 }, "{points} and {again}");
        assert!(handed_over > 0);
    }
}

/// How many `TX_WRITE` of the root dataset's log point to blocks, and how many have their data, in these images.
fn writes_in_log(images: &[Image]) -> (usize, usize) {
    let pool = lab(&disks(images, None)).look().unwrap();
    let set = pool.dsl().open_objset(&pool.dsl().root().unwrap()).unwrap();
    let (mut pointing, mut holding) = (0, 0);
    walk(pool.store(), &set.phys().zil, &mut |item| {
        if let Item::Record(raw) = item
            && let Ok(Record { body: Body::Write(write), .. }) = Record::decode(&raw)
        {
            match write.data {
                Some(_) => holding += 1,
                None => pointing += 1,
            }
        }
        true
    });
    (pointing, holding)
}

/// Large writes, and with `logbias=throughput` all, are in blocks that are written for good, once: nothing is
/// leaked when they are changed or freed in the same group.
#[test]
fn records_point_to_blocks_that_are_written_for_good() {
    let shape = &SHAPES[0];
    let disks = disks(&vec![Image::new(shape.size); shape.disks], None);
    let engine = lab(&disks).create_with(shape, Logs::On).unwrap();
    let fs = root(&engine, true);
    fs.set_settings(Settings { record_size: 128 << 10, ..world::settings(true) });
    let id = fs.objset().id();
    let (kind, mode, umask, uid, gid) = (NodeKind::File, 0o644, 0, 1, 2);
    let new = NewNode { kind, mode, umask, uid, gid, keep_setgid: true };
    let create = |name: &[u8]| fs.create(fs.root(), name, &new).unwrap().ino;
    let (a, b, c) = (create(b"a"), create(b"b"), create(b"c"));
    let mut rng = SmallRng::seed_from_u64(5);
    let mut noise = |len| (0..len).map(|_| rng.random()).collect::<Vec<u8>>();
    engine.commit(id).unwrap();
    let images = || disks.iter().map(|disk| disk.image()).collect::<Vec<_>>();
    let txg = engine.pool().uberblock().txg;
    // A small write is in its record, a large one is not, but for its end.
    fs.write(a, 0, &noise(4000), false).unwrap();
    engine.commit_objects(id, &[a]).unwrap();
    assert_eq!(writes_in_log(&images()), (0, 1));
    fs.write(b, 0, &noise((256 << 10) + 100), false).unwrap();
    engine.commit_objects(id, &[b]).unwrap();
    assert_eq!(writes_in_log(&images()), (2, 2));
    // What is changed is written again, what is not is not, and what is removed is nowhere.
    fs.write(b, 0, &noise(128 << 10), false).unwrap();
    engine.commit(id).unwrap();
    fs.write(c, 0, &noise(128 << 10), false).unwrap();
    engine.commit(id).unwrap();
    fs.write(c, 5, b"other", false).unwrap();
    engine.commit(id).unwrap();
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(c, &set).unwrap();
    engine.commit(id).unwrap();
    assert_eq!(writes_in_log(&images()), (4, 3));
    assert_eq!(engine.pool().uberblock().txg, txg, "a commit waited for its group");
    judge(&images()).unwrap();
    let before = look(&fs);
    let crashed = lab(&cenote_torture::live::lab::disks(&images(), None));
    let engine2 = crashed.import(&crashed.find().unwrap()).unwrap();
    assert_eq!(cenote::contents::replay_logs(&engine2, &|_, _| true).unwrap(), []);
    assert!(look(&root(&engine2, true)) == before, "after replay");
    engine2.export(false).unwrap();
    engine.sync().unwrap();
    log_for_throughput(&engine, true);
    fs.write(a, 0, &noise(4000), false).unwrap();
    engine.sync().unwrap();
    fs.write(a, 0, &noise(100), false).unwrap();
    engine.commit(id).unwrap();
    fs.write(a, 0, &noise(100), false).unwrap();
    engine.commit(id).unwrap();
    assert_eq!(writes_in_log(&images()).0, 2);
    engine.export(false).unwrap();
    judge(&images()).unwrap();
}
