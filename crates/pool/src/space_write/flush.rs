//! Flushing: log space maps that a pool has when it is opened go to the metaslabs' own maps.
//!
//! In the first txg all unflushed changes of all metaslabs are appended to their space maps; then
//! nothing is only in a log any more, and the logs go: the objects, their list in the object
//! directory, the arrays of unflushed txgs in the vdevs' ZAPs, and the use of the feature, which
//! stays enabled. OpenZFS begins to log again by itself.
//!
//! The histograms of the space maps' headers have unflushed changes in them already.

use super::loader::UnflushedChanges;
use super::map::{Covered, DIRECTORY_OBJECT, Free, Maps, zap_u64};
use super::{CountFeature, SpaceMaps, Stats, invalid};
use crate::directory::Directory;
use crate::metaslab::{PoolSpace, Unflushed};
use cenote_dmu::ObjectSet;
use cenote_dmu::write::{OpenObjectSet, Result, ZapMut};
use cenote_format::encode::zap::Key;
use cenote_format::spacemap::Change;
use std::sync::Arc;

const LOGS: &str = "com.delphix:log_spacemap_zap";
const UNFLUSHED_TXGS: &str = "com.delphix:ms_unflushed_phys_txgs";
const FEATURE: &str = "com.delphix:log_spacemap";

/// What is to be flushed.
#[derive(Debug)]
pub(super) struct Logs {
    /// Number of the ZAP that lists the logs; 0 if there is none.
    list: u64,
    /// The logs.
    maps: Vec<u64>,
    /// The changes.
    pub(super) unflushed: Arc<UnflushedChanges>,
    /// Top ZAP and array of unflushed txgs of each vdev that has one.
    arrays: Vec<(u64, u64)>,
    /// Whether the feature is: OpenZFS counts one use however many logs there are.
    active: bool,
}

impl Logs {
    /// What there is; `None` if that is nothing.
    pub(super) fn open(
        space: &PoolSpace,
        mos: &Arc<ObjectSet>,
    ) -> cenote_dmu::Result<Option<Logs>> {
        let list = Directory::open(mos)?.u64(LOGS)?.unwrap_or(0);
        let maps: Vec<u64> = space.logs.iter().map(|log| log.object).collect();
        let with_array = space.vdevs.iter().filter(|v| v.unflushed_object != 0);
        let arrays: Vec<_> = with_array.map(|v| (v.top_zap, v.unflushed_object)).collect();
        let mut unflushed = UnflushedChanges::new();
        for v in &space.vdevs {
            unflushed.extend(v.unflushed.iter().map(|(ms, u)| ((v.id, *ms), u.clone())));
        }
        let unflushed = Arc::new(unflushed);
        let active = space.log_feature.is_some_and(|uses| uses != 0);
        let any = list != 0 || !arrays.is_empty() || active;
        Ok(any.then_some(Logs { list, maps, unflushed, arrays, active }))
    }
}

impl SpaceMaps {
    /// Whether there are log space maps that are not flushed yet.
    pub fn has_logs(&self) -> bool {
        self.logs.is_some()
    }

    /// Flushes the log space maps if there are any; [`sync_changes`](Self::sync_changes) does so
    /// by itself.
    ///
    /// Errors: the changes do not fit the space maps.
    pub fn flush_logs(
        &mut self,
        mos: &mut OpenObjectSet,
        txg: u64,
        pass: u32,
        count: CountFeature<'_>,
    ) -> Result<Stats> {
        let mut stats = Stats::default();
        let Some(logs) = self.logs.take() else { return Ok(stats) };
        let mut maps = Maps::open(mos, txg, pass, count)?;
        for ((vdev, id), unflushed) in &*logs.unflushed {
            let v = self.vdevs.get(vdev);
            let place = v.and_then(|v| Some((v.covered(*id)?, *v.maps.get(*id as usize)?)));
            let Some((covered, object)) = place.filter(|(_, object)| *object != 0) else {
                return invalid(logs.list, format!("vdev {vdev}, metaslab {id}: no space map"));
            };
            stats += flush(&mut maps, object, &covered, unflushed)?;
        }
        for object in &logs.maps {
            maps.free(*object)?;
        }
        if logs.active {
            maps.count(FEATURE, -1)?;
        }
        unlink(maps.mos(), &logs)?;
        stats.maps = stats.maps.max(1);
        self.loader.set_flushed_in(txg);
        Ok(stats)
    }
}

fn flush(
    maps: &mut Maps<'_>,
    object: u64,
    covered: &Covered,
    unflushed: &Unflushed,
) -> Result<Stats> {
    let allocs: Vec<_> = unflushed.allocs.iter().collect();
    let frees: Vec<_> = unflushed.frees.iter().collect();
    if allocs.is_empty() && frees.is_empty() {
        return Ok(Stats::default());
    }
    let changes = [(Change::Alloc, allocs.as_slice()), (Change::Free, frees.as_slice())];
    let bytes = maps.append(object, covered, &changes, Free::Same)?;
    Ok(Stats { maps: 1, bytes, ..Stats::default() })
}

/// Removes what leads to the logs.
fn unlink(mos: &mut OpenObjectSet, logs: &Logs) -> Result<()> {
    for (zap, array) in &logs.arrays {
        ZapMut::open(mos, *zap).remove(&Key::Name(UNFLUSHED_TXGS.as_bytes()))?;
        mos.free(*array)?;
    }
    if logs.list != 0 && zap_u64(mos, DIRECTORY_OBJECT, LOGS)? == Some(logs.list) {
        ZapMut::open(mos, DIRECTORY_OBJECT).remove(&Key::Name(LOGS.as_bytes()))?;
        mos.free(logs.list)?;
    }
    Ok(())
}
