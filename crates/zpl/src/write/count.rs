//! Objects that are not counted for their owners yet (`dmu_objset_id_quota_upgrade_cb`).
//!
//! The engine counts each dnode that is written, and notes in it that it is counted. So those that are not are written as
//! they are, some in each transaction, and the last transaction says that the counting is complete.

use crate::Result;
use crate::drain::Counting;
use crate::fs::FileSystem;
use cenote_dmu::live::Cost;
use cenote_format::dmu::{DNODE_BLOCK, DNODE_FLAG_USEROBJUSED_ACCOUNTED};
use cenote_format::invariant;

/// Objects that one transaction looks at.
const BATCH: u64 = 256;
/// What a transaction writes, at most, in bytes: blocks of dnodes. It takes no space for good.
const COST: Cost = Cost { write: 16 * DNODE_BLOCK, objects: 0, frees: true };

impl FileSystem {
    /// Has some objects counted; `None`: all are.
    pub(super) fn count_some(&self, counting: Counting) -> Result<Option<Counting>> {
        self.change(COST, |cx| {
            cx.os.log_nothing();
            let mut from = counting.from;
            for _ in 0..BATCH {
                let Some(object) = cx.os.next_object(from)? else {
                    cx.os.set_flags(cx.os.flags() | counting.flags);
                    return Ok(None);
                };
                if cx.os.dnode(object)?.flags & DNODE_FLAG_USEROBJUSED_ACCOUNTED == 0 {
                    cx.os.touch(object)?;
                }
                invariant!(object >= from, "object {object} is counted after those before {from}");
                from = object + 1;
            }
            Ok(Some(Counting { from, ..counting }))
        })
    }
}
