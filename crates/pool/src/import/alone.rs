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
use cenote_vdev::deadline::{self, ask_each};
use cenote_vdev::{Device, DeviceLabels, read_labels};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

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
    if !c.opened.0.is_empty() {
        return false;
    }
    let open = |seen: &DeviceLabels| devices.open(seen.config.u64("guid")?);
    let all: Vec<(&DeviceLabels, Arc<dyn Device>)> =
        c.devices.iter().filter_map(|seen| Some((seen, open(seen)?))).collect();
    // A thread that waits for a device that hangs keeps it only while it reads.
    let by_path: HashMap<PathBuf, Weak<dyn Device>> =
        all.iter().map(|(seen, device)| (seen.path.clone(), Arc::downgrade(device))).collect();
    let read = move |names: &[PathBuf]| {
        let device = names.first().and_then(|name| by_path.get(name)).and_then(Weak::upgrade);
        device.map_or(Err(ErrorKind::NotFound.into()), |device| read_labels(device.as_ref()))
    };
    let places = all.iter().map(|(seen, _)| vec![seen.path.clone()]).collect();
    let now = ask_each(places, deadline::answer(), read);
    all.iter().zip(now).any(|((seen, _), now)| now.is_ok_and(|now| differs(seen, now.as_ref())))
}

/// Whether labels are of another pool than when they were `seen`, or have a better uberblock, or are gone.
fn differs(seen: &DeviceLabels, now: Option<&DeviceLabels>) -> bool {
    let Some(now) = now else { return true };
    let pool = |labels: &DeviceLabels| labels.config.u64("pool_guid");
    let best = |labels: &DeviceLabels| {
        let all = labels.uberblocks.iter().map(|(.., uberblock)| uberblock);
        Uberblock::best(all).map(Uberblock::rank)
    };
    best(now) > best(seen) || pool(now) != pool(seen)
}
