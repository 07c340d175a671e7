//! The throttle: how fast changes enter transaction groups (`dmu_tx_delay`,
//! `dsl_pool_need_dirty_delay`, `dsl_pool_dirty_space`).
//!
//! Dirty bytes belong to changes in groups that are not on disk yet: at most so many while a change
//! is being made, and what it really made dirty from then on; all changes of a group together count at
//! least for the blocks that they made dirty. From `zfs_delay_min_dirty_percent` of the limit on, each
//! change is delayed by `zfs_delay_scale * (dirty - from) / (limit - dirty)`, which grows smoothly, so
//! that changes come as fast as the devices take them and no one waits for a whole group. Delays stand
//! in line: two are never over at the same time, or many writers would come many times as fast. At the
//! limit changes wait. The limit is `zfs_dirty_data_max`, if the pool was not opened with one of its own.
//!
//! From `zfs_dirty_data_sync_percent` on, or `zfs_dirty_data_sync` if that is less, the open group is
//! quiesced without waiting for its time: early, so that it is written while changes enter the next one.
//! All these are asked for at each change.
//!
//! A group has the pointers that are freed in it in memory, until it is on disk: they count as dirty, too.
//! Once so many were freed in a group that it must be quiesced, no change that frees more is assigned to it.
//!
//! Invariant: when a group is on disk, nothing of it is dirty.

use crate::tunables;
use cenote_format::invariant;
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes that a change counts for at least: so much memory an object may take that is being changed,
/// or one that was freed and has to be remembered.
pub(super) const LEAST: u64 = 4096;
/// Longest delay of one change.
const MAX_DELAY: Duration = Duration::from_millis(100);

/// Dirty bytes of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Dirty {
    /// What its changes count for.
    entered: u64,
    /// What they made dirty: a change of a few bytes makes a whole block dirty, the next one in this
    /// block nothing more.
    made: u64,
}

impl Dirty {
    fn bytes(&self) -> u64 {
        self.entered.max(self.made)
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Bytes of each group that is not on disk.
    dirty: BTreeMap<u64, Dirty>,
    /// Bytes of pointers that were freed in the open group; they are among its dirty ones.
    freed: u64,
    /// When the last of the delays is over.
    last_delay: Option<Duration>,
}

impl Throttle {
    /// Dirty bytes of all groups.
    pub fn bytes(&self) -> u64 {
        self.dirty.values().map(Dirty::bytes).sum()
    }

    /// Dirty bytes of a group.
    pub fn bytes_of(&self, txg: u64) -> u64 {
        self.dirty.get(&txg).map_or(0, Dirty::bytes)
    }

    /// Whether a change of so many bytes has to wait for a group to be written; `frees`: it frees
    /// something.
    pub fn is_full(&self, bytes: u64, frees: bool, limit: u64) -> bool {
        let freed = tunables::dirty_data_sync(limit).max(1);
        bytes > 0 && self.bytes() >= limit || frees && self.freed >= freed
    }

    /// A change of so many bytes is assigned to a group. They are an estimate: of a range that no file can have it is the last
    /// number.
    pub fn enter(&mut self, txg: u64, bytes: u64) {
        let last = self.dirty.last_key_value().map(|(last, _)| *last);
        invariant!(last <= Some(txg), "a change is assigned to group {txg} after group {last:?}");
        let dirty = self.dirty.entry(txg).or_default();
        dirty.entered = dirty.entered.saturating_add(bytes);
    }

    /// A change is made: it did not need `spare` of the bytes that it was assigned with, `made` so many
    /// dirty, and `freed` so many bytes of pointers. False: it was not assigned to the group.
    pub fn leave(&mut self, txg: u64, spare: u64, made: u64, freed: u64) -> bool {
        self.freed = self.freed.saturating_add(freed);
        let Some(dirty) = self.dirty.get_mut(&txg) else { return false };
        let Some(entered) = dirty.entered.checked_sub(spare) else { return false };
        dirty.entered = entered.saturating_add(freed);
        dirty.made = dirty.made.saturating_add(made).saturating_add(freed);
        true
    }

    /// The open group is quiesced.
    pub fn quiesced(&mut self) {
        self.freed = 0;
    }

    /// Group `txg` and those before it are on disk.
    pub fn synced(&mut self, txg: u64) {
        self.dirty.retain(|t, _| *t > txg);
    }

    /// Until when a change of so many bytes that comes `now` is delayed; `None`: it is not.
    pub fn delay(&mut self, bytes: u64, limit: u64, now: Duration) -> Option<Duration> {
        let dirty = self.bytes();
        let from = limit / 100 * tunables::DELAY_MIN_DIRTY_PERCENT.get();
        let over = dirty.saturating_sub(from);
        if bytes == 0 || over == 0 {
            return None;
        }
        Some(self.stand_in_line(delay_of(over, limit.saturating_sub(dirty)), now))
    }

    /// When a change goes on that is delayed by `delay`.
    fn stand_in_line(&mut self, delay: Duration, now: Duration) -> Duration {
        let until = self.last_delay.map_or(now, |last| last.max(now)).saturating_add(delay);
        self.last_delay = Some(until);
        until
    }
}

/// How long a change is kept waiting with `over` bytes more dirty than are let through at once, and
/// `left` until the limit: the closer to the limit, the longer.
fn delay_of(over: u64, left: u64) -> Duration {
    let factor = over as f64 / left.max(1) as f64;
    let delay = factor * tunables::DELAY_SCALE.get() as f64 / 1e9;
    Duration::from_secs_f64(delay.min(MAX_DELAY.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_smoothly_and_stand_in_line() {
        let delays: Vec<_> = (0..=400).map(|over| delay_of(over, 400 - over)).collect();
        assert_eq!(delays[0], Duration::ZERO);
        assert!(delays.windows(2).all(|d| d[0] < d[1] || d[1] == MAX_DELAY));
        assert_eq!(delays[200], Duration::from_nanos(tunables::DELAY_SCALE.default));
        assert_eq!(delays[400], MAX_DELAY);
        let (mut throttle, now) = (Throttle::default(), Duration::from_secs(7));
        let ms = Duration::from_millis;
        assert_eq!(throttle.stand_in_line(ms(5), now), now + ms(5));
        assert_eq!(throttle.stand_in_line(ms(5), now), now + ms(10));
        assert_eq!(throttle.stand_in_line(ms(5), now + ms(30)), now + ms(35));
    }
}
