//! Signals that end the process, put off while it does something that must be undone first.

use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// The signals that are put off.
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// What the handlers know. A handler cannot be taken away, so there is one of each for all that is done.
struct Handlers {
    /// Nothing is under way: signals end the process.
    idle: Arc<AtomicBool>,
    /// The number of the last one that came.
    came: Arc<AtomicUsize>,
}

impl Handlers {
    fn register() -> io::Result<Handlers> {
        let all = Handlers { idle: Arc::new(AtomicBool::new(true)), came: Arc::default() };
        let ignored = ignored();
        for signal in SIGNALS {
            // A command that nohup(1) or a shell has ignore a signal goes on ignoring it.
            if ignored & 1 << (signal - 1) != 0 {
                continue;
            }
            let number = usize::try_from(signal).map_err(io::Error::other)?;
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&all.idle))?;
            signal_hook::flag::register_usize(signal, Arc::clone(&all.came), number)?;
        }
        Ok(all)
    }
}

/// The signals that this process ignores, as a set of bits; empty if the system does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

/// Does `work` without being ended in the midst of it: `work` asks its argument whether a signal came, and ends soon then. After
/// it the signal ends the process.
///
/// # Errors
/// Signals cannot be caught; nothing was done.
pub fn put_off<T>(work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> T) -> io::Result<T> {
    static HANDLERS: Mutex<Option<Handlers>> = Mutex::new(None);
    let mut held = HANDLERS.lock();
    let handlers = match held.take() {
        Some(handlers) => held.insert(handlers),
        None => held.insert(Handlers::register()?),
    };
    handlers.idle.store(false, SeqCst);
    let done = work(&|| handlers.came.load(SeqCst) != 0);
    handlers.idle.store(true, SeqCst);
    match i32::try_from(handlers.came.load(SeqCst)) {
        Ok(0) | Err(_) => {}
        Ok(signal) => signal_hook::low_level::emulate_default_handler(signal)?,
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_again_and_again() {
        for n in 0..3 {
            assert_eq!(put_off(|came| (n, came())).unwrap(), (n, false));
        }
    }
}
