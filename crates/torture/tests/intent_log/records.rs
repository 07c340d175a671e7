//! The records of our logs as `zdb -i` shows them, OpenZFS's and ours, and as they are replayed.

use super::{SHAPES, recover};
use cenote_command::{Caller, Cancel, Rights, Terminal};
use cenote_engine::Engine;
use cenote_engine::change::{Changes, Kind, NewDataset};
use cenote_torture::live::disk::{Disk, Image};
use cenote_torture::live::lab::{Logs, disks, lab};
use cenote_torture::live::world::{self, root};
use cenote_zpl::{
    Allocate, FileSystem, NewNode, NodeKind, Owner, RenameFlags, SetAttr, SetTime, SetXattr,
    Settings,
};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

pub fn new(kind: NodeKind) -> NewNode {
    NewNode { kind, mode: 0o640, umask: 0, uid: 5, gid: 6, keep_setgid: true }
}

/// A pool with a file `first` and a log that is begun.
pub fn begun(settings: Settings) -> (Vec<Arc<Disk>>, Arc<Engine>, Arc<FileSystem>) {
    let shape = &SHAPES[0];
    let disks = disks(&vec![Image::new(shape.size); shape.disks], None);
    let engine = lab(&disks).create_with(shape, Logs::On).unwrap();
    let fs = root(&engine, true);
    fs.set_settings(settings);
    fs.create(fs.root(), b"first", &new(NodeKind::File)).unwrap();
    engine.commit(fs.objset().id()).unwrap();
    (disks, engine, fs)
}

pub fn images(disks: &[Arc<Disk>]) -> Vec<Image> {
    disks.iter().map(|disk| disk.image()).collect()
}

/// The disks as files: what a crash leaves.
pub fn saved(disks: &[Arc<Disk>]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (i, image) in images(disks).iter().enumerate() {
        image.save(&dir.path().join(format!("d{i}")));
    }
    dir
}

/// One record of each type that OpenZFS 2.1 knows and that we write, and more of those that have several forms.
fn one_of_each(fs: &FileSystem) {
    let root = fs.root();
    let create = |name: &[u8], kind| fs.create(root, name, &new(kind)).unwrap().ino;
    let file = create(b"file", NodeKind::File);
    create(b"dir", NodeKind::Dir);
    create(b"link", NodeKind::Symlink(b"target".to_vec()));
    create(b"device", NodeKind::BlockDevice(8, 1));
    create(b"fifo", NodeKind::Fifo);
    fs.write(file, 1000, b"some bytes \x01\xff", false).unwrap();
    fs.write(file, 128 << 10, &[b'x'; 128 << 10], false).unwrap();
    fs.link(file, root, b"hard").unwrap();
    fs.rename(root, b"hard", root, b"renamed", RenameFlags::default(), &|_| false).unwrap();
    let time = Some(SetTime::To((1_000_000_000, 5)));
    for set in [
        SetAttr { size: Some(200 << 10), uid: Some(77), ..SetAttr::default() },
        SetAttr { mode: Some(0o4711), gid: Some(78), ..SetAttr::default() },
        SetAttr { atime: time, mtime: time, ..SetAttr::default() },
        SetAttr { flags: Some(cenote_zpl::flags::NO_DUMP), ..SetAttr::default() },
    ] {
        fs.setattr(file, &set).unwrap();
    }
    fs.allocate(file, 100, 50, Allocate::PunchHole).unwrap();
    // In the hidden directory: such an attribute is a file.
    fs.set_xattr(file, b"user.x", b"value", SetXattr::default()).unwrap();
    fs.unlink(root, b"first", &|_| false).unwrap();
    fs.rmdir(root, b"dir", &|_| false).unwrap();
}

/// Each operation is one record, of the type that OpenZFS has for it, and says what it did.
#[test]
fn openzfs_reads_the_records() {
    let (disks, engine, fs) = begun(Settings { xattr_sa: false, ..world::settings(true) });
    one_of_each(&fs);
    engine.commit(fs.objset().id()).unwrap();
    let said = cenote_testpools::zdb(saved(&disks).path(), "tank", &["-iiii"]);
    let records = [
        "TX_CREATE",
        "TX_MKDIR",
        "TX_MKXATTR",
        "TX_SYMLINK",
        "TX_WRITE",
        "TX_LINK",
        "TX_RENAME",
        "TX_SETATTR",
        "TX_TRUNCATE",
        "TX_REMOVE",
        "TX_RMDIR",
    ];
    for record in records {
        let all = said.lines().filter(|l| l.contains(&format!("{record} "))).count();
        assert!(all >= 1, "{record}: {said}");
    }
    for detail in ["file", "renamed", "target"] {
        assert!(said.contains(detail), "{detail}: {said}");
    }
    engine.export(false).unwrap();
}

/// Types of records that OpenZFS 2.1 does not know.
const NEWER: [&str; 4] =
    ["TX_SETSAXATTR", "TX_RENAME_EXCHANGE", "TX_RENAME_WHITEOUT", "TX_CLONE_RANGE"];

/// What OpenZFS's `zdb` prints of the pool, or of these objects of its root dataset, and what ours does.
pub fn said_twice(dir: &Path, option: &str, objects: &[u64]) -> [Vec<String>; 2] {
    let dir = dir.to_str().unwrap();
    let objects: Vec<String> = objects.iter().map(u64::to_string).collect();
    let subject = if objects.is_empty() { "tank" } else { "tank/" };
    let mut args = vec!["-e", "-p", dir, option, subject];
    args.extend(objects.iter().map(String::as_str));
    let mut theirs = cenote_testpools::zdb_command(&args);
    theirs.env("TZ", "UTC");
    let (output, text) = cenote_testpools::zdb_output(theirs);
    assert!(output.status.success(), "{text}");
    let theirs = String::from_utf8_lossy(&output.stdout).into_owned();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let caller = Caller {
        cwd: std::env::temp_dir(),
        env: BTreeMap::from([(OsString::from("TZ"), OsString::from("UTC"))]),
        terminal: Terminal::default(),
        umask: 0o022,
        user: 0,
        pid: None,
        rights: Rights::All,
    };
    let surroundings = cenote_zdb::Surroundings {
        out: &mut out,
        err: &mut err,
        caller: &caller,
        cancel: Cancel::default(),
        imported: &|_| None,
        cachefile: None,
    };
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    let code = cenote_zdb::run(&args, surroundings);
    assert_eq!(code, 0, "{}", String::from_utf8_lossy(&err));
    let ours = String::from_utf8_lossy(&out).into_owned();
    // Each version tells of the features and counts the records that it knows.
    let zero = |rest: &str| rest.trim() == "0";
    let none = |line: &str| NEWER.iter().any(|n| line.trim().strip_prefix(n).is_some_and(zero));
    let told = |line: &&str| !line.starts_with("Verified ") && !none(line);
    // 2.1 shows the pointers of writes at -iiiii only: two lines.
    let mut pointer = false;
    let mut new = move |line: &&str| {
        let was = std::mem::replace(&mut pointer, line.trim().starts_with("has blkptr"));
        !was && !pointer
    };
    let theirs = theirs.lines().filter(told).map(str::to_owned).collect();
    [theirs, ours.lines().filter(told).filter(|line| new(line)).map(str::to_owned).collect()]
}

/// Our `zdb` prints our logs as OpenZFS's does, word for word, at every level.
#[test]
fn zdb_prints_logs_as_openzfs_does() {
    let settings = Settings { xattr_sa: false, record_size: 128 << 10, ..world::settings(true) };
    let (disks, engine, fs) = begun(settings);
    one_of_each(&fs);
    engine.commit(fs.objset().id()).unwrap();
    let dir = saved(&disks);
    for option in ["-i", "-ii", "-iii", "-iiii"] {
        let [theirs, ours] = said_twice(dir.path(), option, &[]);
        let records = theirs.iter().filter(|line| line.contains("TX_")).count();
        assert!(records >= 20 || option == "-i", "{option}: {theirs:?}");
        for (i, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
            assert_eq!(ours, theirs, "{option}: line {}", i + 1);
        }
        assert_eq!(ours.len(), theirs.len(), "{option}");
    }
    engine.export(false).unwrap();
}

/// What takes the place of a name that is moved away is there after a crash. Its owner does not matter.
#[test]
fn whiteouts_are_replayed() {
    let (disks, engine, fs) = begun(world::settings(true));
    let (root, idle) = (fs.root(), |_| false);
    let dir = fs.create(root, b"dir", &new(NodeKind::Dir)).unwrap().ino;
    engine.sync().unwrap();
    engine.commit(fs.objset().id()).unwrap();
    let flags = RenameFlags { whiteout: Some(Owner { uid: 7, gid: 8 }), ..RenameFlags::default() };
    let moved = fs.lookup(root, b"first").unwrap();
    fs.rename(root, b"first", dir, b"second", flags, &idle).unwrap();
    // The same file under both names: nothing is moved.
    fs.link(moved, root, b"other").unwrap();
    fs.rename(root, b"other", dir, b"second", flags, &idle).unwrap();
    let txg = engine.pool().uberblock().txg;
    engine.commit(fs.objset().id()).unwrap();
    assert_eq!(engine.pool().uberblock().txg, txg, "a commit waited for its group");
    let check = |fs: &FileSystem| {
        let attr = fs.attr(fs.lookup(root, b"first").unwrap()).unwrap();
        assert_eq!((attr.mode, attr.uid, attr.gid, attr.nlink), (0o020_000, 7, 8, 1));
        assert_eq!(attr.rdev, (0, 0));
        assert_eq!(fs.lookup(dir, b"second").unwrap(), moved);
        assert_eq!(fs.lookup(root, b"other").unwrap(), moved);
        assert_eq!(fs.readdir(root, 0, 10).unwrap().len(), 3);
    };
    check(&fs);
    let crashed = cenote_torture::live::lab::disks(&images(&disks), None);
    let (again, records) = recover(&crashed, 1);
    assert_eq!(records, 3);
    check(&world::root(&again, true));
    again.export(false).unwrap();
    cenote_torture::live::lab::judge(&images(&crashed)).unwrap();
    engine.export(false).unwrap();
}

/// A renaming is in the log also where names have several forms: the entry is named as it is stored.
#[test]
fn renamings_are_replayed_where_case_does_not_count() {
    let (disks, engine, _) = begun(world::settings(true));
    let changes = Changes::new(engine.clone(), Arc::new(cenote::contents::Files), None);
    let named = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let props = vec![named("casesensitivity", "insensitive"), named("normalization", "formD")];
    let name = "tank/names".to_owned();
    changes.create(&NewDataset { name, kind: Kind::Filesystem, props }).unwrap();
    let open = |engine: &Engine| world::open(engine, "tank/names", true);
    let fs = open(&engine);
    let (root, id, idle) = (fs.root(), fs.objset().id(), |_| false);
    for name in ["Foo", "caf\u{e9}", "Other", "Back"] {
        fs.create(root, name.as_bytes(), &new(NodeKind::File)).unwrap();
    }
    engine.commit(id).unwrap();
    engine.sync().unwrap();
    let rename = |from: &str, to: &str, flags| {
        fs.rename(root, from.as_bytes(), root, to.as_bytes(), flags, &idle).unwrap();
    };
    let usual = RenameFlags::default();
    fs.create(root, b"begin", &new(NodeKind::File)).unwrap();
    engine.commit(id).unwrap();
    let txg = engine.pool().uberblock().txg;
    rename("Foo", "FOO", usual);
    rename("fOO", "moved", usual);
    rename("CAFE\u{301}", "Tea", usual);
    rename("tea", "OTHER", usual);
    rename("MOVED", "bACK", RenameFlags { exchange: true, ..usual });
    engine.commit(id).unwrap();
    assert_eq!(engine.pool().uberblock().txg, txg, "a commit waited for its group");
    let listed = |fs: &FileSystem| {
        let entries = fs.readdir(root, 0, 10).unwrap();
        let mut all: Vec<_> = entries.into_iter().map(|e| (e.name, e.ino)).collect();
        all.sort();
        all
    };
    let before = listed(&fs);
    assert_eq!(
        before.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(),
        [&b"Back"[..], b"OTHER", b"begin", b"moved"]
    );
    let crashed = cenote_torture::live::lab::disks(&images(&disks), None);
    let (again, records) = recover(&crashed, 1);
    assert_eq!(records, 6);
    assert_eq!(listed(&open(&again)), before);
    again.export(false).unwrap();
    cenote_torture::live::lab::judge(&images(&crashed)).unwrap();
    engine.export(false).unwrap();
}
