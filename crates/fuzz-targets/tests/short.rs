//! The short form of fuzzing: every target, for a moment, on mutated structures of real pools.

use std::time::{Duration, Instant};

use cenote_fuzz_targets::mutate::{Random, mutate};
use cenote_fuzz_targets::{TARGETS, seeds};

/// Inputs per target, and how long one may take before it counts as endless.
const INPUTS: u64 = 40_000;
const TOO_LONG: Duration = Duration::from_secs(5);

#[test]
fn every_target_returns() {
    let seeds = seeds::collect().unwrap();
    for (n, target) in TARGETS.iter().enumerate() {
        let seeds = &seeds[target.name];
        assert!(seeds.len() >= 5, "{}: {} seeds", target.name, seeds.len());
        seeds.iter().for_each(|seed| (target.run)(seed));
        for i in 0..INPUTS {
            let mut random = Random::new(i << 8 | n as u64);
            let mut input = seeds[random.below(seeds.len())].clone();
            let other = &seeds[random.below(seeds.len())];
            mutate(&mut random, &mut input, other);
            let start = Instant::now();
            // A panic says only where it happened; this says with which input.
            if std::panic::catch_unwind(|| (target.run)(&input)).is_err() {
                panic!("target {}, input {i}: {} bytes", target.name, input.len());
            }
            assert!(start.elapsed() < TOO_LONG, "target {}, input {i}", target.name);
        }
    }
}

#[test]
fn every_target_takes_noise() {
    let mut random = Random::new(1);
    for target in TARGETS {
        for len in 0..600 {
            let input: Vec<u8> = (0..len).map(|_| random.word() as u8).collect();
            (target.run)(&input);
        }
    }
}
