//! What a scan does with the blocks that it found (`scan_exec_io`, `dsl_scan_scrub_done`).
//!
//! A scan found pointers, some time ago, and holds them in the order of devices. Here a batch of them is read past the
//! ARC: every copy of each for a scrub, what leaves lack for a resilver (`cenote_vdev`'s `scrub`). What is wrong is
//! written anew from any copy that is right.
//!
//! The pointers may have gone stale meanwhile. The scan says whether they still hold (`current`), as it does so under
//! an epoch of reads: before anything is counted, and again while nothing else is written, before anything is
//! repaired.
//!
//! A gang block is checked as a whole at its first pointer: each copy of each header, and all parts.
//!
//! Blocks of encrypted datasets need no key: their checksums are of the encrypted bytes. But a pointer has half of one, which wrong
//! bytes may satisfy (`pipeline::crypt`). So where the dataset is open with its key a scrub checks MACs, too, and writes what they vouch
//! for. Where it is not, and copies differ, another block may satisfy the pointer as well: then both stay as they are. A
//! resilver goes by pointers alone: it gives a leaf what the others have.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_vdev::{BlockRead, Checked, Fault, Vdev, VdevError, VdevTree};

use crate::error::{Bookmark, ZIL_LEVEL};
use crate::injection::Expected;
use crate::notes::Unreadable;
use crate::pipeline::{Reader, Store, check};
use crate::verify;

/// What is scanned for (`pool_scan_func_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanFunc {
    /// Everything is read.
    Scrub,
    /// What leaves missed is written to them.
    Resilver,
}

/// A copy of a block that is to be looked at.
#[derive(Clone, Copy, Debug)]
pub struct ScanBlock {
    /// The block's pointer.
    pub bp: BlockPointer,
    /// The block in its owner's eyes.
    pub at: Bookmark,
    /// Which of its DVAs.
    pub copy: usize,
    /// It is the first copy of the block that is looked at: a block that is lost is one error, however many copies it has.
    pub first: bool,
}

/// What came of a batch.
#[derive(Debug, Default)]
pub struct Scanned {
    /// Bytes that were written.
    pub repaired: u64,
    /// Blocks of which no copy is right.
    pub errors: u64,
    /// Leaves, by guid, that lack blocks of these transaction groups and were not given them.
    pub left: BTreeSet<(u64, u64)>,
}

/// A batch under way.
pub(crate) struct Batch<'a> {
    store: &'a Store,
    func: ScanFunc,
    tree: Arc<VdevTree>,
    faults: Vec<(u64, Fault)>,
    unreadable: Vec<Unreadable>,
    left: BTreeSet<(u64, u64)>,
}

/// One read: a block or a gang header.
struct Read {
    bp: BlockPointer,
    at: Bookmark,
    dva: Dva,
    size: u64,
    header: bool,
    /// It is a part of a gang block, which has no MAC of its own.
    part: bool,
    /// Whether a lost block is an error here. A lost header is an error of its block.
    first: bool,
}

impl Store {
    /// Looks at a batch of copies, and repairs what is wrong or lacking. `None`: `current` said that their pointers
    /// may be out of date, and nothing counts.
    ///
    /// Blocks that cannot be read are listed.
    pub fn scan_many(
        &self,
        func: ScanFunc,
        blocks: &[ScanBlock],
        current: &dyn Fn() -> bool,
    ) -> Option<Scanned> {
        let batch = self.look_at(func, blocks);
        if !current() {
            return None;
        }
        let Batch { tree, faults, unreadable, mut left, .. } = batch;
        let repaired = tree.repair_many(&faults, current)?;
        faults.iter().for_each(|(_, fault)| fault.charge());
        let errors = unreadable.len() as u64;
        self.list_unreadable(unreadable);
        left.extend(repaired.failed);
        Some(Scanned { repaired: repaired.bytes, errors, left })
    }
}

impl Store {
    /// Looks at all copies of some blocks, and writes anew what is wrong. Nothing is counted or listed: a read has done that. Returns
    /// the bytes that were written; `None`: `current` said that their pointers may be out of date.
    pub fn mend(&self, blocks: &[ScanBlock], current: &dyn Fn() -> bool) -> Option<u64> {
        let batch = self.look_at(ScanFunc::Scrub, blocks);
        if !current() {
            return None;
        }
        batch.tree.repair_many(&batch.faults, current).map(|repaired| repaired.bytes)
    }

    /// Reads a batch of copies. Nothing counts yet.
    pub(crate) fn look_at(&self, func: ScanFunc, blocks: &[ScanBlock]) -> Batch<'_> {
        let tree = Arc::clone(&self.vdevs());
        let (faults, unreadable, left) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut batch = Batch { store: self, func, tree, faults, unreadable, left };
        batch.read(blocks);
        batch
    }

    /// Whether a block is lost for good: all devices with copies of it were read, and all copies are wrong. Of a gang block,
    /// and of one on RAID-Z, that is not known.
    pub fn is_lost(&self, bp: &BlockPointer, at: Bookmark) -> bool {
        if bp.is_hole() || bp.is_gang() || check(bp, at).is_err() {
            return false;
        }
        let tree = self.vdevs();
        bp.dvas().all(|dva| {
            let first = false;
            let size = bp.psize();
            let read = Read { bp: *bp, at, dva, size, header: false, part: false, first };
            let verify = |data: &Abd| self.is_right(bp, data);
            let checked = tree.check_many(&[read.request(&verify)]).pop();
            let is_wrong = checked.is_some_and(|Checked { block, faults, .. }| {
                let wrong = matches!(block, Err(VdevError::Checksum { .. }));
                wrong && faults.iter().all(Fault::is_mismatch)
            });
            let simple = tree.top(dva.vdev.into()).is_some_and(|top| top.nparity() == 0);
            is_wrong && simple && tree.has_all_devices(dva.vdev.into())
        })
    }

    /// Lists blocks that were read and make no sense.
    pub fn list_senseless(&self, blocks: Vec<Bookmark>) {
        let unreadable = blocks.into_iter().map(|at| Unreadable { at, mismatch: true, birth: 0 });
        self.list_unreadable(unreadable.collect());
    }
}

impl Batch<'_> {
    /// The devices, what leaves have wrong, with the physical births of its blocks, and which blocks cannot be read.
    pub(crate) fn into_found(self) -> (Arc<VdevTree>, Vec<(u64, Fault)>, Vec<Unreadable>) {
        (self.tree, self.faults, self.unreadable)
    }

    fn read(&mut self, blocks: &[ScanBlock]) {
        let mut reads = Vec::with_capacity(blocks.len());
        for block in blocks {
            let ScanBlock { bp, at, copy, first } = *block;
            if check(&bp, at).is_err() {
                self.lost(&bp, at, first);
                continue;
            }
            match bp.dva(copy) {
                Some(dva) if dva.gang => self.gang(&bp, at, copy, &mut reads),
                Some(dva) => {
                    let (size, header, part) = (bp.psize(), false, false);
                    reads.push(Read { bp, at, dva, size, header, part, first });
                }
                None => {}
            }
        }
        self.check(&reads);
    }

    /// It is not known where the bytes of a block are: whatever lacks its group may lack them. The block is an error, once.
    fn lost(&mut self, bp: &BlockPointer, at: Bookmark, once: bool) {
        let txg = bp.physical_birth();
        let lacks = |leaf: &Arc<Vdev>| leaf.missing().iter().any(|r| r.contains(&txg));
        let leaves = self.tree.leaves().into_iter().filter(lacks);
        self.left.extend(leaves.map(|leaf| (leaf.guid(), txg)));
        if once {
            self.unreadable.push(Unreadable { at, mismatch: true, birth: txg });
        }
    }

    /// Adds what gang block `bp` consists of.
    fn gang(&mut self, bp: &BlockPointer, at: Bookmark, copy: usize, reads: &mut Vec<Read>) {
        let headers = |bp: &BlockPointer, reads: &mut Vec<Read>| {
            let size = self.store.header_size(bp.dvas());
            let dvas = bp.dvas().filter(|dva| dva.gang);
            reads.extend(dvas.map(|dva| {
                let (bp, header, part, first) = (*bp, true, false, false);
                Read { bp, at, dva, size, header, part, first }
            }));
        };
        if copy != 0 {
            return;
        }
        headers(bp, reads);
        // What is wrong with headers is found by their own reads.
        let (members, _) = Store::attempt(|| self.store.gang_members(bp, at));
        let Ok(members) = members else { return self.lost(bp, at, true) };
        for part in members {
            if part.is_gang() {
                headers(&part, reads);
                continue;
            }
            let (bp, size, head) = (part, part.psize(), part.dva(0));
            reads.extend(part.dvas().map(|dva| {
                let (header, part, first) = (false, true, head == Some(dva));
                Read { bp, at, dva, size, header, part, first }
            }));
        }
    }

    fn check(&mut self, reads: &[Read]) {
        for (read, checked) in reads.iter().zip(self.checked(reads, None)) {
            let voucher = read.voucher(self.store);
            let (checked, forged) = match self.is_doubted(read, voucher.as_ref(), &checked) {
                true => self.beyond_doubt(read, voucher.as_ref(), checked),
                false => (checked, false),
            };
            self.note(read, checked, forged);
        }
    }

    /// Reads, and tells what leaves have wrong or lack; by MACs where there is a voucher.
    fn checked(&self, reads: &[Read], voucher: Option<&Reader>) -> Vec<Checked> {
        let expected = |read: &Read| read.expected(self.store).vouched_by(voucher.cloned());
        let expected: Vec<_> = reads.iter().map(expected).collect();
        let accepter = |(read, copy): (&Read, _)| read.accepter(copy, voucher.is_some());
        let verifiers: Vec<_> = reads.iter().zip(&expected).map(accepter).collect();
        let requests: Vec<BlockRead<'_>> =
            reads.iter().zip(&verifiers).map(|(read, verify)| read.request(verify)).collect();
        let done = match self.func {
            ScanFunc::Scrub => self.tree.check_many(&requests),
            ScanFunc::Resilver => self.tree.lacking_many(&requests),
        };
        let settle = |(checked, copy): (Checked, &Expected<'_>)| {
            let Checked { block, faults, left } = checked;
            let (block, faults) = copy.settle(block, faults);
            Checked { block, faults, left }
        };
        done.into_iter().zip(&expected).map(settle).collect()
    }

    /// Whether what was found may be another block that satisfies the pointer: its MAC is wrong, or not all leaves have the same.
    fn is_doubted(&self, read: &Read, voucher: Option<&Reader>, checked: &Checked) -> bool {
        let Checked { block: Ok(block), faults, .. } = checked else { return false };
        // A resilver gives what satisfies the pointer: there may be nothing better, and a scrub finds it.
        if self.func == ScanFunc::Resilver || read.header || !verify::is_weak(&read.bp) {
            return false;
        }
        match voucher {
            Some(voucher) => {
                let (store, bp, at) = (self.store, &read.bp, read.at);
                !store.is_vouched(bp, at, voucher, block)
                    || faults.iter().any(Fault::is_mismatch) && !is_padded(bp, block)
            }
            None => faults.iter().any(Fault::is_mismatch),
        }
    }

    /// What is known of a block that is doubted, and whether its MAC is wrong.
    fn beyond_doubt(
        &self,
        read: &Read,
        voucher: Option<&Reader>,
        found: Checked,
    ) -> (Checked, bool) {
        let Checked { block, mut faults, left } = found;
        if let Some(voucher) = voucher {
            let again = self.checked(std::slice::from_ref(read), Some(voucher)).pop();
            let is_right = |b: &Abd| self.store.is_vouched(&read.bp, read.at, voucher, b);
            return match again {
                Some(again) if again.block.is_ok() || !block.as_ref().is_ok_and(is_right) => {
                    (again, true)
                }
                _ => (Checked { block, faults, left }, false),
            };
        }
        if let Ok(first) = &block
            && self.is_ambiguous(read, first)
        {
            tracing::warn!(at = %read.at, "copies differ, and each satisfies the pointer: all are kept");
            faults.retain(|fault| !fault.is_mismatch());
        }
        (Checked { block, faults, left }, false)
    }

    /// Whether the devices hold another block than `first` that satisfies the pointer. With more parity than one it is not known,
    /// as there are too many ways to make one.
    fn is_ambiguous(&self, read: &Read, first: &Abd) -> bool {
        let top = self.tree.top(read.dva.vdev.into());
        if top.is_none_or(|top| top.nparity() > 1) {
            return false;
        }
        let first = first.bytes();
        let other = |data: &Abd| self.store.is_right(&read.bp, data) && data.bytes() != first;
        let checked = self.tree.check_many(&[read.request(&other)]).pop();
        checked.is_some_and(|checked| checked.block.is_ok())
    }

    /// `forged`: copies satisfy the pointer whose MACs are wrong.
    fn note(&mut self, read: &Read, checked: Checked, forged: bool) {
        let nothing = |_: &Abd| false;
        let request = &read.request(&nothing);
        let Checked { block, mut faults, mut left } = checked;
        if let Err(why) = block {
            let found = self.another_copy(read);
            if forged && found.is_none() {
                // The pointer or the key may be what is wrong.
                faults.clear();
            }
            let is_wrong = matches!(why, VdevError::Checksum { .. });
            if found.is_none() && is_wrong && read.at.level == ZIL_LEVEL {
                // The last block of an intent log may never have been written (`ZIO_FLAG_SPECULATIVE`).
                return;
            }
            let at = (request.vdev, request.offset, request.txg);
            if let Some(block) = &found {
                faults = self.tree.healed_by(at, faults, block);
            } else if read.first {
                let birth = request.txg;
                self.unreadable.push(Unreadable { at: read.at, mismatch: is_wrong, birth });
            }
            // What is lost for good can be given to no leaf.
            if self.func == ScanFunc::Resilver
                && (found.is_some() || !self.store.is_lost(&read.bp, read.at))
            {
                let (lacks, others) = self.tree.lacks_of(request, found.as_ref());
                faults.extend(lacks);
                left = others;
            }
        }
        let txg = request.txg;
        self.left.extend(left.into_iter().map(|guid| (guid, txg)));
        self.faults.extend(faults.into_iter().map(|fault| (txg, fault)));
    }

    /// The block, by another of its copies.
    fn another_copy(&self, read: &Read) -> Option<Abd> {
        let Read { bp, at, dva, header, .. } = read;
        let mut others = bp.dvas().filter(|other| other != dva && !other.gang && !header);
        let scrub = self.func == ScanFunc::Scrub;
        let voucher = scrub.then(|| read.voucher(self.store)).flatten();
        let fetch = |other| self.store.fetch_plain(bp, other, *at, voucher.clone()).ok();
        // Their own faults are found by their own reads.
        others.find_map(|other| Store::attempt(|| fetch(other)).0)
    }
}

/// Whether nothing is wrong in what the MAC of an indirect block leaves out.
fn is_padded(bp: &BlockPointer, data: &Abd) -> bool {
    bp.level() == 0 || verify::is_padded(bp, data)
}

impl Read {
    fn expected<'a>(&self, store: &'a Store) -> Expected<'a> {
        store.expected(&self.bp, self.dva, self.at)
    }

    /// What tells the right bytes, as far as no handler wants it otherwise.
    fn accepter<'a>(
        &self,
        copy: &'a Expected<'_>,
        padded: bool,
    ) -> impl Fn(&Abd) -> bool + Sync + use<'a> {
        let (bp, header) = (self.bp, self.header);
        move |data: &Abd| match header {
            true => verify::gang_header(&bp, &data.bytes()).is_some(),
            false => copy.takes(data) && (!padded || is_padded(&bp, data)),
        }
    }

    /// What tells its MAC.
    fn voucher(&self, store: &Store) -> Option<Reader> {
        if self.header || self.part { None } else { store.voucher(&self.bp, self.at) }
    }

    fn request<'a>(&self, verify: &'a (dyn Fn(&Abd) -> bool + Sync)) -> BlockRead<'a> {
        let Read { bp, dva, size, .. } = *self;
        let (vdev, offset, txg) = (dva.vdev.into(), dva.offset, bp.physical_birth());
        BlockRead { vdev, offset, size, txg, verify }
    }
}
