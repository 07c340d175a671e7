//! What commits wait by ([`issuer`](super::issuer)). `tests/models.rs` has that code with others in their place, by which
//! every order of threads comes up.

pub(super) use parking_lot::{Condvar, Mutex, MutexGuard};
pub(super) use std::sync::atomic::{AtomicU8, Ordering};
pub(super) use std::thread::{self, Thread};
