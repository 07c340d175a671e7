//! `zdb -b` and `-c`: traverses all blocks, sums them up by type, compares with the space maps
//! (`dump_block_stats`).
//!
//! [`cenote_inspect::traverse`] does the work on several threads. A `Reporter` behind a lock prints what it reports
//! as it comes: progress, unreadable and unclaimed blocks, with `-bbbbb` every block. The summary follows: errors
//! by number, leaks (`zdb_leak_init`), totals, classes of vdevs, and with more `b` the table by type, by level, by
//! size.
//!
//! `-I` bounds the bytes that are being read: each thread reads one block at a time, so it bounds the threads.
//!
//! Exit codes are OpenZFS's: 2 where space leaked or the pool has no blocks, 3 where blocks could not be read or
//! claimed.

use super::bins::{Binned, Bins};
use super::print::{self, blkptr};
use super::{Zdb, failed};
use cenote_command::outcome::{Outcome, Stop};
use cenote_format::MAX_BLOCK;
use cenote_format::dmu::DmuType;
use cenote_inspect::traverse::stats::{
    ALL_LEVELS, BlockSums, DEFERRED, DITTO, LEVELS, OTHER, SizeHistogram, TOTAL, TYPES,
};
use cenote_inspect::traverse::{self, Event, Options, Report, Verify};
use cenote_pool::metaslab::{AllocClass, Metaslab, PoolSpace};
use cenote_store::BlockError;
use cenote_store::alloc::embedded_log;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Instant;

/// Exit code where space leaked, or the pool has no blocks.
pub const LEAKED: i32 = 2;
/// Exit code where blocks could not be read or claimed.
pub const DAMAGED: i32 = 3;
/// `errno` of a checksum error in OpenZFS on Linux.
const ECKSUM: i32 = 52;
const EIO: i32 = 5;
/// Bytes that are read at once to be checked, unless `-I` says otherwise (`max_inflight_bytes`).
const MAX_INFLIGHT: u64 = 256 << 20;

/// What the threads of a traversal report to.
struct Reporter<'a> {
    space: &'a PoolSpace,
    /// What is counted instead of all blocks.
    binned: Option<Binned>,
    out: &'a mut (dyn Write + Send),
    err: &'a mut (dyn Write + Send),
    errors: BTreeMap<i32, u64>,
    level: u32,
    started: Instant,
}

fn errno(e: &BlockError) -> i32 {
    if matches!(e, BlockError::Checksum { .. }) { ECKSUM } else { EIO }
}

impl Reporter<'_> {
    fn event(&mut self, event: &Event<'_>) -> std::io::Result<()> {
        if let (Event::Block(found), Some(binned)) = (event, &mut self.binned) {
            binned.add(&found.bp, self.space);
        }
        match event {
            Event::Loading { vdev, indirect, metaslab, of } => {
                let kind = if *indirect { "indirect" } else { "concrete" };
                write!(self.err, "\rloading {kind} vdev {vdev}, metaslab {metaslab} of {of} ...")
            }
            Event::Loaded => writeln!(self.err),
            Event::Block(found) if self.level >= 5 && found.kind == DEFERRED => {
                writeln!(self.out, "[deferred free] {}", blkptr(&found.bp))
            }
            Event::Block(found) if self.level >= 5 => {
                let at = found.at;
                writeln!(
                    self.out,
                    "objset {} object {} level {} blkid 0x{:x} {}",
                    at.objset,
                    at.object,
                    at.level,
                    at.blkid,
                    blkptr(&found.bp)
                )
            }
            Event::Unreadable { at, bp, errors } => {
                let text = if self.level >= 2 { blkptr(bp) } else { String::new() };
                for e in *errors {
                    let n = errno(e);
                    *self.errors.entry(n).or_default() += 1;
                    writeln!(
                        self.out,
                        "zdb_blkptr_cb: Got error {n} reading <{}, {}, {}, {:x}> {text} -- skipping",
                        at.objset, at.object, at.level, at.blkid
                    )?;
                }
                Ok(())
            }
            Event::NotClaimed { bp, why, .. } => {
                *self.errors.entry(2).or_default() += 1;
                writeln!(self.out, "block claim error 2 ({why:?}): {}", blkptr(bp))
            }
            Event::Damaged(e) => {
                *self.errors.entry(ECKSUM).or_default() += 1;
                writeln!(self.out, "damaged: {e}")
            }
            Event::Progress { done, total } => self.progress(*done, *total),
            Event::Block(_) | Event::Placed { .. } => Ok(()),
        }
    }

    fn progress(&mut self, done: u64, total: u64) -> std::io::Result<()> {
        if self.level >= 5 {
            return Ok(());
        }
        let ms = self.started.elapsed().as_millis().max(1) as u64;
        let rate = 1 + done / ms;
        let left = total.saturating_sub(done) / 1024 / rate;
        write!(
            self.err,
            "\r{:>5} completed ({:4}MB/s) estimated time remaining: {}hr {:02}min {:02}sec        ",
            cenote_dsl::human::nicebytes(done),
            rate / 1024,
            left / 3600,
            left / 60 % 60,
            left % 60
        )
    }
}

/// A percentage as C prints it: `-nan` for nothing of nothing.
fn percent(part: i128, of: i128) -> String {
    if of == 0 { " -nan".into() } else { format!("{:5.2}", 100.0 * part as f64 / of as f64) }
}

fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

/// What special vdevs keep for intent logs (`vdev_log_mg`): the metaslab of each that is emptiest, if it is large
/// enough. Bytes allocated in them and all their bytes; `None`: there are no such vdevs.
fn special_log(space: &PoolSpace) -> Option<(i128, i128)> {
    let special = space.vdevs.iter().filter(|v| v.concrete && v.class == AllocClass::Special);
    let sizes = special.map(|v| {
        let allocated = v.metaslabs.iter().map(Metaslab::flushed_alloc);
        let kept = embedded_log(v.metaslabs.len(), allocated).and_then(|at| v.metaslabs.get(at));
        kept.map_or((0, 0), |m| (i128::from(m.flushed_alloc()), i128::from(m.size)))
    });
    sizes.reduce(|(alloc, size), (a, s)| (alloc + a, size + s))
}

/// Bytes allocated in a class and all its bytes, without unflushed changes. To look for leaks
/// `zdb` gives removed vdevs metaslabs again, so they count as part of the normal class (`removed`).
fn class(space: &PoolSpace, class: AllocClass, removed: bool) -> Option<(i128, i128)> {
    let embedded = class == AllocClass::EmbeddedLog;
    let of = if embedded { AllocClass::Normal } else { class };
    let vdevs: Vec<_> = space.vdevs.iter().filter(|v| v.concrete && v.class == of).collect();
    if vdevs.is_empty() {
        return None;
    }
    let gone = space.vdevs.iter().filter(|v| v.kind == "indirect" && v.class == class && removed);
    let gone = gone.filter(|v| v.metaslab_shift > 0 && v.metaslab_shift < 64);
    let gone = gone.map(|v| i128::from(v.asize >> v.metaslab_shift << v.metaslab_shift)).sum();
    let metaslabs = vdevs.iter().flat_map(|v| &v.metaslabs).filter(|m| m.embedded_log == embedded);
    Some(metaslabs.fold((0, gone), |(alloc, size), m| {
        (alloc + i128::from(m.flushed_alloc()), size + i128::from(m.size))
    }))
}

impl Zdb<'_> {
    /// Traverses the pool and prints what it found.
    pub fn block_stats(&mut self) -> Outcome {
        let (verify, leaks) = (self.level('c'), !self.args.has('L'));
        writeln!(
            self.out(),
            "\nTraversing all blocks {}{}{}{}{}...\n",
            if verify > 0 || leaks { "to verify " } else { "" },
            if verify == 1 { "metadata " } else { "" },
            if verify > 0 { "checksums " } else { "" },
            if verify > 0 && leaks { "and verify " } else { "" },
            if leaks { "nothing leaked " } else { "" },
        )?;
        self.out().flush()?;
        let space = self.space()?;
        let inflight = self.args.inflight.unwrap_or(MAX_INFLIGHT);
        let most = usize::try_from(inflight / MAX_BLOCK).unwrap_or(usize::MAX).max(1);
        let options = Options {
            verify: match verify {
                0 => Verify::Nothing,
                1 => Verify::Metadata,
                _ => Verify::All,
            },
            leaks,
            // Each thread reads one block at a time.
            workers: std::thread::available_parallelism().map_or(1, |n| n.get().min(most)),
        };
        let (report, errors) = self.traverse(&space, &options)?;
        if !errors.is_empty() {
            writeln!(self.out(), "\nError counts:\n\n\t{:>5}  count", "errno")?;
            for (n, count) in &errors {
                writeln!(self.out(), "\t{n:5}  {count}")?;
            }
        }
        self.leaks(&report, leaks)?;
        if report.blocks.total().count == 0 {
            return Ok(LEAKED);
        }
        self.totals(&report, &space)?;
        if self.level('b') >= 2 {
            self.by_type(&report)?;
            self.by_size(&report)?;
        }
        writeln!(self.out())?;
        let lost = !report.leaks.is_empty() || report.obsolete.iter().any(|o| o.precise);
        Ok(if lost {
            LEAKED
        } else if report.is_clean() {
            0
        } else {
            DAMAGED
        })
    }

    fn traverse(
        &mut self,
        space: &PoolSpace,
        options: &Options,
    ) -> Result<(Report, BTreeMap<i32, u64>), Stop> {
        let level = self.level('b');
        let cancel = self.ctx.cancel.clone();
        let pool = self.pool.clone();
        let bins = &self.args.bins;
        let binned = (*bins != Bins::default()).then(|| Binned::new(bins));
        let reporter = Mutex::new(Reporter {
            space,
            binned,
            out: &mut *self.ctx.out,
            err: &mut *self.ctx.err,
            errors: BTreeMap::new(),
            level,
            started: Instant::now(),
        });
        let failure = Mutex::new(None);
        let event = |event: Event<'_>| {
            let mut reporter = reporter.lock();
            if let Err(e) = reporter.event(&event) {
                *failure.lock() = Some(e);
                cancel.cancel();
            }
        };
        let stopped = || cancel.is_cancelled();
        let report = traverse::run(&Self::subject(&pool), space, options, &event, &stopped);
        if let Some(e) = failure.into_inner() {
            return Err(Stop::Io(e));
        }
        let Reporter { errors, binned, .. } = reporter.into_inner();
        let mut report = report.map_err(failed)?;
        if let Some(Binned { psizes, lsizes, asizes, .. }) = binned {
            let blocks = &mut report.blocks;
            (blocks.psizes, blocks.lsizes, blocks.asizes) = (psizes, lsizes, asizes);
        }
        Ok((report, errors))
    }

    fn leaks(&mut self, report: &Report, wanted: bool) -> Result<(), Stop> {
        if !wanted {
            return Ok(());
        }
        for o in &report.obsolete {
            self.obsolete(o)?;
        }
        for l in &report.leaks {
            writeln!(
                self.out(),
                "leaked space: vdev {}, offset 0x{:x}, size {}",
                l.vdev,
                l.offset,
                l.size
            )?;
        }
        let (found, allocated) = (report.found(), report.allocated);
        if found == allocated {
            writeln!(self.out(), "\n\tNo leaks (block sum matches space maps exactly)")?;
        } else {
            let difference = allocated - found;
            writeln!(
                self.out(),
                "block traversal size {found} != alloc {allocated} (leaked {difference})"
            )?;
        }
        Ok(())
    }

    fn obsolete(&mut self, o: &traverse::claims::ObsoleteMismatch) -> Result<(), Stop> {
        let (vdev, total) = (o.vdev, o.total);
        if o.precise || self.level('d') >= 5 {
            for (offset, size, bytes) in &o.segments {
                writeln!(
                    self.out(),
                    "obsolete indirect mapping count mismatch on {vdev}:{offset:x}:{size:x} : \
                     {bytes:x} bytes leaked"
                )?;
            }
        }
        if o.precise {
            writeln!(
                self.out(),
                "obsolete indirect mapping count mismatch for vdev {vdev} -- {total:x} total bytes mismatched"
            )?;
        } else {
            let percent = (total * 100).checked_div(u128::from(o.mapped)).unwrap_or(0);
            writeln!(
                self.out(),
                "cannot verify obsolete indirect mapping counts of vdev {vdev} because precise feature \
                 was not enabled when it was removed: {percent}% ({total:x} bytes) of mappingunreferenced"
            )?;
        }
        Ok(())
    }

    fn totals(&mut self, report: &Report, space: &PoolSpace) -> Result<(), Stop> {
        let t = report.blocks.total().clone();
        let (deduped, cloned) = (report.deduped, report.cloned);
        let leaks = !self.args.has('L');
        let out = self.out();
        writeln!(out)?;
        writeln!(out, "\t{:<16} {:14}", "bp count:", t.count)?;
        writeln!(out, "\t{:<16} {:14}", "ganged count:", t.gangs)?;
        writeln!(out, "\t{:<16} {:14}      avg: {:6}", "bp logical:", t.lsize, t.lsize / t.count)?;
        for (label, bytes) in [("bp physical:", t.psize), ("bp allocated:", t.asize)] {
            let compression = ratio(t.lsize, bytes);
            let average = bytes / t.count;
            writeln!(
                out,
                "\t{label:<16} {bytes:14}      avg: {average:6}     compression: {compression:6.2}"
            )?;
        }
        writeln!(
            out,
            "\t{:<16} {:14}    ref>1: {:6}   deduplication: {:6.2}",
            "bp deduped:",
            deduped.0,
            deduped.1,
            ratio(deduped.0, t.asize) + 1.0
        )?;
        writeln!(out, "\t{:<16} {:14}    count: {:6}", "bp cloned:", cloned.0, cloned.1)?;
        let of = |which| class(space, which, leaks);
        let log = special_log(space);
        let (kept, kept_size) = log.unwrap_or_default();
        let special = of(AllocClass::Special).map(|(a, size)| (a - kept, size - kept_size));
        for (label, figures) in [
            ("Normal class:", of(AllocClass::Normal)),
            ("Special class", special),
            ("Dedup class", of(AllocClass::Dedup)),
            ("Embedded log class", of(AllocClass::EmbeddedLog)),
            ("Special embedded log", log),
        ] {
            if let Some((alloc, size)) = figures {
                writeln!(out, "\t{label:<16} {alloc:14}     used: {}%", percent(alloc, size))?;
            }
        }
        for (kind, count) in report.blocks.embedded.iter().enumerate().filter(|(_, n)| **n > 0) {
            writeln!(self.out(), "\n\tadditional, non-pointer bps of type {kind}: {count:10}")?;
            if self.level('b') >= 3 {
                writeln!(self.out(), "\t number of (compressed) bytes:  number of bps")?;
                print::histogram(self.out(), &report.blocks.embedded_sizes[kind], 0)?;
            }
        }
        if t.ditto_same_vdev != 0 {
            writeln!(self.out(), "\tDittoed blocks on same vdev: {}", t.ditto_same_vdev)?;
        }
        if t.ditto_same_metaslab != 0 {
            writeln!(self.out(), "\tDittoed blocks in same metaslab: {}", t.ditto_same_metaslab)?;
        }
        for (vdev, segments) in &report.mappings {
            let memory = self.args.number(*segments);
            writeln!(
                self.out(),
                "\tindirect vdev id {vdev} has {segments} segments ({memory} in memory)"
            )?;
        }
        Ok(())
    }

    /// `-bb`: one line per object type; `-bbb`: per level too.
    fn by_type(&mut self, report: &Report) -> Result<(), Stop> {
        writeln!(self.out(), "\nBlocks\tLSIZE\tPSIZE\tASIZE\t  avg\t comp\t%Total\tType")?;
        let all = report.blocks.total().asize;
        let mut metadata = BlockSums::default();
        for kind in 0..=TOTAL {
            let name = match kind {
                DEFERRED => "deferred free",
                DITTO => "dedup ditto",
                OTHER => "other",
                TOTAL => "Total",
                n => DmuType(n as u8).name(),
            };
            let sum = report.blocks.cell(kind, ALL_LEVELS);
            if sum.asize == 0 {
                writeln!(
                    self.out(),
                    "{:>6}\t{:>5}\t{:>5}\t{:>5}\t{:>5}\t{:>5}\t{:>6}\t{name}",
                    "-",
                    "-",
                    "-",
                    "-",
                    "-",
                    "-",
                    "-"
                )?;
                continue;
            }
            for level in (0..=LEVELS).rev().filter(|l| *l != ALL_LEVELS).chain([ALL_LEVELS]) {
                let cell = report.blocks.cell(kind, level);
                if cell.asize == 0 {
                    continue;
                }
                let is_metadata = level > 0 || DmuType(kind as u8).is_metadata();
                if level != ALL_LEVELS && kind < TYPES && is_metadata {
                    metadata.count += cell.count;
                    metadata.lsize += cell.lsize;
                    metadata.psize += cell.psize;
                    metadata.asize += cell.asize;
                }
                let alone = level == 0 && cell.asize == sum.asize;
                if (self.level('b') < 3 && level != ALL_LEVELS) || alone {
                    continue;
                }
                let name = match level {
                    ALL_LEVELS => name.to_string(),
                    l => format!("    L{l} {name}"),
                };
                self.type_line(cell, all, &name)?;
                if self.level('b') >= 3 && cell.gangs > 0 {
                    let gangs = self.args.number(cell.gangs);
                    writeln!(self.out(), "\t number of ganged blocks: {gangs}")?;
                }
                if self.level('b') >= 4 {
                    writeln!(self.out(), "psize (in 512-byte sectors): number of blocks")?;
                    print::histogram(self.out(), &cell.by_size, 0)?;
                }
            }
        }
        self.type_line(&metadata, all, "Metadata Total")
    }

    fn type_line(&mut self, s: &BlockSums, all: u64, name: &str) -> Result<(), Stop> {
        let n = |n: u64| self.args.number(n);
        let average = s.asize.checked_div(s.count).unwrap_or(0);
        let (count, lsize, psize) = (n(s.count), n(s.lsize), n(s.psize));
        let (asize, average) = (n(s.asize), n(average));
        let (comp, share) = (ratio(s.lsize, s.psize), 100.0 * ratio(s.asize, all));
        writeln!(
            self.out(),
            "{count:>6}\t{lsize:>5}\t{psize:>5}\t{asize:>5}\t{average:>5}\t{comp:5.2}\t{share:6.2}\t{name}"
        )?;
        Ok(())
    }

    /// `-bb`: blocks by size.
    fn by_size(&mut self, report: &Report) -> Result<(), Stop> {
        let exact = self.args.has('P');
        let blocks = &report.blocks;
        let all: [(&str, &SizeHistogram); 3] =
            [("psize", &blocks.psizes), ("lsize", &blocks.lsizes), ("asize", &blocks.asizes)];
        let notes = self.args.bins.notes();
        let out = self.out();
        write!(out, "\nBlock Size Histogram\n{notes}")?;
        if exact {
            writeln!(out, "\nblock\tpsize\t\t\tlsize\t\t\t  asize")?;
            writeln!(out, "size\t{}", "Count\tSize\tCum.\t".repeat(3))?;
        } else {
            writeln!(
                out,
                "\n{:>7}   {:<7}              {:<7}              asize",
                "block", "psize", "lsize"
            )?;
            let titles = format!("{:>7}{:>7}{:>7}", "Count", "Size", "Cum.");
            writeln!(out, "{:>7} {}", "size", titles.repeat(3))?;
        }
        let mut sums = [0u64; 3];
        for bucket in 9..25usize {
            let size = self.args.number(1 << bucket);
            let mut line = if exact { size } else { format!("{size:>7}:") };
            for ((_, h), sum) in all.iter().zip(&mut sums) {
                *sum = sum.saturating_add(h.bytes[bucket]);
                for n in [h.count[bucket], h.bytes[bucket], *sum] {
                    let n = self.args.number(n);
                    line += &if exact { format!("\t{n}") } else { format!("{n:>7}") };
                }
            }
            writeln!(self.out(), "{line}")?;
        }
        Ok(())
    }
}
