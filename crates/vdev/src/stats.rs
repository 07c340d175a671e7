//! Counters of a leaf vdev (`vdev_stat_t`, `vdev_stat_ex_t`).
//!
//! Operations, bytes and latencies are counted at leaves only; interior vdevs add up those of
//! their children when asked. Errors are counted where they were seen and do not add up: a bad
//! copy that another one made good is no error of the mirror.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Number of buckets of a latency histogram (`VDEV_L_HISTO_BUCKETS`).
pub const LATENCY_BUCKETS: usize = 37;

/// Latencies by power of two: bucket `i` counts reads that took from `2^i` to `2^(i+1) - 1` ns.
/// The first bucket also holds 0, the last one everything longer.
pub type LatencyHistogram = [u64; LATENCY_BUCKETS];

pub(crate) struct Stats {
    read_ops: AtomicU64,
    read_bytes: AtomicU64,
    read_errors: AtomicU64,
    checksum_errors: AtomicU64,
    in_flight: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
}

impl Default for Stats {
    fn default() -> Stats {
        let zero = || AtomicU64::new(0);
        Stats {
            read_ops: zero(),
            read_bytes: zero(),
            read_errors: zero(),
            checksum_errors: zero(),
            in_flight: zero(),
            latency: [const { AtomicU64::new(0) }; LATENCY_BUCKETS],
        }
    }
}

impl Stats {
    /// Counts `n` reads as under way.
    pub(crate) fn begin(&self, n: usize) {
        self.in_flight.fetch_add(n as u64, Relaxed);
    }

    /// One read of `begin`'s came back well after `latency`.
    pub(crate) fn completed(&self, bytes: usize, latency: Duration) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.read_ops.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (ns.max(1).ilog2() as usize).min(LATENCY_BUCKETS - 1);
        self.latency[bucket].fetch_add(1, Relaxed);
    }

    /// One read of `begin`'s failed; `counts` if that is an error of the device.
    pub(crate) fn failed(&self, counts: bool) {
        self.in_flight.fetch_sub(1, Relaxed);
        if counts {
            self.read_error();
        }
    }

    pub(crate) fn read_error(&self) {
        self.read_errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn checksum_error(&self) {
        self.checksum_errors.fetch_add(1, Relaxed);
    }

    /// Reads under way.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Relaxed)
    }

    /// (read, checksum) errors.
    pub(crate) fn errors(&self) -> (u64, u64) {
        (self.read_errors.load(Relaxed), self.checksum_errors.load(Relaxed))
    }

    /// (operations, bytes) read.
    pub(crate) fn reads(&self) -> (u64, u64) {
        (self.read_ops.load(Relaxed), self.read_bytes.load(Relaxed))
    }

    pub(crate) fn add_latency(&self, sum: &mut LatencyHistogram) {
        for (s, n) in sum.iter_mut().zip(&self.latency) {
            *s += n.load(Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_into_powers_of_two() {
        let s = Stats::default();
        s.begin(5);
        for ns in [0, 1, 1023, 1024] {
            s.completed(100, Duration::from_nanos(ns));
        }
        s.completed(1, Duration::from_secs(100_000));
        let mut h = [0; LATENCY_BUCKETS];
        s.add_latency(&mut h);
        assert_eq!((h[0], h[9], h[10], h[36]), (2, 1, 1, 1));
        assert_eq!(s.reads(), (5, 401));
        assert_eq!(s.in_flight(), 0);
    }
}
