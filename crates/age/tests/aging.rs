//! Simulated pools: what OpenZFS's `zdb` finds in them, that a seed leads to one result, and that a
//! pool whose files are really written ages alike.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_age::sim::POOL;
use cenote_age::{Event, Series, Simulation, Spec, Work};
use cenote_dmu::outside::Chance;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_engine::create::{CreateSpec, FIRST_TXG, Layout, Redundancy, SystemDevices, VdevSpec};
use cenote_engine::{CreateRequest, Engine, EngineOptions, SyncContext};
use cenote_pool::features::{FeatureChoice, choose_features};
use cenote_store::alloc::TXG_DEFER_SIZE;
use cenote_store::histogram::Histogram;
use cenote_testpools::{judge, zdb};
use cenote_zpl::{CreateProps, FileSystem, NewNode, NodeKind, Settings};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = 8 << 10;
/// How far a real pool may be from a simulated one: points of the percentage that is allocated, and
/// of fragmentation, and the fraction of the free space that is in segments of another size. (Two real
/// pools were 0.020 of it apart, real and simulated ones 0.042.)
const FULL_APART: f64 = 0.5;
const FRAGMENTATION_APART: f64 = 2.0;
const SHARES_APART: f64 = 0.06;
/// log2 of the bytes of segments from which on all count as of one size. Anything fits there; of so small
/// a pool one of them is up to a tenth, and where it is cut decides on its class.
const LARGE: usize = 20;
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
    let allocated = space - free(&zdb(dir.path(), POOL, &["-P", "-m"]));
    // What block pointers refer to, and what the simulation holds, is what is allocated.
    let blocks = zdb(dir.path(), POOL, &["-P", "-bbL"]);
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

/// A watcher may stop it: the group is finished, and the rows until then are reported.
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
        serde_json::to_value(report.timeless()).unwrap()["rows"].clone()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn a_seed_leads_to_one_pool_to_the_byte() {
    let disk = |seed| {
        let mut simulation = Simulation::new(Spec { seed, ..overwrite(20) }).unwrap();
        simulation.run(&mut |_| true).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let paths = simulation.save(dir.path()).unwrap();
        // What holds simulated blocks is not in the pool, so they are not looked for.
        zdb(dir.path(), POOL, &["-bccL"]);
        std::fs::read(&paths[0]).unwrap()
    };
    let first = disk(7);
    assert!(first == disk(7));
    assert!(first != disk(8));
}

/// Fragmentation, percentage allocated, and of the free bytes the share in segments of each size up
/// to [`LARGE`].
#[derive(Debug)]
struct Shape {
    fragmentation: f64,
    full: f64,
    shares: Vec<f64>,
}

fn shape(engine: &Engine) -> Shape {
    let (mut all, mut space, mut allocated) = (Histogram::default(), 0, 0);
    for group in engine.allocator().groups() {
        group.metaslabs().iter().for_each(|m| all.merge(&m.histogram()));
        space += group.space();
        allocated += group.allocated();
    }
    // Bytes of a segment: one and a half of the least of its kind, on average.
    let bytes = |i: usize, n: u64| n as f64 * 1.5 * (1u64 << i) as f64;
    let sum: f64 = all.counts().iter().enumerate().map(|(i, n)| bytes(i, *n)).sum();
    let mut shares = vec![0.0; LARGE + 1];
    for (i, n) in all.counts().iter().enumerate() {
        shares[i.min(LARGE)] += bytes(i, *n) / sum;
    }
    let fragmentation = engine.pool().space().unwrap().pool().fragmentation.unwrap() as f64;
    Shape { fragmentation, full: allocated as f64 * 100.0 / space as f64, shares }
}

const NODE: NewNode =
    NewNode { kind: NodeKind::File, mode: 0o644, umask: 0o022, uid: 0, gid: 0, keep_setgid: true };

/// Of the free bytes the fraction that is in segments of another size.
fn apart(a: &Shape, b: &Shape) -> f64 {
    a.shares.iter().zip(&b.shares).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0
}

/// Transaction groups of overwriting.
const GROUPS: u64 = 60;

/// A simulated pool that aged, its shape when it was filled, and its data blocks.
fn age_simulated(spec: &Spec) -> (Simulation, Shape, u64) {
    let mut simulated = Simulation::new(spec.clone()).unwrap();
    simulated.fill(&mut |_| true).unwrap();
    let (filled, blocks) = (shape(simulated.engine()), simulated.data().bytes / BLOCK);
    for _ in 0..GROUPS {
        assert!(simulated.group().unwrap());
    }
    simulated.settle().unwrap();
    (simulated, filled, blocks)
}

/// A pool in a file, as any other one, but with transaction groups only when they are asked for.
fn create(dir: &Path, spec: &Spec) -> Arc<Engine> {
    let path = dir.join("disk");
    File::create_new(&path).unwrap().set_len(spec.size).unwrap();
    let tops = vec![VdevSpec::new(Redundancy::Single, vec![path])];
    let layout = Layout { tops, ..Layout::default() };
    let choice = FeatureChoice { none: false, compatibility: None, named: &[] };
    let (features, _) = choose_features(&choice).unwrap();
    let request = CreateRequest {
        temporary_name: None,
        spec: CreateSpec {
            name: POOL,
            layout: &layout,
            ashift: u64::from(spec.ashift),
            force: true.into(),
            pool: None,
            txg: FIRST_TXG,
            imported: &[],
            devices: &SystemDevices,
            chance: &Chance::default(),
        },
        features: &features,
        props: &[],
        root_props: &[],
        encryption: None,
        altroot: None,
        arc_bytes: None,
    };
    let options = EngineOptions { txg_timeout: Some(seconds(1 << 30)), ..EngineOptions::default() };
    let format = |os: &mut OpenObjectSet| {
        cenote_zpl::format(os, &CreateProps::default(), FIRST_TXG)
            .map_err(|e| WriteError::Sink(Box::new(e)))
    };
    Engine::create(&request, options, format).unwrap()
}

/// A real pool in `dir`: a file of so many blocks of random bytes is written, and overwritten by the
/// same choices as in the simulated one.
fn age_real(dir: &Path, spec: &Spec, blocks: u64) -> Arc<Engine> {
    let engine = create(dir, spec);
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
    let mut choose = SmallRng::seed_from_u64(spec.seed);
    for group in 0..GROUPS {
        let done = |n: u64| n * 5 * (1 << 20) / BLOCK;
        for _ in done(group)..done(group + 1) {
            write(choose.random_range(0..blocks));
        }
        engine.sync().unwrap();
    }
    drop(fs);
    for _ in 0..=TXG_DEFER_SIZE {
        engine.sync_task(|_: &mut SyncContext<'_>| Ok(())).unwrap();
    }
    engine
}

/// A file is really written and overwritten in one pool, and in another one that is only simulated,
/// which never sees a byte of data and has modelled indirect blocks. Both are as full and as
/// fragmented then, and have free segments of the same sizes.
#[test]
fn a_real_file_has_a_pool_age_alike() {
    let mut last: Option<Shape> = None;
    for seed in [1, 2] {
        let spec = Spec { seed, ..overwrite(GROUPS) };
        let (simulated, filled, blocks) = age_simulated(&spec);
        let dir = tempfile::tempdir().unwrap();
        let real = age_real(dir.path(), &spec, blocks);
        let (a, b) = (shape(simulated.engine()), shape(&real));
        println!("simulated {a:.3?}\nreal {b:.3?}\napart: {:.4}", apart(&a, &b));
        if let Some(last) = &last {
            println!("two real ones: {:.4}", apart(last, &b));
        }
        assert!(apart(&a, &filled) > 5.0 * SHARES_APART, "nothing aged");
        assert!((a.full - b.full).abs() < FULL_APART);
        assert!((a.fragmentation - b.fragmentation).abs() <= FRAGMENTATION_APART);
        assert!(apart(&a, &b) < SHARES_APART);
        last = Some(b);
        real.export(false).unwrap();
        judge(dir.path(), POOL);
    }
}
