//! `zfs destroy`.

use super::change::changes;
use crate::context::Context;
use crate::mounts::Directory;
use crate::mounts::moving::family;
use crate::mounts::table::Way;
use crate::options::{Spec, parse};
use crate::pools::Imported;
use crate::zfs::select::{Kinds, open};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::human::nicebytes;
use cenote_dsl::{Dataset, DatasetKind};
use cenote_engine::change::policy::Operation;
use cenote_engine::change::{ChangeError, Changes, dependents, reclaimed, snapshots_of};
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "vpndfrR", refused: "", refused_long: &[] };
const HEADS: Kinds = Kinds::FILESYSTEM.with(Kinds::VOLUME);

/// What is asked for.
#[derive(Clone, Copy, Default)]
pub(super) struct How {
    verbose: bool,
    parsable: bool,
    dry_run: bool,
    defer: bool,
    force: bool,
    recurse: bool,
    clones: bool,
}

impl How {
    /// With `-f` or without, and nothing else.
    pub(super) fn forced(force: bool) -> How {
        How { force, ..How::default() }
    }

    fn say(&self, name: &str, ctx: &mut Context) -> Result<(), Stop> {
        match (self.verbose, self.parsable, self.dry_run) {
            (false, ..) => {}
            (_, true, _) => writeln!(ctx.out, "destroy\t{name}")?,
            (.., true) => writeln!(ctx.out, "would destroy {name}")?,
            _ => writeln!(ctx.out, "will destroy {name}")?,
        }
        Ok(())
    }
}

/// Runs `zfs destroy`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let mut how = How::default();
    for opt in &parsed.options {
        match opt.letter {
            'v' => how.verbose = true,
            'p' => (how.verbose, how.parsable) = (true, true),
            'n' => how.dry_run = true,
            'd' => how.defer = true,
            'f' => how.force = true,
            'r' => how.recurse = true,
            _ => (how.recurse, how.clones) = (true, true),
        }
    }
    let names = parsed.names();
    let name = match names.as_slice() {
        [] => return usage("missing dataset argument"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change();
    if let Some((head, list)) = name.split_once('@') {
        return snapshots(head, list, how, ctx);
    }
    if name.contains('#') {
        return bookmark(name, how, ctx);
    }
    let kinds = if how.defer { Kinds::SNAPSHOT } else { Kinds::DATASET };
    let node = open(ctx, name, kinds).map_err(Stop::Fail)?;
    head(&node.imported, &node.dataset, how, ctx)
}

/// Destroys a bookmark.
fn bookmark(name: &str, how: How, ctx: &mut Context) -> Outcome {
    let refused = match how {
        How { dry_run: true, .. } => Some("dryrun is not supported with bookmark"),
        How { defer: true, .. } => Some("defer destroy is not supported with bookmark"),
        How { recurse: true, .. } => Some("recursive is not supported with bookmark"),
        _ => None,
    };
    if let Some(why) = refused {
        ctx.complain(why);
        return Ok(255);
    }
    let Ok(node) = open(ctx, name, Kinds::BOOKMARK) else {
        return fail(format!("bookmark '{name}' does not exist."));
    };
    let cannot = |e: &dyn std::fmt::Display| Stop::Fail(format!("cannot destroy bookmark: {e}"));
    let changes = changes(&node.imported, ctx).map_err(|e| cannot(&e))?;
    changes.destroy_bookmarks(&[node.dataset.name]).map_err(|e| cannot(&e))?;
    Ok(0)
}

/// Destroys a file system or volume, with what depends on it as far as that is asked for.
fn head(imported: &Imported, target: &Dataset, how: How, ctx: &mut Context) -> Outcome {
    let name = &target.name;
    let is_pool = |d: &Dataset| !d.name.contains(['/', '@']);
    if is_pool(target) && !how.recurse {
        return fail(format!(
            "cannot destroy '{name}': operation does not apply to pools\n\
             use 'zfs destroy -r {name}' to destroy all datasets in the pool\n\
             use 'zpool destroy {name}' to destroy the pool itself"
        ));
    }
    let cannot = |e: &dyn std::fmt::Display| Stop::Fail(format!("cannot destroy '{name}': {e}"));
    let pool = imported.pool();
    let all = dependents(pool.dsl(), target).map_err(|e| cannot(&e))?;
    if !how.clones {
        let in_the_way = |elsewhere| {
            let names = all.iter().filter(move |d| d.elsewhere == elsewhere);
            names.map(|d| d.dataset.name.as_str()).collect::<Vec<_>>()
        };
        let (below, elsewhere) = (in_the_way(false), in_the_way(true));
        let kind = target.kind.name();
        if !how.recurse && !below.is_empty() {
            return fail(format!(
                "cannot destroy '{name}': {kind} has children\n\
                 use '-r' to destroy the following datasets:\n{}",
                below.join("\n")
            ));
        }
        if how.recurse && !elsewhere.is_empty() {
            return fail(format!(
                "cannot destroy '{name}': {kind} has dependent clones\n\
                 use '-R' to destroy the following datasets:\n{}",
                elsewhere.join("\n")
            ));
        }
    }
    let changes = match how.dry_run {
        true => None,
        false => Some(changes(imported, ctx).map_err(|e| cannot(&e))?),
    };
    let order = all.into_iter().map(|d| d.dataset).chain([target.clone()]);
    let (mut good, mut batch) = (true, Vec::new());
    for dataset in order {
        how.say(&dataset.name, ctx)?;
        let Some(changes) = &changes else { continue };
        if is_pool(&dataset) {
            continue;
        }
        if dataset.kind == DatasetKind::Snapshot {
            batch.push(dataset.name);
            continue;
        }
        // A clone goes before the snapshot that it is of, which goes before what has it.
        let done = destroy_batch(imported, changes, &mut batch, false, ctx)
            && destroy_head(imported, changes, &dataset, how, ctx);
        good &= done;
        if !done && !how.recurse {
            return Ok(1);
        }
    }
    if let Some(changes) = &changes {
        good &= destroy_batch(imported, changes, &mut batch, how.defer, ctx);
    }
    Ok(i32::from(!good))
}

pub(super) fn destroy_head(
    imported: &Imported,
    changes: &Changes,
    dataset: &Dataset,
    how: How,
    ctx: &mut Context,
) -> bool {
    let name = &dataset.name;
    if let Err(e) = changes.permit(&Operation::Destroy { names: std::slice::from_ref(name) }) {
        ctx.complain(format_args!("cannot destroy '{name}': {e}"));
        return false;
    }
    let by = ctx.agent();
    let way = Way { force: how.force, directory: Directory::Removed, by: &*by };
    if let Err(e) = imported.mounts.give_up(name, way) {
        ctx.complain(e);
        return false;
    }
    match changes.destroy(name) {
        Ok(()) | Err(ChangeError::NotFound) => true,
        Err(e) => {
            ctx.complain(format_args!("cannot destroy '{name}': {e}"));
            false
        }
    }
}

/// Destroys snapshots, all or none.
pub(super) fn destroy_batch(
    imported: &Imported,
    changes: &Changes,
    batch: &mut Vec<String>,
    defer: bool,
    ctx: &mut Context,
) -> bool {
    let names = std::mem::take(batch);
    if let Err(e) = changes.permit(&Operation::Destroy { names: &names }) {
        ctx.complain(format_args!("cannot destroy snapshots: {e}"));
        return false;
    }
    if let Err(busy) = imported.mounts.close_snapshots(&names) {
        for name in busy {
            ctx.complain(format_args!("cannot destroy snapshot {name}: dataset is busy"));
        }
        return false;
    }
    let Err(refused) = changes.destroy_snapshots(&names, defer) else {
        imported.mounts.snapshots_changed(&names);
        return true;
    };
    imported.mounts.snapshots_stay(&names);
    for (name, e) in refused {
        match name.is_empty() {
            true => ctx.complain(format_args!("cannot destroy snapshots: {e}")),
            false => ctx.complain(format_args!("cannot destroy snapshot {name}: {e}")),
        }
    }
    false
}

/// Destroys the snapshots that `list` (`a,b%d`) names.
fn snapshots(name: &str, list: &str, how: How, ctx: &mut Context) -> Outcome {
    let node = open(ctx, name, HEADS).map_err(Stop::Fail)?;
    let imported = &node.imported;
    let cannot = |e: &dyn std::fmt::Display| Stop::Fail(format!("cannot destroy '{name}': {e}"));
    let heads = match how.recurse {
        true => family(imported, &node.dataset).map_err(|e| cannot(&e))?,
        false => vec![node.dataset.clone()],
    };
    let pool = imported.pool();
    let dsl = pool.dsl();
    let (mut chosen, mut bytes) = (Vec::new(), 0u64);
    for head in &heads {
        let found = snapshots_of(dsl, head, list).map_err(|e| cannot(&e))?;
        if !how.clones && !how.defer {
            for snapshot in &found {
                let clones = dependents(dsl, snapshot).map_err(|e| cannot(&e))?;
                refuse_clones(snapshot, &clones)?;
            }
        }
        if how.verbose {
            // In order of creation, whatever the list's is.
            let all = dsl.snapshots(head).map_err(|e| cannot(&e))?;
            for snapshot in all.iter().filter(|s| found.iter().any(|f| f.ds_obj == s.ds_obj)) {
                how.say(&snapshot.name, ctx)?;
            }
            let reclaimed = reclaimed(dsl, head, &found).map_err(|e| cannot(&e))?;
            bytes = bytes.saturating_add(reclaimed);
        }
        chosen.extend(found);
    }
    if chosen.is_empty() {
        return fail("could not find any snapshots to destroy; check snapshot names.");
    }
    match (how.verbose, how.parsable, how.dry_run) {
        (false, ..) => {}
        (_, true, _) => writeln!(ctx.out, "reclaim\t{bytes}")?,
        (.., true) => writeln!(ctx.out, "would reclaim {}", nicebytes(bytes))?,
        _ => writeln!(ctx.out, "will reclaim {}", nicebytes(bytes))?,
    }
    if how.dry_run {
        return Ok(0);
    }
    let changes = changes(imported, ctx).map_err(|e| cannot(&e))?;
    let mut batch = Vec::new();
    for snapshot in chosen.iter().filter(|_| how.clones) {
        for dependent in dependents(dsl, snapshot).map_err(|e| cannot(&e))? {
            let dataset = dependent.dataset;
            how.say(&dataset.name, ctx)?;
            if dataset.kind == DatasetKind::Snapshot {
                batch.push(dataset.name);
            } else if !destroy_batch(imported, &changes, &mut batch, false, ctx)
                || !destroy_head(imported, &changes, &dataset, how, ctx)
            {
                return Ok(1);
            }
        }
    }
    if !destroy_batch(imported, &changes, &mut batch, false, ctx) {
        return Ok(1);
    }
    batch.extend(chosen.into_iter().map(|s| s.name));
    Ok(i32::from(!destroy_batch(imported, &changes, &mut batch, how.defer, ctx)))
}

fn refuse_clones(
    snapshot: &Dataset,
    clones: &[cenote_engine::change::Dependent],
) -> Result<(), Stop> {
    if clones.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = clones.iter().map(|d| d.dataset.name.as_str()).collect();
    fail(format!(
        "cannot destroy '{}': snapshot has dependent clones\n\
         use '-R' to destroy the following datasets:\n{}",
        snapshot.name,
        names.join("\n")
    ))
}
