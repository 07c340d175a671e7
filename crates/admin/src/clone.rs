//! Clones, the file systems above what is made, and promotion (`zfs_clone`, `create_parents`, `zfs_promote`).

use crate::error::{Error, ErrorKind, Result, Why};
use crate::host::InUse;
use crate::kinds::Kinds;
use crate::session::Session;
use cenote_dsl::Dataset;
use cenote_engine::change::names::{Expected, check_new};
use cenote_engine::change::policy::Operation;
use cenote_engine::change::{ChangeError, Kind, NewClone, NewDataset, missing_ancestors};

/// What becomes of file systems that are missing above a new dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ancestors {
    /// The new dataset is refused.
    #[default]
    Refused,
    /// They are created and mounted (`-p`).
    Created,
    /// They are created, and are not to be mounted (`-pp`).
    Hidden,
}

impl Session<'_> {
    /// Creates and mounts the file systems that are missing above `name`. With `hidden` they are not to be mounted.
    ///
    /// # Errors
    /// One cannot be created; [`ErrorKind::Told`]: one is not mounted.
    pub fn create_ancestors(&mut self, name: &str, hidden: bool) -> Result<()> {
        let cannot =
            |name: &str, e: ChangeError| Error::doing(format_args!("cannot create '{name}'"), e);
        let missing = missing_ancestors(&self.pool(), name).map_err(|e| cannot(name, e))?;
        for ancestor in missing {
            let props = if hidden { vec![("canmount".into(), "off".into())] } else { Vec::new() };
            let new = NewDataset { name: ancestor.clone(), kind: Kind::Filesystem, props };
            let changes = self.changes().map_err(|e| cannot(&ancestor, e))?;
            changes.create(&new).map_err(|e| cannot(&ancestor, e))?;
            if !self.host.mounts().mount_new(&ancestor) {
                return Err(Error::told());
            }
        }
        Ok(())
    }

    /// Makes a clone of a snapshot. It is not mounted ([`Mounts::mount_new`](crate::Mounts::mount_new)). False: with missing
    /// ancestors created, a dataset of the name is no error, and nothing was done.
    ///
    /// # Errors
    /// The name cannot be or is taken, or there is nothing for it to be in; a property is not right; the snapshot is not there.
    pub fn clone_snapshot(
        &mut self,
        origin: &Dataset,
        name: &str,
        props: Vec<(String, String)>,
        ancestors: Ancestors,
    ) -> Result<bool> {
        let what = || format!("cannot create '{name}'");
        let cannot = |e: ChangeError| Error::doing(what(), e);
        check_new(name, Expected::HEAD).map_err(cannot)?;
        let changes = self.changes().map_err(cannot)?;
        if ancestors != Ancestors::Refused {
            // As OpenZFS, which is content with what is there.
            let there = self.pool().dsl().find(name).map_err(|e| Error::doing(what(), e))?;
            if there.is_some() {
                return Ok(false);
            }
            self.create_ancestors(name, ancestors == Ancestors::Hidden)?;
        }
        let new = NewClone { origin: origin.name.clone(), name: name.into(), props };
        changes.clone_snapshot(&new).map_err(cannot)?;
        Ok(true)
    }

    /// Makes a clone independent of its origin: the snapshots up to that one belong to the clone then.
    ///
    /// # Errors
    /// It is no clone; a snapshot is in use, or its name is taken in the clone; there is no room.
    pub fn promote(&mut self, name: &str) -> Result<()> {
        let dataset = self.dataset(name, Kinds::HEAD)?;
        self.promote_dataset(&dataset)
    }

    /// As [`Session::promote`].
    ///
    /// # Errors
    /// As [`Session::promote`].
    pub fn promote_dataset(&mut self, dataset: &Dataset) -> Result<()> {
        let name = &dataset.name;
        let what = || format!("cannot promote '{name}'");
        let invalid = |why: &str| Error::doing(what(), Why(ErrorKind::Invalid, why));
        let cannot = |e: ChangeError| Error::doing(what(), e);
        let unreadable = |e: cenote_dmu::Error| Error::doing(what(), e);
        let changes = self.changes().map_err(cannot)?;
        // What is between `%` is a receive's.
        if name.contains('%') {
            return Err(invalid("invalid character % in name"));
        }
        let pool = self.pool();
        let dsl = pool.dsl();
        let origin = dsl.get(dataset, "origin").map_err(unreadable)?;
        let Some(origin) = origin.map(|v| v.exact).filter(|origin| !origin.is_empty()) else {
            return Err(invalid("not a cloned filesystem"));
        };
        let operation = Operation::Promote { name, origin: Some(&origin) };
        changes.permit(&operation).map_err(cannot)?;
        // The snapshots get other names, which no operation may be in the midst of using.
        let old = origin.split('@').next().unwrap_or_default();
        let head = dsl.find(old).map_err(unreadable)?.ok_or_else(|| invalid("no origin"))?;
        let snapshots = dsl.snapshots(&head).map_err(unreadable)?;
        let until = snapshots.iter().position(|s| s.name == origin).map_or(0, |i| i + 1);
        let held = |s: &&Dataset| self.engine().is_some_and(|engine| engine.is_held(s.ds_obj));
        if let Some(held) = snapshots.iter().take(until).find(held) {
            return Err(self.cannot(what(), &held.name, ChangeError::Busy));
        }
        let moved: Vec<String> = snapshots.into_iter().take(until).map(|s| s.name).collect();
        if let Err(busy) = self.host.mounts().close_snapshots(&moved) {
            let used = busy.into_iter().next();
            let used = used.unwrap_or_else(|| InUse { name: name.into(), by: None });
            return Err(self.busy(what(), &used));
        }
        match changes.promote(name) {
            Ok(()) => {
                let there = moved.iter().filter_map(|s| s.split_once('@'));
                let there: Vec<String> =
                    there.map(|(_, short)| format!("{name}@{short}")).collect();
                self.host.mounts().snapshots_changed(&[moved, there].concat());
                Ok(())
            }
            Err((taken, e)) => {
                self.host.mounts().snapshots_stay(&moved);
                Err(match taken {
                    Some(taken) => {
                        let why = format!("conflicting snapshot '{taken}' from parent '{origin}'");
                        Error::doing(what(), Why(ErrorKind::Exists, why))
                    }
                    None => cannot(e),
                })
            }
        }
    }
}
