//! What waits for what in a pool of objects: a reader for its own blocks, a small group for its uploads and its root, and nothing for a store
//! whose client has lost track of what it does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use async_trait::async_trait;
use cenote_engine::{Engine, EngineOptions};
use cenote_format::invariant::broken;
use cenote_objects::Tunables;
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_teststore::way::{Behind, Way};
use cenote_vdev::object;
use object_store::memory::InMemory;
use object_store::path::Path as Name;
use object_store::{GetOptions, GetResult, ObjectStore, PutOptions, PutPayload, PutResult, Result};
use parking_lot::Mutex;
use rig::{Rig, TIMEOUT, account, check, fill, open};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// A store that is far away.
#[derive(Debug, Default)]
struct Far {
    inner: InMemory,
    /// What each request takes.
    latency: Mutex<Duration>,
    /// Objects of which nothing is answered for now, and how many requests wait for that.
    holds: Mutex<BTreeSet<Name>>,
    held: AtomicUsize,
    /// Names of objects of data, in the order in which they were stored.
    stored: Mutex<Vec<Name>>,
    /// The client finds an invariant broken while it uploads an object.
    breaks: AtomicBool,
    waves: Mutex<Waves>,
}

/// Requests that overlap are one wave.
#[derive(Debug, Default)]
struct Waves {
    under_way: usize,
    /// The requests of each wave.
    all: Vec<Vec<String>>,
}

impl Far {
    /// A store that a device called `name` is in.
    fn new(name: &str, tunables: Tunables) -> Arc<Behind<Far>> {
        let store = Arc::new(Behind(Far::default()));
        object::provide(Path::new(name), store.clone(), tunables);
        store
    }

    async fn during<T>(&self, what: String, request: impl Future<Output = T>) -> T {
        {
            let mut waves = self.waves.lock();
            if waves.under_way == 0 {
                waves.all.push(Vec::new());
            }
            waves.under_way += 1;
            waves.all.last_mut().unwrap().push(what);
        }
        let latency = *self.latency.lock();
        if latency > Duration::ZERO {
            tokio::time::sleep(latency).await;
        }
        let done = request.await;
        self.waves.lock().under_way -= 1;
        done
    }

    /// The waves of a change.
    fn waves_of(&self, change: impl FnOnce()) -> Vec<Vec<String>> {
        self.waves.lock().all.clear();
        change();
        std::mem::take(&mut self.waves.lock().all)
    }
}

#[async_trait]
impl Way for Far {
    const NAME: &'static str = "a store far away";

    fn store(&self) -> &dyn ObjectStore {
        &self.inner
    }

    async fn put(&self, at: &Name, payload: PutPayload, how: PutOptions) -> Result<PutResult> {
        let is_object = at.as_ref().contains('/');
        if is_object && self.breaks.load(SeqCst) {
            broken(format_args!("for the test"));
        }
        let put = self.during(format!("PUT {at}"), self.inner.put_opts(at, payload, how)).await?;
        if is_object {
            self.stored.lock().push(at.clone());
        }
        Ok(put)
    }

    async fn get(&self, at: &Name, how: GetOptions) -> Result<GetResult> {
        if self.holds.lock().contains(at) {
            self.held.fetch_add(1, SeqCst);
            while self.holds.lock().contains(at) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        self.during(format!("GET {at}"), self.inner.get_opts(at, how)).await
    }
}

fn options() -> EngineOptions {
    EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() }
}

fn view(name: &str) -> Arc<Pool> {
    let found = discover(&[PathBuf::from(name)]);
    Pool::import(&found[0], &ImportOptions { readonly: true, ..Default::default() }).unwrap()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Of what is read ahead together a part comes late: what has come can be read.
#[test]
fn a_reader_waits_for_its_own_part_of_what_is_read_ahead() {
    const SIZE: usize = 24 << 20;
    const PIECE: usize = 128 << 10;
    let far = Far::new("test://part", Tunables { hedge: LONG, ..Tunables::default() });
    let rig = Rig::new(64 << 20);
    let engine = rig.create_with("test://part", 0, options());
    let fs = open(&engine);
    let (file, bytes) = (fs.create(fs.root(), b"file", &rig::NODE).unwrap(), rig::bytes(1, SIZE));
    far.stored.lock().clear();
    fs.write(file.ino, 0, &bytes, false).unwrap();
    engine.sync().unwrap();
    // The objects that hold the file are named in its order; metadata comes after these.
    let mut objects = far.stored.lock().clone();
    objects.sort_unstable();
    assert!(objects.len() >= 6, "{objects:?}");
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    let pool = view("test://part");
    let files = pool.dsl().open_objset(&pool.dsl().root().unwrap()).unwrap();
    let object = files.object(file.ino).unwrap();
    let read = |at: usize| {
        let mut read = vec![0; PIECE];
        object.read(at as u64, &mut read).unwrap();
        assert!(read == bytes[at..at + PIECE], "{at}");
    };
    // What leads to the blocks is in memory then.
    read(SIZE - PIECE);
    far.holds.lock().extend(objects[2..4].iter().cloned());
    object.prefetch(0, SIZE as u64);
    until("nothing is read ahead", || far.held.load(SeqCst) > 0);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| read(0));
        let last = scope.spawn(|| read(SIZE - 2 * PIECE));
        let late = scope.spawn(|| read(SIZE / 2));
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end && !(first.is_finished() && last.is_finished()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let done = (first.is_finished(), last.is_finished(), late.is_finished());
        far.holds.lock().clear();
        assert_eq!(done, (true, true, false));
        late.join().unwrap();
    });
    (0..SIZE).step_by(PIECE).for_each(read);
}

/// A small group waits for its uploads, and then for the root that names them. Neither may be earlier: a root whose objects are not stored
/// would be a pool that lacks blocks. All blocks, of whatever level, object set and pass, are uploaded at once.
#[test]
fn a_small_group_takes_two_latencies() {
    let far = Far::new("test://waves", Tunables::default());
    let rig = Rig::new(64 << 20);
    let engine = rig.create_with("test://waves", 0, options());
    let fs = open(&engine);
    fill(&fs, 0..20, 10_000);
    engine.sync().unwrap();
    *far.latency.lock() = Duration::from_millis(30);
    let mut all = Vec::new();
    for round in 1..6 {
        let began = Instant::now();
        let waves = far.waves_of(|| {
            fill(&fs, 20 * round..20 * (round + 1), 10_000);
            engine.sync().unwrap();
        });
        all.push((began.elapsed(), waves));
    }
    for (_, waves) in &all {
        let [objects, root] = &waves[..] else { panic!("{all:#?}") };
        assert!(objects.iter().all(|request| request.contains('/')), "{all:#?}");
        assert!(root.len() == 1 && root[0].contains("commit"), "{all:#?}");
    }
    *far.latency.lock() = Duration::ZERO;
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    account(&view("test://waves"));
}

/// A task of the store's client finds an invariant broken: no root is stored any more, the pool is suspended and says why. What is on the store
/// is the last group.
#[test]
fn a_broken_invariant_of_an_upload_suspends_the_pool() {
    let far = Far::new("test://broken", Tunables::default());
    let rig = Rig::new(64 << 20);
    let engine = rig.create_with("test://broken", 0, options());
    fill(&open(&engine), 0..5, 10_000);
    engine.sync().unwrap();
    far.breaks.store(true, SeqCst);
    fill(&open(&engine), 5..10, 10_000);
    let syncing = engine.clone();
    let syncing = std::thread::spawn(move || syncing.sync());
    until("the pool goes on", || engine.suspended().is_some());
    let why = engine.suspended().unwrap();
    assert!(why.contains("broken invariant") && why.contains("for the test"), "{why}");
    far.breaks.store(false, SeqCst);
    // Also once the store is well again: what is in memory is wrong, and no device is waited for.
    assert!(!engine.waits_for_devices());
    let why = engine.resume().unwrap_err().to_string();
    assert!(why.contains("broken invariant"), "{why}");
    syncing.join().unwrap().unwrap_err();
    assert!(engine.suspended().is_some());
    std::mem::forget(engine);
    object::provide(Path::new("test://after"), far.clone(), Tunables::default());
    let found = discover(&[PathBuf::from("test://after")]);
    let how = ImportOptions { force: true, ..ImportOptions::default() };
    let engine = Engine::import(&found[0], &how, options()).unwrap();
    let fs = open(&engine);
    check(&fs, 0..5, 10_000);
    assert!(fs.lookup(fs.root(), b"file 5").is_err());
    fill(&fs, 5..10, 10_000);
    engine.sync().unwrap();
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    account(&view("test://after"));
}
