//! Indirect vdevs: what is left of a top-level vdev that was removed from the pool.
//!
//! A mapping, kept in the meta object set, says where its data were copied to. A block that was
//! one piece on the removed vdev may have been cut into several that lie apart, even on another
//! vdev that was itself removed later: [`resolve`] follows mappings until it arrives at vdevs
//! with data.
//!
//! A block in one piece is read as any other. Only the whole of a block in several pieces has a
//! checksum: if it does not verify, the copies of each piece are compared, and combinations of
//! those that differ are tried within a bound.
//!
//! The code that frees such a block needs to know as well where it was on each removed vdev on the way ([`remapped`]).
//!
//! Invariants: what is resolved has exactly the size asked for, in at most [`MAX_PIECES`]
//! pieces, through at most [`MAX_HOPS`] mappings, whatever the mappings say.

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

use cenote_format::abd::Abd;
use cenote_format::invariant;

use crate::dtl::Trust;
use crate::submit::Submit;
use crate::tree::Place;
use crate::vdev::{Kind, Vdev};
use crate::{Fault, IndirectMap, Remap, Remapped, VdevError, Verify, mirror, raidz, tunables};

/// Most pieces that a block may be in: 16 MiB in sectors of 512 bytes.
const MAX_PIECES: usize = 32 << 10;
/// Most removed vdevs that a block may have come through.
const MAX_HOPS: usize = 64;

/// The mappings installed so far, by top-level vdev.
pub(crate) type Maps = RwLock<HashMap<u64, Arc<dyn IndirectMap>>>;

/// Finds where `place` really is: pieces on vdevs that hold data, in order.
pub(crate) fn resolve<'a>(
    tops: &'a [Arc<Vdev>],
    maps: &Maps,
    place: Place<'a>,
) -> Result<Vec<Place<'a>>, VdevError> {
    follow(tops, maps, place, &mut |_| ())
}

/// Finds where `place` really is, and what it takes of removed vdevs (`vdev_indirect_remap`).
pub(crate) fn remapped(
    tops: &[Arc<Vdev>],
    maps: &Maps,
    place: Place<'_>,
) -> Result<Remapped, VdevError> {
    let remap = |p: Place<'_>| Remap { vdev: p.vdev.id(), offset: p.offset, size: p.size as u64 };
    let mut removed = Vec::new();
    let pieces = follow(tops, maps, place, &mut |passed| removed.push(remap(passed)))?;
    Ok(Remapped { pieces: pieces.into_iter().map(remap).collect(), removed })
}

/// As [`resolve`]; `passed` is told each place on a removed vdev on the way.
fn follow<'a>(
    tops: &'a [Arc<Vdev>],
    maps: &Maps,
    place: Place<'a>,
    passed: &mut dyn FnMut(Place<'a>),
) -> Result<Vec<Place<'a>>, VdevError> {
    let mut pieces = vec![place];
    for _ in 0..MAX_HOPS {
        if pieces.iter().all(|p| p.vdev.vdev_kind() != Kind::Indirect) {
            let (found, wanted) = (pieces.iter().map(|p| p.size).sum::<usize>(), place.size);
            let (vdev, offset) = (place.vdev.id(), place.offset);
            invariant!(
                found == wanted,
                "vdev {vdev}: {found} bytes are found of {wanted} at {offset:#x}"
            );
            return Ok(pieces);
        }
        let mut next = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if piece.vdev.vdev_kind() == Kind::Indirect {
                passed(piece);
                remap(tops, maps, piece, &mut next)?;
            } else {
                next.push(piece);
            }
            if next.len() > MAX_PIECES {
                return Err(place.error("the block is mapped to too many pieces"));
            }
        }
        pieces = next;
    }
    Err(place.error("the mappings of removed vdevs go round in a circle"))
}

/// Appends the pieces that the mapping of one removed vdev gives for `place`.
fn remap<'a>(
    tops: &'a [Arc<Vdev>],
    maps: &Maps,
    place: Place<'a>,
    out: &mut Vec<Place<'a>>,
) -> Result<(), VdevError> {
    let map = {
        let maps = maps.read();
        maps.get(&place.vdev.id()).cloned()
    };
    let map = map.ok_or_else(|| place.error("the mapping of the removed vdev is not loaded"))?;
    let pieces = map.remap(place.offset, place.size as u64);
    let pieces = pieces.ok_or_else(|| place.error("not in the mapping of the removed vdev"))?;
    let mut left = place.size as u64;
    for piece in pieces {
        let vdev = crate::tree::top(tops, piece.vdev)?;
        let rest = left.checked_sub(piece.size).filter(|_| piece.size > 0);
        left = rest.ok_or_else(|| place.error("the mapping's pieces do not fit"))?;
        out.push(Place { vdev, offset: piece.offset, size: piece.size as usize, txg: place.txg });
    }
    if left > 0 {
        return Err(place.error("the mapping's pieces do not fit"));
    }
    Ok(())
}

/// What a piece may be: each different contents, with the leaves that hold it.
struct Choices(Vec<(Abd, Vec<Arc<Vdev>>)>);

impl Choices {
    /// Reports each leaf whose contents are not those with number `right`; `None`: no contents are right.
    fn wrong(&self, place: &Place<'_>, right: Option<usize>, faults: &mut Vec<Fault>) {
        let known = right.and_then(|right| Some(&self.0.get(right)?.0));
        let others = self.0.iter().enumerate().filter(|(i, _)| Some(*i) != right);
        for leaf in others.flat_map(|(_, (_, leaves))| leaves) {
            // Of RAID-Z it is the vdev, which is not written to by itself.
            if leaf.trust(place.txg).is_none_or(|t| t == Trust::Good) {
                let fault = Fault::mismatch(leaf, place.offset);
                faults.push(known.map_or(fault.clone(), |bytes| fault.with_right(bytes.clone())));
            }
        }
    }
}

/// Reads a block that is in several pieces; `whole` is what was asked for.
pub(crate) fn read_split(
    submit: Submit<'_>,
    whole: Place<'_>,
    pieces: &[Place<'_>],
    verify: Verify<'_>,
    faults: &mut Vec<Fault>,
) -> Result<Abd, VdevError> {
    let mut read = |p: &Place<'_>| p.read(submit, &|_| true, &mut *faults);
    let first: Vec<Abd> = pieces.iter().map(&mut read).collect::<Result<_, _>>()?;
    let block = join(first.iter());
    if verify(&block) {
        return Ok(block);
    }
    // A copy that was not waited for might be the right one.
    let all = |p: &Place<'_>| all_contents(submit.patient(), p);
    let choices: Vec<Choices> = pieces.iter().map(all).collect();
    let checksum = VdevError::Checksum { vdev: whole.vdev.id(), offset: whole.offset };
    let mut picks = vec![0; choices.len()];
    for _ in 0..tunables::RECONSTRUCT_COMBINATIONS.get() {
        let parts: Option<Vec<&Abd>> =
            choices.iter().zip(&picks).map(|(c, p)| Some(&c.0.get(*p)?.0)).collect();
        let Some(parts) = parts else { break };
        let block = join(parts);
        if verify(&block) {
            let others = pieces.iter().zip(&choices).zip(&picks);
            others.for_each(|((p, c), pick)| c.wrong(p, Some(*pick), faults));
            return Ok(block);
        }
        if !advance(&choices, &mut picks) {
            break;
        }
    }
    pieces.iter().zip(&choices).for_each(|(p, c)| c.wrong(p, None, faults));
    Err(checksum)
}

fn join<'a>(parts: impl IntoIterator<Item = &'a Abd>) -> Abd {
    let mut bytes = Vec::new();
    for part in parts {
        part.chunks().for_each(|c| bytes.extend_from_slice(c));
    }
    Abd::from_vec(bytes)
}

/// The different contents that the copies of a piece have.
fn all_contents(submit: Submit<'_>, place: &Place<'_>) -> Choices {
    let mut contents: Vec<(Abd, Vec<Arc<Vdev>>)> = Vec::new();
    let copies = match place.vdev.vdev_kind() {
        Kind::RaidZ | Kind::Draid => {
            // Reconstruction needs a checksum to go by, which a piece does not have.
            let read = raidz::Read::plan_waiting(place.vdev, place.offset, place.size, place.txg);
            let block = read.and_then(|mut read| {
                let results = crate::submit::read_leaves(submit, &read.first_reads());
                read.finish(submit, results, &|_| true, &mut Vec::new()).ok()
            });
            block.into_iter().map(|b| (place.vdev.clone(), b)).collect()
        }
        _ => mirror::Read::plan(place.vdev, place.offset, place.size, place.txg).all_copies(submit),
    };
    for (leaf, bytes) in copies {
        match contents.iter_mut().find(|(b, _)| b.bytes() == bytes.bytes()) {
            Some((_, leaves)) => leaves.push(leaf),
            None => contents.push((bytes, vec![leaf])),
        }
    }
    Choices(contents)
}

/// Moves on to the next combination. `false` after the last one.
fn advance(choices: &[Choices], picks: &mut [usize]) -> bool {
    for (choice, pick) in choices.iter().zip(picks) {
        *pick += 1;
        if *pick < choice.0.len() {
            return true;
        }
        *pick = 0;
    }
    false
}
