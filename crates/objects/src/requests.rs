//! Requests to the store: tries with growing pauses within a budget, deadlines, a second request for reads that hang, counters.
//!
//! # Algorithm
//!
//! - A request is tried until it succeeds, until its cause of failure does not pass by itself (`Cause::transient`), or until its budget
//!   is spent. The pause between two tries doubles up to a bound, and half of it is random.
//! - Each try has a deadline. It is longer for more bytes, and doubles while uploads, or reads, do not end in time: a slow line ends
//!   them at last.
//! - Reads take turns by [`Class`]. A quarter of all turns stays for reads that a program waits for; background reads have half of all
//!   at most.
//! - A read that a program waits for, or will want, is asked a second time if it hangs: it takes four times as long as such
//!   reads take, and others have overtaken it. The first answer counts. About one read in twenty may be asked twice.
//! - An object whose name is never used again is created on the condition that it does not exist. If it exists, its length and its end
//!   tell whether an earlier try has stored it.
//!
//! # Invariants
//!
//! - `put_once` overwrites nothing.
//! - Each request is counted, with its repetitions and failures ([`Figures`](crate::Figures)).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Cause, Error, Result, told};
use crate::frame::TRAILER;
use crate::pace::Pace;
use crate::stats::{Purpose, Stats, Verb};
use crate::tunables::Tunables;

/// How urgent a read is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A program waits for it: asked twice if it hangs. A quarter of all reads stays for these.
    Sync,
    /// A program is going to want it: asked twice if it hangs.
    Ahead,
    /// Scrub, reclaim: at most half of all reads.
    Background,
}

/// The store with all that belongs to its requests.
pub(crate) struct Requests {
    pub store: Arc<dyn ObjectStore>,
    pub prefix: Path,
    pub tunables: Tunables,
    pub stats: Stats,
    reads: Semaphore,
    /// All but those of [`Class::Sync`] take a turn of these before, and those of [`Class::Background`] one of the others before that.
    unhurried: Semaphore,
    background: Semaphore,
    random: AtomicU64,
    pace: Mutex<Pace>,
    /// How often the deadline of uploads was doubled, because uploads did not end in time; and that of reads.
    patience: [AtomicU32; 2],
    /// Reads of ranges that are under way, and those that have ended.
    under_way: AtomicU64,
    ended: AtomicU64,
}

/// A read that is under way.
struct UnderWay<'a>(&'a Requests);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Relaxed);
        self.0.ended.fetch_add(1, Relaxed);
    }
}

/// A read is asked twice after so many times as long as such a read takes, at the earliest.
const LATE: u32 = 4;
/// So many reads at once make each other no later than that.
const FEW: u64 = LATE as u64;
/// Objects that are read ahead at least.
const LEAST_AHEAD: u64 = 4;
/// Of so many reads one may be asked twice, besides the first few.
const HEDGED: u64 = 20;
const FIRST_HEDGES: u64 = 8;
/// Most doublings of the deadline of uploads, and of reads.
const PATIENCE: u32 = 5;
/// Bytes of an upload for which its deadline is a second longer.
const PACE: u64 = 1 << 20;
/// No object is longer: 128 MiB.
const LONGEST: u64 = 2 * crate::MAX_DATA;
/// How often a condition is tried again that failed although it holds.
const CONFLICTS: u32 = 5;

/// A random number from the operating system: no two imports have the same.
///
/// # Errors
/// The system gives no random numbers.
pub(crate) fn unique() -> Result<u64> {
    getrandom::u64()
        .map_err(|why| Error::Refused(format!("the system gives no random numbers: {why}")))
}

impl Requests {
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path, tunables: Tunables) -> Self {
        let reads = Semaphore::new(tunables.reads.max(1));
        let unhurried = Semaphore::new((tunables.reads * 3 / 4).max(1));
        let background = Semaphore::new((tunables.reads / 2).max(1));
        let random = AtomicU64::new(tunables.seed);
        Self {
            store,
            prefix,
            tunables,
            stats: Stats::default(),
            reads,
            unhurried,
            background,
            random,
            pace: Mutex::default(),
            patience: Default::default(),
            under_way: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    /// A random number for jitter (splitmix64).
    fn random(&self) -> u64 {
        let step = 0x9e37_79b9_7f4a_7c15_u64;
        let mut z = self.random.fetch_add(step, Relaxed).wrapping_add(step);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Makes a request until it succeeds, fails for good, or the budget is spent.
    async fn retry<T, F>(
        &self,
        verb: Verb,
        path: &Path,
        length: u64,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let (tunables, begun) = (&self.tunables, Instant::now());
        let (mut pause, mut tries) = (tunables.pause, 0);
        loop {
            tries += 1;
            let mut deadline = self.deadline(verb, length);
            if verb == Verb::Get {
                // A program waits for it: patience does not go beyond the budget.
                let left = tunables.budget.saturating_sub(begun.elapsed());
                deadline = deadline.min(left + tunables.deadline);
            }
            let tried = Instant::now();
            Stats::add(&self.stats.requests[verb as usize], 1);
            let (cause, source_text) = match timeout(deadline, attempt()).await {
                Ok(Ok(value)) => {
                    if let Some(patience) = self.patience(verb, length)
                        && tried.elapsed() < deadline / 8
                    {
                        let less = |n: u32| n.checked_sub(1);
                        let _ = patience.fetch_update(Relaxed, Relaxed, less);
                    }
                    return Ok(value);
                }
                Ok(Err(error)) => (Cause::of(&error), told(&error)),
                Err(_) => {
                    if let Some(patience) = self.patience(verb, length) {
                        let more = |n: u32| (n < PATIENCE).then_some(n + 1);
                        let _ = patience.fetch_update(Relaxed, Relaxed, more);
                    }
                    (Cause::TimedOut, format!("after {deadline:?}"))
                }
            };
            let waits = cause != Cause::Credentials || tunables.await_credentials;
            if !cause.transient() || !waits || begun.elapsed() + pause > tunables.budget {
                Stats::add(&self.stats.failures[verb as usize], 1);
                let (verb, path) = (verb.name(), path.to_string());
                return Err(Error::Request { verb, path, cause, tries, source_text });
            }
            Stats::add(&self.stats.retries[verb as usize], 1);
            let jitter = self.random() % (pause.as_nanos() as u64 / 2).max(1);
            sleep(pause / 2 + Duration::from_nanos(jitter)).await;
            pause = (pause * 2).min(tunables.pause_max);
        }
    }

    /// How long one try may take. A listing is as many requests as it has thousands of names: what it says next is waited for ([`Self::next`]).
    /// Uploads share the line, as do reads: when they do not end in time, the next ones get twice as long, so that a slow line ends them at last.
    fn deadline(&self, verb: Verb, length: u64) -> Duration {
        let deadline = self.tunables.deadline;
        if verb == Verb::List {
            return Duration::MAX;
        }
        let doubled = self.patience(verb, length).map_or(0, |patience| patience.load(Relaxed));
        (deadline + Duration::from_secs(length / PACE)) * (1 << doubled.min(PATIENCE))
    }

    /// How often the deadline of such a request was doubled: of those that move bytes.
    fn patience(&self, verb: Verb, length: u64) -> Option<&AtomicU32> {
        match verb {
            Verb::Put => Some(&self.patience[0]),
            Verb::Get if length > 0 => Some(&self.patience[1]),
            _ => None,
        }
    }

    /// Stores an object whose name is never used for other bytes. An earlier try that had arrived counts. Of what is there the length and the
    /// end are compared: all that this crate stores ends with a checksum, and to read all of it back could take longer than to store it.
    ///
    /// # Errors
    /// The store fails; another program has stored other bytes under the name.
    pub async fn put_once(
        &self,
        path: &Path,
        payload: &PutPayload,
        purpose: Purpose,
    ) -> Result<()> {
        let mut pause = self.tunables.pause;
        for n in 1.. {
            let error = match self.put(path, payload, PutMode::Create, purpose).await {
                Err(error) if error.cause() == Some(Cause::Condition) => error,
                done => return done.map(|_| ()),
            };
            match self.is_there(path, payload).await? {
                Some(true) => return Ok(()),
                Some(false) => {
                    let why = "it exists already, and another program has written it; nobody else may write below the prefix";
                    return Err(Error::Damaged { path: path.to_string(), why: why.into() });
                }
                // Some stores refuse two requests for one name at once.
                None if n >= CONFLICTS => return Err(error.passing()),
                None => sleep(pause).await,
            }
            pause = (pause * 2).min(self.tunables.pause_max);
        }
        Ok(())
    }

    /// Whether an object has the length and the end of a payload; None if it does not exist.
    async fn is_there(&self, path: &Path, payload: &PutPayload) -> Result<Option<bool>> {
        let length = payload.content_length() as u64;
        let end = end_of(payload, TRAILER);
        let from = length - end.len() as u64;
        let read = self.retry(Verb::Get, path, 0, || async {
            let is_long = self.store.head(path).await?.size == length;
            match is_long && !end.is_empty() {
                true => Ok(self.store.get_range(path, from..length).await? == end),
                false => Ok(is_long),
            }
        });
        match read.await {
            Err(error) if error.cause() == Some(Cause::Missing) => Ok(None),
            read => read.map(Some),
        }
    }

    /// Waits before a condition is tried again that failed although it holds; false if that was often enough.
    pub async fn conflict(&self, tries: u32) -> bool {
        if tries < CONFLICTS {
            sleep(self.tunables.pause * (1 << tries)).await;
        }
        tries < CONFLICTS
    }

    /// Stores an object.
    pub async fn put(
        &self,
        path: &Path,
        payload: &PutPayload,
        mode: PutMode,
        purpose: Purpose,
    ) -> Result<UpdateVersion> {
        let length = payload.content_length() as u64;
        let done = self
            .retry(Verb::Put, path, length, || {
                let options = PutOptions::from(mode.clone());
                self.store.put_opts(path, payload.clone(), options)
            })
            .await;
        let done = match done {
            // Two requests for one name at once.
            Err(error) if mode == PutMode::Overwrite && error.cause() == Some(Cause::Condition) => {
                return Err(error.passing());
            }
            done => done?,
        };
        Stats::add(&self.stats.bytes[Verb::Put as usize], length);
        Stats::add(&self.stats.uploaded[purpose as usize], length);
        Ok(UpdateVersion { e_tag: done.e_tag, version: done.version })
    }

    /// Reads an object with its version; None if it does not exist.
    pub async fn get(&self, path: &Path) -> Result<Option<(Bytes, UpdateVersion)>> {
        let read = self.retry(Verb::Get, path, 0, || async {
            let got = self.store.get(path).await?;
            if got.meta.size > LONGEST {
                return Ok(Err(got.meta.size));
            }
            let version =
                UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
            Ok(Ok((got.bytes().await?, version)))
        });
        match read.await {
            Ok(Err(size)) => {
                let why = format!("it has {size} bytes, and none has more than {LONGEST}");
                Err(Error::Damaged { path: path.to_string(), why })
            }
            Ok(Ok(done)) => {
                Stats::add(&self.stats.bytes[Verb::Get as usize], done.0.len() as u64);
                Ok(Some(done))
            }
            Err(error) if error.cause() == Some(Cause::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether an object exists.
    pub async fn exists(&self, path: &Path) -> Result<bool> {
        match self.retry(Verb::Get, path, 0, || self.store.head(path)).await {
            Ok(_) => Ok(true),
            Err(error) if error.cause() == Some(Cause::Missing) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// When an object was stored, by the clock of the store; None if it does not exist.
    pub async fn stored_at(&self, path: &Path) -> Result<Option<SystemTime>> {
        match self.retry(Verb::Get, path, 0, || self.store.head(path)).await {
            Ok(meta) => Ok(Some(meta.last_modified.into())),
            Err(error) if error.cause() == Some(Cause::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether an object is there, asked once, with an answer within `deadline`.
    pub async fn answers(&self, path: &Path, deadline: Duration) -> bool {
        Stats::add(&self.stats.requests[Verb::Get as usize], 1);
        matches!(timeout(deadline, self.store.head(path)).await, Ok(Ok(_)))
    }

    /// Reads a range of an object, all of it.
    pub async fn range(&self, path: &Path, range: Range<u64>, class: Class) -> Result<Bytes> {
        let _fewest = match class {
            Class::Background => Some(self.background.acquire().await),
            Class::Sync | Class::Ahead => None,
        };
        let _fewer = match class {
            Class::Background | Class::Ahead => Some(self.unhurried.acquire().await),
            Class::Sync => None,
        };
        let _turn = self.reads.acquire().await;
        let length = range.end - range.start;
        let begun = self.pace.lock().begin();
        self.under_way.fetch_add(1, Relaxed);
        let _under_way = UnderWay(self);
        let read = || self.hedged(path, range.clone(), class);
        let done = self.retry(Verb::Get, path, length, read).await?;
        self.pace.lock().end(begun, length);
        Stats::add(&self.stats.bytes[Verb::Get as usize], done.len() as u64);
        if done.len() as u64 != length {
            let source_text = format!("{} of {length} bytes at {}", done.len(), range.start);
            let (verb, path) = (Verb::Get.name(), path.to_string());
            return Err(Error::Request { verb, path, cause: Cause::Cut, tries: 1, source_text });
        }
        Ok(done)
    }

    /// One try of a range; a second one beside it if it hangs and a program waits. That takes more than time: on a line that is
    /// full all reads are late, and asking twice makes them later ([`Self::hangs`]).
    async fn hedged(
        &self,
        path: &Path,
        range: Range<u64>,
        class: Class,
    ) -> object_store::Result<Bytes> {
        let first = self.store.get_range(path, range.clone());
        if class == Class::Background {
            return first.await;
        }
        tokio::pin!(first);
        let (before, length) = (self.ended.load(Relaxed), range.end - range.start);
        loop {
            let patience = self.tunables.hedge.max(self.late(length));
            if let Ok(answer) = timeout(patience, &mut first).await {
                return answer;
            }
            if self.hangs(before) {
                break;
            }
        }
        Stats::add(&self.stats.hedges, 1);
        Stats::add(&self.stats.requests[Verb::Get as usize], 1);
        let second = self.store.get_range(path, range);
        tokio::pin!(second);
        tokio::select! {
            answer = &mut first => match answer {
                Err(error) if Cause::of(&error).transient() => second.await,
                answer => answer,
            },
            answer = &mut second => match answer {
                Err(error) if Cause::of(&error).transient() => first.await,
                answer => answer,
            },
        }
    }

    /// A read that takes longer is late, by what others took.
    fn late(&self, length: u64) -> Duration {
        let usual = self.pace.lock().usual(length).and_then(|usual| usual.checked_mul(LATE));
        usual.map_or(self.tunables.deadline, |usual| usual.min(self.tunables.deadline))
    }

    /// Whether a read that is late hangs, and may be asked twice: as many others as are under way have ended since it began, when
    /// `before` had ended, or there are so few that they do not make each other so late; and few are asked twice.
    fn hangs(&self, before: u64) -> bool {
        let (ended, others) = (self.ended.load(Relaxed), self.under_way.load(Relaxed));
        let asked = self.stats.hedges.load(Relaxed);
        let is_overtaken = others <= FEW || ended.wrapping_sub(before) + 1 >= others;
        is_overtaken && asked < FIRST_HEDGES + ended / HEDGED
    }

    /// Bytes that must be under way for reads to be as fast as the store can be: a few objects, where nothing is known of it yet.
    pub fn window(&self) -> u64 {
        let most = self.tunables.ahead_max;
        let least = self.tunables.object_bytes.saturating_mul(LEAST_AHEAD).min(most);
        self.pace.lock().window().clamp(least, most)
    }

    /// Deletes an object; one that does not exist is deleted.
    pub async fn delete(&self, path: &Path) -> Result<()> {
        match self.retry(Verb::Delete, path, 0, || self.store.delete(path)).await {
            Err(error) if error.cause() != Some(Cause::Missing) => Err(error),
            _ => Ok(()),
        }
    }

    /// The next name of a listing.
    async fn next(
        &self,
        names: &mut BoxStream<'_, object_store::Result<ObjectMeta>>,
    ) -> object_store::Result<Option<ObjectMeta>> {
        match timeout(self.tunables.deadline, names.try_next()).await {
            Ok(next) => next,
            Err(_) => Err(object_store::Error::Generic {
                store: "listing",
                source: format!("no answer in {:?}", self.tunables.deadline).into(),
            }),
        }
    }

    /// A name below the prefix that `known` does not expect there, if there is one. The mark of a folder is none.
    pub async fn stranger(&self, known: impl Fn(&Path) -> bool) -> Result<Option<Path>> {
        let known = &known;
        let found = self.retry(Verb::List, &self.prefix, 0, || async move {
            let mut names = self.store.list(Some(&self.prefix));
            while let Some(meta) = self.next(&mut names).await? {
                let is_mark = meta.location == self.prefix && meta.size == 0;
                if !is_mark && !known(&meta.location) {
                    return Ok(Some(meta.location));
                }
            }
            Ok(None)
        });
        match found.await {
            Err(error) if error.cause() == Some(Cause::Missing) => Ok(None),
            found => found,
        }
    }

    /// Names below a folder, after one of them if it is given.
    pub async fn list(&self, folder: &Path, after: Option<&Path>) -> Result<Vec<Path>> {
        let listed = self.retry(Verb::List, folder, 0, || async {
            let mut names = match after {
                Some(after) => self.store.list_with_offset(Some(folder), after),
                None => self.store.list(Some(folder)),
            };
            let mut listed = Vec::new();
            while let Some(meta) = self.next(&mut names).await? {
                listed.push(meta.location);
            }
            Ok(listed)
        });
        match listed.await {
            Ok(names) => {
                Stats::add(&self.stats.requests[Verb::List as usize], names.len() as u64 / 1000);
                Ok(names)
            }
            Err(error) if error.cause() == Some(Cause::Missing) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// The last bytes of a payload, at most so many.
fn end_of(payload: &PutPayload, most: usize) -> Vec<u8> {
    let mut end: Vec<u8> = Vec::new();
    for part in payload {
        let few = &part[part.len().saturating_sub(most)..];
        end.extend_from_slice(few);
        end.drain(..end.len().saturating_sub(most));
    }
    end
}
