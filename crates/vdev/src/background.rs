//! Threads that work in the background.
//!
//! A thread inherits the processors that it may run on from the one that starts it. Where that is one
//! that was put on a single processor for its own good, as those that answer requests are, the new one
//! would be held there for ever.
//!
//! Some of them are *workers*: they write transaction groups, compress and verify, all of it work that
//! comes in gusts and that nobody waits for as long as there is room for changes. A program that sends
//! one short request after the other loses milliseconds whenever a worker is given its processor. The
//! scheduler sees to it that this is rare, if it knows of an idle one. Whoever has the idle ones look busy
//! tells where workers should not be ([`keep_off`]). That counts for nothing while somebody has to wait for
//! them ([`hurry`]).

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// The workers of this process.
static WORKERS: Mutex<Workers> =
    Mutex::new(Workers { threads: Vec::new(), off: Vec::new(), hurries: 0 });

struct Workers {
    threads: Vec<Pid>,
    /// The processors that they are kept off, each as often as that is asked for.
    off: Vec<usize>,
    /// How many want them to run anywhere.
    hurries: usize,
}

impl Workers {
    fn lock() -> MutexGuard<'static, Workers> {
        WORKERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where they may run, of all processors that there are for them.
    fn allowed(&self, all: CpuSet) -> CpuSet {
        let mut rest = all;
        self.off.iter().for_each(|cpu| rest.unset(*cpu));
        if self.hurries > 0 || rest.count() == 0 { all } else { rest }
    }

    /// Puts some of them there. Where that fails they stay where they are: it is about speed only.
    fn put(&self, threads: &[Pid]) {
        let allowed = match processors() {
            Ok(all) => self.allowed(all),
            Err(e) => return tracing::debug!("processors: {e}"),
        };
        for thread in threads {
            if let Err(e) = sched_setaffinity(Some(*thread), &allowed) {
                tracing::debug!("processors of a worker: {e}");
            }
        }
    }

    /// Makes a change and puts all of them where they are to be then, if that is elsewhere.
    fn change(&mut self, change: impl FnOnce(&mut Workers)) {
        let free = |workers: &Workers| workers.hurries > 0 || workers.off.is_empty();
        let before = free(self);
        change(self);
        if !(before && free(self)) {
            self.put(&self.threads);
        }
    }
}

/// The thread that made this is a worker, until it is dropped.
struct Worker(Pid);

impl Worker {
    fn new() -> Worker {
        let thread = rustix::thread::gettid();
        let mut workers = Workers::lock();
        workers.threads.push(thread);
        workers.put(&[thread]);
        Worker(thread)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        Workers::lock().threads.retain(|thread| *thread != self.0);
    }
}

/// Workers are kept off a processor, until this is dropped.
#[derive(Debug)]
pub struct KeptOff(usize);

impl KeptOff {
    /// The processor.
    pub fn cpu(&self) -> usize {
        self.0
    }
}

/// Has workers run on other processors than `cpu`, if there are any.
pub fn keep_off(cpu: usize) -> KeptOff {
    Workers::lock().change(|workers| workers.off.push(cpu));
    KeptOff(cpu)
}

impl Drop for KeptOff {
    fn drop(&mut self) {
        Workers::lock().change(|workers| {
            if let Some(at) = workers.off.iter().position(|cpu| *cpu == self.0) {
                workers.off.swap_remove(at);
            }
        });
    }
}

/// Somebody waits for what workers do: they run anywhere, until this is dropped.
#[derive(Debug)]
pub struct Hurry(());

/// Has workers run anywhere.
pub fn hurry() -> Hurry {
    Workers::lock().change(|workers| workers.hurries += 1);
    Hurry(())
}

impl Drop for Hurry {
    fn drop(&mut self) {
        Workers::lock().change(|workers| workers.hurries -= 1);
    }
}

/// Starts a thread that works in the background, on any processor that the process may use.
///
/// # Errors
/// There can be no thread.
pub fn background<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(move || {
        run_anywhere();
        work()
    })
}

/// As [`background`], for a worker.
///
/// # Errors
/// There can be no thread.
pub fn worker<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(move || {
        let _worker = Worker::new();
        work()
    })
}

/// Makes this thread a worker, one that lives as long as the process.
pub fn become_worker() {
    std::mem::forget(Worker::new());
}

/// The processors that the process's first thread may use.
fn processors() -> rustix::io::Result<CpuSet> {
    sched_getaffinity(Some(rustix::process::getpid()))
}

/// Lets this thread run wherever the process's first one may.
fn run_anywhere() {
    if let Err(e) = processors().and_then(|all| sched_setaffinity(None, &all)) {
        tracing::debug!("processors: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    #[test]
    fn a_thread_in_the_background_does_not_inherit_one_processor() {
        let all = sched_getaffinity(Some(rustix::process::getpid())).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
        let worker = std::thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).unwrap();
            let work = || sched_getaffinity(None).unwrap();
            let inherited = std::thread::spawn(work).join().unwrap();
            (one, inherited, background("free", work).unwrap().join().unwrap())
        });
        let (one, inherited, free) = worker.join().unwrap();
        assert_eq!((inherited, free), (one, all));
    }

    fn workers(off: &[usize], hurries: usize) -> Workers {
        Workers { threads: Vec::new(), off: off.to_vec(), hurries }
    }

    #[test]
    fn workers_run_on_what_is_left_or_anywhere_if_nothing_is_or_there_is_a_hurry() {
        let set = |cpus: &[usize]| {
            let mut set = CpuSet::new();
            cpus.iter().for_each(|cpu| set.set(*cpu));
            set
        };
        let all = set(&[0, 1, 5]);
        assert_eq!(workers(&[], 0).allowed(all), all);
        assert_eq!(workers(&[1, 1, 3], 0).allowed(all), set(&[0, 5]));
        assert_eq!(workers(&[0, 1, 5], 0).allowed(all), all);
        assert_eq!(workers(&[0], 2).allowed(all), all);
    }

    #[test]
    fn a_worker_moves_when_it_is_to_and_is_none_when_it_has_ended() {
        let all = processors().unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
        let mut rest = all;
        rest.unset(first);
        let rest = if rest.count() == 0 { all } else { rest };
        let mine = || sched_getaffinity(None).unwrap();
        let thread = worker("moves", move || {
            let before = mine();
            let kept = keep_off(first);
            let (off, again) = (mine(), keep_off(first));
            drop(kept);
            let (still, in_a_hurry) = (mine(), hurry());
            let hurried = mine();
            drop(in_a_hurry);
            let slow = mine();
            drop(again);
            (rustix::thread::gettid(), [before, off, still, hurried, slow, mine()])
        });
        let (thread, seen) = thread.unwrap().join().unwrap();
        assert_eq!(seen, [all, rest, rest, all, rest, all]);
        assert!(!Workers::lock().threads.contains(&thread));
    }
}
