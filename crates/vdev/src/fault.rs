//! What a read found wrong, and writing the right bytes in its place (self-healing).
//!
//! A read that finds its block in spite of a bad copy or column knows three things: which leaf gave the
//! wrong bytes, where, and what should be there. It reports them as [`Fault`]s and changes nothing.
//! The caller that asked for the block knows whether its pointer was still right, and decides:
//!
//! - [`Fault::charge`] counts a checksum error at the device that gave wrong bytes
//!   (`vdev_mirror_io_done`, `vdev_raidz_checksum_error`);
//! - [`VdevTree::heal`] writes the right bytes back (`ZIO_FLAG_IO_REPAIR`, `ZIO_FLAG_SELF_HEAL`);
//! - dropping it forgets it: a pointer that went stale blames no leaf.
//!
//! # Why healing overwrites nothing newer
//!
//! A place that was freed is given out again some groups later. So a repair and a write of a block
//! exclude each other (`Writer::healing`), and while no write is under way the caller says once more
//! whether the block is still where it was (`current`). If it is, its place has not been given out;
//! if it is given out later, that write comes after the repair.
//!
//! What a vdev that is being removed has been copied to is mended with it (`crate::write`, `removing`).
//!
//! Invariants: only leaves that take writes are healed, so a pool that is open read-only is never
//! written to. What is healed is flushed with the next transaction group.

use std::ops::Range;
use std::sync::{Arc, Weak};

use cenote_format::abd::Abd;

use crate::dtl::Trust;
use crate::events::{self, Happening, Operation};
use crate::injection;
use crate::mirror;
use crate::patience;
use crate::queue::Priority;
use crate::raidz::reflow::Widths;
use crate::submit::on_device;
use crate::traffic::Content;
use crate::tree::VdevTree;
use crate::vdev::Vdev;
use crate::write::{LeafWrite, write_leaves};

/// Wrong or unreadable bytes of a leaf; see the module's comment.
#[derive(Clone, Debug)]
#[must_use = "a fault is charged, healed, or forgotten on purpose"]
pub struct Fault {
    leaf: Arc<Vdev>,
    /// Where the error counts: the leaf, or the child of RAID-Z that it is below.
    blamed: Arc<Vdev>,
    /// Byte offset in the leaf's allocatable space.
    offset: u64,
    /// What should be there; `None`: not known.
    right: Option<Abd>,
    /// It was read without an error and was wrong. Else the read failed, which the leaf counted.
    mismatch: bool,
    /// It is not known which leaf was wrong: none is charged.
    blameless: bool,
    /// The leaf was not read: it missed what should be there.
    lack: bool,
    /// It counts as a read that failed, which the leaf did not count (`crate::injection`).
    uncounted: bool,
    /// The leaf gave other bytes that satisfy what tells the block, too.
    rival: bool,
    /// How the block was laid out on its vdev.
    laid_out: Option<LaidOut>,
}

/// How a block was laid out on RAID-Z, which may be expanded since.
#[derive(Clone, Debug)]
struct LaidOut {
    top: Arc<Vdev>,
    widths: Weak<Widths>,
    /// The sector of the vdev, and the one at which its row ends, if the block is narrower than the vdev. So it is known
    /// where the sector has moved.
    sector: Option<(u64, u64)>,
}

impl Fault {
    /// `leaf` gave wrong bytes at `offset`.
    pub(crate) fn mismatch(leaf: &Arc<Vdev>, offset: u64) -> Fault {
        let (blamed, leaf) = (leaf.clone(), leaf.clone());
        let (right, laid_out) = (None, None);
        let (mismatch, blameless, lack, uncounted, rival) = (true, false, false, false, false);
        Fault { leaf, blamed, offset, right, mismatch, blameless, lack, uncounted, rival, laid_out }
    }

    /// `leaf` missed `right`, which should be at `offset`. This is no error of the device.
    pub(crate) fn lacks(leaf: &Arc<Vdev>, offset: u64, right: Abd) -> Fault {
        Fault { mismatch: false, lack: true, right: Some(right), ..Fault::mismatch(leaf, offset) }
    }

    /// `leaf` could not be read at `offset`.
    pub(crate) fn unreadable(leaf: &Arc<Vdev>, offset: u64) -> Fault {
        Fault { mismatch: false, ..Fault::mismatch(leaf, offset) }
    }

    /// `leaf` gave wrong bytes of a block of group `txg` at `offset`. Where it may have been another leaf that lacks them, this is no error
    /// of either ([`Vdev::is_to_have`]).
    pub(crate) fn of_bytes(leaf: &Arc<Vdev>, offset: u64, txg: u64) -> Fault {
        Fault { blameless: !leaf.is_to_have(offset, txg), ..Fault::mismatch(leaf, offset) }
    }

    /// The same, of a leaf that gave bytes and is to count as one that could not be read.
    pub fn as_failed_read(self) -> Fault {
        Fault { mismatch: false, uncounted: self.mismatch && !self.blameless, ..self }
    }

    /// The same; the error counts at `blamed`.
    pub(crate) fn blaming(self, blamed: &Arc<Vdev>) -> Fault {
        Fault { blamed: blamed.clone(), ..self }
    }

    /// The same, of a block that was laid out by these widths of its vdev. `sector`: see [`ColumnExtent::in_row`].
    ///
    /// [`ColumnExtent::in_row`]: crate::ColumnExtent::in_row
    pub(crate) fn laid_out_by(
        self,
        top: &Arc<Vdev>,
        widths: &Arc<Widths>,
        sector: Option<(u64, u64)>,
    ) -> Fault {
        let laid_out = LaidOut { top: top.clone(), widths: Arc::downgrade(widths), sector };
        Fault { laid_out: Some(laid_out), ..self }
    }

    /// Whether the block may lie elsewhere by now than by these widths, which its vdev has.
    fn differs_from(&self, widths: &Arc<Widths>) -> bool {
        let differs = |l: &LaidOut| !std::ptr::eq(Weak::as_ptr(&l.widths), Arc::as_ptr(widths));
        self.laid_out.as_ref().is_some_and(differs)
    }

    /// The vdev and the sectors of it that a repair writes, as far as these may be moving.
    pub(crate) fn sectors(&self) -> Option<(u64, Range<u64>)> {
        let LaidOut { top, sector, .. } = self.laid_out.as_ref()?;
        let (sector, _) = (*sector)?;
        Some((top.id(), sector..sector + 1))
    }

    /// The same, now that it is known what should be there.
    pub(crate) fn with_right(self, right: Abd) -> Fault {
        Fault { right: Some(right), ..self }
    }

    /// The same; what is there is not written anew, as it is not known for certain what should be there.
    pub fn unhealed(self) -> Fault {
        Fault { right: None, ..self }
    }

    /// The same, of a leaf whose bytes satisfy what tells the block, too, if that is so.
    pub(crate) fn rivalling(self, rival: bool) -> Fault {
        Fault { rival: self.rival || rival, ..self }
    }

    /// Whether the leaf gave other bytes that satisfy what tells the block ([`BlockRead::verify`](crate::BlockRead::verify)). That is
    /// known of mirrors and single devices that a scrub has read.
    pub fn is_rival(&self) -> bool {
        self.rival
    }

    /// The leaf.
    pub fn leaf(&self) -> &Arc<Vdev> {
        &self.leaf
    }

    /// The leaf's guid, and the offset in bytes in its allocatable space.
    pub fn place(&self) -> (u64, u64) {
        (self.leaf.guid(), self.offset)
    }

    /// Whether it is known what should be there.
    pub fn knows_right(&self) -> bool {
        self.right.is_some()
    }

    /// Whether the leaf gave wrong bytes, rather than an error.
    pub fn is_mismatch(&self) -> bool {
        self.mismatch
    }

    /// Whether it may have been another leaf that gave the wrong bytes: not all that may have them were read.
    pub fn is_blameless(&self) -> bool {
        self.blameless
    }

    /// Whether the leaf missed the block, rather than being wrong about it.
    pub fn is_lack(&self) -> bool {
        self.lack
    }

    /// Bytes of what should be there, as far as that is known.
    pub(crate) fn len(&self) -> usize {
        self.right.as_ref().map_or(0, Abd::len)
    }

    /// Counts a checksum error, if the bytes were read and wrong.
    pub fn charge(&self) {
        if self.uncounted {
            self.blamed.stats.reads.error();
            let (offset, size) = (on_device(self.offset), self.right.as_ref());
            let size = size.map_or(0, |right| right.len() as u64);
            let (operation, why) = (Operation::Read, &injection::failure());
            events::tell(&self.leaf, &Happening::Failed { offset, size, operation, why });
        }
        if self.mismatch && !self.blameless {
            self.blamed.stats.checksum_error();
            let (offset, size) = (on_device(self.offset), self.len() as u64);
            events::tell(&self.leaf, &Happening::Mismatch { offset, size });
        }
    }

    /// The writes that heal it: one, or none, or more while the sectors of its vdev are moving, as what is wrong has been copied.
    /// What was not expected to be right is left to a resilver. They hold as long as nothing else is written.
    pub(crate) fn repairs(&self, txg: u64) -> Vec<LeafWrite> {
        let Some(right) = &self.right else { return Vec::new() };
        let trust = if self.lack { Trust::Stale } else { Trust::Good };
        let takes = |leaf: &Arc<Vdev>| leaf.trust(txg) == Some(trust) && leaf.writable();
        let write = |(leaf, offset): (Arc<Vdev>, u64)| LeafWrite {
            leaf,
            offset,
            data: right.clone(),
            // Of what is wrong nothing is missed if it fails: the leaf is as bad as it was.
            txg: if self.lack { txg } else { 0 },
            content: Content::Repair,
        };
        self.places().into_iter().filter(|(leaf, _)| takes(leaf)).map(write).collect()
    }

    /// Where the right bytes belong now: the leaf, and the byte offset in its allocatable space.
    fn places(&self) -> Vec<(Arc<Vdev>, u64)> {
        let mine = (self.leaf.clone(), self.offset);
        let Some(LaidOut { top, sector, .. }) = &self.laid_out else { return vec![mine] };
        let widths = top.widths();
        let sector = sector.filter(|_| !self.lack);
        let has_moved = self.differs_from(&widths);
        if sector.is_none() || !has_moved && widths.reflow.is_none() {
            return if has_moved { Vec::new() } else { vec![mine] };
        }
        let places = sector.and_then(|at| widths.places(at, top.ashift())).unwrap_or_default();
        let mut leaves = Vec::new();
        for (number, (child, offset)) in places.into_iter().enumerate() {
            if number == 0 && !has_moved {
                leaves.push(mine.clone());
                continue;
            }
            let mut below = Vec::new();
            top.children().get(child).iter().for_each(|child| mirror::copies(child, &mut below));
            leaves.extend(below.into_iter().map(|leaf| (leaf, offset)));
        }
        leaves
    }
}

/// A block that was read, and what was found wrong on the way.
#[derive(Debug)]
pub struct Outcome<T> {
    /// The block.
    pub block: T,
    /// The leaves that gave wrong bytes or no bytes.
    pub faults: Vec<Fault>,
}

impl<T> Outcome<T> {
    /// The block; the faults are charged, and not healed.
    pub fn charged(self) -> T {
        self.faults.iter().for_each(Fault::charge);
        self.block
    }
}

impl VdevTree {
    /// The same faults, of a read of `block`, born in `txg`, at `offset` of top-level vdev `vdev` that found nothing right,
    /// now that another copy has shown what the block is.
    pub fn healed_by(
        &self,
        (vdev, offset, txg): (u64, u64, u64),
        faults: Vec<Fault>,
        block: &Abd,
    ) -> Vec<Fault> {
        if faults.is_empty() {
            return faults;
        }
        // A block of a removed vdev is laid out on others: nothing says what a leaf that gave wrong bytes is to have.
        let Some(top) = self.top(vdev) else { return faults };
        let widths = top.widths();
        let columns = self.laid_out(top, &widths, (offset, txg), block).unwrap_or_default();
        let right = |fault: &Fault| {
            if fault.differs_from(&widths) {
                return None;
            }
            let holds = |child: &Arc<Vdev>| {
                let mut leaves = Vec::new();
                mirror::copies(child, &mut leaves);
                leaves.iter().any(|leaf| leaf.is_same(&fault.leaf))
            };
            let mut mine = columns.iter().filter(|(_, offset, _)| *offset == fault.offset);
            mine.find(|(child, ..)| holds(child)).map(|(.., bytes)| bytes.clone())
        };
        let heal = |fault: Fault| Fault { right: right(&fault), ..fault };
        faults.into_iter().map(heal).collect()
    }

    /// Writes the right bytes of those `faults` for which they are known. `txg` is the physical birth of
    /// the block; `current` says, when nothing is being written to the tree, whether the block is still
    /// allocated; if not, it never is again. Returns how many places are right now. An impatient thread
    /// ([`patience`](crate::patience)) heals nothing.
    ///
    /// What a leaf takes is counted as its `self_healed` bytes; a write that fails is an error of it.
    pub fn heal(&self, txg: u64, faults: &[Fault], current: &dyn Fn() -> bool) -> usize {
        if faults.iter().all(|fault| fault.repairs(txg).is_empty()) {
            return 0;
        }
        // Writes wait while this one waits for those under way: not for what will not heal anything, nor for a
        // thread that waits for no device.
        if patience::of_thread().is_some() || !current() {
            return 0;
        }
        let repairs = || faults.iter().flat_map(|fault| fault.repairs(txg)).collect();
        let Ok(alone) = self.alone_for_repairs(&repairs, current) else { return 0 };
        let batch = self.note_repairs(faults);
        let (mut writes, mut firsts) = (Vec::new(), Vec::new());
        for repairs in faults.iter().map(|fault| fault.repairs(txg)) {
            firsts.extend((0..repairs.len()).map(|n| n == 0));
            writes.extend(repairs);
        }
        let results = write_leaves(&self.writer, Priority::AsyncWrite, &writes);
        drop((batch, alone));
        let mut healed = 0;
        for ((write, result), first) in writes.iter().zip(&results).zip(firsts) {
            write.leaf.stats.heal_tried();
            if result.is_ok() {
                // Its copies are the same place of the pool.
                healed += usize::from(first);
                write.leaf.stats.healed(write.data.len());
                tracing::info!(leaf = ?write.leaf, offset = write.offset, "wrong bytes were mended");
            }
        }
        self.look_after();
        healed
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::Duration;

    use cenote_format::LABEL_START;
    use proptest::prelude::*;

    use super::*;
    use crate::device::open_device;
    use crate::testing::{self, Leaf, checksum_errors, leaves, tree};
    use crate::vdev::Kind;
    use crate::write::BlockWrite;
    use crate::{BlockRead, VdevError, VdevState};

    const TXG: u64 = 10;

    fn read(t: &VdevTree, offset: u64, data: &[u8]) -> Outcome<Result<Abd, VdevError>> {
        let verify = |abd: &Abd| *abd.bytes() == *data;
        let size = data.len() as u64;
        t.read_one(&BlockRead { vdev: 0, offset, size, txg: TXG, verify: &verify })
    }

    fn mirror(n: usize) -> (VdevTree, Vec<Leaf>) {
        let disks = leaves(n, 4 << 20);
        let top = testing::mirror_like(Kind::Mirror, 0, testing::files(&disks));
        (tree(vec![top]), disks)
    }

    fn healed(t: &VdevTree) -> Vec<u64> {
        t.leaves().iter().map(|l| l.self_healed()).collect()
    }

    #[test]
    fn the_wrong_side_of_a_mirror_is_named_and_mended() {
        let (t, disks) = mirror(3);
        let data = [7; 4096];
        disks[2].write(8192, &data);
        disks[0].faults.fail(LABEL_START + 8192..LABEL_START + 8704);
        let found = read(&t, 8192, &data);
        assert!(found.block.is_ok());
        let who: Vec<(u64, bool)> =
            found.faults.iter().map(|f| (f.leaf().id(), f.is_mismatch())).collect();
        assert_eq!(who, [(0, false), (1, true)]);
        // Until the reader says so, no leaf is blamed.
        assert_eq!((checksum_errors(&t), healed(&t)), (vec![0; 3], vec![0; 3]));
        assert_eq!(t.heal(TXG, &found.faults, &|| true), 2);
        found.faults.iter().for_each(Fault::charge);
        assert_eq!((checksum_errors(&t), healed(&t)), (vec![0, 1, 0], vec![4096, 4096, 0]));
        for disk in &disks {
            let at = (LABEL_START + 8192) as usize;
            assert_eq!(disk.memory.bytes()[at..at + 4096], data);
        }
        assert!(t.root().was_mended());
        t.root().clear_errors();
        assert!(!t.root().was_mended());
    }

    #[test]
    fn a_block_that_has_gone_is_not_written() {
        let (t, disks) = mirror(2);
        disks[1].write(0, &[7; 512]);
        let found = read(&t, 0, &[7; 512]);
        assert_eq!((found.faults.len(), t.heal(TXG, &found.faults, &|| false)), (1, 0));
        assert!(disks[0].memory.bytes().iter().all(|b| *b == 0));
        assert!(!t.root().was_mended());
    }

    #[test]
    fn what_was_not_expected_to_be_right_is_left_alone() {
        let (t, disks) = mirror(2);
        disks[1].write(0, &[7; 512]);
        let found = read(&t, 0, &[7; 512]);
        // By the time it is known to have missed the block.
        t.set_dtl(t.leaves()[0].guid(), vec![5..20]).unwrap();
        assert_eq!(t.heal(TXG, &found.faults, &|| true), 0);
        t.set_dtl(t.leaves()[0].guid(), vec![]).unwrap();
        assert!(t.take_out(t.leaves()[0].guid(), VdevState::Offline));
        assert_eq!(t.heal(TXG, &found.faults, &|| true), 0);
        assert_eq!(t.leaves()[0].state(), VdevState::Offline);
    }

    #[test]
    fn a_device_open_for_reading_is_not_written_to() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![0; LABEL_START as usize + (1 << 20)]).unwrap();
        let (device, good) = (open_device(file.path()).unwrap(), Leaf::new(1 << 20));
        good.write(0, &[7; 512]);
        let sides = vec![testing::file_on(0, device), testing::file(1, &good)];
        let t = tree(vec![testing::mirror_like(Kind::Mirror, 0, sides)]);
        let found = read(&t, 0, &[7; 512]);
        assert_eq!((found.faults.len(), t.heal(TXG, &found.faults, &|| true)), (1, 0));
        assert!(std::fs::read(file.path()).unwrap().iter().all(|b| *b == 0));
    }

    #[test]
    fn nothing_is_mended_while_blocks_are_written() {
        let (t, disks) = mirror(2);
        disks[1].write(0, &[7; 512]);
        let found = read(&t, 0, &[7; 512]);
        let written = AtomicBool::new(false);
        disks[1].faults.set_delay(Duration::from_millis(300));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (data, content) = (Abd::from_vec(vec![1; 512]), Content::Data);
                let block = BlockWrite {
                    vdev: 0,
                    offset: 1 << 20,
                    data,
                    txg: 12,
                    content,
                    sides: Vec::new(),
                };
                assert!(t.write_many(&[block])[0].is_ok());
                written.store(true, SeqCst);
            });
            while disks[1].faults.writes() == 0 {
                std::thread::yield_now();
            }
            // The write has left the devices when this is asked again, though it may not have been answered yet.
            let asked = AtomicBool::new(false);
            let current = || {
                let left = disks[1].memory.bytes()[(LABEL_START + (1 << 20)) as usize] == 1;
                !asked.swap(true, SeqCst) || left
            };
            assert_eq!(t.heal(TXG, &found.faults, &current), 1);
        });
        assert!(written.load(SeqCst));
    }

    #[test]
    fn another_copy_mends_a_block_that_was_lost_here() {
        for nparity in [0, 1, 2] {
            let disks = leaves(4, 1 << 20);
            let top = match nparity {
                0 => testing::mirror_like(Kind::Mirror, 0, testing::files(&disks)),
                n => testing::raidz(n, 9, testing::files(&disks)),
            };
            let t = tree(vec![top]);
            let data: Vec<u8> = (0..5000u32).map(|i| (i / 3) as u8 | 1).collect();
            let found = read(&t, 512, &data);
            assert!(found.block.is_err() && !found.faults.is_empty());
            let faults = t.healed_by((0, 512, TXG), found.faults, &Abd::from_vec(data.clone()));
            assert_eq!(t.heal(TXG, &faults, &|| true), faults.len());
            let again = read(&t, 512, &data);
            assert!(again.block.is_ok() && again.faults.is_empty(), "{nparity}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Whatever up to the parity was wrong or unreadable is as it was after one read.
        #[test]
        fn raidz_is_whole_again(
            nparity in 1u64..4, more in 1usize..4, four_k: bool, sector in 0u64..300,
            len in 1usize..40_000, which in any::<u16>(), unreadable in any::<u16>(),
        ) {
            let width = nparity as usize + more;
            let disks = leaves(width, 2 << 20);
            let ashift = if four_k { 12 } else { 9 };
            let vdev = testing::raidz(nparity, ashift, testing::files(&disks));
            let data: Vec<u8> = (0..len).map(|i| (i * 31 + i / 251) as u8).collect();
            let offset = sector << ashift;
            testing::write_raidz(&vdev, &disks, offset, &data);
            let t = tree(vec![vdev]);
            let before: Vec<Vec<u8>> = disks.iter().map(|d| d.memory.bytes().clone()).collect();
            let picked = (0..width).filter(|c| which >> c & 1 == 1).take(nparity as usize);
            let columns = t.columns_of((0, offset, TXG), &Abd::from_vec(data.clone())).unwrap();
            for c in picked {
                for (_, at, bytes) in columns.iter().filter(|(child, ..)| child.id() == c as u64) {
                    let at = LABEL_START + at;
                    if unreadable >> c & 1 == 1 {
                        disks[c].faults.fail(at..at + bytes.len() as u64);
                    }
                    let range = at as usize..at as usize + bytes.len();
                    disks[c].memory.bytes()[range].iter_mut().for_each(|b| *b ^= 0x55);
                }
            }
            let found = read(&t, offset, &data);
            prop_assert!(found.block.is_ok());
            prop_assert_eq!(t.heal(TXG, &found.faults, &|| true), found.faults.len());
            // Parity is read, and mended, only where data was wrong.
            for (disk, before) in disks.iter().zip(&before) {
                disk.faults.repair();
                prop_assert!(found.faults.is_empty() || *disk.memory.bytes() == *before);
            }
            prop_assert!(read(&t, offset, &data).faults.is_empty());
        }
    }
}
