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
//! Then only a mapping of the file makes the kernel keep pages of it. It writes back and forgets those before
//! each write. But one may be read again before the write is done, and changed in a mapping: then it
//! has the bytes of before the write, and written back it would undo the write. So where a file is open
//! more than once a write goes like this:
//!
//! 1. It is made, and *guarded*: until it is done, its bytes replace the bytes of pages that are written
//!    back. A change of them in a mapping meanwhile happens at the same time as the write.
//! 2. The kernel is made to write back and forget the pages ([`Tree::after_contents`]). Those that it reads from
//!    now on have what was written.
//! 3. The guard is taken away, and the write is answered.
//!
//! As a file may be opened and mapped during a write, it is only known after a write that it should have
//! been guarded: it is made once more.
//!
//! What is written under a guard, and what is written back, is done one after the other where it is about the same bytes
//! of a file (`zfs_rangelock_enter`): the later request waits. Such a write may wait for a device or for a transaction
//! group; other writes to the file system go on meanwhile, since the table of guards is locked for single steps only.
//!
//! Only kernels with `FUSE_DIRECT_IO_ALLOW_MMAP` (Linux 6.6) let such files be mapped and forget
//! pages before a write, and only since version 7.44 (Linux 6.16) do they wait for pages that are being
//! written back before they forget them. With others no file is opened this way.
//!
//! # What is left to the server
//!
//! A write to a file that is open with `O_DSYNC` is answered once it is on disk: the kernel sends no request
//! of its own for that here. Set-user-id bits go as they do with all writes. A file's capabilities have to go with the
//! first write too, without asking for them: a new file has no capabilities, so it is enough to note which files get
//! some while they are open.
//!
//! [`Inodes`]: crate::inodes::Inodes

use super::handles::Handle;
use super::{Server, errno};
use crate::session::Work;
use crate::tree::Tree;
use ahash::HashMap;
use cenote_vdev::waiting;
use cenote_zpl::Error;
use fuse_abi::linux::{
    FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_NOFLUSH, FUSE_DIRECT_IO_ALLOW_MMAP,
};
use parking_lot::{Condvar, Mutex};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The extended attribute that has a file's capabilities.
pub(super) const CAPABILITY: &[u8] = b"security.capability";
/// Minor version since which the kernel waits for pages that are being written back.
const WAITS_FOR_PAGES: u32 = 44;

/// What is needed to open files past the pages.
#[derive(Default)]
pub(super) struct Direct {
    /// Whether the kernel knows how.
    allowed: AtomicBool,
    guards: Arc<Guards>,
}

impl Direct {
    /// The kernel, of this minor version, has agreed to these `FUSE_*` flags.
    pub(super) fn agreed(&self, minor: u32, flags: u64) {
        let allowed = minor >= WAITS_FOR_PAGES && flags & FUSE_DIRECT_IO_ALLOW_MMAP != 0;
        self.allowed.store(allowed, Ordering::Relaxed);
    }
}

/// Writes that are not done.
#[derive(Default)]
struct Guards {
    files: Mutex<HashMap<u64, Guarding>>,
    /// A range is free again.
    changed: Condvar,
}

/// Those of one file.
#[derive(Default)]
struct Guarding {
    guards: Vec<Arc<Guard>>,
    /// Where something is being written now: offsets of the first byte and after the last one. None overlap.
    written: Vec<(u64, u64)>,
}

impl Guarding {
    fn is_written(&self, (start, end): (u64, u64)) -> bool {
        self.written.iter().any(|other| other.0 < end && start < other.1)
    }
}

/// A range that a thread writes to; no other thread writes there until it is dropped.
struct Range<'a> {
    guards: &'a Guards,
    ino: u64,
    range: (u64, u64),
}

impl Drop for Range<'_> {
    fn drop(&mut self) {
        let mut files = self.guards.files.lock();
        if let Some(file) = files.get_mut(&self.ino) {
            file.written.retain(|other| *other != self.range);
            if file.written.is_empty() && file.guards.is_empty() {
                files.remove(&self.ino);
            }
        }
        self.guards.changed.notify_all();
    }
}

/// The bytes of a write, and where they are.
struct Guard {
    offset: u64,
    data: Vec<u8>,
}

impl Guard {
    /// Puts the bytes over those at `offset`.
    fn cover(&self, offset: u64, data: &mut Cow<'_, [u8]>) {
        let (start, end) = (self.offset.max(offset), offset.saturating_add(data.len() as u64));
        let end = end.min(self.offset.saturating_add(self.data.len() as u64));
        let Some(len) = end.checked_sub(start).filter(|len| *len > 0) else { return };
        let of = |from: u64| from as usize..(from + len) as usize;
        let ours = self.data.get(of(start - self.offset));
        if let (Some(theirs), Some(ours)) = (data.to_mut().get_mut(of(start - offset)), ours) {
            theirs.copy_from_slice(ours);
        }
    }
}

impl Guards {
    /// Takes a range for this thread, and does `then` at that moment.
    fn enter<T>(
        &self,
        ino: u64,
        (offset, len): (u64, usize),
        then: impl FnOnce(&mut Guarding) -> T,
    ) -> (Range<'_>, T) {
        let range = (offset, offset.saturating_add(len as u64));
        let mut files = self.files.lock();
        while files.get(&ino).is_some_and(|file| file.is_written(range)) {
            waiting::begins();
            self.changed.wait(&mut files);
        }
        let file = files.entry(ino).or_default();
        file.written.push(range);
        let done = then(file);
        (Range { guards: self, ino, range }, done)
    }

    /// Makes a write that is guarded from now on.
    fn begin(&self, ino: u64, guard: &Arc<Guard>, write: impl FnOnce()) {
        let at = (guard.offset, guard.data.len());
        let (_range, ()) = self.enter(ino, at, |file| file.guards.push(guard.clone()));
        write();
    }

    fn end(&self, ino: u64, guard: &Arc<Guard>) {
        let mut files = self.files.lock();
        if let Some(file) = files.get_mut(&ino) {
            file.guards.retain(|known| !Arc::ptr_eq(known, guard));
            if file.guards.is_empty() && file.written.is_empty() {
                files.remove(&ino);
            }
        }
    }

    /// Writes what a page has, but for what is guarded.
    fn write_back<T>(
        &self,
        ino: u64,
        (offset, data): (u64, &[u8]),
        write: impl FnOnce(&[u8]) -> T,
    ) -> T {
        let (_range, guards) = self.enter(ino, (offset, data.len()), |file| file.guards.clone());
        let mut data = Cow::Borrowed(data);
        guards.iter().for_each(|guard| guard.cover(offset, &mut data));
        write(&data)
    }
}

/// A write that is guarded; it counts as one more open file. When it is dropped it is done.
struct Guarded {
    tree: Arc<Tree>,
    guards: Arc<Guards>,
    ino: u64,
    guard: Arc<Guard>,
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.guards.end(self.ino, &self.guard);
        self.tree.inodes.leave_direct(self.ino);
    }
}

/// What an open file is told to the kernel as: its pages stay valid, and there is nothing to be done
/// when a descriptor is closed.
const OPENED: u32 = FOPEN_KEEP_CACHE | FOPEN_NOFLUSH;

/// What an open file is told to the kernel as: past its pages; with those that it has.
pub(super) fn opened(direct: bool, keeps_pages: bool) -> u32 {
    let flags = if direct { OPENED | FOPEN_DIRECT_IO } else { OPENED };
    if keeps_pages { flags } else { flags & !FOPEN_KEEP_CACHE }
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
        if !handle.how.direct || !self.tree.inodes.take_capability(handle.node.ino()) {
            return Ok(());
        }
        let removed = handle.fs.remove_xattr(handle.object, CAPABILITY).map_err(|e| errno(&e));
        // Someone else may have taken them away.
        removed.or_else(|e| if e == Errno::NODATA { Ok(()) } else { Err(e) })
    }

    /// Writes what pages of a file have that were changed in a mapping.
    pub(super) fn write_back<T>(
        &self,
        handle: &Handle,
        (offset, data): (u64, &[u8]),
        write: impl FnOnce(&[u8]) -> T,
    ) -> T {
        let ino = handle.node.ino();
        match handle.how.direct {
            true => self.direct.guards.write_back(ino, (offset, data), write),
            false => write(data),
        }
    }

    /// `data` was written to a file past the pages: processes that have mapped it are to see it, and not to
    /// undo it. `write` makes the same write again. Returns what has to be done before the write is
    /// answered, by calling it with how it is answered.
    pub(super) fn written(
        &self,
        handle: &Handle,
        (offset, data): (u64, &[u8]),
        write: impl FnOnce() -> Result<usize, Error>,
    ) -> Result<Option<impl FnOnce(Work) + Send + 'static>, Error> {
        let ino = handle.node.ino();
        if !handle.how.direct || !self.tree.inodes.join_shared_direct(ino) {
            return Ok(None);
        }
        let (tree, guards) = (self.tree.clone(), self.direct.guards.clone());
        let guard = Arc::new(Guard { offset, data: data.to_vec() });
        let guarded = Guarded { tree, guards, ino, guard };
        let mut done = Ok(0);
        guarded.guards.begin(ino, &guarded.guard, || done = write());
        done?;
        let range = (ino, offset, data.len() as u64);
        let tree = self.tree.clone();
        Ok(Some(move |answer: Work| {
            let done = move || {
                drop(guarded);
                answer();
            };
            tree.after_contents(range, Box::new(done));
        }))
    }

    /// Whether a file that is opened may be changed in a mapping: only what is open to be read as well
    /// as written can.
    pub(super) fn opens_mappable(&self, ino: u64, flags: OFlags) -> bool {
        flags & OFlags::RWMODE == OFlags::RDWR && self.tree.inodes.begin_mapping(ino)
    }

    /// An open file is closed.
    pub(super) fn closed(&self, handle: &Handle) {
        if handle.how.direct {
            self.tree.inodes.leave_direct(handle.node.ino());
        }
        if handle.how.maps {
            self.tree.inodes.end_mapping(handle.node.ino());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_guarded_covers_what_is_written_back() {
        let guards = Guards::default();
        let guard = |offset, data: &[u8]| Arc::new(Guard { offset, data: data.to_vec() });
        let (first, second) = (guard(4, b"abcd"), guard(7, b"XY"));
        let back = |offset, data: &[u8]| guards.write_back(7, (offset, data), |data| data.to_vec());
        guards.begin(7, &first, || {});
        guards.begin(7, &second, || {});
        guards.begin(8, &guard(0, b"other"), || {});
        assert_eq!(back(0, b"0123456789"), b"0123abcXY9");
        assert_eq!(back(5, b"--"), b"bc");
        assert_eq!(back(2, b"---"), b"--a");
        assert_eq!(back(8, b"--"), b"Y-");
        assert_eq!(back(9, b"--"), b"--");
        assert_eq!(back(0, b"----"), b"----");
        guards.end(7, &second);
        assert_eq!(back(0, b"0123456789"), b"0123abcd89");
        guards.end(7, &first);
        assert_eq!(back(4, b"4567"), b"4567");
        assert_eq!(guards.files.lock().len(), 1);
    }

    /// A write that waits for a device keeps only those waiting that write the same bytes.
    #[test]
    fn only_the_same_bytes_wait_for_a_write_that_waits() {
        let guards = Guards::default();
        let guard = Arc::new(Guard { offset: 4, data: b"abcd".to_vec() });
        let (started, start) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (guards, guard) = (&guards, &guard);
            scope.spawn(move || {
                guards.begin(7, guard, || {
                    started.send(()).unwrap();
                    ended.recv().unwrap();
                });
            });
            start.recv().unwrap();
            assert_eq!(guards.write_back(7, (8, b"89"), |data| data.to_vec()), b"89");
            assert_eq!(guards.write_back(8, (4, b"4567"), |data| data.to_vec()), b"4567");
            scope.spawn(move || {
                guards.write_back(7, (2, b"----"), |data| tell.send(data.to_vec()).unwrap());
            });
            assert!(told.recv_timeout(std::time::Duration::from_millis(50)).is_err());
            end.send(()).unwrap();
            assert_eq!(told.recv().unwrap(), b"--ab");
        });
        guards.end(7, &guard);
        assert!(guards.files.lock().is_empty());
    }
}
