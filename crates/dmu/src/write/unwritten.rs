//! What an object set that is open and one that is being written have in common: changes that are not on disk, and what
//! they stand on.
//!
//! Invariants: the bytes to be written are the sum over all objects that are open. A set is protected in one way only. What
//! failed stays so.

use super::object::{OpenObject, Place};
use super::{Below, Doomed, MAX_INDIRECT_SHIFT, MAX_POINTERS, Objects, RawRoot, take_in};
use super::{Quiesced, Result, Uses, WriteError, levels, slots};
use crate::ObjectSet;
use crate::objset::META_DNODE;
use crate::tree::Tree;
use cenote_format::blkptr::BlockPointer;
use cenote_format::crypt::Seal;
use cenote_format::dmu::{DNODE_BLOCK, ObjsetPhys, ObjsetType, ZilHeader};
use cenote_format::invariant::broken;
use cenote_format::{invariant, less};
use cenote_store::keys::LoadedKey;
use cenote_store::{BlockError, Bookmark, Store};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of one that has no room for what owners use (`OBJSET_PHYS_SIZE_V1`).
pub(super) const SMALL_ROOT: usize = 1024;

/// How what is written of an object set is protected.
pub(super) enum Protection {
    /// It is not encrypted.
    Plain,
    /// By a key.
    Key(Arc<LoadedKey>),
    /// By a key that is not needed: of this root block nothing but the header of the intent log is changed, which no MAC
    /// covers.
    LogOnly(Vec<u8>),
    /// As the raw stream says that is being received.
    Received(Received),
}

/// What a raw stream says of the object set that it is received into.
pub(super) struct Received {
    pub(super) root: RawRoot,
    /// How blocks of dnodes, by their numbers, are protected that the stream has changed.
    pub(super) seals: BTreeMap<u64, Seal>,
}

impl Protection {
    pub(super) fn of(key: Option<Arc<LoadedKey>>) -> Protection {
        key.map_or(Protection::Plain, Protection::Key)
    }

    pub(super) fn key(&self) -> Option<&Arc<LoadedKey>> {
        match self {
            Protection::Key(key) => Some(key),
            Protection::Plain | Protection::LogOnly(_) | Protection::Received(_) => None,
        }
    }

    pub(super) fn received(&self) -> Option<&RawRoot> {
        match self {
            Protection::Received(received) => Some(&received.root),
            Protection::Plain | Protection::Key(_) | Protection::LogOnly(_) => None,
        }
    }

    /// Whether its root block is an encrypted one.
    pub(super) fn is_encrypted(&self) -> bool {
        !matches!(self, Protection::Plain)
    }

    /// Bytes of the largest block that can be written.
    fn max_block(&self) -> u64 {
        self.key().map_or(cenote_format::MAX_BLOCK, |key| key.key().suite().max_block())
    }

    /// Takes out how changed blocks of dnodes are protected.
    pub(super) fn take_seals(&mut self) -> BTreeMap<u64, Seal> {
        match self {
            Protection::Received(received) => std::mem::take(&mut received.seals),
            Protection::Plain | Protection::Key(_) | Protection::LogOnly(_) => BTreeMap::new(),
        }
    }

    /// The same for a set that writes what was changed.
    fn hand_over(&mut self) -> Protection {
        match self {
            Protection::Plain => Protection::Plain,
            Protection::Key(key) => Protection::Key(key.clone()),
            Protection::LogOnly(_) => broken(format_args!("more than an intent log is changed")),
            Protection::Received(Received { root, seals }) => {
                Protection::Received(Received { root: *root, seals: std::mem::take(seals) })
            }
        }
    }
}

/// The root block as it will be.
pub(super) struct Root {
    pub(super) phys: ObjsetPhys,
    /// Whether it has to be written, whatever else is.
    pub(super) changed: bool,
}

impl Root {
    pub(super) fn set_flags(&mut self, flags: u64) {
        (self.phys.flags, self.changed) = (flags, true);
    }

    pub(super) fn set_zil(&mut self, zil: ZilHeader) {
        (self.phys.zil, self.changed) = (zil, true);
    }
}

/// See the [module](self).
pub(super) struct Unwritten {
    /// What is on disk.
    pub(super) base: Arc<ObjectSet>,
    pub(super) root: Root,
    pub(super) protection: Protection,
    pub(super) objects: Objects,
    pub(super) doomed: Doomed,
    /// Bytes to be written.
    pub(super) dirty: u64,
    /// Bytes that a dirty block counts for at least.
    pub(super) least: u64,
    /// See [`Synced::uses`](super::Synced::uses).
    pub(super) uses: Uses,
    /// Its root block has no room for what owners use, as in pools before version 15: it stays so until that is counted.
    pub(super) small_root: bool,
    /// It is of no use any more.
    pub(super) failed: bool,
}

impl Unwritten {
    /// Nothing is changed of `base`.
    pub(super) fn of(base: Arc<ObjectSet>, protection: Protection) -> Unwritten {
        Unwritten {
            root: Root { phys: base.phys().clone(), changed: false },
            small_root: base.root_bp().lsize() == SMALL_ROOT as u64 && !base.root_bp().is_hole(),
            base,
            protection,
            objects: Objects::new(),
            doomed: Doomed::new(),
            dirty: 0,
            least: cenote_format::SECTOR,
            uses: Uses::default(),
            failed: false,
        }
    }

    /// A new object set with number `id` (`dmu_objset_create_impl`). Data sets get a meta dnode of as many levels as it could
    /// ever need; that of the pool grows.
    pub(super) fn new(store: Arc<Store>, id: u64, kind: ObjsetType) -> Result<Unwritten> {
        let base = ObjectSet::open(store, id, BlockPointer::HOLE)?;
        let mut this = Unwritten::of(base, Protection::Plain);
        let meta = &mut this.root.phys.meta_dnode;
        meta.indirect_shift = MAX_INDIRECT_SHIFT;
        meta.pointers = vec![BlockPointer::HOLE; MAX_POINTERS];
        if kind != ObjsetType::Meta {
            let last = (1u64 << 48) / slots::PER_BLOCK - 1;
            meta.levels = levels::levels(last, MAX_POINTERS as u64, 10);
        }
        this.root.phys.kind = kind;
        this.root.changed = true;
        Ok(this)
    }

    /// One that is on disk, with its key. Errors: see [`OpenObjectSet::open`](super::OpenObjectSet::open).
    pub(super) fn open(base: Arc<ObjectSet>) -> Result<Unwritten> {
        let key = base.store().keys().of(base.id());
        if base.root_bp().uses_crypt() != key.is_some() {
            // Written without the key it would lose its MACs; a key without an encrypted root would encrypt a plain data set.
            let at = Bookmark::root(base.id());
            return Err(BlockError::Encrypted { at }.into());
        }
        let meta = &base.phys().meta_dnode;
        if meta.block_size != DNODE_BLOCK || !super::object::sound_shift(meta) {
            let (size, shift) = (meta.block_size, meta.indirect_shift);
            let why = format!("dnode blocks of {size} bytes, indirect block shift {shift}");
            return Err(WriteError::Invalid { object: META_DNODE, why });
        }
        Ok(Unwritten::of(base, Protection::of(key)))
    }

    /// Moves all of it into a set that will be written. What stays stands on the same base, and has no changes.
    pub(super) fn hand_over(&mut self) -> Unwritten {
        let root =
            Root { phys: self.root.phys.clone(), changed: std::mem::take(&mut self.root.changed) };
        Unwritten {
            base: self.base.clone(),
            root,
            protection: self.protection.hand_over(),
            objects: std::mem::take(&mut self.objects),
            doomed: std::mem::take(&mut self.doomed),
            dirty: std::mem::take(&mut self.dirty),
            least: self.least,
            uses: std::mem::take(&mut self.uses),
            failed: self.failed,
            small_root: self.small_root,
        }
    }

    /// The dataset's object number, 0 for the MOS.
    pub(super) fn id(&self) -> u64 {
        self.base.id()
    }

    pub(super) fn usable(&self) -> Result<()> {
        if self.failed { Err(WriteError::Failed) } else { Ok(()) }
    }

    /// Whether something waits to be written.
    pub(super) fn is_dirty(&self) -> bool {
        // What was poisoned must not be taken for written.
        self.failed || self.root.changed || self.dirty > 0 || !self.doomed.is_empty()
    }

    pub(super) fn meta_tree(&self) -> Tree<'_> {
        Tree {
            store: self.base.store(),
            objset: self.base.id(),
            object: META_DNODE,
            dnode: &self.root.phys.meta_dnode,
            as_of: None,
        }
    }

    /// Bytes of the largest block that can be written.
    pub(super) fn max_block(&self) -> u64 {
        self.protection.max_block()
    }

    /// Where object `number` is.
    pub(super) fn place(&self, number: u64) -> Place<'_> {
        place(&self.base, &self.protection, number)
    }

    pub(super) fn insert(&mut self, number: u64, object: OpenObject) {
        self.dirty += object.bytes(self.least);
        let (objset, is_special) = (self.id(), number == META_DNODE);
        invariant!(!is_special, "objset {objset}: an object gets the number of the meta dnode");
        let before = self.objects.insert(number, Arc::new(object));
        invariant!(before.is_none(), "objset {objset} object {number}: allocated twice");
    }

    /// The object, taken in from what is quiesced or on disk if need be.
    pub(super) fn object(
        &mut self,
        quiesced: Option<&Quiesced>,
        number: u64,
    ) -> Result<&mut OpenObject> {
        self.usable()?;
        let below = Below::new(&self.base, &self.doomed, quiesced);
        take_in(&mut self.objects, &below, number)
    }

    /// Has `f` change the object, with what it takes to read what is on disk.
    pub(super) fn with<T>(
        &mut self,
        quiesced: Option<&Quiesced>,
        number: u64,
        f: impl FnOnce(&mut OpenObject, &Place<'_>) -> Result<T>,
    ) -> Result<T> {
        self.usable()?;
        let below = Below::new(&self.base, &self.doomed, quiesced);
        let object = take_in(&mut self.objects, &below, number)?;
        let place = place(&self.base, &self.protection, number);
        let before = object.bytes(self.least);
        let done = f(object, &place);
        let all = self.dirty + object.bytes(self.least);
        let objset = place.objset;
        self.dirty = less!(all, before, "objset {objset} object {number}: dirty bytes");
        done
    }
}

fn place<'a>(base: &'a ObjectSet, protection: &Protection, object: u64) -> Place<'a> {
    let (raw, most) = (protection.received().is_some(), protection.max_block());
    Place { store: base.store(), objset: base.id(), object, raw, most }
}
