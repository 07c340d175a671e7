//! Changing the files of a file system.
//!
//! All of it is methods of [`FileSystem`], and the names are those of `std::fs`. A path is looked up from the root of the file system;
//! symbolic links on the way to its last component are followed. New files belong to the user and group of the process.
//!
//! Each call is one change of `cenote-zpl`, done as a whole or not at all, except the calls that go through many names
//! ([`FileSystem::create_dir_all`], [`FileSystem::remove_dir_all`]): what these did before an error stays. A file that loses its last
//! name while it is open stays until its last handle goes. [`FileSystem::sync`] waits until all changes are stable.

use crate::{Error, File, FileSystem, Metadata, Result, SetAttr};
use cenote_zpl::{NewNode, NodeKind, Removed, RenameFlags, SetXattr};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Symbolic links that are followed one after another.
const MAX_LINKS: usize = 40;
const FILE_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;

fn node(kind: NodeKind, mode: u32) -> NewNode {
    NewNode {
        kind,
        mode,
        umask: 0,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        keep_setgid: true,
    }
}

fn invalid(path: &Path) -> Error {
    cenote_zpl::Error::Invalid(path.display().to_string()).into()
}

fn is_exists(e: &Error) -> bool {
    matches!(e, Error::File(cenote_zpl::Error::Exists(_)))
}

impl FileSystem {
    /// The directory that a path's last component is in, and that component.
    fn place<'a>(&self, path: &'a Path) -> Result<(u64, &'a [u8])> {
        let name = path.file_name().ok_or_else(|| invalid(path))?;
        let mut parent = path.parent().unwrap_or_else(|| Path::new("/")).to_path_buf();
        for _ in 0..MAX_LINKS {
            let ino = self.find(&parent)?;
            if !self.inner.attr(ino)?.is_symlink() {
                return Ok((ino, name.as_bytes()));
            }
            let target = PathBuf::from(OsStr::from_bytes(&self.inner.readlink(ino)?));
            parent = parent.parent().unwrap_or_else(|| Path::new("/")).join(target);
        }
        Err(cenote_zpl::Error::Loop(path.display().to_string()).into())
    }

    fn make(&self, path: &Path, kind: NodeKind, mode: u32) -> Result<Metadata> {
        let (dir, name) = self.place(path)?;
        Ok(self.inner.create(dir, name, &node(kind, mode))?)
    }

    /// Whether files can be changed.
    pub fn is_writable(&self) -> bool {
        self.inner.is_writable()
    }

    /// Creates a file that is not there yet, and opens it.
    ///
    /// # Errors
    /// There is something at the path (`EEXIST`), or no directory for it (`ENOENT`); there is no
    /// space.
    pub fn create_new(&self, path: impl AsRef<Path>) -> Result<File> {
        self.file(self.make(path.as_ref(), NodeKind::File, FILE_MODE)?.ino)
    }

    /// Creates a file, or makes one that is there empty, and opens it.
    ///
    /// # Errors
    /// There is no directory for it (`ENOENT`), or a directory is at the path (`EISDIR`); there is
    /// no space.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        match self.create_new(path.as_ref()) {
            Err(e) if is_exists(&e) => {
                let file = self.open(path)?;
                file.set_len(0)?;
                Ok(file)
            }
            other => other,
        }
    }

    /// Makes `data` the whole contents of a file, which is created if need be.
    ///
    /// # Errors
    /// As [`FileSystem::create`].
    pub fn write(&self, path: impl AsRef<Path>, data: impl AsRef<[u8]>) -> Result<()> {
        self.create(path)?.write_at(0, data.as_ref())
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// As [`FileSystem::create_new`].
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.make(path.as_ref(), NodeKind::Dir, DIR_MODE).map(drop)
    }

    /// Creates a directory and those above it that are not there.
    ///
    /// # Errors
    /// Something on the way is no directory (`EEXIST`); there is no space.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        for dir in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
            if dir.file_name().is_none() {
                continue;
            }
            match self.create_dir(dir) {
                Err(e) if is_exists(&e) && self.metadata(dir)?.is_dir() => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Creates a symbolic link at `path` that leads to `target`.
    ///
    /// # Errors
    /// As [`FileSystem::create_new`].
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref().as_os_str().as_bytes().to_vec();
        self.make(path.as_ref(), NodeKind::Symlink(target), 0o777).map(drop)
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// As [`FileSystem::create_new`]; there is nothing at `original`, or it is a directory
    /// (`EPERM`).
    pub fn hard_link(&self, original: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let (dir, name) = self.place(path.as_ref())?;
        self.inner.link(self.find(original.as_ref())?, dir, name)?;
        Ok(())
    }

    fn removed(&self, removed: Removed) {
        if removed.orphan
            && let Some(set) = &self.set
        {
            set.orphaned(removed.ino);
        }
    }

    fn in_use(&self, ino: u64) -> bool {
        self.set.as_ref().is_some_and(|set| set.in_use(ino))
    }

    /// Removes what is no directory. The space of a file of many blocks comes back in the background;
    /// what is left of it when the program has let go of the file system does when it is opened again.
    ///
    /// # Errors
    /// There is nothing at the path (`ENOENT`), or it is a directory (`EISDIR`).
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let (dir, name) = self.place(path.as_ref())?;
        self.removed(self.inner.unlink(dir, name, &|ino| self.in_use(ino))?);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// There is nothing at the path (`ENOENT`), or it is no directory (`ENOTDIR`), or not empty
    /// (`ENOTEMPTY`).
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let (dir, name) = self.place(path.as_ref())?;
        self.removed(self.inner.rmdir(dir, name, &|ino| self.in_use(ino))?);
        Ok(())
    }

    /// Removes a directory with all that is in it.
    ///
    /// # Errors
    /// As [`FileSystem::remove_dir`]; what was removed before stays so.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut todo = vec![(path.as_ref().to_path_buf(), false)];
        while let Some((dir, emptied)) = todo.pop() {
            if emptied {
                self.remove_dir(&dir)?;
                continue;
            }
            todo.push((dir.clone(), true));
            let entries = self.read_dir(&dir)?.collect::<Result<Vec<_>>>()?;
            for entry in entries {
                let path = dir.join(entry.name());
                match entry.metadata()?.is_dir() {
                    true => todo.push((path, false)),
                    false => self.remove_file(path)?,
                }
            }
        }
        Ok(())
    }

    /// Gives a file or directory another name and place; what is there is replaced.
    ///
    /// # Errors
    /// There is nothing at `from` (`ENOENT`); a directory would be inside itself (`EINVAL`); what
    /// is at `to` is a directory that is not empty (`ENOTEMPTY`), or of the other kind.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (dir, name) = self.place(from.as_ref())?;
        let (new_dir, new_name) = self.place(to.as_ref())?;
        let flags = RenameFlags::default();
        let in_use = |ino| self.in_use(ino);
        let replaced = self.inner.rename(dir, name, new_dir, new_name, flags, &in_use)?;
        if let Some(removed) = replaced {
            self.removed(removed);
        }
        Ok(())
    }

    /// Changes attributes: permissions, owner, times, length.
    ///
    /// # Errors
    /// There is nothing at the path; a value is not right; there is no space.
    pub fn set_attributes(&self, path: impl AsRef<Path>, set: &SetAttr) -> Result<Metadata> {
        Ok(self.inner.setattr(self.find(path.as_ref())?, set)?)
    }

    /// Sets an extended attribute (`user.note`).
    ///
    /// # Errors
    /// There is nothing at the path; the name or the value is too long; there is no space.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let (ino, name) = (self.find(path.as_ref())?, name.as_ref().as_bytes());
        Ok(self.inner.set_xattr(ino, name, value.as_ref(), SetXattr::default())?)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// There is nothing at the path, or no such attribute (`ENODATA`).
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        let ino = self.find(path.as_ref())?;
        Ok(self.inner.remove_xattr(ino, name.as_ref().as_bytes())?)
    }

    /// Waits until all changes are stable: on disk, or in the intent log.
    ///
    /// # Errors
    /// The file system is open for reading (`EROFS`); the pool cannot be written any more.
    pub fn sync(&self) -> Result<()> {
        match &self.set {
            Some(set) => set.sync(),
            None => Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem).into()),
        }
    }
}
