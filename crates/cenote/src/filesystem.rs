//! File systems and their directories.

use crate::live::LiveSet;
use crate::{Error, File, Metadata, Pool, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory entries read at a time.
const BATCH: usize = 512;

/// The files of a file system or snapshot. Paths begin at its root directory, with or without a
/// slash; symbolic links on the way are followed, one at the end is not.
///
/// The methods that change something are in the second half of this page. They fail with `EROFS` in
/// snapshots, in pools that are open for reading, and where the property `readonly` is set.
#[derive(Clone)]
pub struct FileSystem {
    pub(crate) inner: Arc<cenote_zpl::FileSystem>,
    /// Keeps the dataset open for writing.
    pub(crate) set: Option<Arc<LiveSet>>,
    /// Goes last.
    pool: Pool,
}

impl FileSystem {
    pub(crate) fn fixed(pool: &Pool, inner: Arc<cenote_zpl::FileSystem>) -> FileSystem {
        FileSystem { inner, set: None, pool: pool.clone() }
    }

    pub(crate) fn live(pool: &Pool, set: Arc<LiveSet>) -> Result<FileSystem> {
        let not_files = || Error::Kind { name: pool.name().into(), wanted: "file system" };
        let inner = set.fs().ok_or_else(not_files)?.clone();
        Ok(FileSystem { inner, set: Some(set), pool: pool.clone() })
    }

    /// An open file of this file system.
    pub(crate) fn file(&self, ino: u64) -> Result<File> {
        let handle = self.set.as_ref().map(|set| set.hold(ino));
        Ok(File::new(&self.pool, self.inner.open_file(ino)?, handle))
    }

    pub(crate) fn find(&self, path: &Path) -> Result<u64> {
        Ok(self.inner.resolve(path.as_os_str().as_bytes())?)
    }

    /// Opens a regular file, for reading and, where that can be, for writing.
    ///
    /// # Errors
    /// There is nothing at the path (`ENOENT`), or it is no regular file; it cannot be read.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.file(self.find(path.as_ref())?)
    }

    /// The whole contents of a file.
    ///
    /// # Errors
    /// It cannot be read, or it does not fit into memory.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let mut data = Vec::new();
        std::io::Read::read_to_end(&mut self.open(path)?, &mut data)?;
        Ok(data)
    }

    /// What is in a directory, in the directory's own order.
    ///
    /// # Errors
    /// There is nothing at the path, or it is no directory (`ENOTDIR`); it cannot be read.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let dir = self.find(path.as_ref())?;
        let batch = Vec::new().into_iter();
        let mut entries = ReadDir { fs: self.clone(), dir, cookie: 0, batch, failed: false };
        entries.fill()?;
        Ok(entries)
    }

    /// Attributes of a file.
    ///
    /// # Errors
    /// There is nothing at the path; it cannot be read.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Ok(self.inner.attr(self.find(path.as_ref())?)?)
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// There is nothing at the path, or it is no symbolic link (`EINVAL`); it cannot be read.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let target = self.inner.readlink(self.find(path.as_ref())?)?;
        Ok(OsString::from_vec(target).into())
    }

    /// Names of a file's extended attributes, as Linux has them (`user.note`,
    /// `system.posix_acl_access`).
    ///
    /// # Errors
    /// There is nothing at the path; it cannot be read.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        let names = self.inner.listxattr(self.find(path.as_ref())?)?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// Value of an extended attribute.
    ///
    /// # Errors
    /// There is nothing at the path; it cannot be read.
    pub fn xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
    ) -> Result<Option<Vec<u8>>> {
        Ok(self.inner.getxattr(self.find(path.as_ref())?, name.as_ref().as_bytes())?)
    }
}

/// What is in a directory, without `.` and `..`. Ends with an error where it cannot be read.
pub struct ReadDir {
    fs: FileSystem,
    dir: u64,
    cookie: u64,
    batch: std::vec::IntoIter<cenote_zpl::DirEntry>,
    failed: bool,
}

impl ReadDir {
    fn fill(&mut self) -> Result<()> {
        let batch = self.fs.inner.readdir(self.dir, self.cookie, BATCH)?;
        self.cookie = batch.last().map_or(self.cookie, |last| last.cookie);
        self.batch = batch.into_iter();
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if self.failed {
            return None;
        }
        if self.batch.len() == 0
            && let Err(e) = self.fill()
        {
            self.failed = true;
            return Some(Err(e));
        }
        let entry = self.batch.next()?;
        let name = OsString::from_vec(entry.name);
        Some(Ok(DirEntry { fs: self.fs.clone(), name, ino: entry.ino }))
    }
}

/// An entry of a directory.
#[derive(Clone)]
pub struct DirEntry {
    fs: FileSystem,
    name: OsString,
    ino: u64,
}

impl DirEntry {
    /// Name of the file. A damaged or hostile pool may contain any bytes here, slashes too.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Number of the file's object.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Attributes of the file.
    ///
    /// # Errors
    /// There is nothing at the path; it cannot be read.
    pub fn metadata(&self) -> Result<Metadata> {
        Ok(self.fs.inner.attr(self.ino)?)
    }

    /// Opens the file.
    ///
    /// # Errors
    /// There is nothing at the path (`ENOENT`), or it is no regular file; it cannot be read.
    pub fn open(&self) -> Result<File> {
        self.fs.file(self.ino)
    }
}
