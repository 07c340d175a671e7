//! Pools that the library creates and changes, judged by OpenZFS's own `zdb`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

use cenote::{CreatePool, DatasetKind, Error, Pool, SetAttr};
use cenote_testpools::judge;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

fn disks(dir: &Path, count: usize) -> Vec<String> {
    let disk = |n| {
        let path = dir.join(format!("disk{n}"));
        fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
        path.to_str().unwrap().to_string()
    };
    (0..count).map(disk).collect()
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn files_are_there_after_an_export() {
    let dir = tempfile::tempdir().unwrap();
    let pool = CreatePool::new("tank", disks(dir.path(), 1)).create().unwrap();
    let home = pool.create_filesystem("tank/home", &[("compression", "lz4")]).unwrap();
    let files = home.filesystem().unwrap();
    let data = noise(1_000_000, 7);
    files.create_dir_all("a/b/c").unwrap();
    files.write("a/b/c/noise", &data).unwrap();
    files.write("a/text", "a text that compresses ".repeat(10_000)).unwrap();
    files.symlink("b/c/noise", "a/link").unwrap();
    files.hard_link("a/text", "a/again").unwrap();
    files.set_xattr("a/text", "user.note", "seen").unwrap();
    files.set_attributes("a/text", &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    let mut file = files.create("a/file").unwrap();
    file.write_all(b"0123456789").unwrap();
    file.seek(SeekFrom::Start(4)).unwrap();
    file.write_all(b"xy").unwrap();
    file.set_len(8).unwrap();
    assert_eq!(files.read("a/file").unwrap(), b"0123xy67");
    // A file that is removed while it is open.
    files.remove_file("a/file").unwrap();
    assert!(files.open("a/file").is_err());
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "0123xy67");
    assert!(matches!(pool.export(), Err(Error::Busy(_))));
    drop((file, files));
    pool.export().unwrap();
    assert!(matches!(pool.create_filesystem("tank/x", &[]), Err(Error::ReadOnly)));
    drop((home, pool));
    judge(dir.path(), "tank");

    let pool = Pool::open([dir.path()], "tank").unwrap();
    let files = pool.dataset("tank/home").unwrap().filesystem().unwrap();
    assert_eq!(files.read("a/b/c/noise").unwrap(), data);
    assert_eq!(files.read_link("a/link").unwrap(), Path::new("b/c/noise"));
    assert_eq!(files.metadata("a/again").unwrap().nlink, 2);
    assert_eq!(files.metadata("a/text").unwrap().mode & 0o777, 0o600);
    assert_eq!(files.xattr("a/text", "user.note").unwrap().unwrap(), b"seen");
    assert!(files.write("a/text", "x").is_err());
}

#[test]
fn datasets_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let pool = CreatePool::new("tank", disks(dir.path(), 1)).create().unwrap();
    let a = pool.create_filesystem("tank/a", &[("com.example:note", "first")]).unwrap();
    pool.create_filesystem("tank/a/b", &[("quota", "20M"), ("recordsize", "16K")]).unwrap();
    let files = a.filesystem().unwrap();
    files.write("kept", noise(300_000, 1)).unwrap();
    files.write("gone", noise(300_000, 2)).unwrap();
    pool.snapshot(["tank/a@one", "tank/a/b@one"]).unwrap();
    files.remove_file("gone").unwrap();
    files.sync().unwrap();
    let one = pool.dataset("tank/a@one").unwrap();
    assert_eq!(one.filesystem().unwrap().read("gone").unwrap(), noise(300_000, 2));
    let used = pool.dataset("tank/a").unwrap().property("usedbysnapshots").unwrap().unwrap();
    assert!(used.as_str() > "0");
    // What is in the way is told.
    let refused = |done: Result<(), Error>| done.unwrap_err().to_string();
    assert_eq!(refused(a.clone().destroy()), "tank/a: dataset is busy");
    assert_eq!(refused(a.snapshot("one").map(drop)), "tank/a@one: dataset already exists");
    let b = pool.dataset("tank/a/b").unwrap();
    assert_eq!(refused(b.clone().destroy()), "tank/a/b: dataset is busy");
    assert_eq!(
        refused(pool.create_filesystem("tank/a", &[]).map(drop)),
        "tank/a: dataset already exists"
    );
    assert_eq!(
        refused(pool.create_filesystem("tank/x/y", &[]).map(drop)),
        "tank/x/y: parent does not exist"
    );
    assert_eq!(
        refused(pool.create_filesystem("tank/x", &[("reservation", "10G")]).map(drop)),
        "tank/x: out of space"
    );
    assert!(pool.dataset("tank/x").is_err());
    assert_eq!(
        refused(b.set(&[("reservation", "10G")])),
        "tank/a/b: reservation: size is greater than available space"
    );
    // Properties are followed at once.
    a.set(&[("readonly", "on"), ("atime", "off")]).unwrap();
    assert!(files.write("kept", "x").is_err());
    a.inherit("readonly").unwrap();
    files.write("more", "x").unwrap();
    assert_eq!(pool.dataset("tank/a").unwrap().property("atime").unwrap().unwrap(), "off");
    // Renaming takes everything along.
    let c = a.rename("tank/c").unwrap();
    assert_eq!(c.snapshots().unwrap()[0].name(), "tank/c@one");
    let uno = c.snapshots().unwrap()[0].rename("uno").unwrap();
    assert_eq!(uno.name(), "tank/c@uno");
    drop((files, one));
    uno.destroy().unwrap();
    pool.dataset("tank/c/b").unwrap().destroy_all().unwrap();
    pool.export().unwrap();
    drop((a, b, c, pool));
    judge(dir.path(), "tank");

    let pool = Pool::open_writable([dir.path()], "tank").unwrap();
    assert_eq!(pool.datasets().count(), 2);
    let c = pool.dataset("tank/c").unwrap();
    assert_eq!(c.property("com.example:note").unwrap().unwrap(), "first");
    assert_eq!(c.filesystem().unwrap().read("kept").unwrap(), noise(300_000, 1));
    c.destroy_all().unwrap();
    drop(pool);
    judge(dir.path(), "tank");
}

#[test]
fn features_are_in_use_from_when_they_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let pool = CreatePool::new("tank", disks(dir.path(), 1)).create().unwrap();
    let state = |feature: &str| pool.property(&format!("feature@{feature}")).unwrap();
    let all = ["large_dnode", "large_blocks", "zstd_compress", "skein"];
    assert!(all.iter().all(|f| state(f) == "enabled"));
    let props = [("dnodesize", "2k"), ("recordsize", "1M"), ("checksum", "skein")];
    let fs = pool.create_filesystem("tank/fs", &props).unwrap();
    fs.set(&[("compression", "zstd")]).unwrap();
    assert_eq!(state("zstd_compress"), "active");
    fs.filesystem().unwrap().write("file", noise(2 << 20, 4)).unwrap();
    assert!(all.iter().all(|f| state(f) == "active"));
    fs.destroy().unwrap();
    assert!(all.iter().all(|f| state(f) == "enabled"));
    drop(pool);
    judge(dir.path(), "tank");
}

#[test]
fn volumes_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let pool = CreatePool::new("tank", disks(dir.path(), 1)).create().unwrap();
    let props = [("volblocksize", "8K"), ("compression", "zstd")];
    let disk = pool.create_volume("tank/disk", (32 << 20) - 100, &props).unwrap();
    assert_eq!(disk.kind(), DatasetKind::Volume);
    assert_eq!(disk.property("volsize").unwrap().unwrap(), (32 << 20).to_string());
    let reserved: u64 = disk.property("refreservation").unwrap().unwrap().parse().unwrap();
    assert!(reserved > 32 << 20);
    let volume = disk.volume().unwrap();
    volume.write_at(12_345, &noise(100_000, 3)).unwrap();
    assert!(volume.write_at(32 << 20, b"x").is_err());
    disk.snapshot("before").unwrap();
    volume.discard(0, 32 << 20).unwrap();
    volume.sync().unwrap();
    let mut old = vec![0; 100_000];
    let before = pool.dataset("tank/disk@before").unwrap().volume().unwrap();
    before.read_at(12_345, &mut old).unwrap();
    assert_eq!(old, noise(100_000, 3));
    assert!(matches!(disk.set(&[("volsize", "64M")]), Err(Error::Busy(_))));
    drop((volume, before));
    disk.set(&[("volsize", "64M")]).unwrap();
    let disk = pool.dataset("tank/disk").unwrap();
    assert_eq!(disk.property("volsize").unwrap().unwrap(), (64 << 20).to_string());
    let grown: u64 = disk.property("refreservation").unwrap().unwrap().parse().unwrap();
    assert!(grown > reserved + (31 << 20), "the reservation follows the size");
    assert_eq!(disk.volume().unwrap().size(), 64 << 20);
    pool.export().unwrap();
    drop((disk, pool));
    judge(dir.path(), "tank");
}

#[test]
fn pools_of_several_devices() {
    for words in [vec!["mirror"], vec!["raidz1"], vec!["raidz2"]] {
        let dir = tempfile::tempdir().unwrap();
        let vdevs = words.iter().map(|w| w.to_string()).chain(disks(dir.path(), 4));
        let pool = CreatePool::new("tank", vdevs)
            .property("ashift", "12")
            .filesystem_property("checksum", "sha512")
            .create()
            .unwrap();
        let root = pool.root().unwrap();
        let files = root.filesystem().unwrap();
        for n in 0..20 {
            files.write(format!("file{n}"), noise(50_000 + n, n as u64)).unwrap();
        }
        root.snapshot("s").unwrap();
        for n in 0..10 {
            files.remove_file(format!("file{n}")).unwrap();
        }
        drop((root, files, pool));
        judge(dir.path(), "tank");
        let pool = Pool::open([dir.path()], "tank").unwrap();
        let old = pool.dataset("tank@s").unwrap().filesystem().unwrap();
        assert_eq!(old.read("file7").unwrap(), noise(50_007, 7));
        drop((old, pool));
        judge(dir.path(), "tank");
    }
}

#[test]
fn a_pool_of_openzfs_is_changed() {
    let name = "compat21";
    let copy = cenote_testpools::copy(name);
    let options = cenote::ImportOptions { force: true, ..Default::default() };
    let find = || Pool::find([&copy.pool.dir]).into_iter().find(|f| f.name() == name).unwrap();
    let pool = find().open_with(&options).unwrap();
    let before: Vec<String> = pool.datasets().map(|d| d.unwrap().name().to_string()).collect();
    let new = pool.create_filesystem("compat21/new", &[]).unwrap();
    new.filesystem().unwrap().write("file", noise(200_000, 9)).unwrap();
    let names: Vec<String> = before.iter().map(|d| format!("{d}@cenote")).collect();
    pool.snapshot(names.iter().map(String::as_str)).unwrap();
    new.rename("compat21/newer").unwrap();
    drop((new, pool));

    let pool = find().open().unwrap();
    let newer = pool.dataset("compat21/newer").unwrap().filesystem().unwrap();
    assert_eq!(newer.read("file").unwrap(), noise(200_000, 9));
    for name in &before {
        assert!(pool.dataset(&format!("{name}@cenote")).is_ok(), "{name}");
    }
    drop((newer, pool));
    judge(&copy.pool.dir, name);
}

/// What the ARC holds after something was read twice.
fn cached(pool: &Pool, read: impl Fn()) -> u64 {
    pool.view().store().drop_caches();
    (0..2).for_each(|_| read());
    pool.view().store().stats().arc.size
}

#[test]
fn volumes_and_snapshots_are_cached_as_the_property_says() {
    const DATA: usize = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let pool = CreatePool::new("tank", disks(dir.path(), 1)).create().unwrap();
    let home = pool.create_filesystem("tank/home", &[("compression", "off")]).unwrap();
    let props = [("compression", "off")];
    let disk = pool.create_volume("tank/disk", DATA as u64, &props).unwrap();
    {
        let files = home.filesystem().unwrap();
        files.write("noise", noise(DATA, 3)).unwrap();
        disk.volume().unwrap().write_at(0, &noise(DATA, 5)).unwrap();
        files.sync().unwrap();
    }
    pool.snapshot(["tank/home@one", "tank/disk@one"]).unwrap();
    let files = |name: &str| {
        let files = pool.dataset(name).unwrap().filesystem().unwrap();
        assert_eq!(files.read("noise").unwrap(), noise(DATA, 3));
    };
    let bytes = |name: &str| {
        let mut all = Vec::new();
        pool.dataset(name).unwrap().volume().unwrap().read_to_end(&mut all).unwrap();
        assert_eq!(all, noise(DATA, 5));
    };
    for (value, some) in [("none", false), ("all", true), ("metadata", false)] {
        for set in [&home, &disk] {
            set.set(&[("primarycache", value)]).unwrap();
        }
        for name in ["tank/home", "tank/home@one"] {
            assert_eq!(cached(&pool, || files(name)) >= DATA as u64, some, "{name}: {value}");
        }
        for name in ["tank/disk", "tank/disk@one"] {
            assert_eq!(cached(&pool, || bytes(name)) >= DATA as u64, some, "{name}: {value}");
        }
    }
    // One that is open follows.
    let open = disk.volume().unwrap();
    let read = || assert_eq!(open.read_at(0, &mut vec![0; DATA]).unwrap(), DATA);
    assert!(cached(&pool, read) < DATA as u64);
    disk.set(&[("primarycache", "all")]).unwrap();
    assert!(cached(&pool, read) >= DATA as u64);
    drop(open);
    pool.export().unwrap();
    drop((home, disk, pool));
    judge(dir.path(), "tank");
}

#[test]
fn quotas_of_users_are_set_as_a_pool_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let create = |name: &str, value: &str| {
        CreatePool::new("tank", disks(dir.path(), 1))
            .force()
            .filesystem_property("compression", "lz4")
            .filesystem_property(name, value)
            .create()
    };
    let why = create("userquota@nobody/here", "1M").err().unwrap().to_string();
    assert!(why.contains("'userquota@nobody/here' has an invalid user/group name"), "{why}");
    create("defaultprojectobjquota", "7").unwrap().export().unwrap();
    let zdb = |object: &str| {
        let dir = dir.path().to_str().unwrap();
        let zdb = cenote_testpools::zdb_command(&["-e", "-p", dir, "-dddd", "tank/", object]);
        cenote_testpools::zdb_output(zdb).1
    };
    let text = zdb("1");
    assert!(text.contains("defaultprojectobjquota = 7"), "{text}");
    create("userquota@4000", "3M").unwrap().export().unwrap();
    assert!(zdb("1").contains("userquota@ = "), "{}", zdb("1"));
    judge(dir.path(), "tank");
}
