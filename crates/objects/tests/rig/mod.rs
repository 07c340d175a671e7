//! A store with faults, and a model of what a space must hold.

#![allow(dead_code, unused_imports)] // Each test uses its part.

mod faults;
mod model;

pub use faults::{FaultStore, Faults, Shared};
pub use model::Model;

use std::time::Duration;

use cenote_objects::Tunables;

/// A small generator of random numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Everything small, so that all that happens in a large space happens here.
pub fn small(seed: u64) -> Tunables {
    Tunables {
        object_bytes: 64 << 10,
        uploads: 4,
        reads: 8,
        read_gap: 4 << 10,
        read_bytes: 128 << 10,
        index_bytes: 2 << 10,
        table_bytes: 4 << 10,
        inline_bytes: 300,
        log_bytes: 2000,
        log_objects: 4,
        deadline: Duration::from_secs(5),
        hedge: Duration::from_millis(500),
        pause: Duration::from_millis(50),
        pause_max: Duration::from_secs(5),
        budget: Duration::from_secs(20),
        grace: Duration::from_secs(120),
        page_entries: 8,
        seed,
        ..Tunables::default()
    }
}
