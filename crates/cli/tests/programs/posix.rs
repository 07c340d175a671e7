//! What POSIX says of every call, its errors, and which user may do what.

use crate::rig::{Rig, can_run};
use std::fs;
use std::process::Output;

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

/// What it said, but for the cases that went well.
fn found(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout);
    let went_well = |line: &&str| line.ends_with(" ok") || line.ends_with(" skipped");
    let rest: Vec<&str> = said.lines().filter(|line| !went_well(line)).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    format!("{}: {}\n{errors}", output.status, rest.join("\n"))
}

#[test]
fn pjdfstest_finds_nothing() {
    if !can_run(&["pjdfstest"]) {
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
        let output = tests.arg("-s").arg(rig.path("two")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        // What it cannot try: other mount options, and the longest list of links.
        let found_nothing = said.contains("Summary: 0 failed, 14 skipped, 384 passed, ");
        assert!(output.status.success() && found_nothing, "{}", found(&output));
        rig.cenote("zfs destroy tank/one");
        rig.cenote("zfs destroy tank/two");
    }
    rig.finish();
}
