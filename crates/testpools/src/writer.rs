//! OpenZFS's own engine at work on a pool: libzpool of the system's packages, in a program that runs
//! scripts (`openzfs/writer.c`, which says what they can do). It has assertions on, so it refuses what
//! release builds of OpenZFS pass over.
//!
//! Where its headers are not installed the test that asked fails.

use crate::target_dir;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program, compiled unless that was done since its source changed.
fn writer() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("openzfs/writer.c");
    let base = target_dir().join("test-pools");
    fs::create_dir_all(&base).unwrap();
    let lock = File::create(base.join("openzfs-writer.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let to = base.join("openzfs-writer");
    let changed = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    if changed(&to) < changed(&source) {
        let draft = to.with_extension("draft");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-g", "-w", "-D_GNU_SOURCE"])
            .args(["-I/usr/include/libspl", "-I/usr/include/libzfs", "-o"])
            .args([&draft, &source])
            .args(["-lzpool", "-lnvpair", "-lm", "-lpthread"]);
        let out = cc.output().expect("there is no C compiler");
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.status.success(),
            "OpenZFS's library is not installed (Debian: libzfslinux-dev libzpool5linux)\n{text}"
        );
        fs::rename(draft, &to).unwrap();
    }
    to
}

/// Has OpenZFS's engine run a script on the pool whose device files are those in `dir`.
///
/// # Errors
/// What it said, if a command failed or an assertion did.
pub fn try_openzfs(dir: &Path, pool: &str, script: &str) -> Result<(), String> {
    try_openzfs_as(None, dir, pool, script)
}

/// As [`try_openzfs`], on a host with this id.
///
/// # Errors
/// As of [`try_openzfs`].
pub fn try_openzfs_as(
    hostid: Option<u32>,
    dir: &Path,
    pool: &str,
    script: &str,
) -> Result<(), String> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut run = Command::new(writer());
    run.arg(pool).args(files).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    run.envs(hostid.map(|id| ("ZFS_HOSTID", format!("{id:#x}"))));
    let mut child = run.spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    match out.status.success() {
        true => Ok(()),
        false => Err(format!("OpenZFS, {}: {text}", out.status)),
    }
}

/// As [`try_openzfs`]. The test fails if it failed.
#[track_caller]
pub fn openzfs(dir: &Path, pool: &str, script: &str) {
    try_openzfs(dir, pool, script).unwrap_or_else(|e| panic!("{e}"));
}
