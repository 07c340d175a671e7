//! Reading past the page cache.
//!
//! What is read from a device goes to the cache of the pool, and the page cache would hold it a second
//! time: where much is read in a row, most of the processor time is spent there. So such reads go
//! straight to the buffers (`O_DIRECT`), where the kernel says that it can be done and how memory
//! and places must be aligned for it (`STATX_DIOALIGN`: Linux 6.1, block devices and the usual
//! file systems), and only with io_uring (`crate::uring`): the page cache would read ahead, here the
//! device must be kept busy by many requests.
//!
//! A block that is read by itself goes through the page cache, which may keep it longer than the pool's
//! cache does: programs that read here and there come back.
//!
//! What is in the page cache already, because it was written a moment ago or is read by others, is
//! taken from there (`cachestat`, Linux 6.5, tells: to ask for it with `RWF_NOWAIT` makes the kernel
//! read ahead). Small reads, metadata for the most part, go through the page cache as well: it
//! reads their neighbours with them. The kernel keeps the two ways consistent: a direct read sees
//! every write that was answered before.
//!
//! # Why the unsafe code is sound
//!
//! The only unsafe code is the system call `cachestat`, for which there is no function in the
//! libraries used here. It reads a structure and writes another one; both live in the caller's frame
//! beyond the call, and have the kernel's own layout (`linux_raw_sys`).

#![allow(unsafe_code)]

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use linux_raw_sys::general::{__NR_cachestat, cachestat, cachestat_range};
use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};

use crate::device::ReadReq;

/// Largest alignment that is put up with, in bytes: each buffer is larger by that much.
const MOST: u32 = 4096;

/// Least bytes in a batch of several reads that are read so.
const LEAST: u64 = 512 << 10;

/// A file that is read past the page cache.
pub(crate) struct Direct {
    /// Opened with `O_DIRECT`.
    pub(crate) file: File,
    /// What a buffer's address must be a multiple of; a power of two.
    pub(crate) memory: usize,
    /// What a read's place and length must be multiples of, in bytes.
    place: u64,
}

impl Direct {
    /// `None`: it cannot be done with this file, or its rules are not known.
    pub(crate) fn open(file: &File) -> Option<Direct> {
        let stat = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
        let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
        let (memory, place) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
        if !known || place == 0 || memory > MOST || !memory.is_power_of_two() {
            return None;
        }
        // Not by its path, which may lead elsewhere by now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut options = File::options();
        options.read(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
        let file = options.open(path).ok()?;
        Some(Direct { file, memory: memory as usize, place: place.into() })
    }

    /// Whether all of these, which are `bytes` together, can be read so and should be.
    pub(crate) fn suits(&self, reqs: &[ReadReq], bytes: u64) -> bool {
        let fits = |bytes: u64| bytes.is_multiple_of(self.place);
        let fit = |req: &ReadReq| fits(req.offset) && fits(req.len as u64);
        reqs.len() > 1 && bytes >= LEAST && reqs.iter().all(fit)
    }
}

/// Whether the page cache of `file` has all of the `len` bytes at byte `offset`.
pub(crate) fn is_cached(file: &File, offset: u64, len: usize) -> bool {
    let range = cachestat_range { off: offset, len: len as u64 };
    let mut found = MaybeUninit::<cachestat>::zeroed();
    let call = libc::c_long::from(__NR_cachestat);
    // SAFETY: both structures outlive the call, which reads the first and writes the second; a
    // `cachestat` of zeros is a valid one.
    let (result, found) = unsafe {
        let result = libc::syscall(call, file.as_raw_fd(), &raw const range, found.as_mut_ptr(), 0);
        (result, found.assume_init())
    };
    let page = rustix::param::page_size() as u64;
    let pages = offset.checked_add(len as u64).map(|end| end.div_ceil(page) - offset / page);
    result == 0 && pages.is_some_and(|pages| found.nr_cache >= pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{WriteReq, open_device_rw};
    use cenote_format::abd::Abd;
    use rustix::fs::{Advice, fadvise};
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    const READ: usize = 128 << 10;

    /// A file on a disk where there is one: beside this program.
    fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
        let program = std::env::current_exe().unwrap();
        let mut file = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn forget(file: &File) {
        file.sync_all().unwrap();
        fadvise(file, 0, None, Advice::DontNeed).unwrap();
    }

    fn reads(places: impl Iterator<Item = u64>) -> Vec<ReadReq> {
        places.map(|at| ReadReq::new(at, READ)).collect()
    }

    fn check(reqs: Vec<ReadReq>, bytes: &[u8]) {
        for req in reqs {
            let at = req.offset as usize;
            assert!(req.take().unwrap().bytes()[..] == bytes[at..at + READ], "at {at}");
        }
    }

    #[test]
    fn many_large_reads_leave_nothing_in_the_page_cache_and_see_every_write() {
        let mut bytes: Vec<u8> = (0..4 << 20).map(|i: u32| (i / 5) as u8).collect();
        let file = file_of(&bytes);
        let device = open_device_rw(file.path()).unwrap();
        for first in [0, 4096, 1234] {
            forget(file.as_file());
            let mut reqs = reads((0..20).map(|i| first + i * (READ as u64 + 8192)));
            device.read_batch(&mut reqs);
            check(reqs, &bytes);
            let past = Direct::open(file.as_file()).is_some() && first != 1234;
            assert!(!past || !is_cached(file.as_file(), first, 4096));
        }
        // Alone, through the page cache.
        forget(file.as_file());
        let mut reqs = reads([0].into_iter());
        device.read_batch(&mut reqs);
        check(reqs, &bytes);
        assert!(is_cached(file.as_file(), 0, 4096));
        // Written, and not flushed: one read begins with it, the one before ends with it.
        forget(file.as_file());
        let at = 1 << 20;
        let data = vec![0xee; 4096];
        bytes[at..at + data.len()].copy_from_slice(&data);
        let mut write = [WriteReq::new(at as u64, Abd::from_vec(data))];
        device.write_batch(&mut write);
        let mut reqs = reads((0..12).map(|i| (at + 4096 - READ + i * (READ - 4096)) as u64));
        device.read_batch(&mut reqs);
        check(reqs, &bytes);
    }

    #[test]
    fn more_is_read_at_once_than_huge_pages_hold() {
        const BLOCK: u64 = 1 << 20;
        let file = file_of(&[]);
        file.as_file().set_len(90 * BLOCK).unwrap();
        for i in 0..90 {
            let mark = [i as u8 + 1; 4096];
            file.as_file().write_all_at(&mark, (i + 1) * BLOCK - 4096).unwrap();
        }
        forget(file.as_file());
        let device = open_device_rw(file.path()).unwrap();
        // What was read stays while the rest is.
        let mut all: Vec<(u64, Abd)> = Vec::new();
        for from in (0..90).step_by(9) {
            let read = |i| ReadReq::new(i * BLOCK, BLOCK as usize);
            let mut reqs: Vec<ReadReq> = (from..from + 9).map(read).collect();
            device.read_batch(&mut reqs);
            all.extend((from..).zip(reqs.into_iter().map(|req| req.take().unwrap())));
        }
        for (i, data) in all {
            let data = data.bytes();
            let (zeros, mark) = data.split_at(BLOCK as usize - 4096);
            assert!(zeros.iter().all(|b| *b == 0) && mark.iter().all(|b| *b == i as u8 + 1), "{i}");
        }
    }

    #[test]
    fn the_end_of_a_file_is_where_it_is() {
        let bytes = vec![5; 3 * READ + 1000];
        let file = file_of(&bytes);
        let device = open_device_rw(file.path()).unwrap();
        forget(file.as_file());
        let mut reqs = reads([0, 2, 3, 4].into_iter().map(|i| i * READ as u64));
        device.read_batch(&mut reqs);
        let good: Vec<bool> = reqs.into_iter().map(|req| req.take().is_ok()).collect();
        assert_eq!(good, [true, true, false, false]);
    }
}
