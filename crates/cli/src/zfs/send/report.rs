//! What `zfs send -v` and `-P` say: estimates before a stream, and how far it is while it is written.

use super::Flags;
use crate::context::Context;
use crate::progress::Drawn;
use cenote_command::output::Output;
use cenote_command::{Caller, clock};
use cenote_dsl::human::{nicebytes, nicenum};
use cenote_dsl::send::Progress;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often progress is told.
const EVERY: Duration = Duration::from_secs(1);

/// Where estimates are written: with `-n` they are all that there is.
pub(super) fn lines<'c>(flags: &Flags, ctx: &'c mut Context) -> &'c mut Output {
    match flags.dry_run && flags.verbosity > 0 {
        true => &mut ctx.out,
        false => &mut ctx.err,
    }
}

/// The line of one stream (`send_print_verbose`).
pub(super) fn estimate(
    to: &str,
    from: Option<&str>,
    size: u64,
    flags: &Flags,
    ctx: &mut Context,
) -> io::Result<()> {
    let line = match (flags.parsable, from) {
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
    };
    writeln!(lines(flags, ctx), "{line}")
}

/// The line of all streams together.
pub(super) fn total(text: &str, size: u64, flags: &Flags, ctx: &mut Context) -> io::Result<()> {
    match flags.parsable {
        true => writeln!(lines(flags, ctx), "size\t{size}"),
        false => writeln!(lines(flags, ctx), "total estimated size is {text}"),
    }
}

/// A stream whose progress is told.
pub(super) struct Told<'a> {
    pub name: &'a str,
    /// Bytes that it will have, about; 0 if that is not known.
    pub size: u64,
    /// As `-v` was given, where blocks count as well.
    pub verbosity: usize,
}

/// Tells how far a stream is, once a second, until `done` is closed (`send_progress_thread`). On a terminal one line
/// with rate and time left is drawn again and again in place of one line after the other.
pub(super) fn tell(
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
