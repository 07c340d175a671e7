//! Which blocks of a store could not be read.

use super::Store;
use crate::error::Bookmark;

impl Store {
    /// Blocks that could not be read since the pool was opened (at most 100,000).
    pub fn errors(&self) -> Vec<Bookmark> {
        self.errors.lock().iter().copied().collect()
    }

    /// Forgets those blocks.
    pub fn clear_errors(&self) {
        self.errors.lock().clear();
    }

    /// Forgets those of them of which `gone` holds: nothing leads there any more.
    pub fn forget_errors(&self, gone: impl Fn(&Bookmark) -> bool) {
        self.errors.lock().retain(|at| !gone(at));
    }
}
