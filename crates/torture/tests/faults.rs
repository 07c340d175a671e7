//! Devices that fail writes and flushes while a pool is in use. Within the redundancy the pool goes
//! on and loses nothing; beyond it, it is suspended, who changes it is told, and what was committed is
//! there when it is imported again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_engine::Engine;
use cenote_engine::create::Redundancy;
use cenote_pool::reopen::Restore;
use cenote_torture::live::disk::{Disk, Image};
use cenote_torture::live::driver::{ALL, Driver, Seed};
use cenote_torture::live::lab::{Lab, Shape, disks, judge, keep};
use cenote_torture::live::model::Model;
use cenote_torture::live::side_by_side;
use cenote_torture::{Progress, long};
use cenote_vdev::Device;
use cenote_vdev::inject::FaultyDevice;
use cenote_zpl::{Attr, FileSystem, NewNode, NodeKind, SetAttr, SetTime, Settings};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

const fn shape(redundancy: Redundancy, disks: usize, ashift: u64) -> Shape {
    Shape { redundancy, disks, ashift, size: 96 << 20 }
}

/// A pool on devices that can be made to fail.
struct Pool {
    disks: Vec<Arc<Disk>>,
    faulty: Vec<Arc<FaultyDevice>>,
    lab: Lab,
}

impl Pool {
    fn new(shape: &Shape) -> Pool {
        let disks = disks(&vec![Image::new(shape.size); shape.disks], None);
        let faulty: Vec<_> = disks.iter().map(|d| FaultyDevice::new(d.clone())).collect();
        let lab = Lab::new(faulty.iter().map(|d| d.clone() as Arc<dyn Device>).collect());
        Pool { disks, faulty, lab }
    }

    fn on_all_processors(self) -> Pool {
        Pool { lab: self.lab.on_all_processors(), ..self }
    }

    fn images(&self) -> Vec<Image> {
        self.disks.iter().map(|d| d.image()).collect()
    }

    /// The pool, imported from all devices but `without`, is what the model says, and no device is
    /// asked for what it missed.
    fn holds(&self, model: &Model, without: &[usize]) {
        let left = self.faulty.iter().enumerate().filter(|(i, _)| !without.contains(i));
        let lab = Lab::new(left.map(|(_, d)| d.clone() as Arc<dyn Device>).collect());
        let engine = lab.import(&lab.find().unwrap()).unwrap();
        let same = model.compare(&engine.pool());
        assert!(same.is_ok(), "without {without:?}: {same:?}; images in {}", keep(&self.images()));
        let wrong: u64 = engine.pool().store().vdevs().leaves().iter().map(|l| l.errors().2).sum();
        assert!(wrong == 0, "{wrong} blocks were wrong; images in {}", keep(&self.images()));
    }

    /// Exports the pool. What devices missed they must not be asked for, with all devices, and without
    /// those that were bad.
    fn finish(&self, driver: Driver, bad: &[usize]) {
        let (model, _) = driver.export();
        let before = self.images();
        self.holds(&model, &[]);
        if !bad.is_empty() {
            self.holds(&model, bad);
        }
        if let Err(e) = judge(&before) {
            panic!("{e}");
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Writes,
    /// Only those to a part of the device.
    SomeWrites,
    Flushes,
    Everything,
}

fn break_it(device: &FaultyDevice, fault: Fault) {
    match fault {
        Fault::Writes => device.fail_writes(0..u64::MAX),
        Fault::SomeWrites => device.fail_writes(5 << 20..9 << 20),
        Fault::Flushes => device.set_flush_errors(true),
        Fault::Everything => device.set_missing(true),
    }
}

/// Devices fail that the pool can do without, then they are well again, then others fail.
fn endure(seed: u64, shape: &Shape, bad: &[usize], fault: Fault) {
    let _seed = Seed(format!("seed {seed}, {fault:?} of {bad:?} on {shape:?}"));
    let pool = Pool::new(shape);
    let mut driver = Driver::of_new(seed, &pool.lab, pool.lab.create(shape).unwrap(), ALL);
    let steps = |driver: &mut Driver, n: u64| {
        (0..n).for_each(|_| driver.step());
        let same = driver.check();
        assert!(same.is_ok(), "{same:?}; images in {}", keep(&pool.images()));
        assert_eq!(driver.engine().suspended(), None);
    };
    steps(&mut driver, 40);
    bad.iter().for_each(|i| break_it(&pool.faulty[*i], fault));
    let (writes, flushes) = (pool.faulty[bad[0]].writes(), pool.faulty[bad[0]].flushes());
    steps(&mut driver, 60);
    let tried = (pool.faulty[bad[0]].writes() - writes) + (pool.faulty[bad[0]].flushes() - flushes);
    assert!(tried > 0, "nothing failed");
    bad.iter().for_each(|i| pool.faulty[*i].repair());
    steps(&mut driver, 30);
    pool.finish(driver, bad);
}

/// Devices that the pool can do without fail in one way after the other, slowly or at once, and are
/// taken back whenever they are well again.
fn flap(seed: u64, shape: &Shape, bad: &[usize]) {
    let _seed = Seed(format!("seed {seed}, {bad:?} of {shape:?} now and then"));
    let pool = Pool::new(shape).on_all_processors();
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut driver = Driver::of_new(seed, &pool.lab, pool.lab.create(shape).unwrap(), ALL);
    let engine = driver.engine().clone();
    let leaves: Vec<u64> =
        engine.pool().store().vdevs().leaves().iter().map(|l| l.guid()).collect();
    for _ in 0..8 {
        (0..rng.random_range(0..12)).for_each(|_| driver.step());
        for device in bad.iter().map(|i| &pool.faulty[*i]) {
            break_it(device, FAULTS[rng.random_range(0..FAULTS.len())]);
            device.set_delay(Duration::from_millis(rng.random_range(0..3)));
        }
        (0..rng.random_range(0..12)).for_each(|_| driver.step());
        bad.iter().for_each(|i| pool.faulty[*i].repair());
        if rng.random() {
            engine.restore(&leaves, Restore::Failure).unwrap();
        }
    }
    let same = driver.check();
    assert!(same.is_ok(), "{same:?}; images in {}", keep(&pool.images()));
    drop(engine);
    pool.finish(driver, bad);
}

/// Pools, and devices that they can do without.
const SPARED: [(Shape, &[usize]); 5] = [
    (shape(Redundancy::Mirror, 2, 12), &[1]),
    (shape(Redundancy::Mirror, 3, 9), &[0, 2]),
    (shape(Redundancy::RaidZ(1), 3, 12), &[0]),
    (shape(Redundancy::RaidZ(2), 5, 9), &[1, 3]),
    (shape(Redundancy::RaidZ(3), 6, 12), &[0, 4, 5]),
];
const FAULTS: [Fault; 4] = [Fault::Writes, Fault::SomeWrites, Fault::Flushes, Fault::Everything];

#[test]
fn what_fails_now_and_then_loses_nothing() {
    let seeds = if long() { 400 } else { 2 };
    let progress = Progress::of("failures now and then", seeds as usize);
    side_by_side(0..seeds, |seed| {
        SPARED.iter().for_each(|(shape, bad)| flap(seed, shape, bad));
        progress.done(format_args!("seed {seed}"));
    });
}

#[test]
fn what_fails_within_the_redundancy_loses_nothing() {
    let rounds = if long() { 20 } else { 1 };
    let progress = Progress::of("failures within the redundancy", rounds as usize);
    for round in 0..rounds {
        for (i, (shape, bad)) in SPARED.iter().enumerate() {
            for fault in FAULTS {
                endure(round * 100 + i as u64, shape, bad, fault);
            }
        }
        progress.done(format_args!("round {round}"));
    }
}

fn root(engine: &Engine) -> Result<Arc<FileSystem>, String> {
    let root = engine.pool().dsl().root().map_err(|e| e.to_string())?;
    let live = engine.live(root.ds_obj).map_err(|e| e.to_string())?;
    FileSystem::open_live(live, Settings::default()).map_err(|e| e.to_string())
}

/// Something in the root directory that is not in the model.
fn lost_change(driver: &Driver, name: &str) -> Result<(), String> {
    let engine = driver.engine();
    let fs = root(engine)?;
    let (kind, mode, umask) = (NodeKind::File, 0o644, 0);
    let new = NewNode { kind, mode, umask, uid: 0, gid: 0, keep_setgid: true };
    let file = fs.create(fs.root(), name.as_bytes(), &new).map_err(|e| e.to_string())?;
    fs.write(file.ino, 0, &[7; 60_000], false).map_err(|e| e.to_string())?;
    engine.sync().map_err(|e| e.to_string())
}

/// Removes that file again, and gives the directory its times of before.
fn remove(driver: &Driver, name: &str, before: &Attr) -> Result<(), String> {
    let engine = driver.engine();
    let fs = root(engine)?;
    fs.unlink(fs.root(), name.as_bytes(), &|_| false).map_err(|e| e.to_string())?;
    let (mtime, ctime) = (Some(SetTime::To(before.mtime)), Some(before.ctime));
    let set = SetAttr { mtime, ctime, ..SetAttr::default() };
    fs.setattr(fs.root(), &set).map_err(|e| e.to_string())?;
    engine.sync().map_err(|e| e.to_string())
}

/// More devices fail than the pool can do without. They are well again before the pool is resumed, or given up.
fn suspend(seed: u64, shape: &Shape, bad: &[usize], fault: Fault, resumes: bool) {
    let _seed = Seed(format!("seed {seed}, {fault:?} of {bad:?} on {shape:?}"));
    let pool = Pool::new(shape);
    let mut driver = Driver::of_new(seed, &pool.lab, pool.lab.create(shape).unwrap(), ALL);
    (0..40).for_each(|_| driver.step());
    driver.check().unwrap();
    let files = root(driver.engine()).unwrap();
    let before = files.attr(files.root()).unwrap();
    drop(files);
    bad.iter().for_each(|i| break_it(&pool.faulty[*i], fault));
    let refused = lost_change(&driver, "lost").unwrap_err();
    assert!(refused.contains("suspended"), "{refused}");
    assert!(driver.engine().suspended().is_some());
    bad.iter().for_each(|i| pool.faulty[*i].repair());
    assert!(driver.engine().waits_for_devices() && driver.engine().export(false).is_err());
    if resumes {
        driver.engine().resume().unwrap();
        assert_eq!(driver.engine().suspended(), None);
        remove(&driver, "lost", &before).unwrap();
        (0..20).for_each(|_| driver.step());
        driver.check().unwrap();
        pool.finish(driver, &[]);
        return;
    }
    driver.engine().abandon();
    assert!(lost_change(&driver, "lost too").unwrap_err().contains("suspended"));
    assert!(driver.engine().export(false).is_err());
    let mut model = driver.model.clone();
    drop(driver);
    model.close_all();
    // zdb, too, finds the last group whole.
    if let Err(e) = judge(&pool.images()) {
        panic!("{e}");
    }
    let engine = pool.lab.import(&pool.lab.find().unwrap()).unwrap();
    let same = model.compare(&engine.pool());
    assert!(same.is_ok(), "{same:?}; images in {}", keep(&pool.images()));
    let mut driver = Driver::new(seed, &pool.lab, engine, model, ALL);
    (0..20).for_each(|_| driver.step());
    driver.check().unwrap();
    pool.finish(driver, &[]);
}

#[test]
fn what_fails_beyond_it_suspends_the_pool() {
    let cases: [(Shape, &[usize]); 4] = [
        (shape(Redundancy::Single, 1, 12), &[0]),
        (shape(Redundancy::Single, 3, 9), &[1]),
        (shape(Redundancy::Mirror, 2, 12), &[0, 1]),
        (shape(Redundancy::RaidZ(1), 3, 9), &[0, 2]),
    ];
    let rounds = if long() { 20 } else { 1 };
    let progress = Progress::of("failures beyond it", rounds as usize);
    for round in 0..rounds {
        for (i, (shape, bad)) in cases.iter().enumerate() {
            for fault in [Fault::Writes, Fault::Flushes, Fault::Everything] {
                let seed = round * 100 + i as u64;
                suspend(seed, shape, bad, fault, false);
                suspend(seed, shape, bad, fault, true);
            }
        }
        progress.done(format_args!("round {round}"));
    }
}
