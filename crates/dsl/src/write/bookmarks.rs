//! What becomes of bookmarks when their dataset changes.
//!
//! A bookmark of the newer kind says how much of what its snapshot had was freed before the next
//! snapshot, so that what was written since can be told. That grows as blocks die in the head while
//! the bookmark's snapshot is the newest, and when the next snapshot is destroyed. The deadlist key
//! of such a bookmark's txg stays even when its snapshot goes.

use super::{Result, Sizes, Tx, deadlist, features};
use crate::name_of;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dsl::{BookmarkPhys, DslDatasetPhys, ZBM_FLAG_HAS_FBN};
use cenote_format::encode::dsl::BOOKMARK_WORDS_V2;
use cenote_format::encode::zap::Value;
use std::collections::BTreeSet;

/// Field of a head: the ZAP of bookmarks.
const BOOKMARKS: &str = "com.delphix:bookmarks";
/// Features with uses in bookmarks.
const FEATURE: &str = "com.delphix:bookmarks";
const WRITTEN: &str = "com.delphix:bookmark_written";
const REDACTION: &str = "com.delphix:redaction_bookmarks";
const REDACTION_SPILL: &str = "com.delphix:redaction_list_spill";
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
    for (_, bookmark) in bookmarks {
        if bookmark.redaction != 0 {
            if tx.view(bookmark.redaction)?.dnode().spill.is_some() {
                features::decrement(tx, REDACTION_SPILL)?;
            }
            tx.mos.free(bookmark.redaction)?;
            features::decrement(tx, REDACTION)?;
        }
        if bookmark.flags & ZBM_FLAG_HAS_FBN != 0 {
            features::decrement(tx, WRITTEN)?;
        }
    }
    tx.mos.free(zap)?;
    features::decrement(tx, FEATURE)
}
