//! Which commands another user may give the daemon of root (`zfs_secpolicy_*`).
//!
//! Every user may look, as with OpenZFS, and may give those commands that act on what is delegated: what
//! these need is asked where they change something ([`cenote_engine::change::policy`]). A command that is not in the
//! tables is for the daemon's user and root.
//!
//! What needs no pool of the daemon's, a mistake in the arguments or the name of a pool that there is not, the user's own
//! process tells before it asks the daemon (`dispatch::answered_here`), as OpenZFS's commands do.
//!
//! Invariant: a command in [`Access::Everybody`] opens no file for its caller and changes nothing.

use crate::context::Context;
use crate::zfs::change::permit;
use crate::zfs::select::Node;
use crate::{zfs, zpool};
use cenote_dsl::props::{Who as Owner, is_userspace, owner_of};
use cenote_engine::change::policy::Operation;
use std::ffi::OsString;

/// Which users may give a command, beside root and the daemon's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Every user.
    Everybody,
    /// Every user, without operands and these options.
    Listing(&'static [&'static str]),
    /// Every user with the permissions that each of its changes needs (`zfs allow`).
    Delegated,
    /// Every user, as far as it shows something: it refuses to change something itself ([`may_change`]).
    Showing,
}

use Access::{Delegated, Everybody, Listing, Showing};

/// The commands of `zpool`. OpenZFS keeps `history` and `events` for root.
const ZPOOL: &[(&str, Access)] = &[
    ("get", Everybody),
    ("iostat", Everybody),
    ("list", Everybody),
    // With `-n`.
    ("remove", Showing),
    ("split", Showing),
    ("status", Everybody),
    ("sync", Everybody),
    // Where there is nothing to upgrade.
    ("upgrade", Showing),
    ("version", Everybody),
    ("wait", Everybody),
];

/// The commands of `zfs`.
const ZFS: &[(&str, Access)] = &[
    ("allow", Delegated),
    ("bookmark", Delegated),
    ("clone", Delegated),
    ("create", Delegated),
    ("destroy", Delegated),
    ("diff", Delegated),
    ("get", Everybody),
    ("groupspace", Delegated),
    ("hold", Delegated),
    ("holds", Everybody),
    ("inherit", Delegated),
    ("list", Everybody),
    // What mounts or unmounts ends there: the daemon does neither for others, as the kernel does not.
    ("mount", Delegated),
    ("projectspace", Delegated),
    ("promote", Delegated),
    ("receive", Delegated),
    ("release", Delegated),
    ("rename", Delegated),
    ("rollback", Delegated),
    ("send", Delegated),
    ("set", Delegated),
    ("snapshot", Delegated),
    ("unallow", Delegated),
    ("unmount", Delegated),
    ("upgrade", Delegated),
    ("userspace", Delegated),
    ("version", Everybody),
    ("wait", Everybody),
];

/// The commands of `cenote`.
const CENOTE: &[(&str, Access)] =
    &[("complete", Everybody), ("tunables", Listing(&[])), ("txgs", Everybody)];

/// The command of a tool that a name stands for, and which users may give it.
fn find(tool: &str, name: &str) -> Option<(&'static str, Access)> {
    let (table, name) = match tool {
        "zpool" => (ZPOOL, (zpool::tool().canonical)(name)),
        "zfs" => (ZFS, (zfs::tool().canonical)(name)),
        "cenote" => (CENOTE, name),
        _ => return None,
    };
    table.iter().copied().find(|(known, _)| *known == name)
}

/// Why the caller may not give a command; `None`: it may. Help and mistakes are open to every user.
pub fn refusal(tool: &str, args: &[OsString], ctx: &Context) -> Option<String> {
    if !ctx.caller.is_delegated() {
        return None;
    }
    let name = args.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    let rest = args.get(1..).unwrap_or_default();
    let allowed = match find(tool, &name) {
        Some((_, Everybody | Delegated | Showing)) => true,
        Some((_, Listing(options))) => rest.iter().all(|arg| {
            let arg = arg.to_string_lossy();
            arg.starts_with('-') && !options.iter().any(|option| has(&arg, option))
        }),
        None => matches!(tool, "zpool" | "zfs") && is_no_command(tool, &name),
    };
    if allowed {
        return None;
    }
    match tool {
        "zinject" => return Some(format!("cannot inject faults: {DENIED}")),
        "zpool" | "zfs" | "cenote" => {}
        _ => return Some(format!("{tool}: {DENIED}")),
    }
    let operand = rest.iter().map(|arg| arg.to_string_lossy()).find(|arg| !arg.starts_with('-'));
    let what = operand.map(|operand| format!(" '{operand}'")).unwrap_or_default();
    Some(format!("cannot {name}{what}: {DENIED}"))
}

/// Whether only root and the daemon's user may give a command.
pub fn is_owners(tool: &str, args: &[OsString]) -> bool {
    let name = args.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    find(tool, &name).is_none() && !is_no_command(tool, &name)
}

/// What a caller is told that may not do something.
pub const DENIED: &str = "permission denied";

/// Whether the caller may change pools. The error is what comes after `cannot …: `.
pub fn may_change(ctx: &Context) -> Result<(), String> {
    match ctx.caller.is_delegated() {
        true => Err(DENIED.into()),
        false => Ok(()),
    }
}

/// Whether an argument has an option of one letter, alone or among others.
fn has(arg: &str, option: &str) -> bool {
    let letters = arg.strip_prefix('-').filter(|letters| !letters.starts_with('-'));
    letters.is_some_and(|letters| letters.contains(option.trim_start_matches('-')))
}

/// Whether there is no such command: help, or a mistake, both of which end with the usage message.
fn is_no_command(tool: &str, name: &str) -> bool {
    let tool = if tool == "zpool" { zpool::tool() } else { zfs::tool() };
    tool.find(name).is_none()
}

/// Whether a command of another user than the daemon's is for the user's own process: what it looks at are devices
/// and files, with the user's rights.
pub fn is_for_own_process(tool: &str, args: &[OsString]) -> bool {
    let is = |name: &str| args.first().is_some_and(|given| given == name);
    match tool {
        "zdb" | "zstream" => true,
        "zpool" => is("import") || is("labelclear"),
        _ => false,
    }
}

/// Whether the caller may see a property: what others own in a file system is not shown to every user
/// (`zfs_secpolicy_userspace_one`).
pub fn sees(node: &Node, property: &str, ctx: &Context) -> bool {
    let Some(who) = ctx.delegate().filter(|_| is_userspace(property)) else { return true };
    let own = match owner_of(property) {
        Some((Owner::User, id)) => id == who.user,
        Some((Owner::Group, id)) => who.groups.contains(&id),
        _ => false,
    };
    let operation = Operation::Userspace { name: &node.dataset.name, property };
    own || permit(&node.imported, ctx, &operation).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::PoolTable;
    use std::sync::Arc;

    fn refused(line: &str, groups: Option<Vec<u32>>) -> Option<String> {
        let mut ctx = Context::of_process(Arc::new(PoolTable::default()));
        if let Some(groups) = groups {
            ctx.caller = ctx.caller.clone().with_rights_of(groups);
        }
        let mut words = line.split_whitespace();
        let tool = words.next().unwrap();
        refusal(tool, &words.map(OsString::from).collect::<Vec<_>>(), &ctx)
    }

    #[test]
    fn what_is_in_no_table_is_for_the_daemons_user_and_root() {
        for line in [
            "zpool create p f",
            "zpool add p f",
            "zpool attach p f g",
            "zpool replace p f g",
            "zpool online -e p f",
            "zpool reopen p",
            "zpool import -d f",
            "zpool destroy p",
            "zpool export p",
            "zpool freeze p",
            "zpool import p",
            "zpool history p",
            "zpool events",
            "zpool set a=b p",
            "zpool a=b p",
            "zpool labelclear f",
            "zfs share p",
            "zfs program p f",
            "zfs rewrite f",
            "zdb p",
            "zinject",
            "zinject -h",
            "zstream dump",
            "mount.zfs p /mnt",
            "cenote zpool destroy p",
            "cenote ls p:/",
            "cenote map p",
            "cenote tunables set a=1",
            "cenote tunables mount /mnt",
            "cenote",
            "",
            "nonsense zpool list",
        ] {
            let line = if line.is_empty() { "unknown" } else { line };
            assert!(refused(line, Some(vec![])).is_some(), "{line}");
            assert_eq!(refused(line, None), None, "{line}");
        }
        let said = refused("zpool destroy -f p", Some(vec![])).unwrap();
        assert_eq!(said, "cannot destroy 'p': permission denied");
        for line in [
            "zpool list -v p",
            "zpool upgrade",
            "zpool upgrade -v",
            // These refuse themselves what changes something.
            "zpool upgrade p",
            "zpool remove p f",
            "zpool split p q",
            "zpool help",
            "zpool nonsense",
            "zfs a=b p",
            "zfs snap p@a",
            "zfs umount p",
            "cenote tunables -H",
            "cenote txgs",
            "cenote complete -- zpool destroy p",
        ] {
            assert_eq!(refused(line, Some(vec![])), None, "{line}");
        }
    }

    #[test]
    fn the_tables_name_commands_that_there_are() {
        for (tool, table) in [(zpool::tool(), ZPOOL), (zfs::tool(), ZFS)] {
            for (name, _) in table {
                assert!(tool.working().any(|command| command.name == *name), "{name}");
            }
            assert!(table.is_sorted_by_key(|(name, _)| *name));
        }
        // What runs and is in no table is refused, listed or not.
        for tool in [zpool::tool(), zfs::tool()] {
            for command in tool.working().chain(tool.hidden) {
                let known = find(tool.name, command.name).is_some();
                let line = format!("{} {} p", tool.name, command.name);
                assert!(known || refused(&line, Some(vec![])).is_some(), "{line}");
            }
        }
    }
}
