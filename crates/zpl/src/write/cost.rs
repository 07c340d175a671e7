//! What changes write at most (`dmu_tx_hold_*`), where several files need to know.

use cenote_dmu::live::Cost;

/// What creating a node writes, at most, in bytes: its dnode, leaves of directories.
pub(super) const CREATE: u64 = 64 << 10;
/// What removing a name writes, at most, in bytes.
pub(super) const REMOVE: Cost = Cost { write: 64 << 10, objects: 0, frees: true };
/// What a change of attributes writes, at most, in bytes.
pub(super) const ATTRIBUTES: Cost = Cost { write: 64 << 10, objects: 0, frees: false };
