//! Dirty time logs: which transaction groups a device missed.
//!
//! A leaf that was offline or absent while the pool was written to has, in its config, `DTL`: the
//! number of a space map in the MOS whose ranges are transaction groups, not offsets. Blocks born in
//! them are not on the device, and what is there instead is old; the vdev tree reads around it.

use crate::config;
use crate::spacemap::{Region, SpaceMap};
use cenote_dmu::{ObjectSet, Result};
use cenote_format::spacemap::Change;
use cenote_store::rangetree::RangeTree;
use cenote_vdev::{Vdev, VdevTree};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of entries that are believed.
const MAX_LENGTH: u64 = 16 << 20;

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

fn load(mos: &Arc<ObjectSet>, object: u64) -> Result<Vec<Range<u64>>> {
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
