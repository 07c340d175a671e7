//! Contents of volumes.

use crate::file::moved;
use crate::live::LiveSet;
use crate::{Error, Pool, Result};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// An open volume. Clones share nothing but the volume: each has its own position.
#[derive(Clone)]
pub struct Volume {
    inner: Arc<cenote_zpl::Volume>,
    position: u64,
    /// Of a volume that can be changed.
    set: Option<Arc<LiveSet>>,
    read_only: bool,
    /// Keeps the pool open.
    _pool: Pool,
}

impl Volume {
    pub(crate) fn fixed(pool: &Pool, inner: cenote_zpl::Volume) -> Volume {
        let inner = Arc::new(inner);
        Volume { inner, position: 0, set: None, read_only: true, _pool: pool.clone() }
    }

    pub(crate) fn live(pool: &Pool, set: Arc<LiveSet>, read_only: bool) -> Result<Volume> {
        let no_volume = || Error::Kind { name: pool.name().into(), wanted: "volume" };
        let inner = set.as_volume().ok_or_else(no_volume)?.clone();
        Ok(Volume { inner, position: 0, set: Some(set), read_only, _pool: pool.clone() })
    }

    fn writable(&self) -> Result<&LiveSet> {
        let set = self.set.as_deref().filter(|_| !self.read_only);
        Ok(set.ok_or(cenote_zpl::Error::ReadOnly)?)
    }

    /// Bytes in the volume.
    pub fn size(&self) -> u64 {
        self.inner.size()
    }

    /// Reads at `offset`; returns bytes read, fewer than asked for only at the end of the volume.
    ///
    /// # Errors
    /// A block cannot be read.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.inner.read(offset, buf)?)
    }

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// It goes past the end; there is no space.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.writable()?;
        Ok(self.inner.write(offset, data)?)
    }

    /// Makes zeros of a range and frees the space.
    ///
    /// # Errors
    /// It cannot be changed (`EROFS`); a block that is cut cannot be read.
    pub fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        Ok(self.inner.discard(offset, len)?)
    }

    /// Waits until all changes are stable: on disk, or in the intent log.
    ///
    /// # Errors
    /// It cannot be changed (`EROFS`); the pool cannot be written any more.
    pub fn sync(&self) -> Result<()> {
        self.writable()?.sync()
    }

    /// Start of the next written block at or after `offset`; `None`: only zeros are left.
    ///
    /// # Errors
    /// An indirect block cannot be read.
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

impl Write for Volume {
    /// Writes up to the end of the volume.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let room = usize::try_from(self.size().saturating_sub(self.position)).unwrap_or(usize::MAX);
        let data = data.get(..data.len().min(room)).unwrap_or(data);
        if !data.is_empty() {
            self.write_at(self.position, data).map_err(io::Error::from)?;
        }
        self.position = self.position.saturating_add(data.len() as u64);
        Ok(data.len())
    }

    /// Does nothing: what was written can be read at once. [`Volume::sync`] waits for the disk.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Volume {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = moved(self.position, self.size(), to)?;
        Ok(self.position)
    }
}
