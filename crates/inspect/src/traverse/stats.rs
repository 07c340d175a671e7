//! Counts of blocks by object type and level (`dump_block_stats`): the table that `zdb -bb` prints.
//!
//! A [`BlockTable`] has a row for each object type, one for deferred frees and one for types of the new kind, and a
//! row of sums; a column for each level, and one of sums (`zdb_blkstats_t`). A block is added to four cells. Beside
//! the cells stand the counts of embedded blocks, and histograms of logical, physical and allocated sizes by power
//! of two.
//!
//! Copies on one vdev or in one metaslab are counted too: a loss there takes several copies at once.

use cenote_format::blkptr::BlockPointer;
use cenote_format::invariant;

/// Object types with rows of their own (`DMU_OT_NUMTYPES`).
pub const TYPES: usize = 54;
/// Row of blocks that are freed but not yet returned.
pub const DEFERRED: usize = TYPES;
/// Row of extra copies of deduplicated blocks; no longer written by any release.
pub const DITTO: usize = TYPES + 1;
/// Row of object types of the new kind, which have no number of their own.
pub const OTHER: usize = TYPES + 2;
/// Row of sums.
pub const TOTAL: usize = TYPES + 3;
/// Levels that a block pointer can express.
pub const LEVELS: usize = 32;
/// Column of sums.
pub const ALL_LEVELS: usize = LEVELS;
/// Physical sizes in sectors up to 128 KiB have buckets of their own; the last is for the rest.
pub const SIZE_BUCKETS: usize = 258;

/// Sums over some blocks.
#[derive(Debug, Clone, Default)]
pub struct BlockSums {
    /// Blocks.
    pub count: u64,
    /// Logical bytes.
    pub lsize: u64,
    /// Physical bytes, without copies; 0 for embedded blocks.
    pub psize: u64,
    /// Bytes allocated, copies and parity included.
    pub asize: u64,
    /// Copies that are gang blocks.
    pub gangs: u64,
    /// Blocks with two copies or more on one top-level vdev.
    pub ditto_same_vdev: u64,
    /// Blocks with two copies or more in one metaslab.
    pub ditto_same_metaslab: u64,
    /// Blocks by physical size in sectors.
    pub by_size: Box<[u64]>,
}

/// Physical bytes of a block on disk: 0 if it is embedded.
pub fn psize(bp: &BlockPointer) -> u64 {
    if bp.is_embedded() { 0 } else { bp.psize() }
}

/// Logical bytes of a block; 0 for embedded payloads that are no data (redaction, for example).
pub fn lsize(bp: &BlockPointer) -> u64 {
    if bp.is_embedded() && bp.checksum_type() != 0 { 0 } else { bp.lsize() }
}

/// Bytes allocated for all copies of a block.
pub fn asize(bp: &BlockPointer) -> u64 {
    bp.dvas().map(|dva| dva.asize).sum()
}

/// Bytes from which on nothing more is counted. A block pointer says less than 2^36: so all sums have numbers.
const FULL: u64 = 1 << 63;

impl BlockSums {
    /// Counts `bp`; `same_metaslab(a, b)` says whether its copies `a` and `b` share a metaslab.
    fn add(&mut self, bp: &BlockPointer, same_vdev: bool, same_metaslab: bool) {
        self.count += 1;
        self.lsize += lsize(bp);
        self.psize += psize(bp);
        self.asize += asize(bp);
        self.gangs += bp.dvas().filter(|d| d.gang).count() as u64;
        self.ditto_same_vdev += u64::from(same_vdev);
        self.ditto_same_metaslab += u64::from(same_metaslab);
        if self.by_size.is_empty() {
            self.by_size = vec![0; SIZE_BUCKETS].into_boxed_slice();
        }
        let bucket = (psize(bp) / 512).min(SIZE_BUCKETS as u64 - 1) as usize;
        self.by_size[bucket] += 1;
    }
}

/// Sizes by power of two: bucket `i` counts blocks of more than `1 << (i - 1)` bytes up to
/// `1 << i`.
#[derive(Debug, Clone, Default)]
pub struct SizeHistogram {
    /// Blocks per bucket.
    pub count: [u64; 32],
    /// Bytes per bucket.
    pub bytes: [u64; 32],
}

impl SizeHistogram {
    /// Counts a block of so many bytes in the bucket of `by`.
    pub fn add(&mut self, by: u64, size: u64) {
        let bucket = match by {
            0 | 1 => 0,
            _ => ((by - 1).ilog2() + 1).min(31) as usize,
        };
        self.count[bucket] += 1;
        self.bytes[bucket] += size;
    }
}

/// The whole table.
#[derive(Debug, Clone)]
pub struct BlockTable {
    cells: Vec<BlockSums>,
    /// Embedded blocks by embedded type.
    pub embedded: [u64; 8],
    /// Embedded blocks of each embedded type by bytes of payload.
    pub embedded_sizes: Box<[[u64; 113]; 8]>,
    /// Blocks by physical size.
    pub psizes: SizeHistogram,
    /// Blocks by logical size.
    pub lsizes: SizeHistogram,
    /// Blocks by allocated size.
    pub asizes: SizeHistogram,
}

impl Default for BlockTable {
    fn default() -> Self {
        BlockTable {
            cells: vec![BlockSums::default(); (TOTAL + 1) * (LEVELS + 1)],
            embedded: [0; 8],
            embedded_sizes: Box::new([[0; 113]; 8]),
            psizes: SizeHistogram::default(),
            lsizes: SizeHistogram::default(),
            asizes: SizeHistogram::default(),
        }
    }
}

impl BlockTable {
    /// Sums of row `kind` at `level` ([`ALL_LEVELS`] for all).
    pub fn cell(&self, kind: usize, level: usize) -> &BlockSums {
        &self.cells[kind.min(TOTAL) * (LEVELS + 1) + level.min(ALL_LEVELS)]
    }

    /// Sums of everything.
    pub fn total(&self) -> &BlockSums {
        self.cell(TOTAL, ALL_LEVELS)
    }

    /// Whether no more blocks can be counted.
    pub(super) fn is_full(&self) -> bool {
        let BlockSums { lsize, psize, asize, .. } = self.total();
        [lsize, psize, asize].into_iter().any(|sum| *sum >= FULL)
    }

    /// Counts a block that is not a hole in row `kind`. The table is not [full](BlockTable::is_full).
    pub(super) fn add(
        &mut self,
        bp: &BlockPointer,
        kind: usize,
        metaslab_shift: impl Fn(u32) -> Option<u32>,
    ) {
        invariant!(!self.is_full(), "a block is counted behind {:?}", self.total());
        let (same_vdev, same_metaslab) = copies_together(bp, metaslab_shift);
        for (row, level) in [
            (kind.min(OTHER), bp.level() as usize),
            (kind.min(OTHER), ALL_LEVELS),
            (TOTAL, bp.level() as usize),
            (TOTAL, ALL_LEVELS),
        ] {
            self.cells[row * (LEVELS + 1) + level.min(ALL_LEVELS)].add(
                bp,
                same_vdev,
                same_metaslab,
            );
        }
        if bp.is_embedded() {
            let etype = (bp.checksum_type() as usize).min(7);
            self.embedded[etype] += 1;
            self.embedded_sizes[etype][bp.psize().min(112) as usize] += 1;
            return;
        }
        for (histogram, size) in [
            (&mut self.psizes, bp.psize()),
            (&mut self.lsizes, bp.lsize()),
            (&mut self.asizes, asize(bp)),
        ] {
            histogram.add(size, size);
        }
    }
}

/// Whether two copies are on one vdev, and whether two are in one metaslab. As in `zdb` only the
/// first pair on one vdev is asked for its metaslabs.
fn copies_together(bp: &BlockPointer, metaslab_shift: impl Fn(u32) -> Option<u32>) -> (bool, bool) {
    let dvas: Vec<_> = bp.dvas().collect();
    let pairs: &[(usize, usize)] = match dvas.len() {
        2 => &[(0, 1)],
        3 => &[(0, 1), (0, 2), (1, 2)],
        _ => &[],
    };
    let (mut vdev, mut metaslab) = (false, false);
    for &(a, b) in pairs {
        if dvas[a].vdev == dvas[b].vdev {
            vdev = true;
            let shift = metaslab_shift(dvas[a].vdev).filter(|s| *s > 0 && *s < 64);
            metaslab |= shift.is_some_and(|s| dvas[a].offset >> s == dvas[b].offset >> s);
        }
    }
    (vdev, metaslab)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_bins_are_open_below() {
        let mut h = SizeHistogram::default();
        for size in [1, 512, 513, 1024, u64::MAX] {
            h.add(size, size);
        }
        assert_eq!((h.count[0], h.count[9], h.count[10], h.count[31]), (1, 1, 2, 1));
    }
}
