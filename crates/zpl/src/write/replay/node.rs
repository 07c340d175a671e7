//! Records that change one node: contents, attributes, extended attributes (`zfs_replay_write`,
//! `zfs_replay_truncate`, `zfs_replay_setattr`, `zfs_replay_setsaxattr`, `zfs_replay_clone_range`).
//!
//! Each record is one change, which notes the record's sequence number with it. Two kinds differ. What a truncation
//! frees goes first, in chunks that are changes of their own and can be made again; the number comes with the rest.
//! Writes that follow one another are one change, with the number of the last.
//!
//! Attributes are set as the record's mask says. With a change of size, the time of modification may be there
//! although the mask does not have it: it counts if it can be a time.
//!
//! Invariant: a clone of blocks that does not fit the file as it is, in block size or length, changes nothing.

use super::acl::cost_with;
use crate::fs::FileSystem;
use crate::sa::ZplAttr;
use crate::write::clone::{ENTRY, put_clones};
use crate::write::context::Cx;
use crate::write::cost::ATTRIBUTES;
use crate::write::data::{MAX_SIZE, put, resize, zero};
use crate::write::fuid::Domains;
use crate::write::node::NodeMut;
use crate::write::replay::{data_in, end_of, last_of, miss_together};
use crate::write::setattr::Owners;
use crate::write::{SetAttr, SetTime, setattr, xattr, xvattr};
use crate::{Error, Result};
use cenote_dmu::live::Cost;
use cenote_dmu::write::is_clonable;
use cenote_format::blkptr::BlockPointer;
use cenote_format::{less, zil};

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// Whether a record has a time where its mask does not say so: other systems leave there what was in memory.
fn is_time([seconds, nanoseconds]: [u64; 2]) -> bool {
    seconds != 0 && seconds <= i64::MAX as u64 && nanoseconds < SECOND
}

/// A time of a record.
fn time([seconds, nanoseconds]: [u64; 2]) -> SetTime {
    SetTime::To((seconds as i64, nanoseconds as u32))
}

impl FileSystem {
    /// `TX_WRITE` (`zfs_replay_write`): `data` at `offset`; the file is `size` bytes long at least then.
    pub(super) fn replay_write(
        &self,
        seq: u64,
        ino: u64,
        offset: u64,
        data: &[u8],
        size: u64,
    ) -> Result<()> {
        let write = self.cost_of_replay(ino, offset, data);
        self.replay_change(seq, write, |cx| {
            let mut node = NodeMut::load(cx, ino)?;
            let now = node.required(cx, ZplAttr::Size)?;
            if size > now {
                node.set(cx, ZplAttr::Size, &[size])?;
            }
            put(cx, ino, now, offset, data)?;
            node.modified(cx)?;
            node.store(cx)
        })
    }

    /// `TX_CLONE_RANGE` (`zfs_replay_clone_range`): the blocks become the file's, of which each has `block` bytes.
    ///
    /// Errors: they cannot be cloned into the file as it is; nothing is changed then.
    pub(super) fn replay_clone(
        &self,
        seq: u64,
        ino: u64,
        (offset, length, block): (u64, u64, u64),
        blocks: &[BlockPointer],
    ) -> Result<()> {
        let invalid = || Error::Invalid(format!("object {ino}: cloned blocks in an intent log"));
        let end = offset.checked_add(length).filter(|end| *end <= MAX_SIZE && block > 0);
        let end = end.ok_or_else(invalid)?;
        let whole = offset.is_multiple_of(block) && length.div_ceil(block) == blocks.len() as u64;
        let encrypted = self.is_encrypted();
        let suits =
            |bp: &BlockPointer| is_clonable(bp) && (bp.is_hole() || bp.uses_crypt() == encrypted);
        if !whole || !blocks.iter().all(suits) {
            return Err(invalid());
        }
        let write = ATTRIBUTES.write + blocks.len() as u64 * ENTRY;
        let cost = Cost { write, ..ATTRIBUTES };
        self.replay_change(seq, cost, |cx| {
            let node = NodeMut::load(cx, ino)?;
            let size = node.required(cx, ZplAttr::Size)?;
            if !length.is_multiple_of(block) && end < size {
                return Err(invalid());
            }
            put_clones(cx, node, (offset, end, size), block, blocks)
        })
    }

    /// Several `TX_WRITE` with data as one change; the numbers of the records are beside them.
    pub(super) fn replay_writes(&self, cost: Cost, writes: &[(u64, zil::Write<'_>)]) -> Result<()> {
        let mut objects: Vec<u64> = writes.iter().map(|(_, write)| write.object).collect();
        objects.sort_unstable();
        objects.dedup();
        let last = last_of(writes);
        self.replay_change(last, cost, |cx| {
            for ino in &objects {
                let mut node = NodeMut::load(cx, *ino)?;
                let before = node.required(cx, ZplAttr::Size)?;
                let mut size = before;
                let its = writes.iter().filter(|(_, write)| write.object == *ino);
                miss_together(its, |(_, write)| {
                    put(cx, *ino, size, write.offset, data_in(write))?;
                    size = size.max(end_of(*ino, write.offset, write.length)?);
                    Ok(())
                })?;
                if size > before {
                    node.set(cx, ZplAttr::Size, &[size])?;
                }
                node.modified(cx)?;
                node.store(cx)?;
            }
            Ok(())
        })
    }

    /// `TX_WRITE2` (`zfs_replay_write2`): the file is `size` bytes long at least.
    pub(super) fn replay_extend(&self, seq: u64, ino: u64, size: u64) -> Result<()> {
        self.replay_change(seq, ATTRIBUTES, |cx| {
            let mut node = NodeMut::load(cx, ino)?;
            if node.required(cx, ZplAttr::Size)? < size {
                resize(cx, &mut node, size)?;
            }
            node.store(cx)
        })
    }

    /// `TX_TRUNCATE` (`zfs_freesp`): makes a hole, or with length 0 the end. A hole that begins past the end of the
    /// file makes it as long (`zfs_extend`).
    pub(super) fn replay_truncate(
        &self,
        seq: u64,
        ino: u64,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let end = if length == 0 { u64::MAX } else { offset.saturating_add(length) };
        let free = |cx: &mut Cx<'_>, piece: std::ops::Range<u64>| match length {
            0 => shorten(cx, ino, piece.start),
            _ => zero(cx, ino, piece.start, piece.end - piece.start, true),
        };
        let (left, freed) = self.free_chunks(ino, offset..end, free)?;
        self.replay_change(seq, Cost { frees: true, ..ATTRIBUTES }, |cx| {
            cx.os.note_freed(freed);
            if length == 0 {
                let mut node = NodeMut::load(cx, ino)?;
                resize(cx, &mut node, offset)?;
                node.modified(cx)?;
                return node.store(cx);
            }
            let mut node = NodeMut::load(cx, ino)?;
            if offset > node.required(cx, ZplAttr::Size)? {
                resize(cx, &mut node, end_of(ino, offset, length)?)?;
                node.modified(cx)?;
                return node.store(cx);
            }
            let left =
                less!(left, offset, "object {ino}: bytes that are left of a range to be freed");
            zero(cx, ino, offset, left, true)
        })
    }

    /// `TX_SETATTR` (`zfs_replay_setattr`).
    pub(super) fn replay_set_attr(
        &self,
        seq: u64,
        set: &zil::SetAttr<'_>,
        table_at: u64,
    ) -> Result<()> {
        use zil::SetAttr as Mask;
        let sets = set.sets();
        let has = |bit| sets & bit != 0;
        let ino = set.object;
        let size = Some(set.size).filter(|_| has(Mask::SIZE));
        let (mut freed, mut cost) = (0, cost_with(ATTRIBUTES, None, &set.domains));
        if let Some(size) = size {
            (_, freed) =
                self.free_chunks(ino, size..u64::MAX, |cx, piece| shorten(cx, ino, piece.start))?;
            cost.frees = true;
        }
        let mut wanted = SetAttr {
            mode: Some(set.mode as u32 & 0o7777).filter(|_| has(Mask::MODE)),
            size,
            atime: Some(time(set.atime)).filter(|_| has(Mask::ATIME)),
            // A change of size may have the time of the change with it; if not, it is that of the replay.
            mtime: Some(time(set.mtime))
                .filter(|_| has(Mask::MTIME) || has(Mask::SIZE) && is_time(set.mtime)),
            ..SetAttr::default()
        };
        let domains = Domains { names: &set.domains, table_at };
        self.replay_change(seq, cost, |cx| {
            cx.os.note_freed(freed);
            if let Some(attrs) = &set.attrs {
                let mut node = NodeMut::load(cx, ino)?;
                wanted.projid = xvattr::apply(cx, &mut node, attrs)?;
                node.store(cx)?;
            }
            let fuid =
                |cx: &mut Cx<'_>, bit, id| has(bit).then(|| cx.fuid(id, &domains)).transpose();
            let uid = fuid(cx, Mask::UID, set.uid)?;
            let owners = Owners { uid, gid: fuid(cx, Mask::GID, set.gid)? };
            setattr::apply_unchecked(cx, ino, &wanted, owners).map(drop)
        })
    }

    /// `TX_SETSAXATTR` (`zfs_replay_setsaxattr`): without a value the attribute is removed.
    pub(super) fn replay_set_sa_xattr(
        &self,
        seq: u64,
        ino: u64,
        name: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let write = ATTRIBUTES.write + 2 * value.len() as u64;
        self.replay_change(seq, Cost { write, ..ATTRIBUTES }, |cx| {
            let mut node = NodeMut::load(cx, ino)?;
            let value = Some(value).filter(|v| !v.is_empty());
            if !xattr::pack(cx, &mut node, name, value)? {
                return Err(Error::TooLarge(crate::error::show(name)));
            }
            node.touched(cx)?;
            node.store(cx)
        })
    }
}

/// Takes away what a file has past `size`, if it is longer.
fn shorten(cx: &mut Cx<'_>, ino: u64, size: u64) -> Result<()> {
    let mut node = NodeMut::load(cx, ino)?;
    if node.required(cx, ZplAttr::Size)? <= size {
        return Ok(cx.os.truncate(ino, size)?);
    }
    resize(cx, &mut node, size)?;
    node.modified(cx)?;
    node.store(cx)
}
