//! How far a stream has come: with `-v`, a line on the user's terminal that is drawn over. A stream does not say how
//! long it will be, so no time left is shown.

use super::Flags;
use crate::context::Context;
use crate::progress::Drawn;
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
pub(super) fn while_told<T>(
    flags: &Flags,
    ctx: &mut Context,
    work: impl FnOnce(&AtomicU64) -> T,
) -> io::Result<T> {
    let bytes = AtomicU64::new(0);
    if !flags.verbose || !ctx.caller.terminal.err {
        return Ok(work(&bytes));
    }
    let (line, err) = (Drawn::without_end(ctx.caller.terminal.width), &mut ctx.err);
    std::thread::scope(|scope| {
        let ((done, closed), bytes) = (channel::<()>(), &bytes);
        let tells = move || {
            while let Err(RecvTimeoutError::Timeout) = closed.recv_timeout(EVERY) {
                line.draw(bytes.load(Relaxed), err);
            }
            line.finish(err);
        };
        std::thread::Builder::new().name("progress".into()).spawn_scoped(scope, tells)?;
        let worked = work(bytes);
        drop(done);
        Ok(worked)
    })
}
