//! `zpool online`, `zpool offline`, `zpool clear` and `zpool reopen` (`zpool_do_online`, `zpool_do_offline`, `zpool_do_clear`,
//! `zpool_do_reopen`): devices that go out of use and come back.
//!
//! What a device missed meanwhile stays on record, and is read from others.

use crate::cachefile;
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::pools::{Imported, Opened, reason};
use crate::zpool::select::{find_vdev, guid_called, open, select};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_engine::{Engine, OfflineError, TakeOut};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::config;
use cenote_pool::reopen::Restore;
use cenote_vdev::{Vdev, VdevState};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Instant;

/// The guids of the leaves of `vdev`.
fn leaves(vdev: &Vdev) -> Vec<u64> {
    match vdev.is_leaf() {
        true => vec![vdev.guid()],
        false => vdev.children().iter().flat_map(|c| leaves(c)).collect(),
    }
}

/// Brings leaves back. The error is what comes after `cannot …: `.
fn restore(imported: &Imported, leaves: &[u64], what: Restore) -> Result<(), String> {
    match imported.opened() {
        Opened::ReadOnly(pool) => pool.restore(leaves, what).map(drop).map_err(|e| e.to_string()),
        Opened::Writable(engine) => engine.restore(leaves, what).map_err(|e| reason(&e)),
    }
}

/// Gives up an intent log that cannot be read or replayed, by the name of its dataset; `None` if there is no
/// such dataset.
fn clear_log(imported: &Imported, name: &str) -> Option<Result<(), String>> {
    let dataset = imported.pool().dsl().find(name).ok()??;
    Some(match imported.opened() {
        Opened::ReadOnly(_) => Err("pool is read-only".into()),
        Opened::Writable(engine) => engine.clear_intent_log(dataset.ds_obj).map_err(|e| reason(&e)),
    })
}

/// Runs `zpool clear` (`zpool_clear`). In place of a device it takes a dataset, whose intent log is given up.
pub fn clear(args: &[OsString], ctx: &mut Context) -> Outcome {
    // A pool that is imported was opened: there is nothing to go back from, as `-F` did in older versions.
    let spec = Spec { short: "", refused: "", refused_long: &["power"] };
    let names = parse(args, spec)?.names();
    let (name, device) = match names.as_slice() {
        [] => return usage("missing pool name"),
        [name] => (name, None),
        [name, device] => (name, Some(device)),
        _ => return usage("too many arguments"),
    };
    let imported = open(ctx, name).map_err(Stop::Fail)?;
    let cannot = |what: &str, why: &str| fail(format!("cannot clear errors for {what}: {why}"));
    if let Err(why) = imported.writable() {
        return cannot(device.unwrap_or(name), &why);
    }
    if let Some(engine) = imported.engine().filter(|_| imported.suspended())
        && let Some(failed) = resume(engine, &imported)
    {
        return cannot(device.unwrap_or(name), failed);
    }
    let pool = imported.pool();
    let vdevs = pool.store().vdevs();
    let root = vdevs.root();
    let vdev = match device {
        None => Some(Arc::clone(root)),
        Some(device) => find_vdev(&imported, device),
    };
    // Of the whole pool those of cache devices, too.
    let caches: Vec<u64> = match device {
        None => pool.caches().iter().map(|cache| config::number(cache, "guid")).collect(),
        Some(device) => cache_called(&imported, device).into_iter().collect(),
    };
    match (&vdev, device) {
        (None, Some(device)) if caches.is_empty() => {
            return match clear_log(&imported, &device.to_string()) {
                Some(Ok(())) => Ok(0),
                Some(Err(why)) => cannot(device, &why),
                None => cannot(device, "no such device in pool"),
            };
        }
        _ => {}
    }
    if let Some(vdev) = vdev {
        vdev.clear_errors();
        if let Err(why) = restore(&imported, &leaves(&vdev), Restore::Failure) {
            return cannot(name, &why);
        }
    }
    for cache in caches {
        if let Err(why) = restore_cache(&imported, cache, Restore::Failure) {
            return cannot(device.unwrap_or(name), &why);
        }
    }
    // The configuration is written anew, which is an event.
    if let Some(engine) = imported.engine()
        && let Err(e) = engine.write_config()
    {
        return cannot(name, &reason(&e));
    }
    ctx.changed(&imported);
    Ok(0)
}

/// Has a suspended pool go on; why it does not.
fn resume(engine: &Engine, imported: &Imported) -> Option<&'static str> {
    if !engine.waits_for_devices() {
        return Some("pool I/O is currently suspended; 'zpool export -f' it and import it again");
    }
    imported.pool().store().vdevs().root().clear_errors();
    engine.resume().is_err().then_some("I/O error")
}

/// Runs `zpool reopen` (`zpool_reopen_one`).
pub fn reopen(args: &[OsString], ctx: &mut Context) -> Outcome {
    // A scrub is never started anew here, as with -n.
    let parsed = parse(args, Spec { short: "n", ..Spec::default() })?;
    let mut input = NvList::default();
    input.set("scrub_restart", NvValue::BooleanValue(parsed.options.is_empty()));
    let (pools, mut good) = select(ctx, &parsed.names());
    for imported in pools {
        let begin = Instant::now();
        let pool = imported.pool();
        let all = leaves(pool.store().vdevs().root());
        let restored = restore(&imported, &all, Restore::Nothing);
        let grown = || imported.engine().map_or(Ok(false), |engine| engine.expand_if_wanted());
        match restored.and_then(|()| grown().map_err(|e| reason(&e))) {
            Ok(_) => {
                imported.record_request("reopen", input.clone(), begin.elapsed(), ctx);
                imported.record(ctx);
            }
            Err(why) => {
                ctx.complain(format_args!("cannot reopen '{}': {why}", imported.name()));
                good = false;
            }
        }
    }
    Ok(i32::from(!good))
}

/// The pool and the devices that a command line names.
fn operands(names: &[String], ctx: &Context) -> Result<(Arc<Imported>, Vec<String>), Stop> {
    match names.split_first() {
        None => usage("missing pool name"),
        Some((_, [])) => usage("missing device name"),
        Some((name, devices)) => Ok((open(ctx, name).map_err(Stop::Fail)?, devices.to_vec())),
    }
}

/// What goes out of use and comes back.
enum Leaf {
    Data(Arc<Vdev>),
    /// A cache device, by its guid.
    Cache(u64),
}

/// The guid of the cache device that the user calls `name`.
fn cache_called(imported: &Imported, name: &str) -> Option<u64> {
    let guid = guid_called(imported, name)?;
    let pool = imported.pool();
    pool.caches().iter().any(|cache| config::number(cache, "guid") == guid).then_some(guid)
}

/// Brings a cache device back. The error is what comes after `cannot …: `.
fn restore_cache(imported: &Imported, guid: u64, what: Restore) -> Result<(), String> {
    imported.writable()?.restore_cache(guid, what).map_err(|e| reason(&e))
}

/// The leaf that the user calls `name`; else it was said that there is none.
fn leaf(imported: &Imported, what: &str, name: &str, ctx: &mut Context) -> Option<Leaf> {
    let why = match find_vdev(imported, name) {
        Some(vdev) if vdev.is_leaf() => return Some(Leaf::Data(vdev)),
        Some(_) => "operation not supported on this type of vdev",
        None => match (cache_called(imported, name), guid_called(imported, name)) {
            (Some(cache), _) => return Some(Leaf::Cache(cache)),
            (None, Some(_)) => "device is reserved as a hot spare",
            (None, None) => "no such device in pool",
        },
    };
    ctx.complain(format_args!("cannot {what} {name}: {why}"));
    None
}

/// Runs `zpool online` (`zpool_vdev_online`).
pub fn online(args: &[OsString], ctx: &mut Context) -> Outcome {
    let spec = Spec { short: "e", refused: "", refused_long: &["power"] };
    let parsed = parse(args, spec)?;
    let expand = !parsed.options.is_empty();
    let (imported, devices) = operands(&parsed.names(), ctx)?;
    let mut good = true;
    for name in devices {
        let Some(leaf) = leaf(&imported, "online", &name, ctx) else {
            good = false;
            continue;
        };
        let restored = match &leaf {
            Leaf::Data(vdev) => restore(&imported, &[vdev.guid()], Restore::Offline),
            Leaf::Cache(guid) => restore_cache(&imported, *guid, Restore::Offline),
        };
        if let Err(why) = restored {
            ctx.complain(format_args!("cannot online {name}: {why}"));
            good = false;
            continue;
        }
        if let Leaf::Data(vdev) = &leaf
            && let Err(why) = grow(&imported, vdev, expand)
        {
            ctx.complain(format_args!("cannot expand {name}: {why}"));
            good = false;
        }
        let advice = match leaf.state(&imported) {
            VdevState::Healthy => continue,
            VdevState::Faulted => "use 'zpool clear' to restore a faulted device",
            _ => "use 'zpool replace' to replace devices that are no longer present",
        };
        let remains = "onlined, but remains in faulted state";
        writeln!(ctx.out, "warning: device '{name}' {remains}\n{advice}")?;
    }
    if good {
        ctx.changed(&imported);
        cachefile::update(&ctx.pools);
    }
    Ok(i32::from(!good))
}

impl Leaf {
    fn state(&self, imported: &Imported) -> VdevState {
        let pool = imported.pool();
        match self {
            Leaf::Data(vdev) => vdev.state(),
            Leaf::Cache(guid) => {
                let is_it = |cache: &&NvList| config::number(cache, "guid") == *guid;
                let cache = pool.caches().iter().find(is_it);
                cache.map_or(VdevState::Removed, |cache| pool.cache_state(cache))
            }
        }
    }
}

/// Lets the top-level vdev above a leaf grow (`ZFS_ONLINE_EXPAND`): if asked to, or if the pool does so by itself.
fn grow(imported: &Imported, leaf: &Vdev, asked: bool) -> Result<(), String> {
    let Some(engine) = imported.engine() else { return Ok(()) };
    let pool = imported.pool();
    let vdevs = pool.store().vdevs();
    let tops = vdevs.root().children().iter();
    let above = tops.filter(|top| leaves(top).contains(&leaf.guid()));
    let above: Vec<u64> = above.map(|top| top.id()).collect();
    let grown = if asked { engine.expand(&above) } else { engine.expand_if_wanted() };
    grown.map(drop).map_err(|e| reason(&e))
}

/// Runs `zpool offline` (`zpool_vdev_offline`).
pub fn offline(args: &[OsString], ctx: &mut Context) -> Outcome {
    let spec = Spec { short: "ft", refused: "", refused_long: &["power"] };
    let parsed = parse(args, spec)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let how = match (has('f'), has('t')) {
        (true, true) => TakeOut::FaultForNow,
        (true, false) => TakeOut::Fault,
        (false, true) => TakeOut::OfflineForNow,
        (false, false) => TakeOut::Offline,
    };
    let (imported, devices) = operands(&parsed.names(), ctx)?;
    let engine = match imported.writable() {
        Ok(engine) => Arc::clone(engine),
        Err(why) => return fail(format!("cannot offline: {why}")),
    };
    let mut good = true;
    for name in devices {
        let taken = match leaf(&imported, "offline", &name, ctx) {
            Some(Leaf::Data(vdev)) => engine.take_out(vdev.guid(), how),
            Some(Leaf::Cache(guid)) => engine.take_out_cache(guid, how).map_err(Into::into),
            None => {
                good = false;
                continue;
            }
        };
        if let Err(e) = taken {
            let why = match e {
                OfflineError::Engine(e) => reason(&e),
                e => e.to_string(),
            };
            ctx.complain(format_args!("cannot offline {name}: {why}"));
            good = false;
        }
    }
    if good {
        ctx.changed(&imported);
        cachefile::update(&ctx.pools);
    }
    Ok(i32::from(!good))
}
