//! Bookmarks: creating and destroying them, and what becomes of them when their dataset changes.
//!
//! A bookmark of the newer kind says how much of what its snapshot had was freed before the next
//! snapshot, so that what was written since can be told. That grows as blocks die in the head while
//! the bookmark's snapshot is the newest, and when the next snapshot is destroyed. The deadlist key
//! of such a bookmark's txg stays even when its snapshot goes.

use super::mos::{SMALL_BLOCK, ZAP_METADATA};
use super::{DslWriteError, Result, Sizes, Tx, deadlist, destroy, features, names};
use crate::name_of;
use cenote_dmu::write::NewObject;
use cenote_dmu::zap::{Match, Zap};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dsl::{BookmarkPhys, DS_FLAG_CI_DATASET, DslDatasetPhys, ZBM_FLAG_HAS_FBN};
use cenote_format::encode::dsl::{BOOKMARK_WORDS_V1, BOOKMARK_WORDS_V2};
use cenote_format::encode::zap::Value;
use cenote_format::zap::norm::TO_UPPER;
use std::collections::BTreeSet;

/// Field of a head: the ZAP of bookmarks.
const BOOKMARKS: &str = "com.delphix:bookmarks";
/// Features with uses in bookmarks.
const FEATURE: &str = "com.delphix:bookmarks";
const WRITTEN: &str = "com.delphix:bookmark_written";
const V2: &str = "com.datto:bookmark_v2";
const REDACTION: &str = "com.delphix:redaction_bookmarks";
const REDACTION_SPILL: &str = "com.delphix:redaction_list_spill";
/// Field of a snapshot that was received redacted.
const REDACTED: &str = "com.delphix:redacted_datasets";
/// `zbm_flags`: the snapshot is still there.
const SNAPSHOT_EXISTS: u64 = 2;

/// The bookmarks of a head: their ZAP, and names and contents.
type Bookmarks = (u64, Vec<(String, BookmarkPhys)>);

fn all(tx: &mut Tx<'_>, head_obj: u64) -> Result<Bookmarks> {
    let zap = tx.field_number(head_obj, BOOKMARKS)?.unwrap_or(0);
    let mut bookmarks = Vec::new();
    for entry in tx.zap_entries(zap)? {
        bookmarks.push((name_of(&entry), BookmarkPhys::decode(&entry.value)?));
    }
    Ok((zap, bookmarks))
}

/// Those that say how much was freed before the next snapshot.
fn with_sizes(tx: &mut Tx<'_>, head_obj: u64) -> Result<Bookmarks> {
    let (zap, mut bookmarks) = all(tx, head_obj)?;
    bookmarks.retain(|(_, b)| b.flags & ZBM_FLAG_HAS_FBN != 0);
    Ok((zap, bookmarks))
}

fn put(tx: &mut Tx<'_>, zap: u64, name: &str, bookmark: &BookmarkPhys) -> Result<()> {
    let words = bookmark.encode(BOOKMARK_WORDS_V2)?;
    tx.zap_put(zap, name, &Value::U64(&words))
}

fn freed_more(bookmark: &mut BookmarkPhys, s: Sizes) {
    bookmark.freed = bookmark.freed.wrapping_add(s.used);
    bookmark.freed_compressed = bookmark.freed_compressed.wrapping_add(s.compressed);
    bookmark.freed_uncompressed = bookmark.freed_uncompressed.wrapping_add(s.uncompressed);
}

/// Blocks died in a head (`dsl_bookmark_block_killed`).
pub(super) fn blocks_killed(
    tx: &mut Tx<'_>,
    (head_obj, head): (u64, &DslDatasetPhys),
    blocks: &[BlockPointer],
) -> Result<()> {
    let (zap, bookmarks) = with_sizes(tx, head_obj)?;
    for (name, mut bookmark) in bookmarks {
        if bookmark.creation_txg < head.prev_snap_txg {
            continue;
        }
        let mut sum = Sizes::default();
        let had = |bp: &&BlockPointer| deadlist::birth(bp) <= bookmark.creation_txg;
        let blocks = blocks.iter().filter(|bp| super::dataset::counts(bp)).filter(had);
        blocks.for_each(|bp| sum.add((tx.space)(bp)));
        if sum != Sizes::default() {
            freed_more(&mut bookmark, sum);
            put(tx, zap, &name, &bookmark)?;
        }
    }
    Ok(())
}

/// Keys that the new deadlist of a head has for its bookmarks, when a snapshot is taken of it
/// (`dsl_bookmark_snapshotted`).
pub(super) fn keys(
    tx: &mut Tx<'_>,
    (head_obj, head): (u64, &DslDatasetPhys),
) -> Result<BTreeSet<u64>> {
    let (_, bookmarks) = with_sizes(tx, head_obj)?;
    let txgs = bookmarks.iter().map(|(_, b)| b.creation_txg);
    Ok(txgs.filter(|txg| *txg > head.prev_snap_txg).collect())
}

/// A snapshot is being destroyed; `next_deadlist` is the deadlist of what comes after it. Whether
/// the deadlist keys of its txg are to stay (`dsl_bookmark_ds_destroyed`).
pub(super) fn snapshot_destroyed(
    tx: &mut Tx<'_>,
    head_obj: u64,
    snap: &DslDatasetPhys,
    next_deadlist: u64,
) -> Result<bool> {
    let (zap, bookmarks) = with_sizes(tx, head_obj)?;
    let mut kept = false;
    for (name, mut bookmark) in bookmarks {
        if bookmark.creation_txg == snap.creation_txg {
            bookmark.flags &= !SNAPSHOT_EXISTS;
            kept = true;
        } else if (snap.prev_snap_txg..snap.creation_txg).contains(&bookmark.creation_txg) {
            let more = deadlist::range(tx, next_deadlist, 0, bookmark.creation_txg)?;
            freed_more(&mut bookmark, more);
        } else {
            continue;
        }
        put(tx, zap, &name, &bookmark)?;
    }
    Ok(kept)
}

/// Frees the bookmarks of a head that is being destroyed.
pub(super) fn free(tx: &mut Tx<'_>, head_obj: u64) -> Result<()> {
    let (zap, bookmarks) = all(tx, head_obj)?;
    if zap == 0 {
        return Ok(());
    }
    for (name, bookmark) in bookmarks {
        uncount(tx, zap, &name, &bookmark)?;
        free_redaction(tx, &bookmark)?;
    }
    tx.mos.free(zap)?;
    features::decrement(tx, FEATURE)
}

/// The stored name and the contents of a bookmark. Names compare as those of the head's snapshots do.
pub fn find(tx: &mut Tx<'_>, head_obj: u64, name: &str) -> Result<Option<(String, BookmarkPhys)>> {
    let zap = tx.field_number(head_obj, BOOKMARKS)?.unwrap_or(0);
    if zap == 0 {
        return Ok(None);
    }
    let fold_case = tx.head(head_obj)?.flags & DS_FLAG_CI_DATASET != 0;
    let zap = Zap::open(&tx.view(zap)?)?;
    let found = match fold_case {
        true => zap.lookup_norm(name.as_bytes(), Match { fold_case })?,
        false => zap.lookup(name.as_bytes())?,
    };
    match found {
        Some(entry) => Ok(Some((name_of(&entry), BookmarkPhys::decode(&entry.value)?))),
        None => Ok(None),
    }
}

/// The transaction group of a head's newest bookmark; 0 if it has none (`dsl_bookmark_latest_txg`).
pub(super) fn latest_txg(tx: &mut Tx<'_>, head_obj: u64) -> Result<u64> {
    let (_, bookmarks) = all(tx, head_obj)?;
    Ok(bookmarks.iter().map(|(_, b)| b.creation_txg).max().unwrap_or(0))
}

/// What a bookmark says of a snapshot (`dsl_bookmark_set_phys`).
fn of_snapshot(tx: &mut Tx<'_>, snap: &DslDatasetPhys) -> Result<BookmarkPhys> {
    let mut bookmark = BookmarkPhys::decode(&[snap.guid, snap.creation_txg, snap.creation_time])?;
    if features::is_enabled(tx, WRITTEN)? {
        let next = tx.dataset(snap.next_snap)?.deadlist;
        bookmark.flags = SNAPSHOT_EXISTS | ZBM_FLAG_HAS_FBN;
        bookmark.referenced = snap.referenced;
        bookmark.compressed = snap.compressed;
        bookmark.uncompressed = snap.uncompressed;
        freed_more(&mut bookmark, deadlist::total(tx, next)?);
    }
    Ok(bookmark)
}

/// Adds a bookmark to a head, and counts its features (`dsl_bookmark_node_add`).
fn add(tx: &mut Tx<'_>, head_obj: u64, name: &str, bookmark: &BookmarkPhys) -> Result<()> {
    let zap = match tx.field_number(head_obj, BOOKMARKS)? {
        Some(zap) => zap,
        None => {
            let zap = tx.new_zap(&NewObject::new(ZAP_METADATA, SMALL_BLOCK), TO_UPPER)?;
            features::increment(tx, FEATURE)?;
            tx.zapify(head_obj)?;
            tx.zap_set(head_obj, BOOKMARKS, zap)?;
            zap
        }
    };
    let words = if bookmark.needs_v2() { BOOKMARK_WORDS_V2 } else { BOOKMARK_WORDS_V1 };
    if words == BOOKMARK_WORDS_V2 {
        features::increment(tx, V2)?;
    }
    if bookmark.flags & ZBM_FLAG_HAS_FBN != 0 {
        features::increment(tx, WRITTEN)?;
    }
    tx.zap_put(zap, name, &Value::U64(&bookmark.encode(words)?))
}

/// Takes back what [`add`] counted. Of the newer kind are those that are stored with more words; pools of
/// OpenZFS may have counted fewer of them.
fn uncount(tx: &mut Tx<'_>, zap: u64, name: &str, bookmark: &BookmarkPhys) -> Result<()> {
    let stored = tx.zap_get(zap, name)?.map_or(0, |(_, words)| words.len());
    if stored > BOOKMARK_WORDS_V1 && features::is_active(tx, V2)? {
        features::decrement(tx, V2)?;
    }
    if bookmark.flags & ZBM_FLAG_HAS_FBN != 0 {
        features::decrement(tx, WRITTEN)?;
    }
    Ok(())
}

/// Frees the redaction list of a bookmark that is destroyed.
fn free_redaction(tx: &mut Tx<'_>, bookmark: &BookmarkPhys) -> Result<()> {
    if bookmark.redaction == 0 {
        return Ok(());
    }
    if tx.view(bookmark.redaction)?.dnode().spill.is_some() {
        features::decrement(tx, REDACTION_SPILL)?;
    }
    tx.mos.free(bookmark.redaction)?;
    features::decrement(tx, REDACTION)
}

/// Takes a bookmark from a head, and its features' counts. With the last one the ZAP goes. Its redaction
/// list stays.
fn remove(tx: &mut Tx<'_>, head_obj: u64, name: &str, bookmark: &BookmarkPhys) -> Result<()> {
    let Some(zap) = tx.field_number(head_obj, BOOKMARKS)? else { return Ok(()) };
    uncount(tx, zap, name, bookmark)?;
    tx.zap_remove(zap, name)?;
    if tx.zap_is_empty(zap)? {
        tx.zap_remove(head_obj, BOOKMARKS)?;
        tx.mos.free(zap)?;
        features::decrement(tx, FEATURE)?;
    }
    Ok(())
}

/// What a new bookmark is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A snapshot of the head.
    Snapshot(u64),
    /// Another bookmark of the head, by name.
    Bookmark(String),
}

/// Creates the bookmark `name` of the head `head_obj` (`dsl_bookmark_create_sync`); the transaction group
/// that it stands for.
///
/// Errors: `Exists`, `NotFound` for the source, `TooLong`, `Invalid` name; `Unsupported` without the feature
/// `bookmarks`, for a source of another dataset or one that is redacted.
pub fn create(tx: &mut Tx<'_>, head_obj: u64, name: &str, source: &Source) -> Result<u64> {
    names::check(name)?;
    let head = tx.head(head_obj)?;
    let (len, _) = names::length(tx, head.dir)?;
    names::fits(len, name.len())?;
    if !features::is_enabled(tx, FEATURE)? {
        return Err(DslWriteError::Unsupported("a bookmark without the feature bookmarks".into()));
    }
    destroy::refuse_encrypted(tx, head.dir)?;
    let bookmark = match source {
        Source::Snapshot(object) => {
            let snap = tx.snapshot(*object)?;
            if snap.dir != head.dir {
                let what = "a bookmark of another dataset's snapshot";
                return Err(DslWriteError::Unsupported(what.into()));
            }
            if tx.field(*object, REDACTED)?.is_some() {
                let what = "a bookmark of a redacted snapshot";
                return Err(DslWriteError::Unsupported(what.into()));
            }
            of_snapshot(tx, &snap)?
        }
        Source::Bookmark(from) => {
            find(tx, head_obj, from)?.map(|(_, b)| b).ok_or(DslWriteError::NotFound)?
        }
    };
    if bookmark.redaction != 0 {
        return Err(DslWriteError::Unsupported("a copy of a redaction bookmark".into()));
    }
    if find(tx, head_obj, name)?.is_some() {
        return Err(DslWriteError::Exists);
    }
    add(tx, head_obj, name, &bookmark)?;
    Ok(bookmark.creation_txg)
}

/// Destroys a bookmark (`dsl_bookmark_destroy_sync_impl`). If nothing else keeps the deadlist key of its
/// transaction group, that goes from the deadlists of the head and of all clones.
///
/// Errors: `NotFound`.
pub fn destroy(tx: &mut Tx<'_>, head_obj: u64, name: &str) -> Result<()> {
    let (name, bookmark) = find(tx, head_obj, name)?.ok_or(DslWriteError::NotFound)?;
    remove(tx, head_obj, &name, &bookmark)?;
    free_redaction(tx, &bookmark)?;
    if bookmark.flags & ZBM_FLAG_HAS_FBN == 0 || bookmark.flags & SNAPSHOT_EXISTS != 0 {
        return Ok(());
    }
    let (txg, head) = (bookmark.creation_txg, tx.head(head_obj)?);
    let (_, others) = with_sizes(tx, head_obj)?;
    if txg < head.prev_snap_txg && others.iter().all(|(_, b)| b.creation_txg != txg) {
        destroy::remove_clones_key(tx, head.dir, txg)?;
        deadlist::remove_key(tx, head.deadlist, txg)?;
    }
    Ok(())
}

/// What comes after the snapshot `snap_obj` of a head has changed: bookmarks of it say anew how much was
/// freed before that (`dsl_bookmark_next_changed`).
pub(super) fn next_changed(tx: &mut Tx<'_>, head_obj: u64, snap_obj: u64) -> Result<()> {
    let (zap, bookmarks) = with_sizes(tx, head_obj)?;
    let snap = tx.dataset(snap_obj)?;
    for (name, mut bookmark) in bookmarks {
        if bookmark.creation_txg == snap.creation_txg {
            let next = tx.dataset(snap.next_snap)?.deadlist;
            (bookmark.freed, bookmark.freed_compressed, bookmark.freed_uncompressed) = (0, 0, 0);
            freed_more(&mut bookmark, deadlist::total(tx, next)?);
            put(tx, zap, &name, &bookmark)?;
        }
    }
    Ok(())
}

/// The bookmarks of `from` up to transaction group `until` whose names `to` has already.
pub(super) fn taken(
    tx: &mut Tx<'_>,
    from: u64,
    (to, _): &(u64, DslDatasetPhys),
    until: u64,
) -> Result<Vec<String>> {
    let (_, bookmarks) = all(tx, from)?;
    let mut taken = Vec::new();
    for (name, _) in bookmarks.into_iter().filter(|(_, b)| b.creation_txg <= until) {
        if find(tx, *to, &name)?.is_some() {
            taken.push(name);
        }
    }
    Ok(taken)
}

/// The snapshots up to `origin` have moved from the head `from` to the head `to`: so do the bookmarks.
pub(super) fn promoted(tx: &mut Tx<'_>, from: u64, to: u64, origin: u64) -> Result<()> {
    let until = tx.dataset(origin)?.creation_txg;
    let (_, bookmarks) = all(tx, from)?;
    for (name, bookmark) in bookmarks.iter().filter(|(_, b)| b.creation_txg <= until) {
        remove(tx, from, name, bookmark)?;
        add(tx, to, name, bookmark)?;
    }
    next_changed(tx, to, origin)
}
