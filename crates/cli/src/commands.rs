//! The command tables of `zpool` and `zfs` (`command_table`): names, usage messages, what runs where, and what is
//! refused by name.
//!
//! A [`Tool`] has rows in the order of its usage message. A row says how its command runs ([`Runs`]): in the user's
//! process, on imported pools, as a look that waits for no slow device, in a place that its arguments decide, or
//! not at all yet.
//!
//! [`Tool::place`] answers before anything runs, since it decides which process runs the command. [`Tool::run`]
//! then finds the command by its name or alias, answers help and versions itself, keeps the command line for the
//! pool's history, and records it if the command has changed a pool and succeeded.
//!
//! A command that OpenZFS has and this program does not yet is in the table as well, so that it is refused by its
//! name.

use crate::context::Context;
use crate::json;
use crate::options::{Spec, parse_with_long};
use cenote_command::OPENZFS_VERSION;
use cenote_command::outcome::{Outcome, fail, usage as wrong};
use cenote_vdev::patience::impatiently;
use std::ffi::OsString;

/// Where a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// In the user's process: it needs no imported pool.
    Here,
    /// In the daemon if there is one; else there are no imported pools, and the command says so
    /// from the user's process.
    DaemonIfRunning,
    /// In the daemon, which is started if need be: the command imports pools.
    Daemon,
}

/// The function behind a command.
pub type Function = fn(&[OsString], &mut Context) -> Outcome;

/// How a command runs.
#[derive(Clone, Copy)]
pub enum Runs {
    /// It needs no imported pool.
    Here(Function),
    /// It works on imported pools.
    Pools(Function),
    /// It shows something of imported pools, or may, and waits for no device that others can stand in for.
    Looks(Function),
    /// It depends on the arguments.
    Placed(fn(&[OsString]) -> Where, Function),
    /// OpenZFS has it and cenote does not yet.
    Missing,
}

/// A command of a tool.
#[derive(Clone, Copy)]
pub struct Command {
    /// Its name.
    pub name: &'static str,
    /// How it runs.
    pub runs: Runs,
    /// Its usage lines.
    pub usage: &'static str,
}

impl Command {
    /// Whether cenote has it.
    fn works(&self) -> bool {
        !matches!(self.runs, Runs::Missing)
    }
}

/// One row of a table: name, how it runs, usage lines.
pub const fn row(name: &'static str, runs: Runs, usage: &'static str) -> Option<Command> {
    Some(Command { name, runs, usage })
}

/// A tool: `zpool` or `zfs`.
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// Its commands in the order of the usage message; `None` is an empty line.
    pub commands: &'static [Option<Command>],
    /// Commands that OpenZFS has and lists nowhere.
    pub hidden: &'static [Command],
    /// The command a name stands for (`umount` for `unmount`).
    pub canonical: fn(&str) -> &str,
    /// End of the general usage message.
    pub tail: &'static str,
    /// End of a command's usage message.
    pub command_tail: fn(&Command) -> String,
}

impl Tool {
    /// The commands that cenote has.
    pub fn working(&self) -> impl Iterator<Item = &'static Command> {
        self.commands.iter().flatten().filter(|c| c.works())
    }

    /// The commands that OpenZFS has and cenote has not.
    pub fn missing(&self) -> impl Iterator<Item = &'static Command> {
        self.commands.iter().flatten().filter(|c| !c.works())
    }

    /// The command of this name, listed or hidden.
    pub(crate) fn find(&self, name: &str) -> Option<&'static Command> {
        let name = (self.canonical)(name);
        self.commands.iter().flatten().chain(self.hidden).find(|c| c.name == name)
    }

    /// Where a command line runs.
    pub fn place(&self, args: &[OsString]) -> Where {
        let Some((name, rest)) = args.split_first() else { return Where::Here };
        match self.find(&name.to_string_lossy()).map(|c| c.runs) {
            Some(Runs::Pools(_) | Runs::Looks(_)) => Where::DaemonIfRunning,
            Some(Runs::Placed(place, _)) => place(rest),
            _ => Where::Here,
        }
    }

    /// Runs a command line; returns the exit code.
    pub fn run(&self, args: &[OsString], ctx: &mut Context) -> i32 {
        let Some((name, rest)) = args.split_first() else {
            return ctx.conclude(wrong("missing command"), &self.usage());
        };
        let name = name.to_string_lossy();
        let shown = match name.as_ref() {
            "-?" | "--help" => Some(self.usage()),
            "-V" | "--version" => Some(version()),
            "help" => Some(self.help(rest)),
            _ => None,
        };
        if let Some(text) = shown {
            let written = write!(ctx.out, "{text}").map(|()| 0);
            return ctx.conclude(written.map_err(Into::into), "");
        }
        // `zpool comment=x tank` is `zpool set comment=x tank`.
        let rest = if name.contains('=') { args } else { rest };
        let Some(command) = self.find(&name) else {
            let why = format!("unrecognized command '{name}'");
            return ctx.conclude(wrong(why), &self.usage());
        };
        let usage = self.command_usage(command);
        if rest.first().is_some_and(|a| a == "--help" || a == "-?") {
            return ctx.conclude(wrong(""), &usage);
        }
        if let Some(arg) = rest.iter().find(|arg| arg.to_str().is_none()) {
            let why = format!("'{}' is not UTF-8, which is not supported", arg.to_string_lossy());
            return ctx.conclude(fail(format!("{} {}: {why}", self.name, command.name)), &usage);
        }
        ctx.line = std::iter::once(self.name.into())
            .chain(args.iter().map(|a| a.to_string_lossy()))
            .collect::<Vec<_>>()
            .join(" ");
        let refused = |why: &str| fail(format!("{} {}: {why}", self.name, command.name));
        let outcome = match command.runs {
            Runs::Here(f) | Runs::Pools(f) | Runs::Placed(_, f) => f(rest, ctx),
            Runs::Looks(f) => impatiently(|| f(rest, ctx)),
            Runs::Missing => refused("not supported yet"),
        };
        if let (Some(pool), Ok(0)) = (ctx.take_changed(), &outcome) {
            pool.record(ctx);
        }
        ctx.conclude(outcome, &usage)
    }

    fn help(&self, args: &[OsString]) -> String {
        let name = args.first().map(|a| a.to_string_lossy().into_owned()).unwrap_or_default();
        self.find(&name).map_or_else(|| self.usage(), |c| self.command_usage(c))
    }

    fn usage(&self) -> String {
        let mut text = format!(
            "usage: {} command args ...\nwhere 'command' is one of the following:\n\n",
            self.name
        );
        // An empty line between groups, but not where a whole group is left out.
        for group in self.commands.split(Option::is_none) {
            let works = group.iter().flatten().filter(|c| c.works());
            let lines: String = works.map(|c| c.usage).collect();
            if !lines.is_empty() {
                text += &lines;
                text.push('\n');
            }
        }
        text += &format!("The other commands of {} are refused by name.\n", self.name);
        text + self.tail
    }

    fn command_usage(&self, command: &Command) -> String {
        format!("usage:\n{}{}", command.usage, (self.command_tail)(command))
    }
}

/// The version of OpenZFS that the commands keep to, which programs look for, and ours behind it.
fn userland() -> String {
    format!("zfs-{OPENZFS_VERSION}-cenote-{}", env!("CARGO_PKG_VERSION"))
}

/// The same for what stands in the place of the kernel module.
fn kernel() -> String {
    format!("zfs-kmod-{OPENZFS_VERSION}-cenote-{}", env!("CARGO_PKG_VERSION"))
}

fn version() -> String {
    format!("{}\n{}\n", userland(), kernel())
}

/// `zpool version`.
pub fn zpool_version(args: &[OsString], ctx: &mut Context) -> Outcome {
    print_version("zpool version", args, ctx)
}

/// `zfs version`.
pub fn zfs_version(args: &[OsString], ctx: &mut Context) -> Outcome {
    print_version("zfs version", args, ctx)
}

fn print_version(command: &str, args: &[OsString], ctx: &mut Context) -> Outcome {
    let spec = Spec { short: "j", ..Spec::default() };
    let parsed = parse_with_long(args, spec, &[("json", 'j')])?;
    if !parsed.operands.is_empty() {
        return wrong("too many arguments");
    }
    if parsed.options.is_empty() {
        write!(ctx.out, "{}", version())?;
        return Ok(0);
    }
    let mut versions = serde_json::Map::new();
    versions.insert("userland".into(), userland().into());
    versions.insert("kernel".into(), kernel().into());
    writeln!(ctx.out, "{}", json::document(command, "zfs_version", versions)?)?;
    Ok(0)
}
