//! Replay of intent logs (`zil_replay`, `zfs_replay_vector`, `zvol_replay_vector`).
//!
//! # Idea
//!
//! The records of a claimed log are applied in the order in which they were written, while what those after
//! them touch is read ([`feed`], [`prime`]).
//! Each is one change of the live object set, which also notes the record's sequence number in the log's
//! header (`zh_replay_seq`). So a record and the note that it was applied get on disk in the same
//! transaction group, and a replay that a crash interrupts goes on where it was. What a record frees may
//! take several changes; the note is made by the last of them, and those before it can be made again.
//! Writes that follow one another are one change ([`apply`]).
//!
//! Records say what an operation came to, not what it was asked for: object numbers, modes and owners are
//! taken as they are, and neither permissions nor properties such as `readonly` are asked again.
//!
//! Some records are not in order with records of other objects (`TX_OOO`): their object may be gone by the time,
//! and then they are passed over.
//!
//! A record may create an object under a number that a file without a name still has on disk. The file was
//! freed, which no record says, and its number given out again, before the crash. So what is in the
//! unlinked set is freed before the first record (`zfs_unlinked_drain`), and what records leave there is freed as
//! the replay goes on. Large files are freed in the background. A record that fails waits for that and for the
//! open group, and is tried once more.
//!
//! # Invariants
//!
//! - A record that is not in the log's claim is not applied, nor one of a group that was on disk.
//! - A record that cannot be applied ends the replay; nothing after it is applied. The header says how far
//!   it came, and the log is kept.

mod acl;
mod apply;
mod feed;
mod names;
mod node;
mod prime;
mod volume;

use crate::fs::FileSystem;
use crate::volume::Volume;
use crate::write::context::Cx;
use crate::write::data::MAX_SIZE;
use crate::{Caching, Error, Result, Settings, Visibility};
use apply::Applier;
use cenote_dmu::live::{Cost, LiveObjectSet};
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::zil::{End, Kept, ZIL_LEVEL};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ObjsetType;
use cenote_format::invariant::broken;
use cenote_format::zil::{Body, Record, Write};
use cenote_store::{Bookmark, Store, held};
use feed::Feed;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// What a replay did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records that were applied, or passed over because their object is gone.
    pub records: u64,
    /// Bytes of their changes of contents.
    pub bytes: u64,
    /// Bytes of the records themselves.
    pub logged: u64,
}

/// What a replay asks of its caller.
pub trait Supervisor {
    /// Waits until the open transaction group is on disk; whether it is.
    fn sync(&self) -> bool;
    /// Told after each change, which applies one record or several, what was done so far. False ends the replay there;
    /// the log is kept, and a replay goes on from there.
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
    kept: &'a Kept,
}

/// Replays the claimed intent log of `live`, which is not in use otherwise. `settings` are the file system's;
/// what was read of the log before is in `kept`.
///
/// # Errors
/// A record that cannot be applied; its number is in the message. A log that cannot be read up to its end.
/// The supervisor ended it.
pub fn replay(
    live: &Arc<LiveObjectSet>,
    settings: Settings,
    supervisor: &dyn Supervisor,
    kept: &Kept,
) -> Result<Replayed> {
    let base = live.base();
    let store = base.store().clone();
    let target = match base.phys().kind {
        ObjsetType::Zfs => {
            // Lists are extended attributes here: their records say what becomes of them.
            let visibility = Visibility { posix_acl: false, ..settings.visibility };
            // Data that is read ahead has to be kept until it is needed.
            let cache = Caching::default();
            let settings = Settings { visibility, cache, read_only: false, ..settings };
            let fs = FileSystem::open_live(live.clone(), settings)?;
            fs.drain.never_suspend();
            Target::Files(fs)
        }
        ObjsetType::Zvol => Target::Volume(Volume::open_live(live.clone())?),
        kind => return Err(Error::Unsupported(format!("an intent log of {kind:?}"))),
    };
    let replay = Replay { live, store, target, kept };
    replay.free_unlinked();
    let done = Replayed::default();
    let mut applier = Applier { replay, supervisor, done, stopped: false };
    let (send, receive) = sync_channel(1);
    let feed = Feed::new(&base, send);
    let outcome = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("zil-feed".into());
        let feeding = thread.spawn_scoped(scope, || feed.run(kept));
        let feeding =
            feeding.map_err(|e| Error::Invalid(format!("no thread for a replay: {e}")))?;
        let mut applied = Ok(());
        for batch in &receive {
            applied = applier.apply(&batch);
            if applied.is_err() || applier.stopped {
                break;
            }
        }
        drop(receive);
        let end =
            feeding.join().map_err(|_| Error::Invalid("internal error (see the log)".into()))?;
        Ok::<_, Error>((applied, end))
    });
    applier.replay.stop_freeing();
    let (applied, end) = outcome?;
    applied?;
    if applier.stopped {
        return Err(interrupted());
    }
    match end {
        End::Complete => Ok(applier.done),
        End::Stopped => Err(interrupted()),
        End::Failed(e) => Err(cenote_dmu::Error::from(e).into()),
        End::Cut => Err(Error::Invalid("a part of the intent log could not be claimed".into())),
        End::Unreadable => {
            Err(Error::Invalid("what was claimed of the intent log cannot be read".into()))
        }
    }
}

fn interrupted() -> Error {
    Error::Invalid("the replay was interrupted".into())
}

/// Does `one` for all, as parts of one change. If it misses a block it goes on: the blocks of all others are missed in
/// the same run of the change, and read together before the next one.
fn miss_together<T>(
    all: impl IntoIterator<Item = T>,
    mut one: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let mut missed = Ok(());
    for item in all {
        match one(item) {
            Err(e) if held::has_missed() => missed = Err(e),
            done => done?,
        }
    }
    missed
}

/// The data of a write that is applied with others: a run has no other ones.
fn data_in<'d>(write: &Write<'d>) -> &'d [u8] {
    let (object, offset) = (write.object, write.offset);
    match write.data {
        Some(data) => data,
        None => broken(format_args!("object {object}: a write at {offset} without data in a run")),
    }
}

/// Where what a record writes to a file ends.
///
/// Errors: no file is that long.
fn end_of(object: u64, offset: u64, length: u64) -> Result<u64> {
    let end = offset.checked_add(length).filter(|end| *end <= MAX_SIZE);
    end.ok_or_else(|| Error::TooLarge(format!("object {object}: {length} bytes at {offset}")))
}

/// The number of the last of these writes, which is noted for all of them.
fn last_of(writes: &[(u64, Write<'_>)]) -> u64 {
    match writes.last() {
        Some((seq, _)) => *seq,
        None => broken(format_args!("a change of no writes of an intent log")),
    }
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
    /// Frees the files that have no names, large ones in the background.
    fn free_unlinked(&self) {
        let Target::Files(fs) = &self.target else { return };
        if let Err(e) = fs.drain_unlinked() {
            // It matters only if a record needs the number of one.
            tracing::warn!("files without names could not be freed before a replay: {e}");
        }
    }

    /// Waits until the large files that lost their names are freed.
    fn finish_freeing(&self) {
        if let Target::Files(fs) = &self.target {
            fs.finish_freeing();
        }
    }

    /// Ends freeing in the background. What is left is freed when the file system is mounted.
    fn stop_freeing(&self) {
        if let Target::Files(fs) = &self.target {
            fs.stop_freeing();
        }
    }

    /// What a write of data in its record may cost.
    fn cost_of(&self, write: &Write<'_>) -> Cost {
        let data = write.data.unwrap_or_default();
        match &self.target {
            Target::Files(fs) => fs.cost_of_replay(write.object, write.offset, data),
            Target::Volume(volume) => self.cost_of_put(volume, write.offset, data.len() as u64),
        }
    }

    /// Applies these writes, whose data is in their records, as one change; the numbers of the records
    /// are beside them.
    fn writes(&self, writes: &[(u64, Write<'_>)]) -> Result<()> {
        let write = writes.iter().map(|(_, write)| self.cost_of(write).write);
        let cost = Cost { write: write.fold(0, u64::saturating_add), objects: 0, frees: false };
        match &self.target {
            Target::Files(fs) => fs.replay_writes(cost, writes),
            Target::Volume(volume) => self.puts(volume, cost, writes),
        }
    }

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
        let (seq, table_at) = (record.seq, self.table_at(&record.body)?);
        match &record.body {
            Body::Create(create) => fs.replay_create(seq, create, table_at)?,
            Body::Remove { dir, name } => fs.replay_remove(seq, *dir, name, false)?,
            Body::Rmdir { dir, name } => fs.replay_remove(seq, *dir, name, true)?,
            Body::Link { dir, object, name } => fs.replay_link(seq, *dir, *object, name)?,
            Body::Rename(rename) => fs.replay_rename(seq, rename)?,
            Body::Write(write) => {
                let (at, data) = self.data_of(write)?;
                let size = end_of(write.object, write.offset, write.length)?;
                fs.replay_write(seq, write.object, at, &data, size)?;
                return Ok(data.len() as u64);
            }
            Body::Write2(write) => {
                let end = end_of(write.object, write.offset, write.length)?;
                fs.replay_extend(seq, write.object, end)?;
            }
            Body::Truncate { object, offset, length } => {
                fs.replay_truncate(seq, *object, *offset, *length)?;
            }
            Body::SetAttr(set) => fs.replay_set_attr(seq, set, table_at)?,
            Body::SetSaXattr { object, name, value } => {
                fs.replay_set_sa_xattr(seq, *object, name, value)?;
            }
            Body::CloneRange { object, offset, length, block_size, blocks } => {
                // The claim of the log holds a reference to each block.
                let place = (*offset, *length, *block_size);
                if self.live.counts_references()
                    && self.live.check_references(blocks).is_ok()
                    && fs.replay_clone(seq, *object, place, blocks).is_ok()
                {
                    return Ok(*length);
                }
                let data = self.cloned(*object, *length, blocks)?;
                let end = end_of(*object, *offset, *length)?;
                fs.replay_write(seq, *object, *offset, &data, end)?;
                return Ok(data.len() as u64);
            }
            Body::Acl { object, acl } => fs.replay_acl(seq, *object, acl, table_at)?,
            Body::AclV0 { object, order, count, aces } => {
                fs.replay_acl_v0(seq, *object, (aces, *order, *count))?;
            }
        }
        Ok(0)
    }

    /// Where to write, and what: what points to a block stands for the whole block
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

    /// What a range was cloned from. It is copied where it cannot be cloned again.
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
