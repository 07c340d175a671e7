//! SKELETON of floor 2: blocks.
use cenote_format::{ByteOrder, DecodeError, abd::Abd, blkptr::BlockPointer, checksum::Salt};
use cenote_vdev::{VdevError, VdevTree};
use std::sync::Arc;

/// Which block of which object (`zbookmark_phys_t`), for errors and error logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct Bookmark { pub objset: u64, pub object: u64, pub level: i64, pub blkid: u64 }

/// Why a block could not be read. Says where and what.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs)]
pub enum BlockError {
    #[error("{at:?} {bp:?}: {source}")] Vdev { at: Bookmark, bp: BlockPointer, source: VdevError },
    #[error("{at:?} {bp:?}: checksum mismatch on every copy")] Checksum { at: Bookmark, bp: BlockPointer },
    #[error("{at:?} {bp:?}: {source}")] Decode { at: Bookmark, bp: BlockPointer, source: DecodeError },
    #[error("{at:?}: the block is encrypted and its key is not loaded")] Encrypted { at: Bookmark },
}

/// A block as its owner sees it: decompressed, in `order`.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Block { pub data: Abd, pub order: ByteOrder }

/// Read pipeline + ARC over a vdev tree.
pub struct Store;
impl Store {
    /// `arc_bytes`: byte budget of the ARC.
    pub fn new(_vdevs: Arc<VdevTree>, _arc_bytes: u64) -> Arc<Store> { todo!() }
    /// Once the MOS is open.
    pub fn set_salt(&self, _salt: Salt) { todo!() }
    /// The devices.
    pub fn vdevs(&self) -> &Arc<VdevTree> { todo!() }
    /// Reads a block through the ARC. A hole is an all-zero block of lsize.
    pub fn read(&self, _bp: &BlockPointer, _at: Bookmark) -> Result<Block, BlockError> { todo!() }
    /// Reads many blocks: cache misses go down as one batch; checksum and decompression on all cores.
    pub fn read_many(&self, _reqs: &[(BlockPointer, Bookmark)]) -> Vec<Result<Block, BlockError>> { todo!() }
    /// Reads the physical (still compressed) bytes of every copy, verifying each separately, bypassing the cache: scrub-like,
    /// for `zdb -c`. Returns the error of each DVA.
    pub fn verify_all_copies(&self, _bp: &BlockPointer, _at: Bookmark) -> Vec<Result<(), BlockError>> { todo!() }
    /// The gang tree below a gang block pointer (constituents), for block accounting.
    pub fn gang_children(&self, _bp: &BlockPointer, _at: Bookmark) -> Result<Vec<BlockPointer>, BlockError> { todo!() }
    /// Starts reading into the cache in the background.
    pub fn prefetch(self: &Arc<Self>, _reqs: Vec<(BlockPointer, Bookmark)>) { todo!() }
    /// Blocks that could not be read since the pool was opened, for `zpool status -v`.
    pub fn errors(&self) -> Vec<Bookmark> { todo!() }
    /// Forget those errors.
    pub fn clear_errors(&self) { todo!() }
}
