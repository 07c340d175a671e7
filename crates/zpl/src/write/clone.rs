//! Copying ranges of files, by cloning where that can be (`zfs_clone_range`, `zfs_log_clone_range`).
//!
//! # Idea
//!
//! Whole blocks are not copied: the file gets pointers to the blocks that the source has, and the pool counts
//! one reference more to each (feature `block_cloning`). Many blocks are one change. What cannot be cloned is
//! read and written: where the sizes of blocks differ, at ends that are not ends of blocks, where the
//! pool has not the feature, where a block is divided, where the datasets have different keys.
//!
//! Before the change it is seen whether the references can be added: a group in which they could not would
//! fail as a whole. So a block reference table that cannot be read fails the clone.
//!
//! Blocks that were changed in a transaction group that is not on disk have no pointers yet. With
//! `zfs_bclone_wait_dirty` that is waited for.
//!
//! # Invariants
//!
//! - Size and pointers of the source are of one moment of the transaction group in which the clone is made.
//! - The blocks that are cloned are those that were checked before.
//! - What is past the end of the file in its last block is zeros: a last block that is not whole is cloned
//!   only if the source ends with it, and the file does too then.

use super::context::Cx;
use super::data::{DNODE, MAX_SIZE, check_quota, not_appended, writable};
use super::flags::APPEND_ONLY;
use super::node::NodeMut;
use crate::bits::{S_IFMT, S_IFREG};
use crate::fs::FileSystem;
use crate::sa::ZplAttr;
use crate::znode::Znode;
use crate::{Error, File, Result};
use cenote_dmu::live::Cost;
use cenote_dmu::tunables::{BCLONE_ENABLED, BCLONE_WAIT_DIRTY};
use cenote_dmu::write::{ClonePointers, NotClonable, indirect_shift};
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::invariant::broken;
use cenote_format::zil::Body;
use cenote_format::{SECTOR, invariant, less};
use std::sync::Arc;

/// Bytes that are copied at once.
const COPY: u64 = 4 << 20;
/// Bytes after which a call returns that had to copy.
const MAX_COPIED: u64 = 16 << 20;
/// Most blocks that are cloned in one transaction: as many pointers as fit a record of the intent log.
const MAX_BLOCKS: u64 = 1000;
/// What a cloned block counts for: its entry in a table of references.
pub(super) const ENTRY: u64 = 4096;
/// How often a call waits for blocks that were changed.
const WAITS: u32 = 3;

/// A file and a place in it: object number and offset.
pub type At = (u64, u64);

/// The source as it is when a clone is made.
struct Seen {
    size: u64,
    block_size: u64,
    /// From the block with the first byte on.
    pointers: ClonePointers,
}

/// Where the blocks are to which references can be added.
struct Checked(Vec<Option<Dva>>);

impl Checked {
    fn is_for(&self, seen: &Seen) -> bool {
        self.0 == places(seen)
    }
}

/// Where blocks that may be cloned are; tables know them by that.
fn places(seen: &Seen) -> Vec<Option<Dva>> {
    let blocks = seen.pointers.as_deref().unwrap_or_default();
    blocks.iter().map(|bp| bp.dva(0)).collect()
}

/// What became of an attempt to clone.
enum Outcome {
    /// So many bytes were cloned.
    Cloned(u64),
    /// Blocks are not on disk yet, or were others a moment ago.
    Dirty,
    /// Something among these blocks is not cloned.
    Not,
    /// These files, or places in them, do not suit each other.
    Never,
}

impl Seen {
    /// How many bytes can be cloned of `len`, from `offset` of the source to `to` in a file that is `size`
    /// bytes long and has blocks of `now` bytes, of which `several` is whether there is more than one. `None`:
    /// the places do not suit.
    fn bytes(
        &self,
        (offset, to, len): (u64, u64, u64),
        (size, now, several): (u64, u64, bool),
        record_size: u64,
    ) -> Option<u64> {
        let block = self.block_size;
        let left = self.size.checked_sub(offset)?;
        let mut len = len.min(left);
        let grows = block != now;
        if block < now || grows && (several || size > now) {
            return None;
        }
        let aligned = offset.is_multiple_of(block) && to.is_multiple_of(block);
        if !aligned || to != 0 && !block.is_power_of_two() {
            return None;
        }
        if !len.is_multiple_of(block) && (len < left || to.checked_add(len)? < size) {
            len -= len % block;
        }
        // A file of one small block would get several of them, and keep their size for good.
        let stuck = len <= block && block < record_size && size <= block;
        if len == 0 || stuck && to.checked_add(len)? > block {
            return None;
        }
        Some(len)
    }
}

/// Makes blocks of file `ino`, from byte `to` on, clones of what was seen.
fn clone_seen(
    cx: &mut Cx<'_>,
    seen: &Seen,
    ino: u64,
    (offset, to, len): (u64, u64, u64),
) -> Result<Outcome> {
    // Whatever is found out to be impossible changes nothing.
    cx.os.log_nothing();
    let (node, size) = writable(cx, ino)?;
    if to < size && node.flags(cx)? & APPEND_ONLY != 0 {
        return not_appended(ino);
    }
    check_quota(cx, &node)?;
    let record_size = cx.settings.record_size.clamp(SECTOR, cenote_format::MAX_BLOCK);
    let dnode = cx.os.dnode(ino)?;
    let place = (size, dnode.block_size, dnode.max_block != 0);
    let Some(len) = seen.bytes((offset, to, len), place, record_size) else {
        return Ok(Outcome::Never);
    };
    let end = to.checked_add(len).filter(|end| *end <= MAX_SIZE);
    let end = end.ok_or_else(|| Error::TooLarge(format!("object {ino}")))?;
    let block = seen.block_size;
    let pointers = match &seen.pointers {
        Ok(pointers) => pointers.get(..len.div_ceil(block) as usize).unwrap_or_default(),
        Err(NotClonable::Dirty) => return Ok(Outcome::Dirty),
        Err(NotClonable::Kind) => return Ok(Outcome::Not),
    };
    if pointers.is_empty() || pointers.iter().any(|bp| !bp.is_hole() && bp.lsize() != block) {
        return Ok(Outcome::Not);
    }
    put_clones(cx, node, (to, end, size), block, pointers)?;
    let (object, offset, length, block_size) = (ino, to, len, block);
    let blocks = pointers.to_vec();
    cx.os.log(Body::CloneRange { object, offset, length, block_size, blocks })?;
    Ok(Outcome::Cloned(len))
}

/// Gives a file of `size` bytes these pointers, to blocks of `block` bytes, from byte `to` on; it is `end` bytes
/// long at least then.
///
/// Errors: it has blocks of another size, and more than one.
pub(super) fn put_clones(
    cx: &mut Cx<'_>,
    mut node: NodeMut,
    (to, end, size): (u64, u64, u64),
    block: u64,
    pointers: &[BlockPointer],
) -> Result<()> {
    let (ino, count) = (node.ino, pointers.len() as u64);
    let len = less!(end, to, "object {ino}: the end of what is cloned");
    invariant!(
        block > 0 && to.is_multiple_of(block) && len.div_ceil(block) == count,
        "object {ino}: {count} blocks of {block} bytes are cloned to {to}-{end}"
    );
    // What is past the end in the last block is zeros.
    invariant!(
        len.is_multiple_of(block) || end >= size,
        "object {ino} of {size} bytes: its last block is cloned to {to}-{end}"
    );
    let dnode = cx.os.dnode(ino)?;
    let (now, shift, flat) = (dnode.block_size, dnode.indirect_shift, dnode.levels == 1);
    if block != now {
        let suits = if flat { indirect_shift(block) } else { shift };
        let done = cx.os.set_block_size(ino, block, suits);
        done.or_else(|_| cx.os.set_block_size(ino, block, shift))?;
    }
    if end > size {
        node.set(cx, ZplAttr::Size, &[end])?;
    }
    node.modified(cx)?;
    node.store(cx)?;
    Ok(cx.os.clone_blocks(ino, to / block, pointers)?)
}

impl FileSystem {
    /// Whether two file systems are of one pool, so that blocks of one can be cloned into the other.
    pub fn is_in_pool_of(&self, other: &FileSystem) -> bool {
        Arc::ptr_eq(self.source.base().store(), other.source.base().store())
    }

    /// Copies within the file system: see [`FileSystem::copy_range_from`].
    pub fn copy_range(
        &self,
        from: u64,
        from_offset: u64,
        to: u64,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.copy_range_from(self, (from, from_offset), (to, to_offset), len)
    }

    /// Copies a range of a file of `source`, which is this file system or another one, to a file of this one;
    /// clones blocks where that can be. Returns the bytes copied, fewer than asked for at the end of the
    /// source, before an error, and where much had to be copied.
    ///
    /// A snapshot, or a file system that is not live, must be kept from being destroyed meanwhile.
    ///
    /// Errors: [`Error::Invalid`] if the ranges overlap.
    pub fn copy_range_from(&self, source: &FileSystem, from: At, to: At, len: u64) -> Result<u64> {
        let file = source.open_file(from.0)?;
        // What the copy itself adds to the file is not copied.
        let len = len.min(file.length()?.saturating_sub(from.1));
        let same = from.0 == to.0 && self.source.id() == source.source.id();
        if same && from.1.abs_diff(to.1) < len {
            return Err(Error::Invalid("ranges overlap".into()));
        }
        let mut clones = self.may_clone_from(source);
        let (mut done, mut copied, mut waits) = (0u64, 0u64, 0);
        while done < len && copied < MAX_COPIED {
            let at = |(ino, offset): At| (ino, offset.saturating_add(done));
            let (from, to, left) = (at(from), at(to), len - done);
            let step = match clones {
                true => self.clone_some(source, from, to, left),
                false => Ok(Outcome::Never),
            };
            let step = match step {
                Ok(Outcome::Cloned(n)) => Ok(n),
                Ok(Outcome::Dirty) if BCLONE_WAIT_DIRTY.is_on() && waits < WAITS => {
                    waits += 1;
                    match self.source.live().map_or(Ok(()), |live| live.wait_before_change()) {
                        Ok(()) => continue,
                        Err(e) => Err(e.into()),
                    }
                }
                Ok(other) => {
                    clones &= !matches!(other, Outcome::Never);
                    let n = self.copy_some(&file, from.1, to, left);
                    n.inspect(|n| copied += *n)
                }
                Err(e) => Err(e),
            };
            match step {
                Ok(0) => break,
                Ok(n) => {
                    invariant!(n <= left, "object {}: {n} bytes of {left} are copied", to.0);
                    done += n;
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies a range of a file, wherever that is from, by reading and writing it. Returns the bytes copied.
    pub fn copy_data_from(&self, file: &File, offset: u64, to: At, len: u64) -> Result<u64> {
        let mut done = 0u64;
        while done < len {
            let at = (to.0, to.1.saturating_add(done));
            let left = less!(len, done, "object {}: bytes that are copied", to.0);
            match self.copy_some(file, offset.saturating_add(done), at, left)? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    fn may_clone_from(&self, source: &FileSystem) -> bool {
        BCLONE_ENABLED.is_on()
            && self.source.live().is_some_and(|live| live.counts_references())
            && self.is_in_pool_of(source)
            && self.has_key_of(source)
    }

    /// Whether blocks of one mean the same in the other: neither is encrypted, or both are with one key
    /// (`dmu_objset_crypto_key_equal`), as snapshots and clones are. Plain blocks would lie unprotected among encrypted ones.
    fn has_key_of(&self, source: &FileSystem) -> bool {
        let key = |fs: &FileSystem| fs.source.base().store().keys().of(fs.source.id());
        match (self.is_encrypted(), source.is_encrypted()) {
            (false, false) => true,
            (true, true) => match (key(self), key(source)) {
                (Some(a), Some(b)) => a.id() == b.id() || a.key().is_same(b.key()),
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether its dataset is encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        self.source.base().root_bp().uses_crypt()
    }

    /// Copies some bytes by reading and writing them.
    fn copy_some(&self, file: &File, offset: u64, to: At, len: u64) -> Result<u64> {
        let mut buf = vec![0; usize::try_from(len.min(COPY)).unwrap_or(0)];
        let n = file.read(offset, &mut buf)?;
        let Some(read) = buf.get(..n) else {
            broken(format_args!("object {}: {n} bytes are read of {}", to.0, buf.len()))
        };
        self.write(to.0, to.1, read, false).map(|n| n as u64)
    }

    /// Clones as much as one transaction takes.
    fn clone_some(
        &self,
        source: &FileSystem,
        (from, offset): At,
        (ino, to): At,
        len: u64,
    ) -> Result<Outcome> {
        let look = || source.seen(from, offset, len);
        // Blocks are not smaller than this.
        let blocks = (len / SECTOR).min(MAX_BLOCKS) + 1;
        let write = DNODE + blocks * ENTRY;
        let cost = Cost { write, objects: 0, frees: false };
        if self.settings().read_only {
            return Err(Error::ReadOnly);
        }
        let checked = self.check_references(look)?;
        let done = self.change_after(cost, look, |seen, cx| {
            if !checked.is_for(seen) {
                return Ok(Outcome::Dirty);
            }
            let most = seen.block_size * MAX_BLOCKS;
            clone_seen(cx, seen, ino, (offset, to, len.min(most)))
        })?;
        if let Outcome::Cloned(n) = done {
            self.io.count_write(n);
        }
        Ok(done)
    }

    /// Whether references can be added to what is seen of a file to be cloned.
    ///
    /// Errors: a block reference table cannot be read.
    fn check_references(&self, look: impl FnMut() -> Result<Seen>) -> Result<Checked> {
        let live = self.source.live().ok_or(Error::ReadOnly)?;
        let seen = live.retry(look)?;
        if let Ok(blocks) = &seen.pointers {
            live.check_references(blocks)?;
        }
        Ok(Checked(places(&seen)))
    }

    /// Looks at a file to be cloned, from within the change that clones it.
    fn seen(&self, ino: u64, offset: u64, len: u64) -> Result<Seen> {
        let registry = self.registry().map(|registry| registry.current());
        let node = Znode::open(self.source.look_from_a_change(ino)?, registry)?;
        if node.mode()? & S_IFMT != S_IFREG {
            return Err(Error::Invalid(format!("object {ino} is not a regular file")));
        }
        let size = node.required(ZplAttr::Size)?;
        let object = node.object();
        let block_size = object.dnode().block_size.max(1);
        let len = len.min(size.saturating_sub(offset));
        let count = len.div_ceil(block_size).min(MAX_BLOCKS);
        let pointers = object.clone_pointers(offset / block_size, count)?;
        Ok(Seen { size, block_size, pointers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1024;

    fn seen(size: u64, block_size: u64) -> Seen {
        Seen { size, block_size, pointers: Ok(Vec::new()) }
    }

    #[test]
    fn whole_blocks_are_cloned_and_last_blocks_where_both_files_end() {
        let (source, new) = (seen(300 * K, 128 * K), (0, 512, false));
        let bytes = |place, file| source.bytes(place, file, 128 * K);
        assert_eq!(bytes((0, 0, u64::MAX), new), Some(300 * K));
        assert_eq!(bytes((0, 0, 200 * K), new), Some(128 * K));
        assert_eq!(bytes((256 * K, 0, 44 * K), new), Some(44 * K));
        // The file goes on: the last block is not its last one.
        let longer = (400 * K, 128 * K, true);
        assert_eq!(bytes((0, 0, 300 * K), longer), Some(256 * K));
        assert_eq!(bytes((256 * K, 256 * K, 44 * K), longer), None);
        assert_eq!(bytes((256 * K, 384 * K, 44 * K), longer), Some(44 * K));
        // Places that are not the starts of blocks, and the end.
        assert_eq!(bytes((K, 0, 200 * K), new), None);
        assert_eq!(bytes((0, K, 200 * K), new), None);
        assert_eq!(bytes((301 * K, 0, 1), new), None);
        assert_eq!(bytes((300 * K, 0, 1), new), None);
    }

    #[test]
    fn sizes_of_blocks_have_to_suit() {
        let bytes = |source: Seen, place, file| source.bytes(place, file, 128 * K);
        let all = (0, 0, u64::MAX);
        // Larger blocks stay, smaller ones grow while there is one.
        assert_eq!(bytes(seen(20 * K, 8 * K), all, (0, 128 * K, false)), None);
        assert_eq!(bytes(seen(20 * K, 8 * K), all, (4 * K, 4 * K, false)), Some(20 * K));
        assert_eq!(bytes(seen(20 * K, 8 * K), all, (9 * K, 4 * K, true)), None);
        assert_eq!(bytes(seen(20 * K, 8 * K), all, (5 * K, 4 * K, false)), None);
        // One block of an odd size has its place at the beginning only.
        assert_eq!(bytes(seen(3 * K, 3 * K), all, (0, 512, false)), Some(3 * K));
        assert_eq!(bytes(seen(3 * K, 3 * K), (0, 3 * K, u64::MAX), (3 * K, 3 * K, false)), None);
        // A file would be of small blocks for good.
        assert_eq!(bytes(seen(4 * K, 4 * K), (0, 4 * K, 4 * K), (4 * K, 4 * K, false)), None);
        assert_eq!(
            seen(4 * K, 4 * K).bytes((0, 4 * K, 4 * K), (4 * K, 4 * K, false), 4 * K),
            Some(4 * K)
        );
    }
}
