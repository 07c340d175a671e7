//! `zpool freeze`, which OpenZFS has for tests of intent logs, and lists nowhere.

use crate::context::Context;
use crate::options::{Spec, parse};
use crate::pools::reason;
use crate::zpool::select::open;
use cenote_command::outcome::{Outcome, Stop, usage};
use std::ffi::OsString;

/// Runs `zpool freeze`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let names = parse(args, Spec::default())?.names();
    let name = match names.as_slice() {
        [] => return usage("missing pool name"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    let imported = open(ctx, name).map_err(Stop::Fail)?;
    let cannot = |why: String| Stop::Fail(format!("cannot freeze '{name}': {why}"));
    let engine = imported.writable().map_err(cannot)?;
    engine.freeze().map_err(|e| cannot(reason(&e)))?;
    Ok(0)
}
