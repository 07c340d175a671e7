//! What zedlets find in their environment (`zed_event_service`).
//!
//! Each pair of an event is a variable: `ZEVENT_`, and its name in capitals, with `_` for all but letters and digits.
//! Numbers are decimal, guids `0x` and 16 digits, arrays words with a space between them. The states of
//! vdevs and pools are there in words as well (`ZEVENT_VDEV_STATE_STR`).

use super::TIME;
use cenote_command::{Caller, OPENZFS_VERSION, clock};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::events::state_name;
use std::fmt::Display;
use std::path::Path;

/// The variables that name OpenZFS's commands, and the names under which this program does what they do.
pub(super) const COMMANDS: [(&str, &str); 5] =
    [("ZDB", "zdb"), ("ZED", "cenote"), ("ZFS", "zfs"), ("ZINJECT", "zinject"), ("ZPOOL", "zpool")];

/// Where programs are looked for (`_PATH_STDPATH`).
const PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin";
/// What zedlets get from the daemon's own environment: the time zone (as from ZED), and where this daemon, its
/// user's files and its settings are.
const KEPT: &[&str] = &[
    "TZ",
    "CENOTE_SOCKET",
    "CENOTE_CACHEFILE",
    "HOME",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];
/// What ZED says of a value that it cannot say in a variable.
const NOT_SAID: &str = "_NOT_IMPLEMENTED_";

/// The variables of an event.
pub(super) fn of_event(payload: &NvList) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for (name, value) in &payload.pairs {
        variables.push((variable(name), text(name, value)));
        if let ("vdev_state" | "vdev_laststate", NvValue::Uint64(state)) = (name.as_str(), value) {
            variables.push((variable(&format!("{name}_str")), state_name(*state).into()));
        }
        if let ("pool_state", NvValue::Uint64(state)) = (name.as_str(), value) {
            variables.push((variable("pool_state_str"), pool_state_name(*state).into()));
        }
    }
    let class = payload.str("class").unwrap_or_default();
    variables.push((variable("subclass"), subclass(class).into()));
    if let Some(NvValue::Int64Array(time)) = payload.get("time")
        && let [seconds, nanoseconds] = *time.as_slice()
    {
        let caller = Caller::of_process();
        variables.push((variable("time_secs"), seconds.to_string()));
        variables.push((variable("time_nsecs"), nanoseconds.to_string()));
        variables.push((variable("time_string"), clock::format(&caller, seconds, TIME)));
    }
    // A variable ends where a byte of value 0 stands: names and paths from a disk may have one.
    variables.iter_mut().for_each(|(_, value)| value.retain(|c| c != '\0'));
    variables
}

/// The variables that do not depend on the event. `commands`: the directory with links to this program.
pub(super) fn of_programs(commands: &Path) -> Vec<(String, String)> {
    let mut variables = vec![("IFS".into(), " \t\n".into()), ("PATH".into(), PATH.into())];
    for (name, command) in COMMANDS {
        variables.push((name.to_string(), commands.join(command).display().to_string()));
    }
    variables.push(("ZFS_ALIAS".into(), format!("zfs-{OPENZFS_VERSION}-1")));
    variables.push(("ZFS_VERSION".into(), OPENZFS_VERSION.into()));
    variables.push(("ZFS_RELEASE".into(), "1".into()));
    let kept = KEPT.iter().filter_map(|name| Some((name.to_string(), std::env::var(name).ok()?)));
    variables.extend(kept);
    variables
}

/// What follows the first three parts of a class, which are `….fs.zfs`.
pub(super) fn subclass(class: &str) -> &str {
    class.splitn(4, '.').nth(3).unwrap_or(class)
}

/// The name of a pool's state (`zpool_pool_state_to_name`).
fn pool_state_name(state: u64) -> &'static str {
    match state {
        0 => "ACTIVE",
        1 => "EXPORTED",
        2 => "DESTROYED",
        3 => "SPARE",
        4 => "L2CACHE",
        5 => "UNINITIALIZED",
        6 => "UNAVAIL",
        7 => "POTENTIALLY_ACTIVE",
        _ => "UNKNOWN",
    }
}

fn variable(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("ZEVENT_{}", name.chars().map(letter).collect::<String>())
}

fn words<T: Display>(list: &[T]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn text(name: &str, value: &NvValue) -> String {
    let is_guid = name.ends_with("_guid") || name.ends_with("_guids");
    let number = |n: &u64| if is_guid { format!("0x{n:016X}") } else { n.to_string() };
    match value {
        NvValue::Boolean => "1".into(),
        NvValue::BooleanValue(is) => u8::from(*is).to_string(),
        NvValue::Byte(n) | NvValue::Uint8(n) => n.to_string(),
        NvValue::Int8(n) => n.to_string(),
        NvValue::Int16(n) => n.to_string(),
        NvValue::Uint16(n) => n.to_string(),
        NvValue::Int32(n) => n.to_string(),
        NvValue::Uint32(n) => n.to_string(),
        NvValue::Int64(n) | NvValue::Hrtime(n) => n.to_string(),
        NvValue::Uint64(n) => number(n),
        NvValue::Double(n) => n.to_string(),
        NvValue::String(text) => text.clone(),
        NvValue::Int8Array(list) => words(list),
        NvValue::Uint8Array(list) => words(list),
        NvValue::Int16Array(list) => words(list),
        NvValue::Uint16Array(list) => words(list),
        NvValue::Int32Array(list) => words(list),
        NvValue::Uint32Array(list) => words(list),
        NvValue::Int64Array(list) => words(list),
        NvValue::Uint64Array(list) => words(&list.iter().map(number).collect::<Vec<_>>()),
        NvValue::StringArray(list) => words(list),
        NvValue::NvList(_)
        | NvValue::NvListArray(_)
        | NvValue::ByteArray(_)
        | NvValue::BooleanArray(_) => NOT_SAID.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_become_variables() {
        let mut payload = NvList::default();
        payload.set("class", NvValue::String("ereport.fs.zfs.vdev.open_failed".into()));
        payload.set("pool_guid", NvValue::Uint64(0xabc));
        payload.set("vdev_spare_guids", NvValue::Uint64Array(vec![1, 2]));
        payload.set("vdev_state", NvValue::Uint64(5));
        payload.set("zio_err", NvValue::Int32(-5));
        payload.set("history hostname", NvValue::String("a\0b".into()));
        payload.set("detector", NvValue::NvList(NvList::default()));
        payload.set("time", NvValue::Int64Array(vec![86_400, 7]));
        let found = of_event(&payload);
        let of = |name: &str| found.iter().find(|(n, _)| n == name).unwrap().1.as_str();
        assert_eq!(of("ZEVENT_SUBCLASS"), "vdev.open_failed");
        assert_eq!(of("ZEVENT_POOL_GUID"), "0x0000000000000ABC");
        assert_eq!(of("ZEVENT_VDEV_SPARE_GUIDS"), "0x0000000000000001 0x0000000000000002");
        assert_eq!((of("ZEVENT_VDEV_STATE"), of("ZEVENT_VDEV_STATE_STR")), ("5", "FAULTED"));
        assert_eq!(of("ZEVENT_ZIO_ERR"), "-5");
        assert_eq!(of("ZEVENT_HISTORY_HOSTNAME"), "ab");
        assert_eq!(of("ZEVENT_DETECTOR"), "_NOT_IMPLEMENTED_");
        assert_eq!((of("ZEVENT_TIME"), of("ZEVENT_TIME_NSECS")), ("86400 7", "7"));
        assert!(of("ZEVENT_TIME_STRING").starts_with("1970-01-0"));
    }

    #[test]
    fn a_class_of_few_parts_is_its_own_subclass() {
        assert_eq!(subclass("resource.fs.zfs.statechange"), "statechange");
        assert_eq!(subclass("odd.class"), "odd.class");
    }
}
