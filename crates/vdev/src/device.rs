//! Devices: where bytes come from.
//!
//! A [`Device`] takes a batch of reads and completes all of them before it returns. Files and
//! block devices are read with `pread`, or a batch of small reads at once with io_uring
//! (`crate::uring`) where that is permitted; the devices of [`crate::inject`] wrap another one and
//! spoil or delay its reads.
//!
//! Invariants: a read is answered with exactly the bytes asked for or with an error; a device is
//! only ever opened read-only.

use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::uring::Ring;

/// One physical read. `result` is filled in by [`Device::read_batch`].
#[derive(Debug)]
pub struct ReadReq {
    /// Byte offset on the device.
    pub offset: u64,
    /// Bytes to read.
    pub len: usize,
    /// The completion: exactly `len` bytes, or why not. `None` until the batch is done.
    pub result: Option<io::Result<Vec<u8>>>,
}

impl ReadReq {
    /// A read of `len` bytes at byte `offset`.
    pub fn new(offset: u64, len: usize) -> ReadReq {
        ReadReq { offset, len, result: None }
    }

    /// Takes the completion; a device that set none failed the read.
    pub fn take(self) -> io::Result<Vec<u8>> {
        let lost = || Err(io::Error::other("the device did not answer"));
        self.result.unwrap_or_else(lost)
    }
}

/// A device: submit a batch, get completions.
pub trait Device: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Path for messages.
    fn path(&self) -> &Path;

    /// Performs the reads and sets each `result`. A read that comes out short is an error.
    fn read_batch(&self, reqs: &mut [ReadReq]);

    /// In how many batches, submitted at once from several threads, a batch of `requests` reads of
    /// `bytes` in all comes back soonest.
    fn concurrency(&self, requests: usize, bytes: u64) -> usize {
        let _ = (requests, bytes);
        1
    }
}

/// Reads `len` bytes at byte `offset` of `dev`.
#[cfg(test)]
pub(crate) fn read_at(dev: &dyn Device, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut req = [ReadReq::new(offset, len)];
    dev.read_batch(&mut req);
    let [req] = req;
    req.take()
}

/// Opens a file, block device or partition read-only.
///
/// Errors: those of opening it, and `InvalidInput` for anything else (a directory, a terminal).
pub fn open_device(path: &Path) -> io::Result<Arc<dyn Device>> {
    let mut file = File::open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a file or block device"));
    }
    // The end of a block device is its size.
    let size = file.seek(SeekFrom::End(0))?;
    Ok(Arc::new(FileDevice { file, size, path: path.to_path_buf(), ring: Ring::new() }))
}

/// The path of the first partition of the whole disk `disk`, where OpenZFS puts the pool when it
/// is given a whole disk: `/dev/sda` has `/dev/sda1`, `/dev/nvme0n1` has `/dev/nvme0n1p1`, and
/// links below `/dev/disk` get `-part1`.
pub fn first_partition(disk: &Path) -> PathBuf {
    let mut name = disk.as_os_str().to_os_string();
    let ends_in_digit = name.as_encoded_bytes().last().is_some_and(u8::is_ascii_digit);
    name.push(match disk.starts_with("/dev/disk") {
        true => "-part1",
        false if ends_in_digit => "p1",
        false => "1",
    });
    PathBuf::from(name)
}

/// A file or block device.
struct FileDevice {
    file: File,
    size: u64,
    path: PathBuf,
    ring: Ring,
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        let bytes = reqs.iter().map(|r| r.len as u64).sum();
        if suits_ring(reqs.len(), bytes) && self.ring.read(&self.file, reqs) {
            return;
        }
        for req in reqs {
            req.result = Some(pread(&self.file, req.offset, req.len));
        }
    }

    fn concurrency(&self, requests: usize, bytes: u64) -> usize {
        if !suits_ring(requests, bytes) {
            (bytes / BYTES_PER_THREAD).clamp(1, 4) as usize
        } else if Ring::permitted() {
            1
        } else {
            (requests / 4).clamp(1, 8)
        }
    }
}

/// Bytes of large reads that are worth a thread.
const BYTES_PER_THREAD: u64 = 256 << 10;

/// Whether io_uring is the way to do these reads. For many small ones, it has the device busy with
/// all of them at once; large ones are copied out of the page cache faster by several threads.
fn suits_ring(requests: usize, bytes: u64) -> bool {
    const SMALL: u64 = 64 << 10;
    requests > 1 && bytes / requests as u64 <= SMALL
}

/// Reads exactly `len` bytes at `offset` into a new buffer.
pub(crate) fn pread(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut buf = Vec::new();
    buf.try_reserve_exact(len).map_err(|_| ErrorKind::OutOfMemory)?;
    pread_rest(file, offset, len, &mut buf)?;
    Ok(buf)
}

/// Completes `buf`, which already holds the first bytes at `offset`, to `len` bytes. Its
/// capacity is at least `len`.
pub(crate) fn pread_rest(
    file: &File,
    offset: u64,
    len: usize,
    buf: &mut Vec<u8>,
) -> io::Result<()> {
    while buf.len() < len {
        let at = offset.checked_add(buf.len() as u64).ok_or(ErrorKind::InvalidInput)?;
        // Reads into the buffer's spare room, which thus needs no clearing beforehand.
        match rustix::io::pread(file, rustix::buffer::spare_capacity(buf), at) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    // The capacity, and so the last read, may exceed what was asked for.
    buf.truncate(len);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut f = tempfile::NamedTempFile::new().unwrap();
        f.write_all(bytes).unwrap();
        f
    }

    #[test]
    fn batches_read_what_is_there() {
        let bytes: Vec<u8> = (0..1 << 20).map(|i: u32| (i / 7) as u8).collect();
        let f = file_of(&bytes);
        let dev = open_device(f.path()).unwrap();
        assert_eq!(dev.size(), 1 << 20);
        for n in [1, 2, 300] {
            let mut reqs: Vec<ReadReq> =
                (0..n).map(|i| ReadReq::new(i * 3001, 1 + 97 * i as usize % 9000)).collect();
            dev.read_batch(&mut reqs);
            for r in reqs {
                let (at, len) = (r.offset as usize, r.len);
                assert_eq!(r.take().unwrap(), bytes[at..at + len]);
            }
        }
    }

    #[test]
    fn reads_past_the_end_are_errors() {
        let f = file_of(&[7; 1000]);
        let dev = open_device(f.path()).unwrap();
        let mut reqs = vec![
            ReadReq::new(0, 1000),
            ReadReq::new(1, 1000),
            ReadReq::new(5000, 1),
            ReadReq::new(u64::MAX - 5, 10),
        ];
        dev.read_batch(&mut reqs);
        let ok: Vec<bool> = reqs.into_iter().map(|r| r.take().is_ok()).collect();
        assert_eq!(ok, [true, false, false, false]);
        assert!(read_at(&*dev, 999, 2).is_err());
    }

    #[test]
    fn a_directory_is_not_a_device() {
        assert!(open_device(Path::new("/")).is_err());
        assert!(open_device(Path::new("/dev/null")).is_err());
        assert!(open_device(Path::new("/no/such/file")).is_err());
    }

    #[test]
    fn partitions_of_whole_disks() {
        let name = |p: &str| first_partition(Path::new(p)).display().to_string();
        assert_eq!(name("/dev/sda"), "/dev/sda1");
        assert_eq!(name("/dev/nvme0n1"), "/dev/nvme0n1p1");
        assert_eq!(name("/dev/disk/by-id/wwn-0x5000"), "/dev/disk/by-id/wwn-0x5000-part1");
    }
}
