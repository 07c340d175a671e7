//! Space maps in memory, for tests of what allocates.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    AllocatedSize, Allocator, Changes, Class, Extent, LoadMetaslab, Loaded, Loading, MetaslabInfo,
    Options, VdevInfo,
};
use crate::rangetree::RangeTree;

/// The last txg on disk, and what is allocated in each metaslab.
type Disk = (u64, BTreeMap<(u64, u64), RangeTree>);

/// Space maps. What is read of them is what the last txg on disk left, whatever passes of the next one wrote.
#[derive(Default)]
pub(crate) struct Maps {
    disk: Mutex<Disk>,
    /// Changes of the txg that is being written.
    written: Mutex<Vec<Changes>>,
    /// Called in the middle of each load, after the map was read.
    pub pause: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Maps {
    /// Writes the changes of a pass down.
    pub(crate) fn write(&self, changes: &[Changes]) {
        self.written.lock().extend_from_slice(changes);
    }

    pub(crate) fn commit(&self, txg: u64) {
        let mut disk = self.disk.lock();
        for c in self.written.lock().drain(..) {
            let tree = disk.1.entry((c.vdev, c.metaslab)).or_default();
            c.allocs.iter().for_each(|(s, e)| tree.add(*s, *e).unwrap());
            c.frees.iter().for_each(|(s, e)| tree.remove(*s, *e).unwrap());
        }
        disk.0 = txg;
    }

    /// What is allocated in a metaslab.
    pub(crate) fn allocated(&self, vdev: u64, metaslab: u64) -> RangeTree {
        self.disk.lock().1.get(&(vdev, metaslab)).cloned().unwrap_or_default()
    }

    /// Bytes allocated on a vdev.
    pub(crate) fn space(&self, vdev: u64) -> u64 {
        let disk = self.disk.lock();
        disk.1.iter().filter(|((v, _), _)| *v == vdev).map(|(_, t)| t.space()).sum()
    }
}

impl LoadMetaslab for Maps {
    fn load(&self, vdev: u64, metaslab: u64, extent: Extent) -> Result<Loaded, String> {
        let (txg, allocated) = {
            let disk = self.disk.lock();
            (disk.0, disk.1.get(&(vdev, metaslab)).cloned().unwrap_or_default())
        };
        if let Some(pause) = &*self.pause.lock() {
            pause();
        }
        let mut free = Loading::new(extent, true).map_err(|e| e.to_string())?;
        for (start, end) in allocated.iter() {
            free.alloc(start, end).map_err(|e| e.to_string())?;
        }
        Ok(Loaded { free, txg })
    }
}

/// Sectors of `1 << .0` bytes, without parity.
pub(crate) struct Sectors(pub u32);

impl AllocatedSize for Sectors {
    fn psize_to_asize(&self, _: u64, psize: u64, _: u64) -> Option<u64> {
        Some(psize.next_multiple_of(1 << self.0))
    }
}

/// An empty vdev with sectors of 512 bytes.
pub(crate) fn vdev(id: u64, ms_shift: u32, metaslabs: usize) -> VdevInfo {
    let metaslabs = vec![MetaslabInfo::default(); metaslabs];
    VdevInfo {
        id,
        ashift: 9,
        width: 1,
        ms_shift,
        line: 1,
        metaslabs,
        embedded_log: None,
        growing: None,
    }
}

/// The same that keeps this metaslab for intent logs.
pub(crate) fn keeping(kept: usize, info: VdevInfo) -> VdevInfo {
    VdevInfo { embedded_log: Some(kept), ..info }
}

pub(crate) fn allocator(vdevs: &[(Class, VdevInfo)]) -> (Arc<Allocator>, Arc<Maps>) {
    let maps = Arc::new(Maps::default());
    let options = Options { background: false, ..Options::default() };
    let sizes = Arc::new(Sectors(9));
    let allocator = Allocator::new(vdevs, sizes, maps.clone(), options).unwrap();
    (allocator, maps)
}

/// Syncs `txg`.
pub(crate) fn sync(allocator: &Arc<Allocator>, maps: &Maps, txg: u64) -> Vec<Changes> {
    let changes = allocator.take_changes(txg);
    maps.write(&changes);
    maps.commit(txg);
    allocator.sync_done(txg);
    changes
}
