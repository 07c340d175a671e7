//! `zfs set` and `zfs inherit`.

use super::change::{add_property, permit, tell_kept, unrecorded};
use crate::context::Context;
use crate::mounts::moving::{Away, refresh, with_mountpoint_of};
use crate::mounts::table::Way;
use crate::mounts::{Directory, How, NotMounted, mount_one};
use crate::options::{Spec, parse};
use crate::pools::Imported;
use crate::zfs::select::{Kinds, Node, Selection, select};
use cenote_admin::family;
use cenote_command::outcome::{Outcome, fail, usage};
use cenote_dsl::props::is_user;
use cenote_dsl::{Dataset, DatasetKind};
use cenote_engine::change::policy::Operation;
use cenote_engine::change::props::{On, check, find};
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
    let _change = pools.change();
    let (nodes, mut good) = select(ctx, names, &Selection::of(Kinds::DATASET));
    let mut any = false;
    for node in nodes {
        let set = set_one(&node, &list, stay, ctx);
        (good, any) = (good && set, any || set);
        ctx.changed(&node.imported);
    }
    if any {
        tell_kept(&list, ctx);
    }
    Ok(i32::from(!good))
}

fn set_one(node: &Node, list: &[(String, String)], stay: bool, ctx: &mut Context) -> bool {
    let (imported, dataset) = (&node.imported, &node.dataset);
    let name = &dataset.name;
    let pool = imported.pool();
    // Before anything is unmounted.
    let checked = check(list, On::There(pool.dsl(), dataset)).and_then(|_| {
        let properties = list.iter().map(|(property, _)| property.as_str()).collect();
        permit(imported, ctx, &Operation::Set { name, properties })
    });
    let checked = checked.map_err(|e| e.to_string());
    let changes = match checked
        .and_then(|_| unrecorded(imported, ctx).map_err(|_| "dataset is read-only".to_string()))
    {
        Ok(changes) => changes,
        Err(why) => {
            ctx.complain(format_args!("cannot set property for '{name}': {why}"));
            return false;
        }
    };
    let change = |ctx: &mut Context| {
        let refused = match changes.set(name, list) {
            Ok(failed) => failed.into_iter().map(|f| f.error).collect(),
            Err(e) => vec![e],
        };
        for e in &refused {
            ctx.complain(format_args!("cannot set property for '{name}': {e}"));
        }
        refused.is_empty()
    };
    let moved = match Moves::of(imported, dataset, list).filter(|_| !stay) {
        Some(moves) => make(moves, imported, dataset, ctx, change),
        None if change(ctx) => Moved::Well,
        None => Moved::Not,
    };
    let refreshed = refresh(imported, ctx);
    if moved == Moved::Unmounted || !refreshed {
        ctx.complain("property may be set but unable to remount filesystem");
    }
    // The property is set; that not all is mounted is said, and no failure (`set_callback`).
    moved != Moved::Not && refreshed
}

/// Why setting a property has to do with where file systems are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moves {
    /// The mountpoint changes, also of those that inherit it.
    Mountpoint,
    /// A file system that is mounted is not to be mounted any more.
    Hides,
    /// A file system and what is below it belong to a zone, which mounts them itself.
    Zone,
}

impl Moves {
    fn of(imported: &Imported, dataset: &Dataset, list: &[(String, String)]) -> Option<Moves> {
        let sets = |property: &str| {
            let found = list.iter().find(|(n, _)| find(n).is_some_and(|p| p.name == property));
            found.map(|(_, value)| value.as_str())
        };
        if dataset.kind != DatasetKind::Filesystem {
            return None;
        }
        if sets("zoned") == Some("on") {
            return Some(Moves::Zone);
        }
        if sets("mountpoint").is_some() {
            return Some(Moves::Mountpoint);
        }
        let hides = sets("canmount") == Some("off") && imported.mounts.has(&dataset.name);
        hides.then_some(Moves::Hides)
    }

    /// The file systems that are concerned.
    fn concerned(
        self,
        imported: &Imported,
        dataset: &Dataset,
        ctx: &mut Context,
    ) -> Option<Vec<Dataset>> {
        let concerned = match self {
            Moves::Zone => family(imported.pool().dsl(), dataset),
            Moves::Mountpoint | Moves::Hides => with_mountpoint_of(imported, dataset),
        };
        let said = concerned.map_err(|e| {
            ctx.complain(format_args!("cannot list what is in '{}': {e}", dataset.name));
        });
        said.ok()
    }
}

/// How a change went that has to do with where file systems are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    Well,
    /// Nothing has changed.
    Not,
    /// It is made, but not all is mounted that should be.
    Unmounted,
}

/// Makes a change while the file systems that are concerned are not mounted.
fn make(
    moves: Moves,
    imported: &Imported,
    dataset: &Dataset,
    ctx: &mut Context,
    change: impl FnOnce(&mut Context) -> bool,
) -> Moved {
    let Some(concerned) = moves.concerned(imported, dataset, ctx) else { return Moved::Not };
    let Some(mut away) = take_away(imported, &concerned, ctx) else { return Moved::Not };
    let changed = change(ctx);
    if changed {
        away.forget_places(imported);
    }
    let tried = away.ids();
    let mut good = away.back(imported, ctx);
    if !changed {
        return Moved::Not;
    }
    // What was not mounted may have a place now.
    let new = concerned.iter().filter(|d| !tried.contains(&d.ds_obj));
    for d in new.filter(|_| moves == Moves::Mountpoint) {
        let again = imported.pool().dsl().find(&d.name).ok().flatten();
        let Some(d) = again.filter(|d| !imported.mounts.has(&d.name)) else { continue };
        if let Err(NotMounted::Failed(message)) =
            mount_one(imported, &d, false, &How::default(), ctx)
        {
            ctx.complain(message);
            good = false;
        }
    }
    if good { Moved::Well } else { Moved::Unmounted }
}

/// Unmounts file systems. If that cannot be, says so.
fn take_away(imported: &Imported, concerned: &[Dataset], ctx: &mut Context) -> Option<Away> {
    let ids: Vec<u64> = concerned.iter().map(|d| d.ds_obj).collect();
    let by = ctx.agent();
    let way = Way { force: false, directory: Directory::Removed, by: &*by };
    match imported.mounts.take_away(&ids, way) {
        Ok(away) => Some(away),
        Err((away, e)) => {
            ctx.complain(e);
            away.back(imported, ctx);
            None
        }
    }
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
    let _change = pools.change();
    let what = Selection { recurse, ..Selection::of(Kinds::DATASET) };
    let (nodes, mut good) = select(ctx, names, &what);
    for node in nodes {
        let applies = native.is_none_or(|p| {
            p.applies_to.contains(node.dataset.kind) && node.dataset.kind != DatasetKind::Snapshot
        });
        if applies || !recurse {
            good &= inherit_one(&node, property, received, ctx);
            ctx.changed(&node.imported);
        }
    }
    Ok(i32::from(!good))
}

fn inherit_one(node: &Node, property: &str, received: bool, ctx: &mut Context) -> bool {
    let (imported, name) = (&node.imported, &node.dataset.name);
    let changes = match unrecorded(imported, ctx) {
        Ok(changes) => changes,
        Err(why) => {
            ctx.complain(format_args!("cannot inherit {property} for '{name}': {why}"));
            return false;
        }
    };
    if let Err(e) = changes.permit(&Operation::Set { name, properties: vec![property] }) {
        ctx.complain(format_args!("cannot inherit {property} for '{name}': {e}"));
        return false;
    }
    let change = |ctx: &mut Context| match changes.inherit(name, property, received) {
        Ok(()) => true,
        Err(e) => {
            ctx.complain(format_args!("cannot inherit {property} for '{name}': {e}"));
            false
        }
    };
    let moves = match find(property).map(|p| p.name) {
        _ if node.dataset.kind != DatasetKind::Filesystem => None,
        Some("mountpoint") => Some(Moves::Mountpoint),
        Some("zoned") => Some(Moves::Zone),
        _ => None,
    };
    let good = match moves {
        Some(moves) => make(moves, imported, &node.dataset, ctx, change) != Moved::Not,
        None => change(ctx),
    };
    refresh(imported, ctx) && good
}
