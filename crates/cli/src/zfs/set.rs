//! `zfs set` and `zfs inherit` (`zfs_do_set`, `zfs_do_inherit`).

use super::change::{add_property, tell_kept};
use super::session::unrecorded;
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, Selection, select_to_change};
use cenote_admin::{Error, ErrorKind};
use cenote_command::outcome::{Outcome, fail, usage};
use cenote_dsl::DatasetKind;
use cenote_dsl::props::is_user;
use cenote_engine::change::props::find;
use std::ffi::OsString;
use std::sync::Arc;

const SET: Spec = Spec { short: "u", refused: "", refused_long: &[] };
const INHERIT: Spec = Spec { short: "rS", refused: "", refused_long: &[] };

/// Runs `zfs set`, also as `zfs name=value dataset`.
pub fn set(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SET)?;
    let stay = !parsed.options.is_empty();
    let operands = parsed.names();
    match operands.as_slice() {
        [] => return usage("missing arguments"),
        [only] if only.contains('=') => return usage("missing dataset name(s)"),
        [_] => return usage("missing property=value argument(s)"),
        _ => {}
    }
    let Some(first) = operands.iter().position(|o| !o.contains('=')) else {
        return usage("missing dataset name(s)");
    };
    let (settings, names) = operands.split_at(first);
    if names.iter().any(|n| n.contains('=')) {
        return usage("invalid argument order");
    }
    let mut list = Vec::new();
    for setting in settings {
        add_property(&mut list, setting)?;
    }
    let pools = Arc::clone(&ctx.pools);
    let what = Selection::of(Kinds::DATASET);
    let (_change, nodes, mut good) = select_to_change(&pools, ctx, names, &what);
    let mut any = false;
    for node in nodes {
        let set =
            unrecorded(&node.imported, ctx, |session| session.set(&node.dataset, &list, stay));
        let set = said(set, ctx);
        (good, any) = (good && set, any || set);
        ctx.changed(&node.imported);
    }
    if any {
        tell_kept(&list, ctx);
    }
    Ok(i32::from(!good))
}

/// Runs `zfs inherit`.
pub fn inherit(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, INHERIT)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let (recurse, received) = (has('r'), has('S'));
    let operands = parsed.names();
    let (property, names) = match operands.split_first() {
        None => return usage("missing property argument"),
        Some((_, [])) => return usage("missing dataset argument"),
        Some(split) => split,
    };
    let native = find(property);
    match native {
        None if !is_user(property) => return usage(format!("invalid property '{property}'")),
        None => {}
        Some(p) if p.is_readonly() => return fail(format!("{property} property is read-only")),
        Some(p) if !p.is_inheritable() && !received => {
            let mut text = format!("'{property}' property cannot be inherited");
            if matches!(p.name, "quota" | "reservation" | "refquota" | "refreservation") {
                text += &format!(
                    "\nuse 'zfs set {property}=none' to clear\n\
                     use 'zfs inherit -S {property}' to revert to received value"
                );
            }
            return fail(text);
        }
        Some(p) if received && matches!(p.name, "volsize" | "version") => {
            return fail(format!("'{property}' property cannot be reverted to a received value"));
        }
        Some(_) => {}
    }
    let pools = Arc::clone(&ctx.pools);
    let what = Selection { recurse, ..Selection::of(Kinds::DATASET) };
    let (_change, nodes, mut good) = select_to_change(&pools, ctx, names, &what);
    for node in nodes {
        let applies = native.is_none_or(|p| {
            p.applies_to.contains(node.dataset.kind) && node.dataset.kind != DatasetKind::Snapshot
        });
        if applies || !recurse {
            let inherited = unrecorded(&node.imported, ctx, |session| {
                session.inherit(&node.dataset, property, received)
            });
            good &= said(inherited, ctx);
            ctx.changed(&node.imported);
        }
    }
    Ok(i32::from(!good))
}

/// Says why something was not done, if it was not said yet. Returns whether it was done.
pub(super) fn said(done: Result<(), Error>, ctx: &mut Context) -> bool {
    match &done {
        Err(e) if e.kind() != ErrorKind::Told => ctx.complain(e),
        _ => {}
    }
    done.is_ok()
}
