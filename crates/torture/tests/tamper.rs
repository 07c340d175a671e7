//! Hostile blocks with right checksums: nothing panics, loops or eats memory.

use parking_lot::Mutex;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use cenote_store::tamper;
use cenote_testpools::pool;
use cenote_torture::{Watchdog, exercise, fuzz_pool, import, long};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const POOLS: [&str; 8] =
    ["bclone", "clones", "dedup", "fraglogsm", "hole", "ldnode", "legacyd", "removal"];

/// The installed function is the process's, so variants run one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Changes about one block in `rarity`, the same ones for the same seed.
fn change(seed: u64, rarity: u64) -> tamper::Tamper {
    Box::new(move |at, bytes| {
        let mut hash = DefaultHasher::new();
        (seed, at).hash(&mut hash);
        let mut rng = SmallRng::seed_from_u64(hash.finish());
        if bytes.is_empty() || !rng.random_ratio(1, rarity as u32) {
            return false;
        }
        for _ in 0..rng.random_range(1..=6) {
            // Structures are at the front of blocks more often than not.
            let reach = if rng.random_bool(0.5) { bytes.len().min(512) } else { bytes.len() };
            let i = rng.random_range(0..reach);
            match rng.random_range(0..4) {
                0 => bytes[i] = 0xff,
                1 => bytes[i] = 0,
                2 => bytes[i] ^= 1 << rng.random_range(0..8),
                _ => {
                    let end = (i + 8).min(bytes.len());
                    bytes[i..end].fill(rng.random());
                }
            }
        }
        true
    })
}

#[test]
fn tampered_blocks_are_clean_errors() {
    let _turn = ONE_AT_A_TIME.lock();
    let watchdog = Watchdog::start(Duration::from_secs(120));
    let rounds = if long() { 400 } else { 12 };
    for name in POOLS {
        let dir = pool(name).dir;
        for seed in 0..rounds {
            for rarity in [4, 40, 400] {
                let what = format!("{name}, seed {seed}, one block in {rarity}");
                watchdog.variant(what.clone());
                tamper::install(Some(change(seed, rarity)));
                let survived = catch_unwind(AssertUnwindSafe(|| match import(&dir) {
                    Some(Ok(pool)) => exercise(&pool),
                    _ => 0,
                }));
                tamper::install(None);
                assert!(survived.is_ok(), "{what}: panicked");
            }
        }
    }
}

/// The fuzz target `pool`, for a moment.
#[test]
fn the_fuzz_target_of_whole_pools_returns() {
    let _turn = ONE_AT_A_TIME.lock();
    let watchdog = Watchdog::start(Duration::from_secs(120));
    for seed in 0..40 {
        watchdog.variant(format!("fuzz target, seed {seed}"));
        let mut rng = SmallRng::seed_from_u64(seed);
        let input: Vec<u8> = (0..1 + 6 * 100).map(|_| rng.random()).collect();
        fuzz_pool(&input);
    }
}
