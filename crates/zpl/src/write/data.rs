//! Contents of files (`zfs_write`, `zfs_freesp`, `zfs_log_truncate`).
//!
//! A file has one block until it is longer than `recordsize`; this block is as large as the file
//! (in sectors) and grows with it. From the second block on the size of blocks, a power of two, is
//! fixed. A file whose block is larger than the `recordsize` of today keeps it.
//!
//! Invariant: what is in the last block past the end of the file is zeros.

use super::context::Cx;
use super::flags::{APPEND_ONLY, IMMUTABLE};
use super::mode::{CONTENTS, set_ids, without_ids};
use super::node::NodeMut;
use super::{Allocate, Settings};
use crate::bits::{S_IFDIR, S_IFMT, S_IFREG};
use crate::fs::FileSystem;
use crate::sa::ZplAttr;
use crate::{Error, Result};
use cenote_dmu::live::Cost;
use cenote_dmu::write::{Chunk, indirect_shift};
use cenote_format::zil::Body;
use cenote_format::{SECTOR, invariant, less};

/// Most bytes that are written in one transaction: the largest block.
const CHUNK: usize = 16 << 20;
/// Longest file.
pub(super) const MAX_SIZE: u64 = i64::MAX as u64;
/// `zp_flags`: `ZFS_SPARSE`.
const FLAG_SPARSE: u64 = 0x0000_2000_0000_0000;

/// Where to write.
#[derive(Clone, Copy)]
enum Offset {
    At(u64),
    End,
}

/// The blocks of a file: the size of one, and the number of the last one.
#[derive(Clone, Copy)]
struct Shape {
    block_size: u64,
    max_block: u64,
}

impl Shape {
    /// The size that blocks have when the file is `end` bytes long at least.
    fn block_size_to(&self, record_size: u64, end: u64) -> u64 {
        match self.max_block {
            0 => grown(self.block_size, record_size, 0, end),
            _ => self.block_size,
        }
    }
}

/// The block size of a file that has blocks of `now` bytes and will be `end` bytes long.
fn grown(now: u64, record_size: u64, size: u64, end: u64) -> u64 {
    let settled = now.is_power_of_two() && now >= record_size;
    if end <= now || settled || size > now {
        return now;
    }
    let most = if now > record_size { now.next_power_of_two() } else { record_size };
    let whole = end.checked_next_multiple_of(SECTOR).unwrap_or(u64::MAX);
    most.min(whole).max(now)
}

/// The largest block of a new file that the format has.
fn record_size(settings: &Settings) -> u64 {
    settings.record_size.clamp(SECTOR, cenote_format::MAX_BLOCK)
}

/// Lets the block of a file of one block grow, if the file will be `end` bytes long (`zfs_grow_blocksize`).
fn grow(cx: &mut Cx<'_>, ino: u64, size: u64, end: u64) -> Result<()> {
    let record_size = record_size(cx.settings);
    let dnode = cx.os.dnode(ino)?;
    let (mut now, levels, shift) = (dnode.block_size, dnode.levels, dnode.indirect_shift);
    let new = grown(now, record_size, size, end);
    invariant!(new >= now, "the block of object {ino} shrinks from {now} to {new} bytes");
    if new != now && dnode.max_block == 0 {
        let suits = if levels == 1 { indirect_shift(new) } else { shift };
        // If it was larger and is being written so, it keeps its indirect blocks.
        let done = cx.os.set_block_size(ino, new, suits);
        done.or_else(|_| cx.os.set_block_size(ino, new, shift))?;
        now = new;
    }
    if end > now && !now.is_power_of_two() {
        return Err(Error::Corrupt(ino, format!("several blocks of {now} bytes")));
    }
    Ok(())
}

/// A regular file and its size.
fn regular(cx: &mut Cx<'_>, ino: u64) -> Result<(NodeMut, u64)> {
    let node = NodeMut::load(cx, ino)?;
    match node.mode(cx)? & S_IFMT {
        S_IFREG => {}
        S_IFDIR => return Err(Error::IsDir(format!("object {ino}"))),
        _ => return Err(Error::Invalid(format!("object {ino} is not a regular file"))),
    }
    let size = node.required(cx, ZplAttr::Size)?;
    Ok((node, size))
}

/// A regular file that may be changed, and its size.
pub(super) fn writable(cx: &mut Cx<'_>, ino: u64) -> Result<(NodeMut, u64)> {
    let (node, size) = regular(cx, ino)?;
    if node.flags(cx)? & IMMUTABLE != 0 {
        return Err(Error::NotPermitted(format!("object {ino} is immutable")));
    }
    Ok((node, size))
}

/// Fails if whose file it is has no space left.
pub(super) fn check_quota(cx: &mut Cx<'_>, node: &NodeMut) -> Result<()> {
    let id = |attr| node.word(cx, attr).unwrap_or(0);
    let (uid, gid, projid) = (id(ZplAttr::Uid), id(ZplAttr::Gid), id(ZplAttr::ProjId));
    super::quota::check(cx, uid, gid, projid, false)
}

pub(super) fn not_appended<T>(ino: u64) -> Result<T> {
    Err(Error::NotPermitted(format!("object {ino} is append-only")))
}

/// Makes ready a file of `size` bytes for `len` bytes at `offset`.
fn make_room(cx: &mut Cx<'_>, ino: u64, size: u64, offset: u64, len: usize) -> Result<()> {
    let end = offset.saturating_add(len as u64);
    if end > MAX_SIZE {
        return Err(Error::TooLarge(format!("object {ino}")));
    }
    grow(cx, ino, size, size.max(end))
}

/// Writes `data` into a file of `size` bytes; its attributes are for the caller.
pub(super) fn put(cx: &mut Cx<'_>, ino: u64, size: u64, offset: u64, data: &[u8]) -> Result<()> {
    make_room(cx, ino, size, offset, data.len())?;
    Ok(cx.os.write(ino, offset, data)?)
}

/// Logs that a file is at least `end` bytes long from now on.
fn log_extension(cx: &mut Cx<'_>, ino: u64, end: u64) -> Result<()> {
    // If it is that long already nothing is said.
    cx.os.log_nothing();
    if NodeMut::load(cx, ino)?.required(cx, ZplAttr::Size)? < end {
        cx.os.log(Body::Truncate { object: ino, offset: end, length: 0 })?;
    }
    Ok(())
}

/// Logs that a file has a hole. What is past its end is no part of it: a record of that would make it longer.
fn log_hole(cx: &mut Cx<'_>, ino: u64, offset: u64, length: u64) -> Result<()> {
    cx.os.log_nothing();
    let size = NodeMut::load(cx, ino)?.required(cx, ZplAttr::Size)?;
    let length = length.min(size.saturating_sub(offset));
    if length > 0 {
        cx.os.log(Body::Truncate { object: ino, offset, length })?;
    }
    Ok(())
}

/// Makes a file `size` bytes long (`zfs_freesp`, `zfs_trunc`).
pub(super) fn resize(cx: &mut Cx<'_>, node: &mut NodeMut, size: u64) -> Result<()> {
    let ino = node.ino;
    let now = node.required(cx, ZplAttr::Size)?;
    if size < now {
        cx.os.truncate(ino, size)?;
        if size == 0 {
            let flags = node.flags(cx)? & !FLAG_SPARSE;
            node.set(cx, ZplAttr::Flags, &[flags])?;
        }
    } else if size > now {
        grow(cx, ino, now, size)?;
    }
    node.set(cx, ZplAttr::Size, &[size])
}

fn write_chunk(
    cx: &mut Cx<'_>,
    ino: u64,
    offset: Offset,
    chunk: &Chunk<'_>,
    clear_ids: bool,
) -> Result<u64> {
    let len = chunk.data().len();
    let (mut node, size) = writable(cx, ino)?;
    let at = match offset {
        Offset::At(at) => at,
        Offset::End => size,
    };
    if at < size && node.flags(cx)? & APPEND_ONLY != 0 {
        return not_appended(ino);
    }
    check_quota(cx, &node)?;
    make_room(cx, ino, size, at, len)?;
    let end = at + len as u64;
    invariant!(end <= MAX_SIZE, "object {ino}: {len} bytes are written at {at}");
    if end > size {
        node.set(cx, ZplAttr::Size, &[end])?;
    }
    let mode = node.mode(cx)?;
    if clear_ids && without_ids(mode, CONTENTS) != mode {
        set_ids(cx, &mut node, without_ids(mode, CONTENTS))?;
    } else {
        cx.os.log_write(ino, at, len as u64);
    }
    node.modified(cx)?;
    node.store(cx)?;
    cx.os.write_last(ino, at, chunk)?;
    Ok(at)
}

/// Writes what is inside the file.
fn write_back_chunk(cx: &mut Cx<'_>, ino: u64, offset: u64, chunk: &Chunk<'_>) -> Result<()> {
    let (mut node, size) = regular(cx, ino)?;
    let inside = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    let shorter = chunk.data().get(..inside).map(Chunk::uncut);
    let chunk = shorter.as_ref().unwrap_or(chunk);
    if chunk.data().is_empty() {
        return Ok(());
    }
    let len = chunk.data().len() as u64;
    let within = offset.checked_add(len).is_some_and(|end| end <= size);
    invariant!(within, "object {ino} of {size} bytes: {len} are written back at {offset}");
    check_quota(cx, &node)?;
    make_room(cx, ino, size, offset, chunk.data().len())?;
    node.modified(cx)?;
    node.store(cx)?;
    cx.os.log_write(ino, offset, len);
    Ok(cx.os.write_last(ino, offset, chunk)?)
}

/// Makes zeros in a file (`zfs_free_range`).
pub(super) fn zero(
    cx: &mut Cx<'_>,
    ino: u64,
    offset: u64,
    len: u64,
    keep_size: bool,
) -> Result<()> {
    let (mut node, size) = writable(cx, ino)?;
    if node.flags(cx)? & APPEND_ONLY != 0 {
        return not_appended(ino);
    }
    let end = offset.saturating_add(len);
    if offset < size {
        // Up to the end of the file, what is behind is zeros anyway.
        let inside = if end >= size { u64::MAX } else { len };
        cx.os.free_range(ino, offset, inside)?;
    }
    if end > size && !keep_size {
        resize(cx, &mut node, end)?;
    }
    node.modified(cx)?;
    node.store(cx)
}

/// Makes a file at least `end` bytes long (`zfs_extend`).
fn extend(cx: &mut Cx<'_>, ino: u64, end: u64) -> Result<()> {
    let (mut node, size) = writable(cx, ino)?;
    if end > size {
        resize(cx, &mut node, end)?;
        node.modified(cx)?;
        node.store(cx)?;
    }
    Ok(())
}

/// Bytes that a write takes besides its data: a dnode.
pub(super) const DNODE: u64 = 4096;

impl FileSystem {
    /// Largest length of a file in bytes.
    pub fn max_size(&self) -> u64 {
        MAX_SIZE
    }

    /// The blocks of a file, if they can be told; if not, that fails when the change is made.
    fn shape_of(&self, ino: u64) -> Option<Shape> {
        let (block_size, max_block) = self.source.live()?.shape(ino).ok()?;
        Some(Shape { block_size, max_block })
    }

    /// Makes what is going to be written ready, in blocks of the size that the file has, or is going to have.
    fn cut<'d>(
        &self,
        ino: u64,
        shape: Option<Shape>,
        offset: Offset,
        data: &'d [u8],
    ) -> Result<Chunk<'d>> {
        let at = match offset {
            Offset::At(at) => Some(at),
            // A guess: the change looks where the end is then.
            Offset::End => self.attr(ino).ok().map(|attr| attr.size),
        };
        let (Some(live), Some(shape), Some(at)) = (self.source.live(), shape, at) else {
            return Ok(Chunk::uncut(data));
        };
        let end = at.saturating_add(data.len() as u64);
        let block_size = shape.block_size_to(record_size(&self.settings()), end);
        Ok(live.chunk(ino, at, data, block_size)?)
    }

    /// What writing a part of a file takes: whole blocks, of the size that they have or get.
    fn cost_of(&self, shape: Option<Shape>, offset: Offset, chunk: &[u8]) -> Cost {
        let len = chunk.len() as u64;
        let record_size = record_size(&self.settings());
        let Some(live) = self.source.live() else { return Cost::default() };
        let offset = match (offset, shape) {
            (Offset::At(at), _) => at,
            // It may begin anywhere in a block.
            (Offset::End, Some(Shape { block_size, max_block })) => {
                block_size.saturating_mul(max_block.saturating_add(1)).saturating_sub(1)
            }
            (Offset::End, None) => record_size - 1,
        };
        let end = offset.saturating_add(len);
        let block_size = shape.map_or(record_size, |shape| shape.block_size_to(record_size, end));
        let write = live.cost_of_blocks(offset, len, block_size).saturating_add(DNODE);
        Cost { write, objects: 0, frees: false }
    }

    /// What a write of a record in a log takes, at most.
    pub(super) fn cost_of_replay(&self, ino: u64, offset: u64, data: &[u8]) -> Cost {
        self.cost_of(self.shape_of(ino), Offset::At(offset), data)
    }

    fn write_at(&self, ino: u64, offset: Offset, data: &[u8], clear_ids: bool) -> Result<u64> {
        let (mut first, mut done) = (None, 0usize);
        for chunk in data.chunks(CHUNK) {
            let offset = match (first, offset) {
                (Some(first), _) => Offset::At(done as u64 + first),
                (None, offset) => offset,
            };
            let shape = self.shape_of(ino);
            let cost = self.cost_of(shape, offset, chunk);
            let cut = self.cut(ino, shape, offset, chunk)?;
            let at = self.change(cost, |cx| write_chunk(cx, ino, offset, &cut, clear_ids))?;
            let began = *first.get_or_insert(at);
            invariant!(
                at.checked_sub(began) == Some(done as u64),
                "object {ino}: a part of a write from {began} on is at {at}, after {done} bytes"
            );
            done += chunk.len();
        }
        let len = data.len();
        invariant!(done == len, "object {ino}: {done} of {len} bytes are written");
        Ok(first.unwrap_or(0))
    }

    /// Writes at byte `offset`; the file gets longer if need be (`zfs_write`). Up to 16 MiB are written as a whole
    /// or not at all. `clear_ids`: takes away the set-user-id and set-group-id bits, as a write by
    /// someone without privilege does. Returns the bytes written: all.
    ///
    /// Errors: [`Error::TooLarge`] past the [largest length](FileSystem::max_size).
    pub fn write(&self, ino: u64, offset: u64, data: &[u8], clear_ids: bool) -> Result<usize> {
        let at = Offset::At(offset);
        self.source.write_call(|| self.write_at(ino, at, data, clear_ids))?;
        self.io.count_write(data.len() as u64);
        Ok(data.len())
    }

    /// As [`FileSystem::write`], after which the ARC is not given the blocks that were written as a whole (`O_DIRECT`).
    ///
    /// # Errors
    /// As of that.
    pub fn write_directly(
        &self,
        ino: u64,
        offset: u64,
        data: &[u8],
        clear_ids: bool,
    ) -> Result<usize> {
        let written = self.write(ino, offset, data, clear_ids)?;
        let Ok((size, _)) = self.source.live().map_or(Ok((0, 0)), |live| live.shape(ino)) else {
            return Ok(written);
        };
        let end = offset + written as u64;
        // What was written is within a file; where nothing was, any offset may have been given.
        if written > 0 && size > 0 && offset.next_multiple_of(size) < end {
            let blocks = offset.div_ceil(size)..end / size;
            let bytes = (blocks.end - blocks.start) * size;
            if bytes > 0 {
                self.objset().store().wrote_directly((self.source.id(), ino), blocks, bytes);
            }
        }
        Ok(written)
    }

    /// Writes at byte `offset` what was changed in a mapping of the file. It was changed when that
    /// could be, so it is written also if the file system, or the file by its flags, has become read-only
    /// since. The file does not get longer: what is past its end is left out.
    pub fn write_back(&self, ino: u64, offset: u64, data: &[u8]) -> Result<()> {
        for (chunk, at) in data.chunks(CHUNK).zip((offset..).step_by(CHUNK)) {
            let (shape, offset) = (self.shape_of(ino), Offset::At(at));
            let cost = self.cost_of(shape, offset, chunk);
            let cut = self.cut(ino, shape, offset, chunk)?;
            self.change_if_read_only(cost, |cx| write_back_chunk(cx, ino, at, &cut))?;
            self.io.count_write(chunk.len() as u64);
        }
        Ok(())
    }

    /// As [`FileSystem::write`] at the end of the file; returns the offset.
    pub fn append(&self, ino: u64, data: &[u8], clear_ids: bool) -> Result<u64> {
        let at = self.source.write_call(|| self.write_at(ino, Offset::End, data, clear_ids))?;
        self.io.count_write(data.len() as u64);
        Ok(at)
    }

    /// `fallocate` (`zfs_space`). Space cannot be reserved in a file system that never overwrites.
    pub fn allocate(&self, ino: u64, offset: u64, len: u64, what: Allocate) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= MAX_SIZE);
        let Some(end) = end.filter(|_| len > 0) else {
            return match len {
                0 => Err(Error::Invalid("fallocate of nothing".into())),
                _ => Err(Error::TooLarge(format!("object {ino}"))),
            };
        };
        let frees = matches!(what, Allocate::PunchHole | Allocate::Zero | Allocate::ZeroKeepSize);
        let (mut freed, mut left) = (0, end);
        if frees {
            (left, freed) = self.free_chunks(ino, offset..end, |cx, chunk| {
                zero(cx, ino, chunk.start, chunk.end - chunk.start, true)
            })?;
        }
        let left = less!(left, offset, "object {ino}: bytes that are left of a range to be freed");
        let cost = Cost { write: 64 << 10, objects: 0, frees };
        self.change(cost, |cx| {
            cx.os.note_freed(freed);
            match what {
                Allocate::KeepSize => {
                    cx.os.log_nothing();
                    writable(cx, ino).map(drop)
                }
                Allocate::PunchHole | Allocate::ZeroKeepSize => {
                    log_hole(cx, ino, offset, left)?;
                    zero(cx, ino, offset, left, true)
                }
                Allocate::Zero => {
                    log_hole(cx, ino, offset, left)?;
                    log_extension(cx, ino, end)?;
                    zero(cx, ino, offset, len, false)
                }
                Allocate::Extend => {
                    log_extension(cx, ino, end)?;
                    extend(cx, ino, end)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::grown;

    #[test]
    fn blocks_grow_with_the_file() {
        const K: u64 = 1024;
        // One block of whole sectors, up to the record size.
        assert_eq!(grown(512, 128 * K, 0, 100), 512);
        assert_eq!(grown(512, 128 * K, 0, 700), 1024);
        assert_eq!(grown(1536, 128 * K, 1500, 5000), 5120);
        assert_eq!(grown(5120, 128 * K, 5000, 1 << 40), 128 * K);
        // Several blocks, or as large as a record: fixed.
        assert_eq!(grown(128 * K, 128 * K, 128 * K, 1 << 30), 128 * K);
        assert_eq!(grown(8 * K, 128 * K, 9 * K, 1 << 30), 8 * K);
        assert_eq!(grown(128 * K, 1 << 20, 100 * K, 200 * K), 200 * K);
        // Larger than today's records: up to the next power of two.
        assert_eq!(grown(100 * K, 16 * K, 100 * K, 1 << 30), 128 * K);
        assert_eq!(grown(100 * K, 16 * K, 100 * K, 101 * K), 101 * K);
        assert_eq!(grown(64 * K, 16 * K, 10, 1 << 30), 64 * K);
    }
}
