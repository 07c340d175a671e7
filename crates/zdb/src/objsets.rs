//! `zdb -d` and `-i`: the MOS and every dataset in the order in which their names are stored (`dump_objset`,
//! `dump_one_objset`).
//!
//! The order is that of the ZAPs: a directory's children, its snapshots, the dataset itself. An object set is its
//! line, its intent log, the lists of its dataset (deadlist, livelist, bookmarks: `dump_blkptr_list`,
//! `dump_full_bpobj`), then all its objects or the ranges that were asked for (`FIRST:LAST:FLAGS`). After all
//! datasets, `consistency` compares what must agree between them.
//!
//! An object that cannot be read is reported, and the next one follows. Directories that form a cycle are reported
//! once.

use super::args::number;
use super::objects::Numbers;
use super::print::{self, blkptr};
use super::{Zdb, failed};
use cenote_command::outcome::{Outcome, Stop, fail};
use cenote_dmu::zap::Zap;
use cenote_dmu::{Object, ObjectSet};
use cenote_dsl::Dataset;
use cenote_dsl::bpobj;
use cenote_format::dmu::{DmuType, ObjsetType};
use cenote_format::dsl::DslDirPhys;
use cenote_format::redaction::RedactBlocks;
use std::collections::HashSet;
use std::sync::Arc;

/// Object numbers of the accounting dnodes, as `zdb` prints them: -1, -2 and -3.
pub const ACCOUNTING: [u64; 3] = [u64::MAX, u64::MAX - 1, u64::MAX - 2];

/// Objects to show.
struct Range {
    start: u64,
    end: u64,
    kinds: Kinds,
}

/// Which types of objects to show, as `A`, `d`, `f`, `m` and `z` say; without letters: all.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Kinds {
    directory: bool,
    file: bool,
    space_map: bool,
    zap: bool,
    /// All types that have no letter.
    others: bool,
}

impl Kinds {
    const ALL: Kinds =
        Kinds { directory: true, file: true, space_map: true, zap: true, others: true };

    fn matches(&self, kind: DmuType) -> bool {
        *self == Kinds::default()
            || match kind {
                DmuType::DIRECTORY_CONTENTS => self.directory,
                DmuType::PLAIN_FILE_CONTENTS => self.file,
                DmuType::SPACE_MAP => self.space_map,
                // Types with a name of their own ("DSL props") are no ZAPs here.
                k if print::type_name(k) == "zap" => self.zap,
                _ => self.others,
            }
    }

    fn parse(flags: &str) -> Result<Kinds, &'static str> {
        let mut kinds = Kinds::default();
        let mut flags = flags.chars();
        while let Some(mut c) = flags.next() {
            let on = c != '-';
            if !on {
                c = flags.next().ok_or("Invalid trailing negation operator")?;
            }
            match c {
                'A' => kinds = if on { Kinds::ALL } else { Kinds::default() },
                'd' => kinds.directory = on,
                'f' => kinds.file = on,
                'm' => kinds.space_map = on,
                'z' => kinds.zap = on,
                _ => return Err("Invalid flag"),
            }
        }
        Ok(kinds)
    }
}

fn parse_range(text: &str) -> Result<Range, Stop> {
    let bad = |why: &str| Stop::Fail(format!("zdb: Bad object or range: '{text}': {why}"));
    if text.starts_with(':') {
        return Err(bad("Invalid leading colon"));
    }
    if text.ends_with(':') {
        return Err(bad("Invalid trailing colon"));
    }
    let object = |t: &str| match t.strip_prefix('-') {
        Some(n) => number(n).map(u64::wrapping_neg),
        None => number(t),
    };
    let mut parts = text.splitn(3, ':');
    let start = parts.next().and_then(object);
    let start = start.ok_or_else(|| bad("Invalid characters in object ID"))?;
    let end = match parts.next() {
        None => start,
        Some(end) => object(end).ok_or_else(|| bad("Invalid characters in end object ID"))?,
    };
    let kinds = Kinds::parse(parts.next().unwrap_or_default()).map_err(bad)?;
    if end < start {
        return Err(bad("Start object ID may not exceed end object ID"));
    }
    Ok(Range { start, end, kinds })
}

fn kind_name(os: &ObjectSet) -> &'static str {
    match os.phys().kind {
        ObjsetType::None => "NONE",
        ObjsetType::Meta => "META",
        ObjsetType::Zfs => "ZPL",
        ObjsetType::Zvol => "ZVOL",
        ObjsetType::Other(4) => "OTHER",
        ObjsetType::Other(5) => "ANY",
        ObjsetType::Other(_) => "UNKNOWN",
    }
}

impl Zdb<'_> {
    /// Objects of the MOS that were asked for.
    pub fn mos_objects(&mut self) -> Outcome {
        let mos = self.pool.mos().clone();
        self.objset(&mos, None)?;
        Ok(0)
    }

    /// One dataset by name, or by the number of its object.
    pub fn one_dataset(&mut self, name: &str) -> Outcome {
        let pool = self.pool.clone();
        let id = name.split_once('/').and_then(|(_, id)| number(id));
        let mut found = None;
        if self.args.has('N') {
            if id.is_none() {
                return fail("Supply a numeric objset ID with -N");
            }
        } else {
            found = pool.dsl().find(name).map_err(failed)?;
        }
        if found.is_none()
            && let Some(id) = id
        {
            found = pool.dsl().by_object(id).map_err(failed)?;
        }
        let Some(dataset) = found else {
            return fail(format!("zdb: can't open '{name}': No such file or directory"));
        };
        if let Some(b) = dataset.bookmark {
            self.bookmark(&dataset.name, &b)?;
            return Ok(0);
        }
        let os = pool.dsl().open_objset(&dataset).map_err(failed)?;
        self.objset(&os, Some(&dataset))?;
        Ok(0)
    }

    /// The MOS, all datasets, and what must agree between them.
    pub fn all_datasets(&mut self) -> Outcome {
        let mos = self.pool.mos().clone();
        self.objset(&mos, None)?;
        if self.level('d') >= 3 {
            self.pool_lists()?;
        }
        let datasets = self.datasets()?;
        for dataset in &datasets {
            match self.pool.dsl().open_objset(dataset) {
                Ok(os) => self.objset(&os, Some(dataset))?,
                Err(e) => {
                    self.complain(format_args!("failed to hold dataset '{}': {e}", dataset.name))
                }
            }
        }
        self.consistency(&datasets)
    }

    /// Datasets in the order in which their names are stored: children first, then snapshots,
    /// then the dataset itself.
    pub fn datasets(&mut self) -> Result<Vec<Dataset>, Stop> {
        let pool = self.pool.clone();
        let Some(root) = pool.dsl().find(pool.name()).map_err(failed)? else {
            return fail("zdb: no root dataset");
        };
        let mut out = Vec::new();
        let mut seen = HashSet::new();
        self.descend(root.dir_obj, &mut seen, &mut out)?;
        Ok(out)
    }

    fn descend(
        &mut self,
        dir: u64,
        seen: &mut HashSet<u64>,
        out: &mut Vec<Dataset>,
    ) -> Result<(), Stop> {
        // Directories nest as deep as names are long; a cycle is damage.
        let mut todo = vec![(dir, false)];
        while let Some((dir, ready)) = todo.pop() {
            let pool = self.pool.clone();
            let object = pool.mos().object(dir).map_err(failed)?;
            let phys = DslDirPhys::decode(&object.bonus()).map_err(failed)?;
            if ready {
                self.snapshots_and_head(&phys, out)?;
                continue;
            }
            if !seen.insert(dir) {
                self.complain(format_args!("directory {dir} is its own ancestor"));
                continue;
            }
            todo.push((dir, true));
            let children = Zap::open(&pool.mos().object(phys.children).map_err(failed)?);
            let children = children.and_then(|z| z.entries()).map_err(failed)?;
            let visible = children.iter().rev().filter(|c| !c.name.starts_with(b"$"));
            todo.extend(visible.filter_map(|c| Some((c.u64()?, false))));
        }
        Ok(())
    }

    fn snapshots_and_head(&mut self, dir: &DslDirPhys, out: &mut Vec<Dataset>) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let Some(head) = pool.dsl().by_object(dir.head_dataset).map_err(failed)? else {
            return Ok(());
        };
        if head.ds.snap_names != 0 {
            let names = Zap::open(&pool.mos().object(head.ds.snap_names).map_err(failed)?);
            for entry in names.and_then(|z| z.entries()).map_err(failed)? {
                let found =
                    entry.u64().map(|o| pool.dsl().by_object(o)).transpose().map_err(failed)?;
                out.extend(found.flatten());
            }
        }
        out.push(head);
        Ok(())
    }

    /// An object set (`dump_objset`): its line, its objects.
    pub fn objset(&mut self, os: &Arc<ObjectSet>, dataset: Option<&Dataset>) -> Result<(), Stop> {
        let level = self.level('d');
        let ranges = self.args.operands.get(1..).unwrap_or_default().to_vec();
        if self.args.has('f') {
            return self.ranges(os, &ranges);
        }
        self.objset_line(os, dataset)?;
        // With a pool's name and -m they are vdevs and metaslabs.
        let is_dataset = self.args.operands.first().is_some_and(|name| name.contains(['/', '@']));
        if level > 0 && !ranges.is_empty() && (is_dataset || self.level('m') == 0) {
            return self.ranges(os, &ranges);
        }
        if dataset.is_some_and(Dataset::is_head) && (self.level('i') > 0 || level >= 2) {
            self.intent_log(os)?;
        }
        if let Some(dataset) = dataset {
            self.dataset_lists(dataset)?;
        }
        if level < 2 || os.root_bp().is_hole() {
            return Ok(());
        }
        let mut header = true;
        self.object(&os.special(0).map_err(failed)?, &mut header)?;
        let phys = os.phys();
        let accounting = [&phys.user_used, &phys.group_used, &phys.project_used];
        for (_, number) in accounting.iter().zip(ACCOUNTING).filter(|(d, _)| d.is_some()) {
            self.object(&os.special(number).map_err(failed)?, &mut header)?;
        }
        self.every_object(os, header)
    }

    fn every_object(&mut self, os: &Arc<ObjectSet>, mut header: bool) -> Result<(), Stop> {
        let (mut used, mut max) = (0u64, 0u64);
        let mut numbers = Numbers::new(os, 1);
        while !self.ctx.cancel.is_cancelled() {
            let number = match numbers.advance() {
                Ok(Some(number)) => number,
                Ok(None) => break,
                Err(Stop::Fail(why)) => {
                    self.complain(why);
                    if numbers.goes_on() {
                        continue;
                    }
                    break;
                }
                Err(other) => return Err(other),
            };
            let slots = match os.object(number) {
                Ok(object) => {
                    self.object(&object, &mut header)?;
                    object.dnode().slots()
                }
                Err(e) => {
                    self.complain(e);
                    1
                }
            };
            used += slots;
            max = number.saturating_add(slots).saturating_sub(1);
        }
        let empty = (max as f64 - used as f64) * 100.0 / max as f64;
        // What C prints for 0/0.
        let empty = if empty.is_nan() { "      -nan".to_string() } else { format!("{empty:10.6}") };
        writeln!(self.out(), "\n    Dnode slots:")?;
        writeln!(self.out(), "\tTotal used:    {used:10}")?;
        writeln!(self.out(), "\tMax used:      {max:10}")?;
        writeln!(self.out(), "\tPercent empty: {empty}\n")?;
        Ok(())
    }

    fn objset_line(&mut self, os: &Arc<ObjectSet>, dataset: Option<&Dataset>) -> Result<(), Stop> {
        let (name, txg, bytes) = match dataset {
            Some(d) => (d.name.clone(), d.ds.creation_txg, d.ds.referenced),
            None => ("mos".to_string(), 4, self.mos_bytes()?),
        };
        let size = self.args.number(bytes);
        let root = match self.level('d') >= 4 {
            true => format!(", rootbp {}", blkptr(os.root_bp())),
            false => String::new(),
        };
        let inconsistent = match dataset {
            Some(d) if d.is_inconsistent() => " (inconsistent)",
            _ => "",
        };
        let (kind, id, objects) = (kind_name(os), os.id(), print::fill(os.root_bp()));
        writeln!(
            self.out(),
            "Dataset {name} [{kind}], ID {id}, cr_txg {txg}, {size}, {objects} objects{root}{inconsistent}"
        )?;
        Ok(())
    }

    /// Bytes that the MOS takes: those charged to its hidden directory.
    fn mos_bytes(&mut self) -> Result<u64, Stop> {
        let pool = self.pool.clone();
        let Some(root) = pool.dsl().find(pool.name()).map_err(failed)? else { return Ok(0) };
        let children = Zap::open(&pool.mos().object(root.dir.children).map_err(failed)?);
        let number = children.and_then(|z| z.u64(b"$MOS")).map_err(failed)?;
        let Some(number) = number else { return Ok(0) };
        let object = pool.mos().object(number).map_err(failed)?;
        Ok(DslDirPhys::decode(&object.bonus()).map_err(failed)?.used)
    }

    fn ranges(&mut self, os: &Arc<ObjectSet>, ranges: &[String]) -> Result<(), Stop> {
        let mut header = true;
        for text in ranges {
            let range = parse_range(text)?;
            if ACCOUNTING.contains(&range.start) || range.start == 0 {
                self.shown(os.special(range.start), &range.kinds, &mut header)?;
            } else if range.start == range.end {
                self.shown(os.object(range.start), &range.kinds, &mut header)?;
            }
            if range.start == range.end {
                continue;
            }
            let mut numbers = Numbers::new(os, range.start.max(1));
            while let Some(number) = numbers.advance()?.filter(|n| *n <= range.end) {
                self.shown(os.object(number), &range.kinds, &mut header)?;
            }
        }
        Ok(())
    }

    fn shown(
        &mut self,
        object: cenote_dmu::Result<Object>,
        kinds: &Kinds,
        header: &mut bool,
    ) -> Result<(), Stop> {
        match object {
            Ok(object) if !kinds.matches(object.dnode().kind) => Ok(()),
            Ok(object) if self.args.has('f') => self.layout(&object),
            Ok(object) => self.object(&object, header),
            Err(e) => {
                self.complain(e);
                Ok(())
            }
        }
    }

    /// A dataset's deadlist, livelist and bookmarks.
    fn dataset_lists(&mut self, dataset: &Dataset) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let dsl = pool.dsl();
        let deadlist = dsl.deadlist(dataset).map_err(failed)?;
        self.deadlist(&deadlist, "Deadlist")?;
        if let Some(livelist) = dsl.livelist(dataset).map_err(failed)? {
            self.deadlist(&livelist, "Livelist")?;
            self.check_livelist(dataset, &livelist)?;
        }
        if let Some(list) = dsl.remap_deadlist(dataset).map_err(failed)? {
            writeln!(self.out(), "ds_remap_deadlist:")?;
            self.deadlist(&list, "Deadlist")?;
        }
        if self.level('d') >= 4 && dataset.is_head() {
            for b in dsl.bookmarks_as_stored(dataset).map_err(failed)? {
                if let Some(phys) = b.bookmark {
                    self.bookmark(&b.name, &phys)?;
                }
            }
        }
        Ok(())
    }

    /// A bookmark (`dump_bookmark`).
    fn bookmark(&mut self, name: &str, b: &cenote_format::dsl::BookmarkPhys) -> Result<(), Stop> {
        let short = name.split('#').next_back().unwrap_or(name);
        writeln!(
            self.out(),
            "\t#{short}: {{guid: {:x} creation_txg: {} creation_time: {} redaction_obj: {}}}",
            b.guid,
            b.creation_txg,
            b.creation_time,
            b.redaction
        )?;
        match b.redaction {
            list if list != 0 && self.level('d') >= 5 => self.redaction(list),
            _ => Ok(()),
        }
    }

    /// A redaction list (`dump_bookmark`).
    fn redaction(&mut self, object: u64) -> Result<(), Stop> {
        let pool = Arc::clone(&self.pool);
        let dsl = pool.dsl();
        let list = dsl.redaction_list(object).map_err(failed)?;
        let progress = match list.is_complete() {
            true => "complete".into(),
            false => format!("{} {} (incomplete)", list.last.0, list.last.1),
        };
        writeln!(self.out(), "\tRedacted:\n\t\tProgress: {progress}")?;
        let snaps: Vec<String> = list.snaps.iter().map(u64::to_string).collect();
        let (snaps, length) = (snaps.join(", "), list.entries);
        writeln!(self.out(), "\t\tSnapshots: [{snaps}]\n\t\tLength: {length}")?;
        if self.level('d') < 6 {
            return Ok(());
        }
        write!(self.out(), "\t\tRedaction List: [")?;
        let mut entries = dsl.redaction_entries(object, None).map_err(failed)?;
        let mut between = "";
        while let Some(entry) = entries.read_next().map_err(failed)? {
            let RedactBlocks { object, first, count, size } = entry;
            write!(
                self.out(),
                "{between}{{object: {object:x}, offset: {first:x}, blksz: {size:x}, count: {count:x}}}"
            )?;
            between = ",\n\t\t";
        }
        writeln!(self.out(), "]\n")?;
        Ok(())
    }

    /// A deadlist or livelist (`dump_blkptr_list`).
    pub fn deadlist(
        &mut self,
        list: &cenote_dsl::deadlist::Deadlist,
        name: &str,
    ) -> Result<(), Stop> {
        if self.level('d') < 3 {
            return Ok(());
        }
        if list.is_plain {
            return self.bpobj(list.object, "old-format deadlist", 0);
        }
        let n = |n: u64| self.args.number(n);
        let total = list.total;
        let (used, comp, uncomp) = (n(total.used), n(total.compressed), n(total.uncompressed));
        let entries = n(list.lists.len() as u64);
        writeln!(self.out(), "\n    {name}: {used} ({comp}/{uncomp} comp), {entries} entries")?;
        if self.level('d') < 4 {
            return Ok(());
        }
        writeln!(self.out())?;
        for (txg, number) in &list.lists {
            let line = format!("mintxg {txg} -> obj {number}");
            match self.level('d') >= 5 {
                true => self.bpobj(*number, &line, 0)?,
                false => writeln!(self.out(), "{line}")?,
            }
        }
        Ok(())
    }

    /// A list of block pointers and those below it (`dump_full_bpobj`).
    pub fn bpobj(&mut self, number: u64, name: &str, depth: usize) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let mos = pool.mos();
        let phys = bpobj::header(mos, number).map_err(failed)?;
        let bonus = mos.object(number).map_err(failed)?.bonus().len();
        let n = |n: u64| self.args.number(n);
        let (bytes, comp, uncomp) = (n(phys.bytes), n(phys.compressed), n(phys.uncompressed));
        let width = depth * 8;
        let freed = if bonus >= 56 { format!("{} freed, ", phys.freed) } else { String::new() };
        let entries = phys.entries;
        if phys.subobjs == 0 {
            writeln!(
                self.out(),
                "    {name:>width$}: object {number}, {entries} blkptrs, {freed}{bytes}"
            )?;
        } else {
            writeln!(
                self.out(),
                "    {name:>width$}: object {number}, {entries} local blkptrs, {freed}{} subobjs in \
                 object {}, {bytes} ({comp}/{uncomp} comp)",
                phys.num_subobjs,
                phys.subobjs
            )?;
            // Deeper ones would be damage; the entries below are bounded on their own.
            if depth < 8 {
                for sub in self.sub_objects(phys.subobjs, phys.num_subobjs)? {
                    self.bpobj(sub, "subobj", depth + 1)?;
                }
            }
        }
        if depth == 0 && self.level('d') >= 5 {
            let mut lines = Vec::new();
            bpobj::iterate(mos, number, &mut |e| {
                lines.push(self.pointer(&e.bp, e.freed));
                Ok(())
            })
            .map_err(failed)?;
            for line in lines {
                writeln!(self.out(), "\t{line}")?;
            }
            writeln!(self.out())?;
        }
        Ok(())
    }

    /// The numbers of the bpobjs listed in object `number`.
    pub fn sub_objects(&mut self, number: u64, count: u64) -> Result<Vec<u64>, Stop> {
        const MAX: u64 = 1 << 20;
        if count > MAX {
            self.complain(format_args!("object {number}: {count} subobjs"));
        }
        let object = self.pool.mos().object(number).map_err(failed)?;
        super::viewers::words(&object, count.min(MAX)).map_err(failed)
    }

    /// The pool's own lists: deferred frees and so on.
    fn pool_lists(&mut self) -> Result<(), Stop> {
        let directory = self.directory()?;
        for (entry, name) in [
            ("sync_bplist", "Deferred frees"),
            ("free_bpobj", "Pool snapshot frees"),
            ("com.delphix:obsolete_bpobj", "Pool obsolete blocks"),
        ] {
            if let Some(number) = directory.u64(entry.as_bytes()).map_err(failed)? {
                self.bpobj(number, name, 0)?;
            }
        }
        if let Some(number) = directory.u64(b"bptree_obj").map_err(failed)? {
            let object = self.pool.mos().object(number).map_err(failed)?;
            if let Ok([begin, end, bytes, comp, uncomp]) = object.bonus().u64s::<5>(0) {
                let n = |n: u64| self.args.number(n);
                let (bytes, comp, uncomp) = (n(bytes), n(comp), n(uncomp));
                let count = end.saturating_sub(begin);
                writeln!(
                    self.out(),
                    "\n    Pool dataset frees: {count} datasets, {bytes} ({comp}/{uncomp} comp)"
                )?;
            }
        }
        self.dirty_time_logs()
    }
}
