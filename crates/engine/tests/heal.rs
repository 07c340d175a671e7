//! Devices give wrong bytes: the device's error is counted, the right bytes are put there, and no device is blamed
//! for blocks that are gone. OpenZFS's `zdb` agrees; where it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::Engine;
use cenote_pool::status::Reason;
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_store::{Access, Bookmark, Store};
use rig::{Rig, bytes, check, fill, open};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const SIZE: u64 = 64 << 20;
const LEN: usize = 300_000;
const FILES: u64 = 8;
/// Where blocks begin on a device, and what is behind them.
const START: u64 = 4 << 20;
const END: u64 = 512 << 10;

/// Everything on a device but its labels reads wrong from now on.
fn spoil(path: &Path) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut bytes = vec![0; (SIZE - START - END) as usize];
    file.read_exact_at(&mut bytes, START).unwrap();
    bytes.iter_mut().for_each(|b| *b ^= 0xa5);
    file.write_all_at(&bytes, START).unwrap();
}

fn made(line: &str, ashift: u64) -> Rig {
    let rig = Rig::new(SIZE);
    let engine = rig.create(line, ashift);
    fill(&open(&engine), 0..FILES, LEN);
    engine.export(false).unwrap();
    rig
}

/// Of all leaves: checksum errors, bytes healed.
fn counts(pool: &Pool) -> Vec<(u64, u64)> {
    pool.store().vdevs().leaves().iter().map(|l| (l.errors().2, l.self_healed())).collect()
}

fn read_all(engine: &Engine) {
    engine.pool().store().drop_caches();
    check(&open(engine), 0..FILES, LEN);
}

/// A device of a pool is wrong all over, and what is read is right on it then. Later another one is wrong,
/// while the pool is in use.
fn heals(line: &str, ashift: u64, first: &str, second: &str) {
    let rig = made(line, ashift);
    spoil(&rig.file(first));
    let engine = rig.import();
    read_all(&engine);
    let pool = engine.pool();
    let bad = |pool: &Pool| counts(pool).into_iter().filter(|c| *c != (0, 0)).collect::<Vec<_>>();
    let before = bad(&pool);
    assert!(matches!(before[..], [(errors, healed)] if errors > 0 && healed >= LEN as u64 / 4));
    let status = pool.status().unwrap();
    assert_eq!(status.reason, Reason::FailingDevice { mended: true });
    assert!(status.texts.status.unwrap().contains("attempt was made to correct"));
    assert!(pool.store().errors().is_empty());
    // Copies are read by turns, so not all were met the first time.
    let healed = || counts(&pool).iter().map(|c| c.1).sum::<u64>();
    let whole = (0..30).any(|_| {
        let before = healed();
        read_all(&engine);
        healed() == before
    });
    assert!(whole);
    engine.export(false).unwrap();
    drop((pool, engine));
    rig.judge_blocks();
    let engine = rig.import();
    spoil(&rig.file(second));
    (0..4).for_each(|_| read_all(&engine));
    assert!(engine.pool().store().errors().is_empty());
    engine.export(false).unwrap();
}

#[test]
fn a_mirror_mends_itself() {
    heals("mirror a b", 9, "a", "a");
}

#[test]
fn raidz_mends_itself() {
    heals("raidz1 a b c", 12, "b", "b");
    heals("raidz2 a b c d", 9, "a", "d");
}

#[test]
fn a_ditto_copy_mends_another() {
    let rig = made("a", 12);
    let found = discover(&[rig.path().to_path_buf()]);
    let options = ImportOptions { readonly: true, ..ImportOptions::default() };
    let pool = Pool::import(&found[0], &options).unwrap();
    let root = pool.uberblock().rootbp;
    drop(pool);
    let (dva, len) = (root.dva(0).unwrap(), root.psize() as usize);
    assert!(root.dva(1).is_some());
    let file = std::fs::OpenOptions::new().read(true).write(true).open(rig.file("a")).unwrap();
    let (mut right, mut now) = (vec![0; len], vec![0; len]);
    file.read_exact_at(&mut right, START + dva.offset).unwrap();
    let wrong: Vec<u8> = right.iter().map(|b| !b).collect();
    file.write_all_at(&wrong, START + dva.offset).unwrap();
    // Nothing is written to a pool that is read only.
    let pool = Pool::import(&found[0], &options).unwrap();
    assert_eq!(pool.status().unwrap().reason, Reason::FailingDevice { mended: false });
    assert!(!pool.status().unwrap().texts.status.unwrap().contains("attempt"));
    drop(pool);
    file.read_exact_at(&mut now, START + dva.offset).unwrap();
    assert!(now == wrong);
    let engine = rig.import();
    assert!(matches!(counts(&engine.pool())[..], [(1.., healed)] if healed >= len as u64));
    engine.sync().unwrap();
    file.read_exact_at(&mut now, START + dva.offset).unwrap();
    assert!(now == right);
    engine.export(false).unwrap();
    rig.judge_blocks();
}

/// A pool that is read only says which device was wrong, and is left as it is.
#[test]
fn nothing_is_mended_read_only() {
    let rig = made("mirror a b", 9);
    spoil(&rig.file("a"));
    let before = std::fs::read(rig.file("a")).unwrap();
    let found = discover(&[rig.path().to_path_buf()]);
    let options = ImportOptions { readonly: true, ..ImportOptions::default() };
    let pool = Pool::import(&found[0], &options).unwrap();
    assert!(counts(&pool).iter().any(|c| c.0 > 0) && counts(&pool).iter().all(|c| c.1 == 0));
    assert_eq!(pool.status().unwrap().reason, Reason::FailingDevice { mended: false });
    assert!(std::fs::read(rig.file("a")).unwrap() == before);
}

/// The pointer to a block that was freed and overwritten: read ahead, or by an attempt that is given up,
/// it is counted against no device.
#[test]
fn stale_pointers_blame_nobody() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("mirror a b", 9);
    let store = engine.pool().store().clone();
    let fs = open(&engine);
    let mut gone = false;
    fill(&fs, 0..1, 1 << 20);
    engine.sync().unwrap();
    let ino = fs.lookup(fs.root(), b"file 0").unwrap();
    let set = engine.live(engine.pool().dsl().root().unwrap().ds_obj).unwrap();
    let stale = set.base().object(ino).unwrap().block_pointer(0, 0).unwrap();
    let at = Bookmark { objset: set.id(), object: ino, level: 0, blkid: 0 };
    for i in 0..300 {
        fs.write(ino, 0, &bytes(i + 1, 1 << 20), false).unwrap();
        engine.sync().unwrap();
        store.drop_caches();
        let (read, notes) = Store::attempt(|| store.read(&stale, at));
        gone = read.is_err() && !notes.is_empty();
        if gone {
            break;
        }
    }
    assert!(gone, "the block was never overwritten");
    let blameless = || {
        assert!(counts(&engine.pool()).iter().all(|c| *c == (0, 0)));
        assert_eq!(store.errors(), []);
    };
    blameless();
    let reads = || engine.pool().store().vdevs().root().io_stats().0;
    let before = reads();
    store.prefetch(vec![(stale, at)], Access::Demand);
    let begun = Instant::now();
    while reads() == before && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(reads() > before);
    std::thread::sleep(Duration::from_millis(100));
    blameless();
    // A caller that insists on it is told, and nothing is overwritten with what was there.
    assert!(store.read(&stale, at).is_err());
    assert_eq!(store.errors(), [at]);
    assert!(counts(&engine.pool()).iter().all(|c| c.1 == 0));
    drop((fs, set));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}
