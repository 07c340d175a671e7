//! Reading ahead of a replay.
//!
//! Most records first read: a write that covers a part of a block needs the block, a name needs the leaf of
//! the directory, everything needs a dnode and the indirect blocks that lead to it. One after another they
//! would be waited for; so before a batch of records is applied, all that they are going to touch is
//! gathered from them, and read by many threads at once into the caches. The bytes of data of a batch
//! are bounded ([`PRIME_MEMORY`]), and so are the threads ([`PRIME_THREADS`]).
//!
//! Many records touch the same blocks: 32 files share a block of dnodes. Threads that wait for one block have no
//! other one read meanwhile. So the first record that touches a block comes before all others
//! ([`Batch::leaders`]).
//!
//! What is read ahead is a hint: an error is left to the change that needs the block, and is not counted. It is read
//! from the object set as it is on disk, where objects that the log itself makes are not found.

use crate::dir::entry_object;
use cenote_dmu::ObjectSet;
use cenote_dmu::zap::Zap;
use cenote_dsl::tunables::PRIME_THREADS;
use cenote_dsl::zil::{ZIL_LEVEL, parallel};
use cenote_format::blkptr::BlockPointer;
use cenote_format::zil::{Body, Record};
use cenote_store::{Bookmark, Priority, Store};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What a record is going to read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Touch {
    /// The dnode, and the spill block.
    Object(u64),
    /// The block at this byte of an object, because a part of it is overwritten.
    Block(u64, u64),
    /// A name in a directory, and the object that has it.
    Name(u64, Vec<u8>),
    /// A block that the log points to.
    Logged(BlockPointer),
}

/// Dnode slots of a block (`DNODES_PER_BLOCK`).
const SLOTS: u64 = 32;
/// Bytes of a block of dnodes (`DNODE_BLOCK_SHIFT`).
const DNODES: u64 = 16 << 10;
/// No block is smaller than this, in most objects.
const UNIT: u64 = 4096;
/// Most objects whose block sizes are remembered.
const MOST_SIZES: usize = 1 << 16;
/// Bytes that a block counts for as long as its size is not known.
const GUESS: u64 = 128 << 10;

impl Touch {
    /// What is told beforehand of the block that is read: touches that are alike in it read the same one.
    fn block(&self) -> Option<(u64, u64)> {
        match self {
            Touch::Object(number) => Some((0, number / SLOTS)),
            Touch::Block(object, at) => Some((*object, at / GUESS)),
            Touch::Name(..) | Touch::Logged(_) => None,
        }
    }
}

/// What a batch of records is going to read.
#[derive(Default)]
pub(super) struct Batch {
    /// Those that are the first to touch a block, as far as can be told, and of unknown blocks.
    leaders: Vec<Touch>,
    followers: Vec<Touch>,
    seen: HashSet<Touch>,
    blocks: HashSet<(u64, u64)>,
    /// Bytes of data, as far as can be told.
    bytes: u64,
    /// Block sizes of objects, as far as they are known.
    sizes: HashMap<u64, u64>,
    /// Those that reading told.
    told: Mutex<HashMap<u64, u64>>,
}

impl Batch {
    /// Takes what it has, and begins the next one.
    pub(super) fn next(&mut self) -> Batch {
        let sizes = self.sizes.clone();
        std::mem::replace(self, Batch { sizes, ..Batch::default() })
    }

    /// Takes over what reading `other` told of objects.
    pub(super) fn learn(&mut self, other: &Batch) {
        let told = std::mem::take(&mut *other.told.lock());
        if self.sizes.len() >= MOST_SIZES {
            self.sizes.clear();
        }
        self.sizes.extend(told);
    }

    /// Bytes of data that are going to be read, as far as can be told.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn touch(&mut self, touch: Touch) {
        if !self.seen.insert(touch.clone()) {
            return;
        }
        let leads = touch.block().is_none_or(|block| self.blocks.insert(block));
        let bytes = match &touch {
            Touch::Object(_) if leads => DNODES,
            Touch::Object(_) => 0,
            Touch::Name(..) => 4096,
            Touch::Block(object, _) => self.sizes.get(object).copied().unwrap_or(GUESS),
            Touch::Logged(bp) => bp.lsize(),
        };
        self.bytes += bytes;
        if leads { self.leaders.push(touch) } else { self.followers.push(touch) }
    }

    fn name(&mut self, dir: u64, name: &[u8]) {
        self.touch(Touch::Object(dir));
        self.touch(Touch::Name(dir, name.to_vec()));
    }

    /// The blocks at both ends of a range, which may be overwritten in part.
    fn range(&mut self, object: u64, offset: u64, length: u64) {
        self.touch(Touch::Object(object));
        let size = self.sizes.get(&object).copied().unwrap_or(UNIT).max(UNIT);
        for at in [offset, offset.saturating_add(length.saturating_sub(1))] {
            self.touch(Touch::Block(object, at / size * size));
        }
    }

    /// Adds what `record` is going to read.
    pub(super) fn add(&mut self, record: &Record<'_>) {
        match &record.body {
            Body::Create(create) => {
                self.name(create.dir, create.name);
                self.touch(Touch::Object(create.new.object));
            }
            Body::Remove { dir, name } | Body::Rmdir { dir, name } => self.name(*dir, name),
            Body::Link { dir, object, name } => {
                self.name(*dir, name);
                self.touch(Touch::Object(*object));
            }
            Body::Rename(rename) => {
                self.name(rename.from_dir, rename.from);
                self.name(rename.to_dir, rename.to);
            }
            Body::Write(write) => {
                self.range(write.object, write.offset, write.length);
                if write.data.is_none() && !write.block.is_hole() {
                    self.touch(Touch::Logged(write.block));
                }
            }
            Body::Truncate { object, offset, length } => self.range(*object, *offset, *length),
            Body::SetAttr(set) => self.touch(Touch::Object(set.object)),
            Body::Write2(write) => self.touch(Touch::Object(write.object)),
            Body::AclV0 { object, .. }
            | Body::Acl { object, .. }
            | Body::SetSaXattr { object, .. } => self.touch(Touch::Object(*object)),
            Body::CloneRange { object, offset, length, blocks, .. } => {
                self.range(*object, *offset, *length);
                blocks.iter().filter(|bp| !bp.is_hole()).for_each(|bp| {
                    self.touch(Touch::Logged(*bp));
                });
            }
        }
    }

    /// Reads all of it, and returns when it is read.
    pub(super) fn read(&mut self, base: &Arc<ObjectSet>) {
        let class = Priority::of_reads();
        let touches: Vec<&Touch> = self.leaders.iter().chain(&self.followers).collect();
        parallel::each(PRIME_THREADS.count(), &touches, |touch| {
            // No leaf is blamed for what is wrong here.
            let read = || Store::attempt(|| read(base, touch, &self.told).unwrap_or(()));
            let ((), _) = class.for_reads(read);
        });
    }
}

fn read(
    base: &Arc<ObjectSet>,
    touch: &Touch,
    told: &Mutex<HashMap<u64, u64>>,
) -> cenote_dmu::Result<()> {
    match touch {
        Touch::Object(number) => base.object(*number)?.spill().map(drop),
        Touch::Block(number, at) => {
            let object = base.object(*number)?;
            let size = object.dnode().block_size.max(1);
            told.lock().insert(*number, size);
            let (level, blkid) = (0, at / size);
            let bp = object.block_pointer(level, blkid)?;
            let at = Bookmark { objset: base.id(), object: *number, level: 0, blkid };
            Ok(base.store().warm(&bp, at)?)
        }
        Touch::Name(dir, name) => {
            let found = Zap::open(&base.object(*dir)?)?.u64(name)?;
            match found.map(entry_object) {
                Some(number) => base.object(number)?.spill().map(drop),
                None => Ok(()),
            }
        }
        Touch::Logged(bp) => {
            let at = Bookmark { objset: base.id(), object: 0, level: ZIL_LEVEL, blkid: 0 };
            Ok(base.store().warm(bp, at)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of many files in a few blocks of dnodes, one of each block comes before all others.
    #[test]
    fn blocks_are_read_side_by_side() {
        let mut batch = Batch::default();
        let names: Vec<String> = (0..96).map(|n| format!("name{n}")).collect();
        for (name, object) in names.iter().zip(SLOTS..) {
            let body = Body::Link { dir: 1, object, name: name.as_bytes() };
            batch.add(&Record { txg: 1, seq: object, ignore_case: false, body });
        }
        let objects = |touches: &[Touch]| -> Vec<u64> {
            let number = |touch: &Touch| match touch {
                Touch::Object(number) => Some(*number),
                _ => None,
            };
            touches.iter().filter_map(number).collect()
        };
        assert_eq!(objects(&batch.leaders), [1, 32, 64, 96]);
        assert_eq!(objects(&batch.followers).len(), 93);
        assert_eq!(batch.leaders.len(), 4 + names.len());
        assert_eq!(batch.bytes(), 4 * DNODES + 96 * 4096);
    }
}
