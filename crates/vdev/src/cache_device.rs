//! Cache devices (L2ARC): leaves that are in no tree.
//!
//! Nothing is there that is not elsewhere as well. So no caller waits long for such a device: its reads and writes are
//! done by other threads, and what it has not answered in the time that the caller gives it counts as not there
//! ([`is_silence`]). It has the counters, the queue and the state of a leaf, and errors count there; it is not probed.
//!
//! Invariant: a write touches no label.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::label::{LABEL_END, LABEL_SIZE};
use cenote_format::nvlist::NvList;

use crate::device::{Device, WriteReq};
use crate::dtl::Dtl;
use crate::events::{self, Happening};
use crate::label_init::{LabelState, label_owner};
use crate::patience::{GaveUp, Patience};
use crate::queue::{self, LeafWork, Priority};
use crate::state::{Aux, VdevState};
use crate::submit::{LeafRead, Submit, read_leaves};
use crate::threads::{IoPool, Work};
use crate::vdev::{Kind, Live, Opened, Vdev};
use crate::write::{submit_writes, write_request};
use crate::{Alarm, VdevError, tunables};

/// Sector sizes that there are, as powers of two.
const ASHIFTS: Range<u64> = 9..17;
/// Smallest device that may be a leaf (`SPA_MINDEVSIZE`).
const MIN_DEVICE: u64 = 64 << 20;

/// A cache device.
pub struct CacheDevice {
    leaf: Arc<Vdev>,
    pool: IoPool,
}

/// Whether the device of a leaf is still to write or trim something, which whoever wanted that may have given up.
pub fn is_writing(leaf: &Vdev) -> bool {
    let figures = leaf.queue.figures();
    let has =
        |class: Priority| figures.active[class as usize] + figures.pending[class as usize] > 0;
    has(Priority::AsyncWrite) || has(Priority::Trim)
}

/// Whether an error says that the device has not answered in time.
pub fn is_silence(error: &io::Error) -> bool {
    GaveUp::is(error)
}

/// The state of a cache device with this guid, as opening it came out.
fn state_of(guid: u64, device: Option<&dyn Device>) -> VdevState {
    let Some(device) = device else { return VdevState::CantOpen(Aux::OpenFailed) };
    if device.size() / LABEL_SIZE * LABEL_SIZE < MIN_DEVICE {
        return VdevState::CantOpen(Aux::TooSmall);
    }
    let is_it = label_owner(device)
        .ok()
        .flatten()
        .is_some_and(|owner| owner.state == LabelState::Cache && owner.guid == guid);
    if is_it { VdevState::Healthy } else { VdevState::CantOpen(Aux::CorruptData) }
}

impl CacheDevice {
    /// The cache device with this config, which the pool has in its list. It may have no device, or another one than its own: its state
    /// says so.
    ///
    /// # Errors
    /// The config is not of a file or disk.
    pub fn new(config: &NvList, device: Option<Arc<dyn Device>>) -> Result<CacheDevice, VdevError> {
        let refused = |what: String| Err(VdevError::Unsupported(what));
        let name = config.str("type").unwrap_or("");
        let kind = match Kind::from_name(name) {
            Some(kind @ (Kind::File | Kind::Disk)) => kind,
            _ => return refused(format!("a cache device of type {name:?}")),
        };
        let (guid, ashift) = (config.u64("guid").unwrap_or(0), config.u64("ashift").unwrap_or(9));
        if !ASHIFTS.contains(&ashift) {
            return refused(format!("ashift {ashift}"));
        }
        let opened = Opened { state: state_of(guid, device.as_deref()), device };
        let leaf = Arc::new(Vdev {
            kind,
            guid,
            id: 0,
            path: config.str("path").map(Into::into),
            children: Vec::new(),
            config: config.clone(),
            ashift: ashift as u32,
            nparity: 0,
            draid: None,
            live: Live::new(opened, Dtl::Ranges(Vec::new())),
            asize: AtomicU64::default(),
        });
        Ok(CacheDevice { leaf, pool: IoPool::new(Arc::new(Alarm::default())) })
    }

    /// The leaf: its state, counters and errors.
    pub fn leaf(&self) -> &Arc<Vdev> {
        &self.leaf
    }

    /// Why a thread that waited for the device found its own state wrong, if one did.
    pub fn broke(&self) -> Option<&str> {
        self.pool.threads().alarm.why()
    }

    /// The bytes of the device between its labels. `None`: there is no device.
    pub fn space(&self) -> Option<Range<u64>> {
        let device = self.leaf.device().filter(|_| self.leaf.state().readable())?;
        let end = (device.size() / LABEL_SIZE * LABEL_SIZE).checked_sub(LABEL_END)?;
        Some(LABEL_START..end).filter(|space| !space.is_empty())
    }

    /// Reads from bytes of the device, each (offset, bytes) behind the first labels. The device is waited for as long as `patience` says.
    pub fn read(
        &self,
        priority: Priority,
        reads: &[(u64, usize)],
        patience: Duration,
    ) -> Vec<io::Result<Abd>> {
        let patience = Some(Patience::Most(patience));
        let submit = Submit { pool: &self.pool, priority, patience, quiet: false };
        let read = |(at, len): &(u64, usize)| {
            // What is before the space is nowhere.
            let offset = at.checked_sub(LABEL_START).unwrap_or(u64::MAX / 2);
            LeafRead { leaf: self.leaf.clone(), offset, len: *len }
        };
        let reads: Vec<LeafRead> = reads.iter().map(read).collect();
        read_leaves(submit, &reads).into_iter().map(|piece| Ok(piece?.into_own())).collect()
    }

    /// Writes to bytes of the device. All of it is done, or it is an error.
    ///
    /// # Errors
    /// A write failed, or the device did not answer in time: it may write all the same.
    pub fn write(&self, writes: Vec<(u64, Abd)>, patience: Duration) -> io::Result<()> {
        let request = |(at, data): (u64, Abd)| {
            write_request(&self.leaf, at.checked_sub(LABEL_START).unwrap_or(u64::MAX / 2), data)
        };
        let reqs: Vec<WriteReq> = joined(writes).into_iter().map(request).collect();
        let batch = Writes { leaf: self.leaf.clone(), reqs };
        let patience = Some(Patience::Most(patience));
        let done = queue::run_for(&self.pool, Priority::AsyncWrite, vec![batch], patience).pop();
        let done = done.ok_or_else(GaveUp::error)?;
        done.reqs.into_iter().try_for_each(WriteReq::take)
    }

    /// Counts wrong bytes that were read from byte `offset` of the device.
    pub fn mismatch(&self, offset: u64, size: u64) {
        self.leaf.stats.checksum_error();
        events::tell(&self.leaf, &Happening::Mismatch { offset, size });
    }

    /// Has nothing written to the device from now on. What it is writing it may write all the same.
    pub fn fence(&self) {
        self.leaf.fenced.store(true, SeqCst);
    }

    /// Takes the device out of use.
    pub fn set_state(&self, state: VdevState) {
        self.leaf.set_state(state);
    }

    /// Tells the device that nothing is in these bytes of it.
    ///
    /// # Errors
    /// It does not know how, or failed.
    pub fn trim(&self, range: Range<u64>) -> io::Result<()> {
        let start = range.start.checked_sub(LABEL_START).ok_or(io::ErrorKind::InvalidInput)?;
        let end = range.end.checked_sub(LABEL_START).ok_or(io::ErrorKind::InvalidInput)?;
        crate::trim::tell(&self.pool, &self.leaf, start..end)
    }
}

/// Neighbours become one, as far as a request may be long.
fn joined(writes: Vec<(u64, Abd)>) -> Vec<(u64, Abd)> {
    let most = tunables::AGGREGATION_LIMIT.get();
    let mut runs: Vec<(u64, u64, Vec<Abd>)> = Vec::new();
    for (at, data) in writes {
        let len = data.len() as u64;
        match runs.last_mut() {
            Some((start, bytes, parts)) if *start + *bytes == at && *bytes + len <= most => {
                *bytes += len;
                parts.push(data);
            }
            _ => runs.push((at, len, vec![data])),
        }
    }
    let whole = |(at, _, parts): (u64, u64, Vec<Abd>)| (at, Abd::gang(parts));
    runs.into_iter().map(whole).collect()
}

/// Writes that are submitted together.
struct Writes {
    leaf: Arc<Vdev>,
    reqs: Vec<WriteReq>,
}

impl LeafWork for Writes {
    fn leaf(&self) -> &Arc<Vdev> {
        &self.leaf
    }

    fn requests(&self) -> usize {
        self.reqs.len()
    }
}

impl Work for Writes {
    fn run(&mut self) {
        submit_writes(&self.leaf, Priority::AsyncWrite, &mut self.reqs, |_| true);
    }
}
