//! Telling devices what is free (`vdev_trim_ranges`, `zio_trim`), and where a top-level vdev's bytes are on a leaf
//! (`vdev_xlate`).
//!
//! What is told is gone: the device may answer with anything where it is read. So the caller knows that no block is
//! there, and lets no block be written there until the call has returned.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::VdevTree;
use crate::device::Device;
use crate::draid;
use crate::queue::{self, LeafWork, Priority};
use crate::state::VdevState;
use crate::threads::{IoPool, Work};
use crate::vacant;
use crate::vdev::{Kind, Vdev};

/// One range of which a device is told.
struct Trim {
    leaf: Arc<Vdev>,
    range: Range<u64>,
    done: io::Result<()>,
}

impl LeafWork for Trim {
    fn leaf(&self) -> &Arc<Vdev> {
        &self.leaf
    }

    fn requests(&self) -> usize {
        1
    }
}

impl Work for Trim {
    fn run(&mut self) {
        let leaf = &self.leaf;
        let tell = |device: &dyn Device, range: Range<u64>| leaf.trim_on(device, &range);
        self.done = vacant::on_device(&self.leaf, &self.range, tell);
        if vacant::has_failed(&self.done) {
            self.leaf.stats.trim_error();
        }
    }
}

impl VdevTree {
    /// Tells the device of `leaf` that nothing is in `range`, bytes of the leaf's allocatable space.
    ///
    /// # Errors
    /// The device does not know how (`Unsupported`), failed, or is not there; the range is not all of its space.
    pub fn trim(&self, leaf: &Arc<Vdev>, range: Range<u64>) -> io::Result<()> {
        tell(&self.pool, leaf, range)
    }
}

/// As [`VdevTree::trim`], of a leaf of any pool.
pub(crate) fn tell(pool: &IoPool, leaf: &Arc<Vdev>, range: Range<u64>) -> io::Result<()> {
    let done = Err(ErrorKind::NotFound.into());
    let trim = Trim { leaf: leaf.clone(), range, done };
    let done = queue::run(pool, Priority::Trim, vec![trim]).pop();
    done.map_or_else(|| Err(io::Error::other("telling the device failed")), |trim| trim.done)
}

impl Vdev {
    /// Whether the device of this leaf can be told what is free (`vdev_has_trim`).
    pub fn can_trim(&self) -> bool {
        self.state() == VdevState::Healthy && self.device().is_some_and(|device| device.can_trim())
    }

    /// Where `range`, bytes of this vdev, is on the leaf `leaf` at or below it; `None`: nowhere, or below dRAID, where it is in
    /// several places, or below RAID-Z that is being expanded, where it moves.
    pub fn range_on(&self, leaf: u64, range: Range<u64>) -> Option<Range<u64>> {
        if self.guid == leaf && self.is_leaf() {
            return (!range.is_empty()).then_some(range);
        }
        if self.kind == Kind::Draid || self.kind == Kind::RaidZ && self.geometry().is_none() {
            return None;
        }
        let below = |child: &Vdev| child.has_leaf(leaf);
        let (column, child) = (0u64..).zip(&self.children).find(|(_, child)| below(child))?;
        let range = match self.geometry() {
            // Sector n is in row n / columns of child n % columns.
            Some(geometry) => {
                let row = |at: u64| {
                    let sector = at >> geometry.ashift;
                    sector.saturating_sub(column).div_ceil(geometry.columns) << geometry.ashift
                };
                row(range.start)..row(range.end)
            }
            None => range,
        };
        child.range_on(leaf, range)
    }

    /// As [`Vdev::range_on`], also below dRAID: all places of the bytes, in ascending order.
    pub fn ranges_on(&self, leaf: u64, range: Range<u64>) -> Vec<Range<u64>> {
        let Some((layout, n, child)) = self.in_draid(leaf) else {
            return self.range_on(leaf, range).into_iter().collect();
        };
        let places = layout.ranges_on(n, range).into_iter();
        places.filter_map(|place| child.range_on(leaf, place)).collect()
    }

    /// The byte of the leaf before which all places are of the first `offset` bytes of this vdev. It grows with `offset`.
    pub fn end_on(&self, leaf: u64, offset: u64) -> u64 {
        let end = |range: Option<Range<u64>>| range.map_or(0, |range| range.end);
        match self.in_draid(leaf) {
            Some((layout, n, child)) => end(child.range_on(leaf, 0..layout.end_on(n, offset))),
            None => end(self.range_on(leaf, 0..offset)),
        }
    }

    /// The layout of this vdev, if it is dRAID, and its child that the leaf is at or below.
    fn in_draid(&self, leaf: u64) -> Option<(&draid::Layout, usize, &Arc<Vdev>)> {
        let layout = self.draid.as_ref()?;
        let (n, child) =
            self.children.iter().enumerate().find(|(_, child)| child.has_leaf(leaf))?;
        Some((layout, n, child))
    }

    fn has_leaf(&self, leaf: u64) -> bool {
        let own = self.guid == leaf && self.is_leaf();
        own || self.children.iter().any(|child| child.has_leaf(leaf))
    }
}

/// Whether a block device can give space back: it can write zeros by doing so.
pub(crate) fn block_device_can(rdev: u64) -> bool {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let device = format!("/sys/dev/block/{major}:{minor}");
    // A partition has the queue of its disk.
    let queues = ["queue", "../queue"].map(|queue| Path::new(&device).join(queue));
    let number = |queue: &Path, name: &str| -> Option<u64> {
        std::fs::read_to_string(queue.join(name)).ok()?.trim().parse().ok()
    };
    let can = |queue: &Path| {
        let [zeroes, discards] = ["write_zeroes_max_bytes", "discard_max_bytes"]
            .map(|name| number(queue, name).is_some_and(|bytes| bytes > 0));
        zeroes && discards
    };
    queues.iter().any(|queue| can(queue))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::nvlist::{NvList, NvValue};

    fn config(kind: &str, guid: u64, pairs: Vec<(&str, NvValue)>) -> NvList {
        let kind = ("type", NvValue::String(kind.into()));
        let all = [kind, ("guid", NvValue::Uint64(guid)), ("ashift", NvValue::Uint64(12))];
        let all = all.into_iter().chain(pairs);
        NvList { pairs: all.map(|(name, value)| (name.to_string(), value)).collect() }
    }

    #[test]
    fn sectors_of_raidz_are_where_columns_are() {
        for (children, nparity) in [(3u64, 1u64), (4, 2), (5, 1)] {
            let leaf = |i| config("file", 100 + i, vec![("id", NvValue::Uint64(i))]);
            let leaves = (0..children).map(leaf).collect();
            let (id, parity) = (NvValue::Uint64(0), NvValue::Uint64(nparity));
            let of_raidz =
                vec![("id", id), ("nparity", parity), ("children", NvValue::NvListArray(leaves))];
            let tops = vec![config("raidz", 7, of_raidz)];
            let root = vec![("id", NvValue::Uint64(0)), ("children", NvValue::NvListArray(tops))];
            let tree = VdevTree::build(&config("root", 1, root), &mut |_, _| None).unwrap();
            let top = tree.top(0).unwrap();
            let sector = |n: u64| n << 12;
            for start in 0..3 * children {
                for end in start..4 * children {
                    for child in 0..children {
                        let rows = (start..end).filter(|n| n % children == child);
                        let rows: Vec<u64> = rows.map(|n| n / children).collect();
                        let expected = rows.first().zip(rows.last());
                        let expected = expected.map(|(a, b)| sector(*a)..sector(*b + 1));
                        let found = top.range_on(100 + child, sector(start)..sector(end));
                        assert_eq!(found, expected, "{start}..{end} on {child} of {children}");
                    }
                }
            }
            assert_eq!(top.range_on(1, 0..4096), None);
        }
    }
}
