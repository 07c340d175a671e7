//! The queue of a leaf (`vdev_queue_t`): which requests its device has, and which wait.
//!
//! # Idea
//!
//! Each request has a class ([`Priority`], `zio_priority_t`), and each class a share of each device: the
//! number of requests that the device may have of it at once (`zfs_vdev_*_max_active`). What exceeds the
//! share waits in the order in which it came. So a scrub or read-ahead of any size leaves room for the
//! reads that a thread waits for. Over all classes a device has `zfs_vdev_max_active` requests at most;
//! where that binds, classes below their least number (`zfs_vdev_*_min_active`) come first, in their
//! order.
//!
//! - Scrub, removal, rebuild and initializing are in the background: while the device has, or is to have, requests of
//!   others, they have no more than their least number.
//! - An object store does many requests at once, and each takes long: its shares are [`FAR`] times as large, for reads as for writes. It has
//!   shares of its own below that (`cenote_objects::Class`).
//! - The share of asynchronous writes grows from its least to its most number while what is dirty grows
//!   from `zfs_vdev_async_write_active_min_dirty_percent` to `..._max_dirty_percent` of what may be
//!   (`vdev_queue_max_async_writes`).
//!
//! # Batches
//!
//! Requests come and go in batches, each of which one thread has the device do. A batch counts as many
//! requests as the device has of it at once ([`LeafWork::active`]): neighbours that OpenZFS would join to
//! one count as one, and a batch that is done one request after the other counts as one. A batch larger
//! than its share is cut up before it gets here.
//!
//! The thread that brings a batch runs it, if the class has room. A thread that is done with one gives its
//! place to what waits.
//!
//! # Invariants
//!
//! - Nothing waits that may be issued.
//! - A batch that is issued gives its place back, also if it panics, and before its call returns.
//! - A class with nothing issued may always issue, whatever its batch counts as, unless the device has
//!   `zfs_vdev_max_active` requests.

#[cfg(test)]
mod planted;

use cenote_format::less;
use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

use crate::Alarm;
use crate::patience::Patience;
use crate::threads::{IoPool, Job, Threads, Work};
use crate::tunables as t;
use crate::vdev::Vdev;
use crate::waiting;

/// The class of a request (`zio_priority_t`), the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A thread waits for these bytes.
    SyncRead,
    /// A thread waits until these are written: labels, uberblocks, blocks of intent logs.
    SyncWrite,
    /// Read ahead.
    AsyncRead,
    /// Blocks of a transaction group.
    AsyncWrite,
    /// Read ahead of the replay of an intent log. Many at once, because a thread waits for the last of them.
    Replay,
    /// Scrub and resilver.
    Scrub,
    /// Copying from a vdev that is being removed.
    Removal,
    /// Sequential rebuild of a mirror.
    Rebuild,
    /// Telling the device what is free.
    Trim,
    /// Writing to what is free.
    Initializing,
}

thread_local! {
    static READS: Cell<Priority> = const { Cell::new(Priority::SyncRead) };
}

/// How many classes there are.
pub const CLASSES: usize = 10;

impl Priority {
    /// All of them, the most urgent first.
    pub const ALL: [Priority; CLASSES] = [
        Priority::SyncRead,
        Priority::SyncWrite,
        Priority::AsyncRead,
        Priority::AsyncWrite,
        Priority::Replay,
        Priority::Scrub,
        Priority::Removal,
        Priority::Rebuild,
        Priority::Trim,
        Priority::Initializing,
    ];

    /// Has the calling thread's reads be of this class while `work` is done; without it they are
    /// [`Priority::SyncRead`].
    pub fn for_reads<T>(self, work: impl FnOnce() -> T) -> T {
        struct Restore(Priority);
        impl Drop for Restore {
            fn drop(&mut self) {
                READS.set(self.0);
            }
        }
        let _restore = Restore(READS.replace(self));
        work()
    }

    /// The class of the calling thread's reads.
    pub fn of_reads() -> Priority {
        READS.get()
    }

    /// Whether what is read goes to another place with no checksum in between.
    pub(crate) fn moves_unseen(self) -> bool {
        matches!(self, Priority::Removal | Priority::Rebuild)
    }

    /// Its least and its most number of requests.
    fn limits(self) -> (usize, usize) {
        match self {
            Priority::SyncRead => {
                (t::SYNC_READ_MIN_ACTIVE.count(), t::SYNC_READ_MAX_ACTIVE.count())
            }
            Priority::SyncWrite => {
                (t::SYNC_WRITE_MIN_ACTIVE.count(), t::SYNC_WRITE_MAX_ACTIVE.count())
            }
            Priority::AsyncRead => {
                (t::ASYNC_READ_MIN_ACTIVE.count(), t::ASYNC_READ_MAX_ACTIVE.count())
            }
            Priority::AsyncWrite => {
                (t::ASYNC_WRITE_MIN_ACTIVE.count(), t::ASYNC_WRITE_MAX_ACTIVE.count())
            }
            Priority::Replay => (t::REPLAY_MIN_ACTIVE.count(), t::REPLAY_MAX_ACTIVE.count()),
            Priority::Scrub => (t::SCRUB_MIN_ACTIVE.count(), t::SCRUB_MAX_ACTIVE.count()),
            Priority::Removal => (t::REMOVAL_MIN_ACTIVE.count(), t::REMOVAL_MAX_ACTIVE.count()),
            Priority::Rebuild => (t::REBUILD_MIN_ACTIVE.count(), t::REBUILD_MAX_ACTIVE.count()),
            Priority::Trim => (t::TRIM_MIN_ACTIVE.count(), t::TRIM_MAX_ACTIVE.count()),
            Priority::Initializing => {
                (t::INITIALIZING_MIN_ACTIVE.count(), t::INITIALIZING_MAX_ACTIVE.count())
            }
        }
    }

    fn least(self) -> usize {
        self.limits().0
    }

    /// Whether it gives way to others (the opposite of `vdev_queue_is_interactive`).
    fn is_background(self) -> bool {
        use Priority::{Initializing, Rebuild, Removal, Scrub};
        matches!(self, Scrub | Removal | Rebuild | Initializing)
    }

    /// How many requests the device has of it at most, however busy it is.
    pub(crate) fn most(self) -> usize {
        self.limits().1.max(self.least())
    }
}

/// What a queue has of each class, in the order of [`Priority::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueFigures {
    /// Requests that wait (`vsx_pend_queue`).
    pub pending: [u64; CLASSES],
    /// Requests that the device has (`vsx_active_queue`).
    pub active: [u64; CLASSES],
}

impl QueueFigures {
    /// Adds what another queue has.
    pub(crate) fn add(&mut self, other: &QueueFigures) {
        for (sum, more) in self.pending.iter_mut().zip(other.pending) {
            *sum += more;
        }
        for (sum, more) in self.active.iter_mut().zip(other.active) {
            *sum += more;
        }
    }
}

/// Requests for one leaf that are submitted together.
pub(crate) trait LeafWork: Work {
    fn leaf(&self) -> &Arc<Vdev>;

    fn requests(&self) -> usize;

    /// How many of them the device has at once; see the module's documentation.
    fn active(&self) -> usize {
        1
    }
}

/// What a batch counts as.
#[derive(Clone, Copy)]
struct Size {
    requests: u64,
    active: u64,
}

impl Size {
    fn of(work: &impl LeafWork) -> Size {
        let active = work.active().max(1) as u64;
        Size { requests: (work.requests() as u64).max(active), active }
    }
}

/// A batch that waits, or must be done now.
struct Ticket {
    leaf: Arc<Vdev>,
    priority: Priority,
    size: Size,
    /// Tells the batches of one call from others.
    call: u64,
    threads: Arc<Threads>,
    /// Does the batch and does not panic. Returns what gives the batch back to the call that waits for it.
    job: Box<dyn FnOnce() -> Job + Send>,
}

impl Ticket {
    /// Does it, gives its place back, and then gives the batch back. Returns what may be issued now.
    fn run(self) -> Vec<Ticket> {
        let give_back = (self.job)();
        let issued = self.leaf.queue.done(self.priority, self.size);
        give_back();
        issued
    }

    /// Has a thread do it, and after it what gets its place.
    fn spawn(self) {
        let threads = self.threads.clone();
        threads.submit(Box::new(move || {
            let mut next = Some(self);
            while let Some(ticket) = next.take() {
                for issued in ticket.run() {
                    match next {
                        None => next = Some(issued),
                        Some(_) => issued.spawn(),
                    }
                }
            }
        }));
    }
}

/// How much larger the shares of an object store are.
const FAR: u64 = 8;

#[derive(Default)]
struct State {
    /// The device is an object store.
    is_far: bool,
    waiting: [VecDeque<Ticket>; CLASSES],
    figures: QueueFigures,
}

impl State {
    /// How many requests the device may have of a class now.
    fn most(&self, priority: Priority, dirty_percent: u64) -> u64 {
        let times = if self.is_far { FAR } else { 1 };
        let (least, most) = (priority.least() as u64 * times, priority.most() as u64 * times);
        let others = || {
            let of = |i: usize| self.figures.active[i] + self.figures.pending[i];
            Priority::ALL.iter().any(|p| !p.is_background() && of(*p as usize) > 0)
        };
        match priority {
            Priority::AsyncWrite => async_writes(least, most, dirty_percent),
            _ if priority.is_background() && others() => least,
            _ => most,
        }
    }

    /// Whether a batch that counts as `active` may be issued.
    fn has_room(&self, priority: Priority, active: u64, dirty_percent: u64) -> bool {
        let all: u64 = self.figures.active.iter().sum();
        let now = self.figures.active[priority as usize];
        let most = self.most(priority, dirty_percent);
        all < t::MAX_ACTIVE.get() && (now == 0 || now + active <= most)
    }

    /// The class to issue from (`vdev_queue_class_to_issue`).
    fn class(&self, dirty_percent: u64) -> Option<Priority> {
        let may = |p: &Priority| {
            let first = self.waiting[*p as usize].front();
            first.is_some_and(|ticket| self.has_room(*p, ticket.size.active, dirty_percent))
        };
        let below = |p: &Priority| self.figures.active[*p as usize] < p.least() as u64;
        let mut all = Priority::ALL.into_iter().filter(may);
        all.clone().find(below).or_else(|| all.next())
    }

    /// The batch is issued. Its requests that the device does not have yet go on waiting.
    fn begin(&mut self, priority: Priority, size: Size) {
        self.figures.active[priority as usize] += size.active;
        self.figures.pending[priority as usize] += size.requests - size.active;
    }

    /// Takes what may be issued now, in the order of classes (`vdev_queue_io_to_issue`).
    fn issue(&mut self, dirty_percent: u64) -> Vec<Ticket> {
        let mut issued = Vec::new();
        while let Some(class) = self.class(dirty_percent)
            && let Some(ticket) = self.waiting[class as usize].pop_front()
        {
            let pending = &mut self.figures.pending[class as usize];
            *pending = less!(*pending, ticket.size.requests, "waiting requests of {class:?}");
            self.begin(class, ticket.size);
            issued.push(ticket);
        }
        issued
    }
}

/// Most asynchronous writes, where `percent` of what may be dirty is.
fn async_writes(least: u64, most: u64, percent: u64) -> u64 {
    let from = t::ASYNC_WRITE_ACTIVE_MIN_DIRTY_PERCENT.get();
    let to = t::ASYNC_WRITE_ACTIVE_MAX_DIRTY_PERCENT.get();
    match percent {
        _ if percent < from => least,
        _ if percent >= to => most,
        _ => least + (most - least) * (percent - from) / (to - from),
    }
}

/// The queue of one leaf.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// How much of what may be dirty in the pool was, when this was last told.
    dirty_percent: AtomicU64,
}

impl Queue {
    /// The device is an object store.
    pub(crate) fn is_of_store(&self) {
        self.state().is_far = true;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn set_dirty_percent(&self, percent: u64) {
        self.dirty_percent.store(percent, Relaxed);
    }

    /// What waits, and what the device has.
    pub(crate) fn figures(&self) -> QueueFigures {
        self.state().figures
    }

    /// Issues a batch of the caller's, if nothing is before it and there is room.
    fn begin(&self, priority: Priority, size: Size) -> bool {
        let mut state = self.state();
        let (first, dirty) =
            (state.waiting[priority as usize].is_empty(), self.dirty_percent.load(Relaxed));
        let may = first && state.has_room(priority, size.active, dirty);
        if may {
            state.begin(priority, size);
        }
        may
    }

    /// Puts a batch last (`vdev_queue_io`). Returns what may be issued now.
    fn add(&self, ticket: Ticket) -> Vec<Ticket> {
        let class = ticket.priority as usize;
        let mut state = self.state();
        state.figures.pending[class] += ticket.size.requests;
        state.waiting[class].push_back(ticket);
        state.issue(self.dirty_percent.load(Relaxed))
    }

    /// A batch is done (`vdev_queue_io_done`). Returns what may be issued in its place.
    fn done(&self, priority: Priority, size: Size) -> Vec<Ticket> {
        let (mut state, class) = (self.state(), priority as usize);
        let QueueFigures { active, pending } = &mut state.figures;
        active[class] = less!(active[class], size.active, "active requests of {priority:?}");
        let waited = less!(size.requests, size.active, "requests of a batch of {priority:?}");
        pending[class] = less!(pending[class], waited, "waiting requests of {priority:?}");
        state.issue(self.dirty_percent.load(Relaxed))
    }
}

/// A batch that the caller has the device do; gives its place back when dropped.
struct Active<'a>(&'a Vdev, Priority, Size, &'a Alarm);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        let done = || self.0.queue.done(self.1, self.2).into_iter().for_each(Ticket::spawn);
        // This may be the end of a panic.
        self.3.guard("vdev-io", done);
    }
}

/// Has all batches done, as soon as their class has room, and gives them back in any order. One that
/// panicked does not come back.
pub(crate) fn run<W: LeafWork>(pool: &IoPool, priority: Priority, batches: Vec<W>) -> Vec<W> {
    run_for(pool, priority, batches, None)
}

/// As [`run`]. With `patience` batches that take longer do not come back; they are done all the same.
pub(crate) fn run_for<W: LeafWork>(
    pool: &IoPool,
    priority: Priority,
    mut batches: Vec<W>,
    patience: Option<Patience<'_>>,
) -> Vec<W> {
    waiting::begins();
    // The usual case, which costs no hand-over.
    if patience.is_none()
        && let [batch] = &mut batches[..]
    {
        let (leaf, size) = (batch.leaf().clone(), Size::of(batch));
        if leaf.queue.begin(priority, size) {
            let place = Active(&leaf, priority, size, &pool.threads().alarm);
            batch.run();
            drop(place);
            return batches;
        }
    }
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Relaxed);
    let (done, finished) = channel();
    // The caller's thread does one batch at a time, if it has patience.
    let mut own: Option<Ticket> = None;
    let take = |own: &mut Option<Ticket>, issued: Vec<Ticket>| {
        for ticket in issued {
            match own {
                None if ticket.call == call && patience.is_none() => *own = Some(ticket),
                _ => ticket.spawn(),
            }
        }
    };
    for mut batch in batches {
        let (leaf, size) = (batch.leaf().clone(), Size::of(&batch));
        let (done, threads, queued) = (done.clone(), pool.threads().clone(), leaf.clone());
        let alarm = threads.alarm.clone();
        let job = Box::new(move || {
            let ran = alarm.guard("vdev-io", || batch.run());
            Box::new(move || {
                if ran.is_some() {
                    // The receiver waits for all senders: it is still there, or gave up.
                    let _ = done.send(batch);
                }
            }) as Job
        });
        let ticket = Ticket { leaf, priority, size, call, threads, job };
        take(&mut own, queued.queue.add(ticket));
    }
    drop(done);
    while let Some(ticket) = own.take() {
        take(&mut own, ticket.run());
    }
    let Some(patience) = patience else { return finished.into_iter().collect() };
    let (begun, mut back) = (Instant::now(), Vec::new());
    loop {
        match finished.recv_timeout(patience.pause(begun)) {
            Ok(batch) => back.push(batch),
            Err(RecvTimeoutError::Timeout) if !patience.is_over(begun) => {}
            Err(_) => return back,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, ReadReq};
    use crate::testing::{self, Leaf};
    use crate::{BlockRead, VdevTree};
    use parking_lot::Condvar;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::Path;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);

    /// Lets batches end, one by one.
    #[derive(Default)]
    struct Latch {
        open: Mutex<usize>,
        changed: Condvar,
    }

    impl Latch {
        fn let_out(&self, batches: usize) {
            *self.open.lock() += batches;
            self.changed.notify_all();
        }

        fn wait(&self) {
            let mut open = self.open.lock();
            assert!(!self.changed.wait_while_for(&mut open, |open| *open == 0, LONG).timed_out());
            *open -= 1;
        }
    }

    /// A batch of `requests` that counts as `active`, and ends when the latch lets it out.
    struct Batch {
        leaf: Arc<Vdev>,
        requests: usize,
        active: usize,
        latch: Option<Arc<Latch>>,
    }

    impl Work for Batch {
        fn run(&mut self) {
            if let Some(latch) = &self.latch {
                latch.wait();
            }
        }
    }

    impl LeafWork for Batch {
        fn leaf(&self) -> &Arc<Vdev> {
            &self.leaf
        }

        fn requests(&self) -> usize {
            self.requests
        }

        fn active(&self) -> usize {
            self.active
        }
    }

    fn leaf() -> Arc<Vdev> {
        testing::file(0, &Leaf::new(4096))
    }

    fn batch(leaf: &Arc<Vdev>, active: usize, latch: Option<&Arc<Latch>>) -> Batch {
        Batch { leaf: leaf.clone(), requests: active, active, latch: latch.cloned() }
    }

    /// Pending and active requests of a class.
    fn of(leaf: &Vdev, priority: Priority) -> (u64, u64) {
        let figures = leaf.queues();
        (figures.pending[priority as usize], figures.active[priority as usize])
    }

    fn wait_until(done: impl Fn() -> bool) {
        let end = Instant::now() + LONG;
        while !done() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(done());
    }

    #[test]
    fn each_class_keeps_to_its_share_and_stops_no_other() {
        let (pool, leaf) = (IoPool::new(Arc::default()), leaf());
        for priority in Priority::ALL {
            let (most, latch) = (priority.most(), Arc::<Latch>::default());
            let dirty = t::ASYNC_WRITE_ACTIVE_MAX_DIRTY_PERCENT.get();
            leaf.queue.set_dirty_percent(dirty);
            std::thread::scope(|scope| {
                let batches = (0..most + 2).map(|_| batch(&leaf, 1, Some(&latch))).collect();
                let full = scope.spawn(|| run(&pool, priority, batches));
                wait_until(|| of(&leaf, priority) == (2, most as u64));
                // All others go past it, whether they bring one batch or several.
                for other in Priority::ALL.into_iter().filter(|other| *other != priority) {
                    for n in 1..4 {
                        let batches = (0..n).map(|_| batch(&leaf, 1, None)).collect();
                        assert_eq!(run(&pool, other, batches).len(), n);
                    }
                }
                assert_eq!(of(&leaf, priority), (2, most as u64));
                latch.let_out(1);
                wait_until(|| of(&leaf, priority) == (1, most as u64));
                latch.let_out(most + 1);
                assert_eq!(full.join().unwrap().len(), most + 2);
            });
            assert_eq!(leaf.queues(), QueueFigures::default());
        }
    }

    #[test]
    fn an_object_store_has_more_at_once() {
        let far = Queue::default();
        far.is_of_store();
        let one = Size { requests: 1, active: 1 };
        for priority in Priority::ALL {
            let most = match priority {
                Priority::AsyncWrite => priority.least(),
                other => other.most(),
            };
            let all = (most as u64 * FAR).min(t::MAX_ACTIVE.get());
            let begun = (0..2 * all).take_while(|_| far.begin(priority, one)).count();
            assert_eq!(begun as u64, all, "{priority:?}");
            (0..begun).for_each(|_| drop(far.done(priority, one)));
        }
    }

    #[test]
    fn the_background_gives_way() {
        for priority in [Priority::Scrub, Priority::Removal, Priority::Rebuild] {
            let (pool, leaf) = (IoPool::new(Arc::default()), leaf());
            let (latch, others) = (Arc::<Latch>::default(), Arc::<Latch>::default());
            std::thread::scope(|scope| {
                let read = || run(&pool, Priority::SyncRead, vec![batch(&leaf, 1, Some(&others))]);
                let read = scope.spawn(read);
                wait_until(|| of(&leaf, Priority::SyncRead).1 == 1);
                let batches = (0..5).map(|_| batch(&leaf, 1, Some(&latch))).collect();
                let behind = scope.spawn(|| run(&pool, priority, batches));
                let (least, most) = (priority.least() as u64, priority.most() as u64);
                assert!(least < most);
                wait_until(|| of(&leaf, priority) == (5 - least, least));
                others.let_out(1);
                read.join().unwrap();
                wait_until(|| of(&leaf, priority) == (5 - most, most));
                latch.let_out(5);
                assert_eq!(behind.join().unwrap().len(), 5);
            });
        }
    }

    #[test]
    fn a_full_device_takes_the_most_urgent_first() {
        let leaf = leaf();
        let all = Size { requests: 1 << 20, active: t::MAX_ACTIVE.get() };
        assert!(leaf.queue.begin(Priority::Trim, all));
        let ticket = |priority, active| Ticket {
            leaf: leaf.clone(),
            priority,
            size: Size { requests: active, active },
            call: 0,
            threads: Arc::default(),
            job: Box::new(|| Box::new(|| {})),
        };
        // By turns from the last class to the first.
        for _ in 0..2 {
            for priority in Priority::ALL.into_iter().rev() {
                assert!(leaf.queue.add(ticket(priority, 1)).is_empty());
            }
        }
        let issued: Vec<Priority> =
            leaf.queue.done(Priority::Trim, all).iter().map(|ticket| ticket.priority).collect();
        use Priority::{
            AsyncRead, AsyncWrite, Initializing, Rebuild, Removal, Replay, Scrub, SyncRead,
            SyncWrite, Trim,
        };
        let least = [SyncRead, SyncRead, SyncWrite, SyncWrite, AsyncRead, AsyncWrite, AsyncWrite];
        assert_eq!((&issued[..7], issued[7]), (&least[..], Replay));
        // Then what is in the background gets its least, and the rest what is left of the shares.
        let rest = [Scrub, Removal, Rebuild, Trim, Initializing, AsyncRead, Replay, Trim];
        assert_eq!(issued[8..], rest);
    }

    #[test]
    fn asynchronous_writes_grow_with_what_is_dirty() {
        let most = [0, 29, 30, 45, 59, 60, 100, 1000].map(|percent| async_writes(2, 10, percent));
        assert_eq!(most, [2, 2, 2, 6, 9, 10, 10, 10]);
    }

    #[test]
    fn a_batch_that_panics_gives_its_place_back() {
        struct Bad(Arc<Vdev>);
        impl Work for Bad {
            fn run(&mut self) {
                panic!("for the test");
            }
        }
        impl LeafWork for Bad {
            fn leaf(&self) -> &Arc<Vdev> {
                &self.0
            }
            fn requests(&self) -> usize {
                5
            }
        }
        let (pool, leaf) = (IoPool::new(Arc::default()), leaf());
        let bad = |n| (0..n).map(|_| Bad(leaf.clone())).collect::<Vec<_>>();
        assert!(run(&pool, Priority::SyncRead, bad(30)).is_empty());
        assert_eq!(leaf.queues(), QueueFigures::default());
        let alone = AssertUnwindSafe(|| run(&pool, Priority::SyncRead, bad(1)));
        assert!(catch_unwind(alone).is_err());
        assert_eq!(leaf.queues(), QueueFigures::default());
    }

    /// A device that has all reads of a batch at once, and notes the most that it had.
    #[derive(Default)]
    struct Deep {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    impl Device for Deep {
        fn size(&self) -> u64 {
            1 << 40
        }

        fn path(&self) -> &Path {
            Path::new("deep")
        }

        fn depth(&self, requests: usize, _: u64) -> usize {
            requests
        }

        fn read_batch(&self, reqs: &mut [ReadReq]) {
            let now = self.now.fetch_add(reqs.len(), Relaxed) + reqs.len();
            self.most.fetch_max(now, Relaxed);
            std::thread::sleep(Duration::from_millis(1));
            self.now.fetch_sub(reqs.len(), Relaxed);
            for req in reqs {
                req.result = Some(Ok(vec![1; req.len].into()));
            }
        }
    }

    #[test]
    fn large_batches_are_cut_up() {
        let device = Arc::new(Deep::default());
        let tree: VdevTree = testing::tree(vec![testing::file_on(0, device.clone())]);
        let verify = |_: &cenote_format::abd::Abd| true;
        // (bytes of each, bytes from one to the next, how many the device has at most by class)
        for (size, apart, many) in [(4096, 1 << 20, 1), (256 << 10, 256 << 10, 4)] {
            let ask =
                |i: u64| BlockRead { vdev: 0, offset: i * apart, size, txg: 1, verify: &verify };
            let reqs: Vec<_> = (0..100).map(ask).collect();
            for priority in [Priority::SyncRead, Priority::AsyncRead, Priority::Scrub] {
                device.most.store(0, Relaxed);
                let done = tree.read_many_as(priority, &reqs);
                assert!(done.iter().all(|outcome| outcome.block.is_ok()));
                let most = device.most.load(Relaxed);
                assert!((1..=many * priority.most()).contains(&most), "{priority:?}: {most}");
                assert!(most > many || priority.most() == 1, "{priority:?}: {most}");
            }
        }
    }
}
