//! What the [cache](crate::cache) of objects is made of. `tests/models.rs` has that cache with others in their place, by
//! which every order of threads comes up.

pub(crate) use cenote_store::Store;
pub(crate) use cenote_store::arc::Table;
pub(crate) use parking_lot::RwLock;
pub(crate) use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
