//! `zfs rename`.

use super::change::changes;
use super::create::ancestors;
use crate::context::Context;
use crate::mounts::Directory;
use crate::mounts::moving::{Away, family};
use crate::mounts::table::Way;
use crate::options::{Spec, parse};
use crate::pools::Imported;
use crate::zfs::select::{Kinds, Node, open};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::DatasetKind;
use cenote_engine::change::names::{Expected, check_new};
use cenote_engine::change::policy::Operation;
use cenote_engine::change::{ChangeError, Changes};
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "pruf", refused: "", refused_long: &[] };

/// Runs `zfs rename`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let count = |letter| parsed.options.iter().filter(|o| o.letter == letter).count();
    let (parents, recursive) = (count('p'), count('r') > 0);
    let (stay, force) = (count('u') > 0, count('f') > 0);
    let names = parsed.names();
    let (from, to) = match names.as_slice() {
        [] => return usage("missing source dataset argument"),
        [_] => return usage("missing target dataset argument"),
        [from, to] => (from, to),
        _ => return usage("too many arguments"),
    };
    if recursive && parents > 0 {
        return usage("-p and -r options are mutually exclusive");
    }
    if stay && parents > 0 {
        return usage("-u and -p options are mutually exclusive");
    }
    if recursive && !from.contains('@') {
        return usage("source dataset for recursive rename must be a snapshot");
    }
    let kinds = match (stay, parents > 0) {
        (true, _) => Kinds::FILESYSTEM,
        (_, true) => Kinds::FILESYSTEM.with(Kinds::VOLUME),
        _ => Kinds::DATASET,
    };
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change();
    let node = open(ctx, from, kinds).map_err(Stop::Fail)?;
    let cannot = |e: String| Stop::Fail(format!("cannot rename '{from}': {e}"));
    let changes = changes(&node.imported, ctx).map_err(cannot)?;
    if parents > 0 && check_new(to, Expected::HEAD).is_ok() {
        ancestors(to, parents > 1, &node.imported, &changes, ctx)?;
    }
    if from == to {
        return Ok(0);
    }
    match node.dataset.kind {
        DatasetKind::Snapshot => snapshot(&node, &changes, to, recursive),
        _ => move_head(&node, &changes, to, (stay, force), ctx),
    }
}

fn snapshot(node: &Node, changes: &Changes, to: &str, recursive: bool) -> Outcome {
    let (head, from) = (node.dataset.head_name(), &node.dataset.name);
    let short = match to.split_once('@') {
        None => to,
        Some((other, short)) if other.is_empty() || other == head => short,
        Some(_) => {
            let why = "snapshots must be part of same dataset";
            return fail(format!("cannot rename to '{to}': {why}"));
        }
    };
    let full = format!("{head}@{short}");
    if let Err(e) = check_new(&full, Expected::SNAPSHOT) {
        return fail(format!("cannot rename to '{full}': {e}"));
    }
    rename_snapshot(&node.imported, changes, from, short, recursive)
}

/// Gives a snapshot another short name, with `recursive` those of the same name below its dataset as well.
pub(super) fn rename_snapshot(
    imported: &Imported,
    changes: &Changes,
    from: &str,
    short: &str,
    recursive: bool,
) -> Outcome {
    let (head, old) = from.split_once('@').unwrap_or((from, ""));
    match changes.rename_snapshot(from, short, recursive) {
        Ok(()) => {
            let below = |d: &str| d.strip_prefix(head).is_some_and(|rest| rest.starts_with('/'));
            let mounted = imported.mounts.list().into_iter().map(|m| m.dataset);
            let heads = mounted.filter(|d| d == head || (recursive && below(d)));
            let names: Vec<String> =
                heads.flat_map(|h| [format!("{h}@{old}"), format!("{h}@{short}")]).collect();
            imported.mounts.renamed_snapshot(head, recursive, old, short);
            imported.mounts.snapshots_changed(&names);
            Ok(0)
        }
        Err((name, ChangeError::Exists)) if recursive => fail(format!(
            "cannot rename '{name}': a child dataset already has a snapshot with the new name"
        )),
        Err((name, e)) => fail(format!("cannot rename '{name}': {e}")),
    }
}

/// Gives a file system or volume another name, with all that is below it. `stay`: what is mounted stays where it is;
/// `force`: it is unmounted by force.
pub(super) fn move_head(
    node: &Node,
    changes: &Changes,
    to: &str,
    (stay, force): (bool, bool),
    ctx: &mut Context,
) -> Outcome {
    let (imported, from) = (&node.imported, &node.dataset.name);
    if !to.contains('/') && check_new(to, Expected::HEAD).is_ok() {
        return fail(format!("cannot create '{to}': missing dataset name"));
    }
    changes.check_rename(from, to).map_err(|e| match e {
        ChangeError::NoParent | ChangeError::ParentKind | ChangeError::NoPool(_) => {
            Stop::Fail(format!("cannot create '{to}': {e}"))
        }
        e => Stop::Fail(format!("cannot rename to '{to}': {e}")),
    })?;
    let cannot = |e: &dyn std::fmt::Display| Stop::Fail(format!("cannot rename '{from}': {e}"));
    changes.permit(&Operation::Rename { from, to }).map_err(|e| cannot(&e))?;
    let pool = imported.pool();
    let mountpoint = pool.dsl().get(&node.dataset, "mountpoint").map_err(|e| cannot(&e))?;
    let stay = stay || mountpoint.is_some_and(|v| matches!(v.exact.as_str(), "legacy" | "none"));
    let mut away = Away::default();
    if !stay {
        let all = family(imported, &node.dataset).map_err(|e| cannot(&e))?;
        let ids: Vec<u64> = all.iter().map(|d| d.ds_obj).collect();
        let by = ctx.agent();
        let way = Way { force, directory: Directory::Removed, by: &*by };
        away = match imported.mounts.take_away(&ids, way) {
            Ok(away) => away,
            Err((away, e)) => {
                ctx.complain(e);
                away.back(imported, ctx);
                return Ok(1);
            }
        };
    }
    let done = changes.rename(from, to);
    if done.is_ok() {
        imported.mounts.renamed(from, to);
        away.forget_places(imported);
    }
    let back = away.back(imported, ctx);
    done.map_err(|e| cannot(&e))?;
    Ok(i32::from(!back))
}
