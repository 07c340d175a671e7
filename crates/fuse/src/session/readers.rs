//! The threads that read and serve requests, shared by all connections of the process.
//!
//! # Idea
//!
//! One epoll instance watches the descriptors of all connections. A thread waits there, reads one
//! request, has the connection watched again, and serves the request. So a connection without
//! requests costs a descriptor and no thread, and a request that waits for a disk keeps no other
//! request waiting.
//!
//! ```text
//!   connections ──> epoll ──one event──> thread: read ─> arm ─> serve ─> wait again
//!                                          │
//!                                          └─ no other thread waits? start one
//! ```
//!
//! A connection is watched for one event (`EPOLLONESHOT`): one request wakes one thread. At most
//! [`MOST`] threads serve one connection, so that a file system whose disks do not answer leaves
//! the threads of the others alone.
//!
//! Threads are started when they are needed. One that has waited for [`REST`] without a request ends,
//! unless there are no more than the processors that the process may use (cgroups and affinity count).
//!
//! # Invariants
//!
//! - A connection is armed, or a thread is about to arm it, or [`MOST`] threads serve it.
//! - While requests are served a thread waits for the next one, if the system lets threads be started.
//! - A connection whose descriptor failed or ended is forgotten. The last thread that serves it drops
//!   what serves it.

use super::{Buffer, receive};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Builder;

/// Most threads that serve one connection at the same time.
pub(super) const MOST: usize = 16;
/// How long a thread waits for a request before it ends.
const REST: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Serves the requests of one connection.
pub(super) trait Serve: Send + Sync {
    /// A request was read. It is answered on `device`.
    fn handle(&self, device: &Arc<OwnedFd>, bytes: &[u8]);

    /// No request can be read any more, because of an error.
    fn failed(&self, e: io::Error);
}

/// A descriptor that requests come from.
struct Connection {
    device: Arc<OwnedFd>,
    server: Arc<dyn Serve>,
    /// Threads that serve it.
    serving: AtomicUsize,
}

/// How many threads there are.
#[derive(Default)]
struct Threads {
    all: usize,
    /// Those that wait for a request.
    idle: usize,
}

/// The threads and what they wait for.
pub(super) struct Readers {
    epoll: OwnedFd,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    last: AtomicU64,
    threads: Mutex<Threads>,
    /// Threads that stay although there is nothing to do.
    kept: usize,
}

/// Those of the process.
pub(super) fn readers() -> io::Result<&'static Readers> {
    static READERS: OnceLock<Readers> = OnceLock::new();
    if let Some(readers) = READERS.get() {
        return Ok(readers);
    }
    let new = Readers::new()?;
    Ok(READERS.get_or_init(|| new))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Readers {
    fn new() -> io::Result<Readers> {
        Ok(Readers {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: Mutex::default(),
            last: AtomicU64::new(0),
            threads: Mutex::default(),
            kept: std::thread::available_parallelism().map_or(1, usize::from),
        })
    }

    /// Has the requests that come from `device` served, until it ends. The descriptor does not block.
    ///
    /// # Errors
    /// The descriptor cannot be watched, or there is no thread to be had.
    pub(super) fn add(
        &'static self,
        device: Arc<OwnedFd>,
        server: Arc<dyn Serve>,
    ) -> io::Result<()> {
        {
            let mut threads = lock(&self.threads);
            if threads.all == 0 {
                self.start(&mut threads)?;
            }
        }
        let token = self.last.fetch_add(1, Ordering::Relaxed);
        let connection =
            Connection { device: device.clone(), server, serving: AtomicUsize::new(0) };
        lock(&self.connections).insert(token, Arc::new(connection));
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, &device, data, armed()).inspect_err(|_| {
            lock(&self.connections).remove(&token);
        })?;
        Ok(())
    }

    /// Starts a thread, which counts as one that waits.
    fn start(&'static self, threads: &mut Threads) -> io::Result<()> {
        let name = format!("fuse-{}", threads.all);
        Builder::new().name(name).spawn(move || self.run())?;
        threads.all += 1;
        threads.idle += 1;
        Ok(())
    }

    fn run(&'static self) {
        let mut buffer = Buffer::new();
        while let Some(token) = self.next() {
            let connection = lock(&self.connections).get(&token).cloned();
            if let Some(connection) = connection {
                self.serve(token, &connection, &mut buffer);
            }
            lock(&self.threads).idle += 1;
        }
    }

    /// Waits for a connection that has a request. `None`: this thread is not needed any more.
    fn next(&'static self) -> Option<u64> {
        let mut events = Vec::with_capacity(1);
        loop {
            let room = rustix::buffer::spare_capacity(&mut events);
            let waited = epoll::wait(&self.epoll, room, Some(&REST));
            let mut threads = lock(&self.threads);
            match (waited, events.first()) {
                (Ok(_), Some(event)) => {
                    threads.idle -= 1;
                    if threads.idle == 0
                        && let Err(e) = self.start(&mut threads)
                    {
                        tracing::warn!("no further thread for requests: {e}");
                    }
                    return Some(event.data.u64());
                }
                (Ok(_), None) if threads.all <= self.kept => {}
                (Err(Errno::INTR), _) => {}
                (rested, _) => {
                    if let Err(e) = rested {
                        tracing::warn!("cannot wait for requests: {e}");
                    }
                    threads.idle -= 1;
                    threads.all -= 1;
                    return None;
                }
            }
            events.clear();
        }
    }

    /// Reads a request and serves it.
    fn serve(&self, token: u64, connection: &Arc<Connection>, buffer: &mut Buffer) {
        let bytes = match receive(&connection.device, buffer.room()) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return self.arm(token, connection),
            Err(e) => return self.forget(token, connection, e),
        };
        if connection.serving.fetch_add(1, Ordering::SeqCst) + 1 < MOST {
            self.arm(token, connection);
        }
        let handle = || connection.server.handle(&connection.device, bytes);
        // The answer says EIO as it is dropped. A thread outlives a panic: others wait for it.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(handle)).is_err() {
            tracing::error!("a request made its thread panic");
        }
        if connection.serving.fetch_sub(1, Ordering::SeqCst) == MOST {
            self.arm(token, connection);
        }
    }

    /// Has the connection watched for its next request.
    fn arm(&self, token: u64, connection: &Connection) {
        let data = epoll::EventData::new_u64(token);
        if let Err(e) = epoll::modify(&self.epoll, &connection.device, data, armed()) {
            // Another thread may have seen its end.
            if e != Errno::NOENT {
                self.forget(token, connection, e.into());
            }
        }
    }

    /// Nothing comes from the connection any more.
    fn forget(&self, token: u64, connection: &Connection, why: io::Error) {
        let ended = why.kind() == io::ErrorKind::UnexpectedEof;
        if !ended {
            connection.server.failed(why);
        }
        if let Err(e) = epoll::delete(&self.epoll, &connection.device) {
            tracing::debug!("epoll: {e}");
        }
        lock(&self.connections).remove(&token);
    }
}

/// What a connection is watched for, once.
fn armed() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::ONESHOT
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Threads that there are.
    pub(in crate::session) fn threads() -> usize {
        lock(&readers().unwrap().threads).all
    }
}
