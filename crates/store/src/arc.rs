//! The adaptive replacement cache: physical blocks under a byte budget that holds.
//!
//! # Idea
//!
//! Blocks seen once (*recent*) and blocks seen again (*frequent*) are kept in two LRU lists. When a
//! block is evicted its key stays in a *ghost* list of the side it came from. A miss that hits a
//! ghost says that this side was cut too short: the target size of the recent side moves towards
//! it by the block's size (scaled by how much longer the other ghost list is). A scan through a
//! large file therefore cannot push out the working set, and a loop slightly larger than the
//! recent side makes that side grow.
//!
//! A block that was read ahead has not been seen yet: the first reader finds it in the recent list
//! and it stays there. Only the second one makes it frequent; else every sequential reader would
//! fill the frequent list.
//!
//! What is read ahead for a reader that keeps the bytes itself, as the kernel does with the files of a
//! mount, will hardly be asked for again. Once it was read it is *uncached* (`arc_uncached`): it stays for a
//! moment, since a large block is often read in parts, and leaves no ghost. So the reading of a large file
//! goes through a few MiB of memory over and over again rather than through all of the budget, and all else
//! stays where it is.
//!
//! # Structures
//!
//! Entries live in a slab of nodes; each of the five lists is doubly linked by slab indices; a hash
//! map leads from key to node. Ghost nodes hold no data.
//!
//! # Invariants
//!
//! 1. Resident bytes never exceed the budget after a call returns; uncached ones never exceed
//!    [`MAX_UNCACHED`], but for the latest block.
//! 2. Ghost bytes never exceed the budget, and there are never more ghosts than
//!    [`MIN_GHOSTS`] or the resident entries, whichever is more.
//! 3. `0 <= target <= budget`.
//! 4. Every key is in exactly one list.

#[cfg(test)]
mod planted;

use std::collections::HashMap;

use ahash::RandomState;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::{invariant, less};

/// Ghosts that are always allowed, however few entries are resident.
pub const MIN_GHOSTS: usize = 1024;

/// Bytes of uncached blocks that stay.
pub const MAX_UNCACHED: u64 = 8 << 20;

/// Identity of a physical block: its first DVA and when it was written (`BP_IDENTITY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// First word of the first DVA.
    pub dva0: u64,
    /// Second word of the first DVA.
    pub dva1: u64,
    /// Physical birth transaction group.
    pub birth: u64,
}

impl Key {
    /// The key of the block `bp` names; `None` for holes and embedded blocks.
    pub fn of(bp: &BlockPointer) -> Option<Key> {
        if bp.is_hole() || bp.is_embedded() {
            return None;
        }
        Some(Key { dva0: bp.0[0], dva1: bp.0[1], birth: bp.physical_birth() })
    }
}

/// Why a block comes into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A reader wanted it.
    Demand,
    /// A reader may want it soon.
    Ahead,
    /// A reader may want it soon, and keeps the bytes itself then.
    Once,
}

const NIL: usize = usize::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    Recent,
    Frequent,
    Uncached,
    RecentGhost,
    FrequentGhost,
}

struct Node {
    key: Key,
    size: u64,
    metadata: bool,
    data: Option<Abd>,
    /// Why it came, until a reader wants it.
    unread: Option<Access>,
    list: List,
    prev: usize,
    next: usize,
}

#[derive(Clone, Copy)]
struct Ends {
    head: usize,
    tail: usize,
    bytes: u64,
    /// The ones among them that are metadata.
    metadata: u64,
    len: usize,
}

/// What was asked for of one kind: when it was needed (`demand_*`), and ahead of that (`prefetch_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Blocks that were needed and were there.
    pub demand_hits: u64,
    /// Blocks that were needed and were not there.
    pub demand_misses: u64,
    /// Blocks that were to be read ahead and were there.
    pub prefetch_hits: u64,
    /// Blocks that were read ahead.
    pub prefetch_misses: u64,
}

/// Sizes and counts of an [`ArcCache`], named as OpenZFS's `arcstats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArcStats {
    /// Lookups that found data.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Bytes resident.
    pub size: u64,
    /// The budget, bytes.
    pub c: u64,
    /// Target of the recent side, bytes.
    pub p: u64,
    /// Resident bytes of the recent side.
    pub mru_size: u64,
    /// Resident bytes of the frequent side.
    pub mfu_size: u64,
    /// Misses whose key was still in the recent ghost list.
    pub mru_ghost_hits: u64,
    /// Misses whose key was still in the frequent ghost list.
    pub mfu_ghost_hits: u64,
    /// Lookups of data, blocks of level 0 of files and volumes.
    pub data: Lookups,
    /// Lookups of all else.
    pub metadata: Lookups,
    /// Hits of the recent side.
    pub mru_hits: u64,
    /// Hits of the frequent side.
    pub mfu_hits: u64,
    /// Hits of uncached blocks (`uncached_hits`).
    pub uncached_hits: u64,
    /// Blocks that were put out to make room.
    pub deleted: u64,
    /// Blocks resident, and keys of those that were.
    pub elements: u64,
    /// Most of these that there were.
    pub elements_max: u64,
    /// Resident bytes of uncached blocks.
    pub uncached_size: u64,
    /// Resident bytes of metadata: of the recent side, the frequent side, uncached.
    pub metadata_sizes: [u64; 3],
    /// Bytes that the keys of the recent ghost list stand for.
    pub mru_ghost_size: u64,
    /// Bytes that the keys of the frequent ghost list stand for.
    pub mfu_ghost_size: u64,
}

const EMPTY: Ends = Ends { head: NIL, tail: NIL, bytes: 0, metadata: 0, len: 0 };

/// The cache. Not synchronised; the owner holds it in a mutex.
pub struct ArcCache {
    nodes: Vec<Node>,
    free: Vec<usize>,
    map: HashMap<Key, usize, RandomState>,
    lists: [Ends; 5],
    stats: ArcStats,
}

impl ArcCache {
    /// An empty cache that may hold `budget` bytes.
    pub fn new(budget: u64) -> ArcCache {
        ArcCache {
            nodes: Vec::new(),
            free: Vec::new(),
            map: HashMap::default(),
            lists: [EMPTY; 5],
            stats: ArcStats { c: budget, p: budget / 2, ..ArcStats::default() },
        }
    }

    /// The block's bytes if they are resident; a hit makes the block frequent, but for the first
    /// hit of one that was read ahead, and for those that are uncached (`arc_access`). `metadata`: what is asked for.
    pub fn get(&mut self, key: &Key, metadata: bool) -> Option<Abd> {
        let found = self.map.get(key).copied();
        if let Some(i) = found
            && let Some(data) = self.nodes[i].data.clone()
        {
            self.stats.hits += 1;
            self.lookups(metadata).demand_hits += 1;
            match self.nodes[i].list {
                List::Uncached => self.stats.uncached_hits += 1,
                List::Frequent => self.stats.mfu_hits += 1,
                _ => self.stats.mru_hits += 1,
            }
            let unread = self.nodes[i].unread.take();
            match (unread, self.nodes[i].list) {
                (Some(Access::Once), _) | (_, List::Uncached) => self.uncache(i),
                (Some(_), _) => self.move_to(i, List::Recent),
                (None, _) => self.move_to(i, List::Frequent),
            }
            return Some(data);
        }
        self.stats.misses += 1;
        self.lookups(metadata).demand_misses += 1;
        None
    }

    /// Whether a block to be read ahead is resident.
    pub fn has_ahead(&mut self, key: &Key, metadata: bool) -> bool {
        let there = self.contains(key);
        let lookups = self.lookups(metadata);
        match there {
            true => lookups.prefetch_hits += 1,
            false => lookups.prefetch_misses += 1,
        }
        there
    }

    fn lookups(&mut self, metadata: bool) -> &mut Lookups {
        if metadata { &mut self.stats.metadata } else { &mut self.stats.data }
    }

    /// Whether the block is resident; no effect on the lists.
    pub fn contains(&self, key: &Key) -> bool {
        self.map.get(key).is_some_and(|&i| self.nodes[i].data.is_some())
    }

    /// Adds a block after a miss (`arc_read_done`). A block larger than a quarter of the budget is not kept: it
    /// would push out too much for one reader.
    pub fn insert(&mut self, key: Key, data: Abd, metadata: bool, access: Access) {
        let size = data.len() as u64;
        if size > self.stats.c / 4 {
            return;
        }
        let list = match self.map.get(&key).copied() {
            Some(i) if self.nodes[i].data.is_some() => return,
            Some(i) => {
                let ghost = self.nodes[i].list;
                self.adapt(ghost, size);
                self.remove(i);
                if access == Access::Demand { List::Frequent } else { List::Recent }
            }
            None => List::Recent,
        };
        self.make_room(size);
        let unread = Some(access).filter(|access| *access != Access::Demand);
        let (prev, next) = (NIL, NIL);
        let node = Node { key, size, metadata, data: Some(data), unread, list, prev, next };
        let i = match self.free.pop() {
            Some(i) => {
                self.nodes[i] = node;
                i
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        let before = self.map.insert(key, i);
        invariant!(before.is_none(), "ARC: {key:?} is in two lists");
        self.link(i, list);
        let (now, budget, target) = (self.resident(), self.stats.c, self.stats.p);
        invariant!(now <= budget, "ARC: {now} bytes, and the budget is {budget}");
        invariant!(target <= budget, "ARC: a target of {target}, and the budget is {budget}");
        self.stats.elements_max = self.stats.elements_max.max(self.map.len() as u64);
        self.trim_ghosts();
    }

    /// Puts a block that was just written in place of what may be there under its key.
    pub fn replace(&mut self, key: Key, data: Abd, metadata: bool) {
        if let Some(i) = self.map.get(&key).copied() {
            self.remove(i);
        }
        self.insert(key, data, metadata, Access::Demand);
    }

    /// Forgets a block, which will not be read again (`arc_freed`). Its bytes are given back to be dropped.
    pub fn forget(&mut self, key: &Key) -> Option<Abd> {
        let i = self.map.get(key).copied()?;
        let data = self.nodes[i].data.take();
        self.remove(i);
        data
    }

    /// Forgets everything but the counters and the target (`arc_flush`).
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.free.clear();
        self.map.clear();
        self.lists = [EMPTY; 5];
    }

    /// Sizes and counts.
    pub fn stats(&self) -> ArcStats {
        let (recent, frequent) = (self.bytes(List::Recent), self.bytes(List::Frequent));
        let resident = [List::Recent, List::Frequent, List::Uncached];
        ArcStats {
            size: self.resident(),
            mru_size: recent,
            mfu_size: frequent,
            elements: self.map.len() as u64,
            uncached_size: self.bytes(List::Uncached),
            metadata_sizes: resident.map(|list| self.lists[list as usize].metadata),
            mru_ghost_size: self.bytes(List::RecentGhost),
            mfu_ghost_size: self.bytes(List::FrequentGhost),
            ..self.stats
        }
    }

    fn resident(&self) -> u64 {
        self.bytes(List::Recent) + self.bytes(List::Frequent) + self.bytes(List::Uncached)
    }

    fn bytes(&self, list: List) -> u64 {
        self.lists[list as usize].bytes
    }

    /// Moves the target towards the side whose ghost was hit (`arc_adapt`).
    fn adapt(&mut self, ghost: List, size: u64) {
        let (recent, frequent) = (self.bytes(List::RecentGhost), self.bytes(List::FrequentGhost));
        if ghost == List::RecentGhost {
            self.stats.mru_ghost_hits += 1;
            let step = size * (frequent / recent.max(1)).clamp(1, 10);
            self.stats.p = (self.stats.p + step).min(self.stats.c);
        } else {
            self.stats.mfu_ghost_hits += 1;
            let step = size * (recent / frequent.max(1)).clamp(1, 10);
            self.stats.p = self.stats.p.saturating_sub(step);
        }
    }

    /// A block is of little use from now on (`arc_uncached`): so are those before it.
    fn uncache(&mut self, i: usize) {
        self.move_to(i, List::Uncached);
        while self.bytes(List::Uncached) > MAX_UNCACHED
            && self.lists[List::Uncached as usize].len > 1
        {
            self.remove(self.lists[List::Uncached as usize].tail);
        }
    }

    /// Evicts blocks until another `size` bytes fit into the budget (`arc_evict`, `arc_evict_state`).
    fn make_room(&mut self, size: u64) {
        while self.resident() + size > self.stats.c {
            if self.lists[List::Uncached as usize].len > 0 {
                self.remove(self.lists[List::Uncached as usize].tail);
                continue;
            }
            let recent = self.bytes(List::Recent) > self.stats.p
                || self.lists[List::Frequent as usize].len == 0;
            let (from, to) = if recent {
                (List::Recent, List::RecentGhost)
            } else {
                (List::Frequent, List::FrequentGhost)
            };
            let victim = self.lists[from as usize].tail;
            let now = self.resident();
            invariant!(victim != NIL, "ARC: no block in its lists, and {now} bytes");
            self.stats.deleted += 1;
            self.nodes[victim].data = None;
            self.move_to(victim, to);
        }
    }

    fn trim_ghosts(&mut self) {
        loop {
            let [recent, frequent, uncached, g1, g2] = self.lists;
            let allowed = MIN_GHOSTS.max(recent.len + frequent.len + uncached.len);
            if g1.bytes + g2.bytes <= self.stats.c && g1.len + g2.len <= allowed {
                return;
            }
            let victim = if g1.bytes >= g2.bytes { g1.tail } else { g2.tail };
            self.remove(victim);
        }
    }

    fn remove(&mut self, i: usize) {
        self.unlink(i);
        let Node { key, .. } = self.nodes[i];
        let was = self.map.remove(&key);
        invariant!(was == Some(i), "ARC: {key:?} is at {was:?}, not at {i}");
        self.nodes[i].data = None;
        self.free.push(i);
    }

    fn move_to(&mut self, i: usize, list: List) {
        self.unlink(i);
        self.link(i, list);
    }

    fn link(&mut self, i: usize, list: List) {
        let ends = &mut self.lists[list as usize];
        let old = ends.head;
        ends.head = i;
        if old == NIL {
            ends.tail = i;
        }
        ends.bytes += self.nodes[i].size;
        ends.metadata += if self.nodes[i].metadata { self.nodes[i].size } else { 0 };
        ends.len += 1;
        if old != NIL {
            self.nodes[old].prev = i;
        }
        let node = &mut self.nodes[i];
        (node.list, node.prev, node.next) = (list, NIL, old);
    }

    fn unlink(&mut self, i: usize) {
        let Node { prev, next, size, metadata, list, .. } = self.nodes[i];
        let ends = &mut self.lists[list as usize];
        if prev == NIL {
            ends.head = next;
        }
        if next == NIL {
            ends.tail = prev;
        }
        ends.bytes = less!(ends.bytes, size, "ARC: bytes of {list:?}");
        let metadata = if metadata { size } else { 0 };
        ends.metadata = less!(ends.metadata, metadata, "ARC: bytes of metadata of {list:?}");
        ends.len = less!(ends.len, 1, "ARC: blocks of {list:?}");
        if prev != NIL {
            self.nodes[prev].next = next;
        }
        if next != NIL {
            self.nodes[next].prev = prev;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(n: u64) -> Key {
        Key { dva0: 1, dva1: n, birth: 7 }
    }

    fn check(arc: &ArcCache) {
        let s = arc.stats();
        assert!(s.size <= s.c && s.p <= s.c);
        assert!(arc.bytes(List::Uncached) <= MAX_UNCACHED || arc.lists[2].len == 1);
        let ghosts = arc.bytes(List::RecentGhost) + arc.bytes(List::FrequentGhost);
        assert!(ghosts <= s.c);
        let counted = |l: Lookups| (l.demand_hits, l.demand_misses);
        let ((a, b), (c, d)) = (counted(s.data), counted(s.metadata));
        assert_eq!((a + c, b + d), (s.hits, s.misses));
        assert_eq!(s.mru_hits + s.mfu_hits + s.uncached_hits, s.hits);
        assert_eq!(s.mru_size + s.mfu_size + s.uncached_size, s.size);
        let mut seen = 0;
        for (which, ends) in arc.lists.iter().enumerate() {
            let (mut at, mut bytes, mut metadata, mut len) = (ends.head, 0, 0, 0);
            while at != NIL {
                let node = &arc.nodes[at];
                assert_eq!(node.list as usize, which);
                assert_eq!(node.data.is_some(), which < 3);
                assert_eq!(arc.map[&node.key], at);
                bytes += node.size;
                metadata += if node.metadata { node.size } else { 0 };
                len += 1;
                at = node.next;
            }
            assert_eq!((bytes, metadata, len), (ends.bytes, ends.metadata, ends.len));
            seen += len;
        }
        assert_eq!(seen, arc.map.len());
    }

    proptest! {
        #[test]
        fn keeps_its_invariants(ops in prop::collection::vec((0u64..200, 1usize..3000), 1..600)) {
            let mut arc = ArcCache::new(40_000);
            for (n, size) in ops {
                let access = [Access::Ahead, Access::Demand, Access::Once][size % 3];
                let metadata = n % 5 == 0;
                if arc.get(&key(n), metadata).is_none() && !arc.has_ahead(&key(n), metadata) {
                    arc.insert(key(n), Abd::from_vec(vec![n as u8; size]), metadata, access);
                }
                if size % 7 == 0 {
                    let had = arc.contains(&key(n));
                    assert_eq!(arc.forget(&key(n)).is_some(), had);
                    assert!(arc.get(&key(n), false).is_none());
                }
                check(&arc);
            }
        }
    }

    #[test]
    fn a_scan_does_not_push_out_the_working_set() {
        for access in [Access::Demand, Access::Ahead, Access::Once] {
            let mut arc = ArcCache::new(100 * 1000);
            let block = || Abd::from_vec(vec![0; 1000]);
            for n in (0..40).cycle().take(120) {
                if arc.get(&key(n), false).is_none() {
                    arc.insert(key(n), block(), false, Access::Demand);
                }
            }
            for n in 1000..5000 {
                if access != Access::Demand {
                    arc.insert(key(n), block(), false, access);
                }
                if arc.get(&key(n), false).is_none() {
                    arc.insert(key(n), block(), false, access);
                }
            }
            let kept = (0..40).filter(|n| arc.contains(&key(*n))).count();
            assert_eq!(kept, 40, "{access:?}");
        }
    }

    #[test]
    fn who_keeps_what_he_reads_goes_through_little_memory_and_finds_the_rest_of_a_block() {
        let budget = 8 * MAX_UNCACHED;
        let mut arc = ArcCache::new(budget);
        let block = || Abd::zeros(1 << 20);
        let kept = (budget >> 20) - (MAX_UNCACHED >> 20) - 4;
        for n in 0..kept {
            arc.insert(key(n), block(), false, Access::Demand);
        }
        for n in 1000..3000 {
            arc.insert(key(n), block(), false, Access::Once);
            arc.insert(key(n + 1), block(), false, Access::Once);
            for _ in 0..8 {
                assert!(arc.get(&key(n), false).is_some());
            }
            check(&arc);
        }
        assert!((0..kept).all(|n| arc.contains(&key(n))));
        assert_eq!(arc.stats().mfu_size, 0);
        // One that is larger than all that may be uncached, too.
        arc.insert(key(5000), Abd::zeros(MAX_UNCACHED as usize + 1), false, Access::Once);
        assert!(arc.get(&key(5000), false).is_some() && arc.get(&key(5000), false).is_some());
        check(&arc);
    }
}
