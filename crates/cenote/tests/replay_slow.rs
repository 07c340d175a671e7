//! Replay on devices that answer late: what it reads is read ahead of it.

#![allow(clippy::unwrap_used)]

use cenote::contents::replay_logs;
use cenote_engine::{Engine, EngineOptions, tunables};
use cenote_pool::{ImportOptions, discover};
use std::time::{Duration, Instant};

fn set(name: &str, value: u64) {
    let tunable = tunables::all().iter().find(|t| t.name == name).unwrap();
    tunable.set(value).unwrap();
}

/// Time that the replay of `zilmain` takes on a device of this latency.
fn replay(latency: Duration, prime: u64) -> Duration {
    let temp = cenote_testpools::copy("zilmain");
    set("zil_replay_prime", prime);
    set("vdev_simulated_latency", latency.as_nanos() as u64);
    let candidate = discover(std::slice::from_ref(&temp.pool.dir)).remove(0);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let engine = Engine::import(&candidate, &options, EngineOptions::default()).unwrap();
    let begun = Instant::now();
    assert_eq!(replay_logs(&engine, &|_, _| true).unwrap(), []);
    let took = begun.elapsed();
    engine.export(false).unwrap();
    took
}

#[test]
fn what_a_replay_reads_is_read_ahead() {
    let latency = Duration::from_millis(20);
    let (serial, primed) = (replay(latency, 0), replay(latency, 1));
    println!("serial {serial:?}, primed {primed:?}");
    println!("without latency {:?} {:?}", replay(Duration::ZERO, 0), replay(Duration::ZERO, 1));
    assert!(primed < serial, "serial {serial:?}, primed {primed:?}");
}
