//! Pools whose data is in an object store, and the end of the host at any moment: whatever was acknowledged is there after the
//! next import, the pool is whole, and nothing is left over in the store.
//!
//! A file system is changed, and its files are made stable, over a store whose requests fail, are lost after they were done, are
//! late and are done twice. The store and the disks beside it note what is done in one order; a crash leaves what was done in the
//! store until then, any part of what was on its way, of which some arrives only while the next host is at work, and on the disks what was flushed and any part of
//! the rest. What may be there then is known from the [`History`] of the file system.
//!
//! OpenZFS cannot read such pools. Our own `zdb -bcc` judges them, and a listing of the store against what its last root names.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bucket;
mod hosts;

use bucket::{Bucket, OnTheWay};
use cenote_command::{Caller, Cancel, Rights, Terminal};
use cenote_engine::Engine;
use cenote_engine::create::{Class, Layout, Redundancy, VdevSpec};
use cenote_objects::{Space, Tunables};
use cenote_teststore::faults::{FaultStore, Faults, Shared};
use cenote_teststore::way::Behind;
use cenote_torture::live::disk::{Disk, Image, Journal, Replay};
use cenote_torture::live::driver::Seed;
use cenote_torture::live::history::History;
use cenote_torture::live::lab::{self, Lab, Logs, disks};
use cenote_torture::live::world::{self, State, World, look, root};
use cenote_torture::live::{Moment, side_by_side};
use cenote_torture::{Progress, long};
use cenote_vdev::{Device, object};
use object_store::memory::InMemory;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes of each disk.
const SIZE: u64 = 96 << 20;
/// What the disks beside the store are for.
const LAYOUTS: [&[Class]; 4] =
    [&[], &[Class::Log], &[Class::Special, Class::Log], &[Class::Special]];
/// What is late arrives within this.
const LATE: Duration = Duration::from_millis(100);
/// How often an import is tried: what a dead host wrote may arrive meanwhile.
const TRIES: usize = 5;

/// Everything small, so that all that happens in a large pool happens here.
fn tunables(seed: u64, grace: Duration) -> Tunables {
    Tunables {
        object_bytes: 64 << 10,
        inline_bytes: 300,
        log_bytes: 20_000,
        log_objects: 8,
        page_entries: 16,
        deadline: Duration::from_millis(250),
        hedge: Duration::from_millis(50),
        pause: Duration::from_millis(2),
        pause_max: Duration::from_millis(20),
        budget: Duration::from_secs(10),
        grace,
        seed,
        ..Tunables::default()
    }
}

fn many() -> Faults {
    Faults { late: LATE, ..Faults::MANY }
}

/// A host with its disks, and the store as it sees it.
struct Host {
    name: PathBuf,
    bucket: Arc<Behind<Bucket>>,
    store: Arc<FaultStore>,
    disks: Vec<Arc<Disk>>,
    lab: Lab,
}

impl Host {
    fn new(
        bucket: &Arc<Behind<Bucket>>,
        images: &[Image],
        journal: &Arc<Journal>,
        seed: u64,
    ) -> Host {
        static HOSTS: AtomicU64 = AtomicU64::new(0);
        let name = format!("torture://{}", HOSTS.fetch_add(1, Ordering::Relaxed));
        let name = PathBuf::from(name);
        let store = FaultStore::new(&Shared::new(bucket.clone()), Faults::NONE, seed);
        object::provide(&name, store.clone(), tunables(seed, 10 * LATE));
        let disks = disks(images, Some(journal));
        let all = disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect();
        let lab = Lab::new(all).with_object(&name);
        Host { name, bucket: bucket.clone(), store, disks, lab }
    }

    fn create(&self, classes: &[Class]) -> Arc<Engine> {
        let store = VdevSpec::new(Redundancy::Single, vec![self.name.clone()]);
        let beside = self.lab.paths().zip(classes).map(|(path, class)| VdevSpec {
            class: *class,
            ..VdevSpec::new(Redundancy::Single, vec![path])
        });
        let tops = [store].into_iter().chain(beside).collect();
        let layout = Layout { tops, ..Layout::default() };
        self.lab.create_layout(&layout, 9, Logs::On).unwrap()
    }

    /// Imports the pool in so many tries.
    fn import(&self, tries: usize) -> Arc<Engine> {
        let mut whys = Vec::new();
        for _ in 0..tries {
            let found = self.lab.find().expect("the pool is gone");
            match self.lab.import(&found) {
                Ok(engine) => return engine,
                Err(why) => whys.push(why.to_string()),
            }
        }
        panic!("the pool cannot be imported: {whys:?}")
    }

    /// Imports it and replays its log.
    fn recover(&self, tries: usize) -> Arc<Engine> {
        let engine = self.import(tries);
        assert_eq!(cenote::contents::replay_logs(&engine, &|_, _| true).unwrap(), []);
        engine
    }

    /// The pool, which was exported, is whole.
    fn judge(&self) {
        lab::account(&self.lab).unwrap();
        let dir = tempfile::tempdir().unwrap();
        for (i, disk) in self.disks.iter().enumerate() {
            disk.image().save(&dir.path().join(format!("d{i}")));
        }
        let said = zdb(&self.name, dir.path());
        assert!(said.contains("No leaks (block sum matches space maps exactly)"), "{said}");
    }

    /// Nothing is left over in the store once an import has cleaned up, and nothing is missing. Whatever was late has arrived.
    fn audit(&self) {
        self.bucket.wait();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (store, tunables) = (Arc::new(self.bucket.contents()), tunables(1, Duration::ZERO));
            let found = Space::look(store.clone(), Default::default(), tunables).await.unwrap();
            let space = found.open("the test").await.unwrap();
            space.sweep().await.unwrap();
            space.tidy().await;
            let audit = space.audit().await.unwrap();
            assert!(audit.missing.is_empty() && audit.left.is_empty(), "{audit:?}");
            assert_eq!(space.garbage(), 0);
        });
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The store is kept no longer.
        object::provide(&self.name, Arc::new(InMemory::new()), Tunables::default());
    }
}

/// What our `zdb -bcc` says of a pool that is in a store and in the files of a directory.
fn zdb(store: &Path, dir: &Path) -> String {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let caller = Caller {
        cwd: std::env::temp_dir(),
        env: BTreeMap::new(),
        terminal: Terminal::default(),
        umask: 0o022,
        user: 0,
        pid: None,
        rights: Rights::All,
    };
    let surroundings = cenote_zdb::Surroundings {
        out: &mut out,
        err: &mut err,
        caller: &caller,
        cancel: Cancel::default(),
        imported: &|_| None,
        cachefile: None,
    };
    let args = [&["-e", "-p"][..], &[store.to_str().unwrap(), "-p", dir.to_str().unwrap()]];
    let args: Vec<OsString> =
        args.concat().iter().chain(&["-bcc", lab::POOL]).map(OsString::from).collect();
    let code = cenote_zdb::run(&args, surroundings);
    let text = [out, err].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(code, 0, "{text}");
    text
}

fn at_of(journal: &Arc<Journal>) -> Moment {
    let journal = journal.clone();
    Arc::new(move || journal.len())
}

/// What was done.
struct Story {
    first: Vec<Image>,
    journal: Arc<Journal>,
    bucket: Arc<Behind<Bucket>>,
    begun: usize,
    end: usize,
    history: History,
}

fn tell(seed: u64, classes: &[Class], steps: usize) -> Story {
    world::shrink();
    let mut rng = SmallRng::seed_from_u64(seed);
    let journal = Arc::new(Journal::default());
    let pace = SmallRng::seed_from_u64(rng.random());
    let bucket = Bucket::new(&journal, seed % 3 == 2, pace);
    let first = vec![Image::new(SIZE); classes.len()];
    let host = Host::new(&bucket, &first, &journal, seed);
    let engine = host.create(classes);
    engine.sync().unwrap();
    let begun = journal.len();
    host.store.set(many());
    let (fs, own) = (root(&engine, seed.is_multiple_of(2)), SmallRng::seed_from_u64(rng.random()));
    let mut world = World::new(own, engine.clone(), fs, at_of(&journal), State::default());
    let mut syncing: Option<std::thread::JoinHandle<()>> = None;
    for _ in 0..steps {
        world.step().unwrap();
        match rng.random_range(0..10) {
            0 => engine.sync().unwrap(),
            // A group is written while changes of the next one are made.
            1 if syncing.as_ref().is_none_or(|thread| thread.is_finished()) => {
                world.release_all().unwrap();
                let engine = engine.clone();
                syncing = Some(std::thread::spawn(move || engine.sync().unwrap()));
            }
            _ => {}
        }
    }
    syncing.into_iter().for_each(|sync| sync.join().unwrap());
    let end = journal.len();
    let World { history, .. } = world;
    Story { first, journal, bucket, begun, end, history }
}

/// A crash.
struct Point {
    at: usize,
    images: Vec<Image>,
    bucket: Arc<Behind<Bucket>>,
    journal: Arc<Journal>,
    seed: u64,
}

/// What crashes came to.
#[derive(Debug, Default)]
struct Count {
    /// Crashes.
    points: AtomicUsize,
    /// Those after which the next host's requests fail too.
    faulty: AtomicUsize,
    /// Crashes during the import after one.
    again: AtomicUsize,
    /// Requests that were on their way.
    on_the_way: Mutex<OnTheWay>,
}

impl Count {
    fn on_the_way(&self, more: OnTheWay) {
        let mut all = self.on_the_way.lock();
        all.done += more.done;
        all.lost += more.lost;
        all.late += more.late;
    }
}

fn survive(story: &Story, point: Point, count: &Count) {
    let mut rng = SmallRng::seed_from_u64(point.seed);
    count.points.fetch_add(1, Ordering::Relaxed);
    let Point { at, mut images, mut bucket, mut journal, .. } = point;
    let again = usize::from(rng.random_ratio(1, 3));
    for round in 0..=again {
        let before = bucket.contents();
        let host = Host::new(&bucket, &images, &journal, rng.random());
        let is_faulty = rng.random_ratio(1, 4);
        if is_faulty {
            count.faulty.fetch_add(1, Ordering::Relaxed);
            host.store.set(many());
        }
        let engine = host.recover(TRIES);
        let fs = root(&engine, true);
        let tree = look(&fs);
        if let Err(why) = story.history.check(&tree, at) {
            panic!("crash at {at} of {}, {round} more after it: {why}", story.end);
        }
        let recovered = journal.len();
        // The pool goes on.
        let (mut next, own) = (1_000_000, SmallRng::seed_from_u64(rng.random()));
        let state = State::of(&tree, &mut next);
        let mut world = World::new(own, engine.clone(), fs, at_of(&journal), state);
        (0..3).for_each(|_| world.step().unwrap());
        engine.sync().unwrap();
        engine.pool().store().drop_caches();
        world.compare().unwrap();
        world.release_all().unwrap();
        drop(world);
        engine.export(false).unwrap();
        drop(engine);
        host.store.set(Faults::NONE);
        host.judge();
        if is_faulty {
            std::thread::sleep(4 * LATE);
        }
        host.audit();
        if round == again {
            break;
        }
        // The power goes while the pool is imported.
        count.again.fetch_add(1, Ordering::Relaxed);
        let mut replay = Replay::new(images.clone(), &journal);
        let at = rng.random_range(0..=recovered);
        replay.advance(at);
        images = replay.crash(rng.random());
        journal = Arc::new(Journal::default());
        let (left, on_the_way) = bucket.left(Some(&before), (at, &journal), &mut rng);
        count.on_the_way(on_the_way);
        bucket = left;
    }
}

fn crash(seed: u64, steps: usize, points: usize, count: &Count) {
    let classes = LAYOUTS[seed as usize % LAYOUTS.len()];
    let _seed = Seed(format!("seed {seed}, beside {classes:?}"));
    let story = tell(seed, classes, steps);
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x0b);
    // At every operation, or at as many as there is time for.
    let all = story.end - story.begun + 1;
    let mut at: Vec<usize> = match points < all {
        true => (0..points).map(|_| rng.random_range(story.begun..=story.end)).collect(),
        false => (story.begun..=story.end).collect(),
    };
    at.sort_unstable();
    println!("seed {seed}: {} of {all} moments, beside {classes:?}", at.len());
    let mut replay = Replay::new(story.first.clone(), &story.journal);
    let points = at.into_iter().map(|at| {
        replay.advance(at);
        let (images, journal) = (replay.crash(rng.random()), Arc::new(Journal::default()));
        let (bucket, on_the_way) = story.bucket.left(None, (at, &journal), &mut rng);
        count.on_the_way(on_the_way);
        Point { at, images, bucket, journal, seed: rng.random() }
    });
    side_by_side(points, |point| {
        let _seed = Seed(format!("seed {seed}, beside {classes:?}"));
        survive(&story, point, count);
    });
}

/// `CENOTE_SEED` runs a single seed.
#[test]
fn what_was_acknowledged_is_there_after_any_crash() {
    let (rounds, steps, points) = if long() { (24, 60, 1000) } else { (6, 25, 18) };
    let only = std::env::var("CENOTE_SEED").ok().map(|s| s.parse::<u64>().unwrap());
    let seeds = only.map_or(0..rounds, |seed| seed..seed + 1);
    let progress = Progress::of("crashes over object stores", (seeds.end - seeds.start) as usize);
    let count = Count::default();
    for seed in seeds {
        crash(seed, steps, points, &count);
        progress.done(format_args!("seed {seed}"));
    }
    println!("{count:?}");
    let OnTheWay { done, lost, late } = *count.on_the_way.lock();
    assert!(only.is_some() || done.min(lost).min(late) > 0, "{count:?}");
}
