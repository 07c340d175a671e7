//! A node's attributes, to be changed and stored (`sa_bulk_update`, `sa_modify_attrs`, `sa_build_layouts`).
//!
//! A [`NodeMut`] holds the values of all attributes, also in the spill block, in the order of
//! their layouts. Setting a value of the same length keeps the layout; everything else makes a new
//! list, for which a layout is found or registered when the node is stored. What does not fit into
//! the bonus buffer goes to the spill block, and comes back when there is room again. Without a new list
//! the buffers are stored as they were read, with other values in them.
//!
//! Attributes whose meaning is not known here are kept.
//!
//! # Invariants
//!
//! - Nothing is changed in the object set before [`NodeMut::store`](super::kinds).
//! - Every value lies in the buffer; those before `split` are in the bonus buffer, or will be.

use super::context::Cx;
use crate::attr::{Attr, Space, Words, attr_of};
use crate::bits::{S_IFDIR, S_IFMT};
use crate::sa::{Registry, TABLE, ZplAttr};
use crate::{Error, Result};
use cenote_dmu::outside::Time;
use cenote_format::blkptr::BLKPTR_SIZE;
use cenote_format::dmu::{DNODE_CORE, DNODE_SLOT, DmuType, DnodePhys};
use cenote_format::encode::sa::{bonus_attrs, buffer_size, encode_attrs, spill_block_size};
use cenote_format::invariant::broken;
use cenote_format::sa::{AttrDef, SaHeader, SaValue};
use cenote_format::{ByteOrder, less};

/// `zp_flags`, set by every change of contents: `ZFS_ARCHIVE | ZFS_AV_MODIFIED`.
pub(super) const MODIFIED: u64 = ARCHIVE | 0x0000_0400_0000_0000;
/// `ZFS_ARCHIVE`, set by every change.
pub(super) const ARCHIVE: u64 = 0x0000_0008_0000_0000;

/// The attributes that all nodes have, in the order in which OpenZFS has them.
pub(super) const IN_ALL: [ZplAttr; 12] = [
    ZplAttr::Mode,
    ZplAttr::Size,
    ZplAttr::Gen,
    ZplAttr::Uid,
    ZplAttr::Gid,
    ZplAttr::Parent,
    ZplAttr::Flags,
    ZplAttr::Atime,
    ZplAttr::Mtime,
    ZplAttr::Ctime,
    ZplAttr::Crtime,
    ZplAttr::Links,
];

/// The attributes of a node (`sa_handle_t`).
pub(crate) struct NodeMut {
    /// Object number; 0 before the object exists.
    pub(crate) ino: u64,
    data: Vec<u8>,
    /// Where the values are in `data`.
    fields: Vec<SaValue>,
    /// Fields that are in the bonus buffer; the others are in the spill block.
    split: usize,
    /// Bytes of `data` that were read from the bonus buffer; after them come the bytes of the spill block.
    bonus: usize,
    /// Whether the fields or their lengths are others than those stored.
    reshaped: bool,
    /// Whether a value in the bonus buffer, in the spill block was changed.
    changed: (bool, bool),
    /// Another object that goes when the node is stored: where old nodes kept a long ACL.
    pub(super) also_free: Option<u64>,
    /// What is in the data of an old symbolic link goes.
    pub(super) clear_data: bool,
    /// The bonus buffer of a node that is of the kind from before version 5 and stays so.
    pub(super) old: Option<Vec<u8>>,
}

impl NodeMut {
    /// A node without attributes.
    pub(super) fn empty(ino: u64) -> NodeMut {
        NodeMut {
            ino,
            data: Vec::new(),
            fields: Vec::new(),
            split: 0,
            bonus: 0,
            reshaped: true,
            changed: (false, false),
            also_free: None,
            clear_data: false,
            old: None,
        }
    }

    /// As [`NodeMut::empty`], with room for as much as most nodes have.
    pub(super) fn with_room(ino: u64) -> NodeMut {
        let (data, fields) = (Vec::with_capacity(DNODE_SLOT), Vec::with_capacity(TABLE.len()));
        NodeMut { data, fields, ..NodeMut::empty(ino) }
    }

    /// Reads the system attributes of `ino`; the type of its bonus buffer, where these are something else.
    pub(super) fn load_attributes(
        cx: &mut Cx<'_>,
        ino: u64,
    ) -> Result<std::result::Result<NodeMut, DmuType>> {
        let (dnode, has_spill) = cx.os.dnode_with_spill(ino)?;
        if dnode.bonus_kind != DmuType::SA {
            return Ok(Err(dnode.bonus_kind));
        }
        let mut node = NodeMut::empty(ino);
        node.take(&cx.registry, &dnode.bonus)?;
        (node.split, node.bonus) = (node.fields.len(), node.data.len());
        if has_spill && let Some(spill) = cx.os.spill(ino)? {
            node.take(&cx.registry, &spill)?;
        }
        node.reshaped = false;
        Ok(Ok(node))
    }

    /// Takes in the values of a buffer.
    fn take(&mut self, registry: &Registry, buffer: &[u8]) -> Result<()> {
        let header = SaHeader::decode(buffer).map_err(Error::decode(self.ino))?;
        let unknown =
            || Error::Corrupt(self.ino, format!("SA layout {} is not defined", header.layout));
        let layout = registry.layout(header.layout).ok_or_else(unknown)?;
        let values = layout.locate(buffer, &header).map_err(Error::decode(self.ino))?;
        let base = self.data.len();
        self.data.extend_from_slice(buffer);
        if header.order == ByteOrder::Big
            && let Some(buffer) = self.data.get_mut(base..)
        {
            layout.turn(buffer, &header).map_err(Error::decode(self.ino))?;
        }
        if base == 0 {
            self.fields = values;
            return Ok(());
        }
        let moved = |v: SaValue| SaValue { at: base + v.at, ..v };
        self.fields.extend(values.into_iter().map(moved));
        Ok(())
    }

    fn field(&self, cx: &Cx<'_>, attr: ZplAttr) -> Option<usize> {
        let id = cx.registry.number(attr)?;
        self.fields.iter().position(|f| f.def.id == id)
    }

    fn bytes_of(&self, field: &SaValue) -> &[u8] {
        let (SaValue { at, len, .. }, all) = (field, self.data.len());
        match self.data.get(*at..*at + *len) {
            Some(bytes) => bytes,
            None => broken(format_args!(
                "object {}: a value of {len} bytes at {at} of {all} bytes of attributes",
                self.ino
            )),
        }
    }

    /// The bytes of an attribute.
    pub(crate) fn bytes(&self, cx: &Cx<'_>, attr: ZplAttr) -> Option<&[u8]> {
        let id = cx.registry.number(attr)?;
        self.fields.iter().find(|f| f.def.id == id).map(|f| self.bytes_of(f))
    }

    /// An attribute of one integer.
    pub(crate) fn word(&self, cx: &Cx<'_>, attr: ZplAttr) -> Option<u64> {
        self.bytes(cx, attr)?.first_chunk().copied().map(u64::from_le_bytes)
    }

    /// An attribute of one integer that every node has.
    pub(crate) fn required(&self, cx: &Cx<'_>, attr: ZplAttr) -> Result<u64> {
        let absent = || Error::Corrupt(self.ino, format!("no attribute {attr:?}"));
        self.word(cx, attr).ok_or_else(absent)
    }

    /// Mode with file type.
    pub(crate) fn mode(&self, cx: &Cx<'_>) -> Result<u64> {
        self.required(cx, ZplAttr::Mode)
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self, cx: &Cx<'_>) -> Result<bool> {
        Ok(self.mode(cx)? & S_IFMT == S_IFDIR)
    }

    /// `zp_flags`.
    pub(crate) fn flags(&self, cx: &Cx<'_>) -> Result<u64> {
        self.required(cx, ZplAttr::Flags)
    }

    /// Adds an attribute of bytes that the node has not, as the last one.
    pub(super) fn add_bytes(&mut self, cx: &mut Cx<'_>, attr: ZplAttr, value: &[u8]) -> Result<()> {
        let def = cx.attribute(attr)?;
        self.fields.push(SaValue { def, at: self.data.len(), len: value.len() });
        self.data.extend_from_slice(value);
        self.reshaped = true;
        Ok(())
    }

    /// As [`NodeMut::add_bytes`], an attribute of integers.
    pub(super) fn add<const N: usize>(
        &mut self,
        cx: &mut Cx<'_>,
        attr: ZplAttr,
        words: [u64; N],
    ) -> Result<()> {
        self.add_bytes(cx, attr, words.map(u64::to_le_bytes).as_flattened())
    }

    /// Sets an attribute of bytes; one that the node has not comes last (`sa_update`, `sa_attr_op`).
    pub(crate) fn set_bytes(&mut self, cx: &mut Cx<'_>, attr: ZplAttr, value: &[u8]) -> Result<()> {
        let at = self.fields.len();
        self.set_at(cx, attr, value, at)
    }

    /// As [`NodeMut::set_bytes`]; one that the node has not comes before field `index`.
    fn set_at(&mut self, cx: &mut Cx<'_>, attr: ZplAttr, value: &[u8], index: usize) -> Result<()> {
        if let Some(found) = self.field(cx, attr) {
            let in_bonus = found < self.split;
            let (ino, fields) = (self.ino, self.fields.len());
            let Some(field) = self.fields.get_mut(found) else {
                broken(format_args!("object {ino}: field {found} of {fields} is to be set"))
            };
            if field.len == value.len() {
                match self.data.get_mut(field.at..field.at + field.len) {
                    Some(old) => old.copy_from_slice(value),
                    None => broken(format_args!("object {ino}: no place for {attr:?}, {field:?}")),
                }
                self.changed.0 |= in_bonus;
                self.changed.1 |= !in_bonus;
                return Ok(());
            }
            (field.at, field.len) = (self.data.len(), value.len());
        } else {
            let def = cx.attribute(attr)?;
            let field = SaValue { def, at: self.data.len(), len: value.len() };
            self.fields.insert(index.min(self.fields.len()), field);
        }
        self.data.extend_from_slice(value);
        self.reshaped = true;
        Ok(())
    }

    /// Sets an attribute of integers.
    pub(crate) fn set<const N: usize>(
        &mut self,
        cx: &mut Cx<'_>,
        attr: ZplAttr,
        words: &[u64; N],
    ) -> Result<()> {
        self.set_bytes(cx, attr, words.map(u64::to_le_bytes).as_flattened())
    }

    /// Sets a time.
    pub(crate) fn set_time(&mut self, cx: &mut Cx<'_>, attr: ZplAttr, time: Time) -> Result<()> {
        self.set(cx, attr, &[time.0 as u64, u64::from(time.1)])
    }

    /// Sets the project (`sa_add_projid`). It has its place after the link count, where space accounting finds it; a node that
    /// had no project gets a flag that tells it.
    pub(crate) fn set_project(&mut self, cx: &mut Cx<'_>, projid: u64) -> Result<()> {
        let flags = self.flags(cx)? | crate::bits::FLAG_PROJID;
        self.set(cx, ZplAttr::Flags, &[flags])?;
        for (place, attr) in IN_ALL.into_iter().enumerate() {
            if let Some(index) = self.field(cx, attr).filter(|index| *index != place) {
                let field = self.fields.remove(index);
                self.fields.insert(place.min(self.fields.len()), field);
                self.reshaped = true;
            }
        }
        self.set_at(cx, ZplAttr::ProjId, &projid.to_le_bytes(), IN_ALL.len())
    }

    /// Takes an attribute away (`sa_remove`).
    pub(crate) fn remove(&mut self, cx: &Cx<'_>, attr: ZplAttr) {
        if let Some(index) = self.field(cx, attr) {
            self.fields.remove(index);
            self.reshaped = true;
        }
    }

    /// Notes a change of contents (`zfs_tstamp_update_setup`): mtime, ctime, flags.
    pub(crate) fn modified(&mut self, cx: &mut Cx<'_>) -> Result<()> {
        self.set_time(cx, ZplAttr::Mtime, cx.now)?;
        self.set_time(cx, ZplAttr::Ctime, cx.now)?;
        let flags = self.flags(cx)? | MODIFIED;
        self.set(cx, ZplAttr::Flags, &[flags])
    }

    /// Notes a change of attributes: ctime, flags.
    pub(crate) fn touched(&mut self, cx: &mut Cx<'_>) -> Result<()> {
        self.set_time(cx, ZplAttr::Ctime, cx.now)?;
        let flags = self.flags(cx)? | ARCHIVE;
        self.set(cx, ZplAttr::Flags, &[flags])
    }

    /// The buffer of some of the fields.
    fn encode(&self, cx: &mut Cx<'_>, from: usize, to: usize) -> Result<Vec<u8>> {
        let (ino, all) = (self.ino, self.fields.len());
        let Some(fields) = self.fields.get(from..to) else {
            broken(format_args!("object {ino}: attributes {from} to {to} of {all} are stored"))
        };
        let layout = cx.layout(fields.iter().map(|f| f.def))?;
        let values = fields.iter().map(|f| (f.def, self.bytes_of(f)));
        encode_attrs(layout, values).map_err(|e| too_large(self.ino, &e))
    }

    fn encode_spill(&self, cx: &mut Cx<'_>) -> Result<Option<Vec<u8>>> {
        if self.split >= self.fields.len() {
            return Ok(None);
        }
        let mut spill = self.encode(cx, self.split, self.fields.len())?;
        let size = spill_block_size(spill.len()).map_err(|e| too_large(self.ino, &e))?;
        spill.resize(size, 0);
        Ok(Some(spill))
    }

    /// Divides the fields between a bonus buffer with room for `room` bytes and a spill block (`sa_find_sizes`).
    fn arrange(&mut self, room: usize) -> Result<()> {
        if buffer_size(self.fields.iter().map(|f| (&f.def, f.len))) <= room {
            self.split = self.fields.len();
            return Ok(());
        }
        let lengths: Vec<(AttrDef, usize)> = self.fields.iter().map(|f| (f.def, f.len)).collect();
        if let Some((_, len)) = lengths.iter().find(|(_, len)| *len > usize::from(u16::MAX)) {
            return Err(Error::TooLarge(format!("object {}: attribute of {len} bytes", self.ino)));
        }
        self.split = bonus_attrs(&lengths, room).map_err(|e| too_large(self.ino, &e))?;
        Ok(())
    }

    /// Whether the attributes have a place, if there is room for `room` bytes in the dnode.
    pub(crate) fn fits(&mut self, cx: &mut Cx<'_>) -> Result<()> {
        let room = room(cx.os.dnode(self.ino)?);
        let split = self.split;
        let fits = self.arrange(room);
        self.split = split;
        fits
    }

    /// The attributes as `stat` shows them.
    pub(super) fn attr(&self, cx: &mut Cx<'_>) -> Result<Attr> {
        let space = Space::of(cx.os.dnode(self.ino)?, true);
        let mut words = Words::new(self.ino);
        for field in &self.fields {
            if let Some(attr) = cx.registry.meaning(field.def.id) {
                words.note(attr, self.bytes_of(field), ByteOrder::Little);
            }
        }
        attr_of(&words, space)
    }

    /// Stores what was changed as system attributes (`sa_modify_attrs`).
    pub(super) fn store_attributes(mut self, cx: &mut Cx<'_>) -> Result<()> {
        let ino = self.ino;
        if !self.reshaped {
            let Some((bonus, spill)) = self.data.split_at_checked(self.bonus) else {
                let (bonus, all) = (self.bonus, self.data.len());
                broken(format_args!("object {ino}: {bonus} of {all} bytes of attributes are bonus"))
            };
            if self.changed.0 {
                cx.os.set_bonus(ino, DmuType::SA, bonus)?;
            }
            if self.changed.1 {
                cx.os.set_spill(ino, Some(spill.to_vec()))?;
            }
            return Ok(());
        }
        let room = room(cx.os.dnode(ino)?);
        self.arrange(room)?;
        let bonus = self.encode(cx, 0, self.split)?;
        match self.encode_spill(cx)? {
            None => {
                if cx.os.spill(ino)?.is_some() {
                    cx.os.set_spill(ino, None)?;
                }
                cx.os.set_bonus(ino, DmuType::SA, &bonus)?;
            }
            spill => {
                cx.os.set_bonus(ino, DmuType::SA, &bonus)?;
                cx.os.set_spill(ino, spill)?;
            }
        }
        if let Some(object) = self.also_free {
            cx.os.free(object)?;
        }
        if self.clear_data {
            cx.os.truncate(ino, 0)?;
        }
        Ok(())
    }

    /// The buffers of a new node whose dnode is of `dnode_size` bytes: bonus and spill.
    pub(super) fn buffers(
        &mut self,
        cx: &mut Cx<'_>,
        dnode_size: usize,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
        self.arrange(dnode_size.saturating_sub(DNODE_CORE + BLKPTR_SIZE))?;
        Ok((self.encode(cx, 0, self.split)?, self.encode_spill(cx)?))
    }
}

fn too_large(ino: u64, e: &impl std::fmt::Display) -> Error {
    Error::TooLarge(format!("object {ino}: {e}"))
}

/// Bytes of bonus buffer that a dnode has room for, if it has no spill pointer.
fn room(dnode: &DnodePhys) -> usize {
    let taken = DNODE_CORE + dnode.pointers.len() * BLKPTR_SIZE;
    less!(dnode.slots() as usize * DNODE_SLOT, taken, "bytes of a dnode, behind its pointers")
}
