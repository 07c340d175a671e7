//! Simulated pools: what OpenZFS's `zdb` finds in them, that a seed leads to one result, and that a
//! pool whose files are really written ages alike.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_age::{Event, Series, Simulation, Spec, Work};
use cenote_store::histogram::Histogram;
use cenote_testpools::{judge, zdb};
use cenote_zpl::{FileSystem, NewNode, NodeKind, Settings};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use std::time::Duration;

const BLOCK: u64 = 8 << 10;
/// How far a real pool may be from a simulated one: points of the percentage that is allocated, and
/// of fragmentation. (Free segments by size differ more: a fifth of the free space is in segments of
/// another size. That is printed, and not asserted.)
const FULL_APART: f64 = 2.0;
const FRAGMENTATION_APART: f64 = 4.0;
/// What the last transaction group writes of the MOS is in its log only, which `zdb -m` leaves out.
const LAST_LOG: u64 = 512 << 10;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A small store of time series.
fn series(logs: bool) -> Spec {
    let series = Series { files: [150, 40, 40], hold: true, ..Series::default() };
    Spec {
        size: 2 << 30,
        vdevs: 2,
        fill: 50.0,
        work: Work::TimeSeries(series),
        time: seconds(3 * 3_600),
        step: seconds(3_600),
        txg: seconds(150),
        logs,
        ..Spec::default()
    }
}

/// A small file that is overwritten.
fn overwrite(groups: u64) -> Spec {
    Spec {
        size: 320 << 20,
        vdevs: 1,
        fill: 40.0,
        work: Work::RandomOverwrite { rate: 1 << 20 },
        time: seconds(5 * groups),
        step: seconds(5 * groups),
        ..Spec::default()
    }
}

/// Sum of what `zdb -P -m` says is free.
fn free(text: &str) -> u64 {
    let of = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "free");
        words.nth(1)?.parse::<u64>().ok()
    };
    let metaslabs = text.lines().filter(|line| line.trim_start().starts_with("metaslab "));
    metaslabs.filter_map(of).sum()
}

/// Number after `name` in `zdb -bb`'s summary.
fn summary(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
    line[line.find(':').unwrap() + 1..].split_whitespace().next().unwrap().parse().unwrap()
}

fn check_space_maps(spec: Spec) {
    let logs = spec.logs;
    let mut simulation = Simulation::new(spec).unwrap();
    let report = simulation.run(&mut |_| true).unwrap();
    assert!(report.rows.iter().skip(1).all(|row| row.data.count > 0.0 && row.written.count > 0.0));
    let space: u64 = simulation.engine().allocator().groups().map(|g| g.space()).sum();
    let held = simulation.held();
    let dir = tempfile::tempdir().unwrap();
    simulation.save(dir.path()).unwrap();
    let allocated = space - free(&zdb(dir.path(), cenote_age::sim::POOL, &["-P", "-m"]));
    // What block pointers refer to, and what the simulation holds, is what is allocated.
    let blocks = zdb(dir.path(), cenote_age::sim::POOL, &["-P", "-bbL"]);
    let found = held + summary(&blocks, "bp allocated");
    match logs {
        true => assert!(allocated.abs_diff(found) < LAST_LOG, "{allocated}, not {found}"),
        false => assert_eq!(allocated, found),
    }
}

#[test]
fn zdb_finds_allocated_what_the_simulation_holds() {
    check_space_maps(series(true));
}

#[test]
fn zdb_agrees_without_logs() {
    check_space_maps(series(false));
}

#[test]
fn zdb_agrees_after_random_overwrite() {
    check_space_maps(Spec { logs: false, ..overwrite(20) });
}

/// Whoever watches may stop it: the group is finished, and what there is until then is reported.
#[test]
fn a_simulation_can_be_stopped() {
    let mut groups = 0;
    let stop = |event: Event<'_>| {
        groups += u64::from(matches!(event, Event::Progress(p) if p.filling.is_none()));
        groups < 3
    };
    let report = Simulation::new(overwrite(20)).unwrap().run(&mut { stop }).unwrap();
    assert!(report.interrupted && report.rows.len() == 2, "{report:?}");
    assert_eq!((report.rows[1].groups, report.rows[1].time), (3, 15.0));
    let report = Simulation::new(overwrite(20)).unwrap().run(&mut |_| false).unwrap();
    assert!(report.interrupted && report.rows.iter().all(|row| row.groups == 0), "{report:?}");
}

#[test]
fn a_seed_leads_to_one_result() {
    let run = |seed| {
        let spec = Spec { seed, time: seconds(3_600), ..series(true) };
        let report = Simulation::new(spec).unwrap().run(&mut |_| true).unwrap();
        // What there is of the pool's own metadata compresses as its guids have it, which are random.
        let rows = serde_json::to_value(report.timeless()).unwrap()["rows"].clone();
        let of_the_workload = |row: &serde_json::Value| {
            ["groups", "data", "modelled", "gangs"].map(|name| row[name].clone())
        };
        rows.as_array().unwrap().iter().map(of_the_workload).collect::<Vec<_>>()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

/// Fragmentation, percentage allocated, and of the free bytes the share in segments of each size.
#[derive(Debug)]
struct Shape {
    fragmentation: f64,
    full: f64,
    shares: Vec<f64>,
}

fn shape(simulation: &Simulation) -> Shape {
    let engine = simulation.engine();
    let (mut all, mut space, mut allocated) = (Histogram::default(), 0, 0);
    for group in engine.allocator().groups() {
        group.metaslabs().iter().for_each(|m| all.merge(&m.histogram()));
        space += group.space();
        allocated += group.allocated();
    }
    // Bytes of a segment: one and a half of the least of its kind, on average.
    let bytes = |i: usize, n: u64| n as f64 * 1.5 * (1u64 << i) as f64;
    let sum: f64 = all.counts().iter().enumerate().map(|(i, n)| bytes(i, *n)).sum();
    let shares = all.counts().iter().enumerate().map(|(i, n)| bytes(i, *n) / sum).collect();
    let fragmentation = engine.pool().space().unwrap().pool().fragmentation.unwrap() as f64;
    Shape { fragmentation, full: allocated as f64 * 100.0 / space as f64, shares }
}

const NODE: NewNode =
    NewNode { kind: NodeKind::File, mode: 0o644, umask: 0o022, uid: 0, gid: 0, keep_setgid: true };

/// A file of random bytes is written and its blocks overwritten in a real pool as they are in a
/// simulated one. Both are as full and as fragmented then, although one pool never saw a byte of data and has
/// modelled indirect blocks.
#[test]
fn a_real_file_has_a_pool_age_alike() {
    const GROUPS: u64 = 60;
    let spec = overwrite(GROUPS);
    let mut simulated = Simulation::new(spec.clone()).unwrap();
    simulated.fill(&mut |_| true).unwrap();
    let (filled, blocks) = (shape(&simulated), simulated.data().bytes / BLOCK);
    for _ in 0..GROUPS {
        assert!(simulated.group().unwrap());
    }

    let real = Simulation::new(spec.clone()).unwrap();
    let engine = real.engine().clone();
    let root = engine.pool().dsl().root().unwrap();
    let settings = Settings { record_size: BLOCK, ..Settings::default() };
    let fs = FileSystem::open_live(engine.live(root.ds_obj).unwrap(), settings).unwrap();
    let file = fs.create(fs.root(), b"file", &NODE).unwrap().ino;
    let mut bytes = SmallRng::seed_from_u64(99);
    let mut write = |block: u64| {
        let mut data = vec![0; BLOCK as usize];
        bytes.fill_bytes(&mut data);
        fs.write(file, block * BLOCK, &data, false).unwrap();
    };
    for block in 0..blocks {
        write(block);
        if block % 4096 == 4095 {
            engine.sync().unwrap();
        }
    }
    engine.sync().unwrap();
    // The same choices as the simulation's.
    let mut choose = SmallRng::seed_from_u64(spec.seed);
    for group in 0..GROUPS {
        let done = |n: u64| n * 5 * (1 << 20) / BLOCK;
        for _ in done(group)..done(group + 1) {
            write(choose.random_range(0..blocks));
        }
        engine.sync().unwrap();
    }
    drop(fs);

    simulated.settle().unwrap();
    real.settle().unwrap();
    let (a, b) = (shape(&simulated), shape(&real));
    let apart: f64 = a.shares.iter().zip(&b.shares).map(|(a, b)| (a - b).abs()).sum();
    println!("simulated {a:.3?}\nreal {b:.3?}\nin segments of another size: {:.3}", apart / 2.0);
    assert!(a.fragmentation > filled.fragmentation + 5.0, "nothing aged");
    assert!((a.full - b.full).abs() < FULL_APART);
    assert!((a.fragmentation - b.fragmentation).abs() <= FRAGMENTATION_APART);

    let dir = tempfile::tempdir().unwrap();
    drop(engine);
    real.save(dir.path()).unwrap();
    judge(dir.path(), cenote_age::sim::POOL);
}
