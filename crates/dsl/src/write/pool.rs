//! What every pool has: its directories and lists (`dsl_pool_create`).
//!
//! | in the root directory | |
//! |---|---|
//! | `$MOS` | what the MOS itself uses |
//! | `$FREE` | what is waiting to be freed |
//! | `$LEAK` | what could not be freed, because metadata above it is damaged; made when there is some |
//! | `$ORIGIN` | an empty dataset; its snapshot is what every dataset starts from |

use super::dataset::{create_dir, create_head};
use super::mos::DIRECTORY;
use super::space::{Delta, Part};
use super::{DslWriteError, Result, Sizes, Tx, bpobj, features, limits, rename, snapshot, space};
use cenote_dmu::write::{NewObject, Synced, WriteError, ZapMut};
use cenote_format::dmu::DmuType;

/// Entries of the object directory.
const ROOT: &str = "root_dataset";
pub(super) const FREE_BPOBJ: &str = "free_bpobj";
/// Directories that users do not see.
const MOS_DIR: &str = "$MOS";
const FREE_DIR: &str = "$FREE";
const LEAK_DIR: &str = "$LEAK";
pub(super) const ORIGIN: &str = "$ORIGIN";
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
    let free_bpobj = bpobj::create(tx, bpobj::BLOCK)?;
    set_entry(tx, FREE_BPOBJ, free_bpobj)?;
    let origin_dir = create_dir(tx, Some((root_dir, ORIGIN)))?;
    let origin_ds = create_head(tx, origin_dir, None)?;
    let origin_snap = snapshot::take(tx, origin_ds, ORIGIN)?;
    features::create_objects(tx)?;
    let root_ds = create_head(tx, root_dir, Some(origin_snap))?;
    Ok(PoolDirs { root_dir, root_ds, free_bpobj, origin_snap })
}

/// A number in the object directory.
pub fn entry(tx: &mut Tx<'_>, name: &str) -> Result<Option<u64>> {
    tx.zap_number(DIRECTORY, name)
}

/// Sets a number in the object directory.
pub fn set_entry(tx: &mut Tx<'_>, name: &str, value: u64) -> Result<()> {
    tx.zap_set(DIRECTORY, name, value)
}

/// Removes an entry of the object directory.
pub fn remove_entry(tx: &mut Tx<'_>, name: &str) -> Result<()> {
    tx.zap_remove(DIRECTORY, name).map(drop)
}

/// The root directory.
pub(super) fn root_dir(tx: &mut Tx<'_>) -> Result<u64> {
    entry(tx, ROOT)?.ok_or(DslWriteError::NotFound)
}

/// Bytes that the pool's datasets and its MOS are charged for.
///
/// # Errors
/// The MOS cannot be read.
pub fn used(tx: &mut Tx<'_>) -> Result<u64> {
    let root = root_dir(tx)?;
    Ok(tx.dir(root)?.used)
}

/// The snapshot `$ORIGIN@$ORIGIN`; `None` in pools from before there was one.
pub(super) fn origin_snap(tx: &mut Tx<'_>) -> Result<Option<u64>> {
    let root = root_dir(tx)?;
    let Some(dir) = rename::find_child(tx, root, ORIGIN)? else { return Ok(None) };
    let head = tx.dir(dir)?.head_dataset;
    Ok(Some(tx.dataset(head)?.prev_snap))
}

/// The snapshot that datasets start from which are no clones; `None` in pools from before there was one.
///
/// # Errors
/// The MOS cannot be read.
pub fn empty_snapshot(tx: &mut Tx<'_>) -> Result<Option<u64>> {
    origin_snap(tx)
}

/// Charges `$FREE` for what is waiting to be freed, or is not any more.
pub(super) fn charge_free(tx: &mut Tx<'_>, delta: Delta) -> Result<()> {
    charge_special(tx, FREE_DIR, delta)
}

fn charge_special(tx: &mut Tx<'_>, name: &str, delta: Delta) -> Result<()> {
    let root = root_dir(tx)?;
    let dir = rename::find_child(tx, root, name)?.ok_or(DslWriteError::NotFound)?;
    space::charge(tx, dir, Part::Head, delta)
}

/// Charges `$LEAK` for what stays allocated though nothing refers to it any more.
///
/// # Errors
/// The MOS cannot be read.
pub fn charge_leak(tx: &mut Tx<'_>, leaked: Sizes) -> Result<()> {
    let root = root_dir(tx)?;
    if rename::find_child(tx, root, LEAK_DIR)?.is_none() {
        create_dir(tx, Some((root, LEAK_DIR)))?;
        // Users do not see it.
        limits::adjust(tx, root, limits::FILESYSTEMS, -1)?;
    }
    tracing::warn!("{} bytes are leaked (pool property 'leaked')", leaked.used);
    charge_special(tx, LEAK_DIR, Delta::more(leaked))
}

/// Moves all that is still in `$FREE` to `$LEAK`.
pub(super) fn leak_rest(tx: &mut Tx<'_>) -> Result<()> {
    let root = root_dir(tx)?;
    let Some(dir) = rename::find_child(tx, root, FREE_DIR)? else { return Ok(()) };
    let dir = tx.dir(dir)?;
    let left = Sizes { used: dir.used, compressed: dir.compressed, uncompressed: dir.uncompressed };
    if left == Sizes::default() {
        return Ok(());
    }
    charge_free(tx, Delta::less(left))?;
    charge_leak(tx, left)
}

/// What is waiting to be freed, as `$FREE` says.
pub(super) fn free_dir_used(tx: &mut Tx<'_>) -> Result<u64> {
    let root = root_dir(tx)?;
    match rename::find_child(tx, root, FREE_DIR)? {
        Some(dir) => Ok(tx.dir(dir)?.used),
        None => Ok(0),
    }
}

/// Charges the pool's own directory `$MOS` for what an earlier sync of the MOS itself wrote and
/// freed: in the next pass, or in the next txg if that was the last pass.
pub fn charge_mos(tx: &mut Tx<'_>, synced: &Synced) -> Result<()> {
    let mut delta = Delta::default();
    let mut add = |d: Delta| {
        delta.used = delta.used.wrapping_add(d.used);
        delta.compressed = delta.compressed.wrapping_add(d.compressed);
        delta.uncompressed = delta.uncompressed.wrapping_add(d.uncompressed);
    };
    let sum = |blocks: &[cenote_format::blkptr::BlockPointer]| {
        let mut sum = Sizes::default();
        blocks.iter().filter(|bp| !bp.is_hole()).for_each(|bp| sum.add((tx.space)(bp)));
        sum
    };
    add(Delta::more(sum(&synced.born)));
    add(Delta::less(sum(&synced.killed)));
    charge_special(tx, MOS_DIR, delta)
}
