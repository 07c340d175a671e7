//! Snapshots that are about to be destroyed or renamed.
//!
//! The blocks of a destroyed snapshot are soon in use for something else, which its readers would be given.
//! So a snapshot is *closed* first: only if there are no shares, and from then on nothing leads to it.
//! Both happen under the table's lock, and shares are given out under that lock only.

use crate::branch::Branch;
use crate::node::Node;
use crate::session::Forgetting;
use crate::slots::Slot;
use crate::submount::LATE_CLOSE;
use crate::tree::Tree;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks whether a snapshot is still in use.
const LOOK: Duration = Duration::from_millis(5);

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
            *snapshot = Arc::new(snapshot.renamed(to.to_owned()));
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
