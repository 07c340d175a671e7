//! Labels: what a leaf vdev says about itself, and where the pool's latest root is.
//!
//! Every leaf device carries four copies of a 256 KiB label (`vdev_label_t`), two at its start
//! and two at its end (after the size is rounded down to a multiple of 256 KiB), so that an
//! update that is cut short and damage to one end both leave good copies:
//!
//! ```text
//! 0        8K         16K                      128K                       256K
//! | blank  | boot env | config nvlist (XDR)    | ring of uberblocks        |
//! | 8 KiB  | 8 KiB    | 112 KiB                | 128 KiB                   |
//! ```
//!
//! The config and each slot of the ring end in an embedded checksum (`zio_eck_t`) whose verifier
//! is the byte offset of that structure on the device: a label that was copied elsewhere does not
//! verify. A slot is as large as a sector of the device, between 1 and 8 KiB: [`slot_size`].
//! With multihost protection (MMP) the last slot of the ring is rewritten all the time.
//!
//! An uberblock (`uberblock_t`) holds the block pointer of the meta object set. The pool is
//! opened at the best valid one of all devices, see [`Uberblock::rank`].

use crate::blkptr::{BLKPTR_SIZE, BlockPointer};
use crate::checksum::{Checksum, EMBEDDED_SIZE, verify_embedded};
use crate::nvlist::NvList;
use crate::{ByteOrder, Bytes, DecodeError, Result};

/// Number of labels on a device (`VDEV_LABELS`).
pub const LABELS: usize = 4;
/// Bytes of a label; the size of a device counts in multiples of it.
pub const LABEL_SIZE: u64 = 256 << 10;
/// Byte offset of the boot environment block (`vdev_boot_envblock_t`) in a label; 8 KiB.
pub const BOOTENV_OFFSET: u64 = 8 << 10;
/// Byte offset of the config (`vdev_phys_t`) in a label.
pub const CONFIG_OFFSET: u64 = 16 << 10;
/// Bytes of the config with its embedded checksum.
pub const CONFIG_SIZE: usize = 112 << 10;
/// Byte offset of the ring of uberblocks in a label.
pub const RING_OFFSET: u64 = 128 << 10;
/// Bytes of the ring of uberblocks.
pub const RING_SIZE: usize = 128 << 10;
/// Bytes at the end of a device after its allocatable space: two labels.
pub const LABEL_END: u64 = 2 * LABEL_SIZE;

/// Bytes of the area between the first two labels of a device and its allocatable space, which is kept for boot loaders
/// (`VDEV_BOOT_SIZE`).
pub const BOOT_AREA: u64 = crate::LABEL_START - 2 * LABEL_SIZE;

/// What an uberblock begins with (`UBERBLOCK_MAGIC`).
pub const UBERBLOCK_MAGIC: u64 = 0x00ba_b10c;
/// Magic of the multihost fields of an uberblock.
pub const MMP_MAGIC: u64 = 0xa11c_ea11;

/// Byte offset on a device of `size` bytes of label `index` (0 to 3) (`vdev_label_offset`). `None` if the device is too small
/// for four labels or there is no such label.
pub fn label_offset(size: u64, index: usize) -> Option<u64> {
    let aligned = size / LABEL_SIZE * LABEL_SIZE;
    let end = aligned.checked_sub(LABELS as u64 * LABEL_SIZE)?;
    match index {
        0 | 1 => Some(index as u64 * LABEL_SIZE),
        2 | 3 => Some(end + index as u64 * LABEL_SIZE),
        _ => None,
    }
}

/// Bytes of a slot of the uberblock ring on a top-level vdev with sectors of `1 << ashift`.
pub fn slot_size(ashift: u32) -> usize {
    1 << ashift.clamp(10, 13)
}

/// Verifies and decodes a label's config: `data` is the [`CONFIG_SIZE`] bytes at byte `offset`
/// of the device. `Ok(None)` if the checksum does not match (a blank area does not).
pub fn decode_config(data: &[u8], offset: u64) -> Result<Option<NvList>> {
    let what = "label config";
    if data.len() != CONFIG_SIZE {
        return Err(DecodeError::Truncated { what, need: CONFIG_SIZE, have: data.len() });
    }
    if verify_embedded(Checksum::Label, data, [offset, 0, 0, 0])?.is_none() {
        return Ok(None);
    }
    NvList::decode(&data[..CONFIG_SIZE - EMBEDDED_SIZE]).map(Some)
}

/// Verifies and decodes one slot of the ring: `data` is the whole slot, at byte `offset` of the
/// device. `Ok(None)` if there is no uberblock or its checksum does not match.
pub fn decode_slot(data: &[u8], offset: u64) -> Result<Option<Uberblock>> {
    // Most slots of a young pool are blank: look at the magic before the checksum.
    let Some(uberblock) = Uberblock::decode(data)? else { return Ok(None) };
    let valid = verify_embedded(Checksum::Label, data, [offset, 0, 0, 0])?.is_some();
    Ok(valid.then_some(uberblock))
}

/// `uberblock_t`: the root of the pool as of one transaction group.
#[derive(Clone, Debug, PartialEq)]
pub struct Uberblock {
    /// Byte order of the machine that wrote it.
    pub order: ByteOrder,
    /// Pool version: 5000 for pools with feature flags.
    pub version: u64,
    /// Transaction group that it ends.
    pub txg: u64,
    /// Sum of the guids of all vdevs, modulo 2^64.
    pub guid_sum: u64,
    /// Seconds since 1970 of the sync.
    pub timestamp: u64,
    /// The meta object set.
    pub rootbp: BlockPointer,
    /// Highest pool version that the software that wrote this supports.
    pub software_version: u64,
    /// [`MMP_MAGIC`] if the multihost fields were written.
    pub mmp_magic: u64,
    /// Nanoseconds since the last multihost write; 0: multihost is off.
    pub mmp_delay: u64,
    /// Packed multihost settings: see [`Uberblock::mmp_interval`] and its neighbours.
    pub mmp_config: u64,
    /// In a checkpoint's uberblock, its original txg; otherwise 0.
    pub checkpoint_txg: u64,
    /// Packed state of a RAID-Z expansion (`ub_raidz_reflow_info`).
    pub raidz_reflow: u64,
}

impl Uberblock {
    /// Bytes of the fields; the rest of a slot is padding and the checksum.
    const FIELDS: usize = 40 + BLKPTR_SIZE + 48;

    /// Decodes the start of a slot, in the byte order in which the magic reads right (`uberblock_verify`). `Ok(None)` without
    /// the magic. Does not verify the embedded checksum: see [`decode_slot`].
    pub fn decode(data: &[u8]) -> Result<Option<Uberblock>> {
        let what = "uberblock";
        let order = match Bytes::new(data, ByteOrder::Little, what).u64(0)? {
            UBERBLOCK_MAGIC => ByteOrder::Little,
            m if m == UBERBLOCK_MAGIC.swap_bytes() => ByteOrder::Big,
            _ => return Ok(None),
        };
        let b = Bytes::new(data, order, what).sub(0, Self::FIELDS, what)?;
        let [version, txg, guid_sum, timestamp] = b.u64s(8)?;
        let rootbp = BlockPointer::decode(&b, 40)?;
        let [software_version, mmp_magic, mmp_delay, mmp_config, checkpoint_txg, raidz_reflow] =
            b.u64s(40 + BLKPTR_SIZE)?;
        Ok(Some(Uberblock {
            order,
            version,
            txg,
            guid_sum,
            timestamp,
            rootbp,
            software_version,
            mmp_magic,
            mmp_delay,
            mmp_config,
            checkpoint_txg,
            raidz_reflow,
        }))
    }

    /// What the best uberblock is the greatest by (`vdev_uberblock_compare`): transaction group, then time, then multihost
    /// sequence number (an uberblock without one counts as 0).
    pub fn rank(&self) -> (u64, u64, u16) {
        (self.txg, self.timestamp, self.mmp_sequence().unwrap_or(0))
    }

    /// The best of `candidates`: the first of those with the greatest [`Uberblock::rank`].
    pub fn best<'a>(candidates: impl IntoIterator<Item = &'a Uberblock>) -> Option<&'a Uberblock> {
        candidates.into_iter().reduce(|a, b| if b.rank() > a.rank() { b } else { a })
    }

    /// Whether the multihost fields were written at all (`MMP_VALID`).
    pub fn mmp_valid(&self) -> bool {
        self.mmp_magic == MMP_MAGIC
    }

    fn mmp_field(&self, valid_bit: u64, shift: u32, mask: u64) -> Option<u64> {
        let valid = self.mmp_valid() && self.mmp_config & valid_bit != 0;
        valid.then_some((self.mmp_config >> shift) & mask)
    }

    /// Milliseconds between multihost writes.
    pub fn mmp_interval(&self) -> Option<u32> {
        self.mmp_field(0x01, 8, 0xff_ffff).map(|v| v as u32)
    }

    /// Sequence number of multihost writes within one second.
    pub fn mmp_sequence(&self) -> Option<u16> {
        self.mmp_field(0x02, 32, 0xffff).map(|v| v as u16)
    }

    /// Number of write intervals without a successful write after which the pool is suspended.
    pub fn mmp_fail_intervals(&self) -> Option<u16> {
        self.mmp_field(0x04, 48, 0xffff).map(|v| v as u16)
    }

    /// The same, as of a RAID-Z expansion that has got to byte `offset` with the scratch area in this state
    /// (`RAIDZ_REFLOW_SET`).
    pub fn with_reflow(self, state: u64, offset: u64) -> Uberblock {
        Uberblock { raidz_reflow: state << 55 | offset >> crate::SECTOR_SHIFT, ..self }
    }

    /// State of the scratch area of a RAID-Z expansion (`RRSS_GET_STATE`); 0: not in use.
    pub fn reflow_state(&self) -> u64 {
        self.raidz_reflow >> 55
    }

    /// Bytes a RAID-Z expansion has got to (`RRSS_GET_OFFSET`); 0: no expansion is under way.
    pub fn reflow_offset(&self) -> u64 {
        (self.raidz_reflow & ((1 << 55) - 1)) << crate::SECTOR_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(order: ByteOrder, words: &[u64]) -> Vec<u8> {
        let bytes = |w: &u64| match order {
            ByteOrder::Little => w.to_le_bytes(),
            ByteOrder::Big => w.to_be_bytes(),
        };
        let mut out: Vec<u8> = words.iter().flat_map(bytes).collect();
        out.resize(1024, 0);
        out
    }

    #[test]
    fn both_byte_orders_decode_to_the_same() {
        let mut words: Vec<u64> = (0..27).collect();
        words[0] = UBERBLOCK_MAGIC;
        let little = Uberblock::decode(&slot(ByteOrder::Little, &words)).unwrap().unwrap();
        let big = Uberblock::decode(&slot(ByteOrder::Big, &words)).unwrap().unwrap();
        assert_eq!(big.order, ByteOrder::Big);
        assert_eq!(Uberblock { order: ByteOrder::Little, ..big }, little);
        assert_eq!((little.version, little.txg, little.timestamp), (1, 2, 4));
        assert_eq!(little.rootbp.0[0], 5);
        assert_eq!((little.software_version, little.raidz_reflow), (21, 26));
    }

    #[test]
    fn labels_of_a_device_of_odd_size() {
        let size = (64 << 20) + 12345;
        let at: Vec<u64> = (0..4).map(|i| label_offset(size, i).unwrap()).collect();
        assert_eq!(at, [0, 256 << 10, (64 << 20) - (512 << 10), (64 << 20) - (256 << 10)]);
        assert_eq!(label_offset(size, 4), None);
        assert_eq!(label_offset((1 << 20) - 1, 0), None);
    }

    #[test]
    fn slots_by_ashift() {
        assert_eq!([9, 10, 12, 13, 16].map(slot_size), [1024, 1024, 4096, 8192, 8192]);
    }

    #[test]
    fn the_best_is_chosen_by_txg_time_and_sequence() {
        let mut words = vec![0; 27];
        words[0] = UBERBLOCK_MAGIC;
        let base = Uberblock::decode(&slot(ByteOrder::Little, &words)).unwrap().unwrap();
        let seq = |n: u64| (n << 32) | 2;
        let old = Uberblock { txg: 5, timestamp: 90, ..base.clone() };
        let a = Uberblock { txg: 6, timestamp: 10, ..base.clone() };
        let b = Uberblock { mmp_magic: MMP_MAGIC, mmp_config: seq(3), ..a.clone() };
        let c = Uberblock { mmp_magic: MMP_MAGIC, mmp_config: seq(9), ..a.clone() };
        let no_magic = Uberblock { mmp_config: seq(10), ..a.clone() };
        assert_eq!(Uberblock::best([&old, &a, &b, &c, &no_magic]), Some(&c));
        assert_eq!(no_magic.mmp_sequence(), None);
        assert_eq!(Uberblock::best([&a, &old]), Some(&a));
        assert_eq!(Uberblock::best([]), None);
    }

    #[test]
    fn multihost_fields() {
        let mut words = vec![0; 27];
        words[0] = UBERBLOCK_MAGIC;
        let mut u = Uberblock::decode(&slot(ByteOrder::Little, &words)).unwrap().unwrap();
        u.mmp_magic = MMP_MAGIC;
        u.mmp_config = (10 << 48) | (7 << 32) | (1000 << 8) | 5;
        assert_eq!(u.mmp_interval(), Some(1000));
        assert_eq!(u.mmp_sequence(), None);
        assert_eq!(u.mmp_fail_intervals(), Some(10));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..1100), magic: bool
        ) {
            let mut bytes = bytes;
            if magic && bytes.len() >= 8 {
                bytes[..8].copy_from_slice(&UBERBLOCK_MAGIC.to_le_bytes());
            }
            let _ = Uberblock::decode(&bytes);
        }
    }
}
