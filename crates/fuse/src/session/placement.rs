//! Which processor requests are answered on.
//!
//! A program that creates or deletes many small files waits for each request: one thread sleeps while
//! another works. If both run on one processor a request costs two switches; if each has its own, two
//! sleeping processors have to be woken as well, which can take several times as long as the work,
//! above all in a virtual machine. The scheduler of Linux prefers an idle processor, for it cannot
//! know that whoever wakes a thread is about to sleep.
//!
//! So while one thread alone sends small requests, one after the other, those that answer are put on
//! the processor that it last ran on, and follow it. As soon as another one sends requests, or data in
//! large pieces comes or goes, where working side by side is what counts, they run anywhere again:
//! anywhere that the process was allowed to run when the mount was made. Meanwhile one of them alone
//! reads requests ([`Turn`]), and the other processors are kept from falling asleep ([`Awake`]).
//!
//! Small requests of several threads may be answered faster in the same manner, or not: where there are
//! few processors that is tried ([`Trial`]).
//!
//! A caller from another process-id namespace is not seen, and not followed.

use super::awake::{self, Awake};
use super::request::{Operation, is_anyones};
use super::trial::{Trial, Way};
use super::turn::Turn;
use fuse_abi::linux::fuse_in_header;
use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid};
use std::fs;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Small requests in a row by one thread after which it is followed.
const ALONE: u32 = 64;
/// Requests after which it is looked for again, or earlier at first.
const AGAIN: u32 = 256;
/// Time without a request after which it may have been moved.
const PAUSE: Duration = Duration::from_micros(500);
/// Bytes of data from which on a request is not small.
const LARGE: usize = 64 << 10;
/// No processor.
const ANYWHERE: usize = usize::MAX;

/// Where the threads of one mount run.
#[derive(Debug)]
pub(super) struct Placement {
    /// Where they may run.
    allowed: Option<CpuSet>,
    /// Those that answer requests.
    threads: Mutex<Vec<Pid>>,
    /// Who sent the latest small request.
    caller: AtomicU32,
    /// How many it sent in a row.
    streak: AtomicU32,
    /// Since when times are counted.
    start: Instant,
    /// When the latest small request was received, in nanoseconds.
    latest: AtomicU64,
    /// The processor that the threads are on, or [`ANYWHERE`].
    on: AtomicUsize,
    /// How several threads are answered, where there is a choice.
    trial: Option<Trial>,
    /// Keeps the others awake.
    awake: Awake,
    /// Which of the threads read.
    turn: Turn,
}

impl Placement {
    /// Nowhere in particular.
    pub(super) fn new() -> Placement {
        let allowed = rustix::thread::sched_getaffinity(None).ok();
        let processors = allowed.map_or(0, |set| set.count());
        let few = (2..=awake::MOST).contains(&processors);
        Placement {
            allowed,
            threads: Mutex::default(),
            caller: AtomicU32::new(0),
            streak: AtomicU32::new(0),
            start: Instant::now(),
            latest: AtomicU64::new(0),
            on: AtomicUsize::new(ANYWHERE),
            trial: few.then(Trial::new),
            awake: Awake::new(processors),
            turn: Turn::new(few),
        }
    }

    /// The current thread is one that answers requests.
    pub(super) fn join(&self) -> Member<'_> {
        let thread = rustix::thread::gettid();
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Member { turn: &self.turn, thread }
    }

    /// A request was received, and will be served next.
    pub(super) fn received(&self, header: &fuse_in_header, what: &Result<Operation<'_>, Errno>) {
        let bytes = match what {
            Ok(Operation::Read { size, .. }) => *size as usize,
            Ok(Operation::Write { data, .. }) => data.len(),
            // Nobody waits for it.
            _ if is_anyones(header.opcode) => return,
            _ => 0,
        };
        if bytes >= LARGE {
            self.caller.store(header.pid, Relaxed);
            self.streak.store(0, Relaxed);
            self.trial.iter().for_each(Trial::restart);
            self.spread();
            return;
        }
        self.small(header.pid);
        if self.on.load(Relaxed) != ANYWHERE {
            self.awake.expect_more();
            self.turn.received();
        }
    }

    /// A small request was received.
    fn small(&self, caller: u32) {
        if caller != self.caller.load(Relaxed) {
            self.caller.store(caller, Relaxed);
            self.streak.store(0, Relaxed);
            if self.trial.as_ref().is_none_or(|trial| trial.way() == Way::Apart) {
                self.spread();
            }
        }
        let streak = self.streak.fetch_add(1, Relaxed);
        let paused = self.paused() && self.on.load(Relaxed) != ANYWHERE;
        let due = streak >= ALONE && (streak.is_power_of_two() || streak.is_multiple_of(AGAIN));
        if paused || due {
            self.follow(caller);
        }
        if streak >= ALONE {
            return;
        }
        match self.trial.as_ref().and_then(Trial::received) {
            Some(Way::Together) => self.follow(caller),
            Some(Way::Apart) => self.spread(),
            None => {}
        }
    }

    /// Whether this request is the first after a pause.
    fn paused(&self) -> bool {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let latest = self.latest.swap(now, Relaxed);
        Duration::from_nanos(now.saturating_sub(latest)) >= PAUSE
    }

    /// Those that answer run anywhere, and all of them read requests.
    fn spread(&self) {
        self.turn.end();
        if self.on.load(Relaxed) != ANYWHERE {
            self.put(ANYWHERE);
        }
    }

    /// Those that answer run where the caller last did, and one of them reads requests.
    fn follow(&self, caller: u32) {
        let Some(cpu) = last_ran_on(caller) else { return };
        if !self.allowed.as_ref().is_some_and(|set| set.is_set(cpu)) {
            return;
        }
        if self.on.load(Relaxed) != cpu {
            self.put(cpu);
        }
        self.turn.take(rustix::thread::gettid());
    }

    /// Puts all threads on a processor. Where that fails they stay where they are: it is about speed
    /// only.
    fn put(&self, cpu: usize) {
        let Some(allowed) = self.allowed else { return };
        let set = if cpu == ANYWHERE {
            allowed
        } else {
            let mut one = CpuSet::new();
            one.set(cpu);
            one
        };
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        self.on.store(cpu, Relaxed);
        if cpu != ANYWHERE {
            self.turn.answer_on(cpu);
        }
        for thread in threads.iter() {
            if let Err(e) = rustix::thread::sched_setaffinity(Some(*thread), &set) {
                tracing::debug!(%e, "cannot choose a processor");
            }
        }
    }
}

/// A thread that answers requests, until this is dropped.
pub(super) struct Member<'a> {
    turn: &'a Turn,
    thread: Pid,
}

impl Member<'_> {
    /// Returns when it is to read a request, and tells whether that is likely to be a small one.
    pub(super) fn wait(&self) -> bool {
        self.turn.wait(self.thread);
        self.turn.is_taken()
    }
}

impl Drop for Member<'_> {
    /// It reads no more, so others have to.
    fn drop(&mut self) {
        self.turn.end();
    }
}

/// The processor that a thread runs on or ran on last: the 39th field of its `stat`, of which the
/// second, in parentheses, is free text.
fn last_ran_on(thread: u32) -> Option<usize> {
    if thread == 0 {
        // One that is not seen.
        return None;
    }
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::request::FileHandle;
    use rustix::fs::OFlags;
    use rustix::thread::{gettid, sched_getaffinity};

    const LOOKUP: fuse_in_header = fuse_in_header {
        len: 0,
        opcode: fuse_abi::linux::fuse_opcode::FUSE_LOOKUP as u32,
        unique: 0,
        nodeid: 1,
        uid: 0,
        gid: 0,
        pid: 0,
        total_extlen: 0,
        padding: 0,
    };

    fn processors() -> u32 {
        sched_getaffinity(None).unwrap().count()
    }

    /// Many small requests of one thread.
    fn many(placement: &Placement, pid: u32) {
        for _ in 0..2 * ALONE + AGAIN {
            placement.received(&fuse_in_header { pid, ..LOOKUP }, &Ok(Operation::GetAttr));
        }
    }

    #[test]
    fn one_thread_with_small_requests_is_followed_until_others_come_or_large_ones() {
        let all = processors();
        let test = move || {
            let placement = Placement::new();
            placement.join();
            let me = gettid().as_raw_nonzero().get() as u32;
            many(&placement, me);
            assert_eq!(processors(), 1);
            placement.received(&fuse_in_header { pid: me + 1, ..LOOKUP }, &Ok(Operation::GetAttr));
            assert_eq!(processors(), all);
            // Unless it stops for a moment one thread reads meanwhile.
            let taken = || {
                many(&placement, me);
                placement.turn.is_taken()
            };
            assert!((0..1000).any(|_| taken()));
            assert_eq!(processors(), 1);
            let (fh, flags) = (FileHandle(1), OFlags::empty());
            let read = Operation::Read { fh, offset: 0, size: LARGE as u32, flags };
            placement.received(&fuse_in_header { pid: me, ..LOOKUP }, &Ok(read));
            assert_eq!(processors(), all);
            assert!(!placement.turn.is_taken());
        };
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn who_is_not_seen_is_not_followed() {
        let all = processors();
        let test = move || {
            let placement = Placement::new();
            placement.join();
            many(&placement, 0);
            many(&placement, u32::MAX);
            assert_eq!(processors(), all);
        };
        std::thread::spawn(test).join().unwrap();
    }
}
