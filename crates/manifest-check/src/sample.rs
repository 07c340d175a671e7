//! The sample pools, imported.

use cenote_pool::{ImportError, ImportOptions, Pool, discover};
use cenote_testpools::TestPool;
use std::sync::Arc;

/// Imports a sample pool or a copy of one, read-only, by whichever system it was used last.
///
/// # Errors
/// The import's errors, for tests that spoil what is read.
pub fn try_import(sample: &TestPool) -> std::result::Result<Arc<Pool>, ImportError> {
    let candidates = discover(std::slice::from_ref(&sample.dir));
    let candidate = candidates.iter().find(|c| c.name == sample.name);
    let candidate = candidate.ok_or_else(|| ImportError::NotFound(sample.name.clone()))?;
    let options = ImportOptions { readonly: true, force: true, ..ImportOptions::default() };
    Pool::import(candidate, &options)
}

/// Imports the sample pool `name`.
///
/// # Panics
/// If it cannot be imported: the test that asked has failed.
#[allow(clippy::panic)]
pub fn import(name: &str) -> Arc<Pool> {
    try_import(&cenote_testpools::pool(name))
        .unwrap_or_else(|e| panic!("{name}: {e}\n{}", e.notes().unwrap_or_default()))
}
