//! The threads that read and serve requests, shared by all connections of the process.
//!
//! # Idea
//!
//! One thread at a time waits for the requests of all connections, in an epoll instance: the leader. It reads a request,
//! serves it, and waits again. So a request wakes one thread, a program that sends one request after the other is
//! served by one thread, whose caches are warm, and a connection without requests costs a descriptor and no thread. What
//! takes long keeps no other request waiting: another thread leads then ([`lead`](super::lead)).
//!
//! ```text
//!   connections ═══> epoll ──> leader: read ─> serve ─> answer ─> look for the next ─> sleep
//!                                        │                         (`poll`)
//!                                        └─ may block, takes long, or others wait? another thread leads
//! ```
//!
//! After an answer the leader looks for the next request for a moment before it sleeps ([`poll`](super::poll)): at the
//! connection that it has just answered, which takes one system call, and at all of them where there are more. No
//! connection is read from more than [`IN_A_ROW`] times, or for longer than [`APART`], without a look at all.
//!
//! Requests that come while the leader serves wait for it, which takes less than to wake another thread. But a large one,
//! of [`LARGE`](super::LARGE) bytes or more, takes as long as many small ones: where such a request already waited when the one
//! before was answered, others may be waiting, and the leader hands on before it serves it. So as many threads serve large
//! requests at once as the process may use processors, and one program alone is served by one thread.
//!
//! At most [`MOST`] threads serve one connection, so that a file system whose disks do not answer leaves
//! the threads of the others alone. A leader that finds more requests of such a connection has it watched no
//! longer, until one of them is done. Those that wait for a suspended pool do not count ([`waiting::park`]): requests that need
//! no group go on, and programs can be interrupted. Nor do those that wait until changes are on disk: they have let go of their request,
//! but for its answer ([`later`](super::later)). Where that takes a moment and no other requests come, the leader leads on ([`brief`](super::brief)).
//!
//! A thread reads and answers through a descriptor of its own of each connection that it serves, from the second request on
//! ([`Clones`]). It lets go of that after [`REST`] without a request. Connections are watched by their first descriptor: all have one queue.
//!
//! Threads are started when they are needed. One that has had nothing to do for [`REST`] ends,
//! unless there are no more than the processors that the process may use (cgroups and affinity count), or two.
//!
//! # Invariants
//!
//! - Only the leader waits, reads, and takes connections out of those that are watched. While it waits it opens nothing.
//! - Every connection is watched, but for those that [`MOST`] threads serve. The first one that is done watches it again, or
//!   the next one if the system has no memory for that. A connection that the last one cannot watch ends.
//! - No more threads than processors serve large requests because others waited; those that blocked do not count.
//! - A connection whose descriptor failed or ended is forgotten. The last thread that serves it drops
//!   what serves it, and does not lead meanwhile if that blocks.
//! - A panic ends no thread, and leaves the threads with a leader: what the leader has in its hands ([`Hand`]) outlives it, and
//!   a request that was read is served.
//! - Without requests no thread wakes up, once each had its [`REST`].
//!
//! # Order of locks
//!
//! A connection's `away`, then [`Readers`]' `all`, then the seats of `lead`.

use super::brief::{Brief, Waits};
use super::clones::Clones;
use super::later::{Later, Serving};
use super::lead::{Idle, Lead, REST, Seat, Turn};
use super::poll::{PREEMPTED, Poll};
use super::{Buffer, number_of, receive};
use crate::kernel::Needed;
use cenote_format::invariant;
use cenote_format::invariant::{caught, is_broken};
use cenote_vdev::waiting::{self, Park};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, available_parallelism};
use std::time::{Duration, Instant};

/// Most threads that serve one connection at the same time.
pub(super) const MOST: usize = 16;
/// Most threads that wait for a suspended pool with requests of one connection. Further ones count as serving it.
const MOST_PARKED: usize = 256;
/// Requests that are read from one connection before all are looked at.
const IN_A_ROW: u32 = 32;
/// How long one connection is read from before all are looked at.
const APART: Duration = Duration::from_micros(200);
/// How long it is not said again that no thread can be started.
const SAID: Duration = Duration::from_secs(60);
/// How long a leader that cannot wait, or has panicked twice within that time, does nothing.
const FAILED: Duration = Duration::from_secs(1);

/// Serves the requests of one connection.
pub(super) trait Serve: Send + Sync {
    /// A request was read. It is answered on `device`.
    fn handle(&self, device: &Arc<OwnedFd>, bytes: &[u8]);

    /// Whether a request takes long as it is about many bytes.
    fn is_large(&self, bytes: &[u8]) -> bool;

    /// A request found the state of the pool wrong.
    fn broken(&self, why: &str);

    /// No request can be read any more, because of an error.
    fn failed(&self, e: io::Error);

    /// Whether the program that waits for the answer to the request with this number was interrupted.
    fn is_interrupted(&self, number: u64) -> bool;
}

/// A descriptor that requests come from.
struct Connection {
    token: u64,
    device: Arc<OwnedFd>,
    server: Arc<dyn Serve>,
    /// Threads that serve it.
    serving: AtomicUsize,
    /// Threads that wait for a suspended pool with a request of it. They do not count as serving.
    parked: AtomicUsize,
    /// It is not watched, as too many threads serve it.
    away: Mutex<bool>,
    /// What the waits of its requests took.
    waits: Arc<Waits>,
}

/// The connections, by their numbers.
#[derive(Default)]
struct All {
    connections: HashMap<u64, Arc<Connection>>,
    /// The number of the last connection.
    last: u64,
}

/// The threads and what they wait for.
pub(super) struct Readers {
    all: RwLock<All>,
    /// Where connections are watched; made with the first one.
    epoll: OnceLock<OwnedFd>,
    lead: Lead,
    poll: Poll,
    brief: Brief,
    /// Connections that there are.
    connections: AtomicUsize,
    /// Connections that were forgotten so far.
    forgotten: AtomicU64,
    /// Threads that were started so far.
    started: AtomicU64,
    /// Buffers for requests that no thread has. The next leader gets the one that was used last, which is in the caches.
    buffers: Mutex<Vec<Buffer>>,
    /// Processors that the process may use.
    processors: AtomicUsize,
    /// When they were counted.
    counted: Mutex<Instant>,
    /// Threads that serve large requests, have handed on, and have not blocked since.
    helping: AtomicUsize,
    /// When it was last said that no thread can be started.
    said: Mutex<Option<Instant>>,
    /// A test has the thread that waits panic as often.
    #[cfg(test)]
    planted: AtomicUsize,
}

/// What a thread has.
#[derive(Default)]
struct Own {
    /// The turn that is served, until another thread leads.
    served: Rc<Cell<Option<Turn>>>,
    /// Whether it is one of those that [`Readers`] counts as `helping`.
    helps: Rc<Cell<bool>>,
    /// Whether the request waited when the one before was answered.
    waited: bool,
    /// The request that is served.
    request: Rc<RefCell<Option<Request>>>,
    clones: Clones<Connection>,
    /// Connections that had been forgotten when it looked last.
    forgotten: u64,
    /// The connection that it answered last, while it leads.
    last: Option<Arc<Connection>>,
    /// Requests that it read from there without a look at the others.
    in_a_row: u32,
    /// When it looked at all.
    looked: Option<Instant>,
    /// When it answered last, if it has not slept since.
    answered: Option<Instant>,
    /// It leads on although it may wait, as that takes a moment ([`Brief`]).
    keeps: Rc<Cell<bool>>,
    /// It has just done so.
    kept: bool,
}

impl Own {
    /// Whether the thread leads, as far as it knows.
    fn leads(&self) -> bool {
        let turn = self.served.take();
        let leads = turn.is_some();
        self.served.set(turn);
        leads
    }
}

/// A request that is served.
struct Request {
    connection: Arc<Connection>,
    number: u64,
    /// It waits for a suspended pool, and does not count.
    parked: bool,
}

/// A thread serves the connection as long as this is there, also where it panics.
struct Serves<'a> {
    readers: &'a Readers,
    of: &'a Arc<Connection>,
}

impl Drop for Serves<'_> {
    fn drop(&mut self) {
        // A second panic while the first one unwinds would end the process.
        if let Err(why) = caught(|| self.readers.served(self.of)) {
            tracing::error!("a thread that has served a request: {why}");
        }
    }
}

/// How a thread waits for a suspended pool.
struct Parking(Rc<RefCell<Option<Request>>>);

impl Park for Parking {
    fn begin(&self) {
        let mut request = self.0.borrow_mut();
        let Some(request) = request.as_mut() else { return };
        let connection = &request.connection;
        let more = |parked: usize| (parked < MOST_PARKED).then_some(parked + 1);
        let counted = connection.parked.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        request.parked = counted.is_ok();
        if request.parked {
            connection.serving.fetch_sub(1, Ordering::SeqCst);
            if let Err(e) = readers().turn_back(connection) {
                tracing::error!("a connection cannot be watched again: {e}");
            }
        }
    }

    fn end(&self) {
        let mut request = self.0.borrow_mut();
        if let Some(request) = request.as_mut().filter(|request| request.parked) {
            request.parked = false;
            request.connection.serving.fetch_add(1, Ordering::SeqCst);
            request.connection.parked.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn is_interrupted(&self) -> bool {
        let request = self.0.borrow();
        request.as_ref().is_some_and(|r| r.connection.server.is_interrupted(r.number))
    }
}

/// What the leader got.
enum Work {
    /// A request: its length, and where it is answered.
    Request(Arc<Connection>, Arc<OwnedFd>, usize),
    /// Nothing comes from the connection any more.
    End(Arc<Connection>, io::Error),
}

/// What the thread that leads has in its hands. A panic leaves it there.
#[derive(Default)]
struct Hand {
    /// While it waits; while it serves, the turn is [`Own::served`].
    turn: Option<Turn>,
    /// What it got, and has not begun with.
    work: Option<Work>,
    buffer: Option<Buffer>,
}

/// Those of the process.
pub(super) fn readers() -> &'static Readers {
    static READERS: OnceLock<Readers> = OnceLock::new();
    READERS.get_or_init(Readers::new)
}

fn processors() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// The connections, and the threads that serve them.
impl Readers {
    fn new() -> Readers {
        Readers {
            all: RwLock::default(),
            epoll: OnceLock::new(),
            lead: Lead::new(),
            poll: Poll::default(),
            brief: Brief::default(),
            connections: AtomicUsize::new(0),
            forgotten: AtomicU64::new(0),
            started: AtomicU64::new(0),
            buffers: Mutex::default(),
            processors: AtomicUsize::new(processors()),
            counted: Mutex::new(Instant::now()),
            helping: AtomicUsize::new(0),
            said: Mutex::default(),
            #[cfg(test)]
            planted: AtomicUsize::new(0),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, All> {
        self.all.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, All> {
        self.all.write()
    }

    fn epoll(&self) -> io::Result<&OwnedFd> {
        if let Some(epoll) = self.epoll.get() {
            return Ok(epoll);
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(self.epoll.get_or_init(|| epoll))
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
        let epoll = self.epoll()?;
        self.lead.start_first(|turn| self.start(turn))?;
        let token = all.last + 1;
        watch(epoll, token, &device)?;
        all.last = token;
        let (serving, parked, away, waits) = Default::default();
        let connection = Connection { token, device, server, serving, parked, away, waits };
        all.connections.insert(token, Arc::new(connection));
        self.connections.store(all.connections.len(), Ordering::SeqCst);
        Ok(())
    }

    /// Counts the processors, which reads files, unless that was done a short while ago.
    fn count_processors(&self) {
        let Some(mut counted) = self.counted.try_lock() else { return };
        if counted.elapsed() >= REST {
            *counted = Instant::now();
            drop(counted);
            self.processors.store(processors(), Ordering::Relaxed);
        }
    }

    /// Starts a thread, which leads if it is given a turn. Takes no locks: what blocks calls it and may hold some.
    fn start(&'static self, turn: Option<Turn>) -> io::Result<()> {
        let name = format!("fuse-{}", self.started.fetch_add(1, Ordering::SeqCst));
        Builder::new().name(name).spawn(move || self.run(turn)).map(drop)
    }

    fn run(&'static self, mut turn: Option<Turn>) {
        let (mut own, seat) = (Own::default(), Seat::new());
        let (served, helps, keeps) = (own.served.clone(), own.helps.clone(), own.keeps.clone());
        waiting::hand_on_by(move || {
            if !keeps.get() {
                self.hand_on(&served);
            }
            self.helps_no_more(&helps);
        });
        waiting::park_by(Parking(own.request.clone()));
        let mut arrives = turn.is_none();
        loop {
            self.lead_on(&mut own, turn.take());
            let kept = self.processors.load(Ordering::Relaxed);
            let idle = &mut |what| {
                // A deputy that ends would be given turns all the same.
                let done = caught(|| match what {
                    Idle::Looks => {
                        self.prune(&mut own);
                        self.count_processors();
                    }
                    Idle::Rests => own.clones.clear(),
                });
                done.unwrap_or_else(|why| tracing::error!("a thread that serves nothing: {why}"));
            };
            turn = match std::mem::take(&mut arrives) {
                true => self.lead.arrive(&seat, kept, idle),
                false => self.lead.follow(&seat, kept, idle),
            };
            if turn.is_none() {
                return;
            }
        }
    }

    /// Another thread leads if this one does.
    fn hand_on(&'static self, served: &Cell<Option<Turn>>) {
        let turn = served.take().and_then(|turn| self.lead.hand_on(turn, || self.start(None)));
        served.set(turn);
    }

    /// This thread does not count as one that helps any more.
    fn helps_no_more(&self, helps: &Cell<bool>) {
        if helps.take() {
            self.helping.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A thread could not be started. Says so once in a while.
    fn not_started(&self, e: &io::Error) {
        let mut said = self.said.lock();
        if said.is_none_or(|said| said.elapsed() >= SAID) {
            *said = Some(Instant::now());
            drop(said);
            tracing::warn!("no further thread for requests: {e}");
        }
    }

    /// Leads with `turn`, as long as this thread does: a panic outside of a request ends neither the thread nor its lead.
    fn lead_on(&'static self, own: &mut Own, turn: Option<Turn>) {
        let mut hand = Hand { turn, ..Hand::default() };
        let mut panicked: Option<Instant> = None;
        while hand.turn.is_some() {
            let Err(why) = caught(|| self.lead(own, &mut hand)) else { break };
            tracing::error!("the thread that waits for requests: {why}");
            let turn = own.served.take().or(hand.turn.take());
            hand.turn = turn.and_then(|turn| self.lead.go_on(turn));
            // What was read is served in the turn that goes on, or beside the thread that leads now.
            if hand.turn.is_none()
                && let Err(why) = caught(|| self.work(own, &mut hand))
            {
                tracing::error!("a thread that serves a request: {why}");
            }
            own.request.take();
            self.helps_no_more(&own.helps);
            // All connections wait meanwhile: only a leader that panics again and again does nothing for a while.
            if panicked.replace(Instant::now()).is_some_and(|before| before.elapsed() < FAILED) {
                std::thread::sleep(FAILED);
            }
        }
        // Another thread may be the one that forgets it.
        own.last = None;
        self.buffers.lock().extend(hand.buffer);
    }

    /// Waits for requests and serves them, as long as this thread leads.
    fn lead(&'static self, own: &mut Own, hand: &mut Hand) {
        (own.in_a_row, own.answered) = (0, None);
        while let Some(turn) = &hand.turn {
            if hand.work.is_none() {
                hand.work = Some(self.next(own, &mut hand.buffer));
            }
            // A thread that waits for a device of one mount keeps nothing of another mount, which may end meanwhile.
            own.last = None;
            let begun = self.lead.begin(turn, || self.start(None));
            own.served.set(hand.turn.take());
            begun.unwrap_or_else(|e| self.not_started(&e));
            self.prune(own);
            self.work(own, hand);
            hand.turn = own.served.take().and_then(|turn| self.lead.ended(turn));
            if hand.turn.is_none() && std::mem::take(&mut own.kept) {
                // It was overtaken: others may have waited for that.
                self.brief.ended(true);
            }
            own.answered = Some(Instant::now());
        }
    }

    /// Does what the thread has in its hands, if anything.
    fn work(&'static self, own: &mut Own, hand: &mut Hand) {
        if let Some(Work::Request(connection, ..)) = &hand.work {
            own.clones.add(connection.token, connection, &connection.device);
        }
        match hand.work.take() {
            Some(Work::Request(connection, device, len)) => {
                let room = hand.buffer.as_mut().map(Buffer::room);
                let bytes = room.and_then(|room| room.get(..len));
                invariant!(bytes.is_some(), "the buffer of a request of {len} bytes is gone");
                let left = self.serve(own, &connection, &device, bytes.unwrap_or_default());
                own.last = match left {
                    Some(later) => self.wait_later(own, hand, later, (connection, device)),
                    None => Some(connection),
                };
            }
            Some(Work::End(connection, why)) => {
                self.forget(connection, why);
                self.prune(own);
            }
            None => {}
        }
    }

    /// Does what a request left, which may wait for long. Of the connection, which may end meanwhile, the thread keeps no more than its descriptors:
    /// that of the answer, and its own ones of each connection that it has served. It keeps no buffer. Returns the connection if it is
    /// still there.
    fn wait_later(
        &self,
        own: &mut Own,
        hand: &mut Hand,
        later: Later,
        (connection, device): (Arc<Connection>, Arc<OwnedFd>),
    ) -> Option<Arc<Connection>> {
        self.buffers.lock().extend(hand.buffer.take());
        let (of, waits) = (Arc::downgrade(&connection), connection.waits.clone());
        drop((connection, device));
        own.kept = own.leads() && self.brief.is_likely(&waits, own.waited);
        own.keeps.set(own.kept);
        let since = Instant::now();
        let done = caught(|| {
            let _needed = Needed::new();
            later();
        });
        own.keeps.set(false);
        waits.took(since.elapsed());
        let connection = of.upgrade();
        if let Err(why) = done {
            tracing::error!("what a request has left: {why}");
            tell_broken(connection.as_ref(), &why);
        }
        connection
    }

    /// Serves a request. Another thread leads meanwhile if that is large and others wait. Returns what the request left.
    fn serve(
        &'static self,
        own: &Own,
        of: &Arc<Connection>,
        device: &Arc<OwnedFd>,
        bytes: &[u8],
    ) -> Option<Later> {
        let _serves = Serves { readers: self, of };
        let server = &of.server;
        let is_large = || caught(|| server.is_large(bytes)).unwrap_or(false);
        if own.waited && is_large() && self.is_helped() {
            own.helps.set(true);
            self.hand_on(&own.served);
        }
        let number = number_of(bytes);
        own.request.replace(Some(Request { connection: of.clone(), number, parked: false }));
        // The answer says EIO as it is dropped. A thread outlives a panic: others wait for it.
        let handled = caught(|| {
            let serving = Serving::new();
            server.handle(device, bytes);
            serving.end()
        });
        own.request.take();
        if let Err(why) = &handled {
            tracing::error!("a request failed: {why}");
            tell_broken(Some(of), why);
        }
        self.helps_no_more(&own.helps);
        handled.ok().flatten()
    }

    /// A thread serves the connection no longer.
    fn served(&self, of: &Arc<Connection>) {
        of.serving.fetch_sub(1, Ordering::SeqCst);
        if let Err(e) = self.turn_back(of) {
            tracing::error!("a connection cannot be watched again: {e}");
            self.forget(of.clone(), e);
        }
    }

    /// Whether one more thread may serve a large request while another one leads. It counts then.
    fn is_helped(&self) -> bool {
        let most = self.processors.load(Ordering::Relaxed);
        let more = |helping: usize| (helping + 1 < most).then_some(helping + 1);
        self.helping.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// A request was served: has the connection watched again if it was not.
    ///
    /// # Errors
    /// It cannot be watched, and this was the last thread that served it.
    fn turn_back(&self, connection: &Connection) -> io::Result<()> {
        let mut away = connection.away.lock();
        if !*away {
            return Ok(());
        }
        let all = self.read();
        if !all.connections.contains_key(&connection.token) {
            return Ok(());
        }
        let watched =
            self.epoll().and_then(|epoll| Ok(watch(epoll, connection.token, &connection.device)?));
        *away = watched.is_err();
        // The next thread that is done sees that it is away, and tries again.
        if connection.serving.load(Ordering::SeqCst) > 0 { Ok(()) } else { watched }
    }

    /// Nothing comes from the connection any more.
    fn forget(&self, connection: Arc<Connection>, why: io::Error) {
        let mut all = self.write();
        let known = all.connections.remove(&connection.token).is_some();
        self.connections.store(all.connections.len(), Ordering::SeqCst);
        drop(all);
        if known {
            self.forgotten.fetch_add(1, Ordering::SeqCst);
            if let Ok(epoll) = self.epoll() {
                unwatch(epoll, &connection.device);
            }
            if why.kind() != io::ErrorKind::UnexpectedEof {
                connection.server.failed(why);
            }
        }
        // What served it may have to wait for a device to end.
        waiting::begins();
        drop(connection);
    }
}

/// What the leader does while it serves nothing.
impl Readers {
    /// Waits for a request, and reads it.
    fn next(&self, own: &mut Own, buffer: &mut Option<Buffer>) -> Work {
        #[cfg(test)]
        tests::panic_if_planted(&self.planted);
        let work = self.look(own, buffer);
        own.waited = work.is_some();
        if std::mem::take(&mut own.kept) {
            self.brief.ended(own.waited);
        }
        if let Some(work) = work {
            return work;
        }
        loop {
            if let Some(work) = self.poll(own, buffer) {
                return work;
            }
            if let Some(work) = self.sleep(own, buffer) {
                return work;
            }
        }
    }

    /// Looks for a request for a moment, after an answer.
    fn poll(&self, own: &mut Own, buffer: &mut Option<Buffer>) -> Option<Work> {
        let since = own.answered?;
        let moment = self.poll.moment(self.processors.load(Ordering::Relaxed));
        let mut last = Instant::now();
        while last.saturating_duration_since(since) < moment {
            if let Some(work) = self.look(own, buffer) {
                self.poll.found(since.elapsed());
                return Some(work);
            }
            let now = Instant::now();
            if now.saturating_duration_since(last) > PREEMPTED {
                self.poll.pause();
                return None;
            }
            last = now;
        }
        None
    }

    /// Sleeps until there may be a request.
    fn sleep(&self, own: &mut Own, buffer: &mut Option<Buffer>) -> Option<Work> {
        let seconds = i64::try_from(REST.as_secs()).unwrap_or(i64::MAX);
        let mut found = self.wait(Some(&Timespec { tv_sec: seconds, tv_nsec: 0 }));
        if found.is_none() {
            own.clones.clear();
            own.last = None;
            self.buffers.lock().clear();
            found = self.wait(None);
        }
        own.looked = Some(Instant::now());
        if let Some(since) = own.answered.take() {
            self.poll.slept(since.elapsed());
        }
        self.receive(own, buffer, found?)
    }

    /// Looks whether there is a request: where the last one came from, and then everywhere.
    fn look(&self, own: &mut Own, buffer: &mut Option<Buffer>) -> Option<Work> {
        let alone = self.connections.load(Ordering::SeqCst) == 1;
        if let Some(last) = own.last.clone()
            && (alone
                || own.in_a_row < IN_A_ROW && own.looked.is_some_and(|at| at.elapsed() < APART))
        {
            own.in_a_row = if alone { 0 } else { own.in_a_row + 1 };
            let work = self.read_from(own, buffer, last);
            if alone || work.is_some() {
                return work;
            }
        }
        (own.in_a_row, own.looked) = (0, Some(Instant::now()));
        let found = self.wait(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        self.receive(own, buffer, found)
    }

    /// Waits until a connection has a request, for so long. `None`: none has.
    fn wait(&self, time: Option<&Timespec>) -> Option<u64> {
        let mut events = Vec::with_capacity(1);
        let waited = self.epoll().and_then(|epoll| {
            let room = rustix::buffer::spare_capacity(&mut events);
            Ok(epoll::wait(epoll, room, time)?)
        });
        match (waited, events.first()) {
            (Ok(_), Some(event)) => Some(event.data.u64()),
            (Err(e), _) if e.kind() != io::ErrorKind::Interrupted => {
                tracing::warn!("cannot wait for requests: {e}");
                std::thread::sleep(FAILED);
                None
            }
            _ => None,
        }
    }

    /// Reads from a connection that was found to have a request.
    fn receive(&self, own: &mut Own, buffer: &mut Option<Buffer>, token: u64) -> Option<Work> {
        let connection = self.read().connections.get(&token).cloned()?;
        self.read_from(own, buffer, connection)
    }

    /// Reads a request, if there is one.
    fn read_from(
        &self,
        own: &mut Own,
        buffer: &mut Option<Buffer>,
        connection: Arc<Connection>,
    ) -> Option<Work> {
        // Only the leader makes it more.
        if connection.serving.load(Ordering::SeqCst) >= MOST {
            self.turn_away(&connection);
            return None;
        }
        let device = own.clones.of(connection.token, &connection.device);
        let buffer = buffer.get_or_insert_with(|| {
            let used = self.buffers.lock().pop();
            used.unwrap_or_else(Buffer::new)
        });
        match receive(&device, buffer.room()) {
            Ok(Some(bytes)) => {
                let len = bytes.len();
                connection.serving.fetch_add(1, Ordering::SeqCst);
                Some(Work::Request(connection, device, len))
            }
            Ok(None) => None,
            Err(e) => Some(Work::End(connection, e)),
        }
    }

    /// Lets go of what the thread has of connections that have ended.
    fn prune(&self, own: &mut Own) {
        let forgotten = self.forgotten.load(Ordering::SeqCst);
        if std::mem::replace(&mut own.forgotten, forgotten) != forgotten {
            own.clones.prune();
        }
    }

    /// As many threads as may serve a connection do: it is watched no longer.
    fn turn_away(&self, connection: &Connection) {
        let mut away = connection.away.lock();
        // Those that are done look at `away` after this.
        if connection.serving.load(Ordering::SeqCst) >= MOST
            && !std::mem::replace(&mut *away, true)
            && let Ok(epoll) = self.epoll()
        {
            unwatch(epoll, &connection.device);
        }
    }
}

/// Tells what serves the connection of a panic, if that is about the state of its pool.
fn tell_broken(of: Option<&Arc<Connection>>, why: &str) {
    if !is_broken(why) {
        return;
    }
    let told = of.map(|of| caught(|| of.server.broken(why)));
    let still = told.unwrap_or_else(|| Err("its mount has ended".into()));
    if let Err(further) = still {
        tracing::error!("a pool with a broken invariant is still in use: {further}");
    }
}

/// Has the leader wait for the requests of a connection.
fn watch(epoll: &OwnedFd, token: u64, device: &OwnedFd) -> Result<(), Errno> {
    epoll::add(epoll, device, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
}

/// The opposite of [`watch`].
fn unwatch(epoll: &OwnedFd, device: &OwnedFd) {
    // One that is away is not watched.
    if let Err(e) = epoll::delete(epoll, device)
        && e != Errno::NOENT
    {
        tracing::debug!("epoll: {e}");
    }
}

#[cfg(test)]
pub(super) mod tests;
