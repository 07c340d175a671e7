//! OpenZFS's own engine and this one work on the same pools in turns: what one writes the other
//! reads, changes and destroys, and OpenZFS's `zdb` finds nothing wrong at any time.
//!
//! OpenZFS's engine is libzpool of the system's packages ([`cenote_testpools::openzfs`]). Where its
//! headers are not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dmu::live::{Cost, LiveObjectSet};
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dmu::zap::Zap;
use cenote_engine::Engine;
use cenote_engine::change::{Changes, Contents, Format, Kind, NewDataset, NewSnapshot};
use cenote_zpl::{CreateProps, FileSystem, Settings};
use rig::Rig;
use std::sync::Arc;

const SIZE: u64 = 128 << 20;
const LEN: usize = 300_000;

/// Runs a script on the pool.
fn openzfs(rig: &Rig, script: &str) {
    cenote_testpools::openzfs(rig.path(), "tank", script);
}

/// File systems.
struct Files;

impl Contents for Files {
    fn fill(&self, os: &mut OpenObjectSet, what: &Format, txg: u64) -> Result<(), WriteError> {
        let done = match *what {
            Format::Filesystem { project_quota, .. } => {
                let props = CreateProps { project_quota, ..CreateProps::default() };
                cenote_zpl::format(os, &props, txg)
            }
            Format::Volume { size, block_size } => cenote_zpl::format_volume(os, size, block_size),
        };
        done.map_err(|e| WriteError::Sink(Box::new(e)))
    }

    fn resize(&self, _: Arc<LiveObjectSet>, _: u64) -> Result<(), WriteError> {
        Ok(())
    }
}

/// A pool in use.
struct Use {
    engine: Arc<Engine>,
    changes: Changes,
}

impl Use {
    fn new(engine: Arc<Engine>) -> Use {
        let changes = Changes::new(engine.clone(), Arc::new(Files), None);
        Use { engine, changes }
    }

    fn create(&self, name: &str, props: &[(&str, &str)]) -> Arc<FileSystem> {
        let props = props.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        let new = NewDataset { name: name.into(), kind: Kind::Filesystem, props };
        self.changes.create(&new).unwrap();
        self.open(name)
    }

    fn open(&self, name: &str) -> Arc<FileSystem> {
        let found = self.engine.pool().dsl().find(name).unwrap().unwrap();
        FileSystem::open_live(self.engine.live(found.ds_obj).unwrap(), Settings::default()).unwrap()
    }

    /// OpenZFS's engine alone puts nothing into the root file system of a pool.
    fn format_root(&self) {
        let root = self.engine.pool().dsl().root().unwrap();
        let live = self.engine.live(root.ds_obj).unwrap();
        let cost = Cost { write: 1 << 20, objects: 10, frees: false };
        let format = |os: &mut OpenObjectSet, txg| {
            let done = cenote_zpl::format(os, &CreateProps::default(), txg);
            done.map_err(|e| WriteError::Sink(Box::new(e)))
        };
        live.transact(cost, format).unwrap();
        self.engine.sync().unwrap();
    }

    /// A snapshot, to be read.
    fn snapshot(&self, name: &str) -> Arc<FileSystem> {
        let pool = self.engine.pool();
        let found = pool.dsl().find(name).unwrap().unwrap();
        FileSystem::open(pool.dsl().open_objset(&found).unwrap()).unwrap()
    }

    fn take(&self, names: &[&str]) {
        let names = names.iter().map(|n| n.to_string()).collect();
        self.changes.snapshot(&NewSnapshot { names, props: vec![] }).unwrap();
    }

    fn drop_snapshot(&self, name: &str) {
        self.changes.destroy_snapshots(&[name.to_string()], false).unwrap();
    }

    fn exists(&self, name: &str) -> bool {
        self.engine.pool().dsl().find(name).unwrap().is_some()
    }

    /// The first bytes of an object of an object set.
    fn object(&self, dataset: &str, object: u64, len: usize) -> Vec<u8> {
        let pool = self.engine.pool();
        let found = pool.dsl().find(dataset).unwrap().unwrap();
        let set = pool.dsl().open_objset(&found).unwrap();
        let mut data = vec![0; len];
        set.object(object).unwrap().read(0, &mut data).unwrap();
        data
    }

    /// The names that OpenZFS put into a ZAP.
    fn check_names(&self, dataset: &str, object: u64, count: u64) {
        let pool = self.engine.pool();
        let found = pool.dsl().find(dataset).unwrap().unwrap();
        let set = pool.dsl().open_objset(&found).unwrap();
        let zap = Zap::open(&set.object(object).unwrap()).unwrap();
        assert_eq!(zap.entries().unwrap().len() as u64, count);
        for i in 0..count {
            assert_eq!(zap.u64(format!("name-{i}").as_bytes()).unwrap(), Some(i));
        }
    }

    fn ino(&self, name: &str, file: u64) -> u64 {
        let fs = self.open(name);
        fs.lookup(fs.root(), format!("file {file}").as_bytes()).unwrap()
    }

    fn export(self) {
        self.engine.export(false).unwrap();
    }
}

/// OpenZFS changes a pool of ours, and we go on with what it left.
fn turns(layout: &str, ashift: u64, props: &[(&str, &str)]) {
    let rig = Rig::new(SIZE);
    let ours = Use::new(rig.create(layout, ashift));
    let root = ours.open("tank");
    rig::fill(&root, 0..6, LEN);
    let kept = ours.create("tank/kept", props);
    rig::fill(&kept, 10..14, LEN);
    rig::fill(&ours.create("tank/gone", &[]), 20..24, LEN);
    rig::fill(&ours.create("tank/gone-here", &[]), 30..34, LEN);
    ours.take(&["tank@one", "tank/kept@one"]);
    rig::fill(&root, 6..8, LEN);
    ours.take(&["tank@two"]);
    let file = ours.ino("tank/kept", 10);
    ours.changes.destroy("tank/gone-here").unwrap();
    ours.export();
    drop((root, kept));
    rig.judge_blocks();

    openzfs(
        &rig,
        &format!(
            "import
             check tank/kept {file} {LEN} 10
             dataset tank/theirs
             write tank/theirs 10 131072 1000000 7
             names tank/theirs 11 0 500
             snapshot tank/theirs@one
             write tank/theirs 10 131072 600000 8
             names tank/theirs 11 500 3000
             write tank/kept {file} 131072 {LEN} 99
             check tank/kept@one {file} {LEN} 10
             snapshot tank/kept@two
             destroy tank@one
             destroy tank/gone
             clone tank/kept@one tank/clone
             write tank/clone {file} 131072 {LEN} 98
             bookmark tank/kept@one tank/kept#mark
             limit tank 100
             string tank org.example:note hello
             number tank/kept compression 2
             reservation tank/theirs 1000000
             scrub
             export
            "
        ),
    );
    rig.judge_blocks();

    let ours = Use::new(rig.import());
    rig::check(&ours.open("tank"), 0..8, LEN);
    rig::check(&ours.snapshot("tank@two"), 0..8, LEN);
    assert!(!ours.exists("tank@one") && !ours.exists("tank/gone"));
    let kept = ours.open("tank/kept");
    rig::check(&kept, 11..14, LEN);
    rig::check(&ours.snapshot("tank/kept@one"), 10..14, LEN);
    assert!(ours.object("tank/kept", file, LEN) == rig::bytes(99, LEN));
    assert!(ours.object("tank/clone", file, LEN) == rig::bytes(98, LEN));
    assert!(ours.object("tank/theirs@one", 10, 1_000_000) == rig::bytes(7, 1_000_000));
    assert!(ours.object("tank/theirs", 10, 600_000) == rig::bytes(8, 600_000));
    ours.check_names("tank/theirs@one", 11, 500);
    ours.check_names("tank/theirs", 11, 3000);
    let dsl = ours.engine.pool();
    let note = dsl.dsl().find("tank/kept").unwrap().unwrap();
    assert_eq!(dsl.dsl().get(&note, "org.example:note").unwrap().unwrap().exact, "hello");
    // A clone with a livelist, a dataset with a bookmark, limits.
    let clone = ours.open("tank/clone");
    rig::fill(&clone, 40..44, LEN);
    rig::fill(&kept, 14..18, LEN);
    kept.write(file, 0, &rig::bytes(97, LEN), false).unwrap();
    ours.take(&["tank/kept@three", "tank/clone@one"]);
    ours.drop_snapshot("tank/kept@two");
    ours.drop_snapshot("tank/theirs@one");
    rig::fill(&ours.create("tank/more", &[]), 50..54, LEN);
    ours.engine.sync().unwrap();
    ours.export();
    drop((clone, kept, dsl));
    rig.judge_blocks();

    openzfs(
        &rig,
        &format!(
            "import
             check tank/kept {file} {LEN} 97
             check tank/kept@one {file} {LEN} 10
             check tank/clone@one {file} {LEN} 98
             check tank/theirs 10 600000 8
             find tank/theirs 11 0 3000
             destroy tank/clone@one
             promote tank/clone
             write tank/clone {file} 131072 {LEN} 96
             rename tank/more tank/moved
             features
             free tank/theirs 10
             scrub
             export
            "
        ),
    );
    rig.judge_blocks();

    let ours = Use::new(rig.import());
    rig::check(&ours.open("tank/moved"), 50..54, LEN);
    rig::check(&ours.open("tank/kept"), 11..18, LEN);
    rig::check(&ours.snapshot("tank/clone@one"), 10..14, LEN);
    rig::check(&ours.open("tank/clone"), 40..44, LEN);
    assert!(ours.object("tank/clone", file, LEN) == rig::bytes(96, LEN));
    rig::fill(&ours.open("tank/clone"), 44..46, LEN);
    ours.changes.destroy("tank/theirs").unwrap();
    ours.drop_snapshot("tank/kept@three");
    ours.changes.destroy("tank/kept").unwrap();
    ours.export();
    rig.judge();
}

#[test]
fn one_device() {
    turns("a", 9, &[("compression", "off"), ("checksum", "sha256")]);
}

#[test]
fn a_mirror() {
    turns("mirror a b", 12, &[("recordsize", "1M"), ("checksum", "skein")]);
}

#[test]
fn raidz1() {
    turns("raidz1 a b c", 12, &[("compression", "zstd"), ("dnodesize", "1k")]);
}

#[test]
fn raidz2_and_classes() {
    turns(
        "raidz2 a b c d special mirror e f log g",
        9,
        &[("copies", "2"), ("special_small_blocks", "32K")],
    );
}

/// A pool that OpenZFS made, and left without an export: changes of its space maps are in logs.
fn adopted(kind: &str, files: &[&str]) {
    let rig = Rig::new(SIZE);
    files.iter().for_each(|f| drop(rig.word(f)));
    openzfs(
        &rig,
        &format!(
            "create {kind}
             dataset tank/theirs
             write tank/theirs 10 131072 3000000 7
             names tank/theirs 11 0 1000
             snapshot tank/theirs@one
             write tank/theirs 10 131072 600000 8
             punch tank/theirs 10 1000000 500000
             clone tank/theirs@one tank/clone
             write tank/clone 10 131072 600000 9
             dataset tank/gone
             write tank/gone 10 131072 3000000 7
             destroy tank/gone
             sync
             crash
            "
        ),
    );
    rig.judge_blocks();

    let ours = Use::new(rig.import());
    assert!(ours.object("tank/theirs", 10, 600_000) == rig::bytes(8, 600_000));
    assert!(ours.object("tank/theirs@one", 10, 3_000_000) == rig::bytes(7, 3_000_000));
    ours.check_names("tank/theirs", 11, 1000);
    ours.format_root();
    rig::fill(&ours.create("tank/ours", &[("compression", "zstd")]), 0..10, LEN);
    ours.take(&["tank/ours@one", "tank/theirs@two"]);
    rig::fill(&ours.open("tank/ours"), 10..12, LEN);
    ours.export();
    rig.judge_blocks();

    openzfs(
        &rig,
        "import
         check tank/theirs 10 600000 8
         check tank/theirs@two 10 600000 8
         check tank/clone 10 600000 9
         find tank/theirs 11 0 1000
         write tank/theirs 10 131072 2000000 5
         destroy tank/ours@one
         write tank/clone 10 131072 600000 6
         scrub
         sync
         crash
        ",
    );
    rig.judge_blocks();

    let ours = Use::new(rig.import());
    rig::check(&ours.open("tank/ours"), 0..12, LEN);
    assert!(ours.object("tank/theirs", 10, 2_000_000) == rig::bytes(5, 2_000_000));
    assert!(ours.object("tank/clone", 10, 600_000) == rig::bytes(6, 600_000));
    ours.changes.destroy("tank/clone").unwrap();
    ours.drop_snapshot("tank/theirs@one");
    ours.export();
    rig.judge();
    openzfs(&rig, "import\ncheck tank/theirs 10 2000000 5\nscrub\nexport\n");
}

#[test]
fn theirs_on_a_stripe() {
    adopted("stripe", &["a", "b"]);
}

#[test]
fn theirs_on_a_mirror() {
    adopted("mirror", &["a", "b"]);
}

#[test]
fn theirs_on_raidz() {
    adopted("raidz1", &["a", "b", "c"]);
}
