//! An import that is going to write goes by what the devices have once no other process can write to them.
//!
//! ```text
//! labels, read by a search ── devices, open for this process alone ── labels once more ── as they were: the pool is opened
//!        ^                                                                │ written to meanwhile
//!        └────────────── read anew, as the devices are let go of <────────┘
//! ```
//!
//! A search reads labels beside a process that has the pool. If that one exports it before the devices are taken, the groups that
//! it wrote last are not in what was read: an import by that would go back behind them, and write over them. (OpenZFS reads labels
//! and uberblocks through the vdevs that it has opened: `vdev_uberblock_load`.) Devices that were open already when their labels
//! were read need no second look.
//!
//! Only another host can go on writing to devices that are taken: then the pool is in use.

use super::other_hosts::in_use;
use super::{ImportOptions, Imported, import_taken, take};
use crate::devices::DeviceSet;
use crate::discover::Candidate;
use crate::error::ImportError;
use cenote_format::label::Uberblock;
use cenote_vdev::{DeviceLabels, read_labels};
use std::borrow::Cow;
use std::sync::Arc;

/// How often labels are read anew that are written to each time before the devices are taken.
const MOST_TRIES: u32 = 3;

/// A pool that was imported to be written to.
pub struct Alone<'a> {
    /// The pool as the labels have it that the import went by.
    pub candidate: Cow<'a, Candidate>,
    /// Its devices, for this process alone.
    pub devices: Arc<DeviceSet>,
    /// The pool.
    pub imported: Imported,
}

/// As [`import`](super::import), to write to the pool: see the head of this file. `open` makes the set of a candidate's devices.
///
/// # Errors
/// As of an import; the pool is written to all the while.
pub fn import_alone<'a>(
    c: &'a Candidate,
    open: &dyn Fn(&Candidate) -> DeviceSet,
    o: &ImportOptions,
) -> Result<Alone<'a>, ImportError> {
    let mut candidate = c.read_again()?.map_or(Cow::Borrowed(c), Cow::Owned);
    for _ in 0..MOST_TRIES {
        let devices = open(&candidate);
        let (newest, list) = take(&candidate, &devices, o)?;
        if !is_overtaken(&candidate, &devices) {
            let imported = import_taken(&candidate, &devices, o, (&newest, &list))?;
            return Ok(Alone { candidate, devices: Arc::new(devices), imported });
        }
        drop(devices);
        candidate = Cow::Owned(candidate.read_now()?);
    }
    Err(in_use(&candidate))
}

/// Whether a device of a candidate was written to after its labels were read, or is of another pool by now. One that cannot be read
/// any more says nothing.
fn is_overtaken(c: &Candidate, devices: &DeviceSet) -> bool {
    let changed = |seen: &DeviceLabels| {
        let device = seen.config.u64("guid").and_then(|guid| devices.open(guid))?;
        let Some(now) = read_labels(device.as_ref()).ok()? else { return Some(true) };
        let pool = |labels: &DeviceLabels| labels.config.u64("pool_guid");
        let best = |labels: &DeviceLabels| {
            let all = labels.uberblocks.iter().map(|(.., uberblock)| uberblock);
            Uberblock::best(all).map(Uberblock::rank)
        };
        Some(best(&now) > best(seen) || pool(&now) != pool(seen))
    };
    let open_before = !c.opened.0.is_empty();
    !open_before && c.devices.iter().any(|seen| changed(seen) == Some(true))
}
