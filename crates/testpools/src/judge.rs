//! The independent judge: OpenZFS's own `zdb`, run on exported (or crashed) pools.
//!
//! Where it is not installed the test that asked fails.

use crate::SpaceSaid;
use std::path::Path;
use std::process::{Command, Output};

/// What `zdb` says of a pool that is not as it should be.
const COMPLAINTS: [&str; 7] =
    ["leaked space", "double alloc", "ERROR", "error:", "mismatch", "ASSERT", "rror counts"];
/// What `zdb -b` says of a pool that is.
const CLEAN: &str = "No leaks (block sum matches space maps exactly)";
/// What `zdb -d` says of a feature that is used as often as the pool counts; otherwise it has a
/// [complaint](COMPLAINTS), `feature refcount mismatch`, and fails.
const COUNTED: &str = "Verified large_blocks feature refcount of ";
/// Let go of prefetched blocks at once: otherwise `zdb` waits for them at its end, six seconds for
/// those that it asked for itself and one for those that were guessed.
const QUICK: [&str; 4] =
    ["-o", "zfs_arc_min_prescient_prefetch_ms=1", "-o", "zfs_arc_min_prefetch_ms=1"];

/// `zdb ARGS`.
pub fn zdb_command(args: &[&str]) -> Command {
    let mut zdb = Command::new("zdb");
    zdb.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    zdb.args(args);
    zdb
}

/// What a `zdb` that was run ended with, and printed on both channels.
pub fn zdb_output(mut zdb: Command) -> (Output, String) {
    // Where it is not installed (Debian: zfsutils-linux) the test fails here.
    let output = crate::output(&mut zdb);
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let text = text.into_owned();
    (output, text)
}

/// `zdb -e -p DIR OPTIONS POOL`: what it printed.
///
/// # Errors
/// The same, if it failed or complained.
pub fn try_zdb(dir: &Path, pool: &str, options: &[&str]) -> Result<String, String> {
    let mut zdb = zdb_command(&QUICK);
    zdb.args(["-e", "-p"]).arg(dir).args(options).arg(pool);
    let (output, text) = zdb_output(zdb);
    let complaint = COMPLAINTS.iter().find(|c| text.contains(**c));
    if !output.status.success() || complaint.is_some() {
        return Err(format!("zdb {options:?} ({}, {complaint:?}): {text}", output.status));
    }
    Ok(text)
}

/// `zdb -e -p DIR OPTIONS POOL`: what it printed. The test fails if it failed or complained.
#[track_caller]
pub fn zdb(dir: &Path, pool: &str, options: &[&str]) -> String {
    try_zdb(dir, pool, options).unwrap_or_else(|e| panic!("{e}"))
}

/// Whether OpenZFS finds nothing wrong with any block of the pool: `zdb -bcc`.
///
/// # Errors
/// What it said.
pub fn try_judge(dir: &Path, pool: &str) -> Result<(), String> {
    judged(dir, pool, "-bcc").map(drop)
}

/// As [`try_judge`]; with `-d`, so that it compares with the datasets how often they use each feature;
/// what it says besides of metaslabs and log space maps (`-m`).
///
/// # Errors
/// What it said.
pub fn try_judge_space(dir: &Path, pool: &str) -> Result<SpaceSaid, String> {
    let text = judged(dir, pool, "-bccmd")?;
    if !text.contains(COUNTED) {
        return Err(format!("zdb -d does not count features: {text}"));
    }
    Ok(SpaceSaid::of(&text))
}

/// Whether blocks of the pool are cloned, or it has deduplication tables with directories of their own.
fn shares_in_new_ways(dir: &Path, pool: &str) -> bool {
    let mut zdb = zdb_command(&["-e", "-p"]);
    zdb.arg(dir).args(["-dddd", pool, "1"]);
    let (_, text) = zdb_output(zdb);
    let is_fast = |line: &str| {
        let name = line.trim_start().split(' ').next().unwrap_or_default();
        name.starts_with("DDT-") && !name.contains("-zap-") && name != "DDT-statistics"
    };
    text.contains("com.fudosecurity:brt:vdev:") || text.lines().any(is_fast)
}

fn judged(dir: &Path, pool: &str, options: &str) -> Result<String, String> {
    let text = match try_zdb(dir, pool, &[options]) {
        // OpenZFS 2.1 takes the second reference to a block for a second allocation. It reads every block,
        // and does not look for leaks then.
        Err(_) if shares_in_new_ways(dir, pool) => {
            return try_zdb(dir, pool, &[&format!("{options}L")]);
        }
        said => said?,
    };
    if text.contains(CLEAN) { Ok(text) } else { Err(format!("zdb {options}: {text}")) }
}

/// As [`try_judge`], of a pool with what the installed OpenZFS does not know, by the program that the variable `CENOTE_NEWER_ZDB`
/// names: a `zdb` of OpenZFS 2.4. Without it nothing is judged.
///
/// # Errors
/// What it said.
pub fn try_judge_newer(dir: &Path, pool: &str) -> Result<(), String> {
    let Some(program) = std::env::var_os("CENOTE_NEWER_ZDB") else { return Ok(()) };
    let mut zdb = Command::new(program);
    zdb.args(["-e", "-p"]).arg(dir).args(["-bcc", pool]);
    let (output, text) = zdb_output(zdb);
    let complaint = COMPLAINTS.iter().find(|c| text.contains(**c));
    match output.status.success() && complaint.is_none() && text.contains(CLEAN) {
        true => Ok(()),
        false => Err(format!("zdb ({}, {complaint:?}): {text}", output.status)),
    }
}

/// OpenZFS finds nothing wrong with any block of the pool: `zdb -bcc`.
#[track_caller]
pub fn judge(dir: &Path, pool: &str) {
    try_judge(dir, pool).unwrap_or_else(|e| panic!("{e}"));
}
