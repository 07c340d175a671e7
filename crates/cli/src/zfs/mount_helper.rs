//! `mount.zfs`: what mount(8) runs to mount file systems with `mountpoint=legacy`.
//!
//! mount(8) looks for it in `/sbin`, and calls it with the dataset, the directory and its options. The
//! exit codes are mount(8)'s: 1 for what is wrong with the call, 2 for what the system refuses, 128 for
//! what is mounted already.
//!
//! A file system can be mounted in several places, and in the mount namespace that mount(8) runs in;
//! so can snapshots.
//!
//! File systems that have a mountpoint are left to `zfs mount`; the option `zfsutil` is for programs
//! that know better, such as an initial ramdisk that mounts the root file system elsewhere.

use crate::context::Context;
use crate::mounts::moving::remount;
use crate::mounts::{How, NotMounted, is_option, mount_one};
use crate::options::{Parsed, Spec, commas, parse};
use crate::pools::Imported;
use crate::zfs::select::{Kinds, Node, mounted_of, open};
use crate::zpool::select::find_vdev;
use cenote_command::outcome::{Stop, plain};
use cenote_dsl::DatasetKind;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SPEC: Spec = Spec { short: "sfnvo:h", refused: "", refused_long: &[] };
/// Its usage line.
pub const USAGE: &str = "Usage: mount.zfs [-sfnvh] [-o options] <dataset> <mountpoint>";

/// Exit code: wrong arguments.
pub const WRONG: i32 = 1;
/// Exit code: the system refuses.
pub const SYSTEM: i32 = 2;
/// Exit code: it is mounted already.
pub const MOUNTED: i32 = 128;

/// Exit code and message, which is empty where everything was said already.
type Failure = (i32, String);

/// What is asked for.
struct Request {
    dataset: String,
    dir: PathBuf,
    /// Those that matter.
    options: Vec<String>,
    /// `-f`: everything but the mount.
    fake: bool,
    /// By option, not asked of the file system.
    zfsutil: bool,
    remount: bool,
}

/// Runs `mount.zfs`; returns the exit code.
pub fn run(args: &[OsString], ctx: &mut Context) -> i32 {
    let done = Request::parse(args, ctx).and_then(|request| request.run(ctx));
    match done {
        Ok(()) => 0,
        Err((code, message)) => {
            if !message.is_empty() {
                ctx.complain(message);
            }
            code
        }
    }
}

impl Request {
    fn parse(args: &[OsString], ctx: &Context) -> Result<Request, Failure> {
        let wrong = |why: &str| (WRONG, format!("{why}\n{USAGE}"));
        let parsed = parse(args, SPEC).map_err(|stop| match stop {
            Stop::Usage(why) => wrong(&why),
            _ => (WRONG, USAGE.into()),
        })?;
        let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
        if has('h') {
            return Err((WRONG, USAGE.into()));
        }
        let (dataset, dir) = match parsed.names().as_slice() {
            [] => return Err(wrong("missing dataset argument")),
            [_] => return Err(wrong("missing mountpoint argument")),
            [source, dir] => {
                let name = || name_of(source, &ctx.caller.cwd);
                (pool_with(source, ctx).unwrap_or_else(name), ctx.path(dir))
            }
            _ => return Err(wrong("too many arguments")),
        };
        let dir = ctx.agent().canonicalize(&dir).map_err(|e| {
            let (why, dir) = (plain(&e), dir.display());
            let what = format!("filesystem '{dataset}' cannot be mounted at '{dir}'");
            (SYSTEM, format!("{what} due to canonicalization error: {why}"))
        })?;
        let mut request = Request {
            dataset,
            dir,
            options: Vec::new(),
            fake: has('f'),
            zfsutil: false,
            remount: false,
        };
        request.take_options(&parsed, has('s'))?;
        Ok(request)
    }

    fn take_options(&mut self, parsed: &Parsed, sloppy: bool) -> Result<(), Failure> {
        let given = parsed.options.iter().filter(|o| o.letter == 'o');
        for option in given.flat_map(|o| commas(&o.value)) {
            match option.as_str() {
                "zfsutil" => self.zfsutil = true,
                "remount" => self.remount = true,
                // As mount(8) has them (`MS_USERS`, `MS_OWNER`).
                "user" | "users" => {
                    self.options.extend(["noexec", "nosuid", "nodev"].map(String::from));
                }
                "owner" | "group" => {
                    self.options.extend(["nosuid", "nodev"].map(String::from));
                }
                known if is_option(known) => self.options.push(option),
                unknown if sloppy || is_for_others(unknown) => {}
                unknown => {
                    let dataset = &self.dataset;
                    let why = format!(
                        "filesystem '{dataset}' cannot be mounted due to invalid option \
                         '{unknown}'.\nUse the '-s' option to ignore the bad mount option."
                    );
                    return Err((WRONG, why));
                }
            }
        }
        if !self.remount {
            // mount(8) says `rw` to everything that it is not asked to mount read-only. Taken as asked
            // for, it would make `readonly=on` worth nothing.
            self.options.retain(|o| o != "rw");
        }
        Ok(())
    }

    fn run(self, ctx: &mut Context) -> Result<(), Failure> {
        let pools = ctx.pools.clone();
        let _change = pools.change(&self.dataset);
        let dataset = &self.dataset;
        let kinds = Kinds::FILESYSTEM.with(Kinds::SNAPSHOT);
        let node = open(ctx, dataset, kinds).map_err(|_| {
            let why = "unable to open the dataset";
            (WRONG, format!("filesystem '{dataset}' cannot be mounted, {why}"))
        })?;
        self.check_mountpoint(&node)?;
        if self.fake {
            return Ok(());
        }
        if self.remount {
            let stays =
                node.dataset.kind == DatasetKind::Snapshot || node.imported.writable().is_err();
            if stays && self.options.iter().any(|o| o == "rw") {
                let why = "Read-only file system";
                return Err((WRONG, format!("filesystem '{dataset}' can not be mounted: {why}")));
            }
            return match remount(&node.imported, &node.dataset, &self.options, ctx) {
                Ok(true) => Ok(()),
                Ok(false) => Err((SYSTEM, String::new())),
                Err(why) => Err((WRONG, format!("filesystem '{dataset}' is {why}"))),
            };
        }
        let own = std::slice::from_ref(&node.imported);
        let here = mounted_of(own, ctx).map_err(|e| (SYSTEM, e))?;
        if here.iter().any(|m| m.dataset == *dataset && m.mountpoint == self.dir) {
            return Err((MOUNTED, format!("filesystem '{dataset}' is already mounted")));
        }
        let how = How { at: Some(self.dir), options: self.options, ..How::default() };
        match mount_one(&node.imported, &node.dataset, true, &how, ctx) {
            Ok(()) => Ok(()),
            Err(NotMounted::NotMeant(why) | NotMounted::Failed(why)) => Err((SYSTEM, why)),
        }
    }

    /// Whether it is mount(8) that mounts the file system.
    fn check_mountpoint(&self, node: &Node) -> Result<(), Failure> {
        let (dataset, dir) = (&self.dataset, self.dir.display());
        if node.dataset.kind == DatasetKind::Snapshot {
            return Ok(());
        }
        let mountpoint = node.imported.pool().dsl().get(&node.dataset, "mountpoint");
        let mountpoint = mountpoint.map_err(|e| (SYSTEM, e.to_string()))?;
        let legacy = mountpoint.is_some_and(|v| v.exact == "legacy");
        let (with, instead) = match (legacy, self.zfsutil) {
            (true, true) => (
                "zfs mount",
                format!("'zfs set mountpoint={dir}' or 'mount -t zfs {dataset} {dir}'"),
            ),
            (false, false) if !self.remount && !self.fake => {
                ("mount", format!("'zfs set mountpoint=legacy' or 'zfs mount {dataset}'"))
            }
            _ => return Ok(()),
        };
        let why = format!(
            "filesystem '{dataset}' cannot be mounted using '{with}'.\n\
             Use {instead}.\nSee zfs(8) for more information."
        );
        Err((WRONG, why))
    }
}

/// The dataset's name. Where there is a file of that name mount(8) makes a path of it.
fn name_of(source: &str, cwd: &Path) -> String {
    let name = Path::new(source).strip_prefix(cwd).ok().and_then(Path::to_str);
    name.unwrap_or(source).to_string()
}

/// The imported pool that has the device at an absolute path, whose file system is meant then.
fn pool_with(path: &str, ctx: &Context) -> Option<String> {
    let has = |pool: &&Arc<Imported>| path.starts_with('/') && find_vdev(pool, path).is_some();
    ctx.pools.all().iter().find(has).map(|pool| pool.name().to_string())
}

/// Options that tell mount(8) or others when to mount a file system, or who may.
fn is_for_others(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or(option);
    let known = [
        "auto", "noauto", "user", "nouser", "users", "nousers", "group", "nogroup", "owner",
        "noowner", "_netdev", "nofail", "comment", "nosub",
    ];
    name.is_empty() || known.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}
