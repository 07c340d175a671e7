//! A store behind a line that carries so many bytes a second, which all requests share, in the order in which they come.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cenote_teststore::way::{Behind, Way};
use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectStore, PutOptions, PutPayload, PutResult, Result};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// See the head of the file. Uploads and downloads have a line each.
#[derive(Debug)]
pub struct Line {
    inner: Arc<dyn ObjectStore>,
    /// Bytes a second.
    rate: u64,
    /// When each line is free again.
    free: [Mutex<Option<Instant>>; 2],
}

impl Line {
    pub fn new(inner: Arc<dyn ObjectStore>, rate: u64) -> Arc<Behind<Line>> {
        Arc::new(Behind(Line { inner, rate, free: Default::default() }))
    }

    async fn carry(&self, line: usize, bytes: u64) {
        let until = {
            let mut free = self.free[line].lock();
            let from = free.map_or_else(Instant::now, |free| free.max(Instant::now()));
            *free.insert(from + Duration::from_secs_f64(bytes as f64 / self.rate as f64))
        };
        sleep_until(until).await;
    }
}

#[async_trait]
impl Way for Line {
    const NAME: &'static str = "a line";

    fn store(&self) -> &dyn ObjectStore {
        &*self.inner
    }

    async fn put(&self, at: &Path, payload: PutPayload, how: PutOptions) -> Result<PutResult> {
        self.carry(0, payload.content_length() as u64).await;
        self.inner.put_opts(at, payload, how).await
    }

    async fn get(&self, at: &Path, how: GetOptions) -> Result<GetResult> {
        let head = how.head;
        let got = self.inner.get_opts(at, how).await?;
        if !head {
            self.carry(1, got.range.end - got.range.start).await;
        }
        Ok(got)
    }
}
