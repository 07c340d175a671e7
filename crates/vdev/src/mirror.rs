//! Mirrors, and the single leaf as a mirror of one (`vdev_mirror_child_select`).
//!
//! Mirrors, replacing and spare vdevs hold the same data on every child, so below such a vdev all
//! leaves are copies of each other. They are tried in order of trust until one verifies: first
//! those that have the block's transaction group, then stale ones, last those that are out of
//! use. Among equals those come last whose devices hang; of the others the one with the fewest reads
//! under way comes first, and among idle ones the choice goes by megabytes of the offset, so that
//! sequential reads stay on one side for a while and still use all.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cenote_format::abd::Abd;

use crate::dtl::Trust;
use crate::patience::GaveUp;
use crate::submit::{LeafRead, Piece, Submit, read_leaves};
use crate::vdev::{Kind, Vdev};
use crate::{Fault, VdevError, Verify};

/// Reads for which one leaf was better than all others (`preferred_found`).
static PREFERRED: AtomicU64 = AtomicU64::new(0);
/// Reads for which several were equal (`preferred_not_found`).
static EQUAL: AtomicU64 = AtomicU64::new(0);

/// How often one leaf of a mirror was better than all others for a read, and how often several were equal
/// (`mirror_stats_t`).
pub fn choices() -> (u64, u64) {
    (PREFERRED.load(Relaxed), EQUAL.load(Relaxed))
}

/// What a leaf is chosen by: its trust, whether its device hangs, the reads under way.
type Rank = (Trust, bool, u64);

/// The leaves below `vdev` that hold the same data, in the order in which to try them (`vdev_mirror_child_select`).
/// Those without a device are left out.
pub(crate) fn leaves_by_trust(vdev: &Arc<Vdev>, offset: u64, txg: u64) -> Vec<Arc<Vdev>> {
    let mut leaves = Vec::new();
    copies(vdev, &mut leaves);
    let mut ranked: Vec<(Rank, usize, Arc<Vdev>)> = Vec::with_capacity(leaves.len());
    let n = leaves.len();
    let turn = (offset >> 20) as usize % n.max(1);
    for (i, leaf) in leaves.into_iter().enumerate() {
        if let Some(trust) = leaf.trust_at(offset, txg) {
            let rank = (trust, n > 1 && leaf.stats.activity.hangs(), leaf.stats.reads.in_flight());
            ranked.push((rank, (i + n - turn) % n, leaf));
        }
    }
    ranked.sort_by_key(|(rank, order, _)| (*rank, *order));
    if let [(rank, ..), (next, ..), ..] = ranked.as_slice() {
        let preferred = rank != next;
        let count = if preferred { &PREFERRED } else { &EQUAL };
        count.fetch_add(1, Relaxed);
    }
    ranked.into_iter().map(|(.., leaf)| leaf.reader_at(offset, txg)).collect()
}

/// Appends the leaves below `vdev` that hold the same data.
pub(crate) fn copies(vdev: &Arc<Vdev>, out: &mut Vec<Arc<Vdev>>) {
    if vdev.is_leaf() {
        out.push(vdev.clone());
    } else if vdev.vdev_kind().is_mirror_like() {
        vdev.children().iter().for_each(|c| copies(c, out));
    }
}

/// As [`copies`], and those that have byte `offset` of distributed spares among them, and of the spares among those.
pub(crate) fn reach(vdev: &Arc<Vdev>, offset: u64, out: &mut Vec<Arc<Vdev>>) {
    let mut next = out.len();
    copies(vdev, out);
    while let Some(leaf) = out.get(next).cloned() {
        out.extend(leaf.place_at(offset));
        next += 1;
    }
}

/// Whether `leaf` takes what is written to it at byte `offset`, and the leaves that do not get it: itself, or, if it is a
/// distributed spare that takes writes, those among its places there. A leaf goes out of use at any time. So each is asked once: what
/// does not take it is among those that do not get it.
pub(crate) fn takers(leaf: &Arc<Vdev>, offset: u64) -> (bool, Vec<Arc<Vdev>>) {
    if !leaf.writable() {
        return (false, vec![leaf.clone()]);
    }
    if !leaf.is_distributed() {
        return (true, Vec::new());
    }
    let (mut takes, mut absent) = (false, Vec::new());
    for below in leaf.place_at(offset) {
        let (takes_it, others) = takers(&below, offset);
        takes |= takes_it;
        absent.extend(others);
    }
    if !takes && absent.is_empty() {
        // Its tree is not in use.
        absent.push(leaf.clone());
    }
    (takes, absent)
}

/// The leaves that did not get what was written to `leaf` at byte `offset`, asked before any can come back: what has gone out since is
/// among them.
pub(crate) fn absent(leaf: &Arc<Vdev>, offset: u64) -> Vec<Arc<Vdev>> {
    takers(leaf, offset).1
}

/// A block under way.
pub(crate) struct Read<'a> {
    vdev: &'a Arc<Vdev>,
    offset: u64,
    size: usize,
    txg: u64,
    leaves: Vec<Arc<Vdev>>,
}

impl<'a> Read<'a> {
    /// Plans the read of `size` bytes at `offset` (`vdev_mirror_io_start`).
    pub(crate) fn plan(vdev: &'a Arc<Vdev>, offset: u64, size: usize, txg: u64) -> Self {
        let leaves = leaves_by_trust(vdev, offset, txg);
        Read { vdev, offset, size, txg, leaves }
    }

    /// The read to submit first, if there is any device; its result goes to [`Read::finish`].
    pub(crate) fn first_read(&self) -> Option<LeafRead> {
        self.leaves.first().map(|leaf| self.read_of(leaf))
    }

    /// Whether at most one device has the block.
    pub(crate) fn has_one_device(&self) -> bool {
        self.leaves.len() <= 1
    }

    fn read_of(&self, leaf: &Arc<Vdev>) -> LeafRead {
        LeafRead { leaf: leaf.clone(), offset: self.offset, len: self.size }
    }

    /// The block, given the result of [`Read::first_read`] (`vdev_mirror_io_done`).
    pub(crate) fn finish(
        self,
        submit: Submit<'_>,
        first: Option<io::Result<Piece>>,
        verify: Verify<'_>,
        faults: &mut Vec<Fault>,
    ) -> Result<Abd, VdevError> {
        let (mut error, mut bad, mut gave_up) = (None, false, false);
        let (mut result, mut wrong) = (first, Vec::new());
        for (i, leaf) in self.leaves.iter().enumerate() {
            if i > 0 {
                result = read_leaves(submit, &[self.read_of(leaf)]).pop();
            }
            match result.take() {
                Some(Ok(piece)) if verify(&piece.bytes) => {
                    let block = piece.into_own();
                    faults.extend(wrong.into_iter().map(|f: Fault| f.with_right(block.clone())));
                    return Ok(block);
                }
                Some(Ok(_)) => {
                    bad = true;
                    // A copy that was not expected to be right is no fault of the device.
                    if leaf.trust_at(self.offset, self.txg) == Some(Trust::Good) {
                        wrong.push(Fault::mismatch(leaf, self.offset));
                    }
                }
                Some(Err(e)) if GaveUp::is(&e) => gave_up = true,
                Some(Err(e)) => {
                    error = Some(e.to_string());
                    wrong.push(Fault::unreadable(leaf, self.offset));
                }
                None => {}
            }
        }
        if gave_up {
            let again = Read::plan(self.vdev, self.offset, self.size, self.txg);
            let first = again.first_read();
            let first = first.and_then(|read| read_leaves(submit.patient(), &[read]).pop());
            return again.finish(submit.patient(), first, verify, faults);
        }
        faults.append(&mut wrong);
        Err(self.failed(error, bad))
    }

    /// Every copy, as far as they can be read, with its leaf.
    pub(crate) fn all_copies(&self, submit: Submit<'_>) -> Vec<(Arc<Vdev>, Abd)> {
        let reads: Vec<LeafRead> = self.leaves.iter().map(|l| self.read_of(l)).collect();
        let results = read_leaves(submit, &reads);
        let copies = self.leaves.iter().zip(results);
        copies.filter_map(|(l, r)| Some((l.clone(), r.ok()?.into_own()))).collect()
    }

    fn failed(&self, error: Option<String>, bad: bool) -> VdevError {
        let (vdev, offset) = (self.vdev.id(), self.offset);
        if bad {
            return VdevError::Checksum { vdev, offset };
        }
        if self.vdev.vdev_kind() == Kind::Mirror {
            self.vdev.stats.reads.error();
        }
        let why = error.unwrap_or_else(|| "no device".into());
        VdevError::Io { vdev, offset, why }
    }
}
