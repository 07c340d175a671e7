//! What the server keeps, and what it answers.
//!
//! A [`Memory`] is one bucket: objects by name, each with its bytes and its version. [`Service`] answers the requests
//! of the protocol from it: PUT, GET (also of a range), HEAD, DELETE, and listings by pages. There is one key, whose owner may do
//! everything.
//!
//! [`Conditions`] say how the store deals with `If-Match` and `If-None-Match`: it keeps to them, ignores them, refuses them, or loses
//! the meaning of its versions. A late listing still has objects that were deleted. A copy of the bucket can be
//! taken and put back, so that a test sees what a crash at that moment would have left.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::{
    DeleteObjectInput, DeleteObjectOutput, ETag, ETagCondition, GetObjectInput, GetObjectOutput,
    HeadObjectInput, HeadObjectOutput, ListObjectsV2Input, ListObjectsV2Output, Object,
    PutObjectInput, PutObjectOutput, Range, StreamingBlob, Timestamp,
};
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use crate::{ACCESS_KEY, SECRET_KEY};

/// Names in an answer to a listing, at most.
const NAMES: usize = 1000;

/// How the store deals with conditions of a PUT.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Conditions {
    /// It keeps to them.
    #[default]
    Kept,
    /// `If-Match` is not implemented, as in some stores.
    CreateOnly,
    /// It takes them, and does as if they were not there.
    Ignored,
    /// Each is refused as not implemented.
    Refused,
    /// It keeps to them, and something on the way makes its versions weak ones, which are never equal.
    Weakened,
}

struct Stored {
    bytes: Bytes,
    tag: String,
    since: Instant,
    modified: SystemTime,
}

#[derive(Default)]
pub(crate) struct Kept {
    objects: BTreeMap<String, Stored>,
    /// Objects that a late listing still has.
    deleted: BTreeMap<String, (u64, Instant)>,
    versions: u64,
    pub lag: Duration,
    pub conditions: Conditions,
}

/// One bucket in memory.
pub(crate) struct Memory {
    pub bucket: &'static str,
    pub kept: Mutex<Kept>,
}

impl Memory {
    pub fn names(&self) -> Vec<String> {
        self.kept.lock().objects.keys().cloned().collect()
    }

    pub fn copy(&self) -> BTreeMap<String, Bytes> {
        let kept = self.kept.lock();
        kept.objects.iter().map(|(name, stored)| (name.clone(), stored.bytes.clone())).collect()
    }

    pub fn restore(&self, copy: &BTreeMap<String, Bytes>) {
        let mut kept = self.kept.lock();
        kept.objects.clear();
        for (name, bytes) in copy {
            kept.put(name, bytes.clone());
        }
    }

    fn of(&self, bucket: &str) -> S3Result<()> {
        if bucket == self.bucket {
            return Ok(());
        }
        Err(s3_error!(NoSuchBucket, "The specified bucket does not exist"))
    }
}

impl Kept {
    fn put(&mut self, name: &str, bytes: Bytes) -> String {
        self.versions += 1;
        let tag = format!("{:032x}", self.versions);
        let stored =
            Stored { bytes, tag: tag.clone(), since: Instant::now(), modified: SystemTime::now() };
        self.objects.insert(name.into(), stored);
        self.deleted.remove(name);
        tag
    }

    /// A version as clients see it.
    fn shown(&self, tag: String) -> ETag {
        match self.conditions {
            Conditions::Weakened => ETag::Weak(tag),
            _ => ETag::Strong(tag),
        }
    }

    fn check(&self, input: &PutObjectInput) -> S3Result<()> {
        let has_some = input.if_match.is_some() || input.if_none_match.is_some();
        match self.conditions {
            Conditions::Ignored => return Ok(()),
            Conditions::Refused if has_some => return Err(s3_error!(NotImplemented)),
            Conditions::CreateOnly if input.if_match.is_some() => {
                return Err(s3_error!(NotImplemented));
            }
            _ => {}
        }
        let known = self.objects.get(&input.key);
        if input.if_none_match.is_some() && known.is_some() {
            return Err(s3_error!(PreconditionFailed));
        }
        match (&input.if_match, known) {
            (None, _) | (Some(ETagCondition::Any), Some(_)) => Ok(()),
            (Some(_), None) => Err(s3_error!(NoSuchKey)),
            (Some(ETagCondition::ETag(ETag::Strong(tag))), Some(known)) if *tag == known.tag => {
                Ok(())
            }
            (Some(_), Some(_)) => Err(s3_error!(PreconditionFailed)),
        }
    }
}

fn body(bytes: Bytes) -> StreamingBlob {
    StreamingBlob::wrap(stream::iter([Ok::<_, std::convert::Infallible>(bytes)]))
}

/// Who may ask: the owner of the one key.
pub(crate) struct Keys;

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match access_key {
            ACCESS_KEY => Ok(SECRET_KEY.into()),
            _ => Err(s3_error!(InvalidAccessKeyId)),
        }
    }
}

/// The memory as the protocol sees it.
pub(crate) struct Service(pub std::sync::Arc<Memory>);

#[async_trait::async_trait]
impl S3 for Service {
    async fn put_object(
        &self,
        req: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let mut input = req.input;
        self.0.of(&input.bucket)?;
        let mut bytes = BytesMut::new();
        if let Some(mut parts) = input.body.take() {
            while let Some(part) = parts.next().await {
                let cut = |_| s3_error!(IncompleteBody);
                bytes.extend_from_slice(&part.map_err(cut)?);
            }
        }
        let mut kept = self.0.kept.lock();
        kept.check(&input)?;
        let tag = kept.put(&input.key, bytes.freeze());
        let output = PutObjectOutput { e_tag: Some(kept.shown(tag)), ..Default::default() };
        Ok(S3Response::new(output))
    }

    async fn get_object(
        &self,
        req: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let input = req.input;
        self.0.of(&input.bucket)?;
        let kept = self.0.kept.lock();
        let stored = kept.objects.get(&input.key).ok_or_else(|| s3_error!(NoSuchKey))?;
        let whole = stored.bytes.len() as u64;
        let (range, content_range) = match input.range {
            None => (0..whole, None),
            Some(range) => {
                let range: Range = range;
                let range = range.check(whole)?;
                let text = format!("bytes {}-{}/{whole}", range.start, range.end - 1);
                (range, Some(text))
            }
        };
        let bytes = stored.bytes.slice(range.start as usize..range.end as usize);
        let output = GetObjectOutput {
            content_length: Some(bytes.len() as i64),
            content_range,
            body: Some(body(bytes)),
            e_tag: Some(kept.shown(stored.tag.clone())),
            last_modified: Some(Timestamp::from(stored.modified)),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }

    async fn head_object(
        &self,
        req: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        self.0.of(&req.input.bucket)?;
        let kept = self.0.kept.lock();
        let stored = kept.objects.get(&req.input.key).ok_or_else(|| s3_error!(NoSuchKey))?;
        let output = HeadObjectOutput {
            content_length: Some(stored.bytes.len() as i64),
            e_tag: Some(kept.shown(stored.tag.clone())),
            last_modified: Some(Timestamp::from(stored.modified)),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.0.of(&req.input.bucket)?;
        let mut kept = self.0.kept.lock();
        if let Some(stored) = kept.objects.remove(&req.input.key) {
            kept.deleted.insert(req.input.key, (stored.bytes.len() as u64, Instant::now()));
        }
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = req.input;
        self.0.of(&input.bucket)?;
        let kept = self.0.kept.lock();
        let prefix = input.prefix.unwrap_or_default();
        let after = input.continuation_token.or(input.start_after).unwrap_or_default();
        // A listing that is late has neither what came nor what went meanwhile.
        let old = |since: &Instant| since.elapsed() >= kept.lag;
        let there = kept.objects.iter().filter(|(_, stored)| old(&stored.since));
        let gone = kept.deleted.iter().filter(|(_, (_, since))| !old(since));
        let mut all: BTreeMap<&String, (u64, SystemTime)> =
            gone.map(|(name, (size, _))| (name, (*size, SystemTime::UNIX_EPOCH))).collect();
        all.extend(there.map(|(name, s)| (name, (s.bytes.len() as u64, s.modified))));
        let listed = all
            .into_iter()
            .filter(|(name, _)| name.starts_with(&prefix) && **name > after)
            .take(NAMES + 1)
            .map(|(name, (size, modified))| Object {
                key: Some(name.clone()),
                size: Some(size as i64),
                last_modified: Some(Timestamp::from(modified)),
                ..Default::default()
            });
        let mut listed: Vec<Object> = listed.collect();
        let is_truncated = listed.len() > NAMES;
        listed.truncate(NAMES);
        let next = listed.last().and_then(|last| last.key.clone()).filter(|_| is_truncated);
        let output = ListObjectsV2Output {
            key_count: Some(listed.len() as i32),
            contents: Some(listed),
            is_truncated: Some(is_truncated),
            next_continuation_token: next,
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }
}
