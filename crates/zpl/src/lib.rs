//! SKELETON of floor 6: POSIX semantics.
use cenote_dmu::{Object, ObjectSet};
use std::sync::Arc;

/// Errors; `errno` gives what a system call returns.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error(transparent)] Dmu(#[from] cenote_dmu::Error),
    #[error("no such file or directory: {0}")] NotFound(String),
    #[error("not a directory: {0}")] NotDir(String),
    #[error("is a directory: {0}")] IsDir(String),
    #[error("object {0}: {1}")] Corrupt(u64, String),
    #[error("too many levels of symbolic links: {0}")] Loop(String),
    #[error("{0}: not supported")] Unsupported(String),
}
impl Error { /// errno
 pub fn errno(&self) -> i32 { todo!() } }
/// Result.
pub type Result<T> = std::result::Result<T, Error>;

/// Exact attributes of a file.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Attr { pub ino: u64, pub gen_: u64, /// full st_mode with type
 pub mode: u32, pub uid: u32, pub gid: u32, pub nlink: u64, pub size: u64, /// 512-byte units
 pub blocks: u64, pub blksize: u32, pub atime: (i64, u32), pub mtime: (i64, u32), pub ctime: (i64, u32), pub crtime: (i64, u32), /// Linux dev_t major, minor
 pub rdev: (u32, u32), pub parent: u64, pub flags: u64, pub projid: u64 }
/// A directory entry. `kind` is the DT_* from the entry (0: unknown).
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct DirEntry { pub name: Vec<u8>, pub ino: u64, pub kind: u8, /// pass back to go on after it
 pub cookie: u64 }

/// An open file system (live or snapshot).
pub struct FileSystem;
impl FileSystem {
    /// Opens. `acl`/`xattr` visibility follow the dataset's properties passed by the caller.
    pub fn open(_os: Arc<ObjectSet>) -> Result<Arc<FileSystem>> { todo!() }
    /// Root directory's object.
    pub fn root(&self) -> u64 { todo!() }
    /// Attributes.
    pub fn attr(&self, _ino: u64) -> Result<Attr> { todo!() }
    /// Name in a directory -> object, honouring casesensitivity and normalization.
    pub fn lookup(&self, _dir: u64, _name: &[u8]) -> Result<u64> { todo!() }
    /// Up to `max` entries after `cookie` (0 = start), without "." and "..".
    pub fn readdir(&self, _dir: u64, _cookie: u64, _max: usize) -> Result<Vec<DirEntry>> { todo!() }
    /// Symlink target.
    pub fn readlink(&self, _ino: u64) -> Result<Vec<u8>> { todo!() }
    /// Reads; returns bytes read (short at EOF).
    pub fn read(&self, _ino: u64, _offset: u64, _buf: &mut [u8]) -> Result<usize> { todo!() }
    /// SEEK_DATA/SEEK_HOLE by Linux rules: None = ENXIO.
    pub fn seek(&self, _ino: u64, _offset: u64, _hole: bool) -> Result<Option<u64>> { todo!() }
    /// Linux xattr names (user.*, trusted.*, security.*, system.posix_acl_access/default).
    pub fn listxattr(&self, _ino: u64) -> Result<Vec<Vec<u8>>> { todo!() }
    /// Linux xattr value; None = ENODATA.
    pub fn getxattr(&self, _ino: u64, _name: &[u8]) -> Result<Option<Vec<u8>>> { todo!() }
    /// Path (components separated by '/') -> object, without following a final symlink.
    pub fn resolve(&self, _path: &[u8]) -> Result<u64> { todo!() }
    /// Object -> path, for `zpool status -v` and `zdb` (by parent pointers and directory search).
    pub fn path_of(&self, _ino: u64) -> Result<Vec<u8>> { todo!() }
    /// A file's data object for prefetch.
    pub fn object(&self, _ino: u64) -> Result<Object> { todo!() }
}
/// A volume.
pub struct Volume;
impl Volume {
    /// Opens.
    pub fn open(_os: Arc<ObjectSet>) -> Result<Volume> { todo!() }
    /// volsize in bytes.
    pub fn size(&self) -> u64 { todo!() }
    /// Reads.
    pub fn read(&self, _offset: u64, _buf: &mut [u8]) -> Result<usize> { todo!() }
}
