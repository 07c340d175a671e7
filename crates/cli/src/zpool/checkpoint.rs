//! `zpool checkpoint` (`zpool_do_checkpoint`).

use crate::context::Context;
use crate::options::{Spec, parse_with_long};
use crate::pools::reason;
use crate::zpool::select::open;
use crate::zpool::wait::until_over;
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "dw", refused: "", refused_long: &[] };
const LONG: [(&str, char); 2] = [("discard", 'd'), ("wait", 'w')];

/// Runs `zpool checkpoint`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse_with_long(args, SPEC, &LONG)?;
    let has = |letter| parsed.options.iter().any(|option| option.letter == letter);
    let (discard, wait) = (has('d'), has('w'));
    if wait && !discard {
        return usage("--wait only valid when --discard also specified");
    }
    let names = parsed.names();
    let name = match names.as_slice() {
        [] => return usage("missing pool argument"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    let pools = Arc::clone(&ctx.pools);
    let change = pools.change(name);
    let imported = match open(ctx, name) {
        Ok(imported) => imported,
        Err(why) if name.contains('/') => {
            return fail(format!(
                "{why}\n'zpool checkpoint' doesn't work on datasets. To save the state of a dataset from a specific \
                 point in time please use 'zfs snapshot'"
            ));
        }
        Err(why) => return fail(why),
    };
    let cannot = |why: String| match discard {
        true => Stop::Fail(format!("cannot discard checkpoint in '{name}': {why}")),
        false => Stop::Fail(format!("cannot checkpoint '{name}': {why}")),
    };
    let engine = imported.writable().map_err(cannot)?;
    let done = if discard { engine.discard_checkpoint() } else { engine.checkpoint() };
    done.map_err(|e| cannot(reason(&e)))?;
    ctx.changed(&imported);
    drop(change);
    if wait {
        until_over(&imported, &["discard"], ctx)?;
    }
    Ok(0)
}
