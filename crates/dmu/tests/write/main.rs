//! Object sets written at random, over several transaction groups, and compared in full with a
//! simple model by the reading path after each.
#![allow(clippy::unwrap_used, clippy::panic)]

mod check;
mod live;
mod merge;
mod packed;
mod planted;
mod readahead;
mod whole;
mod zaps;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use cenote_dmu::objset::{GROUP_USED, PROJECT_USED, USER_USED};
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{
    Births, BlockSink, Gather, HeadObjectSet, MetaObjectSet, NewObject, OpenObjectSet, Result,
    Synced, SyncingSet, WriteError, ZapMut,
};
use cenote_dmu::zap::{Match, Zap};
use cenote_dmu::{Object, ObjectSet, Seek};
use cenote_format::dmu::{DmuType, ObjsetType};
use cenote_format::encode::zap::{Key, Value};
use cenote_testsink::MemSink;
use check::{Entries, Pieces, everything, pieces};
use proptest::prelude::*;

#[derive(Default, Clone, Debug)]
struct Model {
    bonus: Vec<u8>,
    block_size: u64,
    max_block: u64,
    data: Pieces,
    spill: Option<Vec<u8>>,
    zap: Option<Entries>,
}

impl Model {
    fn overwrite(&mut self, mut at: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let (piece, skip) = (at / 512, (at % 512) as usize);
            let (now, later) = data.split_at(data.len().min(512 - skip));
            let stored = self.data.entry(piece).or_insert_with(|| vec![0; 512]);
            stored[skip..skip + now.len()].copy_from_slice(now);
            if stored.iter().all(|b| *b == 0) {
                self.data.remove(&piece);
            }
            at += now.len() as u64;
            data = later;
        }
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        self.max_block = self.max_block.max((at + data.len() as u64 - 1) / self.block_size);
        self.overwrite(at, data);
    }

    fn free(&mut self, at: u64, len: u64) {
        let end = at.saturating_add(len).min((self.max_block + 1) * self.block_size);
        if at >= end {
            return;
        }
        let inside: Vec<u64> = self.data.range(at / 512..end.div_ceil(512)).map(|p| *p.0).collect();
        for piece in inside {
            let (from, to) = (at.max(piece * 512), end.min(piece * 512 + 512));
            self.overwrite(from, &vec![0; (to - from) as usize]);
        }
        let (first, last) = (at.div_ceil(self.block_size), end / self.block_size);
        if first < last && last > self.max_block {
            self.max_block = first.saturating_sub(1);
        }
    }
}

impl Model {
    /// What is seen of an object with pending changes.
    fn compare(&self, object: &Object) {
        let dnode = object.dnode();
        assert_eq!(dnode.bonus, self.bonus);
        assert_eq!(object.spill().unwrap().map(|b| b.data.to_vec()), self.spill);
        assert_eq!(dnode.spill.is_some_and(|bp| !bp.is_hole()), self.spill.is_some());
        if let Some(entries) = &self.zap {
            let zap = Zap::open(object).unwrap();
            assert_eq!(zap.len(), entries.len() as u64);
            let listed = zap.entries().unwrap();
            let shown = listed.iter().map(|e| (e.name.clone(), (e.int_size, e.value.clone())));
            assert_eq!(&shown.collect::<Entries>(), entries);
            for entry in listed.iter().step_by(1 + listed.len() / 40) {
                assert_eq!(zap.lookup(&entry.name).unwrap().as_ref(), Some(entry));
                let how = Match { fold_case: true };
                assert_eq!(zap.lookup_norm(&entry.name, how).unwrap().as_ref(), Some(entry));
                let rest = zap.entries_from(entry.cursor, 1).unwrap();
                let next = listed.iter().skip_while(|e| *e != entry).nth(1);
                assert_eq!(rest.first(), next);
            }
            assert_eq!(zap.lookup(b"not there").unwrap(), None);
            return;
        }
        assert_eq!((dnode.block_size, dnode.max_block), (self.block_size, self.max_block));
        let size = dnode.block_size;
        let (mut data, mut at) = (Pieces::new(), 0);
        while let Some(start) = object.seek(at, Seek::Data).unwrap() {
            assert_eq!(
                object.seek(at, Seek::Hole).unwrap(),
                (start > at).then_some(at).or_else(|| {
                    let next = object.seek(start, Seek::Hole).unwrap();
                    assert!(next.is_none_or(|n| n > start));
                    next
                })
            );
            let end = object.seek(start, Seek::Hole).unwrap();
            let end = end.unwrap_or((dnode.max_block + 1) * size);
            assert!(end > start && start.is_multiple_of(size) && end.is_multiple_of(size));
            for blkid in start / size..end / size {
                assert!(object.block(blkid).unwrap().is_some());
                assert!(!object.block_pointer(0, blkid).unwrap().is_hole());
            }
            assert!(end / size > dnode.max_block || object.block(end / size).unwrap().is_none());
            let from = start.saturating_sub(700);
            let mut bytes = vec![7; (end - from) as usize + 900];
            object.read(from, &mut bytes).unwrap();
            assert!(bytes[(end - from) as usize..].len() == 900);
            data.extend(pieces(start, &bytes[(start - from) as usize..(end - from) as usize]));
            at = end;
        }
        assert!(data == self.data);
        let mut all = vec![7; 70_000];
        object.read(300, &mut all).unwrap();
        let piece = |at: u64| self.data.get(&(at / 512)).map_or(0, |p| p[(at % 512) as usize]);
        assert!((300..).zip(&all).all(|(at, b)| piece(at) == *b));
    }
}

/// What a sync has written, as a reader finds it.
fn verify(sink: &MemSink, id: u64, synced: &Synced, models: &BTreeMap<u64, Model>) {
    sink.follow(synced);
    sink.store.drop_caches();
    let set = ObjectSet::open(sink.store.clone(), id, synced.root).unwrap();
    let found = everything(&set, &sink.live());
    assert!(found.keys().eq(models.keys()));
    for ((number, seen), model) in found.iter().zip(models.values()) {
        assert_eq!(seen.dnode.bonus, model.bonus, "bonus of {number}");
        assert_eq!(seen.spill, model.spill, "spill of {number}");
        assert_eq!(seen.zap, model.zap, "entries of {number}");
        if model.zap.is_none() {
            assert_eq!(seen.dnode.max_block, model.max_block, "last block of {number}");
            assert_eq!(seen.dnode.block_size, model.block_size);
            assert!(seen.data == model.data, "data of {number}");
        }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Create { zap: bool, blocks: u64, slots: usize, bonus: usize },
    Free,
    Write { at: u64, len: usize, byte: u8 },
    Hole { at: u64, len: u64 },
    Truncate { at: u64 },
    Bonus { len: usize, byte: u8 },
    BlockSize { blocks: u64, shift: u8 },
    Spill { sectors: usize, byte: u8 },
    Put { name: u8, long: bool, len: usize, value: u64 },
    Remove { name: u8 },
    Increment { name: u8, delta: i64 },
    Many { count: u16 },
    Gather { at: u64, len: u64 },
    Rewrite,
    Sync,
    Quiesce,
    SyncQuiesced,
    SyncDone,
    Look,
    Begin,
    Keep,
    Undo,
}

fn place() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0u64..3000,
        3 => 0u64..200_000,
        1 => (1u64 << 40)..(1 << 40) + 100_000,
        1 => (0u64..400).prop_map(|n| n * 512),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (any::<bool>(), 1u64..5, 1usize..6, 0usize..320)
            .prop_map(|(zap, blocks, slots, bonus)| Op::Create { zap, blocks, slots, bonus }),
        2 => Just(Op::Free),
        8 => (place(), 1usize..5000, 0u8..4)
            .prop_map(|(at, len, byte)| Op::Write { at, len, byte }),
        3 => (place(), prop_oneof![1u64..1000, 1u64..200_000, Just(1 << 39)])
            .prop_map(|(at, len)| Op::Hole { at, len }),
        2 => place().prop_map(|at| Op::Truncate { at }),
        1 => (0usize..400, any::<u8>()).prop_map(|(len, byte)| Op::Bonus { len, byte }),
        1 => (1u64..9, 12u8..15).prop_map(|(blocks, shift)| Op::BlockSize { blocks, shift }),
        1 => (0usize..4, 1u8..5).prop_map(|(sectors, byte)| Op::Spill { sectors, byte }),
        6 => (any::<u8>(), prop::bool::weighted(0.02), prop_oneof![20 => Just(1usize), 1 => 0usize..9],
            any::<u64>()).prop_map(|(name, long, len, value)| Op::Put { name, long, len, value }),
        2 => any::<u8>().prop_map(|name| Op::Remove { name }),
        1 => (any::<u8>(), -2i64..3).prop_map(|(name, delta)| Op::Increment { name, delta }),
        1 => (1u16..400).prop_map(|count| Op::Many { count }),
        2 => (place(), 1u64..200_000).prop_map(|(at, len)| Op::Gather { at, len }),
        2 => Just(Op::Rewrite),
        1 => Just(Op::Sync),
        3 => Just(Op::Quiesce),
        3 => Just(Op::SyncQuiesced),
        3 => Just(Op::SyncDone),
        2 => Just(Op::Look),
        3 => Just(Op::Begin),
        2 => Just(Op::Keep),
        2 => Just(Op::Undo),
    ]
}

/// The two that go on after they were written.
enum Set {
    Head(HeadObjectSet),
    Meta(MetaObjectSet),
}

impl Deref for Set {
    type Target = OpenObjectSet;

    fn deref(&self) -> &OpenObjectSet {
        match self {
            Set::Head(set) => set,
            Set::Meta(set) => set,
        }
    }
}

impl DerefMut for Set {
    fn deref_mut(&mut self) -> &mut OpenObjectSet {
        match self {
            Set::Head(set) => set,
            Set::Meta(set) => set,
        }
    }
}

impl Set {
    fn sync(&mut self, txg: u64, sink: &dyn BlockSink) -> Result<Synced> {
        match self {
            Set::Head(set) => {
                let mut syncing = set.quiesce();
                let synced = syncing.sync(txg, sink)?;
                set.sync_done(syncing.finish());
                Ok(synced)
            }
            Set::Meta(set) => set.sync(txg, sink),
        }
    }
}

struct Test {
    sink: MemSink,
    set: Set,
    model: BTreeMap<u64, Model>,
    /// What is quiesced, and what it should be; whether it was synced.
    quiesced: Option<(SyncingSet, BTreeMap<u64, Model>, bool)>,
    /// What was seen some time ago.
    seen: Vec<(Object, Model)>,
    /// The gathered rewrite, and the object that it is of.
    gathered: Option<(u64, Gather)>,
    /// What there was before each change that is being made, and bytes to be written.
    changes: Vec<(BTreeMap<u64, Model>, u64)>,
    txg: u64,
}

impl Test {
    fn new(kind: ObjsetType) -> Test {
        let sink = MemSink::new(96 << 20);
        let store = sink.store.clone();
        let set = match kind {
            ObjsetType::Meta => Set::Meta(MetaObjectSet::create(store).unwrap()),
            _ => Set::Head(HeadObjectSet::new(OpenObjectSet::create(store, 7, kind).unwrap())),
        };
        let (model, quiesced, seen, gathered, changes) = Default::default();
        Test { sink, set, model, quiesced, seen, gathered, changes, txg: 10 }
    }

    fn keep(&mut self) {
        self.set.check_change().unwrap();
        self.set.keep_change();
        self.changes.pop();
    }

    fn undo(&mut self) {
        let Some((before, dirty)) = self.changes.pop() else { return };
        assert!(self.set.undo_change());
        assert_eq!(self.set.dirty_bytes(), dirty);
        self.model = before;
        // No other thread gathers what a change under way has done.
        self.gathered = None;
        self.look();
    }

    fn sync(&mut self) {
        self.sync_done();
        self.txg += 1;
        let synced = self.set.sync(self.txg, &self.sink).unwrap();
        verify(&self.sink, self.set.id(), &synced, &self.model);
    }

    fn quiesce(&mut self) {
        if let (None, Set::Head(set)) = (&self.quiesced, &mut self.set) {
            self.quiesced = Some((set.quiesce(), self.model.clone(), false));
            assert!(!self.set.is_dirty() && self.set.dirty_bytes() == 0);
        }
    }

    fn sync_quiesced(&mut self) {
        self.txg += 1;
        if let Some((set, model, done)) = &mut self.quiesced {
            let synced = set.sync(self.txg, &self.sink).unwrap();
            assert!(!set.is_dirty() && (synced.changed.is_empty() || !*done));
            for change in &synced.changed {
                assert_eq!(change.after.is_some(), model.contains_key(&change.object));
                let before = self.set.synced().object(change.object);
                assert_eq!(change.before.is_some(), before.is_ok());
            }
            verify(&self.sink, set.synced().id(), &synced, model);
            *done = true;
        }
    }

    fn sync_done(&mut self) {
        self.sync_quiesced();
        if let (Some((syncing, ..)), Set::Head(set)) = (self.quiesced.take(), &mut self.set) {
            let root = *syncing.synced().root_bp();
            set.sync_done(syncing.finish());
            assert_eq!(set.synced().root_bp(), &root);
            self.look();
        }
    }

    /// Everything is as it should be, pending or not, and was as it should have been.
    fn look(&mut self) {
        let mut next = 0;
        let mut numbers = Vec::new();
        while let Some(number) = self.set.next_object(next).unwrap() {
            numbers.push(number);
            next = number + 1;
        }
        assert!(numbers.iter().eq(self.model.keys()));
        assert_eq!(self.set.object_count(), numbers.len() as u64);
        for (n, model) in &self.model {
            let object = self.set.view(*n).unwrap();
            model.compare(&object);
            self.seen.push((object, model.clone()));
        }
        for gone in [1, 2, 3, 40].iter().filter(|n| !self.model.contains_key(n)) {
            assert!(self.set.view(*gone).is_err() && self.set.dnode(*gone).is_err());
        }
        for (object, model) in &self.seen {
            model.compare(object);
        }
        let drop = self.seen.len().saturating_sub(5);
        self.seen.drain(..drop);
    }

    /// One of the objects that are, or are not, ZAPs.
    fn pick(&self, which: usize, zap: bool) -> Option<u64> {
        let fit = self.model.iter().filter(|(_, m)| m.zap.is_some() == zap);
        let all: Vec<u64> = fit.map(|(n, _)| *n).collect();
        all.get(which % all.len().max(1)).copied()
    }

    fn create(&mut self, zap: bool, blocks: u64, slots: usize, bonus: usize) {
        let kind = if zap { DmuType::DIRECTORY_CONTENTS } else { DmuType::PLAIN_FILE_CONTENTS };
        let new = NewObject {
            bonus_kind: DmuType::SA,
            bonus: vec![1; bonus],
            dnode_size: slots * 512,
            indirect_shift: 12,
            ..NewObject::new(kind, blocks * 512)
        };
        // Without system attributes there may be three pointers.
        let new = NewObject {
            bonus_kind: if slots.is_multiple_of(2) { DmuType::ZNODE } else { DmuType::SA },
            ..new
        };
        let format = ZapFormat { salt: 77, ..ZapFormat::default() };
        let number = match zap {
            true => ZapMut::create(&mut self.set, &new, format).unwrap(),
            false => self.set.allocate(&new).unwrap(),
        };
        let taken = self.model.range(number..number + slots as u64).count();
        assert!(taken == 0 && number % 32 + slots as u64 <= 32);
        assert!(matches!(self.set.claim(number, &new), Err(WriteError::Taken(_))));
        let model = Model {
            bonus: vec![1; bonus],
            block_size: blocks * 512,
            zap: zap.then(Entries::new),
            ..Model::default()
        };
        self.model.insert(number, model);
    }

    fn put(&mut self, n: u64, name: &[u8], value: &[u64]) {
        let mut zap = ZapMut::open(&mut self.set, n);
        let entries = self.model.get_mut(&n).unwrap().zap.as_mut().unwrap();
        if entries.contains_key(name) {
            let again = zap.add(&Key::Name(name), &Value::U64(value));
            assert!(matches!(again, Err(WriteError::Exists(_))));
        }
        zap.update(&Key::Name(name), &Value::U64(value)).unwrap();
        entries.insert(name.to_vec(), (8, value.to_vec()));
        assert_eq!(zap.lookup(&Key::Name(name)).unwrap(), Some((8, value.to_vec())));
    }

    fn on_data(&mut self, n: u64, op: &Op) {
        let model = self.model.get_mut(&n).unwrap();
        match *op {
            Op::Write { at, len, byte } => {
                let data: Vec<u8> = (0..len).map(|i| byte * (1 + i as u8 % 5)).collect();
                self.set.write(n, at, &data).unwrap();
                model.write(at, &data);
                let mut back = vec![9; len + 700];
                self.set.read(n, at, &mut back).unwrap();
                let stored = |i: usize, b: &u8| {
                    let piece = model.data.get(&((at + i as u64) / 512));
                    piece.map_or(0, |p| p[((at + i as u64) % 512) as usize]) == *b
                };
                assert!(back.iter().enumerate().all(|(i, b)| stored(i, b)), "{len} bytes at {at}");
            }
            Op::Gather { at, len } => {
                let object = self.set.view(n).unwrap();
                self.gathered = Some((n, object.gather(at, len, &|_| false).unwrap()));
            }
            Op::Hole { at, len } => {
                self.set.free_range(n, at, len).unwrap();
                model.free(at, len);
            }
            Op::Truncate { at } => {
                self.set.truncate(n, at).unwrap();
                model.free(at, u64::MAX);
            }
            Op::BlockSize { blocks, shift } => {
                let now = self.set.dnode(n).unwrap().indirect_shift;
                // If there are, or will be, indirect blocks, they keep their size.
                let done = self.set.set_block_size(n, blocks * 512, shift);
                assert!(done.is_err() || model.max_block == 0);
                let done = done.or_else(|_| self.set.set_block_size(n, blocks * 512, now));
                assert_eq!(done.is_ok(), model.max_block == 0);
                if done.is_ok() {
                    model.block_size = blocks * 512;
                    model.data.split_off(&blocks);
                }
            }
            _ => {}
        }
    }

    /// Rewrites what was gathered some time ago, which changes nothing.
    fn rewrite(&mut self) {
        let Some((n, gathered)) = self.gathered.take() else { return };
        let done = self.set.rewrite(n, &gathered, Births::Kept);
        assert_eq!(done.is_ok(), self.model.contains_key(&n));
        assert!(done.is_err() || done.unwrap() <= gathered.bytes());
    }

    fn on_any(&mut self, n: u64, op: &Op) {
        let model = self.model.get_mut(&n).unwrap();
        match *op {
            Op::Free => {
                self.set.free(n).unwrap();
                assert!(self.set.dnode(n).is_err());
                self.model.remove(&n);
            }
            Op::Bonus { len, byte } => {
                let done = self.set.set_bonus(n, DmuType::SA, &vec![byte; len]);
                // One pointer and a spill pointer leave the least room: 192 bytes.
                assert!(done.is_ok() || len > 192);
                if done.is_ok() {
                    model.bonus = vec![byte; len];
                }
            }
            Op::Spill { sectors, byte } => {
                let data = (sectors > 0).then(|| vec![byte; sectors * 512]);
                if self.set.set_spill(n, data.clone()).is_ok() {
                    model.spill = data;
                }
                assert_eq!(self.set.spill(n).unwrap(), model.spill);
            }
            _ => {}
        }
    }

    fn on_zap(&mut self, n: u64, op: &Op) {
        match *op {
            Op::Put { name, long, len, value } => {
                let name = format!("{}{name}", if long { "x".repeat(60) } else { "n".into() });
                self.put(n, name.as_bytes(), &vec![value; len]);
            }
            Op::Many { count } => {
                for i in 0..u64::from(count) {
                    self.put(n, format!("one of many {}", i * 7 % 1500).as_bytes(), &[i]);
                }
            }
            Op::Remove { name } => {
                let name = format!("n{name}").into_bytes();
                let entries = self.model.get_mut(&n).unwrap().zap.as_mut().unwrap();
                let removed = ZapMut::open(&mut self.set, n).remove(&Key::Name(&name));
                assert_eq!(removed.is_ok(), entries.remove(&name).is_some());
            }
            Op::Increment { name, delta } => {
                let name = format!("count {}", name % 4).into_bytes();
                let entries = self.model.get_mut(&n).unwrap().zap.as_mut().unwrap();
                let old = entries.remove(&name).map_or(0, |(_, v)| v[0]);
                let new = old.wrapping_add_signed(delta);
                let mut zap = ZapMut::open(&mut self.set, n);
                assert_eq!(zap.increment(&Key::Name(&name), delta).unwrap(), new);
                if new != 0 {
                    entries.insert(name, (8, vec![new]));
                }
            }
            _ => {}
        }
    }

    fn apply(&mut self, which: usize, op: &Op) {
        if matches!(op, Op::Sync | Op::Quiesce | Op::SyncDone) {
            (0..self.changes.len()).for_each(|_| self.keep());
        }
        match op {
            Op::Begin => {
                self.changes.push((self.model.clone(), self.set.dirty_bytes()));
                self.set.begin_change();
            }
            Op::Keep if !self.changes.is_empty() => self.keep(),
            Op::Undo => self.undo(),
            Op::Keep => {}
            Op::Rewrite => self.rewrite(),
            Op::Sync => self.sync(),
            Op::Quiesce => self.quiesce(),
            Op::SyncQuiesced => self.sync_quiesced(),
            Op::SyncDone => self.sync_done(),
            Op::Look => self.look(),
            Op::Create { zap, blocks, slots, bonus } => self.create(*zap, *blocks, *slots, *bonus),
            Op::Free | Op::Bonus { .. } | Op::Spill { .. } => {
                if let Some(n) = self.pick(which, which.is_multiple_of(2)) {
                    self.on_any(n, op);
                }
            }
            Op::Put { .. } | Op::Remove { .. } | Op::Increment { .. } | Op::Many { .. } => {
                if let Some(n) = self.pick(which, true) {
                    self.on_zap(n, op);
                }
            }
            _ => {
                if let Some(n) = self.pick(which, false) {
                    self.on_data(n, op);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn an_object_set_is_what_was_done_to_it(
        ops in prop::collection::vec((0usize..1000, op()), 1..90), meta: bool,
    ) {
        let mut test = Test::new(if meta { ObjsetType::Meta } else { ObjsetType::Zfs });
        test.create(false, 1, 1, 0);
        test.create(true, 1, 1, 0);
        for (which, op) in &ops {
            test.apply(*which, op);
        }
        test.apply(0, &Op::Sync);
        // Nothing changed, so nothing is written.
        let root = *test.set.synced().root_bp();
        let synced = test.set.sync(99, &test.sink).unwrap();
        prop_assert!(synced.root == root && synced.born.is_empty() && synced.killed.is_empty());
        for n in test.model.keys() {
            test.set.free(*n).unwrap();
        }
        test.model.clear();
        test.sync();
    }
}

#[test]
fn many_objects_and_their_numbers() {
    let mut test = Test::new(ObjsetType::Meta);
    for i in 0..1500 {
        test.create(false, 1, 1 + i % 5, 0);
    }
    test.sync();
    assert_eq!(test.set.synced().phys().meta_dnode.levels, 2);
    let numbers: Vec<u64> = test.model.keys().copied().collect();
    for n in numbers.iter().step_by(3) {
        test.set.free(*n).unwrap();
        test.model.remove(n);
    }
    // Freed numbers are used again in the next group, also by an object set that was opened anew.
    test.create(false, 1, 1, 0);
    let last = test.model.keys().max().copied();
    assert!(last > numbers.last().copied());
    test.sync();
    test.create(false, 1, 1, 0);
    assert!(test.model.contains_key(&numbers[0]));
    test.sync();
    test.set = Set::Meta(MetaObjectSet::open(test.set.synced().clone()).unwrap());
    test.create(false, 1, 1, 0);
    assert_eq!(test.model.keys().max().copied(), last);
    test.sync();
}

#[test]
fn accounting_objects_are_in_the_root_block() {
    let sink = MemSink::new(16 << 20);
    let set = OpenObjectSet::create(sink.store.clone(), 7, ObjsetType::Zfs).unwrap();
    let mut set = HeadObjectSet::new(set);
    let new = NewObject::new(DmuType::USERGROUP_USED, 512);
    let format = ZapFormat { salt: 5, ..ZapFormat::default() };
    let file = set.allocate(&NewObject::new(DmuType::PLAIN_FILE_CONTENTS, 512)).unwrap();
    for round in 1..4u64 {
        set.write(file, 0, &[round as u8; 512]).unwrap();
        let mut syncing = set.quiesce();
        // Also before what was quiesced is written, and several times.
        for _ in 0..2 {
            let counted = syncing.account(|accounts| {
                assert!(accounts.create(77, &new, || Ok::<_, WriteError>(format)).is_err());
                for number in [USER_USED, GROUP_USED, PROJECT_USED] {
                    accounts.create(number, &new, || Ok::<_, WriteError>(format))?;
                }
                accounts.add(USER_USED, &Key::Name(b"1000"), 512)?;
                accounts.add(PROJECT_USED, &Key::Name(b"5555"), 100)
            });
            assert!(syncing.is_dirty() && counted.is_ok());
            syncing.sync(10 + round, &sink).unwrap();
            assert!(!syncing.is_dirty());
        }
        // What fails changes nothing.
        let root = *syncing.synced().root_bp();
        let refused: Result<()> = syncing.account(|accounts| {
            accounts.add(USER_USED, &Key::Name(b"1000"), 7)?;
            Err(WriteError::NoSpace)
        });
        assert!(matches!(refused, Err(WriteError::NoSpace)) && !syncing.is_dirty());
        assert_eq!(syncing.sync(10 + round, &sink).unwrap().root, root);
        set.sync_done(syncing.finish());
        let used = Zap::open(&set.synced().special(USER_USED).unwrap()).unwrap();
        assert_eq!(used.u64(b"1000").unwrap(), Some(round * 1024));
    }
    let group = set.synced().special(GROUP_USED).unwrap();
    assert!(Zap::open(&group).unwrap().is_empty());
    assert!(set.free(USER_USED).is_err());
}

#[test]
fn levels_are_written_in_one_batch_each() {
    let mut test = Test::new(ObjsetType::Meta);
    for _ in 0..20 {
        test.create(false, 1, 1, 0);
    }
    let numbers: Vec<u64> = test.model.keys().copied().collect();
    for n in numbers {
        for at in [0u64, 20_000, 600_000] {
            test.on_data(n, &Op::Write { at, len: 600, byte: 1 });
        }
    }
    test.sync();
    // Data, three levels above (1,173 blocks, 32 pointers each), dnodes, the root block.
    assert_eq!(test.sink.batches(), 1 + 3 + 1 + 1);
}

#[test]
fn what_is_quiesced_gets_indirect_blocks_for_holes_too() {
    for slots in [1, 2] {
        let mut test = Test::new(ObjsetType::Zfs);
        // With one pointer and with several.
        test.create(false, 16, slots, 0);
        let n = *test.model.keys().next().unwrap();
        test.on_data(n, &Op::Write { at: 0, len: 8192, byte: 1 });
        test.sync();
        // The last block is past the dnode's pointers, and no dirty block is.
        test.on_data(n, &Op::Write { at: 72 << 10, len: 8192, byte: 2 });
        test.on_data(n, &Op::Truncate { at: 72 << 10 });
        test.quiesce();
        test.on_data(n, &Op::Truncate { at: 4096 });
        let before = test.set.dnode(n).unwrap().clone();
        assert_eq!((before.levels, before.max_block, before.indirect_shift), (1, 0, 12));
        assert!(test.set.set_block_size(n, 12 << 10, 14).is_err());
        test.on_data(n, &Op::BlockSize { blocks: 24, shift: 14 });
        test.on_data(n, &Op::Write { at: 0, len: 12 << 10, byte: 3 });
        test.sync();
        test.on_data(n, &Op::Write { at: 300 << 10, len: 999, byte: 4 });
        test.sync();
    }
}

#[test]
fn indirect_blocks_that_there_are_none_of_change_their_size() {
    let mut test = Test::new(ObjsetType::Zfs);
    test.create(false, 1, 1, 0);
    let n = *test.model.keys().next().unwrap();
    test.on_data(n, &Op::Write { at: 0, len: 500, byte: 1 });
    test.quiesce();
    test.set.set_block_size(n, 1024, 14).unwrap();
    test.on_data(n, &Op::BlockSize { blocks: 2, shift: 14 });
    test.on_data(n, &Op::Write { at: 0, len: 50_000, byte: 2 });
    test.sync();
    assert_eq!(test.set.dnode(n).unwrap().indirect_shift, 14);
}

#[test]
fn after_a_failure_the_object_set_is_of_no_use() {
    let mut test = Test::new(ObjsetType::Meta);
    test.create(false, 1, 1, 0);
    test.sync();
    let n = *test.model.keys().next().unwrap();
    let root = *test.set.synced().root_bp();
    test.set.write(n, 0, &[1; 512]).unwrap();
    test.sink.fail(true);
    assert!(matches!(test.set.sync(50, &test.sink), Err(WriteError::Sink(_))));
    assert!(matches!(test.set.write(n, 0, &[1; 512]), Err(WriteError::Failed)));
    assert!(matches!(test.set.sync(51, &test.sink), Err(WriteError::Failed)));
    test.sink.fail(false);
    let base = ObjectSet::open(test.sink.store.clone(), 0, root).unwrap();
    test.set = Set::Meta(MetaObjectSet::open(base).unwrap());
    test.on_data(n, &Op::Write { at: 100, len: 900, byte: 3 });
    test.sync();
}

#[test]
fn what_is_given_up_is_of_no_use() {
    let mut test = Test::new(ObjsetType::Zfs);
    test.create(false, 1, 1, 0);
    let Set::Head(set) = &mut test.set else { panic!("not in use") };
    let mut syncing = set.quiesce();
    test.sink.fail(true);
    assert!(matches!(syncing.sync(50, &test.sink), Err(WriteError::Sink(_))));
    assert!(matches!(syncing.sync(51, &test.sink), Err(WriteError::Failed)));
    assert!(syncing.is_dirty() && !set.is_dirty());
    set.give_up();
    assert!(
        set.is_dirty() && matches!(set.set_bonus(1, DmuType::NONE, &[]), Err(WriteError::Failed))
    );
    assert!(matches!(set.quiesce().sync(52, &test.sink), Err(WriteError::Failed)));
}

#[test]
fn what_cannot_be_is_refused() {
    let mut test = Test::new(ObjsetType::Zfs);
    test.create(false, 1, 1, 0);
    let n = *test.model.keys().next().unwrap();
    let good = NewObject::new(DmuType::PLAIN_FILE_CONTENTS, 512);
    for bad in [
        NewObject { block_size: 513, ..good.clone() },
        NewObject { block_size: 32 << 20, ..good.clone() },
        NewObject { dnode_size: 700, ..good.clone() },
        NewObject { dnode_size: 17 << 10, ..good.clone() },
        NewObject { bonus: vec![0; 321], ..good.clone() },
        NewObject { indirect_shift: 18, ..good.clone() },
        NewObject { kind: DmuType::NONE, ..good.clone() },
    ] {
        assert!(test.set.allocate(&bad).is_err(), "{bad:?}");
    }
    let wide = NewObject { dnode_size: 1024, ..good.clone() };
    assert!(test.set.claim(31, &wide).is_err() && test.set.claim(u64::MAX, &good).is_err());
    assert!(test.set.claim(0, &good).is_err() && test.set.claim(1 << 20, &good).is_ok());
    assert!(test.set.write(n, u64::MAX - 5, &[1; 10]).is_err());
    assert!(test.set.set_spill(n, Some(vec![0; 100])).is_err());
    // Three pointers leave no room for a fourth one.
    let three = test.set.allocate(&good).unwrap();
    assert_eq!(test.set.dnode(three).unwrap().pointers.len(), 3);
    assert!(test.set.set_spill(three, Some(vec![1; 512])).is_err());
    assert!(test.set.set_block_size(n, 512, 11).is_err());
    assert!(ZapMut::open(&mut test.set, n).add(&Key::Name(b"x"), &Value::U64(&[1])).is_err());
    assert!(ZapMut::format(&mut test.set, n, ZapFormat::default()).is_err());
    let mut zap = ZapMut::open(&mut test.set, n).with_long_names();
    assert!(zap.add(&Key::Name(&[b'a'; 2000]), &Value::U64(&[1])).is_err());
}
