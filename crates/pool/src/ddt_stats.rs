//! How many deduplicated blocks there are, by number of references (`ddt_stat_t`, `ddt_histogram_t`), and what the
//! tables take (`ddt_object_t`).
//!
//! Beside each ZAP of a table a histogram is kept, in the ZAP `DDT-statistics` of the object directory. Entries that
//! are in logs only are counted from these.

use crate::Pool;
use crate::ddt::{self, Entry, Stored, Table};
use cenote_dmu::zap::Zap;
use cenote_dmu::{Error, ObjectSet, Result};
use cenote_format::{SECTOR, less};
use cenote_vdev::VdevTree;

/// Buckets of a histogram: one for each power of two of the references.
const BUCKETS: usize = 64;

/// Blocks and bytes, once, and as often as they are referenced (`ddt_stat_t`): blocks, logical, physical and
/// deflated bytes, and the same four again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat(pub [u64; 8]);

impl Stat {
    /// What an entry counts (`ddt_stat_generate`). `None`: it is past all numbers, which no sound entry is.
    fn of(entry: &Entry, vdevs: &VdevTree) -> Option<Stat> {
        let mut stat = Stat::default();
        for phys in entry.phys.iter().filter(|p| p.birth != 0) {
            let copies = phys.copies(entry.key.is_encrypted());
            let deflated = copies
                .iter()
                .filter_map(|d| Some(vdevs.top(d.vdev.into())?.deflate(d.asize)))
                .sum();
            let [a, b, c, d] = [1, entry.key.lsize(), entry.key.psize(), deflated];
            let often = |n: u64| n.checked_mul(phys.refcount);
            let all = [a, b, c, d, often(a)?, often(b)?, often(c)?, often(d)?];
            stat = stat.with(&Stat(all))?;
        }
        Some(stat)
    }

    fn add(&mut self, other: &Stat) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
    }

    /// Both together; `None`: a sum would be past all numbers.
    fn with(&self, other: &Stat) -> Option<Stat> {
        let mut sum = *self;
        for (a, b) in sum.0.iter_mut().zip(other.0) {
            *a = a.checked_add(b)?;
        }
        Some(sum)
    }
}

/// Stats by power of two of the references.
///
/// Invariant: the sum over all buckets is a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<Stat>,
    /// All buckets together.
    total: Stat,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: vec![Stat::default(); BUCKETS], total: Stat::default() }
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
    /// Adds what another one counts. False: nothing was added, as the sum would be past all numbers.
    #[must_use]
    pub fn add(&mut self, other: &Histogram) -> bool {
        let Some(total) = self.total.with(&other.total) else { return false };
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(a, b)| a.add(b));
        self.total = total;
        true
    }

    /// All buckets together.
    pub fn total(&self) -> Stat {
        self.total
    }

    /// The buckets, from one reference on.
    pub fn buckets(&self) -> &[Stat] {
        &self.buckets
    }

    /// The histogram that is kept beside one of a table's ZAPs.
    ///
    /// # Errors
    /// It cannot be read, or counts more than there are numbers.
    pub fn stored(pool: &Pool, name: &str) -> Result<Histogram> {
        let zap = pool.directory().zap_of("DDT-statistics")?;
        let entry = zap.map_or(Ok(None), |zap| zap.lookup(name.as_bytes()))?;
        let Some(entry) = entry else { return Ok(Histogram::default()) };
        Histogram::from_words(&entry.value)
            .ok_or_else(|| uncountable(pool.mos(), 0, &format!("the histogram of {name}")))
    }

    /// Counts an entry of a log. False: see [`Histogram::put`].
    #[must_use]
    pub fn count(&mut self, pool: &Pool, entry: &Entry) -> bool {
        self.put_entry(entry, &pool.store().vdevs())
    }

    /// Counts an entry. False: see [`Histogram::put`].
    #[must_use]
    pub fn put_entry(&mut self, entry: &Entry, vdevs: &VdevTree) -> bool {
        Stat::of(entry, vdevs).is_some_and(|stat| self.put(&stat))
    }

    /// Counts an entry no more. False: see [`Histogram::take`].
    pub fn take_entry(&mut self, entry: &Entry, vdevs: &VdevTree) -> bool {
        Stat::of(entry, vdevs).is_some_and(|stat| self.take(&stat))
    }

    /// Counts a block of which only what all its references take together is known. False: see [`Histogram::put`].
    #[must_use]
    pub fn count_stat(&mut self, referenced: &Stat) -> bool {
        let [.., count, lsize, psize, dsize] = referenced.0;
        // A block without references takes nothing.
        let once = |all: u64| all.checked_div(count).unwrap_or(0);
        let [l, p, d] = [lsize, psize, dsize].map(once);
        self.put(&Stat([once(count), l, p, d, count, lsize, psize, dsize]))
    }

    /// The bucket of a block with so many references; `None`: it has none.
    fn bucket(&mut self, stat: &Stat) -> Option<&mut Stat> {
        self.buckets.get_mut(stat.0[4].checked_ilog2()? as usize)
    }

    /// Counts an entry, unless it has no references (`ddt_histogram_add_entry`). False: it is not counted, as the sum would be past
    /// all numbers.
    #[must_use]
    pub fn put(&mut self, stat: &Stat) -> bool {
        let Some(total) = self.total.with(stat) else { return false };
        if let Some(slot) = self.bucket(stat) {
            slot.add(stat);
            self.total = total;
        }
        true
    }

    /// Takes back what was counted (`ddt_histogram_sub_entry`). Returns whether it was counted: if not, what the bucket has too little of
    /// is 0 afterwards.
    pub fn take(&mut self, stat: &Stat) -> bool {
        let Some(slot) = self.bucket(stat) else { return true };
        let counted = Stat(std::array::from_fn(|i| slot.0[i].min(stat.0[i])));
        slot.0.iter_mut().zip(counted.0).for_each(|(sum, part)| *sum -= part);
        for (sum, part) in self.total.0.iter_mut().zip(counted.0) {
            *sum = less!(*sum, part, "blocks or bytes of all buckets of a histogram");
        }
        counted == *stat
    }

    /// As it is kept beside a ZAP.
    pub fn words(&self) -> Vec<u64> {
        self.buckets.iter().flat_map(|stat| stat.0).collect()
    }

    /// From how it is kept beside a ZAP. `None`: it counts more than there are numbers.
    pub fn from_words(words: &[u64]) -> Option<Histogram> {
        let mut histogram = Histogram::default();
        let (words, _) = words.as_chunks::<8>();
        for (stat, words) in histogram.buckets.iter_mut().zip(words) {
            stat.0 = *words;
            histogram.total = histogram.total.with(stat)?;
        }
        Some(histogram)
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
        let buckets = self.buckets.iter().enumerate().map(|(i, stat)| (number(1 << i), *stat));
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
    /// It cannot be read, or takes more than there are numbers.
    pub fn of_stored(pool: &Pool, stored: &Stored) -> Result<TableSize> {
        let object = pool.mos().object(stored.object)?;
        let entries = Zap::open(&object)?.len();
        let dnode = object.dnode();
        let filled = sum(dnode.pointers.iter().filter(|p| !p.is_hole()).map(|p| p.fill()));
        let in_core = filled.and_then(|blocks| blocks.checked_mul(dnode.block_size));
        let in_core =
            in_core.ok_or_else(|| uncountable(pool.mos(), stored.object, "its blocks"))?;
        Ok(TableSize { entries, on_disk: whole_sectors(dnode.used), in_core })
    }

    /// Both together; `None`: a sum would be past all numbers.
    fn with(self, other: TableSize) -> Option<TableSize> {
        Some(TableSize {
            entries: self.entries.checked_add(other.entries)?,
            on_disk: self.on_disk.checked_add(other.on_disk)?,
            in_core: self.in_core.checked_add(other.in_core)?,
        })
    }
}

/// The sum of numbers that a disk says; `None`: it is past all numbers.
pub(crate) fn sum(numbers: impl IntoIterator<Item = u64>) -> Option<u64> {
    numbers.into_iter().try_fold(0u64, u64::checked_add)
}

/// The error of a table whose numbers, each of them good, have a sum past all numbers.
pub(crate) fn uncountable(mos: &ObjectSet, object: u64, what: &str) -> Error {
    let why = format!("deduplication table: {what}: more than can be counted");
    Error::Corrupt { objset: mos.id(), object, why }
}

/// What an object takes, as the commands show it: rounded to the nearest sector, but no further than there are numbers.
pub(crate) fn whole_sectors(used: u64) -> u64 {
    let up = used.checked_add(SECTOR / 2).unwrap_or(used);
    up / SECTOR * SECTOR
}

/// All tables of a pool (`ddt_get_dedup_histogram`): what they take, and their entries.
///
/// # Errors
/// They cannot be read, or count more than there are numbers.
pub fn all(pool: &Pool) -> Result<(TableSize, Histogram)> {
    let many = |object: u64| move || uncountable(pool.mos(), object, "all tables");
    let (mut size, mut histogram) = (TableSize::default(), Histogram::default());
    let tables: Vec<Table> = ddt::load(pool.mos())?;
    for table in &tables {
        for stored in &table.stored {
            let counted = histogram.add(&Histogram::stored(pool, &stored.name)?);
            let more = size.with(TableSize::of_stored(pool, stored)?).filter(|_| counted);
            size = more.ok_or_else(many(stored.object))?;
        }
        for log in &table.logs {
            let used = pool.mos().object(log.object)?.dnode().used;
            let in_core = log.entries.values().map(|e| size_of::<Entry>() + size_of_val(&*e.phys));
            let (entries, in_core) = (log.entries.len() as u64, in_core.sum::<usize>() as u64);
            let counted = log.entries.values().all(|entry| histogram.count(pool, entry));
            let of_log = TableSize { entries, on_disk: whole_sectors(used), in_core };
            let more = size.with(of_log).filter(|_| counted);
            size = more.ok_or_else(many(log.object))?;
        }
    }
    Ok((size, histogram))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_past_all_numbers_are_not_clamped() {
        let stat =
            |references: u64, bytes: u64| Stat([1, 512, 512, 512, references, bytes, bytes, bytes]);
        let mut histogram = Histogram::default();
        assert!(histogram.put(&stat(2, 1024)) && histogram.put(&stat(0, 0)));
        assert!(histogram.put(&stat(4, u64::MAX - 2048)));
        let before = histogram.clone();
        assert!(!histogram.put(&stat(8, 4096)) && !histogram.add(&before));
        assert_eq!((&histogram, histogram.total()), (&before, before.total()));
        assert_eq!(Histogram::from_words(&histogram.words()), Some(histogram.clone()));
        assert!(histogram.take(&stat(4, u64::MAX - 2048)) && histogram.put(&stat(8, 4096)));
        assert_eq!(histogram.total().0[4..], [10, 5120, 5120, 5120]);
        // What was not counted takes nothing of other buckets.
        assert!(!histogram.take(&stat(2, 2048)));
        assert_eq!(histogram.total().0[4..], [8, 4096, 4096, 4096]);
        let mut words = vec![0; 16];
        (words[3], words[11]) = (u64::MAX, 1);
        assert_eq!(Histogram::from_words(&words), None);
        assert_eq!((sum([1, 2]), sum([u64::MAX, 1])), (Some(3), None));
        assert_eq!(whole_sectors(u64::MAX), u64::MAX / 512 * 512);
        assert_eq!((whole_sectors(255), whole_sectors(256)), (0, 512));
    }
}
