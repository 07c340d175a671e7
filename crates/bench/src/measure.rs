//! Wall time and CPU time of a piece of work.

use std::time::Instant;

use anyhow::Context;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::{Deserialize, Serialize};

/// One measured run of a row; also what the peer prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Name of the row.
    pub row: String,
    /// Bytes delivered; 0 for rows that count operations only.
    pub bytes: u64,
    /// Operations (reads, files).
    pub ops: u64,
    /// Wall time.
    pub seconds: f64,
    /// User and system time of all threads of the process, of those that it waited for, and of the
    /// server where there is one.
    pub cpu_seconds: f64,
}

/// Ticks of `/proc/PID/stat` in a second.
const TICKS: f64 = 100.0;

fn cpu_seconds(server: Option<u32>) -> anyhow::Result<f64> {
    let mut micros = 0;
    for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(who)?;
        micros += usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    }
    let server = server.map_or(Ok(0.0), server_seconds)?;
    Ok(micros as f64 / 1e6 + server)
}

/// User and system time of all threads of another process.
fn server_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program, in parentheses, may have blanks in it.
    let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    Ok(ticks.sum::<Result<u64, _>>()? as f64 / TICKS)
}

/// Runs `work`, which returns (bytes, operations).
pub fn measure(
    row: &str,
    work: impl FnOnce() -> anyhow::Result<(u64, u64)>,
) -> anyhow::Result<Run> {
    measure_with(row, None, work)
}

/// Runs `work`, which returns (bytes, operations) and makes another process work too.
pub fn measure_with(
    row: &str,
    server: Option<u32>,
    work: impl FnOnce() -> anyhow::Result<(u64, u64)>,
) -> anyhow::Result<Run> {
    let (start, cpu) = (Instant::now(), cpu_seconds(server)?);
    let (bytes, ops) = work()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Run { row: row.into(), bytes, ops, seconds, cpu_seconds: cpu_seconds(server)? - cpu })
}

/// The run with the median wall time of each row, rows in order of first appearance.
pub fn medians(runs: &[Run]) -> Vec<Run> {
    medians_by(runs, |run| &run.row, |run| run.seconds)
}

/// As [`medians`], of runs that say by `row` which row they are of, and by `seconds` what they took.
pub fn medians_by<'a, T: Clone, K: PartialEq>(
    runs: &'a [T],
    row: impl Fn(&'a T) -> K,
    seconds: impl Fn(&T) -> f64,
) -> Vec<T> {
    let mut rows: Vec<K> = Vec::new();
    for run in runs {
        if !rows.contains(&row(run)) {
            rows.push(row(run));
        }
    }
    let median = |wanted: K| {
        let mut of_row: Vec<&T> = runs.iter().filter(|run| row(run) == wanted).collect();
        of_row.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        of_row[of_row.len() / 2].clone()
    };
    rows.into_iter().map(median).collect()
}
