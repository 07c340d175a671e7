//! A session with the kernel: a descriptor of `/dev/fuse` in, requests out, answers back in.
//!
//! It is our own because no released library carries `FUSE_TMPFILE`, by which files are made without
//! a name. The structures and numbers of the protocol come from the crate `fuse-abi`.
//!
//! 1. `init`: kernel and server agree on version and features.
//! 2. Threads that all connections share read requests. The thread that read a request has it served,
//!    into a buffer of its own, and reads the next.
//! 3. An answer belongs to its request's number, so it may come from another thread, in any order.
//! 4. When the mount is gone reading says `ENODEV`. The last thread that serves a request tells the server.
//!
//! | module | what lives there |
//! |---|---|
//! | `request` | what the kernel asks for |
//! | `filesystem` | what a server looks like, and which request goes where |
//! | `reply` | answers |
//! | `notify` | what the kernel is told unasked |
//! | `init` | the first request |
//! | `readers` | the threads |
//! | `later` | what they do once they have let go of a request |
//! | `lead` | which of them waits for requests |
//! | `brief` | whether the leader leads on while it waits until changes are on disk |
//! | `poll` | how long it looks for the next one before it sleeps |
//! | `clones` | descriptors of their own |

mod brief;
mod clones;
mod filesystem;
mod init;
mod later;
mod lead;
mod notify;
mod poll;
mod readers;
mod reply;
mod request;

pub(crate) use filesystem::Filesystem;
#[cfg(test)]
pub(crate) use later::Serving;
pub(crate) use later::{leave, may_leave};
pub use notify::Forgetting;
pub(crate) use notify::{Notice, Notifier, Work};
pub(crate) use reply::{
    FileAttr, Found, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
pub(crate) use request::{Asked, FileHandle, INodeNo, Modes, Writing, waits_for_disk};

use fuse_abi::linux::{fuse_in_header, fuse_write_in};
use parking_lot::{Condvar, Mutex, MutexGuard};
use readers::{Serve, readers};
use reply::Reply;
use request::Operation;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Largest write that the kernel is to send, in bytes.
const MAX_WRITE: usize = 1 << 20;
/// Bytes of a request from which on it takes as long as many others.
const LARGE: usize = 128 << 10;
/// Requests of which it is known that their programs were interrupted.
const INTERRUPTED: usize = 1024;
/// Room in a buffer for what comes with the data.
const HEADERS: usize = 4096;

/// Whether some bytes are a request that is understood. Returns for any bytes.
pub fn is_request(bytes: &[u8]) -> bool {
    let decoded = request::split(bytes).map(|(header, body)| Operation::decode(&header, body));
    match decoded {
        Some(Ok(Operation::BatchForget(all))) => all.iter().count() <= bytes.len(),
        decoded => matches!(decoded, Some(Ok(_))),
    }
}

/// The users that may use a mount. The kernel sees to it; this is a second look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Users {
    /// Everyone whom the modes of its files allow it.
    All,
    /// The user with this id.
    Only(u32),
}

/// A connection to the kernel that is served.
pub(crate) struct Session {
    device: Arc<OwnedFd>,
    end: Arc<End>,
}

/// How a session ended.
#[derive(Default)]
struct End {
    /// Nothing is served any more, and an error if one was the reason.
    state: Mutex<(bool, Option<io::Error>)>,
    changed: Condvar,
}

impl End {
    fn lock(&self) -> MutexGuard<'_, (bool, Option<io::Error>)> {
        self.state.lock()
    }
}

impl Session {
    /// Agrees with the kernel and has what comes from `device` served by the process's threads.
    ///
    /// # Errors
    /// There was no agreement, or there are no threads to be had.
    pub(crate) fn start<F: Filesystem>(
        fs: F,
        device: OwnedFd,
        users: Users,
    ) -> io::Result<Session> {
        let device = Arc::new(device);
        init::agree(&fs, &device, &mut Buffer::new())?;
        Session::serve(fs, device, users)
    }

    fn serve<F: Filesystem>(fs: F, device: Arc<OwnedFd>, users: Users) -> io::Result<Session> {
        let flags = rustix::fs::fcntl_getfl(&device)?;
        rustix::fs::fcntl_setfl(&device, flags | OFlags::NONBLOCK)?;
        let end = Arc::new(End::default());
        let interrupted = Mutex::default();
        let server = Arc::new(Server { fs, users, end: end.clone(), interrupted });
        readers().add(device.clone(), server)?;
        Ok(Session { device, end })
    }

    /// Tells the kernel what it does not know.
    pub(crate) fn notifier(&self) -> Notifier {
        Notifier::new(self.device.clone())
    }

    /// The descriptor, by which the same file system can be mounted once more.
    pub(crate) fn device(&self) -> &OwnedFd {
        &self.device
    }

    /// Whether the mount is gone and no thread serves it any more.
    pub(crate) fn is_finished(&self) -> bool {
        self.end.lock().0
    }

    /// Waits until it is.
    ///
    /// # Errors
    /// The descriptor failed for another reason than that the mount is gone.
    pub(crate) fn join(self) -> io::Result<()> {
        let mut state = self.end.lock();
        while !state.0 {
            self.end.changed.wait(&mut state);
        }
        state.1.take().map_or(Ok(()), Err)
    }
}

/// What serves one connection.
struct Server<F: Filesystem> {
    fs: F,
    users: Users,
    end: Arc<End>,
    /// Numbers of requests whose programs were interrupted last.
    interrupted: Mutex<VecDeque<u64>>,
}

impl<F: Filesystem> Serve for Server<F> {
    fn handle(&self, device: &Arc<OwnedFd>, bytes: &[u8]) {
        let Some((header, body)) = request::split(bytes) else {
            tracing::warn!("a request of {} bytes", bytes.len());
            return;
        };
        let reply = Reply::new(device, header.unique);
        let operation = match Operation::decode(&header, body) {
            Ok(_) if !self.admits(&header) => Err(Errno::ACCESS),
            decoded => decoded,
        };
        match operation {
            Ok(Operation::Interrupt(number)) => {
                reply.none();
                self.interrupt(number);
            }
            Ok(operation) => filesystem::serve(&self.fs, &header, operation, reply),
            Err(_) if !request::is_answered(header.opcode) => reply.none(),
            Err(e) => reply.error(e),
        }
    }

    fn is_large(&self, bytes: &[u8]) -> bool {
        request::bytes_of(bytes) >= LARGE
    }

    fn broken(&self, why: &str) {
        self.fs.broken(why);
    }

    fn failed(&self, e: io::Error) {
        self.end.lock().1.get_or_insert(e);
    }

    fn is_interrupted(&self, number: u64) -> bool {
        self.interrupted.lock().contains(&number)
    }
}

impl<F: Filesystem> Server<F> {
    /// A program was interrupted while it waits for the answer to a request. The thread that serves it sees that if it
    /// waits for a suspended pool, or once it does.
    fn interrupt(&self, number: u64) {
        let mut interrupted = self.interrupted.lock();
        if interrupted.len() >= INTERRUPTED {
            interrupted.pop_front();
        }
        interrupted.push_back(number);
        drop(interrupted);
        self.fs.interrupted(number);
    }

    fn admits(&self, header: &fuse_in_header) -> bool {
        match self.users {
            Users::All => true,
            Users::Only(user) => header.uid == user || request::is_anyones(header.opcode),
        }
    }
}

impl<F: Filesystem> Drop for Server<F> {
    /// The last request was served.
    fn drop(&mut self) {
        self.fs.destroy();
        self.end.lock().0 = true;
        self.end.changed.notify_all();
    }
}

/// What one thread reads requests into.
struct Buffer {
    bytes: Vec<u8>,
    /// Where a request starts, so that the data of a write starts at a page.
    start: usize,
}

impl Buffer {
    fn new() -> Buffer {
        let size = rustix::param::page_size();
        let bytes = vec![0; MAX_WRITE + HEADERS + 2 * size];
        let before = size_of::<fuse_in_header>() + size_of::<fuse_write_in>();
        let page = bytes.as_ptr().align_offset(size).min(size);
        Buffer { bytes, start: page + size.saturating_sub(before) }
    }

    /// Room for a request. Data that is written starts at a page, as it does in the kernel, which copies
    /// it page by page.
    fn room(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).unwrap_or_default()
    }
}

/// The number of a request; 0 if it has none.
fn number_of(bytes: &[u8]) -> u64 {
    request::split(bytes).map_or(0, |(header, _)| header.unique)
}

/// Reads a request; `None` if no request waits at the moment.
///
/// # Errors
/// `UnexpectedEof`: there will be no more. Others are the descriptor's.
fn receive<'a>(device: &OwnedFd, room: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
    match rustix::io::read(device, &mut *room) {
        // The mount is gone; or the other end of what stands for the device in tests.
        Ok(0) | Err(Errno::NODEV) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(len) => Ok(Some(room.get(..len).unwrap_or_default())),
        // The request that was to be read was taken back or read by another thread, or there was a
        // signal.
        Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests;
