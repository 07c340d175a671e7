//! Log space maps: changes of free space that metaslabs' own space maps do not have yet.
//!
//! With the feature `log_spacemap` a transaction group appends the changes of all metaslabs to one
//! object, its log space map, and flushes only a few metaslabs: a flushed metaslab's changes go to
//! its own space map. On disk:
//!
//! ```text
//! object directory ── com.delphix:log_spacemap_zap ── ZAP: txg in hexadecimal -> space map
//! vdev's top ZAP ──── com.delphix:ms_unflushed_phys_txgs ── array of 64-bit txgs by metaslab
//! ```
//!
//! A metaslab is flushed before the changes of the flushing transaction group are recorded. So an
//! entry of the log of txg `t` is in the metaslab's own space map already exactly if `t` is less
//! than the metaslab's unflushed txg; the others are its unflushed changes. [`replay`] sorts all
//! entries of all logs into these two, and the unflushed ones, oldest first, to their metaslabs.

use crate::directory::Directory;
use crate::spacemap::{Region, SpaceChange, SpaceMap, max_length};
use cenote_dmu::{Error, ObjectSet, Result};
use cenote_dsl::number_in_name;
use cenote_format::less;
use cenote_format::spacemap::SpaceMapPhys;
use std::sync::Arc;

/// A log space map, after replay.
#[derive(Debug, Clone)]
pub struct LogSpaceMap {
    /// Transaction group that wrote it.
    pub txg: u64,
    /// The space map object.
    pub object: u64,
    /// Its header.
    pub phys: SpaceMapPhys,
    /// Number of ranges in it.
    pub entries: u64,
    /// How many of them are not in a metaslab's own space map.
    pub valid: u64,
}

/// `(txg, space map object)` of every log, oldest first, from the MOS's object directory.
pub(crate) fn list(mos: &Arc<ObjectSet>, directory: &Directory) -> Result<Vec<(u64, u64)>> {
    let Some(zap) = directory.zap_of("com.delphix:log_spacemap_zap")? else {
        return Ok(Vec::new());
    };
    let mut logs = Vec::new();
    for entry in zap.entries()? {
        let (Some(txg), Some(object)) = (number_in_name(&entry), entry.u64()) else {
            let why = format!("log space map {:?}", String::from_utf8_lossy(&entry.name));
            return Err(Error::Corrupt { objset: mos.id(), object: zap.object().number(), why });
        };
        logs.push((txg, object));
    }
    logs.sort_unstable();
    Ok(logs)
}

/// Replays all logs, oldest first. `apply(txg, vdev, change)` takes a change to its metaslab and
/// says whether it was still valid. All logs together may be as long as one map.
pub(crate) fn replay(
    mos: &Arc<ObjectSet>,
    logs: &[(u64, u64)],
    apply: &mut dyn FnMut(u64, u32, SpaceChange) -> Result<bool>,
) -> Result<Vec<LogSpaceMap>> {
    let mut out = Vec::new();
    let mut left = max_length(mos);
    for &(txg, object) in logs {
        let map = SpaceMap::open(mos, object, Region { max_length: left, ..Region::of_log(left) })?;
        let (mut entries, mut valid) = (0, 0);
        map.for_each(&mut |change| {
            let Some(vdev) = change.vdev else {
                let why = "log space map: an entry names no vdev".to_string();
                return Err(Error::Corrupt { objset: mos.id(), object, why });
            };
            entries += 1;
            valid += u64::from(apply(txg, vdev, change)?);
            Ok(())
        })?;
        // One that is longer was refused when it was read.
        left = less!(left, map.phys().length, "bytes that log space maps may have");
        out.push(LogSpaceMap { txg, object, phys: map.phys().clone(), entries, valid });
    }
    Ok(out)
}
