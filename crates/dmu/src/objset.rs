//! Object sets (`dmu_objset_open_impl`, `dnode_hold_impl`).
//!
//! The root block of an object set (`objset_phys_t`) holds the *meta dnode*. Its data blocks are
//! arrays of slots of 512 bytes; object `n` is the dnode that starts in slot `n`. A dnode may take
//! up to 32 slots, all in one block, and what lies in the slots after its first one can look like
//! anything. So whether a slot starts a dnode is known only by going through the block's slots from
//! its first.
//!
//! The accounting objects have dnodes of their own in the root block and go by the numbers
//! [`USER_USED`], [`GROUP_USED`] and [`PROJECT_USED`].

use crate::cache::ObjectCache;
use crate::dnode::Dnode;
use crate::dnode_counts::{What, count};
use crate::object::{Object, SPILL_BLKID};
use crate::seek::Seek;
use crate::tree::Tree;
use crate::zap::MicroZap;
use crate::{Error, Result};
use cenote_format::Bytes;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::{
    DNODE_BLOCK, DNODE_SLOT, DmuType, DnodePhys, ObjsetPhys, ObjsetType, ZilHeader,
};
use cenote_store::{Block, Bookmark, Store};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of the meta dnode (`DMU_META_DNODE_OBJECT`).
pub const META_DNODE: u64 = 0;
/// Number of the object that maps users to space used (`DMU_USERUSED_OBJECT`).
pub const USER_USED: u64 = u64::MAX;
/// Number of the object that maps groups to space used.
pub const GROUP_USED: u64 = u64::MAX - 1;
/// Number of the object that maps projects to space used.
pub const PROJECT_USED: u64 = u64::MAX - 2;

/// Offset in a dnode of `dn_extra_slots`.
const EXTRA_SLOTS_AT: usize = 12;

/// The group that pointers of an object set with this root are of, as far as the root tells.
fn group_of(id: u64, root: &BlockPointer) -> Option<u64> {
    (id == 0 && !root.is_hole()).then(|| root.physical_birth())
}

/// An open object set, for reading.
pub struct ObjectSet {
    store: Arc<Store>,
    id: u64,
    root: BlockPointer,
    phys: ObjsetPhys,
    /// Its pointers are of this group; `None`: of all groups to come, or what reads them sees to that.
    as_of: Option<u64>,
    cache: ObjectCache,
}

impl std::fmt::Debug for ObjectSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "objset {} at {:?}", self.id, self.root)
    }
}

impl ObjectSet {
    /// Opens the object set at `bp`; `id` is the dataset's object number (0 for the MOS), used in
    /// bookmarks (`dmu_objset_open_impl`). A hole is an object set that was never written: it has no objects.
    ///
    /// Each group writes the MOS anew: its pointers are of the group that its root was born in.
    pub fn open(store: Arc<Store>, id: u64, bp: BlockPointer) -> Result<Arc<ObjectSet>> {
        ObjectSet::open_as_of(store, id, bp, group_of(id, &bp))
    }

    /// As [`ObjectSet::open`], of one whose pointers are of the group `as_of` (see [`Store::as_of`]); `None`: they last.
    ///
    /// # Errors
    /// As for [`ObjectSet::open`].
    pub fn open_as_of(
        store: Arc<Store>,
        id: u64,
        bp: BlockPointer,
        as_of: Option<u64>,
    ) -> Result<Arc<ObjectSet>> {
        let phys = if bp.is_hole() {
            never_written()
        } else {
            let at = Bookmark { objset: id, object: META_DNODE, level: -1, blkid: 0 };
            let block = Store::as_of(as_of, || store.read(&bp, at))?;
            let bytes = block.data.bytes();
            ObjsetPhys::decode(&Bytes::new(&bytes, block.order, "object set"))
                .map_err(|source| Error::Decode { objset: id, object: META_DNODE, source })?
        };
        let cache = ObjectCache::new(&store);
        let this = ObjectSet { store, id, root: bp, phys, as_of, cache };
        this.meta().check()?;
        Ok(Arc::new(this))
    }

    /// The dataset's object number, 0 for the MOS.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The group that its pointers are of (see [`Store::as_of`]).
    pub fn as_of(&self) -> Option<u64> {
        self.as_of
    }

    /// Where the blocks come from.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The block pointer of the root block.
    pub fn root_bp(&self) -> &BlockPointer {
        &self.root
    }

    /// The decoded root block.
    pub fn phys(&self) -> &ObjsetPhys {
        &self.phys
    }

    /// The object set as a sync has left it, at `root`, which was just written: nothing is read.
    pub(crate) fn synced(&self, root: BlockPointer, phys: ObjsetPhys) -> Arc<ObjectSet> {
        let cache = ObjectCache::new(&self.store);
        let (store, id) = (self.store.clone(), self.id);
        let as_of = group_of(id, &root);
        Arc::new(ObjectSet { store, id, root, phys, as_of, cache })
    }

    /// `synced`, which came out of syncs of this object set, with this one's cache. The syncs wrote
    /// the dnodes in `written`, and freed those without one.
    pub(crate) fn succeeded_by(
        &self,
        synced: &ObjectSet,
        written: &BTreeMap<u64, Option<Arc<Dnode>>>,
    ) -> Arc<ObjectSet> {
        // Accounting objects do not go by their numbers here.
        let kept = |n: u64, dnode| Some(dnode).filter(|_| n < PROJECT_USED).flatten();
        let cache =
            self.cache.next(&self.store, written.iter().map(|(n, d)| (*n, kept(*n, d.as_ref()))));
        let ObjectSet { store, id, root, phys, as_of, .. } = synced;
        let (store, phys, as_of) = (store.clone(), phys.clone(), *as_of);
        Arc::new(ObjectSet { store, id: *id, root: *root, phys, as_of, cache })
    }

    pub(crate) fn micro_zap(&self, number: u64) -> Option<Arc<MicroZap>> {
        self.cache.micro_zap(number)
    }

    pub(crate) fn keep_micro_zap(&self, number: u64, zap: &Arc<MicroZap>) {
        self.cache.keep_micro_zap(number, zap);
    }

    pub(crate) fn meta(&self) -> Tree<'_> {
        Tree {
            store: &self.store,
            objset: self.id,
            object: META_DNODE,
            dnode: &self.phys.meta_dnode,
            as_of: self.as_of,
        }
    }

    fn slots_per_block(&self) -> u64 {
        (self.phys.meta_dnode.block_size / DNODE_SLOT as u64).max(1)
    }

    /// Number of dnode slots: every object's number is below.
    pub fn max_object(&self) -> u64 {
        self.phys.meta_dnode.max_block.saturating_add(1).saturating_mul(self.slots_per_block())
    }

    /// The object `number` (`dnode_hold`). [`Error::NoObject`] if it does not exist, which includes numbers of slots
    /// inside a larger dnode.
    pub fn object(self: &Arc<Self>, number: u64) -> Result<Object> {
        let found = self.look_up(number);
        count(match &found {
            Ok(_) => What::Found,
            Err(Error::NoObject { .. }) => What::Absent,
            Err(_) => What::Unreadable,
        });
        found
    }

    fn look_up(self: &Arc<Self>, number: u64) -> Result<Object> {
        if let Some(dnode) = self.cache.dnode(number) {
            return Ok(Object::new(self.clone(), dnode));
        }
        let absent = Error::NoObject { objset: self.id, object: number };
        let (blkid, slot) = (number / self.slots_per_block(), number % self.slots_per_block());
        let Some(block) = self.meta().block(blkid)? else { return Err(absent) };
        let data = block.data.bytes();
        if !dnode_slots(&data).any(|s| s as u64 == slot) {
            return Err(absent);
        }
        let bytes = Bytes::new(&data, block.order, "dnode");
        let phys = DnodePhys::decode(&bytes, slot as usize * DNODE_SLOT);
        let phys =
            phys.map_err(|e| Error::Decode { objset: self.id, object: number, source: e })?;
        let dnode = Arc::new(Dnode { number, phys: phys.ok_or(absent)? });
        let object = Object::new(self.clone(), dnode.clone());
        object.tree().check()?;
        self.cache.keep_dnode(number, &dnode);
        Ok(object)
    }

    /// The meta dnode ([`META_DNODE`]) or an accounting object ([`USER_USED`], [`GROUP_USED`],
    /// [`PROJECT_USED`]) (`dnode_special_open`).
    pub fn special(self: &Arc<Self>, number: u64) -> Result<Object> {
        let phys = match number {
            META_DNODE => Some(self.phys.meta_dnode.clone()),
            USER_USED => self.phys.user_used.clone(),
            GROUP_USED => self.phys.group_used.clone(),
            PROJECT_USED => self.phys.project_used.clone(),
            _ => None,
        };
        let phys = phys.ok_or(Error::NoObject { objset: self.id, object: number })?;
        let dnode = Dnode { number, phys };
        let object = Object::new(self.clone(), Arc::new(dnode));
        object.tree().check()?;
        Ok(object)
    }

    /// The pointer of a block by its name in errors and error logs (`find_birth_txg`, `dbuf_findbp`): a block of dnodes, of an
    /// accounting object or of any other one, or a spill block. `None`: nothing is there.
    ///
    /// # Errors
    /// What leads to it cannot be read, or it is a block of no object: the root, or one of an intent log.
    pub fn pointer_at(self: &Arc<Self>, at: &Bookmark) -> Result<Option<BlockPointer>> {
        let there = |bp: BlockPointer| (!bp.is_hole()).then_some(bp);
        let level = u8::try_from(at.level).map_err(|_| {
            let why = format!("no object has a block of level {}", at.level);
            Error::Corrupt { objset: self.id, object: at.object, why }
        })?;
        let found = match at.object {
            META_DNODE | USER_USED | GROUP_USED | PROJECT_USED => self.special(at.object),
            object => self.object(object),
        };
        match found {
            Ok(object) if (level, at.blkid) == (0, SPILL_BLKID) => {
                Ok(object.dnode().spill.and_then(there))
            }
            Ok(object) => Ok(there(object.block_pointer(level, at.blkid)?)),
            Err(Error::NoObject { .. }) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// The number of the first object at or after `from`; `None` after the last (`dmu_object_next`). Skips holes of
    /// the meta dnode. A block of dnodes that cannot be read is an error; [`ObjectSet::next_dnode_block`]
    /// tells where to go on.
    pub fn next_object(self: &Arc<Self>, from: u64) -> Result<Option<u64>> {
        let (per_block, meta) = (self.slots_per_block(), self.meta());
        let mut found = None;
        meta.next_block(from / per_block, Seek::Data, &mut |node| {
            let block = meta.read_node(node)?;
            let base = node.blkid.saturating_mul(per_block);
            let slot = first_slot_from(&block, from.saturating_sub(base));
            found = slot.map(|slot| base.saturating_add(slot));
            Ok(found.is_some())
        })?;
        Ok(found)
    }

    /// The number of the first slot in the block of dnodes after the one that holds slot `number`.
    pub fn next_dnode_block(&self, number: u64) -> u64 {
        let per_block = self.slots_per_block();
        (number / per_block).saturating_add(1).saturating_mul(per_block)
    }
}

fn first_slot_from(block: &Block, from: u64) -> Option<u64> {
    dnode_slots(&block.data.bytes()).map(|s| s as u64).find(|s| *s >= from)
}

/// The slots of a block of dnodes in which a dnode starts.
fn dnode_slots(block: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut slot = 0usize;
    std::iter::from_fn(move || {
        loop {
            let at = slot.checked_mul(DNODE_SLOT)?;
            let kind = *block.get(at)?;
            let here = slot;
            if kind == DmuType::NONE.0 {
                slot += 1;
                continue;
            }
            let extra = *block.get(at + EXTRA_SLOTS_AT)?;
            slot += 1 + usize::from(extra);
            return Some(here);
        }
    })
}

/// The root block of an object set that was created but never written.
fn never_written() -> ObjsetPhys {
    let meta_dnode = DnodePhys {
        kind: DmuType::DNODE,
        indirect_shift: 0,
        levels: 1,
        bonus_kind: DmuType::NONE,
        checksum: 0,
        compress: 0,
        flags: 0,
        block_size: DNODE_BLOCK,
        extra_slots: 0,
        max_block: 0,
        used: 0,
        pointers: vec![BlockPointer::HOLE],
        bonus: Vec::new(),
        rest: Vec::new(),
        spill: None,
    };
    let zil = ZilHeader {
        claim_txg: 0,
        replay_seq: 0,
        log: BlockPointer::HOLE,
        claim_blk_seq: 0,
        flags: 0,
        claim_lr_seq: 0,
    };
    let (user_used, group_used, project_used) = (None, None, None);
    let kind = ObjsetType::None;
    ObjsetPhys { meta_dnode, zil, kind, flags: 0, user_used, group_used, project_used }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_inside_a_larger_dnode_start_nothing() {
        let mut block = vec![0u8; 8 * DNODE_SLOT];
        for (slot, kind, extra) in
            [(1, 20u8, 2u8), (2, 19, 0), (3, 44, 0), (5, 19, 0), (7, 19, 200)]
        {
            block[slot * DNODE_SLOT] = kind;
            block[slot * DNODE_SLOT + EXTRA_SLOTS_AT] = extra;
        }
        assert_eq!(dnode_slots(&block).collect::<Vec<_>>(), [1, 5, 7]);
        assert_eq!(dnode_slots(&[]).count(), 0);
        assert_eq!(dnode_slots(&[1; 12]).count(), 0);
    }
}
