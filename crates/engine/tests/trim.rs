//! Devices are told what is free, while files are written and removed: every byte stays right, OpenZFS's `zdb` finds
//! nothing wrong, and the images get smaller.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, TrimError, TrimRequest, TrimState};
use cenote_pool::props::PropChange;
use cenote_pool::vdev_props::Activity;
use cenote_zpl::FileSystem;
use rig::{Rig, account, check, fill, open};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const LEN: usize = 300_000;
const LONG: Duration = Duration::from_secs(120);
const START: TrimRequest = TrimRequest::Start { rate: 0 };

/// Bytes that the images take.
fn taken(rig: &Rig, names: &str) -> u64 {
    let of = |name: &str| rig.file(name).metadata().unwrap().blocks() * 512;
    names.split(' ').map(of).sum()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn leaves(engine: &Engine) -> Vec<u64> {
    engine.pool().store().vdevs().leaves().iter().map(|leaf| leaf.guid()).collect()
}

fn remove(fs: &FileSystem, files: impl Iterator<Item = u64>) {
    for i in files {
        fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
    }
}

/// Groups, so that what was freed comes back.
fn groups(engine: &Engine, count: usize) {
    for _ in 0..count {
        engine.write_config().unwrap();
    }
}

fn end(rig: &Rig, engine: Arc<Engine>) {
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

#[test]
fn images_get_smaller_and_nothing_is_lost_meanwhile() {
    for (line, names) in [
        ("a", "a"),
        ("mirror a b log c", "a b c"),
        ("raidz a b c", "a b c"),
        ("raidz2 a b c d special mirror e f", "a b c d e f"),
    ] {
        let rig = Rig::new(160 * MIB);
        let engine = rig.create(line, 12);
        let fs = open(&engine);
        fill(&fs, 0..200, LEN);
        engine.sync().unwrap();
        let before = taken(&rig, names);
        remove(&fs, 0..150);
        engine.sync().unwrap();
        groups(&engine, 4);
        // Space is given out and freed all the time.
        for round in 0..4 {
            for leaf in leaves(&engine) {
                engine.trim(leaf, START).unwrap();
            }
            let files = 1000 + round * 40;
            fill(&fs, files..files + 40, LEN);
            engine.sync().unwrap();
            remove(&fs, files..files + 40);
            check(&fs, 150..200, LEN);
            until("trim", || engine.trimming().is_empty());
        }
        groups(&engine, 4);
        for leaf in leaves(&engine) {
            engine.trim(leaf, START).unwrap();
        }
        until("trim", || engine.trimming().is_empty());
        let after = taken(&rig, names);
        assert!(after < before * 2 / 3, "{line}: {before} {after}");
        account(&engine.pool());
        engine.export(false).unwrap();
        drop((fs, engine));
        rig.judge_blocks();
        let engine = rig.import();
        check(&open(&engine), 150..200, LEN);
        end(&rig, engine);
    }
}

#[test]
fn a_full_pool_goes_on_while_it_is_trimmed() {
    let rig = Rig::new(96 * MIB);
    let engine = rig.create_cut("a", 12, 25);
    let fs = open(&engine);
    fill(&fs, 0..60, LEN);
    engine.sync().unwrap();
    let leaf = leaves(&engine)[0];
    for round in 1..20u64 {
        // Always under way, and slow.
        match engine.trim(leaf, TrimRequest::Start { rate: 64 * MIB }) {
            Ok(()) | Err(TrimError::Trimming) => {}
            Err(e) => panic!("{e}"),
        }
        let old = (round - 1) * 60;
        remove(&fs, old..old + 60);
        fill(&fs, round * 60..round * 60 + 60, LEN);
        engine.sync().unwrap();
        check(&fs, round * 60..round * 60 + 60, LEN);
    }
    engine.trim(leaf, TrimRequest::Cancel).unwrap();
    assert!(matches!(engine.trim(leaf, TrimRequest::Cancel), Err(TrimError::NoTrim)));
    assert!(matches!(engine.trim(leaf, TrimRequest::Suspend), Err(TrimError::NoTrim)));
    assert!(matches!(engine.trim(7, START), Err(TrimError::NoDevice)));
    account(&engine.pool());
    drop(fs);
    end(&rig, engine);
}

#[test]
fn it_goes_on_after_an_import() {
    let rig = Rig::new(160 * MIB);
    let engine = rig.create("a", 12);
    fill(&open(&engine), 0..20, LEN);
    let leaf = leaves(&engine)[0];
    engine.trim(leaf, TrimRequest::Start { rate: 2 * MIB }).unwrap();
    assert!(matches!(engine.trim(leaf, START), Err(TrimError::Trimming)));
    let state = |engine: &Engine| {
        let pool = engine.pool();
        let vdevs = pool.store().vdevs();
        let progress = Activity::Trim.progress(&pool, vdevs.leaves()[0].config());
        progress.map(|progress| progress.state)
    };
    assert_eq!(state(&engine), Some("started at"));
    end(&rig, engine);
    let engine = rig.import();
    assert_eq!((engine.trimming().len(), state(&engine)), (1, Some("started at")));
    engine.trim(leaf, TrimRequest::Suspend).unwrap();
    assert_eq!(state(&engine), Some("suspended, started at"));
    end(&rig, engine);
    let engine = rig.import();
    assert_eq!((engine.trimming().len(), state(&engine)), (0, Some("suspended, started at")));
    engine.trim(leaf, START).unwrap();
    until("trim", || engine.trimming().is_empty());
    assert_eq!(state(&engine), Some("completed at"));
    assert_eq!(TrimState::Complete as u64, 4);
    check(&open(&engine), 0..20, LEN);
    end(&rig, engine);
}

#[test]
fn what_is_freed_is_given_back_by_itself() {
    for (line, names) in [("a", "a"), ("raidz a b c", "a b c")] {
        let rig = Rig::new(256 * MIB);
        let engine = rig.create(line, 12);
        let set = |value| {
            engine.set_properties(vec![PropChange::Number("autotrim", value)]).unwrap();
        };
        set(1);
        let fs = open(&engine);
        fill(&fs, 0..300, LEN);
        engine.sync().unwrap();
        let before = taken(&rig, names);
        remove(&fs, 20..300);
        until("autotrim", || {
            groups(&engine, 1);
            taken(&rig, names) < before / 2
        });
        for round in 0..6u64 {
            fill(&fs, 1000 + round * 50..1050 + round * 50, LEN);
            engine.sync().unwrap();
            remove(&fs, 1000 + round * 50..1040 + round * 50);
        }
        set(0);
        check(&fs, 0..20, LEN);
        (0..6).for_each(|round| check(&fs, 1040 + round * 50..1050 + round * 50, LEN));
        account(&engine.pool());
        drop(fs);
        end(&rig, engine);
        let engine = rig.import();
        check(&open(&engine), 0..20, LEN);
        end(&rig, engine);
    }
}
