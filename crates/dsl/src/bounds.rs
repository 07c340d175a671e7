//! How much a pool can hold at most: what bounds every walk of lists.
//!
//! Sizes in a pool's own config are only what the config says. Devices are as large as they are, and
//! everything that is stored takes space on them. But indirect blocks may lead to the same block over
//! and over, so that lists, maps and object sets made to do harm look endless: a walk that goes on
//! for longer than the devices have room for ends with an error.

use cenote_dmu::ObjectSet;
use cenote_format::SECTOR;
use cenote_format::dmu::{DNODE_BLOCK, DNODE_SLOT};
use cenote_vdev::Vdev;

/// Dnodes that the best compression gets into a sector: a block of them.
const DNODES_PER_SECTOR: u64 = DNODE_BLOCK / DNODE_SLOT as u64;

/// Bytes of all devices that are there, of the pool that `objset` is in.
pub fn device_bytes(objset: &ObjectSet) -> u64 {
    fn below(vdev: &Vdev) -> u64 {
        let own = vdev.device().map_or(0, |d| d.size());
        vdev.children().iter().fold(own, |sum, c| sum.saturating_add(below(c)))
    }
    below(objset.store().vdevs().root())
}

/// Blocks that fit onto the devices.
pub fn max_blocks(objset: &ObjectSet) -> u64 {
    device_bytes(objset) / SECTOR
}

/// Objects that fit onto the devices.
pub fn max_objects(objset: &ObjectSet) -> u64 {
    max_blocks(objset).saturating_mul(DNODES_PER_SECTOR)
}
