//! `zfs rollback`.
//!
//! A mounted file system stays mounted, in use or not: see [`crate::mounts::exchange`]. Only one that has
//! submounts, as an ordinary user's has, is unmounted for it and mounted again, and has to be out of use.

use super::change::changes;
use super::destroy::{How, destroy_batch, destroy_head};
use crate::context::Context;
use crate::mounts::Directory;
use crate::mounts::table::Way;
use crate::options::{Spec, parse};
use crate::pools::Imported;
use crate::zfs::select::{Kinds, open};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::{Dataset, DatasetKind};
use cenote_engine::change::policy::Operation;
use cenote_engine::change::{ChangeError, Changes, Later, dependents};
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "rRf", refused: "", refused_long: &[] };

/// Runs `zfs rollback`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let (clones, force) = (has('R'), has('f'));
    let recurse = has('r') || clones;
    let names = parsed.names();
    let name = match names.as_slice() {
        [] => return usage("missing dataset argument"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change();
    let node = open(ctx, name, Kinds::SNAPSHOT).map_err(Stop::Fail)?;
    let (imported, name) = (&node.imported, &node.dataset.name);
    let head = node.dataset.head_name();
    let cannot = |e: &dyn std::fmt::Display| Stop::Fail(format!("cannot rollback '{head}': {e}"));
    let changes = changes(imported, ctx).map_err(|e| cannot(&e))?;
    changes.permit(&Operation::Rollback { snapshot: name }).map_err(|e| cannot(&e))?;
    let later = changes.later_than(name).map_err(|e| cannot(&e))?;
    let in_the_way = || later.snapshots.iter().chain(&later.bookmarks).map(|d| d.name.as_str());
    if !recurse && in_the_way().next().is_some() {
        return fail(format!(
            "cannot rollback to '{name}': more recent snapshots or bookmarks exist\n\
             use '-r' to force deletion of the following snapshots and bookmarks:\n{}",
            in_the_way().collect::<Vec<_>>().join("\n")
        ));
    }
    let (pool, mut depending) = (imported.pool(), Vec::new());
    for snapshot in &later.snapshots {
        let found = dependents(pool.dsl(), snapshot).map_err(|e| cannot(&e))?;
        depending.extend(found.into_iter().map(|d| d.dataset));
    }
    if !clones && !depending.is_empty() {
        let names: Vec<&str> = depending.iter().map(|d| d.name.as_str()).collect();
        return fail(format!(
            "cannot rollback to '{name}': clones of previous snapshots exist\n\
             use '-R' to force deletion of the following clones and dependents:\n{}",
            names.join("\n")
        ));
    }
    let found = pool.dsl().find(head).map_err(|e| cannot(&e))?;
    let id = found.map_or(0, |d| d.ds_obj);
    if !imported.mounts.can_exchange(id) {
        return unmounted(imported, id, ctx, |ctx| {
            let cleared = clear(imported, &changes, (depending, &later), force, ctx);
            cleared
                .and_then(|all| if all { changes.rollback(name).map(|()| true) } else { Ok(false) })
        })
        .map_err(|e| cannot(&e));
    }
    if !clear(imported, &changes, (depending, &later), force, ctx).map_err(|e| cannot(&e))? {
        return Ok(1);
    }
    let inside = imported.mounts.inside(id);
    let done = imported.mounts.exchange(imported, id, || changes.rollback(name));
    let restored = imported.mounts.restore(imported, inside, ctx);
    match done {
        Ok(done) => done.map_err(|e| cannot(&e))?,
        Err(e) => return fail(e.to_string()),
    }
    Ok(i32::from(!restored))
}

/// Unmounts a file system for a change, with what is mounted inside.
fn unmounted(
    imported: &Imported,
    id: u64,
    ctx: &mut Context,
    change: impl FnOnce(&mut Context) -> Result<bool, ChangeError>,
) -> Result<i32, ChangeError> {
    // First what can be refused without a loss: the unmount.
    let by = ctx.agent();
    let way = Way { force: false, directory: Directory::Kept, by: &*by };
    let away = match imported.mounts.take_away(&[id], way) {
        Ok(away) => away,
        Err((away, e)) => {
            ctx.complain(e);
            away.back(imported, ctx);
            return Ok(1);
        }
    };
    let done = change(ctx);
    let back = away.back(imported, ctx);
    Ok(i32::from(!done? || !back))
}

/// Destroys what is later than the snapshot: clones of later snapshots and what depends on them, the
/// snapshots, the bookmarks. False: something stays, as was said.
fn clear(
    imported: &Imported,
    changes: &Changes,
    (depending, later): (Vec<Dataset>, &Later),
    force: bool,
    ctx: &mut Context,
) -> Result<bool, ChangeError> {
    let (how, mut batch) = (How::forced(force), Vec::new());
    for dataset in depending {
        if dataset.kind == DatasetKind::Snapshot {
            batch.push(dataset.name);
        } else if !destroy_batch(imported, changes, &mut batch, false, ctx)
            || !destroy_head(imported, changes, &dataset, how, ctx)
        {
            return Ok(false);
        }
    }
    batch.extend(later.snapshots.iter().map(|s| s.name.clone()));
    if !batch.is_empty() && !destroy_batch(imported, changes, &mut batch, false, ctx) {
        return Ok(false);
    }
    let bookmarks: Vec<String> = later.bookmarks.iter().map(|b| b.name.clone()).collect();
    if !bookmarks.is_empty() {
        changes.destroy_bookmarks(&bookmarks)?;
    }
    Ok(true)
}
