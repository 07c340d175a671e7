//! `zpool status -c` and `zpool iostat -c`: columns that programs of the user make for each device
//! (`all_pools_for_each_vdev_run`).
//!
//! Programs are found by name in `~/.zpool.d` and `/etc/zfs/zpool.d`, or in the directories of
//! `ZPOOL_SCRIPTS_PATH`. Each is run for each leaf with a path, with nothing in its environment but `PATH`,
//! `VDEV_PATH`, `VDEV_UPATH` and `VDEV_ENC_SYSFS_PATH`. Of its output lines `name=value` are columns, and the
//! first other line is put behind them and ends it. For root they run only if `ZPOOL_SCRIPTS_AS_ROOT` says so.
//!
//! A command that is interrupted kills the programs that run.

use crate::context::Context;
use crate::options::Opt;
use crate::pools::Imported;
use cenote_command::Cancel;
use cenote_command::outcome::{Stop, fail, usage};
use cenote_vdev::{Vdev, look};
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Where the system's programs are.
const SYSTEM: &str = "/etc/zfs/zpool.d";
/// How many programs run at the same time.
const AT_ONCE: usize = 16;
/// Bytes of a program's output that are looked at.
const MOST_OUTPUT: u64 = 64 << 10;
/// How often a command that waits for programs looks whether it was interrupted.
const MOMENT: Duration = Duration::from_millis(20);

/// The programs that are asked for.
#[derive(Clone, Debug)]
pub struct Scripts {
    programs: Vec<PathBuf>,
    cancel: Cancel,
}

/// What the programs said of one leaf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Said {
    columns: Vec<(String, String)>,
    rest: Option<String>,
}

/// What they said of all leaves.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// Names with widths, in the order in which they came up.
    names: Vec<(String, usize)>,
    said: HashMap<u64, Said>,
}

/// Where programs are looked for.
fn search_path(ctx: &Context) -> Vec<PathBuf> {
    if let Some(path) = ctx.var("ZPOOL_SCRIPTS_PATH") {
        return std::env::split_paths(path).collect();
    }
    let own = ctx.var("HOME").map(|home| Path::new(home).join(".zpool.d"));
    own.into_iter().chain([PathBuf::from(SYSTEM)]).collect()
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// If the command line ends with `-c`, which lacks its value: the list of scripts.
pub fn list(args: &[OsString], command: &str, ctx: &mut Context) -> Option<Result<i32, Stop>> {
    let last = args.last()?.to_str()?;
    let cluster = last.strip_prefix('-').filter(|rest| !rest.starts_with('-'))?;
    if !cluster.ends_with('c') || cluster.contains('T') {
        return None;
    }
    let mut names = BTreeSet::new();
    for entry in search_path(ctx).iter().filter_map(|dir| dir.read_dir().ok()).flatten().flatten() {
        if is_program(&entry.path()) {
            names.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    let mut text = format!("Available 'zpool {command} -c' commands:\n");
    names.iter().for_each(|name| text += &format!("  {name}\n"));
    Some(ctx.out.write_all(text.as_bytes()).map(|()| 0).map_err(Stop::from))
}

impl Scripts {
    /// The programs of `-c`; `None`: the option was not given.
    ///
    /// # Errors
    /// It was given twice, or may not be used.
    pub fn of(options: &[Opt], ctx: &Context) -> Result<Option<Scripts>, Stop> {
        let mut given = options.iter().filter(|opt| opt.letter == 'c');
        let Some(opt) = given.next() else { return Ok(None) };
        if given.next().is_some() {
            return fail("Can't set -c flag twice");
        }
        let caller = &ctx.caller;
        if caller.var("ZPOOL_SCRIPTS_ENABLED").is_some() && !caller.is_set("ZPOOL_SCRIPTS_ENABLED")
        {
            return fail("Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED.");
        }
        if caller.user == 0 && !caller.is_set("ZPOOL_SCRIPTS_AS_ROOT") {
            return fail("Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.");
        }
        if caller.is_delegated() {
            return fail(
                "Can't run -c: programs are run for the user of the daemon and for root only.",
            );
        }
        if ctx.is_elsewhere() {
            return usage("-c is not supported from another mount namespace than the daemon's");
        }
        let dirs = search_path(ctx);
        let text = opt.text();
        // Names with a slash, and those that there are no programs of, are passed over.
        let named = text.split(',').filter(|name| !name.is_empty() && !name.contains('/'));
        let find = |name: &str| dirs.iter().map(|dir| dir.join(name)).find(|p| is_program(p));
        Ok(Some(Scripts { programs: named.filter_map(find).collect(), cancel: ctx.cancel.clone() }))
    }

    /// Runs the programs for the leaves of these pools.
    pub fn run(&self, pools: &[Arc<Imported>]) -> Columns {
        let mut leaves = Vec::new();
        for imported in pools {
            collect(imported.pool().store().vdevs().root(), &mut leaves);
        }
        let mut columns = Columns::default();
        for some in leaves.chunks(AT_ONCE) {
            for (leaf, said) in some.iter().zip(self.of_leaves(some)) {
                columns.add(leaf.guid(), said);
            }
        }
        columns
    }

    /// Runs the programs for some leaves at the same time.
    fn of_leaves(&self, leaves: &[Arc<Vdev>]) -> Vec<Said> {
        let running: Vec<Mutex<Option<Child>>> = leaves.iter().map(|_| Mutex::default()).collect();
        std::thread::scope(|scope| {
            let threads: Vec<_> = leaves
                .iter()
                .zip(&running)
                .map(|(leaf, slot)| scope.spawn(move || self.of_leaf(leaf, slot)))
                .collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                if self.cancel.is_cancelled() {
                    for child in &running {
                        held(child).as_ref().map(end);
                    }
                }
                std::thread::sleep(MOMENT);
            }
            threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
        })
    }

    fn of_leaf(&self, leaf: &Vdev, slot: &Mutex<Option<Child>>) -> Said {
        let mut said = Said::default();
        for program in &self.programs {
            if self.cancel.is_cancelled() {
                break;
            }
            for line in output(program, leaf, slot).lines() {
                let end = match line.split_once('=') {
                    Some((name, value)) => {
                        said.columns.push((name.into(), value.into()));
                        false
                    }
                    None => {
                        said.rest = Some(line.into());
                        true
                    }
                };
                if end {
                    break;
                }
            }
        }
        said
    }
}

/// Ends a program, with those that it started: they may hold its output open.
fn end(program: &Child) {
    let group = Pid::from_child(program);
    if let Err(e) = kill_process_group(group, Signal::KILL) {
        tracing::warn!("process group {}: {e}", group.as_raw_nonzero());
    }
}

fn held(slot: &Mutex<Option<Child>>) -> MutexGuard<'_, Option<Child>> {
    slot.lock()
}

/// What a program prints about a leaf; nothing if it cannot be run.
fn output(program: &Path, leaf: &Vdev, slot: &Mutex<Option<Child>>) -> String {
    let path = leaf.config().str("path").unwrap_or_default();
    let resolved = look::resolved(Path::new(path)).unwrap_or_else(|| path.into());
    let enclosure = leaf.config().str("vdev_enc_sysfs_path").unwrap_or_default();
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/bin:/sbin:/usr/bin:/usr/sbin")
        .env("VDEV_PATH", path)
        .env("VDEV_UPATH", resolved)
        .env("VDEV_ENC_SYSFS_PATH", enclosure)
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut bytes = Vec::new();
    let pipe = match command.spawn() {
        Ok(mut child) => {
            let pipe = child.stdout.take();
            *held(slot) = Some(child);
            pipe
        }
        Err(e) => {
            tracing::warn!("{}: {e}", program.display());
            None
        }
    };
    if let Some(pipe) = pipe
        && let Err(e) = pipe.take(MOST_OUTPUT).read_to_end(&mut bytes)
    {
        tracing::warn!("{}: {e}", program.display());
    }
    // The slot is not locked while the program runs: an interrupt has to get at it.
    loop {
        let mut child = held(slot);
        match child.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => {}
            Some(Ok(Some(_)) | Err(_)) | None => {
                *child = None;
                break;
            }
        }
        drop(child);
        std::thread::sleep(MOMENT);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn collect(vdev: &Arc<Vdev>, leaves: &mut Vec<Arc<Vdev>>) {
    if vdev.is_leaf() && vdev.config().str("path").is_some() {
        leaves.push(Arc::clone(vdev));
    }
    vdev.children().iter().for_each(|child| collect(child, leaves));
}

impl Columns {
    fn add(&mut self, guid: u64, said: Said) {
        for (name, value) in &said.columns {
            let width = value.chars().count().max(name.chars().count());
            match self.names.iter_mut().find(|(known, _)| known == name) {
                Some((_, widest)) => *widest = width.max(*widest),
                None => self.names.push((name.clone(), width)),
            }
        }
        self.said.insert(guid, said);
    }

    /// What stands behind the titles of the other columns.
    pub fn titles(&self) -> String {
        self.names.iter().map(|(name, width)| format!("  {name:>width$}")).collect()
    }

    /// What stands behind their dashes.
    pub fn dashes(&self) -> String {
        self.names.iter().map(|(_, width)| format!("  {:-<width$}", "")).collect()
    }

    /// What stands behind the values of a vdev (`zpool_print_cmd`).
    pub fn of(&self, guid: u64) -> String {
        let Some(said) = self.said.get(&guid) else { return String::new() };
        let value = |name: &str| {
            let found = said.columns.iter().find(|(known, _)| known == name);
            found.map_or("-", |(_, value)| value.as_str())
        };
        let mut text: String =
            self.names.iter().map(|(name, width)| format!("  {:>width$}", value(name))).collect();
        if let Some(rest) = &said.rest {
            text += &format!("  {rest}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let said = |columns: &[(&str, &str)], rest: Option<&str>| Said {
            columns: columns.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect(),
            rest: rest.map(String::from),
        };
        let mut columns = Columns::default();
        columns.add(1, said(&[("size", "4")], None));
        columns.add(2, said(&[("size", "123456"), ("id", "7")], Some("done")));
        assert_eq!(columns.titles(), "    size  id");
        assert_eq!(columns.dashes(), "  ------  --");
        assert_eq!(columns.of(1), "       4   -");
        assert_eq!(columns.of(2), "  123456   7  done");
        assert_eq!(columns.of(3), "");
    }
}
