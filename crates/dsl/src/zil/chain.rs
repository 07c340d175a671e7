//! Walking an intent log (`zil_parse`).
//!
//! A log is a chain of blocks that starts in the object set's header (`zil_header_t`);
//! [`cenote_format::zil`] has what is in them. The pointer to a block says, in place of a checksum, which
//! log and which block number belongs there.
//!
//! The chain ends at the first block that is not what its pointer says, because the pointer to the
//! next block is written before that block is. No block of a chain is a gang block (`zio_alloc_zil`): a pointer
//! to one ends it, too, and so does one to a log vdev that was taken out of use: what was written there is in groups that are
//! on disk. A device that fails is not an end: it is not known what it has
//! (`zil_check_log_chain`). An import *claims* the blocks that it finds ([`mod@super::claim`]): it
//! notes the last sequence numbers in the header, which end the chain from then on.
//!
//! Invariants: sequence numbers grow by exactly one, so a chain cannot run in a circle; records
//! lie within the used part of their block.

use super::ahead::Ahead;
pub use super::ahead::bookmark;
use super::kept::{Kept, Parsed};
use cenote_format::Bytes;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ZilHeader;
use cenote_format::zil::{ChainBlock, RawRecord, raw_records};
pub use cenote_store::ZIL_LEVEL;
use cenote_store::{Block, BlockError, Store};
use std::sync::Arc;

/// Header flag: `claim_lr_seq` is set (`ZIL_CLAIM_LR_SEQ_VALID`).
pub const CLAIM_LR_SEQ_VALID: u64 = 2;

/// What a walk met.
pub enum Item<'a> {
    /// A block of the chain, before it is read.
    Block(&'a BlockPointer),
    /// A record.
    Record(RawRecord<'a>),
}

/// Why a walk ended.
#[derive(Debug, Clone)]
pub enum End {
    /// At the end of the chain, or at the last claimed block or record.
    Complete,
    /// Behind the last record that was claimed of a log that goes on with what could not be claimed
    /// ([`Claim::without_clones`](super::Claim::without_clones)).
    Cut,
    /// At a block that is not (or not yet) part of the log.
    Unreadable,
    /// At a block that a device failed to read.
    Failed(BlockError),
    /// `f` said so.
    Stopped,
}

/// What a walk does at a block whose key is not loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    /// It reads the block as it is on disk: the chain can be followed so.
    Follow,
    /// It ends with [`End::Failed`]. What records say has to be decrypted, to replay them.
    Fail,
}

/// Walks the log, calling `f` with each block and each record; `f` returns whether to go on.
pub fn walk(store: &Arc<Store>, header: &ZilHeader, f: &mut dyn FnMut(Item<'_>) -> bool) -> End {
    walk_kept(store, header, (&Kept::nothing(), Locked::Follow), f)
}

/// As [`walk`], with blocks from `kept`, where what had to be read is kept.
pub fn walk_kept(
    store: &Arc<Store>,
    header: &ZilHeader,
    (kept, locked): (&Kept, Locked),
    f: &mut dyn FnMut(Item<'_>) -> bool,
) -> End {
    let claimed = header.claim_txg != 0;
    let mut reader = Reader { store, ahead: Ahead::new(store), kept, claimed, locked };
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
        if bp.is_gang() {
            return End::Unreadable;
        }
        if !f(Item::Block(&bp)) {
            return End::Stopped;
        }
        if max_record == last_record && seq == last_block {
            return End::Complete;
        }
        let found = match reader.block(&bp) {
            Ok(Some(found)) => found,
            Ok(None) => return End::Unreadable,
            Err(failed) => return End::Failed(failed),
        };
        let records = Bytes::new(&found.records, found.order, "intent log records");
        match walk_records(records, last_record, &mut max_record, f) {
            None => {}
            Some(End::Complete) if seq < last_block && claimed => return End::Cut,
            Some(end) => return end,
        }
        bp = found.next;
    }
    End::Complete
}

/// Calls `f` with the records of one block; `Some` if the walk ends here.
fn walk_records(
    b: Bytes<'_>,
    last_record: u64,
    max_record: &mut u64,
    f: &mut dyn FnMut(Item<'_>) -> bool,
) -> Option<End> {
    for record in raw_records(b) {
        let Ok(record) = record else { return Some(End::Unreadable) };
        if record.seq > last_record {
            return Some(End::Complete);
        }
        let seq = record.seq;
        if !f(Item::Record(record)) {
            return Some(End::Stopped);
        }
        *max_record = seq;
    }
    None
}

/// Where blocks come from.
struct Reader<'a> {
    store: &'a Arc<Store>,
    ahead: Ahead<'a>,
    kept: &'a Kept,
    claimed: bool,
    locked: Locked,
}

impl Reader<'_> {
    /// What is in block `bp`; `None` if the block is not what `bp` says.
    ///
    /// Errors: a device failed.
    fn block(&mut self, bp: &BlockPointer) -> Result<Option<Arc<Parsed>>, BlockError> {
        if let Some(block) = self.kept.find(bp) {
            return Ok(Some(block));
        }
        let follows = self.locked == Locked::Follow;
        let mut read = || match self.ahead.take(bp) {
            Some(block) => Ok(decode(bp, &block)),
            None => Ok(self.read(bp)?.and_then(|block| decode(bp, &block))),
        };
        let found = if follows { Store::with_keys_or_without(read) } else { read() }?;
        let found = found.map(Arc::new);
        // What was read without its key is to be read again once that is loaded, and what a key has opened goes with it.
        found.iter().filter(|_| !bp.uses_crypt()).for_each(|block| self.kept.keep(block));
        Ok(found)
    }

    /// Reads a block by itself (`zil_read_log_block`). The end of an unclaimed log is not known: it is not an error
    /// there. A key that is not loaded is an error.
    fn read(&self, bp: &BlockPointer) -> Result<Option<Block>, BlockError> {
        if !self.claimed && is_left_out(self.store, bp) {
            return Ok(None);
        }
        let block = match self.claimed {
            true => self.store.read(bp, bookmark(bp)),
            false => self.store.read_speculative(bp, bookmark(bp)),
        };
        match block {
            Ok(block) => Ok(Some(block)),
            Err(failed @ (BlockError::Vdev { .. } | BlockError::Encrypted { .. })) => Err(failed),
            Err(_) => Ok(None),
        }
    }
}

/// Whether a block is on a log vdev that was taken out of use, by the pool's config. Since the group that noted that nothing was
/// written there, and what was written before is in groups that are on disk: the log ends before that block.
fn is_left_out(store: &Store, bp: &BlockPointer) -> bool {
    let vdevs = store.vdevs();
    bp.dvas().any(|dva| vdevs.top(dva.vdev.into()).is_some_and(|top| top.is_log_left_out()))
}

fn decode(bp: &BlockPointer, block: &Block) -> Option<Parsed> {
    let data = block.data.bytes();
    let b = Bytes::new(&data, block.order, "intent log block");
    let ChainBlock { next, records } = ChainBlock::decode(bp, &b).ok()?;
    let records = records.slice(0, records.len()).ok()?.to_vec();
    Some(Parsed { bp: *bp, next, records, order: block.order })
}
