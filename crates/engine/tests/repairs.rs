//! Repairs that go on by themselves: what a resilver left, devices that stay away, what reads through views found wrong; and half
//! resilvers and spares in use of OpenZFS's engine. Where OpenZFS is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::change::{Kind, NewDataset};
use cenote_engine::tunables::{SCAN_CHECKPOINT_INTVAL, SCAN_SUSPEND_PROGRESS, SCAN_VDEV_LIMIT};
use cenote_engine::{Attach, Engine, EngineOptions, TakeOut};
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_pool::reopen::Restore;
use cenote_pool::scan::ScanPhys;
use cenote_vdev::VdevState;
use cenote_zpl::{FileSystem, Settings};
use parking_lot::{Mutex, MutexGuard};
use rig::joining::{device, leaf, replace};
use rig::{Faulty, Rig, check, check_devices, errors, fill, open};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 96 << 20;
const LEN: usize = 300_000;
const FILES: u64 = 40;
/// Where blocks begin on a device.
const START: u64 = 4 << 20;

/// Tunables are of the process: tests take turns.
static TURN: Mutex<()> = Mutex::new(());

struct Turn(#[allow(dead_code)] MutexGuard<'static, ()>);

impl Turn {
    fn take() -> Turn {
        let turn = TURN.lock();
        SCAN_CHECKPOINT_INTVAL.set(0).unwrap();
        Turn(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        SCAN_CHECKPOINT_INTVAL.set(60).unwrap();
        SCAN_SUSPEND_PROGRESS.set(0).unwrap();
        SCAN_VDEV_LIMIT.set(16 << 20).unwrap();
    }
}

fn scan(engine: &Engine) -> ScanPhys {
    ScanPhys::load(engine.pool().directory()).unwrap().unwrap_or_default()
}

/// Waits until something is so.
fn until(engine: &Engine, what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}: {:?}", scan(engine));
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn behind(rig: &Rig, engine: &Engine, name: &str) -> bool {
    let guid = leaf(rig, engine, name);
    engine.pool().store().vdevs().find(guid).unwrap().is_behind()
}

fn resilvers(engine: &Engine) -> usize {
    format!("{:?}", engine.pool().history().unwrap()).matches("func=2 mintxg").count()
}

/// Takes devices out of use, writes files, and brings them back while resilvers are held.
fn missing_files(rig: &Rig, line: &str, away: &[&str]) -> (Arc<Engine>, Faulty) {
    let devices = Faulty::default();
    let engine = rig.create_on(line, 12, EngineOptions::default(), &devices);
    fill(&open(&engine), 0..2, LEN);
    engine.sync().unwrap();
    for name in away {
        engine.take_out(leaf(rig, &engine, name), TakeOut::Offline).unwrap();
        devices.close(rig, name);
    }
    fill(&open(&engine), 2..FILES, LEN);
    engine.sync().unwrap();
    SCAN_SUSPEND_PROGRESS.set(1).unwrap();
    let guids: Vec<u64> = away.iter().map(|name| leaf(rig, &engine, name)).collect();
    engine.restore(&guids, Restore::Offline).unwrap();
    (engine, devices)
}

fn end(engine: Arc<Engine>, rig: &Rig, gone: &[&str]) {
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    gone.iter().for_each(|name| std::fs::remove_file(rig.file(name)).unwrap());
    let engine = rig.import();
    engine.pool().store().drop_caches();
    check(&open(&engine), 0..FILES, LEN);
    assert_eq!(errors(&engine), (0, 0, 0));
    engine.export(false).unwrap();
}

#[test]
fn another_resilver_gives_what_one_left() {
    let _turn = Turn::take();
    SCAN_VDEV_LIMIT.set(1 << 20).unwrap();
    let rig = Rig::new(SIZE);
    let (engine, devices) = missing_files(&rig, "mirror a b", &["b"]);
    let a = devices.device(&rig, "a");
    a.fail(START + (4 << 20)..START + (5 << 20));
    a.set_delay(Duration::from_millis(20));
    SCAN_SUSPEND_PROGRESS.set(0).unwrap();
    until(&engine, "no error", || errors(&engine).0 > 0);
    std::thread::sleep(Duration::from_millis(150));
    a.repair();
    until(&engine, "b stays behind", || !behind(&rig, &engine, "b"));
    until(&engine, "a scan goes on", || !engine.is_scanning());
    assert!(resilvers(&engine) >= 2, "the first one left nothing");
    assert_eq!(scan(&engine).errors, 0);
    drop((a, devices));
    end(engine, &rig, &["a"]);
}

/// A device that is needed and stays away keeps other vdevs waiting only for a while.
#[test]
fn a_silent_device_does_not_hold_others_up() {
    let _turn = Turn::take();
    let rig = Rig::new(SIZE);
    let (engine, devices) = missing_files(&rig, "mirror a b mirror e f", &["b", "f"]);
    let e = devices.device(&rig, "e");
    e.fail(0..u64::MAX);
    SCAN_SUSPEND_PROGRESS.set(0).unwrap();
    until(&engine, "b stays behind", || !behind(&rig, &engine, "b"));
    assert!(behind(&rig, &engine, "f"));
    e.repair();
    until(&engine, "f stays behind", || !behind(&rig, &engine, "f"));
    until(&engine, "a scan goes on", || !engine.is_scanning());
    drop((e, devices));
    end(engine, &rig, &["a", "e"]);
}

/// The history is read through a view: what was wrong there is mended all the same.
#[test]
fn what_views_find_wrong_is_mended() {
    let _turn = Turn::take();
    let rig = Rig::new(SIZE);
    let options = EngineOptions { txg_timeout: Some(rig::TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_with("mirror a b", 12, options);
    fill(&open(&engine), 0..FILES, LEN);
    engine.sync().unwrap();
    // All that either side has of metadata may be wrong on that side; the other one has it.
    let file = std::fs::OpenOptions::new().write(true).open(rig.file("b")).unwrap();
    for at in (START..SIZE - (2 << 20)).step_by(1 << 20) {
        file.write_all_at(&vec![0x5a; 1 << 20], at).unwrap();
    }
    let look = || {
        engine.pool().store().drop_caches();
        let before = errors(&engine).2;
        engine.pool().history().unwrap();
        let root = engine.pool().dsl().root().unwrap();
        engine.pool().dsl().snapshots(&root).unwrap();
        errors(&engine).2 - before
    };
    let found = look();
    assert!(found > 0, "nothing was read from the wrong side");
    let store = engine.pool().store().clone();
    engine.sync_task(|_| Ok(())).unwrap();
    until(&engine, "it is not mended", || !store.has_wrong());
    engine.sync_task(|_| Ok(())).unwrap();
    until(&engine, "it is read wrong still", || look() == 0);
    let healed = engine.pool().store().vdevs().leaves()[1].self_healed();
    assert!(healed > 0);
    drop(store);
    engine.scrub().unwrap();
    until(&engine, "a scan goes on", || !engine.is_scanning());
    assert_eq!(scan(&engine).errors, 0);
    end(engine, &rig, &["a"]);
}

/// A read through a view meets the first copy, and what is wrong in the other one is mended with that: each error is counted once.
#[test]
fn what_is_mended_beside_what_was_read_is_counted() {
    let _turn = Turn::take();
    let rig = Rig::new(SIZE);
    let names = ["a", "b", "c"];
    let options = EngineOptions { txg_timeout: Some(rig::TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_with("raidz1 a b c", 12, options);
    let props = vec![("copies".to_string(), "2".to_string())];
    let new = NewDataset { name: "tank/twice".into(), kind: Kind::Filesystem, props };
    rig::changes(&engine).create(&new).unwrap();
    let dataset = || engine.pool().dsl().find("tank/twice").unwrap().unwrap();
    let live = engine.live(dataset().ds_obj).unwrap();
    fill(&FileSystem::open_live(live, Settings::default()).unwrap(), 0..8, LEN);
    engine.sync().unwrap();
    let pool = engine.pool();
    let contents = pool.dsl().open_objset(&dataset()).unwrap();
    let fs = FileSystem::open(contents.clone()).unwrap();
    let (tree, mut wrong) = (pool.store().vdevs().clone(), [0u64; 3]);
    for file in 0..8 {
        let ino = fs.lookup(fs.root(), format!("file {file}").as_bytes()).unwrap();
        for blkid in 0..LEN.div_ceil(128 << 10) as u64 {
            let bp = contents.object(ino).unwrap().block_pointer(0, blkid).unwrap();
            assert_eq!(bp.dvas().count(), 2);
            for dva in bp.dvas() {
                let top = tree.top(dva.vdev.into()).unwrap();
                let rows = top.columns(dva.offset, bp.psize(), bp.physical_birth()).unwrap();
                let column = &rows[0][1];
                let mut how = std::fs::OpenOptions::new();
                let path = rig.file(names[column.child]);
                let file = how.read(true).write(true).open(path).unwrap();
                let (mut bytes, at) = ([0; 64], START + column.offset);
                file.read_exact_at(&mut bytes, at).unwrap();
                file.write_all_at(&bytes.map(|byte| !byte), at).unwrap();
                wrong[column.child] += 1;
            }
        }
    }
    drop((fs, contents, tree));
    let found = || {
        let leaves = engine.pool().store().vdevs().leaves();
        [0, 1, 2].map(|leaf| leaves[leaf].errors().2)
    };
    let look = || {
        engine.pool().store().drop_caches();
        let contents = engine.pool().dsl().open_objset(&dataset()).unwrap();
        check(&FileSystem::open(contents).unwrap(), 0..8, LEN);
        found().iter().sum::<u64>()
    };
    let all: u64 = wrong.iter().sum();
    // The thread that mends may be woken by the group before only now: then it has looked at some of them.
    let first = look();
    assert!((all / 2..=all).contains(&first), "{first} of {all}");
    engine.sync_task(|_| Ok(())).unwrap();
    until(&engine, "what is mended is not counted", || found() == wrong);
    assert_eq!(look(), all);
    engine.scrub().unwrap();
    until(&engine, "a scan goes on", || !engine.is_scanning());
    assert_eq!((scan(&engine).errors, scan(&engine).processed, found()), (0, 0, wrong));
    drop(pool);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// A device that is taken away fails all that it is asked for, and has not had too many errors. One that stays, and fails as much, has.
#[test]
fn a_device_that_is_taken_away_has_not_failed() {
    let _turn = Turn::take();
    for is_gone in [true, false] {
        let (rig, devices) = (Rig::new(SIZE), Faulty::default());
        let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), &devices);
        fill(&open(&engine), 0..FILES, LEN);
        engine.sync().unwrap();
        engine.act_on_errors();
        let (b, away) = (devices.device(&rig, "b"), rig.file("away"));
        if is_gone {
            std::fs::rename(rig.file("b"), &away).unwrap();
        }
        b.fail(START..u64::MAX);
        engine.scrub().unwrap();
        let guid = leaf(&rig, &engine, "b");
        let b_now = || engine.pool().store().vdevs().find(guid).unwrap();
        until(&engine, "it is in use", || b_now().state() != VdevState::Healthy);
        until(&engine, "a scan goes on", || !engine.is_scanning());
        // A thread acts by what was found.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(b_now().state() == VdevState::Faulted, !is_gone);
        if is_gone {
            std::fs::rename(&away, rig.file("b")).unwrap();
        }
        engine.export(false).unwrap();
        drop((engine, b, devices));
        rig.judge_blocks();
    }
}

/// The vdevs that the config has, such as `mirror(spare(a s) b)`.
fn vdevs(engine: &Engine) -> String {
    fn show(vdev: &NvList) -> String {
        let below: Vec<String> = config::children(vdev).iter().map(show).collect();
        let name =
            |path: std::path::PathBuf| path.file_name().unwrap().to_string_lossy().to_string();
        match below.is_empty() {
            true => config::path(vdev).map_or_else(|| "?".into(), name),
            false => format!("{}({})", vdev.str("type").unwrap(), below.join(" ")),
        }
    }
    let pool = engine.pool();
    let root = pool.config().list("vdev_tree").unwrap();
    config::children(root).iter().map(show).collect::<Vec<_>>().join(" ")
}

/// We end a resilver that OpenZFS's engine has begun, of a mirror and of RAID-Z.
#[test]
fn we_go_on_with_half_a_resilver_of_openzfs() {
    let _turn = Turn::take();
    for (line, how, new, after, gone) in [
        ("mirror a b", "attach", "join attach 0 2", "mirror(a b x)", "a"),
        ("raidz1 a b c", "replace", "join replace 1 3", "raidz(a x c)", "a"),
    ] {
        let rig = Rig::new(SIZE);
        let engine = rig.create(line, 12);
        fill(&open(&engine), 0..FILES, LEN);
        engine.export(false).unwrap();
        drop(engine);
        rig.word("x");
        let script = format!("import\nhold 1\n{new}\nhalf-resilvered\nexport\n");
        cenote_testpools::openzfs(rig.path(), "tank", &script);
        rig.judge_blocks();
        let engine = rig.import();
        until(&engine, how, || vdevs(&engine) == after && !engine.is_scanning());
        until(&engine, how, || !behind(&rig, &engine, "x"));
        check_devices(&engine, FILES, LEN);
        end(engine, &rig, &[gone]);
    }
}

/// Replaces a device, and stops where the new one has some of it.
fn half_replaced(rig: &Rig, engine: &Engine, devices: &Faulty, old: &str, new: &str) {
    SCAN_SUSPEND_PROGRESS.set(1).unwrap();
    let (beside, joins) = (leaf(rig, engine, old), device(rig, engine, new, devices));
    engine.attach(Attach { beside, new: joins, replaces: true }).unwrap();
    let x = devices.device(rig, new);
    x.set_delay(Duration::from_millis(5));
    let before = x.writes();
    SCAN_SUSPEND_PROGRESS.set(0).unwrap();
    until(engine, "nothing is given", || x.writes() > before + 30);
    SCAN_SUSPEND_PROGRESS.set(1).unwrap();
    x.set_delay(Duration::ZERO);
    assert!(behind(rig, engine, new) && engine.is_scanning(), "it was given all at once");
}

/// A replacement in RAID-Z that was given up, and one whose device was away in the midst: the resilver that follows gives everything.
#[test]
fn what_follows_half_a_replacement_gives_all_of_raidz() {
    let _turn = Turn::take();
    SCAN_VDEV_LIMIT.set(64 << 10).unwrap();
    for (line, others) in [("raidz1 a b c", vec!["a"]), ("raidz2 a b c d", vec!["a", "d"])] {
        let rig = Rig::new(SIZE);
        let devices = Faulty::default();
        let engine = rig.create_on(line, 12, EngineOptions::default(), &devices);
        fill(&open(&engine), 0..20, LEN);
        engine.sync().unwrap();
        let last = if line.ends_with('d') { " d" } else { "" };
        half_replaced(&rig, &engine, &devices, "b", "x");
        engine.detach(leaf(&rig, &engine, "x"), None).unwrap();
        assert_eq!(vdevs(&engine), format!("raidz(a b c{last})"));
        fill(&open(&engine), 20..30, LEN);
        engine.sync().unwrap();
        half_replaced(&rig, &engine, &devices, "b", "y");
        let y = leaf(&rig, &engine, "y");
        engine.take_out(y, TakeOut::Offline).unwrap();
        devices.close(&rig, "y");
        fill(&open(&engine), 30..FILES, LEN);
        engine.sync().unwrap();
        SCAN_SUSPEND_PROGRESS.set(0).unwrap();
        until(&engine, "a scan goes on", || !engine.is_scanning());
        engine.restore(&[y], Restore::Offline).unwrap();
        let wanted = format!("raidz(a y c{last})");
        until(&engine, "b stays", || vdevs(&engine) == wanted && !engine.is_scanning());
        assert!(!behind(&rig, &engine, "y"));
        check_devices(&engine, FILES, LEN);
        drop(devices);
        end(engine, &rig, &others);
    }
}

/// A spare that OpenZFS's engine has put in use stays so here, and goes back; and the other way round.
#[test]
fn spares_in_use_are_understood_by_both() {
    let _turn = Turn::take();
    let rig = Rig::new(SIZE);
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..FILES, LEN);
    engine.export(false).unwrap();
    drop(engine);
    rig.word("s");
    let script = "import\nspare 2\noffline 0\njoin spare 0 2\nresilver\nsync\nexport\n";
    cenote_testpools::openzfs(rig.path(), "tank", script);
    rig.judge_blocks();
    let engine = rig.import();
    assert_eq!(vdevs(&engine), "mirror(spare(a s) b)");
    check_devices(&engine, FILES, LEN);
    let a = leaf(&rig, &engine, "a");
    engine.restore(&[a], Restore::Offline).unwrap();
    until(&engine, "a stays behind", || !behind(&rig, &engine, "a") && !engine.is_scanning());
    engine.detach(leaf(&rig, &engine, "s"), None).unwrap();
    assert_eq!(vdevs(&engine), "mirror(a b)");
    assert_eq!(engine.pool().spares().len(), 1);
    // Now it steps in here.
    let spare = config::number(&engine.pool().spares()[0], "guid");
    let new = engine.spare(spare).unwrap();
    let beside = leaf(&rig, &engine, "b");
    engine.take_out(beside, TakeOut::Offline).unwrap();
    engine.attach(cenote_engine::Attach { beside, new, replaces: true }).unwrap();
    until(&engine, "s stays behind", || !behind(&rig, &engine, "s") && !engine.is_scanning());
    assert_eq!(vdevs(&engine), "mirror(a spare(b s))");
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    let script = "import\nonline 1\nresilver\nleave 2\nscrub\nsync\nexport\n";
    cenote_testpools::openzfs(rig.path(), "tank", script);
    let engine = rig.import();
    assert_eq!(vdevs(&engine), "mirror(a b)");
    // It is free again: it can take the place of a device for good.
    replace(&rig, &engine, "a", "y").unwrap();
    until(&engine, "y stays behind", || vdevs(&engine) == "mirror(y b)");
    end(engine, &rig, &["b"]);
}
