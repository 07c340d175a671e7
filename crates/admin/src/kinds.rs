//! Datasets by name and kind, and what is below them.

use crate::error::{Error, ErrorKind, Result, Why};
use crate::session::Session;
use cenote_dsl::{Dataset, DatasetKind, Dsl, Source};
use cenote_engine::change::names::{self, Expected};

/// A set of kinds of datasets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// Nothing.
    pub const NONE: Kinds = Kinds(0);
    /// File systems.
    pub const FILESYSTEM: Kinds = Kinds(1);
    /// Volumes.
    pub const VOLUME: Kinds = Kinds(2);
    /// Snapshots.
    pub const SNAPSHOT: Kinds = Kinds(4);
    /// Bookmarks.
    pub const BOOKMARK: Kinds = Kinds(8);
    /// File systems and volumes.
    pub const HEAD: Kinds = Kinds(3);
    /// Everything but bookmarks (`ZFS_TYPE_DATASET`).
    pub const DATASET: Kinds = Kinds(7);
    /// Everything.
    pub const ALL: Kinds = Kinds(15);

    /// Both sets together.
    pub const fn with(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    /// This set without the other.
    pub const fn without(self, other: Kinds) -> Kinds {
        Kinds(self.0 & !other.0)
    }

    /// Whether the sets have something in common.
    pub const fn meets(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }

    /// The set of one dataset's kind.
    pub fn of(d: &Dataset) -> Kinds {
        match d.kind {
            DatasetKind::Filesystem => Kinds::FILESYSTEM,
            DatasetKind::Volume => Kinds::VOLUME,
            DatasetKind::Snapshot => Kinds::SNAPSHOT,
            DatasetKind::Bookmark => Kinds::BOOKMARK,
        }
    }
}

fn cannot(name: &str, kind: ErrorKind, why: impl std::fmt::Display) -> Error {
    Error::doing(format_args!("cannot open '{name}'"), Why(kind, why))
}

/// Whether `name` can be the name of a dataset of these kinds (`zfs_validate_name`).
///
/// # Errors
/// It cannot.
pub fn check_name(name: &str, kinds: Kinds) -> Result<()> {
    let expected = Expected {
        head: kinds.meets(Kinds::HEAD),
        snapshot: kinds.meets(Kinds::SNAPSHOT),
        bookmark: kinds.meets(Kinds::BOOKMARK),
    };
    let misnamed = names::misnamed(name, expected);
    misnamed.map_or(Ok(()), |why| Err(cannot(name, ErrorKind::Invalid, why)))
}

/// The dataset of this name, if it is of one of these kinds (`zfs_open`).
///
/// # Errors
/// The name cannot be, there is no such dataset, or it is of another kind; the pool's metadata cannot be read.
pub fn open(dsl: &Dsl, name: &str, kinds: Kinds) -> Result<Dataset> {
    check_name(name, kinds)?;
    let dataset = match dsl.find(name) {
        Ok(Some(dataset)) => dataset,
        Ok(None) if name.contains('#') => {
            return Err(cannot(name, ErrorKind::NotFound, "no such pool or dataset"));
        }
        Ok(None) => return Err(no_dataset(name)),
        Err(e) => return Err(Error::doing(format_args!("cannot open '{name}'"), e)),
    };
    if !kinds.meets(Kinds::of(&dataset)) {
        let why = "operation not applicable to datasets of this type";
        return Err(cannot(name, ErrorKind::Invalid, why));
    }
    Ok(dataset)
}

/// That there is no dataset of this name.
pub fn no_dataset(name: &str) -> Error {
    cannot(name, ErrorKind::NotFound, "dataset does not exist")
}

/// A dataset and all below it, parents before children.
///
/// # Errors
/// The pool's metadata cannot be read.
pub fn family(dsl: &Dsl, dataset: &Dataset) -> cenote_dmu::Result<Vec<Dataset>> {
    let mut family = vec![dataset.clone()];
    let mut at = 0;
    while let Some(next) = family.get(at).cloned() {
        family.extend(dsl.children(&next)?);
        at += 1;
    }
    Ok(family)
}

/// A file system and those below it that have its mountpoint's name in theirs.
///
/// # Errors
/// The pool's metadata cannot be read.
pub fn with_mountpoint_of(dsl: &Dsl, dataset: &Dataset) -> cenote_dmu::Result<Vec<Dataset>> {
    let mut all = vec![dataset.clone()];
    let mut at = 0;
    while let Some(next) = all.get(at).cloned() {
        for child in dsl.children(&next)? {
            let own = dsl.get(&child, "mountpoint")?;
            let inherits = own.is_some_and(|v| v.source != Source::Local);
            if child.kind == DatasetKind::Filesystem && inherits {
                all.push(child);
            }
        }
        at += 1;
    }
    Ok(all)
}

impl Session<'_> {
    /// The dataset of this name in the pool; see [`open`].
    ///
    /// # Errors
    /// As [`open`].
    pub fn dataset(&self, name: &str, kinds: Kinds) -> Result<Dataset> {
        open(self.pool().dsl(), name, kinds)
    }

    /// The file system or volume of this name, if it is there.
    pub(crate) fn head(&self, name: &str) -> cenote_dmu::Result<Option<Dataset>> {
        let found = self.pool().dsl().find(name)?;
        Ok(found.filter(|d| Kinds::HEAD.meets(Kinds::of(d))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_they_are_opened() {
        let why = |name: &str, kinds| {
            check_name(name, kinds).map_or_else(|e| e.to_string(), |()| "".into())
        };
        for (name, kinds, text) in [
            ("tank@s", Kinds::FILESYSTEM, "snapshot delimiter '@' is not expected here"),
            ("tank", Kinds::SNAPSHOT, "missing '@' delimiter in snapshot name"),
            (
                "tank//a",
                Kinds::DATASET,
                "empty component or misplaced '@' or '#' delimiter in name",
            ),
            ("tank/a!", Kinds::DATASET, "invalid character '!' in name"),
            ("tank/", Kinds::DATASET, "trailing slash in name"),
        ] {
            assert_eq!(why(name, kinds), format!("cannot open '{name}': {text}"));
        }
        assert_eq!(why("tank/a b@s", Kinds::DATASET), "");
    }
}
