//! Writing an object set, one transaction group at a time.
//!
//! # Idea
//!
//! An [`OpenObjectSet`] stands on what the last sync left, read through the reading path. Changes
//! are collected in memory, object by object: dnodes as they will be, dirty data blocks, ranges of
//! blocks to be freed. A [`SyncingSet`] takes all of them over and writes them, level by level over all
//! objects at once (see `sync`). The open set then goes on from the new root block.
//!
//! Each state of an object set has its type, which can do what makes sense in that state alone:
//!
//! ```text
//!   OpenObjectSet    changes are made
//!    in a MetaObjectSet   what was changed is written at once, again and again: the meta object set
//!    in a HeadObjectSet   a data set in use: what was changed is quiesced (`txg_quiesce`), and more is changed
//!    by itself            a data set that is only made, or of which only the log is changed
//!        |
//!        |  sync, quiesce, into_syncing
//!        v
//!   SyncingSet       is written, several times if need be; counts what users use by what was written
//!        |
//!        |  finish
//!        v
//!   WrittenSet       what the open set goes on from (sync_done)
//! ```
//!
//! What was quiesced is shared by the syncing set and the open one, which shows it below its own changes
//! ([`Quiesced`], see `quiesce`).
//!
//! | module | what |
//! |---|---|
//! | `unwritten` | what open sets and syncing sets have in common: the changes, and how they are protected |
//! | `object` | the changes of one object: blocks, ranges, bonus, sizes |
//! | `rewrite` | blocks written anew as they are |
//! | `raw` | object sets that are received encrypted as they are |
//! | `clone` | blocks of other objects, whose pointers are taken over |
//! | `chunk` | bytes to be written, made ready before the lock is taken |
//! | `slots` | which dnode slots are free |
//! | [`sink`] | what writes blocks: the floor below |
//! | `indirect`, `levels` | an indirect block while its pointers change; how many levels there are |
//! | `sync` | the object set written: dnodes, root block |
//! | `accounts` | what users use, counted between two syncs of a group |
//! | `meta` | the meta object set |
//! | `run` | the blocks of all objects written, level by level |
//! | `work` | one object that is written |
//! | [`intent`] | what a change leaves for the intent log |
//! | `undo`, `journal` | changes, within each other, that are made whole or not at all; what is noted for that |
//! | `pending` | what is pending, looked at |
//! | `quiesce` | data sets in use: quiescing what is pending, standing on what was written |
//! | [`zap`] | ZAPs: entries, growth from micro to fat, splits |
//!
//! # Invariants
//!
//! - Pointers, levels and space used of a changed dnode are those on disk until the sync.
//! - The bytes to be written are the sum over all open objects.
//! - A block that is dirty is the whole block. It takes precedence over a range that is freed,
//!   which takes precedence over what is quiesced, which does over what is on disk.
//! - Whatever is read and written is little-endian: what a machine of the other byte order wrote is turned when it is
//!   read (`tree::turned`). System attributes say their order themselves, and are turned by the floor that knows them.
//! - After a sync that failed the object set is of no use; it must be opened anew from the root
//!   block that is valid.

mod accounts;
mod chunk;
mod clone;
mod indirect;
pub mod intent;
mod journal;
mod levels;
mod meta;
mod object;
mod open_block;
mod pending;
#[cfg(test)]
mod planted;
mod quiesce;
mod raw;
mod rewrite;
mod run;
pub mod sink;
mod slots;
mod sync;
mod undo;
mod unwritten;
mod work;
pub mod zap;

pub use accounts::Accounts;
pub use chunk::Chunk;
pub(crate) use chunk::Was;
pub use clone::{ClonePointers, NotClonable, is_clonable};
pub use meta::MetaObjectSet;
pub(crate) use pending::on_disk;
pub use quiesce::HeadObjectSet;
pub use raw::{RawRoot, RawShape};
pub use rewrite::{Births, Gather, Spare};
pub use sink::{BlockSink, NewBlock};
pub use sync::{SyncingSet, WrittenSet};
pub use zap::ZapMut;

use crate::dnode::Dnode;
use crate::dnode_counts::{What, count};
use crate::objset::PROJECT_USED;
use crate::{Error, ObjectSet};
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::{DNODE_SLOT, DmuType, DnodePhys, ObjsetPhys, ObjsetType, ZilHeader};
use cenote_format::encode::EncodeError;
use cenote_format::{DecodeError, invariant, less};
use cenote_store::keys::LoadedKey;
use cenote_store::write::Payload;
use cenote_store::{BlockError, Store};
use intent::Intent;
use object::OpenObject;
use pending::{Below, Found};
use slots::Slots;
use std::collections::{BTreeMap, btree_map::Entry};
use std::sync::Arc;
use undo::Change;
use unwritten::{Protection, Unwritten};

/// `DN_MIN_INDBLKSHIFT`: indirect blocks of 4 KiB.
pub const MIN_INDIRECT_SHIFT: u8 = 12;
/// `DN_MAX_INDBLKSHIFT`: indirect blocks of 128 KiB, the default.
pub const MAX_INDIRECT_SHIFT: u8 = 17;
/// log2 of the bytes of the smallest indirect blocks that are made. They compress to a sector of
/// 4 KiB, and smaller ones would take one as well.
const SMALLEST_SHIFT: u8 = 13;
/// log2 of the bytes of the indirect blocks of an object with data blocks of `block_size` bytes: as
/// large as those, from 8 KiB to 128 KiB.
///
/// OpenZFS takes 128 KiB for all, 1024 pointers. An overwrite at random writes an indirect block too,
/// in two copies, so with data blocks of 8 KiB that is most of what a transaction group compresses and
/// writes. OpenZFS reads objects with indirect blocks of any of these sizes.
pub fn indirect_shift(block_size: u64) -> u8 {
    let same = block_size.checked_next_power_of_two().and_then(u64::checked_ilog2);
    same.map_or(MAX_INDIRECT_SHIFT, |log| log.min(63) as u8)
        .clamp(SMALLEST_SHIFT, MAX_INDIRECT_SHIFT)
}

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
    /// The object number is taken, or a dnode of this size cannot have it.
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
    /// There is no space for the change.
    #[error("out of space")]
    NoSpace,
    /// A quota does not allow the change.
    #[error("quota exceeded")]
    Quota,
    /// The dataset or the pool is read-only.
    #[error("read-only")]
    ReadOnly,
    /// The caller waited for a suspended pool, and was interrupted.
    #[error("interrupted")]
    Interrupted,
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

/// What a new object will be.
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
    /// Its dnode has room for a pointer to a spill block, and one to data.
    pub spills: bool,
}

impl NewObject {
    /// An object of `kind` with no bonus buffer, in one slot, with blocks of `block_size` bytes, and
    /// for files and volumes with indirect blocks that suit them ([`indirect_shift`]).
    pub fn new(kind: DmuType, block_size: u64) -> NewObject {
        NewObject {
            kind,
            block_size,
            indirect_shift: match kind {
                DmuType::PLAIN_FILE_CONTENTS | DmuType::ZVOL => indirect_shift(block_size),
                _ => MAX_INDIRECT_SHIFT,
            },
            bonus_kind: DmuType::NONE,
            bonus: Vec::new(),
            dnode_size: DNODE_SLOT,
            checksum: 0,
            compress: 0,
            spills: false,
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
    /// The clones of blocks on disk among the blocks that were born: each has one reference more
    /// than before.
    pub cloned: Vec<BlockPointer>,
    /// Objects whose dnode was written or freed, in the order of their numbers, accounting objects
    /// left out.
    pub changed: Vec<ObjectChange>,
    /// Bytes of objects that were freed whole, in blocks that could not be found because an indirect block
    /// above them cannot be read. They stay allocated.
    pub leaked: u64,
    /// Features that the dataset uses from now on.
    pub uses: Uses,
}

/// Features that a dataset uses for what is in its ZAPs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Uses {
    /// A directory has got a name of more than 255 bytes (`longname`).
    pub long_names: bool,
    /// A micro ZAP has more than 128 KiB (`large_microzap`).
    pub large_microzap: bool,
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

/// Objects that are open, by number. The objects of a syncing set are shared with the set that is synced.
type Objects = BTreeMap<u64, Arc<OpenObject>>;
/// Objects to be freed, with their dnodes on disk; without one if it is being written.
type Doomed = BTreeMap<u64, Option<Arc<Dnode>>>;

/// The open object `number`, taken in from what is below if need be.
fn take_in<'o>(
    objects: &'o mut Objects,
    below: &Below<'_>,
    number: u64,
) -> Result<&'o mut OpenObject> {
    let object = match objects.entry(number) {
        Entry::Occupied(open) => open.into_mut(),
        Entry::Vacant(place) => place.insert(Arc::new(match below.find(number)? {
            Found::Quiesced(object) => OpenObject::above(object),
            Found::OnDisk(object) => {
                // The dnode may be known for long. Its block is changed when the group is written: if it
                // cannot be read, that is said now.
                below.read_dnode_block(number)?;
                OpenObject::open(&object)?
            }
        })),
    };
    Ok(Arc::make_mut(object))
}

/// What was quiesced: it does not change any more, and is shared by the set that writes it and the one that shows it.
#[derive(Clone)]
struct Quiesced {
    objects: Arc<Objects>,
    doomed: Arc<Doomed>,
}

/// What is set in the root block while another set writes it: it goes over what that leaves.
#[derive(Debug, Clone, Copy, Default)]
struct Over {
    flags: Option<u64>,
    zil: Option<ZilHeader>,
}

/// The changes that are being made, and what is told of them when they are made.
#[derive(Default)]
struct Transaction {
    change: Change,
    /// What it leaves for the intent log.
    intent: Intent,
    /// Pointers that were freed since the last question.
    freed: u64,
}

/// An object set that is changed.
pub struct OpenObjectSet {
    unwritten: Unwritten,
    over: Over,
    slots: Slots,
    /// Objects that there are more than on disk.
    more: i64,
    /// What stands between the changes and what is on disk.
    quiesced: Option<Quiesced>,
    transaction: Transaction,
}

impl OpenObjectSet {
    /// Opens an object set for writing. Errors: it was never written ([create](Self::create) it);
    /// dnode blocks of other than 16 KiB, or an impossible indirect block shift; it is encrypted, and its key is not loaded.
    pub fn open(base: Arc<ObjectSet>) -> Result<OpenObjectSet> {
        Ok(Self::around(Unwritten::open(base)?))
    }

    fn around(unwritten: Unwritten) -> OpenObjectSet {
        let (slots, transaction, over) = Default::default();
        OpenObjectSet { unwritten, over, slots, more: 0, quiesced: None, transaction }
    }

    /// A new object set with number `id`.
    ///
    /// # Errors
    /// No error is expected.
    pub fn create(store: Arc<Store>, id: u64, kind: ObjsetType) -> Result<OpenObjectSet> {
        Ok(Self::around(Unwritten::new(store, id, kind)?))
    }

    /// The same, of a pool in which nothing of owners is counted if `small`: its root block is as long as that needs.
    pub fn with_small_root(mut self, small: bool) -> OpenObjectSet {
        self.unwritten.small_root = small;
        self
    }

    /// The same, of an encrypted data set, if there is a `key`.
    pub fn protected_by(mut self, key: Option<Arc<LoadedKey>>) -> OpenObjectSet {
        self.unwritten.protection = Protection::of(key);
        self
    }

    /// Ends the changes of an object set that is not in use: all that is left to do is to write it.
    pub fn into_syncing(mut self) -> SyncingSet {
        SyncingSet::of(self.hand_over())
    }

    /// Takes what was changed, to be written.
    fn hand_over(&mut self) -> Unwritten {
        self.check_no_change();
        self.slots.next_group();
        self.over = Over::default();
        self.unwritten.hand_over()
    }

    /// The key that protects what is written of it.
    pub fn key(&self) -> Option<&Arc<LoadedKey>> {
        self.unwritten.protection.key()
    }

    /// The object set as the last sync left it.
    pub fn synced(&self) -> &Arc<ObjectSet> {
        &self.unwritten.base
    }

    /// The dataset's object number, 0 for the MOS.
    pub fn id(&self) -> u64 {
        self.unwritten.id()
    }

    /// `os_flags`.
    pub fn flags(&self) -> u64 {
        self.unwritten.root.phys.flags
    }

    /// `os_flags`, to be changed with care.
    pub fn set_flags(&mut self, flags: u64) {
        self.note_root();
        self.over.flags = Some(flags);
        self.unwritten.root.set_flags(flags);
    }

    /// The header of the intent log.
    pub fn zil_header(&self) -> &ZilHeader {
        &self.unwritten.root.phys.zil
    }

    /// Changes the header of the intent log; before the last write of a change, so that it can be taken back.
    pub fn set_zil_header(&mut self, zil: ZilHeader) {
        self.note_root();
        self.over.zil = Some(zil);
        self.unwritten.root.set_zil(zil);
    }

    pub(crate) fn usable(&self) -> Result<()> {
        self.unwritten.usable()
    }

    /// Has each dirty block count for so many bytes at least: what the smallest block takes on the
    /// devices.
    ///
    /// Invariant: nothing is dirty, which was counted otherwise.
    pub(crate) fn set_least(&mut self, least: u64) {
        let (objset, dirty) = (self.id(), self.unwritten.dirty);
        invariant!(dirty == 0, "objset {objset}: {dirty} dirty bytes are counted otherwise");
        self.unwritten.least = least.max(cenote_format::SECTOR);
    }

    /// Allocates an object and returns its number (`dmu_object_alloc`, `dnode_allocate`): the first free one.
    ///
    /// Errors: sizes that the format does not have, no free number.
    pub fn allocate(&mut self, new: &NewObject) -> Result<u64> {
        self.usable()?;
        let phys = object::new_dnode(new)?;
        let slots = phys.slots();
        let number = self.slots.take_any(slots, &self.unwritten.meta_tree())?;
        let mut object = OpenObject::new(number, phys);
        self.transaction.change.allocated((number, slots, 0), &mut object);
        self.unwritten.insert(number, object);
        self.more += 1;
        count(What::Allocated);
        Ok(number)
    }

    /// Allocates the object `number` (`dmu_object_claim`).
    ///
    /// Errors: [`WriteError::Taken`] if it or one of the slots that it would take is not free.
    pub fn claim(&mut self, number: u64, new: &NewObject) -> Result<()> {
        self.usable()?;
        if new.block_size > self.unwritten.max_block() {
            let why = format!("blocks of {} bytes are too long for its encryption", new.block_size);
            return Err(WriteError::Invalid { object: number, why });
        }
        let mut object = OpenObject::new(number, object::new_dnode(new)?);
        let slots_taken = object.phys().slots();
        let freed = self.slots.take(number, slots_taken, &self.unwritten.meta_tree())?;
        let Some(freed) = freed else {
            count(What::Taken);
            return Err(WriteError::Taken(number));
        };
        self.transaction.change.allocated((number, slots_taken, freed), &mut object);
        self.unwritten.insert(number, object);
        self.more += 1;
        count(What::Allocated);
        Ok(())
    }

    /// Frees an object with all its blocks (`dmu_object_free`, `dnode_free`, `dmu_free_long_object`). Its number may be used
    /// again in the next transaction group.
    pub fn free(&mut self, number: u64) -> Result<()> {
        if number >= PROJECT_USED {
            let why = "accounting objects stay".into();
            return Err(WriteError::Invalid { object: number, why });
        }
        self.usable()?;
        // The sync frees all that is below them, and leaks what is below one that cannot be read.
        let read = |object: &mut OpenObject, place: &object::Place<'_>| {
            Ok(object.tree(place).read_indirect(0, u64::MAX)?)
        };
        match self.with(number, read) {
            Err(WriteError::Read(Error::Block(e))) if !matches!(e, BlockError::NotHeld { .. }) => {}
            Err(WriteError::Read(Error::Corrupt { .. } | Error::Decode { .. })) => {}
            read => read?,
        }
        let least = self.unwritten.least;
        let object = self.object(number)?;
        let (slots, bytes) = (object.phys().slots(), object.bytes(least));
        let below = match object.stands_on_quiesced() {
            true => Some(None),
            false => object.disk().map(|dnode| Some(dnode.clone())),
        };
        // The bitmap has to be there before a slot can be given back.
        self.slots.take(number, slots, &self.unwritten.meta_tree())?;
        self.slots.give(number, slots);
        let object = self.unwritten.objects.remove(&number);
        self.transaction.change.freed(number, slots, object, below.is_some());
        let (objset, here) = (self.id(), &mut self.unwritten);
        here.doomed.extend(below.map(|dnode| (number, dnode)));
        here.dirty = less!(here.dirty, bytes, "objset {objset} object {number}: dirty bytes");
        self.more -= 1;
        Ok(())
    }

    /// Notes that a change frees so many pointers: what a transaction group frees is bounded.
    pub fn note_freed(&mut self, pointers: u64) {
        let freed = &mut self.transaction.freed;
        *freed = freed.saturating_add(pointers);
    }

    /// Pointers that were freed since this was asked last.
    pub(crate) fn take_freed(&mut self) -> u64 {
        std::mem::take(&mut self.transaction.freed)
    }

    /// The object, taken in from what is quiesced or on disk if need be.
    fn object(&mut self, number: u64) -> Result<&mut OpenObject> {
        self.unwritten.object(self.quiesced.as_ref(), number)
    }

    /// Has `f` change the object, with what it takes to read what is on disk.
    fn with<T>(
        &mut self,
        number: u64,
        f: impl FnOnce(&mut OpenObject, &object::Place<'_>) -> Result<T>,
    ) -> Result<T> {
        let change = &mut self.transaction.change;
        self.unwritten.with(self.quiesced.as_ref(), number, |object, place| {
            change.with(number, object, |object| f(object, place))
        })
    }

    /// The dnode as it will be; its pointers, levels and space used as they are on disk.
    pub fn dnode(&mut self, number: u64) -> Result<&DnodePhys> {
        Ok(self.object(number)?.phys())
    }

    /// As [`OpenObjectSet::dnode`], and whether it will have a spill block.
    pub fn dnode_with_spill(&mut self, number: u64) -> Result<(&DnodePhys, bool)> {
        let object = self.object(number)?;
        Ok((object.phys(), object.has_spill()))
    }

    /// Has the dnode written as it is, so that it is accounted for (`dnode_setdirty`).
    pub fn touch(&mut self, number: u64) -> Result<()> {
        self.with(number, |object, _| {
            object.phys_mut();
            Ok(())
        })
    }

    /// Changes the bonus buffer (`dmu_set_bonus`). Errors: more than there is room for.
    pub fn set_bonus(&mut self, number: u64, kind: DmuType, bonus: &[u8]) -> Result<()> {
        self.with(number, |object, place| object.set_bonus(place, kind, bonus))
    }

    /// Changes the sizes of data blocks and indirect blocks (`dmu_object_set_blocksize`).
    ///
    /// Errors: there is more than one data block, or for indirect blocks more than one level; sizes
    /// that the format does not have.
    pub fn set_block_size(&mut self, number: u64, size: u64, indirect_shift: u8) -> Result<()> {
        self.with(number, |object, place| object.set_block_size(place, size, indirect_shift))
    }

    /// The spill block (`dmu_spill_hold_existing`).
    pub fn spill(&mut self, number: u64) -> Result<Option<Vec<u8>>> {
        self.with(number, |object, place| object.spill(place))
    }

    /// Replaces the spill block (a multiple of 512 bytes, at most 128 KiB), or removes it.
    pub fn set_spill(&mut self, number: u64, data: Option<Vec<u8>>) -> Result<()> {
        self.set_spill_payload(number, data.map(|data| Abd::from_vec(data).into()))
    }

    /// As [`OpenObjectSet::set_spill`]; it may have come in a raw stream.
    pub fn set_spill_payload(&mut self, number: u64, data: Option<Payload>) -> Result<()> {
        self.with(number, |object, place| object.set_spill(place, data))
    }

    /// Reads into `buf` from byte `offset`; zeros in holes and past the last block (`dmu_read`).
    pub fn read(&mut self, number: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.usable()?;
        let object = match self.pending_view(number, Some((offset, buf.len() as u64)))? {
            Some(object) => object,
            None => on_disk(self.synced(), number)?,
        };
        Ok(object.read(offset, buf)?)
    }

    /// Writes `data` at byte `offset` (`dmu_write`). Blocks that are written in part are read first.
    /// Errors: the end would be beyond 2^63 bytes.
    pub fn write(&mut self, number: u64, offset: u64, data: &[u8]) -> Result<()> {
        let chunk = Chunk::uncut(data);
        self.with(number, |object, place| {
            object.prepare_write(place, offset, &chunk)?;
            object.write(place, offset, &chunk)
        })
    }

    /// As [`OpenObjectSet::write`]; what is a whole block is not copied, and stays compressed if it is.
    pub fn write_payload(&mut self, number: u64, offset: u64, data: &Payload) -> Result<()> {
        self.with(number, |object, place| object.write_payload(place, offset, data))
    }

    /// Changes the numbers of the functions that an object's blocks are written with from now on
    /// (`dmu_object_set_checksum`, `dmu_object_set_compress`); 0: the data set's.
    pub fn set_functions(&mut self, number: u64, checksum: u8, compress: u8) -> Result<()> {
        self.with(number, |object, _| {
            object.set_functions(checksum, compress);
            Ok(())
        })
    }

    /// Makes blocks of object `number` from block `first` on clones of blocks on disk (`dmu_brt_clone`,
    /// `brt_pending_add`): they get these pointers. Where the pointer is a hole there will be a hole.
    ///
    /// The caller sees to it that the blocks are not freed before the group that is open, and that encrypted ones have the
    /// key of this data set. Errors: a block of another size than the object's; one that is encrypted in a data set that is not,
    /// and the other way round.
    pub fn clone_blocks(
        &mut self,
        number: u64,
        first: u64,
        pointers: &[BlockPointer],
    ) -> Result<()> {
        let encrypted = self.key().is_some();
        if pointers.iter().any(|bp| !bp.is_hole() && bp.uses_crypt() != encrypted) {
            let why = "blocks are cloned between data sets of which one is encrypted".into();
            return Err(WriteError::Invalid { object: number, why });
        }
        self.with(number, |object, place| object.clone_blocks(place, first, pointers))
    }

    /// Makes zeros of `len` bytes from `offset` (`dmu_free_range`): whole blocks become holes, parts of blocks are
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
