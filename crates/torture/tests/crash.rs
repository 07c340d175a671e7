//! The loss of power at any moment: the pool opens at its last transaction group, whole.
//!
//! A pool is made and worked with; its disks note everything. Then, for many points of that, the
//! images are made that a crash there could have left: what was flushed, and any part of the rest.
//! Each is imported, compared with what the model says of the transaction group that is newest on
//! it, and written to again. Some crash once more during that, in the import itself or after it.
//! zdb judges a sample.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_format::label::Uberblock;
use cenote_pool::create::Redundancy;
use cenote_pool::discover::Candidate;
use cenote_torture::live::disk::{Image, Journal, Replay};
use cenote_torture::live::driver::{ALL, Committed, Driver, Seed};
use cenote_torture::live::lab::{Shape, disks, judge, keep, lab};
use cenote_torture::live::model::Model;
use cenote_torture::live::side_by_side;
use cenote_torture::long;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const fn shape(redundancy: Redundancy, disks: usize, ashift: u64) -> Shape {
    Shape { redundancy, disks, ashift, size: 64 << 20 }
}

const SHAPES: [Shape; 5] = [
    shape(Redundancy::Single, 1, 12),
    shape(Redundancy::Mirror, 2, 9),
    shape(Redundancy::RaidZ(1), 3, 12),
    shape(Redundancy::Single, 2, 9),
    shape(Redundancy::RaidZ(2), 4, 12),
];

/// Something that was done, from beginning to end.
struct Story {
    first: Vec<Image>,
    journal: Arc<Journal>,
    committed: Committed,
    /// Transaction groups that were committed, each with the number of operations until then.
    known: Vec<(u64, usize)>,
}

impl Story {
    /// The last group that had been committed when so many operations were done.
    fn durable(&self, operations: usize) -> Option<u64> {
        self.known.iter().rev().find(|(_, at)| *at <= operations).map(|(txg, _)| *txg)
    }
}

/// Does `steps` changes, then exports.
fn work(driver: &mut Driver, journal: &Journal, known: &mut Vec<(u64, usize)>, steps: u64) {
    let mut mark = |driver: &Driver| {
        let last = *driver.committed.keys().next_back().unwrap();
        if known.last().is_none_or(|(txg, _)| *txg < last) {
            known.push((last, journal.len()));
        }
    };
    mark(driver);
    for _ in 0..steps {
        driver.step();
        mark(driver);
    }
    driver.settle();
    mark(driver);
}

fn tell(seed: u64, shape: &Shape, steps: u64) -> Story {
    let journal = Arc::new(Journal::default());
    let first = vec![Image::new(shape.size); shape.disks];
    let disks = disks(&first, Some(&journal));
    let lab = lab(&disks);
    let mut driver = Driver::of_new(seed, lab.create(shape).unwrap(), ALL);
    driver.largest = 30_000;
    let mut known = Vec::new();
    work(&mut driver, &journal, &mut known, steps);
    // Exported and imported once in between.
    driver.reimport(&lab);
    work(&mut driver, &journal, &mut known, steps / 3);
    let (_, committed) = driver.export();
    Story { first, journal, committed, known }
}

/// What there is of a pool after a crash: `None` if it was not there yet.
struct Left {
    images: Vec<Image>,
    /// Group that was durable.
    durable: Option<u64>,
}

#[derive(Default)]
struct Figures {
    points: AtomicU64,
    pools: AtomicU64,
    judged: AtomicU64,
    again: AtomicU64,
}

fn newest(found: &Candidate) -> Option<u64> {
    let all = found.devices.iter().flat_map(|d| &d.uberblocks).map(|(_, _, ub)| ub);
    Uberblock::best(all).map(|ub| ub.txg)
}

/// One crash. Returns what the pool holds.
fn recover(
    left: &Left,
    committed: &Committed,
    journal: Option<&Arc<Journal>>,
    seed: u64,
) -> Option<(Driver, u64)> {
    let disks = disks(&left.images, journal);
    let lab = lab(&disks);
    let wrong = |why: String| panic!("{why}; images in {}", keep(&left.images));
    let found = lab.find();
    let Some((found, txg)) = found.and_then(|c| Some((newest(&c)?, c))).map(|(t, c)| (c, t)) else {
        if let Some(txg) = left.durable {
            wrong(format!("the pool of group {txg} is gone"));
        }
        return None;
    };
    if left.durable.is_some_and(|durable| txg < durable) {
        wrong(format!("group {txg} is the newest, but {:?} was committed", left.durable));
    }
    let engine = match lab.import(&found) {
        Ok(engine) => engine,
        Err(e) => {
            wrong(format!("group {txg} cannot be imported: {e}"));
            return None;
        }
    };
    let Some(states) = committed.get(&txg) else {
        wrong(format!("group {txg} was never committed"));
        return None;
    };
    let mut model = None;
    let mut whys = Vec::new();
    for state in states {
        match state.compare(&engine.pool()) {
            Ok(()) => model = Some(state.clone()),
            Err(e) => whys.push(e),
        }
    }
    let Some(mut model) = model else {
        wrong(format!("group {txg}: {}", whys.join("; ")));
        return None;
    };
    model.close_all();
    Some((Driver::new(seed, engine, model, ALL), txg))
}

/// What is to be done at one point.
struct Point {
    seed: u64,
    left: Left,
    /// Whether zdb is to judge it.
    judge: bool,
    /// Whether it crashes again.
    again: bool,
}

fn survive(story: &Story, point: &Point, figures: &Figures) {
    figures.points.fetch_add(1, Ordering::Relaxed);
    let journal = Arc::new(Journal::default());
    let recording = point.again.then_some(&journal);
    let Some((mut driver, txg)) = recover(&point.left, &story.committed, recording, point.seed)
    else {
        return;
    };
    figures.pools.fetch_add(1, Ordering::Relaxed);
    if point.judge {
        figures.judged.fetch_add(1, Ordering::Relaxed);
        let verdict = judge(&point.left.images);
        assert!(verdict.is_ok(), "after a crash at group {txg}: {verdict:?}");
    }
    let mut known = Vec::new();
    // Before, all that is known is what had been imported.
    let before = driver.committed.values().next().cloned().unwrap();
    work(&mut driver, &journal, &mut known, 4);
    let same = driver.check();
    let kept = || keep(&point.left.images);
    assert!(same.is_ok(), "after group {txg}: {same:?}; images in {}", kept());
    if !point.again {
        return;
    }
    let (_, mut committed) = driver.export();
    committed.insert(txg, before);
    let first = point.left.images.clone();
    let story = Story { first, journal, committed, known };
    let mut rng = SmallRng::seed_from_u64(point.seed);
    for crash in 0..2 {
        figures.again.fetch_add(1, Ordering::Relaxed);
        // Mostly in the first group of the import.
        let most = match crash {
            0 => story.known.first().map_or(0, |(_, at)| *at),
            _ => story.journal.len(),
        };
        let at = rng.random_range(0..=most);
        let mut replay = Replay::new(story.first.clone(), &story.journal);
        replay.advance(at);
        let images = replay.crash(rng.random());
        let left = Left { images, durable: Some(story.durable(at).unwrap_or(txg)) };
        if let Some((mut driver, txg)) = recover(&left, &story.committed, None, rng.random()) {
            (0..3).for_each(|_| driver.step());
            let same = driver.check();
            assert!(same.is_ok(), "after group {txg}: {same:?}; images in {}", keep(&left.images));
        }
    }
}

/// Points in a story: half of them anywhere, half where a group is being committed.
fn choose(story: &Story, rng: &mut SmallRng, count: usize) -> Vec<usize> {
    let end = story.journal.len();
    let mut points = BTreeSet::new();
    let commits: Vec<usize> = story.known.iter().map(|(_, at)| *at).chain([end]).collect();
    while points.len() < count.min(end) {
        let point = match rng.random_bool(0.5) {
            true => rng.random_range(0..=end),
            false => {
                let commit = commits[rng.random_range(0..commits.len())];
                commit.saturating_sub(rng.random_range(0..40))
            }
        };
        points.insert(point);
    }
    points.into_iter().collect()
}

fn matrix(seed: u64, shape: &Shape, steps: u64, count: usize, sample: usize, figures: &Figures) {
    let _seed = Seed(format!("seed {seed}, {steps} steps on {shape:?}"));
    let story = tell(seed, shape, steps);
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xc4a5);
    let points = choose(&story, &mut rng, count);
    let mut replay = Replay::new(story.first.clone(), &story.journal);
    let every = (count / sample.max(1)).max(1);
    let points = points.into_iter().enumerate().map(|(i, at)| {
        replay.advance(at);
        let left = Left { images: replay.crash(rng.random()), durable: story.durable(at) };
        let seed = rng.random();
        Point { seed, left, judge: i % every == 0, again: i % 8 == 3 }
    });
    side_by_side(points, |point| {
        let _seed = Seed(format!("seed {seed}, {steps} steps on {shape:?}"));
        survive(&story, &point, figures);
    });
}

/// `CENOTE_SEED` runs a single seed.
#[test]
fn a_crash_leaves_the_last_group() {
    let figures = Figures::default();
    let only = std::env::var("CENOTE_SEED").ok().map(|s| s.parse::<u64>().unwrap());
    let (rounds, steps, count, sample) = match long() {
        true => (4, 200, 400, 400),
        false => (1, 60, 204, 21),
    };
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None => 0..rounds * SHAPES.len() as u64,
    };
    for seed in seeds {
        let shape = &SHAPES[seed as usize % SHAPES.len()];
        matrix(seed, shape, steps, count, sample, &figures);
    }
    let Figures { points, pools, judged, again } = figures;
    println!("{points:?} crashes, {pools:?} left a pool, {again:?} second ones, {judged:?} judged");
}

/// Crashes while the pool is being made: there is none, or a good one; devices of none can be used.
#[test]
fn a_crash_while_a_pool_is_made() {
    let _seed = Seed("creation".into());
    for (seed, shape) in SHAPES.iter().enumerate() {
        let journal = Arc::new(Journal::default());
        let first = vec![Image::new(shape.size); shape.disks];
        let pool = lab(&disks(&first, Some(&journal))).create(shape).unwrap();
        let root = pool.pool().dsl().root().unwrap();
        let files = cenote_torture::live::model::open(&pool.pool(), &root).unwrap();
        let model = Model::new(files.root());
        let txg = pool.pool().uberblock().txg;
        let committed = Committed::from([(txg, vec![model])]);
        let mut replay = Replay::new(first, &journal);
        let step = if long() { 1 } else { 5 };
        for at in (0..journal.len()).step_by(step) {
            replay.advance(at);
            let left = Left { images: replay.crash(at as u64), durable: None };
            match recover(&left, &committed, None, seed as u64) {
                Some((mut driver, _)) => {
                    (0..3).for_each(|_| driver.step());
                    driver.check().unwrap();
                }
                None if at % (4 * step) == 0 => {
                    lab(&disks(&left.images, None)).create(shape).unwrap();
                }
                None => {}
            }
        }
    }
}
