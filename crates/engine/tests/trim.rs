//! Devices are told what is free, or it is overwritten, while files are written and removed: every byte stays right, OpenZFS's `zdb` finds
//! nothing wrong, and the images get smaller.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dmu::outside::Chance;
use cenote_dmu::write::ZapMut;
use cenote_engine::create::{CreateSpec, FIRST_TXG, Force, SystemDevices, parse, prepare};
use cenote_engine::tunables::INITIALIZE_CHUNK_SIZE;
use cenote_engine::{
    ActivityError, ActivityRequest, ActivityState, Attach, Engine, EngineError, EngineOptions,
    SyncContext, TakeOut,
};
use cenote_format::LABEL_START;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::nvlist::NvValue;
use cenote_pool::config;
use cenote_pool::props::PropChange;
use cenote_pool::reopen::Restore;
use cenote_pool::vdev_props::{Activity, VdevProps};
use cenote_zpl::FileSystem;
use rig::{Faulty, Rig, account, check, fill, open};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const LEN: usize = 300_000;
const LONG: Duration = Duration::from_secs(120);
const START: ActivityRequest = ActivityRequest::START;
const BOTH: [Activity; 2] = Activity::ALL;

fn slow(rate: u64) -> ActivityRequest {
    ActivityRequest::Start { rate, value: None }
}

/// What the commands show of where it is.
fn shown(engine: &Engine, activity: Activity, leaf: usize) -> Option<&'static str> {
    let pool = engine.pool();
    let leaves = pool.store().vdevs().leaves();
    activity.progress(&pool, leaves[leaf].config()).map(|progress| progress.state)
}

fn is_over(engine: &Engine) -> bool {
    BOTH.iter().all(|activity| engine.active(*activity).is_empty())
}

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
        ("draid1:1d:3c a b c", "a b c"),
        ("draid1:2d:5c:1s a b c d e", "a b c d e"),
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
                engine.activity(Activity::Trim, leaf, START).unwrap();
            }
            let files = 1000 + round * 40;
            fill(&fs, files..files + 40, LEN);
            engine.sync().unwrap();
            remove(&fs, files..files + 40);
            check(&fs, 150..200, LEN);
            until("trim", || is_over(&engine));
        }
        groups(&engine, 4);
        for leaf in leaves(&engine) {
            engine.activity(Activity::Trim, leaf, START).unwrap();
        }
        until("trim", || is_over(&engine));
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
        for activity in BOTH {
            match engine.activity(activity, leaf, slow(64 * MIB)) {
                Ok(()) | Err(ActivityError::UnderWay(_)) => {}
                Err(e) => panic!("{e}"),
            }
        }
        let old = (round - 1) * 60;
        remove(&fs, old..old + 60);
        fill(&fs, round * 60..round * 60 + 60, LEN);
        engine.sync().unwrap();
        check(&fs, round * 60..round * 60 + 60, LEN);
    }
    for activity in BOTH {
        let ask = |request| engine.activity(activity, leaf, request);
        let _over = ask(ActivityRequest::Cancel);
        assert!(matches!(ask(ActivityRequest::Cancel), Err(ActivityError::Nothing(_))));
        assert!(matches!(ask(ActivityRequest::Suspend), Err(ActivityError::Nothing(_))));
        let elsewhere = engine.activity(activity, 7, START);
        assert!(matches!(elsewhere, Err(ActivityError::NoDevice)));
    }
    account(&engine.pool());
    drop(fs);
    end(&rig, engine);
}

#[test]
fn it_goes_on_after_an_import() {
    let rig = Rig::new(160 * MIB);
    let mut engine = rig.create("a", 12);
    fill(&open(&engine), 0..20, LEN);
    let leaf = leaves(&engine)[0];
    for activity in BOTH {
        let state = |engine: &Engine| shown(engine, activity, 0);
        match activity {
            Activity::Trim => engine.activity(activity, leaf, slow(2 * MIB)).unwrap(),
            Activity::Initialize => {
                INITIALIZE_CHUNK_SIZE.set(4096).unwrap();
                engine.activity(activity, leaf, START).unwrap();
            }
        }
        assert!(matches!(engine.activity(activity, leaf, START), Err(ActivityError::UnderWay(_))));
        assert_eq!(state(&engine), Some("started at"));
        end(&rig, engine);
        engine = rig.import();
        assert_eq!((engine.active(activity).len(), state(&engine)), (1, Some("started at")));
        engine.activity(activity, leaf, ActivityRequest::Suspend).unwrap();
        INITIALIZE_CHUNK_SIZE.reset();
        assert_eq!(state(&engine), Some("suspended, started at"));
        end(&rig, engine);
        engine = rig.import();
        let suspended = (0, Some("suspended, started at"));
        assert_eq!((engine.active(activity).len(), state(&engine)), suspended);
        engine.activity(activity, leaf, START).unwrap();
        until("the end", || is_over(&engine));
        assert_eq!(state(&engine), Some("completed at"));
        assert_eq!(ActivityState::Complete as u64, 4);
        check(&open(&engine), 0..20, LEN);
    }
    engine.activity(Activity::Initialize, leaf, ActivityRequest::Forget).unwrap();
    assert_eq!(shown(&engine, Activity::Initialize, 0), None);
    end(&rig, engine);
}

/// Whether there are sectors of the pattern in an image, or of zeros.
fn has_pattern(rig: &Rig, name: &str, word: u64) -> usize {
    let image = std::fs::read(rig.file(name)).unwrap();
    let sector: Vec<u8> = (0..512).flat_map(|_| word.to_ne_bytes()).collect();
    image[LABEL_START as usize..].chunks_exact(4096).filter(|found| *found == sector).count()
}

#[test]
fn free_space_is_overwritten_and_nothing_is_lost_meanwhile() {
    const PATTERN: u64 = 0xdead_beef_dead_beee;
    for (line, names) in [
        ("mirror a b log c", "a b c"),
        ("raidz a b c special d", "a b c d"),
        ("draid1:2d:5c:1s a b c d e", "a b c d e"),
    ] {
        let rig = Rig::new(96 * MIB);
        let engine = rig.create(line, 12);
        let fs = open(&engine);
        fill(&fs, 0..60, LEN);
        engine.sync().unwrap();
        for leaf in leaves(&engine) {
            engine.activity(Activity::Initialize, leaf, START).unwrap();
        }
        for round in 0..4 {
            let files = 1000 + round * 20;
            fill(&fs, files..files + 20, LEN);
            engine.sync().unwrap();
            remove(&fs, files..files + 20);
            check(&fs, 0..60, LEN);
        }
        until("initializing", || is_over(&engine));
        let all = leaves(&engine).len();
        (0..all).for_each(|i| {
            assert_eq!(shown(&engine, Activity::Initialize, i), Some("completed at"));
        });
        account(&engine.pool());
        engine.pool().store().drop_caches();
        check(&fs, 0..60, LEN);
        drop(fs);
        end(&rig, engine);
        let mut found: Vec<usize> =
            names.split(' ').map(|name| has_pattern(&rig, name, PATTERN)).collect();
        if line.contains("1s") {
            // Of devices that are as small as these one is all the distributed spare's: nothing is written there.
            found.sort_unstable();
            assert_eq!(found.remove(0), 0, "{line}");
        }
        assert!(found.iter().all(|count| *count > 1000), "{line}: {found:?}");
        let engine = rig.import();
        let leaf = leaves(&engine)[0];
        let zeros = ActivityRequest::Start { rate: 0, value: Some(0) };
        engine.activity(Activity::Initialize, leaf, zeros).unwrap();
        until("initializing", || is_over(&engine));
        check(&open(&engine), 0..60, LEN);
        end(&rig, engine);
        assert!(has_pattern(&rig, "a", PATTERN) < 100, "{line}");
    }
}

#[test]
fn what_failed_is_not_done() {
    for activity in BOTH {
        let rig = Rig::new(96 * MIB);
        let devices = Faulty::default();
        let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), &devices);
        let fs = open(&engine);
        fill(&fs, 0..20, LEN);
        engine.sync().unwrap();
        let [a, b] = leaves(&engine)[..] else { panic!() };
        // A part of the device fails: the rest is done, and it is not over.
        devices.device(&rig, "a").fail_writes(64 * MIB..64 * MIB + 4096);
        engine.activity(activity, a, START).unwrap();
        until("the end", || is_over(&engine));
        assert_eq!(shown(&engine, activity, 0), Some("suspended, started at"));
        let errors = || {
            let pool = engine.pool();
            let leaf = pool.store().vdevs().find(a).unwrap();
            let of = |name| VdevProps::new(&pool, &leaf).get(name).unwrap().exact;
            [of("initialize_errors"), of("trim_errors")]
        };
        let counted = match activity {
            Activity::Initialize => ["1", "0"],
            Activity::Trim => ["0", "1"],
        };
        assert_eq!(errors(), counted);
        devices.device(&rig, "a").repair();
        engine.restore(&[a], Restore::Failure).unwrap();
        // No counter that is cleared.
        assert_eq!(errors(), counted);
        engine.activity(activity, a, START).unwrap();
        until("the end", || is_over(&engine));
        assert_eq!(shown(&engine, activity, 0), Some("completed at"));
        // It is out of use for a while.
        devices.device(&rig, "b").set_delay(Duration::from_millis(30));
        engine.activity(activity, b, slow(4 * MIB)).unwrap();
        engine.take_out(b, TakeOut::Offline).unwrap();
        // The device is opened anew below, so this test must not hold it open.
        drop(devices);
        until("the end", || is_over(&engine));
        assert_eq!(shown(&engine, activity, 1), Some("started at"));
        fill(&fs, 20..25, LEN);
        engine.restore(&[b], Restore::Offline).unwrap();
        until("the end", || {
            is_over(&engine) && shown(&engine, activity, 1) == Some("completed at")
        });
        until("the resilver", || !engine.is_scanning());
        check(&fs, 0..25, LEN);
        drop(fs);
        end(&rig, engine);
    }
}

#[test]
fn a_device_that_leaves_is_let_alone() {
    for activity in BOTH {
        let rig = Rig::new(96 * MIB);
        let devices = Faulty::default();
        let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), &devices);
        engine.set_properties(vec![PropChange::Number("autotrim", 1)]).unwrap();
        let fs = open(&engine);
        fill(&fs, 0..40, LEN);
        engine.sync().unwrap();
        remove(&fs, 10..40);
        let [a, b] = leaves(&engine)[..] else { panic!() };
        // Each request takes long, and there are many.
        devices.device(&rig, "b").set_delay(Duration::from_millis(20));
        for leaf in [a, b] {
            engine.activity(activity, leaf, slow(8 * MIB)).unwrap();
        }
        groups(&engine, 3);
        engine.detach(b, None).unwrap();
        drop(devices);
        // Whatever is done to it now was not done by the pool.
        let image = std::fs::read(rig.file("b")).unwrap();
        groups(&engine, 3);
        fill(&fs, 100..120, LEN);
        engine.sync().unwrap();
        // The other one is the top-level vdev now, with its guid, and goes on.
        until("the end", || {
            is_over(&engine) && shown(&engine, activity, 0) == Some("completed at")
        });
        assert!(image == std::fs::read(rig.file("b")).unwrap());
        check(&fs, 0..10, LEN);
        // It joins anew while the other one is worked on.
        let beside = leaves(&engine)[0];
        engine.activity(activity, beside, slow(8 * MIB)).unwrap();
        let new = prepare(&CreateSpec {
            name: "tank",
            layout: &parse(&[rig.word("b")]).unwrap(),
            ashift: 0,
            force: Force { in_use: true, replication: true },
            pool: Some(engine.pool().config()),
            txg: FIRST_TXG,
            imported: &[],
            devices: &SystemDevices,
            chance: &Chance::default(),
        });
        let new = new.unwrap().into_single().unwrap();
        engine.attach(Attach { beside, new, replaces: true }).unwrap();
        until("the replacement", || leaves(&engine).len() == 1 && !engine.is_scanning());
        until("the end", || is_over(&engine));
        check(&fs, 0..10, LEN);
        drop(fs);
        end(&rig, engine);
    }
}

/// An export waits for the device, not what was written; and the trim goes on.
#[test]
fn a_trim_that_hangs_keeps_nothing_from_the_disk() {
    let rig = Rig::new(96 * MIB);
    let devices = Faulty::default();
    let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), &devices);
    let fs = open(&engine);
    fill(&fs, 0..20, LEN);
    engine.sync().unwrap();
    let [_, b] = leaves(&engine)[..] else { panic!() };
    let device = devices.device(&rig, "b");
    device.set_trims_hung(true);
    engine.activity(Activity::Trim, b, START).unwrap();
    until("the request", || device.waiting() > 0);
    fill(&fs, 20..25, LEN);
    assert!(matches!(engine.export(false), Err(EngineError::Unanswered)));
    // As if the machine went down now.
    let copy = Rig::new(96 * MIB);
    for name in ["a", "b"] {
        std::fs::copy(rig.file(name), copy.file(name)).unwrap();
    }
    let then = copy.import();
    check(&open(&then), 0..25, LEN);
    end(&copy, then);
    assert_eq!(shown(&engine, Activity::Trim, 1), Some("started at"));
    device.set_trims_hung(false);
    until("the end", || {
        is_over(&engine) && shown(&engine, Activity::Trim, 1) == Some("completed at")
    });
    check(&fs, 0..25, LEN);
    drop((fs, device, devices));
    end(&rig, engine);
}

/// Has the leaf's config say that its ZAP is this object; returns what it said before.
fn set_zap(engine: &Engine, leaf: u64, zap: u64) -> u64 {
    const NAME: &str = "com.delphix:vdev_zap_leaf";
    let change = move |context: &mut SyncContext<'_>| {
        let mut before = 0;
        config::for_each_leaf_mut(&mut context.config.vdev_tree, &mut |found| {
            if config::number(found, "guid") == leaf {
                before = config::number(found, NAME);
                found.set(NAME, NvValue::Uint64(zap));
            }
        });
        context.config_changed = true;
        Ok(before)
    };
    engine.sync_task(change).unwrap()
}

#[test]
fn where_it_cannot_be_noted_nothing_is_done() {
    let rig = Rig::new(96 * MIB);
    let engine = rig.create("a", 12);
    let leaf = leaves(&engine)[0];
    let requests = [START, ActivityRequest::Suspend, ActivityRequest::Cancel];
    // The leaf has no ZAP; then it has one that cannot be read.
    let zap = set_zap(&engine, leaf, 0);
    for (activity, request) in BOTH.into_iter().flat_map(|a| requests.map(|r| (a, r))) {
        let done = engine.activity(activity, leaf, request);
        assert!(matches!(done, Err(ActivityError::NoZap)), "{request:?}: {done:?}");
    }
    set_zap(&engine, leaf, 1 << 40);
    for (activity, request) in BOTH.into_iter().flat_map(|a| requests.map(|r| (a, r))) {
        let done = engine.activity(activity, leaf, request);
        let read = matches!(done, Err(ActivityError::Engine(EngineError::Read(_))));
        assert!(read, "{request:?}: {done:?}");
    }
    assert!(is_over(&engine));
    set_zap(&engine, leaf, zap);
    for activity in BOTH {
        engine.activity(activity, leaf, START).unwrap();
        until("the end", || is_over(&engine));
        assert_eq!(shown(&engine, activity, 0), Some("completed at"));
    }
    end(&rig, engine);
}

/// One that OpenZFS began does not go on as one that is not secure.
#[test]
fn a_secure_trim_is_suspended() {
    let rig = Rig::new(96 * MIB);
    let engine = rig.create("a", 12);
    let leaf = leaves(&engine)[0];
    let zap = set_zap(&engine, leaf, 0);
    set_zap(&engine, leaf, zap);
    let begin = move |context: &mut SyncContext<'_>| {
        for (name, value) in [("trim_state", 1), ("trim_secure", 1)] {
            let name = format!("org.zfsonlinux:vdev_{name}");
            let key = Key::Name(name.as_bytes());
            ZapMut::open(context.tx.mos, zap).update(&key, &Value::U64(&[value]))?;
        }
        Ok(())
    };
    engine.sync_task(begin).unwrap();
    assert_eq!(shown(&engine, Activity::Trim, 0), Some("started at"));
    end(&rig, engine);
    let engine = rig.import();
    assert!(is_over(&engine));
    assert_eq!(shown(&engine, Activity::Trim, 0), Some("suspended, started at"));
    engine.activity(Activity::Trim, leaf, START).unwrap();
    until("the end", || is_over(&engine));
    assert_eq!(shown(&engine, Activity::Trim, 0), Some("completed at"));
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

/// What a reader keeps comes back with no group: none is written for it.
#[test]
fn no_group_is_written_for_what_is_held() {
    let rig = Rig::new(256 * MIB);
    let short = Some(Duration::from_millis(50));
    let options = EngineOptions { txg_timeout: short, ..EngineOptions::default() };
    let engine = rig.create_on("a", 12, options, &Faulty::default());
    engine.set_properties(vec![PropChange::Number("autotrim", 1)]).unwrap();
    let fs = open(&engine);
    fill(&fs, 0..100, LEN);
    engine.sync().unwrap();
    let reading = engine.allocator().readers().begin();
    remove(&fs, 20..100);
    until("the files are freed", || {
        engine.sync().unwrap();
        engine.allocator().deferred() > 80 * LEN as u64
    });
    let txg = || engine.pool().uberblock().txg;
    until("no group more", || {
        let before = txg();
        std::thread::sleep(Duration::from_secs(1));
        txg() == before
    });
    drop(reading);
    check(&fs, 0..20, LEN);
    drop(fs);
    end(&rig, engine);
}
