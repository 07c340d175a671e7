//! What OpenZFS has, and what is refused here by its name: commands, and options of commands. A reader of the manual
//! learns so that nothing was forgotten.
//!
//! Tests compare the tables with what the commands refuse.

/// Commands: tool, name, what OpenZFS's does.
#[rustfmt::skip] // A table: one row per line.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("zpool", "condense", "Writes what the logs of space maps have into the space maps at once, so that the logs are short."),
    ("zfs", "program", "Runs a program in Lua inside the pool."),
    ("zfs", "zone", "Gives a file system to a user namespace."),
    ("zfs", "unzone", "Takes it back from there."),
];

const POWER: &str = "Switches the slot of an enclosure on or off.";
/// Options: command, names, what OpenZFS's do.
#[rustfmt::skip] // A table: one row per line.
const OPTIONS: &[(&str, &str, &str)] = &[
    ("zpool clear", "--power", POWER),
    ("zpool online", "--power", POWER),
    ("zpool offline", "--power", POWER),
    ("zpool status", "--power", POWER),
    ("zpool import", "-C, -V", "The command line of OpenZFS takes them; its manual does not have them."),
    ("zpool scrub", "-t", "The usage of OpenZFS has it; its manual does not."),
];

/// The commands of a tool.
pub fn commands(tool: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    COMMANDS.iter().filter(move |(of, ..)| *of == tool).map(|(_, name, about)| (*name, *about))
}

/// The options of a command.
pub fn options(tool: &str, command: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let whole = format!("{tool} {command}");
    OPTIONS.iter().filter(move |(of, ..)| *of == whole).map(|(_, names, about)| (*names, *about))
}
