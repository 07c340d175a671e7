//! Signals that end the process, put off while it does something that has to be undone first.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// The signals that are put off.
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Does `work` without being ended in the midst of it: `work` asks its argument whether a signal came, and ends soon then. After
/// it the signal ends the process.
///
/// # Errors
/// Signals cannot be caught; nothing was done.
pub fn put_off<T>(work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> T) -> io::Result<T> {
    let (idle, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut registered = Vec::new();
    for signal in SIGNALS {
        let number = usize::try_from(signal).map_err(io::Error::other)?;
        // Once all is done it ends the process again: a handler cannot be taken away.
        let ends = signal_hook::flag::register_conditional_default(signal, Arc::clone(&idle))?;
        let notes = signal_hook::flag::register_usize(signal, Arc::clone(&came), number)?;
        registered.push((ends, notes));
    }
    let done = work(&|| came.load(SeqCst) != 0);
    idle.store(true, SeqCst);
    for (_, notes) in registered {
        signal_hook::low_level::unregister(notes);
    }
    match i32::try_from(came.load(SeqCst)) {
        Ok(0) | Err(_) => {}
        Ok(signal) => signal_hook::low_level::emulate_default_handler(signal)?,
    }
    Ok(done)
}
