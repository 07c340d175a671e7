//! `cenote age`: predicting when a workload spoils a pool.
//!
//! The simulation is [`cenote_age`]; here are its arguments, its table, and what the user sees
//! meanwhile. It runs in the user's process, or, if it begins with the free space of an imported pool,
//! where that is: in the daemon. No pool is written to.
//!
//! It can be interrupted at any time: the transaction group is finished, and the report until then
//! is put out.
//!
//! | module | what |
//! |---|---|
//! | [`values`] | sizes, percentages and times as the user writes them |
//! | [`output`] | JSON, and files that are up to date after every row |
//! | [`progress`] | what the user sees meanwhile |
//! | [`show`] | the table and the sentence at its end |

mod output;
mod progress;
mod show;
mod values;

use crate::context::Context;
use crate::locate::{Seen, Source};
use cenote_age::{Event, PoolModel, Report, Series, Simulation, Spec, Work};
use cenote_command::outcome::{INTERRUPTED, Outcome, Stop};
use cenote_vdev::patience::impatiently;
use clap::{Args, ValueEnum};
use progress::Watch;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
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
#[command(long_about = ABOUT, after_long_help = show::columns())]
pub struct AgeArgs {
    /// Begin with the free space of this pool: its vdevs, metaslabs and what is allocated in them
    #[arg(
        long,
        value_name = "POOL",
        conflicts_with_all = ["size", "vdevs", "ashift", "fill", "logs"],
    )]
    like: Option<String>,
    #[command(flatten)]
    source: Source,
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
    /// Size of an indirect block, such as the 128K that OpenZFS takes [default: as in pools that
    /// cenote writes, twice that of a data block]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    indirect: Option<u64>,
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
    /// Print JSON: a line of what is simulated, one for each row as soon as there is one, and one
    /// of the result
    #[arg(long)]
    json: bool,
    /// Draw a plot, anew for each row
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Write a page with the plot and the table, anew for each row
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Write the map of free space, at first and at the end, as a page or, if FILE ends in .svg, as
    /// a picture
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
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

With --like, the simulation begins with the free space of a pool that is there. Only its space maps \
are read. What is allocated there is the file that random-overwrite works on; time-series begins \
its files in what is free. Log, special and removed vdevs are left out.

A metaslab is spoiled when it has free space, but no free segment that can hold a block of 128 KiB. A \
pool is spoiled when more than half of its metaslabs with free space are.

Interrupted, it finishes the transaction group, puts out what there is, and exits with 130.";

impl AgeArgs {
    /// Whether the command works on imported pools.
    pub fn needs_imported_pool(&self) -> bool {
        self.like.is_some() && self.source.needs_imported_pool()
    }

    fn spec(&self) -> Result<Spec, String> {
        if self.like.is_none() && self.source.is_given() {
            return Err("-d and -e say where the pool of --like is".into());
        }
        let work = match self.workload {
            Workload::RandomOverwrite => self.overwrite()?,
            Workload::TimeSeries => Work::TimeSeries(self.series()?),
        };
        Ok(Spec {
            like: None,
            size: self.size,
            vdevs: self.vdevs,
            ashift: self.ashift,
            fill: self.fill,
            block: self.block,
            indirect: self.indirect,
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
    ctx.conclude(outcome, "")
}

fn wrong(why: impl std::fmt::Display) -> Stop {
    Stop::Fail(format!("cenote age: {why}"))
}

/// Why a simulation ended. The pool is one in memory, so what may be done about a pool is no advice.
fn stopped(e: impl std::fmt::Display) -> Stop {
    match e.to_string().ends_with("out of space") {
        true => wrong("the pool is too small for this workload: out of space"),
        false => wrong(e),
    }
}

fn age_all(args: &AgeArgs, ctx: &mut Context) -> Outcome {
    let spec = args.spec().map_err(wrong)?;
    let mut simulation = match &args.like {
        None => Simulation::new(spec),
        Some(pool) => {
            let mut look = |seen: Seen<'_>, _: &mut Context| PoolModel::of(seen.pool());
            let read = impatiently(|| args.source.read(pool, ctx, &mut look));
            let model = read.map_err(wrong)?;
            Simulation::like(spec, model)
        }
    }
    .map_err(wrong)?;
    output::begin(simulation.spec(), args, ctx)?;
    let report = run(&mut simulation, args, ctx)?;
    output::end(&report, args, ctx)?;
    if report.interrupted {
        ctx.complain("cenote age: interrupted");
        return Ok(INTERRUPTED);
    }
    Ok(0)
}

/// Runs a simulation, putting out rows as they come; then writes the map, if it is wanted.
fn run(simulation: &mut Simulation, args: &AgeArgs, ctx: &mut Context) -> Result<Report, Stop> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let total = simulation.spec().time;
    let mut watch = Watch::new(total, args.quiet, ctx);
    let mut done = Ok(());
    let mut look = |event: Event<'_>| {
        match event {
            Event::Progress(progress) => watch.look(progress, ctx),
            Event::Row(report) => done = output::row(report, args, ctx),
        }
        done.is_ok() && !ctx.cancelled()
    };
    let filled = simulation.fill(&mut look).map_err(stopped)?;
    let before = args.map.as_ref().filter(|_| filled).map(|_| simulation.map(now));
    let report = simulation.run(&mut look).map_err(stopped)?;
    watch.finish(ctx);
    done?;
    if let (Some(path), Some(before)) = (&args.map, before) {
        output::map(path, before, simulation.map(now), ctx)?;
    }
    Ok(report)
}
