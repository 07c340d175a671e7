//! What the ARC keeps of the blocks of which dataset (the property `primarycache`).
//!
//! Only what is different from "everything" is noted. Unpacked metadata and decoded objects, which stand for OpenZFS's open buffers,
//! are kept whatever is said here: without them each access to a file would read all of its indirect blocks.

use crate::Bookmark;
use ahash::HashMap;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use parking_lot::RwLock;

/// What the ARC keeps of a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrimaryCache {
    /// Everything.
    #[default]
    All,
    /// Metadata.
    Metadata,
    /// Nothing.
    None,
}

/// The datasets of which not everything is kept, by object number.
#[derive(Default)]
pub(crate) struct Policies(RwLock<HashMap<u64, PrimaryCache>>);

impl Policies {
    /// From now on `what` of the dataset `objset` is kept.
    pub fn set(&self, objset: u64, what: PrimaryCache) {
        let mut policies = self.0.write();
        match what {
            PrimaryCache::All => policies.remove(&objset),
            what => policies.insert(objset, what),
        };
    }

    /// Whether the ARC is to keep a block.
    pub fn keeps(&self, bp: &BlockPointer, at: Bookmark) -> bool {
        match self.0.read().get(&at.objset) {
            None | Some(PrimaryCache::All) => true,
            Some(PrimaryCache::Metadata) => {
                bp.level() > 0 || DmuType(bp.object_type()).is_metadata()
            }
            Some(PrimaryCache::None) => false,
        }
    }
}
