//! Replaying the intent logs of a pool that is imported, and showing how far that is: a bar on a terminal, a
//! line now and then otherwise. Of what is done soon nothing is said.

use crate::context::Context;
use crate::progress::{Bar, Seldom};
use cenote_engine::{Engine, LogProgress, NotReplayed};
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

/// Replays intent logs; says which could not be.
pub(super) fn run(engine: &Engine, logs: &LogProgress, ctx: &mut Context) {
    let replayed = watched(logs, ctx, || cenote::contents::replay_logs(engine, &|_, _| true));
    match replayed {
        Ok(failed) => {
            for NotReplayed { name, why } in failed {
                ctx.complain(format_args!(
                    "intent log of '{name}' was not replayed: {why}\n\
                     'zpool clear POOL {name}' gives up what is in it"
                ));
            }
        }
        Err(e) => ctx.complain(format_args!("intent logs were not replayed: {e}")),
    }
}

/// Says which intent logs were not replayed because the pool is imported read-only.
pub(super) fn not_done(pool: &Pool, ctx: &mut Context) {
    match cenote_engine::unreplayed(pool) {
        Ok(names) => {
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
