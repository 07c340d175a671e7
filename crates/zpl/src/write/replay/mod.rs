//! Replay of intent logs (`zil_replay`, `zfs_replay_vector`, `zvol_replay_vector`).
//!
//! # Idea
//!
//! The records of a claimed log are applied one after another, in the order in which they were written.
//! Each is one change of the live object set, which also notes the record's sequence number in the log's
//! header (`zh_replay_seq`). So a record and the note that it was applied get on disk in the same
//! transaction group, and a replay that a crash interrupts goes on where it was. What a record frees may
//! take several changes; the note is made by the last of them, and those before it can be made again.
//!
//! Records say what an operation came to, not what it was asked for: object numbers, modes and owners are
//! taken as they are, and neither permissions nor properties such as `readonly` are asked again.
//!
//! Some records are not in order with those of other objects (`TX_OOO`): their object may be gone by the time,
//! and then they are passed over. Object numbers become free only when a transaction group is on disk, so
//! a record that fails is tried once more after the open group was written.
//!
//! # Invariants
//!
//! - A record that is not in the log's claim is not applied, nor one of a group that was on disk.
//! - A record that cannot be applied ends the replay; nothing after it is applied. The header says how far
//!   it came, and the log is kept.

mod names;
mod node;
mod prime;
mod volume;

use crate::fs::FileSystem;
use crate::volume::Volume;
use crate::write::context::Cx;
use crate::{Error, PrimaryCache, Result, Settings, Visibility};
use cenote_dmu::live::{Cost, LiveObjectSet};
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::tunables::{PRIME_MEMORY, PRIME_REPLAY};
use cenote_dsl::zil::{End, Item, ZIL_LEVEL, walk};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ObjsetType;
use cenote_format::zil::{Body, RawRecord, Record, Write, raw_records};
use cenote_format::{ByteOrder, Bytes};
use cenote_store::{Bookmark, Store};
use prime::Batch;
use std::borrow::Cow;
use std::sync::Arc;

/// What a replay did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records that were applied, or passed over because their object is gone.
    pub records: u64,
    /// Bytes of their changes of contents.
    pub bytes: u64,
}

/// What a replay asks of its caller.
pub trait Supervisor {
    /// Waits until the open transaction group is on disk; whether it is.
    fn sync(&self) -> bool;
    /// Told after each record what was done so far. False ends the replay there; the log is kept, and a
    /// replay goes on from there.
    fn go_on(&self, so_far: &Replayed) -> bool;
}

/// What records are applied to.
enum Target {
    Files(Arc<FileSystem>),
    Volume(Volume),
}

/// Applies a record.
struct Replay<'a> {
    live: &'a Arc<LiveObjectSet>,
    store: Arc<Store>,
    target: Target,
}

/// Replays the claimed intent log of `live`, which nobody else uses. `settings` are those of the file system.
///
/// # Errors
/// A record that cannot be applied; its number is in the message. A log that cannot be read up to its end.
/// The supervisor ended it.
pub fn replay(
    live: &Arc<LiveObjectSet>,
    settings: Settings,
    supervisor: &dyn Supervisor,
) -> Result<Replayed> {
    let base = live.base();
    let (header, store) = (base.phys().zil, base.store().clone());
    let target = match base.phys().kind {
        ObjsetType::Zfs => {
            // Lists are extended attributes here: their records say what becomes of them.
            let visibility = Visibility { posix_acl: false, ..settings.visibility };
            // Data that is read ahead has to be kept until it is needed.
            let cache = PrimaryCache::All;
            let settings = Settings { visibility, cache, read_only: false, ..settings };
            Target::Files(FileSystem::open_live(live.clone(), settings)?)
        }
        ObjsetType::Zvol => Target::Volume(Volume::open_live(live.clone())?),
        kind => return Err(Error::Unsupported(format!("an intent log of {kind:?}"))),
    };
    let replay = Replay { live, store: store.clone(), target };
    let mut state = Progress {
        replay,
        supervisor,
        done: Replayed::default(),
        pending: Pending::default(),
        stopped: false,
    };
    let mut failed = None;
    let end = walk(&store, &header, &mut |item| {
        let Item::Record(raw) = item else { return true };
        if raw.txg < header.claim_txg || raw.seq <= header.replay_seq {
            return true;
        }
        match state.take(&raw) {
            Ok(go_on) => go_on,
            Err(e) => {
                failed = Some(e);
                false
            }
        }
    });
    if failed.is_none() && !matches!(end, End::Stopped) {
        failed = state.apply().err();
    }
    match (failed, end) {
        (Some(e), _) => Err(e),
        (None, End::Complete) if state.stopped => Err(interrupted()),
        (None, End::Complete) => Ok(state.done),
        (None, End::Stopped) => Err(interrupted()),
        (None, End::Failed(e)) => Err(cenote_dmu::Error::from(e).into()),
        (None, End::Unreadable) => {
            Err(Error::Invalid("what was claimed of the intent log cannot be read".into()))
        }
    }
}

fn interrupted() -> Error {
    Error::Invalid("the replay was interrupted".into())
}

/// Records that wait until what they touch is read.
#[derive(Default)]
struct Pending {
    /// Bytes of each.
    records: Vec<Vec<u8>>,
    bytes: u64,
    batch: Batch,
}

/// A replay under way.
struct Progress<'a> {
    replay: Replay<'a>,
    supervisor: &'a dyn Supervisor,
    done: Replayed,
    pending: Pending,
    /// The supervisor ended it.
    stopped: bool,
}

impl Progress<'_> {
    /// Takes in one more record; false if the supervisor ended the replay.
    fn take(&mut self, raw: &RawRecord<'_>) -> Result<bool> {
        let record = Record::decode(raw).map_err(|e| cannot(raw, &Error::decode(0)(e)))?;
        if !PRIME_REPLAY.is_on() || raw.data.order() != ByteOrder::Little {
            self.apply()?;
            return Ok(!self.stopped && self.one(raw)?);
        }
        let bytes = raw.data.slice(0, raw.data.len()).map_err(Error::decode(0))?;
        self.pending.records.push(bytes.to_vec());
        self.pending.bytes = self.pending.bytes.saturating_add(raw.len);
        self.pending.batch.add(&record);
        let size = self.pending.bytes.saturating_add(self.pending.batch.bytes());
        if size >= PRIME_MEMORY.get() {
            self.apply()?;
        }
        Ok(!self.stopped)
    }

    /// Reads what the pending records touch, and applies them.
    fn apply(&mut self) -> Result<()> {
        let Pending { records, batch, .. } = std::mem::take(&mut self.pending);
        batch.read(&self.replay.live.base());
        for bytes in records {
            for raw in raw_records(Bytes::new(&bytes, ByteOrder::Little, "intent log record")) {
                if self.stopped || !self.one(&raw.map_err(Error::decode(0))?)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Applies a record; false if the supervisor ends the replay after it.
    fn one(&mut self, raw: &RawRecord<'_>) -> Result<bool> {
        let record = Record::decode(raw).map_err(|e| cannot(raw, &Error::decode(0)(e)))?;
        let again = |e| if self.supervisor.sync() { self.replay.record(&record) } else { Err(e) };
        let bytes = self.replay.record(&record).or_else(again).map_err(|e| cannot(raw, &e))?;
        (self.done.records, self.done.bytes) = (self.done.records + 1, self.done.bytes + bytes);
        self.stopped = !self.supervisor.go_on(&self.done);
        Ok(!self.stopped)
    }
}

fn cannot(raw: &RawRecord<'_>, why: &Error) -> Error {
    let (kind, seq) = (raw.kind, raw.seq);
    Error::Invalid(format!(
        "record {seq} of the intent log, of type {kind}, cannot be replayed: {why}"
    ))
}

/// Notes in the header that the record `seq` is applied (`zil_replaying`).
fn note(os: &mut OpenObjectSet, seq: u64) {
    let header = *os.zil_header();
    os.set_zil_header(cenote_format::dmu::ZilHeader { replay_seq: seq, ..header });
}

impl FileSystem {
    /// Makes the change of a record, and notes it.
    fn replay_change<T>(
        &self,
        seq: u64,
        cost: Cost,
        mut f: impl FnMut(&mut Cx<'_>) -> Result<T>,
    ) -> Result<T> {
        self.change(cost, |cx| {
            note(cx.os, seq);
            f(cx)
        })
    }
}

impl Replay<'_> {
    /// Applies a record; returns the bytes of contents that it has.
    fn record(&self, record: &Record<'_>) -> Result<u64> {
        let seq = record.seq;
        if let Some(object) = out_of_order(&record.body)
            && self.is_gone(object)?
        {
            self.live.transact(Cost::default(), |os, _| {
                note(os, seq);
                Ok::<_, Error>(())
            })?;
            return Ok(0);
        }
        match &self.target {
            Target::Files(fs) => self.to_files(fs, record),
            Target::Volume(volume) => self.to_volume(volume, record),
        }
    }

    fn is_gone(&self, object: u64) -> Result<bool> {
        match self.live.attributes(object) {
            Ok(_) => Ok(false),
            Err(e) => {
                let e = Error::from(e);
                if e.is_absence() { Ok(true) } else { Err(e) }
            }
        }
    }

    fn to_files(&self, fs: &FileSystem, record: &Record<'_>) -> Result<u64> {
        let seq = record.seq;
        match &record.body {
            Body::Create(create) => fs.replay_create(seq, create)?,
            Body::Remove { dir, name } => fs.replay_remove(seq, *dir, name, false)?,
            Body::Rmdir { dir, name } => fs.replay_remove(seq, *dir, name, true)?,
            Body::Link { dir, object, name } => fs.replay_link(seq, *dir, *object, name)?,
            Body::Rename(rename) => fs.replay_rename(seq, rename)?,
            Body::Write(write) => {
                let (at, data) = self.data_of(write)?;
                let size = write.offset.saturating_add(write.length);
                fs.replay_write(seq, write.object, at, &data, size)?;
                return Ok(data.len() as u64);
            }
            Body::Write2(write) => {
                fs.replay_extend(seq, write.object, write.offset.saturating_add(write.length))?;
            }
            Body::Truncate { object, offset, length } => {
                fs.replay_truncate(seq, *object, *offset, *length)?;
            }
            Body::SetAttr(set) => fs.replay_set_attr(seq, set)?,
            Body::SetSaXattr { object, name, value } => {
                fs.replay_set_sa_xattr(seq, *object, name, value)?;
            }
            Body::CloneRange { object, offset, length, blocks, .. } => {
                let data = self.cloned(*object, *length, blocks)?;
                let end = offset.saturating_add(*length);
                fs.replay_write(seq, *object, *offset, &data, end)?;
                return Ok(data.len() as u64);
            }
            Body::AclV0 { .. } | Body::Acl { .. } => {
                return Err(Error::Unsupported("an NFSv4 ACL in an intent log".into()));
            }
        }
        Ok(0)
    }

    /// Where a write is to be made, and what: what points to a block stands for the whole block
    /// (`zil_read_log_data`).
    fn data_of<'d>(&self, write: &Write<'d>) -> Result<(u64, Cow<'d, [u8]>)> {
        if let Some(data) = write.data {
            return Ok((write.offset, data.into()));
        }
        let size = write.block.lsize();
        let whole = write.length < size;
        let at = if whole { write.offset - write.offset % size } else { write.offset };
        let len = if whole { size } else { write.length };
        let mut data = self.block(write.object, &write.block)?;
        data.resize(usize::try_from(len).unwrap_or(usize::MAX).min(16 << 20), 0);
        Ok((at, data.into()))
    }

    fn block(&self, object: u64, bp: &BlockPointer) -> Result<Vec<u8>> {
        if bp.is_hole() {
            return Ok(Vec::new());
        }
        let at = Bookmark { objset: self.live.id(), object, level: ZIL_LEVEL, blkid: 0 };
        let block = self.store.read(bp, at).map_err(cenote_dmu::Error::from)?;
        Ok(block.data.bytes().to_vec())
    }

    /// What a range was cloned from. It is copied: the pool may not have the feature that counts references.
    fn cloned(&self, object: u64, length: u64, blocks: &[BlockPointer]) -> Result<Vec<u8>> {
        let mut data = Vec::new();
        for bp in blocks {
            let mut block = self.block(object, bp)?;
            block.resize(usize::try_from(bp.lsize()).unwrap_or(0), 0);
            data.extend(block);
        }
        data.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(data)
    }
}

/// The object of a record that may have been logged after the object was removed (`TX_OOO`).
fn out_of_order(body: &Body<'_>) -> Option<u64> {
    match body {
        Body::Write(write) | Body::Write2(write) => Some(write.object),
        Body::SetAttr(set) => Some(set.object),
        Body::Truncate { object, .. }
        | Body::AclV0 { object, .. }
        | Body::Acl { object, .. }
        | Body::SetSaXattr { object, .. }
        | Body::CloneRange { object, .. } => Some(*object),
        Body::Create(_)
        | Body::Remove { .. }
        | Body::Rmdir { .. }
        | Body::Link { .. }
        | Body::Rename(_) => None,
    }
}
