//! The columns of a block, with their parity (`vdev_raidz_generate_parity`).
//!
//! Data columns are slices of the block: nothing is copied. Parity is computed in strips that stay
//! in the processor's first-level cache: of every data column in turn, a strip is read once and
//! added to all parities ([`super::sums`]). The blocks of a large batch are shared out among the processors.

use std::sync::Arc;
use std::thread::available_parallelism;

use cenote_format::abd::Abd;
use cenote_format::invariant;
use cenote_format::invariant::broken;

use super::BlockWrite;
use super::sums::{add_p, add_pq, add_pqr, double};
use crate::VdevError;
use crate::raidz::map::ColumnExtent;
use crate::raidz::reflow::{Row, Widths};
use crate::threads::{IoPool, Work};
use crate::vdev::Vdev;

/// Bytes of parity computed at a time.
const STRIP: usize = 4 << 10;
/// Bytes of blocks that are worth a thread.
const BYTES_PER_THREAD: usize = 1 << 20;

/// A block as columns, or the part of it that is one stripe of dRAID.
pub(super) struct Columns {
    /// Which child takes each column: parity first, then data.
    children: Vec<(Arc<Vdev>, u64)>,
    /// The parity columns, once they are computed.
    parity: Vec<Abd>,
    data: Vec<Abd>,
    /// Bytes of the longest column.
    len: usize,
    /// How many columns may fail, which is how many there are of parity.
    pub tolerance: usize,
    /// Where columns, given by their number, are written as well: see [`Row::shadows`].
    shadows: Vec<Vec<(usize, Arc<Vdev>, u64)>>,
}

/// A part of a block: the child, the byte offset on it, the bytes.
type Part = (Arc<Vdev>, u64, Abd);

impl Columns {
    /// The columns that have bytes, and their copies, each set of which is a stripe of its own.
    pub(super) fn into_parts(self) -> (Vec<Part>, Vec<Vec<Part>>) {
        let (parity, wanted) = (self.parity.len(), self.tolerance);
        let bytes: Vec<Abd> = self.parity.into_iter().chain(self.data).collect();
        let (all, children) = (bytes.len(), self.children.len());
        // Data would go to the children of parity.
        invariant!(
            parity == wanted && all == children,
            "{parity} of {wanted} columns of parity are computed, {all} columns for {children} children"
        );
        let copy = |(number, child, offset): (usize, Arc<Vdev>, u64)| match bytes.get(number) {
            Some(data) => (child, offset, data.clone()),
            None => broken(format_args!("a copy of column {number} of {all}")),
        };
        let copies = self.shadows.into_iter().map(|set| set.into_iter().map(copy).collect());
        let copies = copies.collect();
        let columns = self.children.into_iter().zip(bytes).filter(|(_, data)| !data.is_empty());
        (columns.map(|((child, offset), data)| (child, offset, data)).collect(), copies)
    }

    fn needs_parity(&self) -> bool {
        self.parity.len() < self.tolerance
    }

    fn data_bytes(&self) -> usize {
        self.data.iter().map(Abd::len).sum()
    }
}

/// Cuts a block into columns, stripe by stripe; their parity is still to be computed.
pub(super) fn lay_out(
    vdev: &Arc<Vdev>,
    widths: &Widths,
    block: &BlockWrite,
) -> Result<Vec<Columns>, VdevError> {
    let data = whole_sectors(&block.data, 1 << vdev.ashift().clamp(9, 16));
    if !vdev.vdev_kind().is_striped() {
        let children = vec![(vdev.clone(), block.offset)];
        let (len, parity) = (data.len(), Vec::new());
        let (tolerance, shadows) = (0, Vec::new());
        return Ok(vec![Columns { children, parity, data: vec![data], len, tolerance, shadows }]);
    }
    let stripes = vdev.stripes(widths, (block.offset, data.len() as u64), block.txg);
    let stripes = stripes.ok_or_else(|| super::error(block, "no block can be there"))?;
    let parity = vdev.nparity() as usize;
    let of_row = |row: &Row| row.columns.iter().skip(parity).map(|e| e.len).sum::<usize>();
    let (covered, len) = (stripes.iter().map(of_row).sum::<usize>(), data.len());
    invariant!(
        covered == len,
        "{vdev:?}: columns of {covered} bytes for a block of {len} at {:#x}",
        block.offset
    );
    let columns = stripes.iter().map(|row| stripe(vdev, row, &data));
    columns.collect::<Option<_>>().ok_or_else(|| super::error(block, "no such columns"))
}

/// The columns of a stripe of a block.
fn stripe(vdev: &Arc<Vdev>, row: &Row, block: &Abd) -> Option<Columns> {
    let extents = row.columns.as_slice();
    let tolerance = usize::try_from(vdev.nparity()).ok()?;
    let child = |e: &ColumnExtent| Some((vdev.children().get(e.child)?.clone(), e.offset));
    let children = extents.iter().map(child).collect::<Option<_>>()?;
    let mut data = Vec::with_capacity(extents.len());
    let shadow = |(c, e): &(usize, ColumnExtent)| {
        let (vdev, offset) = child(e)?;
        Some((*c, vdev, offset))
    };
    let set = |set: &Vec<_>| set.iter().map(shadow).collect::<Option<_>>();
    let shadows = row.shadows.iter().map(set).collect::<Option<_>>()?;
    for ColumnExtent { len, skip, at, .. } in extents.get(tolerance..)? {
        let zeros = || Abd::from_vec(vec![0; *skip]);
        data.push(match (*len, *skip) {
            (0, _) => zeros(),
            (len, 0) => block.slice(*at, len)?,
            (len, _) => Abd::gang(vec![block.slice(*at, len)?, zeros()]),
        });
    }
    let len = extents.first()?.len;
    Some(Columns { children, parity: Vec::new(), data, len, tolerance, shadows })
}

/// `data` filled up with zeros to a multiple of `sector` bytes.
fn whole_sectors(data: &Abd, sector: usize) -> Abd {
    match data.len() % sector {
        0 => data.clone(),
        rest => Abd::gang(vec![data.clone(), Abd::from_vec(vec![0; sector - rest])]),
    }
}

/// Computes the parity of all blocks that have any (`vdev_raidz_generate_parity_row`).
pub(super) fn generate(pool: &IoPool, blocks: Vec<&mut Columns>) {
    let mut blocks: Vec<&mut Columns> = blocks.into_iter().filter(|b| b.needs_parity()).collect();
    // How many processors there are is asked of the system each time, which takes long.
    if blocks.is_empty() {
        return;
    }
    let bytes: usize = blocks.iter().map(|b| b.data_bytes()).sum();
    let threads = (bytes / BYTES_PER_THREAD).min(available_parallelism().map_or(1, |n| n.get()));
    if threads <= 1 {
        for b in blocks {
            b.parity = parity(b.tolerance, &b.data, b.len);
        }
        return;
    }
    let mut jobs: Vec<Job> = (0..threads).map(|_| Job::default()).collect();
    let (mut at, mut so_far) = (0, 0);
    for (i, b) in blocks.iter().enumerate() {
        so_far += b.data_bytes();
        jobs[at].blocks.push((i, b.tolerance, b.data.clone(), b.len));
        if so_far > bytes / threads * (at + 1) && at + 1 < threads {
            at += 1;
        }
    }
    jobs.retain(|j| !j.blocks.is_empty());
    for (i, parity) in pool.run(jobs).into_iter().flat_map(|j| j.done) {
        if let Some(block) = blocks.get_mut(i) {
            block.parity = parity;
        }
    }
}

/// Blocks of which one thread computes the parity.
#[derive(Default)]
struct Job {
    /// (position, parity columns, data columns, bytes of the longest)
    blocks: Vec<(usize, usize, Vec<Abd>, usize)>,
    done: Vec<(usize, Vec<Abd>)>,
}

impl Work for Job {
    fn run(&mut self) {
        let compute =
            |(i, n, data, len): (usize, usize, Vec<Abd>, usize)| (i, parity(n, &data, len));
        self.done = std::mem::take(&mut self.blocks).into_iter().map(compute).collect();
    }
}

/// The first `n` parities of data columns of which the longest has `len` bytes.
fn parity(n: usize, data: &[Abd], len: usize) -> Vec<Abd> {
    let mut out: Vec<Vec<u8>> = (0..n).map(|_| vec![0; len]).collect();
    let mut columns: Vec<Cursor<'_>> = data.iter().map(Cursor::new).collect();
    let mut at = 0;
    while at < len {
        let strip = at..len.min(at + STRIP);
        let bytes = strip.len();
        match &mut out[..] {
            [p] => {
                let p = &mut p[strip];
                for c in &mut columns {
                    c.advance(bytes, |to, s| add_p(&mut p[to..to + s.len()], s));
                }
            }
            [p, q] => {
                let (p, q) = (&mut p[strip.clone()], &mut q[strip]);
                for c in &mut columns {
                    let end = c.advance(bytes, |to, s| {
                        let to = to..to + s.len();
                        add_pq(&mut p[to.clone()], &mut q[to], s);
                    });
                    q[end..].iter_mut().for_each(|x| *x = double(*x));
                }
            }
            [p, q, r] => {
                let (p, q, r) = (&mut p[strip.clone()], &mut q[strip.clone()], &mut r[strip]);
                for c in &mut columns {
                    let end = c.advance(bytes, |to, s| {
                        let to = to..to + s.len();
                        add_pqr(&mut p[to.clone()], &mut q[to.clone()], &mut r[to], s);
                    });
                    q[end..].iter_mut().for_each(|x| *x = double(*x));
                    r[end..].iter_mut().for_each(|x| *x = double(double(*x)));
                }
            }
            // RAID-Z has one to three.
            _ => broken(format_args!("{n} columns of parity are to be computed")),
        }
        at += bytes;
    }
    out.into_iter().map(Abd::from_vec).collect()
}

/// Goes through a column's bytes.
struct Cursor<'a> {
    pieces: Vec<&'a [u8]>,
    /// The piece to go on in.
    next: usize,
}

impl<'a> Cursor<'a> {
    fn new(column: &'a Abd) -> Cursor<'a> {
        Cursor { pieces: column.chunks().collect(), next: 0 }
    }

    /// Hands the next `n` bytes, or as many as there are, to `take`, piece by piece, each with
    /// its position among them. Returns their number.
    fn advance(&mut self, n: usize, mut take: impl FnMut(usize, &[u8])) -> usize {
        let mut done = 0;
        while done < n
            && let Some(piece) = self.pieces.get_mut(self.next)
        {
            let (mine, rest) = piece.split_at(piece.len().min(n - done));
            take(done, mine);
            done += mine.len();
            *piece = rest;
            self.next += usize::from(rest.is_empty());
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raidz::math;
    use proptest::prelude::*;

    proptest! {
        /// The parity is the one that reading reconstructs from.
        #[test]
        fn parity_is_what_reading_expects(
            bytes in proptest::collection::vec(any::<u8>(), 1..20_000),
            columns in 1usize..9, pieces in 1usize..5, n in 1usize..4,
        ) {
            let len = bytes.len().div_ceil(columns);
            let columns: Vec<&[u8]> = bytes.chunks(len).collect();
            let cut = |c: &&[u8]| {
                Abd::gang(c.chunks(len.div_ceil(pieces)).map(|p| Abd::from_vec(p.to_vec())).collect())
            };
            let data: Vec<Abd> = columns.iter().map(cut).collect();
            for (k, p) in parity(n, &data, len).into_iter().enumerate() {
                let mut want = vec![0; len];
                math::parity_of(k, columns.iter().copied(), &mut want);
                prop_assert_eq!(p.to_vec(), want);
            }
        }
    }
}
