//! Obsolete parts of the mappings of removed vdevs: no block pointer refers to them (`vdev_indirect_sync_obsolete`).
//!
//! Each removed vdev has an *obsolete space map*, made when there is the first entry: allocations only, in units
//! of one byte, added to in each pass of a sync. The vdev's top ZAP names it, and it is a use of the feature
//! `obsolete_counts`; without the feature nothing is noted. By it the mapping is made shorter
//! ([`super::mappings`]).

use super::map::{Covered, Free, Maps, feature_uses, zap_u64};
use super::{CountFeature, SpaceMaps, invalid};
use cenote_dmu::write::{OpenObjectSet, Result, ZapMut};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::spacemap::Change;

/// Bytes of a block of such a map (`zfs_vdev_standard_sm_blksz`).
const BLOCK: u64 = 128 << 10;
/// Entry of the top ZAP (`VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM`, `vdev_obsolete_sm_object`).
pub(super) const MAP: &str = "com.delphix:indirect_obsolete_sm";
pub(super) const FEATURE: &str = "com.delphix:obsolete_counts";

/// A removed vdev.
#[derive(Debug, Clone, Copy)]
pub(super) struct Removed {
    /// Bytes that it had.
    pub asize: u64,
    /// Its top ZAP; 0 without one.
    pub top_zap: u64,
}

impl SpaceMaps {
    /// Writes down what became obsolete of removed vdevs in this pass.
    ///
    /// Errors: a vdev that was not removed, or has no such space.
    pub fn sync_obsolete(
        &mut self,
        mos: &mut OpenObjectSet,
        (txg, pass): (u64, u32),
        obsolete: &[(u64, Vec<(u64, u64)>)],
        count: CountFeature<'_>,
    ) -> Result<()> {
        if obsolete.is_empty() || feature_uses(mos, FEATURE)?.is_none() {
            return Ok(());
        }
        let mut maps = Maps::open(mos, txg, pass, count)?;
        for (vdev, ranges) in obsolete {
            let Some(Removed { asize, top_zap }) = self.removed.get(vdev).copied() else {
                return invalid(0, format!("vdev {vdev} was not removed"));
            };
            if top_zap == 0 {
                continue;
            }
            let object = match zap_u64(maps.mos(), top_zap, MAP)? {
                Some(object) => object,
                None => {
                    let object = maps.create(BLOCK)?;
                    let (key, value) = (Key::Name(MAP.as_bytes()), Value::U64(&[object]));
                    ZapMut::open(maps.mos(), top_zap).add(&key, &value)?;
                    maps.count(FEATURE, 1)?;
                    object
                }
            };
            let covered = Covered { start: 0, size: asize, shift: 0 };
            maps.append(object, &covered, &[(Change::Alloc, ranges)], Free::Same)?;
            self.obsolete_grew = true;
        }
        Ok(())
    }
}
