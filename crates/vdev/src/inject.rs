//! Devices for tests: in memory, and faulty or slow ones around another device.
//!
//! They implement [`Device`] as files do, so that every path above can be driven through I/O
//! errors, silent corruption, vanished devices, delays and the loss of power, deterministically.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::device::{Device, Identity, ReadReq, WriteReq};

mod crash;

pub use crash::{CrashDevice, Power};

/// A device in memory.
pub struct MemDevice {
    path: PathBuf,
    bytes: Mutex<Vec<u8>>,
}

impl MemDevice {
    /// A device that holds `bytes`; `path` is for messages.
    pub fn new(path: impl Into<PathBuf>, bytes: Vec<u8>) -> Arc<MemDevice> {
        Arc::new(MemDevice { path: path.into(), bytes: Mutex::new(bytes) })
    }

    /// The bytes, to look at or to change.
    pub fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock()
    }
}

impl Device for MemDevice {
    fn size(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        let bytes = self.bytes();
        for req in reqs {
            let start = usize::try_from(req.offset).ok();
            let range = start.and_then(|s| Some(s..s.checked_add(req.len)?));
            let found = range.and_then(|r| bytes.get(r));
            let eof = || io::ErrorKind::UnexpectedEof.into();
            req.result = Some(found.map(|b| b.to_vec().into()).ok_or_else(eof));
        }
    }

    fn writable(&self) -> bool {
        true
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        let mut bytes = self.bytes();
        for req in reqs {
            req.result = Some(put(&mut bytes, req));
        }
    }

    fn can_trim(&self) -> bool {
        true
    }

    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        write_garbage(self, offset, len)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes garbage where a device was told that something is free. A reader that still needs the old bytes notices.
fn write_garbage(device: &dyn Device, offset: u64, len: u64) -> io::Result<()> {
    const PIECE: u64 = 1 << 20;
    let mut at = offset;
    let end = offset.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
    while at < end {
        let piece = PIECE.min(end - at);
        let mut request = [WriteReq::new(at, vec![0xa5; piece as usize].into())];
        device.write_batch(&mut request);
        let [request] = request;
        request.take()?;
        at += piece;
    }
    Ok(())
}

/// Does a write to what `bytes` holds.
fn put(bytes: &mut [u8], req: &WriteReq) -> io::Result<()> {
    let start = usize::try_from(req.offset).ok();
    let range = start.and_then(|s| Some(s..s.checked_add(req.data.len())?));
    let place = range.and_then(|r| bytes.get_mut(r)).ok_or(io::ErrorKind::InvalidInput)?;
    req.data.copy_to(0, place).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

#[derive(Default)]
struct Faults {
    errors: Vec<Range<u64>>,
    /// Reads that are still to fail.
    some_errors: Vec<(Range<u64>, u64)>,
    write_errors: Vec<Range<u64>>,
    /// How many flushes are still to fail.
    flush_errors: u64,
    /// The device is gone once so many flushes have succeeded.
    flushes_left: Option<u64>,
    corrupt: Vec<(Range<u64>, u8)>,
    missing: bool,
    delay: Duration,
    hung: bool,
    /// As `hung`, of reads.
    reads_hung: bool,
    /// As `hung`, of requests to trim.
    trims_hung: bool,
    /// Batches and flushes that wait while it is hung.
    waiting: usize,
}

impl Faults {
    /// Whether a read fails that is one of some that are to.
    fn fails_once_more(&mut self, range: &Range<u64>) -> bool {
        let is_it =
            |(bad, left): &&mut (Range<u64>, u64)| *left > 0 && !overlap(bad, range).is_empty();
        let found = self.some_errors.iter_mut().find(is_it);
        found.map(|(_, left)| *left -= 1).is_some()
    }
}

/// A device around another one that can be made to fail, lie or take long, and that counts what
/// arrives.
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    faults: Mutex<Faults>,
    answers: Condvar,
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
}

impl FaultyDevice {
    /// `inner` without faults.
    pub fn new(inner: Arc<dyn Device>) -> Arc<FaultyDevice> {
        let (reads, writes, flushes) = Default::default();
        let (faults, answers) = Default::default();
        Arc::new(FaultyDevice { inner, faults, answers, reads, writes, flushes })
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock()
    }

    /// Reads that touch `range` (bytes of the device) fail from now on.
    pub fn fail(&self, range: Range<u64>) {
        self.faults().errors.push(range);
    }

    /// The next `count` reads that touch `range` (bytes of the device) fail.
    pub fn fail_reads(&self, range: Range<u64>, count: u64) {
        self.faults().some_errors.push((range, count));
    }

    /// Writes that touch `range` (bytes of the device) fail from now on, and change nothing.
    pub fn fail_writes(&self, range: Range<u64>) {
        self.faults().write_errors.push(range);
    }

    /// Whether flushes fail from now on.
    pub fn set_flush_errors(&self, fail: bool) {
        self.fail_flushes(if fail { u64::MAX } else { 0 });
    }

    /// So many flushes fail from now on.
    pub fn fail_flushes(&self, count: u64) {
        self.faults().flush_errors = count;
    }

    /// The device is gone when it has done so many more flushes.
    pub fn leave_after_flushes(&self, count: u64) {
        self.faults().flushes_left = Some(count);
    }

    /// Bytes of `range` read as they are XOR `mask` from now on, silently.
    pub fn corrupt(&self, range: Range<u64>, mask: u8) {
        self.faults().corrupt.push((range, mask));
    }

    /// Whether the device is gone: everything fails.
    pub fn set_missing(&self, missing: bool) {
        self.faults().missing = missing;
    }

    /// Every batch takes `delay` longer.
    pub fn set_delay(&self, delay: Duration) {
        self.faults().delay = delay;
    }

    /// Whether the device hangs: what arrives waits until it does no longer.
    pub fn set_hung(&self, hung: bool) {
        self.faults().hung = hung;
        self.answers.notify_all();
    }

    /// Whether reads hang.
    pub fn set_reads_hung(&self, hung: bool) {
        self.faults().reads_hung = hung;
        self.answers.notify_all();
    }

    /// Whether the device hangs when it is told that something is free.
    pub fn set_trims_hung(&self, hung: bool) {
        self.faults().trims_hung = hung;
        self.answers.notify_all();
    }

    /// Batches, flushes and looks from outside that wait because the device hangs.
    pub fn waiting(&self) -> usize {
        self.faults().waiting
    }

    /// Takes all faults away.
    pub fn repair(&self) {
        let mut faults = self.faults();
        *faults = Faults { waiting: faults.waiting, ..Faults::default() };
        self.answers.notify_all();
    }

    /// Number of reads that arrived here so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Number of writes that arrived here so far.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// Number of flushes that arrived here so far.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    fn pause(&self) {
        self.pause_while(|faults| faults.hung);
    }

    fn pause_while(&self, hangs: fn(&Faults) -> bool) {
        let mut faults = self.faults();
        faults.waiting += 1;
        self.answers.wait_while(&mut faults, |faults| hangs(faults));
        faults.waiting -= 1;
        let delay = faults.delay;
        drop(faults);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
    }
}

fn hits(bad: &[Range<u64>], range: &Range<u64>) -> bool {
    bad.iter().any(|b| !overlap(b, range).is_empty())
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}

impl Device for FaultyDevice {
    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.inner)
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn size_by_now(&self) -> u64 {
        self.pause();
        self.inner.size_by_now()
    }

    fn grow(&self, size: u64) {
        self.inner.grow(size);
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        self.reads.fetch_add(reqs.len() as u64, Ordering::Relaxed);
        self.pause_while(|faults| faults.hung || faults.reads_hung);
        self.inner.read_batch(reqs);
        let mut faults = self.faults();
        for req in reqs {
            let range = req.range();
            if faults.missing || hits(&faults.errors, &range) || faults.fails_once_more(&range) {
                req.result = Some(Err(io::Error::other("injected read error")));
            }
            let Some(Ok(data)) = &mut req.result else { continue };
            for (bad, mask) in &faults.corrupt {
                for at in overlap(bad, &range) {
                    if let Some(b) = data.make_mut().get_mut((at - range.start) as usize) {
                        *b ^= mask;
                    }
                }
            }
        }
    }

    fn writable(&self) -> bool {
        self.inner.writable()
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        self.writes.fetch_add(reqs.len() as u64, Ordering::Relaxed);
        self.pause();
        for req in reqs {
            let range = req.range();
            let fails = {
                let faults = self.faults();
                faults.missing || hits(&faults.write_errors, &range)
            };
            if fails {
                req.result = Some(Err(io::Error::other("injected write error")));
            } else {
                self.inner.write_batch(std::slice::from_mut(req));
            }
        }
    }

    fn can_trim(&self) -> bool {
        self.inner.can_trim()
    }

    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        self.pause_while(|faults| faults.hung || faults.trims_hung);
        let end = offset.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
        let range = offset..end;
        let fails = {
            let faults = self.faults();
            faults.missing || hits(&faults.write_errors, &range)
        };
        if fails {
            Err(io::Error::other("injected trim error"))
        } else {
            self.inner.trim(offset, len)
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.pause();
        let fails = {
            let mut faults = self.faults();
            let fails = faults.flush_errors > 0;
            faults.flush_errors -= u64::from(fails);
            if let Some(left) = &mut faults.flushes_left {
                match left.checked_sub(1) {
                    Some(less) => *left = less,
                    None => faults.missing = true,
                }
            }
            faults.missing || fails
        };
        if fails { Err(io::Error::other("injected flush error")) } else { self.inner.flush() }
    }

    fn is_there(&self) -> bool {
        self.pause();
        self.inner.is_there()
    }

    fn identity(&self) -> Option<Identity> {
        self.inner.identity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::read_at;

    #[test]
    fn faults_apply_to_their_ranges_only() {
        let dev = FaultyDevice::new(MemDevice::new("mem", vec![1; 100]));
        dev.fail(10..20);
        dev.corrupt(50..52, 0xff);
        assert_eq!(read_at(&*dev, 0, 10).unwrap(), [1; 10]);
        assert!(read_at(&*dev, 5, 6).is_err());
        assert!(read_at(&*dev, 19, 2).is_err());
        assert_eq!(read_at(&*dev, 49, 4).unwrap(), [1, 0xfe, 0xfe, 1]);
        assert!(read_at(&*dev, 95, 6).is_err());
        dev.set_missing(true);
        assert!(read_at(&*dev, 0, 1).is_err());
        dev.repair();
        assert_eq!(read_at(&*dev, 0, 100).unwrap(), [1; 100]);
        assert_eq!(dev.reads(), 7);
    }
}
