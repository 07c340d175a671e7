//! `zpool export` (`zpool_do_export`).

use crate::cachefile;
use crate::context::Context;
use crate::mounts::Directory;
use crate::mounts::table::Way;
use crate::options::{Spec, parse};
use crate::pools::{End, Imported};
use crate::zpool::select::select;
use cenote_command::outcome::{Outcome, usage};
use cenote_daemon::each::{PATIENCE, each};
use cenote_daemon::injections::Moment;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Instant;

const SPEC: Spec = Spec { short: "aFf", refused: "", refused_long: &[] };

/// Runs `zpool export`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let all = has('a');
    let end = if has('F') { End::InUse } else { End::Exported };
    let force = has('f') || end == End::InUse;
    let names = parsed.names();
    if all && !names.is_empty() {
        return usage("too many arguments");
    }
    if !all && names.is_empty() {
        return usage("missing pool argument");
    }
    let pools = Arc::clone(&ctx.pools);
    if force {
        // What a suspended pool holds is given up first: commands that wait for it end then, and may have the lock.
        let named = |imported: &Arc<Imported>| all || names.iter().any(|n| n == imported.name());
        let all = pools.all();
        let given_up = all.iter().filter(|i| named(i) && read_by(i).is_none());
        for engine in given_up.filter_map(|i| i.engine()) {
            engine.abandon();
        }
    }
    let (found, good) = select(ctx, &names);
    // By name: the devices of each are let go of, however long another one takes.
    let found: Vec<String> = found.iter().map(|imported| imported.name().to_string()).collect();
    let export_one = |name: &String, own: &mut Context| export_alone(name, (all, force), end, own);
    let done = match all {
        true => each(ctx, ("exporting", &found, PATIENCE), String::as_str, export_one),
        false => found.iter().map(|name| export_one(name, ctx)).collect(),
    };
    Ok(i32::from(!good || !done.into_iter().all(|done| done)))
}

/// Exports a pool with no other command for it meanwhile. False: it stays, and why was said.
fn export_alone(name: &str, (all, force): (bool, bool), end: End, ctx: &mut Context) -> bool {
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change(name);
    let closed = match pools.get(name) {
        Some(imported) => export(&imported, force, end, ctx).map(|()| imported),
        // Another command has exported it.
        None if all => return true,
        None => Err(format!("cannot open '{name}': no such pool")),
    };
    match closed {
        Ok(imported) => {
            pools.remove(name);
            // As after a crash, cache files still name it (`hardforce`).
            if end == End::Exported {
                cachefile::forget(&pools, &imported);
            }
            true
        }
        Err(message) => {
            ctx.complain(message);
            false
        }
    }
}

/// What reads a dataset of the pool. Holds of mounts do not count: they end with the mounts.
fn read_by(imported: &Imported) -> Option<String> {
    imported.engine().and_then(|engine| engine.reader())
}

fn export(imported: &Imported, force: bool, end: End, ctx: &Context) -> Result<(), String> {
    let cannot = |why: &str| Err(format!("cannot export '{}': {why}", imported.name()));
    if let Some(reader) = read_by(imported) {
        return cannot(&format!("pool is busy: {reader}"));
    }
    if imported.suspended() && !force {
        return cannot("pool I/O is currently suspended");
    }
    let injections = &ctx.pools.injections;
    injections.clear_faults(imported.name());
    let (by, since) = (ctx.agent(), Instant::now());
    let way = Way { force, directory: Directory::Inherited, by: &*by };
    imported.mounts.close(way).map_err(|e| e.to_string())?;
    injections.pause(imported.name(), Moment::Export, since, &|| ctx.cancelled());
    injections.clear_faults(imported.name());
    if imported.suspended() && force {
        // Nothing more can be written: it stays as the last transaction group left it.
        return Ok(());
    }
    imported.record(ctx);
    imported.close(end)
}
