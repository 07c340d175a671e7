//! What an object set keeps of its objects (`dnode_handle_t`): decoded dnodes, indexed micro ZAPs.
//!
//! An object set that is synced hands its cache on to the one that comes out of the sync, less the
//! objects that changed. Holders of the old one go on without a cache, since what is in
//! the cache is that of the newest *generation*.
//!
//! Invariant: an entry is right for the newest generation. It is put in under a lock that also
//! guards the change of generations; and it is taken out first and believed only if the reader's
//! generation is still the newest then.

use crate::dnode::Dnode;
use crate::sync::{AtomicU64, Cache, RwLock, SeqCst, Weighter};
use crate::zap::MicroZap;
use std::sync::Arc;

/// Bytes of decoded dnodes that are kept.
const DNODE_BYTES: u64 = 16 << 20;
/// Bytes of indexed micro ZAPs that are kept.
const ZAP_BYTES: u64 = 4 << 20;

#[derive(Clone)]
struct Weigh;

impl Weighter<u64, Arc<Dnode>> for Weigh {
    fn weight(&self, _: &u64, dnode: &Arc<Dnode>) -> u64 {
        (size_of::<Dnode>() + dnode.phys.pointers.len() * 128 + dnode.phys.bonus.len()) as u64
    }
}

impl Weighter<u64, Arc<MicroZap>> for Weigh {
    fn weight(&self, _: &u64, zap: &Arc<MicroZap>) -> u64 {
        zap.memory() as u64
    }
}

struct Shared {
    newest: AtomicU64,
    /// Held to put something in, exclusively to change the generation.
    change: RwLock<()>,
    dnodes: Cache<u64, Arc<Dnode>, Weigh>,
    micro_zaps: Cache<u64, Arc<MicroZap>, Weigh>,
}

/// One generation's way to the cache (`dnode_handle_t`).
pub(crate) struct ObjectCache {
    shared: Arc<Shared>,
    generation: u64,
}

impl ObjectCache {
    /// An empty cache.
    pub(crate) fn new() -> ObjectCache {
        let shared = Shared {
            newest: AtomicU64::new(0),
            change: RwLock::new(()),
            dnodes: Cache::with_weighter(1024, DNODE_BYTES, Weigh),
            micro_zaps: Cache::with_weighter(64, ZAP_BYTES, Weigh),
        };
        ObjectCache { shared: Arc::new(shared), generation: 0 }
    }

    /// The next generation: what is known of `changed` objects, which are gone if there is no
    /// dnode, is replaced. If this one is not the newest any more, an empty cache.
    pub(crate) fn next<'a>(
        &self,
        changed: impl Iterator<Item = (u64, Option<&'a Arc<Dnode>>)>,
    ) -> ObjectCache {
        let shared = &self.shared;
        let _alone = shared.change.write();
        if !self.is_newest() {
            return ObjectCache::new();
        }
        let generation = self.generation + 1;
        shared.newest.store(generation, SeqCst);
        for (number, dnode) in changed {
            shared.micro_zaps.remove(&number);
            match dnode {
                Some(dnode) => shared.dnodes.insert(number, dnode.clone()),
                None => drop(shared.dnodes.remove(&number)),
            }
        }
        ObjectCache { shared: shared.clone(), generation }
    }

    fn is_newest(&self) -> bool {
        self.shared.newest.load(SeqCst) == self.generation
    }

    pub(crate) fn dnode(&self, number: u64) -> Option<Arc<Dnode>> {
        self.shared.dnodes.get(&number).filter(|_| self.is_newest())
    }

    pub(crate) fn micro_zap(&self, number: u64) -> Option<Arc<MicroZap>> {
        self.shared.micro_zaps.get(&number).filter(|_| self.is_newest())
    }

    pub(crate) fn keep_dnode(&self, number: u64, dnode: &Arc<Dnode>) {
        let _change = self.shared.change.read();
        if self.is_newest() {
            self.shared.dnodes.insert(number, dnode.clone());
        }
    }

    pub(crate) fn keep_micro_zap(&self, number: u64, zap: &Arc<MicroZap>) {
        let _change = self.shared.change.read();
        if self.is_newest() {
            self.shared.micro_zaps.insert(number, zap.clone());
        }
    }
}
