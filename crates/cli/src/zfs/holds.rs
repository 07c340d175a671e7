//! `zfs hold`, `zfs holds`, `zfs release`.

use super::change::changes;
use crate::context::Context;
use crate::mounts::moving::family;
use crate::options::{Spec, parse};
use crate::pools::Imported;
use crate::zfs::select::{Kinds, Selection, Unread, open, select};
use cenote_command::clock;
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_engine::change::ChangeError;
use cenote_engine::change::policy::Operation;
use std::ffi::OsString;
use std::sync::Arc;

const RECURSIVE: Spec = Spec { short: "r", refused: "", refused_long: &[] };
const HEADS: Kinds = Kinds::FILESYSTEM.with(Kinds::VOLUME);
const SPEC: Spec = Spec { short: "rHp", refused: "", refused_long: &[] };

/// Runs `zfs holds`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let (recursive, scripted, parsable) = (has('r'), has('H'), has('p'));
    if parsed.operands.is_empty() {
        return usage("");
    }
    let mut kinds = Kinds::SNAPSHOT;
    if recursive {
        kinds = Kinds::DATASET;
    }
    let what = Selection { recurse: recursive, ..Selection::of(kinds) };
    let mut holds: Vec<(String, String, u64)> = Vec::new();
    let (mut good, mut found) = (true, false);
    for name in parsed.names() {
        let Some((dataset, snapshot)) = name.split_once('@') else {
            ctx.complain(format_args!("'{name}' is not a snapshot"));
            good = false;
            continue;
        };
        let root = if recursive { dataset } else { &name };
        let (nodes, opened) = select(ctx, &[root.to_string()], &what);
        good &= opened;
        let at = format!("@{snapshot}");
        for node in nodes.iter().filter(|n| n.dataset.name.ends_with(&at)) {
            match node.ask(cenote_dsl::Dsl::holds) {
                Ok(tags) => {
                    found = true;
                    let name = &node.dataset.name;
                    holds.extend(tags.into_iter().map(|(tag, time)| (name.clone(), tag, time)));
                }
                Err(Unread::Gone) => {}
                Err(Unread::Error(e)) => {
                    ctx.complain(format_args!("cannot get holds of '{}': {e}", node.dataset.name));
                    good = false;
                }
            }
        }
    }
    print(&holds, scripted, parsable, ctx)?;
    if !found {
        ctx.complain("no datasets available");
    }
    Ok(i32::from(!good))
}

fn print(
    holds: &[(String, String, u64)],
    scripted: bool,
    parsable: bool,
    ctx: &mut Context,
) -> std::io::Result<()> {
    let width =
        |f: &dyn Fn(&(String, String, u64)) -> usize| holds.iter().map(f).max().unwrap_or(0);
    let (names, tags) = (width(&|h| h.0.chars().count()), width(&|h| h.1.chars().count()));
    if !scripted {
        writeln!(ctx.out, "{:<names$}  {:<tags$}  TIMESTAMP", "NAME", "TAG")?;
    }
    for (name, tag, time) in holds {
        let when = match parsable {
            true => time.to_string(),
            false => {
                let seconds = i64::try_from(*time).unwrap_or(i64::MAX);
                clock::format(&ctx.caller, seconds, "%a %b %e %H:%M %Y")
            }
        };
        match scripted {
            true => writeln!(ctx.out, "{name}\t{tag}\t{when}")?,
            false => writeln!(ctx.out, "{name:<names$}  {tag:<tags$}  {when}")?,
        }
    }
    Ok(())
}

/// What `zfs hold` and `zfs release` do to the snapshots of an operand.
type Act = fn(&Imported, &[String], &str, &Context) -> Result<(), (Option<String>, ChangeError)>;

/// Runs `zfs hold`.
pub fn hold(args: &[OsString], ctx: &mut Context) -> Outcome {
    each(args, "hold snapshot", ctx, |imported, names, tag, ctx| {
        let changes = changes(imported, ctx).map_err(|e| (None, ChangeError::Name(e)))?;
        changes.hold(names, tag)
    })
}

/// Runs `zfs release`.
pub fn release(args: &[OsString], ctx: &mut Context) -> Outcome {
    each(args, "release hold from snapshot", ctx, |imported, names, tag, ctx| {
        let changes = changes(imported, ctx).map_err(|e| (None, ChangeError::Name(e)))?;
        changes.permit(&Operation::Release { names }).map_err(|e| (None, e))?;
        // The last hold of a snapshot that is marked for destruction takes it along.
        let marked = |name: &&String| is_marked(imported, name);
        let marked: Vec<String> = names.iter().filter(marked).cloned().collect();
        if let Err(busy) = imported.mounts.close_snapshots(&marked) {
            return Err((busy.into_iter().next(), ChangeError::Busy));
        }
        match changes.release(names, tag) {
            Ok(gone) => {
                let left: Vec<String> =
                    marked.into_iter().filter(|name| !gone.contains(name)).collect();
                imported.mounts.snapshots_stay(&left);
                imported.mounts.snapshots_changed(&gone);
                Ok(())
            }
            Err(e) => {
                imported.mounts.snapshots_stay(&marked);
                Err(e)
            }
        }
    })
}

fn is_marked(imported: &Imported, name: &str) -> bool {
    let found = imported.pool().dsl().find(name).ok().flatten();
    found.is_some_and(|d| d.ds.flags & cenote_format::dsl::DS_FLAG_DEFER_DESTROY != 0)
}

/// Does `act` for each operand, which OpenZFS takes one by one; what fails is said, the others go on.
fn each(args: &[OsString], what: &str, ctx: &mut Context, act: Act) -> Outcome {
    let parsed = parse(args, RECURSIVE)?;
    let recursive = !parsed.options.is_empty();
    let operands = parsed.names();
    let Some((tag, snapshots)) = operands.split_first().filter(|(_, s)| !s.is_empty()) else {
        return usage("");
    };
    if what.starts_with("hold") && tag.starts_with('.') {
        return usage("tag may not start with '.'");
    }
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change();
    let mut good = true;
    for operand in snapshots {
        let Some((head, short)) = operand.split_once('@') else {
            ctx.complain(format_args!("'{operand}' is not a snapshot"));
            good = false;
            continue;
        };
        let node = match open(ctx, head, HEADS) {
            Ok(node) => node,
            Err(why) => {
                ctx.complain(why);
                good = false;
                continue;
            }
        };
        let imported = &node.imported;
        let cannot = |name: &str, e: &dyn std::fmt::Display| format!("cannot {what} '{name}': {e}");
        let failed = |e| Stop::Fail(cannot(operand, &e));
        let mut names = vec![operand.clone()];
        if recursive {
            let all = family(imported, &node.dataset).map_err(failed)?;
            names = all.iter().map(|d| format!("{}@{short}", d.name)).collect();
        }
        // One without the tag is passed over, if another has it.
        let (pool, lacks) = (imported.pool(), recursive && what.starts_with("release"));
        let (mut found, mut without) = (Vec::new(), false);
        for name in names {
            let Some(snapshot) = pool.dsl().find(&name).map_err(failed)? else { continue };
            let held = !lacks
                || pool.dsl().holds(&snapshot).map_err(failed)?.iter().any(|(t, _)| t == tag);
            without |= !held;
            found.extend(held.then_some(name));
        }
        let done = match found.is_empty() {
            true if without => Err((None, ChangeError::Crosses("no such tag on this dataset"))),
            true => Err((None, ChangeError::NotFound)),
            false => act(imported, &found, tag, ctx),
        };
        if let Err((name, e)) = done {
            ctx.complain(cannot(name.as_deref().unwrap_or(operand), &e));
            good = false;
        }
    }
    Ok(i32::from(!good))
}
