//! `zdb -ddd`: the dirty time logs, with what they mean for the vdevs above (`dump_dtl`, `vdev_dtl_reassess`).
//!
//! A leaf lacks the transaction groups of its own log (*missing*). One that cannot be read is an *outage* of all groups;
//! else its outage is what it lacks. A vdev above has an outage where too many of its children have one at once: all of
//! a mirror's, more of a RAID-Z than it has parity. That is what it counts as missing, too; what any child lacks is
//! *partial*. A vdev is *required* if its top-level vdev would have an outage without it.

use super::Zdb;
use cenote_command::outcome::Stop;
use cenote_vdev::Vdev;
use std::ops::Range;

/// Half-open ranges of transaction groups, sorted, not touching each other.
type Txgs = Vec<Range<u64>>;

/// What is known of a vdev's transaction groups, by kind.
struct Logs {
    missing: Txgs,
    partial: Txgs,
    outage: Txgs,
}

/// All transaction groups.
const ALL: Range<u64> = 0..u64::MAX;

/// The transaction groups that are in `least` of the lists or more (`space_reftree_generate_map`).
fn covered(lists: &[&Txgs], least: usize) -> Txgs {
    let mut edges: Vec<(u64, bool)> = Vec::new();
    for range in lists.iter().flat_map(|list| list.iter()) {
        edges.extend([(range.start, true), (range.end, false)]);
    }
    // At one place the ends come first: what only touches does not overlap.
    edges.sort_unstable();
    let (mut depth, mut from, mut out) = (0usize, None, Txgs::new());
    for (at, begins) in edges {
        depth = if begins { depth + 1 } else { depth.saturating_sub(1) };
        match from {
            None if depth >= least => from = Some(at),
            Some(start) if depth < least => {
                from = None;
                match out.last_mut() {
                    Some(last) if last.end == start => last.end = at,
                    _ if start < at => out.push(start..at),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    out
}

/// The logs of a vdev, were the vdev with guid `without` not readable.
fn logs(vdev: &Vdev, without: Option<u64>) -> Logs {
    if vdev.children().is_empty() {
        let missing = vdev.missing();
        let readable = vdev.state().readable() && without != Some(vdev.guid());
        let outage = if readable { missing.clone() } else { vec![ALL] };
        return Logs { partial: missing.clone(), missing, outage };
    }
    let children: Vec<Logs> = vdev.children().iter().map(|child| logs(child, without)).collect();
    let outages: Vec<&Txgs> = children.iter().map(|child| &child.outage).collect();
    let partials: Vec<&Txgs> = children.iter().map(|child| &child.partial).collect();
    let least = match vdev.nparity() {
        0 => children.len(),
        parity => usize::try_from(parity).unwrap_or(usize::MAX).saturating_add(1),
    };
    let outage = covered(&outages, least);
    Logs { missing: outage.clone(), partial: covered(&partials, 1), outage }
}

/// Whether `top` would have an outage if a vdev below it could not be read (`vdev_dtl_required`). As in OpenZFS this asks
/// for the vdev alone: one that has children is read through them, and is required only if there is an outage anyway.
fn required(top: &Vdev, vdev: &Vdev) -> bool {
    !logs(top, Some(vdev.guid())).outage.is_empty()
}

impl Zdb<'_> {
    /// The logs of all vdevs.
    pub fn dirty_time_logs(&mut self) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let vdevs = pool.store().vdevs();
        let root = vdevs.root();
        writeln!(self.out(), "\nDirty time logs:\n")?;
        writeln!(self.out(), "\t{} [DTL-required]", pool.name())?;
        for top in root.children() {
            self.dirty_time_log(top, top, 4)?;
        }
        Ok(())
    }

    /// The log of a vdev, and then the logs of the vdevs below it (`dump_dtl`).
    fn dirty_time_log(&mut self, top: &Vdev, vdev: &Vdev, indent: usize) -> Result<(), Stop> {
        let name =
            vdev.path().map_or_else(|| vdev.kind().into(), |path| path.display().to_string());
        let needed = vdev.guid() == top.guid() || required(top, vdev);
        let word = if needed { "required" } else { "expendable" };
        writeln!(self.out(), "\t{:indent$}{name} [DTL-{word}]", "")?;
        if vdev.kind() != "hole" && vdev.kind() != "indirect" {
            let logs = logs(vdev, None);
            let kinds =
                [("missing", logs.missing), ("partial", logs.partial), ("outage", logs.outage)];
            for (kind, ranges) in kinds {
                for Range { start, end } in ranges {
                    let (inner, length) = (indent + 2, end.saturating_sub(start));
                    writeln!(self.out(), "\t{:inner$}{kind} [{start},{end}) length {length}", "")?;
                }
            }
        }
        vdev.children().iter().try_for_each(|child| self.dirty_time_log(top, child, indent + 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::single_range_in_vec_init)]
    fn ranges_that_enough_have() {
        let (a, b, c) = (vec![1..5, 8..9], vec![3..8], vec![4..10]);
        assert_eq!(covered(&[&a, &b, &c], 1), [1..10]);
        assert_eq!(covered(&[&a, &b, &c], 2), [3..9]);
        assert_eq!(covered(&[&a, &b, &c], 3), [4..5]);
        assert_eq!(covered(&[&a, &b, &c], 4), []);
        assert_eq!(covered(&[], 1), []);
        let all = vec![ALL];
        assert_eq!(covered(&[&all, &a], 2), [1..5, 8..9]);
    }
}
