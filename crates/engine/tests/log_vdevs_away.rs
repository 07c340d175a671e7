//! Log vdevs whose devices are taken out of use: nothing that was acknowledged is lost, logs go elsewhere, and the pool can be imported
//! without them. OpenZFS's `zdb` judges.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, EngineOptions, TakeOut};
use cenote_format::nvlist::NvValue;
use cenote_pool::reopen::Restore;
use cenote_pool::{ImportOptions, config, discover};
use cenote_store::alloc::Class;
use rig::joining::leaf;
use rig::{Rig, check, fill, open};
use std::sync::Arc;

const LEN: usize = 200_000;

/// Writes a file and has it made stable, so that it is in the intent log.
fn write_and_sync(engine: &Engine, file: u64) {
    let fs = open(engine);
    fill(&fs, file..file + 1, LEN);
    let head = engine.pool().dsl().root().unwrap().ds_obj;
    engine.commit(head).unwrap();
}

/// Bytes that log vdevs were asked for so far, in all.
fn written(engine: &Engine, names: &[&str], rig: &Rig) -> u64 {
    let leaves = engine.pool().store().vdevs().leaves();
    let is_one = |leaf: &&Arc<cenote_vdev::Vdev>| {
        names.iter().any(|name| leaf.path() == Some(&rig.file(name)))
    };
    leaves.iter().filter(is_one).map(|leaf| leaf.io_stats().3).sum()
}

/// The power goes, and the devices are gone for good: the pool is imported without them.
fn without(rig: &Rig, gone: &[&str], files: u64) {
    let crashed = rig.copy();
    gone.iter().for_each(|name| std::fs::remove_file(crashed.file(name)).unwrap());
    let found = discover(&[crashed.path().to_path_buf()]);
    let options =
        ImportOptions { force: true, allow_missing_log: true, ..ImportOptions::default() };
    let engine = Engine::import(&found[0], &options, EngineOptions::default()).unwrap();
    check(&open(&engine), 0..files, LEN);
    engine.export(false).unwrap();
    drop(engine);
    crashed.judge_blocks();
}

fn taken_out(how: TakeOut, line: &str, logs: &[&str]) {
    let rig = Rig::new(64 << 20);
    let engine = rig.create(line, 12);
    write_and_sync(&engine, 0);
    assert!(engine.allocator().figures(Class::Log).allocated > 0);
    let guids: Vec<u64> = logs.iter().map(|name| leaf(&rig, &engine, name)).collect();
    guids.iter().for_each(|guid| engine.take_out(*guid, how).unwrap());
    // Nothing that was acknowledged is there alone.
    without(&rig, logs, 1);
    // Logs that begin anew are led to by the next group.
    engine.sync().unwrap();
    write_and_sync(&engine, 1);
    engine.sync().unwrap();
    let kept = engine.allocator().figures(Class::Log).allocated;
    let before = engine.pool().uberblock().txg;
    write_and_sync(&engine, 2);
    write_and_sync(&engine, 3);
    // Logs are on the vdevs for data, and no group is waited for.
    let after = engine.pool().uberblock().txg;
    assert!(after <= before + 1, "a commit waits for a group: {how:?} {before} {after}");
    assert!(engine.allocator().figures(Class::Log).allocated <= kept);
    // Nothing here replays logs.
    engine.sync().unwrap();
    without(&rig, logs, 4);
    // They are back.
    let what = match how {
        TakeOut::OfflineForNow | TakeOut::Offline => Restore::Offline,
        TakeOut::FaultForNow | TakeOut::Fault => Restore::Failure,
    };
    engine.restore(&guids, what).unwrap();
    let before = written(&engine, logs, &rig);
    engine.sync().unwrap();
    write_and_sync(&engine, 4);
    write_and_sync(&engine, 5);
    assert!(written(&engine, logs, &rig) > before + LEN as u64, "logs go elsewhere still");
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    let engine = rig.import();
    check(&open(&engine), 0..6, LEN);
    engine.export(false).unwrap();
}

#[test]
fn the_only_log_device_is_taken_out() {
    for how in [TakeOut::OfflineForNow, TakeOut::Offline, TakeOut::FaultForNow, TakeOut::Fault] {
        taken_out(how, "a log b", &["b"]);
    }
}

#[test]
fn all_sides_of_a_log_mirror_are_taken_out() {
    taken_out(TakeOut::Offline, "a log mirror b c", &["b", "c"]);
}

/// A pool that was left with a log that leads to a device that was taken offline is imported.
#[test]
fn a_log_that_leads_to_a_device_out_of_use_is_given_up() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a log b", 12);
    write_and_sync(&engine, 0);
    engine.sync().unwrap();
    let b = leaf(&rig, &engine, "b");
    let mark = move |context: &mut cenote_engine::SyncContext<'_>| {
        config::for_each_leaf_mut(&mut context.config.vdev_tree, &mut |leaf| {
            if config::number(leaf, "guid") == b {
                leaf.set("offline", NvValue::Uint64(1));
            }
        });
        context.config_changed = true;
        Ok(())
    };
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
