//! The pool's history (`spa_history_get`): every command and event that changed it.
//!
//! The MOS entry `history` names an object that is a ring buffer of records. Its bonus buffer
//! (`spa_history_phys_t`) holds five integers:
//!
//! ```text
//! pool_create_len   end of the records of `zpool create`, which are never overwritten
//! phys_max_off      size of the buffer
//! bof, eof          logical offsets of the oldest record and of the end
//! records_lost      records overwritten
//!
//! 0       pool_create_len                       phys_max_off
//! | create | ... newest | oldest ...                |      logical offset o lies at
//!                       ^ eof, bof                           create_len + (o - create_len) % rest
//! ```
//!
//! A record is its length (64 bits, little-endian whatever the machine) and a packed nvlist.

mod write;

pub use write::{append, command, create, internal, ioctl, version};

use crate::directory::Directory;
use cenote_dmu::{Error, Object, Result};
use cenote_format::nvlist::{NvList, NvValue};

/// Largest ring that is believed; OpenZFS makes at most 1 GiB, usually 32 MiB.
const MAX_RING: u64 = 1 << 30;

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// Longest record that is read.
const MAX_RECORD: u64 = 64 << 20;

/// Reads all records, oldest first; empty if the pool keeps no history.
pub(crate) fn read(directory: &Directory) -> Result<Vec<NvList>> {
    match directory.object_of("history")? {
        Some(object) => Ring::open(object)?.records(),
        None => Ok(Vec::new()),
    }
}

/// The records behind a place, and the place behind them all; see [`crate::Pool::history_since`].
pub(crate) fn read_since(directory: &Directory, place: Option<u64>) -> Result<(Vec<NvList>, u64)> {
    let Some(object) = directory.object_of("history")? else { return Ok((Vec::new(), 0)) };
    let (ring, mut records) = (Ring::open(object)?, Vec::new());
    if let Some(place) = place.filter(|place| *place < ring.eof) {
        ring.records_of(place.max(ring.bof), ring.eof, &mut records)?;
    }
    Ok((records, ring.eof))
}

struct Ring {
    object: Object,
    create_len: u64,
    size: u64,
    bof: u64,
    eof: u64,
}

impl Ring {
    fn open(object: Object) -> Result<Ring> {
        let [create_len, size, bof, eof] = object.bonus().u64s::<4>(0).map_err(|source| {
            Error::Decode { objset: object.objset().id(), object: object.number(), source }
        })?;
        let ring = Ring { object, create_len, size, bof, eof };
        let sane = sane(create_len, size, bof, eof);
        if sane { Ok(ring) } else { Err(ring.corrupt("impossible offsets".into())) }
    }

    fn corrupt(&self, why: String) -> Error {
        let objset = self.object.objset().id();
        Error::Corrupt { objset, object: self.object.number(), why: format!("history: {why}") }
    }

    /// Reads logical bytes: `at..at + buf.len()`.
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        if at < self.create_len {
            return self.object.read(at, buf);
        }
        let physical = physical(at, self.create_len, self.size);
        let before_wrap = usize::try_from(self.size - physical).unwrap_or(usize::MAX);
        let (first, rest) = buf.split_at_mut(before_wrap.min(buf.len()));
        self.object.read(physical, first)?;
        if rest.is_empty() { Ok(()) } else { self.object.read(self.create_len, rest) }
    }

    fn records(&self) -> Result<Vec<NvList>> {
        let mut out = Vec::new();
        self.records_of(0, self.create_len, &mut out)?;
        self.records_of(self.bof, self.eof, &mut out)?;
        Ok(out)
    }

    /// Decodes the records of the logical range; a last one that is cut off is left out.
    fn records_of(&self, start: u64, end: u64, out: &mut Vec<NvList>) -> Result<()> {
        let (mut at, mut pending) = (start, Vec::new());
        while at < end {
            let len = (end - at).min(CHUNK as u64) as usize;
            let old = pending.len();
            pending.resize(old + len, 0);
            self.read(at, pending.get_mut(old..).unwrap_or_default())?;
            at += len as u64;
            let used = decode_records(&pending, out).map_err(|why| self.corrupt(why))?;
            pending.drain(..used);
        }
        Ok(())
    }
}

/// Whether the offsets in the bonus buffer can be.
fn sane(create_len: u64, size: u64, bof: u64, eof: u64) -> bool {
    create_len < size
        && size <= MAX_RING
        && create_len <= bof
        && bof <= eof
        && eof - bof <= size - create_len
}

/// Where in the ring a logical offset past the records of `zpool create` lies.
fn physical(at: u64, create_len: u64, size: u64) -> u64 {
    create_len + (at - create_len) % (size - create_len)
}

/// Decodes whole records off the front of `data`; returns the bytes used.
fn decode_records(data: &[u8], out: &mut Vec<NvList>) -> std::result::Result<usize, String> {
    let mut used = 0;
    while let Some(head) = data.get(used..used + 8).and_then(|h| <[u8; 8]>::try_from(h).ok()) {
        let len = u64::from_le_bytes(head);
        if len > MAX_RECORD {
            return Err(format!("a record of {len} bytes"));
        }
        let Some(record) = data.get(used + 8..used + 8 + len as usize) else { break };
        out.push(NvList::decode(record).map_err(|e| e.to_string())?);
        used += 8 + len as usize;
    }
    Ok(used)
}

/// Names of the numbered events of pools from before version 5000 (`zfs_history_event_names`).
const LEGACY_EVENTS: [&str; 41] = [
    "invalid event",
    "pool create",
    "vdev add",
    "pool remove",
    "pool destroy",
    "pool export",
    "pool import",
    "vdev attach",
    "vdev replace",
    "vdev detach",
    "vdev online",
    "vdev offline",
    "vdev upgrade",
    "pool clear",
    "pool scrub",
    "pool property set",
    "create",
    "clone",
    "destroy",
    "destroy_begin_sync",
    "inherit",
    "property set",
    "quota set",
    "permission update",
    "permission remove",
    "permission who remove",
    "promote",
    "receive",
    "rename",
    "reservation set",
    "replay_inc_sync",
    "replay_full_sync",
    "rollback",
    "snapshot",
    "filesystem version upgrade",
    "refquota set",
    "refreservation set",
    "pool scrub done",
    "user hold",
    "user release",
    "pool split",
];

/// The name of a numbered event; `None`: there is no such event.
pub fn legacy_event(number: u64) -> Option<&'static str> {
    LEGACY_EVENTS.get(usize::try_from(number).ok()?).copied()
}

/// A record as `zpool history` shows it: without the newline, `time` prints seconds since 1970 (as
/// [`crate::time::history_time`] does). `internal` is `-i`, `long` is `-l`. `None`: only shown
/// with `-i`.
pub fn format_record(
    record: &NvList,
    internal: bool,
    long: bool,
    time: &dyn Fn(u64) -> String,
) -> Option<String> {
    let mut line = record.u64("history time").map(time).unwrap_or_default();
    if let Some(ns) = elapsed(record) {
        line.push_str(&format!(" ({}ms)", ns / 1_000_000));
    }
    let text = |name| record.str(name).unwrap_or("");
    let number = |name| record.u64(name).unwrap_or(0);
    if record.get("history command").is_some() {
        line.push_str(&format!(" {}", text("history command")));
    } else if !internal {
        return None;
    } else if let Some(event) = record.u64("history internal event") {
        match legacy_event(event) {
            Some(name) => line.push_str(&format!(
                " [internal {name} txg:{}] {}",
                number("history txg"),
                text("history internal str")
            )),
            None => line.push_str(&unrecognized(record)),
        }
    } else if record.get("internal_name").is_some() {
        line.push_str(&format!(" [txg:{}] {}", number("history txg"), text("internal_name")));
        if record.get("dsname").is_some() {
            line.push_str(&format!(" {} ({})", text("dsname"), number("dsid")));
        }
        line.push_str(&format!(" {}", text("history internal str")));
    } else if record.get("ioctl").is_some() {
        line.push_str(&format_ioctl(record));
    } else {
        line.push_str(&unrecognized(record));
    }
    if long {
        line.push_str(&whereabouts(record));
    }
    Some(line)
}

fn elapsed(record: &NvList) -> Option<i64> {
    match record.get("elapsed_ns")? {
        NvValue::Int64(ns) => Some(*ns),
        _ => record.u64("elapsed_ns").and_then(|ns| i64::try_from(ns).ok()),
    }
}

fn unrecognized(record: &NvList) -> String {
    let mut out = String::from(" unrecognized record:\n");
    dump(record, 4, &mut out);
    out
}

fn format_ioctl(record: &NvList) -> String {
    let mut out = format!(" ioctl {}\n", record.str("ioctl").unwrap_or(""));
    for (name, title) in [("in_nvl", "input"), ("out_nvl", "output")] {
        if let Some(list) = record.list(name) {
            out.push_str(&format!("    {title}:\n"));
            dump(list, 8, &mut out);
        }
    }
    let signed = |name| match record.get(name) {
        Some(NvValue::Int64(v)) => Some(*v),
        _ => None,
    };
    if let Some(size) = signed("out_size") {
        let kb = size / 1024;
        out.push_str(&format!("    output nvlist omitted; original size: {kb}KB\n"));
    }
    if let Some(errno) = signed("errno") {
        out.push_str(&format!("    errno: {errno}\n"));
    }
    out
}

/// `-l`: which user did it on which host.
fn whereabouts(record: &NvList) -> String {
    let mut out = String::from(" [");
    if let Some(who) = record.u64("history who") {
        out.push_str(&format!("user {who} "));
        if let Some(name) = user_name(who) {
            out.push_str(&format!("({name}) "));
        }
    }
    if let Some(host) = record.str("history hostname") {
        out.push_str(&format!("on {host}"));
    }
    if let Some(zone) = record.str("history zone") {
        out.push_str(&format!(":{zone}"));
    }
    out.push(']');
    out
}

fn user_name(uid: u64) -> Option<String> {
    let uid = nix::unistd::Uid::from_raw(u32::try_from(uid).ok()?);
    Some(nix::unistd::User::from_uid(uid).ok()??.name)
}

/// An nvlist, indented, a line for each pair.
fn dump(list: &NvList, indent: usize, out: &mut String) {
    let pad = " ".repeat(indent);
    for (name, value) in &list.pairs {
        match value {
            NvValue::NvList(l) => {
                out.push_str(&format!("{pad}{name}:\n"));
                dump(l, indent + 4, out);
            }
            NvValue::NvListArray(lists) => {
                for (i, l) in lists.iter().enumerate() {
                    out.push_str(&format!("{pad}{name}[{i}]:\n"));
                    dump(l, indent + 4, out);
                }
            }
            NvValue::Boolean => out.push_str(&format!("{pad}{name}\n")),
            other => out.push_str(&format!("{pad}{name}: {}\n", scalar(other))),
        }
    }
}

fn scalar(value: &NvValue) -> String {
    match value {
        NvValue::String(v) => format!("'{v}'"),
        NvValue::BooleanValue(v) => v.to_string(),
        NvValue::Uint64(v) => v.to_string(),
        NvValue::Int64(v) => v.to_string(),
        NvValue::Uint32(v) => v.to_string(),
        NvValue::Int32(v) => v.to_string(),
        NvValue::Uint8(v) => v.to_string(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(pairs: &[(&str, NvValue)]) -> NvList {
        NvList { pairs: pairs.iter().map(|(n, v)| (n.to_string(), v.clone())).collect() }
    }

    #[test]
    fn records_are_cut_out_of_a_stream() {
        let packed =
            record(&[("history command", NvValue::String("zpool create".into()))]).encode();
        let mut data = Vec::new();
        for _ in 0..3 {
            data.extend((packed.len() as u64).to_le_bytes());
            data.extend(&packed);
        }
        let mut out = Vec::new();
        let whole = data.len() - 1;
        let used = decode_records(&data[..whole], &mut out).unwrap();
        assert_eq!((out.len(), used), (2, data.len() / 3 * 2));
        assert!(decode_records(&u64::MAX.to_le_bytes(), &mut out).is_err());
    }

    #[test]
    fn offsets_wrap_behind_the_records_of_creation() {
        assert_eq!(physical(100, 100, 1000), 100);
        assert_eq!(physical(999, 100, 1000), 999);
        assert_eq!(physical(1000, 100, 1000), 100);
        assert_eq!(physical(2000, 100, 1000), 200);
    }

    #[test]
    fn lines() {
        let time = |t: u64| format!("T{t}");
        let command = record(&[
            ("history time", NvValue::Uint64(5)),
            ("history command", NvValue::String("zfs create a/b".into())),
            ("history hostname", NvValue::String("guest".into())),
        ]);
        let line = format_record(&command, false, false, &time).unwrap();
        assert_eq!(line, "T5 zfs create a/b");
        let line = format_record(&command, false, true, &time).unwrap();
        assert_eq!(line, "T5 zfs create a/b [on guest]");
        let event = record(&[
            ("history time", NvValue::Uint64(5)),
            ("history txg", NvValue::Uint64(9)),
            ("internal_name", NvValue::String("snapshot".into())),
            ("dsname", NvValue::String("a@b".into())),
            ("dsid", NvValue::Uint64(77)),
            ("history internal str", NvValue::String(" ".into())),
        ]);
        assert_eq!(format_record(&event, false, false, &time), None);
        let line = format_record(&event, true, false, &time).unwrap();
        assert_eq!(line, "T5 [txg:9] snapshot a@b (77)  ");
    }
}
