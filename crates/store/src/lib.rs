//! Blocks: what stands between block pointers and devices.
//!
//! Floor 2 of cenote. A [`Store`] reads the block that a block pointer names:
//!
//! ```text
//! read(bp) ─ hole ───────────────────────────────────────────────> zeros
//!          ─ embedded ── payload in the pointer ── decompress ───> Block
//!          ─ decoded cache (unpacked metadata) ──────────────────> Block
//!          ─ ARC (physical bytes, still compressed) ─ decompress > Block
//!          ─ in flight: wait for whoever reads it already
//!          ─ devices: DVA by DVA ── checksum ── ARC ── decompress > Block
//!                     └ gang: header, constituents, concatenated
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`pipeline`] | the read pipeline above |
//! | [`gang`] | blocks in several pieces |
//! | [`arc`] | the adaptive replacement cache of physical blocks |
//! | `tamper` | for tests: hostile blocks with right checksums |
//! | [`verify`] | which bytes satisfy a block pointer's checksum |
//! | [`rangetree`], [`histogram`] | free space of a metaslab in memory |
//!
//! A block is verified before it enters the ARC and never after; what the ARC holds is right.

pub mod alloc;
pub mod arc;
mod decoded;
mod error;
mod flight;
pub mod gang;
pub mod histogram;
pub mod pipeline;
mod prefetch;
pub mod rangetree;
#[cfg(feature = "tamper")]
pub mod tamper;
pub mod verify;

pub use error::{BlockError, Bookmark};

/// What the environment variable `GLIBC_TUNABLES` should say when a process with a large ARC is
/// started; glibc reads it once, before `main`.
///
/// A block that is read for the first time costs as much in page faults as in everything else, for
/// the memory it goes to is new. With these settings glibc asks for huge pages, takes blocks of
/// any size from its heaps instead of mapping each one, and gives memory back in large pieces
/// only. On other C libraries they do nothing.
pub const MALLOC_TUNABLES: &str = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:\
    glibc.malloc.trim_threshold=67108864";
pub use pipeline::{Block, Store, StoreStats};
