//! Random work on pools that big-endian machines wrote: pools that random work made are re-encoded
//! ([`cenote_testpools::to_big_endian`]) and worked on, again and again; OpenZFS finds nothing wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

use cenote_engine::create::Redundancy;
use cenote_testpools::{TestPool, Turned, to_big_endian};
use cenote_torture::live::disk::{Disk, Image};
use cenote_torture::live::driver::{ALL, Driver, How, Seed};
use cenote_torture::live::lab::{Lab, POOL, Shape, disks, hand_over, judge, keep, lab};
use cenote_torture::live::model::Model;
use cenote_torture::{live, long};
use std::sync::Arc;

const fn shape(redundancy: Redundancy, disks: usize, ashift: u64) -> Shape {
    Shape { redundancy, disks, ashift, size: 96 << 20 }
}

const SHAPES: [Shape; 4] = [
    shape(Redundancy::Single, 1, 9),
    shape(Redundancy::Single, 2, 12),
    shape(Redundancy::Mirror, 2, 9),
    shape(Redundancy::Single, 1, 12),
];

/// All but what OpenZFS takes for wrong wherever another machine wrote it: its `abd_checksum_edonr_byteswap` compares with
/// what it has not computed.
const SOUND: How =
    How { checksums: &["on", "off", "fletcher2", "fletcher4", "sha256", "sha512", "skein"], ..ALL };

fn images(disks: &[Arc<Disk>]) -> Vec<Image> {
    disks.iter().map(|d| d.image()).collect()
}

/// The images as a big-endian machine would have written them.
fn turned(images: &[Image]) -> (Vec<Image>, Turned) {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..images.len()).map(|i| dir.path().join(format!("d{i}"))).collect();
    images.iter().zip(&files).for_each(|(image, file)| image.save(file));
    let pool = TestPool { name: POOL.into(), dir: dir.path().into(), files };
    let turned = to_big_endian(&pool);
    (pool.files.iter().map(|file| Image::load(file)).collect(), turned)
}

/// The pool is what the model says, for cenote and for OpenZFS.
fn verify(images: &[Image], model: &Model) {
    let lab = lab(&disks(images, None));
    if let Err(e) = model.compare(&lab.look().unwrap()) {
        panic!("{e}; images in {}", keep(images));
    }
    judge(images).unwrap_or_else(|e| panic!("{e}"));
}

fn work(driver: &mut Driver, steps: u64, kept: impl Fn() -> Vec<Image>) {
    for step in 1..=steps {
        driver.step();
        if step % (steps / 2).max(1) == 0 {
            let same = driver.check();
            assert!(same.is_ok(), "step {step}: {same:?}; images in {}", keep(&kept()));
            if step < steps {
                driver.reimport();
            }
        }
    }
}

fn run(seed: u64, shape: &Shape, steps: u64) {
    let _seed = Seed(format!("seed {seed}, {steps} steps on {shape:?}"));
    let first = disks(&vec![Image::new(shape.size); shape.disks], None);
    let made: Lab = lab(&first);
    let mut driver = Driver::of_new(seed, &made, made.create(shape).unwrap(), SOUND);
    work(&mut driver, steps, || images(&first));
    let (mut model, _) = driver.export();
    let mut at_rest = images(&first);
    for round in 0..2 {
        let (big, turned) = turned(&at_rest);
        assert!(turned.big.len() > 5, "{turned:?}");
        verify(&big, &model);
        hand_over(&big).unwrap_or_else(|e| panic!("{e}"));
        let now = disks(&big, None);
        let lab = lab(&now);
        let engine = lab.import(&lab.find().expect("the pool is gone")).unwrap();
        let mut driver = Driver::new(seed + 1000 + round, &lab, engine, model, SOUND);
        work(&mut driver, steps, || images(&now));
        (model, _) = driver.export();
        at_rest = images(&now);
        verify(&at_rest, &model);
    }
}

/// Each layout from a few seeds. `CENOTE_SEED` runs a single one.
#[test]
fn what_big_endian_machines_wrote_is_worked_on() {
    if let Ok(seed) = std::env::var("CENOTE_SEED") {
        let seed: u64 = seed.parse().unwrap();
        return run(seed, &SHAPES[seed as usize % SHAPES.len()], 250);
    }
    let rounds = if long() { 20 } else { 1 };
    live::side_by_side(0..rounds * SHAPES.len() as u64, |seed| {
        run(seed, &SHAPES[seed as usize % SHAPES.len()], 150);
    });
}
