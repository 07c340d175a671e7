//! Walking an intent log.
//!
//! A log is a chain of blocks that starts in the object set's header (`zil_header_t`). Each block
//! has a `zil_chain_t` (the pointer to the next block, the bytes used, a checksum of its own) at
//! its start (checksum `zilog2`) or its end (`zilog`), and records of `lr_t` (type, length, txg,
//! sequence number) in between. The "checksum" of the pointer to a block is what its own checksum
//! is seeded with: two words that identify the log, the object set, and a sequence number that
//! grows by one from block to block.
//!
//! The chain ends at the first block that is not what its pointer says, because the pointer to the
//! next block is written before that block is. A device that fails is no end: nobody knows what it has
//! (`zil_check_log_chain`). An import *claims* the blocks that it finds: it
//! notes the last sequence numbers in the header, which end the chain from then on.
//!
//! Invariants: sequence numbers grow by exactly one, so a chain cannot run in a circle; records
//! lie within the used part of their block.

use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dmu::ZilHeader;
use cenote_format::{ByteOrder, Bytes};
use cenote_store::{Block, BlockError, Bookmark, Store};
use std::sync::Arc;

/// Header flag: `claim_lr_seq` is set (`ZIL_CLAIM_LR_SEQ_VALID`).
const CLAIM_LR_SEQ_VALID: u64 = 2;
/// Bytes of `zil_chain_t`.
const CHAIN_SIZE: usize = 8 + BLKPTR_SIZE + 8 + 40;
/// Bytes of `lr_t`.
pub const RECORD_HEADER: usize = 32;
/// Number of `zio_checksum` `zilog2`.
const ZILOG2: u8 = 9;
/// Record type: a file's data, in the record or behind a block pointer.
pub const TX_WRITE: u64 = 9;
/// Object number in bookmarks of log blocks (`ZB_ZIL_OBJECT`).
const ZIL_OBJECT: u64 = 0;
/// Level in bookmarks of log blocks (`ZB_ZIL_LEVEL`).
pub(super) const ZIL_LEVEL: i64 = -2;

/// A record of the log.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// `TX_*`; the top bit asks for case-insensitive names.
    pub kind: u64,
    /// Bytes, header included.
    pub len: u64,
    /// Transaction group.
    pub txg: u64,
    /// Sequence number.
    pub seq: u64,
    /// The whole record.
    pub data: Bytes<'a>,
}

impl Record<'_> {
    /// The block pointer of a `TX_WRITE` whose data is not in the record.
    pub fn write_block(&self) -> Option<BlockPointer> {
        let at = RECORD_HEADER + 32;
        if self.kind != TX_WRITE {
            return None;
        }
        BlockPointer::decode(&self.data, at).ok().filter(|bp| !bp.is_hole())
    }
}

/// What a walk met.
pub enum Item<'a> {
    /// A block of the chain, before it is read.
    Block(&'a BlockPointer),
    /// A record.
    Record(Record<'a>),
}

/// Why a walk ended.
#[derive(Debug, Clone)]
pub enum End {
    /// At the end of the chain, or at the last claimed block or record.
    Complete,
    /// At a block that is not (or not yet) part of the log.
    Unreadable,
    /// At a block that a device failed to read.
    Failed(BlockError),
    /// `f` said so.
    Stopped,
}

/// Where a log block is, for errors.
pub fn bookmark(bp: &BlockPointer) -> Bookmark {
    let [_, _, objset, seq] = bp.checksum();
    Bookmark { objset, object: ZIL_OBJECT, level: ZIL_LEVEL, blkid: seq }
}

/// Walks the log, calling `f` with each block and each record; `f` returns whether to go on.
pub fn walk(store: &Arc<Store>, header: &ZilHeader, f: &mut dyn FnMut(Item<'_>) -> bool) -> End {
    let claimed = header.claim_txg != 0;
    let last_block = if claimed { header.claim_blk_seq } else { u64::MAX };
    let last_record = if claimed && header.flags & CLAIM_LR_SEQ_VALID != 0 {
        header.claim_lr_seq
    } else {
        u64::MAX
    };
    let mut max_record = 0;
    let mut bp = header.log;
    while !bp.is_hole() {
        let seq = bp.checksum()[3];
        if seq > last_block {
            return End::Complete;
        }
        if !f(Item::Block(&bp)) {
            return End::Stopped;
        }
        if max_record == last_record && seq == last_block {
            return End::Complete;
        }
        let (next, data, order) = match read_block(store, &bp, claimed) {
            Ok(Some(found)) => found,
            Ok(None) => return End::Unreadable,
            Err(failed) => return End::Failed(failed),
        };
        let records = Bytes::new(&data, order, "intent log records");
        match walk_records(&records, last_record, &mut max_record, f) {
            None => {}
            Some(end) => return end,
        }
        bp = next;
    }
    End::Complete
}

/// Calls `f` with the records of one block; `Some` if the walk ends here.
fn walk_records(
    b: &Bytes<'_>,
    last_record: u64,
    max_record: &mut u64,
    f: &mut dyn FnMut(Item<'_>) -> bool,
) -> Option<End> {
    let mut at = 0;
    while at < b.len() {
        let Ok([kind, len, txg, seq]) = b.u64s(at) else { return Some(End::Unreadable) };
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        let Ok(data) = b.sub(at, size, "intent log record") else { return Some(End::Unreadable) };
        if size < RECORD_HEADER {
            return Some(End::Unreadable);
        }
        if seq > last_record {
            return Some(End::Complete);
        }
        if !f(Item::Record(Record { kind, len, txg, seq, data })) {
            return Some(End::Stopped);
        }
        *max_record = seq;
        at += size;
    }
    None
}

/// The pointer to the next block, and the bytes of records with their byte order.
type Read = (BlockPointer, Vec<u8>, ByteOrder);

/// What is in block `bp`; `None` if the block is not what `bp` says. Nobody knows where a log ends that was
/// not claimed: it is no error there.
///
/// Errors: a device failed.
fn read_block(
    store: &Arc<Store>,
    bp: &BlockPointer,
    claimed: bool,
) -> Result<Option<Read>, BlockError> {
    let block = match claimed {
        true => store.read(bp, bookmark(bp)),
        false => store.read_speculative(bp, bookmark(bp)),
    };
    match block {
        Ok(block) => Ok(decode(bp, &block)),
        Err(failed @ BlockError::Vdev { .. }) => Err(failed),
        Err(_) => Ok(None),
    }
}

fn decode(bp: &BlockPointer, block: &Block) -> Option<Read> {
    let data = block.data.bytes();
    let b = Bytes::new(&data, block.order, "intent log block");
    let front = bp.checksum_type() == ZILOG2;
    let at = if front { 0 } else { b.len().checked_sub(CHAIN_SIZE)? };
    let next = BlockPointer::decode(&b, at + 8).ok()?;
    let used = usize::try_from(b.u64(at + 8 + BLKPTR_SIZE).ok()?).ok()?;
    let mut expected = bp.checksum();
    expected[3] = expected[3].wrapping_add(1);
    if next.checksum() != expected {
        return None;
    }
    let (from, len) = if front { (CHAIN_SIZE, used.checked_sub(CHAIN_SIZE)?) } else { (0, used) };
    if !front && used > at {
        return None;
    }
    Some((next, b.slice(from, len).ok()?.to_vec(), block.order))
}
