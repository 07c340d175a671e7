//! `zpool trim` and `zpool initialize`: devices are told what is free, or it is overwritten (`zpool_do_trim`,
//! `zpool_do_initialize`).

use crate::context::Context;
use crate::interval::pause;
use crate::options::{Parsed, Spec, bytes, parse_with_long};
use crate::pools::Imported;
use crate::zpool::select::{find_vdev, open};
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_engine::{ActivityError, ActivityRequest, ActivityState, Engine};
use cenote_pool::vdev_props::Activity;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

const TRIM: Spec = Spec { short: "acdr:sw", refused: "", refused_long: &[] };
const LONG_OF_TRIM: [(&str, char); 6] = [
    ("all", 'a'),
    ("cancel", 'c'),
    ("secure", 'd'),
    ("rate", 'r'),
    ("suspend", 's'),
    ("wait", 'w'),
];
const INITIALIZE: Spec = Spec { short: "acsuwz", refused: "", refused_long: &[] };
const LONG_OF_INITIALIZE: [(&str, char); 6] = [
    ("all", 'a'),
    ("cancel", 'c'),
    ("suspend", 's'),
    ("uninit", 'u'),
    ("wait", 'w'),
    ("zero", 'z'),
];
/// How often to look whether it is done.
const LOOK: Duration = Duration::from_millis(200);

/// What to do.
struct Task {
    activity: Activity,
    request: ActivityRequest,
    secure: bool,
    wait: bool,
}

/// Runs `zpool trim` (`zpool_trim`).
pub fn trim(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse_with_long(args, TRIM, &LONG_OF_TRIM)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let (mut rate, mut order) = (0, None);
    for option in &parsed.options {
        match option.letter {
            // Before an order they are passed over, as in OpenZFS.
            letter @ ('d' | 'r') if order.is_some() => {
                return usage(format!("-{letter} cannot be combined with the -c or -s options"));
            }
            'r' => {
                let text = option.text();
                let given = bytes(&text).filter(|rate| *rate > 0);
                rate =
                    given.map_or_else(|| usage(format!("invalid value for rate: {text}")), Ok)?;
            }
            letter @ ('c' | 's') => is_ordered(&mut order, letter)?,
            _ => {}
        }
    }
    let names = names_of(&parsed, Activity::Trim)?;
    if order.is_some() && has('w') {
        return usage("-w cannot be used with -c or -s options");
    }
    let request = match order {
        Some('c') => ActivityRequest::Cancel,
        Some(_) => ActivityRequest::Suspend,
        None => ActivityRequest::Start { rate, value: None },
    };
    let secure = order.is_none() && has('d');
    let task = Task { activity: Activity::Trim, request, secure, wait: has('w') };
    of_pools(&names, &task, ctx)
}

/// Runs `zpool initialize` (`zpool_initialize`).
pub fn initialize(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse_with_long(args, INITIALIZE, &LONG_OF_INITIALIZE)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let mut order = None;
    for letter in parsed.options.iter().map(|o| o.letter).filter(|l| ['c', 's', 'u'].contains(l)) {
        is_ordered(&mut order, letter)?;
    }
    let names = names_of(&parsed, Activity::Initialize)?;
    if let Some(letter) = ['w', 'z'].into_iter().find(|letter| order.is_some() && has(*letter)) {
        return usage(format!("-{letter} cannot be used with -c, -s or -u"));
    }
    let request = match order {
        Some('c') => ActivityRequest::Cancel,
        Some('s') => ActivityRequest::Suspend,
        Some(_) => ActivityRequest::Forget,
        None => ActivityRequest::Start { rate: 0, value: has('z').then_some(0) },
    };
    let task = Task { activity: Activity::Initialize, request, secure: false, wait: has('w') };
    of_pools(&names, &task, ctx)
}

/// One of the options that are orders is given, of which there may be one.
fn is_ordered(order: &mut Option<char>, letter: char) -> Result<(), Stop> {
    match order.replace(letter).is_some_and(|before| before != letter) {
        true => usage(format!("-{letter} cannot be combined with other options")),
        false => Ok(()),
    }
}

/// The pool that is named, and devices; nothing with `-a`.
fn names_of(parsed: &Parsed, activity: Activity) -> Result<Vec<String>, Stop> {
    let names = parsed.names();
    match parsed.options.iter().any(|o| o.letter == 'a') {
        false if names.is_empty() => usage("missing pool name argument"),
        true if !names.is_empty() => {
            let pools = match activity {
                Activity::Initialize => "pools",
                Activity::Trim => "zpools",
            };
            usage(format!("-a cannot be combined with individual {pools} or vdevs"))
        }
        _ => Ok(names),
    }
}

/// The pool that is named, or all.
fn of_pools(names: &[String], task: &Task, ctx: &mut Context) -> Outcome {
    let Some((name, devices)) = names.split_first() else {
        let pools = ctx.pools.all();
        let done: Result<Vec<bool>, Stop> =
            pools.iter().map(|pool| of_pool(pool, &[], task, ctx)).collect();
        return Ok(i32::from(!done?.into_iter().all(|good| good)));
    };
    let imported = open(ctx, name).map_err(Stop::Fail)?;
    Ok(i32::from(!of_pool(&imported, devices, task, ctx)?))
}

/// Serves one pool. Without `devices` it serves all that the pool has. Returns whether all went well.
fn of_pool(
    imported: &Arc<Imported>,
    devices: &[String],
    task: &Task,
    ctx: &mut Context,
) -> Result<bool, Stop> {
    let verb = task.activity.name();
    let cannot = |what: &str, why: &str| format!("cannot {verb} '{what}': {why}");
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
    let (mut good, mut any, mut begun) = (true, false, Vec::new());
    for (name, leaf) in &leaves {
        let done = match task.secure {
            // No device says that it can do that.
            true => Err(ActivityError::Unsupported),
            false => engine.activity(task.activity, *leaf, task.request),
        };
        match done {
            Ok(()) => {
                any = true;
                begun.push((name, *leaf));
            }
            Err(ActivityError::Unsupported | ActivityError::NotWritable) if whole => {}
            Err(e) => {
                ctx.complain(cannot(name, &e.to_string()));
                (good, any) = (false, true);
            }
        }
    }
    if !any {
        let why = match task.activity {
            Activity::Trim => "no devices in pool support trim operations",
            Activity::Initialize => "no device in pool is writable",
        };
        return Err(Stop::Fail(cannot(imported.name(), why)));
    }
    ctx.changed(imported);
    let is_one = |guid: u64| begun.iter().any(|(_, leaf)| *leaf == guid);
    let goes_on = || engine.active(task.activity).iter().any(|(guid, _)| is_one(*guid));
    while task.wait && goes_on() {
        pause(LOOK, ctx)?;
    }
    for (name, leaf) in begun.into_iter().filter(|_| task.wait) {
        if let Err(why) = is_complete(engine, task.activity, leaf) {
            let what = match task.activity {
                Activity::Trim => format!("error waiting to trim '{name}'"),
                Activity::Initialize => format!("error waiting for '{name}' to initialize"),
            };
            ctx.complain(format!("{what}: {why}"));
            good = false;
        }
    }
    Ok(good)
}

/// Why an activity that has no thread any more is not complete.
fn is_complete(engine: &Engine, activity: Activity, leaf: u64) -> Result<(), String> {
    let what = match activity {
        Activity::Trim => "trim",
        Activity::Initialize => "initialization",
    };
    match engine.activity_state(activity, leaf).map_err(|e| e.to_string())? {
        Some(ActivityState::Complete) => Ok(()),
        Some(ActivityState::Suspended) => {
            Err(format!("the {what} is suspended, and not all of it was done"))
        }
        Some(ActivityState::Canceled) | None => Err(format!("the {what} was canceled")),
        Some(ActivityState::Active) => Err(match engine.suspended() {
            Some(_) => "pool I/O is currently suspended".into(),
            None => format!("the {what} goes on when the device is in use again"),
        }),
    }
}
