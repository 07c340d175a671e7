//! A dnode in memory (`dnode_phys_t`, with what is known beside it).
//!
//! Invariant: it does not change while it is shared.

use cenote_format::dmu::DnodePhys;

/// A decoded dnode with its number. Its bonus buffer is little-endian.
#[derive(Debug, Clone)]
pub(crate) struct Dnode {
    pub(crate) number: u64,
    pub(crate) phys: DnodePhys,
}
