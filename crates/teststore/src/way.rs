//! A store behind something: what becomes of requests on their way. Whatever a [`Way`] does not say, the store behind it does as it is asked.

use std::fmt;
use std::ops::Deref;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// What becomes of requests.
#[async_trait]
pub trait Way: fmt::Debug + Send + Sync + 'static {
    /// What it is called in messages.
    const NAME: &'static str;

    /// The store behind it.
    fn store(&self) -> &dyn ObjectStore;

    /// Of an upload.
    async fn put(&self, at: &Path, payload: PutPayload, how: PutOptions) -> Result<PutResult> {
        self.store().put_opts(at, payload, how).await
    }

    /// Of a download.
    async fn get(&self, at: &Path, how: GetOptions) -> Result<GetResult> {
        self.store().get_opts(at, how).await
    }

    /// Of deletions.
    fn delete(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.store().delete_stream(paths)
    }

    /// Of a listing.
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store().list(prefix)
    }
}

/// A store that is reached by a [`Way`].
#[derive(Debug)]
pub struct Behind<W>(pub W);

impl<W> Deref for Behind<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.0
    }
}

impl<W: Way> fmt::Display for Behind<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(W::NAME)
    }
}

#[async_trait]
impl<W: Way> ObjectStore for Behind<W> {
    async fn put_opts(&self, at: &Path, data: PutPayload, how: PutOptions) -> Result<PutResult> {
        self.0.put(at, data, how).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        how: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.store().put_multipart_opts(at, how).await
    }

    async fn get_opts(&self, at: &Path, how: GetOptions) -> Result<GetResult> {
        self.0.get(at, how).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.0.delete(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.store().list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Result<()> {
        self.0.store().copy_opts(from, to, how).await
    }
}
