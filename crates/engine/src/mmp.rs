//! Multi-modifier protection: with `multihost=on` other hosts see that this one has the pool (`mmp_thread`).
//!
//! # On disk
//!
//! The last slot of each label's ring is kept for heartbeats; the uberblock of a group never goes there (`slot_of`). A
//! heartbeat is the uberblock of the last group with the time of now, a sequence number that counts within a second, the
//! interval, and how long heartbeats really took (`ub_mmp_delay`, `ub_mmp_config`). Uberblocks of groups have these
//! fields as well, so they count as heartbeats. A host that imports the pool waits for as long as the fields say that this one may be
//! silent, and gives up if the best uberblock changes meanwhile (`cenote_pool::host`).
//!
//! # In memory
//!
//! A thread writes a heartbeat to a random leaf each `zfs_multihost_interval` divided by the number of leaves, so that
//! each leaf gets one in an interval. A write that hangs holds up its leaf alone: each has a thread of its own,
//! and a leaf that still has one gets no other.
//!
//! If no heartbeat and no group was written for as long as the last one promised (`zfs_multihost_fail_intervals` intervals),
//! another host may have taken the pool by now: the pool is suspended, stays so until it is imported again, and nothing that
//! is still queued reaches a device ([`VdevTree::fence`](cenote_vdev::VdevTree::fence)). The thread looks for that before each
//! heartbeat, the sync thread before and after each uberblock, and a commit once its blocks are durable. What was written
//! counts from when its write began, by a clock that goes on while the system sleeps: so a host that slept or was stopped
//! finds out. Whatever it still had to write reaches no device ([`VdevTree::fence_at`](cenote_vdev::VdevTree::fence_at)).
//!
//! An import goes on with the heartbeats of its claim ([`cenote_pool::claim`]).
//!
//! A leaf that may have lost some of a group gets no uberblock of it (`cenote_vdev`'s `lag`), and so no heartbeat before the next one, as long as
//! another leaf that has the group's uberblock can take it.
//!
//! Invariants: an uberblock in the last slot leads to a group that is on disk. No heartbeat begins on a leaf that is leaving. After [`Mmp::stop`] no heartbeat begins. A host
//! that has been silent for too long stays so.

use super::{EngineError, Shared};
use crate::tunables::MULTIHOST_FAIL_INTERVALS;
use cenote_dmu::write::WriteError;
use cenote_format::label::{LABELS, Uberblock};
use cenote_pool::Pool;
use cenote_pool::claim::Claimed;
use cenote_pool::host;
pub(super) use cenote_pool::host::since_boot as now;
use cenote_pool::tunables::MULTIHOST_INTERVAL;
use cenote_vdev::{Vdev, VdevTree};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The name of the thread.
const NAME: &str = "mmp";
/// How long the end of the protection waits for heartbeats that are being written.
const LAST: Duration = Duration::from_secs(5);
/// Bits of `ub_mmp_config` that say which of its parts are set: the interval, the sequence number, the fail intervals.
const ALL_VALID: u64 = 0b111;

/// Heartbeats of a pool.
#[derive(Default)]
pub(crate) struct Mmp {
    /// One thread at a time begins or ends them.
    learning: Mutex<()>,
    beat: Mutex<Beat>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<Option<()>>>>,
}

/// What the next heartbeat says, and when the last one was (`mmp_thread_t`).
#[derive(Default)]
struct Beat {
    /// The property is on, and the thread runs.
    on: bool,
    stopped: bool,
    /// That of the last group on disk.
    uberblock: Option<Uberblock>,
    /// How long it takes from one heartbeat to the next, slowly decaying (`mmp_delay`).
    delay: Duration,
    /// When the write of the last heartbeat or group that succeeded began ([`now`]).
    last: Duration,
    /// How long the heartbeat or group on disk lets others wait; `None`: for ever.
    promised: Option<Duration>,
    /// It is the last one of the claim.
    claimed: bool,
    /// Why the pool may be another host's.
    lost: Option<String>,
    /// Leaves (guids) that a heartbeat is being written to.
    pending: HashSet<u64>,
}

fn interval() -> Duration {
    Duration::from_millis(MULTIHOST_INTERVAL.get())
}

/// Intervals without heartbeats that suspend a pool: not a single one (`MMP_MIN_FAIL_INTERVALS`,
/// `zfs_multihost_fail_intervals`); 0: none do.
fn fail_intervals() -> u64 {
    match MULTIHOST_FAIL_INTERVALS.get() {
        0 => 0,
        intervals => intervals.clamp(2, 0xffff),
    }
}

/// How long a pool may be without a heartbeat from now on; `None`: for ever.
fn patience() -> Option<Duration> {
    let intervals = u32::try_from(fail_intervals()).unwrap_or(u32::MAX);
    (intervals > 0).then(|| interval().saturating_mul(intervals))
}

/// `ub_mmp_config` with this sequence number.
fn packed(sequence: u16) -> u64 {
    let milliseconds = MULTIHOST_INTERVAL.get().min(0xff_ffff);
    fail_intervals() << 48 | u64::from(sequence) << 32 | milliseconds << 8 | ALL_VALID
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}

impl Beat {
    /// A heartbeat or a group whose write began at `begun` was written, or could not be (`mmp_delay_update`). `leaves`: how
    /// many there are.
    fn took(&mut self, begun: Duration, written: bool, leaves: u32) {
        let since = begun.saturating_sub(self.last);
        let spike = since > self.delay;
        if spike {
            self.delay = since;
        }
        if !written {
            return;
        }
        self.last = self.last.max(begun);
        (self.promised, self.claimed) = (patience(), false);
        if !spike {
            let least = interval() / leaves;
            self.delay = ((since + self.delay * 127) / 128).max(least);
        }
    }

    /// How long the pool may be without a heartbeat since the last one; `None`: for ever.
    fn allowed(&self) -> Option<Duration> {
        match self.claimed {
            // That is what the uberblock of the claim says, whatever this host would say.
            true => self.promised,
            false => self.promised.max(patience()).filter(|_| self.promised.is_some()),
        }
    }

    /// When nothing may be written any more; `None`: at no time.
    fn ends_at(&self) -> Option<Duration> {
        let allowed = self.allowed().filter(|_| self.on)?;
        Some(self.last.saturating_add(allowed))
    }

    /// The uberblock of the next heartbeat.
    fn next(&mut self, seconds: u64) -> Option<Uberblock> {
        let delay = nanoseconds(self.delay);
        let uberblock = self.uberblock.as_mut()?;
        let next = host::next_heartbeat(uberblock, seconds);
        let sequence = next.mmp_sequence().unwrap_or(1);
        *uberblock = Uberblock {
            mmp_magic: cenote_format::label::MMP_MAGIC,
            mmp_delay: delay,
            mmp_config: packed(sequence),
            ..next
        };
        Some(uberblock.clone())
    }
}

impl Mmp {
    /// Whether the last slot of each ring is kept for heartbeats.
    pub fn is_on(&self) -> bool {
        self.beat.lock().on
    }

    /// `ub_mmp_delay` and `ub_mmp_config` of a group's uberblock.
    pub fn fields(&self) -> (u64, u64) {
        let beat = self.beat.lock();
        if beat.on { (nanoseconds(beat.delay), packed(0)) } else { (0, 0) }
    }

    /// The uberblock of a group is on disk (`mmp_update_uberblock`).
    pub fn committed(&self, uberblock: &Uberblock, begun: Duration, tree: &VdevTree) {
        let mut beat = self.beat.lock();
        beat.uberblock = Some(uberblock.clone());
        if beat.on {
            beat.took(begun, true, count(tree.leaves().len()));
            tree.fence_at(beat.ends_at());
        }
    }

    /// Whether this host still has the pool for itself.
    ///
    /// # Errors
    /// Why it may not: another host may have taken it.
    pub fn check(&self) -> Result<(), String> {
        let mut beat = self.beat.lock();
        let (silent, allowed) = (now().saturating_sub(beat.last), beat.allowed());
        if beat.on && beat.lost.is_none() && allowed.is_some_and(|most| silent > most) {
            beat.lost = Some(format!(
                "multihost writes have not succeeded in {} ms: another system may have imported the pool",
                silent.as_millis()
            ));
        }
        beat.lost.clone().map_or(Ok(()), Err)
    }

    /// Waits for the time of the next heartbeat. Returns false if the heartbeats end.
    fn wait(&self, shared: &Shared, time: Duration) -> bool {
        let timer = &shared.options.outside.timer;
        let end = timer.now() + time;
        let mut beat = self.beat.lock();
        while goes_on(&beat) && timer.now() < end {
            timer.wait(&self.changed, &mut beat, end.saturating_sub(timer.now()));
        }
        goes_on(&beat)
    }

    /// Waits until no heartbeat is being written to these leaves (guids), which are leaving, so that none begins; `most` at
    /// most. Whether that is so.
    pub fn is_quiet_within(&self, leaves: &[u64], most: Duration) -> bool {
        let until = std::time::Instant::now() + most;
        let mut beat = self.beat.lock();
        while leaves.iter().any(|leaf| beat.pending.contains(leaf)) {
            if self.changed.wait_until(&mut beat, until).timed_out() {
                return !leaves.iter().any(|leaf| beat.pending.contains(leaf));
            }
        }
        true
    }

    /// Ends the heartbeats (`mmp_thread_stop`).
    pub fn stop(&self) {
        let mut beat = self.beat.lock();
        beat.stopped = true;
        self.changed.notify_all();
        // What hangs in a device for longer writes the uberblock of a group that is older than what comes.
        let end = std::time::Instant::now() + LAST;
        while !beat.pending.is_empty() && !self.changed.wait_until(&mut beat, end).timed_out() {}
        drop(beat);
        self.join();
    }

    fn join(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

fn goes_on(beat: &MutexGuard<'_, Beat>) -> bool {
    beat.on && !beat.stopped
}

/// A number of leaves, to divide by.
fn count(leaves: usize) -> u32 {
    u32::try_from(leaves).unwrap_or(u32::MAX).max(1)
}

/// How many leaves a pool has.
fn leaves(pool: &Pool) -> u32 {
    count(pool.store().vdevs().leaves().len())
}

impl Shared {
    /// Begins or ends heartbeats, as the property says (`mmp_signal_all_threads`). To be called whenever it may be another,
    /// and before the first group of an import. Returns whether it is another one.
    ///
    /// # Errors
    /// There are no threads left: the pool would be without protection.
    pub fn learn_multihost(self: &Arc<Self>) -> Result<bool, EngineError> {
        let _learning = self.disk.mmp.learning.lock();
        let pool = self.view();
        let on = pool.get("multihost").is_some_and(|set| set.exact == "on");
        let mmp = &self.disk.mmp;
        let claimed = pool.devices().take_claim();
        let claimed = claimed.map_err(|lost| EngineError::Suspended(lost.to_string()))?;
        let (was_on, is_on) = {
            let mut beat = mmp.beat.lock();
            let was_on = std::mem::replace(&mut beat.on, on && !self.options.deterministic);
            beat.uberblock.get_or_insert_with(|| pool.uberblock().clone());
            (was_on, beat.on)
        };
        if was_on == is_on {
            return Ok(false);
        }
        if !is_on {
            self.disk.tree().fence_at(None);
            mmp.changed.notify_all();
            mmp.join();
            return Ok(true);
        }
        {
            let mut beat = mmp.beat.lock();
            match claimed {
                // Heartbeats go on where those of the claim end.
                Some(Claimed { uberblock, last, allowed }) => {
                    (beat.last, beat.promised, beat.claimed) = (last, Some(allowed), true);
                    let best = beat.uberblock.iter().chain([&uberblock]);
                    beat.uberblock = Uberblock::best(best).cloned();
                }
                // As if the last heartbeat had been just now, and in time.
                None => (beat.last, beat.promised) = (now(), patience()),
            }
            beat.delay = interval() / leaves(&pool);
            self.disk.tree().fence_at(beat.ends_at());
        }
        let theirs = Arc::downgrade(self);
        let beats = move || {
            let alarm = theirs.upgrade()?.disk.store.alarm().clone();
            alarm.guard(NAME, || run(&theirs))
        };
        let thread = std::thread::Builder::new().name(NAME.into()).spawn(beats);
        let thread = thread.map_err(|e| {
            mmp.beat.lock().on = false;
            EngineError::Suspended(format!("no thread for multihost writes: {e}"))
        })?;
        *mmp.thread.lock() = Some(thread);
        Ok(true)
    }
}

impl Shared {
    /// Whether this host still has the pool for itself; else the pool is suspended.
    ///
    /// # Errors
    /// Another host may have taken it.
    pub fn has_pool(&self) -> Result<(), WriteError> {
        self.disk.mmp.check().map_err(|why| {
            self.suspend(&why);
            WriteError::Suspended(why)
        })
    }
}

/// Writes heartbeats until there are to be no more.
fn run(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        let mmp = &shared.disk.mmp;
        let count = leaves(&shared.view());
        if !mmp.wait(&shared, interval() / count) {
            return;
        }
        if shared.tx_state.failure().is_some() {
            // Others may take a suspended pool.
            continue;
        }
        if let Err(why) = mmp.check() {
            tracing::error!("{why}");
            shared.suspend(&why);
            continue;
        }
        if !begin(&shared) {
            mmp.beat.lock().took(now(), false, count);
        }
    }
}

/// Begins to write a heartbeat; `false`: no leaf can take it (`mmp_write_uberblock`, `mmp_next_leaf`).
fn begin(shared: &Arc<Shared>) -> bool {
    let outside = &shared.options.outside;
    let Ok(chance) = outside.chance.number() else { return false };
    let mut leaves = shared.disk.tree().leaves();
    let mut beat = shared.disk.mmp.beat.lock();
    // A distributed spare has no labels on disk, and those of an object store stay in memory until a group ends.
    let has_labels = |leaf: &Vdev| !leaf.is_distributed() && leaf.growing().is_none();
    let free = |leaf: &Vdev| has_labels(leaf) && !beat.pending.contains(&leaf.guid());
    leaves.retain(|leaf| leaf.writable() && !leaf.is_leaving() && free(leaf));
    let txg = beat.uberblock.as_ref().map_or(0, |uberblock| uberblock.txg);
    if leaves.iter().any(|leaf| leaf.leads_to(txg)) {
        leaves.retain(|leaf| leaf.leads_to(txg));
    }
    let Some(at) = (chance >> 8).checked_rem(leaves.len() as u64) else { return false };
    let (leaf, label) = (leaves.swap_remove(at as usize), chance as usize % LABELS);
    let Some(uberblock) = beat.next(outside.clock.seconds()) else { return false };
    beat.pending.insert(leaf.guid());
    drop(beat);
    let (guid, theirs) = (leaf.guid(), Arc::clone(shared));
    let write = move || write(theirs, leaf, label, &uberblock);
    let spawned = std::thread::Builder::new().name("mmp-write".into()).spawn(write);
    if spawned.is_err() {
        shared.disk.mmp.beat.lock().pending.remove(&guid);
    }
    spawned.is_ok()
}

/// Writes a heartbeat, and notes how that went (`mmp_write_done`).
fn write(shared: Arc<Shared>, leaf: Arc<Vdev>, label: usize, uberblock: &Uberblock) {
    let begun = now();
    let written = shared.disk.tree().write_heartbeat(&leaf, label, uberblock);
    if let Err(e) = &written {
        tracing::debug!("heartbeat: {e}");
    }
    let count = leaves(&shared.view());
    let (mmp, guid, tree) = (Arc::clone(&shared.disk.mmp), leaf.guid(), shared.disk.tree());
    let mut beat = mmp.beat.lock();
    beat.took(begun, written.is_ok(), count);
    if beat.on {
        tree.fence_at(beat.ends_at());
    }
    drop(beat);
    // The end of the pool waits for this heartbeat: then nothing of the pool is held here.
    drop((leaf, tree, shared));
    mmp.beat.lock().pending.remove(&guid);
    mmp.changed.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::{ByteOrder, blkptr::BlockPointer};

    fn uberblock(timestamp: u64) -> Uberblock {
        Uberblock {
            order: ByteOrder::Little,
            version: 5000,
            txg: 100,
            guid_sum: 0,
            timestamp,
            rootbp: BlockPointer::HOLE,
            software_version: 5000,
            mmp_magic: 0,
            mmp_delay: 0,
            mmp_config: 0,
            checkpoint_txg: 0,
            raidz_reflow: 0,
        }
    }

    #[test]
    fn delays_rise_at_once_and_decay_slowly() {
        let second = Duration::from_secs(1);
        let mut beat = Beat { delay: second, ..Beat::default() };
        beat.took(second * 9, false, 1);
        assert_eq!((beat.delay, beat.last), (second * 9, Duration::ZERO));
        beat.took(second * 10, true, 1);
        assert_eq!((beat.delay, beat.last), (second * 10, second * 10));
        beat.took(second * 11, true, 1);
        assert_eq!(beat.delay, (second + second * 10 * 127) / 128);
        for n in 12..5000 {
            beat.took(second * n, true, 1);
        }
        assert_eq!(beat.delay, second);
    }

    #[test]
    fn heartbeats_rise_in_rank() {
        let mut beat = Beat::default();
        assert!(beat.next(5).is_none());
        beat.uberblock = Some(uberblock(5));
        let mut last = uberblock(5).rank();
        for seconds in [4, 5, 5, 6, 6, 9] {
            let next = beat.next(seconds).unwrap();
            assert!(next.rank() > last, "{seconds}");
            assert!(next.mmp_delay > 0);
            last = next.rank();
        }
    }
}
