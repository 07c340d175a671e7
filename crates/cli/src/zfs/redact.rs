//! `zfs redact` (`zfs_do_redact`).

use super::session::quietly;
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, pool_of};
use cenote_admin::redact::errno;
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_engine::change::{NewRedaction, RedactRefused};
use std::ffi::OsString;

const SPEC: Spec = Spec { short: "", refused: "", refused_long: &[] };

/// Runs `zfs redact`. It ends with the number of the error, as OpenZFS's does. Others are not kept waiting: snapshots and the
/// bookmark are held while they are read.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let names = parsed.names();
    let [snapshot, bookmark, by @ ..] = names.as_slice() else {
        return usage("too few arguments");
    };
    if by.is_empty() {
        return usage("too few arguments");
    }
    let imported = pool_of(ctx, snapshot, Kinds::SNAPSHOT).map_err(Stop::Fail)?;
    let new =
        NewRedaction { snapshot: snapshot.clone(), bookmark: bookmark.clone(), by: by.to_vec() };
    let cancel = ctx.cancel.clone();
    let stops = || cancel.is_cancelled();
    let Err(e) = quietly(&imported, ctx, |session| session.redact(&new, &stops)) else {
        return Ok(0);
    };
    ctx.complain(&match &e {
        RedactRefused::Change(e) => format!("internal error: {e}"),
        e => e.to_string(),
    });
    Err(Stop::Said(errno(&e)))
}
