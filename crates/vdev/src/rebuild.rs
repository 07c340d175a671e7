//! Copying what a top-level vdev holds to leaves that lack it, by place and not by block (`vdev_mirror_io_start` and
//! `vdev_draid_io_start` of a rebuild).
//!
//! A piece has no checksum: it is whatever is allocated there, blocks or parts of blocks. So it is read only from leaves that
//! lack nothing at all, and written only to those that are rebuilt. On a mirror it is copied: from the device that is being
//! replaced, if that works, so that what the mirror had on two devices is on two afterwards; else from another side. On dRAID a
//! piece is whole lines within one group: the column of a child that has nothing is made of the others with their parity.
//!
//! A piece of which something cannot be read is divided, down to sectors, or lines of dRAID. What cannot be read then is told, and
//! nothing is written there. A piece that no leaf has is not divided.
//!
//! Blocks are written meanwhile: see `crate::write`'s `copying`. A piece is claimed before it is read. If a block was written there
//! since the vdev was last flushed, it is flushed then: either a source keeps the block, or it is known to lack it and is no source.
//! So a copy never replaces a block that was written to the target since it joined with what was there before. (OpenZFS has nothing
//! allocated in the metaslab that it copies, and waits for its groups, `metaslab_disable`. Blocks of intent logs are written to
//! space that was allocated long before.)
//!
//! What is written is durable after a flush, if the leaf stands as it did ([`Standing`]). Copies under way to a leaf are counted
//! (`crate::vacant`), and none begins on a leaf that is leaving: a device is let go when no copy to it is under way.
//!
//! Invariants: no lock is held while a source is read; a source is healthy and lacks nothing; of a piece that is copied all blocks that
//! were written before it was claimed are durable on its sources.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cenote_format::abd::Abd;

use crate::device::Device;
use crate::queue::Priority;
use crate::raidz::math;
use crate::state::VdevState;
use crate::submit::{LeafRead, Submit, read_leaves};
use crate::traffic::Content;
use crate::tree::{self, VdevTree};
use crate::vdev::{Kind, Vdev};
use crate::write::copying::{Claim, Place};
use crate::write::{LeafWrite, write_leaves};
use crate::{VdevError, mirror};

/// How often pieces are read that blocks were written to meanwhile, or of which something was repaired.
const TRIES: u32 = 8;
/// So often all that is left is claimed at once; then piece by piece, and writes to a piece wait until it is copied.
const TOGETHER: u32 = 4;
/// Into so many parts a piece is divided of which something cannot be read.
const PARTS: u64 = 8;

/// What came of copying pieces.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Bytes that were written to leaves.
    pub bytes: u64,
    /// Pieces, or parts of them, that no leaf could be read for.
    pub unread: u64,
    /// Guids of leaves that did not take something.
    pub failed: BTreeSet<u64>,
    /// Pieces that were not copied, in order: each time that they were read something was repaired there.
    pub left: Vec<(u64, u64)>,
}

/// How a leaf stands: if it stands so again after a flush that succeeded, it has kept all that was written to it in between.
#[derive(Clone)]
pub struct Standing {
    device: Option<Arc<dyn Device>>,
    flush_failures: u64,
    dtl_changes: u64,
}

impl PartialEq for Standing {
    fn eq(&self, other: &Standing) -> bool {
        let same = match (&self.device, &other.device) {
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
            _ => false,
        };
        same && (self.flush_failures, self.dtl_changes) == (other.flush_failures, other.dtl_changes)
    }
}

impl Vdev {
    /// See [`Standing`]. Without a device a leaf stands as it never does again.
    pub fn standing(&self) -> Standing {
        let flush_failures = self.written().flush_failures();
        Standing { device: self.device(), flush_failures, dtl_changes: self.dtl_changes() }
    }

    /// Whether this top-level vdev is one that is rebuilt by place: a mirror, dRAID, or one device that is being replaced.
    pub fn can_rebuild(&self) -> bool {
        matches!(self.kind, Kind::Mirror | Kind::Replacing | Kind::Spare | Kind::Draid)
    }

    /// The largest piece of a range of this top-level vdev, at `start` and of `size` bytes, that is copied at once, with `segment`
    /// bytes of each device that has data (`vdev_op_rebuild_asize`).
    pub fn rebuild_piece(&self, start: u64, size: u64, segment: u64) -> u64 {
        let sector = 1u64 << self.ashift().min(16);
        let segment = segment.clamp(sector, cenote_format::MAX_BLOCK) / sector * sector;
        match &self.draid {
            None => size.min(segment),
            Some(layout) => {
                let shape = layout.shape();
                let line = shape.line(self.ashift());
                let most = (cenote_format::MAX_BLOCK / (shape.ndata << self.ashift())).max(1);
                let lines = (segment / sector).clamp(1, most);
                size.min(lines.saturating_mul(line)).min(layout.left_of_group(start))
            }
        }
    }

    /// The smallest piece of this top-level vdev.
    fn least_piece(&self) -> u64 {
        self.draid().map_or(1 << self.ashift().min(16), |shape| shape.line(self.ashift()))
    }
}

/// What a child of a top-level vdev has of a piece: of a mirror the vdev itself, all of it.
struct Column {
    child: Arc<Vdev>,
    offset: u64,
    len: usize,
    /// The leaves below that are rebuilt.
    targets: Vec<Arc<Vdev>>,
}

/// Something to be written to leaves.
struct Copy {
    targets: Vec<Arc<Vdev>>,
    offset: u64,
    data: Abd,
}

/// What was read ahead: by leaf, offset and bytes.
type Ahead = HashMap<(u64, u64, usize), Option<Abd>>;

/// Whether a leaf has all that was ever written to it. One that did not answer may be another device by now.
fn is_whole(leaf: &Vdev) -> bool {
    leaf.device().is_some() && leaf.opened_state() == VdevState::Healthy && !leaf.is_behind()
}

/// The whole leaves below `vdev` that hold the same as `target`, the closest to it first.
fn sources(vdev: &Arc<Vdev>, target: &Vdev) -> Vec<Arc<Vdev>> {
    let is_above = |child: &&Arc<Vdev>| {
        let mut leaves = Vec::new();
        child.collect_leaves(&mut leaves);
        leaves.iter().any(|leaf| leaf.is_same(target))
    };
    let closer = vdev.children().iter().find(is_above);
    let mut found = closer.map(|child| sources(child, target)).unwrap_or_default();
    let mut all = Vec::new();
    mirror::copies(vdev, &mut all);
    all.retain(|leaf| is_whole(leaf) && !found.iter().any(|known| known.is_same(leaf)));
    // Those that have nothing to do come first.
    all.sort_by_key(|leaf| (leaf.stats.activity.hangs(), leaf.stats.reads.in_flight()));
    found.extend(all);
    // A device that hangs is asked last, however close it is.
    found.sort_by_key(|leaf| leaf.stats.activity.hangs());
    found
}

/// Where a piece is.
fn columns(top: &Arc<Vdev>, (offset, size): (u64, u64), guids: &[u64]) -> Option<Vec<Column>> {
    if !top.can_rebuild() {
        return None;
    }
    let column = |child: &Arc<Vdev>, offset: u64, len: usize| {
        let mut targets = Vec::new();
        mirror::copies(child, &mut targets);
        targets.retain(|leaf| guids.contains(&leaf.guid()));
        Column { child: child.clone(), offset, len, targets }
    };
    let Some(shape) = top.draid() else {
        return Some(vec![column(top, offset, usize::try_from(size).ok()?)]);
    };
    let psize = size / shape.line(top.ashift()) * (shape.ndata << top.ashift());
    let rows = top.stripes(&top.widths(), (offset, psize), 0)?;
    let extents = rows.into_iter().flat_map(|row| row.columns);
    extents.map(|e| Some(column(top.children().get(e.child)?, e.offset, e.len))).collect()
}

/// What comes of a piece.
enum Made {
    Copies(Vec<Copy>),
    /// Something cannot be read: its parts may be.
    Divide,
    /// Nothing can be copied of it.
    Nothing,
}

/// Copies pieces of a top-level vdev.
struct Copier<'a> {
    tree: &'a VdevTree,
    top: &'a Arc<Vdev>,
    targets: &'a [u64],
}

impl Copier<'_> {
    /// What is read of a piece first.
    fn first_reads(&self, piece: (u64, u64), reads: &mut Vec<LeafRead>) {
        let Some(columns) = columns(self.top, piece, self.targets) else { return };
        let mut is_made = false;
        for column in columns.iter() {
            for target in &column.targets {
                match sources(&column.child, target).into_iter().next() {
                    Some(leaf) => {
                        reads.push(LeafRead { leaf, offset: column.offset, len: column.len })
                    }
                    None => is_made = true,
                }
            }
        }
        if is_made && self.top.draid().is_some() {
            for (_, column) in self.for_making(&columns) {
                if let Some(leaf) = whole_of(&column.child).into_iter().next() {
                    reads.push(LeafRead { leaf, offset: column.offset, len: column.len });
                }
            }
        }
    }

    /// The columns of a stripe of dRAID of which another one is made, data first, each with its number.
    fn for_making<'b>(&self, columns: &'b [Column]) -> Vec<(usize, &'b Column)> {
        let nparity = usize::try_from(self.top.nparity()).unwrap_or(0).min(columns.len());
        let (parity, data) = columns.split_at(nparity);
        let numbered =
            data.iter().enumerate().map(|(i, column)| (i.saturating_add(nparity), column));
        let all = numbered.chain(parity.iter().enumerate());
        all.filter(|(_, column)| !whole_of(&column.child).is_empty()).take(data.len()).collect()
    }

    /// Reads a column from the first of `leaves` that can be read.
    fn read(
        &self,
        leaves: &[Arc<Vdev>],
        at: (u64, usize),
        ahead: &Ahead,
        quiet: bool,
    ) -> Option<Abd> {
        let (offset, len) = at;
        leaves.iter().find_map(|leaf| match ahead.get(&(leaf.guid(), offset, len)) {
            Some(known) => known.clone(),
            None => {
                let submit = Submit { quiet, ..Submit::new(&self.tree.pool, Priority::Rebuild) };
                let read = LeafRead { leaf: leaf.clone(), offset, len };
                let done = read_leaves(submit.patient(), &[read]).pop();
                done.and_then(|done| Some(done.ok()?.into_own()))
            }
        })
    }

    /// What is to be written of a piece.
    fn copies(&self, piece: (u64, u64), ahead: &Ahead, quiet: bool) -> Made {
        let Some(columns) = columns(self.top, piece, self.targets) else { return Made::Nothing };
        let divides = piece.1 > self.top.least_piece();
        let unread = if divides { Made::Divide } else { Made::Nothing };
        let (mut copies, mut made) = (Vec::new(), Vec::new());
        for (number, column) in columns.iter().enumerate() {
            for target in &column.targets {
                let mut leaves = sources(&column.child, target);
                if leaves.is_empty() {
                    made.push((number, target.clone()));
                    continue;
                }
                // What the closest has is not taken from others for a few bad sectors.
                leaves.truncate(if divides { 1 } else { leaves.len() });
                match self.read(&leaves, (column.offset, column.len), ahead, quiet) {
                    Some(data) => {
                        let (targets, offset) = (vec![target.clone()], column.offset);
                        copies.push(Copy { targets, offset, data });
                    }
                    None if divides => return unread,
                    None => made.push((number, target.clone())),
                }
            }
        }
        if made.is_empty() {
            return Made::Copies(copies);
        }
        if self.top.draid().is_none() {
            return Made::Nothing;
        }
        let mut numbers: Vec<usize> = made.iter().map(|(number, _)| *number).collect();
        numbers.dedup();
        if self.too_few(&columns, &numbers) {
            return Made::Nothing;
        }
        let Some(all) = self.make(&columns, &numbers, ahead, quiet) else { return unread };
        for (number, data) in all {
            let mine = made.iter().filter(|(of, _)| *of == number);
            let targets = mine.map(|(_, target)| target.clone()).collect();
            let Some(offset) = columns.get(number).map(|column| column.offset) else { continue };
            copies.push(Copy { targets, offset, data });
        }
        Made::Copies(copies)
    }

    /// Whether too few columns of a stripe of dRAID are on whole leaves to make others of them.
    fn too_few(&self, columns: &[Column], wanted: &[usize]) -> bool {
        let nparity = usize::try_from(self.top.nparity()).unwrap_or(0).min(columns.len());
        let others = columns.iter().enumerate().filter(|(number, _)| !wanted.contains(number));
        let whole = others.filter(|(_, column)| !whole_of(&column.child).is_empty()).count();
        whole < columns.len() - nparity
    }

    /// Makes the columns `wanted` of a stripe of dRAID of the others.
    fn make(
        &self,
        columns: &[Column],
        wanted: &[usize],
        ahead: &Ahead,
        quiet: bool,
    ) -> Option<Vec<(usize, Abd)>> {
        let nparity = usize::try_from(self.top.nparity()).ok()?;
        let ndata = columns.len().checked_sub(nparity)?;
        let data = (nparity..columns.len()).chain(0..nparity);
        let mut known: HashMap<usize, Vec<u8>> = HashMap::new();
        for number in data.filter(|number| !wanted.contains(number)) {
            if known.len() == ndata {
                break;
            }
            let column = columns.get(number)?;
            let leaves = whole_of(&column.child);
            if let Some(read) = self.read(&leaves, (column.offset, column.len), ahead, quiet) {
                known.insert(number, read.bytes().to_vec());
            }
        }
        let len = columns.first()?.len;
        let mut all: Vec<Vec<u8>> = Vec::with_capacity(ndata);
        let mut lost = Vec::new();
        for (i, number) in (nparity..columns.len()).enumerate() {
            let read = known.remove(&number);
            if read.is_none() {
                lost.push(i);
            }
            all.push(read.unwrap_or_else(|| vec![0; len]));
        }
        let parities: Vec<(usize, &[u8])> =
            (0..nparity).filter_map(|k| Some((k, known.get(&k)?.as_slice()))).collect();
        let mut places: Vec<&mut [u8]> = all.iter_mut().map(Vec::as_mut_slice).collect();
        math::reconstruct(&mut places, &lost, &parities)?;
        let made = |number: usize| match number.checked_sub(nparity) {
            Some(i) => all.get(i).cloned(),
            None => {
                let mut parity = vec![0; len];
                math::parity_of(number, all.iter().map(Vec::as_slice), &mut parity);
                Some(parity)
            }
        };
        wanted.iter().map(|number| Some((*number, Abd::from_vec(made(*number)?)))).collect()
    }

    /// What is to be written of some pieces, piece by piece, as far as it can be read; and the parts that cannot.
    fn gather(&self, pieces: &[(u64, u64)]) -> Vec<(Vec<Copy>, u64)> {
        let mut reads = Vec::new();
        pieces.iter().for_each(|piece| self.first_reads(*piece, &mut reads));
        let key = |read: &LeafRead| (read.leaf.guid(), read.offset, read.len);
        let mut keys = BTreeSet::new();
        reads.retain(|read| keys.insert(key(read)));
        let submit = Submit::new(&self.tree.pool, Priority::Rebuild).patient();
        let read = read_leaves(submit, &reads).into_iter();
        let own = read.map(|piece| Some(piece.ok()?.into_own()));
        let ahead: Ahead = reads.iter().map(key).zip(own).collect();
        if ahead.values().any(Option::is_none) {
            // A device that does not answer is not asked for each sector.
            self.tree.look_after();
        }
        pieces.iter().map(|piece| self.divided(*piece, &ahead, false)).collect()
    }

    /// The same of a piece, which is divided where it cannot be read. What fails counts as an error of its device once.
    fn divided(&self, piece: (u64, u64), ahead: &Ahead, quiet: bool) -> (Vec<Copy>, u64) {
        match self.copies(piece, ahead, quiet) {
            Made::Copies(copies) => return (copies, 0),
            Made::Nothing => return (Vec::new(), 1),
            Made::Divide => {}
        }
        let (start, size) = piece;
        let least = self.top.least_piece();
        let part = (size / PARTS / least).max(1).saturating_mul(least);
        let (mut copies, mut unread, mut at) = (Vec::new(), 0u64, 0);
        while at < size {
            let piece = (start.saturating_add(at), part.min(size - at));
            let (more, missing) = self.divided(piece, &Ahead::new(), true);
            copies.extend(more);
            unread = unread.saturating_add(missing);
            at = at.saturating_add(part);
        }
        (copies, unread)
    }

    fn write(&self, copies: &[Copy], done: &mut Rebuilt) {
        let write = |copy: &Copy, leaf: &Arc<Vdev>| {
            let (data, content) = (copy.data.clone(), Content::Repair);
            // Nothing is missed if it fails: the leaf lacks it anyway, until the rebuild has ended.
            LeafWrite { leaf: leaf.clone(), offset: copy.offset, data, txg: 0, content }
        };
        let each =
            || copies.iter().flat_map(|copy| copy.targets.iter().map(move |leaf| (copy, leaf)));
        // Counted before the leaf is looked at: it is marked as leaving, or loses its device, before the count is looked at.
        let _under_way: Vec<_> = each().map(|(_, leaf)| leaf.vacant.begin()).collect();
        let takes = |leaf: &Vdev| leaf.writable() && !leaf.is_leaving();
        let (there, away): (Vec<_>, Vec<_>) = each().partition(|(_, leaf)| takes(leaf));
        done.failed.extend(away.iter().map(|(_, leaf)| leaf.guid()));
        let writes: Vec<LeafWrite> =
            there.into_iter().map(|(copy, leaf)| write(copy, leaf)).collect();
        let results = write_leaves(&self.tree.writer, Priority::Rebuild, &writes);
        for (write, result) in writes.iter().zip(results) {
            match result {
                Ok(()) => {
                    write.leaf.stats.scanned(write.data.len());
                    done.bytes = done.bytes.saturating_add(write.data.len() as u64);
                }
                Err(_) => drop(done.failed.insert(write.leaf.guid())),
            }
        }
    }
}

/// The whole leaves of a child of dRAID.
fn whole_of(child: &Arc<Vdev>) -> Vec<Arc<Vdev>> {
    let mut leaves = Vec::new();
    mirror::copies(child, &mut leaves);
    leaves.retain(|leaf| is_whole(leaf));
    leaves.sort_by_key(|leaf| leaf.stats.activity.hangs());
    leaves
}

impl Copier<'_> {
    /// What a claim on a piece keeps.
    fn place(&self, (start, size): (u64, u64)) -> Place {
        let mut on_leaves = Vec::new();
        for column in columns(self.top, (start, size), self.targets).unwrap_or_default() {
            let mut leaves = Vec::new();
            mirror::copies(&column.child, &mut leaves);
            let end = column.offset.saturating_add(column.len as u64);
            on_leaves.extend(leaves.iter().map(|leaf| (leaf.guid(), column.offset..end)));
        }
        Place { range: start..start.saturating_add(size), on_leaves }
    }

    /// Claims pieces, of which all that was written is durable on their sources then.
    fn claim(&self, pieces: &[(u64, u64)], reserved: bool) -> Result<Claim<'_>, VdevError> {
        let (writer, vdev) = (&self.tree.writer, self.top.id());
        let places: Vec<Place> = pieces.iter().map(|piece| self.place(*piece)).collect();
        let ranges: Vec<_> = places.iter().map(|place| place.range.clone()).collect();
        let claim = {
            // What is being written now is not read by half, and who lacks what was written is known.
            let _alone = writer.healing.write();
            writer.copying.claim(vdev, places, reserved)
        };
        // What is written from now on spoils the claim.
        if ranges.iter().any(|range| writer.unflushed.meets(vdev, range)) {
            self.tree.flush_tops(&[vdev])?;
        }
        Ok(claim)
    }

    /// Copies pieces that are claimed together, but for those that are left.
    fn copy(
        &self,
        pieces: &[(u64, u64)],
        reserved: bool,
        done: &mut Rebuilt,
    ) -> Result<(), VdevError> {
        let claim = self.claim(pieces, reserved)?;
        let gathered = self.gather(pieces);
        // Nothing is repaired meanwhile.
        let _beside = self.tree.writer.healing.read();
        let mut copies = Vec::new();
        for ((piece, holds), (of_piece, unread)) in
            pieces.iter().zip(claim.begin_write()).zip(gathered)
        {
            match holds {
                true => {
                    copies.extend(of_piece);
                    done.unread += unread;
                }
                false => done.left.push(*piece),
            }
        }
        self.write(&copies, done);
        Ok(())
    }
}

impl VdevTree {
    /// Copies pieces of a top-level vdev, each (byte, bytes) no larger than [`Vdev::rebuild_piece`] says, to the leaves with the
    /// guids `targets`.
    ///
    /// Errors: there is no such vdev; what was written to it may be lost.
    pub fn rebuild_many(
        &self,
        vdev: u64,
        pieces: &[(u64, u64)],
        targets: &[u64],
    ) -> Result<Rebuilt, VdevError> {
        let top = tree::top(self.root().children(), vdev)?;
        let copier = Copier { tree: self, top, targets };
        let mut done = Rebuilt { left: pieces.to_vec(), ..Rebuilt::default() };
        for round in 0..TRIES {
            let todo = std::mem::take(&mut done.left);
            let reserved = round >= TOGETHER;
            let at_once = if reserved { 1 } else { todo.len().max(1) };
            for some in todo.chunks(at_once) {
                copier.copy(some, reserved, &mut done)?;
            }
        }
        self.look_after();
        Ok(done)
    }

    /// Whether something can be copied to any of the leaves `targets` of a top-level vdev, as its devices are now.
    pub fn has_source(&self, vdev: u64, targets: &[u64]) -> bool {
        let Some(top) = self.top(vdev).filter(|top| top.can_rebuild()) else { return false };
        match top.draid() {
            Some(shape) => {
                let whole = top.children().iter().filter(|child| !whole_of(child).is_empty());
                whole.count() as u64 >= shape.ndata
            }
            None => {
                let mut leaves = Vec::new();
                mirror::copies(top, &mut leaves);
                leaves.iter().any(|leaf| is_whole(leaf) && !targets.contains(&leaf.guid()))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use cenote_format::LABEL_START;

    use super::*;
    use crate::testing::{self, Leaf, leaves, tree};
    use crate::vdev::Kind;
    use crate::write::BlockWrite;

    const TXG: u64 = 10;

    fn block(offset: u64, data: Vec<u8>) -> BlockWrite {
        let (data, content) = (Abd::from_vec(data), Content::Data);
        BlockWrite { vdev: 0, offset, data, txg: TXG, content, sides: Vec::new() }
    }

    fn bytes(seed: u64, len: usize) -> Vec<u8> {
        (0..len as u64).map(|i| (i * 31 + seed * 7 + i / 251) as u8 | 1).collect()
    }

    /// What a leaf holds from the first byte of its allocatable space on.
    fn held(disk: &Leaf, range: std::ops::Range<usize>) -> Vec<u8> {
        let at = LABEL_START as usize;
        disk.memory.bytes()[at + range.start..at + range.end].to_vec()
    }

    /// The pieces of the first bytes of top-level vdev 0.
    fn pieces(t: &VdevTree, end: u64, segment: u64) -> Vec<(u64, u64)> {
        let (top, mut at, mut all) = (t.top(0).unwrap(), 0, Vec::new());
        while at < end {
            let size = top.rebuild_piece(at, end - at, segment);
            all.push((at, size));
            at += size;
        }
        all
    }

    /// A leaf lacks everything.
    fn lacks(t: &VdevTree, leaf: &Vdev) {
        t.set_dtl(leaf.guid(), vec![1..TXG + 5]).unwrap();
    }

    #[test]
    fn what_draid_lacks_is_made_of_the_rest() {
        for (ndata, nparity, n, segment) in [(2, 1, 4, 1 << 20), (3, 2, 7, 8192), (2, 3, 6, 4096)] {
            let disks = leaves(n, 4 << 20);
            let t = tree(vec![testing::draid((ndata, nparity, 0), 12, testing::files(&disks))]);
            let mut end = 0;
            for seed in 0..40 {
                let data = bytes(seed, 512 + seed as usize * 3000);
                let size = t.top(0).unwrap().psize_to_asize(data.len() as u64, TXG);
                t.write_many(&[block(end, data)]).remove(0).unwrap();
                end += size;
            }
            let before: Vec<Vec<u8>> = disks.iter().map(|d| d.memory.bytes().clone()).collect();
            let targets: Vec<Arc<Vdev>> = t.leaves().into_iter().take(nparity as usize).collect();
            for (leaf, disk) in targets.iter().zip(&disks) {
                disk.memory.bytes().fill(0xee);
                lacks(&t, leaf);
            }
            let guids: Vec<u64> = targets.iter().map(|leaf| leaf.guid()).collect();
            let done = t.rebuild_many(0, &pieces(&t, end, segment), &guids).unwrap();
            assert_eq!((done.unread, done.failed.len()), (0, 0));
            assert!(done.bytes > 0);
            for (disk, before) in disks.iter().zip(&before) {
                let held = disk.memory.bytes();
                let differs = held.iter().zip(before).position(|(a, b)| a != b && *a != 0xee);
                assert_eq!(differs, None, "{ndata} {nparity}");
            }
            // All reads without as many of the others.
            let others: Vec<Arc<Vdev>> = t.leaves().into_iter().skip(nparity as usize).collect();
            targets.iter().for_each(|leaf| t.set_dtl(leaf.guid(), vec![]).unwrap());
            others.iter().take(nparity as usize).for_each(|leaf| leaf.retire());
            let mut at = 0;
            for seed in 0..40 {
                let data = bytes(seed, 512 + seed as usize * 3000);
                testing::read(&t, at, &data).unwrap();
                at += t.top(0).unwrap().psize_to_asize(data.len() as u64, TXG);
            }
        }
    }

    #[test]
    fn too_few_columns_are_told() {
        let disks = leaves(4, 4 << 20);
        let t = tree(vec![testing::draid((2, 1, 0), 12, testing::files(&disks))]);
        t.write_many(&[block(0, bytes(1, 24 << 10))]).remove(0).unwrap();
        let targets: Vec<u64> = t.leaves()[..2].iter().map(|leaf| leaf.guid()).collect();
        t.leaves()[..2].iter().for_each(|leaf| lacks(&t, leaf));
        let done = t.rebuild_many(0, &pieces(&t, 36 << 10, 1 << 20), &targets).unwrap();
        // Of each line of three columns at least two are on the four devices; where both lack theirs nothing is made.
        assert!(done.unread > 0 && done.unread <= 3, "{done:?}");
    }

    #[test]
    fn the_closest_device_is_copied() {
        let disks = leaves(3, 1 << 20);
        let replacing = testing::mirror_like(Kind::Replacing, 0, testing::files(&disks[..2]));
        let other = testing::file(2, &disks[2]);
        let t = tree(vec![testing::mirror_like(Kind::Mirror, 0, vec![replacing, other])]);
        let (mine, theirs) = (bytes(1, 64 << 10), bytes(2, 64 << 10));
        disks[0].write(0, &mine);
        disks[2].write(0, &theirs);
        let target = t.leaves()[1].clone();
        lacks(&t, &target);
        // Two sectors of it cannot be read.
        disks[0].faults.fail(LABEL_START + 4096..LABEL_START + 5120);
        let all = pieces(&t, 64 << 10, 1 << 20);
        let done = t.rebuild_many(0, &all, &[target.guid()]).unwrap();
        assert_eq!(done, Rebuilt { bytes: 64 << 10, ..Rebuilt::default() });
        // These come from the other one.
        let mut mixed = mine.clone();
        mixed[4096..5120].copy_from_slice(&theirs[4096..5120]);
        assert_eq!(held(&disks[1], 0..64 << 10), mixed);
        disks[0].faults.repair();
        t.rebuild_many(0, &all, &[target.guid()]).unwrap();
        assert_eq!(held(&disks[1], 0..64 << 10), mine);
        t.leaves()[0].retire();
        t.rebuild_many(0, &all, &[target.guid()]).unwrap();
        assert_eq!(held(&disks[1], 0..64 << 10), theirs);
        // One that lacks anything at all is no source.
        t.set_dtl(t.leaves()[2].guid(), vec![50..51]).unwrap();
        let done = t.rebuild_many(0, &all, &[target.guid()]).unwrap();
        assert_eq!((done.bytes, done.unread), (0, all.len() as u64));
        assert!(!t.has_source(0, &[target.guid()]));
    }

    /// A mirror of two, of which the second lacks what was written before.
    fn joined() -> (Vec<Leaf>, VdevTree, Arc<Vdev>) {
        let disks = leaves(2, 1 << 20);
        let t = tree(vec![testing::mirror_like(Kind::Mirror, 0, testing::files(&disks))]);
        let target = t.leaves()[1].clone();
        lacks(&t, &target);
        (disks, t, target)
    }

    /// What a source could not write is on the target alone: it is not replaced with what the source had before.
    #[test]
    fn a_source_that_fails_a_write_is_none() {
        let (disks, t, target) = joined();
        disks[0].write(0, &bytes(1, 16 << 10));
        assert!(t.has_source(0, &[target.guid()]));
        disks[0].faults.fail_writes(LABEL_START + 8192..LABEL_START + 12288);
        let new = bytes(2, 4096);
        let write = BlockWrite { txg: TXG + 20, ..block(8192, new.clone()) };
        t.write_many(&[write]).remove(0).unwrap();
        let done = t.rebuild_many(0, &[(0, 16 << 10)], &[target.guid()]).unwrap();
        assert_eq!((done.bytes, done.unread, done.left.len()), (0, 1, 0));
        assert_eq!(held(&disks[1], 8192..12288), new);
        assert!(!t.has_source(0, &[target.guid()]));
    }

    /// A flush that fails may have lost what a source took: that is known before the source is copied.
    #[test]
    fn a_source_that_lost_its_cache_is_none() {
        let (disks, t, target) = joined();
        let old = bytes(1, 16 << 10);
        disks[0].write(0, &old);
        let new = bytes(2, 4096);
        let write = BlockWrite { txg: TXG + 20, ..block(8192, new.clone()) };
        t.write_many(&[write]).remove(0).unwrap();
        // The cache is lost, and the device says so when it is asked to keep it.
        disks[0].write(8192, &old[8192..12288]);
        disks[0].faults.fail_flushes(1);
        let done = t.rebuild_many(0, &[(0, 16 << 10)], &[target.guid()]).unwrap();
        assert_eq!((done.bytes, done.unread, done.left.len()), (0, 1, 0));
        assert_eq!(held(&disks[1], 8192..12288), new);
        assert!(t.leaves()[0].is_behind());
    }

    /// Where nothing was written since the last flush no flush is made.
    #[test]
    fn what_is_durable_is_copied_without_a_flush() {
        let (disks, t, target) = joined();
        let (first, second) = (block(0, bytes(1, 4096)), block(65536, bytes(2, 4096)));
        t.write_many(&[first]).remove(0).unwrap();
        t.flush_all().unwrap();
        t.write_many(&[second]).remove(0).unwrap();
        let before = disks[0].faults.flushes();
        let done = t.rebuild_many(0, &[(0, 65536)], &[target.guid()]).unwrap();
        assert_eq!((done.bytes, disks[0].faults.flushes()), (65536, before));
        let done = t.rebuild_many(0, &[(65536, 4096)], &[target.guid()]).unwrap();
        assert_eq!((done.bytes, disks[0].faults.flushes()), (4096, before + 1));
    }

    /// A source that does not answer is found out with few requests, and is not taken for one.
    #[test]
    fn a_silent_source_is_not_asked_for_each_sector() {
        let (disks, t, target) = joined();
        let all = pieces(&t, 512 << 10, 64 << 10);
        let silences = t.silences();
        disks[0].faults.set_missing(true);
        let before = disks[0].faults.reads();
        let done = t.rebuild_many(0, &all, &[target.guid()]).unwrap();
        assert_eq!((done.bytes, done.unread), (0, all.len() as u64));
        assert!(disks[0].faults.reads() - before < 40, "{}", disks[0].faults.reads() - before);
        assert!(t.silences() != silences && t.is_silent_below(0) && !t.is_silent_below(1));
        assert!(!t.has_source(0, &[target.guid()]));
        // It may be another device by now, until it is looked at.
        disks[0].faults.set_missing(false);
        assert_eq!(t.rebuild_many(0, &all, &[target.guid()]).unwrap().bytes, 0);
    }

    /// A device is let go when no copy is under way to it, and none begins then.
    #[test]
    fn a_device_that_leaves_is_waited_for() {
        use std::time::Duration;
        let (disks, t, target) = joined();
        disks[0].write(0, &bytes(1, 64 << 10));
        let (guid, short) = (target.guid(), Duration::from_millis(50));
        disks[1].faults.set_hung(true);
        std::thread::scope(|scope| {
            let copying = scope.spawn(|| t.rebuild_many(0, &[(0, 4096)], &[guid]).unwrap());
            while disks[1].faults.waiting() == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            target.set_leaving(true);
            assert!(!target.is_vacant_idle_within(short));
            disks[1].faults.set_hung(false);
            assert_eq!(copying.join().unwrap().bytes, 4096);
        });
        assert!(target.is_vacant_idle_within(short));
        let before = disks[1].faults.writes();
        let done = t.rebuild_many(0, &[(4096, 4096)], &[guid]).unwrap();
        assert_eq!((done.failed.len(), disks[1].faults.writes()), (1, before));
    }

    /// While a source hangs that is read for a claim nothing else waits for it.
    #[test]
    fn other_writes_do_not_wait_for_a_source() {
        use std::time::Duration;
        let disks = leaves(3, 1 << 20);
        let files = testing::files(&disks);
        let other = testing::file(1, &disks[2]);
        let mirror = testing::mirror_like(Kind::Mirror, 0, files[..2].to_vec());
        let t = tree(vec![mirror, other]);
        let target = t.leaves()[1].clone();
        lacks(&t, &target);
        disks[0].faults.set_reads_hung(true);
        std::thread::scope(|scope| {
            let copying = scope.spawn(|| {
                let top = t.top(0).unwrap();
                let copier = Copier { tree: &t, top, targets: &[target.guid()] };
                let mut done = Rebuilt::default();
                copier.copy(&[(0, 4096)], true, &mut done).unwrap();
                done
            });
            while disks[0].faults.waiting() == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            // One that wants to be alone has others wait: none of them is one that waits for the source.
            let waiting = scope.spawn(|| t.write_many(&[block(0, bytes(1, 4096))]).remove(0));
            std::thread::sleep(Duration::from_millis(50));
            drop(t.writer.healing.write());
            let beside = BlockWrite { vdev: 1, ..block(0, bytes(2, 4096)) };
            t.write_many(&[beside, block(8192, bytes(3, 4096))])
                .into_iter()
                .for_each(|w| w.unwrap());
            assert!(!waiting.is_finished());
            disks[0].faults.set_reads_hung(false);
            assert_eq!(copying.join().unwrap().bytes, 4096);
            waiting.join().unwrap().unwrap();
        });
        assert_eq!(held(&disks[1], 0..4096), bytes(1, 4096));
    }

    #[test]
    fn bad_sectors_cost_nothing_else() {
        let disks = leaves(2, 1 << 20);
        let t = tree(vec![testing::mirror_like(Kind::Mirror, 0, testing::files(&disks))]);
        let data = bytes(3, 256 << 10);
        disks[0].write(0, &data);
        let target = t.leaves()[1].clone();
        lacks(&t, &target);
        disks[0].faults.fail(LABEL_START + 512..LABEL_START + 1024);
        let done = t.rebuild_many(0, &pieces(&t, 256 << 10, 1 << 20), &[target.guid()]).unwrap();
        assert_eq!((done.bytes, done.unread), ((256 << 10) - 512, 1));
        assert_eq!(held(&disks[1], 1024..256 << 10), data[1024..]);
        assert_eq!(t.leaves()[0].errors(), (1, 0, 0));
        disks[1].faults.fail_writes(LABEL_START..LABEL_START + (1 << 20));
        let done = t.rebuild_many(0, &[(4096, 4096)], &[target.guid()]).unwrap();
        assert_eq!(done.failed.into_iter().collect::<Vec<_>>(), [target.guid()]);
    }

    /// Blocks that are written meanwhile are not overwritten with what was there before.
    #[test]
    fn what_is_written_meanwhile_stays() {
        const BLOCKS: u64 = 64;
        let disks = leaves(2, 1 << 20);
        let t = tree(vec![testing::mirror_like(Kind::Mirror, 0, testing::files(&disks))]);
        let target = t.leaves()[1].clone();
        lacks(&t, &target);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..3000u64 {
                    let at = round * 37 % BLOCKS * 4096;
                    t.write_many(&[block(at, bytes(round, 4096))]).remove(0).unwrap();
                }
                ended.store(true, SeqCst);
            });
            let all = pieces(&t, BLOCKS * 4096, 16384);
            while !ended.load(SeqCst) {
                let done = t.rebuild_many(0, &all, &[target.guid()]).unwrap();
                assert_eq!((done.bytes, done.left.len()), (BLOCKS * 4096, 0));
            }
        });
        let all = 0..(BLOCKS * 4096) as usize;
        assert!(held(&disks[0], all.clone()) == held(&disks[1], all));
    }

    #[test]
    fn a_leaf_that_failed_a_flush_does_not_stand() {
        let disks = leaves(2, 1 << 20);
        let t = tree(vec![testing::mirror_like(Kind::Mirror, 0, testing::files(&disks))]);
        let target = t.leaves()[1].clone();
        let before = target.standing();
        t.rebuild_many(0, &[(0, 4096)], &[target.guid()]).unwrap();
        t.flush_all().unwrap();
        assert!(before == target.standing());
        target.lags(3..4);
        assert!(before != target.standing());
        let before = target.standing();
        target.retire();
        assert!(before != target.standing() && target.standing() != target.standing());
    }
}
