//! The health of a pool (`zpool_get_status`), as `zpool status` shows it and as `zpool import` lists it.
//!
//! Both show a *reason* (the worst thing that is wrong, [`Reason`]) with an explanation and advice
//! in OpenZFS's words, and the vdev tree with the state of each vdev in sections: data, dedup,
//! special, logs, cache, spares. Here they are data; layout is the command's.
//!
//! [`ImportReport`] is made by opening a pool that is not imported; [`PoolStatus`] of an imported
//! one.

mod reason;
mod replay;
mod report;
mod texts;
mod tree;

pub use crate::names::{NameStyle, vdev_name};
pub use reason::Reason;
pub use replay::{ReplayStage, ReplayStatus};
pub use report::ImportReport;
pub use texts::Texts;
pub use tree::{ConfigTree, VdevLine, name_of_vdev, state_name};

use crate::Pool;
use crate::expansion::Expansion;
use crate::features::PoolFeatures;
use crate::rebuild::RebuildStatus;
use crate::scan::{CheckpointStatus, LAST_SCRUBBED, RemovalStatus, ScanPhys, ScanStatus};
use crate::version;
use cenote_dmu::Result;
use cenote_format::features::FEATURES;
use cenote_format::nvlist::NvList;

/// An imported pool's status.
#[derive(Debug, Clone)]
pub struct PoolStatus {
    /// Name of the pool.
    pub name: String,
    /// `ONLINE`, `DEGRADED`, …
    pub state: &'static str,
    /// The worst thing that is wrong.
    pub reason: Reason,
    /// Explanation, advice and message id that belong to it.
    pub texts: Texts,
    /// The last scrub or resilver, if there was one.
    pub scan: Option<ScanStatus>,
    /// Why the scan that is under way does not go on, while it does not; the engine fills it in as `replay`.
    pub scan_waits: Option<String>,
    /// The last sequential rebuilds of top-level vdevs.
    pub rebuilds: Vec<RebuildStatus>,
    /// The last removal of a vdev.
    pub removal: Option<RemovalStatus>,
    /// The last expansion of a RAID-Z vdev.
    pub expansion: Option<Expansion>,
    /// The replay of intent logs that is under way; the engine of a pool that is imported for writing fills it in.
    pub replay: Option<ReplayStatus>,
    /// The pool's checkpoint.
    pub checkpoint: Option<CheckpointStatus>,
    /// The vdevs.
    pub tree: ConfigTree,
    /// Data errors known, roughly: `Pool::data_errors` lists them.
    pub error_count: u64,
}

impl PoolStatus {
    pub(crate) fn of(pool: &Pool) -> Result<PoolStatus> {
        let vdevs = pool.store().vdevs();
        let root = vdevs.root();
        let mut tree = ConfigTree::of_pool(pool);
        let error_count = pool.error_count()?;
        let scan = ScanStatus::load(pool.directory(), pool.scan_pass())?;
        if let Some(scan) = scan.as_ref().filter(|scan| scan.is_running()) {
            let what = if scan.is_resilvering() { "(resilvering)" } else { "(repairing)" };
            let mut deferred = Vec::new();
            if let Some(root) = pool.config().list("vdev_tree") {
                crate::config::for_each_leaf(root, &mut |leaf| {
                    if leaf.contains(crate::config::DEFERRED) {
                        deferred.push(crate::config::number(leaf, "guid"));
                    }
                });
            }
            tree.note_scan(&vdevs, what, &deferred);
        }
        let rebuilds = RebuildStatus::all(pool);
        if rebuilds.iter().any(|rebuild| rebuild.phys.is_running()) {
            tree.note_scan(&vdevs, "(resilvering)", &[]);
        }
        let compatibility = pool.config().str("compatibility");
        let reason = reason::Facts {
            importing: false,
            root: root.state(),
            tree: &tree,
            resilvering: scan.as_ref().is_some_and(ScanStatus::is_resilvering)
                || rebuilds.iter().any(|rebuild| rebuild.phys.is_running()),
            unproven: is_unproven(pool, &rebuilds)?,
            other_host: false,
            mended: root.was_mended(),
            error_count,
            errata: errata(pool.config(), pool.features()),
            version: pool.version(),
            features: pool.features(),
            compatibility,
        }
        .reason();
        Ok(PoolStatus {
            name: pool.name().to_string(),
            state: tree.root.state,
            texts: reason.status_texts(),
            reason,
            scan,
            rebuilds,
            removal: RemovalStatus::load(pool)?,
            expansion: crate::expansion::of(pool),
            replay: None,
            scan_waits: None,
            checkpoint: CheckpointStatus::load(pool)?,
            tree,
            error_count,
        })
    }
}

/// Whether no scrub has looked at what sequential rebuilds copied (`ZPOOL_STATUS_REBUILD_SCRUB`).
fn is_unproven(pool: &Pool, rebuilds: &[RebuildStatus]) -> Result<bool> {
    let scan = ScanPhys::load(pool.directory())?.unwrap_or_default();
    let last = pool.directory().u64(LAST_SCRUBBED)?.unwrap_or(0);
    Ok(rebuilds.iter().any(|rebuild| rebuild.phys.is_unproven(&scan, last)))
}

/// The known fault that has left its mark on a pool (`zpool_errata_t`), 0 without one: recorded in the
/// config, or encryption from before bookmarks could tell that they are encrypted.
fn errata(config: &NvList, features: &PoolFeatures) -> u64 {
    const BOOKMARKS_OF_ENCRYPTED: u64 = 4;
    if features.is_enabled("encryption") && !features.is_enabled("bookmark_v2") {
        return BOOKMARKS_OF_ENCRYPTED;
    }
    crate::config::number(config, "errata")
}

/// Whether a pool is of a version before feature flags, lacks features that `zpool upgrade` would enable, or has some that its property
/// `compatibility` does not ask for.
fn outdated(version: u64, features: &PoolFeatures, compatibility: Option<&str>) -> Reason {
    if version < version::FEATURES {
        return if compatibility == Some("legacy") { Reason::Ok } else { Reason::VersionOlder };
    }
    let wanted = crate::compat::features(compatibility.unwrap_or(""));
    let expected = crate::features::expected_features(compatibility);
    let (Some(wanted), Ok(expected)) = (wanted, expected) else {
        return Reason::CompatibilityError;
    };
    for f in FEATURES.iter().filter(|f| f.upgrade) {
        let enabled = features.is_enabled(f.name);
        if expected.contains(f.name) && !enabled {
            return Reason::FeaturesDisabled;
        }
        if !wanted.contains(f.name) && enabled {
            return Reason::FeaturesUnwanted;
        }
    }
    Reason::Ok
}
