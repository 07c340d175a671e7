//! `zfs`: datasets.
//!
//! | module | commands |
//! |---|---|
//! | [`list`] | `zfs list` |
//! | [`get`] | `zfs get` |
//! | [`mount`] | `zfs mount`, `zfs unmount` |
//! | [`holds`] | `zfs holds` |
//! | [`select`] | which datasets a command works on, and in which order |
//! | [`properties`] | the table of dataset properties and their columns |

pub mod get;
pub mod holds;
pub mod list;
pub mod mount;
pub mod properties;
pub mod select;
mod usage;

use crate::commands::{Command, Runs, Tool, print_version, row};
use crate::context::Context;
use crate::dispatch::Where;
use std::ffi::OsString;

const TOOL: Tool = Tool {
    name: "zfs",
    commands: &[
        row("version", Runs::Here(print_version), usage::VERSION),
        None,
        row("create", Runs::Writes, usage::CREATE),
        row("destroy", Runs::Writes, usage::DESTROY),
        None,
        row("snapshot", Runs::Writes, usage::SNAPSHOT),
        row("rollback", Runs::Writes, usage::ROLLBACK),
        row("clone", Runs::Writes, usage::CLONE),
        row("promote", Runs::Writes, usage::PROMOTE),
        row("rename", Runs::Writes, usage::RENAME),
        row("bookmark", Runs::Writes, usage::BOOKMARK),
        row("diff", Runs::Missing, usage::DIFF),
        None,
        row("list", Runs::Pools(list::run), usage::LIST),
        None,
        row("set", Runs::Writes, usage::SET),
        row("get", Runs::Pools(get::run), usage::GET),
        row("inherit", Runs::Writes, usage::INHERIT),
        row("upgrade", Runs::Writes, usage::UPGRADE),
        None,
        row("userspace", Runs::Missing, usage::USERSPACE),
        row("groupspace", Runs::Missing, usage::GROUPSPACE),
        row("projectspace", Runs::Missing, usage::PROJECTSPACE),
        None,
        row("project", Runs::Writes, usage::PROJECT),
        None,
        row("mount", Runs::Pools(mount::mount), usage::MOUNT),
        row("unmount", Runs::Pools(mount::unmount), usage::UNMOUNT),
        row("share", Runs::Missing, usage::SHARE),
        row("unshare", Runs::Missing, usage::UNSHARE),
        None,
        row("send", Runs::Missing, usage::SEND),
        row("receive", Runs::Writes, usage::RECEIVE),
        row("redact", Runs::Writes, usage::REDACT),
        None,
        row("allow", Runs::Missing, usage::ALLOW),
        row("unallow", Runs::Writes, usage::UNALLOW),
        None,
        row("hold", Runs::Writes, usage::HOLD),
        row("holds", Runs::Pools(holds::run), usage::HOLDS),
        row("release", Runs::Writes, usage::RELEASE),
        None,
        row("load-key", Runs::Missing, usage::LOAD_KEY),
        row("unload-key", Runs::Missing, usage::UNLOAD_KEY),
        row("change-key", Runs::Writes, usage::CHANGE_KEY),
        None,
        row("program", Runs::Missing, usage::PROGRAM),
        row("rewrite", Runs::Writes, usage::REWRITE),
        row("wait", Runs::Missing, usage::WAIT),
        None,
        row("zone", Runs::Missing, usage::ZONE),
        row("unzone", Runs::Missing, usage::UNZONE),
    ],
    canonical: |name| match name {
        "umount" => "unmount",
        "recv" => "receive",
        "snap" => "snapshot",
        _ if name.contains('=') => "set",
        _ => name,
    },
    tail: "\nEach dataset is of the form: pool/[dataset/]*dataset[@name]\n\
           \nFor the property list, run: zfs set|get\n\
           \nFor the delegated permission list, run: zfs allow|unallow\n\
           \nFor further help on a command or topic, run: zfs help [<topic>]\n",
    command_tail,
};

fn command_tail(command: &Command) -> String {
    match command.name {
        "set" | "get" | "inherit" | "list" => properties::help(),
        _ => "\nFor the property list, run: zfs set|get\n\
              \nFor the delegated permission list, run: zfs allow|unallow\n\
              \nFor further help on a command or topic, run: zfs help [<topic>]\n"
            .into(),
    }
}

/// Where a command of `zfs` runs.
pub fn place(args: &[OsString]) -> Where {
    TOOL.place(args)
}

/// Runs a command of `zfs`; returns the exit code.
pub fn run(args: &[OsString], ctx: &mut Context) -> i32 {
    TOOL.run(args, ctx)
}
