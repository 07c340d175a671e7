//! `zpool sync` (`zpool_do_sync`).

use crate::context::Context;
use crate::options::{Spec, parse};
use crate::pools::reason;
use crate::zpool::select::select;
use cenote_command::outcome::Outcome;
use std::ffi::OsString;

const SPEC: Spec = Spec { short: "f", refused: "", refused_long: &[] };

/// Runs `zpool sync`: what was changed is on disk when it returns. With `-f` a transaction group
/// is written even if nothing was changed.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let force = !parsed.options.is_empty();
    let (pools, mut good) = select(ctx, &parsed.names());
    for imported in pools {
        // What is imported read-only is on disk.
        let Some(engine) = imported.engine() else { continue };
        let synced = match force {
            true => engine.sync_task(|_| Ok(())),
            false => engine.sync(),
        };
        if let Err(e) = synced {
            ctx.complain(format_args!("sync '{}' failed: {}", imported.name(), reason(&e)));
            good = false;
        }
    }
    Ok(i32::from(!good))
}
