//! Panics in tasks that no caller waits for: uploads, deletions.
//!
//! The runtime drops what a task ends with, a panic as well. A broken invariant must stop the pool, though: the space has lost track of what it has.
//! So such a task runs [`guarded`]: the space takes no block and stores no root from then on. The group that is being written fails
//! with the message, and its pool is suspended; what waits for an upload is told. On the store stays the last group.

use std::panic::AssertUnwindSafe;

use cenote_format::invariant::{is_broken, message};
use futures_util::FutureExt;

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
        shared.state.lock().fenced.get_or_insert(Error::Refused(panicked.clone()));
        shared.ended.notify_waiters();
    }
    Err(panicked)
}

impl Space {
    /// Does some work of a task that no caller waits for.
    ///
    /// # Errors
    /// It panicked: what the panic says. After a broken invariant the space takes and stores nothing more.
    pub async fn guarded<T>(&self, work: impl Future<Output = T>) -> Result<T, String> {
        guarded(&self.shared, work).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::tunables::Tunables;
    use bytes::Bytes;
    use cenote_format::invariant;
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

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
