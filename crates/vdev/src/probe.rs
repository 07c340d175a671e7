//! Devices that stop answering: finding out, taking them out of use, and taking them back.
//!
//! A request that fails says little about its device: a sector may be bad. So after a batch in which
//! requests failed, each device that failed one is *probed* (`vdev_probe`): an area that nothing
//! else uses is read from its labels, and where the pool is written to written back as it is. If no
//! label can be read, or no label written, or if its path leads to something else by now (the file was
//! deleted or replaced), or if what was written cannot be flushed, the leaf is *faulted*: it takes no writes, misses
//! what is written meanwhile, and is read only for what nothing else has. One flush that fails says no more than one
//! request does: what it may have lost is missing, and the device is probed once more. A leaf that its top-level vdev
//! cannot do without stays in use and is called degraded; what fails then, fails for its caller.
//!
//! A leaf that is out of use, or was never there, comes back with [`VdevTree::reopen`]. What answers at
//! its path may be another device by then, one of another pool or a blank one, or an older state of
//! the right one. So the path is opened anew unless it is known to lead to the very same file still;
//! the labels are read from the device and not from what the system remembers of it; and nothing is
//! written before they say that it is this leaf. Its newest uberblock tells which transaction group
//! it got last: those that were written since it has missed.
//!
//! Of devices in use that are others by now see `doubt`.
//!
//! Invariant: a leaf goes out of use at any time, and comes back only while nothing is written: a
//! block that was laid out without it would not be known to be missing on it.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use cenote_format::label::{self, Uberblock};
use cenote_format::nvlist::NvList;

use crate::device::{Device, ReadReq, WriteReq};
use crate::doubt::{has_only_lost_labels, is_last_hope, is_well};
use crate::dtl::{Dtl, behind};
use crate::events::{self, Happening};
use crate::injection::IoKind;
use crate::labels::read_labels;
use crate::patience;
use crate::state::Aux;
use crate::surgery::{outage, outage_as};
use crate::vdev::{Opened, Vdev};
use crate::write::lose_of_spares;
use crate::{VdevError, VdevState, VdevTree, assemble};

/// Byte offset in a label of the area that is read and written (`vl_be`).
const AREA: u64 = 8 << 10;
/// Its bytes (`VDEV_PAD_SIZE`).
const AREA_SIZE: usize = 8 << 10;

/// Whether a device of a leaf answers, and is still what is at its path.
fn answers(leaf: &Vdev, device: &dyn Device) -> bool {
    if !device.is_there() || leaf.refuses_to_open() {
        return false;
    }
    // What is written back is what is there, whatever the system remembers.
    device.forget_cached();
    // The first label is left alone, as OpenZFS does.
    let places = (1..4).filter_map(|l| Some(label::label_offset(device.size(), l)? + AREA));
    let mut reads: Vec<ReadReq> = places.map(|at| ReadReq::new(at, AREA_SIZE)).collect();
    leaf.read_from(device, IoKind::Probe, &mut reads);
    let kept = |r: ReadReq| {
        let at = r.offset;
        Some(WriteReq::new(at, r.take().ok()?))
    };
    let mut writes: Vec<WriteReq> = reads.into_iter().filter_map(kept).collect();
    if writes.is_empty() || !device.writable() {
        return !writes.is_empty();
    }
    leaf.write_to(device, IoKind::Probe, &mut writes);
    writes.into_iter().any(|write| takes(write.take()))
}

/// Whether a device took something: one on a file system that is full is well.
fn takes(done: io::Result<()>) -> bool {
    done.map_or_else(|e| e.kind() == io::ErrorKind::StorageFull, |()| true)
}

/// Whether `top` would lack something without `leaf`.
pub(crate) fn required(top: &Arc<Vdev>, leaf: &Vdev) -> bool {
    !top.is_log() && (!outage(top, Some(leaf)).is_empty() || leaf.counts_as_required())
}

/// Whether `top` lacks less with `leaf` in use than without, though it may be out of use now. Others that do not answer
/// count for nothing.
fn is_needed(top: &Arc<Vdev>, leaf: &Vdev) -> bool {
    !top.is_log() && outage_as(top, leaf, true) != outage_as(top, leaf, false)
}

/// Whether the device of a leaf did not answer when it was probed, and stayed in use.
fn is_silent(leaf: &Vdev) -> bool {
    leaf.opened_state() == VdevState::Degraded
}

impl Vdev {
    /// A request of this leaf's device failed.
    pub(crate) fn suspected(&self) {
        self.suspect.store(true, Relaxed);
    }

    /// Whether there are transaction groups that this leaf missed: it holds less than it should.
    pub fn is_behind(&self) -> bool {
        match &*self.dtl.read() {
            Dtl::Unread => true,
            Dtl::Ranges(ranges) => !ranges.is_empty(),
        }
    }

    /// Whether a device that has this leaf's labels would do for it, which is out of use: it is probed, and flushed.
    pub fn would_answer(&self, device: &dyn Device) -> bool {
        answers(self, device) && takes(self.flush_to(device))
    }

    /// Forgets the errors seen at this vdev and below it.
    pub fn clear_errors(&self) {
        self.stats.clear_errors();
        let before = self.state();
        if self.too_many_errors.swap(false, Relaxed) {
            self.tell_state(before);
        }
        self.children.iter().for_each(|c| c.clear_errors());
    }

    /// The leaf came back, and is found to lack the groups `txgs`.
    pub(crate) fn lags(&self, txgs: Range<u64>) {
        if !txgs.is_empty() {
            self.dtl_changes.fetch_add(1, Relaxed);
            self.add_missing(txgs);
        }
    }

    /// Another device, or no device, in place of the leaf's below `top`: see the module's invariant. `again`: what is not known to be durable
    /// is written again, to all leaves of the vdev, which is noted already ([`VdevTree::lost_with_device`]).
    fn replace(&self, top: Option<&Arc<Vdev>>, opened: Opened, again: bool) {
        let has_unflushed = self.written().dirty().is_some();
        // What the device before was not known to keep, this one may lack.
        self.lose_unflushed(again);
        if let Some(top) = top.filter(|_| has_unflushed) {
            lose_of_spares(top, self, again);
        }
        self.set_opened(opened);
    }

    /// From now on the leaf counts as lacking what it is not known to keep; `again`: but for blocks, which are written again.
    pub(crate) fn lose_unflushed(&self, again: bool) {
        let mut written = self.written();
        written.write_failed();
        let lost = written.flush_failed().filter(|_| !again);
        let repairs = written.take_repairs();
        drop(written);
        self.lags(repairs);
        lost.into_iter().for_each(|lost| self.lags(lost));
    }
}

impl VdevTree {
    /// Whether devices are away that a top-level vdev cannot do without: that something cannot be read then says nothing of
    /// what is there.
    pub fn has_outage(&self) -> bool {
        let mut leaves = Vec::new();
        let tops = self.root().children();
        tops.iter().filter(|top| !top.is_log()).for_each(|top| top.collect_leaves(&mut leaves));
        self.suspension().why().is_some() || leaves.iter().any(|leaf| is_silent(leaf))
    }

    /// Whether a device that was waited for answers again, or is needed no more, since this was last asked, whoever looked at it:
    /// what waits for it goes on, and a resilver begins if leaves lack something.
    pub fn take_awaited(&self) -> bool {
        self.writer.awaited.swap(false, SeqCst)
    }

    /// Whether a device of a top-level vdev is away that it cannot do without.
    pub fn is_silent_below(&self, vdev: u64) -> bool {
        let mut leaves = Vec::new();
        self.top(vdev).into_iter().for_each(|top| top.collect_leaves(&mut leaves));
        leaves.iter().any(|leaf| is_silent(leaf))
    }

    /// How often a device that its vdev cannot do without was found not to answer: if the number changed while something
    /// was read, what could not be read may be there.
    pub fn silences(&self) -> u64 {
        self.leaves().iter().map(|leaf| leaf.silences.load(Relaxed)).fold(0, u64::wrapping_add)
    }

    /// Probes the leaves with requests that failed since this was last done, and takes those out
    /// of use that do not answer.
    pub(crate) fn look_after(&self) {
        if patience::of_thread().is_some() {
            // Other threads will do it, which have the time.
            return;
        }
        let failed = [&self.pool, &self.writer.pool].map(|pool| pool.take_failure());
        if !failed.contains(&true) {
            return;
        }
        // Other callers wait meanwhile: they are about to be told what to expect of the device.
        let _one = self.writer.probing.lock();
        for top in self.root().children() {
            let mut leaves = Vec::new();
            top.collect_leaves(&mut leaves);
            for leaf in leaves.iter().filter(|l| l.suspect.swap(false, Relaxed)) {
                self.look_after_leaf(top, leaf);
            }
        }
    }

    /// Looks anew at devices that stopped answering and stayed in use, since their vdevs cannot do
    /// without them: what answers in their places by now may be another device. Such a leaf is not
    /// written to. One whose device answers again is well, and one that does not and that its vdev can do without by now goes out
    /// of use. Then takes those out of use whose files were deleted, as far as their vdevs can do without them: what is
    /// written to them would be lost.
    ///
    /// To be called before something is written to the tree, and before it counts that devices do not answer.
    ///
    /// Errors: never, if the config is the one that the tree was built from.
    pub fn recheck(&self) -> Result<(), VdevError> {
        let _one = self.writer.probing.lock();
        assemble::for_each_leaf(self.root(), &mut |leaf, state_with| {
            let Some(device) = leaf.device().filter(|_| is_silent(leaf)) else {
                return;
            };
            device.forget_cached();
            let state = state_with(&leaf.config_in_use(), Some(&*device));
            // One whose labels cannot be read is silent still.
            if !state.readable() && read_labels(&*device).is_ok() {
                tracing::error!(?leaf, ?state, "not the device that it was");
                leaf.set_state(state);
                self.writer.awaited.store(true, SeqCst);
            }
        })?;
        for top in self.root().children() {
            let mut leaves = Vec::new();
            top.collect_leaves(&mut leaves);
            // What comes back in a suspended pool has to show that it has all.
            if self.suspension().why().is_none() {
                self.look_after_silent(top, &leaves);
            }
            let unlinked = |leaf: &&Arc<Vdev>| leaf.device().is_some_and(|d| d.is_unlinked());
            let healthy = leaves.iter().filter(|leaf| leaf.state() == VdevState::Healthy);
            healthy.filter(unlinked).for_each(|leaf| self.look_after_leaf(top, leaf));
        }
        Ok(())
    }

    /// Probes the leaves below `top` that did not answer and stayed in use.
    fn look_after_silent(&self, top: &Arc<Vdev>, leaves: &[Arc<Vdev>]) {
        for leaf in leaves.iter().filter(|leaf| is_silent(leaf)) {
            if leaf.device().is_some_and(|device| self.is_well(top, leaf, &*device)) {
                // Probing takes its time: what comes back in a suspended pool has to show that it has all.
                if self.suspension().why().is_some() {
                    return;
                }
                tracing::info!(?leaf, "the device answers again");
                leaf.set_state(VdevState::Healthy);
                self.writer.awaited.store(true, SeqCst);
            } else if !required(top, leaf) {
                self.put_out(top, leaf);
            }
        }
    }

    /// A leaf that does not answer goes out of use, unless others have just failed to take what is being written: that may be noted
    /// while this asks. What is noted after this has asked is not written ([`crate::write`]). A leaf that stays is in use all the time:
    /// a block that was written without it for a moment would be in no list.
    fn put_out(&self, top: &Arc<Vdev>, leaf: &Vdev) {
        let was_silent = is_silent(leaf);
        leaf.going.store(true, SeqCst);
        let stays = required(top, leaf);
        leaf.set_state(if stays { VdevState::Degraded } else { VdevState::Faulted });
        leaf.going.store(false, SeqCst);
        if was_silent && !stays {
            self.writer.awaited.store(true, SeqCst);
        }
    }

    /// Probes a leaf below `top`.
    fn look_after_leaf(&self, top: &Arc<Vdev>, leaf: &Arc<Vdev>) {
        if !leaf.state().readable()
            || leaf.device().is_none_or(|device| self.is_well(top, leaf, &*device))
        {
            return;
        }
        let state = match required(top, leaf) {
            true => VdevState::Degraded,
            false => VdevState::Faulted,
        };
        // One that its vdev cannot do without is probed again with each request that fails.
        if leaf.state() != state {
            tracing::error!(?leaf, ?state, "the device does not answer");
            events::tell(leaf, &Happening::ProbeFailed);
        }
        match state {
            VdevState::Faulted => self.put_out(top, leaf),
            _ => leaf.set_state(state),
        }
    }

    /// Whether the device of a leaf in use answers, and keeps what is written.
    fn is_well(&self, top: &Arc<Vdev>, leaf: &Arc<Vdev>, device: &dyn Device) -> bool {
        if !leaf.writable() {
            return answers(leaf, device);
        }
        let answers = || {
            leaf.written().mark();
            let busy = leaf.stats.activity.begin();
            let answers = answers(leaf, device);
            drop(busy);
            leaf.written().mark();
            answers
        };
        // That a sector cannot be written the system says with one flush, whichever thread asks: a device is not to
        // blame for more than that before it has failed another one.
        answers()
            && (!self.fails_to_flush(top, leaf) || answers() && !self.fails_to_flush(top, leaf))
    }

    /// Brings leaves back, as far as they are out of use and their devices answer. Returns whether any
    /// came back. What they missed is with what [`VdevTree::take_missed`] takes.
    ///
    /// To be called while nothing is written to the tree.
    ///
    /// Errors: never, if the config is the one that the tree was built from.
    pub fn reopen(&self, how: &mut Reopen<'_>) -> Result<bool, VdevError> {
        // Nothing is written meanwhile.
        let _alone = self.writer.healing.write();
        let _one = self.writer.probing.lock();
        let (committing, is_held) = (self.writer.committing.lock().clone(), how.held);
        let mut any = false;
        let mut look = |leaf: &Vdev, state_with: StateWith<'_>| {
            if !(how.which)(leaf) {
                return;
            }
            let config = (how.config)(leaf);
            let state_with = |device: Option<&dyn Device>| state_with(&config, device);
            let well = leaf.opened_state() == VdevState::Healthy;
            if well && (!how.doubt || is_well(leaf, &state_with)) {
                return;
            }
            leaf.faulted_by_hand.store(false, Relaxed);
            let (state_with, committing) = (&state_with, &committing);
            let judge = &mut Judge { tree: self, how, state_with, committing };
            any |= self.bring_back(leaf, judge);
        };
        assemble::for_each_leaf(self.root(), &mut look)?;
        if is_held {
            // One that lacks something comes back after one that has that.
            assemble::for_each_leaf(self.root(), &mut look)?;
        }
        Ok(any)
    }

    /// Brings one leaf back. Returns whether it is in use then.
    fn bring_back(&self, leaf: &Vdev, judge: &mut Judge<'_, '_>) -> bool {
        let Some(top) = self.above(leaf) else { return false };
        let (held, before) = (judge.how.held, leaf.state());
        if !held && is_last_hope(top, leaf, judge.state_with) {
            // Its labels are written anew with the config.
            let is_blank = has_only_lost_labels(leaf);
            if !is_blank {
                leaf.set_state(VdevState::Degraded);
            }
            return is_blank;
        }
        let any = match held && is_needed(top, leaf) {
            true => take_back_needed(leaf, judge),
            false => reopen(leaf, judge),
        };
        leaf.tell_state(before);
        any
    }
}

impl VdevTree {
    /// As [`VdevTree::take_out`], of a leaf that has had too many errors (`vdev_fault`).
    pub fn fault(&self, guid: u64) -> bool {
        let spared = self.take_out(guid, VdevState::Faulted);
        if let Some(leaf) = self.find(guid).filter(|_| spared) {
            leaf.faulted_by_hand.store(false, Relaxed);
        }
        spared
    }

    /// The top-level vdev above a leaf.
    fn above(&self, leaf: &Vdev) -> Option<&Arc<Vdev>> {
        above(self.root(), leaf)
    }

    /// Takes the leaf with this guid out of use, offline or faulted, and lets go of its device. False: its
    /// top-level vdev could not do without it, or there is no such leaf.
    ///
    /// To be called while no group is written. Waits for what else is being written: whether the vdev can do without the leaf
    /// is known once it is noted what each leaf missed.
    pub fn take_out(&self, guid: u64, state: VdevState) -> bool {
        let _alone = self.writer.healing.write();
        let _one = self.writer.probing.lock();
        for top in self.root().children() {
            let mut leaves = Vec::new();
            top.collect_leaves(&mut leaves);
            let Some(leaf) = leaves.iter().find(|l| l.guid() == guid) else { continue };
            let spared = !leaf.state().readable() || !required(top, leaf);
            if spared {
                leaf.faulted_by_hand.store(state == VdevState::Faulted, Relaxed);
                let before = leaf.state();
                self.lose_log(top, leaf);
                leaf.replace(Some(top), Opened { device: None, state }, false);
                leaf.tell_state(before);
            }
            return spared;
        }
        false
    }
}

/// What the state of a leaf is, given its config and device.
pub(crate) type StateWith<'a> = &'a dyn Fn(&NvList, Option<&dyn Device>) -> VdevState;

/// Which leaves come back, and how.
pub struct Reopen<'a> {
    /// The leaves.
    pub which: &'a dyn Fn(&Vdev) -> bool,
    /// Also those that work are looked at: what is there may be another device meanwhile.
    pub doubt: bool,
    /// A leaf's config without what it was taken out of use for.
    pub config: &'a dyn Fn(&Vdev) -> NvList,
    /// Finds the device of a leaf anew, which has let go of the one that it had.
    pub open: &'a mut dyn FnMut(&Vdev) -> Option<Arc<dyn Device>>,
    /// The last transaction group that is on disk.
    pub txg: u64,
    /// Whether the pool is written to.
    pub writable: bool,
    /// The pool is suspended ([`Suspension`](crate::Suspension)): what a device has lost is written again, so that one that
    /// its vdev cannot do without may be opened anew. The group that is held may have got its uberblock onto devices.
    pub held: bool,
}

/// What the state of a certain leaf is with a device.
pub(crate) type StateOf<'a> = &'a dyn Fn(Option<&dyn Device>) -> VdevState;

/// The top-level vdev above a leaf.
fn above<'a>(root: &'a Arc<Vdev>, leaf: &Vdev) -> Option<&'a Arc<Vdev>> {
    let is_below = |top: &&Arc<Vdev>| {
        let mut leaves = Vec::new();
        top.collect_leaves(&mut leaves);
        leaves.iter().any(|l| l.guid() == leaf.guid())
    };
    root.children().iter().find(is_below)
}

/// Looks at the devices of one leaf.
struct Judge<'a, 'b> {
    tree: &'a VdevTree,
    how: &'a mut Reopen<'b>,
    state_with: StateOf<'a>,
    /// The uberblock of the group that is being committed, or was last.
    committing: &'a Option<Uberblock>,
}

/// What is found of a leaf with a device that may be any.
struct Verdict {
    state: VdevState,
    /// The transaction group of the newest uberblock.
    last: u64,
    /// The groups that the leaf missed, if the device is the leaf's.
    missed: Range<u64>,
}

impl Judge<'_, '_> {
    /// Nothing is written to a device that is not the leaf's.
    fn look(&self, leaf: &Vdev, device: &dyn Device) -> Verdict {
        device.forget_cached();
        let of = |state| Verdict { state, last: 0, missed: 0..0 };
        let state = (self.state_with)(Some(device));
        if !state.readable() {
            return of(state);
        }
        if leaf.is_distributed() {
            // It has no uberblocks; what it missed is known as it was out of use. The leaves that hold it lack what they say themselves.
            return Verdict { state, last: self.how.txg, missed: 0..0 };
        }
        let labels = read_labels(device).ok().flatten();
        let uberblocks = labels.iter().flat_map(|labels| &labels.uberblocks);
        let newest = uberblocks.map(|(.., uberblock)| uberblock).max_by_key(|u| u.txg);
        let (last, txg) = (newest.map_or(0, |newest| newest.txg), self.how.txg);
        // A group that is held may be in labels already.
        let is_ours = self.how.held && newest.is_some() && newest == self.committing.as_ref();
        if self.how.writable && last > txg && !is_ours {
            tracing::error!(path = %device.path().display(), last, txg, "written to elsewhere");
            return of(VdevState::CantOpen(Aux::CorruptData));
        }
        match answers(leaf, device) {
            true => Verdict { state, last, missed: behind(last)..behind(txg) },
            false => of(VdevState::Faulted),
        }
    }

    /// Another device, or no device, in place of the leaf's: see [`Vdev::replace`]. What only the device before was written with
    /// is written again, before it counts as stable.
    fn replace(&self, leaf: &Vdev, opened: Opened) {
        let top = self.tree.above(leaf);
        let again = self.how.held || top.is_some_and(|top| is_needed(top, leaf));
        match top {
            Some(top) if again => self.tree.lost_with_device(top),
            Some(top) => self.tree.lose_log(top, leaf),
            None => {}
        }
        leaf.replace(top, opened, again);
    }

    /// The device of a leaf, if nothing can have taken its place, as far as the system says.
    fn same(&self, leaf: &Vdev) -> Option<Arc<dyn Device>> {
        if let Some(spare) = leaf.distributed.get() {
            return Some(spare.clone());
        }
        leaf.device().filter(|d| d.is_current() && d.writable() == self.how.writable)
    }
}

/// Brings back a leaf of a suspended pool that its vdev cannot do without. It has to have the last uberblock that was
/// written to it, or, if it was not in use then, the last one of all: an older state of it would be without what was
/// acknowledged since, and nothing else has that. Returns whether it is in use then.
fn take_back_needed(leaf: &Vdev, judge: &mut Judge<'_, '_>) -> bool {
    let expected = match leaf.live.uberblock.load(Relaxed) {
        0 => judge.how.txg,
        known => known,
    };
    if let Some(device) = judge.same(leaf) {
        let seen = judge.look(leaf, &*device);
        let is_it = seen.state.readable() && seen.last >= expected;
        let is_silent =
            || (judge.state_with)(Some(&*device)).readable() || read_labels(&*device).is_err();
        let state = match seen.state {
            state if is_it => state,
            state if state.readable() => VdevState::Faulted,
            // One that does not answer yet may later. It is written to only if it was.
            _ if is_silent() && leaf.state().readable() => VdevState::Degraded,
            _ if is_silent() => leaf.state(),
            state => state,
        };
        // Blocks that were laid out without it since the last flush are not on it.
        leaf.written().write_failed();
        leaf.set_opened(Opened { device: Some(device.clone()), state });
        return is_it;
    }
    // A block device is open for writing once at a time.
    if leaf.device().is_some_and(|device| device.is_there()) {
        judge.replace(leaf, Opened { device: None, state: (judge.state_with)(None) });
    }
    let Some(device) = (judge.how.open)(leaf) else { return false };
    let Verdict { state, last, .. } = judge.look(leaf, &*device);
    let is_it = state.readable() && last >= expected && device.writable() == judge.how.writable;
    if is_it {
        judge.replace(leaf, Opened { device: Some(device), state });
    } else if state.readable() {
        tracing::error!(path = %device.path().display(), last, expected, "an older state");
    }
    is_it
}

/// Brings a leaf back. Returns whether it is in use then.
fn reopen(leaf: &Vdev, judge: &mut Judge<'_, '_>) -> bool {
    if let Some(device) = judge.same(leaf)
        && let Verdict { state, missed, .. } = judge.look(leaf, &*device)
        && state.readable()
    {
        // Blocks that were laid out without it since the last flush are not on it.
        leaf.written().write_failed();
        leaf.lags(missed);
        leaf.set_opened(Opened { device: Some(device), state });
        return true;
    }
    // A device is open for writing once at a time, so the old one goes first.
    judge.replace(leaf, Opened { device: None, state: (judge.state_with)(None) });
    let Some(device) = (judge.how.open)(leaf) else { return false };
    let Verdict { state, missed, .. } = judge.look(leaf, &*device);
    leaf.lags(missed);
    // Others may want to write to what is not this leaf's.
    let kept = state.readable() || !device.writable();
    judge.replace(leaf, Opened { device: kept.then_some(device), state });
    state.readable()
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;
