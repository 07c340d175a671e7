//! Claiming a log that a crash left (`zil_claim`).
//!
//! The blocks of a log were written in transaction groups that never reached the disk, so no space map has
//! them. The first group after the crash allocates them, before it allocates anything else, and the log's
//! header notes how far the log goes ([`ZilHeader::claim_blk_seq`], [`ZilHeader::claim_lr_seq`]): what
//! could not be read then is no part of it, even if it can be read later.
//!
//! A `TX_CLONE_RANGE` refers to blocks that other files have, and may not have any more when it is replayed. So
//! the claim adds a reference to each of them, which goes when the log is destroyed (`zil_claim_clone_range`,
//! `zil_free_clone_range`). Where that is not possible the claim ends before the first such record
//! ([`Claim::without_clones`]), and its header says that the log goes on: the number of the last block is higher
//! than that of the block in which the claim ends. No other log has such a header. To OpenZFS it is a log that ends
//! there.
//!
//! Besides the blocks of the chain a log has the blocks that its `TX_WRITE` records point to
//! (`zil_claim_write`). One that cannot be read ends the log: the write was not acknowledged as
//! stable, since the record is acknowledged only after its block was written. No caller was told of any other record
//! of the same log block either, and some of them may be of the same change, which is whole in the log or not
//! there. So the log ends before all of them. Many of the blocks that records point to are read
//! at once, while the walk goes on behind the first of them; if one is wrong, the claim goes back to where
//! it was before the records of its log block ([`Mark`]). Of a gang block all headers and parts are claimed
//! (`zio_claim_gang`).

use super::chain::{CLAIM_LR_SEQ_VALID, End, Item, Locked, walk_kept};
use super::kept::Kept;
use super::parallel;
use crate::tunables::PRIME_THREADS;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::dmu::ZilHeader;
use cenote_format::invariant;
use cenote_format::invariant::broken;
use cenote_format::zil::{RECORD_HEADER, RawRecord};
use cenote_store::{BlockError, Bookmark, Priority, Store};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::OnceLock;

/// Header flag: there is something to replay (`ZIL_REPLAY_NEEDED`).
pub const REPLAY_NEEDED: u64 = 1;
/// Most blocks that records point to and that are read at once.
const AT_ONCE: usize = 1024;

/// A block to be claimed.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// The block.
    pub bp: BlockPointer,
    /// What it consists of, if it is a gang block: headers and parts.
    pub members: Vec<BlockPointer>,
}

/// What to claim of a log.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Blocks that have to be allocated, each once.
    pub blocks: Vec<Claimed>,
    /// Blocks that have to get a reference more, for each time that they are here.
    pub cloned: Vec<BlockPointer>,
    /// The header that says so.
    pub header: ZilHeader,
    /// Records that are claimed.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Where the claim is before the first record that clones.
    before_clones: Option<Mark>,
}

impl Claim {
    /// What comes before the first record that clones blocks. The log cannot be replayed in full then.
    pub fn without_clones(mut self) -> Claim {
        let Some(mark) = self.before_clones.take() else { return self };
        self.blocks.truncate(mark.taken);
        self.cloned.clear();
        (self.records, self.bytes) = (mark.records, mark.bytes);
        self.header.claim_blk_seq = mark.block_seq.saturating_add(1);
        self.header.claim_lr_seq = mark.record_seq;
        self.header.flags |= REPLAY_NEEDED;
        self
    }
}

/// How far a claim is.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    /// Blocks to be allocated.
    taken: usize,
    /// References to be added.
    cloned: usize,
    /// Blocks of the chain, and the number of the last one.
    blocks: u64,
    block_seq: u64,
    /// Records and their bytes, and the number of the last one.
    records: u64,
    bytes: u64,
    record_seq: u64,
}

/// A block that a record points to.
struct Pointed {
    bp: BlockPointer,
    at: Bookmark,
    /// Where the claim was before the records of the log block.
    before: Mark,
    /// Its place among the blocks to be allocated.
    taken: usize,
    /// What it consists of if it can be read.
    read: OnceLock<Result<Vec<BlockPointer>, BlockError>>,
}

struct Claiming<'a> {
    store: &'a Arc<Store>,
    objset: u64,
    /// The first transaction group that is not on disk.
    first: u64,
    taken: Vec<Claimed>,
    cloned: Vec<BlockPointer>,
    seen: HashSet<Dva>,
    mark: Mark,
    /// Where it was before the records of the present block.
    before_block: Mark,
    before_clones: Option<Mark>,
    pending: Vec<Pointed>,
}

/// Finds what to claim of a log without a claim. `first` is the first transaction group that is not
/// on disk (`spa_min_claim_txg`, `zil_claim_log_record`). What is read of the chain is kept in `kept`.
///
/// # Errors
/// A device failed: it is not known how far the log goes.
pub fn claim(
    store: &Arc<Store>,
    objset: u64,
    header: &ZilHeader,
    first: u64,
    kept: &Kept,
) -> Result<Claim, BlockError> {
    let mut claiming = Claiming {
        store,
        objset,
        first,
        taken: Vec::new(),
        cloned: Vec::new(),
        seen: HashSet::new(),
        mark: Mark::default(),
        before_block: Mark::default(),
        before_clones: None,
        pending: Vec::new(),
    };
    let mut verified = Ok(true);
    let end = walk_kept(store, header, (kept, Locked::Follow), &mut |item| match item {
        Item::Block(bp) => {
            claiming.block(bp);
            true
        }
        Item::Record(record) => {
            if !claiming.record(&record) {
                return false;
            }
            if claiming.pending.len() >= AT_ONCE {
                verified = claiming.verify();
            }
            matches!(verified, Ok(true))
        }
    });
    // What is wrong before the end of the walk ends the log before that.
    if verified?
        && claiming.verify()?
        && let End::Failed(e) = end
    {
        return Err(e);
    }
    Ok(claiming.done(header))
}

impl Claiming<'_> {
    fn is_fresh(&self, bp: &BlockPointer) -> bool {
        !bp.is_embedded() && bp.logical_birth() >= self.first
    }

    /// Takes a block that is in no space map; whether it was not taken before.
    fn take(&mut self, bp: &BlockPointer) -> bool {
        let fresh = self.is_fresh(bp) && bp.dva(0).is_some_and(|dva| self.seen.insert(dva));
        if fresh {
            self.taken.push(Claimed { bp: *bp, members: Vec::new() });
            self.mark.taken += 1;
        }
        fresh
    }

    /// Takes a log block (`zil_claim_log_block`).
    fn block(&mut self, bp: &BlockPointer) {
        self.mark.blocks += 1;
        self.mark.block_seq = bp.checksum()[3];
        self.take(bp);
        self.before_block = self.mark;
    }

    /// Takes a record. False: the log ends before it, for it refers to what is not on disk.
    fn record(&mut self, record: &RawRecord<'_>) -> bool {
        let (before, taken) = (self.mark, self.mark.taken);
        let cloned = record.cloned_blocks();
        if cloned.iter().any(|bp| bp.physical_birth() >= self.first) {
            return false;
        }
        if !cloned.is_empty() {
            self.before_clones.get_or_insert(before);
        }
        self.mark.cloned += cloned.len();
        self.cloned.extend(cloned);
        if let Some(bp) = record.write_block()
            && self.take(&bp)
        {
            let object = record.data.u64(RECORD_HEADER).unwrap_or(0);
            let (objset, level) = (self.objset, super::ZIL_LEVEL);
            let at = Bookmark { objset, object, level, blkid: 0 };
            let before = self.before_block;
            self.pending.push(Pointed { bp, at, before, taken, read: OnceLock::new() });
        }
        self.mark.records += 1;
        self.mark.bytes += record.len;
        self.mark.record_seq = record.seq;
        true
    }

    /// Reads the blocks that wait for it. False: the log ends before one of them.
    ///
    /// Errors: a device failed.
    fn verify(&mut self) -> Result<bool, BlockError> {
        let pending = std::mem::take(&mut self.pending);
        parallel::each(PRIME_THREADS.count(), &pending, |pointed| {
            let read = || self.read(&pointed.bp, pointed.at);
            let _ = pointed.read.set(Priority::Replay.for_reads(read));
        });
        for pointed in pending {
            match pointed.read.into_inner() {
                Some(Ok(members)) => match self.taken.get_mut(pointed.taken) {
                    Some(taken) => taken.members = members,
                    None => broken(format_args!(
                        "objset {}: a block of its log was read, and is not claimed: {:?}",
                        self.objset, pointed.bp
                    )),
                },
                None => broken(format_args!(
                    "objset {}: a block of its log was not read: {:?}",
                    self.objset, pointed.bp
                )),
                Some(Err(e @ BlockError::Vdev { .. })) => return Err(e),
                Some(Err(_)) => {
                    self.mark = pointed.before;
                    self.taken.truncate(self.mark.taken);
                    self.cloned.truncate(self.mark.cloned);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Finds out whether a block is there; what it consists of.
    fn read(&self, bp: &BlockPointer, at: Bookmark) -> Result<Vec<BlockPointer>, BlockError> {
        self.store.check_speculative(bp, at)?;
        match bp.is_gang() {
            // It was read before.
            true => Store::attempt(|| self.store.gang_members(bp, at)).0,
            false => Ok(Vec::new()),
        }
    }

    fn done(self, header: &ZilHeader) -> Claim {
        let Mark { taken, cloned, blocks, block_seq, records, bytes, record_seq } = self.mark;
        let (objset, all) = (self.objset, (self.taken.len(), self.cloned.len()));
        invariant!(
            all == (taken, cloned),
            "objset {objset}: {all:?} blocks and clones of its log are claimed, and {taken}, {cloned} counted"
        );
        let before_clones = self.before_clones.filter(|mark| mark.records < records);
        let needed = if records > 0 || blocks > 1 { REPLAY_NEEDED } else { 0 };
        let header = ZilHeader {
            claim_txg: self.first,
            claim_blk_seq: block_seq,
            claim_lr_seq: record_seq,
            flags: header.flags | needed | CLAIM_LR_SEQ_VALID,
            ..*header
        };
        Claim { blocks: self.taken, cloned: self.cloned, header, records, bytes, before_clones }
    }
}
