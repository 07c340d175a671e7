//! Dirty time logs: which transaction groups a device missed.
//!
//! A leaf that was offline or absent while the pool was written to has, in its config, `DTL`: the
//! number of a space map in the MOS whose ranges are transaction groups, not offsets. Blocks born
//! in them are not on the device, and what is there instead is old; the vdev tree reads around it.
//!
//! While the pool is written to, what leaves miss anew is added in the same transaction group
//! ([`write_dtls`]): the map is written anew with all of it, as one allocation for each range. A
//! leaf has no map before it misses anything.

use crate::config;
use crate::space_write::CountFeature;
use crate::space_write::map::{Covered, Free, Maps};
use crate::spacemap::{Region, SpaceMap};
use cenote_dmu::write::OpenObjectSet;
use cenote_dmu::{ObjectSet, Result};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::spacemap::Change;
use cenote_store::rangetree::RangeTree;
use cenote_vdev::{Vdev, VdevTree};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of entries that are believed.
const MAX_LENGTH: u64 = 16 << 20;
/// Bytes of a block (`zfs_vdev_dtl_sm_blksz`).
const BLOCK: u64 = 4 << 10;

/// Loads the logs of all leaves into the tree. A log that cannot be read leaves its device as one
/// that cannot be trusted.
pub(crate) fn load_all(mos: &Arc<ObjectSet>, tree: &VdevTree) {
    load_below(mos, tree, tree.root());
}

fn load_below(mos: &Arc<ObjectSet>, tree: &VdevTree, v: &Vdev) {
    let object = config::number(v.config(), "DTL");
    if v.is_leaf() && object != 0 {
        match load(mos, object).map(|missing| tree.set_dtl(v.guid(), missing)) {
            Ok(Ok(())) => (),
            Ok(Err(e)) => tracing::warn!(guid = v.guid(), "dirty time log: {e}"),
            Err(e) => tracing::warn!(guid = v.guid(), "dirty time log: {e}"),
        }
    }
    v.children().iter().for_each(|c| load_below(mos, tree, c));
}

pub(crate) fn load(mos: &Arc<ObjectSet>, object: u64) -> Result<Vec<Range<u64>>> {
    let region = Region { start: 0, size: u64::MAX, shift: 0, max_length: MAX_LENGTH };
    let mut missing = RangeTree::new();
    SpaceMap::open(mos, object, region)?.for_each(&mut |c| {
        missing.clear(c.start, c.end);
        if c.change == Change::Alloc {
            // Cannot overlap: the range was just cleared.
            let _ = missing.add(c.start, c.end);
        }
        Ok(())
    })?;
    Ok(missing.iter().map(|(start, end)| start..end).collect())
}

/// Adds what leaves missed, as `VdevTree::take_missed` has it (taken once or several times), to
/// their logs. `vdev_tree` is the pool's vdev tree as the config has it. Returns whether it was
/// changed, and is to be written: a leaf's log became another object.
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
            Ok(now) if now == object => {}
            Ok(now) => {
                leaf.set("DTL", NvValue::Uint64(now));
                changed = true;
            }
            Err(e) => result = Err(e),
        }
    });
    result.map(|()| changed)
}

/// Adds `txgs` to the log in `object` (0: none yet); the object that it is in then.
fn write(maps: &mut Maps<'_>, object: u64, txgs: &[Range<u64>]) -> cenote_dmu::write::Result<u64> {
    let all = Covered { start: 0, size: u64::MAX, shift: 0 };
    let mut missing = RangeTree::new();
    let mut readable = false;
    if object != 0 {
        match maps.allocated(object, &all, MAX_LENGTH) {
            Ok(known) => (missing, readable) = (known, true),
            Err(e) => {
                tracing::warn!(object, "dirty time log: {e}");
                missing.add(1, maps.txg().saturating_add(1)).unwrap_or_default();
            }
        }
    }
    let known = missing.clone();
    for txgs in txgs.iter().filter(|t| !t.is_empty()) {
        missing.clear(txgs.start, txgs.end);
        // Was just cleared.
        let _ = missing.add(txgs.start, txgs.end);
    }
    if readable && missing == known {
        return Ok(object);
    }
    let object = match maps.header(object) {
        Ok(_) => maps.rewrite(object, BLOCK)?,
        Err(_) => maps.create(BLOCK)?,
    };
    let ranges: Vec<_> = missing.iter().collect();
    maps.append(object, &all, &[(Change::Alloc, &ranges)], Free::Same)?;
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranges of all leaves of a sample pool that have a log.
    fn logs(name: &str) -> (u64, Vec<Vec<Range<u64>>>) {
        let found = crate::discover(&[cenote_testpools::pool(name).dir]);
        let options = crate::ImportOptions { readonly: true, ..Default::default() };
        let pool = crate::Pool::import(&found[0], &options).unwrap();
        let mut out = Vec::new();
        config::for_each_leaf(pool.config().list("vdev_tree").unwrap(), &mut |leaf| {
            if let Some(object) = leaf.u64("DTL") {
                out.push(load(pool.mos(), object).unwrap());
            }
        });
        (pool.uberblock().txg, out)
    }

    #[test]
    fn stale_devices_miss_the_latest_groups() {
        for (name, count) in [("degr", 1), ("degrz", 2), ("mir3", 0)] {
            let (txg, logs) = logs(name);
            assert_eq!(logs.len(), count, "{name}");
            for missing in &logs {
                let last = missing.last().unwrap();
                assert!(last.start > 0 && last.start < last.end, "{name} {missing:?}");
                assert!(last.end <= txg + 1, "{name} {missing:?} {txg}");
            }
        }
        // The two stale members of degrz went at different times.
        let (_, logs) = logs("degrz");
        assert_ne!(logs[0][0].start, logs[1][0].start);
    }
}
