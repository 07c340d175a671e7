//! Dirty time logs, written (`vdev_dtl_sync`).
//!
//! While the pool is written to, what leaves miss anew is added in the same transaction group
//! ([`write_dtls`]): the map is written anew with all of it, as one allocation for each range. A
//! leaf has no map before it misses anything. Their form on disk: [`cenote_pool::dtl`].

use super::CountFeature;
use super::map::{Covered, Free, Maps};
use cenote_dmu::write::OpenObjectSet;
use cenote_format::invariant;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::spacemap::Change;
use cenote_pool::config;
use cenote_pool::dtl::MAX_LENGTH;
use cenote_store::rangetree::RangeTree;
use std::ops::Range;

/// Bytes of a block (`zfs_vdev_dtl_sm_blksz`).
const BLOCK: u64 = 4 << 10;

/// Adds what leaves missed, as `VdevTree::take_missed` has it (taken once or several times), to
/// their logs. `vdev_tree` is the pool's vdev tree as the config has it. Returns whether it was
/// changed, and must be written: a leaf's log became another object.
///
/// Calling it in every pass is fine: what is in a log already is not written again.
///
/// Errors: the MOS cannot be changed. A log that cannot be read is replaced by one that has all of
/// the pool's life.
pub fn write_dtls(
    mos: &mut OpenObjectSet,
    txg: u64,
    pass: u32,
    vdev_tree: &mut NvList,
    missed: &[(u64, Vec<Range<u64>>)],
    count: CountFeature<'_>,
) -> cenote_dmu::write::Result<bool> {
    if missed.is_empty() {
        return Ok(false);
    }
    let mut maps = Maps::open(mos, txg, pass, count)?;
    let (mut changed, mut result) = (false, Ok(()));
    config::for_each_leaf_mut(vdev_tree, &mut |leaf| {
        let guid = config::number(leaf, "guid");
        let txgs = missed.iter().filter(|(g, _)| *g == guid).flat_map(|(_, txgs)| txgs.clone());
        let txgs: Vec<Range<u64>> = txgs.collect();
        if txgs.is_empty() || result.is_err() {
            return;
        }
        let object = config::number(leaf, "DTL");
        match write(&mut maps, object, &txgs) {
            Ok(now) => changed |= set_log(leaf, now),
            Err(e) => result = Err(e),
        }
    });
    result.map(|()| changed)
}

/// Writes anew the logs of leaves that were given what they missed: these, by guid, lack only these groups now
/// (`vdev_dtl_reassess`). Returns whether `vdev_tree`, the pool's vdev tree, was changed.
///
/// Errors: the MOS cannot be changed.
pub fn rewrite_dtls(
    mos: &mut OpenObjectSet,
    txg: u64,
    vdev_tree: &mut NvList,
    now: &[(u64, Vec<Range<u64>>)],
    count: CountFeature<'_>,
) -> cenote_dmu::write::Result<bool> {
    let mut maps = Maps::open(mos, txg, 1, count)?;
    let (mut changed, mut result) = (false, Ok(()));
    config::for_each_leaf_mut(vdev_tree, &mut |leaf| {
        let (guid, object) = (config::number(leaf, "guid"), config::number(leaf, "DTL"));
        let lacks = now.iter().find(|(g, _)| *g == guid);
        let Some((_, lacks)) = lacks.filter(|_| object != 0 && result.is_ok()) else { return };
        let ranges: Vec<_> = lacks.iter().map(|txgs| (txgs.start, txgs.end)).collect();
        match replace(&mut maps, object, &ranges) {
            Ok(now) => changed |= set_log(leaf, now),
            Err(e) => result = Err(e),
        }
    });
    result.map(|()| changed)
}

/// The log of a leaf is in this object. Returns whether that is news.
fn set_log(leaf: &mut NvList, object: u64) -> bool {
    let is_new = config::number(leaf, "DTL") != object;
    if is_new {
        leaf.set("DTL", NvValue::Uint64(object));
    }
    is_new
}

/// Writes a log anew; the object that it is in then.
fn replace(
    maps: &mut Maps<'_>,
    object: u64,
    missing: &[(u64, u64)],
) -> cenote_dmu::write::Result<u64> {
    let all = Covered { start: 0, size: u64::MAX, shift: 0 };
    let object = match maps.header(object) {
        Ok(_) => maps.rewrite(object, BLOCK)?,
        Err(_) => maps.create(BLOCK)?,
    };
    maps.append(object, &all, &[(Change::Alloc, missing)], Free::Same)?;
    Ok(object)
}

/// Adds `txgs` to the log in `object` (0: it has no object yet); the object that it is in then.
fn write(maps: &mut Maps<'_>, object: u64, txgs: &[Range<u64>]) -> cenote_dmu::write::Result<u64> {
    let all = Covered { start: 0, size: u64::MAX, shift: 0 };
    let mut missing = RangeTree::new();
    let mut readable = false;
    if object != 0 {
        match maps.allocated(object, &all, MAX_LENGTH) {
            Ok(known) => (missing, readable) = (known, true),
            Err(e) => {
                tracing::warn!(object, "dirty time log: {e}");
                let (missed, txg) = (missing.add(1, maps.txg() + 1), maps.txg());
                invariant!(missed.is_ok(), "all groups up to {txg} are not missing: {missed:?}");
            }
        }
    }
    let known = missing.clone();
    for txgs in txgs.iter().filter(|t| !t.is_empty()) {
        missing.clear(txgs.start, txgs.end);
        // Was just cleared.
        let added = missing.add(txgs.start, txgs.end);
        invariant!(added.is_ok(), "dirty time log {object}: {txgs:?} cannot be added: {added:?}");
    }
    let (had, has) = (known.space(), missing.space());
    invariant!(had <= has, "dirty time log {object}: {has} groups of {had} when some were missed");
    if readable && missing == known {
        return Ok(object);
    }
    let ranges: Vec<_> = missing.iter().collect();
    replace(maps, object, &ranges)
}
