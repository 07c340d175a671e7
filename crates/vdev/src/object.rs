//! A device in an object store: a directory, or what a program brings along.
//!
//! # Idea
//!
//! The blocks of the device are in a space of `cenote_objects`, whose addresses are never used twice ([`Growing`]). Byte
//! [`LABEL_START`] of the device is address 0. There are no labels on the store: what is written to the places of labels is kept in memory
//! and goes along with the root of the space, so that blocks, labels and uberblocks become durable together, with one request
//! that only the host which has the space can make.
//!
//! # When something is durable
//!
//! [`Device::flush`] stores a root where there is an uberblock of a later group than the last one stored, or where nothing but labels was written. A
//! flush before the uberblock of a group does nothing: blocks that no uberblock leads to would be lost with a crash
//! anyway, since the next import deletes what no root names. So nothing may count on such a flush but the end of a group: no log block and
//! no block that is written ahead of its group goes to such a device (`store::alloc`).
//!
//! # Not for users yet
//!
//! Such pools are not proven: every open is refused ([`may_open`]), unless a test has called [`open_objects`].
//!
//! # Who has the space
//!
//! A device that is opened for writing takes the space over with its first write, and not before: to look at a pool
//! disturbs no one. From then on every other host is refused. If another host has written a root since the labels were read,
//! the space is not taken over.
//!
//! Invariants: a root is stored with all blocks written before it. What was stored is never written again: the second write of a block has the
//! bytes of the first, or its object was held back ([`WriteReq::held`]). Labels that are in the root are those of the last uberblock, or
//! newer ones that it allows.

use std::collections::{BTreeMap, HashMap};
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use bytes::Bytes;
use cenote_format::abd::Abd;
use cenote_format::invariant;
use cenote_format::label::{LABEL_END, LABEL_SIZE, RING_OFFSET, UBERBLOCK_MAGIC};
use cenote_format::{LABEL_START, SECTOR};
use cenote_objects::{Class, Error, Live, Space, Tunables};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use parking_lot::Mutex;
use tokio::runtime::Runtime;

use crate::device::{Device, ReadReq, WriteReq};
use crate::growing::{Growing, GrowingFigures, LiveRanges};

/// Bytes of addresses that a new device has. It grows when half of them are given out ([`Device::size_by_now`]).
const FIRST_SIZE: u64 = 64 << 40;
/// It does not grow beyond this.
const LAST_SIZE: u64 = 8 << 50;
/// Uberblocks of so many groups are kept.
const UBERBLOCKS: usize = 8;
/// The first bytes of what goes along with a root.
const MAGIC: &[u8; 8] = b"cenobj\0\x01";

/// Whether stores are opened: see [`open_objects`].
static MAY_OPEN: AtomicBool = AtomicBool::new(false);

/// Has this process open devices in object stores. They are refused otherwise, as long as pools there are not proven: tests
/// call this.
#[doc(hidden)]
pub fn open_objects() {
    MAY_OPEN.store(true, SeqCst);
}

/// Refuses devices in object stores by name. Whatever opens one comes here.
///
/// # Errors
/// `Unsupported`, unless [`open_objects`] was called.
pub fn may_open() -> io::Result<()> {
    match MAY_OPEN.load(SeqCst) {
        true => Ok(()),
        false => Err(io::Error::new(
            ErrorKind::Unsupported,
            "pools in object storage are not supported yet",
        )),
    }
}

/// A store that a program brought along, and how it is used.
type Provided = (Arc<dyn ObjectStore>, Tunables);

/// Stores that programs brought along, by what their devices are called.
static PROVIDED: LazyLock<Mutex<HashMap<PathBuf, Provided>>> = LazyLock::new(Mutex::default);

/// Devices that are open for writing in this process.
static WRITERS: LazyLock<Mutex<HashMap<PathBuf, Writer>>> = LazyLock::new(Mutex::default);

struct Writer {
    is_open: Weak<()>,
    core: Weak<Core>,
}

/// Where the requests of all devices run.
fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let made = builder.worker_threads(2).thread_name("objects").enable_all().build()?;
    Ok(RUNTIME.get_or_init(|| made))
}

/// Waits for a request.
fn wait<T>(work: impl Future<Output = T>) -> io::Result<T> {
    Ok(runtime()?.block_on(work))
}

fn failed(error: &Error) -> io::Error {
    io::Error::other(error.to_string())
}

/// Whether a path names a device in an object store: it begins with a scheme, as `file:///srv/pool` does.
pub fn is_object(path: &Path) -> bool {
    let Some(path) = path.to_str() else { return false };
    let scheme = path.split_once("://").map_or("", |(scheme, _)| scheme);
    !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// From now on devices called `path` are in this store, in this process.
pub fn provide(path: &Path, store: Arc<dyn ObjectStore>, tunables: Tunables) {
    PROVIDED.lock().insert(path.to_path_buf(), (store, tunables));
}

/// The directory that a path names.
fn directory(path: &Path) -> Option<&Path> {
    let dir = path.to_str()?.strip_prefix("file://")?;
    dir.starts_with('/').then(|| Path::new(dir))
}

/// The store that a path names.
fn store_of(path: &Path) -> io::Result<(Arc<dyn ObjectStore>, Tunables)> {
    if let Some(provided) = PROVIDED.lock().get(path) {
        return Ok(provided.clone());
    }
    let text = path.to_str().unwrap_or_default();
    let Some(dir) = directory(path) else {
        let why = format!("{text} is not supported: only directories are, as file:///DIRECTORY");
        return Err(io::Error::new(ErrorKind::Unsupported, why));
    };
    if !dir.metadata()?.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    let store = LocalFileSystem::new_with_prefix(dir).map_err(io::Error::other)?;
    Ok((Arc::new(store.with_fsync(true)), Tunables::default()))
}

/// Opens a device for reading. One that is open for writing in this process is that one.
pub(crate) fn open(path: &Path) -> io::Result<Arc<dyn Device>> {
    may_open()?;
    let open = WRITERS.lock().get(path).and_then(|writer| {
        writer.is_open.upgrade()?;
        writer.core.upgrade()
    });
    let core = match open {
        Some(core) => core,
        None => Core::look(path, false)?,
    };
    Ok(Arc::new(ObjectDevice { core, writer: None }))
}

/// Opens a device for writing, once in this process.
pub(crate) fn open_rw(path: &Path) -> io::Result<Arc<dyn Device>> {
    may_open()?;
    let writer = Arc::new(());
    {
        let mut writers = WRITERS.lock();
        if writers.get(path).is_some_and(|writer| writer.is_open.strong_count() > 0) {
            return Err(ErrorKind::ResourceBusy.into());
        }
        let (is_open, core) = (Arc::downgrade(&writer), Weak::new());
        writers.insert(path.to_path_buf(), Writer { is_open, core });
    }
    let core = Core::look(path, true)?;
    if let Some(known) = WRITERS.lock().get_mut(path) {
        known.core = Arc::downgrade(&core);
    }
    Ok(Arc::new(ObjectDevice { core, writer: Some(writer) }))
}

/// See the head of the module.
pub(crate) struct ObjectDevice {
    core: Arc<Core>,
    /// It is open for writing, as long as this lives.
    writer: Option<Arc<()>>,
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
}

struct Core {
    path: PathBuf,
    store: Arc<dyn ObjectStore>,
    tunables: Tunables,
    may_write: bool,
    size: AtomicU64,
    mode: Mutex<Mode>,
    /// One thread takes the space over; and stores roots.
    turn: Mutex<Stored>,
    /// One task at a time deletes what is not needed any more.
    tidying: Arc<tokio::sync::Mutex<()>>,
    labels: Mutex<Labels>,
}

/// What the last root has.
#[derive(Default)]
struct Stored {
    /// A root that is not stored yet: its group and what goes along.
    pending: Option<(u64, Vec<u8>)>,
    /// The root that was read: group and what goes along. None: there is no root.
    seen: Option<(u64, Vec<u8>)>,
}

/// What is written to the places of labels.
#[derive(Default)]
struct Labels {
    /// Sectors that are not zeros, by label and number in it.
    sectors: BTreeMap<(usize, u64), Vec<u8>>,
    /// Something changed since the last root.
    dirty: bool,
    /// The group of the newest uberblock in the last root, and of the newest one.
    stored: u64,
    newest: u64,
    /// Freed in this group.
    frees: Vec<(u64, u64)>,
    /// Why the last root was not stored.
    trouble: Option<String>,
}

impl Core {
    /// Reads the root, if there is one.
    fn look(path: &Path, may_write: bool) -> io::Result<Arc<Core>> {
        let (store, tunables) = store_of(path)?;
        let (mode, size, labels, seen) = match wait(Space::look(
            store.clone(),
            object_store::path::Path::default(),
            tunables.clone(),
        ))? {
            Err(Error::Absent(_)) => (Mode::New, FIRST_SIZE, Labels::default(), None),
            Err(error) => return Err(failed(&error)),
            Ok(found) => {
                let (group, payload) = (found.group(), found.payload().to_vec());
                let (size, labels) = decode(&payload).map_err(io::Error::other)?;
                let space = wait(found.view())?.map_err(|e| failed(&e))?;
                (Mode::Seen(space), size, labels, Some((group, payload)))
            }
        };
        Ok(Arc::new(Core {
            path: path.to_path_buf(),
            store,
            tunables,
            may_write,
            size: AtomicU64::new(size),
            mode: Mutex::new(mode),
            turn: Mutex::new(Stored { pending: None, seen }),
            tidying: Arc::default(),
            labels: Mutex::new(labels),
        }))
    }

    fn space(&self) -> Option<Space> {
        match &*self.mode.lock() {
            Mode::New => None,
            Mode::Seen(space) | Mode::Taken(space) => Some(space.clone()),
        }
    }

    /// The space, which this host has from now on.
    fn taken(&self) -> io::Result<Space> {
        if let Mode::Taken(space) = &*self.mode.lock() {
            return Ok(space.clone());
        }
        let turn = self.turn.lock();
        self.take(&turn)
    }

    fn take(&self, stored: &Stored) -> io::Result<Space> {
        if let Mode::Taken(space) = &*self.mode.lock() {
            return Ok(space.clone());
        }
        if !self.may_write {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        let (store, prefix, tunables) =
            (self.store.clone(), object_store::path::Path::default(), self.tunables.clone());
        let space = match &stored.seen {
            None => {
                if let Some(dir) = directory(&self.path) {
                    // What is in it belongs to the pool's users, and to no others.
                    std::fs::set_permissions(dir, Permissions::from_mode(0o700))?;
                }
                let payload = encode(self.size.load(Relaxed), &Labels::default());
                wait(Space::create(store, prefix, tunables, &host(), &payload))?
            }
            Some((group, payload)) => {
                let found = wait(Space::look(store, prefix, tunables))?.map_err(|e| failed(&e))?;
                if found.group() != *group || found.payload() != payload {
                    return Err(io::Error::other(format!(
                        "{} has written to it since it was opened here",
                        found.host()
                    )));
                }
                wait(found.open(&host()))?
            }
        };
        let space = space.map_err(|e| failed(&e))?;
        *self.mode.lock() = Mode::Taken(space.clone());
        let swept = space.clone();
        runtime()?.spawn(async move {
            if let Err(error) = swept.sweep().await {
                tracing::info!(%error, "what crashes have left is deleted at the next import");
            }
        });
        Ok(space)
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
    fn is_label(&self, offset: u64) -> bool {
        offset < LABEL_START || offset >= self.size.load(Relaxed) + LABEL_START
    }

    fn read_label(&self, offset: u64, len: usize) -> Vec<u8> {
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
    fn flush(&self) -> io::Result<()> {
        let stored = self.store_root();
        self.labels.lock().trouble = stored.as_ref().err().map(ToString::to_string);
        stored
    }

    fn store_root(&self) -> io::Result<()> {
        let mut turn = self.turn.lock();
        if let Some((group, payload)) = turn.pending.clone() {
            let space = self.take(&turn)?;
            wait(space.commit(group, &payload))?.map_err(|e| failed(&e))?;
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
        let space = self.take(&turn)?;
        let gaps = wait(space.close())?;
        let payload = {
            let mut labels = self.labels.lock();
            // What a group frees is needed until its uberblock is there.
            let frees = if leads { std::mem::take(&mut labels.frees) } else { Vec::new() };
            for (start, end) in frees {
                for (start, end) in without(start, end, &gaps) {
                    space.free(start, end - start).map_err(|e| failed(&e))?;
                }
            }
            labels.forget_old();
            (labels.dirty, labels.stored) = (false, labels.newest);
            encode(self.size.load(Relaxed), &labels)
        };
        let group = space.group() + 1;
        turn.pending = Some((group, payload.clone()));
        wait(space.commit(group, &payload))?.map_err(|e| failed(&e))?;
        turn.pending = None;
        self.tidy(&space)
    }

    /// Has what is not needed any more deleted, beside everything else. What comes while that is under way waits for the next
    /// root.
    fn tidy(&self, space: &Space) -> io::Result<()> {
        let Ok(turn) = self.tidying.clone().try_lock_owned() else { return Ok(()) };
        let space = space.clone();
        runtime()?.spawn(async move {
            space.tidy().await;
            drop(turn);
        });
        Ok(())
    }

    fn write(&self, req: &WriteReq) -> io::Result<()> {
        if self.is_label(req.offset) {
            return self.write_label(req.offset, &req.data.bytes());
        }
        let (space, address) = (self.taken()?, req.offset - LABEL_START);
        let bytes = Bytes::from(req.data.to_vec());
        let length = bytes.len() as u64;
        let written = match req.held {
            true => wait(space.write_held(address, bytes.clone()))?,
            false => wait(space.write(address, bytes.clone()))?,
        };
        let Err(error) = written else { return Ok(()) };
        if matches!(error, Error::Refused(_)) {
            // What is written again because a flush failed is there already.
            let there = wait(space.read(&[(address, length)], Class::Sync))?;
            if there.into_iter().flatten().any(|known| known == bytes) {
                return Ok(());
            }
        }
        Err(failed(&error))
    }
}

/// Which host this is, for messages.
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{name}, process {}", std::process::id())
}

/// The group of an uberblock that a sector of a label begins with.
fn group_of((_, number): (usize, u64), sector: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u64::from_le_bytes(sector.get(at..at + 8)?.try_into().ok()?));
    let in_ring = number * SECTOR >= RING_OFFSET;
    (in_ring && word(0)? == UBERBLOCK_MAGIC).then(|| word(16))?
}

/// What of a range is not in `gaps`, which are in order, as first address and length.
fn without(start: u64, end: u64, gaps: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let (mut rest, mut from) = (Vec::new(), start);
    let first = gaps.partition_point(|(at, length)| at + length <= start);
    for (at, length) in gaps.iter().skip(first).take_while(|(at, _)| *at < end) {
        if from < *at {
            rest.push((from, *at));
        }
        from = at + length;
    }
    if from < end {
        rest.push((from, end));
    }
    rest
}

impl Labels {
    /// Leaves the uberblocks of the last groups.
    fn forget_old(&mut self) {
        let found = self.sectors.iter();
        let starts = found.filter_map(|(place, sector)| Some((*place, group_of(*place, sector)?)));
        let starts: Vec<((usize, u64), u64)> = starts.collect();
        let mut groups: Vec<u64> = starts.iter().map(|(_, group)| *group).collect();
        groups.sort_unstable();
        groups.dedup();
        let Some(oldest) = groups.iter().rev().nth(UBERBLOCKS - 1).copied() else { return };
        for (n, ((label, number), group)) in starts.iter().enumerate() {
            if *group >= oldest {
                continue;
            }
            let next = starts.get(n + 1).filter(|((other, _), _)| other == label);
            let end = next.map_or(LABEL_SIZE / SECTOR, |((_, number), _)| *number);
            self.sectors.retain(|(other, at), _| other != label || !(*number..end).contains(at));
        }
    }
}

/// What goes along with a root: the size, and the sectors of labels without the zeros at their ends.
fn encode(size: u64, labels: &Labels) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(size.to_le_bytes());
    for ((label, number), sector) in &labels.sectors {
        let used = sector.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        out.push(*label as u8);
        out.extend((*number as u16).to_le_bytes());
        out.extend((used as u16).to_le_bytes());
        out.extend(sector.iter().take(used));
    }
    out
}

/// The reverse.
fn decode(bytes: &[u8]) -> Result<(u64, Labels), String> {
    fn take<'a>(rest: &mut &'a [u8], n: usize) -> Result<&'a [u8], String> {
        let (head, tail) = rest.split_at_checked(n).ok_or("the labels in the root are cut")?;
        *rest = tail;
        Ok(head)
    }
    let short = |b: &[u8]| b.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    let mut rest = bytes;
    if take(&mut rest, MAGIC.len())? != MAGIC {
        return Err("the root is not of a pool, or of a later version".into());
    }
    let size = short(take(&mut rest, 8)?);
    if !(FIRST_SIZE..=LAST_SIZE).contains(&size) || !size.is_multiple_of(LABEL_SIZE) {
        return Err(format!("a device of {size} bytes"));
    }
    let mut labels = Labels::default();
    while !rest.is_empty() {
        let label = short(take(&mut rest, 1)?) as usize;
        let number = short(take(&mut rest, 2)?);
        let used = short(take(&mut rest, 2)?) as usize;
        if label >= 4 || number >= LABEL_SIZE / SECTOR || used > SECTOR as usize {
            return Err(format!("label {label} has {used} bytes in sector {number}"));
        }
        let mut sector = take(&mut rest, used)?.to_vec();
        sector.resize(SECTOR as usize, 0);
        let group = group_of((label, number), &sector).unwrap_or(0);
        labels.newest = labels.newest.max(group);
        labels.sectors.insert((label, number), sector);
    }
    labels.stored = labels.newest;
    Ok((size, labels))
}

impl Device for ObjectDevice {
    fn size(&self) -> u64 {
        self.core.size.load(Relaxed) + LABEL_START + LABEL_END
    }

    fn size_by_now(&self) -> u64 {
        let size = self.core.size.load(Relaxed);
        let grows = self.core.space().is_some_and(|space| space.next() > size / 2);
        let size = if grows { (2 * size).min(LAST_SIZE) } else { size };
        size + LABEL_START + LABEL_END
    }

    fn grow(&self, size: u64) {
        let more = size.saturating_sub(LABEL_START + LABEL_END).min(LAST_SIZE);
        self.core.size.fetch_max(more, Relaxed);
    }

    fn path(&self) -> &Path {
        &self.core.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        let (mut blocks, mut asked) = (Vec::new(), Vec::new());
        for (n, req) in reqs.iter_mut().enumerate() {
            if self.core.is_label(req.offset) {
                let bytes = self.core.read_label(req.offset, req.len);
                req.result = Some(Ok(Abd::from_vec(bytes)));
            } else {
                blocks.push((req.offset - LABEL_START, req.len as u64));
                asked.push(n);
            }
        }
        if blocks.is_empty() {
            return;
        }
        let answers = match self.core.space() {
            None => Err(ErrorKind::UnexpectedEof.into()),
            Some(space) => wait(space.read(&blocks, Class::Sync)),
        };
        match answers {
            Ok(answers) => {
                for (n, answer) in asked.into_iter().zip(answers) {
                    let answer = answer.map(Abd::from_owner).map_err(|e| failed(&e));
                    reqs[n].result = Some(answer);
                }
            }
            Err(error) => {
                let error: io::Error = error;
                for n in asked {
                    reqs[n].result = Some(Err(io::Error::new(error.kind(), error.to_string())));
                }
            }
        }
    }

    fn writable(&self) -> bool {
        self.writer.is_some()
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        for req in reqs {
            let written = match self.writable() {
                true => self.core.write(req),
                false => Err(ErrorKind::ReadOnlyFilesystem.into()),
            };
            req.result = Some(written);
        }
    }

    fn flush(&self) -> io::Result<()> {
        if !self.writable() {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        self.core.flush()
    }

    fn concurrency(&self, requests: usize, _: u64) -> usize {
        // Each batch asks for its blocks at once.
        requests.min(1)
    }

    fn growing(&self) -> Option<Arc<dyn Growing>> {
        Some(self.core.clone())
    }
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

    fn allocate(&self, bytes: u64) -> io::Result<u64> {
        let space = self.taken()?;
        if space.next().saturating_add(bytes) > self.size.load(Relaxed) {
            return Err(ErrorKind::StorageFull.into());
        }
        space.allocate(bytes).map_err(|e| failed(&e))
    }

    fn free(&self, start: u64, end: u64) {
        invariant!(start < end, "{start:#x}-{end:#x} is freed");
        self.labels.lock().frees.push((start, end));
    }

    fn reclaim(&self, live: LiveRanges<'_>, bytes: u64) -> Result<(), String> {
        let Mode::Taken(space) = self.mode.lock().clone() else { return Ok(()) };
        let known = Known(Mutex::new(live));
        let done = wait(space.reclaim(&known, bytes)).map_err(|e| e.to_string())?;
        let done = done.map_err(|e| e.to_string())?;
        if done.objects > 0 {
            tracing::debug!(?done, "objects are written anew");
        }
        Ok(())
    }

    fn trouble(&self) -> Option<String> {
        self.labels.lock().trouble.clone()
    }

    fn is_new(&self) -> bool {
        matches!(&*self.mode.lock(), Mode::New)
    }

    fn figures(&self) -> GrowingFigures {
        let Some(space) = self.space() else { return GrowingFigures::default() };
        let (totals, figures) = (space.totals(), space.figures());
        GrowingFigures {
            objects: totals.objects,
            stored: totals.stored,
            live: totals.live,
            requests: figures.requests,
            bytes: figures.bytes,
            retries: figures.retries,
            failures: figures.failures,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn labels() -> Labels {
        let mut labels = Labels::default();
        for group in 1..=20u64 {
            let mut sector = vec![0; SECTOR as usize];
            sector[..8].copy_from_slice(&UBERBLOCK_MAGIC.to_le_bytes());
            sector[16..24].copy_from_slice(&group.to_le_bytes());
            let number = RING_OFFSET / SECTOR + 2 * group;
            labels.sectors.insert((1, number), sector);
            labels.sectors.insert((1, number + 1), vec![7; SECTOR as usize]);
        }
        labels.sectors.insert((3, 40), vec![1; SECTOR as usize]);
        labels
    }

    #[test]
    fn the_last_uberblocks_are_kept() {
        let mut labels = labels();
        labels.forget_old();
        let (size, again) = decode(&encode(FIRST_SIZE, &labels)).unwrap();
        assert_eq!((size, again.stored, again.newest), (FIRST_SIZE, 20, 20));
        assert_eq!(again.sectors, labels.sectors);
        assert_eq!(again.sectors.len(), 2 * UBERBLOCKS + 1);
        assert!(again.sectors.contains_key(&(1, RING_OFFSET / SECTOR + 26)));
        assert!(!again.sectors.contains_key(&(1, RING_OFFSET / SECTOR + 25)));
    }

    #[test]
    fn bad_bytes_are_an_error() {
        let good = encode(FIRST_SIZE, &labels());
        for at in 0..good.len().min(400) {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let _ = decode(&bad);
            }
        }
        let mut other = good.clone();
        other[0] ^= 1;
        assert!(decode(&other).is_err());
        let mut long = good.clone();
        long[19..21].copy_from_slice(&513u16.to_le_bytes());
        assert!(decode(&long).is_err_and(|why| why.contains("513 bytes in sector")));
        assert!(decode(&good[..good.len() - 1]).is_err());
        assert!(decode(&encode(SECTOR, &labels())).is_err());
    }

    #[test]
    fn what_was_never_written_is_not_freed() {
        let gaps = [(10, 5), (20, 10), (40, 1)];
        assert_eq!(without(0, 50, &gaps), [(0, 10), (15, 20), (30, 40), (41, 50)]);
        assert_eq!(without(12, 22, &gaps), [(15, 20)]);
        assert_eq!(without(20, 30, &gaps), []);
        assert_eq!(without(50, 60, &gaps), [(50, 60)]);
    }

    /// No test of this program allows them.
    #[test]
    fn stores_are_refused_by_name() {
        for name in ["file:///", "s3://bucket/x"] {
            for opened in [crate::open_device, crate::open_device_rw] {
                let why = opened(Path::new(name)).err().unwrap();
                assert_eq!(why.kind(), ErrorKind::Unsupported);
                assert_eq!(why.to_string(), "pools in object storage are not supported yet");
            }
        }
    }

    #[test]
    fn schemes_are_told_from_paths() {
        for (path, is) in [
            ("file:///srv/x", true),
            ("s3://bucket/x", true),
            ("S3://bucket/x", true),
            ("/dev/sda", false),
            ("sda", false),
            ("/a://b", false),
            ("://x", false),
        ] {
            assert_eq!(is_object(Path::new(path)), is, "{path}");
        }
    }
}
