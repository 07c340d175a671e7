//! A store behind a slow line, which all requests share: each that is under way gets its part of the bytes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use cenote_teststore::way::{Behind, Way};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetResult, ObjectStore, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

/// Bytes that a request moves before others have their turn.
const PART: u64 = 16 << 10;

/// See the head of the file. Uploads are not slow.
#[derive(Debug)]
pub struct Line {
    inner: InMemory,
    /// Who has the line. Turns are taken in order.
    turn: tokio::sync::Mutex<()>,
    /// Bytes in a second.
    rate: AtomicU64,
    received: AtomicU64,
    /// The first answer to each upload is lost.
    loses: bool,
    lost: Mutex<BTreeSet<Path>>,
}

impl Line {
    pub fn new(loses: bool) -> Arc<Behind<Line>> {
        Arc::new(Behind(Line {
            inner: InMemory::new(),
            turn: tokio::sync::Mutex::new(()),
            rate: AtomicU64::new(u64::MAX),
            received: AtomicU64::new(0),
            loses,
            lost: Mutex::default(),
        }))
    }

    /// From now on the line moves so many bytes in a second.
    pub fn slow(&self, rate: u64) {
        self.rate.store(rate, SeqCst);
    }

    /// Bytes of objects that came over the line.
    pub fn received(&self) -> u64 {
        self.received.load(SeqCst)
    }
}

#[async_trait]
impl Way for Line {
    const NAME: &'static str = "a line";

    fn store(&self) -> &dyn ObjectStore {
        &self.inner
    }

    async fn put(&self, at: &Path, payload: PutPayload, how: PutOptions) -> Result<PutResult> {
        let put = self.inner.put_opts(at, payload, how).await?;
        if self.loses && at.as_ref().contains("/") && self.lost.lock().insert(at.clone()) {
            return Err(Error::Generic { store: "line", source: "connection reset".into() });
        }
        Ok(put)
    }

    async fn get(&self, at: &Path, how: GetOptions) -> Result<GetResult> {
        let head = how.head;
        let got = self.inner.get_opts(at, how).await?;
        let mut left = if head { 0 } else { got.range.end - got.range.start };
        while left > 0 {
            let part = left.min(PART);
            let _turn = self.turn.lock().await;
            let rate = self.rate.load(SeqCst);
            if rate < u64::MAX {
                tokio::time::sleep(Duration::from_secs_f64(part as f64 / rate as f64)).await;
            }
            self.received.fetch_add(part, SeqCst);
            left -= part;
        }
        Ok(got)
    }
}
