//! Contents of files.
//!
//! A [`File`] reads and writes at offsets, and has a position for `std::io`'s traits. Reads show all changes that were made before, on disk or
//! not. In a file system that is open for writing a handle keeps a file without a name until it is dropped.
//!
//! A write is stable after [`File::sync`], not before. [`File::copy_from`] clones whole blocks where both files are of one pool, and copies the
//! rest. Holes are found by [`File::next_data`] and [`File::next_hole`], which read no data.

use crate::live::Handle;
use crate::{Pool, Result};
use cenote_zpl::{Allocate, SetAttr};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// Bytes asked for ahead of sequential reads.
const AHEAD: u64 = 4 << 20;

/// An open file. Clones share nothing but the file: each has its own position. A file that is removed
/// while it is open can be used until the last handle goes.
#[derive(Clone)]
pub struct File {
    inner: cenote_zpl::File,
    position: u64,
    /// Of a file that can be changed.
    handle: Option<Arc<Handle>>,
    /// Keeps the pool open.
    _pool: Pool,
}

impl File {
    pub(crate) fn new(pool: &Pool, inner: cenote_zpl::File, handle: Option<Arc<Handle>>) -> File {
        File { inner, position: 0, handle, _pool: pool.clone() }
    }

    fn writable(&self) -> Result<&Handle> {
        Ok(self.handle.as_deref().ok_or(cenote_zpl::Error::ReadOnly)?)
    }

    /// Bytes in the file.
    pub fn size(&self) -> u64 {
        self.inner.size()
    }

    /// Reads at `offset`; returns bytes read, fewer than asked for only at the end of the file.
    ///
    /// # Errors
    /// A block cannot be read.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.inner.read(offset, buf)?)
    }

    /// Writes all of `data` at `offset`; the file gets longer if need be.
    ///
    /// # Errors
    /// It cannot be changed (`EROFS`); there is no space (`ENOSPC`, `EDQUOT`); a block that is
    /// written in part cannot be read.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let handle = self.writable()?;
        let (fs, mut at, mut rest) = (handle.fs()?, offset, data);
        while !rest.is_empty() {
            let n = fs.write(handle.ino(), at, rest, false)?;
            if n == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
            at = at.saturating_add(n as u64);
            rest = rest.get(n..).unwrap_or_default();
        }
        Ok(())
    }

    /// Writes all of `data` at the end of the file; returns where that was.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        let handle = self.writable()?;
        Ok(handle.fs()?.append(handle.ino(), data, false)?)
    }

    /// Copies `len` bytes of `source` from `source_offset` on to `offset`; returns the bytes copied, fewer than
    /// asked for at the end of `source` only. Where both files are of one pool and can be changed, whole blocks
    /// are cloned: they take no space of their own, whichever datasets the files are in.
    ///
    /// # Errors
    /// As [`File::write_at`]; what is copied cannot be read.
    pub fn copy_from(
        &self,
        offset: u64,
        source: &File,
        source_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let handle = self.writable()?;
        let (fs, ino) = (handle.fs()?, handle.ino());
        let Some(other) = source.handle.as_deref() else {
            // Nothing keeps a snapshot here from being destroyed while its blocks are cloned.
            return Ok(fs.copy_data_from(&source.inner, source_offset, (ino, offset), len)?);
        };
        let (from, mut done) = (other.fs()?, 0);
        if !fs.is_in_pool_of(from) {
            return Ok(fs.copy_data_from(&source.inner, source_offset, (ino, offset), len)?);
        }
        while done < len {
            let at = (other.ino(), source_offset.saturating_add(done));
            let to = (ino, offset.saturating_add(done));
            match fs.copy_range_from(from, at, to, len - done)? {
                0 => break,
                n => done = done.saturating_add(n),
            }
        }
        Ok(done)
    }

    /// Makes the file so long: cuts it off, or adds a hole.
    ///
    /// # Errors
    /// As [`File::write_at`]; it would be too long (`EFBIG`).
    pub fn set_len(&self, size: u64) -> Result<()> {
        let handle = self.writable()?;
        handle.fs()?.setattr(handle.ino(), &SetAttr { size: Some(size), ..SetAttr::default() })?;
        Ok(())
    }

    /// Makes a hole; the file's length stays.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        let handle = self.writable()?;
        Ok(handle.fs()?.allocate(handle.ino(), offset, len, Allocate::PunchHole)?)
    }

    /// Waits until the changes of the file so far are stable: on disk, or in the intent log. Names of files, in all
    /// of the file system, are stable then, too.
    ///
    /// # Errors
    /// The file system is open for reading (`EROFS`); the pool cannot be written any more.
    pub fn sync(&self) -> Result<()> {
        let handle = self.writable()?;
        handle.set().sync_file(handle.ino())
    }

    /// Start of the next data at or after `offset`; `None`: only a hole is left.
    ///
    /// # Errors
    /// An indirect block cannot be read.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        Ok(self.inner.seek(offset, false)?)
    }

    /// Start of the next hole at or after `offset`, which may be the end of the file; `None`: the
    /// file ends before `offset`.
    ///
    /// # Errors
    /// An indirect block cannot be read.
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

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_at(self.position, data).map_err(io::Error::from)?;
        self.position = self.position.saturating_add(data.len() as u64);
        Ok(data.len())
    }

    /// Does nothing: what was written can be read at once. [`File::sync`] waits for the disk.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
