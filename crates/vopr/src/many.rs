//! Many histories, each in a process of its own; and the shortest one that fails.
//!
//! Every fourth history that ends well is judged by OpenZFS's `zdb -bcc`. Every eighth is done twice: both have to
//! come to the same, to the last byte that was written.
//!
//! Histories are done until one fails, by time or number, or so many of them whatever fails (`--seeds`).
//!
//! Of a history that fails, steps are left out as long as it still fails: first many at once, then single ones. Its
//! threads run in another order then, so that some that depend on that are left longer than they need be.

use crate::Asked;
use crate::plan::plan;
use cenote_torture::live::disk::Image;
use cenote_torture::live::lab;
use parking_lot::Mutex;
use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One in so many is judged, and done twice.
const JUDGED: u64 = 4;
const TWICE: u64 = 8;
/// How long a history takes at most, unless it hangs.
const LONGEST: Duration = Duration::from_secs(300);
/// How long shorter histories are looked for.
const SHRINKING: Duration = Duration::from_secs(180);

/// How a history ended.
struct Ended {
    /// It is what it should be.
    well: bool,
    text: String,
}

impl Ended {
    /// The line that tells what it came to.
    fn last(&self) -> &str {
        self.text.lines().last().unwrap_or_default()
    }

    /// The line that tells what was wrong, of a history that failed by itself.
    fn why(&self) -> &str {
        let told = self.text.lines().rev().find_map(|line| line.split_once(" fails: "));
        told.map_or_else(|| self.last(), |(_, why)| why)
    }
}

/// Does the history of a seed.
fn one(asked: &Asked, seed: u64, keep: Option<&[usize]>, judge: bool) -> Ended {
    let failed = |e: std::io::Error| Ended { well: false, text: format!("no process: {e}") };
    try_one(asked, seed, keep, judge).unwrap_or_else(failed)
}

fn try_one(
    asked: &Asked,
    seed: u64,
    keep: Option<&[usize]>,
    judge: bool,
) -> std::io::Result<Ended> {
    let dir = tempfile::tempdir()?;
    let told = dir.path().join("told");
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--run").args(["--seed", &seed.to_string(), "--steps", &asked.steps.to_string()]);
    if let Some(keep) = keep {
        let list: Vec<String> = keep.iter().map(usize::to_string).collect();
        command.args(["--keep", &list.join(",")]);
    }
    if let Some((name, _)) = crate::Plant::ALL.iter().find(|(_, p)| Some(*p) == asked.plant) {
        command.args(["--plant", name]);
    }
    if asked.store {
        command.arg("--store");
    }
    if judge {
        command.arg("--save");
    }
    let out = File::create(&told)?;
    command.current_dir(dir.path()).stdout(out.try_clone()?).stderr(out);
    let mut child = command.spawn()?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if begun.elapsed() > LONGEST => {
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut text = String::from_utf8_lossy(&std::fs::read(&told)?).into_owned();
    if status.is_none() {
        text.push_str("it does not end");
    }
    let mut well = status.is_some_and(|status| status.success());
    if well && judge {
        let disks = (0..).map(|i| dir.path().join(format!("d{i}"))).take_while(|d| d.exists());
        let images: Vec<Image> = disks.map(|disk| Image::load(&disk)).collect();
        // OpenZFS knows no pools in object stores: these were judged by the history itself.
        if !images.is_empty()
            && let Err(why) = lab::judge(&images)
        {
            (well, text) = (false, why);
        }
    }
    Ok(Ended { well, text })
}

/// Leaves out steps of a history that fails. Returns those that are left.
fn shortest(asked: &Asked, seed: u64, judge: bool) -> Vec<usize> {
    let begun = Instant::now();
    let mut keep: Vec<usize> = plan(seed, asked.steps).iter().map(|s| s.number).collect();
    // The command line has no word for no steps.
    let fails = |keep: &[usize]| {
        let tries = !keep.is_empty() && begun.elapsed() < SHRINKING;
        tries && !one(asked, seed, Some(keep), judge).well
    };
    let mut part = keep.len().div_ceil(2).max(1);
    loop {
        let (mut at, before) = (0, keep.len());
        while at < keep.len() {
            let end = (at + part).min(keep.len());
            let less: Vec<usize> = keep[..at].iter().chain(&keep[end..]).copied().collect();
            if fails(&less) { keep = less } else { at = end }
        }
        match part {
            1 if keep.len() == before => return keep,
            1 => {}
            _ => part = part.div_ceil(2),
        }
    }
}

/// Tells of a history that fails.
fn report(asked: &Asked, (seed, judge): (u64, bool), ended: &Ended) {
    println!("seed {seed} fails:\n{}", ended.text);
    let keep = shortest(asked, seed, judge);
    let short = one(asked, seed, Some(&keep), judge);
    let (list, steps): (Vec<String>, _) =
        (keep.iter().map(usize::to_string).collect(), asked.steps);
    println!(
        "the shortest history of seed {seed} that fails has {} steps:\n{}",
        keep.len(),
        short.text
    );
    let store = if asked.store { " --store" } else { "" };
    println!("again: vopr --run --seed {seed} --steps {steps} --keep {}{store}", list.join(","));
}

/// Does the history of a seed as its number has it: every few of them are judged, or done twice.
fn numbered(asked: &Asked, seed: u64, number: u64) -> Ended {
    let ended = one(asked, seed, None, number.is_multiple_of(JUDGED));
    if !ended.well || !number.is_multiple_of(TWICE) {
        return ended;
    }
    let again = one(asked, seed, None, false);
    if again.last() == ended.last() {
        return ended;
    }
    let text = format!("{}\n{}\nit is another one the second time", ended.last(), again.last());
    Ended { well: false, text }
}

/// Does histories of one seed after the other. Whether all ended well.
pub fn run(asked: &Asked) -> bool {
    let (begun, next, failed) = (Instant::now(), AtomicU64::new(0), Mutex::new(Vec::new()));
    let (done, output) = (AtomicU64::new(0), Mutex::new(()));
    let most = asked.seeds.unwrap_or(asked.count);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::SeqCst);
            let over = begun.elapsed() >= Duration::from_secs(asked.seconds);
            let ends = asked.seeds.is_none() && !failed.lock().is_empty();
            if over || number >= most || ends {
                return;
            }
            let seed = asked.seed.wrapping_add(number);
            let ended = numbered(asked, seed, number);
            let _one_at_a_time = output.lock();
            match (ended.well, asked.seeds) {
                (true, _) => {
                    println!("{}", ended.last());
                    done.fetch_add(1, Ordering::SeqCst);
                }
                (false, Some(_)) => {
                    failed.lock().push(seed);
                    println!("seed {seed} fails: {}", ended.why());
                    let store = if asked.store { " --store" } else { "" };
                    println!("again: vopr --run --seed {seed} --steps {}{store}", asked.steps);
                }
                (false, None) => {
                    let first = {
                        let mut failed = failed.lock();
                        failed.push(seed);
                        failed.len() == 1
                    };
                    if first {
                        report(asked, (seed, number.is_multiple_of(JUDGED)), &ended);
                    }
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        (1..asked.jobs).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let (done, mut failed) = (done.load(Ordering::SeqCst), failed.into_inner());
    failed.sort_unstable();
    let list: Vec<String> = failed.iter().map(u64::to_string).collect();
    match (asked.seeds, failed.is_empty()) {
        (None, _) => println!("{done} histories ended well"),
        (Some(seeds), true) => println!("{seeds} seeds from {}: all ended well", asked.seed),
        (Some(seeds), false) => {
            let from = asked.seed;
            println!("{seeds} seeds from {from}: {done} ended well, failed: {}", list.join(" "));
        }
    }
    failed.is_empty()
}
