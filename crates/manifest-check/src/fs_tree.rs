//! A directory of the running system.

use crate::{FileReader, Result, Stat, TreeReader};
use rustix::fs::{SeekFrom, major, minor, seek};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::{ffi::OsStrExt, fs::FileExt, fs::MetadataExt};
use std::path::{Path, PathBuf};

/// A mounted file system or a copy.
#[derive(Debug, Clone)]
pub struct FsTree {
    root: PathBuf,
}

impl FsTree {
    /// The tree at `root`.
    pub fn new(root: impl AsRef<Path>) -> FsTree {
        FsTree { root: root.as_ref().to_owned() }
    }

    fn path(&self, path: &[u8]) -> PathBuf {
        if path == b"." { self.root.clone() } else { self.root.join(OsStr::from_bytes(path)) }
    }
}

fn message(what: &str) -> impl Fn(std::io::Error) -> String {
    move |e| format!("{what}: {e}")
}

impl TreeReader for FsTree {
    fn stat(&self, path: &[u8]) -> Result<Stat> {
        let m = fs::symlink_metadata(self.path(path)).map_err(message("stat"))?;
        let ns = |sec: i64, nsec: i64| i128::from(sec) * 1_000_000_000 + i128::from(nsec);
        Ok(Stat {
            mode: m.mode(),
            uid: m.uid(),
            gid: m.gid(),
            size: m.size(),
            mtime_ns: ns(m.mtime(), m.mtime_nsec()),
            ctime_ns: ns(m.ctime(), m.ctime_nsec()),
            nlink: m.nlink(),
            ino: m.ino(),
            rdev: (major(m.rdev()), minor(m.rdev())),
            projid: None,
        })
    }

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let entries = fs::read_dir(self.path(path)).map_err(message("readdir"))?;
        entries
            .map(|e| Ok(e.map_err(message("readdir"))?.file_name().as_bytes().to_vec()))
            .collect()
    }

    fn target(&self, path: &[u8]) -> Result<Vec<u8>> {
        let target = fs::read_link(self.path(path)).map_err(message("readlink"))?;
        Ok(target.as_os_str().as_bytes().to_vec())
    }

    fn xattrs(&self, path: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let path = self.path(path);
        let mut all = BTreeMap::new();
        for name in xattr::list(&path).map_err(message("listxattr"))? {
            let value = xattr::get(&path, &name).map_err(message("getxattr"))?;
            let value =
                value.ok_or_else(|| format!("{}: listed but not there", name.to_string_lossy()))?;
            all.insert(name.as_bytes().to_vec(), value);
        }
        Ok(all)
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn FileReader + '_>> {
        Ok(Box::new(File::open(self.path(path)).map_err(message("open"))?))
    }
}

impl FileReader for File {
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        FileExt::read_at(self, buf, offset).map_err(|e| format!("read at {offset}: {e}"))
    }

    fn next_data(&mut self, offset: u64) -> Result<Option<u64>> {
        match seek(&*self, SeekFrom::Data(offset)) {
            Ok(at) => Ok(Some(at)),
            Err(rustix::io::Errno::NXIO) => Ok(None),
            Err(e) => Err(format!("lseek: {e}")),
        }
    }
}
