//! Partitions of disk images: what `dd` of a whole disk gives is a file with a partition table, and the
//! pool is in one of its partitions.
//!
//! The kernel makes devices of the partitions of a disk, but not of a file. Here partition 1 of
//! the image `disk.img` is opened as `disk.img-part1`, in the manner of the links below `/dev/disk`,
//! where there is no file of that name. A table is a GUID partition table, in sectors of 512 or 4096
//! bytes, or the four primary partitions of the old kind (MBR).
//!
//! GPT header in sector 1, little endian:
//!
//! ```text
//! 0 "EFI PART" | 72 sector of the entries (8) | 80 how many (4) | 84 bytes of each (4)
//! entry: 0 type (16; zeros: not in use) | 32 first sector (8) | 40 last sector (8)
//! ```
//!
//! Of an image that was cut off, a partition that begins in it and ends behind it can be read as far as it is there.
//!
//! Invariants: a [`Partition`] is within its device, and a [`Slice`] never reaches beyond it. One of which a part is missing is not
//! opened for writing.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_format::invariant;

use crate::device::{Device, Identity, ReadReq, WriteReq};

const SIGNATURE: &[u8] = b"EFI PART";
/// Most entries that are looked at, and most bytes of each.
const MOST_ENTRIES: usize = 1024;
const MOST_ENTRY: usize = 4096;
/// Bytes of the sectors that the old kind counts in, of its entries, and where these are.
const MBR_SECTOR: u64 = 512;
const MBR_ENTRY: usize = 16;
const MBR_ENTRIES: std::ops::Range<usize> = 446..510;
/// What an entry begins with whose partition is not booted from, and one whose partition is: in a boot sector that has code
/// there, it is something else.
const BOOT: [u8; 2] = [0, 0x80];
/// The kind of the one that protects a GPT.
const PROTECTIVE: u8 = 0xee;

/// A partition of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, from 1 on.
    pub number: u32,
    /// Byte offset of its first byte.
    pub start: u64,
    /// Bytes of it that are on the device.
    pub size: u64,
    /// All of it is on the device.
    pub whole: bool,
}

impl Partition {
    /// The path by which it is opened, where `image` is the file that it is in.
    pub fn path(&self, image: &Path) -> PathBuf {
        let mut name = image.as_os_str().to_os_string();
        name.push(format!("-part{}", self.number));
        PathBuf::from(name)
    }
}

fn bytes_at(device: &dyn Device, offset: u64, len: usize) -> Option<Vec<u8>> {
    let mut req = [ReadReq::new(offset, len)];
    device.read_batch(&mut req);
    let [req] = req;
    Some(req.take().ok()?.to_vec())
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut all = [0; 8];
    all.get_mut(..N)?.copy_from_slice(bytes.get(at..at.checked_add(N)?)?);
    Some(u64::from_le_bytes(all))
}

/// The partitions of a device, by their numbers; empty if it has no table. Those that begin behind its end are left out.
pub fn partitions(device: &dyn Device) -> Vec<Partition> {
    let inside = |p: Partition| {
        let rest = device.size().checked_sub(p.start)?;
        let size = p.size.min(rest);
        (size > 0).then_some(Partition { size, whole: size == p.size, ..p })
    };
    in_table(device).into_iter().filter_map(inside).collect()
}

/// Where the last of the partitions ends that a device's table has, whether that is on the device or not; 0: it has no table.
pub(crate) fn reach(device: &dyn Device) -> u64 {
    // One that ends past all numbers reaches beyond every device.
    let ends = in_table(device).into_iter().map(|p| p.start.saturating_add(p.size));
    ends.max().unwrap_or(0)
}

fn in_table(device: &dyn Device) -> Vec<Partition> {
    let gpt = [512, 4096].into_iter().find_map(|sector| gpt(device, sector));
    gpt.or_else(|| mbr(device)).unwrap_or_default()
}

fn gpt(device: &dyn Device, sector: u64) -> Option<Vec<Partition>> {
    let header = bytes_at(device, sector, 512).filter(|bytes| bytes.starts_with(SIGNATURE))?;
    let first = number::<8>(&header, 72)?.checked_mul(sector)?;
    let count = usize::try_from(number::<4>(&header, 80)?).ok()?.min(MOST_ENTRIES);
    let len = usize::try_from(number::<4>(&header, 84)?).ok()?;
    if !(48..=MOST_ENTRY).contains(&len) {
        return None;
    }
    let entries = bytes_at(device, first, count.checked_mul(len)?)?;
    let partition = |(i, entry): (usize, &[u8])| {
        let used = entry.get(..16)?.iter().any(|b| *b != 0);
        let (first, last) = (number::<8>(entry, 32)?, number::<8>(entry, 40)?);
        let sectors = last.checked_sub(first)?.checked_add(1).filter(|_| used)?;
        let (start, size) = (first.checked_mul(sector)?, sectors.checked_mul(sector)?);
        Some(Partition { number: i as u32 + 1, start, size, whole: true })
    };
    Some(entries.chunks_exact(len).enumerate().filter_map(partition).collect())
}

fn mbr(device: &dyn Device) -> Option<Vec<Partition>> {
    let sector = bytes_at(device, 0, 512).filter(|bytes| bytes.ends_with(&[0x55, 0xaa]))?;
    let partition = |(i, entry): (usize, &[u8])| {
        entry.get(4).filter(|kind| **kind != 0 && **kind != PROTECTIVE)?;
        let (start, size) = (number::<4>(entry, 8)?, number::<4>(entry, 12)?);
        let (start, size) = (start * MBR_SECTOR, size * MBR_SECTOR);
        Some(Partition { number: i as u32 + 1, start, size, whole: true })
    };
    let entries = sector.get(MBR_ENTRIES)?.chunks_exact(MBR_ENTRY);
    if !entries.clone().filter_map(<[u8]>::first).all(|boot| BOOT.contains(boot)) {
        return None;
    }
    Some(entries.enumerate().filter_map(partition).collect())
}

/// What a path means that is not the path of anything.
pub(crate) enum Part {
    /// The partition with this number.
    Partition(u32),
    /// What begins at this byte.
    At(u64),
}

/// The image, and the part of it that a path means; `None`: it is the path of something, or of nothing at all.
pub(crate) fn image_of(path: &Path) -> Option<(PathBuf, Part)> {
    let name = path.as_os_str().as_encoded_bytes();
    let digits = name.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let (image, number) = name.split_at(name.len() - digits);
    let number = std::str::from_utf8(number).ok()?;
    let (image, part) = match (image.strip_suffix(b"-part"), image.strip_suffix(b"-at")) {
        (Some(image), _) => (image, Part::Partition(number.parse().ok()?)),
        (None, image) => (image?, Part::At(number.parse().ok()?)),
    };
    if path.symlink_metadata().is_ok() {
        return None;
    }
    let image = PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(image));
    let kind = image.metadata().ok()?.file_type();
    let fits = kind.is_file() || matches!(part, Part::At(_)) && kind.is_block_device();
    fits.then_some((image, part))
}

/// Whether a path means a part of an image, as those of this module do.
pub fn is_in_image(path: &Path) -> bool {
    image_of(path).is_some()
}

/// The path by which what begins at byte `start` of the image or disk at `image` is opened.
pub fn path_at(image: &Path, start: u64) -> PathBuf {
    let mut name = image.as_os_str().to_os_string();
    name.push(format!("-at{start}"));
    PathBuf::from(name)
}

/// Part of a device.
pub(crate) struct Slice {
    inner: Arc<dyn Device>,
    part: Partition,
    /// It may be written to.
    to_write: bool,
    path: PathBuf,
}

impl Slice {
    /// The part `which` of `image`.
    ///
    /// Errors: it does not exist; `ReadOnlyFilesystem`: `image` is open for writing, and the part may only be read.
    pub(crate) fn of(
        image: Arc<dyn Device>,
        which: Part,
        path: &Path,
    ) -> io::Result<Arc<dyn Device>> {
        let part = match which {
            Part::Partition(number) => partitions(&*image).into_iter().find(|p| p.number == number),
            Part::At(start) => {
                let size = image.size().checked_sub(start).filter(|size| *size > 0);
                size.map(|size| Partition { number: 0, start, size, whole: true })
            }
        };
        let part = part.ok_or(ErrorKind::NotFound)?;
        let to_write = part.whole && matches!(which, Part::Partition(_));
        if image.writable() && !to_write {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        // A part of which something is missing is only read, and ends with an error there.
        let size = image.size();
        let end = part.start.checked_add(part.size).filter(|end| *end <= size);
        invariant!(!part.whole || end.is_some(), "{part:?} is in a device of {size} bytes");
        Ok(Arc::new(Slice { inner: image, part, to_write, path: path.to_path_buf() }))
    }

    /// Where bytes of the partition are on the device.
    fn place(&self, offset: u64, len: usize) -> Option<u64> {
        let end = offset.checked_add(len as u64)?;
        if end > self.part.size { None } else { offset.checked_add(self.part.start) }
    }
}

impl Device for Slice {
    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.inner)
    }

    fn size(&self) -> u64 {
        self.part.size
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        let (mut moved, mut whose) = (Vec::with_capacity(reqs.len()), Vec::new());
        for (i, req) in reqs.iter_mut().enumerate().filter(|(_, req)| req.result.is_none()) {
            match self.place(req.offset, req.len) {
                Some(at) => {
                    moved.push(ReadReq::new(at, req.len));
                    whose.push(i);
                }
                None => req.result = Some(Err(ErrorKind::UnexpectedEof.into())),
            }
        }
        self.inner.read_batch(&mut moved);
        for (i, done) in whose.into_iter().zip(moved) {
            if let Some(req) = reqs.get_mut(i) {
                req.result = done.result;
            }
        }
    }

    fn writable(&self) -> bool {
        self.inner.writable()
    }

    fn unread(&self, offset: u64, len: u64) -> u64 {
        let inside = self.part.size.saturating_sub(offset).min(len);
        // What is past all numbers is not inside.
        let at = self.part.start.checked_add(offset);
        at.map_or(0, |at| self.inner.unread(at, inside))
    }

    fn only_read(&self) -> bool {
        !self.to_write || self.inner.only_read()
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        let (mut moved, mut whose) = (Vec::with_capacity(reqs.len()), Vec::new());
        for (i, req) in reqs.iter_mut().enumerate().filter(|(_, req)| req.result.is_none()) {
            match self.place(req.offset, req.data.len()) {
                Some(at) => {
                    moved.push(WriteReq::new(at, req.data.clone()));
                    whose.push(i);
                }
                None => req.result = Some(Err(ErrorKind::InvalidInput.into())),
            }
        }
        self.inner.write_batch(&mut moved);
        for (i, done) in whose.into_iter().zip(moved) {
            if let Some(req) = reqs.get_mut(i) {
                req.result = done.result;
            }
        }
    }

    fn can_trim(&self) -> bool {
        self.inner.can_trim()
    }

    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        let whole = usize::try_from(len).ok().and_then(|len| self.place(offset, len));
        self.inner.trim(whole.ok_or(ErrorKind::InvalidInput)?, len)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn identity(&self) -> Option<Identity> {
        self.inner.identity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{open_device, open_device_rw, read_at};
    use crate::inject::MemDevice;
    use cenote_format::abd::Abd;
    use proptest::prelude::*;

    const SECTORS: u64 = 256;

    /// A table with the partitions (number, first sector, last sector).
    fn image(sector: usize, parts: &[(usize, u64, u64)]) -> Vec<u8> {
        let mut image = vec![0; SECTORS as usize * sector];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(sector, SIGNATURE);
        put(sector + 72, &2u64.to_le_bytes());
        put(sector + 80, &128u32.to_le_bytes());
        put(sector + 84, &128u32.to_le_bytes());
        put(450, &[PROTECTIVE]);
        put(510, &[0x55, 0xaa]);
        for (number, first, last) in parts {
            let at = 2 * sector + 128 * (number - 1);
            put(at, &[1; 16]);
            put(at + 32, &first.to_le_bytes());
            put(at + 40, &last.to_le_bytes());
        }
        image
    }

    fn of(image: Vec<u8>) -> Vec<Partition> {
        partitions(&*MemDevice::new("image", image))
    }

    #[test]
    fn tables_of_both_kinds() {
        for sector in [512, 4096] {
            let found = of(image(sector, &[(1, 100, 199), (9, 200, 200), (2, 250, 256)]));
            let s = sector as u64;
            let first = Partition { number: 1, start: 100 * s, size: 100 * s, whole: true };
            // It reaches beyond the end.
            let second = Partition { number: 2, start: 250 * s, size: 6 * s, whole: false };
            let last = Partition { number: 9, start: 200 * s, size: s, whole: true };
            assert_eq!(found, [first, second, last]);
            assert!(of(image(sector, &[(1, SECTORS, SECTORS + 10)])).is_empty());
        }
        let mut old = vec![0; 100 << 10];
        old[510..512].copy_from_slice(&[0x55, 0xaa]);
        old[446 + 16 + 4] = 0x83;
        old[446 + 16 + 8] = 63;
        old[446 + 16 + 12] = 100;
        let second = Partition { number: 2, start: 63 * 512, size: 100 * 512, whole: true };
        assert_eq!(of(old.clone()), [second]);
        // Code, where a table would be.
        old[446] = 0x33;
        assert!(of(old).is_empty());
        assert!(of(vec![0; 1 << 20]).is_empty() && of(Vec::new()).is_empty());
    }

    #[test]
    fn a_partition_is_a_device() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        let mut bytes = image(512, &[(1, 100, 119)]);
        bytes[100 * 512..120 * 512].fill(7);
        std::fs::write(&path, &bytes).unwrap();
        let part = dir.path().join("disk.img-part1");
        let device = open_device(&part).unwrap();
        assert_eq!((device.size(), device.path()), (20 * 512, part.as_path()));
        assert_eq!(read_at(&*device, 0, 20 * 512).unwrap(), [7; 20 * 512]);
        assert!(read_at(&*device, 1, 20 * 512).is_err() && read_at(&*device, u64::MAX, 1).is_err());
        assert!(open_device(&dir.path().join("disk.img-part2")).is_err());
        let device = open_device_rw(&part).unwrap();
        assert!(device.writable() && device.is_there());
        let mut reqs = [(0, 512), (20 * 512 - 1, 2), (19 * 512, 512)]
            .map(|(at, len)| WriteReq::new(at, Abd::from_vec(vec![9; len])));
        device.write_batch(&mut reqs);
        assert_eq!(reqs.map(|r| r.take().is_ok()), [true, false, true]);
        device.flush().unwrap();
        bytes[100 * 512..101 * 512].fill(9);
        bytes[119 * 512..120 * 512].fill(9);
        assert!(std::fs::read(&path).unwrap() == bytes);
        // The image is taken as a whole.
        assert_eq!(open_device_rw(&path).err().unwrap().kind(), ErrorKind::ResourceBusy);
        std::fs::remove_file(&path).unwrap();
        assert!(!device.is_there());
    }

    #[test]
    fn a_partition_that_is_cut_off_is_read_as_far_as_it_goes() {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = image(512, &[(1, 100, 299), (2, 90, 99), (3, 256, 300)]);
        bytes[100 * 512..].fill(7);
        std::fs::write(dir.path().join("disk.img"), &bytes).unwrap();
        let part = dir.path().join("disk.img-part1");
        let device = open_device(&part).unwrap();
        assert_eq!((device.size(), device.only_read()), (156 * 512, true));
        assert_eq!(read_at(&*device, 0, 156 * 512).unwrap(), [7; 156 * 512]);
        assert!(read_at(&*device, 156 * 512 - 1, 2).is_err());
        let refused = open_device_rw(&part).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        let whole = open_device_rw(&dir.path().join("disk.img-part2")).unwrap();
        assert!(whole.writable() && !whole.only_read());
        let behind = open_device(&dir.path().join("disk.img-part3")).err().unwrap();
        assert_eq!(behind.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn what_begins_somewhere_is_a_device_to_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        std::fs::write(&path, [[1; 512], [2; 512], [3; 512]].concat()).unwrap();
        let part = path_at(&path, 1024);
        let device = open_device(&part).unwrap();
        assert_eq!((device.size(), device.path()), (512, part.as_path()));
        assert_eq!(read_at(&*device, 0, 512).unwrap(), [3; 512]);
        assert!(read_at(&*device, 1, 512).is_err() && is_in_image(&part) && !is_in_image(&path));
        let refused = open_device_rw(&part).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        for start in [1536, u64::MAX] {
            assert!(open_device(&path_at(&path, start)).is_err());
        }
        assert!(open_device(&dir.path().join("disk.img-at99999999999999999999")).is_err());
        std::fs::write(&part, [9; 512]).unwrap();
        assert_eq!(read_at(&*open_device(&part).unwrap(), 0, 512).unwrap(), [9; 512]);
    }

    proptest! {
        /// Whatever a table says, partitions are within the device.
        #[test]
        fn hostile_tables(
            numbers in proptest::collection::vec(any::<u64>(), 8), small: bool, at in 0usize..600,
        ) {
            let mut bytes = image(512, &[(1, numbers[0], numbers[1]), (2, 100, numbers[2] % 400)]);
            if small {
                bytes[512 + 72..512 + 80].copy_from_slice(&(numbers[3] % 300).to_le_bytes());
                bytes[512 + 80..512 + 84].copy_from_slice(&(numbers[4] as u32).to_le_bytes());
                bytes[512 + 84..512 + 88].copy_from_slice(&(numbers[5] as u32 % 5000).to_le_bytes());
            }
            bytes[at..at + 8].copy_from_slice(&numbers[6].to_le_bytes());
            let size = bytes.len() as u64;
            prop_assert!(of(bytes).iter().all(|p| p.start + p.size <= size));
        }
    }
}
