//! What a top-level vdev has in the MOS: ZAPs for it and its leaves, and a metaslab array
//! (`vdev_construct_zaps`, `vdev_metaslab_init`). It is made when the vdev joins, and freed when it leaves.
//!
//! All ZAPs of vdevs are entries of one list of the MOS, by which they are found again. A vdev that grows gets a longer
//! array; whether that may be is asked before anything is changed. What a vdev that leaves has is freed first, and the vdev is
//! forgotten once it is sure that it leaves.

use super::map::{DIRECTORY_OBJECT, Maps, zap_u64};
use super::{CountFeature, SpaceMaps, VdevMaps, invalid};
use cenote_dmu::outside::Chance;
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{NewObject, OpenObjectSet, Result, WriteError, ZapMut};
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::features::OBJECT_VDEV;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::{SECTOR, invariant};
use cenote_pool::config;
use cenote_store::alloc::Class;
use cenote_vdev::draid;

/// `DMU_OTN_ZAP_METADATA`: metadata of no type of its own, a ZAP.
const ZAP_METADATA: DmuType = DmuType(0xc4);
/// In the object directory: all vdevs' ZAPs, each under its own number.
const ALL_ZAPS: &str = "com.delphix:vdev_zap_map";
/// In the ZAP of a vdev: since when its metaslabs have changes in logs (`VDEV_TOP_ZAP_MS_UNFLUSHED_PHYS_TXGS`).
pub(super) const UNFLUSHED_TXGS: &str = "com.delphix:ms_unflushed_phys_txgs";
const BIAS: &str = "org.zfsonlinux:allocation_bias";
const CLASSES: &str = "org.zfsonlinux:allocation_classes";
/// The feature of dRAID vdevs.
const DRAID: &str = "org.openzfs:draid";
/// Largest block of a metaslab array.
const MAX_ARRAY_BLOCK: u64 = 16 << 10;
/// Most metaslabs; no plan has as many.
const MAX_METASLABS: u64 = 1 << 20;

impl SpaceMaps {
    /// Creates in the pending MOS what a new top-level vdev needs, and enters the numbers into its
    /// `config`, which has `id`, `ashift`, `asize` and `metaslab_shift` (see
    /// [`plan`](super::plan())); its class is `alloc_bias`, or follows from `is_log`. The caller
    /// writes the config, without `alloc_bias`, which is kept in the ZAP. The vdev can be allocated
    /// from as soon as `txg` is on disk, in a new pool at once.
    ///
    /// Errors: the config makes no sense, or there is such a vdev already.
    pub fn init_vdev(
        &mut self,
        mos: &mut OpenObjectSet,
        txg: u64,
        config: &mut NvList,
        count: CountFeature<'_>,
    ) -> Result<()> {
        let shift = |name| u32::try_from(config::number(config, name)).unwrap_or(u32::MAX);
        let (id, ashift) = (config::number(config, "id"), shift("ashift"));
        let (asize, ms_shift) = (config::number(config, "asize"), shift("metaslab_shift"));
        let metaslabs = asize.checked_shr(ms_shift).unwrap_or(0);
        let sound = (9..=16).contains(&ashift) && (1..=MAX_METASLABS).contains(&metaslabs);
        if !sound || self.vdevs.contains_key(&id) {
            return invalid(0, format!("vdev {id}: {asize} bytes, ashift {ashift}, {ms_shift}"));
        }
        let bias = match (config.str("alloc_bias"), config::flag(config, "is_log")) {
            (None, true) => Some("log"),
            (bias, _) => bias,
        };
        let class = match bias {
            None => Class::Normal,
            Some("log") => Class::Log,
            Some("special") => Class::Special,
            Some("dedup") => Class::Dedup,
            Some(other) => return invalid(0, format!("vdev {id}: class {other:?}")),
        };
        let top = linked_zap(mos, &self.chance)?;
        if let Some(bias) = bias {
            // A C string.
            let text = [bias.as_bytes(), b"\0"].concat();
            ZapMut::open(mos, top).add(&Key::Name(BIAS.as_bytes()), &Value::U8(&text))?;
        }
        if matches!(class, Class::Special | Class::Dedup) {
            count(mos, CLASSES, 1)?;
        }
        if config.str("type") == Some("draid") {
            count(mos, DRAID, 1)?;
        }
        if config.str("type") == Some("object") {
            count(mos, OBJECT_VDEV.guid, 1)?;
        }
        self.give_leaves_zaps(mos, config)?;
        let block =
            (metaslabs.saturating_mul(8)).next_power_of_two().clamp(SECTOR, MAX_ARRAY_BLOCK);
        let array = mos.allocate(&NewObject::new(DmuType::OBJECT_ARRAY, block))?;
        config.set("com.delphix:vdev_zap_top", NvValue::Uint64(top));
        config.set("metaslab_array", NvValue::Uint64(array));
        let maps = vec![0; metaslabs as usize];
        self.loader.add_vdev(id, array, txg);
        let (top_zap, unflushed, checkpoint) = (top, 0, 0);
        let line = draid::line_of(config);
        let v =
            VdevMaps { class, ashift, ms_shift, line, array, maps, top_zap, unflushed, checkpoint };
        self.vdevs.insert(id, v);
        Ok(())
    }
}

impl SpaceMaps {
    /// Gives the vdevs of a pool from before vdevs had ZAPs theirs (`vdev_construct_zaps`), and enters their numbers into
    /// the tree. Whether the pool was such a pool.
    ///
    /// Errors: the MOS cannot be read or changed.
    pub(crate) fn adopt_vdevs(
        &mut self,
        mos: &mut OpenObjectSet,
        vdev_tree: &mut NvList,
    ) -> Result<bool> {
        if zap_u64(mos, DIRECTORY_OBJECT, ALL_ZAPS)?.is_some() {
            return Ok(false);
        }
        let children = vdev_tree.pairs.iter_mut().find(|(name, _)| name == "children");
        let Some((_, NvValue::NvListArray(tops))) = children else { return Ok(false) };
        for (id, top) in (0..).zip(tops) {
            if matches!(top.str("type"), Some("hole" | "missing")) {
                continue;
            }
            let zap = linked_zap(mos, &self.chance)?;
            if let Some(vdev) = self.vdevs.get_mut(&id) {
                vdev.top_zap = zap;
            }
            self.give_leaves_zaps(mos, top)?;
            config::set(top, "com.delphix:vdev_zap_top", NvValue::Uint64(zap));
        }
        Ok(true)
    }

    /// Gives each leaf below a vdev a ZAP.
    fn give_leaves_zaps(&self, mos: &mut OpenObjectSet, vdev: &mut NvList) -> Result<()> {
        let mut made = Ok(());
        config::for_each_leaf_mut(vdev, &mut |leaf| {
            if made.is_ok() {
                made = linked_zap(mos, &self.chance).map(|zap| {
                    config::set(leaf, "com.delphix:vdev_zap_leaf", NvValue::Uint64(zap));
                });
            }
        });
        made
    }

    /// A vdev has grown to `asize` bytes: makes room in the pending MOS for the numbers of more space maps
    /// (`vdev_metaslab_init`). Returns how many metaslabs there are more, which can be allocated from as soon as this group
    /// is on disk.
    ///
    /// Errors: there is no such vdev, or it would have too many metaslabs; the change that is under way cannot be kept
    /// ([`OpenObjectSet::check_change`]). Then nothing here is changed.
    pub fn grow_vdev(&mut self, mos: &mut OpenObjectSet, vdev: u64, asize: u64) -> Result<usize> {
        let Some(v) = self.vdevs.get_mut(&vdev) else {
            return invalid(0, format!("no vdev {vdev}"));
        };
        let count = asize.checked_shr(v.ms_shift).unwrap_or(0);
        let Some(more) = count.checked_sub(v.maps.len() as u64).filter(|_| count <= MAX_METASLABS)
        else {
            return invalid(v.array, format!("vdev {vdev}: {asize} bytes, {}", v.ms_shift));
        };
        if let Some(last) = count.checked_sub(1).filter(|_| more > 0) {
            for array in [v.array, v.unflushed].into_iter().filter(|array| *array != 0) {
                mos.write(array, last * 8, &0u64.to_le_bytes())?;
            }
        }
        mos.check_change()?;
        let more = more as usize;
        v.maps.resize(v.maps.len() + more, 0);
        Ok(more)
    }
}

impl SpaceMaps {
    /// Frees in the pending MOS what it has of a top-level vdev that leaves, of which nothing is allocated: space maps and
    /// the arrays of them, ZAPs, what its leaves missed (`vdev_remove_empty`, `vdev_destroy_spacemaps`). What logs say of
    /// it stays in them: nothing of a hole is looked for. Once it is sure that the vdev leaves,
    /// [`SpaceMaps::forget_vdev`] is to be called. `leaves_mapping`: its own ZAP stays, for the mapping that it leaves.
    ///
    /// Errors: there is no such vdev, or the MOS cannot be changed.
    pub fn free_vdev(
        &self,
        mos: &mut OpenObjectSet,
        txg: u64,
        (vdev, config, leaves_mapping): (u64, &mut NvList, bool),
        count: CountFeature<'_>,
    ) -> Result<()> {
        let Some(v) = self.vdevs.get(&vdev) else {
            return invalid(0, format!("no vdev {vdev}"));
        };
        self.check_leaving(vdev)?;
        let mut maps = Maps::open(mos, txg, 1, count)?;
        v.maps.iter().filter(|map| **map != 0).try_for_each(|map| maps.free(*map))?;
        if matches!(v.class, Class::Special | Class::Dedup) {
            maps.count(CLASSES, -1)?;
        }
        for array in [v.array, v.unflushed].into_iter().filter(|array| *array != 0) {
            mos.free(array)?;
        }
        match leaves_mapping {
            false => free_linked_zap(mos, v.top_zap)?,
            true if v.unflushed != 0 => {
                ZapMut::open(mos, v.top_zap).remove(&Key::Name(UNFLUSHED_TXGS.as_bytes()))?;
            }
            true => {}
        }
        let mut freed = Ok(());
        config::for_each_leaf_mut(config, &mut |leaf| {
            if freed.is_ok() {
                freed = write_detached(mos, txg, leaf, count);
            }
        });
        freed
    }

    /// Refuses to let a vdev leave of which a checkpoint has a space map: the pool has no checkpoint, and its ZAP says otherwise.
    ///
    /// Errors: it has one.
    pub fn check_leaving(&self, vdev: u64) -> Result<()> {
        match self.vdevs.get(&vdev).map_or(0, |v| v.checkpoint) {
            0 => Ok(()),
            map => {
                invalid(map, format!("a checkpoint's space map of vdev {vdev}, in no checkpoint"))
            }
        }
    }

    /// A top-level vdev leaves that was [freed](SpaceMaps::free_vdev).
    pub fn forget_vdev(&mut self, vdev: u64) {
        let left = self.vdevs.remove(&vdev);
        invariant!(left.is_some(), "vdev {vdev} leaves, and had no space maps");
        self.log.forget(vdev);
        self.unflushed.forget(vdev);
    }

    /// Creates the ZAP of a vdev in the pending MOS, and enters it into the list of them.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn linked_zap(&self, mos: &mut OpenObjectSet) -> Result<u64> {
        linked_zap(mos, &self.chance)
    }
}

/// Frees what the pending MOS has of a top-level vdev for logs that the pool never had, being split off another one, given its
/// config there. Nothing of it is in use.
///
/// Errors: the MOS cannot be read or changed.
pub(crate) fn free_foreign_log(
    mos: &mut OpenObjectSet,
    txg: u64,
    config: &NvList,
    count: CountFeature<'_>,
) -> Result<()> {
    let (array, zap) = (
        config::number(config, "metaslab_array"),
        config::number(config, "com.delphix:vdev_zap_top"),
    );
    let shift = u32::try_from(config::number(config, "metaslab_shift")).unwrap_or(u32::MAX);
    let metaslabs = config::number(config, "asize").checked_shr(shift).unwrap_or(0);
    if array != 0 {
        for id in 0..metaslabs.min(MAX_METASLABS) {
            let mut map = [0; 8];
            mos.read(array, id * 8, &mut map)?;
            match u64::from_le_bytes(map) {
                0 => {}
                map => Maps::open(mos, txg, 1, count)?.free(map)?,
            }
        }
        mos.free(array)?;
    }
    if zap != 0 {
        if let Some(unflushed) = zap_u64(mos, zap, UNFLUSHED_TXGS)? {
            mos.free(unflushed)?;
        }
        free_linked_zap(mos, zap)?;
    }
    Ok(())
}

/// Frees what the pending MOS has of a leaf that leaves the pool, given its config: what it missed, its ZAP
/// (`vdev_dtl_sync`).
///
/// Errors: the MOS cannot be changed.
pub(crate) fn write_detached(
    mos: &mut OpenObjectSet,
    txg: u64,
    leaf: &NvList,
    count: CountFeature<'_>,
) -> Result<()> {
    let missed = config::number(leaf, "DTL");
    if missed != 0 {
        Maps::open(mos, txg, 1, count)?.free(missed)?;
    }
    free_linked_zap(mos, config::number(leaf, "com.delphix:vdev_zap_leaf"))
}

/// Frees the ZAP of a vdev and takes it off the list of them (`vdev_destroy_unlink_zap`); 0: it has no ZAP.
fn free_linked_zap(mos: &mut OpenObjectSet, zap: u64) -> Result<()> {
    if zap == 0 {
        return Ok(());
    }
    mos.free(zap)?;
    if let Some(all) = zap_u64(mos, DIRECTORY_OBJECT, ALL_ZAPS)? {
        ZapMut::open(mos, all).remove(&Key::Name(format!("{zap:x}").as_bytes()))?;
    }
    Ok(())
}

/// Creates a ZAP.
pub(super) fn new_zap(mos: &mut OpenObjectSet, chance: &Chance) -> Result<u64> {
    let salt = chance.number().map_err(|e| WriteError::Sink(Box::new(e)))? | 1;
    let format = ZapFormat { salt, ..ZapFormat::default() };
    ZapMut::create(mos, &NewObject::new(ZAP_METADATA, SECTOR), format)
}

/// Creates the ZAP of a vdev and enters it into the list of them, which is created too if there is
/// none.
fn linked_zap(mos: &mut OpenObjectSet, chance: &Chance) -> Result<u64> {
    let all = match zap_u64(mos, DIRECTORY_OBJECT, ALL_ZAPS)? {
        Some(all) => all,
        None => {
            let all = new_zap(mos, chance)?;
            let name = Key::Name(ALL_ZAPS.as_bytes());
            ZapMut::open(mos, DIRECTORY_OBJECT).add(&name, &Value::U64(&[all]))?;
            all
        }
    };
    let zap = new_zap(mos, chance)?;
    let name = format!("{zap:x}");
    ZapMut::open(mos, all).add(&Key::Name(name.as_bytes()), &Value::U64(&[zap]))?;
    Ok(zap)
}
