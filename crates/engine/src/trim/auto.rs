//! `autotrim=on` (`vdev_autotrim_thread`).

use super::{ROOM, tell_device};
use crate::tunables::TRIM_TXG_BATCH;
use crate::{Engine, Shared};
use cenote_store::alloc::TXG_DEFER_SIZE;
use cenote_vdev::Vdev;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The name of the thread.
const NAME: &str = "autotrim";
/// A metaslab of which so large a part was freed does not wait.
const MUCH: u64 = 32;
/// Bytes that are worth a transaction group to have them back.
const WORTH: u64 = 4 << 20;

#[derive(Default)]
struct State {
    on: bool,
    /// A group was written since the thread last looked.
    look: bool,
    ended: bool,
    /// Bytes that were freed and not back when the last group was on disk.
    deferred: u64,
    /// So many groups are asked for.
    asks: u64,
    thread: Option<JoinHandle<()>>,
}

/// The thread that tells devices what was freed.
#[derive(Default)]
pub(crate) struct Auto {
    state: Mutex<State>,
    changed: Condvar,
}

impl Auto {
    /// A transaction group is on disk. What was freed comes back with later ones: if that is much, and nothing else
    /// asks for them, this does.
    pub fn group_done(&self, shared: &Shared) {
        let deferred = shared.disk.allocator.deferred();
        let asks = {
            let mut state = self.state.lock();
            if !state.on || state.ended {
                return;
            }
            state.look = true;
            self.changed.notify_all();
            state.asks = match deferred {
                few if few < WORTH => 0,
                more if more > state.deferred => TXG_DEFER_SIZE + 1,
                _ => state.asks.saturating_sub(1),
            };
            state.deferred = deferred;
            state.asks > 0
        };
        if asks {
            // A suspended pool takes no changes.
            let _suspended = shared.queue.later(&shared.tx_state, |_| Ok(()));
        }
    }

    /// Ends the thread, and lets no other begin.
    pub fn end(&self) {
        let thread = {
            let mut state = self.state.lock();
            state.ended = true;
            self.changed.notify_all();
            state.thread.take()
        };
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    /// Waits for the next group; whether to go on.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return false;
            }
            if state.on && std::mem::take(&mut state.look) {
                return true;
            }
            self.changed.wait(&mut state);
        }
    }

    fn goes_on(&self) -> bool {
        let state = self.state.lock();
        state.on && !state.ended
    }
}

impl Engine {
    /// Does as the property `autotrim` says from now on.
    pub(crate) fn follow_autotrim(&self) {
        let on = self.pool().get("autotrim").is_some_and(|set| set.exact == "on");
        let (shared, auto) = (&self.shared, &self.shared.trims.auto);
        let mut state = auto.state.lock();
        state.on = on;
        // Under the lock: of two that set the property the later one counts.
        shared.disk.allocator.note_freed(on);
        if on && !state.ended && state.thread.is_none() {
            let theirs = shared.clone();
            let work = move || {
                let alarm = theirs.disk.store.alarm().clone();
                alarm.guard(NAME, || run(&theirs));
            };
            let spawned = std::thread::Builder::new().name(NAME.into()).spawn(work);
            let spawned = spawned.inspect_err(|e| tracing::warn!("nothing is trimmed: {e}"));
            state.thread = spawned.ok();
        }
    }
}

fn run(shared: &Arc<Shared>) {
    // The group after which a metaslab was last looked at.
    let mut last: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    while shared.trims.auto.wait() {
        shared.disk.allocator.wait_deferred();
        let txg = shared.tx_state.synced_txg();
        for (vdev, metaslab, freed, size) in shared.disk.allocator.note_freed(true) {
            let since = *last.entry((vdev, metaslab)).or_insert(txg);
            let waited = txg.saturating_sub(since) >= TRIM_TXG_BATCH.get();
            if waited || freed >= size / MUCH {
                last.insert((vdev, metaslab), txg);
                tell_freed(shared, vdev, metaslab);
            }
        }
        if !shared.trims.auto.goes_on() {
            // It was switched off meanwhile.
            let state = shared.trims.auto.state.lock();
            shared.disk.allocator.note_freed(state.on);
        }
    }
}

/// Tells all devices of a top-level vdev what was freed in one of its metaslabs.
fn tell_freed(shared: &Arc<Shared>, vdev: u64, metaslab: u64) {
    let tree = shared.disk.tree();
    let Some(top) = tree.top(vdev) else { return };
    let mut leaves = Vec::new();
    collect(top, &mut leaves);
    while shared.trims.auto.goes_on() {
        let Some(freed) = shared.disk.allocator.trim_freed(vdev, metaslab, ROOM) else { return };
        if freed.ranges.is_empty() {
            return;
        }
        for leaf in leaves.iter().filter(|leaf| leaf.can_trim()) {
            for (start, end) in &freed.ranges {
                if let Some(range) = top.range_on(leaf.guid(), *start..*end) {
                    // A device that fails keeps what it has.
                    let _failed = tell_device(shared, leaf, range);
                }
            }
        }
    }
}

fn collect(vdev: &Arc<Vdev>, leaves: &mut Vec<Arc<Vdev>>) {
    if vdev.is_leaf() {
        leaves.push(vdev.clone());
    }
    vdev.children().iter().for_each(|child| collect(child, leaves));
}
