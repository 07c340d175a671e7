//! Which devices have had too many errors (OpenZFS's agent `zfs-diagnosis`).
//!
//! Reports of a leaf's errors are counted ([`Rate`], `fmd_serd_eng_t`): so many within so many seconds, and the leaf is found
//! to be bad. The vdev properties say how many: its own, or else the properties of the vdevs above it ([`Bounds`]).
//!
//! | property | errors | by default | the leaf is |
//! |---|---|---|---|
//! | `checksum_n`, `checksum_t` | bytes that do not verify | 10 in 600 s | degraded |
//! | `io_n`, `io_t` | requests that fail | 10 in 600 s | faulted; degraded, where its vdev needs it |
//! | `slow_io_n`, `slow_io_t` | slow requests | never | degraded |
//!
//! A verdict is given once, and again after the leaf was healthy meanwhile. The owner of the pool acts by it
//! ([`crate::events::act_by`]); in a program that does not act nothing is counted.

use crate::Pool;
use crate::vdev_props::number_of;
use cenote_vdev::Vdev;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// Errors, and within which time, where no property says it.
const ERRORS: u64 = 10;
const WITHIN: Duration = Duration::from_secs(600);
/// A property that says nothing (`none`).
const NONE: u64 = u64::MAX;
/// Most errors of a leaf that are kept.
const MOST: u64 = 10_000;

/// What is done with a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It counts as degraded (`vdev_degrade`).
    Degrade,
    /// It goes out of use, if its vdev can do without it (`vdev_fault`).
    Fault,
}

/// A kind of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Checksum,
    Io,
    Slow,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Checksum, Kind::Io, Kind::Slow];

    fn properties(self) -> (&'static str, &'static str) {
        match self {
            Kind::Checksum => ("checksum_n", "checksum_t"),
            Kind::Io => ("io_n", "io_t"),
            Kind::Slow => ("slow_io_n", "slow_io_t"),
        }
    }

    fn verdict(self) -> Verdict {
        match self {
            Kind::Checksum | Kind::Slow => Verdict::Degrade,
            Kind::Io => Verdict::Fault,
        }
    }
}

/// So many errors within such a time.
pub(crate) type Bound = (u64, Duration);

/// By leaf and kind; what is not there is never too much.
pub(crate) type Bounds = HashMap<(u64, Kind), Bound>;

/// What the properties of a pool's vdevs say.
pub(crate) fn bounds(pool: &Pool) -> Bounds {
    let mut found = Bounds::new();
    let tree = pool.store().vdevs();
    let mut line = Vec::new();
    collect(pool, tree.root(), &mut line, &mut found);
    found
}

fn collect(pool: &Pool, vdev: &Arc<Vdev>, line: &mut Vec<Arc<Vdev>>, found: &mut Bounds) {
    line.push(vdev.clone());
    if vdev.is_leaf() {
        for kind in Kind::ALL {
            // The nearest vdev that says something counts.
            let own = |vdev: &Arc<Vdev>, name| number_of(pool, vdev, name).filter(|n| *n != NONE);
            let set = |name| line.iter().rev().find_map(|vdev| own(vdev, name));
            let (n, t) = kind.properties();
            let within = set(t).map(Duration::from_secs);
            let bound = match (kind, set(n), within) {
                (Kind::Slow, Some(n), Some(t)) => (n, t),
                (Kind::Slow, ..) => continue,
                (_, n, t) => (n.unwrap_or(ERRORS), t.unwrap_or(WITHIN)),
            };
            found.insert((vdev.guid(), kind), bound);
        }
    }
    vdev.children().iter().for_each(|child| collect(pool, child, line, found));
    line.pop();
}

/// Counts errors in time (`fmd_serd_eng_t`).
#[derive(Debug, Default)]
struct Rate {
    times: VecDeque<Instant>,
    fired: bool,
}

impl Rate {
    /// One more. Whether that is too much; said once.
    fn record(&mut self, now: Instant, (n, within): Bound) -> bool {
        let n = usize::try_from(n.clamp(1, MOST)).unwrap_or(usize::MAX);
        if self.fired {
            return false;
        }
        self.times.push_back(now);
        while self.times.len() > n {
            self.times.pop_front();
        }
        let since = self.times.front().map(|first| now.saturating_duration_since(*first));
        self.fired = self.times.len() == n && since.is_some_and(|since| since <= within);
        self.fired
    }
}

static CASES: LazyLock<Mutex<HashMap<(u64, Kind), Rate>>> = LazyLock::new(Mutex::default);

/// One more error of a leaf. What must be done with it, if that is too much.
pub(crate) fn record(guid: u64, kind: Kind, bounds: &Bounds) -> Option<Verdict> {
    let bound = bounds.get(&(guid, kind))?;
    let mut cases = CASES.lock();
    let too_much = cases.entry((guid, kind)).or_default().record(Instant::now(), *bound);
    too_much.then(|| kind.verdict())
}

/// A leaf is healthy, or what it has had came from an outage: that counts no more.
pub fn reset(guid: u64) {
    CASES.lock().retain(|(of, _), _| *of != guid);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_in_a_time_are_too_much() {
        let (start, bound) = (Instant::now(), (3, Duration::from_secs(10)));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut rate = Rate::default();
        let said: Vec<bool> = [0, 8, 16, 24, 25, 26].map(|s| rate.record(at(s), bound)).into();
        // The third within ten seconds, and no other after it.
        assert_eq!(said, [false, false, false, false, true, false]);
        assert!(Rate::default().record(start, (0, Duration::ZERO)), "one is enough");
        let mut rate = Rate::default();
        assert!(
            !rate.record(at(0), (2, Duration::ZERO)) && !rate.record(at(1), (2, Duration::ZERO))
        );
    }

    #[test]
    fn a_leaf_that_was_healthy_begins_anew() {
        let (guid, kind) = (0x0123_4567_89ab_cdef, Kind::Checksum);
        let bounds = Bounds::from([((guid, kind), (2, Duration::from_secs(600)))]);
        for _ in 0..2 {
            assert_eq!(record(guid, kind, &bounds), None);
            assert_eq!(record(guid, kind, &bounds), Some(Verdict::Degrade));
            assert_eq!(record(guid, kind, &bounds), None);
            assert_eq!(record(guid, Kind::Io, &bounds), None);
            reset(guid);
        }
    }
}
