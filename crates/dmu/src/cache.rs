//! What an object set keeps of its objects (`dnode_handle_t`): decoded dnodes, indexed micro ZAPs.
//!
//! They lie in the ARC of the store, with the blocks, and take of its budget.
//!
//! An object set that is synced hands its cache on to the one that comes out of the sync, less the
//! objects that changed. Holders of the old one go on without a cache, since what is in
//! the cache is that of the newest *generation*.
//!
//! Invariant: an entry is right for the newest generation. It is put in under a lock that also
//! guards the change of generations; and it is taken out first and believed only if the reader's
//! generation is still the newest then.

use crate::dnode::Dnode;
use crate::sync::{AtomicU64, RwLock, SeqCst, Store, Table};
use crate::zap::MicroZap;
use std::sync::Arc;

/// Bytes that a dnode takes in memory.
fn memory(dnode: &Dnode) -> usize {
    size_of::<Dnode>()
        + dnode.phys.pointers.len() * 128
        + dnode.phys.bonus.len()
        + dnode.phys.rest.len()
}

struct Shared {
    newest: AtomicU64,
    /// Held to put something in, exclusively to change the generation.
    change: RwLock<()>,
    dnodes: Table<Dnode>,
    micro_zaps: Table<MicroZap>,
}

/// One generation's way to the cache (`dnode_handle_t`).
pub(crate) struct ObjectCache {
    shared: Arc<Shared>,
    generation: u64,
}

impl ObjectCache {
    /// An empty cache.
    pub(crate) fn new(store: &Store) -> ObjectCache {
        let shared = Shared {
            newest: AtomicU64::new(0),
            change: RwLock::new(()),
            dnodes: store.table(),
            micro_zaps: store.table(),
        };
        ObjectCache { shared: Arc::new(shared), generation: 0 }
    }

    /// The next generation: what is known of `changed` objects, which are gone if there is no
    /// dnode, is replaced. If this one is not the newest any more, an empty cache.
    pub(crate) fn next<'a>(
        &self,
        store: &Store,
        changed: impl Iterator<Item = (u64, Option<&'a Arc<Dnode>>)>,
    ) -> ObjectCache {
        let shared = &self.shared;
        let _alone = shared.change.write();
        if !self.is_newest() {
            return ObjectCache::new(store);
        }
        let generation = self.generation + 1;
        shared.newest.store(generation, SeqCst);
        for (number, dnode) in changed {
            // An object that is no ZAP has no index here; an old one is not asked for before the object is a ZAP, and changed, again.
            if dnode.is_none_or(|dnode| dnode.phys.kind.is_zap()) {
                shared.micro_zaps.remove(number);
            }
            match dnode {
                Some(dnode) => shared.dnodes.insert(number, dnode.clone(), memory(dnode)),
                None => shared.dnodes.remove(number),
            }
        }
        ObjectCache { shared: shared.clone(), generation }
    }

    fn is_newest(&self) -> bool {
        self.shared.newest.load(SeqCst) == self.generation
    }

    pub(crate) fn dnode(&self, number: u64) -> Option<Arc<Dnode>> {
        self.shared.dnodes.get(number).filter(|_| self.is_newest())
    }

    pub(crate) fn micro_zap(&self, number: u64) -> Option<Arc<MicroZap>> {
        self.shared.micro_zaps.get(number).filter(|_| self.is_newest())
    }

    pub(crate) fn keep_dnode(&self, number: u64, dnode: &Arc<Dnode>) {
        let _change = self.shared.change.read();
        if self.is_newest() {
            self.shared.dnodes.insert(number, dnode.clone(), memory(dnode));
        }
    }

    pub(crate) fn keep_micro_zap(&self, number: u64, zap: &Arc<MicroZap>) {
        let _change = self.shared.change.read();
        if self.is_newest() {
            self.shared.micro_zaps.insert(number, zap.clone(), zap.memory());
        }
    }
}
