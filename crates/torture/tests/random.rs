//! Random changes to pools of every layout, against a model; OpenZFS's zdb finds nothing wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_engine::create::Redundancy;
use cenote_torture::live::disk::{Disk, Image};
use cenote_torture::live::driver::{ALL, DEDUPLICATED, Driver, How, Seed};
use cenote_torture::live::lab::{Lab, Shape, disks, judge, keep, lab};
use cenote_torture::live::model::Model;
use cenote_torture::{Progress, live, long};
use cenote_vdev::draid;
use std::sync::Arc;

const fn shape(redundancy: Redundancy, disks: usize, ashift: u64) -> Shape {
    Shape { redundancy, disks, ashift, size: 96 << 20 }
}

/// All layouts, each with small and large sectors.
const SHAPES: [Shape; 14] = [
    shape(Redundancy::Single, 1, 9),
    shape(Redundancy::Single, 1, 12),
    shape(Redundancy::Single, 3, 9),
    shape(Redundancy::Single, 2, 12),
    shape(Redundancy::Mirror, 2, 9),
    shape(Redundancy::Mirror, 3, 12),
    shape(Redundancy::RaidZ(1), 3, 9),
    shape(Redundancy::RaidZ(1), 4, 12),
    shape(Redundancy::RaidZ(2), 5, 9),
    shape(Redundancy::RaidZ(2), 4, 12),
    shape(Redundancy::RaidZ(3), 6, 9),
    shape(Redundancy::RaidZ(3), 5, 12),
    shape(Redundancy::Draid(DRAID), 4, 12),
    shape(Redundancy::Draid(DRAID_WITH_SPARE), 6, 9),
];

/// dRAID vdevs, one of them with a distributed spare.
const DRAID: draid::Shape =
    draid::Shape { ndata: 2, nparity: 1, nspares: 0, children: 4, ngroups: 4 };
const DRAID_WITH_SPARE: draid::Shape =
    draid::Shape { ndata: 3, nparity: 2, nspares: 1, children: 6, ngroups: 1 };

/// Disks that may join the pool.
const JOINING: usize = 6;

fn images(disks: &[Arc<Disk>]) -> Vec<Image> {
    disks.iter().map(|d| d.image()).collect()
}

/// The pool is what the model says, for cenote and for OpenZFS.
fn verify(disks: &[Arc<Disk>], lab: &Lab, model: &Model) {
    let images = images(disks);
    let found = lab.find().expect("the pool is gone");
    let engine = lab.import(&found).unwrap();
    if let Err(e) = model.compare(&engine.pool()) {
        panic!("{e}; images in {}", keep(&images));
    }
    drop(engine);
    if let Err(e) = judge(&images) {
        panic!("{e}");
    }
}

fn run(seed: u64, shape: &Shape, how: How, steps: u64) {
    run_in(seed, shape, how, steps, |lab| lab);
}

/// As [`run`], in a lab that was changed.
fn run_in(seed: u64, shape: &Shape, how: How, steps: u64, change: impl Fn(Lab) -> Lab) {
    let _seed = Seed(format!("seed {seed}, {steps} steps on {shape:?}"));
    let disks = disks(&vec![Image::new(shape.size); shape.disks + JOINING], None);
    let lab = change(lab(&disks));
    let mut driver = Driver::of_new(seed, &lab, lab.create(shape).unwrap(), how);
    for step in 1..=steps {
        driver.step();
        if step % (steps / 4).max(1) == 0 {
            let same = driver.check();
            assert!(same.is_ok(), "step {step}: {same:?}; images in {}", keep(&images(&disks)));
            if step < steps {
                driver.reimport();
            }
        }
    }
    let (model, _) = driver.export();
    verify(&disks, &lab, &model);
}

/// Each layout from a few seeds. `CENOTE_SEED` runs a single one.
#[test]
fn pools_hold_what_was_put_in() {
    if let Ok(seed) = std::env::var("CENOTE_SEED") {
        let seed: u64 = seed.parse().unwrap();
        let steps = std::env::var("CENOTE_STEPS").map_or(1500, |n| n.parse().unwrap());
        return run(seed, &SHAPES[seed as usize % SHAPES.len()], ALL, steps);
    }
    let (rounds, steps) = if long() { (40, 1500) } else { (1, 250) };
    let seeds = rounds * SHAPES.len() as u64;
    let progress = Progress::of("random work", seeds as usize);
    live::side_by_side(0..seeds, |seed| {
        run(seed, &SHAPES[seed as usize % SHAPES.len()], ALL, steps);
        progress.done(format_args!("seed {seed}"));
    });
}

/// The same with deduplication, with tables that have logs and with those of before; every other pair of pools is encrypted.
/// `CENOTE_SEED` runs a single seed.
#[test]
fn tables_count_what_there_is() {
    let only = std::env::var("CENOTE_SEED").ok().map(|s| s.parse::<u64>().unwrap());
    let (seeds, steps) = if long() { (160, 1500) } else { (8, 250) };
    let progress = Progress::of("deduplication", seeds as usize);
    live::side_by_side(only.map_or(0..seeds, |seed| seed..seed + 1), |seed| {
        let shape = &SHAPES[(seed * 7 + 5) as usize % SHAPES.len()];
        run_in(seed, shape, DEDUPLICATED, steps, |lab| {
            let lab = if seed % 2 == 0 { lab.without("fast_dedup") } else { lab };
            lab.encrypted(seed % 4 > 1)
        });
        progress.done(format_args!("seed {seed}"));
    });
}
