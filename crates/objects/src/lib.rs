//! A space of addresses that is kept in an object store (S3, GCS, Azure, a directory, memory).
//!
//! # Idea
//!
//! A device below a pool is an array of bytes that are overwritten in place. Objects in a bucket cannot be overwritten in
//! part, and each request costs money and tens of milliseconds. So the space of this crate only grows: an address
//! (`0..2^60`) belongs to one block and never to another one (after a crash those that no group has committed are given out again). What a transaction group writes is packed, in the order of its addresses,
//! into objects of up to 4 MiB ([`Tunables::object_bytes`]). Objects are uploaded many at once, while the group is still being
//! written. Block pointers never change: an index says which object holds an address now.
//!
//! This crate knows nothing of block pointers, labels or transaction groups beyond their number. Its user hands over an opaque payload
//! with each group (uberblock and configuration) and gets it back at the next import. The crate runs inside a tokio runtime, whose clock it uses.
//!
//! # What the store must be
//!
//! - It keeps to `If-None-Match: *`, and to `If-Match` where it says so; each creation and import tries it.
//! - The client makes each request once (`RetryConfig::max_retries` of 0): this crate tries again within its own budget, and counts.
//! - A directory is opened with `LocalFileSystem::with_fsync(true)`. Without it a power cut loses groups that were acknowledged. The
//!   files `NAME#n` that a crash leaves there are hidden from listings: they stay.
//! - Nothing else writes below the prefix.
//!
//! # On the store
//!
//! Below the prefix of the pool:
//!
//! | name | what it holds | module |
//! |---|---|---|
//! | `EEEEEE/CCCCCCCCCC` (hex) | an object: blocks and their table, pages of the index, its directory, or records of its log | [`id`] |
//! | `commit` | the root of the last group, where the store replaces an object on a condition | [`head`], [`root`] |
//! | `commits/N` (hex) | the root of group N, where the store can only create | [`head`], [`root`] |
//!
//! `E` is the *epoch*: each import makes a new one, from a random first one on. `C` counts the objects of the epoch. A name is therefore never used for
//! two contents, not even by a host that does not know yet that it was fenced. Objects are created on the condition that they do not exist. Objects of
//! epoch 0 try whether the store keeps to conditions.
//!
//! - **Data** ([`table`]): the blocks, one after the other, then the table of their addresses, lengths and checksums. As long as
//!   nothing was taken out, an address is found without the table: the object is *dense*.
//! - **Index** ([`index`], [`page`]): sorted entries (addresses, object, lengths, live bytes), 1,024 to a page at most. A page is kept in
//!   memory as it is on the store, about 8 bytes an entry; pages that are not needed are dropped beyond
//!   [`Tunables::index_bytes`] and read again. The directory of pages is always in memory.
//! - **Log** ([`record`]): what each group changed in the index. It lies in the root while it is short, else in objects. When it
//!   has grown ([`Tunables::log_bytes`]), the pages that changed are written (a *checkpoint*), and the log begins anew.
//! - Each of these structures has a trailer with kind, version, length and checksum ([`frame`]).
//!
//! # Invariants
//!
//! 1. The root names only objects that were uploaded completely before it.
//! 2. An object is deleted only after a root that does not name it has been stored.
//! 3. A root replaces exactly the root that its host read or wrote last ([`head`]). A host that cannot do that is fenced for good.
//! 4. Addresses of entries are disjoint and ascending; an entry's live bytes are at most its data, and never 0.
//! 5. Every object that the root does not name is garbage that the root lists, has a counter not below the root's in its epoch, or is
//!    listed as loose there. So an import finds what a crash left by looking at the ends of epochs, not at all objects.
//!
//! # A group
//!
//! [`Space::allocate`] gives addresses, [`Space::write`] takes the blocks ([`Space::abandon`] gives up what is not going to be written), [`Space::free`] notes what died. [`Space::commit`] closes the
//! last object, waits for uploads, applies the changes to the index, uploads log or checkpoint, and replaces the root. Then objects
//! without live blocks and old versions are deleted. Where the store fails for longer than the budget, `commit` returns an error and
//! keeps what it has done; the same call goes on from there. What belongs to a group is fixed when `commit` is called first.
//!
//! # Memory
//!
//! Blocks are in memory until their object is sent. An object is sent when all that was allocated in it is written: a group that is allocated
//! ahead of its writes lies in memory entirely. Pages that changed stay in memory until the next checkpoint, as do all pages while a group
//! reads those that it changes, or cannot be stored: with frees at random over 1 PiB up to 2 GiB.
//!
//! # Reclaim
//!
//! An object with few live bytes is written anew without the dead, and small neighbours become one ([`Space::reclaim`]). The new version has
//! a name of its own; the group that says so names it in place of the old. Which blocks are live is the caller's knowledge (space
//! maps); the index knows how many bytes, and both must agree.
//!
//! # After a crash
//!
//! [`Found::open`] reads the root, the directory and the log, and takes the space over with a root of a new epoch.
//! [`Space::sweep`] deletes what no root names: the ends of the last 64 epochs are listed at each import, since a request of a dead host may
//! still arrive, and a listing may be late. A request may be done once more, long after its answer: therefore garbage is
//! deleted only after [`Tunables::grace`], longer than a signed request is valid. A late upload finds the object still there.

pub mod address;
pub mod audit;
mod commit;
mod erase;
mod error;
pub mod frame;
mod guard;
pub mod head;
pub mod id;
pub mod index;
#[cfg(feature = "network")]
mod network;
mod pace;
pub mod page;
#[cfg(feature = "s3")]
mod profile;
mod read;
mod reclaim;
pub mod record;
mod requests;
pub mod root;
mod runs;
mod space;
mod stats;
pub mod table;
mod tunables;
mod write;

pub use address::Address;
pub use audit::Audit;
pub use erase::{Wreck, has_root};
pub use error::{Cause, Error, Result};
#[cfg(feature = "network")]
pub use network::{Environment, connect};
pub use reclaim::{Live, Reclaimed};
pub use requests::Class;
pub use space::{Found, Space};
pub use stats::{Figures, Purpose, Verb};
pub use tunables::Tunables;

/// Addresses end here: 2^60 bytes.
pub const ADDRESSES: u64 = 1 << 60;
/// Addresses and lengths are multiples of this: 512 bytes.
pub const SECTOR: u64 = cenote_format::SECTOR;
/// Most bytes of blocks in one object: 64 MiB.
pub const MAX_DATA: u64 = 64 << 20;
