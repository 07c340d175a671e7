//! What deduplication and block cloning save (`ddt_get_dedup_stats`, `brt_get_used`).
//!
//! How many deduplicated blocks there are with how many references is kept beside the deduplication
//! tables ([`ddt`]) as histograms of 64 buckets by number of references, in the ZAP `DDT-statistics`
//! of the object directory: words blocks, lsize, psize, dsize and the same four multiplied by
//! references. New entries of tables with logs are in no histogram until they are moved to the
//! table's ZAPs, so the entries of the logs are added.
//!
//! The block reference tables ([`brt`]) say what cloning saves.

use crate::ddt_stats::{uncountable, whole_sectors};
use crate::directory::Directory;
use crate::{brt, ddt};
use cenote_dmu::{ObjectSet, Result};
use cenote_vdev::VdevTree;
use std::sync::Arc;

/// What is saved (`brt_get_saved`, `ddt_get_dedup_dspace`). Bytes; with RAID-Z parity taken off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Savings {
    /// Bytes that deduplicated blocks take.
    pub dedup_stored: u64,
    /// Bytes that they would take without deduplication.
    pub dedup_referenced: u64,
    /// Bytes that the tables themselves take.
    pub dedup_tables: u64,
    /// Bytes that cloned blocks take.
    pub clone_stored: u64,
    /// Bytes saved by cloning.
    pub clone_saved: u64,
}

impl Savings {
    /// Bytes saved by deduplication: none, where tables say that less is referenced than stored.
    pub fn dedup_saved(&self) -> u64 {
        self.dedup_referenced.saturating_sub(self.dedup_stored)
    }

    /// Hundredths of the property `dedupratio` (`ddt_get_pool_dedup_ratio`).
    pub fn dedup_ratio(&self) -> u128 {
        ratio(self.dedup_referenced.into(), self.dedup_stored)
    }

    /// Hundredths of the property `bcloneratio` (`brt_get_ratio`).
    pub fn clone_ratio(&self) -> u128 {
        ratio(u128::from(self.clone_stored) + u128::from(self.clone_saved), self.clone_stored)
    }

    pub(crate) fn load(
        mos: &Arc<ObjectSet>,
        directory: &Directory,
        vdevs: &VdevTree,
    ) -> Result<Savings> {
        let mut s = Savings::default();
        if let Some(statistics) = directory.zap_of("DDT-statistics")? {
            for entry in statistics.entries()? {
                s.add_histogram(&entry.value)
                    .ok_or_else(|| uncountable(mos, 0, &String::from_utf8_lossy(&entry.name)))?;
            }
        }
        for table in ddt::load(mos)? {
            let more = |what| move || uncountable(mos, table.directory, what);
            let zaps = table.stored.iter().map(|s| s.object);
            for number in zaps.chain(table.logs.iter().map(|l| l.object)) {
                let used = whole_sectors(mos.object(number)?.dnode().used);
                add(&mut s.dedup_tables, used).ok_or_else(more("what it takes"))?;
            }
            s.add_logs(&table, vdevs).ok_or_else(more("its logs"))?;
        }
        for table in brt::load(mos, vdevs.root().children().len() as u64)? {
            add(&mut s.clone_stored, table.used)
                .and_then(|()| add(&mut s.clone_saved, table.saved))
                .ok_or_else(|| brt::uncountable(mos))?;
        }
        Ok(s)
    }

    fn add_histogram(&mut self, words: &[u64]) -> Option<()> {
        for [_, _, _, dsize, _, _, _, ref_dsize] in words.as_chunks::<8>().0 {
            add(&mut self.dedup_stored, *dsize)?;
            add(&mut self.dedup_referenced, *ref_dsize)?;
        }
        Some(())
    }

    fn add_logs(&mut self, table: &ddt::Table, vdevs: &VdevTree) -> Option<()> {
        for entry in table.logs.iter().flat_map(|log| log.entries.values()) {
            for phys in entry.phys.iter().filter(|phys| phys.birth != 0) {
                let copies = phys.copies(entry.key.is_encrypted());
                let tops = vdevs.root().children();
                let deflated =
                    copies.iter().filter_map(|d| Some(tops.get(d.vdev as usize)?.deflate(d.asize)));
                let stored: u64 = deflated.sum();
                add(&mut self.dedup_stored, stored)?;
                add(&mut self.dedup_referenced, stored.checked_mul(phys.refcount)?)?;
            }
        }
        Some(())
    }
}

/// Adds to a sum of numbers that a disk says; `None`: it would be past all numbers.
fn add(sum: &mut u64, n: u64) -> Option<()> {
    *sum = sum.checked_add(n)?;
    Some(())
}

fn ratio(whole: u128, part: u64) -> u128 {
    // Where nothing is stored nothing is saved.
    (whole * 100).checked_div(part.into()).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios() {
        assert_eq!(Savings::default().dedup_ratio(), 100);
        assert_eq!(ratio(330, 100), 330);
        assert_eq!(ratio(u64::MAX.into(), 1), u128::from(u64::MAX) * 100);
    }
}
