//! What every pool has: its directories and lists (`dsl_pool_create`).
//!
//! Above the pool's own directories ([`special`](super::special)) stands the directory `$ORIGIN`: an empty dataset, whose
//! snapshot is the origin of every dataset that is not a clone.

use super::dataset::create_head;
pub use super::dir::empty_snapshot;
use super::dir::{ORIGIN, create_dir};
use super::directory::{FREE_BPOBJ, ROOT, root_dir};
pub use super::directory::{entry, remove_entry, set_entry};
use super::mos::{DIRECTORY, corrupt};
use super::special::{FREE_DIR, MOS_DIR};
pub use super::special::{charge_leak, charge_mos};
use super::{DslWriteError, Result, Tx, bpobj, clones, features, snapshot};
use cenote_dmu::write::{NewObject, WriteError, ZapMut};
use cenote_format::dmu::DmuType;
use std::collections::HashSet;

/// What [`DIRECTORY`] starts with.
const DIRECTORY_BLOCK: u64 = 512;

/// Objects of a new pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolDirs {
    /// The root directory.
    pub root_dir: u64,
    /// The head of the root directory, whose object set is still to be written.
    pub root_ds: u64,
    /// The list of blocks to be freed.
    pub free_bpobj: u64,
    /// The snapshot `$ORIGIN@$ORIGIN`.
    pub origin_snap: u64,
}

/// Makes the object directory (object 1), the ZAPs of features, and the directories of a new pool
/// in an empty MOS (`dsl_pool_create`). Features may be enabled afterwards, in the same transaction group.
pub fn create_pool_dirs(tx: &mut Tx<'_>) -> Result<PoolDirs> {
    let directory = NewObject::new(DmuType::OBJECT_DIRECTORY, DIRECTORY_BLOCK);
    match tx.mos.claim(DIRECTORY, &directory) {
        Ok(()) => {
            let format = tx.zap_format()?;
            ZapMut::format(tx.mos, DIRECTORY, format)?;
        }
        // The caller, or `features::create_objects`, was there before.
        Err(WriteError::Taken(_)) if entry(tx, ROOT)?.is_none() => {}
        Err(WriteError::Taken(_)) => return Err(DslWriteError::Exists),
        Err(e) => return Err(e.into()),
    }
    let root_dir = create_dir(tx, None)?;
    set_entry(tx, ROOT, root_dir)?;
    create_dir(tx, Some((root_dir, MOS_DIR)))?;
    create_dir(tx, Some((root_dir, FREE_DIR)))?;
    let free_bpobj = bpobj::create_with_sub_lists(tx, bpobj::BLOCK)?;
    set_entry(tx, FREE_BPOBJ, free_bpobj)?;
    let origin_dir = create_dir(tx, Some((root_dir, ORIGIN)))?;
    let origin_ds = create_head(tx, origin_dir, None)?;
    let origin_snap = snapshot::take(tx, origin_ds, ORIGIN)?;
    features::create_objects(tx)?;
    let root_ds = create_head(tx, root_dir, Some(origin_snap))?;
    Ok(PoolDirs { root_dir, root_ds, free_bpobj, origin_snap })
}

/// Makes what a pool has from version 26 on, where it is missing (`dsl_pool_upgrade_dir_clones`): the list of blocks to be
/// freed, and for each directory the clones of its snapshots. Deadlists get keys from now on.
///
/// # Errors
/// The MOS cannot be read or changed.
pub fn add_free_list(tx: &mut Tx<'_>) -> Result<()> {
    if bpobj::have_sub_lists(tx)? {
        return Ok(());
    }
    let root = root_dir(tx)?;
    let (mut waiting, mut seen) = (vec![root], HashSet::from([root]));
    while let Some(object) = waiting.pop() {
        let dir = tx.dir(object)?;
        if dir.origin != 0 && dir.head_dataset != 0 {
            let origin_dir = tx.dataset(dir.origin)?.dir;
            let clones = clones::clones_of(tx, origin_dir)?;
            tx.zap_set(clones, &format!("{:x}", dir.head_dataset), dir.head_dataset)?;
        }
        for entry in tx.zap_entries(dir.children)? {
            let Some(child) = entry.u64().filter(|child| seen.insert(*child)) else {
                return Err(corrupt(dir.children, "a directory that is there twice"));
            };
            if !entry.name.starts_with(b"$") {
                waiting.push(child);
            }
        }
    }
    create_dir(tx, Some((root, FREE_DIR)))?;
    let list = bpobj::create_with_sub_lists(tx, bpobj::BLOCK)?;
    set_entry(tx, FREE_BPOBJ, list)
}

/// Bytes that the pool's datasets and its MOS are charged for.
///
/// # Errors
/// The MOS cannot be read.
pub fn used(tx: &mut Tx<'_>) -> Result<u64> {
    let root = root_dir(tx)?;
    Ok(tx.dir(root)?.used)
}
