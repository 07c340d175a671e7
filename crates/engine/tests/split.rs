//! Sides of mirrors become a pool of their own; OpenZFS's `zdb` finds nothing wrong with either pool, and wherever the power goes
//! meanwhile both hold together. Where `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::create::{OpenDevices, Opened, SystemDevices};
use cenote_engine::{Engine, EngineError, EngineOptions, Split, SplitOff};
use cenote_format::abd::Abd;
use cenote_pool::props::PropChange;
use cenote_pool::{Candidate, ImportOptions, discover};
use cenote_vdev::{Aux, Device, ReadReq, VdevState, WriteReq};
use cenote_zpl::{FileSystem, Settings};
use parking_lot::Mutex;
use rig::joining::{device, leaf};
use rig::{Rig, TIMEOUT, account, check, fill, open};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

const LEN: usize = 200_000;

/// Parts of devices that are written as a whole, or not: a config is one, a ring is one.
const PART: u64 = 128 << 10;

/// What happens once the first label of a pool that is split off is written.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    Nothing,
    /// The power goes after so many writes.
    Ends(i64),
    /// From the second device on so many writes fail.
    Fails(i64),
    /// Such writes take a while.
    Slow,
}

/// Devices that all lose power after so many more writes, and with it some of what was not flushed.
#[derive(Clone)]
struct Supply(Arc<State>);

struct State {
    rest: AtomicI64,
    failing: AtomicI64,
    then: Mutex<Then>,
    met: AtomicBool,
    /// Decides what is lost; 0: nothing.
    chance: AtomicU64,
}

impl Default for Supply {
    fn default() -> Supply {
        Supply(Arc::new(State {
            rest: AtomicI64::new(i64::MAX),
            failing: AtomicI64::new(0),
            then: Mutex::new(Then::Nothing),
            met: AtomicBool::new(false),
            chance: AtomicU64::new(0),
        }))
    }
}

impl Supply {
    fn last_for(&self, writes: i64) {
        self.0.rest.store(writes, Ordering::SeqCst);
    }

    fn at_labels(&self, then: Then) {
        *self.0.then.lock() = then;
    }

    fn rest(&self) -> i64 {
        self.0.rest.load(Ordering::SeqCst)
    }

    /// A write that says that a device is split off.
    fn meets(&self, path: &Path) {
        let first = !self.0.met.swap(true, Ordering::SeqCst);
        let then = *self.0.then.lock();
        match then {
            Then::Ends(writes) if first => self.last_for(writes),
            Then::Slow => std::thread::sleep(Duration::from_millis(400)),
            Then::Fails(writes) if path.ends_with("e") => {
                self.0.failing.store(writes, Ordering::SeqCst);
                self.at_labels(Then::Nothing);
            }
            _ => {}
        }
    }

    fn is_lost(&self, at: u64, path: &Path) -> bool {
        let chance = self.0.chance.load(Ordering::SeqCst);
        let name = path.as_os_str().len() as u64
            + path.to_string_lossy().bytes().last().map_or(0, u64::from);
        let mixed = (chance ^ (at / PART) << 8 ^ name << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        chance != 0 && mixed >> 60 & 1 == 1
    }
}

struct Powered {
    inner: Arc<dyn Device>,
    supply: Supply,
    /// What was where something was written that is not flushed.
    before: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl Powered {
    fn write(&self, req: &mut WriteReq) -> bool {
        let says = b"split_guid";
        let bytes = req.data.bytes().to_vec();
        if bytes.windows(says.len()).any(|part| part == says) {
            self.supply.meets(self.path());
        }
        if self.supply.0.failing.fetch_sub(1, Ordering::SeqCst) > 0 {
            return false;
        }
        if self.supply.0.rest.fetch_sub(1, Ordering::SeqCst) <= 0 {
            self.lose();
            return false;
        }
        if self.supply.0.chance.load(Ordering::SeqCst) != 0 {
            let mut read = [ReadReq::new(req.offset, bytes.len())];
            self.inner.read_batch(&mut read);
            let [read] = read;
            let was = read.take().unwrap().to_vec();
            let mut before = self.before.lock();
            let mut at = req.offset;
            while at < req.offset + bytes.len() as u64 {
                let end = (at / PART + 1) * PART;
                let end = end.min(req.offset + bytes.len() as u64);
                let part = &was[(at - req.offset) as usize..(end - req.offset) as usize];
                before.entry(at).or_insert_with(|| part.to_vec());
                at = end;
            }
        }
        self.inner.write_batch(std::slice::from_mut(req));
        true
    }

    /// Loses some of what was not flushed.
    fn lose(&self) {
        for (at, was) in std::mem::take(&mut *self.before.lock()) {
            if self.supply.is_lost(at, self.path()) {
                let mut back = [WriteReq::new(at, Abd::from_vec(was))];
                self.inner.write_batch(&mut back);
            }
        }
    }
}

impl Drop for Powered {
    fn drop(&mut self) {
        if self.supply.rest() <= 0 {
            self.lose();
        }
    }
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
            if !self.write(req) {
                req.result = Some(Err(io::Error::other("the power is gone")));
            }
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self.supply.rest() > 0 {
            true => {
                self.before.lock().clear();
                self.inner.flush()
            }
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
        let before = Mutex::default();
        Ok(Arc::new(Powered { inner, supply: self.clone(), before }))
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
    cut(|supply| supply.last_for(writes))
}

/// Splits a pool after its devices were prepared. Returns whether it was done.
fn cut(prepare: impl Fn(&Supply)) -> (Rig, bool) {
    cut_of("mirror a b mirror d e", prepare)
}

/// The same, of a pool of these vdevs.
fn cut_of(line: &str, prepare: impl Fn(&Supply)) -> (Rig, bool) {
    let rig = Rig::new(96 << 20);
    let supply = Supply::default();
    let options = EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_on(line, 12, options, &supply);
    let fs = open(&engine);
    fill(&fs, 0..3, LEN);
    drop(fs);
    engine.sync().unwrap();
    prepare(&supply);
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

/// Both pools of what a split that was cut short left hold what they are to hold. Returns whether there is a new one.
fn both(rig: &Rig, done: bool, when: &str) -> bool {
    let tank = import(rig, "tank").unwrap_or_else(|| panic!("{when}"));
    let half = import(rig, "half");
    assert!(half.is_some() || !done, "{when}");
    let mut leaves = tank.pool().store().vdevs().leaves();
    if half.is_none() {
        // No device leaves for a pool that is not there.
        assert_eq!(leaves.len(), 4, "{when}: {leaves:?}");
        leaves.retain(|leaf| leaf.state() == VdevState::CantOpen(Aux::SplitPool));
        for side in leaves {
            tank.detach(side.guid(), None).unwrap();
        }
        leaves = tank.pool().store().vdevs().leaves();
    }
    // It has let go of what left, and others can have that.
    assert!(leaves.iter().all(|leaf| leaf.state().readable()), "{when}: {leaves:?}");
    drop(leaves);
    verify(tank, 3);
    half.map(|half| verify(half, 3)).is_some()
}

/// What was not flushed when the power went may be on disk or not, in any order.
#[test]
fn labels_that_are_on_disk_in_part_leave_both_pools() {
    let (mut halves, mut without) = (0, 0);
    for writes in 1..=17 {
        for chance in [writes as u64 * 2 + 1, 0xace1 + writes as u64] {
            let (rig, done) = cut(|supply| {
                supply.0.chance.store(chance, Ordering::SeqCst);
                supply.at_labels(Then::Ends(writes));
            });
            assert!(!done);
            let half = both(&rig, done, &format!("{writes} writes of labels, {chance}"));
            let count = if half { &mut halves } else { &mut without };
            *count += 1;
            if *count == 1 {
                cenote_testpools::judge(rig.path(), "tank");
            }
        }
    }
    assert!(halves > 1 && without > 4, "{halves} {without}");
}

/// A side that a split which was cut short has written to is no device that failed: no spare steps in for it.
#[test]
fn no_spare_steps_in_for_a_side_that_was_split_off() {
    let mut left = 0;
    for writes in 5..=9 {
        let line = "mirror a b mirror d e spare s";
        let (rig, _) = cut_of(line, |supply| supply.at_labels(Then::Ends(writes)));
        let tank = import(&rig, "tank").unwrap();
        let leaves = || tank.pool().store().vdevs().leaves();
        let is_left =
            |leaf: &Arc<cenote_vdev::Vdev>| leaf.state() == VdevState::CantOpen(Aux::SplitPool);
        left += usize::from(leaves().iter().any(is_left));
        for _ in 0..10 {
            tank.sync_task(|_| Ok(())).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        let spare = rig.file("s");
        assert!(leaves().iter().all(|leaf| leaf.path() != Some(&spare)), "{:?}", leaves());
        assert_eq!(tank.pool().spares().len(), 1);
        verify(tank, 3);
    }
    assert!(left > 0);
}

/// Sides whose labels could not be written, nor put back, are this pool's again.
#[test]
fn labels_that_cannot_be_put_back_are_written_anew() {
    let rig = Rig::new(96 << 20);
    let supply = Supply::default();
    let options = EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_on("mirror a b mirror d e", 12, options, &supply);
    fill(&open(&engine), 0..3, LEN);
    engine.sync().unwrap();
    // The configs of the second one, its rings, those of the first one.
    supply.at_labels(Then::Fails(12));
    let refused = why(split(&rig, &engine, &["b", "e"]));
    assert!(refused.contains("cannot be written"), "{refused}");
    assert!(supply.0.failing.load(Ordering::SeqCst) <= 0);
    drop(engine);
    assert!(found(&rig, "half").is_none());
    let tank = import(&rig, "tank").unwrap();
    let leaves = tank.pool().store().vdevs().leaves();
    assert!(leaves.len() == 4 && leaves.iter().all(|leaf| leaf.state() == VdevState::Healthy));
    drop(leaves);
    verify(tank, 3);
    rig.judge();
}

/// No heartbeat of the old pool lands in labels of the new one.
#[test]
fn heartbeats_stay_with_the_old_pool() {
    for (name, value) in [("zfs_multihost_interval", 100), ("zfs_multihost_fail_intervals", 100)] {
        cenote_engine::tunables::find(name).unwrap().set(value).unwrap();
    }
    let rig = Rig::new(96 << 20);
    let supply = Supply::default();
    let options = EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_on("mirror a b mirror d e", 12, options, &supply);
    fill(&open(&engine), 0..3, LEN);
    engine.set_properties(vec![PropChange::Number("multihost", 1)]).unwrap();
    engine.sync().unwrap();
    supply.at_labels(Then::Slow);
    split(&rig, &engine, &["b", "e"]).unwrap();
    let half = found(&rig, "half").unwrap();
    let of_half = cenote_pool::import::uberblocks(&half);
    let all = half.devices.iter().flat_map(|device| &device.uberblocks);
    assert!(all.clone().count() == 8 && all.clone().all(|(.., ub)| *ub == of_half[0]));
    engine.set_properties(vec![PropChange::Number("multihost", 0)]).unwrap();
    verify(engine, 3);
    rig.judge();
    let options = ImportOptions { force: true, hostid: Some(1), ..ImportOptions::default() };
    let half = Engine::import(&half, &options, EngineOptions::default()).unwrap();
    half.set_properties(vec![PropChange::Number("multihost", 0)]).unwrap();
    verify(half, 3);
    cenote_testpools::judge(rig.path(), "half");
}

#[test]
fn both_pools_hold_together_wherever_the_power_goes() {
    let (mut writes, mut halves, mut judged) = (0, 0, 0);
    loop {
        let (rig, done) = cut_after(writes);
        let half = both(&rig, done, &format!("cut after {writes}"));
        if half {
            halves += 1;
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
