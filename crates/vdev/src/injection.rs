//! Faults that an administrator injects into devices in use, to see what the system makes of them (`zio_inject_fault`).
//!
//! # Idea
//!
//! A [`DeviceHandler`] stands in front of the device of one leaf. Every request passes here on its way to the device: reads, writes,
//! flushes, trims and probes. What a handler matches it lets fail, spoils, drops or holds up. The device itself is as it was, so
//! that all is over once the handler is cleared.
//!
//! - Faults hit what is behind the labels and in front of them, flushes too. Labels are hit by handlers that name a part of them
//!   (`ZINJECT_LABEL_FAULT`), and probes by those that name probes (`ZINJECT_IOTYPE_PROBE`).
//! - A request that is to fail is done all the same, but for [`DeviceError::Prefail`] and [`DeviceError::Noop`]. Reads of probes are
//!   done with the latter too: what they read is written back.
//! - Wrong bytes ([`DeviceError::Corrupt`], reads with [`DeviceError::Noop`]) come only where a checksum tells. What moves from a device
//!   to another one unseen (removal, expansion, rebuild) would be lost for good: such a read fails.
//! - Delays have lanes (`zio_handle_io_delay`): a request takes the lane that is idle the soonest, of all handlers of the leaf, and ends
//!   when its time there is over. A batch ends with the last of its requests. Clearing a handler ends the waits for it.
//!
//! Handlers are in memory only. They belong to the leaf, in whatever tree it is, and go with it.
//!
//! Invariants: a leaf without handlers costs one load for each batch. No lock is held while a device is asked or a delay waited
//! for, but for the lanes' own, which the wait gives up.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::label::{self, LABEL_END, LABEL_SIZE};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::device::{Device, ReadReq, WriteReq};
use crate::queue::Priority;
use crate::vdev::Vdev;

/// The number of an input or output error (`EIO`).
const EIO: i32 = 5;

/// What all handlers have: how often they matched, and how often they did something about it.
#[derive(Debug)]
pub struct Trigger {
    /// Of so many matches out of [`u32::MAX`] something comes.
    frequency: u32,
    matched: AtomicU64,
    injected: AtomicU64,
    cleared: AtomicBool,
    state: AtomicU64,
}

impl Trigger {
    /// Of a handler that does something about `frequency` of [`u32::MAX`] matches.
    pub fn new(frequency: u32) -> Trigger {
        let (matched, injected) = (AtomicU64::new(0), AtomicU64::new(0));
        let (cleared, state) = (AtomicBool::new(false), AtomicU64::new(u64::from(frequency)));
        Trigger { frequency, matched, injected, cleared, state }
    }

    /// Something matches: whether it is its turn (`freq_triggered`).
    pub fn fires(&self) -> bool {
        let fires = self.matches();
        if fires {
            self.injected.fetch_add(1, Relaxed);
        }
        fires
    }

    /// The same; that something was done about it is counted later.
    fn matches(&self) -> bool {
        self.matched.fetch_add(1, Relaxed);
        self.frequency == u32::MAX || (self.random() as u32) < self.frequency
    }

    /// From now on the handler does nothing.
    pub fn clear(&self) {
        self.cleared.store(true, Relaxed);
    }

    /// The next number of a sequence that looks random.
    fn random(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.state.fetch_add(STEP, Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// How often it matched, and how often it did something.
    pub fn counts(&self) -> (u64, u64) {
        (self.matched.load(Relaxed), self.injected.load(Relaxed))
    }

    /// How many matches out of [`u32::MAX`] something comes of.
    pub fn frequency(&self) -> u32 {
        self.frequency
    }
}

/// A handler of any kind.
pub trait Handler {
    /// Its counts.
    fn trigger(&self) -> &Trigger;
}

/// The handlers of one thing.
#[derive(Debug)]
pub struct Handlers<T> {
    any: AtomicBool,
    all: RwLock<Vec<Arc<T>>>,
}

impl<T> Default for Handlers<T> {
    fn default() -> Handlers<T> {
        Handlers { any: AtomicBool::new(false), all: RwLock::default() }
    }
}

impl<T: Handler> Handlers<T> {
    /// Whether there may be any.
    pub fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Adds one, and forgets those that were cleared.
    pub fn add(&self, handler: Arc<T>) {
        let mut all = self.all.write();
        all.retain(|one| !one.trigger().cleared.load(Relaxed));
        all.push(handler);
        self.any.store(true, Relaxed);
    }

    /// Those there are now, the oldest first. `None`: there is no handler, as is usual.
    pub fn now(&self) -> Option<Vec<Arc<T>>> {
        if !self.any() {
            return None;
        }
        let live: Vec<Arc<T>> = {
            let all = self.all.read();
            all.iter().filter(|one| !one.trigger().cleared.load(Relaxed)).cloned().collect()
        };
        if live.is_empty() {
            let mut all = self.all.write();
            all.retain(|one| !one.trigger().cleared.load(Relaxed));
            self.any.store(!all.is_empty(), Relaxed);
            return None;
        }
        Some(live)
    }
}

/// What a device is asked for (`zinject_iotype_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Trims.
    Trim,
    /// All of these.
    All,
    /// What finds out whether a device answers.
    Probe,
}

impl IoKind {
    fn takes(self, asked: IoKind) -> bool {
        self == asked || self == IoKind::All && asked != IoKind::Probe
    }
}

/// What comes of requests that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// They fail (`EIO`).
    Io,
    /// They fail, and the device cannot be opened again (`ENXIO`).
    Nxio,
    /// They are not done, and fail (`EFAULT`).
    Prefail,
    /// They are not done, and succeed (`ENOSYS`).
    Noop,
    /// A bit of what is read is wrong (`EILSEQ`).
    Corrupt,
    /// None: the vdev counts as one that cannot do without the device (`ECHILD`).
    Dtl,
}

/// A part of each label (`ZINJECT_LABEL_FAULT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelPart {
    /// What is in front of all (`vl_pad1`).
    Pad1,
    /// The area of probes (`vl_be`).
    Pad2,
    /// The config (`vl_vdev_phys`).
    NvList,
    /// The ring of uberblocks.
    Uberblocks,
}

impl LabelPart {
    fn range(self) -> Range<u64> {
        const PAD: u64 = 8 << 10;
        let long = |at: u64, len: usize| at..at + len as u64;
        match self {
            LabelPart::Pad1 => 0..PAD,
            LabelPart::Pad2 => PAD..2 * PAD,
            LabelPart::NvList => long(label::CONFIG_OFFSET, label::CONFIG_SIZE),
            LabelPart::Uberblocks => long(label::RING_OFFSET, label::RING_SIZE),
        }
    }

    /// Whether a request touches it in some label of a device of this size.
    fn is_in(self, size: u64, request: &Range<u64>) -> bool {
        let part = self.range();
        (0..label::LABELS).filter_map(|l| label::label_offset(size, l)).any(|at| {
            let (start, end) = (at + part.start, at + part.end);
            request.start < end && start < request.end
        })
    }
}

/// What a handler does.
#[derive(Debug)]
enum Effect {
    Fail(DeviceError, IoKind),
    Label(LabelPart),
    Delay { latency: Duration, kind: IoKind, lanes: Mutex<Lanes>, over: Condvar },
}

/// When each lane is idle again, and which one is taken next.
#[derive(Debug)]
struct Lanes {
    idle: Vec<Instant>,
    next: usize,
}

/// A handler in front of the device of a leaf.
#[derive(Debug)]
pub struct DeviceHandler {
    effect: Effect,
    trigger: Trigger,
}

impl Handler for DeviceHandler {
    fn trigger(&self) -> &Trigger {
        &self.trigger
    }
}

impl DeviceHandler {
    /// Requests of this kind come to this error.
    pub fn fails(error: DeviceError, kind: IoKind, frequency: u32) -> Arc<DeviceHandler> {
        DeviceHandler::with(Effect::Fail(error, kind), frequency)
    }

    /// Requests that touch this part of a label fail.
    pub fn label(part: LabelPart) -> Arc<DeviceHandler> {
        DeviceHandler::with(Effect::Label(part), u32::MAX)
    }

    /// Requests of this kind take so long at least, of which the device does as many at once as there are lanes (one at least).
    pub fn delays(
        latency: Duration,
        lanes: u16,
        kind: IoKind,
        frequency: u32,
    ) -> Arc<DeviceHandler> {
        let idle = vec![Instant::now(); usize::from(lanes.max(1))];
        let (lanes, over) = (Mutex::new(Lanes { idle, next: 0 }), Condvar::new());
        DeviceHandler::with(Effect::Delay { latency, kind, lanes, over }, frequency)
    }

    fn with(effect: Effect, frequency: u32) -> Arc<DeviceHandler> {
        Arc::new(DeviceHandler { effect, trigger: Trigger::new(frequency) })
    }

    /// From now on it does nothing; what waits for it goes on.
    pub fn clear(&self) {
        self.trigger.clear();
        if let Effect::Delay { lanes, over, .. } = &self.effect {
            let _lanes = lanes.lock();
            over.notify_all();
        }
    }

    /// When a request that is given the next lane ends.
    fn would_end(&self) -> Option<Instant> {
        let Effect::Delay { latency, lanes, .. } = &self.effect else { return None };
        let lanes = lanes.lock();
        let idle = lanes.idle.get(lanes.next).copied().unwrap_or_else(Instant::now);
        Some(idle.max(Instant::now()) + *latency)
    }

    /// Gives a request the next lane. Returns when it ends.
    fn take_lane(&self) -> Option<Instant> {
        let Effect::Delay { latency, lanes, .. } = &self.effect else { return None };
        let mut lanes = lanes.lock();
        let (next, count) = (lanes.next, lanes.idle.len());
        let idle = lanes.idle.get_mut(next)?;
        *idle = (*idle).max(Instant::now()) + *latency;
        let end = *idle;
        lanes.next = (next + 1) % count;
        Some(end)
    }

    /// Waits until then, or until it is cleared.
    fn wait(&self, until: Instant) {
        let Effect::Delay { lanes, over, .. } = &self.effect else { return };
        let mut lanes = lanes.lock();
        let mut waits = true;
        while waits && !self.trigger.cleared.load(Relaxed) {
            waits = !over.wait_until(&mut lanes, until).timed_out();
        }
    }
}

/// The handlers of a leaf.
pub(crate) type Injected = Handlers<DeviceHandler>;

/// The error of a request that is made to fail.
pub(crate) fn failure() -> io::Error {
    io::Error::from_raw_os_error(EIO)
}

/// Whether a request is about what a pool keeps behind the first labels and in front of the last ones.
fn is_data(size: u64, request: &Range<u64>) -> bool {
    let end = (size / LABEL_SIZE * LABEL_SIZE).saturating_sub(LABEL_END);
    request.start >= LABEL_START && request.start < end
}

/// What is asked of a device: `None` where a request has no place.
type Asked<'a> = (IoKind, u64, Option<&'a Range<u64>>);

/// The first of these errors that a handler has for a request, and the handler's next random number
/// (`zio_handle_device_injections`).
fn error_of(
    handlers: &[Arc<DeviceHandler>],
    (kind, size, range): Asked<'_>,
    wanted: &[DeviceError],
) -> Option<(DeviceError, u64)> {
    let at_labels = kind != IoKind::Probe && range.is_some_and(|range| !is_data(size, range));
    handlers.iter().find_map(|handler| match handler.effect {
        Effect::Fail(error, of) if wanted.contains(&error) => {
            let hit = !at_labels && of.takes(kind) && handler.trigger.fires();
            hit.then(|| (error, handler.trigger.random()))
        }
        _ => None,
    })
}

/// Whether a request is to fail for what it touches of a label (`zio_handle_label_injection`).
fn hits_label(handlers: &[Arc<DeviceHandler>], size: u64, range: &Range<u64>) -> bool {
    handlers.iter().any(|handler| match handler.effect {
        Effect::Label(part) => part.is_in(size, range) && handler.trigger.fires(),
        _ => false,
    })
}

/// Holds the caller up for as long as `count` requests take at least (`zio_delay_interrupt`).
fn delay(handlers: &[Arc<DeviceHandler>], asked: IoKind, count: usize) {
    let mut last: Option<(Instant, &DeviceHandler)> = None;
    for _ in 0..count {
        let slow = handlers.iter().filter(|handler| match &handler.effect {
            Effect::Delay { kind, .. } => kind.takes(asked) && handler.trigger.matches(),
            _ => false,
        });
        let Some(soonest) = slow.min_by_key(|handler| handler.would_end()) else { continue };
        soonest.trigger.injected.fetch_add(1, Relaxed);
        let end = soonest.take_lane();
        if let Some(end) = end.filter(|end| last.is_none_or(|(before, _)| *end > before)) {
            last = Some((end, soonest));
        }
    }
    if let Some((end, handler)) = last {
        handler.wait(end);
    }
}

/// What is not even asked of the device.
const INSTEAD: [DeviceError; 2] = [DeviceError::Prefail, DeviceError::Noop];

/// The same of reads. What a probe reads it writes back.
fn instead_of_reads(kind: IoKind) -> &'static [DeviceError] {
    if kind == IoKind::Probe { &INSTEAD[..1] } else { &INSTEAD }
}

/// Flips one bit.
fn flip(data: &mut Abd, random: u64) {
    let bytes = data.make_mut();
    if let Some(at) = (random >> 3).checked_rem(bytes.len() as u64) {
        bytes[at as usize] ^= 1 << (random & 7);
    }
}

impl Vdev {
    /// Puts a handler in front of the device of this leaf.
    pub fn inject(&self, handler: Arc<DeviceHandler>) {
        self.injected.add(handler);
    }

    /// Has the leaf's device do the reads that have no result yet. They are of the class of the thread's reads.
    pub(crate) fn read_from(&self, device: &dyn Device, kind: IoKind, reqs: &mut [ReadReq]) {
        let Some(handlers) = self.injected.now() else { return read_rest(device, reqs) };
        let (size, unseen) = (device.size(), Priority::of_reads().moves_unseen());
        let mut done = vec![false; reqs.len()];
        for (req, done) in reqs.iter_mut().zip(&mut done) {
            let range = req.range();
            let wanted = instead_of_reads(kind);
            let instead = match req.result {
                None => error_of(&handlers, (kind, size, Some(&range)), wanted),
                Some(_) => None,
            };
            *done = req.result.is_some() || instead.is_some();
            match instead {
                Some((DeviceError::Noop, _)) if !unseen => {
                    req.result = Some(Ok(Abd::from_vec(vec![0; req.len])));
                }
                Some(_) => req.result = Some(Err(failure())),
                None => {}
            }
        }
        read_rest(device, reqs);
        let mut count = 0;
        for req in reqs.iter_mut().zip(&done).filter(|(_, done)| !**done).map(|(req, _)| req) {
            count += 1;
            let range = req.range();
            let Some(Ok(data)) = &mut req.result else { continue };
            let errors = [DeviceError::Io, DeviceError::Nxio, DeviceError::Corrupt];
            match error_of(&handlers, (kind, size, Some(&range)), &errors) {
                Some((DeviceError::Corrupt, random)) if !unseen => flip(data, random),
                Some(_) => req.result = Some(Err(failure())),
                None if hits_label(&handlers, size, &range) => req.result = Some(Err(failure())),
                None => {}
            }
        }
        delay(&handlers, kind, count);
    }

    /// Has the leaf's device do the writes that have no result yet.
    pub(crate) fn write_to(&self, device: &dyn Device, kind: IoKind, reqs: &mut [WriteReq]) {
        let Some(handlers) = self.injected.now() else { return write_rest(device, reqs) };
        let size = device.size();
        let range = WriteReq::range;
        let mut done = vec![false; reqs.len()];
        for (req, done) in reqs.iter_mut().zip(&mut done) {
            let instead = match req.result {
                None => error_of(&handlers, (kind, size, Some(&range(req))), &INSTEAD),
                Some(_) => None,
            };
            *done = req.result.is_some() || instead.is_some();
            match instead {
                Some((DeviceError::Noop, _)) => req.result = Some(Ok(())),
                Some(_) => req.result = Some(Err(failure())),
                None => {}
            }
        }
        write_rest(device, reqs);
        let mut count = 0;
        for req in reqs.iter_mut().zip(&done).filter(|(_, done)| !**done).map(|(req, _)| req) {
            count += 1;
            let asked = (kind, size, Some(&range(req)));
            let fails = error_of(&handlers, asked, &[DeviceError::Io, DeviceError::Nxio]).is_some();
            if matches!(req.result, Some(Ok(())))
                && (fails || hits_label(&handlers, size, &range(req)))
            {
                req.result = Some(Err(failure()));
            }
        }
        delay(&handlers, kind, count);
    }

    /// Has the leaf's device make durable what was written.
    pub(crate) fn flush_to(&self, device: &dyn Device) -> io::Result<()> {
        self.one((IoKind::Flush, device.size(), None), || device.flush())
    }

    /// Tells the leaf's device what is free.
    pub(crate) fn trim_on(&self, device: &dyn Device, range: &Range<u64>) -> io::Result<()> {
        let asked = (IoKind::Trim, device.size(), Some(range));
        self.one(asked, || device.trim(range.start, range.end - range.start))
    }

    fn one(&self, asked: Asked<'_>, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Some(handlers) = self.injected.now() else { return work() };
        match error_of(&handlers, asked, &INSTEAD) {
            Some((DeviceError::Noop, _)) => return Ok(()),
            Some(_) => return Err(failure()),
            None => {}
        }
        let done = work();
        let fails = error_of(&handlers, asked, &[DeviceError::Io, DeviceError::Nxio]).is_some();
        delay(&handlers, asked.0, 1);
        if fails { done.and(Err(failure())) } else { done }
    }

    /// Whether the leaf's device counts as one that cannot be opened.
    pub(crate) fn refuses_to_open(&self) -> bool {
        self.has(DeviceError::Nxio)
    }

    /// Whether the vdev counts as one that cannot do without this leaf.
    pub(crate) fn counts_as_required(&self) -> bool {
        self.has(DeviceError::Dtl)
    }

    fn has(&self, wanted: DeviceError) -> bool {
        let handlers = self.injected.now().unwrap_or_default();
        let is_it = |handler: &Arc<DeviceHandler>| match handler.effect {
            Effect::Fail(error, _) => error == wanted && handler.trigger.fires(),
            _ => false,
        };
        handlers.iter().any(is_it)
    }
}

/// Reads what has no result yet: the device does not get to see the others.
fn read_rest(device: &dyn Device, reqs: &mut [ReadReq]) {
    if reqs.iter().all(|r| r.result.is_none()) {
        return device.read_batch(reqs);
    }
    for req in reqs.iter_mut().filter(|r| r.result.is_none()) {
        device.read_batch(std::slice::from_mut(req));
    }
}

/// The same with writes.
fn write_rest(device: &dyn Device, reqs: &mut [WriteReq]) {
    if reqs.iter().all(|r| r.result.is_none()) {
        return device.write_batch(reqs);
    }
    for req in reqs.iter_mut().filter(|r| r.result.is_none()) {
        device.write_batch(std::slice::from_mut(req));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Leaf};
    use crate::traffic::Content;
    use crate::vdev::Kind;
    use crate::write::BlockWrite;
    use crate::{VdevState, VdevTree};

    const ALWAYS: u32 = u32::MAX;

    fn mirror() -> (VdevTree, Vec<Leaf>) {
        let leaves = testing::leaves(2, (1 << 20) + LABEL_END as usize);
        let top = testing::mirror_like(Kind::Mirror, 0, testing::files(&leaves));
        (testing::tree(vec![top]), leaves)
    }

    fn write(tree: &VdevTree, txg: u64) -> bool {
        let (data, content) = (Abd::from_vec(vec![txg as u8; 512]), Content::Data);
        let (offset, sides) = (512 * txg, Vec::new());
        tree.write_many(&[BlockWrite { vdev: 0, offset, data, txg, content, sides }])[0].is_ok()
    }

    fn read(tree: &VdevTree, txg: u64) -> bool {
        testing::read(tree, 512 * txg, &[txg as u8; 512]).is_ok()
    }

    fn inject(tree: &VdevTree, handler: Arc<DeviceHandler>) -> Arc<DeviceHandler> {
        tree.leaves()[0].inject(handler.clone());
        handler
    }

    #[test]
    fn errors_are_those_of_their_leaf_and_end_with_the_handler() {
        let (tree, disks) = mirror();
        assert!(write(&tree, 1));
        let fails = inject(&tree, DeviceHandler::fails(DeviceError::Io, IoKind::Read, ALWAYS));
        for _ in 0..3 {
            assert!(read(&tree, 1) && write(&tree, 2));
        }
        let errors = || tree.leaves().iter().map(|l| l.errors()).collect::<Vec<_>>();
        assert!(errors()[0].0 > 0 && errors()[0].1 == 0 && errors()[1] == (0, 0, 0));
        // Probes are not hit, so the leaf stays.
        assert_eq!(tree.leaves()[0].state(), VdevState::Healthy);
        assert_eq!(fails.trigger().counts().0, fails.trigger().counts().1);
        fails.clear();
        let before = errors();
        assert!(read(&tree, 1) && errors() == before);
        assert!(tree.leaves()[0].injected.now().is_none() && !tree.leaves()[0].injected.any());
        drop(disks);
    }

    #[test]
    fn what_is_done_and_what_is_not() {
        let at = |n: u64| (LABEL_START + 512 * n) as usize;
        for (error, done, well) in [
            (DeviceError::Io, true, false),
            (DeviceError::Prefail, false, false),
            (DeviceError::Noop, false, true),
        ] {
            let (tree, disks) = mirror();
            inject(&tree, DeviceHandler::fails(error, IoKind::Write, ALWAYS));
            assert!(write(&tree, 1), "{error:?}");
            assert_eq!(disks[0].memory.bytes()[at(1)] == 1, done, "{error:?}");
            assert_eq!(tree.leaves()[0].errors().1 == 0, well, "{error:?}");
            assert_eq!(disks[1].memory.bytes()[at(1)], 1);
        }
        let (tree, _disks) = mirror();
        assert!(write(&tree, 1));
        for leaf in tree.leaves() {
            leaf.inject(DeviceHandler::fails(DeviceError::Corrupt, IoKind::Read, ALWAYS));
        }
        assert!(!read(&tree, 1));
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_faulted() {
        let (tree, _disks) = mirror();
        inject(&tree, DeviceHandler::fails(DeviceError::Nxio, IoKind::All, ALWAYS));
        assert!(write(&tree, 1));
        assert_eq!(tree.leaves()[0].state(), VdevState::Faulted);
        let (tree, _disks) = mirror();
        inject(&tree, DeviceHandler::fails(DeviceError::Dtl, IoKind::All, ALWAYS));
        let guid = tree.leaves()[0].guid();
        assert!(!tree.take_out(guid, VdevState::Offline));
        assert!(tree.take_out(tree.leaves()[1].guid(), VdevState::Offline));
    }

    #[test]
    fn labels_and_probes_are_hit_by_their_own_handlers() {
        let (tree, _disks) = mirror();
        let leaf = tree.leaves()[0].clone();
        let device = leaf.device().unwrap();
        let probe = |at: u64| {
            let mut reqs = [ReadReq::new(at, 512)];
            leaf.read_from(&*device, IoKind::Probe, &mut reqs);
            reqs[0].result.take().unwrap().is_ok()
        };
        let plain = |at: u64| {
            let mut reqs = [ReadReq::new(at, 512)];
            leaf.read_from(&*device, IoKind::Read, &mut reqs);
            reqs[0].result.take().unwrap().is_ok()
        };
        let all = inject(&tree, DeviceHandler::fails(DeviceError::Io, IoKind::All, ALWAYS));
        assert!(probe(0) && plain(0) && !plain(LABEL_START));
        all.clear();
        let probes = inject(&tree, DeviceHandler::fails(DeviceError::Io, IoKind::Probe, ALWAYS));
        assert!(!probe(8 << 10) && plain(8 << 10) && plain(LABEL_START));
        probes.clear();
        let ring = inject(&tree, DeviceHandler::label(LabelPart::Uberblocks));
        let last = label::label_offset(device.size(), 3).unwrap();
        for at in [0, last] {
            assert!(plain(at) && plain(at + (127 << 10)) && !plain(at + (128 << 10)));
        }
        ring.clear();
        inject(&tree, DeviceHandler::label(LabelPart::Pad2));
        assert!(!probe(8 << 10) && probe(0) && probe(16 << 10));
    }

    #[test]
    fn what_is_copied_unseen_fails_and_is_not_wrong() {
        let (tree, _disks) = mirror();
        let leaf = tree.leaves()[0].clone();
        let device = leaf.device().unwrap();
        assert!(write(&tree, 1));
        let bytes = |class: Priority, kind: IoKind| {
            let mut reqs = [ReadReq::new(LABEL_START + 512, 512)];
            class.for_reads(|| leaf.read_from(&*device, kind, &mut reqs));
            reqs[0].result.take().unwrap().ok().map(|data| data.bytes().into_owned())
        };
        let right = bytes(Priority::SyncRead, IoKind::Read).unwrap();
        for error in [DeviceError::Corrupt, DeviceError::Noop] {
            let wrong = inject(&tree, DeviceHandler::fails(error, IoKind::Read, ALWAYS));
            for class in [Priority::Removal, Priority::Rebuild] {
                assert_eq!(bytes(class, IoKind::Read), None);
            }
            for class in [Priority::SyncRead, Priority::Scrub] {
                assert_ne!(bytes(class, IoKind::Read).unwrap(), right);
            }
            wrong.clear();
        }
        // What a probe reads it writes back.
        inject(&tree, DeviceHandler::fails(DeviceError::Noop, IoKind::Probe, ALWAYS));
        assert_eq!(bytes(Priority::SyncRead, IoKind::Probe).unwrap(), right);
    }

    #[test]
    fn lanes_add_up() {
        const TIME: Duration = Duration::from_millis(40);
        let took = |lanes: &[u16], requests: usize| {
            let all: Vec<_> = lanes
                .iter()
                .map(|n| DeviceHandler::delays(TIME, *n, IoKind::All, ALWAYS))
                .collect();
            let begun = Instant::now();
            delay(&all, IoKind::Read, requests);
            begun.elapsed()
        };
        assert!(took(&[1], 1) >= TIME && took(&[1], 4) >= 4 * TIME);
        assert!(took(&[2], 4) >= 2 * TIME && took(&[1, 1], 4) >= 2 * TIME);
        // Each lane is for one request at a time, and no longer than that.
        const LONG: Duration = Duration::from_secs(600);
        let two = DeviceHandler::delays(LONG, 2, IoKind::All, ALWAYS);
        let ends: Vec<Instant> = (0..4).filter_map(|_| two.take_lane()).collect();
        assert!(ends[1] - ends[0] < LONG / 2 && ends[3] - ends[2] < LONG / 2);
        assert_eq!((ends[2] - ends[0], ends[3] - ends[1]), (LONG, LONG));
        // Clearing a handler ends the wait.
        let slow = DeviceHandler::delays(Duration::from_secs(600), 1, IoKind::Read, ALWAYS);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| delay(std::slice::from_ref(&slow), IoKind::Read, 1));
            while slow.trigger().counts().1 == 0 {
                std::thread::yield_now();
            }
            slow.clear();
            waits.join().unwrap();
        });
    }

    #[test]
    fn a_share_of_matches_is_about_that_share() {
        let trigger = Trigger::new(u32::MAX / 4);
        let hits = (0..10_000).filter(|_| trigger.fires()).count() as u64;
        assert!((2_000..3_000).contains(&hits), "{hits}");
        assert_eq!(trigger.counts(), (10_000, hits));
    }
}
