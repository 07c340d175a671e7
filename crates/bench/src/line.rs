//! A store behind a line that carries so many bytes a second, which all requests share, in the order in which they come.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
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
    pub fn new(inner: Arc<dyn ObjectStore>, rate: u64) -> Arc<Line> {
        Arc::new(Line { inner, rate, free: Default::default() })
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

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by a line of {} bytes a second", self.inner, self.rate)
    }
}

#[async_trait]
impl ObjectStore for Line {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.carry(0, payload.content_length() as u64).await;
        self.inner.put_opts(at, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let head = options.head;
        let got = self.inner.get_opts(at, options).await?;
        if !head {
            self.carry(1, got.range.end - got.range.start).await;
        }
        Ok(got)
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
