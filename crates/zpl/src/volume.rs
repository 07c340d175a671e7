//! Volumes: a block device in an object set. Object 1 holds the bytes, object 2 is a ZAP whose entry
//! `size` is the size of the device.

use crate::{Error, Result};
use cenote_dmu::{Object, ObjectSet, Seek, zap::Zap};
use cenote_format::dmu::ObjsetType;
use std::sync::Arc;

const DATA: u64 = 1;
const PROPERTIES: u64 = 2;

/// An open volume, live or snapshot.
pub struct Volume {
    data: Object,
    size: u64,
}

impl Volume {
    /// Opens the volume in `os`.
    pub fn open(os: Arc<ObjectSet>) -> Result<Volume> {
        if os.phys().kind != ObjsetType::Zvol {
            return Err(Error::Invalid(format!("dataset {}: not a volume", os.id())));
        }
        let size = Zap::open(&os.object(PROPERTIES)?)?
            .u64(b"size")?
            .ok_or_else(|| Error::Corrupt(PROPERTIES, "volume without a size".into()))?;
        Ok(Volume { data: os.object(DATA)?, size })
    }

    /// The property `volsize`, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of a data block: the property `volblocksize`.
    pub fn block_size(&self) -> u64 {
        self.data.dnode().block_size
    }

    /// The object that holds the bytes.
    pub fn object(&self) -> &Object {
        &self.data
    }

    /// Reads from `offset`; returns the bytes read: fewer than asked for only at the end.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let n = buf.len().min(left);
        let Some(buf) = buf.get_mut(..n).filter(|b| !b.is_empty()) else { return Ok(0) };
        self.data.read(offset, buf)?;
        Ok(n)
    }

    /// Where the next data begins at or after `offset`; `None` if there is none.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        Ok(self
            .data
            .seek(offset, Seek::Data)?
            .map(|at| at.max(offset))
            .filter(|at| *at < self.size))
    }
}
