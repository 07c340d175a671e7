//! Blocks of logs that were read, kept until the logs are replayed.
//!
//! An import needs a log several times: to find out whether there is anything to be replayed, to claim it, to
//! replay it and to free it. The device reads each block once: the first walk leaves what it decoded here,
//! and later walks take it from here. What is beyond the bound is read again.
//!
//! Invariant: a block is found only by the pointer by which it was read and verified.

use cenote_format::ByteOrder;
use cenote_format::blkptr::BlockPointer;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// A log block, taken apart.
#[derive(Debug)]
pub(super) struct Parsed {
    /// The pointer by which it was read.
    pub bp: BlockPointer,
    /// The pointer to the next block.
    pub next: BlockPointer,
    /// The records.
    pub records: Vec<u8>,
    pub order: ByteOrder,
}

#[derive(Debug, Default)]
struct Blocks {
    /// By the words that are in the place of the checksum, which no two log blocks share.
    all: HashMap<[u64; 4], Arc<Parsed>>,
    /// Bytes that may still be kept.
    left: u64,
}

/// See the [module](self). Many threads may share it.
#[derive(Debug, Default)]
pub struct Kept(Mutex<Blocks>);

/// What a block takes besides its records.
const BLOCK: u64 = 400;

impl Kept {
    /// Keeps `bytes` bytes at most.
    pub fn up_to(bytes: u64) -> Kept {
        Kept(Mutex::new(Blocks { all: HashMap::new(), left: bytes }))
    }

    /// Keeps nothing: for a log that is read once.
    pub fn nothing() -> Kept {
        Kept::default()
    }

    pub(super) fn find(&self, bp: &BlockPointer) -> Option<Arc<Parsed>> {
        let found = self.0.lock().all.get(&bp.checksum()).cloned();
        found.filter(|block| block.bp == *bp)
    }

    pub(super) fn keep(&self, block: &Arc<Parsed>) {
        let mut blocks = self.0.lock();
        let size = BLOCK + block.records.len() as u64;
        if let Some(left) = blocks.left.checked_sub(size) {
            let before = blocks.all.insert(block.bp.checksum(), block.clone());
            blocks.left = if before.is_none() { left } else { blocks.left };
        }
    }
}
