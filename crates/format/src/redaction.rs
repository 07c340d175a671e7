//! Redaction lists: which blocks a redacted stream leaves out (`redaction_list_phys_t`, `redact_block_phys_t`).
//!
//! A list is an object of the MOS that a bookmark names. Its bonus buffer, or its spill block where there are more
//! snapshots than fit, says how far the list was made and by which snapshots; its data are the entries.
//!
//! ```text
//! bonus or spill:  last object(64) | last block(64) | entries(64) | snapshots(64) | guid of each snapshot(64)
//! entry:           object(64) | first block(64) | sectors of a block(16), blocks - 1(48) | 0(64)
//! ```
//!
//! Entries come in the order of objects and blocks, and do not overlap. A list is complete when its last object and block are
//! all ones; before that they say where to go on.

use crate::{Bytes, DecodeError, MAX_BLOCK, Result, SECTOR, SECTOR_SHIFT};

const WHAT: &str = "redaction list";
/// Feature of datasets of which data was left out (`SPA_FEATURE_REDACTED_DATASETS`), and the field in which such a dataset has the guids of
/// the snapshots that it is redacted by.
pub const REDACTED: &str = "com.delphix:redacted_datasets";
/// Bytes of an entry.
pub const ENTRY_SIZE: usize = 32;
/// Bytes before the guids.
pub const HEAD_SIZE: usize = 32;
/// Most blocks of an entry (`REDACT_BLOCK_MAX_COUNT`).
pub const MAX_COUNT: u64 = 1 << 48;
/// Where in the third word of an entry the size is.
const SIZE_AT: u32 = 48;

/// What a list says of itself (`redaction_list_phys_t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedactionList {
    /// Object and block where to go on; see [`RedactionList::COMPLETE`].
    pub last: (u64, u64),
    /// How many entries there are.
    pub entries: u64,
    /// Guids of the snapshots that it was made by.
    pub snaps: Vec<u64>,
}

impl RedactionList {
    /// [`RedactionList::last`] of a list that is complete.
    pub const COMPLETE: (u64, u64) = (u64::MAX, u64::MAX);

    /// Whether all blocks were looked at.
    pub fn is_complete(&self) -> bool {
        self.last == RedactionList::COMPLETE
    }

    /// Bytes of a list that was made by so many snapshots.
    pub fn size(snaps: usize) -> usize {
        HEAD_SIZE + snaps * 8
    }

    /// Decodes a bonus buffer, or a spill block.
    ///
    /// # Errors
    /// It is too short for the snapshots that it tells of.
    pub fn decode(b: &Bytes<'_>) -> Result<RedactionList> {
        let [object, block, entries, count] = b.u64s(0)?;
        let room = (b.len().saturating_sub(HEAD_SIZE) / 8) as u64;
        if count > room {
            let why = format!("{count} snapshots in {} bytes", b.len());
            return Err(DecodeError::invalid(WHAT, why));
        }
        let snaps = (0..count as usize).map(|i| b.u64(HEAD_SIZE + i * 8)).collect::<Result<_>>()?;
        Ok(RedactionList { last: (object, block), entries, snaps })
    }

    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let head = [self.last.0, self.last.1, self.entries, self.snaps.len() as u64];
        head.iter().chain(&self.snaps).flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// Blocks of one object that are left out (`redact_block_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedactBlocks {
    /// The object.
    pub object: u64,
    /// The first block.
    pub first: u64,
    /// How many blocks: 1 to [`MAX_COUNT`].
    pub count: u64,
    /// Bytes of a block: whole sectors, less than 2^16 of them.
    pub size: u64,
}

impl RedactBlocks {
    /// The block behind the last one.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.count)
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// It is cut short; it is about no object, or about blocks that there cannot be.
    pub fn decode(b: &Bytes<'_>) -> Result<RedactBlocks> {
        let [object, first, packed] = b.u64s(0)?;
        let (size, count) = ((packed >> SIZE_AT) << SECTOR_SHIFT, (packed & (MAX_COUNT - 1)) + 1);
        let bad = object == 0 || first.checked_add(count).is_none();
        if bad || size == 0 || size > MAX_BLOCK {
            let why = format!("object {object}: {count} blocks of {size} bytes from {first}");
            return Err(DecodeError::invalid(WHAT, why));
        }
        Ok(RedactBlocks { object, first, count, size })
    }

    /// The bytes.
    ///
    /// # Errors
    /// There are no blocks, or too many; a block is no whole number of sectors or too large.
    pub fn encode(&self) -> crate::encode::Result<[u8; ENTRY_SIZE]> {
        let sectors = self.size >> SECTOR_SHIFT;
        if !(1..=MAX_COUNT).contains(&self.count)
            || !self.size.is_multiple_of(SECTOR)
            || !(1..1 << 16).contains(&sectors)
        {
            let why = format!("{self:?}");
            return Err(crate::encode::EncodeError::unrepresentable(WHAT, why));
        }
        let mut out = [0; ENTRY_SIZE];
        let words = [self.object, self.first, sectors << SIZE_AT | (self.count - 1)];
        for (to, word) in out.chunks_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteOrder;
    use proptest::prelude::*;

    fn little(data: &[u8]) -> Bytes<'_> {
        Bytes::new(data, ByteOrder::Little, WHAT)
    }

    proptest! {
        #[test]
        fn lists_round_trip(
            last: (u64, u64),
            entries: u64,
            snaps in proptest::collection::vec(any::<u64>(), 0..40),
            cut: usize,
        ) {
            let list = RedactionList { last, entries, snaps };
            let bytes = list.encode();
            prop_assert_eq!(bytes.len(), RedactionList::size(list.snaps.len()));
            prop_assert_eq!(RedactionList::decode(&little(&bytes)).unwrap(), list.clone());
            // A spill block is filled up.
            let padded = [&bytes[..], &[0; 512]].concat();
            prop_assert_eq!(RedactionList::decode(&little(&padded)).unwrap(), list);
            prop_assert!(RedactionList::decode(&little(&bytes[..cut % bytes.len()])).is_err());
        }

        #[test]
        fn entries_round_trip(object in 1u64.., first in 0..1u64 << 50, count in 1..=MAX_COUNT, sectors in 1..=1u64 << 15) {
            let entry = RedactBlocks { object, first, count, size: sectors * SECTOR };
            let bytes = entry.encode().unwrap();
            prop_assert_eq!(RedactBlocks::decode(&little(&bytes)).unwrap(), entry);
        }
    }

    #[test]
    fn what_no_entry_can_be_is_refused() {
        let entry = RedactBlocks { object: 1, first: 0, count: 1, size: 512 };
        for bad in [
            RedactBlocks { count: 0, ..entry },
            RedactBlocks { count: MAX_COUNT + 1, ..entry },
            RedactBlocks { size: 0, ..entry },
            RedactBlocks { size: 700, ..entry },
            RedactBlocks { size: 1 << 25, ..entry },
        ] {
            assert!(bad.encode().is_err(), "{bad:?}");
        }
        let at_end = RedactBlocks { first: u64::MAX - 1, count: 5, ..entry };
        for bad in [RedactBlocks { object: 0, ..entry }, at_end] {
            assert!(RedactBlocks::decode(&little(&bad.encode().unwrap())).is_err(), "{bad:?}");
        }
    }
}
