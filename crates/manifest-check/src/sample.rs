//! The sample pools, imported.

use cenote_format::crypt::{CryptError, WrappingKey};
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

/// Imports the sample pool `name` and loads the keys of its encrypted datasets, which the manifest has.
///
/// # Panics
/// As for [`import`], and if a key is not the right one.
#[allow(clippy::panic)]
pub fn import_with_keys(name: &str) -> Arc<Pool> {
    let pool = import(name);
    let manifest = cenote_testpools::pool(name).manifest();
    for (dataset, key) in manifest["keys"].as_object().into_iter().flatten() {
        let loaded = load_key(&pool, dataset, key);
        loaded.unwrap_or_else(|e| panic!("key of {dataset}: {e}"));
    }
    pool
}

/// Loads the key of one dataset, as a manifest has it.
///
/// # Errors
/// It is not the right one, or cannot be loaded.
pub fn load_key(pool: &Pool, dataset: &str, key: &serde_json::Value) -> Result<(), String> {
    let dsl = pool.dsl();
    let said = |e: CryptError| e.to_string();
    let found = dsl.find(dataset).map_err(|e| e.to_string())?.ok_or("no such dataset")?;
    let wrapped = dsl.crypto_key(&found).map_err(|e| e.to_string())?.ok_or("not encrypted")?;
    let text = |name: &str| key[name].as_str().map(str::as_bytes);
    let wrapping = match (text("passphrase"), text("hex").or(text("raw_hex"))) {
        (Some(phrase), _) => {
            WrappingKey::from_passphrase(phrase, wrapped.salt, wrapped.iterations).map_err(said)?
        }
        (None, digits) => WrappingKey::from_hex(digits.ok_or("no key")?).map_err(said)?,
    };
    dsl.load_key(&found, wrapping).map_err(|e| e.to_string())
}
