//! `zfs bookmark` (`zfs_do_bookmark`).

use super::session::{outcome, quietly, stop};
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, pool_of};
use cenote_admin::holds::bookmark_names;
use cenote_command::outcome::{Outcome, Stop, usage};
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "", refused: "", refused_long: &[] };

/// Runs `zfs bookmark`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let names = parsed.names();
    let (source, target) = match names.as_slice() {
        [] => return usage("missing source argument"),
        [_] => return usage("missing bookmark argument"),
        [source, target] => (source, target),
        _ => return usage("too many arguments"),
    };
    let (source, target) = bookmark_names(source, target).map_err(stop)?;
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change(&source);
    let kinds = Kinds::SNAPSHOT.with(Kinds::BOOKMARK);
    let imported = pool_of(ctx, &source, kinds).map_err(Stop::Fail)?;
    outcome(quietly(&imported, ctx, |session| session.bookmark(&source, &target)))
}
