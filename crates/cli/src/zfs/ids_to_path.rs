//! `zfs_ids_to_path`: the path of a file whose numbers are known (`zpool_obj_to_path`).

use crate::context::Context;
use crate::options::{Spec, parse};
use crate::pools::{Imported, reason};
use cenote_dsl::Dataset;
use cenote_vdev::patience::impatiently;
use cenote_zpl::FileSystem;
use std::ffi::OsString;

const SPEC: Spec = Spec { short: "v", refused: "", refused_long: &[] };
/// Its usage line.
pub const USAGE: &str = "Usage: zfs_ids_to_path [-v] <pool> <objset id> <object id>";

/// Exit code: wrong arguments.
pub const WRONG: i32 = 1;
/// Exit code: the first argument is not a number.
pub const WRONG_OBJSET: i32 = 2;
/// Exit code: the second argument is not a number.
pub const WRONG_OBJECT: i32 = 3;
/// Exit code: there is no such pool.
pub const NO_POOL: i32 = 5;

/// Runs `zfs_ids_to_path`; returns the exit code.
pub fn run(args: &[OsString], ctx: &mut Context) -> i32 {
    match impatiently(|| name(args, ctx)) {
        Ok(name) => i32::from(writeln!(ctx.out, "{name}").is_err()),
        Err((code, why)) => {
            ctx.complain(why);
            code
        }
    }
}

/// The line to print. With `-v` it begins with the dataset's name, mounted or not.
fn name(args: &[OsString], ctx: &Context) -> Result<String, (i32, String)> {
    let parsed = parse(args, SPEC).map_err(|_| (WRONG, USAGE.to_string()))?;
    let names = parsed.names();
    let [pool, objset, object] = names.as_slice() else {
        return Err((WRONG, format!("Incorrect number of arguments: {}\n{USAGE}", names.len())));
    };
    let number = |code: i32, what: &str, text: &str| {
        let wrong = || (code, format!("Invalid {what} id: {text}\n{USAGE}"));
        text.parse::<u64>().map_err(|_| wrong())
    };
    let objset = number(WRONG_OBJSET, "objset", objset)?;
    let object = number(WRONG_OBJECT, "object", object)?;
    let imported = ctx.pools.get(pool);
    let imported = imported.ok_or_else(|| (NO_POOL, format!("Could not open pool {pool}")))?;
    // A file may be newer than the last transaction group. While a device hangs no group ends, and this looks at the last one.
    if let Some(engine) = imported.engine().filter(|_| !imported.suspended()) {
        let synced = engine.sync_for_a_moment();
        synced.map_err(|e| (WRONG, format!("cannot sync '{pool}': {}", reason(&e))))?;
    }
    let by_mount = parsed.options.is_empty();
    Ok(imported.pool().object_name(
        (objset, object),
        &|dataset, object| path(&imported, dataset, object),
        &|dataset| mountpoint(&imported, dataset).filter(|_| by_mount),
    ))
}

fn path(imported: &Imported, dataset: &Dataset, object: u64) -> Option<String> {
    let os = imported.pool().dsl().open_objset(dataset).ok()?;
    let path = FileSystem::open(os).ok()?.path_of(object).ok()?;
    Some(String::from_utf8_lossy(&path).into_owned())
}

/// Where a dataset is mounted.
pub fn mountpoint(imported: &Imported, dataset: &Dataset) -> Option<String> {
    let mounted = imported.mounts.list().into_iter().find(|m| m.dataset == dataset.name)?;
    Some(mounted.mountpoint.display().to_string())
}
