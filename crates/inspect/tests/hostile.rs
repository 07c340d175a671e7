//! Labels and metadata made to break the importer: a clean error or a working pool, in bounded time.

#![allow(clippy::unwrap_used)]

use cenote_format::nvlist::{NvList, NvValue};
use cenote_inspect::traverse::{self, Options, Subject, Verify};
use cenote_manifest_check::import;
use cenote_pool::metaslab::PoolSpace;
use cenote_pool::{Candidate, ImportOptions, Pool, discover};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

fn options() -> ImportOptions {
    ImportOptions { readonly: true, force: true, arc_bytes: Some(8 << 20), ..Default::default() }
}

fn only(dir: &std::path::Path) -> Candidate {
    discover(&[dir.to_path_buf()]).remove(0)
}

/// Everything that looks at an imported pool as a whole.
fn exercise(c: &Candidate) {
    let report = c.report();
    assert!(!report.text().is_empty());
    match Pool::import(c, &options()) {
        Ok(pool) => {
            let _ = pool.status();
            let _ = pool.get_all();
            let _ = pool.history();
            let _ = pool.error_names(&|_, _| None, &|_| None);
        }
        Err(e) => {
            assert!(e.to_string().starts_with("cannot import"), "{e}");
            let _ = e.notes();
        }
    }
}

/// Number of values in a config that [`mutate`] can change.
fn count(list: &NvList) -> usize {
    list.pairs
        .iter()
        .map(|(_, v)| match v {
            NvValue::NvList(l) => 1 + count(l),
            NvValue::NvListArray(ls) => 1 + ls.iter().map(count).sum::<usize>(),
            _ => 1,
        })
        .sum()
}

/// Replaces value number `at` (counted through nested lists) by `value`.
fn mutate(list: &mut NvList, at: &mut usize, value: &NvValue) {
    for (_, v) in &mut list.pairs {
        if *at == 0 {
            *v = value.clone();
        }
        *at = at.wrapping_sub(1);
        match v {
            NvValue::NvList(l) => mutate(l, at, value),
            NvValue::NvListArray(ls) => ls.iter_mut().for_each(|l| mutate(l, at, value)),
            _ => (),
        }
    }
}

#[test]
fn configs_with_any_value_replaced() {
    let values = [
        NvValue::Uint64(0),
        NvValue::Uint64(u64::MAX),
        NvValue::Uint64(1 << 40),
        NvValue::String("\u{1}x".repeat(100)),
        NvValue::NvListArray(vec![]),
        NvValue::NvListArray(vec![NvList::default(); 3]),
        NvValue::Uint64Array(vec![u64::MAX, 0, 1]),
    ];
    for name in ["removal", "degr"] {
        let c = only(&cenote_testpools::pool(name).dir);
        for at in 0..count(&c.config) {
            for value in &values {
                let mut bad = c.clone();
                mutate(&mut bad.config, &mut at.clone(), value);
                exercise(&bad);
            }
        }
        // The labels that configs are assembled from.
        for at in 0..count(&c.devices[0].config) {
            for value in &values {
                let mut devices = c.devices.clone();
                mutate(&mut devices[0].config, &mut at.clone(), value);
                if let Some(config) = cenote_pool::config::assemble(&devices) {
                    exercise(&Candidate { config, devices, ..c.clone() });
                }
            }
        }
    }
}

/// The config out of the MOS says where free space is recorded, and what removed vdevs map to.
#[test]
fn space_with_any_number_replaced() {
    let mut accounted = 0;
    for name in ["removal", "fraglogsm"] {
        let pool = import(name);
        for at in 0..count(pool.config()) {
            for n in [0, 1, 8, 64, 1 << 40, u64::MAX] {
                let mut config = pool.config().clone();
                mutate(&mut config, &mut at.clone(), &NvValue::Uint64(n));
                let Ok(space) = PoolSpace::load(pool.mos(), &config) else { continue };
                let _ =
                    (space.pool(), space.vdevs.iter().map(|v| v.histogram()).collect::<Vec<_>>());
                // The traversal does not read most values, and it takes its time.
                if at % 7 == 0 {
                    let (mos, uberblock) = (pool.mos().clone(), pool.uberblock());
                    let subject = Subject { mos, config: &config, uberblock };
                    let options = Options { verify: Verify::Nothing, leaks: true, workers: 2 };
                    let report = traverse::run(&subject, &space, &options, &|_| (), &|| false);
                    accounted += u64::from(report.is_ok());
                }
            }
        }
    }
    assert!(accounted > 0);
}

/// A small generator of pseudorandom numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

#[test]
fn images_with_bytes_overwritten() {
    let copy = cenote_testpools::copy("degr");
    let mut random = Random(0x1234_5678_9abc_def1);
    let files: Vec<(File, Vec<u8>)> = copy
        .pool
        .files
        .iter()
        .map(|f| (OpenOptions::new().write(true).open(f).unwrap(), std::fs::read(f).unwrap()))
        .collect();
    let mut spoiled = Vec::new();
    for round in 0..60 {
        for (i, (file, bytes)) in files.iter().enumerate() {
            for _ in 0..1 + random.next(40) {
                // Labels half of the time, anything otherwise.
                let offset = match random.next(2) {
                    0 => random.next(512 << 10),
                    _ => random.next(bytes.len() as u64 - 512),
                };
                let len = 1 + random.next(512) as usize;
                file.write_all_at(&vec![random.next(256) as u8; len], offset).unwrap();
                spoiled.push((i, offset as usize, len));
            }
        }
        if round % 20 == 19 {
            let (file, bytes) = &files[2];
            let len = random.next(bytes.len() as u64);
            file.set_len(len).unwrap();
            spoiled.push((2, len as usize, bytes.len() - len as usize));
        }
        for c in discover(std::slice::from_ref(&copy.pool.dir)) {
            exercise(&c);
        }
        // Damage adds up over three rounds.
        if round % 3 == 2 {
            for (i, offset, len) in spoiled.drain(..) {
                let (file, bytes) = &files[i];
                file.write_all_at(&bytes[offset..offset + len], offset as u64).unwrap();
            }
        }
    }
}
