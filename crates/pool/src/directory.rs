//! The MOS's object directory: the ZAP (object 1) through which everything else is found, and the
//! packed nvlists that some of its entries lead to.

use cenote_dmu::zap::{Zap, ZapEntry};
use cenote_dmu::{Error, Object, ObjectSet, Result};
use cenote_format::DecodeError;
use cenote_format::dmu::DmuType;
use cenote_format::nvlist::NvList;
use std::sync::Arc;

/// Object number of the object directory (`DMU_POOL_DIRECTORY_OBJECT`).
const DIRECTORY_OBJECT: u64 = 1;

/// Longest packed nvlist that is read: the config of a pool of ten thousand devices takes a tenth
/// of it.
const MAX_PACKED: u64 = 64 << 20;

/// The open object directory of a MOS.
pub(crate) struct Directory {
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

    /// All entries.
    pub fn entries(&self) -> Result<Vec<ZapEntry>> {
        self.zap.entries()
    }

    /// The integer `name`.
    pub fn u64(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.entry(name)?.and_then(|e| e.u64()))
    }

    /// The words of the entry `name`: a structure made of 64-bit integers.
    pub fn words(&self, name: &str) -> Result<Option<Vec<u64>>> {
        Ok(self.entry(name)?.filter(|e| e.int_size == 8).map(|e| e.value))
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
