//! Blocks of a log's chain (`zil_chain_t`).
//!
//! ```text
//! zil_chain_t, 184 bytes:   pad (8)   pointer to the next block (128)   bytes used (8)   zio_eck_t (40)
//! zilog:                    records, free space, zil_chain_t at the end; used: bytes of records
//! zilog2 ("slim"):          zil_chain_t at the start, then records; used: bytes of records and zil_chain_t
//! ```
//!
//! The checksum in the pointer to a block is what the block's own checksum is seeded with: two words that
//! identify the log, the object set, and a sequence number that grows by one from block to block. So it
//! does in the pointer to the next block, which is written before that block is.

use super::{Body, RECORD_HEADER, Record, kind};
use crate::blkptr::{BLKPTR_SIZE, BlockPointer};
use crate::checksum::Checksum;
use crate::{Bytes, DecodeError, Result};

/// Bytes of `zil_chain_t`.
pub const CHAIN_SIZE: usize = 8 + BLKPTR_SIZE + 8 + 40;
/// Smallest block, and what the checksum of a slim block covers a multiple of, in bytes (`ZIL_MIN_BLKSZ`).
pub const MIN_BLOCK: usize = 4096;

const WHAT: &str = "intent log block";

/// A block of the chain, taken apart.
#[derive(Debug, Clone, Copy)]
pub struct ChainBlock<'a> {
    /// Pointer to the next block.
    pub next: BlockPointer,
    /// The records.
    pub records: Bytes<'a>,
}

/// Whether the `zil_chain_t` of the block that `bp` points to is at its start.
pub fn is_slim(bp: &BlockPointer) -> bool {
    bp.checksum_type() == Checksum::Zilog2 as u8
}

impl<'a> ChainBlock<'a> {
    /// Takes block `b` apart, to which `bp` points and whose checksum was verified.
    ///
    /// # Errors
    /// More bytes are used than there are; the next block is not the one after this.
    pub fn decode(bp: &BlockPointer, b: &Bytes<'a>) -> Result<ChainBlock<'a>> {
        let slim = is_slim(bp);
        let end = b.rest(CHAIN_SIZE)?.len();
        let at = if slim { 0 } else { end };
        let next = BlockPointer::decode(b, at + 8)?;
        let used = b.u64(at + 8 + BLKPTR_SIZE)?;
        let mut expected = bp.checksum();
        expected[3] = expected[3].wrapping_add(1);
        if next.checksum() != expected {
            return Err(DecodeError::invalid(WHAT, "the next block is of another log"));
        }
        let (from, len) = match slim {
            true => (CHAIN_SIZE, used.checked_sub(CHAIN_SIZE as u64)),
            false => (0, Some(used).filter(|used| *used <= end as u64)),
        };
        let Some(len) = len else {
            return Err(DecodeError::invalid(WHAT, format!("{used:#x} bytes used")));
        };
        let records = Bytes::new(b.counted(from, len, 1)?, b.order(), "intent log records");
        Ok(ChainBlock { next, records })
    }
}

/// A record whose body is not decoded.
#[derive(Debug, Clone, Copy)]
pub struct RawRecord<'a> {
    /// `TX_*`, with [`TX_CI`](super::TX_CI).
    pub kind: u64,
    /// Bytes, header included.
    pub len: u64,
    /// Transaction group in which the change was made.
    pub txg: u64,
    /// Sequence number.
    pub seq: u64,
    /// The whole record.
    pub data: Bytes<'a>,
}

impl RawRecord<'_> {
    /// The block pointer of a `TX_WRITE` whose data is not in the record.
    pub fn write_block(&self) -> Option<BlockPointer> {
        if self.kind != kind::TX_WRITE {
            return None;
        }
        BlockPointer::decode(&self.data, RECORD_HEADER + 32).ok().filter(|bp| !bp.is_hole())
    }

    /// The blocks that a `TX_CLONE_RANGE` refers to; neither holes nor embedded ones, which are no blocks on
    /// disk. Nothing of a record that is not as it must be.
    pub fn cloned_blocks(&self) -> Vec<BlockPointer> {
        match (self.kind == kind::TX_CLONE_RANGE).then(|| Record::decode(self)) {
            Some(Ok(Record { body: Body::CloneRange { mut blocks, .. }, .. })) => {
                blocks.retain(|bp| !bp.is_hole() && !bp.is_embedded());
                blocks
            }
            _ => Vec::new(),
        }
    }
}

/// The records of a block, in order; ends with an error at one that does not lie within the block.
pub fn raw_records<'a>(b: Bytes<'a>) -> impl Iterator<Item = Result<RawRecord<'a>>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= b.len() {
            return None;
        }
        let record = raw_record(&b, at);
        at = match &record {
            Ok(record) => at + record.data.len(),
            Err(_) => b.len(),
        };
        Some(record)
    })
}

fn raw_record<'a>(b: &Bytes<'a>, at: usize) -> Result<RawRecord<'a>> {
    let [kind, len, txg, seq] = b.u64s(at)?;
    if len < RECORD_HEADER as u64 {
        return Err(DecodeError::invalid("intent log record", format!("{len} bytes")));
    }
    let data = Bytes::new(b.counted(at, len, 1)?, b.order(), "intent log record");
    Ok(RawRecord { kind, len, txg, seq, data })
}
