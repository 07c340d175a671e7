//! Writing an object set, one transaction group at a time.
//!
//! # Idea
//!
//! An [`OpenObjectSet`] stands on what the last sync left, read through the reading path. Changes
//! are collected in memory, object by object: dnodes as they will be, dirty data blocks, ranges of
//! blocks that are to be freed. [`OpenObjectSet::sync`] writes all of it, level by level over all
//! objects at once (see `sync`), and the object set goes on from the new root block.
//!
//! The caller serialises: an object set is changed, then synced, then changed again. There is no
//! open transaction group beside a syncing one yet.
//!
//! | module | what |
//! |---|---|
//! | `object` | the changes of one object: blocks, ranges, bonus, sizes |
//! | `slots` | which dnode slots are free |
//! | [`sink`] | who writes blocks: the floor below |
//! | `sync` | the tree of blocks, level by level |
//! | `ranges` | sets of block numbers |
//! | [`zap`] | ZAPs: entries, growth from micro to fat, splits |
//!
//! # Invariants
//!
//! - Pointers, levels and space used of a changed dnode are those on disk until the sync.
//! - A block that is dirty is the whole block. It takes precedence over a range that is freed,
//!   which takes precedence over what is on disk.
//! - Whatever is written is little-endian. Structures in the other byte order that would have to
//!   be turned, and cannot be by this floor (dnodes, for their bonus buffers), are refused.
//! - After a sync that failed the object set is of no use; it must be opened anew from the root
//!   block that is valid.

mod object;
mod ranges;
pub mod sink;
mod slots;
mod sync;
pub mod zap;

pub use sink::{BlockSink, NewBlock};
pub use zap::ZapMut;

use crate::objset::{META_DNODE, PROJECT_USED};
use crate::tree::Tree;
use crate::{Error, Object, ObjectSet};
use cenote_format::DecodeError;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::{
    DNODE_BLOCK, DNODE_SLOT, DmuType, DnodePhys, ObjsetPhys, ObjsetType, ZilHeader,
};
use cenote_format::encode::EncodeError;
use cenote_store::{BlockError, Store};
use object::OpenObject;
use slots::Slots;
use std::collections::BTreeMap;
use std::sync::Arc;

/// `DN_MIN_INDBLKSHIFT`: indirect blocks of 4 KiB.
pub const MIN_INDIRECT_SHIFT: u8 = 12;
/// `DN_MAX_INDBLKSHIFT`: indirect blocks of 128 KiB, the default.
pub const MAX_INDIRECT_SHIFT: u8 = 17;
/// Largest number of pointers in a dnode (`DN_MAX_NBLKPTR`).
const MAX_POINTERS: usize = 3;

/// Why a change was refused or a sync failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// What is there could not be read.
    #[error(transparent)]
    Read(#[from] Error),
    /// Something has no place in the format.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// A block could not be written.
    #[error("{0}")]
    Sink(Box<dyn std::error::Error + Send + Sync>),
    /// The object set has no free dnode slots.
    #[error("no free object number")]
    NoSlots,
    /// The object number is taken, or is none that a dnode of this size can have.
    #[error("object {0} cannot be allocated")]
    Taken(u64),
    /// The change is not possible.
    #[error("object {object}: {why}")]
    Invalid {
        /// The object.
        object: u64,
        /// What is wrong.
        why: String,
    },
    /// There is an entry of that name already.
    #[error("object {0}: entry exists")]
    Exists(u64),
    /// There is no entry of that name.
    #[error("object {0}: no such entry")]
    NoEntry(u64),
    /// The block was written by a machine of the other byte order, and cannot be turned.
    #[error("object {0}: changing big-endian data is not supported")]
    ByteOrder(u64),
    /// There is no space for the change.
    #[error("out of space")]
    NoSpace,
    /// A quota does not allow the change.
    #[error("quota exceeded")]
    Quota,
    /// The dataset or the pool is read-only.
    #[error("read-only")]
    ReadOnly,
    /// The pool has stopped writing.
    #[error("pool I/O is currently suspended: {0}")]
    Suspended(String),
    /// An earlier sync failed.
    #[error("object set failed to sync")]
    Failed,
}

impl From<BlockError> for WriteError {
    fn from(e: BlockError) -> WriteError {
        WriteError::Read(e.into())
    }
}

impl From<DecodeError> for WriteError {
    fn from(e: DecodeError) -> WriteError {
        WriteError::Encode(e.into())
    }
}

/// Result of writing.
pub type Result<T> = std::result::Result<T, WriteError>;

/// What a new object is to be.
#[derive(Debug, Clone)]
pub struct NewObject {
    /// Type of the object.
    pub kind: DmuType,
    /// Bytes of a data block: a multiple of 512, at most 16 MiB.
    pub block_size: u64,
    /// log2 of the bytes of an indirect block: 12 to 17.
    pub indirect_shift: u8,
    /// What the bonus buffer holds.
    pub bonus_kind: DmuType,
    /// The bonus buffer. How much of it there is determines how many pointers the dnode has, and
    /// so how large the bonus buffer may become; with system attributes there is one pointer.
    pub bonus: Vec<u8>,
    /// Bytes of the dnode: a multiple of 512, at most 16 KiB.
    pub dnode_size: usize,
    /// Checksum function for its blocks, 0: that of the data set.
    pub checksum: u8,
    /// Compression function for its blocks, 0: that of the data set.
    pub compress: u8,
}

impl NewObject {
    /// An object of `kind` with no bonus buffer, in one slot, with blocks of `block_size` bytes.
    pub fn new(kind: DmuType, block_size: u64) -> NewObject {
        NewObject {
            kind,
            block_size,
            indirect_shift: MAX_INDIRECT_SHIFT,
            bonus_kind: DmuType::NONE,
            bonus: Vec::new(),
            dnode_size: DNODE_SLOT,
            checksum: 0,
            compress: 0,
        }
    }
}

/// What a sync did.
#[derive(Debug)]
pub struct Synced {
    /// The root block of the object set.
    pub root: BlockPointer,
    /// What is in it.
    pub phys: ObjsetPhys,
    /// Blocks that were written, the root block included.
    pub born: Vec<BlockPointer>,
    /// Blocks that are not referred to any more, the former root block included: to be freed, or
    /// for a deadlist. Blocks of the same txg may be among them, from an earlier pass.
    pub killed: Vec<BlockPointer>,
    /// Objects whose dnode was written or freed, in the order of their numbers, accounting objects
    /// left out.
    pub changed: Vec<ObjectChange>,
}

/// What a sync did to an object.
#[derive(Debug, Clone)]
pub struct ObjectChange {
    /// Its number.
    pub object: u64,
    /// The dnode before the sync, if there was one.
    pub before: Option<DnodePhys>,
    /// The dnode now; `None` if it was freed.
    pub after: Option<DnodePhys>,
}

/// An object set that is being written.
pub struct OpenObjectSet {
    base: Arc<ObjectSet>,
    phys: ObjsetPhys,
    slots: Slots,
    objects: BTreeMap<u64, OpenObject>,
    /// Objects on disk that are to be freed.
    doomed: Vec<(u64, DnodePhys)>,
    /// Whether the root block has to be written.
    changed: bool,
    failed: bool,
}

impl OpenObjectSet {
    /// Opens an object set for writing. Errors: it was never written ([create](Self::create) it);
    /// dnode blocks of other than 16 KiB, or an impossible indirect block shift.
    pub fn open(base: Arc<ObjectSet>) -> Result<OpenObjectSet> {
        let meta = &base.phys().meta_dnode;
        if meta.block_size != DNODE_BLOCK || !object::sound_shift(meta) {
            let (size, shift) = (meta.block_size, meta.indirect_shift);
            let why = format!("dnode blocks of {size} bytes, indirect block shift {shift}");
            return Err(WriteError::Invalid { object: META_DNODE, why });
        }
        Ok(Self::around(base))
    }

    fn around(base: Arc<ObjectSet>) -> OpenObjectSet {
        let phys = base.phys().clone();
        let (slots, objects, doomed) = Default::default();
        OpenObjectSet { base, phys, slots, objects, doomed, changed: false, failed: false }
    }

    /// A new object set with number `id`. Those of data sets get a meta dnode of as many levels as
    /// it could ever need; that of the pool grows.
    pub fn create(store: Arc<Store>, id: u64, kind: ObjsetType) -> Result<OpenObjectSet> {
        let mut this = Self::around(ObjectSet::open(store, id, BlockPointer::HOLE)?);
        let meta = &mut this.phys.meta_dnode;
        meta.indirect_shift = MAX_INDIRECT_SHIFT;
        meta.pointers = vec![BlockPointer::HOLE; MAX_POINTERS];
        if kind != ObjsetType::Meta {
            let last = (1u64 << 48) / slots::PER_BLOCK - 1;
            meta.levels = sync::levels(last, MAX_POINTERS as u64, 10);
        }
        this.phys.kind = kind;
        this.changed = true;
        Ok(this)
    }

    /// The object set as the last sync left it.
    pub fn synced(&self) -> &Arc<ObjectSet> {
        &self.base
    }

    /// The dataset's object number, 0 for the MOS.
    pub fn id(&self) -> u64 {
        self.base.id()
    }

    /// The object as it is now, pending changes included. It stays as it is however the object set
    /// is changed further.
    pub fn view(&mut self, number: u64) -> crate::Result<Object> {
        match number {
            PROJECT_USED.. | META_DNODE => self.base.special(number),
            _ => self.base.object(number),
        }
    }

    /// The number of the first object at or after `from`, pending changes included.
    pub fn next_object(&mut self, from: u64) -> crate::Result<Option<u64>> {
        self.base.next_object(from)
    }

    /// Whether a sync would write anything.
    pub fn is_dirty(&self) -> bool {
        self.changed || !self.doomed.is_empty() || self.objects.values().any(|o| o.changed)
    }

    /// Bytes of data that are to be written.
    pub fn dirty_bytes(&self) -> u64 {
        let blocks = self.objects.values().flat_map(|o| o.dirty.values());
        blocks.map(|block| block.len() as u64).sum()
    }

    /// Changes the header of the intent log.
    pub fn set_zil_header(&mut self, zil: ZilHeader) {
        self.phys.zil = zil;
        self.changed = true;
    }

    /// Moves all pending changes into an object set of their own, which is to be synced and then
    /// given to [`OpenObjectSet::thaw`]. This one goes on collecting changes; it reads through the
    /// frozen ones. There can only be one frozen set at a time.
    pub fn freeze(&mut self) -> OpenObjectSet {
        let fresh = Self::around(self.base.clone());
        std::mem::replace(self, fresh)
    }

    /// Stands on what was synced from now on.
    pub fn thaw(&mut self, synced: &OpenObjectSet) {
        self.base = synced.base.clone();
        self.phys = synced.phys.clone();
    }

    /// `os_flags`, to be changed with care.
    pub fn set_flags(&mut self, flags: u64) {
        self.phys.flags = flags;
        self.changed = true;
    }

    fn meta_tree(&self) -> Tree<'_> {
        Tree {
            store: self.base.store(),
            objset: self.base.id(),
            object: META_DNODE,
            dnode: &self.phys.meta_dnode,
        }
    }

    fn usable(&self) -> Result<()> {
        if self.failed { Err(WriteError::Failed) } else { Ok(()) }
    }

    /// Allocates an object and returns its number: the first free one.
    ///
    /// Errors: sizes that the format does not have, no free number.
    pub fn allocate(&mut self, new: &NewObject) -> Result<u64> {
        self.usable()?;
        let object = OpenObject::create(new)?;
        let mut slots = std::mem::take(&mut self.slots);
        let taken = slots.take_any(object.phys.slots(), &self.meta_tree());
        self.slots = slots;
        let number = taken?;
        self.objects.insert(number, object);
        Ok(number)
    }

    /// Allocates the object `number`.
    ///
    /// Errors: [`WriteError::Taken`] if it or one of the slots that it would take is not free.
    pub fn claim(&mut self, number: u64, new: &NewObject) -> Result<()> {
        self.usable()?;
        let object = OpenObject::create(new)?;
        let mut slots = std::mem::take(&mut self.slots);
        let taken = slots.take(number, object.phys.slots(), &self.meta_tree());
        self.slots = slots;
        if !taken? {
            return Err(WriteError::Taken(number));
        }
        self.objects.insert(number, object);
        Ok(())
    }

    /// Creates an accounting object ([`USER_USED`](crate::objset::USER_USED) and so on), whose
    /// dnode is in the root block. Such an object cannot be freed.
    ///
    /// Errors: [`WriteError::Taken`] if it is there already, or the number is none of them; a dnode
    /// of more than one slot.
    pub fn create_accounting(&mut self, number: u64, new: &NewObject) -> Result<()> {
        self.usable()?;
        let object = OpenObject::create(new)?;
        let there = self.objects.contains_key(&number) || self.base.special(number).is_ok();
        if number < PROJECT_USED || there || object.phys.slots() != 1 {
            return Err(WriteError::Taken(number));
        }
        self.objects.insert(number, object);
        Ok(())
    }

    /// Frees an object with all its blocks. Its number may be used again at once.
    pub fn free(&mut self, number: u64) -> Result<()> {
        if number >= PROJECT_USED {
            let why = "accounting objects stay".into();
            return Err(WriteError::Invalid { object: number, why });
        }
        let object = self.object(number)?;
        let (slots, on_disk) = (object.phys.slots(), object.on_disk.then(|| object.disk.clone()));
        self.objects.remove(&number);
        // The bitmap has to be there before a slot can be given back.
        let mut map = std::mem::take(&mut self.slots);
        let known = map.take(number, slots, &self.meta_tree());
        self.slots = map;
        known?;
        self.slots.give(number, slots);
        self.doomed.extend(on_disk.map(|dnode| (number, dnode)));
        Ok(())
    }

    /// The object, taken in from disk if need be.
    fn object(&mut self, number: u64) -> Result<&mut OpenObject> {
        self.usable()?;
        if !self.objects.contains_key(&number) {
            if self.doomed.iter().any(|(n, _)| *n == number) {
                let objset = self.base.id();
                return Err(Error::NoObject { objset, object: number }.into());
            }
            let object = match number {
                PROJECT_USED.. => self.base.special(number)?,
                _ => self.base.object(number)?,
            };
            let open = OpenObject::open(&object)?;
            self.objects.insert(number, open);
        }
        let objset = self.base.id();
        let absent = Error::NoObject { objset, object: number };
        self.objects.get_mut(&number).ok_or_else(|| absent.into())
    }

    /// The object, with what it takes to read what is on disk.
    fn with<T>(
        &mut self,
        number: u64,
        f: impl FnOnce(&mut OpenObject, &object::Place) -> Result<T>,
    ) -> Result<T> {
        let store = self.base.store().clone();
        let place = object::Place { store, objset: self.base.id(), object: number };
        f(self.object(number)?, &place)
    }

    /// The dnode as it will be; its pointers, levels and space used as they are on disk.
    pub fn dnode(&mut self, number: u64) -> Result<&DnodePhys> {
        Ok(&self.object(number)?.phys)
    }

    /// Changes the bonus buffer. Errors: more than there is room for.
    pub fn set_bonus(&mut self, number: u64, kind: DmuType, bonus: &[u8]) -> Result<()> {
        self.with(number, |object, place| object.set_bonus(place, kind, bonus))
    }

    /// Changes the sizes of data blocks and indirect blocks.
    ///
    /// Errors: there is more than one data block, or for indirect blocks more than one level; sizes
    /// that the format does not have.
    pub fn set_block_size(&mut self, number: u64, size: u64, indirect_shift: u8) -> Result<()> {
        self.with(number, |object, place| object.set_block_size(place, size, indirect_shift))
    }

    /// The spill block.
    pub fn spill(&mut self, number: u64) -> Result<Option<Vec<u8>>> {
        self.with(number, |object, place| object.spill(place))
    }

    /// Replaces the spill block (a multiple of 512 bytes, at most 128 KiB), or removes it.
    pub fn set_spill(&mut self, number: u64, data: Option<Vec<u8>>) -> Result<()> {
        self.with(number, |object, place| object.set_spill(place, data))
    }

    /// Reads into `buf` from byte `offset`; zeros in holes and past the last block.
    pub fn read(&mut self, number: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.with(number, |object, place| object.read(place, offset, buf))
    }

    /// Writes `data` at byte `offset`. Blocks that are written in part are read first.
    /// Errors: the end would be beyond 2^63 bytes.
    pub fn write(&mut self, number: u64, offset: u64, data: &[u8]) -> Result<()> {
        self.with(number, |object, place| object.write(place, offset, data))
    }

    /// Makes zeros of `len` bytes from `offset`: whole blocks become holes, parts of blocks are
    /// zeroed. If the range reaches past the last block, the number of the last block becomes that
    /// of the one before the range.
    pub fn free_range(&mut self, number: u64, offset: u64, len: u64) -> Result<()> {
        self.with(number, |object, place| object.free_range(place, offset, len))
    }

    /// Frees all from byte `size` on.
    pub fn truncate(&mut self, number: u64, size: u64) -> Result<()> {
        self.free_range(number, size, u64::MAX)
    }
}
