//! Bookmarks (`dsl_bookmark_create`, `dsl_bookmark_destroy`): creating and destroying them, and what
//! becomes of them when their dataset changes.
//!
//! A bookmark of the newer kind says how much of what its snapshot had was freed before the next
//! snapshot, so that what was written since can be told. That grows as blocks die in the head while
//! the bookmark's snapshot is the newest, and when the next snapshot is destroyed. The deadlist key
//! of such a bookmark's txg stays even when its snapshot goes.
//!
//! A change that destroys many snapshots reads the bookmarks of a head once, and writes those that changed at
//! its end ([`Kept`]).

use super::kept::{Kept, Mark, Marks};
use super::mos::{SMALL_BLOCK, ZAP_METADATA, corrupt};
use super::{
    DslWriteError, Result, Sizes, Tx, clones, crypt, deadlist, features, names, redaction,
};
use crate::name_of;
use cenote_dmu::write::NewObject;
use cenote_dmu::zap::{Match, Zap};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dsl::{BookmarkPhys, DS_FLAG_CI_DATASET, DslDatasetPhys, ZBM_FLAG_HAS_FBN};
use cenote_format::encode::dsl::{BOOKMARK_WORDS_V1, BOOKMARK_WORDS_V2};
use cenote_format::encode::zap::Value;
use cenote_format::invariant;
use cenote_format::zap::norm::TO_UPPER;
use std::collections::{BTreeMap, BTreeSet};

/// Field of a head: the ZAP of bookmarks.
const BOOKMARKS: &str = "com.delphix:bookmarks";
/// Features with uses in bookmarks.
const FEATURE: &str = "com.delphix:bookmarks";
const WRITTEN: &str = "com.delphix:bookmark_written";
const V2: &str = "com.datto:bookmark_v2";
const NOT_ANCESTOR: &str = "source is not an ancestor of the new bookmark's dataset";
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
        let had = |bp: &&BlockPointer| bp.birth() <= bookmark.creation_txg;
        let blocks = blocks.iter().filter(|bp| super::deadlist::counts(bp)).filter(had);
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

impl Marks {
    fn read(tx: &mut Tx<'_>, head_obj: u64) -> Result<Marks> {
        let (zap, bookmarks) = with_sizes(tx, head_obj)?;
        let mut by_txg: BTreeMap<u64, Vec<Mark>> = BTreeMap::new();
        for (name, bookmark) in bookmarks {
            let mark = Mark { name, bookmark, changed: false };
            by_txg.entry(mark.bookmark.creation_txg).or_default().push(mark);
        }
        Ok(Marks { zap, by_txg })
    }

    /// Puts what changed into the ZAP; how many that were.
    fn write(self, tx: &mut Tx<'_>) -> Result<u64> {
        let mut writes = 0;
        for mark in self.by_txg.values().flatten().filter(|mark| mark.changed) {
            let (zap, name) = (self.zap, &mark.name);
            invariant!(zap != 0, "bookmark {name:?} is to be written, and no object has it");
            put(tx, zap, name, &mark.bookmark)?;
            writes += 1;
        }
        Ok(writes)
    }

    /// See [`snapshot_destroyed`].
    fn snapshot_destroyed(
        &mut self,
        tx: &mut Tx<'_>,
        snap: &DslDatasetPhys,
        next_deadlist: u64,
    ) -> Result<bool> {
        let (mut kept, mut summed, mut more) = (false, 0, Sizes::default());
        let since = snap.prev_snap_txg.min(snap.creation_txg);
        for (txg, marks) in self.by_txg.range_mut(since..=snap.creation_txg) {
            let is_of_it = *txg == snap.creation_txg;
            kept |= is_of_it;
            if !is_of_it {
                more.add(deadlist::range(tx, next_deadlist, summed, *txg)?);
                summed = *txg;
            }
            for Mark { bookmark, changed, .. } in marks {
                match is_of_it {
                    true => bookmark.flags &= !SNAPSHOT_EXISTS,
                    false => freed_more(bookmark, more),
                }
                *changed |= is_of_it || more != Sizes::default();
            }
        }
        Ok(kept)
    }
}

/// A snapshot is being destroyed; `next_deadlist` is the deadlist of what comes after it. Whether
/// the deadlist keys of its txg are to stay (`dsl_bookmark_ds_destroyed`).
pub(super) fn snapshot_destroyed(
    tx: &mut Tx<'_>,
    head_obj: u64,
    snap: &DslDatasetPhys,
    next_deadlist: u64,
) -> Result<bool> {
    let mut marks = match kept(tx).and_then(|kept| kept.heads.remove(&head_obj)) {
        Some(marks) => marks,
        None => {
            if let Some(kept) = kept(tx) {
                kept.reads += 1;
            }
            Marks::read(tx, head_obj)?
        }
    };
    let keep_keys = marks.snapshot_destroyed(tx, snap, next_deadlist)?;
    match kept(tx) {
        Some(kept) => {
            let other = kept.heads.insert(head_obj, marks).is_some();
            invariant!(!other, "bookmarks of dataset {head_obj} are kept twice, and written once");
        }
        None => drop(marks.write(tx)?),
    }
    Ok(keep_keys)
}

/// What is kept by a change that destroys many snapshots.
fn kept<'t>(tx: &'t mut Tx<'_>) -> Option<&'t mut Kept> {
    tx.deadlists.as_deref_mut().and_then(deadlist::Keys::kept_bookmarks)
}

/// Writes what was kept, at the end of a change that destroys many snapshots.
pub(super) fn write_kept(tx: &mut Tx<'_>) -> Result<()> {
    let heads = kept(tx).map(|kept| std::mem::take(&mut kept.heads));
    for marks in heads.into_iter().flat_map(BTreeMap::into_values) {
        let writes = marks.write(tx)?;
        if let Some(kept) = kept(tx) {
            kept.writes += writes;
        }
    }
    Ok(())
}

/// Frees the bookmarks of a head that is being destroyed.
pub(super) fn free(tx: &mut Tx<'_>, head_obj: u64) -> Result<()> {
    let (zap, bookmarks) = all(tx, head_obj)?;
    if zap == 0 {
        return Ok(());
    }
    for (name, bookmark) in bookmarks {
        uncount(tx, zap, &name, &bookmark)?;
        redaction::free(tx, &bookmark)?;
    }
    tx.mos.free(zap)?;
    features::decrement(tx, FEATURE)
}

/// The stored name and the contents of a bookmark (`dsl_bookmark_lookup`). Names compare as the names of the head's
/// snapshots do.
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

/// The transaction group of a head's newest bookmark; 0 without bookmarks (`dsl_bookmark_latest_txg`).
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

/// Takes a bookmark from a head, and its features' counts. With the last one the ZAP goes. Its redaction
/// list stays.
fn remove(tx: &mut Tx<'_>, head_obj: u64, name: &str, bookmark: &BookmarkPhys) -> Result<()> {
    let zap = tx.field_number(head_obj, BOOKMARKS)?;
    let zap = zap.ok_or_else(|| corrupt(head_obj, format!("no bookmarks, '{name}' among them")))?;
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
    /// A snapshot of the head, or of one that it is a clone of.
    Snapshot(u64),
    /// A bookmark of such a head, and its name.
    Bookmark(u64, String),
}

/// Whether the state of directory `dir` in transaction group `txg` is an ancestor of what is in `dir_obj`
/// (`dsl_dataset_is_before`). Errors: `Invalid` if it is not.
fn check_ancestor(tx: &mut Tx<'_>, dir_obj: u64, (dir, txg): (u64, u64)) -> Result<()> {
    let (mut at, mut seen) = (dir_obj, BTreeSet::new());
    while at != dir {
        let origin = tx.dir(at)?.origin;
        if origin == 0 || !seen.insert(at) {
            return Err(DslWriteError::Invalid(NOT_ANCESTOR.into()));
        }
        let snap = tx.dataset(origin)?;
        if snap.dir == dir && txg > snap.creation_txg {
            return Err(DslWriteError::Invalid(NOT_ANCESTOR.into()));
        }
        at = snap.dir;
    }
    Ok(())
}

/// A bookmark that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The transaction group that it stands for.
    pub txg: u64,
    /// Object of its redaction list; 0 without one.
    pub list: u64,
}

/// Creates the bookmark `name` of the head `head_obj` (`dsl_bookmark_create_sync`). That of a snapshot that was received
/// redacted has a list of what it is redacted by. That of a redaction bookmark has no list.
///
/// Errors: `Exists`, `NotFound` for the source, `TooLong`, `Invalid` name; `Unsupported` without the feature
/// `bookmarks`; `Invalid` for a source that is no ancestor of the head.
pub fn create(tx: &mut Tx<'_>, head_obj: u64, name: &str, source: &Source) -> Result<Made> {
    check_new(tx, head_obj, name)?;
    let dir = tx.head(head_obj)?.dir;
    let mut bookmark = match source {
        Source::Snapshot(object) => {
            let snap = tx.snapshot(*object)?;
            check_ancestor(tx, dir, (snap.dir, snap.creation_txg))?;
            of_snapshot_with_vectors(tx, *object)?
        }
        Source::Bookmark(from, name) => {
            let (_, bookmark) = find(tx, *from, name)?.ok_or(DslWriteError::NotFound)?;
            let from = tx.head(*from)?.dir;
            check_ancestor(tx, dir, (from, bookmark.creation_txg))?;
            BookmarkPhys { redaction: 0, ..bookmark }
        }
    };
    if find(tx, head_obj, name)?.is_some() {
        return Err(DslWriteError::Exists);
    }
    if let Source::Snapshot(object) = source
        && let Some(by) = features::redacted_by(tx, *object)?
    {
        if by.len() > redaction::most_snapshots(tx)? {
            let what = format!("a bookmark of a snapshot that is redacted by {} others", by.len());
            return Err(DslWriteError::Unsupported(what));
        }
        bookmark.redaction = redaction::create(tx, &by, true)?;
    }
    add(tx, head_obj, name, &bookmark)?;
    Ok(Made { txg: bookmark.creation_txg, list: bookmark.redaction })
}

/// Creates the bookmark `name` of the head `head_obj` with a redaction list of the snapshot `snap_obj` by snapshots of these
/// guids, which is empty and goes on at its beginning (`dsl_bookmark_create_redacted`).
///
/// Errors: as [`create`]; `Unsupported` without the feature `redaction_bookmarks`.
pub fn create_redacted(
    tx: &mut Tx<'_>,
    head_obj: u64,
    name: &str,
    (snap_obj, by): (u64, &[u64]),
) -> Result<Made> {
    check_new(tx, head_obj, name)?;
    if find(tx, head_obj, name)?.is_some() {
        return Err(DslWriteError::Exists);
    }
    let bookmark = of_snapshot_with_vectors(tx, snap_obj)?;
    let bookmark = BookmarkPhys { redaction: redaction::create(tx, by, false)?, ..bookmark };
    add(tx, head_obj, name, &bookmark)?;
    Ok(Made { txg: bookmark.creation_txg, list: bookmark.redaction })
}

/// Whether a head can have a bookmark of this name.
fn check_new(tx: &mut Tx<'_>, head_obj: u64, name: &str) -> Result<()> {
    names::check(name)?;
    let dir = tx.head(head_obj)?.dir;
    let (len, _) = names::length(tx, dir)?;
    names::fits(len, name.len())?;
    match features::is_enabled(tx, FEATURE)? {
        true => Ok(()),
        false => Err(DslWriteError::Unsupported("a bookmark without the feature bookmarks".into())),
    }
}

fn of_snapshot_with_vectors(tx: &mut Tx<'_>, snap_obj: u64) -> Result<BookmarkPhys> {
    let snap = tx.snapshot(snap_obj)?;
    let vectors = crypt::vectors_of(tx, snap_obj)?;
    Ok(BookmarkPhys { ivset_guid: vectors, ..of_snapshot(tx, &snap)? })
}

/// Destroys a bookmark (`dsl_bookmark_destroy_sync_impl`). If nothing else keeps the deadlist key of its
/// transaction group, that goes from the deadlists of the head and of all clones.
///
/// Errors: `NotFound`.
pub fn destroy(tx: &mut Tx<'_>, head_obj: u64, name: &str) -> Result<()> {
    let (name, bookmark) = find(tx, head_obj, name)?.ok_or(DslWriteError::NotFound)?;
    remove(tx, head_obj, &name, &bookmark)?;
    redaction::free(tx, &bookmark)?;
    if bookmark.flags & ZBM_FLAG_HAS_FBN == 0 || bookmark.flags & SNAPSHOT_EXISTS != 0 {
        return Ok(());
    }
    let (txg, head) = (bookmark.creation_txg, tx.head(head_obj)?);
    let (_, others) = with_sizes(tx, head_obj)?;
    if txg < head.prev_snap_txg && others.iter().all(|(_, b)| b.creation_txg != txg) {
        clones::remove_clones_key(tx, head.dir, txg)?;
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

#[cfg(test)]
mod tests {
    use super::super::deadlist::Keys;
    use super::super::pool::create_pool_dirs;
    use super::*;
    use crate::write::{destroy, snapshot};
    use cenote_dmu::outside::Outside;
    use cenote_dmu::write::MetaObjectSet;
    use cenote_format::features::FEATURES;
    use cenote_testsink::MemSink;

    const SNAPSHOTS: u64 = 30;

    fn born(txg: u64) -> BlockPointer {
        let mut bp = BlockPointer::HOLE;
        (bp.0[0], bp.0[1], bp.0[10]) = (1, txg << 9, txg);
        bp
    }

    /// Takes snapshots of a head, each with a bookmark. Between two of them a block of each older one dies.
    fn with_bookmarks(tx: &mut Tx<'_>) -> (u64, Vec<(u64, String)>) {
        let head_obj = create_pool_dirs(tx).unwrap().root_ds;
        for feature in FEATURES {
            features::enable(tx, feature.guid).unwrap();
        }
        let mut snapshots = Vec::new();
        for n in 1..=SNAPSHOTS {
            tx.txg = n * 10;
            let dead: Vec<_> = (1..n).map(|older| born(older * 10 - 1)).collect();
            let head = tx.head(head_obj).unwrap();
            deadlist::insert(tx, head.deadlist, &dead).unwrap();
            let name = format!("s{n}");
            let object = snapshot::snapshot(tx, head_obj, &name).unwrap();
            create(tx, head_obj, &name, &Source::Snapshot(object)).unwrap();
            snapshots.push((object, name));
        }
        (head_obj, snapshots)
    }

    /// Destroys all snapshots but the last, so many at a time. For each bookmark, whether its snapshot is there, and
    /// the bytes that were freed before the next one; how often bookmarks were read, and how many were written.
    fn destroyed(at_once: usize) -> (Vec<(bool, u64)>, u64, u64) {
        let (sink, outside) = (MemSink::new(64 << 20), Outside::default());
        let mut mos = MetaObjectSet::create(sink.store.clone()).unwrap();
        let sizes = |_: &BlockPointer| Sizes { used: 512, compressed: 512, uncompressed: 512 };
        let mut keys = Keys::default();
        let mut tx = Tx::new(&mut mos, 4, &outside, &sizes);
        let (head_obj, snapshots) = with_bookmarks(&mut tx);
        tx.deadlists = Some(&mut keys);
        for some in snapshots[..SNAPSHOTS as usize - 1].chunks(at_once) {
            let some: Vec<_> = some.iter().map(|(object, name)| (*object, name.as_str())).collect();
            let gone = destroy::destroy_snapshots(&mut tx, &some, false).unwrap();
            assert!(gone.iter().all(|gone| *gone));
        }
        let (_, mut left) = all(&mut tx, head_obj).unwrap();
        left.sort_by_key(|(_, bookmark)| bookmark.creation_txg);
        let said = |(_, b): &(String, BookmarkPhys)| (b.flags & SNAPSHOT_EXISTS != 0, b.freed);
        let Kept { reads, writes, .. } = keys.bookmarks_counted();
        (left.iter().map(said).collect(), *reads, *writes)
    }

    #[test]
    fn bookmarks_are_read_and_written_once_however_many_snapshots_go() {
        let gone = SNAPSHOTS - 1;
        let (one_by_one, reads, _) = destroyed(1);
        assert_eq!(reads, gone);
        let (at_once, reads, writes) = destroyed(SNAPSHOTS as usize);
        assert_eq!((reads, writes), (1, gone));
        assert_eq!(at_once, one_by_one);
        // The first one's snapshot had a block that died before each of those behind the next one.
        assert_eq!(at_once[0], (false, 512 * (gone - 1)));
        assert!(at_once[gone as usize].0);
    }
}
