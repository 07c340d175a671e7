//! Redaction: data that is left out of streams (`dmu_redact_snap`, `dsl_redaction_list_traverse`).
//!
//! A *redaction bookmark* of a snapshot has a list of blocks: each of some later snapshots changed them. A stream
//! that is made by it leaves these blocks out, so that a receiver gets nothing that those snapshots keep secret. A dataset that was
//! received so is *redacted*: it has holes in the place of data, and says by which snapshots.
//!
//! | room | what |
//! |---|---|
//! | `find` | which blocks a list has to have |
//! | here | lists as they are on disk, from the first entry or from a block on |
//!
//! The structures are [`cenote_format::redaction`]'s; [`crate::write::redaction`] makes them.
//!
//! Invariant: entries are handed on in the order of objects and blocks, without overlaps, whatever the list holds: one that
//! is not so is an error.

mod find;

pub use find::{Found, RedactError};

use crate::traverse::Mark;
use crate::{Dataset, Dsl};
use cenote_dmu::{Error, Object, Result};
use cenote_format::redaction::{ENTRY_SIZE, REDACTED, RedactBlocks, RedactionList};
use cenote_format::{ByteOrder, Bytes};

const WHAT: &str = "redaction list";

impl Dsl {
    /// Guids of the snapshots that a dataset is redacted by; `None`: it is not redacted.
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub fn redacted_by(&self, d: &Dataset) -> Result<Option<Vec<u64>>> {
        Ok(self.field(d.ds_obj, REDACTED)?.map(|entry| entry.value))
    }

    /// What the redaction list in object `number` says of itself (`dsl_redaction_list_hold_obj`).
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn redaction_list(&self, number: u64) -> Result<RedactionList> {
        let object = self.mos.object(number)?;
        let decode = |source| Error::Decode { objset: self.mos.id(), object: number, source };
        let Some(spill) = object.spill()? else {
            return RedactionList::decode(&object.bonus()).map_err(decode);
        };
        let data = spill.data.bytes();
        RedactionList::decode(&Bytes::new(&data, spill.order, WHAT)).map_err(decode)
    }

    /// The place behind the last entry of the redaction list in object `number`; `None`: it has none. What lies behind it is
    /// in no entry, whatever the list says of where to go on: what OpenZFS writes there lies within an entry that it has not
    /// written.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn redaction_end(&self, number: u64) -> Result<Option<Mark>> {
        let mut entries = self.redaction_entries(number, None)?;
        entries.next = entries.count.saturating_sub(1);
        let last = entries.read_next()?;
        Ok(last.map(|entry| Mark { object: entry.object, blkid: entry.end() }))
    }

    /// The entries of the redaction list in object `number`, from `from` on.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn redaction_entries(&self, number: u64, from: Option<Mark>) -> Result<Entries> {
        let count = self.redaction_list(number)?.entries;
        let mut entries = Entries {
            object: self.mos.object(number)?,
            count,
            next: 0,
            begin: None,
            last: (0, 0),
            block: None,
        };
        if let Some(from) = from {
            entries.seek(from)?;
        }
        Ok(entries)
    }
}

/// The entries of a redaction list, one after the other. One block of the list is in memory.
pub struct Entries {
    object: Object,
    /// How many there are.
    count: u64,
    next: u64,
    /// Object and block where the next entry begins at the earliest, if it is the first one that is handed on.
    begin: Option<(u64, u64)>,
    /// Object and block behind the last entry that was handed on.
    last: (u64, u64),
    /// Number and bytes of the block that was read last.
    block: Option<(u64, Vec<u8>, ByteOrder)>,
}

impl Entries {
    fn corrupt(&self, why: String) -> Error {
        let source = cenote_format::DecodeError::invalid(WHAT, why);
        Error::Decode { objset: self.object.objset().id(), object: self.object.number(), source }
    }

    /// Entry `index`.
    fn entry(&mut self, index: u64) -> Result<RedactBlocks> {
        let size = self.object.dnode().block_size.max(1);
        let at = index.checked_mul(ENTRY_SIZE as u64);
        let at = at.ok_or_else(|| self.corrupt(format!("{} entries", self.count)))?;
        let (blkid, offset) = (at / size, (at % size) as usize);
        if self.block.as_ref().is_none_or(|(known, ..)| *known != blkid) {
            let block = self.object.block(blkid)?;
            let block = block.ok_or_else(|| self.corrupt(format!("entry {index} is in a hole")))?;
            self.block = Some((blkid, block.data.bytes().into_owned(), block.order));
        }
        let Some((_, data, order)) = &self.block else {
            return Err(self.corrupt(format!("entry {index} is missing")));
        };
        let bytes = Bytes::new(data, *order, WHAT).sub(offset, ENTRY_SIZE, WHAT);
        let entry = bytes.and_then(|bytes| RedactBlocks::decode(&bytes));
        entry.map_err(|source| self.corrupt(format!("entry {index}: {source}")))
    }

    /// Passes over the entries before `from`.
    fn seek(&mut self, from: Mark) -> Result<()> {
        let from = (from.object, from.blkid);
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.entry(middle)?;
            match (entry.object, entry.end()) <= from {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        (self.next, self.begin) = (low, Some(from));
        Ok(())
    }

    /// The next entry, without what lies before where this began.
    ///
    /// # Errors
    /// The list cannot be read; its entries are not in order.
    pub fn read_next(&mut self) -> Result<Option<RedactBlocks>> {
        if self.next >= self.count {
            return Ok(None);
        }
        let mut entry = self.entry(self.next)?;
        if let Some((object, from)) = self.begin.take()
            && (entry.object == object && entry.first < from && from < entry.end())
        {
            entry = RedactBlocks { first: from, count: entry.end() - from, ..entry };
        }
        if (entry.object, entry.first) < self.last {
            return Err(self.corrupt(format!("entry {} is out of order", self.next)));
        }
        self.next += 1;
        self.last = (entry.object, entry.end());
        Ok(Some(entry))
    }
}
