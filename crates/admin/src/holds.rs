//! Holds of snapshots, and bookmarks (`zfs_hold`, `zfs_release`, `zfs_bookmark`).

use crate::error::{Error, ErrorKind, Result, Why};
use crate::host::InUse;
use crate::kinds::{Kinds, family};
use crate::session::Session;
use cenote_dsl::Dataset;
use cenote_engine::change::ChangeError;
use cenote_engine::change::policy::Operation;
use cenote_format::dsl::DS_FLAG_DEFER_DESTROY;

impl Session<'_> {
    /// Holds a snapshot under `tag`; with `recurse`, the snapshots of the same name of all below its dataset as well: all, or no snapshot.
    ///
    /// # Errors
    /// It is not there; one has a hold of this tag.
    pub fn hold(&mut self, snapshot: &str, tag: &str, recurse: bool) -> Result<()> {
        let what = |name: &str| format!("cannot hold snapshot '{name}'");
        let (names, _) = self.of_family(snapshot, recurse, None, &what)?;
        let failed = |name: &str, e: ChangeError| Error::doing(what(name), e);
        if names.is_empty() {
            return Err(failed(snapshot, ChangeError::NotFound));
        }
        let changes = self.changes().map_err(|e| failed(snapshot, e))?;
        let done = changes.hold(&names, tag);
        done.map_err(|(name, e)| failed(name.as_deref().unwrap_or(snapshot), e))
    }

    /// Releases the hold `tag` of a snapshot; with `recurse`, the holds of the snapshots of the same name of all below its dataset
    /// that have it: all or none. A snapshot that was marked for destruction goes with its last hold.
    ///
    /// # Errors
    /// It is not there, or has no such hold; one that goes is in use.
    pub fn release(&mut self, snapshot: &str, tag: &str, recurse: bool) -> Result<()> {
        let what = |name: &str| format!("cannot release hold from snapshot '{name}'");
        let tag_of = Some(tag).filter(|_| recurse);
        let (names, without) = self.of_family(snapshot, recurse, tag_of, &what)?;
        let failed = |name: &str, e: ChangeError| Error::doing(what(name), e);
        if names.is_empty() {
            return Err(match without {
                true => failed(snapshot, ChangeError::Crosses("no such tag on this dataset")),
                false => failed(snapshot, ChangeError::NotFound),
            });
        }
        let changes = self.changes().map_err(|e| failed(snapshot, e))?;
        changes.permit(&Operation::Release { names: &names }).map_err(|e| failed(snapshot, e))?;
        // The last hold of a snapshot that is marked for destruction takes it along.
        let mut marked = Vec::new();
        for name in &names {
            if self.is_marked(name).map_err(|e| failed(name, e.into()))? {
                marked.push(name.clone());
            }
        }
        if let Err(busy) = self.host.mounts().close_snapshots(&marked) {
            let first = busy.into_iter().next();
            let used = first.unwrap_or_else(|| InUse { name: snapshot.into(), by: None });
            return Err(self.busy(what(&used.name), &used));
        }
        match changes.release(&names, tag) {
            Ok(gone) => {
                let left: Vec<String> =
                    marked.into_iter().filter(|name| !gone.contains(name)).collect();
                self.host.mounts().snapshots_stay(&left);
                self.host.mounts().snapshots_changed(&gone);
                Ok(())
            }
            Err((name, e)) => {
                self.host.mounts().snapshots_stay(&marked);
                let name = name.as_deref().unwrap_or(snapshot);
                Err(self.cannot(what(name), name, e))
            }
        }
    }

    fn is_marked(&self, name: &str) -> cenote_dmu::Result<bool> {
        let found = self.pool().dsl().find(name)?;
        Ok(found.is_some_and(|d| d.ds.flags & DS_FLAG_DEFER_DESTROY != 0))
    }

    /// The snapshots that are there of those that are meant; with `tag`, those that have a hold of it, and whether one has not.
    fn of_family(
        &self,
        snapshot: &str,
        recurse: bool,
        tag: Option<&str>,
        what: &dyn Fn(&str) -> String,
    ) -> Result<(Vec<String>, bool)> {
        let Some((head, short)) = snapshot.split_once('@') else {
            let why = format!("'{snapshot}' is not a snapshot");
            return Err(Error::new(ErrorKind::Invalid, why));
        };
        let head = self.dataset(head, Kinds::HEAD)?;
        let failed = |e: cenote_dmu::Error| Error::doing(what(snapshot), e);
        let pool = self.pool();
        let mut names = vec![snapshot.to_string()];
        if recurse {
            let all = family(pool.dsl(), &head).map_err(failed)?;
            names = all.iter().map(|d| format!("{}@{short}", d.name)).collect();
        }
        let (mut found, mut without) = (Vec::new(), false);
        for name in names {
            let Some(snapshot) = pool.dsl().find(&name).map_err(failed)? else { continue };
            let held = match tag {
                None => true,
                Some(tag) => {
                    let holds = pool.dsl().holds(&snapshot).map_err(failed)?;
                    holds.iter().any(|(known, _)| known == tag)
                }
            };
            without |= !held;
            found.extend(held.then_some(name));
        }
        Ok((found, without))
    }

    /// Creates a bookmark of a snapshot or bookmark. Where one of the names leaves out the dataset (`#b`, `@s`), it is the
    /// other's.
    ///
    /// # Errors
    /// A name cannot be; there is no such source, or a bookmark of the name.
    pub fn bookmark(&mut self, source: &str, name: &str) -> Result<()> {
        let (source, target) = bookmark_names(source, name)?;
        let source: Dataset = self.dataset(&source, Kinds::SNAPSHOT.with(Kinds::BOOKMARK))?;
        let what = || format!("cannot create bookmark '{target}'");
        let changes = self.changes().map_err(|e| Error::doing(what(), e))?;
        changes.bookmark(&source.name, &target).map_err(|e| match e {
            ChangeError::Exists => Error::doing(what(), Why(ErrorKind::Exists, "bookmark exists")),
            e => Error::doing(what(), e),
        })
    }
}

/// The full names of a source and a bookmark.
///
/// # Errors
/// They are not names of these.
pub fn bookmark_names(source: &str, target: &str) -> Result<(String, String)> {
    let invalid = |why: String| Err(Error::new(ErrorKind::Arguments, why));
    if !source.contains(['@', '#']) {
        return invalid(format!("invalid source name '{source}': must contain a '@' or '#'"));
    }
    if !target.contains('#') {
        return invalid(format!("invalid bookmark name '{target}': must contain a '#'"));
    }
    let head = |name: &str| name.split(['@', '#']).next().unwrap_or_default().to_string();
    let (mut source, mut target) = (source.to_string(), target.to_string());
    if source.starts_with(['@', '#']) {
        source.insert_str(0, &head(&target));
    } else if target.starts_with('#') {
        target.insert_str(0, &head(&source));
    }
    Ok((source, target))
}
