//! Devices of any size that keep metadata only, in memory.
//!
//! A [`SparseDisk`] keeps the pages that were written and are not all zeros; everything else reads
//! as zeros. The engine writes its metadata there as to any device. File data is never written: where
//! the simulation puts some, it *discards* what the engine had there before, so that memory holds
//! what is in use and not what once was.

use cenote_engine::create::{LeafKind, OpenDevices, Opened};
use cenote_format::LABEL_START;
use cenote_vdev::{Device, ReadReq, Vdev, WriteReq};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page.
const PAGE: usize = 4 << 10;
/// Pages that are looked up together.
const CHUNK: u64 = 256;

type Page = Box<[u8; PAGE]>;

/// Neighbouring pages.
struct Chunk(Vec<Option<Page>>);

/// What was done to devices so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written: u64,
}

impl Traffic {
    /// Both.
    pub fn plus(self, other: Traffic) -> Traffic {
        Traffic {
            reads: self.reads + other.reads,
            read: self.read + other.read,
            writes: self.writes + other.writes,
            written: self.written + other.written,
        }
    }

    /// What came since `before`.
    pub fn since(self, before: Traffic) -> Traffic {
        Traffic {
            reads: self.reads - before.reads,
            read: self.read - before.read,
            writes: self.writes - before.writes,
            written: self.written - before.written,
        }
    }
}

/// A device in memory; see the module's documentation.
pub struct SparseDisk {
    path: PathBuf,
    size: u64,
    ashift: u32,
    chunks: Mutex<BTreeMap<u64, Chunk>>,
    reads: AtomicU64,
    read: AtomicU64,
    writes: AtomicU64,
    written: AtomicU64,
}

impl SparseDisk {
    /// Device `number` of a pool, of `size` bytes, with sectors of `1 << ashift`.
    pub fn new(number: u64, size: u64, ashift: u32) -> Arc<SparseDisk> {
        Arc::new(SparseDisk {
            path: PathBuf::from(format!("/simulated/{number}")),
            size,
            ashift,
            chunks: Mutex::default(),
            reads: AtomicU64::new(0),
            read: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            written: AtomicU64::new(0),
        })
    }

    fn chunks(&self) -> MutexGuard<'_, BTreeMap<u64, Chunk>> {
        self.chunks.lock()
    }

    /// What was done to it so far.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            reads: self.reads.load(Ordering::Relaxed),
            read: self.read.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
        }
    }

    /// Bytes of memory that its contents take.
    pub fn memory(&self) -> u64 {
        let pages = |chunk: &Chunk| chunk.0.iter().flatten().count();
        self.chunks().values().map(|c| pages(c) * PAGE + CHUNK as usize * 8).sum::<usize>() as u64
    }

    /// The pages that lie in this range as a whole are not read any more.
    pub fn discard(&self, offset: u64, len: u64) {
        let (first, end) = (offset.div_ceil(PAGE as u64), (offset + len) / PAGE as u64);
        let mut chunks = self.chunks();
        let mut at = first / CHUNK;
        while let Some((number, chunk)) = chunks.range_mut(at..end.div_ceil(CHUNK)).next() {
            let number = *number;
            let base = number * CHUNK;
            let pages = first.max(base) - base..end.min(base + CHUNK).saturating_sub(base);
            for page in pages {
                if let Some(page) = chunk.0.get_mut(page as usize) {
                    *page = None;
                }
            }
            if chunk.0.iter().all(Option::is_none) {
                chunks.remove(&number);
            }
            at = number + 1;
        }
    }

    /// Makes a sparse file of it.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create_new(path)?;
        file.set_len(self.size)?;
        for (number, chunk) in self.chunks().iter() {
            for (i, page) in (0u64..).zip(&chunk.0) {
                if let Some(page) = page {
                    file.write_all_at(&page[..], (number * CHUNK + i) * PAGE as u64)?;
                }
            }
        }
        Ok(())
    }

    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.size);
        end.map(drop).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn get(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.check(offset, len)?;
        let chunks = self.chunks();
        let mut out = Vec::with_capacity(len);
        for part in parts(offset, len) {
            let chunk = chunks.get(&(part.page / CHUNK));
            let page = chunk.and_then(|c| c.0.get((part.page % CHUNK) as usize)?.as_ref());
            match page.and_then(|page| page.get(part.from..part.from + part.len)) {
                Some(bytes) => out.extend_from_slice(bytes),
                None => out.resize(out.len() + part.len, 0),
            }
        }
        Ok(out)
    }

    fn put(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check(offset, data.len())?;
        let mut chunks = self.chunks();
        let mut rest = data;
        for part in parts(offset, data.len()) {
            let (now, later) = rest.split_at(part.len);
            rest = later;
            let blank = now.iter().all(|b| *b == 0);
            if blank && !chunks.contains_key(&(part.page / CHUNK)) {
                continue;
            }
            let chunk = chunks
                .entry(part.page / CHUNK)
                .or_insert_with(|| Chunk((0..CHUNK).map(|_| None).collect()));
            let Some(slot) = chunk.0.get_mut((part.page % CHUNK) as usize) else { continue };
            if blank && part.len == PAGE {
                *slot = None;
                continue;
            }
            let page = slot.get_or_insert_with(|| Box::new([0; PAGE]));
            if let Some(bytes) = page.get_mut(part.from..part.from + part.len) {
                bytes.copy_from_slice(now);
            }
        }
        Ok(())
    }
}

/// The part of a range that is on one page.
struct Part {
    page: u64,
    from: usize,
    len: usize,
}

fn parts(offset: u64, len: usize) -> impl Iterator<Item = Part> {
    let (mut at, end) = (offset, offset + len as u64);
    std::iter::from_fn(move || {
        let (page, from) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let len = (PAGE - from).min((end - at) as usize);
        at += len as u64;
        (len > 0).then_some(Part { page, from, len })
    })
}

impl Device for SparseDisk {
    fn size(&self) -> u64 {
        self.size
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        for req in reqs {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.read.fetch_add(req.len as u64, Ordering::Relaxed);
            req.result = Some(self.get(req.offset, req.len).map(Into::into));
        }
    }

    fn writable(&self) -> bool {
        true
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        for req in reqs {
            let data = req.data.bytes();
            self.writes.fetch_add(1, Ordering::Relaxed);
            self.written.fetch_add(data.len() as u64, Ordering::Relaxed);
            req.result = Some(self.put(req.offset, &data));
        }
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The devices of a top-level vdev.
pub(crate) struct Bay {
    pub disks: Vec<Arc<SparseDisk>>,
    /// What it does with blocks.
    pub vdev: Arc<Vdev>,
}

impl Bay {
    /// Whether it is a single device.
    pub fn is_plain(&self) -> bool {
        self.disks.len() == 1
    }

    /// Bytes that a block takes.
    pub fn asize(&self, psize: u64) -> u64 {
        match self.is_plain() {
            true => psize.next_multiple_of(1 << self.vdev.ashift()),
            false => self.vdev.psize_to_asize(psize, 0),
        }
    }

    /// Discards so many allocated bytes: RAID-Z lays sectors out over its devices in turns.
    pub fn discard(&self, offset: u64, asize: u64) {
        if let [disk] = &self.disks[..] {
            return disk.discard(LABEL_START + offset, asize);
        }
        let (shift, count) = (self.vdev.ashift(), self.disks.len() as u64);
        let (first, end) = (offset >> shift, (offset + asize) >> shift);
        for (column, disk) in (0u64..).zip(&self.disks) {
            // Sectors of this column below one sector of the vdev.
            let below = |sector: u64| (sector + count - 1 - column) / count;
            let (from, to) = (below(first) << shift, below(end) << shift);
            disk.discard(LABEL_START + from, to - from);
        }
    }
}

/// The devices of a simulated pool, for creating it.
pub(crate) struct Devices<'a>(pub &'a [Arc<SparseDisk>]);

impl OpenDevices for Devices<'_> {
    fn find(&self, name: &Path) -> io::Result<(PathBuf, Opened)> {
        let at = self.0.iter().position(|d| d.path == name).ok_or(io::ErrorKind::NotFound)?;
        let shift = self.0.get(at).map_or(0, |disk| disk.ashift.into());
        let facts = Opened {
            kind: LeafKind::File,
            identity: (0, at as u64),
            logical_shift: shift,
            physical_shift: shift,
        };
        Ok((name.to_path_buf(), facts))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        let found = self.0.iter().find(|d| d.path == path).cloned();
        Ok(found.ok_or(io::ErrorKind::NotFound)?)
    }

    fn open_rw(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        self.open(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_is_written_and_nothing_else() {
        let disk = SparseDisk::new(0, 100 << 40, 12);
        let at = (99 << 40) + 4000;
        let bytes: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8 + 1).collect();
        disk.put(at, &bytes).unwrap();
        disk.put(5 << 20, &[0; 1 << 20]).unwrap();
        assert_eq!(disk.get(at, bytes.len()).unwrap(), bytes);
        assert_eq!(disk.get(at - 1, 1).unwrap(), [0]);
        assert_eq!(disk.memory(), 4 * 4096 + 256 * 8);
        // Only whole pages go.
        disk.discard(at, 10_000);
        assert_eq!(
            disk.get(at, 97).unwrap(),
            &bytes[..96].iter().copied().chain([0]).collect::<Vec<_>>()[..]
        );
        disk.discard(at - 4000, 16384);
        assert_eq!(disk.memory(), 0);
        assert!(disk.put(disk.size - 1, &[1, 2]).is_err() && disk.get(disk.size, 1).is_err());
    }
}
