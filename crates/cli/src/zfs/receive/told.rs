//! What is said of streams that come. With `-v` on a terminal a line is drawn over that shows how far a stream has come. A
//! stream does not say how long it will be, so no time left is shown.

use crate::context::Context;
use crate::progress::Drawn;
use cenote_admin::Event;
use cenote_admin::receive::Receive;
use cenote_dsl::human::nicebytes;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often the line is drawn. What is done sooner is not told.
const EVERY: Duration = Duration::from_secs(1);

/// Does `work`, which counts the bytes that have come, and draws the line meanwhile.
///
/// # Errors
/// There can be no thread that draws. Nothing was done then.
pub fn while_drawn(ctx: &mut Context, bytes: &AtomicU64, work: &mut dyn FnMut()) -> io::Result<()> {
    let (line, err) = (Drawn::without_end(ctx.caller.terminal.width), &mut ctx.err);
    std::thread::scope(|scope| {
        let (done, closed) = channel::<()>();
        let tells = move || {
            while let Err(RecvTimeoutError::Timeout) = closed.recv_timeout(EVERY) {
                line.draw(bytes.load(Relaxed), err);
            }
            line.finish(err);
        };
        std::thread::Builder::new().name("progress".into()).spawn_scoped(scope, tells)?;
        work();
        drop(done);
        Ok(())
    })
}

/// Says what happens (`-v`).
pub(super) fn say(ctx: &mut Context, event: &Event<'_>, how: &Receive) -> io::Result<()> {
    match event {
        Event::Receiving { sent, to, origin, incremental, corrective } => {
            if let Some(origin) = origin {
                let given = if how.origin.is_some() { "using provided" } else { "found" };
                writeln!(ctx.out, "{given} clone origin {origin}")?;
            }
            let does = if how.dry_run { "would receive" } else { "receiving" };
            let kind = if *incremental { "incremental" } else { "full" };
            let heals = if *corrective { "corrective " } else { "" };
            writeln!(ctx.out, "{does} {heals}{kind} stream of {sent} into {to}")?;
            ctx.out.flush()
        }
        Event::Received { bytes, took } => {
            let seconds = took.as_secs_f64().max(1e-9);
            let (size, rate) = (nicebytes(*bytes), nicebytes((*bytes as f64 / seconds) as u64));
            writeln!(ctx.out, "received {size} stream in {seconds:.2} seconds ({rate}/sec)")?;
            ctx.out.flush()
        }
        Event::IsThere(name) => writeln!(ctx.out, "snap {name} already exists; ignoring"),
        Event::Promoting(name) => writeln!(ctx.out, "promoting {name}"),
        Event::Destroying(name) => writeln!(ctx.out, "attempting destroy {name}"),
        Event::Renaming { from, to } => writeln!(ctx.out, "attempting rename {from} to {to}"),
        Event::Settled(true) => writeln!(ctx.out, "success"),
        Event::Settled(false) => writeln!(ctx.out, "failed"),
        Event::LacksStart { dataset, snapshot } => writeln!(
            ctx.out,
            "local fs {dataset} does not have fromsnap ({snapshot} in stream); must have been \
             deleted locally; ignoring"
        ),
        Event::LacksParent(name) => writeln!(ctx.out, "local fs {name} new parent not found"),
        _ => Ok(()),
    }
}
