//! Programs that the daemon runs as events come: its own kind, and those that come with OpenZFS's ZED.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::Session;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Where `scripts/setup.sh test` unpacks the zedlets of OpenZFS's ZED.
fn openzfs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/zfs-zed")
}

#[track_caller]
fn until(what: impl Fn() -> bool, message: impl Fn() -> String) {
    let end = Instant::now() + Duration::from_secs(60);
    while !what() {
        assert!(Instant::now() < end, "{}", message());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// A session whose daemon runs with a directory of zedlets, and that directory.
struct Zeds {
    s: Session,
    daemon: std::process::Child,
}

impl Zeds {
    /// `fill` puts zedlets into the directory.
    fn start(fill: impl Fn(&Path)) -> Zeds {
        let s = Session::new();
        let dir = s.path("zed.d");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        fill(&dir);
        let mut command: Command = s.command();
        command.args(["daemon", "--foreground"]).env("CENOTE_ZEDLET_DIR", &dir);
        let daemon = command.spawn().unwrap();
        until(|| s.path("socket").exists(), || "no socket".into());
        for name in ["a", "b"] {
            fs::File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
        }
        let (a, b) = (s.path("a"), s.path("b"));
        s.run(&format!("zpool create -m none tank mirror {} {}", a.display(), b.display())).ok();
        Zeds { s, daemon }
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.s.path(name)).unwrap_or_default()
    }

    #[track_caller]
    fn comes(&self, name: &str, what: &str) {
        until(|| self.text(name).contains(what), || format!("{what}: {}", self.text(name)));
    }

    /// Stops the daemon, has `look` see what is left, and the judge the pool.
    fn end(mut self, look: impl Fn(&Zeds)) {
        self.s.run("daemon stop").ok();
        self.daemon.wait().unwrap();
        look(&self);
        cenote_testpools::judge(self.s.dir.path(), "tank");
    }
}

#[test]
fn zedlets_run_with_the_variables_of_their_event() {
    let zeds = Zeds::start(|dir| {
        let out = dir.parent().unwrap().display().to_string();
        script(&dir.join("all-log"), &format!("echo \"$ZEVENT_CLASS\" >>{out}/all"));
        script(
            &dir.join("statechange-x.sh"),
            &format!("env >{out}/env.$$ && mv {out}/env.$$ {out}/env.$ZEVENT_VDEV_STATE_STR"),
        );
        script(
            &dir.join("scrub_finish-status"),
            &format!(
                "\"$ZPOOL\" status $ZEVENT_POOL >{out}/status.new && \"$ZFS\" list -H -o name >>{out}/status.new; mv {out}/status.new {out}/status"
            ),
        );
        script(&dir.join("pool_export-x"), &format!("echo gone >{out}/exported"));
        // It goes on for longer than a daemon waits at its end, and keeps no further event waiting.
        script(&dir.join("pool_create-hangs"), "sleep 1000");
        fs::write(dir.join("all-not-executable"), "").unwrap();
    });
    zeds.comes("all", "sysevent.fs.zfs.pool_create\n");
    let b = zeds.s.path("b").display().to_string();
    zeds.s.run(&format!("zpool offline tank {b}")).ok();
    zeds.comes("env.OFFLINE", "ZEVENT_EID=");
    let env = zeds.text("env.OFFLINE");
    let guid = zeds.s.run("zpool get -H -o value guid tank").ok();
    let guid: u64 = guid.trim().parse().unwrap();
    for line in [
        "ZEVENT_CLASS=resource.fs.zfs.statechange".to_string(),
        "ZEVENT_SUBCLASS=statechange".into(),
        "ZEVENT_POOL=tank".into(),
        format!("ZEVENT_POOL_GUID=0x{guid:016X}"),
        format!("ZEVENT_VDEV_PATH={b}"),
        "ZEVENT_VDEV_STATE_STR=OFFLINE".into(),
        "ZEVENT_VDEV_LASTSTATE_STR=ONLINE".into(),
        "ZEVENT_POOL_STATE_STR=ACTIVE".into(),
        "TZ=UTC".into(),
        format!("ZED_ZEDLET_DIR={}", zeds.s.path("zed.d").display()),
        format!("ZED_PID={}", zeds.daemon.id()),
    ] {
        assert!(env.lines().any(|found| found == line), "{line}: {env}");
    }
    assert!(!env.contains("CARGO"), "{env}");
    zeds.s.run(&format!("zpool online tank {b}")).ok();
    zeds.comes("env.ONLINE", "ZEVENT_EID=");
    zeds.s.run("zpool wait -t resilver tank").ok();
    zeds.s.run("zpool scrub -w tank").ok();
    zeds.comes("status", "scan: scrub repaired 0B");
    assert!(zeds.text("status").ends_with("\ntank\n"), "{}", zeds.text("status"));
    let status = zeds.s.run("daemon status").ok();
    assert!(status.contains("zedlets: 1 running\n"), "{status}");
    let began = Instant::now();
    zeds.end(|zeds| assert_eq!(zeds.text("exported"), "gone\n"));
    assert!(began.elapsed() < Duration::from_secs(45));
}

/// The zedlets that come with OpenZFS's ZED send mail about what happened here.
#[test]
fn the_zedlets_of_openzfs_send_mail() {
    let from = openzfs().join("usr/lib/zfs-linux/zed.d");
    assert!(from.is_dir(), "no zedlets at {}: run scripts/setup.sh test", from.display());
    let zeds = Zeds::start(|dir| {
        let out = dir.parent().unwrap().display().to_string();
        for name in ["scrub_finish-notify", "statechange-notify", "data-notify", "all-debug"] {
            let name = format!("{name}.sh");
            fs::copy(from.join(&name), dir.join(&name)).unwrap();
        }
        let functions = "zed-functions.sh";
        fs::copy(openzfs().join("etc/zfs/zed.d").join(functions), dir.join(functions)).unwrap();
        let mail = dir.parent().unwrap().join("mail");
        script(&mail, &format!("{{ echo \"TO $*\"; cat; }} >>{out}/sent"));
        let rc = format!(
            "ZED_DEBUG_LOG={out}/debug\nZED_EMAIL_ADDR=admin\nZED_EMAIL_PROG={}\nZED_NOTIFY_VERBOSE=1\n\
             ZED_NOTIFY_INTERVAL_SECS=0\nZED_RUNDIR={out}\nZED_LOCKDIR={out}\n",
            mail.display()
        );
        fs::write(dir.join("zed.rc"), rc).unwrap();
    });
    zeds.s.run("zpool scrub -w tank").ok();
    zeds.comes("sent", "ZFS has finished a scrub:");
    zeds.comes("sent", "errors: No known data errors");
    let a = zeds.s.path("a").display().to_string();
    zeds.s.run(&format!("zpool offline -f tank {a}")).ok();
    zeds.comes("sent", "ZFS has marked the device as faulted.");
    zeds.comes("sent", &format!("  vpath: {a}"));
    zeds.comes("debug", "ZEVENT_SUBCLASS=statechange");
    zeds.s.run(&format!("zpool clear tank {a}")).ok();
    zeds.s.run("zpool wait -t resilver tank").ok();
    zeds.end(|_| {});
}

#[test]
fn a_device_that_replaces_another_by_itself_runs_zedlets() {
    let zeds = Zeds::start(|dir| {
        let out = dir.parent().unwrap().display().to_string();
        let say = format!(
            "echo $ZEVENT_SUBCLASS $ZEVENT_VDEV_PATH \"$ZEVENT_AUTOREPLACE_REFUSED\" >>{out}/said"
        );
        script(&dir.join("autoreplace-say"), &say);
        script(&dir.join("vdev_attach-say"), &say);
    });
    let b = zeds.s.path("b");
    zeds.s.run("tunables set zfs_txg_timeout=1").ok();
    zeds.s.run("zpool set autoreplace=on tank").ok();
    let put = |size: u64| {
        let new = zeds.s.path("new");
        fs::File::create(&new).unwrap().set_len(size).unwrap();
        fs::rename(&new, &b).unwrap();
        zeds.s.run(&format!("zpool set comment=lost{size} tank")).ok();
    };
    put(100 << 20);
    zeds.comes("said", &format!("autoreplace {} device is too small\n", b.display()));
    put(128 << 20);
    zeds.comes("said", &format!("vdev_attach {} \n", b.display()));
    zeds.comes("said", &format!("autoreplace {} \n", b.display()));
    zeds.s.run("zpool wait -t replace,resilver tank").ok();
    zeds.end(|_| ());
}
