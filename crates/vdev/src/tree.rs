//! The assembled tree (`spa_root_vdev`): reading blocks by DVA.
//!
//! A read goes through three steps. It is *resolved*: DVAs on removed vdevs are mapped to where
//! the data are now. It is *planned*: which bytes of which leaves to read first. The reads of a
//! whole batch are then submitted together, and each block is *finished*: verified, and if it is
//! not right, read from elsewhere until it is or nothing is left to try. Each leaf that gave wrong bytes on the
//! way is reported as a [`Fault`].

use parking_lot::RwLock;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use cenote_format::MAX_BLOCK;
use cenote_format::abd::Abd;
use cenote_format::invariant;
use cenote_format::nvlist::NvList;

use crate::growing::GrowingFigures;
use crate::indirect::{self, Maps};
use crate::queue::Priority;
use crate::raidz::reflow::SCRATCH;
use crate::submit::{LeafRead, Piece, Submit, read_leaves};
use crate::threads::IoPool;
use crate::vdev::{Kind, Vdev};
use crate::write::Writer;
use crate::{
    Alarm, BlockRead, Fault, FindDevice, IndirectMap, Outcome, Remapped, VdevError, Verify,
    assemble, mirror, raidz,
};

/// The assembled tree of vdevs of a pool.
pub struct VdevTree {
    pub(crate) root: Arc<Vdev>,
    pub(crate) maps: Arc<Maps>,
    pub(crate) pool: Arc<IoPool>,
    pub(crate) writer: Arc<Writer>,
}

/// Bytes of a top-level vdev.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub vdev: &'a Arc<Vdev>,
    pub offset: u64,
    pub size: usize,
    pub txg: u64,
}

/// The top-level vdev `id`.
pub(crate) fn top(tops: &[Arc<Vdev>], id: u64) -> Result<&Arc<Vdev>, VdevError> {
    let found = usize::try_from(id).ok().and_then(|i| tops.get(i));
    found.ok_or(VdevError::NoVdev(id))
}

/// The distributed spares below `root` have their places in its dRAID vdevs from now on.
fn place_spares(root: &Arc<Vdev>) {
    for top in root.children().iter().filter(|top| top.draid().is_some()) {
        let mut leaves = Vec::new();
        top.collect_leaves(&mut leaves);
        leaves.iter().filter_map(|leaf| leaf.distributed.get()).for_each(|spare| spare.place(top));
    }
}

/// A block under way.
enum Plan<'a> {
    Failed(VdevError),
    Mirror(mirror::Read<'a>),
    RaidZ(raidz::Read<'a>),
    Split(Place<'a>, Vec<Place<'a>>),
}

impl<'a> Place<'a> {
    /// An I/O error at this place.
    pub(crate) fn error(&self, why: &str) -> VdevError {
        VdevError::Io { vdev: self.vdev.id(), offset: self.offset, why: why.into() }
    }

    /// Plans the read of a place on a vdev that holds data (`zio_vdev_io_start`).
    fn plan(self) -> Plan<'a> {
        let asize = self.vdev.asize();
        let end = self.offset.checked_add(self.vdev.psize_to_asize(self.size as u64, self.txg));
        match self.vdev.vdev_kind() {
            Kind::Hole | Kind::Missing | Kind::Indirect | Kind::Root => {
                Plan::Failed(self.error(&format!("a {} vdev holds no data", self.vdev.kind())))
            }
            // What is behind all numbers stands for the boot area (`SCRATCH`), where no block is.
            _ if end.is_none_or(|end| asize != 0 && end > asize || end > SCRATCH) => {
                Plan::Failed(self.error("beyond the end of the vdev"))
            }
            Kind::RaidZ | Kind::Draid => {
                match raidz::Read::plan(self.vdev, self.offset, self.size, self.txg) {
                    Some(read) => Plan::RaidZ(read),
                    None => Plan::Failed(self.error("beyond the end of the vdev")),
                }
            }
            _ => Plan::Mirror(mirror::Read::plan(self.vdev, self.offset, self.size, self.txg)),
        }
    }

    /// Reads a place on a vdev that holds data.
    pub(crate) fn read(
        self,
        submit: Submit<'_>,
        verify: Verify<'_>,
        faults: &mut Vec<Fault>,
    ) -> Result<Abd, VdevError> {
        let mut plan = self.plan();
        let results = read_leaves(submit, &plan.first_reads());
        plan.finish(submit, results, verify, faults)
    }
}

impl Plan<'_> {
    /// Whether at most one device has the block.
    fn has_one_device(&self) -> bool {
        match self {
            Plan::Mirror(read) => read.has_one_device(),
            Plan::Failed(_) => true,
            Plan::RaidZ(_) | Plan::Split(..) => false,
        }
    }

    fn first_reads(&mut self) -> Vec<LeafRead> {
        match self {
            Plan::Mirror(read) => read.first_read().into_iter().collect(),
            Plan::RaidZ(read) => read.first_reads(),
            Plan::Failed(_) | Plan::Split(..) => Vec::new(),
        }
    }

    /// The block, given what came of its first reads (`zio_vdev_io_assess`, `zio_vdev_io_done`).
    fn finish(
        self,
        submit: Submit<'_>,
        results: Vec<io::Result<Piece>>,
        verify: Verify<'_>,
        faults: &mut Vec<Fault>,
    ) -> Result<Abd, VdevError> {
        match self {
            Plan::Failed(error) => Err(error),
            Plan::Mirror(read) => read.finish(submit, results.into_iter().next(), verify, faults),
            Plan::RaidZ(read) => read.finish(submit, results, verify, faults),
            Plan::Split(whole, pieces) => {
                indirect::read_split(submit, whole, &pieces, verify, faults)
            }
        }
    }
}

impl VdevTree {
    /// Builds the tree from the pool's `vdev_tree` nvlist; `open` finds a device by the leaf's guid
    /// and config, `None` if it is missing (`vdev_alloc`, `spa_config_parse`).
    ///
    /// Errors: failure domains of dRAID, unknown types and impossible shapes, refused by name.
    pub fn build(config: &NvList, open: FindDevice<'_>) -> Result<Arc<VdevTree>, VdevError> {
        Ok(Arc::new(VdevTree::with_root(assemble::root(config, open)?)))
    }

    pub(crate) fn with_root(root: Arc<Vdev>) -> VdevTree {
        place_spares(&root);
        let alarm: Arc<Alarm> = Arc::default();
        let (maps, pool) = (Arc::new(RwLock::default()), Arc::new(IoPool::new(alarm.clone())));
        let tree = VdevTree { root, maps, pool, writer: Arc::new(Writer::new(alarm)) };
        tree.hear_devices();
        tree
    }

    /// Has devices that have threads of their own sound the alarm.
    fn hear_devices(&self) {
        let alarm = self.alarm();
        self.leaves()
            .iter()
            .filter_map(|leaf| leaf.growing())
            .for_each(|g| g.sound_on_broken(alarm));
    }

    /// A tree that has more top-level vdevs, or another guid of the pool: the vdevs of this one, shared with it
    /// (devices, counters, what is known to be durable and what was missed), and after them those that `config`, the
    /// config of the whole new root, has besides. `open` finds the devices of the new ones. Both trees can be used side
    /// by side.
    ///
    /// Errors: as for [`VdevTree::build`]; the config has other vdevs where this tree has some.
    pub fn extended(
        &self,
        config: &NvList,
        open: FindDevice<'_>,
    ) -> Result<Arc<VdevTree>, VdevError> {
        let root = assemble::extended(&self.root, config, open)?;
        let (maps, pool) = (self.maps.clone(), self.pool.clone());
        Ok(Arc::new(VdevTree { root, maps, pool, writer: self.writer.clone() }))
    }

    /// The tree is in use from now on, in the place of another one: distributed spares have their places in its vdevs, and
    /// its devices sound the pool's alarm.
    pub fn take_over(&self) {
        place_spares(&self.root);
        self.hear_devices();
    }

    /// The alarm of the pool, which trees that are [extended](Self::extended) share.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.pool.threads().alarm
    }

    /// The root vdev.
    pub fn root(&self) -> &Arc<Vdev> {
        &self.root
    }

    /// The top-level vdev with the number that DVAs use (`vdev_lookup_top`).
    pub fn top(&self, id: u64) -> Option<&Arc<Vdev>> {
        top(self.root.children(), id).ok()
    }

    /// Figures of the pool's object store, if its data is in one.
    pub fn growing_figures(&self) -> Option<GrowingFigures> {
        let tops = self.root.children().iter();
        tops.filter_map(|top| top.growing()).map(|growing| growing.figures()).next()
    }

    /// Bytes that should be under way for one sequential reader, where the pool's data is in an object store ([`Growing::read_ahead`](crate::Growing::read_ahead)).
    pub fn read_ahead(&self) -> Option<u64> {
        let tops = self.root.children().iter();
        tops.filter_map(|top| top.growing()).map(|growing| growing.read_ahead()).max()
    }

    /// All leaves, in order of the config (`vdev_count_leaves`).
    pub fn leaves(&self) -> Vec<Arc<Vdev>> {
        let mut leaves = Vec::new();
        self.root.collect_leaves(&mut leaves);
        leaves
    }

    /// The vdev with this guid, at any level (`vdev_lookup_by_guid`).
    pub fn find(&self, guid: u64) -> Option<Arc<Vdev>> {
        assemble::below(&self.root, guid)
    }

    /// Installs the transaction groups that a leaf missed (half-open ranges of txgs, from its DTL
    /// space map). Until then a leaf whose config names a DTL is taken to have missed all.
    pub fn set_dtl(&self, leaf: u64, missing: Vec<Range<u64>>) -> Result<(), VdevError> {
        let vdev = self.find(leaf).filter(|v| v.is_leaf()).ok_or(VdevError::NoVdev(leaf))?;
        vdev.set_dtl(missing);
        Ok(())
    }

    /// Installs the mapping of an indirect top-level vdev.
    pub fn set_indirect(&self, vdev: u64, map: Box<dyn IndirectMap>) -> Result<(), VdevError> {
        let top = top(self.root.children(), vdev)?;
        if top.vdev_kind() != Kind::Indirect {
            return Err(VdevError::NoVdev(vdev));
        }
        let mut maps = self.maps.write();
        maps.insert(vdev, Arc::from(map));
        Ok(())
    }

    /// Reads `size` bytes (a block's psize) at `offset` (a DVA's) of top-level vdev `vdev`, from
    /// whichever copies pass `verify`. `txg` is the block's physical birth: copies on leaves that
    /// missed it are tried last. Errors are counted at the vdevs that made them; nothing is healed.
    pub fn read(
        &self,
        vdev: u64,
        offset: u64,
        size: u64,
        txg: u64,
        verify: Verify<'_>,
    ) -> Result<Abd, VdevError> {
        self.read_one(&BlockRead { vdev, offset, size, txg, verify }).charged()
    }

    /// As [`VdevTree::read`], but for what it says of leaves, which is not counted yet.
    pub fn read_one(&self, req: &BlockRead<'_>) -> Outcome<Result<Abd, VdevError>> {
        let one = self.read_many(std::slice::from_ref(req)).pop();
        one.unwrap_or_else(|| Outcome {
            block: Err(VdevError::NoVdev(req.vdev)),
            faults: Vec::new(),
        })
    }

    /// As [`VdevTree::read`], of a block that may never have been written: wrong bytes blame no leaf.
    pub fn read_speculative(&self, req: &BlockRead<'_>) -> Result<Abd, VdevError> {
        self.read_one(req).block
    }

    /// Reads a batch of blocks: the reads of all of them are aggregated and submitted together,
    /// requests of each device in parallel to the others. Results are in the order of `reqs`; what they
    /// say of leaves is not counted yet.
    pub fn read_many(&self, reqs: &[BlockRead<'_>]) -> Vec<Outcome<Result<Abd, VdevError>>> {
        self.read_many_as(Priority::of_reads(), reqs)
    }

    /// As [`VdevTree::read_many`], in the class `priority`.
    pub fn read_many_as(
        &self,
        priority: Priority,
        reqs: &[BlockRead<'_>],
    ) -> Vec<Outcome<Result<Abd, VdevError>>> {
        let mut submit = Submit::new(&self.pool, priority);
        let mut plans: Vec<(Plan<'_>, Range<usize>)> = Vec::with_capacity(reqs.len());
        let mut reads = Vec::with_capacity(reqs.len());
        for req in reqs {
            let mut plan = self.plan(req);
            let start = reads.len();
            reads.append(&mut plan.first_reads());
            plans.push((plan, start..reads.len()));
        }
        // Where no other device can stand in, each is waited for.
        if plans.iter().all(|(plan, _)| plan.has_one_device()) {
            submit = submit.patient();
        }
        let mut results = read_leaves(submit, &reads).into_iter();
        let mut done = Vec::with_capacity(reqs.len());
        for ((plan, range), req) in plans.into_iter().zip(reqs) {
            let mine = results.by_ref().take(range.len()).collect();
            let mut faults = Vec::new();
            let block = plan.finish(submit, mine, req.verify, &mut faults);
            done.push(Outcome { block, faults });
        }
        let left = results.count();
        invariant!(left == 0, "{left} reads of devices are of no block of their batch");
        self.look_after();
        done
    }

    fn plan(&self, req: &BlockRead<'_>) -> Plan<'_> {
        match self.resolve(req) {
            Ok((_, pieces)) if pieces.len() == 1 => pieces[0].plan(),
            Ok((whole, pieces)) => Plan::Split(whole, pieces),
            Err(error) => Plan::Failed(error),
        }
    }

    /// The place of a block, and the pieces in which it is now (`vdev_indirect_remap`).
    pub(crate) fn resolve(
        &self,
        req: &BlockRead<'_>,
    ) -> Result<(Place<'_>, Vec<Place<'_>>), VdevError> {
        let tops = self.root.children();
        let vdev = top(tops, req.vdev)?;
        let place = Place { vdev, offset: req.offset, size: req.size as usize, txg: req.txg };
        if req.size == 0 || req.size > MAX_BLOCK {
            return Err(place.error(&format!("a block of {} bytes", req.size)));
        }
        Ok((place, indirect::resolve(tops, &self.maps, place)?))
    }

    /// Where `size` bytes at `offset` of top-level vdev `vdev` are now, and where they were if it was
    /// removed.
    ///
    /// Errors: there is no such vdev; they are in no mapping, or in too many pieces.
    pub fn remapped(&self, vdev: u64, offset: u64, size: u64) -> Result<Remapped, VdevError> {
        let tops = self.root.children();
        let vdev = top(tops, vdev)?;
        let place = Place { vdev, offset, size: size as usize, txg: 0 };
        if size == 0 {
            return Err(place.error("no bytes"));
        }
        indirect::remapped(tops, &self.maps, place)
    }

    /// Reads raw bytes without verification: of a leaf or mirror at any level, given by guid, or
    /// of a top-level vdev, given by guid or number. `offset` counts from the first
    /// allocatable byte.
    pub fn read_raw(&self, vdev: u64, offset: u64, size: u64) -> Result<Abd, VdevError> {
        let by_guid = self.find(vdev).filter(|_| vdev != 0);
        let found = by_guid.or_else(|| self.top(vdev).cloned());
        let found = found.ok_or(VdevError::NoVdev(vdev))?;
        let is_top = self.top(found.id()).is_some_and(|t| Arc::ptr_eq(t, &found));
        if is_top {
            return self.read(found.id(), offset, size, 0, &|_| true);
        }
        let place = Place { vdev: &found, offset, size: size as usize, txg: 0 };
        if size == 0 || size > MAX_BLOCK {
            return Err(place.error(&format!("a read of {size} bytes")));
        }
        let submit = Submit::new(&self.pool, Priority::SyncRead);
        place.read(submit, &|_| true, &mut Vec::new())
    }
}
