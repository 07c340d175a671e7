//! Datasets created, written, snapshotted, cloned, renamed and destroyed at random, in a MOS in
//! memory, and compared with a model that knows which blocks each of them has.
#![allow(clippy::unwrap_used, clippy::panic)]

mod model;

use cenote_dmu::ObjectSet;
use cenote_dmu::outside::Outside;
use cenote_dmu::write::{NewObject, OpenObjectSet, Synced};
use cenote_dsl::deadlist::Sizes;
use cenote_dsl::write::{DslWriteError, Tx, dataset, destroy, features, free, pool, props, rename};
use cenote_dsl::write::{snapshot, space};
use cenote_dsl::{Dsl, bpobj};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::{DmuType, ObjsetType};
use cenote_format::features::FEATURES;
use cenote_testsink::{EMBEDDED, MemSink};
use model::{Head, Model, Snapshot};
use props::{NewValue, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a block counts for.
fn sizes(bp: &BlockPointer) -> Sizes {
    let psize = if bp.is_embedded() { 0 } else { bp.psize() };
    let metadata = bp.level() > 0 || DmuType(bp.object_type()).is_metadata();
    Sizes {
        used: bp.dvas().map(|dva| dva.asize).sum(),
        compressed: psize,
        uncompressed: if metadata { psize } else { bp.lsize() },
    }
}

/// Random numbers, the same in each run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.below(from.len())) }
    }
}

/// The number that tells a block apart: space is never used twice.
fn key(bp: &BlockPointer) -> u64 {
    // An embedded block is only told apart by its birth and payload; none of them is ever freed.
    if bp.is_embedded() { bp.0[0] | 1 << 63 } else { bp.0[1] }
}

/// Objects of a directory of features' counts and the like, which change with them.
fn is_shared_empty(mos: &Arc<ObjectSet>) -> Option<u64> {
    let directory = cenote_dmu::zap::Zap::open(&mos.object(1).unwrap()).unwrap();
    directory.u64(b"empty_bpobj").unwrap()
}

struct Rig {
    sink: MemSink,
    random: Random,
    mos: BlockPointer,
    txg: u64,
    /// What the MOS wrote and freed in the last pass.
    last_mos: Option<Synced>,
    mos_live: BTreeSet<u64>,
    /// Blocks that are there.
    allocated: BTreeSet<u64>,
    model: Model,
    names: usize,
    /// Blocks that may be freed in a transaction group.
    budget: usize,
}

const POOL: &str = "pool";

impl Rig {
    fn new(seed: u64) -> Rig {
        let sink = MemSink::new(320 << 20).embedding();
        let mut rig = Rig {
            sink,
            random: Random(seed),
            mos: BlockPointer::HOLE,
            txg: 4,
            last_mos: None,
            mos_live: BTreeSet::new(),
            allocated: BTreeSet::new(),
            model: Model::default(),
            names: 0,
            budget: 60,
        };
        rig.txg(|rig, tx| {
            let dirs = pool::create_pool_dirs(tx).unwrap();
            for feature in FEATURES {
                features::enable(tx, feature.guid).unwrap();
            }
            rig.fill(tx, POOL, dirs.root_dir, dirs.root_ds);
        });
        rig
    }

    /// A transaction group: `change`, then some frees, then the MOS; and all is compared.
    fn txg(&mut self, change: impl FnOnce(&mut Rig, &mut Tx<'_>)) -> bool {
        let store = self.sink.store.clone();
        let mut mos = if self.mos.is_hole() {
            OpenObjectSet::create(store, 0, ObjsetType::Meta).unwrap()
        } else {
            // From disk each time: nothing may be lost between transaction groups.
            OpenObjectSet::open(ObjectSet::open(store, 0, self.mos).unwrap()).unwrap()
        };
        let space = sizes;
        let (now, outside) = (1_700_000_000 + self.txg, Outside::default());
        let tx = Tx::new(&mut mos, self.txg, &outside, &space);
        let mut tx = Tx { now, usable: Some(1 << 40), pool: POOL, ..tx };
        change(self, &mut tx);
        let blocks = self.random.below(self.budget) as u64;
        let budget = free::Budget { blocks, is_late: &|| false };
        let more = free::destroy_step(&mut tx, budget).unwrap();
        if let Some(synced) = self.last_mos.take() {
            pool::charge_mos(&mut tx, &synced).unwrap();
        }
        assert_eq!(free::freeing(&mut tx).unwrap(), self.waiting_after(&tx.frees));
        let frees = std::mem::take(&mut tx.frees);
        let synced = mos.sync(self.txg, &self.sink).unwrap();
        self.apply(&synced, true);
        self.take_frees(&frees);
        self.mos = synced.root;
        self.last_mos = Some(synced);
        self.check(mos.synced());
        self.txg += 1;
        more
    }

    /// Bytes that wait to be freed once `frees` are.
    fn waiting_after(&self, frees: &[BlockPointer]) -> u64 {
        let gone: BTreeSet<u64> = frees.iter().map(key).collect();
        let left = self.model.waiting.iter().filter(|(key, _)| !gone.contains(key));
        left.map(|(_, s)| s.used).sum()
    }

    fn apply(&mut self, synced: &Synced, mos: bool) {
        for bp in synced.born.iter().filter(|bp| !bp.is_hole() && !bp.is_embedded()) {
            assert!(self.allocated.insert(key(bp)));
            assert!(!mos || self.mos_live.insert(key(bp)));
        }
        for bp in synced.killed.iter().filter(|bp| mos && !bp.is_hole() && !bp.is_embedded()) {
            assert!(self.mos_live.remove(&key(bp)) && self.allocated.remove(&key(bp)));
        }
    }

    fn take_frees(&mut self, frees: &[BlockPointer]) {
        let live = self.model.live();
        for bp in frees {
            assert!(!live.contains_key(&key(bp)), "{bp:?} is freed, but there");
            assert!(self.allocated.remove(&key(bp)), "{bp:?} is freed, but was not there");
            self.model.waiting.remove(&key(bp));
        }
        let mut there: BTreeSet<u64> = live.keys().copied().filter(|k| k >> 63 == 0).collect();
        there.extend(self.model.waiting.keys().filter(|k| *k >> 63 == 0));
        there.extend(&self.mos_live);
        assert_eq!(there, self.allocated);
    }

    /// Writes the contents of a new file system.
    fn fill(&mut self, tx: &mut Tx<'_>, name: &str, dir: u64, object: u64) {
        self.model.heads.insert(name.into(), Head { dir, object, ..Head::default() });
        let store = self.sink.store.clone();
        let mut set = OpenObjectSet::create(store, object, ObjsetType::Zfs).unwrap();
        set.allocate(&NewObject::new(DmuType::MASTER_NODE, 512)).unwrap();
        self.sync_head(tx, name, set);
    }

    fn sync_head(&mut self, tx: &mut Tx<'_>, name: &str, mut set: OpenObjectSet) {
        let synced = set.sync(self.txg, &self.sink).unwrap();
        self.apply(&synced, false);
        let head = self.model.heads.get_mut(name).unwrap();
        for bp in synced.killed.iter().filter(|bp| !bp.is_hole()) {
            assert!(head.blocks.remove(&key(bp)).is_some());
        }
        for bp in synced.born.iter().filter(|bp| !bp.is_hole()) {
            assert!(head.blocks.insert(key(bp), sizes(bp)).is_none());
        }
        dataset::synced(tx, head.object, &synced).unwrap();
    }

    /// Opens the contents of a head as they are now.
    fn open(&self, tx: &mut Tx<'_>, object: u64) -> OpenObjectSet {
        let bonus = tx.mos.dnode(object).unwrap().bonus.clone();
        let bytes = cenote_format::Bytes::new(&bonus, cenote_format::ByteOrder::Little, "test");
        let bp = cenote_format::dsl::DslDatasetPhys::decode(&bytes).unwrap().bp;
        OpenObjectSet::open(ObjectSet::open(self.sink.store.clone(), object, bp).unwrap()).unwrap()
    }

    /// Writes, punches and removes files.
    fn write(&mut self, tx: &mut Tx<'_>, name: &str) {
        let mut set = self.open(tx, self.model.heads[name].object);
        for _ in 0..1 + self.random.below(12) {
            let object = 2 + self.random.below(4) as u64;
            if set.dnode(object).is_err() {
                let mut new = NewObject::new(DmuType::PLAIN_FILE_CONTENTS, 512);
                new.indirect_shift = 12;
                set.claim(object, &new).unwrap();
            }
            let at = 512 * self.random.below(if object == 2 { 3 } else { 1500 }) as u64;
            match self.random.below(12) {
                0 => set.free(object).unwrap(),
                1 => set.truncate(object, at).unwrap(),
                2 => {
                    let mut data = self.random.next().to_le_bytes().repeat(64);
                    data[0] = EMBEDDED;
                    set.write(object, at, &data).unwrap();
                }
                _ => {
                    let len = 1 + self.random.below(6);
                    let data: Vec<u8> = (0..len * 64)
                        .flat_map(|_| (self.random.next() | 1).to_le_bytes())
                        .collect();
                    let data: Vec<u8> = data.iter().map(|b| b & 0x7f | 1).collect();
                    set.write(object, at, &data).unwrap();
                }
            }
        }
        self.sync_head(tx, name, set);
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn heads(&self) -> Vec<String> {
        self.model.heads.keys().filter(|name| *name != POOL).cloned().collect()
    }

    fn snapshots(&self) -> Vec<(String, usize)> {
        let of = |(name, head): (&String, &Head)| {
            (0..head.snapshots.len()).map(|i| (name.clone(), i)).collect::<Vec<_>>()
        };
        self.model.heads.iter().flat_map(of).collect()
    }

    fn create(&mut self, tx: &mut Tx<'_>) {
        let parents: Vec<String> = self.model.heads.keys().cloned().collect();
        let parent = self.random.pick(&parents).unwrap().clone();
        let short = self.name();
        let dir = self.model.heads[&parent].dir;
        let new = dataset::create(tx, dir, &short, &[], None).unwrap();
        assert!(matches!(dataset::create(tx, dir, &short, &[], None), Err(DslWriteError::Exists)));
        self.fill(tx, &format!("{parent}/{short}"), new.dir_obj, new.ds_obj);
    }

    fn clone(&mut self, tx: &mut Tx<'_>) {
        let snapshots = self.snapshots();
        let Some((of, i)) = self.random.pick(&snapshots).cloned() else { return };
        let parents = self.heads();
        let parent = self.random.pick(&parents).unwrap().clone();
        let short = self.name();
        let from = &self.model.heads[&of].snapshots[i];
        let (object, blocks) = (from.object, from.blocks.clone());
        let dir = self.model.heads[&parent].dir;
        let new = dataset::create(tx, dir, &short, &[], Some(object)).unwrap();
        let head = Head {
            dir: new.dir_obj,
            object: new.ds_obj,
            blocks: (*blocks).clone(),
            origin: Some((object, blocks)),
            ..Head::default()
        };
        self.model.heads.insert(format!("{parent}/{short}"), head);
    }

    fn snapshot(&mut self, tx: &mut Tx<'_>) {
        let heads = self.heads();
        let Some(of) = self.random.pick(&heads) else { return };
        let name = self.name();
        let head = self.model.heads.get_mut(of).unwrap();
        match snapshot::snapshot(tx, head.object, &name) {
            Err(DslWriteError::Again) => return,
            done => {
                let blocks = Arc::new(head.blocks.clone());
                head.snapshots.push(Snapshot { object: done.unwrap(), name: name.clone(), blocks });
            }
        }
        let again = snapshot::snapshot(tx, head.object, &name);
        assert!(matches!(again, Err(DslWriteError::Again)));
    }

    fn destroy_snapshot(&mut self, tx: &mut Tx<'_>) {
        let snapshots = self.snapshots();
        let Some((of, i)) = self.random.pick(&snapshots).cloned() else { return };
        let object = self.model.heads[&of].snapshots[i].object;
        let done = destroy::destroy_snapshot(tx, object, false);
        if self.model.clones(object) > 0 {
            assert!(matches!(done, Err(DslWriteError::HasClones)));
            return;
        }
        assert!(done.unwrap());
        let gone = self.model.heads.get_mut(&of).unwrap().snapshots.remove(i);
        self.model.leave(&gone.blocks);
    }

    fn destroy_head(&mut self, tx: &mut Tx<'_>) {
        let heads = self.heads();
        let Some(name) = self.random.pick(&heads).cloned() else { return };
        let head = &self.model.heads[&name];
        let done = destroy::destroy_head(tx, head.object);
        if !head.snapshots.is_empty() {
            assert!(matches!(done, Err(DslWriteError::HasSnapshots)));
        } else if self.model.children(&name).next().is_some() {
            assert!(matches!(done, Err(DslWriteError::HasChildren)));
        } else {
            done.unwrap();
            let gone = self.model.heads.remove(&name).unwrap();
            self.model.leave(&gone.blocks);
        }
    }

    fn rename(&mut self, tx: &mut Tx<'_>) {
        let heads = self.heads();
        let Some(name) = self.random.pick(&heads).cloned() else { return };
        let parents: Vec<String> = self.model.heads.keys().cloned().collect();
        let parent = self.random.pick(&parents).unwrap().clone();
        let short = self.name();
        let (dir, to) = (self.model.heads[&name].dir, self.model.heads[&parent].dir);
        let done = rename::rename(tx, dir, to, &short);
        if parent == name || parent.starts_with(&format!("{name}/")) {
            assert!(matches!(done, Err(DslWriteError::Invalid(_))));
            return;
        }
        done.unwrap();
        let new = format!("{parent}/{short}");
        let moved =
            self.model.heads.keys().filter(|k| **k == name || k.starts_with(&format!("{name}/")));
        for old in moved.cloned().collect::<Vec<_>>() {
            let head = self.model.heads.remove(&old).unwrap();
            self.model.heads.insert(format!("{new}{}", &old[name.len()..]), head);
        }
    }

    fn reserve(&mut self, tx: &mut Tx<'_>) {
        let heads = self.heads();
        let Some(name) = self.random.pick(&heads) else { return };
        let bytes = if self.random.below(3) == 0 { 0 } else { self.random.below(4 << 20) as u64 };
        let head = self.model.heads.get_mut(name).unwrap();
        if self.random.below(2) == 0 {
            props::set(tx, Target::Dir(head.dir), "reservation", &NewValue::Number(bytes)).unwrap();
            head.reservation = bytes;
        } else {
            space::set_refreservation(tx, head.object, bytes).unwrap();
            head.refreservation = bytes;
        }
    }

    fn step(&mut self, tx: &mut Tx<'_>) {
        // All contents are written before anything else.
        let heads = self.heads();
        for name in heads {
            if self.random.below(3) == 0 {
                self.write(tx, &name);
            }
        }
        for _ in 0..self.random.below(4) {
            match self.random.below(14) {
                0 | 1 => self.create(tx),
                2 => self.clone(tx),
                3..=6 => self.snapshot(tx),
                7..=9 => self.destroy_snapshot(tx),
                10 => self.destroy_head(tx),
                11 => self.rename(tx),
                _ => self.reserve(tx),
            }
        }
    }

    /// Compares what is on disk with the model.
    fn check(&self, mos: &Arc<ObjectSet>) {
        let dsl = Dsl::open(mos.clone(), POOL).unwrap();
        for (name, head) in &self.model.heads {
            let found = dsl.find(name).unwrap().unwrap_or_else(|| panic!("no {name}"));
            assert_eq!((found.dir_obj, found.ds_obj), (head.dir, head.object));
            let total = model::sum(head.blocks.values());
            let ds = &found.ds;
            assert_eq!(
                (ds.referenced, ds.compressed, ds.uncompressed, ds.unique),
                (total.used, total.compressed, total.uncompressed, head.unique()),
                "{name}"
            );
            let (parts, used) = self.model.breakdown(name);
            let dir = &found.dir;
            let stored = (dir.compressed, dir.uncompressed);
            if name != POOL {
                assert_eq!((dir.used_breakdown, dir.used), (parts, used.used), "{name}");
                assert_eq!(stored, (used.compressed, used.uncompressed), "{name}");
            }
            assert_eq!(dir.used_breakdown.iter().sum::<u64>(), dir.used);
            assert_eq!(dsl.snapshots(&found).unwrap().len(), head.snapshots.len());
            for (i, snap) in head.snapshots.iter().enumerate() {
                let found = dsl.find(&format!("{name}@{}", snap.name)).unwrap().unwrap();
                assert_eq!(found.ds_obj, snap.object);
                let total = model::sum(snap.blocks.values());
                assert_eq!(found.ds.referenced, total.used);
                let unique = model::without(&snap.blocks, &[head.before(i), head.after(i)]);
                assert_eq!(found.ds.unique, unique.used, "{name}@{}", snap.name);
                let clones = self.model.clones(snap.object) as u64;
                assert_eq!(found.ds.num_children, 1 + clones);
                assert_eq!(dsl.clones(&found).unwrap().len() as u64, clones);
            }
        }
        self.check_lists(mos, &dsl);
    }

    /// Deadlists and counts of features.
    fn check_lists(&self, mos: &Arc<ObjectSet>, dsl: &Dsl) {
        let empty = is_shared_empty(mos);
        let (mut shared, mut zapified, mut from) = (0u64, 0u64, 0);
        while let Some(number) = mos.next_object(from).unwrap() {
            from = number + 1;
            let object = mos.object(number).unwrap();
            if object.dnode().kind == DmuType::DEADLIST {
                let list = dsl.deadlist_at(number).unwrap();
                let mut total = Sizes::default();
                for (_, bpobj) in &list.lists {
                    shared += u64::from(Some(*bpobj) == empty);
                    let header = bpobj::header(mos, *bpobj).unwrap();
                    total.used += header.bytes;
                    total.compressed += header.compressed;
                    total.uncompressed += header.uncompressed;
                }
                assert_eq!(total, list.total, "deadlist {number}");
                let mut counted = Sizes::default();
                dsl.iterate_deadlist(&list, &mut |e| {
                    let s = sizes(&e.bp);
                    counted.used += s.used;
                    counted.compressed += s.compressed;
                    counted.uncompressed += s.uncompressed;
                    Ok(())
                })
                .unwrap();
                assert_eq!(counted, list.total, "deadlist {number}");
            }
            zapified +=
                u64::from(object.dnode().kind.0 == 0xc4 && !object.dnode().bonus.is_empty());
        }
        let mut set = OpenObjectSet::open(mos.clone()).unwrap();
        let space = sizes;
        let outside = Outside::default();
        let mut tx = Tx::new(&mut set, self.txg, &outside, &space);
        let mut uses = |guid| features::count(&mut tx, guid).unwrap();
        assert_eq!(uses("com.delphix:empty_bpobj"), Some(shared));
        assert_eq!(uses("com.delphix:extensible_dataset"), Some(zapified));
        assert_eq!(uses("com.delphix:enabled_txg"), Some(enabled_later()));
        let queued = pool::entry(&mut tx, "bptree_obj").unwrap().is_some();
        assert_eq!(
            features::count(&mut tx, "com.delphix:async_destroy").unwrap(),
            Some(queued.into())
        );
    }

    /// Kinds of all objects of the MOS.
    fn objects(&self) -> BTreeMap<u8, usize> {
        let mos = ObjectSet::open(self.sink.store.clone(), 0, self.mos).unwrap();
        let (mut kinds, mut from) = (BTreeMap::new(), 0);
        while let Some(number) = mos.next_object(from).unwrap() {
            from = number + 1;
            *kinds.entry(mos.object(number).unwrap().dnode().kind.0).or_default() += 1;
        }
        kinds
    }

    fn destroy_everything(&mut self) {
        self.budget = 2000;
        while self.model.heads.len() > 1 {
            self.txg(|rig, tx| {
                // A clone may be above the dataset that it is a clone of.
                rig.rename(tx);
                for _ in 0..60 {
                    rig.destroy_snapshot(tx);
                    rig.destroy_head(tx);
                }
            });
        }
        while self.txg(|_, _| {}) {}
        assert!(self.model.waiting.keys().all(|key| key >> 63 == 1));
    }
}

/// Features enabled once `enabled_txg` is, with itself.
fn enabled_later() -> u64 {
    let at = FEATURES.iter().position(|f| f.name == "enabled_txg").unwrap();
    (FEATURES.len() - at) as u64
}

#[test]
fn datasets_at_random() {
    for seed in 0..16 {
        let mut rig = Rig::new(seed);
        let objects = rig.objects();
        for _ in 0..50 {
            rig.txg(|rig, tx| rig.step(tx));
        }
        rig.destroy_everything();
        assert_eq!(rig.objects(), objects);
    }
}
