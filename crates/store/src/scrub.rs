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
//! bytes may satisfy (`pipeline::crypt`). So where the dataset's key is loaded a scrub checks MACs, too, and writes what they vouch
//! for. It has the keys from its view of the pool ([`ScanKeys`]). Where there is no key, and copies differ, another block may satisfy the
//! pointer as well: a *dispute*. Then both stay as they are, and it is counted. A resilver gives a leaf what a MAC vouches for, and where
//! no copy has the right one, what satisfies the pointer: there is nothing better.
//!
//! What is in dispute on a mirror is seen from what was read of all sides. Of one column's parity it takes another look, for all blocks of a
//! batch that need it together; with more parity there are too many ways to make a block.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_vdev::{BlockRead, Checked, Fault, Vdev, VdevError, VdevTree};

use crate::error::{Bookmark, ZIL_LEVEL};
use crate::injection::Expected;
use crate::notes::{Places, Unreadable};
use crate::pipeline::{self, Reader, Store, check, is_vouched};
use crate::scan_keys::ScanKeys;
use crate::verify;

/// What is scanned for (`pool_scan_func_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanFunc {
    /// Everything is read.
    Scrub,
    /// What leaves missed is written to them.
    Resilver,
}

/// A copy of a block to look at.
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
    /// Blocks of which several things satisfy the pointer, and no key was there to tell which of them is right.
    pub disputed: BTreeSet<Bookmark>,
    /// Where wrong bytes were counted that had been met before.
    pub met: Places,
}

impl Scanned {
    /// Says in the log that copies are kept that no key tells apart.
    pub fn warn_of_disputes(&self) {
        let blocks = self.disputed.len();
        if blocks > 0 {
            tracing::warn!(blocks, "copies differ, and no key tells which is right: all are kept");
        }
    }
}

/// A batch under way.
pub(crate) struct Batch<'a> {
    store: &'a Store,
    keys: &'a ScanKeys,
    func: ScanFunc,
    tree: Arc<VdevTree>,
    faults: Vec<(u64, Fault)>,
    unreadable: Vec<Unreadable>,
    left: BTreeSet<(u64, u64)>,
    disputed: BTreeSet<Bookmark>,
}

/// What came of looking at blocks, of which nothing counts yet.
pub(crate) struct Looked {
    pub tree: Arc<VdevTree>,
    /// What leaves have wrong, with the physical births of its blocks.
    pub faults: Vec<(u64, Fault)>,
    pub unreadable: Vec<Unreadable>,
    pub disputed: BTreeSet<Bookmark>,
}

/// A read, and what tells its MAC: asked for once, as a key may be loaded or unloaded meanwhile.
struct Look<'a> {
    read: &'a Read,
    voucher: Option<Reader>,
    /// Bytes satisfied the pointer whose MAC is wrong.
    forged: AtomicBool,
    /// Bytes were taken for the block: what is asked now is whether others could be, too.
    found: AtomicBool,
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
    /// Blocks that cannot be read are listed, and wrong bytes are counted. Of those that were `met` before it is told that they are counted now.
    pub fn scan_many(
        &self,
        func: ScanFunc,
        blocks: &[ScanBlock],
        (keys, met): (&ScanKeys, &Places),
        current: &dyn Fn() -> bool,
    ) -> Option<Scanned> {
        let batch = self.look_at(func, blocks, keys);
        if !current() {
            return None;
        }
        let Batch { tree, faults, unreadable, mut left, disputed, .. } = batch;
        let repaired = tree.repair_many(&faults, current)?;
        faults.iter().for_each(|(_, fault)| fault.charge());
        let wrong = faults.iter().map(|(_, fault)| fault).filter(|fault| fault.is_mismatch());
        let met = wrong.map(Fault::place).filter(|place| met.contains(place)).collect();
        let errors = unreadable.len() as u64;
        self.list_unreadable(unreadable);
        left.extend(repaired.failed);
        Some(Scanned { repaired: repaired.bytes, errors, left, disputed, met })
    }
}

impl Store {
    /// Looks at all copies of some blocks, and writes anew what is wrong. Nothing is listed, and nothing is counted that a read has `counted`:
    /// that is another copy, or parity, which it did not come to. Returns the bytes that were written; `None`: `current` said that
    /// their pointers may be out of date.
    pub fn mend(
        &self,
        blocks: &[ScanBlock],
        keys: &ScanKeys,
        counted: &Places,
        current: &dyn Fn() -> bool,
    ) -> Option<u64> {
        let batch = self.look_at(ScanFunc::Scrub, blocks, keys);
        if !current() {
            return None;
        }
        let repaired = batch.tree.repair_many(&batch.faults, current)?;
        // Bytes of which nothing tells what is right are found, and counted, by others. What cannot be written is counted at each look.
        let is_new = |fault: &&Fault| {
            fault.is_mismatch() && fault.knows_right() && !counted.contains(&fault.place())
        };
        batch.faults.iter().map(|(_, fault)| fault).filter(is_new).for_each(Fault::charge);
        Some(repaired.bytes)
    }

    /// Reads a batch of copies. Nothing counts yet.
    pub(crate) fn look_at<'a>(
        &'a self,
        func: ScanFunc,
        blocks: &[ScanBlock],
        keys: &'a ScanKeys,
    ) -> Batch<'a> {
        let tree = Arc::clone(&self.vdevs());
        let (faults, unreadable, left) = (Vec::new(), Vec::new(), BTreeSet::new());
        let disputed = BTreeSet::new();
        let mut batch = Batch { store: self, keys, func, tree, faults, unreadable, left, disputed };
        batch.read(blocks);
        batch
    }

    /// Lists blocks that were read and make no sense.
    pub fn list_senseless(&self, blocks: Vec<Bookmark>) {
        let unreadable = blocks.into_iter().map(|at| Unreadable { at, mismatch: true, birth: 0 });
        self.list_unreadable(unreadable.collect());
    }
}

impl Batch<'_> {
    pub(crate) fn into_looked(self) -> Looked {
        let Batch { tree, faults, unreadable, disputed, .. } = self;
        Looked { tree, faults, unreadable, disputed }
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
        let looks = reads.iter().map(|read| {
            let (voucher, forged) = (self.voucher(read), AtomicBool::new(false));
            Look { read, voucher, forged, found: AtomicBool::new(false) }
        });
        let looks: Vec<Look<'_>> = looks.collect();
        let all: Vec<&Look<'_>> = looks.iter().collect();
        let mut found = self.checked(&all, |_| |_: &Abd| true);
        if self.func == ScanFunc::Scrub {
            self.prefer_padded(&looks, &mut found);
            self.ask_again(&looks, &mut found);
            self.keep_disputed(&looks, &mut found);
        }
        self.go_by_pointers(&looks, &mut found);
        looks.iter().zip(found).for_each(|(look, checked)| self.note(look, checked));
    }

    /// What tells the MAC of a block.
    fn voucher(&self, read: &Read) -> Option<Reader> {
        let Read { bp, at, header, part, .. } = read;
        match *header || *part {
            true => None,
            false => pipeline::voucher(bp, *at, || self.keys.of(at.objset)),
        }
    }

    /// Reads, and tells what leaves have wrong or lack; by MACs where there is a voucher. `also` makes what a block has to satisfy
    /// besides.
    fn checked<'l, A: Fn(&Abd) -> bool + Sync>(
        &self,
        looks: &[&'l Look<'l>],
        also: impl Fn(usize) -> A,
    ) -> Vec<Checked> {
        let store = self.store;
        let expected = |look: &&Look<'_>| match look.found.load(Relaxed) {
            true => look.read.expected(store).unharmed(),
            false => look.read.expected(store),
        };
        let expected: Vec<_> = looks.iter().map(expected).collect();
        let verifiers: Vec<_> = looks
            .iter()
            .zip(&expected)
            .enumerate()
            .map(|(i, (look, copy))| {
                let also = also(i);
                move |data: &Abd| look.takes(copy, data) && also(data)
            })
            .collect();
        let requests: Vec<BlockRead<'_>> =
            looks.iter().zip(&verifiers).map(|(look, verify)| look.read.request(verify)).collect();
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

    /// The MAC of an indirect block leaves out what is behind that which was compressed. Where copies differ, and the one that was
    /// found has something there, one is taken that has nothing, if there is one.
    fn prefer_padded(&self, looks: &[Look<'_>], found: &mut [Checked]) {
        let is_odd = |look: &Look<'_>, checked: &Checked| {
            let block = checked.block.as_ref().ok().filter(|_| look.voucher.is_some());
            checked.faults.iter().any(Fault::is_mismatch)
                && block.is_some_and(|block| !is_padded(&look.read.bp, block))
        };
        let odd: Vec<usize> = (0..looks.len()).filter(|i| is_odd(&looks[*i], &found[*i])).collect();
        let again: Vec<&Look<'_>> = odd.iter().map(|i| &looks[*i]).collect();
        let padded = |i: usize| {
            let bp = &looks[odd[i]].read.bp;
            move |data: &Abd| is_padded(bp, data)
        };
        for (i, checked) in odd.iter().zip(self.checked(&again, padded)) {
            if checked.block.is_ok() {
                found[*i] = checked;
            }
        }
    }

    /// Where no MAC tells what is right, or other copies have wrong ones, and a device failed to read its copy, it is asked once more: it may
    /// have the right bytes, which others that satisfy the pointer are not to be written over.
    fn ask_again(&self, looks: &[Look<'_>], found: &mut [Checked]) {
        let has_failed = |(look, checked): (&Look<'_>, &Checked)| {
            let failed = |fault: &Fault| !fault.is_mismatch();
            let is_open = match look.is_told() {
                true => look.forged.load(Relaxed) && checked.block.is_err(),
                false => checked.block.is_ok(),
            };
            is_open && checked.faults.iter().any(failed)
        };
        let failed = (0..looks.len()).filter(|i| has_failed((&looks[*i], &found[*i])));
        let failed: Vec<usize> = failed.collect();
        let again: Vec<&Look<'_>> = failed.iter().map(|i| &looks[*i]).collect();
        for (i, checked) in failed.iter().zip(self.checked(&again, |_| |_: &Abd| true)) {
            if checked.block.is_ok() {
                found[*i] = checked;
            }
        }
    }

    /// Where copies differ, each satisfies the pointer, and no MAC tells which is right, none is written anew.
    fn keep_disputed(&mut self, looks: &[Look<'_>], found: &mut [Checked]) {
        let is_open = |look: &Look<'_>, checked: &Checked| {
            let differs = checked.faults.iter().any(Fault::is_mismatch);
            !look.is_told() && checked.block.is_ok() && differs
        };
        let (mut disputed, mut of_parity) = (Vec::new(), Vec::new());
        for i in (0..looks.len()).filter(|i| is_open(&looks[*i], &found[*i])) {
            let nothing = |_: &Abd| false;
            match self.tree.parity_of(&looks[i].read.request(&nothing)) {
                0 if found[i].faults.iter().any(Fault::is_rival) => disputed.push(i),
                1 => of_parity.push(i),
                _ => {}
            }
        }
        let again: Vec<&Look<'_>> = of_parity.iter().map(|i| &looks[*i]).collect();
        let firsts = of_parity.iter().map(|i| found[*i].block.as_ref().ok().cloned());
        let firsts: Vec<Option<Abd>> = firsts.collect();
        let others = |i: usize| {
            let first = &firsts[i];
            move |data: &Abd| first.as_ref().is_some_and(|f| f.bytes() != data.bytes())
        };
        let again = self.checked(&again, others);
        let rivals = of_parity.iter().zip(again).filter(|(_, again)| again.block.is_ok());
        for (i, _) in rivals {
            // Parity, or any of the columns, may be what is wrong.
            found[*i].faults.retain(|fault| !fault.is_mismatch());
            disputed.push(*i);
        }
        for i in &disputed {
            let faults = std::mem::take(&mut found[*i].faults).into_iter();
            // Which of two a third side is to have is not known: it is charged only.
            found[*i].faults = faults.filter(|f| !f.is_rival()).map(Fault::unhealed).collect();
        }
        self.disputed.extend(disputed.iter().map(|i| looks[*i].read.at));
    }

    /// Where bytes satisfy the pointer, and no copy has the right MAC, the pointer or the key may be what is wrong. A resilver gives what
    /// satisfies the pointer. Of a mirror it is told besides which sides have something else: these are charged. Nothing is written
    /// in the place of what is there.
    fn go_by_pointers(&mut self, looks: &[Look<'_>], found: &mut [Checked]) {
        let is_doubted = |look: &Look<'_>, checked: &Checked| {
            let forged = checked.block.is_err() && look.forged.load(Relaxed);
            forged && self.another_copy(look).is_none()
        };
        let pairs = looks.iter().zip(found.iter()).enumerate();
        let doubted = pairs.filter(|(_, (look, checked))| is_doubted(look, checked));
        let doubted: Vec<usize> = doubted.map(|(i, _)| i).collect();
        let again: Vec<Look<'_>> = doubted.iter().map(|i| looks[*i].without_key()).collect();
        let again: Vec<&Look<'_>> = again.iter().collect();
        let checked = self.checked(&again, |_| |_: &Abd| true);
        let nothing = |_: &Abd| false;
        for ((i, look), checked) in doubted.into_iter().zip(&again).zip(checked) {
            let Read { at, first, ref bp, .. } = *look.read;
            let voucher = looks[i].voucher.as_ref();
            let tells = self.tree.parity_of(&look.read.request(&nothing)) == 0;
            let Checked { block, faults, mut left } = checked;
            if block.is_err() {
                found[i].faults.retain(|fault| !fault.is_mismatch());
                continue;
            }
            let is_told = |fault: &Fault| !fault.is_mismatch() || tells && !fault.is_rival();
            let unhealed =
                |fault: Fault| if fault.is_lack() { fault } else { Fault::unhealed(fault) };
            let faults: Vec<Fault> = faults.into_iter().filter(is_told).map(unhealed).collect();
            if self.func == ScanFunc::Scrub {
                found[i].faults = faults;
                continue;
            }
            // Leaves get it, and lack it still: a device may have the right one that could not be read.
            if !self.store.stays_unvouched(bp, at, voucher) {
                left.extend(faults.iter().filter(|f| f.is_lack()).map(|f| f.leaf().guid()));
            }
            found[i] = Checked { block, faults, left };
            if first {
                let birth = bp.physical_birth();
                self.unreadable.push(Unreadable { at, mismatch: true, birth });
            }
        }
    }

    fn note(&mut self, look: &Look<'_>, checked: Checked) {
        let nothing = |_: &Abd| false;
        let read = look.read;
        let request = &read.request(&nothing);
        let Checked { block, mut faults, mut left } = checked;
        if let Err(why) = block {
            let found = self.another_copy(look);
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
            if self.func == ScanFunc::Resilver {
                let (lacks, others) = self.lacks_of(look, found);
                faults.extend(lacks);
                left = others;
            }
        }
        let txg = request.txg;
        self.left.extend(left.into_iter().map(|guid| (guid, txg)));
        self.faults.extend(faults.into_iter().map(|fault| (txg, fault)));
    }

    /// Which leaves lack a block that could not be read here, of which `found` is another copy; and the guids of those that lack it still. Where
    /// none has the right MAC another one is taken that satisfies the pointer.
    fn lacks_of(&self, look: &Look<'_>, found: Option<Abd>) -> (Vec<Fault>, Vec<u64>) {
        let (Read { bp, at, .. }, nothing) = (look.read, |_: &Abd| false);
        let request = look.read.request(&nothing);
        let voucher = look.voucher.as_ref();
        let is_vouched = found.is_some() || voucher.is_none();
        let given = found.or_else(|| voucher.and_then(|_| self.another_copy(&look.without_key())));
        // What is lost for good can be given to no leaf.
        if given.is_none() && self.store.is_lost(bp, *at) {
            return (Vec::new(), Vec::new());
        }
        let (lacks, mut left) = self.tree.lacks_of(&request, given.as_ref());
        if !is_vouched && !self.store.stays_unvouched(bp, *at, voucher) {
            left.extend(lacks.iter().map(|fault| fault.leaf().guid()));
        }
        (lacks, left)
    }

    /// The block, by another of its copies.
    fn another_copy(&self, look: &Look<'_>) -> Option<Abd> {
        let Read { bp, at, dva, header, .. } = look.read;
        let mut others = bp.dvas().filter(|other| other != dva && !other.gang && !header);
        let fetch = |other| self.store.fetch_plain(bp, other, *at, look.voucher.clone()).ok();
        // Their own faults are found by their own reads.
        others.find_map(|other| Store::attempt(|| fetch(other)).0)
    }
}

impl<'a> Look<'a> {
    /// Whether wrong bytes that satisfy the pointer are told from the right ones, or there are none.
    fn is_told(&self) -> bool {
        self.read.header || self.voucher.is_some() || !verify::is_weak(&self.read.bp)
    }

    /// The same, by the pointer alone.
    fn without_key(&self) -> Look<'a> {
        let no = || AtomicBool::new(false);
        Look { read: self.read, voucher: None, forged: no(), found: no() }
    }

    /// Whether these are the right bytes, as far as no handler wants it otherwise before some were found.
    fn takes(&self, copy: &Expected<'_>, data: &Abd) -> bool {
        let bp = &self.read.bp;
        if self.read.header {
            return verify::gang_header(bp, &data.bytes()).is_some();
        }
        let takes = match self.found.load(Relaxed) {
            true => copy.is_right(data),
            false => copy.takes(data),
        };
        if !takes {
            return false;
        }
        let vouched = self.voucher.as_ref().is_none_or(|by| is_vouched(bp, by, data));
        let is = if vouched { &self.found } else { &self.forged };
        is.store(true, Relaxed);
        vouched
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

    fn request<'a>(&self, verify: &'a (dyn Fn(&Abd) -> bool + Sync)) -> BlockRead<'a> {
        let Read { bp, dva, size, .. } = *self;
        let (vdev, offset, txg) = (dva.vdev.into(), dva.offset, bp.physical_birth());
        BlockRead { vdev, offset, size, txg, verify }
    }
}
