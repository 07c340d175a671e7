//! The bytes of labels as they are written.
//!
//! Everything is little-endian. See [`cenote_format::label`] for the layout.

use cenote_format::ByteOrder;
use cenote_format::abd::Abd;
use cenote_format::checksum::{self, Checksum, EMBEDDED_MAGIC, EMBEDDED_SIZE, Salt};
use cenote_format::label::{CONFIG_SIZE, Uberblock, slot_size};

/// The magic of an uberblock.
const UBERBLOCK_MAGIC: u64 = 0x00ba_b10c;

/// The config area of the label whose config is at byte `offset` of the device. `Err`: what is
/// wrong with the config.
pub(crate) fn config_area(packed: &[u8], offset: u64) -> Result<Abd, String> {
    let mut area = vec![0; CONFIG_SIZE];
    let room = CONFIG_SIZE - EMBEDDED_SIZE;
    let Some(head) = area[..room].get_mut(..packed.len()) else {
        return Err(format!("a config of {} bytes, {room} fit", packed.len()));
    };
    head.copy_from_slice(packed);
    seal(area, offset)
}

/// The slot of `uberblock` that is at byte `offset` of the device.
pub(crate) fn slot(uberblock: &Uberblock, ashift: u32, offset: u64) -> Result<Abd, String> {
    let u = uberblock;
    let head = [UBERBLOCK_MAGIC, u.version, u.txg, u.guid_sum, u.timestamp];
    let tail = [
        u.software_version,
        u.mmp_magic,
        u.mmp_delay,
        u.mmp_config,
        u.checkpoint_txg,
        u.raidz_reflow,
    ];
    let words = head.iter().chain(&u.rootbp.0).chain(&tail);
    let mut slot: Vec<u8> = words.flat_map(|w| w.to_le_bytes()).collect();
    slot.resize(slot_size(ashift), 0);
    seal(slot, offset)
}

/// Ends `block`, which is for byte `offset` of the device, in an embedded checksum.
fn seal(mut block: Vec<u8>, offset: u64) -> Result<Abd, String> {
    let at = block.len().saturating_sub(EMBEDDED_SIZE);
    let put = |block: &mut Vec<u8>, words: [u64; 4]| {
        let bytes = EMBEDDED_MAGIC.to_le_bytes().into_iter();
        let bytes = bytes.chain(words.iter().flat_map(|w| w.to_le_bytes()));
        block.iter_mut().skip(at).zip(bytes).for_each(|(b, new)| *b = new);
    };
    put(&mut block, [offset, 0, 0, 0]);
    let block_of = Abd::from_vec(block.clone());
    let sum =
        checksum::compute(Checksum::Sha256, &block_of, ByteOrder::Little, &Salt::new([0; 32]));
    put(&mut block, sum.map_err(|e| e.to_string())?);
    Ok(Abd::from_vec(block))
}
