//! `zfs rename` (`zfs_do_rename`).

use super::session::{outcome, quietly};
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, open};
use cenote_admin::rename::Rename;
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_engine::change::names::{Expected, check_new};
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "pruf", refused: "", refused_long: &[] };

/// Runs `zfs rename`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let count = |letter| parsed.options.iter().filter(|o| o.letter == letter).count();
    let parents = count('p');
    let how = Rename { recurse: count('r') > 0, stay: count('u') > 0, force: count('f') > 0 };
    let names = parsed.names();
    let (from, to) = match names.as_slice() {
        [] => return usage("missing source dataset argument"),
        [_] => return usage("missing target dataset argument"),
        [from, to] => (from, to),
        _ => return usage("too many arguments"),
    };
    if how.recurse && parents > 0 {
        return usage("-p and -r options are mutually exclusive");
    }
    if how.stay && parents > 0 {
        return usage("-u and -p options are mutually exclusive");
    }
    if how.recurse && !from.contains('@') {
        return usage("source dataset for recursive rename must be a snapshot");
    }
    let kinds = match (how.stay, parents > 0) {
        (true, _) => Kinds::FILESYSTEM,
        (_, true) => Kinds::HEAD,
        _ => Kinds::DATASET,
    };
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change(from);
    let node = open(ctx, from, kinds).map_err(Stop::Fail)?;
    outcome(quietly(&node.imported, ctx, |session| {
        session.writable(|| format!("cannot rename '{from}'"))?;
        if parents > 0 && check_new(to, Expected::HEAD).is_ok() {
            session.create_ancestors(to, parents > 1)?;
        }
        match from == to {
            true => Ok(()),
            false => session.rename(&node.dataset, to, how),
        }
    }))
}
