//! Multi-modifier protection: what other hosts see of a pool that this one has, this program's and OpenZFS's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::tunables::SCAN_SUSPEND_PROGRESS;
use cenote_engine::{Engine, EngineOptions, tunables};
use cenote_format::label::Uberblock;
use cenote_pool::error::ImportError;
use cenote_pool::props::PropChange;
use cenote_pool::{ImportOptions, discover};
use rig::{Faulty, Rig, fill, open};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SIZE: u64 = 128 << 20;
/// Between two heartbeats of a device.
const INTERVAL: Duration = Duration::from_millis(100);
/// Intervals without any after which a host gives up; a busy machine is no reason.
const FAILS: u16 = 60;

fn rig() -> Rig {
    let most = u64::from(FAILS);
    for (name, value) in [("zfs_multihost_interval", 100), ("zfs_multihost_fail_intervals", most)] {
        tunables::find(name).unwrap().set(value).unwrap();
    }
    Rig::new(SIZE)
}

fn protect(engine: &Engine, on: u64) {
    engine.set_properties(vec![PropChange::Number("multihost", on)]).unwrap();
}

fn import(rig: &Rig, hostid: u32) -> Result<Arc<Engine>, ImportError> {
    let found = discover(&[rig.path().to_path_buf()]);
    let options = ImportOptions { force: true, hostid: Some(hostid), ..ImportOptions::default() };
    Engine::import(&found[0], &options, EngineOptions::default())
}

/// The best uberblock on the devices.
fn best(rig: &Rig) -> Uberblock {
    let found = discover(&[rig.path().to_path_buf()]);
    let all = cenote_pool::import::uberblocks(&found[0]);
    Uberblock::best(&all).unwrap().clone()
}

/// What another host sees of the devices, which this process has for itself: their labels are copied all the time.
struct Elsewhere {
    rig: Arc<Rig>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Elsewhere {
    fn of(rig: &Rig, names: &[&str]) -> Elsewhere {
        let (there, ends) = (Arc::new(Rig::new(SIZE)), Arc::<AtomicBool>::default());
        let mut pairs = Vec::new();
        for name in names {
            let (from, to) = (rig.file(name), there.file(name));
            std::fs::copy(&from, &to).unwrap();
            pairs.push((File::open(from).unwrap(), File::options().write(true).open(to).unwrap()));
        }
        let stops = ends.clone();
        let copies = move || {
            let mut labels = vec![0; 512 << 10];
            while !stops.load(Ordering::SeqCst) {
                for ((from, to), at) in pairs.iter().flat_map(|p| [(p, 0), (p, SIZE - (512 << 10))])
                {
                    from.read_exact_at(&mut labels, at).unwrap();
                    to.write_all_at(&labels, at).unwrap();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        Elsewhere { rig: there, ends, thread: Some(std::thread::spawn(copies)) }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[track_caller]
fn until(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !what() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_pool_in_use_is_imported_by_no_other_host() {
    let rig = rig();
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..3, 10_000);
    engine.sync().unwrap();
    engine.export(false).unwrap();
    drop(engine);
    let engine = import(&rig, 1).unwrap();
    protect(&engine, 1);
    let first = best(&rig);
    until(|| best(&rig).rank() > first.rank());
    let seen = best(&rig);
    assert_eq!((seen.mmp_interval(), seen.mmp_fail_intervals()), (Some(100), Some(FAILS)));
    assert!(seen.mmp_delay >= INTERVAL.as_nanos() as u64 / 2, "{seen:?}");
    assert_eq!((seen.txg, &seen.rootbp), (first.txg, &first.rootbp));

    let elsewhere = Elsewhere::of(&rig, &["a", "b"]);
    let refused = import(&elsewhere.rig, 2).err().unwrap();
    assert!(matches!(refused, ImportError::Active { hostid: 1, .. }), "{refused}");
    assert!(matches!(import(&elsewhere.rig, 0), Err(ImportError::NoHostid(_))));
    drop(elsewhere);
    let script = "import\ndataset tank/theirs\nsync\nexport\n";
    let theirs = cenote_testpools::try_openzfs_as(Some(2), rig.path(), "tank", script);
    // EREMOTEIO.
    assert!(engine.suspended().is_none());
    assert!(theirs.as_ref().is_err_and(|e| e.contains("121")), "{theirs:?}");

    // Groups go on, and none of them takes the place of the heartbeats.
    for i in 3..140 {
        fill(&open(&engine), i..i + 1, 1000);
        engine.sync().unwrap();
    }
    assert!(engine.suspended().is_none());
    drop(engine);

    // The host has crashed: another one waits until it would have given up, and takes the pool.
    let began = Instant::now();
    let engine = import(&rig, 2).unwrap();
    assert!(began.elapsed() >= INTERVAL * 2 * u32::from(FAILS), "{:?}", began.elapsed());
    rig::check(&open(&engine), 0..3, 10_000);
    engine.export(false).unwrap();
    drop(engine);
    assert!(matches!(import(&rig, 0), Err(ImportError::NoHostid(_))));
    cenote_testpools::try_openzfs_as(Some(3), rig.path(), "tank", script).unwrap();
    rig.judge();

    // Without the property nothing is watched any more.
    let engine = import(&rig, 3).unwrap();
    protect(&engine, 0);
    engine.sync().unwrap();
    let quiet = best(&rig);
    assert_eq!((quiet.mmp_delay, quiet.mmp_config), (0, 0));
    std::thread::sleep(INTERVAL * 3);
    assert_eq!(best(&rig).rank(), quiet.rank());
    drop(engine);
    import(&rig, 4).unwrap().export(false).unwrap();
    rig.judge_blocks();
}

#[test]
fn without_heartbeats_the_pool_is_suspended() {
    let (rig, faulty) = (rig(), Faulty::default());
    let options = EngineOptions { txg_timeout: Some(rig::TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_on("mirror a b", 12, options, &faulty);
    fill(&open(&engine), 0..1, 10_000);
    protect(&engine, 1);

    // A device that hangs holds up its own heartbeats alone.
    let (a, b) = (faulty.device(&rig, "a"), faulty.device(&rig, "b"));
    a.set_hung(true);
    std::thread::sleep(INTERVAL * u32::from(FAILS + 10));
    assert!(engine.suspended().is_none());
    // Then no device takes any.
    b.fail_writes(0..u64::MAX);
    until(|| engine.suspended().is_some());
    let why = engine.suspended().unwrap();
    assert!(why.contains("multihost writes have not succeeded in"), "{why}");
    a.set_hung(false);
    b.repair();
    let last = best(&rig).txg;
    assert!(engine.set_properties(vec![PropChange::Number("autoexpand", 1)]).is_err());
    std::thread::sleep(INTERVAL * 3);
    assert_eq!(best(&rig).txg, last);
    drop((engine, a, b, faulty));
    import(&rig, 2).unwrap().export(false).unwrap();
    rig.judge_blocks();
}

/// What hung for so long that another host may have taken the pool is stable for no thread that waits for it.
#[test]
fn a_commit_that_comes_too_late_is_stable_for_no_thread() {
    let (rig, faulty) = (rig(), Faulty::default());
    let options = EngineOptions { txg_timeout: Some(rig::TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_on("a", 12, options, &faulty);
    let (fs, head) = (open(&engine), engine.pool().dsl().root().unwrap().ds_obj);
    protect(&engine, 1);
    fill(&fs, 0..1, 10_000);
    engine.commit(head).unwrap();
    fill(&fs, 1..3, 10_000);
    let a = faulty.device(&rig, "a");
    a.set_hung(true);
    std::thread::scope(|scope| {
        let commits = [(); 3].map(|()| scope.spawn(|| engine.commit(head)));
        until(|| engine.suspended().is_some());
        a.set_hung(false);
        for commit in commits {
            assert!(commit.join().unwrap().is_err());
        }
    });
    assert!(engine.commit(head).is_err());
    drop((fs, engine, a, faulty));
    import(&rig, 2).unwrap().export(false).unwrap();
    rig.judge_blocks();
}

/// A device that has lost some of the last group before a crash is not taken for whole since it has a heartbeat of it.
#[test]
fn heartbeats_hide_no_lost_group() {
    let (rig, faulty) = (rig(), Faulty::default());
    let options = EngineOptions { txg_timeout: Some(rig::TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_on("mirror a b", 12, options, &faulty);
    protect(&engine, 1);
    fill(&open(&engine), 0..1, 10_000);
    engine.sync().unwrap();
    fill(&open(&engine), 1..2, 10_000);
    let a = faulty.device(&rig, "a");
    a.fail_flushes(1);
    engine.sync().unwrap();
    let leaf = |engine: &Engine| engine.pool().store().vdevs().leaves()[0].clone();
    assert!(leaf(&engine).is_behind());
    // Each leaf would get some.
    std::thread::sleep(INTERVAL * 20);
    let crashed = rig.copy();
    drop(a);
    SCAN_SUSPEND_PROGRESS.set(1).unwrap();
    let other = import(&crashed, 2).unwrap();
    assert!(leaf(&other).is_behind());
    SCAN_SUSPEND_PROGRESS.set(0).unwrap();
    until(|| !leaf(&other).is_behind());
    other.export(false).unwrap();
    drop(other);
    crashed.judge_blocks();
    engine.export(false).unwrap();
}
