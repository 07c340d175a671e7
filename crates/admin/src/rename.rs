//! Datasets and snapshots get other names (`zfs_rename`).

use crate::error::{Error, ErrorKind, Result, Why};
use crate::host::Unmount;
use crate::kinds::family;
use crate::session::Session;
use cenote_dsl::{Dataset, DatasetKind};
use cenote_engine::change::ChangeError;
use cenote_engine::change::names::{Expected, check_new};
use cenote_engine::change::policy::Operation;

/// How to rename.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rename {
    /// Snapshots of the same name below the dataset as well (`-r`).
    pub recurse: bool,
    /// What is mounted stays where it is (`-u`).
    pub stay: bool,
    /// What is in use is unmounted as well (`-f`).
    pub force: bool,
}

impl Session<'_> {
    /// Gives a dataset or a snapshot the name `to`: a full one; for a snapshot, the short one may do.
    ///
    /// # Errors
    /// The name cannot be or is taken, or there is nothing for it to be in; it is in use. [`ErrorKind::Told`]: it is
    /// in use and stays what it is, or is renamed and not mounted.
    pub fn rename(&mut self, dataset: &Dataset, to: &str, how: Rename) -> Result<()> {
        if dataset.kind != DatasetKind::Snapshot {
            return self.rename_head(dataset, to, how);
        }
        let head = dataset.head_name();
        let short = match to.split_once('@') {
            None => to,
            Some((other, short)) if other.is_empty() || other == head => short,
            Some(_) => {
                let why = Why(ErrorKind::Invalid, "snapshots must be part of same dataset");
                return Err(Error::doing(format_args!("cannot rename to '{to}'"), why));
            }
        };
        let full = format!("{head}@{short}");
        check_new(&full, Expected::SNAPSHOT)
            .map_err(|e| Error::doing(format_args!("cannot rename to '{full}'"), e))?;
        self.rename_snapshot(&dataset.name, short, how.recurse)
    }

    /// Gives a snapshot another short name, with `recurse` the snapshots of the same name below its dataset as well.
    ///
    /// # Errors
    /// It is not there; the name is taken.
    pub fn rename_snapshot(&mut self, from: &str, short: &str, recurse: bool) -> Result<()> {
        let (head, old) = from.split_once('@').unwrap_or((from, ""));
        let what = |name: &str| format!("cannot rename '{name}'");
        let changes = self.changes().map_err(|e| Error::doing(what(from), e))?;
        match changes.rename_snapshot(from, short, recurse) {
            Ok(()) => {
                self.host.mounts().snapshot_renamed(head, recurse, old, short);
                Ok(())
            }
            Err((name, ChangeError::Exists)) if recurse => {
                let why = "a child dataset already has a snapshot with the new name";
                Err(Error::doing(what(&name), Why(ErrorKind::Exists, why)))
            }
            Err((name, e)) => Err(Error::doing(what(&name), e)),
        }
    }

    /// Gives a file system or volume another name, with all that is below it.
    ///
    /// # Errors
    /// As [`Session::rename`].
    pub fn rename_head(&mut self, dataset: &Dataset, to: &str, how: Rename) -> Result<()> {
        let from = &dataset.name;
        let what = || format!("cannot rename '{from}'");
        if !to.contains('/') && check_new(to, Expected::HEAD).is_ok() {
            let why = Why(ErrorKind::Invalid, "missing dataset name");
            return Err(Error::doing(format_args!("cannot create '{to}'"), why));
        }
        let changes = self.changes().map_err(|e| Error::doing(what(), e))?;
        changes.check_rename(from, to).map_err(|e| match e {
            ChangeError::NoParent | ChangeError::ParentKind | ChangeError::NoPool(_) => {
                Error::doing(format_args!("cannot create '{to}'"), e)
            }
            e => Error::doing(format_args!("cannot rename to '{to}'"), e),
        })?;
        let unreadable = |e: cenote_dmu::Error| Error::doing(what(), e);
        changes.permit(&Operation::Rename { from, to }).map_err(|e| Error::doing(what(), e))?;
        let pool = self.pool();
        let mountpoint = pool.dsl().get(dataset, "mountpoint").map_err(unreadable)?;
        let stays = |v: cenote_dsl::PropValue| matches!(v.exact.as_str(), "legacy" | "none");
        if !how.stay && !mountpoint.is_some_and(stays) {
            let all = family(pool.dsl(), dataset).map_err(unreadable)?;
            let ids: Vec<u64> = all.iter().map(|d| d.ds_obj).collect();
            let unmount = Unmount { force: how.force, for_good: true };
            if let Err(why) = self.host.mounts().take_away(&ids, unmount) {
                self.failed(Error::new(ErrorKind::Busy, why))?;
                return Err(Error::told());
            }
        }
        let done = changes.rename(from, to);
        if done.is_ok() {
            self.host.mounts().renamed(from, to);
        }
        let back = self.host.mounts().bring_back(done.is_ok());
        done.map_err(|e| Error::doing(what(), e))?;
        if back { Ok(()) } else { Err(Error::told()) }
    }
}
