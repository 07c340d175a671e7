//! Clones of a directory's snapshots (`dd_clones`): a ZAP in which a clone's dataset stands by its number.

use super::mos::corrupt;
use super::{Result, Tx, deadlist, dir, remaps};
use cenote_format::dmu::DmuType;
use std::collections::HashSet;

/// Type of the ZAP of a directory's clones (`DMU_OT_DSL_CLONES`).
const DIR_CLONES: DmuType = DmuType(52);

/// The ZAP of the clones of a directory's snapshots (`dd_clones`), which is created if need be.
pub(super) fn clones_of(tx: &mut Tx<'_>, dir_obj: u64) -> Result<u64> {
    match tx.dir(dir_obj)?.clones {
        0 => {
            let clones = tx.plain_zap(DIR_CLONES)?;
            tx.edit_dir(dir_obj, |dir| dir.clones = clones)?;
            Ok(clones)
        }
        clones => Ok(clones),
    }
}

/// Removes the key of a destroyed snapshot from the deadlists of clones of later snapshots, and of
/// their clones.
pub(super) fn remove_clones_key(tx: &mut Tx<'_>, dir_obj: u64, key: u64) -> Result<()> {
    let (mut waiting, mut seen) = (vec![dir_obj], HashSet::new());
    while let Some(object) = waiting.pop() {
        if !seen.insert(object) {
            return Err(corrupt(object, "clones of each other"));
        }
        let clones = tx.dir(object)?.clones;
        for clone_obj in tx.zap_numbers(clones)? {
            let clone = tx.dataset(clone_obj)?;
            let dir = tx.dir(clone.dir)?;
            if dir::origin_txg(tx, &dir)? > key {
                deadlist::remove_key(tx, clone.deadlist, key)?;
                remaps::remove_key(tx, clone_obj, key)?;
                waiting.push(clone.dir);
            }
        }
    }
    Ok(())
}
