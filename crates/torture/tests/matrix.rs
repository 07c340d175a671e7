//! The matrix of damage: in pools of every layout bits are flipped in as many copies and columns of each block as redundancy makes
//! up for, parity too. A scrub under load then has every byte right, and errors are counted on the devices that were wrong, by it or by reads; a
//! second one finds nothing; OpenZFS's zdb agrees; and any devices that the pool can do without may go, which proves that
//! repairs were written.
//!
//! Where bits are flipped is planned block by block. Each block is wrong on devices of its own, so that all devices
//! of a pool are wrong about something ([`Spread::Everywhere`]); or only on some that the pool can do without, and
//! then the others must have no errors ([`Spread::Some`]).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dsl::crypt::KeyFormat;
use cenote_dsl::write::crypt::RootKey;
use cenote_engine::Engine;
use cenote_engine::change::{Changes, Kind, NewDataset, NewEncryption, NewSnapshot};
use cenote_engine::create::parse;
use cenote_format::LABEL_START;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::crypt::{Suite, WrappingKey};
use cenote_format::dmu::DmuType;
use cenote_inspect::traverse::stats::DEFERRED;
use cenote_inspect::traverse::{self, Event, Found, Options, Subject, Verify};
use cenote_pool::Pool;
use cenote_pool::metaslab::PoolSpace;
use cenote_pool::scan::{ScanState, ScanStatus};
use cenote_torture::live::damage::flip;
use cenote_torture::live::disk::{Disk, Image};
use cenote_torture::live::driver::Seed;
use cenote_torture::live::lab::{Lab, Logs, Plain, disks, judge, keep};
use cenote_torture::live::model::open;
use cenote_torture::live::side_by_side;
use cenote_torture::{Progress, combinations, long};
use cenote_vdev::{Device, Vdev};
use cenote_zpl::{FileSystem, NewNode, NodeKind, Settings};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SIZE: u64 = 96 << 20;
const NODE: NewNode =
    NewNode { kind: NodeKind::File, mode: 0o644, umask: 0, uid: 0, gid: 0, keep_setgid: false };
/// File systems of a pool, with a property each.
const DATASETS: [(&str, Option<(&str, &str)>); 5] = [
    ("tank", None),
    ("tank/ditto", Some(("copies", "2"))),
    ("tank/three", Some(("copies", "3"))),
    ("tank/dedup", Some(("dedup", "on"))),
    ("tank/secret", None),
];
const SECRET: &str = "tank/secret";
/// Files of each.
const FILES: u64 = 5;

/// A pool's devices as `zpool create` has them, a letter for each.
const LAYOUTS: [(&str, u64); 14] = [
    ("mirror a b", 12),
    ("mirror a b c", 9),
    ("mirror a b c d", 12),
    ("raidz1 a b c", 12),
    ("raidz2 a b c d e", 9),
    ("raidz3 a b c d e f", 12),
    ("raidz1 a b c raidz1 d e f", 9),
    ("mirror a b mirror c d special mirror e f log mirror g h", 12),
    ("raidz2 a b c d special mirror e f g log h", 12),
    ("draid1:2d:4c a b c d", 12),
    ("draid2:3d:6c a b c d e f", 12),
    ("draid1:2d:5c:1s a b c d e", 12),
    ("draid2:2d:7c:2s a b c d e f g", 9),
    ("a b c", 9),
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Spread {
    /// On devices that are chosen for each block.
    Everywhere,
    /// On these devices only.
    Some(Vec<usize>),
}

fn key() -> WrappingKey {
    WrappingKey::from_hex("5a".repeat(32).as_bytes()).unwrap()
}

/// What is in a file: bytes that do not compress, or do.
fn bytes(n: u64) -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(n);
    let len = [300_000, 131_072, 5_000, 700, 40_000][n as usize % 5];
    let step = if n % 3 == 2 { 16 } else { 1 };
    (0..len).map(|i| if i % step == 0 { rng.random() } else { 0 }).collect()
}

/// The number of a file's contents: equal ones are in what is deduplicated.
fn contents(dataset: usize, file: u64) -> u64 {
    if DATASETS[dataset].0 == "tank/dedup" { file % 2 * 5 } else { dataset as u64 * 10 + file }
}

fn live(engine: &Engine, name: &str) -> Arc<FileSystem> {
    let dataset = engine.pool().dsl().find(name).unwrap().unwrap();
    FileSystem::open_live(engine.live(dataset.ds_obj).unwrap(), Settings::default()).unwrap()
}

fn write(fs: &FileSystem, name: &str, bytes: &[u8]) {
    let file = fs.create(fs.root(), name.as_bytes(), &NODE).unwrap();
    fs.write(file.ino, 0, bytes, false).unwrap();
}

/// Makes the file systems and their files, and a snapshot of all.
fn fill(engine: &Arc<Engine>) {
    let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
    for (i, (name, property)) in DATASETS.iter().enumerate() {
        let props = property.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let new = NewDataset { name: name.to_string(), kind: Kind::Filesystem, props };
        if *name == SECRET {
            let wrapping = Arc::new(key());
            let root = RootKey { format: KeyFormat::Hex, salt: 0, iterations: 0, wrapping };
            let how = NewEncryption::Root(root, Suite::Aes256Gcm, "prompt".into());
            changes.create_encrypted(&new, &how).unwrap();
        } else if *name != "tank" {
            changes.create(&new).unwrap();
        }
        let fs = live(engine, name);
        (0..FILES).for_each(|n| write(&fs, &format!("f{n}"), &bytes(contents(i, n))));
        engine.sync().unwrap();
    }
    let names = DATASETS.iter().map(|(name, _)| format!("{name}@kept")).collect();
    changes.snapshot(&NewSnapshot { names, props: vec![] }).unwrap();
    // What was freed is free.
    (0..4).for_each(|_| engine.sync().unwrap());
}

/// Every byte of all files is right.
fn check(pool: &Pool) {
    for (i, (name, _)) in DATASETS.iter().enumerate() {
        for name in [name.to_string(), format!("{name}@kept")] {
            let dataset = pool.dsl().find(&name).unwrap().unwrap();
            let fs = open(pool, &dataset).unwrap();
            for n in 0..FILES {
                let right = bytes(contents(i, n));
                let ino = fs.lookup(fs.root(), format!("f{n}").as_bytes()).unwrap();
                let mut read = vec![0; right.len() + 1];
                assert_eq!(fs.read(ino, 0, &mut read).unwrap(), right.len(), "{name} {n}");
                assert!(read.starts_with(&right), "{name}: file {n}");
            }
        }
    }
}

/// The blocks of a pool that stay as long as nothing is changed, each once.
fn blocks(pool: &Pool) -> Vec<Found> {
    let space = PoolSpace::load(pool.mos(), pool.config()).unwrap();
    let subject =
        Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() };
    let options = Options { verify: Verify::Nothing, leaks: false, workers: 1 };
    let found = Mutex::new(Vec::new());
    let note = |event: Event<'_>| {
        if let Event::Block(one) = event {
            let bp = &one.bp;
            let stays = !one.is_log() && one.kind != DEFERRED;
            if stays && !bp.is_hole() && !bp.is_embedded() && !bp.is_gang() {
                found.lock().push(Found { at: one.at, bp: *bp, kind: one.kind });
            }
        }
    };
    traverse::run(&subject, &space, &options, &note, &|| false).unwrap();
    let mut seen = HashSet::new();
    let mut all = found.into_inner();
    all.retain(|one| one.bp.dva(0).is_some_and(|dva| seen.insert((dva.vdev, dva.offset))));
    all
}

/// Bytes of a leaf: (disk, offset on it, length).
type Piece = (usize, u64, usize);

fn disk_of(leaf: &Vdev) -> usize {
    let name = leaf.path().unwrap().file_name().unwrap().to_str().unwrap();
    name.strip_prefix('d').unwrap().parse().unwrap()
}

/// What the leaves hold of a copy: stripes that are made up for each by itself, and how many of a stripe's pieces may be wrong.
fn stripes(pool: &Pool, bp: &BlockPointer, dva: Dva) -> (Vec<Vec<Piece>>, usize) {
    let tree = pool.store().vdevs();
    let top = tree.top(dva.vdev.into()).unwrap().clone();
    let at = |offset: u64| offset + LABEL_START;
    if let Some(rows) = top.columns(dva.offset, bp.psize(), bp.physical_birth()) {
        let piece = |c: &cenote_vdev::ColumnExtent| {
            (disk_of(&top.children()[c.child]), at(c.offset), c.len)
        };
        let rows = rows.iter().map(|row| row.iter().filter(|c| c.len > 0).map(piece).collect());
        return (rows.collect(), top.nparity() as usize);
    }
    let mut leaves = Vec::new();
    top.collect_leaves(&mut leaves);
    let row: Vec<Piece> =
        leaves.iter().map(|l| (disk_of(l), at(dva.offset), bp.psize() as usize)).collect();
    let spare = row.len() - 1;
    (vec![row], spare)
}

/// How many pieces were spoiled on each disk.
struct Spoiled {
    /// In all.
    all: Vec<u64>,
    /// Of blocks that stay, as the snapshot has them, and whose other pieces make up for them.
    kept: Vec<u64>,
}

/// Flips bits.
fn spoil(pool: &Pool, disks: &[Arc<Disk>], rng: &mut SmallRng, spread: &Spread) -> Spoiled {
    let mut spoiled = Spoiled { all: vec![0; disks.len()], kept: vec![0; disks.len()] };
    for Found { at, bp, .. } in blocks(pool) {
        let dvas: Vec<Dva> = bp.dvas().collect();
        // Of several copies one may be wrong everywhere.
        let everywhere = *spread == Spread::Everywhere && dvas.len() > 1 && rng.random();
        let lost = everywhere.then(|| rng.random_range(0..dvas.len()));
        let is_kept =
            at.objset != 0 && at.level == 0 && bp.object_type() == DmuType::PLAIN_FILE_CONTENTS.0;
        for (i, dva) in dvas.iter().enumerate() {
            let (rows, most) = stripes(pool, &bp, *dva);
            for row in rows {
                let chosen: Vec<Piece> = match spread {
                    _ if lost == Some(i) => row,
                    Spread::Everywhere => {
                        row.choose_multiple(rng, most.min(row.len())).copied().collect()
                    }
                    Spread::Some(bad) => {
                        row.into_iter().filter(|(disk, ..)| bad.contains(disk)).collect()
                    }
                };
                for (disk, offset, len) in chosen {
                    for _ in 0..rng.random_range(1..4) {
                        let byte = offset + rng.random_range(0..len as u64);
                        flip(&disks[disk], byte, rng.random_range(0..8));
                    }
                    spoiled.all[disk] += 1;
                    spoiled.kept[disk] += u64::from(is_kept && lost.is_none());
                }
            }
        }
    }
    spoiled
}

/// A look that takes longer than a view is good for may fail: groups follow one another much faster here than they do for users.
/// Ends of groups and long looks take turns. No look blames a device, whether it takes its turn or not.
static TURN: Mutex<()> = Mutex::new(());

fn sync(engine: &Engine) {
    let _turn = TURN.lock();
    engine.sync().unwrap();
}

fn scan(engine: &Engine) -> ScanStatus {
    let status = (0..10).find_map(|_| engine.pool().status().ok());
    status.unwrap().scan.unwrap()
}

fn scrubbed(engine: &Engine) -> ScanStatus {
    engine.scrub().unwrap();
    let begun = Instant::now();
    while scan(engine).is_running() {
        assert!(begun.elapsed() < Duration::from_secs(600), "{:?}", scan(engine));
        // No group ends by itself here.
        sync(engine);
        std::thread::sleep(Duration::from_millis(5));
    }
    let done = scan(engine);
    assert_eq!(done.state, ScanState::Finished);
    done
}

/// Checksum errors by disk.
fn errors(engine: &Engine, count: usize) -> Vec<u64> {
    let mut found = vec![0; count];
    for leaf in engine.pool().store().vdevs().leaves() {
        let (reads, writes, wrong) = leaf.errors();
        assert_eq!((reads, writes), (0, 0), "{leaf:?}");
        found[disk_of(&leaf)] += wrong;
    }
    found
}

/// Writes, reads and removes files, and ends groups, until told to stop.
fn load(engine: &Engine, stop: &AtomicBool) {
    let fs = live(engine, "tank");
    let mut n = 100;
    while !stop.load(Ordering::SeqCst) {
        write(&fs, &format!("load{n}"), &bytes(n));
        if n % 7 == 0 {
            let _turn = TURN.lock();
            check(&engine.pool());
        }
        if n > 104 {
            fs.unlink(fs.root(), format!("load{}", n - 4).as_bytes(), &|_| false).unwrap();
        }
        sync(engine);
        n += 1;
    }
}

/// Devices that the pool can do without, as many as there can be: sets of disks.
fn tolerable(pool: &Pool, rng: &mut SmallRng, most: usize) -> Vec<Vec<usize>> {
    let tree = pool.store().vdevs();
    let sets = |top: &Arc<Vdev>| -> Vec<Vec<usize>> {
        let mut leaves = Vec::new();
        top.collect_leaves(&mut leaves);
        let disks: Vec<usize> = leaves.iter().map(|leaf| disk_of(leaf)).collect();
        let spare = match top.nparity() {
            0 => disks.len().saturating_sub(1),
            parity => parity as usize,
        };
        let all = combinations(disks.len(), spare).into_iter();
        all.map(|set| set.into_iter().map(|i| disks[i]).collect()).collect()
    };
    let tops: Vec<Vec<Vec<usize>>> = tree.root().children().iter().map(sets).collect();
    let mut all = HashSet::new();
    // Of several vdevs not every combination is needed: each set of each comes up.
    for i in 0..tops.iter().map(Vec::len).max().unwrap_or(0) * 2 {
        let of = |sets: &Vec<Vec<usize>>| match i < sets.len() {
            true => sets[i].clone(),
            false => sets.choose(rng).cloned().unwrap_or_default(),
        };
        let mut set: Vec<usize> = tops.iter().flat_map(of).collect();
        set.sort_unstable();
        all.insert(set);
    }
    let mut all: Vec<Vec<usize>> = all.into_iter().collect();
    all.sort();
    all.shuffle(rng);
    all.truncate(most);
    all
}

fn images(disks: &[Arc<Disk>]) -> Vec<Image> {
    disks.iter().map(|disk| disk.image()).collect()
}

fn judged(disks: &[Arc<Disk>]) {
    if let Err(e) = judge(&images(disks)) {
        panic!("{e}");
    }
}

/// All files read without some disks, from what repairs have written.
fn reads_without(disks: &[Arc<Disk>], gone: &[usize]) {
    let there = disks.iter().enumerate().filter(|(i, _)| !gone.contains(i));
    let lab = Lab::new(there.map(|(_, disk)| disk.clone() as Arc<dyn Device>).collect());
    let pool = lab.look().unwrap_or_else(|e| panic!("without {gone:?}: {e}"));
    let secret = pool.dsl().find(SECRET).unwrap().unwrap();
    pool.dsl().load_key(&secret, key()).unwrap();
    check(&pool);
    for leaf in pool.store().vdevs().leaves() {
        assert_eq!(leaf.errors(), (0, 0, 0), "without {gone:?}: {leaf:?}");
    }
    assert!(pool.store().errors().is_empty(), "without {gone:?}");
}

/// One pool, damaged and mended.
fn mends(seed: u64, (line, ashift): (&str, u64), everywhere: bool) {
    let _seed = Seed(format!("seed {seed}, {line}, everywhere: {everywhere}"));
    let mut rng = SmallRng::seed_from_u64(seed);
    let is_disk = |word: &str| word.len() == 1;
    let count = line.split(' ').filter(|word| is_disk(word)).count();
    let disks = disks(&vec![Image::new(SIZE); count], None);
    let lab = Lab::new(disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect());
    // OpenZFS 2.1, which judges, has no such tables.
    let lab = lab.without("fast_dedup").on_all_processors();
    let mut paths = lab.paths();
    let word = |word: &str| match is_disk(word) {
        true => paths.next().unwrap().display().to_string(),
        false => word.to_string(),
    };
    let words: Vec<String> = line.split(' ').map(word).collect();
    let engine = lab.create_layout(&parse(&words).unwrap(), ashift, Logs::On).unwrap();
    fill(&engine);
    let sets = tolerable(&engine.pool(), &mut rng, if long() { 40 } else { 3 });
    // A disk has nothing where all that is stored lies in a slice of which it is the distributed spare: then another set.
    let mut spoiled_on = |spread: &Spread| spoil(&engine.pool(), &disks, &mut rng, spread);
    let spoiled = match everywhere {
        true => spoiled_on(&Spread::Everywhere),
        false => {
            let mut of_sets = sets.iter().map(|set| spoiled_on(&Spread::Some(set.clone())));
            of_sets.find(|spoiled| spoiled.all.iter().any(|n| *n > 0)).unwrap()
        }
    };
    assert!(spoiled.all.iter().any(|n| *n > 0));
    engine.pool().store().drop_caches();
    if rng.random() {
        // What reads meet is mended in all copies before the scrub, and counted so.
        check(&engine.pool());
        sync(&engine);
    }
    let stop = AtomicBool::new(false);
    let first = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&engine, &stop));
        let done = scrubbed(&engine);
        stop.store(true, Ordering::SeqCst);
        load.join().unwrap();
        done
    });
    let kept = || format!("images in {}", keep(&images(&disks)));
    assert_eq!(first.errors, 0, "{first:?}; {}", kept());
    // What reads beside the scrub met is mended behind groups, and counted then.
    while engine.is_mending() {
        sync(&engine);
    }
    let found = errors(&engine, count);
    for (disk, errors) in found.iter().enumerate() {
        let (all, least) = (spoiled.all[disk], spoiled.kept[disk]);
        assert!(*errors >= least, "disk {disk}: {errors} of {least} errors; {}", kept());
        assert_eq!(*errors > 0, all > 0, "disk {disk}: {found:?}, {:?}", spoiled.all);
    }
    assert!(engine.pool().store().errors().is_empty());
    let second = scrubbed(&engine);
    assert_eq!((second.errors, second.processed), (0, 0), "{second:?}; {}", kept());
    assert_eq!(errors(&engine, count), found, "{}", kept());
    engine.pool().store().drop_caches();
    check(&engine.pool());
    assert_eq!(errors(&engine, count), found, "{}", kept());
    engine.export(false).unwrap();
    drop(engine);
    judged(&disks);
    sets.iter().for_each(|gone| reads_without(&disks, gone));
}

/// `CENOTE_SEED` runs a single case.
#[test]
fn every_layout_is_mended() {
    if let Ok(seed) = std::env::var("CENOTE_SEED") {
        let seed: u64 = seed.parse().unwrap();
        let layout = LAYOUTS[seed as usize % 1000];
        mends(seed, layout, true);
        mends(seed, layout, false);
        return;
    }
    let rounds = if long() { 25 } else { 1 };
    let progress = Progress::of("the matrix of damage", rounds as usize * LAYOUTS.len());
    let cases = (0..rounds).flat_map(|round| (0..LAYOUTS.len()).map(move |i| (round, i)));
    side_by_side(cases, |(round, i)| {
        let (layout, seed) = (LAYOUTS[i], round * 1000 + i as u64);
        mends(seed, layout, true);
        // Single devices have ditto copies, and none that the pool can do without.
        if layout.0.split(' ').any(|word| word.len() > 1) {
            mends(seed, layout, false);
        }
        progress.done(layout.0);
    });
}
