//! dRAID: RAID-Z groups spread over all children, with room for spares among them (`vdev_draid_config_t`).
//!
//! The space of each child is cut into *rows* of [`ROW_HEIGHT`]. A *group* has `ndata + nparity` columns of one row's height.
//! In a row there are `ndisks` places for columns, all children but as many as there are spares; groups follow one another over the
//! places, and from the end of one row to the next. After `ngroups` groups, a *slice*, the places are full to the end of
//! a row. With 3 columns to a group, 5 children and one spare:
//!
//! ```text
//! place   0    1    2    3    spare
//! row 0   g0   g0   g0   g1    -         a slice: 4 groups of 3 columns in 3 rows of 4 places
//! row 1   g1   g1   g2   g2    -
//! row 2   g2   g3   g3   g3    -
//! ```
//!
//! Which child has which place changes from slice to slice, by a map of permutations that is generated from a seed and
//! is the same for all vdevs with so many children ([`maps`]). So each child has its share of the parity and of the
//! spares.
//!
//! Within a group blocks follow one another in lines of one sector to a column, and take whole lines: what a block does not fill of its
//! last line is zeros, in the parity too. A block that reaches the end of its group goes on in the next one, as a second
//! stripe with a parity of its own.
//!
//! A *distributed spare* has, of each slice, the place of its number from the end on (`spare`).
//!
//! Invariants: offsets of blocks are multiples of a line of their group; whatever the config says, a layout has
//! between 2 and 255 children, and its map is a permutation of them in each row.

mod maps;
mod spare;

use cenote_format::invariant::broken;
use cenote_format::less;
use cenote_format::nvlist::NvList;
use std::ops::Range;

use crate::raidz::map::ColumnExtent;

pub(crate) use spare::SpareDevice;

/// Bytes of a child that a group has (`VDEV_DRAID_ROWHEIGHT`): the largest block fits into one column.
pub const ROW_HEIGHT: u64 = 16 << 20;
/// Bytes at the end of each child that are kept for the expansion of the vdev (`VDEV_DRAID_REFLOW_RESERVE`).
pub const RESERVE: u64 = 2 * ROW_HEIGHT;
/// Most children (`VDEV_DRAID_MAX_CHILDREN`).
pub const MAX_CHILDREN: u64 = 255;
/// Most distributed spares.
pub const MAX_SPARES: u64 = 100;
/// Most parity columns (`VDEV_DRAID_MAXPARITY`).
pub const MAX_PARITY: u64 = 3;

/// What a dRAID vdev is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Data columns of a group.
    pub ndata: u64,
    /// Parity columns of a group.
    pub nparity: u64,
    /// Distributed spares.
    pub nspares: u64,
    /// Children, in which the spares are.
    pub children: u64,
    /// Groups of a slice.
    pub ngroups: u64,
}

impl Shape {
    /// The shape of a new vdev; `None` if no vdev can have it.
    pub fn new(ndata: u64, nparity: u64, nspares: u64, children: u64) -> Option<Shape> {
        let ndisks =
            children.checked_sub(nspares).filter(|n| *n > 0 && children <= MAX_CHILDREN)?;
        let width = ndata.checked_add(nparity)?;
        let whole = |n: &u64| n.checked_mul(width).is_some_and(|n| n.is_multiple_of(ndisks));
        let ngroups = (1..=ndisks).find(whole)?;
        let shape = Shape { ndata, nparity, nspares, children, ngroups };
        shape.fits().then_some(shape)
    }

    /// The shape that a vdev's config has (`vdev_draid_init`).
    ///
    /// Errors: what is wrong or missing, or not supported.
    pub fn of(config: &NvList) -> Result<Shape, String> {
        let number = |name: &str| {
            config.u64(name).ok_or_else(|| format!("dRAID whose config has no {name:?}"))
        };
        let children = config.lists("children").map_or(0, <[NvList]>::len) as u64;
        if config.u64("draid_nchildren").is_some_and(|n| n != children) {
            return Err("dRAID with failure domains".into());
        }
        let (ndata, nparity) = (number("draid_ndata")?, number("nparity")?);
        let (nspares, ngroups) = (number("draid_nspares")?, number("draid_ngroups")?);
        let shape = Shape { ndata, nparity, nspares, children, ngroups };
        match shape.fits() {
            true => Ok(shape),
            false => Err(format!("{} in {ngroups} groups", shape.name())),
        }
    }

    fn fits(&self) -> bool {
        let Shape { ndata, nparity, nspares, children, ngroups } = *self;
        let few = ndata > 0 && ndata <= MAX_CHILDREN && nspares <= MAX_SPARES;
        few && (1..=MAX_PARITY).contains(&nparity)
            && (2..=MAX_CHILDREN).contains(&children)
            && ndata + nparity + nspares <= children
            && (1..=MAX_CHILDREN).contains(&ngroups)
            && (self.width() * ngroups).is_multiple_of(self.ndisks())
    }

    /// The name without a number: `draid2:4d:11c:1s`.
    pub fn name(&self) -> String {
        let Shape { ndata, nparity, nspares, children, .. } = self;
        format!("draid{nparity}:{ndata}d:{children}c:{nspares}s")
    }

    /// Columns of a group.
    pub fn width(&self) -> u64 {
        self.ndata + self.nparity
    }

    /// Children without those that the spares are.
    pub fn ndisks(&self) -> u64 {
        self.children - self.nspares
    }

    /// Bytes of a group (`vdc_groupsz`).
    fn group(&self) -> u64 {
        self.width() * ROW_HEIGHT
    }

    /// Bytes of a line: what the smallest block takes, and all sizes and offsets are multiples of.
    pub fn line(&self, ashift: u32) -> u64 {
        self.width() << ashift
    }

    /// Bytes that a block of `psize` bytes takes (`vdev_draid_psize_to_asize`); `u64::MAX`, which
    /// fits nowhere, where no number is large enough.
    pub fn psize_to_asize(&self, psize: u64, ashift: u32) -> u64 {
        psize.div_ceil(self.ndata << ashift).max(1).saturating_mul(self.line(ashift))
    }

    /// Allocatable bytes over children of which the smallest has so many (`vdev_draid_open`): none, where they have no more than their
    /// reserve. `None`: they are so large that there is no number for it.
    pub fn asize(&self, smallest: u64) -> Option<u64> {
        let rows = smallest.saturating_sub(RESERVE) / ROW_HEIGHT;
        let bytes = (rows * ROW_HEIGHT).checked_mul(self.ndisks())?;
        Some(bytes / self.group() * self.group())
    }

    /// Bytes that each child must have for `asize` allocatable ones (`vdev_draid_min_asize`).
    pub fn child_asize(&self, asize: u64) -> u64 {
        let rows = asize.div_ceil(self.ndisks()).div_ceil(ROW_HEIGHT);
        RESERVE + rows * ROW_HEIGHT
    }
}

/// Bytes that allocations on a vdev with this config begin at multiples of, if that is no power of 2; else 1.
pub fn line_of(config: &NvList) -> u64 {
    if config.str("type") != Some("draid") {
        return 1;
    }
    let ashift = config.u64("ashift").and_then(|a| u32::try_from(a).ok()).unwrap_or(0).min(16);
    Shape::of(config).map_or(1, |shape| shape.line(ashift))
}

/// First byte, and bytes, of metaslab `id` of a vdev whose metaslabs are `1 << shift` bytes apart and whose allocations
/// begin at multiples of `line` bytes (`vdev_draid_metaslab_init`). `None`: there is no such place, or no line in it.
pub fn metaslab(id: u64, shift: u32, line: u64) -> Option<(u64, u64)> {
    let size = 1u64.checked_shl(shift)?;
    let begin = id.checked_mul(size)?;
    let end = begin.checked_add(size)?;
    let start = begin.checked_next_multiple_of(line.max(1))?;
    let whole = end.checked_sub(start)? / line.max(1) * line.max(1);
    (whole > 0).then_some((start, whole))
}

/// Random numbers that are the same everywhere (`vdev_draid_rand`, xoroshiro128++).
struct Random(u64, u64);

impl Random {
    fn next(&mut self) -> u64 {
        let Random(a, b) = *self;
        let result = a.wrapping_add(b).rotate_left(17).wrapping_add(a);
        let b = b ^ a;
        *self = Random(a.rotate_left(49) ^ b ^ (b << 21), b.rotate_left(28));
        result
    }
}

/// The first half of each seed (`VDEV_DRAID_SEED`).
const SEED: u64 = 0xd_7a1d_5eed;

/// Where the bytes of a dRAID vdev are.
#[derive(Debug)]
pub(crate) struct Layout {
    shape: Shape,
    ashift: u32,
    /// The permutations, row by row.
    map: Vec<u8>,
}

impl Layout {
    /// `None`: the map is not the one that the format has.
    pub(crate) fn new(shape: Shape, ashift: u32) -> Option<Layout> {
        let (seed, sum) =
            *maps::SEEDS.get(usize::try_from(shape.children.checked_sub(2)?).ok()?)?;
        let map = generate(shape.children, seed)?;
        let words =
            map.chunks(4).map(|w| w.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b)));
        (words.sum::<u64>() == sum).then_some(Layout { shape, ashift, map })
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes that a block takes.
    pub(crate) fn asize(&self, psize: u64) -> u64 {
        self.shape.psize_to_asize(psize, self.ashift)
    }

    /// The child that has a place of slice `slice` (`vdev_draid_permute_id`).
    fn child(&self, slice: u64, place: u64) -> usize {
        let children = self.shape.children;
        let row = slice / children % (self.map.len() as u64 / children);
        let at = (row * children + place % children) as usize;
        match self.map.get(at) {
            Some(base) => ((u64::from(*base) + slice % children) % children) as usize,
            None => broken(format_args!("a map of {} children has no place {at}", self.map.len())),
        }
    }

    /// The child that has byte `at` of a spare, a byte of the child's allocatable space, and for how many bytes from there on
    /// (`vdev_draid_spare_get_child`).
    pub(crate) fn spare_child(&self, number: u64, at: u64) -> (usize, u64) {
        let Shape { ngroups, children, .. } = self.shape;
        let slice = self.shape.group() * ngroups / self.shape.ndisks();
        let last = less!(children, 1, "children of a dRAID vdev");
        let place = less!(last, number, "places of a row, the last ones the spares'");
        let child = self.child(at / slice, place);
        (child, slice - at % slice)
    }

    /// Bytes of a slice of the vdev, and how many rows of each child it has.
    fn slice(&self) -> (u64, u64) {
        let Shape { ngroups, .. } = self.shape;
        (self.shape.group() * ngroups, self.shape.width() * ngroups / self.shape.ndisks())
    }

    /// The place of child `child` in slice `slice`; `None`: it has that of a spare.
    fn place(&self, slice: u64, child: usize) -> Option<u64> {
        (0..self.shape.ndisks()).find(|place| self.child(slice, *place) == child)
    }

    /// The byte of child `child` before which all is that the child has of the bytes before `offset`, in whole lines. It grows with `offset`:
    /// in a slice each row of a child belongs to one group, and these follow each other.
    pub(crate) fn end_on(&self, child: usize, offset: u64) -> u64 {
        self.end_in(offset / self.slice().0, child, offset)
    }

    /// As `end_on`, of an offset in a slice or at its end.
    fn end_in(&self, slice: u64, child: usize, offset: u64) -> u64 {
        let ((bytes, rows), width) = (self.slice(), self.shape.width());
        let first = slice * rows;
        let Some(place) = self.place(slice, child) else { return first * ROW_HEIGHT };
        let within = less!(offset, slice * bytes, "an offset of a dRAID vdev in its slice");
        let (group, rest) = (within / self.shape.group(), within % self.shape.group());
        // Places are counted through all rows of the slice.
        let row = (group * width).saturating_sub(place).div_ceil(self.shape.ndisks());
        let is_in = row * self.shape.ndisks() + place < (group + 1) * width;
        let lines = rest.div_ceil(self.shape.line(self.ashift));
        (first + row) * ROW_HEIGHT + if is_in { lines << self.ashift } else { 0 }
    }

    /// Where the lines of `range`, bytes of the vdev, are on child `child`, in ascending order (`vdev_draid_xlate`). What spares have there is
    /// left out.
    pub(crate) fn ranges_on(&self, child: usize, range: Range<u64>) -> Vec<Range<u64>> {
        let (bytes, mut all, mut at) = (self.slice().0, Vec::<Range<u64>>::new(), range.start);
        while at < range.end {
            let slice = at / bytes;
            let end = range.end.min((slice + 1).saturating_mul(bytes));
            let piece = self.end_in(slice, child, at)..self.end_in(slice, child, end);
            match all.last_mut() {
                Some(last) if last.end == piece.start => last.end = piece.end,
                _ if piece.is_empty() => {}
                _ => all.push(piece),
            }
            at = end;
        }
        all
    }

    /// Bytes from byte `offset` to the end of its group.
    pub(crate) fn left_of_group(&self, offset: u64) -> u64 {
        let (group, line) = (self.shape.group(), self.shape.line(self.ashift));
        (group - offset % group) / line * line
    }

    /// The columns of the block of `psize` bytes (rounded up to sectors) at byte `offset`, stripe by stripe: first `nparity` of
    /// parity, then the data in order (`vdev_draid_map_alloc`). `None` if no block can begin there, or the numbers overflow.
    pub(crate) fn stripes(&self, offset: u64, psize: u64) -> Option<Vec<Vec<ColumnExtent>>> {
        let (group, line) = (self.shape.group(), self.shape.line(self.ashift));
        if !offset.is_multiple_of(line) || psize > ROW_HEIGHT {
            return None;
        }
        let sectors = psize.div_ceil(1 << self.ashift).max(1);
        // The group ends at a line.
        let room = (group - offset % group) / line * self.shape.ndata;
        let mut stripes = vec![self.stripe(offset, sectors.min(room))?];
        if sectors > room {
            let next = (offset / group + 1).checked_mul(group)?;
            stripes.push(self.stripe(next, sectors - room)?);
        }
        let mut at = 0usize;
        let parity = usize::try_from(self.shape.nparity).ok()?;
        for column in stripes.iter_mut().flat_map(|stripe| stripe.iter_mut().skip(parity)) {
            column.at = at;
            at = at.checked_add(column.len)?;
        }
        Some(stripes)
    }

    /// The columns of `sectors` sectors within one group (`vdev_draid_map_alloc_row`).
    fn stripe(&self, offset: u64, sectors: u64) -> Option<Vec<ColumnExtent>> {
        let Shape { ndata, nparity, ngroups, .. } = self.shape;
        let (width, ndisks) = (self.shape.width(), self.shape.ndisks());
        let group = offset / self.shape.group();
        let (slice, number) = (group / ngroups, group % ngroups);
        let rows = slice.checked_mul(width * ngroups / ndisks)?;
        let row = rows.checked_add(number * width / ndisks)?;
        let within = offset % self.shape.group() / width;
        let (lines, rest) = (sectors / ndata, sectors % ndata);
        // Columns with a sector of the last line, if that is not full.
        let big = if rest == 0 { 0 } else { rest + nparity };
        let height = lines + u64::from(rest > 0);
        let bytes = |sectors: u64| usize::try_from(sectors << self.ashift).ok();
        let mut columns = Vec::with_capacity(usize::try_from(width).ok()?);
        for i in 0..width {
            let place = number * width % ndisks + i;
            let row = row.checked_add(place / ndisks)?;
            let own = lines + u64::from(i < big);
            columns.push(ColumnExtent {
                child: self.child(slice, place % ndisks),
                offset: row.checked_mul(ROW_HEIGHT)?.checked_add(within)?,
                len: bytes(own)?,
                skip: bytes(height - own)?,
                at: 0,
                sector: 0,
                row_end: 0,
            });
        }
        Some(columns)
    }
}

/// The map of so many children (`vdev_draid_generate_perms`). `None` if there can be none.
fn generate(children: u64, seed: u64) -> Option<Vec<u8>> {
    let width = usize::try_from(children).ok()?;
    let rows = if children < maps::MANY { maps::FEW_ROWS } else { maps::MANY_ROWS };
    let mut random = Random(SEED, seed);
    let mut row: Vec<u8> = (0..u8::try_from(children).ok()?).collect();
    let mut map = Vec::with_capacity(width * rows);
    // Each row is the one before, shuffled.
    for _ in 0..rows {
        for j in (1..width).rev() {
            row.swap(j, (random.next() % (j as u64 + 1)) as usize);
        }
        map.extend_from_slice(&row);
    }
    Some(map)
}

#[cfg(test)]
mod io_tests;
#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod spare_tests;
#[cfg(test)]
mod tests;
