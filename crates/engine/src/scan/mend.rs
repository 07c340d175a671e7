//! Wrong bytes that were read through a view of the pool are mended.
//!
//! A view does not tell whether its pointers are still good: what a command reads may have been freed, and its place given out
//! again. So such a read only counts the error, and the store remembers which block it was; where a view is so old that this may have
//! happened, neither (`cenote_store::notes`). A thread looks at these blocks
//! once more after the next group, or the next look at devices: under an epoch of reads, by the pointer that the newest view has
//! in that place. While the epoch lasts what that view reaches is not given out again. All copies are read, and those that are
//! wrong written anew, as a scrub does it; what is wrong beside what the read came to, in another copy or in parity, is counted now. Nothing
//! that is written anew counts a second time.

use super::find::Found;
use super::position::dataset;
use crate::{Engine, Shared};
use cenote_dmu::objset::PROJECT_USED;
use cenote_format::blkptr::BlockPointer;
use cenote_pool::Pool;
use cenote_pool::scan::ScanPhys;
use cenote_store::{Bookmark, Priority, ScanFunc, Store};
use std::sync::Arc;

/// The name of the thread.
const NAME: &str = "mend";
/// The level of the root block of an object set.
const ROOT: i64 = -1;

/// What the newest view has in the place of a block.
fn pointer(view: &Pool, at: &Bookmark) -> Option<BlockPointer> {
    let objset = match at.objset {
        0 => view.mos().clone(),
        id => {
            let dataset = view.dsl().by_object(id).ok()??;
            if at.level == ROOT {
                return Some(dataset.ds.bp);
            }
            view.dsl().walked_objset(&dataset).ok()?
        }
    };
    if at.level == ROOT {
        return Some(*objset.root_bp());
    }
    let level = u8::try_from(at.level).ok()?;
    let object = match at.object {
        0 | PROJECT_USED.. => objset.special(at.object),
        object => objset.object(object),
    };
    object.ok()?.block_pointer(level, at.blkid).ok()
}

impl Engine {
    /// Whether something that was read wrong waits for the next group to be looked at again, or is looked at now. Errors of devices may be
    /// counted as long as it is.
    pub fn is_mending(&self) -> bool {
        self.shared.disk.store.has_wrong() || self.shared.mender.is_working()
    }
}

impl Shared {
    /// Has a thread mend what reads through views found wrong, if there is anything.
    pub(crate) fn mend_what_was_read(self: &Arc<Self>) {
        if self.disk.store.has_wrong() && self.tx_state.held().is_none() {
            self.mender.wake(self, NAME, Shared::mend);
        }
    }

    fn mend(self: &Arc<Self>) {
        loop {
            let wrong = self.disk.store.take_wrong();
            if self.mender.is_stopped() {
                return self.mender.ends();
            }
            if wrong.is_empty() {
                if self.mender.is_over() {
                    return;
                }
                continue;
            }
            let reading = self.disk.allocator.readers().begin();
            let (view, tree) = (self.view(), self.disk.tree());
            let all = ScanPhys { max_txg: u64::MAX, ..ScanPhys::default() };
            let keys = view.dsl().keystore().keys_for_scan();
            let mut found = Found::new(ScanFunc::Scrub, &all, 0, keys);
            let look = || {
                for at in wrong.keys() {
                    if let Some(bp) = pointer(&view, at) {
                        // Its key would tell what is wrong: it is left to a scrub.
                        if let Ok(Some(phys)) = dataset(view.mos(), at.objset)
                            && !found.get_key(&view, at.objset, &phys)
                        {
                            continue;
                        }
                        found.add(&tree, &bp, *at);
                    }
                }
            };
            // What is wrong on the way there was noted when it was read first, or is found when that is.
            let look = || Priority::Scrub.for_reads(|| Store::without_keys(look));
            let ((), _) = Store::attempt(look);
            let (blocks, keys, _) = found.into_blocks();
            let counted = wrong.values().flatten().copied().collect();
            let mended = self.disk.store.mend(&blocks, &keys, &counted, &|| reading.is_safe());
            tracing::info!(
                blocks = wrong.len(),
                ?mended,
                "what was read wrong was looked at again"
            );
        }
    }
}
