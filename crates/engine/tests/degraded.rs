//! Pools that lack devices, or lose them, are written to; the devices come back. What they missed is
//! on record, is not read from them, and OpenZFS's `zdb` agrees. Where it is not installed these
//! tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::change::{Kind, NewDataset};
use cenote_engine::{Engine, EngineOptions, TakeOut};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::config;
use cenote_pool::reopen::Restore;
use cenote_vdev::VdevState;
use cenote_vdev::inject::FaultyDevice;
use cenote_zpl::{FileSystem, Settings};
use rig::{Faulty, NODE, Rig, changes, check, check_devices, fill, open};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

const LEN: usize = 200_000;
const LONG: Duration = Duration::from_secs(30);

/// Waits for it, for so long that only what never comes is missed; whether it came.
fn until(done: impl Fn() -> bool) -> bool {
    let end = Instant::now() + LONG;
    while !done() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    done()
}

/// Moves devices out of sight.
fn hide(rig: &Rig, names: &[&str]) -> tempfile::TempDir {
    let place = tempfile::tempdir_in(rig.path().parent().unwrap()).unwrap();
    for name in names {
        std::fs::rename(rig.file(name), place.path().join(name)).unwrap();
    }
    place
}

fn bring_back(rig: &Rig, place: tempfile::TempDir, names: &[&str]) {
    for name in names {
        std::fs::rename(place.path().join(name), rig.file(name)).unwrap();
    }
}

/// Leaves that have a list of what they missed, by name.
fn behind(rig: &Rig, engine: &Engine) -> Vec<String> {
    let pool = engine.pool();
    let mut names = Vec::new();
    config::for_each_leaf(pool.config().list("vdev_tree").unwrap(), &mut |leaf| {
        if config::number(leaf, "DTL") != 0 {
            let path = config::path(leaf).unwrap();
            names.push(path.strip_prefix(rig.path()).unwrap_or(&path).display().to_string());
        }
    });
    names
}

fn missing_at_import(line: &str, ashift: u64, names: &[&str]) {
    let rig = Rig::new(64 << 20);
    let engine = rig.create(line, ashift);
    fill(&open(&engine), 0..6, LEN);
    engine.export(false).unwrap();
    drop(engine);

    let place = hide(&rig, names);
    let engine = rig.import();
    assert_eq!(engine.pool().health(), "DEGRADED");
    fill(&open(&engine), 6..12, LEN);
    engine.sync().unwrap();
    assert_eq!(behind(&rig, &engine), names);
    check_devices(&engine, 12, LEN);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();

    // They come back as they were: their labels and what they hold are out of date.
    bring_back(&rig, place, names);
    let engine = rig.import();
    assert_eq!(engine.pool().health(), "ONLINE");
    check_devices(&engine, 12, LEN);
    fill(&open(&engine), 12..18, LEN);
    engine.sync().unwrap();
    check_devices(&engine, 18, LEN);
    assert_eq!(behind(&rig, &engine), names);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();

    // A crash instead of an export, with other labels on all.
    let engine = rig.import();
    fill(&open(&engine), 18..20, LEN);
    engine.sync().unwrap();
    drop(engine);
    let engine = rig.import();
    check_devices(&engine, 20, LEN);
    engine.export(false).unwrap();
}

#[test]
fn mirrors_with_devices_missing() {
    missing_at_import("mirror a b", 12, &["b"]);
    missing_at_import("mirror a b c mirror d e", 9, &["a", "c", "e"]);
}

#[test]
fn raidz_with_devices_missing() {
    missing_at_import("raidz1 a b c", 9, &["a"]);
    missing_at_import("raidz3 a b c d e f", 12, &["a", "c", "f"]);
}

/// The states of devices, by name.
fn states(rig: &Rig, engine: &Engine, names: &[&str]) -> Vec<VdevState> {
    let leaves = engine.pool().store().vdevs().leaves();
    let leaf = |name: &&str| leaves.iter().find(|l| l.path() == Some(&rig.file(name))).unwrap();
    names.iter().map(|name| leaf(name).state()).collect()
}

/// Devices fail while the pool is written to, in one way or another, and are then in this state.
fn failing(line: &str, names: &[&str], then: VdevState, fault: &dyn Fn(&FaultyDevice)) {
    let (rig, devices) = (Rig::new(64 << 20), Faulty::default());
    let engine = rig.create_on(line, 12, EngineOptions::default(), &devices);
    let fs = open(&engine);
    fill(&fs, 0..4, LEN);
    engine.sync().unwrap();
    fill(&fs, 4..6, LEN);
    names.iter().for_each(|name| fault(&devices.device(&rig, name)));
    fill(&fs, 6..8, LEN);
    engine.sync().unwrap();
    fill(&fs, 8..12, LEN);
    engine.sync().unwrap();
    // What failed in the end of one group is put down in the next.
    fill(&fs, 12..13, LEN);
    engine.sync().unwrap();
    assert_eq!(behind(&rig, &engine), names);
    engine.pool().store().drop_caches();
    check(&fs, 0..13, LEN);
    assert_eq!(states(&rig, &engine, names), vec![then; names.len()]);
    // They work again, and the pool goes on with them.
    names.iter().for_each(|name| devices.device(&rig, name).repair());
    let writes = |name: &&str| devices.device(&rig, name).writes();
    let all: Vec<u64> = engine.pool().store().vdevs().leaves().iter().map(|l| l.guid()).collect();
    engine.restore(&all, Restore::Failure).unwrap();
    assert_eq!(states(&rig, &engine, names), vec![VdevState::Healthy; names.len()]);
    assert_eq!(engine.pool().health(), "ONLINE");
    let before: Vec<u64> = names.iter().map(writes).collect();
    fill(&fs, 13..16, LEN);
    engine.sync().unwrap();
    assert!(names.iter().map(writes).zip(before).all(|(now, before)| now > before));
    assert_eq!(behind(&rig, &engine), names);
    engine.pool().store().drop_caches();
    check(&fs, 0..16, LEN);
    drop(fs);
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
    let engine = rig.import();
    check_devices(&engine, 16, LEN);
    engine.export(false).unwrap();
}

#[test]
fn devices_that_fail_writes() {
    for (line, names) in [
        ("mirror a b", &["b"][..]),
        ("raidz1 a b c", &["c"]),
        ("raidz3 a b c d e", &["a", "b", "e"]),
    ] {
        failing(line, names, VdevState::Faulted, &|device| device.fail_writes(0..u64::MAX));
    }
}

#[test]
fn devices_that_go_away() {
    let gone = |device: &FaultyDevice| device.set_missing(true);
    failing("mirror a b", &["a"], VdevState::Faulted, &gone);
    failing("raidz2 a b c d e", &["a", "b"], VdevState::Faulted, &gone);
}

#[test]
fn devices_that_fail_flushes() {
    // Their labels are read and written all the same.
    let fault = |device: &FaultyDevice| device.set_flush_errors(true);
    failing("mirror a b", &["a"], VdevState::Faulted, &fault);
    failing("raidz1 a b c", &["b"], VdevState::Faulted, &fault);
    // Those that fail once stay in use.
    let once = |device: &FaultyDevice| device.fail_flushes(1);
    failing("mirror a b", &["a"], VdevState::Healthy, &once);
    failing("raidz1 a b c", &["b"], VdevState::Healthy, &once);
}

/// A flush that fails is an error of its device, and is reported; where no other device has the blocks the group is not
/// acknowledged.
#[test]
fn flushes_that_fail_are_reported() {
    for (line, survives) in [("mirror a b", true), ("a", false)] {
        let (rig, devices) = (Rig::new(64 << 20), Faulty::default());
        let engine = rig.create_on(line, 12, EngineOptions::default(), &devices);
        let fs = open(&engine);
        fill(&fs, 0..4, LEN);
        engine.sync().unwrap();
        let leaf = engine.pool().store().vdevs().leaves()[0].clone();
        let device = devices.device(&rig, "a");
        device.set_flush_errors(true);
        fill(&fs, 4..6, LEN);
        assert_eq!(engine.sync().is_ok(), survives);
        assert_eq!(engine.suspended().is_none(), survives);
        assert!(leaf.errors().1 > 0);
        let state = if survives { VdevState::Faulted } else { VdevState::Degraded };
        assert_eq!(leaf.state(), state);
        let (events, _) = cenote_pool::events::since(0);
        let mine = events.iter().map(|e| &e.payload);
        let mine = mine.filter(|event| event.u64("vdev_guid") == Some(leaf.guid()));
        let has = |class: &str, kind: Option<NvValue>| {
            let of_class = |event: &&NvList| event.str("class") == Some(class);
            mine.clone().filter(of_class).any(|event| event.get("zio_type") == kind.as_ref())
        };
        assert!(has("ereport.fs.zfs.io", Some(NvValue::Uint32(5))));
        assert!(has("ereport.fs.zfs.probe_failure", None));
        if survives {
            drop(fs);
            engine.export(false).unwrap();
        }
    }
}

/// A device loses a group at its end, and then, before that is on record, writes of the next.
#[test]
fn devices_that_fail_in_several_ways() {
    let (rig, devices) = (Rig::new(64 << 20), Faulty::default());
    let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), &devices);
    let (fs, device) = (open(&engine), devices.device(&rig, "a"));
    device.fail_flushes(1);
    fill(&fs, 0..4, LEN);
    engine.sync().unwrap();
    // Writes fail late: what was missed until then has long been asked for.
    device.fail_writes(0..u64::MAX);
    device.set_delay(Duration::from_millis(100));
    fill(&fs, 4..8, LEN);
    engine.sync().unwrap();
    device.repair();
    let a = engine.pool().store().vdevs().leaves()[0].guid();
    engine.restore(&[a], Restore::Failure).unwrap();
    drop(fs);
    engine.export(false).unwrap();
    drop((engine, devices, device));
    rig.judge_blocks();
    let engine = rig.import();
    assert_eq!(behind(&rig, &engine), ["a"]);
    check_devices(&engine, 8, LEN);
    engine.export(false).unwrap();
}

/// Puts what a file held before in its place; it stays the same file.
fn overwrite(path: &Path, with: &[u8]) {
    let mut file = std::fs::File::options().write(true).truncate(true).open(path).unwrap();
    io::Write::write_all(&mut file, with).unwrap();
}

/// A device comes back in the state that it was in long before it went: it missed what was written
/// to it, too.
#[test]
fn devices_of_old() {
    for (line, out) in [("mirror a b", "b"), ("raidz1 a b c", "a")] {
        let rig = Rig::new(64 << 20);
        let engine = rig.create(line, 12);
        let fs = open(&engine);
        fill(&fs, 0..4, LEN);
        engine.sync().unwrap();
        let old = std::fs::read(rig.file(out)).unwrap();
        for i in 4..8 {
            fill(&fs, i..i + 1, LEN);
            engine.sync().unwrap();
        }
        let leaves = engine.pool().store().vdevs().leaves();
        let leaf = leaves.iter().find(|l| l.path() == Some(&rig.file(out))).unwrap();
        engine.take_out(leaf.guid(), TakeOut::OfflineForNow).unwrap();
        overwrite(&rig.file(out), &old);
        engine.restore(&[leaf.guid()], Restore::Offline).unwrap();
        assert_eq!(engine.pool().health(), "ONLINE");
        assert_eq!(behind(&rig, &engine), [out]);
        check_devices(&engine, 8, LEN);
        fill(&fs, 8..10, LEN);
        drop(fs);
        engine.export(false).unwrap();
        drop((engine, leaves));
        rig.judge_blocks();
        let engine = rig.import();
        check_devices(&engine, 10, LEN);
        engine.export(false).unwrap();
    }
}

/// What is in the place of a device may be newer than the pool: another system wrote to it.
#[test]
fn devices_that_others_wrote_to() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..2, LEN);
    engine.export(false).unwrap();
    drop(engine);
    let a = std::fs::read(rig.file("a")).unwrap();
    let engine = rig.import();
    for i in 2..6 {
        fill(&open(&engine), i..i + 1, LEN);
        engine.sync().unwrap();
    }
    engine.export(false).unwrap();
    drop(engine);
    // Its other half goes on alone, from where both were.
    let place = hide(&rig, &["b"]);
    overwrite(&rig.file("a"), &a);
    let engine = rig.import();
    bring_back(&rig, place, &["b"]);
    let newer = std::fs::read(rig.file("b")).unwrap();
    let b = engine.pool().store().vdevs().leaves()[1].guid();
    for (i, what) in (2..).zip([Restore::Nothing, Restore::Failure, Restore::Offline]) {
        engine.restore(&[b], what).unwrap();
        fill(&open(&engine), i..i + 1, LEN);
        engine.sync().unwrap();
        assert_eq!(engine.pool().health(), "DEGRADED");
    }
    assert!(std::fs::read(rig.file("b")).unwrap() == newer);
    engine.export(false).unwrap();
    drop(engine);
    std::fs::remove_file(rig.file("b")).unwrap();
    rig.judge_blocks();
}

/// A device that the pool cannot do without fails and stays in use; when it answers again, what is
/// there is not its own.
#[test]
fn the_last_device_is_not_taken_for_another() {
    let (rig, devices) = (Rig::new(64 << 20), Faulty::default());
    let options =
        EngineOptions { txg_timeout: Some(Duration::from_secs(600)), ..Default::default() };
    let engine = rig.create_on("a", 12, options, &devices);
    let fs = open(&engine);
    fill(&fs, 0..4, LEN);
    engine.sync().unwrap();
    let own = std::fs::read(rig.file("a")).unwrap();
    let (device, ino) = (devices.device(&rig, "a"), fs.lookup(fs.root(), b"file 1").unwrap());
    device.set_missing(true);
    engine.pool().store().drop_caches();
    assert!(fs.read(ino, 0, &mut [0; 1000]).is_err());
    assert_eq!(states(&rig, &engine, &["a"]), [VdevState::Degraded]);
    device.repair();
    fill(&fs, 4..5, LEN);
    let blank = vec![0; own.len()];
    overwrite(&rig.file("a"), &blank);
    assert!(engine.sync().is_err());
    assert!(std::fs::read(rig.file("a")).unwrap() == blank);
    drop((fs, engine, devices, device));
    overwrite(&rig.file("a"), &own);
    rig.import().export(false).unwrap();
    rig.judge();
}

/// A dataset that is slow to open keeps no group from being closed.
#[test]
fn groups_are_closed_while_a_dataset_is_being_opened() {
    let (rig, devices) = (Rig::new(64 << 20), Faulty::default());
    let engine = rig.create_on("a", 12, EngineOptions::default(), &devices);
    let fs = open(&engine);
    fill(&fs, 0..2, LEN);
    let dataset = fs.objset().id();
    drop(fs);
    engine.close(dataset).unwrap();
    engine.pool().store().drop_caches();
    let device = devices.device(&rig, "a");
    let before = device.reads();
    device.set_delay(Duration::from_millis(600));
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| {
            let began = Instant::now();
            assert_eq!(engine.live(dataset).unwrap().id(), dataset);
            began.elapsed()
        });
        until(|| device.reads() > before);
        engine.sync_task(|_| Ok(())).unwrap();
        let quiescing = engine.figures().last().unwrap().quiescing;
        let opening = opened.join().unwrap();
        assert!(quiescing < opening / 2, "{quiescing:?} of {opening:?}");
    });
    device.repair();
    check(&open(&engine), 0..2, LEN);
    engine.export(false).unwrap();
    drop((engine, devices, device));
    rig.judge_blocks();
}

/// A change that has to read how much its dataset may write keeps no other dataset's writers waiting.
#[test]
fn writers_do_not_wait_for_what_others_read_of_the_mos() {
    let (rig, devices) = (Rig::new(64 << 20), Faulty::default());
    let engine = rig.create_on("a", 12, EngineOptions::default(), &devices);
    let new = NewDataset { name: "tank/a".into(), kind: Kind::Filesystem, props: vec![] };
    changes(&engine).create(&new).unwrap();
    let other = engine.pool().dsl().find("tank/a").unwrap().unwrap().ds_obj;
    let other = FileSystem::open_live(engine.live(other).unwrap(), Settings::default()).unwrap();
    let fs = open(&engine);
    let mine = fs.create(fs.root(), b"mine", &NODE).unwrap().ino;
    let theirs = other.create(other.root(), b"theirs", &NODE).unwrap().ino;
    engine.sync().unwrap();
    fs.write(mine, 0, &[1; 4096], false).unwrap();
    // What the next write to the other one needs to know of the MOS is in no cache.
    engine.pool().store().drop_caches();
    let device = devices.device(&rig, "a");
    device.set_hung(true);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| other.write(theirs, 0, &[2; 4096], false).unwrap());
        until(|| device.waiting() > 0);
        let written = scope.spawn(|| {
            for byte in 0..100 {
                fs.write(mine, 0, &[byte; 4096], false).unwrap();
            }
        });
        let done = until(|| written.is_finished());
        let waited = !waits.is_finished();
        device.repair();
        assert!(done && waited);
        written.join().unwrap();
        waits.join().unwrap();
    });
    drop((fs, other));
    engine.export(false).unwrap();
    drop((engine, devices, device));
    rig.judge_blocks();
}
