//! Reading a batch from one file with io_uring.
//!
//! A [`Ring`] belongs to one device and is set up at its first batch. It serves one batch at a
//! time; who finds it busy reads otherwise. Where io_uring is not permitted (as in many
//! containers) this is found out once for the whole process.
//!
//! # Why the unsafe code is sound
//!
//! The kernel writes into buffers behind Rust's back, so a buffer must live, and must not be
//! touched, from the submission of its read until the completion. [`Buffers`] owns them (each a
//! `Vec` with room for its read and nothing in it) with the count of reads in flight, and
//! dropping it while that count is not zero leaks them instead: memory that the kernel may still
//! write to is never reused, whichever way a batch is left. A buffer's `Vec` may move, its heap
//! memory does not, and nothing is pushed to it while its read is in flight. The length set
//! after a completion is the number of bytes the kernel reported, which is at most the length
//! submitted, which is at most the capacity. The file outlives the batch, which borrows it.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, TryLockError};

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use crate::device::{ReadReq, pread, pread_rest};

/// Reads in flight at once on one ring.
const DEPTH: u32 = 64;

/// Set when the kernel refused to set up a ring: there is no use in trying again.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// The ring of one device.
pub(crate) struct Ring(Mutex<Option<IoUring>>);

impl Ring {
    /// A ring that is set up when it is first used.
    pub(crate) fn new() -> Ring {
        Ring(Mutex::new(None))
    }

    /// Whether rings are to be had, as far as is known.
    pub(crate) fn permitted() -> bool {
        !REFUSED.load(Ordering::Relaxed)
    }

    /// Performs `reqs` on `file`. `false`: nothing was done, since the ring is busy or there is
    /// none to be had.
    pub(crate) fn read(&self, file: &File, reqs: &mut [ReadReq]) -> bool {
        if !Ring::permitted() {
            return false;
        }
        let mut slot = match self.0.try_lock() {
            Ok(slot) => slot,
            Err(TryLockError::Poisoned(p)) => p.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // Taken out while in use: a ring that failed is not put back.
        let ring = match slot.take() {
            Some(ring) => ring,
            None => match IoUring::new(DEPTH) {
                Ok(ring) => ring,
                Err(error) => {
                    tracing::debug!(%error, "no io_uring");
                    REFUSED.store(true, Ordering::Relaxed);
                    return false;
                }
            },
        };
        *slot = Batch { ring, file, buffers: Buffers::default() }.run(reqs);
        true
    }
}

/// The buffers of a batch, by the index of their request.
#[derive(Default)]
struct Buffers {
    /// Empty `Vec`s, with room if their read is in flight.
    list: Vec<Vec<u8>>,
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
    buffers: Buffers,
}

impl Batch<'_> {
    /// Performs all reads. Gives the ring back if it is still good.
    fn run(mut self, reqs: &mut [ReadReq]) -> Option<IoUring> {
        let mut next = 0;
        while next < reqs.len() || self.buffers.in_flight > 0 {
            while next < reqs.len() && self.buffers.in_flight < DEPTH as usize {
                self.push(&mut reqs[next]);
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
        let mut buf = Vec::new();
        let index = self.buffers.list.len();
        let queued = match u32::try_from(req.len) {
            Ok(len) if buf.try_reserve_exact(req.len).is_ok() => {
                let fd = types::Fd(self.file.as_raw_fd());
                let read = opcode::Read::new(fd, buf.as_mut_ptr(), len).offset(req.offset);
                let read = read.build().user_data(index as u64);
                // SAFETY: the buffer has room for `len` bytes and goes to `self.buffers`, which
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
            let slot = self.buffers.list.get_mut(index);
            let (Some(slot), Some(req)) = (slot, reqs.get_mut(index)) else { continue };
            let mut buf = std::mem::take(slot);
            self.buffers.in_flight = self.buffers.in_flight.saturating_sub(1);
            let result = match usize::try_from(done.result()) {
                Ok(n) => {
                    // SAFETY: the kernel wrote `n` bytes, at most the `req.len` submitted, to
                    // the start of the buffer, whose capacity is at least `req.len`.
                    unsafe { buf.set_len(n.min(req.len)) };
                    // Short at the end of the file, or anywhere for reasons of the kernel's own.
                    pread_rest(self.file, req.offset, req.len, &mut buf)
                }
                Err(_) => Err(io::Error::from_raw_os_error(done.result().saturating_neg())),
            };
            req.result = Some(result.map(|()| buf));
        }
    }
}
