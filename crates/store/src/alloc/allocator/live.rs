//! What is allocated on disk of a vdev whose addresses are never used twice: an object store is written anew without
//! the rest.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::Allocator;
use crate::rangetree::RangeTree;

/// What is free, by metaslab, as it was looked at first. What is free stays so: it is not allocated again.
#[derive(Default)]
pub struct Dead(BTreeMap<u64, RangeTree>);

impl Allocator {
    /// What is allocated within a range of a vdev in the last group on disk, or was in an earlier one that `dead` is of. Loads
    /// metaslabs.
    ///
    /// # Errors
    /// There is no such vdev, or a metaslab cannot be loaded.
    pub fn live(
        &self,
        vdev: u64,
        range: Range<u64>,
        dead: &mut Dead,
    ) -> Result<Vec<Range<u64>>, String> {
        let layout = self.layout();
        let group = layout.group(vdev).ok_or_else(|| format!("no vdev {vdev}"))?;
        let shift = group.ms_shift();
        let mut live: Vec<Range<u64>> = Vec::new();
        let mut from = range.start;
        while from < range.end {
            let id = from >> shift;
            let end = range.end.min((id + 1) << shift);
            if let Entry::Vacant(unknown) = dead.0.entry(id) {
                let synced = self.synced.load(Ordering::Relaxed);
                let metaslab = group.metaslab_at(from).filter(|_| self.load(vdev, id));
                let free = metaslab.and_then(|metaslab| metaslab.free_after(synced));
                let free =
                    free.ok_or_else(|| format!("vdev {vdev}: metaslab {id} is not loaded"))?;
                unknown.insert(free);
            }
            let mut add = |part: Range<u64>| match live.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ if part.is_empty() => {}
                _ => live.push(part),
            };
            let next = |from: u64| dead.0.get(&id)?.overlap(from, end);
            while from < end
                && let Some((start, until)) = next(from)
            {
                add(from..start.max(from));
                from = until.min(end);
            }
            add(from..end);
            from = end;
        }
        Ok(live)
    }
}
