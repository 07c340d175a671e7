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
