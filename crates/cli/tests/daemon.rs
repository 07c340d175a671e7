//! The daemon's life, and the mounts that live and die with it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::{Done, Session, can_mount, children, mounts_below, must, skip};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, Instant};

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[track_caller]
fn import_mounted(s: &Session, pool: &str) {
    let dir = cenote_testpools::pool(pool).dir;
    s.run(&format!("zpool import -f -o readonly=on -R {} -d {} {pool}", s.root(), dir.display()))
        .ok();
}

#[test]
fn import_mounts_and_export_unmounts() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    import_mounted(&s, "degr");
    let root = s.path("root");
    assert_eq!(mounts_below(&root).len(), 5);
    let listed = s.run("zfs mount").ok();
    assert!(listed.contains(&format!("{:<30}  {}/degr\n", "degr", s.root())), "{listed}");
    assert_eq!(s.run("zfs get -Ho value mounted degr/dg16k-lz4").ok(), "yes\n");
    assert_eq!(s.run("zfs get -Ho value,source readonly degr").ok(), "on\ttemporary\n");
    assert_eq!(s.run("zfs mount degr").fails(1), "cannot mount 'degr': filesystem already mounted");
    let snapshot = root.join("degr/.zfs/snapshot/one");
    let listed = s.run("ls -a degr@one:/").ok();
    assert_eq!(std::fs::read_dir(&snapshot).unwrap().count() + 2, listed.lines().count());
    assert!(std::fs::write(root.join("degr/new"), "x").is_err(), "mounts are read-only");

    // By path, and by name with what is below it.
    s.run(&format!("zfs unmount {}/degr/dg16k-lz4", s.root())).ok();
    assert_eq!(mounts_below(&root).len(), 4);
    assert_eq!(
        s.run("zfs unmount degr/dg16k-lz4").fails(1),
        "cannot unmount 'degr/dg16k-lz4': not currently mounted"
    );
    s.run("zfs mount degr/dg16k-lz4").ok();
    s.run("zfs umount degr").ok();
    assert_eq!(mounts_below(&root).len(), 0);
    s.run("zfs mount -a").ok();
    assert_eq!(mounts_below(&root).len(), 5);

    // Another user may unmount, too.
    let path = root.join("degr/dg16k-off");
    assert!(std::process::Command::new("umount").arg(&path).status().unwrap().success());
    wait_until("the mount is forgotten", || s.run("zfs mount").ok().lines().count() == 4);

    s.run("zpool export degr").ok();
    assert_eq!(mounts_below(&root).len(), 0);
    assert!(!root.join("degr/dg16k-lz4").exists(), "inherited mountpoints are removed");
}

/// The program may be there as `zpool` only; its daemon mounts all the same.
#[test]
fn a_daemon_of_a_program_by_another_name_mounts() {
    if !can_mount() {
        return;
    }
    let ours = Path::new(env!("CARGO_BIN_EXE_cenote"));
    let dir = cenote_testpools::pool("bclone").dir;
    for way in ["copied", "linked", "hard linked", "bound"] {
        let s = Session::new();
        let program = s.path("zpool");
        let copy = || std::fs::copy(ours, s.path("other")).unwrap();
        match way {
            "copied" => drop(std::fs::copy(ours, &program).unwrap()),
            "linked" => std::os::unix::fs::symlink(ours, &program).unwrap(),
            "hard linked" => {
                copy();
                std::fs::hard_link(s.path("other"), &program).unwrap();
            }
            _ => {
                copy();
                std::fs::write(&program, "").unwrap();
                must(
                    "mount",
                    &["--bind", s.path("other").to_str().unwrap(), program.to_str().unwrap()],
                );
            }
        }
        let mut command = std::process::Command::new(&program);
        command.env("CENOTE_SOCKET", s.path("socket"));
        command.args(["import", "-f", "-o", "readonly=on", "-R", &s.root(), "-d"]);
        let output = cenote_testpools::output(command.arg(&dir).arg("bclone"));
        assert!(output.status.success() && output.stderr.is_empty(), "{way}: {output:?}");
        assert!(!mounts_below(&s.path("root")).is_empty());
        // What runs goes on when its file is gone.
        if way == "bound" {
            must("umount", &["-l", program.to_str().unwrap()]);
        }
        std::fs::remove_file(&program).unwrap();
        s.run("zfs unmount bclone").ok();
        s.run("zfs mount bclone").ok();
        let pid = s.daemon().unwrap();
        assert_eq!(std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(), "cenote\n");
        s.run("zpool export bclone").ok();
    }
}

/// Where a process sees the daemon's socket, but not the daemon.
#[test]
fn commands_work_in_another_pid_namespace() {
    if !rustix::process::geteuid().is_root() {
        return skip("not root");
    }
    let s = Session::new();
    s.import("degr");
    let there = |line: &str| {
        let mut command = std::process::Command::new("unshare");
        command.args(["-m", "-p", "-f", "--mount-proc", env!("CARGO_BIN_EXE_cenote")]);
        command.args(line.split(' ')).env("CENOTE_SOCKET", s.path("socket"));
        let output = cenote_testpools::output(&mut command);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        Done { code, out: text(&output.stdout), err: text(&output.stderr) }
    };
    assert_eq!(there("zpool list -Ho name").ok(), "degr\n");
    assert_eq!(there("zfs get -Ho value type degr").ok(), "filesystem\n");
    // A daemon that does not answer is not given the number of another process.
    let stopped = Stopped::new(s.daemon().unwrap());
    let said = there("zpool list").fails(1);
    assert!(said.contains("the daemon has not answered for"), "{said}");
    assert!(said.contains("'kill -9 PID'"), "{said}");
    drop(stopped);
    there("daemon stop").ok();
    assert_eq!(s.daemon(), None);
}

#[test]
fn a_busy_pool_is_exported_by_force_only() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    import_mounted(&s, "bclone");
    let open = std::fs::File::open(s.path("root/bclone")).unwrap();
    let said = s.run("zpool export bclone").fails(1);
    let busy = format!("/root/bclone': pool or dataset is busy{}", common::used_by_this());
    assert!(said.ends_with(&busy), "{said}");
    assert_eq!(s.run("zpool list -Ho name").ok(), "bclone\n");
    s.run("zpool export -f bclone").ok();
    assert_eq!(mounts_below(&s.path("root")).len(), 0);
    drop(open);
}

#[test]
fn killed_daemons_leave_no_mounts() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    import_mounted(&s, "degr");
    let pid = s.daemon().unwrap();
    signal(pid, Signal::KILL);
    wait_until("the mounts vanish", || mounts_below(s.dir.path()).is_empty());
    wait_until("the daemon is gone", || !runs(pid));
    // Commands find no daemon behind the socket, and the next import starts another one.
    assert_eq!(s.run("zpool list").ok(), "no pools available\n");
    import_mounted(&s, "degr");
    assert_ne!(s.daemon().unwrap(), pid);
}

/// The daemon's mounts stay if the process that would take them away dies with it. The next import does
/// that.
#[test]
fn dead_mounts_make_way() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    import_mounted(&s, "degr");
    let alive = mounts_below(s.dir.path());
    let pid = s.daemon().unwrap();
    let watchers = children(pid);
    assert!(!watchers.is_empty());
    watchers.into_iter().for_each(|(watcher, _)| signal(watcher, Signal::KILL));
    signal(pid, Signal::KILL);
    wait_until("the daemon is gone", || !runs(pid));
    assert_eq!(mounts_below(s.dir.path()), alive);
    import_mounted(&s, "degr");
    assert_eq!(mounts_below(s.dir.path()), alive);
    s.run("zpool export degr").ok();
    assert!(mounts_below(s.dir.path()).is_empty());
}

#[test]
fn sigterm_unmounts_and_exports() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    import_mounted(&s, "degr");
    let busy = std::fs::File::open(s.path("root/degr")).unwrap();
    let pid = s.daemon().unwrap();
    signal(pid, Signal::TERM);
    wait_until("the daemon ends", || !runs(pid));
    assert!(mounts_below(s.dir.path()).is_empty());
    assert!(!s.path("socket").exists());
    drop(busy);
}

#[test]
fn only_one_daemon_and_none_without_work() {
    let s = Session::new();
    std::thread::scope(|scope| {
        let starts: Vec<_> = (0..4).map(|_| scope.spawn(|| s.run("daemon"))).collect();
        for start in starts {
            start.join().unwrap().ok();
        }
    });
    let pid = s.daemon().unwrap();
    let second = s.run("daemon --foreground");
    assert_eq!(second.code, 0, "{second:?}");
    assert_eq!(s.daemon(), Some(pid));
    // Every user may ask root's daemon.
    let open = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
    assert_eq!(std::fs::metadata(s.path("socket")).unwrap().mode() & 0o777, open);
    wait_until("the daemon has nothing to do and ends", || !runs(pid));
    assert_eq!(s.run("daemon status").out, "no daemon is running\n");
    assert_eq!(s.run("daemon stop").code, 0);
}

#[test]
fn a_daemon_that_is_ending_makes_way_for_the_next() {
    // It has removed its socket, and holds its lock until all is exported.
    let s = Session::new();
    let ending = std::fs::File::create(s.path("socket.lock")).unwrap();
    ending.lock().unwrap();
    std::thread::scope(|scope| {
        let log = || std::fs::read_to_string(s.path("socket.log")).unwrap_or_default();
        let waiting = scope.spawn(|| s.run("daemon").ok());
        wait_until("a daemon finds the lock taken", || log().contains("another daemon serves"));
        ending.unlock().unwrap();
        waiting.join().unwrap();
    });
    s.run("daemon status").ok();
}

#[test]
fn a_client_that_goes_away_cancels_its_command() {
    let s = Session::new();
    s.import("degr");
    let mut client = s
        .command()
        .args(["zpool", "iostat", "1"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the command runs", || {
        s.run("daemon status").out.contains("running: zpool iostat 1")
    });
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until("the command ends", || !s.run("daemon status").out.contains("running"));
}

/// A daemon that is stopped, until the end.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Stopped {
        signal(pid, Signal::STOP);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.0).unwrap(), Signal::CONT);
    }
}

#[test]
fn commands_give_up_on_a_stopped_daemon() {
    let s = Session::new();
    s.import("degr");
    let pid = s.daemon().unwrap();
    let mut running = s
        .command()
        .args(["zpool", "iostat", "1"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the command runs", || {
        s.run("daemon status").out.contains("running: zpool iostat 1")
    });
    let stopped = Stopped::new(pid);
    let why = format!(
        "the daemon (process {pid}) is stopped by a signal; 'kill -CONT {pid}' lets it continue"
    );
    std::thread::scope(|scope| {
        for line in ["daemon", "daemon status", "daemon stop", "zpool list", "zpool import -a"] {
            let (s, why) = (&s, &why);
            scope.spawn(move || {
                let said = s.run(line).fails(1);
                assert!(said.ends_with(why), "{line}: {said}");
            });
        }
    });
    wait_until("the running command ends, too", || running.try_wait().unwrap().is_some());
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said, format!("zpool: {why}. What the command was to do may be done or not\n"));
    drop(stopped);
    assert_eq!(s.run("zpool list -Ho name").ok(), "degr\n");
    assert_eq!(s.daemon(), Some(pid));
}

#[test]
fn the_daemon_says_that_it_lives_while_a_command_runs() {
    use cenote_daemon::protocol::{
        BEAT, Hello, Kind, Request, Run, read_frame, read_json, write_json,
    };
    let s = Session::new();
    s.import("degr");
    let mut stream = std::os::unix::net::UnixStream::connect(s.path("socket")).unwrap();
    stream.set_read_timeout(Some(BEAT * 5)).unwrap();
    read_json::<Hello>(&mut stream, Kind::Hello).unwrap();
    let run = Run {
        namespace: std::fs::metadata("/proc/self/ns/mnt")
            .map_or(0, |m| std::os::unix::fs::MetadataExt::ino(&m)),
        tool: "zpool".into(),
        args: vec![b"iostat".to_vec(), b"-H".to_vec(), b"3600".to_vec()],
        cwd: b"/".to_vec(),
        env: Vec::new(),
        terminal: Default::default(),
        umask: 0,
        input: Default::default(),
    };
    write_json(&mut stream, Kind::Request, &Request::Run(run)).unwrap();
    let mut frames = std::iter::repeat_with(|| read_frame(&mut stream).unwrap().unwrap());
    assert!(frames.any(|(kind, data)| kind == Kind::Alive && data.is_empty()));
    assert!(frames.any(|(kind, _)| kind == Kind::Alive));
}

/// In a directory where others can put things, what they put there is not trusted.
#[test]
fn what_others_put_in_the_sockets_place_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return skip("not root");
    }
    let s = Session::new();
    std::fs::set_permissions(s.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (dir, secret) = (s.path("open"), s.path("secret"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o1777)).unwrap();
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("log"), "precious\n").unwrap();
    let at = |socket: &str, line: &str| {
        let mut command = s.command();
        command.env("CENOTE_SOCKET", dir.join(socket)).args(line.split_whitespace());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (socket, link, to) in [("a", "a.log", "log"), ("b", "b.lock", "made")] {
        let link = dir.join(link);
        std::os::unix::fs::symlink(secret.join(to), &link).unwrap();
        rustix::fs::chownat(
            rustix::fs::CWD,
            &link,
            Some(rustix::fs::Uid::from_raw(65534)),
            None,
            rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
        let (code, said) = at(socket, "daemon");
        assert_eq!(code, Some(1));
        // Most kernels do not follow it either (fs.protected_symlinks).
        let refused = ["is a symbolic link", "Permission denied"]
            .map(|why| format!("cenote daemon: {}: {why}", link.display()));
        assert!(refused.iter().any(|why| said.contains(why)), "{said}");
    }
    assert_eq!(std::fs::read_to_string(secret.join("log")).unwrap(), "precious\n");
    assert!(!secret.join("made").exists());
    // Another user's daemon.
    let mut theirs = s.command();
    theirs.env("CENOTE_SOCKET", dir.join("c")).current_dir("/").uid(65534).gid(65534);
    assert!(theirs.arg("daemon").status().unwrap().success());
    for line in ["zfs destroy -r some/where", "zpool list", "zpool import -a", "daemon stop"] {
        let (code, said) = at("c", line);
        assert_eq!(code, Some(1), "{line}");
        assert!(said.ends_with("/open/c: belongs to another user\n"), "{said}");
    }
    let mut theirs = s.command();
    theirs.env("CENOTE_SOCKET", dir.join("c")).current_dir("/").uid(65534).gid(65534);
    assert!(theirs.args(["daemon", "stop"]).status().unwrap().success());
    // Where no other user interferes the directory will do.
    let (code, said) = at("d", "daemon");
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert_eq!(at("d", "daemon stop").0, Some(0));
}

/// Runs a command as the user `nobody`, with a daemon in `dir`.
fn as_nobody(s: &Session, dir: &Path, line: &str) -> Done {
    let mut command = s.command();
    command.env("CENOTE_SOCKET", dir.join("socket")).current_dir("/").uid(65534).gid(65534);
    let output = command.args(line.split_whitespace()).output().unwrap();
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn ordinary_users_import_too() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(s.dir.path(), open).unwrap();
    let dir = s.path("nobody");
    std::fs::create_dir(&dir).unwrap();
    chown(&dir, Some(65534), Some(65534)).unwrap();
    let pool = cenote_testpools::pool("bclone").dir;
    let from = pool.display();
    let probe = as_nobody(&s, &dir, &format!("ls -d {from} bclone"));
    if probe.code != 0 {
        eprintln!("skipped: the sample pools cannot be read by others: {probe:?}");
        return;
    }
    // Without -R the mountpoint is below /, where an ordinary user can make no directory.
    let done = as_nobody(&s, &dir, &format!("zpool import -f -o readonly=on -d {from} bclone"));
    assert_eq!(done.code, 1, "{done:?}");
    let why = "cannot mount '/bclone': failed to create mountpoint: Permission denied";
    assert!(done.err.contains(why), "{done:?}");
    assert!(done.err.ends_with("Import was successful, but unable to mount some datasets\n"));
    assert_eq!(as_nobody(&s, &dir, "zpool list -Ho name").ok(), "bclone\n");
    as_nobody(&s, &dir, "zpool export bclone").ok();
    let root = dir.join("root");
    let line = format!("zpool import -f -o readonly=on -R {} -d {from} bclone", root.display());
    let done = as_nobody(&s, &dir, &line);
    assert_eq!(done.code, 0, "{done:?}");
    if done.err.is_empty() {
        assert!(!mounts_below(&root).is_empty());
        as_nobody(&s, &dir, "zpool export bclone").ok();
        assert!(mounts_below(&root).is_empty());
    } else {
        skip(&format!("mounts by fusermount3 do not work here: {}", done.err));
    }
    // Root may use a user's daemon, and a user root's; other users are not answered.
    let probe = |uid: u32, daemon: &Path| {
        let mut command = s.command();
        command.env("CENOTE_SOCKET", daemon.join("socket")).current_dir("/").uid(uid).gid(uid);
        command.args(["zpool", "list", "-Ho", "name"]).output().unwrap()
    };
    as_nobody(&s, &dir, "daemon").ok();
    assert!(probe(0, &dir).status.success());
    let other = probe(65533, &dir);
    assert!(!other.status.success() && other.stdout.is_empty(), "{other:?}");
    as_nobody(&s, &dir, "daemon stop").ok();
}

#[test]
fn damaged_files_are_named() {
    let s = Session::new();
    let copy = cenote_testpools::copy("basic");
    // Damage data, not metadata: a piece of a file that is not compressed.
    let image = &copy.pool.files[0];
    let mut bytes = std::fs::read(image).unwrap();
    let manifest = copy.pool.manifest();
    let files = manifest["datasets"][0]["files"].as_array().unwrap().clone();
    let size = |f: &serde_json::Value| f["size"].as_u64().unwrap_or(0);
    let fitting = |f: &&serde_json::Value| {
        f["type"] == "f"
            && f["nlink"] == 1
            && f["path"].is_string()
            && (64 << 10..4 << 20).contains(&size(f))
    };
    let read = |path: &str| {
        let name = format!("basic:/{path}");
        s.command().args(["cat", "-d"]).arg(&copy.pool.dir).arg(name).output().unwrap().stdout
    };
    let found = files.iter().filter(fitting).find_map(|f| {
        let path = f["path"].as_str().unwrap().trim_start_matches("./").to_string();
        let whole = read(&path);
        assert_eq!(whole.len() as u64, size(f));
        Some((find_piece(&bytes, &whole)?, path, whole))
    });
    let (at, path, whole) = found.expect("a file with an uncompressed block");
    bytes[at] ^= 0xff;
    std::fs::write(image, &bytes).unwrap();

    s.import_from(&copy.pool.dir, "basic");
    assert!(s.run("zpool status basic").ok().contains("errors: No known data errors"));
    let read = s.command().args(["cat", &format!("basic:/{path}")]).output().unwrap();
    assert_eq!(read.status.code(), Some(1));
    let status = s.run("zpool status basic").ok();
    assert!(status.contains("data errors, use '-v' for a list"), "{status}");
    let status = s.run("zpool status -v basic").ok();
    assert!(status.contains("errors: Permanent errors have been detected in the following files:"));
    assert!(status.contains(&format!("        basic:/{path}\n")), "{status}");
    assert!(status.contains("One or more devices has experienced an error resulting in data"));
    // The copy says so, leaves no half file, and with --salvage keeps the rest.
    let to = s.path("copy");
    let to = to.to_str().unwrap();
    let from = format!("basic:/{path}");
    let said = s.run_args(&["cp", "-q", &from, to]).fails(1);
    assert!(said.contains("cannot read at byte"), "{said}");
    assert!(!Path::new(to).exists());
    let said = s.run_args(&["cp", "-q", "--salvage", &from, to]).fails(1);
    assert!(said.contains("are lost"), "{said}");
    let kept = std::fs::read(to).unwrap();
    assert_eq!(kept.len(), whole.len());
    let different = kept.iter().zip(&whole).filter(|(a, b)| a != b).count();
    assert!(different > 0 && different <= 1 << 20, "{different} bytes differ");
}

/// Where a piece of `file` lies uncompressed in the image.
fn find_piece(image: &[u8], file: &[u8]) -> Option<usize> {
    const PIECE: usize = 64;
    let start = file.chunks(4096).position(|c| {
        c.len() == 4096 && c[..PIECE].iter().collect::<std::collections::HashSet<_>>().len() > 40
    })? * 4096;
    let piece = &file[start..start + PIECE];
    // Blocks begin at multiples of the sector size, files' pages in them, too.
    (0..image.len() - PIECE).step_by(4096).find(|at| &image[*at..*at + PIECE] == piece)
}
