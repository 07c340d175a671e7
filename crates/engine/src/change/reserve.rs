//! What a volume needs at most, so that it can always be filled (`zvol_volsize_to_reservation`): the refreservation that it gets
//! unless it is sparse.
//!
//! Data and metadata are counted as if nothing compressed. On RAID-Z small blocks take more than
//! the pool's figures say, which are made for blocks of 128 KiB: data is scaled by that.

use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_vdev::draid::Shape;

/// Default `volblocksize`.
pub const DEFAULT_BLOCK: u64 = 16 << 10;
/// Block size that RAID-Z figures are made for.
const TYPICAL: u64 = 128 << 10;
/// Block pointers in an indirect block of a volume.
const POINTERS: u64 = 1024;
/// Bytes of an indirect block.
const INDIRECT: u64 = 128 << 10;
/// Blocks of the object set's own tree.
const OWN_TREE: u64 = 7;
const SECTOR: u64 = 512;

/// Bytes that a block of `size` bytes takes on a RAID-Z vdev.
fn on_raidz(disks: u64, parity: u64, ashift: u64, size: u64) -> Option<u64> {
    let data = disks.checked_sub(parity).filter(|d| *d > 0)?;
    let sectors = (size.checked_sub(1)? >> ashift) + 1;
    let sectors = sectors + parity * sectors.div_ceil(data);
    sectors.next_multiple_of(parity + 1).checked_shl(u32::try_from(ashift).ok()?)
}

/// The shape of a top-level vdev, if it is dRAID.
fn draid_of(top: &NvList) -> Option<Shape> {
    let is_draid = top.str("type") == Some("draid");
    is_draid.then(|| Shape::of(top).ok())?
}

/// Bytes that `blocks` blocks take, on the vdev where that is most.
fn data_bytes(config: &NvList, blocks: u64, size: u64) -> u64 {
    let on_vdev = |top: &NvList| {
        let ashift = config::number(top, "ashift").clamp(9, 16);
        let parity = config::number(top, "nparity");
        let disks = config::children(top).len() as u64;
        let shape = draid_of(top);
        let is_raidz = top.str("type") == Some("raidz") && (1..=3).contains(&parity);
        if shape.is_none() && (!is_raidz || disks > 255) {
            return None;
        }
        let on = |size| match shape {
            Some(shape) => Some(shape.psize_to_asize(size, ashift as u32)),
            None => on_raidz(disks, parity, ashift, size),
        };
        let (typical, own) = (on(TYPICAL)?, on(size)?);
        let scaled = u128::from(blocks) * u128::from(own) / u128::from(typical / SECTOR).max(1);
        Some(u64::try_from(scaled * u128::from(TYPICAL / SECTOR)).unwrap_or(u64::MAX))
    };
    let most = config::tops(config).iter().filter_map(on_vdev).max();
    most.filter(|m| *m > 0).unwrap_or_else(|| blocks.saturating_mul(size))
}

/// The refreservation of a volume of `size` bytes in blocks of `block_size` bytes, in a pool of this
/// config, with so many `copies`.
pub fn of_volume(config: &NvList, size: u64, block_size: u64, copies: u64) -> u64 {
    let mut blocks = size / block_size.max(1);
    let copies = copies.clamp(1, 3);
    let data = data_bytes(config, blocks, block_size).saturating_mul(copies);
    let mut metadata = OWN_TREE;
    while blocks > 1 {
        blocks = blocks.div_ceil(POINTERS);
        metadata = metadata.saturating_add(blocks);
    }
    let metadata = metadata.saturating_mul((copies + 1).min(3)).saturating_mul(INDIRECT);
    data.saturating_add(metadata)
}

/// The default `volblocksize` in a pool of this config: at least what the smallest allocation takes.
pub fn default_block(config: &NvList) -> u64 {
    let smallest = |top: &NvList| {
        let sector = 1u64 << config::number(top, "ashift").clamp(9, 16);
        if let Some(shape) = draid_of(top) {
            return shape.ndata * sector;
        }
        match config::number(top, "nparity") {
            0 => sector,
            1 => 2 * sector,
            _ => 4 * sector,
        }
    };
    let smallest = config::tops(config).iter().map(smallest).max().unwrap_or(SECTOR);
    // The largest power of two that is no more.
    DEFAULT_BLOCK.max(1 << smallest.max(1).ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::nvlist::NvValue;

    fn pool(kind: &str, parity: u64, disks: usize, ashift: u64) -> NvList {
        let mut top = NvList::default();
        top.set("type", NvValue::String(kind.into()));
        top.set("ashift", NvValue::Uint64(ashift));
        if parity > 0 {
            top.set("nparity", NvValue::Uint64(parity));
        }
        top.set("children", NvValue::NvListArray(vec![NvList::default(); disks]));
        let mut tree = NvList::default();
        tree.set("children", NvValue::NvListArray(vec![top]));
        let mut config = NvList::default();
        config.set("vdev_tree", NvValue::NvList(tree));
        config
    }

    #[test]
    fn reservations_are_those_that_openzfs_makes() {
        // `zfs create -V 10M -b 16K` in a pool of one disk.
        let single = pool("file", 0, 0, 9);
        assert_eq!(of_volume(&single, 10 << 20, 16 << 10, 1), (10 << 20) + (7 + 1) * 2 * INDIRECT);
        // Two levels of indirect blocks: 65536 blocks, 64 blocks, 1 block.
        let meta = (7 + 64 + 1) * 2 * INDIRECT;
        assert_eq!(of_volume(&single, 1 << 30, 16 << 10, 1), (1 << 30) + meta);
        // RAID-Z1 of three disks with sectors of 4 KiB: 16 KiB take 6 sectors, 128 KiB take 48.
        let raidz = pool("raidz", 1, 3, 12);
        assert_eq!(of_volume(&raidz, 1 << 30, 16 << 10, 1), (1 << 30) + meta);
        let small = of_volume(&raidz, 1 << 30, 4 << 10, 1);
        assert!(small > (1 << 30) * 4 / 3, "{small}");
    }

    #[test]
    fn blocks_are_no_smaller_than_what_is_allocated() {
        assert_eq!(default_block(&pool("file", 0, 0, 9)), 16 << 10);
        assert_eq!(default_block(&pool("raidz", 2, 4, 12)), 16 << 10);
        assert_eq!(default_block(&pool("raidz", 2, 4, 14)), 64 << 10);
    }
}
