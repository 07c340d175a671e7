//! Faults planted in an object set that is written: each is found before a block of the group is written.

#![allow(clippy::unwrap_used)]

use super::object::{OpenObject, new_dnode};
use super::sink::{BlockSink, NewBlock};
use super::work::Work;
use super::*;
use cenote_format::abd::Abd;
use cenote_format::invariant::{caught, is_broken};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_vdev::VdevTree;

const KIND: DmuType = DmuType::PLAIN_FILE_CONTENTS;

/// A sink that nothing may reach.
struct Never;

impl BlockSink for Never {
    fn write_blocks(&self, _: u64, blocks: Vec<NewBlock>) -> Vec<Result<BlockPointer>> {
        blocks.iter().map(|_| Err(WriteError::Sink("blocks were written".into()))).collect()
    }
}

fn set() -> OpenObjectSet {
    let mut root = NvList::default();
    root.set("type", NvValue::String("root".into()));
    root.set("id", NvValue::Uint64(0));
    root.set("guid", NvValue::Uint64(1));
    root.set("children", NvValue::NvListArray(Vec::new()));
    let tree = VdevTree::build(&root, &mut |_, _| None).unwrap();
    OpenObjectSet::create(Store::new(tree, 1 << 20), 5, ObjsetType::Zfs).unwrap()
}

fn object(number: u64) -> OpenObject {
    OpenObject::new(number, new_dnode(&NewObject::new(KIND, 4096)).unwrap())
}

fn broken<T>(f: impl FnOnce() -> T) -> String {
    let why = caught(f).map(drop).unwrap_err();
    assert!(is_broken(&why), "{why}");
    why
}

#[test]
fn a_dirty_block_that_is_cut_short_is_found() {
    let mut object = object(7);
    object.pending.top.put(0, Abd::from_vec(vec![1; 4096]).into());
    object.pending.top.put(1, Abd::from_vec(vec![1; 512]).into());
    let why = broken(|| Work::new(5, 7, &object));
    assert!(why.ends_with("objset 5 object 7: 2 dirty blocks of 4096 have 4608 bytes"), "{why}");
}

#[test]
fn a_count_of_dirty_bytes_that_is_off_by_one_is_found() {
    let mut set = set();
    let number = set.allocate(&NewObject::new(KIND, 4096)).unwrap();
    set.write(number, 0, &[1; 100]).unwrap();
    set.unwritten.dirty += 1;
    let counted = set.unwritten.dirty;
    let mut set = set.into_syncing();
    let why = broken(|| set.sync(9, &Never));
    let what = format!("objset 5: {} bytes are dirty, {counted} counted", counted - 1);
    assert!(why.ends_with(&what), "{why}");
    // Nothing of it is written afterwards.
    assert!(matches!(set.sync(10, &Never), Err(WriteError::Failed)));
}

#[test]
fn a_pointer_that_has_no_place_is_found() {
    let phys = new_dnode(&NewObject::new(KIND, 4096)).unwrap();
    let mut work = Work::of(7, phys);
    let why = broken(|| work.set_pointer(0, 9, BlockPointer::HOLE));
    assert!(why.ends_with("object 7: no pointer 9 in the dnode"), "{why}");
    work.phys.levels = 2;
    let why = broken(|| work.set_pointer(0, 9, BlockPointer::HOLE));
    assert!(why.ends_with("object 7: nothing leads to block 9 of level 0"), "{why}");
}

#[test]
fn an_object_that_is_allocated_twice_is_found() {
    let mut set = set();
    let number = set.allocate(&NewObject::new(KIND, 4096)).unwrap();
    let why = broken(|| set.unwritten.insert(number, object(number)));
    assert!(why.ends_with(&format!("objset 5 object {number}: allocated twice")), "{why}");
}

#[test]
fn an_object_that_comes_back_keeps_its_number_for_itself() {
    let mut set = set();
    let number = set.allocate(&NewObject::new(KIND, 4096)).unwrap();
    // As a receiver does with an object of another structure.
    set.begin_change();
    set.free(number).unwrap();
    set.claim(number, &NewObject::new(KIND, 8192)).unwrap();
    assert!(set.undo_change());
    assert_eq!(set.dnode(number).unwrap().block_size, 4096);
    assert_ne!(set.allocate(&NewObject::new(KIND, 4096)).unwrap(), number);
}

#[test]
fn slots_that_are_taken_back_twice_are_found() {
    let mut set = set();
    let number = set.allocate(&NewObject::new(KIND, 4096)).unwrap();
    set.slots.give(number, 1);
    set.slots.take_back(number, 1);
    let why = broken(|| set.slots.take_back(number, 1));
    assert!(why.contains(&format!("object {number}: slots")), "{why}");
}

#[test]
fn slots_that_are_put_back_twice_are_found() {
    let mut set = set();
    let number = set.allocate(&NewObject::new(KIND, 4096)).unwrap();
    set.slots.put_back(number, 1, 0);
    let why = broken(|| set.slots.put_back(number, 1, 0));
    assert!(why.contains(&format!("object {number}: slots are put back that are free")), "{why}");
}

#[test]
fn a_group_in_the_middle_of_a_change_is_found() {
    let mut meta = MetaObjectSet::create(set().synced().store().clone()).unwrap();
    meta.begin_change();
    let why = broken(|| meta.sync(9, &Never));
    assert!(why.contains("objset 0 is written in the middle of 1 changes"), "{why}");
    let mut set = HeadObjectSet::new(set());
    set.begin_change();
    let why = broken(|| set.quiesce());
    assert!(why.contains("objset 5 is written in the middle of 1 changes"), "{why}");
    set.keep_change();
    let why = broken(|| set.keep_change());
    assert!(why.ends_with("a change ends that did not begin"), "{why}");
}

#[test]
fn what_was_not_written_is_found() {
    let mut set = set();
    let number = set.allocate(&NewObject::new(KIND, 4096)).unwrap();
    set.write(number, 0, &[1; 100]).unwrap();
    let why = broken(|| set.set_least(4096));
    assert!(why.contains("dirty bytes are counted otherwise"), "{why}");
    let syncing = set.into_syncing();
    let why = broken(|| syncing.finish());
    assert!(why.ends_with("objset 5: changes are left after it was written"), "{why}");
}

/// A set goes on from what was written of it, and of nothing else.
#[test]
fn what_another_one_wrote_is_found() {
    let nothing = |set: OpenObjectSet| {
        let mut syncing = HeadObjectSet::new(set).quiesce();
        syncing.settle();
        syncing.unwritten_mut().root.changed = false;
        syncing.finish()
    };
    let mut head = HeadObjectSet::new(set());
    let why = broken(|| head.sync_done(nothing(set())));
    assert!(why.ends_with("objset 5: what was never quiesced was written"), "{why}");
    let store = head.synced().store().clone();
    let other = OpenObjectSet::create(store, 6, ObjsetType::Zfs).unwrap();
    drop(head.quiesce());
    let why = broken(|| head.sync_done(nothing(other)));
    assert!(why.ends_with("objset 5 goes on from what was written of 6"), "{why}");
}

#[test]
fn two_groups_at_once_are_of_no_use() {
    let mut set = HeadObjectSet::new(set());
    let (mut first, mut second) = (set.quiesce(), set.quiesce());
    assert!(matches!(second.sync(9, &Never), Err(WriteError::Failed)));
    assert!(first.sync(9, &Never).is_err() && set.usable().is_err());
}
