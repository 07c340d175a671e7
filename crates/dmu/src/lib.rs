//! The Data Management Unit: objects, the trees of blocks below them, and ZAPs.
//!
//! Floor 3 of cenote. It turns "block `n` of object `m`" into block pointers for the floor below
//! ([`cenote_store`]) and knows nothing of datasets or files.
//!
//! An *object set* ([`ObjectSet`]) is an array of dnodes, stored as the data of its meta dnode. A
//! *dnode* describes an [`Object`]: up to three block pointers are the roots of a tree of indirect
//! blocks whose leaves are the object's data blocks, all of one size. Small private data is in the
//! dnode itself (the bonus buffer) or in one further block (the spill block). A [`zap::Zap`] is a
//! table kept in an object.
//!
//! | module | what |
//! |---|---|
//! | [`objset`] | object sets, finding dnodes |
//! | `cache` | decoded dnodes and indexed micro ZAPs, from sync to sync |
//! | [`object`] | objects: bonus, spill, blocks |
//! | `tree` | from a block number to its pointer, through the indirect blocks |
//! | `read` | bytes of an object: ranges, batches, prefetch |
//! | [`outside`] | the clock, random numbers |
//! | `overlay` | pending changes above what is on disk |
//! | `blocks`, `ranges` | dirty blocks by number; sets of block numbers |
//! | `seek` | next data, next hole |
//! | `delete_chunk` | which part of an object one transaction may free |
//! | `walk` | every block pointer of an object |
//! | [`readahead`] | when to read ahead, how far |
//! | [`zap`] | names to values |
//! | [`mod@write`] | changing an object set, transaction group by transaction group |
//! | [`live`] | an object set in use: many readers, changes, syncs |
//!
//! Invariants:
//! - A pointer found in an indirect block is used only if its level and size are those that its
//!   place in the tree demands, so a tree cannot loop and buffers are as large as the dnode says.
//! - Time and memory are bounded by what is really stored: searches skip whole subtrees of holes,
//!   and an indirect block that a hostile tree reaches twice is searched once.

mod blocks;
mod cache;
mod clones;
mod delete_chunk;
mod dnode;
mod dnode_counts;
pub mod live;
pub mod object;
pub mod objset;
pub mod outside;
mod overlay;
mod ranges;
mod read;
pub mod readahead;
mod seek;
mod sync;
mod tree;
pub mod tunables;
mod walk;
pub mod write;
pub mod zap;

pub use delete_chunk::DeleteChunk;
pub use dnode_counts::{DnodeCounts, dnode_counts};
pub use object::Object;
pub use objset::ObjectSet;
pub use seek::Seek;
pub use tree::{Node, Tree};

use cenote_format::DecodeError;
use cenote_store::BlockError;

/// Errors of this floor and above.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A block could not be read.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// A block was read but its contents make no sense.
    #[error("objset {objset} object {object}: {source}")]
    Decode {
        /// The object set.
        objset: u64,
        /// The object.
        object: u64,
        /// What is wrong.
        source: DecodeError,
    },
    /// The object is not allocated.
    #[error("objset {objset} object {object}: no such object")]
    NoObject {
        /// The object set.
        objset: u64,
        /// The object.
        object: u64,
    },
    /// Structures contradict each other.
    #[error("objset {objset} object {object}: {why}")]
    Corrupt {
        /// The object set.
        objset: u64,
        /// The object.
        object: u64,
        /// What is wrong.
        why: String,
    },
}

/// Result of this floor.
pub type Result<T> = std::result::Result<T, Error>;
