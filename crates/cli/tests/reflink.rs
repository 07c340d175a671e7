//! Copies in a mount are clones: `cp`, and what of the pool's space they save.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::tank::Tank;
use std::fs;
use std::process::{Command, Output};

/// Bytes of the file that is copied: whole records and a bit.
const SIZE: usize = (6 << 20) + 1234;

fn contents() -> Vec<u8> {
    let mut x = 88_172_645_463_325_252_u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..SIZE).map(|_| next()).collect()
}

/// What cloned blocks take, save, and save in proportion.
fn figures(tank: &Tank) -> (u64, u64, String) {
    tank.session.run("zpool sync tank").ok();
    let get = |property| {
        let said = tank.session.run(&format!("zpool get -Hpo value {property} tank")).ok();
        said.trim_end().to_string()
    };
    let number = |property| get(property).parse().unwrap();
    (number("bcloneused"), number("bclonesaved"), get("bcloneratio"))
}

fn cp(tank: &Tank, how: &str, from: &str, to: &str) -> Output {
    let mut cp = Command::new("cp");
    cp.arg(how).arg(tank.path(from)).arg(tank.path(to)).output().unwrap()
}

#[test]
fn a_copy_in_a_mount_takes_no_space() {
    let tank = Tank::new("-O atime=off");
    let data = contents();
    fs::write(tank.path("tank/file"), &data).unwrap();
    assert_eq!(figures(&tank), (0, 0, "1.00".into()));
    // What was just written is waited for.
    fs::write(tank.path("tank/file"), &data).unwrap();
    let copied = cp(&tank, "--reflink=auto", "tank/file", "tank/copy");
    assert!(copied.status.success(), "{copied:?}");
    assert!(fs::read(tank.path("tank/copy")).unwrap() == data);
    let (used, saved, ratio) = figures(&tank);
    assert!(used >= SIZE as u64 && used < SIZE as u64 + (1 << 20), "{used}");
    assert_eq!((saved, &*ratio), (used, "2.00"));
    // The kernel does not pass on what has to be a clone.
    let refused = cp(&tank, "--reflink=always", "tank/file", "tank/never");
    assert!(!refused.status.success(), "{refused:?}");
    // Of a snapshot, which is in the same mount: another reference to each block.
    tank.zfs("snapshot tank@then");
    let from = "tank/.zfs/snapshot/then/file";
    let copied = cp(&tank, "--reflink=auto", from, "tank/saved");
    assert!(copied.status.success(), "{copied:?}");
    assert!(fs::read(tank.path("tank/saved")).unwrap() == data);
    let saves = figures(&tank).1;
    assert!(saves == saved || saves == 2 * saved, "{saves}");
    // They are different files.
    fs::write(tank.path("tank/copy"), b"other").unwrap();
    assert!(fs::read(tank.path("tank/file")).unwrap() == data);
    fs::remove_file(tank.path("tank/file")).unwrap();
    assert!(fs::read(tank.path("tank/saved")).unwrap() == data);
    tank.zfs("destroy tank@then");
    fs::remove_file(tank.path("tank/saved")).unwrap();
    // What is destroyed is freed in groups that follow.
    for _ in 0..20 {
        if figures(&tank).0 == 0 {
            break;
        }
    }
    assert_eq!(figures(&tank), (0, 0, "1.00".into()));
    tank.finish();
}

#[test]
fn the_tunable_switches_cloning_off() {
    let tank = Tank::new("-O atime=off");
    let data = contents();
    fs::write(tank.path("tank/file"), &data).unwrap();
    tank.session.run("tunables set zfs_bclone_enabled=0").ok();
    let copied = cp(&tank, "--reflink=auto", "tank/file", "tank/copy");
    assert!(copied.status.success(), "{copied:?}");
    assert!(fs::read(tank.path("tank/copy")).unwrap() == data);
    assert_eq!(figures(&tank), (0, 0, "1.00".into()));
    tank.finish();
}

const HEX: &str = "df226b439a2fd448ea43a3a44512ef7c534ce6ffd1a881a02c9b5306a1e27ad7";

/// An encrypted file system, with the daemon's mounts; where its key is.
fn encrypted(tank: &Tank, suite: &str) -> String {
    let place = common::keys::key_file(tank, "key", HEX);
    tank.zfs(&format!(
        "create -o encryption={suite} -o keyformat=hex -o keylocation={place} tank/e"
    ));
    place
}

/// Blocks have one key in a file system and its snapshots: they are cloned, and read after an import.
#[test]
fn copies_of_encrypted_files_take_no_space() {
    for suite in ["aes-256-gcm", "aes-192-ccm"] {
        let tank = Tank::new("-O atime=off");
        encrypted(&tank, suite);
        let data = contents();
        fs::write(tank.path("tank/e/file"), &data).unwrap();
        tank.session.run("zpool sync tank").ok();
        assert!(cp(&tank, "--reflink=auto", "tank/e/file", "tank/e/copy").status.success());
        let (used, saved, ratio) = figures(&tank);
        assert!(used >= SIZE as u64 && used < SIZE as u64 + (1 << 20), "{used}");
        assert_eq!((saved, &*ratio), (used, "2.00"));
        tank.zfs("snapshot tank/e@then");
        let from = "tank/e/.zfs/snapshot/then/file";
        assert!(cp(&tank, "--reflink=auto", from, "tank/e/saved").status.success());
        assert!(figures(&tank).1 >= saved);
        // Neither what is plain nor what has another key.
        let before = figures(&tank);
        fs::copy(tank.path("tank/e/file"), tank.path("tank/plain")).unwrap();
        fs::copy(tank.path("tank/plain"), tank.path("tank/e/plain")).unwrap();
        assert_eq!(figures(&tank), before);
        fs::write(tank.path("tank/e/copy"), b"other").unwrap();
        fs::remove_file(tank.path("tank/e/file")).unwrap();
        let root = tank.session.root();
        tank.session.run("zpool export tank").ok();
        // OpenZFS 2.1 does not know cloned blocks.
        cenote_testpools::try_judge_newer(tank.session.dir.path(), "tank").unwrap();
        let dir = tank.session.dir.path().display().to_string();
        tank.session.run(&format!("zpool import -l -R {root} -d {dir} tank")).ok();
        assert!(fs::read(tank.path("tank/e/saved")).unwrap() == data);
        assert!(fs::read(tank.path("tank/e/plain")).unwrap() == data);
        assert!(fs::read(tank.path(from)).unwrap() == data);
        // A scrub reads them without a key.
        tank.session.run("zpool scrub -w tank").ok();
        assert!(tank.session.run("zpool status tank").ok().contains("with 0 errors"));
        tank.zfs("destroy tank/e@then");
        fs::remove_file(tank.path("tank/e/saved")).unwrap();
        for _ in 0..20 {
            if figures(&tank).0 == 0 {
                break;
            }
        }
        assert_eq!(figures(&tank), (0, 0, "1.00".into()));
        tank.finish();
    }
}

/// A clone in the intent log of an encrypted file system is claimed without the key, and replayed with it.
#[test]
fn clones_of_encrypted_blocks_outlive_a_crash() {
    let tank = Tank::new("-O atime=off");
    encrypted(&tank, "on");
    let data = contents();
    fs::write(tank.path("tank/e/file"), &data).unwrap();
    fs::write(tank.path("tank/e/copy"), b"").unwrap();
    let file = fs::File::open(tank.path("tank/e/copy")).unwrap();
    // The log has its first block with the group after the first sync.
    file.sync_all().unwrap();
    tank.session.run("zpool sync tank").ok();
    tank.session.run("tunables set zfs_txg_timeout=600").ok();
    let copy = fs::OpenOptions::new().write(true).open(tank.path("tank/e/copy")).unwrap();
    let mut from = fs::File::open(tank.path("tank/e/file")).unwrap();
    assert_eq!(std::io::copy(&mut from, &mut &copy).unwrap(), SIZE as u64);
    copy.sync_all().unwrap();
    let daemon = tank.session.daemon().unwrap();
    drop((file, copy, from));
    let pid = rustix::process::Pid::from_raw(daemon).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    while tank.session.daemon().is_some() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let (root, dir) = (tank.session.root(), tank.session.dir.path().display().to_string());
    tank.session.run(&format!("zpool import -f -N -R {root} -d {dir} tank")).ok_but_for_logs();
    // What the log clones has a reference for that.
    let claimed = figures(&tank).1;
    assert!(claimed >= SIZE as u64, "{claimed}");
    tank.session.run("zpool export tank").ok();
    tank.session.run(&format!("zpool import -l -R {root} -d {dir} tank")).ok_but_for_logs();
    assert!(fs::read(tank.path("tank/e/copy")).unwrap() == data);
    let (used, saved, _) = figures(&tank);
    assert!(used >= SIZE as u64 && saved == used && saved == claimed, "{used} {saved}");
    tank.session.run("zpool export tank").ok();
    cenote_testpools::try_judge_newer(tank.session.dir.path(), "tank").unwrap();
    tank.session.run(&format!("zpool import -l -R {root} -d {dir} tank")).ok();
    fs::remove_file(tank.path("tank/e/copy")).unwrap();
    for _ in 0..20 {
        if figures(&tank).0 == 0 {
            break;
        }
    }
    tank.finish();
}
