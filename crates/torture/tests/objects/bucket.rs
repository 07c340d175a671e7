//! An object store in memory that remembers what was done to it, as disks do, and what a crash can leave of it.
//!
//! Each request that changes something takes two moments of the [`Journal`] that the disks of the pool have too: it is on its way, and
//! it is done. A crash between them ([`Bucket::left`]) leaves it to chance whether it was done, is never done, or arrives later, while
//! the next host is at work. Requests that read take no moment. What the client makes of that, and more that goes wrong, is the layer's
//! above ([`cenote_teststore::faults`]).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cenote_teststore::way::{Behind, Way};
use cenote_torture::live::disk::Journal;
use futures_util::stream::{BoxStream, StreamExt};
use futures_util::{FutureExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;

/// A request is on its way for less than so many microseconds.
const WAY: u64 = 1500;
/// What was asked for so many moments ago is not on its way any more: the client has given it up.
const LOST: usize = 400;
/// A request that is late after a crash arrives within so many requests of the next host.
const LATE: u64 = 40;

/// A request that changes something.
#[derive(Clone)]
enum Request {
    Put(Path, PutPayload, PutOptions),
    Delete(Path),
}

/// A request, and when it was made and done: operations in the journal before that.
struct Noted {
    request: Request,
    asked: usize,
    done: Option<usize>,
    /// It had no error.
    well: bool,
}

/// See the [module](self).
pub struct Bucket {
    contents: InMemory,
    journal: Arc<Journal>,
    noted: Mutex<Vec<Noted>>,
    /// Requests of a host that is dead, and how many other ones come before.
    late: Mutex<VecDeque<(u64, Request)>>,
    /// It creates objects on a condition, and replaces none.
    create_only: bool,
    pace: Mutex<SmallRng>,
}

/// What the requests on their way came to, at a crash.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnTheWay {
    pub done: usize,
    pub lost: usize,
    pub late: usize,
}

fn apply(contents: &InMemory, request: &Request) -> Result<Option<PutResult>> {
    let none = || Error::Generic { store: "bucket", source: "it waits".into() };
    match request.clone() {
        Request::Put(at, payload, options) => {
            let put = contents.put_opts(&at, payload, options).now_or_never();
            put.ok_or_else(none)?.map(Some)
        }
        Request::Delete(at) => contents.delete(&at).now_or_never().ok_or_else(none)?.map(|()| None),
    }
}

impl Bucket {
    /// An empty one.
    pub fn new(journal: &Arc<Journal>, create_only: bool, pace: SmallRng) -> Arc<Behind<Bucket>> {
        Arc::new(Behind(Bucket {
            contents: InMemory::new(),
            journal: journal.clone(),
            noted: Mutex::default(),
            late: Mutex::default(),
            create_only,
            pace: Mutex::new(pace),
        }))
    }

    /// What a crash after `at` operations leaves: a store for the next host, whose requests are noted in a journal of its own. `before`
    /// is what this bucket was made with; nothing that was late there comes again.
    pub fn left(
        &self,
        before: Option<&InMemory>,
        (at, journal): (usize, &Arc<Journal>),
        rng: &mut SmallRng,
    ) -> (Arc<Behind<Bucket>>, OnTheWay) {
        let contents = before.map_or_else(InMemory::new, InMemory::fork);
        let mut on_the_way = OnTheWay::default();
        let mut late = Vec::new();
        let noted = self.noted.lock();
        let mut done: Vec<&Noted> =
            noted.iter().filter(|one| one.well && one.done.is_some_and(|done| done < at)).collect();
        // Versions of objects are the same then as they were.
        done.sort_by_key(|one| one.done);
        for one in done {
            apply(&contents, &one.request).unwrap();
        }
        let goes = |one: &&Noted| one.asked < at && one.asked + LOST > at;
        for one in noted.iter().filter(goes).filter(|one| one.done.is_none_or(|done| done >= at)) {
            match rng.random_range(0..3) {
                0 => {
                    on_the_way.done += 1;
                    // Its condition may not hold any more.
                    let _ = apply(&contents, &one.request);
                }
                1 => {
                    on_the_way.late += 1;
                    late.push((rng.random_range(0..LATE), one.request.clone()));
                }
                _ => on_the_way.lost += 1,
            }
        }
        late.sort_by_key(|(after, _)| *after);
        let bucket = Arc::new(Behind(Bucket {
            contents,
            journal: journal.clone(),
            noted: Mutex::default(),
            late: Mutex::new(late.into()),
            create_only: self.create_only,
            pace: Mutex::new(self.pace.lock().clone()),
        }));
        (bucket, on_the_way)
    }

    /// A copy of what is in it.
    pub fn contents(&self) -> InMemory {
        self.contents.fork()
    }

    /// All that was late arrives.
    pub fn wait(&self) {
        let late: Vec<_> = self.late.lock().drain(..).collect();
        late.into_iter().for_each(|(_, request)| self.comes(request));
    }

    /// A request that was late is done, if its condition holds.
    fn comes(&self, request: Request) {
        let mut noted = self.noted.lock();
        let asked = self.journal.mark();
        let well = apply(&self.contents, &request).is_ok();
        noted.push(Noted { request, asked, done: Some(self.journal.mark()), well });
    }

    /// Another request comes; what is late may come before.
    fn arrive(&self) {
        let mut late = self.late.lock();
        late.iter_mut().for_each(|(left, _)| *left = left.saturating_sub(1));
        while late.front().is_some_and(|(left, _)| *left == 0) {
            let (_, request) = late.pop_front().unwrap();
            self.comes(request);
        }
    }

    async fn change(&self, request: Request) -> Result<Option<PutResult>> {
        self.arrive();
        let number = {
            let mut noted = self.noted.lock();
            let asked = self.journal.mark();
            noted.push(Noted { request: request.clone(), asked, done: None, well: false });
            noted.len() - 1
        };
        let way = self.pace.lock().random_range(0..WAY);
        tokio::time::sleep(Duration::from_micros(way)).await;
        let mut noted = self.noted.lock();
        let result = apply(&self.contents, &request);
        noted[number].done = Some(self.journal.mark());
        noted[number].well = result.is_ok();
        result
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bucket")
    }
}

#[async_trait]
impl Way for Bucket {
    const NAME: &'static str = "Bucket";

    fn store(&self) -> &dyn ObjectStore {
        &self.contents
    }

    async fn put(&self, at: &Path, payload: PutPayload, how: PutOptions) -> Result<PutResult> {
        if self.create_only && matches!(how.mode, PutMode::Update(_)) {
            let (operation, implementer) = ("put on a version".into(), "Bucket".into());
            return Err(Error::NotImplemented { operation, implementer });
        }
        let put = self.change(Request::Put(at.clone(), payload, how)).await?;
        put.ok_or_else(|| Error::Generic { store: "bucket", source: "no answer".into() })
    }

    async fn get(&self, at: &Path, how: GetOptions) -> Result<GetResult> {
        self.arrive();
        self.contents.get_opts(at, how).await
    }

    fn delete(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        // The stream outlives the borrow, so that a deletion is done as soon as it is asked for.
        let paths: Vec<_> = paths.collect::<Vec<_>>().now_or_never().unwrap_or_default();
        let deleted: Vec<_> = paths
            .into_iter()
            .map(|path| {
                let path = path?;
                let mut noted = self.noted.lock();
                let (request, asked) = (Request::Delete(path.clone()), self.journal.mark());
                let result = apply(&self.contents, &request);
                let done = Some(self.journal.mark());
                noted.push(Noted { request, asked, done, well: result.is_ok() });
                result.map(|_| path)
            })
            .collect();
        futures_util::stream::iter(deleted).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.arrive();
        let listed: Vec<_> =
            self.contents.list(prefix).try_collect().now_or_never().unwrap().unwrap();
        futures_util::stream::iter(listed.into_iter().map(Ok)).boxed()
    }
}
