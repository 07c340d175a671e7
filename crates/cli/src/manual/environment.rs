//! What the manual says about variables of the environment: what each sets, and which commands heed it.
//!
//! A daemon heeds the variables of its own environment, which it has from the first command that needed it, or from the
//! service manager. All other variables a command takes from its caller (`cenote_command::caller`).
//!
//! A test looks for all variables that the sources read, so that no variable is missing here.

/// A variable.
struct Variable {
    name: &'static str,
    /// The commands that heed it, as patterns: `""`: all; `zpool`: all of a tool; `zpool import`: one.
    readers: &'static [&'static str],
    about: &'static str,
}

const fn of_all(name: &'static str, about: &'static str) -> Variable {
    Variable { name, readers: &[""], about }
}

const fn of(readers: &'static [&'static str], name: &'static str, about: &'static str) -> Variable {
    Variable { name, readers, about }
}

/// The commands that name vdevs.
const NAMING: &[&str] =
    &["zpool add", "zpool create", "zpool iostat", "zpool list", "zpool split", "zpool status"];
/// The commands with `-c`.
const SCRIPTED: &[&str] = &["zpool iostat", "zpool status"];
/// The commands with colours of OpenZFS.
const COLOURED: &[&str] = &["zpool iostat", "zpool status", "zfs diff", "zfs list"];
/// The commands that write this system's number into a pool, or compare it with the pool's.
const HOSTS: &[&str] =
    &["zpool create", "zpool import", "zpool set", "zpool split", "cenote daemon"];

/// The commands that load keys or set them.
const KEYED: &[&str] = &[
    "zfs load-key",
    "zfs change-key",
    "zfs mount",
    "zfs create",
    "zfs receive",
    "zpool create",
    "zpool import",
    "cenote ls",
    "cenote cat",
    "cenote cp",
];

/// The variables that are read.
#[rustfmt::skip] // A table: one row per line.
const VARIABLES: &[Variable] = &[
    of_all("CENOTE_SOCKET", "The socket of the daemon that has the pools."),
    of_all("CENOTE_CACHEFILE", "The default cache file of a daemon that the command starts; none: no file is kept."),
    of(&["zpool create", "zpool import"], "CENOTE_ARC_MAX", "Bytes of a cache of the pool's own, with K, M, G or T. Without it the pool shares one cache with all others."),
    of_all("CENOTE_TUNABLES", "Tunables to set when a daemon starts, as name=value with spaces between."),
    of_all("CENOTE_TUNABLES_FILE", "The file of tunables that a daemon reads when it starts, in place of the one below."),
    of_all("CENOTE_ZEDLET_DIR", "The directory of programs that a daemon runs as events come, in place of the one below."),
    of_all("POSIXLY_CORRECT", "If it is set, options come before operands only."),
    of_all("TZ", "The time zone of the times that are shown."),
    of_all("HOME", "The user's directory, for the files below."),
    of_all("XDG_RUNTIME_DIR", "Where the socket is, if the user is not root and it is not named."),
    of_all("XDG_STATE_HOME", "Where the default cache file of users is, in place of ~/.local/state."),
    of_all("XDG_CONFIG_HOME", "Where the files of users are that a daemon reads when it starts, in place of ~/.config."),
    of(&["cenote daemon"], "NOTIFY_SOCKET", "Where the service manager is told that the daemon is ready."),
    of(&["cenote daemon"], "GLIBC_TUNABLES", "Passed on to a daemon that a command starts, with glibc.pthread.rseq=0 behind it if it says nothing of that."),
    of(&["cenote daemon"], "PATH", "Where the daemon looks for fusermount3, with which users mount."),
    of(HOSTS, "ZFS_HOSTID", "The number by which this system is known, in hexadecimal. It is read in the environment of the daemon."),
    of(&["zpool", "zfs"], "ZFS_ABORT", "If it is set, the command ends with a core dump when it has done its work."),
    of(COLOURED, "ZFS_COLOR", "1, yes or on: colours on a terminal."),
    of(&["zpool iostat", "zpool status", "zfs diff", "zfs list", "cenote map"], "NO_COLOR", "No colours on a terminal; beside ZFS_COLOR if it is 1, yes or on, else if it has any text."),
    of(&["zpool iostat", "zpool status", "zfs diff", "zfs list", "cenote map"], "TERM", "dumb: no colours."),
    of(&["cenote map"], "COLORTERM", "truecolor or 24bit: the terminal has all colours."),
    of(&["zpool import"], "ZPOOL_IMPORT_PATH", "Where to search if -d and -c are not given, with colons between; without it in /dev. Other commands look for short names of devices in the system's own directories, whatever it says."),
    of(SCRIPTED, "ZPOOL_SCRIPTS_PATH", "Where programs of -c are, with colons between, in place of ~/.zpool.d and /etc/zfs/zpool.d."),
    of(SCRIPTED, "ZPOOL_SCRIPTS_ENABLED", "If it is set, and not to 1, yes or on, -c is refused."),
    of(SCRIPTED, "ZPOOL_SCRIPTS_AS_ROOT", "1, yes or on: -c runs programs for root as well."),
    of(NAMING, "ZPOOL_VDEV_NAME_GUID", "1, yes or on: vdevs are named by their guids, as with -g."),
    of(NAMING, "ZPOOL_VDEV_NAME_FOLLOW_LINKS", "1, yes or on: links in the names of vdevs are followed, as with -L."),
    of(NAMING, "ZPOOL_VDEV_NAME_PATH", "1, yes or on: vdevs are named by their whole paths, as with -P."),
    of(KEYED, "SSL_CA_CERT_FILE", "For keys at https://: the file of certificates that are trusted, in place of the system's."),
    of(KEYED, "SSL_CA_CERT_PATH", "For keys at https://: a directory of files of further certificates that are trusted."),
    of(KEYED, "SSL_CLIENT_CERT_FILE", "For keys at https://: the certificate that a server is shown that asks for one."),
    of(KEYED, "SSL_CLIENT_KEY_FILE", "For keys at https://: the key of that certificate, if it is in another file."),
    of(&["zdb"], "ZDB_NO_ZLE", "If it is set, -R does not try zle."),
];

/// The variables that programs of `-c` find in their environment, where there is nothing else.
const OF_SCRIPTS: &[(&str, &str)] = &[
    ("VDEV_PATH", "For programs of -c: the path of the device."),
    ("VDEV_UPATH", "For programs of -c: where links in that path lead to."),
    (
        "VDEV_ENC_SYSFS_PATH",
        "For programs of -c: where the system shows the enclosure of the device.",
    ),
    ("PATH", "For programs of -c: /bin:/sbin:/usr/bin:/usr/sbin."),
];

/// Variables that OpenZFS's manual has and that change nothing here: tool, name, why.
#[rustfmt::skip] // A table: one row per line.
const NOT_READ: &[(&str, &str, &str)] = &[
    ("zpool", "ZPOOL_AUTO_POWER_ON_SLOT", "slots of enclosures are not switched"),
    ("zpool", "ZPOOL_POWER_ON_SLOT_TIMEOUT_MS", "slots of enclosures are not switched"),
    ("zpool", "ZPOOL_IMPORT_UDEV_TIMEOUT_MS", "an import takes devices as they are"),
    ("zpool", "ZPOOL_STATUS_NON_NATIVE_ASHIFT_IGNORE", "status does not warn of vdevs with smaller sectors than their devices have"),
    ("zpool", "ZFS_VDEV_DEVID_OPT_OUT", "devices are not found by it"),
    ("zpool", "ZFS_MODULE_TIMEOUT", "there is no kernel module to wait for"),
    ("zfs", "ZFS_MODULE_TIMEOUT", "there is no kernel module to wait for"),
    ("zfs", "ZFS_MOUNT_HELPER", "file systems are mounted without mount(8)"),
    ("zfs", "ZFS_SET_PIPE_MAX", "the size of pipes is left alone"),
];

/// Whether a page is of those that heed something.
pub enum Heeded {
    /// Its command does, or all of its tool do.
    Whole,
    /// It is the page of a tool, of which these commands do.
    By(Vec<&'static str>),
    /// None does.
    No,
}

/// Whether the page of a command, or of a tool, is of `readers`.
pub fn heeded(readers: &'static [&'static str], tool: &str, command: &str) -> Heeded {
    let whole = format!("{tool} {command}");
    if readers.iter().any(|reader| ["", tool, whole.trim_end()].contains(reader)) {
        return Heeded::Whole;
    }
    let of_tool = readers.iter().filter_map(|reader| reader.strip_prefix(tool)?.strip_prefix(' '));
    let some: Vec<&str> = of_tool.filter(|_| command.is_empty()).collect();
    if some.is_empty() { Heeded::No } else { Heeded::By(some) }
}

/// The variables that matter to a command, with what each does. `command` is empty for the page of the whole tool, which has those
/// of all its commands.
pub fn of_command(tool: &str, command: &str) -> Vec<(&'static str, String)> {
    let whole = format!("{tool} {command}");
    let mut rows: Vec<(&'static str, String)> = Vec::new();
    for variable in VARIABLES {
        match heeded(variable.readers, tool, command) {
            Heeded::Whole => rows.push((variable.name, variable.about.into())),
            Heeded::By(some) => {
                rows.push((variable.name, format!("{} Of {}.", variable.about, some.join(", "))));
            }
            Heeded::No => {}
        }
    }
    if SCRIPTED.contains(&whole.as_str()) {
        rows.extend(OF_SCRIPTS.iter().map(|(name, about)| (*name, (*about).to_string())));
    }
    if command.is_empty() {
        let not_read = NOT_READ.iter().filter(|(of, ..)| *of == tool);
        rows.extend(not_read.map(|(_, name, why)| (*name, format!("It is not read: {why}."))));
    }
    rows
}

#[cfg(test)]
mod tests;
