//! Lists of block pointers on disk (`bpobj_t`, `bpobj_iterate`).
//!
//! A bpobj is an object whose data is an array of block pointers; its bonus buffer holds the
//! number of entries and sums of their sizes. A bpobj may also take over others whole: the
//! numbers of these sub-objects form the data of a second object. So a list is a tree:
//!
//! ```text
//! bpobj ── data: [bp, bp, bp, …]
//!   └ subobjs ── data: [object, object, …] ── bpobj ── …
//! ```
//!
//! Deadlists, livelists, the lists of deferred and asynchronous frees, and obsolete mappings of
//! removed devices are all bpobjs. In a livelist the lowest bit of an entry's fill count says
//! that the entry stands for a free.
//!
//! Invariants of a walk: no bpobj is visited twice, an entry lies in a block that is allocated,
//! and no more blocks are read than the pool's devices can hold; so time and memory are bounded.

use crate::{bounds, corrupt};
use cenote_dmu::{Error, Object, ObjectSet, Result};
use cenote_format::Bytes;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dsl::BpobjPhys;
use std::collections::HashSet;
use std::sync::Arc;

/// Bytes of an entry in a list of sub-objects.
const WORD: usize = size_of::<u64>();
/// Word of a block pointer that holds its fill count.
const FILL: usize = 11;
/// Bit of the fill count: the entry of a livelist stands for a free (`BP_GET_FREE`).
pub(crate) const FREED: u64 = 1;

/// What a walk tells about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BpobjEntry {
    /// The block pointer, as it was when it was put on the list.
    pub bp: BlockPointer,
    /// In a livelist: the entry cancels an allocation of the same block.
    pub freed: bool,
    /// The bpobj that holds the entry.
    pub bpobj: u64,
}

/// Decodes the header of bpobj `object` of `mos` (`bpobj_open`).
pub fn header(mos: &Arc<ObjectSet>, object: u64) -> Result<BpobjPhys> {
    header_of(&mos.object(object)?)
}

fn header_of(object: &Object) -> Result<BpobjPhys> {
    BpobjPhys::decode(&object.bonus()).map_err(|source| Error::Decode {
        objset: object.objset().id(),
        object: object.number(),
        source,
    })
}

/// Calls `f` for every entry of bpobj `object` and of all bpobjs below it (`bpobj_iterate_nofree`). Within one bpobj the
/// newest entries come first, which is the order in which a livelist's frees must be met.
///
/// # Errors
/// Errors of `f`, which end the walk; an object that cannot be read; a tree that is no tree.
pub fn iterate(
    mos: &Arc<ObjectSet>,
    object: u64,
    f: &mut dyn FnMut(&BpobjEntry) -> Result<()>,
) -> Result<()> {
    let mut walk = Walk::new(mos, object);
    while let Some(number) = walk.waiting.pop() {
        let bpobj = mos.object(number)?;
        let phys = header_of(&bpobj)?;
        walk.own_entries(&bpobj, phys.entries, f)?;
        if phys.subobjs != 0 {
            walk.sub_objects(&mos.object(phys.subobjs)?, phys.num_subobjs)?;
        }
    }
    Ok(())
}

/// A walk and what it may still cost: see [`bounds`].
struct Walk<'a> {
    mos: &'a Arc<ObjectSet>,
    waiting: Vec<u64>,
    seen: HashSet<u64>,
    blocks_left: u64,
    objects_left: u64,
}

impl<'a> Walk<'a> {
    fn new(mos: &'a Arc<ObjectSet>, object: u64) -> Self {
        Walk {
            mos,
            waiting: vec![object],
            seen: HashSet::from([object]),
            blocks_left: bounds::max_blocks(mos),
            objects_left: bounds::max_objects(mos),
        }
    }

    fn own_entries(
        &mut self,
        bpobj: &Object,
        count: u64,
        f: &mut dyn FnMut(&BpobjEntry) -> Result<()>,
    ) -> Result<()> {
        let mut entries = Vec::new();
        for (blkid, in_block) in blocks_backwards(bpobj, count, BLKPTR_SIZE)? {
            entries.clear();
            self.with_block(bpobj, blkid, |bytes| {
                for i in 0..in_block {
                    entries.push(BlockPointer::decode(bytes, i * BLKPTR_SIZE)?);
                }
                Ok(())
            })?;
            for bp in entries.iter().rev() {
                f(&BpobjEntry { bp: *bp, freed: bp.0[FILL] & FREED != 0, bpobj: bpobj.number() })?;
            }
        }
        Ok(())
    }

    fn sub_objects(&mut self, array: &Object, count: u64) -> Result<()> {
        let mut numbers = Vec::new();
        for (blkid, in_block) in blocks_backwards(array, count, WORD)? {
            numbers.clear();
            self.with_block(array, blkid, |bytes| {
                for i in 0..in_block {
                    numbers.push(bytes.u64(i * WORD)?);
                }
                Ok(())
            })?;
            for number in &numbers {
                self.objects_left = match self.objects_left.checked_sub(1) {
                    Some(left) if self.seen.insert(*number) => left,
                    Some(_) => {
                        return Err(corrupt(self.mos, *number, "listed twice in a list of blocks"));
                    }
                    None => return Err(corrupt(self.mos, *number, "too many lists of blocks")),
                };
                self.waiting.push(*number);
            }
        }
        Ok(())
    }

    fn with_block(
        &mut self,
        object: &Object,
        blkid: u64,
        read: impl FnOnce(&Bytes<'_>) -> cenote_format::Result<()>,
    ) -> Result<()> {
        let bad = |why: String| Err(corrupt(self.mos, object.number(), why));
        let Some(left) = self.blocks_left.checked_sub(1) else {
            return bad("the list has more blocks than the pool".into());
        };
        let Some(block) = object.block(blkid)? else {
            return bad(format!("block {blkid} of the list is missing"));
        };
        self.blocks_left = left;
        let data = block.data.bytes();
        let read = read(&Bytes::new(&data, block.order, "block pointer list"));
        read.map_err(|source| Error::Decode {
            objset: self.mos.id(),
            object: object.number(),
            source,
        })
    }
}

/// The data blocks that hold the first `count` items of `size` bytes, last one first, with the
/// number of items in each.
fn blocks_backwards(
    object: &Object,
    count: u64,
    size: usize,
) -> Result<impl Iterator<Item = (u64, usize)> + use<>> {
    let dnode = object.dnode();
    let per_block = dnode.block_size / size as u64;
    let blocks = if per_block == 0 { 0 } else { count.div_ceil(per_block) };
    if per_block == 0 || (blocks > 0 && blocks - 1 > dnode.max_block) {
        let why = format!("{count} items of {size} bytes do not fit into the object");
        return Err(corrupt(object.objset(), object.number(), why));
    }
    Ok((0..blocks).rev().map(move |blkid| {
        let rest = count - blkid * per_block;
        (blkid, rest.min(per_block) as usize)
    }))
}
