//! What this software can write to.
//!
//! A pool may use features that reading understands and writing does not: changing such a pool
//! would break what the feature promises (a deduplication table would count wrong, a livelist would
//! miss blocks). Such a pool, or dataset, is refused by the feature's name.

use super::task::EngineError;
use crate::Pool;
use cenote_dmu::ObjectSet;
use cenote_dsl::Dataset;

/// Features that may be active in a pool that is written to.
const WRITABLE: [&str; 33] = [
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    "multi_vdev_crash_dump",
    "spacemap_histogram",
    "enabled_txg",
    "hole_birth",
    "zpool_checkpoint",
    "spacemap_v2",
    "extensible_dataset",
    "bookmarks",
    "embedded_data",
    "large_blocks",
    "large_dnode",
    "sha512",
    "skein",
    "edonr",
    "userobj_accounting",
    "encryption",
    "project_quota",
    "allocation_classes",
    "resilver_defer",
    "bookmark_v2",
    "log_spacemap",
    "livelist",
    "device_rebuild",
    "zstd_compress",
    "zilsaxattr",
    "head_errlog",
    "blake3",
    "vdev_zaps_v2",
    "longname",
    "large_microzap",
];

/// Refuses a pool that cannot be written.
///
/// # Errors
/// [`EngineError::Unsupported`] names what it uses.
pub(super) fn check_pool(pool: &Pool) -> Result<(), EngineError> {
    let unsupported = |what: String| Err(EngineError::Unsupported(what));
    for feature in pool.features().list.iter().filter(|f| f.uses > 0) {
        let name = feature.known.map_or(feature.guid.as_str(), |known| known.name);
        if !WRITABLE.contains(&name) {
            return unsupported(format!("active feature '{name}'"));
        }
    }
    if pool.space().is_none() {
        return unsupported("a pool whose space maps cannot be read".into());
    }
    if crate::host::multihost(pool.uberblock()) {
        return unsupported("property 'multihost=on'".into());
    }
    Ok(())
}

/// Refuses a dataset that cannot be written.
///
/// # Errors
/// [`EngineError::Unsupported`] names what it uses.
pub(super) fn check_dataset(
    pool: &Pool,
    dataset: &Dataset,
    set: &ObjectSet,
) -> Result<(), EngineError> {
    let unsupported =
        |what: &str| Err(EngineError::Unsupported(format!("'{}': {what}", dataset.name)));
    if !set.phys().zil.log.is_hole() {
        return unsupported("an intent log that was not replayed");
    }
    if dataset.is_inconsistent() {
        return unsupported("an incomplete dataset");
    }
    if pool.dsl().livelist(dataset)?.is_some() {
        return unsupported("a clone with a livelist");
    }
    Ok(())
}
