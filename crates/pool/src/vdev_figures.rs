//! Sizes and space of vdevs as `zpool status` reports them (`vdev_stat_t`, filled by
//! `vdev_get_stats_ex`).
//!
//! Space is known of the root, of top-level vdevs and of cache devices. Every vdev but the root has a size
//! that a device must have to take its place; leaves have the size of their device.

use crate::Pool;
use crate::config;
use crate::expandable;
use cenote_format::LABEL_START;
use cenote_format::label::{LABEL_END, LABEL_SIZE};
use cenote_format::nvlist::NvList;
use cenote_vdev::Vdev;

/// Figures of a vdev: bytes, and 0 for what is not known of a vdev of its kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VdevFigures {
    /// Allocated bytes (`vs_alloc`).
    pub allocated: u64,
    /// Bytes that can be allocated (`vs_space`).
    pub size: u64,
    /// The same with the parity of RAID-Z taken off (`vs_dspace`).
    pub deflated: u64,
    /// Least size of a device that replaces this one (`vs_rsize`).
    pub replacement: u64,
    /// Bytes that the vdev could grow by (`vs_esize`).
    pub expandable: u64,
    /// Bytes of wrong data that were put right on this leaf (`vs_self_healed`).
    pub healed: u64,
    /// Bytes of the leaf's device (`vs_pspace`).
    pub device: u64,
    /// Reads and writes of the leaf that were slow (`vs_slow_ios`).
    pub slow_ios: u64,
}

impl VdevFigures {
    /// The figures of the root: all space but that of log vdevs.
    pub fn of_root(pool: &Pool) -> VdevFigures {
        let Some(space) = pool.space() else { return VdevFigures::default() };
        let vdevs = pool.store().vdevs();
        let tops = vdevs.root().children().iter();
        let mut sum = VdevFigures::default();
        for (top, stats) in
            tops.filter(|t| !t.is_log()).filter_map(|t| Some((t, space.vdev(t.id())?)))
        {
            sum.allocated += stats.alloc;
            sum.size += stats.size;
            sum.deflated += top.deflate(stats.size);
        }
        sum
    }

    /// The figures of the vdev with this guid, which is neither a spare nor a cache device; `None`: there is
    /// no such vdev.
    pub fn of_vdev(pool: &Pool, guid: u64) -> Option<VdevFigures> {
        let vdevs = pool.store().vdevs();
        let tops = vdevs.root().children().iter();
        let (top, vdev, least) = tops.filter_map(|top| find(top, guid)).next()?;
        let mut figures = VdevFigures { replacement: least, ..VdevFigures::default() };
        if vdev.guid() == top.guid() {
            if let Some(stats) = pool.space().and_then(|s| s.vdev(top.id())) {
                (figures.allocated, figures.size) = (stats.alloc, stats.size);
                figures.deflated = top.deflate(stats.size);
            }
            figures.expandable = expandable(top);
        }
        if vdev.is_leaf() {
            figures.replacement = with_labels(least);
            figures.healed = vdev.self_healed();
            figures.slow_ios = vdev.slow_ios();
            figures.device = vdev.device().map_or(0, |d| whole_labels(d.size()));
        }
        Some(figures)
    }

    /// The figures of a spare or a cache device with this config; `cache`: something may be kept on it.
    pub fn of_aux(pool: &Pool, config: &NvList, cache: bool) -> VdevFigures {
        let Some(device) = pool.device_size(config).map(whole_labels) else {
            return VdevFigures::default();
        };
        let size = device.saturating_sub(LABEL_START + LABEL_END);
        let used = pool.cache_figures(config::number(config, "guid")).filter(|_| cache);
        VdevFigures {
            allocated: used.as_ref().map_or(0, |used| used.allocated),
            slow_ios: used.and_then(|used| used.leaf).map_or(0, |leaf| leaf.slow_ios()),
            size: if cache { size } else { 0 },
            replacement: with_labels(size),
            device,
            ..VdevFigures::default()
        }
    }
}

/// The vdev with this guid at or below `top`, and the least size that it may have
/// (`vdev_get_min_asize`).
fn find(top: &Vdev, guid: u64) -> Option<(&Vdev, &Vdev, u64)> {
    let shift = config::number(top.config(), "metaslab_shift").min(63);
    let (vdev, least) = below(top, guid, top.asize() >> shift << shift)?;
    Some((top, vdev, least))
}

fn below(vdev: &Vdev, guid: u64, least: u64) -> Option<(&Vdev, u64)> {
    if vdev.guid() == guid {
        return Some((vdev, least));
    }
    let share = match vdev.kind() {
        "raidz" => least.div_ceil((vdev.children().len() as u64).max(1)),
        _ => vdev.draid().map_or(least, |shape| shape.child_asize(least)),
    };
    vdev.children().iter().find_map(|child| below(child, guid, share))
}

fn with_labels(size: u64) -> u64 {
    match size {
        0 => 0,
        n => n + LABEL_START + LABEL_END,
    }
}

/// A device's size is rounded down to whole labels.
pub fn whole_labels(size: u64) -> u64 {
    size / LABEL_SIZE * LABEL_SIZE
}
