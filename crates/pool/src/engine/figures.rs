//! What each transaction group did.

use crate::tunables;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;

/// One pass of a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassFigures {
    /// How long it took.
    pub time: Duration,
    /// Blocks of the MOS that were written.
    pub blocks: u64,
}

/// One transaction group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxgFigures {
    /// Its number.
    pub txg: u64,
    /// How long it took to write, the commit not included.
    pub total: Duration,
    /// How long the datasets took.
    pub datasets: Duration,
    /// The passes.
    pub passes: Vec<PassFigures>,
}

/// The last transaction groups.
#[derive(Debug, Default)]
pub(crate) struct History {
    groups: Mutex<VecDeque<TxgFigures>>,
}

impl History {
    /// Remembers a group.
    pub fn add(&self, group: TxgFigures) {
        let mut groups = self.groups.lock();
        groups.push_back(group);
        while groups.len() as u64 > tunables::TXG_HISTORY.get() {
            groups.pop_front();
        }
    }

    /// All that are remembered, oldest first.
    pub fn all(&self) -> Vec<TxgFigures> {
        self.groups.lock().iter().cloned().collect()
    }
}
