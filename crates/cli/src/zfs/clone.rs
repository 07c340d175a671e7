//! `zfs clone`, `zfs promote`.

use super::change::{add_property, changes, tell_kept};
use super::create::{ancestors, mount};
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, Node, open};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::Dataset;
use cenote_engine::change::names::{Expected, check_new};
use cenote_engine::change::policy::Operation;
use cenote_engine::change::{ChangeError, Changes, NewClone};
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "o:pu", refused: "", refused_long: &[] };
const NONE: Spec = Spec { short: "", refused: "", refused_long: &[] };
const HEADS: Kinds = Kinds::FILESYSTEM.with(Kinds::VOLUME);

/// Runs `zfs clone`.
pub fn clone(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let (mut props, mut parents, mut no_mount) = (Vec::new(), 0, false);
    for opt in &parsed.options {
        match opt.letter {
            'o' => add_property(&mut props, &opt.text())?,
            'p' => parents += 1,
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
    let _change = pools.change();
    let node = open(ctx, origin, Kinds::SNAPSHOT).map_err(Stop::Fail)?;
    let cannot = |e: &dyn std::fmt::Display| Stop::Fail(format!("cannot create '{name}': {e}"));
    check_new(name, Expected::HEAD).map_err(|e| cannot(&e))?;
    let imported = &node.imported;
    let changes = changes(imported, ctx).map_err(|e| cannot(&e))?;
    if parents > 0 {
        // As OpenZFS, which is content with what is there.
        if imported.pool().dsl().find(name).map_err(|e| cannot(&e))?.is_some() {
            return Ok(0);
        }
        ancestors(name, parents > 1, imported, &changes, ctx)?;
    }
    let new = NewClone { origin: node.dataset.name.clone(), name: name.clone(), props };
    changes.clone_snapshot(&new).map_err(|e| cannot(&e))?;
    tell_kept(&new.props, ctx);
    Ok(i32::from(!no_mount && !mount(imported, name, ctx)))
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
    let _change = pools.change();
    let node = open(ctx, name, HEADS).map_err(Stop::Fail)?;
    let cannot = |e: String| Stop::Fail(format!("cannot promote '{name}': {e}"));
    let changes = changes(&node.imported, ctx).map_err(cannot)?;
    promote_node(&node, &changes)
}

/// Makes a clone independent of its origin.
pub(super) fn promote_node(node: &Node, changes: &Changes) -> Outcome {
    let (imported, name) = (&node.imported, &node.dataset.name);
    let cannot = |e: &dyn std::fmt::Display| Stop::Fail(format!("cannot promote '{name}': {e}"));
    // What is between `%` is a receive's.
    if name.contains('%') {
        return Err(cannot(&"invalid character % in name"));
    }
    let pool = imported.pool();
    let dsl = pool.dsl();
    let origin = dsl.get(&node.dataset, "origin").map_err(|e| cannot(&e))?;
    let Some(origin) = origin.map(|v| v.exact).filter(|origin| !origin.is_empty()) else {
        return Err(cannot(&"not a cloned filesystem"));
    };
    let operation = Operation::Promote { name, origin: Some(&origin) };
    changes.permit(&operation).map_err(|e| cannot(&e))?;
    // The snapshots get other names, which nobody may be in the midst of using.
    let old = origin.split('@').next().unwrap_or_default();
    let head = dsl.find(old).map_err(|e| cannot(&e))?.ok_or_else(|| cannot(&"no origin"))?;
    let snapshots = dsl.snapshots(&head).map_err(|e| cannot(&e))?;
    let until = snapshots.iter().position(|s| s.name == origin).map_or(0, |i| i + 1);
    let held = |s: &Dataset| imported.engine().is_some_and(|engine| engine.is_held(s.ds_obj));
    if snapshots.iter().take(until).any(held) {
        return Err(cannot(&ChangeError::Busy));
    }
    let moved: Vec<String> = snapshots.into_iter().take(until).map(|s| s.name).collect();
    if imported.mounts.close_snapshots(&moved).is_err() {
        return Err(cannot(&ChangeError::Busy));
    }
    match changes.promote(name) {
        Ok(()) => {
            let there = moved.iter().filter_map(|s| s.split_once('@'));
            let there: Vec<String> = there.map(|(_, short)| format!("{name}@{short}")).collect();
            imported.mounts.snapshots_changed(moved.iter().chain(&there));
            Ok(0)
        }
        Err((taken, e)) => {
            imported.mounts.snapshots_stay(&moved);
            match taken {
                Some(taken) => fail(format!(
                    "cannot promote '{name}': conflicting snapshot '{taken}' from parent '{origin}'"
                )),
                None => Err(cannot(&e)),
            }
        }
    }
}
