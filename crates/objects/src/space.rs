//! A space: made, found, taken over.
//!
//! # Structures
//!
//! A [`Space`] is a handle. All handles share the requests, the `State` under one lock, and locks that keep commits, reclaims and looks at
//! the root apart. The state has the index, the last root, objects of groups that are not committed (`packed`), and what waits
//! to be deleted (`garbage`, `old_roots`). Its lock is not held while a request is under way.
//!
//! # Algorithm
//!
//! - [`Space::create`] stores a first root below a prefix that has no other objects. The first epoch is random: late requests for an
//!   older pool with this prefix do not meet the new names.
//! - [`Space::look`] finds the root and changes nothing. [`Found::view`] reads the index, and the space can then only be read.
//! - [`Found::open`] reads the index, and stores a root with a new epoch: all other hosts are refused from then on.
//! - The index is the directory of the last checkpoint with the log applied. Only pages that the log changes are read for that.
//! - [`Space::sweep`] deletes what crashes left at the ends of earlier epochs. [`Space::tidy`] deletes what the last root does not
//!   name any more.
//!
//! # Invariants
//!
//! - A name is given out once: the counter of an epoch only grows, and each import has an epoch of its own.
//! - An index that is read sums to what its root says. Otherwise the space is damaged, and is not opened.
//! - Garbage is deleted only once it has been garbage for the grace.
//! - Once the state was found wrong nothing is deleted: no later import could take that back.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cenote_format::invariant;
use futures_util::future::{join_all, try_join_all};
use object_store::ObjectStore;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::{Mutex as Turn, Notify, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::commit::Committing;
use crate::error::{Error, Result};
use crate::head::{Head, PROBES};
use crate::id::{self, EPOCHS, Id};
use crate::index::{Index, Lack, Limits};
use crate::page::Entry;
use crate::read::Tables;
use crate::reclaim::Round;
use crate::record::{Move, Record};
use crate::requests::{Class, Requests, unique};
use crate::root::{Root, TAILS, Tail, Totals};
use crate::stats::Figures;
use crate::tunables::Tunables;
use crate::write::Packed;
use crate::{ADDRESSES, MAX_DATA};

/// An open space.
#[derive(Clone)]
pub struct Space {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub requests: Requests,
    pub state: Mutex<State>,
    /// One commit at a time.
    pub commit: Turn<Committing>,
    /// One reclaim at a time, and where it goes on.
    pub reclaim: Turn<Round>,
    pub uploads: Arc<Semaphore>,
    /// An upload has ended.
    pub ended: Notify,
    /// When the root was looked at last because an object was missing, and what that told.
    pub looked: Turn<Option<(Instant, Option<Error>)>>,
    /// There is more garbage.
    pub discarded: Notify,
    pub tables: Mutex<Tables>,
    /// Told what tasks find wrong.
    pub tell: OnceLock<Tell>,
}

/// Is told why the space stops.
pub(crate) type Tell = Box<dyn Fn(&str) + Send + Sync>;

pub(crate) struct State {
    pub index: Index,
    /// Where addresses and names go on.
    pub next: u64,
    pub counter: u64,
    /// Objects of groups that are not committed, by their first address.
    pub packed: BTreeMap<u64, Packed>,
    /// Why the last upload failed.
    pub failed: Option<Error>,
    /// Why nothing is written any more: another import has the space; it is only looked at; it was deleted; or its state is wrong.
    pub fenced: Option<Error>,
    pub freed: Vec<(u64, u64)>,
    pub moves: Vec<Move>,
    /// First addresses of entries that are being written anew.
    pub moving: BTreeSet<u64>,
    /// Names given out that no root has.
    pub loose: BTreeSet<u64>,
    /// Objects that no root names any more, by when they may be deleted.
    pub garbage: BTreeSet<(Instant, Id)>,
    /// The entries that these had: reads that began before they were freed find their blocks as long as the objects exist.
    pub gone: BTreeMap<Id, Entry>,
    pub deleted: Vec<Id>,
    pub old_roots: Vec<Path>,
    /// The last root, or the one that is being stored.
    pub root: Root,
    /// A commit is under way: pages count as written that may not be yet.
    pub frozen: bool,
    /// A commit reads the pages that it changes: none is dropped until it has them all ([`Pin`]).
    pub pinned: bool,
}

impl State {
    /// A new name.
    pub fn name(&mut self) -> Id {
        let id = Id::new(self.root.epoch(), self.counter);
        let new = self.loose.insert(self.counter);
        invariant!(new, "the name {id} is given out twice");
        self.counter += 1;
        id
    }

    /// Notes what may be deleted after the grace. It has been garbage for `age`.
    pub fn discard(&mut self, garbage: &[Id], age: Duration, tunables: &Tunables) {
        let from = Instant::now() + tunables.grace.saturating_sub(age);
        self.garbage.extend(garbage.iter().map(|id| (from, *id)));
    }
}

/// Keeps all pages of the index in memory as long as it lives. Commits take turns, so there is one at a time.
pub(crate) struct Pin<'a>(&'a Mutex<State>);

impl<'a> Pin<'a> {
    pub fn new(state: &'a Mutex<State>) -> Self {
        let pinned = std::mem::replace(&mut state.lock().pinned, true);
        invariant!(!pinned, "two commits at a time read pages of the index");
        Self(state)
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.lock().pinned = false;
    }
}

/// A space that was found, before it is taken over.
pub struct Found {
    pub(crate) requests: Requests,
    pub(crate) head: Head,
    pub(crate) root: Root,
}

impl Found {
    /// What the user handed over with the last group.
    pub fn payload(&self) -> &[u8] {
        &self.root.payload
    }

    /// The last group.
    pub fn group(&self) -> u64 {
        self.root.group
    }

    /// The host that wrote it.
    pub fn host(&self) -> &str {
        &self.root.host
    }

    /// The guid of the space.
    pub fn guid(&self) -> u64 {
        self.root.guid
    }

    /// From now on what is asked of the store is tried as these tunables say.
    pub fn with(mut self, tunables: Tunables) -> Self {
        self.requests.tunables = tunables;
        self
    }

    /// Reads the index, to read blocks. Nothing is written, and the host that has the space keeps it: once it has committed further groups,
    /// blocks that it freed may be gone.
    ///
    /// # Errors
    /// The store fails; the index is damaged.
    pub async fn view(self) -> Result<Space> {
        let Self { requests, head, root } = self;
        let (index, _) = read_index(&requests, &root).await?;
        let by = root.host.clone();
        let space = Space::new(requests, head, root, index);
        space.shared.state.lock().fenced = Some(Error::Fenced { by });
        Ok(space)
    }

    /// Reads the index and takes the space over: from then on every other host is refused.
    ///
    /// # Errors
    /// The store fails, or ignores conditions; the index is damaged; another host wrote a group meanwhile ([`Error::Fenced`]).
    pub async fn open(self, host: &str) -> Result<Space> {
        let Self { requests, mut head, root: old } = self;
        let (index, garbage) = read_index(&requests, &old).await?;
        if old.epoch() + 1 >= EPOCHS {
            return Err(Error::Refused(
                "there are no epochs left; send the pool to a new one".into(),
            ));
        }
        let mut root = old.clone();
        root.tails.insert(0, Tail { epoch: old.epoch() + 1, counter: 0, loose: Vec::new() });
        root.tails.truncate(TAILS);
        root.sequence += 1;
        root.host = host.into();
        root.mark = unique()?;
        // What this root names as garbage is garbage for as long as it is stored, at least.
        let age = head.check(&requests).await?;
        head.replace(&requests, &root.encode().into()).await?;
        let space = Space::new(requests, head, root, index);
        let mut state = space.shared.state.lock();
        state.discard(&garbage, age, &space.shared.requests.tunables);
        drop(state);
        Ok(space)
    }
}

impl Space {
    /// Makes a space below `prefix`, with a first root that has `payload`.
    ///
    /// # Errors
    /// There is one; the prefix has objects of something else, or of a pool whose root was deleted; the store fails, or ignores
    /// conditions.
    pub async fn create(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        tunables: Tunables,
        host: &str,
        payload: &[u8],
    ) -> Result<Self> {
        let requests = Requests::new(store, prefix, tunables);
        if Head::find(&requests).await?.is_some() {
            return Err(Error::Exists(requests.prefix.to_string()));
        }
        let probe =
            |path: &Path| Id::parse(&requests.prefix, path).is_some_and(|id| id.epoch() == PROBES);
        if let Some(other) = requests.stranger(probe).await? {
            return Err(Error::Refused(format!(
                "there is an object '{other}': delete what lies below the prefix, or choose another one"
            )));
        }
        // Requests for an older pool with this prefix may still arrive: its names are not used again.
        let first = 1 + (unique()? % u64::from(EPOCHS / 2)) as u32;
        let root = Root::first((unique()?, unique()?), host, first, payload);
        let head = Head::create(&requests, root.encode().into()).await?;
        let index = Index::new(limits(&requests.tunables));
        Ok(Self::new(requests, head, root, index))
    }

    /// Looks for a space below `prefix`, and changes nothing.
    ///
    /// # Errors
    /// There is none; the store fails; the root is damaged.
    pub async fn look(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        tunables: Tunables,
    ) -> Result<Found> {
        let requests = Requests::new(store, prefix, tunables);
        let mut found = None;
        for _ in 0..3 {
            found = Head::find(&requests).await?;
            if found.is_some() {
                break;
            }
        }
        let Some((head, bytes)) = found else {
            return Err(Error::Absent(requests.prefix.to_string()));
        };
        let root = Root::decode(&bytes).map_err(|why| Error::damaged("commit", &why))?;
        Ok(Found { requests, head, root })
    }

    fn new(requests: Requests, head: Head, root: Root, index: Index) -> Self {
        let state = State {
            index,
            next: root.next,
            counter: 0,
            packed: BTreeMap::new(),
            failed: None,
            fenced: None,
            freed: Vec::new(),
            moves: Vec::new(),
            moving: BTreeSet::new(),
            loose: BTreeSet::new(),
            garbage: BTreeSet::new(),
            gone: BTreeMap::new(),
            deleted: Vec::new(),
            old_roots: Vec::new(),
            root,
            frozen: false,
            pinned: false,
        };
        let tables = Tables::new(requests.tunables.table_bytes);
        let uploads = Arc::new(Semaphore::new(requests.tunables.uploads.max(1)));
        let shared = Shared {
            requests,
            state: Mutex::new(state),
            commit: Turn::new(Committing { head, kept: None, prepared: None }),
            reclaim: Turn::default(),
            uploads,
            ended: Notify::new(),
            looked: Turn::default(),
            discarded: Notify::new(),
            tables: Mutex::new(tables),
            tell: OnceLock::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The last group, or the one that is being stored.
    pub fn group(&self) -> u64 {
        self.shared.state.lock().root.group
    }

    /// Whether the store answers within `deadline`, and has roots of this space.
    pub async fn answers(&self, deadline: Duration) -> bool {
        let requests = &self.shared.requests;
        for root in Head::lasting(&requests.prefix) {
            if requests.answers(&root, deadline).await {
                return true;
            }
        }
        false
    }

    /// Whether nothing was given out or freed since the last group.
    pub fn is_clean(&self) -> bool {
        let state = self.shared.state.lock();
        state.packed.is_empty() && state.freed.is_empty() && state.next == state.root.next
    }

    /// Requests and bytes since the space was opened.
    pub fn figures(&self) -> Figures {
        self.shared.requests.stats.figures()
    }

    /// Objects, bytes stored in them and bytes of them that are live, as of the last group, or of the one that is being stored.
    pub fn totals(&self) -> Totals {
        self.shared.state.lock().root.totals
    }

    /// Objects that no root names any more, and that are not deleted yet.
    pub fn garbage(&self) -> u64 {
        self.shared.state.lock().garbage.len() as u64
    }

    /// Bytes of memory that the index takes, about.
    pub fn index_memory(&self) -> usize {
        self.shared.state.lock().index.memory()
    }

    /// Bytes to read ahead of a sequential reader: latency times bandwidth, as measured.
    pub fn read_ahead(&self) -> u64 {
        self.shared.requests.window()
    }

    /// Deletes what crashes have left: objects at the ends of earlier epochs that no root names. To be called after each import; it may
    /// run beside everything else.
    ///
    /// # Errors
    /// The store fails: the next call goes on. The space's state is wrong ([`Error::Broken`]): nothing is deleted any more.
    pub async fn sweep(&self) -> Result<u64> {
        let requests = &self.shared.requests;
        let tails = self.shared.state.lock().root.tails.clone();
        // A listing takes long: no group waits for it.
        let head = self.shared.commit.lock().await.head.clone();
        let mut orphans: Vec<Path> = head.leftover(requests).await?;
        let probes = requests.list(&id::folder(&requests.prefix, PROBES), None).await?;
        orphans
            .extend(probes.into_iter().filter(|path| Id::parse(&requests.prefix, path).is_some()));
        for tail in tails.iter().skip(1) {
            let name = |counter: u64| Id::new(tail.epoch, counter).path(&requests.prefix);
            orphans.extend(tail.loose.iter().map(|counter| name(*counter)));
            let after = tail.counter.checked_sub(1).map(name);
            let listed =
                requests.list(&id::folder(&requests.prefix, tail.epoch), after.as_ref()).await?;
            let beyond = |path: &Path| {
                Id::parse(&requests.prefix, path).is_some_and(|id| id.counter() >= tail.counter)
            };
            orphans.extend(listed.into_iter().filter(beyond));
        }
        for some in orphans.chunks(requests.tunables.uploads.max(1)) {
            try_join_all(some.iter().map(|path| self.shared.delete(path))).await?;
        }
        Ok(orphans.len() as u64)
    }

    /// Waits until it is time to delete something ([`Self::tidy`]), whether groups are committed or not.
    pub async fn due(&self) {
        loop {
            let first = self.shared.state.lock().garbage.first().map(|(from, _)| *from);
            let more = self.shared.discarded.notified();
            match first {
                None => more.await,
                Some(from) => tokio::select! {
                    () = sleep_until(from) => return,
                    () = more => {}
                },
            }
        }
    }

    /// Deletes objects that the last root does not name any more, as far as it is time. To be called after groups and when it is time
    /// ([`Self::due`]); it may run beside everything else. What fails is deleted later; returns why it failed. While the store is away, or deletes
    /// nothing, not everything is tried; nothing is where the space's state is wrong.
    pub async fn tidy(&self) -> Option<Error> {
        let requests = &self.shared.requests;
        let roots = self.shared.state.lock().old_roots.clone();
        let now = Instant::now();
        let (mut after, mut failed) = (None, None);
        loop {
            let some: Vec<(Instant, Id)> = {
                let state = self.shared.state.lock();
                let from = after.map_or(Bound::Unbounded, Bound::Excluded);
                let rest = state.garbage.range((from, Bound::Unbounded));
                let due = rest.take_while(|(from, _)| *from <= now).copied();
                due.take(requests.tunables.uploads.max(1)).collect()
            };
            let Some(last) = some.last() else { break };
            after = Some(*last);
            let delete = async |one: (Instant, Id)| {
                (one, self.shared.delete(&one.1.path(&requests.prefix)).await)
            };
            let done = join_all(some.iter().map(|one| delete(*one))).await;
            let none = done.iter().all(|(_, done)| done.is_err());
            let mut state = self.shared.state.lock();
            for (one, done) in done {
                match done {
                    Ok(()) if state.garbage.remove(&one) => {
                        state.gone.remove(&one.1);
                        state.deleted.push(one.1);
                    }
                    Ok(()) => {}
                    Err(error) => failed = Some(error),
                }
            }
            if none || failed.as_ref().is_some_and(Error::transient) {
                return failed;
            }
        }
        for root in roots {
            match self.shared.delete(&root).await {
                Ok(()) => self.shared.state.lock().old_roots.retain(|old| *old != root),
                Err(error) => failed = Some(error),
            }
        }
        failed
    }

    /// Reads absent pages of the index, for what is as urgent as that.
    pub(crate) async fn load(&self, keys: &BTreeSet<u64>, class: Class) -> Result<()> {
        let requests = &self.shared.requests;
        let one = async |key: u64| {
            let Some((id, offset, length)) = self.shared.state.lock().index.home(key) else {
                return Ok(());
            };
            let path = id.path(&requests.prefix);
            let bytes = requests.range(&path, offset..offset + length, class).await?;
            let mut state = self.shared.state.lock();
            state
                .index
                .install(key, (id, offset), &bytes)
                .map_err(|why| Error::damaged(&path, &why))
        };
        try_join_all(keys.iter().map(|key| one(*key))).await.map(|_| ())
    }

    /// Drops clean pages beyond the budget, unless a commit is under way or gathers its pages.
    pub(crate) fn evict(&self) {
        let mut state = self.shared.state.lock();
        if !state.frozen && !state.pinned {
            state.index.evict(self.shared.requests.tunables.index_bytes);
        }
    }
}

pub(crate) fn limits(tunables: &Tunables) -> Limits {
    let (percent, small) = (tunables.live_percent, tunables.object_bytes / 4);
    let target = tunables.object_bytes.min(MAX_DATA);
    Limits { percent, small, target, page: tunables.page_entries }
}

/// The index of a root: directory, then log. Reads the pages that the log changes, and no others.
async fn read_index(requests: &Requests, root: &Root) -> Result<(Index, Vec<Id>)> {
    let whole = async |id: Id, length: u64| -> Result<Bytes> {
        requests.range(&id.path(&requests.prefix), 0..length, Class::Sync).await
    };
    let limits = limits(&requests.tunables);
    let (mut index, mut garbage) = match root.directory {
        Some((id, length)) => {
            let bytes = whole(id, length).await?;
            Index::open(&bytes, limits).map_err(|why| Error::damaged(id, &why))?
        }
        None => (Index::new(limits), Vec::new()),
    };
    let logs = try_join_all(root.logs.iter().map(|(id, length)| whole(*id, *length))).await?;
    let inline = Bytes::copy_from_slice(&root.inline);
    for bytes in logs.iter().chain([&inline]) {
        let records = Record::decode_all(bytes).map_err(|why| Error::damaged("log", &why))?;
        for record in records {
            replay(requests, &mut index, &mut garbage, &record).await?;
        }
    }
    if index.totals != root.totals || root.next > ADDRESSES {
        let why = format!("index sums to {:?}, root says {:?}", index.totals, root.totals);
        return Err(Error::Damaged { path: "commit".into(), why });
    }
    Ok((index, garbage))
}

/// Applies a record once more.
async fn replay(
    requests: &Requests,
    index: &mut Index,
    garbage: &mut Vec<Id>,
    record: &Record,
) -> Result<()> {
    let absent = index.absent(record);
    let homes = absent.iter().filter_map(|key| Some((*key, index.home(*key)?)));
    let read = async |(key, (id, offset, length)): (u64, (Id, u64, u64))| {
        let path = id.path(&requests.prefix);
        let bytes = requests.range(&path, offset..offset + length, Class::Sync).await?;
        Ok::<_, Error>((key, id, offset, bytes))
    };
    for (key, id, offset, bytes) in try_join_all(homes.map(read)).await? {
        index.install(key, (id, offset), &bytes).map_err(|why| Error::damaged(id, &why))?;
    }
    match index.apply(record) {
        Ok(more) => garbage.extend(more.iter().map(|entry| entry.id)),
        Err(Lack::Absent(keys)) => {
            let why = format!("pages {keys:x?} could not be read");
            return Err(Error::Damaged { path: "index".into(), why });
        }
        Err(Lack::Wrong(why)) => {
            let path = format!("log of group {}", record.group);
            return Err(Error::Damaged { path, why });
        }
    }
    let deleted: BTreeSet<Id> = record.deleted.iter().copied().collect();
    if !deleted.is_empty() {
        garbage.retain(|id| !deleted.contains(id));
    }
    Ok(())
}
