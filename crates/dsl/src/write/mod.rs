//! Changing the datasets of a pool, in syncing context.
//!
//! # Idea
//!
//! A [`Tx`] is the pending MOS of the transaction group that is being synced. Every function here
//! takes one, reads what is pending, checks, and changes it; nothing is kept in memory between
//! two calls, so there is no state that could disagree with the MOS, and a sync that fails leaves
//! nothing behind. Each check is made before the first change: a function that returns an error
//! other than [`DslWriteError::Write`] has changed nothing.
//!
//! Blocks that are not needed any more are left in [`Tx::frees`], which the caller empties.
//!
//! | module | what |
//! |---|---|
//! | [`features`] | feature flags and their counts of uses |
//! | [`pool`] | the directories that every pool has |
//! | [`dataset`] | file systems and volumes: creation, what a sync of their contents changes |
//! | [`snapshot`] | taking and renaming snapshots |
//! | [`destroy`] | destroying snapshots and datasets |
//! | [`free`] | freeing what was destroyed, some in each txg |
//! | [`rename`] | moving directories |
//! | [`props`] | properties |
//! | [`space`] | accounting of space up the tree; quotas and reservations |
//! | [`bpobj`], [`deadlist`] | lists of block pointers |
//! | `bookmarks` | what becomes of bookmarks |
//! | `limits` | counts of file systems and snapshots |
//! | `names` | what names may be |
//! | `mos` | objects of the MOS, read and written as structures |

mod bookmarks;
pub mod bpobj;
pub mod dataset;
pub mod deadlist;
pub mod destroy;
pub mod features;
pub mod free;
mod limits;
mod mos;
mod names;
pub mod pool;
pub mod props;
pub mod rename;
pub mod snapshot;
pub mod space;

pub use crate::deadlist::Sizes;
use cenote_dmu::outside::{Chance, Outside};
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_format::blkptr::BlockPointer;
use cenote_format::encode::EncodeError;

/// Why a change was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum DslWriteError {
    /// A dataset, snapshot or property of that name is there already.
    #[error("dataset already exists")]
    Exists,
    /// There is no dataset, snapshot or property of that name.
    #[error("dataset does not exist")]
    NotFound,
    /// The dataset is in use.
    #[error("dataset is busy")]
    Busy,
    /// The dataset has child datasets.
    #[error("dataset has children")]
    HasChildren,
    /// The dataset has snapshots.
    #[error("dataset has snapshots")]
    HasSnapshots,
    /// The snapshot has dependent clones.
    #[error("snapshot has dependent clones")]
    HasClones,
    /// Users hold the snapshot.
    #[error("snapshot is held")]
    Held,
    /// There is not enough space.
    #[error("out of space")]
    NoSpace,
    /// A quota would be exceeded, or is less than what is used.
    #[error("out of quota")]
    Quota,
    /// A snapshot was taken in this transaction group already: to be tried in the next one.
    #[error("try again in the next transaction group")]
    Again,
    /// A name is too long.
    #[error("dataset name is too long")]
    TooLong,
    /// The change makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The pool or dataset uses something that cannot be changed by this software.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// The MOS could not be read or changed. The txg must not be completed.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl From<cenote_dmu::Error> for DslWriteError {
    fn from(e: cenote_dmu::Error) -> DslWriteError {
        DslWriteError::Write(e.into())
    }
}

impl From<cenote_format::DecodeError> for DslWriteError {
    fn from(e: cenote_format::DecodeError) -> DslWriteError {
        DslWriteError::Write(e.into())
    }
}

impl From<EncodeError> for DslWriteError {
    fn from(e: EncodeError) -> DslWriteError {
        DslWriteError::Write(e.into())
    }
}

/// Result of a change.
pub type Result<T> = std::result::Result<T, DslWriteError>;

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
    /// Blocks that are free from this txg on. The caller takes them.
    pub frees: Vec<BlockPointer>,
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
        Tx { mos, txg, now, chance, space, usable: None, pool: "", frees: Vec::new() }
    }
}
