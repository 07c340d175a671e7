//! Scrub and resilver: whatever is wrong within what redundancy can make up for is right afterwards, on every device, and
//! errors are counted on the right ones. OpenZFS's `zdb` agrees; where it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dmu::write::ZapMut;
use cenote_engine::change::{NewClone, NewSnapshot};
use cenote_engine::planted::Moment;
use cenote_engine::tunables::SCAN_SUSPEND_PROGRESS;
use cenote_engine::{Engine, EngineOptions, ScanError, SyncContext, TakeOut};
use cenote_format::encode::zap::Key;
use cenote_pool::reopen::Restore;
use cenote_pool::scan::{ScanKind, ScanPhys, ScanState, ScanStatus};
use cenote_store::{Bookmark, ScanBlock, ScanFunc, ScanKeys};
use cenote_testpools::Random;
use cenote_zpl::{FileSystem, Settings};
use rig::{Faulty, Rig, check, fill, open};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const SIZE: u64 = 64 << 20;
const LEN: usize = 300_000;
/// Where blocks begin on a device, and what is behind them.
const START: u64 = 4 << 20;
const END: u64 = 512 << 10;

fn scan(engine: &Engine) -> Option<ScanStatus> {
    engine.pool().status().unwrap().scan
}

/// Waits for what is under way, and says how it ended. Another one may follow at once: the answer is the end that was seen.
fn finished(engine: &Engine) -> ScanStatus {
    let begun = Instant::now();
    loop {
        let seen = scan(engine).unwrap();
        if !seen.is_running() {
            return seen;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{seen:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn scrubbed(engine: &Engine) -> ScanStatus {
    engine.scrub().unwrap();
    let done = finished(engine);
    assert_eq!((done.kind, done.state), (ScanKind::Scrub, ScanState::Finished));
    done
}

/// Flips bits of some sectors of a device.
fn spoil(path: &Path, seed: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut bytes = vec![0; (SIZE - START - END) as usize];
    file.read_exact_at(&mut bytes, START).unwrap();
    let mut random = Random(seed);
    for sector in bytes.chunks_mut(512) {
        if random.below(3) == 0 {
            let at = random.below(512) as usize;
            sector[at] ^= 1 << random.below(8);
        }
    }
    file.write_all_at(&bytes, START).unwrap();
}

/// Checksum errors by leaf, in the order of the config.
fn errors(engine: &Engine) -> Vec<u64> {
    engine.pool().store().vdevs().leaves().iter().map(|l| l.errors().2).collect()
}

fn read_all(engine: &Engine, files: u64) {
    engine.pool().store().drop_caches();
    check(&open(engine), 0..files, LEN);
}

/// All that some devices hold is spoiled here and there; a scrub mends it; then others are gone.
fn mends(line: &str, ashift: u64, names: &[&str], wrong: &[usize], gone: &[&str]) {
    let rig = Rig::new(SIZE);
    let engine = rig.create(line, ashift);
    fill(&open(&engine), 0..6, LEN);
    engine.export(false).unwrap();
    drop(engine);
    for (seed, i) in (1..).zip(wrong) {
        spoil(&rig.file(names[*i]), seed);
    }
    let engine = rig.import();
    let done = scrubbed(&engine);
    assert_eq!(done.errors, 0, "{line}");
    assert!(done.processed > 0, "{line}");
    let found = errors(&engine);
    for (i, n) in found.iter().enumerate() {
        assert_eq!(*n > 0, wrong.contains(&i), "{line}: {found:?}");
    }
    // Nothing is wrong any more, parity neither.
    let again = scrubbed(&engine);
    assert_eq!((again.errors, again.processed), (0, 0), "{line}");
    assert_eq!(errors(&engine), found, "{line}");
    assert!(engine.pool().store().errors().is_empty());
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    let place = tempfile::tempdir().unwrap();
    gone.iter().for_each(|name| std::fs::rename(rig.file(name), place.path().join(name)).unwrap());
    let engine = rig.import();
    read_all(&engine, 6);
    let leaves = engine.pool().store().vdevs().leaves();
    assert!(leaves.iter().all(|leaf| leaf.errors() == (0, 0, 0)), "{line}");
    engine.export(false).unwrap();
}

#[test]
fn mirrors_are_mended() {
    mends("mirror a b", 12, &["a", "b"], &[0], &["b"]);
    mends("mirror a b c d", 9, &["a", "b", "c", "d"], &[0, 1, 3], &["a", "b", "c"]);
}

#[test]
fn raidz_is_mended() {
    mends("raidz1 a b c", 12, &["a", "b", "c"], &[1], &["a"]);
    mends("raidz2 a b c d e", 9, &["a", "b", "c", "d", "e"], &[0, 3], &["b", "d"]);
    mends("raidz3 a b c d e f", 12, &["a", "b", "c", "d", "e", "f"], &[1, 2, 5], &["a", "b", "c"]);
}

#[test]
fn classes_are_mended() {
    let names = ["a", "b", "c", "d", "e", "f"];
    mends("mirror a b special mirror c d log mirror e f", 12, &names, &[1, 2], &["a", "d"]);
}

/// What has no redundancy is an error of its device and of the scrub, and the rest is mended from other copies.
#[test]
fn ditto_copies_are_mended() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("a", 12);
    fill(&open(&engine), 0..6, LEN);
    engine.export(false).unwrap();
    drop(engine);
    let engine = rig.import();
    spoil(&rig.file("a"), 7);
    let done = scrubbed(&engine);
    assert!(done.errors > 0 && done.processed > 0);
    assert!(engine.pool().store().errors().len() as u64 >= done.errors);
    let again = scrubbed(&engine);
    assert_eq!(again.processed, 0);
}

/// Files are written and removed while pools are scrubbed: nothing that is right is taken for wrong.
#[test]
fn under_load() {
    for line in ["mirror a b", "raidz1 a b c"] {
        let rig = Rig::new(SIZE);
        let engine = rig.create(line, 12);
        let fs = open(&engine);
        fill(&fs, 0..4, LEN);
        engine.sync().unwrap();
        std::thread::scope(|scope| {
            let scrubs = scope.spawn(|| {
                for _ in 0..6 {
                    let done = scrubbed(&engine);
                    assert_eq!((done.errors, done.processed), (0, 0));
                }
            });
            let mut i = 4;
            while !scrubs.is_finished() {
                fill(&fs, i..i + 1, LEN);
                if i > 8 {
                    fs.unlink(fs.root(), format!("file {}", i - 4).as_bytes(), &|_| false).unwrap();
                }
                engine.sync().unwrap();
                i += 1;
            }
            scrubs.join().unwrap();
        });
        assert!(errors(&engine).iter().all(|n| *n == 0));
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        rig.judge_blocks();
    }
}

/// Orders that do not fit what is under way are refused; a scrub that is paused goes on after an import.
#[test]
fn scrubs_are_paused_and_given_up() {
    let (rig, devices) = (Rig::new(SIZE), Faulty::default());
    let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), &devices);
    fill(&open(&engine), 0..4, LEN);
    engine.sync().unwrap();
    assert!(matches!(engine.stop_scrub(), Err(ScanError::NoScrub)));
    assert!(matches!(engine.pause_scrub(), Err(ScanError::NoScrub)));
    devices.device(&rig, "a").set_delay(Duration::from_millis(400));
    engine.scrub().unwrap();
    engine.pause_scrub().unwrap();
    let again = engine.pause_scrub();
    assert!(matches!(again, Err(ScanError::Paused)), "{again:?} {:?}", scan(&engine));
    let paused = scan(&engine).unwrap();
    assert!(paused.is_running() && paused.pass.paused != 0);
    engine.scrub().unwrap();
    assert!(matches!(engine.scrub(), Err(ScanError::Scrubbing)));
    devices.device(&rig, "a").repair();
    finished(&engine);
    devices.device(&rig, "a").set_delay(Duration::from_millis(400));
    engine.scrub().unwrap();
    engine.pause_scrub().unwrap();
    devices.device(&rig, "a").repair();
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
    let engine = rig.import();
    assert!(scan(&engine).unwrap().is_running());
    engine.scrub().unwrap();
    assert_eq!(finished(&engine).state, ScanState::Finished);
    engine.scrub().unwrap();
    let stopped = engine.stop_scrub();
    assert!(matches!(stopped, Ok(()) | Err(ScanError::NoScrub)));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// A device that was away is given what it missed, and no more; then the others go.
fn resilvers(line: &str, names: &[&str], away: &str, gone: &[&str]) {
    let rig = Rig::new(SIZE);
    let engine = rig.create(line, 12);
    let fs = open(&engine);
    fill(&fs, 0..12, LEN);
    engine.sync().unwrap();
    let leaves = engine.pool().store().vdevs().leaves();
    let at = names.iter().position(|name| *name == away).unwrap();
    engine.take_out(leaves[at].guid(), TakeOut::OfflineForNow).unwrap();
    fill(&fs, 12..14, LEN);
    engine.sync().unwrap();
    assert!(leaves[at].is_behind());
    engine.restore(&[leaves[at].guid()], Restore::Offline).unwrap();
    let done = finished(&engine);
    assert_eq!((done.kind, done.state, done.errors), (ScanKind::Resilver, ScanState::Finished, 0));
    assert!(done.processed > 0 && done.processed < 6 * LEN as u64, "{line}: {done:?}");
    assert!(!leaves[at].is_behind(), "{line}: {:?}", leaves[at].missing());
    let scrub = scrubbed(&engine);
    assert_eq!((scrub.errors, scrub.processed), (0, 0), "{line}");
    drop(fs);
    engine.export(false).unwrap();
    drop((engine, leaves));
    rig.judge_blocks();
    let place = tempfile::tempdir().unwrap();
    gone.iter().for_each(|name| std::fs::rename(rig.file(name), place.path().join(name)).unwrap());
    let engine = rig.import();
    read_all(&engine, 14);
    engine.export(false).unwrap();
}

#[test]
fn devices_that_come_back_are_resilvered() {
    resilvers("mirror a b", &["a", "b"], "a", &["b"]);
    resilvers("mirror a b c", &["a", "b", "c"], "b", &["a", "c"]);
    resilvers("raidz1 a b c", &["a", "b", "c"], "c", &["a"]);
    resilvers("raidz2 a b c d", &["a", "b", "c", "d"], "a", &["b", "d"]);
}

/// A device that was absent is resilvered by the import that finds it again.
#[test]
fn an_import_resilvers() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..4, LEN);
    engine.export(false).unwrap();
    drop(engine);
    let place = tempfile::tempdir().unwrap();
    std::fs::rename(rig.file("b"), place.path().join("b")).unwrap();
    let engine = rig.import();
    fill(&open(&engine), 4..8, LEN);
    engine.export(false).unwrap();
    drop(engine);
    std::fs::rename(place.path().join("b"), rig.file("b")).unwrap();
    let engine = rig.import();
    assert_eq!(finished(&engine).kind, ScanKind::Resilver);
    assert!(engine.pool().store().vdevs().leaves().iter().all(|leaf| !leaf.is_behind()));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    std::fs::remove_file(rig.file("a")).unwrap();
    let engine = rig.import();
    read_all(&engine, 8);
    engine.export(false).unwrap();
}

/// A scrub of what was written since the last one looks at nothing else, and finds what is wrong there.
#[test]
fn since_the_last_scrub() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..10, LEN);
    engine.sync().unwrap();
    let all = scrubbed(&engine);
    assert_eq!(engine.pool().get("last_scrubbed_txg").unwrap().exact, max_txg(&engine).to_string());
    fill(&open(&engine), 10..11, LEN);
    engine.sync().unwrap();
    engine.scrub_since_last().unwrap();
    let some = finished(&engine);
    assert!(some.examined > LEN as u64 && some.examined < all.examined / 3, "{some:?} {all:?}");
    engine.export(false).unwrap();
}

fn max_txg(engine: &Engine) -> u64 {
    ScanPhys::load(engine.pool().directory()).unwrap().unwrap().max_txg
}

/// A block of which the only copy is wrong can be given to no device: the one that missed it has all that there is. Where the
/// copy cannot be read, it still lacks it, and the resilver ends all the same.
#[test]
fn a_resilver_that_cannot_give_all_ends() {
    for wrong in [true, false] {
        cannot_give_all(wrong);
    }
}

fn cannot_give_all(wrong: bool) {
    let (rig, devices) = (Rig::new(SIZE), Faulty::default());
    let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), &devices);
    let fs = open(&engine);
    fill(&fs, 0..4, LEN);
    engine.sync().unwrap();
    let b = engine.pool().store().vdevs().leaves()[1].clone();
    engine.take_out(b.guid(), TakeOut::OfflineForNow).unwrap();
    devices.close(&rig, "b");
    fill(&fs, 4..6, LEN);
    engine.sync().unwrap();
    let ino = fs.lookup(fs.root(), b"file 4").unwrap();
    let root = engine.pool().dsl().root().unwrap().ds_obj;
    let set = engine.live(root).unwrap();
    let dva = set.base().object(ino).unwrap().block_pointer(0, 0).unwrap().dva(0).unwrap();
    let (a, sector) = (devices.device(&rig, "a"), START + dva.offset..START + dva.offset + 4096);
    match wrong {
        true => a.corrupt(sector, 0x5a),
        false => a.fail(sector),
    }
    engine.restore(&[b.guid()], Restore::Offline).unwrap();
    let done = finished(&engine);
    assert_eq!((done.kind, done.state, done.errors), (ScanKind::Resilver, ScanState::Finished, 1));
    // Others follow as long as each leaves less.
    std::thread::sleep(Duration::from_millis(2000));
    let done = finished(&engine);
    assert_eq!((done.kind, done.state, done.errors), (ScanKind::Resilver, ScanState::Finished, 1));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(scan(&engine), Some(done));
    assert_eq!(b.is_behind(), !wrong);
    a.repair();
    drop((fs, set));
    engine.export(false).unwrap();
}

/// The places on a device of the root block of the root file system.
fn root_block(engine: &Engine) -> Vec<std::ops::Range<u64>> {
    let root = engine.pool().dsl().root().unwrap().ds.bp;
    root.dvas().map(|dva| START + dva.offset..START + dva.offset + dva.asize).collect()
}

/// What cannot be read for a while is not taken for gone: nothing counts as given, nothing is lost.
#[test]
fn what_could_not_be_read_is_not_given() {
    let (rig, devices) = (Rig::new(SIZE), Faulty::default());
    let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), &devices);
    let fs = open(&engine);
    fill(&fs, 0..4, LEN);
    engine.sync().unwrap();
    let b = engine.pool().store().vdevs().leaves()[1].clone();
    engine.take_out(b.guid(), TakeOut::OfflineForNow).unwrap();
    devices.close(&rig, "b");
    fill(&fs, 4..8, LEN);
    engine.sync().unwrap();
    let a = devices.device(&rig, "a");
    SCAN_SUSPEND_PROGRESS.set(1).unwrap();
    engine.restore(&[b.guid()], Restore::Offline).unwrap();
    // The newest ones are on the other side, too.
    let other = std::fs::OpenOptions::new().write(true).open(rig.file("b")).unwrap();
    for place in root_block(&engine) {
        let wrong = vec![0x5a; (place.end - place.start) as usize];
        other.write_all_at(&wrong, place.start).unwrap();
        a.fail(place);
    }
    engine.pool().store().drop_caches();
    SCAN_SUSPEND_PROGRESS.set(0).unwrap();
    let done = finished(&engine);
    assert_eq!((done.kind, done.state), (ScanKind::Resilver, ScanState::Finished));
    assert!(done.errors > 0 && b.is_behind(), "{done:?}");
    a.repair();
    // Another one may follow by itself.
    while engine.awaits_resilver() {
        std::thread::sleep(Duration::from_millis(20));
    }
    if engine.start_resilver().unwrap() {
        finished(&engine);
    }
    let done = finished(&engine);
    assert_eq!((done.kind, done.errors, b.is_behind()), (ScanKind::Resilver, 0, false));
    // Another scan counts its own errors.
    assert_eq!(scrubbed(&engine).errors, 0);
    drop(fs);
    engine.export(false).unwrap();
    drop((engine, devices, b));
    rig.judge_blocks();
    std::fs::remove_file(rig.file("a")).unwrap();
    let engine = rig.import();
    read_all(&engine, 8);
    engine.export(false).unwrap();
}

/// A scan that can do nothing for a while goes on by itself.
#[test]
fn a_scan_waits_for_what_it_needs() {
    let (rig, devices) = (Rig::new(SIZE), Faulty::default());
    let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), &devices);
    fill(&open(&engine), 0..4, LEN);
    engine.sync().unwrap();
    let both = ["a", "b"].map(|name| devices.device(&rig, name));
    both.iter().for_each(|device| device.set_delay(Duration::from_millis(100)));
    engine.scrub().unwrap();
    let directory = engine.pool().mos().object(1).unwrap().block_pointer(0, 0).unwrap();
    for dva in directory.dvas() {
        let place = START + dva.offset..START + dva.offset + dva.asize;
        both.iter().for_each(|device| device.fail(place.clone()));
    }
    // The round under way is begun again, and does not find the state.
    engine.pause_scrub().unwrap();
    engine.scrub().unwrap();
    engine.pool().store().drop_caches();
    std::thread::sleep(Duration::from_millis(500));
    both.iter().for_each(|device| device.repair());
    assert_eq!(finished(&engine).state, ScanState::Finished);
    engine.export(false).unwrap();
}

/// A clone that its origin does not list is found all the same.
#[test]
fn clones_are_found_without_their_list() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..2, LEN);
    let changes = rig::changes(&engine);
    let origin = "tank@s".to_string();
    changes.snapshot(&NewSnapshot { names: vec![origin.clone()], props: vec![] }).unwrap();
    changes.clone_snapshot(&NewClone { origin, name: "tank/c".into(), props: vec![] }).unwrap();
    let clone = |engine: &Engine| {
        let clone = engine.pool().dsl().find("tank/c").unwrap().unwrap();
        FileSystem::open_live(engine.live(clone.ds_obj).unwrap(), Settings::default()).unwrap()
    };
    fill(&clone(&engine), 2..5, LEN);
    engine.sync().unwrap();
    let list = engine.pool().dsl().find("tank@s").unwrap().unwrap().ds.next_clones;
    let entry = format!("{:x}", engine.pool().dsl().find("tank/c").unwrap().unwrap().ds_obj);
    let forget = move |context: &mut SyncContext<'_>| {
        Ok(ZapMut::open(context.tx.mos, list).remove(&Key::Name(entry.as_bytes()))?)
    };
    engine.sync_task(forget).unwrap();
    engine.export(false).unwrap();
    drop((engine, changes));
    spoil(&rig.file("a"), 3);
    let engine = rig.import();
    let done = scrubbed(&engine);
    assert!(done.errors == 0 && done.processed > 0);
    engine.export(false).unwrap();
    drop(engine);
    std::fs::remove_file(rig.file("b")).unwrap();
    let engine = rig.import();
    engine.pool().store().drop_caches();
    check(&clone(&engine), 0..5, LEN);
    assert_eq!(errors(&engine), [0, 0]);
    engine.export(false).unwrap();
}

/// A pointer that makes no sense is an error, once.
#[test]
fn senseless_pointers_are_errors() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..1, LEN);
    engine.sync().unwrap();
    let mos = engine.pool().mos().clone();
    let mut bp = mos.object(1).unwrap().block_pointer(0, 0).unwrap();
    // No checksum has that number.
    bp.0[6] |= 0xff << 40;
    let at = Bookmark { objset: 0, object: 1, level: 0, blkid: 0 };
    let block = |copy| ScanBlock { bp, at, copy, first: copy == 0 };
    let copies: Vec<ScanBlock> = (0..3).map(block).collect();
    let pool = engine.pool();
    let scanned = pool
        .store()
        .scan_many(ScanFunc::Scrub, &copies, (&ScanKeys::default(), &Default::default()), &|| true)
        .unwrap();
    assert_eq!((scanned.errors, scanned.repaired), (1, 0));
    assert_eq!(pool.store().errors().into_iter().collect::<Vec<_>>(), [at]);
    engine.export(false).unwrap();
}

/// What a device loses of repairs, as a flush fails, is repaired once more.
#[test]
fn repairs_that_are_lost_are_made_again() {
    let (rig, devices) = (Rig::new(SIZE), Faulty::default());
    let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), &devices);
    let fs = open(&engine);
    fill(&fs, 0..1, LEN);
    engine.sync().unwrap();
    let ino = fs.lookup(fs.root(), b"file 0").unwrap();
    let root = engine.pool().dsl().root().unwrap().ds_obj;
    let dva = engine.live(root).unwrap().base().object(ino).unwrap().block_pointer(0, 0).unwrap();
    let place = START + dva.dva(0).unwrap().offset;
    let held = |rig: &Rig, name: &str| {
        let mut data = vec![0; 4096];
        std::fs::File::open(rig.file(name)).unwrap().read_exact_at(&mut data, place).unwrap();
        data
    };
    let (right, path) = (held(&rig, "b"), rig.file("a"));
    let wrong: Vec<u8> = right.iter().map(|byte| byte ^ 0x5a).collect();
    let spoils = move || {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&wrong, place).unwrap();
    };
    spoils();
    let a = devices.device(&rig, "a");
    engine.stop_at(Moment::RoundWalked, move || {
        spoils();
        a.fail_flushes(1);
    });
    let done = scrubbed(&engine);
    assert!(done.errors == 0 && done.processed >= 4096, "{done:?}");
    assert!(held(&rig, "a") == right);
    assert_eq!(scrubbed(&engine).processed, 0);
    drop(fs);
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
}
