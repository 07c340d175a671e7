//! Programs that write files in every way and compare what they read.

use crate::rig::{Rig, can_run, run, times};
use rustix::fs::Advice;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What `fsx` does besides reading and writing, and how often.
const WEIGHTS: &str = "
    [weights]
    truncate = 3
    fsync = 0.05
    fdatasync = 0.05
    read = 10
    write = 10
    mapread = 10
    mapwrite = 10
    invalidate = 1
    punch_hole = 2
    sendfile = 1
    posix_fallocate = 1
    posix_fadvise = 2
    copy_file_range = 2
";

/// Lets the kernel forget what it keeps of a file, again and again, so that reads are answered by
/// the daemon.
fn forget(path: &Path, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok(file) = File::open(path) {
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `fsx` on a new file.
pub fn exercise(rig: &Rig, file: &Path, seed: u64, largest: u64, operations: u64) {
    let config = rig.outside(&format!("fsx-{seed}.toml"));
    let biggest = (largest / 8).clamp(1, 256 << 10);
    let text = format!("flen = {largest}\n[opsize]\nmax = {biggest}\n{WEIGHTS}");
    fs::write(&config, text).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| forget(file, &stop));
        let mut fsx = rig.program("fsx");
        fsx.args(["-q", "-S", &seed.to_string(), "-N", &operations.to_string(), "-f"]);
        fsx.arg(&config).arg("-P").arg(rig.outside("")).arg(file);
        let output = fsx.output().unwrap();
        stop.store(true, Ordering::Relaxed);
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{fsx:?}: {said}");
    });
}

#[test]
fn fsx_finds_nothing() {
    if !can_run(&["fsx"]) {
        return;
    }
    let rig = Rig::new("-O atime=off");
    let systems = [
        ("small", "-o recordsize=4K -o compression=off"),
        ("large", "-o recordsize=1M -o compression=zstd"),
        ("usual", "-o compression=lz4 -o checksum=sha256"),
    ];
    let mut files: Vec<PathBuf> = Vec::new();
    for (i, (name, options)) in systems.iter().enumerate() {
        rig.cenote(&format!("zfs create {options} tank/{name}"));
        for run in 0..times(2, 6) {
            let file = rig.path(&format!("{name}/fsx-{run}"));
            let seed = (i as u64 + 1) * 1000 + run;
            let largest = [100_000, 3 << 20, 16 << 20][run as usize % 3];
            exercise(&rig, &file, seed, largest, times(600, 10_000));
            files.push(file);
        }
    }
    let read = || files.iter().map(|f| fs::read(f).unwrap()).collect::<Vec<_>>();
    let before = read();
    rig.reimport();
    assert!(read() == before, "files are not what they were before the export");
    rig.finish();
}

#[test]
fn fio_verifies() {
    if !can_run(&["fio"]) {
        return;
    }
    let rig = Rig::new("");
    let jobs = [
        ("random", "--rw=randwrite --bs=4k-96k --ioengine=psync --numjobs=2"),
        ("mapped", "--rw=randwrite --bs=4k --ioengine=mmap --size=8m"),
        ("direct", "--rw=randwrite --bs=8k --ioengine=libaio --direct=1 --iodepth=16"),
        ("synced", "--rw=write --bs=64k --ioengine=psync --fsync=64"),
        ("odd", "--rw=randwrite --bs=5000 --bs_unaligned --ioengine=vsync --iodepth=4"),
    ];
    let size = times("--size=16m", "--size=160m");
    let fio = |name: &str, options: &str, more: &[&str]| {
        let mut fio = rig.program("fio");
        fio.arg(format!("--name={name}")).arg(format!("--directory={}", rig.path("").display()));
        fio.args([size, "--verify=crc32c", "--verify_fatal=1", "--randseed=7"]);
        run(fio.args(options.split_whitespace()).args(more));
    };
    for (name, options) in jobs {
        fio(name, options, &["--do_verify=1", "--end_fsync=1"]);
    }
    rig.reimport();
    for (name, options) in jobs {
        fio(name, options, &["--verify_only"]);
    }
    rig.finish();
}
