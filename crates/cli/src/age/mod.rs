//! `cenote age`: predicting when a workload spoils a pool.
//!
//! The simulation is [`cenote_age`]; here are its arguments, its table, and what the user sees
//! meanwhile. It runs in the user's process and touches no pool that is there.
//!
//! | module | what |
//! |---|---|
//! | [`values`] | sizes, percentages and times as the user writes them |
//! | [`progress`] | what the user sees meanwhile |
//! | [`show`] | the table and the sentence at its end |

mod progress;
mod show;
mod values;

use crate::context::Context;
use crate::outcome::{Outcome, conclude, fail};
use cenote_age::{AgeError, Series, Simulation, Spec, Work};
use clap::{Args, ValueEnum};
use progress::Watch;
use std::path::{Path, PathBuf};
use std::time::Duration;
use values::{percent, rate, size, time};

/// What is done to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// One large file, blocks of which are overwritten in no order
    RandomOverwrite,
    /// A store of time series: 1-minute, 5-minute and 3-hour files that grow by a record at a time
    TimeSeries,
}

/// Whether something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Arguments of `cenote age`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT)]
pub struct AgeArgs {
    /// Size of all devices
    #[arg(long, value_parser = size, default_value = "100T")]
    size: u64,
    /// Top-level vdevs, a device each; mirrors of such devices age alike
    #[arg(long, value_name = "N", default_value_t = 8)]
    vdevs: u64,
    /// log2 of the bytes of a sector
    #[arg(long, value_name = "N", default_value_t = 12)]
    ashift: u32,
    /// How much of the pool is allocated at first, in one go
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "65%")]
    fill: f64,
    /// What is done to the pool
    #[arg(long, value_enum, default_value_t = Workload::TimeSeries)]
    workload: Workload,
    /// Size of a data block
    #[arg(long, value_parser = size, default_value = "8K")]
    block: u64,
    /// random-overwrite: data written, per second [default: 20M/s]
    #[arg(long, value_parser = rate)]
    rate: Option<u64>,
    /// time-series: files of each kind [default: 100000]
    #[arg(long, value_name = "N")]
    files: Option<u64>,
    /// time-series: files with a record each minute, rather than --files
    #[arg(long, value_name = "N")]
    minute_files: Option<u64>,
    /// time-series: files with a record every five minutes, rather than --files
    #[arg(long, value_name = "N")]
    five_minute_files: Option<u64>,
    /// time-series: files with a record every three hours, rather than --files
    #[arg(long, value_name = "N")]
    three_hour_files: Option<u64>,
    /// time-series: size of a record [default: 32]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    record: Option<u64>,
    /// time-series: how long until a file is updated again [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = time)]
    every: Option<Duration>,
    /// time-series: how far data compresses, such as 2.5; without it, data is not compressed
    #[arg(long, value_name = "RATIO")]
    compressed: Option<f64>,
    /// time-series: delete the oldest data so that the pool stays as full as it is at first
    #[arg(long)]
    hold: bool,
    /// How long to simulate, such as 12h, 30d or 1y
    #[arg(long = "for", value_name = "TIME", value_parser = time, default_value = "30d")]
    duration: Duration,
    /// From one row of the table to the next
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1d")]
    step: Duration,
    /// From one transaction group to the next
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "5s")]
    txg: Duration,
    /// Whether the pool has the feature log_spacemap
    #[arg(long, value_enum, default_value_t = Switch::On)]
    logs: Switch,
    /// Where randomness begins: the same seed has the same pool age in the same way
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Draw a plot
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Write a page with the plot and the table
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Show no progress
    #[arg(short)]
    quiet: bool,
}

const ABOUT: &str = "\
Predict when a workload spoils a pool.

A pool is made in memory and filled, and the workload simulated: the engine's own allocator, space \
maps, log space maps and transaction groups do what they would do in a real pool, faster than real \
time. File data is neither stored nor needed. Indirect blocks and dnodes are modelled and shown \
apart from what is really written.

A metaslab is spoiled when none of its free segments can hold a block of 128 KiB. A pool is spoiled \
when more than half of its metaslabs are.

Columns: simulated time; space allocated; fragmentation as in zpool list; metaslabs that are \
spoiled; the largest free segment, rounded down to a power of two; latency of an allocation, \
measured here, of which 50%, 99% and 99.9% are faster; records of space maps per metaslab; per \
transaction group, writes of space maps and other metadata that were really made, metadata that is \
modelled, and time that it took here.";

impl AgeArgs {
    fn spec(&self) -> Result<Spec, String> {
        let work = match self.workload {
            Workload::RandomOverwrite => self.overwrite()?,
            Workload::TimeSeries => Work::TimeSeries(self.series()?),
        };
        Ok(Spec {
            size: self.size,
            vdevs: self.vdevs,
            ashift: self.ashift,
            fill: self.fill,
            block: self.block,
            work,
            time: self.duration,
            step: self.step,
            txg: self.txg,
            logs: self.logs == Switch::On,
            seed: self.seed,
        })
    }

    fn overwrite(&self) -> Result<Work, String> {
        let given = [
            ("--files", self.files.is_some()),
            ("--minute-files", self.minute_files.is_some()),
            ("--five-minute-files", self.five_minute_files.is_some()),
            ("--three-hour-files", self.three_hour_files.is_some()),
            ("--record", self.record.is_some()),
            ("--every", self.every.is_some()),
            ("--compressed", self.compressed.is_some()),
            ("--hold", self.hold),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(format!("{name} is for --workload time-series")),
            None => Ok(Work::RandomOverwrite { rate: self.rate.unwrap_or(20 << 20) }),
        }
    }

    fn series(&self) -> Result<Series, String> {
        if self.rate.is_some() {
            return Err("--rate is for --workload random-overwrite".into());
        }
        if self.compressed.is_some_and(|ratio| ratio < 1.0 || ratio.is_nan()) {
            return Err("--compressed is at least 1".into());
        }
        let default = Series::default();
        let every = self.every.unwrap_or(Duration::from_secs(default.every));
        if every.subsec_nanos() != 0 {
            return Err("--every is in whole seconds".into());
        }
        let own = [self.minute_files, self.five_minute_files, self.three_hour_files];
        let mut files = default.files;
        for (count, own) in files.iter_mut().zip(own) {
            *count = own.or(self.files).unwrap_or(*count);
        }
        Ok(Series {
            files,
            record: self.record.unwrap_or(default.record),
            every: every.as_secs(),
            ratio: self.compressed.unwrap_or(default.ratio),
            hold: self.hold,
        })
    }
}

/// Runs `cenote age`; returns the exit code.
pub fn age(args: &AgeArgs, ctx: &mut Context) -> i32 {
    let outcome = age_all(args, ctx);
    conclude(outcome, "", ctx)
}

fn age_all(args: &AgeArgs, ctx: &mut Context) -> Outcome {
    let wrong = |why: String| fail(format!("cenote age: {why}"));
    let spec = match args.spec() {
        Ok(spec) => spec,
        Err(why) => return wrong(why),
    };
    let total = spec.time;
    let report = Simulation::new(spec).and_then(|mut simulation| {
        let mut watch = Watch::new(total, args.quiet, ctx);
        let report = simulation.run(&mut |progress| watch.look(progress, ctx));
        watch.finish();
        report
    });
    let report = match report {
        Ok(report) => report,
        Err(e) => return wrong(e.to_string()),
    };
    let text = show::text(&report)?;
    match args.json {
        true => {
            let json = serde_json::to_string_pretty(&report).map_err(std::io::Error::from)?;
            writeln!(ctx.out, "{json}")?;
        }
        false => write!(ctx.out, "{text}")?,
    }
    if let Some(path) = &args.plot {
        write_file(&ctx.path(path), cenote_age::plot::svg(&report))?;
    }
    if let Some(path) = &args.html {
        write_file(&ctx.path(path), cenote_age::plot::html(&report, &text))?;
    }
    Ok(0)
}

fn write_file(path: &Path, text: Result<String, AgeError>) -> Result<(), crate::outcome::Stop> {
    let text = match text {
        Ok(text) => text,
        Err(e) => return fail(format!("cenote age: {e}")),
    };
    match std::fs::write(path, text) {
        Ok(()) => Ok(()),
        Err(e) => fail(format!("cenote age: '{}': {}", path.display(), crate::outcome::plain(&e))),
    }
}
