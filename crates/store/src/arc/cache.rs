//! The cache itself (`arc_init`, `arc_read_done`, `arc_evict`): what readers and writers of all pools call.
//!
//! # Structures
//!
//! An `ArcCache` has the lists of all entries under one lock, the tables with their values (the shards) under a lock each, and a list of
//! its owners. Owners are pools, by number. A name carries the number of its pool, so pools do not see each other's entries.
//!
//! # Algorithm
//!
//! - A hit reads one shard and notes the touch. It does not take the lists.
//! - To put an entry in, a thread takes the lists, applies the notes of the entry's shard, evicts until there is room, and adds
//!   the node and the value. A value that takes the place of one of the same size changes in its shard alone.
//! - Values that leave are collected, and dropped after the lists.
//! - Work on many entries (`resize`, `forget_all`, `forget_where`) holds the lists for a bounded number of them at a time.
//! - A table of decoded objects that is gone is *buried*: its entries are never found again. They are taken out later, the entries
//!   of many tables in one pass.
//!
//! # Failure
//!
//! The lists are checked after they were changed. If a check fails, or a thread panics while it has them, the cache goes *off* for
//! good: readers find nothing, nothing is taken in, and each pool that uses it is told. Pools that are opened later get a new one.
//!
//! # Invariants
//!
//! - No entry takes more than a quarter of the budget when it is put in.
//! - No value is dropped and no owner is told with the lists.

use super::feed::Sleeper;
use super::follow::{Bounds, Following};
use super::lists::{List, Lists};
use super::name::{Kind, Name, Value, allocation};
use super::shard::{Age, Hit, Resident, SHARDS, Shard};
use super::{Access, ArcStats, ENTRY, Lookups};
use crate::tunables::L2ARC_META_PERCENT;
use cenote_format::abd::Abd;
use cenote_format::invariant::{self, broken};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Entries that are moved rather than evicted, at most, before one is evicted all the same. So the lists are not held for long.
const CHANCES: usize = 256;

/// Entries for which the lists are held at once where there are many.
pub(super) const AT_ONCE: usize = 64;

/// Numbers of tables that are gone: from the first one on, the next look at memory removes their entries; from the second one on, the
/// thread that drops a table does.
const MANY_DEAD: usize = 64;
pub(super) const MOST_DEAD: usize = 4096;
/// How long entries of fewer tables may stay.
const DEAD_STAY: Duration = Duration::from_secs(60);

/// So many entries are put in, at least and as a share of those that are there, before one that is asked for again is used anew.
const ONE_USE: u32 = 64;
const ONE_USE_SHARE: u64 = 16;

/// Nodes that are looked at while the lists are held.
const SCANNED_AT_ONCE: usize = 4096;

/// An owner of entries in the cache.
pub(crate) trait Owner: Send + Sync {
    /// The cache is not what it must be.
    fn cache_broke(&self, why: String);
}

/// The cache of one pool or of several.
pub struct ArcCache {
    lists: Mutex<Lists>,
    shards: Box<[Shard]>,
    owners: Mutex<BTreeMap<u32, Weak<dyn Owner>>>,
    /// The last number that a pool got, and how many tables there were.
    pools: AtomicU32,
    tables: AtomicU64,
    dead: Mutex<Dead>,
    /// Held while entries of tables that are gone are looked for: with it, nothing of those that were known before is left.
    tidying: Mutex<()>,
    pub(super) puts: Puts,
    /// The threads that sleep until something is put in, and whether there are any.
    pub(super) sleepers: Mutex<Vec<Weak<dyn Sleeper>>>,
    pub(super) asleep: AtomicBool,
    /// It is not what it must be: it has nothing from now on, and takes nothing in.
    off: AtomicBool,
    pub(super) following: Following,
}

/// Tables that are gone, by pool and number, whose objects may be left.
#[derive(Default)]
struct Dead {
    tables: HashSet<(u32, u64)>,
    /// When the first of them was noted.
    since: Option<Instant>,
}

/// What [`Age`] is of.
#[repr(align(128))] // Readers do not wait for a writer that changes what is beside it.
pub(super) struct Puts {
    pub puts: AtomicU32,
    one_use: AtomicU32,
}

/// An entry to put in.
pub(super) struct Entry {
    pub name: Name,
    pub value: Value,
    /// Bytes of the value.
    pub size: u64,
    pub metadata: bool,
    pub access: Access,
    /// What is known of a block that may come to a cache device; 0: it may not.
    pub about: u64,
}

impl Entry {
    pub fn bytes(name: Name, data: Abd, metadata: bool, access: Access) -> Entry {
        let data = fitted(data);
        let size = allocation(data.memory());
        Entry { name, size, value: Value::Bytes(data), metadata, access, about: 0 }
    }
}

/// The same bytes in a buffer that does not take much more than they need.
fn fitted(data: Abd) -> Abd {
    let need = allocation(data.len());
    if data.memory() as u64 > need + need / 8 { Abd::copy_of(&data.bytes()) } else { data }
}

/// Where the lists were left half changed: empties the cache, and tells its owners. No thread is in the lists any more: each
/// thread that gets them sees that the cache is off.
struct Tells<'a> {
    cache: &'a ArcCache,
    is_done: &'a Cell<bool>,
}

impl Drop for Tells<'_> {
    fn drop(&mut self) {
        if !self.is_done.get() {
            let last = invariant::last();
            self.cache.broke(last.unwrap_or_else(|| "a thread that had the ARC panicked".into()));
            self.cache.shards.iter().for_each(Shard::empty);
            let gone = std::mem::replace(&mut *self.cache.lists.lock(), Lists::new(0));
            drop(gone);
        }
    }
}

/// The lists while a thread has them. If it panics the cache is off before another thread has them.
struct Held<'a> {
    cache: &'a ArcCache,
    is_done: &'a Cell<bool>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.is_done.get() {
            self.cache.off.store(true, Relaxed);
        }
    }
}

impl ArcCache {
    /// An empty cache that may take `budget` bytes.
    pub fn new(budget: u64) -> Arc<ArcCache> {
        ArcCache::within(Bounds { min: budget, max: budget })
    }

    /// An empty cache that has a size between these.
    pub(super) fn within(bounds: Bounds) -> Arc<ArcCache> {
        Arc::new(ArcCache::with(bounds.max, Following::given(bounds)))
    }

    fn with(budget: u64, following: Following) -> ArcCache {
        ArcCache {
            lists: Mutex::new(Lists::new(budget)),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            owners: Mutex::default(),
            pools: AtomicU32::new(0),
            tables: AtomicU64::new(0),
            dead: Mutex::default(),
            tidying: Mutex::default(),
            puts: Puts { puts: AtomicU32::new(0), one_use: AtomicU32::new(ONE_USE) },
            sleepers: Mutex::default(),
            asleep: AtomicBool::new(false),
            off: AtomicBool::new(false),
            following,
        }
    }

    /// The cache that all pools of the process share which are not given one of their own (`arc_init`). Its size is as the
    /// tunables `zfs_arc_min` and `zfs_arc_max` say; see [`follow`](super::follow). One that went off stays with the pools
    /// that it has, and others get a new one.
    pub fn of_process() -> Arc<ArcCache> {
        static OF_PROCESS: Mutex<Option<Arc<ArcCache>>> = Mutex::new(None);
        let mut known = OF_PROCESS.lock();
        let cache = match known.take().filter(|cache| !cache.is_off()) {
            Some(cache) => cache,
            None => ArcCache::of_tunables(),
        };
        *known = Some(cache.clone());
        drop(known);
        cache.follow_tunables();
        cache
    }

    /// A cache of the size that tunables say.
    pub(super) fn of_tunables() -> Arc<ArcCache> {
        Arc::new(ArcCache::with(Bounds::modest().max, Following::tunables()))
    }

    /// Whether it was found wrong.
    pub(crate) fn is_off(&self) -> bool {
        self.off.load(Relaxed)
    }

    /// A number for a pool that uses the cache from now on, which is told if something is wrong with it.
    pub(crate) fn join(&self, owner: Weak<dyn Owner>) -> u32 {
        let pool = self.pools.fetch_add(1, Relaxed).wrapping_add(1).max(1);
        self.owners.lock().insert(pool, owner);
        pool
    }

    /// The pool is gone, and with it what it has here (`arc_flush`). It does not panic: what is found wrong is told to the
    /// other pools.
    pub(crate) fn leave(&self, pool: u32) {
        self.owners.lock().remove(&pool);
        if let Err(why) = invariant::caught(|| self.clear(pool)) {
            tracing::error!("the cache when a pool left it: {why}");
        }
    }

    /// A number for a table that no other has.
    pub(super) fn new_table(&self) -> u64 {
        self.tables.fetch_add(1, Relaxed)
    }

    fn broke(&self, why: String) {
        let owners: Vec<_> = self.owners.lock().values().filter_map(Weak::upgrade).collect();
        owners.iter().for_each(|owner| owner.cache_broke(why.clone()));
    }

    pub(super) fn shard(&self, name: &Name) -> &Shard {
        &self.shards[(name.spread() >> (u64::BITS - SHARDS.ilog2())) as usize]
    }

    /// Does something with the lists. Values are dropped without them. `None`: the cache is off, maybe since this thread waited for
    /// them.
    pub(super) fn with_lists<T>(
        &self,
        work: impl FnOnce(&mut Lists, &mut Vec<Value>) -> T,
    ) -> Option<T> {
        // What was declared last is dropped first.
        let is_done = Cell::new(true);
        let _tells = Tells { cache: self, is_done: &is_done };
        let mut gone = Vec::new();
        let mut lists = self.lists.lock();
        if self.is_off() {
            return None;
        }
        let _held = Held { cache: self, is_done: &is_done };
        is_done.set(false);
        let done = work(&mut lists, &mut gone);
        is_done.set(true);
        Some(done)
    }

    /// The bytes of a block, if it is there; a hit makes it frequent, but for the first
    /// hit of one that was read ahead, and for those that are uncached (`arc_access`). `metadata`: what is asked for; `None`: it
    /// is no lookup.
    pub(crate) fn get(&self, name: &Name, metadata: Option<bool>) -> Option<Abd> {
        self.look(name, metadata)?.bytes()
    }

    /// What is there under a name; counted as [`ArcCache::get`] does.
    pub(super) fn look(&self, name: &Name, metadata: Option<bool>) -> Option<Value> {
        if self.is_off() {
            return None;
        }
        let Hit { value, used_up } = self.shard(name).get(name, metadata, self.age())?;
        if used_up {
            self.uncache(name);
        }
        Some(value)
    }

    fn age(&self) -> Age {
        Age { puts: self.puts.puts.load(Relaxed), one_use: self.puts.one_use.load(Relaxed) }
    }

    /// Whether a block to be read ahead is there.
    pub(crate) fn has_ahead(&self, name: &Name, metadata: bool) -> bool {
        let there = self.contains(name);
        let counts = &self.shard(name).counts.others[usize::from(metadata)];
        counts[if there { 1 } else { 2 }].fetch_add(1, Relaxed);
        there
    }

    /// Whether an entry is there; no effect on the lists.
    pub(crate) fn contains(&self, name: &Name) -> bool {
        !self.is_off() && self.shard(name).find(name).is_some()
    }

    /// As [`ArcCache::insert_block`], of a block that comes to no cache device.
    #[cfg(test)]
    pub(crate) fn insert(&self, name: Name, data: Abd, metadata: bool, access: Access) {
        self.insert_block((name, 0), data, metadata, access);
    }

    /// Adds a block after a miss (`arc_read_done`, `arc_hdr_alloc`), unless it is there. What takes more than a quarter of the
    /// budget is not kept: it would push out too much for one reader. `about` is what is known of one that may come to a cache
    /// device, else 0.
    pub(crate) fn insert_block(
        &self,
        (name, about): (Name, u64),
        data: Abd,
        metadata: bool,
        access: Access,
    ) {
        if !self.contains(&name) {
            self.put(Entry { about, ..Entry::bytes(name, data, metadata, access) }, false);
        }
    }

    /// Puts a block that was just written in place of what may be there under its name.
    pub(crate) fn replace(&self, name: Name, data: Abd, metadata: bool) {
        self.replace_block((name, 0), data, metadata);
    }

    /// The same of a block of which so much is known that it may come to a cache device.
    pub(crate) fn replace_block(&self, (name, about): (Name, u64), data: Abd, metadata: bool) {
        self.put(Entry { about, ..Entry::bytes(name, data, metadata, Access::Demand) }, true);
    }

    /// Puts an entry in (`buf_hash_insert`); `replaces`: also where there is one of that name.
    pub(super) fn put(&self, entry: Entry, replaces: bool) {
        if self.is_off() {
            return;
        }
        let since = self.puts.puts.fetch_add(1, SeqCst);
        self.put_since(entry, replaces, since);
        self.wake();
    }

    fn put_since(&self, mut entry: Entry, replaces: bool, since: u32) {
        let shard = self.shard(&entry.name);
        if replaces && let Ok(size) = u32::try_from(entry.size) {
            // What changes in place mostly takes what it took: the lists are not needed for that.
            match shard.swap(&entry.name, entry.value, (size, entry.about), self.age()) {
                Ok(_former) => return,
                Err(value) => entry.value = value,
            }
        }
        self.with_lists(|lists, gone| {
            self.apply_notes(lists, shard);
            let mut list = List::Recent;
            if let Some(at) = shard.find(&entry.name) {
                if !replaces {
                    gone.push(entry.value);
                    return;
                }
                if lists.nodes[at as usize].list == List::Frequent {
                    list = List::Frequent;
                }
                self.take_out(lists, at, gone);
            } else if lists.meets_ghost(&entry.name, entry.size) && entry.access == Access::Demand {
                list = List::Frequent;
            }
            let taken = entry.size + ENTRY;
            let size = u32::try_from(entry.size).ok().filter(|_| taken <= lists.room() / 4);
            let Some(size) = size else { return gone.push(entry.value) };
            self.make_room(lists, taken, gone);
            let Entry { name, value, metadata, access, about, .. } = entry;
            let at = lists.add(name, size, metadata, list);
            let resident = Resident::new((value, size), (at, since), list, (access, about));
            let before = shard.entries.write().insert(name, resident);
            if before.is_some() {
                broken(format_args!("ARC: {name:?} is there twice"));
            }
            lists.trim_ghosts();
            lists.check();
            self.puts.one_use.store(one_use(lists), Relaxed);
        });
    }

    /// What readers touched moves to the frequent side.
    fn apply_notes(&self, lists: &mut Lists, shard: &Shard) {
        shard.noted.take(|at| {
            let Some(node) = lists.nodes.get(at as usize) else { return };
            // It may be another entry's by now.
            if node.list == List::Recent && node.name.pool != 0 {
                self.chance(lists, at);
            }
        });
    }

    /// Moves an entry to the frequent side if it was touched (`arc_change_state`). Whether it was.
    fn chance(&self, lists: &mut Lists, at: u32) -> bool {
        let name = lists.nodes[at as usize].name;
        let entries = self.shard(&name).entries.read();
        let Some(entry) = entries.get(&name) else { return false };
        if !entry.touched.load(Relaxed) {
            return false;
        }
        entry.touched.store(false, Relaxed);
        entry.moved(List::Frequent);
        drop(entries);
        lists.move_to(at, List::Frequent);
        true
    }

    /// Evicts entries until another `bytes` bytes fit into the budget (`arc_evict`).
    fn make_room(&self, lists: &mut Lists, bytes: u64, gone: &mut Vec<Value>) {
        while lists.taken() + bytes > lists.room() {
            self.evict(lists, gone);
        }
    }

    /// Evicts an entry, or drops a ghost where there is none (`arc_evict_state`, `arc_evict_hdr`).
    pub(super) fn evict(&self, lists: &mut Lists, gone: &mut Vec<Value>) {
        if let Some(at) = lists.tail(List::Uncached) {
            return self.take_out(lists, at, gone);
        }
        for chance in 0..=CHANCES {
            let Some(at) = lists.tail(lists.longer_side()) else { break };
            if chance < CHANCES && self.chance(lists, at) {
                continue;
            }
            gone.push(self.value_of(lists, at));
            lists.deleted += 1;
            lists.make_ghost(at);
            return lists.trim_ghosts();
        }
        let ghost = lists.tail(List::RecentGhost).or(lists.tail(List::FrequentGhost));
        let taken = lists.taken();
        match ghost {
            Some(at) => lists.remove(at),
            None => broken(format_args!("ARC: no entry in its lists, and {taken} bytes")),
        }
    }

    /// Takes the value of an entry out of its shard (`arc_hdr_destroy`).
    fn value_of(&self, lists: &Lists, at: u32) -> Value {
        let name = lists.nodes[at as usize].name;
        let entry = self.shard(&name).entries.write().remove(&name);
        match entry {
            Some(entry) if entry.at == at => entry.value,
            Some(entry) => broken(format_args!("ARC: {name:?} is at {}, not at {at}", entry.at)),
            None => broken(format_args!("ARC: {name:?} is in a list and not there")),
        }
    }

    fn take_out(&self, lists: &mut Lists, at: u32, gone: &mut Vec<Value>) {
        gone.push(self.value_of(lists, at));
        lists.remove(at);
        lists.trim_ghosts();
    }

    /// A block is of little use from now on (`arc_uncached`): so are those before it.
    fn uncache(&self, name: &Name) {
        self.with_lists(|lists, gone| {
            let entries = self.shard(name).entries.read();
            let Some(entry) = entries.get(name) else { return };
            entry.moved(List::Uncached);
            let at = entry.at;
            drop(entries);
            lists.move_to(at, List::Uncached);
            while let Some(at) = lists.too_much_uncached() {
                self.take_out(lists, at, gone);
            }
        });
    }

    /// Forgets an entry, which will not be wanted again (`arc_freed`). Whether it was there.
    pub(crate) fn forget(&self, name: &Name) -> bool {
        // What is not there need not be looked for in the lists; a ghost goes by itself.
        let forget = || self.with_lists(|lists, gone| self.forget_one(lists, name, gone));
        self.contains(name) && forget() == Some(true)
    }

    /// Forgets many, and their ghosts.
    pub(crate) fn forget_all(&self, names: impl IntoIterator<Item = Name>) {
        let mut names = names.into_iter().peekable();
        while !self.is_off() && names.peek().is_some() {
            self.with_lists(|lists, gone| {
                names.by_ref().take(AT_ONCE).for_each(|name| {
                    self.forget_one(lists, &name, gone);
                });
            });
        }
    }

    fn forget_one(&self, lists: &mut Lists, name: &Name, gone: &mut Vec<Value>) -> bool {
        if let Some(at) = self.shard(name).find(name) {
            self.take_out(lists, at, gone);
            return true;
        }
        if let Some(&ghost) = lists.ghosts.get(name) {
            lists.remove(ghost);
        }
        false
    }

    /// Forgets what a pool has here.
    pub(crate) fn clear(&self, pool: u32) {
        self.forget_where(|name| name.pool == pool);
    }

    /// Forgets what a pool has here but for objects.
    pub(crate) fn clear_blocks(&self, pool: u32) {
        self.forget_where(|name| name.pool == pool && name.kind != Kind::Object);
    }

    /// Forgets what was unpacked for these readers of a pool, and what tables that are gone have left: objects of what was
    /// unpacked.
    pub(crate) fn forget_views(&self, pool: u32, views: &[u64]) {
        let _tidying = self.tidying.lock();
        let dead = std::mem::take(&mut *self.dead.lock()).tables;
        if views.is_empty() && dead.is_empty() {
            return;
        }
        self.forget_where(|name| {
            let [table, .., view] = name.words;
            match name.kind {
                Kind::Block => false,
                Kind::Unpacked => name.pool == pool && views.contains(&view),
                Kind::Object => dead.contains(&(name.pool, table)),
            }
        });
    }

    /// A table is gone that had entries. They are never found again, and go with the next key that is unloaded, or in a while. It does not panic, as
    /// tables are dropped anywhere; no value may have a table, whose entries are looked for while it would be dropped.
    pub(super) fn buries(&self, pool: u32, table: u64) {
        let mut dead = self.dead.lock();
        dead.since.get_or_insert_with(Instant::now);
        dead.tables.insert((pool, table));
        let are_most = dead.tables.len() >= MOST_DEAD;
        drop(dead);
        if are_most && let Err(why) = invariant::caught(|| self.forget_views(0, &[])) {
            tracing::error!("the cache when tables were gone: {why}");
        }
    }

    /// Forgets what tables that are gone have left, where there are many, or it was left a while ago.
    pub(super) fn tidy(&self) {
        let dead = self.dead.lock();
        let is_due = dead.since.is_some_and(|since| since.elapsed() >= DEAD_STAY);
        let are_many = dead.tables.len() >= MANY_DEAD;
        drop(dead);
        if is_due || are_many {
            self.forget_views(0, &[]);
        }
    }

    fn forget_where(&self, is_meant: impl Fn(&Name) -> bool) {
        let (mut next, mut moves) = (0, None);
        let mut some = |lists: &mut Lists, gone: &mut Vec<Value>| {
            // Nodes that have moved may be before the others now.
            if moves.replace(lists.moves) != Some(lists.moves) {
                next = 0;
            }
            let end = lists.nodes.len().min(next + SCANNED_AT_ONCE);
            for at in next..end {
                let node = &lists.nodes[at];
                match node.name.pool != 0 && is_meant(&node.name) {
                    true if node.list.is_ghost() => lists.remove(at as u32),
                    true => self.take_out(lists, at as u32, gone),
                    false => {}
                }
            }
            next = end;
            end < lists.nodes.len()
        };
        while self.with_lists(&mut some) == Some(true) {}
    }

    /// The budget is `budget` from now on. What is more is evicted, not all at once.
    pub(super) fn resize(&self, budget: u64) {
        let some = |lists: &mut Lists, gone: &mut Vec<Value>| {
            let room = lists.room_of(budget);
            while lists.taken() > room && gone.len() < AT_ONCE {
                self.evict(lists, gone);
            }
            // Of that there is room for what is left, and no more: others do not fill up what was evicted.
            let least = lists.least_for(lists.taken());
            lists.set_budget(if lists.taken() > room { budget.max(least) } else { budget });
            lists.trim_ghosts();
            lists.check();
            lists.c > budget
        };
        while self.with_lists(some) == Some(true) {}
        let share = u128::from(budget) * u128::from(L2ARC_META_PERCENT.get()) / 100;
        // What is known of the cache devices of all pools is more than one pool's share: that of one may be.
        if self.with_lists(|lists, _| u128::from(lists.l2) > share) == Some(true) {
            self.wake();
        }
    }

    /// Gives back the places of nodes and in tables that most entries have left. Whether there were any.
    pub(super) fn compact(&self) -> bool {
        let compacted = self.with_lists(|lists, _| {
            let is_sparse = lists.is_sparse();
            for (name, at) in if is_sparse { lists.compact() } else { Vec::new() } {
                match self.shard(&name).entries.write().get_mut(&name) {
                    Some(entry) => entry.at = at,
                    None => broken(format_args!("ARC: {name:?} is in a list and not there")),
                }
            }
            is_sparse
        });
        if compacted == Some(true) {
            self.shards.iter().for_each(Shard::compact);
        }
        compacted == Some(true)
    }

    /// Bytes that all of it takes, and the budget. One that is off has neither.
    pub(super) fn taken_of(&self) -> (u64, u64) {
        self.with_lists(|lists, _| (lists.taken() + lists.l2, lists.c)).unwrap_or((0, 0))
    }

    /// Sizes and counts. One that is off has no sizes.
    pub fn stats(&self) -> ArcStats {
        let sizes = self.with_lists(|lists, _| {
            self.shards.iter().for_each(|shard| self.apply_notes(lists, shard));
            sizes(lists)
        });
        let mut stats = sizes.unwrap_or_default();
        let sum = |of: &dyn Fn(&Shard) -> u64| self.shards.iter().map(of).sum::<u64>();
        let hits = [0, 1].map(|kind: usize| {
            [0, 1, 2].map(|list: usize| sum(&|s| s.counts.hits[kind][list].load(Relaxed)))
        });
        let lookups = |kind: usize| {
            let [demand_misses, prefetch_hits, prefetch_misses] =
                [0, 1, 2].map(|i: usize| sum(&|s| s.counts.others[kind][i].load(Relaxed)));
            let demand_hits = hits[kind].iter().sum();
            Lookups { demand_hits, demand_misses, prefetch_hits, prefetch_misses }
        };
        (stats.data, stats.metadata) = (lookups(0), lookups(1));
        [stats.mru_hits, stats.mfu_hits, stats.uncached_hits] =
            [0, 1, 2].map(|list: usize| hits[0][list] + hits[1][list]);
        stats.hits = stats.data.demand_hits + stats.metadata.demand_hits;
        stats.misses = stats.data.demand_misses + stats.metadata.demand_misses;
        (stats.c_min, stats.c_max, stats.memory) = self.following.figures();
        stats
    }

    /// Places in the tables, taken or not.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.shards.iter().map(|shard| shard.entries.read().capacity()).sum()
    }

    /// Has someone look at the lists, or spoil them.
    #[cfg(test)]
    #[allow(clippy::unwrap_used)]
    pub(super) fn inside<T>(&self, look: impl FnOnce(&mut Lists) -> T) -> T {
        self.with_lists(|lists, _| look(lists)).unwrap()
    }

    /// A thread that does something wrong while it has the lists.
    #[cfg(test)]
    pub(crate) fn misused(&self, work: impl FnOnce()) {
        let _none = self.with_lists(|_, _| work());
    }
}

/// Entries that are put in until one that is asked for again is used anew: a good part of those that are there, and soon enough that one of the
/// recent side is still there, where a few large ones fill it.
fn one_use(lists: &Lists) -> u32 {
    let share = (lists.residents() / ONE_USE_SHARE).min(lists.of(List::Recent).len / 2);
    u32::try_from(share).unwrap_or(u32::MAX / 2).max(ONE_USE)
}

fn sizes(lists: &Lists) -> ArcStats {
    let bytes = |list| lists.of(list).bytes;
    let metadata = |list| lists.of(list).metadata;
    let [blocks, unpacked, objects] = lists.kinds;
    ArcStats {
        size: blocks.bytes,
        unpacked,
        objects,
        hdr_size: lists.heads(),
        l2_hdr_size: lists.l2,
        c: lists.c,
        p: lists.p,
        mru_size: bytes(List::Recent),
        mfu_size: bytes(List::Frequent),
        uncached_size: bytes(List::Uncached),
        mru_ghost_size: bytes(List::RecentGhost),
        mfu_ghost_size: bytes(List::FrequentGhost),
        mru_ghost_hits: lists.ghost_hits[0],
        mfu_ghost_hits: lists.ghost_hits[1],
        deleted: lists.deleted,
        elements: lists.residents() + lists.ghost_count(),
        elements_max: lists.most,
        metadata_sizes: [List::Recent, List::Frequent, List::Uncached].map(metadata),
        ghost_metadata_sizes: [List::RecentGhost, List::FrequentGhost].map(metadata),
        ..ArcStats::default()
    }
}
