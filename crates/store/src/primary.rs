//! What the ARC and cache devices keep of the blocks of which dataset (the properties `primarycache` and `secondarycache`).
//!
//! Only what is different from "everything" is noted. Unpacked metadata and decoded objects, which stand for OpenZFS's open buffers,
//! are kept whatever is said here: without them each access to a file would read all of its indirect blocks.

use crate::Bookmark;
use ahash::HashMap;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use parking_lot::RwLock;

/// What a cache keeps of a dataset.
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

impl PrimaryCache {
    fn keeps(self, bp: &BlockPointer) -> bool {
        match self {
            PrimaryCache::All => true,
            PrimaryCache::Metadata => bp.level() > 0 || DmuType(bp.object_type()).is_metadata(),
            PrimaryCache::None => false,
        }
    }
}

/// What caches keep of a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caching {
    /// The ARC (`primarycache`).
    pub primary: PrimaryCache,
    /// Cache devices (`secondarycache`).
    pub secondary: PrimaryCache,
}

impl From<PrimaryCache> for Caching {
    /// Cache devices keep everything.
    fn from(primary: PrimaryCache) -> Caching {
        Caching { primary, secondary: PrimaryCache::All }
    }
}

/// The datasets of which not everything is kept, by object number.
#[derive(Default)]
pub(crate) struct Policies(RwLock<HashMap<u64, Caching>>);

impl Policies {
    /// From now on `what` of the dataset `objset` is kept.
    pub fn set(&self, objset: u64, what: Caching) {
        let mut policies = self.0.write();
        match what == Caching::default() {
            true => drop(policies.remove(&objset)),
            false => drop(policies.insert(objset, what)),
        }
    }

    fn of(&self, at: Bookmark) -> Caching {
        self.0.read().get(&at.objset).copied().unwrap_or_default()
    }

    /// Whether the ARC is to keep a block.
    pub fn keeps(&self, bp: &BlockPointer, at: Bookmark) -> bool {
        self.of(at).primary.keeps(bp)
    }

    /// Whether a block may come to a cache device (`dbuf_is_l2cacheable`).
    pub fn may_go_on(&self, bp: &BlockPointer, at: Bookmark) -> bool {
        self.of(at).secondary.keeps(bp)
    }
}
