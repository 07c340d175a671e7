//! Threads that work for others.
//!
//! A thread inherits the processors that it may run on from the one that starts it. Where that is one
//! that was put on a single processor for its own good, as those that answer requests are, the new one
//! would be held there for ever.

use std::io;
use std::thread::{Builder, JoinHandle};

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

/// Lets this thread run wherever the process's first one may.
pub fn run_anywhere() {
    let first = Some(rustix::process::getpid());
    let set = rustix::thread::sched_getaffinity(first)
        .and_then(|all| rustix::thread::sched_setaffinity(None, &all));
    if let Err(e) = set {
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
}
