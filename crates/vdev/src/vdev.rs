//! A node of the vdev tree (`vdev_t`).
//!
//! The tree is as the pool's config describes it: the root, its top-level vdevs (which DVAs
//! name by their id), and below them mirrors, RAID-Z, replacing and spare vdevs down to the
//! leaves, which are files or disks. Counters, DTLs, and the device and state of a leaf change while
//! a tree is in use; all else is fixed once it is built.
//!
//! Invariants: only leaves have a device. A top-level vdev that holds data has an ashift from 9
//! to 16; everything below it has the same. Offsets within a vdev are the offsets of DVAs: byte 0
//! is the first allocatable byte, on a leaf the byte at [`cenote_format::LABEL_START`] of the device.

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use cenote_format::nvlist::NvList;
use cenote_format::{SECTOR, SECTOR_SHIFT, invariant, less};

use crate::assemble::is_faulted_by_config;
use crate::device::Device;
use crate::draid;
use crate::dtl::Dtl;
use crate::events::{self, Happening};
use crate::growing::Growing;
use crate::injection::Injected;
use crate::look::{Asked, Seen};
use crate::queue::{Queue, QueueFigures};
use crate::raidz::map::{ColumnExtent, Geometry};
use crate::raidz::moving::Told;
use crate::raidz::reflow::{self, Reflow, Row, Widths};
use crate::request_sizes::{RequestSizes, SizeFigures};
use crate::state::{self, VdevState};
use crate::stats::{Io, LATENCY_BUCKETS, LatencyHistogram, Stats};
use crate::vacant::Vacant;
use crate::write::Written;

/// What a vdev is (`vdev_ops_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Root,
    Mirror,
    Replacing,
    Spare,
    RaidZ,
    Draid,
    File,
    Disk,
    Object,
    DistributedSpare,
    Hole,
    Missing,
    Indirect,
}

impl Kind {
    /// From the `type` of a config.
    pub(crate) fn from_name(name: &str) -> Option<Kind> {
        let all = [
            Kind::Root,
            Kind::Mirror,
            Kind::Replacing,
            Kind::Spare,
            Kind::RaidZ,
            Kind::Draid,
            Kind::File,
            Kind::Disk,
            Kind::Object,
            Kind::DistributedSpare,
            Kind::Hole,
            Kind::Missing,
            Kind::Indirect,
        ];
        all.into_iter().find(|k| k.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Root => "root",
            Kind::Mirror => "mirror",
            Kind::Replacing => "replacing",
            Kind::Spare => "spare",
            Kind::RaidZ => "raidz",
            Kind::Draid => "draid",
            Kind::File => "file",
            Kind::Disk => "disk",
            Kind::Object => "object",
            Kind::DistributedSpare => "dspare",
            Kind::Hole => "hole",
            Kind::Missing => "missing",
            Kind::Indirect => "indirect",
        }
    }

    pub(crate) fn is_leaf(self) -> bool {
        matches!(self, Kind::File | Kind::Disk | Kind::Object | Kind::DistributedSpare)
    }

    /// Whether blocks are cut into columns, with parity.
    pub(crate) fn is_striped(self) -> bool {
        matches!(self, Kind::RaidZ | Kind::Draid)
    }

    /// Whether every child holds the same data.
    pub(crate) fn is_mirror_like(self) -> bool {
        matches!(self, Kind::Mirror | Kind::Replacing | Kind::Spare)
    }
}

/// How opening a vdev came out.
pub(crate) struct Opened {
    /// The device of a leaf.
    pub device: Option<Arc<dyn Device>>,
    /// The state of a vdev without children; of others it is that of their children.
    pub state: VdevState,
}

/// What changes of a vdev while it is in use. It is the same in a tree and in one that takes its place, where the vdev may
/// have another place, another config or, as the last of a mirror, another guid.
pub struct Live {
    /// The device of a leaf, and how opening it came out.
    pub(crate) opened: RwLock<Opened>,
    /// A request of this leaf failed, and its device was not probed since.
    pub(crate) suspect: AtomicBool,
    pub(crate) dtl: RwLock<Dtl>,
    /// See [`Vdev::dtl_changes`].
    pub(crate) dtl_changes: AtomicU64,
    /// How often it was found out that the leaf lacks something.
    pub(crate) lacked: AtomicU64,
    /// See [`VdevTree::silences`](crate::VdevTree::silences).
    pub(crate) silences: AtomicU64,
    pub(crate) stats: Stats,
    pub(crate) sizes: RequestSizes,
    /// Faults that an administrator wants of the leaf's device.
    pub(crate) injected: Injected,
    /// The question to the leaf's device what is seen of it from outside.
    pub(crate) seen: Mutex<Asked<Seen>>,
    /// An administrator is why it is faulted, if it is.
    pub(crate) faulted_by_hand: AtomicBool,
    /// It has had so many errors that it counts as degraded, though it works.
    pub(crate) too_many_errors: AtomicBool,
    /// See [`Vdev::cut_off`].
    pub(crate) cut_off: AtomicU64,
    /// See [`Vdev::unread`].
    pub(crate) unread: AtomicU64,
    /// See [`Vdev::only_read`].
    pub(crate) only_read: AtomicBool,
    /// Sectors of the RAID-Z vdev that it is below are moving: what is free now may not be a moment later.
    pub(crate) moving: AtomicBool,
    /// It is about to leave its vdev: what is written to it alone is not written.
    pub(crate) leaving: AtomicBool,
    /// It is being asked whether its vdev can do without it: what only it has of a block counts as not written.
    pub(crate) going: AtomicBool,
    /// Nothing is written to it any more: the pool may be another host's by now.
    pub(crate) fenced: AtomicBool,
    /// Nor is anything once this time has come, in nanoseconds since the system started ([`VdevTree::fence_at`](crate::VdevTree::fence_at)).
    pub(crate) fenced_at: AtomicU64,
    /// Requests to the leaf's device where nothing is allocated.
    pub(crate) vacant: Vacant,
    /// What of a leaf's writes is not known to be durable.
    pub(crate) written: Mutex<Written>,
    /// The transaction group of the uberblock that a leaf has to have: that of the last one which is durable on it, or which
    /// was written while it took no writes. 0: not known yet.
    pub(crate) uberblock: AtomicU64,
    /// The transaction group of the last uberblock that is known to be durable on a leaf. 0: not known yet.
    pub(crate) leads_to: AtomicU64,
    /// The requests of a leaf's device.
    pub(crate) queue: Queue,
    /// The device of a distributed spare.
    pub(crate) distributed: OnceLock<Arc<draid::SpareDevice>>,
    /// How wide the blocks of a RAID-Z vdev are. Whoever reads by it keeps it until that is done.
    pub(crate) widths: RwLock<Arc<Widths>>,
    /// Those that it had before, and by which something may still be read.
    pub(crate) widths_before: Mutex<Vec<Weak<Widths>>>,
    /// What uberblocks say of sectors of a RAID-Z vdev that move.
    pub(crate) told: Mutex<Told>,
}

impl Live {
    /// Of a vdev that has missed nothing, or a list of what it missed that was not read yet.
    pub(crate) fn new(opened: Opened, dtl: Dtl) -> Arc<Live> {
        Arc::new(Live {
            opened: RwLock::new(opened),
            suspect: AtomicBool::new(false),
            dtl: RwLock::new(dtl),
            dtl_changes: AtomicU64::new(0),
            lacked: AtomicU64::new(0),
            silences: AtomicU64::new(0),
            stats: Stats::default(),
            sizes: RequestSizes::default(),
            injected: Injected::default(),
            seen: Mutex::default(),
            faulted_by_hand: AtomicBool::default(),
            too_many_errors: AtomicBool::default(),
            cut_off: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            only_read: AtomicBool::new(false),
            moving: AtomicBool::default(),
            leaving: AtomicBool::default(),
            going: AtomicBool::default(),
            fenced: AtomicBool::default(),
            fenced_at: AtomicU64::new(u64::MAX),
            vacant: Vacant::default(),
            written: Mutex::default(),
            uberblock: AtomicU64::new(0),
            leads_to: AtomicU64::new(0),
            queue: Queue::default(),
            distributed: OnceLock::new(),
            widths: RwLock::default(),
            widths_before: Mutex::default(),
            told: Mutex::default(),
        })
    }
}

/// A node of the vdev tree (`vdev_t`).
pub struct Vdev {
    pub(crate) kind: Kind,
    pub(crate) guid: u64,
    pub(crate) id: u64,
    pub(crate) path: Option<PathBuf>,
    pub(crate) children: Vec<Arc<Vdev>>,
    pub(crate) config: NvList,
    pub(crate) ashift: u32,
    pub(crate) nparity: u64,
    /// Where the columns of a dRAID vdev are.
    pub(crate) draid: Option<Arc<draid::Layout>>,
    /// What changes while it is in use.
    pub(crate) live: Arc<Live>,
    /// Allocatable bytes of a top-level vdev: the config's, or more since it has grown.
    pub(crate) asize: AtomicU64,
}

/// Pairs of a leaf's config that say that it is, or was, out of use.
pub const OUT_OF_USE: [&str; 5] = ["offline", "faulted", "degraded", "removed", "aux_state"];

impl Vdev {
    /// "root", "mirror", "raidz", "draid", "file", "disk", "object", "replacing", "spare", "hole", "missing" or
    /// "indirect": the `type` of the config.
    pub fn kind(&self) -> &str {
        self.kind.name()
    }

    pub(crate) fn vdev_kind(&self) -> Kind {
        self.kind
    }

    /// Whether the uberblock of group `txg`, or a later one, is known to be durable on this leaf.
    pub fn leads_to(&self, txg: u64) -> bool {
        self.live.leads_to.load(SeqCst) >= txg
    }

    /// Whether the other one is this vdev, in this tree or in one that took its place.
    pub(crate) fn is_same(&self, other: &Vdev) -> bool {
        Arc::ptr_eq(&self.live, &other.live)
    }

    /// Whether this is a file, a disk or a distributed spare.
    pub fn is_leaf(&self) -> bool {
        self.kind.is_leaf()
    }

    /// The guid; 0 for a hole.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// The position within the parent; for a top-level vdev, the number that DVAs use.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The path of a leaf as the config has it.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The path at which the device of a leaf was opened.
    pub fn opened_path(&self) -> Option<PathBuf> {
        self.device().map(|d| d.path().to_path_buf())
    }

    /// What gives out the addresses of this leaf, if they are never used twice.
    pub fn growing(&self) -> Option<Arc<dyn Growing>> {
        self.device().filter(|_| self.kind == Kind::Object)?.growing()
    }

    /// The device of a leaf, if one was found.
    pub fn device(&self) -> Option<Arc<dyn Device>> {
        self.opened().device.clone()
    }

    /// What is seen of the leaf's device by now, or was last, without waiting for it ([`crate::look`]). `None`: it has
    /// no device, or that has not said anything yet.
    pub fn seen(&self) -> Option<Seen> {
        let device = self.device()?;
        let asked = self.seen.lock().clone();
        asked.ask(move || Seen { size: device.size_by_now(), there: device.is_there() })
    }

    pub(crate) fn opened(&self) -> RwLockReadGuard<'_, Opened> {
        self.opened.read()
    }

    /// From now on this leaf has this device, or no device, and is in this state (`vdev_open`).
    pub(crate) fn set_opened(&self, opened: Opened) {
        invariant!(opened.device.is_none() || self.is_leaf(), "{self:?} gets a device");
        *self.opened.write() = opened;
        *self.seen.lock() = Asked::default();
    }

    /// From now on this leaf, with the device that it has, is in this state (`vdev_set_state`).
    pub(crate) fn set_state(&self, state: VdevState) {
        let before = std::mem::replace(&mut self.opened.write().state, state);
        self.tell_state(before);
    }

    /// Tells that the leaf is in another state than before, if it is.
    pub(crate) fn tell_state(&self, before: VdevState) {
        if before != self.state() {
            if self.state() == VdevState::Degraded {
                self.silences.fetch_add(1, Relaxed);
            }
            events::tell(self, &Happening::State(before));
        }
    }

    /// The children, in order of their ids.
    pub fn children(&self) -> &[Arc<Vdev>] {
        &self.children
    }

    /// The state now.
    pub fn state(&self) -> VdevState {
        match self.kind {
            Kind::Root
            | Kind::Mirror
            | Kind::Replacing
            | Kind::Spare
            | Kind::RaidZ
            | Kind::Draid => {
                state::of_interior(self.kind, self.nparity, &self.children, &|c| c.state())
            }
            _ => match self.opened_state() {
                VdevState::Healthy
                    if self.too_many_errors.load(Relaxed)
                        || self.cut_off() > 0
                        || self.unread() > 0 =>
                {
                    VdevState::Degraded
                }
                state => state,
            },
        }
    }

    /// How opening this leaf came out, and how it answers, whatever errors it has had.
    pub(crate) fn opened_state(&self) -> VdevState {
        self.opened().state
    }

    /// From now on this leaf counts as degraded for the errors that it has had, until they are cleared (`vdev_degrade`).
    pub fn degrade(&self) {
        let before = self.state();
        self.too_many_errors.store(true, Relaxed);
        self.tell_state(before);
    }

    /// Whether this leaf works, and counts as degraded for the errors that it has had.
    pub fn has_too_many_errors(&self) -> bool {
        self.too_many_errors.load(Relaxed) && self.opened_state() == VdevState::Healthy
    }

    /// How many bytes the device of this leaf, which is only read, is shorter than its vdev needs: it is an image that was cut
    /// off.
    pub fn cut_off(&self) -> u64 {
        self.live.cut_off.load(Relaxed)
    }

    /// How many bytes of the device of this leaf are known as not read from the disk that it is an image of.
    pub fn unread(&self) -> u64 {
        self.live.unread.load(Relaxed)
    }

    /// Whether the device of this leaf is such that it can only be read ([`Device::only_read`]).
    pub fn only_read(&self) -> bool {
        self.live.only_read.load(Relaxed)
    }

    /// Numbers of (read, write, checksum) errors seen at this vdev itself.
    pub fn errors(&self) -> (u64, u64, u64) {
        self.stats.errors()
    }

    /// Requests of this leaf that failed where nothing is allocated: (patterns that were to be written, ranges that the device was to
    /// be told of). They are no errors that clearing takes back.
    pub fn vacant_errors(&self) -> (u64, u64) {
        self.stats.vacant_errors()
    }

    /// Reads and writes of this leaf that took `zio_slow_io_ms` or longer (`vs_slow_ios`).
    pub fn slow_ios(&self) -> u64 {
        self.stats.slow()
    }

    /// Whether the last write to this leaf that failed did so since the file system that its file is on, or
    /// the quota there, had no space left. Clearing the errors forgets it.
    pub fn has_no_space(&self) -> bool {
        self.stats.has_no_space()
    }

    /// Whether something was written since the errors were cleared to correct them, here or below.
    pub fn was_mended(&self) -> bool {
        self.stats.heals_tried() > 0 || self.children.iter().any(|c| c.was_mended())
    }

    /// Bytes that were written to this leaf, or the leaves below, in place of wrong ones
    /// (`vs_self_healed`).
    pub fn self_healed(&self) -> u64 {
        let below: u64 = self.children.iter().map(|c| c.self_healed()).sum();
        self.stats.self_healed() + below
    }

    /// (read operations, write operations, bytes read, bytes written), of an interior vdev the
    /// sums over its leaves (`vdev_get_stats`).
    pub fn io_stats(&self) -> (u64, u64, u64, u64) {
        let ((mut reads, mut bytes_read), (mut writes, mut bytes_written)) =
            (self.stats.reads.done(), self.stats.writes.done());
        for child in &self.children {
            let (r, w, br, bw) = child.io_stats();
            reads += r;
            writes += w;
            bytes_read += br;
            bytes_written += bw;
        }
        (reads, writes, bytes_read, bytes_written)
    }

    /// Requests that wait, and those that devices have, by class; of an interior vdev the sums over its
    /// leaves.
    pub fn queues(&self) -> QueueFigures {
        let mut sum = self.queue.figures();
        self.children.iter().for_each(|c| sum.add(&c.queues()));
        sum
    }

    /// Whether an order has faulted this leaf: since it was opened, or before.
    pub fn is_faulted_by_hand(&self) -> bool {
        self.faulted_by_hand.load(Relaxed) && self.state() == VdevState::Faulted
    }

    /// Sizes of the requests that the leaves did.
    pub fn request_sizes(&self) -> SizeFigures {
        let mut sum = SizeFigures::default();
        self.add_sizes(&mut sum);
        sum
    }

    fn add_sizes(&self, sum: &mut SizeFigures) {
        self.sizes.add_to(sum);
        self.children.iter().for_each(|c| c.add_sizes(sum));
    }

    /// Latencies of the reads of the leaves.
    pub fn read_latency(&self) -> LatencyHistogram {
        let mut sum = [0; LATENCY_BUCKETS];
        self.add_latency(&mut sum, |s| &s.reads);
        sum
    }

    /// Latencies of the writes of the leaves.
    pub fn write_latency(&self) -> LatencyHistogram {
        let mut sum = [0; LATENCY_BUCKETS];
        self.add_latency(&mut sum, |s| &s.writes);
        sum
    }

    fn add_latency(&self, sum: &mut LatencyHistogram, which: fn(&Stats) -> &Io) {
        which(&self.stats).add_latency(sum);
        self.children.iter().for_each(|c| c.add_latency(sum, which));
    }

    /// What the reads and writes of the leaves took, all together, without waiting in their queues.
    pub fn io_time(&self) -> Duration {
        let below: Duration = self.children.iter().map(|c| c.io_time()).sum();
        self.stats.reads.time() + self.stats.writes.time() + below
    }

    /// The nvlist of the pool's config that this was built from.
    pub fn config(&self) -> &NvList {
        &self.config
    }

    /// The same of a leaf in use, without what put it out of use once: that was taken back since this was built.
    pub fn config_in_use(&self) -> NvList {
        let mut config = self.config.clone();
        config.pairs.retain(|(name, _)| !OUT_OF_USE.contains(&name.as_str()));
        config
    }

    /// log2 of the sector size of the top-level vdev; 0 for the root and for holes.
    pub fn ashift(&self) -> u32 {
        self.ashift
    }

    /// Bytes of data that the smallest allocation on this top-level vdev holds (`vdev_get_min_alloc`, `vdev_draid_min_alloc`):
    /// a sector, and of dRAID one in each data column.
    pub fn min_alloc(&self) -> u64 {
        self.draid().map_or(1, |shape| shape.ndata).saturating_mul(self.sector())
    }

    /// Allocatable bytes of a top-level vdev.
    pub fn asize(&self) -> u64 {
        self.asize.load(Relaxed)
    }

    /// The top-level vdev has grown to so many allocatable bytes (`vdev_expand`).
    pub fn grow(&self, asize: u64) {
        self.asize.fetch_max(asize, Relaxed);
    }

    /// Number of parity columns; 0 if this is neither RAID-Z nor dRAID.
    pub fn nparity(&self) -> u64 {
        self.nparity
    }

    /// Whether this top-level vdev is a log device.
    pub fn is_log(&self) -> bool {
        self.config.u64("is_log").unwrap_or(0) != 0
    }

    /// Whether this is a log vdev that is out of use, and the pool's config says so of all its leaves: nothing that waits for a
    /// replay is on it (`vdev_log_state_valid`). The group that has noted that is younger than all that was written there.
    pub fn is_log_left_out(&self) -> bool {
        fn is_out(vdev: &Vdev) -> bool {
            match vdev.opened_state() {
                _ if !vdev.is_leaf() => vdev.children.iter().all(|child| is_out(child)),
                VdevState::Offline | VdevState::Removed => true,
                VdevState::Faulted => is_faulted_by_config(&vdev.config),
                _ => false,
            }
        }
        self.is_log() && is_out(self)
    }

    /// The allocation class of a top-level vdev if it is not the normal one: "log", "special"
    /// or "dedup". The pool keeps it in the vdev's ZAP; it is here if the maker of the config put it
    /// there.
    pub fn alloc_bias(&self) -> Option<&str> {
        self.config.str("alloc_bias")
    }

    /// Bytes allocated for a block of `psize` bytes that was born in `txg`: with parity and padding of RAID-Z or dRAID,
    /// rounded up to sectors (`vdev_psize_to_asize_txg`); `u64::MAX`, which fits nowhere, where no number is large enough.
    pub fn psize_to_asize(&self, psize: u64, txg: u64) -> u64 {
        let below = self.children.iter().map(|c| c.psize_to_asize(psize, txg)).max().unwrap_or(0);
        // Each block that is accounted for is asked about: what has no widths takes no lock.
        let widths = (self.kind == Kind::RaidZ).then(|| self.widths());
        let geometry = widths.and_then(|widths| self.geometry_in(&widths, txg));
        let own = match (geometry, &self.draid) {
            (Some(geometry), _) => geometry.asize(psize),
            (None, Some(draid)) => draid.asize(psize),
            (None, None) => psize.checked_next_multiple_of(self.sector()).unwrap_or(u64::MAX),
        };
        own.max(below)
    }

    /// Bytes of `asize` allocated bytes that can hold data, by the ratio that a block of 128 KiB
    /// would get, or would have got before RAID-Z was expanded (`vdev_deflated_space`).
    pub fn deflate(&self, asize: u64) -> u64 {
        if self.ashift == 0 {
            return 0;
        }
        const OLD_MAX_BLOCK: u64 = 128 << 10;
        let sectors = (self.psize_to_asize(OLD_MAX_BLOCK, 0) >> SECTOR_SHIFT).max(1);
        // The block takes its own size at least: this is no more than `asize`.
        (asize >> SECTOR_SHIFT) * (OLD_MAX_BLOCK / sectors)
    }

    fn sector(&self) -> u64 {
        SECTOR.max(1 << self.ashift.min(63))
    }

    /// How wide the blocks of a RAID-Z vdev are now.
    pub(crate) fn widths(&self) -> Arc<Widths> {
        self.widths.read().clone()
    }

    /// How many children hold data: all but one that is joining.
    pub(crate) fn holding(&self) -> usize {
        less!(
            self.children.len(),
            usize::from(self.widths().reflow.is_some()),
            "children of {self:?}"
        )
    }

    /// How far the sectors of a RAID-Z vdev have moved, if it is being expanded.
    pub fn reflow(&self) -> Option<Reflow> {
        self.widths().reflow
    }

    /// How sectors lie over the devices of a RAID-Z vdev. `None` while it is being expanded: they are moving.
    pub(crate) fn geometry(&self) -> Option<Geometry> {
        let widths = self.widths();
        let raidz = self.kind == Kind::RaidZ && widths.reflow.is_none();
        let (columns, nparity, ashift) = (widths.physical, self.nparity, self.ashift);
        raidz.then_some(Geometry { columns, nparity, ashift })
    }

    /// The layout of blocks of a RAID-Z vdev that were born in `txg`.
    fn geometry_in(&self, widths: &Widths, txg: u64) -> Option<Geometry> {
        let (columns, nparity, ashift) = (widths.logical(txg), self.nparity, self.ashift);
        (self.kind == Kind::RaidZ).then_some(Geometry { columns, nparity, ashift })
    }

    /// The stripes of a block of `psize` bytes, born in `txg`, at byte `offset` of a RAID-Z vdev, one after the other:
    /// [`nparity`](Self::nparity) columns of parity, then the data in order, with offsets behind the first labels of the
    /// children (`vdev_raidz_map_alloc`). `None` for other vdevs, and for an offset past all numbers.
    pub fn raidz_columns(
        &self,
        offset: u64,
        psize: u64,
        txg: u64,
    ) -> Option<Vec<Vec<ColumnExtent>>> {
        let rows = self.rows(&self.widths(), (offset, psize), txg)?;
        Some(rows.into_iter().map(|row| row.columns).collect())
    }

    /// As [`raidz_columns`](Self::raidz_columns), of dRAID vdevs as well.
    pub fn columns(&self, offset: u64, psize: u64, txg: u64) -> Option<Vec<Vec<ColumnExtent>>> {
        let rows = self.stripes(&self.widths(), (offset, psize), txg)?;
        Some(rows.into_iter().map(|row| row.columns).collect())
    }

    /// The stripes of a block, (byte offset, bytes), of a RAID-Z vdev with these widths.
    fn rows(&self, widths: &Widths, (offset, psize): (u64, u64), txg: u64) -> Option<Vec<Row>> {
        let geometry = self.geometry_in(widths, txg)?;
        if geometry.columns == widths.physical {
            let columns = geometry.columns(offset, psize)?;
            return Some(vec![Row { columns, shadows: Vec::new() }]);
        }
        reflow::rows(&geometry, widths, offset, psize)
    }

    /// The columns of a block of `psize` bytes at byte `offset` of a RAID-Z or dRAID vdev: one or more stripes, each with
    /// its parity first. `None` for other vdevs, and where no block can be.
    pub(crate) fn stripes(
        &self,
        widths: &Widths,
        (offset, psize): (u64, u64),
        txg: u64,
    ) -> Option<Vec<Row>> {
        let Some(draid) = &self.draid else { return self.rows(widths, (offset, psize), txg) };
        let stripes = draid.stripes(offset, psize)?.into_iter();
        Some(stripes.map(|columns| Row { columns, shadows: Vec::new() }).collect())
    }

    /// Whether this leaf is a distributed spare, which has no labels of its own.
    pub fn is_distributed(&self) -> bool {
        self.kind == Kind::DistributedSpare
    }

    /// What a dRAID vdev is made of; `None` for others.
    pub fn draid(&self) -> Option<&draid::Shape> {
        self.draid.as_ref().map(|layout| layout.shape())
    }

    /// Bytes that allocations on this top-level vdev begin at multiples of, if that is no power of 2; else 1.
    pub fn line(&self) -> u64 {
        self.draid().map_or(1, |shape| shape.line(self.ashift))
    }

    /// Bytes that a scan wrote to this leaf (`vs_scan_processed`).
    pub fn scan_processed(&self) -> u64 {
        self.stats.scan_processed()
    }

    /// A scan begins: what scans wrote is counted anew.
    pub fn begin_scan(&self) {
        self.stats.begin_scan();
        self.children.iter().for_each(|c| c.begin_scan());
    }

    pub(crate) fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock()
    }

    /// Whether this is a leaf that takes writes (`vdev_writeable`).
    pub fn writable(&self) -> bool {
        let opened = self.opened();
        opened.state.readable() && opened.device.as_ref().is_some_and(|d| d.writable())
    }

    /// Whether enough devices below answer for it to hold data. One that does not and is needed is degraded
    /// (`crate::probe`).
    pub fn answers(&self) -> bool {
        let silent = self.children.iter().filter(|c| !c.answers()).count() as u64;
        match self.kind {
            Kind::RaidZ | Kind::Draid => silent <= self.nparity,
            Kind::Mirror | Kind::Replacing | Kind::Spare => silent < self.children.len() as u64,
            Kind::Root | Kind::Hole | Kind::Missing | Kind::Indirect => true,
            Kind::File | Kind::Disk | Kind::Object | Kind::DistributedSpare => {
                self.opened_state() == VdevState::Healthy
            }
        }
    }

    /// Appends this vdev's leaves.
    pub fn collect_leaves(self: &Arc<Vdev>, out: &mut Vec<Arc<Vdev>>) {
        if self.is_leaf() {
            out.push(self.clone());
        }
        self.children.iter().for_each(|c| c.collect_leaves(out));
    }
}

impl std::ops::Deref for Vdev {
    type Target = Live;

    fn deref(&self) -> &Live {
        &self.live
    }
}

impl std::fmt::Debug for Vdev {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{} ({}, {:?})", self.kind.name(), self.id, self.guid, self.state())?;
        f.debug_list().entries(&self.children).finish()
    }
}
