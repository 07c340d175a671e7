//! What a leaf lacks of what its vdev was written with: its dirty time log (`vdev_dtl`).
//!
//! A log is a list of transaction groups, half-open ranges, sorted, that do not touch. What takes part in it:
//!
//! ```text
//!  a write fails, or a flush ──▶ add_missing ──▶ the log, and what is in no list on disk yet (Written::missed)
//!  a scan gave what was lacked ──▶ excise ─────▶ the log
//!  the pool reads its lists ───▶ set_dtl ──────▶ the log
//! ```
//!
//! A list on disk that was not read, or cannot be, counts as one of all groups.
//!
//! Invariants: a resilver takes groups off a log and adds only groups of which it could not give a block, and what was missed
//! meanwhile. What is in no list on disk yet is in the log as well, unless that is of all groups.

use std::ops::Range;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

use cenote_format::invariant;

use crate::vdev::Vdev;

/// How far a copy on a leaf can be trusted to be there and current; the best come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trust {
    /// The leaf works and has the transaction group.
    Good,
    /// The leaf works but may lack the transaction group.
    Stale,
    /// The leaf is not to be used (offline, faulted, a label that does not fit): the last
    /// resort, whose data count only if they verify.
    LastResort,
}

/// Transaction groups that a leaf missed (`DTL_MISSING`).
#[derive(Debug)]
pub(crate) enum Dtl {
    /// The config says that there is a list, and it has not been read.
    Unread,
    /// Half-open ranges of txgs, sorted, not overlapping.
    Ranges(Vec<Range<u64>>),
}

/// The same txgs as sorted ranges that do not touch.
pub(crate) fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|r| !r.is_empty());
    ranges.sort_by_key(|r| r.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for r in ranges {
        match merged.last_mut() {
            Some(last) if r.start <= last.end => last.end = last.end.max(r.end),
            _ => merged.push(r),
        }
    }
    let apart = |two: &[Range<u64>]| two[0].end < two[1].start;
    invariant!(merged.windows(2).all(apart), "groups that a leaf lacks: {merged:?}");
    merged
}

/// The group behind another one. The last of all numbers, which only bytes made to do harm say, has none: then it is that one.
pub(crate) fn behind(txg: u64) -> u64 {
    txg.saturating_add(1)
}

/// The range of one group.
pub(crate) fn only(txg: u64) -> Range<u64> {
    txg..behind(txg)
}

/// Whether sorted ranges have `txg` in them.
fn has(ranges: &[Range<u64>], txg: u64) -> bool {
    let after = ranges.partition_point(|r| r.end <= txg);
    ranges.get(after).is_some_and(|r| r.start <= txg)
}

/// What of `ranges` is not in `gone`.
fn without(ranges: &[Range<u64>], gone: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut rest = ranges.to_vec();
    for gone in gone {
        let cut = |r: Range<u64>| [r.start..r.end.min(gone.start), r.start.max(gone.end)..r.end];
        rest = rest.into_iter().flat_map(cut).filter(|r| !r.is_empty()).collect();
    }
    rest
}

/// What is lacked once a leaf was given `given`, but for the groups `left`; `missed` is in no list on disk yet.
fn rest_of(
    dtl: &Dtl,
    given: &[Range<u64>],
    left: &[Range<u64>],
    missed: &[Range<u64>],
) -> Vec<Range<u64>> {
    let mut now = match dtl {
        // All of a list that cannot be read was given.
        Dtl::Unread => Vec::new(),
        Dtl::Ranges(ranges) => without(ranges, given),
    };
    now.extend_from_slice(left);
    now.extend_from_slice(missed);
    merged(now)
}

/// A resilver takes groups off the log of a leaf. It adds only those of which a block could not be given to it, and what the
/// leaf missed meanwhile: `known` has these besides what it lacked.
fn check_shrinks(guid: u64, after: &[Range<u64>], known: Vec<Range<u64>>) {
    let known = merged(known);
    let covers = |of: &Range<u64>| known.iter().any(|k| k.start <= of.start && of.end <= k.end);
    let grown = after.iter().find(|range| !covers(range));
    invariant!(
        grown.is_none(),
        "leaf {guid} would lack {grown:?} after a resilver, beyond {known:?}"
    );
}
impl Vdev {
    /// How far this leaf can be trusted with blocks born in `txg`. `None`: it has no device.
    pub(crate) fn trust(&self, txg: u64) -> Option<Trust> {
        {
            let opened = self.opened();
            opened.device.as_ref()?;
            if !opened.state.readable() {
                return Some(Trust::LastResort);
            }
        }
        let missing = match &*self.dtl.read() {
            Dtl::Unread => true,
            Dtl::Ranges(ranges) => has(ranges, txg),
        };
        Some(if missing { Trust::Stale } else { Trust::Good })
    }

    /// Whether this leaf missed what was written in `txg` (`vdev_dtl_contains` of `DTL_MISSING`).
    pub(crate) fn lacks(&self, txg: u64) -> bool {
        match &*self.dtl.read() {
            Dtl::Unread => true,
            Dtl::Ranges(ranges) => has(ranges, txg),
        }
    }

    /// How often it was found out that the leaf lacks groups that were written before: what was known before of what
    /// it lacks says no more how far it was brought up to date.
    pub fn dtl_changes(&self) -> u64 {
        self.dtl_changes.load(Relaxed)
    }

    /// What the leaf lacks once it was given what it missed of `given`, but for the groups `left`.
    pub fn lacks_after(&self, given: &[Range<u64>], left: &[Range<u64>]) -> Vec<Range<u64>> {
        let dtl = self.dtl.read();
        let missed = self.written().missed().to_vec();
        let now = rest_of(&dtl, given, left, &missed);
        if let Dtl::Ranges(before) = &*dtl {
            check_shrinks(self.guid, &now, [before, left, &missed].concat());
        }
        now
    }

    /// The leaf was given what it missed of `given`, but for the groups `left` (`vdev_dtl_reassess`).
    pub fn excise(&self, given: &[Range<u64>], left: &[Range<u64>]) {
        let mut dtl = self.dtl.write();
        let missed = self.written().missed().to_vec();
        let now = rest_of(&dtl, given, left, &missed);
        // What could not be given is lacked still.
        let lost = left.iter().find(|range| !range.is_empty() && !has(&now, range.start));
        let guid = self.guid;
        invariant!(lost.is_none(), "leaf {guid} lacks {lost:?}, and would not be known to");
        let lost = missed.iter().find(|range| !range.is_empty() && !has(&now, range.start));
        invariant!(lost.is_none(), "leaf {guid} missed {lost:?}, and would not be known to");
        *dtl = Dtl::Ranges(now);
    }

    pub(crate) fn set_dtl(&self, mut missing: Vec<Range<u64>>) {
        self.dtl_changes.fetch_add(1, Relaxed);
        // What was missed since the list was stored stays missing.
        missing.extend_from_slice(self.written().missed());
        *self.dtl.write() = Dtl::Ranges(merged(missing));
    }

    /// Transaction groups that this leaf missed, half-open and sorted; all if its list cannot be read.
    pub fn missing(&self) -> Vec<Range<u64>> {
        match &*self.dtl.read() {
            Dtl::Unread => std::iter::once(0..u64::MAX).collect(),
            Dtl::Ranges(ranges) => ranges.clone(),
        }
    }

    /// From now on the leaf counts as lacking the transaction groups `txgs` (`vdev_dtl_dirty`).
    pub(crate) fn add_missing(&self, txgs: Range<u64>) {
        if txgs.is_empty() {
            return;
        }
        self.written().add_missed(txgs.clone());
        // Both before it lacks them and after that: a copy that begins in between has to find out, too.
        self.lacked.fetch_add(1, SeqCst);
        let mut dtl = self.dtl.write();
        if let Dtl::Ranges(ranges) = &mut *dtl
            && !ranges.iter().any(|r| r.start <= txgs.start && txgs.end <= r.end)
        {
            ranges.push(txgs);
            *ranges = merged(std::mem::take(ranges));
        }
        drop(dtl);
        self.lacked.fetch_add(1, SeqCst);
    }

    /// If the leaf's dirty time log cannot be read: from now on it counts as lacking all groups before `end`, and what it misses
    /// later besides.
    pub fn count_unread(&self, end: u64) {
        let mut dtl = self.dtl.write();
        if matches!(*dtl, Dtl::Unread) {
            *dtl = Dtl::Ranges(std::iter::once(0..end).collect());
        }
    }
}
