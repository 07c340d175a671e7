//! Paths to objects and back (`zfs_obj_to_path`).

use crate::bits::{FLAG_XATTR, S_IFLNK, S_IFMT};
use crate::error::show;
use crate::fs::FileSystem;
use crate::sa::ZplAttr;
use crate::{Error, Result};
use cenote_dmu::zap::Zap;
use std::collections::HashSet;

/// Symbolic links followed in one path, as in Linux.
const MAX_LINKS: usize = 40;
/// Components that are still to be gone through: more are taken for a loop.
const MAX_PENDING: usize = 64 << 10;
/// What stands for a hidden directory of extended attributes in a path.
const XATTR_DIR: &[u8] = b"<xattrdir>";

impl FileSystem {
    /// The object at `path` (components separated by `/`, from the root directory), without
    /// following a symbolic link at the end. Links on the way are followed; an absolute one starts
    /// at this file system's root, since what lies above is not known here.
    pub fn resolve(&self, path: &[u8]) -> Result<u64> {
        // Components still to go, the next one last.
        let mut todo: Vec<Vec<u8>> = Vec::new();
        push_components(&mut todo, path);
        let mut at = vec![self.root()];
        let mut links = 0;
        while let Some(name) = todo.pop() {
            let dir = at.last().copied().unwrap_or_else(|| self.root());
            if name == b".." {
                if at.len() > 1 {
                    at.pop();
                }
                continue;
            }
            let ino = self.lookup(dir, &name).map_err(|e| match e {
                Error::NotFound(_) => Error::NotFound(show(path)),
                Error::NotDir(_) => Error::NotDir(show(path)),
                e => e,
            })?;
            if todo.is_empty() || self.attributes(ino)?.mode()? & S_IFMT != S_IFLNK {
                at.push(ino);
                continue;
            }
            links += 1;
            let target = self.readlink(ino)?;
            if links > MAX_LINKS || todo.len() + target.len() > MAX_PENDING {
                return Err(Error::Loop(format!("{} (-> {})", show(path), self.show_link(ino))));
            }
            if target.first() == Some(&b'/') {
                at.truncate(1);
            }
            push_components(&mut todo, &target);
        }
        let last = at.last().copied().unwrap_or_else(|| self.root());
        if path.ends_with(b"/") && !self.attributes(last)?.is_dir()? {
            return Err(Error::NotDir(show(path)));
        }
        Ok(last)
    }

    /// A path of the object, from the root directory (`/a/b`), found by its parent and a search of
    /// the directory (`zfs_obj_to_path_impl`): of a file with several links, one of them. A file in a hidden directory of
    /// extended attributes is at `/a/b/<xattrdir>/NAME`. Not found: the object is no file, or it was unlinked and is still
    /// open.
    pub fn path_of(&self, ino: u64) -> Result<Vec<u8>> {
        if self.is_unlinked(ino)? {
            return Err(Error::NotFound(format!("object {ino} was unlinked")));
        }
        self.path_by(ino, &mut |parent, ino| self.name_of(parent, ino))
    }

    /// Whether a file was unlinked and is still open, or was when the object set was written.
    pub(crate) fn is_unlinked(&self, ino: u64) -> Result<bool> {
        let Some(set) = self.unlinked_set() else { return Ok(false) };
        let queue = Zap::open(&self.object(set)?)?;
        Ok(queue.lookup(format!("{ino:x}").as_bytes())?.is_some())
    }

    /// As [`FileSystem::path_of`], of a file that was not unlinked; `name_of` finds the name of an object in a
    /// directory.
    pub(crate) fn path_by(
        &self,
        ino: u64,
        name_of: &mut dyn FnMut(u64, u64) -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        // Every directory is searched once at most, so a cycle ends, soon.
        let mut seen = HashSet::new();
        let mut at = ino;
        while at != self.root() {
            if !seen.insert(at) {
                return Err(Error::Corrupt(ino, "parent directories form a cycle".into()));
            }
            let z = self.attributes(at)?;
            let parent = z.required(ZplAttr::Parent)?;
            let hidden = z.required(ZplAttr::Flags)? & FLAG_XATTR != 0 && z.is_dir()?;
            names.push(if hidden { XATTR_DIR.to_vec() } else { name_of(parent, at)? });
            at = parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }
}

fn push_components(todo: &mut Vec<Vec<u8>>, path: &[u8]) {
    let parts = path.split(|b| *b == b'/').filter(|c| !c.is_empty() && *c != b".");
    todo.extend(parts.rev().map(<[u8]>::to_vec));
}
