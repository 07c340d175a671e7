//! `cenote txgs`: what transaction groups did, for people and for programs.
//!
//! The engine remembers the last groups (`zfs_txg_history`) and keeps totals since the pool was
//! imported. People get tables ([`tables`]); programs get all that the engine's table of figures
//! declares, as JSON or in Prometheus' text format ([`export`]).

mod export;
mod tables;

use crate::context::Context;
use crate::interval::Schedule;
use crate::options::interval_and_count;
use crate::zpool::select::select;
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_engine::{Engine, TxgFigures};
use cenote_vdev::stats::LatencyFigures;
use clap::Args;
use std::collections::HashMap;
use std::sync::Arc;

/// Arguments of `cenote txgs`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").multiple(false))]
pub struct TxgsArgs {
    /// Show exact numbers: bytes and nanoseconds
    #[arg(short = 'p')]
    literal: bool,
    /// Show no titles, and a tab between columns
    #[arg(short = 'H')]
    scripted: bool,
    /// Show the newest COUNT of the groups that are remembered
    #[arg(short = 'n', value_name = "COUNT", conflicts_with_all = ["latency", "prometheus", "fields"])]
    newest: Option<usize>,
    /// Show a line for each pass
    #[arg(long, group = "what")]
    passes: bool,
    /// Show what writes, allocations and loads of metaslabs took
    #[arg(long, group = "what")]
    latency: bool,
    /// Show all figures as one JSON object
    #[arg(long, group = "what", conflicts_with_all = ["literal", "scripted"])]
    json: bool,
    /// Show totals since the import in Prometheus' text format
    #[arg(long, group = "what", conflicts_with_all = ["literal", "scripted"])]
    prometheus: bool,
    /// Show the names of all figures in JSON and for Prometheus, and what they mean
    #[arg(long, group = "what", conflicts_with = "literal")]
    fields: bool,
    /// Pools (all if none is named); then the seconds between reports, and how many
    #[arg(value_name = "POOL | INTERVAL")]
    operands: Vec<String>,
}

/// A pool and its figures.
struct Report {
    pool: String,
    engine: Arc<Engine>,
    /// Those that were not shown yet.
    groups: Vec<TxgFigures>,
}

/// What was shown already.
#[derive(Default)]
struct Shown {
    /// Last group of each pool, by the pool's guid.
    groups: HashMap<u64, u64>,
    /// Histograms of each pool, by its name and theirs.
    latencies: HashMap<(String, &'static str), LatencyFigures>,
}

/// Runs `cenote txgs`.
pub fn run(args: &TxgsArgs, ctx: &mut Context) -> i32 {
    let outcome = match repeat(args, ctx) {
        Err(Stop::Usage(why)) => {
            ctx.complain(why);
            Err(Stop::Said(2))
        }
        outcome => outcome,
    };
    ctx.conclude(outcome, "")
}

fn repeat(args: &TxgsArgs, ctx: &mut Context) -> Outcome {
    if args.fields {
        if !args.operands.is_empty() {
            return usage("--fields is the same for all pools: no operands");
        }
        export::fields(args.scripted, &mut ctx.out)?;
        return Ok(0);
    }
    let mut names = args.operands.clone();
    let (interval, count) = interval_and_count(&mut names)?;
    let schedule = Schedule { interval, count, stamp: None };
    let mut shown = Shown::default();
    schedule.run(ctx, |number, ctx| {
        let (reports, good) = reports(args, &names, &mut shown, ctx)?;
        let first = number == 0;
        if args.json {
            export::json(&reports, &mut ctx.out)?;
        } else if args.prometheus {
            export::prometheus(&reports, &mut ctx.out)?;
        } else if args.latency {
            tables::latency(args, &reports, &mut shown, &mut ctx.out)?;
        } else if args.passes {
            tables::passes(args, &reports, first, &mut ctx.out)?;
        } else {
            tables::groups(args, &reports, first, &mut ctx.out)?;
        }
        Ok(i32::from(!good))
    })
}

/// What is new of each pool that is written; whether all names are names of such pools.
fn reports(
    args: &TxgsArgs,
    names: &[String],
    shown: &mut Shown,
    ctx: &mut Context,
) -> Result<(Vec<Report>, bool), Stop> {
    let (pools, mut good) = select(ctx, names);
    if pools.is_empty() && names.is_empty() {
        return fail("no pools available");
    }
    let mut reports = Vec::new();
    for imported in pools {
        let Some(engine) = imported.engine() else {
            if !names.is_empty() {
                let name = imported.name();
                ctx.complain(format_args!("'{name}' is read-only: it has no transaction groups"));
                good = false;
            }
            continue;
        };
        let mut groups = engine.figures();
        let last = shown.groups.get(&imported.guid()).copied().unwrap_or(0);
        groups.retain(|group| group.txg > last);
        if let Some(group) = groups.last() {
            shown.groups.insert(imported.guid(), group.txg);
        }
        let surplus = args.newest.map_or(0, |newest| groups.len().saturating_sub(newest));
        groups.drain(..surplus);
        let pool = imported.name().to_string();
        reports.push(Report { pool, engine: engine.clone(), groups });
    }
    Ok((reports, good))
}
