//! What else is on a disk: file systems and the like, by the signatures that they are known by, and
//! tables of partitions.
//!
//! The names are those that `libblkid` has for them, as commands show them. What is in a partition is
//! not looked at: that there are partitions is reason enough to ask. OpenZFS, which gives a whole disk
//! a table of its own, wants `-f` as well for a disk with a table of the old kind, and where it
//! finds something in a partition.

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
/// Where the table of partitions is in the first sector, how long an entry is, where it tells the kind,
/// and the kind of the entry that only protects a table of the new kind.
const TABLE: usize = 446;
const ENTRY: usize = 16;
const KIND: usize = 4;
const PROTECTIVE: u8 = 0xee;
/// Where the header of the new kind may be: after the first sector.
const GPT: [usize; 2] = [512, 4096];
/// Bytes from the start that hold all signatures.
const HEAD: usize = 0x10080;

/// What is on the device, in the words of a message; `None`: nothing that is known.
pub(super) fn content(device: &dyn Device) -> Option<String> {
    let head = head(device)?;
    let filesystem = filesystem(&head).map(|kind| format!("a filesystem of type '{kind}'"));
    filesystem.or_else(|| Some(format!("a partition table of type '{}'", table(&head)?)))
}

fn head(device: &dyn Device) -> Option<Vec<u8>> {
    let mut reqs = [ReadReq::new(0, HEAD)];
    device.read_batch(&mut reqs);
    let [req] = reqs;
    Some(req.take().ok()?.to_vec())
}

/// The kind of the table of partitions, if it has any.
fn table(head: &[u8]) -> Option<&'static str> {
    let is_new = |at: &usize| head.get(*at..).is_some_and(|rest| rest.starts_with(b"EFI PART"));
    if GPT.iter().any(is_new) {
        return Some("gpt");
    }
    let table = head.get(TABLE..512)?.strip_suffix(&[0x55, 0xaa])?;
    let mut kinds = table.chunks_exact(ENTRY).filter_map(|entry| entry.get(KIND));
    kinds.any(|kind| !matches!(*kind, 0 | PROTECTIVE)).then_some("dos")
}

fn filesystem(head: &[u8]) -> Option<&'static str> {
    let has =
        |at: u64, magic: &[u8]| head.get(at as usize..).is_some_and(|rest| rest.starts_with(magic));
    if has(EXT_MAGIC.0, EXT_MAGIC.1) {
        return Some(ext(head));
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
        let fs = |kind: &str| Some(format!("a filesystem of type '{kind}'"));
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[(0, b"XFSB")]), fs("xfs"));
        assert_eq!(with(&[(0x10040, b"_BHRfS_M")]), fs("btrfs"));
        let magic: (usize, &[u8]) = (0x438, &[0x53, 0xef]);
        assert_eq!(with(&[magic]), fs("ext2"));
        assert_eq!(with(&[magic, (0x45c, &[4])]), fs("ext3"));
        assert_eq!(with(&[magic, (0x45c, &[4]), (0x460, &[0xc2, 2])]), fs("ext4"));
        assert_eq!(content(MemDevice::new("/short", vec![0; 512]).as_ref()), None);
        // Partitions: of the old kind, of the new one, and a table with nothing in it.
        let table = |kind: &str| Some(format!("a partition table of type '{kind}'"));
        let end: (usize, &[u8]) = (510, &[0x55, 0xaa]);
        assert_eq!(with(&[end, (446 + 16 + 4, &[0x83])]), table("dos"));
        assert_eq!(with(&[end, (446 + 4, &[0xee]), (512, b"EFI PART")]), table("gpt"));
        assert_eq!(with(&[end, (446 + 4, &[0xee]), (4096, b"EFI PART")]), table("gpt"));
        assert_eq!(with(&[end]), None);
        assert_eq!(with(&[end, (0x36, b"FAT16   "), (446, &[1; 64])]), fs("vfat"));
    }
}
