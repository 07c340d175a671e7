//! `zfs bookmark`.

use super::change::changes;
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, open};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_engine::change::ChangeError;
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "", refused: "", refused_long: &[] };

/// Runs `zfs bookmark`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let names = parsed.names();
    let (mut source, mut target) = match names.as_slice() {
        [] => return usage("missing source argument"),
        [_] => return usage("missing bookmark argument"),
        [source, target] => (source.clone(), target.clone()),
        _ => return usage("too many arguments"),
    };
    if !source.contains(['@', '#']) {
        return usage(format!("invalid source name '{source}': must contain a '@' or '#'"));
    }
    if !target.contains('#') {
        return usage(format!("invalid bookmark name '{target}': must contain a '#'"));
    }
    // One of the two may leave out the dataset, which is the other's.
    let head = |name: &str| name.split(['@', '#']).next().unwrap_or_default().to_string();
    if source.starts_with(['@', '#']) {
        source.insert_str(0, &head(&target));
    } else if target.starts_with('#') {
        target.insert_str(0, &head(&source));
    }
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change();
    let node = open(ctx, &source, Kinds::SNAPSHOT.with(Kinds::BOOKMARK)).map_err(Stop::Fail)?;
    let failed =
        |e: &dyn std::fmt::Display| Stop::Fail(format!("cannot create bookmark '{target}': {e}"));
    let changes = changes(&node.imported, ctx).map_err(|e| failed(&e))?;
    match changes.bookmark(&node.dataset.name, &target) {
        Ok(()) => Ok(0),
        Err(ChangeError::Exists) => {
            fail(format!("cannot create bookmark '{target}': bookmark exists"))
        }
        Err(e) => Err(failed(&e)),
    }
}
