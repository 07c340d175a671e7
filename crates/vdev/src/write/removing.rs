//! Repairs of a top-level vdev that is being removed.
//!
//! What such a vdev holds is read, written to other vdevs as it is, and mapped, group after group; until all is copied it is read
//! where it always was. Pieces have no checksums. So what was wrong on a side when it was read is wrong where that was copied to,
//! and a repair that went to the vdev alone would be undone when it leaves. Therefore:
//!
//! ```text
//!  read a piece ── place it ── write it ── repaired since? ── mapped
//!    │ a mark        │ *placed*              │ yes: it is read once more
//!
//!  repair:  noted ── written where the piece was copied to, or is placed ── flushed ── written on the vdev
//! ```
//!
//! A repair is made while nothing else is written (`Writer::healing`). One before the piece is placed is noted, and seen
//! after the copy is written. One that comes after the copy was written finds where it is placed, and mends it there. What
//! a copy was written with may be written again after a flush that fails (`unflushed`): so the mended copy is flushed. That comes before the
//! repair of the vdev itself: a crash in between leaves something that the next scrub finds wrong.
//!
//! A mended copy is right on every side that takes writes. So is a piece before it is mapped: it is flushed on all sides of its vdev.
//!
//! Invariants: what is mapped is right wherever a repair has made it right since the piece was read. A mark is good for the pieces that are
//! read next, and for no others: one mark is kept at a time.

use parking_lot::{Mutex, RwLockWriteGuard};
use std::ops::Range;
use std::sync::{Arc, Weak};

use cenote_format::invariant;

use super::{LeafWrite, write_leaves};
use crate::queue::Priority;
use crate::traffic::Content;
use crate::vdev::{Live, Vdev};
use crate::{IndirectMap, Remap, VdevTree, mirror};

/// Repairs that are noted at most; then what was read is read once more.
const MOST_NOTED: usize = 4096;

/// A piece of a vdev that is being removed, and where its copy is.
#[derive(Clone, Copy, Debug)]
pub struct PlacedCopy {
    /// Byte of the vdev where it begins.
    pub source: u64,
    /// The copy.
    pub copy: Remap,
}

/// See [`VdevTree::mark_repairs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairMark(u64);

/// The vdev that is being removed.
struct Of {
    vdev: u64,
    /// What is allocated below this offset is mapped.
    end: u64,
    mapping: Arc<dyn IndirectMap>,
}

#[derive(Default)]
struct State {
    of: Option<Of>,
    /// What the group that is being written copies.
    placed: Vec<PlacedCopy>,
    /// Ranges of the vdev that were repaired since the last mark.
    noted: Vec<Range<u64>>,
    /// The mark whose notes these are.
    mark: u64,
    /// Leaves of vdevs that were removed. Whoever read by a tree of before may still want to repair them.
    left: Vec<Weak<Live>>,
}

/// See the head of the module.
#[derive(Default)]
pub(crate) struct Removing(Mutex<State>);

impl State {
    /// What was marked before says nothing any more.
    fn forget_notes(&mut self) {
        self.noted.clear();
        self.mark += 1;
    }

    /// Whether a leaf is of a vdev that has left.
    fn has_left(&self, leaf: &Vdev) -> bool {
        self.left.iter().any(|left| std::ptr::eq(left.as_ptr(), Arc::as_ptr(&leaf.live)))
    }
}

/// Why nothing was repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotRepaired {
    /// The blocks may not be allocated any more.
    Gone,
    /// A copy did not take it.
    Failed,
}

/// Where a repair goes beside its own place: pieces, and the byte of the repair at which each begins. `None`: the mapping lacks it.
fn elsewhere(state: &State, range: &Range<u64>) -> Option<Vec<(u64, Remap)>> {
    let of = state.of.as_ref()?;
    let mut found = Vec::new();
    let mapped = range.end.min(of.end);
    if range.start < mapped {
        let mut at = 0u64;
        for piece in of.mapping.remap(range.start, mapped - range.start)? {
            found.push((at, piece));
            at = at.checked_add(piece.size)?;
        }
    }
    for PlacedCopy { source, copy } in &state.placed {
        let (from, to) = (range.start.max(*source), range.end.min(source.checked_add(copy.size)?));
        if from < to {
            let offset = copy.offset.checked_add(from - source)?;
            found.push((from - range.start, Remap { offset, size: to - from, ..*copy }));
        }
    }
    Some(found)
}

impl VdevTree {
    /// A top-level vdev, which is a disk or mirror, is being removed: what is allocated below `end` is mapped; `None`: none is. What was
    /// placed is mapped by now, or not going to be.
    pub fn set_removing(&self, of: Option<(u64, u64, Arc<dyn IndirectMap>)>) {
        let mut state = self.writer.removing.0.lock();
        let of = of.map(|(vdev, end, mapping)| Of { vdev, end, mapping });
        let vdev = |of: &Option<Of>| of.as_ref().map(|of| of.vdev);
        if vdev(&state.of) != vdev(&of) {
            state.forget_notes();
        }
        state.of = of;
        state.placed.clear();
    }

    /// The vdev that was being removed has left: what it held is where it was copied to. Repairs of `leaves`, which were its own, fail: they
    /// were found by a tree of before, and would mend what is not read any more.
    pub fn end_removing(&self, leaves: &[Arc<Vdev>]) {
        let mut state = self.writer.removing.0.lock();
        state.forget_notes();
        state.of = None;
        state.placed.clear();
        state.left.retain(|left| left.strong_count() > 0);
        state.left.extend(leaves.iter().map(|leaf| Arc::downgrade(&leaf.live)));
    }

    /// Whether a leaf is of a vdev that is being removed, or was: what it is given may fail for other vdevs.
    pub(crate) fn is_of_removed(&self, leaf: &Vdev) -> bool {
        let state = self.writer.removing.0.lock();
        let top = state.of.as_ref().and_then(|of| self.top(of.vdev));
        let mut leaves = Vec::new();
        top.into_iter().for_each(|top| top.collect_leaves(&mut leaves));
        state.has_left(leaf) || leaves.iter().any(|l| l.is_same(leaf))
    }

    /// From now on repairs of the vdev that is being removed are noted, for what is read next. Waits for one that is under way.
    pub fn mark_repairs(&self) -> RepairMark {
        let _beside = self.writer.healing.read();
        let mut state = self.writer.removing.0.lock();
        state.forget_notes();
        RepairMark(state.mark)
    }

    /// Whether a range of the vdev that is being removed was repaired since this mark, or may have been.
    pub fn is_repaired_since(&self, mark: RepairMark, range: &Range<u64>) -> bool {
        let state = self.writer.removing.0.lock();
        let meets = |noted: &Range<u64>| noted.start < range.end && range.start < noted.end;
        state.mark != mark.0 || state.noted.iter().any(meets)
    }

    /// The group that is being written copies these pieces, and no others, of the vdev that is being removed: repairs go there, too. To be
    /// called before they are written. [`VdevTree::is_repaired_since`] tells afterwards which of them were written too late.
    pub fn place_copies(&self, placed: Vec<PlacedCopy>) {
        let mut state = self.writer.removing.0.lock();
        let end = state.of.as_ref().map_or(0, |of| of.end);
        let early = placed.iter().find(|piece| piece.source < end);
        invariant!(early.is_none(), "{early:?} is copied, and all up to {end:#x} was before");
        state.placed = placed;
    }

    /// Does what `write` does, which writes what moves to these top-level vdevs, as it says, and makes that durable on every side of them. What a side lost
    /// in a flush that failed, no resilver would give it: the blocks are older than the group that moves them, and not known to be there
    /// before their vdev has left.
    ///
    /// # Errors
    /// A side may have lost some of it.
    pub fn durably_moved<T>(
        &self,
        write: impl FnOnce() -> (T, Vec<u64>),
    ) -> (T, Result<(), crate::VdevError>) {
        let before = self.flush_failures();
        let (done, mut vdevs) = write();
        vdevs.sort_unstable();
        vdevs.dedup();
        let flushed = self.flush_tops(&vdevs);
        let flushed = match vdevs.first() {
            Some(vdev) if flushed.is_ok() && self.flush_failures() != before => {
                let why = "a flush of a device failed".into();
                Err(crate::VdevError::Flush { vdev: *vdev, why })
            }
            _ => flushed,
        };
        (done, flushed)
    }

    /// The writes that mend what these repairs have been copied to, with the vdevs that they are on. All are noted. `None`: it is not known where, or
    /// the vdev has left by now.
    fn repairs_of_copies(&self, repairs: &[LeafWrite]) -> Option<(Vec<LeafWrite>, Vec<u64>)> {
        let (mut writes, mut vdevs) = (Vec::new(), Vec::new());
        let mut state = self.writer.removing.0.lock();
        if repairs.iter().any(|repair| state.has_left(&repair.leaf)) {
            return None;
        }
        let Some(vdev) = state.of.as_ref().map(|of| of.vdev) else { return Some((writes, vdevs)) };
        let mut leaves: Vec<Arc<Vdev>> = Vec::new();
        self.top(vdev).into_iter().for_each(|top| mirror::copies(top, &mut leaves));
        // What leaves lack they are given by a resilver: no copy was made of it.
        for repair in repairs.iter().filter(|repair| repair.txg == 0) {
            if !leaves.iter().any(|leaf| leaf.is_same(&repair.leaf)) {
                continue;
            }
            let end = repair.offset.checked_add(repair.data.len() as u64)?;
            let range = repair.offset..end;
            for (at, piece) in elsewhere(&state, &range)? {
                let data = repair.data.slice(at as usize, piece.size as usize)?;
                let mut sides = Vec::new();
                mirror::copies(self.top(piece.vdev)?, &mut sides);
                vdevs.push(piece.vdev);
                // Of what is wrong nothing is missed if it fails.
                let write = |leaf: Arc<Vdev>| LeafWrite {
                    leaf,
                    offset: piece.offset,
                    data: data.clone(),
                    txg: 0,
                    content: Content::Repair,
                };
                writes.extend(sides.into_iter().filter(|leaf| leaf.writable()).map(write));
            }
            if state.noted.len() >= MOST_NOTED {
                state.forget_notes();
            }
            state.noted.push(range);
        }
        vdevs.sort_unstable();
        vdevs.dedup();
        Some((writes, vdevs))
    }

    /// How often top-level vdevs have lost data so far. `None`: one of `vdevs` has, and it was not written again.
    fn losses_without(&self, vdevs: &[u64]) -> Option<u64> {
        let lost = self.writer.lost.lock();
        let is_whole = vdevs.iter().all(|vdev| !lost.now.contains_key(vdev));
        is_whole.then_some(lost.ever)
    }

    /// Keeps all writes away, for repairs, as long as what is returned lives. What these have been copied to, as their vdev is being removed, is mended and
    /// durable by then. `repairs` says what will be written, and `current` whether the blocks are still allocated; both are asked
    /// while nothing is written.
    pub(crate) fn alone_for_repairs(
        &self,
        repairs: &dyn Fn() -> Vec<LeafWrite>,
        current: &dyn Fn() -> bool,
    ) -> Result<RwLockWriteGuard<'_, ()>, NotRepaired> {
        let mut mended = Vec::new();
        loop {
            let alone = self.writer.healing.write();
            if !current() {
                return Err(NotRepaired::Gone);
            }
            let copies = self.repairs_of_copies(&repairs());
            let (writes, vdevs) = copies.ok_or(NotRepaired::Failed)?;
            let place = |write: &LeafWrite| (write.leaf.guid(), write.offset, write.data.len());
            let places: Vec<_> = writes.iter().map(place).collect();
            // More may have been copied meanwhile.
            if places == mended {
                return Ok(alone);
            }
            // What a vdev has lost is written again as it was, also over a copy that was mended meanwhile.
            let Some(ever) = self.losses_without(&vdevs) else {
                return Err(NotRepaired::Failed);
            };
            // A mirror whose one side fails a flush has lost nothing; the repair of that side may be.
            let failures = || writes.iter().map(|write| write.leaf.written().flush_failures());
            let before: Vec<u64> = failures().collect();
            let written = write_leaves(&self.writer, Priority::AsyncWrite, &writes);
            drop(alone);
            let failed = written.iter().any(Result::is_err)
                || self.flush_tops(&vdevs).is_err()
                || self.losses_without(&vdevs) != Some(ever)
                || !failures().eq(before);
            if failed {
                self.look_after();
                return Err(NotRepaired::Failed);
            }
            mended = places;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Leaf};
    use crate::vdev::Kind;
    use crate::write::BlockWrite;
    use crate::{BlockRead, Fault};
    use cenote_format::LABEL_START;
    use cenote_format::abd::Abd;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    const TXG: u64 = 10;
    const LEN: u64 = 4096;
    /// What lies at this offset of vdev 0 is copied to the same place of vdev 1, shifted by so much.
    const AT: u64 = 64 << 10;
    const SHIFT: u64 = 512 << 10;

    /// All below this byte is mapped.
    #[derive(Default)]
    struct Map(AtomicU64);

    impl IndirectMap for Map {
        fn remap(&self, offset: u64, size: u64) -> Option<Vec<Remap>> {
            let is_mapped = offset + size <= self.0.load(SeqCst);
            is_mapped.then(|| vec![Remap { vdev: 1, offset: offset + SHIFT, size }])
        }
    }

    fn right() -> Vec<u8> {
        (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    /// Two mirrors of two. The first is being removed, and the first side of a block there is wrong.
    fn rig(end: u64) -> (VdevTree, Vec<Leaf>) {
        let disks = testing::leaves(4, 4 << 20);
        let files = testing::files(&disks);
        let mirror =
            |id, files: &[Arc<Vdev>]| testing::mirror_like(Kind::Mirror, id, files.to_vec());
        let tree = testing::tree(vec![mirror(0, &files[..2]), mirror(1, &files[2..])]);
        disks[0].write(AT, &vec![0x5a; LEN as usize]);
        disks[1].write(AT, &right());
        tree.set_removing(Some((0, end, Arc::new(Map(end.into())))));
        (tree, disks)
    }

    /// Copies what the sides have.
    fn copy(tree: &VdevTree, sides: [Vec<u8>; 2]) {
        let sides: Vec<Abd> = sides.into_iter().map(Abd::from_vec).collect();
        let (data, content) = (sides[0].clone(), Content::Data);
        let block = BlockWrite { vdev: 1, offset: AT + SHIFT, data, txg: TXG, content, sides };
        tree.write_moved(&[block]).unwrap();
    }

    fn scrubbed(tree: &VdevTree) -> Vec<(u64, Fault)> {
        let verify = |abd: &Abd| *abd.bytes() == *right();
        let req = BlockRead { vdev: 0, offset: AT, size: LEN, txg: TXG, verify: &verify };
        let checked = tree.check_many(&[req]).pop().unwrap();
        checked.faults.into_iter().map(|fault| (TXG, fault)).collect()
    }

    /// What a device has of the block.
    fn has(disk: &Leaf, at: u64) -> Vec<u8> {
        let at = (LABEL_START + at) as usize;
        disk.memory.bytes()[at..at + LEN as usize].to_vec()
    }

    fn wrong() -> Vec<u8> {
        vec![0x5a; LEN as usize]
    }

    #[test]
    fn what_is_copied_is_mended_with_what_it_was_copied_from() {
        for healed in [true, false] {
            let (tree, disks) = rig(AT + LEN);
            copy(&tree, [right(), wrong()]);
            let faults = scrubbed(&tree);
            assert_eq!(faults.len(), 1);
            match healed {
                true => {
                    let faults: Vec<Fault> = faults.into_iter().map(|(_, fault)| fault).collect();
                    assert_eq!(tree.heal(TXG, &faults, &|| true), 1);
                }
                false => {
                    let done = tree.repair_many(&faults, &|| true).unwrap();
                    assert_eq!((done.bytes, done.failed.len()), (LEN, 0));
                }
            }
            assert!(has(&disks[0], AT) == right());
            assert!(disks[2..].iter().all(|disk| has(disk, AT + SHIFT) == right()));
            // It is durable there.
            assert!(disks[2..].iter().all(|disk| disk.faults.flushes() > 0));
        }
    }

    /// Half of the block is mapped, and the other half is placed.
    #[test]
    fn what_is_being_copied_is_mended() {
        let (tree, disks) = rig(AT + LEN / 2);
        let mark = tree.mark_repairs();
        let source = AT + LEN / 2;
        let copy_at = Remap { vdev: 1, offset: source + SHIFT, size: LEN };
        tree.place_copies(vec![PlacedCopy { source, copy: copy_at }]);
        copy(&tree, [wrong(), right()]);
        assert!(!tree.is_repaired_since(mark, &(AT..AT + LEN)));
        assert_eq!(tree.repair_many(&scrubbed(&tree), &|| true).unwrap().bytes, LEN);
        assert!(disks[2..].iter().all(|disk| has(disk, AT + SHIFT) == right()));
        assert!(tree.is_repaired_since(mark, &(AT + LEN - 1..AT + 2 * LEN)));
        assert!(!tree.is_repaired_since(mark, &(AT + LEN..AT + 2 * LEN)));
        // A later mark knows nothing of that, and an earlier one nothing at all.
        let later = tree.mark_repairs();
        assert!(!tree.is_repaired_since(later, &(AT..AT + LEN)));
        assert!(tree.is_repaired_since(mark, &(0..1)));
        tree.set_removing(None);
        assert!(tree.is_repaired_since(later, &(0..1)));
    }

    /// A copy that does not take the repair leaves the vdev as it was, so that it is found again.
    #[test]
    fn a_copy_that_cannot_be_mended_is_found_again() {
        let (tree, disks) = rig(AT + LEN);
        copy(&tree, [right(), wrong()]);
        disks[3].faults.fail_writes(LABEL_START + AT + SHIFT..LABEL_START + AT + SHIFT + LEN);
        let failed = tree.repair_many(&scrubbed(&tree), &|| true).unwrap();
        assert_eq!((failed.bytes, failed.failed.len()), (0, 1));
        assert!(has(&disks[0], AT) == wrong());
        disks[3].faults.repair();
        // A side that may have lost it counts as one that did not take it.
        disks[3].faults.fail_flushes(1);
        let failed = tree.repair_many(&scrubbed(&tree), &|| true).unwrap();
        assert_eq!((failed.bytes, failed.failed.len()), (0, 1));
        // Blocks that may be gone are left alone.
        assert!(tree.repair_many(&scrubbed(&tree), &|| false).is_none());
        assert!(has(&disks[0], AT) == wrong());
        assert_eq!(tree.repair_many(&scrubbed(&tree), &|| true).unwrap().bytes, LEN);
        assert!(has(&disks[0], AT) == right());
        assert!(disks[2..].iter().all(|disk| has(disk, AT + SHIFT) == right()));
    }

    /// What was copied to a vdev that may have lost it is written there again as it was: no copy is mended before that.
    #[test]
    fn copies_that_may_be_lost_are_mended_once_they_are_not() {
        let (tree, disks) = rig(AT + LEN);
        copy(&tree, [wrong(), right()]);
        tree.lost_with_device(tree.top(1).unwrap());
        let failed = tree.repair_many(&scrubbed(&tree), &|| true).unwrap();
        assert_eq!((failed.bytes, failed.failed.len()), (0, 1));
        tree.recover().unwrap();
        assert!(has(&disks[0], AT) == wrong() && has(&disks[2], AT + SHIFT) == wrong());
        assert_eq!(tree.repair_many(&scrubbed(&tree), &|| true).unwrap().bytes, LEN);
        assert!(has(&disks[0], AT) == right());
        assert!(disks[2..].iter().all(|disk| has(disk, AT + SHIFT) == right()));
    }

    /// A scrub read by the tree of before, and repairs when the vdev has left: what was wrong there is wrong where it was copied to.
    #[test]
    fn a_vdev_that_has_left_is_mended_no_more() {
        let (tree, disks) = rig(AT + LEN);
        copy(&tree, [right(), wrong()]);
        let faults = scrubbed(&tree);
        let mut leaves = Vec::new();
        tree.top(0).unwrap().collect_leaves(&mut leaves);
        tree.end_removing(&leaves);
        // A repair of another vdev in the same batch is made.
        let other = tree.top(1).unwrap().children()[0].clone();
        let offset = AT + SHIFT + LEN;
        let mend = Fault::mismatch(&other, offset).with_right(Abd::from_vec(right()));
        let all = [faults, vec![(TXG, mend)]].concat();
        let done = tree.repair_many(&all, &|| true).unwrap();
        assert_eq!((done.bytes, done.failed), (LEN, vec![(leaves[0].guid(), TXG)]));
        assert!(has(&disks[0], AT) == wrong() && has(&disks[2], offset) == right());
    }

    /// What is elsewhere has no copies.
    #[test]
    fn other_vdevs_are_mended_alone() {
        let (tree, disks) = rig(AT + LEN);
        tree.set_removing(None);
        copy(&tree, [wrong(), wrong()]);
        assert_eq!(tree.repair_many(&scrubbed(&tree), &|| true).unwrap().bytes, LEN);
        assert!(has(&disks[0], AT) == right());
        assert!(disks[2..].iter().all(|disk| has(disk, AT + SHIFT) == wrong()));
    }
}
