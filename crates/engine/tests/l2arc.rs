//! Cache devices: blocks that are written there are read from there, and found again by an import; and a device that fails,
//! hangs or has other bytes costs a read of the pool and no more. OpenZFS's `zdb` judges the pools, headers and log blocks.
//! Where it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dsl::crypt::KeyFormat;
use cenote_dsl::write::crypt::RootKey;
use cenote_engine::change::{Kind, NewDataset, NewEncryption};
use cenote_engine::{Engine, EngineOptions, TakeOut};
use cenote_format::LABEL_START;
use cenote_format::crypt::{Suite, WrappingKey};
use cenote_format::l2arc::{Header, LogBlock, header_sector};
use cenote_pool::ImportOptions;
use cenote_pool::reopen::Restore;
use cenote_store::{Caching, PrimaryCache};
use cenote_testpools::{zdb_command, zdb_output};
use cenote_vdev::VdevState;
use cenote_zpl::{FileSystem, Settings};
use rig::caches::{FILES, LEN, figures, filled, guid_of_cache, hits, tune, until, written};
use rig::{Faulty, Rig, check, fill, open};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What `zdb -l` says of a cache device: log blocks with right checksums.
fn judged_logs(rig: &Rig, file: &str) -> u64 {
    let (output, text) = zdb_output({
        let mut zdb = zdb_command(&["-lll"]);
        zdb.arg(rig.file(file));
        zdb
    });
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("L2ARC device header") && text.contains("0 with invalid cksum"),
        "{text}"
    );
    let line = text.lines().find(|line| line.contains("with valid cksum")).unwrap();
    line.split_whitespace().find_map(|word| word.parse().ok()).unwrap()
}

fn header(rig: &Rig, file: &str, ashift: u32) -> Option<Header> {
    let mut sector = vec![0; header_sector(ashift) as usize];
    let file = OpenOptions::new().read(true).open(rig.file(file)).unwrap();
    file.read_exact_at(&mut sector, LABEL_START).unwrap();
    Header::verified(&sector).unwrap()
}

#[test]
fn what_is_on_a_cache_device_is_read_from_there_and_found_again() {
    for ashift in [9, 12] {
        let rig = Rig::new(128 << 20);
        let engine = filled(&rig, "a cache b", ashift);
        let found = hits(&engine);
        assert!(found > FILES * 4, "{found} of {:?}", figures(&engine));
        let pool = engine.pool();
        let space = pool.cache_figures(guid_of_cache(&engine)).unwrap();
        assert!(space.allocated >= FILES * LEN as u64);
        let leaf = space.leaf.unwrap();
        assert_eq!(leaf.errors(), (0, 0, 0));
        assert!(leaf.io_stats().0 > 0 && leaf.io_stats().1 > 0);
        drop((pool, leaf));
        engine.export(false).unwrap();
        drop(engine);
        let header = header(&rig, "b", ashift as u32).unwrap();
        assert_eq!(judged_logs(&rig, "b"), header.log_count);
        assert!(header.log_count > 3, "{header:?}");
        rig.judge();
        let engine = rig.import();
        until("what was there", || figures(&engine).counts.rebuild_success == 1);
        let known = figures(&engine);
        assert_eq!(known.counts.rebuild_log_blks, header.log_count);
        assert!(known.sums.blocks > FILES * 4 && known.hdr_size > 0, "{known:?}");
        assert!(hits(&engine) > FILES * 4);
        let counts = figures(&engine).counts;
        assert_eq!((counts.cksum_bad, counts.io_error), (0, 0));
        engine.export(false).unwrap();
        drop(engine);
        judged_logs(&rig, "b");
        rig.judge();
    }
}

/// Other bytes in a file that may be in use.
fn overwrite(rig: &Rig, file: &str, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(rig.file(file)).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

#[test]
fn wrong_bytes_cost_a_read_of_the_pool() {
    let rig = Rig::new(128 << 20);
    let engine = filled(&rig, "a cache b", 9);
    let garbage = rig::bytes(99, 120 << 20);
    overwrite(&rig, "b", LABEL_START, &garbage);
    assert_eq!(hits(&engine), 0);
    let counts = figures(&engine).counts;
    assert!(counts.cksum_bad > FILES && counts.io_error == 0, "{counts:?}");
    let leaf = engine.pool().cache_leaf(guid_of_cache(&engine)).unwrap();
    assert_eq!(leaf.errors(), (0, 0, counts.cksum_bad));
    drop(leaf);
    assert_eq!(rig::errors(&engine), (0, 0, 0));
    assert!(engine.pool().store().errors().is_empty());
    engine.restore_cache(guid_of_cache(&engine), Restore::Failure).unwrap();
    let leaf = engine.pool().cache_leaf(guid_of_cache(&engine)).unwrap();
    assert_eq!(leaf.errors(), (0, 0, 0));
    drop(leaf);
    // What was wrong is written anew.
    until("blocks again", || figures(&engine).sums.asize >= FILES * LEN as u64);
    assert!(hits(&engine) > FILES * 4);
    engine.export(false).unwrap();
    drop(engine);
    // A device full of something else is begun anew.
    overwrite(&rig, "b", LABEL_START, &garbage);
    let engine = rig.import();
    until("the end of a look", || figures(&engine).counts.rebuild_dh_errors == 1);
    check(&open(&engine), 0..FILES, LEN);
    until("blocks once more", || figures(&engine).sums.asize >= FILES * LEN as u64);
    assert!(hits(&engine) > FILES * 4);
    engine.export(false).unwrap();
    drop(engine);
    assert!(judged_logs(&rig, "b") > 3);
    rig.judge();
}

/// Nothing tells whether bytes are right for which there is no checksum.
#[test]
fn blocks_without_a_checksum_never_come_there() {
    tune();
    let rig = Rig::new(128 << 20);
    let engine = rig.create("a cache b", 9);
    let off = [("checksum".to_string(), "off".to_string())];
    assert!(rig::changes(&engine).set("tank", &off).unwrap().is_empty());
    fill(&open(&engine), 0..FILES, LEN);
    engine.sync().unwrap();
    until("metadata there", || figures(&engine).sums.blocks > 0);
    hits(&engine);
    std::thread::sleep(Duration::from_millis(2500));
    let sums = figures(&engine).sums;
    assert!(sums.asize < 2 << 20, "{sums:?}");
    overwrite(&rig, "b", LABEL_START, &rig::bytes(99, 120 << 20));
    assert_eq!(hits(&engine), 0);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// What is put into the ARC wakes the thread of a cache device, and does not have it look again and again.
#[test]
fn what_is_put_in_has_no_device_looked_for_more_often() {
    let (rig, other) = (Rig::new(128 << 20), Rig::new(128 << 20));
    let engine = filled(&rig, "a cache b", 9);
    let without = other.create("a", 9);
    fill(&open(&without), 0..4, LEN);
    without.sync().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let (before, begun) = (figures(&engine).counts, Instant::now());
    while begun.elapsed() < Duration::from_secs(3) {
        without.pool().store().drop_caches();
        check(&open(&without), 0..4, LEN);
    }
    let (seconds, after) = (begun.elapsed().as_secs(), figures(&engine).counts);
    assert!(after.feeds > before.feeds, "{after:?}");
    assert!(after.feeds - before.feeds <= seconds + 2, "{before:?}, {after:?}");
    for (rig, engine) in [(rig, engine), (other, without)] {
        engine.export(false).unwrap();
        drop(engine);
        rig.judge_blocks();
    }
}

#[test]
fn damaged_headers_and_log_blocks_end_what_is_found_again() {
    let rig = Rig::new(128 << 20);
    let engine = filled(&rig, "a cache b", 12);
    engine.export(false).unwrap();
    drop(engine);
    let known = header(&rig, "b", 12).unwrap();
    // The third log block from the end.
    let of_last = {
        let file = std::fs::File::open(rig.file("b")).unwrap();
        let mut log = vec![0; known.logs[0].props.psize() as usize];
        file.read_exact_at(&mut log, known.logs[0].place).unwrap();
        LogBlock::decode(&log, &known.logs[0], known.entries).unwrap()
    };
    let damaged = rig.copy();
    overwrite(&damaged, "b", of_last.previous.place + 40, &[0xee; 8]);
    let (_, text) = zdb_output({
        let mut zdb = zdb_command(&["-l"]);
        zdb.arg(damaged.file("b"));
        zdb
    });
    assert!(text.contains("1 with invalid cksum"), "{text}");
    let engine = damaged.import();
    until("the damage", || figures(&engine).counts.rebuild_cksum_lb_errors == 1);
    let counts = figures(&engine).counts;
    assert_eq!((counts.rebuild_log_blks, counts.rebuild_success), (2, 0), "{counts:?}");
    check(&open(&engine), 0..FILES, LEN);
    engine.export(false).unwrap();
    drop(engine);
    damaged.judge_blocks();

    overwrite(&rig, "b", LABEL_START + 100, &[1]);
    let engine = rig.import();
    until("the damage", || figures(&engine).counts.rebuild_dh_errors == 1);
    assert_eq!(figures(&engine).counts.rebuild_log_blks, 0);
    check(&open(&engine), 0..FILES, LEN);
    engine.export(false).unwrap();
    drop(engine);
    assert!(header(&rig, "b", 12).is_some());
    rig.judge_blocks();
}

/// A pool on files that can be made to fail.
fn on_faulty(rig: &Rig, faulty: &Faulty) -> Arc<Engine> {
    tune();
    let engine = rig.create_on("a cache b", 9, EngineOptions::default(), faulty);
    let fs = open(&engine);
    fill(&fs, 0..FILES, LEN);
    engine.sync().unwrap();
    written(&engine);
    engine
}

#[test]
fn a_device_that_hangs_or_fails_keeps_nobody_waiting() {
    let (rig, faulty) = (Rig::new(128 << 20), Faulty::default());
    let engine = on_faulty(&rig, &faulty);
    let (device, guid) = (faulty.device(&rig, "b"), guid_of_cache(&engine));
    assert!(hits(&engine) > FILES * 4);
    device.set_reads_hung(true);
    let begun = Instant::now();
    hits(&engine);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(figures(&engine).counts.io_error > 0);
    assert_eq!(rig::errors(&engine), (0, 0, 0));
    device.set_reads_hung(false);
    until("an answer", || hits(&engine) > FILES);

    device.fail(0..128 << 20);
    until("a fault", || {
        hits(&engine);
        engine.pool().cache_state(&engine.pool().caches()[0]) == VdevState::Faulted
    });
    until("nothing there", || figures(&engine).sums.blocks == 0);
    assert_eq!(hits(&engine), 0);
    device.repair();
    engine.restore_cache(guid, Restore::Failure).unwrap();
    assert_eq!(engine.pool().cache_state(&engine.pool().caches()[0]), VdevState::Healthy);
    until("blocks again", || hits(&engine) > FILES);

    device.set_hung(true);
    let begun = Instant::now();
    check(&open(&engine), 0..FILES, LEN);
    hits(&engine);
    engine.export(false).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    device.set_hung(false);
    drop((engine, device, faulty));
    rig.judge();
}

/// A pool whose cache device hangs while it is written to.
fn hung(rig: &Rig, faulty: &Faulty) -> Arc<Engine> {
    let engine = on_faulty(rig, faulty);
    let device = faulty.device(rig, "b");
    device.set_hung(true);
    fill(&open(&engine), FILES..FILES + 8, LEN);
    engine.sync().unwrap();
    until("a write that hangs", || device.waiting() > 0);
    engine
}

#[test]
fn a_device_that_hangs_holds_none_of_the_pool() {
    let (rig, faulty) = (Rig::new(128 << 20), Faulty::default());
    let engine = hung(&rig, &faulty);
    engine.export(false).unwrap();
    drop(engine);
    let (first, device) = (faulty.device(&rig, "a"), faulty.device(&rig, "b"));
    assert_eq!(Arc::strong_count(&first), 2, "the pool's device is held");
    assert!(device.waiting() > 0);
    device.set_hung(false);
    drop((first, device, faulty));
    rig.judge_blocks();
}

/// Of what was left behind nothing comes to lie upon what is written later.
#[test]
fn a_device_that_hangs_is_used_anew_when_it_has_ended() {
    let (rig, faulty) = (Rig::new(128 << 20), Faulty::default());
    let engine = hung(&rig, &faulty);
    let (device, guid) = (faulty.device(&rig, "b"), guid_of_cache(&engine));
    engine.take_out_cache(guid, TakeOut::OfflineForNow).unwrap();
    engine.restore_cache(guid, Restore::Offline).unwrap();
    let writes = device.writes();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(device.writes(), writes);
    assert!(engine.pool().cache_leaf(guid).is_none());
    device.set_hung(false);
    until("blocks again", || hits(&engine) > FILES * 4);
    assert_eq!(figures(&engine).counts.cksum_bad, 0);
    engine.export(false).unwrap();
    drop((engine, device, faulty));
    assert!(judged_logs(&rig, "b") > 3);
    rig.judge();
}

#[test]
fn the_hand_goes_round() {
    let rig = Rig::new(512 << 20);
    tune();
    std::fs::File::create(rig.file("b")).unwrap().set_len(64 << 20).unwrap();
    let engine = rig.create("a cache b", 9);
    let fs = open(&engine);
    for round in 0..5 {
        fill(&fs, round * 30..(round + 1) * 30, LEN);
        engine.sync().unwrap();
        let written = figures(&engine).counts.write_bytes + 30 * LEN as u64;
        until("a round", || {
            figures(&engine).counts.write_bytes >= written.min((round + 1) * 30 * LEN as u64)
        });
    }
    drop(fs);
    let known = figures(&engine);
    assert!(known.sums.asize < 59 << 20 && known.sums.asize > 20 << 20, "{known:?}");
    // What is read goes round as well, and may overwrite what is read next: then another time.
    let read = |engine: &Engine| {
        engine.pool().store().drop_caches();
        check(&open(engine), 0..150, LEN);
        assert_eq!(figures(engine).counts.cksum_bad, 0);
        figures(engine).counts.hits
    };
    until("blocks from there", || read(&engine) > 100);
    engine.export(false).unwrap();
    drop(engine);
    let header = header(&rig, "b", 9).unwrap();
    assert_eq!(header.flags, 0, "{header:?}");
    assert!(judged_logs(&rig, "b") >= header.log_count && header.log_count > 3);
    rig.judge();
    let engine = rig.import();
    until("what was there", || figures(&engine).counts.rebuild_success == 1);
    until("blocks from there again", || read(&engine) > 50);
    engine.export(false).unwrap();
    drop(engine);
    judged_logs(&rig, "b");
    rig.judge();
}

/// Files are written, written again and deleted, so that their places are used again; what is read is what was written, and
/// nothing that lies on the cache device was for another block of the same place.
#[test]
fn places_that_are_used_again_are_never_mistaken() {
    let rig = Rig::new(72 << 20);
    tune();
    let mut engine = rig.create("a cache b", 9);
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut model: Vec<Option<u64>> = vec![None; 40];
    let mut found = 0;
    let len = 300_000;
    for round in 0..60_u64 {
        let fs = open(&engine);
        for _ in 0..12 {
            let file = next(40);
            let name = format!("file {file}");
            let contents = round * 1000 + next(1000) + 1;
            match (next(4), model[file as usize]) {
                (0, Some(_)) => {
                    fs.unlink(fs.root(), name.as_bytes(), &|_| false).unwrap();
                    model[file as usize] = None;
                }
                (_, Some(_)) => {
                    let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap();
                    fs.write(ino, 0, &rig::bytes(contents, len), false).unwrap();
                    model[file as usize] = Some(contents);
                }
                (_, None) => {
                    let made = fs.create(fs.root(), name.as_bytes(), &rig::NODE).unwrap();
                    fs.write(made.ino, 0, &rig::bytes(contents, len), false).unwrap();
                    model[file as usize] = Some(contents);
                }
            }
        }
        for _ in 0..next(5) {
            engine.sync().unwrap();
        }
        if next(3) == 0 {
            std::thread::sleep(Duration::from_millis(400));
        }
        if next(2) == 0 {
            engine.pool().store().drop_caches();
        }
        for (file, contents) in model.iter().enumerate() {
            let found = fs.lookup(fs.root(), format!("file {file}").as_bytes());
            assert_eq!(found.is_ok(), contents.is_some(), "file {file} in round {round}");
            if let (Ok(ino), Some(contents)) = (found, contents) {
                let mut data = vec![0; len + 1];
                let n = fs.read(ino, 0, &mut data).unwrap();
                assert!(data[..n] == rig::bytes(*contents, len), "file {file} in round {round}");
            }
        }
        assert_eq!(figures(&engine).counts.cksum_bad, 0, "round {round}");
        drop(fs);
        if round % 20 == 19 {
            found += figures(&engine).counts.hits;
            engine.export(false).unwrap();
            drop(engine);
            rig.judge_blocks();
            engine = rig.import();
        }
    }
    assert!(found > 100, "{found} blocks of cache devices");
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

/// What it takes to know what is on a device is free when that goes.
#[test]
fn a_device_that_goes_takes_no_memory() {
    let rig = Rig::new(128 << 20);
    let engine = filled(&rig, "a cache b", 9);
    engine.export(false).unwrap();
    drop(engine);
    let options = ImportOptions { arc_bytes: Some(256 << 20), ..ImportOptions::default() };
    let engine = rig.import_as(options, EngineOptions::default());
    until("what was there", || figures(&engine).counts.rebuild_success == 1);
    let charged = || engine.pool().store().stats().arc.l2_hdr_size;
    assert!(charged() > 0);
    let guid = guid_of_cache(&engine);
    engine.take_out_cache(guid, TakeOut::Offline).unwrap();
    assert_eq!((charged(), figures(&engine).hdr_size), (0, 0));
    engine.restore_cache(guid, Restore::Offline).unwrap();
    until("what was there", || charged() > 0);
    engine.remove(guid).unwrap();
    assert_eq!((charged(), figures(&engine).hdr_size), (0, 0));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

#[test]
fn cache_devices_come_and_go() {
    let rig = Rig::new(128 << 20);
    let engine = filled(&rig, "a cache b", 9);
    let guid = guid_of_cache(&engine);
    let state = || engine.pool().cache_state(&engine.pool().caches()[0]);
    engine.take_out_cache(guid, TakeOut::Offline).unwrap();
    assert_eq!((state(), figures(&engine).sums.blocks), (VdevState::Offline, 0));
    assert_eq!(hits(&engine), 0);
    engine.restore_cache(guid, Restore::Offline).unwrap();
    assert_eq!(state(), VdevState::Healthy);
    until("what was there", || figures(&engine).counts.rebuild_success == 1);
    assert!(hits(&engine) > FILES * 4);
    engine.take_out_cache(guid, TakeOut::FaultForNow).unwrap();
    assert_eq!((state(), hits(&engine)), (VdevState::Faulted, 0));
    engine.restore_cache(guid, Restore::Failure).unwrap();
    until("what was there", || figures(&engine).counts.rebuild_success == 2);
    engine.remove(guid).unwrap();
    assert!(engine.pool().caches().is_empty() && figures(&engine).sums.blocks == 0);
    assert_eq!(hits(&engine), 0);
    assert!(header(&rig, "b", 9).is_none());
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

/// Of two commands that settle at the same time which cache devices are used, the later one counts, whichever has waited for the other.
#[test]
fn a_device_that_was_removed_meanwhile_is_not_used_again() {
    let rig = Rig::new(128 << 20);
    let engine = filled(&rig, "a cache b", 9);
    let (guid, pool) = (guid_of_cache(&engine), engine.pool());
    let l2arc = pool.store().l2arc().clone();
    drop(pool);
    let alone = l2arc.alone();
    std::thread::scope(|scope| {
        // It has a view of the pool with the device.
        let back = scope.spawn(|| engine.restore_cache(guid, Restore::Failure));
        std::thread::sleep(Duration::from_millis(300));
        let gone = scope.spawn(|| engine.remove(guid));
        until("the list without it", || engine.pool().caches().is_empty());
        drop(alone);
        back.join().unwrap().unwrap();
        gone.join().unwrap().unwrap();
    });
    assert!(l2arc.guids().is_empty());
    engine.export(false).unwrap();
    drop((engine, l2arc));
    rig.judge_blocks();
}

/// A command that comes beside an export uses no device of a pool that may be another host's by then.
#[test]
fn no_device_is_used_after_an_export() {
    let rig = Rig::new(128 << 20);
    let engine = filled(&rig, "a cache b", 9);
    let guid = guid_of_cache(&engine);
    engine.export(false).unwrap();
    let before = std::fs::read(rig.file("b")).unwrap();
    engine.restore_cache(guid, Restore::Failure).unwrap();
    assert!(engine.pool().store().l2arc().guids().is_empty());
    std::thread::sleep(Duration::from_secs(1));
    assert!(before == std::fs::read(rig.file("b")).unwrap());
    drop(engine);
    rig.judge_blocks();
}

/// Where the index has more of the ARC than its share, the oldest blocks are forgotten.
#[test]
fn the_index_keeps_to_its_share() {
    let rig = Rig::new(128 << 20);
    let engine = filled(&rig, "a cache b", 9);
    engine.export(false).unwrap();
    drop(engine);
    let options = ImportOptions { arc_bytes: Some(1 << 20), ..ImportOptions::default() };
    let engine = rig.import_as(options, EngineOptions::default());
    until("what was there", || figures(&engine).counts.rebuild_success == 1);
    let known = figures(&engine);
    assert!(known.hdr_size > (1 << 20) / 100, "{known:?}");
    // Other pools of these tests have larger ones.
    cenote_store::tunables::L2ARC_META_PERCENT.set(1).unwrap();
    // A thread that sleeps looks again when something comes into the ARC.
    fill(&open(&engine), 900..901, LEN);
    engine.sync().unwrap();
    until("less of it", || figures(&engine).hdr_size <= (1 << 20) / 100);
    cenote_store::tunables::L2ARC_META_PERCENT.set(33).unwrap();
    hits(&engine);
    assert_eq!(figures(&engine).counts.cksum_bad, 0);
    engine.export(false).unwrap();
    drop(engine);
    judged_logs(&rig, "b");
    rig.judge();
}

#[test]
fn secondarycache_says_what_comes_to_cache_devices() {
    tune();
    for (what, most) in [(PrimaryCache::None, 1 << 20), (PrimaryCache::Metadata, 1 << 20)] {
        let rig = Rig::new(128 << 20);
        let engine = rig.create("a cache b", 9);
        let root = engine.pool().dsl().root().unwrap().ds_obj;
        let fs = open(&engine);
        let caching = Caching { primary: PrimaryCache::All, secondary: what };
        engine.pool().store().set_caching(root, caching);
        fill(&fs, 0..FILES, LEN);
        engine.sync().unwrap();
        until("something there", || figures(&engine).sums.blocks > 0);
        std::thread::sleep(Duration::from_millis(1500));
        let sums = figures(&engine).sums;
        assert!(sums.asize < most, "{what:?}: {sums:?}");
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        rig.judge_blocks();
    }
}

/// An older state of the device comes back: what it has was freed since, or is as it was.
#[test]
fn what_an_older_state_of_the_device_has_is_never_mistaken() {
    let rig = Rig::new(128 << 20);
    let engine = filled(&rig, "a cache b", 9);
    engine.export(false).unwrap();
    drop(engine);
    let older = rig.copy();
    let engine = rig.import();
    let fs = open(&engine);
    for i in 0..FILES / 2 {
        fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
        for _ in 0..2 {
            engine.sync().unwrap();
        }
    }
    fill(&fs, 0..FILES / 2, LEN);
    engine.sync().unwrap();
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    std::fs::copy(older.file("b"), rig.file("b")).unwrap();
    let engine = rig.import();
    until("what was there", || figures(&engine).counts.rebuild_success == 1);
    assert!(hits(&engine) > FILES);
    assert_eq!(figures(&engine).counts.cksum_bad, 0);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();

    // Read-only, nothing is written.
    let before = std::fs::read(rig.file("b")).unwrap();
    let found = cenote_pool::discover(&[rig.path().to_path_buf()]);
    let options = ImportOptions { readonly: true, force: true, ..ImportOptions::default() };
    let pool = cenote_pool::Pool::import(&found[0], &options).unwrap();
    until("what was there", || pool.store().l2arc().figures().counts.rebuild_success == 1);
    let root = pool.dsl().root().unwrap();
    let fs = cenote_zpl::FileSystem::open(pool.dsl().open_objset(&root).unwrap()).unwrap();
    check(&fs, 0..FILES, LEN);
    let counts = pool.store().l2arc().figures().counts;
    assert!(counts.hits > FILES && counts.cksum_bad == 0, "{counts:?}");
    drop((fs, root, pool));
    assert!(before == std::fs::read(rig.file("b")).unwrap());
}

/// Of what one of the two left on a cache device the other one reads.
#[test]
fn openzfs_and_this_find_what_the_other_left() {
    let rig = Rig::new(256 << 20);
    let engine = filled(&rig, "a cache b", 12);
    let fs = open(&engine);
    let number = |i: u64| fs.lookup(fs.root(), format!("file {i}").as_bytes()).unwrap();
    let read: String =
        (0..FILES).map(|i| format!("check tank {} {LEN} {i}\n", number(i))).collect();
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    let left = header(&rig, "b", 12).unwrap().log_count;
    assert!(left > 3);
    let more =
        "dataset tank/x\nwrite tank/x 5 131072 9000000 77\nsync\ncheck tank/x 5 9000000 77\n";
    let script = format!(
        "small-caches\nimport\nfound {left}\n{read}hits {}\n{more}fed 8000000\nsync\nexport\n",
        FILES * 4
    );
    cenote_testpools::openzfs(rig.path(), "tank", &script);
    let now = header(&rig, "b", 12).unwrap();
    assert!(now.log_count > left, "{now:?}");
    let judged = judged_logs(&rig, "b");
    let engine = rig.import();
    until("what was there", || figures(&engine).counts.rebuild_success == 1);
    assert_eq!(figures(&engine).counts.rebuild_log_blks, judged);
    assert!(hits(&engine) > FILES * 4);
    assert_eq!(figures(&engine).counts.cksum_bad, 0);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

/// Blocks of an encrypted file system lie on a cache device as they lie in the pool. Nothing of what they say is there, and
/// nothing is read without the key.
#[test]
fn encrypted_blocks_come_to_cache_devices_encrypted() {
    tune();
    let rig = Rig::new(192 << 20);
    let engine = rig.create("a cache b", 9);
    let name = "tank/secret";
    let new = NewDataset { name: name.into(), kind: Kind::Filesystem, props: vec![] };
    let key = || WrappingKey::from_hex("5a".repeat(32).as_bytes()).unwrap();
    let wrapping = Arc::new(key());
    let root = RootKey { format: KeyFormat::Hex, salt: 0, iterations: 0, wrapping };
    let how = NewEncryption::Root(root, Suite::Aes256Gcm, "prompt".into());
    rig::changes(&engine).create_encrypted(&new, &how).unwrap();
    let secret = engine.pool().dsl().find(name).unwrap().unwrap();
    let opened =
        || FileSystem::open_live(engine.live(secret.ds_obj).unwrap(), Settings::default()).unwrap();
    // What is in all of the files, and nowhere else.
    let pattern = b"the plain text that nobody else may see ";
    let text: Vec<u8> = pattern.iter().copied().cycle().take(LEN).collect();
    let fs = opened();
    let mut inos = Vec::new();
    for i in 0..FILES {
        let file = fs.create(fs.root(), format!("file {i}").as_bytes(), &rig::NODE).unwrap();
        let mixed: Vec<u8> = rig::bytes(i, LEN)
            .chunks(64)
            .zip(text.chunks(64))
            .flat_map(|(a, b)| [a, b].concat())
            .collect();
        fs.write(file.ino, 0, &mixed[..LEN], false).unwrap();
        inos.push((file.ino, mixed));
    }
    engine.sync().unwrap();
    until("blocks on cache devices", || figures(&engine).sums.asize >= FILES * LEN as u64 / 2);
    let check = |fs: &FileSystem| {
        for (ino, contents) in &inos {
            let mut data = vec![0; LEN];
            assert_eq!(fs.read(*ino, 0, &mut data).unwrap(), LEN);
            assert!(data == contents[..LEN]);
        }
    };
    let before = figures(&engine).counts.hits;
    engine.pool().store().drop_caches();
    check(&fs);
    assert!(figures(&engine).counts.hits > before + FILES);
    drop(fs);
    engine.close(secret.ds_obj).unwrap();
    engine.unload_key(&secret).unwrap();
    engine.pool().store().drop_caches();
    assert!(
        engine.live(secret.ds_obj).is_err()
            || FileSystem::open_live(engine.live(secret.ds_obj).unwrap(), Settings::default())
                .is_err()
    );
    engine.pool().dsl().load_key(&secret, key()).unwrap();
    check(&opened());
    assert_eq!(figures(&engine).counts.cksum_bad, 0);
    engine.close(secret.ds_obj).unwrap();
    engine.export(false).unwrap();
    drop(engine);
    let device = std::fs::read(rig.file("b")).unwrap();
    assert!(!device.windows(20).any(|window| window == &pattern[..20]));
    assert!(judged_logs(&rig, "b") > 3);
    rig.judge_blocks();
}
