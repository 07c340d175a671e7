//! Volumes: a block device in an object set. Object 1 holds the bytes, object 2 is a ZAP whose entry
//! `size` is the size of the device.

use crate::source::Source;
use crate::{Error, Result};
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::{Object, ObjectSet, Seek, zap::Zap};
use cenote_format::dmu::ObjsetType;
use cenote_store::Caching;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const DATA: u64 = 1;
pub(crate) const PROPERTIES: u64 = 2;
/// Entry of the properties.
pub(crate) const SIZE: &[u8] = b"size";

/// An open volume, live or snapshot. Shared by any number of threads.
pub struct Volume {
    pub(crate) source: Source,
    pub(crate) size: AtomicU64,
    block_size: u64,
}

impl Volume {
    /// Opens the volume in `os`.
    pub fn open(os: Arc<ObjectSet>) -> Result<Volume> {
        Volume::open_source(Source::Fixed(os))
    }

    /// Opens a volume that is in use. No other code may change it.
    pub fn open_live(live: Arc<LiveObjectSet>) -> Result<Volume> {
        Volume::open_source(Source::Live(live))
    }

    /// Opens a volume, wherever it is read from (`zvol_first_open`).
    fn open_source(source: Source) -> Result<Volume> {
        if source.base().phys().kind != ObjsetType::Zvol {
            return Err(Error::Invalid(format!("dataset {}: not a volume", source.id())));
        }
        let size = Zap::open(&source.object(PROPERTIES)?)?
            .u64(SIZE)?
            .ok_or_else(|| Error::Corrupt(PROPERTIES, "volume without a size".into()))?;
        let block_size = source.object(DATA)?.dnode().block_size;
        Ok(Volume { source, size: AtomicU64::new(size), block_size })
    }

    /// Has the ARC keep `what` of it (`primarycache`).
    pub fn set_caching(&self, what: Caching) {
        self.source.base().store().set_caching(self.source.id(), what);
    }

    /// The property `volsize`, in bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Bytes of a data block: the property `volblocksize`.
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// The object that holds the bytes, as it is now.
    pub fn object(&self) -> Result<Object> {
        Ok(self.source.object(DATA)?)
    }

    /// Reads from `offset`; returns the bytes read (`zvol_read`): fewer than asked for only at the end.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = usize::try_from(self.size().saturating_sub(offset)).unwrap_or(usize::MAX);
        let n = buf.len().min(left);
        let Some(buf) = buf.get_mut(..n).filter(|b| !b.is_empty()) else { return Ok(0) };
        self.source.read(DATA, offset, buf)?;
        Ok(n)
    }

    /// Where the next data begins at or after `offset`; `None` if no data follows.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        Ok(self
            .object()?
            .seek(offset, Seek::Data)?
            .map(|at| at.max(offset))
            .filter(|at| *at < self.size()))
    }
}
