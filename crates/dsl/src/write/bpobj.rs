//! Writing lists of block pointers.
//!
//! Entries and sub-lists are only ever added to, and taken from, the end. A list that is added whole
//! to another one becomes a sub-list, unless it is small: then its entries are copied.
//!
//! With the feature `empty_bpobj` all deadlists share one empty list (`empty_bpobj` of the object
//! directory) until they have something to hold. The feature's count of uses is that of references
//! to it; it is freed with the last one.
//!
//! What cannot be read when a list is emptied is left out, and goes on being in the sums of the lists that
//! it was in: what an empty list still has in its sums was [leaked](take_lost).
//!
//! Invariants: a header's sums cover its own entries and all lists below it; an entry's
//! fill count and checksum are zero, since that compresses better.

use super::mos::corrupt;
use super::{DslWriteError, Result, Sizes, Tx, Unreadable, directory, features};
use crate::bpobj::FREED;
use cenote_dmu::write::{NewObject, indirect_shift};
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dmu::DmuType;
use cenote_format::dsl::BpobjPhys;
use cenote_format::{ByteOrder, Bytes, invariant, less};
use cenote_store::{Access, Bookmark};
use std::ops::Range;

const EMPTY_BPOBJ: &str = "com.delphix:empty_bpobj";
const LIVELIST: &str = "com.delphix:livelist";
/// Entry of the object directory.
const EMPTY_ENTRY: &str = "empty_bpobj";
/// Bytes of a header without sub-lists, as versions before 26 have it (`BPOBJ_SIZE_V1`).
const PLAIN_HEADER: usize = 32;
/// Bytes of a header without and with a count of freed entries (`BPOBJ_SIZE_V2`, `V3`).
const HEADER: usize = 48;
const HEADER_WITH_FREED: usize = 56;
/// Bytes of a block of a list (`SPA_OLD_MAXBLOCKSIZE`).
pub(super) const BLOCK: u64 = 128 << 10;
/// Bytes of a block of a list of which little is added to at a time: the last block is written anew each time.
pub(super) const SMALL: u64 = 16 << 10;
/// Bytes of an entry of a list of sub-lists.
const WORD: u64 = 8;
/// Sub-lists within each other that are followed.
const MAX_NESTING: usize = 1 << 12;
/// Entries of livelists that are read at once: from many blocks.
const READ_AT_ONCE: u64 = 64 * BATCH;
/// Blocks of one list that are read ahead.
const MOST_AHEAD: u64 = 1 << 12;
/// Entries that are read at once.
pub(super) const BATCH: u64 = BLOCK / BLKPTR_SIZE as u64;

/// Allocates an empty list with blocks of `block_size` bytes (`bpobj_alloc`).
pub fn create(tx: &mut Tx<'_>, block_size: u64) -> Result<u64> {
    let header = match features::is_active(tx, LIVELIST)? {
        true => HEADER_WITH_FREED,
        false if !have_sub_lists(tx)? => PLAIN_HEADER,
        false => HEADER,
    };
    allocate(tx, block_size, header)
}

/// Allocates an empty list that can have sub-lists, whatever version the pool is of as yet.
pub(super) fn create_with_sub_lists(tx: &mut Tx<'_>, block_size: u64) -> Result<u64> {
    allocate(tx, block_size, HEADER)
}

/// Whether lists can have sub-lists: pools from version 26 on have a list of blocks to be freed, of such lists
/// (`SPA_VERSION_DEADLISTS`).
pub(super) fn have_sub_lists(tx: &mut Tx<'_>) -> Result<bool> {
    Ok(directory::entry(tx, directory::FREE_BPOBJ)?.is_some())
}

fn allocate(tx: &mut Tx<'_>, block_size: u64, header: usize) -> Result<u64> {
    Ok(tx.mos.allocate(&NewObject {
        bonus_kind: DmuType::BPOBJ_HDR,
        bonus: vec![0; header],
        indirect_shift: indirect_shift(block_size),
        ..NewObject::new(DmuType::BPOBJ, block_size)
    })?)
}

/// The shared empty list; `None` if it is not in use.
pub(super) fn shared_empty(tx: &mut Tx<'_>) -> Result<Option<u64>> {
    directory::entry(tx, EMPTY_ENTRY)
}

/// An empty list that is not to be changed before it is replaced (`bpobj_alloc_empty`).
pub(super) fn create_empty(tx: &mut Tx<'_>) -> Result<u64> {
    match share_empty(tx, 1)? {
        Some(empty) => Ok(empty),
        None => create(tx, BLOCK),
    }
}

/// As many references to the shared empty list; `None` if the pool has no such list.
pub(super) fn share_empty(tx: &mut Tx<'_>, count: usize) -> Result<Option<u64>> {
    if count == 0 {
        return Ok(None);
    }
    let Some(uses) = features::count(tx, EMPTY_BPOBJ)? else { return Ok(None) };
    let empty = match shared_empty(tx)? {
        Some(empty) => empty,
        None if uses == 0 => {
            let empty = create(tx, BLOCK)?;
            directory::set_entry(tx, EMPTY_ENTRY, empty)?;
            empty
        }
        None => return Err(corrupt(0, "no empty_bpobj")),
    };
    features::change(tx, EMPTY_BPOBJ, count as i64)?;
    Ok(Some(empty))
}

/// Gives back a reference to the shared empty list (`bpobj_decr_empty`).
pub(super) fn release_empty(tx: &mut Tx<'_>) -> Result<()> {
    release_empties(tx, 1)
}

/// Gives back as many of them.
pub(super) fn release_empties(tx: &mut Tx<'_>, count: usize) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    features::change(tx, EMPTY_BPOBJ, (count as i64).wrapping_neg())?;
    if !features::is_active(tx, EMPTY_BPOBJ)?
        && let Some(empty) = shared_empty(tx)?
    {
        directory::remove_entry(tx, EMPTY_ENTRY)?;
        tx.mos.free(empty)?;
    }
    Ok(())
}

/// The header, and how many bytes of it there are.
fn header(tx: &mut Tx<'_>, object: u64) -> Result<(BpobjPhys, usize)> {
    let dnode = tx.mos.dnode(object)?;
    if dnode.kind != DmuType::BPOBJ || dnode.bonus_kind != DmuType::BPOBJ_HDR {
        return Err(corrupt(object, "no list of block pointers"));
    }
    let bonus = dnode.bonus.clone();
    if bonus.len() < PLAIN_HEADER {
        return Err(DslWriteError::Unsupported("a block pointer list of an old version".into()));
    }
    let phys = BpobjPhys::decode(&Bytes::new(&bonus, ByteOrder::Little, "bpobj"))
        .map_err(|e| corrupt(object, e.to_string()))?;
    Ok((phys, bonus.len()))
}

fn set_header(tx: &mut Tx<'_>, object: u64, phys: &BpobjPhys, len: usize) -> Result<()> {
    let bonus = phys.encode(len)?;
    tx.mos.set_bonus(object, DmuType::BPOBJ_HDR, &bonus)?;
    let (now, entries) = (header(tx, object)?.0.entries, phys.entries);
    invariant!(now == entries, "list {object} has {entries} entries, and says {now}");
    Ok(())
}

/// The sums over a list (`bpobj_space`).
pub(super) fn space(tx: &mut Tx<'_>, object: u64) -> Result<Sizes> {
    let (phys, _) = header(tx, object)?;
    let (used, compressed, uncompressed) = (phys.bytes, phys.compressed, phys.uncompressed);
    Ok(Sizes { used, compressed, uncompressed })
}

/// Whether entries can be added: the header and the block of the last entry can be read.
pub(super) fn check(tx: &mut Tx<'_>, object: u64) -> Result<()> {
    let (phys, _) = header(tx, object)?;
    let mut word = [0; WORD as usize];
    Ok(tx.mos.read(object, phys.entries.wrapping_mul(BLKPTR_SIZE as u64), &mut word)?)
}

/// Whether a list has neither entries nor sub-lists.
pub(super) fn is_empty(tx: &mut Tx<'_>, object: u64) -> Result<bool> {
    let (phys, _) = header(tx, object)?;
    Ok(phys.entries == 0 && phys.num_subobjs == 0)
}

/// A block pointer as lists hold it.
fn stored(bp: &BlockPointer) -> BlockPointer {
    let mut out = *bp;
    if bp.is_embedded() {
        // The payload is not needed, but sizes and birth are.
        out = BlockPointer::HOLE;
        (out.0[6], out.0[10]) = (bp.0[6], bp.0[10]);
    } else if !bp.is_dedup() {
        out.0[12..].fill(0);
    }
    out.0[11] = 0;
    out
}

fn add_sizes(phys: &mut BpobjPhys, sizes: Sizes) {
    phys.bytes = phys.bytes.wrapping_add(sizes.used);
    phys.compressed = phys.compressed.wrapping_add(sizes.compressed);
    phys.uncompressed = phys.uncompressed.wrapping_add(sizes.uncompressed);
}

fn take_sizes(phys: &mut BpobjPhys, sizes: Sizes) {
    phys.bytes = phys.bytes.wrapping_sub(sizes.used);
    phys.compressed = phys.compressed.wrapping_sub(sizes.compressed);
    phys.uncompressed = phys.uncompressed.wrapping_sub(sizes.uncompressed);
}

/// Reads the entries of lists that are so short that they are copied when they become part of another one.
pub(super) fn read_short_ahead(
    tx: &mut Tx<'_>,
    lists: impl IntoIterator<Item = u64>,
) -> Result<()> {
    let mut wanted = Vec::new();
    for list in lists {
        let dnode = tx.mos.dnode(list)?;
        if dnode.max_block == 0 && dnode.levels == 1 {
            let stored = dnode.pointers.first().copied().filter(|bp| !bp.is_hole());
            wanted.extend(stored.map(|bp| (bp, at(tx, list, 0, 0))));
        }
    }
    load(tx, &wanted);
    Ok(())
}

/// Reads entries of lists ahead of the code that goes through them: of all lists at once, level by level. What cannot
/// be read is left to him.
pub(super) fn read_ahead(tx: &mut Tx<'_>, lists: &[u64]) {
    let on_disk = lists.iter().filter_map(|list| tx.mos.synced().object(*list).ok());
    let on_disk: Vec<_> = on_disk.collect();
    let (mut roots, mut below) = (Vec::new(), Vec::new());
    for object in &on_disk {
        let level = object.dnode().levels.saturating_sub(1);
        let stored = (0..).zip(&object.dnode().pointers).filter(|(_, bp)| !bp.is_hole());
        roots.extend(stored.map(|(blkid, bp)| (*bp, at(tx, object.number(), level, blkid))));
    }
    load(tx, &roots);
    for object in on_disk.iter().filter(|object| object.dnode().levels == 2) {
        for blkid in 0..=object.dnode().max_block.min(MOST_AHEAD) {
            let stored = object.block_pointer(0, blkid).ok().filter(|bp| !bp.is_hole());
            below.extend(stored.map(|bp| (bp, at(tx, object.number(), 0, blkid))));
        }
    }
    load(tx, &below);
}

fn at(tx: &Tx<'_>, object: u64, level: u8, blkid: u64) -> Bookmark {
    Bookmark { objset: tx.mos.synced().id(), object, level: level.into(), blkid }
}

/// A single block is read by the code that needs it.
fn load(tx: &Tx<'_>, blocks: &[(BlockPointer, Bookmark)]) {
    if blocks.len() > 1 {
        tx.mos.synced().store().load(blocks, Access::Once);
    }
}

/// Adds block pointers to a list (`bpobj_enqueue`).
pub fn enqueue(tx: &mut Tx<'_>, object: u64, blocks: &[BlockPointer]) -> Result<()> {
    enqueue_as(tx, object, blocks, Mark::Alloc)
}

/// What an entry of a livelist records. Other lists have entries of the first kind only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// The block was allocated.
    Alloc,
    /// The block was freed: the entry cancels one of the first kind.
    Free,
}

/// Adds block pointers to a list with a mark. The sums of a livelist are the sizes of allocated blocks less
/// the sizes of freed ones.
pub(super) fn enqueue_as<'b>(
    tx: &mut Tx<'_>,
    object: u64,
    blocks: impl IntoIterator<Item = &'b BlockPointer, IntoIter: ExactSizeIterator>,
    mark: Mark,
) -> Result<()> {
    let blocks = blocks.into_iter();
    let count = blocks.len();
    if count == 0 {
        return Ok(());
    }
    // All deadlists of the pool would have what one of them gets.
    if shared_empty(tx)? == Some(object) {
        return Err(corrupt(object, format!("{count} blocks for the shared empty list")));
    }
    let (mut phys, len) = header(tx, object)?;
    let mut data = Vec::with_capacity(count * BLKPTR_SIZE);
    for bp in blocks {
        let (sizes, mut stored) = ((tx.space)(bp), stored(bp));
        if mark == Mark::Free {
            take_sizes(&mut phys, sizes);
            stored.0[11] = FREED;
        } else {
            add_sizes(&mut phys, sizes);
        }
        for word in stored.0 {
            data.extend_from_slice(&word.to_le_bytes());
        }
    }
    tx.mos.write(object, phys.entries.wrapping_mul(BLKPTR_SIZE as u64), &data)?;
    let (count, bytes) = (count as u64, data.len());
    let written = bytes == count as usize * BLKPTR_SIZE;
    invariant!(written, "list {object}: {count} entries were to be written, in {bytes} bytes");
    phys.entries = phys.entries.wrapping_add(count);
    if mark == Mark::Free {
        phys.freed = phys.freed.wrapping_add(count);
    }
    set_header(tx, object, &phys, len)
}

/// Entries of a sub-list of a livelist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// All of them.
    pub entries: u64,
    /// Sizes of freed blocks.
    pub freed: u64,
}

/// How many entries a sub-list of a livelist has.
///
/// # Errors
/// `Unreadable` if there are lists in it, which livelists never have.
pub(super) fn counts(tx: &mut Tx<'_>, object: u64) -> Result<Counts> {
    let (phys, _) = header(tx, object)?;
    if phys.subobjs != 0 || phys.freed > phys.entries {
        return Err(corrupt(object, "no sub-list of a livelist"));
    }
    Ok(Counts { entries: phys.entries, freed: phys.freed })
}

/// The entries of a list in a range of their numbers, and which of them are of freed blocks.
pub(super) fn entries(
    tx: &mut Tx<'_>,
    object: u64,
    range: Range<u64>,
) -> Result<Vec<(BlockPointer, Mark)>> {
    let room = tx.mos.dnode(object)?;
    let room = room.max_block.saturating_add(1).saturating_mul(room.block_size);
    if range.end.saturating_mul(BLKPTR_SIZE as u64) > room {
        return Err(corrupt(object, format!("{} entries", range.end)));
    }
    let wanted = less!(range.end, range.start, "entries of list {object}, from one on");
    let count = wanted.min(READ_AT_ONCE);
    let (mut found, mut at) = (Vec::with_capacity(count as usize), range.start);
    while at < range.end {
        let count = (range.end - at).min(READ_AT_ONCE);
        let data = read(tx, object, at * BLKPTR_SIZE as u64, count * BLKPTR_SIZE as u64)?;
        let bytes = Bytes::new(&data, ByteOrder::Little, "block pointer list");
        for i in 0..count as usize {
            let bp = BlockPointer::decode(&bytes, i * BLKPTR_SIZE)?;
            let mark = if bp.0[11] & FREED != 0 { Mark::Free } else { Mark::Alloc };
            found.push((bp, mark));
        }
        at += count;
    }
    let count = found.len() as u64;
    invariant!(count == wanted, "list {object}: {count} entries are read where {wanted} are");
    Ok(found)
}

/// Takes the entries from number `entries` on, of allocated blocks that are so large, from a list that has
/// no others.
pub(super) fn cut(tx: &mut Tx<'_>, object: u64, entries: u64, sizes: Sizes) -> Result<()> {
    let (mut phys, len) = header(tx, object)?;
    let (had, freed) = (phys.entries, phys.freed);
    invariant!(
        entries <= had && freed == 0,
        "list {object}: it is cut to {entries} of {had} entries, {freed} of them of freed blocks"
    );
    phys.entries = entries;
    take_sizes(&mut phys, sizes);
    tx.mos.truncate(object, entries.wrapping_mul(BLKPTR_SIZE as u64))?;
    set_header(tx, object, &phys, len)
}

/// Whether all data of an object is in its first block.
fn one_block(tx: &mut Tx<'_>, object: u64) -> Result<bool> {
    Ok(tx.mos.dnode(object)?.max_block == 0)
}

fn read(tx: &mut Tx<'_>, object: u64, from: u64, len: u64) -> Result<Vec<u8>> {
    let bytes =
        usize::try_from(len).map_err(|_| corrupt(object, format!("{len} bytes at once")))?;
    let mut data = vec![0; bytes];
    tx.mos.read(object, from, &mut data)?;
    Ok(data)
}

/// The bytes of `count` items of `size` bytes each, which are in the first block.
fn first_block(tx: &mut Tx<'_>, object: u64, count: u64, size: u64) -> Result<Vec<u8>> {
    match count.checked_mul(size) {
        Some(len) if len <= tx.mos.dnode(object)?.block_size => read(tx, object, 0, len),
        _ => Err(corrupt(object, format!("{count} items in one block"))),
    }
}

/// Appends to the list of sub-lists, which is created if need be.
fn append_lists(tx: &mut Tx<'_>, phys: &mut BpobjPhys, lists: &[u8]) -> Result<()> {
    let bytes = lists.len() as u64;
    invariant!(bytes.is_multiple_of(WORD), "{bytes} bytes are no numbers of lists");
    if phys.subobjs == 0 {
        phys.subobjs = tx.mos.allocate(&NewObject::new(DmuType::BPOBJ_SUBOBJ, BLOCK))?;
    }
    tx.mos.write(phys.subobjs, phys.num_subobjs.wrapping_mul(WORD), lists)?;
    phys.num_subobjs = phys.num_subobjs.wrapping_add(lists.len() as u64 / WORD);
    Ok(())
}

/// Adds all that is in the list `sub` to the list `object`, which takes over `sub`
/// (`bpobj_enqueue_subobj`).
pub(super) fn enqueue_list(tx: &mut Tx<'_>, object: u64, sub: u64) -> Result<()> {
    if shared_empty(tx)? == Some(sub) {
        return release_empty(tx);
    }
    if object == sub {
        return Err(corrupt(object, "list is to be part of itself"));
    }
    if is_empty(tx, sub)? {
        return free(tx, sub);
    }
    let (mut phys, len) = header(tx, object)?;
    let (mut below, below_len) = header(tx, sub)?;
    add_sizes(&mut phys, space(tx, sub)?);
    let few_lists = below.subobjs == 0 || one_block(tx, below.subobjs)?;
    let few_entries = few_lists && one_block(tx, sub)?;
    if few_lists && below.subobjs != 0 {
        let lists = first_block(tx, below.subobjs, below.num_subobjs, WORD)?;
        append_lists(tx, &mut phys, &lists)?;
        tx.mos.free(below.subobjs)?;
        (below.subobjs, below.num_subobjs) = (0, 0);
        if !few_entries {
            for list in lists.as_chunks().0 {
                take_sizes(&mut below, space(tx, u64::from_le_bytes(*list))?);
            }
            set_header(tx, sub, &below, below_len)?;
        }
    }
    if few_entries {
        let entries = first_block(tx, sub, below.entries, BLKPTR_SIZE as u64)?;
        let (count, bytes) = (below.entries, entries.len());
        let is_whole = count.checked_mul(BLKPTR_SIZE as u64) == Some(bytes as u64);
        invariant!(is_whole, "list {object} takes {bytes} bytes of {count} entries of list {sub}");
        tx.mos.write(object, phys.entries.wrapping_mul(BLKPTR_SIZE as u64), &entries)?;
        phys.entries = phys.entries.wrapping_add(below.entries);
        tx.mos.free(sub)?;
    } else {
        append_lists(tx, &mut phys, &sub.to_le_bytes())?;
    }
    set_header(tx, object, &phys, len)
}

/// Frees a list with its sub-lists, not the blocks in it (`bpobj_free`).
pub fn free(tx: &mut Tx<'_>, object: u64) -> Result<()> {
    let mut waiting = vec![object];
    while let Some(list) = waiting.pop() {
        let (phys, _) = header(tx, list)?;
        if phys.subobjs != 0 {
            let room = tx.mos.dnode(phys.subobjs)?;
            let room = room.max_block.saturating_add(1).saturating_mul(room.block_size);
            if phys.num_subobjs.saturating_mul(WORD) > room {
                return Err(corrupt(list, format!("{} lists in it", phys.num_subobjs)));
            }
            for i in 0..phys.num_subobjs {
                waiting.push(list_at(tx, phys.subobjs, i)?);
            }
            tx.mos.free(phys.subobjs)?;
        }
        // A list that is in there twice is not found again, which ends the walk.
        tx.mos.free(list)?;
    }
    Ok(())
}

fn list_at(tx: &mut Tx<'_>, subobjs: u64, index: u64) -> Result<u64> {
    let mut word = [0; WORD as usize];
    tx.mos.read(subobjs, index.wrapping_mul(WORD), &mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// Takes up to `budget` block pointers out of a list and the lists below it, which are freed when
/// they are empty (`bpobj_iterate`). What cannot be read is left out. Fewer than `budget` means that the list is empty.
pub(super) fn take(tx: &mut Tx<'_>, object: u64, budget: u64) -> Result<Vec<BlockPointer>> {
    let mut taken = Vec::new();
    let mut path = vec![object];
    while let Some(&list) = path.last() {
        let (phys, len) = match header(tx, list) {
            Err(DslWriteError::Unreadable(why)) if path.len() > 1 => {
                lost(list, &why);
                path.pop();
                if let Some(&above) = path.last() {
                    forget_last(tx, above)?;
                }
                continue;
            }
            header => header?,
        };
        let left =
            less!(budget, taken.len() as u64, "blocks that are to be taken from list {object}");
        if phys.entries > 0 {
            if left == 0 {
                break;
            }
            let sizes = take_entries(tx, list, (phys, len), left, &mut taken)?;
            for above in path.iter().rev().skip(1) {
                let (mut phys, len) = header(tx, *above)?;
                take_sizes(&mut phys, sizes);
                set_header(tx, *above, &phys, len)?;
            }
        } else if phys.num_subobjs > 0 {
            match list_at(tx, phys.subobjs, phys.num_subobjs - 1) {
                Ok(last) if path.len() < MAX_NESTING && !path.contains(&last) => path.push(last),
                Ok(_) => return Err(corrupt(list, "lists within each other")),
                Err(DslWriteError::Unreadable(why)) => {
                    lost(list, &why);
                    forget_all(tx, list)?;
                }
                Err(e) => return Err(e),
            }
        } else {
            path.pop();
            if let Some(&above) = path.last() {
                drop_last(tx, above, list, &phys)?;
            }
        }
    }
    Ok(taken)
}

fn lost(list: u64, why: &Unreadable) {
    tracing::warn!("part of the list of freed blocks {list} is lost: {why}");
}

/// Takes the sums out of a list that is empty: sizes of blocks that could not be read.
pub(super) fn take_lost(tx: &mut Tx<'_>, object: u64) -> Result<Sizes> {
    let (mut phys, len) = header(tx, object)?;
    let left = space(tx, object)?;
    // Less than nothing: it is no sum.
    if left == Sizes::default() || left.used > i64::MAX as u64 {
        return Ok(Sizes::default());
    }
    take_sizes(&mut phys, left);
    set_header(tx, object, &phys, len)?;
    Ok(left)
}

/// Takes up to `left` entries from the end of a list's own; their sizes. A block of them that cannot be
/// read is left out.
fn take_entries(
    tx: &mut Tx<'_>,
    list: u64,
    (mut phys, len): (BpobjPhys, usize),
    left: u64,
    taken: &mut Vec<BlockPointer>,
) -> Result<Sizes> {
    let per_block = (tx.mos.dnode(list)?.block_size / BLKPTR_SIZE as u64).max(1);
    let in_block = (phys.entries - 1) / per_block * per_block;
    let count = phys.entries.min(left).min(BATCH).min(phys.entries - in_block);
    let had = phys.entries;
    invariant!(count > 0, "list {list}: nothing is taken of {had} entries, {left} at most");
    let from = (phys.entries - count).wrapping_mul(BLKPTR_SIZE as u64);
    let mut sizes = Sizes::default();
    phys.entries = match read(tx, list, from, count * BLKPTR_SIZE as u64) {
        Ok(data) => {
            let bytes = Bytes::new(&data, ByteOrder::Little, "block pointer list");
            for i in (0..count as usize).rev() {
                let bp = BlockPointer::decode(&bytes, i * BLKPTR_SIZE)?;
                sizes.add((tx.space)(&bp));
                taken.push(bp);
            }
            phys.entries - count
        }
        Err(DslWriteError::Unreadable(why)) => {
            lost(list, &why);
            // Below an indirect block nothing can be found or taken out.
            if why.level() > 0 { 0 } else { in_block }
        }
        Err(e) => return Err(e),
    };
    let now = phys.entries;
    invariant!(now < had, "list {list}: {now} of {had} entries are left when some were taken");
    take_sizes(&mut phys, sizes);
    tx.mos.truncate(list, phys.entries.wrapping_mul(BLKPTR_SIZE as u64))?;
    set_header(tx, list, &phys, len)?;
    Ok(sizes)
}

/// Forgets the last list in `list`, which cannot be read.
fn forget_last(tx: &mut Tx<'_>, list: u64) -> Result<()> {
    let (mut phys, len) = header(tx, list)?;
    let fewer = phys.num_subobjs.checked_sub(1);
    phys.num_subobjs = fewer.ok_or_else(|| corrupt(list, "no list to forget"))?;
    tx.mos.free_range(phys.subobjs, phys.num_subobjs.wrapping_mul(WORD), WORD)?;
    set_header(tx, list, &phys, len)
}

/// Forgets all lists in `list`, whose numbers cannot be read.
fn forget_all(tx: &mut Tx<'_>, list: u64) -> Result<()> {
    let (mut phys, len) = header(tx, list)?;
    tx.mos.free(phys.subobjs)?;
    (phys.subobjs, phys.num_subobjs) = (0, 0);
    set_header(tx, list, &phys, len)
}

/// Frees the empty list `last`, the last one in `list`.
fn drop_last(tx: &mut Tx<'_>, list: u64, last: u64, last_phys: &BpobjPhys) -> Result<()> {
    forget_last(tx, list)?;
    if last_phys.subobjs != 0 {
        tx.mos.free(last_phys.subobjs)?;
    }
    Ok(tx.mos.free(last)?)
}
