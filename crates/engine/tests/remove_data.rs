//! Vdevs that hold data leave a pool in use: what they hold goes to others. OpenZFS judges what is left, goes on with half a
//! removal of ours, and we with half a one of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::create::SystemDevices;
use cenote_engine::{Engine, EngineOptions, RemoveError, tunables};
use cenote_pool::scan::ScanState;
use cenote_store::alloc::Class;
use cenote_zpl::FileSystem;
use rig::joining::{prepared, replace};
use rig::removing::{alone, ended, guid, removal, stand_still};
use rig::{Faulty, Rig, check, fill, open};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Sparse.
const SIZE: u64 = 512 << 20;
const LEN: usize = 600_000;

/// A pool without what OpenZFS 2.1 does not know of intent logs.
fn create(rig: &Rig, line: &str) -> Arc<Engine> {
    rig.create_choosing(line, 12, &[("zilsaxattr".into(), false)])
}

fn kinds(engine: &Engine) -> Vec<String> {
    let tree = engine.pool().store().vdevs();
    tree.root().children().iter().map(|top| top.kind().to_string()).collect()
}

#[track_caller]
fn state(engine: &Engine) -> ScanState {
    removal(engine).state
}

#[track_caller]
fn wait(engine: &Engine) {
    ended(engine);
    let removal = removal(engine);
    assert_eq!(removal.copied, removal.to_copy);
}

fn unlink(fs: &FileSystem, file: u64) {
    fs.unlink(fs.root(), format!("file {file}").as_bytes(), &|_| false).unwrap();
}

/// OpenZFS finds nothing wrong, and every block is accounted for.
fn judge(rig: &Rig) {
    rig.judge();
    let found = cenote_pool::discover(&[rig.path().to_path_buf()]);
    let options = cenote_pool::ImportOptions { readonly: true, ..Default::default() };
    rig::account(&cenote_pool::Pool::import(&found[0], &options).unwrap());
}

fn finish(rig: &Rig, engine: Arc<Engine>) {
    engine.export(false).unwrap();
    drop(engine);
    judge(rig);
    cenote_testpools::openzfs(rig.path(), "tank", "import\nscrub\nsync\nexport\n");
}

#[test]
fn a_vdev_leaves_and_everything_is_there() {
    let _alone = alone(100 << 10);
    let rig = Rig::new(SIZE);
    let engine = create(&rig, "a b c");
    let fs = open(&engine);
    fill(&fs, 0..24, LEN);
    engine.sync().unwrap();
    (0..24).step_by(3).for_each(|file| unlink(&fs, file));
    engine.sync().unwrap();
    assert!(engine.mapping_size(guid(&engine, 0)).unwrap() > 0);
    engine.remove(guid(&engine, 0)).unwrap();
    // Blocks that were copied are freed, and such as were not, and others are written.
    for file in (1..24).step_by(3) {
        unlink(&fs, file);
        fill(&fs, 100 + file..101 + file, LEN);
        engine.sync().unwrap();
    }
    wait(&engine);
    assert_eq!(kinds(&engine), ["indirect", "file", "file"]);
    assert!(matches!(engine.cancel_removal(), Err(RemoveError::NotActive)));
    engine.pool().store().drop_caches();
    (2..24).step_by(3).for_each(|file| check(&fs, file..file + 1, LEN));
    (1..24).step_by(3).for_each(|file| check(&fs, 100 + file..101 + file, LEN));
    // What lies on the removed vdev is freed.
    (2..24).step_by(6).for_each(|file| unlink(&fs, file));
    engine.sync().unwrap();
    drop(fs);
    finish(&rig, engine);
    // A second one, on which some of the first one is.
    let engine = rig.import();
    engine.remove(guid(&engine, 1)).unwrap();
    wait(&engine);
    assert_eq!(kinds(&engine), ["indirect", "indirect", "file"]);
    let fs = open(&engine);
    (5..24).step_by(6).for_each(|file| check(&fs, file..file + 1, LEN));
    assert!(matches!(engine.remove(guid(&engine, 2)), Err(RemoveError::Config)));
    drop(fs);
    finish(&rig, engine);
}

#[test]
fn a_removal_is_cancelled_and_done_again() {
    let _alone = alone(64 << 10);
    let rig = Rig::new(SIZE);
    let engine = create(&rig, "mirror a b mirror c d");
    let fs = open(&engine);
    fill(&fs, 0..40, LEN);
    engine.sync().unwrap();
    engine.remove(guid(&engine, 1)).unwrap();
    assert!(matches!(
        engine.remove(guid(&engine, 1)),
        Err(RemoveError::Already | RemoveError::Busy)
    ));
    let copied = || removal(&engine).copied;
    while copied() == 0 {
        std::thread::yield_now();
    }
    unlink(&fs, 0);
    engine.sync().unwrap();
    match engine.cancel_removal() {
        Ok(()) => {
            assert_eq!(
                (kinds(&engine), state(&engine)),
                (vec!["mirror".to_string(); 2], ScanState::Canceled)
            );
            fill(&fs, 50..60, LEN);
            engine.sync().unwrap();
            check(&fs, 1..40, LEN);
            engine.remove(guid(&engine, 1)).unwrap();
        }
        // It may have been faster.
        Err(e) => assert!(matches!(e, RemoveError::NotActive)),
    }
    wait(&engine);
    assert_eq!(kinds(&engine), ["mirror", "indirect"]);
    engine.pool().store().drop_caches();
    check(&fs, 1..40, LEN);
    drop(fs);
    finish(&rig, engine);
}

#[test]
fn half_a_removal_goes_on_after_an_import_and_in_openzfs() {
    let _alone = alone(64 << 10);
    for by_openzfs in [false, true] {
        let rig = Rig::new(SIZE);
        let engine = create(&rig, "a b");
        let fs = open(&engine);
        fill(&fs, 0..120, LEN);
        engine.sync().unwrap();
        engine.remove(guid(&engine, 0)).unwrap();
        while removal(&engine).copied == 0 {
            std::thread::yield_now();
        }
        stand_still(true);
        (0..120).step_by(7).for_each(|file| unlink(&fs, file));
        engine.sync().unwrap();
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        judge(&rig);
        if by_openzfs {
            cenote_testpools::openzfs(rig.path(), "tank", "import\nend-remove\nscrub\nexport\n");
        }
        stand_still(false);
        let engine = rig.import();
        wait(&engine);
        assert_eq!(kinds(&engine), ["indirect", "file"]);
        let fs = open(&engine);
        (0..120).filter(|file| file % 7 != 0).for_each(|file| check(&fs, file..file + 1, LEN));
        drop(fs);
        finish(&rig, engine);
    }
}

#[test]
fn half_a_removal_of_openzfs_goes_on() {
    let _alone = alone(1 << 20);
    let rig = Rig::new(SIZE);
    let _files = ["a", "b"].map(|file| rig.word(file));
    let openzfs = |script: &str| cenote_testpools::openzfs(rig.path(), "tank", script);
    openzfs(
        "create stripe
         dataset tank/fs
         write tank/fs 5 131072 90000000 1
         segment 65536
         begin-remove 0
         crash
        ",
    );
    let engine = rig.import();
    wait(&engine);
    assert_eq!(kinds(&engine)[0], "indirect");
    finish(&rig, engine);
    openzfs("import\ncheck tank/fs 5 90000000 1\nexport\n");
}

#[test]
fn what_cannot_be_removed_is_refused() {
    let _alone = alone(16 << 20);
    let rig = Rig::new(SIZE);
    let engine = create(&rig, "a");
    assert!(matches!(engine.remove(guid(&engine, 0)), Err(RemoveError::Config)));
    engine.export(false).unwrap();
    drop(engine);
    let rig = Rig::new(SIZE);
    let engine = create(&rig, "raidz1 a b c raidz1 d e f");
    assert!(matches!(engine.remove(guid(&engine, 0)), Err(RemoveError::Config)));
    engine.export(false).unwrap();
    drop(engine);
    let rig = Rig::new(SIZE);
    let engine = create(&rig, "a b");
    let fs = open(&engine);
    // More than one of them has room for.
    fill(&fs, 0..90, 6_000_000);
    engine.sync().unwrap();
    assert!(matches!(engine.remove(guid(&engine, 0)), Err(RemoveError::NoSpace)));
    // They are allocated from as before.
    fill(&fs, 90..95, 6_000_000);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

/// Devices fail while a vdev is copied: what is mapped is there, and the removal goes on when they work.
#[test]
fn devices_fail_meanwhile() {
    let _alone = alone(64 << 10);
    let rig = Rig::new(SIZE);
    let faulty = Faulty::default();
    let options = EngineOptions::default();
    let engine = rig.create_on("mirror a b mirror c d", 12, options, &faulty);
    let fs = open(&engine);
    fill(&fs, 0..60, LEN);
    engine.sync().unwrap();
    // One side of what is removed cannot be read, and one of what takes it cannot be written.
    faulty.device(&rig, "a").fail(0..u64::MAX);
    faulty.device(&rig, "c").fail_writes(8 << 20..u64::MAX);
    engine.remove(guid(&engine, 0)).unwrap();
    // What the other side got may be written once more after a flush that fails: its place waits as what is freed does.
    let end = Instant::now() + Duration::from_secs(60);
    while engine.allocator().figures(Class::Normal).deferred < 1 << 20 {
        assert!(Instant::now() < end, "what was written in vain is given out at once");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(state(&engine), ScanState::Scanning);
    let removal = removal(&engine);
    // Blocks that are freed meanwhile count as done.
    assert!(removal.copied < removal.to_copy / 4, "{removal:?}");
    fill(&fs, 60..62, LEN);
    check(&fs, 0..62, LEN);
    engine.cancel_removal().unwrap();
    check(&fs, 0..62, LEN);
    faulty.device(&rig, "a").repair();
    faulty.device(&rig, "c").repair();
    drop(fs);
    engine.export(false).unwrap();
    drop((engine, faulty));
    rig.judge_blocks();
}

/// Readers and writers go on while a vdev leaves.
#[test]
fn programs_go_on_meanwhile() {
    let _alone = alone(128 << 10);
    let rig = Rig::new(SIZE);
    let engine = create(&rig, "a mirror b c");
    let fs = open(&engine);
    fill(&fs, 0..40, LEN);
    engine.sync().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..2 {
            let (engine, fs, stop) = (&engine, &fs, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    engine.pool().store().drop_caches();
                    check(fs, 0..20 + n, LEN);
                }
            });
        }
        scope.spawn(|| {
            let mut file = 1000;
            while !stop.load(Ordering::Relaxed) {
                fill(&fs, file..file + 1, LEN);
                unlink(&fs, if file < 1015 { file - 1000 + 25 } else { file - 5 });
                engine.sync().unwrap();
                file += 1;
            }
        });
        engine.remove(guid(&engine, 0)).unwrap();
        wait(&engine);
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(rig::errors(&engine), (0, 0, 0));
    assert_eq!(kinds(&engine), ["indirect", "mirror"]);
    drop(fs);
    finish(&rig, engine);
}

/// Blocks of a vdev that was removed before lie on one that is being removed: they are freed where that was copied to, too.
#[test]
fn what_an_earlier_removal_moved_is_freed_everywhere() {
    let _alone = alone(64 << 10);
    for cancels in [false, true] {
        let rig = Rig::new(SIZE);
        let engine = create(&rig, "a b c");
        let fs = open(&engine);
        fill(&fs, 0..90, LEN);
        engine.sync().unwrap();
        engine.remove(guid(&engine, 0)).unwrap();
        wait(&engine);
        engine.remove(guid(&engine, 1)).unwrap();
        while removal(&engine).copied == 0 {
            std::thread::yield_now();
        }
        stand_still(true);
        (0..90).step_by(2).for_each(|file| unlink(&fs, file));
        engine.sync().unwrap();
        if cancels {
            match engine.cancel_removal() {
                Ok(()) => assert_eq!(state(&engine), ScanState::Canceled),
                Err(e) => assert!(matches!(e, RemoveError::NotActive)),
            }
        }
        stand_still(false);
        if !cancels {
            wait(&engine);
        }
        engine.pool().store().drop_caches();
        (1..90).step_by(2).for_each(|file| check(&fs, file..file + 1, LEN));
        (1..90).step_by(4).for_each(|file| unlink(&fs, file));
        engine.sync().unwrap();
        drop(fs);
        finish(&rig, engine);
    }
}

/// What is copied must fit on every vdev that it may go to.
/// A device that replaces another one is given what a removal has moved there.
#[test]
fn what_was_moved_is_resilvered() {
    let _alone = alone(64 << 10);
    let rig = Rig::new(SIZE);
    let engine = create(&rig, "a b");
    let fs = open(&engine);
    fill(&fs, 0..24, LEN);
    engine.sync().unwrap();
    engine.remove(guid(&engine, 0)).unwrap();
    wait(&engine);
    replace(&rig, &engine, "b", "c").unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while kinds(&engine) != ["indirect", "file"] {
        assert!(Instant::now() < end, "{:?}", kinds(&engine));
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::remove_file(rig.file("b")).unwrap();
    engine.pool().store().drop_caches();
    check(&fs, 0..24, LEN);
    drop(fs);
    finish(&rig, engine);
}

#[test]
fn nothing_joins_meanwhile_that_it_could_not_be_copied_to() {
    let _alone = alone(64 << 10);
    let rig = Rig::new(SIZE);
    // As new devices of files have it.
    let engine = rig.create_choosing("a b", 9, &[("zilsaxattr".into(), false)]);
    let fs = open(&engine);
    fill(&fs, 0..60, LEN);
    engine.sync().unwrap();
    let early = prepared(&rig, &engine, "raidz1 x y z", &SystemDevices).unwrap();
    stand_still(true);
    engine.remove(guid(&engine, 0)).unwrap();
    let refused = engine.add(early).unwrap_err().to_string();
    assert!(refused.contains("a device is being removed"), "{refused}");
    let refused =
        prepared(&rig, &engine, "raidz1 u v w", &SystemDevices).err().unwrap().to_string();
    assert!(refused.contains("does not support adding raidz"), "{refused}");
    engine.add(prepared(&rig, &engine, "mirror p q", &SystemDevices).unwrap()).unwrap();
    stand_still(false);
    wait(&engine);
    engine.pool().store().drop_caches();
    check(&fs, 0..60, LEN);
    drop(fs);
    finish(&rig, engine);
}

/// A pool on faulty files with some files in it.
fn faulty(rig: &Rig, line: &str) -> (Faulty, Arc<Engine>, Arc<FileSystem>) {
    let faulty = Faulty::default();
    let engine = rig.create_on(line, 12, EngineOptions::default(), &faulty);
    let fs = open(&engine);
    fill(&fs, 0..60, LEN);
    engine.sync().unwrap();
    (faulty, engine, fs)
}

/// Three sectors with data, all over what is in a file.
fn sectors(rig: &Rig, name: &str) -> Vec<Range<u64>> {
    const SECTOR: usize = 4096;
    let (mut file, mut used) = (std::fs::File::open(rig.file(name)).unwrap(), Vec::new());
    let mut bytes = vec![0; SECTOR];
    // Beside the labels.
    for at in (4 << 20..SIZE - (4 << 20)).step_by(SECTOR) {
        file.seek(SeekFrom::Start(at)).unwrap();
        file.read_exact(&mut bytes).unwrap();
        // Data do not compress.
        if bytes.iter().filter(|byte| **byte != 0).count() > SECTOR / 2 {
            used.push(at..at + SECTOR as u64);
        }
    }
    [1, 2, 3].map(|quarter| used[used.len() * quarter / 4].clone()).to_vec()
}

#[track_caller]
fn wait_for_reason(engine: &Engine, part: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while !engine.removal_waits().is_some_and(|why| why.contains(part)) {
        assert!(Instant::now() < end, "{:?}", engine.removal_waits());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(state(engine), ScanState::Scanning);
}

/// The files are there, and OpenZFS finds nothing wrong.
fn all_is_there(rig: &Rig, (faulty, engine, fs): (Faulty, Arc<Engine>, Arc<FileSystem>)) {
    assert_eq!(engine.removal_waits(), None);
    engine.pool().store().drop_caches();
    check(&fs, 0..60, LEN);
    drop(fs);
    engine.export(false).unwrap();
    drop((engine, faulty));
    rig.judge_blocks();
}

/// Each side of a mirror has sectors that it cannot read, and such as it reads wrong, all within one piece.
#[test]
fn a_bad_sector_costs_a_side_nothing_else() {
    let _alone = alone(16 << 20);
    let rig = Rig::new(SIZE);
    let (faulty, engine, fs) = faulty(&rig, "mirror a b mirror c d");
    let bad = sectors(&rig, "a");
    faulty.device(&rig, "a").fail(bad[0].clone());
    faulty.device(&rig, "b").fail(bad[1].clone());
    faulty.device(&rig, "b").corrupt(bad[2].clone(), 0xff);
    engine.remove(guid(&engine, 0)).unwrap();
    wait(&engine);
    assert_eq!(kinds(&engine), ["indirect", "mirror"]);
    all_is_there(&rig, (faulty, engine, fs));
}

/// Bytes that only one of two sides has right are not copied to a vdev of one device.
#[test]
fn sides_that_differ_wait_for_a_scrub() {
    let _alone = alone(16 << 20);
    let rig = Rig::new(SIZE);
    let (faulty, engine, fs) = faulty(&rig, "c mirror a b");
    let bad = sectors(&rig, "a");
    faulty.device(&rig, "b").corrupt(bad[1].clone(), 0xff);
    engine.remove(guid(&engine, 1)).unwrap();
    wait_for_reason(&engine, "scrub the pool");
    // As a scrub does.
    faulty.device(&rig, "b").repair();
    wait(&engine);
    assert_eq!(kinds(&engine), ["file", "indirect"]);
    all_is_there(&rig, (faulty, engine, fs));
}

#[test]
fn what_no_side_can_read_is_waited_for() {
    let _alone = alone(1 << 20);
    let rig = Rig::new(SIZE);
    let (faulty, engine, fs) = faulty(&rig, "mirror a b mirror c d");
    let bad = sectors(&rig, "a");
    ["a", "b"].iter().for_each(|side| faulty.device(&rig, side).fail(bad[1].clone()));
    engine.remove(guid(&engine, 0)).unwrap();
    wait_for_reason(&engine, "no device can read 4096 bytes there");
    // Groups are written meanwhile.
    fill(&fs, 60..62, LEN);
    engine.sync().unwrap();
    ["a", "b"].iter().for_each(|side| faulty.device(&rig, side).repair());
    wait(&engine);
    all_is_there(&rig, (faulty, engine, fs));
}

#[test]
fn a_side_that_hangs_holds_no_group() {
    let _alone = alone(1 << 20);
    let rig = Rig::new(SIZE);
    let (faulty, engine, fs) = faulty(&rig, "mirror a b mirror c d");
    stand_still(true);
    engine.remove(guid(&engine, 0)).unwrap();
    faulty.device(&rig, "b").set_reads_hung(true);
    stand_still(false);
    wait_for_reason(&engine, "does not answer");
    let begun = Instant::now();
    for file in 60..63 {
        fill(&fs, file..file + 1, LEN);
        engine.sync().unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(engine.removal_waits().unwrap().contains(&rig.word("b")));
    faulty.device(&rig, "b").set_reads_hung(false);
    wait(&engine);
    all_is_there(&rig, (faulty, engine, fs));
}

/// A removal is cancelled and another one begins while a device is waited for: what was read is not copied for that.
#[test]
fn what_was_read_for_one_removal_is_copied_for_no_other() {
    let _alone = alone(1 << 20);
    let rig = Rig::new(SIZE);
    let (faulty, engine, fs) = faulty(&rig, "mirror a b mirror c d mirror e f");
    // Time for some batches.
    tunables::find("zfs_free_min_time_ms").unwrap().set(60_000).unwrap();
    stand_still(true);
    engine.remove(guid(&engine, 0)).unwrap();
    let slow = faulty.device(&rig, "b");
    slow.set_delay(Duration::from_millis(100));
    let before = slow.reads();
    stand_still(false);
    // The first batch was read, and another one is waited for.
    while slow.reads() < before + 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    slow.set_reads_hung(true);
    slow.set_delay(Duration::ZERO);
    engine.cancel_removal().unwrap();
    engine.remove(guid(&engine, 1)).unwrap();
    slow.set_reads_hung(false);
    wait(&engine);
    tunables::find("zfs_free_min_time_ms").unwrap().set(1000).unwrap();
    assert_eq!(kinds(&engine), ["mirror", "indirect", "mirror"]);
    all_is_there(&rig, (faulty, engine, fs));
}

#[test]
fn a_vdev_that_takes_no_writes_is_passed_over() {
    let _alone = alone(64 << 10);
    let rig = Rig::new(SIZE);
    let (faulty, engine, fs) = faulty(&rig, "mirror a b mirror c d mirror e f");
    faulty.device(&rig, "c").fail_writes(8 << 20..u64::MAX);
    engine.remove(guid(&engine, 0)).unwrap();
    wait(&engine);
    faulty.device(&rig, "c").repair();
    all_is_there(&rig, (faulty, engine, fs));
}

/// Small pieces are read and written together.
#[test]
fn pieces_are_copied_in_batches() {
    let _alone = alone(16 << 10);
    let rig = Rig::new(SIZE);
    let (faulty, engine, fs) = faulty(&rig, "a b");
    stand_still(true);
    engine.remove(guid(&engine, 0)).unwrap();
    let (from, to) = (faulty.device(&rig, "a"), faulty.device(&rig, "b"));
    let pieces = removal(&engine).to_copy / (16 << 10);
    let (reads, writes) = (from.reads(), to.writes());
    stand_still(false);
    wait(&engine);
    let (reads, writes) = (from.reads() - reads, to.writes() - writes);
    assert!(reads < pieces / 4 && writes < pieces / 2, "{pieces}: {reads} {writes}");
    all_is_there(&rig, (faulty, engine, fs));
}

#[test]
fn special_and_dedup_vdevs_leave() {
    let _alone = alone(1 << 20);
    for (line, kinds_then) in [
        ("a b special c", ["file", "file", "indirect"].as_slice()),
        ("a dedup b special c special d", &["file", "file", "indirect", "file"]),
    ] {
        let rig = Rig::new(SIZE);
        let engine = create(&rig, line);
        let fs = open(&engine);
        fill(&fs, 0..24, LEN);
        engine.sync().unwrap();
        let allocated = |id| engine.allocator().group(id).map_or(0, |group| group.allocated());
        let held = allocated(2);
        assert!(held > 0);
        let before = (allocated(0) + allocated(1), allocated(3));
        engine.remove(guid(&engine, 2)).unwrap();
        wait(&engine);
        assert_eq!(kinds(&engine), kinds_then);
        // What it held goes to a vdev of its class, or to one for data if its class has no other.
        let after = (allocated(0) + allocated(1), allocated(3));
        let grown = if kinds_then.len() > 3 { after.1 - before.1 } else { after.0 - before.0 };
        assert!(grown > held / 2, "{before:?} {after:?} {held}");
        fill(&fs, 24..30, LEN);
        check(&fs, 0..30, LEN);
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        let engine = rig.import();
        check(&open(&engine), 0..30, LEN);
        if kinds_then.len() > 3 {
            engine.remove(guid(&engine, 1)).unwrap();
            wait(&engine);
        }
        finish(&rig, engine);
    }
}
