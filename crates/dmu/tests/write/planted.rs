//! A sink that gives back the pointer of another block.

use cenote_dmu::write::{BlockSink, NewBlock, NewObject, OpenObjectSet, Result};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::{DmuType, ObjsetType};
use cenote_format::invariant::{caught, is_broken};
use cenote_testsink::MemSink;

/// A sink that is a group behind.
struct Stale<'a>(&'a MemSink);

impl BlockSink for Stale<'_> {
    fn write_blocks(&self, txg: u64, blocks: Vec<NewBlock>) -> Vec<Result<BlockPointer>> {
        self.0.write_blocks(txg - 1, blocks)
    }
}

#[test]
fn a_stale_pointer_is_found() {
    let sink = MemSink::new(16 << 20);
    let mut set = OpenObjectSet::create(sink.store.clone(), 5, ObjsetType::Zfs).unwrap();
    let new = NewObject::new(DmuType::PLAIN_FILE_CONTENTS, 4096);
    let number = set.allocate(&new).unwrap();
    set.write(number, 0, &[7; 4096]).unwrap();
    let mut set = set.into_syncing();
    let why = caught(|| set.sync(9, &Stale(&sink))).map(drop).unwrap_err();
    let what = "objset 5: group 9 is given a block that was born in 8";
    assert!(is_broken(&why) && why.contains(what), "{why}");
    // What it has in memory is worth nothing.
    assert!(set.sync(10, &sink).is_err());
}
