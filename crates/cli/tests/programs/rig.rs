//! A pool on a file, mounted, and programs that work there.

use crate::common::{Session, can_mount, mounts_below, skip};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Size of a pool's device, which is sparse.
const DEVICE: u64 = 2 << 30;
/// Seconds that a program may take.
const COMMAND_TIMEOUT: &str = "300";
/// Whether there is time for a long test.
pub fn long() -> bool {
    std::env::var("CENOTE_PROGRAMS").is_ok_and(|v| v == "long")
}

/// One number for CI, another one for a long test.
pub fn times<T>(short: T, much: T) -> T {
    if long() { much } else { short }
}

/// Whether all programs are there, and file systems can be mounted. In CI they must.
pub fn can_run(programs: &[&str]) -> bool {
    let missing: Vec<_> = programs.iter().filter(|p| find(p).is_none()).collect();
    if !missing.is_empty() {
        skip(&format!("missing programs: {missing:?}"));
        return false;
    }
    can_mount()
}

/// Where a program is.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    all.map(|dir| dir.join(program)).find(|p| p.is_file())
}

/// Runs a program that must succeed; returns what it wrote to standard output.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out
}

#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A pool `tank` of a daemon of its own.
pub struct Rig {
    session: Session,
    /// Whose daemon it is, if not root's.
    user: Option<u32>,
}

impl Rig {
    /// Makes the pool; `options` are for `zpool create`.
    pub fn new(options: &str) -> Rig {
        Rig::of(None, options, "disk0")
    }

    /// Makes the pool as an ordinary user, if one is named. In `layout` each word with a number in it
    /// is a device, unless it starts with `raidz`.
    pub fn of(user: Option<u32>, options: &str, layout: &str) -> Rig {
        let session = Session::new();
        fs::set_permissions(session.dir.path(), Permissions::from_mode(0o755)).unwrap();
        let rig = Rig { session, user };
        for dir in ["", "disks", "root"] {
            let dir = rig.outside(dir);
            fs::create_dir_all(&dir).unwrap();
            chown(&dir, user, user).unwrap();
        }
        let device = |word: &str| {
            if word.starts_with("raidz") || !word.ends_with(|c: char| c.is_ascii_digit()) {
                return word.to_string();
            }
            let disk = rig.outside("disks").join(word);
            fs::File::create(&disk).unwrap().set_len(DEVICE).unwrap();
            chown(&disk, user, user).unwrap();
            disk.to_str().unwrap().into()
        };
        let layout: Vec<_> = layout.split(' ').map(device).collect();
        rig.cenote(&format!("zpool create -R {} {options} tank {}", rig.root(), layout.join(" ")));
        assert!(!mounts_below(&rig.outside("root")).is_empty());
        rig
    }

    /// A place that is not in the pool.
    pub fn outside(&self, name: &str) -> PathBuf {
        self.session.path("own").join(name)
    }

    fn root(&self) -> String {
        self.outside("root").to_str().unwrap().into()
    }

    /// A place in the pool's root file system.
    pub fn path(&self, name: &str) -> PathBuf {
        self.outside("root/tank").join(name)
    }

    /// Makes a directory in the pool.
    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = self.path(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Runs a command of cenote's.
    #[track_caller]
    pub fn cenote(&self, line: &str) -> String {
        let mut command = self.session.command();
        command.args(line.split_whitespace()).env("CENOTE_SOCKET", self.outside("socket"));
        command.current_dir("/");
        self.become_user(&mut command);
        let output = command.output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && err.is_empty(), "{line}: {err}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn become_user(&self, command: &mut Command) {
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
    }

    /// A program that is to work in the pool; it is ended if it takes forever.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", COMMAND_TIMEOUT]).arg(self.reachable(find(name).unwrap()));
        self.become_user(&mut command);
        self.at_home(&mut command);
        command
    }

    /// A program at a path that the user who runs it can reach, unlike root's home directory.
    fn reachable(&self, program: PathBuf) -> PathBuf {
        let home = std::env::var_os("HOME").unwrap_or_default();
        if self.user.is_none() || !program.starts_with(&home) {
            return program;
        }
        let copy = self.outside(program.file_name().unwrap().to_str().unwrap());
        if !copy.exists() {
            fs::copy(&program, &copy).unwrap();
        }
        copy
    }

    /// Gives a program surroundings that do not depend on the user who runs the test.
    pub fn at_home(&self, command: &mut Command) {
        command.current_dir(self.outside("")).env("HOME", self.outside("")).env("LC_ALL", "C");
        for (i, (key, value)) in
            [("safe.directory", "*"), ("gc.auto", "0"), ("user.name", "t"), ("user.email", "t@t")]
                .iter()
                .enumerate()
        {
            command.env(format!("GIT_CONFIG_KEY_{i}"), key);
            command.env(format!("GIT_CONFIG_VALUE_{i}"), value);
            command.env("GIT_CONFIG_COUNT", (i + 1).to_string());
        }
    }

    /// Runs a line of shell in the pool.
    #[track_caller]
    pub fn shell(&self, line: &str) -> String {
        let line = format!("set -e; cd {}; {line}", self.path("").display());
        run(self.program("sh").args(["-c", &line]))
    }

    /// The same pool, with nothing left in any cache.
    #[track_caller]
    pub fn reimport(&self) {
        self.cenote("zpool export tank");
        self.import();
    }

    #[track_caller]
    pub fn import(&self) {
        let disks = self.outside("disks");
        self.cenote(&format!("zpool import -R {} -d {} tank", self.root(), disks.display()));
        assert!(!mounts_below(&self.outside("root")).is_empty());
    }

    /// Kills the daemon, and waits until its mounts are gone.
    pub fn kill(&self) {
        let status = self.cenote("daemon status");
        let number = status.strip_prefix("daemon: process ").unwrap().split(',').next().unwrap();
        kill_process(Pid::from_raw(number.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
        wait_until("the mounts vanish", || mounts_below(&self.outside("root")).is_empty());
    }

    /// Exports the pool; it must be without fault.
    #[track_caller]
    pub fn finish(&self) {
        let status = self.cenote("zpool status -v tank");
        assert!(status.contains("errors: No known data errors"), "{status}");
        self.cenote("zpool export tank");
        self.judge();
    }

    /// OpenZFS finds nothing wrong with the pool as it is on disk.
    #[track_caller]
    pub fn judge(&self) {
        if let Err(text) = cenote_testpools::try_judge(&self.outside("disks"), "tank") {
            panic!("{}", self.keep(&text));
        }
    }

    /// Keeps a pool that is not as it should be, where `CENOTE_PROGRAMS_KEEP` says.
    fn keep(&self, text: &str) -> String {
        if let Some(to) = std::env::var_os("CENOTE_PROGRAMS_KEEP") {
            let to = Path::new(&to).join(format!("programs-{}", std::process::id()));
            let mut cp = Command::new("cp");
            run(cp.args(["-r", "--sparse=always"]).arg(self.outside("disks")).arg(&to));
            return format!("{text}\n(kept in {})", to.display());
        }
        text.into()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let mut stop = self.session.command();
        stop.args(["daemon", "stop"]).env("CENOTE_SOCKET", self.outside("socket"));
        let _ = stop.output();
    }
}
