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
//! - Of a block that could lie in several ways in what was read (one on RAID-Z of which no way satisfies the pointer, a gang block of which
//!   copies of a part differ) that is not known.

use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_vdev::{BlockRead, Checked, Fault, VdevError, VdevTree};

use crate::error::{BlockError, Bookmark};
use crate::pipeline::{Reader, Store, check, is_vouched, unpack};
use crate::verify;

/// What tells the bytes of a block.
type Tells<'a> = &'a (dyn Fn(&Abd) -> bool + Sync);

fn checked(tree: &VdevTree, bp: &BlockPointer, dva: Dva, verify: Tells<'_>) -> Option<Checked> {
    let (vdev, offset, size) = (dva.vdev.into(), dva.offset, bp.psize());
    let read = BlockRead { vdev, offset, size, txg: bp.physical_birth(), verify };
    tree.check_many(&[read]).pop()
}

/// Whether all devices were read that may have a copy.
fn is_all_read(tree: &VdevTree, dva: Dva, faults: &[Fault]) -> bool {
    tree.has_all_devices(dva.vdev.into()) && faults.iter().all(Fault::is_mismatch)
}

/// Whether a copy that satisfies nothing is lost for good.
fn is_copy_lost(tree: &VdevTree, bp: &BlockPointer, dva: Dva, found: &Checked) -> bool {
    let nothing = |_: &Abd| false;
    let (vdev, offset, size) = (dva.vdev.into(), dva.offset, bp.psize());
    let read = BlockRead { vdev, offset, size, txg: bp.physical_birth(), verify: &nothing };
    let simple = tree.top(vdev).is_some() && tree.parity_of(&read) == 0;
    let wrong = matches!(found.block, Err(VdevError::Checksum { .. }));
    wrong && simple && is_all_read(tree, dva, &found.faults)
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
            let found = checked(&tree, bp, dva, &satisfies);
            found.is_some_and(|found| is_copy_lost(&tree, bp, dva, &found))
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
        let satisfies = |data: &Abd| self.is_right(bp, data);
        let is_it = |data: &Abd| self.is_right(bp, data) && makes_sense(data);
        let mut was_met = bp.dvas().next().is_none();
        for dva in bp.dvas() {
            if checked(&tree, bp, dva, &is_it).is_none_or(|found| found.block.is_ok()) {
                return false;
            }
            let Some(found) = checked(&tree, bp, dva, &satisfies) else { return false };
            was_met |= found.block.is_ok();
            let stays = match found.block.is_ok() {
                true => is_all_read(&tree, dva, &found.faults),
                false => is_copy_lost(&tree, bp, dva, &found),
            };
            // A whole checksum has one answer, whichever copy gives it.
            if weak && !stays {
                return false;
            }
        }
        was_met || self.is_lost(bp, at)
    }

    /// Whether a block that was read, and from whose contents nothing can be walked, is the one that its pointer is for, as far as devices
    /// have it.
    pub fn stays_senseless(&self, bp: &BlockPointer, at: Bookmark) -> bool {
        // The MAC of an indirect block was looked at.
        !verify::is_weak(bp) || bp.level() > 0 || self.is_one(bp, at)
    }

    /// Whether all devices with copies of a block were read, and all copies satisfy its pointer and are the same.
    fn is_one(&self, bp: &BlockPointer, at: Bookmark) -> bool {
        let parts = match bp.is_gang() {
            false => vec![*bp],
            true => match Store::attempt(|| self.gang_members(bp, at)).0 {
                Ok(members) => members.into_iter().filter(|part| !part.is_gang()).collect(),
                Err(_) => return false,
            },
        };
        let tree = self.vdevs();
        parts.iter().all(|part| {
            let satisfies = |data: &Abd| self.is_right(part, data);
            let mut first: Option<Abd> = None;
            part.dvas().all(|dva| {
                let Some(found) = checked(&tree, part, dva, &satisfies) else { return false };
                let Ok(block) = found.block else { return false };
                let first = first.get_or_insert_with(|| block.clone());
                let is_same = first.bytes() == block.bytes();
                is_same && found.faults.is_empty() && tree.has_all_devices(dva.vdev.into())
            })
        })
    }
}
