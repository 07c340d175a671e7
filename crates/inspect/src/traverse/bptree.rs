//! Datasets that were destroyed and whose blocks are freed in the background.
//!
//! The object directory's `bptree_obj` is an array of entries (`bptree_entry_phys_t`): the root block
//! pointer of a dataset, the transaction group after which its blocks are its own, and how far the
//! freeing has come. The bonus (`bptree_phys_t`) says which entries count: `begin..end`.

use cenote_dmu::{Error, Object, ObjectSet, Result};
use cenote_dsl::traverse::{DESTROYED, Mark};
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::{ByteOrder, Bytes, DecodeError};
use std::sync::Arc;

/// Bytes of an entry.
const ENTRY: usize = BLKPTR_SIZE + 40;
/// Entries that are believed.
const MAX_ENTRIES: u64 = 1 << 20;

/// A destroyed dataset.
#[derive(Debug, Clone, Copy)]
pub struct Destroyed {
    /// Its object set.
    pub bp: BlockPointer,
    /// Only blocks born after this transaction group are freed.
    pub min_txg: u64,
    /// Blocks before this one are freed already.
    pub resume: Option<Mark>,
}

fn undecodable(object: &Object) -> impl Fn(DecodeError) -> Error {
    let (objset, object) = (object.objset().id(), object.number());
    move |source| Error::Decode { objset, object, source }
}

/// The destroyed datasets in the bptree `number`; datasets of which nothing is left are passed over.
pub fn destroyed(mos: &Arc<ObjectSet>, number: u64) -> Result<Vec<Destroyed>> {
    let object = mos.object(number)?;
    let [begin, end] = object.bonus().u64s(0).map_err(undecodable(&object))?;
    if end.checked_sub(begin).is_none_or(|count| count > MAX_ENTRIES) {
        let why = format!("destroyed datasets from entry {begin} to {end}");
        return Err(Error::Corrupt { objset: mos.id(), object: number, why });
    }
    let order = ByteOrder::Little;
    let mut out = Vec::new();
    let mut entry = [0; ENTRY];
    for i in begin..end {
        // Entries cross blocks.
        let at = i.checked_mul(ENTRY as u64).ok_or_else(|| Error::Corrupt {
            objset: mos.id(),
            object: number,
            why: format!("destroyed datasets up to entry {i}"),
        })?;
        object.read(at, &mut entry)?;
        let entry = decode(&Bytes::new(&entry, order, "block pointer tree"));
        let entry = entry.map_err(undecodable(&object))?;
        if !entry.bp.is_hole() {
            out.push(entry);
        }
    }
    Ok(out)
}

fn decode(b: &Bytes<'_>) -> cenote_format::Result<Destroyed> {
    let [min_txg, objset, object, _, blkid] = b.u64s(BLKPTR_SIZE)?;
    let resume = (objset == DESTROYED).then_some(Mark { object, blkid });
    Ok(Destroyed { bp: BlockPointer::decode(b, 0)?, min_txg, resume })
}
