//! `zpool destroy` (`zpool_do_destroy`).
//!
//! A pool that was imported read-only is let go of, and nothing on its devices is changed, as OpenZFS
//! does: it can be imported again. What a pool has in an object store is deleted: there it would go on being paid for.

use crate::cachefile;
use crate::context::Context;
use crate::mounts::Directory;
use crate::mounts::table::Way;
use crate::options::{Spec, parse};
use crate::pools::End;
use crate::zpool::select::open;
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "f", refused: "", refused_long: &[] };

/// Runs `zpool destroy`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let force = !parsed.options.is_empty();
    let names = parsed.names();
    let name = match names.as_slice() {
        [] => return usage("missing pool argument"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change(name);
    let imported = match open(ctx, name) {
        Ok(imported) => imported,
        Err(message) if name.contains('/') => {
            return fail(format!("{message}\nuse 'zfs destroy' to destroy a dataset"));
        }
        Err(message) => return fail(message),
    };
    pools.injections.clear_faults(name);
    let by = ctx.agent();
    let way = Way { force, directory: Directory::Inherited, by: &*by };
    if let Err(e) = imported.mounts.close(way) {
        ctx.complain(e);
        return fail(format!("could not destroy '{name}': could not unmount datasets"));
    }
    imported.record(ctx);
    if let Err(message) = imported.close(End::Destroyed) {
        return fail(message);
    }
    let erased = imported.erase();
    pools.remove(name);
    cachefile::forget(&pools, &imported);
    erased.map_err(Stop::Fail)?;
    Ok(0)
}
