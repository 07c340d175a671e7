//! The programs of `zpool status -c` and `zpool iostat -c`, which the command's own process runs for the one that prints
//! (`vdev_run_cmd`).
//!
//! The daemon owns the pools and prints; the programs are the user's, and run with the user's rights, in the user's mount namespace
//! and directory. So the daemon asks the process of the command ([`Process::ask`](cenote_daemon::context::Process)), some devices
//! at a time, and that [`answer`]s what the programs said. Where no daemon is in between the command answers itself.
//!
//! Programs are found by name in `~/.zpool.d` and `/etc/zfs/zpool.d`, or in the directories of
//! `ZPOOL_SCRIPTS_PATH`. Each is run for each device, with nothing in its environment but `PATH`,
//! `VDEV_PATH`, `VDEV_UPATH` and `VDEV_ENC_SYSFS_PATH`. Of its output lines `name=value` are columns, and the
//! first other line is put behind them and ends it. One that fails has said nothing. For root they run only if
//! `ZPOOL_SCRIPTS_AS_ROOT` says so.
//!
//! Invariants: only programs run that the user's own command line names; a command that is interrupted kills those that run.

use crate::context::Context;
use cenote_command::Caller;
use cenote_command::outcome::Stop;
use cenote_command::signals::put_off;
use cenote_vdev::look;
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Where the system's programs are.
const SYSTEM: &str = "/etc/zfs/zpool.d";
/// How many devices programs run for at the same time, and are asked about at once.
pub const AT_ONCE: usize = 16;
/// Bytes of a program's output that are looked at.
const MOST_OUTPUT: u64 = 64 << 10;
/// Bytes of what programs said of a device that count: an answer about [`AT_ONCE`] devices is no longer than a message may be.
pub const MOST_SAID: usize = 8 << 10;
/// How often a command that waits for programs looks whether it was interrupted.
const MOMENT: Duration = Duration::from_millis(20);

/// What the command's process is asked.
#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    /// What `-c` names: programs, with commas between.
    pub programs: String,
    /// The devices; without any it is asked only whether programs may run.
    pub leaves: Vec<Leaf>,
}

/// A device that programs are run for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaf {
    /// Its path.
    pub path: String,
    /// Where the system shows its enclosure, or nothing.
    pub enclosure: String,
}

/// What the programs said of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// Names and values of columns.
    pub columns: Vec<(String, String)>,
    /// The line behind them.
    pub rest: Option<String>,
}

/// What they said of each device that was asked about; the error says why they may not run.
pub type Answer = Result<Vec<Said>, String>;

/// Where programs are looked for.
fn search_path(caller: &Caller) -> Vec<PathBuf> {
    if let Some(path) = caller.var("ZPOOL_SCRIPTS_PATH") {
        return std::env::split_paths(path).collect();
    }
    let own = caller.var("HOME").map(|home| Path::new(home).join(".zpool.d"));
    own.into_iter().chain([PathBuf::from(SYSTEM)]).collect()
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Whether a command line asks for the list of programs: it ends with `-c`, which lacks its value.
pub fn are_listed(command: &str, args: &[OsString]) -> bool {
    let last = args.last().and_then(|last| last.to_str()).unwrap_or_default();
    let cluster = last.strip_prefix('-').filter(|rest| !rest.starts_with('-')).unwrap_or_default();
    ["status", "iostat"].contains(&command) && cluster.ends_with('c') && !cluster.contains('T')
}

/// Lists the programs that there are.
pub fn list(command: &str, ctx: &mut Context) -> Result<i32, Stop> {
    let mut names = BTreeSet::new();
    let dirs = search_path(&ctx.caller);
    for entry in dirs.iter().filter_map(|dir| dir.read_dir().ok()).flatten().flatten() {
        if is_program(&entry.path()) {
            names.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    let mut text = format!("Available 'zpool {command} -c' commands:\n");
    names.iter().for_each(|name| text += &format!("  {name}\n"));
    Ok(ctx.out.write_all(text.as_bytes()).map(|()| 0)?)
}

/// Answers a [`Question`] of the process that runs the command line `args` of `tool` for this one.
pub fn answer(question: &[u8], (tool, args): (&str, &[OsString])) -> Vec<u8> {
    let answer = match serde_json::from_slice::<Question>(question) {
        Ok(question) if is_asked_for(&question.programs, tool, args) => answer_here(&question),
        Ok(_) => Err("the command line asks for no such programs".into()),
        Err(e) => Err(format!("the daemon asks for what is not known: {e}")),
    };
    // Texts and lists of texts can always be written.
    serde_json::to_vec(&answer).unwrap_or_default()
}

/// Whether the command line has these programs run.
fn is_asked_for(programs: &str, tool: &str, args: &[OsString]) -> bool {
    let mut words = args.iter().map(|arg| arg.to_string_lossy());
    tool == "zpool"
        && words.next().is_some_and(|command| ["status", "iostat"].contains(&command.as_ref()))
        && words.any(|word| word.ends_with(programs))
}

/// Runs programs for devices, if this process may.
pub fn answer_here(question: &Question) -> Answer {
    let caller = Caller::of_process();
    if caller.var("ZPOOL_SCRIPTS_ENABLED").is_some() && !caller.is_set("ZPOOL_SCRIPTS_ENABLED") {
        return Err("Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED.".into());
    }
    let is_root = caller.user == 0 || rustix::process::geteuid().is_root();
    if is_root && !caller.is_set("ZPOOL_SCRIPTS_AS_ROOT") {
        let why = "Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.";
        return Err(why.into());
    }
    if question.leaves.is_empty() {
        return Ok(Vec::new());
    }
    let dirs = search_path(&caller);
    // Names with a slash, and those that there are no programs of, are passed over.
    let names = question.programs.split(',');
    let named = names.filter(|name| !name.is_empty() && !name.contains('/'));
    let find = |name: &str| dirs.iter().map(|dir| dir.join(name)).find(|p| is_program(p));
    let programs: Vec<PathBuf> = named.filter_map(find).collect();
    let run = |interrupted: &(dyn Fn() -> bool + Sync)| {
        let some = question.leaves.chunks(AT_ONCE);
        some.flat_map(|some| of_leaves(some, &programs, interrupted)).collect()
    };
    put_off(run).map_err(|e| format!("Can't run -c: {e}"))
}

/// Runs the programs for some devices at the same time.
fn of_leaves(
    leaves: &[Leaf],
    programs: &[PathBuf],
    interrupted: &(dyn Fn() -> bool + Sync),
) -> Vec<Said> {
    let running: Vec<Mutex<Option<Child>>> = leaves.iter().map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = leaves
            .iter()
            .zip(&running)
            .map(|(leaf, slot)| scope.spawn(move || of_leaf(leaf, programs, slot, interrupted)))
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            if interrupted() {
                running.iter().for_each(|child| {
                    held(child).as_ref().map(end);
                });
            }
            std::thread::sleep(MOMENT);
        }
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

fn of_leaf(
    leaf: &Leaf,
    programs: &[PathBuf],
    slot: &Mutex<Option<Child>>,
    interrupted: &(dyn Fn() -> bool + Sync),
) -> Said {
    let (mut said, mut left) = (Said::default(), MOST_SAID);
    for program in programs {
        if interrupted() {
            break;
        }
        for line in output(program, leaf, slot).lines() {
            let Some(rest) = left.checked_sub(line.len()) else { break };
            left = rest;
            match line.split_once('=') {
                Some((name, value)) => said.columns.push((name.into(), value.into())),
                None => {
                    said.rest = Some(line.into());
                    break;
                }
            }
        }
    }
    said
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

/// What a program prints about a device; nothing if it cannot be run, or fails.
fn output(program: &Path, leaf: &Leaf, slot: &Mutex<Option<Child>>) -> String {
    let resolved = look::resolved(Path::new(&leaf.path));
    let resolved = resolved.unwrap_or_else(|| PathBuf::from(&leaf.path));
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/bin:/sbin:/usr/bin:/usr/sbin")
        .env("VDEV_PATH", &leaf.path)
        .env("VDEV_UPATH", resolved)
        .env("VDEV_ENC_SYSFS_PATH", &leaf.enclosure)
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
    let well = loop {
        let mut child = held(slot);
        match child.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => {}
            ended => {
                *child = None;
                break matches!(ended, Some(Ok(Some(status))) if status.success());
            }
        }
        drop(child);
        std::thread::sleep(MOMENT);
    };
    match well {
        true => String::from_utf8_lossy(&bytes).into_owned(),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_of_the_command_line_run() {
        let asked = |tool: &str, line: &str| {
            let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            is_asked_for("a,b", tool, &args)
        };
        for line in ["status -c a,b", "iostat -vca,b tank 1", "status -Pca,b"] {
            assert!(asked("zpool", line), "{line}");
        }
        for (tool, line) in [
            ("zpool", "status -c a"),
            ("zpool", "list -c a,b"),
            ("zpool", "status"),
            ("zfs", "status -c a,b"),
        ] {
            assert!(!asked(tool, line), "{tool} {line}");
        }
    }

    #[test]
    fn an_answer_is_no_longer_than_a_message() {
        // Each byte may take six.
        let said = |name: &str| Said {
            columns: vec![(name.repeat(MOST_SAID), String::new())],
            rest: Some(String::new()),
        };
        let answer: Answer = Ok(vec![said("\u{1}"); AT_ONCE]);
        let bytes = serde_json::to_vec(&answer).unwrap();
        assert!(bytes.len() <= cenote_daemon::protocol::MAX_DATA, "{}", bytes.len());
    }
}
