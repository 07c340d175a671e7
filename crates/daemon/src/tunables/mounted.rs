//! The directories of tunables and figures that are mounted.

use cenote_fuse::pseudo::Mount;
use parking_lot::{Mutex, MutexGuard};
use std::path::PathBuf;

/// The directories that are mounted.
#[derive(Default)]
pub struct Directories(Mutex<Vec<Mount>>);

impl Directories {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Mount>> {
        let mut mounts = self.0.lock();
        mounts.retain(Mount::is_mounted);
        mounts
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Where they are.
    pub fn all(&self) -> Vec<PathBuf> {
        self.lock().iter().map(|m| m.mountpoint().to_owned()).collect()
    }

    /// Takes all of them away, in use or not.
    pub fn unmount_all(&self) {
        self.lock().clear();
    }
}
