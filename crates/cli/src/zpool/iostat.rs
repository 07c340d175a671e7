//! `zpool iostat` (`zpool_do_iostat`): space, operations and bandwidth per pool and vdev, latencies, queues.
//!
//! Figures are per second: since the import in the first report (all of them, for histograms),
//! since the previous report in those that follow. Queues are shown as they are at the moment.

mod choice;
mod histogram;

use crate::colour::{self, Colour, PLAIN, Text};
use crate::context::Context;
use crate::interval::Schedule;
use crate::interval::Stamp;
use crate::options::{Spec, parse_with_long};
use crate::pools::Imported;
use crate::vdevs::{Item, items, names_width, style};
use crate::zpool::scripts::{self, Columns, Scripts};
use crate::zpool::select::select;
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_dsl::human::{nicenum, nicetime};
use cenote_pool::status::NameStyle;
use cenote_vdev::stats::LatencyHistogram;
use cenote_vdev::{GrowingFigures, Priority, QueueFigures, Vdev};
use choice::{Choice, take_schedule};
use histogram::{Counted, Histogram};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SPEC: Spec = Spec { short: "c:gHhlLnpPqrT:vwy", refused: "", refused_long: &[] };
/// Reported as what no short option is; of cenote's own.
const OBJECTS: char = '+';
const LONG: [(&str, char); 1] = [("objects", OBJECTS)];

/// A group of columns: titles over several columns each, and the columns.
struct Group {
    top: &'static [(&'static str, usize)],
    bottom: &'static [&'static str],
    /// Width of a column with exact numbers.
    exact_width: usize,
}

const BASIC: Group = Group {
    top: &[("capacity", 2), ("operations", 2), ("bandwidth", 2)],
    bottom: &["alloc", "free", "read", "write", "read", "write"],
    exact_width: 15,
};
const LATENCY: Group = Group {
    top: &[
        ("total_wait", 2),
        ("disk_wait", 2),
        ("syncq_wait", 2),
        ("asyncq_wait", 2),
        ("scrub", 1),
        ("trim", 1),
        ("rebuild", 1),
    ],
    bottom: &[
        "read", "write", "read", "write", "read", "write", "read", "write", "wait", "wait", "wait",
    ],
    exact_width: 10,
};
const QUEUES: Group = Group {
    top: &[
        ("syncq_read", 2),
        ("syncq_write", 2),
        ("asyncq_read", 2),
        ("asyncq_write", 2),
        ("scrubq_read", 2),
        ("trimq_write", 2),
        ("rebuildq_write", 2),
    ],
    bottom: &[
        "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ",
        "pend", "activ", "pend", "activ",
    ],
    exact_width: 10,
};
/// Requests to an object store.
const STORE: Group = Group {
    top: &[("requests", 4), ("bytes", 2), ("space", 2)],
    bottom: &["put", "get", "list", "del", "put", "get", "store", "live"],
    exact_width: 15,
};
/// The classes of [`QUEUES`], each with two columns.
const CLASSES: [Priority; 7] = [
    Priority::SyncRead,
    Priority::SyncWrite,
    Priority::AsyncRead,
    Priority::AsyncWrite,
    Priority::Scrub,
    Priority::Trim,
    Priority::Rebuild,
];
/// Width of a column otherwise.
const WIDTH: usize = 5;

/// What to show.
struct Show {
    of: Choice,
    verbose: bool,
    scripted: bool,
    literal: bool,
    histogram: Option<Histogram>,
    headers_once: bool,
    skip_first: bool,
    latency: bool,
    queues: bool,
    /// What is asked of object stores.
    objects: bool,
    groups: Vec<&'static Group>,
    style: NameStyle,
    scripts: Option<Scripts>,
    /// In colours.
    paints: bool,
}

/// Counters of a vdev at a moment.
#[derive(Clone)]
struct Sample {
    when: Instant,
    io: (u64, u64, u64, u64),
    counted: Counted,
    objects: Option<GrowingFigures>,
}

/// What the arguments ask for, and when.
fn asked(args: &[OsString], ctx: &mut Context) -> Result<(Show, Schedule), Stop> {
    let parsed = parse_with_long(args, SPEC, &LONG)?;
    let letters: String = parsed.options.iter().map(|o| o.letter).collect();
    if letters.contains('h') {
        return usage("");
    }
    let mut schedule = Schedule::default();
    for opt in parsed.options.iter().filter(|o| o.letter == 'T') {
        schedule.stamp = Some(Stamp::from_arg(&opt.text()).map_or_else(|| usage(""), Ok)?);
    }
    let has = |letter| letters.contains(letter);
    if (has('r') || has('w')) && (has('c') || has('l') || has('q')) {
        return usage("[-r|-w] isn't allowed with [-c|-l|-q]");
    }
    if has(OBJECTS) && (has('r') || has('w')) {
        return usage("[-r|-w] isn't allowed with --objects");
    }
    if has('r') && has('w') {
        return usage("Only one of [-r|-w] can be passed at a time");
    }
    let histogram = match (has('r'), has('w')) {
        (true, _) => Some(Histogram::Sizes),
        (_, true) => Some(Histogram::Latencies),
        _ => None,
    };
    let mut names = parsed.names();
    (schedule.interval, schedule.count) = take_schedule(&mut names, ctx)?;
    let show = Show {
        of: Choice::of(names, ctx)?,
        verbose: has('v'),
        scripted: has('H'),
        literal: has('p'),
        histogram,
        headers_once: has('n') || ctx.caller.terminal.height.is_none() || !ctx.caller.terminal.out,
        skip_first: has('y'),
        groups: match histogram {
            Some(histogram) => vec![histogram.group()],
            None => {
                [(true, &BASIC), (has('l'), &LATENCY), (has('q'), &QUEUES), (has(OBJECTS), &STORE)]
                    .into_iter()
                    .filter_map(|(shown, group)| shown.then_some(group))
                    .collect()
            }
        },
        objects: has(OBJECTS),
        latency: has('l'),
        queues: has('q'),
        style: style(&letters, ctx),
        scripts: Scripts::of(&parsed.options, ctx)?,
        paints: colour::wanted(ctx),
    };
    if show.skip_first {
        // The report that is left out is not counted, and there is one after it.
        schedule.count = match schedule.interval {
            Some(_) => schedule.count.map(|n| n.saturating_add(1)),
            None => Some(2),
        };
        schedule.interval.get_or_insert(Duration::ZERO);
    }
    Ok((show, schedule))
}

/// Runs `zpool iostat`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    if let Some(listed) = scripts::list(args, "iostat", ctx) {
        return listed;
    }
    let (show, mut schedule) = asked(args, ctx)?;
    // Where there are no pools no time is told either.
    let times = Schedule { stamp: schedule.stamp.take(), ..Schedule::default() };
    let mut before = HashMap::new();
    let mut shown: Vec<String> = Vec::new();
    // Reports of no pools do not count: the header comes with the first pool.
    let mut number = 0u64;
    schedule.run(ctx, |report, ctx| {
        let columns = show.scripts.as_ref().map(|s| s.run(&show.of.pools, ctx)).transpose()?;
        let pools = match report {
            0 => select(ctx, &show.of.pools).0,
            // Those that are named come and go like others.
            _ => there(&show.of.pools, ctx),
        };
        if pools.is_empty() {
            if report == 0 && !show.of.pools.is_empty() {
                return Ok(1);
            }
            ctx.complain("no pools available");
            shown.clear();
            return Ok(i32::from(schedule.interval.is_none()));
        }
        times.print_stamp(ctx)?;
        let mut report = Report {
            show: &show,
            columns: columns.unwrap_or_default(),
            before: &mut before,
            number,
            others: false,
            names_width: 0,
        };
        let names: Vec<String> = pools.iter().map(|pool| pool.name().to_string()).collect();
        report.others = number > 0 && names != shown;
        shown = names;
        report.print(&pools, ctx)?;
        number = number.saturating_add(1);
        Ok(0)
    })
}

/// Those of the named pools that are there, or all.
fn there(names: &[String], ctx: &Context) -> Vec<Arc<Imported>> {
    let mut pools = ctx.pools.all();
    pools.retain(|pool| names.is_empty() || names.iter().any(|name| name == pool.name()));
    pools
}

struct Report<'a> {
    show: &'a Show,
    columns: Columns,
    /// Counters at the previous report, by guid of pool and vdev.
    before: &'a mut HashMap<(u64, u64), Sample>,
    number: u64,
    /// They are not the pools of the previous report.
    others: bool,
    names_width: usize,
}

impl Report<'_> {
    fn print(&mut self, pools: &[Arc<Imported>], ctx: &mut Context) -> io::Result<()> {
        let show = self.show;
        let single = !show.of.vdevs.is_empty();
        let deep = show.verbose || single;
        let below: Vec<Vec<Item>> =
            pools.iter().map(|p| if deep { items(p, &show.style) } else { Vec::new() }).collect();
        let widest = pools.iter().zip(&below).map(|(p, i)| names_width(p, i)).max().unwrap_or(0);
        // Long names push their own line and leave the others on the screen.
        let room = if ctx.caller.terminal.out {
            usize::from(ctx.caller.terminal.width.unwrap_or(80))
        } else {
            999
        };
        self.names_width = widest.min(room.saturating_sub(42)).max(10);
        let skip = show.skip_first && self.number == 0;
        let page = u64::from(ctx.caller.terminal.height.unwrap_or(24).max(1));
        let again = !show.headers_once && self.number.saturating_add(1).is_multiple_of(page);
        let again = again || self.others;
        let header = (self.number == 0 && !skip) || (skip != show.verbose) || again;
        if header && show.histogram.is_none() && !show.scripted {
            self.header(None, WIDTH, ctx)?;
        }
        for (imported, items) in pools.iter().zip(&below) {
            match show.of.within(imported) {
                Some(guids) => self.single(imported, items, &guids, skip, ctx)?,
                None => self.pool(imported, items, skip, ctx)?,
            }
        }
        let closing = single || (pools.len() > 1 && !show.verbose);
        if !skip && closing && show.histogram.is_none() && !show.scripted {
            self.dashes(None, WIDTH, ctx)?;
        }
        Ok(())
    }

    fn pool(
        &mut self,
        imported: &Imported,
        items: &[Item],
        skip: bool,
        ctx: &mut Context,
    ) -> io::Result<()> {
        let pool = imported.pool();
        let root = Arc::clone(pool.store().vdevs().root());
        let name = imported.name();
        let space = pool.space().map(|s| s.pool()).map(|s| (s.alloc, s.free()));
        self.vdev(imported, name, 0, &root, space, skip, ctx)?;
        for item in items {
            match item {
                Item::Vdev { name, depth, vdev, top, .. } => {
                    let space = space_of(imported, vdev, *top);
                    self.vdev(imported, name, *depth, vdev, space, skip, ctx)?;
                }
                // Spares do nothing.
                Item::Section("spare") => break,
                Item::Section(title)
                    if !skip && self.show.histogram.is_none() && !self.show.scripted =>
                {
                    self.dashes(Some(title), WIDTH, ctx)?;
                }
                Item::Aux { name, guid, space, .. } => {
                    let space = space.map(|s| (s.alloc, s.free()));
                    self.cache(imported, (name, *guid, 2), space, skip, ctx)?;
                }
                Item::Section(_) => {}
            }
        }
        if !skip && self.show.verbose && self.show.histogram.is_none() && !self.show.scripted {
            self.dashes(None, WIDTH, ctx)?;
        }
        Ok(())
    }

    /// The vdevs with these guids, and nothing of what is above or below them.
    fn single(
        &mut self,
        imported: &Imported,
        items: &[Item],
        guids: &[u64],
        skip: bool,
        ctx: &mut Context,
    ) -> io::Result<()> {
        for item in items {
            match item {
                // Spares do nothing.
                Item::Section("spare") => break,
                Item::Vdev { name, vdev, top, .. } if guids.contains(&vdev.guid()) => {
                    let space = space_of(imported, vdev, *top);
                    self.vdev(imported, name, 0, vdev, space, skip, ctx)?;
                }
                Item::Aux { name, guid, space, .. } if guids.contains(guid) => {
                    let space = space.map(|s| (s.alloc, s.free()));
                    self.cache(imported, (name, *guid, 0), space, skip, ctx)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The line of a cache device.
    fn cache(
        &mut self,
        imported: &Imported,
        (name, guid, depth): (&str, u64, usize),
        space: Option<(u64, u64)>,
        skip: bool,
        ctx: &mut Context,
    ) -> io::Result<()> {
        match imported.pool().cache_leaf(guid) {
            Some(leaf) => self.vdev(imported, name, depth, &leaf, space, skip, ctx),
            None if !skip && self.show.histogram.is_none() => self.idle(name, depth, space, ctx),
            None => Ok(()),
        }
    }

    /// The line of a cache device that is not used.
    fn idle(
        &self,
        name: &str,
        depth: usize,
        space: Option<(u64, u64)>,
        ctx: &mut Context,
    ) -> io::Result<()> {
        let groups = self.show.groups.iter();
        let widths: Vec<usize> =
            groups.flat_map(|g| g.bottom.iter().map(|_| self.width(g))).collect();
        let columns = BASIC.bottom.len()..BASIC.bottom.len() + LATENCY.bottom.len();
        let cell = |at: usize| match (at, space) {
            (0, Some((alloc, _))) => self.number(alloc),
            (1, Some((_, free))) => self.number(free),
            (0 | 1, None) => self.nothing(),
            (at, _) if self.show.latency && columns.contains(&at) => nicetime(0),
            _ => self.number(0),
        };
        let cells: Vec<String> = (0..widths.len()).map(cell).collect();
        self.line(name, depth, (&cells, &widths), "", ctx)
    }

    #[allow(clippy::too_many_arguments)] // One line of output: all of it belongs together.
    fn vdev(
        &mut self,
        imported: &Imported,
        name: &str,
        depth: usize,
        vdev: &Vdev,
        space: Option<(u64, u64)>,
        skip: bool,
        ctx: &mut Context,
    ) -> io::Result<()> {
        let (pool, own) = (imported.pool(), vdev.growing().map(|growing| growing.figures()));
        let vdevs = pool.store().vdevs();
        let is_root = vdev.guid() == vdevs.root().guid();
        let objects = own.or_else(|| vdevs.growing_figures().filter(|_| is_root));
        let (io, counted) = (vdev.io_stats(), Counted::of(vdev));
        let now = Sample { when: Instant::now(), io, counted, objects };
        let old = self.before.insert((imported.guid(), vdev.guid()), now.clone());
        if skip {
            return Ok(());
        }
        let since = old.as_ref().map_or(imported.since, |o| o.when);
        let seconds = now.when.duration_since(since).as_secs_f64().max(1e-9);
        let all = self.show.histogram.is_some() && old.is_none();
        let scale = if all { 1.0 } else { 1.0 / seconds };
        let counted = now.counted.since(old.as_ref().map(|o| &o.counted));
        if let Some(histogram) = self.show.histogram {
            return self.histogram(histogram, name, &counted, scale, ctx);
        }
        let rate = |new: u64, old: u64| (new.saturating_sub(old) as f64 * scale) as u64;
        let stored = old.as_ref().and_then(|o| o.objects).unwrap_or_default();
        let was = old.map_or((0, 0, 0, 0), |o| o.io);
        let mut cells = vec![
            space.map_or_else(|| self.nothing(), |(alloc, _)| self.number(alloc)),
            space.map_or_else(|| self.nothing(), |(_, free)| self.number(free)),
            self.number(rate(now.io.0, was.0)),
            self.number(rate(now.io.1, was.1)),
            self.number(rate(now.io.2, was.2)),
            self.number(rate(now.io.3, was.3)),
        ];
        let mut widths = vec![self.width(&BASIC); cells.len()];
        if self.show.latency {
            for at in 0..LATENCY.bottom.len() {
                let ns = counted.latency(at).map_or(0, mean_latency);
                cells.push(match (self.show.literal, ns) {
                    (true, 1..) => ns.to_string(),
                    _ => nicetime(ns),
                });
                widths.push(self.width(&LATENCY));
            }
        }
        if self.show.queues {
            let QueueFigures { pending, active } = vdev.queues();
            for class in CLASSES.map(|class| class as usize) {
                cells.extend([pending[class], active[class]].map(|n| self.number(n)));
                widths.extend([self.width(&QUEUES); 2]);
            }
        }
        if self.show.objects {
            widths.extend([self.width(&STORE); STORE.bottom.len()]);
            cells.extend(match now.objects {
                None => [(); STORE.bottom.len()].map(|()| self.nothing()),
                Some(is) => [
                    rate(is.requests[0], stored.requests[0]),
                    rate(is.requests[1], stored.requests[1]),
                    rate(is.requests[2], stored.requests[2]),
                    rate(is.requests[3], stored.requests[3]),
                    rate(is.bytes[0], stored.bytes[0]),
                    rate(is.bytes[1], stored.bytes[1]),
                    is.stored,
                    is.live,
                ]
                .map(|n| self.number(n)),
            });
        }
        self.line(name, depth, (&cells, &widths), &self.columns.of(vdev.guid()), ctx)
    }

    fn line(
        &self,
        name: &str,
        depth: usize,
        (cells, widths): (&[String], &[usize]),
        more: &str,
        ctx: &mut Context,
    ) -> io::Result<()> {
        if self.show.scripted {
            return writeln!(ctx.out, "{name}\t{}{more}", cells.join("\t"));
        }
        let width = self.names_width.saturating_sub(depth);
        write!(ctx.out, "{:depth$}{name:<width$}", "")?;
        self.cells(cells.iter().zip(widths.iter().copied()), ctx)?;
        writeln!(ctx.out, "{more}")
    }

    /// Values in columns of these widths.
    fn cells(
        &self,
        cells: impl Iterator<Item = (impl AsRef<str>, usize)>,
        ctx: &mut Context,
    ) -> io::Result<()> {
        let mut text = Text::default();
        for (cell, width) in cells {
            text.push("  ");
            text.figure(cell.as_ref(), width);
        }
        text.write(self.show.paints, ctx)
    }

    fn number(&self, n: u64) -> String {
        if self.show.literal { n.to_string() } else { nicenum(n) }
    }

    fn nothing(&self) -> String {
        if self.show.literal { "0".into() } else { "-".into() }
    }

    fn width(&self, group: &Group) -> usize {
        if self.show.literal { group.exact_width } else { WIDTH }
    }

    /// The two lines of titles and the line of dashes below; `vdev` is whose histogram it is.
    fn header(
        &self,
        vdev: Option<&str>,
        histogram_width: usize,
        ctx: &mut Context,
    ) -> io::Result<()> {
        let title = match vdev {
            Some(_) => self.show.histogram.map_or("", Histogram::title),
            None if self.show.of.vdevs.is_empty() => "pool",
            None => "vdev",
        };
        let names = self.names_width.max(title.len()).max(vdev.map_or(0, |v| v.chars().count()));
        let column =
            |group: &Group| if vdev.is_some() { histogram_width } else { self.width(group) };
        if self.show.paints {
            ctx.out.raw().write_all(Colour::Bold.code())?;
        }
        write!(ctx.out, "{:<names$}", vdev.unwrap_or_default())?;
        for group in &self.show.groups {
            for (title, span) in group.top {
                write!(ctx.out, "{}", centered(title, *span, column(group)))?;
            }
        }
        write!(ctx.out, "\n{title:<names$}")?;
        for group in &self.show.groups {
            for title in group.bottom {
                write!(ctx.out, "{}", centered(title, 1, column(group)))?;
            }
        }
        writeln!(ctx.out, "{}", self.columns.titles())?;
        self.dashes_of(names, None, &column, &mut ctx.out)?;
        if self.show.paints {
            ctx.out.raw().write_all(PLAIN)?;
        }
        writeln!(ctx.out)
    }

    fn dashes(&self, section: Option<&str>, width: usize, ctx: &mut Context) -> io::Result<()> {
        let names = self.names_width.max(section.map_or(0, str::len));
        let column =
            |group: &Group| if self.show.histogram.is_some() { width } else { self.width(group) };
        self.dashes_of(names, section, &column, &mut ctx.out)?;
        writeln!(ctx.out)
    }

    fn dashes_of(
        &self,
        names: usize,
        section: Option<&str>,
        column: &dyn Fn(&Group) -> usize,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        match section {
            Some(title) => write!(out, "{title:<names$}")?,
            None => write!(out, "{:-<names$}", "")?,
        }
        for group in &self.show.groups {
            let width = column(group);
            for _ in group.bottom {
                match section {
                    Some(_) => write!(out, "  {:>width$}", "-")?,
                    None => write!(out, "  {:-<width$}", "")?,
                }
            }
        }
        write!(out, "{}", if section.is_none() { self.columns.dashes() } else { String::new() })
    }
}

/// What is allocated and free in a top-level vdev; of others it is not known.
fn space_of(imported: &Imported, vdev: &Vdev, top: bool) -> Option<(u64, u64)> {
    let pool = imported.pool();
    let stats = pool.space().filter(|_| top)?.vdev(vdev.id())?;
    Some((stats.alloc, stats.free()))
}

/// A title over `span` columns of `width`, two spaces before it.
fn centered(title: &str, span: usize, width: usize) -> String {
    let whole = width * span + 2 * (span - 1);
    let start = (whole / span).saturating_sub(title.len() / span);
    let rest = whole.saturating_sub(start + title.len());
    format!("  {:start$}{title}{:rest$}", "", "")
}

/// The mean, each operation taken to be in the middle of its bucket.
fn mean_latency(histogram: &LatencyHistogram) -> u64 {
    let (mut total, mut count) = (0u128, 0u128);
    for (bucket, n) in histogram.iter().enumerate() {
        let middle = (1u128 << bucket) + (1u128 << bucket) / 2;
        total += u128::from(*n) * middle;
        count += u128::from(*n);
    }
    total.checked_div(count).and_then(|mean| u64::try_from(mean).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_stand_over_their_columns() {
        assert_eq!(centered("capacity", 2, 5), "    capacity  ");
        assert_eq!(centered("operations", 2, 5), "   operations ");
        assert_eq!(centered("alloc", 1, 5), "  alloc");
        assert_eq!(centered("free", 1, 5), "   free");
    }

    #[test]
    fn mean_of_a_histogram() {
        let mut h = [0; cenote_vdev::stats::LATENCY_BUCKETS];
        assert_eq!(mean_latency(&h), 0);
        h[3] = 1;
        h[4] = 1;
        assert_eq!(mean_latency(&h), (12 + 24) / 2);
    }
}
