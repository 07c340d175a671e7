//! Names of datasets and snapshots (`zfs_component_namecheck`): what they may be made of, and how long they may be.

use super::mos::{MAX_DEPTH, corrupt};
use super::{DslWriteError, Result, Tx, directory};
use crate::dir::MAX_NAME;
use crate::{name_of, tunables};

/// Directories within each other that a new one may be in (`zfs_max_dataset_nesting`).
pub(super) fn max_nesting() -> usize {
    usize::try_from(tunables::MAX_DATASET_NESTING.get()).unwrap_or(usize::MAX)
}

/// Whether `name` is one component of a name. Errors: `Invalid`, `TooLong`.
pub(super) fn check(name: &str) -> Result<()> {
    let valid = |c: char| c.is_ascii_alphanumeric() || "-_.: %".contains(c);
    if name.len() > MAX_NAME {
        return Err(DslWriteError::TooLong);
    }
    if name.is_empty() || name == "." || name == ".." || !name.chars().all(valid) {
        return Err(DslWriteError::Invalid(format!("invalid character in name '{name}'")));
    }
    Ok(())
}

/// Bytes of a directory's full name, and how many components it has.
pub(super) fn length(tx: &mut Tx<'_>, dir_obj: u64) -> Result<(usize, usize)> {
    let line = tx.ancestry(dir_obj)?;
    let mut len = tx.pool.len();
    for ((child, _), (_, parent)) in line.iter().zip(line.iter().skip(1)) {
        len += 1 + name_in(tx, parent.children, *child)?.len();
    }
    Ok((len, line.len()))
}

/// The name by which the ZAP `names` has `object`.
pub(super) fn name_in(tx: &mut Tx<'_>, names: u64, object: u64) -> Result<String> {
    let entries = tx.zap_entries(names)?;
    let found = entries.iter().find(|e| e.u64() == Some(object));
    found.map(name_of).ok_or_else(|| corrupt(object, "has no name"))
}

/// Bytes that the longest name of the directory, what is below it and their snapshots is longer
/// than the directory's own, and how many levels there are below.
pub(super) fn longest_below(tx: &mut Tx<'_>, dir_obj: u64) -> Result<(usize, usize)> {
    let (mut longest, mut deepest) = (0, 0);
    let mut waiting = vec![(dir_obj, 0usize, 0usize)];
    while let Some((object, len, depth)) = waiting.pop() {
        if depth > MAX_DEPTH {
            return Err(corrupt(object, "directories within each other"));
        }
        let dir = tx.dir(object)?;
        longest = longest.max(len);
        deepest = deepest.max(depth);
        if dir.head_dataset != 0 {
            let names = tx.dataset(dir.head_dataset)?.snap_names;
            for snapshot in tx.zap_entries(names)? {
                longest = longest.max(len + 1 + snapshot.name.len());
            }
        }
        for child in tx.zap_entries(dir.children)? {
            let len = len + 1 + child.name.len();
            waiting.extend(child.u64().map(|child| (child, len, depth + 1)));
        }
    }
    Ok((longest, deepest))
}

/// Whether a directory of so long a name and so deep may have something of `more` bytes in it.
pub(super) fn fits(len: usize, more: usize) -> Result<()> {
    if len + 1 + more > MAX_NAME { Err(DslWriteError::TooLong) } else { Ok(()) }
}

/// The directory of a full name `pool/a/b`, whose first component is not looked at.
pub(super) fn dir_of(tx: &mut Tx<'_>, name: &str) -> Result<Option<u64>> {
    let mut at = directory::root_dir(tx)?;
    for component in name.split('/').skip(1) {
        match find_child(tx, at, component)? {
            Some(child) => at = child,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

/// The child `name` of a directory.
pub(super) fn find_child(tx: &mut Tx<'_>, dir_obj: u64, name: &str) -> Result<Option<u64>> {
    let children = tx.dir(dir_obj)?.children;
    if children == 0 { Ok(None) } else { tx.zap_number(children, name) }
}
