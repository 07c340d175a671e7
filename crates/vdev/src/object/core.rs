//! The space of a device, and when its roots are stored.
//!
//! What the space asks of its store runs in a runtime that each device has for itself: a store that hangs takes threads from no other. A caller that is within a
//! runtime of its own waits for another thread. A device that is closed ends what still runs; a directory stays open until that has ended.

use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cenote_format::abd::Abd;
use cenote_format::invariant;
use cenote_format::invariant::broken;
use cenote_format::label::{LABEL_END, LABEL_SIZE};
use cenote_format::{LABEL_START, SECTOR};
use cenote_objects::{Class, Error, Live, Reclaimed, Space, Tunables, Wreck};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

use super::labels::{Labels, decode, encode, group_of, without};
use super::place::{Directory, Place};
use crate::Alarm;
use crate::device::WriteReq;
use crate::growing::{Growing, GrowingFigures, LiveRanges};
use crate::queue::Priority;

/// For so long after a request has failed the store counts as away, whatever it answers: a caller that was told of the failure finds it
/// out of use then.
const SILENCE: Duration = Duration::from_secs(2);
/// How long a store that was away may take to say that it is back.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a device that is opened tries to hear whether there is a space.
const LOOK: Duration = Duration::from_secs(20);
/// How long a device that is closed waits for requests that run.
const CLOSING: Duration = Duration::from_secs(1);
/// When objects that could not be deleted are tried again, if no root is stored before.
const AGAIN: Duration = Duration::from_secs(60);
/// How soon a reclaim hears that it is to end.
const HEARS: Duration = Duration::from_millis(50);
/// Threads of a device for requests of the system, at most: a read or write of a directory is one.
const BLOCKING: usize = 256;

/// Where the requests of a device run.
struct Requests {
    runtime: Option<Runtime>,
    /// Requests name it by its descriptor, which must lead nowhere else while one of them runs.
    directory: Option<Arc<Directory>>,
}

impl Requests {
    fn new(directory: Option<Arc<Directory>>) -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(2).max_blocking_threads(BLOCKING);
        let runtime = builder.thread_name("objects").enable_all().build()?;
        Ok(Self { runtime: Some(runtime), directory })
    }

    fn runtime(&self) -> io::Result<&Runtime> {
        self.runtime.as_ref().ok_or_else(|| io::Error::other("the device is closed"))
    }

    /// Waits for a request.
    fn wait<T: Send>(&self, work: impl Future<Output = T> + Send) -> io::Result<T> {
        let runtime = self.runtime()?;
        if Handle::try_current().is_err() {
            return Ok(runtime.block_on(work));
        }
        // A thread that may belong to a runtime must not wait for another one.
        thread::scope(|scope| {
            let builder = thread::Builder::new().name("objects-wait".into());
            let waiting = builder.spawn_scoped(scope, || runtime.block_on(work))?;
            // A panic is the caller's: it may have found an invariant broken.
            Ok(waiting.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }
}

impl Drop for Requests {
    /// Ends what still runs. A request that hangs in the system cannot be ended: then the directory stays open, and another
    /// thread waits for it.
    fn drop(&mut self) {
        let (runtime, directory) = (self.runtime.take(), self.directory.take());
        let (tell, told) = mpsc::channel();
        // Where there is no thread to be had, what it would have waited for stays open.
        let kept = ManuallyDrop::new((runtime, directory));
        let close = move || {
            let (runtime, directory) = ManuallyDrop::into_inner(kept);
            if let Some(runtime) = runtime {
                runtime.shutdown_timeout(Duration::from_secs(u64::from(u32::MAX)));
            }
            drop(directory);
            let _ = tell.send(());
        };
        if thread::Builder::new().name("objects-close".into()).spawn(close).is_ok() {
            let _ = told.recv_timeout(CLOSING);
        }
    }
}

/// How far a space is.
#[derive(Clone)]
enum Mode {
    /// There is none.
    New,
    /// It is read; another host may have it.
    Seen(Space),
    /// This host has it.
    Taken(Space),
    /// Its root or its index cannot be read: it can be deleted, and nothing else.
    Wreck(Arc<Mutex<Wreck>>),
}

pub(super) struct Core {
    pub path: PathBuf,
    requests: Requests,
    place: Place,
    may_write: bool,
    pub size: AtomicU64,
    mode: Mutex<Mode>,
    /// One thread takes the space over; and stores roots.
    turn: Mutex<Stored>,
    /// One task at a time deletes what is not needed any more.
    tidying: Arc<tokio::sync::Mutex<()>>,
    labels: Mutex<Labels>,
    /// The alarm of the pool, once there is one.
    alarm: Arc<Mutex<Weak<Alarm>>>,
    /// When a request was given up last, if the store has not answered since.
    away: Mutex<Option<Instant>>,
}

/// What the last root has.
#[derive(Default)]
struct Stored {
    /// A root that is not stored yet: its group and what goes along.
    pending: Option<(u64, Vec<u8>)>,
    /// The root that was read: group and what goes along. None: there is no root.
    seen: Option<(u64, Vec<u8>)>,
}

/// How requests are tried while a device is looked at: a user waits, and can mend what is wrong.
fn for_a_look(tunables: &Tunables) -> Tunables {
    let (budget, deadline) = (tunables.budget.min(LOOK), tunables.deadline.min(LOOK / 2));
    Tunables { budget, deadline, await_credentials: false, ..tunables.clone() }
}

fn not_ours() -> io::Error {
    io::Error::other("the space was not taken over")
}

impl Core {
    /// Reads the root, if there is one.
    pub fn look(path: &Path, may_write: bool) -> io::Result<Arc<Core>> {
        let place = Place::find(path)?;
        let requests = Requests::new(place.directory.clone())?;
        let failed = |error: Error| io::Error::other(place.known(error.to_string()));
        let prefix = object_store::path::Path::default();
        let look = Space::look(place.store.clone(), prefix, for_a_look(&place.tunables));
        let (mode, size, labels, seen) = match requests.wait(look)? {
            Err(Error::Absent(_)) => (Mode::New, place.sizes.0, Labels::default(), None),
            Err(error) => return Err(failed(error)),
            Ok(found) => {
                let (group, payload) = (found.group(), found.payload().to_vec());
                let (size, labels) = decode(&payload).map_err(io::Error::other)?;
                let found = found.with(place.tunables.clone());
                let space = requests.wait(found.view())?.map_err(failed)?;
                (Mode::Seen(space), size, labels, Some((group, payload)))
            }
        };
        let seen = Stored { pending: None, seen };
        Ok(Arc::new(Core::over(path, (place, requests), may_write, (mode, size, labels), seen)))
    }

    /// Reads the root of a space that cannot be opened, as far as that goes.
    pub fn look_at_wreck(path: &Path, may_write: bool) -> io::Result<Arc<Core>> {
        let place = Place::find(path)?;
        let requests = Requests::new(place.directory.clone())?;
        let prefix = object_store::path::Path::default();
        let look = Wreck::look(place.store.clone(), prefix, for_a_look(&place.tunables));
        let failed = |error: Error| io::Error::other(place.known(error.to_string()));
        let wreck = requests.wait(look)?.map_err(failed)?.ok_or(ErrorKind::NotFound)?;
        let labels = decode(wreck.payload());
        let (size, labels) = labels.unwrap_or_else(|_| (place.sizes.0, Labels::default()));
        let mode = Mode::Wreck(Arc::new(Mutex::new(wreck)));
        let whole = (mode, size, labels);
        Ok(Arc::new(Core::over(path, (place, requests), may_write, whole, Stored::default())))
    }

    fn over(
        path: &Path,
        (place, requests): (Place, Requests),
        may_write: bool,
        (mode, size, labels): (Mode, u64, Labels),
        stored: Stored,
    ) -> Core {
        Core {
            path: path.to_path_buf(),
            requests,
            place,
            may_write,
            size: AtomicU64::new(size),
            mode: Mutex::new(mode),
            turn: Mutex::new(stored),
            tidying: Arc::default(),
            labels: Mutex::new(labels),
            alarm: Arc::default(),
            away: Mutex::default(),
        }
    }

    fn wait<T: Send>(&self, work: impl Future<Output = T> + Send) -> io::Result<T> {
        self.requests.wait(work)
    }

    /// What the space has answered. That the store is away is noted.
    fn heard<T>(&self, answer: Result<T, Error>) -> io::Result<T> {
        answer.map_err(|error| {
            if error.is_outage() {
                *self.away.lock() = Some(Instant::now());
            }
            io::Error::other(self.place.named(error.to_string()))
        })
    }

    /// Waits for what the space does.
    fn ask<T: Send>(&self, work: impl Future<Output = Result<T, Error>> + Send) -> io::Result<T> {
        self.heard(self.wait(work)?)
    }

    /// See [`crate::Device::is_there`].
    pub fn is_there(&self) -> bool {
        if !self.place.is_there() {
            return false;
        }
        let Some(since) = *self.away.lock() else { return true };
        if since.elapsed() < SILENCE {
            return false;
        }
        let Some(space) = self.space() else { return true };
        let answers = self.wait(async move { space.answers(ANSWER).await }).unwrap_or(false);
        let mut away = self.away.lock();
        if answers && *away == Some(since) {
            *away = None;
        }
        answers
    }

    /// Whether a request was given up since then.
    pub fn is_away_since(&self, then: Instant) -> bool {
        self.away.lock().is_some_and(|away| away >= then)
    }

    /// See [`crate::Device::is_unlinked`].
    pub fn is_deleted(&self) -> bool {
        self.place.is_deleted()
    }

    /// How large the device can be by now: twice as large once half of it is given out.
    pub fn size_by_now(&self) -> u64 {
        let size = self.size.load(Relaxed);
        let grows = self.space().is_some_and(|space| space.next() > size / 2);
        if grows { (2 * size).min(self.place.sizes.1.max(size)) } else { size }
    }

    /// See [`crate::Device::grow`].
    pub fn grow(&self, size: u64) {
        self.size.fetch_max(size.min(self.place.sizes.1), Relaxed);
    }

    pub fn space(&self) -> Option<Space> {
        match &*self.mode.lock() {
            Mode::New | Mode::Wreck(_) => None,
            Mode::Seen(space) | Mode::Taken(space) => Some(space.clone()),
        }
    }

    /// The space, if this host has it.
    fn ours(&self) -> io::Result<Space> {
        match &*self.mode.lock() {
            Mode::Taken(space) => Ok(space.clone()),
            _ => Err(not_ours()),
        }
    }

    /// The space, which this host has from now on.
    fn take(&self, stored: &Stored) -> io::Result<Space> {
        if let Mode::Taken(space) = &*self.mode.lock() {
            return Ok(space.clone());
        }
        if !self.may_write {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        if matches!(&*self.mode.lock(), Mode::Wreck(_)) {
            return Err(not_ours());
        }
        self.place.check()?;
        let (store, prefix, tunables) = (
            self.place.store.clone(),
            object_store::path::Path::default(),
            self.place.tunables.clone(),
        );
        let space = match &stored.seen {
            None => {
                if !self.place.is_empty() {
                    return Err(io::Error::other("the directory is not empty"));
                }
                if let Some(outer) = self.ask(self.place.outer_pool())? {
                    return Err(io::Error::other(format!(
                        "{} lies below {outer}, which a pool has for itself",
                        self.path.display()
                    )));
                }
                self.place.close_to_others()?;
                let payload = encode(self.size.load(Relaxed), &Labels::default());
                self.ask(Space::create(store, prefix, tunables, &host(), &payload))?
            }
            Some((group, payload)) => {
                let found = self.ask(Space::look(store, prefix, tunables))?;
                if found.group() != *group || found.payload() != payload {
                    return Err(io::Error::other(format!(
                        "{} has written to it since it was opened here",
                        found.host()
                    )));
                }
                self.place.close_to_others()?;
                self.ask(found.open(&host()))?
            }
        };
        let alarm = self.alarm.clone();
        space.on_broken(move |why| {
            let alarm = alarm.lock().upgrade();
            sound(alarm.as_ref(), why);
        });
        *self.mode.lock() = Mode::Taken(space.clone());
        let swept = space.clone();
        self.requests.runtime()?.spawn(async move {
            let done = swept.guarded(swept.sweep()).await;
            if let Err(why) = &done {
                tracing::error!("what crashes have left is not deleted: {why}");
            }
            if let Ok(Err(error)) = done {
                tracing::info!(%error, "what crashes have left is deleted at the next import");
            }
        });
        self.tidy_in_time(&space)?;
        Ok(space)
    }

    /// Has garbage deleted when it is time for it, whether roots are stored or not.
    fn tidy_in_time(&self, space: &Space) -> io::Result<()> {
        let (space, tidying) = (space.clone(), self.tidying.clone());
        self.requests.runtime()?.spawn(async move {
            while space.broken().is_none() {
                space.due().await;
                let turn = tidying.lock().await;
                let failed = tidied(&space).await;
                drop(turn);
                if failed {
                    tokio::time::sleep(AGAIN).await;
                }
            }
        });
        Ok(())
    }

    /// The label and the sector in it, of a byte of the device.
    fn place(&self, offset: u64) -> Option<(usize, u64)> {
        let end = self.size.load(Relaxed) + LABEL_START;
        let of =
            |first: usize, at: u64| (first + (at / LABEL_SIZE) as usize, at % LABEL_SIZE / SECTOR);
        if offset < 2 * LABEL_SIZE {
            return Some(of(0, offset));
        }
        let at = offset.checked_sub(end).filter(|at| *at < LABEL_END)?;
        Some(of(2, at))
    }

    /// Whether all of a request is in the places of labels, or before the first address.
    pub fn is_label(&self, offset: u64) -> bool {
        offset < LABEL_START || offset >= self.size.load(Relaxed) + LABEL_START
    }

    pub fn read_label(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let labels = self.labels.lock();
        let mut at = offset / SECTOR * SECTOR;
        while at < offset + len as u64 {
            if let Some(known) = self.place(at).and_then(|place| labels.sectors.get(&place)) {
                for (i, byte) in (at..).zip(known) {
                    if let Some(to) = i.checked_sub(offset).and_then(|i| bytes.get_mut(i as usize))
                    {
                        *to = *byte;
                    }
                }
            }
            at += SECTOR;
        }
        bytes
    }

    fn write_label(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if !offset.is_multiple_of(SECTOR) || !data.len().is_multiple_of(SECTOR as usize) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut labels = self.labels.lock();
        for (at, sector) in (offset..).step_by(SECTOR as usize).zip(data.chunks(SECTOR as usize)) {
            let is_blank = sector.iter().all(|byte| *byte == 0);
            let Some(place) = self.place(at) else {
                if is_blank {
                    continue;
                }
                return Err(ErrorKind::InvalidInput.into());
            };
            let changed = match (labels.sectors.get(&place), is_blank) {
                (None, true) => false,
                (Some(known), _) => known != sector,
                (None, false) => true,
            };
            if !changed {
                continue;
            }
            labels.dirty = true;
            if is_blank {
                labels.sectors.remove(&place);
            } else {
                labels.newest = labels.newest.max(group_of(place, sector).unwrap_or(0));
                labels.sectors.insert(place, sector.to_vec());
            }
        }
        Ok(())
    }

    /// See the head of the module.
    pub fn flush(&self) -> io::Result<()> {
        let stored = self.store_root();
        self.labels.lock().trouble = stored.as_ref().err().map(ToString::to_string);
        stored
    }

    fn store_root(&self) -> io::Result<()> {
        let mut turn = self.turn.lock();
        if let Some((group, payload)) = turn.pending.clone() {
            self.place.check()?;
            let space = self.take(&turn)?;
            self.ask(space.commit(group, &payload))?;
            turn.pending = None;
            self.tidy(&space)?;
        }
        let is_clean = match &*self.mode.lock() {
            Mode::Taken(space) => space.is_clean(),
            _ => true,
        };
        let (leads, dirty) = {
            let labels = self.labels.lock();
            (labels.newest > labels.stored, labels.dirty)
        };
        if !dirty || !(leads || is_clean) {
            return Ok(());
        }
        self.place.check()?;
        let space = self.take(&turn)?;
        // Labels alone end no group: another thread may begin one just now.
        let gaps = if leads { self.wait(space.close())? } else { Vec::new() };
        let payload = {
            let mut labels = self.labels.lock();
            // What a group frees is needed until its uberblock is there.
            let frees = if leads { std::mem::take(&mut labels.frees) } else { Vec::new() };
            for (start, end) in frees {
                for (start, end) in without(start, end, &gaps) {
                    self.heard(space.free(start, end - start))?;
                }
            }
            labels.forget_old();
            (labels.dirty, labels.stored) = (false, labels.newest);
            encode(self.size.load(Relaxed), &labels)
        };
        let group = space.group() + 1;
        turn.pending = Some((group, payload.clone()));
        let stored = self.wait(space.commit(group, &payload))?;
        if !leads && matches!(stored, Err(Error::Refused(_))) {
            // A group has begun: the labels go along with that.
            turn.pending = None;
            self.labels.lock().dirty = true;
            return Ok(());
        }
        self.heard(stored)?;
        turn.pending = None;
        self.tidy(&space)
    }

    /// Has what is not needed any more deleted, beside everything else. What comes while that is under way waits for the next
    /// root.
    fn tidy(&self, space: &Space) -> io::Result<()> {
        let Ok(turn) = self.tidying.clone().try_lock_owned() else { return Ok(()) };
        let space = space.clone();
        self.requests.runtime()?.spawn(async move {
            tidied(&space).await;
            drop(turn);
        });
        Ok(())
    }

    /// Reads ranges of the space.
    pub fn read(&self, blocks: &[(u64, u64)]) -> Vec<io::Result<Bytes>> {
        let class = class_of(Priority::of_reads());
        let answers = match self.space() {
            None => Err(ErrorKind::UnexpectedEof.into()),
            Some(space) => self.wait(async move { space.read(blocks, class).await }),
        };
        match answers {
            Ok(answers) => {
                // What another host has freed or moved since is no damage: nothing is counted or logged as such.
                if answers.iter().any(|answer| answer.as_ref().is_err_and(Error::is_elsewhere)) {
                    *self.away.lock() = Some(Instant::now());
                }
                answers.into_iter().map(|answer| self.heard(answer)).collect()
            }
            Err(error) => {
                // The store was not asked.
                *self.away.lock() = Some(Instant::now());
                let error: io::Error = error;
                let same = |_: &_| Err(io::Error::new(error.kind(), error.to_string()));
                blocks.iter().map(same).collect()
            }
        }
    }

    pub fn write(&self, req: &WriteReq) -> io::Result<()> {
        if self.is_label(req.offset) {
            return self.write_label(req.offset, &req.data.bytes());
        }
        let (space, address) = (self.ours()?, req.offset - LABEL_START);
        let bytes = lent(&req.data);
        let write = async || match req.held {
            true => space.write_held(address, bytes.clone()).await,
            false => space.write(address, bytes.clone()).await,
        };
        let mut written = self.wait(write())?;
        let of_another =
            |e: &Error| !matches!(e, Error::Refused(_) | Error::Fenced { .. } | Error::Broken(_));
        if written.as_ref().is_err_and(of_another) {
            // An upload of before has failed: it is sent again.
            self.ask(space.resume())?;
            written = self.wait(write())?;
        }
        let Err(error) = written else { return Ok(()) };
        if matches!(error, Error::Refused(_)) {
            // What is written again because a flush failed is there already.
            let there = self.read(&[(address, bytes.len() as u64)]);
            if there.into_iter().flatten().any(|known| known == bytes) {
                return Ok(());
            }
        }
        self.heard(Err(error))
    }
}

/// How urgent the store's requests are, for reads of the calling thread.
fn class_of(reads: Priority) -> Class {
    match reads {
        Priority::SyncRead | Priority::SyncWrite => Class::Sync,
        Priority::AsyncRead | Priority::AsyncWrite | Priority::Replay => Class::Ahead,
        Priority::Scrub | Priority::Removal | Priority::Rebuild | Priority::Trim => {
            Class::Background
        }
        Priority::Initializing => Class::Background,
    }
}

/// The bytes of a block, in its own memory where they are one piece: nothing changes an [`Abd`] that is shared.
fn lent(data: &Abd) -> Bytes {
    /// In one piece.
    struct Whole(Abd);
    impl AsRef<[u8]> for Whole {
        fn as_ref(&self) -> &[u8] {
            let len = self.0.len();
            let whole = self.0.as_contiguous();
            whole.unwrap_or_else(|| broken(format_args!("a block of {len} bytes is in pieces now")))
        }
    }
    match data.as_contiguous() {
        Some(_) => Bytes::from_owner(Whole(data.clone())),
        None => Bytes::from(data.to_vec()),
    }
}

/// Deletes what is due. Whether something was left, which is logged.
async fn tidied(space: &Space) -> bool {
    let failed = match space.guarded(space.tidy()).await {
        Ok(failed) => failed,
        Err(why) => {
            tracing::error!("objects that nothing needs are not deleted: {why}");
            return true;
        }
    };
    if let Some(error) = &failed {
        tracing::warn!(%error, "objects that nothing needs cannot be deleted; tried again later");
    }
    failed.is_some()
}

/// Sounds the alarm of a pool, if there is one, unless it was sounded.
fn sound(alarm: Option<&Arc<Alarm>>, why: &str) {
    if let Some(alarm) = alarm.filter(|alarm| alarm.why().is_none()) {
        alarm.sound(format!("the object store's client: {why}"));
    }
}

/// Which host this is, for messages.
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{name}, process {}", std::process::id())
}

/// What the caller of a reclaim knows.
struct Known<'a>(Mutex<LiveRanges<'a>>);

impl Live for Known<'_> {
    fn live(&self, range: Range<u64>) -> Result<Vec<Range<u64>>, String> {
        // To know it may take reads, of this very device too.
        tokio::task::block_in_place(|| (self.0.lock())(range))
    }
}

impl Growing for Core {
    fn next(&self) -> u64 {
        self.space().map_or(0, |space| space.next())
    }

    fn take_over(&self) -> io::Result<()> {
        let turn = self.turn.lock();
        self.take(&turn).map(|_| ())
    }

    fn sound_on_broken(&self, alarm: &Arc<Alarm>) {
        *self.alarm.lock() = Arc::downgrade(alarm);
        if let Some(why) = self.ours().ok().and_then(|space| space.broken()) {
            sound(Some(alarm), &why);
        }
    }

    fn newest_group(&self) -> u64 {
        self.labels.lock().newest
    }

    fn allocate(&self, bytes: u64) -> io::Result<u64> {
        let space = self.ours()?;
        if space.next().checked_add(bytes).is_none_or(|end| end > self.size.load(Relaxed)) {
            return Err(ErrorKind::StorageFull.into());
        }
        space.allocate(bytes).map_err(|e| io::Error::other(e.to_string()))
    }

    fn free(&self, start: u64, end: u64) {
        invariant!(start < end, "{start:#x}-{end:#x} is freed");
        self.labels.lock().frees.push((start, end));
    }

    fn reclaim(
        &self,
        live: LiveRanges<'_>,
        bytes: u64,
        stops: &(dyn Fn() -> bool + Sync),
    ) -> Result<u64, String> {
        let Mode::Taken(space) = self.mode.lock().clone() else { return Ok(0) };
        let known = Known(Mutex::new(live));
        // What is dropped has changed nothing; a request that hangs is not waited for.
        let stopped = async {
            while !stops() {
                tokio::time::sleep(HEARS).await;
            }
        };
        let work = async {
            tokio::select! {
                done = space.reclaim(&known, bytes) => done,
                () = stopped => Ok(Reclaimed::default()),
            }
        };
        let done = self.ask(work).map_err(|e| e.to_string())?;
        if done.objects > 0 {
            tracing::debug!(?done, "objects are written anew");
        }
        Ok(done.copied)
    }

    fn erase(&self) -> io::Result<bool> {
        let mut turn = self.turn.lock();
        let mode = self.mode.lock().clone();
        let deleted = match &mode {
            Mode::New => return Ok(false),
            Mode::Wreck(wreck) => {
                if !self.may_write {
                    return Err(ErrorKind::ReadOnlyFilesystem.into());
                }
                self.place.check()?;
                self.wait(wreck.lock().erase(&host()))?
            }
            Mode::Seen(_) | Mode::Taken(_) => {
                let space = self.take(&turn)?;
                // Nothing tidies up beside it.
                let _tidying = self.wait(self.tidying.lock())?;
                self.wait(space.erase())?
            }
        };
        deleted.map_err(|error| io::Error::other(self.place.named(error.to_string())))?;
        self.place.remove_folders();
        *turn = Stored::default();
        let mut labels = self.labels.lock();
        *labels = Labels::default();
        Ok(true)
    }

    fn trouble(&self) -> Option<String> {
        self.labels.lock().trouble.clone()
    }

    fn is_new(&self) -> bool {
        matches!(&*self.mode.lock(), Mode::New) && self.place.is_empty()
    }

    fn read_ahead(&self) -> u64 {
        self.space().map_or(0, |space| space.read_ahead())
    }

    fn figures(&self) -> GrowingFigures {
        let Some(space) = self.space() else { return GrowingFigures::default() };
        let (totals, figures) = (space.totals(), space.figures());
        GrowingFigures {
            objects: totals.objects,
            stored: totals.stored,
            live: totals.live,
            garbage: space.garbage(),
            requests: figures.requests,
            bytes: figures.bytes,
            retries: figures.retries,
            failures: figures.failures,
        }
    }
}
