//! Simulations that begin with the free space of a pool that is there: pools that OpenZFS made, and
//! one that was aged here. What is free in each metaslab at first is what OpenZFS's `zdb -m` says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_age::like::VdevModel;
use cenote_age::{Event, PoolModel, Series, Simulation, Spec, Work};
use cenote_inspect::map::{SpaceMapReport, UnflushedMap};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_testpools::zdb;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of a simulated pool's own metadata, which lies where the other pool has no blocks.
const OWN: u64 = 4 << 20;

fn open(dir: &Path, name: &str) -> Arc<Pool> {
    let found = discover::search(&[dir.to_path_buf()]);
    let candidate = discover::find(&found.candidates, name).unwrap();
    let options = ImportOptions {
        readonly: true,
        force: true,
        skip_activity_check: true,
        ..ImportOptions::default()
    };
    Pool::import(candidate, &options).unwrap()
}

/// `12.3M` or `12345` in bytes.
fn bytes(text: &str) -> u64 {
    match ["K", "M", "G"].iter().position(|unit| text.ends_with(unit)) {
        None => text.parse().unwrap(),
        Some(unit) => {
            (text[..text.len() - 1].parse::<f64>().unwrap() * 1024f64.powi(unit as i32 + 1)) as u64
        }
    }
}

/// Free bytes of each metaslab, vdev by vdev, as `zdb -m` has them: without unflushed changes.
fn told(text: &str) -> Vec<Vec<u64>> {
    let mut vdevs: Vec<Vec<u64>> = Vec::new();
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("vdev ") {
            vdevs.push(Vec::new());
        } else if line.starts_with("metaslab ") {
            let mut words = line.split_whitespace().skip_while(|word| *word != "free");
            vdevs.last_mut().unwrap().push(bytes(words.nth(1).unwrap()));
        }
    }
    vdevs
}

/// The same with unflushed changes.
fn free_by_zdb(text: &str, pool: &Pool) -> Vec<Vec<u64>> {
    let mut vdevs = told(text);
    for (free, v) in vdevs.iter_mut().zip(SpaceMapReport::of(pool).unwrap().vdevs) {
        assert_eq!(free.len(), v.metaslabs.len());
        for (free, m) in free.iter_mut().zip(v.metaslabs) {
            let UnflushedMap { allocated, freed } = m.unflushed;
            *free = *free + freed - allocated;
        }
    }
    vdevs
}

fn modelled(v: &VdevModel) -> Vec<u64> {
    v.free.iter().map(|segments| segments.iter().map(|(start, end)| end - start).sum()).collect()
}

/// Free bytes of each metaslab of a simulated pool, and the number of free segments in all.
fn simulated(simulation: &Simulation) -> (Vec<Vec<u64>>, u64) {
    let map = simulation.map(0);
    assert_eq!(map.check(), Ok(()));
    let free = map.vdevs.iter().map(|v| v.metaslabs.iter().map(|m| m.free).collect()).collect();
    (free, map.segments().counts().iter().sum())
}

/// Overwrites for so many groups.
fn overwrite(groups: u64) -> Spec {
    let time = Duration::from_secs(5 * groups);
    Spec { work: Work::RandomOverwrite { rate: 512 << 10 }, time, step: time, ..Spec::default() }
}

/// A simulation like a sample, whose pool only the OpenZFS that made it can open: it begins as is
/// recorded, in numbers of three digits.
fn begin_like_sample(name: &str, spec: Spec) -> Simulation {
    let sample = cenote_testpools::pool(name);
    begin(&sample.dir, name, &sample.zdb_section(" -m "), spec, |told| told / 100)
}

/// A simulation like the pool `name`, filled, which begins as `zdb -m` says, give or take what comes
/// of `rounding`.
fn begin(
    dir: &Path,
    name: &str,
    text: &str,
    spec: Spec,
    rounding: impl Fn(u64) -> u64,
) -> Simulation {
    let pool = open(dir, name);
    let said = free_by_zdb(text, &pool);
    let model = PoolModel::of(&pool).unwrap();
    let told: Vec<Vec<u64>> = model.vdevs.iter().map(modelled).collect();
    assert_eq!(
        said.iter().map(Vec::len).collect::<Vec<_>>(),
        told.iter().map(Vec::len).collect::<Vec<_>>()
    );
    for (said, told) in said.iter().flatten().zip(told.iter().flatten()) {
        assert!(said.abs_diff(*told) <= rounding(*said), "{said}, not {told}");
    }
    let segments: usize = model.vdevs.iter().flat_map(|v| &v.free).map(Vec::len).sum();
    let mut simulation = Simulation::like(spec, model).unwrap();
    assert!(simulation.fill(&mut |_| true).unwrap());
    let (free, found) = simulated(&simulation);
    let apart = |a: &Vec<u64>, b: &Vec<u64>| -> u64 {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).sum()
    };
    assert_eq!(free.len(), told.len());
    let apart: u64 = free.iter().zip(&told).map(|(a, b)| apart(a, b)).sum();
    assert!(apart < OWN, "{apart} bytes apart");
    // It is not only as much that is free, but the same segments, but for where metadata is.
    assert!(found.abs_diff(segments as u64) < 200, "{found} segments, not {segments}");
    simulation
}

/// Ages, and has `zdb` find free what the simulation says.
fn age(mut simulation: Simulation) {
    let report = simulation.run(&mut |_| true).unwrap();
    let last = report.rows.last().unwrap();
    assert!(last.data.count > 0.0 && last.modelled.count > 0.0 && !report.full);
    simulation.settle().unwrap();
    let (free, _) = simulated(&simulation);
    let dir = tempfile::tempdir().unwrap();
    simulation.save(dir.path()).unwrap();
    let pool = open(dir.path(), cenote_age::sim::POOL);
    // Exporting writes a little more.
    let text = zdb(dir.path(), cenote_age::sim::POOL, &["-P", "-m"]);
    let told = free_by_zdb(&text, &pool);
    let pairs = free.iter().flatten().zip(told.iter().flatten());
    let apart: u64 = pairs.map(|(a, b)| a.abs_diff(*b)).sum();
    assert!(apart < OWN, "{apart} bytes apart");
}

#[test]
fn like_a_pool_of_openzfs_that_is_fragmented() {
    age(begin_like_sample("fraglogsm", overwrite(20)));
}

#[test]
fn like_a_pool_without_logs() {
    let simulation = begin_like_sample("fragnolog", overwrite(5));
    assert!(!simulation.spec().logs);
}

#[test]
fn like_a_raidz_of_openzfs() {
    let work = Work::TimeSeries(Series { files: [20, 5, 5], hold: true, ..Series::default() });
    let spec = Spec { work, txg: Duration::from_secs(60), ..overwrite(120) };
    age(begin_like_sample("rz1", spec));
}

/// A pool that was aged goes on ageing where it was.
#[test]
fn like_a_pool_that_was_aged_here() {
    let spec = Spec { size: 640 << 20, vdevs: 2, fill: 60.0, ..overwrite(30) };
    let mut first = Simulation::new(spec.clone()).unwrap();
    let report = first.run(&mut |_| true).unwrap();
    let dir = tempfile::tempdir().unwrap();
    first.save(dir.path()).unwrap();
    let text = zdb(dir.path(), cenote_age::sim::POOL, &["-P", "-m"]);
    let mut second = begin(dir.path(), cenote_age::sim::POOL, &text, spec, |_| 0);
    let mut rows = 0;
    let again = second.run(&mut |event| {
        rows += usize::from(matches!(event, Event::Row(_)));
        true
    });
    let again = again.unwrap();
    let (then, now) = (report.rows.last().unwrap(), again.rows.first().unwrap());
    assert!((then.full - now.full).abs() < 2.0, "{} and {}", then.full, now.full);
    // Neither does it become fuller by being aged.
    assert!((again.rows.last().unwrap().full - now.full).abs() < 1.0);
    assert_eq!(rows, again.rows.len());
}
