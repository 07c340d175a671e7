//! Reading ahead in a chain of log blocks.
//!
//! Only a block says where the next one is, so that a chain is read one block after another. But the
//! allocator puts log blocks side by side, as long as there is room. Where a block lies close behind the one
//! before it, a stretch of the device is read from it on, twice as long each time, and the blocks that
//! follow are taken from there. Each is verified by its own pointer; one that is not in what was read
//! ahead, or is wrong there, is read by itself, with all that redundancy can do.
//!
//! Each top-level vdev has a lane of its own, because a log goes round the log vdevs.

use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_store::{Block, Bookmark, Store, ZIL_LEVEL};
use cenote_vdev::Stretch;
use std::collections::HashMap;

/// Object number in bookmarks of log blocks (`ZB_ZIL_OBJECT`).
const ZIL_OBJECT: u64 = 0;
/// Bytes of the first stretch.
const LEAST: u64 = 256 << 10;
/// Bytes of the longest stretch, which is also what a lane keeps at most.
const MOST: u64 = 4 << 20;
/// Bytes of something else that may lie between two log blocks.
const GAP: u64 = 128 << 10;

/// Where a log block is, for errors.
pub fn bookmark(bp: &BlockPointer) -> Bookmark {
    let [_, _, objset, seq] = bp.checksum();
    Bookmark { objset, object: ZIL_OBJECT, level: ZIL_LEVEL, blkid: seq }
}

/// What was read ahead of one vdev.
struct Lane {
    /// Where the last block of the log on it ended.
    end: u64,
    /// Bytes of the next stretch.
    size: u64,
    stretch: Option<Stretch>,
}

/// Reads the blocks of a chain ahead.
pub(super) struct Ahead<'a> {
    store: &'a Store,
    lanes: HashMap<u32, Lane>,
}

impl<'a> Ahead<'a> {
    pub fn new(store: &'a Store) -> Ahead<'a> {
        Ahead { store, lanes: HashMap::new() }
    }

    /// The block of `bp`, if it lies in what was read ahead, or is worth reading ahead from.
    pub fn take(&mut self, bp: &BlockPointer) -> Option<Block> {
        let dva = bp.dva(0).filter(|dva| !dva.gang)?;
        let end = dva.offset.checked_add(dva.asize)?;
        let first = Lane { end: u64::MAX, size: LEAST, stretch: None };
        let lane = self.lanes.entry(dva.vdev).or_insert(first);
        let follows = dva.offset >= lane.end && dva.offset - lane.end <= GAP;
        lane.end = end;
        if let Some(bytes) = lane.find(bp, dva) {
            // Wrong bytes here are no reason to read a stretch again.
            return self.store.block_of(bp, bookmark(bp), &bytes);
        }
        if !follows {
            (lane.size, lane.stretch) = (LEAST, None);
            return None;
        }
        let room = self.store.vdevs().top(dva.vdev.into())?.asize().saturating_sub(dva.offset);
        let size = lane.size.max(dva.asize).min(room);
        lane.size = (lane.size * 2).min(MOST);
        lane.stretch = self.store.read_stretch(dva, size);
        self.store.block_of(bp, bookmark(bp), &lane.find(bp, dva)?)
    }
}

impl Lane {
    /// The bytes of a block that lies in the stretch.
    fn find(&self, bp: &BlockPointer, dva: Dva) -> Option<Abd> {
        self.stretch.as_ref()?.block(dva.offset, bp.psize())
    }
}
