//! Pools made by OpenZFS, opened for writing: private copies, written for real but for the labels.

use super::rig::{Sink, count, writer};
use super::*;
use cenote_dmu::write::MetaObjectSet;
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::Salt;
use cenote_format::dmu::DmuType;
use cenote_format::nvlist::NvValue;
use cenote_inspect::traverse::{self, Subject, Verify};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_store::alloc::Request;
use cenote_store::write::Writer;
use cenote_store::{Bookmark, Store};
use cenote_vdev::{Device, open_device_rw, read_labels};
use std::collections::HashMap;
use std::ops::Range;

struct Sample {
    pool: Arc<Pool>,
    tree: Arc<VdevTree>,
    mos: MetaObjectSet,
    maps: SpaceMaps,
    writer: Writer,
    txg: u64,
    passes: u32,
}

fn open(temp: &cenote_testpools::TempPool) -> Sample {
    let found = discover(std::slice::from_ref(&temp.pool.dir));
    let options = ImportOptions { readonly: true, force: true, ..Default::default() };
    let pool = Pool::import(&found[0], &options).unwrap();
    let mut devices: HashMap<u64, Arc<dyn Device>> = HashMap::new();
    for file in &temp.pool.files {
        let device = open_device_rw(file).unwrap();
        if let Some(labels) = read_labels(&*device).unwrap() {
            devices.insert(labels.config.u64("guid").unwrap(), device);
        }
    }
    let root = pool.config().list("vdev_tree").unwrap();
    let tree = VdevTree::build(root, &mut |guid, _| devices.get(&guid).cloned()).unwrap();
    let store = Store::new(tree.clone(), 64 << 20);
    let txg = pool.uberblock().txg;
    let mos = ObjectSet::open(store.clone(), 0, pool.uberblock().rootbp).unwrap();
    let directory = Directory::open(&mos).unwrap();
    if let Some(salt) = directory.entry("org.illumos:checksum_salt").unwrap() {
        store.set_salt(Salt::new(salt.bytes().try_into().unwrap()));
    }
    cenote_pool::dtl::load_all(&mos, &tree);
    let space = pool.space().unwrap();
    let maps = SpaceMaps::open(space, pool.config(), &mos, txg).unwrap();
    let writer = writer(&maps, Some(space), &tree, &store);
    let mos = MetaObjectSet::open(mos).unwrap();
    Sample { pool, tree, mos, maps, writer, txg, passes: 0 }
}

impl Sample {
    /// Syncs a txg; frees of all passes at once, so that nothing is left over.
    fn sync(&mut self) {
        self.sync_with(&mut |_, _, _| {}, false);
    }

    /// The same, with something more in each pass; `dirty`: though there is nothing else to sync.
    fn sync_with(&mut self, more: &mut dyn FnMut(&mut OpenObjectSet, &VdevTree, u32), dirty: bool) {
        self.txg += 1;
        self.passes = 0;
        let at = Bookmark { objset: 0, object: 0, level: 0, blkid: 0 };
        loop {
            self.passes += 1;
            assert!(self.passes < 20);
            let (txg, pass) = (self.txg, self.passes);
            let allocator = self.writer.allocator().clone();
            if dirty && pass == 1 {
                let bonus = self.mos.dnode(1).unwrap().bonus.clone();
                self.mos.set_bonus(1, DmuType::NONE, &bonus).unwrap();
            }
            more(&mut self.mos, &self.tree, pass);
            self.maps.sync_changes(&mut self.mos, txg, pass, &allocator, &mut count).unwrap();
            if !self.mos.is_dirty() {
                break;
            }
            let sink = Sink { writer: &self.writer, pass };
            let synced = self.mos.sync(txg, &sink).unwrap();
            let free = |bp: &BlockPointer| self.writer.free(txg, bp, at).unwrap();
            synced.killed.iter().for_each(free);
        }
        self.maps.loader().advance(self.mos.synced().clone(), self.txg);
        self.writer.allocator().clone().sync_done(self.txg);
    }

    /// Compares the space maps with all blocks of the pool.
    fn check(&self, config: &NvList) -> PoolSpace {
        let mos = self.mos.synced();
        mos.store().drop_caches();
        let space = PoolSpace::load(mos, config).unwrap();
        let mut uberblock = self.pool.uberblock().clone();
        (uberblock.txg, uberblock.rootbp) = (self.txg, *mos.root_bp());
        let subject = Subject { mos: mos.clone(), config, uberblock: &uberblock };
        let options = traverse::Options { verify: Verify::Nothing, leaks: true, workers: 2 };
        let report = traverse::run(&subject, &space, &options, &|_| {}, &|| false).unwrap();
        assert!(report.is_clean(), "{:?} {}", report.leaks, report.not_claimed);
        assert_eq!(report.found(), report.allocated);
        space
    }
}

fn free_of(mos: &Arc<ObjectSet>, space: &PoolSpace) -> u64 {
    let free = |v: &VdevSpace| {
        let of = |ms| PoolSpace::load_free(mos, v, ms).unwrap().space();
        v.metaslabs.iter().map(of).sum::<u64>()
    };
    space.vdevs.iter().map(free).sum()
}

#[test]
fn logs_are_kept() {
    for name in ["fraglogsm", "fragcrash"] {
        let temp = cenote_testpools::copy(name);
        let mut sample = open(&temp);
        let config = sample.pool.config().clone();
        let before = sample.pool.space().unwrap();
        assert!(before.log_feature == Some(1) && before.logs.len() > 1, "{name}");
        assert!(before.vdevs.iter().any(|v| !v.unflushed.is_empty()), "{name}");
        let (free, logs) = (free_of(sample.pool.mos(), before), before.logs.len());
        for i in 0..6 {
            if i == 4 {
                sample.maps.flush_all();
            }
            let mut touch = |_: &mut OpenObjectSet, _: &VdevTree, _: u32| {};
            sample.sync_with(&mut touch, true);
            assert!(sample.passes < 12, "{name}: {} passes", sample.passes);
            let space = sample.check(&config);
            assert_eq!(space.log_feature, Some(1));
            assert_eq!(space.logs.last().map(|log| log.txg), Some(sample.txg));
            match i {
                0 => assert!(space.logs.len() > 1 && space.logs.len() <= logs + 1, "{name}"),
                4 => assert_eq!(space.logs.len(), 1, "{name}"),
                _ => {}
            }
            assert!(free_of(sample.mos.synced(), &space).abs_diff(free) < 4 << 20);
        }
    }
}

#[test]
fn pools_of_openzfs_are_written_to() {
    for name in ["basic", "hole", "special", "rz1", "mir3", "compat21", "legacyd", "fragnolog"] {
        let temp = cenote_testpools::copy(name);
        let mut sample = open(&temp);
        let config = sample.pool.config().clone();
        for _ in 0..2 {
            let txg = sample.txg + 1;
            let allocator = sample.writer.allocator().clone();
            for class in [Class::Normal, Class::Special, Class::Log] {
                let request = Request {
                    psize: 4096,
                    copies: 1,
                    class,
                    allocator: 0,
                    gang: false,
                    near: None,
                    among: None,
                };
                // Comes and goes.
                let (_, dvas) = allocator.allocate(txg, &request).unwrap();
                dvas.iter().for_each(|dva| allocator.free(txg, dva).unwrap());
            }
            sample.sync();
            assert!(sample.passes < 12, "{name}: {} passes", sample.passes);
            sample.check(&config);
        }
        assert_eq!(sample.tree.take_missed(), []);
    }
}

/// The log of the leaf `guid` as it is on disk.
fn log_of(mos: &Arc<ObjectSet>, config: &NvList, guid: u64) -> Vec<Range<u64>> {
    let mut log = Vec::new();
    config::for_each_leaf(config.list("vdev_tree").unwrap(), &mut |leaf| {
        if leaf.u64("guid") == Some(guid) {
            log = cenote_pool::dtl::load(mos, leaf.u64("DTL").unwrap()).unwrap();
        }
    });
    log
}

#[test]
fn degraded_pools_note_what_devices_miss() {
    for (name, stale) in [("degr", 1), ("degrz", 2)] {
        let temp = cenote_testpools::copy(name);
        let mut sample = open(&temp);
        let mut config = sample.pool.config().clone();
        let first = sample.txg + 1;
        for _ in 0..3 {
            let (txg, at) = (sample.txg + 1, sample.mos.synced().clone());
            let mut missed = Vec::new();
            // As the engine does: what a pass finds is written in the next.
            sample.sync_with(
                &mut |mos, tree, pass| {
                    let now = tree.take_missed();
                    missed.extend(now.iter().map(|(guid, _)| *guid));
                    let NvValue::NvList(root) =
                        &mut config.pairs.iter_mut().find(|p| p.0 == "vdev_tree").unwrap().1
                    else {
                        panic!()
                    };
                    assert!(!write_dtls(mos, txg, pass, root, &now, &mut count).unwrap(), "{name}");
                },
                true,
            );
            missed.sort_unstable();
            missed.dedup();
            assert_eq!(missed.len(), stale, "{name}");
            for guid in missed {
                let (before, after) =
                    (log_of(&at, &config, guid), log_of(sample.mos.synced(), &config, guid));
                assert!(after.iter().any(|r| r.contains(&first) && r.contains(&txg)), "{after:?}");
                let has =
                    |r: &Range<u64>| after.iter().any(|a| a.start <= r.start && r.end <= a.end);
                assert!(before.iter().all(has));
            }
            sample.check(&config);
        }
    }
}
