//! `zpool wait` (`zpool_do_wait`, `zfs_ioc_wait`, `spa_wait`): waits until nothing of the kind is under way in a pool.
//!
//! Freeing, discarding a checkpoint, a scrub, a resilver, a replacement, a removal, a trim, initializing and the expansion of RAID-Z are what can be under
//! way here. A checkpoint whose space maps cannot be read is not discarded, and what was destroyed is not freed where a
//! checkpoint leaves no room for that: waiting for it is refused, since it may never end. A scrub that is paused is not waited
//! for.

use crate::context::Context;
use crate::interval::{Schedule, Stamp, pause};
use crate::options::{Spec, interval_and_count, parse};
use crate::pools::Imported;
use crate::zpool::select::open;
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::human::nicenum;
use cenote_pool::rebuild::RebuildStatus;
use cenote_pool::scan::{ScanKind, ScanState, ScanStatus};
use cenote_pool::vdev_props::Activity;
use cenote_vdev::Vdev;
use cenote_vdev::patience::impatiently;
use std::ffi::OsString;
use std::time::{Duration, Instant};

const SPEC: Spec = Spec { short: "HpT:t:", refused: "", refused_long: &[] };

/// What can be under way (`zpool_wait_activity_t`), with the heads of the columns in upper case.
const ACTIVITIES: [&str; 9] = [
    "discard",
    "free",
    "initialize",
    "replace",
    "remove",
    "resilver",
    "scrub",
    "trim",
    "raidz_expand",
];
/// How often to look.
const LOOK: Duration = Duration::from_millis(200);

/// How the rows look that are shown meanwhile.
struct Show {
    enabled: Vec<&'static str>,
    scripted: bool,
    exact: bool,
    schedule: Schedule,
}

/// Runs `zpool wait`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let mut show = Show {
        enabled: ACTIVITIES.to_vec(),
        scripted: false,
        exact: false,
        schedule: Schedule::default(),
    };
    for opt in &parsed.options {
        match opt.letter {
            'H' => show.scripted = true,
            'p' => show.exact = true,
            'T' => {
                let stamp = Stamp::from_arg(&opt.text());
                show.schedule.stamp = Some(stamp.map_or_else(|| usage(""), Ok)?);
            }
            _ => show.enabled = activities(&opt.text(), &ACTIVITIES)?,
        }
    }
    let mut names = parsed.names();
    let count;
    (show.schedule.interval, count) = interval_and_count(&mut names)?;
    let name = match names.as_slice() {
        _ if count.is_some() => return usage("too many arguments"),
        [] => return usage("missing 'pool' argument"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    let imported = open(ctx, name).map_err(Stop::Fail)?;
    wait(&imported, &show, ctx)
}

/// The activities of a list.
pub fn activities(list: &str, known: &'static [&'static str]) -> Result<Vec<&'static str>, Stop> {
    for word in list.split(',') {
        if !known.contains(&word) {
            return usage(format!("invalid activity '{word}'"));
        }
    }
    Ok(known.iter().copied().filter(|k| list.split(',').any(|word| word == *k)).collect())
}

/// Waits for the removal of a vdev.
pub fn for_removal(imported: &Imported, ctx: &mut Context) -> Outcome {
    let enabled = vec!["remove"];
    let show = Show { enabled, scripted: false, exact: false, schedule: Schedule::default() };
    wait(imported, &show, ctx)
}

fn wait(imported: &Imported, show: &Show, ctx: &mut Context) -> Outcome {
    let mut rows = 0u64;
    let mut shown: Option<Instant> = None;
    loop {
        let left = left(imported)?;
        if let Some(interval) = show.schedule.interval
            && shown.is_none_or(|at| at.elapsed() >= interval)
        {
            row(show, &left, rows, ctx)?;
            (rows, shown) = (rows + 1, Some(Instant::now()));
        }
        let waits = |name: &&str| show.enabled.contains(name);
        let busy = |at: &(&'static str, Left)| waits(&at.0) && at.1.bytes.is_some();
        let Some((name, found)) = left.into_iter().find(busy) else { return Ok(0) };
        if let Some(why) = found.stays {
            return fail(format!("cannot wait for '{name}' of '{}': {why}", imported.name()));
        }
        if ctx.pools.get(imported.name()).is_none_or(|now| now.guid() != imported.guid()) {
            return Ok(0);
        }
        pause(LOOK, ctx)?;
    }
}

/// What is left of an activity.
#[derive(Clone, Copy, Default)]
struct Left {
    /// Bytes; `None`: nothing is under way.
    bytes: Option<u64>,
    /// Why it is not worked on, if it is not.
    stays: Option<&'static str>,
}

/// Why something is not worked on.
const UNFINISHED: &str = "it was left unfinished, and is not carried on here";
/// The same, in a pool that `zpool clear` does not bring back.
const GIVEN_UP: &str = "the pool is suspended for good: export it and import it again";
/// The same, of what was destroyed.
const NO_ROOM: &str =
    "there is no room for it beside the checkpoint ('zpool checkpoint -d' discards that)";

fn left(imported: &Imported) -> Result<Vec<(&'static str, Left)>, Stop> {
    let discards = || imported.engine().is_some_and(|engine| engine.discards());
    // Before the pool is looked at: what ends meanwhile was not left unfinished.
    let discarded = discards();
    let waits_to_free = imported.engine().is_some_and(|engine| engine.waits_to_free());
    let pool = imported.pool();
    let mut status = impatiently(|| pool.status()).map_err(|e| Stop::Fail(e.to_string()))?;
    if let Some(engine) = imported.engine() {
        engine.tell_rebuilds(&mut status.rebuilds);
    }
    // What a suspended pool was doing goes on once it is cleared.
    let given_up =
        imported.suspended() && imported.engine().is_some_and(|engine| !engine.waits_for_devices());
    let left_there = if given_up { GIVEN_UP } else { UNFINISHED };
    let unless = |goes_on: bool| (!goes_on).then_some(left_there);
    let worked_on = imported.engine().is_some() && !given_up;
    let scanned = |name: &str| match &status.scan {
        Some(s) if s.is_running() && s.pass.paused == 0 && kind_of(s) == Some(name) => {
            Some(s.to_examine.saturating_sub(s.skipped).saturating_sub(s.issued))
        }
        _ if name == "resilver" => rebuilt(&status.rebuilds),
        _ => None,
    };
    let of = |name: &'static str| match name {
        "free" => {
            let bytes = Some(pool.directory_used("$FREE")).filter(|bytes| *bytes > 0);
            Left { bytes, stays: unless(worked_on).or(waits_to_free.then_some(NO_ROOM)) }
        }
        "trim" | "initialize" => {
            let kind = if name == "trim" { Activity::Trim } else { Activity::Initialize };
            let left = imported.engine().map(|engine| engine.active(kind)).unwrap_or_default();
            let bytes = left.iter().map(|(_, bytes)| bytes).sum();
            let stays = unless(!given_up);
            Left { bytes: (!left.is_empty()).then_some(bytes), stays }
        }
        "discard" => match &status.checkpoint {
            Some(c) if c.created.is_none() => {
                let stays = unless(worked_on && (discarded || discards()));
                Left { bytes: Some(c.space), stays }
            }
            _ => Left::default(),
        },
        "remove" => match &status.removal {
            Some(r) if r.state == ScanState::Scanning => {
                let bytes = Some(r.to_copy.saturating_sub(r.copied));
                Left { bytes, stays: unless(worked_on) }
            }
            _ => Left::default(),
        },
        "raidz_expand" => match &status.expansion {
            Some(e) if e.is_running => {
                let bytes = Some(e.to_reflow.saturating_sub(e.reflowed));
                Left { bytes, stays: unless(worked_on) }
            }
            _ => Left::default(),
        },
        "scrub" => Left { bytes: scanned(name), stays: unless(worked_on) },
        "resilver" => {
            // Another one may begin where one ends.
            let due = worked_on && imported.engine().is_some_and(|e| e.awaits_resilver());
            Left { bytes: scanned(name).or(due.then_some(0)), stays: unless(worked_on) }
        }
        "replace" => {
            let replaces = is_replacing(pool.store().vdevs().root());
            let bytes = replaces.then(|| scanned("resilver").unwrap_or(0));
            Left { bytes, stays: unless(worked_on) }
        }
        _ => Left::default(),
    };
    Ok(ACTIVITIES.iter().map(|name| (*name, of(name))).collect())
}

/// Whether a device is being replaced at or below a vdev (`vdev_replace_in_progress`). A spare that has everything stays beside
/// the device that it stands in for.
fn is_replacing(vdev: &Vdev) -> bool {
    let replaces = match (vdev.kind(), vdev.children()) {
        ("replacing", _) => true,
        ("spare", [_, spare]) => spare.is_behind(),
        (kind, _) => kind == "spare",
    };
    replaces || vdev.children().iter().any(|child| is_replacing(child))
}

/// Bytes that are left of sequential rebuilds, if any is under way (`vdev_activity_top_remaining`).
fn rebuilt(rebuilds: &[RebuildStatus]) -> Option<u64> {
    let running = rebuilds.iter().map(|r| &r.phys).filter(|phys| phys.is_running());
    let left = running.map(|phys| phys.estimate.saturating_sub(phys.rebuilt));
    left.reduce(u64::saturating_add)
}

/// What a scan is called here.
fn kind_of(scan: &ScanStatus) -> Option<&'static str> {
    match scan.kind {
        ScanKind::Scrub => Some("scrub"),
        ScanKind::Resilver => Some("resilver"),
        ScanKind::ErrorScrub => Some("scrub"),
    }
}

/// Waits until these activities of a pool are over, and shows nothing meanwhile.
pub fn until_over(
    imported: &Imported,
    activities: &[&'static str],
    ctx: &mut Context,
) -> Result<(), Stop> {
    let (enabled, schedule) = (activities.to_vec(), Schedule::default());
    let show = Show { enabled, scripted: false, exact: false, schedule };
    wait(imported, &show, ctx).map(drop)
}

/// A row of what is left (`print_wait_status_row`).
fn row(
    show: &Show,
    left: &[(&'static str, Left)],
    number: u64,
    ctx: &mut Context,
) -> Result<(), Stop> {
    let width = |name: &str| name.len().max(6) + 2;
    let columns = || left.iter().filter(|(name, _)| show.enabled.contains(name));
    show.schedule.print_stamp(ctx)?;
    if !show.scripted && number == 0 {
        let head: String =
            columns().map(|(n, _)| format!("{:>w$}", n.to_uppercase(), w = width(n))).collect();
        writeln!(ctx.out, "{head}")?;
    }
    let cells: Vec<String> = columns()
        .map(|(name, left)| {
            let bytes = left.bytes.unwrap_or(0);
            let text = if show.exact { bytes.to_string() } else { nicenum(bytes) };
            if show.scripted { text } else { format!(" {text:>w$}", w = width(name) - 1) }
        })
        .collect();
    writeln!(ctx.out, "{}", cells.join(if show.scripted { "\t" } else { "" }))?;
    ctx.out.flush()?;
    Ok(())
}
