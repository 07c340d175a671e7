//! Whether a block that could not be read stays so.
//!
//! # Idea
//!
//! A walk that cannot read a block does not see what is below it. If no device has anything that could be read in its place, what is below
//! is lost: no device lacks it, and one that is replaced may go. Else what devices lack stays noted, and what is to leave stays.
//!
//! Bytes that satisfy half a checksum, and have no right MAC or make no sense, are no such answer by themselves: another copy may be right.
//! A device is asked here again, past the caches and with no handler between ([`crate::injection`]), as these say nothing of
//! what lies on it.
//!
//! # Invariants
//!
//! - A block is said to stay as it is only if all sides of all copies were read that may have it: a device that is out of use, silent, or
//!   failed that read may have the right bytes.
//! - The read that says so is the one whose bytes were looked at: a device that fails one read and not the next may have anything.
//! - Of a block that could lie in several ways in what was read (one on RAID-Z of which a column differs, a gang block of which
//!   copies of a header or a part differ) that is not known.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_vdev::{BlockRead, Checked, Fault, VdevError, VdevTree};

use crate::error::{BlockError, Bookmark};
use crate::pipeline::{Reader, Store, check, is_vouched, unpack};
use crate::verify;

/// What tells the bytes of a block.
type Tells<'a> = &'a (dyn Fn(&Abd) -> bool + Sync);

/// A copy of a block, or of a gang header.
#[derive(Clone, Copy)]
struct OneCopy<'a> {
    tree: &'a VdevTree,
    bp: &'a BlockPointer,
    dva: Dva,
    size: u64,
}

impl<'a> OneCopy<'a> {
    /// A copy of a block.
    fn of(tree: &'a VdevTree, bp: &'a BlockPointer, dva: Dva) -> OneCopy<'a> {
        OneCopy { tree, bp, dva, size: bp.psize() }
    }

    fn request<'r>(&self, verify: Tells<'r>) -> BlockRead<'r> {
        let (vdev, offset, size) = (self.dva.vdev.into(), self.dva.offset, self.size);
        BlockRead { vdev, offset, size, txg: self.bp.physical_birth(), verify }
    }

    fn checked(&self, verify: Tells<'_>) -> Option<Checked> {
        self.tree.check_many(&[self.request(verify)]).pop()
    }

    /// Whether each device that has it has all of it, in one piece: a read that finds nothing right has asked each.
    fn is_whole(&self) -> bool {
        let vdev = self.dva.vdev.into();
        let now = || self.tree.remapped(vdev, self.dva.offset, self.size);
        let is_one = || now().is_ok_and(|now| now.pieces.len() == 1);
        self.tree.top(vdev).is_some()
            && self.tree.parity_of(&self.request(&|_| false)) == 0
            && is_one()
    }

    /// Whether all devices were read that may have it.
    fn is_all_read(&self, faults: &[Fault]) -> bool {
        let was_read = |fault: &Fault| fault.is_mismatch() && !fault.is_blameless();
        self.tree.has_all_devices(self.dva.vdev.into()) && faults.iter().all(was_read)
    }

    /// Whether it is lost for good: all devices were read, and `found` is nothing that satisfies the pointer.
    fn is_lost(&self, found: &Checked) -> bool {
        let is_wrong = matches!(found.block, Err(VdevError::Checksum { .. }));
        is_wrong && self.is_whole() && self.is_all_read(&found.faults)
    }

    /// What was read of it, if all devices were, and whatever satisfies `verify` on any of them is the same.
    fn only(&self, verify: Tells<'_>) -> Option<Abd> {
        let Checked { block, faults, .. } = self.checked(verify)?;
        let is_same = match self.is_whole() {
            true => self.is_all_read(&faults) && !faults.iter().any(Fault::is_rival),
            // Another choice of columns may make another block.
            false => faults.is_empty() && self.tree.has_all_devices(self.dva.vdev.into()),
        };
        block.ok().filter(|_| is_same)
    }
}

/// What one look at a copy told.
struct Told {
    /// Something satisfies the pointer.
    is_met: bool,
    /// A device has something that could be read in the place of the block.
    is_there: bool,
    /// Nothing else is on any device that may have the copy.
    is_all: bool,
}

impl Store {
    /// Whether a block is lost for good: all devices with copies of it were read, and all copies are wrong. Of a gang block,
    /// and of one on RAID-Z, that is not known.
    pub fn is_lost(&self, bp: &BlockPointer, at: Bookmark) -> bool {
        if bp.is_hole() || bp.is_gang() || check(bp, at).is_err() {
            return false;
        }
        let (tree, satisfies) = (self.vdevs(), |data: &Abd| self.is_right(bp, data));
        bp.dvas().all(|dva| {
            let copy = OneCopy::of(&tree, bp, dva);
            copy.checked(&satisfies).is_some_and(|found| copy.is_lost(&found))
        })
    }

    /// Whether a block that leads to others, and could not be read for `why`, stays so: there is nothing on any device that could be
    /// read in its place.
    pub fn stays_unread(&self, bp: &BlockPointer, at: Bookmark, why: &BlockError) -> bool {
        match why {
            // What was read satisfies the pointer.
            BlockError::Decode { .. } | BlockError::Authentication { .. } => {
                self.stays_doubted(bp, at)
            }
            _ => self.is_lost(bp, at),
        }
    }

    /// Whether bytes that satisfy the pointer of a block, and have no right MAC or do not unpack, are all that there is of it.
    pub fn stays_doubted(&self, bp: &BlockPointer, at: Bookmark) -> bool {
        self.stays_unvouched(bp, at, self.voucher(bp, at).as_ref())
    }

    /// The same, where `voucher` tells the MAC.
    pub(crate) fn stays_unvouched(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        voucher: Option<&Reader>,
    ) -> bool {
        if check(bp, at).is_err() {
            return false;
        }
        let makes_sense = |data: &Abd| match voucher {
            Some(by) => is_vouched(bp, by, data),
            None => unpack(bp, data).is_ok(),
        };
        let (tree, weak) = (self.vdevs(), verify::is_weak(bp));
        if bp.is_gang() {
            let fetch = |dva| self.fetch_copy(bp, dva, at).ok();
            let (whole, _) = Store::attempt(|| bp.dvas().find_map(fetch));
            return whole.is_some_and(|whole| !makes_sense(&whole))
                && (!weak || self.is_one(bp, at));
        }
        let mut was_met = bp.dvas().next().is_none();
        for dva in bp.dvas() {
            let told = self.told_of(&OneCopy::of(&tree, bp, dva), &makes_sense);
            was_met |= told.is_met;
            // A whole checksum has one answer, whichever copy gives it.
            if told.is_there || weak && !told.is_all {
                return false;
            }
        }
        was_met || self.is_lost(bp, at)
    }

    /// Looks at a copy once: the bytes that satisfy the pointer are the ones of which it is asked whether they make sense.
    fn told_of(&self, copy: &OneCopy<'_>, makes_sense: Tells<'_>) -> Told {
        let nothing = Told { is_met: false, is_there: false, is_all: false };
        if !copy.is_whole() {
            // What is laid out in columns is all of one block if nothing differs from that.
            let satisfies = |data: &Abd| self.is_right(copy.bp, data);
            let Some(Checked { block, faults, .. }) = copy.checked(&satisfies) else {
                return nothing;
            };
            let is_met = block.is_ok();
            let is_all = is_met && faults.is_empty() && copy.is_all_read(&faults);
            let is_there = block.is_ok_and(|block| makes_sense(&block));
            return Told { is_met, is_there, is_all };
        }
        let met = AtomicBool::new(false);
        let is_it = |data: &Abd| {
            let satisfies = self.is_right(copy.bp, data);
            met.fetch_or(satisfies, Relaxed);
            satisfies && makes_sense(data)
        };
        let Some(found) = copy.checked(&is_it) else { return nothing };
        let (is_there, is_met) = (found.block.is_ok(), met.into_inner());
        Told { is_met, is_there, is_all: copy.is_lost(&found) }
    }

    /// Whether a block that was read, and from whose contents nothing can be walked, is the one that its pointer is for, as far as devices
    /// have it.
    pub fn stays_senseless(&self, bp: &BlockPointer, at: Bookmark) -> bool {
        // The MAC of an indirect block was looked at.
        !verify::is_weak(bp) || bp.level() > 0 || self.is_one(bp, at)
    }

    /// Whether all devices with copies of a block were read, and all that satisfy its pointer are the same; of a gang block, those of each
    /// header and part.
    fn is_one(&self, bp: &BlockPointer, at: Bookmark) -> bool {
        let pieces = match bp.is_gang() {
            false => vec![*bp],
            true => match Store::attempt(|| self.gang_members(bp, at)).0 {
                Ok(members) => std::iter::once(*bp).chain(members).collect(),
                Err(_) => return false,
            },
        };
        let tree = self.vdevs();
        pieces.iter().all(|piece| {
            let is_gang = piece.is_gang();
            let is_it = |data: &Abd| match is_gang {
                true => verify::gang_header(piece, &data.bytes()).is_some(),
                false => self.is_right(piece, data),
            };
            let size = if is_gang { self.header_size(piece.dvas()) } else { piece.psize() };
            let mut first: Option<Abd> = None;
            piece.dvas().all(|dva| {
                if dva.gang != is_gang {
                    return false;
                }
                let copy = OneCopy { tree: &tree, bp: piece, dva, size };
                let Some(block) = copy.only(&is_it) else { return false };
                let first = first.get_or_insert_with(|| block.clone());
                first.bytes() == block.bytes()
            })
        })
    }
}
