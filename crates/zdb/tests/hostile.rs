//! `zdb` on blocks that lie although their checksums are right: an end, and no panic.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use cenote_store::tamper;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// What is installed is installed for the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Exit code of `zdb`.
fn zdb(pool: &str, options: &str) -> i32 {
    let files = cenote_testpools::pool(pool);
    support::zdb(&["-e", "-p", files.dir.to_str().unwrap(), options, pool]).2
}

/// Numbers that depend on nothing but their seed.
fn scramble(mut n: u64) -> u64 {
    n ^= n << 13;
    n ^= n >> 7;
    n ^= n << 17;
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

const DETAILS: [&str; 3] = ["-bcc", "-ddddddmmmmi", "-DDDDDTTTThhs"];

#[test]
fn changed_blocks() {
    let _turn = ONE_AT_A_TIME.lock();
    for pool in ["bclone", "clones", "dedup", "deduplog", "fraglogsm", "removal", "zilslog"] {
        for seed in 1..=6u64 {
            let rarity = [6, 60, 600][seed as usize % 3];
            tamper::install(Some(Box::new(move |at, bytes| {
                let place = at.objset ^ at.object << 16 ^ (at.level as u64) << 48 ^ at.blkid << 32;
                let mut n = scramble(seed ^ scramble(place | 1));
                if bytes.is_empty() || !n.is_multiple_of(rarity) {
                    return false;
                }
                for _ in 0..4 {
                    n = scramble(n);
                    let reach = if n & 1 == 0 { bytes.len().min(1024) } else { bytes.len() };
                    let i = (n >> 8) as usize % reach;
                    bytes[i] = if n & 2 == 0 { 0xff } else { (n >> 40) as u8 };
                }
                true
            })));
            for options in DETAILS {
                let code = zdb(pool, options);
                assert!((0..=3).contains(&code), "{pool}, seed {seed}, {options}: {code}");
            }
            tamper::install(None);
        }
    }
}

/// Every indirect block points to its first child from all its pointers: a tree of few blocks
/// that spells out to more than anyone can visit.
#[test]
fn trees_that_repeat_themselves() {
    let _turn = ONE_AT_A_TIME.lock();
    let start = Instant::now();
    for pool in ["basic", "fraglogsm"] {
        for mos_too in [false, true] {
            tamper::install(Some(Box::new(move |at, bytes| {
                if at.level <= 0 || (at.objset == 0 && !mos_too) || bytes.len() < 256 {
                    return false;
                }
                let (first, rest) = bytes.split_at_mut(128);
                rest.chunks_exact_mut(128).for_each(|c| c.copy_from_slice(first));
                true
            })));
            for options in ["-bcc", "-b", "-ddm"] {
                let code = zdb(pool, options);
                // What -d shows may look like a pool; a traversal must not be fooled.
                let least = i32::from(options.starts_with("-b"));
                assert!((least..=3).contains(&code), "{pool} {options}: {code}");
            }
            tamper::install(None);
        }
    }
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
}
