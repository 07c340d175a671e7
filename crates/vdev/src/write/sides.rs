//! Pieces of a vdev that move to another one as they are (`spa_vdev_copy_one_child`).
//!
//! A piece has no checksum: it is whatever is allocated there, blocks or parts of blocks. So nothing tells which side of a
//! mirror is right where sides differ. Each side of the new vdev then gets the bytes of another side of the old one:
//! what could be read before can be read afterwards. Where the new vdev has fewer sides than there are different ones,
//! the piece does not move, until a scrub has made the sides the same.
//!
//! Where a side cannot be read, the piece is divided for it: into [`CHUNK`]s, and those that fail into sectors. What it has not
//! is taken from another side, sector by sector. So one bad sector costs a side nothing else.
//!
//! A device that does not answer may have what no other has: the piece does not move before it answers, or is out of use. Disks
//! take up to minutes to find that a sector is bad. So a device is waited for, and is asked for nothing twice meanwhile.
//!
//! What fails counts as one error of its device, in however many parts it is read again: a few bad sectors shall not cost the
//! vdev a side.

use super::{BlockWrite, error};
use crate::patience::{GaveUp, LOOK, Patience};
use crate::queue::Priority;
use crate::submit::{LeafRead, Piece, Submit, read_leaves};
use crate::vdev::{Kind, Vdev};
use crate::{VdevError, VdevTree, mirror, tree};
use cenote_format::abd::Abd;
use cenote_format::invariant;
use cenote_format::invariant::broken;
use std::io;
use std::sync::Arc;

/// Bytes that a side is read in where a piece fails.
const CHUNK: u64 = 128 << 10;

/// How devices are asked for what they have.
#[derive(Clone, Copy, Default)]
pub struct Asking<'a> {
    /// Called now and then while devices are waited for, with what to say of one that does not answer. True: they are
    /// waited for no longer. Without it nothing ends that.
    pub watch: Option<&'a (dyn Fn(Option<String>) -> bool + Sync)>,
    /// What fails was read before, and counted.
    pub again: bool,
}

/// What to say of a device that does not answer.
fn silent(leaf: &Vdev) -> String {
    let path = leaf.path().map(|path| path.display().to_string());
    format!("{} does not answer", path.unwrap_or_else(|| leaf.guid().to_string()))
}

/// A part of a piece that a side is asked for.
#[derive(Clone, Copy)]
struct Part {
    /// Number of the piece, and of the side.
    piece: usize,
    side: usize,
    /// Byte of the piece where it begins.
    at: u64,
    size: u64,
}

/// What a side has of a piece.
struct Image {
    data: Abd,
    /// What it cannot read, as sectors: (byte of the piece, bytes), in order.
    lacks: Vec<(u64, u64)>,
}

/// Reads parts of pieces. `failed` gets those that cannot be read; `Err` if a device does not answer.
struct Reads<'a> {
    submit: Submit<'a>,
    leaves: &'a [Arc<Vdev>],
    pieces: &'a [(u64, u64)],
}

impl Reads<'_> {
    fn read(&self, parts: &[Part], quiet: bool) -> Vec<io::Result<Piece>> {
        let of = |part: &Part| {
            let (leaf, (start, _)) = (self.leaves[part.side].clone(), self.pieces[part.piece]);
            LeafRead { leaf, offset: start + part.at, len: part.size as usize }
        };
        let reads: Vec<LeafRead> = parts.iter().map(of).collect();
        read_leaves(Submit { quiet, ..self.submit }, &reads)
    }

    /// The images of all pieces, by piece and side. `None`: the device of the side does not answer.
    fn images(&self, sector: u64) -> Vec<Vec<Option<Image>>> {
        let sides = 0..self.leaves.len();
        let whole = |piece: usize| {
            let size = self.pieces[piece].1;
            sides.clone().map(move |side| Part { piece, side, at: 0, size })
        };
        let parts: Vec<Part> = (0..self.pieces.len()).flat_map(whole).collect();
        let mut images: Vec<Vec<Option<Image>>> =
            self.pieces.iter().map(|_| self.leaves.iter().map(|_| None).collect()).collect();
        let mut failed = Vec::new();
        for (part, read) in parts.iter().zip(self.read(&parts, self.submit.quiet)) {
            let data = match read {
                Ok(read) => read.into_own(),
                Err(e) if GaveUp::is(&e) => continue,
                Err(_) => {
                    failed.push(*part);
                    Abd::from_vec(vec![0; part.size as usize])
                }
            };
            images[part.piece][part.side] = Some(Image { data, lacks: Vec::new() });
        }
        for unit in [CHUNK.max(sector), sector] {
            let smaller: Vec<Part> = failed.iter().flat_map(|part| divided(part, unit)).collect();
            failed = self.fill_in(&smaller, &mut images);
        }
        for Part { piece, side, at, size } in failed {
            if let Some(image) = &mut images[piece][side] {
                image.lacks.push((at, size));
            }
        }
        images
    }

    /// Puts what can be read of parts into the images. Returns the parts that cannot be read.
    fn fill_in(&self, parts: &[Part], images: &mut [Vec<Option<Image>>]) -> Vec<Part> {
        let mut failed = Vec::new();
        for (part, read) in parts.iter().zip(self.read(parts, true)) {
            let slot = &mut images[part.piece][part.side];
            match (read, slot.as_mut()) {
                (Ok(read), Some(image)) => copy_in(&mut image.data, part.at, &read.bytes),
                (Err(e), _) if GaveUp::is(&e) => *slot = None,
                (Err(_), Some(_)) => failed.push(*part),
                (_, None) => {}
            }
        }
        failed
    }
}

fn divided(part: &Part, unit: u64) -> impl Iterator<Item = Part> + use<> {
    let (part, end) = (*part, part.at + part.size);
    let starts = (part.at..end).step_by(unit.max(1) as usize);
    starts.map(move |at| Part { at, size: unit.min(end - at), ..part })
}

fn copy_in(data: &mut Abd, at: u64, bytes: &Abd) {
    let (at, len, has) = (at as usize, bytes.len(), data.len());
    match data.make_mut().get_mut(at..at + len) {
        Some(place) => place.copy_from_slice(&bytes.bytes()),
        // What moves would have zeros there.
        None => broken(format_args!("{len} bytes at {at} of a piece of {has}")),
    }
}

/// Completes the images of a piece by each other. Returns those that differ, or where no side can be read.
fn completed(images: &mut [Image]) -> Result<Vec<Abd>, (u64, u64)> {
    for i in 0..images.len() {
        for (at, size) in std::mem::take(&mut images[i].lacks) {
            let has = |other: &Image| !other.lacks.contains(&(at, size));
            let others = images.iter().enumerate().filter(|(n, _)| *n != i);
            let found = others
                .filter(|(_, other)| has(other))
                .find_map(|(_, other)| other.data.slice(at as usize, size as usize));
            copy_in(&mut images[i].data, at, &found.ok_or((at, size))?);
        }
    }
    let mut sides: Vec<Abd> = Vec::new();
    for image in images.iter() {
        let bytes = image.data.bytes();
        if sides.iter().all(|side| side.bytes() != bytes) {
            sides.push(image.data.clone());
        }
    }
    Ok(sides)
}

impl VdevTree {
    /// What is on pieces (offset, bytes) of a top-level vdev that is a disk or mirror: the bytes of its sides, as often as they
    /// differ.
    ///
    /// # Errors
    /// Of a piece: some of it cannot be read from any side; a device does not answer, and is waited for no longer, or is out of use
    /// by now; the vdev is of another kind.
    pub fn read_sides(
        &self,
        vdev: u64,
        pieces: &[(u64, u64)],
        asking: Asking<'_>,
    ) -> Vec<Result<Vec<Abd>, VdevError>> {
        let failed = |offset: u64, why: String| VdevError::Io { vdev, offset, why };
        let refused = |why: &str| {
            let each = |(offset, _): &(u64, u64)| Err(failed(*offset, why.into()));
            pieces.iter().map(each).collect()
        };
        let Some(top) = self.top(vdev) else { return refused("no such vdev") };
        if !top.is_leaf() && top.vdev_kind() != Kind::Mirror {
            return refused("neither a disk nor a mirror");
        }
        let mut leaves = Vec::new();
        mirror::copies(top, &mut leaves);
        // A side that lacks something has anything there.
        leaves.retain(|leaf| leaf.state().readable() && !leaf.is_behind());
        if leaves.is_empty() {
            return refused("no device of it is in use and has all its data");
        }
        let hanging = || leaves.iter().find(|leaf| leaf.stats.activity.hangs());
        let gives_up = || {
            let ends = asking.watch.is_some_and(|watch| watch(hanging().map(|leaf| silent(leaf))));
            ends || leaves.iter().any(|leaf| !leaf.state().readable())
        };
        // It keeps the requests that it has.
        while asking.watch.is_some()
            && let Some(leaf) = hanging()
        {
            if gives_up() {
                return refused(&silent(leaf));
            }
            std::thread::sleep(LOOK);
        }
        let patience = asking.watch.map(|_| Patience::Until(&gives_up));
        let (pool, priority, quiet) = (&self.pool, Priority::Removal, asking.again);
        let submit = Submit { pool, priority, patience, quiet };
        let reads = Reads { submit, leaves: &leaves, pieces };
        let images = reads.images(1 << top.ashift().min(16));
        let done = images.into_iter().zip(pieces).map(|(images, (offset, _))| {
            if let Some(side) = images.iter().position(Option::is_none) {
                return Err(failed(*offset, silent(&leaves[side])));
            }
            let mut images: Vec<Image> = images.into_iter().flatten().collect();
            completed(&mut images).map_err(|(at, size)| {
                let why = format!("no device can read {size} bytes there");
                failed(offset + at, why)
            })
        });
        done.collect()
    }

    /// How many sides a top-level vdev has that takes what moves; 0: a device of it takes no writes.
    pub fn sides_for_moves(&self, vdev: u64) -> usize {
        let mut leaves: Vec<Arc<Vdev>> = Vec::new();
        if let Some(top) = self.top(vdev) {
            mirror::copies(top, &mut leaves);
        }
        if leaves.iter().all(|leaf| leaf.writable()) { leaves.len() } else { 0 }
    }

    /// Writes pieces that move, each to all sides of its vdev.
    ///
    /// # Errors
    /// A side did not take one: the vdev, and why.
    pub fn write_moved(&self, pieces: &[BlockWrite]) -> Result<(), VdevError> {
        let done = self.write_many_as(Priority::Removal, pieces);
        let (asked, told) = (pieces.len(), done.len());
        invariant!(asked == told, "of {asked} pieces that move {told} are known to be written");
        done.into_iter().collect::<Result<(), VdevError>>()?;
        for piece in pieces {
            let mut leaves: Vec<Arc<Vdev>> = Vec::new();
            mirror::copies(tree::top(self.root().children(), piece.vdev)?, &mut leaves);
            if leaves.iter().any(|leaf| !leaf.writable() || leaf.lacks(piece.txg)) {
                return Err(error(piece, "a device of the vdev does not take writes"));
            }
        }
        Ok(())
    }
}
