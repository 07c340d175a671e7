//! Log space maps and the loss of power: with the feature, and enabled midway; with many logs and with
//! metaslabs flushed all the time; with logs kept at export. After each crash, and as long as the pool
//! is in use, the free space of every metaslab adds up. Pools without the feature are crashed, besides
//! others with it, by `crash.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_engine::create::Redundancy;
use cenote_engine::tunables::{self, Tunable};
use cenote_torture::live::crash::{Figures, Plan, matrix};
use cenote_torture::live::lab::{Logs, Shape};
use cenote_torture::{Progress, long};
use parking_lot::{Mutex, MutexGuard};

/// Tunables are of the process: tests that set them take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Tunables that have other values for a while.
struct Tuned {
    changed: &'static [(&'static Tunable, u64)],
    _turn: MutexGuard<'static, ()>,
}

impl Tuned {
    fn new(changed: &'static [(&'static Tunable, u64)]) -> Tuned {
        let turn = TURN.lock();
        changed.iter().for_each(|(tunable, value)| tunable.set(*value).unwrap());
        Tuned { changed, _turn: turn }
    }
}

impl Drop for Tuned {
    fn drop(&mut self) {
        self.changed.iter().for_each(|(tunable, _)| tunable.set(tunable.default).unwrap());
    }
}

/// Nothing is flushed that need not be; logs stay at export.
static MANY: [(&Tunable, u64); 2] =
    [(&tunables::MIN_METASLABS_TO_FLUSH, 0), (&tunables::KEEP_LOGS_AT_EXPORT, 1)];
/// There are few logs, so metaslabs are flushed in every group.
static FEW: [(&Tunable, u64); 3] = [
    (&tunables::UNFLUSHED_LOG_TXG_MAX, 3),
    (&tunables::MIN_METASLABS_TO_FLUSH, 2),
    (&tunables::METASLAB_CONDENSE_PCT, 110),
];

const SHAPES: [Shape; 3] = [
    Shape { redundancy: Redundancy::Single, disks: 2, ashift: 9, size: 96 << 20 },
    Shape { redundancy: Redundancy::Mirror, disks: 2, ashift: 12, size: 96 << 20 },
    Shape { redundancy: Redundancy::RaidZ(1), disks: 3, ashift: 12, size: 64 << 20 },
];

fn crash(logs: Logs, tuned: &'static [(&'static Tunable, u64)], first: u64) -> Figures {
    let _tuned = Tuned::new(tuned);
    let figures = Figures::default();
    let (rounds, steps, points, sample) = if long() { (9, 200, 300, 60) } else { (1, 48, 32, 4) };
    let progress = Progress::of("crashes with logs", rounds as usize);
    for seed in first..first + rounds {
        let shape = SHAPES[seed as usize % SHAPES.len()];
        matrix(
            seed,
            &Plan {
                shape,
                logs,
                in_order: seed % 2 == 0,
                steps,
                points,
                sample,
                ..Plan::default()
            },
            &figures,
        );
        progress.done(format_args!("seed {seed}"));
    }
    println!("{figures:?}");
    figures
}

#[test]
fn many_logs() {
    let figures = crash(Logs::On, &MANY, 100);
    assert!(figures.logs.into_inner() > 8);
    assert!(figures.metaslabs.into_inner() > 0);
}

#[test]
fn few_logs() {
    let figures = crash(Logs::On, &FEW, 201);
    assert!((1..=4).contains(&figures.logs.into_inner()));
}

#[test]
fn the_feature_is_enabled_midway() {
    let figures = crash(Logs::Midway, &[], 302);
    assert!(figures.logs.into_inner() > 0);
}
