//! `zpool events` (`zpool_do_events`, `zpool_events_next`): what happened to the pools that the daemon has, and had.

use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zpool::select::misnamed;
use cenote_command::clock;
use cenote_command::outcome::{Outcome, usage};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::events::{Event, clear, oldest, since, state_name};
use std::ffi::OsString;
use std::fmt::Write;
use std::time::Duration;

const SPEC: Spec = Spec { short: "vHfc", refused: "", refused_long: &[] };
/// How often `-f` looks whether there is something new.
const LOOK: Duration = Duration::from_millis(100);
/// Columns that what an event says is indented by, and what is within that once more.
const INDENT: usize = 8;

/// Runs `zpool events`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let names = parsed.names();
    let pool = match names.as_slice() {
        [] => None,
        [name] if misnamed(name).is_some() => return usage(format!("invalid pool name '{name}'")),
        [name] => Some(name.as_str()),
        _ => return usage("too many arguments"),
    };
    if has('c') {
        if pool.is_some() || ['v', 'H', 'f'].into_iter().any(has) {
            return usage("invalid options combined with -c");
        }
        writeln!(ctx.out, "cleared {} events", clear())?;
        return Ok(0);
    }
    if !has('H') {
        writeln!(ctx.out, "{:<30} CLASS", "TIME")?;
    }
    let mut last = oldest();
    loop {
        let (events, dropped) = since(last);
        if dropped > 0 {
            writeln!(ctx.out, "dropped {dropped} events")?;
        }
        last = last.saturating_add(dropped);
        for event in &events {
            last = event.eid;
            if pool.is_none_or(|pool| event.payload.str("pool").is_none_or(|of| of == pool)) {
                let text = text(event, has('H'), has('v'), ctx);
                write!(ctx.out, "{text}")?;
            }
        }
        ctx.out.flush()?;
        if !has('f') || ctx.cancelled() {
            return Ok(0);
        }
        std::thread::sleep(LOOK);
    }
}

/// An event as it is shown (`zpool_do_events_short`).
fn text(event: &Event, scripted: bool, verbose: bool, ctx: &Context) -> String {
    let (seconds, nanoseconds) = match event.payload.get("time") {
        Some(NvValue::Int64Array(time)) => match time.as_slice() {
            [seconds, nanoseconds] => (*seconds, *nanoseconds),
            _ => (0, 0),
        },
        _ => (0, 0),
    };
    let time = clock::format(&ctx.caller, seconds, "%b %e %Y %H:%M:%S");
    let gap = if scripted { '\t' } else { ' ' };
    let class = event.payload.str("class").unwrap_or_default();
    let mut text = format!("{time}.{nanoseconds:09}{gap}{class}\n");
    if verbose {
        list(&event.payload, INDENT, &mut text);
        text.push('\n');
    }
    text
}

/// What an event says, a line for each pair (`zpool_do_events_nvprint`).
fn list(pairs: &NvList, depth: usize, text: &mut String) {
    for (name, value) in &pairs.pairs {
        let _ = match value {
            NvValue::NvList(inner) => {
                let _ = writeln!(text, "{:depth$}{name} = (embedded nvlist)", "");
                list(inner, depth + INDENT, text);
                writeln!(text, "{:depth$}(end {name})", "")
            }
            value => writeln!(text, "{:depth$}{name} = {}", "", shown(name, value)),
        };
    }
}

fn shown(name: &str, value: &NvValue) -> String {
    match value {
        NvValue::Boolean => "1".into(),
        NvValue::Uint8(n) => format!("{n:#x}"),
        NvValue::Int32(n) => format!("{n:#x}"),
        NvValue::Uint64(n) if matches!(name, "vdev_state" | "vdev_laststate") => {
            format!("\"{}\" ({n:#x})", state_name(*n))
        }
        NvValue::Uint32(n) => format!("{n:#x}"),
        NvValue::Int64(n) => format!("{n:#x}"),
        NvValue::Uint64(n) => format!("{n:#x}"),
        NvValue::String(text) => format!("\"{text}\""),
        NvValue::Int64Array(list) => list.iter().map(|n| format!("{n:#x} ")).collect(),
        NvValue::Uint64Array(list) => list.iter().map(|n| format!("{n:#x} ")).collect(),
        NvValue::StringArray(list) => list.iter().map(|text| format!("\"{text}\" ")).collect(),
        _ => "<unknown>".into(),
    }
}
