//! Writing the history (`spa_history_write`): records, and the ring they go into.
//!
//! The records up to and including the first command (`zpool create`) are never overwritten: its end
//! becomes the start of the ring. Of the others the oldest make room for new ones.
//!
//! Invariant: between `bof` and `eof` there are always whole records, and at least one byte of the ring is
//! free.

use crate::config_write::{entry, kernel_text, nodename, set_entry};
use cenote_dmu::write::{NewObject, OpenObjectSet, Result, WriteError};
use cenote_format::dmu::DmuType;
use cenote_format::nvlist::{NvList, NvValue};
use std::time::Duration;

/// Bytes of the blocks of the history (`SPA_OLD_MAXBLOCKSIZE`).
const BLOCK: u64 = 128 << 10;

/// Smallest ring.
const MIN_RING: u64 = 128 << 10;

/// Words of the bonus buffer: create_len, size, bof, eof, records lost.
const WORDS: usize = 5;

/// Longest command that is kept, in bytes (`HIS_MAX_RECORD_LEN` without the end of the text).
const MAX_COMMAND: usize = 8192;

/// What the zone is called on a system without zones.
const ZONE: &str = "linux";

/// A record of a command: its words, joined by blanks, cut off where OpenZFS does (`zfs_save_arguments`); the user id
/// of the user that gave it; seconds since 1970.
pub fn command(line: &str, who: u64, now: u64) -> NvList {
    let line = line.get(..line.floor_char_boundary(MAX_COMMAND)).unwrap_or(line);
    let mut record = NvList::default();
    record.set("history command", NvValue::String(line.into()));
    record.set("history zone", NvValue::String(ZONE.into()));
    record.set("history who", NvValue::Uint64(who));
    record.set("history time", NvValue::Uint64(now));
    finished(record)
}

/// A record of something that happened in transaction group `txg`: `name` is what (`snapshot`,
/// `set`), `message` the particulars, `dataset` the name and the object of the dataset that it
/// happened to, if any.
pub fn internal(
    name: &str,
    message: &str,
    dataset: Option<(&str, u64)>,
    txg: u64,
    now: u64,
) -> NvList {
    let mut record = NvList::default();
    if let Some((dataset, object)) = dataset {
        record.set("dsname", NvValue::String(dataset.into()));
        record.set("dsid", NvValue::Uint64(object));
    }
    record.set("history internal str", NvValue::String(message.into()));
    record.set("internal_name", NvValue::String(name.into()));
    record.set("history txg", NvValue::Uint64(txg));
    record.set("history time", NvValue::Uint64(now));
    finished(record)
}

/// A record of a request that OpenZFS's kernel module would have served: its name there (`create`,
/// `snapshot`), what it was asked with, by whom, and the time it has taken so far.
pub fn ioctl(name: &str, input: NvList, who: u64, elapsed: Duration, now: u64) -> NvList {
    let mut record = NvList::default();
    record.set("ioctl", NvValue::String(name.into()));
    record.set("in_nvl", NvValue::NvList(input));
    let elapsed = i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX);
    record.set("elapsed_ns", NvValue::Int64(elapsed));
    record.set("history zone", NvValue::String(ZONE.into()));
    record.set("history who", NvValue::Uint64(who));
    record.set("history time", NvValue::Uint64(now));
    finished(record)
}

/// The record of the host that opened or created the pool: `operation` is `create`, `open` or `import`.
pub fn version(operation: &str, pool: u64, txg: u64, now: u64) -> NvList {
    let message = format!(
        "pool version {}; software version {}-{}; uts {} {} {} {}",
        pool,
        "cenote",
        env!("CARGO_PKG_VERSION"),
        nodename(),
        kernel_text("osrelease"),
        kernel_text("version"),
        std::env::consts::ARCH
    );
    internal(operation, &message, None, txg, now)
}

fn finished(mut record: NvList) -> NvList {
    record.set("history hostname", NvValue::String(nodename()));
    record
}

/// Creates the history of a pool with `space` bytes for data (`spa_history_create_obj`): a thousandth of that, 128 KiB
/// to 1 GiB. Returns its object.
///
/// # Errors
/// The MOS cannot be changed.
pub fn create(mos: &mut OpenObjectSet, space: u64) -> Result<u64> {
    let size = (space / 1000).clamp(MIN_RING, super::MAX_RING);
    let mut new = NewObject::new(DmuType::SPA_HISTORY, BLOCK);
    new.bonus_kind = DmuType::SPA_HISTORY_OFFSETS;
    new.bonus = Ends { create_len: 0, size, bof: 0, eof: 0, lost: 0 }.encode();
    let object = mos.allocate(&new)?;
    set_entry(mos, "history", object)?;
    Ok(object)
}

/// Adds a record (`spa_history_log_sync`): see [`command`], [`internal`] and [`ioctl`]. A pool without a history gets
/// one. A record that the ring could not hold is left out.
///
/// # Errors
/// The MOS cannot be read or changed.
pub fn append(mos: &mut OpenObjectSet, record: &NvList) -> Result<()> {
    let object = match entry(mos, "history")? {
        Some(object) => object,
        None => create(mos, 0)?,
    };
    let mut ends = Ends::of(mos, object)?;
    let packed = record.encode();
    let mut data = (packed.len() as u64).to_le_bytes().to_vec();
    data.extend(packed);
    let len = data.len() as u64;
    if len >= ends.room() {
        tracing::warn!(bytes = len, "a record too long for the history");
        return Ok(());
    }
    // One byte stays free, lest a full ring look like an empty one.
    while ends.room() - (ends.eof - ends.bof) <= len {
        ends.drop_oldest(mos, object)?;
    }
    ends.write(mos, object, &data)?;
    if ends.create_len == 0 && record.contains("history command") {
        (ends.create_len, ends.bof) = (ends.eof, ends.eof);
    }
    mos.set_bonus(object, DmuType::SPA_HISTORY_OFFSETS, &ends.encode())
}

/// The bonus buffer.
struct Ends {
    create_len: u64,
    size: u64,
    bof: u64,
    eof: u64,
    lost: u64,
}

impl Ends {
    fn of(mos: &mut OpenObjectSet, object: u64) -> Result<Ends> {
        let dnode = mos.dnode(object)?;
        let words: Vec<u64> = dnode.bonus.chunks_exact(8).map(word).collect();
        let [create_len, size, bof, eof, lost] = *words.first_chunk::<WORDS>().unwrap_or(&[0; 5]);
        let ends = Ends { create_len, size, bof, eof, lost };
        if dnode.kind == DmuType::SPA_HISTORY && super::sane(create_len, size, bof, eof) {
            return Ok(ends);
        }
        Err(WriteError::Invalid { object, why: "history: impossible offsets".into() })
    }

    fn encode(&self) -> Vec<u8> {
        let words: [u64; WORDS] = [self.create_len, self.size, self.bof, self.eof, self.lost];
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    /// Bytes of the ring.
    fn room(&self) -> u64 {
        self.size - self.create_len
    }

    /// The ring from logical offset `at`: where it lies, and the bytes up to where it wraps.
    fn place(&self, at: u64) -> (u64, u64) {
        let physical = super::physical(at, self.create_len, self.size);
        (physical, self.size - physical)
    }

    /// Goes on to the next record.
    fn drop_oldest(&mut self, mos: &mut OpenObjectSet, object: u64) -> Result<()> {
        let mut len = [0; 8];
        let (at, before_wrap) = self.place(self.bof);
        let (first, rest) = len.split_at_mut(before_wrap.min(8) as usize);
        mos.read(object, at, first)?;
        mos.read(object, self.create_len, rest)?;
        let next = u64::from_le_bytes(len).checked_add(8).and_then(|n| self.bof.checked_add(n));
        // A length that cannot be means that nothing of what follows can be found either.
        self.bof = next.filter(|n| *n <= self.eof).unwrap_or(self.eof);
        // A count of the disk, by which nothing goes.
        self.lost = self.lost.saturating_add(1);
        Ok(())
    }

    fn write(&mut self, mos: &mut OpenObjectSet, object: u64, data: &[u8]) -> Result<()> {
        let (at, before_wrap) = self.place(self.eof);
        let (first, rest) = data.split_at(data.len().min(before_wrap as usize));
        mos.write(object, at, first)?;
        if !rest.is_empty() {
            mos.write(object, self.create_len, rest)?;
        }
        self.eof = self.eof.checked_add(data.len() as u64).ok_or_else(|| WriteError::Invalid {
            object,
            why: "history: impossible offsets".into(),
        })?;
        Ok(())
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_write::tests::empty_mos;

    /// All records as they would be read.
    fn records(mos: &mut OpenObjectSet) -> (Vec<NvList>, Ends) {
        let object = entry(mos, "history").unwrap().unwrap();
        let ends = Ends::of(mos, object).unwrap();
        let mut out = Vec::new();
        for (from, to) in [(0, ends.create_len), (ends.bof, ends.eof)] {
            let mut data = vec![0; (to - from) as usize];
            for (i, byte) in data.iter_mut().enumerate() {
                let at = from + i as u64;
                let at = if at < ends.create_len { at } else { ends.place(at).0 };
                mos.read(object, at, std::slice::from_mut(byte)).unwrap();
            }
            let used = super::super::decode_records(&data, &mut out).unwrap();
            assert_eq!(used, data.len());
        }
        (out, ends)
    }

    #[test]
    fn long_commands_are_cut_off() {
        let kept = |line: &str| command(line, 0, 0).str("history command").unwrap().to_string();
        assert_eq!(kept("zfs create tank/a"), "zfs create tank/a");
        let long = format!("zfs set a:b={} tank", "\u{e4}".repeat(9000));
        let kept = kept(&long);
        // No character is cut in two.
        assert!(
            kept.len() <= MAX_COMMAND && kept.len() > MAX_COMMAND - 2 && long.starts_with(&kept)
        );
    }

    #[test]
    fn the_first_command_is_kept_and_the_oldest_others_go() {
        let mut mos = empty_mos();
        create(&mut mos, 0).unwrap();
        append(&mut mos, &version("create", 5000, 4, 1)).unwrap();
        append(&mut mos, &command("zpool create tank /a", 0, 2)).unwrap();
        let (first, ends) = records(&mut mos);
        assert_eq!((first.len(), ends.bof, ends.eof), (2, ends.create_len, ends.create_len));
        let line = |i: u64| format!("zfs create tank/{i} {}", "x".repeat(i as usize % 977));
        let count = 600;
        for i in 0..count {
            append(&mut mos, &command(&line(i), 1000, i)).unwrap();
        }
        let (all, ends) = records(&mut mos);
        assert!(ends.lost > 0 && ends.eof > 2 * ends.size);
        assert_eq!(all.len() as u64 + ends.lost, 2 + count);
        assert_eq!(all[1].str("history command"), Some("zpool create tank /a"));
        for (i, record) in all[2..].iter().enumerate() {
            let i = i as u64 + ends.lost;
            assert_eq!(record.str("history command"), Some(line(i).as_str()));
            assert_eq!(record.u64("history who"), Some(1000));
        }
    }

    #[test]
    fn records_too_long_are_left_out() {
        let mut mos = empty_mos();
        append(&mut mos, &command("first", 0, 0)).unwrap();
        append(&mut mos, &internal("set", &"x".repeat(MIN_RING as usize), None, 4, 0)).unwrap();
        assert_eq!(records(&mut mos).0.len(), 1);
    }

    #[test]
    fn records_say_what_openzfs_says() {
        let record = internal("snapshot", " ", Some(("tank@a", 77)), 9, 5);
        let time = |t: u64| format!("T{t}");
        let line = super::super::format_record(&record, true, false, &time).unwrap();
        assert_eq!(line, "T5 [txg:9] snapshot tank@a (77)  ");
        let record = command("zfs list", 3, 5);
        assert_eq!(record.str("history zone"), Some("linux"));
    }
}
