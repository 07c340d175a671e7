//! The chain of log blocks of one dataset (`lwb_t`).
//!
//! # Invariants
//!
//! - The records of one change ([`Unit`]) are in one block, which is there as a whole or not at all. Where they
//!   are more than a block holds, all blocks that [`Chain::place`] found are written and durable before the first of
//!   them is ([`Placed::write`]): before that nothing leads to them.
//! - The header that leads to the first block is written in the group that allocates it ([`Chain::check`]), and no block
//!   is written before that header is on disk.
//! - A group in which a block was allocated is held until the block that names it is written. So a block that is in a space
//!   map on disk is also in a chain on disk.

use super::encoder::{Encoded, Unit, length};
use crate::{Disk, tunables};
use cenote_dsl::zil::NO_LOG;
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum::Checksum;
use cenote_format::compress::Compression;
use cenote_format::crypt::CryptError;
use cenote_format::dmu::{DmuType, ZilHeader};
use cenote_format::encode::EncodeError;
use cenote_format::encode::blkptr::BlockProps;
use cenote_format::encode::zil::{capacity, chain_block, encrypted_chain_block};
use cenote_format::invariant::broken;
use cenote_format::zil::chain::CHAIN_SIZE;
use cenote_format::{invariant, less};
use cenote_store::alloc::{AllocError, Class, Request};
use cenote_store::keys::LoadedKey;
use cenote_vdev::traffic::Content;
use cenote_vdev::{BlockWrite, Priority, VdevError};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Sizes of log blocks in bytes (`zil_block_buckets`).
const SIZES: [usize; 5] = [8 << 10, 16 << 10, 32 << 10, 64 << 10, LARGEST];
/// The largest one (`zil_maxblocksize`).
const LARGEST: usize = 128 << 10;
/// Commits that the size of the next block is guessed from (`ZIL_BURSTS`).
const BURSTS: usize = 8;
/// Where the group and the sequence number are in a record.
const TXG_AT: usize = 16;
const SEQ_AT: usize = 24;

/// Why nothing could be put into the chain.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChainError {
    #[error(transparent)]
    Alloc(#[from] AllocError),
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Chance(#[from] std::io::Error),
    #[error(transparent)]
    Crypt(#[from] CryptError),
    #[error("the log was ended")]
    Ended,
}

/// A block that is written, or being written.
struct Written {
    bp: BlockPointer,
    /// Youngest group of its records, and of its allocation.
    txg: u64,
}

/// See the head of the module (`zilog_t`).
#[derive(Default)]
pub(super) struct Chain {
    blocks: VecDeque<Written>,
    /// The block that is written next.
    next: Option<BlockPointer>,
    /// A header that leads to the chain is on disk.
    started: bool,
    /// The group that has it first, if it is not on disk yet: that in which the first block was allocated.
    starts_in: Option<u64>,
    /// That group has the header that leads to the first block.
    has_header: bool,
    /// A block could not be written: nothing behind it would be found.
    failed: bool,
    /// Sequence number of the last record.
    seq: u64,
    /// Bytes of the last commits.
    bursts: VecDeque<usize>,
    /// The key that encrypts the blocks, in an encrypted dataset.
    key: Option<Arc<LoadedKey>>,
    /// Blocks begin with their headers (`ZIO_CHECKSUM_ZILOG2`), which they end with in pools before version 23.
    slim: bool,
}

/// The sizes that blocks may have.
fn sizes() -> impl DoubleEndedIterator<Item = usize> + Clone {
    let most = usize::try_from(tunables::ZIL_MAXBLOCKSIZE.get()).unwrap_or(LARGEST);
    SIZES.into_iter().filter(move |size| *size <= most)
}

/// The block size for so many bytes of records.
fn size_for(records: usize) -> usize {
    let needed = records.saturating_add(CHAIN_SIZE);
    sizes().find(|size| *size >= needed).or_else(|| sizes().next_back()).unwrap_or(LARGEST)
}

/// Allocates a block (`zio_alloc_zil`) whose checksum is seeded with `words`.
fn allocate(
    disk: &Disk,
    (size, txg): (usize, u64),
    words: [u64; 4],
    (key, slim): (Option<&LoadedKey>, bool),
) -> Result<BlockPointer, ChainError> {
    let psize = size as u64;
    let (copies, gang, near) = (1, false, None);
    let request =
        Request { psize, copies, class: Class::Log, allocator: 1, gang, near, among: None };
    // Before anything is allocated, which would have to be given back.
    let params = key.map(|key| disk.store.keys().params(key)).transpose()?;
    let (_, dvas) = disk.allocator.allocate(txg, &request)?;
    let bp = BlockPointer::new(&BlockProps {
        kind: DmuType::INTENT_LOG,
        level: 0,
        checksum: if slim { Checksum::Zilog2 } else { Checksum::Zilog },
        compression: Compression::Off,
        lsize: psize,
        psize,
        dedup: false,
        dvas: &dvas,
        logical_birth: txg,
        physical_birth: 0,
        fill: 0,
        sum: words,
    })?;
    Ok(match &params {
        Some(params) => bp.protected(Some(params))?,
        None => bp,
    })
}

/// The words that seed the checksum of the block after `bp`.
fn after(bp: &BlockPointer) -> [u64; 4] {
    let [a, b, objset, seq] = bp.checksum();
    [a, b, objset, seq.wrapping_add(1)]
}

/// A block with records, sealed (`zil_lwb_write_issue`): the part of it that is used, or, if it is to be `whole`,
/// all of it.
fn encode(
    bp: &BlockPointer,
    next: &BlockPointer,
    (records, whole): (&[Encoded], bool),
    key: Option<&LoadedKey>,
) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::with_capacity(records.iter().map(|record| record.bytes.len()).sum());
    records.iter().for_each(|record| bytes.extend_from_slice(&record.bytes));
    let mut block = match key {
        Some(key) => encrypted_chain_block(bp, *next, &bytes, key.key())?,
        None => chain_block(bp, *next, &bytes)?,
    };
    if whole {
        block.resize(usize::try_from(bp.psize()).unwrap_or(0), 0);
    }
    Ok(block)
}

/// Records, divided among blocks.
struct Divided {
    /// The size of each block and its records.
    blocks: Vec<(usize, Vec<Encoded>)>,
    /// The records of some change are in several blocks.
    spans: bool,
}

/// Divides the records of changes, in order, among blocks, the first of which has `first` bytes. What fits into a
/// block is not divided.
fn divide(first: usize, units: Vec<Unit>) -> Divided {
    let most = size_for(usize::MAX) - CHAIN_SIZE;
    let mut left: usize = units.iter().map(|unit| length(unit)).sum();
    let (mut blocks, mut spans) = (vec![(first, Vec::new())], false);
    let mut room = first - CHAIN_SIZE;
    for unit in units {
        let whole = length(&unit);
        let mut together = whole <= most && whole > room;
        for (n, record) in unit.into_iter().enumerate() {
            let len = record.bytes.len();
            if together || len > room {
                let needed = if together { whole } else { len };
                let least = SIZES.into_iter().find(|size| capacity(*size) >= needed);
                let size = size_for(left).max(least.unwrap_or(LARGEST));
                blocks.push((size, Vec::new()));
                room = size - CHAIN_SIZE;
                spans |= n > 0;
                together = false;
            }
            // A record that is too long for any block is refused when the block is encoded.
            (room, left) = (room.saturating_sub(len), less!(left, len, "bytes of log records"));
            if let Some((_, last)) = blocks.last_mut() {
                last.push(record);
            }
        }
    }
    Divided { blocks, spans }
}

/// Whether the records of some change are in several of these blocks, as they are.
fn is_torn(blocks: &[(usize, Vec<Encoded>)]) -> bool {
    let mut full =
        blocks.iter().filter_map(|(_, records)| Some((records.first()?, records.last()?)));
    let Some((_, mut last)) = full.next() else { return false };
    full.any(|(first, end)| std::mem::replace(&mut last, end).change == first.change)
}

/// Blocks that are to be written.
pub(super) struct Placed {
    /// That which the chain on disk leads to.
    first: Vec<BlockWrite>,
    /// Those after it.
    rest: Vec<BlockWrite>,
    /// The records of some change are in several of them.
    spans: bool,
}

impl Placed {
    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &BlockWrite> {
        self.first.iter().chain(&self.rest)
    }

    /// Writes the blocks, which are durable when the vdevs that they are on are flushed ([`flush`]). `tops`: what else
    /// the records need.
    ///
    /// # Errors
    /// A block was not written.
    pub fn write(
        mut self,
        disk: &Disk,
        priority: Priority,
        tops: &BTreeSet<u64>,
    ) -> Result<(), VdevError> {
        if self.spans {
            write(disk, priority, &self.rest)?;
            flush(disk, tops)?;
        } else {
            self.first.append(&mut self.rest);
        }
        write(disk, priority, &self.first)
    }
}

impl Chain {
    /// One whose blocks `key` encrypts, if there is one.
    pub fn of(key: Option<Arc<LoadedKey>>, slim: bool) -> Chain {
        Chain { key, slim, ..Chain::default() }
    }

    /// Whether blocks can be written to it.
    pub fn is_started(&self) -> bool {
        self.started
    }

    /// Whether there is a block of it.
    pub fn is_there(&self) -> bool {
        self.next.is_some() || !self.blocks.is_empty()
    }

    /// Group `txg` is on disk: with it a header that leads to the chain, if that was started in it.
    pub fn synced(&mut self, txg: u64) {
        if self.starts_in.take_if(|from| *from <= txg).is_some() {
            self.started = self.has_header && self.next.is_some() && !self.failed;
        }
    }

    /// Whether group `txg`, which is being written, has the header of a chain that starts in it.
    ///
    /// # Errors
    /// It has not: nothing would lead to a block that it allocated.
    pub fn check(&self, txg: u64) -> Result<(), String> {
        match self.starts_in {
            Some(from) if from <= txg && !self.has_header => {
                Err(format!("no header leads to the log that starts in group {from}"))
            }
            _ => Ok(()),
        }
    }

    /// A block could not be written.
    pub fn fail(&mut self) {
        (self.failed, self.started) = (true, false);
    }

    /// Allocates the first block in group `txg`, which is going to write the header.
    pub fn start(&mut self, disk: &Disk, (ds_obj, txg): (u64, u64)) -> Result<(), ChainError> {
        if self.is_there() {
            return Err(ChainError::Ended);
        }
        let chance = &disk.outside.chance;
        let words = [chance.number()?, chance.number()?, ds_obj, 1];
        self.next = Some(allocate(disk, (SIZES[1], txg), words, (self.key.as_deref(), self.slim))?);
        (self.starts_in, self.has_header) = (Some(txg), false);
        Ok(())
    }

    /// Finds places for the records of changes, and for the block after them; allocates in group `txg`. Returns what is
    /// to be written.
    ///
    /// # Errors
    /// There is no space; nothing is changed then.
    pub fn place(
        &mut self,
        disk: &Disk,
        txg: u64,
        mut units: Vec<Unit>,
    ) -> Result<Placed, ChainError> {
        let first = self.next.filter(|_| self.started).ok_or(ChainError::Ended)?;
        let mut seq = self.seq;
        for record in units.iter_mut().flatten() {
            seq += 1;
            let fields = [(TXG_AT, record.txg), (SEQ_AT, seq)];
            for (at, value) in fields {
                let len = record.bytes.len();
                match record.bytes.get_mut(at..at + 8) {
                    Some(field) => field.copy_from_slice(&value.to_le_bytes()),
                    None => broken(format_args!("a log record of {len} bytes")),
                }
            }
        }
        let bytes: usize = units.iter().map(|unit| length(unit)).sum();
        self.bursts.push_back(bytes);
        if self.bursts.len() > BURSTS {
            self.bursts.pop_front();
        }
        let guess = size_for(self.bursts.iter().copied().max().unwrap_or(0));
        let Divided { blocks, spans } = divide(usize::try_from(first.psize()).unwrap_or(0), units);
        invariant!(
            is_torn(&blocks) == spans,
            "records of a change are in several log blocks, and it is said of them: {spans}"
        );
        let count = blocks.iter().map(|(_, records)| records.len()).sum::<usize>() as u64;
        let wanted = less!(seq, self.seq, "sequence numbers of log records");
        invariant!(count == wanted, "{count} of {wanted} records have a place in log blocks");
        let sizes = blocks.iter().skip(1).map(|(size, _)| *size).chain([guess]);
        let mut pointers = vec![first];
        let (key, slim) = (self.key.as_deref(), self.slim);
        let placed = sizes.into_iter().try_for_each(|size| {
            let words = pointers.last().map_or([0; 4], after);
            pointers.push(allocate(disk, (size, txg), words, (key, slim))?);
            Ok(())
        });
        let writes = placed.and_then(|()| encode_all(disk, &pointers, &blocks, key));
        let Ok(mut writes) = writes else {
            for dva in pointers.iter().skip(1).flat_map(BlockPointer::dvas) {
                let back = disk.allocator.unallocate(txg, &dva);
                invariant!(back.is_ok(), "{dva:?} cannot be given back: {back:?}");
            }
            return Err(writes.err().unwrap_or(ChainError::Ended));
        };
        for (bp, (_, records)) in pointers.iter().zip(&blocks) {
            let youngest = records.iter().map(|r| r.txg).max().unwrap_or(0);
            invariant!(youngest <= txg, "records of group {youngest} are logged in group {txg}");
            self.blocks.push_back(Written { bp: *bp, txg: youngest.max(bp.logical_birth()) });
        }
        (self.next, self.seq) = (pointers.last().copied(), seq);
        let rest = writes.split_off(writes.len().min(1)).into_iter().flatten().collect();
        Ok(Placed { first: writes.into_iter().flatten().collect(), rest, spans })
    }

    /// What the header of group `txg` says, and the blocks that are freed in it (`zil_header_in_syncing_context`). `end`: no
    /// more is written to the chain; it goes if all its records are of this group or of older ones.
    pub fn sync(&mut self, txg: u64, end: bool) -> Option<(ZilHeader, Vec<BlockPointer>)> {
        let mut freed = Vec::new();
        while let Some(first) = self.blocks.front().filter(|block| block.txg <= txg) {
            let birth = first.bp.logical_birth();
            invariant!(birth <= txg, "a log block that was born in {birth} is freed in {txg}");
            freed.push(first.bp);
            self.blocks.pop_front();
        }
        if (end || self.failed)
            && self.blocks.is_empty()
            && let Some(next) = self.next.take_if(|next| next.logical_birth() <= txg)
        {
            freed.push(next);
            (self.started, self.failed, self.starts_in) = (false, false, None);
        }
        let first = self.blocks.front().map(|block| block.bp).or(self.next);
        self.has_header |= self.starts_in.is_some_and(|from| from <= txg);
        Some((ZilHeader { log: first.unwrap_or(BlockPointer::HOLE), ..NO_LOG }, freed))
    }
}

/// What is to be written of each block (`zil_lwb_commit`).
fn encode_all(
    disk: &Disk,
    pointers: &[BlockPointer],
    blocks: &[(usize, Vec<Encoded>)],
    key: Option<&LoadedKey>,
) -> Result<Vec<Vec<BlockWrite>>, ChainError> {
    let tree = disk.tree();
    // Where a block lies on RAID-Z goes by its size, so that all of it has to be written (`zio_shrink`).
    let by_size = |vdev: u32| tree.top(vdev.into()).is_none_or(|top| top.nparity() > 0);
    let mut writes = Vec::new();
    for (pair, (_, records)) in pointers.windows(2).zip(blocks) {
        let [bp, next] = pair else { broken(format_args!("a log block without a next one")) };
        let whole = bp.dvas().any(|dva| by_size(dva.vdev));
        let data = Abd::from_vec(encode(bp, next, (records, whole), key)?);
        let (txg, content) = (bp.logical_birth(), Content::Metadata);
        let write = |dva: Dva| {
            let (vdev, offset) = (dva.vdev.into(), dva.offset);
            BlockWrite { vdev, offset, data: data.clone(), txg, content, sides: Vec::new() }
        };
        writes.push(bp.dvas().map(write).collect());
    }
    Ok(writes)
}

fn write(disk: &Disk, priority: Priority, writes: &[BlockWrite]) -> Result<(), VdevError> {
    disk.tree().write_many_as(priority, writes).into_iter().collect()
}

/// Makes durable what was written to these vdevs.
///
/// # Errors
/// Some of it is not there for sure.
pub(super) fn flush(disk: &Disk, tops: &BTreeSet<u64>) -> Result<(), VdevError> {
    if tunables::ZIL_NOCACHEFLUSH.is_on() {
        return Ok(());
    }
    let tops: Vec<u64> = tops.iter().copied().collect();
    disk.tree().flush_tops(&tops)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(change: usize, lengths: &[usize]) -> Unit {
        let record = |len: &usize| Encoded { txg: 1, change: change as u64, bytes: vec![0; *len] };
        lengths.iter().map(record).collect()
    }

    fn shape(first: usize, units: &[&[usize]]) -> (Vec<(usize, Vec<usize>)>, bool) {
        let units = units.iter().enumerate().map(|(n, lengths)| unit(n, lengths)).collect();
        let Divided { blocks, spans } = divide(first, units);
        assert_eq!(is_torn(&blocks), spans);
        let lengths = |r: Vec<Encoded>| r.iter().map(|r| r.bytes.len()).collect();
        (blocks.into_iter().map(|(size, r)| (size, lengths(r))).collect(), spans)
    }

    #[test]
    fn records_are_divided_in_order() {
        let whole = |blocks| (blocks, false);
        assert_eq!(shape(8192, &[&[4000], &[4000]]), whole(vec![(8192, vec![4000, 4000])]));
        let two = vec![(8192, vec![4000, 4000]), (8192, vec![200])];
        assert_eq!(shape(8192, &[&[4000], &[4000], &[200]]), whole(two));
        // One that does not fit leaves the block empty.
        let large = vec![(8192, vec![]), (64 << 10, vec![60_000])];
        assert_eq!(shape(8192, &[&[60_000]]), whole(large));
        let (many, spans) = shape(8192, &[&[65_000][..]; 4]);
        let sizes: Vec<usize> = many.iter().map(|(size, _)| *size).collect();
        assert_eq!((sizes, spans), (vec![8192, LARGEST, LARGEST], false));
        assert_eq!(many.iter().map(|(_, r)| r.len()).sum::<usize>(), 4);
    }

    #[test]
    fn a_change_is_in_one_block_if_that_can_be() {
        // It would fit in part.
        let blocks = vec![(8192, vec![4000]), (8192, vec![4000, 3000])];
        assert_eq!(shape(8192, &[&[4000], &[4000, 3000]]), (blocks, false));
        let blocks = vec![(8192, vec![]), (32 << 10, vec![6000; 3])];
        assert_eq!(shape(8192, &[&[6000, 6000], &[6000]]), (blocks, false));
        // More than any block has room for.
        let (found, spans) = shape(8192, &[&[100], &[60_000; 3]]);
        assert!(spans);
        assert_eq!(found.iter().map(|(_, r)| r.len()).collect::<Vec<_>>(), [1, 2, 1]);
        // The rest goes on behind it.
        assert!(!shape(LARGEST, &[&[60_000; 2], &[60_000; 2]]).1);
    }

    #[test]
    fn blocks_are_as_large_as_they_have_to_be() {
        assert_eq!(size_for(0), 8192);
        assert_eq!(size_for(8192 - CHAIN_SIZE), 8192);
        assert_eq!(size_for(8192 - CHAIN_SIZE + 1), 16 << 10);
        assert_eq!(size_for(1 << 30), LARGEST);
    }
}
