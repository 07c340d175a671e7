//! Blocks that cannot be read, written anew from what someone else has of them (`do_corrective_recv`).
//!
//! # Idea
//!
//! A scrub mends a copy of a block by another one. Where no copy is left, a stream that was sent before the damage may
//! still have the block. Then its owner makes an [`Offer`]: the pointer, and the physical bytes that the block may
//! have had. All copies are read first, as a scrub reads them. What can be mended by a copy is. Of a block that is lost
//! the first bytes that satisfy the pointer's checksum are laid out on the devices again, in the place of every copy.
//!
//! A gang block keeps its headers: the bytes are cut into its parts, each of which has a checksum of its own. A block
//! of a vdev that was removed is written where its pieces are now.
//!
//! # Invariants
//!
//! - Only a block that no copy of is right is made of offered bytes, and only of bytes with the pointer's checksum. Of a
//!   block of an encrypted dataset that is half of it, so they have to have the right MAC as well, where the key is among those that
//!   the caller has. Where it is not, what came raw is compared with the MAC that the stream says, and that is not looked at. So then
//!   nothing is written over bytes that satisfy the pointer, too: one of such copies is the right one, and what is offered may be the
//!   forgery. The block is in dispute until the key is loaded.
//! - Nothing is written unless the caller says, while nothing else is, that the pointer still holds (`current`).
//! - A block counts as corrected when it was read again and is right.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_vdev::{BlockRead, Fault, VdevTree};

use crate::error::Bookmark;
use crate::pipeline::{Reader, Store, check, is_vouched, voucher};
use crate::scan_keys::ScanKeys;
use crate::scrub::{Looked, ScanBlock, ScanFunc};

/// Hands over forms that physical bytes may have, one after the other, until it is told that one is right.
pub type Forms<'a> = dyn Fn(&mut dyn FnMut(Abd) -> bool) + 'a;

/// A block, and what it may have been.
pub struct Offer<'a> {
    /// The block's pointer.
    pub bp: BlockPointer,
    /// The block in its owner's eyes.
    pub at: Bookmark,
    /// Forms that its bytes may have. They are asked for only if the block cannot be read.
    pub forms: &'a Forms<'a>,
}

/// What came of looking at a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corrected {
    /// It can be read.
    WasRight,
    /// It could not be read, and can be now.
    Healed,
    /// It cannot be read, and nothing that was offered is the block.
    Differs,
    /// It cannot be read, and its devices did not take it.
    NotTaken,
    /// Several things satisfy its pointer, and no key was there to tell which of them is right.
    Disputed,
}

/// A part of a block that is in one piece, and its bytes.
struct Part {
    bp: BlockPointer,
    data: Abd,
}

impl Store {
    /// Looks at all copies of blocks, and writes anew what is wrong: by another copy, or by what is offered. Results are
    /// in the order of `offers`. Blocks that cannot be read are listed; those that were and can be read now leave the
    /// error log. Results of the first blocks alone: `current` said then that pointers may be out of date, and of the others
    /// nothing more was written.
    pub fn correct_many(
        &self,
        offers: &[Offer<'_>],
        keys: &ScanKeys,
        current: &dyn Fn() -> bool,
    ) -> Vec<Corrected> {
        let copies = |offer: &Offer<'_>| {
            let (bp, at) = (offer.bp, offer.at);
            let block = move |copy| ScanBlock { bp, at, copy, first: copy == 0 };
            (0..bp.dvas().count()).map(block).collect::<Vec<_>>()
        };
        let blocks: Vec<ScanBlock> = offers.iter().flat_map(copies).collect();
        // Asked for once: a key may be unloaded meanwhile.
        let tell = |offer: &Offer<'_>| voucher(&offer.bp, offer.at, || keys.of(offer.at.objset));
        let vouchers: Vec<Option<Reader>> = offers.iter().map(tell).collect();
        let batch = self.look_at(ScanFunc::Scrub, &blocks, keys);
        if !current() {
            return Vec::new();
        }
        let Looked { tree, faults, unreadable, disputed } = batch.into_looked();
        if tree.repair_many(&faults, current).is_none() {
            return Vec::new();
        }
        faults.iter().for_each(|(_, fault)| fault.charge());
        let lost: BTreeSet<Bookmark> = unreadable.iter().map(|block| block.at).collect();
        let mut done = Vec::with_capacity(offers.len());
        let (mut healed, mut left) = (Vec::new(), BTreeSet::new());
        for (offer, voucher) in offers.iter().zip(&vouchers) {
            let voucher = voucher.as_ref();
            let is_open = disputed.contains(&offer.at);
            let is_lost = lost.contains(&offer.at) || is_open;
            let came = match voucher {
                // Only the right MAC tells which of several copies is right.
                None if is_open => Some(Corrected::Disputed),
                _ if is_lost || self.is_forged_whole(offer, voucher) => {
                    self.correct(&tree, offer, voucher, current)
                }
                _ => Some(Corrected::WasRight),
            };
            let Some(came) = came else { break };
            match came {
                Corrected::WasRight => {}
                Corrected::Healed => healed.push((offer.at, offer.bp.physical_birth())),
                Corrected::Differs | Corrected::NotTaken | Corrected::Disputed => {
                    left.insert(offer.at);
                }
            }
            done.push(came);
        }
        let blocks = done.iter().filter(|came| **came == Corrected::Disputed).count();
        if blocks > 0 {
            tracing::warn!(blocks, "copies differ: load the key to heal what is right of them");
        }
        let left = unreadable.into_iter().filter(|block| left.contains(&block.at));
        self.list_unreadable(left.collect());
        self.errors_healed(&healed);
        done
    }

    /// Whether no copy of a gang block that could be read has the right MAC, which its parts do not have.
    fn is_forged_whole(&self, Offer { bp, at, .. }: &Offer<'_>, voucher: Option<&Reader>) -> bool {
        let Some(voucher) = voucher.filter(|_| bp.is_gang()) else { return false };
        let fails = || Store::attempt(|| self.fetch_vouched(bp, *at, voucher.clone())).0.is_err();
        // A device may not answer for a moment.
        fails() && fails()
    }

    /// Writes a block that is lost.
    fn correct(
        &self,
        tree: &VdevTree,
        offer: &Offer<'_>,
        voucher: Option<&Reader>,
        current: &dyn Fn() -> bool,
    ) -> Option<Corrected> {
        let Offer { bp, at, forms } = offer;
        if check(bp, *at).is_err() {
            return Some(Corrected::Differs);
        }
        let mut right = None;
        forms(&mut |data| {
            let fits = data.len() as u64 == bp.psize()
                && self.is_right(bp, &data)
                && voucher.is_none_or(|by| is_vouched(bp, by, &data));
            if fits {
                right = Some(data);
            }
            fits
        });
        let Some(right) = right else { return Some(Corrected::Differs) };
        let Some(parts) = self.parts_of(bp, *at, &right) else {
            return Some(Corrected::NotTaken);
        };
        let mut faults = Vec::new();
        for part in &parts {
            let txg = part.bp.physical_birth();
            for dva in part.bp.dvas() {
                let (mine, has_rival) = self.faults_of(tree, part, dva);
                // A copy that could not be read before.
                if has_rival && voucher.is_none() {
                    return Some(Corrected::Disputed);
                }
                faults.extend(mine.into_iter().map(|fault| (txg, fault)));
            }
        }
        tree.repair_many(&faults, current)?;
        let is_it = |read: Abd| read.bytes() == right.bytes();
        let reads = |dva| self.fetch_copy(bp, dva, *at).is_ok_and(is_it);
        let (read, _) = Store::attempt(|| bp.dvas().any(reads));
        Some(if read { Corrected::Healed } else { Corrected::NotTaken })
    }

    /// The parts of a block that are in one piece; `None`: where they are cannot be read, or they are other ones.
    fn parts_of(&self, bp: &BlockPointer, at: Bookmark, right: &Abd) -> Option<Vec<Part>> {
        if !bp.is_gang() {
            return Some(vec![Part { bp: *bp, data: right.clone() }]);
        }
        let (members, _) = Store::attempt(|| self.gang_members(bp, at));
        let (mut parts, mut from) = (Vec::new(), 0usize);
        for bp in members.ok()?.into_iter().filter(|bp| !bp.is_gang()) {
            let data = right.slice(from, usize::try_from(bp.psize()).ok()?)?;
            from += data.len();
            if !self.is_right(&bp, &data) {
                return None;
            }
            parts.push(Part { bp, data });
        }
        Some(parts)
    }

    /// What leaves have wrong of a copy, with what should be there, and whether other bytes were read that satisfy the pointer.
    fn faults_of(&self, tree: &VdevTree, part: &Part, dva: Dva) -> (Vec<Fault>, bool) {
        let has_rival = AtomicBool::new(false);
        let faults = self.differing(tree, part, dva, &has_rival);
        (faults, has_rival.into_inner())
    }

    fn differing(
        &self,
        tree: &VdevTree,
        part: &Part,
        dva: Dva,
        has_rival: &AtomicBool,
    ) -> Vec<Fault> {
        let Part { bp, data } = part;
        let txg = bp.physical_birth();
        let verify = |read: &Abd| {
            let is_it = read.bytes() == data.bytes();
            if !is_it && self.is_right(bp, read) {
                has_rival.store(true, Relaxed);
            }
            is_it
        };
        let (vdev, offset, size) = (dva.vdev.into(), dva.offset, bp.psize());
        let read = BlockRead { vdev, offset, size, txg, verify: &verify };
        let Some(checked) = tree.check_many(&[read]).pop() else { return Vec::new() };
        if checked.block.is_ok() {
            return checked.faults;
        }
        // A block of a removed vdev is in pieces elsewhere.
        let Ok(now) = tree.remapped(vdev, offset, size) else { return Vec::new() };
        let (mut faults, mut from) = (Vec::new(), 0usize);
        for piece in now.pieces {
            let Some(bytes) = data.slice(from, piece.size as usize) else { return Vec::new() };
            from += bytes.len();
            // Faults of other pieces get nothing to be written here.
            let at = (piece.vdev, piece.offset, txg);
            faults.extend(tree.healed_by(at, checked.faults.clone(), &bytes));
        }
        faults
    }
}
