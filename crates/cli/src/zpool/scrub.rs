//! `zpool scrub` and `zpool resilver` (`zpool_do_scrub`, `zpool_do_resilver`, `zpool_scan`).

use crate::context::Context;
use crate::options::{Parsed, Spec, parse};
use crate::pools::{Imported, reason};
use crate::zpool::select::select;
use crate::zpool::wait::until_over;
use cenote_command::caller::Caller;
use cenote_command::clock;
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_engine::{Engine, ScanError};
use cenote_vdev::VdevState;
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "aCeE:pS:sw", refused: "t", refused_long: &[] };

/// What is asked of scrubs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Start,
    SinceLast,
    /// Between two times, in seconds since 1970.
    Between(Option<u64>, Option<u64>),
    Errors,
    Pause,
    Stop,
}

impl Order {
    /// What comes before the pool's name where it cannot be done.
    fn cannot(self) -> &'static str {
        match self {
            Order::Start | Order::SinceLast | Order::Between(..) | Order::Errors => "cannot scrub",
            Order::Pause => "cannot pause scrubbing",
            Order::Stop => "cannot cancel scrubbing",
        }
    }

    fn give(self, engine: &Engine) -> Result<(), ScanError> {
        match self {
            Order::Start => engine.scrub(),
            Order::SinceLast => engine.scrub_since_last(),
            Order::Between(from, to) => engine.scrub_between(from, to),
            Order::Errors => engine.scrub_errors(),
            Order::Pause => engine.pause_scrub(),
            Order::Stop => engine.stop_scrub(),
        }
    }
}

/// Runs `zpool scrub`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let has = |letter| parsed.options.iter().any(|option| option.letter == letter);
    let (all, wait) = (has('a'), has('w'));
    let order = order(&has, dates(&parsed, &ctx.caller)?)?;
    if wait && matches!(order, Order::Pause | Order::Stop) {
        return usage("invalid option combination: -w cannot be used with -p or -s");
    }
    let names = parsed.names();
    match names.is_empty() {
        true if !all => return usage("missing pool name argument"),
        false if all => return usage("cannot give a pool name with -a"),
        _ => {}
    }
    let (pools, mut good) = select(ctx, &names);
    let mut begun = Vec::new();
    for imported in pools {
        match scan(&imported, ctx, |engine| order.give(engine), order.cannot()) {
            true => begun.push(imported),
            false => good = false,
        }
    }
    if wait {
        for imported in begun {
            until_over(&imported, &["scrub"], ctx)?;
        }
    }
    Ok(i32::from(!good))
}

/// The times that `-S` and `-E` give (`date_string_to_sec`). The end is rounded up: a scrub rather looks at more.
fn dates(parsed: &Parsed, caller: &Caller) -> Result<(Option<u64>, Option<u64>), Stop> {
    let (mut from, mut to) = (None, None);
    for option in &parsed.options {
        let (place, rounds) = match option.letter {
            'S' => (&mut from, false),
            'E' => (&mut to, true),
            _ => continue,
        };
        let Some((time, unit)) = clock::parse(caller, &option.text()) else {
            return usage("Failed to parse the date.");
        };
        *place = Some(time.saturating_add(if rounds { unit } else { 0 }));
    }
    Ok((from, to))
}

/// What a command line asks for.
fn order(
    has: &dyn Fn(char) -> bool,
    (from, to): (Option<u64>, Option<u64>),
) -> Result<Order, Stop> {
    for (a, b) in [('s', 'p'), ('e', 'p'), ('e', 's'), ('e', 'C'), ('p', 'C'), ('s', 'C')] {
        if has(a) && has(b) {
            let why = format!("invalid option combination: -{a} and -{b} are mutually exclusive");
            return usage(why);
        }
    }
    let dated = from.is_some() || to.is_some();
    if dated && has('C') {
        return usage("invalid option combination: -C and -S/-E date are mutually exclusive");
    }
    if dated && (has('e') || has('s') || has('p')) {
        return usage(
            "invalid option combination: start/end date is available only with normal or thorough scrub",
        );
    }
    if from.zip(to).is_some_and(|(from, to)| from > to) {
        return usage("invalid arguments: end date has to be later than start date");
    }
    Ok(match () {
        () if has('p') => Order::Pause,
        () if has('s') => Order::Stop,
        () if has('e') => Order::Errors,
        () if has('C') => Order::SinceLast,
        () if dated => Order::Between(from, to),
        () => Order::Start,
    })
}

/// Runs `zpool resilver`: begins anew what devices are given that missed something.
pub fn resilver(args: &[OsString], ctx: &mut Context) -> Outcome {
    let names = parse(args, Spec { short: "", refused: "", refused_long: &[] })?.names();
    if names.is_empty() {
        return usage("missing pool name argument");
    }
    let (pools, mut good) = select(ctx, &names);
    for imported in pools {
        let begin = |engine: &Engine| match engine.pool().features().is_enabled("resilver_defer") {
            true => Ok(engine.start_resilver().map(drop)?),
            false => Err(ScanError::NoDefer),
        };
        good &= scan(&imported, ctx, begin, "cannot restart resilver on");
    }
    Ok(i32::from(!good))
}

/// Has a pool do something about scans. Returns whether it was done.
fn scan(
    imported: &Arc<Imported>,
    ctx: &mut Context,
    order: impl Fn(&Engine) -> Result<(), ScanError>,
    cannot: &str,
) -> bool {
    let name = imported.name();
    if matches!(imported.pool().store().vdevs().root().state(), VdevState::CantOpen(_)) {
        ctx.complain(format_args!("cannot scan '{name}': pool is currently unavailable"));
        return false;
    }
    let done = imported.writable().and_then(|engine| {
        order(engine).map_err(|e| match e {
            ScanError::Engine(e) => reason(&e),
            e => e.to_string(),
        })
    });
    match done {
        Ok(()) => {
            ctx.changed(imported);
            true
        }
        Err(why) => {
            ctx.complain(format_args!("{cannot} {name}: {why}"));
            false
        }
    }
}
