//! Names that requests change while an [exchange](crate::exchange) lists directories.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Names in directories, by the directory's inode number.
pub(crate) type Names = BTreeMap<u64, BTreeSet<Vec<u8>>>;

/// Names that requests have changed while somebody lists directories.
#[derive(Default)]
pub(crate) struct Changing {
    /// How many list.
    listing: AtomicUsize,
    names: Mutex<Names>,
}

/// While it lasts, names that change are noted, and the kernel keeps none that it is told.
pub(crate) struct Listing<'a>(&'a Changing);

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        let mut names = self.0.names.lock();
        if self.0.listing.fetch_sub(1, Ordering::SeqCst) == 1 {
            names.clear();
        }
    }
}

impl Changing {
    /// Names are noted until what is returned is dropped.
    pub(crate) fn listing(&self) -> Listing<'_> {
        self.listing.fetch_add(1, Ordering::SeqCst);
        Listing(self)
    }

    /// Whether names are noted.
    pub(crate) fn goes_on(&self) -> bool {
        self.listing.load(Ordering::SeqCst) > 0
    }

    /// The names that were noted in directories that `of` chooses.
    pub(crate) fn noted(&self, of: impl Fn(u64) -> bool) -> Names {
        let names = self.names.lock();
        names.iter().filter(|(dir, _)| of(**dir)).map(|(dir, all)| (*dir, all.clone())).collect()
    }

    /// A name in a directory has changed.
    pub(crate) fn note(&self, dir: u64, name: &[u8]) {
        self.names.lock().entry(dir).or_default().insert(name.to_vec());
    }
}
