//! How many deduplicated blocks there are, by number of references (`ddt_stat_t`, `ddt_histogram_t`), and what the
//! tables take (`ddt_object_t`).
//!
//! Beside each ZAP of a table a histogram is kept, in the ZAP `DDT-statistics` of the object directory. Entries that
//! are in logs only are counted from these.

use crate::Pool;
use crate::ddt::{self, Entry, Stored, Table};
use cenote_dmu::Result;
use cenote_dmu::zap::Zap;
use cenote_format::SECTOR;
use cenote_vdev::VdevTree;

/// Buckets of a histogram: one for each power of two of the references.
const BUCKETS: usize = 64;

/// Blocks and bytes, once, and as often as they are referenced (`ddt_stat_t`): blocks, logical, physical and
/// deflated bytes, and the same four again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat(pub [u64; 8]);

impl Stat {
    /// What an entry counts (`ddt_stat_generate`).
    pub fn of(entry: &Entry, vdevs: &VdevTree) -> Stat {
        let mut stat = Stat::default();
        for phys in entry.phys.iter().filter(|p| p.birth != 0) {
            let copies = phys.copies(entry.key.is_encrypted());
            let deflated = copies
                .iter()
                .filter_map(|d| Some(vdevs.top(d.vdev.into())?.deflate(d.asize)))
                .fold(0, u64::saturating_add);
            let [a, b, c, d] = [1, entry.key.lsize(), entry.key.psize(), deflated];
            let often = |n: u64| n.saturating_mul(phys.refcount);
            stat.add(&Stat([a, b, c, d, often(a), often(b), often(c), often(d)]));
        }
        stat
    }

    fn add(&mut self, other: &Stat) {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a = a.saturating_add(b);
        }
    }
}

/// Stats by power of two of the references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram(Vec<Stat>);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram(vec![Stat::default(); BUCKETS])
    }
}

/// What tables take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSize {
    /// Entries.
    pub entries: u64,
    /// Bytes on disk.
    pub on_disk: u64,
    /// Bytes of all blocks that have something in them, in memory.
    pub in_core: u64,
}

impl Histogram {
    /// Adds what another one counts.
    pub fn add(&mut self, other: &Histogram) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| a.add(b));
    }

    /// All buckets together.
    pub fn total(&self) -> Stat {
        self.0.iter().fold(Stat::default(), |mut sum, s| {
            sum.add(s);
            sum
        })
    }

    /// The buckets, from one reference on.
    pub fn buckets(&self) -> &[Stat] {
        &self.0
    }

    /// The histogram that is kept beside one of a table's ZAPs.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn stored(pool: &Pool, name: &str) -> Result<Histogram> {
        let zap = pool.directory().zap_of("DDT-statistics")?;
        let entry = zap.map_or(Ok(None), |zap| zap.lookup(name.as_bytes()))?;
        Ok(entry.map_or_else(Histogram::default, |entry| Histogram::from_words(&entry.value)))
    }

    /// Counts an entry of a log.
    pub fn count(&mut self, pool: &Pool, entry: &Entry) {
        self.put(&Stat::of(entry, &pool.store().vdevs()));
    }

    /// Counts a block of which only what all its references take together is known.
    pub fn count_stat(&mut self, referenced: &Stat) {
        let [.., count, lsize, psize, dsize] = referenced.0;
        let once = |all: u64| all.checked_div(count).unwrap_or_default();
        let [l, p, d] = [lsize, psize, dsize].map(once);
        self.put(&Stat([once(count), l, p, d, count, lsize, psize, dsize]));
    }

    fn bucket(&mut self, stat: &Stat) -> Option<&mut Stat> {
        self.0.get_mut(stat.0[4].checked_ilog2()? as usize)
    }

    /// Counts an entry, unless it has no references (`ddt_histogram_add_entry`).
    pub fn put(&mut self, stat: &Stat) {
        if let Some(slot) = self.bucket(stat) {
            slot.add(stat);
        }
    }

    /// Takes back what was counted (`ddt_histogram_sub_entry`). Returns whether it was counted: if not, the bucket is
    /// empty afterwards.
    pub fn take(&mut self, stat: &Stat) -> bool {
        let Some(slot) = self.bucket(stat) else { return true };
        let mut all = true;
        for (sum, less) in slot.0.iter_mut().zip(stat.0) {
            all &= *sum >= less;
            *sum = sum.saturating_sub(less);
        }
        all
    }

    /// As it is kept beside a ZAP.
    pub fn words(&self) -> Vec<u64> {
        self.0.iter().flat_map(|stat| stat.0).collect()
    }

    /// From how it is kept beside a ZAP.
    pub fn from_words(words: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        let (words, _) = words.as_chunks::<8>();
        histogram.0.iter_mut().zip(words).for_each(|(stat, w)| stat.0 = *w);
        histogram
    }

    /// The table of buckets in use as the commands print it (`zpool_dump_ddt`), each line with its newline.
    /// `number` shows numbers of blocks and references, `bytes` sizes.
    pub fn text(
        &self,
        with_total: bool,
        number: &dyn Fn(u64) -> String,
        bytes: &dyn Fn(u64) -> String,
    ) -> String {
        const TITLES: [&str; 9] =
            ["refcnt", "blocks", "LSIZE", "PSIZE", "DSIZE", "blocks", "LSIZE", "PSIZE", "DSIZE"];
        const WIDTHS: [usize; 9] = [6, 6, 5, 5, 5, 6, 5, 5, 5];
        let row = |cells: Vec<String>| {
            let cells = cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{cell:>width$}"));
            cells.collect::<Vec<_>>().join("   ") + "\n"
        };
        let line = |n: usize| "_".repeat(n);
        let mut text = format!(
            "\nbucket              allocated                       referenced          \n{}   {}   {}\n",
            line(6),
            line(30),
            line(30)
        );
        text += &row(TITLES.map(String::from).to_vec());
        text += &row(WIDTHS.map(|width| "-".repeat(width)).to_vec());
        let buckets = self.0.iter().enumerate().map(|(i, stat)| (number(1 << i), *stat));
        let total = with_total.then(|| ("Total".to_string(), self.total()));
        for (name, stat) in buckets.chain(total).filter(|(_, stat)| stat.0[0] != 0) {
            let cell = |(i, n): (usize, &u64)| if i % 4 == 0 { number(*n) } else { bytes(*n) };
            let cells = std::iter::once(name).chain(stat.0.iter().enumerate().map(cell));
            text += &row(cells.collect());
        }
        text + "\n"
    }
}

impl TableSize {
    /// What one of a table's ZAPs takes.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_stored(pool: &Pool, stored: &Stored) -> Result<TableSize> {
        let object = pool.mos().object(stored.object)?;
        let entries = Zap::open(&object)?.len();
        let dnode = object.dnode();
        let filled = dnode
            .pointers
            .iter()
            .filter(|p| !p.is_hole())
            .map(|p| p.fill())
            .fold(0, u64::saturating_add);
        Ok(TableSize {
            entries,
            on_disk: dnode.used.saturating_add(SECTOR / 2) / SECTOR * SECTOR,
            in_core: filled.saturating_mul(dnode.block_size),
        })
    }

    fn add(&mut self, other: TableSize) {
        self.entries = self.entries.saturating_add(other.entries);
        self.on_disk = self.on_disk.saturating_add(other.on_disk);
        self.in_core = self.in_core.saturating_add(other.in_core);
    }
}

/// All tables of a pool: what they take, and their entries.
///
/// # Errors
/// They cannot be read.
pub fn all(pool: &Pool) -> Result<(TableSize, Histogram)> {
    let (mut size, mut histogram) = (TableSize::default(), Histogram::default());
    let tables: Vec<Table> = ddt::load(pool.mos())?;
    for table in &tables {
        for stored in &table.stored {
            histogram.add(&Histogram::stored(pool, &stored.name)?);
            size.add(TableSize::of_stored(pool, stored)?);
        }
        for log in &table.logs {
            size.entries = size.entries.saturating_add(log.entries.len() as u64);
            let used = pool.mos().object(log.object)?.dnode().used;
            size.on_disk =
                size.on_disk.saturating_add(used.saturating_add(SECTOR / 2) / SECTOR * SECTOR);
            let in_core = log.entries.values().map(|e| size_of::<Entry>() + size_of_val(&*e.phys));
            size.in_core = size.in_core.saturating_add(in_core.sum::<usize>() as u64);
            log.entries.values().for_each(|entry| histogram.count(pool, entry));
        }
    }
    Ok((size, histogram))
}
