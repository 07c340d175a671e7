//! Writing deadlists.
//!
//! A deadlist's keys are those transaction groups of snapshots that its blocks may be told apart
//! by: 0 (or that of the first snapshot's predecessor), and one for each snapshot before it. A block
//! that dies goes to the list of the last key before its birth. A new snapshot gives the head a new,
//! empty deadlist with one key more; a destroyed one's key goes, and its list becomes part of the one
//! before.
//!
//! The keys are few (one for each snapshot) but read anew in each batch, in which blocks are sorted
//! by list.

use super::mos::{SMALL_BLOCK, corrupt};
use super::{DslWriteError, Result, Sizes, Tx, bpobj};
use crate::number_in_name;
use cenote_dmu::write::NewObject;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_format::dsl::DeadlistPhys;
use cenote_format::encode::dsl::DEADLIST_SIZE;
use cenote_format::{ByteOrder, Bytes};
use std::collections::BTreeMap;

/// Bit of word 7 of a block pointer: the block was rewritten, as old as its physical birth says.
const REWRITTEN: u64 = 1 << 63;

/// The transaction group that a block belongs to (`BP_GET_BIRTH`).
pub(super) fn birth(bp: &BlockPointer) -> u64 {
    let rewritten = !bp.is_embedded() && bp.0[7] & REWRITTEN != 0;
    if rewritten { bp.physical_birth() } else { bp.logical_birth() }
}

/// The name of a key in the ZAP.
fn name(key: u64) -> String {
    format!("{key:x}")
}

/// A new deadlist without keys (`dsl_deadlist_alloc`).
pub(super) fn create(tx: &mut Tx<'_>) -> Result<u64> {
    let new = NewObject {
        bonus_kind: DmuType::DEADLIST_HDR,
        bonus: vec![0; DEADLIST_SIZE],
        ..NewObject::new(DmuType::DEADLIST, SMALL_BLOCK)
    };
    tx.new_zap(&new, 0)
}

fn check(tx: &mut Tx<'_>, object: u64) -> Result<()> {
    match tx.mos.dnode(object)?.kind {
        DmuType::DEADLIST => Ok(()),
        DmuType::BPOBJ => Err(DslWriteError::Unsupported("a deadlist of an old version".into())),
        kind => Err(corrupt(object, format!("a {} is no deadlist", kind.name()))),
    }
}

/// Keys and lists.
fn lists(tx: &mut Tx<'_>, object: u64) -> Result<BTreeMap<u64, u64>> {
    check(tx, object)?;
    let mut lists = BTreeMap::new();
    for entry in tx.zap_entries(object)? {
        match (number_in_name(&entry), entry.u64()) {
            (Some(key), Some(list)) => lists.insert(key, list),
            _ => return Err(corrupt(object, "bad deadlist entry")),
        };
    }
    Ok(lists)
}

/// The sums over a deadlist.
pub(super) fn total(tx: &mut Tx<'_>, object: u64) -> Result<Sizes> {
    check(tx, object)?;
    let bonus = tx.mos.dnode(object)?.bonus.clone();
    let phys = DeadlistPhys::decode(&Bytes::new(&bonus, ByteOrder::Little, "deadlist"))?;
    let (used, compressed, uncompressed) = (phys.used, phys.compressed, phys.uncompressed);
    Ok(Sizes { used, compressed, uncompressed })
}

fn set_total(tx: &mut Tx<'_>, object: u64, total: Sizes) -> Result<()> {
    let Sizes { used, compressed, uncompressed } = total;
    let bonus = DeadlistPhys { used, compressed, uncompressed }.encode();
    Ok(tx.mos.set_bonus(object, DmuType::DEADLIST_HDR, &bonus)?)
}

/// Sums over the blocks born after `after` and not after `until`, which must be keys.
pub(super) fn range(tx: &mut Tx<'_>, object: u64, after: u64, until: u64) -> Result<Sizes> {
    let (mut sum, empty) = (Sizes::default(), bpobj::shared_empty(tx)?);
    for (key, list) in lists(tx, object)? {
        if (after..until).contains(&key) && Some(list) != empty {
            sum.add(bpobj::space(tx, list)?);
        }
    }
    Ok(sum)
}

/// Adds a key, with an empty list (`dsl_deadlist_add_key`).
pub(super) fn add_key(tx: &mut Tx<'_>, object: u64, key: u64) -> Result<()> {
    check(tx, object)?;
    let list = bpobj::create_empty(tx)?;
    tx.zap_add(object, &name(key), list)
}

/// Removes a key; its list becomes part of the one before (`dsl_deadlist_remove_key`).
pub(super) fn remove_key(tx: &mut Tx<'_>, object: u64, key: u64) -> Result<()> {
    let lists = lists(tx, object)?;
    let (Some(&list), Some((&before, &into))) = (lists.get(&key), lists.range(..key).next_back())
    else {
        return Err(corrupt(object, format!("deadlist without key {key}")));
    };
    add_list(tx, object, before, into, list)?;
    tx.zap_remove(object, &name(key)).map(drop)
}

/// Adds the list `list` to the one of `key`, which is `into`.
fn add_list(tx: &mut Tx<'_>, object: u64, key: u64, into: u64, list: u64) -> Result<()> {
    if bpobj::shared_empty(tx)? != Some(into) {
        return bpobj::enqueue_list(tx, into, list);
    }
    // First, so that the shared one is not freed if `list` is it, too.
    tx.zap_set(object, &name(key), list)?;
    bpobj::release_empty(tx)
}

/// Adds blocks (`dsl_deadlist_insert`).
pub(super) fn insert(tx: &mut Tx<'_>, object: u64, blocks: &[BlockPointer]) -> Result<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    let lists = lists(tx, object)?;
    let mut sorted: BTreeMap<u64, Vec<BlockPointer>> = BTreeMap::new();
    let mut sum = total(tx, object)?;
    for bp in blocks {
        let Some((key, _)) = lists.range(..birth(bp)).next_back() else {
            return Err(corrupt(object, format!("deadlist without a key for {bp:?}")));
        };
        sorted.entry(*key).or_default().push(*bp);
        sum.add((tx.space)(bp));
    }
    for (key, blocks) in sorted {
        let mut list = lists.get(&key).copied().unwrap_or_default();
        if bpobj::shared_empty(tx)? == Some(list) {
            list = bpobj::create(tx, bpobj::BLOCK)?;
            bpobj::release_empty(tx)?;
            tx.zap_set(object, &name(key), list)?;
        }
        bpobj::enqueue(tx, list, &blocks)?;
    }
    set_total(tx, object, sum)
}

/// A new, empty deadlist with the keys of `object` that are less than `before`
/// (`dsl_deadlist_clone`).
pub(super) fn clone(tx: &mut Tx<'_>, object: u64, before: u64) -> Result<u64> {
    let keys: Vec<u64> = lists(tx, object)?.range(..before).map(|(key, _)| *key).collect();
    let new = create(tx)?;
    for key in keys {
        add_key(tx, new, key)?;
    }
    Ok(new)
}

/// Frees a deadlist, not the blocks in it (`dsl_deadlist_free`).
pub(super) fn free(tx: &mut Tx<'_>, object: u64) -> Result<()> {
    for list in lists(tx, object)?.into_values() {
        if bpobj::shared_empty(tx)? == Some(list) {
            bpobj::release_empty(tx)?;
        } else {
            bpobj::free(tx, list)?;
        }
    }
    Ok(tx.mos.free(object)?)
}

/// Moves all blocks of the deadlist `from`, which is left without keys, to `object`
/// (`dsl_deadlist_merge`).
pub(super) fn merge(tx: &mut Tx<'_>, object: u64, from: u64) -> Result<()> {
    let mut sum = total(tx, object)?;
    for (key, list) in lists(tx, from)? {
        // Anew each time: where there was the shared empty list, there is another one now.
        let lists = lists(tx, object)?;
        let at = lists.get_key_value(&key).or_else(|| lists.range(..key).next_back());
        let Some((&at, &into)) = at else {
            return Err(corrupt(object, format!("deadlist without key {key}")));
        };
        sum.add(bpobj::space(tx, list)?);
        tx.zap_remove(from, &name(key))?;
        add_list(tx, object, at, into, list)?;
    }
    set_total(tx, from, Sizes::default())?;
    set_total(tx, object, sum)
}

/// Moves the lists of `key` and all later ones to the list `bpobj`, and removes their keys
/// (`dsl_deadlist_move_bpobj`).
pub(super) fn move_from(tx: &mut Tx<'_>, object: u64, key: u64, bpobj: u64) -> Result<()> {
    let mut sum = total(tx, object)?;
    for (key, list) in lists(tx, object)?.split_off(&key) {
        let moved = bpobj::space(tx, list)?;
        sum.used = sum.used.wrapping_sub(moved.used);
        sum.compressed = sum.compressed.wrapping_sub(moved.compressed);
        sum.uncompressed = sum.uncompressed.wrapping_sub(moved.uncompressed);
        bpobj::enqueue_list(tx, bpobj, list)?;
        tx.zap_remove(object, &name(key))?;
    }
    set_total(tx, object, sum)
}
