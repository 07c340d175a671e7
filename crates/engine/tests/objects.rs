//! Pools whose data is in an object store. OpenZFS does not know them: every block is accounted for by our own traversal, and
//! every object by a listing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dmu::readahead::ReadAhead;
use cenote_engine::{Engine, EngineOptions};
use cenote_objects::{Space, Tunables};
use cenote_pool::props::PropChange;
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_vdev::{Growing, is_held, object, open_device, open_device_rw};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use rig::{Rig, TIMEOUT, account, check, fill, open};
use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: usize = 300_000;

/// Garbage is deleted at once.
fn tunables() -> Tunables {
    Tunables { grace: Duration::ZERO, object_bytes: 1 << 20, ..Tunables::default() }
}

/// A store in memory that hosts know by these names.
fn store(names: &[&str]) -> Arc<dyn ObjectStore> {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    for name in names {
        object::provide(Path::new(name), store.clone(), tunables());
    }
    store
}

fn options() -> EngineOptions {
    EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() }
}

fn import(name: &str) -> Arc<Engine> {
    let found = discover(&[PathBuf::from(name)]);
    let how = ImportOptions { force: true, ..ImportOptions::default() };
    Engine::import(&found[0], &how, options()).unwrap()
}

fn view(name: &str) -> Arc<Pool> {
    let found = discover(&[PathBuf::from(name)]);
    Pool::import(&found[0], &ImportOptions { readonly: true, ..Default::default() }).unwrap()
}

fn growing(engine: &Engine) -> Arc<dyn Growing> {
    engine.pool().store().vdevs().top(0).unwrap().growing().unwrap()
}

/// What is listed is what the last root names.
fn audit(store: &Arc<dyn ObjectStore>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let found = Space::look(store.clone(), Default::default(), tunables()).await.unwrap();
        let space = found.open("the test").await.unwrap();
        space.sweep().await.unwrap();
        space.tidy().await;
        let audit = space.audit().await.unwrap();
        assert!(audit.missing.is_empty() && audit.left.is_empty(), "{audit:?}");
    });
}

/// The bytes that are live in the index are those that the space maps have.
fn agree(engine: &Engine) {
    let pool = engine.pool();
    let space = pool.space().unwrap();
    let allocated: u64 = space.vdev(0).unwrap().alloc;
    assert_eq!(growing(engine).figures().live, allocated);
}

#[test]
fn a_pool_in_a_directory() {
    let rig = Rig::new(64 << 20);
    let dir = rig.file("objects");
    std::fs::create_dir(&dir).unwrap();
    let name = format!("file://{}", dir.display());
    let engine = rig.create_with(&name, 0, options());
    let fs = open(&engine);
    fill(&fs, 0..20, LEN);
    engine.sync().unwrap();
    check(&fs, 0..20, LEN);
    agree(&engine);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    account(&view(&name));
    let engine = import(&name);
    let fs = open(&engine);
    check(&fs, 0..20, LEN);
    for i in 0..10 {
        fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
    }
    fill(&fs, 20..30, LEN);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    account(&view(&name));
    let engine = import(&name);
    check(&open(&engine), 10..30, LEN);
    agree(&engine);
}

/// A directory for a pool, and what it is called.
fn place(rig: &Rig) -> (PathBuf, String) {
    let dir = rig.file("objects");
    std::fs::create_dir(&dir).unwrap();
    let name = format!("file://{}", dir.display());
    (dir, name)
}

/// The name of this host.
fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_string()
}

fn mode(dir: &Path) -> u32 {
    dir.metadata().unwrap().permissions().mode() & 0o7777
}

/// One process writes to a directory, however it is called, and no other user of the host reads it.
#[test]
fn a_directory_belongs_to_one_pool() {
    let rig = Rig::new(64 << 20);
    let (dir, name) = place(&rig);
    let link = rig.file("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    let names = [name.clone(), format!("{name}/"), format!("file://{}", link.display())];
    let set = |mode| std::fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
    set(0o755);
    assert!(!is_held(Path::new(&name)));
    let engine = rig.create_with(&name, 0, options());
    assert_eq!(mode(&dir), 0o700);
    for name in &names {
        let refused = open_device_rw(Path::new(name)).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::ResourceBusy, "{name}");
        assert!(is_held(Path::new(name)), "{name}");
        // To read it is no harm: it is the one that is written.
        open_device(Path::new(name)).unwrap();
    }
    engine.export(false).unwrap();
    drop(engine);
    assert!(!is_held(Path::new(&name)));
    // Another process has it.
    let held = std::fs::File::open(&dir).unwrap();
    held.try_lock().unwrap();
    for name in &names {
        let refused = open_device_rw(Path::new(name)).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::ResourceBusy, "{name}");
    }
    drop(held);
    set(0o755);
    let engine = import(&names[2]);
    assert_eq!(mode(&dir), 0o700);
    engine.export(false).unwrap();
}

/// A directory that takes the place of the pool's gets no group, and what was acknowledged is found in the old one.
#[test]
fn a_directory_that_is_renamed_gets_all_groups() {
    let rig = Rig::new(64 << 20);
    let (dir, name) = place(&rig);
    let engine = rig.create_with(&name, 0, options());
    fill(&open(&engine), 0..5, LEN);
    engine.sync().unwrap();
    let away = rig.file("away");
    std::fs::rename(&dir, &away).unwrap();
    std::fs::create_dir(&dir).unwrap();
    fill(&open(&engine), 5..10, LEN);
    let theirs = engine.clone();
    let syncing = std::thread::spawn(move || theirs.sync().is_ok());
    let end = Instant::now() + Duration::from_secs(60);
    while !engine.waits_for_devices() {
        assert!(Instant::now() < end, "the group counts as stored");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!syncing.join().unwrap());
    let why = engine.suspended().unwrap();
    assert!(why.contains("is another directory than the one that was opened"), "{why}");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    let _ = engine.resume();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    std::fs::remove_dir(&dir).unwrap();
    std::fs::rename(&away, &dir).unwrap();
    while engine.resume().is_err() || engine.waits_for_devices() {
        assert!(Instant::now() < end, "the pool does not go on: {:?}", engine.suspended());
        std::thread::sleep(Duration::from_millis(20));
    }
    engine.sync().unwrap();
    // The host loses power.
    std::mem::forget(engine);
    let copy = rig.file("copy");
    let copied = std::process::Command::new("cp").arg("-r").args([&dir, &copy]).status().unwrap();
    assert!(copied.success());
    let name = format!("file://{}", copy.display());
    let engine = import(&name);
    check(&open(&engine), 0..10, LEN);
    engine.export(false).unwrap();
    drop(engine);
    account(&view(&name));
}

/// A directory with other files is refused before anything is written.
#[test]
fn a_directory_with_other_files_is_refused() {
    let rig = Rig::new(64 << 20);
    let (dir, name) = place(&rig);
    std::fs::write(dir.join("letter"), "dear reader").unwrap();
    std::fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    let refused = rig.try_create(&name, &[]).err().unwrap().to_string();
    assert!(refused.contains("is not empty"), "{refused}");
    assert_eq!((mode(&dir), std::fs::read_dir(&dir).unwrap().count()), (0o755, 1));
}

/// `multihost=on` would protect nothing.
#[test]
fn multihost_is_refused() {
    let rig = Rig::new(64 << 20);
    let (_, name) = place(&rig);
    let on = vec![PropChange::Number("multihost", 1)];
    let refused = rig.try_create(&name, &on).err().unwrap().to_string();
    assert!(refused.contains("multihost=on of a pool in an object store"), "{refused}");
    let engine = rig.create_with(&name, 0, options());
    let refused = engine.set_properties(on).unwrap_err().to_string();
    assert!(refused.contains("multihost=on of a pool in an object store"), "{refused}");
    engine.set_properties(vec![PropChange::Number("multihost", 0)]).unwrap();
    engine.export(false).unwrap();
}

/// To go back to an earlier group is refused for writing: the index has the last one only.
#[test]
fn a_rewind_is_for_reading() {
    store(&["test://rewind"]);
    let rig = Rig::new(64 << 20);
    let engine = rig.create_with("test://rewind", 0, options());
    for i in 0..4 {
        fill(&open(&engine), i..i + 1, LEN);
        engine.sync().unwrap();
    }
    let txg = engine.pool().uberblock().txg - 2;
    engine.export(false).unwrap();
    drop(engine);
    let found = discover(&[PathBuf::from("test://rewind")]);
    let how = ImportOptions { force: true, txg: Some(txg), ..ImportOptions::default() };
    let refused = Engine::import(&found[0], &how, options()).err().unwrap().to_string();
    assert!(refused.contains("going back to an earlier transaction group"), "{refused}");
    let how = ImportOptions { readonly: true, ..how };
    assert!(Pool::import(&found[0], &how).unwrap().uberblock().txg <= txg);
    let engine = import("test://rewind");
    check(&open(&engine), 0..4, LEN);
    engine.export(false).unwrap();
}

/// A special device that knows a later group than the store has (a store that was restored from a copy) is refused for writing.
#[test]
fn a_store_that_is_older_than_other_devices_is_for_reading() {
    let memory = Arc::new(InMemory::new());
    object::provide(Path::new("test://now"), memory.clone(), tunables());
    let rig = Rig::new(64 << 20);
    let engine = rig.create_with("test://now special a", 0, options());
    fill(&open(&engine), 0..2, LEN);
    engine.sync().unwrap();
    object::provide(Path::new("test://then"), Arc::new(memory.fork()), tunables());
    fill(&open(&engine), 2..4, LEN);
    engine.sync().unwrap();
    engine.export(false).unwrap();
    drop(engine);
    let of = |name: &str| discover(&[PathBuf::from(name), rig.file("a")]);
    let how = ImportOptions { force: true, ..ImportOptions::default() };
    let refused = Engine::import(&of("test://then")[0], &how, options()).err().unwrap();
    let refused = refused.to_string();
    assert!(refused.contains("newer than what its object store has"), "{refused}");
    let engine = Engine::import(&of("test://now")[0], &how, options()).unwrap();
    check(&open(&engine), 0..4, LEN);
    engine.export(false).unwrap();
}

/// A host that opened the space before another one wrote to it is refused when it takes over, by the other's name, and nothing is
/// allocated before.
#[test]
fn who_takes_over_late_is_told_of_whom() {
    store(&["test://early", "test://late"]);
    let rig = Rig::new(64 << 20);
    let engine = rig.create_with("test://early", 0, options());
    let late = open_device_rw(Path::new("test://late")).unwrap();
    fill(&open(&engine), 0..2, LEN);
    engine.sync().unwrap();
    let space = late.growing().unwrap();
    assert!(space.newest_group() < growing(&engine).newest_group());
    let why = space.allocate(512).unwrap_err().to_string();
    assert_eq!(why, "the space was not taken over");
    let why = space.take_over().unwrap_err().to_string();
    let host = host();
    assert!(why.contains(&host) && why.contains("has written to it since"), "{why}");
    fill(&open(&engine), 2..4, LEN);
    engine.sync().unwrap();
    drop((space, late));
    engine.export(false).unwrap();
    account(&view("test://early"));
}

/// A program that is within a runtime of its own gets answers.
#[test]
fn a_caller_within_a_runtime() {
    store(&["test://runtime"]);
    for mut builder in
        [tokio::runtime::Builder::new_current_thread(), tokio::runtime::Builder::new_multi_thread()]
    {
        let runtime = builder.enable_all().build().unwrap();
        runtime.block_on(async {
            let device = open_device(Path::new("test://runtime")).unwrap();
            assert!(device.growing().unwrap().is_new() && device.is_there());
        });
    }
}

/// The device grows by itself as often as it can; then changes are refused for want of space, and the pool goes on.
#[test]
#[ignore = "five minutes of processor at opt-level 0: it writes up to a gigabyte"]
fn addresses_end_with_out_of_space() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let name = Path::new("test://sizes");
    object::provide_sized(name, store.clone(), tunables(), (256 << 20, 1 << 30));
    let rig = Rig::new(64 << 20);
    let engine = rig.create_cut("test://sizes", 0, 24);
    let fs = open(&engine);
    let file = fs.create(fs.root(), b"file", &rig::NODE).unwrap();
    let sized = |engine: &Engine| engine.pool().store().vdevs().top(0).unwrap().asize();
    let first = sized(&engine);
    let mut sizes = vec![first];
    let mut written = 0_u64;
    let full = loop {
        let bytes = rig::bytes(written % 7, 1 << 20);
        if let Err(error) = fs.write(file.ino, (written % 8) << 20, &bytes, false) {
            break error;
        }
        written += 1;
        if written.is_multiple_of(4) {
            engine.sync().unwrap();
            let size = sized(&engine);
            if sizes.last() != Some(&size) {
                sizes.push(size);
            }
        }
        assert!(written < 1100, "{sizes:?}");
    };
    assert!(full.to_string().contains("space"), "{full}");
    assert!(sizes.len() == 3 && sizes[2] > 3 * first, "{sizes:?}");
    assert!(written > 500, "{written}");
    assert!(engine.suspended().is_none());
    fs.unlink(fs.root(), b"file", &|_| false).unwrap();
    engine.sync().unwrap();
    agree(&engine);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    account(&view("test://sizes"));
    let engine = import("test://sizes");
    assert_eq!(sized(&engine), sizes[2]);
    engine.sync().unwrap();
    engine.export(false).unwrap();
    drop(engine);
    audit(&store);
}

/// Files that were read to their ends and stay open leave all that is read ahead to other readers.
#[test]
fn readers_that_are_at_an_end_wait_for_nothing() {
    let store = store(&["test://ends"]);
    let rig = Rig::new(64 << 20);
    let engine = rig.create_with("test://ends", 0, options());
    let fs = open(&engine);
    let sizes = [4096, 20 << 20];
    let numbers = sizes.map(|size| {
        let file = fs.create(fs.root(), format!("{size}").as_bytes(), &rig::NODE).unwrap();
        fs.write(file.ino, 0, &rig::bytes(size as u64, size), false).unwrap();
        file.ino
    });
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    let pool = view("test://ends");
    let root = pool.dsl().root().unwrap();
    let files = pool.dsl().open_objset(&root).unwrap();
    let readers = [ReadAhead::new(), ReadAhead::new()];
    let (most, mut least) = (1 << 30, u64::MAX);
    let left = || pool.store().ahead_share().left_of(most);
    assert!(pool.store().read_ahead().is_some());
    for ((number, size), reader) in numbers.into_iter().zip(sizes).zip(&readers) {
        let object = files.object(number).unwrap();
        for at in (0..size as u64).step_by(128 << 10) {
            let len = (size as u64 - at).min(128 << 10);
            reader.before_read(at, len, false, |_, _| Some(object.clone()));
            least = least.min(left());
            object.read(at, &mut vec![0; len as usize]).unwrap();
        }
    }
    assert!(least < most, "nothing was read ahead");
    assert_eq!(left(), most);
    drop((readers, files, root, pool));
    audit(&store);
}

/// The host loses power: nothing more of it arrives.
fn crash(engine: Arc<Engine>) {
    // The engine is never told; its threads wait for a group that does not come.
    std::mem::forget(engine);
}

/// What was synced is there after a crash, what was not is not, and nothing is left over.
#[test]
fn a_host_dies_in_the_midst_of_a_group() {
    let store = store(&["test://dies", "test://lives"]);
    let rig = Rig::new(64 << 20);
    let engine = rig.create_with("test://dies", 0, options());
    let fs = open(&engine);
    fill(&fs, 0..10, LEN);
    engine.sync().unwrap();
    fill(&fs, 10..15, LEN);
    drop(fs);
    crash(engine);
    let engine = import("test://lives");
    let fs = open(&engine);
    check(&fs, 0..10, LEN);
    assert!(fs.lookup(fs.root(), b"file 10").is_err());
    fill(&fs, 20..25, LEN);
    engine.sync().unwrap();
    agree(&engine);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    account(&view("test://lives"));
    audit(&store);
}

/// Another host imports the pool: the group that this one writes next fails and says why, and what the other one writes stays.
#[test]
fn a_second_host_takes_over() {
    let store = store(&["test://first", "test://second"]);
    let rig = Rig::new(64 << 20);
    let first = rig.create_with("test://first", 0, options());
    fill(&open(&first), 0..5, LEN);
    first.sync().unwrap();
    // To look takes nothing away.
    account(&view("test://second"));
    fill(&open(&first), 5..6, LEN);
    first.sync().unwrap();
    let second = import("test://second");
    let theirs = open(&second);
    check(&theirs, 0..6, LEN);
    fill(&theirs, 6..10, LEN);
    second.sync().unwrap();
    fill(&open(&first), 100..105, LEN);
    let writing = first.clone();
    std::thread::spawn(move || writing.sync());
    let end = std::time::Instant::now() + Duration::from_secs(60);
    let why = loop {
        let suspension = first.pool().store().vdevs().suspension().clone();
        if let Some(why) = suspension.why() {
            break why;
        }
        assert!(std::time::Instant::now() < end, "the first host goes on");
        std::thread::sleep(Duration::from_millis(20));
    };
    let host = host();
    assert!(why.contains("another import has taken over the pool") && why.contains(&host), "{why}");
    check(&theirs, 0..10, LEN);
    fill(&theirs, 10..12, LEN);
    drop(theirs);
    second.export(false).unwrap();
    drop(second);
    account(&view("test://second"));
    std::mem::forget(first);
    audit(&store);
}

/// Objects of which most is dead are written anew while the pool is in use.
#[test]
fn what_is_dead_is_given_back() {
    let store = store(&["test://reclaim"]);
    let rig = Rig::new(64 << 20);
    let engine = rig.create_with("test://reclaim", 0, options());
    let fs = open(&engine);
    // Files of one block each share objects.
    fill(&fs, 0..400, 16 << 10);
    engine.sync().unwrap();
    let full = growing(&engine).figures();
    for i in (0..400).filter(|i| i % 4 != 0) {
        fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
    }
    let end = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        engine.sync().unwrap();
        fs.write(fs.lookup(fs.root(), b"file 0").unwrap(), 0, &rig::bytes(0, 16 << 10), false)
            .unwrap();
        let now = growing(&engine).figures();
        agree(&engine);
        if now.stored < full.stored * 2 / 3 && now.stored < now.live * 2 {
            break;
        }
        assert!(std::time::Instant::now() < end, "{now:?} of {full:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    engine.pool().store().drop_caches();
    for i in (0..400).step_by(4) {
        check(&fs, i..i + 1, 16 << 10);
    }
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    account(&view("test://reclaim"));
    audit(&store);
}
