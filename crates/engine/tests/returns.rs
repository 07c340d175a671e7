//! A leaf that lacks something, and every way by which a device answers again: each has a resilver begin, whoever finds it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, EngineOptions, TakeOut};
use cenote_pool::reopen::Restore;
use cenote_vdev::{Vdev, VdevState};
use rig::{Faulty, Rig, TIMEOUT, check, fill, open};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 64 << 20;
const LEN: usize = 200_000;
/// Where blocks are on a device, beside its labels.
const DATA: std::ops::Range<u64> = 4 << 20..SIZE - (1 << 20);

#[track_caller]
fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn leaves(engine: &Engine) -> Vec<Arc<Vdev>> {
    engine.pool().store().vdevs().leaves()
}

/// A pool of two sides. Groups are written when they are asked for, and idle devices are looked at after `looks`.
fn pool(looks: Duration) -> (Rig, Faulty, Arc<Engine>) {
    let (rig, devices) = (Rig::new(SIZE), Faulty::default());
    let options = EngineOptions { txg_timeout: Some(looks), ..EngineOptions::default() };
    let engine = rig.create_on("mirror a b", 12, options, &devices);
    fill(&open(&engine), 0..4, LEN);
    engine.sync().unwrap();
    (rig, devices, engine)
}

/// All leaves are given what they lack, without an order; each side has everything by itself.
#[track_caller]
fn become_whole(rig: &Rig, devices: Faulty, engine: Arc<Engine>, files: u64) {
    let whole = |leaf: &Arc<Vdev>| !leaf.is_behind() && leaf.state() == VdevState::Healthy;
    until("a leaf stays behind", || leaves(&engine).iter().all(whole));
    until("a resilver does not end", || !engine.awaits_resilver());
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
    for gone in ["a", "b"] {
        let copy = rig.copy();
        std::fs::remove_file(copy.file(gone)).unwrap();
        let engine = copy.import();
        check(&open(&engine), 0..files, LEN);
        engine.export(false).unwrap();
    }
}

/// The side b lacks a group, as it failed writes and stayed in use; then the side a, which alone has that, does not answer.
fn needed_and_silent(devices: &Faulty, rig: &Rig, engine: &Arc<Engine>) {
    let (a, b) = (devices.device(rig, "a"), devices.device(rig, "b"));
    b.fail_writes(DATA);
    fill(&open(engine), 4..6, LEN);
    engine.sync().unwrap();
    b.repair();
    let both = leaves(engine);
    assert!(both[1].is_behind() && both[1].writable());
    a.set_missing(true);
    fill(&open(engine), 6..8, LEN);
    engine.sync().unwrap();
    assert_eq!((both[0].state(), both[1].state()), (VdevState::Degraded, VdevState::Healthy));
}

#[test]
fn a_group_finds_a_device_back() {
    let (rig, devices, engine) = pool(TIMEOUT);
    needed_and_silent(&devices, &rig, &engine);
    devices.device(&rig, "a").repair();
    // There is no look at devices besides, nor an order.
    fill(&open(&engine), 8..9, LEN);
    engine.sync().unwrap();
    become_whole(&rig, devices, engine, 9);
}

#[test]
fn a_look_finds_a_device_back() {
    let (rig, devices, engine) = pool(Duration::from_millis(300));
    needed_and_silent(&devices, &rig, &engine);
    devices.device(&rig, "a").repair();
    become_whole(&rig, devices, engine, 8);
}

/// One of two devices that are waited for answers again: what that has is given at once.
#[test]
fn one_of_two_devices_is_back() {
    let (rig, devices) = (Rig::new(SIZE), Faulty::default());
    let options =
        EngineOptions { txg_timeout: Some(Duration::from_millis(300)), ..EngineOptions::default() };
    let engine = rig.create_on("mirror a b mirror c d", 12, options, &devices);
    fill(&open(&engine), 0..4, LEN);
    engine.sync().unwrap();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| devices.device(&rig, name));
    [&b, &d].iter().for_each(|device| device.fail_writes(DATA));
    fill(&open(&engine), 4..8, LEN);
    engine.sync().unwrap();
    [&b, &d].iter().for_each(|device| device.repair());
    let all = leaves(&engine);
    assert!(all[1].is_behind() && all[3].is_behind());
    [&a, &c].iter().for_each(|device| device.set_missing(true));
    fill(&open(&engine), 8..12, LEN);
    engine.sync().unwrap();
    let silent = |at: usize| all[at].state() == VdevState::Degraded;
    until("a device that is away is not missed", || silent(0) && silent(2));
    a.repair();
    until("the device is not found back", || !silent(0));
    c.repair();
    until("a leaf stays behind", || all.iter().all(|leaf| !leaf.is_behind()));
    drop(all);
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
}

/// `zpool clear`, `online` and `reopen`, and what comes by itself.
#[test]
fn orders_bring_devices_back() {
    for what in [Restore::Failure, Restore::Offline, Restore::Nothing, Restore::Removal] {
        let (rig, devices, engine) = pool(TIMEOUT);
        let b = leaves(&engine)[1].clone();
        match what {
            Restore::Offline => {
                engine.take_out(b.guid(), TakeOut::Offline).unwrap();
                devices.close(&rig, "b");
            }
            _ => devices.device(&rig, "b").set_missing(true),
        }
        fill(&open(&engine), 4..6, LEN);
        engine.sync().unwrap();
        assert!(b.is_behind() && !b.writable(), "{what:?}");
        if what != Restore::Offline {
            devices.device(&rig, "b").repair();
        }
        engine.restore(&[b.guid()], what).unwrap();
        drop(b);
        become_whole(&rig, devices, engine, 6);
    }
}

#[test]
fn an_import_finds_a_device_back() {
    let (rig, devices, engine) = pool(TIMEOUT);
    devices.device(&rig, "b").set_missing(true);
    fill(&open(&engine), 4..6, LEN);
    engine.sync().unwrap();
    assert!(leaves(&engine)[1].is_behind());
    engine.export(false).unwrap();
    drop((engine, devices));
    let options = EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() };
    let engine = rig.import_with(options);
    become_whole(&rig, Faulty::default(), engine, 6);
}

/// Both sides go and come back; one of them lacked something before.
#[test]
fn a_pool_that_goes_on_finds_devices_back() {
    let (rig, devices, engine) = pool(TIMEOUT);
    let (a, b) = (devices.device(&rig, "a"), devices.device(&rig, "b"));
    b.set_missing(true);
    fill(&open(&engine), 4..6, LEN);
    engine.sync().unwrap();
    a.set_missing(true);
    let theirs = engine.clone();
    fill(&open(&engine), 6..7, LEN);
    // Who asks for a group of a suspended pool is told so.
    let group = std::thread::spawn(move || drop(theirs.sync()));
    until("the pool is not suspended", || engine.waits_for_devices());
    [&a, &b].iter().for_each(|device| device.repair());
    engine.resume().unwrap();
    group.join().unwrap();
    drop((a, b));
    become_whole(&rig, devices, engine, 7);
}
