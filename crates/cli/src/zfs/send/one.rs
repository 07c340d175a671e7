//! One stream: full, or from a snapshot or bookmark; with `-p`, `-b` or `-h` in a package (`zfs_send_one`).

use super::report::{self, Told};
use super::stream::{Stream, failure, hold, put};
use super::{Flags, many};
use crate::context::Context;
use crate::zfs::select::{Kinds, open};
use cenote_command::outcome::{Outcome, Stop, fail};
use cenote_dsl::human::nicenum;
use cenote_dsl::send::SendError;
use cenote_format::stream::package;

/// Printed where `-i` names neither snapshot nor bookmark.
const ASSUMED: &str = "Warning: incremental source didn't specify type, assuming snapshot. Use '@' or '#' prefix \
                       to avoid ambiguity.";

pub(super) fn run(
    name: &str,
    from: Option<String>,
    mut flags: Flags,
    ctx: &mut Context,
) -> Outcome {
    let of = name.split('@').next().unwrap_or_default();
    let from = from.map(|from| {
        let from = match from.contains(['@', '#']) {
            true => from,
            false => {
                ctx.complain(ASSUMED);
                format!("@{from}")
            }
        };
        // `@a` and `#a` are of the same dataset.
        if from.starts_with(['@', '#']) { format!("{of}{from}") } else { from }
    });
    let to = open(ctx, name, Kinds::DATASET).map_err(Stop::Fail)?;
    let start = Kinds::SNAPSHOT.with(Kinds::BOOKMARK);
    let from = match &from {
        Some(from) => Some(open(ctx, from, start).map_err(Stop::Fail)?),
        None => None,
    };
    let imported = &to.imported;
    if from.as_ref().is_some_and(|from| from.imported.guid() != imported.guid()) {
        return Err(failure(name, SendError::NotEarlier));
    }
    let from = from.map(|node| node.dataset);
    let dsl = imported.pool();
    let dsl = dsl.dsl();
    let options = flags.options_in(imported);
    if flags.is_packed() {
        let Some((head, short)) = name.split_once('@') else {
            return fail(format!("warning: cannot send '{name}': backup failed"));
        };
        flags.wanted.to = short.to_string();
        let head = open(ctx, head, many::HEADS).map_err(Stop::Fail)?.dataset;
        let list = dsl.gather(&head, &flags.wanted, &mut |line| ctx.complain(line));
        let list = list.map_err(|e| failure(name, e))?;
        if !flags.dry_run {
            put(&many::head(name, &flags, Some(&list))?, ctx)?;
        }
    }
    let mut size = 0;
    if flags.verbosity > 0 {
        let estimate = dsl.send_estimate(&to.dataset, from.as_ref(), options);
        size = estimate.map_err(|e| failure(name, e))?;
        if flags.progress || flags.parsable {
            report::estimate(name, from.as_ref().map(|f| f.name.as_str()), size, &flags, ctx)?;
            report::total(&nicenum(size), size, &flags, ctx)?;
        }
    }
    if flags.dry_run {
        return Ok(0);
    }
    let held = hold(imported, &to.dataset, ctx);
    let (_hold, to) =
        held.map_err(|why| Stop::Fail(format!("warning: cannot send '{name}': {why}")))?;
    let told = Told { name, size, verbosity: flags.verbosity };
    Stream { imported, to: &to, from: from.as_ref(), options, told }.write(&flags, ctx)?;
    if flags.is_packed() {
        put(&package::END, ctx)?;
    }
    Ok(0)
}
