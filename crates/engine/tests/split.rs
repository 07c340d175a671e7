//! Sides of mirrors become a pool of their own; OpenZFS's `zdb` finds nothing wrong with either pool, and wherever the power goes
//! meanwhile both hold together. Where `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::create::{OpenDevices, Opened, SystemDevices};
use cenote_engine::{Engine, EngineError, EngineOptions, Split, SplitOff};
use cenote_pool::{Candidate, ImportOptions, discover};
use cenote_vdev::{Device, ReadReq, WriteReq};
use cenote_zpl::{FileSystem, Settings};
use rig::joining::{device, leaf};
use rig::{Rig, TIMEOUT, account, check, fill, open};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

const LEN: usize = 200_000;

/// Devices that all lose power after so many more writes.
#[derive(Clone, Default)]
struct Supply(Arc<AtomicI64>);

impl Supply {
    fn last_for(&self, writes: i64) {
        self.0.store(writes, Ordering::SeqCst);
    }

    fn rest(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

struct Powered {
    inner: Arc<dyn Device>,
    supply: Supply,
}

impl Device for Powered {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        self.inner.read_batch(reqs);
    }

    fn writable(&self) -> bool {
        true
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        for req in reqs {
            match self.supply.0.fetch_sub(1, Ordering::SeqCst) > 0 {
                true => self.inner.write_batch(std::slice::from_mut(req)),
                false => req.result = Some(Err(io::Error::other("the power is gone"))),
            }
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self.supply.rest() > 0 {
            true => self.inner.flush(),
            false => Err(io::Error::other("the power is gone")),
        }
    }
}

impl OpenDevices for Supply {
    fn find(&self, name: &Path) -> io::Result<(PathBuf, Opened)> {
        SystemDevices.find(name)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        SystemDevices.open(path)
    }

    fn open_rw(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        let inner = SystemDevices.open_rw(path)?;
        Ok(Arc::new(Powered { inner, supply: self.clone() }))
    }
}

fn split(rig: &Rig, engine: &Engine, sides: &[&str]) -> Result<SplitOff, EngineError> {
    let sides = sides.iter().map(|name| leaf(rig, engine, name)).collect();
    engine.split(&Split { name: "half".into(), sides })
}

fn found(rig: &Rig, name: &str) -> Option<Candidate> {
    discover(&[rig.path().to_path_buf()]).into_iter().find(|found| found.name == name)
}

/// Imports a pool, where all that it needs is there.
fn import(rig: &Rig, name: &str) -> Option<Arc<Engine>> {
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    Engine::import(&found(rig, name)?, &options, EngineOptions::default()).ok()
}

/// What the pool has is whole; it is exported.
fn verify(engine: Arc<Engine>, files: u64) {
    check(&open(&engine), 0..files, LEN);
    account(&engine.pool());
    engine.export(false).unwrap();
}

fn why(done: Result<SplitOff, EngineError>) -> String {
    done.unwrap_err().to_string()
}

#[test]
fn sides_become_a_pool_of_their_own() {
    let rig = Rig::new(192 << 20);
    // OpenZFS 2.1 does not know of this one.
    let without = [("zilsaxattr".to_string(), false)];
    let line = "mirror a b mirror d e f log c special mirror g h spare s cache k";
    let engine = rig.create_choosing(line, 12, &without);
    let fs = open(&engine);
    fill(&fs, 0..6, LEN);
    // What is in an intent log is in both pools.
    let root = engine.pool().dsl().root().unwrap();
    engine.commit(root.ds_obj).unwrap();
    fill(&fs, 6..7, LEN);
    engine.commit(root.ds_obj).unwrap();
    let off = split(&rig, &engine, &["b", "e", "h"]).unwrap();
    assert_eq!(off.paths.len(), 3);
    fill(&fs, 7..9, LEN);
    check(&fs, 0..9, LEN);
    drop(fs);
    let half = import(&rig, "half").unwrap();
    assert_eq!(half.pool().guid(), off.guid);
    assert!(half.pool().spares().is_empty() && half.pool().caches().is_empty());
    assert_eq!((engine.pool().spares().len(), engine.pool().caches().len()), (1, 1));
    let kinds = |engine: &Engine| {
        let tree = engine.pool().store().vdevs();
        tree.root().children().iter().map(|top| top.kind().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&half), ["file", "file", "hole", "file"]);
    assert_eq!(kinds(&engine), ["file", "mirror", "file", "file"]);
    let leaves = half.pool().store().vdevs().leaves();
    assert!(leaves.iter().all(|leaf| !leaf.is_behind()));
    drop(leaves);
    verify(half, 7);
    verify(engine, 9);
    rig.judge();
    for list in ["-bcc", "-d", "-mm", "-C"] {
        cenote_testpools::zdb(rig.path(), "half", &[list]);
    }
    // It is written to as any other, and grows a mirror again.
    let half = import(&rig, "half").unwrap();
    let name = FileSystem::open_live(
        half.live(half.pool().dsl().root().unwrap().ds_obj).unwrap(),
        Settings::default(),
    )
    .unwrap();
    fill(&name, 7..8, LEN);
    drop(name);
    let new = device(&rig, &half, "n", &SystemDevices);
    let beside = leaf(&rig, &half, "b");
    half.attach(cenote_engine::Attach { beside, new, replaces: false }).unwrap();
    while half.is_scanning() {
        std::thread::sleep(Duration::from_millis(10));
    }
    verify(half, 8);
    cenote_testpools::judge(rig.path(), "half");
    cenote_testpools::openzfs(rig.path(), "half", "import\nscrub\nsync\nexport\n");
    cenote_testpools::judge(rig.path(), "half");
}

#[test]
fn what_cannot_be_split_is_refused() {
    let rig = Rig::new(128 << 20);
    let engine = rig.create("mirror a b mirror d e", 12);
    assert_eq!(why(split(&rig, &engine, &["a"])), "Invalid argument");
    assert_eq!(why(split(&rig, &engine, &["a", "b", "d"])), "Invalid argument");
    let gone = leaf(&rig, &engine, "b");
    engine.take_out(gone, cenote_engine::TakeOut::Offline).unwrap();
    assert_eq!(why(split(&rig, &engine, &["b", "d"])), "Invalid argument");
    // Of a mirror the last side stays.
    assert_eq!(why(split(&rig, &engine, &["a", "d"])), "pool is busy");
    engine.checkpoint().unwrap();
    assert_eq!(why(split(&rig, &engine, &["b", "d"])), "checkpoint exists");
    // Nothing of it was done.
    let tree = engine.pool().store().vdevs();
    assert!(tree.leaves().iter().all(|leaf| !leaf.is_leaving()));
    drop(tree);
    engine.export(false).unwrap();
    assert!(found(&rig, "half").is_none());
    cenote_testpools::judge(rig.path(), "tank");
}

/// Splits a pool whose devices lose power after so many writes of that. Returns whether it was done.
fn cut_after(writes: i64) -> (Rig, bool) {
    let rig = Rig::new(96 << 20);
    let supply = Supply::default();
    supply.last_for(i64::MAX);
    let options = EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_on("mirror a b mirror d e", 12, options, &supply);
    let fs = open(&engine);
    fill(&fs, 0..3, LEN);
    drop(fs);
    engine.sync().unwrap();
    supply.last_for(writes);
    let done = std::thread::scope(|scope| {
        let splits = scope.spawn(|| split(&rig, &engine, &["b", "e"]).is_ok());
        while !splits.is_finished() {
            if engine.suspended().is_some() {
                engine.abandon();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        splits.join().unwrap()
    });
    drop(engine);
    (rig, done)
}

#[test]
fn both_pools_hold_together_wherever_the_power_goes() {
    let (mut writes, mut halves, mut judged) = (0, 0, 0);
    loop {
        let (rig, done) = cut_after(writes);
        let tank = import(&rig, "tank").unwrap_or_else(|| panic!("cut after {writes}"));
        // It has let go of what left, and others can have that.
        let leaves = tank.pool().store().vdevs().leaves();
        assert!(
            leaves.iter().all(|leaf| leaf.state().readable()),
            "cut after {writes}: {leaves:?}"
        );
        drop(leaves);
        let half = import(&rig, "half");
        assert!(half.is_some() || !done, "cut after {writes}");
        verify(tank, 3);
        if let Some(half) = half {
            halves += 1;
            verify(half, 3);
            if judged < 3 || done {
                judged += 1;
                cenote_testpools::judge(rig.path(), "half");
                cenote_testpools::judge(rig.path(), "tank");
            }
        }
        if done {
            break;
        }
        writes += 5;
    }
    // The labels of the sides are written before the group that has them leave.
    assert!(halves > 2 && writes > 40, "{halves} of {writes}");
}
