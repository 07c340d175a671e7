//! Object sets that are received raw, from a stream of `zfs send -w` (`dsl_crypto_recv_raw_objset_sync`,
//! `dmu_buf_set_crypt_params`).
//!
//! The key is not known here. Each block of data comes with its seal: salt, initialization vector and MAC. A block of dnodes is
//! put together here of the objects in it, whose bonus buffers are encrypted; its seal comes before them. MACs of indirect
//! blocks take no key. The root block gets the portable MAC of the stream.
//!
//! Invariants:
//!
//! - What MACs cover is as it is at the sender: levels, sizes and numbers of the last blocks, the pointers that a dnode has,
//!   and the bytes behind its bonus buffer.
//! - A block of dnodes is written with the last seal that came for it. Until all of the stream has come that may be wrong:
//!   the dataset is incomplete, and nothing in it is decrypted.

use super::object::{OpenObject, Place, bonus_room};
use super::slots::PER_BLOCK;
use super::unwritten::{Protection, Received, Unwritten};
use super::{OpenObjectSet, Result, WriteError};
use crate::ObjectSet;
use crate::objset::META_DNODE;
use cenote_format::blkptr::BlockPointer;
use cenote_format::crypt::{OBJSET_MAC_LEN, Seal};
use cenote_format::dmu::DNODE_BLOCK;
use cenote_store::{BlockError, Bookmark};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a raw stream says of its object set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRoot {
    /// The MAC of the meta dnode.
    pub portable_mac: [u8; OBJSET_MAC_LEN],
    /// Number of the meta dnode's checksum function.
    pub checksum: u8,
    /// Number of its compression function.
    pub compress: u8,
    /// Its levels.
    pub levels: u8,
    /// log2 of the bytes of its indirect blocks.
    pub indirect_shift: u8,
    /// Number of its last block.
    pub max_block: u64,
}

/// What a raw stream says of the structure of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawShape {
    /// Pointers that the dnode has.
    pub pointers: usize,
    /// Levels of the tree of blocks.
    pub levels: u8,
    /// log2 of the bytes of its indirect blocks.
    pub indirect_shift: u8,
    /// Number of the last block.
    pub max_block: u64,
    /// What lies behind the bonus buffer.
    pub rest: Vec<u8>,
}

impl OpenObjectSet {
    /// Opens an object set to receive a raw stream into it.
    ///
    /// # Errors
    /// It is not encrypted, or has another structure than the stream.
    pub fn open_raw(base: Arc<ObjectSet>, root: RawRoot) -> Result<OpenObjectSet> {
        if !base.root_bp().uses_crypt() {
            return Err(BlockError::Encrypted { at: Bookmark::root(base.id()) }.into());
        }
        let meta = &base.phys().meta_dnode;
        let same = meta.block_size == DNODE_BLOCK
            && meta.indirect_shift == root.indirect_shift
            && meta.levels <= root.levels;
        if !same {
            let why = "the stream's blocks of dnodes are others".into();
            return Err(WriteError::Invalid { object: META_DNODE, why });
        }
        Ok(OpenObjectSet::around(Unwritten::of(base, Protection::Plain)).with_raw_root(root))
    }

    /// A new object set becomes what a raw stream says.
    pub fn created_raw(mut self, root: RawRoot) -> OpenObjectSet {
        let here = &mut self.unwritten.root;
        let meta = &mut here.phys.meta_dnode;
        (meta.indirect_shift, meta.levels) = (root.indirect_shift, root.levels);
        here.changed = true;
        self.with_raw_root(root)
    }

    fn with_raw_root(mut self, root: RawRoot) -> OpenObjectSet {
        /// `OBJSET_FLAG_USERACCOUNTING_COMPLETE`, and what goes with it.
        const ACCOUNTED: u64 = 7;
        let phys = &mut self.unwritten.root.phys;
        let meta = &mut phys.meta_dnode;
        (meta.checksum, meta.compress) = (root.checksum, root.compress);
        phys.flags &= !ACCOUNTED;
        self.over.flags = Some(phys.flags);
        let seals = BTreeMap::new();
        self.unwritten.protection = Protection::Received(Received { root, seals });
        self
    }

    /// The block of dnodes with the slot `first` is protected so from now on.
    ///
    /// # Errors
    /// No raw stream is received into it.
    pub fn set_seal(&mut self, first: u64, seal: Seal) -> Result<()> {
        let Protection::Received(received) = &mut self.unwritten.protection else {
            let why = "a sealed block, and no raw stream is received".into();
            return Err(WriteError::Invalid { object: first, why });
        };
        received.seals.insert(first / PER_BLOCK, seal);
        Ok(())
    }

    /// Gives an object the structure that it has at the sender.
    ///
    /// # Errors
    /// The dnode has no room for it; it is there, and its blocks cannot be kept so.
    pub fn set_raw_shape(&mut self, number: u64, shape: &RawShape) -> Result<()> {
        self.with(number, |object, place| object.set_raw_shape(place, shape))
    }
}

impl OpenObject {
    /// See [`OpenObjectSet::set_raw_shape`].
    fn set_raw_shape(&mut self, place: &Place<'_>, shape: &RawShape) -> Result<()> {
        let is_new = self.disk().is_none() && !self.stands_on_quiesced();
        let phys = self.phys();
        let slots = usize::from(phys.extra_slots) + 1;
        let room = bonus_room(slots, shape.pointers, false);
        let taken = phys.bonus.len() + shape.rest.len();
        if shape.pointers == 0 || room.is_none_or(|room| taken > room) {
            return place.invalid(format!("{} pointers, {taken} bytes of bonus", shape.pointers));
        }
        let same = phys.pointers.len() == shape.pointers
            && phys.indirect_shift == shape.indirect_shift
            && phys.levels <= shape.levels;
        if !is_new && !same {
            return place.invalid("another structure than the stream says");
        }
        let (block_size, last) = (phys.block_size, phys.max_block);
        if last > shape.max_block {
            let end = shape.max_block.saturating_add(1).saturating_mul(block_size);
            self.free_range(place, end, u64::MAX)?;
        }
        self.set_least_levels(shape.levels);
        let phys = self.phys_mut();
        if is_new {
            phys.pointers = vec![BlockPointer::HOLE; shape.pointers];
            phys.indirect_shift = shape.indirect_shift;
        }
        phys.max_block = shape.max_block;
        phys.rest.clone_from(&shape.rest);
        Ok(())
    }
}
