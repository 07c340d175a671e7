//! Entries of the index, and the pages that they are kept in.
//!
//! For each entry: a flag (dense), sectors after the one before, sectors of addresses, the object as difference to the
//! successor of the one before, length of the table, dead sectors, and unless it is dense the sectors of data.

use cenote_format::DecodeError;

use crate::frame::{self, Cursor, Kind};
use crate::id::Id;
use crate::{ADDRESSES, MAX_DATA, SECTOR};

/// Entries of a page, at most.
pub const PAGE_ENTRIES: usize = 1024;
/// Bytes of a table with its trailer, at most.
pub(crate) const MAX_TABLE: u64 = 16 << 20;
const DENSE: u8 = 1;

/// An object and the addresses that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// First address.
    pub start: u64,
    /// After the last address.
    pub end: u64,
    /// The object.
    pub id: Id,
    /// Bytes of blocks in it.
    pub data: u32,
    /// Bytes of its table with the trailer, after the blocks.
    pub table: u32,
    /// Bytes of blocks that are allocated.
    pub live: u32,
}

impl Entry {
    /// Whether every address is at its distance from the first.
    pub fn dense(&self) -> bool {
        self.end - self.start == u64::from(self.data)
    }

    /// Bytes of the object.
    pub fn bytes(&self) -> u64 {
        u64::from(self.data) + u64::from(self.table)
    }

    /// Appends it, after the entry that ends at `after.0` with the object `after.1`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, after: &mut (u64, u64)) {
        cenote_format::invariant!(
            u64::from(self.data) <= MAX_DATA && u64::from(self.table) <= MAX_TABLE,
            "object {}: {} bytes of blocks, {} of table",
            self.id,
            self.data,
            self.table
        );
        let dense = if self.dense() { DENSE } else { 0 };
        out.push(dense);
        frame::put(out, (self.start - after.0) / SECTOR);
        frame::put(out, (self.end - self.start) / SECTOR);
        frame::put(out, frame::zigzag(self.id.0.wrapping_sub(after.1.wrapping_add(1))));
        frame::put(out, u64::from(self.table));
        frame::put(out, u64::from(self.data - self.live) / SECTOR);
        if dense == 0 {
            frame::put(out, u64::from(self.data) / SECTOR);
        }
        *after = (self.end, self.id.0);
    }

    /// What [`Self::encode`] has written.
    pub(crate) fn decode(
        cursor: &mut Cursor<'_>,
        after: &mut (u64, u64),
    ) -> Result<Self, DecodeError> {
        let flags = cursor.byte()?;
        if flags & !DENSE != 0 {
            return Err(cursor.invalid(format!("flags {flags:#x} of an entry")));
        }
        let start = after.0 + cursor.at_most((ADDRESSES - after.0) / SECTOR)? * SECTOR;
        let length = cursor.at_most((ADDRESSES - start) / SECTOR)? * SECTOR;
        let id = after.1.wrapping_add(1).wrapping_add(frame::unzigzag(cursor.number()?));
        let table = cursor.at_most(MAX_TABLE)? as u32;
        let dead = cursor.at_most(MAX_DATA / SECTOR)? * SECTOR;
        let data = match flags & DENSE {
            0 => cursor.at_most(MAX_DATA / SECTOR)? * SECTOR,
            _ => length,
        };
        if data > MAX_DATA || dead > data || data > length || data == 0 {
            return Err(cursor.invalid(format!("{dead} of {data} bytes dead in {length}")));
        }
        if (flags & DENSE != 0) != (data == length) {
            return Err(cursor.invalid("a dense entry that is not marked so"));
        }
        *after = (start + length, id);
        Ok(Self {
            start,
            end: start + length,
            id: Id(id),
            data: data as u32,
            table,
            live: (data - dead) as u32,
        })
    }
}

/// Entries in order, with their trailer.
pub fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries.len() * 10 + 40);
    frame::put(&mut out, entries.len() as u64);
    let mut after = (0, 0);
    for entry in entries {
        entry.encode(&mut out, &mut after);
    }
    frame::seal(Kind::Page, out)
}

/// The entries of a page.
///
/// # Errors
/// It is damaged.
pub fn decode(bytes: &[u8]) -> Result<Vec<Entry>, DecodeError> {
    let (start, body) = frame::open(Kind::Page, bytes)?;
    let mut cursor = Cursor::new(Kind::Page, body);
    if start != 0 {
        return Err(cursor.invalid(format!("{start} bytes before it")));
    }
    let count = cursor.at_most(PAGE_ENTRIES as u64)?;
    let mut entries = Vec::with_capacity(count as usize);
    let mut after = (0, 0);
    for _ in 0..count {
        entries.push(Entry::decode(&mut cursor, &mut after)?);
    }
    cursor.end()?;
    Ok(entries)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Entries in order.
    pub fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let one = (0_u64..3, 1_u64..8192, 0_u64..3, any::<u64>(), 32_u32..5000, 0_u64..8192);
        prop::collection::vec(one, 0..60).prop_map(|all| {
            let mut end = 0;
            let entries = all.into_iter().map(|(gap, data, spare, id, table, dead)| {
                let start = end + gap * SECTOR;
                end = start + (data + spare) * SECTOR;
                let live = ((data - dead.min(data)) * SECTOR) as u32;
                let data = (data * SECTOR) as u32;
                Entry { start, end, id: Id(id), data, table, live }
            });
            entries.collect()
        })
    }

    proptest! {
        #[test]
        fn a_page_comes_back(entries in entries()) {
            prop_assert_eq!(decode(&encode(&entries)).unwrap(), entries);
        }

        #[test]
        fn any_body_is_an_error_or_a_page(body: Vec<u8>) {
            if let Ok(entries) = decode(&frame::seal(Kind::Page, body)) {
                prop_assert_eq!(decode(&encode(&entries)).unwrap(), entries);
            }
        }
    }
}
