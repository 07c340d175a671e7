//! Reading the labels of a device (`vdev_label_read_config`): which of the four are good, and what they say.
//!
//! See [`cenote_format::label`] for the layout. Labels are read and decoded independently: one
//! that cannot be read, fails its checksum or does not decode counts as absent, and a device is
//! only without a label when all four are bad.

use std::io;
use std::path::PathBuf;

use cenote_format::label::{self, Uberblock};
use cenote_format::nvlist::NvList;

use crate::assemble;
use crate::device::{Device, ReadReq};

/// What one device's labels say.
#[derive(Clone, Debug)]
pub struct DeviceLabels {
    /// Path of the device.
    pub path: PathBuf,
    /// Size of the device in bytes.
    pub size: u64,
    /// It has all bytes that its vdev has, as far as is known, and may be written to ([`Device::only_read`]).
    pub whole: bool,
    /// The config of the best label: the one with the highest `txg`, the first of equals.
    pub config: NvList,
    /// The configs of the labels that decoded and passed their checksums.
    pub labels: [Option<NvList>; label::LABELS],
    /// All valid uberblocks with the numbers of their label and slot.
    pub uberblocks: Vec<(usize, usize, Uberblock)>,
}

impl DeviceLabels {
    /// The config that belongs to the uberblock of `txg`: of the good labels that are not newer
    /// the one with the highest `txg`, the first of equals. A label is newer than the newest
    /// uberblock where committing a transaction group was cut short.
    pub fn config_as_of(&self, txg: u64) -> Option<&NvList> {
        let of = |c: &NvList| c.u64("txg").unwrap_or(0);
        let old_enough = self.labels.iter().flatten().filter(|c| of(c) <= txg);
        old_enough.reduce(|a, b| if of(b) > of(a) { b } else { a })
    }
}

/// Reads and checks the four labels (`vdev_label_read_config`). `Ok(None)`: the device carries no ZFS label.
///
/// Errors: when no label could be read at all.
pub fn read_labels(dev: &dyn Device) -> io::Result<Option<DeviceLabels>> {
    let labels = read_configs(dev)?;
    let Some(config) = best_config(&labels).cloned() else { return Ok(None) };
    let tree = config.list("vdev_tree");
    let ashift = tree.and_then(|t| t.u64("ashift")).and_then(|a| u32::try_from(a).ok());
    let uberblocks = read_uberblocks(dev, ashift.unwrap_or(cenote_format::SECTOR_SHIFT));
    let (path, size) = (dev.path().to_path_buf(), dev.size());
    let is_short = assemble::size_of_leaf(&config).is_some_and(|needed| needed > size);
    let whole = !is_short && !dev.only_read();
    Ok(Some(DeviceLabels { path, size, whole, config, labels, uberblocks }))
}

/// The configs of the labels that are good.
pub(crate) fn read_configs(dev: &dyn Device) -> io::Result<[Option<NvList>; label::LABELS]> {
    let mut configs = [const { None }; label::LABELS];
    let mut error = None;
    let mut readable = false;
    for (i, offset, data) in read_parts(dev, label::CONFIG_OFFSET, label::CONFIG_SIZE) {
        match data {
            Ok(data) => {
                readable = true;
                configs[i] = label::decode_config(&data, offset).unwrap_or_else(|error| {
                    tracing::debug!(path = %dev.path().display(), label = i, %error, "bad label");
                    None
                });
            }
            Err(e) => error = Some(e),
        }
    }
    match error {
        Some(e) if !readable => Err(e),
        _ => Ok(configs),
    }
}

/// The config with the highest txg. A spare's or cache device's config has no txg.
pub(crate) fn best_config(configs: &[Option<NvList>]) -> Option<&NvList> {
    let txg = |c: &NvList| c.u64("txg").unwrap_or(0);
    configs.iter().flatten().reduce(|a, b| if txg(b) > txg(a) { b } else { a })
}

/// The uberblocks in the four rings (`vdev_uberblock_load`).
fn read_uberblocks(dev: &dyn Device, ashift: u32) -> Vec<(usize, usize, Uberblock)> {
    let slot_size = label::slot_size(ashift);
    let mut found = Vec::new();
    for (i, offset, ring) in read_parts(dev, label::RING_OFFSET, label::RING_SIZE) {
        let Ok(ring) = ring else { continue };
        for (slot, data) in ring.chunks_exact(slot_size).enumerate() {
            let at = offset + (slot * slot_size) as u64;
            if let Ok(Some(uberblock)) = label::decode_slot(data, at) {
                found.push((i, slot, uberblock));
            }
        }
    }
    found
}

/// Reads `len` bytes at byte `within` of each label: (label, offset on the device, bytes).
pub(crate) fn read_parts(
    dev: &dyn Device,
    within: u64,
    len: usize,
) -> impl Iterator<Item = (usize, u64, io::Result<Vec<u8>>)> {
    let place = |i| Some((i, label::label_offset(dev.size(), i)? + within));
    let places: Vec<(usize, u64)> = (0..label::LABELS).filter_map(place).collect();
    let mut reqs: Vec<ReadReq> = places.iter().map(|(_, at)| ReadReq::new(*at, len)).collect();
    dev.read_batch(&mut reqs);
    places
        .into_iter()
        .zip(reqs)
        .map(|((i, at), req)| (i, at, req.take().map(|bytes| bytes.to_vec())))
}
