//! Datasets, ranges of snapshots and bookmarks are destroyed, with what depends on them as far as that is asked for
//! (`zfs_destroy`, `zfs_destroy_snaps_nvl`).
//!
//! What depends on a dataset goes before it: a clone before the snapshot that it is of, a snapshot before the dataset that it
//! is of, and a child before its parent. Snapshots that may go together go together, or all of them stay; each file system or volume is
//! a change of its own. What fails is told ([`Event::Failed`]), and what does not need it goes on.

use crate::error::{Error, ErrorKind, Result, Why};
use crate::host::Event;
use crate::kinds::{Kinds, family};
use crate::session::Session;
use cenote_dsl::{Dataset, DatasetKind};
use cenote_engine::change::policy::Operation;
use cenote_engine::change::{ChangeError, Dependent, dependents, reclaimed, snapshots_of};

/// How to destroy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Destroy {
    /// Nothing is changed; what would be is told (`-n`).
    pub dry_run: bool,
    /// Snapshots that are held or have clones go with the last of these (`-d`).
    pub defer: bool,
    /// What is in use is taken away (`-f`).
    pub force: bool,
    /// With all that is below, and all snapshots (`-r`).
    pub recurse: bool,
    /// With clones, wherever they are, and all that depends on them (`-R`).
    pub clones: bool,
    /// What becomes free is reckoned and told (`-v`).
    pub reckon: bool,
}

impl Destroy {
    /// Whether a bookmark can be destroyed in this way.
    ///
    /// # Errors
    /// It cannot.
    pub fn check_bookmark(&self) -> Result<()> {
        let refused = |why| Err(Error::new(ErrorKind::Invalid, why));
        match self {
            Destroy { dry_run: true, .. } => refused("dryrun is not supported with bookmark"),
            Destroy { defer: true, .. } => refused("defer destroy is not supported with bookmark"),
            Destroy { recurse: true, .. } | Destroy { clones: true, .. } => {
                refused("recursive is not supported with bookmark")
            }
            _ => Ok(()),
        }
    }
}

/// Whether it is the root file system of the pool.
fn is_pool(d: &Dataset) -> bool {
    !d.name.contains(['/', '@', '#'])
}

/// What it is that a dataset is not there any more when it is to be destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// As good as destroyed: it was only in the way.
    Passes,
    /// A failure: it was asked for.
    Fails,
}

fn names(all: &[Dependent]) -> Vec<String> {
    all.iter().map(|d| d.dataset.name.clone()).collect()
}

impl Session<'_> {
    /// Destroys the dataset, the snapshots (`tank/a@one,two%three`) or the bookmark of this name.
    ///
    /// # Errors
    /// It is not there; something depends on it and does not go as well ([`ErrorKind::Dependents`]); it is in use or held;
    /// [`ErrorKind::Told`].
    pub fn destroy(&mut self, name: &str, how: Destroy) -> Result<()> {
        if let Some((head, list)) = name.split_once('@') {
            let head = self.dataset(head, Kinds::HEAD)?;
            return self.destroy_snapshots(&head, list, how);
        }
        if name.contains('#') {
            how.check_bookmark()?;
            return self.destroy_bookmark(name);
        }
        // What is deferred is a snapshot.
        let kinds = if how.defer { Kinds::SNAPSHOT } else { Kinds::DATASET };
        let dataset = self.dataset(name, kinds)?;
        self.destroy_dataset(&dataset, how)
    }

    /// Destroys a bookmark.
    ///
    /// # Errors
    /// It is not there; the pool's metadata cannot be read; the pool cannot be changed.
    pub fn destroy_bookmark(&mut self, name: &str) -> Result<()> {
        let bookmark = self.dataset(name, Kinds::BOOKMARK).map_err(|e| match e.kind() {
            ErrorKind::NotFound | ErrorKind::Invalid => {
                let why = format!("bookmark '{name}' does not exist.");
                Error::new(ErrorKind::NotFound, why)
            }
            _ => e,
        })?;
        let cannot = |e: ChangeError| Error::doing("cannot destroy bookmark", e);
        let changes = self.changes().map_err(cannot)?;
        changes.destroy_bookmarks(&[bookmark.name]).map_err(cannot)
    }

    /// Destroys a file system, volume or snapshot with what depends on it, as far as that is asked for; or a bookmark. With
    /// [`Destroy::recurse`] what cannot be destroyed is told, and the rest goes nevertheless; the root file system of a pool
    /// stays.
    ///
    /// # Errors
    /// As [`Session::destroy`]. Another dataset has got the name since the target was looked up.
    pub fn destroy_dataset(&mut self, target: &Dataset, how: Destroy) -> Result<()> {
        let name = &target.name;
        let what = || format!("cannot destroy '{name}'");
        // Changes go by names.
        let there = self.pool().dsl().find(name).map_err(|e| Error::doing(what(), e))?;
        if there.is_none_or(|there| there.guid() != target.guid()) {
            return Err(Error::doing(what(), ChangeError::NotFound));
        }
        if target.kind == DatasetKind::Bookmark {
            how.check_bookmark()?;
            return self.destroy_bookmark(name);
        }
        if is_pool(target) && !how.recurse {
            let why = format!(
                "operation does not apply to pools\n\
                 use 'zfs destroy -r {name}' to destroy all datasets in the pool\n\
                 use 'zpool destroy {name}' to destroy the pool itself"
            );
            return Err(Error::doing(what(), Why(ErrorKind::Invalid, why)));
        }
        let pool = self.pool();
        let all = dependents(pool.dsl(), target).map_err(|e| Error::doing(what(), e))?;
        if !how.clones {
            check_dependents(target, &all, how.recurse)?;
        }
        if !how.dry_run {
            self.changes().map_err(|e| Error::doing(what(), e))?;
        }
        let order = all.into_iter().map(|d| d.dataset).chain([target.clone()]);
        let (mut good, mut batch) = (true, Vec::new());
        for dataset in order {
            self.tell(Event::Destroying(&dataset.name))?;
            if how.dry_run || is_pool(&dataset) {
                continue;
            }
            if dataset.kind == DatasetKind::Snapshot {
                batch.push(dataset.name);
                continue;
            }
            // Of what depends on the target something may have gone meanwhile.
            let missing = if dataset.name == *name { Missing::Fails } else { Missing::Passes };
            // A clone goes before the snapshot that it is of, which goes before what has it.
            let done = self.destroy_batch(&mut batch, false)?
                && self.destroy_one(&dataset, how.force, missing)?;
            good &= done;
            if !done && !how.recurse {
                return Err(Error::told());
            }
        }
        good &= how.dry_run || self.destroy_batch(&mut batch, how.defer)?;
        if good { Ok(()) } else { Err(Error::told()) }
    }

    /// Destroys one file system or volume. False: it was not destroyed, as was told.
    pub(crate) fn destroy_one(
        &mut self,
        dataset: &Dataset,
        force: bool,
        missing: Missing,
    ) -> Result<bool> {
        let name = &dataset.name;
        let what = || format!("cannot destroy '{name}'");
        let destroyed = self.changes().and_then(|changes| {
            changes.permit(&Operation::Destroy { names: std::slice::from_ref(name) })?;
            Ok(changes)
        });
        let changes = match destroyed {
            Ok(changes) => changes,
            Err(e) => {
                self.failed(Error::doing(what(), e))?;
                return Ok(false);
            }
        };
        if let Err(why) = self.host.mounts().give_up(name, force) {
            self.failed(Error::new(ErrorKind::Busy, why))?;
            return Ok(false);
        }
        match changes.destroy(name) {
            Ok(()) => Ok(true),
            Err(ChangeError::NotFound) if missing == Missing::Passes => Ok(true),
            Err(e) => {
                self.failed(self.cannot(what(), name, e))?;
                Ok(false)
            }
        }
    }

    /// Destroys snapshots, all or none. False: they stay, as was told.
    pub(crate) fn destroy_batch(&mut self, batch: &mut Vec<String>, defer: bool) -> Result<bool> {
        let names = std::mem::take(batch);
        if names.is_empty() {
            return Ok(true);
        }
        let all = |e: ChangeError| Error::doing("cannot destroy snapshots", e);
        let permitted = self.changes().and_then(|changes| {
            changes.permit(&Operation::Destroy { names: &names })?;
            Ok(changes)
        });
        let changes = match permitted {
            Ok(changes) => changes,
            Err(e) => {
                self.failed(all(e))?;
                return Ok(false);
            }
        };
        if let Err(busy) = self.host.mounts().close_snapshots(&names) {
            for used in busy {
                self.failed(self.busy(format!("cannot destroy snapshot {}", used.name), &used))?;
            }
            return Ok(false);
        }
        let Err(refused) = changes.destroy_snapshots(&names, defer) else {
            self.host.mounts().snapshots_changed(&names);
            return Ok(true);
        };
        self.host.mounts().snapshots_stay(&names);
        for (name, e) in refused {
            let one = |e| self.cannot(format!("cannot destroy snapshot {name}"), &name, e);
            self.failed(if name.is_empty() { all(e) } else { one(e) })?;
        }
        Ok(false)
    }

    /// Destroys datasets in this order: those that others depend on come last. Snapshots in a row go together; those at the
    /// end are left in `batch`. False: something stays, as was told.
    pub(crate) fn destroy_in_order(
        &mut self,
        order: Vec<Dataset>,
        batch: &mut Vec<String>,
        force: bool,
    ) -> Result<bool> {
        for dataset in order {
            if dataset.kind == DatasetKind::Snapshot {
                batch.push(dataset.name);
            } else if !self.destroy_batch(batch, false)?
                || !self.destroy_one(&dataset, force, Missing::Passes)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Destroys the snapshots of a file system or volume that `list` (`a,b%d`) names.
    ///
    /// # Errors
    /// As [`Session::destroy`]. No snapshot has one of the names.
    pub fn destroy_snapshots(&mut self, head: &Dataset, list: &str, how: Destroy) -> Result<()> {
        let name = &head.name;
        let what = || format!("cannot destroy '{name}'");
        let pool = self.pool();
        let chosen = self.choose(head, list, how)?;
        if chosen.is_empty() {
            let why = "could not find any snapshots to destroy; check snapshot names.";
            return Err(Error::new(ErrorKind::NotFound, why));
        }
        if how.dry_run {
            return Ok(());
        }
        self.changes().map_err(|e| Error::doing(what(), e))?;
        let mut batch = Vec::new();
        for snapshot in chosen.iter().filter(|_| how.clones) {
            let found = dependents(pool.dsl(), snapshot).map_err(|e| Error::doing(what(), e))?;
            for dependent in found {
                self.tell(Event::Destroying(&dependent.dataset.name))?;
                if !self.destroy_in_order(vec![dependent.dataset], &mut batch, how.force)? {
                    return Err(Error::told());
                }
            }
        }
        if !self.destroy_batch(&mut batch, false)? {
            return Err(Error::told());
        }
        batch.extend(chosen.into_iter().map(|s| s.name));
        if self.destroy_batch(&mut batch, how.defer)? { Ok(()) } else { Err(Error::told()) }
    }

    /// The snapshots that a list names, told if that is asked for. Clones are in the way unless they go as well.
    fn choose(&mut self, head: &Dataset, list: &str, how: Destroy) -> Result<Vec<Dataset>> {
        let pool = self.pool();
        let dsl = pool.dsl();
        let what = || format!("cannot destroy '{}'", head.name);
        let cannot = |e: ChangeError| Error::doing(what(), e);
        let unreadable = |e: cenote_dmu::Error| Error::doing(what(), e);
        let heads = match how.recurse {
            true => family(dsl, head).map_err(unreadable)?,
            false => vec![head.clone()],
        };
        let (mut chosen, mut bytes) = (Vec::new(), 0u64);
        for head in &heads {
            let found = snapshots_of(dsl, head, list).map_err(cannot)?;
            if !how.clones && !how.defer {
                for snapshot in &found {
                    check_clones(snapshot, &dependents(dsl, snapshot).map_err(cannot)?)?;
                }
            }
            if how.reckon {
                // In order of creation, whatever the list's is.
                let all = dsl.snapshots(head).map_err(unreadable)?;
                for snapshot in all.iter().filter(|s| found.iter().any(|f| f.ds_obj == s.ds_obj)) {
                    self.tell(Event::Destroying(&snapshot.name))?;
                }
                let reclaimed = reclaimed(dsl, head, &found).map_err(cannot)?;
                bytes = bytes.saturating_add(reclaimed);
            }
            chosen.extend(found);
        }
        if how.reckon && !chosen.is_empty() {
            self.tell(Event::Reclaims(bytes))?;
        }
        Ok(chosen)
    }
}

/// Whether something depends on a file system or volume that does not go with it.
fn check_dependents(target: &Dataset, all: &[Dependent], recurse: bool) -> Result<()> {
    let (name, kind) = (&target.name, target.kind.name());
    let in_the_way = |elsewhere| {
        let found = all.iter().filter(move |d| d.elsewhere == elsewhere);
        found.map(|d| d.dataset.name.clone()).collect::<Vec<_>>()
    };
    let (below, elsewhere) = (in_the_way(false), in_the_way(true));
    if !recurse && !below.is_empty() {
        let text = format!(
            "cannot destroy '{name}': {kind} has children\n\
             use '-r' to destroy the following datasets:\n{}",
            below.join("\n")
        );
        return Err(Error::dependents(text, below));
    }
    if recurse && !elsewhere.is_empty() {
        let text = format!(
            "cannot destroy '{name}': {kind} has dependent clones\n\
             use '-R' to destroy the following datasets:\n{}",
            elsewhere.join("\n")
        );
        return Err(Error::dependents(text, elsewhere));
    }
    Ok(())
}

fn check_clones(snapshot: &Dataset, clones: &[Dependent]) -> Result<()> {
    if clones.is_empty() {
        return Ok(());
    }
    let names = names(clones);
    let text = format!(
        "cannot destroy '{}': snapshot has dependent clones\n\
         use '-R' to destroy the following datasets:\n{}",
        snapshot.name,
        names.join("\n")
    );
    Err(Error::dependents(text, names))
}
