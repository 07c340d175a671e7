//! Waiting until changes are on disk (`zfs_fsync`), without keeping requests waiting.
//!
//! A request that has to wait (`fsync`, any change under `sync=always`) leaves its answer here. Its own thread calls the
//! [`SyncHook`] of the file system, once it has let go of the request ([`crate::session::leave`]), and answers: no other thread
//! is woken for it. Other requests are served meanwhile: it hands on before it waits, or it leads on where that takes a moment, and is overtaken where
//! that takes longer ([`crate::session`]).
//!
//! Up to [`MOST`] requests of one file system, and [`MOST_OF_ALL`] of a mount, have their own thread wait. What comes beside them, and what is
//! answered by another thread than that of its request, leaves its answer in a queue. A thread of the queue takes all
//! that are queued of one file system, calls its hook once for all of them, and lets them go: whatever came before the call is covered
//! by it. So any number of waiting programs costs few threads and few waits.
//!
//! Up to [`MOST`] threads of the queue do that side by side for one file system, so that an intent log takes the next commit while the one
//! before is being made durable. A file system that is stuck keeps no thread from another one, up to [`MOST_OF_ALL`] in a
//! mount.
//!
//! Invariant: while a request waits in the queue, a thread of the queue is on its way to it, or [`MOST`] serve its file system and come
//! back to it. Where no thread could be started for it, the first one that comes back takes it.

use crate::session::{leave, may_leave};
use cenote_dmu::write::WriteError;
use cenote_format::invariant::{caught, said};
use cenote_format::{invariant, less};
use cenote_zpl::Error;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Waits until the changes of a file system so far are on disk: changes of these objects with all names, or, with
/// `None`, all.
pub type SyncHook = Arc<dyn Fn(Option<&[u64]>) -> Result<(), Error> + Send + Sync>;

/// The `sync` property.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum SyncPolicy {
    /// Programs say what has to be on disk.
    #[default]
    Standard,
    /// Every change has to be on disk before it is answered.
    Always,
    /// Nothing has to.
    Disabled,
}

/// How long a thread waits for something to do before it ends.
const REST: Duration = Duration::from_secs(10);
/// How often it is looked whether the pool of an interrupted program is suspended.
const LOOK: Duration = Duration::from_millis(100);
/// Most threads of the queue that wait for one file system, and most requests of it whose own threads do.
const MOST: usize = 4;
/// Most of either in a mount, which may have many file systems.
const MOST_OF_ALL: usize = 32;

/// Most interrupts that are kept for requests that may wait later: as many as requests under way, and more.
const MOST_EARLY: usize = 256;

/// Whether the pool of a program is suspended.
type IsSuspended = Box<dyn Fn() -> bool + Send>;

/// What to do when changes are on disk, or could not be written.
type Answer = Box<dyn FnOnce(&Result<(), Error>) + Send>;

/// An answer that is still to be given.
type Open = Arc<Mutex<Option<Answer>>>;

/// A request that waits.
struct Waiter {
    number: u64,
    hook: SyncHook,
    /// The object that it waits for; `None`: all.
    object: Option<u64>,
    answer: Open,
}

impl Waiter {
    /// Gives the answer, unless it was given because the program was interrupted.
    fn answer(&self, result: &Result<(), Error>) {
        give(&self.answer, result);
    }
}

fn give(open: &Open, result: &Result<(), Error>) {
    let answer = open.lock().take();
    if let Some(answer) = answer {
        answer(result);
    }
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiter>,
    /// The answers of all requests that wait, by their numbers.
    open: HashMap<u64, Open>,
    /// What the threads of the queue call now.
    called: Vec<SyncHook>,
    /// What threads call for the requests that they have served.
    own: Vec<SyncHook>,
    /// Requests whose programs were interrupted while their pool was well: they wait on unless it is suspended.
    interrupted: HashSet<u64>,
    /// Interrupts of requests that did not wait yet, by their numbers, the latest last.
    early: VecDeque<(u64, IsSuspended)>,
    /// A thread looks whether it is.
    watched: bool,
    threads: usize,
    /// Threads that wait for something to do.
    idle: usize,
    closed: bool,
}

impl Queue {
    /// Whether one more thread may call the hook.
    fn may_call(&self, hook: &SyncHook) -> bool {
        self.called.iter().filter(|called| Arc::ptr_eq(called, hook)).count() < MOST
    }

    /// Whether a new request that calls the hook needs one more thread. A request that waits already and may be served has a thread
    /// on its way to it, which takes the new one along if they share the hook. An idle thread may have been woken for another one.
    fn wants_thread(&self, hook: &SyncHook) -> bool {
        let joins = self.waiting.iter().any(|w| Arc::ptr_eq(&w.hook, hook));
        let coming = self.waiting.iter().filter(|w| self.may_call(&w.hook)).count();
        self.may_call(hook) && !joins && self.idle <= coming
    }

    /// Takes all that wait for the file system that has waited longest, of those that may be called.
    fn take(&mut self) -> Option<Vec<Waiter>> {
        let hook = self.waiting.iter().map(|w| &w.hook).find(|hook| self.may_call(hook))?.clone();
        let all = std::mem::take(&mut self.waiting);
        let (same, others) = all.into_iter().partition(|w| Arc::ptr_eq(&w.hook, &hook));
        self.waiting = others;
        self.called.push(hook);
        Some(same)
    }

    /// Whether the thread of one more request may call the hook.
    fn may_call_itself(&self, hook: &SyncHook) -> bool {
        let same = self.own.iter().filter(|own| Arc::ptr_eq(own, hook)).count();
        same < MOST && self.own.len() < MOST_OF_ALL
    }
}

/// What is wrong where a thread is back from a hook that none is noted to call.
const UNKNOWN: &str = "a thread is back from a sync that no thread waits for";

/// A thread is back from the hook. Returns whether it was noted to call it.
fn is_back(called: &mut Vec<SyncHook>, hook: &SyncHook) -> bool {
    let at = called.iter().position(|called| Arc::ptr_eq(called, hook));
    at.map(|at| called.swap_remove(at)).is_some()
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

/// The queue and its threads, which are started when they are needed.
#[derive(Default)]
pub(crate) struct Syncer {
    shared: Arc<Shared>,
}

impl Syncer {
    /// Calls `answer` once everything that changed before is on disk; with `object`, everything of that object, and all
    /// names. That is later: this thread does so once it has let go of its request, or another one. `number` is that of the
    /// request.
    pub(crate) fn wait(
        &self,
        number: u64,
        hook: &SyncHook,
        object: Option<u64>,
        answer: impl FnOnce(&Result<(), Error>) + Send + 'static,
    ) {
        let open: Open = Arc::new(Mutex::new(Some(Box::new(answer))));
        let waiter = Waiter { number, hook: hook.clone(), object, answer: open.clone() };
        let mut queue = self.shared.lock();
        queue.open.insert(number, open);
        let early = queue.early.iter().position(|(interrupted, _)| *interrupted == number);
        let early = early.and_then(|at| queue.early.remove(at));
        if may_leave() && queue.may_call_itself(hook) {
            queue.own.push(hook.clone());
            drop(queue);
            let own = OwnWait { shared: self.shared.clone(), waiter };
            let left = leave(move || own.run());
            invariant!(left.is_ok(), "a request leaves one wait, and left another one before");
        } else {
            self.enqueue(queue, waiter);
        }
        if let Some((_, is_suspended)) = early {
            self.interrupt(number, is_suspended);
        }
    }

    /// Leaves a request to the threads of the queue.
    fn enqueue(&self, mut queue: MutexGuard<'_, Queue>, waiter: Waiter) {
        let wanted = queue.wants_thread(&waiter.hook);
        if wanted && queue.threads < MOST_OF_ALL {
            let shared = self.shared.clone();
            let run = move || shared.run();
            match std::thread::Builder::new().name("fuse-sync".into()).spawn(run) {
                Ok(_) => queue.threads += 1,
                // Those that there are come to it.
                Err(_) if queue.threads > 0 => {}
                Err(e) => {
                    drop(queue);
                    tracing::warn!("no thread to wait for syncs: {e}");
                    return self.shared.serve(&[waiter]);
                }
            }
        }
        queue.waiting.push(waiter);
        drop(queue);
        self.shared.more.notify_one();
    }

    /// The program that sent the request with this number was interrupted: if it waits, it waits no longer than until
    /// `is_suspended` says so of its pool. What a device or a group takes a while for is waited for.
    pub(crate) fn interrupt(&self, number: u64, is_suspended: impl Fn() -> bool + Send + 'static) {
        {
            let mut queue = self.shared.lock();
            if !queue.open.contains_key(&number) {
                // It may be about to wait.
                if queue.early.len() >= MOST_EARLY {
                    queue.early.pop_front();
                }
                queue.early.push_back((number, Box::new(is_suspended)));
                return;
            }
            queue.interrupted.insert(number);
        }
        // The program says that once.
        if self.shared.let_go(is_suspended())
            || std::mem::replace(&mut self.shared.lock().watched, true)
        {
            return;
        }
        let shared = self.shared.clone();
        let watch = move || {
            while !shared.let_go(is_suspended()) {
                std::thread::sleep(LOOK);
            }
        };
        let watching = std::thread::Builder::new().name("fuse-interrupts".into()).spawn(watch);
        if let Err(e) = watching {
            self.shared.lock().watched = false;
            tracing::warn!("no thread to look after interrupted programs: {e}");
        }
    }
}

/// A request whose own thread waits, until it is dropped.
struct OwnWait {
    shared: Arc<Shared>,
    waiter: Waiter,
}

impl OwnWait {
    fn run(self) {
        self.shared.serve(std::slice::from_ref(&self.waiter));
    }
}

impl Drop for OwnWait {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        let known = is_back(&mut queue.own, &self.waiter.hook);
        // Where it was not run, as the request panicked.
        queue.open.remove(&self.waiter.number);
        drop(queue);
        if !known {
            // The request may be unwinding: a second panic would end the process.
            tracing::error!("{}", said(format_args!("{UNKNOWN}")));
        }
    }
}

impl Drop for Syncer {
    /// The threads end when all have their answers.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.more.notify_all();
    }
}

impl Shared {
    /// Lets those go that were interrupted and wait, where the pool is suspended. Returns whether none is left.
    fn let_go(&self, is_suspended: bool) -> bool {
        let mut gone = Vec::new();
        let mut queue = self.lock();
        let Queue { open, interrupted, watched, .. } = &mut *queue;
        interrupted.retain(|number| open.contains_key(number));
        if is_suspended {
            gone.extend(interrupted.drain().filter_map(|number| open.remove(&number)));
        }
        let is_done = interrupted.is_empty();
        *watched &= !is_done;
        drop(queue);
        gone.iter().for_each(|open| give(open, &Err(WriteError::Interrupted.into())));
        is_done
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    fn run(&self) {
        let mut called = None;
        while let Some(batch) = self.next(called.take()) {
            called = batch.first().map(|waiter| waiter.hook.clone());
            self.serve(&batch);
        }
    }

    /// Calls the hook for requests of one file system, and answers them.
    fn serve(&self, batch: &[Waiter]) {
        let Some(Waiter { hook, .. }) = batch.first() else { return };
        let objects: Option<Vec<u64>> = batch.iter().map(|waiter| waiter.object).collect();
        // A thread outlives a panic: others wait for it.
        let result = caught(|| hook(objects.as_deref())).unwrap_or_else(|why| {
            tracing::error!("a thread that waits for a sync: {why}");
            Err(WriteError::Suspended(why).into())
        });
        let mut queue = self.lock();
        batch.iter().for_each(|waiter| drop(queue.open.remove(&waiter.number)));
        drop(queue);
        batch.iter().for_each(|waiter| waiter.answer(&result));
    }

    /// What to do next; `None` when there will be nothing more, or was nothing for [`REST`]. The thread is back from `called`.
    fn next(&self, called: Option<SyncHook>) -> Option<Vec<Waiter>> {
        let mut queue = self.lock();
        if let Some(hook) = called {
            let known = is_back(&mut queue.called, &hook);
            invariant!(known, "{UNKNOWN}");
        }
        let batch = loop {
            if let Some(batch) = queue.take() {
                break batch;
            }
            let ends = queue.closed && queue.waiting.is_empty();
            if !ends {
                queue.idle += 1;
                let waited = self.more.wait_for(&mut queue, REST);
                queue.idle = less!(queue.idle, 1, "threads without a sync to wait for");
                if !waited.timed_out() || !queue.waiting.is_empty() {
                    continue;
                }
            }
            queue.threads = less!(queue.threads, 1, "threads that wait for syncs");
            if ends {
                self.more.notify_all();
            }
            return None;
        };
        if !queue.waiting.is_empty() {
            // A thread that was woken for these may have found that they were taken.
            self.more.notify_one();
        }
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Serving;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc;

    #[test]
    fn those_who_wait_together_cost_few_syncs() {
        let syncs = Arc::new(AtomicUsize::new(0));
        let counted = syncs.clone();
        let slow: SyncHook = Arc::new(move |objects| {
            let objects = objects.unwrap();
            assert!(objects.iter().all(|object| *object < 20));
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            Ok(())
        });
        let failing: SyncHook = Arc::new(|_| Err(Error::Invalid("no".into())));
        let syncer = Syncer::default();
        let (tx, rx) = mpsc::channel();
        for i in 0..21 {
            let tx = tx.clone();
            let hook = if i == 20 { &failing } else { &slow };
            syncer.wait(i, hook, Some(i), move |r| tx.send((i, r.is_ok())).unwrap());
        }
        drop((tx, syncer));
        let mut answers: Vec<_> = rx.iter().collect();
        answers.sort_unstable();
        let want: Vec<(u64, bool)> = (0..21).map(|i| (i, i != 20)).collect();
        assert_eq!(answers, want);
        assert!(syncs.load(Ordering::SeqCst) <= MOST + 1);
    }

    /// However many requests of a file system are stuck, one thread is left for another.
    #[test]
    fn a_file_system_that_is_stuck_leaves_threads_to_others() {
        let (go, held) = mpsc::channel::<()>();
        let (called, calls) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let stuck: SyncHook = Arc::new(move |_| {
            called.send(()).unwrap();
            let _ = held.lock().recv();
            Ok(())
        });
        let quick: SyncHook = Arc::new(|_| Ok(()));
        let syncer = Syncer::default();
        let (tx, rx) = mpsc::channel();
        let numbers = AtomicUsize::new(1);
        let ask = |hook, name: &'static str| {
            let tx = tx.clone();
            let number = numbers.fetch_add(1, Ordering::Relaxed) as u64;
            syncer.wait(number, hook, None, move |_| tx.send(name).unwrap());
        };
        // Each is taken before the next one comes.
        for _ in 0..MOST {
            ask(&stuck, "stuck");
            calls.recv().unwrap();
        }
        (0..5).for_each(|_| ask(&stuck, "stuck"));
        ask(&quick, "quick");
        let next = || rx.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(next(), "quick");
        drop(go);
        (0..MOST + 5).for_each(|_| assert_eq!(next(), "stuck"));
        drop(syncer);
    }

    /// Has a request leave its wait, and does what it left.
    fn leaves(syncer: &Syncer, wait: impl FnOnce(&Syncer)) -> Option<Box<dyn FnOnce()>> {
        let serving = Serving::new();
        wait(syncer);
        serving.end()
    }

    #[test]
    fn the_thread_of_a_request_waits_when_it_has_let_go_of_it() {
        let (called, calls) = mpsc::channel();
        let hook: SyncHook = Arc::new(move |objects| {
            called.send((std::thread::current().id(), objects.map(<[u64]>::to_vec))).unwrap();
            Ok(())
        });
        let syncer = Syncer::default();
        let (tx, rx) = mpsc::channel();
        let wait = |number, object| {
            let tx = tx.clone();
            leaves(&syncer, |syncer| {
                syncer.wait(number, &hook, object, move |r| tx.send((number, r.is_ok())).unwrap())
            })
        };
        let left = wait(1, Some(7)).unwrap();
        assert!(calls.try_recv().is_err() && rx.try_recv().is_err());
        left();
        let here = std::thread::current().id();
        assert_eq!(calls.try_recv(), Ok((here, Some(vec![7]))));
        assert_eq!(rx.try_recv(), Ok((1, true)));
        // One that is dropped, and as many as may wait at once: what comes then is for the queue.
        drop(wait(2, None));
        let all: Vec<_> = (0..MOST as u64).map(|n| wait(3 + n, None).unwrap()).collect();
        assert!(wait(99, None).is_none());
        assert_eq!(rx.recv(), Ok((99, true)));
        assert_ne!(calls.recv().unwrap().0, here);
        // Another file system has room, up to that of all.
        let other: SyncHook = Arc::new(|_| Ok(()));
        let ask = |hook: &SyncHook| leaves(&syncer, |syncer| syncer.wait(100, hook, None, |_| {}));
        assert!(ask(&other).is_some());
        all.into_iter().for_each(|left| left());
        assert!(wait(200, None).is_some());
        let queue = syncer.shared.lock();
        assert!(queue.own.is_empty() && queue.open.is_empty());
        drop(queue);
        let hooks: Vec<SyncHook> =
            (0..=MOST_OF_ALL).map(|_| Arc::new(|_: Option<&[u64]>| Ok(())) as SyncHook).collect();
        let left: Vec<_> = hooks.iter().map(ask).collect();
        assert!(left.iter().take(MOST_OF_ALL).all(Option::is_some));
        assert!(left.last().unwrap().is_none());
    }

    /// A second panic while the first one unwinds would.
    #[test]
    fn a_request_that_unwinds_with_its_wait_does_not_end_the_process() {
        let hook: SyncHook = Arc::new(|_| Ok(()));
        let syncer = Syncer::default();
        let panicked = caught(|| {
            let serving = Serving::new();
            syncer.wait(1, &hook, None, |_| {});
            // As only a bug could.
            syncer.shared.lock().own.clear();
            let _left = serving.end();
            panic!("for the test");
        });
        assert_eq!(panicked, Err::<(), _>("panicked: for the test".into()));
        assert!(syncer.shared.lock().open.is_empty());
    }

    #[test]
    fn a_program_that_is_interrupted_does_not_wait_for_its_thread() {
        let (go, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let stuck: SyncHook = Arc::new(move |_| {
            held.lock().recv().unwrap();
            Ok(())
        });
        let syncer = Arc::new(Syncer::default());
        let (tx, rx) = mpsc::channel();
        let run = |number| {
            let (syncer, stuck, tx) = (syncer.clone(), stuck.clone(), tx.clone());
            std::thread::spawn(move || {
                let answer = move |r: &Result<(), Error>| tx.send((number, r.is_ok())).unwrap();
                let left = leaves(&syncer, |syncer| syncer.wait(number, &stuck, None, answer));
                left.unwrap()();
            })
        };
        // One is interrupted before it waits.
        syncer.interrupt(1, || true);
        let threads = [run(1), run(2)];
        assert_eq!(rx.recv(), Ok((1, false)));
        while !syncer.shared.lock().open.contains_key(&2) {
            std::thread::yield_now();
        }
        syncer.interrupt(2, || true);
        assert_eq!(rx.recv(), Ok((2, false)));
        (0..2).for_each(|_| go.send(()).unwrap());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop(tx);
        drop((syncer, stuck));
        assert!(rx.recv().is_err(), "each is answered once");
    }

    #[test]
    fn a_file_system_does_not_wait_for_another_one() {
        let (go, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let stuck: SyncHook = Arc::new(move |_| {
            held.lock().recv().unwrap();
            Ok(())
        });
        let quick: SyncHook = Arc::new(|_| Ok(()));
        let syncer = Syncer::default();
        let (tx, rx) = mpsc::channel();
        for (number, name, hook) in
            [(1, "stuck", &stuck), (2, "quick", &quick), (3, "quick", &quick)]
        {
            let tx = tx.clone();
            syncer.wait(number, hook, None, move |_| tx.send(name).unwrap());
        }
        assert_eq!([rx.recv().unwrap(), rx.recv().unwrap()], ["quick", "quick"]);
        go.send(()).unwrap();
        assert_eq!(rx.recv().unwrap(), "stuck");
    }

    #[test]
    fn who_is_interrupted_waits_no_longer() {
        let (go, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let stuck: SyncHook = Arc::new(move |_| {
            held.lock().recv().unwrap();
            Ok(())
        });
        let syncer = Syncer::default();
        let (tx, rx) = mpsc::channel();
        for number in 1..3 {
            let tx = tx.clone();
            syncer.wait(number, &stuck, None, move |r| tx.send((number, r.is_ok())).unwrap());
        }
        let suspended = Arc::new(AtomicBool::new(false));
        let interrupt = |number| {
            let suspended = suspended.clone();
            syncer.interrupt(number, move || suspended.load(Ordering::SeqCst));
        };
        // The last one waits only later.
        [7, 2, 3].into_iter().for_each(interrupt);
        let late = tx.clone();
        syncer.wait(3, &stuck, None, move |r| late.send((3, r.is_ok())).unwrap());
        // The pool may be suspended only later.
        assert!(rx.recv_timeout(LOOK * 3).is_err());
        suspended.store(true, Ordering::SeqCst);
        let mut gone = [rx.recv().unwrap(), rx.recv().unwrap()];
        gone.sort_unstable();
        assert_eq!(gone, [(2, false), (3, false)]);
        (0..3).for_each(|_| go.send(()).unwrap());
        assert_eq!(rx.recv().unwrap(), (1, true));
        drop((tx, syncer));
        assert!(rx.recv().is_err(), "each is answered once");
    }
}
