//! The figures that stand below a map: the present state, and what has changed.
//!
//! All come as [`Row`]s of a label and a text, so that the terminal and the pictures show the same. [`rows`]
//! describes one report: space, the largest free segments, unflushed changes, metaslabs in memory. [`owner_rows`]
//! and [`owners`] tell where a dataset lies and which datasets take most. [`delta`] compares with an earlier report
//! of the same pool.
//!
//! A metaslab is *spoiled* if it has no free 128 KiB in one piece. Sizes of segments are the bounds of a histogram's
//! class, so they say "this much and more".

use super::view::{By, Scene};
use crate::context::Context;
use cenote_command::clock;
use cenote_command::output::printable;
use cenote_dsl::human::nicebytes;
use cenote_inspect::map::{MetaslabMap, SpaceMapReport, percent};

/// A label and its value.
pub type Row = (String, String);

/// Owners that are listed by name.
pub const LISTED: usize = 20;

fn row(label: &str, text: impl Into<String>) -> Row {
    (label.into(), text.into())
}

/// `12%`, or `-` if unknown.
pub fn optional_percent(p: Option<u64>) -> String {
    p.map_or_else(|| "-".into(), |p| format!("{p}%"))
}

/// `1 vdev`, `2 vdevs`.
pub fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Size of the smallest segments of a class, and `-` without free space.
pub fn class(shift: Option<u32>) -> String {
    shift.and_then(|s| 1u64.checked_shl(s)).map_or_else(|| "-".into(), nicebytes)
}

/// When, and in which transaction group, a report was made.
pub fn moment(report: &SpaceMapReport, ctx: &Context) -> String {
    let time = i64::try_from(report.time).unwrap_or(i64::MAX);
    format!("txg {}, {}", report.txg, clock::format(&ctx.caller, time, "%Y-%m-%d %H:%M:%S"))
}

fn largest(report: &SpaceMapReport) -> Option<u32> {
    report.metaslabs().filter_map(|m| m.largest).max()
}

fn spoiled(report: &SpaceMapReport) -> usize {
    report.metaslabs().filter(|m| m.is_spoiled()).count()
}

/// The present state.
pub fn rows(report: &SpaceMapReport, ctx: &Context) -> Vec<Row> {
    let (alloc, size) = report.usage();
    let free = size.saturating_sub(alloc);
    let metaslabs = report.metaslabs().count();
    let empty = report.metaslabs().filter(|m| m.allocated == 0).count();
    let full = report.metaslabs().filter(|m| m.free == 0).count();
    let mut rows = vec![
        row("pool", format!("{}, {}", printable(&report.pool), moment(report, ctx))),
        row(
            "metaslabs",
            format!(
                "{metaslabs} on {}: {empty} empty, {full} full, {} spoiled (no free 128K in one piece)",
                count(report.vdevs.len(), "vdev"),
                spoiled(report)
            ),
        ),
        row(
            "space",
            format!(
                "{} allocated, {} of {} free ({}%), FRAG {}",
                nicebytes(alloc),
                nicebytes(free),
                nicebytes(size),
                percent(free, size),
                optional_percent(report.fragmentation)
            ),
        ),
    ];
    if let Some(shift) = largest(report) {
        let there = report.metaslabs().filter(|m| m.largest == Some(shift)).count();
        let text = format!("{} and more, in {}", class(Some(shift)), count(there, "metaslab"));
        rows.push(row("largest free segments", text));
    }
    let unflushed = |f: fn(&MetaslabMap) -> u64| {
        nicebytes(report.metaslabs().map(f).fold(0, u64::saturating_add))
    };
    if report.metaslabs().any(|m| m.unflushed != Default::default()) {
        rows.push(row(
            "unflushed changes",
            format!(
                "{} allocated, {} freed",
                unflushed(|m| m.unflushed.allocated),
                unflushed(|m| m.unflushed.freed)
            ),
        ));
    }
    let loaded = report.metaslabs().filter(|m| m.loaded).count();
    if loaded > 0 {
        rows.push(row("in memory", count(loaded, "metaslab")));
    }
    rows
}

/// Where the highlighted dataset lives, and what the traversal did not find.
pub fn owner_rows(scene: &Scene) -> Vec<Row> {
    let mut rows = Vec::new();
    let report = &scene.now;
    if let Some(owner) = scene.dataset {
        let held: Vec<u64> = report.metaslabs().map(|m| m.owned_by(owner)).collect();
        let bytes = held.iter().copied().fold(0, u64::saturating_add);
        let of = report.metaslabs().count();
        let there = held.iter().filter(|b| **b > 0).count();
        let text = format!("{} in {there} of {}", nicebytes(bytes), count(of, "metaslab"));
        rows.push(row(&scene.owner_name(owner), text));
        for v in &report.vdevs {
            let ids = v.metaslabs.iter().filter(|m| m.owned_by(owner) > 0).map(|m| m.id);
            let ranges = ranges(ids);
            if !ranges.is_empty() {
                rows.push(row("", format!("vdev {}: {ranges}", v.id)));
            }
        }
    }
    if let Some(owners) = &report.owners {
        let lost = report.metaslabs().map(MetaslabMap::unaccounted).fold(0, u64::saturating_add);
        if lost > 0 || owners.missed > 0 {
            let text = format!(
                "{} allocated, {} could not be read",
                nicebytes(lost),
                count(usize::try_from(owners.missed).unwrap_or(usize::MAX), "block")
            );
            rows.push(row("without an owner", text));
        }
    }
    rows
}

/// `0-3, 7, 9-12`.
fn ranges(ids: impl Iterator<Item = u64>) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for id in ids {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(id) => *last = id,
            _ => ranges.push((id, id)),
        }
    }
    let texts: Vec<String> = ranges
        .iter()
        .map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") })
        .collect();
    texts.join(", ")
}

/// The owners and their bytes, largest first; the last line says how many are left out.
pub fn owners(scene: &Scene) -> Vec<(usize, Row)> {
    let bytes = |report: &SpaceMapReport, owner| {
        report.metaslabs().map(|m| m.owned_by(owner)).fold(0, u64::saturating_add)
    };
    let mut rows = Vec::new();
    for (rank, owner) in scene.order.iter().enumerate().take(LISTED) {
        let now = nicebytes(bytes(&scene.now, *owner));
        let text = match scene.before.as_ref().filter(|b| b.owners.is_some()) {
            Some(before) => format!("{} -> {now}", nicebytes(bytes(before, *owner))),
            None => now,
        };
        rows.push((rank, (scene.owner_name(*owner), text)));
    }
    let more = scene.order.len().saturating_sub(LISTED);
    if more > 0 {
        rows.push((usize::MAX, (format!("and {more} more"), String::new())));
    }
    rows
}

/// What has changed since `before`.
pub fn delta(before: &SpaceMapReport, scene: &Scene, ctx: &Context) -> Vec<Row> {
    let now = &scene.now;
    let ((old_alloc, old_size), (alloc, size)) = (before.usage(), now.usage());
    let signed = |old: u64, new: u64| {
        let sign = if new < old { '-' } else { '+' };
        format!("{} -> {} ({sign}{})", nicebytes(old), nicebytes(new), nicebytes(new.abs_diff(old)))
    };
    let (mut fuller, mut emptier, mut same, mut added) = (0, 0, 0, 0);
    for (v, m) in now.vdevs.iter().flat_map(|v| v.metaslabs.iter().map(move |m| (v, m))) {
        match scene.change(v.id, m) {
            None => added += 1,
            Some(0) => same += 1,
            Some(c) if c > 0 => fuller += 1,
            Some(_) => emptier += 1,
        }
    }
    let mut metaslabs = format!("{fuller} fuller, {emptier} emptier, {same} unchanged");
    let gone = before.metaslabs().count().saturating_sub(fuller + emptier + same);
    for (n, what) in [(added, "new"), (gone, "gone")] {
        if n > 0 {
            metaslabs += &format!(", {n} {what}");
        }
    }
    let mut rows = vec![row("before", moment(before, ctx)), row("after", moment(now, ctx))];
    if before.guid != now.guid {
        rows.push(row("", format!("before is another pool: {}", printable(&before.pool))));
    }
    rows.extend([
        row("allocated", signed(old_alloc, alloc)),
        row("free", signed(old_size.saturating_sub(old_alloc), size.saturating_sub(alloc))),
        row(
            "FRAG",
            format!(
                "{} -> {}",
                optional_percent(before.fragmentation),
                optional_percent(now.fragmentation)
            ),
        ),
        row(
            "largest free segments",
            format!("{} -> {}", class(largest(before)), class(largest(now))),
        ),
        row("spoiled", format!("{} -> {}", spoiled(before), spoiled(now))),
        row("metaslabs", metaslabs),
    ]);
    rows
}

/// Everything below the maps.
pub fn all(scene: &Scene, ctx: &Context) -> Vec<Row> {
    let mut all = rows(&scene.now, ctx);
    if scene.by == By::Owner || scene.dataset.is_some() {
        all.extend(owner_rows(scene));
    }
    if let Some(before) = &scene.before {
        all.push(row("", ""));
        all.extend(delta(before, scene, ctx));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ids() {
        assert_eq!(ranges([0, 1, 2, 5, 8, 9].into_iter()), "0-2, 5, 8-9");
        assert_eq!(ranges(std::iter::empty()), "");
        assert_eq!((count(1, "vdev"), count(0, "vdev")), ("1 vdev".into(), "0 vdevs".into()));
    }
}
