//! Counters of a leaf vdev (`vdev_stat_t`, `vdev_stat_ex_t`).
//!
//! Operations, bytes and latencies are counted at leaves only; interior vdevs add up the counts of
//! their children when asked. Errors are counted where they were seen and do not add up: a bad
//! copy that another one made good is no error of the mirror. Repairs are counted at the leaf that was
//! written to.

use crate::tunables::SLOW_IO_MS;
use cenote_format::invariant;
use std::io::{self, ErrorKind};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of buckets of a latency histogram (`VDEV_L_HISTO_BUCKETS`).
pub const LATENCY_BUCKETS: usize = 37;

/// Latencies by power of two: bucket `i` counts reads (or writes) that took from `2^i` to
/// `2^(i+1) - 1` ns. The first bucket also holds 0, the last one everything longer.
pub type LatencyHistogram = [u64; LATENCY_BUCKETS];

/// Counts what something took, without locks.
#[derive(Debug)]
pub struct Latencies {
    counts: [AtomicU64; LATENCY_BUCKETS],
    nanoseconds: AtomicU64,
}

/// What [`Latencies`] counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyFigures {
    /// How often it took how long.
    pub histogram: LatencyHistogram,
    /// All of it.
    pub total: Duration,
}

impl LatencyFigures {
    /// How often it was done.
    pub fn count(&self) -> u64 {
        self.histogram.iter().sum()
    }
}

impl Default for Latencies {
    fn default() -> Latencies {
        let counts = [const { AtomicU64::new(0) }; LATENCY_BUCKETS];
        Latencies { counts, nanoseconds: AtomicU64::new(0) }
    }
}

impl Latencies {
    /// Counts once more what took `time`.
    pub fn add(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (ns.max(1).ilog2() as usize).min(LATENCY_BUCKETS - 1);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(ns, Relaxed);
    }

    /// Does something, and counts what that took.
    pub fn time<T>(&self, f: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let done = f();
        self.add(started.elapsed());
        done
    }

    /// What was counted so far.
    pub fn now(&self) -> LatencyFigures {
        let total = Duration::from_nanos(self.nanoseconds.load(Relaxed));
        LatencyFigures { histogram: self.counts.each_ref().map(|n| n.load(Relaxed)), total }
    }
}

/// How long a device that is busy ends nothing before it counts as hanging.
const HANGS: Duration = Duration::from_secs(3);

/// What a device is busy with: batches of reads and of writes, and flushes.
#[derive(Default)]
pub(crate) struct Activity {
    under_way: AtomicU64,
    /// When the first began, or the last ended: milliseconds since the first use of any.
    since: AtomicU64,
}

/// Something that a device is busy with, until this is dropped.
pub(crate) struct Busy<'a>(&'a Activity);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.since.store(Activity::now(), Relaxed);
        self.0.under_way.fetch_sub(1, Relaxed);
    }
}

impl Activity {
    fn now() -> u64 {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The device has one thing more to do.
    pub(crate) fn begin(&self) -> Busy<'_> {
        if self.under_way.load(Relaxed) == 0 {
            self.since.store(Activity::now(), Relaxed);
        }
        self.under_way.fetch_add(1, Relaxed);
        Busy(self)
    }

    /// Whether the device is busy and has not ended anything for long. A guess: it decides which leaf is asked first.
    pub(crate) fn hangs(&self) -> bool {
        let idle = Activity::now().saturating_sub(self.since.load(Relaxed));
        self.under_way.load(Relaxed) > 0 && Duration::from_millis(idle) >= HANGS
    }
}

/// Counters of a vdev (`vdev_stat_ex_t`).
#[derive(Default)]
pub(crate) struct Stats {
    pub reads: Io,
    pub writes: Io,
    /// What the leaf's device is busy with.
    pub activity: Activity,
    checksum_errors: AtomicU64,
    /// Repairs that were tried since errors were last cleared.
    heals_tried: AtomicU64,
    /// Bytes that repairs wrote (`vs_self_healed`).
    self_healed: AtomicU64,
    /// Bytes that the scan under way, or the last one, wrote (`vs_scan_processed`).
    scanned: AtomicU64,
    /// Requests that failed where nothing is allocated: patterns (`vs_initialize_errors`), and what the device was told
    /// (`vs_trim_errors`).
    initialize_errors: AtomicU64,
    trim_errors: AtomicU64,
    /// The last write or flush that failed did so since there was no space below the device.
    no_space: AtomicBool,
}

/// Counters of the reads or of the writes.
#[derive(Default)]
pub(crate) struct Io {
    ops: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    in_flight: AtomicU64,
    /// Operations that took `zio_slow_io_ms` or longer (`vs_slow_ios`).
    slow: AtomicU64,
    latency: Latencies,
}

impl Io {
    /// Counts `n` operations as under way.
    pub(crate) fn begin(&self, n: usize) {
        self.in_flight.fetch_add(n as u64, Relaxed);
    }

    fn ended(&self) {
        let before = self.in_flight.fetch_sub(1, Relaxed);
        // Leaves of a mirror are chosen by it.
        invariant!(before > 0, "an operation of a device ends that did not begin");
    }

    /// One operation of `begin`'s came back well after `latency` (`vdev_stat_update`). Returns whether it was slow.
    pub(crate) fn completed(&self, bytes: usize, latency: Duration) -> bool {
        self.ended();
        self.ops.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
        let limit = SLOW_IO_MS.get();
        let slow = limit != 0 && latency >= Duration::from_millis(limit);
        if slow {
            self.slow.fetch_add(1, Relaxed);
        }
        self.latency.add(latency);
        slow
    }

    /// One operation of `begin`'s failed; `counts` if that is an error of the device.
    pub(crate) fn failed(&self, counts: bool) {
        self.ended();
        if counts {
            self.error();
        }
    }

    /// Counts an error.
    pub(crate) fn error(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    /// Operations under way.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Relaxed)
    }

    /// (operations, bytes) done.
    pub(crate) fn done(&self) -> (u64, u64) {
        (self.ops.load(Relaxed), self.bytes.load(Relaxed))
    }

    /// What all that is done took together.
    pub(crate) fn time(&self) -> Duration {
        self.latency.now().total
    }

    pub(crate) fn add_latency(&self, sum: &mut LatencyHistogram) {
        for (s, n) in sum.iter_mut().zip(self.latency.now().histogram) {
            *s += n;
        }
    }
}

impl Stats {
    pub(crate) fn checksum_error(&self) {
        self.checksum_errors.fetch_add(1, Relaxed);
    }

    /// Counts a pattern that could not be written.
    pub(crate) fn initialize_error(&self) {
        self.initialize_errors.fetch_add(1, Relaxed);
    }

    /// Counts a range that the device could not be told of.
    pub(crate) fn trim_error(&self) {
        self.trim_errors.fetch_add(1, Relaxed);
    }

    /// Such errors, of (patterns, what the device was told).
    pub(crate) fn vacant_errors(&self) -> (u64, u64) {
        (self.initialize_errors.load(Relaxed), self.trim_errors.load(Relaxed))
    }

    /// Notes why a write or flush failed.
    pub(crate) fn write_failed(&self, why: &io::Error) {
        let full = matches!(why.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        self.no_space.store(full, Relaxed);
    }

    /// Whether the last one that failed did so for want of space.
    pub(crate) fn has_no_space(&self) -> bool {
        self.no_space.load(Relaxed)
    }

    /// Counts an attempt to write right bytes where there were wrong ones.
    pub(crate) fn heal_tried(&self) {
        self.heals_tried.fetch_add(1, Relaxed);
    }

    /// Such an attempt succeeded.
    pub(crate) fn healed(&self, bytes: usize) {
        self.self_healed.fetch_add(bytes as u64, Relaxed);
    }

    /// Attempts since errors were last cleared.
    pub(crate) fn scanned(&self, bytes: usize) {
        self.scanned.fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes that scans wrote since the last one began.
    pub(crate) fn scan_processed(&self) -> u64 {
        self.scanned.load(Relaxed)
    }

    /// A scan begins.
    pub(crate) fn begin_scan(&self) {
        self.scanned.store(0, Relaxed);
    }

    /// Repairs that were tried.
    pub(crate) fn heals_tried(&self) -> u64 {
        self.heals_tried.load(Relaxed)
    }

    /// Bytes that repairs wrote.
    pub(crate) fn self_healed(&self) -> u64 {
        self.self_healed.load(Relaxed)
    }

    /// Reads and writes that were slow.
    pub(crate) fn slow(&self) -> u64 {
        self.reads.slow.load(Relaxed) + self.writes.slow.load(Relaxed)
    }

    /// Forgets all errors, and what was slow.
    pub(crate) fn clear_errors(&self) {
        let errors = [&self.reads.errors, &self.writes.errors, &self.checksum_errors];
        let others = [&self.heals_tried, &self.reads.slow, &self.writes.slow];
        for counter in errors.into_iter().chain(others) {
            counter.store(0, Relaxed);
        }
        self.no_space.store(false, Relaxed);
    }

    /// (read, write, checksum) errors.
    pub(crate) fn errors(&self) -> (u64, u64, u64) {
        let errors = |io: &Io| io.errors.load(Relaxed);
        (errors(&self.reads), errors(&self.writes), self.checksum_errors.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_into_powers_of_two() {
        let s = Stats::default();
        s.reads.begin(5);
        for ns in [0, 1, 1023, 1024] {
            s.reads.completed(100, Duration::from_nanos(ns));
        }
        s.reads.completed(1, Duration::from_secs(100_000));
        let mut h = [0; LATENCY_BUCKETS];
        s.reads.add_latency(&mut h);
        assert_eq!((h[0], h[9], h[10], h[36]), (2, 1, 1, 1));
        assert_eq!(s.reads.done(), (5, 401));
        assert_eq!(s.reads.in_flight(), 0);
        assert_eq!(s.writes.done(), (0, 0));
        assert_eq!(s.slow(), 1);
        s.clear_errors();
        assert_eq!(s.slow(), 0);
        let figures = s.reads.latency.now();
        assert_eq!((figures.count(), figures.histogram), (5, h));
        assert_eq!(figures.total, Duration::from_secs(100_000) + Duration::from_nanos(2048));
    }
}
