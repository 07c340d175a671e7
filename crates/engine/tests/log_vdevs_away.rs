//! Log vdevs whose devices are out of use: the pool can be imported without them. OpenZFS's `zdb` judges.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dsl::write::DslWriteError;
use cenote_engine::planted::Moment;
use cenote_engine::{Engine, SyncContext, TakeOut};
use cenote_format::nvlist::NvValue;
use cenote_pool::reopen::Restore;
use cenote_pool::{ImportOptions, config, discover};
use cenote_store::alloc::Class;
use rig::joining::leaf;
use rig::{Rig, check, fill, open, replaying};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

const LEN: usize = 200_000;

/// Writes a file and has it made stable, so that it is in the intent log.
fn write_and_sync(engine: &Engine, file: u64) {
    let fs = open(engine);
    fill(&fs, file..file + 1, LEN);
    let head = engine.pool().dsl().root().unwrap().ds_obj;
    engine.commit(head).unwrap();
}

/// Notes a flag in the config of a leaf.
fn marks(
    guid: u64,
    flag: &'static str,
) -> impl Fn(&mut SyncContext<'_>) -> Result<(), DslWriteError> + Send + 'static {
    move |context| {
        config::for_each_leaf_mut(&mut context.config.vdev_tree, &mut |leaf| {
            if config::number(leaf, "guid") == guid {
                leaf.set(flag, NvValue::Uint64(1));
            }
        });
        context.config_changed = true;
        Ok(())
    }
}

/// A pool that was left with a log that leads to a device that was taken offline is imported.
#[test]
fn a_log_that_leads_to_a_device_out_of_use_is_given_up() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a log b", 12);
    write_and_sync(&engine, 0);
    engine.sync().unwrap();
    let b = leaf(&rig, &engine, "b");
    let mark = marks(b, "offline");
    engine.sync_task_beside_logs(mark, |()| true).unwrap();
    let crashed = rig.copy();
    std::fs::remove_file(crashed.file("b")).unwrap();
    let other = crashed.import();
    check(&open(&other), 0..1, LEN);
    write_and_sync(&other, 1);
    other.export(false).unwrap();
    drop(other);
    crashed.judge_blocks();
    engine.export(false).unwrap();
}

/// The config has a log device as removed, and it is there: once logs lead there, no import does without it.
#[test]
fn a_log_device_that_was_away_once_is_missed() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a log b", 12);
    let b = leaf(&rig, &engine, "b");
    engine.sync_task(marks(b, "removed")).unwrap();
    engine.sync_task(marks(b, "not_present")).unwrap();
    engine.export(false).unwrap();
    drop(engine);
    let engine = rig.import();
    assert!(engine.pool().noted_as(&["removed", "not_present"]).is_empty());
    (0..5).for_each(|file| write_and_sync(&engine, file));
    assert!(logs_on(&engine, 1) > 0);
    let crashed = rig.copy();
    let b = std::fs::read(crashed.file("b")).unwrap();
    std::fs::remove_file(crashed.file("b")).unwrap();
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let found = discover(&[crashed.path().to_path_buf()]);
    assert!(Engine::import(&found[0], &options, replaying()).is_err());
    std::fs::write(crashed.file("b"), b).unwrap();
    all_is_there(&crashed, false);
    engine.export(false).unwrap();
}

/// Bytes of logs on the top-level vdev `id`.
fn logs_on(engine: &Engine, id: u64) -> u64 {
    let groups = engine.allocator().groups_of(Class::Log);
    groups.iter().find(|group| group.vdev() == id).unwrap().allocated()
}

/// What was made stable is there after a crash.
fn all_is_there(crashed: &Rig, allow_missing_log: bool) {
    let options = ImportOptions { allow_missing_log, ..ImportOptions::default() };
    let engine = crashed.import_as(options, replaying());
    check(&open(&engine), 0..5, LEN);
    engine.sync().unwrap();
    engine.export(false).unwrap();
    drop(engine);
    crashed.judge_blocks();
}

/// Between the moment in which a log device is in use again and the group that notes that, logs go elsewhere: a crash leaves a
/// config by which nothing there is read.
#[test]
fn no_log_begins_on_a_device_that_is_noted_as_out_of_use() {
    for (out, back) in [(TakeOut::Offline, Restore::Offline), (TakeOut::Fault, Restore::Failure)] {
        let rig = Arc::new(Rig::new(64 << 20));
        let engine = rig.create("a log b c", 12);
        let b = leaf(&rig, &engine, "b");
        engine.take_out(b, out).unwrap();
        write_and_sync(&engine, 0);
        assert!(logs_on(&engine, 1) == 0 && logs_on(&engine, 2) > 0);
        let crashed = Arc::new(OnceLock::new());
        let (theirs, files, writer) = (crashed.clone(), rig.clone(), engine.clone());
        engine.stop_at(Moment::Restored, move || {
            (1..5).for_each(|file| write_and_sync(&writer, file));
            assert!(logs_on(&writer, 1) == 0 && theirs.set(files.copy()).is_ok());
        });
        engine.restore(&[b], back).unwrap();
        all_is_there(crashed.get().unwrap(), false);
        // Logs begin there again.
        (5..9).for_each(|file| write_and_sync(&engine, file));
        assert!(logs_on(&engine, 1) > 0);
        let later = rig.copy();
        let again = later.import_with(replaying());
        check(&open(&again), 0..9, LEN);
        again.export(false).unwrap();
        drop(again);
        later.judge_blocks();
        engine.export(false).unwrap();
    }
}

/// Logs that begin when those on a log device have ended, and it is about to go, are elsewhere: it can be taken away at once.
#[test]
fn no_log_begins_on_a_device_that_is_about_to_go() {
    for how in [TakeOut::OfflineForNow, TakeOut::Fault] {
        let rig = Rig::new(64 << 20);
        let engine = rig.create("a log b", 12);
        write_and_sync(&engine, 0);
        assert!(logs_on(&engine, 1) > 0);
        let (begun, begins) = mpsc::channel();
        let writer = engine.clone();
        engine.stop_at(Moment::LogEmptied, move || {
            // What the logs had that ended is free in a later group.
            let before = logs_on(&writer, 1);
            let work = move || (1..5).for_each(|file| write_and_sync(&writer, file));
            let work = std::thread::spawn(work);
            // Where it takes a group the first log begins when the device has gone.
            let until = Instant::now() + Duration::from_secs(1);
            while !work.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            begun.send((work, before)).unwrap();
        });
        engine.take_out(leaf(&rig, &engine, "b"), how).unwrap();
        let (work, before) = begins.recv().unwrap();
        work.join().unwrap();
        assert!(logs_on(&engine, 1) <= before);
        let crashed = rig.copy();
        std::fs::remove_file(crashed.file("b")).unwrap();
        all_is_there(&crashed, true);
        engine.export(false).unwrap();
    }
}
