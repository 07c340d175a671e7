//! A pool without datasets: a MOS, space, and blocks that belong to no object.

use super::super::*;
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{BlockSink, MetaObjectSet, NewBlock, NewObject, Synced, ZapMut};
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum::Checksum;
use cenote_format::compress::Compression;
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::nvlist::NvValue;
use cenote_format::spacemap::SPACE_MAP_SIZE;
use cenote_pool::config;
use cenote_pool::directory::Directory;
use cenote_store::alloc::{Extent, LoadMetaslab, Options, Request};
use cenote_store::rangetree::RangeTree;
use cenote_store::write::{WriteProps, WriteRequest, Writer};
use cenote_store::{Bookmark, Store};
use cenote_vdev::inject::MemDevice;
use cenote_vdev::{Device, init_labels};
use parking_lot::Mutex;
use std::collections::HashMap;

pub const HISTOGRAM: &str = "com.delphix:spacemap_histogram";
pub const TWO_WORDS: &str = "com.delphix:spacemap_v2";
pub const LOGGING: &str = "com.delphix:log_spacemap";
pub const CLASSES: &str = "org.zfsonlinux:allocation_classes";
const PASSES: u32 = 14;

pub fn list(pairs: &[(&str, NvValue)]) -> NvList {
    NvList { pairs: pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect() }
}

/// A top-level vdev: its ashift, bytes of each device, how many devices (several are RAID-Z1).
#[derive(Clone, Copy)]
pub struct Top(pub u32, pub u64, pub u64);

/// Counts a feature as the floor of datasets does.
pub fn count(mos: &mut OpenObjectSet, feature: &str, delta: i64) -> Result<()> {
    for list in ["features_for_write", "features_for_read"] {
        let Some(zap) = map::zap_u64(mos, map::DIRECTORY_OBJECT, list)? else { continue };
        if let Some(uses) = map::zap_u64(mos, zap, feature)? {
            let uses = uses.checked_add_signed(delta).unwrap();
            return ZapMut::open(mos, zap)
                .update(&Key::Name(feature.as_bytes()), &Value::U64(&[uses]));
        }
    }
    panic!("{feature} is not enabled");
}

pub struct Sink<'a> {
    pub writer: &'a Writer,
    pub pass: u32,
}

impl BlockSink for Sink<'_> {
    fn write_blocks(&self, txg: u64, blocks: Vec<NewBlock>) -> Vec<Result<BlockPointer>> {
        let request = |b: NewBlock| WriteRequest {
            props: WriteProps {
                object_type: b.kind,
                level: b.level,
                checksum: Checksum::Fletcher4,
                compression: Compression::Lz4,
                copies: 2,
                gang_copies: 2,
                fill: b.fill,
                ..WriteProps::default()
            },
            data: b.data,
            at: b.at,
            previous: b.previous,
            pass: self.pass,
        };
        let requests: Vec<_> = blocks.into_iter().map(request).collect();
        let written = self.writer.write_many(txg, &requests).into_iter();
        written.map(|bp| bp.map_err(|e| WriteError::Sink(e.to_string().into()))).collect()
    }
}

pub struct Rig {
    pub tree: Arc<VdevTree>,
    pub mos: MetaObjectSet,
    pub maps: SpaceMaps,
    pub writer: Writer,
    /// The pool's config.
    pub config: NvList,
    pub txg: u64,
    /// Space that is allocated on disk, by vdev.
    pub allocated: HashMap<u64, RangeTree>,
    /// To be freed in the next txg.
    deferred: Vec<BlockPointer>,
    pub live: Vec<Dva>,
    pub stats: Stats,
    pub passes: u32,
    /// What was allocated on disk after each txg.
    pub history: History,
    state: u64,
}

pub type History = Arc<Mutex<BTreeMap<u64, HashMap<u64, RangeTree>>>>;

fn vdev(id: u64, Top(ashift, size, devices): Top, shift: Option<u32>) -> NvList {
    let n = NvValue::Uint64;
    let leaf = |guid| list(&[("type", NvValue::String("file".into())), ("guid", n(guid))]);
    let kind = if devices > 1 { "raidz" } else { "file" };
    let plan = plan(top_level_asize(kind, None, &vec![size; devices as usize]));
    let mut config = list(&[
        ("type", NvValue::String(kind.into())),
        ("id", n(id)),
        ("guid", n(100 * (id + 1))),
        ("ashift", n(ashift.into())),
        ("asize", n(plan.asize)),
        ("metaslab_shift", n(shift.unwrap_or(plan.ms_shift).into())),
    ]);
    if devices > 1 {
        let leaves = (0..devices).map(|i| leaf(100 * (id + 1) + i + 1)).collect();
        config.set("nparity", n(1));
        config.set("children", NvValue::NvListArray(leaves));
    }
    config
}

impl Rig {
    /// A new pool. `shift`: that of its metaslabs, if not the one planned.
    pub fn new(tops: &[Top], features: &[(&str, u64)], shift: Option<u32>) -> Rig {
        let children = (0..).zip(tops).map(|(id, top)| vdev(id, *top, shift)).collect();
        let mut root = list(&[
            ("type", NvValue::String("root".into())),
            ("guid", NvValue::Uint64(1)),
            ("children", NvValue::NvListArray(children)),
        ]);
        let sizes: Vec<u64> = tops.iter().map(|top| top.1).collect();
        let mut open = |guid: u64, _: &NvList| {
            let size = sizes[(guid / 100 - 1) as usize];
            let device = MemDevice::new("memory", vec![0; size as usize]);
            let top = NvValue::Uint64(guid / 100 * 100);
            let label = list(&[
                ("state", NvValue::Uint64(0)),
                ("txg", NvValue::Uint64(4)),
                ("pool_guid", NvValue::Uint64(1)),
                ("guid", NvValue::Uint64(guid)),
                ("top_guid", top),
            ]);
            init_labels(&*device, &label).unwrap();
            Some(device as Arc<dyn Device>)
        };
        let tree = VdevTree::build(&root, &mut open).unwrap();
        let store = Store::new(tree.clone(), 8 << 20);
        let mut mos = MetaObjectSet::create(store).unwrap();
        mos.claim(1, &NewObject::new(DmuType::OBJECT_DIRECTORY, 1024)).unwrap();
        ZapMut::format(&mut mos, 1, ZapFormat { salt: 5, ..ZapFormat::default() }).unwrap();
        let new = NewObject::new(DmuType(0xc4), 1024);
        let zap =
            ZapMut::create(&mut mos, &new, ZapFormat { salt: 7, ..ZapFormat::default() }).unwrap();
        let name = Key::Name(b"features_for_write");
        ZapMut::open(&mut mos, 1).add(&name, &Value::U64(&[zap])).unwrap();
        for (feature, uses) in features {
            let name = Key::Name(feature.as_bytes());
            ZapMut::open(&mut mos, zap).add(&name, &Value::U64(&[*uses])).unwrap();
        }
        let mut maps = SpaceMaps::create();
        let Some((_, NvValue::NvListArray(children))) = root.pairs.last_mut() else { panic!() };
        for child in children {
            maps.init_vdev(&mut mos, 4, child, &mut count).unwrap();
        }
        let config = list(&[("vdev_tree", NvValue::NvList(root))]);
        let writer = writer(&maps, None, &tree, mos.synced().store());
        let (allocated, deferred, live, history) = Default::default();
        let (stats, passes, txg) = (Stats::default(), 0, 3);
        let state = 12345;
        Rig {
            tree,
            mos,
            maps,
            writer,
            config,
            txg,
            allocated,
            deferred,
            live,
            stats,
            passes,
            history,
            state,
        }
    }

    pub fn random(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 33) % below.max(1)
    }

    pub fn allocator(&self) -> &Arc<Allocator> {
        self.writer.allocator()
    }

    fn add(&mut self, dva: &Dva) {
        let tree = self.allocated.entry(dva.vdev.into()).or_default();
        tree.add(dva.offset, dva.offset + dva.asize).unwrap();
    }

    fn remove(&mut self, dva: &Dva) {
        let tree = self.allocated.entry(dva.vdev.into()).or_default();
        tree.remove(dva.offset, dva.offset + dva.asize).unwrap();
    }

    /// Allocates for the next txg; whether there was room.
    pub fn alloc(&mut self, psize: u64, copies: usize) -> bool {
        let request = Request {
            psize,
            copies,
            class: Class::Normal,
            allocator: 0,
            gang: false,
            near: None,
            among: None,
        };
        let Ok((_, dvas)) = self.allocator().allocate(self.txg + 1, &request) else { return false };
        dvas.iter().for_each(|dva| self.add(dva));
        self.live.extend(dvas);
        true
    }

    /// Frees the block in slot `i` in the next txg.
    pub fn free(&mut self, i: usize) {
        let dva = self.live.swap_remove(i);
        self.allocator().free(self.txg + 1, &dva).unwrap();
        self.remove(&dva);
    }

    fn release(&mut self, bp: &BlockPointer) {
        assert!(!bp.is_gang());
        let at = Bookmark { objset: 0, object: 0, level: 0, blkid: 0 };
        self.writer.free(self.txg, bp, at).unwrap();
        bp.dvas().for_each(|dva| self.remove(&dva));
    }

    fn account(&mut self, synced: Synced) {
        synced.born.iter().flat_map(BlockPointer::dvas).for_each(|dva| self.add(&dva));
        for bp in synced.killed {
            let now = self.passes == 1 || self.maps.decided.1;
            if now { self.release(&bp) } else { self.deferred.push(bp) }
        }
    }

    /// Syncs a txg as the engine does.
    pub fn sync(&mut self) {
        self.txg += 1;
        (self.stats, self.passes) = (Stats::default(), 0);
        let deferred = std::mem::take(&mut self.deferred);
        deferred.iter().for_each(|bp| self.release(bp));
        loop {
            self.passes += 1;
            assert!(self.passes <= PASSES, "txg {} does not converge: {:?}", self.txg, self.stats);
            let allocator = self.writer.allocator().clone();
            let (txg, pass) = (self.txg, self.passes);
            let stats =
                self.maps.sync_changes(&mut self.mos, txg, pass, &allocator, &mut count).unwrap();
            assert_eq!(stats.wrote() || pass == 1, self.mos.is_dirty() || pass == 1);
            self.stats += stats;
            if !self.mos.is_dirty() {
                break;
            }
            let sink = Sink { writer: &self.writer, pass };
            let synced = self.mos.sync(txg, &sink).unwrap();
            self.account(synced);
        }
        self.history.lock().insert(self.txg, self.allocated.clone());
        self.maps.loader().advance(self.mos.synced().clone(), self.txg);
        self.allocator().clone().sync_done(self.txg);
    }

    /// Opens the pool anew, as it is on disk.
    pub fn reopen(&mut self) {
        let mos = self.mos.synced().clone();
        let space = PoolSpace::load(&mos, &self.config).unwrap();
        self.maps = SpaceMaps::open(&space, &self.config, &mos, self.txg).unwrap();
        self.writer = writer(&self.maps, Some(&space), &self.tree, mos.store());
        self.mos = MetaObjectSet::open(mos).unwrap();
    }

    /// Compares what is on disk with what was done.
    pub fn check(&mut self) -> PoolSpace {
        let mos = self.mos.synced().clone();
        mos.store().drop_caches();
        let space = PoolSpace::load(&mos, &self.config).unwrap();
        for v in &space.vdevs {
            let mut seen = RangeTree::new();
            for ms in &v.metaslabs {
                self.check_metaslab(&space, v, ms, &mut seen);
            }
            assert_eq!(seen, self.allocated.get(&v.id).cloned().unwrap_or_default());
        }
        let counted = (0..)
            .map_while(|i| mos.next_object(i).unwrap().map(|n| (i, n)))
            .filter(|(i, n)| i == n)
            .map(|(_, n)| mos.object(n).unwrap())
            .filter(|o| o.dnode().kind == DmuType::SPACE_MAP)
            .filter(|o| o.dnode().bonus.len() == SPACE_MAP_SIZE)
            .count() as u64;
        assert_eq!(space.histogram_feature.unwrap_or(0), counted);
        self.check_logs(&space);
        space
    }

    /// The logs on disk have the changes that are in memory, and OpenZFS's rules about it are kept.
    fn check_logs(&self, space: &PoolSpace) {
        let txgs: Vec<u64> = space.logs.iter().map(|log| log.txg).collect();
        let list = Directory::open(self.mos.synced()).unwrap().u64(super::log::LOGS).unwrap();
        assert_eq!(list.is_some(), space.log_feature.unwrap_or(0) > 0);
        let (memory, _) = self.maps.unflushed.memory();
        let mut segments = 0;
        for v in &space.vdevs {
            for ms in v.metaslabs.iter().filter(|ms| ms.unflushed_txg != 0) {
                assert!(txgs.contains(&ms.unflushed_txg), "{} {txgs:?}", ms.unflushed_txg);
                assert!(ms.space_map != 0);
            }
            for (ms, unflushed) in v.unflushed.iter().filter(|(_, u)| u.segments() > 0) {
                let disjoint = |(s, e)| unflushed.frees.overlap(s, e).is_none();
                assert!(unflushed.allocs.iter().all(disjoint));
                let known = memory.get(&(v.id, *ms)).copied().unwrap_or(0);
                assert_eq!(known, unflushed.segments() * super::unflushed::SEGMENT_BYTES);
                segments += 1;
            }
        }
        assert_eq!(segments, memory.len());
        let unflushed = space.vdevs.iter().flat_map(|v| &v.metaslabs).map(|ms| ms.unflushed_txg);
        let oldest = unflushed.filter(|txg| *txg != 0).min();
        assert!(txgs.first().is_none_or(|first| Some(*first) == oldest), "{txgs:?} {oldest:?}");
    }

    fn check_metaslab(
        &self,
        space: &PoolSpace,
        v: &VdevSpace,
        ms: &cenote_pool::metaslab::Metaslab,
        seen: &mut RangeTree,
    ) {
        let mos = self.mos.synced();
        let free = PoolSpace::load_free(mos, v, ms).unwrap();
        let mut at = ms.start;
        for (start, end) in free.iter().chain([(ms.start + ms.size, 0)]) {
            if at < start {
                seen.add(at, start).unwrap();
            }
            at = end;
        }
        assert_eq!(v.alloc_of(ms), ms.size - free.space());
        let flushed = PoolSpace::load_flushed(mos, v, ms).unwrap();
        assert_eq!(ms.flushed_alloc(), (ms.size - flushed.space()) as i64);
        let in_logs = space.log_feature.unwrap_or(0) > 0;
        if !in_logs && let Some(histogram) = ms.header.as_ref().and_then(|h| h.histogram) {
            let bytes = |i: u32| (0..).zip(histogram).map(|(b, n)| n << (b + i)).sum::<u64>();
            let (least, most) = (bytes(v.ashift), bytes(v.ashift + 1));
            assert!(least <= free.space() && (free.space() < most || free.is_empty()));
        }
        let group = self.allocator().groups().find(|g| g.vdev() == v.id).unwrap().clone();
        let metaslab = group.metaslabs().get(ms.id as usize).unwrap();
        if let Some(known) = metaslab.free_after(self.txg) {
            assert_eq!(known, free);
            let header = ms.header.as_ref().and_then(|h| h.histogram);
            let counted = header.map(|h| Histogram::from_shifted(&h, v.ashift));
            let known = metaslab.free_histogram().unwrap();
            // Deferred frees that became allocatable have joined with others since.
            let total = |h: &Histogram| h.counts().iter().sum::<u64>();
            assert!(in_logs || counted.is_none_or(|c| total(&c) >= total(&known)));
        }
        let extent = Extent { start: ms.start, size: ms.size, shift: v.ashift };
        let loaded = self.maps.loader().load(v.id, ms.id, extent).unwrap();
        assert_eq!(loaded.txg, self.txg);
        assert!(loaded.free.finish().iter().eq(free.iter()));
    }

    pub fn leaf(&self, guid: u64) -> NvList {
        let mut found = None;
        config::for_each_leaf(self.config.list("vdev_tree").unwrap(), &mut |leaf| {
            if leaf.u64("guid") == Some(guid) {
                found = Some(leaf.clone());
            }
        });
        found.unwrap()
    }
}

pub fn writer(
    maps: &SpaceMaps,
    space: Option<&PoolSpace>,
    tree: &Arc<VdevTree>,
    store: &Arc<Store>,
) -> Writer {
    let vdevs = maps.allocator_vdevs(space, tree);
    let options = Options { allocators: 1, background: false, ..Options::default() };
    let allocator = Allocator::new(&vdevs, tree.clone(), maps.loader(), options).unwrap();
    Writer::new(store.clone(), allocator, tree.clone())
}
