//! A session with the kernel: a descriptor of `/dev/fuse` in, requests out, answers back in.
//!
//! It is our own because no released library carries `FUSE_TMPFILE`, by which files are made without
//! a name. The structures and numbers of the protocol are those of the crate `fuse-abi`.
//!
//! 1. `init`: kernel and server agree on version and features.
//! 2. Threads read the same descriptor; the kernel gives each request to one of them. The thread that
//!    read a request has it served, into a buffer of its own, and reads the next. Nothing is set aside
//!    for a request but what its answer needs.
//! 3. An answer belongs to its request's number, so it may come from another thread, in any order.
//! 4. When the mount is gone reading says `ENODEV`, and the threads end. The last one tells the server.
//!
//! | module | what lives there |
//! |---|---|
//! | `request` | what the kernel asks for |
//! | `filesystem` | what a server looks like, and which request goes where |
//! | `reply` | answers |
//! | `notify` | what the kernel is told unasked |
//! | `init` | the first request |

mod filesystem;
mod init;
mod notify;
mod reply;
mod request;

pub(crate) use filesystem::{Filesystem, Modes};
pub(crate) use notify::Notifier;
pub(crate) use reply::{
    FileAttr, Found, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
pub(crate) use request::{Asked, FileHandle, INodeNo, Writing, waits_for_disk};

use fuse_abi::linux::{fuse_in_header, fuse_write_in};
use reply::Reply;
use request::Operation;
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Largest write that the kernel is to send, in bytes.
const MAX_WRITE: usize = 1 << 20;
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

/// Who may use a mount. The kernel sees to it; this is a second look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Users {
    /// Everyone whom the modes of its files allow it.
    All,
    /// The user with this id.
    Only(u32),
}

/// The threads that serve a mount.
pub(crate) struct Session {
    device: Arc<OwnedFd>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Session {
    /// Agrees with the kernel and has `threads` threads serve what comes from `device`.
    ///
    /// # Errors
    /// There was no agreement, or there are no threads to be had.
    pub(crate) fn start<F: Filesystem>(
        fs: F,
        device: OwnedFd,
        users: Users,
        threads: usize,
    ) -> io::Result<Session> {
        let device = Arc::new(device);
        init::agree(&fs, &device, &mut Buffer::new())?;
        let server = Arc::new(Server { fs, device: device.clone(), users });
        let start = |n| {
            let (server, name) = (server.clone(), format!("fuse-{n}"));
            std::thread::Builder::new().name(name).spawn(move || server.run())
        };
        let threads = (0..threads).map(start).collect::<io::Result<_>>()?;
        Ok(Session { device, threads })
    }

    /// Tells the kernel what it does not know.
    pub(crate) fn notifier(&self) -> Notifier {
        Notifier(self.device.clone())
    }

    /// Whether the mount is gone and all threads have ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits for the threads.
    ///
    /// # Errors
    /// The first that one of them met.
    pub(crate) fn join(self) -> io::Result<()> {
        let panicked = |_| Err(io::Error::other("a thread panicked"));
        let ends: Vec<_> =
            self.threads.into_iter().map(|t| t.join().unwrap_or_else(panicked)).collect();
        ends.into_iter().collect()
    }
}

/// What the threads share.
struct Server<F: Filesystem> {
    fs: F,
    device: Arc<OwnedFd>,
    users: Users,
}

impl<F: Filesystem> Server<F> {
    /// Serves requests until there will be no more.
    fn run(&self) -> io::Result<()> {
        let mut buffer = Buffer::new();
        loop {
            let Some(bytes) = receive(&self.device, buffer.room())? else { return Ok(()) };
            self.handle(bytes);
        }
    }

    fn handle(&self, bytes: &[u8]) {
        let Some((header, body)) = request::split(bytes) else {
            tracing::warn!("a request of {} bytes", bytes.len());
            return;
        };
        let reply = Reply::new(&self.device, header.unique);
        let operation = match Operation::decode(&header, body) {
            Ok(_) if !self.admits(&header) => Err(Errno::ACCESS),
            decoded => decoded,
        };
        match operation {
            Ok(operation) => filesystem::serve(&self.fs, &header, operation, reply),
            Err(_) if !request::is_answered(header.opcode) => reply.none(),
            Err(e) => reply.error(e),
        }
    }

    fn admits(&self, header: &fuse_in_header) -> bool {
        match self.users {
            Users::All => true,
            Users::Only(user) => header.uid == user || request::is_anyones(header.opcode),
        }
    }
}

impl<F: Filesystem> Drop for Server<F> {
    /// The last thread has ended.
    fn drop(&mut self) {
        self.fs.destroy();
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

/// Waits for a request; `None` if there will be no more.
fn receive<'a>(device: &OwnedFd, room: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
    loop {
        match rustix::io::read(device, &mut *room) {
            // The other end of what stands for the device in tests is gone.
            Ok(0) => return Ok(None),
            Ok(len) => return Ok(Some(room.get(..len).unwrap_or_default())),
            // The request that was to be read was taken back, or there was a signal.
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
            Err(Errno::NODEV) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests;
