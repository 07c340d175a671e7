//! Random work against a model, with a store that fails at every request and hosts that die at every request.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use std::sync::Arc;
use std::time::Duration;

use cenote_objects::{Audit, Error, Found, Space};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use rig::{FaultStore, Faults, Model, Random, Shared, small};
use tokio::time::{sleep, timeout};

/// A space with its model and its present host.
struct World {
    seed: u64,
    shared: Shared,
    random: Random,
    store: Arc<FaultStore>,
    space: Space,
    /// What is committed for certain.
    committed: Model,
    /// What the open group has on top.
    now: Model,
    imports: u64,
    /// How often things have happened.
    commits: u64,
    crashes: u64,
    fenced: u64,
    reclaimed: u64,
}

fn prefix() -> Path {
    Path::from("a/tank")
}

impl World {
    async fn new(inner: Arc<dyn ObjectStore>, seed: u64) -> Self {
        let shared = Shared::new(inner);
        let store = FaultStore::new(&shared, Faults::MANY, seed);
        let now = Model::default();
        let made = async || {
            Space::create(store.clone(), prefix(), small(seed), "zero", &now.payload()).await
        };
        let space = loop {
            match made().await {
                Ok(space) => break space,
                // A try without an answer had arrived.
                Err(Error::Exists(_)) => {
                    break look(&store, seed).await.open("zero").await.unwrap();
                }
                Err(error) => assert!(error.transient(), "{error}"),
            }
        };
        let (random, committed) = (Random(seed), now.clone());
        Self {
            seed,
            shared,
            random,
            store,
            space,
            committed,
            now,
            imports: 0,
            commits: 0,
            crashes: 0,
            fenced: 0,
            reclaimed: 0,
        }
    }

    /// Does something.
    async fn step(&mut self) {
        let before = self.now.clone();
        let done = match self.random.below(100) {
            0..45 => self.now.write(&self.space, &mut self.random).await,
            45..70 => self.now.free(&self.space, &mut self.random),
            70..76 => {
                self.now.check(&self.space, Some(&mut self.random)).await;
                Ok(())
            }
            76..82 => {
                let limit = Duration::from_millis(1 + self.random.below(60_000));
                match timeout(limit, self.space.reclaim(&self.now, 200 << 10)).await {
                    Ok(Ok(done)) => self.reclaimed += done.objects,
                    Ok(Err(error)) => assert!(error.transient(), "seed {}: {error}", self.seed),
                    Err(_) => {} // Dropped.
                }
                Ok(())
            }
            82..86 => {
                self.space.tidy().await;
                Ok(())
            }
            86..88 => {
                self.store.die_in(self.random.below(30));
                Ok(())
            }
            88..91 => return self.take_over().await,
            _ => self.commit().await,
        };
        if self.store.dead() {
            return self.crash(before).await;
        }
        if let Err(error) = done {
            // A block that could not be written leaves its addresses without bytes: the host gives up.
            assert!(error.transient(), "seed {}: {error}", self.seed);
            self.now = before;
            self.store.die();
            self.crash(self.now.clone()).await;
        }
    }

    /// Commits; what the store refuses is tried again.
    async fn commit(&mut self) -> Result<(), Error> {
        self.now.group += 1;
        let payload = self.now.payload();
        // The next group begins beside the first try.
        let mut ahead = self.now.clone();
        let (mut count, mut written) = (self.random.below(4), Ok(()));
        let mut limit = Duration::from_millis(1 + self.random.below(400_000));
        for _ in 0..40 {
            let next = async {
                for _ in 0..std::mem::take(&mut count) {
                    match self.random.below(5) {
                        0..2 => ahead.write(&self.space, &mut self.random).await?,
                        2..4 => ahead.free(&self.space, &mut self.random)?,
                        _ => match self.space.reclaim(&ahead, 100 << 10).await {
                            Err(error) if !error.transient() => panic!("{error}"),
                            _ => {}
                        },
                    }
                }
                Ok(())
            };
            let commit = timeout(limit, self.space.commit(self.now.group, &payload));
            let (done, more) = tokio::join!(commit, next);
            written = written.and(more);
            limit *= 2;
            let Ok(done) = done else { continue };
            match done {
                Ok(()) => {
                    self.committed = self.now.clone();
                    self.now = ahead;
                    self.commits += 1;
                    return written;
                }
                Err(error) if self.store.dead() => return Err(error),
                Err(error) => assert!(error.transient(), "seed {}: {error}", self.seed),
            }
            sleep(Duration::from_secs(self.random.below(60))).await;
        }
        panic!("seed {}: no commit in forty tries", self.seed)
    }

    /// The host is dead: another one takes over, and finds what was acknowledged.
    async fn crash(&mut self, before: Model) {
        self.crashes += 1;
        let pending = if self.now.group > self.committed.group { self.now.clone() } else { before };
        self.import().await;
        let found = self.now.group;
        assert!(
            found == self.committed.group || found == pending.group,
            "seed {}: group {found}",
            self.seed
        );
        self.now = if found == pending.group && found > self.committed.group {
            pending
        } else {
            self.committed.clone()
        };
        self.now.group = found;
        self.committed = self.now.clone();
        assert_eq!(self.now.check(&self.space, None).await, 0, "seed {}", self.seed);
    }

    /// A new host imports, without faults at the end; `now.group` is what it found.
    async fn import(&mut self) {
        self.imports += 1;
        let seed = self.seed.wrapping_mul(1000) + self.imports;
        self.store = FaultStore::new(&self.shared, Faults::MANY, seed);
        if self.random.chance(30) {
            // It dies during the import, and the next one takes over.
            self.store.die_in(self.random.below(20));
            if let Ok(found) = Space::look(self.store.clone(), prefix(), small(seed)).await {
                let _ = found.open("dying").await;
            }
            self.store = FaultStore::new(&self.shared, Faults::MANY, seed + 1_000_000);
        }
        let host = format!("host {}", self.imports);
        self.space = loop {
            let found = look(&self.store, seed).await;
            self.now.group = found.group();
            match found.open(&host).await {
                Ok(space) => break space,
                // Its own request without an answer, or one of the dead host, arrived after it had looked.
                Err(Error::Fenced { .. }) => {}
                Err(error) => assert!(
                    error.transient() || error.cause().is_some(),
                    "seed {}: {error}",
                    self.seed
                ),
            }
        };
        self.store.set(Faults::NONE);
        sleep(Duration::from_secs(300)).await; // Whatever was late has arrived.
        self.space.sweep().await.unwrap();
        self.space.tidy().await;
        let audit = self.space.audit().await.unwrap();
        assert_eq!(audit, Audit::default(), "seed {}, import {}", self.seed, self.imports);
        self.store.set(Faults::MANY);
    }

    /// A second host imports while the first one commits: at most one of them gets its way.
    async fn take_over(&mut self) {
        let old = self.space.clone();
        let mut next = self.now.clone();
        next.group += 1;
        let payload = next.payload();
        let store = FaultStore::new(&self.shared, Faults::NONE, self.seed ^ self.imports);
        let pause = Duration::from_millis(self.random.below(20_000));
        let second = async {
            sleep(pause).await;
            let found = look(&store, 99 + self.imports + self.seed).await;
            let group = found.group();
            (group, found.open("second").await)
        };
        let (first, (group, second)) = tokio::join!(old.commit(next.group, &payload), second);
        if first.is_ok() {
            self.commits += 1;
            self.committed = next.clone();
        }
        self.now = next.clone();
        self.fenced += u64::from(matches!(first, Err(Error::Fenced { .. })));
        match second {
            Ok(second) => {
                assert!(
                    group >= self.committed.group,
                    "seed {}: an acknowledged group is lost",
                    self.seed
                );
                let late = old.commit(next.group + 1, b"too late").await;
                let late = late.and(old.commit(next.group + 2, b"too late").await);
                assert!(late.is_err(), "seed {}: two hosts have committed", self.seed);
                self.now = if group == next.group { next } else { self.committed.clone() };
                self.committed = self.now.clone();
                drop(second);
            }
            Err(error) => {
                assert!(matches!(error, Error::Fenced { .. }) || error.cause().is_some(), "{error}")
            }
        }
        self.store.die();
        self.crash(self.now.clone()).await;
    }
}

async fn look(store: &Arc<FaultStore>, seed: u64) -> Found {
    loop {
        match Space::look(store.clone(), prefix(), small(seed)).await {
            Ok(found) => return found,
            Err(error) => assert!(error.transient(), "{error}"),
        }
    }
}

async fn run(inner: Arc<dyn ObjectStore>, seed: u64, steps: u64) -> [u64; 4] {
    let mut world = World::new(inner, seed).await;
    for _ in 0..steps {
        world.step().await;
    }
    world.store.die();
    let pending = world.now.clone();
    world.crash(pending).await;
    [world.commits, world.crashes, world.fenced, world.reclaimed]
}

/// Seeds and steps: `CENOTE_OBJECTS_SEEDS` for more of them.
fn seeds(few: u64) -> u64 {
    std::env::var("CENOTE_OBJECTS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(few)
}

#[tokio::test(start_paused = true)]
async fn in_memory_nothing_committed_is_lost_and_no_object_left_over() {
    let mut sums = [0; 4];
    for seed in 0..seeds(40) {
        let done = run(Arc::new(InMemory::new()), seed, 400).await;
        (0..4).for_each(|n| sums[n] += done[n]);
    }
    println!("commits, crashes, fenced, reclaimed: {sums:?}");
    assert!(sums.iter().all(|sum| *sum > 0), "{sums:?}");
}

#[tokio::test(start_paused = true)]
async fn in_a_directory_nothing_committed_is_lost_and_no_object_left_over() {
    let mut sums = [0; 4];
    for seed in 0..seeds(6) {
        let folder = tempfile::tempdir().unwrap();
        let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        let done = run(Arc::new(local), seed, 250).await;
        (0..4).for_each(|n| sums[n] += done[n]);
    }
    println!("commits, crashes, fenced, reclaimed: {sums:?}");
    assert!(sums.iter().all(|sum| *sum > 0), "{sums:?}");
}
