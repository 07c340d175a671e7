//! `zfs hold`, `zfs holds`, `zfs release` (`zfs_do_hold`, `zfs_do_holds`, `zfs_do_release`).

use super::session::quietly;
use crate::context::Context;
use crate::options::{Parsed, Spec, parse};
use crate::zfs::select::{Kinds, Selection, Unread, pool_of, select};
use cenote_admin::{Error, Session};
use cenote_command::clock;
use cenote_command::outcome::{Outcome, Stop, usage};
use std::ffi::OsString;
use std::sync::Arc;

const RECURSIVE: Spec = Spec { short: "r", refused: "", refused_long: &[] };
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

/// What `zfs hold` and `zfs release` do to an operand: its snapshot, the tag, whether with those below.
type Act = fn(&mut Session<'_>, &str, &str, bool) -> Result<(), Error>;

/// Runs `zfs hold`.
pub fn hold(args: &[OsString], ctx: &mut Context) -> Outcome {
    let (parsed, tag) = operands(args)?;
    if tag.starts_with('.') {
        return usage("tag may not start with '.'");
    }
    each(&parsed, &tag, ctx, |session, name, tag, recursive| session.hold(name, tag, recursive))
}

/// Runs `zfs release`.
pub fn release(args: &[OsString], ctx: &mut Context) -> Outcome {
    let (parsed, tag) = operands(args)?;
    each(&parsed, &tag, ctx, |session, name, tag, recursive| session.release(name, tag, recursive))
}

/// The command line, and the tag in it.
fn operands(args: &[OsString]) -> Result<(Parsed, String), Stop> {
    let parsed = parse(args, RECURSIVE)?;
    match parsed.names().split_first() {
        Some((tag, snapshots)) if !snapshots.is_empty() => Ok((parsed, tag.clone())),
        _ => usage(""),
    }
}

/// Does `act` for each operand, which OpenZFS takes one by one; what fails is said, the others go on.
fn each(parsed: &Parsed, tag: &str, ctx: &mut Context, act: Act) -> Outcome {
    let recursive = !parsed.options.is_empty();
    let pools = Arc::clone(&ctx.pools);
    let mut good = true;
    for operand in parsed.names().iter().skip(1) {
        let _change = pools.change(operand);
        let Some((head, _)) = operand.split_once('@') else {
            ctx.complain(format_args!("'{operand}' is not a snapshot"));
            good = false;
            continue;
        };
        let done = match pool_of(ctx, head, Kinds::HEAD) {
            Ok(imported) => {
                let done = quietly(&imported, ctx, |session| act(session, operand, tag, recursive));
                done.map_err(|e| e.to_string())
            }
            Err(why) => Err(why),
        };
        if let Err(why) = done {
            ctx.complain(why);
            good = false;
        }
    }
    Ok(i32::from(!good))
}
