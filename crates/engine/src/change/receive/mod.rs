//! Receiving streams (`zfs receive`, `dmu_recv.c`).
//!
//! # Idea
//!
//! ```text
//! head of the stream ── receive ── sync task: a dataset that is marked as incomplete
//!                          │
//! records ── Source ── Apply ── changes of its object set, spread over transaction groups
//!                          │
//! END ── finish ── sync task: swap with what was there, snapshot with guid and time, mark taken away
//! ```
//!
//! A receive has three steps. The caller takes them one after another: [`Changes::receive`],
//! [`Receiving::stream`], and [`Changes::finish_receive`] or [`Changes::give_up_receive`]. Between the second and the
//! third the receiver can unmount what is going to be replaced.
//!
//! | room | what |
//! |---|---|
//! | `begin` | whether a stream can be received; the dataset that it goes into |
//! | [`source`] | records as they come in |
//! | `ahead` | the thread that reads them |
//! | `apply` | records put into the object set |
//! | `batch` | what is put in with one change |
//! | `kind` | what is known of the stream from its beginning |
//! | `object` | objects made, changed, made anew |
//! | `properties` | properties that come with a stream |
//! | [`heal`] | damaged blocks of a snapshot that is there, written anew |
//! | `unfinished` | what a crash left |
//! | `error` | why a stream is not received |
//!
//! # Invariants
//!
//! - Users do not see what was received before all of it has come and its checksum was right: the dataset is
//!   incomplete, or it is the hidden clone `%recv`. A receive that fails destroys it, unless it can be resumed.
//! - A crash leaves such a dataset. The next import destroys it, unless it can be resumed
//!   ([`Engine::destroy_unfinished`](crate::Engine::destroy_unfinished)).
//! - Whatever the dataset says of where to go on, all records up to there are on disk.

mod ahead;
mod apply;
mod batch;
mod begin;
mod error;
pub mod heal;
mod kind;
mod object;
mod properties;
pub mod source;
mod unfinished;

pub use error::{ReceiveError, Result};
pub use properties::Properties;
pub use source::Source;

use super::{Changes, NewEncryption, record};
use crate::change::policy::Permit;
use crate::receives::Receives;
use crate::{Engine, SpaceCheck, SyncContext};
use apply::Apply;
use cenote_dmu::live::LiveObjectSet;
use cenote_dsl::resume;
use cenote_dsl::write::destroy;
use cenote_dsl::write::receive::{self as dsl, Incoming};
use cenote_dsl::write::{DslWriteError, crypt};
use cenote_format::stream::Begin;
use kind::Kind;
use std::sync::Arc;

/// Times that it is tried again, when a snapshot is from the same transaction group.
const TRIES: usize = 16;

/// What to receive, and how.
#[derive(Clone, Debug, Default)]
pub struct NewReceive {
    /// Full name of the snapshot.
    pub to: String,
    /// Full name of the snapshot that the new dataset is a clone of.
    pub origin: Option<String>,
    /// What was changed at the destination is lost (`-F`).
    pub force: bool,
    /// What has come stays if the receive is interrupted (`-s`).
    pub resumable: bool,
    /// How a new dataset is encrypted, unless the stream is raw.
    pub encryption: NewEncryption,
    /// The stream is of a package with properties: see [`Changes::place_key`].
    pub packaged: bool,
}

/// Where a stream goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    /// The dataset.
    ds_obj: u64,
    /// The head that it takes the place of; `None`: it is new itself.
    head: Option<u64>,
    /// It stays if the receive fails.
    resumable: bool,
    /// The encryption root that was made for it.
    root: Option<u64>,
}

/// A receive that has begun (`dmu_recv_cookie_t`).
pub struct Receiving {
    engine: Arc<Engine>,
    permit: Permit,
    receives: Arc<Receives>,
    target: Target,
    /// Names of the head and the snapshot.
    names: (String, String),
    incoming: Incoming,
    live: Arc<LiveObjectSet>,
    kind: Kind,
    /// What the stream does not name is not in the snapshot.
    frees_rest: bool,
    /// Bytes of the stream that an earlier receive took.
    before: u64,
}

impl Receiving {
    fn open(
        (engine, permit): (Arc<Engine>, Permit),
        receives: Arc<Receives>,
        target: Target,
        names: (String, String),
        incoming: Incoming,
        begin: &Begin,
    ) -> Result<Receiving> {
        let root = incoming.keys.as_ref().map(|keys| keys.root);
        let live = engine.live_to_receive(target.ds_obj, root)?;
        let stream = begin.clone();
        let (frees_rest, before, packings) = engine.sync_task(move |context| {
            let tx = &mut context.tx;
            let before = dsl::field(tx, target.ds_obj, cenote_dsl::resume::BYTES)?;
            let rest = begin::is_full_clone(tx, target, &stream)?;
            Ok((rest, before.unwrap_or(0), begin::packings(tx)?))
        })?;
        let (full, spills, raw) = (begin.from_guid == 0, begin::has_spills(begin), root.is_some());
        let kind = Kind { full, spills, raw, packings };
        Ok(Receiving {
            engine,
            permit,
            receives,
            target,
            names,
            incoming,
            live,
            kind,
            frees_rest,
            before,
        })
    }

    /// Whether the dataset is new.
    pub fn is_new(&self) -> bool {
        self.target.head.is_none()
    }

    /// The object of the dataset that is received into, if its contents can be read: not those of a raw stream, whose keys wait for
    /// the end.
    pub fn readable(&self) -> Option<u64> {
        (!self.kind.raw).then_some(self.target.ds_obj)
    }

    /// Whether what has come stays if the receive fails.
    pub fn is_resumable(&self) -> bool {
        self.target.resumable
    }

    /// Takes all records of a stream whose head was read. `progress` is told how many bytes have come.
    ///
    /// # Errors
    /// The stream ends early, is damaged, or does not fit to what is there; it cannot be written.
    pub fn stream(&self, source: &mut Source<'_>, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let mut apply = Apply::new(self.live.clone(), &self.receives, self.kind);
        let read = ahead::each(source, |read| {
            let bytes = self.before.saturating_add(read.bytes);
            apply.record(read.record, read.payload, bytes)?;
            progress(read.bytes);
            Ok(())
        });
        if read.is_ok() || !self.target.resumable {
            return read.and_then(|()| apply.finish(self.frees_rest));
        }
        // A receive that goes on later has all that came, as far as it was right.
        if let Err(e) = apply.flush() {
            tracing::warn!("the last records that came are lost: {e}");
        }
        read
    }
}

impl Changes {
    /// Makes what has come the snapshot, and what is there the dataset (`dmu_recv_end`, `dmu_recv_new_end`). What was there
    /// may not be open.
    ///
    /// # Errors
    /// What was there is in use, or there is no room for it. The dataset that was received into is gone then, unless it
    /// can be resumed.
    pub fn finish_receive(&self, receiving: Receiving, force: bool) -> Result<()> {
        let Receiving { engine, permit, receives, target, names, incoming, live, .. } = receiving;
        // Its users cannot change it any more.
        let closed = engine.close(target.ds_obj);
        drop(live);
        let done = match closed {
            Ok(()) => {
                engine.pool().store().keys().set_raw(target.ds_obj, false);
                self.complete(permit, target, &names, &incoming, force)
            }
            // The group that waits for devices may still have something of it, which takes no key.
            Err(e) => Err(e.into()),
        };
        match done {
            Ok(()) => {
                receives.leave(target.ds_obj);
                Ok(())
            }
            Err(e) => {
                self.leave_or_destroy(permit, &receives, target);
                Err(e)
            }
        }
    }

    /// Ends a receive that failed (`dmu_recv_cleanup_ds`): what has come is on disk if it can be resumed, and else it
    /// is gone.
    pub fn give_up_receive(&self, receiving: Receiving) {
        let Receiving { engine, permit, receives, target, live, .. } = receiving;
        let closed = engine.close(target.ds_obj);
        drop(live);
        match closed {
            Ok(()) => engine.pool().store().keys().set_raw(target.ds_obj, false),
            Err(e) => tracing::warn!("what was received: {e}"),
        }
        self.leave_or_destroy(permit, &receives, target);
    }

    fn leave_or_destroy(&self, permit: Permit, receives: &Receives, target: Target) {
        if target.resumable {
            receives.leave(target.ds_obj);
        } else if let Err(e) = self.give_up(permit, target) {
            tracing::warn!("what was received in part is left: {e}");
        }
    }

    /// Destroys the dataset that should have been received into.
    fn give_up(&self, permit: Permit, target: Target) -> Result<()> {
        let done = self.receive_task(permit, (SpaceCheck::Nothing, 0), move |context| {
            context.retire(target.ds_obj)?;
            context.destroy_intent_log(target.ds_obj, 0)?;
            destroy::destroy_head(&mut context.tx, target.ds_obj)?;
            Ok(Ok(()))
        });
        self.engine.shared.receives.leave(target.ds_obj);
        if done.is_ok() {
            self.engine.pool().store().keys().set_raw(target.ds_obj, false);
            self.engine.forget_keys_of_gone();
        }
        done
    }

    fn complete(
        &self,
        permit: Permit,
        target: Target,
        names: &(String, String),
        incoming: &Incoming,
        force: bool,
    ) -> Result<()> {
        for _ in 0..TRIES {
            let ((head_name, snapshot), incoming) = (names.clone(), incoming.clone());
            let done = self.receive_task(permit, (SpaceCheck::Normal, 8), move |context| {
                let object = target.head.unwrap_or(target.ds_obj);
                if dsl::has_snapshot_of_now(&mut context.tx, object)? {
                    return Ok(Ok(false));
                }
                let name = format!("{head_name}@{snapshot}");
                let (snap, gone) = match target.head {
                    None => {
                        let tx = &mut context.tx;
                        (dsl::complete(tx, target.ds_obj, &snapshot, &incoming)?, None)
                    }
                    Some(head) => {
                        if !force && begin::is_modified(&mut context.tx, head)? {
                            return Ok(Err(ReceiveError::Modified));
                        }
                        context.check_intent_log(head)?;
                        context.retire(head)?;
                        context.destroy_intent_log(head, 0)?;
                        context.retire(target.ds_obj)?;
                        let pair = (target.ds_obj, head);
                        let tx = &mut context.tx;
                        let done = dsl::complete_clone(tx, pair, (&snapshot, force), &incoming)?;
                        (done.0, Some(done.1))
                    }
                };
                if incoming.keys.is_some() {
                    forget_outdated(context, object, &incoming)?;
                }
                let tx = &mut context.tx;
                record(tx, "finish receiving", &format!("snap={snapshot}"), (&head_name, object))?;
                let clone = format!("{head_name}/{}", resume::CLONE);
                let clone = (clone.as_str(), target.ds_obj);
                if gone.is_some() {
                    let leaf = head_name.rsplit('/').next().unwrap_or_default();
                    record(tx, "clone swap", &format!("parent={leaf}"), clone)?;
                }
                record(tx, "snapshot", " ", (&name, snap))?;
                if let Some(how) = gone {
                    record(tx, "destroy", &how, clone)?;
                }
                Ok(Ok(true))
            });
            if done? {
                return Ok(());
            }
        }
        Err(ReceiveError::Busy)
    }
}

/// If the sender has another key of the user's by now, the one that is loaded here is not loaded any more.
fn forget_outdated(
    context: &mut SyncContext<'_>,
    ds_obj: u64,
    incoming: &Incoming,
) -> std::result::Result<(), DslWriteError> {
    let dir = dsl::dir_of(&mut context.tx, ds_obj)?;
    if let Some(root) = crypt::outdated_root(&mut context.tx, dir, &incoming.keystore)? {
        let keys = Arc::clone(&incoming.keystore);
        context.when_kept(move || keys.forget(root));
    }
    Ok(())
}
