//! The copies of a block on the devices: reading them, one after the other until one is right, and healing those that were
//! wrong (`zio_vdev_io_start`, `zio_vdev_io_assess`).
//!
//! Many blocks are fetched at once: from the cache devices those that are there, then the first copies of all others as
//! one batch. Gang blocks, and blocks whose first copy failed, are read one by one, copy after copy. A copy that is right is
//! written over those before it that were wrong; but where only a key can tell that a block is wrong and no copy is right,
//! nothing is written over.

use super::unpack::{no_copy, vdev_error};
use super::{Reader, Store, Wanted, is_vouched};
use crate::arc::Access;
use crate::error::{BlockError, Bookmark};
use crate::gang::Assembly;
use crate::injection::Expected;
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_vdev::{BlockRead, Fault, Outcome, Priority, VdevError, VdevTree};
use std::sync::Arc;

impl Store {
    /// Reads blocks into the ARC, from cache devices or from the devices of the pool. `ahead`: they are not needed yet, but will be by this
    /// kind of access.
    pub(super) fn fetch_many(
        &self,
        wanted: &[Wanted],
        ahead: Option<Access>,
    ) -> Vec<Result<Abd, BlockError>> {
        if !self.l2arc.is_on() {
            return self.fetch_from_pool(wanted, ahead);
        }
        let found = self.on_cache_devices(wanted, ahead);
        if found.iter().all(Option::is_none) {
            return self.fetch_from_pool(wanted, ahead);
        }
        let missing = wanted.iter().zip(&found).filter(|(_, found)| found.is_none());
        let missing: Vec<Wanted> = missing.map(|(request, _)| *request).collect();
        let mut read = self.fetch_from_pool(&missing, ahead).into_iter();
        let take = |((bp, at, key), found): (&Wanted, Option<Abd>)| {
            let Some(data) = found else {
                return read.next().unwrap_or_else(|| Err(no_copy(bp, *at)));
            };
            if ahead.is_some() && self.policies.keeps(bp, *at) || self.keeps(bp, *at) {
                self.keep((key, *at), bp, data.clone(), ahead.unwrap_or(Access::Demand));
            }
            Ok(data)
        };
        wanted.iter().zip(found).map(take).collect()
    }

    /// Reads blocks from the devices of the pool into the ARC: the first copies as one batch, then what failed
    /// (and gang blocks) one by one.
    fn fetch_from_pool(
        &self,
        wanted: &[Wanted],
        ahead: Option<Access>,
    ) -> Vec<Result<Abd, BlockError>> {
        let first = |(bp, ..): &Wanted| bp.dva(0).filter(|dva| !dva.gang);
        let plain = wanted.iter().filter_map(|request| Some((request, first(request)?)));
        let expected: Vec<_> =
            plain.map(|((bp, at, _), dva)| self.expected(bp, dva, *at)).collect();
        let checks: Vec<_> = expected.iter().map(|copy| |data: &Abd| copy.takes(data)).collect();
        let plain = wanted.iter().filter_map(|request| Some((&request.0, first(request)?)));
        let reads: Vec<BlockRead<'_>> = plain
            .zip(&checks)
            .map(|((bp, dva), verify)| {
                let (vdev, offset, size) = (dva.vdev.into(), dva.offset, bp.psize());
                BlockRead { vdev, offset, size, txg: bp.physical_birth(), verify }
            })
            .collect();
        let tree = self.vdevs();
        let priority = ahead.map_or_else(Priority::of_reads, |_| Priority::AsyncRead);
        let settle = |(outcome, copy): (Outcome<_>, &Expected<'_>)| {
            let (block, faults) = copy.settle(outcome.block, outcome.faults);
            Outcome { block, faults }
        };
        let mut results =
            tree.read_many_as(priority, &reads).into_iter().zip(&expected).map(settle);
        let mut finish = |request: &Wanted| {
            let (bp, at, key) = request;
            let outcome = first(request).and_then(|_| results.next());
            let read = || match outcome {
                Some(outcome) => self.first_copy(bp, *at, &tree, outcome),
                None => self.fetch(bp, *at, 0),
            };
            let (data, sound) = match ahead {
                None => (read()?, true),
                Some(_) => {
                    let (data, notes) = Store::attempt(read);
                    (data?, notes.is_empty())
                }
            };
            if sound && (ahead.is_some() && self.policies.keeps(bp, *at) || self.keeps(bp, *at)) {
                let access = ahead.unwrap_or(Access::Demand);
                self.keep((key, *at), bp, data.clone(), access);
            }
            Ok(data)
        };
        wanted.iter().map(&mut finish).collect()
    }

    /// The block, given what came of reading its first copy, which is in one piece.
    fn first_copy(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        tree: &Arc<VdevTree>,
        outcome: Outcome<Result<Abd, VdevError>>,
    ) -> Result<Abd, BlockError> {
        let Outcome { block, faults } = outcome;
        match block {
            Err(_) if bp.dva(1).is_some() => {
                let lost = bp.dva(0).map(|dva| (tree.clone(), dva, faults));
                self.other_copy(bp, at, 1, lost.into_iter().collect(), None)
            }
            Ok(block) => {
                let noted = bp.dva(0).map(|dva| (tree.clone(), dva, faults));
                Ok(self.healing(bp, at, block, noted.into_iter().collect()))
            }
            Err(source) => {
                self.note_faults(tree, (bp, at), faults);
                Err(vdev_error(bp, at, source))
            }
        }
    }

    /// A block that was found, and what was wrong about it on the way. Where a key tells that the block itself is wrong, another copy is
    /// taken; and if there is none, nothing is written in the place of others.
    fn healing(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        block: Abd,
        mut faults: Vec<(Arc<VdevTree>, Dva, Vec<Fault>)>,
    ) -> Abd {
        let is_wrong = faults.iter().any(|(.., faults)| !faults.is_empty());
        let voucher = if is_wrong { self.voucher(bp, at) } else { None };
        let forged = voucher.filter(|by| !is_vouched(bp, by, &block));
        let (mut found, birth) = (None, bp.physical_birth());
        if let Some(voucher) = forged {
            let (read, notes) = Store::attempt(|| self.fetch_vouched(bp, at, voucher));
            found = read.ok();
            if let Some(found) = &found
                && !notes.is_empty()
            {
                self.note(notes);
                return found.clone();
            }
            // Sides are read by turns, and this time the right one came first. What the others have is known from before.
            for (tree, dva, faults) in &mut faults {
                let place = (dva.vdev.into(), dva.offset, birth);
                let wrong: Vec<Fault> =
                    std::mem::take(faults).into_iter().map(Fault::unhealed).collect();
                *faults = match &found {
                    Some(right) => tree.healed_by(place, wrong, right),
                    None => wrong,
                };
            }
        }
        for (tree, _, faults) in faults {
            self.note_faults(&tree, (bp, at), faults);
        }
        found.unwrap_or(block)
    }

    /// Reads from the devices, trying the copies from `first` on.
    pub(super) fn fetch(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        first: usize,
    ) -> Result<Abd, BlockError> {
        self.other_copy(bp, at, first, Vec::new(), None)
    }

    /// Reads from the devices: a copy whose MAC is right, as `voucher` tells ([`Store::voucher`]).
    pub(crate) fn fetch_vouched(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        voucher: Reader,
    ) -> Result<Abd, BlockError> {
        self.other_copy(bp, at, 0, Vec::new(), Some(voucher))
    }

    /// As [`Store::fetch`], where copies before `first` could not be read: `faults` says which leaves were wrong
    /// about them. With the block of a later copy they are healed, too. If there is a `voucher`, copies have to have the right MAC.
    fn other_copy(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        first: usize,
        mut lost: Vec<(Arc<VdevTree>, Dva, Vec<Fault>)>,
        voucher: Option<Reader>,
    ) -> Result<Abd, BlockError> {
        let birth = bp.physical_birth();
        let mut done = Err(no_copy(bp, at));
        let (mut noted, mut unread) = (Vec::new(), None);
        for dva in bp.dvas().skip(first) {
            done = match dva.gang {
                true => self.fetch_copy(bp, dva, at).and_then(|whole| match &voucher {
                    Some(voucher) if !is_vouched(bp, voucher, &whole) => {
                        Err(BlockError::Checksum { at, bp: Box::new(*bp) })
                    }
                    _ => Ok(whole),
                }),
                false => {
                    let (block, faults) = self.read_plain(bp, dva, at, voucher.clone());
                    match block.is_ok() {
                        true => noted.push((Arc::clone(&self.vdevs()), dva, faults)),
                        false => lost.push((Arc::clone(&self.vdevs()), dva, faults)),
                    }
                    block
                }
            };
            match &done {
                Ok(_) => break,
                Err(why @ BlockError::Vdev { .. }) if voucher.is_some() => {
                    unread.get_or_insert_with(|| why.clone());
                }
                Err(_) => {}
            }
        }
        // What was not read may have the right MAC.
        done = done.map_err(|why| unread.unwrap_or(why));
        for (tree, dva, faults) in lost {
            let faults = match &done {
                Ok(block) => tree.healed_by((dva.vdev.into(), dva.offset, birth), faults, block),
                Err(_) => faults,
            };
            noted.push((tree, dva, faults));
        }
        match done {
            // Its MAC was looked at.
            Ok(block) if voucher.is_none() => Ok(self.healing(bp, at, block, noted)),
            done => {
                for (tree, _, faults) in noted {
                    self.note_faults(&tree, (bp, at), faults);
                }
                done
            }
        }
    }

    /// Reads and verifies one copy.
    pub(crate) fn fetch_copy(
        &self,
        bp: &BlockPointer,
        dva: Dva,
        at: Bookmark,
    ) -> Result<Abd, BlockError> {
        if dva.gang {
            Assembly::new(self, bp, at).copy(bp, dva, 0)
        } else {
            self.fetch_plain(bp, dva, at, None)
        }
    }

    /// Reads and verifies a copy that is in one piece; by its MAC as well if there is a `voucher`.
    pub(crate) fn fetch_plain(
        &self,
        bp: &BlockPointer,
        dva: Dva,
        at: Bookmark,
        voucher: Option<Reader>,
    ) -> Result<Abd, BlockError> {
        let (block, faults) = self.read_plain(bp, dva, at, voucher);
        self.note_faults(&self.vdevs(), (bp, at), faults);
        block
    }

    /// The same; faults are not noted yet.
    fn read_plain(
        &self,
        bp: &BlockPointer,
        dva: Dva,
        at: Bookmark,
        voucher: Option<Reader>,
    ) -> (Result<Abd, BlockError>, Vec<Fault>) {
        let expected = self.expected(bp, dva, at).vouched_by(voucher);
        let verify = |data: &Abd| expected.takes(data);
        let (vdev, offset, size) = (dva.vdev.into(), dva.offset, bp.psize());
        let read = BlockRead { vdev, offset, size, txg: bp.physical_birth(), verify: &verify };
        let Outcome { block, faults } = self.vdevs().read_one(&read);
        let (block, faults) = expected.settle(block, faults);
        (block.map_err(|source| vdev_error(bp, at, source)), faults)
    }
}
