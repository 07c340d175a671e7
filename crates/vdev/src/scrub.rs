//! Reading every copy of blocks, and what devices lack of them (`vdev_mirror_io_start` and `vdev_raidz_io_start` of a
//! scan).
//!
//! A *scrub* reads all that the leaves of a block are expected to have: every side of a mirror, every column of RAID-Z
//! or dRAID with its parity, and with the zeros that dRAID has behind columns. Once it is known what the block is, each leaf whose bytes differ, or cannot be read, is reported
//! as a [`Fault`], as for other reads. A leaf that missed the block is not looked at, and one without a device counts
//! nothing.
//!
//! A *resilver* reads a block as others do, from what is expected to be right, and reports each leaf that lacks it
//! ([`Fault::lacks`]): that counts no error. Leaves that lack it and take no writes are named, so that their dirty time
//! logs keep it.
//!
//! Both report; [`VdevTree::repair_many`] writes, under the rule of `crate::fault`.

use std::sync::Arc;

use cenote_format::abd::Abd;
use cenote_format::invariant;

use crate::dtl::{Trust, only};
use crate::queue::Priority;
use crate::raidz::reflow::Widths;
use crate::submit::{LeafRead, Submit, read_leaves};
use crate::tree::{Place, VdevTree};
use crate::vdev::{Kind, Vdev};
use crate::write::{LeafWrite, NotRepaired, write_leaves};
use crate::{BlockRead, Fault, Outcome, VdevError, Verify, mirror};

/// Bytes of repairs that are written while nothing else is.
const MOST_ALONE: usize = 1 << 20;

/// A block that a scan has read.
#[derive(Debug)]
pub struct Checked {
    /// The block.
    pub block: Result<Abd, VdevError>,
    /// The leaves that gave wrong bytes or no bytes, or that lack the block.
    pub faults: Vec<Fault>,
    /// Guids of the leaves that lack the block and cannot be given it now.
    pub left: Vec<u64>,
}

/// What came of repairs.
#[derive(Debug, Default)]
pub struct Repaired {
    /// Bytes that were written.
    pub bytes: u64,
    /// Leaves, by guid, that did not take a block of this transaction group.
    pub failed: Vec<(u64, u64)>,
}

impl Repaired {
    /// A leaf is not given what it lacks of a block of group `txg`.
    fn note_left(&mut self, txg: u64, fault: &Fault) {
        if fault.is_lack() {
            self.failed.push((fault.leaf().guid(), txg));
        }
    }

    /// What came of a write, of a block of group `txg`.
    fn note(&mut self, write: &LeafWrite, txg: u64, lack: bool, is_done: bool) {
        let (leaf, len) = (&write.leaf, write.data.len());
        if !lack {
            leaf.stats.heal_tried();
        }
        if !is_done {
            return self.failed.push((leaf.guid(), txg));
        }
        self.bytes += len as u64;
        leaf.stats.scanned(len);
        if !lack {
            leaf.stats.healed(len);
        }
    }
}

/// A part of a block that children of one vdev hold.
struct Column {
    child: Arc<Vdev>,
    offset: u64,
    len: usize,
    /// How many of its bytes are the block's; the others are parity, or zeros.
    data: usize,
    /// The byte of the block at which these begin.
    at: usize,
    /// See [`crate::ColumnExtent::in_row`].
    in_row: Option<(u64, u64)>,
}

/// A part of a block that one top-level vdev holds.
struct Part<'a> {
    place: Place<'a>,
    /// By which widths it is laid out.
    widths: Arc<Widths>,
    columns: Vec<Column>,
    /// For each column, its copies: the leaf, and where in the batch its read is.
    copies: Vec<Vec<(Arc<Vdev>, usize)>>,
}

impl<'a> Part<'a> {
    /// `None` if nothing can be there.
    fn of(place: Place<'a>) -> Option<Part<'a>> {
        let (vdev, size) = (place.vdev, place.size as u64);
        let end = place.offset.checked_add(vdev.psize_to_asize(size, place.txg))?;
        let empty = [Kind::Hole, Kind::Missing, Kind::Indirect, Kind::Root];
        if empty.contains(&vdev.vdev_kind()) || vdev.asize() != 0 && end > vdev.asize() {
            return None;
        }
        let widths = vdev.widths();
        let columns = match vdev.vdev_kind().is_striped() {
            false => {
                let (child, offset, len) = (vdev.clone(), place.offset, place.size);
                vec![Column { child, offset, len, data: len, at: 0, in_row: None }]
            }
            true => {
                let nparity = usize::try_from(vdev.nparity()).ok()?;
                let column = |(i, extent): (usize, crate::ColumnExtent)| {
                    let child = vdev.children().get(extent.child)?.clone();
                    let data = if i < nparity { 0 } else { extent.len };
                    let len = extent.len + extent.skip;
                    let (offset, at, in_row) = (extent.offset, extent.at, extent.in_row());
                    Some(Column { child, offset, len, data, at, in_row })
                };
                let rows = vdev.stripes(&widths, (place.offset, size), place.txg)?.into_iter();
                let columns = rows.flat_map(|row| row.columns.into_iter().enumerate());
                let is_there =
                    |(_, extent): &(usize, crate::ColumnExtent)| extent.len + extent.skip > 0;
                columns.filter(is_there).map(column).collect::<Option<Vec<_>>>()?
            }
        };
        Some(Part { place, widths, columns, copies: Vec::new() })
    }

    /// Adds the reads of all copies that are expected to be right.
    fn plan(&mut self, reads: &mut Vec<LeafRead>) {
        for column in &self.columns {
            let mut leaves = Vec::new();
            mirror::copies(&column.child, &mut leaves);
            leaves.retain(|leaf| leaf.trust_at(column.offset, self.place.txg) == Some(Trust::Good));
            let mut copies = Vec::new();
            for leaf in leaves {
                let leaf = leaf.reader_at(column.offset, self.place.txg);
                copies.push((leaf.clone(), reads.len()));
                reads.push(LeafRead { leaf, offset: column.offset, len: column.len });
            }
            self.copies.push(copies);
        }
    }

    /// The data as they were read, if all of them were; of several copies the one with this number.
    fn assembled(&self, read: &[Option<Abd>], copy: usize) -> Option<Abd> {
        let bytes = |(column, copies): (&Column, &Vec<(Arc<Vdev>, usize)>)| {
            let mut good = copies.iter().filter_map(|(_, i)| read.get(*i)?.clone());
            let read = good.nth(copy)?;
            if read.len() == column.data { Some(read) } else { read.slice(0, column.data) }
        };
        let columns = self.columns.iter().zip(&self.copies).filter(|(c, _)| c.data > 0);
        let mut columns: Vec<_> = columns.collect();
        columns.sort_by_key(|(column, _)| column.at);
        let mut data = columns.into_iter().map(bytes).collect::<Option<Vec<_>>>()?;
        match data.len() {
            1 => data.pop()?.slice(0, self.place.size),
            _ => Abd::gang(data).slice(0, self.place.size),
        }
    }

    /// How many copies there are at most.
    fn copies(&self) -> usize {
        self.copies.iter().map(Vec::len).max().unwrap_or(0)
    }
}

/// A leaf lacks what belongs to a spare's place on it, of a block of this group.
fn lag(leaf: &Vdev, txg: u64) {
    leaf.lags(only(txg));
}

/// The block as it was read, if all of it was: by the first copies of its parts, by the second ones, and so on.
fn wholes(parts: &[Part<'_>], read: &[Option<Abd>]) -> impl Iterator<Item = Abd> {
    let copies = parts.iter().map(Part::copies).max().unwrap_or(0);
    let whole = move |copy: usize| {
        let mut data = Vec::with_capacity(parts.len());
        for part in parts {
            data.push(part.assembled(read, copy)?);
        }
        match data.len() {
            1 => data.pop(),
            _ => Some(Abd::gang(data)),
        }
    };
    (0..copies).filter_map(whole)
}

/// `block`, with the first of `bytes` in the place of the `size` bytes from `from` on.
fn with(block: &Abd, (from, size): (usize, usize), bytes: &Abd) -> Option<Abd> {
    let end = from.checked_add(size)?;
    let rest = block.len().checked_sub(end)?;
    let all = [block.slice(0, from)?, bytes.slice(0, size)?, block.slice(end, rest)?];
    Some(Abd::gang(all.into_iter().filter(|part| !part.is_empty()).collect()))
}

/// Whether `read` begins with the bytes of `right`, or has the first of them.
fn same(read: &Abd, right: &Abd) -> bool {
    let len = read.len().min(right.len());
    match (read.as_contiguous(), right.as_contiguous()) {
        (Some(read), Some(right)) => read.get(..len) == right.get(..len),
        _ => read.bytes().get(..len) == right.bytes().get(..len),
    }
}

impl VdevTree {
    /// Reads every copy and all parity of a batch of blocks, in the class of scrubs. Results are in the order of
    /// `reqs`; what they say of leaves is not counted yet.
    pub fn check_many(&self, reqs: &[BlockRead<'_>]) -> Vec<Checked> {
        let mut reads = Vec::new();
        let mut plans = Vec::with_capacity(reqs.len());
        for req in reqs {
            let places = self.resolve(req).map(|(_, pieces)| pieces).unwrap_or_default();
            let parts: Option<Vec<Part<'_>>> = places.into_iter().map(Part::of).collect();
            let mut parts = parts.unwrap_or_default();
            parts.iter_mut().for_each(|part| part.plan(&mut reads));
            plans.push(parts);
        }
        let submit = Submit::new(&self.pool, Priority::Scrub).patient();
        let read = read_leaves(submit, &reads).into_iter();
        let read: Vec<Option<Abd>> = read.map(|piece| Some(piece.ok()?.bytes)).collect();
        let right = |(req, parts): (&BlockRead<'_>, &Vec<Part<'_>>)| {
            wholes(parts, &read).find(|data| (req.verify)(data))
        };
        let right: Vec<Option<Abd>> = reqs.iter().zip(&plans).map(right).collect();
        // By whatever redundancy there is: all that need it together.
        let is_left = reqs.iter().zip(&right).filter(|(_, right)| right.is_none());
        let wanting: Vec<BlockRead<'_>> = is_left.map(|(req, _)| *req).collect();
        let mut again = self.read_many_as(Priority::Scrub, &wanting).into_iter();
        let mut done = Vec::with_capacity(reqs.len());
        for ((req, parts), right) in reqs.iter().zip(plans).zip(right) {
            let block = match right {
                Some(block) => Ok(block),
                None => again.next().map_or(Err((VdevError::NoVdev(req.vdev), Vec::new())), |o| {
                    o.block.map_err(|error| (error, o.faults))
                }),
            };
            done.push(match block {
                Ok(block) => self.examine(req, &parts, block, &read),
                Err((error, faults)) => Checked { block: Err(error), faults, left: Vec::new() },
            });
        }
        self.look_after();
        done
    }

    /// Reports the leaves that have anything else than `block`, which is right.
    fn examine(
        &self,
        req: &BlockRead<'_>,
        parts: &[Part<'_>],
        block: Abd,
        read: &[Option<Abd>],
    ) -> Checked {
        let (mut faults, mut at) = (Vec::new(), 0);
        for part in parts {
            let (from, size) = (at, part.place.size);
            let slice = block.slice(from, size);
            at += size;
            // The block, with these bytes in the place of the part's.
            let is_rival = |bytes: &Abd| match parts.len() {
                1 => (req.verify)(bytes),
                _ => with(&block, (from, size), bytes).is_some_and(|data| (req.verify)(&data)),
            };
            let compared = slice
                .is_some_and(|slice| self.compare(part, &slice, read, (&is_rival, &mut faults)));
            if !compared {
                // A pointer that makes no sense: it is not known where copies are.
                let error = part.place.error("not at a sector");
                return Checked { block: Err(error), faults, left: Vec::new() };
            }
        }
        Checked { block: Ok(block), faults, left: Vec::new() }
    }

    /// Parity of the vdevs that a block lies on, at most; 0 as well where it is not known on which.
    pub fn parity_of(&self, req: &BlockRead<'_>) -> u64 {
        let places = self.resolve(req).map(|(_, pieces)| pieces).unwrap_or_default();
        places.iter().map(|place| place.vdev.nparity()).max().unwrap_or(0)
    }

    /// Reports the leaves whose bytes differ from what `block` makes of them. False: it is not known what they are to have.
    ///
    /// A block of a removed vdev that had smaller sectors may begin or end within a sector here. Then copies are
    /// compared, but those that differ are not written: nothing says what else is in the sector.
    ///
    /// `is_rival` tells of other bytes whether with them in the place of the part's the block could be the right one as well.
    fn compare(
        &self,
        part: &Part<'_>,
        block: &Abd,
        read: &[Option<Abd>],
        (is_rival, faults): (Verify<'_>, &mut Vec<Fault>),
    ) -> bool {
        let Place { vdev, offset, txg, .. } = part.place;
        let whole = self.laid_out(vdev, &part.widths, (offset, txg), block);
        let written = whole.is_some();
        let striped = vdev.vdev_kind().is_striped();
        let expected = match whole {
            Some(expected) => expected,
            None if striped => return false,
            None => vec![(vdev.clone(), offset, block.clone())],
        };
        let (read_of, of) = (part.columns.len(), expected.len());
        invariant!(read_of == of, "{vdev:?}: {read_of} columns of {of} at {offset:#x} are read");
        let columns = part.columns.iter().zip(&part.copies);
        for ((child, at, right), (column, copies)) in expected.into_iter().zip(columns) {
            let from = column.offset;
            invariant!(from == at, "{child:?}: what is read at {from:#x} is compared with {at:#x}");
            for (leaf, index) in copies {
                let fault = match read.get(*index) {
                    Some(Some(bytes)) if same(bytes, &right) => continue,
                    Some(Some(bytes)) => {
                        let rival = !striped && is_rival(bytes);
                        Fault::of_bytes(leaf, at, part.place.txg).rivalling(rival)
                    }
                    _ => Fault::unreadable(leaf, at),
                };
                let blamed = if striped { &child } else { leaf };
                let fault = fault.blaming(blamed).laid_out_by(vdev, &part.widths, column.in_row);
                faults.push(if written { fault.with_right(right.clone()) } else { fault });
            }
        }
        true
    }

    /// Reads a batch of blocks that leaves lack, in the class of scrubs. Results are in the order of `reqs`; what they
    /// say of leaves is not counted yet.
    pub fn lacking_many(&self, reqs: &[BlockRead<'_>]) -> Vec<Checked> {
        let read = self.read_many_as(Priority::Scrub, reqs);
        let lacking = |(req, outcome): (&BlockRead<'_>, Outcome<Result<Abd, VdevError>>)| {
            let Outcome { block, mut faults } = outcome;
            let mut left = Vec::new();
            if let Ok(block) = &block {
                let (lacks, others) = self.lacks_of(req, Some(block));
                faults.extend(lacks);
                left = others;
            }
            Checked { block, faults, left }
        };
        reqs.iter().zip(read).map(lacking).collect()
    }

    /// Which leaves lack a block and take writes, and the guids of those that do not. Without the block none can be
    /// given it.
    pub fn lacks_of(&self, req: &BlockRead<'_>, block: Option<&Abd>) -> (Vec<Fault>, Vec<u64>) {
        let (mut faults, mut left, mut at) = (Vec::new(), Vec::new(), 0);
        let Ok((_, pieces)) = self.resolve(req) else {
            // A pointer that leads nowhere is the lack of no leaf: it would be so for ever. But where mappings are not
            // loaded any leaf that lacks the group may lack the block.
            let known = self.knows_mappings();
            let lacks = self.leaves().into_iter().filter(|leaf| !known && leaf.lacks(req.txg));
            return (faults, lacks.map(|leaf| leaf.guid()).collect());
        };
        for place in pieces {
            let slice = block.and_then(|block| block.slice(at, place.size));
            at += place.size;
            self.lacking(place, slice.as_ref(), &mut faults, &mut left);
        }
        (faults, left)
    }

    /// Whether the mappings of all removed vdevs are loaded.
    fn knows_mappings(&self) -> bool {
        let maps = self.maps.read();
        let removed = self.root.children().iter().filter(|top| top.vdev_kind() == Kind::Indirect);
        removed.map(|top| top.id()).all(|id| maps.contains_key(&id))
    }

    /// Reports what leaves lack of a part of a block, whose bytes are known if it could be read.
    fn lacking(
        &self,
        place: Place<'_>,
        block: Option<&Abd>,
        faults: &mut Vec<Fault>,
        left: &mut Vec<u64>,
    ) {
        let mut leaves = Vec::new();
        place.vdev.collect_leaves(&mut leaves);
        leaves.retain(|leaf| leaf.lacks(place.txg));
        if leaves.is_empty() {
            return;
        }
        let (vdev, at, widths) = (place.vdev, (place.offset, place.txg), place.vdev.widths());
        // A device that lacked a copy when it was made gets that, too: it is not made again.
        let expected = block.and_then(|b| self.laid_out_with_copies(vdev, &widths, at, b));
        let Some(expected) = expected else {
            return left.extend(leaves.iter().map(|leaf| leaf.guid()));
        };
        for (child, offset, right) in expected {
            let mut below = Vec::new();
            mirror::reach(&child, offset, &mut below);
            below.retain(|leaf| leaf.lacks(place.txg));
            for leaf in below {
                if leaf.writable() && leaf.is_distributed() {
                    // Those of its leaves that take no writes lack it from now on, and the spare does not.
                    let (takes, absent) = mirror::takers(&leaf, offset);
                    absent.iter().for_each(|leaf| lag(leaf, place.txg));
                    if !takes {
                        continue;
                    }
                }
                match leaf.writable() {
                    true => faults.push(
                        Fault::lacks(&leaf, offset, right.clone()).laid_out_by(vdev, &widths, None),
                    ),
                    false => left.push(leaf.guid()),
                }
            }
        }
    }

    /// From now on a leaf counts as lacking the groups `txgs`, as a new device lacks all (`vdev_dtl_dirty`). They go into
    /// its dirty time log with what [`VdevTree::take_missed`] takes.
    ///
    /// Errors: there is no such leaf.
    pub fn miss(&self, leaf: u64, txgs: std::ops::Range<u64>) -> Result<(), VdevError> {
        let vdev = self.find(leaf).filter(|v| v.is_leaf()).ok_or(VdevError::NoVdev(leaf))?;
        vdev.lags(txgs);
        Ok(())
    }

    /// Whether all leaves of a top-level vdev can be read; of one that was removed, all leaves of the tree.
    pub fn has_all_devices(&self, vdev: u64) -> bool {
        let Some(top) = self.top(vdev) else { return true };
        let mut leaves = Vec::new();
        match top.vdev_kind() {
            Kind::Indirect => leaves = self.leaves(),
            _ => top.collect_leaves(&mut leaves),
        }
        leaves.iter().all(|leaf| leaf.opened_state().readable())
    }

    /// Whether a leaf of top-level vdev `vdev` may lack blocks of transaction group `txg` (`vdev_dtl_need_resilver`,
    /// `vdev_raidz_need_resilver`). What lay on a vdev that was removed may be on any of the others.
    pub fn needs_resilver(&self, vdev: u64, txg: u64) -> bool {
        let mut leaves = Vec::new();
        match self.top(vdev).filter(|top| top.vdev_kind() != Kind::Indirect) {
            Some(top) => top.collect_leaves(&mut leaves),
            None => self.root().collect_leaves(&mut leaves),
        }
        leaves.iter().any(|leaf| leaf.lacks(txg))
    }

    /// Writes the right bytes of `faults`, each with the physical birth of its block, as [`VdevTree::heal`] does: all
    /// of them at a time at which nothing else is written, if `current` says then that the blocks are still allocated.
    /// `None`: they may not be, and nothing was written.
    ///
    /// What leaves take is counted as scanned, and of wrong bytes as self-healed.
    pub fn repair_many(
        &self,
        faults: &[(u64, Fault)],
        current: &dyn Fn() -> bool,
    ) -> Option<Repaired> {
        let mut done = Repaired::default();
        let mut planned = Vec::new();
        for (txg, fault) in faults {
            match fault.repairs(*txg).is_empty() {
                false => planned.push((*txg, fault)),
                true => done.note_left(*txg, fault),
            }
        }
        if !current() {
            return None;
        }
        // What cannot be mended in all its copies fails alone.
        let (of_removed, others): (Vec<_>, Vec<_>) =
            planned.into_iter().partition(|(_, fault)| self.is_of_removed(fault.leaf()));
        for planned in [others, of_removed] {
            self.repair_planned(&planned, current, &mut done)?;
        }
        self.look_after();
        Some(done)
    }

    /// The same, of repairs that there are. `None`: the blocks may not be allocated any more.
    fn repair_planned(
        &self,
        planned: &[(u64, &Fault)],
        current: &dyn Fn() -> bool,
        done: &mut Repaired,
    ) -> Option<()> {
        let mut rest = planned;
        while !rest.is_empty() {
            // Little at a time: all other writes wait.
            let mut bytes = 0;
            let few = rest.iter().take_while(|(_, fault)| {
                let first = bytes == 0;
                bytes += fault.len();
                first || bytes <= MOST_ALONE
            });
            let (piece, others) = rest.split_at(few.count());
            rest = others;
            let repairs = || piece.iter().flat_map(|(txg, fault)| fault.repairs(*txg)).collect();
            let alone = match self.alone_for_repairs(&repairs, current) {
                Ok(alone) => alone,
                Err(NotRepaired::Gone) => return None,
                Err(NotRepaired::Failed) => {
                    let failed = |(txg, fault): &(u64, &Fault)| (fault.leaf().guid(), *txg);
                    done.failed.extend(piece.iter().map(failed));
                    continue;
                }
            };
            let batch = self.note_repairs(piece.iter().map(|(_, fault)| *fault));
            let (mut writes, mut notes) = (Vec::new(), Vec::new());
            for (txg, fault) in piece {
                // Since they were looked at they may have moved.
                let repairs = fault.repairs(*txg);
                if repairs.is_empty() {
                    done.note_left(*txg, fault);
                }
                notes.extend(repairs.iter().map(|_| (*txg, *fault)));
                writes.extend(repairs);
            }
            let results = write_leaves(&self.writer, Priority::AsyncWrite, &writes);
            for (write, (txg, fault)) in writes.iter().zip(&notes) {
                // Leaves that its place is on may have gone out since they were asked, and none has come back.
                if fault.is_lack() && write.leaf.is_distributed() {
                    mirror::absent(&write.leaf, write.offset).iter().for_each(|l| lag(l, *txg));
                }
            }
            drop((batch, alone));
            for ((write, (txg, fault)), result) in writes.iter().zip(notes).zip(&results) {
                done.note(write, txg, fault.is_lack(), result.is_ok());
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use cenote_format::LABEL_START;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{self, Leaf, leaves, tree};

    const TXG: u64 = 10;

    fn check(t: &VdevTree, offset: u64, data: &[u8]) -> Checked {
        let verify = |abd: &Abd| *abd.bytes() == *data;
        let size = data.len() as u64;
        let req = BlockRead { vdev: 0, offset, size, txg: TXG, verify: &verify };
        t.check_many(&[req]).pop().unwrap()
    }

    fn repaired(t: &VdevTree, checked: Checked) -> Option<Repaired> {
        let faults: Vec<(u64, Fault)> = checked.faults.into_iter().map(|f| (TXG, f)).collect();
        t.repair_many(&faults, &|| true)
    }

    /// What leaves hold, byte for byte.
    fn contents(disks: &[Leaf]) -> Vec<Vec<u8>> {
        disks.iter().map(|d| d.memory.bytes().clone()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Whatever is wrong on as many leaves as can be spared, parity too, is found there, and nowhere else, and is as
        /// it was before.
        #[test]
        fn every_copy_is_checked(
            nparity in 0u64..4, more in 1usize..4, four_k: bool, sector in 0u64..300,
            len in 1usize..40_000, which in any::<u16>(), unreadable in any::<u16>(),
        ) {
            let width = nparity as usize + more + usize::from(nparity == 0);
            let disks = leaves(width, 2 << 20);
            let ashift = if four_k && nparity > 0 { 12 } else { 9 };
            let data: Vec<u8> = (0..len).map(|i| (i * 31 + i / 251) as u8).collect();
            let offset = sector << ashift;
            let vdev = match nparity {
                0 => {
                    disks.iter().for_each(|disk| disk.write(offset, &data));
                    testing::mirror_like(Kind::Mirror, 0, testing::files(&disks))
                }
                n => {
                    let vdev = testing::raidz(n, ashift, testing::files(&disks));
                    testing::write_raidz(&vdev, &disks, offset, &data);
                    vdev
                }
            };
            let t = tree(vec![vdev]);
            let before = contents(&disks);
            let clean = check(&t, offset, &data);
            prop_assert!(clean.block.is_ok() && clean.faults.is_empty());
            let spare = if nparity == 0 { width - 1 } else { nparity as usize };
            let picked: Vec<usize> = (0..width).filter(|c| which >> c & 1 == 1).take(spare).collect();
            let columns = t.columns_of((0, offset, TXG), &Abd::from_vec(data.clone())).unwrap();
            let mut spoiled = 0;
            for (child, at, bytes) in &columns {
                for c in &picked {
                    if nparity > 0 && child.id() != *c as u64 {
                        continue;
                    }
                    let at = LABEL_START + at;
                    // A block has no bytes in the rest of its last sector on a mirror.
                    let len = if nparity == 0 { data.len() } else { bytes.len() };
                    if unreadable >> c & 1 == 1 {
                        disks[*c].faults.fail(at..at + len as u64);
                    }
                    let range = at as usize..at as usize + len;
                    disks[*c].memory.bytes()[range].iter_mut().for_each(|b| *b ^= 0x55);
                    spoiled += 1;
                }
            }
            let found = check(&t, offset, &data);
            prop_assert!(found.block.is_ok());
            prop_assert_eq!(found.faults.len(), spoiled);
            let is_due = |f: &Fault| {
                let leaf = f.leaf().id() as usize;
                picked.contains(&leaf) && f.is_mismatch() == (unreadable >> leaf & 1 == 0)
            };
            prop_assert!(found.faults.iter().all(is_due));
            prop_assert!(repaired(&t, found).unwrap().failed.is_empty());
            disks.iter().for_each(|disk| disk.faults.repair());
            prop_assert!(contents(&disks) == before);
            prop_assert!(check(&t, offset, &data).faults.is_empty());
        }
    }

    /// A block within a sector, as that of a removed vdev with smaller ones, is checked all the same; one that cannot be there is
    /// an error.
    #[test]
    fn blocks_within_sectors_are_checked() {
        let disks = leaves(2, 4 << 20);
        let top = testing::mirror_of(12, testing::files(&disks));
        let t = tree(vec![top]);
        let data = [7; 1536];
        disks.iter().for_each(|disk| disk.write(512, &data));
        assert!(check(&t, 512, &data).faults.is_empty());
        disks[1].write(1024, &[1; 16]);
        let found = check(&t, 512, &data);
        let wrong: Vec<u64> = found.faults.iter().map(|f| f.leaf().id()).collect();
        assert!(found.block.is_ok());
        assert_eq!(wrong, [1]);
        // What else is in the sector is not known: nothing is written.
        let before = contents(&disks);
        assert_eq!(repaired(&t, found).unwrap().bytes, 0);
        assert!(contents(&disks) == before);
    }

    fn mirror(n: usize) -> (VdevTree, Vec<Leaf>) {
        let disks = leaves(n, 4 << 20);
        let top = testing::mirror_like(Kind::Mirror, 0, testing::files(&disks));
        (tree(vec![top]), disks)
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init)]
    fn only_what_is_lacking_is_written() {
        let (t, disks) = mirror(3);
        let data = [7; 1024];
        disks[0].write(2048, &data);
        disks[2].write(2048, &[1; 1024]);
        t.set_dtl(t.leaves()[1].guid(), vec![5..20]).unwrap();
        let verify = |abd: &Abd| *abd.bytes() == data;
        let req = BlockRead { vdev: 0, offset: 2048, size: 1024, txg: TXG, verify: &verify };
        // A scrub does not look at what is known to be missing.
        let checked = t.check_many(std::slice::from_ref(&req)).pop().unwrap();
        let wrong: Vec<u64> = checked.faults.iter().map(|f| f.leaf().id()).collect();
        assert_eq!(wrong, [2]);
        assert!(t.needs_resilver(0, TXG) && !t.needs_resilver(0, 20));
        let mut lacking = t.lacking_many(std::slice::from_ref(&req)).pop().unwrap();
        lacking.faults.retain(Fault::is_lack);
        let before = disks.iter().map(|d| d.faults.writes()).collect::<Vec<_>>();
        let lacks: Vec<(u64, Fault)> = lacking.faults.into_iter().map(|f| (TXG, f)).collect();
        // Nothing, if the block may have gone.
        assert!(t.repair_many(&lacks, &|| false).is_none());
        assert_eq!(t.repair_many(&lacks, &|| true).unwrap().bytes, 1024);
        let after = disks.iter().map(|d| d.faults.writes()).collect::<Vec<_>>();
        assert_eq!(after, [before[0], before[1] + 1, before[2]]);
        assert!(t.leaves().iter().all(|leaf| leaf.errors() == (0, 0, 0)));
        // What could not be given stays.
        let left = [10..11];
        assert_eq!(t.leaves()[1].lacks_after(&[5..20], &left), left);
        // A write that fails meanwhile: the leaf is told first, and its log a moment later.
        t.leaves()[1].written().add_missed(25..26);
        assert_eq!(t.leaves()[1].lacks_after(&[5..20], &left), [10..11, 25..26]);
        drop(t.take_missed());
        // A pointer that leads nowhere is no lack of a leaf.
        let nowhere = BlockRead { vdev: 7, offset: 2048, size: 1024, txg: TXG, verify: &verify };
        assert!(t.lacks_of(&nowhere, None).1.is_empty());
        t.leaves()[1].excise(&[5..20], &left);
        assert_eq!(t.leaves()[1].missing(), left);
        assert!(t.take_out(t.leaves()[1].guid(), crate::VdevState::Offline));
        let left = t.lacking_many(&[req]).pop().unwrap().left;
        assert_eq!(left, [t.leaves()[1].guid()]);
    }
}
