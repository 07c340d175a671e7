//! A file system or volume goes back to a snapshot (`zfs_rollback`).
//!
//! What is later than the snapshot goes first: clones of later snapshots with what depends on them, the snapshots, the
//! bookmarks. A file system that is mounted gets the other contents below its mounts; where that cannot be, it is
//! unmounted for it.

use crate::error::{Error, ErrorKind, Result};
use crate::host::Unmount;
use crate::kinds::Kinds;
use crate::session::Session;
use cenote_dsl::Dataset;
use cenote_engine::change::policy::Operation;
use cenote_engine::change::{ChangeError, Changes, Later, dependents};

/// How to roll back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rollback {
    /// Later snapshots and bookmarks are destroyed (`-r`).
    pub recurse: bool,
    /// So are clones of later snapshots (`-R`).
    pub clones: bool,
    /// Clones that are in use are unmounted by force (`-f`).
    pub force: bool,
}

/// What goes before a rollback.
struct Newer {
    later: Later,
    /// Clones of later snapshots, and what depends on them, in the order in which it has to go.
    depending: Vec<Dataset>,
}

impl Session<'_> {
    /// Gives the dataset of the snapshot `name` the contents of that snapshot.
    ///
    /// # Errors
    /// There are later snapshots, bookmarks or clones of them that do not go as well ([`ErrorKind::Dependents`]); it is in use;
    /// [`ErrorKind::Told`].
    pub fn rollback(&mut self, name: &str, how: Rollback) -> Result<()> {
        let snapshot = self.dataset(name, Kinds::SNAPSHOT)?;
        let (name, head) = (&snapshot.name, snapshot.head_name());
        let what = || format!("cannot rollback '{head}'");
        let cannot = |e: ChangeError| Error::doing(what(), e);
        let changes = self.changes().map_err(cannot)?;
        changes.permit(&Operation::Rollback { snapshot: name }).map_err(cannot)?;
        if changes.engine().suspended().is_some() {
            return Err(cannot(ChangeError::Suspended));
        }
        let newer = self.newer(&changes, &snapshot, how)?;
        let found = self.pool().dsl().find(head).map_err(|e| Error::doing(what(), e))?;
        let id = found.map_or(0, |d| d.ds_obj);
        if !self.host.mounts().can_exchange(id) {
            // First what can be refused without a loss: the unmount.
            if let Err(why) = self.host.mounts().take_away(&[id], Unmount::default()) {
                self.failed(Error::new(ErrorKind::Busy, why))?;
                return Err(Error::told());
            }
            let done = match self.clear(&changes, newer, how.force, &cannot) {
                Ok(true) => changes.rollback(name).map_err(|e| self.cannot(what(), head, e)),
                Ok(false) => Err(Error::told()),
                Err(e) => Err(e),
            };
            let back = self.host.mounts().bring_back(false);
            done?;
            return if back { Ok(()) } else { Err(Error::told()) };
        }
        if !self.clear(&changes, newer, how.force, &cannot)? {
            return Err(Error::told());
        }
        let mut done = None;
        let exchanged = self.host.mounts().exchange(id, Some(snapshot.ds_obj), &mut || {
            done.insert(changes.rollback(name)).is_ok()
        });
        let restored = self.host.mounts().restore();
        exchanged.map_err(|why| Error::new(ErrorKind::Busy, why))?;
        // The host has to make the change.
        done.unwrap_or(Err(ChangeError::Busy)).map_err(|e| self.cannot(what(), head, e))?;
        if restored { Ok(()) } else { Err(Error::told()) }
    }
    /// What has to go before a rollback.
    fn newer(&self, changes: &Changes, snapshot: &Dataset, how: Rollback) -> Result<Newer> {
        let name = &snapshot.name;
        let cannot = |e: ChangeError| {
            Error::doing(format_args!("cannot rollback '{}'", snapshot.head_name()), e)
        };
        let later = changes.later_than(name).map_err(cannot)?;
        let in_the_way = later.snapshots.iter().chain(&later.bookmarks);
        let in_the_way: Vec<String> = in_the_way.map(|d| d.name.clone()).collect();
        if !how.recurse && !how.clones && !in_the_way.is_empty() {
            let text = format!(
                "cannot rollback to '{name}': more recent snapshots or bookmarks exist\n\
                 use '-r' to force deletion of the following snapshots and bookmarks:\n{}",
                in_the_way.join("\n")
            );
            return Err(Error::dependents(text, in_the_way));
        }
        let (pool, mut depending) = (self.pool(), Vec::new());
        for snapshot in &later.snapshots {
            let found = dependents(pool.dsl(), snapshot).map_err(cannot)?;
            depending.extend(found.into_iter().map(|d| d.dataset));
        }
        if !how.clones && !depending.is_empty() {
            let names: Vec<String> = depending.iter().map(|d| d.name.clone()).collect();
            let text = format!(
                "cannot rollback to '{name}': clones of previous snapshots exist\n\
                 use '-R' to force deletion of the following clones and dependents:\n{}",
                names.join("\n")
            );
            return Err(Error::dependents(text, names));
        }
        Ok(Newer { later, depending })
    }

    /// Destroys what has to go. False: something stays, as was told.
    fn clear(
        &mut self,
        changes: &Changes,
        newer: Newer,
        force: bool,
        cannot: &dyn Fn(ChangeError) -> Error,
    ) -> Result<bool> {
        let Newer { later, depending } = newer;
        let mut batch = Vec::new();
        if !self.destroy_in_order(depending, &mut batch, force)? {
            return Ok(false);
        }
        batch.extend(later.snapshots.into_iter().map(|s| s.name));
        if !batch.is_empty() && !self.destroy_batch(&mut batch, false)? {
            return Ok(false);
        }
        let bookmarks: Vec<String> = later.bookmarks.into_iter().map(|b| b.name).collect();
        if !bookmarks.is_empty() {
            changes.destroy_bookmarks(&bookmarks).map_err(cannot)?;
        }
        Ok(true)
    }
}
