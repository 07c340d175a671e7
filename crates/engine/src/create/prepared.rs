//! What was opened to become part of a pool: the devices by their guids, and the config that they are to have.

use super::devices::OpenDevices;
use cenote_format::label::LABEL_SIZE;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::config;
use cenote_vdev::{Device, FindDevice, VdevError, VdevTree};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Devices that were opened, and what the config says of them.
pub struct Prepared {
    /// Guid of the pool.
    pub pool_guid: u64,
    /// The root with all its vdevs: those there are already, then the new ones, which have no ZAPs
    /// and no metaslab array yet. New vdevs with a class have it noted as `alloc_bias`.
    pub root: NvList,
    /// Ids of the new top-level vdevs.
    pub new_tops: Vec<u64>,
    /// The spares, as the MOS lists them; only the new ones.
    pub spares: Vec<NvList>,
    /// The cache devices; only the new ones.
    pub caches: Vec<NvList>,
    pub(super) devices: HashMap<u64, Arc<dyn Device>>,
    /// The new spares, opened for reading: they are shared with other pools.
    pub(super) shared: HashMap<u64, Arc<dyn Device>>,
    /// Transaction group that creates them.
    pub(super) txg: u64,
}

impl Prepared {
    /// The device of a new leaf, spare or cache device, by its guid. A spare that another pool has
    /// too is not opened for writing.
    pub fn device(&self, guid: u64) -> Option<Arc<dyn Device>> {
        self.devices.get(&guid).cloned()
    }

    /// Deletes what a pool that was refused late has put into an object store: no pool is left that could be destroyed.
    pub(crate) fn erase_objects(&self) {
        for growing in self.devices.values().filter_map(|device| device.growing()) {
            if let Err(why) = growing.erase() {
                tracing::warn!("objects of a pool that was not made are left: {why}");
            }
        }
    }

    /// The transaction group that creates the vdevs is another one than was thought.
    pub(crate) fn set_txg(&mut self, txg: u64) {
        fn set(vdev: &mut NvList, txg: u64) {
            if vdev.contains("create_txg") {
                vdev.set("create_txg", NvValue::Uint64(txg));
            }
            let children = vdev.pairs.iter_mut().find(|(name, _)| name == "children");
            if let Some((_, NvValue::NvListArray(children))) = children {
                children.iter_mut().for_each(|c| set(c, txg));
            }
        }
        self.txg = txg;
        let tops = self.root.pairs.iter_mut().find(|(name, _)| name == "children");
        if let Some((_, NvValue::NvListArray(tops))) = tops {
            let new = |t: &&mut NvList| self.new_tops.contains(&config::number(t, "id"));
            tops.iter_mut().filter(new).for_each(|top| set(top, txg));
        }
    }

    /// All new devices, by guid, with their paths, as the pool is to have them from now on: spares
    /// for reading only.
    pub fn devices(&self) -> impl Iterator<Item = (u64, PathBuf, Arc<dyn Device>)> {
        let own = self.devices.iter().filter(|(guid, _)| !self.shared.contains_key(*guid));
        let all = own.chain(&self.shared);
        all.map(|(guid, device)| (*guid, device.path().into(), device.clone()))
    }

    /// The tree of a new pool over its devices. They must have their labels: see
    /// [`write_labels`](super::write_labels). When adding, `existing` finds the devices that the
    /// pool has.
    ///
    /// # Errors
    /// See [`VdevTree::build`].
    pub fn tree(&self, existing: FindDevice<'_>) -> Result<Arc<VdevTree>, VdevError> {
        VdevTree::build(&self.root, &mut |guid, leaf| {
            self.device(guid).or_else(|| existing(guid, leaf))
        })
    }
}

/// A device that is to join a vdev that the pool has.
pub struct NewDevice {
    /// What its config says of itself: type, guid, path, whether it is a spare.
    pub leaf: NvList,
    /// The device.
    pub device: Arc<dyn Device>,
    /// log2 of the bytes that the top-level vdev must read and write at least.
    pub ashift: u64,
}

impl NewDevice {
    /// The same, with what `asked` and the device's logical sectors demand of the top-level vdev: one that is there already
    /// need not have sectors as large as the device would rather have (`vdev_attaching`).
    pub fn for_sectors(self, devices: &dyn OpenDevices, asked: u64) -> NewDevice {
        let found = devices.find(self.device.path());
        let ashift = found.map_or(self.ashift, |(_, facts)| facts.logical_shift.max(asked));
        NewDevice { ashift, ..self }
    }

    /// Bytes, in whole labels.
    pub fn size(&self) -> u64 {
        self.device.size() / LABEL_SIZE * LABEL_SIZE
    }
}

impl Prepared {
    /// The single device of what was prepared, to join a vdev instead of being one; `None`: it is not a single one.
    pub fn into_single(self) -> Option<NewDevice> {
        let [id] = self.new_tops.as_slice() else { return None };
        let top = config::children(&self.root).get(usize::try_from(*id).ok()?)?;
        let device = self.device(config::number(top, "guid"))?;
        let mut leaf = top.clone();
        let own = ["type", "guid", "path", "whole_disk"];
        leaf.pairs.retain(|(name, _)| own.contains(&name.as_str()));
        Some(NewDevice { leaf, device, ashift: config::number(top, "ashift") })
    }
}
