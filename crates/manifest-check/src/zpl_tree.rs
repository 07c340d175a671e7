//! A file system read through the library.

use crate::{FileReader, Result, Stat, TreeReader};
use cenote_zpl::{File, FileSystem};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A file system of an opened pool.
#[derive(Debug, Clone)]
pub struct ZplTree {
    fs: Arc<FileSystem>,
}

impl ZplTree {
    /// The tree of `fs`.
    pub fn new(fs: Arc<FileSystem>) -> ZplTree {
        ZplTree { fs }
    }

    fn ino(&self, path: &[u8]) -> Result<u64> {
        self.fs.resolve(path).map_err(text)
    }
}

fn text(e: cenote_zpl::Error) -> String {
    e.to_string()
}

impl TreeReader for ZplTree {
    fn stat(&self, path: &[u8]) -> Result<Stat> {
        let a = self.fs.attr(self.ino(path)?).map_err(text)?;
        let ns = |(sec, nsec): (i64, u32)| i128::from(sec) * 1_000_000_000 + i128::from(nsec);
        Ok(Stat {
            mode: a.mode,
            uid: a.uid,
            gid: a.gid,
            size: a.size,
            mtime_ns: ns(a.mtime),
            ctime_ns: ns(a.ctime),
            nlink: a.nlink,
            ino: a.ino,
            rdev: a.rdev,
            projid: Some(a.projid),
        })
    }

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let dir = self.ino(path)?;
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let batch = self.fs.readdir(dir, cookie, 100).map_err(text)?;
            let Some(last) = batch.last() else { return Ok(names) };
            cookie = last.cookie;
            names.extend(batch.into_iter().map(|e| e.name));
        }
    }

    fn target(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.fs.readlink(self.ino(path)?).map_err(text)
    }

    fn xattrs(&self, path: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let ino = self.ino(path)?;
        let mut all = BTreeMap::new();
        for name in self.fs.listxattr(ino).map_err(text)? {
            let value = self.fs.getxattr(ino, &name).map_err(text)?;
            let value = value.ok_or_else(|| {
                format!("{}: listed but not there", String::from_utf8_lossy(&name))
            })?;
            all.insert(name, value);
        }
        Ok(all)
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn FileReader + '_>> {
        Ok(Box::new(self.fs.open_file(self.ino(path)?).map_err(text)?))
    }
}

impl FileReader for File {
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read(offset, buf).map_err(text)
    }

    fn next_data(&mut self, offset: u64) -> Result<Option<u64>> {
        self.seek(offset, false).map_err(text)
    }
}
