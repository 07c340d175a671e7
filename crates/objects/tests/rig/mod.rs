//! A store with faults, and a model of what a space must hold.

#![allow(dead_code, unused_imports)] // Each test uses its part.

mod model;

pub use cenote_teststore::Random;
pub use cenote_teststore::faults::{FaultStore, Faults, Shared};
pub use model::Model;

use std::time::Duration;

use cenote_objects::Tunables;

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
