//! Blocks that were written since the last flush, kept until they are durable.
//!
//! A flush that fails may have lost any of them, and where no other device has them they are written again
//! ([`VdevTree::recover`](crate::VdevTree::recover)). They are kept by top-level vdev and place; what a later write covers is
//! kept no more. It costs references to buffers: what is kept is what a transaction group has written, and its blocks are
//! in memory anyway until it is on disk.
//!
//! Invariant: a block is kept from before it is written until a flush of its top-level vdev that began after its write
//! had ended has succeeded.

use super::BlockWrite;
use cenote_format::invariant;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Of a block that is being written.
const WRITING: u64 = u64::MAX;

struct Kept {
    block: BlockWrite,
    /// Where it ends on its vdev.
    end: u64,
    /// The batch that wrote it.
    batch: u64,
    /// The count when its write had ended.
    written: u64,
}

#[derive(Default)]
struct State {
    /// Counts batches as they begin and end.
    now: u64,
    /// By top-level vdev and offset there.
    tops: HashMap<u64, BTreeMap<u64, Kept>>,
}

#[derive(Default)]
pub(crate) struct Unflushed(Mutex<State>);

impl Unflushed {
    /// Blocks are going to be written; `asize` tells how much of its vdev a block takes. Returns the number of the batch.
    pub(super) fn begin(&self, blocks: &[BlockWrite], asize: impl Fn(&BlockWrite) -> u64) -> u64 {
        let mut state = self.0.lock();
        state.now += 1;
        let batch = state.now;
        for block in blocks {
            // One that is past all numbers is refused when it is laid out.
            let (start, end) = (block.offset, block.offset.saturating_add(asize(block)));
            let top = state.tops.entry(block.vdev).or_default();
            // They do not overlap each other, so that those before end in their order.
            while let Some((at, _)) = top.range(..end).next_back().filter(|(_, k)| k.end > start) {
                let at = *at;
                top.remove(&at);
            }
            top.insert(start, Kept { block: block.clone(), end, batch, written: WRITING });
        }
        batch
    }

    /// Their writes have ended, however.
    pub(super) fn end(&self, blocks: &[BlockWrite], batch: u64) {
        let mut state = self.0.lock();
        state.now += 1;
        let now = state.now;
        for block in blocks {
            let kept = state.tops.get_mut(&block.vdev).and_then(|top| top.get_mut(&block.offset));
            if let Some(kept) = kept.filter(|kept| kept.batch == batch) {
                let (vdev, offset, before) = (block.vdev, block.offset, kept.written);
                invariant!(
                    before == WRITING,
                    "vdev {vdev}: the write at {offset:#x} of batch {batch} ends at {now}, and ended at {before}"
                );
                kept.written = now;
            }
        }
    }

    /// A flush begins: what it will have made durable, to be handed to [`Unflushed::flushed`].
    pub(super) fn now(&self) -> u64 {
        self.0.lock().now
    }

    /// The flush of a top-level vdev that began then has succeeded.
    pub(super) fn flushed(&self, top: u64, then: u64) {
        let dropped = {
            let mut state = self.0.lock();
            let now = state.now;
            invariant!(then <= now, "vdev {top}: a flush that began at {then} succeeds at {now}");
            let Some(blocks) = state.tops.get_mut(&top) else { return };
            let durable = |_: &u64, kept: &mut Kept| kept.written <= then;
            blocks.extract_if(.., durable).map(|(_, kept)| kept).collect::<Vec<_>>()
        };
        // Memory is given back without the lock.
        drop(dropped);
    }

    /// Nothing of a top-level vdev is going to be written again.
    pub(super) fn forget(&self, top: u64) {
        let dropped = self.0.lock().tops.remove(&top);
        drop(dropped);
    }

    /// Whether something of a range of a top-level vdev is not known to be durable.
    pub fn meets(&self, top: u64, range: &Range<u64>) -> bool {
        let state = self.0.lock();
        let last = state.tops.get(&top).and_then(|top| top.range(..range.end).next_back());
        last.is_some_and(|(_, kept)| kept.end > range.start)
    }

    /// The blocks of a top-level vdev that are not known to be durable.
    pub(super) fn of(&self, top: u64) -> Vec<BlockWrite> {
        let state = self.0.lock();
        let blocks = state.tops.get(&top).into_iter().flat_map(BTreeMap::values);
        blocks.map(|kept| kept.block.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Content;
    use cenote_format::abd::Abd;

    fn block(offset: u64, len: usize) -> BlockWrite {
        let data = Abd::from_vec(vec![offset as u8; len]);
        BlockWrite { vdev: 3, offset, data, txg: 7, content: Content::Data, sides: Vec::new() }
    }

    fn begin(kept: &Unflushed, blocks: &[BlockWrite]) -> u64 {
        kept.begin(blocks, |block| block.data.len() as u64)
    }

    fn places(kept: &Unflushed) -> Vec<(u64, usize)> {
        kept.of(3).iter().map(|block| (block.offset, block.data.len())).collect()
    }

    #[test]
    fn blocks_are_kept_until_a_later_flush() {
        let kept = Unflushed::default();
        let (first, second) = ([block(0, 512), block(512, 1024)], [block(4096, 512)]);
        let batch = begin(&kept, &first);
        kept.end(&first, batch);
        let other = begin(&kept, &second);
        let then = kept.now();
        kept.end(&second, other);
        // The second one may have been written after the flush began.
        kept.flushed(3, then);
        assert_eq!(places(&kept), [(4096, 512)]);
        kept.flushed(4, kept.now());
        kept.flushed(3, kept.now());
        assert_eq!(places(&kept), []);
    }

    #[test]
    fn what_is_written_over_is_kept_no_more() {
        let kept = Unflushed::default();
        begin(&kept, &[block(0, 1024), block(1024, 1024), block(4096, 512)]);
        begin(&kept, &[block(512, 1024)]);
        assert_eq!(places(&kept), [(512, 1024), (4096, 512)]);
        begin(&kept, &[block(4096, 4096), block(8192, 512)]);
        assert_eq!(places(&kept), [(512, 1024), (4096, 4096), (8192, 512)]);
        begin(&kept, &[block(0, 16384)]);
        assert_eq!(places(&kept), [(0, 16384)]);
        let meets = |range| kept.meets(3, &range);
        assert!(meets(16383..20000) && meets(0..1) && !meets(16384..20000) && !meets(0..0));
        assert!(!kept.meets(4, &(0..16384)));
    }
}
