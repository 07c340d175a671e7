//! Questions to devices that may never answer.
//!
//! A command that looks for pools opens devices and reads their labels. Both wait as long as a device hangs, and the
//! device may belong to no pool at all. So a thread of its own asks ([`ask`], [`ask_each`]), and the command waits
//! for it as long as [`answer`] says at most. Then the command names the device and goes on; the thread stays until the device answers.
//!
//! Invariants: a device that owes an answer keeps the threads that asked it before the time was over; later
//! questions about it are answered with [`is_silent`] errors at once. [`SIDE_BY_SIDE`] devices are asked at once, and those that
//! take longer than [`SLOW`] keep no others waiting.

use crate::tunables;
use cenote_format::invariant::broken;
use cenote_format::{invariant, less};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How long a device may take to be opened and looked at: a disk that stands still has to start, and one with a sector
/// that it hardly reads tries for long.
pub fn answer() -> Duration {
    Duration::from_millis(tunables::ANSWER.get())
}

/// Devices asked at once.
const SIDE_BY_SIDE: usize = 16;
/// After so long another device is asked besides.
const SLOW: Duration = Duration::from_millis(500);
/// How often it is looked which devices are slow.
const LOOK: Duration = Duration::from_millis(20);

/// The names of devices that owe an answer after their time was over.
static OWED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The device did not answer in time.
#[derive(Debug)]
struct Silent;

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the device does not answer")
    }
}

impl std::error::Error for Silent {}

fn silent() -> Error {
    Error::new(ErrorKind::TimedOut, Silent)
}

/// Whether an error says that the device did not answer in time, or could not be asked.
pub fn is_silent(error: &Error) -> bool {
    error.get_ref().is_some_and(|why| why.is::<Silent>())
}

/// What became of one device.
enum Slot<T> {
    Waits,
    /// A thread asks it since then.
    Asked(Instant),
    Answered(Result<T>),
    /// Its time is over; a thread still asks it.
    GivenUp,
}

struct State<T> {
    slots: Vec<Slot<T>>,
    /// The first one that waits; all behind it do.
    next: usize,
    /// Threads that ask, and those among them whose devices were given up.
    threads: usize,
    left: usize,
}

impl<T> State<T> {
    /// How many more threads are to ask.
    fn wanted(&self) -> usize {
        let asked = |slot: &Slot<T>| match slot {
            Slot::Asked(since) => Some(since.elapsed() >= SLOW),
            _ => None,
        };
        let (slow, quick): (Vec<bool>, Vec<bool>) =
            self.slots.iter().filter_map(asked).partition(|is_slow| *is_slow);
        let at_work = self.threads.saturating_sub(self.left + slow.len());
        let waiting = self.slots.len() - self.next;
        SIDE_BY_SIDE.min(waiting + quick.len()).saturating_sub(at_work)
    }

    fn is_over(&self) -> bool {
        let open = |slot: &Slot<T>| matches!(slot, Slot::Waits | Slot::Asked(_));
        !self.slots.iter().any(open)
    }
}

/// Devices, each with all its names, and what is asked about them.
struct Round<T, Q> {
    devices: Vec<Vec<PathBuf>>,
    question: Q,
    state: Mutex<State<T>>,
    told: Condvar,
}

impl<T, Q: Fn(&[PathBuf]) -> Result<T>> Round<T, Q> {
    /// What a thread does: it asks one device after the other.
    fn work(&self) {
        let mut state = self.state.lock();
        while let Some(names) = self.devices.get(state.next) {
            let index = state.next;
            state.next += 1;
            let owes = {
                let owed = OWED.lock();
                names.iter().any(|name| owed.contains(name))
            };
            let answer = if owes {
                Err(silent())
            } else {
                state.set(index, Slot::Asked(Instant::now()));
                // A question that panics is answered all the same: no other thread would answer it.
                let question = || catch_unwind(AssertUnwindSafe(|| (self.question)(names)));
                let panicked = |_| Err(Error::other("looking at it failed (a panic)"));
                MutexGuard::unlocked(&mut state, question).unwrap_or_else(panicked)
            };
            if matches!(state.slots.get(index), Some(Slot::GivenUp)) {
                let mut owed = OWED.lock();
                owed.retain(|name| !names.contains(name));
                state.left = less!(state.left, 1, "threads whose devices were given up");
                break;
            }
            state.set(index, Slot::Answered(answer));
        }
        state.threads = less!(state.threads, 1, "threads that ask devices");
        let (all, left) = (state.threads, state.left);
        invariant!(left <= all, "{left} of {all} threads ask devices that were given up");
        self.told.notify_one();
    }

    /// Gives up the devices that have been asked for longer than `limit`.
    fn give_up(&self, state: &mut State<T>, limit: Duration) {
        for (slot, names) in state.slots.iter_mut().zip(&self.devices) {
            if matches!(slot, Slot::Asked(since) if since.elapsed() >= limit) {
                *slot = Slot::GivenUp;
                state.left += 1;
                OWED.lock().extend(names.iter().cloned());
                tracing::warn!(
                    "{} does not answer",
                    names.first().map_or("".as_ref(), |n| n.as_path()).display()
                );
            }
        }
    }
}

impl<T> State<T> {
    fn set(&mut self, index: usize, to: Slot<T>) {
        match self.slots.get_mut(index) {
            Some(slot) => *slot = to,
            None => broken(format_args!("an answer of device {index} of {}", self.slots.len())),
        }
    }
}

/// Asks all `devices`, each of which has one or more names, and waits up to `limit` for each. The answers are in the
/// order of the devices.
///
/// # Errors
/// In the place of an answer: that of `question`; the device [is silent](is_silent), as it is if no thread could be started.
pub fn ask_each<T: Send + 'static>(
    devices: Vec<Vec<PathBuf>>,
    limit: Duration,
    question: impl Fn(&[PathBuf]) -> Result<T> + Send + Sync + 'static,
) -> Vec<Result<T>> {
    let slots = devices.iter().map(|_| Slot::Waits).collect();
    let state = Mutex::new(State { slots, next: 0, threads: 0, left: 0 });
    let round = Arc::new(Round { devices, question, state, told: Condvar::new() });
    let mut state = round.state.lock();
    let mut refused = None;
    while !state.is_over() {
        for _ in 0..state.wanted() {
            let own = Arc::clone(&round);
            match Builder::new().name("vdev-ask".into()).spawn(move || own.work()) {
                Ok(_) => state.threads += 1,
                Err(e) => refused = Some(e),
            }
        }
        if let Some(e) = refused.take_if(|_| state.threads == state.left) {
            tracing::warn!("no thread to look at devices: {e}");
            while state.next < state.slots.len() {
                let index = state.next;
                state.set(index, Slot::Answered(Err(silent())));
                state.next += 1;
            }
        }
        round.told.wait_for(&mut state, LOOK);
        round.give_up(&mut state, limit);
    }
    let answer = |slot: &mut Slot<T>| match std::mem::replace(slot, Slot::GivenUp) {
        Slot::Answered(answer) => answer,
        Slot::Waits | Slot::Asked(_) | Slot::GivenUp => Err(silent()),
    };
    // Only threads whose devices were given up are left, and those look whether theirs was.
    state.slots.iter_mut().map(answer).collect()
}

/// Asks the device at `path`, and waits up to [`answer`] for it.
///
/// # Errors
/// As those of [`ask_each`].
pub fn ask<T: Send + 'static>(
    path: &Path,
    question: impl Fn(&Path) -> Result<T> + Send + Sync + 'static,
) -> Result<T> {
    ask_within(path, answer(), question)
}

/// As [`ask`]; waits up to `limit`.
///
/// # Errors
/// As those of [`ask_each`].
pub fn ask_within<T: Send + 'static>(
    path: &Path,
    limit: Duration,
    question: impl Fn(&Path) -> Result<T> + Send + Sync + 'static,
) -> Result<T> {
    let own = path.to_path_buf();
    let devices = vec![vec![own.clone()]];
    let mut answers = ask_each(devices, limit, move |_| question(&own));
    answers.pop().unwrap_or_else(|| Err(silent()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const LIMIT: Duration = Duration::from_millis(1500);

    fn names(prefix: &str, count: usize) -> Vec<Vec<PathBuf>> {
        (0..count).map(|i| vec![PathBuf::from(format!("{prefix}{i}"))]).collect()
    }

    /// A question that devices whose name ends with `hung` answer when the sender is dropped.
    fn hanging() -> (Sender<()>, impl Fn(&[PathBuf]) -> Result<PathBuf> + Send + Sync + 'static) {
        let (wake, hung): (Sender<()>, Receiver<()>) = channel();
        let hung = Mutex::new(hung);
        let question = move |names: &[PathBuf]| {
            let name = names.last().cloned().unwrap();
            if name.to_string_lossy().ends_with("hung") {
                let _ = hung.lock().recv();
            }
            Ok(name)
        };
        (wake, question)
    }

    #[test]
    fn answers_are_in_order() {
        let devices = names("in-order-", 100);
        let all = ask_each(devices.clone(), LIMIT, |names| Ok(names.to_vec()));
        let all: Vec<_> = all.into_iter().map(|answer| answer.unwrap()).collect();
        assert_eq!(all, devices);
        assert!(ask_each(Vec::new(), LIMIT, |_| Ok(())).is_empty());
        let refused = ask("in-order".as_ref(), |_| Err::<(), _>(ErrorKind::NotFound.into()));
        let refused = refused.unwrap_err();
        assert!(refused.kind() == ErrorKind::NotFound && !is_silent(&refused));
    }

    #[test]
    fn a_question_that_panics_is_an_error_at_once() {
        let begun = Instant::now();
        let mut devices = names("panics-", 2);
        devices.push(vec!["fine".into()]);
        let all = ask_each(devices.clone(), LIMIT * 10, |names| match names[0].to_str() {
            Some("fine") => Ok(()),
            _ => panic!("on purpose"),
        });
        assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
        assert!(all[2].is_ok() && all[..2].iter().flatten().count() == 0);
        for answer in &all[..2] {
            assert!(!is_silent(answer.as_ref().unwrap_err()), "{answer:?}");
        }
        // It owes no answer.
        ask(&devices[0][0], |_| Ok(())).unwrap();
    }

    #[test]
    fn many_that_hang_keep_no_others_waiting() {
        let (wake, question) = hanging();
        let mut devices = names("many-", SIDE_BY_SIDE * 4);
        for names in &mut devices[..SIDE_BY_SIDE * 2] {
            names.push(PathBuf::from(format!("{}-hung", names[0].display())));
        }
        let begun = Instant::now();
        let all = ask_each(devices.clone(), LIMIT, question);
        assert!(begun.elapsed() < LIMIT * 4, "{:?}", begun.elapsed());
        for (i, answer) in all.iter().enumerate() {
            match answer {
                Ok(name) => assert!(i >= SIDE_BY_SIDE * 2 && *name == devices[i][0]),
                Err(e) => assert!(i < SIDE_BY_SIDE * 2 && is_silent(e), "{i}: {e}"),
            }
        }
        // By any of its names it is known as one that owes an answer.
        let begun = Instant::now();
        let again = ask(&devices[1][0], |_| Ok(()));
        assert!(is_silent(&again.unwrap_err()) && begun.elapsed() < LIMIT / 2);
        drop(wake);
        while ask(&devices[1][0], |_| Ok(())).is_err() {
            assert!(begun.elapsed() < LIMIT * 10);
            std::thread::yield_now();
        }
    }
}
