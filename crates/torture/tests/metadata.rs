//! Pools some of whose metadata cannot be read, while they are changed. Whatever a change needs and cannot
//! read fails that change and nothing else: each is made or refused, the pool is never suspended, and when
//! the damage is taken away zdb finds nothing but space that was leaked.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dmu::ObjectSet;
use cenote_dsl::{Dataset, Dsl};
use cenote_engine::Engine;
use cenote_engine::change::{ChangeError, Changes, Kind, NewDataset, NewSnapshot};
use cenote_engine::create::Redundancy;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_pool::{ImportOptions, Pool};
use cenote_torture::live::damage::Damage;
use cenote_torture::live::disk::{Disk, Image};
use cenote_torture::live::driver::Seed;
use cenote_torture::live::lab::{Lab, POOL, Plain, Shape, disks, judge, keep, lab};
use cenote_torture::live::side_by_side;
use cenote_torture::{Progress, long};
use cenote_zpl::{FileSystem, NewNode, NodeKind, Settings};
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, SeedableRng};
use std::sync::Arc;

const SHAPE: Shape =
    Shape { redundancy: Redundancy::Single, disks: 1, ashift: 12, size: 128 << 20 };
/// Bytes of a file of one block, and of one that has an indirect block.
const SMALL: usize = 9000;
const LARGE: usize = 300 << 10;
/// Objects of the MOS that belong to datasets, whose blocks may be damaged.
const OF_DATASETS: [DmuType; 7] = [
    DmuType::DSL_PROPS,
    DmuType::DSL_DIR_CHILD_MAP,
    DmuType::DSL_DS_SNAP_MAP,
    DmuType::DEADLIST,
    DmuType::BPOBJ,
    DmuType::NEXT_CLONES,
    DmuType::SPA_HISTORY,
];

fn changes(engine: &Arc<Engine>) -> Changes {
    Changes::new(engine.clone(), Arc::new(Plain), None)
}

fn filesystem(name: String) -> NewDataset {
    NewDataset { name, kind: Kind::Filesystem, props: Vec::new() }
}

fn open(engine: &Engine, name: &str) -> Option<Arc<FileSystem>> {
    let dataset = engine.pool().dsl().find(name).ok()??;
    FileSystem::open_live(engine.live(dataset.ds_obj).ok()?, Settings::default()).ok()
}

fn write(fs: &FileSystem, name: &str, bytes: usize, rng: &mut SmallRng) -> cenote_zpl::Result<()> {
    let new =
        NewNode { kind: NodeKind::File, mode: 0o644, umask: 0, uid: 7, gid: 9, keep_setgid: true };
    let ino = match fs.lookup(fs.root(), name.as_bytes()) {
        Ok(ino) => ino,
        Err(_) => fs.create(fs.root(), name.as_bytes(), &new)?.ino,
    };
    let mut data = vec![0; bytes];
    rng.fill(&mut data[..]);
    fs.write(ino, 0, &data, false).map(drop)
}

/// Three file systems with files of more than one level, properties, and snapshots with dead blocks.
fn populate(engine: &Arc<Engine>, rng: &mut SmallRng) {
    let changes = changes(engine);
    for name in ["a", "b", "b/c"] {
        let full = format!("{POOL}/{name}");
        changes.create(&filesystem(full.clone())).unwrap();
        let user: Vec<_> = (0..20)
            .map(|i| {
                (format!("u:{i}"), format!("{:x}{:x}", rng.random::<u64>(), rng.random::<u64>()))
            })
            .collect();
        assert!(changes.set(&full, &user).unwrap().is_empty());
        let fs = open(engine, &full).unwrap();
        for round in 0..3 {
            (0..30).for_each(|i| write(&fs, &format!("small{i}"), SMALL, rng).unwrap());
            (0..2).for_each(|i| write(&fs, &format!("large{i}"), LARGE, rng).unwrap());
            engine.sync().unwrap();
            let names = vec![format!("{full}@s{round}")];
            changes.snapshot(&NewSnapshot { names, props: Vec::new() }).unwrap();
        }
        (0..30).for_each(|i| write(&fs, &format!("small{i}"), SMALL, rng).unwrap());
    }
}

/// Every dataset, snapshots too.
fn datasets(dsl: &Dsl) -> Vec<Dataset> {
    let (mut all, mut waiting) = (Vec::new(), vec![dsl.root().unwrap()]);
    while let Some(dataset) = waiting.pop() {
        waiting.extend(dsl.children(&dataset).unwrap());
        all.extend(dsl.snapshots(&dataset).unwrap());
        all.push(dataset);
    }
    all
}

/// Blocks that may be damaged: metadata of datasets but of the root, in the MOS and in their object sets.
fn candidates(pool: &Pool) -> Vec<BlockPointer> {
    let (mos, dsl) = (pool.mos(), pool.dsl());
    let root = dsl.root().unwrap();
    let spared = [root.dir.props, root.dir.children, root.ds.snap_names, root.ds.deadlist];
    let mut found = Vec::new();
    let mut next = Some(0);
    while let Some(number) = next.and_then(|from| mos.next_object(from).unwrap()) {
        let object = mos.object(number).unwrap();
        if OF_DATASETS.contains(&object.dnode().kind) && !spared.contains(&number) {
            let mut add = |_: i64, _: u64, bp: &BlockPointer| {
                found.push(*bp);
                Ok(())
            };
            object.walk(&mut add).unwrap();
        }
        next = number.checked_add(1);
    }
    for dataset in datasets(dsl).iter().filter(|d| d.name != POOL) {
        let set = dsl.open_objset(dataset).unwrap();
        found.push(*set.root_bp());
        metadata(&set, &mut found);
    }
    found.retain(|bp| !bp.is_embedded() && !bp.is_gang());
    found
}

fn metadata(set: &Arc<ObjectSet>, found: &mut Vec<BlockPointer>) {
    use cenote_dmu::objset::{GROUP_USED, META_DNODE, USER_USED};
    for special in [META_DNODE, USER_USED, GROUP_USED] {
        let Ok(object) = set.special(special) else { continue };
        let mut add = |_: i64, _: u64, bp: &BlockPointer| {
            found.push(*bp);
            Ok(())
        };
        object.walk(&mut add).unwrap();
    }
    let mut next = Some(0);
    while let Some(number) = next.and_then(|from| set.next_object(from).unwrap()) {
        let object = set.object(number).unwrap();
        let is_data = object.dnode().kind == DmuType::PLAIN_FILE_CONTENTS;
        let mut add = |level: i64, _: u64, bp: &BlockPointer| {
            found.extend((level != 0 || !is_data).then_some(*bp));
            Ok(())
        };
        object.walk(&mut add).unwrap();
        next = number.checked_add(1);
    }
}

/// A change at random. What is refused is as good as what is made.
fn change(engine: &Arc<Engine>, rng: &mut SmallRng) -> Result<(), ChangeError> {
    let changes = changes(engine);
    let some = |rng: &mut SmallRng, of: &[&str]| format!("{POOL}/{}", of.choose(rng).unwrap());
    let name = some(rng, &["a", "b", "b/c", "n0", "n1", "b/n2"]);
    let number = rng.random_range(0..4);
    match rng.random_range(0..10) {
        0 => changes.set(&name, &[(format!("u:{number}"), "x".repeat(40))]).map(drop),
        1 => changes.set(&name, &[("quota".into(), "90M".into())]).map(drop),
        2 => changes.inherit(&name, &format!("u:{number}"), false),
        3 => changes.create(&filesystem(some(rng, &["n0", "n1", "b/n2", "a/n3", "b/c/n4"]))),
        4 => changes.destroy(&name),
        5 => {
            let names = vec![format!("{name}@new{number}")];
            let taken = changes.snapshot(&NewSnapshot { names, props: Vec::new() });
            taken.map_err(|(_, e)| e)
        }
        6 => {
            let names = [format!("{name}@s{number}")];
            let done = changes.destroy_snapshots(&names, false);
            done.map_err(|refused| refused.into_iter().next().unwrap().1)
        }
        7 => changes.rename(&name, &some(rng, &["n0", "n1", "b/n2", "r", "b/r"])),
        8 => changes.set(&name, &[("compression".into(), "zstd".into())]).map(drop),
        _ => changes.set(&name, &[("reservation".into(), "1M".into())]).map(drop),
    }
}

/// Changes to files; those that need what cannot be read fail.
fn use_files(engine: &Engine, rng: &mut SmallRng) {
    let name = ["a", "b", "b/c"].choose(rng).unwrap();
    let Some(fs) = open(engine, &format!("{POOL}/{name}")) else { return };
    for _ in 0..4 {
        let kind = ["small", "large"].choose(rng).unwrap();
        let file = format!("{kind}{}", rng.random_range(0..3));
        if rng.random() {
            let _ = fs.unlink(fs.root(), file.as_bytes(), &|_| false);
        } else if *kind == "small" {
            let _ = write(&fs, &file, SMALL, rng);
        }
    }
    let _ = fs.drain_unlinked();
}

/// What zdb says of the pool on this disk, other than that space is leaked.
fn complaint(disk: &Disk) -> Option<String> {
    let said = judge(&[disk.image()]).err()?;
    let wrong = ["double alloc", "ASSERT", "rror counts", "cannot", "can't"];
    let leaks = said.contains("leaked space") || said.contains("(leaked");
    (!leaks || wrong.iter().any(|w| said.contains(w))).then_some(said)
}

fn run(seed: u64) -> (usize, usize) {
    let _seed = Seed(format!("seed {seed}"));
    let mut rng = SmallRng::seed_from_u64(seed);
    let disk = disks(&[Image::new(SHAPE.size)], None).remove(0);
    let lab: Lab = lab(std::slice::from_ref(&disk));
    let engine = lab.create(&SHAPE).unwrap();
    populate(&engine, &mut rng);
    engine.export(false).unwrap();
    drop(engine);
    let mut damage = Damage::default();
    {
        let options = ImportOptions { readonly: true, force: true, ..ImportOptions::default() };
        let pool = Pool::import(&lab.find().unwrap(), &options).unwrap();
        let blocks = candidates(&pool);
        let some = rng.random_range(1..8);
        for bp in blocks.iter().choose_multiple(&mut rng, some) {
            damage.add(&disk, bp);
        }
    }
    let image = disk.image();
    let at = || keep(std::slice::from_ref(&image));
    let engine = lab.import(&lab.find().unwrap()).unwrap_or_else(|e| panic!("{e}: {}", at()));
    let (mut made, mut unreadable) = (0, 0);
    for _ in 0..40 {
        match change(&engine, &mut rng) {
            Ok(()) => made += 1,
            Err(ChangeError::Io(_)) => unreadable += 1,
            Err(_) => {}
        }
        use_files(&engine, &mut rng);
        engine.sync().unwrap_or_else(|e| panic!("{e}; damaged image in {}", at()));
    }
    assert_eq!(engine.suspended(), None);
    engine.export(false).unwrap_or_else(|e| panic!("{e}; damaged image in {}", at()));
    drop(engine);
    damage.mend(&disk);
    if let Some(said) = complaint(&disk) {
        panic!("{said}; damaged image in {}", at());
    }
    (made, unreadable)
}

#[test]
fn unreadable_metadata_fails_the_change_that_needs_it_and_nothing_else() {
    let seeds = if long() { 1000 } else { 12 };
    let progress = Progress::of("unreadable metadata", seeds as usize);
    let total = parking_lot::Mutex::new((0, 0));
    side_by_side(0..seeds, |seed| {
        let (made, unreadable) = run(seed);
        let mut total = total.lock();
        (total.0, total.1) = (total.0 + made, total.1 + unreadable);
        progress.done(format_args!("seed {seed}"));
    });
    let (made, unreadable) = total.into_inner();
    assert!(made > 0 && unreadable > 0, "{made} made, {unreadable} unreadable");
}

/// A change that has to read a block of dnodes first finds the free slots in it: nothing is damaged.
#[test]
fn free_slots_are_taken_after_an_import() {
    let disks = disks(&[Image::new(SHAPE.size)], None);
    let lab = lab(&disks);
    let engine = lab.create(&SHAPE).unwrap();
    let create = |fs: &FileSystem, name: &str| {
        let (kind, mode, umask, uid, gid) = (NodeKind::File, 0o644, 0, 7, 9);
        let new = NewNode { kind, mode, umask, uid, gid, keep_setgid: true };
        fs.create(fs.root(), name.as_bytes(), &new).unwrap().ino
    };
    let fs = open(&engine, POOL).unwrap();
    let old: Vec<u64> = (0..600).map(|n| create(&fs, &format!("old{n}"))).collect();
    for n in (0..600).step_by(3) {
        fs.unlink(fs.root(), format!("old{n}").as_bytes(), &|_| false).unwrap();
    }
    drop(fs);
    engine.export(false).unwrap();
    let engine = lab.import(&lab.find().unwrap()).unwrap();
    let fs = open(&engine, POOL).unwrap();
    let highest = old.iter().max().unwrap();
    let new: Vec<u64> = (0..100).map(|n| create(&fs, &format!("new{n}"))).collect();
    assert!(new.iter().all(|ino| ino < highest), "{new:?} after {highest}");
    drop(fs);
    engine.export(false).unwrap();
    judge(&[disks[0].image()]).unwrap();
}
