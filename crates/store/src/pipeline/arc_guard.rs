//! The ARC of a store while a thread has it.

use super::Store;
use crate::arc::ArcCache;
use cenote_format::invariant;
use parking_lot::MutexGuard;
use std::ops::{Deref, DerefMut};
use std::thread::panicking;

/// See [`Store::arc`].
pub(super) struct ArcGuard<'a> {
    arc: MutexGuard<'a, ArcCache>,
    store: &'a Store,
}

impl Store {
    /// The ARC. A panic of who has it sounds the alarm: half of a change may be in its lists.
    pub(super) fn arc(&self) -> ArcGuard<'_> {
        ArcGuard { arc: self.arc.lock(), store: self }
    }
}

impl Deref for ArcGuard<'_> {
    type Target = ArcCache;

    fn deref(&self) -> &ArcCache {
        &self.arc
    }
}

impl DerefMut for ArcGuard<'_> {
    fn deref_mut(&mut self) -> &mut ArcCache {
        &mut self.arc
    }
}

impl Drop for ArcGuard<'_> {
    fn drop(&mut self) {
        if panicking() {
            let why =
                invariant::last().unwrap_or_else(|| "a thread that had the ARC panicked".into());
            self.store.alarm().sound(why);
        }
    }
}
