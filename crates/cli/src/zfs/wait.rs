//! `zfs wait`: waits until files that were removed are freed (`deleteq`, `zfs_do_wait`).

use crate::context::Context;
use crate::interval::pause;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, Node, open};
use crate::zpool::wait::activities;
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_vdev::patience::impatiently;
use cenote_zpl::FileSystem;
use std::ffi::OsString;
use std::time::Duration;

const SPEC: Spec = Spec { short: "t:", refused: "", refused_long: &[] };
/// What can be under way (`zfs_wait_activity_t`).
const ACTIVITIES: [&str; 1] = ["deleteq"];
/// How often to look. What is removed is seen in the next transaction group.
const LOOK: Duration = Duration::from_millis(200);

/// Runs `zfs wait`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    for opt in &parsed.options {
        activities(&opt.text(), &ACTIVITIES)?;
    }
    let names = parsed.names();
    let name = match names.as_slice() {
        [] => return usage("missing 'filesystem' argument"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    loop {
        // Each look leaves devices alone that do not answer: what is removed may be gone, or the command be interrupted, while one hangs.
        let node = match impatiently(|| open(ctx, name, Kinds::FILESYSTEM)) {
            Ok(node) => node,
            Err(message) => return fail(message),
        };
        if !impatiently(|| removed_files(&node))? || node.imported.engine().is_none() {
            return Ok(0);
        }
        pause(LOOK, ctx)?;
    }
}

/// Whether there are files without a name that wait to be freed. Those that are open count too, as with
/// OpenZFS: they go when they are closed.
fn removed_files(node: &Node) -> Result<bool, Stop> {
    let name = &node.dataset.name;
    let failed = |e: String| Stop::Fail(format!("cannot open '{name}': {e}"));
    let pool = node.imported.pool();
    let os = pool.dsl().open_objset(&node.dataset).map_err(|e| failed(e.to_string()))?;
    let fs = FileSystem::open(os).map_err(|e| failed(e.to_string()))?;
    let Some(queue) = fs.unlinked_set() else { return Ok(false) };
    let object = fs.objset().object(queue).map_err(|e| failed(e.to_string()))?;
    let zap = cenote_dmu::zap::Zap::open(&object).map_err(|e| failed(e.to_string()))?;
    Ok(!zap.entries().map_err(|e| failed(e.to_string()))?.is_empty())
}
