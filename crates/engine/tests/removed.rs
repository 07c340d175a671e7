//! Pools with removed vdevs, two generations of them: OpenZFS removes vdevs of a pool of ours, and rewrites pointers
//! that lead there; we change what lies on them in several orders, and OpenZFS goes on with what is left.
//! OpenZFS's `zdb` finds no block lost or freed twice, and no part of a mapping that is wrongly obsolete.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dmu::outside::Chance;
use cenote_dmu::write::NewObject;
use cenote_dsl::write::DslWriteError;
use cenote_engine::change::{NewClone, NewSnapshot};
use cenote_engine::create::{CreateSpec, SystemDevices, parse, prepare};
use cenote_engine::{Engine, tunables};
use cenote_format::dmu::DmuType;
use cenote_pool::directory::Directory;
use cenote_pool::indirect::{Condensing, Header, Mapping};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_zpl::{FileSystem, Settings};
use rig::orders::{KINDS, Order};
use rig::{Rig, changes};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sparse. OpenZFS removes a vdev only if there is room for all that it could hold.
const SIZE: u64 = 512 << 20;
const LEN: usize = 700_000;

fn open(engine: &Engine, name: &str) -> Arc<FileSystem> {
    let found = engine.pool().dsl().find(name).unwrap().unwrap();
    FileSystem::open_live(engine.live(found.ds_obj).unwrap(), Settings::default()).unwrap()
}

fn ino(fs: &FileSystem, file: u64) -> u64 {
    fs.lookup(fs.root(), format!("file {file}").as_bytes()).unwrap()
}

fn snapshot(engine: &Arc<Engine>, name: &str) {
    changes(engine).snapshot(&NewSnapshot { names: vec![name.into()], props: vec![] }).unwrap();
}

/// Times that OpenZFS tries. Sometimes, on a machine that is busy, it fails an assertion about a counter of its own.
const TRIES: usize = 6;

/// OpenZFS imports the pool, and reads everything.
fn hand_over(rig: &Rig) {
    let scrub = || cenote_testpools::try_openzfs(rig.path(), "tank", "import\nscrub\nexport\n");
    (1..TRIES).find_map(|_| scrub().ok()).unwrap_or_else(|| scrub().unwrap());
}

/// A pool of three vdevs of which two were removed, one after the other. What was on the first is partly on the
/// second. Some blocks are divided.
fn removed_twice() -> Rig {
    let mut tried = (1..TRIES).map(|_| try_removed_twice());
    tried.find_map(Result::ok).unwrap_or_else(|| try_removed_twice().unwrap())
}

/// Errors: what OpenZFS said.
fn try_removed_twice() -> Result<Rig, String> {
    // Of the whole process: all tests in here want it.
    tunables::find("metaslab_force_ganging").unwrap().set(16 << 10).unwrap();
    tunables::find("metaslab_force_ganging_pct").unwrap().set(10).unwrap();
    // Mappings are made shorter whenever there is something to leave out.
    tunables::find("zfs_condense_min_mapping_bytes").unwrap().set(0).unwrap();
    tunables::find("zfs_condense_indirect_obsolete_pct").unwrap().set(0).unwrap();
    let rig = Rig::new(SIZE);
    let engine = rig.create("a b c", 12);
    let root = rig::open(&engine);
    rig::fill(&root, 0..8, LEN);
    let file = ino(&root, 0);
    snapshot(&engine, "tank@one");
    rig::fill(&root, 8..12, LEN);
    for name in ["tank/clone", "tank/other"] {
        let new = NewClone { origin: "tank@one".into(), name: name.into(), props: vec![] };
        changes(&engine).clone_snapshot(&new).unwrap();
    }
    rig::fill(&open(&engine, "tank/clone"), 20..24, LEN);
    snapshot(&engine, "tank/clone@two");
    drop(root);
    engine.export(false).unwrap();
    drop(engine);
    let rewrites = |seed: u64| {
        format!(
            "write tank {file} 131072 200000 {seed}
             write tank/clone {file} 131072 200000 {}
             write tank/other {file} 131072 100000 {}
             ",
            seed + 1,
            seed + 2
        )
    };
    let script = format!(
        "import
         remove 0
         {}snapshot tank@three
         {}remove 1
         {}export
        ",
        rewrites(70),
        rewrites(80),
        rewrites(90)
    );
    cenote_testpools::try_openzfs(rig.path(), "tank", &script).map(|()| rig)
}

/// As [`rig::account`], of a pool that is exported.
fn account(rig: &Rig) {
    let found = discover(&[rig.path().to_path_buf()]);
    let options = ImportOptions { readonly: true, ..Default::default() };
    rig::account(&Pool::import(&found[0], &options).unwrap());
}

fn copy(from: &Rig) -> Rig {
    let to = Rig::new(SIZE);
    for file in std::fs::read_dir(from.path()).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap();
        let mut cp = std::process::Command::new("cp");
        cp.arg("--sparse=always").arg(&path).arg(to.file(&name.to_string_lossy()));
        assert!(cp.status().unwrap().success());
    }
    to
}

#[test]
fn changed_in_random_orders() {
    let (pool, mut done) = (removed_twice(), BTreeMap::new());
    for seed in 0..2 {
        let rig = copy(&pool);
        Order::run(rig.import(), seed, &mut done);
        account(&rig);
        rig.judge_blocks();
        hand_over(&rig);
    }
    assert!(done.len() == KINDS && done.values().all(|n| *n > 0), "{done:?}");
}

/// `zpool add tank LINE`; single letters are files.
fn add(rig: &Rig, engine: &Engine, line: &str) -> Result<(), String> {
    let args: Vec<String> = line.split_whitespace().map(|w| rig.word(w)).collect();
    let pool = engine.pool();
    let prepared = prepare(&CreateSpec {
        name: "tank",
        layout: &parse(&args).unwrap(),
        ashift: 12,
        force: true.into(),
        pool: Some(pool.config()),
        txg: pool.uberblock().txg + 1,
        imported: &[],
        devices: &SystemDevices,
        chance: &Chance::default(),
    });
    engine.add(prepared.map_err(|e| e.to_string())?).map_err(|e| e.to_string())
}

#[test]
fn emptied_and_filled_again() {
    let rig = removed_twice();
    let engine = rig.import();
    let (before, _) = pieces(&engine.pool());
    let all = changes(&engine);
    for name in ["tank/other", "tank/clone@two", "tank/clone", "tank@one", "tank@three"] {
        match name.contains('@') {
            true => all.destroy_snapshots(&[name.to_string()], false).unwrap(),
            false => all.destroy(name).unwrap(),
        }
    }
    let root = rig::open(&engine);
    for file in 0..12 {
        root.unlink(root.root(), format!("file {file}").as_bytes(), &|_| false).unwrap();
    }
    engine.sync().unwrap();
    let refused = add(&rig, &engine, "raidz1 d e f").unwrap_err();
    assert!(refused.contains("does not support adding raidz"), "{refused}");
    add(&rig, &engine, "d").unwrap();
    rig::fill(&root, 30..34, LEN);
    drop((root, all));
    engine.export(false).unwrap();
    drop(engine);
    account(&rig);
    rig.judge();
    // Two mappings, with parts that no block pointer refers to and without.
    let said = cenote_testpools::zdb(rig.path(), "tank", &["-mmmm"]);
    assert_eq!(said.matches("indirect mapping obj").count(), 2, "{said}");
    let found = discover(&[rig.path().to_path_buf()]);
    let options = ImportOptions { readonly: true, ..Default::default() };
    let (after, _) = pieces(&Pool::import(&found[0], &options).unwrap());
    assert!(after < before, "{before} {after}");
    hand_over(&rig);
    let engine = rig.import();
    rig::check(&rig::open(&engine), 30..34, LEN);
    engine.export(false).unwrap();
}

/// Pieces of the mapping of the first vdev, and whether it is being condensed.
fn pieces(pool: &Pool) -> (u64, bool) {
    let tops = pool.config().list("vdev_tree").unwrap().lists("children").unwrap();
    let object = tops[0].u64("com.delphix:indirect_object").unwrap();
    let begun = Condensing::find(&Directory::open(pool.mos()).unwrap()).unwrap();
    (Header::load(pool.mos(), object).unwrap().entries, begun.is_some())
}

#[test]
fn a_mapping_that_openzfs_was_making_shorter() {
    let rig = Rig::new(SIZE);
    let _files = ["a", "b"].map(|file| rig.word(file));
    let openzfs = |script: &str| cenote_testpools::openzfs(rig.path(), "tank", script);
    openzfs(
        "create stripe
         dataset tank/fs
         write tank/fs 5 131072 8000000 1
         segment 65536
         remove 0
         write tank/fs 5 131072 8000000 2
         condense 0
         crash
        ",
    );
    account(&rig);
    let found = discover(&[rig.path().to_path_buf()]);
    let options = ImportOptions { readonly: true, ..Default::default() };
    let (before, begun) = pieces(&Pool::import(&found[0], &options).unwrap());
    assert!(before > 0 && begun);
    let engine = rig.import();
    engine.sync().unwrap();
    let (after, begun) = pieces(&engine.pool());
    assert!(after < before && !begun, "{before} {after}");
    engine.export(false).unwrap();
    drop(engine);
    account(&rig);
    rig.judge();
    openzfs("import\ncheck tank/fs 5 8000000 2\nscrub\nexport\n");
}

/// How many pieces a mapping may have follows from its object alone.
#[test]
fn mappings_are_as_large_as_their_objects() {
    const MANY: u64 = (1 << 24) + 1;
    let rig = Rig::new(SIZE);
    let engine = rig.create("a", 12);
    let object = engine
        .sync_task(|context| {
            let head = |entries: u64| -> Vec<u8> {
                [MANY * 512, MANY * 512, entries, 0].iter().flat_map(|w| w.to_le_bytes()).collect()
            };
            let mut array = |entries| {
                let new = NewObject::new(DmuType::UINT64_OTHER, 128 << 10);
                let new =
                    NewObject { bonus_kind: DmuType::UINT64_OTHER, bonus: head(entries), ..new };
                let object = context.tx.mos.allocate(&new)?;
                context.tx.mos.write(object, (MANY - 1) * Mapping::ENTRY_SIZE, &[1; 24])?;
                Ok::<u64, DslWriteError>(object)
            };
            Ok([array(MANY)?, array(MANY + (128 << 10))?])
        })
        .unwrap();
    let pool = engine.pool();
    assert_eq!(Header::load(pool.mos(), object[0]).unwrap().entries, MANY);
    // Nothing is set aside for pieces that are not there.
    let hole = Mapping::load(pool.mos(), object[0]).unwrap_err();
    assert!(hole.to_string().contains("out of order"), "{hole}");
    let beyond = Header::load(pool.mos(), object[1]).unwrap_err();
    assert!(beyond.to_string().contains("no room"), "{beyond}");
    engine
        .sync_task(move |context| {
            Ok(object.into_iter().try_for_each(|o| context.tx.mos.free(o))?)
        })
        .unwrap();
    engine.export(false).unwrap();
}
