//! SKELETON of floor 3: object sets, dnodes, ZAP.
use cenote_format::{ByteOrder, Bytes, DecodeError, blkptr::BlockPointer, dmu::*};
use cenote_store::{Block, BlockError, Store};
use std::sync::Arc;
pub mod zap;

/// Errors of this floor and above.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error(transparent)] Block(#[from] BlockError),
    #[error("objset {objset} object {object}: {source}")] Decode { objset: u64, object: u64, source: DecodeError },
    #[error("objset {objset} object {object}: no such object")] NoObject { objset: u64, object: u64 },
    #[error("objset {objset} object {object}: {why}")] Corrupt { objset: u64, object: u64, why: String },
}
/// Result.
pub type Result<T> = std::result::Result<T, Error>;

/// An open object set, for reading.
pub struct ObjectSet;
impl ObjectSet {
    /// Opens the object set at `bp`; `id` is the dataset's object number (0 for the MOS), used in bookmarks.
    pub fn open(_store: Arc<Store>, _id: u64, _bp: BlockPointer) -> Result<Arc<ObjectSet>> { todo!() }
    /// id
    pub fn id(&self) -> u64 { todo!() }
    /// store
    pub fn store(&self) -> &Arc<Store> { todo!() }
    /// root block pointer
    pub fn root_bp(&self) -> &BlockPointer { todo!() }
    /// The decoded objset_phys.
    pub fn phys(&self) -> &ObjsetPhys { todo!() }
    /// The object `number` (dnodes cached in a bounded cache).
    pub fn object(self: &Arc<Self>, _number: u64) -> Result<Object> { todo!() }
    /// Meta dnode (number 0) and accounting dnodes (-1,-2,-3 as u64) as objects.
    pub fn special(self: &Arc<Self>, _number: u64) -> Result<Object> { todo!() }
    /// The first allocated object at or after `from` (skips holes in the meta dnode quickly).
    pub fn next_object(self: &Arc<Self>, _from: u64) -> Result<Option<u64>> { todo!() }
    /// Number of dnode slots (objects are below this).
    pub fn max_object(&self) -> u64 { todo!() }
}

/// Where data or a hole begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Seek { Data, Hole }

/// An object: cheap to clone.
#[derive(Clone)]
pub struct Object;
impl Object {
    /// number
    pub fn number(&self) -> u64 { todo!() }
    /// object set
    pub fn objset(&self) -> &Arc<ObjectSet> { todo!() }
    /// dnode
    pub fn dnode(&self) -> &DnodePhys { todo!() }
    /// Byte order in which the dnode (and so its bonus) was written.
    pub fn order(&self) -> ByteOrder { todo!() }
    /// Bonus buffer as Bytes.
    pub fn bonus(&self) -> Bytes<'_> { todo!() }
    /// The spill block, if any.
    pub fn spill(&self) -> Result<Option<Block>> { todo!() }
    /// Block pointer at (level, blkid); a hole where an ancestor is a hole or blkid is past the end.
    pub fn block_pointer(&self, _level: u8, _blkid: u64) -> Result<BlockPointer> { todo!() }
    /// Data block `blkid`; None for a hole.
    pub fn block(&self, _blkid: u64) -> Result<Option<Block>> { todo!() }
    /// Reads into `buf` from byte `offset`, zeros in holes and past the last block.
    pub fn read(&self, _offset: u64, _buf: &mut [u8]) -> Result<()> { todo!() }
    /// Start of the next data / hole at or after `offset` in whole blocks; None: no more data (for Hole: end of blocks).
    pub fn seek(&self, _offset: u64, _what: Seek) -> Result<Option<u64>> { todo!() }
    /// Starts background reads of the blocks covering the range.
    pub fn prefetch(&self, _offset: u64, _len: u64) { todo!() }
    /// Every non-hole block pointer below the dnode (indirect ones before their children, level -1 = spill): f(level, blkid, bp).
    pub fn walk(&self, _f: &mut dyn FnMut(i64, u64, &BlockPointer) -> Result<()>) -> Result<()> { todo!() }
}
