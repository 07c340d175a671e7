//! Each way in which programs ask for what they wrote to be durable: it is there after the daemon was killed
//! before any transaction group was written, whatever the properties `sync` and `logbias` say.

use crate::rig::{Rig, can_run, run};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{ReadWriteFlags, pwritev2};
use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const O_SYNC: i32 = OFlags::SYNC.bits() as i32;
const O_DSYNC: i32 = OFlags::DSYNC.bits() as i32;

/// What is written, and how long it is: some of it is in the record, some in blocks of its own.
fn data(n: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + n * 7 + i / 251) as u8).collect()
}

fn write_with(path: &Path, flags: i32, data: &[u8]) {
    let mut file = OpenOptions::new().write(true).create(true).custom_flags(flags).open(path);
    file.as_mut().unwrap().write_all(data).unwrap();
}

fn sync_dir(dir: &Path) {
    File::open(dir).unwrap().sync_all().unwrap();
}

/// Writes files, each with another way to have it durable; what each has to hold afterwards.
fn write(rig: &Rig, dir: &Path, round: usize, length: usize) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut next = |name: &str| {
        let (path, data) = (dir.join(name), data(round * 16 + all.len(), length));
        all.push((path.clone(), data.clone()));
        (path, data)
    };
    let (path, data) = next("o_sync");
    write_with(&path, O_SYNC, &data);
    let (path, data) = next("o_dsync");
    write_with(&path, O_DSYNC, &data);
    let (path, data) = next("rwf_dsync");
    let file = File::create(&path).unwrap();
    let mut done = 0;
    while done < data.len() {
        let rest = [IoSlice::new(&data[done..])];
        done += pwritev2(&file, &rest, done as u64, ReadWriteFlags::DSYNC).unwrap();
    }
    let (path, data) = next("fsync");
    let mut file = File::create(&path).unwrap();
    file.write_all(&data).unwrap();
    file.sync_all().unwrap();
    let (path, data) = next("fdatasync");
    let mut file = File::create(&path).unwrap();
    file.write_all(&data).unwrap();
    file.sync_data().unwrap();
    let (path, data) = next("msync");
    let mut source = rig.outside("source");
    fs::write(&source, &data).unwrap();
    let program = "import mmap, os, sys\n\
                   data = open(sys.argv[1], 'rb').read()\n\
                   fd = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)\n\
                   os.ftruncate(fd, len(data))\n\
                   m = mmap.mmap(fd, len(data))\n\
                   m[:] = data\n\
                   m.flush()\n\
                   os._exit(0)";
    run(rig.program("python3").args(["-c", program]).arg(&source).arg(&path));
    // The name of a file is durable with its directory, and what was renamed is whole.
    let (path, data) = next("renamed");
    source = dir.join("temporary");
    let mut file = File::create(&source).unwrap();
    file.write_all(&data).unwrap();
    drop(file);
    fs::rename(&source, &path).unwrap();
    fs::create_dir(dir.join("made")).unwrap();
    sync_dir(dir);
    all
}

fn survive(sync: &str, logbias: &str, round: usize, rig: &Rig) {
    let name = format!("{sync}-{logbias}");
    rig.cenote("tunables set zfs_txg_timeout=1000000");
    rig.cenote(&format!("zfs create -o sync={sync} -o logbias={logbias} tank/{name}"));
    let dir = rig.path(&name);
    // The first commit starts the log, and waits for that.
    write_with(&dir.join("first"), O_SYNC, b"first");
    let unasked = dir.join("unasked");
    fs::write(&unasked, data(99, 5000)).unwrap();
    let written = write(rig, &dir, round, [3000, 200_000][round % 2]);
    rig.kill();
    rig.judge();
    rig.import();
    for (path, data) in written {
        let found = fs::read(&path).unwrap_or_else(|e| panic!("{name}: {}: {e}", path.display()));
        assert!(found == data, "{name}: {} has {} bytes", path.display(), found.len());
    }
    assert!(dir.join("made").is_dir() && !dir.join("temporary").exists());
    // A write without fsync is there only with `sync=always`: so the test can fail.
    let found = fs::read(&unasked).unwrap_or_default();
    assert_eq!(found == data(99, 5000), sync == "always", "{name}: {} bytes", found.len());
}

#[test]
fn whatever_asks_for_it_is_durable() {
    if !can_run(&["python3"]) {
        return;
    }
    let rig = Rig::new("");
    let all = [
        ("standard", "latency"),
        ("standard", "throughput"),
        ("always", "latency"),
        ("always", "throughput"),
    ];
    for (round, (sync, logbias)) in all.into_iter().enumerate() {
        survive(sync, logbias, round, &rig);
    }
    rig.finish();
}

/// With `sync=disabled` nothing is waited for: what is there after a crash is a state that there was.
#[test]
fn nothing_is_waited_for_where_sync_is_disabled() {
    if !can_run(&[]) {
        return;
    }
    let rig = Rig::new("");
    rig.cenote("tunables set zfs_txg_timeout=1000000");
    rig.cenote("zfs create -o sync=disabled tank/fs");
    let path = rig.path("fs/file");
    write_with(&path, O_SYNC, b"written");
    let file = open(&path, OFlags::RDWR, Mode::empty()).unwrap();
    rustix::fs::fsync(&file).unwrap();
    drop(file);
    rig.kill();
    rig.judge();
    rig.import();
    assert!(!path.exists());
    rig.finish();
}
