//! The log of the index: what one group changed. An import applies the records since the last checkpoint once more.
//!
//! The parts are applied in this order: objects that joined, addresses that were freed, objects that took the place of others, and
//! objects that have been deleted.

use cenote_format::DecodeError;

use crate::ADDRESSES;
use crate::SECTOR;
use crate::frame::{self, Cursor, Kind};
use crate::id::Id;
use crate::page::Entry;

/// An object before it was written anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Old {
    /// First address of its entry.
    pub start: u64,
    /// The object.
    pub id: Id,
}

/// An object that takes the place of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Those that it replaces, in order, at least one.
    pub olds: Vec<Old>,
    /// The new one; the index gives it the live bytes that they have then.
    pub new: Entry,
}

/// What a group changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// Its number.
    pub group: u64,
    /// Objects that joined, in order.
    pub added: Vec<Entry>,
    /// Addresses that were freed (first, length), in order and disjoint.
    pub freed: Vec<(u64, u64)>,
    /// Objects that took the place of others, in order.
    pub moved: Vec<Move>,
    /// Garbage that is deleted.
    pub deleted: Vec<Id>,
}

impl Record {
    /// With the trailer.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        frame::put(&mut out, self.group);
        frame::put(&mut out, self.added.len() as u64);
        let mut after = (0, 0);
        for entry in &self.added {
            entry.encode(&mut out, &mut after);
        }
        frame::put(&mut out, self.freed.len() as u64);
        let mut end = 0;
        for (start, length) in &self.freed {
            frame::put(&mut out, (start - end) / SECTOR);
            frame::put(&mut out, length / SECTOR);
            end = start + length;
        }
        frame::put(&mut out, self.moved.len() as u64);
        for one in &self.moved {
            frame::put(&mut out, one.olds.len() as u64);
            for old in &one.olds {
                frame::put(&mut out, old.start);
                frame::put(&mut out, old.id.0);
            }
            one.new.encode(&mut out, &mut (0, 0));
        }
        frame::put(&mut out, self.deleted.len() as u64);
        for id in &self.deleted {
            frame::put(&mut out, id.0);
        }
        frame::seal(Kind::Record, out)
    }

    /// The record that these bytes end with, and where it begins.
    ///
    /// # Errors
    /// It is damaged.
    pub fn decode(bytes: &[u8]) -> Result<(usize, Self), DecodeError> {
        let (begin, body) = frame::open(Kind::Record, bytes)?;
        let mut cursor = Cursor::new(Kind::Record, body);
        let mut record = Self { group: cursor.number()?, ..Self::default() };
        let mut after = (0, 0);
        for _ in 0..cursor.count()? {
            record.added.push(Entry::decode(&mut cursor, &mut after)?);
        }
        let mut end = 0;
        for _ in 0..cursor.count()? {
            let start = end + cursor.at_most((ADDRESSES - end) / SECTOR)? * SECTOR;
            let length = cursor.at_most((ADDRESSES - start) / SECTOR)? * SECTOR;
            if length == 0 {
                return Err(cursor.invalid("nothing freed"));
            }
            record.freed.push((start, length));
            end = start + length;
        }
        for _ in 0..cursor.count()? {
            record.moved.push(decode_move(&mut cursor)?);
        }
        for _ in 0..cursor.count()? {
            record.deleted.push(Id(cursor.number()?));
        }
        cursor.end()?;
        Ok((begin, record))
    }

    /// All records in these bytes, in order.
    ///
    /// # Errors
    /// One is damaged.
    pub fn decode_all(mut bytes: &[u8]) -> Result<Vec<Self>, DecodeError> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let (begin, record) = Self::decode(bytes)?;
            records.push(record);
            bytes = &bytes[..begin];
        }
        records.reverse();
        Ok(records)
    }
}

fn decode_move(cursor: &mut Cursor<'_>) -> Result<Move, DecodeError> {
    let count = cursor.count()?;
    let mut olds = Vec::new();
    for _ in 0..count {
        let start = cursor.at_most(ADDRESSES)?;
        let id = Id(cursor.number()?);
        olds.push(Old { start, id });
    }
    let new = Entry::decode(cursor, &mut (0, 0))?;
    if olds.first().is_none_or(|old| old.start != new.start) {
        return Err(cursor.invalid("an object in place of others that do not match"));
    }
    Ok(Move { olds, new })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::page::tests::entries;

    proptest! {
        #[test]
        fn records_come_back_one_after_the_other(
            (group, added, others) in (any::<u64>(), entries(), entries()),
            deleted in prop::collection::vec(any::<u64>().prop_map(Id), 0..9),
        ) {
            let freed = others.iter().map(|e| (e.start, e.end - e.start)).collect();
            let old = |e: &Entry| vec![Old { start: e.start, id: e.id }];
            let moved = others.iter().map(|e| Move { olds: old(e), new: *e }).collect();
            let one = Record { group, added, freed, moved, deleted };
            let two = Record { group: 7, ..Record::default() };
            let bytes = [one.encode(), two.encode()].concat();
            prop_assert_eq!(Record::decode_all(&bytes).unwrap(), vec![one, two]);
        }

        #[test]
        fn any_body_is_an_error_or_a_record(body: Vec<u8>) {
            if let Ok((_, record)) = Record::decode(&frame::seal(Kind::Record, body)) {
                prop_assert_eq!(Record::decode(&record.encode()).unwrap().1, record);
            }
        }
    }
}
