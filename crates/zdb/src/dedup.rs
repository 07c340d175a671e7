//! `zdb -D`: the deduplication tables (`dump_all_ddts`, `dump_ddt`); `-S`: what one would save (`dump_simulated_ddt`); `-T`:
//! the block reference tables (`dump_brt`).
//!
//! `-D` reads each table's ZAPs and logs, and prints sizes, histograms by references, and with more `D` the entries
//! as block pointers. `-S` traverses the pool and counts each data block by what would make two blocks the same
//! (`ddt_key_t`); all of that is kept in memory. `-T` prints the table of each vdev, with more `T` its counts or
//! its entries.
//!
//! The formats are decoded by [`cenote_pool::ddt`] and [`cenote_pool::brt`].

use super::print::{self, blkptr};
use super::{Zdb, failed};
use cenote_command::outcome::{Stop, fail};
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::Checksum;
use cenote_format::dmu::DmuType;
use cenote_inspect::traverse::stats::DEFERRED;
use cenote_inspect::traverse::{self, Event, Found, Options, Verify};
use cenote_pool::brt;
use cenote_pool::ddt::{self, Entry, LOG_CHECKPOINT, LOG_FLUSHING, Table};
use cenote_pool::ddt_stats::{Histogram, Stat, TableSize};
use parking_lot::Mutex;
use std::collections::HashMap;

/// What makes two blocks the same (`ddt_key_t`): checksum, sizes and compression.
type Same = ([u64; 4], u64, u64, u8, bool);

/// What `-S` has seen.
#[derive(Default)]
struct Simulated {
    /// What all pointers to a block count.
    blocks: HashMap<Same, Stat>,
    /// Object sets: their numbers, their objects, the blocks before them.
    roots: Vec<(u64, u64, usize)>,
    unread: u64,
}

impl Simulated {
    /// Takes a pointer in (`zdb_ddt_add_cb`).
    fn add(&mut self, found: &Found, deflated: &dyn Fn(&BlockPointer) -> u64) {
        let (bp, kind) = (&found.bp, DmuType(found.bp.object_type()));
        if bp.is_hole() || bp.is_embedded() {
            return;
        }
        if kind == DmuType::OBJSET && found.at.level == -1 {
            self.roots.push((found.at.objset, print::fill(bp), self.blocks.len()));
        }
        let unchecked = bp.checksum_type() == Checksum::Off as u8;
        if unchecked || bp.level() > 0 || kind.is_metadata() {
            return;
        }
        let mut checksum = bp.checksum();
        if bp.uses_crypt() {
            // The rest is a MAC, which is of the block and its key.
            checksum[2..].fill(0);
        }
        let same = (checksum, bp.lsize(), bp.psize(), bp.compression(), bp.uses_crypt());
        let once = [1, bp.lsize(), bp.psize(), deflated(bp)];
        let Stat(sums) = self.blocks.entry(same).or_default();
        let [.., b, l, p, d] = sums;
        for (sum, more) in [b, l, p, d].into_iter().zip(once) {
            *sum = sum.saturating_add(more);
        }
    }
}

impl Zdb<'_> {
    /// `-D`.
    pub fn dedup_tables(&mut self) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let mut all = Histogram::default();
        for table in ddt::load(pool.mos()).map_err(failed)? {
            self.dedup_table(&table, &mut all)?;
        }
        let total = all.total();
        if total.0[0] == 0 {
            writeln!(self.out(), "All DDTs are empty")?;
            return Ok(());
        }
        writeln!(self.out())?;
        if self.level('D') > 1 {
            writeln!(self.out(), "DDT histogram (aggregated over all DDTs):")?;
            self.dedup_histogram(&all, true)?;
        }
        self.dedup_ratio(&total)
    }

    /// `-S`: what a deduplication table would be if all data were deduplicated (`dump_simulated_ddt`).
    pub fn simulated_dedup(&mut self) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let cancel = self.ctx.cancel.clone();
        let (found, space) = (Mutex::new(Simulated::default()), self.space()?);
        let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
        let options = Options { verify: Verify::Nothing, leaks: false, workers };
        let deflated = |bp: &BlockPointer| {
            let vdevs = pool.store().vdevs();
            let copies = bp.dvas().filter_map(|d| Some(vdevs.top(d.vdev.into())?.deflate(d.asize)));
            copies.fold(0, u64::saturating_add)
        };
        let event = |event: Event<'_>| match event {
            Event::Block(block) if block.kind != DEFERRED => found.lock().add(block, &deflated),
            Event::Unreadable { .. } | Event::Damaged(_) => found.lock().unread += 1,
            _ => {}
        };
        let stopped = || cancel.is_cancelled();
        traverse::run(&Self::subject(&pool), &space, &options, &event, &stopped).map_err(failed)?;
        let Simulated { blocks, roots, unread } = found.into_inner();
        if self.level('S') > 1 {
            for (objset, objects, so_far) in roots {
                writeln!(
                    self.out(),
                    "traversing objset {objset}, {objects} objects, {so_far} blocks so far"
                )?;
            }
        }
        if unread > 0 {
            self.complain(format_args!(
                "{unread} blocks cannot be read; what is below is not counted"
            ));
        }
        let mut histogram = Histogram::default();
        if !blocks.values().all(|stat| histogram.count_stat(stat)) {
            return fail("zdb: more blocks than can be counted");
        }
        writeln!(self.out(), "Simulated DDT histogram:")?;
        self.dedup_histogram(&histogram, true)?;
        self.dedup_ratio(&histogram.total())
    }

    /// How much is saved (`dump_dedup_ratio`).
    fn dedup_ratio(&mut self, total: &Stat) -> Result<(), Stop> {
        if total.0[0] == 0 {
            return Ok(());
        }
        let [_, _, _, dsize, _, ref_lsize, ref_psize, ref_dsize] = total.0.map(|n| n as f64);
        let (dedup, compress, copies) =
            (ref_dsize / dsize, ref_lsize / ref_psize, ref_dsize / ref_psize);
        writeln!(
            self.out(),
            "dedup = {dedup:.2}, compress = {compress:.2}, copies = {copies:.2}, \
             dedup * compress / copies = {:.2}\n",
            dedup * compress / copies
        )?;
        Ok(())
    }

    fn dedup_table(&mut self, table: &Table, all: &mut Histogram) -> Result<(), Stop> {
        let name = table.checksum.name();
        let flags: Vec<&str> = [(ddt::FLAG_FLAT, "FLAT"), (ddt::FLAG_LOG, "LOG")]
            .iter()
            .filter(|(bit, _)| table.flags & bit != 0)
            .map(|f| f.1)
            .collect();
        let flags =
            if flags.is_empty() { String::new() } else { format!(" [{}]", flags.join(" ")) };
        let kind = if table.version == 0 { "LEGACY" } else { "FDT" };
        writeln!(
            self.out(),
            "DDT-{name}: version={} [{kind}]; flags=0x{:02x}{flags}; rootobj={}",
            table.version,
            table.flags,
            table.directory
        )?;
        for stored in &table.stored {
            self.stored_entries(table, stored, all)?;
        }
        for (n, log) in table.logs.iter().enumerate() {
            self.dedup_log(table, n, log)?;
            for entry in log.entries.values() {
                if !all.count(&self.pool, entry) {
                    return fail("zdb: the deduplication tables count more than can be");
                }
            }
        }
        Ok(())
    }

    fn stored_entries(
        &mut self,
        table: &Table,
        stored: &ddt::Stored,
        all: &mut Histogram,
    ) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let mos = pool.mos();
        let histogram = Histogram::stored(&pool, &stored.name).map_err(failed)?;
        if !all.add(&histogram) {
            return fail("zdb: the deduplication tables count more than can be");
        }
        let size = TableSize::of_stored(&pool, stored).map_err(failed)?;
        if size.entries == 0 {
            return Ok(());
        }
        let name = &stored.name;
        writeln!(
            self.out(),
            "{name}: dspace={}; mspace={}; entries={}",
            size.on_disk,
            size.in_core,
            size.entries
        )?;
        if self.level('D') < 3 {
            return Ok(());
        }
        writeln!(self.out(), "{name}: object={}", stored.object)?;
        self.dedup_histogram(&histogram, false)?;
        const UNIQUE: usize = 2;
        if self.level('D') < 4 || (self.level('D') < 5 && stored.class == UNIQUE) {
            return Ok(());
        }
        writeln!(self.out(), "{name} contents:\n")?;
        let mut lines = Vec::new();
        let mut index = 0;
        table
            .for_each_stored(mos, stored, &mut |entry| {
                index += 1;
                lines.extend(entry_lines(table, entry, index));
                Ok(())
            })
            .map_err(failed)?;
        for line in lines {
            writeln!(self.out(), "{line}")?;
        }
        writeln!(self.out())?;
        Ok(())
    }

    fn dedup_log(&mut self, table: &Table, n: usize, log: &ddt::Log) -> Result<(), Stop> {
        let known = [(LOG_FLUSHING, "FLUSHING"), (LOG_CHECKPOINT, "CHECKPOINT")];
        let mut flags: Vec<&str> =
            known.iter().filter(|(bit, _)| log.flags & bit != 0).map(|f| f.1).collect();
        if log.flags & !(LOG_FLUSHING | LOG_CHECKPOINT) != 0 {
            flags.push("UNKNOWN");
        }
        let flags =
            if flags.is_empty() { String::new() } else { format!(" [{}]", flags.join(" ")) };
        let name = table.checksum.name();
        writeln!(
            self.out(),
            "DDT-log-{name}-{n}: flags=0x{:02x}{flags}; obj={}; len={}; txg={}; entries={}",
            log.flags,
            log.object,
            log.length,
            log.first_txg,
            log.entries.len()
        )?;
        if let Some(c) = log.checkpoint {
            let words: Vec<String> = c.0.iter().map(|w| format!("{w:016x}")).collect();
            writeln!(self.out(), "    checkpoint: {}", words.join(":"))?;
        }
        if self.level('D') >= 4 {
            let mut entries: Vec<&Entry> = log.entries.values().collect();
            entries.sort_by_key(|e| e.key);
            for (index, entry) in (0..).zip(entries) {
                for line in entry_lines(table, entry, index) {
                    writeln!(self.out(), "{line}")?;
                }
            }
        }
        Ok(())
    }

    fn dedup_histogram(&mut self, h: &Histogram, with_total: bool) -> Result<(), Stop> {
        let text = h.text(with_total, &|n| self.args.number(n), &|n| self.args.bytes(n));
        write!(self.out(), "{text}")?;
        Ok(())
    }

    /// `-T`.
    pub fn reference_tables(&mut self) -> Result<(), Stop> {
        let pool = self.pool.clone();
        if !pool.features().is_enabled("block_cloning") {
            writeln!(self.out(), "BRT: unsupported on this pool")?;
            return Ok(());
        }
        if !pool.features().is_active("block_cloning") {
            writeln!(self.out(), "BRT: empty")?;
            return Ok(());
        }
        let vdevs = pool.store().vdevs().root().children().len() as u64;
        let tables = brt::load(pool.mos(), vdevs).map_err(failed)?;
        let sum = |f: fn(&brt::Table) -> u64| tables.iter().map(f).fold(0, u64::saturating_add);
        let (used, saved) = (sum(|t| t.used), sum(|t| t.saved));
        let ratio = (u128::from(used) + u128::from(saved)) * 100;
        let ratio = ratio.checked_div(u128::from(used)).unwrap_or(100);
        let (u, s) = (self.args.bytes(used), self.args.bytes(saved));
        writeln!(
            self.out(),
            "BRT: used {u}; saved {s}; ratio {}.{:02}x",
            ratio / 100,
            ratio % 100
        )?;
        if self.level('T') < 2 {
            return Ok(());
        }
        for vdev in 0..vdevs {
            let Some(t) = tables.iter().find(|t| t.vdev == vdev) else {
                writeln!(self.out(), "BRT: vdev {vdev}: empty")?;
                continue;
            };
            let (count, used, saved) =
                (self.args.number(t.count), self.args.bytes(t.used), self.args.bytes(t.saved));
            writeln!(self.out(), "BRT: vdev {vdev}: refcnt {count}; used {used}; saved {saved}")?;
        }
        match self.level('T') {
            0..3 => return Ok(()),
            3 => {}
            _ => writeln!(self.out(), "\n{:<16} {:<10}", "DVA", "REFCNT")?,
        }
        for table in &tables {
            self.references(table)?;
        }
        Ok(())
    }

    fn references(&mut self, table: &brt::Table) -> Result<(), Stop> {
        let (mut counts, mut lines) = ([0u64; 64], Vec::new());
        let vdev = table.vdev;
        let all = self.level('T') > 3;
        table
            .for_each(self.pool.mos(), &mut |offset, refs| {
                // Bucket `n` is for counts of `n` bits.
                let bits = refs.checked_ilog2().map_or(0, |b| b as usize + 1).min(63);
                counts[bits] += 1;
                if all {
                    lines.push(format!("{:<16} {refs:<10}", format!("{vdev}:{offset:x}")));
                }
                Ok(())
            })
            .map_err(failed)?;
        for line in lines {
            writeln!(self.out(), "{line}")?;
        }
        if !all {
            writeln!(self.out(), "\nBRT: vdev {vdev}: DVAs with 2^n refcnts:")?;
            print::histogram(self.out(), &counts, 0)?;
        }
        Ok(())
    }
}

/// The variants of an entry, each as a block pointer.
fn entry_lines(table: &Table, entry: &Entry, index: u64) -> Vec<String> {
    let used = entry.phys.iter().enumerate().filter(|(_, p)| p.birth != 0);
    used.map(|(i, phys)| {
        let mut bp = BlockPointer::HOLE;
        bp.0[..6].copy_from_slice(&phys.dvas);
        let key = entry.key.0;
        bp.0[6] =
            key[4] & 0x7f_ffff_ffff | u64::from(table.checksum as u8) << 40 | 49 << 48 | 3 << 62;
        bp.0[10] = phys.birth;
        bp.0[11] = 1;
        bp.0[12..].copy_from_slice(&key[..4]);
        format!("index {index:x} refcnt {} phys {i} {}", phys.refcount, blkptr(&bp))
    })
    .collect()
}
