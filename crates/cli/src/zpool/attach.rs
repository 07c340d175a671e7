//! `zpool attach`, `zpool replace` and `zpool detach` (`zpool_do_attach`, `zpool_do_replace`, `zpool_do_detach`): devices that
//! join vdevs of a pool and leave them.

use crate::cachefile;
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::pools::{Imported, reason};
use crate::zpool::create::{ashift, in_use};
use crate::zpool::select::{find_vdev, guid_called, open};
use crate::zpool::wait::until_over;
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_engine::Attach;
use cenote_engine::create::{self, CreateError, NewDevice};
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_vdev::Vdev;
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "fo:sw", refused: "", refused_long: &[] };

/// Runs `zpool attach` (`zpool_vdev_attach`).
pub fn attach(args: &[OsString], ctx: &mut Context) -> Outcome {
    join(args, false, ctx)
}

/// Runs `zpool replace` (`zpool_vdev_attach`).
pub fn replace(args: &[OsString], ctx: &mut Context) -> Outcome {
    join(args, true, ctx)
}

/// What a command line asks for.
struct Asked {
    pool: String,
    old: String,
    new: String,
    force: bool,
    ashift: Option<u64>,
    waits: bool,
    /// By a sequential rebuild.
    rebuilds: bool,
}

/// Reads the command line (`zpool_do_attach_or_replace`).
fn asked(args: &[OsString], replaces: bool) -> Result<Asked, Stop> {
    let parsed = parse(args, SPEC)?;
    let mut size = None;
    for opt in parsed.options.iter().filter(|o| o.letter == 'o') {
        match opt.text().split_once('=') {
            None => return usage("missing '=' for -o option"),
            Some(("ashift", _)) if size.is_some() => {
                return usage("property 'ashift' specified multiple times");
            }
            Some(("ashift", text)) => size = Some(ashift(text)?),
            Some(_) => return usage(""),
        }
    }
    let names = parsed.names();
    let (pool, old, new) = match names.as_slice() {
        [] => return usage("missing pool name argument"),
        [_] => return usage("missing <device> specification"),
        [pool, old] if replaces => (pool, old, old),
        [_, _] => return usage("missing <new_device> specification"),
        [pool, old, new] => (pool, old, new),
        _ => return usage("too many arguments"),
    };
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let (pool, old, new) = (pool.clone(), old.clone(), new.clone());
    let (force, waits, rebuilds) = (has('f'), has('w'), has('s'));
    Ok(Asked { pool, old, new, force, ashift: size, waits, rebuilds })
}

fn join(args: &[OsString], replaces: bool, ctx: &mut Context) -> Outcome {
    let asked = asked(args, replaces)?;
    let imported = put(&asked, replaces, ctx)?;
    if asked.waits {
        let beside = target(&imported, &asked.old);
        let expands = beside.is_ok_and(|vdev| vdev.reflow().is_some());
        let what: &[&str] = match (replaces, expands) {
            (true, _) => &["replace"],
            (false, true) => &["raidz_expand"],
            (false, false) => &["resilver"],
        };
        until_over(&imported, what, ctx)?;
    }
    Ok(0)
}

/// Has the device join; the pool.
fn put(asked: &Asked, replaces: bool, ctx: &mut Context) -> Result<Arc<Imported>, Stop> {
    let pools = Arc::clone(&ctx.pools);
    open(ctx, &asked.pool).map_err(Stop::Fail)?;
    let devices = match create::parse(std::slice::from_ref(&asked.new)) {
        Ok(layout) => create::check_answers(&layout).map_err(|e| Stop::Fail(e.to_string()))?,
        Err(_) => Vec::new(),
    };
    let _change = pools.change_with([&asked.pool], devices);
    let imported = open(ctx, &asked.pool).map_err(Stop::Fail)?;
    let (old, new) = (&asked.old, &asked.new);
    let what = match replaces {
        true => format!("cannot replace {old} with {new}"),
        false => format!("cannot attach {new} to {old}"),
    };
    let cannot = |why: String| Stop::Fail(format!("{what}: {why}"));
    let engine = Arc::clone(imported.writable().map_err(cannot)?);
    let device = match spare_called(&imported, new).filter(|_| replaces) {
        Some(guid) => engine.spare(guid).map_err(cannot)?,
        None => prepared(&imported, asked, &in_use(&pools)).map_err(|e| match e {
            CreateError::Refused { why, .. } => cannot(why),
            other => Stop::Fail(other.to_string()),
        })?,
    };
    let vdev = target(&imported, old).map_err(cannot)?;
    let attach = Attach { beside: vdev.guid(), new: device, replaces };
    let joined = match asked.rebuilds {
        true => engine.attach_sequentially(attach),
        false => engine.attach(attach),
    };
    joined.map_err(|e| cannot(reason(&e)))?;
    ctx.changed(&imported);
    cachefile::update(&ctx.pools);
    Ok(imported)
}

/// The guid of the spare that the user calls `name`.
fn spare_called(imported: &Imported, name: &str) -> Option<u64> {
    let guid = guid_called(imported, name)?;
    let pool = imported.pool();
    let is_it = |spare: &NvList| config::number(spare, "guid") == guid;
    pool.spares().iter().any(is_it).then_some(guid)
}

/// The new device, opened, if nothing speaks against using it (`make_root_vdev`).
fn prepared(
    imported: &Imported,
    asked: &Asked,
    others: &[create::Imported],
) -> Result<NewDevice, CreateError> {
    let layout = create::parse(std::slice::from_ref(&asked.new))?;
    let joining = create::Joining::to(&imported.pool());
    let single = joining.prepare(&layout, asked.ashift, asked.force, others)?;
    single.ok_or_else(|| CreateError::Refused {
        what: String::new(),
        why: "new device must be a single disk".into(),
    })
}

/// The vdev of the pool that the user calls `name`, which is neither an idle spare nor a cache device.
fn target(imported: &Imported, name: &str) -> Result<Arc<Vdev>, String> {
    if let Some(vdev) = find_vdev(imported, name) {
        return Ok(vdev);
    }
    let pool = imported.pool();
    let guid = guid_called(imported, name);
    let is_it = |cache: &NvList| Some(config::number(cache, "guid")) == guid;
    Err(match guid {
        None => "no such device in pool".into(),
        Some(_) if pool.caches().iter().any(is_it) => "device is in use as a cache".into(),
        Some(_) => "device is reserved as a hot spare".into(),
    })
}

/// Runs `zpool detach`.
pub fn detach(args: &[OsString], ctx: &mut Context) -> Outcome {
    let names = parse(args, Spec::default())?.names();
    let (name, device) = match names.as_slice() {
        [] => return usage("missing pool name argument"),
        [_] => return usage("missing <device> specification"),
        // What comes after is not looked at, as in OpenZFS.
        [name, device, ..] => (name, device),
    };
    let pools = Arc::clone(&ctx.pools);
    let change = pools.change(name);
    let imported = open(ctx, name).map_err(Stop::Fail)?;
    let cannot = |why: String| Stop::Fail(format!("cannot detach {device}: {why}"));
    let engine = Arc::clone(imported.writable().map_err(cannot)?);
    let vdev = target(&imported, device).map_err(cannot)?;
    // It leaves the vdev that it is below now, whatever comes in between.
    let parent = pool_parent(&imported, &vdev);
    let before = spares(&imported);
    engine.detach(vdev.guid(), parent).map_err(|e| cannot(reason(&e)))?;
    ctx.changed(&imported);
    let now = spares(&imported);
    drop(change);
    for spare in before.into_iter().filter(|spare| !now.contains(spare)) {
        give_up(spare, &imported, ctx);
    }
    cachefile::update(&ctx.pools);
    Ok(0)
}

/// The guids of a pool's spares.
fn spares(imported: &Imported) -> Vec<u64> {
    imported.pool().spares().iter().map(|spare| config::number(spare, "guid")).collect()
}

/// A spare stays in pool `of` for good: it is one of the other pools no more (`spa_vdev_detach`). A pool that cannot be written keeps it in its list.
fn give_up(spare: u64, of: &Imported, ctx: &mut Context) {
    let pools = Arc::clone(&ctx.pools);
    let shares =
        |other: &Arc<Imported>| other.guid() != of.guid() && spares(other).contains(&spare);
    for other in pools.all().into_iter().filter(shares) {
        let _change = pools.change(other.name());
        let Ok(engine) = other.writable().map(Arc::clone) else { continue };
        if engine.waits_for_devices() {
            continue;
        }
        match engine.remove(spare) {
            Ok(()) => ctx.changed(&other),
            Err(why) => {
                tracing::warn!(pool = other.name(), "the spare of another pool stays listed: {why}")
            }
        }
    }
}

/// The guid of the vdev above another one.
fn pool_parent(imported: &Imported, vdev: &Vdev) -> Option<u64> {
    let pool = imported.pool();
    let tree = pool.store().vdevs();
    tree.parent_of(vdev.guid()).map(|parent| parent.guid())
}
