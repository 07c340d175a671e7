//! Scrubs prove what rebuilds copied: when one is owed, and when not.

use super::*;
use cenote_dmu::write::ZapMut;
use cenote_engine::SyncContext;
use cenote_format::encode::zap::{Key, Value};
use cenote_pool::rebuild::ENTRY;

/// Waits until a scrub that proves all has ended, and looks on for a while: no other one begins then.
fn proven_once(engine: &Engine) {
    let begun = Instant::now();
    let is_proven = || {
        let (now, scan) = (engine.pool().status().unwrap(), scan(engine));
        let unproven = now.rebuilds.iter().any(|rebuild| rebuild.phys.is_unproven(&scan, 0));
        !unproven && scan.is_scrub() && scan.is_finished()
    };
    while !is_proven() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", scan(engine));
        std::thread::sleep(Duration::from_millis(5));
    }
    let last = scan(engine);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(20));
        engine.sync().unwrap();
    }
    assert_eq!(scan(engine).max_txg, last.max_txg, "another scrub began");
}

/// Has a top-level vdev's ZAP say something else of its last rebuild.
fn craft(engine: &Engine, top: usize, phys: RebuildPhys) {
    let pool = engine.pool();
    let tops = pool.config().list("vdev_tree").map(config::children).unwrap();
    let zap = config::number(&tops[top], "com.delphix:vdev_zap_top");
    let write = move |context: &mut SyncContext<'_>| {
        let words = phys.encode();
        let key = Key::Name(ENTRY.as_bytes());
        Ok(ZapMut::open(context.tx.mos, zap).update(&key, &Value::U64(&words))?)
    };
    engine.sync_task(write).unwrap();
}

/// Of two rebuilds one has errors: a resilver comes first, and the scrub that is to prove the other one comes after it.
#[test]
fn a_scrub_is_owed_until_it_has_ended() {
    let _turn = Turn::take(true);
    let (rig, devices, engine) = filled_on_faulty("mirror a b mirror d e");
    for (beside, name) in [("a", "x"), ("d", "y")] {
        join_faulty(&rig, &engine, &devices, (beside, name), false);
    }
    devices.device(&rig, "y").fail_writes(START + (2 << 20)..START + (2 << 20) + 8192);
    REBUILD_SCRUB_ENABLED.set(0).unwrap();
    hold(false);
    let begun = Instant::now();
    while engine.is_rebuilding() {
        assert!(begun.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(1));
    }
    devices.device(&rig, "y").repair();
    engine.restore(&[leaf(&rig, &engine, "y")], Restore::Failure).unwrap();
    whole(&engine);
    // The resilver has not forgotten what no scrub has proven, and no scrub begins where that is turned off.
    let all: Vec<RebuildPhys> =
        RebuildPhys::all(&engine.pool()).into_iter().map(|(_, phys)| phys).collect();
    assert!(all.len() == 2 && all.iter().all(|phys| phys.is_unproven(&scan(&engine), 0)));
    assert!(scan(&engine).is_resilver() && scan(&engine).is_finished());
    assert!(engine.pool().status().unwrap().texts.action.unwrap().contains("scrub"));
    engine.export(false).unwrap();
    drop((engine, devices));
    // Nor has an export.
    REBUILD_SCRUB_ENABLED.set(1).unwrap();
    let engine = rig.import();
    proven(&engine);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    readable_without(&rig, &["a", "b", "d", "e"], FILES);
}

/// A device that goes on lacking something, as it cannot be read anywhere, does not keep the scrub from proving another one.
#[test]
fn a_scrub_comes_though_a_device_lags() {
    let _turn = Turn::take(true);
    let (rig, devices, engine) = filled_on_faulty("mirror a b mirror d e");
    for (beside, name) in [("a", "x"), ("d", "y")] {
        join_faulty(&rig, &engine, &devices, (beside, name), false);
    }
    for name in ["d", "e"] {
        devices.device(&rig, name).fail(START + (2 << 20)..START + (2 << 20) + 8192);
    }
    hold(false);
    ended(&engine);
    proven_once(&engine);
    let y = leaf(&rig, &engine, "y");
    let lags = |leaf: &Arc<cenote_vdev::Vdev>| leaf.guid() == y && leaf.is_behind();
    assert!(engine.pool().store().vdevs().leaves().iter().any(lags));
    ["d", "e"].iter().for_each(|name| devices.device(&rig, name).repair());
    engine.assess_resilver().unwrap();
    whole(&engine);
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
}

/// The scrub of an earlier rebuild that another one ends was not given up by order, and begins again if that one is given up.
#[test]
fn a_scrub_that_a_rebuild_ended_is_owed() {
    let _turn = Turn::take(false);
    let (rig, engine) = filled("mirror a b mirror d e");
    REBUILD_SCRUB_ENABLED.set(0).unwrap();
    join(&rig, &engine, "a", "x", false).unwrap();
    whole(&engine);
    hold(true);
    engine.scrub().unwrap();
    REBUILD_SCRUB_ENABLED.set(1).unwrap();
    join(&rig, &engine, "d", "y", false).unwrap();
    assert_eq!(scan(&engine).state, 3);
    engine.detach(leaf(&rig, &engine, "y"), None).unwrap();
    hold(false);
    ended(&engine);
    proven_once(&engine);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// Groups that lie ahead, as a pool's disks may say, have one scrub begin, not one after the other.
#[test]
fn groups_that_lie_ahead_are_proven_by_one_scrub() {
    for running in [false, true] {
        let _turn = Turn::take(running);
        let rig = Rig::new(SIZE);
        let engine = rig.create("a", 12);
        fill(&open(&engine), 0..10, LEN);
        engine.sync().unwrap();
        join(&rig, &engine, "a", "b", false).unwrap();
        if !running {
            proven(&engine);
        }
        let phys = RebuildPhys { max_txg: u64::MAX, ..phys(&engine) };
        craft(&engine, 0, phys);
        engine.export(false).unwrap();
        drop(engine);
        let engine = rig.import();
        hold(false);
        ended(&engine);
        proven_once(&engine);
        whole(&engine);
        engine.export(false).unwrap();
        drop(engine);
        rig.judge_blocks();
        readable_without(&rig, &["a"], 10);
    }
}

/// An active entry that the feature does not count is no rebuild: nothing waits for it, and another rebuild does not go on with it.
#[test]
fn what_the_feature_does_not_count_is_none() {
    let _turn = Turn::take(false);
    let rig = Rig::new(SIZE);
    let engine = rig.create("mirror a b mirror d e", 12);
    fill(&open(&engine), 0..10, LEN);
    let phys = RebuildPhys { state: RebuildPhys::ACTIVE, max_txg: 5, ..RebuildPhys::default() };
    craft(&engine, 1, phys);
    assert!(engine.pool().status().unwrap().rebuilds.is_empty());
    assert!(!engine.is_rebuilding() && !engine.awaits_resilver());
    join(&rig, &engine, "a", "x", false).unwrap();
    proven(&engine);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}
