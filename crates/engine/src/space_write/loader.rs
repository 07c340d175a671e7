//! Free space of metaslabs for the allocator, out of the last synced MOS (`metaslab_load`,
//! `space_map_load`).
//!
//! The view is an immutable MOS and its txg; loads go on reading the one that they began with
//! while the engine shows a newer one. A load that takes longer than two txgs may find blocks
//! overwritten, since what it reads is not kept for it: then it begins anew with the view of that
//! time. So it does if what it read was flushed to meanwhile (see `unflushed`). A space map is replayed block by block into a bitmap, so that memory is bounded by the
//! metaslab's sectors.

use super::unflushed::{Merged, UnflushedSpace};
use cenote_dmu::{Error, ObjectSet};
use cenote_format::spacemap::{Change, Entry};
use cenote_format::{Bytes, invariant};
use cenote_pool::spacemap::{Region, SpaceMap};
use cenote_store::alloc::{Extent, LoadMetaslab, Loaded, Loading};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Times that a load begins anew.
const MAX_TRIES: usize = 8;

/// The space maps as they are on disk.
#[derive(Clone, Default)]
struct View {
    /// `None`: nothing was ever written.
    mos: Option<Arc<ObjectSet>>,
    txg: u64,
    /// Metaslab array of each vdev, and the txg that creates it.
    arrays: BTreeMap<u64, (u64, u64)>,
}

/// Reads metaslabs; see the module's documentation.
pub struct Loader {
    view: RwLock<Arc<View>>,
    space: Arc<UnflushedSpace>,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader").field("txg", &self.view().txg).finish_non_exhaustive()
    }
}

impl Loader {
    pub(super) fn new(mos: Option<Arc<ObjectSet>>, txg: u64, space: Arc<UnflushedSpace>) -> Loader {
        Loader { view: RwLock::new(Arc::new(View { mos, txg, ..View::default() })), space }
    }

    fn view(&self) -> Arc<View> {
        self.view.read().clone()
    }

    fn change(&self, f: impl FnOnce(&mut View)) {
        let mut shared = self.view.write();
        f(Arc::make_mut(&mut shared));
    }

    /// `txg` is on disk, and `mos` is the MOS that it wrote. To be called before the allocator's
    /// `sync_done` for it.
    pub fn advance(&self, mos: Arc<ObjectSet>, txg: u64) {
        let show = || {
            self.change(|view| (view.mos, view.txg) = (Some(mos), txg));
        };
        self.space.advance(txg, show);
    }

    pub(super) fn add_vdev(&self, vdev: u64, array: u64, since: u64) {
        invariant!(array != 0, "vdev {vdev} has no metaslab array");
        self.change(|view| {
            view.arrays.insert(vdev, (array, since));
        });
    }

    /// A vdev has left, and the pool that is on disk does not have it.
    pub fn remove_vdev(&self, vdev: u64) {
        self.change(|view| {
            view.arrays.remove(&vdev);
        });
    }
}

impl LoadMetaslab for Loader {
    fn load(&self, vdev: u64, metaslab: u64, extent: Extent) -> Result<Loaded, String> {
        let place = (vdev, metaslab);
        let _loading = self.space.loading(place);
        let mut view = self.view();
        for _ in 0..MAX_TRIES {
            let loaded = view.load(vdev, metaslab, extent).and_then(|mut free| {
                let merged = self.space.merge(place, view.txg, &mut free);
                Ok((free, merged.map_err(|e| format!("unflushed changes: {e}"))?))
            });
            let now = self.view();
            match loaded {
                Ok((free, Merged::At(txg))) => return Ok(Loaded { free, txg }),
                Err(e) if now.txg == view.txg => return Err(e),
                Ok((_, Merged::Stale)) | Err(_) => view = now,
            }
        }
        Err("the space map is changed faster than it can be read".into())
    }
}

impl View {
    fn load(&self, vdev: u64, metaslab: u64, extent: Extent) -> Result<Loading, String> {
        let mut free = Loading::new(extent, true).map_err(|e| e.to_string())?;
        let (array, since) =
            self.arrays.get(&vdev).copied().ok_or_else(|| format!("no vdev {vdev}"))?;
        let Some(mos) = self.mos.as_ref().filter(|_| since <= self.txg) else {
            return Ok(free);
        };
        self.replay(mos, array, metaslab, &mut free).map_err(|e| e.to_string())?;
        Ok(free)
    }

    fn replay(
        &self,
        mos: &Arc<ObjectSet>,
        array: u64,
        metaslab: u64,
        free: &mut Loading,
    ) -> cenote_dmu::Result<()> {
        let number = array_entry(mos, array, metaslab)?;
        if number == 0 {
            return Ok(());
        }
        let Extent { start, size, shift } = free.extent();
        let map = SpaceMap::open(mos, number, Region::new(start, size, shift))?;
        // Offsets count sectors of the metaslab, as the bitmap does.
        map.for_each_entry(&mut |entry| {
            let Entry::Range { change, offset, run, .. } = *entry else { return Ok(()) };
            let done = match change {
                Change::Alloc => free.alloc_sectors(offset, run),
                Change::Free => free.free_sectors(offset, run),
            };
            done.map_err(|e| Error::Corrupt {
                objset: mos.id(),
                object: number,
                why: format!("space map: {e}"),
            })
        })
    }
}

/// Integer `index` of an object that is an array; 0 in a hole.
fn array_entry(mos: &Arc<ObjectSet>, array: u64, index: u64) -> cenote_dmu::Result<u64> {
    let object = mos.object(array)?;
    let block_size = object.dnode().block_size.max(8);
    let at = index.saturating_mul(8);
    let Some(block) = object.block(at / block_size)? else { return Ok(0) };
    let data = block.data.bytes();
    let bytes = Bytes::new(&data, block.order, "array of integers");
    bytes.u64((at % block_size) as usize).map_err(|source| Error::Decode {
        objset: mos.id(),
        object: array,
        source,
    })
}
