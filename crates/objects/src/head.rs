//! Which root is the last, and how it is replaced so that two hosts cannot both do it.
//!
//! | store | way |
//! |---|---|
//! | S3 and stores like it, GCS, Azure, memory | [`Way::Update`]: `commit` is replaced on the condition that it has the version read last (ETag; generation in GCS) |
//! | a directory; stores that can create on a condition, but not replace | [`Way::Create`]: each root is the next of `commits/N`, which is created on the condition that it does not exist |
//! | stores that ignore both conditions | refused when the space is made |
//!
//! Which way a store has is tried when the space is made, with conditions that must fail: some stores take a condition and ignore it.
//!
//! # A request without an answer
//!
//! A replacement that failed on its condition is read back. If it is the root that this host wanted to store, an earlier
//! try had arrived. Roots have the mark of their import, a random number of the operating system, so that no two hosts write the same bytes. If it is
//! still the last root of this host, the store has refused two requests at once: the same is tried again. If there is no root, nothing is
//! stored, and the host waits. If it is another root, this host is fenced.
//!
//! # Old roots of `commits/N`
//!
//! With the last root `n`, level `k` (0, 4, 8, ... 20) keeps the multiples of `2^k` from `n` rounded down to `2^(k+4)`; the
//! highest level keeps all. So at most 16 roots of a level stay, and the last is found by asking for at most 16 names of each level, without a
//! listing, which may be late. A host that was asleep may find the name after its own last root free again, because it was deleted. But then
//! the next multiple of some level exists: after each creation the host looks for them, and is fenced if there is one. It
//! looks for its own last root as well: where that is gone, the directory is another one, and nothing is committed.

use std::time::{Duration, SystemTime};

use blake3::Hash;
use bytes::Bytes;
use futures_util::future::try_join_all;
use object_store::path::Path;
use object_store::{PutMode, PutPayload, UpdateVersion};

use crate::error::{Cause, Error, Result};
use crate::id::{self, Id};
use crate::requests::{Requests, unique};
use crate::root::Root;
use crate::stats::Purpose;

/// Exponents of the levels of old roots that stay.
const LEVELS: [u32; 6] = [20, 16, 12, 8, 4, 0];
/// The epoch of objects by which conditions are tried.
pub(crate) const PROBES: u32 = 0;
/// Names of a level below the next one.
const FAN: u64 = 16;

/// How a store replaces a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// On the condition that it is the version read last.
    Update(UpdateVersion),
    /// By creating the next name; the number of the last one.
    Create(u64),
}

/// The last root that this host read or wrote.
#[derive(Debug, Clone)]
pub struct Head {
    way: Way,
    /// Its checksum.
    last: Hash,
    fenced: Option<String>,
}

/// What a probe of the store has told.
struct Probed {
    /// It replaces on a condition.
    updates: bool,
    /// The time, by its clock.
    now: Option<SystemTime>,
}

fn single(prefix: &Path) -> Path {
    prefix.clone().join("commit")
}

fn numbered(prefix: &Path, number: u64) -> Path {
    prefix.clone().join("commits").join(format!("{number:016x}"))
}

/// The number in the name of a root that is one of many; None if it is none.
pub(crate) fn number(prefix: &Path, path: &Path) -> Option<u64> {
    let number = u64::from_str_radix(path.filename()?, 16).ok()?;
    (numbered(prefix, number) == *path).then_some(number)
}

/// Names of old roots that go when `number` becomes the last.
fn passed(number: u64) -> Vec<u64> {
    let mut gone = Vec::new();
    for level in [0, 4, 8, 12, 16] {
        let step = 1_u64 << level;
        if !number.is_multiple_of(step * FAN) {
            break;
        }
        gone.extend((1..FAN).filter_map(|back| number.checked_sub(back * step)));
    }
    gone
}

/// Whether `name` stays while `number` is the last.
fn stays(name: u64, number: u64) -> bool {
    let kept = |level: &u32| {
        let block = if *level == LEVELS[0] { 0 } else { number >> (level + 4) << (level + 4) };
        name.is_multiple_of(1 << level) && name >= block
    };
    name <= number && LEVELS.iter().any(kept)
}

/// The store takes a condition and does not keep to it.
fn ignored(what: &str) -> Error {
    Error::Refused(format!(
        "the store ignores conditions ({what} of an existing object): two hosts could import the pool at once"
    ))
}

impl Head {
    /// Stores the first root of a new space, in the way that the store has.
    pub(crate) async fn create(requests: &Requests, root: Bytes) -> Result<Self> {
        let Probed { updates, .. } = Self::probe(requests).await?;
        let prefix = &requests.prefix;
        let (path, way) = match updates {
            true => (single(prefix), Way::Update(UpdateVersion { e_tag: None, version: None })),
            false => (numbered(prefix, 0), Way::Create(0)),
        };
        let mut head = Self { way, last: blake3::hash(&root), fenced: None };
        let put = requests.put(&path, &root.clone().into(), PutMode::Create, Purpose::Root).await;
        match put {
            Ok(version) if updates => {
                let version = head.named(requests, &root, version).await?;
                head.learn(version);
            }
            Ok(_) => {}
            Err(error) if error.cause() == Some(Cause::Condition) => {
                match requests.get(&path).await? {
                    Some((bytes, version)) if bytes == root && updates => head.learn(version),
                    Some((bytes, _)) if bytes == root => {}
                    Some(_) => return Err(Error::Exists(prefix.to_string())),
                    None => return Err(error.passing()),
                }
            }
            Err(error) => return Err(error),
        }
        head.prove(requests, &root).await?;
        Ok(head)
    }

    /// Replaces the first root by itself: a condition that holds must be one for the store too. Where something on the way changes versions, no
    /// group could ever be stored.
    async fn prove(&mut self, requests: &Requests, root: &Bytes) -> Result<()> {
        let (Way::Update(version), path) = (&self.way, single(&requests.prefix)) else {
            return Ok(());
        };
        let (mut version, mut tries) = (version.clone(), 0);
        loop {
            let mode = PutMode::Update(version.clone());
            match requests.put(&path, &root.clone().into(), mode, Purpose::Root).await {
                Ok(new) => {
                    let new = self.named(requests, root, new).await?;
                    self.learn(new);
                    return Ok(());
                }
                Err(error) if error.cause() == Some(Cause::Condition) => {}
                Err(error) => return Err(error),
            }
            version = match requests.get(&path).await? {
                Some((bytes, version)) if bytes == *root => version,
                Some((bytes, _)) => return Err(self.fence(Some(bytes))),
                None => return Err(Error::Rootless { path: path.to_string() }),
            };
            if !requests.conflict(tries).await {
                requests.delete(&path).await?;
                return Err(Error::Refused(
                    "the store does not take the version (ETag) that it gave (If-Match): something on the way changes it, a proxy that compresses maybe".into(),
                ));
            }
            tries += 1;
        }
    }

    /// Refuses a store that does not keep to the condition by which this head is replaced. Returns for how long the last root is
    /// stored, by the store's clock alone; nothing where that runs backwards.
    ///
    /// # Errors
    /// It does not; or the store fails.
    pub(crate) async fn check(&self, requests: &Requests) -> Result<Duration> {
        let probed = Self::probe(requests).await?;
        if matches!(self.way, Way::Update(_)) && !probed.updates {
            return Err(ignored("If-Match"));
        }
        let stored = requests.stored_at(&self.name(requests)).await?;
        let age = stored.zip(probed.now).map(|(stored, now)| now.duration_since(stored));
        Ok(age.and_then(|age| age.ok()).unwrap_or(Duration::ZERO))
    }

    /// Whether the store can replace on a condition, and what time it is there.
    ///
    /// # Errors
    /// It cannot even create on a condition.
    async fn probe(requests: &Requests) -> Result<Probed> {
        // Another host that sweeps may delete the object between two requests: then the second try tells.
        match Self::probe_once(requests).await {
            Err(Error::Refused(_)) => Self::probe_once(requests).await,
            done => done,
        }
    }

    async fn probe_once(requests: &Requests) -> Result<Probed> {
        let name = Id::new(PROBES, unique()? & (id::COUNTERS - 1));
        let path = &name.path(&requests.prefix);
        let payload = PutPayload::from_static(b"probe");
        let put = |mode| requests.put(path, &payload, mode, Purpose::Root);
        put(PutMode::Overwrite).await?;
        let now = requests.stored_at(path).await?;
        match put(PutMode::Create).await {
            Err(error) if error.cause() == Some(Cause::Condition) => {}
            Err(error) if error.cause() == Some(Cause::Unsupported) => {
                requests.delete(path).await?;
                return Err(Error::Refused(
                    "the store cannot create an object only where none exists yet (If-None-Match): two hosts could import the pool at once. It cannot keep a pool".into(),
                ));
            }
            Err(error) => return Err(error),
            Ok(_) => {
                requests.delete(path).await?;
                return Err(ignored("If-None-Match"));
            }
        }
        let never = Some("\"00000000000000000000000000000000\"".to_string());
        let version = UpdateVersion { e_tag: never.clone(), version: Some("1".into()) };
        let updates = match put(PutMode::Update(version)).await {
            Err(error) if error.cause() == Some(Cause::Condition) => true,
            Err(error) if error.cause() == Some(Cause::Unsupported) => false,
            Err(error) => return Err(error),
            Ok(_) => false,
        };
        requests.delete(path).await?;
        Ok(Probed { updates, now })
    }

    /// Names that a root has as long as the space exists: one of them does.
    pub(crate) fn lasting(prefix: &Path) -> [Path; 2] {
        [single(prefix), numbered(prefix, 0)]
    }

    /// The name of the last root.
    pub(crate) fn name(&self, requests: &Requests) -> Path {
        match self.way {
            Way::Update(_) => single(&requests.prefix),
            Way::Create(number) => numbered(&requests.prefix, number),
        }
    }

    /// The last root; None if there is no space.
    pub(crate) async fn find(requests: &Requests) -> Result<Option<(Self, Bytes)>> {
        if let Some((bytes, version)) = requests.get(&single(&requests.prefix)).await? {
            let (way, last) = (Way::Update(version), blake3::hash(&bytes));
            return Ok(Some((Self { way, last, fenced: None }, bytes)));
        }
        let exists = async |number| requests.exists(&numbered(&requests.prefix, number)).await;
        if !exists(0).await? {
            return Ok(None);
        }
        let mut last = 0;
        for level in LEVELS {
            loop {
                let next: Vec<u64> = (1..=FAN).map(|n| last + (n << level)).collect();
                let found = try_join_all(next.iter().map(|number| exists(*number))).await?;
                let more = found.iter().take_while(|exists| **exists).count() as u64;
                last += more << level;
                if more < FAN {
                    break;
                }
            }
        }
        let Some((bytes, _)) = requests.get(&numbered(&requests.prefix, last)).await? else {
            return Ok(None); // Deleted meanwhile: another host goes on. The caller looks again.
        };
        let (way, last) = (Way::Create(last), blake3::hash(&bytes));
        Ok(Some((Self { way, last, fenced: None }, bytes)))
    }

    /// Replaces the last root. The same bytes may be given again after an error that passes.
    ///
    /// # Errors
    /// The store fails; or this host is fenced.
    pub(crate) async fn replace(&mut self, requests: &Requests, root: &Bytes) -> Result<()> {
        if let Some(by) = &self.fenced {
            return Err(Error::Fenced { by: by.clone() });
        }
        let mut tries = 0;
        let version = loop {
            let (path, mode) = match &self.way {
                Way::Update(version) => {
                    (single(&requests.prefix), PutMode::Update(version.clone()))
                }
                Way::Create(number) => (numbered(&requests.prefix, number + 1), PutMode::Create),
            };
            let put = requests.put(&path, &root.clone().into(), mode, Purpose::Root).await;
            let (error, missing) = match put {
                Ok(version) => break version,
                Err(error) => match error.cause() {
                    Some(Cause::Condition) => (error, false),
                    Some(Cause::Missing) => (error, true),
                    _ => return Err(error),
                },
            };
            match requests.get(&path).await? {
                Some((bytes, version)) if bytes == *root => break version,
                Some((bytes, version))
                    if matches!(self.way, Way::Update(_)) && blake3::hash(&bytes) == self.last =>
                {
                    if !requests.conflict(tries).await {
                        return Err(error.passing());
                    }
                    tries += 1;
                    // A bucket that was copied and came back gives it another version.
                    self.way = Way::Update(version);
                }
                Some((bytes, _)) => return Err(self.fence(Some(bytes))),
                // The name was taken, and its root has been passed and deleted.
                None if matches!(self.way, Way::Create(_)) && !missing => {
                    if !requests.conflict(tries).await {
                        return Err(self.fence(None));
                    }
                    tries += 1;
                }
                None => return Err(Error::Rootless { path: path.to_string() }),
            }
        };
        if let Way::Create(number) = self.way {
            self.look_beyond(requests, number + 1).await?;
            self.look_back(requests, number).await?;
        }
        // Nothing is awaited after this host knows the version: a call that is dropped before can be made again.
        let version = self.named(requests, root, version).await?;
        self.learn(version);
        self.last = blake3::hash(root);
        Ok(())
    }

    /// Names of roots that do not stay beside the one that was stored just now.
    pub(crate) fn passed(&self, requests: &Requests) -> Vec<Path> {
        let Way::Create(number) = self.way else { return Vec::new() };
        passed(number).into_iter().map(|name| numbered(&requests.prefix, name)).collect()
    }

    /// Names of old roots that were left over.
    pub(crate) async fn leftover(&self, requests: &Requests) -> Result<Vec<Path>> {
        let Way::Create(number) = self.way else { return Ok(Vec::new()) };
        let names = requests.list(&requests.prefix.clone().join("commits"), None).await?;
        let left = names.into_iter().filter(|path| {
            let name = self::number(&requests.prefix, path);
            name.is_some_and(|name| name <= number && !stays(name, number))
        });
        Ok(left.collect())
    }

    /// The name that was created may have been free because another host is far ahead.
    async fn look_beyond(&mut self, requests: &Requests, number: u64) -> Result<()> {
        for level in LEVELS.iter().rev() {
            let next = ((number >> level) + 1) << level;
            let path = numbered(&requests.prefix, next);
            if requests.exists(&path).await? {
                let bytes = requests.get(&path).await?.map(|(bytes, _)| bytes);
                return Err(self.fence(bytes));
            }
        }
        Ok(())
    }

    /// A root without the one before it is in another place than that: no import would find it.
    async fn look_back(&self, requests: &Requests, number: u64) -> Result<()> {
        let path = numbered(&requests.prefix, number);
        match requests.exists(&path).await? {
            true => Ok(()),
            false => Err(Error::Rootless { path: path.to_string() }),
        }
    }

    /// Remembers the version that this host has stored.
    fn learn(&mut self, new: UpdateVersion) {
        match &mut self.way {
            Way::Update(version) => *version = new,
            Way::Create(number) => *number += 1,
        }
    }

    /// Some stores do not say which version they have stored: it is read then.
    async fn named(
        &mut self,
        requests: &Requests,
        root: &Bytes,
        version: UpdateVersion,
    ) -> Result<UpdateVersion> {
        if matches!(self.way, Way::Create(_)) || version.e_tag.is_some() {
            return Ok(version);
        }
        let path = single(&requests.prefix);
        match requests.get(&path).await? {
            Some((bytes, version)) if bytes == *root => Ok(version),
            Some((bytes, _)) => Err(self.fence(Some(bytes))),
            None => Err(Error::Rootless { path: path.to_string() }),
        }
    }

    /// From now on this host is refused.
    fn fence(&mut self, other: Option<Bytes>) -> Error {
        let by = match other.as_deref().map(Root::decode) {
            Some(Ok(root)) => {
                format!("host {}, import {}, group {}", root.host, root.epoch(), root.group)
            }
            Some(Err(why)) => format!("its root cannot be read ({why})"),
            None => "its root is gone".to_string(),
        };
        self.fenced = Some(by.clone());
        Error::Fenced { by }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn old_roots_stay_so_that_the_last_is_found_and_a_sleeper_is_caught() {
        let mut kept = BTreeSet::from([0]);
        for number in 1..10_000_u64 {
            for name in passed(number) {
                kept.remove(&name);
            }
            kept.insert(number);
            if number.is_multiple_of(97) || number.is_power_of_two() {
                assert!(kept.len() <= 16 * LEVELS.len());
                assert!(kept.iter().all(|name| stays(*name, number)), "{number}");
                let all = (0..=number).filter(|name| stays(*name, number)).collect();
                assert_eq!(kept, all, "{number}");
                for name in (1..number).filter(|name| !kept.contains(name)) {
                    let next = |level: &u32| ((name >> level) + 1) << level;
                    assert!(
                        LEVELS.iter().any(|level| kept.contains(&next(level))),
                        "{name} of {number}"
                    );
                }
            }
        }
    }
}
