//! `zfs holds`.

use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, Selection, select};
use cenote_command::clock;
use cenote_command::outcome::{Outcome, usage};
use std::ffi::OsString;

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
            match node.imported.pool().dsl().holds(&node.dataset) {
                Ok(tags) => {
                    found = true;
                    let name = &node.dataset.name;
                    holds.extend(tags.into_iter().map(|(tag, time)| (name.clone(), tag, time)));
                }
                Err(e) => {
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
