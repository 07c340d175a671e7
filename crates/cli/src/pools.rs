//! The table of imported pools.
//!
//! The daemon has one; a command that runs in the user's own process has an empty one. An entry
//! owns the pool and everything that hangs on it: its mounts and what was said at import.
//!
//! Invariants: names in the table are unique, and so are pool guids; an entry leaves the table
//! only when its mounts are gone (or were detached lazily by force).

use cenote_pool::Pool;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An imported pool.
pub struct Imported {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Alternate root (`-R`) that mountpoints lie under.
    pub altroot: Option<PathBuf>,
}

/// The imported pools by name.
#[derive(Default)]
pub struct PoolTable {
    pools: Mutex<BTreeMap<String, Arc<Imported>>>,
}

impl PoolTable {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Imported>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool imported under `name`.
    pub fn get(&self, name: &str) -> Option<Arc<Imported>> {
        self.lock().get(name).cloned()
    }

    /// All pools, sorted by name.
    pub fn all(&self) -> Vec<Arc<Imported>> {
        self.lock().values().cloned().collect()
    }

    /// Adds a pool; false if its name or guid is taken.
    pub fn insert(&self, imported: Arc<Imported>) -> bool {
        let mut pools = self.lock();
        let name = imported.pool.name().to_string();
        let guid = imported.pool.guid();
        if pools.contains_key(&name) || pools.values().any(|p| p.pool.guid() == guid) {
            return false;
        }
        pools.insert(name, imported);
        true
    }

    /// Takes a pool out of the table.
    pub fn remove(&self, name: &str) -> Option<Arc<Imported>> {
        self.lock().remove(name)
    }

    /// Whether no pool is imported.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}
