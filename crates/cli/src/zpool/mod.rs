//! `zpool`: pools.
//!
//! | module | commands |
//! |---|---|
//! | [`import`] | `zpool import`, with and without a name |
//! | [`export`] | `zpool export` |
//! | [`list`] | `zpool list` |
//! | [`status`] | `zpool status` |
//! | [`get`] | `zpool get` |
//! | [`history`] | `zpool history` |
//! | [`iostat`] | `zpool iostat` |
//! | [`properties`] | the table of pool properties and their columns |
//! | [`select`] | which pools a command works on |

pub mod export;
pub mod get;
pub mod history;
pub mod import;
pub mod iostat;
pub mod list;
pub mod properties;
pub mod select;
pub mod status;
mod usage;

use crate::commands::{Command, Runs, Tool, print_version, row};
use crate::context::Context;
use crate::dispatch::Where;
use std::ffi::OsString;

const TOOL: Tool = Tool {
    name: "zpool",
    commands: &[
        row("version", Runs::Here(print_version), usage::VERSION),
        None,
        row("create", Runs::Writes, usage::CREATE),
        row("destroy", Runs::Writes, usage::DESTROY),
        None,
        row("add", Runs::Writes, usage::ADD),
        row("remove", Runs::Writes, usage::REMOVE),
        None,
        row("labelclear", Runs::Writes, usage::LABELCLEAR),
        None,
        row("checkpoint", Runs::Writes, usage::CHECKPOINT),
        row("prefetch", Runs::Missing, usage::PREFETCH),
        None,
        row("list", Runs::Pools(list::run), usage::LIST),
        row("iostat", Runs::Pools(iostat::run), usage::IOSTAT),
        row("status", Runs::Pools(status::run), usage::STATUS),
        None,
        row("online", Runs::Writes, usage::ONLINE),
        row("offline", Runs::Writes, usage::OFFLINE),
        row("clear", Runs::Writes, usage::CLEAR),
        row("reopen", Runs::Missing, usage::REOPEN),
        None,
        row("attach", Runs::Writes, usage::ATTACH),
        row("detach", Runs::Writes, usage::DETACH),
        row("replace", Runs::Writes, usage::REPLACE),
        row("split", Runs::Writes, usage::SPLIT),
        None,
        row("initialize", Runs::Writes, usage::INITIALIZE),
        row("resilver", Runs::Writes, usage::RESILVER),
        row("scrub", Runs::Writes, usage::SCRUB),
        row("trim", Runs::Writes, usage::TRIM),
        row("condense", Runs::Writes, usage::CONDENSE),
        None,
        row("import", Runs::Placed(import::place, import::run), usage::IMPORT),
        row("export", Runs::Pools(export::run), usage::EXPORT),
        row("upgrade", Runs::Writes, usage::UPGRADE),
        row("reguid", Runs::Writes, usage::REGUID),
        None,
        row("history", Runs::Pools(history::run), usage::HISTORY),
        row("events", Runs::Missing, usage::EVENTS),
        None,
        row("get", Runs::Pools(get::run), usage::GET),
        row("set", Runs::Writes, usage::SET),
        None,
        row("sync", Runs::Writes, usage::SYNC),
        None,
        row("wait", Runs::Missing, usage::WAIT),
        None,
        row("ddtprune", Runs::Writes, usage::DDTPRUNE),
    ],
    canonical: |name| if name.contains('=') { "set" } else { name },
    tail: "\nFor further help on a command or topic, run: zpool help [<topic>]\n",
    command_tail,
};

fn command_tail(command: &Command) -> String {
    match command.name {
        "set" | "get" | "list" => properties::help(),
        _ => String::new(),
    }
}

/// Where a command of `zpool` runs.
pub fn place(args: &[OsString]) -> Where {
    TOOL.place(args)
}

/// Runs a command of `zpool`; returns the exit code.
pub fn run(args: &[OsString], ctx: &mut Context) -> i32 {
    TOOL.run(args, ctx)
}
