//! The library of administration, as a command uses it: with the rights of its caller, the mounts of the daemon, and what
//! happens said to the user.

use crate::context::Context;
use crate::mounts::administered::CommandMounts;
use crate::pools::{Imported, PoolTurn};
use crate::zfs::change::rights;
use crate::zfs::receive::while_drawn;
use cenote_admin::{Error, ErrorKind, Event, Host, Mounts, Rights, Session, Streaming};
use cenote_command::outcome::{Outcome, Stop};
use cenote_command::output::Output;
use std::fmt::Display;
use std::io;
use std::sync::Arc;

/// Shows what a command tells of beside failures and warnings.
pub type Show<'s> = dyn FnMut(&mut Context, &Event<'_>) -> io::Result<()> + 's;

struct CommandHost<'a> {
    mounts: CommandMounts<'a>,
    show: &'a mut Show<'a>,
    /// On a terminal a line shows how far a stream is that is received.
    draws: bool,
}

/// Says failures and warnings, whatever the command; returns any other event.
pub fn complained<'e>(event: Event<'e>, err: &mut Output) -> Option<Event<'e>> {
    let text: &dyn Display = match &event {
        Event::Failed(e) => e,
        Event::Warning(text) => text,
        _ => return Some(event),
    };
    // What cannot be said does not stop the command.
    let _ = writeln!(err, "{text}");
    None
}

impl Host for CommandHost<'_> {
    fn tell(&mut self, event: Event<'_>) -> io::Result<()> {
        let other = complained(event, &mut self.mounts.ctx.err);
        other.map_or(Ok(()), |event| (self.show)(self.mounts.ctx, &event))
    }

    fn mounts(&mut self) -> &mut dyn Mounts {
        &mut self.mounts
    }

    fn while_streaming(
        &mut self,
        streaming: &Streaming<'_>,
        work: &mut dyn FnMut(),
    ) -> io::Result<()> {
        if self.draws && self.mounts.ctx.caller.terminal.err {
            return while_drawn(self.mounts.ctx, &streaming.progress.bytes, work);
        }
        work();
        Ok(())
    }
}

/// Does `work` with a session on a pool. Only failures and warnings are said.
pub fn quietly<T>(
    imported: &Arc<Imported>,
    ctx: &mut Context,
    work: impl FnOnce(&mut Session<'_>) -> T,
) -> T {
    showing(imported, ctx, (&mut |_, _| Ok(()), false), work)
}

/// As [`quietly`]; everything else is shown by `show`. `draws`: on a terminal a line shows how far a stream is that is received.
pub fn showing<'a, T>(
    imported: &Arc<Imported>,
    ctx: &'a mut Context,
    (show, draws): (&'a mut Show<'a>, bool),
    work: impl FnOnce(&mut Session<'_>) -> T,
) -> T {
    with(imported, rights(ctx), ctx, (show, draws), work)
}

/// As [`quietly`], for a command of several changes: the last one is recorded by its caller ([`Context::changed`]).
pub fn unrecorded<T>(
    imported: &Arc<Imported>,
    ctx: &mut Context,
    work: impl FnOnce(&mut Session<'_>) -> T,
) -> T {
    let rights = Rights { command: None, ..rights(ctx) };
    with(imported, rights, ctx, (&mut |_, _| Ok(()), false), work)
}

fn with<'a, T>(
    imported: &Arc<Imported>,
    rights: Rights,
    ctx: &'a mut Context,
    (show, draws): (&'a mut Show<'a>, bool),
    work: impl FnOnce(&mut Session<'_>) -> T,
) -> T {
    let (pools, name) = (Arc::clone(&ctx.pools), imported.name().to_string());
    let mut host = CommandHost { mounts: CommandMounts::new(imported, ctx), show, draws };
    let session = Session::new(imported.opened().clone(), rights, &mut host);
    work(&mut session.beside(Arc::new(PoolTurn { pools, name })))
}

/// How a command ends whose work was done, or not.
pub fn outcome(done: Result<(), Error>) -> Outcome {
    done.map(|()| 0).map_err(stop)
}

/// How a command ends that failed.
pub fn stop(e: Error) -> Stop {
    match e.kind() {
        ErrorKind::Told => return Stop::Said(1),
        ErrorKind::Arguments => return Stop::Usage(e.to_string()),
        _ => {}
    }
    match e.into_io() {
        Ok(e) => Stop::Io(e),
        Err(e) => Stop::Fail(e.to_string()),
    }
}
