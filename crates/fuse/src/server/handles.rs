//! Open files and directories, by the numbers that the kernel was given for them.
//!
//! A [`Handle`] is an open file: its node, its file system, how it was opened, and how it is read ahead. Handles lie in several tables,
//! so that opening and closing different files do not wait for each other.
//!
//! When a file system gets other contents below its mount, its handles are *moved* ([`Handle::moved`]). The number of the file may stand for
//! the same file there, for another one, or for no file. Where that is not known before the file is read it is in doubt, and is found out
//! by the generation when the handle is next used. A handle that is lost stays lost, whatever contents come later.

use crate::branch::InUse;
use crate::fate::stands;
use crate::inodes::Standing;
use crate::node::Node;
use crate::session::FileHandle;
use ahash::HashMap;
use cenote_dmu::readahead::ReadAhead;
use cenote_zpl::{Error, File, FileSystem};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Number of shards, so that opening and closing different files do not wait for each other.
const SHARDS: usize = 16;

/// How a file was opened.
#[derive(Clone, Copy)]
pub(crate) struct Opening {
    /// To be written to.
    pub(crate) writes: bool,
    /// Past the kernel's pages.
    pub(crate) direct: bool,
    /// To be written to at its end (`O_APPEND`).
    pub(crate) appends: bool,
    /// So that it may be changed in a mapping.
    pub(crate) maps: bool,
    /// A change of it waits until it is on disk (`O_DSYNC`).
    pub(crate) durable: bool,
    /// Reading changes the access time, if the file system's properties want it.
    pub(crate) notes_access: bool,
}

/// An open file.
pub(crate) struct Handle {
    pub(crate) node: Node,
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) object: u64,
    /// The file to read from, once it was read from.
    file: OnceLock<File>,
    pub(crate) ahead: ReadAhead,
    used: InUse,
    pub(crate) how: Opening,
    /// The second in which its access time was changed last.
    noted: AtomicU64,
    /// Whether it is in the file system no more, which has other contents now. Empty: that is in doubt, and it is if the file has
    /// not the generation `told`.
    lost: OnceLock<bool>,
    told: u64,
    /// It has other contents now, and the kernel may still go by the size of before.
    resized: AtomicBool,
}

impl Handle {
    pub(crate) fn new(
        node: Node,
        fs: Arc<FileSystem>,
        object: u64,
        used: InUse,
        how: Opening,
    ) -> Handle {
        let (file, ahead) = (OnceLock::new(), ReadAhead::new());
        let (noted, lost, told) = (AtomicU64::new(0), OnceLock::from(false), 0);
        let resized = AtomicBool::new(false);
        Handle { node, fs, object, file, ahead, used, how, noted, lost, told, resized }
    }

    /// The same open file where the file system has other contents now. Its number stands for a file of the generation `told`,
    /// or not. A file that is in doubt still, since contents before, keeps its own generation: its number may have been told for
    /// another file since.
    pub(crate) fn moved(
        &self,
        node: Node,
        fs: Arc<FileSystem>,
        (standing, told): (Standing, u64),
    ) -> Handle {
        let moved = Handle::new(node, fs, self.object, self.used.again(), self.how);
        let before = self.lost.get().copied();
        let own = if before.is_none() { self.told } else { told };
        let lost = match standing {
            Standing::Stale => OnceLock::from(true),
            _ if before == Some(true) => OnceLock::from(true),
            Standing::Sure => OnceLock::from(own != told),
            Standing::Doubtful => OnceLock::new(),
        };
        Handle { lost, told: own, resized: AtomicBool::new(true), ..moved }
    }

    /// Whether what is appended may come with the end that the file had before it was [moved](Handle::moved).
    pub(crate) fn doubts_end(&self) -> bool {
        self.how.appends && self.resized.load(Ordering::Relaxed)
    }

    /// The kernel goes by the right size.
    pub(crate) fn trusts_end(&self) {
        self.resized.store(false, Ordering::Relaxed);
    }

    /// Whether its file system was taken away by force, or it is lost.
    ///
    /// # Errors
    /// That is in doubt, and the file cannot be read.
    pub(crate) fn is_gone(&self) -> Result<bool, Error> {
        if self.used.is_gone() {
            return Ok(true);
        }
        if let Some(lost) = self.lost.get() {
            return Ok(*lost);
        }
        let lost = !stands(&self.fs, self.object, self.told)?;
        Ok(*self.lost.get_or_init(|| lost))
    }

    /// Whether a read in this second is to change the access time. Once a second is enough.
    pub(crate) fn notes_access(&self, second: u64) -> bool {
        self.how.notes_access
            && self.noted.load(Ordering::Relaxed) != second
            && self.noted.swap(second, Ordering::Relaxed) != second
    }

    /// The file to read from.
    pub(crate) fn file(&self) -> Result<&File, Error> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = self.fs.open_file(self.object)?;
        Ok(self.file.get_or_init(|| file))
    }
}

/// An open directory.
pub(crate) struct Directory {
    /// It is in a submount, which cannot be taken away meanwhile.
    pub(crate) _used: Option<InUse>,
    /// It is in this snapshot, which cannot be destroyed meanwhile.
    pub(crate) _snapshot: Option<Arc<FileSystem>>,
}

/// Open files, and open directories of submounts and snapshots.
pub(crate) struct Handles {
    files: Vec<Mutex<HashMap<u64, Arc<Handle>>>>,
    directories: Mutex<HashMap<u64, Directory>>,
    /// Number of the next open file or directory.
    next: AtomicU64,
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles {
            files: (0..SHARDS).map(|_| Mutex::default()).collect(),
            directories: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }

    fn shard(&self, number: u64) -> Option<MutexGuard<'_, HashMap<u64, Arc<Handle>>>> {
        let shard = self.files.get(number as usize % SHARDS)?;
        Some(shard.lock())
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn open(&self, handle: Handle) -> FileHandle {
        let number = self.number();
        if let Some(mut shard) = self.shard(number) {
            shard.insert(number, Arc::new(handle));
        }
        FileHandle(number)
    }

    /// An open file; an error after its file system was taken away by force.
    pub(crate) fn get(&self, fh: FileHandle) -> Result<Arc<Handle>, Errno> {
        let handle = self.shard(fh.0).and_then(|shard| shard.get(&fh.0).cloned());
        let handle = handle.ok_or(Errno::BADF)?;
        match handle.is_gone() {
            Ok(false) => Ok(handle),
            Ok(true) => Err(Errno::IO),
            Err(e) => Err(Errno::from_raw_os_error(e.errno())),
        }
    }

    pub(crate) fn close(&self, fh: FileHandle) -> Option<Arc<Handle>> {
        self.shard(fh.0).and_then(|mut shard| shard.remove(&fh.0))
    }

    /// Puts in the place of each open file what `renewed` makes of it; with `None` it stays.
    pub(crate) fn renew(&self, renewed: impl Fn(&Handle) -> Option<Handle>) {
        for shard in &self.files {
            let mut shard = shard.lock();
            for handle in shard.values_mut() {
                if let Some(new) = renewed(handle) {
                    *handle = Arc::new(new);
                }
            }
        }
    }

    fn directories(&self) -> MutexGuard<'_, HashMap<u64, Directory>> {
        self.directories.lock()
    }

    pub(crate) fn open_directory(&self, directory: Directory) -> FileHandle {
        let number = self.number();
        self.directories().insert(number, directory);
        FileHandle(number)
    }

    pub(crate) fn close_directory(&self, fh: FileHandle) {
        if fh.0 != 0 {
            let _closed = self.directories().remove(&fh.0);
        }
    }
}
