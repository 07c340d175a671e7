//! Bytes flipped and images cut short: the pool is refused, or what it delivers is right.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use cenote_testpools::{TempPool, copy};
use cenote_torture::{Watchdog, compare, import, lies, long};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;

const POOLS: [&str; 6] = ["bclone", "deduplog", "degrz", "hole", "removal", "special"];
const PAGE: u64 = 4096;

/// A private copy of a pool, where its devices have data.
struct Victim {
    temp: TempPool,
    manifest: Value,
    pages: Vec<(usize, u64)>,
}

impl Victim {
    fn new(name: &str) -> Victim {
        let temp = copy(name);
        let pages =
            temp.pool.files.iter().enumerate().flat_map(|(i, f)| used_pages(i, f)).collect();
        Victim { manifest: temp.pool.manifest(), temp, pages }
    }

    /// Damages some pages; returns what was there.
    fn flip(&self, rng: &mut SmallRng) -> Vec<(File, u64, Vec<u8>)> {
        let labels: Vec<_> = self.pages.iter().filter(|p| p.1 < 512 << 10).copied().collect();
        (0..rng.random_range(1..=24))
            .map(|_| {
                let from = if rng.random_bool(0.3) { &labels } else { &self.pages };
                let (device, at) = *from.choose(rng).unwrap();
                let path = &self.temp.pool.files[device];
                let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
                let mut before = vec![0; PAGE as usize];
                file.read_exact_at(&mut before, at).unwrap();
                let mut after = before.clone();
                for _ in 0..rng.random_range(1..=8) {
                    after[rng.random_range(0..PAGE as usize)] ^= 1 << rng.random_range(0..8);
                }
                file.write_all_at(&after, at).unwrap();
                (file, at, before)
            })
            .collect()
    }

    /// Imports and compares; what was delivered wrong.
    fn check(&self) -> Vec<String> {
        match import(&self.temp.pool.dir) {
            Some(Ok(pool)) => lies(&compare(&pool, &self.manifest)),
            _ => Vec::new(),
        }
    }
}

fn used_pages(device: usize, path: &Path) -> Vec<(usize, u64)> {
    let file = File::open(path).unwrap();
    let mut page = vec![0; PAGE as usize];
    let mut used = Vec::new();
    for at in (0..file.metadata().unwrap().len()).step_by(PAGE as usize) {
        file.read_exact_at(&mut page, at).unwrap();
        if page.iter().any(|b| *b != 0) {
            used.push((device, at));
        }
    }
    used
}

fn survive(what: &str, victim: &Victim) {
    let lies = catch_unwind(AssertUnwindSafe(|| victim.check()))
        .unwrap_or_else(|_| panic!("{what}: panicked"));
    assert!(lies.is_empty(), "{what}: {lies:#?}");
}

#[test]
fn flipped_bits_never_lie() {
    let watchdog = Watchdog::start(Duration::from_secs(120));
    let rounds = if long() { 1000 } else { 40 };
    for name in POOLS {
        let victim = Victim::new(name);
        for seed in 0..rounds {
            let what = format!("{name}, bits flipped with seed {seed}");
            watchdog.variant(what.clone());
            let before = victim.flip(&mut SmallRng::seed_from_u64(seed));
            survive(&what, &victim);
            for (file, at, bytes) in before.iter().rev() {
                file.write_all_at(bytes, *at).unwrap();
            }
        }
        assert!(
            lies(&compare(&import(&victim.temp.pool.dir).unwrap().unwrap(), &victim.manifest))
                .is_empty()
        );
    }
}

#[test]
fn cut_images_never_lie() {
    let watchdog = Watchdog::start(Duration::from_secs(120));
    let rounds = if long() { 200 } else { 8 };
    for name in POOLS {
        for seed in 0..rounds {
            let what = format!("{name}, cut with seed {seed}");
            watchdog.variant(what.clone());
            let mut rng = SmallRng::seed_from_u64(seed);
            let victim = Victim::new(name);
            let file = OpenOptions::new()
                .write(true)
                .open(victim.temp.pool.files.choose(&mut rng).unwrap())
                .unwrap();
            let len = file.metadata().unwrap().len();
            // Half of the cuts fall near the end, where labels are lost and data is not.
            let keep = if rng.random_bool(0.5) {
                len - rng.random_range(1..1 << 20)
            } else {
                rng.random_range(0..len)
            };
            file.set_len(keep).unwrap();
            survive(&format!("{what} to {keep} bytes"), &victim);
        }
    }
}
