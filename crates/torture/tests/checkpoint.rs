//! Power fails while a pool has a checkpoint, while one is taken and discarded, and while the pool goes back to it: what is left is
//! the pool as it was, with the checkpoint as it was.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_engine::create::Redundancy;
use cenote_pool::ImportOptions;
use cenote_torture::live::crash::{Left, recover};
use cenote_torture::live::disk::{Disk, Image, Journal, Replay};
use cenote_torture::live::driver::{ALL, Committed, Driver, Seed};
use cenote_torture::live::lab::{Logs, Shape, by_openzfs, disks, judge, keep, lab};
use cenote_torture::live::model::Model;
use cenote_torture::live::side_by_side;
use cenote_torture::long;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const fn shape(redundancy: Redundancy, disks: usize, ashift: u64) -> Shape {
    Shape { redundancy, disks, ashift, size: 64 << 20 }
}

const SHAPES: [Shape; 4] = [
    shape(Redundancy::Single, 1, 12),
    shape(Redundancy::Mirror, 2, 9),
    shape(Redundancy::RaidZ(1), 3, 12),
    shape(Redundancy::Single, 2, 9),
];

fn images(disks: &[Arc<Disk>]) -> Vec<Image> {
    disks.iter().map(|disk| disk.image()).collect()
}

/// What happened to a pool.
struct Story {
    first: Vec<Image>,
    journal: Arc<Journal>,
    committed: Committed,
    /// What the checkpoint has.
    kept: Model,
    /// Operations in which it was there.
    there: Range<usize>,
    /// Operations until it was taken, and until nothing was left of it.
    around: Range<usize>,
}

fn work(driver: &mut Driver, steps: u64) {
    (0..steps).for_each(|_| driver.step());
    driver.settle();
}

fn tell(seed: u64, shape: Shape, logs: Logs, steps: u64) -> Story {
    let journal = Arc::new(Journal::default());
    let first = vec![Image::new(shape.size); shape.disks + 2];
    let lab = lab(&disks(&first, Some(&journal)));
    let mut driver = Driver::of_new(seed, &lab, lab.create_with(&shape, logs).unwrap(), ALL);
    driver.largest = 30_000;
    work(&mut driver, steps);
    let begin = journal.len();
    driver.engine().checkpoint().unwrap();
    let taken = journal.len();
    let mut kept = driver.model.clone();
    kept.close_all();
    driver.settle();
    work(&mut driver, steps);
    driver.reimport();
    work(&mut driver, steps);
    assert!(driver.engine().allocator().kept() > 0);
    let discarding = journal.len();
    driver.engine().discard_checkpoint().unwrap();
    driver.settle();
    work(&mut driver, 4);
    assert_eq!(driver.engine().allocator().kept(), 0);
    assert!(!driver.engine().pool().features().is_active("zpool_checkpoint"));
    let end = journal.len();
    let (_, committed) = driver.export();
    let (there, around) = (taken..discarding, begin..end);
    Story { first, journal, committed, kept, there, around }
}

#[derive(Debug, Default)]
struct Figures {
    with: AtomicU64,
    without: AtomicU64,
    rewound: AtomicU64,
    not_rewound: AtomicU64,
}

/// A crash after `at` operations.
struct Point {
    at: usize,
    images: Vec<Image>,
    seed: u64,
    judged: bool,
}

/// What a crash left is the pool as it was; if it has a checkpoint, what that has is there.
fn survive(story: &Story, point: &Point, figures: &Figures) {
    let left = Left { images: point.images.clone(), durable: None };
    let mut recovered = recover(&left, &story.committed, None, point.seed).unwrap();
    let has = recovered.driver.engine().pool().checkpoint().unwrap().is_some();
    let count = if has { &figures.with } else { &figures.without };
    count.fetch_add(1, Ordering::Relaxed);
    assert!(has || !story.there.contains(&point.at), "the checkpoint is gone");
    if point.judged {
        judge(&point.images).unwrap();
    }
    work(&mut recovered.driver, 4);
    recovered.driver.check().unwrap();
    recovered.finish(point.judged).unwrap();
    if has {
        go_back(story, point, figures);
    }
}

/// The pool goes back to its checkpoint, and is used; and power fails while it goes back.
fn go_back(story: &Story, point: &Point, figures: &Figures) {
    let journal = Arc::new(Journal::default());
    let disks = disks(&point.images, Some(&journal));
    let lab = lab(&disks);
    let options = ImportOptions { checkpoint: true, ..ImportOptions::default() };
    let engine = lab.import_with(&lab.find().unwrap(), options).unwrap();
    let done = journal.len();
    let wrong = |why: String| panic!("{why}; images in {}", keep(&point.images));
    story.kept.compare(&engine.pool()).unwrap_or_else(wrong);
    let mut driver = Driver::new(point.seed, &lab, engine, story.kept.clone(), ALL);
    work(&mut driver, 12);
    driver.check().unwrap_or_else(wrong);
    driver.reimport();
    work(&mut driver, 4);
    driver.check().unwrap_or_else(wrong);
    driver.export();
    if point.judged {
        judge(&images(&disks)).unwrap_or_else(wrong);
        // OpenZFS goes back to it as well.
        let theirs = by_openzfs(&point.images, "rewind\nsync\nexport\n").unwrap();
        judge(&theirs).unwrap_or_else(wrong);
    }
    let mut rng = SmallRng::seed_from_u64(point.seed);
    let early = 0..done.min(8);
    let anywhere = (0..3).map(|_| rng.random_range(0..=done)).collect::<Vec<_>>();
    let mut points: Vec<usize> = early.chain(anywhere).collect();
    points.sort_unstable();
    let mut replay = Replay::new(point.images.clone(), &journal);
    for at in points {
        replay.advance(at);
        between(story, &replay.crash(rng.random()), figures);
    }
}

/// What a crash left while the pool went back: it has its checkpoint still, or is what that had.
fn between(story: &Story, left: &[Image], figures: &Figures) {
    let disks = disks(left, None);
    let lab = lab(&disks);
    let wrong = |why: String| panic!("{why}; images in {}", keep(left));
    let pool = lab.look().unwrap_or_else(|why| panic!("{why}; images in {}", keep(left)));
    if pool.checkpoint().unwrap().is_some() {
        drop(pool);
        figures.not_rewound.fetch_add(1, Ordering::Relaxed);
        let left = Left { images: left.to_vec(), durable: None };
        recover(&left, &story.committed, None, 1).unwrap();
        return;
    }
    figures.rewound.fetch_add(1, Ordering::Relaxed);
    story.kept.compare(&pool).unwrap_or_else(wrong);
    drop(pool);
    let engine = lab.import(&lab.find().unwrap()).unwrap();
    story.kept.compare(&engine.pool()).unwrap_or_else(wrong);
    engine.export(false).unwrap();
}

/// `CENOTE_SEED` runs a single seed.
#[test]
fn a_crash_leaves_the_pool_and_its_checkpoint() {
    let (rounds, steps, count, sample) = if long() { (6, 120, 120, 4) } else { (1, 30, 28, 14) };
    let seeds = match std::env::var("CENOTE_SEED").ok().map(|s| s.parse::<u64>().unwrap()) {
        Some(seed) => seed..seed + 1,
        None => 0..rounds * SHAPES.len() as u64,
    };
    let figures = Figures::default();
    for seed in seeds {
        let shape = SHAPES[seed as usize % SHAPES.len()];
        let logs = if seed % 3 == 1 { Logs::Off } else { Logs::On };
        let _seed = Seed(format!("seed {seed}, {shape:?}, {logs:?}"));
        let story = tell(seed, shape, logs, steps);
        let mut rng = SmallRng::seed_from_u64(seed ^ 0xc4a5);
        let Range { start, end } = story.around.clone();
        let (taken, discarding) = (story.there.start, story.there.end);
        let mut points: Vec<usize> = (0..count)
            .map(|i| match i % 4 {
                0 => rng.random_range(start..=taken),
                1 => rng.random_range(discarding..=end),
                _ => rng.random_range(start..=end),
            })
            .collect();
        points.sort_unstable();
        let mut replay = Replay::new(story.first.clone(), &story.journal);
        let points = points.into_iter().enumerate().map(|(i, at)| {
            replay.advance(at);
            let (images, seed) = (replay.crash(rng.random()), rng.random());
            Point { at, images, seed, judged: i % sample == 1 }
        });
        side_by_side(points, |point| {
            let _seed = Seed(format!("seed {seed}, crash after {}", point.at));
            survive(&story, &point, &figures);
        });
    }
    println!("{figures:?}");
    let seen = |count: &AtomicU64| count.load(Ordering::Relaxed) > 0;
    assert!(seen(&figures.with) && seen(&figures.without) && seen(&figures.rewound));
    assert!(seen(&figures.not_rewound));
}
