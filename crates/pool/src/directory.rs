//! The MOS's object directory (`DMU_POOL_DIRECTORY_OBJECT`): the ZAP (object 1) through which everything else is found, and the
//! plain forms of what its entries lead to: packed nvlists, arrays of integers.

use cenote_dmu::zap::{Zap, ZapEntry};
use cenote_dmu::{Error, Object, ObjectSet, Result};
use cenote_format::dmu::DmuType;
use cenote_format::nvlist::NvList;
use cenote_format::{Bytes, DecodeError};
use std::sync::Arc;

/// Object number of the object directory (`DMU_POOL_DIRECTORY_OBJECT`).
const DIRECTORY_OBJECT: u64 = 1;

/// Longest packed nvlist that is read: the config of a pool of ten thousand devices takes a tenth
/// of it.
const MAX_PACKED: u64 = 64 << 20;

/// The open object directory of a MOS.
pub struct Directory {
    mos: Arc<ObjectSet>,
    zap: Zap,
}

impl Directory {
    /// Opens object 1 of the MOS.
    pub fn open(mos: &Arc<ObjectSet>) -> Result<Directory> {
        let object = mos.object(DIRECTORY_OBJECT)?;
        Ok(Directory { zap: Zap::open(&object)?, mos: mos.clone() })
    }

    /// The entry `name`.
    pub fn entry(&self, name: &str) -> Result<Option<ZapEntry>> {
        self.zap.lookup(name.as_bytes())
    }

    /// The names of all entries.
    pub fn names(&self) -> Result<Vec<Vec<u8>>> {
        Ok(self.zap.entries()?.into_iter().map(|e| e.name).collect())
    }

    /// The integer `name`.
    pub fn u64(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.entry(name)?.and_then(|e| e.u64()))
    }

    /// The words of the entry `name`: a structure made of 64-bit integers.
    pub fn words(&self, name: &str) -> Result<Option<Vec<u64>>> {
        match self.entry(name)? {
            None => Ok(None),
            Some(entry) if entry.int_size == 8 => Ok(Some(entry.value)),
            Some(entry) => {
                Err(self.corrupt(format!("{name}: integers of {} bytes", entry.int_size)))
            }
        }
    }

    /// What the entry `name` says, by `decode`, where the pool goes on without it: one that makes no sense counts as none, and the
    /// log is told.
    ///
    /// # Errors
    /// The object directory cannot be read.
    pub fn dispensable<T>(
        &self,
        name: &str,
        decode: impl FnOnce(&[u64]) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(entry) = self.entry(name)? else { return Ok(None) };
        let found = Some(&entry.value).filter(|_| entry.int_size == 8).and_then(|w| decode(w));
        if found.is_none() {
            tracing::warn!(
                "the entry {name} of the object directory makes no sense: it counts as none"
            );
        }
        Ok(found)
    }

    /// The object that the integer `name` names.
    pub fn object_of(&self, name: &str) -> Result<Option<Object>> {
        match self.u64(name)? {
            None | Some(0) => Ok(None),
            Some(n) => self.mos.object(n).map(Some),
        }
    }

    /// The ZAP that the integer `name` names.
    pub fn zap_of(&self, name: &str) -> Result<Option<Zap>> {
        self.object_of(name)?.map(|o| Zap::open(&o)).transpose()
    }

    /// The packed nvlist that the integer `name` names.
    pub fn nvlist_of(&self, name: &str) -> Result<Option<NvList>> {
        self.object_of(name)?.map(|o| packed_nvlist(&o)).transpose()
    }

    /// The error that an entry makes no sense.
    pub fn corrupt(&self, why: String) -> Error {
        Error::Corrupt { objset: self.mos.id(), object: DIRECTORY_OBJECT, why }
    }

    /// Uses of the feature `guid`; `None` if it is disabled or the pool has no features.
    pub fn feature_uses(&self, guid: &str) -> Result<Option<u64>> {
        for list in ["features_for_write", "features_for_read"] {
            if let Some(zap) = self.zap_of(list)?
                && let Some(uses) = zap.u64(guid.as_bytes())?
            {
                return Ok(Some(uses));
            }
        }
        Ok(None)
    }
}

/// The first `count` 64-bit integers in object `number`, each in the byte order of its block;
/// zeros in holes and past the end. The caller bounds `count`.
pub fn read_array(mos: &Arc<ObjectSet>, number: u64, count: u64) -> Result<Vec<u64>> {
    let mut out = Vec::new();
    for_each_word(mos, number, count, &mut |word| {
        out.push(word);
        Ok(())
    })?;
    out.resize(count as usize, 0);
    Ok(out)
}

/// Calls `each` with the first `count` 64-bit integers in object `number`, as far as that reaches; a block is in memory at a time.
///
/// # Errors
/// Those of `each`; a block cannot be read.
pub(crate) fn for_each_word(
    mos: &Arc<ObjectSet>,
    number: u64,
    count: u64,
    each: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let object = mos.object(number)?;
    let dnode = object.dnode();
    let (per_block, last) = ((dnode.block_size / 8).max(1), dnode.max_block);
    for blkid in (0..count.div_ceil(per_block)).take_while(|blkid| *blkid <= last) {
        let wanted = (count - blkid * per_block).min(per_block) as usize;
        let Some(block) = object.block(blkid)? else {
            (0..wanted).try_for_each(|_| each(0))?;
            continue;
        };
        let data = block.data.bytes();
        let bytes = Bytes::new(&data, block.order, "array of integers");
        for i in 0..wanted {
            let word = bytes.u64(i * 8);
            each(word.map_err(|source| Error::Decode {
                objset: mos.id(),
                object: number,
                source,
            })?)?;
        }
    }
    Ok(())
}

/// Decodes an object that holds a packed nvlist; its bonus buffer holds the length.
fn packed_nvlist(object: &Object) -> Result<NvList> {
    let decode = |source: DecodeError| Error::Decode {
        objset: object.objset().id(),
        object: object.number(),
        source,
    };
    if object.dnode().kind != DmuType::PACKED_NVLIST {
        let why = format!("{:?} where a packed nvlist was expected", object.dnode().kind);
        return Err(decode(DecodeError::invalid("packed nvlist", why)));
    }
    let len = object.bonus().u64(0).map_err(decode)?;
    if len > MAX_PACKED {
        return Err(decode(DecodeError::invalid("packed nvlist", format!("{len} bytes"))));
    }
    let mut bytes = vec![0; len as usize];
    object.read(0, &mut bytes)?;
    NvList::decode(&bytes).map_err(decode)
}
