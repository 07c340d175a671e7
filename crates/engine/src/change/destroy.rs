//! Destroying (`dsl_destroy_head`, `dsl_destroy_snapshots_nvl`): what goes with what, and what that frees.
//!
//! Three questions come before a destroy. [`dependents`] lists what has to go first: descendants, snapshots, their
//! clones, and what depends on those. [`snapshots_of`] reads a list of snapshots such as `a,b%d`. [`reclaimed`]
//! sums up what only the chosen snapshots have, from the deadlists after them (`dsl_dataset_space_wouldfree`).
//!
//! Snapshots of one list go in one sync task, all or none. A hold or a clone is in the way; with `defer` the
//! snapshot is marked instead and goes with the last of them (`dsl_destroy_snapshot_sync_impl`). A file system or
//! volume goes alone, since nothing may depend on it, with its intent log. A snapshot that waited for this clone
//! alone goes along. Its blocks are freed in later groups (`dsl_process_async_destroys`). What is in use is
//! refused.

use super::policy::Operation;
use super::{ChangeError, Changes, Request, Result, find_head, record};
use crate::SpaceCheck;
use cenote_dmu::zap::Zap;
use cenote_dsl::write::{DslWriteError, Tx, destroy};
use cenote_dsl::{Dataset, DatasetKind, Dsl};
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::nvlist::NvValue;
use cenote_format::{ByteOrder, Bytes};
use cenote_pool::version;
use std::collections::HashSet;

/// Most datasets that are found to depend on one.
const MAX_DEPENDENTS: usize = 1 << 22;

/// Something that has to go before something else can.
#[derive(Clone, Debug)]
pub struct Dependent {
    /// What it is.
    pub dataset: Dataset,
    /// Whether it is a clone, or belongs to one, that is elsewhere in the pool.
    pub elsewhere: bool,
}

/// What depends on a dataset, in the order in which it has to go.
pub type Dependents = Vec<Dependent>;

/// What depends on a file system, volume or snapshot (`zfs_iter_dependents`): what is below it, snapshots, their clones and
/// what depends on those; in the order in which it has to go. The dataset itself is not among it.
///
/// # Errors
/// The pool's metadata cannot be read.
pub fn dependents(dsl: &Dsl, dataset: &Dataset) -> Result<Dependents> {
    enum Step {
        Visit(Dataset),
        Emit(Dataset),
    }
    let below = |name: &str| {
        name.strip_prefix(dataset.name.as_str()).is_some_and(|rest| rest.starts_with(['/', '@']))
    };
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    let mut todo = vec![Step::Visit(dataset.clone())];
    while let Some(step) = todo.pop() {
        match step {
            Step::Emit(d) if d.ds_obj == dataset.ds_obj => {}
            Step::Emit(d) => {
                let elsewhere = !below(&d.name);
                found.push(Dependent { dataset: d, elsewhere });
            }
            Step::Visit(d) => {
                if !seen.insert(d.ds_obj) || seen.len() > MAX_DEPENDENTS {
                    continue;
                }
                // The stack turns the order around.
                let first = match d.kind {
                    DatasetKind::Snapshot => dsl.clones(&d)?,
                    _ => dsl.children(&d)?.into_iter().chain(dsl.snapshots(&d)?).collect(),
                };
                todo.push(Step::Emit(d));
                todo.extend(first.into_iter().rev().map(Step::Visit));
            }
        }
    }
    Ok(found)
}

/// The snapshots of a file system or volume that a list such as `a,b%d,%e` names, in the order of
/// the list (`zfs_iter_snapspec`); those that are not there are left out.
///
/// # Errors
/// The pool's metadata cannot be read.
pub fn snapshots_of(dsl: &Dsl, head: &Dataset, list: &str) -> Result<Vec<Dataset>> {
    let all = dsl.snapshots(head)?;
    // The dataset says how names compare.
    let at = |name: &str| {
        let found = dsl.find(&format!("{}@{name}", head.name))?;
        Ok::<_, ChangeError>(found.and_then(|f| all.iter().position(|s| s.ds_obj == f.ds_obj)))
    };
    let mut chosen: Vec<Dataset> = Vec::new();
    for part in list.split(',') {
        let range = match part.split_once('%') {
            None => at(part)?.map(|i| i..=i),
            Some((first, last)) => {
                let first = if first.is_empty() { Some(0) } else { at(first)? };
                let end = all.len().checked_sub(1);
                let last = if last.is_empty() { end } else { at(last)? };
                first.zip(last).map(|(first, last)| first..=last)
            }
        };
        for snapshot in range.and_then(|r| all.get(r)).into_iter().flatten() {
            if !chosen.iter().any(|c| c.ds_obj == snapshot.ds_obj) {
                chosen.push(snapshot.clone());
            }
        }
    }
    Ok(chosen)
}

/// Bytes that are free once the snapshots `chosen` of `head` are destroyed (`zfs_ioc_space_snaps`).
///
/// # Errors
/// The pool's metadata cannot be read.
pub fn reclaimed(dsl: &Dsl, head: &Dataset, chosen: &[Dataset]) -> Result<u64> {
    let chosen: HashSet<u64> = chosen.iter().map(|s| s.ds_obj).collect();
    let all = dsl.snapshots(head)?;
    let mut bytes = 0u64;
    for run in all.chunk_by(|a, b| chosen.contains(&a.ds_obj) == chosen.contains(&b.ds_obj)) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        if !chosen.contains(&first.ds_obj) {
            continue;
        }
        // What died after the run was born in it, or within it, is what only the run has.
        let after = all.iter().skip_while(|s| s.ds_obj != last.ds_obj).nth(1);
        let after = after.map_or(&head.ds, |s| &s.ds);
        let deadlists = run.iter().skip(1).map(|s| &s.ds).chain([after]);
        for ds in deadlists {
            let list = dsl.deadlist_at(ds.deadlist)?;
            let range = dsl.deadlist_range(&list, first.ds.prev_snap_txg, u64::MAX)?;
            bytes = bytes.saturating_add(range.used);
        }
    }
    Ok(bytes)
}

/// A snapshot that could not be destroyed.
type Refused = (String, ChangeError);

impl Changes {
    /// Destroys snapshots (`zfs_ioc_destroy_snaps`, `lzc_destroy_snaps`): all or none of them. Those that are not there are no
    /// obstacle. With `defer`, those that are held or have clones go with the last of them.
    ///
    /// # Errors
    /// What is in the way, by name; with an empty name if it is not one of them.
    pub fn destroy_snapshots(
        &self,
        names: &[String],
        defer: bool,
    ) -> std::result::Result<(), Vec<Refused>> {
        if names.is_empty() {
            return Ok(());
        }
        if defer && self.engine.pool().version() < version::HOLDS {
            return Err(vec![(String::new(), ChangeError::PoolTooOld)]);
        }
        let mut request = Request::of_snapshots("destroy_snaps", names);
        if defer {
            request.input.set("defer", NvValue::Boolean);
        }
        let permit = self.permit(&Operation::Destroy { names });
        let permit = permit.map_err(|e| vec![(String::new(), e)])?;
        let names = names.to_vec();
        let done = self.request(permit, (SpaceCheck::Nothing, 0), request, move |context| {
            let (mut found, mut refused) = (Vec::new(), Vec::new());
            for name in names {
                let tx = &mut context.tx;
                let snapshot = match super::find_snapshot(tx, &name) {
                    Ok((_, snapshot)) => snapshot,
                    Err(DslWriteError::NotFound) => continue,
                    Err(e) => return Err(e),
                };
                match in_the_way(tx, &name, snapshot)?.filter(|_| !defer) {
                    Some(why) => refused.push((name, why)),
                    None if context.retire(snapshot).is_err() => {
                        refused.push((name, ChangeError::Busy));
                    }
                    None => {
                        destroy::check_snapshot(&mut context.tx, snapshot)?;
                        found.push((name, snapshot));
                    }
                }
            }
            if !refused.is_empty() {
                return Ok(Ok(Err(refused)));
            }
            let tx = &mut context.tx;
            let short = |name| str::rsplit_once(name, '@').map_or("", |(_, short)| short);
            let all: Vec<_> = found.iter().map(|(name, object)| (*object, short(name))).collect();
            let gone = destroy::destroy_snapshots(tx, &all, defer)?;
            for ((name, snapshot), gone) in found.iter().zip(gone) {
                let what = if gone { "destroy" } else { "defer_destroy" };
                record(tx, what, " ", (name, *snapshot))?;
            }
            Ok(Ok(Ok(())))
        });
        done.map_err(|e| vec![(String::new(), e)])?
    }

    /// Destroys a file system or volume that nothing depends on (`zfs_ioc_destroy`, `lzc_destroy`). What it has is freed in
    /// the background.
    ///
    /// # Errors
    /// It is not there; something depends on it.
    pub fn destroy(&self, name: &str) -> Result<()> {
        let name = name.to_string();
        let permit = self.permit(&Operation::Destroy { names: std::slice::from_ref(&name) })?;
        self.task(permit, (SpaceCheck::Nothing, 0), move |context| {
            let (_, head) = find_head(&mut context.tx, &name)?;
            let way = destroy::check_head(&mut context.tx, head)?;
            context.check_intent_log(head)?;
            context.retire(head)?;
            if let Some(origin) = destroy::goes_along(&mut context.tx, head)? {
                context.retire(origin)?;
            }
            // A log that was not claimed went when the pool was imported.
            context.destroy_intent_log(head, 0)?;
            let tx = &mut context.tx;
            let since = phys(tx, head)?.prev_snap_txg;
            let how = way.describe(since);
            destroy::destroy_checked(tx, head, way)?;
            record(tx, "destroy", &how, (&name, head))?;
            Ok(Ok(()))
        })?;
        self.engine.forget_keys_of_gone();
        Ok(())
    }
}

pub(super) fn phys(
    tx: &mut Tx<'_>,
    object: u64,
) -> std::result::Result<DslDatasetPhys, DslWriteError> {
    let bonus = tx.mos.dnode(object)?.bonus.clone();
    Ok(DslDatasetPhys::decode(&Bytes::new(&bonus, ByteOrder::Little, "DSL dataset"))?)
}

/// Why a snapshot cannot go at once.
fn in_the_way(
    tx: &mut Tx<'_>,
    name: &str,
    snapshot: u64,
) -> std::result::Result<Option<ChangeError>, DslWriteError> {
    let ds = phys(tx, snapshot)?;
    if ds.userrefs != 0 && !Zap::open(&tx.mos.view(ds.userrefs)?)?.entries()?.is_empty() {
        return Ok(Some(ChangeError::Held(name.into())));
    }
    Ok((ds.num_children > 1).then_some(ChangeError::Cloned))
}
