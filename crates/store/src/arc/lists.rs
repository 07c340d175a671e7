//! The lists of the cache: which entries there are and were, in what order they came or were touched, what they take,
//! and what the two sides may take. The values are in the shards.
//!
//! The entries are nodes of one array, which five lists link by their indices: the recent, the frequent and the uncached
//! entries, and the two lists of ghosts, which are the names of entries that were given up. A hit of a ghost moves the target
//! towards its side, by more the fewer ghosts that side has than the other, and the side that is over its target gives up its
//! oldest.
//!
//! Invariants: what is taken is within the room, the recent side's target is within the cache's, and the sums by kind are the
//! sums of the lists.

use super::name::{Kind, Name};
use super::{ENTRY, GHOST, MAX_UNCACHED, MIN_GHOSTS, Taken};
use ahash::RandomState;
use cenote_format::{invariant, invariant::broken, less};
use std::collections::HashMap;

/// The end of a list.
pub(super) const NIL: u32 = u32::MAX;

/// The lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum List {
    Recent,
    Frequent,
    Uncached,
    RecentGhost,
    FrequentGhost,
}

impl List {
    pub fn is_ghost(self) -> bool {
        matches!(self, List::RecentGhost | List::FrequentGhost)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Node {
    pub name: Name,
    /// Bytes of the value.
    pub size: u32,
    pub metadata: bool,
    pub list: List,
    pub prev: u32,
    pub next: u32,
}

#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub head: u32,
    pub tail: u32,
    pub bytes: u64,
    /// The ones among them that are metadata.
    pub metadata: u64,
    pub len: u64,
}

const EMPTY: Ends = Ends { head: NIL, tail: NIL, bytes: 0, metadata: 0, len: 0 };

/// The name of a node that is in no list.
const NAMELESS: Name = Name { pool: 0, kind: Kind::Block, words: [0; 4] };

/// See the [module](self).
pub(super) struct Lists {
    pub nodes: Vec<Node>,
    pub free: Vec<u32>,
    pub ghosts: HashMap<Name, u32, RandomState>,
    pub ends: [Ends; 5],
    /// Entries by their kind.
    pub kinds: [Taken; 3],
    /// The budget, and the target of the recent side.
    pub c: u64,
    pub p: u64,
    /// Bytes of the budget that it takes to know what is on cache devices.
    pub l2: u64,
    pub ghost_hits: [u64; 2],
    pub deleted: u64,
    pub most: u64,
    /// How often nodes were moved to other places.
    pub moves: u64,
}

/// Nodes whose places are not worth being given back.
const FEW: usize = if cfg!(test) { 8 } else { 4096 };

impl Lists {
    pub fn new(budget: u64) -> Lists {
        Lists {
            nodes: Vec::new(),
            free: Vec::new(),
            ghosts: HashMap::default(),
            ends: [EMPTY; 5],
            kinds: [Taken::default(); 3],
            c: budget,
            p: budget / 2,
            l2: 0,
            ghost_hits: [0; 2],
            deleted: 0,
            most: 0,
            moves: 0,
        }
    }

    pub fn of(&self, list: List) -> &Ends {
        &self.ends[list as usize]
    }

    /// Entries that are there.
    pub fn residents(&self) -> u64 {
        [List::Recent, List::Frequent, List::Uncached].map(|list| self.of(list).len).iter().sum()
    }

    pub fn ghost_count(&self) -> u64 {
        self.of(List::RecentGhost).len + self.of(List::FrequentGhost).len
    }

    /// Bytes of all values.
    pub fn values(&self) -> u64 {
        [List::Recent, List::Frequent, List::Uncached].map(|list| self.of(list).bytes).iter().sum()
    }

    /// Bytes that entries and ghosts take beside their values.
    pub fn heads(&self) -> u64 {
        self.residents() * ENTRY + self.ghost_count() * GHOST
    }

    /// Bytes that all of it takes.
    pub fn taken(&self) -> u64 {
        self.values() + self.heads()
    }

    /// What entries and ghosts may take.
    pub fn room(&self) -> u64 {
        self.room_of(self.c)
    }

    /// The same if the budget were so large. Blocks have a quarter of it at least.
    pub fn room_of(&self, budget: u64) -> u64 {
        self.room_beside(budget, self.l2)
    }

    /// The same if so much were known of cache devices.
    pub fn room_beside(&self, budget: u64, l2: u64) -> u64 {
        budget - l2.min(budget / 4 * 3)
    }

    /// The least budget in which there is room for so many bytes.
    pub fn least_for(&self, taken: u64) -> u64 {
        // Where it takes more than three quarters to know what is on cache devices, blocks have the last one.
        (taken + self.l2).min(4 * taken)
    }

    /// A new node at the head of a list that is not one of ghosts.
    pub fn add(&mut self, name: Name, size: u32, metadata: bool, list: List) -> u32 {
        let node = Node { name, size, metadata, list, prev: NIL, next: NIL };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.link(at, list);
        self.most = self.most.max(self.residents() + self.ghost_count());
        at
    }

    /// Sets the budget. The share of it that the recent side may take stays.
    pub fn set_budget(&mut self, budget: u64) {
        let share = u128::from(self.p) * u128::from(budget) / u128::from(self.c.max(1));
        // It is no more than the budget, as the target was no more than that before.
        self.p = if self.c == 0 { budget / 2 } else { share as u64 };
        self.c = budget;
    }

    /// Whether most of the places of nodes are free.
    pub fn is_sparse(&self) -> bool {
        self.nodes.len() > FEW && self.free.len() > self.nodes.len() / 4 * 3
    }

    /// Moves nodes to the free places before them, and gives back what is behind. Returns where the nodes are now that have values.
    pub fn compact(&mut self) -> Vec<(Name, u32)> {
        self.moves += 1;
        let left = self.nodes.len() - self.free.len();
        let mut free: Vec<u32> = std::mem::take(&mut self.free);
        free.retain(|at| (*at as usize) < left);
        let mut moved = Vec::new();
        for from in left..self.nodes.len() {
            let node = self.nodes[from];
            let Node { name, list, prev, next, .. } = node;
            if name.pool == 0 {
                continue;
            }
            let Some(to) = free.pop() else {
                broken(format_args!("ARC: no free place for the node at {from}"))
            };
            self.nodes[to as usize] = node;
            let ends = &mut self.ends[list as usize];
            match prev {
                NIL => ends.head = to,
                prev => self.nodes[prev as usize].next = to,
            }
            match next {
                NIL => ends.tail = to,
                next => self.nodes[next as usize].prev = to,
            }
            if list.is_ghost() {
                self.ghosts.insert(name, to);
            } else {
                moved.push((name, to));
            }
        }
        invariant!(free.is_empty(), "ARC: {} free places before the node at {left}", free.len());
        self.nodes.truncate(left);
        self.nodes.shrink_to_fit();
        self.ghosts.shrink_to_fit();
        moved
    }

    /// Checks what is true whenever the lists are let go.
    pub fn check(&self) {
        let (taken, room, budget, target) = (self.taken(), self.room(), self.c, self.p);
        invariant!(taken <= room, "ARC: {taken} bytes, and there is room for {room} of {budget}");
        invariant!(target <= budget, "ARC: a target of {target}, and the budget is {budget}");
        let kinds: u64 = self.kinds.iter().map(|kind| kind.bytes).sum();
        let values = self.values();
        invariant!(kinds == values, "ARC: {values} bytes in the lists, {kinds} by their kinds");
    }

    /// The ghost of a name, if there is one, goes: it says which side was cut too short (`arc_adapt`). Whether there was
    /// one.
    pub fn meets_ghost(&mut self, name: &Name, size: u64) -> bool {
        let Some(&at) = self.ghosts.get(name) else { return false };
        let (recent, frequent) =
            (self.of(List::RecentGhost).bytes, self.of(List::FrequentGhost).bytes);
        if self.nodes[at as usize].list == List::RecentGhost {
            self.ghost_hits[0] += 1;
            let step = size * (frequent / recent.max(1)).clamp(1, 10);
            self.p = (self.p + step).min(self.c);
        } else {
            self.ghost_hits[1] += 1;
            let step = size * (recent / frequent.max(1)).clamp(1, 10);
            // The target is nothing at least.
            self.p -= step.min(self.p);
        }
        self.remove(at);
        true
    }

    /// The side that is to give something up (`arc_evict_state`).
    pub fn longer_side(&self) -> List {
        let recent = self.of(List::Recent);
        let is_recent =
            recent.len > 0 && (recent.bytes > self.p || self.of(List::Frequent).len == 0);
        if is_recent { List::Recent } else { List::Frequent }
    }

    /// The oldest of a list.
    pub fn tail(&self, list: List) -> Option<u32> {
        Some(self.of(list).tail).filter(|at| *at != NIL)
    }

    /// The value of an entry has gone: its name stays for a while, if it was on one of the two sides.
    pub fn make_ghost(&mut self, at: u32) {
        let (name, list) = (self.nodes[at as usize].name, self.nodes[at as usize].list);
        let ghost = match list {
            List::Recent => List::RecentGhost,
            List::Frequent => List::FrequentGhost,
            _ => return self.remove(at),
        };
        self.move_to(at, ghost);
        let before = self.ghosts.insert(name, at);
        invariant!(before.is_none(), "ARC: {name:?} is in two lists");
    }

    /// Ghosts that are too many go.
    pub fn trim_ghosts(&mut self) {
        loop {
            let [recent, frequent] =
                [List::RecentGhost, List::FrequentGhost].map(|list| *self.of(list));
            let allowed = MIN_GHOSTS.max(self.residents());
            let fits = recent.bytes + frequent.bytes <= self.c;
            if fits && recent.len + frequent.len <= allowed {
                return;
            }
            self.remove(if recent.bytes >= frequent.bytes { recent.tail } else { frequent.tail });
        }
    }

    /// An uncached block that is more than may stay.
    pub fn too_much_uncached(&self) -> Option<u32> {
        let uncached = self.of(List::Uncached);
        let is_more = uncached.bytes > MAX_UNCACHED && uncached.len > 1;
        if is_more { self.tail(List::Uncached) } else { None }
    }

    /// Takes a node out, whose value is in no shard any more.
    pub fn remove(&mut self, at: u32) {
        self.unlink(at);
        let Node { name, list, .. } = self.nodes[at as usize];
        if list.is_ghost() {
            let was = self.ghosts.remove(&name);
            invariant!(was == Some(at), "ARC: {name:?} is at {was:?}, not at {at}");
        }
        self.nodes[at as usize].name = NAMELESS;
        self.free.push(at);
    }

    pub fn move_to(&mut self, at: u32, list: List) {
        self.unlink(at);
        self.link(at, list);
    }

    fn link(&mut self, at: u32, list: List) {
        let Node { name, size, metadata, .. } = self.nodes[at as usize];
        let ends = &mut self.ends[list as usize];
        let old = ends.head;
        ends.head = at;
        if old == NIL {
            ends.tail = at;
        }
        ends.bytes += u64::from(size);
        ends.metadata += if metadata { u64::from(size) } else { 0 };
        ends.len += 1;
        if !list.is_ghost() {
            let kind = &mut self.kinds[name.kind as usize];
            kind.count += 1;
            kind.bytes += u64::from(size);
        }
        if old != NIL {
            self.nodes[old as usize].prev = at;
        }
        let node = &mut self.nodes[at as usize];
        (node.list, node.prev, node.next) = (list, NIL, old);
    }

    fn unlink(&mut self, at: u32) {
        let Node { name, prev, next, size, metadata, list } = self.nodes[at as usize];
        let size = u64::from(size);
        let ends = &mut self.ends[list as usize];
        if prev == NIL {
            ends.head = next;
        }
        if next == NIL {
            ends.tail = prev;
        }
        ends.bytes = less!(ends.bytes, size, "ARC: bytes of {list:?}");
        let metadata = if metadata { size } else { 0 };
        ends.metadata = less!(ends.metadata, metadata, "ARC: bytes of metadata of {list:?}");
        ends.len = less!(ends.len, 1, "ARC: entries of {list:?}");
        if !list.is_ghost() {
            let kind = &mut self.kinds[name.kind as usize];
            kind.count = less!(kind.count, 1, "ARC: entries of {:?}", name.kind);
            kind.bytes = less!(kind.bytes, size, "ARC: bytes of {:?}", name.kind);
        }
        if prev != NIL {
            self.nodes[prev as usize].next = next;
        }
        if next != NIL {
            self.nodes[next as usize].prev = prev;
        }
    }
}
