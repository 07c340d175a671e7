//! RAID-Z vdevs that were, or are being, given more devices (`vdev_raidz_map_alloc_expanded`).
//!
//! A block keeps the *logical* width that the vdev had when it was born: how many columns share one row of parity, and so how
//! much it takes. Its sectors follow one another over all devices that there are now, the *physical* width. So a row of a
//! block that is narrower than the vdev is a stripe of its own, whose columns are one sector each:
//!
//! ```text
//! born when there were 4 devices        the same sectors over 5
//! P0 D0 D2 D4                           P0 D0 D2 D4 P1
//! P1 D1 D3 D5                           D1 D3 D5 -  -
//! ```
//!
//! While the vdev is *reflowed* its sectors move to their new places in their order, as a text does when its lines grow wider.
//! Each commit of a transaction group says in its uberblock how far that is (`ub_raidz_reflow_info`). A row that ends before
//! that is read at its new place, any other one at its old place. What is written meanwhile goes where it is read, and, as far
//! as it was copied already, to the copy as well (*shadows*): whichever uberblock a crash leaves, what it leads to is there.
//!
//! The first sectors cannot be copied to where others of them are before the copy is known to be complete. They go to the
//! *scratch area*, the boot area behind the first labels of each device, and from there to their places:
//!
//! | state | rows before the offset are read | others | what is written goes to their copies |
//! |---|---|---|---|
//! | filling | - (the offset is 0) | old places | in the scratch area |
//! | valid | in the scratch area | old places | in the scratch area |
//! | leaving | in the scratch area | old places | in the scratch area and at the new places |
//! | moving | at the new places | old places | at the new places |
//!
//! States follow one another in the order of the table, each when the uberblock that says so is durable. *Filling* and
//! *leaving* are of one transaction group, and of memory alone.
//!
//! Whoever reads keeps the [`Widths`] by which a read was laid out until it has ended, and nothing is overwritten that it may
//! look at. Writes and repairs find out where their sectors are when they have said that they begin (`watch`), and nothing that
//! one may write to by older widths is copied to. Repairs mend copies as well.

use super::map::{ColumnExtent, Geometry, swap_places};
use cenote_format::MAX_BLOCK;
use cenote_format::label::{BOOT_AREA, Uberblock};
use cenote_format::nvlist::{NvList, NvValue};

/// The state of the scratch area in an uberblock: not in use (`RRSS_SCRATCH_NOT_IN_USE`).
pub const SCRATCH_UNUSED: u64 = 0;
/// It has the sectors before the offset (`RRSS_SCRATCH_VALID`).
pub const SCRATCH_VALID: u64 = 1;
/// They are at their new places, and others are being moved (`RRSS_SCRATCH_INVALID_SYNCED_REFLOW`).
pub const SCRATCH_LEFT: u64 = 4;

/// What an offset on a leaf has that is in its boot area: so many bytes before the allocatable space, as a negative number.
pub(crate) const SCRATCH: u64 = 0u64.wrapping_sub(BOOT_AREA);

/// How far the sectors of a vdev have moved (`vdev_raidz_expand_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reflow {
    /// Rows that end before this byte of the vdev have moved, and the pool that is on disk knows (`RRSS_GET_OFFSET`).
    pub synced: u64,
    /// What lies before this byte of the vdev has a copy: what is written goes there, too (`vre_offset`).
    pub next: u64,
    /// Rows before `synced` are in the scratch area.
    pub in_scratch: bool,
    /// The copies are in the scratch area.
    pub to_scratch: bool,
    /// The copies are at the new places.
    pub to_new: bool,
}

impl Reflow {
    /// As an uberblock says.
    fn of(uberblock: &Uberblock) -> Reflow {
        let at = uberblock.reflow_offset();
        let valid = uberblock.reflow_state() == SCRATCH_VALID;
        Reflow { synced: at, next: at, in_scratch: valid, to_scratch: valid, to_new: !valid }
    }
}

/// Of a RAID-Z vdev: over how many devices it lies, and how wide blocks are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Widths {
    /// Devices, with the one that is joining (`vd_physical_width`).
    pub(crate) physical: u64,
    /// Transaction groups from which on blocks are one column wider than before, in order (`vd_expand_txgs`).
    pub(crate) grown: Vec<u64>,
    /// Its sectors are moving from one device fewer.
    pub(crate) reflow: Option<Reflow>,
}

impl Widths {
    /// Of a vdev that always had so many devices.
    #[cfg(test)]
    pub(crate) fn always(physical: u64) -> Widths {
        Widths { physical, grown: Vec::new(), reflow: None }
    }

    /// From the config of a vdev with so many devices. What is wrong with it, if it makes no sense.
    pub(crate) fn of(config: &NvList, children: u64, nparity: u64) -> Result<Widths, String> {
        let grown = match config.get("raidz_expand_txgs") {
            None => Vec::new(),
            Some(NvValue::Uint64Array(txgs)) => txgs.clone(),
            Some(_) => return Err("RAID-Z with unreadable widths".into()),
        };
        let reflow = config.contains("raidz_expanding").then(Reflow::default);
        let widths = Widths { physical: children, grown, reflow };
        let in_order = widths.grown.is_sorted_by(|a, b| a < b);
        match widths.original() {
            Some(original) if original > nparity && in_order => Ok(widths),
            _ => Err(format!(
                "RAID-Z with {children} children that was expanded {} times",
                widths.grown.len()
            )),
        }
    }

    /// The same, as far as an uberblock says.
    pub(crate) fn at(&self, uberblock: &Uberblock) -> Widths {
        Widths { reflow: self.reflow.map(|_| Reflow::of(uberblock)), ..self.clone() }
    }

    /// Devices of a vdev that was never expanded. `None` if the numbers make no sense.
    fn original(&self) -> Option<u64> {
        let joined = self.grown.len() as u64 + u64::from(self.reflow.is_some());
        self.physical.checked_sub(joined)
    }

    /// Columns of a block that was born in `txg` (`vdev_raidz_get_logical_width`).
    pub(crate) fn logical(&self, txg: u64) -> u64 {
        let wider = self.grown.partition_point(|from| *from <= txg) as u64;
        self.original().unwrap_or(self.physical) + wider
    }

    /// Whether all blocks are as wide as the vdev.
    pub(crate) fn is_plain(&self) -> bool {
        self.grown.is_empty() && self.reflow.is_none()
    }

    /// All numbers of devices that the vdev had, the latest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = u64> + use<> {
        (self.original().unwrap_or(self.physical)..=self.physical).rev()
    }
}

/// A stripe of a block on RAID-Z (`raidz_row_t`).
#[derive(Debug, Default)]
pub(crate) struct Row {
    /// Parity first, then data in order.
    pub columns: Vec<ColumnExtent>,
    /// Where columns, given by their number, are as well. Those at the new places are apart from those in the scratch area:
    /// a device has both, and they are lost together with it.
    pub shadows: Vec<Vec<(usize, ColumnExtent)>>,
}

/// Where sector `sector` is among `columns` devices: the device, and the byte on it.
fn place(sector: u64, columns: u64, ashift: u32) -> Option<(usize, u64)> {
    let child = usize::try_from(sector.checked_rem(columns)?).ok()?;
    Some((child, sector.checked_div(columns)?.checked_mul(1 << ashift)?))
}

/// The rows of the block of `psize` bytes at byte `offset`, which has the width of `geometry`. `None` if the numbers overflow.
pub(crate) fn rows(
    geometry: &Geometry,
    widths: &Widths,
    offset: u64,
    psize: u64,
) -> Option<Vec<Row>> {
    let Geometry { columns: width, nparity, ashift } = *geometry;
    if psize > MAX_BLOCK {
        return None;
    }
    let sectors = geometry.sectors(psize);
    let (full, rest) = (sectors / (width - nparity), sectors % (width - nparity));
    let big = if rest == 0 { 0 } else { rest.checked_add(nparity)? };
    let height = full.checked_add(u64::from(rest > 0))?;
    let used = if full == 0 { big } else { width };
    let mut rows = Vec::with_capacity(usize::try_from(height).ok()?);
    for row in 0..height {
        let begin = (offset >> ashift).checked_add(row.checked_mul(width)?)?;
        let end = begin.checked_add(used)?;
        let mut columns = Vec::with_capacity(usize::try_from(used).ok()?);
        for c in 0..used {
            // Data go down one column after the other, as in a block that is as wide as the vdev.
            let data = c.checked_sub(nparity);
            let before = data.map(|d| d * full + d.min(rest) + row);
            let is_there = row < full || c < big;
            let sector = begin.checked_add(c)?;
            columns.push(ColumnExtent {
                child: 0,
                offset: 0,
                len: if is_there { 1 << ashift } else { 0 },
                skip: 0,
                at: usize::try_from(before.unwrap_or(0).checked_mul(1 << ashift)?).ok()?,
                sector,
                row_end: end,
            });
        }
        rows.push(placed(columns, geometry, widths, (offset, end))?);
    }
    Some(rows)
}

impl Widths {
    /// Where sector `sector` of the vdev is, whose row ends before sector `end` and is of a block that is narrower than the vdev:
    /// the device and the byte on it, first where it is read, then its copies. `None` if the numbers overflow.
    pub(crate) fn places(
        &self,
        (sector, end): (u64, u64),
        ashift: u32,
    ) -> Option<Vec<(usize, u64)>> {
        let Some(reflow) = self.reflow else {
            return Some(vec![place(sector, self.physical, ashift)?]);
        };
        let (now, own) = self.is_read(&reflow, end, ashift)?;
        let at = |columns: u64, base: u64| {
            let (child, at) = place(sector, columns, ashift)?;
            Some((child, at.wrapping_add(base)))
        };
        let mut places = vec![at(now, own)?];
        if sector < reflow.next >> ashift {
            for base in self.copies(&reflow, (now, own)) {
                places.push(at(self.physical, base)?);
            }
        }
        Some(places)
    }

    /// Over how many devices a row that ends before sector `end` is read, and by how much before its places.
    fn is_read(&self, reflow: &Reflow, end: u64, ashift: u32) -> Option<(u64, u64)> {
        match end <= reflow.synced >> ashift {
            true if reflow.in_scratch => Some((self.physical, SCRATCH)),
            true => Some((self.physical, 0)),
            false => Some((self.physical.checked_sub(1)?, 0)),
        }
    }

    /// By how much before their new places the copies are of what is read there.
    fn copies(&self, reflow: &Reflow, read: (u64, u64)) -> impl Iterator<Item = u64> {
        let all = [(reflow.to_scratch, SCRATCH), (reflow.to_new, 0)];
        let physical = self.physical;
        let is_copy = move |(is_there, base): &(bool, u64)| *is_there && (physical, *base) != read;
        all.into_iter().filter(is_copy).map(|(_, base)| base)
    }
}

/// Puts the columns of a row that ends before sector `end` where they are. The block begins at byte `offset`.
fn placed(
    mut columns: Vec<ColumnExtent>,
    geometry: &Geometry,
    widths: &Widths,
    (offset, end): (u64, u64),
) -> Option<Row> {
    let (ashift, physical) = (geometry.ashift, widths.physical);
    let Some(reflow) = widths.reflow else {
        for column in &mut columns {
            (column.child, column.offset) = place(column.sector, physical, ashift)?;
        }
        if geometry.has_swapped(offset) {
            swap_places(&mut columns);
        }
        return Some(Row { columns, shadows: Vec::new() });
    };
    let (now, own) = widths.is_read(&reflow, end, ashift)?;
    let mut other = Vec::new();
    for base in widths.copies(&reflow, (now, own)) {
        let mut copies = columns.clone();
        for copy in &mut copies {
            let (child, at) = place(copy.sector, physical, ashift)?;
            (copy.child, copy.offset) = (child, at.wrapping_add(base));
        }
        if geometry.has_swapped(offset) {
            swap_places(&mut copies);
        }
        other.push(copies);
    }
    for column in &mut columns {
        let (child, at) = place(column.sector, now, ashift)?;
        (column.child, column.offset) = (child, at.wrapping_add(own));
    }
    if geometry.has_swapped(offset) {
        swap_places(&mut columns);
    }
    let copied = |copy: &ColumnExtent| copy.len > 0 && copy.sector < reflow.next >> ashift;
    let copied = |copies: Vec<ColumnExtent>| -> Vec<(usize, ColumnExtent)> {
        copies.into_iter().enumerate().filter(|(_, copy)| copied(copy)).collect()
    };
    let shadows = other.into_iter().map(copied).filter(|copies| !copies.is_empty()).collect();
    Some(Row { columns, shadows })
}
