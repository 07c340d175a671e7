//! Directories that users do not see, and the space that they are charged for (`dsl_pool_open_special_dir`).
//!
//! | in the root directory | |
//! |---|---|
//! | `$MOS` | what the MOS itself uses (`dp_mos_dir`) |
//! | `$FREE` | blocks that are waiting to be freed (`dp_free_dir`) |
//! | `$LEAK` | blocks that could not be freed, because metadata above them is damaged (`dp_leak_dir`); made with the first |

use super::directory::root_dir;
use super::names::find_child;
use super::space::{self, Delta, Part};
use super::{DslWriteError, Result, Sizes, Tx, dir, limits};
use cenote_dmu::write::Synced;
use cenote_format::invariant;

pub(super) const MOS_DIR: &str = "$MOS";
pub(super) const FREE_DIR: &str = "$FREE";
pub(super) const LEAK_DIR: &str = "$LEAK";

/// Charges `$FREE` for what is waiting to be freed, or is not any more.
pub(super) fn charge_free(tx: &mut Tx<'_>, delta: Delta) -> Result<()> {
    charge_special(tx, FREE_DIR, delta)
}

fn charge_special(tx: &mut Tx<'_>, name: &str, delta: Delta) -> Result<()> {
    let root = root_dir(tx)?;
    let dir = find_child(tx, root, name)?.ok_or(DslWriteError::NotFound)?;
    space::charge(tx, dir, Part::Head, delta)
}

/// Charges `$LEAK` for what stays allocated though nothing refers to it any more.
///
/// # Errors
/// The MOS cannot be read.
pub fn charge_leak(tx: &mut Tx<'_>, leaked: Sizes) -> Result<()> {
    let root = root_dir(tx)?;
    if find_child(tx, root, LEAK_DIR)?.is_none() {
        dir::create_dir(tx, Some((root, LEAK_DIR)))?;
        // It is none that users see.
        limits::adjust(tx, root, limits::FILESYSTEMS, -1)?;
    }
    tracing::warn!("{} bytes are leaked (pool property 'leaked')", leaked.used);
    charge_special(tx, LEAK_DIR, Delta::more(leaked))
}

/// Moves all that is still in `$FREE` to `$LEAK`.
pub(super) fn leak_rest(tx: &mut Tx<'_>) -> Result<()> {
    let root = root_dir(tx)?;
    let Some(free) = find_child(tx, root, FREE_DIR)? else { return Ok(()) };
    let dir = tx.dir(free)?;
    let left = Sizes { used: dir.used, compressed: dir.compressed, uncompressed: dir.uncompressed };
    if left == Sizes::default() {
        return Ok(());
    }
    charge_free(tx, Delta::less(left))?;
    let dir = tx.dir(free)?;
    let still = [dir.used, dir.compressed, dir.uncompressed];
    invariant!(still == [0; 3], "{left:?} to be freed is leaked, and {still:?} is left");
    charge_leak(tx, left)
}

/// What is waiting to be freed, as `$FREE` says.
pub(super) fn free_dir_used(tx: &mut Tx<'_>) -> Result<u64> {
    let root = root_dir(tx)?;
    match find_child(tx, root, FREE_DIR)? {
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
