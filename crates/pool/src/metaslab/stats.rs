//! Figures about space (`metaslab_class_get_alloc`, `metaslab_group_fragmentation`): sizes, bytes allocated,
//! fragmentation, per metaslab, vdev, class and pool.
//!
//! *Fragmentation* is a figure from 0 to 100 that says how small the free segments are, not where
//! they lie. A segment's size gives it a weight (100 for 512 bytes down to 0 for 512 MiB and
//! more), a metaslab's fragmentation is the mean over its free bytes, a vdev's the mean over its
//! metaslabs' free bytes, a class's the mean over its vdevs' sizes; each is rounded down before
//! the next is formed.

use super::{AllocClass, Metaslab, PoolSpace, VdevSpace};
use cenote_format::spacemap::SpaceMapPhys;
use cenote_format::{SECTOR_SHIFT, less};
use cenote_store::histogram::Histogram;
use cenote_vdev::VdevTree;

/// Weight of free segments of `512 << i` bytes (`zfs_frag_table`).
const WEIGHTS: [u64; 21] =
    [100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1, 0];

/// Size and use of some space, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpaceStats {
    /// All of it.
    pub size: u64,
    /// Allocated, unflushed changes included.
    pub alloc: u64,
    /// 0 to 100; `None` if unknown (`zpool` shows `-`).
    pub fragmentation: Option<u64>,
}

impl SpaceStats {
    /// Bytes free: none, where more is allocated than there is.
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.alloc)
    }

    /// Percentage that is allocated, rounded down; 0 if there is no space.
    pub fn capacity(&self) -> u64 {
        (self.alloc as u128 * 100).checked_div(self.size as u128).unwrap_or(0) as u64
    }
}

/// Fragmentation of free segments of these sizes; 0 without free segments.
pub fn fragmentation_of(free: &Histogram) -> u64 {
    // Whatever the counts are: 64 bits shifted by up to 63 have a sum of 128 bits, and only small segments have a weight.
    let (mut total, mut weighted) = (0u128, 0u128);
    for (i, count) in (0u32..).zip(free.counts()).skip(SECTOR_SHIFT as usize) {
        let weight = WEIGHTS.get((i - SECTOR_SHIFT) as usize).copied().unwrap_or(0);
        let space = u128::from(*count) << i;
        total += space;
        weighted += space * u128::from(weight);
    }
    weighted.checked_div(total).unwrap_or(0) as u64
}

/// Fragmentation of a metaslab from its space map's header (`metaslab_set_fragmentation`). No space map: nothing is
/// fragmented; a header without a histogram: unknown.
pub(super) fn fragmentation(header: Option<&SpaceMapPhys>, shift: u32) -> Option<u64> {
    let Some(header) = header else { return Some(0) };
    Some(fragmentation_of(&Histogram::from_shifted(&header.histogram?, shift)))
}

impl VdevSpace {
    fn of_group(&self, embedded_log: bool) -> impl Iterator<Item = &Metaslab> {
        self.metaslabs.iter().filter(move |m| m.embedded_log == embedded_log)
    }

    /// Fragmentation of the vdev's metaslabs but the one kept for the intent log.
    pub fn fragmentation(&self) -> Option<u64> {
        let (mut count, mut known, mut free, mut weighted) = (0u64, 0u64, 0u128, 0u128);
        for ms in self.of_group(false) {
            count += 1;
            let Some(fragmentation) = ms.fragmentation else { continue };
            known += 1;
            let bytes =
                u128::from(less!(ms.size, self.alloc_of(ms), "bytes of metaslab {}", ms.id));
            free += bytes;
            weighted += bytes * u128::from(fragmentation);
        }
        if known < count.div_ceil(2) {
            return None;
        }
        weighted.checked_div(free).map(|f| f as u64)
    }

    /// Free segments by size according to the space maps' headers.
    pub fn histogram(&self) -> Histogram {
        let mut sum = Histogram::default();
        for counts in self.of_group(false).filter_map(|m| m.header.as_ref()?.histogram) {
            sum.merge(&Histogram::from_shifted(&counts, self.ashift));
        }
        sum
    }

    /// Size, use and fragmentation of the vdev, as `zpool list -v` shows them.
    pub fn stats(&self) -> SpaceStats {
        let mut stats = self.sum(|_| true);
        stats.fragmentation = self.fragmentation();
        stats
    }

    fn sum(&self, of: impl Fn(&Metaslab) -> bool) -> SpaceStats {
        let mut stats = SpaceStats::default();
        for ms in self.metaslabs.iter().filter(|m| of(m)) {
            stats.size += ms.size;
            stats.alloc += self.alloc_of(ms);
        }
        stats
    }
}

impl PoolSpace {
    /// Figures of top-level vdev `id`; `None` if it has no space (a hole, a removed vdev).
    pub fn vdev(&self, id: u64) -> Option<SpaceStats> {
        self.vdev_space(id).filter(|v| v.concrete && !v.metaslabs.is_empty()).map(VdevSpace::stats)
    }

    /// Figures of one class of space.
    pub fn class(&self, class: AllocClass) -> SpaceStats {
        let mut sum = SpaceStats::default();
        let mut weighted = Some(0u128);
        let embedded = class == AllocClass::EmbeddedLog;
        let of = if embedded { AllocClass::Normal } else { class };
        for v in self.vdevs.iter().filter(|v| v.concrete && v.class == of) {
            let s = v.sum(|m| m.embedded_log == embedded);
            if s.size == 0 {
                continue;
            }
            sum.size += s.size;
            sum.alloc += s.alloc;
            weighted = weighted
                .zip(v.fragmentation())
                .map(|(w, f)| w + u128::from(f) * u128::from(s.size));
        }
        sum.fragmentation =
            weighted.and_then(|w| w.checked_div(sum.size as u128)).map(|f| f as u64);
        sum
    }

    /// Figures of the pool as `zpool list` shows them: all space but log devices'; the
    /// fragmentation is that of the normal class.
    pub fn pool(&self) -> SpaceStats {
        use AllocClass::*;
        let mut sum = SpaceStats::default();
        for class in [Normal, Special, Dedup, EmbeddedLog] {
            let s = self.class(class);
            sum.size += s.size;
            sum.alloc += s.alloc;
        }
        sum.fragmentation = self.class(Normal).fragmentation;
        sum
    }

    /// Size and use of one class after RAID-Z parity is taken off (`mc_dspace`, `mc_dalloc`): what
    /// the space available to datasets is computed from. Fragmentation is not set.
    pub fn deflated(&self, class: AllocClass, vdevs: &VdevTree) -> SpaceStats {
        self.deflated_where(class, vdevs, |_| true)
    }

    /// As [`PoolSpace::deflated`], of those vdevs only that nothing new is allocated on.
    pub fn deflated_non_allocating(&self, class: AllocClass, vdevs: &VdevTree) -> SpaceStats {
        self.deflated_where(class, vdevs, |v| v.non_allocating)
    }

    fn deflated_where(
        &self,
        class: AllocClass,
        vdevs: &VdevTree,
        want: impl Fn(&VdevSpace) -> bool,
    ) -> SpaceStats {
        let mut sum = SpaceStats::default();
        let embedded = class == AllocClass::EmbeddedLog;
        let of = if embedded { AllocClass::Normal } else { class };
        for v in self.vdevs.iter().filter(|v| v.concrete && v.class == of && want(v)) {
            let Some(top) = vdevs.root().children().iter().find(|t| t.id() == v.id) else {
                continue;
            };
            let s = v.sum(|m| m.embedded_log == embedded);
            sum.size += top.deflate(s.size);
            sum.alloc += top.deflate(s.alloc);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragmentation_of_a_header() {
        let mut phys = SpaceMapPhys { object: 0, length: 0, alloc: 0, histogram: Some([0; 32]) };
        assert_eq!(fragmentation(None, 12), Some(0));
        assert_eq!(fragmentation(Some(&phys), 12), Some(0));
        phys.histogram = Some(std::array::from_fn(|i| u64::from(i == 0)));
        assert_eq!(fragmentation(Some(&phys), 9), Some(100));
        assert_eq!(fragmentation(Some(&phys), 16), Some(71));
        phys.histogram = Some([u64::MAX; 32]);
        assert_eq!(fragmentation(Some(&phys), 16), Some(0));
        phys.histogram = None;
        assert_eq!(fragmentation(Some(&phys), 12), None);
    }

    #[test]
    fn capacity_rounds_down() {
        assert_eq!(SpaceStats::default().capacity(), 0);
        assert_eq!(SpaceStats { size: 3, alloc: 2, fragmentation: None }.capacity(), 66);
        let full = SpaceStats { size: u64::MAX, alloc: u64::MAX, fragmentation: None };
        assert_eq!((full.capacity(), full.free()), (100, 0));
    }
}
