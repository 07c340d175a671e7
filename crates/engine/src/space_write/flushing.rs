//! How many metaslabs a transaction group flushes (`spa_flush_metaslabs`,
//! `spa_estimate_metaslabs_to_flush`).
//!
//! # Idea
//!
//! A log goes when the last metaslab whose changes are only there is flushed, so logs go oldest
//! first, and metaslabs are flushed in the order of their unflushed txgs. Three things grow with
//! every txg and are given back by flushing only: the blocks of the logs, their number, and the
//! memory of what is unflushed. Each has a limit. As they grow at a rate that is known fairly well
//! (what the last logs had), it is known too when each limit would be met if nothing were flushed,
//! and what has to be flushed by which txg so that it is not:
//!
//! ```text
//!  used ^                      / without flushing        rows, oldest first:
//!       |---------------------/------------- limit          metaslabs  m1  m2  m3 ...
//!       |                   / |                             gives back b1  b2  b3 ...
//!       |                 /   |  row 1 has to be gone
//!       |               /     j1: F = m1   j2: F = m1 + m2   ...
//!       +--+--+--+--+--+--+--+--> txgs from now
//! ```
//!
//! A *deadline* `(j, F)` says that by the end of the `j`-th txg from now `F` metaslabs must be
//! flushed. The txg that is being written flushes `floor(max F / j)` of them, and at least
//! `zfs_min_metaslabs_to_flush`.
//!
//! # Bound, and why it holds
//!
//! Let the prediction be right, and let `r` be the greatest `F / j`.
//!
//! *No deadline is missed.* For `j = 1` the quotient is `F` itself, so what has to be flushed now
//! is flushed now. A deadline with `j > 1` comes closer by a txg at a time, until it is one with
//! `j = 1`.
//!
//! *No txg flushes more than `ceil(r)`.* Say `F / j <= c` for all deadlines, with `c = ceil(r)`. If
//! this txg flushes `c`, then `(F - c) / (j - 1) <= c` for what is left, as `F - c <= c j - c`. If
//! it flushes only `c - 1`, as all quotients are less than `c`, then `F <= c j - 1`, and again
//! `F - (c - 1) <= c (j - 1)`. So the next txg has quotients of no more than `c` either.
//!
//! *No constant rate less than `r` would do*, by the definition of `r`; and `floor` puts off what
//! can be put off. In particular, where `n` metaslabs change in every txg, each log has `b` blocks and
//! the limit is `L`, each metaslab is flushed once in `L / b` txgs: as a log holds changes of all
//! of them, no algorithm can do with less.
//!
//! *The prediction may be wrong* for later txgs, and then quotients change; deadlines of `j = 1` do
//! not depend on it, as they are computed from the changes that this txg really has: the changes of its
//! first pass are known, and one block (or the last passes of the last txg) is set aside for the
//! other passes. So at the end of each txg the logs have no more blocks than the limit, or only
//! the blocks of the log of that txg itself, and the same holds for memory.
//!
//! What this does not count: metaslabs that are being loaded cannot be flushed, and hold back their
//! logs for a txg or two.
//!
//! # Rows
//!
//! Neighbouring logs are summed up if there are more than `zfs_max_logsm_summary_length` of them. A
//! row has to be flushed when its first block has to go, so that fewer rows flush a little
//! earlier, never later.

use crate::tunables::{self, usable_memory};
use cenote_format::invariant;

/// The limits, as the tunables set them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Bytes of memory for unflushed changes.
    pub memory: u64,
    /// Blocks of all logs: so many per cent of the metaslabs with unflushed changes, from and to.
    pub block_pct: u64,
    pub block_min: u64,
    pub block_max: u64,
    /// Logs.
    pub logs: u64,
    /// Metaslabs that every txg flushes if there are so many.
    pub least: u64,
    /// Rows of the summary.
    pub rows: u64,
    /// Logs that tell how fast the log grows.
    pub walk: u64,
}

impl Limits {
    /// As they are now.
    pub fn now() -> Limits {
        let share = usable_memory().map(|all| {
            let share = u128::from(all) * u128::from(tunables::UNFLUSHED_MAX_MEM_PPM.get());
            u64::try_from(share / 1_000_000).unwrap_or(u64::MAX)
        });
        Limits {
            memory: tunables::UNFLUSHED_MAX_MEM_AMT.get().min(share.unwrap_or(u64::MAX)),
            block_pct: tunables::UNFLUSHED_LOG_BLOCK_PCT.get(),
            block_min: tunables::UNFLUSHED_LOG_BLOCK_MIN.get(),
            block_max: tunables::UNFLUSHED_LOG_BLOCK_MAX.get(),
            logs: tunables::UNFLUSHED_LOG_TXG_MAX.get(),
            least: tunables::MIN_METASLABS_TO_FLUSH.get(),
            rows: tunables::MAX_LOGSM_SUMMARY_LENGTH.get(),
            walk: tunables::MAX_LOG_WALKING.get(),
        }
    }

    /// Most blocks of all logs (`spa_log_sm_blocklimit`).
    pub fn blocks(&self, metaslabs: u64) -> u64 {
        let share = u128::from(metaslabs) * u128::from(self.block_pct) / 100;
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        share.max(self.block_min).min(self.block_max)
    }
}

/// One log or several neighbouring ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub logs: u64,
    pub blocks: u64,
    /// Metaslabs that have their oldest unflushed change there.
    pub metaslabs: u64,
    /// Bytes of memory of all that these have unflushed.
    pub memory: u64,
}

/// What grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Growth {
    /// In the txg that is being written.
    pub first: u64,
    /// In each txg after it.
    pub later: u64,
}

/// What the logs and the memory grow by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Rates {
    pub blocks: Growth,
    pub memory: Growth,
}

/// Sums neighbouring rows up, so that there are no more than `most`.
pub(super) fn summary(rows: Vec<Row>, most: u64) -> Vec<Row> {
    let each = (rows.len() as u64).div_ceil(most.max(1)).max(1);
    let sum = |part: &[Row]| {
        part.iter().fold(Row::default(), |sum, row| Row {
            logs: sum.logs.saturating_add(row.logs),
            blocks: sum.blocks.saturating_add(row.blocks),
            metaslabs: sum.metaslabs + row.metaslabs,
            memory: sum.memory + row.memory,
        })
    };
    let rows: Vec<Row> =
        rows.chunks(usize::try_from(each).unwrap_or(usize::MAX)).map(sum).collect();
    let count = rows.len() as u64;
    invariant!(count <= most.max(1), "{count} rows of logs, where {most} may be");
    rows
}

/// The first txg from now, from 1, at whose end more than `slack` of something that grows is too
/// much; `None`: never.
fn deadline(slack: i128, growth: Growth) -> Option<u64> {
    let left = slack - i128::from(growth.first);
    match growth.later {
        _ if left < 0 => Some(1),
        0 => None,
        later => u64::try_from(left / i128::from(later) + 2).ok(),
    }
}

/// Metaslabs that the txg that is being written has to flush. `rows` are oldest first.
pub(super) fn to_flush(rows: &[Row], limits: &Limits, rates: &Rates) -> u64 {
    let all: u64 = rows.iter().map(|row| row.metaslabs).sum();
    let most = limits.blocks(all);
    let one = Growth { first: 1, later: 1 };
    let blocks = needed(rows, |row| row.blocks, most, rates.blocks);
    let logs = needed(rows, |row| row.logs, limits.logs, one);
    let memory = needed_for_memory(rows, limits.memory, rates.memory);
    blocks.max(logs).max(memory).max(limits.least).min(all)
}

/// For what a row gives back when all its metaslabs are flushed.
fn needed(rows: &[Row], of: impl Fn(&Row) -> u64, limit: u64, growth: Growth) -> u64 {
    let used: i128 = rows.iter().map(|row| i128::from(of(row))).sum();
    let mut slack = i128::from(limit) - used;
    let (mut metaslabs, mut most) = (0u64, 0);
    for row in rows {
        let Some(at) = deadline(slack, growth) else { break };
        metaslabs += row.metaslabs;
        most = most.max(metaslabs / at.max(1));
        slack += i128::from(of(row));
    }
    most
}

/// For memory, of which each metaslab gives its own share back.
fn needed_for_memory(rows: &[Row], limit: u64, growth: Growth) -> u64 {
    let used: i128 = rows.iter().map(|row| i128::from(row.memory)).sum();
    let mut slack = i128::from(limit) - used;
    let (mut metaslabs, mut most) = (0u64, 0);
    for row in rows.iter().filter(|row| row.metaslabs > 0) {
        // Between the first and the last metaslab of a row deadlines are in proportion, so that
        // the greatest quotient is at one of these; but those that are due now count exactly.
        let share = i128::from(row.memory / row.metaslabs);
        let due = (i128::from(growth.first) - slack).max(0);
        let due = (due + share.max(1) - 1) / share.max(1);
        let due = u64::try_from(due).unwrap_or(u64::MAX).min(row.metaslabs);
        if due > 0 {
            most = most.max(metaslabs + due);
        }
        let Some(first) = deadline(slack, growth) else { break };
        most = most.max((metaslabs + 1) / first.max(1));
        metaslabs += row.metaslabs;
        if let Some(last) = deadline(slack + i128::from(row.memory) - share, growth) {
            most = most.max(metaslabs / last.max(1));
        }
        slack += i128::from(row.memory);
    }
    most
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::VecDeque;

    fn limits(memory: u64, blocks: u64, logs: u64) -> Limits {
        Limits {
            memory,
            block_pct: 0,
            block_min: blocks,
            block_max: blocks,
            logs,
            least: 0,
            rows: 1000,
            walk: 5,
        }
    }

    /// A pool in which some metaslabs change in each txg: unflushed txg and memory of each.
    struct Pool {
        metaslabs: Vec<Option<(u64, u64)>>,
        logs: VecDeque<(u64, u64)>,
        txg: u64,
    }

    impl Pool {
        fn new(metaslabs: usize) -> Pool {
            Pool { metaslabs: vec![None; metaslabs], logs: VecDeque::new(), txg: 0 }
        }

        fn rows(&self, limits: &Limits) -> Vec<Row> {
            let row = |&(txg, blocks): &(u64, u64)| {
                let here = self.metaslabs.iter().flatten().filter(|m| m.0 == txg);
                let (metaslabs, memory) = here.fold((0, 0), |sum, m| (sum.0 + 1, sum.1 + m.1));
                Row { logs: 1, blocks, metaslabs, memory }
            };
            summary(self.logs.iter().map(row).collect(), limits.rows)
        }

        /// A txg with a log of `blocks` that changes `changed` metaslabs from `from` on by `memory`
        /// each; how many were flushed.
        fn step(
            &mut self,
            limits: &Limits,
            blocks: u64,
            (from, changed): (usize, usize),
            memory: u64,
        ) -> u64 {
            self.txg += 1;
            let walked = self.logs.iter().rev().take(limits.walk as usize);
            let (sum, count) =
                walked.fold((blocks, 1), |(sum, count), log| (sum + log.1, count + 1));
            let grows = memory * changed as u64;
            let rates = Rates {
                blocks: Growth { first: blocks, later: sum.div_ceil(count) },
                memory: Growth { first: grows, later: grows },
            };
            let flush = to_flush(&self.rows(limits), limits, &rates);
            let mut order: Vec<usize> = (0..self.metaslabs.len()).collect();
            order.retain(|i| self.metaslabs[*i].is_some());
            order.sort_by_key(|i| self.metaslabs[*i]);
            order.truncate(flush as usize);
            order.iter().for_each(|i| self.metaslabs[*i] = None);
            let count = self.metaslabs.len();
            for i in (from..from + changed).map(|i| i % count) {
                self.metaslabs[i].get_or_insert((self.txg, 0)).1 += memory;
            }
            self.logs.push_back((self.txg, blocks));
            let oldest = self.metaslabs.iter().flatten().map(|m| m.0).min();
            self.logs.retain(|log| log.0 == self.txg || oldest.is_some_and(|o| log.0 >= o));
            order.len() as u64
        }

        fn blocks(&self) -> u64 {
            self.logs.iter().map(|log| log.1).sum()
        }

        fn memory(&self) -> u64 {
            self.metaslabs.iter().flatten().map(|m| m.1).sum()
        }
    }

    #[test]
    fn a_steady_load_is_flushed_evenly_and_no_more_than_must_be() {
        for (metaslabs, blocks, limit) in [(255, 1, 1000), (255, 7, 1020), (1000, 3, 500)] {
            let limits = limits(u64::MAX, limit, 100_000);
            let mut pool = Pool::new(metaslabs);
            let steps = 4 * limit / blocks + 100;
            let mut flushed = Vec::new();
            for _ in 0..steps {
                flushed.push(pool.step(&limits, blocks, (0, metaslabs), 64));
                assert!(pool.blocks() <= limit, "{} of {limit}", pool.blocks());
            }
            // What every algorithm needs is one flush of each metaslab per `limit / blocks` txgs.
            let bound = metaslabs as f64 * blocks as f64 / limit as f64;
            let most = *flushed.iter().max().unwrap();
            assert!(most as f64 <= bound.ceil() + 2.0, "{most} {bound}");
            let sum: u64 = flushed.iter().sum();
            assert!((sum as f64) <= bound * steps as f64 * 1.05 + 10.0, "{sum} {bound} {steps}");
        }
    }

    #[test]
    fn memory_is_kept_under_its_limit_evenly() {
        let limits = limits(100_000, 1 << 17, 100_000);
        let mut pool = Pool::new(100);
        let mut flushed = Vec::new();
        for _ in 0..2000 {
            flushed.push(pool.step(&limits, 1, (0, 100), 32));
            assert!(pool.memory() <= 100_000, "{}", pool.memory());
        }
        // Half of the limit is in use when all are flushed in turn.
        assert!(*flushed.iter().skip(200).max().unwrap() <= 5, "{flushed:?}");
    }

    #[test]
    fn few_rows_flush_earlier() {
        let many = limits(u64::MAX, 300, 1000);
        let few = Limits { rows: 10, ..many };
        let mut sums = [0, 0];
        for (limits, sum) in [many, few].iter().zip(&mut sums) {
            let mut pool = Pool::new(60);
            for _ in 0..1500 {
                *sum += pool.step(limits, 1, (0, 60), 32);
                assert!(pool.blocks() <= 300);
            }
        }
        assert!(sums[0] <= sums[1] && sums[1] < sums[0] * 13 / 10, "{sums:?}");
    }

    #[test]
    fn deadlines() {
        let growth = Growth { first: 4, later: 3 };
        assert_eq!(deadline(3, growth), Some(1));
        assert_eq!(deadline(4, growth), Some(2));
        assert_eq!(deadline(6, growth), Some(2));
        assert_eq!(deadline(7, growth), Some(3));
        assert_eq!(deadline(7, Growth { first: 4, later: 0 }), None);
        assert_eq!(deadline(-1, Growth::default()), Some(1));
    }

    #[test]
    fn limits_are_kept_whatever_comes() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let metaslabs = 1 + random(80) as usize;
            let (memory, limit, logs) = (1 + random(20_000), 1 + random(200), 1 + random(60));
            let limits = limits(memory, limit, logs);
            let mut pool = Pool::new(metaslabs);
            for _ in 0..1 + random(200) {
                let (blocks, from) = (1 + random(30), random(80) as usize);
                let changed = (random(80) as usize).min(metaslabs);
                pool.step(&limits, blocks, (from, changed), random(300));
                assert!(pool.blocks() <= limit.max(blocks), "{} blocks", pool.blocks());
                assert!(pool.logs.len() as u64 <= logs);
            }
        }
    }
}
