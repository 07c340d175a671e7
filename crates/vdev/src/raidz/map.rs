//! Where the columns of a RAID-Z block are (`vdev_raidz_map_alloc`).
//!
//! A block's sectors, parity included, follow one another over the children: sector `s` of the
//! vdev is on child `s mod columns`, in row `s / columns`. A block of `n` data sectors starts at any
//! sector and takes whole columns, each contiguous on its child: first its parity columns, then
//! its data columns, which hold the data one column after the other. With 5 children, one of
//! parity and 6 data sectors D0..D5 starting at child 1:
//!
//! ```text
//! child   0    1    2    3    4
//!              P0   D0   D2   D3      D0 D1 are one data column, D2 another, ...
//!         D4   P1   D1   -    -       (columns: P0 P1 | D0 D1 | D2 | D3 | D4 ...)
//! ```
//!
//! The first `big` columns are one sector longer than the others. The allocation is padded to a
//! multiple of `nparity + 1` sectors, so that no free gap is too small to use; the skipped
//! sectors belong to no column.
//!
//! With single parity, blocks in every other megabyte have their parity and first data column
//! change places: an old means to spread the parity, now part of the format.

/// The shape of a RAID-Z vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Number of children: at least `nparity + 1`, at most 255.
    pub columns: u64,
    /// Number of parity columns, 1 to 3.
    pub nparity: u64,
    /// log2 of the sector size, 9 to 16.
    pub ashift: u32,
}

/// One column of a block: contiguous bytes on one child (`raidz_col_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnExtent {
    /// Index of the child.
    pub child: usize,
    /// Byte offset on the child.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// Bytes of zeros behind them, which dRAID has where the block does not fill its last line.
    pub skip: usize,
    /// The byte of the block at which the data begin; 0 of parity.
    pub at: usize,
    /// Of RAID-Z the sector of the vdev that it begins at; 0 of dRAID.
    pub sector: u64,
    /// Of a block of RAID-Z that is narrower than the vdev: the sector of the vdev at which its row ends; else 0.
    pub row_end: u64,
}

impl ColumnExtent {
    /// Of a block of RAID-Z that is narrower than the vdev: the sector of the vdev, and the one at which its row ends.
    pub(crate) fn in_row(&self) -> Option<(u64, u64)> {
        (self.row_end > 0).then_some((self.sector, self.row_end))
    }
}

impl Geometry {
    /// Whether a block at byte `offset` has its parity where its first data would be.
    pub(crate) fn has_swapped(&self, offset: u64) -> bool {
        self.nparity == 1 && offset & (1 << 20) != 0
    }

    /// Data sectors of a block, counted in whole sectors.
    pub(crate) fn sectors(&self, psize: u64) -> u64 {
        psize.div_ceil(1 << self.ashift).max(1)
    }

    /// Bytes that a block of `psize` bytes takes: data, parity and skipped sectors
    /// (`vdev_raidz_psize_to_asize`); `u64::MAX`, which fits nowhere, where no number is large enough.
    pub(crate) fn asize(&self, psize: u64) -> u64 {
        let data = self.sectors(psize);
        let rows = data.div_ceil(self.columns - self.nparity);
        let padded = (data + rows * self.nparity).next_multiple_of(self.nparity + 1);
        padded.saturating_mul(1 << self.ashift)
    }

    /// What each child has of the `size` bytes from byte `offset` on: where that begins, and how many bytes it is.
    /// `None` if the numbers overflow.
    pub(crate) fn rows(&self, offset: u64, size: u64) -> Option<(u64, usize)> {
        let first = (offset >> self.ashift) / self.columns;
        let end = offset.checked_add(size)?.div_ceil(1 << self.ashift).div_ceil(self.columns);
        let bytes = |rows: u64| rows.checked_mul(1 << self.ashift);
        Some((bytes(first)?, usize::try_from(bytes(end - first)?).ok()?))
    }

    /// The columns of the block of `psize` bytes (rounded up to sectors) at byte `offset`: first
    /// `nparity` of parity, then the data in order. `None` if the numbers overflow.
    pub(crate) fn columns(&self, offset: u64, psize: u64) -> Option<Vec<ColumnExtent>> {
        let first = offset >> self.ashift;
        let sectors = self.sectors(psize);
        let data_columns = self.columns - self.nparity;
        let full_rows = sectors / data_columns;
        let rest = sectors % data_columns;
        let big = if rest == 0 { 0 } else { rest + self.nparity };
        let used = if full_rows == 0 { big } else { self.columns };
        let mut columns = Vec::with_capacity(used as usize);
        let mut data = 0usize;
        for c in 0..used {
            let sector = first.checked_add(c)?;
            let rows = full_rows + u64::from(c < big);
            let len = usize::try_from(rows.checked_mul(1 << self.ashift)?).ok()?;
            let at = if c < self.nparity { 0 } else { data };
            columns.push(ColumnExtent {
                child: (sector % self.columns) as usize,
                offset: (sector / self.columns).checked_mul(1 << self.ashift)?,
                len,
                skip: 0,
                at,
                sector,
                row_end: 0,
            });
            data = if c < self.nparity { 0 } else { data.checked_add(len)? };
        }
        if self.has_swapped(offset) {
            swap_places(&mut columns);
        }
        Some(columns)
    }
}

/// Has the first two columns change places.
pub(crate) fn swap_places(columns: &mut [ColumnExtent]) {
    if let [parity, data, ..] = columns {
        std::mem::swap(&mut parity.child, &mut data.child);
        std::mem::swap(&mut parity.offset, &mut data.offset);
        std::mem::swap(&mut parity.sector, &mut data.sector);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn a_small_block_takes_few_columns() {
        let g = Geometry { columns: 5, nparity: 2, ashift: 9 };
        let c = g.columns(512 * 4, 512).unwrap();
        let places: Vec<_> = c.iter().map(|e| (e.child, e.offset, e.len)).collect();
        assert_eq!(places, [(4, 0, 512), (0, 512, 512), (1, 512, 512)]);
        assert_eq!(g.asize(512), 512 * 3);
        assert_eq!(g.asize(1024), 512 * 6);
    }

    #[test]
    fn single_parity_changes_places_every_megabyte() {
        let g = Geometry { columns: 3, nparity: 1, ashift: 12 };
        let even = g.columns(0, 8192).unwrap();
        assert_eq!(even.iter().map(|e| e.child).collect::<Vec<_>>(), [0, 1, 2]);
        let odd = g.columns(256 * 4096, 8192).unwrap();
        assert_eq!(odd.iter().map(|e| e.child).collect::<Vec<_>>(), [2, 1, 0]);
    }

    #[test]
    fn hostile_offsets_do_not_overflow() {
        let g = Geometry { columns: 3, nparity: 1, ashift: 9 };
        let _ = g.columns(u64::MAX, u64::MAX);
        let _ = g.columns(u64::MAX - 511, 16 << 20);
        let _ = g.asize(u64::MAX);
    }

    proptest! {
        /// Every sector of the columns is in the block's allocation, and no sector is there twice.
        #[test]
        fn columns_cover_the_allocation(
            columns in 2u64..20, nparity in 1u64..4, ashift in 9u32..14,
            sector in 0u64..10_000, sectors in 1u64..300,
        ) {
            prop_assume!(columns > nparity);
            let g = Geometry { columns, nparity, ashift };
            let size = 1u64 << ashift;
            let map = g.columns(sector * size, sectors * size).unwrap();
            let data: usize = map.iter().skip(nparity as usize).map(|e| e.len).sum();
            prop_assert_eq!(data as u64, sectors * size);
            for pair in map[nparity as usize..].windows(2) {
                prop_assert!(pair[0].len >= pair[1].len);
            }
            prop_assert!(map[..nparity as usize].iter().all(|e| e.len == map[0].len));
            let asize = g.asize(sectors * size);
            let mut seen = HashSet::new();
            for e in &map {
                for row in 0..e.len as u64 / size {
                    let at = (e.offset / size + row) * columns + e.child as u64;
                    prop_assert!(seen.insert(at));
                    prop_assert!(at >= sector && at < sector + asize / size);
                }
            }
            prop_assert!(asize / size - seen.len() as u64 <= nparity);
        }
    }
}
