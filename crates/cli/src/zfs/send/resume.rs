//! A stream that goes on where a receiver was interrupted: `-t` (`zfs_send_resume`). What it has of the stream: `-S`
//! (`zfs_send_saved`).
//!
//! The token names the snapshot; its guid counts, for it may have another name by now. It is sought under its name, then
//! among the snapshots of its dataset, then in the whole pool; so is the snapshot or bookmark that the stream starts from.
//! The stream of a file system itself has the guid of that. Whoever resumes it sees to it that nothing was changed since.

use super::Flags;
use super::report::{self, Told};
use super::stream::{Stream, failure, hold};
use crate::context::Context;
use crate::mounts::moving::family;
use crate::pools::Imported;
use crate::zfs::select::{Kinds, open};
use cenote_command::outcome::{Outcome, Stop, fail};
use cenote_dsl::Dataset;
use cenote_dsl::human::nicenum;
use cenote_dsl::send::{Resume, SendError};
use cenote_format::stream::token::Token;
use std::sync::Arc;

fn cannot<T>(why: impl std::fmt::Display) -> Result<T, Stop> {
    fail(format!("cannot resume send: {why}"))
}

pub(super) fn run(text: &str, flags: &Flags, ctx: &mut Context) -> Outcome {
    let token = match Token::decode(text) {
        Ok(token) => token,
        Err(e) => return cannot(format_args!("resume token is corrupt ({e})")),
    };
    let flags = wanted(&token, flags, ctx)?;
    let name = &token.to_name;
    let pool = name.split(['/', '@']).next().unwrap_or_default();
    let Some(imported) = ctx.pools.get(pool) else {
        return cannot(format_args!("'{name}' used in the initial send no longer exists"));
    };
    let Some(to) = target(&imported, name, token.to_guid)? else {
        return cannot(match open(ctx, name, Kinds::DATASET) {
            Ok(_) => format!("'{name}' is no longer the same snapshot used in the initial send"),
            Err(_) => format!("'{name}' used in the initial send no longer exists"),
        });
    };
    let from = start(&imported, &token)?;
    send(&imported, &to.name, (&to, from.as_ref()), &flags, ctx)
}

/// Sends what an interrupted receive into `name` left.
pub(super) fn saved(name: &str, flags: &Flags, ctx: &mut Context) -> Outcome {
    let node = open(ctx, name, super::many::HEADS).map_err(Stop::Fail)?;
    let left = node.imported.pool().dsl().saved(&node.dataset).map_err(unreadable)?;
    let Some((dataset, token)) = left else {
        return Err(failure(name, SendError::NothingSaved));
    };
    // It is sent from its beginning.
    let token = Token { object: 0, offset: 0, bytes: 0, to_name: name.into(), ..token };
    let flags = wanted(&token, flags, ctx)?;
    let from = start(&node.imported, &token)?;
    send(&node.imported, name, (&dataset, from.as_ref()), &flags, ctx)
}

/// What the stream of a token is made of, which is told if it is asked for.
fn wanted(token: &Token, flags: &Flags, ctx: &mut Context) -> Result<Flags, Stop> {
    if flags.verbosity > 0 {
        let lines = report::lines(flags, ctx);
        write!(lines, "resume token contents:\n{}", token.to_list())?;
    }
    if token.redact_snaps.is_some() || token.book_redact_snaps.is_some() {
        return cannot("redacted streams are not supported");
    }
    let mut flags = flags.clone();
    let options = &mut flags.options;
    options.large_blocks |= token.large_blocks || token.raw;
    options.embedded |= token.embedded || token.raw;
    options.compressed |= token.compressed || token.raw;
    let (object, offset) = (token.object, token.offset);
    options.resume = (object != 0 || offset != 0).then_some(Resume { object, offset });
    Ok(flags)
}

/// Sends `to` under the name `name`.
fn send(
    imported: &Arc<Imported>,
    name: &str,
    (to, from): (&Dataset, Option<&Dataset>),
    flags: &Flags,
    ctx: &mut Context,
) -> Outcome {
    let options = flags.options_in(imported);
    let mut size = 0;
    if flags.verbosity > 0 {
        let estimate = imported.pool().dsl().send_estimate(to, from, options);
        size = estimate.map_err(|e| failure(name, e))?;
        if flags.progress || flags.parsable {
            report::estimate(name, from.map(|f| f.name.as_str()), size, flags, ctx)?;
            report::total(&nicenum(size), size, flags, ctx)?;
        }
    }
    if flags.dry_run {
        return Ok(0);
    }
    let held = hold(imported, to, ctx);
    let (_hold, to) =
        held.map_err(|why| Stop::Fail(format!("warning: cannot send '{name}': {why}")))?;
    let told = Told { name, size, verbosity: flags.verbosity };
    Stream { imported, to: &to, from, options, told }.write(flags, ctx)?;
    Ok(0)
}

fn unreadable(e: cenote_dmu::Error) -> Stop {
    Stop::Fail(format!("cannot resume send: {e}"))
}

/// The snapshot of a guid (`guid_to_name`).
fn snapshot(imported: &Imported, name: &str, guid: u64) -> Result<Option<Dataset>, Stop> {
    let pool = imported.pool();
    let dsl = pool.dsl();
    if let Some(found) = dsl.find(name).map_err(unreadable)?.filter(|d| d.ds.guid == guid) {
        return Ok(Some(found));
    }
    for head in places(imported, name)? {
        let snapshots = dsl.snapshots(&head).map_err(unreadable)?;
        if let Some(found) = snapshots.into_iter().find(|s| s.ds.guid == guid) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// What was sent: the snapshot of a guid, or the head.
fn target(imported: &Imported, name: &str, guid: u64) -> Result<Option<Dataset>, Stop> {
    if let Some(found) = snapshot(imported, name, guid)? {
        return Ok(Some(found));
    }
    Ok(places(imported, name)?.into_iter().find(|head| head.ds.guid == guid))
}

/// The snapshot or bookmark that the stream of a token starts from; `None`: it starts from nothing.
fn start(imported: &Imported, token: &Token) -> Result<Option<Dataset>, Stop> {
    let Some(guid) = token.from_guid.filter(|guid| *guid != 0) else { return Ok(None) };
    let name = &token.to_name;
    if let Some(found) = snapshot(imported, name, guid)? {
        return Ok(Some(found));
    }
    let pool = imported.pool();
    for head in places(imported, name)? {
        let bookmarks = pool.dsl().bookmarks(&head).map_err(unreadable)?;
        let same = |b: &Dataset| b.bookmark.is_some_and(|phys| phys.guid == guid);
        if let Some(found) = bookmarks.into_iter().find(same) {
            return Ok(Some(found));
        }
    }
    cannot(format_args!("incremental source {guid:#x} no longer exists"))
}

/// The heads that may have a snapshot, the likeliest first.
fn places(imported: &Imported, name: &str) -> Result<Vec<Dataset>, Stop> {
    let pool = imported.pool();
    let of = name.split('@').next().unwrap_or_default();
    let first = pool.dsl().find(of).map_err(unreadable)?;
    let root = pool.dsl().root().map_err(unreadable)?;
    let all = family(imported, &root).map_err(unreadable)?;
    Ok(first.into_iter().chain(all).filter(Dataset::is_head).collect())
}
