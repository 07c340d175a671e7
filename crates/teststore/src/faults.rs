//! A store whose requests fail, are lost after they were done, are late, are done twice; whose listings are late; and whose host dies.
//!
//! # Structures
//!
//! A [`Shared`] is what the store has: bytes, and when they came. Each host sees it through a [`FaultStore`] of its own, with its own
//! chance and its own [`Faults`], in percent of all requests. The same seed and the same requests come to the same faults.
//!
//! # Algorithm
//!
//! Each request gets a fate:
//!
//! | fate | what becomes of it |
//! |---|---|
//! | refused | it is not done, and an error comes at once |
//! | lost | it is done, and an error comes |
//! | hung | it is done later; an error comes after an hour, which is beyond all deadlines |
//! | twice | it is done, and once more later |
//! | slow | it is done, and answered, later |
//!
//! A host dies at a request: that one is refused, lost or hung, and all later ones are refused. What it left under way may still
//! arrive. Conditions may be refused though they hold, and listings may lack what is young.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::random::Random;

/// How often requests go wrong, in percent, and how late they are at most.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// Not done, with an error.
    pub refused: u64,
    /// Done, with an error.
    pub lost: u64,
    /// Done later, without an answer.
    pub hung: u64,
    /// Done, and done once more later.
    pub twice: u64,
    /// Done later.
    pub slow: u64,
    /// Conditions that hold and are refused.
    pub conflict: u64,
    /// All versions are taken for the right one.
    pub unconditional: bool,
    /// Listings lack what is younger than `late`.
    pub listing_late: bool,
    /// The most that something is late.
    pub late: Duration,
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        refused: 0,
        lost: 0,
        hung: 0,
        twice: 0,
        slow: 0,
        conflict: 0,
        unconditional: false,
        listing_late: false,
        late: Duration::ZERO,
    };
    /// A quarter of all requests goes wrong, by up to a minute.
    pub const MANY: Self = Self {
        refused: 8,
        lost: 4,
        hung: 3,
        twice: 4,
        slow: 10,
        conflict: 5,
        unconditional: false,
        listing_late: true,
        late: Duration::from_secs(60),
    };
}

/// What all hosts share: the bytes, and when they came.
#[derive(Debug, Clone)]
pub struct Shared {
    /// The store without faults.
    pub inner: Arc<dyn ObjectStore>,
    born: Arc<Mutex<BTreeMap<Path, Instant>>>,
    /// When its clock began.
    begun: Instant,
}

impl Shared {
    /// Of this store.
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self { inner, born: Arc::default(), begun: Instant::now() }
    }

    async fn put(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let put = self.inner.put_opts(at, payload, options).await?;
        self.born.lock().insert(at.clone(), Instant::now());
        Ok(put)
    }

    /// Objects have the times of the runtime's clock, which a test may have paused.
    async fn get(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let mut got = self.inner.get_opts(at, options).await?;
        if let Some(born) = self.born.lock().get(at) {
            got.meta.last_modified = (SystemTime::UNIX_EPOCH + (*born - self.begun)).into();
        }
        Ok(got)
    }
}

/// The store as one host sees it.
#[derive(Debug)]
pub struct FaultStore {
    shared: Shared,
    faults: Mutex<Faults>,
    random: Mutex<Random>,
    dead: AtomicBool,
    /// Requests until the host dies; negative: it does not.
    left: AtomicI64,
    /// Deletions until each further one is refused; negative: none is.
    deletions: AtomicI64,
}

enum Fate {
    Fine,
    Refused,
    Lost,
    Hung(Duration),
    Twice(Duration),
    Slow(Duration),
}

impl FaultStore {
    /// For a host that begins now.
    pub fn new(shared: &Shared, faults: Faults, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            shared: shared.clone(),
            faults: Mutex::new(faults),
            random: Mutex::new(Random(seed)),
            dead: AtomicBool::new(false),
            left: AtomicI64::new(-1),
            deletions: AtomicI64::new(-1),
        })
    }

    /// The host dies with the request after `requests` more; that one may be done.
    pub fn die_in(&self, requests: u64) {
        self.left.store(requests as i64, SeqCst);
    }

    /// What all hosts share.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The host dies now.
    pub fn die(&self) {
        self.dead.store(true, SeqCst);
    }

    /// Whether the host is dead.
    pub fn dead(&self) -> bool {
        self.dead.load(SeqCst)
    }

    /// After so many deletions each further one is refused, until [`Self::set`].
    pub fn delete_only(&self, deletions: i64) {
        self.deletions.store(deletions, SeqCst);
    }

    /// Requests go wrong so from now on.
    pub fn set(&self, faults: Faults) {
        self.deletions.store(-1, SeqCst);
        *self.faults.lock() = faults;
    }

    fn error(what: &'static str) -> Error {
        Error::Generic { store: "faults", source: what.into() }
    }

    fn fate(&self) -> Result<Fate> {
        if self.dead() {
            return Err(Self::error("the host is dead"));
        }
        let (faults, mut random) = (*self.faults.lock(), self.random.lock());
        let late = Duration::from_millis(random.below(faults.late.as_millis() as u64));
        if self.left.load(SeqCst) >= 0 && self.left.fetch_sub(1, SeqCst) == 0 {
            self.die();
            return Ok(match random.below(3) {
                0 => Fate::Lost,
                1 => Fate::Hung(late),
                _ => Fate::Refused,
            });
        }
        let roll = random.below(100);
        let fates = [
            (faults.refused, Fate::Refused),
            (faults.lost, Fate::Lost),
            (faults.hung, Fate::Hung(late)),
            (faults.twice, Fate::Twice(late)),
            (faults.slow, Fate::Slow(late / 10)),
        ];
        let mut sum = 0;
        for (percent, fate) in fates {
            sum += percent;
            if roll < sum {
                return Ok(fate);
            }
        }
        Ok(Fate::Fine)
    }

    /// Does a request as fate will have it.
    async fn request<T, F>(&self, work: impl Fn(Shared) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let shared = self.shared.clone();
        let later = |work: &dyn Fn(Shared) -> F, after: Duration| {
            let work = work(shared.clone());
            tokio::spawn(async move {
                sleep(after).await;
                let _ = work.await;
            });
        };
        let done = match self.fate()? {
            Fate::Refused => return Err(Self::error("503 slow down")),
            Fate::Lost => {
                let _ = work(shared.clone()).await;
                return Err(Self::error("connection reset"));
            }
            Fate::Hung(after) => {
                later(&work, after);
                sleep(Duration::from_secs(3600)).await;
                return Err(Self::error("timed out"));
            }
            Fate::Twice(after) => {
                later(&work, after);
                work(shared.clone()).await
            }
            Fate::Slow(after) => {
                sleep(after).await;
                work(shared.clone()).await
            }
            Fate::Fine => work(shared.clone()).await,
        };
        if self.dead() { Err(Self::error("the host is dead")) } else { done }
    }
}

impl fmt::Display for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultStore")
    }
}

#[async_trait]
impl ObjectStore for FaultStore {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let (at, mut options, faults) = (at.clone(), options, *self.faults.lock());
        if matches!(options.mode, PutMode::Update(_)) {
            if faults.unconditional {
                options.mode = PutMode::Overwrite;
            }
            if at.filename() == Some("commit") && self.random.lock().chance(faults.conflict) {
                let path = at.to_string();
                return Err(Error::AlreadyExists { path, source: "409 conflict".into() });
            }
        }
        self.request(move |shared| {
            let (at, payload, options) = (at.clone(), payload.clone(), options.clone());
            async move { shared.put(&at, payload, options).await }
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.shared.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let at = at.clone();
        self.request(move |shared| {
            let (at, options) = (at.clone(), options.clone());
            async move { shared.get(&at, options).await }
        })
        .await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        // The fate of each is decided beforehand: the stream outlives the borrow.
        let (shared, fate) = (self.shared.clone(), self.fate());
        let left = match self.deletions.load(SeqCst) {
            1.. => self.deletions.fetch_sub(1, SeqCst),
            none => none,
        };
        let refused = matches!(fate, Err(_) | Ok(Fate::Refused)) || left == 0;
        let (lost, late) = match fate {
            Ok(Fate::Lost) => (true, None),
            Ok(Fate::Hung(late)) => (true, Some(late)),
            Ok(Fate::Twice(late)) => (false, Some(late)),
            _ => (false, None),
        };
        let delete = move |path: Result<Path>| {
            let shared = shared.clone();
            async move {
                let path = path?;
                if refused {
                    return Err(Self::error("503 slow down"));
                }
                if let Some(late) = late {
                    let (shared, path) = (shared.clone(), path.clone());
                    tokio::spawn(async move {
                        sleep(late).await;
                        let _ = shared.inner.delete(&path).await;
                    });
                }
                if late.is_none() || !lost {
                    shared.inner.delete(&path).await?;
                }
                if lost { Err(Self::error("connection reset")) } else { Ok(path) }
            }
        };
        paths.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if let Ok(Fate::Refused | Fate::Lost | Fate::Hung(_)) | Err(_) = self.fate() {
            return stream::once(async { Err(Self::error("503 slow down")) }).boxed();
        }
        let faults = *self.faults.lock();
        let (born, now) = (self.shared.born.clone(), Instant::now());
        let hidden = move |meta: &ObjectMeta| {
            let young =
                born.lock().get(&meta.location).is_some_and(|born| now - *born < faults.late);
            faults.listing_late && young
        };
        let listed = self.shared.inner.list(prefix);
        listed.try_filter(move |meta| std::future::ready(!hidden(meta))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.shared.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.shared.inner.copy_opts(from, to, options).await
    }
}
