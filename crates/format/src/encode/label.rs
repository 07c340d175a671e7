//! Uberblocks, configs and whole labels (`uberblock_t`, `vdev_label_t`), sealed with their embedded checksums.

use super::{EncodeError, Result, embedded, push_words, put};
use crate::checksum::{Checksum, EMBEDDED_SIZE};
use crate::label::{
    BOOTENV_OFFSET, CONFIG_OFFSET, CONFIG_SIZE, LABEL_SIZE, RING_OFFSET, RING_SIZE, Uberblock,
    slot_size,
};
use crate::nvlist::NvList;

const UBERBLOCK_MAGIC: u64 = 0x00ba_b10c;
/// Bytes of the boot environment block.
const BOOTENV_SIZE: usize = 8 << 10;

/// Slots of the ring on a top-level vdev with sectors of `1 << ashift`.
pub fn slots(ashift: u32) -> usize {
    RING_SIZE / slot_size(ashift)
}

/// Slot of the ring that the uberblock of `txg` goes to. With `multihost` the last slot is kept
/// for the writes that announce that the pool is in use.
pub fn slot_of(txg: u64, ashift: u32, multihost: bool) -> usize {
    let count = slots(ashift) - usize::from(multihost);
    (txg % count as u64) as usize
}

/// The slot of the ring that holds `uberblock`: [`slot_size`] bytes, to be written at byte
/// `offset` of the device.
pub fn encode_slot(uberblock: &Uberblock, ashift: u32, offset: u64) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(slot_size(ashift));
    let u = uberblock;
    push_words(&mut out, &[UBERBLOCK_MAGIC, u.version, u.txg, u.guid_sum, u.timestamp]);
    push_words(&mut out, &u.rootbp.0);
    let tail = [
        u.software_version,
        u.mmp_magic,
        u.mmp_delay,
        u.mmp_config,
        u.checkpoint_txg,
        u.raidz_reflow,
    ];
    push_words(&mut out, &tail);
    out.resize(slot_size(ashift), 0);
    embedded::seal(Checksum::Label, &mut out, [offset, 0, 0, 0])?;
    Ok(out)
}

/// The config area ([`CONFIG_SIZE`] bytes) that holds `list`, to be written at byte `offset` of
/// the device. Errors: the packed list is longer than the area.
pub fn encode_config(list: &NvList, offset: u64) -> Result<Vec<u8>> {
    let mut out = list.encode();
    if out.len() > CONFIG_SIZE - EMBEDDED_SIZE {
        let why = format!("packed list of {} bytes", out.len());
        return Err(EncodeError::unrepresentable("label config", why));
    }
    out.resize(CONFIG_SIZE, 0);
    embedded::seal(Checksum::Label, &mut out, [offset, 0, 0, 0])?;
    Ok(out)
}

/// A whole new label, to be written at byte `offset` of the device: no boot environment, `config`,
/// and a ring in which `uberblocks` have the slots of their transaction groups.
///
/// The first 8 KiB are zeros; a caller may leave what is there on the device, as
/// OpenZFS does. Errors: as for [`encode_config`].
pub fn encode_label<'a>(
    config: &NvList,
    uberblocks: impl IntoIterator<Item = &'a Uberblock>,
    ashift: u32,
    offset: u64,
) -> Result<Vec<u8>> {
    const WHAT: &str = "label";
    let mut out = vec![0; LABEL_SIZE as usize];
    let mut boot = vec![0; BOOTENV_SIZE];
    embedded::seal(Checksum::Label, &mut boot, [offset.wrapping_add(BOOTENV_OFFSET), 0, 0, 0])?;
    put(&mut out, BOOTENV_OFFSET as usize, &boot, WHAT)?;
    let area = encode_config(config, offset.wrapping_add(CONFIG_OFFSET))?;
    put(&mut out, CONFIG_OFFSET as usize, &area, WHAT)?;
    for uberblock in uberblocks {
        let at = RING_OFFSET + (slot_of(uberblock.txg, ashift, false) * slot_size(ashift)) as u64;
        let slot = encode_slot(uberblock, ashift, offset.wrapping_add(at))?;
        put(&mut out, at as usize, &slot, WHAT)?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteOrder;
    use crate::blkptr::BlockPointer;
    use crate::checksum::verify_embedded;
    use crate::label::{decode_config, decode_slot};
    use crate::nvlist::NvValue;
    use proptest::prelude::*;

    fn uberblock(w: &[u64; 10], bp: [u64; 16]) -> Uberblock {
        Uberblock {
            order: ByteOrder::Little,
            version: w[0],
            txg: w[1],
            guid_sum: w[2],
            timestamp: w[3],
            rootbp: BlockPointer(bp),
            software_version: w[4],
            mmp_magic: w[5],
            mmp_delay: w[6],
            mmp_config: w[7],
            checkpoint_txg: w[8],
            raidz_reflow: w[9],
        }
    }

    proptest! {
        #[test]
        fn uberblocks_come_back(w: [u64; 10], bp: [u64; 16], ashift in 9u32..17, offset: u64) {
            let u = uberblock(&w, bp);
            let slot = encode_slot(&u, ashift, offset).unwrap();
            prop_assert_eq!(slot.len(), slot_size(ashift));
            prop_assert_eq!(decode_slot(&slot, offset).unwrap(), Some(u));
            prop_assert_eq!(decode_slot(&slot, offset ^ 512).unwrap(), None);
        }
    }

    #[test]
    fn a_whole_label() {
        let mut config = NvList::default();
        config.set("name", NvValue::String("tank".into()));
        let old = uberblock(&[5000, 7, 3, 4, 5, 0, 0, 0, 0, 0], [1; 16]);
        let new = Uberblock { txg: 8, ..old.clone() };
        let offset = 3 << 18;
        let label = encode_label(&config, [&old, &new], 12, offset).unwrap();
        assert_eq!(label.len() as u64, LABEL_SIZE);
        let at = |at: u64, len: usize| &label[at as usize..at as usize + len];
        let read = decode_config(at(CONFIG_OFFSET, CONFIG_SIZE), offset + CONFIG_OFFSET).unwrap();
        assert_eq!(read, Some(config.clone()));
        for u in [old, new] {
            let ring_at = RING_OFFSET + u.txg * 4096;
            assert_eq!(decode_slot(at(ring_at, 4096), offset + ring_at).unwrap(), Some(u));
        }
        let boot = at(BOOTENV_OFFSET, BOOTENV_SIZE);
        let verifier = [offset + BOOTENV_OFFSET, 0, 0, 0];
        assert!(verify_embedded(Checksum::Label, boot, verifier).unwrap().is_some());
        config.set("long", NvValue::ByteArray(vec![0; 112 << 10]));
        assert!(encode_config(&config, 0).is_err());
    }

    #[test]
    fn slots_of_transaction_groups() {
        assert_eq!((slots(9), slots(12), slots(16)), (128, 32, 16));
        assert_eq!(
            (slot_of(63, 12, false), slot_of(63, 12, true), slot_of(31, 12, true)),
            (31, 1, 0)
        );
    }
}
