//! `zpool labelclear` (`zpool_do_labelclear`).

use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zpool::create::in_use;
use cenote_command::outcome::{Outcome, Stop, fail, plain, usage};
use cenote_engine::create::{OpenDevices, SystemDevices};
use cenote_vdev::deadline::{ask, is_silent};
use cenote_vdev::object::{is_object, open_wreck, spelled};
use cenote_vdev::{Device, LabelOwner, LabelState, VdevState, clear_labels, label_owner};
use cenote_vdev::{open_device, open_device_rw};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SPEC: Spec = Spec { short: "f", refused: "", refused_long: &[] };

/// Exit code where no label could be cleared.
pub const NOT_CLEARED: i32 = 255;

/// Whose a device is.
enum User {
    /// The device belongs to no pool.
    Nobody,
    /// A pool's that is imported: what it is there, and the pool.
    Imported(&'static str, String),
    /// A pool's that is imported and does not have it open, since it is offline.
    Offline(String),
    /// A pool's that is not imported; `exported` or `potentially active`, and its name.
    Other(&'static str, String),
}

/// Runs `zpool labelclear`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let force = !parsed.options.is_empty();
    let arg = match parsed.operands.as_slice() {
        [] => return usage("missing vdev name"),
        [name] => Path::new(name),
        _ => return usage("too many arguments"),
    };
    let pools = Arc::clone(&ctx.pools);
    // A device that hangs keeps this command waiting, and no others.
    let (own, name) = (ctx.path(arg), arg.to_path_buf());
    let looked = ask(&own, move |path| {
        let path = find(&name, path)?;
        match open_device(&path).and_then(|device| label_owner(device.as_ref())) {
            Err(e) if is_silent(&e) => Err(e),
            _ => SystemDevices.find(&path).map(|(_, facts)| facts.bytes()),
        }
    });
    if looked.as_ref().is_err_and(is_silent) {
        return fail(format!("failed to open {}: the device does not answer", arg.display()));
    }
    // No pool gets it between the look at its owner and the clearing.
    let _change = pools.change_with([""; 0], looked.ok());
    let path = match find(arg, &ctx.path(arg)) {
        Ok(path) => path,
        // A name that cannot be one may have credentials: it is not repeated.
        Err(e) if is_object(arg) => return fail(format!("failed to open a device: {}", plain(&e))),
        Err(e) if e.kind() == io::ErrorKind::Unsupported => {
            return fail(format!("failed to open {}: {}", arg.display(), plain(&e)));
        }
        Err(_) => {
            return fail(format!(
                "failed to find device {}, try specifying absolute path instead",
                arg.display()
            ));
        }
    };
    let shown = path.display();
    let (device, is_wreck) = open_to_look(&path, force)?;
    let Ok(owner) = label_owner(device.as_ref()) else {
        return fail(format!("failed to read label from {shown}"));
    };
    drop(device);
    let was = owner.as_ref().map(|owner| (owner.pool_guid, owner.guid));
    match owner.map_or(User::Nobody, |owner| user(&owner, ctx)) {
        User::Imported(state, pool) => {
            let advice = match force {
                true => ". Offline the disk first to clear its label.",
                false => "",
            };
            return fail(format!("{shown} is a member ({state}) of pool \"{pool}\"{advice}"));
        }
        User::Offline(pool) if !force => {
            return fail(format!("{shown} is a member (ACTIVE) of pool \"{pool}\""));
        }
        User::Other(state, pool) if !force => {
            return fail(format!(
                "use '-f' to override the following error:\n\
                 {shown} is a member of {state} pool \"{pool}\""
            ));
        }
        User::Offline(_) | User::Other(..) | User::Nobody => {}
    }
    let cleared = clear(&path, is_wreck, was)?;
    pools.turn();
    match cleared {
        Ok(1..) => return Ok(0),
        Err(e) if is_object(&path) => {
            ctx.complain(format_args!("failed to clear label for {shown}: {}", plain(&e)));
        }
        _ => ctx.complain(format_args!("failed to clear label for {shown}")),
    }
    Ok(NOT_CLEARED)
}

/// The device as it is, to see whose it is; and whether it is a pool in an object store that cannot be opened, which `force` has deleted.
fn open_to_look(path: &Path, force: bool) -> Result<(Arc<dyn Device>, bool), Stop> {
    let shown = path.display();
    let error = match open_device(path) {
        Ok(device) => return Ok((device, false)),
        Err(e) => plain(&e),
    };
    match is_object(path).then(|| open_wreck(path, false)) {
        Some(Ok(device)) if force => Ok((device, true)),
        Some(Ok(_)) => fail(format!(
            "use '-f' to override the following error:\n\
             {shown} has a pool that cannot be opened: {error}"
        )),
        _ => fail(format!("failed to open {shown}: {error}")),
    }
}

/// The guids of a pool and its device.
type Guids = Option<(Option<u64>, u64)>;

/// Clears the labels, if they are those that were seen.
fn clear(path: &Path, is_wreck: bool, was: Guids) -> Result<io::Result<usize>, Stop> {
    let shown = path.display();
    let opened = if is_wreck { open_wreck(path, true) } else { open_device_rw(path) };
    let device = match opened {
        Ok(device) => device,
        Err(e) => return fail(format!("failed to open {shown}: {}", plain(&e))),
    };
    // Another host may have made a pool there since it was looked at.
    let is = label_owner(device.as_ref()).ok().flatten();
    if device.growing().is_some() && is.map(|owner| (owner.pool_guid, owner.guid)) != was {
        return fail(format!("{shown} was changed by another host meanwhile"));
    }
    Ok(clear_labels(device.as_ref()))
}

/// The path of what the user calls `arg`: `path`, from the user's directory, or the short name of a device.
///
/// # Errors
/// There is no such device.
fn find(arg: &Path, path: &Path) -> io::Result<PathBuf> {
    if is_object(arg) {
        return spelled(arg);
    }
    if arg.is_absolute() || path.exists() {
        return Ok(path.to_path_buf());
    }
    SystemDevices.find(arg).map(|(path, _)| path)
}

fn user(owner: &LabelOwner, ctx: &Context) -> User {
    let imported = in_use(&ctx.pools);
    let pool = imported.iter().find(|p| Some(p.guid) == owner.pool_guid);
    let name = owner.pool_name.clone().unwrap_or_default();
    let aux = |state, has: &dyn Fn(&&cenote_engine::create::Imported) -> bool| {
        let pool = imported.iter().find(has);
        pool.map_or(User::Nobody, |p| User::Imported(state, p.name.clone()))
    };
    match (owner.state, pool) {
        (LabelState::Destroyed, _) => User::Nobody,
        (LabelState::Spare, _) => aux("SPARE", &|p| p.spares.contains(&owner.guid)),
        (LabelState::Cache, _) => aux("L2CACHE", &|p| p.caches.contains(&owner.guid)),
        (LabelState::Active | LabelState::Exported, Some(pool)) => {
            match pool.devices.contains(&owner.guid) {
                true if is_offline(&pool.name, owner.guid, ctx) => User::Offline(pool.name.clone()),
                true => User::Imported("ACTIVE", pool.name.clone()),
                // It was taken out of the pool while it was away.
                false => User::Nobody,
            }
        }
        (LabelState::Exported, None) => User::Other("exported", name),
        (LabelState::Active, None) => User::Other("potentially active", name),
    }
}

/// Whether a device of an imported pool was taken offline: the pool does not have it open.
fn is_offline(pool: &str, guid: u64, ctx: &Context) -> bool {
    let Some(imported) = ctx.pools.get(pool) else { return false };
    let leaves = imported.pool().store().vdevs().leaves();
    leaves.iter().any(|v| v.guid() == guid && v.state() == VdevState::Offline)
}
