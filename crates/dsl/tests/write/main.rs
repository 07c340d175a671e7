//! Datasets created, written, snapshotted, cloned, renamed and destroyed at random, in a MOS in
//! memory, and compared with a model that knows which blocks each of them has.
#![allow(clippy::unwrap_used, clippy::panic)]

mod figures;
mod livelists;
mod model;

use cenote_dmu::ObjectSet;
use cenote_dmu::outside::Outside;
use cenote_dmu::write::{NewObject, OpenObjectSet, Synced};
use cenote_dsl::deadlist::Sizes;
use cenote_dsl::tunables::{LIVELIST_MAX_ENTRIES, LIVELIST_MIN_PERCENT_SHARED};
use cenote_dsl::write::deadlist::Keys;
use cenote_dsl::write::livelist::{Condensed, Pair};
use cenote_dsl::write::{
    DslWriteError, Tx, bookmarks, dataset, destroy, features, free, holds, pool,
};
use cenote_dsl::write::{promote, props, rename, rollback, snapshot, space};
use cenote_dsl::{Dataset, Dsl, bpobj};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::{DmuType, ObjsetType};
use cenote_format::features::FEATURES;
use cenote_testsink::{EMBEDDED, MemSink};
use livelists::Seen;
use model::{Bookmark, Head, Model, Snapshot};
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
    promoted: usize,
    rolled_back: usize,
    /// Snapshots that went with their last hold.
    released: usize,
    /// Sub-lists of a livelist that can be condensed, and what was read of two.
    pair: Option<Pair>,
    condensed: Option<Condensed>,
    seen: Seen,
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
            promoted: 0,
            rolled_back: 0,
            released: 0,
            pair: None,
            condensed: None,
            seen: Seen::default(),
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
        let mut keys = Keys::default();
        let deadlists = Some(&mut keys);
        let mut tx = Tx { now, usable: Some(1 << 40), pool: POOL, deadlists, ..tx };
        change(self, &mut tx);
        self.condense(&mut tx);
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
        self.read_pair(mos.synced());
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
        // Other changes were made since.
        tx.deadlists.as_deref_mut().unwrap().forget();
        dataset::synced(tx, head.object, &synced).unwrap();
        self.pair = self.pair.or(tx.deadlists.as_deref_mut().unwrap().take_condensable());
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
                let (object, blocks) = (done.unwrap(), Arc::new(head.blocks.clone()));
                head.snapshots.push(Snapshot {
                    object,
                    guid: figures::guid(tx, object),
                    name: name.clone(),
                    txg: tx.txg,
                    blocks,
                    holds: BTreeSet::new(),
                    deferred: false,
                });
            }
        }
        let again = snapshot::snapshot(tx, head.object, &name);
        assert!(matches!(again, Err(DslWriteError::Again)));
    }

    fn destroy_snapshot(&mut self, tx: &mut Tx<'_>) {
        let snapshots = self.snapshots();
        let Some((of, i)) = self.random.pick(&snapshots).cloned() else { return };
        let snap = self.model.heads[&of].snapshots[i].clone();
        let (object, defer) = (snap.object, self.random.below(3) == 0);
        let done = destroy::destroy_snapshot(tx, object, defer);
        let cloned = self.model.clones(object) > 0;
        if defer && (cloned || !snap.holds.is_empty()) {
            assert!(!done.unwrap());
            self.model.heads.get_mut(&of).unwrap().snapshots[i].deferred = true;
        } else if !snap.holds.is_empty() {
            assert!(matches!(done, Err(DslWriteError::Held)));
        } else if cloned {
            assert!(matches!(done, Err(DslWriteError::HasClones)));
        } else {
            assert!(done.unwrap());
            let gone = self.model.heads.get_mut(&of).unwrap().snapshots.remove(i);
            self.model.leave(&gone.blocks);
        }
    }

    /// Several at once, those that nothing keeps.
    fn destroy_snapshots(&mut self, tx: &mut Tx<'_>) {
        let goes = |rig: &Rig, (of, i): &(String, usize)| {
            let snap = &rig.model.heads[of].snapshots[*i];
            snap.holds.is_empty() && rig.model.clones(snap.object) == 0
        };
        let mut chosen: Vec<(u64, String)> = Vec::new();
        for at in self.snapshots() {
            if goes(self, &at) && self.random.below(2) == 0 {
                let snap = &self.model.heads[&at.0].snapshots[at.1];
                // A name that is wrong is not gone by.
                let wrong = self.random.below(8) == 0;
                chosen.push((snap.object, if wrong { "wrong".into() } else { snap.name.clone() }));
            }
        }
        let list: Vec<(u64, &str)> = chosen.iter().map(|(o, name)| (*o, name.as_str())).collect();
        let gone = destroy::destroy_snapshots(tx, &list, self.random.below(2) == 0).unwrap();
        assert!(gone.len() == chosen.len() && gone.iter().all(|gone| *gone));
        for (object, _) in chosen {
            let (of, i) = self.model.find(object).unwrap();
            let gone = self.model.heads.get_mut(&of).unwrap().snapshots.remove(i);
            self.model.leave(&gone.blocks);
        }
    }

    fn hold(&mut self, tx: &mut Tx<'_>) {
        let snapshots = self.snapshots();
        let Some((of, i)) = self.random.pick(&snapshots).cloned() else { return };
        let tag = format!("tag{}", self.random.below(3));
        let snap = &mut self.model.heads.get_mut(&of).unwrap().snapshots[i];
        let done = holds::hold(tx, snap.object, &tag);
        match snap.holds.insert(tag) {
            true => assert_eq!(done.unwrap(), snap.holds.len()),
            false => assert!(matches!(done, Err(DslWriteError::Exists))),
        }
    }

    fn release(&mut self, tx: &mut Tx<'_>) {
        let of =
            |(name, i): &(String, usize)| !self.model.heads[name].snapshots[*i].holds.is_empty();
        let held: Vec<_> = self.snapshots().into_iter().filter(of).collect();
        let Some((of, i)) = self.random.pick(&held).cloned() else { return };
        let snap = &mut self.model.heads.get_mut(&of).unwrap().snapshots[i];
        let (object, tag) = (snap.object, snap.holds.pop_first().unwrap());
        let absent = holds::release(tx, object, "no such tag");
        assert!(matches!(absent, Err(DslWriteError::NotFound)));
        let released = holds::release(tx, object, &tag).unwrap();
        let left = snap.holds.len();
        self.model.settle(object);
        match self.model.find(object) {
            Some(_) => assert_eq!(released, holds::Released::Left(left)),
            None => {
                assert_eq!(released, holds::Released::Destroyed);
                self.released += 1;
            }
        }
    }

    fn bookmark(&mut self, tx: &mut Tx<'_>) {
        let snapshots = self.snapshots();
        let Some((of, i)) = self.random.pick(&snapshots).cloned() else { return };
        let name = self.name();
        let head = self.model.heads.get_mut(&of).unwrap();
        let snap = head.snapshots[i].clone();
        let mut source = bookmarks::Source::Snapshot(snap.object);
        let (mut guid, mut txg, mut blocks) = (snap.guid, snap.txg, snap.blocks);
        if self.random.below(3) == 0
            && let Some(other) = self.random.pick(&head.bookmarks)
        {
            source = bookmarks::Source::Bookmark(head.object, other.name.clone());
            (guid, txg, blocks) = (other.guid, other.txg, other.blocks.clone());
        }
        assert_eq!(bookmarks::create(tx, head.object, &name, &source).unwrap().txg, txg);
        let again = bookmarks::create(tx, head.object, &name, &source);
        assert!(matches!(again, Err(DslWriteError::Exists)));
        head.bookmarks.push(Bookmark { name, guid, txg, blocks });
    }

    fn destroy_bookmark(&mut self, tx: &mut Tx<'_>) {
        let with =
            |(name, head): (&String, &Head)| (!head.bookmarks.is_empty()).then(|| name.clone());
        let heads: Vec<String> = self.model.heads.iter().filter_map(with).collect();
        let Some(of) = self.random.pick(&heads).cloned() else { return };
        let head = self.model.heads.get_mut(&of).unwrap();
        let gone = head.bookmarks.remove(self.random.below(head.bookmarks.len()));
        bookmarks::destroy(tx, head.object, &gone.name).unwrap();
        let again = bookmarks::destroy(tx, head.object, &gone.name);
        assert!(matches!(again, Err(DslWriteError::NotFound)));
    }

    fn promote(&mut self, tx: &mut Tx<'_>) {
        let heads = self.heads();
        let Some(name) = self.random.pick(&heads).cloned() else { return };
        let head = &self.model.heads[&name];
        let done = promote::promote(tx, head.object);
        if head.origin.is_none() {
            assert!(matches!(done, Err(DslWriteError::Invalid(_))));
            return;
        }
        done.unwrap();
        self.model.promote(&name);
        self.promoted += 1;
    }

    fn roll_back(&mut self, tx: &mut Tx<'_>) {
        let heads = self.heads();
        let Some(name) = self.random.pick(&heads).cloned() else { return };
        let head = self.model.heads.get_mut(&name).unwrap();
        let checked = rollback::check_rollback(tx, head.object);
        let Some(newest) = head.snapshots.last().cloned() else {
            assert!(matches!(checked, Err(DslWriteError::NotFound)));
            return;
        };
        if newest.txg == tx.txg {
            assert!(matches!(checked, Err(DslWriteError::Again)));
        } else if head.bookmarks.iter().any(|b| b.txg > newest.txg) {
            assert!(matches!(checked, Err(DslWriteError::Exists)));
        } else {
            rollback::rollback(tx, head.object, checked.unwrap()).unwrap();
            let before = std::mem::replace(&mut head.blocks, (*newest.blocks).clone());
            self.model.leave(&before);
            self.rolled_back += 1;
        }
    }

    fn destroy_head(&mut self, tx: &mut Tx<'_>) {
        let heads = self.heads();
        let Some(name) = self.random.pick(&heads).cloned() else { return };
        let head = &self.model.heads[&name];
        let way = destroy::check_head(tx, head.object);
        let done = way.and_then(|way| {
            self.seen.goes(&way);
            destroy::destroy_checked(tx, head.object, way)
        });
        if !head.snapshots.is_empty() {
            assert!(matches!(done, Err(DslWriteError::HasSnapshots)));
        } else if self.model.children(&name).next().is_some() {
            assert!(matches!(done, Err(DslWriteError::HasChildren)));
        } else {
            done.unwrap();
            let gone = self.model.heads.remove(&name).unwrap();
            self.model.leave(&gone.blocks);
            if let Some((origin, _)) = gone.origin {
                self.model.settle(origin);
            }
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
            match self.random.below(24) {
                0 | 1 => self.create(tx),
                2 | 3 => self.clone(tx),
                4..=8 => self.snapshot(tx),
                9..=11 => self.destroy_snapshot(tx),
                12 => self.destroy_snapshots(tx),
                13 => self.destroy_head(tx),
                14 => self.rename(tx),
                15 | 16 => self.promote(tx),
                17 => self.roll_back(tx),
                18 => self.hold(tx),
                19 => self.release(tx),
                20 => self.bookmark(tx),
                21 => self.destroy_bookmark(tx),
                _ => self.reserve(tx),
            }
        }
    }

    /// Compares what is on disk with the model.
    fn check(&mut self, mos: &Arc<ObjectSet>) {
        let dsl = Dsl::open(mos.clone(), POOL).unwrap();
        let mut heads = Vec::new();
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
                assert_eq!(dsl.holds(&found).unwrap().len(), snap.holds.len());
            }
            Rig::check_bookmarks(&dsl, &found, head);
            self.check_shown(&dsl, &found, name);
            heads.push((found, name.clone()));
        }
        let mut livelists = self.check_deleted(mos, &dsl);
        for (found, name) in heads {
            livelists += u64::from(self.check_livelist(mos, &dsl, &found, &name));
        }
        self.check_lists(mos, &dsl, livelists);
    }

    /// Bookmarks, and what was freed since the snapshots that they are of.
    fn check_bookmarks(dsl: &Dsl, found: &Dataset, head: &Head) {
        let there = dsl.bookmarks(found).unwrap();
        assert_eq!(there.len(), head.bookmarks.len());
        for bookmark in &head.bookmarks {
            let full = format!("{}#{}", found.name, bookmark.name);
            let phys = there.iter().find(|b| b.name == full).unwrap().bookmark.unwrap();
            let total = model::sum(bookmark.blocks.values());
            let freed = model::without(&bookmark.blocks, &[head.after_txg(bookmark.txg)]);
            assert_eq!((phys.creation_txg, phys.referenced), (bookmark.txg, total.used), "{full}");
            assert_eq!(
                (phys.freed, phys.freed_compressed, phys.freed_uncompressed),
                (freed.used, freed.compressed, freed.uncompressed),
                "{full}"
            );
        }
    }

    /// Deadlists and counts of features.
    fn check_lists(&self, mos: &Arc<ObjectSet>, dsl: &Dsl, livelists: u64) {
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
                    // Of a livelist, what died may be more than what was born in the same sub-list's time.
                    total.used = total.used.wrapping_add(header.bytes);
                    total.compressed = total.compressed.wrapping_add(header.compressed);
                    total.uncompressed = total.uncompressed.wrapping_add(header.uncompressed);
                }
                assert_eq!(total, list.total, "deadlist {number}");
                let mut counted = Sizes::default();
                dsl.iterate_deadlist(&list, &mut |e| {
                    let s = sizes(&e.bp);
                    let sign = if e.freed { -1 } else { 1 };
                    let add = |sum: &mut u64, n: u64| {
                        *sum = sum.wrapping_add_signed(sign * n as i64);
                    };
                    add(&mut counted.used, s.used);
                    add(&mut counted.compressed, s.compressed);
                    add(&mut counted.uncompressed, s.uncompressed);
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
        assert_eq!(uses("com.delphix:livelist"), Some(livelists));
        let bookmarks = self.model.heads.values().map(|h| h.bookmarks.len() as u64);
        for feature in ["com.delphix:bookmark_written", "com.datto:bookmark_v2"] {
            assert_eq!(uses(feature), Some(bookmarks.clone().sum()), "{feature}");
        }
        let with_bookmarks = bookmarks.filter(|n| *n > 0).count() as u64;
        assert_eq!(uses("com.delphix:bookmarks"), Some(with_bookmarks));
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
                    rig.release(tx);
                    rig.destroy_bookmark(tx);
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
    let (mut happened, mut seen) = ([0; 3], Seen::default());
    LIVELIST_MAX_ENTRIES.set(8).unwrap();
    for seed in 0..16 {
        LIVELIST_MIN_PERCENT_SHARED.set([0, 0, 20, 75][seed as usize % 4]).unwrap();
        let mut rig = Rig::new(seed);
        let objects = rig.objects();
        for _ in 0..50 {
            rig.txg(|rig, tx| rig.step(tx));
        }
        rig.destroy_everything();
        assert_eq!(rig.objects(), objects);
        for (sum, n) in happened.iter_mut().zip([rig.promoted, rig.rolled_back, rig.released]) {
            *sum += n;
        }
        seen.add(rig.seen);
    }
    assert!(happened.iter().all(|n| *n > 0), "{happened:?}");
    assert!(seen.is_all(), "{seen:?}");
}
