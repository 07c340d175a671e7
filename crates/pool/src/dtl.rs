//! Dirty time logs: which transaction groups a device missed (`vdev_dtl_load`).
//!
//! A leaf that was offline or absent while the pool was written to has, in its config, `DTL`: the
//! number of a space map in the MOS whose ranges are transaction groups, not offsets. Blocks born
//! in them are not on the device, and what is there instead is old; the vdev tree reads around it.
//!
//! The engine writes them: see its `space_write::dtl`.

use crate::config;
use crate::spacemap::{Region, SpaceMap};
use cenote_dmu::{ObjectSet, Result};
use cenote_format::spacemap::Change;
use cenote_store::rangetree::RangeTree;
use cenote_vdev::{Vdev, VdevTree};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of entries that are believed.
pub const MAX_LENGTH: u64 = 16 << 20;

/// Loads the logs of all leaves into the tree. A log that cannot be read leaves its device as one
/// that cannot be trusted.
pub fn load_all(mos: &Arc<ObjectSet>, tree: &VdevTree) {
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

/// The transaction groups that the log in space map `object` has as missed (`vdev_dtl_load`).
///
/// # Errors
/// The space map cannot be read.
pub fn load(mos: &Arc<ObjectSet>, object: u64) -> Result<Vec<Range<u64>>> {
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
