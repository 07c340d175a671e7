//! `zpool trim`: tells devices what is free.

use crate::context::Context;
use crate::interval::pause;
use crate::options::{Spec, bytes, parse_with_long};
use crate::pools::Imported;
use crate::zpool::select::{find_vdev, open};
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_engine::{TrimError, TrimRequest};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

const SPEC: Spec = Spec { short: "acdr:sw", refused: "", refused_long: &[] };
const LONG: [(&str, char); 6] = [
    ("all", 'a'),
    ("cancel", 'c'),
    ("secure", 'd'),
    ("rate", 'r'),
    ("suspend", 's'),
    ("wait", 'w'),
];
/// How often to look whether it is done.
const LOOK: Duration = Duration::from_millis(200);

/// What to do.
struct Task {
    request: TrimRequest,
    secure: bool,
    wait: bool,
}

/// Runs `zpool trim`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse_with_long(args, SPEC, &LONG)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let mut rate = 0;
    for option in parsed.options.iter().filter(|o| o.letter == 'r') {
        let text = option.text();
        let given = bytes(&text).filter(|rate| *rate > 0);
        rate = given.map_or_else(|| usage(format!("invalid value for rate: {text}")), Ok)?;
    }
    let stops = has('c') || has('s');
    if has('c') && (has('s') || has('d') || has('r')) {
        return usage("-c cannot be combined with other options");
    }
    if has('s') && (has('d') || has('r')) {
        return usage("-s cannot be combined with other options");
    }
    if has('w') && stops {
        return usage("-w cannot be used with -c or -s");
    }
    let request = match (has('c'), has('s')) {
        (true, _) => TrimRequest::Cancel,
        (_, true) => TrimRequest::Suspend,
        _ => TrimRequest::Start { rate },
    };
    let task = Task { request, secure: has('d'), wait: has('w') };
    let names = parsed.names();
    if has('a') {
        if !names.is_empty() {
            return usage("the -a flag cannot be combined with individual pools");
        }
        let pools = ctx.pools.all();
        let done: Result<Vec<bool>, Stop> =
            pools.iter().map(|pool| of_pool(pool, &[], &task, ctx)).collect();
        return Ok(i32::from(!done?.into_iter().all(|good| good)));
    }
    let Some((name, devices)) = names.split_first() else {
        return usage("missing pool name argument");
    };
    let imported = open(ctx, name).map_err(Stop::Fail)?;
    Ok(i32::from(!of_pool(&imported, devices, &task, ctx)?))
}

/// One pool; `devices`: all that can be told, if there are none. Whether all went well.
fn of_pool(
    imported: &Arc<Imported>,
    devices: &[String],
    task: &Task,
    ctx: &mut Context,
) -> Result<bool, Stop> {
    let cannot = |what: &str, why: &str| format!("cannot trim '{what}': {why}");
    let engine = imported.writable().map_err(|why| Stop::Fail(cannot(imported.name(), &why)))?;
    let mut leaves = Vec::new();
    for name in devices {
        match find_vdev(imported, name) {
            Some(vdev) if vdev.is_leaf() => leaves.push((name.clone(), vdev.guid())),
            Some(_) => {
                let why = "operation not supported on this type of vdev";
                return Err(Stop::Fail(cannot(name, why)));
            }
            None => return Err(Stop::Fail(cannot(name, "no such device in pool"))),
        }
    }
    let whole = devices.is_empty();
    if whole {
        for leaf in imported.pool().store().vdevs().leaves() {
            let name = leaf.path().map(|path| path.display().to_string()).unwrap_or_default();
            leaves.push((name, leaf.guid()));
        }
    }
    let (mut good, mut any) = (true, false);
    for (name, leaf) in &leaves {
        let done = match task.secure {
            // No device says that it can do that.
            true => Err(TrimError::Unsupported),
            false => engine.trim(*leaf, task.request),
        };
        match done {
            Ok(()) => any = true,
            Err(TrimError::Unsupported | TrimError::NotWritable) if whole => {}
            Err(e) => {
                ctx.complain(cannot(name, &e.to_string()));
                (good, any) = (false, true);
            }
        }
    }
    if !any {
        let why = "no devices in pool support trim operations";
        return Err(Stop::Fail(cannot(imported.name(), why)));
    }
    ctx.changed(imported);
    while task.wait {
        let running = engine.trimming();
        if !running.iter().any(|(guid, _)| leaves.iter().any(|(_, leaf)| leaf == guid)) {
            break;
        }
        pause(LOOK, ctx)?;
    }
    Ok(good)
}
