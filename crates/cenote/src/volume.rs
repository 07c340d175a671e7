//! Contents of volumes.

use crate::file::moved;
use crate::{Pool, Result};
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

/// An open volume. Clones share nothing but the volume: each has its own position.
#[derive(Clone)]
pub struct Volume {
    inner: Arc<cenote_zpl::Volume>,
    position: u64,
    /// Keeps the pool open.
    _pool: Pool,
}

impl Volume {
    pub(crate) fn new(pool: &Pool, inner: cenote_zpl::Volume) -> Volume {
        Volume { inner: Arc::new(inner), position: 0, _pool: pool.clone() }
    }

    /// Bytes in the volume.
    pub fn size(&self) -> u64 {
        self.inner.size()
    }

    /// Reads at `offset`; returns bytes read, fewer than asked for only at the end of the volume.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.inner.read(offset, buf)?)
    }

    /// Start of the next written block at or after `offset`; `None`: only zeros are left.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        Ok(self.inner.next_data(offset)?)
    }
}

impl Read for Volume {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.read_at(self.position, buf).map_err(io::Error::from)?;
        self.position = self.position.saturating_add(n as u64);
        Ok(n)
    }
}

impl Seek for Volume {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = moved(self.position, self.size(), to)?;
        Ok(self.position)
    }
}
