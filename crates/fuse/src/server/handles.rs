//! Open files and directories, by the numbers that the kernel was given for them.

use crate::graft::InUse;
use crate::session::FileHandle;
use crate::tree::Node;
use ahash::HashMap;
use cenote_dmu::readahead::ReadAhead;
use cenote_zpl::{Error, File, FileSystem};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Number of shards, so that opening and closing different files do not wait for each other.
const SHARDS: usize = 16;

/// How a file was opened.
pub(super) struct Opening {
    /// To be written to.
    pub(super) writes: bool,
    /// Past the kernel's pages.
    pub(super) direct: bool,
    /// So that it may be changed in a mapping.
    pub(super) maps: bool,
    /// Who changes it waits until that is on disk (`O_DSYNC`).
    pub(super) durable: bool,
    /// Reading changes the access time, if the file system's properties want it.
    pub(super) notes_access: bool,
}

/// An open file.
pub(super) struct Handle {
    pub(super) node: Node,
    pub(super) fs: Arc<FileSystem>,
    pub(super) object: u64,
    /// The file to read from, once it was read from.
    file: OnceLock<File>,
    pub(super) ahead: ReadAhead,
    used: InUse,
    pub(super) how: Opening,
    /// The second in which its access time was changed last.
    noted: AtomicU64,
}

impl Handle {
    pub(super) fn new(
        node: Node,
        fs: Arc<FileSystem>,
        object: u64,
        used: InUse,
        how: Opening,
    ) -> Handle {
        let (file, ahead) = (OnceLock::new(), ReadAhead::new());
        Handle { node, fs, object, file, ahead, used, how, noted: AtomicU64::new(0) }
    }

    /// Whether its file system was taken away by force.
    pub(super) fn is_gone(&self) -> bool {
        self.used.is_gone()
    }

    /// Whether a read in this second is to change the access time. Once a second is enough.
    pub(super) fn notes_access(&self, second: u64) -> bool {
        self.how.notes_access
            && self.noted.load(Ordering::Relaxed) != second
            && self.noted.swap(second, Ordering::Relaxed) != second
    }

    /// The file to read from.
    pub(super) fn file(&self) -> Result<&File, Error> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = self.fs.open_file(self.object)?;
        Ok(self.file.get_or_init(|| file))
    }
}

/// Open files, and open directories of grafts.
pub(super) struct Handles {
    files: Vec<Mutex<HashMap<u64, Arc<Handle>>>>,
    directories: Mutex<HashMap<u64, InUse>>,
    /// Number of the next open file or directory.
    next: AtomicU64,
}

impl Handles {
    pub(super) fn new() -> Handles {
        Handles {
            files: (0..SHARDS).map(|_| Mutex::default()).collect(),
            directories: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }

    fn shard(&self, number: u64) -> Option<MutexGuard<'_, HashMap<u64, Arc<Handle>>>> {
        let shard = self.files.get(number as usize % SHARDS)?;
        Some(shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn open(&self, handle: Handle) -> FileHandle {
        let number = self.number();
        if let Some(mut shard) = self.shard(number) {
            shard.insert(number, Arc::new(handle));
        }
        FileHandle(number)
    }

    /// An open file; an error after its file system was taken away by force.
    pub(super) fn get(&self, fh: FileHandle) -> Result<Arc<Handle>, Errno> {
        match self.shard(fh.0).and_then(|shard| shard.get(&fh.0).cloned()) {
            Some(handle) if handle.is_gone() => Err(Errno::IO),
            Some(handle) => Ok(handle),
            None => Err(Errno::BADF),
        }
    }

    pub(super) fn close(&self, fh: FileHandle) -> Option<Arc<Handle>> {
        self.shard(fh.0).and_then(|mut shard| shard.remove(&fh.0))
    }

    fn directories(&self) -> MutexGuard<'_, HashMap<u64, InUse>> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open_directory(&self, used: InUse) -> FileHandle {
        let number = self.number();
        self.directories().insert(number, used);
        FileHandle(number)
    }

    pub(super) fn close_directory(&self, fh: FileHandle) {
        if fh.0 != 0 {
            let _closed = self.directories().remove(&fh.0);
        }
    }
}
