//! Atomics of the structures that are read without a lock. `tests/models.rs` has such structures with atomics in their
//! place by which every order of threads comes up.

pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
