//! Two hosts import a pool, one after the other. With `multihost=on` the first one has it, however long it reads before it
//! writes; otherwise the labels tell, which an import reads again if they are old.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, EngineOptions, tunables};
use cenote_format::label::Uberblock;
use cenote_pool::devices::Opener;
use cenote_pool::error::ImportError;
use cenote_pool::props::PropChange;
use cenote_pool::{Candidate, ImportOptions, discover};
use cenote_vdev::inject::FaultyDevice;
use cenote_vdev::{Device, open_device, open_device_rw};
use rig::{Rig, check, fill, open};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const SIZE: u64 = 64 << 20;
const LABELS: usize = 512 << 10;
/// How long a host waits that wants the pool.
const QUIET: Duration = Duration::from_secs(4);

fn import(rig: &Rig, hostid: u32, opener: Opener) -> Result<Arc<Engine>, ImportError> {
    let found = discover(&[rig.path().to_path_buf()]);
    let options = ImportOptions { force: true, hostid: Some(hostid), ..ImportOptions::default() };
    Engine::import(&found[0], &options, EngineOptions { opener, ..EngineOptions::default() })
}

/// The rank of the best uberblock on the devices.
fn rank(rig: &Rig) -> (u64, u64, u16) {
    let found = discover(&[rig.path().to_path_buf()]);
    let all = cenote_pool::import::uberblocks(&found[0]);
    Uberblock::best(&all).unwrap().rank()
}

/// Says that a test is over, however it ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Devices whose requests take that long.
fn slow(delay: Duration) -> Opener {
    Opener::new(move |path, writable| {
        let device =
            FaultyDevice::new((if writable { open_device_rw } else { open_device })(path)?);
        device.set_delay(delay);
        Ok(device as Arc<dyn Device>)
    })
}

#[test]
fn a_host_that_reads_for_long_keeps_its_claim() {
    for (name, value) in [("zfs_multihost_interval", 100), ("zfs_multihost_fail_intervals", 20)] {
        tunables::find(name).unwrap().set(value).unwrap();
    }
    let rig = Rig::new(SIZE);
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..3, 10_000);
    engine.set_properties(vec![PropChange::Number("multihost", 1)]).unwrap();
    engine.sync().unwrap();
    // The host that had it crashes: what is on the devices by now says that it is in use.
    let (ours, theirs) = (rig.copy(), rig.copy());
    engine.export(false).unwrap();
    drop((engine, rig));

    let (done, began) = (AtomicBool::new(false), rank(&ours));
    std::thread::scope(|scope| {
        let over = Over(&done);
        let importing = scope.spawn(|| import(&ours, 1, slow(Duration::from_millis(120))));
        // The other host sees the labels that this one writes.
        let copying = scope.spawn(|| {
            let mut labels = vec![0; LABELS];
            let files = ["a", "b"].map(|name| {
                let to = File::options().write(true).open(theirs.file(name)).unwrap();
                (File::open(ours.file(name)).unwrap(), to)
            });
            while !done.load(SeqCst) {
                for ((from, to), at) in
                    files.iter().flat_map(|f| [(f, 0), (f, SIZE - LABELS as u64)])
                {
                    from.read_exact_at(&mut labels, at).unwrap();
                    to.write_all_at(&labels, at).unwrap();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        while rank(&ours) == began && !importing.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let claimed = Instant::now();
        std::thread::sleep(Duration::from_millis(100));
        let refused = import(&theirs, 2, Opener::default()).map(drop);
        assert!(matches!(refused, Err(ImportError::Active { .. })), "{refused:?}");
        let engine = importing.join().unwrap().unwrap();
        // It has read for longer than the other one waits.
        assert!(claimed.elapsed() > QUIET, "{:?}", claimed.elapsed());
        assert!(engine.suspended().is_none());
        drop(over);
        copying.join().unwrap();
        check(&open(&engine), 0..3, 10_000);
        engine.export(false).unwrap();
    });
    ours.judge_blocks();
}

/// Imports what was found for this host, without force.
fn import_found(found: &Candidate, hostid: u32) -> Result<Arc<Engine>, ImportError> {
    let options = ImportOptions { hostid: Some(hostid), ..ImportOptions::default() };
    Engine::import(found, &options, EngineOptions::default())
}

/// The pool as a search found it that began a minute ago.
fn found_before(rig: &Rig) -> Candidate {
    let mut found = discover(&[rig.path().to_path_buf()]).remove(0);
    found.looked = found.looked.checked_sub(Duration::from_secs(60)).unwrap();
    found
}

/// Another program has the pool while its labels are read, and exports it before its devices are taken: what it wrote last counts,
/// however fresh the labels are.
#[test]
fn labels_are_read_again_once_the_devices_are_taken() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..3, 10_000);
    engine.sync().unwrap();
    let mut found = discover(&[rig.path().to_path_buf()]).remove(0);
    fill(&open(&engine), 3..6, 10_000);
    engine.export(false).unwrap();
    drop(engine);

    let last = rank(&rig);
    found.looked = Instant::now();
    let engine = Engine::import(&found, &ImportOptions::default(), EngineOptions::default());
    let engine = engine.unwrap();
    assert!(rank(&rig) > last, "{:?} {last:?}", rank(&rig));
    check(&open(&engine), 0..6, 10_000);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();

    // It is gone by now.
    let mut found = discover(&[rig.path().to_path_buf()]).remove(0);
    rig.import().export(true).unwrap();
    found.looked = Instant::now();
    let refused = Engine::import(&found, &ImportOptions::default(), EngineOptions::default());
    assert!(matches!(refused, Err(ImportError::NotFound(_))), "{:?}", refused.err());
}

#[test]
fn labels_that_are_old_are_read_again() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..3, 10_000);
    engine.export(false).unwrap();
    drop(engine);

    // Another program has it for a while.
    let found = found_before(&rig);
    let other = import_found(&found_before(&rig), 1).unwrap();
    fill(&open(&other), 3..6, 10_000);
    other.export(false).unwrap();
    drop(other);
    let engine = import_found(&found, 1).unwrap();
    check(&open(&engine), 0..6, 10_000);
    engine.export(false).unwrap();
    drop(engine);

    // Another host imports it.
    let found = found_before(&rig);
    let other = import_found(&found, 2).unwrap();
    let seen = rig.copy();
    other.export(false).unwrap();
    drop(other);
    for name in ["a", "b"] {
        std::fs::copy(seen.file(name), rig.file(name)).unwrap();
    }
    let refused = import_found(&found, 1).map(drop);
    assert!(matches!(refused, Err(ImportError::OtherHost { hostid: 2, .. })), "{refused:?}");
    let engine = import_found(&found, 2).unwrap();
    check(&open(&engine), 0..6, 10_000);
    engine.export(false).unwrap();
    rig.judge_blocks();
}
