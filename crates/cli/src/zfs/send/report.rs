//! What `zfs send -v` and `-P` say: estimates before a stream, and how far it is while it is written.
//!
//! `Reports` is the host of the library while streams are sent. Estimates come as events, and are lines: for people, or with `-P` for
//! programs. While a stream is written a thread tells once a second how many bytes have gone out; on a terminal it draws one line again
//! and again, with rate and time left. With `-V` it names itself after how far it is. The thread ends with its stream: all lines about a
//! stream come before the lines about the next one.

use super::Flags;
use crate::progress::Drawn;
use crate::zfs::session::complained;
use cenote_admin::{Event, Host, Mounts, NoMounts, Streaming};
use cenote_command::output::Output;
use cenote_command::{Caller, clock};
use cenote_dsl::human::{nicebytes, nicenum};
use cenote_dsl::send::Progress;
use cenote_format::stream::token::Token;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often progress is told.
const EVERY: Duration = Duration::from_secs(1);

/// Says what happens while streams are sent.
pub(super) struct Reports<'a> {
    flags: &'a Flags,
    caller: &'a Caller,
    err: &'a mut Output,
    /// Where estimates are written, if not to standard error.
    out: Option<&'a mut Output>,
    mounts: NoMounts,
}

impl<'a> Reports<'a> {
    pub(super) fn new(
        flags: &'a Flags,
        caller: &'a Caller,
        err: &'a mut Output,
        out: Option<&'a mut Output>,
    ) -> Reports<'a> {
        Reports { flags, caller, err, out, mounts: NoMounts }
    }
}

impl Host for Reports<'_> {
    fn tell(&mut self, event: Event<'_>) -> io::Result<()> {
        let Some(event) = complained(event, self.err) else { return Ok(()) };
        let flags = self.flags;
        let lines = match &mut self.out {
            Some(out) => out,
            None => &mut *self.err,
        };
        // One stream is told of only where it was asked for by `-v` or `-P`.
        let told = |packed: bool| packed || flags.progress || flags.parsable;
        match event {
            Event::Estimate { to, from, size, packed } if told(packed) => {
                writeln!(lines, "{}", estimate(to, from, size, flags.parsable))?;
            }
            Event::EstimateTotal { size, packed } if told(packed) => match flags.parsable {
                true => writeln!(lines, "size\t{size}")?,
                false => {
                    let text = if packed { nicebytes(size) } else { nicenum(size) };
                    writeln!(lines, "total estimated size is {text}")?;
                }
            },
            Event::Resuming(found) => token(found, flags, lines)?,
            _ => {}
        }
        Ok(())
    }

    fn mounts(&mut self) -> &mut dyn Mounts {
        &mut self.mounts
    }

    fn while_streaming(
        &mut self,
        streaming: &Streaming<'_>,
        work: &mut dyn FnMut(),
    ) -> io::Result<()> {
        let (flags, caller, err) = (self.flags, self.caller, &mut *self.err);
        let Streaming { name, size, packed, progress } = *streaming;
        // In a package blocks are not told of, as in OpenZFS.
        let told = Told { name, size, verbosity: if packed { 0 } else { flags.verbosity } };
        let (done, closed) = channel::<()>();
        std::thread::scope(|scope| {
            let tells = move || tell(&told, flags, progress, &closed, (caller, err));
            if flags.progress || flags.title || flags.parsable {
                std::thread::Builder::new().name("progress".into()).spawn_scoped(scope, tells)?;
            }
            work();
            drop(done);
            Ok(())
        })
    }
}

/// What a token says, with `-v` and `-P`.
pub(super) fn token(token: &Token, flags: &Flags, lines: &mut Output) -> io::Result<()> {
    match flags.verbosity {
        0 => Ok(()),
        _ => write!(lines, "resume token contents:\n{}", token.to_list()),
    }
}

/// The line of one stream (`send_print_verbose`).
fn estimate(to: &str, from: Option<&str>, size: u64, parsable: bool) -> String {
    match (parsable, from) {
        (true, Some(from)) => format!("incremental\t{from}\t{to}\t{size}"),
        (true, None) => format!("full\t{to}\t{size}"),
        (false, from) => {
            let what = match from {
                None => format!("full send of {to}"),
                Some(from) if from.contains(['@', '#']) => format!("send from {from} to {to}"),
                Some(from) => format!("send from @{from} to {to}"),
            };
            match size {
                0 => what,
                size => format!("{what} estimated size is {}", nicebytes(size)),
            }
        }
    }
}

/// A stream whose progress is told.
struct Told<'a> {
    name: &'a str,
    /// Bytes that it will have, about; 0 if that is not known.
    size: u64,
    /// As `-v` was given, where blocks count as well.
    verbosity: usize,
}

/// Tells how far a stream is, once a second, until `done` is closed (`send_progress_thread`). On a terminal one line
/// with rate and time left is drawn again and again in place of one line after the other.
fn tell(
    told: &Told<'_>,
    flags: &Flags,
    progress: &Progress,
    done: &Receiver<()>,
    (caller, err): (&Caller, &mut Output),
) {
    let drawn = caller.terminal.err && !flags.parsable && flags.progress;
    let bar = drawn.then(|| Drawn::new(caller.terminal.width, told.size));
    if flags.progress && !flags.parsable && !drawn {
        let blocks = if told.verbosity >= 2 { "   BLOCKS    " } else { "" };
        // What cannot be told does not stop the stream.
        let _ = writeln!(err, "TIME        SENT   {blocks}SNAPSHOT {}", told.name);
    }
    while let Err(RecvTimeoutError::Timeout) = done.recv_timeout(EVERY) {
        let (bytes, blocks) = (progress.bytes.load(Relaxed), progress.blocks.load(Relaxed));
        if flags.title {
            let done = bytes.checked_div(told.size / 100).map_or(100, |part| part.min(100));
            name_thread(&format!("sending {done}%"));
        }
        match &bar {
            Some(bar) => bar.draw(bytes, err),
            None if flags.progress || flags.parsable => {
                let _ = writeln!(err, "{}", line(told, flags.parsable, (bytes, blocks), caller));
            }
            None => {}
        }
    }
    if let Some(bar) = bar {
        bar.finish(err);
    }
}

fn line(told: &Told<'_>, parsable: bool, (bytes, blocks): (u64, u64), caller: &Caller) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let time = clock::format(caller, i64::try_from(now).unwrap_or(0), "%H:%M:%S");
    let name = told.name;
    match (parsable, told.verbosity >= 2) {
        (true, true) => format!("{time}\t{bytes}\t{blocks}\t{name}"),
        (true, false) => format!("{time}\t{bytes}\t{name}"),
        (false, true) => format!("{time}   {:>5}    {blocks:>8}    {name}", nicenum(bytes)),
        (false, false) => format!("{time}   {:>5}   {name}", nicebytes(bytes)),
    }
}

/// Names the thread that tells; `ps -T` and `top -H` show it.
fn name_thread(name: &str) {
    if let Ok(name) = std::ffi::CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_openzfs() {
        let mut caller = Caller::of_process();
        caller.env.insert("TZ".into(), "UTC".into());
        let show = |verbosity, parsable| {
            let told = Told { name: "tank/a@b", size: 0, verbosity };
            let line = line(&told, parsable, (3 << 20, 77), &caller);
            line.split_at(8).1.to_string()
        };
        assert_eq!(show(1, false), "      3M   tank/a@b");
        assert_eq!(show(2, false), "      3M          77    tank/a@b");
        assert_eq!(show(1, true), "\t3145728\ttank/a@b");
        assert_eq!(show(2, true), "\t3145728\t77\ttank/a@b");
    }
}
