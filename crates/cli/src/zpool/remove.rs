//! `zpool remove` (`zpool_do_remove`, `zpool_vdev_remove`): spares, cache devices and vdevs for intent logs leave a pool at
//! once. What vdevs hold that hold data is copied to others before.

use crate::access::may_change;
use crate::cachefile;
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::pools::{Imported, reason};
use crate::zpool::select::{guid_called, open};
use crate::zpool::wait;
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::human::nicenum;
use cenote_engine::RemoveError;
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "npsw", refused: "", refused_long: &[] };

/// Runs `zpool remove`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let names = parsed.names();
    let Some((name, devices)) = names.split_first() else {
        return usage("missing pool name argument");
    };
    let pools = Arc::clone(&ctx.pools);
    // What only shows something keeps no other command waiting.
    let change = (!has('n')).then(|| pools.change(name));
    let imported = open(ctx, name).map_err(Stop::Fail)?;
    if has('s') && has('n') {
        ctx.complain("stop request ignored");
        return Ok(0);
    }
    if has('s') {
        if !devices.is_empty() {
            return usage("too many arguments");
        }
        if has('w') {
            return usage("invalid option combination: -w cannot be used with -s");
        }
        may_change(ctx).map_err(|why| Stop::Fail(format!("cannot cancel removal: {why}")))?;
        let engine = imported.writable().map_err(Stop::Fail)?;
        return match engine.cancel_removal() {
            Ok(()) => {
                ctx.changed(&imported);
                Ok(0)
            }
            Err(RemoveError::Engine(e)) => fail(format!("cannot cancel removal: {}", reason(&e))),
            Err(e) => fail(format!("cannot cancel removal: {e}")),
        };
    }
    if devices.is_empty() {
        return usage("missing device");
    }
    let mut good = true;
    for device in devices {
        let done = match has('n') {
            true => memory(&imported, device, has('p'), ctx),
            false => may_change(ctx).and_then(|()| remove(&imported, device)).map_err(Stop::Fail),
        };
        match done {
            Ok(()) => {}
            Err(Stop::Fail(why)) => {
                ctx.complain(format_args!("cannot remove {device}: {why}"));
                good = false;
            }
            Err(stop) => return Err(stop),
        }
    }
    if change.is_some() && may_change(ctx).is_ok() {
        if good {
            ctx.changed(&imported);
        }
        cachefile::update(&pools);
    }
    drop(change);
    if good && has('w') && !has('n') {
        return wait::for_removal(&imported, ctx);
    }
    Ok(i32::from(!good))
}

/// Says about how much memory the mapping of a removed vdev would take (`zpool_vdev_indirect_size`): devices without blocks of
/// the pool leave none.
fn memory(imported: &Imported, device: &str, exact: bool, ctx: &mut Context) -> Result<(), Stop> {
    let guid = guid_called(imported, device);
    let guid = guid.ok_or_else(|| Stop::Fail(RemoveError::NoDevice.to_string()))?;
    let size = imported.engine().and_then(|engine| engine.mapping_size(guid)).unwrap_or(0);
    match exact {
        true => writeln!(ctx.out, "{device} {size}")?,
        false => {
            let size = nicenum(size);
            writeln!(ctx.out, "Memory that will be used after removing {device}: {size}")?;
        }
    }
    Ok(())
}

/// Removes a device; the error is what comes after `cannot remove …: `.
fn remove(imported: &Imported, device: &str) -> Result<(), String> {
    let guid = guid_called(imported, device).ok_or_else(|| RemoveError::NoDevice.to_string())?;
    imported.writable()?.remove(guid).map_err(|e| match e {
        RemoveError::Engine(e) => reason(&e),
        e => e.to_string(),
    })
}
