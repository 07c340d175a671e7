//! What is known of a device without waiting for it.
//!
//! A command that shows a pool wants to know how large a device is by now, whether its path still leads to it, and
//! where a link leads. Each of these is a system call that does not return while the device, or the file system that it
//! lies on, hangs. So such a question is asked by a thread of its own ([`Asked`]), and a command waits for the answer
//! until the question is [`GRACE`] old. Where no answer has come by then, the last answer counts, or nothing is known.
//!
//! Invariant: one question of a kind is open at a time, however many commands ask. So a device that hangs keeps one
//! thread, and delays only the commands of one moment.

use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How old a question gets before a command goes on without its answer.
const GRACE: Duration = Duration::from_millis(100);

/// A question, and the last answer to it.
pub struct Asked<T>(Arc<Question<T>>);

struct Question<T> {
    state: Mutex<State<T>>,
    answered: Condvar,
}

struct State<T> {
    last: Option<T>,
    /// Since when the question is open.
    since: Option<Instant>,
}

impl<T> Default for Asked<T> {
    fn default() -> Asked<T> {
        let state = Mutex::new(State { last: None, since: None });
        Asked(Arc::new(Question { state, answered: Condvar::new() }))
    }
}

impl<T> Clone for Asked<T> {
    fn clone(&self) -> Asked<T> {
        Asked(Arc::clone(&self.0))
    }
}

impl<T: Clone + Send + 'static> Asked<T> {
    /// Asks, unless another thread does, and returns the answer; if it does not come in time, the last one. `None`:
    /// there was no answer yet.
    pub fn ask(&self, question: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let mut state = self.0.state.lock();
        if state.since.is_none() {
            let asked = Arc::clone(&self.0);
            let answer = move || {
                let answer = question();
                let mut state = asked.state.lock();
                (state.last, state.since) = (Some(answer), None);
                asked.answered.notify_all();
            };
            match Builder::new().name("vdev-look".into()).spawn(answer) {
                Ok(_) => state.since = Some(Instant::now()),
                Err(e) => tracing::warn!("no thread to look at a device: {e}"),
            }
        }
        if let Some(since) = state.since {
            let until = since + GRACE;
            self.0.answered.wait_while_until(&mut state, |state| state.since.is_some(), until);
        }
        state.last.clone()
    }

    fn is_open(&self) -> bool {
        self.0.state.lock().since.is_some()
    }
}

/// What is seen of a leaf's device from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its size in bytes by now, which may have grown since it was opened.
    pub size: u64,
    /// Whether its path still leads to it.
    pub there: bool,
}

/// Where `path` leads, without links; `None`: nowhere, or that is not known in time.
pub fn resolved(path: &Path) -> Option<PathBuf> {
    type Open = HashMap<PathBuf, Asked<Option<PathBuf>>>;
    static OPEN: Mutex<Option<Open>> = Mutex::new(None);
    let of = |path: &Path| {
        let mut open = OPEN.lock();
        open.get_or_insert_default().entry(path.into()).or_default().clone()
    };
    let (asked, own) = (of(path), path.to_path_buf());
    let answer = asked.ask(move || own.canonicalize().ok()).flatten();
    if !asked.is_open() {
        OPEN.lock().get_or_insert_default().remove(path);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_question_without_an_answer_delays_one_moment() {
        let asked = Asked::default();
        assert_eq!(asked.ask(|| 1), Some(1));
        let (answer, wanted) = channel();
        let begun = Instant::now();
        assert_eq!(asked.ask(move || wanted.recv().unwrap()), Some(1));
        assert!(begun.elapsed() >= GRACE);
        let begun = Instant::now();
        for _ in 0..100 {
            assert_eq!(asked.ask(|| unreachable!()), Some(1));
        }
        assert!(begun.elapsed() < GRACE * 50);
        answer.send(2).unwrap();
        while asked.is_open() {
            std::thread::yield_now();
        }
        assert_eq!(asked.ask(|| 3), Some(3));
    }

    #[test]
    fn what_never_answered_is_unknown() {
        let asked = Asked::<u64>::default();
        let (answer, wanted) = channel();
        assert_eq!(asked.ask(move || wanted.recv().unwrap_or(7)), None);
        drop(answer);
    }

    #[test]
    fn links_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(resolved(&link), file.canonicalize().ok());
        assert_eq!(resolved(&dir.path().join("nothing")), None);
    }
}
