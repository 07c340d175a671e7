//! Two hosts have one pool: the second one imports it while the first one goes on. One of them has it from then on, and nothing
//! that either was told to be stable is lost.

use super::{Bucket, Host, Journal, at_of, many};
use cenote_teststore::faults::Faults;
use cenote_torture::live::driver::Seed;
use cenote_torture::live::world::{self, State, World, look, root};
use cenote_torture::long;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the import is tried: the first host may have written since it began.
const BESIDE: usize = 40;

fn fence(seed: u64) {
    let _seed = Seed(format!("seed {seed}"));
    world::shrink();
    let mut rng = SmallRng::seed_from_u64(seed);
    let journal = Arc::new(Journal::default());
    let pace = SmallRng::seed_from_u64(rng.random());
    let bucket = Bucket::new(&journal, seed % 2 == 1, pace);
    let first = Host::new(&bucket, &[], &journal, seed);
    let engine = first.create(&[]);
    engine.sync().unwrap();
    let faults = if seed % 4 < 2 { Faults::NONE } else { many() };
    first.store.set(faults);
    let own = SmallRng::seed_from_u64(rng.random());
    let mut world =
        World::new(own, engine.clone(), root(&engine, true), at_of(&journal), State::default());
    (0..5).for_each(|_| world.step().unwrap());
    let over = Arc::new(AtomicBool::new(false));
    let is_over = over.clone();
    let mut pauses = SmallRng::seed_from_u64(rng.random());
    let working = std::thread::spawn(move || {
        // It acknowledges nothing any more from some step on, and stops.
        // One that stores group after group leaves the other one no time to read the pool: it gets slower.
        for most in (1..).map(|n| (100 * n).min(3000)) {
            if is_over.load(Ordering::SeqCst) || world.step().is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(pauses.random_range(0..most)));
        }
        world.history
    });
    std::thread::sleep(Duration::from_millis(rng.random_range(0..300)));
    let second = Host::new(&bucket, &[], &journal, seed + 1000);
    second.store.set(faults);
    let theirs = second.recover(BESIDE);
    let fs = root(&theirs, true);
    let tree = look(&fs);
    // Whatever the first one does now is in vain.
    let end = Instant::now() + Duration::from_secs(60);
    while engine.suspended().is_none() {
        assert!(Instant::now() < end, "the first host goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let why = engine.suspended().unwrap();
    assert!(why.contains("another import has taken over the pool"), "{why}");
    let mut next = 1_000_000;
    let state = State::of(&tree, &mut next);
    let own = SmallRng::seed_from_u64(rng.random());
    let mut world = World::new(own, theirs.clone(), fs, at_of(&journal), state);
    (0..3).for_each(|_| world.step().unwrap());
    over.store(true, Ordering::SeqCst);
    engine.hold_no_more();
    let history = working.join().unwrap();
    drop(engine);
    theirs.sync().unwrap();
    world.compare().unwrap();
    world.release_all().unwrap();
    drop(world);
    theirs.export(false).unwrap();
    drop(theirs);
    // All that the first one ever acknowledged was there when the second one came.
    history.check(&tree, usize::MAX).unwrap();
    second.store.set(Faults::NONE);
    second.judge();
    std::thread::sleep(4 * super::LATE);
    second.audit();
}

#[test]
fn one_of_two_hosts_has_the_pool() {
    let rounds = if long() { 200 } else { 8 };
    (0..rounds).for_each(fence);
}
