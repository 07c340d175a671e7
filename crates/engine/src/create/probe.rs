//! What else is on a device: file systems, members of arrays and volume groups, encrypted volumes and
//! swap, by the signatures that they are known by, and tables of partitions.
//!
//! The places and names are those that `libblkid` knows them by. The list is kept here: linking
//! `libblkid` takes a C library and its headers to build and to run, its bindings for Rust are under
//! another licence, and the program `blkid` is not in every container. A test has `blkid` judge the list
//! where it is installed. Members of pools are not in it: their labels tell more (`check`).
//!
//! What is in a partition is not looked at: that there are partitions is reason enough to ask. OpenZFS,
//! which gives a whole disk a table of its own, wants `-f` as well for a disk with a table of the old
//! kind, and where it finds something in a partition.

use cenote_vdev::{Device, ReadReq};

/// Where a signature is, in bytes from the start, what it is, and the name of what has it. Of several
/// the first one counts.
type Signature = (u64, &'static [u8], &'static str);

/// The magic number of Linux's arrays, as it is stored by little-endian systems.
const RAID: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
/// The same, by others.
const RAID_SWAPPED: &[u8] = &[0xa9, 0x2b, 0x4e, 0xfc];
const RAID_NAME: &str = "linux_raid_member";

const SIGNATURES: &[Signature] = &[
    // Encryption, arrays and volume groups come first: what is in them may show through.
    (0, b"LUKS\xba\xbe", "crypto_LUKS"),
    (0x4000, b"SKUL\xba\xbe", "crypto_LUKS"),
    (3, b"-FVE-FS-", "BitLocker"),
    (0, b"verity\0\0", "DM_verity_hash"),
    (0, b"integrt\0", "DM_integrity"),
    (0x18, b"LVM2 001", "LVM2_member"),
    (0x218, b"LVM2 001", "LVM2_member"),
    (0x418, b"LVM2 001", "LVM2_member"),
    (0x618, b"LVM2 001", "LVM2_member"),
    (0x1000, RAID, RAID_NAME),
    (0, RAID, RAID_NAME),
    (0x204, b"!Stra0tis\x86\xff\x02^\x41rh", "stratis"),
    (0x1204, b"!Stra0tis\x86\xff\x02^\x41rh", "stratis"),
    (0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "bcache"),
    (0x1018, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", "bcachefs"),
    (0, b"bluestore block device", "ceph_bluestore"),
    (0x10_0000, &[0x0d, 0xd0, 0x01, 0xc0], "VMFS_volume_member"),
    (0x20_0000, &[0x5e, 0xf1, 0xab, 0x2f], "VMFS"),
    (0, b"XFSB", "xfs"),
    (0x10040, b"_BHRfS_M", "btrfs"),
    (0x400, &[0x10, 0x20, 0xf5, 0xf2], "f2fs"),
    (0x400, &[0xe2, 0xe1, 0xf5, 0xe0], "erofs"),
    (0x20, b"NXSB", "apfs"),
    (0x400, b"H+\0\x04", "hfsplus"),
    (0x400, b"HX\0\x05", "hfsplus"),
    (0x8000, b"JFS1", "jfs"),
    (0x10034, b"ReIsEr", "reiserfs"),
    (0x2034, b"ReIsEr", "reiserfs"),
    (0x10000, b"ReIsEr4", "reiser4"),
    (0x10000, &[0x01, 0x16, 0x19, 0x70], "gfs2"),
    (0x400, b"OCFSV2", "ocfs2"),
    (0x800, b"OCFSV2", "ocfs2"),
    (0x1000, b"OCFSV2", "ocfs2"),
    (0x2000, b"OCFSV2", "ocfs2"),
    (0x255c, &[0x54, 0x19, 0x01, 0x00], "ufs"),
    (0x255c, &[0x19, 0x01, 0x54, 0x19], "ufs"),
    (0x1055c, &[0x19, 0x01, 0x54, 0x19], "ufs"),
    (3, b"NTFS    ", "ntfs"),
    (3, b"EXFAT   ", "exfat"),
    (0x52, b"FAT32   ", "vfat"),
    (0x36, b"FAT16   ", "vfat"),
    (0x36, b"FAT12   ", "vfat"),
    (0x36, b"FAT     ", "vfat"),
    (0x8001, b"CD001", "iso9660"),
    (0x8001, b"BEA01", "udf"),
    (0x8001, b"NSR0", "udf"),
    (0, b"hsqs", "squashfs"),
    (0, b"sqsh", "squashfs"),
    (0, &[0x45, 0x3d, 0xcd, 0x28], "cramfs"),
    (0, b"-rom1fs-", "romfs"),
    (0xff6, b"SWAPSPACE2", "swap"),
    (0x1ff6, b"SWAPSPACE2", "swap"),
    (0x3ff6, b"SWAPSPACE2", "swap"),
    (0x7ff6, b"SWAPSPACE2", "swap"),
    (0xfff6, b"SWAPSPACE2", "swap"),
    (0xff6, b"SWAP-SPACE", "swap"),
    (0xff6, b"S1SUSPEND", "swsuspend"),
    (0xff6, b"S2SUSPEND", "swsuspend"),
    (0xff6, b"ULSUSPEND", "swsuspend"),
    (0xff6, b"LINHIB0001", "swsuspend"),
];

/// The superblock of ext2 and its successors.
const EXT_MAGIC: (u64, &[u8]) = (0x438, &[0x53, 0xef]);
/// NILFS2's superblock: its revision, a word of its minor one, its magic.
const NILFS: (u64, &[u8]) = (0x400, &[2, 0, 0, 0, 0, 0, 0x34, 0x34]);
/// Where the table of partitions is in the first sector, how long an entry is, where it tells the kind,
/// and the kind of the entry that only protects a table of the new kind.
const TABLE: usize = 446;
const ENTRY: usize = 16;
const KIND: usize = 4;
const PROTECTIVE: u8 = 0xee;
/// Tables of other systems, in the first sectors.
const OTHER_TABLES: [Signature; 4] = [
    (508, &[0xda, 0xbe], "sun"),
    (0, &[0x0b, 0xe5, 0xa9, 0x41], "sgi"),
    (512, b"PM\0\0", "mac"),
    (512, &[0x57, 0x45, 0x56, 0x82], "bsd"),
];
/// Sizes of sectors: where the header of the new kind of table may be, from either end.
const SECTORS: [u64; 2] = [512, 4096];
const GPT: &[u8] = b"EFI PART";
/// Bytes that are read together.
const CHUNK: u64 = 4096;
/// Bytes at the start that hold nearly all signatures.
const HEAD: u64 = 0x11000;
/// Bytes at the end that hold the others.
const TAIL: u64 = 0x21000;

/// What is on the device, in the words of a message; `None`: nothing that is known.
pub(super) fn content(device: &dyn Device) -> Option<String> {
    let image = Image::read(device);
    let filesystem = filesystem(&image).map(|kind| format!("a filesystem of type '{kind}'"));
    filesystem.or_else(|| Some(format!("a partition table of type '{}'", table(&image)?)))
}

/// The parts of a device where signatures are.
struct Image {
    size: u64,
    parts: Vec<(u64, Vec<u8>)>,
}

impl Image {
    /// What can be read of it.
    fn read(device: &dyn Device) -> Image {
        let size = device.size();
        let tail = size.saturating_sub(TAIL) / CHUNK * CHUNK;
        let far = SIGNATURES.iter().map(|(at, ..)| *at).filter(|at| *at >= HEAD);
        let places = [(0, HEAD.min(size)), (tail, size - tail)];
        let places = places.into_iter().chain(far.map(|at| (at, CHUNK)));
        let places = places.filter(|(at, len)| at.checked_add(*len).is_some_and(|end| end <= size));
        let mut reqs: Vec<ReadReq> =
            places.map(|(at, len)| ReadReq::new(at, len as usize)).collect();
        let starts: Vec<u64> = reqs.iter().map(|r| r.offset).collect();
        device.read_batch(&mut reqs);
        let read = starts.into_iter().zip(reqs);
        let parts = read.filter_map(|(at, req)| Some((at, req.take().ok()?.to_vec()))).collect();
        Image { size, parts }
    }

    /// The bytes from `at` on, as far as they are known.
    fn from(&self, at: u64) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().filter_map(move |(start, bytes)| {
            bytes.get(usize::try_from(at.checked_sub(*start)?).ok()?..)
        })
    }

    fn has(&self, at: u64, magic: &[u8]) -> bool {
        self.from(at).any(|bytes| bytes.starts_with(magic))
    }

    /// Whether `magic` is so many bytes before the end.
    fn has_before_end(&self, distance: u64, magic: &[u8]) -> bool {
        self.size.checked_sub(distance).is_some_and(|at| self.has(at, magic))
    }

    fn word(&self, at: u64) -> u32 {
        let bytes = self.from(at).find_map(|bytes| bytes.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }
}

/// The kind of the table of partitions, if it has any.
fn table(image: &Image) -> Option<&'static str> {
    let ends = |sector: &u64| image.has(*sector, GPT) || image.has_before_end(*sector, GPT);
    if SECTORS.iter().any(ends) {
        return Some("gpt");
    }
    if let Some((.., name)) = OTHER_TABLES.iter().find(|(at, magic, _)| image.has(*at, magic)) {
        return Some(name);
    }
    let table = image.from(0).next()?.get(TABLE..512)?.strip_suffix(&[0x55, 0xaa])?;
    let mut kinds = table.chunks_exact(ENTRY).filter_map(|entry| entry.get(KIND));
    kinds.any(|kind| !matches!(*kind, 0 | PROTECTIVE)).then_some("dos")
}

fn filesystem(image: &Image) -> Option<&'static str> {
    if let Some(member) = array(image) {
        return Some(member);
    }
    if image.has(EXT_MAGIC.0, EXT_MAGIC.1) {
        return Some(ext(image));
    }
    if image.has(NILFS.0, NILFS.1) {
        return Some("nilfs2");
    }
    SIGNATURES.iter().find(|(at, magic, _)| image.has(*at, magic)).map(|(.., name)| *name)
}

/// Arrays whose members tell at their ends.
fn array(image: &Image) -> Option<&'static str> {
    // Version 0.90: at the last but one multiple of 64 KiB. Version 1.0: 8 KiB to 12 KiB before the end.
    let old = (image.size & !0xffff).checked_sub(0x1_0000);
    let new = image.size.checked_sub(0x2000).map(|at| at & !0xfff);
    let here = |at: Option<u64>, magic: &[u8]| at.is_some_and(|at| image.has(at, magic));
    if here(old, RAID) || here(old, RAID_SWAPPED) || here(new, RAID) {
        return Some(RAID_NAME);
    }
    if image.has_before_end(512, &[0xde, 0x11, 0xde, 0x11]) {
        return Some("ddf_raid_member");
    }
    image.has_before_end(1024, b"Intel Raid ISM Cfg Sig. ").then_some("isw_raid_member")
}

/// Which of the family, by the features in the superblock.
fn ext(image: &Image) -> &'static str {
    let (compatible, incompatible) = (image.word(0x45c), image.word(0x460));
    // More than a file type, recovery, a journal device and groups of metadata: extents, 64 bits…
    match (compatible & 4 != 0, incompatible & !0x1e != 0) {
        (_, true) => "ext4",
        (true, false) => "ext3",
        (false, false) => "ext2",
    }
}

#[cfg(test)]
mod tests;
