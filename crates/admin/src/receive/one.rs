//! One stream (`zfs_receive_impl`, `zfs_receive_one`).
//!
//! # Algorithm
//!
//! The head of a stream says what it does: it makes a dataset, adds a snapshot to one, or goes on where a receive was interrupted.
//!
//! 1. The snapshot gets its full name here. A dataset that is not where the name says is looked for by the guid of one of its
//!    snapshots.
//! 2. The user's permission is checked, and the list behind the head is read.
//! 3. Other operations are kept out: the dataset that is there, its mounts, the one above it, properties and encryption are
//!    checked, and the receive begins (`Changes::receive`).
//! 4. Other operations may change the pool again while records come in. A new dataset has its properties by then, so that they hold for
//!    what is written.
//! 5. Other operations are kept out once more: what has come takes the place of the dataset's contents, below its mounts where that
//!    is possible. Otherwise the dataset is unmounted first. A dataset that was there gets its properties now.
//!
//! # Invariants
//!
//! - Nothing of the stream is read while other operations are kept out: the input may stall.
//! - A receive that has begun is finished or given up, whatever fails.

use super::names::{destination, of_guid};
use super::{Job, Within, cannot, props, said};
use crate::error::{Error, ErrorKind, Reason, Result, Why};
use crate::host::{Event, Streaming, Unmount};
use crate::kinds::{family, no_dataset};
use cenote_dsl::send::Progress;
use cenote_dsl::{Dataset, DatasetKind};
use cenote_engine::change::receive::{NewReceive, Properties, ReceiveError, Receiving, Source};
use cenote_engine::change::{ChangeError, Changes, NewEncryption};
use cenote_format::stream::{Begin, FLAG_CLONE, REDACT_SNAPS, feature};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// `dmu_objset_type_t` of a volume.
const VOLUME: u32 = 3;

/// Takes a stream, and tells how many bytes have come.
type Take<'a, T> = dyn FnMut(&mut dyn FnMut(u64)) -> std::result::Result<T, ReceiveError> + 'a;

/// A stream whose head was read.
pub(super) struct Stream<'b> {
    pub(super) begin: &'b Begin,
    /// Its snapshot at the sender.
    name: &'b str,
    /// What is tried.
    what: &'static str,
    /// The full name of the snapshot.
    pub(super) to: String,
    origin: Option<String>,
    /// The stream makes a dataset.
    wants_new: bool,
    resuming: bool,
    /// What comes lacks data, as the stream is redacted, or what it was made of.
    redacted: Cell<bool>,
}

impl<'b> Stream<'b> {
    pub(super) fn new(
        job: &Job<'_, '_>,
        begin: &'b Begin,
        name: &'b str,
        within: &Within<'_>,
    ) -> Result<Stream<'b>> {
        let single = within.list.is_none_or(|list| !list.recursive);
        let to = destination(job.how, &job.target, (within.sent, name), single)
            .map_err(|why| cannot(ErrorKind::Invalid, why))?;
        let resuming = begin.features & feature::RESUMING != 0;
        let clone = begin.flags & FLAG_CLONE != 0;
        let new = begin.from_guid == 0 || clone || job.how.origin.is_some();
        let wants_new = new && !resuming;
        let what = match (wants_new, resuming) {
            (true, _) => "cannot receive new filesystem stream",
            (_, true) => "cannot receive resume stream",
            _ => "cannot receive incremental stream",
        };
        let redacted = Cell::new(begin.features & feature::REDACTED != 0);
        let origin = None;
        let mut stream = Stream { begin, name, what, to, origin, wants_new, resuming, redacted };
        let pool = job.session.pool();
        stream.origin = match &job.how.origin {
            _ if resuming => None,
            Some(given) => Some(given.clone()),
            None if clone => {
                let found = of_guid(pool.dsl(), &stream.to, begin.from_guid);
                match found.map_err(|e| stream.cannot(e))? {
                    Some(found) => Some(found),
                    None => {
                        let to = &stream.to;
                        let why = format_args!("local origin for clone {to} does not exist");
                        return Err(cannot(ErrorKind::NotFound, why));
                    }
                }
            }
            None => None,
        };
        stream.look_elsewhere(job, within)?;
        Ok(stream)
    }

    pub(super) fn cannot<R: Reason>(&self, why: R) -> Error {
        Error::doing(self.what, why)
    }

    pub(super) fn refused(&self, kind: ErrorKind, why: impl std::fmt::Display) -> Error {
        self.cannot(Why(kind, why))
    }

    fn head(&self) -> &str {
        self.to.split('@').next().unwrap_or_default()
    }

    fn short(&self) -> &str {
        self.to.split('@').nth(1).unwrap_or_default()
    }

    /// Where the dataset, or the one above it, is not where the name says, it is looked for by the guid of a snapshot
    /// of it.
    fn look_elsewhere(&mut self, job: &Job<'_, '_>, within: &Within<'_>) -> Result<()> {
        let pool = job.session.pool();
        let failed = |this: &Self, e: cenote_dmu::Error| this.cannot(e);
        let head = self.head().to_string();
        if self.wants_new {
            let Some((above, leaf)) = head.rsplit_once('/') else { return Ok(()) };
            let parent = within.list.and_then(|list| list.sent(self.begin.to_guid));
            let Some(parent) = parent.map(|(sent, _)| sent.parent_from_snap) else { return Ok(()) };
            if job.session.head(above).map_err(|e| failed(self, e))?.is_none()
                && let Some(found) =
                    of_guid(pool.dsl(), above, parent).map_err(|e| failed(self, e))?
            {
                let found = found.split('@').next().unwrap_or_default();
                self.to = format!("{found}/{leaf}@{}", self.short());
            }
            return Ok(());
        }
        let top = matches!(self.name.get(within.sent.len()..), Some(rest) if rest.starts_with('@'));
        if (job.how.prefix || !top)
            && job.session.head(&head).map_err(|e| failed(self, e))?.is_none()
        {
            let guid = self.begin.from_guid;
            let found = of_guid(pool.dsl(), &head, guid).map_err(|e| failed(self, e))?;
            if let Some(found) = found {
                let found = found.split('@').next().unwrap_or_default();
                self.to = format!("{found}@{}", self.short());
            }
        }
        Ok(())
    }

    /// Whether a stream that makes a dataset can take the place of the one that is there.
    fn check_there(&self, job: &Job<'_, '_>, there: &Dataset) -> Result<()> {
        let name = &there.name;
        let exists = |why: String| Err(self.refused(ErrorKind::Exists, why));
        let newly = self.begin.from_guid == 0 || self.begin.flags & FLAG_CLONE != 0;
        if self.resuming && newly && !there.is_inconsistent() && !job.how.force {
            return exists(format!(
                "Resuming recv on existing destination '{name}'\nmust specify -F to overwrite it"
            ));
        }
        if !self.wants_new {
            return Ok(());
        }
        let (pool, is_volume) = (job.session.pool(), self.begin.kind == VOLUME);
        let dsl = pool.dsl();
        if !job.how.force {
            return exists(format!("destination '{name}' exists\nmust specify -F to overwrite it"));
        }
        if let Some(snapshot) = dsl.snapshots(there).map_err(|e| self.cannot(e))?.first() {
            return exists(format!(
                "destination has snapshots (eg. {})\nmust destroy them to overwrite it",
                snapshot.name
            ));
        }
        if is_volume && !name.contains('/') {
            return exists(format!(
                "destination {name} is the root dataset\ncannot overwrite with a ZVOL"
            ));
        }
        if is_volume && let Some(child) = dsl.children(there).map_err(|e| self.cannot(e))?.first() {
            return exists(format!(
                "destination has children (eg. {})\ncannot overwrite with a ZVOL",
                child.name
            ));
        }
        if dsl.origin(there).map_err(|e| self.cannot(e))?.is_some() {
            return exists(format!(
                "destination '{name}' is a clone\nmust destroy it to overwrite it"
            ));
        }
        Ok(())
    }

    /// Whether what is encrypted meets what is (`zfs_receive_one`).
    fn check_encryption(
        &self,
        job: &Job<'_, '_>,
        within: &Within<'_>,
        there: Option<&Dataset>,
    ) -> Result<()> {
        let is_raw = self.begin.features & feature::RAW != 0;
        let excluded = job.how.inherit.iter().any(|name| name == "encryption");
        if is_raw && (job.how.encryption.is_some() || excluded) {
            let why = "encryption property 'encryption' cannot be set or excluded for raw streams.";
            return Err(self.refused(ErrorKind::Invalid, why));
        }
        // Of a replicated file system it is for the first stream.
        let replicated = within.list.is_some_and(|list| list.recursive);
        if !self.wants_new && job.how.encryption.is_some() && !replicated {
            let why = "encryption property 'encryption' cannot be set for incremental streams.";
            return Err(self.refused(ErrorKind::Invalid, why));
        }
        let Some(there) = there.filter(|_| !self.resuming) else { return Ok(()) };
        let pool = job.session.pool();
        let key = pool.dsl().is_key_loaded(there).map_err(|e| self.cannot(e))?;
        if !self.wants_new && is_raw && key.is_none() {
            return Err(self.cannot(ReceiveError::RawOnPlain));
        }
        if self.wants_new && job.how.force && (is_raw || key.is_some()) {
            return Err(self.cannot(ReceiveError::ReplacesEncrypted));
        }
        Ok(())
    }

    /// Whether the stream leaves out data of a dataset that lacks none: then it does not stay mounted.
    fn hides(&self, job: &Job<'_, '_>, there: &Dataset) -> Result<bool> {
        let pool = job.session.pool();
        let whole = || Ok(pool.dsl().redacted_by(there).map_err(|e| self.cannot(e))?.is_none());
        if self.redacted.get() { whole() } else { Ok(false) }
    }

    /// Whether what has come could take the place of a file system that is mounted, rather than be refused once all of it
    /// was read.
    fn check_mounted(&self, job: &mut Job<'_, '_>, there: &Dataset) -> Result<()> {
        let hides = self.hides(job, there)?;
        let mounts = job.session.host.mounts();
        if job.how.force_unmount || (!hides && mounts.can_exchange(there.ds_obj)) {
            return Ok(());
        }
        mounts.stays(there.ds_obj).map_or(Ok(()), |why| Err(Error::new(ErrorKind::Busy, why)))
    }

    /// Whether there is something that a new dataset can be in; with `-d`, it is made.
    fn check_parent(&self, job: &mut Job<'_, '_>) -> Result<()> {
        let head = self.head();
        let Some((parent, _)) = head.rsplit_once('/').filter(|_| self.wants_new) else {
            let why = format!("destination '{head}' does not exist");
            return Err(self.refused(ErrorKind::NotFound, why));
        };
        if job.how.prefix && !job.how.tail && !job.how.dry_run {
            job.session.create_ancestors(head, false)?;
        }
        match job.session.head(parent).map_err(|e| self.cannot(e))? {
            Some(above) if above.kind == DatasetKind::Filesystem => Ok(()),
            Some(_) => {
                let why = format!("parent '{parent}' is not a filesystem");
                Err(self.refused(ErrorKind::Invalid, why))
            }
            None if job.how.dry_run && job.how.prefix => Ok(()),
            None => Err(no_dataset(parent)),
        }
    }

    /// Whether the caller may receive the stream, before more than its head is read. What else is wrong is found
    /// later.
    fn check_permission(&self, job: &Job<'_, '_>) -> Result<()> {
        match job.changes.may_receive(&self.asked(job, false, false), self.begin) {
            Err(e @ ReceiveError::Change(ChangeError::Denied | ChangeError::NoDelegation)) => {
                Err(self.message(job, self.wants_new, &e))
            }
            _ => Ok(()),
        }
    }

    /// Receives the stream. Its input may stall for as long as it likes: nothing of it is read while others are kept out.
    pub(super) fn receive(
        &self,
        job: &mut Job<'_, '_>,
        source: &mut Source<'_>,
        within: &Within<'_>,
    ) -> Result<()> {
        if job.how.heal {
            return self.heal(job, source, within);
        }
        let started = Instant::now();
        let exclusion = job.session.exclusion();
        self.check_permission(job)?;
        // What is wrong with it is said after what is wrong with the dataset.
        let list = source.list(self.begin);
        // The stream of a snapshot that is redacted says so in its list only.
        if list.as_ref().is_ok_and(|list| list.u64s(REDACT_SNAPS).is_some()) {
            self.redacted.set(true);
        }
        let entered = exclusion.enter();
        let there = job.session.head(self.head()).map_err(|e| self.cannot(e))?;
        match &there {
            Some(there) => {
                self.check_there(job, there)?;
                self.check_mounted(job, there)?;
            }
            None => self.check_parent(job)?,
        }
        self.announce(job)?;
        let uppermost = job.top.as_ref().is_none_or(|top| top == self.head());
        if job.top.is_none() {
            job.top = Some(self.head().into());
        }
        let refused = |why: &dyn std::fmt::Display| self.refused(ErrorKind::Invalid, why);
        let props = props::of_dataset(job, within, (self.begin, self.head()), uppermost, &refused)?;
        let has_props = props.received.is_some();
        self.check_encryption(job, within, there.as_ref())?;
        if job.how.dry_run {
            drop(entered);
            return list.and_then(|_| source.skip()).map_err(|e| self.cannot(e));
        }
        let list = list.map_err(|e| self.cannot(e))?;
        let packaged = self.takes_keys(job, within, there.as_ref())?;
        let asked = self.asked(job, has_props, packaged);
        let begun = job.changes.receive(&asked, self.begin, &list);
        drop(entered);
        let is_new = there.is_none();
        match begun {
            Ok(receiving) => {
                match self.stream(job, receiving, (source, &props)) {
                    Ok(()) => {}
                    Err(Failed::Stop(e)) => return Err(e),
                    Err(Failed::Receive(e)) => return Err(self.message(job, is_new, &e)),
                }
                props::give_snapshot(job, within, &self.to, self.begin)?;
                job.received.snapshots.push(self.to.clone());
            }
            Err(e) => return self.not_begun(job, is_new, &e, source),
        }
        if there.is_none_or(|there| there.is_inconsistent()) || within.list.is_some() {
            // What lacks data is mounted by force only.
            job.mount |= self.begin.kind != VOLUME && !self.redacted.get();
        }
        job.session.tell(Event::Received { bytes: source.bytes(), took: started.elapsed() })
    }

    /// How a new dataset is encrypted. What comes with properties was not encrypted, and stays so unless it is asked for.
    fn encryption(&self, job: &Job<'_, '_>, has_props: bool) -> NewEncryption {
        let uppermost = job.top.as_deref().is_none_or(|top| top == self.head());
        let excluded = job.how.inherit.iter().any(|name| name == "encryption");
        match &job.how.encryption {
            Some(how) if uppermost && self.wants_new => how.clone(),
            None if has_props && !excluded => NewEncryption::Off,
            _ => NewEncryption::Inherit(None),
        }
    }

    /// Whether the package has all keys of users that open the dataset: it is an encryption root of its own then, or its
    /// encryption root is received with it.
    fn takes_keys(
        &self,
        job: &Job<'_, '_>,
        within: &Within<'_>,
        there: Option<&Dataset>,
    ) -> Result<bool> {
        let Some(list) = within.list.filter(|list| list.raw) else { return Ok(false) };
        let Some((sent, _)) = list.sent(self.begin.to_guid) else { return Ok(false) };
        let Some(there) = there else { return Ok(false) };
        if sent.encryption_root {
            return Ok(true);
        }
        let pool = job.session.pool();
        let root = pool.dsl().encryption_root(there).map_err(|e| self.cannot(e))?;
        let within = |top: &str, root: &str| {
            root.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        Ok(list.recursive
            && matches!((&job.top, root), (Some(top), Some(root)) if within(top, &root)))
    }

    fn asked(&self, job: &Job<'_, '_>, has_props: bool, packaged: bool) -> NewReceive {
        NewReceive {
            encryption: self.encryption(job, has_props),
            to: self.to.clone(),
            origin: self.origin.clone(),
            force: job.how.force,
            resumable: job.how.resumable,
            packaged,
        }
    }

    pub(super) fn announce(&self, job: &mut Job<'_, '_>) -> Result<()> {
        job.session.tell(Event::Receiving {
            sent: self.name,
            to: &self.to,
            origin: self.origin.as_deref(),
            incremental: self.begin.from_guid != 0,
            corrective: job.how.heal,
        })
    }

    /// Takes the stream, and puts what has come in the place of what is there.
    fn stream(
        &self,
        job: &mut Job<'_, '_>,
        receiving: Receiving,
        (source, props): (&mut Source<'_>, &Properties),
    ) -> std::result::Result<(), Failed> {
        // So that they hold for what is written. Those of a dataset that is there wait until all has come, and so does
        // what would keep it from coming (`extract_delay_props`).
        let (is_new, changes) = (receiving.is_new(), Arc::clone(&job.changes));
        let (early, delayed) = props.without_refquota();
        let taken = match is_new {
            true => props::give(job.session, &changes, self.head(), &early).map_err(Failed::Stop),
            false => Ok(()),
        };
        let taken =
            taken.and_then(|()| self.take(job, &receiving, source).map_err(Failed::Receive));
        if let Err(e) = taken {
            changes.give_up_receive(receiving);
            return Err(e);
        }
        let exclusion = job.session.exclusion();
        let _entered = exclusion.enter();
        let exchanged = match self.make_way(job, is_new) {
            Ok(exchanged) => exchanged,
            Err(e) => {
                changes.give_up_receive(receiving);
                job.session.failed(e).map_err(Failed::Stop)?;
                return Err(Failed::Stop(Error::told()));
            }
        };
        let late = if !is_new || delayed { Some(props) } else { None };
        self.finish(job, &changes, receiving, (exchanged, late))?;
        job.session.host.mounts().snapshots_changed(std::slice::from_ref(&self.to));
        Ok(())
    }

    /// Takes all records of the stream.
    fn take(
        &self,
        job: &mut Job<'_, '_>,
        receiving: &Receiving,
        source: &mut Source<'_>,
    ) -> std::result::Result<(), ReceiveError> {
        self.while_taken(job, &mut |told| receiving.stream(source, told))
    }

    /// Has `take` take the stream, while it may be shown how many bytes have come.
    pub(super) fn while_taken<T>(
        &self,
        job: &mut Job<'_, '_>,
        take: &mut Take<'_, T>,
    ) -> std::result::Result<T, ReceiveError> {
        let progress = Progress::default();
        let streaming = Streaming { name: &self.to, size: 0, packed: false, progress: &progress };
        let mut taken = None;
        job.session
            .host
            .while_streaming(&streaming, &mut || {
                let told = &mut |bytes| progress.bytes.store(bytes, Relaxed);
                taken = Some(take(told));
            })
            .map_err(ReceiveError::Input)?;
        // The host has to do the work.
        taken.unwrap_or_else(|| {
            let why = "the stream was not read";
            Err(ReceiveError::Input(std::io::Error::other(why)))
        })
    }

    /// Makes what has come the dataset. `exchanged` is the object of what gets other contents as it is; properties that wait are
    /// given then.
    fn finish(
        &self,
        job: &mut Job<'_, '_>,
        changes: &Changes,
        receiving: Receiving,
        (exchanged, late): (Option<u64>, Option<&Properties>),
    ) -> std::result::Result<(), Failed> {
        let force = job.how.force;
        let Some(id) = exchanged else {
            let done = changes.finish_receive(receiving, force);
            let given = match (&done, late) {
                (Ok(()), Some(late)) => props::give(job.session, changes, self.head(), late),
                _ => Ok(()),
            };
            job.session.host.mounts().bring_back(false);
            given.map_err(Failed::Stop)?;
            return Ok(done?);
        };
        // Below all its mounts, in use or not.
        let coming = receiving.readable();
        let (mut receiving, mut done) = (Some(receiving), None);
        let exchange = job.session.host.mounts().exchange(id, coming, &mut || {
            done = receiving.take().map(|receiving| changes.finish_receive(receiving, force));
            matches!(done, Some(Ok(())))
        });
        if let Some(receiving) = receiving {
            // The dataset could not be closed.
            changes.give_up_receive(receiving);
        }
        let mut given = Ok(());
        if matches!((&exchange, &done), (Ok(()), Some(Ok(())))) {
            if let Some(late) = late {
                given = props::give(job.session, changes, self.head(), late);
            }
            job.session.host.mounts().follow_properties();
        }
        job.session.host.mounts().restore();
        given.map_err(Failed::Stop)?;
        exchange.map_err(|why| Failed::Stop(self.refused(ErrorKind::Busy, why)))?;
        Ok(done.unwrap_or(Err(ReceiveError::Busy))?)
    }

    /// The object of what gets other contents below its mounts; where that cannot be, it is unmounted, with what is inside.
    fn make_way(&self, job: &mut Job<'_, '_>, is_new: bool) -> Result<Option<u64>> {
        if job.changes.engine().suspended().is_some() {
            return Err(self.refused(ErrorKind::Pool, ChangeError::Suspended.to_string()));
        }
        let there = if is_new { Ok(None) } else { job.session.head(self.head()) };
        let Some(there) = there.map_err(|e| Error::new(e.kind(), e.to_string()))? else {
            return Ok(None);
        };
        let (id, force, hides) = (there.ds_obj, job.how.force_unmount, self.hides(job, &there)?);
        let mounts = job.session.host.mounts();
        if !hides && mounts.can_exchange(id) {
            return Ok(Some(id));
        }
        let away = mounts.take_away(&[id], Unmount { force, for_good: false });
        away.map(|_| None).map_err(|why| Error::new(ErrorKind::Busy, why))
    }

    pub(super) fn message(&self, job: &Job<'_, '_>, is_new: bool, e: &ReceiveError) -> Error {
        said::message(job, self.what, &self.to, is_new, e)
    }

    /// A stream of a snapshot that is there already is passed over; of others it is said why they are not received.
    fn not_begun(
        &self,
        job: &mut Job<'_, '_>,
        is_new: bool,
        e: &ReceiveError,
        source: &mut Source<'_>,
    ) -> Result<()> {
        if !matches!(e, ReceiveError::NoDataset | ReceiveError::Exists) || !self.is_there(job)? {
            return Err(self.message(job, is_new, e));
        }
        job.session.tell(Event::IsThere(&self.to))?;
        source.skip().map_err(|e| self.cannot(e))
    }

    /// Whether the dataset has a snapshot of the stream's guid.
    fn is_there(&self, job: &Job<'_, '_>) -> Result<bool> {
        let unreadable = |e: cenote_dmu::Error| {
            let (what, head) = (self.what, self.head());
            Error::doing(format_args!("{what}: snapshots of '{head}' cannot be read"), e)
        };
        let pool = job.session.pool();
        let Some(head) = job.session.head(self.head()).map_err(unreadable)? else {
            return Ok(false);
        };
        let snapshots = pool.dsl().snapshots(&head).map_err(unreadable)?;
        Ok(snapshots.iter().any(|s| s.ds.guid == self.begin.to_guid))
    }
}

/// Why a stream that was begun was not received.
enum Failed {
    Receive(ReceiveError),
    Stop(Error),
}

impl From<ReceiveError> for Failed {
    fn from(e: ReceiveError) -> Failed {
        Failed::Receive(e)
    }
}

/// Mounts what was received and is meant to be mounted. False: not all is, as was told.
pub(super) fn mount_all(job: &mut Job<'_, '_>) -> Result<bool> {
    let exclusion = job.session.exclusion();
    let _entered = exclusion.enter();
    let Some(top) = &job.top else { return Ok(true) };
    let pool = job.session.pool();
    let all = match job.session.head(top) {
        Ok(Some(top)) => family(pool.dsl(), &top),
        Ok(None) => return Ok(true),
        Err(e) => Err(e),
    };
    match all {
        Ok(mut all) => {
            all.retain(|d| d.kind == DatasetKind::Filesystem && !d.is_inconsistent());
            Ok(job.session.host.mounts().mount_all(&all))
        }
        Err(e) => {
            let e = Error::doing(format_args!("cannot mount '{top}'"), e);
            job.session.failed(e).map(|()| false)
        }
    }
}
