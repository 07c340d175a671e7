//! Wall time and CPU time of a piece of work, and what makes for a fair start of it.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

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
    /// The user time in it.
    pub user_seconds: f64,
    /// The time of the server in it, where there is one.
    #[serde(default)]
    pub server_seconds: f64,
    /// Time that processors of this virtual machine had something to do and the host ran others
    /// (steal time), of all processors together.
    pub stolen_seconds: f64,
}

impl Run {
    /// Stolen time as a share of the wall time.
    pub fn stolen(&self) -> f64 {
        self.stolen_seconds / self.seconds.max(1e-9)
    }
}

/// Ticks of `/proc` in a second.
const TICKS: f64 = 100.0;

/// Processor time of processes.
#[derive(Clone, Copy, Default)]
struct Cpu {
    user: f64,
    system: f64,
}

/// Of this process, of those that it waited for, and of the server.
fn cpu(server: Option<u32>) -> anyhow::Result<Cpu> {
    let mut cpu = server.map_or(Ok(Cpu::default()), server_cpu)?;
    for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(who)?;
        cpu.user += usage.user_time().num_microseconds() as f64 / 1e6;
        cpu.system += usage.system_time().num_microseconds() as f64 / 1e6;
    }
    Ok(cpu)
}

/// Processor time of this process so far, user and system, in seconds.
pub fn cpu_seconds() -> anyhow::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(micros as f64 / 1e6)
}

/// Of all threads of another process.
fn server_cpu(pid: u32) -> anyhow::Result<Cpu> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program, in parentheses, may have blanks in it.
    let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat")?;
    let mut seconds = fields.split_whitespace().skip(11).map(in_seconds);
    let mut next = || seconds.next().context("/proc/PID/stat is too short")?;
    Ok(Cpu { user: next()?, system: next()? })
}

/// What the host has taken from all processors together, in seconds: the eighth number of
/// `/proc/stat`'s first line.
fn stolen_seconds() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    stat.split_whitespace().nth(8).map_or(Ok(0.0), in_seconds)
}

fn in_seconds(ticks: &str) -> anyhow::Result<f64> {
    Ok(ticks.parse::<u64>().context("a number of ticks")? as f64 / TICKS)
}

/// Drops a device file from the host's page cache (in tmpfs, where that is the file, nothing).
pub fn forget(path: &Path) -> anyhow::Result<()> {
    let file = File::open(path)?;
    file.sync_data()?;
    Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// How long a virtual machine's host takes to get back memory that was freed: the kernel reports it
/// two seconds later, and the host's work for that is done by the processors that a row is to have.
const TAKEN_BACK: Duration = Duration::from_secs(4);

/// Waits after much memory was freed, so that the next row does not pay for it. Not before a row that
/// takes less time than the report: it would only find less memory that the host has backed.
pub fn rest() {
    std::thread::sleep(TAKEN_BACK);
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
    let of_server = || server.map_or(Ok(Cpu::default()), server_cpu);
    let (begun, before, stolen) = (of_server()?, cpu(server)?, stolen_seconds()?);
    let start = Instant::now();
    let (bytes, ops) = work()?;
    let (seconds, after) = (start.elapsed().as_secs_f64(), cpu(server)?);
    let user_seconds = after.user - before.user;
    let cpu_seconds = user_seconds + after.system - before.system;
    let ended = of_server()?;
    let server_seconds = ended.user + ended.system - begun.user - begun.system;
    let stolen_seconds = stolen_seconds()? - stolen;
    Ok(Run {
        row: row.into(),
        bytes,
        ops,
        seconds,
        cpu_seconds,
        user_seconds,
        server_seconds,
        stolen_seconds,
    })
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
