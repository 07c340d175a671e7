//! `cenote tunables`: the numbers that may be changed while pools are in use.
//!
//! They are of the daemon (see [`cenote_engine::tunables`]). Without one the listing shows what it would
//! start with; setting one starts it, and it then stays until it is stopped or the values are again
//! those that it started with.

use crate::commands::Where;
use crate::context::Context;
use crate::options::bytes;
use crate::table::{Column, Table};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_daemon::tunables::startup::find;
use cenote_daemon::tunables::{directory, startup};
use cenote_engine::tunables::{self, Tunable, Unit};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::io;

/// Arguments of `cenote tunables`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TunablesArgs {
    /// One tab between columns, no headers
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    exact: bool,
    /// Everything that is known, as JSON
    #[arg(long)]
    json: bool,
    /// Those to list; all if none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Give tunables of the daemon other values, all of them or none
    Set {
        /// What to set; bytes may be given as in 512M
        #[arg(required = true, value_name = "NAME=VALUE")]
        settings: Vec<String>,
    },
    /// Give tunables of the daemon their defaults
    Reset {
        /// Which
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Show them, and figures of pools, as files: DIR/parameters and DIR/kstat/zfs
    Mount {
        /// An existing directory
        dir: OsString,
    },
    /// Take such a directory away
    Unmount {
        /// Where it is mounted
        dir: OsString,
    },
}

impl TunablesArgs {
    /// Where the command runs.
    pub fn place(&self) -> Where {
        match self.action {
            None | Some(Action::Unmount { .. }) => Where::DaemonIfRunning,
            Some(_) => Where::Daemon,
        }
    }
}

/// Runs `cenote tunables`; returns the exit code.
pub fn run(args: &TunablesArgs, ctx: &mut Context) -> i32 {
    let done = match &args.action {
        None => list(args, ctx),
        Some(Action::Set { settings }) => set(settings),
        Some(Action::Reset { names }) => {
            named(names).map(|found| found.iter().for_each(|t| t.reset())).map(|()| 0)
        }
        Some(Action::Mount { dir }) => directory::mount(ctx, dir),
        Some(Action::Unmount { dir }) => directory::unmount(ctx, dir),
    };
    let done = done.map_err(|stop| match stop {
        Stop::Fail(why) => Stop::Fail(format!("cenote tunables: {why}")),
        Stop::Usage(why) => Stop::Usage(format!("cenote tunables: {why}")),
        stop => stop,
    });
    ctx.conclude(done, "usage: cenote tunables set NAME=VALUE...")
}

/// The tunables of these names; all of them for an empty list.
fn named(names: &[String]) -> Result<Vec<&'static Tunable>, Stop> {
    match names {
        [] => Ok(tunables::all().to_vec()),
        names => names.iter().map(|name| find(name).or_else(fail)).collect(),
    }
}

fn set(settings: &[String]) -> Outcome {
    let mut wanted = Vec::new();
    for setting in settings {
        let Some((name, value)) = setting.split_once('=') else {
            return usage(format!("'{setting}' is not NAME=VALUE"));
        };
        let tunable = find(name).or_else(fail)?;
        let scaled = bytes(value).filter(|_| tunable.unit == Unit::Bytes);
        let number = match scaled {
            Some(number) => tunable.check(number).map(|()| number),
            None => tunable.parse(value),
        };
        wanted.push((tunable, number.or_else(|e| fail(e.to_string()))?));
    }
    for (tunable, number) in wanted {
        tunable.set(number).or_else(|e| fail(e.to_string()))?;
        tracing::info!("{} is {number}", tunable.name);
    }
    Ok(0)
}

fn list(args: &TunablesArgs, ctx: &mut Context) -> Outcome {
    for warning in startup::load() {
        ctx.complain(format_args!("cenote tunables: {warning}"));
    }
    let found = named(&args.names)?;
    if args.json {
        return print_json(&found, ctx);
    }
    let rows: Vec<[String; 6]> = found.iter().map(|t| row(t, args.exact)).collect();
    let headers = ["NAME", "VALUE", "DEFAULT", "UNIT", "COUNTS", "DESCRIPTION"];
    let mut columns = headers.map(Column::text);
    for (i, column) in columns.iter_mut().enumerate() {
        column.right = matches!(i, 1 | 2);
        rows.iter().filter_map(|row| row.get(i)).for_each(|text| column.fit(text, false));
    }
    let table = Table { columns: columns.to_vec(), scripted: args.scripted };
    table.header(&mut ctx.out)?;
    for row in &rows {
        table.row(&mut ctx.out, row)?;
    }
    Ok(0)
}

fn row(t: &Tunable, exact: bool) -> [String; 6] {
    let shown = |value| match t.unit {
        Unit::Bytes if !exact => round(value),
        _ => value.to_string(),
    };
    let (unit, counts) = (t.unit.to_string(), t.counts.to_string());
    [t.name.into(), shown(t.get()), shown(t.default), unit, counts, t.description.into()]
}

/// Bytes in the largest unit in which they are a whole number: never less exact than in bytes.
fn round(bytes: u64) -> String {
    let units = [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')];
    let fits = |(shift, _): &(u32, char)| bytes != 0 && bytes.trailing_zeros() >= *shift;
    match units.into_iter().find(fits) {
        Some((shift, letter)) => format!("{}{letter}", bytes >> shift),
        None => bytes.to_string(),
    }
}

fn print_json(found: &[&Tunable], ctx: &mut Context) -> Outcome {
    let mut all = Map::new();
    for t in found {
        let facts = json!({
            "value": t.get(),
            "default": t.default,
            "unit": t.unit.to_string(),
            "counts": t.counts.to_string(),
            "least": t.range.0,
            "most": t.range.1,
            "description": t.description,
        });
        all.insert(t.name.into(), facts);
    }
    serde_json::to_writer_pretty(&mut ctx.out, &Value::Object(all)).map_err(io::Error::from)?;
    writeln!(ctx.out)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_units_only_if_nothing_is_lost() {
        let all = [0, 1, 1024, 1025, 16 << 20, (16 << 20) + 1, 3 << 40, u64::MAX];
        let want = ["0", "1", "1K", "1025", "16M", "16777217", "3T", "18446744073709551615"];
        assert_eq!(all.map(round), want);
    }
}
