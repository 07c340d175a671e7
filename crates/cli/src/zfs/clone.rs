//! `zfs clone`, `zfs promote` (`zfs_do_clone`, `zfs_do_promote`).

use super::change::{add_property, tell_kept};
use super::session::{outcome, quietly, stop};
use crate::context::Context;
use crate::mounts::administered::CommandMounts;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, open, pool_of};
use cenote_admin::Mounts;
use cenote_admin::clone::Ancestors;
use cenote_command::outcome::{Outcome, Stop, usage};
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "o:pu", refused: "", refused_long: &[] };
const NONE: Spec = Spec { short: "", refused: "", refused_long: &[] };

/// Runs `zfs clone`.
pub fn clone(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let (mut props, mut ancestors, mut no_mount) = (Vec::new(), Ancestors::Refused, false);
    for opt in &parsed.options {
        match opt.letter {
            'o' => add_property(&mut props, &opt.text())?,
            'p' if ancestors == Ancestors::Refused => ancestors = Ancestors::Created,
            'p' => ancestors = Ancestors::Hidden,
            _ => no_mount = true,
        }
    }
    let names = parsed.names();
    let (origin, name) = match names.as_slice() {
        [] => return usage("missing source dataset argument"),
        [_] => return usage("missing target dataset argument"),
        [origin, name] => (origin, name),
        _ => return usage("too many arguments"),
    };
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change(origin);
    let node = open(ctx, origin, Kinds::SNAPSHOT).map_err(Stop::Fail)?;
    let kept = props.clone();
    let made = quietly(&node.imported, ctx, |session| {
        session.clone_snapshot(&node.dataset, name, props, ancestors)
    });
    if !made.map_err(stop)? {
        return Ok(0);
    }
    tell_kept(&kept, ctx);
    let mounted = no_mount || CommandMounts::new(&node.imported, ctx).mount_new(name);
    Ok(i32::from(!mounted))
}

/// Runs `zfs promote`.
pub fn promote(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, NONE)?;
    let names = parsed.names();
    let name = match names.as_slice() {
        [] => return usage("missing clone filesystem argument"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change(name);
    let imported = pool_of(ctx, name, Kinds::HEAD).map_err(Stop::Fail)?;
    outcome(quietly(&imported, ctx, |session| session.promote(name)))
}
