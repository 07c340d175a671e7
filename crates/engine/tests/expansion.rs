//! RAID-Z vdevs are expanded in use. OpenZFS 2.1, which the tests run beside, does not know such pools: every block is accounted for
//! by our own traversal, and by a newer OpenZFS if there is one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::create::SystemDevices;
use cenote_engine::{Attach, Engine, EngineError, EngineOptions, tunables};
use cenote_pool::reopen::Restore;
use parking_lot::{Mutex, MutexGuard};
use rig::joining::{device, replace};
use rig::{Faulty, Rig, check, fill, open, replaying};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sparse.
const SIZE: u64 = 200 << 20;
const LEN: usize = 600_000;

/// Tunables are the process's.
static ALONE: Mutex<()> = Mutex::new(());

/// Sectors move as far as `most`; 0: all the way.
fn alone(most: u64) -> MutexGuard<'static, ()> {
    let alone = ALONE.lock();
    stays_at(most);
    alone
}

fn stays_at(most: u64) {
    tunables::find("raidz_expand_max_reflow_bytes").unwrap().set(most).unwrap();
}

fn expand(rig: &Rig, engine: &Engine, new: &str) -> Result<(), EngineError> {
    let beside = engine.pool().store().vdevs().top(0).unwrap().guid();
    let new = device(rig, engine, new, &SystemDevices);
    engine.attach(Attach { beside, new, replaces: false })
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn wait(engine: &Engine) {
    // Vdevs say so before the group has ended.
    until("it ends", || !engine.pool().status().unwrap().expansion.unwrap().is_running);
    until("it is verified", || !engine.is_scanning());
    let expansion = engine.pool().status().unwrap().expansion.unwrap();
    assert!(!expansion.is_running && expansion.end >= expansion.start, "{expansion:?}");
    assert_eq!(rig::errors(engine), (0, 0, 0));
}

fn account(rig: &Rig) {
    let found = cenote_pool::discover(&[rig.path().to_path_buf()]);
    let options = cenote_pool::ImportOptions { readonly: true, ..Default::default() };
    rig::account(&cenote_pool::Pool::import(&found[0], &options).unwrap());
    cenote_testpools::try_judge_newer(rig.path(), "tank").unwrap_or_else(|e| panic!("{e}"));
}

/// Everything a disk holds but its labels is wrong from now on.
fn spoil(rig: &Rig, name: &str) {
    let mut file = std::fs::OpenOptions::new().read(true).write(true).open(rig.file(name)).unwrap();
    let (start, end) = (4 << 20, SIZE - (1 << 20));
    let mut bytes = vec![0; (end - start) as usize];
    file.seek(SeekFrom::Start(start)).unwrap();
    file.read_exact(&mut bytes).unwrap();
    bytes.iter_mut().filter(|b| **b != 0).for_each(|b| *b ^= 0x5a);
    file.seek(SeekFrom::Start(start)).unwrap();
    file.write_all(&bytes).unwrap();
}

/// The pool may expand RAID-Z.
fn with_feature(engine: Arc<Engine>) -> Arc<Engine> {
    let feature = cenote_format::features::by_name("raidz_expansion").unwrap();
    engine.set_properties(vec![cenote_pool::props::PropChange::Feature(feature)]).unwrap();
    engine
}

#[test]
fn a_vdev_is_expanded_twice() {
    let _alone = alone(0);
    for (line, parity) in [("raidz1 a b c", 1), ("raidz2 a b c d", 2)] {
        let rig = Rig::new(SIZE);
        let engine = with_feature(rig.create(line, 12));
        let fs = open(&engine);
        fill(&fs, 0..20, LEN);
        let size = engine.pool().space().unwrap().vdev(0).unwrap().size;
        expand(&rig, &engine, "x").unwrap();
        fill(&fs, 20..40, LEN);
        wait(&engine);
        check(&fs, 0..40, LEN);
        let grown = engine.pool().space().unwrap().vdev(0).unwrap().size;
        assert!(grown > size, "{grown}");
        fill(&fs, 40..60, LEN);
        expand(&rig, &engine, "y").unwrap();
        wait(&engine);
        fill(&fs, 60..80, LEN);
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        account(&rig);
        // Blocks of three widths, and as many disks wrong as there is parity.
        ["b", "x"].iter().take(parity).for_each(|name| spoil(&rig, name));
        let engine = rig.import();
        let fs = open(&engine);
        check(&fs, 0..80, LEN);
        engine.scrub().unwrap();
        until("it is scrubbed", || !engine.is_scanning());
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        account(&rig);
    }
}

/// Wherever an expansion stays, all is read with a disk away, and written; and an import goes on with it.
#[test]
fn an_expansion_goes_on_after_an_import() {
    // In the scratch area, and in the midst.
    for most in [1, 60 << 20] {
        let _alone = alone(most);
        let rig = Rig::new(SIZE);
        let engine = with_feature(rig.create("raidz1 a b c", 12));
        let fs = open(&engine);
        fill(&fs, 0..20, LEN);
        expand(&rig, &engine, "x").unwrap();
        let moved = || engine.pool().store().vdevs().top(0).unwrap().reflow().unwrap().synced;
        until("it moves", || moved() >= most);
        fill(&fs, 20..40, LEN);
        check(&fs, 0..40, LEN);
        let why = expand(&rig, &engine, "y").unwrap_err().to_string();
        assert!(why.contains("raidz expansion in progress"), "{why}");
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        account(&rig);
        let hidden = rig.path().with_extension("hidden");
        std::fs::rename(rig.file("b"), &hidden).unwrap();
        let engine = rig.import();
        stays_at(0);
        let fs = open(&engine);
        check(&fs, 0..40, LEN);
        fill(&fs, 40..50, LEN);
        std::thread::sleep(Duration::from_millis(500));
        assert!(engine.pool().store().vdevs().expanding().is_some(), "a device is away");
        assert!(engine.expansion_waits().unwrap().contains("unavailable"));
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        std::fs::rename(hidden, rig.file("b")).unwrap();
        let engine = rig.import();
        until("it ends", || engine.pool().store().vdevs().expanding().is_none());
        until("it is verified", || !engine.is_scanning());
        let fs = open(&engine);
        check(&fs, 0..50, LEN);
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        account(&rig);
    }
}

/// Files are written and made durable beside the steps: what they have is of groups that are open yet, and what they free is
/// held. A crash leaves all that was acknowledged, and an import replays it while sectors move.
#[test]
fn what_is_synced_beside_an_expansion_is_kept() {
    const FIRST: u64 = 40;
    let copied = tunables::find("raidz_expand_max_copy_bytes").unwrap();
    for line in ["raidz1 a b c", "raidz2 a b c d"] {
        for most in [20 << 20, 28 << 20, 40 << 20] {
            let _alone = alone(most);
            let before = copied.get();
            copied.set(1 << 20).unwrap();
            let rig = Rig::new(SIZE);
            let timeout = Some(Duration::from_secs(600));
            let options = EngineOptions { txg_timeout: timeout, ..EngineOptions::default() };
            let engine = with_feature(rig.create_with(line, 12, options));
            let fs = open(&engine);
            fill(&fs, 0..FIRST, LEN);
            let head = engine.pool().dsl().root().unwrap().ds_obj;
            engine.commit(head).unwrap();
            engine.sync().unwrap();
            expand(&rig, &engine, "x").unwrap();
            let moved = || engine.pool().store().vdevs().top(0).unwrap().reflow().unwrap().synced;
            // (written, made durable).
            let mut kept = FIRST;
            until("it moves", || {
                if kept < 90 {
                    fill(&fs, kept..kept + 1, LEN);
                    if kept.is_multiple_of(5) {
                        let gone = format!("file {}", kept - 30);
                        fs.unlink(fs.root(), gone.as_bytes(), &|_| false).unwrap();
                        fill(&fs, kept - 30..kept - 29, LEN);
                    }
                    engine.commit(head).unwrap();
                    kept += 1;
                }
                moved() >= most
            });
            // No group comes any more, so the copy is of one moment.
            std::thread::sleep(Duration::from_millis(200));
            let crashed = rig.copy();
            stays_at(0);
            let again = crashed.import_with(replaying());
            let files = open(&again);
            check(&files, 0..kept, LEN);
            wait(&again);
            again.pool().store().drop_caches();
            check(&files, 0..kept, LEN);
            drop(files);
            again.export(false).unwrap();
            drop(again);
            account(&crashed);
            // The pool that did not crash.
            wait(&engine);
            engine.pool().store().drop_caches();
            check(&fs, 0..kept, LEN);
            drop(fs);
            engine.export(false).unwrap();
            copied.set(before).unwrap();
        }
    }
}

#[test]
fn what_cannot_be_expanded_is_refused() {
    let _alone = alone(0);
    let why = |done: Result<(), EngineError>| done.unwrap_err().to_string();
    let rig = Rig::new(64 << 20);
    let engine = rig.create("raidz1 a b c", 12);
    assert!(why(expand(&rig, &engine, "x")).contains("raidz_expansion feature must be enabled"));
    let rig = Rig::new(64 << 20);
    let engine = with_feature(rig.create("raidz1 a b c", 12));
    let boot = |bytes: &[u8]| {
        let file = std::fs::OpenOptions::new().write(true).open(rig.file("b")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, 512 << 10).unwrap();
    };
    boot(b"\xeb\x0eBTX");
    assert!(why(expand(&rig, &engine, "x")).contains("already being used by a boot loader"));
    boot(&[0; 5]);
    engine.checkpoint().unwrap();
    assert!(why(expand(&rig, &engine, "x")).contains("checkpoint"));
    engine.discard_checkpoint().unwrap();
    until("the checkpoint goes", || !engine.discards());
    tunables::find("zfs_scan_suspend_progress").unwrap().set(1).unwrap();
    replace(&rig, &engine, "a", "y").unwrap();
    assert!(why(expand(&rig, &engine, "x")).contains("offline or being replaced"));
    tunables::find("zfs_scan_suspend_progress").unwrap().set(0).unwrap();
}

/// The ring of uberblocks is the second half of a label.
const RING: u64 = 128 << 10;

/// A pool that is expanded from `a b c` to `x`. Uberblocks do not get on `b` from some step on, so that the pool on disk has moved on,
/// and memory has not.
struct Ahead {
    rig: Rig,
    devices: Faulty,
    engine: Arc<Engine>,
}

impl Ahead {
    /// From the step on with which `most` bytes have moved. There are files 0 to 50, ten of them in intent logs.
    fn new(most: u64) -> Ahead {
        let (rig, devices) = (Rig::new(SIZE), Faulty::default());
        // The steps alone bring groups about.
        let timeout = Some(Duration::from_secs(600));
        let options = EngineOptions { txg_timeout: timeout, ..EngineOptions::default() };
        let engine = with_feature(rig.create_on("raidz1 a b c", 12, options, &devices));
        let fs = open(&engine);
        fill(&fs, 0..40, LEN);
        expand(&rig, &engine, "x").unwrap();
        let ahead = Ahead { rig, devices, engine };
        until("it moves", || ahead.top().reflow().unwrap().synced >= most);
        ahead.fail(
            &[0, 2 * RING, SIZE - 4 * RING, SIZE - 2 * RING].map(|at| at + RING..at + 2 * RING),
        );
        stays_at(0);
        until("the pool on disk is ahead", || ahead.is_so());
        let head = ahead.engine.pool().dsl().root().unwrap().ds_obj;
        for file in 40..50 {
            fill(&fs, file..file + 1, LEN);
            ahead.engine.commit(head).unwrap();
        }
        until("it waits", || ahead.waits("does not know what has moved"));
        assert!(ahead.is_so());
        check(&fs, 0..50, LEN);
        ahead
    }

    fn top(&self) -> Arc<cenote_vdev::Vdev> {
        self.engine.pool().store().vdevs().top(0).unwrap().clone()
    }

    /// Writes of `b` there fail.
    fn fail(&self, ranges: &[Range<u64>]) {
        let b = self.devices.device(&self.rig, "b");
        ranges.iter().for_each(|range| b.fail_writes(range.clone()));
    }

    fn is_so(&self) -> bool {
        let (pool, reflow) = (self.engine.pool(), self.top().reflow().unwrap());
        let uberblock = pool.uberblock();
        let scratch = uberblock.reflow_state() == 1;
        (uberblock.reflow_offset(), scratch) != (reflow.synced, reflow.in_scratch)
    }

    fn waits(&self, why: &str) -> bool {
        self.engine.expansion_waits().is_some_and(|waits| waits.contains(why))
    }

    /// What a crash leaves now.
    fn crashed(&self) -> Rig {
        // Each try commits a group. While no try is made no group comes, so the copy shows one moment.
        stays_at(1);
        until("it does not try", || self.waits("raidz_expand_max_reflow_bytes is reached"));
        let last = self.engine.pool().uberblock().txg;
        let crashed = self.rig.copy();
        assert_eq!(self.engine.pool().uberblock().txg, last, "a group came beside the copy");
        stays_at(0);
        crashed
    }

    /// `b` takes all writes again.
    fn mend(&self) {
        self.devices.device(&self.rig, "b").repair();
        let leaf = rig::joining::leaf(&self.rig, &self.engine, "b");
        self.engine.restore(&[leaf], Restore::Failure).unwrap();
    }

    fn exported(self) -> Rig {
        let Ahead { rig, devices, engine } = self;
        engine.export(false).unwrap();
        drop((engine, devices));
        rig
    }

    fn ends(&self) {
        until("it ends", || self.engine.pool().store().vdevs().expanding().is_none());
        until("it is verified", || !self.engine.is_scanning());
    }
}

/// Whichever of these devices is away, all is there.
fn check_without_each(rig: &Rig, names: &[&str], files: u64) {
    for name in names {
        // A device that is not among the copies is looked for where it was.
        let hidden = rig.path().with_extension("hidden");
        std::fs::rename(rig.file(name), &hidden).unwrap();
        let copy = rig.copy();
        let engine = copy.import();
        check(&open(&engine), 0..files, LEN);
        assert_eq!(engine.pool().health(), "DEGRADED", "without {name}");
        assert!(engine.pool().store().errors().is_empty());
        engine.export(false).unwrap();
        std::fs::rename(hidden, rig.file(name)).unwrap();
    }
}

/// What was ahead has ended, and the pool was exported. All is as it should be.
fn check_ended(rig: &Rig, names: &[&str], files: u64) {
    account(rig);
    check_without_each(rig, names, files);
    let engine = rig.import();
    wait(&engine);
    engine.scrub().unwrap();
    until("it is scrubbed", || !engine.is_scanning());
    assert_eq!(rig::errors(&engine), (0, 0, 0));
    check(&open(&engine), 0..files, LEN);
    engine.export(false).unwrap();
    drop(engine);
    account(rig);
}

/// Sectors are not copied again over what is read on disk. What is written meanwhile is there in the pool itself, after a crash and
/// after an export, and the expansion goes on when the device knows.
#[test]
fn a_device_that_does_not_know_what_has_moved() {
    for (most, exports) in [(1, true), (1, false), (20 << 20, true), (20 << 20, false)] {
        let _alone = alone(most);
        let ahead = Ahead::new(most);
        let crashed = ahead.crashed();
        let again = crashed.import_with(replaying());
        check(&open(&again), 0..50, LEN);
        wait(&again);
        again.pool().store().drop_caches();
        check(&open(&again), 0..50, LEN);
        again.export(false).unwrap();
        drop(again);
        account(&crashed);
        if !exports {
            ahead.mend();
            ahead.ends();
        }
        let rig = ahead.exported();
        let engine = rig.import();
        wait(&engine);
        check(&open(&engine), 0..50, LEN);
        engine.export(false).unwrap();
        drop(engine);
        account(&rig);
    }
}

/// The same device fails writes of data for a while: what it lacks of both places it gets from a resilver, and what has moved is not
/// copied again.
#[test]
fn a_device_that_lacks_what_was_written_to_both_places() {
    for most in [1, 20 << 20] {
        let _alone = alone(most);
        let ahead = Ahead::new(most);
        let data = 4 << 20..SIZE - (1 << 20);
        ahead.fail(std::slice::from_ref(&data));
        let fs = open(&ahead.engine);
        fill(&fs, 50..60, LEN);
        ahead.engine.sync().unwrap();
        check(&fs, 0..60, LEN);
        let lacks = |child: &Arc<cenote_vdev::Vdev>| !child.missing().is_empty();
        assert!(ahead.top().children().iter().any(lacks) || !ahead.top().children()[1].writable());
        assert!(ahead.is_so());
        ahead.mend();
        ahead.ends();
        check(&fs, 0..60, LEN);
        drop(fs);
        let rig = ahead.exported();
        check_ended(&rig, &["a", "b", "c", "x"], 60);
    }
}

/// The same device is replaced. The new one has other sectors at new places than at old ones.
#[test]
fn a_device_that_does_not_know_is_replaced() {
    for most in [1, 20 << 20] {
        let _alone = alone(most);
        let ahead = Ahead::new(most);
        let fs = open(&ahead.engine);
        replace(&ahead.rig, &ahead.engine, "b", "y").unwrap();
        fill(&fs, 50..60, LEN);
        ahead.ends();
        check(&fs, 0..60, LEN);
        drop(fs);
        let rig = ahead.exported();
        std::fs::remove_file(rig.file("b")).unwrap();
        check_ended(&rig, &["a", "y", "c", "x"], 60);
    }
}
