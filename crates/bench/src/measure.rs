//! Wall time and CPU time of a piece of work.

use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::Deserialize;

/// One measured run of a row; also what the peer prints.
#[derive(Clone, Debug, Deserialize)]
pub struct Run {
    /// Name of the row.
    pub row: String,
    /// Bytes delivered; 0 for rows that count operations only.
    pub bytes: u64,
    /// Operations (reads, files).
    pub ops: u64,
    /// Wall time.
    pub seconds: f64,
    /// User and system time of all threads of the process.
    pub cpu_seconds: f64,
}

fn cpu_seconds() -> anyhow::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(micros as f64 / 1e6)
}

/// Runs `work`, which returns (bytes, operations).
pub fn measure(
    row: &str,
    work: impl FnOnce() -> anyhow::Result<(u64, u64)>,
) -> anyhow::Result<Run> {
    let (start, cpu) = (Instant::now(), cpu_seconds()?);
    let (bytes, ops) = work()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Run { row: row.into(), bytes, ops, seconds, cpu_seconds: cpu_seconds()? - cpu })
}

/// The run with the median wall time of each row, rows in order of first appearance.
pub fn medians(runs: &[Run]) -> Vec<Run> {
    let mut rows: Vec<&str> = Vec::new();
    for run in runs {
        if !rows.contains(&run.row.as_str()) {
            rows.push(&run.row);
        }
    }
    let median = |row: &str| {
        let mut of_row: Vec<&Run> = runs.iter().filter(|r| r.row == row).collect();
        of_row.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        of_row[of_row.len() / 2].clone()
    };
    rows.into_iter().map(median).collect()
}
