//! A cache device of a pool: whether it is asked, and its thread.
//!
//! A device that has not answered in time *rests*: no reader asks it, until its thread finds that it answers again. One that
//! fails again and again, or that does not answer for long, is faulted: what is on it is forgotten.
//!
//! A thread whose device hangs is left behind, and so is what a device has not written yet. Nothing is written after that which was not begun,
//! and a device is not used anew before all of that is over ([`is_left`]), by whatever pool of this process.

use super::PATIENCE;
use super::figures::Figures;
use super::index::Place;
use crate::arc::Sleeper;
use cenote_format::abd::Abd;
use cenote_format::less;
use cenote_format::nvlist::NvList;
use cenote_vdev::cache_device::{is_silence, is_writing};
use cenote_vdev::{CacheDevice, Priority, Vdev, VdevState};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Reads or writes that fail one after the other before the device is faulted.
const MOST_FAILURES: u32 = 16;
/// How long an export waits for the threads of devices, which may hang.
pub(super) const STOPPING: Duration = Duration::from_secs(5);

/// What is known of a cache device in use.
pub struct CacheFigures {
    /// Its leaf, once it is opened: state, errors, operations.
    pub leaf: Option<Arc<Vdev>>,
    /// Bytes of blocks and log blocks on it.
    pub allocated: u64,
}

/// What the device has of the figures of all of them. They are changed together.
#[derive(Default)]
struct Books {
    /// Log blocks on it, and their bytes.
    logs: (u64, u64),
    /// Blocks that its thread knows in the order in which they lie.
    slots: u64,
    /// What is on it was forgotten: a thread that was left behind changes nothing of that.
    over: bool,
}

#[derive(Default)]
struct Control {
    stop: bool,
    /// Nobody waits for the thread any more.
    left_behind: bool,
    /// Something was put into the ARC.
    rung: bool,
    /// Something has happened to the device that the thread is to look at.
    called: bool,
    ended: bool,
}

/// What was left behind of a device.
struct Left {
    guid: u64,
    thread: Weak<CacheDev>,
    leaf: Weak<Vdev>,
}

impl Left {
    fn is_over(&self) -> bool {
        let thread = self.thread.upgrade().is_some_and(|device| device.is_busy());
        !thread && !self.leaf.upgrade().is_some_and(|leaf| is_writing(&leaf))
    }
}

static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

/// Whether something was left behind of the device with this guid that may still write to it.
pub(super) fn is_left(guid: u64) -> bool {
    let mut left = LEFT.lock();
    left.retain(|left| !left.is_over());
    left.iter().any(|left| left.guid == guid)
}

/// See the [module](self).
pub(super) struct CacheDev {
    pub number: u32,
    pub guid: u64,
    config: NvList,
    opened: OnceLock<Arc<CacheDevice>>,
    rests: AtomicBool,
    failures: AtomicU32,
    writing: AtomicBool,
    books: Mutex<Books>,
    control: Mutex<Control>,
    changed: Condvar,
    thread: OnceLock<ThreadId>,
}

impl CacheDev {
    pub fn new(number: u32, guid: u64, config: NvList) -> CacheDev {
        CacheDev {
            number,
            guid,
            config,
            opened: OnceLock::new(),
            rests: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            writing: AtomicBool::new(false),
            books: Mutex::default(),
            control: Mutex::default(),
            changed: Condvar::new(),
            thread: OnceLock::new(),
        }
    }

    pub fn config(&self) -> &NvList {
        &self.config
    }

    /// The calling thread is that of the device.
    pub fn begins(&self) {
        let _ = self.thread.set(thread::current().id());
    }

    /// The device itself is there.
    pub fn is_opened(&self, device: Arc<CacheDevice>) {
        let _ = self.opened.set(device);
    }

    pub fn state(&self) -> Option<VdevState> {
        Some(self.opened.get()?.leaf().state())
    }

    pub fn figures(&self, blocks: u64) -> CacheFigures {
        let leaf = self.opened.get().map(|device| device.leaf().clone());
        CacheFigures { leaf, allocated: blocks + self.books.lock().logs.1 }
    }

    /// Whether readers ask it.
    pub fn is_asked(&self) -> bool {
        !self.rests.load(Relaxed) && self.state().is_some_and(VdevState::readable)
    }

    pub fn rests(&self) -> bool {
        self.rests.load(Relaxed)
    }

    pub fn is_writing(&self) -> bool {
        self.writing.load(Relaxed)
    }

    pub fn set_writing(&self, writes: bool) {
        self.writing.store(writes, Relaxed);
    }

    /// A log block of so many bytes is there, with so many bytes of blocks before it.
    pub fn log_comes(&self, figures: &Figures, bytes: u64, payload: u64) {
        let mut books = self.books.lock();
        if !books.over {
            books.logs = (books.logs.0 + 1, books.logs.1 + bytes);
            figures.log_comes(bytes, payload);
        }
    }

    /// So many log blocks are given up, of so many bytes.
    pub fn logs_go(&self, figures: &Figures, (count, bytes): (u64, u64)) {
        let mut books = self.books.lock();
        if !books.over {
            let left = less!(books.logs.0, count, "L2ARC: log blocks of a device");
            books.logs = (left, less!(books.logs.1, bytes, "L2ARC: their bytes"));
            figures.logs_go((count, bytes));
        }
    }

    /// All log blocks are forgotten, and the ones that come later do not count.
    pub fn forget_logs(&self, figures: &Figures) {
        let mut books = self.books.lock();
        books.over = true;
        figures.logs_go(std::mem::take(&mut books.logs));
    }

    /// The thread knows the order of so many blocks.
    pub fn slots(&self, figures: &Figures, now: u64) {
        let mut books = self.books.lock();
        figures.slots(std::mem::replace(&mut books.slots, now), now);
    }

    /// Reads some places, waiting no longer than [`PATIENCE`].
    pub fn read(&self, priority: Priority, reads: &[(u64, usize)]) -> Vec<io::Result<Abd>> {
        let Some(device) = self.opened.get() else {
            return reads.iter().map(|_| Err(io::ErrorKind::NotFound.into())).collect();
        };
        let done = device.read(priority, reads, PATIENCE);
        done.iter().for_each(|read| self.note(read.as_ref().err()));
        done
    }

    /// What came of a read or a write.
    pub fn note(&self, error: Option<&io::Error>) {
        match error {
            None => self.failures.store(0, Relaxed),
            Some(e) if is_silence(e) => {
                if !self.rests.swap(true, Relaxed) {
                    tracing::warn!(guid = self.guid, "a cache device does not answer, and rests");
                    self.call();
                }
            }
            Some(e) => {
                if self.failures.fetch_add(1, Relaxed) + 1 >= MOST_FAILURES {
                    tracing::warn!(guid = self.guid, "a cache device fails, and is faulted: {e}");
                    self.fail(VdevState::Faulted);
                }
            }
        }
    }

    /// It answers again.
    pub fn answers(&self) {
        self.rests.store(false, Relaxed);
    }

    /// Takes it out of use.
    pub fn fail(&self, state: VdevState) {
        if let Some(device) = self.opened.get().filter(|d| d.leaf().state().readable()) {
            device.set_state(state);
            device.fence();
            self.call();
        }
    }

    /// Has the thread look at the device.
    pub fn call(&self) {
        self.control.lock().called = true;
        self.changed.notify_all();
    }

    /// What lies at a place is wrong.
    pub fn mismatch(&self, place: &Place) {
        if let Some(device) = self.opened.get() {
            device.mismatch(place.at, place.asize.into());
        }
    }

    /// Has the thread end soon.
    pub fn tell_to_stop(&self) {
        self.control.lock().stop = true;
        self.changed.notify_all();
    }

    /// Whether it may still write.
    fn is_busy(&self) -> bool {
        !self.control.lock().ended
    }

    /// Has the thread end, and waits for that until then at most, as its device may hang.
    pub fn stop(self: &Arc<Self>, until: Instant) {
        self.tell_to_stop();
        self.await_end(until);
        let leaf = self.opened.get().map(|device| device.leaf());
        if self.is_busy() || leaf.is_some_and(|leaf| is_writing(leaf)) {
            let leaf = leaf.map_or_else(Weak::new, Arc::downgrade);
            LEFT.lock().push(Left { guid: self.guid, thread: Arc::downgrade(self), leaf });
        }
    }

    fn await_end(&self, until: Instant) {
        // The last one to let go of the pool may be that thread.
        if self.thread.get() == Some(&thread::current().id()) {
            return;
        }
        let mut control = self.control.lock();
        while !control.ended && !self.changed.wait_until(&mut control, until).timed_out() {}
        if !control.ended {
            control.left_behind = true;
            let guid = self.guid;
            tracing::warn!(guid, "a cache device does not answer: its thread is left behind");
            if let Some(device) = self.opened.get() {
                device.fence();
            }
        }
    }

    /// Whether the thread was left behind: what it knows has been forgotten.
    pub fn is_left_behind(&self) -> bool {
        self.control.lock().left_behind
    }

    /// Whether the thread is to end.
    pub fn is_stopped(&self) -> bool {
        self.control.lock().stop
    }

    /// The thread ends.
    pub fn has_ended(&self) {
        self.control.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits so long, or until the thread is to end or to look at the device.
    pub fn wait(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut control = self.control.lock();
        while !control.stop
            && !control.called
            && !self.changed.wait_until(&mut control, until).timed_out()
        {}
        control.called = false;
    }

    /// Waits until there is something to do.
    pub fn wait_for_work(&self) {
        let mut control = self.control.lock();
        let is_idle = |control: &mut Control| !control.stop && !control.rung && !control.called;
        self.changed.wait_while(&mut control, is_idle);
        control.rung = false;
    }
}

impl Sleeper for CacheDev {
    fn wake(&self) {
        self.control.lock().rung = true;
        self.changed.notify_all();
    }
}
