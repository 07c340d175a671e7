//! `zfs rollback` (`zfs_do_rollback`).
//!
//! A mounted file system stays mounted, in use or not: see [`crate::mounts::exchange`]. Only a file system with
//! submounts, as ordinary users have them, is unmounted for the rollback and mounted again, and must be out of use.

use super::session::{outcome, quietly};
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, pool_of};
use cenote_admin::rollback::Rollback;
use cenote_command::outcome::{Outcome, Stop, usage};
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "rRf", refused: "", refused_long: &[] };

/// Runs `zfs rollback`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let how = Rollback { recurse: has('r'), clones: has('R'), force: has('f') };
    let names = parsed.names();
    let name = match names.as_slice() {
        [] => return usage("missing dataset argument"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change(name);
    let imported = pool_of(ctx, name, Kinds::SNAPSHOT).map_err(Stop::Fail)?;
    outcome(quietly(&imported, ctx, |session| session.rollback(name, how)))
}
