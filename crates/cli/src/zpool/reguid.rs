//! `zpool reguid` (`zpool_do_reguid`).

use crate::cachefile;
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::pools::reason;
use crate::zpool::select::open;
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "g:", refused: "", refused_long: &[] };

/// Runs `zpool reguid`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let mut guid = None;
    for option in &parsed.options {
        let text = option.text();
        // One below zero is told by its 64 bits, as strtoull(3) does.
        let number = match text.strip_prefix('-') {
            Some(digits) if !digits.starts_with('+') => digits.parse().map(u64::wrapping_neg),
            _ => text.parse(),
        };
        guid = Some(number.or_else(|_| usage(format!("invalid GUID: {text}")))?);
    }
    let names = parsed.names();
    let name = match names.as_slice() {
        [] => return usage("missing pool name"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change_all([name], guid);
    let imported = open(ctx, name).map_err(Stop::Fail)?;
    let cannot = |why: String| Stop::Fail(format!("cannot reguid '{name}': {why}"));
    if guid.is_some_and(|guid| pools.by_guid(guid).is_some()) {
        return fail(format!("cannot reguid '{name}': pool already exists"));
    }
    let engine = imported.writable().map_err(cannot)?;
    engine.reguid(guid).map_err(|e| cannot(reason(&e)))?;
    ctx.changed(&imported);
    cachefile::update(&pools);
    Ok(0)
}
