//! Claiming a log that a crash left (`zil_claim`).
//!
//! The blocks of a log were written in transaction groups that never reached the disk, so no space map has
//! them. The first group after the crash allocates them, before it allocates anything else, and the log's
//! header notes how far the log goes ([`ZilHeader::claim_blk_seq`], [`ZilHeader::claim_lr_seq`]): what
//! could not be read then is no part of it, even if it can be read later.
//!
//! Besides the blocks of the chain a log has the blocks that its `TX_WRITE` records point to
//! (`zil_claim_write`). One that cannot be read ends the log: nobody was told that the write is
//! stable, since the record is acknowledged only after its block was written.

use super::chain::{CLAIM_LR_SEQ_VALID, End, Item, walk};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ZilHeader;
use cenote_format::zil::RECORD_HEADER;
use cenote_store::{BlockError, Bookmark, Store};
use std::collections::HashSet;
use std::sync::Arc;

/// Header flag: there is something to replay (`ZIL_REPLAY_NEEDED`).
pub const REPLAY_NEEDED: u64 = 1;

/// What is to be claimed of a log.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Blocks that have to be allocated, each once.
    pub blocks: Vec<BlockPointer>,
    /// The header that says so.
    pub header: ZilHeader,
    /// Records that are claimed.
    pub records: u64,
}

/// Finds what is to be claimed of a log without a claim. `first` is the first transaction group that is not
/// on disk (`spa_min_claim_txg`).
///
/// # Errors
/// A device failed: nobody knows how far the log goes.
pub fn claim(
    store: &Arc<Store>,
    objset: u64,
    header: &ZilHeader,
    first: u64,
) -> Result<Claim, BlockError> {
    let (mut blocks, mut seen, mut failed) = (Vec::new(), HashSet::new(), None);
    let (mut count, mut block_seq, mut records, mut record_seq) = (0u64, 0, 0u64, 0);
    let mut take = |bp: &BlockPointer| {
        let fresh = !bp.is_embedded() && bp.logical_birth() >= first;
        if fresh && bp.dva(0).is_some_and(|dva| seen.insert(dva)) {
            blocks.push(*bp);
        }
    };
    let end = walk(store, header, &mut |item| match item {
        Item::Block(bp) => {
            (count, block_seq) = (count + 1, bp.checksum()[3]);
            take(bp);
            true
        }
        Item::Record(record) => {
            if let Some(bp) = record.write_block() {
                let object = record.data.u64(RECORD_HEADER).unwrap_or(0);
                let at = Bookmark { objset, object, level: super::ZIL_LEVEL, blkid: 0 };
                let fresh = bp.logical_birth() >= first;
                match fresh.then(|| store.read_speculative(&bp, at)) {
                    Some(Err(e @ BlockError::Vdev { .. })) => {
                        failed = Some(e);
                        return false;
                    }
                    Some(Err(_)) => return false,
                    Some(Ok(_)) | None => take(&bp),
                }
            }
            (records, record_seq) = (records + 1, record.seq);
            true
        }
    });
    if let End::Failed(e) = end {
        return Err(e);
    }
    if let Some(e) = failed {
        return Err(e);
    }
    let needed = if records > 0 || count > 1 { REPLAY_NEEDED } else { 0 };
    let header = ZilHeader {
        claim_txg: first,
        claim_blk_seq: block_seq,
        claim_lr_seq: record_seq,
        flags: header.flags | needed | CLAIM_LR_SEQ_VALID,
        ..*header
    };
    Ok(Claim { blocks, header, records })
}
