//! The reflow of a RAID-Z vdev that is given a device (`raidz_reflow_impl`, `raidz_reflow_scratch_sync`): what moves sectors, and
//! what is known of how far that is.
//!
//! The owner of the pool has each step done within a transaction group, and commits the uberblock that says how far it is on all
//! devices. [`VdevTree::reflow_committed`] is called when that is durable. A step that fails leaves everything as it was but for
//! what lies where nothing looks, and may be tried again.
//!
//! A sector may be overwritten when the uberblock that says where its copy is is durable, and nobody reads it any more
//! who began before that. So a step copies no further than to where the row begins that is read at its old place.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use cenote_format::abd::Abd;
use cenote_format::label::{BOOT_AREA, Uberblock};

use super::reflow::{Reflow, SCRATCH, SCRATCH_LEFT, SCRATCH_UNUSED, SCRATCH_VALID, Widths};
use crate::queue::Priority;
use crate::submit::{LeafRead, Submit, read_leaves};
use crate::traffic::Content;
use crate::vdev::{Kind, Vdev};
use crate::write::{LeafWrite, write_leaves};
use crate::{VdevError, VdevState, VdevTree};

/// How long reads are waited for that began when sectors were elsewhere.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long between two looks whether they have ended.
const LOOK: Duration = Duration::from_millis(1);

/// Bytes that are copied at once, while all writes of the pool wait.
const MOST_ALONE: u64 = 1 << 20;
/// With what the boot loader begins that FreeBSD has in the reserved boot area.
const BOOT_LOADER: [u8; 5] = [0xeb, 0x0e, b'B', b'T', b'X'];

/// What an uberblock says of a reflow: the state of the scratch area, and the bytes that it has got to.
pub type Progress = (u64, u64);

/// Bytes of the scratch area of a device with sectors of 2^`ashift` bytes, which are whole sectors.
fn scratch_size(ashift: u32) -> u64 {
    BOOT_AREA >> ashift << ashift
}

fn failed<T>(vdev: &Vdev, why: impl Into<String>) -> Result<T, VdevError> {
    Err(VdevError::Io { vdev: vdev.id(), offset: 0, why: why.into() })
}

impl Vdev {
    /// Bytes of the vdev that the scratch area takes: those are the first to move.
    fn in_scratch(&self, widths: &Widths) -> u64 {
        scratch_size(self.ashift).saturating_mul(widths.physical)
    }

    /// The widths are these from now on. Nothing is being written.
    fn set_widths(&self, widths: Widths) {
        let before = std::mem::replace(&mut *self.widths.write(), Arc::new(widths));
        self.widths_before.lock().push(Arc::downgrade(&before));
    }

    /// Whether sectors are moving.
    fn tell_leaves(self: &Arc<Vdev>, moving: bool) {
        let mut leaves = Vec::new();
        self.collect_leaves(&mut leaves);
        leaves.iter().for_each(|leaf| leaf.moving.store(moving, SeqCst));
    }

    /// Why the sectors of a RAID-Z vdev cannot move at present, if so: all its devices have to be there, and to lack nothing.
    pub fn reflow_waits(&self) -> Option<String> {
        let why = |child: &Arc<Vdev>| {
            let name =
                child.path().map_or_else(|| child.guid().to_string(), |p| p.display().to_string());
            if !child.is_leaf() {
                return Some("a device is being replaced".into());
            }
            if !child.writable() || child.opened_state() != VdevState::Healthy {
                return Some(format!("{name} is unavailable"));
            }
            (!child.missing().is_empty()).then(|| format!("{name} is to be resilvered first"))
        };
        self.children.iter().find_map(why)
    }
}

impl VdevTree {
    /// The RAID-Z vdev that is being expanded.
    pub fn expanding(&self) -> Option<&Arc<Vdev>> {
        self.root().children().iter().find(|top| top.widths().reflow.is_some())
    }

    /// The tree is read as this uberblock says: how far the sectors of a RAID-Z vdev have moved that is being expanded.
    ///
    /// # Errors
    /// It says what cannot be.
    pub fn reflow_at(&self, uberblock: &Uberblock) -> Result<(), VdevError> {
        let (state, offset) = (uberblock.reflow_state(), uberblock.reflow_offset());
        let Some(top) = self.expanding() else {
            return match (state, offset) {
                (SCRATCH_UNUSED, 0) => Ok(()),
                _ => Err(VdevError::Unsupported("RAID-Z that is expanded unseen".into())),
            };
        };
        let widths = top.widths();
        let makes_sense = match state {
            SCRATCH_UNUSED => offset == 0,
            SCRATCH_VALID => offset == top.in_scratch(&widths),
            2..=SCRATCH_LEFT => offset >= top.in_scratch(&widths),
            _ => false,
        };
        if !makes_sense || !offset.is_multiple_of(1 << top.ashift.min(63)) {
            let what = format!("RAID-Z that is expanded to {offset:#x} in state {state}");
            return Err(VdevError::Unsupported(what));
        }
        let _alone = self.writer.healing.write();
        top.set_widths(widths.at(uberblock));
        top.tell_leaves(true);
        Ok(())
    }

    /// The sectors of a RAID-Z vdev are to move from now on over one device more than before (`vdev_raidz_attach_sync`).
    pub fn begin_reflow(&self, top: &Arc<Vdev>) {
        let _alone = self.writer.healing.write();
        let mut widths = (*top.widths()).clone();
        widths.physical = widths.physical.saturating_add(1);
        widths.reflow = Some(Reflow::default());
        top.set_widths(widths);
        top.tell_leaves(true);
    }

    /// All sectors have moved, and the pool that is on disk knows: blocks that are born from `txg` on are wider
    /// (`raidz_reflow_complete_sync`).
    pub fn end_reflow(&self, top: &Arc<Vdev>, txg: u64) {
        let _alone = self.writer.healing.write();
        let mut widths = (*top.widths()).clone();
        widths.reflow = None;
        widths.grown.push(txg);
        top.set_widths(widths);
        top.tell_leaves(false);
    }

    /// The byte of `top` to which the next step may move sectors, up to `end`, and what is on disk by now. The first step
    /// moves what the scratch area takes.
    pub fn reflow_limit(&self, top: &Arc<Vdev>, end: u64) -> Option<Range<u64>> {
        let widths = top.widths();
        let reflow = widths.reflow?;
        let old = widths.physical.checked_sub(1).filter(|old| *old > 0)?;
        let synced = reflow.synced >> top.ashift;
        let limit = synced.saturating_add(synced / old).saturating_sub(old) << top.ashift;
        Some(reflow.synced..limit.min(end))
    }

    /// Whether what the scratch area takes has not moved yet, or is there.
    pub fn reflow_begins(&self, top: &Arc<Vdev>) -> bool {
        top.reflow().is_some_and(|reflow| reflow.synced == 0 || reflow.in_scratch)
    }

    /// What is written from now on to what lies before `next` goes to its copy as well. What was written before is to be
    /// copied by [`VdevTree::reflow_copy`].
    pub fn reflow_shadow(&self, top: &Arc<Vdev>, next: u64) {
        let _alone = self.writer.healing.write();
        let mut widths = (*top.widths()).clone();
        if let Some(reflow) = &mut widths.reflow {
            (reflow.next, reflow.to_new) = (next.max(reflow.next), true);
        }
        top.set_widths(widths);
    }

    /// Copies the sectors of these ranges of `top`, in order, to their new places, in transaction group `txg`, and makes the
    /// copies durable. What the group's uberblock is to say once it is done. `quiet`: reads that fail count as no errors.
    /// [`VdevTree::is_read_by_others`] was false before [`VdevTree::reflow_shadow`].
    ///
    /// # Errors
    /// A device failed, or lacks something: nothing has moved.
    pub fn reflow_copy(
        &self,
        top: &Arc<Vdev>,
        ranges: &[Range<u64>],
        (end, txg): (u64, u64),
        quiet: bool,
    ) -> Result<Progress, VdevError> {
        let widths = top.widths();
        for piece in pieces(ranges, MOST_ALONE >> top.ashift << top.ashift) {
            // Writes of blocks wait, so that each is before the copy, or at both places.
            let alone = self.writer.healing.write();
            let sectors = self.old_sectors(top, &widths, &piece, quiet)?;
            let writes = new_sectors(top, &widths, sectors, (0, txg))?;
            self.write_all(top, &writes)?;
            drop(alone);
        }
        self.keep_all(top)?;
        Ok((SCRATCH_LEFT, end))
    }

    /// Has what the scratch area takes moved there, or from there to its place, in transaction group `txg`, and makes that
    /// durable. What the group's uberblock is to say once it is done. `quiet`: reads that fail count as no errors.
    /// [`VdevTree::is_read_by_others`] is false.
    ///
    /// # Errors
    /// A device failed, or lacks something: nothing has moved.
    pub fn reflow_scratch(
        &self,
        top: &Arc<Vdev>,
        txg: u64,
        quiet: bool,
    ) -> Result<Progress, VdevError> {
        let widths = top.widths();
        let Some(reflow) = widths.reflow else { return failed(top, "it is not being expanded") };
        let first = top.in_scratch(&widths);
        let alone = self.writer.healing.write();
        let mut next = (*widths).clone();
        let (sectors, base) = if reflow.in_scratch {
            next.reflow = Some(Reflow { to_new: true, ..reflow });
            (self.scratch_sectors(top, &widths, quiet)?, 0)
        } else {
            next.reflow = Some(Reflow { next: first, to_scratch: true, ..reflow });
            let whole = 0..first;
            (self.old_sectors(top, &widths, std::slice::from_ref(&whole), quiet)?, SCRATCH)
        };
        let writes = new_sectors(top, &widths, sectors, (base, txg))?;
        self.write_all(top, &writes)?;
        // Now that the copy is whole what is written goes there, too.
        top.set_widths(next);
        drop(alone);
        self.keep_all(top)?;
        Ok((if base == 0 { SCRATCH_LEFT } else { SCRATCH_VALID }, first))
    }

    /// The uberblock of group `txg`, which says so, is durable: what has moved is read where it is now, if all devices of the
    /// vdev have that uberblock. Else the step is to be done again.
    pub fn reflow_committed(&self, top: &Arc<Vdev>, (state, at): Progress, txg: u64) {
        let mut leaves = Vec::new();
        top.collect_leaves(&mut leaves);
        if !leaves.iter().all(|leaf| leaf.uberblock.load(Relaxed) >= txg) {
            tracing::warn!(vdev = top.id, "a device does not know what has moved");
            return;
        }
        let _alone = self.writer.healing.write();
        let mut widths = (*top.widths()).clone();
        if widths.reflow.is_none() {
            return;
        }
        let valid = state == SCRATCH_VALID;
        widths.reflow = Some(Reflow {
            synced: at,
            next: at,
            in_scratch: valid,
            to_scratch: valid,
            to_new: !valid,
        });
        top.set_widths(widths);
    }

    /// Whether something is read yet that was laid out when sectors may have been elsewhere: nothing may be overwritten.
    pub fn is_read_by_others(&self, top: &Vdev) -> bool {
        let mut before = top.widths_before.lock();
        before.retain(|widths| widths.strong_count() > 0);
        !before.is_empty()
    }

    /// Waits until nothing is read any more that was laid out when sectors were elsewhere.
    ///
    /// # Errors
    /// Some read does not end: nothing may be overwritten yet.
    pub fn wait_for_readers(&self, top: &Vdev) -> Result<(), VdevError> {
        if !top.children.iter().all(|leaf| leaf.is_vacant_idle_within(PATIENCE)) {
            return failed(top, "a device is still told what is free");
        }
        let begun = Instant::now();
        loop {
            match self.is_read_by_others(top) {
                false => return Ok(()),
                true if begun.elapsed() > PATIENCE => return failed(top, "a read does not end"),
                true => std::thread::sleep(LOOK),
            }
        }
    }

    /// What is in the scratch area, sector by sector.
    fn scratch_sectors(
        &self,
        top: &Vdev,
        widths: &Widths,
        quiet: bool,
    ) -> Result<Sectors, VdevError> {
        let (size, physical) = (scratch_size(top.ashift), widths.physical);
        let read = |child: &Arc<Vdev>| (child.clone(), SCRATCH, size);
        let parts = self.read_all(top, top.children.iter().map(read).collect(), quiet)?;
        let mut sectors = Sectors::new();
        let count = (size >> top.ashift).saturating_mul(physical);
        for sector in 0..count {
            let child = usize::try_from(sector % physical).unwrap_or(usize::MAX);
            let at = (sector / physical) << top.ashift;
            sectors.push((sector, slice(top, parts.get(child), at)?));
        }
        Ok(sectors)
    }

    /// The sectors of these ranges, from their old places. No others are read: what is free may be unreadable for good.
    fn old_sectors(
        &self,
        top: &Vdev,
        widths: &Widths,
        ranges: &[Range<u64>],
        quiet: bool,
    ) -> Result<Sectors, VdevError> {
        let Some(old) = widths.physical.checked_sub(1).filter(|old| *old > 0) else {
            return failed(top, "it has no device");
        };
        let (mut reads, mut firsts) = (Vec::new(), Vec::new());
        for range in ranges {
            let (begin, end) = (range.start >> top.ashift, range.end >> top.ashift);
            // Of each device (the position of its read, its first row).
            let mut of = Vec::new();
            for (n, child) in (0..old).zip(&top.children) {
                // Its sector of row r is r * old + n.
                let row = |sector: u64| sector.saturating_sub(n).div_ceil(old);
                let (first, rows) = (row(begin), row(end).saturating_sub(row(begin)));
                of.push((reads.len(), first));
                if rows > 0 {
                    reads.push((child.clone(), first << top.ashift, rows << top.ashift));
                }
            }
            firsts.push((begin..end, of));
        }
        let parts = self.read_all(top, reads, quiet)?;
        let mut sectors = Sectors::new();
        for (range, of) in firsts {
            for sector in range {
                let child = usize::try_from(sector % old).unwrap_or(usize::MAX);
                let Some((position, first)) = of.get(child) else {
                    return failed(top, "its devices have changed");
                };
                let at = (sector / old).saturating_sub(*first) << top.ashift;
                sectors.push((sector, slice(top, parts.get(*position), at)?));
            }
        }
        Ok(sectors)
    }

    /// Whether the reserved boot area of a device of `top` has a boot loader in it, which the scratch area would overwrite
    /// (`vdev_check_boot_reserve`).
    ///
    /// # Errors
    /// A device cannot be read.
    pub fn has_boot_loader(&self, top: &Vdev) -> Result<bool, VdevError> {
        let read = |child: &Arc<Vdev>| (child.clone(), SCRATCH, 1 << top.ashift);
        let parts = self.read_all(top, top.children.iter().map(read).collect(), false)?;
        let mut begins = [0; BOOT_LOADER.len()];
        Ok(parts.iter().any(|part| part.copy_to(0, &mut begins).is_some() && begins == BOOT_LOADER))
    }

    /// Reads of all these leaves (the leaf, the offset on it, bytes).
    fn read_all(
        &self,
        top: &Vdev,
        reads: Vec<(Arc<Vdev>, u64, u64)>,
        quiet: bool,
    ) -> Result<Vec<Abd>, VdevError> {
        if let Some(why) = top.reflow_waits() {
            return failed(top, why);
        }
        let read = |(leaf, offset, len): (Arc<Vdev>, u64, u64)| LeafRead {
            leaf,
            offset,
            len: usize::try_from(len).unwrap_or(usize::MAX),
        };
        let reads: Vec<LeafRead> = reads.into_iter().map(read).collect();
        let submit = Submit::new(&self.pool, Priority::Removal).patient();
        let submit = Submit { quiet, ..submit };
        let mut parts = Vec::with_capacity(reads.len());
        for piece in read_leaves(submit, &reads) {
            match piece {
                Ok(piece) => parts.push(piece.bytes),
                Err(e) => return failed(top, format!("sectors cannot be moved: {e}")),
            }
        }
        Ok(parts)
    }

    /// All of these writes, or an error.
    fn write_all(&self, top: &Vdev, writes: &[LeafWrite]) -> Result<(), VdevError> {
        let results = write_leaves(&self.writer, Priority::Removal, writes);
        match results.into_iter().find_map(Result::err) {
            Some(e) => failed(top, format!("sectors cannot be moved: {e}")),
            None => Ok(()),
        }
    }

    /// Makes durable what was copied on every device.
    fn keep_all(&self, top: &Vdev) -> Result<(), VdevError> {
        self.flush_tops(&[top.id()])?;
        // A flush that failed where parity makes up for it has lost copies.
        match top.reflow_waits() {
            Some(why) => failed(top, why),
            None => Ok(()),
        }
    }
}

/// The ranges, cut up so that each piece has so many bytes at most, or one sector.
fn pieces(ranges: &[Range<u64>], most: u64) -> Vec<Vec<Range<u64>>> {
    let (mut pieces, mut bytes) = (vec![Vec::new()], 0);
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            if bytes >= most {
                pieces.push(Vec::new());
                bytes = 0;
            }
            let stop = range.end.min(at.saturating_add(most - bytes));
            if let Some(last) = pieces.last_mut() {
                last.push(at..stop);
            }
            bytes += stop - at;
            at = stop;
        }
    }
    pieces
}

/// Sectors of a vdev in their order, with their bytes.
type Sectors = Vec<(u64, Abd)>;

/// The sector at byte `at` of a part.
fn slice(top: &Vdev, part: Option<&Abd>, at: u64) -> Result<Abd, VdevError> {
    let len = 1usize << top.ashift.min(16);
    let found = part.and_then(|part| part.slice(usize::try_from(at).ok()?, len));
    found.map_or_else(|| failed(top, "sectors are not where they should be"), Ok)
}

/// Most sectors of one write.
const MOST_SECTORS: usize = 256;

/// Writes of sectors to their new places, or by so much before them.
fn new_sectors(
    top: &Arc<Vdev>,
    widths: &Widths,
    sectors: Sectors,
    (base, txg): (u64, u64),
) -> Result<Vec<LeafWrite>, VdevError> {
    let mut open: HashMap<usize, (u64, u64, Vec<Abd>)> = HashMap::new();
    let mut writes = Vec::new();
    let mut close = |child: usize, (start, _, data): (u64, u64, Vec<Abd>)| {
        let Some(leaf) = top.children.get(child) else { return };
        let mut bytes = Vec::new();
        data.iter().flat_map(|part| part.chunks()).for_each(|chunk| bytes.extend_from_slice(chunk));
        let (leaf, data) = (leaf.clone(), Abd::from_vec(bytes));
        let offset = (start << top.ashift).wrapping_add(base);
        writes.push(LeafWrite { leaf, offset, data, txg, content: Content::Data });
    };
    for (sector, data) in sectors {
        let child = usize::try_from(sector % widths.physical.max(1)).unwrap_or(usize::MAX);
        let row = sector / widths.physical.max(1);
        match open.get_mut(&child) {
            Some((_, end, parts)) if *end == row && parts.len() < MOST_SECTORS => {
                *end += 1;
                parts.push(data);
            }
            _ => {
                let begun = (row, row + 1, vec![data]);
                if let Some(full) = open.insert(child, begun) {
                    close(child, full);
                }
            }
        }
    }
    open.into_iter().for_each(|(child, rest)| close(child, rest));
    match widths.physical == top.children.len() as u64 && top.vdev_kind() == Kind::RaidZ {
        true => Ok(writes),
        false => failed(top, "its devices have changed"),
    }
}
