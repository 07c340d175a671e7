//! What the control directory `.zfs` shows of a file system's pool (`zfsctl_create`).

use cenote_zpl::{Error, FileSystem, Spare};
use std::io;
use std::sync::Arc;

/// The `snapdir` property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapDir {
    /// There is no `.zfs`.
    Disabled,
    /// `.zfs` is there, but not listed.
    Hidden,
    /// `.zfs` is listed.
    Visible,
}

/// A snapshot as `.zfs/snapshot` lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Name after the `@`.
    pub name: String,
    /// Time of creation, seconds since 1970.
    pub created: i64,
}

/// A change of the snapshots of a file system, by names after the `@`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotChange<'a> {
    /// One is taken.
    Take(&'a str),
    /// One goes, to which nothing leads any more in this mount.
    Destroy(&'a str),
    /// The first gets the second name.
    Rename(&'a str, &'a str),
}

/// A user that sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester {
    /// Its number.
    pub user: u32,
    /// The numbers of its groups.
    pub groups: Vec<u32>,
}

/// The snapshots of a file system, and what else shares its blocks.
pub trait Snapshots: Send + Sync {
    /// All snapshots, in order of creation.
    fn list(&self) -> Vec<SnapshotEntry>;
    /// Opens a snapshot by its name (after the `@`).
    fn open(&self, name: &str) -> Result<Arc<FileSystem>, Error>;
    /// The txg of the newest snapshot, which shares what was born in it or before; 0 without snapshots.
    fn newest(&self) -> u64;
    /// Tells which blocks clones share, by their pointers.
    fn cloned(&self) -> Box<Spare<'static>> {
        Box::new(|_| false)
    }
    /// Whether blocks can be rewritten with their births kept: the pool has the feature `physical_rewrite`.
    fn may_keep_births(&self) -> bool {
        false
    }
    /// When snapshots were last taken, destroyed or renamed (property `snapshots_changed`): seconds since 1970
    /// and nanoseconds; zeros if never. `None`: that is not known.
    fn changed(&self) -> Option<(i64, u32)> {
        None
    }
    /// Whether snapshots are taken, destroyed and renamed in `.zfs/snapshot` (`zfs_admin_snapshot`).
    fn are_administered(&self) -> bool {
        false
    }
    /// Makes a change for a user, and waits for it; `None`: for the one whom the pool belongs to. No other mount needs to
    /// be told.
    ///
    /// # Errors
    /// Errors of the system calls `mkdir`, `rmdir` and `rename`, by number.
    fn change(&self, _user: Option<&Requester>, _change: SnapshotChange<'_>) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}
