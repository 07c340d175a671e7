//! Copying what a top-level vdev holds to leaves that lack it, by place and not by block (`vdev_mirror_io_start` and
//! `vdev_draid_io_start` of a rebuild).
//!
//! A piece has no checksum: it is whatever is allocated there, blocks or parts of blocks. So it is read only from leaves that
//! lack nothing at all, and written only to those that are rebuilt. On a mirror it is copied: from the device that is being
//! replaced, if that works, so that what the mirror had on two devices is on two afterwards; else from another side. On dRAID a
//! piece is whole lines within one group: the column of a child that has nothing is made of the others with their parity. What a
//! distributed spare has on a leaf that is rebuilt is copied there, too, as it is not among the leaf's own columns.
//!
//! A piece of which something cannot be read is divided, down to sectors, or lines of dRAID. What cannot be read then is told, and
//! nothing is written there. A piece that no leaf has is not divided. While writes wait for a piece, it is divided less far
//! ([`COARSE`]): a dying disk takes long for each sector.
//!
//! Blocks are written meanwhile: see `crate::write`'s `copying`. A piece is claimed before it is read. If a block was written there
//! since the vdev was last flushed, it is flushed then: either a source keeps the block, or it is known to lack it and is no source.
//! So a copy never replaces a block that was written to the target since it joined with what was there before. (OpenZFS has nothing
//! allocated in the metaslab that it copies, and waits for its groups, `metaslab_disable`. Blocks of intent logs are written to
//! space that was allocated long before.)
//!
//! What is written is durable after a flush, if the leaf stands as it did ([`Standing`]). Copies under way to a leaf are counted
//! (`crate::vacant`), and no copy begins on a leaf that is leaving: a device is let go when no copy to it is under way.
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
/// Where writes wait for a piece, it is divided into parts of about so many bytes at least.
const COARSE: u64 = 64 << 10;

/// What came of copying pieces.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Bytes that were written to leaves.
    pub bytes: u64,
    /// Pieces, or parts of them, that no leaf could be read for.
    pub unread: u64,
    /// Guids of leaves that did not take something.
    pub failed: BTreeSet<u64>,
    /// Something was not written to a leaf that is leaving: if that stays after all it lacks that still.
    pub leaving: bool,
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
                size.min(lines * line).min(layout.left_of_group(start))
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

/// Whether a leaf has all that was ever written to it, a distributed spare as far as it says itself. One that did not answer may be
/// another device by now.
fn is_whole(leaf: &Vdev) -> bool {
    leaf.device().is_some() && leaf.opened_state() == VdevState::Healthy && !leaf.is_behind()
}

/// Whether a leaf has all that was ever written to it at byte `offset`. A distributed spare is read from any leaf that its place is on,
/// if others fail: all of these have to.
fn is_whole_at(leaf: &Vdev, offset: u64) -> bool {
    let there = || {
        let mut places = leaf.place_at(offset);
        places.retain(|below| below.opened_state().readable());
        !places.is_empty() && places.iter().all(|below| is_whole_at(below, offset))
    };
    is_whole(leaf) && (!leaf.is_distributed() || there())
}

/// The leaves below `vdev` that hold the same as `target` and are whole at byte `offset`, the closest to it first.
fn sources(vdev: &Arc<Vdev>, target: &Vdev, offset: u64) -> Vec<Arc<Vdev>> {
    let is_above = |child: &&Arc<Vdev>| {
        let mut leaves = Vec::new();
        child.collect_leaves(&mut leaves);
        leaves.iter().any(|leaf| leaf.is_same(target))
    };
    let closer = vdev.children().iter().find(is_above);
    let mut found = closer.map(|child| sources(child, target, offset)).unwrap_or_default();
    let mut all = Vec::new();
    mirror::copies(vdev, &mut all);
    all.retain(|leaf| is_whole_at(leaf, offset) && !found.iter().any(|known| known.is_same(leaf)));
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
        mirror::reach(child, offset, &mut targets);
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
    /// Writes wait for what is copied.
    reserved: bool,
}

impl Copier<'_> {
    /// The smallest part into which pieces are divided.
    fn least_part(&self) -> u64 {
        let least = self.top.least_piece();
        if self.reserved { (COARSE / least).max(1) * least } else { least }
    }

    /// What is read of a piece first.
    fn first_reads(&self, piece: (u64, u64), reads: &mut Vec<LeafRead>) {
        let Some(columns) = columns(self.top, piece, self.targets) else { return };
        let mut is_made = false;
        for column in columns.iter() {
            for target in &column.targets {
                match sources(&column.child, target, column.offset).into_iter().next() {
                    Some(leaf) => {
                        reads.push(LeafRead { leaf, offset: column.offset, len: column.len })
                    }
                    None => is_made = true,
                }
            }
        }
        if is_made && self.top.draid().is_some() {
            for (_, column) in self.for_making(&columns) {
                if let Some(leaf) = whole_of(&column.child, Some(column.offset)).into_iter().next()
                {
                    reads.push(LeafRead { leaf, offset: column.offset, len: column.len });
                }
            }
        }
    }

    /// The columns of a stripe of dRAID of which another one is made, data first, each with its number.
    fn for_making<'b>(&self, columns: &'b [Column]) -> Vec<(usize, &'b Column)> {
        let nparity = (self.top.nparity() as usize).min(columns.len());
        let (parity, data) = columns.split_at(nparity);
        let numbered = data.iter().enumerate().map(|(i, column)| (i + nparity, column));
        let all = numbered.chain(parity.iter().enumerate());
        all.filter(|(_, column)| !whole_of(&column.child, Some(column.offset)).is_empty())
            .take(data.len())
            .collect()
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

    /// What to write of a piece.
    fn copies(&self, piece: (u64, u64), ahead: &Ahead, quiet: bool) -> Made {
        let Some(columns) = columns(self.top, piece, self.targets) else { return Made::Nothing };
        let divides = piece.1 > self.least_part();
        let unread = if divides { Made::Divide } else { Made::Nothing };
        let (mut copies, mut made) = (Vec::new(), Vec::new());
        for (number, column) in columns.iter().enumerate() {
            for target in &column.targets {
                let mut leaves = sources(&column.child, target, column.offset);
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
        let nparity = (self.top.nparity() as usize).min(columns.len());
        let others = columns.iter().enumerate().filter(|(number, _)| !wanted.contains(number));
        let whole = others
            .filter(|(_, column)| !whole_of(&column.child, Some(column.offset)).is_empty())
            .count();
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
            let leaves = whole_of(&column.child, Some(column.offset));
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

    /// What to write of some pieces, piece by piece, as far as it can be read; and the parts that cannot.
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
        let least = self.least_part();
        let part = (size / PARTS / least).max(1) * least;
        let (mut copies, mut unread, mut at) = (Vec::new(), 0u64, 0);
        while at < size {
            let piece = (start + at, part.min(size - at));
            let (more, missing) = self.divided(piece, &Ahead::new(), true);
            copies.extend(more);
            unread += missing;
            at += part;
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
        let spares: Vec<_> = there.iter().copied().filter(|(_, l)| l.is_distributed()).collect();
        let there = there.into_iter().filter(|(copy, leaf)| leaf.writable_at(copy.offset));
        let fails = |done: &mut Rebuilt, leaf: &Vdev| match leaf.is_leaving() {
            true => done.leaving = true,
            false => drop(done.failed.insert(leaf.guid())),
        };
        away.iter().for_each(|(_, leaf)| fails(done, leaf));
        let writes: Vec<LeafWrite> = there.map(|(copy, leaf)| write(copy, leaf)).collect();
        let results = write_leaves(&self.tree.writer, Priority::Rebuild, &writes);
        // Leaves that a spare's place is on and that took no writes lack it from now on, and the spare does not. None has come back
        // since it was asked whether the place takes the copy.
        for (copy, spare) in spares {
            let (absent, lacks) = (mirror::absent(spare, copy.offset), spare.missing());
            absent.iter().for_each(|leaf| lacks.iter().for_each(|txgs| leaf.lags(txgs.clone())));
        }
        for (write, result) in writes.iter().zip(results) {
            match result {
                Ok(()) => {
                    write.leaf.stats.scanned(write.data.len());
                    done.bytes += write.data.len() as u64;
                }
                Err(_) => fails(done, &write.leaf),
            }
        }
    }
}

/// The leaves of a child of dRAID that are whole at byte `offset`; without one, those that may be.
fn whole_of(child: &Arc<Vdev>, offset: Option<u64>) -> Vec<Arc<Vdev>> {
    let mut leaves = Vec::new();
    mirror::copies(child, &mut leaves);
    leaves.retain(|leaf| offset.map_or_else(|| is_whole(leaf), |at| is_whole_at(leaf, at)));
    leaves.sort_by_key(|leaf| leaf.stats.activity.hangs());
    leaves
}

impl Copier<'_> {
    /// What a claim on a piece keeps.
    fn place(&self, (start, size): (u64, u64)) -> Place {
        let mut on_leaves = Vec::new();
        // Of a piece without columns nothing is copied.
        for column in columns(self.top, (start, size), self.targets).into_iter().flatten() {
            let mut leaves = Vec::new();
            mirror::reach(&column.child, column.offset, &mut leaves);
            let end = column.offset + column.len as u64;
            on_leaves.extend(leaves.iter().map(|leaf| (leaf.guid(), column.offset..end)));
        }
        Place { range: start..start + size, on_leaves }
    }

    /// Claims pieces, of which all that was written is durable on their sources then.
    fn claim(&self, pieces: &[(u64, u64)]) -> Result<Claim<'_>, VdevError> {
        let (writer, vdev) = (&self.tree.writer, self.top.id());
        let places: Vec<Place> = pieces.iter().map(|piece| self.place(*piece)).collect();
        let ranges: Vec<_> = places.iter().map(|place| place.range.clone()).collect();
        let claim = {
            // What is being written now is not read by half, and it is known which leaves lack what was written.
            let _alone = writer.healing.write();
            writer.copying.claim(vdev, places, self.reserved)
        };
        // What is written from now on spoils the claim.
        if ranges.iter().any(|range| writer.unflushed.meets(vdev, range)) {
            self.tree.flush_tops(&[vdev])?;
        }
        Ok(claim)
    }

    /// Copies pieces that are claimed together, but for those that are left.
    fn copy(&self, pieces: &[(u64, u64)], done: &mut Rebuilt) -> Result<(), VdevError> {
        let claim = self.claim(pieces)?;
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
        let mut done = Rebuilt { left: pieces.to_vec(), ..Rebuilt::default() };
        for round in 0..TRIES {
            let todo = std::mem::take(&mut done.left);
            let reserved = round >= TOGETHER;
            let at_once = if reserved { 1 } else { todo.len().max(1) };
            for some in todo.chunks(at_once) {
                Copier { tree: self, top, targets, reserved }.copy(some, &mut done)?;
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
                let whole = top.children().iter().filter(|child| !whole_of(child, None).is_empty());
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
#[path = "rebuild_tests.rs"]
mod tests;
