//! New files that are only written to, past the kernel's pages.
//!
//! # Idea
//!
//! Most new files are written from beginning to end and closed: a tree is copied or unpacked, a
//! program is compiled. What the kernel does with their contents meanwhile costs more than it is worth.
//! For each it asks whether the file has `security.capability`, a request that the writer waits for, and
//! it fills pages of which few are read before they are dropped. So a file that is created to be written
//! to only is opened with `FOPEN_DIRECT_IO`: what is written comes here, and nowhere else.
//!
//! # Coherence
//!
//! An open file that bypasses the pages and one that reads from them would not agree. So as long as
//! there is one of the first kind, which [`Inodes`] count, every `open` of the file is of that kind.
//! Then only who maps the file makes the kernel keep pages of it. It forgets those before each write.
//! But one may be read again before the write is done, so where a file is open more than once it is
//! told to forget them afterwards, too. That waits for reads under way, which the threads that answer
//! requests must be free to serve: a thread of its own tells it. Until that is done it counts as one
//! more open file.
//!
//! Only kernels with `FUSE_DIRECT_IO_ALLOW_MMAP` (Linux 6.6) let such files be mapped and forget
//! pages before a write. With others no file is opened this way.
//!
//! # What is left to the server
//!
//! Who has a file open with `O_DSYNC` waits until a write is on disk, for which the kernel does not ask
//! by a request of its own here. Set-user-id bits go as they do with all writes. A file's capabilities have to go with the first
//! write too, and nobody asks for them: a new file has none, so it is enough to note which files get
//! some while they are open.
//!
//! [`Inodes`]: crate::inodes::Inodes

use super::data::OPENED;
use super::handles::Handle;
use super::{Server, errno};
use crate::tree::Tree;
use fuse_abi::linux::{FOPEN_DIRECT_IO, FUSE_DIRECT_IO_ALLOW_MMAP};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

/// The extended attribute that has a file's capabilities.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// Bytes of a file that the kernel is to forget: inode number, offset, length.
type Range = (u64, u64, u64);

/// What is needed to open files past the pages.
#[derive(Default)]
pub(super) struct Direct {
    /// Whether the kernel knows how.
    allowed: AtomicBool,
    /// The thread that makes the kernel forget.
    forget: OnceLock<Option<Sender<Range>>>,
}

impl Direct {
    /// The kernel has agreed to these `FUSE_*` flags.
    pub(super) fn agreed(&self, flags: u64) {
        self.allowed.store(flags & FUSE_DIRECT_IO_ALLOW_MMAP != 0, Ordering::Relaxed);
    }

    /// The thread ends when this is dropped.
    fn start(tree: &Arc<Tree>) -> Option<Sender<Range>> {
        let (queue, all) = channel::<Range>();
        let tree = tree.clone();
        let run = move || all.into_iter().for_each(|range| forget(&tree, range));
        match cenote_vdev::background("fuse-forget", run) {
            Ok(_) => Some(queue),
            Err(e) => {
                tracing::warn!("no thread to make the kernel forget pages: {e}");
                None
            }
        }
    }
}

fn forget(tree: &Tree, (ino, offset, len): Range) {
    tree.contents_changed(ino, offset, len);
    tree.inodes.leave_direct(ino);
}

/// What an open file is told to the kernel as.
pub(super) fn opened(direct: bool) -> u32 {
    if direct { OPENED | FOPEN_DIRECT_IO } else { OPENED }
}

impl Server {
    /// Whether a file that was just created is opened past the pages.
    pub(super) fn opens_new_directly(&self, ino: u64, flags: OFlags) -> bool {
        flags & OFlags::RWMODE == OFlags::WRONLY
            && self.direct.allowed.load(Ordering::Relaxed)
            && self.tree.inodes.begin_direct(ino)
    }

    /// Takes away a file's capabilities before something is written to it past the pages.
    pub(super) fn drop_capability(&self, handle: &Handle) -> Result<(), Errno> {
        if !handle.direct || !self.tree.inodes.take_capability(handle.node.ino()) {
            return Ok(());
        }
        let removed = handle.fs.remove_xattr(handle.object, CAPABILITY).map_err(|e| errno(&e));
        // Someone else may have taken them away.
        removed.or_else(|e| if e == Errno::NODATA { Ok(()) } else { Err(e) })
    }

    /// Something was written to a file: whoever else has mapped it is to see it.
    pub(super) fn written(&self, handle: &Handle, offset: u64, len: u64) {
        let ino = handle.node.ino();
        if !handle.direct || !self.tree.inodes.join_shared_direct(ino) {
            return;
        }
        let queue = self.direct.forget.get_or_init(|| Direct::start(&self.tree));
        let range = (ino, offset, len);
        if queue.as_ref().is_none_or(|queue| queue.send(range).is_err()) {
            forget(&self.tree, range);
        }
    }

    /// An open file is closed.
    pub(super) fn closed(&self, handle: &Handle) {
        if handle.direct {
            self.tree.inodes.leave_direct(handle.node.ino());
        }
    }
}
