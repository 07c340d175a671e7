//! Replaying the intent logs of file systems before they are mounted, and showing how far that is: a bar on a
//! terminal, a line now and then otherwise. Of what is done soon nothing is said.

use crate::context::Context;
use crate::mounts::{How, is_meant};
use crate::pools::Imported;
use crate::progress::{Bar, Seldom};
use cenote_dsl::Dataset;
use cenote_engine::LogProgress;
use cenote_pool::Pool;
use cenote_pool::status::ReplayStage;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The bar changes this often.
const PACE: Duration = Duration::from_millis(200);
/// Time that passes before there is a bar.
const DELAY: Duration = Duration::from_secs(1);

/// Does `work` in a thread of its own, and shows meanwhile what `logs` says.
pub(super) fn watched<T: Send>(
    logs: &LogProgress,
    ctx: &mut Context,
    work: impl FnOnce() -> T + Send,
) -> T {
    std::thread::scope(|scope| {
        let (done, is_done) = channel::<()>();
        let working = scope.spawn(move || {
            // Dropped when the work ends, however that is.
            let _done = done;
            work()
        });
        let (begun, mut seldom, mut bar) = (Instant::now(), Seldom::begin(), None);
        while is_done.recv_timeout(PACE) == Err(RecvTimeoutError::Timeout) {
            let now = logs.figures();
            if now.stage == ReplayStage::Idle || begun.elapsed() < DELAY {
                continue;
            }
            bar = bar.or_else(|| Bar::with_message(ctx));
            match &bar {
                Some(bar) => bar.tell(now.records_done, now.records.max(1), now.text(), ctx),
                None if seldom.is_due() => ctx.complain(now.text()),
                None => {}
            }
        }
        if let Some(bar) = bar {
            bar.finish(ctx);
        }
        working.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Replays the intent logs of those file systems that are meant to be mounted, several at once. Which could not be
/// is said by the command that mounts them.
pub(super) fn before_mounting(
    imported: &Imported,
    all: &[Dataset],
    explicit: bool,
    how: &How,
    ctx: &mut Context,
) {
    if ctx.caller.is_delegated() {
        // Nothing will be mounted for this user.
        return;
    }
    let Some(engine) = imported.engine() else { return };
    let mut waiting = engine.waiting_logs();
    let is_wanted = |d: &&Dataset| is_meant(imported, d, explicit, how);
    let wanted: Vec<u64> = all.iter().filter(is_wanted).map(|d| d.ds_obj).collect();
    waiting.retain(|ds_obj| wanted.contains(ds_obj));
    if waiting.is_empty() {
        return;
    }
    let replay = || cenote_admin::contents::replay_these_logs(engine, &waiting);
    if let Err(e) = watched(engine.logs(), ctx, replay) {
        ctx.complain(format_args!("intent logs were not replayed: {e}"));
    }
}

/// Says which intent logs were not replayed because the pool is imported read-only.
pub(super) fn not_done(pool: &Pool, ctx: &mut Context) {
    match cenote_engine::unreplayed(pool) {
        Ok((names, unread)) => {
            for e in unread {
                ctx.complain(format_args!("an intent log cannot be looked for: {e}"));
            }
            for name in names {
                ctx.complain(format_args!(
                    "intent log of '{name}' was not replayed: the pool is imported read-only, and shows \
                     the state before it"
                ));
            }
        }
        Err(e) => ctx.complain(format_args!("intent logs cannot be looked for: {e}")),
    }
}
