//! Copies sectors of a RAID-Z vdev to where they move, beside all that is read and written (`raidz_reflow_impl`,
//! `raidz_reflow_scratch_sync`).
//!
//! Nothing waits for a copy but the thread that makes it, and that holds no lock which others need (`watch`). Where copies go
//! nothing is read yet, and what is written to a sector that is copied goes to both places by then. Only the order is open: a copy
//! of what the sector had before may come after the write. So a piece is *watched* while it is copied: what is written of it is
//! noted, and is copied once more when those writes have ended, until nothing of it was written meanwhile.
//!
//! A device may fail in between, come back and be given what it lacks before anything here has looked: the copies of what was read of it
//! would be wrong. So each device is asked at the begin and at the end what it has ever lacked ([`Health`]).
//!
//! Nothing is copied over what an uberblock may lead to: see the head of `moving`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use cenote_format::abd::Abd;
use cenote_format::invariant::broken;
use cenote_format::{invariant, less};

use super::moving::{NotMoved, failed};
use super::watch::Batch;
use crate::patience::Patience;
use crate::queue::Priority;
use crate::submit::{LeafRead, Submit, read_leaves};
use crate::traffic::Content;
use crate::vdev::{Kind, Vdev};
use crate::write::{BlockWrite, LeafWrite, write_leaves};
use crate::{Fault, VdevError, VdevTree};

/// Bytes that are copied at once.
const PIECE: u64 = 4 << 20;
/// How often a piece is copied at most.
const MOST_ROUNDS: u32 = 64;
/// How long a device is waited for. One that takes longer hangs, and is left alone until it answers.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most sectors of one write.
const MOST_SECTORS: usize = 256;

/// What the devices of a vdev have gone through, so far as copies may suffer from it: each one's guid, how often it was found
/// to lack something, and how many flushes of it have failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Health(Vec<(u64, u64, u64)>);

impl Health {
    pub(super) fn of(top: &Vdev) -> Health {
        let of = |leaf: &Arc<Vdev>| {
            (leaf.guid(), leaf.lacked.load(SeqCst), leaf.written().flush_failures())
        };
        Health(top.children().iter().map(of).collect())
    }
}

/// Where sectors are read or written: over so many devices, and by so much before their places.
pub(super) type Where = (u64, u64);

/// How sectors are copied.
#[derive(Clone, Copy)]
pub struct Copying<'a> {
    /// Reads that fail count as no errors: they were counted before.
    pub quiet: bool,
    /// Whether it is to end.
    pub ends: &'a (dyn Fn() -> bool + Sync),
}

/// Sectors of a vdev in their order, with their bytes.
type Sectors = Vec<(u64, Abd)>;

impl VdevTree {
    /// These blocks are about to be laid out and written, until what is returned is dropped.
    pub(crate) fn note_blocks(&self, blocks: &[BlockWrite]) -> Batch<'_> {
        let watch = &self.writer.watch;
        let Some((vdev, top)) = watch.vdev().and_then(|vdev| Some((vdev, self.top(vdev)?))) else {
            return Batch::default();
        };
        let sectors = |bytes: u64| bytes.div_ceil(1 << top.ashift.min(63));
        let of = |block: &BlockWrite| {
            let (begin, size) = (sectors(block.offset), sectors(self.asize_of(block)));
            begin..begin + size
        };
        let sectors: Vec<_> = blocks.iter().filter(|b| b.vdev == vdev).map(of).collect();
        match sectors.is_empty() {
            true => Batch::default(),
            false => watch.begin(sectors),
        }
    }

    /// The right bytes of these faults are about to be written, until what is returned is dropped.
    pub(crate) fn note_repairs<'f>(
        &self,
        faults: impl IntoIterator<Item = &'f Fault>,
    ) -> Batch<'_> {
        let watch = &self.writer.watch;
        let Some(vdev) = watch.vdev() else { return Batch::default() };
        let written = faults.into_iter().filter_map(Fault::sectors);
        watch.begin(written.filter(|(of, _)| *of == vdev).map(|(_, sectors)| sectors).collect())
    }

    /// Copies these sectors of `top`, given in order, from one place to another one, to which goes by now what is written of them.
    ///
    /// The health of the devices for which the copies are right.
    ///
    /// # Errors
    /// A device failed, hangs or lacks something, or it is to end: some copies may be missing or wrong.
    pub(super) fn copy_sectors(
        &self,
        top: &Arc<Vdev>,
        sectors: &[Range<u64>],
        (from, to): (Where, Where),
        how: Copying<'_>,
    ) -> Result<Health, NotMoved> {
        let again = |why: &str| Err(NotMoved::Again(why.into()));
        let before = Health::of(top);
        if let Some(why) = top.reflow_waits() {
            return again(&why);
        }
        for mut piece in pieces(sectors, (PIECE >> top.ashift).max(1)) {
            let mut rounds = 0;
            while let Some((first, last)) = piece.first().zip(piece.last()) {
                rounds += 1;
                if (how.ends)() {
                    return again("it is to end");
                }
                if rounds > MOST_ROUNDS {
                    return again("the same sectors are written again and again");
                }
                let watched = self.writer.watch.begin_piece(first.start..last.end);
                let bytes = self.sectors_at(top, &piece, from, how)?;
                self.write_all(top, &writes_of(top, bytes, to)?)?;
                let (within, (written, bound)) = (first.start..last.end, watched.end());
                piece = intersection(&piece, &written);
                let waits = !piece.is_empty();
                if waits && !self.writer.watch.wait((bound, within), how.ends, PATIENCE) {
                    return again("a write does not end");
                }
            }
        }
        self.flush_tops(&[top.id()])?;
        // A flush that failed where parity makes up for it has lost copies.
        match top.reflow_waits() {
            Some(why) => again(&why),
            None if Health::of(top) != before => again("a device has failed meanwhile"),
            None => Ok(before),
        }
    }

    /// The bytes of these sectors. No others are read: what is free may be unreadable for good.
    fn sectors_at(
        &self,
        top: &Vdev,
        piece: &[Range<u64>],
        (columns, base): Where,
        how: Copying<'_>,
    ) -> Result<Sectors, VdevError> {
        if columns == 0 {
            return failed(top, "it has no device");
        }
        let (mut reads, mut firsts) = (Vec::new(), Vec::new());
        for Range { start, end } in piece.iter().cloned() {
            // Of each device (the position of its read, its first row).
            let mut of = Vec::new();
            for (n, child) in (0..columns).zip(top.children()) {
                // Its sector of row r is r * columns + n. All rows are behind a sector before its first one.
                let row = |sector: u64| sector.saturating_sub(n).div_ceil(columns);
                let first = row(start);
                let rows = less!(row(end), first, "rows of device {n} before sector {end}");
                of.push((reads.len(), first));
                if rows > 0 {
                    let at = (first << top.ashift).wrapping_add(base);
                    reads.push((child.clone(), at, rows << top.ashift));
                }
            }
            firsts.push((start..end, of));
        }
        let parts = self.read_all(top, reads, how)?;
        let mut sectors = Sectors::new();
        for (range, of) in firsts {
            for sector in range {
                let child = (sector % columns) as usize;
                let Some((position, first)) = of.get(child) else {
                    return failed(top, "its devices have changed");
                };
                let row = sector / columns;
                let at = less!(row, *first, "rows of device {child} up to sector {sector}");
                let at = at << top.ashift;
                sectors.push((sector, slice(top, parts.get(*position), at)?));
            }
        }
        Ok(sectors)
    }

    /// Reads of all these leaves (the leaf, the offset on it, bytes).
    pub(super) fn read_all(
        &self,
        top: &Vdev,
        reads: Vec<(Arc<Vdev>, u64, u64)>,
        how: Copying<'_>,
    ) -> Result<Vec<Abd>, VdevError> {
        let read = |(leaf, offset, len): (Arc<Vdev>, u64, u64)| LeafRead {
            leaf,
            offset,
            len: len as usize,
        };
        let reads: Vec<LeafRead> = reads.into_iter().map(read).collect();
        let begun = Instant::now();
        let ends = || (how.ends)() || begun.elapsed() > PATIENCE;
        let submit = Submit::new(&self.pool, Priority::Removal);
        let submit = Submit { patience: Some(Patience::Until(&ends)), quiet: how.quiet, ..submit };
        let mut parts = Vec::with_capacity(reads.len());
        for piece in read_leaves(submit, &reads) {
            match piece {
                Ok(piece) => parts.push(piece.bytes),
                Err(e) => return failed(top, format!("sectors cannot be moved: {e}")),
            }
        }
        Ok(parts)
    }

    /// All of these writes, or an error.
    fn write_all(&self, top: &Vdev, writes: &[LeafWrite]) -> Result<(), VdevError> {
        let results = write_leaves(&self.writer, Priority::Removal, writes);
        match results.into_iter().find_map(Result::err) {
            Some(e) => failed(top, format!("sectors cannot be moved: {e}")),
            None => Ok(()),
        }
    }
}

/// The ranges, cut up so that each piece has so many sectors at most.
fn pieces(ranges: &[Range<u64>], most: u64) -> Vec<Vec<Range<u64>>> {
    let (mut pieces, mut count) = (vec![Vec::new()], 0);
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            if count >= most {
                pieces.push(Vec::new());
                count = 0;
            }
            let stop = range.end.min(at + (most - count));
            if let Some(last) = pieces.last_mut() {
                last.push(at..stop);
            }
            count += stop - at;
            at = stop;
        }
    }
    pieces
}

/// What is in both. Either is in order, and no two ranges of it meet.
fn intersection(these: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut both = Vec::new();
    for this in these {
        let from = others.partition_point(|range| range.end <= this.start);
        let meeting = others.iter().skip(from).take_while(|range| range.start < this.end);
        both.extend(meeting.map(|o| o.start.max(this.start)..o.end.min(this.end)));
    }
    both
}

/// The sector at byte `at` of a part.
fn slice(top: &Vdev, part: Option<&Abd>, at: u64) -> Result<Abd, VdevError> {
    let len = 1usize << top.ashift.min(16);
    let found = part.and_then(|part| part.slice(usize::try_from(at).ok()?, len));
    found.map_or_else(|| failed(top, "sectors are not where they should be"), Ok)
}

/// Writes of sectors to their new places, or by so much before them.
fn writes_of(
    top: &Arc<Vdev>,
    sectors: Sectors,
    (columns, base): Where,
) -> Result<Vec<LeafWrite>, VdevError> {
    invariant!(columns > 0, "{top:?}: sectors are moved to no device");
    let mut open: HashMap<usize, (u64, u64, Vec<Abd>)> = HashMap::new();
    let mut writes = Vec::new();
    let mut close = |child: usize, (start, _, data): (u64, u64, Vec<Abd>)| {
        let Some(leaf) = top.children.get(child) else {
            // What is not written would count as moved.
            broken(format_args!("{top:?}: sectors are moved to device {child} of {columns}"))
        };
        let mut bytes = Vec::new();
        data.iter().flat_map(|part| part.chunks()).for_each(|chunk| bytes.extend_from_slice(chunk));
        let (leaf, data, content) = (leaf.clone(), Abd::from_vec(bytes), Content::Data);
        let offset = (start << top.ashift).wrapping_add(base);
        // A device that fails lacks no group: the copies are made anew.
        writes.push(LeafWrite { leaf, offset, data, txg: 0, content });
    };
    for (sector, data) in sectors {
        let (child, row) = ((sector % columns) as usize, sector / columns);
        match open.get_mut(&child) {
            Some((_, end, parts)) if *end == row && parts.len() < MOST_SECTORS => {
                *end += 1;
                parts.push(data);
            }
            _ => {
                let begun = (row, row + 1, vec![data]);
                if let Some(full) = open.insert(child, begun) {
                    close(child, full);
                }
            }
        }
    }
    open.into_iter().for_each(|(child, rest)| close(child, rest));
    match columns == top.children.len() as u64 && top.vdev_kind() == Kind::RaidZ {
        true => Ok(writes),
        false => failed(top, "its devices have changed"),
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_of_a_piece_is_found() {
        let piece = [2..5, 8..9, 20..30];
        assert_eq!(intersection(&piece, &[]), []);
        assert_eq!(intersection(&piece, &[5..8, 9..20, 30..90]), []);
        assert_eq!(intersection(&piece, &[0..9, 22..25, 28..40]), [2..5, 8..9, 22..25, 28..30]);
        assert_eq!(pieces(&piece, 4), [vec![2..5, 8..9], vec![20..24], vec![24..28], vec![28..30]]);
    }
}
