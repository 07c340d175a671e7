//! What an import is refused for although the pool would do: devices that are there and could not be opened, or not for
//! writing.

use super::Loaded;
use crate::devices::DeviceSet;
use crate::discover::Candidate;
use crate::error::{CUT_OFF, ImportError, Target};
use cenote_vdev::deadline::{self, ask_each};
use cenote_vdev::object::is_by_network;
use cenote_vdev::{VdevState, open_device};
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// Refuses to write to a pool without a device that does not answer: it may have a newer state than all others.
///
/// A device that the search found missing may have another name by now. So any device that did not answer the search
/// may be it.
///
/// # Errors
/// [`ImportError::Silent`].
pub(super) fn heed_silence(
    c: &Candidate,
    devices: &DeviceSet,
    loaded: &Loaded,
    target: Target,
) -> Result<(), ImportError> {
    let mut lost = loaded.store.vdevs().leaves();
    lost.retain(|leaf| matches!(leaf.state(), VdevState::CantOpen(_)));
    if lost.is_empty() {
        return Ok(());
    }
    let at_last_paths = lost.iter().filter_map(|leaf| devices.silent(leaf.guid()));
    let mut paths: Vec<PathBuf> = at_last_paths.chain(c.silent.iter().cloned()).collect();
    paths.sort();
    paths.dedup();
    if paths.is_empty() { Ok(()) } else { Err(ImportError::Silent { target, paths }) }
}

/// Devices that are there, and were not opened because they are write-protected, cut off or not for this user, are
/// not missing.
pub(super) fn refused(c: &Candidate, devices: &DeviceSet, e: ImportError) -> ImportError {
    let (ImportError::MissingDevices { target, vdevs }
    | ImportError::MissingLogs { target, vdevs }) = &e
    else {
        return e;
    };
    let lost: Vec<_> = vdevs.iter().flat_map(|v| &v.devices).collect();
    let known = devices.refused(c.devices.iter().filter_map(|d| d.config.u64("guid")));
    // Of a top-level vdev of which the labels of others tell only that it exists, nothing is known.
    let unknown = vdevs.iter().any(|v| v.guid == 0);
    let of_it = known.iter().filter(|(guid, ..)| unknown || lost.iter().any(|(l, _)| l == guid));
    let mut list: Vec<_> = of_it.map(|(_, path, kind)| (path.clone(), *kind)).collect();
    // Whose label may not be read has no guid; it may be at its last path.
    let unread = lost.iter().filter(|(guid, _)| known.iter().all(|(k, ..)| k != guid));
    list.extend(forbidden(unread.filter_map(|(_, path)| path.clone()).collect()));
    let cut = cut_off(c, devices).into_iter();
    let cut = cut.filter(|(guid, _)| lost.iter().any(|(l, _)| l == guid));
    let cut: Vec<PathBuf> = cut.map(|(_, path)| path).collect();
    // For that they are read-only.
    list.retain(|(path, _)| !cut.contains(path));
    list.extend(cut.into_iter().map(|path| (path, CUT_OFF)));
    match list.is_empty() {
        true => e,
        false => ImportError::Refused { target: target.clone(), devices: list },
    }
}

/// The devices of a pool that was to be written to which are shorter than their vdevs need: images without their ends.
fn cut_off(c: &Candidate, devices: &DeviceSet) -> Vec<(u64, PathBuf)> {
    let root = c.config.list("vdev_tree").filter(|_| devices.writable());
    let Some(tree) = root.and_then(|root| devices.build(root).ok()) else { return Vec::new() };
    let is_short = |guid: u64, size: u64| tree.least_size(guid).is_some_and(|least| size < least);
    let short = c.devices.iter().filter_map(|device| {
        let guid = device.config.u64("guid")?;
        is_short(guid, device.size).then(|| (guid, device.path.clone()))
    });
    short.collect()
}

/// Those of the devices at these paths that are not for this user. A device that does not answer in time is no such one.
fn forbidden(mut paths: Vec<PathBuf>) -> Vec<(PathBuf, ErrorKind)> {
    // What labels say of these is not asked for.
    paths.retain(|path| !is_by_network(path));
    let names = paths.iter().map(|path| vec![path.clone()]).collect();
    let opened = ask_each(names, deadline::answer(), |names| match names.first() {
        Some(path) => open_device(path).map(drop),
        None => Ok(()),
    });
    let denied = |(path, opened): (PathBuf, io::Result<()>)| {
        let kind = opened.err()?.kind();
        (kind == ErrorKind::PermissionDenied).then_some((path, kind))
    };
    paths.into_iter().zip(opened).filter_map(denied).collect()
}
