//! Files and symbolic links: bytes, holes, the end.
//!
//! A file's object has whole blocks; its size attribute says where the file ends. Blocks that were
//! never written are holes and read as zeros.
//!
//! A symbolic link's target is in the attribute `ZPL_SYMLINK` (bonus buffer or spill block); in ZPL
//! versions before 5 it follows the `znode_phys_t` in the bonus buffer, or is in the object's data
//! if it does not fit.

use crate::bits::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use crate::error::show;
use crate::fs::FileSystem;
use crate::sa::{SharedRegistry, ZplAttr};
use crate::znode::Znode;
use crate::{Error, Result};
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::{Object, Seek};
use cenote_format::abd::Abd;
use std::sync::Arc;

/// Bytes that a search for data or a hole looks at first; each further look takes twice as many. Of what is
/// pending a look copies what lies in its stretch.
const SEEK_STRETCH: u64 = 16 << 20;

/// Longest target of a symbolic link (`MAXPATHLEN` and a bit), in bytes.
const MAX_TARGET: u64 = 64 << 10;

/// Bytes from `offset` to the end of a file of `size` bytes.
fn left(size: u64, offset: u64) -> usize {
    usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX)
}

/// An open regular file. In a live file system it shows the file as it is at each call.
#[derive(Clone)]
pub struct File(Inner);

#[derive(Clone)]
enum Inner {
    Fixed { object: Object, size: u64 },
    Live { live: Arc<LiveObjectSet>, registry: Option<Arc<SharedRegistry>>, ino: u64 },
}

impl File {
    /// Bytes in the file; 0 if it cannot be told.
    pub fn size(&self) -> u64 {
        self.length().unwrap_or(0)
    }

    /// As [`File::size`].
    ///
    /// # Errors
    /// It cannot be told.
    pub(crate) fn length(&self) -> Result<u64> {
        self.look(0, 0, |_, size| Ok(size))
    }

    /// Bytes of a data block; not 0.
    pub fn block_size(&self) -> u64 {
        let shape = match &self.0 {
            Inner::Fixed { object, .. } => Ok(object.dnode().block_size),
            Inner::Live { live, ino, .. } => live.shape(*ino).map(|(size, _)| size),
        };
        shape.map_or(512, |size| size.max(1))
    }

    /// Has `read` look at the file's object and its size, both of one moment. The object is good for the `len`
    /// bytes from `offset`; no more of what is pending is copied. `read` may run more than once.
    fn look<T>(
        &self,
        offset: u64,
        len: u64,
        mut read: impl FnMut(&Object, u64) -> Result<T>,
    ) -> Result<T> {
        match &self.0 {
            Inner::Fixed { object, size } => read(object, *size),
            Inner::Live { live, registry, ino } => live.read_part(*ino, offset, len, |object| {
                // The registry has the layout of every object that can be seen before.
                let z = Znode::open(object, registry.as_ref().map(|r| r.current()))?;
                read(z.object(), z.required(ZplAttr::Size)?)
            }),
        }
    }

    /// The file's object, as it is now.
    pub fn object(&self) -> Result<Object> {
        match &self.0 {
            Inner::Fixed { object, .. } => Ok(object.clone()),
            Inner::Live { live, ino, .. } => Ok(live.object(*ino)?),
        }
    }

    /// The file's object, as it is now, good for the `len` bytes from `offset`.
    pub fn part(&self, offset: u64, len: u64) -> Result<Object> {
        match &self.0 {
            Inner::Fixed { object, .. } => Ok(object.clone()),
            Inner::Live { live, ino, .. } => live.read_part(*ino, offset, len, Ok),
        }
    }

    /// Reads from `offset`; returns the bytes read (`zfs_read`): fewer than asked for only at the end of the
    /// file. Fails if any block in the range cannot be read.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.look(offset, buf.len() as u64, |object, size| {
            let n = buf.len().min(left(size, offset));
            let Some(buf) = buf.get_mut(..n).filter(|b| !b.is_empty()) else { return Ok(0) };
            object.read(offset, buf)?;
            Ok(n)
        })
    }

    /// As [`File::read`], but gives the bytes, not copied. The caller bounds `len`.
    pub fn read_abd(&self, offset: u64, len: usize) -> Result<Abd> {
        self.look(offset, len as u64, |object, size| {
            Ok(object.read_abd(offset, len.min(left(size, offset)))?)
        })
    }

    /// As [`File::read_abd`], past the ARC, which is not given what it lacks (`O_DIRECT`).
    ///
    /// # Errors
    /// As of that.
    pub fn read_directly(&self, offset: u64, len: usize) -> Result<Abd> {
        let store = match &self.0 {
            Inner::Fixed { object, .. } => object.objset().store().clone(),
            Inner::Live { live, .. } => live.base().store().clone(),
        };
        let data = store.read_directly(|| self.read_abd(offset, len))?;
        let (size, bytes) = (self.block_size(), data.len() as u64);
        // What was read is within the file.
        let blocks = (offset + bytes).div_ceil(size) - offset / size;
        store.count_direct_read(blocks, bytes);
        Ok(data)
    }

    /// As [`File::read_abd`], but gives what lies before the first block that cannot be read; fails
    /// only if that is nothing.
    pub fn read_up_to_error(&self, offset: u64, len: usize) -> Result<Abd> {
        let (mut pieces, mut done) = (Vec::new(), 0);
        while done < len {
            let at = offset.saturating_add(done as u64);
            let to_boundary = self.block_size() - at % self.block_size();
            let piece = (len - done).min(usize::try_from(to_boundary).unwrap_or(usize::MAX));
            match self.read_abd(at, piece) {
                Ok(read) if read.is_empty() => break,
                Ok(read) => {
                    done += read.len();
                    pieces.push(read);
                }
                Err(e) if pieces.is_empty() => return Err(e),
                Err(_) => break,
            }
        }
        Ok(Abd::gang(pieces))
    }

    /// Starts reading a range into the cache in the background.
    pub fn prefetch(&self, offset: u64, len: u64) {
        let Ok(size) = self.length() else { return };
        let len = len.min(size.saturating_sub(offset));
        if let Some(object) = (len > 0).then(|| self.part(offset, len).ok()).flatten() {
            object.prefetch(offset, len);
        }
    }

    /// Where the next hole (`hole`, `zfs_holey_common`) or data begins at or after `offset`, by the rules of Linux's
    /// `SEEK_HOLE` and `SEEK_DATA` (`zfs_holey`): the end of the file is a hole; `None` is `ENXIO` (no more data, or `offset`
    /// is not in the file).
    pub fn seek(&self, offset: u64, hole: bool) -> Result<Option<u64>> {
        let mut from = offset;
        let mut stretch = SEEK_STRETCH;
        loop {
            let end = from.saturating_add(stretch);
            let found = self.look(from, stretch, |object, size| {
                if offset >= size {
                    return Ok(Sought::Nothing);
                }
                seek_in(object, size, from, end, hole)
            })?;
            match found {
                Sought::At(at) => return Ok(Some(at)),
                Sought::Nothing => return Ok(None),
                Sought::Beyond => from = end,
            }
            stretch = stretch.saturating_mul(2);
        }
    }
}

/// What a search of a stretch of a file says.
enum Sought {
    At(u64),
    /// The file has no more of it.
    Nothing,
    /// The stretch has no more of it; the search goes on behind it.
    Beyond,
}

/// Searches a file of `size` bytes for a hole or data from `from` on, in an object that is good for the bytes
/// before `end`.
fn seek_in(object: &Object, size: u64, from: u64, end: u64, hole: bool) -> Result<Sought> {
    if from >= size {
        // It was cut off meanwhile, in what was searched already: a hole begins at its end.
        return Ok(if hole { Sought::At(size) } else { Sought::Nothing });
    }
    let found = object.seek(from, if hole { Seek::Hole } else { Seek::Data })?;
    let past = object.blocks_end().max(from);
    let found = found.map_or(past, |at| at.max(from));
    // What is pending past the stretch is not in this view of the object.
    if found >= end && end < size && object.is_pending() {
        return Ok(Sought::Beyond);
    }
    Ok(match found {
        at if hole => Sought::At(at.min(size)),
        at if at < size.min(past) => Sought::At(at),
        _ => Sought::Nothing,
    })
}

impl FileSystem {
    /// Opens a regular file.
    pub fn open_file(&self, ino: u64) -> Result<File> {
        let z = self.attributes(ino)?;
        match z.mode()? & S_IFMT {
            S_IFREG => Ok(File(match self.source.live() {
                None => {
                    Inner::Fixed { size: z.required(ZplAttr::Size)?, object: z.object().clone() }
                }
                Some(live) => {
                    let registry = self.registry().cloned();
                    Inner::Live { live: live.clone(), registry, ino }
                }
            })),
            S_IFDIR => Err(Error::IsDir(format!("object {ino}"))),
            _ => Err(Error::Invalid(format!("object {ino} is not a regular file"))),
        }
    }

    /// Reads from a file; returns the bytes read (short at its end).
    pub fn read(&self, ino: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let n = self.open_file(ino)?.read(offset, buf)?;
        self.io.count_read(n as u64);
        Ok(n)
    }

    /// `SEEK_DATA` and `SEEK_HOLE`; see [`File::seek`].
    pub fn seek(&self, ino: u64, offset: u64, hole: bool) -> Result<Option<u64>> {
        self.open_file(ino)?.seek(offset, hole)
    }

    /// The target of a symbolic link (`zfs_readlink`).
    pub fn readlink(&self, ino: u64) -> Result<Vec<u8>> {
        let z = self.znode(ino)?;
        if z.mode()? & S_IFMT != S_IFLNK {
            return Err(Error::Invalid(format!("object {ino} is not a symbolic link")));
        }
        if z.is_sa() {
            let target = z.bytes(ZplAttr::Symlink)?;
            return target
                .ok_or_else(|| Error::NotFound(format!("target of symbolic link, object {ino}")));
        }
        let size = z.required(ZplAttr::Size)?;
        if let Some(target) = z.legacy_tail(size) {
            return Ok(target.to_vec());
        }
        if size > MAX_TARGET {
            return Err(Error::Corrupt(ino, format!("symbolic link of {size} bytes")));
        }
        let mut target = vec![0; size as usize];
        z.object().read(0, &mut target)?;
        Ok(target)
    }

    /// The target of a symbolic link as text, for messages.
    pub(crate) fn show_link(&self, ino: u64) -> String {
        self.readlink(ino).map_or_else(|_| format!("object {ino}"), |t| show(&t))
    }
}
