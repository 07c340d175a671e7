//! Writing deadlists.
//!
//! A deadlist's keys are those transaction groups of snapshots that its blocks may be told apart
//! by: 0 (or that of the first snapshot's predecessor), and one for each snapshot before it. A block
//! that dies goes to the list of the last key before its birth. A new snapshot gives the head a new,
//! empty deadlist with one key more; a destroyed one's key goes, and its list becomes part of the one
//! before.
//!
//! Datasets from before version 26 have a *plain* deadlist: one list of block pointers, without keys. What was born
//! in some range is found by going through all of it. New deadlists are such ones as long as the pool is of such a version;
//! afterwards a new one gets the keys of all snapshots before it ([`clone`]), so that the plain ones go with their snapshots.
//!
//! There is a key for each snapshot. The keys of a deadlist that was added to stay in memory ([`Keys`]) from
//! group to group, until some other change is made to the pool. A change that destroys many snapshots
//! keeps the keys of all deadlists that it meets, and the bookmarks of the heads ([`destroy`](super::destroy)).

use super::kept::Kept;
use super::mos::{SMALL_BLOCK, corrupt};
use super::own::Books;
use super::{Result, Sizes, Tx, bpobj};
pub(super) use crate::deadlist::counts;
use crate::number_in_name;
use cenote_dmu::write::NewObject;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_format::dsl::DeadlistPhys;
use cenote_format::encode::dsl::DEADLIST_SIZE;
use cenote_format::invariant::broken;
use cenote_format::{ByteOrder, Bytes, invariant, less};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Keys and lists of deadlists that were added to (`dl_tree`), from group to group.
#[derive(Debug, Default)]
pub struct Keys {
    known: HashMap<u64, Lists>,
    /// Keys of all that are known.
    total: usize,
    reads: u64,
    /// Whether every deadlist is kept, for one change.
    all: bool,
    bookmarks: Kept,
    /// Livelists that have blocks of the transaction group.
    begun: (u64, HashSet<u64>),
    /// Sub-lists of a livelist that can become one.
    pub(super) condensable: Option<Pair>,
    /// What heads have of blocks that were born here ([`own`](super::own)).
    pub(super) books: Books,
}

/// The list of each key.
pub(super) type Lists = BTreeMap<u64, u64>;

/// Two neighbouring sub-lists of a livelist (`livelist_condense_entry_t`): key and list of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    pub(super) dir_obj: u64,
    pub(super) livelist: u64,
    pub(super) first: (u64, u64),
    pub(super) next: (u64, u64),
}

/// Keys that are kept in memory, of all deadlists together.
const MAX_KEYS: usize = 1 << 20;

impl Keys {
    /// Forgets all: deadlists and heads may have changed in another way than by syncs of heads.
    pub fn forget(&mut self) {
        self.known.clear();
        self.total = 0;
        self.books.clear();
    }

    /// Notes that a livelist gets blocks of a transaction group; whether these are the first.
    pub(super) fn begin(&mut self, txg: u64, livelist: u64) -> bool {
        if self.begun.0 != txg {
            self.begun = (txg, HashSet::new());
        }
        self.begun.1.insert(livelist)
    }

    /// How often the keys of a deadlist were read.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Keys that every deadlist keeps, until one change ends.
    pub(super) fn of_one_change() -> Keys {
        Keys { all: true, ..Keys::default() }
    }

    /// Forgets what another change may have changed, and adds what that one counted.
    pub(super) fn follow(&mut self, inner: &Keys) {
        self.forget();
        self.reads += inner.reads;
        self.bookmarks.count(&inner.bookmarks);
    }

    /// Bookmarks that are kept for one change.
    pub(super) fn kept_bookmarks(&mut self) -> Option<&mut Kept> {
        self.all.then_some(&mut self.bookmarks)
    }

    #[cfg(test)]
    pub(super) fn bookmarks_counted(&self) -> &Kept {
        &self.bookmarks
    }

    /// Sub-lists of a livelist that can become one (`spa_to_condense`), if some were found since this was
    /// last asked.
    pub fn take_condensable(&mut self) -> Option<Pair> {
        self.condensable.take()
    }

    /// The keys of a deadlist, as far as they are known. A caller that changes them gives them [back](Keys::keep).
    pub(super) fn take(&mut self, object: u64) -> Option<Lists> {
        let lists = self.known.remove(&object)?;
        self.total = less!(self.total, lists.len(), "keys of deadlists in memory");
        let (known, left) = (self.known.len(), self.total);
        invariant!(known > 0 || left == 0, "no deadlists are in memory, and {left} keys of them");
        Some(lists)
    }

    pub(super) fn keep(&mut self, object: u64, lists: Lists) {
        // The caller has taken what was known.
        let known = self.known.contains_key(&object);
        invariant!(!known, "deadlist {object}: its keys are given back, and were not taken");
        if self.total + lists.len() > MAX_KEYS {
            self.known.clear();
            self.total = 0;
        }
        self.total += lists.len();
        self.known.insert(object, lists);
    }
}

/// The name of a key in the ZAP.
pub(super) fn name(key: u64) -> String {
    format!("{key:x}")
}

/// A new deadlist without keys (`dsl_deadlist_alloc`).
pub(super) fn create(tx: &mut Tx<'_>) -> Result<u64> {
    if !bpobj::have_sub_lists(tx)? {
        return bpobj::create(tx, bpobj::BLOCK);
    }
    let new = NewObject {
        bonus_kind: DmuType::DEADLIST_HDR,
        bonus: vec![0; DEADLIST_SIZE],
        ..NewObject::new(DmuType::DEADLIST, SMALL_BLOCK)
    };
    tx.new_zap(&new, 0)
}

/// Whether a deadlist is one of the oldest kind: a list of block pointers without keys (`dl_oldfmt`).
pub(super) fn is_plain(tx: &mut Tx<'_>, object: u64) -> Result<bool> {
    match tx.mos.dnode(object)?.kind {
        DmuType::DEADLIST => Ok(false),
        DmuType::BPOBJ => Ok(true),
        kind => Err(corrupt(object, format!("a {} is no deadlist", kind.name()))),
    }
}

fn check_kind(tx: &mut Tx<'_>, object: u64) -> Result<()> {
    match is_plain(tx, object)? {
        false => Ok(()),
        true => Err(corrupt(object, "a deadlist without keys")),
    }
}

/// The entries of a plain deadlist.
pub(super) fn entries_of_plain(tx: &mut Tx<'_>, object: u64) -> Result<Vec<BlockPointer>> {
    let count = bpobj::counts(tx, object)?.entries;
    let entries = bpobj::entries(tx, object, 0..count)?;
    Ok(entries.into_iter().map(|(bp, _)| bp).collect())
}

/// Keys and lists.
pub(super) fn lists(tx: &mut Tx<'_>, object: u64) -> Result<Lists> {
    if let Some(keys) = tx.deadlists.as_deref_mut() {
        keys.reads += 1;
    }
    check_kind(tx, object)?;
    let mut lists = BTreeMap::new();
    for entry in tx.zap_entries(object)? {
        match (number_in_name(&entry), entry.u64()) {
            (Some(key), Some(list)) => lists.insert(key, list),
            _ => return Err(corrupt(object, "bad deadlist entry")),
        };
    }
    Ok(lists)
}

/// Whether blocks can be added: the keys and the last list can be read.
pub(super) fn check(tx: &mut Tx<'_>, object: u64) -> Result<()> {
    total(tx, object)?;
    if is_plain(tx, object)? {
        return bpobj::check(tx, object);
    }
    match lists(tx, object)?.last_key_value() {
        Some((_, list)) => bpobj::check(tx, *list),
        None => Ok(()),
    }
}

/// The sums over a deadlist.
pub(super) fn total(tx: &mut Tx<'_>, object: u64) -> Result<Sizes> {
    if is_plain(tx, object)? {
        return bpobj::space(tx, object);
    }
    let bonus = tx.mos.dnode(object)?.bonus.clone();
    let phys = DeadlistPhys::decode(&Bytes::new(&bonus, ByteOrder::Little, "deadlist"))?;
    let (used, compressed, uncompressed) = (phys.used, phys.compressed, phys.uncompressed);
    Ok(Sizes { used, compressed, uncompressed })
}

pub(super) fn set_total(tx: &mut Tx<'_>, object: u64, total: Sizes) -> Result<()> {
    let Sizes { used, compressed, uncompressed } = total;
    let bonus = DeadlistPhys { used, compressed, uncompressed }.encode();
    Ok(tx.mos.set_bonus(object, DmuType::DEADLIST_HDR, &bonus)?)
}

/// The list of a key that was found among these.
pub(super) fn list_of(object: u64, lists: &Lists, key: u64) -> u64 {
    match lists.get(&key) {
        Some(list) => *list,
        None => broken(format_args!("deadlist {object}: no list for key {key}, which it has")),
    }
}

/// Keys and lists, of which the change that changes them keeps what they are then.
fn take(tx: &mut Tx<'_>, object: u64) -> Result<Lists> {
    let known = tx.deadlists.as_deref_mut().filter(|keys| keys.all);
    match known.and_then(|keys| keys.take(object)) {
        Some(known) => Ok(known),
        None => lists(tx, object),
    }
}

/// Keeps what a deadlist is now, if that is done in this change.
fn keep(tx: &mut Tx<'_>, object: u64, lists: Lists) {
    if let Some(keys) = tx.deadlists.as_deref_mut().filter(|keys| keys.all) {
        keys.keep(object, lists);
    }
}

/// Sums over the blocks born after `after` and not after `until`, which must be keys.
pub(super) fn range(tx: &mut Tx<'_>, object: u64, after: u64, until: u64) -> Result<Sizes> {
    if is_plain(tx, object)? {
        let mut sum = Sizes::default();
        let blocks = entries_of_plain(tx, object)?;
        let within = blocks.iter().filter(|bp| bp.birth() > after && bp.birth() <= until);
        within.for_each(|bp| sum.add((tx.space)(bp)));
        return Ok(sum);
    }
    let (mut sum, empty) = (Sizes::default(), bpobj::shared_empty(tx)?);
    let lists = take(tx, object)?;
    for (_, list) in lists.range(after..until.max(after)) {
        if Some(*list) != empty {
            sum.add(bpobj::space(tx, *list)?);
        }
    }
    keep(tx, object, lists);
    Ok(sum)
}

/// Adds a key, with an empty list, which it returns (`dsl_deadlist_add_key`). A plain deadlist has no keys, and is the list.
pub(super) fn add_key(tx: &mut Tx<'_>, object: u64, key: u64) -> Result<u64> {
    if is_plain(tx, object)? {
        return Ok(object);
    }
    let list = bpobj::create_empty(tx)?;
    tx.zap_add(object, &name(key), list)?;
    Ok(list)
}

/// Removes the entry of a key. Another system may have stored it by another name.
fn take_name(tx: &mut Tx<'_>, object: u64, key: u64) -> Result<()> {
    match tx.zap_remove(object, &name(key))? {
        true => Ok(()),
        false => Err(corrupt(object, format!("key {key} has another name"))),
    }
}

/// Removes a key; its list becomes part of the one before (`dsl_deadlist_remove_key`). A plain deadlist has no keys.
pub(super) fn remove_key(tx: &mut Tx<'_>, object: u64, key: u64) -> Result<()> {
    if is_plain(tx, object)? {
        return Ok(());
    }
    let mut lists = take(tx, object)?;
    let (Some(&list), Some((&before, &into))) = (lists.get(&key), lists.range(..key).next_back())
    else {
        return Err(corrupt(object, format!("deadlist without key {key}")));
    };
    lists.insert(before, add_list(tx, object, before, into, list)?);
    take_name(tx, object, key)?;
    lists.remove(&key);
    keep(tx, object, lists);
    Ok(())
}

/// Adds the list `list` to the one of `key`, which is `into`; the list that `key` has then.
fn add_list(tx: &mut Tx<'_>, object: u64, key: u64, into: u64, list: u64) -> Result<u64> {
    if bpobj::shared_empty(tx)? != Some(into) {
        bpobj::enqueue_list(tx, into, list)?;
        return Ok(into);
    }
    // First, so that the shared one is not freed if `list` is it, too.
    tx.zap_set(object, &name(key), list)?;
    bpobj::release_empty(tx)?;
    Ok(list)
}

/// Gives the key `key` of a deadlist a list of its own, with blocks of `block_size` bytes, in the place of the
/// shared empty one.
pub(super) fn start_list(tx: &mut Tx<'_>, object: u64, key: u64, block_size: u64) -> Result<u64> {
    let list = bpobj::create(tx, block_size)?;
    bpobj::release_empty(tx)?;
    tx.zap_set(object, &name(key), list)?;
    Ok(list)
}

/// Adds blocks (`dsl_deadlist_insert`).
pub(super) fn insert(tx: &mut Tx<'_>, object: u64, blocks: &[BlockPointer]) -> Result<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    if is_plain(tx, object)? {
        return bpobj::enqueue(tx, object, blocks);
    }
    let known = tx.deadlists.as_deref_mut().and_then(|keys| keys.take(object));
    let mut lists = match known {
        Some(known) => known,
        None => lists(tx, object)?,
    };
    let mut sorted: BTreeMap<u64, Vec<BlockPointer>> = BTreeMap::new();
    let mut sum = total(tx, object)?;
    for bp in blocks {
        let Some((key, _)) = lists.range(..bp.birth()).next_back() else {
            return Err(corrupt(object, format!("deadlist without a key for {bp:?}")));
        };
        sorted.entry(*key).or_default().push(*bp);
        sum.add((tx.space)(bp));
    }
    let placed: usize = sorted.values().map(Vec::len).sum();
    let all = blocks.len();
    invariant!(placed == all, "deadlist {object}: {placed} of {all} blocks have a list");
    for (key, blocks) in sorted {
        let mut list = list_of(object, &lists, key);
        if bpobj::shared_empty(tx)? == Some(list) {
            list = start_list(tx, object, key, bpobj::BLOCK)?;
            lists.insert(key, list);
        }
        bpobj::enqueue(tx, list, &blocks)?;
    }
    set_total(tx, object, sum)?;
    if let Some(keys) = tx.deadlists.as_deref_mut() {
        keys.keep(object, lists);
    }
    Ok(())
}

/// A new, empty deadlist with the keys of `object` that are less than `before`
/// (`dsl_deadlist_clone`). A plain one has no keys: they are those that follow from the snapshot `newest` and all before it
/// (`dsl_deadlist_regenerate`).
pub(super) fn clone(tx: &mut Tx<'_>, object: u64, before: u64, newest: u64) -> Result<u64> {
    let keys: Vec<u64> = match is_plain(tx, object)? {
        true => keys_up_to(tx, newest)?,
        false => lists(tx, object)?.range(..before).map(|(key, _)| *key).collect(),
    };
    let new = create(tx)?;
    if is_plain(tx, new)? {
        return Ok(new);
    }
    match bpobj::share_empty(tx, keys.len())? {
        Some(empty) => keys.iter().try_for_each(|key| tx.zap_add(new, &name(*key), empty))?,
        None => keys.iter().try_for_each(|key| add_key(tx, new, *key).map(drop))?,
    }
    Ok(new)
}

/// The keys that a deadlist after the snapshot `newest` has for that and all before it.
fn keys_up_to(tx: &mut Tx<'_>, newest: u64) -> Result<Vec<u64>> {
    let (mut keys, mut at) = (Vec::new(), newest);
    while at != 0 {
        let snapshot = tx.dataset(at)?;
        // Each is older than the one after it, so that the chain ends.
        if keys.last().is_some_and(|later| snapshot.prev_snap_txg >= *later) {
            return Err(corrupt(at, "a snapshot that is not older than the next one"));
        }
        keys.push(snapshot.prev_snap_txg);
        at = snapshot.prev_snap;
    }
    Ok(keys)
}

/// Frees a deadlist, not the blocks in it (`dsl_deadlist_free`).
pub(super) fn free(tx: &mut Tx<'_>, object: u64) -> Result<()> {
    if is_plain(tx, object)? {
        return bpobj::free(tx, object);
    }
    let lists = take(tx, object)?;
    let (own, empties) = without_empties(tx, lists)?;
    own.into_values().try_for_each(|list| bpobj::free(tx, list))?;
    bpobj::release_empties(tx, empties)?;
    Ok(tx.mos.free(object)?)
}

/// The lists that are not the shared empty one, and how many are.
fn without_empties(tx: &mut Tx<'_>, mut lists: Lists) -> Result<(Lists, usize)> {
    let (empty, all) = (bpobj::shared_empty(tx)?, lists.len());
    lists.retain(|_, list| Some(*list) != empty);
    let empties = all - lists.len();
    Ok((lists, empties))
}

/// Moves all blocks of the deadlist `from`, which goes, to `object` (`dsl_deadlist_merge`).
pub(super) fn merge(tx: &mut Tx<'_>, object: u64, from: u64) -> Result<()> {
    if is_plain(tx, from)? {
        let blocks = entries_of_plain(tx, from)?;
        insert(tx, object, &blocks)?;
        return bpobj::free(tx, from);
    }
    let mut sum = total(tx, object)?;
    let mut all = take(tx, object)?;
    let theirs = take(tx, from)?;
    if let Some(key) = theirs.keys().next().filter(|key| all.range(..=*key).next().is_none()) {
        return Err(corrupt(object, format!("deadlist without key {key}")));
    }
    // Most are empty where there are many snapshots; they stay until the others have been moved.
    let (theirs, empties) = without_empties(tx, theirs)?;
    bpobj::read_short_ahead(tx, theirs.values().copied())?;
    for (key, list) in theirs {
        let Some((&at, &into)) = all.range(..=key).next_back() else {
            return Err(corrupt(object, format!("deadlist without key {key}")));
        };
        sum.add(bpobj::space(tx, list)?);
        // Where there was the shared empty list, there is another one now.
        all.insert(at, add_list(tx, object, at, into, list)?);
    }
    bpobj::release_empties(tx, empties)?;
    set_total(tx, object, sum)?;
    keep(tx, object, all);
    Ok(tx.mos.free(from)?)
}

/// Moves the lists of `key` and all later ones to the list `bpobj`, and removes their keys
/// (`dsl_deadlist_move_bpobj`).
pub(super) fn move_from(tx: &mut Tx<'_>, object: u64, key: u64, bpobj: u64) -> Result<()> {
    let mut sum = total(tx, object)?;
    let mut lists = take(tx, object)?;
    let moved = lists.split_off(&key);
    let (filled, _) = without_empties(tx, moved.clone())?;
    bpobj::read_short_ahead(tx, filled.into_values())?;
    for (key, list) in moved {
        let moved = bpobj::space(tx, list)?;
        sum.used = sum.used.wrapping_sub(moved.used);
        sum.compressed = sum.compressed.wrapping_sub(moved.compressed);
        sum.uncompressed = sum.uncompressed.wrapping_sub(moved.uncompressed);
        bpobj::enqueue_list(tx, bpobj, list)?;
        take_name(tx, object, key)?;
    }
    keep(tx, object, lists);
    set_total(tx, object, sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::destroy::keeping_keys;
    use crate::write::pool::create_pool_dirs;
    use cenote_dmu::outside::Outside;
    use cenote_dmu::write::MetaObjectSet;
    use cenote_testsink::MemSink;

    const KEYS: u64 = 300;

    /// A block that was born in `txg`.
    fn born(txg: u64) -> BlockPointer {
        let mut bp = BlockPointer::HOLE;
        (bp.0[0], bp.0[1], bp.0[10]) = (1, txg << 9, txg);
        bp
    }

    fn with_tx(keys: &mut Keys, f: impl FnOnce(&mut Tx<'_>)) {
        let (sink, outside) = (MemSink::new(64 << 20), Outside::default());
        let mut mos = MetaObjectSet::create(sink.store.clone()).unwrap();
        let sizes = |_: &BlockPointer| Sizes { used: 512, compressed: 512, uncompressed: 512 };
        let mut tx = Tx::new(&mut mos, 4, &outside, &sizes);
        create_pool_dirs(&mut tx).unwrap();
        tx.deadlists = Some(keys);
        f(&mut tx);
    }

    fn with_keys(tx: &mut Tx<'_>) -> u64 {
        let list = create(tx).unwrap();
        for key in 0..KEYS {
            add_key(tx, list, key * 10).unwrap();
        }
        list
    }

    #[test]
    fn keys_are_read_once_however_often_blocks_are_added() {
        let mut keys = Keys::default();
        with_tx(&mut keys, |tx| {
            let list = with_keys(tx);
            for round in 0..20 {
                let blocks: Vec<_> = (0..KEYS).map(|key| born(key * 10 + 1 + round % 9)).collect();
                insert(tx, list, &blocks).unwrap();
            }
            assert_eq!(total(tx, list).unwrap().used, 20 * KEYS * 512);
            for (key, object) in lists(tx, list).unwrap() {
                assert_eq!(bpobj::space(tx, object).unwrap().used, 20 * 512, "{key}");
            }
        });
        // By the first batch, and by the test itself.
        assert_eq!(keys.reads(), 2);
    }

    #[test]
    fn a_merge_reads_the_keys_of_both_lists_once() {
        let mut keys = Keys::default();
        with_tx(&mut keys, |tx| {
            let (into, from) = (with_keys(tx), with_keys(tx));
            let blocks: Vec<_> = (0..KEYS).map(|key| born(key * 10 + 3)).collect();
            insert(tx, into, &blocks).unwrap();
            insert(tx, from, &blocks).unwrap();
            let before = tx.deadlists.as_deref().unwrap().reads();
            merge(tx, into, from).unwrap();
            assert_eq!(tx.deadlists.as_deref().unwrap().reads() - before, 2);
            assert_eq!(total(tx, into).unwrap().used, 2 * KEYS * 512);
            assert!(total(tx, from).is_err());
            for (key, object) in lists(tx, into).unwrap() {
                assert_eq!(bpobj::space(tx, object).unwrap().used, 2 * 512, "{key}");
            }
        });
    }

    #[test]
    fn keys_that_are_kept_are_read_once_and_are_what_is_stored() {
        let mut keys = Keys::default();
        with_tx(&mut keys, |tx| {
            let (list, free) = (with_keys(tx), bpobj::create(tx, bpobj::BLOCK).unwrap());
            let blocks: Vec<_> = (0..KEYS).map(|key| born(key * 10 + 3)).collect();
            insert(tx, list, &blocks).unwrap();
            let before = tx.deadlists.as_deref().unwrap().reads();
            keeping_keys(tx, |tx| {
                for key in (1..KEYS / 2).step_by(2) {
                    remove_key(tx, list, key * 10)?;
                    let both = range(tx, list, (key - 1) * 10, (key + 1) * 10)?;
                    assert_eq!(both.used, 2 * 512);
                }
                move_from(tx, list, KEYS / 2 * 10, free)?;
                let kept = take(tx, list)?;
                assert_eq!(kept, lists(tx, list)?);
                Ok(())
            })
            .unwrap();
            // By the change, and by the test itself.
            assert_eq!(tx.deadlists.as_deref().unwrap().reads() - before, 2);
            assert_eq!(total(tx, list).unwrap().used, KEYS / 2 * 512);
            assert_eq!(bpobj::space(tx, free).unwrap().used, KEYS / 2 * 512);
        });
    }
}
