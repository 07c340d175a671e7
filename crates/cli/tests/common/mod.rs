//! Runs the real binary with a daemon of its own.

#![allow(dead_code)] // Each test file uses a part of it.

pub mod keys;
pub mod loops;
pub mod tank;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Done {
    /// Its output, if it succeeded and complained about nothing.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    /// As [`Done::ok`], of an import that may say that it does not replay intent logs.
    #[track_caller]
    pub fn ok_but_for_logs(self) -> String {
        let is_other = |l: &&str| !l.starts_with("intent log of ");
        let others: Vec<&str> = self.err.lines().filter(is_other).collect();
        assert_eq!((self.code, &others[..]), (0, &[""; 0][..]), "{}", self.out);
        self.out
    }

    /// Its complaint, if it ended with `code`.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        self.err.trim_end().to_string()
    }
}

/// A directory for copies, on a file system that holds large extended attributes if there is one.
pub fn scratch() -> (TempDir, bool) {
    let memory = Path::new("/dev/shm");
    let large = |dir: &Path| {
        let Ok(file) = tempfile::NamedTempFile::new_in(dir) else { return false };
        let value = vec![1; 40_000];
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(file.path(), "user.large", &value, flags).is_ok()
    };
    match large(memory) {
        true => (tempfile::tempdir_in(memory).unwrap(), true),
        false => (tempfile::tempdir().unwrap(), false),
    }
}

/// A place for a daemon, which is stopped at the end.
pub struct Session {
    pub dir: TempDir,
}

impl Session {
    pub fn new() -> Session {
        Session { dir: tempfile::tempdir().unwrap() }
    }

    /// With a pool `tank` of a mirror of files `a` and `b`.
    pub fn mirror() -> Session {
        let s = Session::new();
        for name in ["a", "b"] {
            std::fs::File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
        }
        let (a, b) = (s.path("a"), s.path("b"));
        s.run(&format!("zpool create -m none tank mirror {} {}", a.display(), b.display())).ok();
        s
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Alternate root for imports.
    pub fn root(&self) -> String {
        self.path("root").to_str().unwrap().into()
    }

    pub fn command(&self) -> Command {
        self.prepare(Command::new(env!("CARGO_BIN_EXE_cenote")))
    }

    /// A command that an interrupt ends, also where this test runs in the background of a script, whose
    /// commands ignore interrupts and hand that on.
    pub fn interruptible(&self) -> Command {
        let mut command = Command::new("env");
        command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_cenote")]);
        self.prepare(command)
    }

    /// `line` of a shell, in which `cenote` is the program, on a terminal; what the terminal is sent.
    pub fn on_terminal(&self, line: &str) -> String {
        let line = line.replace("cenote ", &format!("{} ", env!("CARGO_BIN_EXE_cenote")));
        let mut command = self.prepare(Command::new("script"));
        let output = cenote_testpools::output(command.args(["-qec", &line, "/dev/null"]));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn prepare(&self, mut command: Command) -> Command {
        command
            .env("CENOTE_SOCKET", self.path("socket"))
            .env("TZ", "UTC")
            .env_remove("ZPOOL_IMPORT_PATH")
            .stdin(Stdio::null())
            .current_dir(self.dir.path());
        command
    }

    /// Runs `cenote` with the words of `line` (no quoting).
    pub fn run(&self, line: &str) -> Done {
        self.run_args(&line.split_whitespace().collect::<Vec<_>>())
    }

    pub fn run_args(&self, args: &[&str]) -> Done {
        let output = cenote_testpools::output(self.command().args(args));
        Done {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Imports a sample pool without mounting it.
    #[track_caller]
    pub fn import(&self, name: &str) {
        let dir = cenote_testpools::pool(name).dir;
        self.import_from(&dir, name);
    }

    #[track_caller]
    pub fn import_from(&self, dir: &Path, name: &str) {
        let dir = dir.display();
        self.run(&format!("zpool import -f -N -o readonly=on -d {dir} {name}")).ok_but_for_logs();
    }

    /// What the daemon of a test that fails has logged, and the threads that it has.
    fn tell_of_daemon(&self) {
        let log = std::fs::read_to_string(self.path("socket.log")).unwrap_or_default();
        eprintln!("the daemon's log:\n{log}");
        let tasks = self.daemon().map(|process| format!("/proc/{process}/task"));
        for task in tasks.and_then(|tasks| std::fs::read_dir(tasks).ok()).into_iter().flatten() {
            let name = task.and_then(|task| std::fs::read_to_string(task.path().join("comm")));
            eprint!("thread {}", name.unwrap_or_default());
        }
    }

    /// The daemon's process, if it runs.
    pub fn daemon(&self) -> Option<i32> {
        let status = self.run("daemon status");
        let number = status.out.strip_prefix("daemon: process ")?.split(',').next()?;
        number.parse().ok()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell_of_daemon();
        }
        let _ = self.run("daemon stop");
    }
}

/// Says why something cannot be tested here. In CI everything must.
#[track_caller]
pub fn skip(why: &str) {
    let in_ci = std::env::var_os("CI").is_some_and(|v| !v.is_empty());
    assert!(!in_ci, "this cannot be tested here: {why}");
    eprintln!("skipped: {why}");
}

/// Whether file systems can be mounted here. In CI they must.
#[track_caller]
pub fn can_mount() -> bool {
    let able = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !able {
        skip("no FUSE, or not root");
    }
    able
}

/// What is said of a file system that this test has something of open.
pub fn used_by_this() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    format!(": process {} ({}) uses it", std::process::id(), name.trim_end())
}

/// Runs a program that has to succeed.
#[track_caller]
pub fn must(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

/// What is mounted below `dir`.
pub fn mounts_below(dir: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|l| l.split(' ').nth(4));
    points.filter(|p| Path::new(p).starts_with(dir)).map(String::from).collect()
}

/// The processes that a daemon started and that are there, with the words of their command lines.
pub fn children(daemon: i32) -> Vec<(i32, String)> {
    let all = std::fs::read_dir("/proc").unwrap();
    let numbers = all.filter_map(|e| e.unwrap().file_name().to_str()?.parse::<i32>().ok());
    let ours = |child: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        parent == Some(&daemon.to_string())
    };
    let words = |child: i32| {
        let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        (child, String::from_utf8_lossy(&line).replace('\0', " "))
    };
    numbers.filter(ours).map(words).collect()
}
