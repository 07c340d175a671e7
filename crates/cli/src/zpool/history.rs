//! `zpool history` (`zpool_do_history`, `zpool_get_history`).

use crate::context::Context;
use crate::options::{Spec, parse};
use crate::pools::reason;
use crate::zpool::select::select;
use cenote_command::clock;
use cenote_command::outcome::Outcome;
use cenote_pool::history::format_record;
use std::ffi::OsString;

const SPEC: Spec = Spec { short: "il", refused: "", refused_long: &[] };

/// Runs `zpool history`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let (internal, long) = (has('i'), has('l'));
    let (pools, mut good) = select(ctx, &parsed.names());
    if pools.is_empty() && good {
        ctx.complain("no pools available");
    }
    for imported in pools {
        let name = imported.name();
        // Records are written some time after their commands.
        let lacks = match imported.engine().map(|engine| engine.sync_for_a_moment()) {
            None | Some(Ok(true)) => None,
            Some(Ok(false)) => Some("its transaction group is still being written".into()),
            Some(Err(e)) => Some(reason(&e)),
        };
        if let Some(why) = lacks {
            ctx.complain(format_args!("history of '{name}' may lack the last: {why}"));
        }
        writeln!(ctx.out, "History for '{name}':")?;
        let records = match imported.pool().history() {
            Ok(records) => records,
            Err(e) => {
                ctx.complain(format_args!("cannot get history for '{name}': {e}"));
                good = false;
                continue;
            }
        };
        for record in &records {
            if ctx.cancelled() {
                return Ok(1);
            }
            let time = |seconds: u64| {
                clock::format(
                    &ctx.caller,
                    i64::try_from(seconds).unwrap_or(i64::MAX),
                    "%Y-%m-%d.%H:%M:%S",
                )
            };
            if let Some(line) = format_record(record, internal, long, &time) {
                writeln!(ctx.out, "{line}")?;
            }
        }
        writeln!(ctx.out)?;
    }
    Ok(i32::from(!good))
}
