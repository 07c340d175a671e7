//! Redaction bookmarks (`dmu_redact_snap`): what a redacted stream leaves out.
//!
//! ```text
//! names ─> snapshots, held ─> sync task: the bookmark with an empty list
//!                             walks of the snapshots ─> entries ─┬─> sync task, each second: more of the list
//!                                                                └─> sync task: the list is complete
//! ```
//!
//! A redaction that was interrupted is taken up by the next one of the same names, behind the last entry of the list.
//!
//! Invariants: nothing that is read is destroyed meanwhile: snapshots and the list have long holds. What a list has is
//! all that there is before the place where it goes on. One of other snapshots is not taken up. A list has one maker, which
//! knows what the list says of itself.

use super::policy::{Operation, Permit};
use super::{ChangeError, Changes, Request, find_snapshot, record};
use crate::long_hold::{Holder, LongHold};
use crate::{EngineError, SpaceCheck};
use cenote_dmu::outside::Time;
use cenote_dsl::redaction::{Found, RedactError};
use cenote_dsl::write::bookmarks::{self, Made};
use cenote_dsl::write::{DslWriteError, redaction};
use cenote_dsl::{Dataset, DatasetKind};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::redaction::{RedactBlocks, RedactionList};
use std::collections::BTreeSet;
use std::time::Duration;

/// How often entries are written (`redaction_list_update_interval_ns`).
const INTERVAL: Duration = Duration::from_secs(1);
/// Entries that wait to be written at most.
const WAITING: usize = 1 << 16;

/// What to redact, and by what.
#[derive(Clone, Debug)]
pub struct NewRedaction {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// Name of the bookmark, without that of the dataset.
    pub bookmark: String,
    /// Full names of the snapshots that it is redacted by.
    pub by: Vec<String>,
}

/// Why there is no redaction bookmark. The texts are as of `zfs redact`.
#[derive(Debug, thiserror::Error)]
pub enum RedactRefused {
    /// Snapshots that are not there.
    #[error("{}", .0.iter().map(|name| format!("provided snapshot {name} does not exist")).collect::<Vec<_>>().join("\n"))]
    NoSnapshots(Vec<String>),
    /// There is a bookmark of this name, which is complete or has no list.
    #[error("specified redaction bookmark ({0}) provided already exists")]
    Exists(String),
    /// The name would be too long.
    #[error("provided bookmark name cannot be used, final name would be too long")]
    TooLong,
    /// More snapshots than a list can name.
    #[error("too many redaction snapshots specified")]
    TooMany,
    /// The name of the bookmark cannot be.
    #[error("redaction bookmark name must not contain '#'")]
    Name,
    /// The bookmark was begun by other snapshots, or is of another one.
    #[error("attempted to resume redaction  with a mismatched redaction list")]
    Mismatch,
    /// The feature is not enabled.
    #[error("redaction bookmarks feature not enabled")]
    NotEnabled,
    /// The names are of several pools.
    #[error("potentially invalid redaction snapshot; full dataset names required")]
    Pools,
    /// A snapshot is encrypted, and its key is not loaded.
    #[error("key of '{0}' is not loaded")]
    NoKey(String),
    /// The user gave up; what was found is kept.
    #[error("interrupted; the same command goes on from there")]
    Interrupted,
    /// The snapshots do not fit, or cannot be read.
    #[error(transparent)]
    Redact(#[from] RedactError),
    /// It cannot be held or changed.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

type Result<T> = std::result::Result<T, RedactRefused>;

/// A list that is being made.
struct Making {
    list: u64,
    /// What it says of itself.
    known: RedactionList,
    permit: Permit,
    /// Where the last piece that was found says to go on.
    next: (u64, u64),
    /// Entries that are not written yet.
    entries: Vec<RedactBlocks>,
    /// When some were written last.
    written: Time,
}

impl Changes {
    /// Makes a redaction bookmark of a snapshot, or goes on with one that was interrupted (`zfs_ioc_redact`). It ends early
    /// once `stops` says so.
    ///
    /// # Errors
    /// See [`RedactRefused`]. A bookmark that was made stays, and is gone on with by the same call.
    pub fn redact(
        &self,
        new: &NewRedaction,
        holder: &Holder,
        stops: &dyn Fn() -> bool,
    ) -> Result<()> {
        let permit = self.permit(&Operation::Redact)?;
        let pool = |name: &str| name.split(['/', '@']).next().unwrap_or_default().to_string();
        if new.by.iter().any(|name| pool(name) != pool(&new.snapshot)) {
            return Err(RedactRefused::Pools);
        }
        if new.bookmark.contains(['#', '@', '/']) {
            return Err(RedactRefused::Name);
        }
        let mut names = vec![new.snapshot.clone()];
        // One that is named twice counts where it is named last.
        let last = |(at, name): &(usize, &String)| {
            !new.by.get(at + 1..).unwrap_or_default().contains(name)
        };
        names.extend(new.by.iter().enumerate().filter(last).map(|(_, name)| name.clone()));
        if names.len() > redaction::MAX_SNAPS + 1 {
            return Err(RedactRefused::TooMany);
        }
        let (_holds, found) = self.held_snapshots(&names, holder)?;
        let Some((snapshot, by)) = found.split_first() else {
            return Err(RedactRefused::NoSnapshots(names));
        };
        let pool = self.engine.pool();
        pool.dsl().check_redaction(snapshot, by)?;
        for dataset in &found {
            let key = pool.dsl().is_key_loaded(dataset).map_err(RedactError::from)?;
            if key == Some(false) {
                return Err(RedactRefused::NoKey(dataset.name.clone()));
            }
        }
        let guids: Vec<u64> = by.iter().map(|snapshot| snapshot.ds.guid).collect();
        let list = self.begin_redaction(permit, new, (snapshot, guids))?;
        let held = self.engine.make_list(list, holder.clone());
        let (_making, known) = held.map_err(ChangeError::from)?;
        // Another one may have gone on with it meanwhile.
        if known.is_complete() {
            return Err(RedactRefused::Exists(new.bookmark.clone()));
        }
        let (entries, written) = (Vec::new(), self.engine.clock().now());
        let next = known.last;
        let mut making = Making { list, known, permit, next, entries, written };
        let pool = self.engine.pool();
        let from = pool.dsl().redaction_end(list).map_err(RedactError::from)?;
        let found = pool.dsl().find_redaction((snapshot, by), from, stops, |found| {
            self.note_found(&mut making, found)
        });
        match found {
            Err(RedactRefused::Redact(RedactError::Stopped)) => {
                self.write_found(&mut making)?;
                Err(RedactRefused::Interrupted)
            }
            found => found,
        }
    }

    /// Finds snapshots, and keeps them from being destroyed.
    fn held_snapshots(
        &self,
        names: &[String],
        holder: &Holder,
    ) -> Result<(Vec<LongHold>, Vec<Dataset>)> {
        let pool = self.engine.pool();
        let (mut holds, mut found, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for name in names {
            let dataset = pool.dsl().find(name).map_err(ChangeError::from)?;
            let Some(dataset) = dataset.filter(|d| d.kind == DatasetKind::Snapshot) else {
                missing.push(name.clone());
                continue;
            };
            match self.engine.hold(&dataset, holder.clone()) {
                Ok((hold, dataset)) => {
                    holds.push(hold);
                    found.push(dataset);
                }
                Err(EngineError::Dsl(DslWriteError::NotFound)) => missing.push(name.clone()),
                Err(e) => return Err(ChangeError::from(e).into()),
            }
        }
        match missing.is_empty() {
            true => Ok((holds, found)),
            false => Err(RedactRefused::NoSnapshots(missing)),
        }
    }

    /// Makes the bookmark, or finds the one that was begun. Returns its list.
    fn begin_redaction(
        &self,
        permit: Permit,
        new: &NewRedaction,
        (snapshot, guids): (&Dataset, Vec<u64>),
    ) -> Result<u64> {
        let mut snaps = NvList::default();
        new.by.iter().for_each(|name| snaps.set(name, NvValue::Boolean));
        let mut request = Request { name: "redact", input: NvList::default() };
        request.input.set("bookname", NvValue::String(new.bookmark.clone()));
        request.input.set("snapnv", NvValue::NvList(snaps));
        let (new, ds_obj, guid) = (new.clone(), snapshot.ds_obj, snapshot.ds.guid);
        let done = self.request(permit, (SpaceCheck::Normal, 5), request, move |context| {
            let tx = &mut context.tx;
            let short = &new.bookmark;
            let (head, snap) = find_snapshot(tx, &new.snapshot)?;
            // The one that is held may have another name by now.
            if snap != ds_obj {
                return Err(DslWriteError::NotFound);
            }
            if let Some((_, known)) = bookmarks::find(tx, head, short)? {
                if known.redaction == 0 {
                    return Ok(Ok(Err(RedactRefused::Exists(short.clone()))));
                }
                let list = redaction::read(tx, known.redaction)?;
                let set = |guids: &[u64]| guids.iter().copied().collect::<BTreeSet<_>>();
                return Ok(Ok(match list.is_complete() {
                    // What changed since another snapshot is not what changed since this one.
                    _ if known.guid != guid => Err(RedactRefused::Mismatch),
                    _ if list.snaps.len() != guids.len() || set(&list.snaps) != set(&guids) => {
                        Err(RedactRefused::Mismatch)
                    }
                    true => Err(RedactRefused::Exists(short.clone())),
                    false => Ok(known.redaction),
                }));
            }
            let most = match redaction::most_snapshots(tx) {
                Err(DslWriteError::Unsupported(_)) => {
                    return Ok(Ok(Err(RedactRefused::NotEnabled)));
                }
                most => most?,
            };
            if guids.len() > most {
                return Ok(Ok(Err(RedactRefused::TooMany)));
            }
            let made = match bookmarks::create_redacted(tx, head, short, (snap, &guids)) {
                Err(DslWriteError::TooLong) => return Ok(Ok(Err(RedactRefused::TooLong))),
                made => made?,
            };
            let Made { txg, list } = made;
            let what =
                format!("name={short} creation_txg={txg} target_snap={snap} redact_obj={list}");
            let of = new.snapshot.split('@').next().unwrap_or_default();
            record(tx, "bookmark", &what, (of, head))?;
            Ok(Ok(Ok(list)))
        });
        done?
    }

    /// Takes note of a piece that was found, and writes those that wait each second (`update_redaction_list`).
    fn note_found(&self, making: &mut Making, found: Found) -> Result<()> {
        let clock = self.engine.clock();
        making.entries.extend(found.entry);
        making.next = found.next;
        let complete = found.next == RedactionList::COMPLETE;
        let due = clock.since(making.written) >= INTERVAL || making.entries.len() >= WAITING;
        if complete || due { self.write_found(making) } else { Ok(()) }
    }

    fn write_found(&self, making: &mut Making) -> Result<()> {
        let (clock, next) = (self.engine.clock(), making.next);
        let entries = std::mem::take(&mut making.entries);
        let (list, known) = (making.list, making.known.clone());
        let bytes = (entries.len() * cenote_format::redaction::ENTRY_SIZE) as u64;
        let blocks = 2 + bytes / redaction::BLOCK;
        let change = move |context: &mut crate::SyncContext<'_>| {
            Ok(Ok(redaction::append(&mut context.tx, list, &known, &entries, next)?))
        };
        // The list is there under whatever name: it is held.
        let limits = (SpaceCheck::Normal, blocks);
        making.known = self.task_beside_logs(making.permit, limits, change)?;
        making.written = clock.now();
        Ok(())
    }
}
