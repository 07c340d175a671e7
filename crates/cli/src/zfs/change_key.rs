//! `zfs change-key` (`zfs_do_change_key`).

use super::change::{add_property, changes};
use crate::context::Context;
use crate::keys::{self, LoadKey};
use crate::new_key::Wanted;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, Node, open};
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_engine::change::NewKey;
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "lio:", refused: "", refused_long: &[] };
/// Exit code where the key was not changed.
pub const NOT_CHANGED: i32 = 255;
const ONLY: &str = "Only keyformat, keylocation and pbkdf2iters may be set with this command.";

/// Runs `zfs change-key`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let (mut load, mut inherit, mut props) = (false, false, Vec::new());
    for opt in &parsed.options {
        match opt.letter {
            'l' => load = true,
            'i' => inherit = true,
            _ => add_property(&mut props, &opt.text())?,
        }
    }
    if inherit && !props.is_empty() {
        return usage("Properties not allowed for inheriting");
    }
    let name = match parsed.names().as_slice() {
        [name] => name.clone(),
        [] => return usage("Missing dataset argument"),
        _ => return usage("Too many arguments"),
    };
    let Node { imported, dataset, .. } =
        open(ctx, &name, Kinds::FILESYSTEM.with(Kinds::VOLUME)).map_err(Stop::Fail)?;
    let is_loaded = imported.pool().dsl().is_key_loaded(&dataset);
    if load
        && matches!(is_loaded, Ok(Some(false)))
        && !keys::load_for(&imported, std::slice::from_ref(&dataset), &LoadKey::default(), ctx)
    {
        return Ok(NOT_CHANGED);
    }
    let failed = |why: String, ctx: &mut Context| {
        ctx.complain(format_args!("Key change error: {why}"));
        Ok(NOT_CHANGED)
    };
    let wanted = match Wanted::take(&mut props) {
        Ok(wanted) => wanted,
        Err(why) => return failed(why, ctx),
    };
    if !props.is_empty() || wanted.says_suite() {
        return failed(ONLY.into(), ctx);
    }
    let new = match inherit {
        true => Ok(NewKey::Inherit),
        false => wanted.in_place_of(&imported, &dataset, ctx),
    };
    let new = match new {
        Ok(new) => new,
        Err(why) => return failed(why, ctx),
    };
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change(&name);
    let changes = changes(&imported, ctx)
        .map_err(|e| Stop::Fail(format!("cannot change key of '{name}': {e}")))?;
    match changes.change_key(&name, &new) {
        Ok(()) => Ok(0),
        Err(e) => failed(e.to_string(), ctx),
    }
}
