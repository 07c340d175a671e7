//! What is read ahead, and what becomes of it.

use std::time::{Duration, Instant};

use cenote_dmu::ObjectSet;
use cenote_dmu::readahead::ReadAhead;
use cenote_dmu::write::{NewObject, OpenObjectSet};
use cenote_format::dmu::{DmuType, ObjsetType};

use cenote_testsink::MemSink;

const BLOCK: usize = 128 << 10;
/// Blocks that are read ahead when the first bytes of a file are read.
const AHEAD: usize = 5;

#[test]
fn what_was_read_for_one_who_keeps_it_leaves_the_lists_of_what_is_used() {
    let sink = MemSink::new(32 << 20);
    let mut os = OpenObjectSet::create(sink.store.clone(), 7, ObjsetType::Zfs).unwrap();
    let n = os.allocate(&NewObject::new(DmuType::PLAIN_FILE_CONTENTS, BLOCK as u64)).unwrap();
    let data: Vec<u8> = (0..20 * BLOCK).map(|i| (i / 3000 + 1) as u8).collect();
    os.write(n, 0, &data).unwrap();
    let root = sink.write_new(os, 5).0.root;
    let set = ObjectSet::open(sink.store.clone(), 7, root).unwrap();
    for keeps in [true, false] {
        sink.store.drop_caches();
        let object = set.object(n).unwrap();
        let mut got = vec![0; AHEAD * BLOCK];
        // All metadata is in the caches from here on.
        object.read(19 * BLOCK as u64, &mut got[..BLOCK]).unwrap();
        let stats = || sink.store.stats().arc;
        let read_ahead = (AHEAD * BLOCK) as u64;
        let first = stats();
        ReadAhead::new().before_read(0, 4096, keeps, |_, _| Some(object.clone()));
        let start = Instant::now();
        while stats().size < first.size + read_ahead {
            assert!(start.elapsed() < Duration::from_secs(20), "nothing was read ahead");
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = stats();
        for _ in 0..3 {
            object.read(0, &mut got).unwrap();
            assert!(got == data[..got.len()]);
        }
        let after = stats();
        assert_eq!((after.misses, after.size), (before.misses, first.size + read_ahead));
        let used = (after.mru_size + after.mfu_size) - (first.mru_size + first.mfu_size);
        assert_eq!(used, if keeps { 0 } else { read_ahead });
    }
}
