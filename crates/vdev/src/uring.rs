//! Reading a batch from one file with io_uring, or past the page cache of that file
//! (`crate::direct`).
//!
//! [`Rings`] belong to one device. Each serves one batch at a time, is set up when there is no ring that
//! is idle, and kept for the next batch. Where the kernel has no io_uring or does not permit it (as in
//! many containers), this is found out once for the whole process. Any other error in setting up a ring
//! (no descriptor left, no memory) passes: that batch is read without a ring, and the next one tries
//! again. A read that fails in the ring for such a reason is repeated without it, and is no error of the
//! device.
//!
//! # Why the unsafe code is sound
//!
//! The kernel writes into buffers behind Rust's back, so a buffer must live, and must not be
//! touched, from the submission of its read until the completion. [`Buffers`] owns them (each a
//! `Vec` with room for its read behind the few bytes that align it, or a [`Slot`] as long as the
//! read) with the count of reads in flight, and dropping it while that count is not zero leaks them
//! instead: memory that the kernel may still write to is never reused, whichever way a batch is
//! left. A buffer may move, its memory does not, and while its read is in flight nothing is pushed to
//! it and no code looks at it. The length that a `Vec` is set to after a completion is that of the
//! bytes that align it, which are initialised, and the number of bytes the kernel reported, which is
//! at most the length submitted, which is at most the room that was behind them. The files outlive
//! the batch, which borrows them.

#![allow(unsafe_code)]

#[cfg(test)]
mod planted;

use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_format::abd::Abd;
use cenote_format::invariant::broken;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use crate::device::{ReadReq, pread};
use crate::direct::Direct;
use crate::slots::{SLOT, SLOTS, Slot};

/// Reads in flight at once on one ring.
pub(crate) const DEPTH: u32 = 64;

/// Set when the kernel said that it has no io_uring for this process: trying again is no use.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Rings of one device that are kept when they are not in use.
const KEPT: usize = 4;

/// The rings of one device.
pub(crate) struct Rings {
    idle: Mutex<Vec<IoUring>>,
    set_up: fn() -> io::Result<IoUring>,
    refused: &'static AtomicBool,
}

impl Default for Rings {
    fn default() -> Rings {
        Rings { idle: Mutex::default(), set_up: || IoUring::new(DEPTH), refused: &REFUSED }
    }
}

/// Whether setting up a ring will fail again, in this process.
fn is_lasting(error: &io::Error) -> bool {
    [Errno::NOSYS, Errno::PERM].map(|e| Some(e.raw_os_error())).contains(&error.raw_os_error())
}

/// Whether the error number of a completion tells of the ring or the system, not of the device.
fn is_passing(errno: i32) -> bool {
    [Errno::AGAIN, Errno::NOMEM, Errno::INTR, Errno::CANCELED, Errno::NOBUFS]
        .map(Errno::raw_os_error)
        .contains(&errno)
}

impl Rings {
    /// Whether the kernel gives rings, as far as is known.
    pub(crate) fn permitted(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// Performs the requests in `reqs` that have no result yet, on `file` or past its page cache. Those that
    /// still have no result then cannot be read so: there is no ring to be had.
    pub(crate) fn read(&self, file: &File, direct: Option<&Direct>, reqs: &mut [ReadReq]) {
        if !self.permitted() || reqs.iter().all(|req| req.result.is_some()) {
            return;
        }
        // Taken out while in use: a ring that failed is not put back.
        let idle = self.idle().pop();
        let ring = match idle.map_or_else(self.set_up, Ok) {
            Ok(ring) => ring,
            Err(error) => {
                tracing::debug!(%error, "no io_uring");
                if is_lasting(&error) {
                    self.refused.store(true, Ordering::Relaxed);
                }
                return;
            }
        };
        let ring = Batch { ring, file, direct, buffers: Buffers::default() }.run(reqs);
        let mut idle = self.idle();
        if idle.len() < KEPT {
            idle.extend(ring);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<IoUring>> {
        self.idle.lock()
    }
}

/// What a read goes to.
enum Buffer {
    /// With room behind what is in it, if the read is in flight.
    Plain(Vec<u8>),
    Slot(Slot),
}

impl Buffer {
    /// One for a read of `len` bytes, from `direct` if there is that. `None`: there is no memory.
    fn new(len: usize, direct: Option<&Direct>) -> Option<Buffer> {
        // Slots start where any device wants buffers to start: see `Direct::open`.
        if direct.is_some()
            && len > SLOT / 2
            && let Some(slot) = SLOTS.take(len)
        {
            return Some(Buffer::Slot(slot));
        }
        let align = direct.map_or(1, |d| d.memory);
        let mut buf: Vec<u8> = Vec::new();
        buf.try_reserve_exact(len.checked_add(align - 1)?).ok()?;
        // At most `align - 1`: the address then is a multiple of `align`.
        buf.resize(buf.as_ptr().addr().wrapping_neg() % align, 0);
        Some(Buffer::Plain(buf))
    }

    /// Where the read is to go. There is room for its length.
    fn free(&mut self) -> *mut u8 {
        match self {
            Buffer::Plain(buf) => buf.spare_capacity_mut().as_mut_ptr().cast(),
            Buffer::Slot(slot) => slot.as_mut_ptr(),
        }
    }
}

/// The buffers of a batch, by the index of their request.
#[derive(Default)]
struct Buffers {
    list: Vec<Option<Buffer>>,
    in_flight: usize,
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            std::mem::forget(std::mem::take(&mut self.list));
        }
    }
}

/// A batch under way.
struct Batch<'a> {
    ring: IoUring,
    file: &'a File,
    /// To read from instead.
    direct: Option<&'a Direct>,
    buffers: Buffers,
}

impl Batch<'_> {
    /// Performs all reads. Gives the ring back if it is still good.
    fn run(mut self, reqs: &mut [ReadReq]) -> Option<IoUring> {
        let mut next = 0;
        while next < reqs.len() || self.buffers.in_flight > 0 {
            while next < reqs.len() && self.buffers.in_flight < DEPTH as usize {
                if reqs[next].result.is_none() {
                    self.push(&mut reqs[next]);
                } else {
                    self.buffers.list.push(None);
                }
                next += 1;
            }
            if self.buffers.in_flight == 0 {
                continue;
            }
            if let Err(error) = self.wait() {
                tracing::warn!(%error, "io_uring failed");
                for req in reqs.iter_mut().filter(|r| r.result.is_none()) {
                    req.result = Some(pread(self.file, req.offset, req.len));
                }
                return None;
            }
            self.reap(reqs);
        }
        Some(self.ring)
    }

    /// Queues the next read; one that cannot be queued is completed at once.
    fn push(&mut self, req: &mut ReadReq) {
        let index = self.buffers.list.len();
        let file = self.direct.map_or(self.file, |d| &d.file);
        let mut buf = Buffer::new(req.len, self.direct);
        let queued = match (u32::try_from(req.len), &mut buf) {
            (Ok(len), Some(buf)) => {
                let fd = types::Fd(file.as_raw_fd());
                let read = opcode::Read::new(fd, buf.free(), len).offset(req.offset);
                let read = read.build().user_data(index as u64);
                // SAFETY: the buffer has room for `len` bytes there; it goes to `self.buffers`, which
                // keeps it until its completion is reaped (see the module's comment).
                unsafe { self.ring.submission().push(&read) }.is_ok()
            }
            _ => false,
        };
        self.buffers.list.push(buf);
        if queued {
            self.buffers.in_flight += 1;
        } else {
            req.result = Some(pread(self.file, req.offset, req.len));
        }
    }

    /// Submits what is queued and waits until something completes.
    fn wait(&mut self) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The completion queue has to be emptied first.
                Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }

    /// Takes the completions that are there.
    fn reap(&mut self, reqs: &mut [ReadReq]) {
        for done in self.ring.completion() {
            let index = done.user_data() as usize;
            let asked = self.buffers.in_flight > 0 && index < reqs.len();
            let slot = self.buffers.list.get_mut(index).filter(|_| asked);
            let Some(buf) = slot.and_then(Option::take) else {
                // It is not known what the kernel still writes to: the buffers stay for good.
                let in_flight = std::mem::replace(&mut self.buffers.in_flight, usize::MAX);
                broken(format_args!("the ring ended read {index}, with {in_flight} in flight"));
            };
            self.buffers.in_flight -= 1;
            let req = &mut reqs[index];
            let error = done.result().saturating_neg();
            req.result = Some(match usize::try_from(done.result()) {
                // SAFETY: the kernel wrote `n` bytes, at most the `req.len` submitted.
                Ok(n) => unsafe { complete(self.file, req, buf, n.min(req.len)) },
                Err(_) if is_passing(error) => pread(self.file, req.offset, req.len),
                // Whatever there is against reading past the page cache.
                Err(_) if error == Errno::INVAL.raw_os_error() && self.direct.is_some() => {
                    pread(self.file, req.offset, req.len)
                }
                Err(_) => Err(io::Error::from_raw_os_error(error)),
            });
        }
    }
}

/// The bytes of `req`, of which the first `n` are in `buf`. A read may come out short at the end of
/// the file, or anywhere for reasons of the kernel's own.
///
/// # Safety
/// The kernel wrote `n` bytes where [`Buffer::free`] says; there is room for so many.
unsafe fn complete(file: &File, req: &ReadReq, buf: Buffer, n: usize) -> io::Result<Abd> {
    let (mut buf, before) = match buf {
        Buffer::Slot(slot) if n == req.len => return Ok(Abd::from_owner(slot)),
        Buffer::Slot(slot) => (slot.as_ref()[..n].to_vec(), 0),
        Buffer::Plain(mut buf) => {
            let before = buf.len();
            // SAFETY: behind the first `before` bytes, which were there, are `n` more.
            unsafe { buf.set_len(before + n) };
            (buf, before)
        }
    };
    if n < req.len {
        let at = req.offset.checked_add(n as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let rest = pread(file, at, req.len - n)?;
        buf.extend_from_slice(&rest.bytes());
    }
    let bytes = Abd::from_vec(buf).slice(before, req.len);
    bytes.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Reads the same two places of a file that holds `i % 251` at byte `i`, as devices do.
    fn read_twice(rings: &Rings, file: &File) {
        let mut reqs = [ReadReq::new(1, 100), ReadReq::new(5000, 3000)];
        rings.read(file, None, &mut reqs);
        for req in reqs {
            let (offset, len) = (req.offset, req.len);
            let bytes = req.result.unwrap_or_else(|| pread(file, offset, len)).unwrap().to_vec();
            assert!(bytes.iter().zip(offset..).all(|(b, i)| u64::from(*b) == i % 251));
            assert_eq!(bytes.len(), len);
        }
    }

    fn file() -> File {
        use std::io::Write;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&(0..10_000u32).map(|i| (i % 251) as u8).collect::<Vec<_>>()).unwrap();
        file
    }

    /// A set-up that fails with `$errno` at first, `$times` times, and how often it was tried.
    macro_rules! failing {
        ($errno:expr, $times:expr) => {{
            static REFUSED: AtomicBool = AtomicBool::new(false);
            static TRIED: AtomicUsize = AtomicUsize::new(0);
            let set_up = || match TRIED.fetch_add(1, Ordering::Relaxed) {
                n if n < $times => Err(io::Error::from($errno)),
                _ => IoUring::new(DEPTH),
            };
            (Rings { idle: Mutex::default(), set_up, refused: &REFUSED }, &TRIED)
        }};
    }

    #[test]
    fn a_passing_error_costs_one_batch_its_ring() {
        let file = file();
        let all = [
            failing!(Errno::MFILE, 2),
            failing!(Errno::NOMEM, 2),
            failing!(Errno::NFILE, 2),
            failing!(Errno::AGAIN, 2),
        ];
        for (rings, tried) in all {
            for n in 1..=3 {
                assert!(rings.permitted());
                read_twice(&rings, &file);
                assert_eq!(tried.load(Ordering::Relaxed), n);
            }
            // Where this system has io_uring, the ring of the third batch is kept for the next ones.
            let kept = rings.idle().len();
            assert_eq!(kept == 1, IoUring::new(DEPTH).is_ok());
            read_twice(&rings, &file);
            assert_eq!(rings.idle().len(), kept);
        }
    }

    #[test]
    fn where_there_is_no_io_uring_it_is_tried_once() {
        let file = file();
        for (rings, tried) in [failing!(Errno::NOSYS, 9), failing!(Errno::PERM, 9)] {
            for _ in 0..3 {
                read_twice(&rings, &file);
                assert!(!rings.permitted() && tried.load(Ordering::Relaxed) == 1);
            }
        }
    }

    #[test]
    fn only_errors_of_the_device_are_its_errors() {
        for errno in [Errno::AGAIN, Errno::NOMEM, Errno::INTR, Errno::CANCELED, Errno::NOBUFS] {
            assert!(is_passing(errno.raw_os_error()));
        }
        for errno in [Errno::IO, Errno::NXIO, Errno::NODEV, Errno::OPNOTSUPP] {
            assert!(!is_passing(errno.raw_os_error()));
        }
    }
}
