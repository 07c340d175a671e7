//! Directories (`dsl_dir_phys_t`): the nodes of the tree of datasets.

use super::mos::SMALL_BLOCK;
use super::{Result, Tx, directory, limits, names};
use cenote_dmu::write::NewObject;
use cenote_format::dmu::DmuType;
use cenote_format::dsl::{DD_FLAG_USED_BREAKDOWN, DslDirPhys};
use cenote_format::encode::dsl::DIR_SIZE;

/// The directory of an empty dataset, whose snapshot every dataset starts from that is not a clone.
pub(super) const ORIGIN: &str = "$ORIGIN";

/// A new directory, in its parent and with its name (`dsl_dir_create_sync`).
pub(super) fn create_dir(tx: &mut Tx<'_>, parent: Option<(u64, &str)>) -> Result<u64> {
    let object = tx.mos.allocate(&NewObject {
        bonus_kind: DmuType::DSL_DIR,
        bonus: vec![0; DIR_SIZE],
        ..NewObject::new(DmuType::DSL_DIR, SMALL_BLOCK)
    })?;
    let mut dir = DslDirPhys {
        creation_time: tx.now,
        head_dataset: 0,
        parent: 0,
        origin: 0,
        children: 0,
        used: 0,
        compressed: 0,
        uncompressed: 0,
        quota: 0,
        reserved: 0,
        props: 0,
        deleg: 0,
        flags: DD_FLAG_USED_BREAKDOWN,
        used_breakdown: [0; 5],
        clones: 0,
    };
    if let Some((parent, name)) = parent {
        let children = tx.dir(parent)?.children;
        tx.zap_add(children, name, object)?;
        dir.parent = parent;
        limits::adjust(tx, parent, limits::FILESYSTEMS, 1)?;
    }
    dir.props = tx.plain_zap(DmuType::DSL_PROPS)?;
    dir.children = tx.plain_zap(DmuType::DSL_DIR_CHILD_MAP)?;
    tx.set_dir(object, &dir)?;
    Ok(object)
}

/// The snapshot `$ORIGIN@$ORIGIN`; `None` in pools from before there was one.
pub(super) fn origin_snap(tx: &mut Tx<'_>) -> Result<Option<u64>> {
    let root = directory::root_dir(tx)?;
    let Some(dir) = names::find_child(tx, root, ORIGIN)? else { return Ok(None) };
    let head = tx.dir(dir)?.head_dataset;
    Ok(Some(tx.dataset(head)?.prev_snap))
}

/// The transaction group of the snapshot that a directory's head is a clone of; 0 if it is not a clone
/// (`dd_origin_txg`).
pub(super) fn origin_txg(tx: &mut Tx<'_>, dir: &DslDirPhys) -> Result<u64> {
    if dir.origin == 0 || Some(dir.origin) == origin_snap(tx)? {
        return Ok(0);
    }
    Ok(tx.dataset(dir.origin)?.creation_txg)
}

/// The snapshot that datasets start from which are no clones; `None` in pools from before there was one.
///
/// # Errors
/// The MOS cannot be read.
pub fn empty_snapshot(tx: &mut Tx<'_>) -> Result<Option<u64>> {
    origin_snap(tx)
}
