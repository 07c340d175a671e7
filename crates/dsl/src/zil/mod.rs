//! Intent logs of datasets (the ZIL): what was promised to be on disk before its transaction group was.
//!
//! | module | what |
//! |---|---|
//! | [`chain`] | reading a log, block by block and record by record |
//! | `ahead` | reading ahead where log blocks lie side by side |
//! | [`kept`] | blocks that were read, for later reads of them |
//! | [`mod@claim`] | what an import takes of a log that a crash left |

mod ahead;
pub mod chain;
pub mod claim;
pub mod kept;
pub mod parallel;

pub use chain::{End, Item, Locked, ZIL_LEVEL, bookmark, walk, walk_kept};
pub use claim::{Claim, Claimed, claim};
pub use kept::Kept;

use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ZilHeader;

/// The header of an object set without a log.
pub const NO_LOG: ZilHeader = ZilHeader {
    claim_txg: 0,
    replay_seq: 0,
    log: BlockPointer::HOLE,
    claim_blk_seq: 0,
    flags: 0,
    claim_lr_seq: 0,
};
