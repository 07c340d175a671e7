//! Contents of files.

use crate::{Pool, Result};
use std::io::{self, Read, Seek, SeekFrom};

/// Bytes asked for ahead of sequential reads.
const AHEAD: u64 = 4 << 20;

/// An open file. Clones share nothing but the file: each has its own position.
#[derive(Clone)]
pub struct File {
    inner: cenote_zpl::File,
    position: u64,
    /// Keeps the pool open.
    _pool: Pool,
}

impl File {
    pub(crate) fn new(pool: &Pool, inner: cenote_zpl::File) -> File {
        File { inner, position: 0, _pool: pool.clone() }
    }

    /// Bytes in the file.
    pub fn size(&self) -> u64 {
        self.inner.size()
    }

    /// Reads at `offset`; returns bytes read, fewer than asked for only at the end of the file.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.inner.read(offset, buf)?)
    }

    /// Start of the next data at or after `offset`; `None`: only a hole is left.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        Ok(self.inner.seek(offset, false)?)
    }

    /// Start of the next hole at or after `offset`, which may be the end of the file; `None`: the
    /// file ends before `offset`.
    pub fn next_hole(&self, offset: u64) -> Result<Option<u64>> {
        Ok(self.inner.seek(offset, true)?)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.read_at(self.position, buf).map_err(io::Error::from)?;
        self.position = self.position.saturating_add(n as u64);
        self.inner.prefetch(self.position, AHEAD);
        Ok(n)
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = moved(self.position, self.size(), to)?;
        Ok(self.position)
    }
}

/// The position after a seek.
pub(crate) fn moved(position: u64, size: u64, to: SeekFrom) -> io::Result<u64> {
    let target = match to {
        SeekFrom::Start(at) => Some(at),
        SeekFrom::Current(by) => position.checked_add_signed(by),
        SeekFrom::End(by) => size.checked_add_signed(by),
    };
    target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeking() {
        assert_eq!(moved(10, 100, SeekFrom::Current(-10)).unwrap(), 0);
        assert_eq!(moved(10, 100, SeekFrom::End(5)).unwrap(), 105);
        assert!(moved(10, 100, SeekFrom::Current(-11)).is_err());
        assert!(moved(u64::MAX, 100, SeekFrom::Current(1)).is_err());
    }
}
