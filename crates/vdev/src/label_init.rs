//! The labels of a device that is taken into a pool or out of one, and whose a device is.
//!
//! A new device gets all four labels at once (`vdev_label_init`), with a config whose `txg` is 0,
//! which says that no transaction group of the pool includes it yet, and an empty ring of uberblocks;
//! committing the first one ([`crate::VdevTree::sync_labels`]) completes them. The first 8 KiB
//! of a label are left alone, the boot environment becomes an empty one.
//!
//! Whose a device is, and which labels there are to clear, is asked of labels that may be
//! damaged: their checksums are not looked at, any config that decodes and names a device and a
//! state counts, as for OpenZFS's tools (`zpool_read_label`, `zpool_clear_label`).

use std::io;

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::checksum::EMBEDDED_SIZE;
use cenote_format::encode::label::encode_label;
use cenote_format::invariant::broken;
use cenote_format::label::{
    self, BOOTENV_OFFSET, CONFIG_OFFSET, LABEL_SIZE, RING_OFFSET, Uberblock,
};
use cenote_format::nvlist::NvList;

use crate::device::{Device, WriteReq};
use crate::labels::read_parts;

/// Bytes of the header of a cache device (`l2arc_dev_hdr_phys_t`), at the start of its space.
const CACHE_HEADER: usize = 512;

/// `pool_state_t`, as far as it is in labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelState {
    /// The pool is imported somewhere, or was not exported.
    Active,
    /// The pool was exported.
    Exported,
    /// The pool was destroyed.
    Destroyed,
    /// The device is a hot spare, of any number of pools.
    Spare,
    /// The device is a cache device.
    Cache,
}

impl LabelState {
    fn from_u64(n: u64) -> Option<LabelState> {
        Some(match n {
            0 => LabelState::Active,
            1 => LabelState::Exported,
            2 => LabelState::Destroyed,
            3 => LabelState::Spare,
            4 => LabelState::Cache,
            _ => return None,
        })
    }

    fn is_aux(self) -> bool {
        matches!(self, LabelState::Spare | LabelState::Cache)
    }
}

/// Whose a device is, as its label says.
#[derive(Clone, Debug)]
pub struct LabelOwner {
    /// The state of the pool.
    pub state: LabelState,
    /// The guid of the device.
    pub guid: u64,
    /// Name of the pool; spares and cache devices have no name.
    pub pool_name: Option<String>,
    /// Guid of the pool; spares and cache devices have no pool guid.
    pub pool_guid: Option<u64>,
    /// The whole config.
    pub config: NvList,
}

impl LabelOwner {
    fn of(config: NvList) -> Option<LabelOwner> {
        let state = LabelState::from_u64(config.u64("state")?)?;
        let guid = config.u64("guid").filter(|g| *g != 0)?;
        let pool_name = config.str("name").map(str::to_string);
        let pool_guid = config.u64("pool_guid");
        Some(LabelOwner { state, guid, pool_name, pool_guid, config })
    }

    /// Whether a new pool may take the device only by force: it belongs to one that is exported
    /// or potentially active. Whether that one is active, or uses the spare or cache device, only
    /// code that knows the imported pools can tell; it must not be taken then.
    pub fn needs_force(&self) -> bool {
        matches!(self.state, LabelState::Active | LabelState::Exported)
    }
}

/// Whose a device is (`vdev_inuse`): what the first label says that is part of a pool. `None`: no pool's.
///
/// Errors: when no label could be read at all.
pub fn label_owner(dev: &dyn Device) -> io::Result<Option<LabelOwner>> {
    let in_pool = |o: &LabelOwner| o.state.is_aux() || o.config.u64("txg").unwrap_or(0) != 0;
    Ok(owners(dev)?.into_iter().map(|(_, o)| o).find(in_pool))
}

/// What all labels of a device say, damaged ones and those of devices that never joined a pool as well.
///
/// # Errors
/// No label could be read at all.
pub fn all_owners(dev: &dyn Device) -> io::Result<Vec<LabelOwner>> {
    Ok(owners(dev)?.into_iter().map(|(_, owner)| owner).collect())
}

/// What the labels say, with the offset of each on the device; damaged ones too.
fn owners(dev: &dyn Device) -> io::Result<Vec<(u64, LabelOwner)>> {
    let (mut found, mut error, mut readable) = (Vec::new(), None, false);
    for (_, at, data) in read_parts(dev, CONFIG_OFFSET, label::CONFIG_SIZE) {
        match data {
            Ok(data) => {
                readable = true;
                let packed = data.get(..label::CONFIG_SIZE - EMBEDDED_SIZE).unwrap_or_default();
                let owner = NvList::decode(packed).ok().and_then(LabelOwner::of);
                found.extend(owner.map(|o| (at - CONFIG_OFFSET, o)));
            }
            Err(e) => error = Some(e),
        }
    }
    match error {
        Some(e) if !readable => Err(e),
        _ => Ok(found),
    }
}

/// Writes all labels of a device that is taken into a pool. `config` is the whole config of this
/// device's labels, with its `guid` and `top_guid`, a `txg` of 0 and the `create_txg`; for a spare or
/// cache device the short config that those have.
///
/// Durable when it returns `Ok`. Errors: errors of writing, and `InvalidInput` if the device is too
/// small for labels or the config is too large for one.
pub fn init_labels(dev: &dyn Device, config: &NvList) -> io::Result<()> {
    write_parts(dev, &encode_all(dev, config, None, 0)?, BOOTENV_OFFSET, LABEL_SIZE)
}

/// Has the labels of a device that holds the state of a pool say that it is of another pool, with the one uberblock that leads to
/// that. `config` is the whole config of this device's labels; slots of uberblocks have the size for this `ashift`. Boot
/// environments stay.
///
/// No ring has the uberblock before all configs are durable: a device whose configs are the old pool's, in part or all of them, has
/// that pool's rings. Durable when it returns `Ok`. Errors: as for [`init_labels`].
pub fn rewrite_labels(
    dev: &dyn Device,
    config: &NvList,
    uberblock: &Uberblock,
    ashift: u32,
) -> io::Result<()> {
    let labels = encode_all(dev, config, Some(uberblock), ashift)?;
    write_parts(dev, &labels, CONFIG_OFFSET, RING_OFFSET)?;
    write_parts(dev, &labels, RING_OFFSET, LABEL_SIZE)
}

/// All labels of a device as they were, to be put back.
pub struct SavedLabels(Vec<(u64, Vec<u8>)>);

impl SavedLabels {
    /// Reads the labels. Errors: one of them cannot be read.
    pub fn read(dev: &dyn Device) -> io::Result<SavedLabels> {
        let labels = read_parts(dev, 0, LABEL_SIZE as usize);
        let whole = |(_, at, bytes): (usize, u64, io::Result<Vec<u8>>)| match bytes {
            Ok(bytes) if bytes.len() as u64 == LABEL_SIZE => Ok((at, bytes)),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(e) => Err(e),
        };
        labels.map(whole).collect::<io::Result<_>>().map(SavedLabels)
    }

    /// Undoes [`rewrite_labels`], in the reverse order. Durable when it returns `Ok`. Errors: errors of writing.
    pub fn put_back(&self, dev: &dyn Device) -> io::Result<()> {
        write_parts(dev, &self.0, RING_OFFSET, LABEL_SIZE)?;
        write_parts(dev, &self.0, CONFIG_OFFSET, RING_OFFSET)
    }
}

/// The labels of a device with their places.
fn encode_all(
    dev: &dyn Device,
    config: &NvList,
    uberblock: Option<&Uberblock>,
    ashift: u32,
) -> io::Result<Vec<(u64, Vec<u8>)>> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let encode = |l: usize| {
        let at = label::label_offset(dev.size(), l);
        let at = at.ok_or_else(|| invalid("the device is too small".into()))?;
        let label = encode_label(config, uberblock, ashift, at);
        Ok((at, label.map_err(|e| invalid(e.to_string()))?))
    };
    (0..label::LABELS).map(encode).collect()
}

/// Writes the bytes from `start` to `end` of each label.
fn write_parts(
    dev: &dyn Device,
    labels: &[(u64, Vec<u8>)],
    start: u64,
    end: u64,
) -> io::Result<()> {
    let part = |(at, label): &(u64, Vec<u8>)| {
        let Some(part) = label.get(start as usize..end as usize) else {
            broken(format_args!("a label of {} bytes is written up to {end}", label.len()))
        };
        WriteReq::new(at + start, Abd::from_vec(part.to_vec()))
    };
    write_all(dev, labels.iter().map(part).collect())
}

/// Clears every label that decodes: its config and uberblocks become zeros, so that neither
/// OpenZFS nor others (`blkid`) take the device for part of a pool; the header of a cache device
/// too. Returns how many were cleared. Durable when it returns.
///
/// Errors: when no label could be read or one that is there could not be cleared.
pub fn clear_labels(dev: &dyn Device) -> io::Result<usize> {
    if let Some(growing) = dev.growing() {
        // Without its labels the rest would be of no use.
        return growing.erase().map(usize::from);
    }
    clear(dev, &owners(dev)?)
}

/// As [`clear_labels`], of the device with this guid, unless there is another device by now.
///
/// Errors: as there; a label has another guid, and none was cleared.
pub fn clear_labels_of(dev: &dyn Device, guid: u64) -> io::Result<usize> {
    let owners = owners(dev)?;
    if owners.iter().any(|(_, owner)| owner.guid != guid) {
        return Err(io::Error::other("it is another device by now"));
    }
    clear(dev, &owners)
}

fn clear(dev: &dyn Device, owners: &[(u64, LabelOwner)]) -> io::Result<usize> {
    let blank = Abd::from_vec(vec![0; (LABEL_SIZE - CONFIG_OFFSET) as usize]);
    let clear = |(at, _): &(u64, LabelOwner)| WriteReq::new(at + CONFIG_OFFSET, blank.clone());
    let mut reqs: Vec<WriteReq> = owners.iter().map(clear).collect();
    if owners.iter().any(|(_, o)| o.state == LabelState::Cache) {
        reqs.push(WriteReq::new(LABEL_START, Abd::from_vec(vec![0; CACHE_HEADER])));
    }
    if !reqs.is_empty() {
        write_all(dev, reqs)?;
    }
    Ok(owners.len())
}

fn write_all(dev: &dyn Device, mut reqs: Vec<WriteReq>) -> io::Result<()> {
    dev.write_batch(&mut reqs);
    reqs.into_iter().try_for_each(WriteReq::take)?;
    dev.flush()
}
