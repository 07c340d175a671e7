//! A daemon that is killed: it is gone with its mounts, whatever it was doing, and the one that follows keeps its own.

use super::common::tank::Tank;
use super::common::{can_mount, children, mounts_below, must};
use super::{NAMESPACES, wait_until};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
/// However the daemon is killed, it is gone at once, with its mounts, and the pool can be imported.
#[test]
fn a_killed_daemon_is_gone_while_it_mounts() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    let tank = Tank::new("");
    let rounds = if std::env::var("CENOTE_TORTURE").is_ok_and(|v| v == "long") { 40 } else { 2 };
    for round in 0..rounds {
        let daemon = tank.session.daemon().unwrap();
        let mut busy: Vec<Child> = (0..3)
            .map(|w| {
                let script = format!(
                    "i=0; while i=$((i+1)); do \"$0\" zfs create tank/r{round}-{w}-$i || break; \
                     \"$0\" zfs destroy tank/r{round}-{w}-$i || break; done"
                );
                let mut shell = Command::new("sh");
                shell.args(["-c", &script, env!("CARGO_BIN_EXE_cenote")]);
                shell.env("CENOTE_SOCKET", tank.session.path("socket"));
                shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300 + 170 * (round % 4)));
        must("kill", &["-KILL", &daemon.to_string()]);
        wait_until(|| !Path::new(&format!("/proc/{daemon}")).exists());
        for shell in &mut busy {
            let _ = shell.kill();
            let _ = shell.wait();
        }
        wait_until(|| mounts_below(tank.session.dir.path()).is_empty());
        let (root, dir) = (tank.session.root(), tank.session.dir.path().display());
        let import = format!("zpool import -d {dir} -R {root} tank");
        wait_until(|| tank.session.run(&import).code == 0);
    }
    tank.finish();
}

/// Taking away the mounts of a killed daemon leaves the mounts that its successor makes, be it the daemon's watcher
/// that takes them away or, where that was killed as well, the next import.
#[test]
fn an_import_right_after_a_kill_stays_mounted() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    let tank = Tank::new("");
    const ALL: usize = 8;
    for n in 0..ALL {
        tank.zfs(&format!("create tank/d{n}"));
        fs::write(tank.path(&format!("tank/d{n}/f")), n.to_string()).unwrap();
    }
    tank.session.run("zpool sync tank").ok();
    let (root, dir) = (tank.session.root(), tank.session.dir.path().display());
    let import = format!("zpool import -d {dir} -R {root} tank");
    // In every second round its watcher is killed first, so that its mounts stay.
    let kill = |daemon: i32, round: u64| {
        let mut doomed = children(daemon);
        doomed.retain(|(_, line)| round % 2 == 1 && line.contains("--watch-mounts"));
        let watchers = doomed.len();
        for pid in doomed.iter().map(|(pid, _)| *pid).chain([daemon]) {
            must("kill", &["-KILL", &pid.to_string()]);
        }
        watchers
    };
    let rounds = if std::env::var("CENOTE_TORTURE").is_ok_and(|v| v == "long") { 60 } else { 3 };
    for round in 0..rounds {
        let watchers = kill(tank.session.daemon().unwrap(), round);
        assert_eq!(watchers > 0, round % 2 == 1);
        let mut first = tank.session.command();
        let words: Vec<&str> = import.split(' ').collect();
        first.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        let first = first.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(100 + 70 * (round % 5)));
        if let Some(daemon) = tank.session.daemon() {
            kill(daemon, round);
        }
        let first = first.wait_with_output().unwrap();
        let mut said = vec![(first.status.code(), String::from_utf8(first.stderr).unwrap())];
        wait_until(|| {
            let done = tank.session.run(&import);
            let is_there = done.code == 0 || done.err.contains("already exists");
            said.push((Some(done.code), done.err));
            is_there
        });
        // An import that could not mount something says so, and is no other failure.
        let in_part = |(_, err): &(Option<i32>, String)| err.contains("unable to mount");
        assert!(!said.iter().any(in_part), "round {round}: {said:?}");
        std::thread::sleep(Duration::from_millis(500));
        for n in 0..ALL {
            let text = fs::read_to_string(tank.path(&format!("tank/d{n}/f"))).unwrap_or_default();
            let mounted = tank.zfs("mount");
            assert_eq!(text, n.to_string(), "round {round}: {mounted:?}, {said:?}");
        }
    }
    tank.finish();
}
