//! The sync task that a receive begins with (`dmu_recv_begin_check`, `dmu_recv_begin_sync`;
//! `dmu_recv_resume_begin_check`, `dmu_recv_resume_begin_sync`).
//!
//! The stream's BEGIN record and the name that it is received under become a `Plan`. The task finds the datasets
//! again, and takes one of three ways:
//!
//! - no dataset of the name (`check_new`): a new one, or a clone of the origin that the caller names;
//! - a dataset of the name (`check_existing`): `%recv` below it, a clone of one of its snapshots, or empty for a
//!   full stream;
//! - a stream that goes on (`go_on`): the dataset that the interrupted receive left. Its fields must name the same
//!   snapshots and the same record.
//!
//! The features of the stream must be enabled in the pool. Some are the dataset's from then on, others are
//! remembered for a stream that goes on. The dataset is entered among those that are being received: a second
//! receive into it is refused.
//!
//! Invariant: a stream that is refused has changed nothing.

use super::error::{ReceiveError, Result};
use super::kind::Packings;
use super::{Incoming, NewReceive, Receiving, Target};
use crate::change::NewEncryption;
use crate::change::policy::{Operation, Permit};
use crate::change::{ChangeError, Changes, Logs, dirs, find_snapshot, names, record};
use crate::receives::Receives;
use crate::{SpaceCheck, SyncContext};
use cenote_dsl::crypt::Keystore;
use cenote_dsl::crypt::keydata::KeyData;
use cenote_dsl::write::crypt::{self, Encryption, RawStart};
use cenote_dsl::write::receive::{self, Resume};
use cenote_dsl::write::redaction::MAX_SNAPS;
use cenote_dsl::write::{DslWriteError, Tx, features, pool, swap};
use cenote_dsl::{DatasetKind, resume};
use cenote_format::dmu::ObjsetType;
use cenote_format::nvlist::NvList;
use cenote_format::redaction::REDACTED;
use cenote_format::stream::{
    Begin, FLAG_CI_DATA, FLAG_CLONE, FLAG_FREERECORDS, FLAG_SPILL_BLOCK, REDACT_FROM_SNAPS,
    REDACT_SNAPS, feature,
};
use cenote_pool::version::newest_of_files;
use cenote_store::keys::LoadedKey;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Features of a stream, and the pool's features that they need.
const NEEDED: [(u64, &str); 9] = [
    (feature::REDACTED, REDACTED),
    (feature::RAW, "com.datto:encryption"),
    (feature::LZ4, "org.illumos:lz4_compress"),
    (feature::ZSTD, "org.freebsd:zstd_compress"),
    (feature::EMBED_DATA, "com.delphix:embedded_data"),
    (feature::LARGE_BLOCKS, LARGE_BLOCKS),
    (feature::LARGE_DNODE, "org.zfsonlinux:large_dnode"),
    (feature::LARGE_MICROZAP, "com.klarasystems:large_microzap"),
    (feature::LONGNAME, "org.zfsonlinux:longname"),
];
/// The version of file systems whose streams say that they have system attributes.
const SA_FILES: u64 = 5;
const LARGE_BLOCKS: &str = "org.open-zfs:large_blocks";
/// Features that a dataset uses from when it is received, whether it has such things or not.
const AT_ONCE: [u64; 3] = [feature::LARGE_BLOCKS, feature::LARGE_MICROZAP, feature::LONGNAME];
/// What a stream may have, and the field that remembers it for a resumed receive.
const REMEMBERED: [(u64, &str); 4] = [
    (feature::RAW, resume::RAW),
    (feature::LARGE_BLOCKS, resume::LARGE_BLOCKS),
    (feature::EMBED_DATA, resume::EMBEDDED),
    (feature::COMPRESSED, resume::COMPRESSED),
];

/// What is known before the task.
struct Plan {
    head: String,
    snapshot: String,
    /// The head if it is there, else the one that it comes to be in.
    there: String,
    /// Name of the origin.
    origin: Option<String>,
    force: bool,
    from_guid: u64,
    begin: Begin,
    kind: ObjsetType,
    copies: usize,
    /// How a new dataset of a stream that is not raw is encrypted.
    encryption: Option<Encryption>,
    incoming: Incoming,
    /// Guids of the snapshots that the start of the stream is redacted by.
    from_redacted: Option<Vec<u64>>,
    receives: Arc<Receives>,
    /// The dataset that the task has entered, which may be undone after that; 0: it has not.
    entered: Arc<AtomicU64>,
}

/// What a task says: done, or refused.
type Outcome<T> = std::result::Result<Result<T>, DslWriteError>;

/// Refuses with this error.
macro_rules! refuse {
    ($error:expr) => {
        return Ok(Err($error))
    };
}

impl Changes {
    /// Begins to receive (`zfs_ioc_recv_new`): makes the dataset that the stream goes into, or finds the one that an
    /// interrupted receive left. `list` is what follows the stream's head.
    ///
    /// # Errors
    /// The stream does not fit to what is there, or needs what the pool does not have. Nothing was made then.
    pub fn receive(&self, new: &NewReceive, begin: &Begin, list: &NvList) -> Result<Receiving> {
        let mut plan = self.plan_receive(new, begin)?;
        let permit = self.permit_receive(&plan)?;
        plan.take_redaction(list)?;
        let resuming = begin.features & feature::RESUMING != 0;
        match begin.features & feature::RAW {
            0 => self.plan_encryption(&mut plan, new, resuming)?,
            _ => plan.incoming.keys = Some(Arc::new(KeyData::of_begin(list)?)),
        }
        let keystore = Arc::clone(&plan.incoming.keystore);
        let at = resuming.then(|| (list.u64("resume_object"), list.u64("resume_offset")));
        let incoming = plan.incoming.clone();
        let (head, snapshot) = (plan.head.clone(), plan.snapshot.clone());
        let entered = Arc::clone(&plan.entered);
        let task = move |context: &mut SyncContext<'_>| match at {
            None => start(context, &plan),
            Some(at) => go_on(context, &plan, at),
        };
        let begun = self.receive_task(permit, (SpaceCheck::Normal, 8), task);
        let target = begun.inspect_err(|_| match entered.load(SeqCst) {
            0 => {}
            ds_obj => self.engine.shared.receives.leave(ds_obj),
        })?;
        if let Some(root) = target.root {
            keystore.settled(root);
        }
        let receives = self.engine.shared.receives.clone();
        let names = (head, snapshot);
        Receiving::open((self.engine.clone(), permit), receives, target, names, incoming, begin)
            .inspect_err(|_| {
                if let Err(e) = self.engine.close(target.ds_obj) {
                    tracing::warn!("what was to be received into: {e}");
                }
                // What an earlier stream brought stays.
                let resumable = resuming && target.resumable;
                let receives = &self.engine.shared.receives;
                self.leave_or_destroy(permit, receives, Target { resumable, ..target });
            })
    }

    /// Whether the user may receive a stream. It is asked before the rest of the stream is read.
    ///
    /// # Errors
    /// As [`Changes::receive`], as far as they show without what follows the stream's head.
    pub fn may_receive(&self, new: &NewReceive, begin: &Begin) -> Result<()> {
        let plan = self.plan_receive(new, begin)?;
        self.permit_receive(&plan)?;
        Ok(())
    }

    fn permit_receive(&self, plan: &Plan) -> Result<Permit> {
        Ok(self.permit(&Operation::Receive {
            name: &plan.there,
            force: plan.force,
            origin: plan.origin.as_deref(),
        })?)
    }

    /// Runs a task of a receive. What is refused there is told as it is.
    pub(super) fn receive_task<T: Send + 'static>(
        &self,
        permit: Permit,
        limits: (SpaceCheck, u64),
        f: impl FnOnce(&mut SyncContext<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let task = move |context: &mut SyncContext<'_>| match f(context) {
            Ok(done) => Ok(Ok(done)),
            Err(e @ (DslWriteError::Fatal(_) | DslWriteError::Unreadable(_))) => Err(e),
            Err(refused) => Ok(Ok(Err(refused.into()))),
        };
        self.recorded(permit, limits, (None, std::result::Result::is_ok), Logs::End, task)?
    }

    fn plan_receive(&self, new: &NewReceive, begin: &Begin) -> Result<Plan> {
        names::check_new(&new.to, names::Expected::SNAPSHOT)?;
        let (head, snapshot) = new.to.split_once('@').ok_or(ReceiveError::NoDataset)?;
        let kind = check_stream(begin)?;
        if begin.flags & FLAG_CLONE != 0
            && new.origin.is_none()
            && begin.features & feature::RESUMING == 0
        {
            return Err(ReceiveError::Stream("the stream needs an origin".into()));
        }
        let view = self.engine.pool();
        if begin.features & feature::SA_SPILL != 0 && newest_of_files(view.version()) < SA_FILES {
            return Err(ReceiveError::Upgrade);
        }
        let dsl = view.dsl();
        let there = dsl.find(head)?;
        let above = match &there {
            Some(there) => Some(there.clone()),
            None => dsl.find(names::split(head)?.0)?,
        };
        let above = above.ok_or(ChangeError::NoParent)?;
        if there.is_none() && above.kind != DatasetKind::Filesystem {
            return Err(ChangeError::ParentKind.into());
        }
        let copies = dsl.get(&above, "copies")?.and_then(|v| v.exact.parse().ok()).unwrap_or(1);
        Ok(Plan {
            head: head.into(),
            there: above.name,
            snapshot: snapshot.into(),
            origin: new.origin.clone(),
            force: new.force,
            from_guid: begin.from_guid,
            begin: begin.clone(),
            kind,
            copies,
            encryption: None,
            incoming: incoming(begin, new, Arc::clone(dsl.keystore())),
            from_redacted: None,
            receives: self.engine.shared.receives.clone(),
            entered: Arc::default(),
        })
    }
}

impl Changes {
    /// How what a stream that is not raw makes is encrypted (`dmu_objset_create_crypt_check`); the key of what it goes on
    /// in has to be loaded.
    fn plan_encryption(&self, plan: &mut Plan, new: &NewReceive, resuming: bool) -> Result<()> {
        let view = self.engine.pool();
        let dsl = view.dsl();
        let there = dsl.find(&plan.head)?;
        let origin = plan.origin.as_deref().map(|origin| dsl.find(origin)).transpose()?.flatten();
        let encrypted = match there.as_ref().or(origin.as_ref()) {
            Some(on) => dsl.is_key_loaded(on)?,
            None if resuming => None,
            None => {
                let chosen = self.encryption(&plan.there, &new.encryption);
                plan.encryption = chosen.map_err(|e| match e {
                    ChangeError::Property(_)
                        if matches!(new.encryption, NewEncryption::Inherit(None)) =>
                    {
                        ReceiveError::KeyNotLoaded
                    }
                    e => e.into(),
                })?;
                plan.encryption.as_ref().map(|_| true)
            }
        };
        match encrypted {
            Some(false) => Err(ReceiveError::KeyNotLoaded),
            Some(true) if plan.begin.features & feature::EMBED_DATA != 0 => {
                Err(ReceiveError::Embedded)
            }
            _ => Ok(()),
        }
    }
}

impl Plan {
    /// What the list behind BEGIN says of what the stream leaves out, and of what its start does. The stream of a snapshot that
    /// is redacted itself is not marked as redacted; but the list tells, and what is received of it lacks as much.
    fn take_redaction(&mut self, list: &NvList) -> Result<()> {
        let guids = |name: &str| match list.u64s(name) {
            Some(guids) if guids.len() > MAX_SNAPS => {
                let why = format!("it is redacted by {} snapshots", guids.len());
                Err(ReceiveError::Stream(why))
            }
            found => Ok(found.map(<[u64]>::to_vec)),
        };
        self.incoming.redacted = guids(REDACT_SNAPS)?;
        if self.begin.features & feature::REDACTED != 0 && self.incoming.redacted.is_none() {
            let why = "it does not say what it is redacted by";
            return Err(ReceiveError::Stream(why.into()));
        }
        self.from_redacted = guids(REDACT_FROM_SNAPS)?;
        if let Some(resume) = &mut self.incoming.resume {
            resume.from_redacted.clone_from(&self.from_redacted);
        }
        Ok(())
    }

    /// Whether the stream can go on from the snapshot `from` (`redact_check`). On one that is redacted go: what was sent from
    /// a redaction bookmark by no other snapshots, or from a snapshot that is redacted so; what is redacted by no others; and
    /// one of the snapshots that it was redacted by.
    fn check_redaction(&self, tx: &mut Tx<'_>, from: u64) -> Outcome<()> {
        let Some(by) = features::redacted_by(tx, from)? else { return Ok(Ok(())) };
        let among = |guids: &[u64]| guids.iter().all(|guid| by.contains(guid));
        let fits = match (&self.from_redacted, &self.incoming.redacted) {
            _ if self.from_guid == 0 => true,
            (Some(guids), _) | (None, Some(guids)) => among(guids),
            (None, None) => by.contains(&self.begin.to_guid),
        };
        if !fits {
            let why = "the destination is redacted by other snapshots than the stream";
            refuse!(ReceiveError::Stream(why.into()));
        }
        Ok(Ok(()))
    }

    /// Whether the stream is redacted by the snapshots that the dataset is, in which it goes on.
    fn goes_on_redacted(&self, by: Option<Vec<u64>>) -> bool {
        let sorted = |guids: Vec<u64>| guids.into_iter().collect::<BTreeSet<_>>();
        by.map(sorted) == self.incoming.redacted.clone().map(sorted)
    }
}

/// Whether a stream is one that can be received at all, and what it is of.
pub(super) fn check_stream(begin: &Begin) -> Result<ObjsetType> {
    let kind = match begin.kind {
        2 => ObjsetType::Zfs,
        3 => ObjsetType::Zvol,
        other => return Err(ReceiveError::Stream(format!("invalid record type: {other:#x}"))),
    };
    if begin.features & feature::RAW != 0 {
        if begin.features & feature::EMBED_DATA != 0 {
            return Err(ReceiveError::Embedded);
        }
        if !has_spills(begin) {
            return Err(ReceiveError::NoSpills);
        }
    }
    Ok(kind)
}

fn incoming(begin: &Begin, new: &NewReceive, keystore: Arc<Keystore>) -> Incoming {
    let has = |flag: u64| begin.features & flag != 0;
    let at_once = NEEDED.iter().filter(|(flag, _)| AT_ONCE.contains(flag) && has(*flag));
    let remembered = REMEMBERED.iter().filter(|(flag, _)| has(*flag));
    Incoming {
        to_guid: begin.to_guid,
        creation_time: begin.creation_time,
        ignores_case: begin.flags & FLAG_CI_DATA != 0,
        features: at_once.map(|(_, guid)| *guid).collect(),
        redacted: None,
        keys: None,
        packaged: new.packaged,
        keystore,
        resume: new.resumable.then(|| Resume {
            from_guid: Some(begin.from_guid).filter(|guid| *guid != 0),
            to_name: begin.to_name.clone(),
            flags: remembered.map(|(_, field)| *field).collect(),
            from_redacted: None,
        }),
    }
}

/// Whether the pool has what the stream needs (`recv_begin_check_feature_flags_impl`).
fn check_features(tx: &mut Tx<'_>, plan: &Plan) -> Outcome<()> {
    let redacted = if plan.incoming.redacted.is_some() { feature::REDACTED } else { 0 };
    for (flag, guid) in NEEDED {
        if (plan.begin.features | redacted) & flag != 0 && !features::is_enabled(tx, guid)? {
            refuse!(ReceiveError::Upgrade);
        }
    }
    Ok(Ok(()))
}

/// A stream that cuts large blocks does not go on where they are whole (`recv_check_large_blocks`).
fn cuts_blocks(
    tx: &mut Tx<'_>,
    ds_obj: u64,
    begin: &Begin,
) -> std::result::Result<bool, DslWriteError> {
    let whole = receive::uses_feature(tx, ds_obj, LARGE_BLOCKS)?;
    Ok(whole && begin.features & feature::LARGE_BLOCKS == 0)
}

/// Makes the dataset that a stream from its beginning goes into.
fn start(context: &mut SyncContext<'_>, plan: &Plan) -> Outcome<Target> {
    let tx = &mut context.tx;
    if let Err(e) = check_features(tx, plan)? {
        refuse!(e);
    }
    let dir = dirs::find_dir(tx, &plan.head)?;
    let found = match dir {
        Some(dir) => check_existing(tx, plan, dir)?,
        None => check_new(tx, plan)?,
    };
    let (head, parent, origin) = match found {
        Ok(found) => found,
        Err(e) => refuse!(e),
    };
    let leaf = match head {
        Some(_) => resume::CLONE,
        None => plan.head.rsplit('/').next().unwrap_or_default(),
    };
    let made = receive::begin(tx, (parent, leaf), origin, &plan.incoming)?;
    match (origin, &plan.incoming.keys) {
        (None, Some(keys)) => {
            context.create_raw_objset(made.ds_obj, plan.kind, plan.copies, keys.root)?;
        }
        (None, None) => {
            let key = match &plan.encryption {
                Some(how) => {
                    let place = (made.dir_obj, made.ds_obj);
                    let (root, key) = crypt::create(&mut context.tx, place, how)?;
                    Some(LoadedKey::new(root, key))
                }
                None => None,
            };
            context.create_objset(made.ds_obj, plan.kind, plan.copies, key, |_| Ok(()))?;
        }
        (Some(_), _) => context.zero_intent_log(made.ds_obj)?,
    }
    let name = match head {
        Some(_) => format!("{}/{leaf}", plan.head),
        None => plan.head.clone(),
    };
    record(&mut context.tx, "receive", " ", (&name, made.ds_obj))?;
    let root = key_made(context, plan, made.dir_obj);
    let resumable = plan.incoming.resume.is_some();
    enter(plan, Target { ds_obj: made.ds_obj, head, resumable, root })
}

/// The keystore hears of a new directory: it is an encryption root whose key is loaded, or has no key of its own that is, though
/// its number may have been another one's. Returns the encryption root.
fn key_made(context: &mut SyncContext<'_>, plan: &Plan, dir: u64) -> Option<u64> {
    let keys = Arc::clone(&plan.incoming.keystore);
    match &plan.encryption {
        Some(Encryption::Root(key, ..)) => {
            let wrapping = Arc::clone(&key.wrapping);
            context.when_kept(move || keys.changed(dir, &wrapping, &[]));
            Some(dir)
        }
        _ => {
            context.when_kept(move || keys.forget(dir));
            None
        }
    }
}

fn enter(plan: &Plan, target: Target) -> Outcome<Target> {
    match plan.receives.enter(target.ds_obj) {
        true => {
            plan.entered.store(target.ds_obj, SeqCst);
            Ok(Ok(target))
        }
        false => Ok(Err(ReceiveError::Busy)),
    }
}

/// The head that is there, the directory for what is made, and the snapshot that it starts from.
type Found = (Option<u64>, u64, Option<u64>);

/// Whether a stream can be received where there is a dataset (`recv_begin_check_existing_impl`).
fn check_existing(tx: &mut Tx<'_>, plan: &Plan, dir: u64) -> Outcome<Found> {
    let head = dirs::head_of(tx, dir)?;
    if plan.origin.is_some() || plan.begin.flags & FLAG_CLONE != 0 {
        refuse!(ReceiveError::Exists);
    }
    let unfinished = receive::field(tx, head, resume::TO_GUID)?.is_some();
    if unfinished || receive::clone_below(tx, dir)?.is_some() || receive::is_incomplete(tx, head)? {
        refuse!(ReceiveError::Busy);
    }
    if cenote_dsl::write::snapshot::find_snapshot(tx, head, &plan.snapshot)?.is_some() {
        refuse!(ReceiveError::Exists);
    }
    if plan.kind == ObjsetType::Zvol && receive::has_children(tx, dir)? {
        refuse!(ChangeError::HasChildren("destination").into());
    }
    let (is_encrypted, is_raw) = (crypt::is_encrypted(tx, dir)?, plan.incoming.keys.is_some());
    if plan.from_guid == 0 {
        return match plan.force {
            true if is_encrypted || is_raw => Ok(Err(ReceiveError::ReplacesEncrypted)),
            true => Ok(Ok((Some(head), dir, None))),
            false => Ok(Err(ReceiveError::Exists)),
        };
    }
    if is_raw && !is_encrypted {
        refuse!(ReceiveError::RawOnPlain);
    }
    let Some(from) = receive::snapshot_of_guid(tx, head, plan.from_guid)? else {
        refuse!(ReceiveError::NoMatch);
    };
    // A snapshot that was taken since has other initialization vectors, whatever else is the same.
    if is_raw && !plan.force && receive::previous(tx, head)? != from {
        refuse!(ReceiveError::Modified);
    }
    if let Err(e) = check_raw(tx, plan, dir, Some(from))? {
        refuse!(e);
    }
    if cuts_blocks(tx, from, &plan.begin)? {
        refuse!(ReceiveError::LargeBlocks);
    }
    if let Err(e) = plan.check_redaction(tx, from)? {
        refuse!(e);
    }
    if plan.force {
        return Ok(Ok((Some(head), dir, Some(from))));
    }
    if is_modified_since(tx, head, from)? {
        refuse!(ReceiveError::Modified);
    }
    let newest = receive::previous(tx, head)?;
    Ok(Ok((Some(head), dir, Some(newest))))
}

/// Whether a raw stream goes on from the snapshot `from` of a dataset in the directory `dir`.
fn check_raw(tx: &mut Tx<'_>, plan: &Plan, dir: u64, from: Option<u64>) -> Outcome<()> {
    let Some(keys) = &plan.incoming.keys else { return Ok(Ok(())) };
    Ok(match crypt::check_raw_start(tx, dir, from, (keys, &plan.incoming))? {
        RawStart::Right => Ok(()),
        RawStart::OtherKey => Err(ReceiveError::OtherKey),
        RawStart::NoVectors => Err(ReceiveError::NoVectors),
        RawStart::OtherVectors => Err(ReceiveError::OtherVectors),
        RawStart::OtherWrapping => Err(ReceiveError::OtherWrapping),
    })
}

/// Whether a head was changed since its newest snapshot (`dsl_dataset_clone_swap_check_impl`).
pub(super) fn is_modified(tx: &mut Tx<'_>, head: u64) -> cenote_dsl::write::Result<bool> {
    let newest = receive::previous(tx, head)?;
    is_modified_since(tx, head, newest)
}

/// Whether a head was changed since a snapshot. An intent log that was not replayed is such a change, too.
fn is_modified_since(tx: &mut Tx<'_>, head: u64, snap: u64) -> cenote_dsl::write::Result<bool> {
    Ok(swap::is_modified_since(tx, head, snap)? || cenote_dsl::write::snapshot::has_log(tx, head)?)
}

/// Whether a stream can become a new dataset.
fn check_new(tx: &mut Tx<'_>, plan: &Plan) -> Outcome<Found> {
    if plan.from_guid != 0 && plan.origin.is_none() {
        refuse!(ReceiveError::NoDataset);
    }
    let parent = plan.head.rsplit_once('/').map(|(parent, _)| parent);
    let Some(parent) = parent.map(|p| dirs::find_dir(tx, p)).transpose()?.flatten() else {
        refuse!(ChangeError::NoParent.into());
    };
    let Some(origin) = &plan.origin else { return Ok(Ok((None, parent, None))) };
    let (_, origin) = find_snapshot(tx, origin)?;
    if plan.from_guid == 0 && plan.begin.flags & FLAG_FREERECORDS == 0 {
        refuse!(ReceiveError::Stream("it does not say what is free".into()));
    }
    if plan.from_guid != 0 && receive::guid_of(tx, origin)? != plan.from_guid {
        refuse!(ReceiveError::NoMatch);
    }
    if cuts_blocks(tx, origin, &plan.begin)? {
        refuse!(ReceiveError::LargeBlocks);
    }
    if let Err(e) = plan.check_redaction(tx, origin)? {
        refuse!(e);
    }
    let dir = receive::dir_of(tx, origin)?;
    let from = Some(origin).filter(|_| plan.from_guid != 0);
    if plan.incoming.keys.is_some() && !crypt::is_encrypted(tx, dir)? {
        refuse!(ReceiveError::RawOnPlain);
    }
    if let Err(e) = check_raw(tx, plan, dir, from)? {
        refuse!(e);
    }
    Ok(Ok((None, parent, Some(origin))))
}

/// Finds the dataset that a stream goes on in (`dmu_recv_resume_begin_check`). `at`: the record that it begins with.
fn go_on(
    context: &mut SyncContext<'_>,
    plan: &Plan,
    at: (Option<u64>, Option<u64>),
) -> Outcome<Target> {
    let tx = &mut context.tx;
    if let Err(e) = check_features(tx, plan)? {
        refuse!(e);
    }
    let wrong =
        || ReceiveError::Stream("the stream does not go on where the last one ended".into());
    let Some(dir) = dirs::find_dir(tx, &plan.head)? else { refuse!(ReceiveError::NoDataset) };
    let head = dirs::head_of(tx, dir)?;
    let clone = receive::clone_below(tx, dir)?;
    if clone.is_some() && plan.from_guid == 0 && !plan.force {
        refuse!(ReceiveError::ResumeExists);
    }
    let ds_obj = clone.unwrap_or(head);
    if !receive::is_incomplete(tx, ds_obj)? {
        refuse!(wrong());
    }
    let mut number = |name: &str| receive::field(tx, ds_obj, name);
    let guids = (number(resume::TO_GUID)?, number(resume::FROM_GUID)?.unwrap_or(0));
    let point = (number(resume::OBJECT)?, number(resume::OFFSET)?);
    let was_raw = number(resume::RAW)?.is_some();
    if guids != (Some(plan.begin.to_guid), plan.from_guid)
        || point != at
        || was_raw != plan.incoming.keys.is_some()
        || !plan.goes_on_redacted(features::redacted_by(tx, ds_obj)?)
    {
        refuse!(wrong());
    }
    let from = receive::previous(tx, ds_obj)?;
    let from = Some(from).filter(|_| plan.from_guid != 0);
    let own = receive::dir_of(tx, ds_obj)?;
    if let Err(e) = check_raw(tx, plan, own, from)? {
        refuse!(e);
    }
    if cuts_blocks(tx, ds_obj, &plan.begin)? {
        refuse!(ReceiveError::LargeBlocks);
    }
    let name = match clone {
        Some(_) => format!("{}/{}", plan.head, resume::CLONE),
        None => plan.head.clone(),
    };
    record(tx, "resume receive", " ", (&name, ds_obj))?;
    let head = clone.map(|_| head);
    enter(plan, Target { ds_obj, head, resumable: true, root: None })
}

/// Which of the functions that a pool has to allow it allows.
pub(super) fn packings(tx: &mut Tx<'_>) -> std::result::Result<Packings, DslWriteError> {
    let (lz4, zstd) = ("org.illumos:lz4_compress", "org.freebsd:zstd_compress");
    Ok(Packings { lz4: features::is_enabled(tx, lz4)?, zstd: features::is_enabled(tx, zstd)? })
}

/// Whether spill blocks that did not change are in the stream.
pub(super) fn has_spills(begin: &Begin) -> bool {
    begin.flags & FLAG_SPILL_BLOCK != 0
}

/// Whether a full stream goes on an origin: then what it does not name is not in the snapshot.
pub(super) fn is_full_clone(
    tx: &mut Tx<'_>,
    target: Target,
    begin: &Begin,
) -> std::result::Result<bool, DslWriteError> {
    let empty = pool::empty_snapshot(tx)?;
    Ok(begin.from_guid == 0 && Some(receive::previous(tx, target.ds_obj)?) != empty)
}
