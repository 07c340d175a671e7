//! Changing the datasets of a pool, in syncing context.
//!
//! # Idea
//!
//! A [`Tx`] is the pending MOS of the transaction group that is being synced. Every function here
//! takes one, reads what is pending, checks, and changes it; nothing is kept in memory between
//! two calls, so there is no state that could disagree with the MOS, and a sync that fails leaves
//! nothing behind.
//!
//! # Failure
//!
//! There are three kinds. A change is *refused*: a name is taken, a quota is too small. What it needs is
//! *unreadable* ([`DslWriteError::Unreadable`]): bytes on the devices cannot be read, or make no sense.
//! Or the group that is being written cannot be written, which is *fatal* ([`DslWriteError::Fatal`]).
//! After the first two the caller takes back what was changed ([`OpenObjectSet::undo_change`]) and the pool
//! goes on; only the third suspends it.
//!
//! Blocks that are not needed any more are left in [`Tx::frees`], which the caller empties.
//!
//! Modules import only modules that stand below them in this table, or further right in their row.
//!
//! | module | what |
//! |---|---|
//! | [`pool`] | the directories that every pool has, made |
//! | [`receive`], [`swap`] | datasets that are received; a head and its clone swapped |
//! | [`promote`], [`rollback`] | the commands of these names |
//! | [`holds`] | holds on snapshots |
//! | [`destroy`] | destroying snapshots and datasets |
//! | [`free`] | freeing what was destroyed, some in each txg |
//! | [`snapshot`] | taking and renaming snapshots |
//! | [`rename`] | moving directories |
//! | [`dataset`] | file systems and volumes: creation, what a sync of their contents changes |
//! | [`bookmarks`], [`redaction`] | bookmarks and what becomes of them; their redaction lists |
//! | [`crypt`] | keys of encrypted datasets |
//! | `incoming` | what a stream says of the dataset that it makes |
//! | [`livelist`] | what clones have of their own: kept, condensed, freed |
//! | `clones`, `remaps` | the clones of snapshots; deadlists of parts of removed vdevs |
//! | [`references`] | freeing blocks that were cloned |
//! | [`deadlist`], [`bpobj`] | lists of block pointers |
//! | `own` | books of the blocks that were born here, a second side of sums |
//! | `special`, `dir` | the directories `$MOS`, `$FREE`, `$LEAK`; directories of datasets |
//! | [`props`], [`quotas`] | properties; quotas of users, groups and projects, in the contents of a file system |
//! | [`space`] | accounting of space up the tree; quotas and reservations |
//! | [`limits`] | counts of file systems and snapshots, and their limits |
//! | [`permissions`] | delegated permissions |
//! | `stored`, `kept`, `budget` | properties as they are stored; bookmarks that a change keeps; how much a group frees |
//! | `moves` | changes that bring the contents of data sets elsewhere |
//! | `names` | what names may be |
//! | [`errlog`] | the logs of blocks that could not be read |
//! | [`features`] | feature flags and their counts of uses |
//! | `directory` | the object directory |
//! | `mos` | objects of the MOS, read and written as structures |
//! | `error` | the three kinds of failure |

pub mod bookmarks;
pub mod bpobj;
mod budget;
mod clones;
pub mod crypt;
pub mod dataset;
pub mod deadlist;
pub mod destroy;
mod dir;
mod directory;
pub mod errlog;
mod error;
pub mod features;
pub mod free;
pub mod holds;
mod incoming;
mod kept;
pub mod limits;
pub mod livelist;
mod mos;
mod moves;
mod names;
mod own;
pub mod permissions;
#[cfg(test)]
mod planted;
pub mod pool;
pub mod promote;
pub mod props;
pub mod quotas;
pub mod receive;
pub mod redaction;
pub mod references;
mod remaps;
pub mod rename;
pub mod rollback;
pub mod snapshot;
pub mod space;
mod special;
mod stored;
pub mod swap;

pub use crate::deadlist::Sizes;
use cenote_dmu::outside::{Chance, Outside};
use cenote_dmu::write::OpenObjectSet;
use cenote_format::blkptr::{BlockPointer, Dva};
pub use error::{DslWriteError, Fatal, Result, Unreadable};
pub use moves::Move;
use std::sync::Arc;

/// A transaction group in syncing context: the pending MOS.
pub struct Tx<'a> {
    /// The MOS.
    pub mos: &'a mut OpenObjectSet,
    /// The transaction group that is being synced.
    pub txg: u64,
    /// The time, in seconds since 1970.
    pub now: u64,
    /// Where guids and salts come from.
    pub chance: &'a Chance,
    /// What a block counts for: see [`Sizes`].
    pub space: &'a dyn Fn(&BlockPointer) -> Sizes,
    /// The pool's bytes for datasets (see [`PoolSpace::usable`](crate::PoolSpace::usable)); `None`:
    /// quotas and reservations are not checked against the pool's size.
    pub usable: Option<u64>,
    /// The name that the pool is imported under: with it, names of datasets are limited in length.
    pub pool: &'a str,
    /// The user whose change it is; `None`: it is work of the pool itself.
    pub who: Option<Arc<permissions::Who>>,
    /// Blocks that are free from this txg on. The caller takes them.
    pub frees: Vec<BlockPointer>,
    /// Parts of removed vdevs that no block pointer refers to from this txg on, though their blocks are not free. The
    /// caller takes them.
    pub obsolete: Vec<Dva>,
    /// What was moved, in that order. The caller takes it.
    pub moves: Vec<Move>,
    /// Keys of deadlists, for a caller that keeps them from group to group. They have to be
    /// [forgotten](deadlist::Keys::forget) when deadlists change without them.
    pub deadlists: Option<&'a mut deadlist::Keys>,
}

impl<'a> Tx<'a> {
    /// One at the time that it is now, in which nothing is freed yet and the size of the pool, whose
    /// name is not known, counts for nothing.
    pub fn new(
        mos: &'a mut OpenObjectSet,
        txg: u64,
        outside: &'a Outside,
        space: &'a dyn Fn(&BlockPointer) -> Sizes,
    ) -> Tx<'a> {
        let (now, chance) = (outside.clock.seconds(), &outside.chance);
        let (frees, obsolete, deadlists) = (Vec::new(), Vec::new(), None);
        let moves = Vec::new();
        let (usable, pool, who) = (None, "", None);
        Tx { mos, txg, now, chance, space, usable, pool, who, frees, obsolete, moves, deadlists }
    }
}
