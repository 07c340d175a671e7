//! Devices: where bytes come from and go to.
//!
//! A [`Device`] takes a batch of reads or writes and completes all of them before it returns. Files
//! and block devices are read with `pread`, or a batch at once with io_uring (`crate::uring`) where
//! that is permitted: many small reads, and many large ones past the page cache (`crate::direct`).
//! They are written with `pwritev`, straight from the pieces of an [`Abd`]; the devices of
//! [`crate::inject`] wrap another one and spoil, delay or lose what goes through them.
//!
//! Writes go through the page cache, and a write that was answered is durable only after the next
//! [`Device::flush`] that succeeded. io_uring is not used for them: a buffered write to a file
//! holds the file's lock while it copies, and one that io_uring cannot finish at once is handed to
//! a thread of the kernel's, so that batches of writes of 4 to 8 KiB took longer that way than
//! one `pwritev` after the other.
//!
//! An image beside which a map of ddrescue lies has only what that map calls finished (`crate::holes`).
//!
//! Invariants: a read is answered with exactly the bytes asked for or with an error; a write
//! that was answered well is complete, and does not go beyond the device's size. A device is opened
//! read-only unless it is asked for with [`open_device_rw`], and no two processes (nor one process
//! twice) have it open for writing at the same time.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::UNIX_EPOCH;

use cenote_format::abd::Abd;
use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags};

use crate::backing::{self, busy, hold};
use crate::direct::{Direct, is_cached};
use crate::growing::Growing;
use crate::holes::{self, Holed};
use crate::mapfile::Unread;
use crate::object;
use crate::partition::{Part, Slice, image_of};
use crate::parts;
use crate::uring::{DEPTH, Rings};

/// One physical read. `result` is filled in by [`Device::read_batch`].
#[derive(Debug)]
pub struct ReadReq {
    /// Byte offset on the device.
    pub offset: u64,
    /// Bytes to read.
    pub len: usize,
    /// The completion: exactly `len` bytes, or why not. `None` until the batch is done.
    pub result: Option<io::Result<Abd>>,
}

impl ReadReq {
    /// A read of `len` bytes at byte `offset`.
    pub fn new(offset: u64, len: usize) -> ReadReq {
        ReadReq { offset, len, result: None }
    }

    /// The bytes of the device. Those of a read past all numbers end where these do: there is no such device.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len as u64)
    }

    /// Takes the completion; a device that did not set it failed the read.
    pub fn take(self) -> io::Result<Abd> {
        let lost = || Err(io::Error::other("the device did not answer"));
        self.result.unwrap_or_else(lost)
    }
}

/// One physical write. `result` is filled in by [`Device::write_batch`].
#[derive(Debug)]
pub struct WriteReq {
    /// Byte offset on the device.
    pub offset: u64,
    /// The bytes to write.
    pub data: Abd,
    /// It may be written again before its transaction group ends: a device whose addresses are never used twice holds it
    /// back.
    pub held: bool,
    /// The completion: written as a whole, or why not. `None` until the batch is done.
    pub result: Option<io::Result<()>>,
}

impl WriteReq {
    /// A write of `data` at byte `offset`.
    pub fn new(offset: u64, data: Abd) -> WriteReq {
        WriteReq { offset, data, held: false, result: None }
    }

    /// The bytes of the device, as [`ReadReq::range`].
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.data.len() as u64)
    }

    /// Takes the completion; a device that did not set it failed the write.
    pub fn take(self) -> io::Result<()> {
        self.result.unwrap_or_else(|| Err(io::Error::other("the device did not answer")))
    }
}

/// Which device, or file, something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Of a file that of its file system and its own, of a block device its type and number.
    place: (u64, u64),
    /// What tells it from those that have had this place before, if that is known: of a disk the number that the kernel gave it when it,
    /// or its medium, came (since Linux 5.15), of a file when it was made.
    turn: Option<u64>,
}

impl Identity {
    /// That of the block device or file with these facts.
    pub fn of(facts: &Metadata) -> Identity {
        if facts.file_type().is_block_device() {
            let place = (u64::MAX, facts.rdev());
            return Identity { place, turn: sequence(facts.rdev()) };
        }
        let made = facts.created().ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok());
        let turn = made.and_then(|made| u64::try_from(made.as_nanos()).ok());
        Identity { place: (facts.dev(), facts.ino()), turn }
    }

    /// Whether it tells the device from others that have had its place before.
    pub fn is_distinct(&self) -> bool {
        self.turn.is_some()
    }

    /// Whether the two are the same device, as far as that is known. A disk and a partition of it are.
    pub fn is_same(&self, other: &Identity) -> bool {
        let both = |identity: &Identity| identity.place.0 == u64::MAX && identity.turn.is_some();
        self.turn == other.turn && (self.place == other.place || both(self) && both(other))
    }
}

/// The number that the kernel gave a disk when it came, or its medium; of a partition that of its disk.
fn sequence(rdev: u64) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let dir = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let found = ["diskseq", "../diskseq"];
    let text = found.iter().find_map(|name| std::fs::read_to_string(dir.join(name)).ok())?;
    text.trim().parse().ok()
}

/// A device: submit a batch, get completions.
pub trait Device: Send + Sync {
    /// The device that this one stands before. What is asked of a device as a whole, this one answers as that one does unless it
    /// says something else: whether it is current, there or unlinked, what the system remembers of it, and how many reads it does at once.
    /// What goes by bytes (sizes, places, holes), what takes writes, and which device it is, each says for itself.
    fn below(&self) -> Option<&dyn Device> {
        None
    }

    /// Size in bytes.
    fn size(&self) -> u64;

    /// Looks at how large the device is by now, which may have grown since it was opened. Like [`Device::is_current`],
    /// [`Device::is_there`] and [`Device::is_unlinked`], this waits as long as the device hangs.
    fn size_by_now(&self) -> u64 {
        self.size()
    }

    /// From now on the device has at least so many bytes, as [`Device::size_by_now`] said.
    fn grow(&self, size: u64) {
        let _ = size;
    }

    /// Path for messages.
    fn path(&self) -> &Path;

    /// Performs the reads and sets each `result`. A read that comes out short is an error.
    fn read_batch(&self, reqs: &mut [ReadReq]);

    /// Whether the device was opened for writing.
    fn writable(&self) -> bool {
        false
    }

    /// How many of the `len` bytes at byte `offset` are known as not read from the disk that this is an image of.
    fn unread(&self, offset: u64, len: u64) -> u64 {
        let _ = (offset, len);
        0
    }

    /// Whether no caller can open the device for writing: it is an image with holes, or part of an image.
    fn only_read(&self) -> bool {
        false
    }

    /// Performs the writes, in no particular order, and sets each `result`. What a write that
    /// failed, or whose result was not seen, leaves in its place is not defined. Writes that were
    /// answered survive the loss of power only after a [`Device::flush`].
    fn write_batch(&self, reqs: &mut [WriteReq]) {
        for req in reqs {
            req.result = Some(Err(ErrorKind::ReadOnlyFilesystem.into()));
        }
    }

    /// Makes all writes that were answered before the call durable.
    ///
    /// After an error no write since the last flush is known to be durable, and to
    /// flush again does not help: the kernel may have dropped what it could not write.
    fn flush(&self) -> io::Result<()> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }

    /// Whether it can be told what is free ([`Device::trim`]).
    fn can_trim(&self) -> bool {
        false
    }

    /// Tells the device that nothing is in the `len` bytes at byte `offset` any more. What is read there is not defined
    /// from now on, until it is written again. Where the system below cannot do it this is [`ErrorKind::Unsupported`].
    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(ErrorKind::Unsupported.into())
    }

    /// Whether opening the device again, by its path, would give no other one. Where that cannot be
    /// told without doing it: no.
    fn is_current(&self) -> bool {
        self.below().is_none_or(|below| below.is_current())
    }

    /// Whether its path still leads to it: it was not deleted, and nothing else was put in its place.
    fn is_there(&self) -> bool {
        self.below().is_none_or(|below| below.is_there())
    }

    /// Which device it is, whatever its path leads to by now; `None`: that is not known. Nothing waits for the device.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Whether the file was deleted, or another one renamed over it. No path is looked up for it.
    fn is_unlinked(&self) -> bool {
        self.below().is_some_and(|below| below.is_unlinked())
    }

    /// Has the next reads see what is on the device, not what the system remembers of it.
    fn forget_cached(&self) {
        self.below().into_iter().for_each(|below| below.forget_cached());
    }

    /// How many of a batch of `requests` reads of `bytes` in all are under way at once.
    fn depth(&self, requests: usize, bytes: u64) -> usize {
        self.below().map_or(1, |below| below.depth(requests, bytes))
    }

    /// What gives out its addresses itself, if they are never used twice.
    fn growing(&self) -> Option<Arc<dyn Growing>> {
        None
    }

    /// In how many batches, submitted at once from several threads, a batch of `requests` reads of
    /// `bytes` in all comes back soonest, where a batch is done one read after the other.
    fn concurrency(&self, requests: usize, bytes: u64) -> usize {
        self.below().map_or(1, |below| below.concurrency(requests, bytes))
    }
}

/// Reads `len` bytes at byte `offset` of `dev`.
#[cfg(test)]
pub(crate) fn read_at(dev: &dyn Device, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut req = [ReadReq::new(offset, len)];
    dev.read_batch(&mut req);
    let [req] = req;
    Ok(req.take()?.to_vec())
}

/// Opens a file, block device, partition or object store ([`object::is_object`]) read-only; also a partition of an image
/// ([`crate::Partition::path`]) and what begins somewhere in one ([`crate::path_at`]): `vdev_file_open`, `vdev_disk_open`. The first part
/// of an image that was split is opened as all of it.
///
/// Errors: errors of opening it, `Unsupported` for an image whose map is not understood, and `InvalidInput` for anything else (a
/// directory, a terminal).
pub fn open_device(path: &Path) -> io::Result<Arc<dyn Device>> {
    if object::is_object(path) {
        return object::open(path);
    }
    if let Some((image, part)) = image_of(path) {
        return Slice::of(open_device(&image)?, part, path);
    }
    let device = open_file(path)?;
    Ok(parts::joined(&device)?.unwrap_or(device))
}

/// Opens a file or block device read-only, as it is: also a part of an image.
pub(crate) fn open_file(path: &Path) -> io::Result<Arc<dyn Device>> {
    let file = File::open(path)?;
    let unread = unread(&file, path)?;
    let device = FileDevice::open(file, path, None)?;
    Ok(match unread {
        Some(unread) => Holed::over(device, unread),
        None => device,
    })
}

/// Where a file or block device ends.
fn end_of(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// What was not read of an image, if `file` is one, or a loop device over one: see [`holes::unread`].
fn unread(file: &File, path: &Path) -> io::Result<Option<Unread>> {
    let facts = file.metadata()?;
    match facts.file_type() {
        kind if kind.is_file() => holes::unread(Some(file), path, facts.len()),
        kind if kind.is_block_device() => backing::unread(facts.rdev(), end_of(file)?),
        _ => Ok(None),
    }
}

/// Opens a file, block device or partition for reading and writing, for this caller alone: a block
/// device with `O_EXCL`, which excludes mounts, other pools and all others that open it so; a file,
/// and the one behind a loop device, with an exclusive lock (`flock`). All last until the device is
/// dropped. [`open_device`] is not kept out.
///
/// Errors: errors of opening it, `InvalidInput` for anything else (a directory, a terminal),
/// `ResourceBusy` if it is in use, and `ReadOnlyFilesystem` if it cannot be written to, or is an image with holes, what begins somewhere in
/// one, or a partition whose end is not in it.
pub fn open_device_rw(path: &Path) -> io::Result<Arc<dyn Device>> {
    if object::is_object(path) {
        return object::open_rw(path);
    }
    match image_of(path) {
        Some((_, Part::At(_))) => return Err(ErrorKind::ReadOnlyFilesystem.into()),
        Some((image, part)) => return Slice::of(open_device_rw(&image)?, part, path),
        None => {}
    }
    let kind = path.metadata()?.file_type();
    check_kind(kind)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if kind.is_block_device() {
        options.custom_flags(OFlags::EXCL.bits().cast_signed());
    }
    let file = options.open(path)?;
    // The path may have changed its meaning in between.
    if file.metadata()?.file_type() != kind {
        return Err(ErrorKind::ResourceBusy.into());
    }
    if kind.is_block_device() && is_readonly(file.metadata()?.rdev()) {
        return Err(ErrorKind::ReadOnlyFilesystem.into());
    }
    if unread(&file, path)?.is_some() {
        let why = "its map says that some of it was not read from the disk";
        return Err(io::Error::new(ErrorKind::ReadOnlyFilesystem, why));
    }
    if kind.is_file() && parts::joined(&open_file(path)?)?.is_some() {
        let why = "it is the first part of an image";
        return Err(io::Error::new(ErrorKind::ReadOnlyFilesystem, why));
    }
    let mut held = Vec::new();
    if kind.is_file() {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| if e == rustix::io::Errno::WOULDBLOCK { busy() } else { e.into() })?;
    } else {
        held = hold(file.metadata()?.rdev())?;
    }
    FileDevice::open(file, path, Some(held))
}

/// Whether the kernel refuses all writes to a block device. It may let it be opened for that.
fn is_readonly(rdev: u64) -> bool {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let said = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    said.is_ok_and(|said| said.trim() == "1")
}

fn check_kind(kind: FileType) -> io::Result<()> {
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "not a file or block device"))
}

/// The path of the first partition of the whole disk `disk`, where OpenZFS puts the pool when it
/// is given a whole disk (`zfs_append_partition`): `/dev/sda` has `/dev/sda1`, `/dev/nvme0n1` has `/dev/nvme0n1p1`, and links
/// below `/dev/disk` get `-part1`.
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

/// A file or block device (`vdev_disk_io_start`, `vdev_file_io_start`).
struct FileDevice {
    file: File,
    size: AtomicU64,
    path: PathBuf,
    /// The number of a block device; `None`: it is a file. Asked for when it was opened: what hangs says nothing.
    block: Option<u64>,
    writable: bool,
    rings: Rings,
    direct: Option<Direct>,
    /// What is behind it, kept from others.
    _held: Vec<File>,
}

impl FileDevice {
    /// `held`: it was opened for writing, and this must be kept with it.
    fn open(file: File, path: &Path, held: Option<Vec<File>>) -> io::Result<Arc<dyn Device>> {
        let meta = file.metadata()?;
        check_kind(meta.file_type())?;
        let block = meta.file_type().is_block_device().then(|| meta.rdev());
        // The end of a block device is its size.
        let size = end_of(&file)?;
        let path = path.to_path_buf();
        let (writable, direct, rings) = (held.is_some(), Direct::open(&file), Rings::default());
        let (size, _held) = (AtomicU64::new(size), held.unwrap_or_default());
        Ok(Arc::new(FileDevice { file, size, path, block, writable, rings, direct, _held }))
    }

    fn write(&self, req: &WriteReq) -> io::Result<()> {
        let end = req.offset.checked_add(req.data.len() as u64);
        if end.is_none_or(|end| end > self.size()) {
            // A file would grow.
            return Err(io::Error::new(ErrorKind::InvalidInput, "a write beyond the end"));
        }
        pwrite(&self.file, req.offset, &req.data).map_err(|e| match e.kind() {
            // Of a block device that got smaller; nothing below it is full.
            ErrorKind::StorageFull if self.block.is_some() => io::Error::other(e.to_string()),
            _ => e,
        })
    }
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size.load(Relaxed)
    }

    fn size_by_now(&self) -> u64 {
        let now = end_of(&self.file).unwrap_or(0);
        now.max(self.size())
    }

    fn grow(&self, size: u64) {
        self.size.fetch_max(size, Relaxed);
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        let bytes: u64 = reqs.iter().map(|r| r.len as u64).sum();
        let direct = self.direct.as_ref().filter(|direct| direct.suits(reqs, bytes));
        if suits_ring(reqs.len(), bytes) {
            self.rings.read(&self.file, None, reqs);
        } else if let Some(direct) = direct {
            for req in reqs.iter_mut().filter(|req| is_cached(&self.file, req.offset, req.len)) {
                req.result = Some(pread(&self.file, req.offset, req.len));
            }
            self.rings.read(&self.file, Some(direct), reqs);
        }
        for req in reqs.iter_mut().filter(|req| req.result.is_none()) {
            req.result = Some(pread(&self.file, req.offset, req.len));
        }
    }

    fn writable(&self) -> bool {
        self.writable
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        for req in reqs {
            req.result = Some(match self.writable {
                true => self.write(req),
                false => Err(ErrorKind::ReadOnlyFilesystem.into()),
            });
        }
    }

    fn flush(&self) -> io::Result<()> {
        if !self.writable {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        loop {
            // Of a block device too, this empties the page cache and then the device's own cache.
            match rustix::fs::fdatasync(&self.file) {
                Err(rustix::io::Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    fn can_trim(&self) -> bool {
        self.writable && self.block.is_none_or(crate::trim::block_device_can)
    }

    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        if !self.writable {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        if offset.checked_add(len).is_none_or(|end| end > self.size()) {
            return Err(ErrorKind::InvalidInput.into());
        }
        // Of a block device this writes zeros without a write: by giving its space back.
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            match rustix::fs::fallocate(&self.file, how, offset, len) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                    return Err(ErrorKind::Unsupported.into());
                }
                result => return Ok(result?),
            }
        }
    }

    fn is_current(&self) -> bool {
        // Of a block device the page cache is kept as long as a process has it open, whatever is behind
        // its name by then.
        let (Ok(own), Ok(now)) = (self.file.metadata(), self.path.metadata()) else { return false };
        let same = (own.dev(), own.ino()) == (now.dev(), now.ino()) && now.is_file();
        same && now.len() == self.size()
    }

    fn is_there(&self) -> bool {
        let (Ok(own), Ok(now)) = (self.file.metadata(), self.path.metadata()) else { return false };
        match own.file_type().is_block_device() {
            true => now.file_type().is_block_device() && own.rdev() == now.rdev(),
            false => (own.dev(), own.ino()) == (now.dev(), now.ino()),
        }
    }

    fn identity(&self) -> Option<Identity> {
        self.file.metadata().ok().map(|facts| Identity::of(&facts))
    }

    fn is_unlinked(&self) -> bool {
        self.file.metadata().is_ok_and(|own| own.is_file() && own.nlink() == 0)
    }

    fn forget_cached(&self) {
        // Best effort: what could not be written stays.
        if let Err(e) = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed) {
            tracing::debug!(path = %self.path.display(), %e, "the page cache is kept");
        }
    }

    fn depth(&self, requests: usize, bytes: u64) -> usize {
        match suits_ring(requests, bytes) || self.direct.is_some() {
            true if self.rings.permitted() => requests.min(DEPTH as usize),
            _ => 1,
        }
    }

    fn concurrency(&self, requests: usize, bytes: u64) -> usize {
        if suits_ring(requests, bytes) {
            (requests / 4).clamp(1, 8)
        } else {
            (bytes / BYTES_PER_THREAD).clamp(1, 4) as usize
        }
    }
}

/// Bytes of large reads that are worth a thread.
const BYTES_PER_THREAD: u64 = 256 << 10;

/// Whether io_uring is the way to do these reads through the page cache. For many small ones, it has
/// the device busy with all of them at once; large ones are copied out of the page cache faster by
/// several threads.
fn suits_ring(requests: usize, bytes: u64) -> bool {
    const SMALL: u64 = 64 << 10;
    requests > 1 && bytes / requests as u64 <= SMALL
}

/// Writes all of `data` at `offset`.
fn pwrite(file: &File, offset: u64, data: &Abd) -> io::Result<()> {
    /// Most pieces that the kernel takes at once (`IOV_MAX`).
    const PIECES: usize = 1024;
    let mut slices = data.io_slices();
    let mut rest = &mut slices[..];
    let mut at = offset;
    while !rest.is_empty() {
        match rustix::io::pwritev(file, &rest[..rest.len().min(PIECES)], at) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => {
                at = at.checked_add(n as u64).ok_or(ErrorKind::InvalidInput)?;
                IoSlice::advance_slices(&mut rest, n);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Reads exactly `len` bytes at `offset` into a new buffer.
pub(crate) fn pread(file: &File, offset: u64, len: usize) -> io::Result<Abd> {
    let mut buf = Vec::new();
    buf.try_reserve_exact(len).map_err(|_| ErrorKind::OutOfMemory)?;
    while buf.len() < len {
        let at = offset.checked_add(buf.len() as u64).ok_or(ErrorKind::InvalidInput)?;
        // Reads into the buffer's spare room, which thus needs no clearing beforehand.
        match rustix::io::pread(file, rustix::buffer::spare_capacity(&mut buf), at) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    // The capacity, and so the last read, may exceed what was asked for.
    buf.truncate(len);
    Ok(Abd::from_vec(buf))
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
                assert_eq!(r.take().unwrap().bytes()[..], bytes[at..at + len]);
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

    fn write_at(dev: &dyn Device, offset: u64, data: Abd) -> io::Result<()> {
        let mut req = [WriteReq::new(offset, data)];
        dev.write_batch(&mut req);
        let [req] = req;
        req.take()
    }

    #[test]
    fn what_is_written_is_there() {
        let f = file_of(&[0; 1 << 20]);
        let dev = open_device_rw(f.path()).unwrap();
        assert!(dev.writable());
        // More pieces than one system call takes.
        let pieces: Vec<Abd> = (0..3000u32).map(|i| Abd::from_vec(vec![i as u8; 7])).collect();
        let data = Abd::gang(pieces);
        write_at(&*dev, 12345, data.clone()).unwrap();
        dev.flush().unwrap();
        assert_eq!(read_at(&*dev, 12345, 21000).unwrap(), data.to_vec());
        assert_eq!(std::fs::read(f.path()).unwrap()[12345..33345], data.to_vec());
        assert_eq!(read_at(&*dev, 12344, 1).unwrap(), [0]);
        assert_eq!(read_at(&*dev, 33345, 1).unwrap(), [0]);
    }

    #[test]
    fn a_file_does_not_grow() {
        let f = file_of(&[7; 1000]);
        let dev = open_device_rw(f.path()).unwrap();
        assert!(write_at(&*dev, 999, Abd::from_vec(vec![1, 2])).is_err());
        assert!(write_at(&*dev, u64::MAX, Abd::from_vec(vec![1, 2])).is_err());
        assert!(write_at(&*dev, 998, Abd::from_vec(vec![1, 2])).is_ok());
        assert_eq!(std::fs::metadata(f.path()).unwrap().len(), 1000);
    }

    #[test]
    fn one_writer_at_a_time() {
        let f = file_of(&[7; 1000]);
        let first = open_device_rw(f.path()).unwrap();
        let refused = open_device_rw(f.path()).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::ResourceBusy);
        assert!(crate::is_held(f.path()));
        let reader = open_device(f.path()).unwrap();
        assert!(!reader.writable() && reader.flush().is_err());
        assert!(write_at(&*reader, 0, Abd::from_vec(vec![1])).is_err());
        drop(first);
        assert!(!crate::is_held(f.path()) && !crate::is_held(Path::new("/no/such/file")));
        open_device_rw(f.path()).unwrap();
    }

    #[test]
    fn a_directory_is_not_a_device() {
        assert!(open_device_rw(Path::new("/")).is_err());
        assert!(open_device_rw(Path::new("/dev/null")).is_err());
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
