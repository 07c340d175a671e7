//! A mount of small files that are made up when they are read, and that do something when they are
//! written, as those below `/sys/module` and `/proc`.
//!
//! A [`Contents`] says which directories and files exist. It is asked each time: the kernel keeps no names, no
//! attributes and no file contents. A file's text is made when the file is opened, so that reads of parts of it fit
//! together. Its size is 0, as in `/proc`.
//!
//! An inode number is given to a path when it is first asked about, and stays with it.

use crate::Force;
use crate::agent::{Agent, MountRequest};
use crate::attach::Allowed;
use crate::caller::Caller;
use crate::error::MountError;
use crate::privilege::allows_other_users;
use crate::served::Served;
use crate::session::{
    Asked, FileAttr, FileHandle, Filesystem, Found, INodeNo, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Writing,
};
use crate::watcher::Watcher;
use cenote_zpl::{Clock, Time};
use fuse_abi::linux::FOPEN_DIRECT_IO;
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What stands under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A directory.
    Directory,
    /// A file that can be read.
    File,
    /// A file that can be read, and written by its owner.
    Setting,
}

/// Why a file was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// What was written makes no sense (`EINVAL`).
    Invalid,
    /// It cannot be written (`EACCES`).
    ReadOnly,
}

/// What the files of a mount are. Paths are relative to the mount; that of its root is empty.
pub trait Contents: Send + Sync + 'static {
    /// The names in a directory; `None` if there is no such directory.
    fn list(&self, dir: &Path) -> Option<Vec<(String, Entry)>>;

    /// The text of a file; `None` if there is no such file.
    fn read(&self, file: &Path) -> Option<String>;

    /// Something was written to a file, in one piece.
    ///
    /// # Errors
    /// See [`Refusal`].
    fn write(&self, file: &Path, text: &str) -> Result<(), Refusal>;
}

/// A mount of made-up files. Dropping it unmounts by force.
pub struct Mount(Served);

impl Mount {
    /// Mounts at `dir`, an existing directory. The mount's source is `source`, its type
    /// `fuse.cenote`. As root every user may read it, else as far as the system's administrator allows.
    /// `by` mounts, in its mount namespace; `agent` is that of this process's.
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn new(
        source: &str,
        dir: &Path,
        contents: Arc<dyn Contents>,
        watcher: Option<Arc<Watcher>>,
        by: &dyn Agent,
        agent: Arc<dyn Agent>,
    ) -> Result<Mount, MountError> {
        let allowed = Allowed { writable: true, setuid: false, devices: false, exec: false };
        let request = MountRequest {
            mountpoint: dir.to_owned(),
            source: source.into(),
            subtype: "cenote".into(),
            flags: allowed.flags(MountFlags::NOATIME).bits(),
            other_users: allows_other_users(),
            root: "/".into(),
            make: false,
            overlay: true,
        };
        let server = Server { contents, state: Mutex::default(), since: Clock::default().now() };
        let (served, _) = Served::new(server, request, watcher, by, agent)?;
        Ok(Mount(served))
    }

    /// Where it is mounted (without symbolic links).
    pub fn mountpoint(&self) -> &Path {
        self.0.mountpoint()
    }

    /// Whether it was mounted at a path (without symbolic links) of a mount namespace.
    pub fn is_at(&self, path: &Path, namespace: u64) -> bool {
        self.0.places_in(namespace).iter().any(|place| place == path)
    }

    /// Whether it is still being served: not after someone else unmounted it.
    pub fn is_mounted(&self) -> bool {
        self.0.is_mounted()
    }

    /// Has `by` unmount it in its mount namespace; without force not if files in it are open.
    ///
    /// # Errors
    /// [`MountError::Busy`].
    pub fn unmount(&mut self, force: Force, by: &dyn Agent) -> Result<(), MountError> {
        self.0.detach(force, None, by)?;
        self.0.say_goodbye();
        Ok(())
    }
}

#[derive(Default)]
struct State {
    numbers: HashMap<PathBuf, u64>,
    /// Path of each number from 2 on; 1 is the root.
    paths: Vec<PathBuf>,
    /// What is open for reading.
    open: HashMap<u64, Arc<[u8]>>,
    last_handle: u64,
}

struct Server {
    contents: Arc<dyn Contents>,
    state: Mutex<State>,
    /// The time that files show.
    since: Time,
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn path(&self, ino: INodeNo) -> Option<PathBuf> {
        match ino.0.checked_sub(2) {
            None => Some(PathBuf::new()),
            Some(at) => self.state().paths.get(usize::try_from(at).ok()?).cloned(),
        }
    }

    fn number(&self, path: &Path) -> u64 {
        let mut state = self.state();
        if path.as_os_str().is_empty() {
            return 1;
        }
        if let Some(number) = state.numbers.get(path) {
            return *number;
        }
        state.paths.push(path.to_owned());
        let number = state.paths.len() as u64 + 1;
        state.numbers.insert(path.to_owned(), number);
        number
    }

    /// What stands at `path`.
    fn entry(&self, path: &Path) -> Option<Entry> {
        let Some(name) = path.file_name() else { return Some(Entry::Directory) };
        let names = self.contents.list(path.parent()?)?;
        names.into_iter().find(|(n, _)| OsStr::new(n) == name).map(|(_, entry)| entry)
    }

    fn attr(&self, path: &Path) -> Option<FileAttr> {
        let entry = self.entry(path)?;
        let (kind, perm, nlink) = match entry {
            Entry::Directory => (FileType::Directory, 0o555, 2),
            Entry::File => (FileType::RegularFile, 0o444, 1),
            Entry::Setting => (FileType::RegularFile, 0o644, 1),
        };
        let time = self.since;
        Some(FileAttr {
            ino: INodeNo(self.number(path)),
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            kind,
            perm,
            nlink,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: 4096,
            pending: false,
        })
    }

    fn attr_of(&self, ino: INodeNo) -> Result<FileAttr, Errno> {
        self.path(ino).and_then(|path| self.attr(&path)).ok_or(Errno::NOENT)
    }

    /// Opens a file: its handle.
    fn open_file(&self, ino: INodeNo, flags: OFlags) -> Result<u64, Errno> {
        let path = self.path(ino).ok_or(Errno::NOENT)?;
        let text = match flags & OFlags::RWMODE {
            OFlags::WRONLY => self.entry(&path).map(|_| String::new()),
            _ => self.contents.read(&path),
        };
        let text = text.ok_or(Errno::NOENT)?;
        let mut state = self.state();
        state.last_handle += 1;
        let handle = state.last_handle;
        state.open.insert(handle, text.into_bytes().into());
        Ok(handle)
    }

    fn write_file(&self, ino: INodeNo, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let path = self.path(ino).ok_or(Errno::NOENT)?;
        let text = std::str::from_utf8(data).ok().filter(|_| offset == 0).ok_or(Errno::INVAL)?;
        self.contents.write(&path, text).map_err(|refusal| match refusal {
            Refusal::Invalid => Errno::INVAL,
            Refusal::ReadOnly => Errno::ACCESS,
        })
    }
}

impl Filesystem for Server {
    fn lookup(&self, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let attr = self.path(parent).and_then(|dir| self.attr(&dir.join(name)));
        let (name_kept, attr_kept) = (Duration::ZERO, Duration::ZERO);
        match attr {
            Some(attr) => reply.entry(&Found { attr, generation: 0, name_kept, attr_kept }),
            None => reply.error(Errno::NOENT),
        }
    }

    fn getattr(&self, ino: INodeNo, reply: ReplyAttr) {
        match self.attr_of(ino) {
            Ok(attr) => reply.attr(Duration::ZERO, &attr),
            Err(e) => reply.error(e),
        }
    }

    fn setattr(&self, _who: Caller, ino: INodeNo, asked: Asked, reply: ReplyAttr) {
        let Asked { mode: None, uid: None, gid: None, .. } = asked else {
            return reply.error(self.attr_of(ino).err().unwrap_or(Errno::PERM));
        };
        // A shell truncates what it is going to write.
        self.getattr(ino, reply);
    }

    fn open(&self, _who: Caller, ino: INodeNo, flags: OFlags, reply: ReplyOpen) {
        match self.open_file(ino, flags) {
            Ok(handle) => reply.opened(FileHandle(handle), FOPEN_DIRECT_IO),
            Err(e) => reply.error(e),
        }
    }

    fn read(&self, fh: FileHandle, offset: u64, size: u32, _flags: OFlags, reply: ReplyData) {
        let Some(text) = self.state().open.get(&fh.0).cloned() else {
            return reply.error(Errno::BADF);
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let to = from.saturating_add(size as usize).min(text.len());
        reply.data(text.get(from..to).unwrap_or_default());
    }

    fn write(
        &self,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _how: Writing,
        reply: ReplyWrite,
    ) {
        match self.write_file(ino, offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(e),
        }
    }

    fn release(&self, fh: FileHandle, reply: ReplyEmpty) {
        self.state().open.remove(&fh.0);
        reply.ok();
    }

    fn readdir(&self, ino: INodeNo, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.path(ino).and_then(|dir| Some((self.contents.list(&dir)?, dir)));
        let Some((names, dir)) = listed else { return reply.error(Errno::NOENT) };
        let up = dir.parent().map_or(1, |parent| self.number(parent));
        let dots = [(ino.0, ".".into(), Entry::Directory), (up, "..".into(), Entry::Directory)];
        let numbered =
            |(name, entry): (String, Entry)| (self.number(&dir.join(&name)), name, entry);
        let all = dots.into_iter().chain(names.into_iter().map(numbered));
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, (number, name, entry)) in (1..).zip(all).skip(from) {
            let kind = match entry {
                Entry::Directory => FileType::Directory,
                Entry::File | Entry::Setting => FileType::RegularFile,
            };
            if reply.add(INodeNo(number), next, kind, name.as_bytes()) {
                break;
            }
        }
        reply.ok();
    }
}
