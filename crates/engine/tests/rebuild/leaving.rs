//! Rebuilds and top-level vdevs that leave: the feature counts no rebuild that no vdev has.

use super::*;
use cenote_dmu::write::ZapMut;
use cenote_engine::{RemoveError, SyncContext, tunables};
use cenote_format::encode::zap::{Key, Value};
use cenote_pool::rebuild::{ENTRY, FEATURE};

/// Has removals stay where they are while this lives.
struct Still;

impl Still {
    fn new() -> Still {
        stand_still(true);
        Still
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        stand_still(false);
    }
}

fn stand_still(still: bool) {
    tunables::find("zfs_removal_suspend_progress").unwrap().set(still.into()).unwrap();
}

fn top(engine: &Engine, id: u64) -> u64 {
    engine.pool().store().vdevs().top(id).unwrap().guid()
}

/// Waits until the first vdev has left.
fn left(engine: &Engine) {
    let begun = Instant::now();
    let has_left = || {
        let pool = engine.pool();
        let tops = pool.config().list("vdev_tree").map(config::children).unwrap();
        tops[0].str("type") == Some("indirect")
    };
    while !has_left() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", engine.removal_waits());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// No rebuild is under way, and none is waited for, after an import as well; another one begins and ends.
fn goes_on(rig: &Rig, engine: Arc<Engine>, (beside, new): (&str, &str)) {
    let none = |engine: &Engine| {
        assert!(
            !engine.is_rebuilding() && !active(engine),
            "{:?}",
            RebuildPhys::all(&engine.pool())
        );
        not_awaited(engine);
    };
    none(&engine);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    let engine = rig.import();
    none(&engine);
    hold(false);
    join(rig, &engine, beside, new, false).unwrap();
    proven(&engine);
    check_devices(&engine, FILES, LEN);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// The device of a rebuild that stands still is taken out again: the vdev does not begin to leave before that is noted as over.
#[test]
fn a_vdev_that_is_rebuilt_does_not_begin_to_leave() {
    let _turn = Turn::take(true);
    let (rig, engine) = filled("a d");
    join(&rig, &engine, "a", "b", false).unwrap();
    engine.detach(leaf(&rig, &engine, "b"), None).unwrap();
    assert!(phys(&engine).is_running());
    let refused = engine.remove(top(&engine, 0));
    assert!(matches!(refused, Err(RemoveError::Busy)), "{refused:?}");
    hold(false);
    ended(&engine);
    not_awaited(&engine);
    engine.remove(top(&engine, 0)).unwrap();
    left(&engine);
    assert_eq!(RebuildPhys::all(&engine.pool()), []);
    goes_on(&rig, engine, ("d", "e"));
}

/// As a pool may come: a vdev is being removed of which a rebuild is noted as under way. It ends as the vdev leaves.
#[test]
fn a_rebuild_ends_with_a_vdev_that_is_copied() {
    let _turn = Turn::take(true);
    let (rig, engine) = filled("a d");
    let still = Still::new();
    engine.remove(top(&engine, 0)).unwrap();
    let zap = {
        let pool = engine.pool();
        let tops = pool.config().list("vdev_tree").map(config::children).unwrap();
        config::number(&tops[0], "com.delphix:vdev_zap_top")
    };
    let note = move |context: &mut SyncContext<'_>| {
        let phys = RebuildPhys { state: RebuildPhys::ACTIVE, max_txg: 5, ..RebuildPhys::default() };
        let (key, words) = (Key::Name(ENTRY.as_bytes()), phys.encode());
        ZapMut::open(context.tx.mos, zap).update(&key, &Value::U64(&words))?;
        cenote_dsl::write::features::increment(&mut context.tx, FEATURE)
    };
    engine.sync_task(note).unwrap();
    assert!(engine.is_rebuilding() && active(&engine));
    drop(still);
    left(&engine);
    assert_eq!(RebuildPhys::all(&engine.pool()), []);
    goes_on(&rig, engine, ("d", "e"));
}

/// The rebuild of a vdev for logs, which may wait for a device that hangs, does not keep the vdev, and ends with it.
#[test]
fn a_rebuild_ends_with_a_log_vdev() {
    let _turn = Turn::take(true);
    let (rig, engine) = filled("a log d");
    join(&rig, &engine, "d", "e", false).unwrap();
    assert!(engine.is_rebuilding() && active(&engine));
    engine.remove(top(&engine, 1)).unwrap();
    let history = format!("{:?}", engine.pool().history().unwrap());
    assert!(history.contains("vdev_id=1 vdev_guid=") && history.contains(" canceled"));
    goes_on(&rig, engine, ("a", "b"));
}
