//! Snapshots of one moment (`zfs_snapshot_nvl`).

use crate::error::{Error, Result};
use crate::kinds::family;
use crate::session::Session;
use cenote_dsl::Dataset;
use cenote_engine::change::{ChangeError, NewSnapshot};
use std::collections::HashSet;

impl Session<'_> {
    /// The names of the snapshots `short` of a dataset, and with `recurse` of all below it; of those that were not received
    /// in part.
    ///
    /// # Errors
    /// The pool's metadata cannot be read.
    pub fn names_of_snapshots(
        &self,
        head: &Dataset,
        short: &str,
        recurse: bool,
    ) -> Result<Vec<String>> {
        let heads = match recurse {
            true => family(self.pool().dsl(), head).map_err(|e| {
                Error::doing(format_args!("cannot list what is in '{}'", head.name), e)
            })?,
            false => vec![head.clone()],
        };
        let whole = heads.iter().filter(|d| !recurse || !d.is_inconsistent());
        Ok(whole.map(|d| format!("{}@{short}", d.name)).collect())
    }

    /// Takes snapshots with properties (`lzc_snapshot`): all of the same moment, or none. One that is named twice is taken
    /// once.
    ///
    /// # Errors
    /// One cannot be taken, or is in another pool.
    pub fn snapshot(&mut self, mut names: Vec<String>, props: Vec<(String, String)>) -> Result<()> {
        let mut known = HashSet::new();
        names.retain(|name: &String| known.insert(name.clone()));
        let failed = |name: Option<&str>, why: ChangeError| match name {
            Some(name) => Error::doing(format_args!("cannot create snapshot '{name}'"), why),
            None => Error::doing("cannot create snapshots ", why),
        };
        let pool = self.pool();
        if names.iter().any(|n| n.split(['/', '@']).next() != Some(pool.name())) {
            let why = ChangeError::Crosses("multiple snapshots of same fs not allowed");
            return Err(failed(None, why));
        }
        let changes = self.changes().map_err(|e| failed(names.first().map(String::as_str), e))?;
        let new = NewSnapshot { names, props };
        changes.snapshot(&new).map_err(|(name, e)| failed(name.as_deref(), e))?;
        self.host.mounts().snapshots_changed(&new.names);
        Ok(())
    }
}
