//! Rebuilds beside devices that leave, that have died earlier, and that do not answer.

use super::*;

/// A device that leaves beside another one that is being rebuilt is no error of that: no resilver follows.
#[test]
fn a_device_that_leaves_is_no_error_of_another() {
    let _turn = Turn::take(true);
    let (rig, devices, engine) = filled_on_faulty("a");
    let beside = leaf(&rig, &engine, "a");
    for name in ["b", "c"] {
        let new = device(&rig, &engine, name, &devices);
        engine.attach_sequentially(Attach { beside, new, replaces: false }).unwrap();
    }
    let _ = half_way(&engine);
    let c = devices.device(&rig, "c");
    c.set_delay(Duration::from_millis(20));
    hold(false);
    std::thread::sleep(Duration::from_millis(50));
    engine.detach(leaf(&rig, &engine, "c"), None).unwrap();
    ended(&engine);
    assert_eq!(phys(&engine).errors, 0, "{:?}", phys(&engine));
    proven(&engine);
    engine.export(false).unwrap();
    drop((engine, devices, c));
    rig.judge_blocks();
    readable_without(&rig, &["a"], FILES);
}

/// A device of an earlier rebuild that has died is no error of the next one, and is resilvered when it is back.
#[test]
fn one_that_died_earlier_is_left_to_a_resilver() {
    let _turn = Turn::take(true);
    let (rig, devices, engine) = filled_on_faulty("a");
    let beside = leaf(&rig, &engine, "a");
    let add = |name: &str| {
        let new = device(&rig, &engine, name, &devices);
        engine.attach_sequentially(Attach { beside, new, replaces: false }).unwrap();
    };
    add("b");
    let _ = half_way(&engine);
    let b = leaf(&rig, &engine, "b");
    engine.take_out(b, TakeOut::Offline).unwrap();
    devices.close(&rig, "b");
    hold(false);
    ended(&engine);
    assert!(phys(&engine).errors > 0, "{:?}", phys(&engine));
    not_awaited(&engine);
    hold(true);
    add("c");
    let _ = half_way(&engine);
    // It comes back in the midst: what was copied before is not on it.
    engine.restore(&[b], Restore::Offline).unwrap();
    hold(false);
    ended(&engine);
    assert_eq!(phys(&engine).errors, 0, "{:?}", phys(&engine));
    proven(&engine);
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
    readable_without(&rig, &["a", "c"], FILES);
}

/// Beside a device that does not answer, and takes long for that, another vdev is rebuilt all the same.
#[test]
fn a_slow_silent_source_does_not_hold_others_up() {
    let _turn = Turn::take(true);
    let (rig, devices, engine) = filled_on_faulty("a d");
    for (beside, new) in [("a", "b"), ("d", "e")] {
        let (beside, new) = (leaf(&rig, &engine, beside), device(&rig, &engine, new, &devices));
        engine.attach_sequentially(Attach { beside, new, replaces: false }).unwrap();
    }
    let running =
        || RebuildPhys::all(&engine.pool()).iter().filter(|(_, p)| p.is_running()).count();
    assert_eq!(running(), 2);
    SCAN_CHECKPOINT_INTVAL.set(3600).unwrap();
    // Many steps, of which each would look at the device.
    REBUILD_VDEV_LIMIT.set(64 << 10).unwrap();
    let a = devices.device(&rig, "a");
    a.fail(0..u64::MAX);
    a.set_delay(Duration::from_millis(50));
    let before = a.reads();
    hold(false);
    let begun = Instant::now();
    while running() == 2 {
        assert!(
            begun.elapsed() < Duration::from_secs(100),
            "{:?}",
            RebuildPhys::all(&engine.pool())
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let (asked, took) = (a.reads() - before, begun.elapsed().as_secs());
    assert!(asked < 100 + 20 * took, "{asked} reads of a device that does not answer in {took} s");
    a.repair();
    a.set_delay(Duration::ZERO);
    let all: Vec<u64> = ["a", "b", "d", "e"].iter().map(|name| leaf(&rig, &engine, name)).collect();
    engine.resume().unwrap();
    engine.restore(&all, Restore::Failure).unwrap();
    let begun = Instant::now();
    while engine.awaits_resilver() || engine.is_scanning() {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "{:?}",
            RebuildPhys::all(&engine.pool())
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    engine.export(false).unwrap();
    drop((engine, devices, a));
    rig.judge_blocks();
    readable_without(&rig, &["a", "d"], FILES);
}
