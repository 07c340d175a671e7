//! Committing a transaction group: labels and uberblocks, in an order that survives a crash at any
//! point (`vdev_config_sync`).
//!
//! Each leaf has four labels, of which L0 and L2 are *even* and L1 and L3 are *odd*. Committing the
//! transaction group `T` with [`VdevTree::sync_labels`] takes these steps, each of which ends with
//! a flush and is begun only after that flush succeeded:
//!
//! 1. write the even labels, of txg `T`, of the top-level vdevs whose configs changed; flush them together with what was
//!    written of `T` (to log devices nothing was). If some of these vdevs are new in `T`, there is a flush before them; theirs
//!    come first, with another flush;
//! 2. write the uberblock of `T` to all four labels, but not of leaves that failed that flush;
//! 3. write the odd labels.
//!
//! OpenZFS flushes the blocks of `T` before it writes the even labels. That order is not needed: both lead nowhere before the
//! uberblock of `T`. So a group whose config did not change waits for its devices four times (its blocks, the flush, the
//! uberblock, its flush), and one whose config did for three times more.
//!
//! # Why the pool can be opened after a crash
//!
//! A pool is opened at the best valid uberblock, and a label counts for it if its txg is not higher
//! than the uberblock's ([`crate::DeviceLabels::config_as_of`]). Slots and configs carry checksums,
//! so one that was torn counts as absent. Let `S` be the uberblock before `T`.
//!
//! - During 1, no uberblock of `T` exists: the best is `S`. Even labels that were written are
//!   too new for it, even labels that were torn do not verify; the odd ones, untouched and
//!   durable since the last commit, are what they were.
//! - During 2, some uberblocks of `T` may exist. If there is no such uberblock, it is as during 1: the slot of `T` is
//!   that of a transaction group as many back as there are slots, so that `S` is not overwritten.
//!   If any does, `T` is the best; its blocks and the even labels are durable since step 1.
//!   The odd labels are from `S`, older and still right where nothing changed, and the
//!   newest that is not too new is taken.
//! - During 3, the uberblock of `T` is durable, as are the even labels.
//!
//! On a leaf that could not take an even label (and only there; every top-level vdev needs one
//! leaf that did) the previous labels stay as they are until step 3 and are too old, which others'
//! labels show. Devices lose writes in any order and any part of them between two flushes, hence
//! the flush after each step and not only before the uberblock.
//!
//! OpenZFS imports by the first label of a device, too new or not, and only if it finds a label of each
//! top-level vdev that the newest one counts; it passes over the labels without a txg that a new vdev has before
//! (`zpool_read_label`, `get_configs`). So where a label counts a new vdev, there is one of that vdev, unless
//! it is a log vdev that could not take a label.
//!
//! A crash in 2 or 3 leaves odd labels that are one commit behind. So the first commit after a pool
//! is opened must rewrite the labels of all its top-level vdevs.
//!
//! Failure leaves a state that is as good as that after a crash. The same transaction group can
//! then be committed again: every step writes the same bytes to the same places.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use cenote_format::abd::Abd;
use cenote_format::encode::EncodeError;
use cenote_format::encode::label::{encode_config, encode_slot, slot_of, slots};
use cenote_format::invariant;
use cenote_format::label::{self, Uberblock};
use cenote_format::nvlist::{NvList, NvValue};

use crate::device::{Device, WriteReq};
use crate::queue::{self, LeafWork, Priority};
use crate::threads::Work;
use crate::traffic::Content;
use crate::tree;
use crate::vdev::Vdev;
use crate::write::submit;
use crate::{VdevError, VdevTree};

const EVEN: [usize; 2] = [0, 2];
const ODD: [usize; 2] = [1, 3];
const ALL: [usize; 4] = [0, 1, 2, 3];

/// A top-level vdev (its id) whose labels are rewritten, with its config.
type Top = (u64, NvList);

/// What commits a transaction group (`vdev_config_sync`).
#[derive(Clone, Debug)]
pub struct LabelUpdate<'a> {
    /// The uberblock; its txg is the transaction group.
    pub uberblock: &'a Uberblock,
    /// The top-level vdevs (by id) that get the uberblock, on every leaf that can be written and has lost nothing. Only
    /// such as the pool knows already: it must be findable by them.
    pub uberblock_on: &'a [u64],
    /// The top-level vdevs (by id) whose labels are rewritten, with the config to write: what all
    /// labels of the pool have (version, name, state, pool_guid, hostid, ..., features_for_read) and
    /// the `vdev_tree` of this top-level vdev. `txg`, `guid` and `top_guid` are set here.
    pub labels: &'a [(u64, NvList)],
    /// Whether the last slot of the ring belongs to multihost protection (the property is on).
    pub multihost: bool,
}

impl VdevTree {
    /// Makes every block that was written so far durable (but those on log devices), then commits the update; when this
    /// returns `Ok` the pool opens at the update's uberblock, whatever happens.
    ///
    /// Errors: something that was written may be lost (the pool must not be committed), a config
    /// does not fit a label, no leaf of a top-level vdev (other than a log device) could take its
    /// label, or none at all the uberblock. Each is tried twice. Until the uberblock is durable,
    /// the pool opens at the one before. Leaves that failed count write errors. After
    /// [`VdevError::Committed`] it opens at the update's.
    pub fn sync_labels(&self, update: &LabelUpdate<'_>) -> Result<(), VdevError> {
        self.sync_labels_on(update, false)
    }

    /// As [`VdevTree::sync_labels`], but each leaf that takes writes has to take the uberblock: what the one before leads to may be
    /// overwritten from now on, so that no leaf may lead back to it.
    ///
    /// # Errors
    /// Also where one did not take it.
    pub fn sync_labels_on_all(&self, update: &LabelUpdate<'_>) -> Result<(), VdevError> {
        self.sync_labels_on(update, true)
    }

    fn sync_labels_on(&self, update: &LabelUpdate<'_>, all: bool) -> Result<(), VdevError> {
        let configs = self.leaf_configs(update)?;
        let is_new = |top: &Top| {
            top.1.list("vdev_tree").and_then(|vdev| vdev.u64("create_txg"))
                == Some(update.uberblock.txg)
        };
        let (new, known): (Vec<&Top>, Vec<&Top>) =
            update.labels.iter().partition(|top| is_new(top));
        self.write_even(&new, &known, &configs)?;
        twice(|| self.write_uberblock(update, all))?;
        let all: Vec<&Top> = update.labels.iter().collect();
        twice(|| self.write_configs(&all, &configs, &ODD, &[]))
            .map_err(|e| VdevError::Committed(Box::new(e)))
    }

    /// Writes an uberblock into the last slot of one label of a leaf, which multihost protection keeps for that
    /// (`mmp_write_uberblock`). Flushes nothing, and waits for no other request of the leaf.
    ///
    /// # Errors
    /// [`VdevError::Uberblock`]: the leaf did not take it.
    pub fn write_heartbeat(
        &self,
        leaf: &Arc<Vdev>,
        label: usize,
        uberblock: &Uberblock,
    ) -> Result<(), VdevError> {
        let failed = |why: String| VdevError::Uberblock { txg: uberblock.txg, why };
        let ashift = leaf.ashift();
        let encode = |at| encode_slot(uberblock, ashift, at);
        let mut reqs = requests(leaf, &[label], last_slot(ashift), encode).map_err(failed)?;
        submit(leaf, Priority::SyncWrite, &mut reqs, |_| true);
        match reqs.into_iter().find_map(|req| req.result) {
            Some(Ok(())) => {
                self.writer.writes.add(Content::Label, 1, label::slot_size(ashift) as u64);
                Ok(())
            }
            Some(Err(e)) => Err(failed(e.to_string())),
            None => Err(failed("there is no device".into())),
        }
    }

    /// Writes the even labels, those of `new` top-level vdevs first, and makes durable what was written before.
    fn write_even(
        &self,
        new: &[&Top],
        known: &[&Top],
        configs: &HashMap<u64, NvList>,
    ) -> Result<(), VdevError> {
        let needed = self.root().children().iter().filter(|t| !t.is_log()).map(|t| t.id());
        let needed: Vec<u64> = needed.collect();
        if !new.is_empty() {
            self.flush_tops(&needed)?;
            twice(|| self.write_configs(new, configs, &EVEN, &[]))?;
        }
        let written = self.write_configs(known, configs, &EVEN, &needed);
        // Whether the blocks are durable: where the flush with the labels failed, this fails as well.
        self.flush_tops(&needed)?;
        written.or_else(|error| {
            tracing::warn!(%error, "trying again");
            self.write_configs(known, configs, &EVEN, &[])
        })
    }

    /// Configs of the leaves to write, by guid.
    fn leaf_configs(&self, update: &LabelUpdate<'_>) -> Result<HashMap<u64, NvList>, VdevError> {
        let mut configs = HashMap::new();
        for (id, config) in update.labels {
            let top = tree::top(self.root().children(), *id)?;
            for leaf in writable_leaves(top) {
                let config = leaf_config(config, update.uberblock.txg, top, &leaf);
                // Whether it fits does not depend on the place.
                encode_config(&config, 0)
                    .map_err(|e| VdevError::Config { vdev: *id, why: e.to_string() })?;
                configs.insert(leaf.guid(), config);
            }
        }
        Ok(configs)
    }

    /// Writes the labels `which` of some top-level vdevs and flushes them (`vdev_label_write`); in the same flush the
    /// top-level vdevs `too`.
    fn write_configs(
        &self,
        tops: &[&Top],
        configs: &HashMap<u64, NvList>,
        which: &[usize],
        too: &[u64],
    ) -> Result<(), VdevError> {
        let mut jobs = Vec::new();
        for (id, _) in tops {
            for leaf in writable_leaves(tree::top(self.root().children(), *id)?) {
                // One that came back meanwhile gets its label with the next config.
                let Some(config) = configs.get(&leaf.guid()) else { continue };
                let encode = |at| encode_config(config, at);
                let reqs = requests(&leaf, which, label::CONFIG_OFFSET, encode);
                let reqs = reqs.map_err(|why| VdevError::Label { vdev: *id, why })?;
                jobs.push(Labels::new(*id, leaf, reqs));
            }
        }
        let durable: Vec<u64> = self.write_labels(jobs, too).iter().map(|(top, _)| *top).collect();
        for (id, _) in tops {
            let top = tree::top(self.root().children(), *id)?;
            // A pool does without its log devices.
            if !top.is_log() && !durable.contains(id) {
                let why = "could not be written to any device".into();
                return Err(VdevError::Label { vdev: *id, why });
            }
        }
        Ok(())
    }

    /// Writes the uberblock and flushes it (`vdev_uberblock_sync_list`). One leaf has to take it, or `everywhere` all.
    fn write_uberblock(&self, update: &LabelUpdate<'_>, everywhere: bool) -> Result<(), VdevError> {
        let txg = update.uberblock.txg;
        let before = self.writer.committing.lock().replace(update.uberblock.clone());
        let last = before.map_or(0, |before| before.txg);
        invariant!(last <= txg, "the uberblock of group {txg} is written after that of {last}");
        let (mut jobs, mut all) = (Vec::new(), Vec::new());
        for id in update.uberblock_on {
            let top = tree::top(self.root().children(), *id)?;
            let ashift = top.ashift();
            let within = slot_offset(txg, ashift, update.multihost);
            top.collect_leaves(&mut all);
            // One that lacks something may not lead back either.
            let leaves = if everywhere { writable_leaves(top) } else { whole_leaves(top, txg) };
            for leaf in leaves {
                let encode = |at| encode_slot(update.uberblock, ashift, at);
                let reqs = requests(&leaf, &ALL, within, encode);
                let reqs = reqs.map_err(|why| VdevError::Uberblock { txg, why })?;
                jobs.push(Labels::new(*id, leaf, reqs));
            }
        }
        let tried: Vec<Arc<Vdev>> = jobs.iter().map(|job| job.leaf.clone()).collect();
        // What is in an object store becomes durable with its uberblock, and no other may lead there before.
        let (first, jobs): (Vec<Labels>, Vec<Labels>) =
            jobs.into_iter().partition(|job| job.leaf.growing().is_some());
        let mut durable = Vec::new();
        if !first.is_empty() {
            durable = self.write_labels(first, &[]);
            if durable.is_empty() {
                let mut leaves = tried.iter().filter_map(|leaf| leaf.growing()?.trouble());
                let why = leaves.next_back().unwrap_or_else(|| "it does not take writes".into());
                let why = format!("the object store: {why}");
                return Err(VdevError::Uberblock { txg, why });
            }
        }
        if !jobs.is_empty() {
            durable.extend(self.write_labels(jobs, &[]));
        }
        // One that took no writes lacks the group; one that failed, or was left out, may take the uberblock of the next one.
        let failed = |leaf: &Arc<Vdev>| {
            let is_it = |other: &Arc<Vdev>| Arc::ptr_eq(other, leaf);
            let tried = tried.iter().any(is_it) || leaf.writable();
            tried && !durable.iter().any(|(_, done)| is_it(done))
        };
        if durable.is_empty() {
            let why = "could not be written to any device".into();
            return Err(VdevError::Uberblock { txg, why });
        }
        if let Some(leaf) = all.iter().find(|leaf| everywhere && failed(leaf)) {
            let path = leaf.path().unwrap_or_else(|| Path::new("a device"));
            let why = format!("could not be written to {}", path.display());
            return Err(VdevError::Uberblock { txg, why });
        }
        for leaf in all.iter().filter(|leaf| !failed(leaf)) {
            leaf.live.uberblock.store(txg, Relaxed);
        }
        durable.iter().for_each(|(_, leaf)| leaf.live.leads_to.store(txg, SeqCst));
        Ok(())
    }

    /// Performs the writes, then flushes the leaves, and the top-level vdevs `too`. Returns the leaves on which at least one
    /// write is durable, with their top-level vdevs.
    fn write_labels(&self, jobs: Vec<Labels>, too: &[u64]) -> Vec<(u64, Arc<Vdev>)> {
        let done = queue::run(&self.writer.pool, Priority::SyncWrite, jobs);
        let written = |req: &&WriteReq| matches!(req.result, Some(Ok(())));
        let all = || done.iter().flat_map(|job| &job.reqs);
        if !all().all(|req| written(&req)) {
            self.writer.pool.set_failure();
        }
        for req in all().filter(written) {
            self.writer.writes.add(Content::Label, 1, req.data.len() as u64);
        }
        let mut tops: Vec<u64> =
            done.iter().map(|job| job.top).chain(too.iter().copied()).collect();
        tops.sort_unstable();
        tops.dedup();
        // Blocks that others write meanwhile do not matter here: their writers flush them, and see what fails.
        if let Err(error) = self.flush_tops(&tops) {
            tracing::warn!(%error, "while labels were written");
        }
        let durable = done.iter().filter(|job| job.durable());
        durable.map(|job| (job.top, job.leaf.clone())).collect()
    }
}

/// Writes an uberblock into the last slot of all labels of a device that no pool has open.
///
/// # Errors
/// The device does not take it, or there can be no such sector size.
pub fn write_heartbeat(device: &dyn Device, ashift: u32, uberblock: &Uberblock) -> io::Result<()> {
    if !(9..=16).contains(&ashift) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let places = ALL.iter().filter_map(|l| label::label_offset(device.size(), *l));
    let mut reqs = Vec::new();
    for place in places {
        let at = place + last_slot(ashift);
        let slot = encode_slot(uberblock, ashift, at).map_err(io::Error::other)?;
        reqs.push(WriteReq::new(at, Abd::from_vec(slot)));
    }
    device.write_batch(&mut reqs);
    reqs.into_iter().try_for_each(WriteReq::take)?;
    device.flush()
}

/// Byte offset in a label of the slot that multihost protection keeps for heartbeats.
fn last_slot(ashift: u32) -> u64 {
    label::RING_OFFSET + ((slots(ashift) - 1) * label::slot_size(ashift)) as u64
}

/// Byte offset in a label of the slot for the uberblock of `txg`.
fn slot_offset(txg: u64, ashift: u32, multihost: bool) -> u64 {
    let (slot, slots) = (slot_of(txg, ashift, multihost), slots(ashift));
    invariant!(
        slot + usize::from(multihost) < slots,
        "group {txg}: uberblock {slot} of a ring of {slots}"
    );
    label::RING_OFFSET + (slot * label::slot_size(ashift)) as u64
}

/// A device that fails once may have been reset; one that fails twice is taken at its word.
fn twice(mut step: impl FnMut() -> Result<(), VdevError>) -> Result<(), VdevError> {
    step().or_else(|error| {
        tracing::warn!(%error, "trying again");
        step()
    })
}

fn writable_leaves(top: &Arc<Vdev>) -> Vec<Arc<Vdev>> {
    let mut leaves = Vec::new();
    top.collect_leaves(&mut leaves);
    // A distributed spare has no labels on disk.
    leaves.retain(|l| l.writable() && !l.is_distributed());
    leaves
}

/// The leaves of `top` that get the uberblock of group `txg`: not those that may have lost some of it since what leaves lack
/// was noted. Without it an import finds out (`crate::lag`).
fn whole_leaves(top: &Arc<Vdev>, txg: u64) -> Vec<Arc<Vdev>> {
    let leaves = writable_leaves(top);
    let has_lost = |leaf: &Arc<Vdev>| leaf.written().missed().iter().any(|lost| lost.start <= txg);
    let (lost, whole): (Vec<_>, Vec<_>) = leaves.into_iter().partition(has_lost);
    // Where no side has all, together they do: else the flush would have failed.
    if whole.is_empty() { lost } else { whole }
}

/// Whether a top-level vdev has devices.
pub(crate) fn concrete(top: &Vdev) -> bool {
    !matches!(top.kind(), "hole" | "missing" | "indirect")
}

/// The config in the labels of `leaf`, from the one of its top-level vdev.
fn leaf_config(config: &NvList, txg: u64, top: &Vdev, leaf: &Vdev) -> NvList {
    let mut own = config.clone();
    let mut pairs = vec![("top_guid", top.guid()), ("guid", leaf.guid())];
    if leaf.config().u64("is_spare").is_some_and(|s| s != 0) {
        pairs.push(("is_spare", 1));
    }
    if leaf.is_log() {
        pairs.push(("is_log", 1));
    }
    own.pairs.retain(|(name, _)| pairs.iter().all(|(n, _)| n != name));
    let before = own.pairs.iter().position(|(name, _)| name == "vdev_children");
    let at = before.unwrap_or(own.pairs.len());
    let pairs = pairs.into_iter().map(|(n, v)| (n.to_string(), NvValue::Uint64(v)));
    own.pairs.splice(at..at, pairs);
    own.set("txg", NvValue::Uint64(txg));
    own
}

/// Writes to byte `within` of the labels `which`; `encode` makes the bytes for an offset on the
/// device.
fn requests(
    leaf: &Vdev,
    which: &[usize],
    within: u64,
    encode: impl Fn(u64) -> Result<Vec<u8>, EncodeError>,
) -> Result<Vec<WriteReq>, String> {
    let size = leaf.device().map_or(0, |d| d.size());
    let places = which.iter().filter_map(|l| Some(label::label_offset(size, *l)? + within));
    let request = |at| Ok(WriteReq::new(at, Abd::from_vec(encode(at)?)));
    places.map(request).collect::<Result<_, EncodeError>>().map_err(|e| e.to_string())
}

/// Writes to the labels of one leaf.
struct Labels {
    /// Id of the top-level vdev.
    top: u64,
    leaf: Arc<Vdev>,
    reqs: Vec<WriteReq>,
    /// Flushes of the leaf that had failed before.
    flush_failures: u64,
}

impl Labels {
    fn new(top: u64, leaf: Arc<Vdev>, reqs: Vec<WriteReq>) -> Labels {
        let flush_failures = leaf.written().flush_failures();
        Labels { top, leaf, reqs, flush_failures }
    }

    /// Whether, after a flush, at least one of the writes is durable.
    fn durable(&self) -> bool {
        let written = self.reqs.iter().any(|r| matches!(r.result, Some(Ok(()))));
        written && self.leaf.written().flush_failures() == self.flush_failures
    }
}

impl LeafWork for Labels {
    fn leaf(&self) -> &Arc<Vdev> {
        &self.leaf
    }

    fn requests(&self) -> usize {
        self.reqs.len()
    }
}

impl Work for Labels {
    fn run(&mut self) {
        self.leaf.written().mark();
        submit(&self.leaf, Priority::SyncWrite, &mut self.reqs, |_| true);
        self.leaf.written().mark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_go_round() {
        // 128 slots of 1 KiB, 32 of 4 KiB; multihost keeps the last one.
        assert_eq!(slot_offset(0, 9, false), 128 << 10);
        assert_eq!(slot_offset(127, 9, false), (128 << 10) + 127 * 1024);
        assert_eq!(slot_offset(128, 9, false), 128 << 10);
        assert_eq!(slot_offset(127, 9, true), 128 << 10);
        assert_eq!(slot_offset(33, 12, false), (128 << 10) + 4096);
        assert_eq!(slot_offset(33, 12, true), (128 << 10) + 2 * 4096);
    }
}
