//! `zpool`: pools.
//!
//! | module | commands |
//! |---|---|
//! | [`create`], [`add`], [`remove`], [`destroy`] | `zpool create`, `zpool add`, `zpool remove`, `zpool destroy` |
//! | [`attach`] | `zpool attach`, `zpool replace`, `zpool detach` |
//! | [`split`] | `zpool split` |
//! | [`import`] | `zpool import`, with and without a name |
//! | [`export`] | `zpool export` |
//! | [`list`] | `zpool list` |
//! | [`status`] | `zpool status` |
//! | [`get`], [`set`] | `zpool get`, `zpool set` |
//! | [`upgrade`] | `zpool upgrade` |
//! | [`sync`], [`reguid`], [`freeze`] | `zpool sync`, `zpool reguid`, `zpool freeze` |
//! | [`labelclear`] | `zpool labelclear` |
//! | [`history`], [`events`] | `zpool history`, `zpool events` |
//! | [`iostat`] | `zpool iostat` |
//! | [`outage`] | `zpool online`, `zpool offline`, `zpool clear`, `zpool reopen` |
//! | [`scrub`] | `zpool scrub`, `zpool resilver` |
//! | [`wait`] | `zpool wait` |
//! | [`layout`] | the layout that `-n` shows |
//! | [`scripts`], [`programs`] | columns of `-c`, and running its programs |
//! | [`properties`] | the table of pool properties and their columns |
//! | [`vdev_json`] | vdevs in JSON |
//! | [`select`] | which pools a command works on |

pub mod activity;
mod add;
pub mod attach;
pub mod checkpoint;
pub mod create;
pub mod destroy;
pub mod events;
pub mod export;
pub mod freeze;
pub mod get;
pub mod history;
pub mod import;
pub mod iostat;
pub mod labelclear;
pub mod layout;
pub mod list;
pub mod outage;
pub mod programs;
pub mod properties;
pub mod reguid;
pub mod remove;
pub mod scripts;
pub mod scrub;
pub mod select;
pub mod set;
pub mod split;
pub mod status;
pub mod sync;
mod tables;
pub mod upgrade;
mod usage;
pub mod vdev_json;
pub mod wait;

use crate::commands::{Command, Runs, Tool, Where, row, zpool_version};
use crate::context::Context;
use std::ffi::OsString;

const TOOL: Tool = Tool {
    name: "zpool",
    commands: &[
        row("version", Runs::Here(zpool_version), usage::VERSION),
        None,
        row("create", Runs::Placed(create::place, create::run), usage::CREATE),
        row("destroy", Runs::Pools(destroy::run), usage::DESTROY),
        None,
        row("add", Runs::Pools(add::run), usage::ADD),
        row("remove", Runs::Pools(remove::run), usage::REMOVE),
        None,
        row("labelclear", Runs::Pools(labelclear::run), usage::LABELCLEAR),
        None,
        row("checkpoint", Runs::Pools(checkpoint::run), usage::CHECKPOINT),
        row("prefetch", Runs::Pools(tables::prefetch), usage::PREFETCH),
        None,
        row("list", Runs::Looks(list::run), usage::LIST),
        row("iostat", Runs::Looks(iostat::run), usage::IOSTAT),
        row("status", Runs::Looks(status::run), usage::STATUS),
        None,
        row("online", Runs::Pools(outage::online), usage::ONLINE),
        row("offline", Runs::Pools(outage::offline), usage::OFFLINE),
        row("clear", Runs::Pools(outage::clear), usage::CLEAR),
        row("reopen", Runs::Pools(outage::reopen), usage::REOPEN),
        None,
        row("attach", Runs::Pools(attach::attach), usage::ATTACH),
        row("detach", Runs::Pools(attach::detach), usage::DETACH),
        row("replace", Runs::Pools(attach::replace), usage::REPLACE),
        row("split", Runs::Pools(split::run), usage::SPLIT),
        None,
        row("initialize", Runs::Pools(activity::initialize), usage::INITIALIZE),
        row("resilver", Runs::Pools(scrub::resilver), usage::RESILVER),
        row("scrub", Runs::Pools(scrub::run), usage::SCRUB),
        row("trim", Runs::Pools(activity::trim), usage::TRIM),
        row("condense", Runs::Missing, usage::CONDENSE),
        None,
        row("import", Runs::Placed(import::place, import::run), usage::IMPORT),
        row("export", Runs::Pools(export::run), usage::EXPORT),
        row("upgrade", Runs::Looks(upgrade::run), usage::UPGRADE),
        row("reguid", Runs::Pools(reguid::run), usage::REGUID),
        None,
        row("history", Runs::Looks(history::run), usage::HISTORY),
        row("events", Runs::Looks(events::run), usage::EVENTS),
        None,
        row("get", Runs::Looks(get::run), usage::GET),
        row("set", Runs::Pools(set::run), usage::SET),
        None,
        row("sync", Runs::Pools(sync::run), usage::SYNC),
        None,
        row("wait", Runs::Pools(wait::run), usage::WAIT),
        None,
        row("ddtprune", Runs::Pools(tables::prune), usage::DDTPRUNE),
    ],
    hidden: &[Command { name: "freeze", runs: Runs::Pools(freeze::run), usage: usage::FREEZE }],
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

/// The table of the commands of `zpool`.
pub const fn tool() -> &'static Tool {
    &TOOL
}

/// Where a command of `zpool` runs.
pub fn place(args: &[OsString]) -> Where {
    match args.split_first() {
        // The user's programs are listed.
        Some((name, rest)) if programs::are_listed(&name.to_string_lossy(), rest) => Where::Here,
        _ => TOOL.place(args),
    }
}

/// Runs a command of `zpool`; returns the exit code.
pub fn run(args: &[OsString], ctx: &mut Context) -> i32 {
    TOOL.run(args, ctx)
}
