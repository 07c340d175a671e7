//! Lists of block pointers on disk (`bpobj_t`).
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
//! Invariants of a walk: no bpobj is visited twice, and an entry must lie in a block that is
//! allocated, so that time and memory are bounded by what is stored.

use crate::corrupt;
use cenote_dmu::{Error, Object, ObjectSet, Result};
use cenote_format::Bytes;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dsl::BpobjPhys;
use std::collections::HashSet;
use std::sync::Arc;

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

/// Decodes the header of bpobj `object` of `mos`.
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

/// Calls `f` for every entry of bpobj `object` and of all bpobjs below it. Within one bpobj the
/// newest entries come first, which is the order in which a livelist's frees must be met.
///
/// # Errors
/// Those of `f`, which end the walk; an object that cannot be read; a tree that is no tree.
pub fn iterate(
    mos: &Arc<ObjectSet>,
    object: u64,
    f: &mut dyn FnMut(&BpobjEntry) -> Result<()>,
) -> Result<()> {
    let mut visited = HashSet::new();
    let mut waiting = vec![object];
    while let Some(number) = waiting.pop() {
        if !visited.insert(number) {
            return Err(corrupt(mos, number, "block pointer list is part of itself"));
        }
        let bpobj = mos.object(number)?;
        let phys = header_of(&bpobj)?;
        own_entries(&bpobj, phys.entries, f)?;
        if phys.subobjs != 0 {
            sub_objects(&mos.object(phys.subobjs)?, phys.num_subobjs, &mut waiting)?;
        }
    }
    Ok(())
}

fn own_entries(
    bpobj: &Object,
    count: u64,
    f: &mut dyn FnMut(&BpobjEntry) -> Result<()>,
) -> Result<()> {
    let mut entries = Vec::new();
    for (blkid, in_block) in blocks_backwards(bpobj, count, BLKPTR_SIZE)? {
        entries.clear();
        with_block(bpobj, blkid, |bytes| {
            for i in 0..in_block {
                entries.push(BlockPointer::decode(bytes, i * BLKPTR_SIZE)?);
            }
            Ok(())
        })?;
        for bp in entries.iter().rev() {
            f(&BpobjEntry { bp: *bp, freed: bp.0[11] & 1 != 0, bpobj: bpobj.number() })?;
        }
    }
    Ok(())
}

fn sub_objects(array: &Object, count: u64, out: &mut Vec<u64>) -> Result<()> {
    const WORD: usize = size_of::<u64>();
    for (blkid, in_block) in blocks_backwards(array, count, WORD)? {
        with_block(array, blkid, |bytes| {
            for i in 0..in_block {
                out.push(bytes.u64(i * WORD)?);
            }
            Ok(())
        })?;
    }
    Ok(())
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

fn with_block(
    object: &Object,
    blkid: u64,
    read: impl FnOnce(&Bytes<'_>) -> cenote_format::Result<()>,
) -> Result<()> {
    let Some(block) = object.block(blkid)? else {
        let why = format!("block {blkid} of a list is missing");
        return Err(corrupt(object.objset(), object.number(), why));
    };
    let data = block.data.bytes();
    read(&Bytes::new(&data, block.order, "block pointer list")).map_err(|source| Error::Decode {
        objset: object.objset().id(),
        object: object.number(),
        source,
    })
}
