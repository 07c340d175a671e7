//! Blocks: what stands between block pointers and devices.
//!
//! Floor 2 of cenote. A [`Store`] reads the block that a block pointer names:
//!
//! ```text
//! read(bp) ─ hole ───────────────────────────────────────────────> zeros
//!          ─ embedded ── payload in the pointer ── decompress ───> Block
//!          ─ ARC, unpacked metadata ────────────────────────────> Block
//!          ─ ARC (physical bytes, compressed and encrypted still) ─ decrypt ─ decompress > Block
//!          ─ in flight: wait for the read that has begun
//!          ─ cache devices ── checksum ── ARC ── decrypt ─ decompress > Block
//!          ─ devices: DVA by DVA ── checksum ── ARC ── decrypt ─ decompress > Block
//!                     └ gang: header, constituents, concatenated
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`pipeline`] | the read pipeline above |
//! | [`gang`] | blocks in several pieces |
//! | [`arc`] | the adaptive replacement cache of physical blocks |
//! | [`l2arc`] | blocks on cache devices |
//! | [`injection`] | faults that an administrator injects into reads of blocks |
//! | `tamper` | for tests: hostile blocks with right checksums |
//! | `errlist` | what could not be read, on its way to the error log |
//! | `persistent` | reads that wait for devices to come back |
//! | `notes` | which leaf gave wrong bytes, and when that counts |
//! | [`keys`] | which datasets' keys are loaded |
//! | `keyless` | what of encrypted blocks is read without keys |
//! | [`memory`] | how much memory this process can have |
//! | `scrub` | what a scan does with the blocks that it found |
//! | `primary` | which datasets' blocks the ARC and cache devices keep |
//! | `direct` | reads and writes past the ARC |
//! | [`verify`] | which bytes satisfy a block pointer's checksum |
//! | [`rangetree`], [`histogram`] | free space of a metaslab in memory |
//! | [`alloc`] | where blocks go: metaslabs, classes, the changes of each txg |
//! | [`mod@write`] | the write pipeline |
//!
//! A block's checksum is verified before it enters the ARC and never after; what the ARC holds is right. Encrypted blocks
//! lie there encrypted: a reader decrypts them each time, with the key of its dataset.

pub mod alloc;
pub mod arc;
pub mod correct;
mod direct;
mod errlist;
mod error;
pub mod gang;
pub mod held;
pub mod histogram;
pub mod injection;
mod keyless;
pub mod keys;
pub mod l2arc;
pub mod memory;
pub mod notes;
mod persistent;
pub mod pipeline;
pub mod prefetch;
mod primary;
pub mod rangetree;
mod scan_keys;
mod scrub;
mod segments;
mod settled;
mod single_flight;
mod stretch;
mod sync;
#[cfg(feature = "tamper")]
pub mod tamper;
pub mod tunables;
pub mod verify;
pub mod write;

pub use arc::Access;
pub use cenote_vdev::{Priority, declare_tunables, tunable};
pub use direct::DirectStats;
pub use errlist::{LoggedError, Rotation, ScrubStage, TakenErrors};
pub use error::{BlockError, Bookmark, ZIL_LEVEL};
pub use notes::Notes;
pub use pipeline::{Block, Store, StoreStats};
pub use primary::{Caching, PrimaryCache};
pub use scan_keys::ScanKeys;
pub use scrub::{ScanBlock, ScanFunc, Scanned};

/// What can be replaced while it is in use, as it was when a caller asked. It is kept as long as callers hold this;
/// what was replaced goes with its last holder.
pub type Current<T> = arc_swap::Guard<std::sync::Arc<T>>;
