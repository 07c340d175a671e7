//! Redaction lists that are made (`dsl_bookmark_create_redacted`, `redaction_list_update_sync`).
//!
//! A list comes to be with its bookmark, and is empty: it says where to go on. Each change appends entries and says
//! where they end, so that a list that was interrupted goes on. The last one says that it is complete.
//!
//! The snapshots that it is made by lie in the bonus buffer, or where there are more of them than fit, in a spill block, which
//! counts as a use of the feature `redaction_list_spill`.

use super::mos::{WORDS_METADATA, corrupt};
use super::{DslWriteError, Result, Tx, features};
use cenote_dmu::write::NewObject;
use cenote_format::dsl::BookmarkPhys;
use cenote_format::redaction::{ENTRY_SIZE, RedactBlocks, RedactionList};
use cenote_format::{ByteOrder, Bytes};

/// The feature of bookmarks with a list.
pub(super) const FEATURE: &str = "com.delphix:redaction_bookmarks";
/// The feature of lists with a spill block.
const SPILL: &str = "com.delphix:redaction_list_spill";
/// Bytes of a bonus buffer (`dmu_bonus_max`).
const BONUS: usize = 320;
/// Bytes of a block of a list (`SPA_OLD_MAXBLOCKSIZE`).
pub const BLOCK: u64 = 128 << 10;
/// Most snapshots by which there is a list: what is received by it names them in an entry of a ZAP
/// (`ZAP_MAXVALUELEN`).
pub const MAX_SNAPS: usize = 1024;

/// How many snapshots a list can be made by.
///
/// Errors: `Unsupported` without the feature `redaction_bookmarks`.
pub fn most_snapshots(tx: &mut Tx<'_>) -> Result<usize> {
    if !features::is_enabled(tx, FEATURE)? {
        return Err(DslWriteError::Unsupported("redaction bookmarks".into()));
    }
    Ok(match features::is_enabled(tx, SPILL)? {
        true => MAX_SNAPS,
        false => (BONUS - RedactionList::size(0)) / 8,
    })
}

/// Makes an empty list by the snapshots of these guids; its object. One that is `complete` names no block.
pub(super) fn create(tx: &mut Tx<'_>, snaps: &[u64], complete: bool) -> Result<u64> {
    let last = if complete { RedactionList::COMPLETE } else { (0, 0) };
    let bytes = RedactionList { last, entries: 0, snaps: snaps.to_vec() }.encode();
    let spills = bytes.len() > BONUS;
    let new = NewObject {
        bonus_kind: WORDS_METADATA,
        bonus: if spills { Vec::new() } else { bytes.clone() },
        spills,
        ..NewObject::new(WORDS_METADATA, BLOCK)
    };
    let object = tx.mos.allocate(&new)?;
    features::increment(tx, FEATURE)?;
    if spills {
        set_spill(tx, object, bytes)?;
        features::increment(tx, SPILL)?;
    }
    Ok(object)
}

fn set_spill(tx: &mut Tx<'_>, object: u64, mut bytes: Vec<u8>) -> Result<()> {
    bytes.resize(bytes.len().next_multiple_of(cenote_format::SECTOR as usize), 0);
    Ok(tx.mos.set_spill(object, Some(bytes))?)
}

/// What a list says of itself.
///
/// Errors: it cannot be read.
pub fn read(tx: &mut Tx<'_>, object: u64) -> Result<RedactionList> {
    let list = match tx.mos.spill(object)? {
        Some(spill) => RedactionList::decode(&Bytes::new(&spill, ByteOrder::Little, "spill block")),
        None => RedactionList::decode(&tx.view(object)?.bonus()),
    };
    list.map_err(|e| corrupt(object, e.to_string()))
}

/// Appends entries to a list, of which `known` is what its maker left. It goes on at `last` from now on, or is complete.
/// Returns what it says of itself then.
///
/// Errors: `Busy`: it is another list, or somebody else went on with it; it cannot be read or written.
pub fn append(
    tx: &mut Tx<'_>,
    object: u64,
    known: &RedactionList,
    entries: &[RedactBlocks],
    last: (u64, u64),
) -> Result<RedactionList> {
    let mut list = read(tx, object)?;
    if list != *known {
        return Err(DslWriteError::Busy);
    }
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_SIZE);
    for entry in entries {
        bytes.extend(entry.encode()?);
    }
    let at = list.entries.checked_mul(ENTRY_SIZE as u64);
    let at = at.ok_or_else(|| corrupt(object, format!("{} entries", list.entries)))?;
    if !bytes.is_empty() {
        tx.mos.write(object, at, &bytes)?;
    }
    list.entries += entries.len() as u64;
    list.last = last;
    match tx.mos.spill(object)?.is_some() {
        true => set_spill(tx, object, list.encode())?,
        false => tx.mos.set_bonus(object, WORDS_METADATA, &list.encode())?,
    }
    Ok(list)
}

/// Frees the list of a bookmark that is destroyed.
pub(super) fn free(tx: &mut Tx<'_>, bookmark: &BookmarkPhys) -> Result<()> {
    if bookmark.redaction == 0 {
        return Ok(());
    }
    // A damaged bookmark frees nothing else.
    let kind = tx.view(bookmark.redaction)?.dnode().kind;
    if kind != WORDS_METADATA {
        return Err(corrupt(bookmark.redaction, format!("a redaction list of type {}", kind.0)));
    }
    if tx.mos.dnode_with_spill(bookmark.redaction)?.1 {
        features::decrement(tx, SPILL)?;
    }
    tx.mos.free(bookmark.redaction)?;
    features::decrement(tx, FEATURE)
}
