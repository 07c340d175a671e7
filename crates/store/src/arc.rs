//! The adaptive replacement cache: blocks, and what is decoded of them, under a budget of bytes that holds.
//!
//! # Idea
//!
//! Entries seen once (*recent*) and entries seen again (*frequent*) are kept in two lists. When an
//! entry is evicted its name stays in a *ghost* list of the side it came from. A miss that hits a
//! ghost says that this side was cut too short: the target size of the recent side moves towards
//! it by the entry's size (scaled by how much longer the other ghost list is). A scan through a
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
//! stays where it is. What was read ahead and is not read yet is beside that: of an object store up to a quarter of the budget.
//!
//! # What is in it
//!
//! One cache serves all pools of a process, and has three kinds of entries under one budget: blocks as they are on disk;
//! metadata blocks unpacked, since an indirect block is asked for one pointer at a time; and objects that
//! were decoded of them ([`Table`]: dnodes, indexed ZAPs). What is used least goes first, whatever it is. A
//! program may have a cache of its own for a pool ([`ArcCache::new`]).
//!
//! An entry counts as much memory as it takes: its allocation ([`Abd::memory`](cenote_format::abd::Abd::memory)), and [`ENTRY`] bytes for being there.
//! A buffer that takes much more than its bytes is copied into one that fits.
//!
//! # Structures
//!
//! ```text
//!   get ──> shard of the name (read lock): value, touched ──> ring of those touched
//!                                                                   │ applied by the next
//!   put, forget ──> lists (one lock): nodes of all names in 5 lists <┘ that has the lists
//!                     └ then the shard (write lock)
//! ```
//!
//! Values lie in [`SHARDS`](shard::SHARDS) hash tables. A hit takes the read lock of one, and marks the entry as touched; the
//! lists are left alone. A bounded ring of each shard ([`noted`]) has what was touched; whoever has the lists next, to
//! put something in, moves that to the frequent side. What the ring lost is seen when it comes to its turn to
//! be evicted: an entry that was touched is not evicted but moved.
//!
//! The lists are doubly linked by indices of a slab of nodes. Ghosts are nodes whose value is in no shard.
//!
//! # Invariants
//!
//! 1. What all entries take never exceeds the budget after a call returns, less what it takes to know what is on cache devices (at most three
//!    quarters of it). Uncached blocks never take more than
//!    [`MAX_UNCACHED`], but for the latest.
//! 2. The sizes that ghosts had never exceed the budget, and there are never more ghosts than
//!    [`MIN_GHOSTS`] or the resident entries, whichever is more.
//! 3. `0 <= target <= budget`.
//! 4. Every name is in exactly one list; and it is in its shard exactly while it is in no ghost list.
//! 5. Locks: the lists, then one shard. No value is dropped with either.
//!
//! # Its size
//!
//! See [`follow`]: the cache of a daemon grows into memory that is free, and gives it back.
//!
//! # The second level
//!
//! What is near the ends of the lists is written to cache devices ([`feed`], `crate::l2arc`).

mod cache;
mod feed;
pub mod follow;
mod lists;
mod name;
mod noted;
#[cfg(test)]
mod planted;
mod shard;
mod table;
#[cfg(test)]
mod tests;

use cenote_format::blkptr::BlockPointer;

pub use cache::ArcCache;
pub(crate) use cache::Owner;
pub(crate) use feed::{Fed, Feed, Sleeper, Take};
pub(crate) use name::Name;
pub use table::Table;

/// Ghosts that are always allowed, however few entries are resident.
pub const MIN_GHOSTS: u64 = 16;

/// Bytes of uncached blocks that stay.
pub const MAX_UNCACHED: u64 = 8 << 20;

/// Bytes that an entry takes beside its value: its places in a table and in the lists, and the heads of allocations.
pub const ENTRY: u64 = 256;

/// Bytes that a ghost takes.
pub const GHOST: u64 = 128;

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

/// What was asked for of one kind: when it was needed (`demand_*`), and ahead of that (`prefetch_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Blocks that were needed and were there.
    pub demand_hits: u64,
    /// Blocks that were needed and were not there.
    pub demand_misses: u64,
    /// Blocks that a reader wanted ahead and that were there.
    pub prefetch_hits: u64,
    /// Blocks that were read ahead.
    pub prefetch_misses: u64,
}

/// How many entries there are of a kind, and what they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Entries.
    pub count: u64,
    /// Bytes of their values.
    pub bytes: u64,
}

/// Sizes and counts of an [`ArcCache`], named as OpenZFS's `arcstats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArcStats {
    /// Lookups of blocks that found them.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Bytes of blocks as they are on disk.
    pub size: u64,
    /// Metadata unpacked (`overhead_size`).
    pub unpacked: Taken,
    /// Objects decoded (`dnode_size`).
    pub objects: Taken,
    /// Bytes that entries and ghosts take beside these (`hdr_size`).
    pub hdr_size: u64,
    /// Bytes that it takes to know what is on cache devices (`l2_hdr_size`).
    pub l2_hdr_size: u64,
    /// The budget, bytes.
    pub c: u64,
    /// Least that the budget can be.
    pub c_min: u64,
    /// Most that the budget can be.
    pub c_max: u64,
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
    /// Entries that were put out to make room.
    pub deleted: u64,
    /// Entries resident, and names of those that were.
    pub elements: u64,
    /// Most of these that there were.
    pub elements_max: u64,
    /// Resident bytes of uncached blocks.
    pub uncached_size: u64,
    /// Resident bytes of metadata: of the recent side, the frequent side, uncached.
    pub metadata_sizes: [u64; 3],
    /// Bytes that the names of the recent ghost list stand for.
    pub mru_ghost_size: u64,
    /// Bytes that the names of the frequent ghost list stand for.
    pub mfu_ghost_size: u64,
    /// Those of them that were of metadata.
    pub ghost_metadata_sizes: [u64; 2],
    /// How memory was followed.
    pub memory: follow::Followed,
}

impl ArcStats {
    /// Bytes that all of it takes (`size` of `arcstats`).
    pub fn taken(&self) -> u64 {
        self.size + self.unpacked.bytes + self.objects.bytes + self.hdr_size + self.l2_hdr_size
    }
}
