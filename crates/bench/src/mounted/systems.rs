//! The file systems that are mounted: how each is made, mounted anew, and told to compress.
//!
//! A [`System`] hides the differences. Btrfs is on a loop device that goes with its mount, and lives in the kernel:
//! its processor time is that of the program alone. cenote and zfs-fuse have a daemon each, which is started here
//! and killed when it is dropped. `remount` unmounts or exports, has the host forget the pages of the device file,
//! and mounts again, so that a read after it is cold.
//!
//! Nothing may be measured in the directory below a mount that failed, so every mount is looked for in the kernel's
//! table.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::measure::forget;

/// Name of the pools.
const POOL: &str = "benchmount";
/// MiB of zfs-fuse's cache.
const CACHE: &str = "512";
/// Where zfs-fuse listens.
const SOCKET: &str = "/run/zfs/zfs_socket";
/// How long a daemon may take to start, and a mount to be let go.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(10);

/// A mounted file system.
pub trait System {
    /// Where it is mounted.
    fn place(&self) -> &Path;

    /// Unmounts and mounts, so that nothing is in memory any more.
    fn remount(&mut self) -> anyhow::Result<()>;

    /// Writes what follows with the quick compression that it has; false without one.
    fn compress(&mut self, on: bool) -> anyhow::Result<bool>;

    /// Prepares for files that are changed in pieces of `bytes`.
    fn record_size(&mut self, bytes: u64) -> anyhow::Result<()>;

    /// Waits until everything is on disk.
    fn settle(&self) -> anyhow::Result<()>;

    /// The process that serves it.
    fn server(&self) -> Option<u32>;

    /// Unmounts.
    fn finish(self: Box<Self>) -> anyhow::Result<()>;
}

/// Runs a program that has to succeed.
pub fn succeed(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = command.output().with_context(|| format!("running {program}"))?;
    if !out.status.success() {
        let (err, out) =
            (String::from_utf8_lossy(&out.stderr), String::from_utf8_lossy(&out.stdout));
        bail!("{program} failed: {}{}", err.trim(), out.trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Tries again what is refused for a moment.
fn patiently(mut f: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        match f() {
            Err(e) if start.elapsed() > DAEMON_TIMEOUT => return Err(e),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
            Ok(()) => return Ok(()),
        }
    }
}

/// What was mounted here must not be the directory below it.
fn check_mounted(place: &Path) -> anyhow::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let place = place.to_string_lossy();
    let mounted = mounts.lines().any(|l| l.split(' ').nth(1) == Some(&place));
    ensure!(mounted, "nothing is mounted at {place}");
    Ok(())
}

/// btrfs on a loop device, mounted with its defaults.
pub struct Btrfs {
    image: PathBuf,
    place: PathBuf,
    compress: bool,
}

impl Btrfs {
    pub fn create(image: &Path, place: &Path) -> anyhow::Result<Btrfs> {
        succeed(Command::new("mkfs.btrfs").args(["-q", "-f"]).arg(image))?;
        let btrfs = Btrfs { image: image.into(), place: place.into(), compress: false };
        btrfs.mount()?;
        Ok(btrfs)
    }

    /// `mount` makes a loop device that goes with the mount.
    fn mount(&self) -> anyhow::Result<()> {
        let options = if self.compress { "loop,compress=lzo" } else { "loop" };
        let mut command = Command::new("mount");
        command.args(["-t", "btrfs", "-o", options]).arg(&self.image).arg(&self.place);
        succeed(&mut command)?;
        check_mounted(&self.place)
    }

    fn unmount(&self) -> anyhow::Result<()> {
        patiently(|| succeed(Command::new("umount").arg(&self.place)).map(drop))
    }
}

impl System for Btrfs {
    fn place(&self) -> &Path {
        &self.place
    }

    fn remount(&mut self) -> anyhow::Result<()> {
        self.unmount()?;
        forget(&self.image)?;
        self.mount()
    }

    fn compress(&mut self, on: bool) -> anyhow::Result<bool> {
        self.compress = on;
        self.remount()?;
        Ok(true)
    }

    fn record_size(&mut self, _bytes: u64) -> anyhow::Result<()> {
        Ok(())
    }

    fn settle(&self) -> anyhow::Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.place)?)?)
    }

    fn server(&self) -> Option<u32> {
        None
    }

    fn finish(self: Box<Self>) -> anyhow::Result<()> {
        self.unmount()
    }
}

/// `fsync` of the root directory waits for everything there.
fn sync_directory(place: &Path) -> anyhow::Result<()> {
    Ok(File::open(place)?.sync_all()?)
}

/// A daemon, which is killed when this is dropped.
struct Daemon(Child);

impl Daemon {
    fn start(command: &mut Command) -> anyhow::Result<Daemon> {
        let program = command.get_program().to_string_lossy().into_owned();
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Daemon(quiet.spawn().with_context(|| format!("running {program}"))?))
    }

    /// Waits until `ready` is.
    fn wait(&mut self, mut ready: impl FnMut() -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        while !ready() {
            if let Some(status) = self.0.try_wait()? {
                bail!("the daemon ended: {status}");
            }
            ensure!(start.elapsed() < DAEMON_TIMEOUT, "the daemon does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// cenote: the commands and the daemon of one program.
pub struct Cenote {
    program: PathBuf,
    image: PathBuf,
    place: PathBuf,
    daemon: Daemon,
}

impl Cenote {
    pub fn create(program: &Path, image: &Path, place: &Path) -> anyhow::Result<Cenote> {
        let mut daemon = Self::command(program);
        let daemon = Daemon::start(daemon.args(["daemon", "--foreground"]))?;
        let (program, image, place) = (program.into(), image.into(), place.into());
        let mut this = Cenote { program, image, place, daemon };
        let status = || succeed(Self::command(&this.program).args(["daemon", "status"])).is_ok();
        this.daemon.wait(status)?;
        let mut command = Self::command(&this.program);
        command.args(["zpool", "create", "-f", "-O", "compression=off", "-m"]);
        succeed(command.arg(&this.place).arg(POOL).arg(&this.image))?;
        check_mounted(&this.place)?;
        Ok(this)
    }

    fn command(program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("CENOTE_SOCKET", "/run/cenote-bench.socket");
        command
    }

    fn run(&self, args: &[&str]) -> anyhow::Result<()> {
        succeed(Self::command(&self.program).args(args)).map(drop)
    }
}

impl System for Cenote {
    fn place(&self) -> &Path {
        &self.place
    }

    fn remount(&mut self) -> anyhow::Result<()> {
        self.run(&["zpool", "export", POOL])?;
        forget(&self.image)?;
        let dir = self.image.parent().unwrap_or(Path::new("/"));
        succeed(Self::command(&self.program).args(["zpool", "import", "-d"]).arg(dir).arg(POOL))?;
        check_mounted(&self.place)
    }

    fn compress(&mut self, on: bool) -> anyhow::Result<bool> {
        let value = if on { "compression=lz4" } else { "compression=off" };
        self.run(&["zfs", "set", value, POOL])?;
        Ok(true)
    }

    fn record_size(&mut self, bytes: u64) -> anyhow::Result<()> {
        self.run(&["zfs", "set", &format!("recordsize={bytes}"), POOL])
    }

    fn settle(&self) -> anyhow::Result<()> {
        sync_directory(&self.place)
    }

    fn server(&self) -> Option<u32> {
        Some(self.daemon.0.id())
    }

    fn finish(self: Box<Self>) -> anyhow::Result<()> {
        self.run(&["zpool", "export", POOL])?;
        self.run(&["daemon", "stop"])
    }
}

/// zfs-fuse, run from where its package was unpacked, with what its package sets.
pub struct ZfsFuse {
    root: PathBuf,
    image: PathBuf,
    place: PathBuf,
    daemon: Daemon,
}

impl ZfsFuse {
    pub fn create(root: &Path, image: &Path, place: &Path) -> anyhow::Result<ZfsFuse> {
        ensure!(root.join("sbin/zfs-fuse").exists(), "not unpacked in {}", root.display());
        for dir in ["/run/zfs", "/run/lock"] {
            fs::create_dir_all(dir)?;
        }
        // What an earlier daemon left would seem to be this one's.
        let _ = fs::remove_file(SOCKET);
        let mut command = Self::command(root, "zfs-fuse")?;
        command.args(["--no-daemon", "--no-kstat-mount", "-m", CACHE, "-a", "3600", "-e", "3600"]);
        let daemon = Daemon::start(command.args(["-o", "default_permissions"]))?;
        let mut this =
            ZfsFuse { root: root.into(), image: image.into(), place: place.into(), daemon };
        this.daemon.wait(|| Path::new(SOCKET).exists())?;
        let mut command = Self::command(root, "zpool")?;
        command.args(["create", "-f", "-m"]).arg(place).arg(POOL).arg(image);
        succeed(&mut command)?;
        check_mounted(place)?;
        Ok(this)
    }

    /// A program of the package, with libraries that were unpacked beside it.
    fn command(root: &Path, name: &str) -> anyhow::Result<Command> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(root.join("lib")).into_iter().flatten() {
            paths.push(entry?.path());
        }
        let mut command = Command::new(root.join("sbin").join(name));
        command.env("LD_LIBRARY_PATH", std::env::join_paths(paths)?);
        Ok(command)
    }

    fn run(&self, name: &str, args: &[&str]) -> anyhow::Result<()> {
        succeed(Self::command(&self.root, name)?.args(args)).map(drop)
    }
}

impl System for ZfsFuse {
    fn place(&self) -> &Path {
        &self.place
    }

    fn remount(&mut self) -> anyhow::Result<()> {
        patiently(|| self.run("zpool", &["export", POOL]))?;
        forget(&self.image)?;
        let dir = self.image.parent().unwrap_or(Path::new("/")).to_string_lossy();
        self.run("zpool", &["import", "-d", &dir, POOL])?;
        check_mounted(&self.place)
    }

    /// Its pools know lzjb only.
    fn compress(&mut self, on: bool) -> anyhow::Result<bool> {
        let value = if on { "compression=lzjb" } else { "compression=off" };
        self.run("zfs", &["set", value, POOL])?;
        Ok(true)
    }

    fn record_size(&mut self, bytes: u64) -> anyhow::Result<()> {
        self.run("zfs", &["set", &format!("recordsize={bytes}"), POOL])
    }

    fn settle(&self) -> anyhow::Result<()> {
        sync_directory(&self.place)
    }

    fn server(&self) -> Option<u32> {
        Some(self.daemon.0.id())
    }

    fn finish(self: Box<Self>) -> anyhow::Result<()> {
        patiently(|| self.run("zpool", &["export", POOL]))
    }
}
