//! Pools of big-endian machines: sample pools re-encoded ([`cenote_testpools::to_big_endian`]), judged by OpenZFS, read here,
//! and written.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod samples;

use cenote::{CreatePool, Pool, SetAttr, SetTime, Stream};
use cenote_format::stream::RECORD_SIZE;
use cenote_manifest_check::{Checks, ZplTree, check_tree, check_volume};
use cenote_manifest_check::{datasets_with_files, datasets_with_volume};
use cenote_pool::version;
use cenote_testpools::{OLD, TempPool, TestPool, Turned, big_endian_stream, copy, judge, old};
use cenote_testpools::{openzfs, raw_stream, streams as sample_streams, to_big_endian, zdb};
use cenote_zpl::flags::PROJECT_INHERIT;
use cenote_zpl::{Attr, FileSystem, Visibility, Volume};
use samples::{export, writable};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A sample pool, turned.
fn turned(name: &str) -> (TempPool, Turned) {
    let temp = copy(name);
    let turned = to_big_endian(&temp.pool);
    eprintln!("{name}: {turned:?}");
    (temp, turned)
}

fn property(dataset: &Value, name: &str) -> Option<String> {
    dataset["props"][name][0].as_str().map(String::from)
}

/// Compares the datasets with the manifest, but those that were changed since; how many files.
fn check(pool: &Pool, manifest: &Value, is_changed: impl Fn(&str) -> bool) -> usize {
    checked(pool, manifest, Checks::EXACT, is_changed)
}

fn check_with(pool: &Pool, manifest: &Value, checks: Checks) -> usize {
    checked(pool, manifest, checks, |_| false)
}

fn checked(
    pool: &Pool,
    manifest: &Value,
    checks: Checks,
    is_changed: impl Fn(&str) -> bool,
) -> usize {
    let (view, mut files) = (pool.view(), 0);
    let open = |dataset: &Value| {
        let name = dataset["name"].as_str().unwrap();
        let found = view.dsl().find(name).unwrap().unwrap_or_else(|| panic!("no {name}"));
        view.dsl().open_objset(&found).unwrap()
    };
    let kept = |dataset: &&Value| !is_changed(dataset["name"].as_str().unwrap());
    for dataset in datasets_with_files(manifest).into_iter().filter(kept) {
        let visibility = Visibility {
            xattr: property(dataset, "xattr").as_deref() != Some("off"),
            posix_acl: property(dataset, "acltype").is_some_and(|v| v.starts_with("posix")),
            nfs4_acl: false,
        };
        let fs = FileSystem::open_with(open(dataset), visibility).unwrap();
        let done = check_tree(dataset, &ZplTree::new(fs), &checks);
        files += done.unwrap_or_else(|e| panic!("{e}")).files;
    }
    for dataset in datasets_with_volume(manifest).into_iter().filter(kept) {
        let volume = Volume::open(open(dataset)).unwrap();
        let read = |at, buf: &mut [u8]| volume.read(at, buf).map_err(|e| e.to_string());
        check_volume(dataset, volume.size(), read).unwrap_or_else(|e| panic!("{e}"));
    }
    files
}

/// cenote reads a turned pool.
fn reads(name: &str) -> TempPool {
    let (temp, turned) = turned(name);
    assert!(turned.big.values().sum::<u64>() > 50, "{turned:?}");
    let pool = Pool::open([&temp.pool.dir], name).unwrap();
    assert!(check(&pool, &temp.pool.manifest(), |_| false) > 0);
    temp
}

/// OpenZFS takes a turned pool for whole, and so does cenote.
fn reads_as_openzfs_does(name: &str) {
    let temp = reads(name);
    let (dir, manifest) = (&temp.pool.dir, temp.pool.manifest());
    judge(dir, name);
    zdb(dir, name, &["-dddd"]);
    openzfs(dir, name, "import\nscrub\nexport\n");
    judge(dir, name);
    let pool = Pool::open([dir], name).unwrap();
    check(&pool, &manifest, |_| false);
}

macro_rules! pools {
    ($reads:ident: $($name:ident)*) => { $(
        #[test]
        fn $name() {
            let _ = $reads(stringify!($name));
        }
    )* };
}

pools! { reads_as_openzfs_does: compat21 legacyd }
// With features that the packaged OpenZFS does not know.
pools! { reads: basic clones ldnode fraglogsm mir3 special streams dedupold deduplog }

#[test]
fn pools_of_every_version_are_read() {
    for number in OLD {
        let (temp, manifest) = old(number);
        let name = &temp.pool.name;
        let turned = to_big_endian(&temp.pool);
        eprintln!("{name}: {turned:?}");
        judge(&temp.pool.dir, name);
        let pool = Pool::open([&temp.pool.dir], name).unwrap();
        assert!(check_with(&pool, &manifest, Checks { xattrs: false, ..Checks::EXACT }) > 150);
    }
}

/// What is in a file system: each path with its attributes, extended attributes, and its contents or target.
type Tree = BTreeMap<Vec<u8>, (Attr, Vec<(Vec<u8>, Vec<u8>)>, Vec<u8>)>;

fn fill(fs: &FileSystem, dir: u64, at: &[u8], out: &mut Tree) {
    for entry in fs.readdir(dir, 0, usize::MAX).unwrap() {
        let path = [at, b"/", &entry.name].concat();
        let attr = fs.attr(entry.ino).unwrap();
        let mut data = Vec::new();
        if attr.is_file() {
            data = vec![0; attr.size.min(4 << 20) as usize];
            let read = fs.read(entry.ino, 0, &mut data).unwrap();
            assert_eq!(read, data.len());
        } else if attr.is_symlink() {
            data = fs.readlink(entry.ino).unwrap();
        }
        let names = fs.listxattr(entry.ino).unwrap();
        let value = |n: &Vec<u8>| (n.clone(), fs.getxattr(entry.ino, n).unwrap().unwrap());
        let xattrs = names.iter().map(value).collect();
        if attr.is_dir() {
            fill(fs, entry.ino, &path, out);
        }
        out.insert(path, (attr, xattrs, data));
    }
}

fn tree(pool: &Pool, name: &str) -> Tree {
    let view = pool.view();
    let found = view.dsl().find(name).unwrap().unwrap_or_else(|| panic!("no {name}"));
    let fs = FileSystem::open(view.dsl().open_objset(&found).unwrap()).unwrap();
    let mut out = Tree::new();
    fill(&fs, fs.root(), b"", &mut out);
    out
}

/// A file as it is wherever it lies: its attributes, extended attributes and contents.
type Portable<'a> = (&'a [u8], Attr, Vec<&'a (Vec<u8>, Vec<u8>)>, &'a [u8]);

/// What two copies of a file system have in common: all but the space that a file takes, which object has its extended
/// attributes, and when it was last changed (which a replay does).
fn portable(tree: &Tree) -> Vec<Portable<'_>> {
    let mut all = Vec::new();
    for (path, (attr, xattrs, data)) in tree {
        let mut xattrs: Vec<_> = xattrs.iter().collect();
        xattrs.sort();
        let mut attr = attr.clone();
        (attr.blocks, attr.pending, attr.xattr, attr.ctime) = (0, false, 0, (0, 0));
        all.push((&path[..], attr, xattrs, &data[..]));
    }
    all
}

/// Compares copies of a file system.
#[track_caller]
fn same(one: &Tree, other: &Tree, what: &str) {
    let (one, other) = (portable(one), portable(other));
    assert_eq!(one.len(), other.len(), "{what}");
    for (one, other) in one.iter().zip(&other) {
        let path = String::from_utf8_lossy(one.0);
        assert_eq!(one.1, other.1, "{what}: {path}");
        assert!(one == other, "{what}: {path}");
    }
}

/// The file systems of a manifest, without snapshots.
fn heads(manifest: &Value) -> Vec<String> {
    let names = datasets_with_files(manifest).into_iter().map(|d| d["name"].as_str().unwrap());
    names.filter(|name| !name.contains('@')).map(String::from).collect()
}

/// Changes of all kinds to files that were there, and new ones.
fn change(pool: &Pool, name: &str, round: u32) {
    let before = tree(pool, name);
    let files = pool.dataset(name).unwrap().filesystem().unwrap();
    let dir = format!("ours-{round}");
    files.create_dir_all(format!("{dir}/below")).unwrap();
    for n in 0..30 {
        files.write(format!("{dir}/file-{n}"), format!("{n} of {name} {round}\n")).unwrap();
    }
    files.write(format!("{dir}/long"), vec![round as u8; 300_000]).unwrap();
    files.symlink("t".repeat(70), format!("{dir}/link")).unwrap();
    files.hard_link(format!("{dir}/long"), format!("{dir}/below/hard")).unwrap();
    files.set_xattr(format!("{dir}/long"), "user.note", "v".repeat(3000).as_bytes()).unwrap();
    let mode = SetAttr { mode: Some(0o640), uid: Some(1000 + round), ..SetAttr::default() };
    let text = before.iter().filter(|(path, _)| std::str::from_utf8(path).is_ok());
    let plain = text.filter(|(_, (attr, _, _))| attr.is_file() && attr.size < 1 << 20);
    for (n, (path, (attr, xattrs, _))) in plain.enumerate().take(60) {
        let path = std::str::from_utf8(&path[1..]).unwrap();
        match n % 5 {
            0 => drop(files.set_attributes(path, &mode).unwrap()),
            1 => files.open(path).unwrap().write_at(attr.size / 2, b"changed").unwrap(),
            2 => files.set_xattr(path, "user.ours", [7; 200]).unwrap(),
            3 if attr.nlink == 1 && xattrs.is_empty() => files.remove_file(path).unwrap(),
            _ => files.rename(path, format!("{dir}/moved-{n}")).unwrap(),
        }
    }
    files.sync().unwrap();
}

/// Uses a turned pool: files, snapshots, clones; with OpenZFS in between.
fn used(temp: &TempPool, manifest: &Value) {
    let (dir, name) = (&temp.pool.dir, temp.pool.name.as_str());
    let heads = heads(manifest);
    let pool = writable(temp);
    for (n, head) in heads.iter().enumerate() {
        let dataset = pool.dataset(head).unwrap();
        if dataset.property("readonly").unwrap().as_deref() == Some("on") {
            continue;
        }
        drop(dataset);
        change(&pool, head, n as u32);
    }
    let ours: Vec<String> = heads.iter().map(|head| format!("{head}@ours")).collect();
    pool.snapshot(ours.iter().map(String::as_str)).unwrap();
    let clone = pool.dataset(&ours[0]).unwrap().clone_to(&format!("{name}/cloned"), &[]).unwrap();
    drop(clone);
    change(&pool, &format!("{name}/cloned"), 40);
    pool.sync().unwrap();
    let all = |pool: &Pool| heads.iter().map(|head| tree(pool, head)).collect::<Vec<_>>();
    let seen = all(&pool);
    export(pool);
    judge(dir, name);

    let pool = writable(temp);
    assert!(all(&pool) == seen, "after an import");
    check(&pool, manifest, |dataset| !dataset.contains('@'));
    let snapshots = manifest["datasets"].as_array().unwrap().iter();
    let snapshots = snapshots.map(|d| d["name"].as_str().unwrap()).filter(|n| n.contains('@'));
    // They go with their lists of blocks; one that is held or has clones stays.
    let destroys = |name: &&str| pool.dataset(name).unwrap().destroy().is_ok();
    assert!(snapshots.filter(destroys).count() > 0);
    pool.dataset(&format!("{name}/cloned")).unwrap().destroy().unwrap();
    pool.dataset(&ours[0]).unwrap().destroy().unwrap();
    pool.sync().unwrap();
    assert!(all(&pool) == seen, "after destroying");
    export(pool);
    judge(dir, name);
    openzfs(dir, name, "import\nscrub\nexport\n");
    let pool = writable(temp);
    assert!(all(&pool) == seen, "after OpenZFS");
    change(&pool, &heads[0], 50);
    export(pool);
    judge(dir, name);
}

#[test]
fn pools_with_features_are_written() {
    for name in ["compat21", "legacyd"] {
        let (temp, _) = turned(name);
        used(&temp, &temp.pool.manifest());
    }
}

#[test]
fn pools_of_old_versions_are_written() {
    for number in OLD.into_iter().filter(|number| *number >= version::OLDEST_WRITABLE) {
        let (temp, manifest) = old(number);
        to_big_endian(&temp.pool);
        let pool = writable(&temp);
        let heads = heads(&manifest);
        heads.iter().for_each(|head| change(&pool, head, 1));
        let seen: Vec<Tree> = heads.iter().map(|head| tree(&pool, head)).collect();
        export(pool);
        judge(&temp.pool.dir, &temp.pool.name);
        let pool = writable(&temp);
        assert!(heads.iter().map(|head| tree(&pool, head)).eq(seen), "version {number}");
        export(pool);
        openzfs(&temp.pool.dir, &temp.pool.name, "import\nscrub\nexport\n");
    }
}

/// The log of a crash is replayed as one in the native order is.
#[test]
fn intent_logs_are_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk");
    let pool = Pool::create_in_file(&image, "tank", 128 << 20).unwrap();
    let made = pool.create_filesystem("tank/a", &[("acltype", "posix"), ("xattr", "dir")]).unwrap();
    let files = made.filesystem().unwrap();
    files.write("there", vec![5; 200_000]).unwrap();
    files.write("goes", "x").unwrap();
    files.sync().unwrap();
    pool.sync().unwrap();
    change(&pool, "tank/a", 1);
    files.open("there").unwrap().write_at(131_072, &[9; 60_000]).unwrap();
    files.remove_file("goes").unwrap();
    files
        .set_attributes("ours-1/file-2", &SetAttr { mode: Some(0o600), ..SetAttr::default() })
        .unwrap();
    files.sync().unwrap();
    let inherits = SetAttr { projid: Some(78), flags: Some(PROJECT_INHERIT), ..SetAttr::default() };
    let project = SetAttr { projid: Some(77), ..SetAttr::default() };
    files.set_attributes("ours-1/file-3", &project).unwrap();
    files.set_attributes("ours-1/below", &inherits).unwrap();
    files.write("ours-1/below/new", "of the project").unwrap();
    files.sync().unwrap();
    let time = (1_234_567_890, 123_456_789);
    let dated = SetAttr { mtime: Some(SetTime::To(time)), ..SetAttr::default() };
    files.set_attributes("ours-1/file-4", &dated).unwrap();
    files.sync().unwrap();
    let crashed = |name: &str, image: &Path| {
        let dir = tempfile::Builder::new().prefix(name).tempdir().unwrap();
        let file = dir.path().join("disk");
        fs::copy(image, &file).unwrap();
        let pool = TestPool { name: "tank".into(), dir: dir.path().into(), files: vec![file] };
        (dir, pool)
    };
    // A group may end between two copies of the image.
    let (_little, plain) = crashed("little", &image);
    let (_big, other) = crashed("big", &plain.files[0]);
    drop((files, made));
    export(pool);
    let turned = to_big_endian(&other);
    assert!(turned.log > 0, "{turned:?}");
    let said = zdb(&other.dir, "tank/a", &["-iiiii"]);
    assert!(said.contains("TX_CREATE"), "{said}");
    let trees = [&plain, &other].map(|crashed| {
        let pool = Pool::open_writable([&crashed.dir], "tank").unwrap();
        let files = pool.dataset("tank/a").unwrap().filesystem().unwrap();
        assert_eq!(files.read("there").unwrap()[131_072..191_072], [9; 60_000]);
        assert!(files.read("goes").is_err());
        drop(files);
        let seen = tree(&pool, "tank/a");
        assert_eq!(seen[&b"/ours-1/file-4"[..]].0.mtime, time);
        for (path, project) in [("file-3", 77), ("below", 78), ("below/new", 78)] {
            assert_eq!(seen[format!("/ours-1/{path}").as_bytes()].0.projid, project, "{path}");
        }
        export(pool);
        judge(&crashed.dir, "tank");
        seen
    });
    // A replayed write changes the file then.
    let trees = trees.map(|mut tree| {
        tree.values_mut().for_each(|(attr, ..)| attr.mtime = (0, 0));
        tree
    });
    same(&trees[0], &trees[1], "replayed");
}

#[test]
fn what_was_big_endian_is_sent() {
    let (temp, _) = turned("compat21");
    let manifest = temp.pool.manifest();
    let dir = tempfile::tempdir().unwrap();
    let to = Pool::create_in_file(dir.path().join("disk"), "tank", 512 << 20).unwrap();
    let from = Pool::open([&temp.pool.dir], "compat21").unwrap();
    let snapshots = manifest["datasets"].as_array().unwrap().iter();
    let snapshots = snapshots.map(|d| d["name"].as_str().unwrap()).filter(|n| n.contains('@'));
    let mut sent = 0;
    for (n, name) in snapshots.enumerate() {
        let dataset = from.dataset(name).unwrap();
        for as_stored in [false, true] {
            let mut stream = Vec::new();
            let how = Stream::of(&dataset);
            let how = if as_stored { how.as_stored() } else { how };
            how.send(&mut stream).unwrap();
            let into = format!("tank/copy{n}{as_stored}");
            let received = to.receive(&into, stream.as_slice()).unwrap();
            sent += 1;
            if dataset.filesystem().is_ok() {
                let copy = tree(&to, &received.snapshots[0]);
                same(&copy, &tree(&from, name), name);
            }
        }
    }
    assert!(sent > 1);
    export(to);
    judge(dir.path(), "tank");
}

#[test]
fn streams_of_big_endian_machines_are_received() {
    let dir = tempfile::tempdir().unwrap();
    let to = Pool::create_in_file(dir.path().join("disk"), "tank", 1 << 30).unwrap();
    let mut compared = 0;
    for (name, stream) in sample_streams() {
        // What needs no other snapshot, and nothing that OpenZFS sends wrongly.
        let whole = ["full", "disk-s1", "leaf-p-s1", "tip-e-s1", "R-s3"];
        if !whole.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let big = big_endian_stream(&stream);
        let [ours, theirs] = [("big", big), ("little", stream)].map(|(order, stream)| {
            let into = format!("tank/{name}-{order}");
            let done = to.receive(&into, stream.as_slice());
            done.unwrap_or_else(|e| panic!("{into}: {e}")).snapshots.remove(0)
        });
        if to.dataset(&ours).unwrap().filesystem().is_ok() {
            same(&tree(&to, &ours), &tree(&to, &theirs), &name);
            compared += 1;
        }
    }
    assert!(compared > 0);
    export(to);
    judge(dir.path(), "tank");
}

/// OpenZFS's engine receives such streams, and the copies are the same. (The packaged one has an assertion that those of the
/// samples fail in either order.)
#[test]
fn openzfs_receives_turned_streams() {
    let (dir, away) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = dir.path().join("disk");
    fs::File::create(&disk).unwrap().set_len(512 << 20).unwrap();
    let pool = CreatePool::new("tank", [disk.to_str().unwrap()]);
    let pool = pool.property("compatibility", "openzfs-2.1-linux").create().unwrap();
    let mut script = String::from("import\n");
    for xattr in ["sa", "dir"] {
        let name = format!("tank/{xattr}");
        let made = pool.create_filesystem(&name, &[("xattr", xattr)]).unwrap();
        change(&pool, &name, 1);
        let file = away.path().join(xattr);
        let mut stream = Vec::new();
        made.snapshot("one").unwrap().send(&mut stream).unwrap();
        fs::write(&file, big_endian_stream(&stream)).unwrap();
        script += &format!("receive tank/theirs-{xattr}@one {}\n", file.display());
        pool.receive(&format!("tank/ours-{xattr}"), big_endian_stream(&stream).as_slice()).unwrap();
    }
    export(pool);
    openzfs(dir.path(), "tank", &format!("{script}export\n"));
    judge(dir.path(), "tank");
    let pool = Pool::open([dir.path()], "tank").unwrap();
    for xattr in ["sa", "dir"] {
        let [made, ours, theirs] = ["", "ours-", "theirs-"]
            .map(|prefix| tree(&pool, &format!("tank/{prefix}{xattr}@one")));
        same(&made, &ours, xattr);
        same(&made, &theirs, xattr);
    }
}

#[test]
fn raw_streams_of_big_endian_machines_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20).unwrap();
    let raw = raw_stream();
    let list = u32::from_le_bytes(*raw[4..].first_chunk().unwrap());
    let big = big_endian_stream(&raw[..RECORD_SIZE + list as usize]);
    let refused = pool.receive("tank/raw", big.as_slice()).unwrap_err().to_string();
    assert!(refused.contains("a raw stream of a big-endian system"), "{refused}");
    assert!(pool.dataset("tank/raw").is_err());
}
