//! The loss of power at any moment: the pool opens at its last transaction group, whole.
//!
//! How that is found out is said in [`cenote_torture::live::crash`].

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_engine::create::Redundancy;
use cenote_torture::live::crash::{Figures, Left, Plan, matrix, recover};
use cenote_torture::live::disk::{Image, Journal, Replay};
use cenote_torture::live::driver::{Committed, DEDUPLICATED, Seed};
use cenote_torture::live::lab::{Logs, Shape, disks, judge, lab};
use cenote_torture::live::model::Model;
use cenote_torture::{Progress, long};
use cenote_vdev::draid;
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

/// The smallest dRAID vdev.
const DRAID: draid::Shape =
    draid::Shape { ndata: 1, nparity: 1, nspares: 0, children: 3, ngroups: 3 };
/// A smaller one is too small for OpenZFS.
const OF_DRAID: Shape =
    Shape { redundancy: Redundancy::Draid(DRAID), disks: 3, ashift: 12, size: 128 << 20 };
const TABLE_SHAPES: [Shape; 5] = [SHAPES[0], SHAPES[1], OF_DRAID, SHAPES[2], SHAPES[3]];

/// `CENOTE_SEED` runs a single seed.
#[test]
fn a_crash_leaves_the_last_group() {
    let figures = Figures::default();
    let only = std::env::var("CENOTE_SEED").ok().map(|s| s.parse::<u64>().unwrap());
    let (rounds, steps, points, sample) = match long() {
        true => (4, 200, 400, 400),
        false => (1, 60, 32, 8),
    };
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None => 0..rounds * SHAPES.len() as u64,
    };
    let progress = Progress::of("crashes", (seeds.end - seeds.start) as usize);
    for seed in seeds {
        let shape = SHAPES[seed as usize % SHAPES.len()];
        let logs = if seed % 2 == 1 { Logs::Off } else { Logs::On };
        let in_order = seed % 3 == 1;
        let plan = Plan { shape, logs, in_order, steps, points, sample, ..Plan::default() };
        matrix(seed, &plan, &figures);
        progress.done(format_args!("seed {seed}"));
    }
    println!("{figures:?}");
    if only.is_none() {
        assert_enough(&figures);
    }
}

/// Blocks are cloned within and between file systems. `CENOTE_SEED` runs a single seed.
#[test]
fn a_crash_leaves_clones_and_what_they_are_of() {
    let figures = Figures::default();
    let only = std::env::var("CENOTE_SEED").ok().map(|s| s.parse::<u64>().unwrap());
    let (rounds, points, sample) = if long() { (20, 200, 40) } else { (2, 8, 2) };
    let seeds = only.map_or(0..rounds, |seed| seed..seed + 1);
    let progress = Progress::of("crashes between clones", (seeds.end - seeds.start) as usize);
    for seed in seeds {
        let shape = SHAPES[seed as usize % SHAPES.len()];
        let (logs, in_order, steps, copies) = (Logs::On, seed % 2 == 0, 120, 40);
        let plan = Plan { shape, logs, in_order, steps, copies, points, sample, ..Plan::default() };
        matrix(seed, &plan, &figures);
        progress.done(format_args!("seed {seed}"));
    }
    println!("{figures:?}");
    let (pools, cloned) = (figures.pools.into_inner(), figures.cloned.into_inner());
    assert!(only.is_some() || cloned * 3 >= pools, "{cloned} of {pools} had clones");
}

/// Blocks are deduplicated, with tables that have logs and with those of before, in plain and in encrypted pools, on dRAID too.
/// `CENOTE_SEED` runs a single seed.
#[test]
fn a_crash_leaves_tables_that_count_what_there_is() {
    let figures = Figures::default();
    let only = std::env::var("CENOTE_SEED").ok().map(|s| s.parse::<u64>().unwrap());
    let (rounds, points, sample) = if long() { (24, 200, 40) } else { (4, 10, 2) };
    let seeds = only.map_or(0..rounds, |seed| seed..seed + 1);
    let progress = Progress::of("crashes between equal blocks", (seeds.end - seeds.start) as usize);
    for seed in seeds {
        let shape = TABLE_SHAPES[seed as usize % TABLE_SHAPES.len()];
        let without = seed.is_multiple_of(2).then_some("fast_dedup");
        let (how, encrypted, in_order, steps) = (DEDUPLICATED, seed % 4 > 1, seed % 3 == 0, 90);
        let plan = Plan {
            shape,
            how,
            without,
            encrypted,
            in_order,
            steps,
            points,
            sample,
            ..Plan::default()
        };
        matrix(seed, &plan, &figures);
        progress.done(format_args!("seed {seed}"));
    }
    println!("{figures:?}");
    let (pools, shared) = (figures.pools.into_inner(), figures.shared.into_inner());
    assert!(only.is_some() || shared * 3 >= pools, "{shared} of {pools} had shared blocks");
}

/// Some hundred crashes, nearly all of which leave a pool. Of every ninth zdb judges what is left, of some of these the pool
/// in the end; in the long form of all.
fn assert_enough(figures: &Figures) {
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    let (points, pools, judged) =
        (count(&figures.points), count(&figures.pools), count(&figures.judged));
    let most = if long() { 1000 } else { 155 };
    assert!(points >= most && pools * 10 >= points * 9, "{figures:?}");
    let ends = count(&figures.judged_ends);
    let (enough, enough_ends) = if long() { (pools, pools) } else { (20, 10) };
    assert!(judged >= enough && ends >= enough_ends, "{figures:?}");
    assert!(count(&figures.handed_over) >= judged / 5, "{figures:?}");
    let (again, judged_again) = (count(&figures.again), count(&figures.judged_again));
    assert!(again > 0 && judged_again >= if long() { again * 9 / 10 } else { 2 }, "{figures:?}");
}

/// Crashes while the pool is being made: there is none, or a good one; devices of none can be used. zdb
/// judges a sample of what there is in the end.
#[test]
fn a_crash_while_a_pool_is_made() {
    let _seed = Seed("creation".into());
    // Of pools that were there, and of those that were made instead.
    let (mut judged, mut judged_anew) = (0, 0);
    for (seed, shape) in SHAPES.iter().enumerate() {
        let journal = Arc::new(Journal::default());
        let first = vec![Image::new(shape.size); shape.disks];
        let pool = lab(&disks(&first, Some(&journal))).create(shape).unwrap();
        let root = pool.pool().dsl().root().unwrap();
        let files = cenote_torture::live::model::open(&pool.pool(), &root).unwrap();
        let model = Model::new(&pool.pool(), files.root());
        let txg = pool.pool().uberblock().txg;
        let committed = Committed::from([(txg, vec![model])]);
        let mut replay = Replay::new(first, &journal);
        let step = if long() { 1 } else { 10 };
        for at in (0..journal.len()).step_by(step) {
            replay.advance(at);
            let left = Left { images: replay.crash(at as u64), durable: None };
            let sampled = at % (4 * step) == 0;
            match recover(&left, &committed, None, seed as u64) {
                Some(mut recovered) => {
                    (0..3).for_each(|_| recovered.driver.step());
                    recovered.driver.check().unwrap();
                    recovered.finish(sampled).unwrap();
                    judged += u64::from(sampled);
                }
                None if sampled => {
                    let disks = disks(&left.images, None);
                    lab(&disks).create(shape).unwrap().export(false).unwrap();
                    if at % (32 * step) == 0 {
                        let images: Vec<Image> = disks.iter().map(|d| d.image()).collect();
                        judge(&images).unwrap();
                        judged_anew += 1;
                    }
                }
                None => {}
            }
        }
    }
    println!("judged: {judged} pools that were there, {judged_anew} that were made instead");
    assert!(judged > 0 && judged_anew > 0);
}
