//! `zpool initialize` and `zpool trim`, and what `zpool status`, `zpool wait`, the history and the events say of them, by
//! the real binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::Session;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn free_space_is_overwritten_and_trimmed() {
    let s = Session::mirror();
    let a = s.path("a").display().to_string();
    let line = |options: &str| {
        let text = s.run(&format!("zpool status {options} tank")).ok();
        text.lines().find(|line| line.contains(&a)).unwrap().to_string()
    };
    assert!(line("-i").ends_with("(uninitialized)"), "{}", line("-i"));
    assert!(line("-t").ends_with("(untrimmed)"), "{}", line("-t"));
    s.run("zpool initialize -w tank").ok();
    assert!(line("-i").contains("(100% initialized, completed at "), "{}", line("-i"));
    s.run("zpool trim tank").ok();
    s.run("zpool wait -t trim,initialize tank").ok();
    assert!(line("-t").contains("(100% trimmed, completed at "), "{}", line("-t"));
    s.run("zpool initialize -u tank").ok();
    assert!(line("-i").ends_with("(uninitialized)"), "{}", line("-i"));
    s.run(&format!("zpool initialize -z tank {a}")).ok();
    s.run("zpool wait -t initialize tank").ok();
    let history = s.run("zpool history -i tank").ok();
    for said in ["activated", "complete"] {
        for name in ["initialize", "trim"] {
            assert!(history.contains(&format!("{name} vdev={a} {said}")), "{history}");
        }
    }
    assert!(history.contains(&format!("uninitialize vdev={a}")), "{history}");
    let events = s.run("zpool events -H").ok();
    for name in ["initialize_start", "initialize_finish", "trim_start", "trim_finish"] {
        assert!(events.contains(&format!("sysevent.fs.zfs.{name}")), "{events}");
    }
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
    // OpenZFS finds the state where it keeps it.
    let objects = cenote_testpools::zdb(s.dir.path(), "tank", &["-dddd"]);
    for entry in ["com.delphix:vdev_initialize_state = 4", "org.openzfs:vdev_initialize_value = 0"]
    {
        assert_eq!(objects.matches(entry).count(), 1, "{entry}");
    }
    for name in ["vdev_trim_state = 4", "vdev_trim_rate = 0", "vdev_trim_partial = 0"] {
        assert_eq!(objects.matches(&format!("org.zfsonlinux:{name}")).count(), 2, "{name}");
    }
}

#[test]
fn to_wait_for_what_is_not_done_is_an_error() {
    let s = Session::mirror();
    let a = s.path("a").display().to_string();
    for (order, why) in [
        ("zpool trim -s", "the trim is suspended, and not all of it was done"),
        ("zpool trim -c", "the trim was canceled"),
        ("zpool offline", "the trim goes on when the device is in use again"),
    ] {
        let mut command = s.command();
        command.args(["zpool", "trim", "-w", "-r", "1M", "tank", &a]);
        let waits = command.stderr(Stdio::piped()).spawn().unwrap();
        let status = || s.run("zpool status -t tank").ok();
        while !status().contains("% trimmed, started at ") {
            std::thread::sleep(Duration::from_millis(50));
        }
        s.run(&format!("{order} tank {a}")).ok();
        let output = waits.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).trim_end().to_string();
        assert_eq!(output.status.code(), Some(1), "{order}: {said}");
        assert_eq!(said, format!("error waiting to trim '{a}': {why}"));
    }
    s.run(&format!("zpool online tank {a}")).ok();
    s.run(&format!("zpool trim -c tank {a}")).ok();
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

#[test]
fn what_cannot_be_done_is_refused() {
    let s = Session::mirror();
    let a = s.path("a").display().to_string();
    let fails = |line: &str, why: &str| assert_eq!(s.run(line).fails(1), why, "{line}");
    fails(
        &format!("zpool initialize -c tank {a}"),
        &format!("cannot initialize '{a}': there is no active initialization"),
    );
    fails(
        &format!("zpool trim -s tank {a}"),
        &format!("cannot trim '{a}': there is no active trim"),
    );
    fails("zpool initialize tank nosuch", "cannot initialize 'nosuch': no such device in pool");
    for (line, why) in [
        ("zpool initialize -cs tank", "-s cannot be combined with other options"),
        ("zpool initialize -uc tank", "-c cannot be combined with other options"),
        ("zpool initialize -sz tank", "-z cannot be used with -c, -s or -u"),
        ("zpool initialize -uw tank", "-w cannot be used with -c, -s or -u"),
        ("zpool initialize -a tank", "-a cannot be combined with individual pools or vdevs"),
        ("zpool initialize", "missing pool name argument"),
        ("zpool trim -cw tank", "-w cannot be used with -c or -s options"),
        ("zpool trim -sc tank", "-c cannot be combined with other options"),
        ("zpool trim -sd tank", "-d cannot be combined with the -c or -s options"),
        ("zpool trim -c -r 1M tank", "-r cannot be combined with the -c or -s options"),
        ("zpool trim -a tank", "-a cannot be combined with individual zpools or vdevs"),
    ] {
        let said = s.run(line).fails(2);
        assert!(said.starts_with(why), "{line}: {said}");
    }
}

#[test]
fn what_is_done_to_a_vdev_that_leaves_waits() {
    let s = Session::new();
    let disk = |name: &str| {
        std::fs::File::create(s.path(name)).unwrap().set_len(512 << 20).unwrap();
        s.path(name).display().to_string()
    };
    let (a, b, log) = (disk("a"), disk("b"), disk("log"));
    let shown = |of: &str| {
        let status = s.run("zpool status -i tank").ok();
        let line = status.lines().find(|l| l.starts_with('\t') && l.contains(of));
        line.unwrap().to_string()
    };
    let under_way = |of: &str| {
        let line = shown(of);
        assert!(line.contains("% initialized, started at "), "{line}");
    };
    s.run("tunables set zfs_removal_suspend_progress=1 zfs_initialize_chunk_size=512").ok();
    s.run(&format!("zpool create -m none tank {a} {b} log {log}")).ok();
    s.run(&format!("zpool initialize tank {a} {b} {log}")).ok();
    // A vdev for logs does not come back.
    s.run(&format!("zpool remove tank {log}")).ok();
    let history = s.run("zpool history -i tank").ok();
    assert!(history.contains(&format!("initialize vdev={log} canceled")), "{history}");
    s.run(&format!("zpool remove tank {a}")).ok();
    under_way(&a);
    under_way(&b);
    let refused = s.run(&format!("zpool initialize tank {a}")).fails(1);
    assert!(refused.contains("currently initializing"), "{refused}");
    s.run(&format!("zpool initialize -c tank {b}")).ok();
    s.run("tunables reset zfs_initialize_chunk_size").ok();
    under_way(&a);
    // It goes on when the vdev stays.
    s.run("zpool remove -s tank").ok();
    s.run("zpool wait -t initialize tank").ok();
    assert!(shown(&a).contains("(100% initialized, completed at "), "{}", shown(&a));
    assert!(shown(&b).ends_with("(uninitialized)"), "{}", shown(&b));
    s.run("tunables reset zfs_removal_suspend_progress").ok();
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}
