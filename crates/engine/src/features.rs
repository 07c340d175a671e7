//! How often features are used, in the MOS (`spa_feature_incr`, `spa_feature_decr`).
//!
//! Invariant: each use that is counted is taken off again by what ends it.

use cenote_dmu::outside::Outside;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dsl::write::Tx;
use cenote_format::blkptr::BlockPointer;

/// Adds to the number of uses of a feature.
pub(crate) fn count_feature(
    mos: &mut OpenObjectSet,
    txg: u64,
    outside: &Outside,
    guid: &str,
    delta: i64,
) -> std::result::Result<(), WriteError> {
    let space = |_: &BlockPointer| Default::default();
    let mut tx = Tx::new(mos, txg, outside, &space);
    Ok(cenote_dsl::write::features::change(&mut tx, guid, delta)?)
}
