//! What deduplication and block cloning save (`ddt_get_dedup_stats`, `brt_get_used`).
//!
//! How many deduplicated blocks there are with how many references is kept beside the deduplication
//! tables ([`ddt`]) as histograms of 64 buckets by number of references, in the ZAP `DDT-statistics`
//! of the object directory: words blocks, lsize, psize, dsize and the same four multiplied by
//! references. New entries of tables with logs are in no histogram until they are moved to the
//! table's ZAPs, so the entries of the logs are added.
//!
//! The block reference tables ([`brt`]) say what cloning saves.

use crate::directory::Directory;
use crate::{brt, ddt};
use cenote_dmu::zap::Zap;
use cenote_dmu::{ObjectSet, Result};
use cenote_format::SECTOR;
use cenote_vdev::VdevTree;
use std::sync::Arc;

/// What is saved. Bytes; with RAID-Z parity taken off.
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
    /// Bytes saved by deduplication.
    pub fn dedup_saved(&self) -> u64 {
        self.dedup_referenced.saturating_sub(self.dedup_stored)
    }

    /// Hundredths of the property `dedupratio`.
    pub fn dedup_ratio(&self) -> u64 {
        ratio(self.dedup_referenced, self.dedup_stored)
    }

    /// Hundredths of the property `bcloneratio`.
    pub fn clone_ratio(&self) -> u64 {
        ratio(self.clone_stored.saturating_add(self.clone_saved), self.clone_stored)
    }

    pub(crate) fn load(
        mos: &Arc<ObjectSet>,
        directory: &Directory,
        vdevs: &VdevTree,
    ) -> Result<Savings> {
        let mut s = Savings::default();
        if let Some(statistics) = directory.zap_of("DDT-statistics")? {
            s.add_histograms(&statistics)?;
        }
        for table in ddt::load(mos)? {
            s.add_size(mos, &table)?;
            s.add_logs(&table, vdevs);
        }
        for table in brt::load(mos, vdevs.root().children().len() as u64)? {
            add(&mut s.clone_stored, table.used);
            add(&mut s.clone_saved, table.saved);
        }
        Ok(s)
    }

    fn add_histograms(&mut self, zap: &Zap) -> Result<()> {
        for entry in zap.entries()? {
            for bucket in entry.value.chunks_exact(8) {
                if let [_, _, _, dsize, _, _, _, ref_dsize] = *bucket {
                    add(&mut self.dedup_stored, dsize);
                    add(&mut self.dedup_referenced, ref_dsize);
                }
            }
        }
        Ok(())
    }

    fn add_size(&mut self, mos: &Arc<ObjectSet>, table: &ddt::Table) -> Result<()> {
        let zaps = table.stored.iter().map(|s| s.object);
        for number in zaps.chain(table.logs.iter().map(|l| l.object)) {
            let sectors = mos.object(number)?.dnode().used.saturating_add(SECTOR / 2) / SECTOR;
            add(&mut self.dedup_tables, sectors.saturating_mul(SECTOR));
        }
        Ok(())
    }

    fn add_logs(&mut self, table: &ddt::Table, vdevs: &VdevTree) {
        for entry in table.logs.iter().flat_map(|log| log.entries.values()) {
            for phys in entry.phys.iter() {
                let copies = phys.copies(entry.key.is_encrypted());
                let stored = copies.iter().fold(0u64, |sum, dva| {
                    let top = vdevs.root().children().get(dva.vdev as usize);
                    sum.saturating_add(top.map_or(0, |v| v.deflate(dva.asize)))
                });
                add(&mut self.dedup_stored, stored);
                add(&mut self.dedup_referenced, stored.saturating_mul(phys.refcount));
            }
        }
    }
}

fn add(sum: &mut u64, n: u64) {
    *sum = sum.saturating_add(n);
}

fn ratio(whole: u64, part: u64) -> u64 {
    let hundredths = u128::from(whole) * 100;
    hundredths.checked_div(part.into()).map_or(100, |r| u64::try_from(r).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios() {
        assert_eq!(Savings::default().dedup_ratio(), 100);
        assert_eq!(ratio(330, 100), 330);
        assert_eq!(ratio(u64::MAX, 1), u64::MAX);
    }
}
