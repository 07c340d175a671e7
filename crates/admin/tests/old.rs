//! Pools of versions from before feature flags, which zfs-fuse made: read, written as they are, and upgraded.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod samples;

use cenote::{Pool, SetAttr};
use cenote_admin::contents::Files;
use cenote_dmu::outside::Chance;
use cenote_engine::change::{Changes, NewClone};
use cenote_engine::create::{CreateSpec, FIRST_TXG, SystemDevices, parse, prepare};
use cenote_manifest_check::{Checks, ZplTree, check_tree, datasets_with_files};
use cenote_pool::props::PropChange;
use cenote_pool::version;
use cenote_testpools::{OLD, TempPool, judge, old, openzfs};
use cenote_zpl::FileSystem;
use samples::{export, writable};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// What is in a file system: each path with its size, its mode, and its contents or target.
type Tree = BTreeMap<String, (u64, u32, Vec<u8>)>;

fn files_of(pool: &Pool, name: &str) -> Arc<FileSystem> {
    let view = pool.view();
    let found = view.dsl().find(name).unwrap().unwrap_or_else(|| panic!("no {name}"));
    FileSystem::open(view.dsl().open_objset(&found).unwrap()).unwrap()
}

fn tree(fs: &FileSystem, dir: u64, at: &str, out: &mut Tree) {
    for entry in fs.readdir(dir, 0, usize::MAX).unwrap() {
        let path = format!("{at}/{}", String::from_utf8_lossy(&entry.name));
        let attr = fs.attr(entry.ino).unwrap();
        let data = match attr.mode & 0o170_000 {
            0o100_000 => {
                let mut data = vec![0; attr.size as usize];
                let read = fs.open_file(entry.ino).unwrap().read(0, &mut data).unwrap();
                assert_eq!(read, data.len(), "{path}");
                data
            }
            0o120_000 => fs.readlink(entry.ino).unwrap(),
            _ => Vec::new(),
        };
        out.insert(path.clone(), (attr.size, attr.mode, data));
        if attr.is_dir() {
            tree(fs, entry.ino, &path, out);
        }
    }
}

fn contents(pool: &Pool, name: &str) -> Tree {
    let fs = files_of(pool, name);
    let mut out = Tree::new();
    tree(&fs, fs.root(), "", &mut out);
    out
}

/// Compares the datasets of which the manifest says what is in them, but those that were changed since.
fn check(pool: &Pool, manifest: &Value, is_changed: impl Fn(&str) -> bool) -> usize {
    let mut files = 0;
    for dataset in datasets_with_files(manifest) {
        let name = dataset["name"].as_str().unwrap();
        if is_changed(name) {
            continue;
        }
        let tree = ZplTree::new(files_of(pool, name));
        let checks = Checks { xattrs: false, ..Checks::EXACT };
        files += check_tree(dataset, &tree, &checks).unwrap_or_else(|e| panic!("{e}")).files;
    }
    files
}

#[test]
fn every_version_is_read() {
    for number in OLD {
        let (temp, manifest) = old(number);
        let pool = Pool::open([&temp.pool.dir], &temp.pool.name).unwrap();
        assert_eq!(pool.view().version(), number);
        assert_eq!(pool.property("version").unwrap(), number.to_string());
        let files = check(&pool, &manifest, |_| false);
        assert!(files > 150, "{files} files in version {number}");
        for dataset in pool.datasets() {
            let dataset = dataset.unwrap();
            // Without `$ORIGIN` nothing comes before what has no snapshot.
            let written = (number >= 11).then_some("written");
            for name in ["used", "referenced", "version"].into_iter().chain(written) {
                assert!(dataset.property(name).unwrap().is_some(), "{name} of {}", dataset.name());
            }
        }
    }
}

#[test]
fn what_is_too_old_is_not_written() {
    for number in OLD.into_iter().filter(|number| *number < version::OLDEST_WRITABLE) {
        let (temp, _) = old(number);
        let Err(e) = Pool::open_writable([&temp.pool.dir], &temp.pool.name) else {
            panic!("version {number} is written");
        };
        let wanted = format!(
            "a pool of version {number}, which another system has to upgrade, is not supported for writing; use -o readonly=on"
        );
        assert!(e.to_string().contains(&wanted), "{e}");
        judge(&temp.pool.dir, &temp.pool.name);
    }
}

/// Changes of all kinds in a file system.
fn change(pool: &Pool, name: &str, round: u32) {
    let files = pool.dataset(name).unwrap().filesystem().unwrap();
    let dir = format!("ours-{round}");
    files.create_dir_all(format!("{dir}/below")).unwrap();
    for n in 0..30 {
        files.write(format!("{dir}/file-{n}"), format!("{n} of {name} {round}\n")).unwrap();
    }
    let long: Vec<u8> = (0..300_000u32).map(|n| (n / 7 + round) as u8).collect();
    files.write(format!("{dir}/long"), &long).unwrap();
    for target in ["short", &"t".repeat(56), &"t".repeat(57), &"far/".repeat(200)] {
        files.symlink(target, format!("{dir}/link-{}", target.len())).unwrap();
    }
    files.hard_link(format!("{dir}/long"), format!("{dir}/below/hard")).unwrap();
    files.rename(format!("{dir}/file-3"), format!("{dir}/below/moved")).unwrap();
    files.remove_file(format!("{dir}/file-4")).unwrap();
    let mode = SetAttr { mode: Some(0o640), uid: Some(1000 + round), ..SetAttr::default() };
    files.set_attributes(format!("{dir}/file-5"), &mode).unwrap();
    let many = "v".repeat(3000);
    files.set_xattr(format!("{dir}/file-6"), "user.note", many.as_bytes()).unwrap();
    let all = contents(pool, name);
    // What was there before.
    if let Some((path, _)) = all.iter().find(|(path, _)| path.starts_with("/dir/file-0")) {
        files.write(&path[1..], "another text").unwrap();
        files.set_attributes(&path[1..], &mode).unwrap();
    }
    files.sync().unwrap();
}

fn changes(pool: &Pool) -> Changes {
    Changes::new(pool.engine().unwrap().clone(), Arc::new(Files), None)
}

/// The pool of version `base` as OpenZFS takes it to another version.
fn raised(base: u64, number: u64) -> (TempPool, Value) {
    let (temp, manifest) = old(base);
    if number != base {
        let script = format!("import\nversion {number}\nexport\n");
        openzfs(&temp.pool.dir, &temp.pool.name, &script);
    }
    (temp, manifest)
}

/// The pool of version 23 as OpenZFS takes it to another version.
fn of_version(number: u64) -> (TempPool, Value) {
    raised(23, number)
}

const HEADS: [&str; 6] = ["v23/z2", "v23/z3", "v23/z4", "v23/gzip", "v23/dedup", "v23/clone"];

/// The file systems of the pool of version `base`: the last one that is called by its version is what the clone is of.
fn heads(base: u64) -> Vec<String> {
    let files: &[&str] = match base {
        15.. => &["z2", "z3", "z4"],
        9.. => &["z1", "z3"],
        _ => &["z1", "z2"],
    };
    let more = [("gzip", 5), ("dedup", 21), ("clone", 0)];
    let more = more.into_iter().filter(|(_, since)| base >= *since).map(|(name, _)| name);
    files.iter().copied().chain(more).map(|name| format!("v{base}/{name}")).collect()
}

fn all_contents(pool: &Pool) -> BTreeMap<&'static str, Tree> {
    HEADS.into_iter().map(|name| (name, contents(pool, name))).collect()
}

fn contents_of(pool: &Pool, names: &[String]) -> BTreeMap<String, Tree> {
    names.iter().map(|name| (name.clone(), contents(pool, name))).collect()
}

/// Uses a pool of version `number`, which was made with version `base`: files, snapshots, clones; with OpenZFS in between.
fn used(base: u64, number: u64) {
    let (temp, manifest) = raised(base, number);
    let (dir, top) = (&temp.pool.dir, format!("v{base}"));
    let at = |what: &str| format!("{top}/{what}");
    let heads = heads(base);
    let newest = heads.iter().rev().find(|name| name.contains("/z")).unwrap().as_str();
    let (first, second) = (heads[0].as_str(), heads[heads.len().min(4) - 3].as_str());
    let second = if heads[1] == newest { first } else { second };
    let pool = writable(&temp);
    check(&pool, &manifest, |_| false);
    for name in &heads {
        change(&pool, name, 1);
    }
    let ours: Vec<String> = heads.iter().map(|name| format!("{name}@ours")).collect();
    pool.snapshot(ours.iter().map(String::as_str)).unwrap();
    for name in &heads {
        change(&pool, name, 2);
    }
    let made = pool.create_filesystem(&at("made"), &[]).unwrap();
    let files = version::newest_of_files(number).to_string();
    assert_eq!(made.property("version").unwrap().unwrap(), files);
    drop(made);
    change(&pool, &at("made"), 3);
    let clone = NewClone { origin: format!("{second}@ours"), name: at("more"), props: vec![] };
    changes(&pool).clone_snapshot(&clone).unwrap();
    change(&pool, &at("more"), 4);
    pool.sync().unwrap();
    let seen = contents_of(&pool, &heads);
    let is_new = |name: &str| !name.contains('@');
    export(pool);
    judge(dir, &top);

    let pool = writable(&temp);
    assert_eq!(pool.view().version(), number);
    assert_eq!(contents_of(&pool, &heads), seen);
    check(&pool, &manifest, is_new);
    let by = changes(&pool);
    let gone = |name: &str| by.destroy_snapshots(&[name.to_string()], false);
    // One that others come before and after, the oldest, one that is held, and one that has a clone.
    gone(&format!("{first}@one")).unwrap();
    assert!(gone(&format!("{newest}@one")).is_err());
    let two = format!("{newest}@two");
    if base >= 18 {
        assert!(gone(&two).is_err());
        by.release(std::slice::from_ref(&two), "kept").unwrap();
    }
    gone(&two).unwrap();
    gone(&at("clone@three")).unwrap();
    by.destroy(&at("more")).unwrap();
    by.rollback(&format!("{second}@ours")).unwrap();
    by.promote(&at("clone")).unwrap();
    pool.sync().unwrap();
    let seen = contents_of(&pool, &heads);
    assert!(!seen[second].contains_key("/ours-2"));
    drop(by);
    export(pool);
    judge(dir, &top);
    let script = format!(
        "import\nscrub\nsnapshot {first}@theirs\nclone {first}@theirs {top}/theirs\n\
         destroy {second}@ours\nsnapshot {newest}@theirs\nexport\n"
    );
    openzfs(dir, &top, &script);
    let pool = writable(&temp);
    assert_eq!(contents_of(&pool, &heads), seen);
    let by = changes(&pool);
    by.destroy(&at("theirs")).unwrap();
    by.destroy_snapshots(&[format!("{first}@theirs")], false).unwrap();
    if second != first {
        for name in [format!("{first}@ours"), format!("{second}@one")] {
            by.destroy_snapshots(&[name], false).unwrap();
        }
    }
    by.destroy_snapshots(&[at("clone@ours")], false).unwrap();
    for name in &heads {
        change(&pool, name, 5);
    }
    drop(by);
    export(pool);
    judge(dir, &top);
    openzfs(dir, &top, "import\nscrub\nexport\n");
}

#[test]
fn version_15_is_written() {
    used(15, 15);
}

#[test]
fn version_19_is_written() {
    used(19, 19);
}

#[test]
fn version_11_is_written() {
    used(11, 11);
}

#[test]
fn version_8_is_written() {
    used(8, 8);
}

#[test]
fn version_3_is_written() {
    used(3, 3);
}

/// OpenZFS has taken it there.
#[test]
fn version_22_is_written() {
    used(19, 22);
}

/// `zpool add POOL log FILE`: the guid of the log.
fn add_log(pool: &Pool, file: &Path) -> u64 {
    fs::File::create(file).unwrap().set_len(64 << 20).unwrap();
    let engine = pool.engine().unwrap();
    let prepared = prepare(&CreateSpec {
        name: pool.name(),
        layout: &parse(&["log".to_string(), file.display().to_string()]).unwrap(),
        ashift: 0,
        force: true.into(),
        pool: Some(engine.pool().config()),
        txg: FIRST_TXG,
        imported: &[],
        devices: &SystemDevices,
        chance: &Chance::default(),
    });
    engine.add(prepared.unwrap()).unwrap();
    let vdevs = engine.pool().store().vdevs();
    vdevs.root().children().iter().find(|top| top.is_log()).unwrap().guid()
}

/// What came with later versions is refused by name, and nothing of it is made: neither a longer root block, nor lists of
/// clones, nor log blocks of the later form.
#[test]
fn what_a_version_lacks_is_not_made() {
    let (temp, _) = old(8);
    let (dir, top) = (&temp.pool.dir, "v8");
    let pool = writable(&temp);
    let made = pool.create_filesystem("v8/made", &[]).unwrap();
    for (name, value) in [("dedup", "on"), ("compression", "zle"), ("refquota", "1G")] {
        let refused = made.set(&[(name, value)]).unwrap_err().to_string();
        assert!(refused.contains("must be upgraded"), "{name}: {refused}");
    }
    made.set(&[("compression", "gzip"), ("dedup", "off"), ("refquota", "none")]).unwrap();
    drop(made);
    assert!(pool.create_filesystem("v8/refused", &[("refquota", "1G")]).is_err());
    let volume = pool.create_volume("v8/volume", 8 << 20, &[]).unwrap();
    assert_ne!(volume.property("reservation").unwrap().unwrap(), "0");
    assert_eq!(volume.property("refreservation").unwrap().unwrap(), "0");
    drop(volume);
    let by = changes(&pool);
    let names = ["v8/z1@one".to_string()];
    let (_, refused) = by.hold(&names, "tag").unwrap_err();
    assert!(refused.to_string().contains("pool must be upgraded"), "{refused}");
    assert!(by.destroy_snapshots(&names, true).is_err(), "it cannot be left for later");
    let clone = NewClone { origin: names[0].clone(), name: "v8/another".into(), props: Vec::new() };
    by.clone_snapshot(&clone).unwrap();
    drop(by);
    for (to, may) in [(9, true), (10, true), (11, false), (28, false), (5000, false)] {
        let done = pool.engine().unwrap().set_properties(vec![PropChange::Version(to)]);
        assert_eq!(done.is_ok(), may, "to version {to}: {done:?}");
    }
    assert_eq!(pool.view().version(), 10);
    let log = add_log(&pool, &dir.join("log"));
    let refused = pool.engine().unwrap().remove(log).unwrap_err().to_string();
    assert_eq!(refused, "pool must be upgraded to support log removal");
    // What is stable before its group is: a log in the form of that time.
    let files = pool.dataset("v8/made").unwrap().filesystem().unwrap();
    files.write("first", "text").unwrap();
    files.sync().unwrap();
    pool.sync().unwrap();
    files.write("logged", "stable\n").unwrap();
    files.sync().unwrap();
    let crashed = tempfile::tempdir().unwrap();
    for file in temp.pool.files.iter().chain([&dir.join("log")]) {
        fs::copy(file, crashed.path().join(file.file_name().unwrap())).unwrap();
    }
    drop(files);
    export(pool);
    judge(dir, top);
    let said = cenote_testpools::zdb(dir, "v8/made", &["-dddd"]);
    assert!(said.contains("size=400L") && !said.contains("USERUSED"), "{said}");
    let said = cenote_testpools::zdb(dir, top, &["-dddd"]);
    assert!(!said.contains("next_clones_obj = 1"), "{said}");
    let said = cenote_testpools::zdb(crashed.path(), "v8/made", &["-iiiii"]);
    assert!(said.contains("TX_CREATE") && said.contains(" zilog "), "{said}");
    let pool = Pool::open_writable([crashed.path()], top).unwrap();
    let files = pool.dataset("v8/made").unwrap().filesystem().unwrap();
    assert_eq!(files.read("logged").unwrap(), b"stable\n");
    drop(files);
    export(pool);
    judge(crashed.path(), top);
    openzfs(crashed.path(), top, "import\nversion 28\nscrub\nexport\n");
    openzfs(dir, top, "import\nversion 28\nscrub\nexport\n");
    let pool = writable(&temp);
    change(&pool, "v8/another", 1);
    export(pool);
    judge(dir, top);
}

#[test]
fn version_23_is_written() {
    used(23, 23);
}

#[test]
fn version_25_is_written() {
    used(23, 25);
}

#[test]
fn version_26_is_written() {
    used(23, 26);
}

#[test]
fn version_28_is_written() {
    used(23, 28);
}

/// Its deadlists are those of the old version, until their snapshots are gone.
#[test]
fn what_openzfs_upgraded_to_feature_flags_is_written() {
    used(23, 5000);
}

#[test]
fn pools_and_file_systems_are_upgraded() {
    let (temp, manifest) = old(23);
    let dir = &temp.pool.dir;
    let upgrade = |to: u64| {
        let pool = writable(&temp);
        pool.engine().unwrap().set_properties(vec![PropChange::Version(to)]).unwrap();
        assert_eq!(pool.view().version(), to);
        change(&pool, "v23/z2", to as u32);
        pool.snapshot([format!("v23/z2@v{to}").as_str()]).unwrap();
        change(&pool, "v23/z4", to as u32);
        let seen = all_contents(&pool);
        export(pool);
        judge(dir, "v23");
        openzfs(dir, "v23", "import\nscrub\nexport\n");
        let pool = writable(&temp);
        assert_eq!(all_contents(&pool), seen);
        check(&pool, &manifest, |name| !name.contains('@') && name != "v23/z3");
        export(pool);
    };
    [24, 26, 28, version::FEATURES].into_iter().for_each(upgrade);
    let pool = writable(&temp);
    let feature = |name| cenote_format::features::by_name(name).unwrap();
    let enabled: Vec<PropChange> = ["async_destroy", "extensible_dataset", "skein", "bookmarks"]
        .map(|name| PropChange::Feature(feature(name)))
        .into();
    pool.engine().unwrap().set_properties(enabled).unwrap();
    let before = all_contents(&pool);
    for name in ["v23/z2", "v23/z3", "v23/z4"] {
        let dataset = pool.dataset(name).unwrap();
        assert!(dataset.set(&[("version", "1")]).is_err());
        dataset.set(&[("version", "5")]).unwrap();
        assert_eq!(dataset.property("version").unwrap().unwrap(), "5");
    }
    assert_eq!(all_contents(&pool), before);
    pool.dataset("v23/z3").unwrap().set(&[("checksum", "skein")]).unwrap();
    for name in HEADS {
        change(&pool, name, 7);
    }
    let by = changes(&pool);
    by.bookmark("v23/z2@v24", "v23/z2#mark").unwrap();
    for name in ["v23/z2@one", "v23/z2@v24", "v23/z2@v26", "v23/z2@v28", "v23/z2@v5000"] {
        by.destroy_snapshots(&[name.to_string()], false).unwrap();
    }
    by.destroy("v23/gzip").unwrap();
    pool.sync().unwrap();
    let seen = contents(&pool, "v23/z2");
    drop(by);
    export(pool);
    judge(dir, "v23");
    openzfs(dir, "v23", "import\nscrub\nexport\n");
    assert_eq!(contents(&writable(&temp), "v23/z2"), seen);
}

#[test]
fn file_systems_of_every_version_are_made() {
    let (temp, _) = of_version(28);
    let pool = writable(&temp);
    for number in 1..=5 {
        let (name, version) = (format!("v23/new{number}"), number.to_string());
        let made = pool.create_filesystem(&name, &[("version", &version)]).unwrap();
        assert_eq!(made.property("version").unwrap().unwrap(), version);
        // There are quotas of owners from version 4 on.
        assert_eq!(made.set(&[("userquota@1000", "1G")]).is_ok(), number >= 4, "{name}");
        drop(made);
        change(&pool, &name, number);
    }
    assert!(pool.create_filesystem("v23/bad", &[("version", "6")]).is_err());
    export(pool);
    judge(&temp.pool.dir, "v23");
    let (temp, _) = old(23);
    let pool = writable(&temp);
    let Err(e) = pool.create_filesystem("v23/bad", &[("version", "5")]) else {
        panic!("version 5 in a pool of version 23");
    };
    assert!(e.to_string().contains("must be upgraded"), "{e}");
    export(pool);
}

/// Has zfs-fuse copy all that is in a pool; in a mount namespace of its own.
const ZFS_FUSE: &str = r#"
set -e
dir=$1 out=$2 root=$3
mkdir -p /run/zfs /run/lock "$dir/mnt"
mount -t tmpfs none /run/zfs
export LD_LIBRARY_PATH=$(echo "$root"/lib/*-linux-gnu) PATH=$root/sbin:$PATH
zfs-fuse --no-daemon --no-kstat-mount -m 64 -a 0 -e 0 -o default_permissions >"$dir/log" 2>&1 &
daemon=$!
trap 'kill $daemon; wait $daemon || true' EXIT
for try in $(seq 300); do [ -e /run/zfs/zfs_socket ] && break; sleep 0.1; done
zpool import -f -d "$dir" -R "$dir/mnt" v23
at=$(echo "$dir/mnt"/tmp/*/mnt/v23)
cp -a "$at/." "$out"
for fs in z2 z3 z4 clone; do
    echo theirs >"$at/$fs/theirs"
    rm -r "$at/$fs/ours-1"
done
zfs snapshot -r v23@theirs
zfs destroy v23/z2@one
zpool export v23
"#;

/// They take turns. Where zfs-fuse cannot run, for want of rights or of the program, nothing is tried.
#[test]
fn zfs_fuse_goes_on_with_what_was_written() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/zfs-fuse");
    let can_mount = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can_mount || !root.join("sbin/zfs-fuse").exists() {
        eprintln!("skipped: needs root, /dev/fuse, and zfs-fuse (scripts/setup.sh test)");
        return;
    }
    let (temp, _) = old(23);
    let dir = &temp.pool.dir;
    let pool = writable(&temp);
    for name in HEADS {
        change(&pool, name, 1);
    }
    pool.snapshot(["v23/z2@ours", "v23/clone@ours"]).unwrap();
    for name in HEADS {
        change(&pool, name, 2);
    }
    let seen = all_contents(&pool);
    export(pool);
    let out = tempfile::tempdir().unwrap();
    let mut run = Command::new("unshare");
    run.args(["-m", "--propagation", "private", "bash", "-c", ZFS_FUSE, "bash"]);
    let done = run.arg(dir).arg(out.path()).arg(root.canonicalize().unwrap()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    for (name, tree) in &seen {
        let at = out.path().join(name.strip_prefix("v23/").unwrap());
        for (path, (size, mode, data)) in tree {
            let file = at.join(&path[1..]);
            let is = fs::symlink_metadata(&file).unwrap_or_else(|e| panic!("{name}{path}: {e}"));
            assert_eq!(is.permissions().mode(), *mode, "{name}{path}");
            match mode & 0o170_000 {
                0o100_000 => {
                    assert_eq!(is.len(), *size, "{name}{path}");
                    assert!(fs::read(&file).unwrap() == *data, "{name}{path}");
                }
                0o120_000 => {
                    let target = fs::read_link(&file).unwrap();
                    assert_eq!(target.as_os_str().as_bytes(), data, "{name}{path}");
                }
                _ => {}
            }
        }
    }
    let pool = writable(&temp);
    for name in ["v23/z2", "v23/z3", "v23/z4", "v23/clone"] {
        let now = contents(&pool, name);
        let (theirs, mut kept) = (&now["/theirs"], seen[name].clone());
        assert_eq!(theirs.2, b"theirs\n");
        kept.retain(|path, _| !path.starts_with("/ours-1"));
        assert!(kept.iter().all(|(path, is)| now.get(path) == Some(is)), "{name}");
        change(&pool, name, 3);
    }
    changes(&pool).destroy_snapshots(&["v23/z2@theirs".into()], false).unwrap();
    export(pool);
    judge(dir, "v23");
}
