//! Panics in tasks that no caller waits for: uploads, deletions.
//!
//! The runtime drops what a task ends with, a panic as well. A broken invariant must stop the pool, though: the space has lost track of what it has.
//! So such a task runs [`guarded`], and where it breaks an invariant the space *stops*: it takes no block, begins with the upload of no
//! root, moves nothing and deletes nothing from then on. A root that is just being sent may still arrive. First of all the user of
//! the space is told ([`Space::on_broken`]), which suspends the pool; then what waits for an upload is told. On the store stays the last group.

use std::panic::AssertUnwindSafe;

use cenote_format::invariant::{is_broken, message};
use futures_util::FutureExt;
use object_store::path::Path;

use crate::error::Error;
use crate::space::{Shared, Space};

/// Does some work of a task.
///
/// # Errors
/// It panicked: what the panic says.
pub(crate) async fn guarded<T>(
    shared: &Shared,
    work: impl Future<Output = T>,
) -> Result<T, String> {
    let panicked = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(done) => return Ok(done),
        Err(panic) => message(&*panic),
    };
    if is_broken(&panicked) {
        shared.stop(panicked.clone());
    }
    Err(panicked)
}

impl Shared {
    /// The space's state is wrong, as this message says. Nothing is locked meanwhile.
    pub(crate) fn stop(&self, why: String) {
        if let Some(tell) = self.tell.get() {
            tell(&why);
        }
        // Whatever it was refused for before: now nothing may be deleted either.
        let mut state = self.state.lock();
        if !matches!(state.fenced, Some(Error::Broken(_))) {
            state.fenced = Some(Error::Broken(why));
        }
        drop(state);
        self.ended.notify_waiters();
    }

    /// Says whether the space's state is still what it must be.
    ///
    /// # Errors
    /// It is not ([`Error::Broken`]).
    pub(crate) fn is_whole(&self) -> Result<(), Error> {
        match &self.state.lock().fenced {
            Some(error @ Error::Broken(_)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Deletes an object, unless the space has stopped.
    ///
    /// # Errors
    /// It has; the store fails.
    pub(crate) async fn delete(&self, path: &Path) -> Result<(), Error> {
        self.is_whole()?;
        self.requests.delete(path).await
    }
}

impl Space {
    /// Has `tell` called with what a task finds wrong in the space's state, before anything fails for that; with the first such thing, or more.
    /// It is called by a thread that works for the space, and must not wait for that. The first one stays.
    pub fn on_broken(&self, tell: impl Fn(&str) + Send + Sync + 'static) {
        let _first = self.shared.tell.set(Box::new(tell));
    }

    /// What a task found wrong in the space's state.
    pub fn broken(&self) -> Option<String> {
        self.shared.is_whole().err().map(|error| error.to_string())
    }

    /// Waits until a task finds the space's state wrong.
    pub(crate) async fn stopped(&self) -> Error {
        loop {
            let ended = self.shared.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if let Err(error) = self.shared.is_whole() {
                return error;
            }
            ended.await;
        }
    }

    /// Does some work of a task that no caller waits for.
    ///
    /// # Errors
    /// It panicked: what the panic says. After a broken invariant the space takes, stores and deletes nothing more.
    pub async fn guarded<T>(&self, work: impl Future<Output = T>) -> Result<T, String> {
        guarded(&self.shared, work).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::tunables::Tunables;
    use async_trait::async_trait;
    use bytes::Bytes;
    use cenote_format::invariant;
    use cenote_teststore::way::{Behind, Way};
    use futures_util::TryStreamExt;
    use object_store::memory::InMemory;
    use object_store::{ObjectStore, PutOptions, PutPayload, PutResult};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    /// A store that may take no root.
    #[derive(Debug, Default)]
    struct Away {
        inner: InMemory,
        refuses: AtomicBool,
        refused: AtomicUsize,
    }

    #[async_trait]
    impl Way for Away {
        const NAME: &'static str = "a store that is away";

        fn store(&self) -> &dyn ObjectStore {
            &self.inner
        }

        async fn put(&self, at: &Path, data: PutPayload, how: PutOptions) -> Put {
            if at.as_ref().ends_with("commit") && self.refuses.load(SeqCst) {
                self.refused.fetch_add(1, SeqCst);
                return Err(object_store::Error::Generic { store: "away", source: "away".into() });
            }
            self.inner.put_opts(at, data, how).await
        }
    }

    type Put = object_store::Result<PutResult>;

    /// What is live.
    struct Known<F>(F);

    impl<F: Fn(std::ops::Range<u64>) -> Ranges + Sync> crate::Live for Known<F> {
        fn live(&self, range: std::ops::Range<u64>) -> Ranges {
            (self.0)(range)
        }
    }

    type Ranges = std::result::Result<Vec<std::ops::Range<u64>>, String>;

    async fn fresh() -> Space {
        let store = Arc::new(InMemory::new());
        Space::create(store, Path::from("tank"), Tunables::default(), "host", b"").await.unwrap()
    }

    #[tokio::test]
    async fn a_broken_invariant_of_a_task_stops_the_space() {
        let space = fresh().await;
        assert_eq!(space.guarded(async { 5 }).await, Ok(5));
        let other = async { panic!("for the test") };
        assert_eq!(space.guarded(other).await, Err::<(), _>("panicked: for the test".into()));
        let address = space.allocate(512).unwrap();
        // It is not written: an upload of it is waited for.
        let waiting = {
            let space = space.clone();
            tokio::spawn(async move { space.sent(address + 512).await })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!waiting.is_finished() && space.shared.state.lock().fenced.is_none());
        let found = async { invariant!(1 > 2, "for the test") };
        let task = {
            let space = space.clone();
            tokio::spawn(async move { space.guarded(found).await })
        };
        assert!(task.await.unwrap().is_err());
        let refused = |done: Result<(), Error>| {
            let why = done.unwrap_err().to_string();
            assert!(why.contains("broken invariant") && why.contains("for the test"), "{why}");
        };
        refused(waiting.await.unwrap());
        refused(space.write(address, Bytes::from(vec![1; 512])).await);
        refused(space.commit(1, b"").await);
    }

    /// A root that cannot be stored at the moment is not tried any more.
    #[tokio::test]
    async fn a_root_that_waits_for_the_store_is_not_stored_later() {
        let store = Arc::new(Behind(Away::default()));
        let tunables = Tunables { pause: Duration::from_millis(5), ..Tunables::default() };
        let space = Space::create(store.clone(), Path::from("tank"), tunables, "host", b"");
        let space = space.await.unwrap();
        let address = space.allocate(512).unwrap();
        space.write(address, Bytes::from(vec![1; 512])).await.unwrap();
        store.refuses.store(true, SeqCst);
        let committing = {
            let space = space.clone();
            tokio::spawn(async move { space.commit(1, b"").await })
        };
        while store.refused.load(SeqCst) < 3 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let found = async { invariant!(1 > 2, "for the test") };
        assert!(space.guarded(found).await.is_err());
        let ended = tokio::time::timeout(Duration::from_secs(10), committing).await;
        assert!(matches!(ended.unwrap().unwrap(), Err(Error::Broken(_))));
        store.refuses.store(false, SeqCst);
        assert!(matches!(space.commit(1, b"").await, Err(Error::Broken(_))));
        let found = Space::look(store, Path::from("tank"), Tunables::default()).await.unwrap();
        assert_eq!(found.group(), 0);
    }

    /// What a deletion takes cannot be had back: where the state is wrong nothing is deleted, and nothing is moved for that.
    #[tokio::test]
    async fn a_space_that_stopped_deletes_nothing() {
        let store = Arc::new(InMemory::new());
        let tunables = Tunables {
            grace: Duration::ZERO,
            object_bytes: 8 * 512,
            live_percent: 90,
            ..Tunables::default()
        };
        let space = Space::create(store.clone(), Path::from("tank"), tunables, "host", b"");
        let space = space.await.unwrap();
        let mut told = Vec::new();
        for group in 1..3 {
            for n in 0..16 {
                let address = space.allocate(512).unwrap();
                space.write(address, Bytes::from(vec![n; 512])).await.unwrap();
                told.push(address);
            }
            space.commit(group, b"").await.unwrap();
        }
        // Of the first object nothing lives, and of the second one half.
        for address in &told[..12] {
            space.free(*address, 512).unwrap();
        }
        space.commit(3, b"").await.unwrap();
        assert!(space.garbage() > 0);
        let heard = Arc::new(parking_lot::Mutex::new(String::new()));
        let hears = heard.clone();
        space.on_broken(move |why| *hears.lock() = why.into());
        let there = || async { store.list(None).try_collect::<Vec<_>>().await.unwrap().len() };
        let before = there().await;
        let found = async { invariant!(1 > 2, "for the test") };
        assert!(space.guarded(found).await.is_err());
        assert_eq!(space.broken(), Some(heard.lock().clone()));
        assert!(heard.lock().contains("for the test"), "{heard:?}");
        assert!(matches!(space.tidy().await, Some(Error::Broken(_))));
        let all = |range: std::ops::Range<u64>| Ok(vec![range]);
        let reclaimed = space.reclaim(&Known(all), 1 << 20).await;
        assert!(matches!(reclaimed, Err(Error::Broken(_))), "{reclaimed:?}");
        assert_eq!((there().await, space.garbage() > 0), (before, true));
    }

    /// An upload ends of which no group knows.
    #[tokio::test]
    async fn an_upload_that_nothing_waits_for_stops_the_space() {
        let space = fresh().await;
        let shared = space.shared.clone();
        let ended =
            async move { crate::write::ended(&shared, 512, Err(Error::Refused("no".into()))) };
        assert!(space.guarded(ended).await.is_err());
        let why = space.commit(1, b"").await.unwrap_err().to_string();
        assert!(why.contains("an upload of blocks from 0x200 on ends"), "{why}");
    }
}
