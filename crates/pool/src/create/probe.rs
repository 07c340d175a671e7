//! What else is on a disk: file systems and the like, by the signatures that they are known by.
//!
//! The names are those that `libblkid` has for them, as commands show them.

use cenote_vdev::{Device, ReadReq};

/// Where a signature is, what it is, and the name.
type Signature = (u64, &'static [u8], &'static str);

const SIGNATURES: [Signature; 16] = [
    (0, b"XFSB", "xfs"),
    (0x10040, b"_BHRfS_M", "btrfs"),
    (0x400, &[0x10, 0x20, 0xf5, 0xf2], "f2fs"),
    (0x3, b"NTFS    ", "ntfs"),
    (0x3, b"EXFAT   ", "exfat"),
    (0x52, b"FAT32   ", "vfat"),
    (0x36, b"FAT16   ", "vfat"),
    (0x36, b"FAT12   ", "vfat"),
    (0x8001, b"CD001", "iso9660"),
    (0, b"hsqs", "squashfs"),
    (0xff6, b"SWAPSPACE2", "swap"),
    (0, b"LUKS\xba\xbe", "crypto_LUKS"),
    (0x218, b"LVM2 001", "LVM2_member"),
    (0x1000, &[0xfc, 0x4e, 0x2b, 0xa9], "linux_raid_member"),
    (0, &[0xfc, 0x4e, 0x2b, 0xa9], "linux_raid_member"),
    (0x10034, b"ReIsEr", "reiserfs"),
];

/// The superblock of ext2 and its successors.
const EXT_MAGIC: (u64, &[u8]) = (0x438, &[0x53, 0xef]);
/// Bytes from the start that hold all signatures.
const HEAD: usize = 0x10080;

/// What is on the device; `None`: nothing that is known.
pub(super) fn content(device: &dyn Device) -> Option<&'static str> {
    let mut reqs = [ReadReq::new(0, HEAD)];
    device.read_batch(&mut reqs);
    let [req] = reqs;
    let head = req.take().ok()?;
    let has =
        |at: u64, magic: &[u8]| head.get(at as usize..).is_some_and(|rest| rest.starts_with(magic));
    if has(EXT_MAGIC.0, EXT_MAGIC.1) {
        return Some(ext(&head));
    }
    SIGNATURES.iter().find(|(at, magic, _)| has(*at, magic)).map(|(_, _, name)| *name)
}

/// Which of the family, by the features in the superblock.
fn ext(head: &[u8]) -> &'static str {
    let word = |at: usize| {
        let bytes = head.get(at..at + 4).and_then(|b| <[u8; 4]>::try_from(b).ok());
        bytes.map_or(0, u32::from_le_bytes)
    };
    let (compatible, incompatible) = (word(0x45c), word(0x460));
    // More than a file type, recovery, a journal device and groups of metadata: extents, 64 bits…
    match (compatible & 4 != 0, incompatible & !0x1e != 0) {
        (_, true) => "ext4",
        (true, false) => "ext3",
        (false, false) => "ext2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_vdev::inject::MemDevice;

    #[test]
    fn signatures_are_found() {
        let with = |parts: &[(usize, &[u8])]| {
            let mut bytes = vec![0; 1 << 20];
            for (at, magic) in parts {
                bytes[*at..*at + magic.len()].copy_from_slice(magic);
            }
            content(MemDevice::new("/disk", bytes).as_ref())
        };
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[(0, b"XFSB")]), Some("xfs"));
        assert_eq!(with(&[(0x10040, b"_BHRfS_M")]), Some("btrfs"));
        let magic: (usize, &[u8]) = (0x438, &[0x53, 0xef]);
        assert_eq!(with(&[magic]), Some("ext2"));
        assert_eq!(with(&[magic, (0x45c, &[4])]), Some("ext3"));
        assert_eq!(with(&[magic, (0x45c, &[4]), (0x460, &[0xc2, 2])]), Some("ext4"));
        assert_eq!(content(MemDevice::new("/short", vec![0; 512]).as_ref()), None);
    }
}
