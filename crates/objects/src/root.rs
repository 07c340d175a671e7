//! The root of a group: what replaces uberblocks and labels on a disk.
//!
//! # On the store
//!
//! Numbers, then counted texts and lists, then the trailer with the checksum (`frame`):
//!
//! | part | what for |
//! |---|---|
//! | guid, sequence, mark, host, group | which space, which root of it, which import has written it |
//! | next, tails | where addresses and names go on: the present epoch first, then the ends of earlier ones |
//! | totals, directory, logs, inline | the index: its sums, its last checkpoint, and what has changed since |
//! | payload | what the user handed over: uberblock and configuration |
//!
//! # Invariants
//!
//! - There is at least one tail, and [`TAILS`] at most: a root without an epoch is damaged.
//! - What can be decoded is encoded to the same root again.
//! - No two imports write the same bytes: each has a random mark.

use cenote_format::DecodeError;

use crate::frame::{self, Cursor, Kind};
use crate::id::{COUNTERS, EPOCHS, Id};
use crate::{ADDRESSES, SECTOR};

/// Epochs whose ends are looked at by an import.
pub const TAILS: usize = 64;

/// The end of an epoch: what was uploaded and is named by no root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// The epoch.
    pub epoch: u32,
    /// Objects with this counter and above.
    pub counter: u64,
    /// Objects below it.
    pub loose: Vec<u64>,
}

/// Sums over the index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Objects with blocks.
    pub objects: u64,
    /// Bytes of blocks in them.
    pub stored: u64,
    /// Bytes of blocks that are allocated.
    pub live: u64,
}

/// What a group leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// The space, for ever.
    pub guid: u64,
    /// Roots written before this one.
    pub sequence: u64,
    /// Which host has it, for messages.
    pub host: String,
    /// A random mark of the import, so that no two hosts write the same bytes.
    pub mark: u64,
    /// The group's number.
    pub group: u64,
    /// Where addresses go on.
    pub next: u64,
    /// This epoch and where its names go on, then earlier ones; at least one.
    pub tails: Vec<Tail>,
    /// Sums over the index.
    pub totals: Totals,
    /// The directory of the last checkpoint and its length.
    pub directory: Option<(Id, u64)>,
    /// Objects of log since then, and their lengths.
    pub logs: Vec<(Id, u64)>,
    /// The log after them.
    pub inline: Vec<u8>,
    /// What the user handed over.
    pub payload: Vec<u8>,
}

impl Root {
    /// The first root of an empty space, whose names begin in `epoch`. `numbers`: the guid and the mark.
    pub(crate) fn first(numbers: (u64, u64), host: &str, epoch: u32, payload: &[u8]) -> Root {
        let (guid, mark) = numbers;
        Root {
            guid,
            sequence: 0,
            host: host.into(),
            mark,
            group: 0,
            next: 0,
            tails: vec![Tail { epoch, counter: 0, loose: Vec::new() }],
            totals: Totals::default(),
            directory: None,
            logs: Vec::new(),
            inline: Vec::new(),
            payload: payload.into(),
        }
    }

    /// The import that wrote it.
    pub fn epoch(&self) -> u32 {
        self.tails.first().map_or(0, |tail| tail.epoch)
    }

    /// With the trailer.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.payload.len() + self.inline.len() + 256);
        for number in [self.guid, self.sequence, self.mark, self.group, self.next / SECTOR] {
            frame::put(&mut out, number);
        }
        frame::put_bytes(&mut out, self.host.as_bytes());
        frame::put(&mut out, self.tails.len() as u64);
        for tail in &self.tails {
            frame::put(&mut out, u64::from(tail.epoch));
            frame::put(&mut out, tail.counter);
            frame::put(&mut out, tail.loose.len() as u64);
            tail.loose.iter().for_each(|counter| frame::put(&mut out, *counter));
        }
        for number in [self.totals.objects, self.totals.stored, self.totals.live] {
            frame::put(&mut out, number);
        }
        let objects = [self.directory.as_slice(), &self.logs];
        for list in objects {
            frame::put(&mut out, list.len() as u64);
            for (id, length) in list {
                frame::put(&mut out, id.0);
                frame::put(&mut out, *length);
            }
        }
        frame::put_bytes(&mut out, &self.inline);
        frame::put_bytes(&mut out, &self.payload);
        frame::seal(Kind::Root, out)
    }

    /// What [`Self::encode`] has written.
    ///
    /// # Errors
    /// It is damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (_, body) = frame::open(Kind::Root, bytes)?;
        let mut cursor = Cursor::new(Kind::Root, body);
        let (guid, sequence) = (cursor.number()?, cursor.number()?);
        let (mark, group) = (cursor.number()?, cursor.number()?);
        let next = cursor.at_most(ADDRESSES / SECTOR)? * SECTOR;
        let host = String::from_utf8_lossy(cursor.counted()?).into_owned();
        let mut tails = Vec::new();
        for _ in 0..cursor.at_most(TAILS as u64)? {
            let epoch = cursor.at_most(u64::from(EPOCHS - 1))? as u32;
            let counter = cursor.at_most(COUNTERS)?;
            let mut loose = Vec::new();
            for _ in 0..cursor.count()? {
                loose.push(cursor.at_most(COUNTERS - 1)?);
            }
            tails.push(Tail { epoch, counter, loose });
        }
        if tails.is_empty() {
            return Err(cursor.invalid("no epoch"));
        }
        let (objects, stored) = (cursor.number()?, cursor.number()?);
        let totals = Totals { objects, stored, live: cursor.number()? };
        let directory = decode_objects(&mut cursor)?;
        if directory.len() > 1 {
            return Err(cursor.invalid("two directories"));
        }
        let directory = directory.first().copied();
        let logs = decode_objects(&mut cursor)?;
        let inline = cursor.counted()?.to_vec();
        let payload = cursor.counted()?.to_vec();
        cursor.end()?;
        Ok(Self {
            guid,
            sequence,
            host,
            mark,
            group,
            next,
            tails,
            totals,
            directory,
            logs,
            inline,
            payload,
        })
    }
}

/// Objects and their lengths.
pub(crate) fn decode_objects(cursor: &mut Cursor<'_>) -> Result<Vec<(Id, u64)>, DecodeError> {
    let mut objects = Vec::new();
    for _ in 0..cursor.count()? {
        objects.push((Id(cursor.number()?), cursor.at_most(u64::from(u32::MAX))?));
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_root_comes_back(
            numbers: [u64; 7], host: String, inline: Vec<u8>, payload: Vec<u8>,
            loose in prop::collection::vec(0..COUNTERS, 0..5),
            logs in prop::collection::vec((any::<u64>().prop_map(Id), 0..1_u64 << 32), 0..5),
        ) {
            let [guid, sequence, mark, group, objects, stored, live] = numbers;
            let tails = vec![
                Tail { epoch: EPOCHS - 1, counter: COUNTERS, loose },
                Tail { epoch: 1, counter: 0, loose: vec![] },
            ];
            let totals = Totals { objects, stored, live };
            let root = Root {
                guid, sequence, host, mark, group, next: ADDRESSES, tails, totals,
                directory: logs.first().copied(), logs, inline, payload,
            };
            prop_assert_eq!(Root::decode(&root.encode()).unwrap(), root);
        }

        #[test]
        fn any_body_is_an_error_or_a_root(body: Vec<u8>) {
            if let Ok(root) = Root::decode(&frame::seal(Kind::Root, body)) {
                prop_assert_eq!(Root::decode(&root.encode()).unwrap(), root);
            }
        }
    }
}
