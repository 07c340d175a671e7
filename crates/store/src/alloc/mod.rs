//! Where blocks go: free space, metaslabs, classes, and the changes of each txg.
//!
//! # Idea
//!
//! A top-level vdev is divided into metaslabs, each with a space map on disk (which the pool reads
//! and writes) and a set of free segments in memory while it is *loaded*. An [`Allocator`] finds
//! room for blocks in loaded metaslabs, defers what is freed for two txgs, and hands out what
//! changed in each txg and metaslab for the pool to write down.
//!
//! ```text
//!   Allocator ── Class (normal, log, special, ...) ── Group (a top-level vdev) ── Metaslab
//!      │           rotor: whose turn it is              order by weight, active     FreeSpace
//!      └─ LoadMetaslab (the pool)                       metaslab per allocator      allocs, frees
//! ```
//!
//! # Algorithm
//!
//! A block's class is tried, then those it falls back to. Within a class the *rotor* stands at one
//! group until that has had its share, which follows its free space. Further copies begin at the
//! next group. Within a group an allocator goes on with its active metaslab, or else takes the
//! heaviest one that may hold the block, which is known without loading it, and one of its kind first:
//! data and metadata have metaslabs apart (`affinity`). Within a metaslab a
//! block goes to where the last one ended, else to the largest segment, or, if little is free, to one
//! of just its size. A block for which there is no segment is returned to the caller, which can divide
//! it.
//!
//! A vdev with many metaslabs keeps one for intent logs, the emptiest: a group of its own in a class of its own
//! ([`embedded_log`]). Log blocks go to log vdevs first, then there, then anywhere. Others go there only
//! where the pool would fail otherwise. Its space counts in the size of the pool, but not in
//! what datasets can have.
//!
//! # Locks
//!
//! Each metaslab has one, each group has one for its order, each rotor one. No two are ever held
//! together, and no lock while a space map is read: an allocation is never behind a load unless
//! nothing that is loaded can serve it. No lock is held for a time that goes with how much was freed or
//! how many segments there are: a sync works on sets that it took along, on copies, and in pieces.
//!
//! | module | what |
//! |---|---|
//! | [`FreeSpace`], [`Loading`] | free segments of one metaslab, sparse or dense |
//! | [`Metaslab`] | what becomes of its space over txgs |
//! | [`Weight`] | how good it is, known from a histogram |
//! | [`Group`] | the metaslabs of one vdev |
//! | [`Allocator`] | classes, copies, changes |
//! | [`Hold`] | keeps frees back while someone reads an older group |
//! | [`ReadEpochs`] | keep frees back while they read what is in use |
//! | [`LoadMetaslab`] | what the pool implements |
//! | [`LockWaits`] | how long allocations wait for each other and for the sync |

mod affinity;
mod allocator;
mod bits;
mod class;
mod defer;
mod deferred;
mod dense;
mod error;
mod gate;
mod group;
mod hold;
mod layout;
mod loader;
mod metaslab;
mod read_epochs;
mod row;
mod space;
mod sparse;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod watched;
mod weight;

pub use allocator::{
    AllocatedSize, Allocator, Dead, Disabled, Kept, MAX_COPIES, Options, SpaceFigures,
};
pub use class::{Class, Request, embedded_log};
pub use deferred::DeferredFrees;
pub use error::AllocError;
pub use group::{Addresses, Group, VdevInfo};
pub use hold::Hold;
pub use loader::{LoadMetaslab, Loaded};
pub use metaslab::{Changes, Metaslab, MetaslabInfo, OnDisk, Room, TXG_DEFER_SIZE};
pub use read_epochs::{ReadEpoch, ReadEpochs};
pub use row::Metaslabs;
pub use space::{Extent, FreeSpace, Loading, SEGMENT_BITS};
pub use watched::LockWaits;
pub use weight::Weight;
