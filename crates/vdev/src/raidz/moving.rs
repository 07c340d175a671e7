//! The reflow of a RAID-Z vdev that is given a device: what is known of how far that is, and its steps.
//!
//! ```text
//! reflow_is_known ── wait_for_others ── reflow_shadow ── reflow_copy ── reflow_holds, in a group ── its uberblock ── reflow_committed
//! ```
//!
//! Copies are made beside all else (`copying`). The owner of the pool commits the uberblock that says how far it is on all
//! devices, and then calls [`VdevTree::reflow_committed`]. A step that fails leaves everything as it was but for
//! what lies where nothing looks, and may be tried again.
//!
//! A sector may be overwritten when the uberblock that says where its copy is is durable, and nothing reads or writes it any more
//! that began before that. So a step copies no further than to where the row begins that is read at its old place.
//!
//! An uberblock that is durable on some devices and not on others ([`Told`]) leads to what it says all the same: an import takes the
//! latest one. So what it says has moved is not copied again. Both places are right by then, and stay so: the step ends as soon as the
//! other devices have an uberblock that says so, too.
//!
//! Invariant: nothing is copied to a place that the pool on disk may be read from, which is: by the last uberblock that was, or was to
//! be, written.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use cenote_format::label::{BOOT_AREA, Uberblock};
use cenote_format::{invariant, less};

use super::copying::{Copying, Health};
use super::reflow::{Reflow, SCRATCH, SCRATCH_LEFT, SCRATCH_UNUSED, SCRATCH_VALID, Widths};
use crate::vdev::Vdev;
use crate::{VdevError, VdevState, VdevTree};

/// Why nothing may be copied: see [`Told::ahead`].
const AHEAD: &str = "not all devices are known to have the last step's uberblock";

/// How long reads and writes are waited for that began when sectors were elsewhere.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long between two looks whether they have ended.
const LOOK: Duration = Duration::from_millis(1);

/// With what the boot loader begins that FreeBSD has in the reserved boot area.
const BOOT_LOADER: [u8; 5] = [0xeb, 0x0e, b'B', b'T', b'X'];

/// What an uberblock says of a reflow: the state of the scratch area, and the bytes that it has got to.
pub type Progress = (u64, u64);

/// Sectors that have copies.
#[derive(Clone, Debug)]
pub struct Moved {
    /// What an uberblock is to say of them.
    pub progress: Progress,
    /// How far the reflow was before.
    from: u64,
    health: Health,
}

/// Bytes of the scratch area of a device with sectors of 2^`ashift` bytes, which are whole sectors.
fn scratch_size(ashift: u32) -> u64 {
    BOOT_AREA >> ashift << ashift
}

/// What uberblocks say of sectors of a vdev that move.
#[derive(Default)]
pub(crate) struct Told {
    /// The transaction group whose uberblock, and each later one, says what memory says. A device without such an uberblock may lead
    /// to where sectors were before.
    since: u64,
    /// What uberblocks from this group on say that memory does not say yet, as some device may lack such an uberblock.
    ahead: Option<(Progress, u64)>,
}

/// Why nothing has moved.
#[derive(Debug, thiserror::Error)]
pub enum NotMoved {
    /// Something else comes first. It may be tried again at once.
    #[error("{0}")]
    Again(String),
    /// A device failed.
    #[error("{0}")]
    Failed(String),
}

impl From<VdevError> for NotMoved {
    fn from(e: VdevError) -> NotMoved {
        NotMoved::Failed(e.to_string())
    }
}

/// Whether all devices of `top` have the uberblock of group `since`, or a later one. If not, why nothing may be copied.
fn knows(top: &Arc<Vdev>, since: u64) -> Result<(), NotMoved> {
    let mut leaves = Vec::new();
    top.collect_leaves(&mut leaves);
    match leaves.iter().find(|leaf| leaf.leads_to.load(SeqCst) < since) {
        Some(leaf) => Err(NotMoved::Again(format!("{} does not know what has moved", name(leaf)))),
        None => Ok(()),
    }
}

/// How a device is called.
fn name(leaf: &Vdev) -> String {
    leaf.path().map_or_else(|| leaf.guid().to_string(), |path| path.display().to_string())
}

fn error(vdev: &Vdev, why: impl Into<String>) -> VdevError {
    VdevError::Io { vdev: vdev.id(), offset: 0, why: why.into() }
}

pub(super) fn failed<T>(vdev: &Vdev, why: impl Into<String>) -> Result<T, VdevError> {
    Err(error(vdev, why))
}

impl Vdev {
    /// Bytes of the vdev that the scratch area takes: those are the first to move.
    fn in_scratch(&self, widths: &Widths) -> u64 {
        scratch_size(self.ashift) * widths.physical
    }

    /// The widths are these from now on.
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

    /// Why the sectors of a RAID-Z vdev cannot move at present, if so: all its devices must be there, and lack nothing.
    pub fn reflow_waits(&self) -> Option<String> {
        let why = |child: &Arc<Vdev>| {
            let name = name(child);
            if !child.is_leaf() {
                return Some("a device is being replaced".into());
            }
            if !child.writable() || child.opened_state() != VdevState::Healthy {
                return Some(format!("{name} is unavailable"));
            }
            if child.stats.activity.hangs() {
                return Some(format!("{name} does not answer"));
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
        *top.told.lock() = Told { since: uberblock.txg, ahead: None };
        self.writer.watch.on(top.id());
        top.set_widths(widths.at(uberblock));
        top.tell_leaves(true);
        Ok(())
    }

    /// The sectors of a RAID-Z vdev are to move from now on over one device more than before (`vdev_raidz_attach_sync`).
    pub fn begin_reflow(&self, top: &Arc<Vdev>) {
        let _alone = self.writer.healing.write();
        let mut widths = (*top.widths()).clone();
        widths.physical += 1;
        let children = top.children.len() as u64;
        invariant!(
            widths.physical == children && widths.reflow.is_none(),
            "vdev {}: {children} devices, and {} after an expansion has begun",
            top.id,
            widths.physical
        );
        widths.reflow = Some(Reflow::default());
        *top.told.lock() = Told::default();
        self.writer.watch.on(top.id());
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
        self.writer.watch.off();
        top.set_widths(widths);
        top.tell_leaves(false);
    }

    /// The bytes of `top` that the next step may move, up to `end`: from what is on disk by now. Where [`VdevTree::reflow_begins`]
    /// it is what the scratch area takes. Empty: all have moved.
    pub fn reflow_range(&self, top: &Arc<Vdev>, end: u64) -> Option<Range<u64>> {
        let widths = top.widths();
        let reflow = widths.reflow?;
        if self.reflow_begins(top) {
            return Some(0..top.in_scratch(&widths));
        }
        let old = widths.physical.checked_sub(1).filter(|old| *old > 0)?;
        let synced = reflow.synced >> top.ashift;
        // No further than the first sectors at first.
        let limit = (synced + synced / old).saturating_sub(old) << top.ashift;
        Some(reflow.synced..limit.min(end))
    }

    /// Whether what the scratch area takes has not moved yet, or is there.
    pub fn reflow_begins(&self, top: &Arc<Vdev>) -> bool {
        top.reflow().is_some_and(|reflow| reflow.synced == 0 || reflow.in_scratch)
    }

    /// What is written from now on to what lies before `next` goes to its copy as well. What was written before is to be
    /// copied by [`VdevTree::reflow_copy`].
    ///
    /// # Errors
    /// What is being written does not end, or it `ends`.
    pub fn reflow_shadow(
        &self,
        top: &Arc<Vdev>,
        next: u64,
        ends: &dyn Fn() -> bool,
    ) -> Result<(), NotMoved> {
        let mut widths = (*top.widths()).clone();
        if let Some(reflow) = &mut widths.reflow {
            let to_scratch = reflow.synced == 0;
            reflow.next = next.max(reflow.next);
            (reflow.to_scratch, reflow.to_new) = (to_scratch || reflow.in_scratch, !to_scratch);
        }
        top.set_widths(widths);
        self.wait_for_writers(ends)
    }

    /// Waits until nothing is written any more that was laid out before this was called.
    fn wait_for_writers(&self, ends: &dyn Fn() -> bool) -> Result<(), NotMoved> {
        let watch = &self.writer.watch;
        match watch.wait_for_all(watch.bound(), ends, PATIENCE) {
            true => Ok(()),
            false => Err(NotMoved::Again("a write does not end".into())),
        }
    }

    /// Copies the sectors of these bytes of `top`, which are in order, and makes the copies durable: to their new places, or to the
    /// scratch area, or from there to their places. Blocks are read and written beside it. Returns what an uberblock is to say
    /// then: all of `whole` has moved, of which nothing else is to be copied.
    ///
    /// `whole` begins as [`VdevTree::reflow_range`] does. [`VdevTree::wait_for_others`] came back before that, and
    /// [`VdevTree::reflow_shadow`] after it.
    ///
    /// # Errors
    /// A device failed, hangs, lacks something, or does not know what has moved, the expansion is not where `whole` begins any
    /// more, or it is to end: nothing has moved.
    pub fn reflow_copy(
        &self,
        top: &Arc<Vdev>,
        (ranges, whole): (&[Range<u64>], Range<u64>),
        how: Copying<'_>,
    ) -> Result<Moved, NotMoved> {
        // Nothing is taken over here: what the caller has looked at holds only as long as memory says so.
        let told = top.told.lock();
        if told.ahead.is_some() {
            return Err(NotMoved::Again(AHEAD.into()));
        }
        knows(top, told.since)?;
        let widths = top.widths();
        drop(told);
        let Some(reflow) = widths.reflow else { Err(error(top, "it is not being expanded"))? };
        self.check_told(top, &reflow);
        let begin = if self.reflow_begins(top) { 0 } else { reflow.synced };
        if whole.start != begin {
            let why = format!("sectors have moved up to {begin:#x}, not to {:#x}", whole.start);
            return Err(NotMoved::Again(why));
        }
        let old = (less!(widths.physical, 1, "devices of vdev {}", top.id), 0);
        let (new, scratch) = ((widths.physical, 0), (widths.physical, SCRATCH));
        let (from, to, state) = match reflow {
            Reflow { in_scratch: true, .. } => (scratch, new, SCRATCH_LEFT),
            Reflow { synced: 0, .. } => (old, scratch, SCRATCH_VALID),
            _ => (old, new, SCRATCH_LEFT),
        };
        let in_sectors = |range: &Range<u64>| range.start >> top.ashift..range.end >> top.ashift;
        let sectors: Vec<Range<u64>> = ranges.iter().map(in_sectors).collect();
        let health = self.copy_sectors(top, &sectors, (from, to), how)?;
        Ok(Moved { progress: (state, whole.end), from: reflow.synced, health })
    }

    /// Whether what has been copied may be said in an uberblock: all devices of `top`, which may be of another tree than when it was
    /// copied, have it.
    ///
    /// # Errors
    /// It must be copied anew, for this reason.
    pub fn reflow_holds(&self, top: &Arc<Vdev>, moved: &Moved) -> Result<(), VdevError> {
        if let Some(why) = top.reflow_waits() {
            return failed(top, why);
        }
        if top.told.lock().ahead.is_some() {
            return failed(top, AHEAD);
        }
        let is_same = top.reflow().is_some_and(|reflow| reflow.synced == moved.from);
        match is_same && Health::of(top) == moved.health {
            true => Ok(()),
            false => failed(top, "a device has failed meanwhile"),
        }
    }

    /// The uberblock of group `txg`, which says so, is durable: what has moved is read where it is now, once all devices of the
    /// vdev have that uberblock or a later one ([`VdevTree::reflow_is_known`]).
    pub fn reflow_committed(&self, top: &Arc<Vdev>, (state, at): Progress, txg: u64) {
        top.told.lock().ahead = Some(((state, at), txg));
        if let Err(why) = self.reflow_is_known(top) {
            tracing::warn!(vdev = top.id, "{why}");
        }
    }

    /// Whether all devices of `top` have an uberblock that says how far sectors have moved. Is memory behind what uberblocks say,
    /// and all devices have one that says so, then memory says so, too.
    ///
    /// # Errors
    /// A device has none that says so.
    pub fn reflow_is_known(&self, top: &Arc<Vdev>) -> Result<(), NotMoved> {
        let mut told = top.told.lock();
        let since = told.ahead.map_or(told.since, |(_, txg)| txg);
        knows(top, since)?;
        let Some(((state, at), _)) = told.ahead.take() else { return Ok(()) };
        told.since = since;
        let mut widths = (*top.widths()).clone();
        if let Some(reflow) = &mut widths.reflow {
            let valid = state == SCRATCH_VALID;
            invariant!(
                at >= reflow.synced && at <= reflow.next,
                "vdev {}: sectors have moved up to {at:#x}, and are copied from {:#x} to {:#x}",
                top.id,
                reflow.synced,
                reflow.next
            );
            *reflow = Reflow {
                synced: at,
                next: at,
                in_scratch: valid,
                to_scratch: valid,
                to_new: !valid,
            };
            top.set_widths(widths);
        }
        Ok(())
    }

    /// Sectors are about to be copied: the last uberblock says of them what memory says.
    fn check_told(&self, top: &Vdev, reflow: &Reflow) {
        let committing = self.writer.committing.lock();
        let Some(uberblock) = &*committing else { return };
        let (state, at) = (uberblock.reflow_state(), uberblock.reflow_offset());
        invariant!(
            (state == SCRATCH_VALID, at) == (reflow.in_scratch, reflow.synced),
            "vdev {}: sectors have moved up to {:#x}, and up to {at:#x} (state {state}) as group {} says",
            top.id,
            reflow.synced,
            uberblock.txg
        );
    }

    /// Whether something is read yet that was laid out when sectors may have been elsewhere: nothing may be overwritten.
    pub fn is_read_by_others(&self, top: &Vdev) -> bool {
        let mut before = top.widths_before.lock();
        before.retain(|widths| widths.strong_count() > 0);
        !before.is_empty()
    }

    /// Waits until nothing is read or written any more that was laid out when sectors were elsewhere.
    ///
    /// # Errors
    /// A request does not end, or it `ends`: nothing may be overwritten yet.
    pub fn wait_for_others(&self, top: &Vdev, ends: &dyn Fn() -> bool) -> Result<(), NotMoved> {
        let again = |why: &str| Err(NotMoved::Again(why.into()));
        if !top.children.iter().all(|leaf| leaf.is_vacant_idle_within(PATIENCE)) {
            return again("a device is still told what is free");
        }
        self.wait_for_writers(ends)?;
        let begun = Instant::now();
        loop {
            match self.is_read_by_others(top) {
                false => return Ok(()),
                true if ends() || begun.elapsed() > PATIENCE => {
                    return again("a read does not end");
                }
                true => std::thread::sleep(LOOK),
            }
        }
    }

    /// Whether the reserved boot area of a device of `top` has a boot loader in it, which the scratch area would overwrite
    /// (`vdev_check_boot_reserve`).
    ///
    /// # Errors
    /// A device cannot be read.
    pub fn has_boot_loader(&self, top: &Vdev) -> Result<bool, VdevError> {
        let read = |child: &Arc<Vdev>| (child.clone(), SCRATCH, 1 << top.ashift);
        let how = Copying { quiet: false, ends: &|| false };
        let parts = self.read_all(top, top.children.iter().map(read).collect(), how)?;
        let mut begins = [0; BOOT_LOADER.len()];
        Ok(parts.iter().any(|part| part.copy_to(0, &mut begins).is_some() && begins == BOOT_LOADER))
    }
}
