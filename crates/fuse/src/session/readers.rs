//! The threads that read and serve requests, shared by all connections of the process.
//!
//! # Idea
//!
//! Each thread has an epoll instance of its own, in which all connections are watched. It waits
//! there, reads one request, serves it, and waits again: three system calls with the answer. A
//! connection without requests costs a descriptor and no thread, and a request that waits for a disk
//! keeps no other request waiting.
//!
//! ```text
//!   connections ═══> epoll of each thread ──> thread: read ─> serve ─> wait again
//!                                               │
//!                                               └─ no other thread waits? start one
//! ```
//!
//! Connections are watched exclusively (`EPOLLEXCLUSIVE`): a request wakes one thread, the first one
//! in the order of their start that waits. A program that sends one request after the other is served by
//! the same thread, whose caches are warm. The event is level-triggered, so nothing has to be armed again:
//! a request that came while all threads were busy is found by the first that is done.
//!
//! At most [`MOST`] threads serve one connection, so that a file system whose disks do not answer leaves
//! the threads of the others alone. A thread that finds more requests of such a connection turns away
//! from it: it watches it no longer, until fewer than half as many serve it.
//!
//! A thread reads and answers through a descriptor of its own of each connection that it serves ([`Clones`]), which it lets
//! go of after [`REST`] without a request. Connections are watched by their first descriptor: all have one queue.
//!
//! Threads are started when they are needed. One that has waited for [`REST`] without a request ends,
//! unless there are no more than the processors that the process may use (cgroups and affinity count).
//!
//! # Invariants
//!
//! - Every thread watches every connection, but for those that it has turned away from.
//! - Those that serve a connection have not turned away from it. So it is watched by somebody who will
//!   wait again, and while [`MOST`] / 2 or fewer serve it, by all.
//! - While requests are served a thread waits for the next one, if the system lets threads be started.
//! - A connection whose descriptor failed or ended is forgotten. The last thread that serves it drops
//!   what serves it.
//!
//! # Order of locks
//!
//! A connection's `away`, then [`Readers`]' `all`.

use super::clones::Clones;
use super::{Buffer, receive};
use cenote_format::invariant::{caught, is_broken};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::Builder;

/// Most threads that serve one connection at the same time.
pub(super) const MOST: usize = 16;
/// How long a thread waits for a request before it ends.
const REST: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Serves the requests of one connection.
pub(super) trait Serve: Send + Sync {
    /// A request was read. It is answered on `device`.
    fn handle(&self, device: &Arc<OwnedFd>, bytes: &[u8]);

    /// A request found the state of the pool wrong.
    fn broken(&self, why: &str);

    /// No request can be read any more, because of an error.
    fn failed(&self, e: io::Error);
}

/// A descriptor that requests come from.
struct Connection {
    device: Arc<OwnedFd>,
    server: Arc<dyn Serve>,
    /// Threads that serve it.
    serving: AtomicUsize,
    /// The epoll instances of threads that have turned away from it.
    away: Mutex<Vec<Weak<OwnedFd>>>,
}

/// What there is.
#[derive(Default)]
struct All {
    connections: HashMap<u64, Arc<Connection>>,
    /// The number of the last connection.
    last: u64,
    /// The epoll instance of each thread.
    threads: Vec<Arc<OwnedFd>>,
    /// Threads that were started so far.
    started: u64,
}

/// The threads and what they wait for.
pub(super) struct Readers {
    all: RwLock<All>,
    /// Threads that wait for a request, or are about to.
    idle: AtomicUsize,
    /// Threads that stay although there is nothing to do.
    kept: usize,
    /// Connections that were forgotten so far.
    forgotten: AtomicUsize,
}

/// Those of the process.
pub(super) fn readers() -> &'static Readers {
    static READERS: OnceLock<Readers> = OnceLock::new();
    READERS.get_or_init(|| Readers {
        all: RwLock::default(),
        idle: AtomicUsize::new(0),
        kept: std::thread::available_parallelism().map_or(1, usize::from),
        forgotten: AtomicUsize::new(0),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Readers {
    fn read(&self) -> RwLockReadGuard<'_, All> {
        self.all.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, All> {
        self.all.write()
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
        let mut all = self.write();
        if all.threads.is_empty() {
            self.start(&mut all)?;
        }
        all.last += 1;
        let token = all.last;
        for thread in &all.threads {
            if let Err(e) = watch(thread, token, &device) {
                all.threads.iter().for_each(|thread| unwatch(thread, &device));
                return Err(e.into());
            }
        }
        let (serving, away) = (AtomicUsize::new(0), Mutex::default());
        all.connections.insert(token, Arc::new(Connection { device, server, serving, away }));
        Ok(())
    }

    /// Starts a thread, which counts as one that waits.
    fn start(&'static self, all: &mut All) -> io::Result<()> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        for (token, connection) in &all.connections {
            watch(&epoll, *token, &connection.device)?;
        }
        let (name, own) = (format!("fuse-{}", all.started), epoll.clone());
        Builder::new().name(name).spawn(move || self.run(&own))?;
        all.threads.push(epoll);
        all.started += 1;
        // The thread looks for its first connection after `all` is unlocked, so it counts by then.
        self.idle.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn run(&'static self, epoll: &Arc<OwnedFd>) {
        let mut buffer = Buffer::new();
        let (mut clones, mut forgotten) = (Clones::default(), 0);
        while let Some(token) = self.next(epoll, &mut clones) {
            let ended = self.forgotten.load(Ordering::SeqCst);
            if std::mem::replace(&mut forgotten, ended) != ended {
                clones.prune();
            }
            let connection = self.read().connections.get(&token).cloned();
            if let Some(connection) = connection {
                let device = clones.of(token, &connection, &connection.device);
                self.serve(epoll, token, &connection, &device, &mut buffer);
            }
        }
    }

    /// Waits for a connection that has a request. `None`: this thread is not needed any more.
    fn next(&self, epoll: &Arc<OwnedFd>, clones: &mut Clones<Connection>) -> Option<u64> {
        let mut events = Vec::with_capacity(1);
        loop {
            let waited = {
                let room = rustix::buffer::spare_capacity(&mut events);
                epoll::wait(epoll, room, Some(&REST))
            };
            match (waited, events.first()) {
                (Ok(_), Some(event)) => return Some(event.data.u64()),
                (Err(Errno::INTR), _) => {}
                (Ok(_), None) if !self.leave(epoll, self.kept) => clones.clear(),
                (Ok(_), None) => return None,
                (Err(e), _) => {
                    tracing::warn!("cannot wait for requests: {e}");
                    self.leave(epoll, 0);
                    return None;
                }
            }
        }
    }

    /// A thread that waits ends, if there are more than `kept` and another one waits.
    fn leave(&self, epoll: &Arc<OwnedFd>, kept: usize) -> bool {
        let mut all = self.write();
        let another = |idle: usize| (kept == 0 || idle > 1).then(|| idle - 1);
        let leaves = all.threads.len() > kept
            && self.idle.fetch_update(Ordering::SeqCst, Ordering::SeqCst, another).is_ok();
        if leaves {
            all.threads.retain(|thread| !Arc::ptr_eq(thread, epoll));
        }
        leaves
    }

    /// Reads a request by `device`, and serves it.
    fn serve(
        &'static self,
        epoll: &Arc<OwnedFd>,
        token: u64,
        connection: &Connection,
        device: &Arc<OwnedFd>,
        buffer: &mut Buffer,
    ) {
        let one_more = |serving: usize| (serving < MOST).then_some(serving + 1);
        let serving = &connection.serving;
        if serving.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_err() {
            return connection.turn_away(epoll);
        }
        match receive(device, buffer.room()) {
            Ok(Some(bytes)) => self.handle(connection, device, bytes),
            Ok(None) => {}
            Err(e) => self.forget(token, connection, e),
        }
        if serving.fetch_sub(1, Ordering::SeqCst) == MOST / 2 + 1 {
            self.turn_back(token, connection);
        }
    }

    /// Serves a request. Another thread waits meanwhile.
    fn handle(&'static self, connection: &Connection, device: &Arc<OwnedFd>, bytes: &[u8]) {
        if self.idle.fetch_sub(1, Ordering::SeqCst) == 1
            && let Err(e) = self.start(&mut self.write())
        {
            tracing::warn!("no further thread for requests: {e}");
        }
        let handle = || connection.server.handle(device, bytes);
        // The answer says EIO as it is dropped. A thread outlives a panic: others wait for it.
        if let Err(why) = caught(handle) {
            tracing::error!("a request failed: {why}");
            if is_broken(&why) {
                connection.server.broken(&why);
            }
        }
        self.idle.fetch_add(1, Ordering::SeqCst);
    }

    /// Has all threads watch a connection again.
    fn turn_back(&self, token: u64, connection: &Connection) {
        let mut away = lock(&connection.away);
        let all = self.read();
        let forgotten = !all.connections.contains_key(&token);
        for thread in away.drain(..).filter_map(|thread| thread.upgrade()) {
            if !forgotten && let Err(e) = watch(&thread, token, &connection.device) {
                tracing::warn!("a thread cannot watch a connection again: {e}");
            }
        }
    }

    /// Nothing comes from the connection any more.
    fn forget(&self, token: u64, connection: &Connection, why: io::Error) {
        let mut all = self.write();
        // Another thread may have seen its end.
        if all.connections.remove(&token).is_none() {
            return;
        }
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        if why.kind() != io::ErrorKind::UnexpectedEof {
            connection.server.failed(why);
        }
        all.threads.iter().for_each(|thread| unwatch(thread, &connection.device));
    }
}

impl Connection {
    /// As many threads as may serve it do: the thread of `epoll` watches it no longer.
    fn turn_away(&self, epoll: &Arc<OwnedFd>) {
        let mut away = lock(&self.away);
        // Those that serve it look at `away` when half of them are done, which is after this.
        if self.serving.load(Ordering::SeqCst) == MOST {
            unwatch(epoll, &self.device);
            away.push(Arc::downgrade(epoll));
        }
    }
}

/// Has a thread wait for the requests of a connection.
fn watch(epoll: &OwnedFd, token: u64, device: &OwnedFd) -> Result<(), Errno> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
    epoll::add(epoll, device, epoll::EventData::new_u64(token), flags)
}

/// The opposite of [`watch`].
fn unwatch(epoll: &OwnedFd, device: &OwnedFd) {
    // Threads that have turned away do not watch it.
    if let Err(e) = epoll::delete(epoll, device)
        && e != Errno::NOENT
    {
        tracing::debug!("epoll: {e}");
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Threads that there are.
    pub(in crate::session) fn threads() -> usize {
        readers().read().threads.len()
    }
}
