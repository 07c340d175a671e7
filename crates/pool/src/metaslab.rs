//! Metaslabs: the allocatable space of every top-level vdev, as the pool has it on disk.
//!
//! A top-level vdev's space is cut into metaslabs of `1 << metaslab_shift` bytes. On disk:
//!
//! ```text
//! vdev's config ── metaslab_array ── array of space map objects by metaslab (0: all free)
//!              └── vdev_zap_top ──── ms_unflushed_phys_txgs ── array of txgs by metaslab
//!                                └── pool_checkpoint_sm ────── space held by a checkpoint
//!                                └── allocation_bias ───────── "special", "dedup" or "log"
//! ```
//!
//! A metaslab's free space is what its space map says, then its unflushed changes out of the log
//! space maps ([`crate::logsm`]). [`PoolSpace::load`] reads the headers of all space maps and the
//! logs: enough for every figure that `zpool list` shows, because a header holds the bytes
//! allocated and a histogram of the free segments. The segments themselves are replayed by
//! [`PoolSpace::load_free`], one metaslab at a time.
//!
//! Space that was freed lately and may not be reused yet (deferred frees) is free here: deferral
//! is a matter of the running pool that no on-disk structure records, except for the block
//! pointers in the MOS's `sync_bplist`, whose space is still allocated.
//!
//! Invariants: in a loaded metaslab no byte is freed or allocated twice; a space map that says so
//! is an error that names the metaslab. All space maps together are no longer than the devices, so
//! that replaying every one of them takes bounded time. Shifts are in the ranges that OpenZFS
//! allows, or 0 where a vdev has no metaslabs.

pub mod stats;

use crate::ddt_stats::sum;
use crate::directory::{Directory, read_array};
use crate::logsm::{self, LogSpaceMap};
use crate::spacemap::{Region, SpaceChange, SpaceMap, max_length};
use cenote_dmu::zap::Zap;
use cenote_dmu::{Error, ObjectSet, Result};
use cenote_format::nvlist::NvList;
use cenote_format::spacemap::{Change, SpaceMapPhys};
use cenote_store::alloc::embedded_log;
use cenote_store::rangetree::{RangeError, RangeTree};
use cenote_vdev::draid;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Metaslabs of a vdev that are believed. OpenZFS makes at most 131,072, and more only where a
/// small device has grown.
const MAX_METASLABS: u64 = 1 << 20;
/// Range of the log2 of a smallest allocation, and of the bytes of a metaslab.
const ASHIFTS: RangeInclusive<u32> = 9..=16;
const METASLAB_SHIFTS: RangeInclusive<u32> = 9..=63;

/// What a top-level vdev's space is for (`metaslab_class_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllocClass {
    /// Data and metadata.
    Normal,
    /// Intent logs only.
    Log,
    /// Metadata and small blocks.
    Special,
    /// The deduplication table.
    Dedup,
    /// The metaslab of a normal vdev that is kept for the intent log.
    EmbeddedLog,
}

/// One metaslab, not loaded.
#[derive(Debug, Clone)]
pub struct Metaslab {
    /// Index within the vdev.
    pub id: u64,
    /// First byte in the vdev's allocatable space.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Space map object; 0 if nothing was ever allocated.
    pub space_map: u64,
    /// Header of the space map.
    pub header: Option<Box<SpaceMapPhys>>,
    /// Changes of this and later transaction groups are only in log space maps; 0 without such changes.
    pub unflushed_txg: u64,
    /// 0 to 100, from the header's histogram; `None` where there is no histogram.
    pub fragmentation: Option<u64>,
    /// Kept for the intent log.
    pub embedded_log: bool,
}

impl Metaslab {
    /// Bytes allocated according to the space map's header; without unflushed changes.
    pub fn flushed_alloc(&self) -> i64 {
        self.header.as_ref().map_or(0, |h| h.alloc)
    }
}

/// Changes of one metaslab that its own space map does not have.
#[derive(Debug, Clone, Default)]
pub struct Unflushed {
    /// Space that the space map has as free.
    pub allocs: RangeTree,
    /// Space that the space map has as allocated.
    pub frees: RangeTree,
}

impl Unflushed {
    /// How many segments there are.
    pub fn segments(&self) -> u64 {
        (self.allocs.len() + self.frees.len()) as u64
    }

    /// Where a change takes a segment from if it is there, and where it adds it if not.
    pub fn both(&mut self, change: Change) -> (&mut RangeTree, &mut RangeTree) {
        match change {
            Change::Alloc => (&mut self.frees, &mut self.allocs),
            Change::Free => (&mut self.allocs, &mut self.frees),
        }
    }

    fn apply(&mut self, change: &SpaceChange) -> std::result::Result<(), RangeError> {
        let (from, to) = self.both(change.change);
        from.remove_xor_add(to, change.start, change.end)
    }
}

/// The space of one top-level vdev.
#[derive(Debug, Clone)]
pub struct VdevSpace {
    /// Id of the vdev.
    pub id: u64,
    /// `type` of the vdev in the config.
    pub kind: String,
    /// Whether the vdev has space of its own (it is no hole and not removed).
    pub concrete: bool,
    /// What the space is for.
    pub class: AllocClass,
    /// Nothing new is allocated here (the vdev is being removed, or was marked so).
    pub non_allocating: bool,
    /// log2 of the smallest allocation.
    pub ashift: u32,
    /// Allocatable bytes.
    pub asize: u64,
    /// log2 of the bytes of a metaslab; 0 without metaslabs.
    pub metaslab_shift: u32,
    /// Bytes that its metaslabs and allocations begin at multiples of, if that is no power of 2 (dRAID); else 1.
    pub line: u64,
    /// Object that lists the space maps.
    pub metaslab_array: u64,
    /// The vdev's top ZAP; 0 without one.
    pub top_zap: u64,
    /// Object that lists the unflushed txgs; 0 without one.
    pub unflushed_object: u64,
    /// Space map of the space held by a checkpoint; 0 without one.
    pub checkpoint_map: u64,
    /// The metaslabs, by id.
    pub metaslabs: Vec<Metaslab>,
    /// Unflushed changes by metaslab id.
    pub unflushed: HashMap<u64, Unflushed>,
}

impl VdevSpace {
    /// This metaslab and no other is kept for the intent log.
    fn keep(&mut self, kept: Option<u64>) {
        self.metaslabs.iter_mut().for_each(|ms| ms.embedded_log = kept == Some(ms.id));
    }

    /// Bytes allocated in metaslab `ms`, unflushed changes included.
    pub fn alloc_of(&self, ms: &Metaslab) -> u64 {
        self.counted_of(ms).clamp(0, ms.size as i128) as u64
    }

    /// The same as the header of the space map counts, which may be what cannot be.
    pub fn counted_of(&self, ms: &Metaslab) -> i128 {
        let (a, f) =
            self.unflushed.get(&ms.id).map_or((0, 0), |u| (u.allocs.space(), u.frees.space()));
        ms.flushed_alloc() as i128 + a as i128 - f as i128
    }
}

/// The space of a pool; see the module's documentation.
#[derive(Debug, Clone)]
pub struct PoolSpace {
    /// Top-level vdevs, by id.
    pub vdevs: Vec<VdevSpace>,
    /// The log space maps, oldest first.
    pub logs: Vec<LogSpaceMap>,
    /// Refcount of the feature `spacemap_histogram`; `None` if it is disabled.
    pub histogram_feature: Option<u64>,
    /// Refcount of the feature `log_spacemap`; `None` if it is disabled.
    pub log_feature: Option<u64>,
}

/// An error about object `object` of the MOS.
fn corrupt(mos: &ObjectSet, object: u64, why: String) -> Error {
    Error::Corrupt { objset: mos.id(), object, why }
}

impl PoolSpace {
    /// Reads the space of all vdevs in `config`, the pool's config from the MOS (`vdev_load`): headers of space
    /// maps, and all log space maps.
    pub fn load(mos: &Arc<ObjectSet>, config: &NvList) -> Result<PoolSpace> {
        let children = config.list("vdev_tree").and_then(|t| t.lists("children")).unwrap_or(&[]);
        let directory = Directory::open(mos)?;
        let histogram_feature = directory.feature_uses("com.delphix:spacemap_histogram")?;
        let log_feature = directory.feature_uses("com.delphix:log_spacemap")?;
        let mut vdevs = Vec::with_capacity(children.len());
        for (id, child) in children.iter().enumerate() {
            vdevs.push(load_vdev(mos, id as u64, child, histogram_feature.is_some())?);
        }
        let mut space = PoolSpace { vdevs, logs: Vec::new(), histogram_feature, log_feature };
        space.check_sizes(mos)?;
        space.check_lengths(mos)?;
        space.replay_logs(mos, &directory)?;
        Ok(space)
    }

    /// The same where it is known which metaslab of these vdevs is kept for the intent log. Of others the emptiest is,
    /// as if the pool were opened now.
    pub fn keeping(mut self, embedded_logs: &BTreeMap<u64, Option<u64>>) -> PoolSpace {
        for v in &mut self.vdevs {
            if let Some(kept) = embedded_logs.get(&v.id) {
                v.keep(*kept);
            }
        }
        self
    }

    /// The same of a pool without a checkpoint: what is still said to be the space map of one counts for nothing.
    pub fn without_checkpoint(mut self) -> PoolSpace {
        for v in self.vdevs.iter_mut().filter(|v| v.checkpoint_map != 0) {
            tracing::warn!("vdev {} has a space map of a checkpoint that the pool has not", v.id);
            v.checkpoint_map = 0;
        }
        self
    }

    /// Space maps may share blocks in a pool that is made to do harm, but not add up to more than
    /// the devices hold.
    fn check_lengths(&self, mos: &Arc<ObjectSet>) -> Result<()> {
        let headers = self.vdevs.iter().flat_map(|v| &v.metaslabs).flat_map(|m| &m.header);
        let (total, most) = (sum(headers.map(|h| h.length)), max_length(mos));
        if total.is_none_or(|total| total > most) {
            return Err(corrupt(mos, 0, format!("space maps of more than {most} bytes")));
        }
        Ok(())
    }

    /// All vdevs with metaslabs have together so many bytes that there is a number for it: so have all sums of sizes of metaslabs.
    fn check_sizes(&self, mos: &ObjectSet) -> Result<()> {
        match sum(self.vdevs.iter().filter(|v| v.concrete).map(|v| v.asize)) {
            Some(_) => Ok(()),
            None => Err(corrupt(mos, 0, "vdevs of more bytes than can be counted".into())),
        }
    }

    fn replay_logs(&mut self, mos: &Arc<ObjectSet>, directory: &Directory) -> Result<()> {
        let logs = logsm::list(mos, directory)?;
        let vdevs = &mut self.vdevs;
        self.logs = logsm::replay(mos, &logs, &mut |txg, vdev, change| {
            let bad = |why: String| {
                let (start, end) = (change.start, change.end);
                corrupt(
                    mos,
                    0,
                    format!("log space map of txg {txg}: <{vdev}:{start:x}-{end:x}>: {why}"),
                )
            };
            let v = vdevs.get_mut(vdev as usize).ok_or_else(|| bad("no such vdev".into()))?;
            if !v.concrete {
                return Ok(false);
            }
            let id = change.start >> v.metaslab_shift;
            let ms = v.metaslabs.get(id as usize).ok_or_else(|| bad("no such metaslab".into()))?;
            if change.end > ms.start + ms.size {
                return Err(bad("leaves its metaslab".into()));
            }
            if txg < ms.unflushed_txg {
                return Ok(false);
            }
            let unflushed = v.unflushed.entry(id).or_default();
            unflushed.apply(&change).map_err(|e| bad(e.to_string()))?;
            Ok(true)
        })?;
        Ok(())
    }

    /// The vdev `id`.
    pub fn vdev_space(&self, id: u64) -> Option<&VdevSpace> {
        self.vdevs.get(usize::try_from(id).ok()?)
    }

    /// Free segments of metaslab `ms` of `vdev` as its own space map has them, without unflushed
    /// changes (`metaslab_load_impl`, `space_map_load`). An error if the map allocates or frees a byte twice.
    pub fn load_flushed(
        mos: &Arc<ObjectSet>,
        vdev: &VdevSpace,
        ms: &Metaslab,
    ) -> Result<RangeTree> {
        let mut free = RangeTree::new();
        let what = |e: RangeError| {
            corrupt(mos, ms.space_map, format!("vdev {}, metaslab {}: {e}", vdev.id, ms.id))
        };
        free.add(ms.start, ms.start + ms.size).map_err(what)?;
        if ms.space_map != 0 {
            let map = SpaceMap::open(mos, ms.space_map, vdev.region(ms))?;
            map.for_each(&mut |c| {
                match c.change {
                    Change::Alloc => free.remove(c.start, c.end),
                    Change::Free => free.add(c.start, c.end),
                }
                .map_err(what)
            })?;
        }
        Ok(free)
    }

    /// Free segments of metaslab `ms` of `vdev`, unflushed changes included.
    pub fn load_free(mos: &Arc<ObjectSet>, vdev: &VdevSpace, ms: &Metaslab) -> Result<RangeTree> {
        let mut free = Self::load_flushed(mos, vdev, ms)?;
        if let Some(u) = vdev.unflushed.get(&ms.id) {
            let changes =
                u.allocs.iter().map(|r| (true, r)).chain(u.frees.iter().map(|r| (false, r)));
            for (alloc, (s, e)) in changes {
                let done = if alloc { free.remove(s, e) } else { free.add(s, e) };
                done.map_err(|e| {
                    let why = format!("vdev {}, metaslab {}, unflushed: {e}", vdev.id, ms.id);
                    corrupt(mos, ms.space_map, why)
                })?;
            }
        }
        Ok(free)
    }
}

impl VdevSpace {
    /// log2 of a size of which the header of `ms` counts more segments than can be cut out of `free`,
    /// what is free there; `None`: the header promises no more than there is. OpenZFS weighs a metaslab
    /// by its header until it is loaded, and then holds that it weighs no less
    /// (`metaslab_load_impl`).
    pub fn overpromised(&self, ms: &Metaslab, free: &RangeTree) -> Option<u32> {
        let said = ms.header.as_ref()?.histogram?;
        let mut asked = 0u128;
        for (bucket, count) in said.iter().enumerate().rev() {
            let log = (bucket as u32 + self.ashift).min(63);
            asked = asked * 2 + u128::from(*count);
            let there: u128 =
                free.iter().map(|(start, end)| u128::from((end - start) >> log)).sum();
            if asked > there {
                return Some(log);
            }
        }
        None
    }

    /// The region that the space map of `ms` describes.
    pub fn region(&self, ms: &Metaslab) -> Region {
        Region::new(ms.start, ms.size, self.ashift)
    }
}

/// The metaslabs of a top-level vdev (`vdev_metaslab_init`).
fn load_vdev(
    mos: &Arc<ObjectSet>,
    id: u64,
    config: &NvList,
    histograms: bool,
) -> Result<VdevSpace> {
    let number = |name: &str| config.u64(name).unwrap_or(0);
    let shift = |name: &str, range: &RangeInclusive<u32>| match number(name) {
        0 => Ok(0),
        n => u32::try_from(n).ok().filter(|n| range.contains(n)).ok_or_else(|| {
            corrupt(mos, number("metaslab_array"), format!("vdev {id}: {name} {n}"))
        }),
    };
    let kind = config.str("type").unwrap_or("").to_string();
    let top_zap = number("com.delphix:vdev_zap_top");
    let mut v = VdevSpace {
        id,
        concrete: !matches!(kind.as_str(), "hole" | "missing" | "indirect" | "root"),
        kind,
        class: if number("is_log") != 0 { AllocClass::Log } else { AllocClass::Normal },
        non_allocating: number("non_allocating") != 0,
        ashift: shift("ashift", &ASHIFTS)?,
        asize: number("asize"),
        metaslab_shift: shift("metaslab_shift", &METASLAB_SHIFTS)?,
        line: draid::line_of(config),
        metaslab_array: number("metaslab_array"),
        top_zap,
        unflushed_object: 0,
        checkpoint_map: 0,
        metaslabs: Vec::new(),
        unflushed: HashMap::new(),
    };
    if top_zap != 0 {
        load_top_zap(mos, &mut v)?;
    }
    // A vdev added in the transaction group that was being synced has no metaslabs yet.
    if v.concrete && v.metaslab_shift != 0 && v.metaslab_array != 0 {
        load_metaslabs(mos, &mut v, histograms)?;
    }
    Ok(v)
}

fn load_top_zap(mos: &Arc<ObjectSet>, v: &mut VdevSpace) -> Result<()> {
    let zap = Zap::open(&mos.object(v.top_zap)?)?;
    v.unflushed_object = zap.u64(b"com.delphix:ms_unflushed_phys_txgs")?.unwrap_or(0);
    v.checkpoint_map = zap.u64(b"com.delphix:pool_checkpoint_sm")?.unwrap_or(0);
    if let Some(bias) = zap.lookup(b"org.zfsonlinux:allocation_bias")? {
        let name = bias.bytes();
        match name.strip_suffix(b"\0").unwrap_or(&name) {
            b"log" => v.class = AllocClass::Log,
            b"special" => v.class = AllocClass::Special,
            b"dedup" => v.class = AllocClass::Dedup,
            _ => {}
        }
    }
    Ok(())
}

fn load_metaslabs(mos: &Arc<ObjectSet>, v: &mut VdevSpace, histograms: bool) -> Result<()> {
    let bad = |why: String| corrupt(mos, v.metaslab_array, format!("vdev {}: {why}", v.id));
    if v.ashift == 0 {
        return Err(bad("metaslabs, but no ashift".into()));
    }
    let count = v.asize >> v.metaslab_shift;
    if count > MAX_METASLABS {
        return Err(bad(format!("{count} metaslabs")));
    }
    let maps = read_array(mos, v.metaslab_array, count)?;
    let txgs = match v.unflushed_object {
        0 => vec![0; maps.len()],
        object => read_array(mos, object, count)?,
    };
    for (id, (space_map, unflushed_txg)) in (0..).zip(maps.into_iter().zip(txgs)) {
        let bounds = draid::metaslab(id, v.metaslab_shift, v.line);
        let (start, size) = bounds.ok_or_else(|| bad(format!("metaslab {id} has no room")))?;
        let mut ms = Metaslab {
            id,
            start,
            size,
            space_map,
            header: None,
            unflushed_txg,
            fragmentation: None,
            embedded_log: false,
        };
        if space_map != 0 {
            let map = SpaceMap::open(mos, space_map, v.region(&ms))?;
            ms.header = Some(Box::new(map.phys().clone()));
        }
        if histograms {
            ms.fragmentation = stats::fragmentation(ms.header.as_deref(), v.ashift);
        }
        v.metaslabs.push(ms);
    }
    if v.class == AllocClass::Normal {
        let kept = embedded_log(v.metaslabs.len(), v.metaslabs.iter().map(Metaslab::flushed_alloc));
        v.keep(kept.map(|i| i as u64));
    }
    Ok(())
}
