//! How large a new top-level vdev is, and into how many metaslabs it is cut
//! (`vdev_metaslab_set_size`).
//!
//! | vdev | metaslabs |
//! |---|---|
//! | below 8 GiB | about 16 |
//! | to 100 GiB | one for every 512 MiB |
//! | to 3 TiB | about 200 |
//! | to 2 PiB | one for every 16 GiB |
//! | above | about 131,072 |
//!
//! So it is as long as the `zfs_vdev_*ms_*` of [`tunables`] have their defaults. No metaslab is smaller than
//! 16 MiB, the largest block.

use crate::tunables;
use cenote_format::LABEL_START;
use cenote_format::label::{LABEL_END, LABEL_SIZE};
use cenote_vdev::draid::Shape;

/// log2 of the bytes of the smallest metaslab (`SPA_MAXBLOCKSHIFT`).
const MIN_SHIFT: u32 = 24;

/// The layout of a new top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VdevPlan {
    /// Allocatable bytes: `asize` in the config.
    pub asize: u64,
    /// log2 of the bytes of a metaslab: `metaslab_shift` in the config.
    pub ms_shift: u32,
    /// Number of metaslabs; what is left over at the end is not used.
    pub ms_count: u64,
}

/// Plans a top-level vdev of `asize` allocatable bytes (`vdev_metaslab_set_size`).
pub fn plan(asize: u64) -> VdevPlan {
    // One more than log2 of an equal share: a power of two that is larger.
    let shift_for = |count: u64| (asize / count).checked_ilog2().map_or(0, |log| log + 1);
    let (few, many) = (tunables::VDEV_MIN_MS_COUNT.get(), tunables::VDEV_DEFAULT_MS_COUNT.get());
    let (usual, largest) =
        (tunables::VDEV_DEFAULT_MS_SHIFT.small(), tunables::VDEV_MAX_MS_SHIFT.small());
    let limit = tunables::VDEV_MS_COUNT_LIMIT.get();
    let wanted = match asize >> usual {
        by_default if by_default < few => shift_for(few),
        by_default if by_default <= many => usual,
        _ => shift_for(many),
    };
    let ms_shift = match wanted.max(MIN_SHIFT) {
        shift if shift <= largest => shift,
        _ if asize >> largest > limit => shift_for(limit),
        _ => largest,
    };
    VdevPlan { asize, ms_shift, ms_count: asize >> ms_shift }
}

/// Allocatable bytes of a top-level vdev of type `kind` over devices of the sizes `devices`, in
/// bytes (`vdev_open`); 0 if there is no room, or so much that there is no number for it. Of each device the labels are taken off; a mirror
/// has the size of its smallest device, RAID-Z that times their number, dRAID what its shape makes of it.
pub fn top_level_asize(kind: &str, draid: Option<&Shape>, devices: &[u64]) -> u64 {
    let label = LABEL_SIZE;
    let usable = |size: &u64| (size / label * label).saturating_sub(LABEL_START + LABEL_END);
    let smallest = devices.iter().map(usable).min().unwrap_or(0);
    if let Some(shape) = draid {
        return shape.asize(smallest).unwrap_or(0);
    }
    let all = match kind {
        "raidz" => smallest.checked_mul(devices.len() as u64).unwrap_or(0),
        _ => smallest,
    };
    all / label * label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metaslabs_are_neither_too_many_nor_too_few() {
        let of = |asize: u64| {
            let plan = plan(asize);
            assert_eq!(plan.ms_count, asize >> plan.ms_shift);
            (plan.ms_shift, plan.ms_count)
        };
        assert_eq!(of(59 << 20), (24, 3));
        assert_eq!(of((1 << 30) - (9 << 19)), (26, 15));
        assert_eq!(of(1 << 30), (27, 8));
        assert_eq!(of((8 << 30) - 1), (29, 15));
        assert_eq!(of(8 << 30), (29, 16));
        assert_eq!(of(100 << 30), (29, 200));
        assert_eq!(of(101 << 30), (30, 101));
        assert_eq!(of(1 << 40), (33, 128));
        assert_eq!(of(10 << 40), (34, 640));
        assert_eq!(of(2 << 50), (34, 131_072));
        assert_eq!(of(5 << 50), (36, 81_920));
        assert_eq!(of(0), (24, 0));
    }

    #[test]
    fn sizes_are_those_of_openzfs() {
        let mib = 1 << 20;
        assert_eq!(top_level_asize("file", None, &[64 * mib]), 64 * mib - 9 * mib / 2);
        assert_eq!(
            top_level_asize("mirror", None, &[65 * mib, 64 * mib + 5]),
            64 * mib - 9 * mib / 2
        );
        assert_eq!(top_level_asize("raidz", None, &[64 * mib; 3]), 3 * (64 * mib - 9 * mib / 2));
        assert_eq!(top_level_asize("file", None, &[mib]), 0);
    }
}
