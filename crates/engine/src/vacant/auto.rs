//! `autotrim=on` (`vdev_autotrim_thread`).
//!
//! # Algorithm
//!
//! While the property is on the allocator notes what is freed. After each group that is on disk one thread looks at the metaslabs with such
//! notes. One that has waited for some groups (`zfs_trim_txg_batch`), or in which much was freed, is disabled, and each leaf of its
//! top-level vdev is told what is free, piece by piece. If an allocation waits for the metaslab the thread breaks off after a request; the
//! ranges that not all leaves were told of are noted again.
//!
//! What was freed comes back into circulation with later groups only. If much waits for that, and nothing else asks for groups, this
//! does.
//!
//! # Invariants
//!
//! - Nothing is allocated in a range while devices are told of it.
//! - A device that fails keeps what it has, and is no error: it may be told again.
//! - There is one thread at most, and after the end of the pool no other begins.

use super::walk::{ROOM, pieces, worth_trimming};
use crate::tunables::{TRIM_EXTENT_BYTES_MAX, TRIM_TXG_BATCH};
use crate::{Engine, Shared};
use cenote_format::{invariant, less};
use cenote_store::alloc::{Disabled, TXG_DEFER_SIZE};
use cenote_vdev::Vdev;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

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
    /// There is a thread.
    runs: bool,
}

/// The thread that tells devices what was freed.
#[derive(Default)]
pub(crate) struct Auto {
    state: Mutex<State>,
    changed: Condvar,
}

impl Auto {
    /// A transaction group is on disk (`vdev_autotrim_kick`). What was freed comes back with later ones: if that is much, and
    /// nothing else asks for them, this does.
    pub fn group_done(&self, shared: &Shared) {
        let (deferred, synced) = (shared.disk.allocator.deferred(), shared.tx_state.synced_txg());
        // What a reader or a hold keeps comes back with no group as long as that lasts.
        let is_held = shared.disk.allocator.is_held_since(synced.saturating_sub(TXG_DEFER_SIZE));
        let asks = {
            let mut state = self.state.lock();
            if !state.on || state.ended {
                return;
            }
            state.look = true;
            self.changed.notify_all();
            state.asks = match deferred {
                few if few < WORTH || is_held => 0,
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

    /// Ends the thread, and lets no other begin. Whether it has ended by then.
    pub fn end(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        state.ended = true;
        self.changed.notify_all();
        while state.runs && !self.changed.wait_until(&mut state, until).timed_out() {}
        !state.runs
    }

    /// Lets a thread begin again.
    pub fn begin_again(&self) {
        self.state.lock().ended = false;
    }

    /// Waits for the next group; whether to go on.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        invariant!(state.runs, "a thread trims what was freed, and is not known");
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
    /// Does as the property `autotrim` says from now on (`vdev_autotrim_restart`).
    pub(crate) fn follow_autotrim(&self) {
        let on = self.pool().get("autotrim").is_some_and(|set| set.exact == "on");
        let (shared, auto) = (&self.shared, &self.shared.vacant.auto);
        let mut state = auto.state.lock();
        state.on = on;
        // Under the lock: of two that set the property the later one counts.
        shared.disk.allocator.note_freed(on);
        if on && !state.ended && !state.runs {
            let theirs = Thread(shared.clone());
            let work = move || {
                let alarm = theirs.0.disk.store.alarm().clone();
                alarm.guard(NAME, || run(&theirs.0));
            };
            state.runs = true;
            drop(state);
            if let Err(e) = std::thread::Builder::new().name(NAME.into()).spawn(work) {
                tracing::warn!("nothing is trimmed: {e}");
            }
        }
    }
}

/// Says when the thread is over, however it ends.
struct Thread(Arc<Shared>);

impl Drop for Thread {
    fn drop(&mut self) {
        let auto = &self.0.vacant.auto;
        auto.state.lock().runs = false;
        auto.changed.notify_all();
    }
}

fn run(shared: &Arc<Shared>) {
    // The group after which a metaslab was last looked at.
    let mut last: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    while shared.vacant.auto.wait() {
        shared.disk.allocator.wait_deferred();
        let txg = shared.tx_state.synced_txg();
        for (vdev, metaslab, freed, size) in shared.disk.allocator.note_freed(true) {
            let since = *last.entry((vdev, metaslab)).or_insert(txg);
            let of = format_args!("vdev {vdev} metaslab {metaslab}: groups since it was looked at");
            let waited = less!(txg, since, "{of}") >= TRIM_TXG_BATCH.get();
            if waited || freed >= size / MUCH {
                last.insert((vdev, metaslab), txg);
                tell_freed(shared, vdev, metaslab);
            }
        }
        if !shared.vacant.auto.goes_on() {
            // It was switched off meanwhile.
            let state = shared.vacant.auto.state.lock();
            shared.disk.allocator.note_freed(state.on);
        }
    }
}

/// Tells all devices of a top-level vdev what was freed in one of its metaslabs.
fn tell_freed(shared: &Arc<Shared>, vdev: u64, metaslab: u64) {
    let mut told = Told::default();
    while shared.vacant.auto.goes_on() {
        let Some(freed) = shared.disk.allocator.disable_freed(vdev, metaslab, ROOM) else { return };
        // Looked up when the metaslab is disabled: devices join and leave.
        let tree = shared.disk.tree();
        let Some(top) = tree.top(vdev).filter(|_| !freed.ranges.is_empty()) else { return };
        if let Some(from) = told.tell(shared, top, &freed) {
            let left = freed.ranges.iter().filter(|(_, end)| *end > from);
            let left: Vec<_> = left.map(|(start, end)| (from.max(*start), *end)).collect();
            freed.remember(&left);
        }
    }
}

/// A piece of a top-level vdev, and the leaves that were told of it.
#[derive(Default)]
struct Told {
    piece: Range<u64>,
    leaves: Vec<u64>,
}

impl Told {
    /// Tells the leaves of `top`, each of one piece after the other. If an allocation waits, or the thread is to end, it
    /// breaks off after a request, and returns the byte of the vdev from which on not all leaves were told.
    fn tell(&mut self, shared: &Shared, top: &Arc<Vdev>, freed: &Disabled) -> Option<u64> {
        let tree = shared.disk.tree();
        let mut leaves = Vec::new();
        collect(top, &mut leaves);
        leaves.retain(|leaf| leaf.can_trim());
        let most = TRIM_EXTENT_BYTES_MAX.get();
        let all =
            freed.ranges.iter().flat_map(|(start, end)| pieces(*start..*end, top.ashift(), most));
        let mut any = false;
        for piece in all {
            if self.piece != piece {
                *self = Told { piece: piece.clone(), leaves: Vec::new() };
            }
            for leaf in &leaves {
                if self.leaves.contains(&leaf.guid()) {
                    continue;
                }
                if any && (freed.is_in_the_way() || !shared.vacant.auto.goes_on()) {
                    return Some(piece.start);
                }
                let places = top.ranges_on(leaf.guid(), piece.clone());
                for range in places.into_iter().filter_map(worth_trimming) {
                    any = true;
                    // A device that fails keeps what it has.
                    let _failed = tree.trim(leaf, range);
                }
                self.leaves.push(leaf.guid());
            }
        }
        None
    }
}

fn collect(vdev: &Arc<Vdev>, leaves: &mut Vec<Arc<Vdev>>) {
    if vdev.is_leaf() {
        leaves.push(vdev.clone());
    }
    vdev.children().iter().for_each(|child| collect(child, leaves));
}
