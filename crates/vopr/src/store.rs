//! A simulated object store, with the data of a pool: it takes time, fails, is away, and outlives the power of the host.
//!
//! Each request counts twice as an operation of the pool's devices ([`Power`]): when it is on its way, and when it is answered. If the
//! power goes before the first, nothing comes of it. If it goes between them, the seed says whether the request was lost, or is done,
//! which may be while the next host is at work. What is stored stays. What else goes wrong is the layer's above ([`FaultStore`]).

use crate::disk::Power;
use async_trait::async_trait;
use cenote_objects::{Audit, Space, Tunables};
use cenote_teststore::faults::{FaultStore, Faults, Shared};
use cenote_torture::live::Stopped;
use cenote_vdev::object;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a request is told of as, where disks have their numbers.
const NUMBER: usize = 63;
/// Requests that are late arrive within this.
const LATE: Duration = Duration::from_secs(15);
/// A store that is as stores are.
const USUAL: Faults = Faults {
    refused: 3,
    lost: 2,
    hung: 1,
    twice: 2,
    slow: 5,
    conflict: 2,
    listing_late: true,
    late: LATE,
    ..Faults::NONE
};
/// A store that is not well.
const BAD: Faults = Faults { refused: 20, lost: 8, hung: 3, twice: 8, slow: 15, ..USUAL };
/// A store that is away.
const AWAY: Faults = Faults { refused: 100, ..Faults::NONE };

/// Everything small, so that all that happens in a large pool happens here.
fn tunables(seed: u64, grace: Duration) -> Tunables {
    Tunables {
        object_bytes: 256 << 10,
        inline_bytes: 1000,
        log_bytes: 20_000,
        log_objects: 8,
        page_entries: 32,
        deadline: Duration::from_secs(4),
        budget: Duration::from_secs(40),
        grace,
        seed,
        ..Tunables::default()
    }
}

/// The store of a pool, as the host that has power sees it.
pub struct Store {
    /// What the device in it is called.
    pub name: PathBuf,
    contents: Arc<InMemory>,
    host: Arc<FaultStore>,
    usual: Faults,
}

/// A name that no device had.
fn new_name() -> PathBuf {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    PathBuf::from(format!("vopr://{}", NAMES.fetch_add(1, Ordering::Relaxed)))
}

impl Store {
    /// An empty one, for a host with this power.
    pub fn new(power: &Arc<Power>, seed: u64) -> Store {
        let usual = if seed.is_multiple_of(3) { Faults::NONE } else { USUAL };
        Store::of(Arc::default(), usual, power, seed)
    }

    /// The same one, for the next host.
    pub fn restarted(&self, power: &Arc<Power>, seed: u64) -> Store {
        Store::of(self.contents.clone(), self.usual, power, seed)
    }

    fn of(contents: Arc<InMemory>, usual: Faults, power: &Arc<Power>, seed: u64) -> Store {
        let (power, rng) = (power.clone(), Mutex::new(SmallRng::seed_from_u64(seed)));
        let sim = SimStore(Arc::new(Inner { contents: contents.clone(), power, rng }));
        let host = FaultStore::new(&Shared::new(Arc::new(sim)), usual, seed);
        let name = new_name();
        object::provide(&name, host.clone(), tunables(seed, 8 * LATE));
        Store { name, contents, host, usual }
    }

    /// A copy of it as it is now, which is always well; what the device in it is called.
    pub fn copy(&self) -> PathBuf {
        let name = new_name();
        object::provide(&name, Arc::new(self.contents.fork()), tunables(0, 8 * LATE));
        name
    }

    /// It gets worse.
    pub fn worsen(&self) {
        self.host.set(BAD);
    }

    /// It answers nothing.
    pub fn leave(&self) {
        self.host.set(AWAY);
    }

    /// It is as it was at first.
    pub fn mend(&self) {
        self.host.set(self.usual);
    }

    /// Once an import has cleaned up nothing is left over in it, and nothing is missing.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn audit(&self) -> std::result::Result<(), Stopped> {
        std::thread::sleep(8 * LATE);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
        let store = Arc::new(self.contents.fork());
        let audit = runtime.block_on(async {
            let (prefix, tunables) = (Path::default(), tunables(0, Duration::ZERO));
            let space = Space::look(store, prefix, tunables).await?.open("the end").await?;
            space.sweep().await?;
            space.tidy().await;
            let garbage = space.garbage();
            space.audit().await.map(|audit| (audit, garbage))
        })?;
        if audit != (Audit::default(), 0) {
            return Err(Stopped(format!("of objects, and so many to be deleted: {audit:?}")));
        }
        Ok(())
    }
}

struct Inner {
    contents: Arc<InMemory>,
    power: Arc<Power>,
    rng: Mutex<SmallRng>,
}

impl Inner {
    fn error(why: impl fmt::Display) -> Error {
        Error::Generic { store: "vopr", source: why.to_string().into() }
    }

    /// A request, of which the store takes note as `told`.
    async fn request<T>(
        &self,
        told: Option<(&Path, &[u8])>,
        work: impl FnOnce(&InMemory) -> Option<Result<T>> + Send,
    ) -> Result<T> {
        self.power.spend().map_err(Inner::error)?;
        let (way, arrives) = {
            let mut rng = self.rng.lock();
            let most = if rng.random_ratio(1, 20) { 400_000 } else { 30_000 };
            (rng.random_range(0..most), rng.random_bool(0.5))
        };
        tokio::time::sleep(Duration::from_micros(way)).await;
        if self.power.is_off() && !arrives {
            return Err(Inner::error("the power is gone"));
        }
        if let Some((path, bytes)) = told {
            let mut hasher = DefaultHasher::new();
            path.hash(&mut hasher);
            self.power.note(NUMBER, hasher.finish(), bytes);
        }
        let done = work(&self.contents).unwrap_or_else(|| Err(Inner::error("it waits")));
        self.power.spend().map_err(Inner::error)?;
        done
    }
}

/// See the [module](self).
#[derive(Clone)]
struct SimStore(Arc<Inner>);

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimStore")
    }
}

impl fmt::Display for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimStore")
    }
}

#[async_trait]
impl ObjectStore for SimStore {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let bytes = bytes::Bytes::from(payload.clone());
        let put = |store: &InMemory| store.put_opts(at, payload, options).now_or_never();
        self.0.request(Some((at, &bytes)), put).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.contents.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.request(None, |store| store.get_opts(at, options).now_or_never()).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let inner = self.0.clone();
        let delete = move |path: Result<Path>| {
            let inner = inner.clone();
            async move {
                let path = path?;
                let delete = |store: &InMemory| store.delete(&path).now_or_never();
                inner.request(Some((&path, b"")), delete).await?;
                Ok(path)
            }
        };
        paths.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (inner, prefix) = (self.0.clone(), prefix.cloned());
        let listed = async move {
            let list = |store: &InMemory| {
                store.list(prefix.as_ref()).try_collect::<Vec<_>>().now_or_never()
            };
            inner.request(None, list).await
        };
        stream::once(listed)
            .map_ok(|all| stream::iter(all.into_iter().map(Ok)))
            .try_flatten()
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.contents.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.contents.copy_opts(from, to, options).await
    }
}
