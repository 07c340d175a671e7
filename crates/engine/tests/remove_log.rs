//! Log vdevs leave a pool in use, and OpenZFS judges and imports what is left.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, RemoveError};
use cenote_format::nvlist::NvList;
use cenote_store::alloc::Class;
use rig::{Faulty, Rig, bytes, check, fill, open};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LEN: usize = 200_000;

/// A pool without what OpenZFS 2.1 does not know of intent logs, nor, if so, log space maps.
fn create(rig: &Rig, line: &str, log_spacemap: bool) -> Arc<Engine> {
    let named = [("zilsaxattr".into(), false), ("log_spacemap".into(), log_spacemap)];
    rig.create_choosing(line, 12, &named)
}

/// The guid of the top-level vdev `id`.
fn guid(engine: &Engine, id: u64) -> u64 {
    engine.pool().store().vdevs().top(id).unwrap().guid()
}

fn kinds(engine: &Engine) -> Vec<String> {
    let tree = engine.pool().store().vdevs();
    tree.root().children().iter().map(|top| top.kind().to_string()).collect()
}

/// Writes and has it made stable, so that it is in the intent log.
fn write_and_sync(engine: &Engine, file: u64) {
    let fs = open(engine);
    fill(&fs, file..file + 1, LEN);
    engine.commit(head(engine)).unwrap();
}

fn head(engine: &Engine) -> u64 {
    engine.pool().dsl().root().unwrap().ds_obj
}

fn used_by_logs(engine: &Engine) -> u64 {
    engine.allocator().figures(Class::Log).allocated
}

fn has_label(rig: &Rig, name: &str) -> bool {
    let device = cenote_vdev::open_device(&rig.file(name)).unwrap();
    let labels = cenote_vdev::read_labels(device.as_ref()).unwrap();
    labels.is_some_and(|labels| labels.labels.iter().flatten().any(|l| l.u64("txg") != Some(0)))
}

/// OpenZFS's engine imports the pool, reads everything and writes to it.
fn hand_over(rig: &Rig) {
    cenote_testpools::openzfs(rig.path(), "tank", "import\nscrub\nsync\nexport\n");
}

#[test]
fn logs_leave_one_after_another() {
    let rig = Rig::new(64 << 20);
    let engine = create(&rig, "a log b c mirror d e", true);
    let mut files = 0;
    let mut write = |engine: &Engine| {
        write_and_sync(engine, files);
        files += 1;
    };
    (0..4).for_each(|_| write(&engine));
    assert!(used_by_logs(&engine) > 0);
    let before = engine.pool().get("guid").unwrap().exact;
    // A side of a mirror is no vdev of its own.
    let side = engine.pool().store().vdevs().top(3).unwrap().children()[0].guid();
    assert!(matches!(engine.remove(side), Err(RemoveError::NoTop)));
    engine.remove(guid(&engine, 2)).unwrap();
    assert_eq!(kinds(&engine), ["file", "file", "hole", "mirror"]);
    assert!(has_label(&rig, "b") && !has_label(&rig, "c"));
    write(&engine);
    assert!(used_by_logs(&engine) > 0);
    engine.remove(guid(&engine, 3)).unwrap();
    assert!(!has_label(&rig, "d") && !has_label(&rig, "e"));
    write(&engine);
    engine.remove(guid(&engine, 1)).unwrap();
    assert_eq!(kinds(&engine), ["file", "hole", "hole", "hole"]);
    assert!(engine.allocator().groups_of(Class::Log).is_empty());
    write(&engine);
    assert!(matches!(engine.remove(1), Err(RemoveError::NoDevice)));
    let told: Vec<String> = engine.pool().history().unwrap().iter().map(text).collect();
    let removed = told.iter().filter(|text| text.starts_with("tank vdev (log) ")).count();
    assert_eq!((removed, before), (3, engine.pool().get("guid").unwrap().exact), "{told:?}");
    engine.sync().unwrap();
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    hand_over(&rig);
    let engine = rig.import();
    write(&engine);
    check(&open(&engine), 0..files, LEN);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

fn text(record: &NvList) -> String {
    record.str("history internal str").unwrap_or_default().to_string()
}

#[test]
fn logs_leave_while_programs_wait_for_them() {
    let rig = Rig::new(64 << 20);
    let engine = create(&rig, "a b log c mirror d e", true);
    let fs = open(&engine);
    fill(&fs, 0..1, LEN);
    let head = head(&engine);
    let (stop, synced) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for n in 0..3u64 {
            let (engine, fs, stop, synced) = (&engine, &fs, &stop, &synced);
            scope.spawn(move || {
                let name = format!("log of {n}");
                let file = fs.create(fs.root(), name.as_bytes(), &rig::NODE).unwrap();
                let mut at = 0;
                while !stop.load(Ordering::Relaxed) {
                    fs.write(file.ino, at % (1 << 20), &bytes(at + n, 3000), false).unwrap();
                    engine.commit_objects(head, &[file.ino]).unwrap();
                    synced.fetch_add(1, Ordering::Relaxed);
                    at += 3000;
                }
            });
        }
        let wait = |more: u64| {
            let from = synced.load(Ordering::Relaxed);
            while synced.load(Ordering::Relaxed) < from + more {
                std::thread::yield_now();
            }
        };
        for id in [3, 2] {
            wait(50);
            engine.remove(guid(&engine, id)).unwrap();
            wait(50);
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(fs);
    assert_eq!(kinds(&engine), ["file", "file", "hole", "hole"]);
    engine.sync().unwrap();
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    hand_over(&rig);
}

#[test]
fn a_log_that_is_out_of_use_leaves() {
    let rig = Rig::new(64 << 20);
    let faulty = Faulty::default();
    let engine = rig.create_on("a log b", 12, Default::default(), &faulty);
    write_and_sync(&engine, 0);
    let log = faulty.device(&rig, "b");
    log.fail_writes(0..u64::MAX);
    log.fail(0..u64::MAX);
    write_and_sync(&engine, 1);
    engine.remove(guid(&engine, 1)).unwrap();
    assert_eq!(kinds(&engine), ["file", "hole"]);
    write_and_sync(&engine, 2);
    engine.export(false).unwrap();
    drop((engine, log, faulty));
    std::fs::remove_file(rig.file("b")).unwrap();
    rig.judge();
    let engine = rig.import();
    assert_eq!(engine.pool().health(), "ONLINE");
    check(&open(&engine), 0..3, LEN);
    engine.export(false).unwrap();
}

/// What a crash left in a log waits for its dataset to be opened, and the log vdev with it.
#[test]
fn a_log_that_waits_for_its_replay_keeps_its_vdev() {
    let rig = Rig::new(64 << 20);
    let engine = create(&rig, "a log b", true);
    (0..2).for_each(|file| write_and_sync(&engine, file));
    engine.sync().unwrap();
    write_and_sync(&engine, 2);
    assert!(used_by_logs(&engine) > 0);
    let crashed = Rig::new(64 << 20);
    for name in ["a", "b"] {
        std::fs::copy(rig.file(name), crashed.file(name)).unwrap();
    }
    engine.export(false).unwrap();
    drop(engine);
    let engine = crashed.import();
    engine.sync().unwrap();
    assert!(matches!(engine.remove(guid(&engine, 1)), Err(RemoveError::LogsWait)));
    assert_eq!(kinds(&engine), ["file", "file"]);
    // Nothing here replays it.
    engine.clear_intent_log(head(&engine)).unwrap();
    check(&open(&engine), 0..2, LEN);
    // The vdev is used again.
    write_and_sync(&engine, 3);
    write_and_sync(&engine, 4);
    assert!(used_by_logs(&engine) > 0);
    engine.remove(guid(&engine, 1)).unwrap();
    assert_eq!(kinds(&engine), ["file", "hole"]);
    engine.export(false).unwrap();
    drop(engine);
    crashed.judge();
    hand_over(&crashed);
}

/// Without the feature `log_spacemap` each metaslab has its changes in its own map.
#[test]
fn a_log_leaves_a_pool_without_log_space_maps() {
    let rig = Rig::new(64 << 20);
    let engine = create(&rig, "a log b", false);
    (0..3).for_each(|file| write_and_sync(&engine, file));
    engine.remove(guid(&engine, 1)).unwrap();
    write_and_sync(&engine, 3);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    hand_over(&rig);
    check(&open(&rig.import()), 0..4, LEN);
}

/// The pool is suspended in the group that removes a log vdev: the command fails, and the vdev leaves when the pool goes on.
#[test]
fn a_log_leaves_when_a_suspended_pool_goes_on() {
    let rig = Rig::new(64 << 20);
    let faulty = Faulty::default();
    let engine = rig.create_on("a log b", 12, Default::default(), &faulty);
    let device = faulty.device(&rig, "a");
    device.set_flush_errors(true);
    let log = guid(&engine, 1);
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| engine.remove(log));
        let end = Instant::now() + Duration::from_secs(20);
        while engine.suspended().is_none() {
            assert!(Instant::now() < end, "the pool is not suspended");
            std::thread::sleep(Duration::from_millis(10));
        }
        device.repair();
        engine.resume().unwrap();
        // Its change is made, and waits for the group; or it had not begun.
        let removed = removing.join().unwrap();
        assert!(matches!(removed, Ok(()) | Err(RemoveError::Engine(_))), "{removed:?}");
        if removed.is_err() {
            engine.remove(log).unwrap();
        }
    });
    let end = Instant::now() + Duration::from_secs(20);
    while kinds(&engine) != ["file", "hole"] || has_label(&rig, "b") {
        assert!(Instant::now() < end, "{:?}", kinds(&engine));
        std::thread::sleep(Duration::from_millis(10));
    }
    (0..4).for_each(|file| write_and_sync(&engine, file));
    assert!(engine.allocator().groups_of(Class::Log).is_empty());
    check(&open(&engine), 0..4, LEN);
    engine.export(false).unwrap();
    drop((engine, device, faulty));
    rig.judge();
}
