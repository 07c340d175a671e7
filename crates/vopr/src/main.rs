//! The simulator: a whole pool, with all its threads, from one seed (`make vopr`).
//!
//! # Idea
//!
//! A seed is a history of a pool: file systems and volumes that several threads change at the same time and have stable, snapshots,
//! clones, promotions, rollbacks, streams that are sent and received, properties; disks that are slow, fail, lie, go and come
//! back, that join, are replaced (by resilvers and by rebuilds in the order of places) and leave, are trimmed and initialized; spares that step in; checkpoints that are gone back to;
//! scrubs and resilvers; deduplication and encryption of some pools; an object store with the data, of some pools, that fails and is away; the power, which goes at any operation of a disk, in an import and a replay too. All of the engine runs, with every
//! thread that it has in production. One thread at a time runs, and the seed says which ([`schedule`]); it says how long
//! disks take, what a loss of power leaves ([`disk`], [`store`]), and what is done ([`plan`](mod@plan)). So the same seed gives the
//! same history and the same bytes on the disks.
//!
//! What should come of it is known from one [`model`] of datasets and of what they hold, and from what crashes may
//! leave of that (`cenote_torture::live::history`).
//!
//! | room | what |
//! |---|---|
//! | [`schedule`] | which thread runs, and what time it is |
//! | [`disk`] | simulated disks, and the power |
//! | [`store`] | a simulated object store |
//! | [`plan`](mod@plan) | the steps of a history |
//! | [`model`] | what a pool should hold |
//! | [`sim`] | a history: it is done and compared |
//! | [`many`] | many histories; the shortest one that fails |
//!
//! # What is simulated
//!
//! The sync thread and its groups by time, write-behind, deferred frees, loading of metaslabs, read-ahead, condensing of livelists,
//! files that are freed in the background, threads that pack blocks and those that wait for devices, logs that are written beside groups by
//! threads that share the writes, the throttle, self-healing, degraded vdevs, and all of this cut off by the
//! loss of power.
//!
//! # What is not
//!
//! FUSE and the daemon; `io_uring` (disks are in memory); S3 (the object store is in memory, and behind the client's interface); pools on which OpenZFS worked in between; holds, bookmarks, resumed receives,
//! spares that pools share. The tests of `cenote-torture` have most of these. A thread is not stopped within a run of instructions
//! that neither block nor wake another thread ([`schedule`]).
//!
//! # A process for each history
//!
//! The engine has a few things for the whole process (tunables, counters, the threads that pack blocks). A history
//! begins with a new process, so that these are the same each time. The parent process starts the processes of
//! the histories, compares what two histories of one seed came to, and leaves steps out of a history that fails.

mod disk;
mod many;
mod model;
mod plan;
mod schedule;
mod sim;
mod store;

use plan::{Plant, plan};
use sim::{Figures, Sim};
use std::path::Path;
use std::process::ExitCode;

/// A history that fails ends its process with this.
pub const FAILED: i32 = 1;
/// One that cannot go on, with this.
pub const STUCK: i32 = 3;

/// What is asked for on the command line.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Seconds in which histories are begun.
    seconds: u64,
    /// The first seed.
    seed: u64,
    /// Histories at most.
    count: u64,
    /// So many histories are done, whatever fails.
    seeds: Option<u64>,
    /// Steps of each.
    steps: usize,
    /// Histories at once.
    jobs: usize,
    /// Which steps are done.
    keep: Vec<bool>,
    plant: Option<Plant>,
    /// Pools have their data in an object store, all of them.
    store: bool,
    /// One history, in this process.
    run: bool,
    /// What is left on the disks is kept in the present directory.
    save: bool,
    /// Every hand-over is told.
    trace: bool,
}

const USAGE: &str =
    "vopr [--seconds N] [--seed N] [--count N] [--steps N] [--jobs N] [--plant FAULT] [--store]
vopr --seeds N [--seed N] [--steps N] [--jobs N] [--plant FAULT] [--store]
vopr --run --seed N [--steps N] [--keep STEP,...] [--plant FAULT] [--store] [--save] [--trace]";
/// The variable by which the process of a history is asked for it, and how long its value is, whatever is asked for.
const VARIABLE: &str = "VOPR";
const LENGTH: usize = 4096;
/// Steps that a history has at most.
const MOST_STEPS: usize = 900;

fn asked<'a>(mut all: impl Iterator<Item = &'a str>) -> Option<Asked> {
    let mut asked = Asked {
        seconds: u64::MAX,
        seed: 0,
        count: u64::MAX,
        seeds: None,
        steps: 40,
        jobs: 2,
        keep: Vec::new(),
        plant: None,
        store: false,
        run: false,
        save: false,
        trace: false,
    };
    let mut keep = None;
    while let Some(word) = all.next() {
        match word {
            "--run" => asked.run = true,
            "--trace" => asked.trace = true,
            "--store" => asked.store = true,
            "--save" => asked.save = true,
            "--seconds" => asked.seconds = all.next()?.parse().ok()?,
            "--seed" => asked.seed = all.next()?.parse().ok()?,
            "--seeds" => asked.seeds = Some(all.next()?.parse().ok()?),
            "--count" => asked.count = all.next()?.parse().ok()?,
            "--steps" => asked.steps = all.next()?.parse().ok().filter(|n| *n <= MOST_STEPS)?,
            "--jobs" => asked.jobs = all.next()?.parse().ok()?,
            "--keep" => keep = all.next(),
            "--plant" => {
                let name = all.next()?;
                asked.plant = Some(Plant::ALL.iter().find(|(n, _)| *n == name)?.1);
            }
            _ => return None,
        }
    }
    if asked.seeds.is_some() && (asked.run || (asked.seconds, asked.count) != (u64::MAX, u64::MAX))
    {
        return None;
    }
    asked.keep = vec![keep.is_none(); asked.steps];
    for number in keep.unwrap_or_default().split(',').filter(|n| !n.is_empty()) {
        *asked.keep.get_mut(number.parse::<usize>().ok()?)? = true;
    }
    Some(asked)
}

/// Does a history.
fn history(asked: &Asked) -> Result<(Figures, Vec<cenote_torture::live::disk::Image>), String> {
    let mut sim = Sim::new(asked.seed, asked.plant, asked.store)?;
    for step in plan(asked.seed, asked.steps) {
        if asked.keep[step.number] {
            sim.step(&step).map_err(|why| format!("step {}: {why}", step.number))?;
        }
    }
    sim.finish()
}

fn run(asked: &Asked) -> Result<(), String> {
    let log = tracing_subscriber::fmt().with_writer(std::io::stdout).with_ansi(false);
    log.without_time().with_target(false).init();
    let (done, ran, mut names) = schedule::run((asked.seed, asked.trace), || history(asked));
    let (figures, images) = done.unwrap_or_else(|_| Err("it panicked".into()))?;
    for (i, image) in images.iter().enumerate().filter(|_| asked.save) {
        image.save(Path::new(&format!("d{i}")));
    }
    names.sort();
    names.dedup();
    println!("threads: {}", names.join(" "));
    println!(
        "seed {}: {} threads, {} hand-overs, {} s, {} operations of disks, {} groups, {} crashes; {:016x} {:016x}",
        asked.seed,
        ran.threads,
        ran.switches,
        ran.time / 1_000_000_000,
        figures.operations,
        figures.groups,
        figures.crashes,
        ran.digest,
        figures.digest
    );
    Ok(())
}

fn main() -> ExitCode {
    let is_history = std::env::var(VARIABLE).ok();
    let line = || std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let words = is_history.clone().unwrap_or_else(line);
    let Some(asked) = asked(words.split_ascii_whitespace()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if !asked.run {
        return if many::run(&asked) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if is_history.is_none() {
        let error = schedule::settle(VARIABLE, &format!("{words:LENGTH$}"));
        eprintln!("the history has no process of its own: {error}");
        return ExitCode::FAILURE;
    }
    if let Err(why) = run(&asked) {
        println!("seed {} fails: {why}", asked.seed);
        // Threads of the history are still there.
        std::process::exit(FAILED);
    }
    std::process::exit(0);
}
