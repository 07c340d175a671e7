//! Cache files: what names a pool, importing from them, and a daemon that does so when it starts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use cenote_pool::cachefile::CacheFile;
use common::Session;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

fn disk(session: &Session, name: &str) -> String {
    fs::File::create(session.path(name)).unwrap().set_len(128 << 20).unwrap();
    session.path(name).display().to_string()
}

fn create(session: &Session, options: &str, pool: &str) {
    let disk = disk(session, &format!("{pool}.img"));
    let root = "-O canmount=off -O mountpoint=none";
    session.run(&format!("zpool create {options} {root} {pool} {disk}")).ok();
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = match CacheFile::read(path) {
        Ok(file) => file.entries().map(|e| e.name.to_string()).collect(),
        Err(_) => Vec::new(),
    };
    names.sort();
    names
}

fn property(session: &Session, pool: &str) -> String {
    session.run(&format!("zpool get -Ho value,source cachefile {pool}")).ok().trim_end().into()
}

fn default(session: &Session) -> PathBuf {
    session.path("socket.zpool.cache")
}

#[test]
fn zdb_without_a_pool_shows_the_cache_file() {
    let s = Session::new();
    create(&s, "", "a");
    for line in ["zdb", "zdb -C"] {
        let said = s.run(line).ok();
        assert!(said.starts_with("a:\n") && said.contains("a.img'"), "{line}: {said}");
    }
    s.run("zdb -b").fails(2);
    s.run("zpool export a").ok();
    cenote_testpools::judge(s.dir.path(), "a");
}

/// A file that cannot be read may name pools of others.
#[test]
fn a_file_that_cannot_be_read_is_not_written_anew() {
    let s = Session::new();
    let turns = s.path("turns.cache");
    std::os::unix::fs::symlink(&turns, &turns).unwrap();
    create(&s, &format!("-o cachefile={}", turns.display()), "a");
    assert_eq!(fs::read_link(&turns).unwrap(), turns);
    // One that is no cache file has nothing to lose.
    let other = s.path("other.cache");
    fs::write(&other, "no cache file").unwrap();
    s.run(&format!("zpool set cachefile={} a", other.display())).ok();
    assert_eq!(names(&other), ["a"]);
    s.run("zpool export a").ok();
    assert_eq!(fs::read_link(&turns).unwrap(), turns);
    cenote_testpools::judge(s.dir.path(), "a");
}

#[test]
fn files_name_the_pools_that_they_are_to() {
    let s = Session::new();
    let own = s.path("own.cache");
    create(&s, "", "a");
    create(&s, &format!("-o cachefile={}", own.display()), "b");
    create(&s, "-o cachefile=none", "c");
    create(&s, &format!("-R {}", s.root()), "d");
    assert_eq!((names(&default(&s)), names(&own)), (vec!["a".into()], vec!["b".into()]));
    assert_eq!(property(&s, "a"), "-\tdefault");
    assert_eq!(property(&s, "b"), format!("{}\tlocal", own.display()));
    assert_eq!(
        (property(&s, "c"), property(&s, "d")),
        ("none\tlocal".into(), "none\tlocal".into())
    );

    s.run("zpool set cachefile=none a").ok();
    assert!(!default(&s).exists());
    s.run("zpool set cachefile= b").ok();
    assert!(!own.exists());
    s.run(&format!("zpool set cachefile={} d", own.display())).ok();
    assert_eq!((names(&default(&s)), names(&own)), (vec!["b".into()], vec!["d".into()]));
    let why = s.run("zpool set cachefile=relative a").fails(1);
    assert_eq!(
        why,
        "cannot set property for 'a': property 'cachefile' must be empty, an absolute path, or 'none'"
    );
    s.run("zpool destroy b").ok();
    s.run("zpool export d").ok();
    assert!(!default(&s).exists() && !own.exists());
    s.run("zpool export a").ok();
    cenote_testpools::judge(s.dir.path(), "a");
}

#[test]
fn what_openzfs_keeps_is_not_written() {
    let s = Session::new();
    create(&s, "", "a");
    let theirs = s.path("theirs.cache");
    fs::copy(default(&s), &theirs).unwrap();
    s.run(&format!("zpool set cachefile={} a", theirs.display())).ok();
    s.run("zpool set cachefile=none a").ok();
    assert!(!theirs.exists());
    // The same without our mark is a file of OpenZFS's.
    s.run("zpool set cachefile= a").ok();
    let bytes = fs::read(default(&s)).unwrap();
    let mark = b"com.cenote:cachefile";
    let at = bytes.windows(mark.len()).position(|w| w == mark).unwrap();
    let mut unmarked = bytes.clone();
    unmarked[at] = b'x';
    fs::write(&theirs, &unmarked).unwrap();
    let why = s.run(&format!("zpool set cachefile={} a", theirs.display())).fails(1);
    assert!(why.contains("is kept by OpenZFS: it has pool 'a'"), "{why}");
    assert_eq!(fs::read(&theirs).unwrap(), unmarked);
    s.run("zpool export a").ok();
}

#[test]
fn openzfs_reads_our_file() {
    let s = Session::new();
    create(&s, "", "a");
    s.run(&format!("zpool set cachefile={} a", s.path("zpool.cache").display())).ok();
    s.run("zpool sync a").ok();
    // A pool that has been exported would not be opened from a cache file.
    let path = s.path("zpool.cache").display().to_string();
    let zdb = |args: &[&str]| {
        let (out, text) = cenote_testpools::zdb_output(cenote_testpools::zdb_command(args));
        assert!(out.status.success(), "{text}");
        text
    };
    let list = zdb(&["-U", &path, "-C"]);
    assert!(list.starts_with("a:\n    version: 5000\n    name: 'a'\n"), "{list}");
    zdb(&["-U", &path, "-bcc", "a"]);
    // Ours shows the same.
    let ours = s.run(&format!("zdb -U {path} -C")).ok();
    assert_eq!(ours, list);
    let checked = s.run(&format!("zdb -U {path} -bcc a"));
    assert_eq!(checked.code, 0, "{checked:?}");
    let why = s.run(&format!("zdb -U {path} -C nothing")).fails(1);
    assert_eq!(why, "zdb: can't open 'nothing': No such file or directory");
    assert!(s.run("zdb -U x -C a").fails(2).starts_with("cachefile must be an absolute path"));
}

#[test]
fn pools_are_imported_from_a_file() {
    let s = Session::new();
    let own = s.path("own.cache").display().to_string();
    create(&s, &format!("-o cachefile={own}"), "a");
    create(&s, &format!("-o cachefile={own}"), "b");
    // The end of the daemon leaves the file, an export does not.
    s.run("daemon stop").ok();
    assert_eq!(names(Path::new(&own)), ["a", "b"]);
    let listed = s.run(&format!("zpool import -c {own}")).ok();
    assert!(listed.contains("pool: a\n") && listed.contains("pool: b\n"), "{listed}");
    s.run(&format!("zpool import -c {own} -o cachefile={own} a")).ok();
    assert_eq!(names(Path::new(&own)), ["a", "b"]);
    s.run(&format!("zpool import -c {own} -o cachefile={own} -a")).ok();
    assert_eq!(s.run("zpool list -Ho name").ok(), "a\nb\n");
    // As a crash would, this leaves it in the file.
    s.run("zpool export -F b").ok();
    assert_eq!(names(Path::new(&own)), ["a", "b"]);
    s.run(&format!("zpool import -f -c {own} -o cachefile={own} b")).ok();
    let copy = s.path("copy.cache").display().to_string();
    fs::copy(&own, &copy).unwrap();
    s.run("zpool export -a").ok();
    assert!(!Path::new(&own).exists());

    // A device that has got another name is found beside.
    fs::rename(s.path("a.img"), s.path("renamed.img")).unwrap();
    let done = s.run(&format!("zpool import -c {copy} a"));
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.out.ends_with("cachefile import failed, retrying\n"), "{}", done.out);
    assert!(done.err.contains("one or more devices is currently unavailable"), "{}", done.err);
    s.run("zpool export a").ok();

    let missing = s.path("missing").display().to_string();
    let why = s.run(&format!("zpool import -c {missing} a")).fails(1);
    assert_eq!(
        why,
        "failed to open cache file: No such file or directory\n\
         cannot import 'a': no such pool available"
    );
    fs::write(&missing, "no list").unwrap();
    let why = s.run(&format!("zpool import -c {missing}")).fails(1);
    assert_eq!(why, "invalid or corrupt cache file contents: invalid or missing cache file");
    for other in ["-d x", "-s"] {
        let why = s.run(&format!("zpool import -c {copy} {other} a")).fails(2);
        let letter = other.split(' ').next().unwrap();
        assert!(why.starts_with(&format!("-c is incompatible with {letter}\n")), "{why}");
    }
    cenote_testpools::judge(s.dir.path(), "a");
}

/// A crash may come after a change of the guid is in the labels and before it is in the file.
#[test]
fn a_pool_whose_guid_the_file_does_not_know_yet_is_imported() {
    let s = Session::new();
    create(&s, "", "a");
    let before = fs::read(default(&s)).unwrap();
    s.run("zpool reguid -g 4711 a").ok();
    s.run("daemon stop").ok();
    fs::write(default(&s), &before).unwrap();
    s.run(&format!("zpool import -a -c {}", default(&s).display())).ok();
    assert_eq!(s.run("zpool get -Hpo value guid a").ok(), "4711\n");
    let file = CacheFile::read(&default(&s)).unwrap();
    assert_eq!(file.entries().map(|e| e.guid).collect::<Vec<_>>(), [4711]);
    s.run("zpool export a").ok();
    // Another pool in the same place is not meant, whatever its name.
    let disk = disk(&s, "a.img");
    s.run(&format!("zpool create -f -o cachefile=none -m none a {disk}")).ok();
    s.run("zpool export a").ok();
    fs::write(default(&s), &before).unwrap();
    let done = s.run(&format!("zpool import -a -c {}", default(&s).display()));
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.err.contains("one or more devices is currently unavailable"), "{done:?}");
    assert_eq!(s.run("zpool list -H").ok(), "");
    cenote_testpools::judge(s.dir.path(), "a");
}

#[test]
fn a_pool_whose_devices_are_missing_is_named() {
    let s = Session::new();
    create(&s, "", "a");
    let file = s.path("theirs.cache").display().to_string();
    fs::copy(default(&s), &file).unwrap();
    s.run("daemon stop").ok();
    fs::rename(s.path("a.img"), s.path("away")).unwrap();
    let why = "cannot import 'a': one or more devices is currently unavailable";
    // Nothing of the pool is left in the directory: the file alone knows it.
    fs::create_dir(s.path("d")).unwrap();
    fs::rename(s.path("away"), s.path("d/away")).unwrap();
    let listed = s.run(&format!("zpool import -c {file}")).ok();
    assert!(listed.starts_with("  pool: a\n"), "{listed}");
    assert!(listed.contains(" state: UNAVAIL\n") && listed.contains("cannot open"), "{listed}");
    let path = s.path("a.img");
    assert!(listed.contains(&path.file_name().unwrap().to_string_lossy().into_owned()), "{listed}");
    for which in ["-a", "a"] {
        let done = s.run(&format!("zpool import -c {file} {which}"));
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.err.contains(why) && done.out.contains(path.to_str().unwrap()), "{done:?}");
    }
    s.run("daemon stop").ok();

    let log = s.path("log");
    let mut daemon = s
        .command()
        .args(["daemon", "--foreground", "--import"])
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let line = format!("pool 'a' of {} is not imported: UNAVAIL.", default(&s).display());
    while !fs::read_to_string(&log).unwrap().contains(&line) {
        assert!(Instant::now() < end, "{}", fs::read_to_string(&log).unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    // It stays in the file, and is imported once its device is back.
    assert_eq!(names(&default(&s)), ["a"]);
    fs::rename(s.path("d/away"), s.path("a.img")).unwrap();
    s.run(&format!("zpool import -a -c {}", default(&s).display())).ok();
    assert_eq!(s.run("zpool list -Ho name").ok(), "a\n");
    s.run("zpool export a").ok();
    s.run("daemon stop").ok();
    daemon.wait().unwrap();
    cenote_testpools::judge(s.dir.path(), "a");
}

#[test]
fn a_daemon_imports_its_pools_when_it_starts() {
    let s = Session::new();
    create(&s, "", "a");
    create(&s, "-o cachefile=none", "b");
    s.run("daemon stop").ok();
    assert_eq!(names(&default(&s)), ["a"]);
    let notify = s.path("notify");
    let told = std::os::unix::net::UnixDatagram::bind(&notify).unwrap();
    told.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let log = fs::File::create(s.path("log")).unwrap();
    let mut daemon = s
        .command()
        .args(["daemon", "--foreground", "--import"])
        .env("NOTIFY_SOCKET", &notify)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut message = [0; 64];
    let length = told.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"READY=1");
    assert_eq!(s.run("zpool list -Ho name").ok(), "a\n");
    s.run("zpool export a").ok();
    assert!(!default(&s).exists());
    s.run("daemon stop").ok();
    let end = Instant::now() + Duration::from_secs(30);
    while daemon.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "the daemon goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    cenote_testpools::judge(s.dir.path(), "a");
}
