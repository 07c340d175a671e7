//! Taking and renaming snapshots (`dsl_dataset_snapshot`, `dsl_dataset_rename_snapshot`).
//!
//! The snapshots of one request are taken in one sync task. So they are of the same transaction group, and all of
//! them are there or none is. A dataset has at most one snapshot of each group (`dsl_dataset_snapshot_check_impl`):
//! where it has one of the group already, the whole request is tried again in a later one.
//!
//! `snapshot_limit` is checked at every level above before the first is taken, for all together. A dataset whose
//! intent log is being replayed is busy, since its state is not yet one that a user has seen.
//!
//! Renaming with `recursive` lists the datasets that have a snapshot of the name beforehand. The task skips those
//! that have lost it since, and refuses all if one has the new name.

use super::names::{Expected, check_new};
use super::policy::Operation;
use super::props::{self, On, Setting};
use super::{ChangeError, Changes, Request, Result, dirs, find_head, record, snaps};
use crate::SpaceCheck;
use crate::datasets::Datasets;
use cenote_dsl::DatasetKind;
use cenote_dsl::write::props::{Target, set};
use cenote_dsl::write::{DslWriteError, Tx, limits};
use cenote_format::nvlist::NvValue;
use cenote_pool::version;
use std::collections::{HashMap, HashSet};

/// Times that it is tried again, when there is a snapshot from the same transaction group already.
const TRIES: usize = 16;

/// Snapshots to be taken at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Full names, `pool/fs@snapshot`, all in the same pool and no two of the same dataset.
    pub names: Vec<String>,
    /// User properties for all of them.
    pub props: Vec<(String, String)>,
}

impl Changes {
    /// Takes snapshots (`zfs_ioc_snapshot`): all or none of them, all of the same moment.
    ///
    /// # Errors
    /// With the name of the snapshot that it is about, where it is about one.
    pub fn snapshot(
        &self,
        new: &NewSnapshot,
    ) -> std::result::Result<(), (Option<String>, ChangeError)> {
        for name in &new.names {
            check_new(name, Expected::SNAPSHOT).map_err(|e| (Some(name.clone()), e))?;
        }
        let settings = props::check(&new.props, On::New(DatasetKind::Snapshot));
        let settings = settings.map_err(|e| (None, e))?;
        if !settings.is_empty() && self.engine.pool().version() < version::SNAPSHOT_PROPERTIES {
            return Err((None, ChangeError::NeedsUpgrade));
        }
        let heads: HashSet<_> = new.names.iter().map(|n| n.split('@').next()).collect();
        if heads.len() < new.names.len() {
            let why = ChangeError::Crosses("multiple snapshots of same fs not allowed");
            return Err((None, why));
        }
        let permit = self.permit(&Operation::Snapshot { names: &new.names });
        let permit = permit.map_err(|e| (None, e))?;
        for _ in 0..TRIES {
            let (names, settings) = (new.names.clone(), settings.clone());
            let added = 3 * (names.len() as u64);
            let mut request = Request::of_snapshots("snapshot", &names);
            request.input.set("props", NvValue::NvList(Setting::list(&settings)));
            let done = self.request(permit, (SpaceCheck::Normal, added), request, move |context| {
                let datasets = context.datasets;
                let tx = &mut context.tx;
                if let Some(level) = over_limit(tx, &names)? {
                    return Ok(Ok(Err((false, level, ChangeError::NoSpace))));
                }
                let mut taken = Vec::new();
                for name in &names {
                    match take(tx, name, datasets) {
                        Ok(object) => taken.push((name, object)),
                        Err(DslWriteError::Fatal(e)) => return Err(e.into()),
                        Err(e) => {
                            let again = matches!(e, DslWriteError::Again);
                            return Ok(Ok(Err((again, name.clone(), e.into()))));
                        }
                    }
                }
                for (name, object) in taken {
                    for s in &settings {
                        set(tx, Target::Snapshot(object), &s.name, &s.value)?;
                    }
                    record(tx, "snapshot", " ", (name, object))?;
                }
                Ok(Ok(Ok(())))
            });
            match done.map_err(|e| (None, e))? {
                Ok(()) => return Ok(()),
                Err((true, ..)) => {}
                Err((false, name, e)) => return Err((Some(name), e)),
            }
        }
        Err((None, ChangeError::Busy))
    }

    /// Renames a snapshot; with `recursive` snapshots of that name below it, too.
    ///
    /// # Errors
    /// There is no such snapshot, or one of the new name. With the name that it is about.
    pub fn rename_snapshot(
        &self,
        name: &str,
        to: &str,
        recursive: bool,
    ) -> std::result::Result<(), (String, ChangeError)> {
        let about = |e: ChangeError| (name.to_string(), e);
        let (head, from) = name.split_once('@').ok_or_else(|| about(ChangeError::NotFound))?;
        check_new(&format!("{head}@{to}"), Expected::SNAPSHOT).map_err(about)?;
        let mut heads = vec![head.to_string()];
        if recursive {
            heads = self.heads_with(head, from).map_err(about)?;
        }
        let mut permit = None;
        for head in &heads {
            let (from, to) = (format!("{head}@{from}"), format!("{head}@{to}"));
            let allowed = self.permit(&Operation::Rename { from: &from, to: &to });
            permit = Some(allowed.map_err(|e| (from, e))?);
        }
        let permit = permit.ok_or_else(|| about(ChangeError::NotFound))?;
        let (from, to) = (from.to_string(), to.to_string());
        let done = self.task(permit, (SpaceCheck::Reserved, 1), move |context| {
            let tx = &mut context.tx;
            let mut found = Vec::new();
            for head in heads {
                let (_, object) = find_head(tx, &head)?;
                let there = |tx: &mut _, name: &str| snaps::find_snapshot(tx, object, name);
                if there(tx, &to)?.is_some() {
                    return Ok(Ok(Err((format!("{head}@{from}"), ChangeError::Exists))));
                }
                match there(tx, &from)? {
                    Some(snapshot) => found.push((head, object, snapshot)),
                    None if recursive => {}
                    None => return Ok(Ok(Err((format!("{head}@{from}"), ChangeError::NotFound)))),
                }
            }
            for (head, object, snapshot) in &found {
                let full = format!("{head}@{from}");
                record(tx, "rename", &format!("-> @{to}"), (&full, *snapshot))?;
                snaps::rename_snapshot(tx, *object, &from, &to)?;
            }
            Ok(Ok(Ok(())))
        });
        done.map_err(about)?
    }

    /// The dataset and those below it that have a snapshot of this name.
    fn heads_with(&self, head: &str, snapshot: &str) -> Result<Vec<String>> {
        let view = self.engine.pool();
        let dsl = view.dsl();
        let mut todo = vec![dsl.find(head)?.ok_or(ChangeError::NotFound)?];
        let mut heads = Vec::new();
        while let Some(dataset) = todo.pop() {
            todo.extend(dsl.children(&dataset)?);
            if dsl.find(&format!("{}@{snapshot}", dataset.name))?.is_some() {
                heads.push(dataset.name);
            }
        }
        heads.sort();
        Ok(heads)
    }
}

/// The file system at which all these snapshots together would exceed `snapshot_limit`, its own or that of one
/// above it (`dsl_dataset_snapshot_check`).
fn over_limit(
    tx: &mut Tx<'_>,
    names: &[String],
) -> std::result::Result<Option<String>, DslWriteError> {
    let (mut levels, mut added): (Vec<&str>, HashMap<&str, u64>) = (Vec::new(), HashMap::new());
    for name in names {
        let mut at = name.split('@').next();
        while let Some(level) = at {
            let count = added.entry(level).or_insert_with(|| {
                levels.push(level);
                0
            });
            *count += 1;
            at = level.rsplit_once('/').map(|(above, _)| above);
        }
    }
    for level in levels {
        let Some(dir) = dirs::find_dir(tx, level)? else { continue };
        let count = added.get(level).copied().unwrap_or(0);
        match limits::check(tx, dir, limits::SNAPSHOTS, count, None) {
            Err(DslWriteError::Quota) => return Ok(Some(level.to_string())),
            checked => checked?,
        }
    }
    Ok(None)
}

fn take(
    tx: &mut Tx<'_>,
    name: &str,
    datasets: Option<&Datasets>,
) -> std::result::Result<u64, DslWriteError> {
    let (head, short) = name.split_once('@').ok_or(DslWriteError::NotFound)?;
    let (_, head) = find_head(tx, head)?;
    // Its state is of no moment that anybody knows.
    if datasets.is_some_and(|datasets| datasets.is_replaying(head)) {
        return Err(DslWriteError::Busy);
    }
    snaps::snapshot(tx, head, short)
}
