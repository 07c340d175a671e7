//! `zpool status` (`zpool_do_status`, `status_callback`).
//!
//! The options become a `Show`. Then one report is made, or one for each interval. A report goes through the pools that are selected:
//!
//! 1. The pool tells its status as its last transaction group left it. Its engine adds what is on no disk: that the pool is
//!    suspended, how far the replay of intent logs is, what a scan, removal or expansion waits for, how far rebuilds are.
//! 2. With `-x` pools without troubles are left out, with `-e` vdevs without troubles.
//! 3. The status is printed: state and reason, scans, the tree of vdevs with errors and what options add to them, the object store,
//!    deduplication, damaged files. With `-j` it becomes JSON (`in_json`).
//!
//! A pool whose status cannot be read is complained of; the others are shown. Names of damaged files are shown to the owner of the
//! daemon only.

mod in_json;

use crate::colour::{self, Colour, Text};
use crate::context::Context;
use crate::interval::Schedule;
use crate::interval::Stamp;
use crate::json::{self, Json, document_with};
use crate::options::{Spec, interval_and_count, parse_with_long};
use crate::pools::{Imported, SUSPENDED};
use crate::vdevs::style;
use crate::zfs::ids_to_path::mountpoint;
use crate::zpool::scripts::{self, Columns, Scripts};
use crate::zpool::select::select;
use cenote_command::clock::ctime;
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_dsl::Dataset;
use cenote_dsl::human::{nicebytes, nicenum};
use cenote_pool::expansion::Expansion;
use cenote_pool::rebuild::RebuildStatus;
use cenote_pool::scan::{RemovalStatus, ScanKind, ScanStatus};
use cenote_pool::status::{ConfigTree, NameStyle, Texts, VdevLine};
use cenote_pool::vdev_props::{Activity, Progress};
use cenote_pool::{Pool, PoolStatus};
use cenote_pool::{config, ddt_stats};
use cenote_zpl::FileSystem;
use serde_json::Map;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "c:DdegijLPpstT:vx", refused: "", refused_long: &["power"] };
/// Letter of `--json-flat-vdevs`.
const FLAT: char = '\u{3}';

/// What to show.
struct Show {
    verbose: bool,
    literal: bool,
    only_troubled_pools: bool,
    only_troubled_vdevs: bool,
    dedup: bool,
    slow: bool,
    direct: bool,
    initialized: bool,
    trimmed: bool,
    style: NameStyle,
    json: Option<Json>,
    flat: bool,
    /// Names of files that are damaged are shown: they are not everybody's to know.
    names_files: bool,
    scripts: Option<Scripts>,
}

/// Runs `zpool status`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    if let Some(listed) = scripts::list(args, "status", ctx) {
        return listed;
    }
    let long: Vec<(&str, char)> =
        json::LONG.iter().copied().chain([("json-flat-vdevs", FLAT)]).collect();
    let parsed = parse_with_long(args, SPEC, &long)?;
    let letters: String = parsed.options.iter().map(|o| o.letter).collect();
    let mut schedule = Schedule::default();
    for opt in parsed.options.iter().filter(|o| o.letter == 'T') {
        schedule.stamp = Some(Stamp::from_arg(&opt.text()).map_or_else(|| usage(""), Ok)?);
    }
    let show = Show {
        verbose: letters.contains('v'),
        literal: letters.contains('p'),
        only_troubled_pools: letters.contains('x'),
        only_troubled_vdevs: letters.contains('e'),
        dedup: letters.contains('D'),
        slow: letters.contains('s'),
        direct: letters.contains('d'),
        initialized: letters.contains('i'),
        trimmed: letters.contains('t'),
        style: style(&letters, ctx),
        json: Json::of(&letters)?,
        flat: letters.contains(FLAT),
        scripts: Scripts::of(&parsed.options, ctx)?,
        names_files: !ctx.caller.is_delegated(),
    };
    if show.json.is_some() && show.scripts.is_some() {
        return usage("'-c' with '-j' is not supported");
    }
    if show.flat && show.json.is_none() {
        return usage("'--json-flat-vdevs' only works with '-j' option");
    }
    let mut names = parsed.names();
    (schedule.interval, schedule.count) = interval_and_count(&mut names)?;
    if let Some(json) = show.json {
        let stamp = schedule.stamp.take();
        return schedule.run(ctx, |_, ctx| report_json(&names, &show, json, stamp, ctx));
    }
    let mut first = true;
    schedule.run(ctx, |_, ctx| report(&names, &show, &mut first, ctx))
}

/// The status of a pool, and whether all is well with it; it is complained of what cannot be read.
fn status_of(imported: &Imported, ctx: &mut Context) -> Option<(PoolStatus, bool)> {
    let status = match imported.pool().status() {
        Ok(status) if imported.suspended() => {
            let failmode = imported.pool().get("failmode").map(|v| v.exact);
            let held = imported.engine().is_some_and(|engine| engine.waits_for_devices());
            suspended(status, failmode.as_deref() == Some("continue"), held)
        }
        Ok(status) => status,
        Err(e) => {
            ctx.complain(format_args!("cannot get status of '{}': {e}", imported.name()));
            return None;
        }
    };
    let replay = imported.engine().and_then(|engine| engine.log_progress());
    let waits = imported.engine().and_then(|engine| engine.removal_waits());
    let removal = status.removal.map(|removal| RemovalStatus { waits, ..removal });
    let scan_waits = imported.engine().and_then(|engine| engine.scan_waits());
    let waits = imported.engine().and_then(|engine| engine.expansion_waits());
    let expansion = status.expansion.map(|expansion| Expansion { waits, ..expansion });
    let mut status = PoolStatus { replay, removal, expansion, scan_waits, ..status };
    if let Some(engine) = imported.engine() {
        engine.tell_rebuilds(&mut status.rebuilds);
    }
    let well = status.reason.is_healthy() && !imported.suspended();
    Some((status, well))
}

/// One report in JSON.
fn report_json(
    names: &[String],
    show: &Show,
    json: Json,
    stamp: Option<Stamp>,
    ctx: &mut Context,
) -> Outcome {
    let (pools, mut good) = select(ctx, names);
    let mut entries = Map::new();
    for imported in &pools {
        match status_of(imported, ctx) {
            Some((_, true)) if show.only_troubled_pools => {}
            Some((status, _)) => {
                let (key, pool) = in_json::pool(imported, &status, show, json, ctx)?;
                entries.insert(key, pool);
            }
            None => good = false,
        }
    }
    if good {
        let time = stamp.map(|stamp| stamp.json(json, ctx));
        writeln!(ctx.out, "{}", document_with("zpool status", "pools", entries, time)?)?;
    }
    Ok(i32::from(!good))
}

/// One report; `first`: nothing was shown before it.
fn report(names: &[String], show: &Show, first: &mut bool, ctx: &mut Context) -> Outcome {
    let columns = show.scripts.as_ref().map(|scripts| scripts.run(names, ctx)).transpose()?;
    let columns = columns.unwrap_or_default();
    let (pools, mut good) = select(ctx, names);
    if pools.is_empty() && good {
        ctx.complain("no pools available");
        return Ok(0);
    }
    for imported in &pools {
        let Some((status, well)) = status_of(imported, ctx) else {
            good = false;
            continue;
        };
        if show.only_troubled_pools && well {
            if !names.is_empty() {
                writeln!(ctx.out, "pool '{}' is healthy", status.name)?;
                *first = false;
            }
            continue;
        }
        if !std::mem::take(first) {
            writeln!(ctx.out)?;
        }
        print(imported, &status, show, &columns, ctx)?;
    }
    if show.only_troubled_pools && *first && names.is_empty() && good {
        writeln!(ctx.out, "all pools are healthy")?;
    }
    Ok(i32::from(!good))
}

/// The status of a pool that nothing can be written to; `goes_on`: with `failmode=continue`; `held`: it can be resumed.
fn suspended(status: PoolStatus, goes_on: bool, held: bool) -> PoolStatus {
    let action = match held {
        true => "Make sure the affected devices are connected, then run 'zpool clear'.",
        false => {
            "Make sure the affected devices are connected, then run 'zpool export -f'\n\
             \tand import the pool again."
        }
    };
    let texts = Texts {
        status: Some("One or more devices are faulted in response to IO failures.".into()),
        action: Some(action.into()),
        msgid: Some(if goes_on { "ZFS-8000-JQ" } else { "ZFS-8000-HC" }),
    };
    PoolStatus { state: SUSPENDED, texts, ..status }
}

fn print(
    imported: &Imported,
    s: &PoolStatus,
    show: &Show,
    columns: &Columns,
    ctx: &mut Context,
) -> Result<(), Stop> {
    let mut text = Text::default();
    text.titled(&format!("  pool: {}\n", s.name));
    text.titled(" state: ");
    text.paint(Colour::of_health(s.state), s.state);
    text.push("\n");
    for (label, lines) in [("status: ", &s.texts.status), ("action: ", &s.texts.action)] {
        if let Some(lines) = lines {
            text.paint(Colour::Bold, label);
            text.paint(Colour::Yellow, format!("{lines}\n"));
        }
    }
    if let Some(id) = s.texts.msgid {
        text.titled(&format!("   see: https://openzfs.github.io/openzfs-docs/msg/{id}\n"));
    }
    let time = |seconds: u64| ctime(&ctx.caller, seconds);
    let waits = s.scan_waits.as_ref().filter(|_| s.scan.as_ref().is_some_and(|x| x.is_running()));
    let waits = waits.map_or_else(String::new, |why| format!("\n\twaiting: {why}"));
    let rebuilds = told(s);
    // Of a resilver that rebuilds are told in the place of nothing is said.
    let older = |x: &&ScanStatus| x.kind != ScanKind::Resilver || rebuilds.is_empty();
    let scan = s.scan.as_ref().filter(older).map(|x| x.text(&time) + &waits);
    let rebuilds = rebuilds.iter().map(|x| x.text(&time)).collect::<Vec<_>>();
    let removal = s.removal.as_ref().map(|x| x.text(&time));
    let expansion = s.expansion.as_ref().map(|x| x.text(&time));
    let checkpoint = s.checkpoint.as_ref().map(|x| x.text(&time));
    let replay = s.replay.as_ref().map(|x| format!("replay: {}", x.text()));
    let objects = objects(&imported.pool(), show);
    let others = [removal, expansion, checkpoint, replay, objects].into_iter().flatten();
    for lines in scan.into_iter().chain(rebuilds).chain(others) {
        text.titled(&format!("{lines}\n"));
    }
    config(&mut text, &imported.pool(), &s.tree, show, columns, &time);
    errors(&mut text, imported, s, show)?;
    if show.dedup {
        text.push(dedup(&imported.pool(), show)?);
    }
    let paints = colour::wanted(ctx);
    text.write(paints, ctx)?;
    Ok(())
}

/// The sequential rebuilds that are told of (`print_scan_status`).
fn told(s: &PoolStatus) -> &[RebuildStatus] {
    let resilver = s.scan.as_ref().filter(|scan| scan.kind == ScanKind::Resilver);
    let running = resilver.is_some_and(ScanStatus::is_resilvering);
    RebuildStatus::told(&s.rebuilds, running, resilver.map_or(0, |resilver| resilver.end))
}

/// What the pool has in its object store, and how much of that is of use.
fn objects(pool: &Pool, show: &Show) -> Option<String> {
    let figures = pool.store().vdevs().growing_figures()?;
    let number = |n: u64| if show.literal { n.to_string() } else { nicenum(n) };
    let bytes = |n: u64| if show.literal { n.to_string() } else { nicebytes(n) };
    let percent = match figures.stored {
        0 => 100,
        stored => u128::from(figures.live) * 100 / u128::from(stored),
    };
    let mut text = format!(
        "objects: {} with {} stored, {} of it live ({percent}%)",
        number(figures.objects),
        bytes(figures.stored),
        bytes(figures.live)
    );
    if figures.garbage > 0 {
        text += &format!("\n\t{} more wait to be deleted", number(figures.garbage));
    }
    Some(text)
}

/// The deduplication tables (`print_dedup_stats`).
fn dedup(pool: &Pool, show: &Show) -> Result<String, Stop> {
    let (size, histogram) = ddt_stats::all(pool).map_err(|e| Stop::Fail(e.to_string()))?;
    if size.entries == 0 {
        return Ok("\n dedup: no DDT entries\n".into());
    }
    let number = |n: u64| if show.literal { n.to_string() } else { nicenum(n) };
    let bytes = |n: u64| if show.literal { n.to_string() } else { nicebytes(n) };
    Ok(format!(
        "\n dedup: DDT entries {}, size {} on disk, {} in core\n{}",
        size.entries,
        number(size.on_disk),
        number(size.in_core),
        histogram.text(true, &number, &bytes)
    ))
}

/// The tree of vdevs with their states and errors.
fn config(
    text: &mut Text,
    pool: &Pool,
    tree: &ConfigTree,
    show: &Show,
    columns: &Columns,
    time: &dyn Fn(u64) -> String,
) {
    let sections = [
        ("dedup", &tree.dedup),
        ("special", &tree.special),
        ("logs", &tree.logs),
        ("cache", &tree.cache),
        ("spares", &tree.spares),
    ];
    let all = tree.root.children.iter().chain(sections.iter().flat_map(|(_, lines)| lines.iter()));
    let width = all.map(|line| width(line, 2, &show.style)).max().unwrap_or(0);
    let width = width.max(pool.name().chars().count()).max(10);
    let titles = format!(
        "config:\n\n\t{:<width$}  {:<8} {:>5} {:>5} {:>5}",
        "NAME", "STATE", "READ", "WRITE", "CKSUM"
    );
    text.paint(Colour::Bold, titles);
    for (shown, title) in [(show.slow, "SLOW"), (show.direct, "DIO")] {
        if shown {
            text.paint(Colour::Bold, format!(" {title:>5}"));
        }
    }
    text.paint(Colour::Bold, columns.titles());
    text.push("\n");
    let mut printer = Printer { text, width, show, columns, pool, time, spares: false };
    printer.line(&tree.root, pool.name(), 0);
    for (title, lines) in sections {
        if lines.is_empty() {
            continue;
        }
        // OpenZFS puts a tab behind the titles of the classes of space.
        let tab = if matches!(title, "cache" | "spares") { "" } else { "\t" };
        printer.text.push(format!("\t{title}{tab}\n"));
        printer.spares = title == "spares";
        for line in lines {
            printer.line(line, &line.name(&show.style), 2);
        }
    }
}

fn width(line: &VdevLine, depth: usize, style: &NameStyle) -> usize {
    let below = line.children.iter().map(|c| width(c, depth.saturating_add(2), style));
    below.max().unwrap_or(0).max(line.name(style).chars().count().saturating_add(depth))
}

struct Printer<'a> {
    text: &'a mut Text,
    width: usize,
    show: &'a Show,
    columns: &'a Columns,
    pool: &'a Pool,
    time: &'a dyn Fn(u64) -> String,
    spares: bool,
}

impl Printer<'_> {
    fn line(&mut self, line: &VdevLine, name: &str, depth: usize) {
        if self.show.only_troubled_vdevs && depth > 0 && is_well(line, self.show) {
            return;
        }
        let width = self.width.saturating_sub(depth);
        let name = format!("\t{:depth$}{name:<width$}  {:<8}", "", line.state);
        self.text.paint(Colour::of_health(line.state), name);
        if !self.spares {
            self.counts(line);
        }
        if let Some(note) = &line.note {
            // What is said of an error; the others say where something was, and what will be.
            let plain = config::flag(&line.config, "not_present") || note.starts_with('(');
            self.text.push("  ");
            self.text.paint((!plain).then_some(Colour::Red), note);
        }
        if line.children.is_empty() {
            self.progress(line);
        }
        self.text.push(self.columns.of(config::number(&line.config, "guid")));
        self.text.push("\n");
        for child in &line.children {
            self.line(child, &child.name(&self.show.style), depth.saturating_add(2));
        }
    }

    /// Errors, and what was asked for beside them.
    fn counts(&mut self, line: &VdevLine) {
        let number = |n: u64| if self.show.literal { n.to_string() } else { nicenum(n) };
        let (read, write, checksum) = line.errors;
        for n in [read, write, checksum] {
            self.text.push(" ");
            self.text.paint((n > 0).then_some(Colour::Red), format!("{:>5}", number(n)));
        }
        if self.show.slow {
            // Only leaves have slow operations; OpenZFS shows a dash unless numbers are exact.
            let slow = match line.children.is_empty() || self.show.literal {
                true => number(line.slow_ios),
                false => "-".into(),
            };
            let colour = (line.slow_ios > 0).then_some(Colour::Blue);
            self.text.paint(colour, format!(" {slow:>5}"));
        }
        if self.show.direct {
            // Nothing bypasses the checksums here.
            self.text.push(format!(" {:>5}", 0));
        }
    }

    /// How far initializing and trimming are.
    fn progress(&mut self, line: &VdevLine) {
        for (shown, activity, done, not) in [
            (self.show.initialized, Activity::Initialize, "initialized", "uninitialized"),
            (self.show.trimmed, Activity::Trim, "trimmed", never_trimmed(self.pool, line)),
        ] {
            if !shown {
                continue;
            }
            self.text.push(match activity.progress(self.pool, &line.config) {
                None => format!("  ({not})"),
                Some(Progress { percent, time, state }) => {
                    format!("  ({percent}% {done}, {state} {})", (self.time)(time))
                }
            });
        }
    }
}

/// What is said of a leaf that was not told what is free.
fn never_trimmed(pool: &Pool, line: &VdevLine) -> &'static str {
    match can_trim(pool, line) {
        true => "untrimmed",
        false => "trim unsupported",
    }
}

/// Whether the device of a leaf can be told what is free.
fn can_trim(pool: &Pool, line: &VdevLine) -> bool {
    let leaf = pool.store().vdevs().find(config::number(&line.config, "guid"));
    leaf.is_some_and(|leaf| leaf.can_trim())
}

/// Whether all leaves are online and without errors; with `-s`, without slow operations too.
fn is_well(line: &VdevLine, show: &Show) -> bool {
    match line.children.as_slice() {
        [] => {
            let slow = show.slow && line.slow_ios > 0;
            line.state == "ONLINE" && line.errors == (0, 0, 0) && !slow
        }
        children => children.iter().all(|child| is_well(child, show)),
    }
}

/// The last lines: which files are damaged.
fn errors(text: &mut Text, imported: &Imported, s: &PoolStatus, show: &Show) -> Result<(), Stop> {
    if imported.suspended() {
        let reason = imported.engine().and_then(|engine| engine.suspended());
        let reason = reason.map_or_else(String::new, |reason| format!("        {reason}\n"));
        let why = "pool I/O is currently suspended";
        text.push(format!("\nerrors: List of errors unavailable: {why}\n{reason}"));
        return Ok(());
    }
    text.push("\n");
    if s.error_count == 0 {
        text.push("errors: No known data errors\n");
        return Ok(());
    }
    if !show.verbose {
        let count = format!("errors: {} data errors, use '-v' for a list\n", s.error_count);
        text.paint(Colour::Red, count);
        return Ok(());
    }
    let names = error_list(imported, show).map_err(Stop::Fail)?;
    text.push("errors: Permanent errors have been detected in the following files:\n\n");
    names.iter().for_each(|name| text.push(format!("{:>7} {name}\n", "")));
    Ok(())
}

/// What is damaged; the error says that it cannot be listed.
fn error_list(imported: &Imported, show: &Show) -> Result<Vec<String>, String> {
    if !show.names_files {
        return Err("errors: List of errors unavailable: permission denied".into());
    }
    let open: RefCell<HashMap<u64, Option<Arc<FileSystem>>>> = RefCell::default();
    let path = |d: &Dataset, object: u64| {
        let mut open = open.borrow_mut();
        let fs = open.entry(d.ds_obj).or_insert_with(|| {
            let os = imported.pool().dsl().open_objset(d).ok()?;
            FileSystem::open(os).ok()
        });
        let path = fs.as_ref()?.path_of(object).ok()?;
        Some(String::from_utf8_lossy(&path).into_owned())
    };
    imported
        .pool()
        .error_names(&path, &|dataset| mountpoint(imported, dataset))
        .map_err(|e| format!("errors: List of errors unavailable: {e}"))
}
