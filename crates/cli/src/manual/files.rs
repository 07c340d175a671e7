//! What the manual says about files: what each is, and which commands read it.
//!
//! A test looks for all names of files that the sources have, so that no file is missing here.

use super::environment::{Heeded, heeded};

/// A file or directory.
struct File {
    name: &'static str,
    /// The commands that read it, as patterns, like the patterns of variables.
    readers: &'static [&'static str],
    about: &'static str,
}

const fn of_all(name: &'static str, about: &'static str) -> File {
    File { name, readers: &[""], about }
}

const fn of(readers: &'static [&'static str], name: &'static str, about: &'static str) -> File {
    File { name, readers, about }
}

/// The commands with `-c`.
const SCRIPTED: &[&str] = &["zpool iostat", "zpool status"];
/// The commands that heed the property `compatibility`.
const COMPATIBLE: &[&str] = &["zpool create", "zpool set", "zpool status", "zpool upgrade"];
/// The commands that write this system's number into a pool, or compare it with the pool's.
const HOSTS: &[&str] =
    &["zpool create", "zpool import", "zpool set", "zpool split", "cenote daemon"];
/// The commands that mount.
const MOUNTING: &[&str] =
    &["zpool create", "zpool import", "zfs create", "zfs clone", "zfs mount", "cenote daemon"];

/// The files.
#[rustfmt::skip] // A table: one row per line.
const FILES: &[File] = &[
    of_all("/run/cenote/socket", "The socket of root's daemon. Other users have $XDG_RUNTIME_DIR/cenote/socket."),
    of_all("/var/lib/cenote/zpool.cache", "The default cache file of root. Other users have $XDG_STATE_HOME/cenote/zpool.cache, or it below ~/.local/state."),
    of_all("/etc/cenote/tunables.conf", "Tunables that are set at the start. Other users have $XDG_CONFIG_HOME/cenote/tunables.conf, or it below ~/.config."),
    of_all("/etc/cenote/zed.d", "Programs that run as events come (zedlets). Other users have $XDG_CONFIG_HOME/cenote/zed.d, or it below ~/.config."),
    of(HOSTS, "/etc/hostid", "The number by which this system is known, in its first four bytes, as the C library and OpenZFS keep it. Where OpenZFS's module spl is loaded, its parameter spl_hostid comes before it."),
    of(SCRIPTED, "~/.zpool.d", "Programs of -c, looked for here first."),
    of(SCRIPTED, "/etc/zfs/zpool.d", "Programs of -c."),
    of(COMPATIBLE, "/etc/zfs/compatibility.d", "Lists of features, as the property compatibility names them. They come before those of the next directory."),
    of(COMPATIBLE, "/usr/share/zfs/compatibility.d", "Lists of features that are installed."),
    of(MOUNTING, "/etc/fuse.conf", "With user_allow_other in it, other users see what a daemon mounts that is not root's."),
];

/// The files that a command reads, with what each is. `command` is empty for the page of the whole tool, which has those
/// of all its commands.
pub fn of_command(tool: &str, command: &str) -> Vec<(&'static str, String)> {
    let row = |file: &File| match heeded(file.readers, tool, command) {
        Heeded::Whole => Some((file.name, file.about.to_string())),
        Heeded::By(some) => Some((file.name, format!("{} Of {}.", file.about, some.join(", ")))),
        Heeded::No => None,
    };
    FILES.iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests;
