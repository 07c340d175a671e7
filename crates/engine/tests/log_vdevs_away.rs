//! Log vdevs whose devices are out of use: the pool can be imported without them. OpenZFS's `zdb` judges.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::Engine;
use cenote_format::nvlist::NvValue;
use cenote_pool::config;
use rig::joining::leaf;
use rig::{Rig, check, fill, open};

const LEN: usize = 200_000;

/// Writes a file and has it made stable, so that it is in the intent log.
fn write_and_sync(engine: &Engine, file: u64) {
    let fs = open(engine);
    fill(&fs, file..file + 1, LEN);
    let head = engine.pool().dsl().root().unwrap().ds_obj;
    engine.commit(head).unwrap();
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
