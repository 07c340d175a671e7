//! What POSIX says of every call, its errors, and who may do what.

use crate::rig::{Rig, can_run, run};
use std::fs;

/// Three users and groups that every Debian system has, and what else can be tried.
const CONFIG: &str = r#"
    [features]
    posix_fallocate = {}
    rename_ctime = {}
    utime_now = {}
    utimensat = {}
    [settings]
    naptime = 0.01
    [dummy_auth]
    entries = [["nobody", "nogroup"], ["games", "games"], ["daemon", "daemon"]]
"#;

#[test]
fn pjdfstest_finds_nothing() {
    if !can_run(&["pjdfstest", "zdb"]) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can try what others may do");
        return;
    }
    let rig = Rig::new("-O acltype=posix -O atime=off");
    let config = rig.outside("pjdfstest.toml");
    fs::write(&config, CONFIG).unwrap();
    for options in ["-o xattr=sa", "-o xattr=dir -o recordsize=512 -o dnodesize=auto"] {
        rig.cenote(&format!("zfs create {options} tank/one"));
        rig.cenote("zfs create tank/two");
        let mut tests = rig.program("pjdfstest");
        tests.arg("-c").arg(&config).arg("-p").arg(rig.path("one"));
        let said = run(tests.arg("-s").arg(rig.path("two")));
        let summary = said.lines().rev().find(|l| l.starts_with("Summary:")).unwrap_or(&said);
        // What it cannot try: other mount options, and the longest list of links.
        let (_, passed) = summary.split_once(" 0 failed, 14 skipped, ").unwrap_or_default();
        assert!(passed.starts_with("384 passed"), "{said}");
        rig.cenote("zfs destroy tank/one");
        rig.cenote("zfs destroy tank/two");
    }
    rig.finish();
}
