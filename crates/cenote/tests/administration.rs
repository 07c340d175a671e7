//! Operations on datasets through the face: properties with types, snapshots, streams between pools. The pools are judged by
//! OpenZFS's own `zdb`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

use cenote::property::{self, Property};
use cenote::{Dataset, ErrorKind, Newer, Owners, Pool, Receive, Source, Stream};
use cenote_testpools::judge;
use std::path::Path;
use std::thread;

fn pool(dir: &Path, name: &str) -> Pool {
    Pool::create_in_file(dir.join(name), name, 128 << 20).unwrap()
}

/// Every property of the module, as it is for a dataset.
fn read_all(dataset: &Dataset) -> usize {
    let mut found = 0;
    macro_rules! read {
        ($($name:ident)*) => {
            $(found += usize::from(dataset.get(property::$name).unwrap().is_some());)*
        };
    }
    read!(ATIME CANMOUNT CHECKSUM COMPRESSION COPIES DNODESIZE EXEC FILESYSTEM_LIMIT LOGBIAS);
    read!(MOUNTPOINT PRIMARYCACHE QUOTA READONLY RECORDSIZE REFQUOTA REFRESERVATION RELATIME);
    read!(RESERVATION SECONDARYCACHE SETUID SNAPDIR SNAPSHOT_LIMIT SPECIAL_SMALL_BLOCKS SYNC);
    read!(VOLSIZE XATTR);
    read!(AVAILABLE CREATION CREATETXG GUID LOGICALREFERENCED LOGICALUSED ORIGIN REFERENCED USED);
    read!(USEDBYCHILDREN USEDBYDATASET USEDBYREFRESERVATION USEDBYSNAPSHOTS USERREFS);
    read!(VOLBLOCKSIZE WRITTEN RECEIVE_RESUME_TOKEN);
    found
}

#[test]
fn properties_have_types() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), "tank");
    let home = pool.create_filesystem("tank/home", &[]).unwrap();
    let disk = pool.create_volume("tank/disk", 8 << 20, &[]).unwrap();
    let snapshot = home.snapshot("s").unwrap();
    // Those of file systems, volumes and snapshots.
    assert!(read_all(&home) > 30 && read_all(&disk) > 20 && read_all(&snapshot) > 10);

    home.assign(property::RECORDSIZE, 16_384).unwrap();
    home.assign(property::ATIME, false).unwrap();
    home.assign(property::REFQUOTA, Some(64 << 20)).unwrap();
    let note = Property::<String>::user("com.example:note");
    home.assign(note, "first").unwrap();
    let setting = home.get(property::RECORDSIZE).unwrap().unwrap();
    assert_eq!((setting.value, setting.source), (16_384, Source::Local));
    let child = pool.create_filesystem("tank/home/child", &[]).unwrap();
    let atime = child.get(property::ATIME).unwrap().unwrap();
    assert_eq!((atime.value, atime.source), (false, Source::Inherited("tank/home".into())));
    assert_eq!(child.get(property::REFQUOTA).unwrap().unwrap().value, None);
    assert_eq!(
        child.get(Property::<String>::user("com.example:note")).unwrap().unwrap().value,
        "first"
    );
    home.inherit(property::ATIME).unwrap();
    assert_eq!(child.get(property::ATIME).unwrap().unwrap().source, Source::Default);
    home.assign(property::REFQUOTA, None).unwrap();
    assert_eq!(home.get(property::REFQUOTA).unwrap().unwrap().value, None);
    assert_eq!(disk.get(property::VOLSIZE).unwrap().unwrap().value, 8 << 20);
    assert!(home.get(property::VOLSIZE).unwrap().is_none());
    assert_eq!(home.assign(property::RECORDSIZE, 7).unwrap_err().kind(), ErrorKind::Invalid);
    drop((home, disk, snapshot, child));
    pool.export().unwrap();
    judge(dir.path(), "tank");
}

#[test]
fn what_is_open_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), "tank");
    let home = pool.create_filesystem("tank/home", &[]).unwrap();
    let files = home.filesystem().unwrap();
    files.write("file", "one").unwrap();
    let one = home.snapshot("one").unwrap();
    files.write("file", "two").unwrap();
    let mut stream = Vec::new();
    home.snapshot("two").unwrap().send_from(&one, &mut stream).unwrap();

    let busy = |done: cenote::Result<()>| {
        let e = done.unwrap_err();
        assert_eq!(
            (e.kind(), e.to_string().as_str()),
            (ErrorKind::Busy, "tank/home: dataset is busy")
        );
    };
    busy(one.rollback_with(Newer::Destroyed));
    busy(home.clone().destroy_all());
    // It cannot be sent as it is now, for that changes.
    assert_eq!(home.send(&mut Vec::new()).unwrap_err().kind(), ErrorKind::Busy);
    drop(files);
    one.rollback_with(Newer::Destroyed).unwrap();
    let files = home.filesystem().unwrap();
    assert_eq!(files.read("file").unwrap(), b"one");
    busy(pool.receive("tank/home", stream.as_slice()).map(drop));
    drop(files);
    pool.receive("tank/home", stream.as_slice()).unwrap();
    assert_eq!(home.filesystem().unwrap().read("file").unwrap(), b"two");

    // A bookmark goes as everything else.
    let bookmark = one.bookmark("b").unwrap();
    assert_eq!(home.bookmarks().unwrap()[0].name(), "tank/home#b");
    bookmark.destroy().unwrap();
    assert!(home.bookmarks().unwrap().is_empty());
    one.bookmark("b").unwrap().destroy_all().unwrap();
    assert!(home.bookmarks().unwrap().is_empty());
    let of_root = pool.root().unwrap().snapshot("s").unwrap().bookmark("b").unwrap();
    of_root.clone().destroy_all().unwrap();
    assert!(pool.dataset("tank#b").is_err() && pool.dataset("tank@s").is_ok());
    assert_eq!(of_root.destroy_all().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(home.usage(Owners::User).unwrap().len(), 1);
    drop((home, one));
    pool.export().unwrap();
    judge(dir.path(), "tank");
}

#[test]
fn a_dataset_is_the_same_under_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), "tank");
    let first = pool.create_filesystem("tank/a", &[]).unwrap();
    let snapshot = first.snapshot("s").unwrap();
    let bookmark = snapshot.bookmark("b").unwrap();
    first.rename("tank/b").unwrap();
    let second = pool.create_filesystem("tank/a", &[]).unwrap();
    second.snapshot("s").unwrap().bookmark("b").unwrap();

    // All is done to the first one, which is called `tank/b` by now.
    first.assign(property::ATIME, false).unwrap();
    assert!(second.get(property::ATIME).unwrap().unwrap().value);
    assert_eq!(first.snapshot("t").unwrap().name(), "tank/b@t");
    assert_eq!(first.snapshot_all("u").unwrap(), ["tank/b@u"]);
    first.destroy_snapshots("t%u").unwrap();
    snapshot.hold("kept").unwrap();
    assert!(pool.dataset("tank/a@s").unwrap().holds().unwrap().is_empty());
    snapshot.release("kept").unwrap();
    let mut stream = Vec::new();
    snapshot.send(&mut stream).unwrap();
    assert_eq!(snapshot.bookmark("c").unwrap().name(), "tank/b#c");
    assert!(snapshot.diff_now().unwrap().is_empty());
    bookmark.clone().destroy().unwrap();
    assert!(pool.dataset("tank/b#b").is_err() && pool.dataset("tank/a#b").is_ok());
    assert_eq!(snapshot.rename("v").unwrap().name(), "tank/b@v");
    assert_eq!(
        snapshot.clone_to("tank/c", &[]).unwrap().property("origin").unwrap().unwrap(),
        "tank/b@v"
    );
    pool.dataset("tank/c").unwrap().destroy().unwrap();
    first.clone().destroy_all().unwrap();
    assert!(pool.dataset("tank/b").is_err());

    // What is gone is not taken for what has its name.
    for done in [
        first.clone().destroy(),
        first.clone().destroy_all(),
        first.assign(property::ATIME, false),
        first.inherit(property::ATIME),
        first.rename("tank/d").map(drop),
        first.snapshot("t").map(drop),
        first.property("used").map(drop),
        first.filesystem().map(drop),
        snapshot.clone().destroy(),
        snapshot.rollback(),
        snapshot.hold("kept"),
        snapshot.send(&mut stream),
        bookmark.destroy(),
    ] {
        assert_eq!(done.unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert!(pool.dataset("tank/a@s").is_ok() && pool.dataset("tank/a#b").is_ok());
    drop((first, second, snapshot));
    pool.export().unwrap();
    judge(dir.path(), "tank");
}

#[test]
fn a_dataset_that_was_looked_up_before_an_export_is_read_as_it_became() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), "tank");
    let home = pool.create_filesystem("tank/home", &[]).unwrap();
    let disk = pool.create_volume("tank/disk", 8 << 20, &[]).unwrap();
    home.filesystem().unwrap().write("file", vec![7; 300_000]).unwrap();
    disk.volume().unwrap().write_at(0, b"boot").unwrap();
    home.assign(property::ATIME, false).unwrap();
    pool.export().unwrap();
    assert_eq!(home.filesystem().unwrap().read("file").unwrap(), vec![7; 300_000]);
    let mut boot = [0; 4];
    disk.volume().unwrap().read_at(0, &mut boot).unwrap();
    assert_eq!(&boot, b"boot");
    assert!(!home.get(property::ATIME).unwrap().unwrap().value);
    assert_eq!(
        home.property("referenced").unwrap(),
        pool.dataset("tank/home").unwrap().property("referenced").unwrap()
    );
    assert_eq!(home.assign(property::ATIME, true).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(pool.export().unwrap_err().kind(), ErrorKind::ReadOnly);
    drop((home, disk, pool));
    judge(dir.path(), "tank");
}

/// A stream whose reader tries to export the pool that it goes to.
struct Exporting<'a>(&'a [u8], &'a Pool);

impl std::io::Read for Exporting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        assert_eq!(self.1.export().unwrap_err().kind(), ErrorKind::Busy);
        self.0.read(buffer)
    }
}

#[test]
fn what_a_receive_leaves_out_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), "tank");
    let home = pool.create_filesystem("tank/home", &[]).unwrap();
    let mut stream = Vec::new();
    home.snapshot("s").unwrap().send(&mut stream).unwrap();
    // More than the pool has.
    let how = Receive { set: vec![("reservation".into(), "1T".into())], ..Receive::default() };
    let received = pool.receive_with("tank/copy", &how, Exporting(&stream, &pool)).unwrap();
    assert_eq!(received.snapshots, ["tank/copy@s"]);
    let [warning] = received.warnings.as_slice() else { panic!("{:?}", received.warnings) };
    assert!(warning.starts_with("cannot receive reservation property on tank/copy: "), "{warning}");
    let received = pool.receive("tank/more", stream.as_slice()).unwrap();
    assert!(received.warnings.is_empty());
    drop(home);
    pool.export().unwrap();
    judge(dir.path(), "tank");
}

#[test]
fn packages_go_from_pool_to_pool() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (pool(dir.path(), "from"), pool(dir.path(), "to"));
    from.create_filesystem("from/a", &[("compression", "zstd")]).unwrap();
    from.create_filesystem("from/a/b", &[]).unwrap();
    from.create_filesystem("from/a/not", &[]).unwrap();
    from.create_volume("from/a/disk", 4 << 20, &[])
        .unwrap()
        .volume()
        .unwrap()
        .write_at(0, b"boot")
        .unwrap();
    let a = from.dataset("from/a").unwrap();
    a.snapshot_all("one").unwrap();
    from.dataset("from/a/b")
        .unwrap()
        .filesystem()
        .unwrap()
        .write("file", vec![7; 300_000])
        .unwrap();
    a.snapshot_all("two").unwrap();
    from.dataset("from/a@one").unwrap().hold("kept").unwrap();

    // Sent by one thread, received by another one.
    let (reader, writer) = std::io::pipe().unwrap();
    let two = from.dataset("from/a@two").unwrap();
    let package = Stream::of(&two).replicate().with_holds().as_stored().without("from/a/not");
    assert!(package.estimate().unwrap() > 0);
    let received = thread::scope(|scope| {
        scope.spawn(|| package.send(writer).unwrap());
        to.receive("to/copy", reader).unwrap()
    });
    assert!(received.snapshots.contains(&"to/copy/b@two".to_string()));
    assert!(to.dataset("to/copy/not").is_err());
    let copy = to.dataset("to/copy").unwrap();
    let compression = copy.get(property::COMPRESSION).unwrap().unwrap();
    assert_eq!((compression.value.as_str(), compression.source), ("zstd", Source::Received));
    assert_eq!(to.dataset("to/copy@one").unwrap().holds().unwrap()[0].tag, "kept");
    let mut boot = [0; 4];
    to.dataset("to/copy/disk").unwrap().volume().unwrap().read_at(0, &mut boot).unwrap();
    assert_eq!(&boot, b"boot");

    // What was set here counts, until it is given up for what came.
    copy.assign(property::COMPRESSION, "lz4").unwrap();
    copy.revert(property::COMPRESSION).unwrap();
    assert_eq!(copy.get(property::COMPRESSION).unwrap().unwrap().value, "zstd");

    // A stream that is damaged, and one that is none.
    let mut stream = Vec::new();
    two.send(&mut stream).unwrap();
    let middle = stream.len() / 2;
    stream[middle] ^= 1;
    assert_eq!(to.receive("to/x", stream.as_slice()).unwrap_err().kind(), ErrorKind::Stream);
    assert_eq!(to.receive("to/x", &b"no stream"[..]).unwrap_err().kind(), ErrorKind::Stream);
    assert!(to.dataset("to/x").is_err());
    let how = Receive { set: vec![("no such".into(), "x".into())], ..Receive::default() };
    let refused = to.receive_with("to/x", &how, stream.as_slice()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);

    drop((a, two, package, copy));
    from.export().unwrap();
    to.export().unwrap();
    judge(dir.path(), "from");
    judge(dir.path(), "to");
}

#[test]
fn a_pool_that_is_open_for_reading_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let writable = pool(dir.path(), "tank");
    let home = writable.create_filesystem("tank/home", &[]).unwrap();
    home.filesystem().unwrap().write("file", "one").unwrap();
    home.snapshot("one").unwrap();
    drop(home);
    writable.export().unwrap();
    drop(writable);
    let pool = Pool::open([dir.path()], "tank").unwrap();
    let one = pool.dataset("tank/home@one").unwrap();
    let mut stream = Vec::new();
    one.send(&mut stream).unwrap();
    assert!(one.diff_now().unwrap().is_empty());
    for done in [
        one.rollback(),
        one.hold("x"),
        one.clone_to("tank/copy", &[]).map(drop),
        pool.receive("tank/copy", stream.as_slice()).map(drop),
        pool.dataset("tank/home").unwrap().destroy_snapshots("one"),
    ] {
        assert_eq!(done.unwrap_err().kind(), ErrorKind::ReadOnly);
    }
    drop((pool, one));
    judge(dir.path(), "tank");
}
