//! `zfs`: datasets.
//!
//! | module | commands |
//! |---|---|
//! | [`create`], [`destroy`], [`rename`], [`snapshot`], [`rollback`], [`bookmark`] | the commands of these names |
//! | [`clone`](mod@clone) | `zfs clone`, `zfs promote` |
//! | [`set`] | `zfs set`, `zfs inherit` |
//! | [`change`] | what these have in common |
//! | [`list`] | `zfs list` |
//! | [`load_key`] | `zfs load-key`, `zfs unload-key` |
//! | [`change_key`] | `zfs change-key` |
//! | [`get`] | `zfs get` |
//! | [`mount`] | `zfs mount`, `zfs unmount` |
//! | [`mount_helper`] | `mount.zfs`, which mount(8) runs |
//! | [`holds`] | `zfs hold`, `zfs holds`, `zfs release` |
//! | [`diff`] | `zfs diff` |
//! | [`send`], [`receive`] | `zfs send`, `zfs receive` |
//! | [`project`] | `zfs project` |
//! | [`share`] | `zfs share`, `zfs unshare` |
//! | [`userspace`] | `zfs userspace`, `zfs groupspace`, `zfs projectspace` |
//! | [`allow`], [`upgrade`], [`wait`] | the commands of these names |
//! | [`select`] | which datasets a command works on, and in which order |
//! | [`properties`] | the table of dataset properties and their columns |

pub mod allow;
pub mod bookmark;
pub mod change;
pub mod change_key;
pub mod clone;
pub mod create;
pub mod destroy;
pub mod diff;
pub mod get;
pub mod holds;
pub mod ids_to_path;
pub mod list;
mod load_key;
pub mod mount;
pub mod mount_helper;
pub mod project;
pub mod properties;
pub mod receive;
mod redact;
pub mod rename;
pub mod rollback;
pub mod select;
pub mod send;
mod session;
pub mod set;
pub mod share;
pub mod snapshot;
pub mod upgrade;
mod usage;
pub mod userspace;
pub mod wait;

use crate::commands::{Command, Runs, Tool, Where, row, zfs_version};
use crate::context::Context;
use crate::rewrite;
use cenote_engine::change::props::is_key_address;
use std::ffi::OsString;

const TOOL: Tool = Tool {
    name: "zfs",
    commands: &[
        row("version", Runs::Here(zfs_version), usage::VERSION),
        None,
        row("create", Runs::Pools(create::run), usage::CREATE),
        row("destroy", Runs::Pools(destroy::run), usage::DESTROY),
        None,
        row("snapshot", Runs::Pools(snapshot::run), usage::SNAPSHOT),
        row("rollback", Runs::Pools(rollback::run), usage::ROLLBACK),
        row("clone", Runs::Pools(clone::clone), usage::CLONE),
        row("promote", Runs::Pools(clone::promote), usage::PROMOTE),
        row("rename", Runs::Pools(rename::run), usage::RENAME),
        row("bookmark", Runs::Pools(bookmark::run), usage::BOOKMARK),
        row("diff", Runs::Looks(diff::run), usage::DIFF),
        None,
        row("list", Runs::Looks(list::run), usage::LIST),
        None,
        row("set", Runs::Pools(set::set), usage::SET),
        row("get", Runs::Looks(get::run), usage::GET),
        row("inherit", Runs::Pools(set::inherit), usage::INHERIT),
        row("upgrade", Runs::Looks(upgrade::run), usage::UPGRADE),
        None,
        row("userspace", Runs::Looks(userspace::user), usage::USERSPACE),
        row("groupspace", Runs::Looks(userspace::group), usage::GROUPSPACE),
        row("projectspace", Runs::Looks(userspace::project), usage::PROJECTSPACE),
        None,
        row("project", Runs::Here(project::run), usage::PROJECT),
        None,
        row("mount", Runs::Pools(mount::mount), usage::MOUNT),
        row("unmount", Runs::Pools(mount::unmount), usage::UNMOUNT),
        row("share", Runs::Pools(share::share), usage::SHARE),
        row("unshare", Runs::Pools(share::unshare), usage::UNSHARE),
        None,
        row("send", Runs::Pools(send::run), usage::SEND),
        row("receive", Runs::Pools(receive::run), usage::RECEIVE),
        row("redact", Runs::Pools(redact::run), usage::REDACT),
        None,
        row("allow", Runs::Looks(allow::allow), usage::ALLOW),
        row("unallow", Runs::Pools(allow::unallow), usage::UNALLOW),
        None,
        row("hold", Runs::Pools(holds::hold), usage::HOLD),
        row("holds", Runs::Looks(holds::run), usage::HOLDS),
        row("release", Runs::Pools(holds::release), usage::RELEASE),
        None,
        row("load-key", Runs::Pools(load_key::load), usage::LOAD_KEY),
        row("unload-key", Runs::Pools(load_key::unload), usage::UNLOAD_KEY),
        row("change-key", Runs::Pools(change_key::run), usage::CHANGE_KEY),
        None,
        row("program", Runs::Missing, usage::PROGRAM),
        row("rewrite", Runs::Here(rewrite::zfs), usage::REWRITE),
        row("wait", Runs::Pools(wait::run), usage::WAIT),
        None,
        row("zone", Runs::Missing, usage::ZONE),
        row("unzone", Runs::Missing, usage::UNZONE),
    ],
    hidden: &[],
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
        "allow" | "unallow" => allow::help(),
        _ => "\nFor the property list, run: zfs set|get\n\
              \nFor the delegated permission list, run: zfs allow|unallow\n\
              \nFor further help on a command or topic, run: zfs help [<topic>]\n"
            .into(),
    }
}

/// The table of the commands of `zfs`.
pub const fn tool() -> &'static Tool {
    &TOOL
}

/// Where a command of `zfs` runs.
pub fn place(args: &[OsString]) -> Where {
    TOOL.place(args)
}

/// Whether a command reads standard input.
pub fn reads_input(args: &[OsString]) -> bool {
    let loads_keys = || {
        let mut options = args.iter().filter_map(|arg| arg.to_str()).skip(1);
        options.any(|arg| arg.starts_with('-') && !arg.starts_with("--") && arg.contains('l'))
    };
    args.first().is_some_and(|name| match name.to_str() {
        Some("receive" | "recv" | "load-key" | "change-key") => true,
        Some("mount") => loads_keys(),
        Some("create") => gives_key(args) && !has_key_at_address(args),
        _ => false,
    })
}

/// Whether a command line says that a key is at an address: none is typed.
fn has_key_at_address(args: &[OsString]) -> bool {
    let place = |arg: &OsString| Some(arg.to_str()?.split_once("keylocation=")?.1.to_string());
    args.iter().filter_map(place).any(|place| is_key_address(&place))
}

/// Whether a command line has a new key made, which may be typed.
pub fn gives_key(args: &[OsString]) -> bool {
    args.iter().filter_map(|arg| arg.to_str()).any(|arg| arg.contains("keyformat="))
}

/// Runs a command of `zfs`; returns the exit code.
pub fn run(args: &[OsString], ctx: &mut Context) -> i32 {
    TOOL.run(args, ctx)
}
