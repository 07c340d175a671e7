//! What `zdb` does to its own process: tunables (`-o`, `-Y`) and messages (`-G`).
//!
//! Tunables belong to a process. A command that names any runs in one of its own, never in the
//! daemon, so that pools in use are not affected.

use crate::args::Args;
use cenote_command::outcome::{Outcome, Stop, fail};
use cenote_engine::tunables::{self, Tunable};
use parking_lot::Mutex;
use std::io::{self, Write};
use std::sync::Arc;

/// Sets and shows the tunables that `-o` names, in order.
pub fn tunables(args: &Args, out: &mut dyn Write) -> Result<(), Stop> {
    for text in &args.tunables {
        match text.split_once('=') {
            None if text == "show" => {
                for tunable in tunables::all() {
                    writeln!(out, "{}: {}", tunable.name, tunable.get())?;
                }
            }
            None if text == "info" => {
                for tunable in tunables::all() {
                    info(tunable, out)?;
                }
            }
            Some(("info", name)) => info(find(name)?, out)?,
            None => {
                let tunable = find(text)?;
                writeln!(out, "{}: {}", tunable.name, tunable.get())?;
            }
            Some((name, value)) => set(find(name)?, value, out)?,
        }
    }
    if args.has('Y') {
        let combinations = find("zfs_reconstruct_indirect_combinations_max")?;
        let most = combinations.set(i32::MAX.unsigned_abs().into());
        most.map_err(|e| Stop::Fail(format!("zdb: -Y: {e}")))?;
    }
    Ok(())
}

fn find(name: &str) -> Result<&'static Tunable, Stop> {
    tunables::find(name).ok_or_else(|| Stop::Fail(format!("no such tunable: {name}")))
}

fn info(tunable: &Tunable, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{} [u64 rw]: {}", tunable.name, tunable.description)
}

fn set(tunable: &Tunable, value: &str, out: &mut dyn Write) -> Result<(), Stop> {
    let before = tunable.get();
    if let Err(e) = tunable.parse(value).and_then(|value| tunable.set(value)) {
        return fail(format!("couldn't set tunable '{}': {e}", tunable.name));
    }
    writeln!(out, "{}: {before} -> {}", tunable.name, tunable.get())?;
    Ok(())
}

/// What was logged, to be printed at the end.
#[derive(Clone, Default)]
struct Messages(Arc<Mutex<Vec<u8>>>);

impl Write for Messages {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `command`, and says what its thread logged meanwhile.
pub fn with_messages(command: impl FnOnce() -> Outcome) -> (Outcome, Vec<u8>) {
    let messages = Messages::default();
    let writer = messages.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let outcome = tracing::subscriber::with_default(subscriber, || {
        tracing::debug!("begin");
        let outcome = command();
        tracing::debug!("end");
        outcome
    });
    let text = std::mem::take(&mut *messages.0.lock());
    (outcome, text)
}

/// Prints what was logged.
pub fn show(messages: &[u8], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nZFS_DBGMSG(zdb) START:")?;
    out.write_all(messages)?;
    writeln!(out, "ZFS_DBGMSG(zdb) END")
}
