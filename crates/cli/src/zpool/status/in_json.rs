//! `zpool status -j` (`status_callback_json`).
//!
//! Each pool has its head, the worst that is wrong, the last scan, removal and checkpoint, and its vdevs:
//! those with data under `vdevs`, the others under `dedup`, `special`, `logs`, `l2cache` and `spares`. A
//! vdev has what is below it under `vdevs`. With `--json-flat-vdevs` all vdevs stand under the pool's
//! `vdevs`, each with the name of its `parent`, but vdevs of the sections without; OpenZFS nests them there as
//! well.

use super::{Show, error_list};
use crate::context::Context;
use crate::interval::date;
use crate::json::{Form, Json};
use crate::pools::Imported;
use crate::zpool::vdev_json::{aux_text, class_of, head};
use cenote_command::outcome::Stop;
use cenote_dsl::human::nicetime;
use cenote_pool::ddt_stats::{self, Stat};
use cenote_pool::expansion::Expansion;
use cenote_pool::rebuild::{RebuildPhys, RebuildStatus};
use cenote_pool::scan::{CheckpointStatus, RemovalStatus, ScanKind, ScanState, ScanStatus};
use cenote_pool::status::{ReplayStatus, VdevLine};
use cenote_pool::vdev_figures::VdevFigures;
use cenote_pool::vdev_props::{Activity, Progress};
use cenote_pool::{Pool, PoolStatus, config};
use cenote_vdev::{GROWING_FIGURES, GrowingFigure, GrowingFigures, VdevState};
use serde_json::{Map, Value};
use std::time::SystemTime;

/// Where the explanations of messages are.
const MESSAGES: &str = "https://openzfs.github.io/openzfs-docs/msg/";

/// A pool, and the key it is listed under.
pub fn pool(
    imported: &Imported,
    s: &PoolStatus,
    show: &Show,
    json: Json,
    ctx: &Context,
) -> Result<(String, Value), Stop> {
    let (key, mut item) = json.pool(imported, false);
    for (name, text) in [("status", &s.texts.status), ("action", &s.texts.action)] {
        if let Some(text) = text {
            item.insert(name.into(), format!("{text}\n").into());
        }
    }
    if let Some(id) = s.texts.msgid {
        item.insert("msgid".into(), id.into());
        item.insert("moreinfo".into(), format!("{MESSAGES}{id}").into());
    }
    let pool = imported.pool();
    let figures = Figures { json, literal: show.literal, ctx };
    figures.scans(imported, (&*pool, s.rebuilds.as_slice()), &mut item)?;
    if let (Some(why), Some(Value::Object(stats))) = (&s.scan_waits, item.get_mut("scan_stats")) {
        stats.insert("waiting".into(), why.as_str().into());
    }
    if let Some(removal) = &s.removal {
        item.insert("removal_stats".into(), figures.removal(removal, &pool).into());
    }
    if let Some(expansion) = &s.expansion {
        item.insert("raidz_expand_stats".into(), figures.expansion(expansion, &pool).into());
    }
    if let Some(checkpoint) = &s.checkpoint {
        item.insert("checkpoint_stats".into(), figures.checkpoint(checkpoint).into());
    }
    if let Some(replay) = &s.replay {
        item.insert("replay_stats".into(), figures.replay(replay).into());
    }
    if let Some(objects) = pool.store().vdevs().growing_figures() {
        item.insert("object_stats".into(), figures.objects(&objects).into());
    }
    let tree = Tree { figures, pool: &pool, show };
    tree.sections(s, &mut item);
    if show.dedup {
        let stats = tree.figures.dedup(&pool)?;
        item.insert("dedup_stats".into(), stats.into());
    }
    tree.figures.errors(imported, s, show, &mut item);
    Ok((key, Value::Object(item)))
}

/// How figures are shown.
struct Figures<'a> {
    json: Json,
    literal: bool,
    ctx: &'a Context,
}

impl Figures<'_> {
    fn bytes(&self, n: u64) -> Value {
        self.json.figure(n, Form::Bytes, self.literal)
    }

    /// What is in the pool's object store, and what was asked of that; of cenote's own.
    fn objects(&self, objects: &GrowingFigures) -> Map<String, Value> {
        let shown = |(figure, value): (&GrowingFigure, u64)| {
            let shown = match figure.name.ends_with("_bytes") {
                true => self.bytes(value),
                false => self.number(value),
            };
            (figure.name.to_string(), shown)
        };
        GROWING_FIGURES.iter().zip(objects.values()).map(shown).collect()
    }

    fn number(&self, n: u64) -> Value {
        self.json.figure(n, Form::Number, self.literal)
    }

    /// When a scan was paused; 0: it is not.
    fn pause(&self, seconds: u64) -> Value {
        if seconds == 0 { self.json.number(0) } else { self.time(seconds) }
    }

    fn time(&self, seconds: u64) -> Value {
        match self.literal {
            true => self.json.number(seconds),
            false => date(self.ctx, seconds).into(),
        }
    }

    /// The last scrub or resilver, and a later scrub of errors (`scan_status_nvlist`).
    fn scans(
        &self,
        imported: &Imported,
        (pool, rebuilds): (&Pool, &[RebuildStatus]),
        item: &mut Map<String, Value>,
    ) -> Result<(), Stop> {
        let (scan, errors) = ScanStatus::both(pool.directory(), pool.scan_pass())
            .map_err(|e| Stop::Fail(e.to_string()))?;
        if scan.is_none() && errors.is_none() && rebuilds.is_empty() {
            return Ok(());
        }
        let mut stats = Map::new();
        if scan.is_some() || errors.is_some() {
            self.scan(scan.as_ref(), imported, &mut stats);
        }
        if !rebuilds.is_empty() {
            let each = rebuilds.iter().map(|r| (r.name.clone(), self.rebuild(r, pool).into()));
            stats.insert("rebuild_stats".into(), each.collect::<Map<String, Value>>().into());
        }
        let start = scan.map_or(0, |s| s.start);
        if let Some(e) = errors.filter(|e| e.start > start) {
            stats.insert("err_scrub_func".into(), function(e.kind).into());
            let state =
                if e.state == ScanState::Scanning { "ERRORSCRUBBING" } else { state(e.state) };
            stats.insert("err_scrub_state".into(), state.into());
            stats.insert("err_scrub_start_time".into(), self.time(e.start));
            stats.insert("err_scrub_end_time".into(), self.time(e.end));
            stats.insert("err_scrub_examined".into(), self.number(e.examined));
            stats.insert("err_scrub_to_examine".into(), self.number(e.to_examine));
            stats.insert("err_scrub_pause".into(), self.pause(e.pass.paused));
        }
        item.insert("scan_stats".into(), stats.into());
        Ok(())
    }

    /// What is counted of a scan that is over is 0, but for what the pool keeps.
    fn scan(&self, scan: Option<&ScanStatus>, imported: &Imported, stats: &mut Map<String, Value>) {
        let of = |f: fn(&ScanStatus) -> u64| scan.map_or(0, f);
        stats.insert("function".into(), scan.map_or("NONE", |s| function(s.kind)).into());
        stats.insert("state".into(), scan.map_or("NONE", |s| state(s.state)).into());
        stats.insert("start_time".into(), self.time(of(|s| s.start)));
        stats.insert("end_time".into(), self.time(of(|s| s.end)));
        stats.insert("to_examine".into(), self.bytes(of(|s| s.to_examine)));
        stats.insert("examined".into(), self.bytes(of(|s| s.examined)));
        stats.insert("skipped".into(), self.bytes(of(|s| s.skipped)));
        stats.insert("processed".into(), self.bytes(of(|s| s.processed)));
        stats.insert("errors".into(), self.number(of(|s| s.errors)));
        stats.insert("bytes_per_scan".into(), self.bytes(of(|s| s.pass.examined)));
        let since = SystemTime::now().checked_sub(imported.since.elapsed());
        let since = since.and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok());
        let begun = scan.map(|s| s.pass.start).filter(|start| *start != 0);
        let begun = begun.unwrap_or_else(|| since.map_or(0, |t| t.as_secs()));
        stats.insert("pass_start".into(), self.json.number(begun));
        stats.insert("scrub_pause".into(), self.time(of(|s| s.pass.paused)));
        let paused = of(|s| s.pass.spent_paused);
        stats.insert("scrub_spent_paused".into(), self.json.number(paused));
        stats.insert("issued_bytes_per_scan".into(), self.bytes(of(|s| s.pass.issued)));
        let running = |s: &ScanStatus| if s.is_running() { s.issued } else { 0 };
        stats.insert("issued".into(), self.bytes(scan.map_or(0, running)));
    }

    /// The last sequential rebuild of a vdev.
    fn rebuild(&self, r: &RebuildStatus, pool: &Pool) -> Map<String, Value> {
        let vdevs = pool.store().vdevs();
        let mut stats = match vdevs.root().children().iter().find(|top| top.id() == r.vdev) {
            Some(top) => head(self.json, &r.name, top.config(), class_of(top.config()), None),
            None => Map::from_iter([("name".to_string(), r.name.as_str().into())]),
        };
        let (phys, pass) = (&r.phys, &r.pass);
        let state = match phys.state {
            RebuildPhys::ACTIVE => "ACTIVE",
            RebuildPhys::CANCELED => "CANCELED",
            _ => "COMPLETE",
        };
        stats.insert("state".into(), state.into());
        stats.insert("start_time".into(), self.time(phys.start));
        stats.insert("end_time".into(), self.time(phys.end));
        stats.insert("scan_time".into(), self.took(phys.took_ms));
        stats.insert("scanned".into(), self.bytes(phys.scanned));
        stats.insert("issued".into(), self.bytes(phys.issued));
        stats.insert("rebuilt".into(), self.bytes(phys.rebuilt));
        stats.insert("to_scan".into(), self.bytes(phys.estimate));
        stats.insert("errors".into(), self.number(phys.errors));
        stats.insert("pass_time".into(), self.took(pass.took_ms));
        stats.insert("pass_scanned".into(), self.bytes(pass.scanned));
        stats.insert("pass_issued".into(), self.bytes(pass.issued));
        // All that is scanned is read here.
        stats.insert("pass_skipped".into(), self.bytes(0));
        if let Some(why) = &r.waits {
            stats.insert("waiting".into(), why.as_str().into());
        }
        stats
    }

    /// A time of so many milliseconds (`ZFS_NICENUM_TIME`).
    fn took(&self, milliseconds: u64) -> Value {
        let nanoseconds = milliseconds.saturating_mul(1_000_000);
        match self.json.figure(nanoseconds, Form::Number, true) {
            exact if self.literal || exact.is_number() => exact,
            _ => nicetime(nanoseconds).into(),
        }
    }

    /// The last removal of a vdev (`removal_status_nvlist`).
    fn removal(&self, r: &RemovalStatus, pool: &Pool) -> Map<String, Value> {
        let vdevs = pool.store().vdevs();
        let tops = vdevs.root().children();
        let mut stats = match tops.iter().find(|top| top.id() == r.vdev) {
            Some(top) => {
                let config = top.config();
                head(self.json, &r.vdev_name, config, class_of(config), Some(top.state()))
            }
            None => Map::from_iter([("name".to_string(), r.vdev_name.as_str().into())]),
        };
        stats.insert("state".into(), state(r.state).into());
        stats.insert("removing_vdev".into(), self.json.number(r.vdev));
        stats.insert("start_time".into(), self.time(r.start));
        stats.insert("end_time".into(), self.time(r.end));
        stats.insert("to_copy".into(), self.bytes(r.to_copy));
        stats.insert("copied".into(), self.bytes(r.copied));
        stats.insert("mapping_memory".into(), self.bytes(r.mapping_bytes));
        if let Some(why) = r.waits.as_ref().filter(|_| r.state == ScanState::Scanning) {
            stats.insert("waiting".into(), why.as_str().into());
        }
        stats
    }

    /// The last expansion of a RAID-Z vdev (`raidz_expand_status_nvlist`).
    fn expansion(&self, e: &Expansion, pool: &Pool) -> Map<String, Value> {
        let vdevs = pool.store().vdevs();
        let mut stats = match vdevs.root().children().iter().find(|top| top.id() == e.vdev) {
            Some(top) => {
                let config = top.config();
                head(self.json, &e.name, config, class_of(config), Some(top.state()))
            }
            None => Map::from_iter([("name".to_string(), e.name.as_str().into())]),
        };
        let now = if e.is_running { ScanState::Scanning } else { ScanState::Finished };
        stats.insert("state".into(), state(now).into());
        stats.insert("expanding_vdev".into(), self.json.number(e.vdev));
        stats.insert("start_time".into(), self.time(e.start));
        stats.insert("end_time".into(), self.time(e.end));
        stats.insert("to_reflow".into(), self.bytes(e.to_reflow));
        stats.insert("reflowed".into(), self.bytes(e.reflowed));
        let waits = u64::from(e.is_running && e.waits.is_some());
        stats.insert("waiting_for_resilver".into(), self.json.number(waits));
        stats
    }

    /// The replay of intent logs that is under way. OpenZFS has no such thing.
    fn replay(&self, r: &ReplayStatus) -> Map<String, Value> {
        let mut stats = Map::from_iter([
            ("state".to_string(), r.stage.name().into()),
            ("datasets".to_string(), self.number(r.datasets)),
            ("datasets_done".to_string(), self.number(r.datasets_done)),
            ("records".to_string(), self.number(r.records)),
            ("records_done".to_string(), self.number(r.records_done)),
            ("bytes".to_string(), self.bytes(r.bytes)),
            ("bytes_done".to_string(), self.bytes(r.bytes_done)),
            ("bytes_per_second".to_string(), self.bytes(r.rate())),
        ]);
        if let Some(left) = r.left() {
            stats.insert("seconds_left".into(), self.json.number(left.as_secs()));
        }
        stats
    }

    fn checkpoint(&self, c: &CheckpointStatus) -> Map<String, Value> {
        let state = if c.created.is_some() { "EXISTS" } else { "DISCARDING" };
        Map::from_iter([
            ("state".to_string(), state.into()),
            ("start_time".to_string(), self.time(c.created.unwrap_or(0))),
            ("space".to_string(), self.bytes(c.space)),
        ])
    }

    /// The deduplication tables (`dedup_stats_nvlist`).
    fn dedup(&self, pool: &Pool) -> Result<Map<String, Value>, Stop> {
        let (size, histogram) = ddt_stats::all(pool).map_err(|e| Stop::Fail(e.to_string()))?;
        let mut stats = Map::new();
        stats.insert("obj_count".into(), self.number(size.entries));
        if size.entries == 0 {
            stats.insert("ddt_object_stats".into(), Map::new().into());
            return Ok(stats);
        }
        stats.insert("dspace".into(), self.number(size.on_disk));
        stats.insert("mspace".into(), self.number(size.in_core));
        let buckets = histogram.buckets().iter().enumerate().filter(|(_, stat)| stat.0[0] != 0);
        let buckets: Map<String, Value> =
            buckets.map(|(at, stat)| (at.to_string(), self.stat(stat).into())).collect();
        let mut tables = Map::new();
        tables.insert("total".into(), self.stat(&histogram.total()).into());
        tables.insert("histogram".into(), buckets.into());
        stats.insert("ddt_stats".into(), tables.into());
        Ok(stats)
    }

    fn stat(&self, stat: &Stat) -> Map<String, Value> {
        const NAMES: [&str; 8] = [
            "blocks",
            "logical_size",
            "physical_size",
            "deflated_size",
            "ref_blocks",
            "ref_lsize",
            "ref_psize",
            "ref_dsize",
        ];
        let value =
            |(at, n): (usize, u64)| if at % 4 == 0 { self.number(n) } else { self.bytes(n) };
        let values = stat.0.into_iter().enumerate().map(value);
        NAMES.map(String::from).into_iter().zip(values).collect()
    }

    /// How many data errors there are, with `-v` which (`errors_nvlist`).
    fn errors(
        &self,
        imported: &Imported,
        s: &PoolStatus,
        show: &Show,
        item: &mut Map<String, Value>,
    ) {
        item.insert("error_count".into(), self.number(s.error_count));
        if s.error_count != 0 && show.verbose {
            let list = match error_list(imported, show) {
                Ok(names) => names.into(),
                Err(why) => Value::from(why),
            };
            item.insert("errlist".into(), list);
        }
    }
}

fn function(kind: ScanKind) -> &'static str {
    match kind {
        ScanKind::Scrub => "SCRUB",
        ScanKind::Resilver => "RESILVER",
        ScanKind::ErrorScrub => "ERRORSCRUB",
    }
}

fn state(state: ScanState) -> &'static str {
    match state {
        ScanState::Scanning => "SCANNING",
        ScanState::Finished => "FINISHED",
        ScanState::Canceled => "CANCELED",
    }
}

/// The vdevs of a pool.
struct Tree<'a> {
    figures: Figures<'a>,
    pool: &'a Pool,
    show: &'a Show,
}

/// What a vdev has from where it stands.
#[derive(Clone, Copy)]
struct Place<'a> {
    parent: Option<&'a str>,
    class: &'a str,
    root: bool,
}

impl Tree<'_> {
    fn sections(&self, s: &PoolStatus, item: &mut Map<String, Value>) {
        let root = Place { parent: None, class: "normal", root: true };
        let mut vdevs = self.vdev(&s.tree.root, root);
        let sections = [
            ("dedup", "dedup", &s.tree.dedup),
            ("special", "special", &s.tree.special),
            ("logs", "log", &s.tree.logs),
            ("l2cache", "l2cache", &s.tree.cache),
            ("spares", "spare", &s.tree.spares),
        ];
        let mut others = Map::new();
        for (name, class, lines) in sections {
            let place = Place { parent: None, class, root: false };
            let section: Map<_, _> = lines.iter().flat_map(|l| self.vdev(l, place)).collect();
            match self.show.flat {
                true => vdevs.extend(section),
                false if section.is_empty() => {}
                false => drop(others.insert(name.into(), section.into())),
            }
        }
        item.insert("vdevs".into(), vdevs.into());
        item.extend(others);
    }

    /// A vdev under its name, in a flat tree behind those below it (`vdev_stats_nvlist`).
    fn vdev(&self, line: &VdevLine, at: Place<'_>) -> Map<String, Value> {
        let mut listed = Map::new();
        if self.show.only_troubled_vdevs && !at.root && super::is_well(line, self.show) {
            return listed;
        }
        let name = match at.root {
            true => self.pool.name().to_string(),
            false => line.name(&self.show.style),
        };
        let mut own = head(self.figures.json, &name, &line.config, at.class, line.vdev_state);
        if let Some(parent) = at.parent.filter(|_| self.show.flat) {
            own.insert("parent".into(), parent.into());
        }
        match at.class {
            "spare" => drop(own.insert("state".into(), line.state.into())),
            _ => self.stats(line, at, &mut own),
        }
        self.trouble(line, &mut own);
        if line.children.is_empty() && at.class != "spare" {
            self.activities(line, &mut own);
        }
        let mut below = Map::new();
        for child in &line.children {
            let class = if at.root { class_of(&child.config) } else { at.class };
            below.extend(self.vdev(child, Place { parent: Some(&name), class, root: false }));
        }
        if self.show.flat {
            listed.extend(below.clone());
        }
        if !below.is_empty() {
            own.insert("vdevs".into(), below.into());
        }
        listed.insert(name, own.into());
        listed
    }

    fn stats(&self, line: &VdevLine, at: Place<'_>, own: &mut Map<String, Value>) {
        let f = match at.class {
            _ if at.root => VdevFigures::of_root(self.pool),
            "l2cache" => VdevFigures::of_aux(self.pool, &line.config, true),
            _ => VdevFigures::of_vdev(self.pool, config::number(&line.config, "guid"))
                .unwrap_or_default(),
        };
        let sizes = [
            ("alloc_space", f.allocated),
            ("total_space", f.size),
            ("def_space", f.deflated),
            ("rep_dev_size", f.replacement),
            ("ex_dev_size", f.expandable),
            ("self_healed", f.healed),
            ("phys_space", f.device),
        ];
        for (name, bytes) in sizes.into_iter().filter(|(_, bytes)| *bytes != 0) {
            own.insert(name.into(), self.figures.bytes(bytes));
        }
        let (read, write, checksum) = line.errors;
        for (name, n) in
            [("read_errors", read), ("write_errors", write), ("checksum_errors", checksum)]
        {
            own.insert(name.into(), self.figures.number(n));
        }
        if line.deferred {
            own.insert("resilver_deferred".into(), self.figures.number(1));
        }
        if line.children.is_empty() {
            own.insert("slow_ios".into(), self.figures.number(f.slow_ios));
        }
    }

    /// What `-i` and `-t` ask for.
    fn activities(&self, line: &VdevLine, own: &mut Map<String, Value>) {
        let figures = &self.figures;
        let text = |p: &Progress| match p.state {
            "completed at" => "COMPLETE",
            "started at" => "ACTIVE",
            _ => "SUSPENDED",
        };
        if self.show.initialized {
            let progress = Activity::Initialize.progress(self.pool, &line.config);
            let state = progress.as_ref().map_or("UNINITIALIZED", text);
            own.insert("init_state".into(), state.into());
            if let Some(p) = progress {
                own.insert("init_time".into(), figures.time(p.time));
                own.insert("init_errors".into(), figures.number(line.vacant_errors.0));
            }
        }
        if self.show.trimmed {
            if let Some(p) = Activity::Trim.progress(self.pool, &line.config) {
                own.insert("trim_state".into(), text(&p).into());
                own.insert("trim_time".into(), figures.time(p.time));
                own.insert("trim_errors".into(), figures.number(line.vacant_errors.1));
            }
            let unsupported = u64::from(!super::can_trim(self.pool, line));
            own.insert("trim_notsup".into(), figures.json.number(unsupported));
        }
    }

    fn trouble(&self, line: &VdevLine, own: &mut Map<String, Value>) {
        let leaf = line.children.is_empty();
        if config::flag(&line.config, "not_present") && leaf {
            own.insert("not_present".into(), self.figures.json.number(1));
            own.insert("was".into(), line.config.str("path").unwrap_or_default().into());
            return;
        }
        let state = line.vdev_state.unwrap_or(VdevState::Healthy);
        match aux_text(state, &line.config, leaf) {
            Some(aux) => drop(own.insert("aux".into(), aux.into())),
            None if line.state == "INUSE" => drop(own.insert("aux".into(), "SPARED".into())),
            None => {}
        }
    }
}
