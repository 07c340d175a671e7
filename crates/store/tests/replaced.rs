//! Trees of vdevs are replaced while they are read: what is under way ends well, and then the old
//! tree and the devices that only it had are gone.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cenote_format::LABEL_START;
use cenote_store::Store;
use cenote_vdev::{VdevTree, open_device};
use common::{BIRTH, Bp, SIZE, at, config, pattern};

/// Where the block is.
const PLACE: u64 = 8192;
/// Trees after the first one.
const REPLACED: usize = 40;

/// A tree of one new file, in which is a block.
fn tree(path: &Path, block: &[u8]) -> Arc<VdevTree> {
    let file = File::create(path).unwrap();
    file.set_len(LABEL_START + SIZE).unwrap();
    file.write_all_at(block, LABEL_START + PLACE).unwrap();
    drop(file);
    let mut open = |_: u64, _: &_| Some(open_device(path).unwrap());
    VdevTree::build(&config(&[9]), &mut open).unwrap()
}

/// How many descriptors of this process lead into a directory.
fn descriptors(dir: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let leads = |to: std::path::PathBuf| to.starts_with(dir);
    all.filter(|fd| fd.as_ref().is_ok_and(|fd| fd.path().read_link().is_ok_and(leads))).count()
}

/// Has threads stop, also where a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn replaced_trees_are_let_go_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let block = pattern(1, 8192);
    let bp = Bp::of(&block).at(0, PLACE).make();
    let first = tree(&dir.path().join("first"), &block);
    let each = descriptors(dir.path());
    let mut old: Vec<Weak<VdevTree>> = vec![Arc::downgrade(&first)];
    let store = Store::new(first, 1 << 20);
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    assert_eq!(*store.read(&bp, at(0)).unwrap().data.bytes(), block);
                    store.drop_caches();
                    reads.fetch_add(1, Relaxed);
                }
            });
        }
        let stopping = Stop(&stop);
        let under_way = store.vdevs();
        for i in 0..REPLACED {
            let now = tree(&dir.path().join(i.to_string()), &block);
            old.push(Arc::downgrade(&now));
            store.replace_vdevs(now);
            let before = reads.load(Relaxed);
            wait_until("reads go on", || reads.load(Relaxed) > before + 1);
        }
        // All but the newest, and the first one, which is in use and reads as before.
        wait_until("trees between are gone", || {
            old[1..REPLACED].iter().all(|tree| tree.strong_count() == 0)
        });
        wait_until("and their devices", || descriptors(dir.path()) == 2 * each);
        let read = under_way.read(0, PLACE, 8192, BIRTH, &|read| *read.bytes() == block);
        assert!(read.is_ok());
        drop(under_way);
        wait_until("the first tree is gone", || old[0].strong_count() == 0);
        wait_until("and its device", || descriptors(dir.path()) == each);
        drop(stopping);
    });
    assert!(store.errors().is_empty());
    drop(store);
    wait_until("the last device is closed", || descriptors(dir.path()) == 0);
}
