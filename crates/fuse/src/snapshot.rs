//! Snapshots in `.zfs/snapshot`.
//!
//! A snapshot has a slot of the table ([`slots`](crate::slots)) from when its name was first seen, and is
//! opened when something in it is asked for. Each open file in it, and each request that is being served, has a
//! share in its file system.

use crate::branch::Branch;
use crate::node::{Node, not_found};
use cenote_zpl::{Error, FileSystem};
use std::sync::{Arc, OnceLock};

/// A snapshot whose name was seen.
pub(crate) struct Snapshot {
    pub(crate) branch: Arc<Branch>,
    pub(crate) name: String,
    fs: OnceLock<Arc<FileSystem>>,
}

impl Snapshot {
    pub(crate) fn new(branch: Arc<Branch>, name: String) -> Snapshot {
        Snapshot { branch, name, fs: OnceLock::new() }
    }

    /// The same, with another name.
    pub(crate) fn renamed(&self, name: String) -> Snapshot {
        Snapshot { branch: self.branch.clone(), name, fs: self.fs.clone() }
    }

    /// Whether anybody but the table has a share in it or in its file system.
    pub(crate) fn is_shared(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1 || self.fs.get().is_some_and(|fs| Arc::strong_count(fs) > 1)
    }

    /// A node in the snapshot, opening it if need be; object 0 is its root directory.
    pub(crate) fn node(&self, slot: u16, object: u64) -> Result<Node, Error> {
        let fs = match (self.fs.get(), &self.branch.snapshots) {
            (Some(fs), _) => fs.clone(),
            (None, Some(snapshots)) => {
                let opened = snapshots.open(&self.name)?;
                self.fs.get_or_init(|| opened).clone()
            }
            (None, None) => return Err(not_found(&self.name)),
        };
        let object = if object == 0 { fs.root() } else { object };
        Ok(Node::File { branch: self.branch.clone(), fs, slot, object })
    }
}
