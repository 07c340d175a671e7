//! Damaged blocks of a snapshot written anew from a stream of it (`zfs receive -c`, `do_corrective_recv`).
//!
//! # Idea
//!
//! ```text
//! stream ── ahead ── blocks of data ── whole blocks of the snapshot     (`blocks`)
//!                                          │ pointer, by the newest view
//!                                     all copies are read ── right: nothing is written
//!                                          │ lost
//!                                     forms that its bytes may have     (`forms`)
//!                                          │ the one with the pointer's checksum
//!                                     written in place of every copy    (`cenote_store::correct`)
//! ```
//!
//! The stream is one of the very snapshot: both have one guid. So each block in it is what the snapshot has there, but
//! maybe compressed or encrypted in another way. What other snapshots, clones and the head share of a block that is
//! healed is healed with it. Only blocks of data are in a stream as they are; metadata is left to other copies of it.
//!
//! # Invariants
//!
//! - The snapshot has a long hold, so its blocks stay. Pointers are taken from the newest view under an epoch of reads,
//!   and nothing is written once that was let go.
//! - Nothing but bytes that satisfy a pointer's checksum is written, and nothing else is changed.
//! - A block that cannot be healed stops no other one. It is in the error log; the receive says that there is such.

mod blocks;
mod forms;

use super::ahead;
use super::begin::check_stream;
use super::error::{ReceiveError, Result};
use super::kind::sealed;
use super::source::Source;
use crate::change::policy::{Operation, Permit};
use crate::change::{Changes, record};
use crate::keys::KeyUse;
use crate::long_hold::{Holder, LongHold};
use crate::tunables::RECV_BEST_EFFORT_CORRECTIVE;
use crate::{Engine, SpaceCheck};
use blocks::{Gathered, Piece, Whole};
use cenote_dsl::{Dataset, DatasetKind};
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::compress::Compression;
use cenote_format::invariant::broken;
use cenote_format::stream::{Begin, Record, WriteRecord, feature};
use cenote_pool::Pool;
use cenote_store::correct::{Corrected, Offer};
use cenote_store::keys::LoadedKey;
use cenote_store::write::{Packed, Payload};
use cenote_store::{Bookmark, Store};
use std::sync::Arc;

/// Times that blocks are looked at again in vain, when what was freed meanwhile had to be given out.
const TRIES: usize = 64;

/// What came of healing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Healed {
    /// Blocks of the stream that could not be read and can be now.
    pub healed: u64,
    /// Blocks of it that cannot be read, or of which it is not known what is right.
    pub damaged: u64,
    /// The latter: copies differ, and the key is not loaded.
    pub disputed: u64,
}

/// A corrective receive that has begun.
pub struct Healing {
    engine: Arc<Engine>,
    permit: Permit,
    _hold: LongHold,
    /// The snapshot.
    ds_obj: u64,
    /// Its full name.
    name: String,
    raw: bool,
    key: Option<Arc<LoadedKey>>,
    /// Where the key is needed.
    _key_use: Option<KeyUse>,
}

impl Changes {
    /// Whether the snapshot with the full name `to` can be healed by a stream.
    ///
    /// # Errors
    /// There is no such snapshot, it is another one than the stream's, or its key has to be loaded; the user may not.
    pub fn may_heal(&self, to: &str, begin: &Begin) -> Result<()> {
        self.plan_heal(to, begin).map(drop)
    }

    /// Begins to heal the snapshot with the full name `to` by a stream of it, for the `holder` of the snapshot.
    ///
    /// # Errors
    /// Those of [`Changes::may_heal`]; the snapshot is being destroyed.
    pub fn heal(&self, to: &str, begin: &Begin, holder: Holder) -> Result<Healing> {
        let (permit, snapshot) = self.plan_heal(to, begin)?;
        let (hold, snapshot) = self.engine.hold(&snapshot, holder)?;
        let view = self.engine.pool();
        let raw = begin.features & feature::RAW != 0;
        let key_use = (!raw).then(|| self.engine.use_key(snapshot.ds_obj));
        // Opened, it has its key.
        Store::with_keys_or_without(|| view.dsl().open_objset(&snapshot))?;
        let key = view.store().keys().of(snapshot.ds_obj).filter(|_| !raw);
        let (ds_obj, name) = (snapshot.ds_obj, to.to_string());
        self.receive_task(permit, (SpaceCheck::Nothing, 0), move |context| {
            record(&mut context.tx, "receive", " ", (&name, ds_obj))?;
            Ok(Ok(()))
        })?;
        let (engine, name) = (self.engine.clone(), to.to_string());
        let (_hold, _key_use) = (hold, key_use);
        Ok(Healing { engine, permit, _hold, ds_obj, name, raw, key, _key_use })
    }

    fn plan_heal(&self, to: &str, begin: &Begin) -> Result<(Permit, Dataset)> {
        check_stream(begin)?;
        if begin.features & feature::RESUMING != 0 {
            let why = "a stream that goes on has no snapshot to heal";
            return Err(ReceiveError::Stream(why.into()));
        }
        let view = self.engine.pool();
        let dsl = view.dsl();
        let Some((head, _)) = to.split_once('@') else { return Err(ReceiveError::NoSnapshot) };
        let snapshot = dsl.find(to)?.filter(|found| found.kind == DatasetKind::Snapshot);
        let snapshot = snapshot.ok_or(ReceiveError::NoSnapshot)?;
        if snapshot.ds.guid != begin.to_guid {
            return Err(ReceiveError::OtherSnapshot);
        }
        let permit = self.permit(&Operation::Receive { name: head, force: false, origin: None })?;
        let raw = begin.features & feature::RAW != 0;
        match dsl.is_key_loaded(&snapshot)? {
            None if raw => return Err(ReceiveError::Incompatible),
            Some(false) if !raw => return Err(ReceiveError::KeyToHeal),
            Some(_) if begin.features & feature::EMBED_DATA != 0 => {
                return Err(ReceiveError::Embedded);
            }
            _ => {}
        }
        Ok((permit, snapshot))
    }

    /// Ends it: what was healed is durable, and the error log knows.
    ///
    /// # Errors
    /// Blocks of the stream stay damaged (`zfs_recv_best_effort_corrective` makes that no error).
    pub fn finish_heal(&self, healing: &Healing, healed: Healed) -> Result<()> {
        let Healing { permit, ds_obj, name, .. } = healing;
        let (ds_obj, name) = (*ds_obj, name.clone());
        self.receive_task(*permit, (SpaceCheck::Nothing, 0), move |context| {
            let short = name.split('@').nth(1).unwrap_or_default();
            record(&mut context.tx, "finish receiving", &format!("snap={short}"), (&name, ds_obj))?;
            Ok(Ok(()))
        })?;
        match healed.damaged {
            0 => Ok(()),
            _ if RECV_BEST_EFFORT_CORRECTIVE.is_on() => Ok(()),
            blocks => Err(ReceiveError::NotHealed { blocks, disputed: healed.disputed }),
        }
    }
}

impl Healing {
    /// Takes all records of a stream whose head was read. `progress` is told how many bytes have come.
    ///
    /// # Errors
    /// The stream ends early or is damaged: what came before was looked at. The pool does not answer.
    pub fn stream(&self, source: &mut Source<'_>, progress: &mut dyn FnMut(u64)) -> Result<Healed> {
        let gathered = Gathered::default();
        let mut batch = Batch { healing: self, gathered, done: Healed::default() };
        let read = ahead::each(source, |read| {
            if let Record::Write(write) = &read.record {
                batch.take(write, read.payload)?;
            }
            progress(read.bytes);
            Ok(())
        });
        let rest = batch.heal();
        read.and(rest).map(|()| batch.done)
    }
}

/// Blocks of the stream that are looked at together. What is of one block of the snapshot is in one batch.
struct Batch<'a> {
    healing: &'a Healing,
    gathered: Gathered,
    done: Healed,
}

impl Batch<'_> {
    /// Takes a record.
    fn take(&mut self, write: &WriteRecord, payload: Abd) -> Result<()> {
        if self.gathered.ends_before(write.object, write.offset, write.logical_size) {
            self.heal()?;
        }
        let lsize = write.logical_size;
        let data = match write.compression {
            function if self.healing.raw => sealed(function, payload, lsize, write.seal)?,
            0 => payload.into(),
            function => {
                let compression = Compression::from_u8(function)?;
                let (data, lsize) = (payload, lsize as usize);
                Payload::Packed(Packed { data, compression, lsize, seal: None })
            }
        };
        self.gathered.add(Piece { object: write.object, offset: write.offset, data });
        Ok(())
    }

    /// Looks at the blocks, and has those written anew that are lost.
    fn heal(&mut self) -> Result<()> {
        let Gathered { pieces, .. } = std::mem::take(&mut self.gathered);
        if pieces.is_empty() {
            return Ok(());
        }
        let shared = &self.healing.engine.shared;
        let (wholes, lost) = {
            let view = shared.view();
            let object = |number| self.healing.object(&view, number);
            let size = |number| Some(object(number).ok()?.dnode().block_size);
            blocks::join(pieces, &mut |number| Store::with_keys_or_without(|| size(number)))
        };
        self.done.damaged += lost;
        let (mut open, mut tries) = (wholes.as_slice(), 0);
        while !open.is_empty() {
            if tries == TRIES {
                return Err(ReceiveError::Busy);
            }
            if let Some(why) = self.healing.engine.suspended() {
                return Err(crate::EngineError::Suspended(why.to_string()).into());
            }
            // What the newest view reaches is not given out again while the epoch lasts.
            let reading = shared.disk.allocator.readers().begin();
            let view = shared.view();
            let found = Store::with_keys_or_without(|| self.healing.find(&view, open));
            let came = self.healing.correct(&view, &found, &|| reading.is_safe())?;
            tries = if came.is_empty() { tries + 1 } else { 0 };
            let unseen;
            (open, unseen) = found.left_after(open, came.len());
            let count = |wanted| came.iter().filter(|one| **one == wanted).count() as u64;
            let healed = count(Corrected::Healed);
            self.done.healed += healed;
            self.done.disputed += count(Corrected::Disputed);
            self.done.damaged += came.len() as u64 - healed - count(Corrected::WasRight) + unseen;
        }
        Ok(())
    }
}

/// What was found of blocks of the snapshot.
struct Found<'a> {
    blocks: Vec<Place<'a>>,
    /// Of how many it is not known what is there.
    unseen: u64,
}

/// A block whose pointer was found.
struct Place<'a> {
    bp: BlockPointer,
    at: Bookmark,
    whole: &'a Whole,
    /// How many blocks were before it, and of how many of them it is not known what is there.
    before: usize,
    unseen_before: u64,
}

impl<'a> Found<'a> {
    /// Which of the blocks `open` are left if that many of the found ones are done; of how many of the others it is not known
    /// what is there.
    fn left_after(&self, open: &'a [Whole], done: usize) -> (&'a [Whole], u64) {
        match self.blocks.get(done) {
            Some(next) => {
                let (before, all) = (next.before, open.len());
                let left = open.get(before..).unwrap_or_else(|| {
                    broken(format_args!("{before} of {all} blocks of a stream came before one"))
                });
                (left, next.unseen_before)
            }
            None => (&[], self.unseen),
        }
    }
}

impl Healing {
    fn object(&self, view: &Pool, object: u64) -> cenote_dmu::Result<cenote_dmu::Object> {
        let gone = || cenote_dmu::Error::NoObject { objset: self.ds_obj, object };
        let snapshot = view.dsl().by_object(self.ds_obj)?.ok_or_else(gone)?;
        view.dsl().open_objset(&snapshot)?.object(object)
    }

    /// The pointers of blocks, as far as they can be read.
    fn find<'a>(&self, view: &Pool, wholes: &'a [Whole]) -> Found<'a> {
        let mut found = Found { blocks: Vec::with_capacity(wholes.len()), unseen: 0 };
        let mut before = 0;
        for of_one in wholes.chunk_by(|a, b| a.object == b.object) {
            let object = of_one.first().and_then(|w| self.object(view, w.object).ok());
            for whole in of_one {
                let bp = object.as_ref().and_then(|o| o.block_pointer(0, whole.blkid).ok());
                match bp {
                    None => found.unseen += 1,
                    Some(bp) if bp.is_hole() || bp.is_embedded() => {}
                    Some(bp) => {
                        let (objset, object, blkid) = (self.ds_obj, whole.object, whole.blkid);
                        let at = Bookmark { objset, object, level: 0, blkid };
                        let unseen_before = found.unseen;
                        found.blocks.push(Place { bp, at, whole, before, unseen_before });
                    }
                }
                before += 1;
            }
        }
        found
    }

    /// What came of the blocks, or of the first ones of them.
    ///
    /// # Errors
    /// The snapshot's key is loaded, and cannot be read.
    fn correct(
        &self,
        view: &Pool,
        found: &Found<'_>,
        current: &dyn Fn() -> bool,
    ) -> Result<Vec<Corrected>> {
        let keys = view.dsl().keystore().keys_for_scan();
        // Where it is not loaded a stream that is raw heals by half a checksum what no copy satisfies.
        if let Some(snapshot) = view.dsl().by_object(self.ds_obj)? {
            view.dsl().lend_key(self.ds_obj, snapshot.dir_obj, &keys)?;
        }
        let key = self.key.as_deref();
        let forms: Vec<_> = found
            .blocks
            .iter()
            .map(|Place { bp, whole, .. }| {
                move |take: &mut dyn FnMut(Abd) -> bool| {
                    if let Some(data) = &whole.data {
                        forms::each(bp, data, key, take);
                    }
                }
            })
            .collect();
        let mut offers: Vec<Offer<'_>> = Vec::with_capacity(forms.len());
        for (Place { bp, at, .. }, forms) in found.blocks.iter().zip(&forms) {
            offers.push(Offer { bp: *bp, at: *at, forms });
        }
        Ok(self.engine.shared.disk.store.correct_many(&offers, &keys, current))
    }
}
