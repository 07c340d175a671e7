//! Intent logs that a crash left, by the real binary: they are replayed when file systems are mounted or read, which
//! shows how far it is, and are left alone, which is said, if the pool is imported read-only. (The sample has features
//! that the `zdb` at hand cannot read; what a replay gives is compared with the manifest elsewhere.)

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use cenote_dsl::DatasetKind;
use cenote_dsl::zil::{Item, walk};
use cenote_format::LABEL_START;
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_testpools::TempPool;
use common::{Session, can_mount};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Has replay take some seconds: each read takes so many milliseconds, nothing is read ahead, and one log is replayed
/// after the other.
fn slow(s: &Session, milliseconds: u64) {
    for tunable in ["zil_replay_prime=0", "zil_replay_gather=1", "zil_replay_threads=1"] {
        s.run(&format!("tunables set {tunable}")).ok();
    }
    s.run(&format!("tunables set vdev_simulated_latency={}", milliseconds * 1_000_000)).ok();
}

/// Ends the import; no file system has a log any more (the volume was not opened).
fn nothing_is_left(s: &Session, dir: &str) {
    s.run("zpool export zilmain").ok();
    let again = s.run(&format!("zpool import -N -o readonly=on -d {dir} zilmain"));
    let volume = |line: &str| line.starts_with("intent log of 'zilmain/zv' ");
    assert!(again.code == 0 && again.err.lines().all(volume), "{again:?}");
    s.run("zpool export zilmain").ok();
}

#[test]
fn a_read_only_import_says_what_is_not_replayed() {
    let s = Session::new();
    let temp = cenote_testpools::copy("zilmain");
    let dir = temp.pool.dir.display();
    let done = s.run(&format!("zpool import -f -N -o readonly=on -d {dir} zilmain"));
    assert_eq!((done.code, done.out.as_str()), (0, ""), "{done:?}");
    assert!(!done.err.is_empty());
    for line in done.err.lines() {
        let name = line.strip_prefix("intent log of 'zilmain").unwrap();
        assert!(
            name.ends_with(
                "' was not replayed: the pool is imported read-only, and shows the state before it"
            ),
            "{line}"
        );
    }
    s.run("zpool export zilmain").ok();
    // An import that mounts nothing claims them, and leaves them as well.
    s.run(&format!("zpool import -f -N -d {dir} zilmain")).ok();
    s.run("zpool export zilmain").ok();
    let again = s.run(&format!("zpool import -N -o readonly=on -d {dir} zilmain"));
    assert_eq!((again.code, again.err), (0, done.err));
    s.run("zpool export zilmain").ok();
}

#[test]
fn status_shows_how_far_a_replay_is() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    let temp = cenote_testpools::copy("zilmain");
    let dir = temp.pool.dir.display();
    s.run(&format!("zpool import -f -N -R {} -d {dir} zilmain", s.root())).ok();
    slow(&s, 50);
    let mut command = s.command();
    command.args(["zfs", "mount", "-a"]);
    let mut mount = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let (mut seen, mut stats) = (Vec::new(), Vec::new());
    while mount.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the mount does not end");
        let text = s.run("zpool status").out;
        seen.extend(text.lines().find(|l| l.starts_with("replay: ")).map(str::to_string));
        let json = s.run("zpool status -j --json-int").out;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap_or_default();
        stats.extend(json["pools"]["zilmain"].get("replay_stats").cloned());
        if !seen.is_empty() && !stats.is_empty() {
            // The rest need not take long.
            s.run("tunables set vdev_simulated_latency=0").ok();
            assert!(mount.wait().unwrap().success());
        }
    }
    assert!(mount.wait().unwrap().success());
    assert!(!seen.is_empty(), "status never showed the replay");
    let first = &seen[0];
    for part in ["intent logs: replaying, ", " datasets, ", " records, ", "/s, "] {
        assert!(first.contains(part), "{first}");
    }
    let first = stats.first().expect("JSON never showed the replay");
    assert_eq!(first["state"], "replaying", "{first}");
    for figure in ["datasets", "datasets_done", "records", "records_done", "bytes", "bytes_done"] {
        assert!(first[figure].is_u64(), "{figure}: {first}");
    }
    assert!(first["records"].as_u64() > Some(0) && first["bytes_per_second"].is_u64(), "{first}");
    assert!(!s.run("zpool status").ok().contains("replay: "));
    assert!(!s.run("zpool status -j").ok().contains("replay_stats"));
    s.run("tunables set vdev_simulated_latency=0").ok();
    nothing_is_left(&s, &dir.to_string());
}

#[test]
fn import_shows_how_far_a_replay_is() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    let temp = cenote_testpools::copy("zilmain");
    let dir = temp.pool.dir.display();
    slow(&s, 15);
    let shown = s.on_terminal(&format!("cenote zpool import -f -R {} -d {dir} zilmain", s.root()));
    assert!(shown.contains("intent logs: re"), "{shown}");
    s.run("tunables set vdev_simulated_latency=0").ok();
    nothing_is_left(&s, &dir.to_string());
}

/// Damages a block in the middle of the claimed log of a file system, the one with the most blocks; its name.
fn damage_a_log(temp: &TempPool) -> String {
    let options = ImportOptions { readonly: true, ..ImportOptions::default() };
    let pool = Pool::import(&discover(std::slice::from_ref(&temp.pool.dir))[0], &options).unwrap();
    let dsl = pool.dsl();
    let (mut heads, mut logs) = (vec![dsl.root().unwrap()], Vec::new());
    while let Some(head) = heads.pop() {
        heads.extend(dsl.children(&head).unwrap());
        let header = dsl.open_objset(&head).unwrap().phys().zil;
        let mut blocks = Vec::new();
        walk(pool.store(), &header, &mut |item| {
            if let Item::Block(bp) = item {
                blocks.push(*bp);
            }
            true
        });
        if head.kind == DatasetKind::Filesystem {
            logs.push((blocks, head.name.clone()));
        }
    }
    let (blocks, name) = logs.into_iter().max_by_key(|(blocks, _)| blocks.len()).unwrap();
    assert!(blocks.len() > 4, "{name}: {}", blocks.len());
    let file = OpenOptions::new().write(true).open(&temp.pool.files[0]).unwrap();
    for dva in blocks[blocks.len() / 2].dvas() {
        file.write_all_at(&[0xa5; 512], dva.offset + LABEL_START).unwrap();
    }
    name
}

/// The files of a directory and below it, with what is in them.
fn tree(dir: &Path, base: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            tree(&path, base, found);
        }
        let data = if kind.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
        found.insert(path.strip_prefix(base).unwrap().to_path_buf(), data);
    }
}

fn tree_of(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    tree(dir, dir, &mut found);
    found
}

/// A log that cannot be read up to its end is replayed as far as it goes. A user who looks at its file system then, by
/// a mount that is read-only or by a command, sees the same, and is told.
#[test]
fn a_log_that_cannot_be_replayed_is_left_out() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    let temp = cenote_testpools::copy("zilmain");
    let dir = temp.pool.dir.display();
    let copy = |name: &str, to: &str, code: i32| {
        std::fs::create_dir(s.path(to)).unwrap();
        let done =
            s.run_args(&["cp", "-r", "-q", &format!("{name}:/"), s.path(to).to_str().unwrap()]);
        assert_eq!(done.code, code, "{done:?}");
        (tree_of(&s.path(to)), done.err)
    };
    s.run(&format!("zpool import -f -N -d {dir} zilmain")).ok();
    s.run("zpool export zilmain").ok();
    let name = damage_a_log(&temp);
    s.run(&format!("zpool import -N -o readonly=on -d {dir} zilmain")).ok_but_for_logs();
    let (before, said) = copy(&name, "before", 0);
    assert_eq!(said, "");
    s.run("zpool export zilmain").ok();
    s.run(&format!("zpool import -N -R {} -d {dir} zilmain", s.root())).ok();
    s.run(&format!("zfs set readonly=on {name}")).ok();
    s.run(&format!("zfs mount {name}")).ok();
    let mountpoint = s.run(&format!("zfs get -H -o value mountpoint {name}")).ok();
    let mounted = tree_of(Path::new(mountpoint.trim()));
    let (now, said) = copy(&name, "now", 1);
    assert!(now == mounted && now != before);
    for part in [name.as_str(), "is shown without the rest of its intent log", "zpool clear"] {
        assert!(said.contains(part), "{said}");
    }
    s.run("zpool export zilmain").ok();
}
