//! Wrong bytes that satisfy the half of a checksum that pointers of encrypted datasets have: a flipped bit in the last
//! four bytes of a block does so in one of eight cases. The MAC tells them: another copy is read, and the wrong one is mended.
//! Where no key is loaded a scrub puts neither of two such copies in the place of the other. OpenZFS's `zdb` agrees; where it is not
//! installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "vouched/astray.rs"]
mod astray;
#[path = "vouched/doubted.rs"]
mod doubted;
mod rig;

use cenote_dsl::crypt::KeyFormat;
use cenote_dsl::write::crypt::RootKey;
use cenote_engine::change::{Kind, NewDataset, NewEncryption, NewSnapshot};
use cenote_engine::planted::Moment;
use cenote_engine::{Engine, EngineOptions};
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum::Salt;
use cenote_format::crypt::{Suite, WrappingKey};
use cenote_format::dmu::DmuType;
use cenote_inspect::traverse::{self, Event, Options, Subject, Verify};
use cenote_pool::metaslab::PoolSpace;
use cenote_pool::scan::{ScanState, ScanStatus};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_store::correct::{Corrected, Offer};
use cenote_store::injection::{DataError, DataHandler, Place};
use cenote_store::{BlockError, Bookmark, ScanKeys, Store, verify};
use cenote_zpl::{FileSystem, Settings};
use parking_lot::Mutex;
use rig::{Faulty, Rig, changes, check, fill};
use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 96 << 20;
const LEN: usize = 200_000;
const FILES: u64 = 12;
/// Where blocks begin on a device.
const START: u64 = 4 << 20;
const SECRET: &str = "tank/secret";

fn key() -> WrappingKey {
    WrappingKey::from_hex("5a".repeat(32).as_bytes()).unwrap()
}

fn load(pool: &Pool) {
    let secret = pool.dsl().find(SECRET).unwrap().unwrap();
    pool.dsl().load_key(&secret, key()).unwrap();
}

fn live(engine: &Engine) -> Arc<FileSystem> {
    opened(engine, SECRET)
}

fn opened(engine: &Engine, name: &str) -> Arc<FileSystem> {
    let dataset = engine.pool().dsl().find(name).unwrap().unwrap();
    FileSystem::open_live(engine.live(dataset.ds_obj).unwrap(), Settings::default()).unwrap()
}

/// Makes an encrypted file system.
fn secret_in(engine: &Arc<Engine>, files: u64) {
    let changes = changes(engine);
    let new = NewDataset { name: SECRET.into(), kind: Kind::Filesystem, props: vec![] };
    let wrapping = Arc::new(key());
    let root = RootKey { format: KeyFormat::Hex, salt: 0, iterations: 0, wrapping };
    let how = NewEncryption::Root(root, Suite::Aes256Gcm, "prompt".into());
    changes.create_encrypted(&new, &how).unwrap();
    fill(&live(engine), 0..files, LEN);
}

/// A pool with an encrypted file system and a snapshot of it, exported.
fn made(line: &str, ashift: u64) -> Rig {
    let rig = Rig::new(SIZE);
    let engine = rig.create(line, ashift);
    secret_in(&engine, FILES);
    let names = vec![format!("{SECRET}@kept")];
    changes(&engine).snapshot(&NewSnapshot { names, props: vec![] }).unwrap();
    engine.export(false).unwrap();
    rig
}

fn looked_at(rig: &Rig) -> Arc<Pool> {
    let found = discover(&[rig.path().to_path_buf()]);
    let options = ImportOptions { readonly: true, ..ImportOptions::default() };
    Pool::import(&found[0], &options).unwrap()
}

/// The blocks of a pool that are wanted, each once.
fn blocks(
    pool: &Pool,
    is_wanted: &(dyn Fn(&BlockPointer, Bookmark) -> bool + Sync),
) -> Vec<(BlockPointer, Bookmark)> {
    let space = PoolSpace::load(pool.mos(), pool.config()).unwrap();
    let subject =
        Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() };
    let options = Options { verify: Verify::Nothing, leaks: false, workers: 1 };
    let found = Mutex::new(Vec::new());
    let note = |event: Event<'_>| {
        if let Event::Block(one) = event
            && !one.is_log()
            && one.bp.dva(0).is_some()
            && is_wanted(&one.bp, one.at)
        {
            found.lock().push((one.bp, one.at));
        }
    };
    traverse::run(&subject, &space, &options, &note, &|| false).unwrap();
    let mut seen = HashSet::new();
    let mut all = found.into_inner();
    all.retain(|(bp, _)| bp.dva(0).is_some_and(|dva| seen.insert(dva.offset)));
    all
}

/// The blocks of the encrypted file system whose bytes have MACs.
fn protected(pool: &Pool) -> Vec<(BlockPointer, Bookmark)> {
    blocks(pool, &|bp, _| bp.uses_crypt() && bp.object_type() != DmuType::OBJSET.0)
}

/// The leaf, by its number, and the place on it of the last four bytes of a copy.
fn end_of(pool: &Pool, bp: &BlockPointer, dva: Dva, leaf: usize) -> (usize, u64) {
    let tree = pool.store().vdevs();
    let top = tree.top(dva.vdev.into()).unwrap();
    let size = bp.psize() as usize;
    match top.columns(dva.offset, bp.psize(), bp.physical_birth()) {
        None => (leaf, START + dva.offset + bp.psize() - 4),
        Some(rows) => {
            let columns = rows.iter().flat_map(|row| row.iter().skip(top.nparity() as usize));
            let last = columns.filter(|c| c.len > 0).find(|c| c.at + c.len >= size).unwrap();
            (last.child, START + last.offset + (size - last.at) as u64 - 4)
        }
    }
}

/// A bit that was flipped: the device, the byte, and what was there.
struct Planted {
    name: &'static str,
    at: u64,
    level: u8,
    was: [u8; 4],
    now: [u8; 4],
}

impl Planted {
    /// Whether the MAC tells: that of an indirect block is of the pointers in it, not of the zeros behind what was compressed.
    fn is_told(&self) -> bool {
        self.level == 0 || self.was != [0; 4]
    }

    fn is(&self, rig: &Rig, what: [u8; 4]) -> bool {
        let mut now = [0; 4];
        std::fs::File::open(rig.file(self.name)).unwrap().read_exact_at(&mut now, self.at).unwrap();
        now == what
    }
}

/// Flips a bit of each protected block that leaves its half of a checksum as it is: in the copies of `dvas`, on the leaf `leaf` of
/// a mirror, or where RAID-Z has the end.
fn plant(
    rig: &Rig,
    names: &[&'static str],
    leaves: &[usize],
    copies: impl Fn(&BlockPointer) -> Vec<Dva>,
) -> Vec<Planted> {
    plant_in(&looked_at(rig), rig, names, leaves, copies)
}

/// The same, of a pool that is in use.
fn plant_in(
    pool: &Pool,
    rig: &Rig,
    names: &[&'static str],
    leaves: &[usize],
    copies: impl Fn(&BlockPointer) -> Vec<Dva>,
) -> Vec<Planted> {
    let mut planted = Vec::new();
    for (bp, at) in protected(pool) {
        let Ok(right) = &pool.store().read_many_raw(&[(bp, at)])[0] else { panic!("{at}") };
        let right = right.bytes().to_vec();
        let from = right.len() - 4;
        let passes = |bit: usize| {
            let mut wrong = right.clone();
            wrong[from + bit / 8] ^= 1 << (bit % 8);
            let salt = Salt::new([0; 32]);
            let passes = verify::matches(&bp, &Abd::from_vec(wrong.clone()), &salt).unwrap();
            passes.then(|| wrong[from..].try_into().unwrap())
        };
        let Some(now) = (0..32).find_map(passes) else { continue };
        let was = right[from..].try_into().unwrap();
        for (dva, leaf) in copies(&bp).into_iter().flat_map(|d| leaves.iter().map(move |l| (d, *l)))
        {
            let (leaf, at) = end_of(pool, &bp, dva, leaf);
            let one = Planted { name: names[leaf], at, level: bp.level(), was, now };
            assert!(one.is(rig, was), "{bp:?}");
            let file = std::fs::OpenOptions::new().write(true).open(rig.file(names[leaf])).unwrap();
            file.write_all_at(&now, at).unwrap();
            planted.push(one);
        }
    }
    planted
}

fn all(bp: &BlockPointer) -> Vec<Dva> {
    bp.dvas().collect()
}

fn scrubbed(engine: &Engine) -> ScanStatus {
    engine.scrub().unwrap();
    let begun = Instant::now();
    loop {
        let scan = engine.pool().status().unwrap().scan.unwrap();
        if !scan.is_running() {
            assert_eq!(scan.state, ScanState::Finished);
            return scan;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{scan:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn errors(engine: &Engine) -> Vec<u64> {
    engine.pool().store().vdevs().leaves().iter().map(|l| l.errors().2).collect()
}

fn read_all(engine: &Engine) {
    engine.pool().store().drop_caches();
    check(&live(engine), 0..FILES, LEN);
}

/// Every bit is as it was.
fn all_mended(planted: &[Planted], rig: &Rig) {
    let left = planted.iter().filter(|one| !one.is(rig, one.was));
    let left: Vec<_> = left.map(|one| (one.name, one.at, one.level)).collect();
    assert!(left.is_empty(), "{left:x?} of {}", planted.len());
}

fn done(engine: Arc<Engine>, rig: &Rig) {
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// Reads find the right copies, and mend the others.
fn reads_mend(line: &str, ashift: u64, names: &[&'static str]) {
    let rig = made(line, ashift);
    let mut planted = plant(&rig, names, &[0], all);
    planted.retain(Planted::is_told);
    assert!(planted.len() > FILES as usize);
    let engine = rig.import();
    load(&engine.pool());
    // A side is chosen by the place of a block: some wrong copies are never read. What a view found is mended a moment later.
    let is_whole = |_| {
        read_all(&engine);
        std::thread::sleep(Duration::from_millis(20));
        planted.iter().filter(|one| one.is(&rig, one.was)).count() * 4 > planted.len()
    };
    assert!((0..200).any(is_whole), "{line}");
    let found = errors(&engine);
    assert!(found.iter().sum::<u64>() > 0, "{line}: {found:?}");
    assert!(engine.pool().store().errors().is_empty(), "{line}");
    done(engine, &rig);
}

#[test]
fn reads_take_the_copy_with_the_right_mac() {
    reads_mend("mirror a b", 9, &["a", "b"]);
    reads_mend("raidz1 a b c", 12, &["a", "b", "c"]);
    reads_mend("raidz2 a b c d", 9, &["a", "b", "c", "d"]);
}

/// A scrub mends all of them; then others may go.
fn scrub_mends(line: &str, ashift: u64, names: &[&'static str], gone: &str) {
    let rig = made(line, ashift);
    let planted = plant(&rig, names, &[0], all);
    let engine = rig.import();
    load(&engine.pool());
    let scan = scrubbed(&engine);
    assert_eq!(scan.errors, 0, "{line}");
    all_mended(&planted, &rig);
    let found = errors(&engine);
    for (i, name) in names.iter().enumerate() {
        assert_eq!(found[i] > 0, planted.iter().any(|one| one.name == *name), "{line}: {found:?}");
    }
    let again = scrubbed(&engine);
    assert_eq!((again.errors, again.processed), (0, 0), "{line}");
    assert_eq!(errors(&engine), found, "{line}");
    done(engine, &rig);
    if !gone.is_empty() {
        let place = tempfile::tempdir().unwrap();
        std::fs::rename(rig.file(gone), place.path().join(gone)).unwrap();
        let engine = rig.import();
        load(&engine.pool());
        read_all(&engine);
        engine.export(false).unwrap();
    }
}

#[test]
fn a_scrub_takes_the_copy_with_the_right_mac() {
    scrub_mends("mirror a b", 9, &["a", "b"], "b");
    scrub_mends("mirror a b c", 12, &["a", "b", "c"], "c");
    scrub_mends("raidz1 a b c", 12, &["a", "b", "c"], "");
    scrub_mends("raidz2 a b c d", 9, &["a", "b", "c", "d"], "");
    scrub_mends("draid1:2d:4c a b c d", 12, &["a", "b", "c", "d"], "");
}

/// Metadata has two copies on a single device.
#[test]
fn a_scrub_takes_the_ditto_copy_with_the_right_mac() {
    let rig = made("a", 12);
    let first = |bp: &BlockPointer| match bp.dva(1) {
        Some(_) => bp.dvas().take(1).collect(),
        None => Vec::new(),
    };
    let pool = looked_at(&rig);
    let twice = protected(&pool).iter().filter(|(bp, _)| bp.dva(1).is_some()).count();
    assert!(twice > 2);
    drop(pool);
    let mut planted = plant(&rig, &["a"], &[0], first);
    planted.retain(Planted::is_told);
    assert!(!planted.is_empty());
    let engine = rig.import();
    load(&engine.pool());
    assert_eq!(scrubbed(&engine).errors, 0);
    all_mended(&planted, &rig);
    read_all(&engine);
    done(engine, &rig);
}

/// A scrub without the key cannot tell which of two copies is right: both stay, and reads with the key find out.
#[test]
fn a_scrub_without_the_key_destroys_no_copy() {
    for (line, ashift, names) in
        [("mirror a b", 12, &["a", "b"][..]), ("raidz1 a b c", 9, &["a", "b", "c"][..])]
    {
        for leaf in [0, 1] {
            let rig = made(line, ashift);
            let planted = plant(&rig, names, &[leaf], all);
            let engine = rig.import();
            let scan = scrubbed(&engine);
            assert_eq!(scan.errors, 0, "{line}");
            // Indirect blocks take no key.
            for one in &planted {
                assert!(one.is(&rig, if one.level > 0 { one.was } else { one.now }), "{line}");
            }
            load(&engine.pool());
            read_all(&engine);
            let scan = scrubbed(&engine);
            assert_eq!(scan.errors, 0, "{line}");
            all_mended(&planted, &rig);
            read_all(&engine);
            done(engine, &rig);
        }
    }
}

/// Where no copy has the right MAC the block is an error and no device is blamed; nothing is written.
#[test]
fn what_no_copy_makes_good_is_an_error_and_stays_as_it_is() {
    let rig = made("mirror a b", 12);
    let planted = plant(&rig, &["a", "b"], &[0, 1], all);
    let engine = rig.import();
    load(&engine.pool());
    let pool = looked_at(&rig);
    load(&pool);
    let dir = pool.dsl().find(SECRET).unwrap().unwrap().dir_obj;
    let lost = protected(&pool).into_iter().filter(|(bp, at)| {
        pool.dsl().map_key(at.objset, dir).unwrap();
        let read = pool.store().read(bp, *at);
        matches!(read, Err(BlockError::Authentication { .. }))
    });
    let lost = lost.count();
    assert!(lost > FILES as usize, "{lost} of {}", planted.len());
    drop(pool);
    let scan = scrubbed(&engine);
    assert!(scan.errors > 0 && scan.processed == 0, "{scan:?}");
    assert_eq!(errors(&engine), [0, 0]);
    assert!(!engine.pool().store().errors().is_empty());
    assert!(planted.iter().all(|one| one.is(&rig, one.now)));
    engine.export(false).unwrap();
}

/// A dataset is destroyed while a scrub walks it, and another one gets its number: that is read and written with its own key, or without
/// one, and the scrub finds nothing wrong.
fn another_gets_the_number(moment: Moment, encrypted: bool) {
    let rig = made("mirror a b", 12);
    let engine = rig.import();
    load(&engine.pool());
    let number = engine.pool().dsl().find(SECRET).unwrap().unwrap().ds_obj;
    let (given, theirs) = std::sync::mpsc::channel();
    let within = engine.clone();
    engine.stop_at(moment, move || {
        let changes = changes(&within);
        changes.destroy_snapshots(&[format!("{SECRET}@kept")], false).unwrap();
        changes.destroy(SECRET).unwrap();
        within.sync().unwrap();
        let other = |n: u32| {
            let name = format!("tank/other{n}");
            let new = NewDataset { name: name.clone(), kind: Kind::Filesystem, props: vec![] };
            let wrapping = Arc::new(WrappingKey::from_hex("77".repeat(32).as_bytes()).unwrap());
            let root = RootKey { format: KeyFormat::Hex, salt: 0, iterations: 0, wrapping };
            match encrypted {
                true => changes.create_encrypted(
                    &new,
                    &NewEncryption::Root(root, Suite::Aes256Gcm, "prompt".into()),
                ),
                false => changes.create(&new),
            }
            .unwrap();
            let made = within.pool().dsl().find(&name).unwrap().unwrap();
            (made.ds_obj == number).then_some(name)
        };
        let name = (0..64).find_map(other).expect("no dataset has got the number");
        let fs = opened(&within, &name);
        fill(&fs, 0..2, LEN);
        within.sync().unwrap();
        given.send((name, fs)).unwrap();
    });
    let scan = scrubbed(&engine);
    let (name, fs) = theirs.try_recv().unwrap();
    assert_eq!((scan.errors, scan.processed), (0, 0), "{moment:?}");
    assert_eq!(errors(&engine), [0, 0], "{moment:?}");
    let store = engine.pool().store().clone();
    assert_eq!(store.keys().of(number).is_some(), encrypted, "{moment:?}");
    store.drop_caches();
    check(&fs, 0..2, LEN);
    fill(&fs, 2..4, LEN);
    engine.sync().unwrap();
    store.drop_caches();
    check(&opened(&engine, &name), 0..4, LEN);
    assert!(store.errors().is_empty(), "{moment:?}");
    drop((fs, store));
    done(engine, &rig);
}

#[test]
fn a_scrub_leaves_the_keys_of_others_alone() {
    for moment in [Moment::RoundBegun, Moment::RoundFound] {
        another_gets_the_number(moment, true);
        another_gets_the_number(moment, false);
    }
}

/// A key that is unloaded while a scrub is under way is gone; blocks are looked at without it.
#[test]
fn a_scrub_keeps_no_key_that_is_unloaded() {
    let rig = made("mirror a b", 12);
    let planted = plant(&rig, &["a", "b"], &[0], all);
    let engine = rig.import();
    load(&engine.pool());
    let within = engine.clone();
    engine.stop_at(Moment::RoundFound, move || {
        let secret = within.pool().dsl().find(SECRET).unwrap().unwrap();
        within.unload_key(&secret).unwrap();
    });
    assert_eq!(scrubbed(&engine).errors, 0);
    for one in &planted {
        assert!(one.is(&rig, if one.level > 0 { one.was } else { one.now }));
    }
    done(engine, &rig);
}

/// What is written over data blocks on one device satisfies nothing. Without the key a scrub mends it, and reads no block by itself.
#[test]
fn a_scrub_without_the_key_reads_in_batches() {
    for (line, ashift, names) in
        [("mirror a b", 12, &["a", "b"][..]), ("raidz1 a b c", 12, &["a", "b", "c"])]
    {
        let (rig, devices) = (Rig::new(SIZE), Faulty::default());
        let engine = rig.create_on(line, ashift, EngineOptions::default(), &devices);
        secret_in(&engine, FILES * 4);
        engine.sync().unwrap();
        let pool = engine.pool();
        engine.unload_key(&pool.dsl().find(SECRET).unwrap().unwrap()).unwrap();
        let reads = || names.iter().map(|name| devices.device(&rig, name).reads()).sum::<u64>();
        let scrub = || {
            pool.store().drop_caches();
            let before = reads();
            let scan = scrubbed(&engine);
            assert_eq!(scan.errors, 0, "{line}");
            (scan.processed, reads() - before)
        };
        let (_, whole) = scrub();
        let mut blocks = 0;
        for (bp, _) in protected(&pool).into_iter().filter(|(bp, _)| bp.level() == 0) {
            for dva in bp.dvas() {
                blocks += 1;
                let (leaf, end) = end_of(&pool, &bp, dva, 1);
                let path = rig.file(names[leaf]);
                let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
                file.write_all_at(&[0x5a; 512], end + 4 - 512).unwrap();
            }
        }
        let (processed, spoilt) = scrub();
        assert!(processed > 0 && blocks > 80, "{line}");
        let more = spoilt - whole;
        // Of RAID-Z each is put together by itself, of what has to be read for that.
        let most = if names.len() == 2 { blocks / 2 } else { blocks * 10 };
        assert!(more < most, "{line}: {blocks} blocks, {whole} reads, {more} more");
        assert_eq!(scrub().0, 0, "{line}");
        drop(pool);
        engine.export(false).unwrap();
        drop((engine, devices));
        rig.judge_blocks();
    }
}

/// Errors that are injected into reads say nothing of what lies on devices.
#[test]
fn injected_errors_make_no_copy_wrong() {
    let rig = made("mirror a b", 12);
    let engine = rig.import();
    load(&engine.pool());
    let (store, fs) = (engine.pool().store().clone(), live(&engine));
    let objset = engine.pool().dsl().find(SECRET).unwrap().unwrap().ds_obj;
    let place = |objset, object| Place::Blocks { objset, object, level: 0, blkids: 0..=u64::MAX };
    let blocks = protected(&engine.pool()).into_iter().filter(|(bp, _)| bp.level() == 0);
    let objects: HashSet<_> = blocks.map(|(_, at)| at.object).filter(|o| *o > 1).collect();
    let kept = engine.pool().dsl().find(&format!("{SECRET}@kept")).unwrap().unwrap().ds_obj;
    for (set, object) in [objset, kept].iter().flat_map(|set| objects.iter().map(move |o| (set, o)))
    {
        store.inject(DataHandler::new(DataError::Decrypt, place(*set, *object), 0, u32::MAX));
    }
    store.drop_caches();
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&fs, 0..1, LEN)));
    assert!(read.is_err(), "nothing is injected");
    let scan = scrubbed(&engine);
    assert_eq!((scan.errors, scan.processed), (0, 0));
    assert_eq!(errors(&engine), [0, 0]);
    drop((fs, store));
    engine.export(false).unwrap();
    drop(engine);
    let engine = rig.import();
    load(&engine.pool());
    read_all(&engine);
    done(engine, &rig);
}

/// Errors that are injected into reads do not decide that of two copies which satisfy the pointer one is wrong.
#[test]
fn injected_errors_settle_no_dispute() {
    for (line, ashift, names) in
        [("mirror a b", 12, &["a", "b"][..]), ("raidz1 a b c", 9, &["a", "b", "c"][..])]
    {
        let rig = made(line, ashift);
        let planted = plant(&rig, names, &[1], all);
        let engine = rig.import();
        let store = engine.pool().store().clone();
        // Where there is a ditto copy a copy that counts as unreadable is written anew by that.
        let blocks = protected(&engine.pool()).into_iter();
        let blocks = blocks.filter(|(bp, _)| bp.level() == 0 && bp.dvas().count() == 1);
        let objects: HashSet<_> = blocks.map(|(_, at)| (at.objset, at.object)).collect();
        for (objset, object) in objects {
            for error in [DataError::Checksum, DataError::Io] {
                let place = Place::Blocks { objset, object, level: 0, blkids: 0..=u64::MAX };
                store.inject(DataHandler::new(error, place, 0, u32::MAX / 2));
            }
        }
        let found: u64 = (0..6).map(|_| scrubbed(&engine).errors).sum();
        assert!(found > 0, "{line}: nothing is injected");
        for one in planted.iter().filter(|one| one.level == 0) {
            assert!(one.is(&rig, one.now), "{line}");
        }
        drop(store);
        engine.export(false).unwrap();
        drop(engine);
        let engine = rig.import();
        load(&engine.pool());
        read_all(&engine);
        assert_eq!(scrubbed(&engine).errors, 0, "{line}");
        all_mended(&planted, &rig);
        done(engine, &rig);
    }
}

/// Garbage is on one side, a wrong block that satisfies its pointer on the second, and the right one on the third: reads and scrubs write
/// nothing but that.
#[test]
fn nothing_is_mended_by_wrong_bytes_that_satisfy_the_pointer() {
    for by_reads in [true, false] {
        let rig = made("mirror a b c", 12);
        let mut planted = plant(&rig, &["a", "b", "c"], &[1], all);
        planted.retain(Planted::is_told);
        let mut garbage = Vec::new();
        for one in &planted {
            let now = one.now.map(|byte| byte ^ 0x99);
            let path = rig.file("a");
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.write_all_at(&now, one.at).unwrap();
            garbage.push(Planted { name: "a", now, ..*one });
        }
        let engine = rig.import();
        load(&engine.pool());
        if by_reads {
            let pool = engine.pool();
            drop(live(&engine));
            let blocks = protected(&pool);
            let dir = pool.dsl().find(SECRET).unwrap().unwrap().dir_obj;
            blocks.iter().for_each(|(_, at)| pool.dsl().map_key(at.objset, dir).unwrap());
            pool.store().drop_caches();
            let read = |(bp, at): &(BlockPointer, Bookmark)| pool.store().read(bp, *at);
            blocks.iter().for_each(|block| drop(Store::vouch(|| read(block)).unwrap()));
            // Which side comes first goes by offsets: of some it is the one with garbage, and the wrong block comes next.
            let mended = garbage.iter().filter(|one| one.is(&rig, one.was)).count();
            assert!(mended > 4, "{mended} of {}", garbage.len());
            let is_kept = |one: &&Planted| !one.is(&rig, one.now) && !one.is(&rig, one.was);
            assert_eq!(garbage.iter().filter(is_kept).count(), 0);
        }
        let scan = scrubbed(&engine);
        assert_eq!(scan.errors, 0);
        std::thread::sleep(Duration::from_millis(100));
        all_mended(&planted, &rig);
        all_mended(&garbage, &rig);
        read_all(&engine);
        done(engine, &rig);
    }
}

/// Bytes that are offered in the place of a lost block have to have its MAC, where the key is there.
#[test]
fn what_is_offered_is_looked_at_by_its_mac() {
    let rig = made("mirror a b", 12);
    let pool = looked_at(&rig);
    let raw = |bp: &BlockPointer, at| pool.store().read_many_raw(&[(*bp, at)]).remove(0).unwrap();
    let blocks: Vec<_> = protected(&pool)
        .into_iter()
        .filter(|(bp, _)| bp.level() == 0)
        .map(|(bp, at)| (bp, at, raw(&bp, at).bytes().to_vec()))
        .collect();
    drop(pool);
    let planted = plant(&rig, &["a", "b"], &[0, 1], all);
    let pool = looked_at(&rig);
    load(&pool);
    let dir = pool.dsl().find(SECRET).unwrap().unwrap().dir_obj;
    drop(pool);
    let engine = rig.import();
    load(&engine.pool());
    let pool = engine.pool();
    let mut healed = 0;
    for (bp, at, right) in blocks {
        let wrong = pool.store().read_many_raw(&[(bp, at)]).remove(0).unwrap();
        if wrong.bytes()[..] == right[..] {
            continue;
        }
        let offered = |bytes: Vec<u8>, keys: &ScanKeys| {
            let forms = |take: &mut dyn FnMut(Abd) -> bool| {
                take(Abd::from_vec(bytes.clone()));
            };
            let offer = Offer { bp, at, forms: &forms };
            pool.store().correct_many(&[offer], keys, &|| true)[0]
        };
        let keys = pool.dsl().keystore().keys_for_scan();
        // Without the key it satisfies its pointer.
        assert_eq!(offered(right.clone(), &keys), Corrected::WasRight);
        pool.dsl().lend_key(at.objset, dir, &keys).unwrap();
        assert_eq!(offered(wrong.bytes().to_vec(), &keys), Corrected::Differs);
        assert!(!pool.store().errors().is_empty());
        assert_eq!(offered(right.clone(), &keys), Corrected::Healed);
        assert_eq!(offered(right, &keys), Corrected::WasRight);
        healed += 1;
    }
    assert!(healed > FILES as usize, "{healed}");
    let data = planted.iter().filter(|one| one.level == 0);
    assert!(data.clone().count() > 0);
    data.for_each(|one| assert!(one.is(&rig, one.was)));
    drop(pool);
    done(engine, &rig);
}
