//! Snapshots in `.zfs/snapshot`.
//!
//! A snapshot has a slot of the table ([`slots`](crate::slots)) from when its name was first seen, and is
//! opened when something in it is asked for. Each open file in it, and each request that is being served, has a
//! share in its file system.
//!
//! The blocks of a destroyed snapshot are soon in use for something else, which its readers would be given.
//! So a snapshot is *closed* first: only if there are no shares, and from then on nothing leads to it.
//! Both happen under the table's lock, and shares are given out under that lock only.

use crate::branch::Branch;
use crate::session::Forgetting;
use crate::slots::Slot;
use crate::submount::LATE_CLOSE;
use crate::tree::{Node, Tree, not_found};
use cenote_zpl::{Error, FileSystem};
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Time between two looks whether a snapshot is still in use.
const LOOK: Duration = Duration::from_millis(5);

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

    /// Whether anybody but the table has a share in it or in its file system.
    fn is_shared(self: &Arc<Self>) -> bool {
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

impl Tree {
    /// Sees to it that nothing leads to a snapshot until [`Tree::open_snapshot`]. False: a process has a
    /// file in it open, or asks for something in it.
    pub(crate) fn close_snapshot(&self, branch: &Arc<Branch>, name: &str) -> bool {
        let key = (branch.slot, name.to_owned());
        let start = Instant::now();
        loop {
            let mut table = self.table_mut();
            let slot = table.snapshots.get(&key).and_then(|slot| table.slot(*slot));
            // A request that the table leads to it has a share in what the table has.
            let used = matches!(slot, Some(Slot::Snapshot(s)) if s.is_shared());
            if !used {
                table.closed.insert(key);
                return true;
            }
            drop(table);
            if start.elapsed() >= LATE_CLOSE {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The snapshot stays.
    pub(crate) fn open_snapshot(&self, branch: &Arc<Branch>, name: &str) {
        self.table_mut().closed.remove(&(branch.slot, name.to_owned()));
    }

    /// Forgets what was known of a snapshot's name, and makes the kernel forget it.
    pub(crate) fn snapshot_changed(&self, branch: &Arc<Branch>, name: &str) -> Forgetting {
        self.forget_snapshot(branch, name);
        self.announce([(Node::Snapshots(branch.clone()).ino(), name.as_bytes())])
    }

    /// A snapshot has another name: it keeps its slot, by which the kernel goes on knowing it, and what is open
    /// in it.
    pub(crate) fn renamed_snapshot(&self, branch: &Arc<Branch>, from: &str, to: &str) {
        self.forget_snapshot(branch, to);
        let mut table = self.table_mut();
        let key = |name: &str| (branch.slot, name.to_owned());
        table.closed.remove(&key(from));
        let Some(slot) = table.snapshots.remove(&key(from)) else { return };
        if let Some(Slot::Snapshot(snapshot)) = table.of_snapshots.get_mut(&slot) {
            let renamed =
                Snapshot { branch: branch.clone(), name: to.to_owned(), fs: snapshot.fs.clone() };
            *snapshot = Arc::new(renamed);
            table.snapshots.insert(key(to), slot);
        }
    }

    /// Forgets what was known of a snapshot's name; the kernel learns of it in another way.
    pub(crate) fn forget_snapshot(&self, branch: &Arc<Branch>, name: &str) {
        let mut table = self.table_mut();
        let key = (branch.slot, name.to_owned());
        if let Some(slot) = table.snapshots.get(&key).copied() {
            table.forget(&HashSet::from([slot]));
        }
        table.closed.remove(&key);
    }
}
