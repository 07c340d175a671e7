//! Lists of block pointers in the MOS: bpobjs, block pointer trees and deadlists.
//!
//! A *bpobj* (`bpobj_phys_t` in the bonus) is an array of block pointers, perhaps with an object
//! that lists further bpobjs whose entries belong to it. A *bptree* (`bptree_phys_t`) lists the
//! root block pointers of destroyed datasets that are freed in the background. A *deadlist* (also
//! a livelist) is a ZAP of bpobjs.
//!
//! Invariants: a bpobj is visited once however often it is listed; an array is never longer than
//! the blocks that hold it.

use cenote_dmu::zap::Zap;
use cenote_dmu::{Error, Object, ObjectSet, Result};
use cenote_format::Bytes;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dsl::BpobjPhys;
use cenote_store::Bookmark;
use std::collections::HashSet;
use std::sync::Arc;

/// Bit of the fill count of a block pointer in a livelist: the block was freed (`BP_GET_FREE`).
/// Lists keep no fill counts otherwise.
const FREED: u64 = 1;

fn corrupt(object: &Object, why: String) -> Error {
    Error::Corrupt { objset: object.objset().id(), object: object.number(), why }
}

/// Calls `f` with each of the first `count` records of `size` bytes in `object`. Records do not
/// cross blocks (`size` divides the block size).
fn for_each_record(
    object: &Object,
    size: usize,
    first: u64,
    end: u64,
    f: &mut dyn FnMut(&Bytes<'_>) -> Result<()>,
) -> Result<()> {
    let per_block = (object.dnode().block_size / size as u64).max(1);
    let mut at = first;
    while at < end {
        let blkid = at / per_block;
        let Some(block) = object.block(blkid)? else {
            return Err(corrupt(object, format!("block {blkid} of the list is a hole")));
        };
        let data = block.data.bytes();
        let bytes = Bytes::new(&data, block.order, "list");
        let stop = ((blkid + 1).saturating_mul(per_block)).min(end);
        for i in at..stop {
            let from = (i % per_block) as usize * size;
            let record = bytes.sub(from, size, "list entry");
            f(&record.map_err(|e| corrupt(object, e.to_string()))?)?;
        }
        at = stop;
    }
    Ok(())
}

fn header(object: &Object) -> Result<BpobjPhys> {
    BpobjPhys::decode(&object.bonus()).map_err(|e| corrupt(object, e.to_string()))
}

/// Calls `f(block pointer, freed)` with every entry of bpobj `number` and of the bpobjs below it.
/// `freed` is set for the entries of a livelist that cancel an earlier one.
pub fn for_each(
    mos: &Arc<ObjectSet>,
    number: u64,
    f: &mut dyn FnMut(&BlockPointer, bool) -> Result<()>,
) -> Result<()> {
    let mut seen = HashSet::new();
    let mut todo = vec![number];
    while let Some(number) = todo.pop() {
        if !seen.insert(number) {
            continue;
        }
        let object = mos.object(number)?;
        let phys = header(&object)?;
        for_each_record(&object, BLKPTR_SIZE, 0, phys.entries, &mut |b| {
            let bp = BlockPointer::decode(b, 0).map_err(|e| corrupt(&object, e.to_string()))?;
            let mut plain = bp;
            plain.0[11] &= !FREED;
            f(&plain, bp.0[11] & FREED != 0)
        })?;
        if phys.subobjs != 0 {
            let list = mos.object(phys.subobjs)?;
            for_each_record(&list, 8, 0, phys.num_subobjs, &mut |b| {
                todo.push(b.u64(0).map_err(|e| corrupt(&list, e.to_string()))?);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Blocks that a livelist's bpobj has as allocated and not as freed.
pub fn live_blocks(mos: &Arc<ObjectSet>, number: u64) -> Result<Vec<BlockPointer>> {
    let mut entries = Vec::new();
    for_each(mos, number, &mut |bp, freed| {
        entries.push((*bp, freed));
        Ok(())
    })?;
    // A block's entries are told apart by where it is and when it was written.
    let key = |bp: &BlockPointer| (bp.0[0], bp.0[1], bp.0[10]);
    let mut frees = std::collections::HashMap::new();
    for (bp, _) in entries.iter().filter(|e| e.1) {
        *frees.entry(key(bp)).or_insert(0u64) += 1;
    }
    let mut live = Vec::new();
    for (bp, _) in entries.iter().filter(|e| !e.1) {
        match frees.get_mut(&key(bp)) {
            Some(n) if *n > 0 => *n -= 1,
            _ => live.push(*bp),
        }
    }
    Ok(live)
}

/// The bpobjs of deadlist (or livelist) `number`: `(birth txg, bpobj)`, sorted.
pub fn deadlist(mos: &Arc<ObjectSet>, number: u64) -> Result<Vec<(u64, u64)>> {
    let object = mos.object(number)?;
    let mut out = Vec::new();
    for entry in Zap::open(&object)?.entries()? {
        let txg =
            std::str::from_utf8(&entry.name).ok().and_then(|s| u64::from_str_radix(s, 16).ok());
        let (Some(txg), Some(bpobj)) = (txg, entry.u64()) else {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            return Err(corrupt(&object, format!("deadlist entry {name:?}")));
        };
        out.push((txg, bpobj));
    }
    out.sort_unstable();
    Ok(out)
}

/// A destroyed dataset whose blocks are freed in the background (`bptree_entry_phys_t`).
#[derive(Debug, Clone)]
pub struct Destroyed {
    /// Its object set.
    pub bp: BlockPointer,
    /// Only blocks born after this transaction group are freed.
    pub min_txg: u64,
    /// Blocks before this one are freed already.
    pub resume: Bookmark,
}

/// The destroyed datasets in the bptree `number`.
pub fn destroyed(mos: &Arc<ObjectSet>, number: u64) -> Result<Vec<Destroyed>> {
    const ENTRY: usize = BLKPTR_SIZE + 40;
    let object = mos.object(number)?;
    let [begin, end] = object.bonus().u64s(0).map_err(|e| corrupt(&object, e.to_string()))?;
    let mut out = Vec::new();
    let mut entry = [0; ENTRY];
    // Entries cross blocks. They are few: one per dataset that is being destroyed.
    if end.saturating_sub(begin) > 1 << 20 {
        return Err(corrupt(&object, format!("{} destroyed datasets", end - begin)));
    }
    let order = object.block(0)?.map_or(object.order(), |b| b.order);
    for i in begin..end {
        object.read(i.saturating_mul(ENTRY as u64), &mut entry)?;
        let b = Bytes::new(&entry, order, "block pointer tree");
        let decode = || -> cenote_format::Result<Destroyed> {
            let [min_txg, objset, object, level, blkid] = b.u64s(BLKPTR_SIZE)?;
            let resume = Bookmark { objset, object, level: level as i64, blkid };
            Ok(Destroyed { bp: BlockPointer::decode(&b, 0)?, min_txg, resume })
        };
        out.push(decode().map_err(|e| corrupt(&object, e.to_string()))?);
    }
    Ok(out)
}
