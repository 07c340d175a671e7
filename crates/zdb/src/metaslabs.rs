//! `zdb -m`: metaslabs, their space maps and histograms (`dump_metaslabs`, `dump_metaslab`), and the log space maps
//! (`dump_log_spacemaps`); `-M`: groups (`dump_metaslab_groups`).
//!
//! With no operands all vdevs are shown, else a vdev, or some of its metaslabs. More `m` shows more of each: the
//! histogram on disk, the free segments that replaying the space map leaves, the entries of the map
//! (`dump_spacemap`). A removed vdev shows its births and its mapping.
//!
//! Figures are as OpenZFS's `zdb` gives them: from the space maps, without unflushed changes. A map whose
//! entries do not add up to what its header says is marked as inconsistent.

use super::Zdb;
use super::args::number;
use super::print;
use cenote_command::outcome::{Outcome, Stop, fail};
use cenote_format::spacemap::{Change, DebugAction, Entry};
use cenote_pool::indirect::{self, Mapping};
use cenote_pool::metaslab::{AllocClass, Metaslab, PoolSpace, VdevSpace};
use cenote_pool::spacemap::{Region, SpaceMap};

/// Free segments smaller than this are not in a metaslab's tree by size.
const BY_SIZE_MIN: u64 = 16 << 10;

impl Zdb<'_> {
    /// The vdevs and metaslabs asked for.
    pub fn metaslabs(&mut self) -> Outcome {
        let pool = self.pool.clone();
        let space = self.space()?;
        writeln!(self.out(), "\nMetaslabs:")?;
        let wanted = self.args.operands.get(1..).unwrap_or_default().to_vec();
        let asked = self.args.level('m') > 0 || self.args.allocated_map;
        if !asked || wanted.is_empty() {
            for v in &space.vdevs {
                self.vdev_metaslabs(v, &v.metaslabs, true)?;
            }
            return Ok(0);
        }
        let mut numbers = Vec::new();
        for text in &wanted {
            let Some(n) = number(text) else { return fail(format!("bad number {text}")) };
            numbers.push(n);
        }
        let vdev = numbers.first().copied().unwrap_or(0);
        let Some(v) = pool.space().and_then(|s| s.vdev_space(vdev)) else {
            return fail(format!("bad vdev id: {vdev}"));
        };
        let ids = numbers.get(1..).unwrap_or_default();
        if ids.is_empty() {
            self.vdev_metaslabs(v, &v.metaslabs, true)?;
            return Ok(0);
        }
        let mut some = Vec::new();
        for id in ids {
            match usize::try_from(*id).ok().and_then(|i| v.metaslabs.get(i)) {
                Some(ms) => some.push(ms.clone()),
                None => self.ctx.complain(format_args!("bad metaslab number {id}")),
            }
        }
        self.vdev_metaslabs(v, &some, false)?;
        Ok(0)
    }

    /// The space figures, or why they are not known.
    pub fn space(&self) -> Result<PoolSpace, Stop> {
        match self.pool.space() {
            Some(space) => Ok(space.clone()),
            None => PoolSpace::load(self.pool.mos(), self.pool.config()).map_err(super::failed),
        }
    }

    fn vdev_metaslabs(
        &mut self,
        v: &VdevSpace,
        some: &[Metaslab],
        indirect: bool,
    ) -> Result<(), Stop> {
        let bias = match v.class {
            AllocClass::Log => "log",
            AllocClass::Special => "special",
            AllocClass::Dedup => "dedup",
            _ => "",
        };
        write!(self.out(), "\tvdev {:10}\t{bias}  metaslab shift {:4}", v.id, v.metaslab_shift)?;
        if v.unflushed_object != 0 {
            write!(self.out(), "   ms_unflushed_phys object {}", v.unflushed_object)?;
        }
        let count = v.metaslabs.len();
        let out = self.out();
        writeln!(
            out,
            "\n\t{:<10}{count:5}   {:<19}   {:<15}   {:<12}",
            "metaslabs", "offset", "spacemap", "free"
        )?;
        let line = |n: usize| "-".repeat(n);
        writeln!(
            out,
            "\t{:>15}   {:>19}   {:>15}   {:>12}",
            line(15),
            line(19),
            line(15),
            line(12)
        )?;
        if indirect {
            self.indirect_vdev(v)?;
        }
        for ms in some {
            self.metaslab(v, ms)?;
        }
        writeln!(self.out())?;
        Ok(())
    }

    /// One metaslab (`dump_metaslab`).
    fn metaslab(&mut self, v: &VdevSpace, ms: &Metaslab) -> Result<(), Stop> {
        let level = self.args.level('m');
        let free = ms.size.saturating_add_signed(ms.flushed_alloc().saturating_neg());
        let free = self.args.number(free);
        writeln!(
            self.out(),
            "\tmetaslab {:6}   offset {:12x}   spacemap {:6}   free    {free:>5}",
            ms.id,
            ms.start,
            ms.space_map
        )?;
        if level > 2 && !self.args.has('L') {
            self.in_memory(v, ms)?;
        }
        if self.args.allocated_map {
            self.allocated(v, ms)?;
        }
        let space = self.pool.clone();
        let active = |n: Option<u64>| n.is_some_and(|n| n > 0);
        let (histograms, logs) = space
            .space()
            .map_or((false, false), |s| (active(s.histogram_feature), active(s.log_feature)));
        if level > 1
            && histograms
            && let Some(header) = &ms.header
        {
            let fragmentation = ms.fragmentation.unwrap_or(u64::MAX);
            writeln!(self.out(), "\tOn-disk histogram:\t\tfragmentation {fragmentation}")?;
            let counts = header.histogram.unwrap_or_default();
            print::histogram(self.out(), &counts, v.ashift)?;
        }
        if ms.space_map != 0 {
            let map = SpaceMap::open(self.pool.mos(), ms.space_map, v.region(ms));
            self.space_map(&map.map_err(super::failed)?)?;
        }
        if logs {
            writeln!(self.out(), "\tFlush data:\n\tunflushed txg={}\n", ms.unflushed_txg)?;
        }
        Ok(())
    }

    /// `--allocated-map`: what is allocated (`dump_allocated`), unflushed changes included.
    fn allocated(&mut self, v: &VdevSpace, ms: &Metaslab) -> Result<(), Stop> {
        let free = PoolSpace::load_free(self.pool.mos(), v, ms).map_err(super::failed)?;
        let end = ms.start.saturating_add(ms.size);
        let mut at = ms.start;
        for (from, to) in free.iter().chain([(end, end)]) {
            if at != from {
                writeln!(self.out(), "ALLOC: {at} {}", from - at)?;
            }
            at = to;
        }
        Ok(())
    }

    /// The segments that replaying the space map leaves. Like `zdb`, without unflushed changes.
    fn in_memory(&mut self, v: &VdevSpace, ms: &Metaslab) -> Result<(), Stop> {
        let free = PoolSpace::load_flushed(self.pool.mos(), v, ms).map_err(super::failed)?;
        let segments = free.iter().filter(|(s, e)| e - s >= BY_SIZE_MIN).count();
        let max = self.args.number(free.largest());
        let percent = u128::from(free.space()) * 100 / u128::from(ms.size.max(1));
        writeln!(
            self.out(),
            "\t {:>25} {segments:10}   {:>7}  {max:>6}   {:>4} {percent:4}%",
            "segments",
            "maxsize",
            "freepct"
        )?;
        writeln!(self.out(), "\tIn-memory histogram:")?;
        print::histogram(self.out(), free.histogram().counts(), 0)?;
        Ok(())
    }

    /// The header of a space map (`dump_spacemap`); with `-mmmm` or `-dddddd` its entries too.
    pub fn space_map(&mut self, map: &SpaceMap) -> Result<(), Stop> {
        writeln!(self.out(), "space map object {}:", map.number())?;
        writeln!(self.out(), "  smp_length = 0x{:x}", map.phys().length)?;
        writeln!(self.out(), "  smp_alloc = 0x{:x}", map.phys().alloc)?;
        if self.args.level('d') < 6 && self.args.level('m') < 4 {
            return Ok(());
        }
        let mut lines = Vec::new();
        let (mut id, mut alloc) = (0u64, 0i128);
        let walked = map.for_each_entry(&mut |entry| {
            if let Some(range) = map.range(entry)? {
                let size = i128::from(range.end - range.start);
                alloc += if range.change == Change::Alloc { size } else { -size };
                let kind = if range.change == Change::Alloc { 'A' } else { 'F' };
                let vdev = range.vdev.map_or(String::new(), |v| format!(" vdev: {v}"));
                let (start, last) = (range.start, range.end - 1);
                lines.push(format!(
                    "\t    [{id:6}] {kind} range: {start:012x}-{last:012x} size: {size:08x}{vdev}"
                ));
            } else if let Entry::Debug { action, pass, txg } = entry {
                let name = match action {
                    DebugAction::Alloc => "ALLOC",
                    DebugAction::Free => "FREE",
                    DebugAction::Unknown(2) => "CONDENSE",
                    DebugAction::Unknown(_) => "INVALID",
                };
                lines.push(match txg {
                    0 => format!("\t    [{id:6}] PADDING"),
                    _ => format!("\t    [{id:6}] {name}: txg {txg} pass {pass}"),
                });
            }
            id += 1;
            Ok(())
        });
        for line in lines {
            writeln!(self.out(), "{line}")?;
        }
        walked.map_err(super::failed)?;
        let summary = map.phys().alloc;
        if alloc != i128::from(summary) {
            writeln!(
                self.out(),
                "space_map_object alloc ({summary}) INCONSISTENT with space map summary ({alloc})"
            )?;
        }
        Ok(())
    }

    fn indirect_vdev(&mut self, v: &VdevSpace) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let mos = pool.mos();
        let tree = pool.config().list("vdev_tree").and_then(|t| t.lists("children")).unwrap_or(&[]);
        let config = usize::try_from(v.id).ok().and_then(|i| tree.get(i));
        let object = |name: &str| config.and_then(|c| c.u64(name)).unwrap_or(0);
        let number = object("com.delphix:indirect_object");
        if number == 0 {
            return Ok(());
        }
        let births = object("com.delphix:indirect_births");
        let list = match births {
            0 => Vec::new(),
            _ => indirect::births(mos, births).map_err(super::failed)?,
        };
        writeln!(self.out(), "indirect births obj {births}:")?;
        writeln!(self.out(), "    vib_count = {}", list.len())?;
        for (offset, txg) in list {
            writeln!(self.out(), "\toffset {offset:x} -> txg {txg}")?;
        }
        let mapping = Mapping::load(mos, number).map_err(super::failed)?;
        writeln!(self.out(), "\nindirect mapping obj {number}:")?;
        writeln!(self.out(), "    vim_max_offset = 0x{:x}", mapping.max_offset)?;
        writeln!(self.out(), "    vim_bytes_mapped = 0x{:x}", mapping.bytes_mapped)?;
        writeln!(self.out(), "    vim_count = {}", mapping.segments.len())?;
        if self.args.level('d') <= 5 && self.args.level('m') <= 3 {
            return Ok(());
        }
        let counts = mapping.counts(mos).map_err(super::failed)?;
        for (s, count) in mapping.segments.iter().zip(counts) {
            writeln!(
                self.out(),
                "\t<{:x}:{:x}:{:x}> -> <{:x}:{:x}:{:x}> ({count:x} obsolete)",
                v.id,
                s.source,
                s.size,
                s.vdev,
                s.offset,
                s.size
            )?;
        }
        writeln!(self.out())?;
        Ok(())
    }

    /// The log space maps, and how many of their entries are still needed (`dump_log_spacemaps`).
    pub fn log_space_maps(&mut self) -> Result<(), Stop> {
        let space = self.space()?;
        if space.log_feature.unwrap_or(0) == 0 {
            return Ok(());
        }
        writeln!(self.out(), "\nLog Space Maps in Pool:")?;
        let size = space.vdevs.iter().fold(0u64, |sum, v| sum.saturating_add(v.asize));
        for log in &space.logs {
            writeln!(self.out(), "Log Spacemap object {} txg {}", log.object, log.txg)?;
            let map = SpaceMap::open(self.pool.mos(), log.object, Region::of_log(size));
            self.space_map(&map.map_err(super::failed)?)?;
        }
        writeln!(self.out(), "\nLog Space Map Obsolete Entry Statistics:")?;
        let (mut valid, mut entries) = (0, 0);
        for log in &space.logs {
            valid += log.valid;
            entries += log.entries;
            let (v, e) = (log.valid, log.entries);
            writeln!(self.out(), "{v:<8} valid entries out of {e:<8} - txg {}", log.txg)?;
        }
        writeln!(self.out(), "{valid:<8} valid entries out of {entries:<8} - total\n")?;
        Ok(())
    }

    /// `-M` (`dump_metaslab_groups`): fragmentation and histogram of each vdev's metaslabs, and of the normal class.
    pub fn metaslab_groups(&mut self) -> Result<(), Stop> {
        let space = self.space()?;
        let mut sum = cenote_store::histogram::Histogram::default();
        let percent = |f: Option<u64>| f.map_or("  -".into(), |f| format!("{f:3}%"));
        for v in space.vdevs.iter().filter(|v| v.concrete && !v.metaslabs.is_empty()) {
            let special = v.class == AllocClass::Special && self.args.level('M') > 1;
            if v.class != AllocClass::Normal && !special {
                continue;
            }
            let count = v.metaslabs.len();
            let fragmentation = percent(v.fragmentation());
            writeln!(
                self.out(),
                "\tvdev {:10}\t\tmetaslabs{count:5}\t\tfragmentation{fragmentation}",
                v.id
            )?;
            let histogram = v.histogram();
            print::histogram(self.out(), histogram.counts(), 0)?;
            if !special {
                sum.merge(&histogram);
            }
        }
        let name = self.pool.name().to_string();
        let fragmentation = percent(space.class(AllocClass::Normal).fragmentation);
        writeln!(self.out(), "\tpool {name}\tfragmentation\t{fragmentation}")?;
        print::histogram(self.out(), sum.counts(), 0)?;
        Ok(())
    }
}
