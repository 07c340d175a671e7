//! `zfs rewrite` and `cenote rewrite` on mounted file systems, as users run them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::{Done, Session, can_mount};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// A mounted pool in a file.
struct Tank(Session);

impl Tank {
    fn new() -> Option<Tank> {
        if !can_mount() {
            return None;
        }
        let session = Session::new();
        let disk = session.path("disk");
        fs::File::create(&disk).unwrap().set_len(1 << 30).unwrap();
        let (root, disk) = (session.root(), disk.display().to_string());
        session.run(&format!("zpool create -R {root} -O compression=off tank {disk}")).ok();
        Some(Tank(session))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path("root/tank").join(name)
    }

    /// Runs `cenote` in the mounted file system.
    fn run(&self, line: &str) -> Done {
        let mut command = self.0.command();
        command.current_dir(self.path("")).args(line.split_whitespace());
        done(&mut command)
    }

    fn referenced(&self, dataset: &str) -> u64 {
        self.0.run("zpool sync").ok();
        let said = self.0.run(&format!("zfs get -Hpo value referenced {dataset}")).ok();
        said.trim().parse().unwrap()
    }

    fn finish(self) {
        self.0.run("zpool export tank").ok();
        cenote_testpools::judge(self.0.dir.path(), "tank");
    }
}

fn done(command: &mut std::process::Command) -> Done {
    let output = cenote_testpools::output(command);
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Text that compresses well, but is not gone then.
fn text(n: usize, len: usize) -> Vec<u8> {
    let lines = (0..).map(|line| format!("Text number {n}, line {}. ", line * 7919));
    lines.flat_map(String::into_bytes).take(len).collect()
}

#[test]
fn a_tree_is_rewritten_with_new_properties_while_others_write() {
    let Some(tank) = Tank::new() else { return };
    tank.0.run("zfs create tank/inner").ok();
    fs::create_dir(tank.path("dir")).unwrap();
    let names = ["a", "dir/b", "dir/c", "inner/d"];
    for (n, name) in names.iter().enumerate() {
        fs::write(tank.path(name), text(n, 3_000_000)).unwrap();
    }
    std::os::unix::fs::symlink("a", tank.path("link")).unwrap();
    fs::write(tank.path("empty"), "").unwrap();
    let times = |name: &str| {
        let m = fs::metadata(tank.path(name)).unwrap();
        (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec(), m.len(), m.ino())
    };
    let before: Vec<_> = names.iter().map(|name| times(name)).collect();
    let (outer, inner) = (tank.referenced("tank"), tank.referenced("tank/inner"));
    assert!(outer > 9_000_000 && inner > 3_000_000);
    tank.0.run("zfs set compression=zstd tank").ok();

    // One of the files is open, and written to all the time.
    let busy = fs::File::options().read(true).write(true).create_new(true).open(tank.path("busy"));
    let busy = busy.unwrap();
    let (stop, mut want) = (AtomicBool::new(false), text(9, 2_000_000));
    busy.write_all_at(&want, 0).unwrap();
    let listed = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0usize;
            while !stop.load(Ordering::Relaxed) {
                let at = n * 37_777 % 1_900_000;
                let part = text(n, 50_000);
                busy.write_all_at(&part, at as u64).unwrap();
                want[at..at + part.len()].copy_from_slice(&part);
                n += 1;
            }
        });
        let listed: Vec<Done> = (0..4).map(|_| tank.run("zfs rewrite -rvx .")).collect();
        stop.store(true, Ordering::Relaxed);
        listed
    });
    for done in listed {
        assert_eq!(done.out, "./a\n./busy\n./empty\n./dir/b\n./dir/c\n", "{done:?}");
        assert!(done.code == 0 && done.err.starts_with("5 files, "), "{done:?}");
    }
    let mut read = vec![0; want.len()];
    busy.read_exact_at(&mut read, 0).unwrap();
    assert!(read == want);
    drop(busy);
    fs::remove_file(tank.path("busy")).unwrap();
    assert!(tank.referenced("tank") * 4 < outer);
    assert_eq!(tank.referenced("tank/inner"), inner);
    // A part of the inner one, then all of it, by the other name.
    assert_eq!(tank.run("rewrite -o 0x100000 -l 1048576 inner/d").ok(), "");
    let half = tank.referenced("tank/inner");
    assert!(half < inner - 500_000 && half > inner / 2, "{half} of {inner}");
    let said: serde_json::Value =
        serde_json::from_str(&tank.run("rewrite -r --json inner").ok()).unwrap();
    assert_eq!(
        (&said["files"], &said["bytes"], &said["errors"]),
        (&1.into(), &3_000_000.into(), &0.into())
    );
    assert!(tank.referenced("tank/inner") * 4 < inner);
    for (n, name) in names.iter().enumerate() {
        assert!(fs::read(tank.path(name)).unwrap() == text(n, 3_000_000), "{name}");
        assert_eq!(times(name), before[n], "{name}");
    }
    // What is in a snapshot stays what it was, and blocks that it shares are left alone if asked for.
    tank.0.run("zfs snapshot tank@then").ok();
    let shared = || {
        tank.0.run("zpool sync").ok();
        tank.0.run("zfs get -Hpo value used tank@then").ok().trim().parse::<u64>().unwrap()
    };
    tank.run("zfs rewrite -CS a").ok();
    assert!(shared() < 100_000);
    tank.run("zfs rewrite a").ok();
    assert!(shared() > 100_000, "{}", shared());
    assert!(fs::read(tank.path(".zfs/snapshot/then/a")).unwrap() == text(0, 3_000_000));
    tank.finish();
}

/// A file system with so many files that each take a while to rewrite. Their names are long: a pipe of
/// one page holds the names of twenty files.
fn many(tank: &Tank, count: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|n| format!("{n:0200}")).collect();
    for (n, name) in names.iter().enumerate() {
        fs::write(tank.path(name), text(n, 2_000_000)).unwrap();
    }
    names
}

/// Ctrl-C ends the command (which a shell shows as 130) and leaves every file as it was; what is not
/// rewritten yet can be rewritten later.
#[test]
fn an_interrupted_rewrite_does_no_harm() {
    let Some(tank) = Tank::new() else { return };
    let names = many(&tank, 120);
    let before = tank.referenced("tank");
    tank.0.run("zfs set compression=zstd tank").ok();
    let mut command = tank.0.interruptible();
    command.current_dir(tank.path("")).args(["rewrite", "-rv", "."]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    // When the first files are done. Before all are it has to wait for someone to read their names.
    let stdout = child.stdout.as_mut().unwrap();
    rustix::pipe::fcntl_setpipe_size(&stdout, 4096).unwrap();
    let mut first = [0; 1];
    stdout.read_exact(&mut first).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let status = cenote_testpools::wait(&mut child);
    assert_eq!((status.code(), status.signal()), (None, Some(2)));
    let right = |names: &[String]| {
        for (n, name) in names.iter().enumerate() {
            assert!(fs::read(tank.path(name)).unwrap() == text(n, 2_000_000), "{name}");
        }
    };
    right(&names);
    let half = tank.referenced("tank");
    assert!(half < before && half > before / 4, "{half} of {before}");
    tank.run("rewrite -r .").ok();
    right(&names);
    assert!(tank.referenced("tank") < before / 4);
    tank.finish();
}

/// On a terminal a bar is shown, which is taken away in the end.
#[test]
fn a_terminal_has_a_bar() {
    let Some(tank) = Tank::new() else { return };
    many(&tank, 24);
    let line = format!("{} rewrite -r .", env!("CARGO_BIN_EXE_cenote"));
    // It gives the command a pseudo-terminal.
    let mut command = std::process::Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(tank.path(""));
    for (name, value) in tank.0.command().get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let shown = done(command.stdin(std::process::Stdio::null()));
    assert_eq!(shown.code, 0, "{shown:?}");
    let (bar, last) = shown.out.rsplit_once("\x1b[2K").unwrap();
    assert!(bar.contains("% ") && bar.contains(" left"), "{bar}");
    // How far it had come when it was last drawn depends on the machine.
    assert!(bar.contains(" of 45.78 MiB"), "{bar}");
    assert!(last.starts_with("24 files, 45.8M, "), "{last}");
    assert!(!tank.run("rewrite -rv .").err.contains('\x1b'));
    tank.finish();
}

/// With -P the times of birth stay: a stream of changes has nothing of it. With -C clones stay shared.
#[test]
fn births_are_kept_and_clones_spared() {
    let Some(tank) = Tank::new() else { return };
    fs::write(tank.path("a"), text(1, 3_000_000)).unwrap();
    tank.0.run("zpool sync").ok();
    tank.0.run("zfs snapshot tank@one").ok();
    let changes = |to: &str| {
        let mut command = tank.0.command();
        command.args(["zfs", "send", "-i", "@one", &format!("tank@{to}")]);
        let output = cenote_testpools::output(&mut command);
        assert!(output.status.success(), "{output:?}");
        output.stdout.len()
    };
    tank.run("zfs rewrite -P a").ok();
    tank.0.run("zfs snapshot tank@physical").ok();
    let said = tank.0.run("zpool get -Ho value feature@physical_rewrite tank").ok();
    assert_eq!(said.trim(), "active");
    let written = tank.0.run("zfs get -Hpo value written@one tank@physical").ok();
    assert!(written.trim().parse::<u64>().unwrap() > 3_000_000, "{written}");
    assert!(changes("physical") < 100_000, "{}", changes("physical"));
    tank.run("zfs rewrite a").ok();
    tank.0.run("zfs snapshot tank@logical").ok();
    assert!(changes("logical") > 3_000_000, "{}", changes("logical"));

    let cloned = || {
        tank.0.run("zpool sync").ok();
        let said = tank.0.run("zpool get -Hpo value bcloneused tank").ok();
        said.trim().parse::<u64>().unwrap()
    };
    let status = std::process::Command::new("cp").arg(tank.path("a")).arg(tank.path("b")).status();
    assert!(status.unwrap().success());
    let shared = cloned();
    assert!(shared > 2_000_000, "{shared}");
    tank.run("zfs rewrite -C a b").ok();
    assert_eq!(cloned(), shared);
    tank.run("zfs rewrite b").ok();
    assert_eq!(cloned(), 0);
    assert!(fs::read(tank.path("b")).unwrap() == text(1, 3_000_000));
    // OpenZFS 2.1, which judges what is left, knows no blocks with births that were kept.
    for name in ["one", "physical", "logical"] {
        tank.0.run(&format!("zfs destroy tank@{name}")).ok();
    }
    tank.finish();
}

#[test]
fn what_is_refused() {
    let Some(tank) = Tank::new() else { return };
    fs::write(tank.path("a"), text(1, 300_000)).unwrap();
    fs::create_dir(tank.path("dir")).unwrap();
    let first = |line: &str| tank.run(line).fails(2).lines().next().unwrap().to_string();
    assert_eq!(first("zfs rewrite"), "missing file or directory target(s)");
    assert_eq!(first("zfs rewrite -q a"), "invalid option 'q'");
    assert_eq!(first("zfs rewrite -l 3x a"), "bad number '3x': invalid digit found in string");
    assert!(first("rewrite -o x a").contains("bad number 'x'"), "{}", first("rewrite -o x a"));
    // As OpenZFS has it this is no failure.
    assert_eq!(tank.run("zfs rewrite dir").fails(0), "skipping dir: is a directory (use -r)");
    let other = tank.0.path("other");
    fs::write(&other, "x").unwrap();
    let other = other.display();
    assert_eq!(
        tank.run(&format!("zfs rewrite {other} a")).fails(1),
        format!("failed to rewrite {other}: not in a mounted file system of a pool")
    );
    let missing = tank.run("zfs rewrite nothing").fails(1);
    assert_eq!(missing, "failed to look at nothing: No such file or directory");
    // A user who may not write the file may not have it rewritten.
    let mut nobody = tank.0.command();
    nobody.current_dir("/").uid(65534).gid(65534).args(["zfs", "rewrite"]).arg(tank.path("a"));
    fs::set_permissions(tank.0.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    match nobody.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let want = format!("failed to open {}: Permission denied\n", tank.path("a").display());
            assert_eq!((output.status.code(), said), (Some(1), want));
        }
        Err(e) => eprintln!("skipped: other users cannot run the program: {e}"),
    }
    tank.0.run("zfs snapshot tank@then").ok();
    let said = tank.run("zfs rewrite .zfs/snapshot/then/a").fails(1);
    assert_eq!(said, "failed to open .zfs/snapshot/then/a: Read-only file system");
    tank.0.run("zfs set readonly=on tank").ok();
    let said = tank.run("zfs rewrite a").fails(1);
    assert_eq!(said, "failed to open a: Read-only file system");
    tank.finish();
}
