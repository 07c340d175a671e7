//! Pools in object stores, by commands: with a server that speaks S3, and with directories.
//!
//! OpenZFS cannot read such pools. Our own `zdb` accounts for every block, a listing for every object; and what is sent to a pool of files is judged by
//! OpenZFS there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use cenote_teststore::{Fault, Server};
use common::{Done, Session, UNUSED, can_mount};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A daemon that knows the credentials of a server.
struct Host {
    session: Session,
}

impl Host {
    fn new() -> Host {
        Host { session: Session::new() }
    }

    fn run(&self, line: &str) -> Done {
        let mut command = self.session.command();
        command.envs(Server::environment()).args(line.split_whitespace());
        done(&mut command)
    }

    fn shell(&self, line: &str) -> Done {
        let line = line.replace("cenote ", &format!("{} ", env!("CARGO_BIN_EXE_cenote")));
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line]).envs(Server::environment());
        command.env("CENOTE_SOCKET", self.session.path("socket"));
        done(command.current_dir(self.session.dir.path()))
    }

    /// A file for a pool of the session's directory `d`.
    fn file(&self, name: &str) -> String {
        let dir = self.session.path("d");
        fs::create_dir_all(&dir).unwrap();
        fs::File::create(dir.join(name)).unwrap().set_len(256 << 20).unwrap();
        dir.join(name).display().to_string()
    }

    /// The pool goes on, or a suspension is said, within a minute.
    fn until(&self, line: &str, part: &str) -> String {
        let end = Instant::now() + Duration::from_secs(90);
        loop {
            let said = self.run(line);
            if said.out.contains(part) {
                return said.out;
            }
            assert!(Instant::now() < end, "{said:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn done(command: &mut std::process::Command) -> Done {
    let output = cenote_testpools::output(command);
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    common::keys::contents(seed, len)
}

/// Where a pool is mounted.
fn mountpoint(host: &Host) -> PathBuf {
    host.session.path("mnt")
}

/// From its creation to its end: created, used, shown, exported, imported by another host, sent to files, destroyed.
#[test]
fn a_pool_by_network() {
    if !can_mount() {
        return;
    }
    let server = Server::new();
    let (host, device) = (Host::new(), server.device("tank"));
    let mnt = mountpoint(&host);
    let made = format!("zpool create -m {} tank {device}", mnt.display());
    host.run(&made).ok();
    // It is there once.
    let again = host.run(&format!("zpool create -m none other {device}")).fails(1);
    assert!(again.contains("is part of active pool 'tank'") || again.contains("not empty"), "{again}");
    for n in 0..8 {
        fs::write(mnt.join(format!("file {n}")), bytes(n, 400_000)).unwrap();
    }
    host.run("zpool sync tank").ok();
    let status = host.run("zpool status tank").ok();
    assert!(status.contains(&device) && status.contains("objects: "), "{status}");
    assert!(status.contains("errors: No known data errors"), "{status}");
    for (_, secret) in Server::environment() {
        assert!(!status.contains(secret), "{status}");
    }
    let json = host.run("zpool status -j tank").ok();
    assert!(json.contains("\"object_stats\"") && json.contains("\"put_requests\""), "{json}");
    let list = host.run("zpool list -Hp -o name,health,free tank").ok();
    assert!(list.starts_with("tank\tONLINE\t"), "{list}");
    let iostat = host.run("zpool iostat --objects -v tank").ok();
    assert!(iostat.contains("requests") && iostat.contains("put") && iostat.contains(&device), "{iostat}");
    let refused = host.run("zpool iostat --objects -r tank").fails(2);
    assert!(refused.contains("isn't allowed with --objects"), "{refused}");
    let prometheus = host.run("txgs --prometheus tank").ok();
    let puts = "cenote_store_put_requests_total{pool=\"tank\"} ";
    let puts = prometheus.lines().find_map(|line| line.strip_prefix(puts)).unwrap();
    assert!(puts.parse::<u64>().unwrap() > 3, "{puts}");
    assert!(host.run("txgs --fields").ok().contains("cenote_store_live_bytes"));
    assert_eq!(host.run("zpool get -Hp -o value feature@object_vdev tank").ok().trim(), "active");

    fs::remove_file(mnt.join("file 7")).unwrap();
    host.run("zfs snapshot tank@one").ok();
    host.run("zpool scrub -w tank").ok();
    host.run("zpool export tank").ok();
    let bcc = host.run(&format!("zdb -e -p {device} -bcc tank"));
    assert_eq!((bcc.code, bcc.out.contains("No leaks (block sum matches space maps exactly)")), (0, true), "{bcc:?}");
    for line in ["zdb -e -p DEV -m tank", "zdb -e -p DEV -d tank", "zdb -l DEV"] {
        let said = host.run(&line.replace("DEV", &device));
        assert_eq!(said.code, 0, "{line}: {said:?}");
    }

    // Another host, which is told the name alone.
    let second = Host::new();
    let found = second.run(&format!("zpool import -d {device}")).ok();
    assert!(found.contains("pool: tank") && found.contains("ONLINE"), "{found}");
    second.run(&format!("zpool import -R {} -d {device} tank", mnt.display())).ok();
    let there = PathBuf::from(format!("{}{}", mnt.display(), mnt.display()));
    for n in 0..7 {
        assert_eq!(fs::read(there.join(format!("file {n}"))).unwrap(), bytes(n, 400_000));
    }
    // To files, where OpenZFS judges.
    let file = second.file("a");
    second.run(&format!("zpool create -m none files {file}")).ok();
    second.shell("cenote zfs send -Rw tank@one | cenote zfs receive -u files/copy").ok();
    let guid = |name: &str| second.run(&format!("zfs get -Hp -o value guid {name}")).ok();
    assert_eq!(guid("tank@one"), guid("files/copy@one"));
    second.run("zpool export files").ok();
    cenote_testpools::judge(&second.session.path("d"), "files");
    second.run("zpool destroy tank").ok();
    assert_eq!(server.names(), [""; 0]);
    // The place is free.
    second.run(&format!("zpool create -m none tank {device}")).ok();
    second.run("zpool destroy tank").ok();
    assert_eq!(server.names(), [""; 0]);
}

/// With special, log and cache devices besides, in a directory; and a daemon that is stopped and started.
#[test]
fn a_pool_in_a_directory_with_other_devices() {
    if !can_mount() {
        return;
    }
    let host = Host::new();
    let dir = host.session.path("objects");
    fs::create_dir(&dir).unwrap();
    let device = format!("file://{}", dir.display());
    let (special, log, cache) = (host.file("special"), host.file("log"), host.file("cache"));
    let mnt = mountpoint(&host);
    let made = host.run(&format!(
        "zpool create -f -m {} tank {device}/ special {special} log {log}",
        mnt.display()
    ));
    made.ok();
    let added = host.run(&format!("zpool add tank cache {cache}"));
    assert_eq!((added.code, added.err.replace(UNUSED, "").as_str()), (0, ""));
    let more = host.file("more");
    host.run(&format!("zpool add -f tank log {more}")).ok();
    fs::write(mnt.join("file"), bytes(1, 3_000_000)).unwrap();
    fs::File::open(mnt.join("file")).unwrap().sync_all().unwrap();
    let status = host.run("zpool status -P tank").ok();
    for name in [&device, &special, &log, &cache, &more] {
        assert!(status.contains(name.as_str()), "{name}: {status}");
    }
    host.run("zpool export tank").ok();
    let bcc = host.run(&format!("zdb -e -p {device} -p {} -bcc tank", host.session.path("d").display()));
    assert!(bcc.code == 0 && bcc.out.contains("No leaks"), "{bcc:?}");
    let import = format!("zpool import -d {device} -d {} tank", host.session.path("d").display());
    host.run(&import).ok();
    assert_eq!(fs::read(mnt.join("file")).unwrap(), bytes(1, 3_000_000));
    // A log device leaves; the store cannot.
    host.run(&format!("zpool remove tank {more}")).ok();
    let file = host.file("new");
    for (line, part) in [
        (format!("zpool remove tank {device}"), "object store"),
        (format!("zpool attach tank {device} {file}"), "object store"),
        (format!("zpool replace tank {device} {file}"), "object store"),
        (format!("zpool replace tank {log} file://{}/x", dir.display()), ""),
        (format!("zpool add tank {file}"), "the data of the pool is in an object store"),
        (format!("zpool add tank s3://bucket/x?endpoint=http://127.0.0.1:9"), ""),
        ("zpool checkpoint tank".into(), "object store"),
        ("zpool split tank other".into(), ""),
        (format!("zpool offline tank {device}"), "no valid replicas"),
        ("zpool set multihost=on tank".into(), "object store"),
        ("zpool trim tank".into(), ""),
        ("zpool initialize tank".into(), ""),
    ] {
        let said = host.run(&line);
        eprintln!("{line}: {said:?}");
        assert!(said.code != 0 && said.err.contains(part), "{line}: {said:?}");
    }
    assert!(host.run("zpool status -x").ok().contains("all pools are healthy"));
    host.run("zpool destroy tank").ok();
    assert_eq!(fs::read_dir(&dir).unwrap().filter(|e| e.as_ref().unwrap().path().is_file()).count(), 0);
}

/// What a user gets wrong is said at once and by name, and leaves nothing.
#[test]
fn wrong_places_are_named() {
    let server = Server::new();
    let host = Host::new();
    let device = server.device("tank");
    let basket = device.replace("bucket/", "basket/");
    for (name, part) in [
        ("s3://AKID:hunter2@bucket/x", "credentials do not belong"),
        ("s3://bucket/x?secret_access_key=hunter2", "credentials do not belong"),
        ("s3://bucket/x?colour=red", "no option 'colour'"),
        ("ftp://bucket/x", "'ftp://' is no kind of store"),
        ("file://srv/x", "whole path"),
        (basket.as_str(), "the bucket does not exist"),
        ("az://container/x", "has no account"),
    ] {
        let begun = Instant::now();
        for line in [format!("zpool create -m none tank {name}"), format!("zpool import -d {name}")] {
            let said = host.run(&line);
            eprintln!("{line}: {said:?}");
            assert!(said.code != 0 && said.err.contains(part), "{line}: {said:?}");
            assert!(!said.err.contains("hunter2"), "{said:?}");
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{name}: {:?}", begun.elapsed());
    }
    server.inject("*", "tank", u64::MAX, Fault::Answer(403, "AccessDenied"));
    let said = host.run(&format!("zpool create -m none tank {device}")).fails(1);
    assert!(said.contains("the credentials do not permit it"), "{said}");
    server.heal();
    // Refused late: a pool of that name is there by then, or a property is wrong.
    let said = host.run(&format!("zpool create -m none -o feature@nonsense=enabled tank {device}"));
    assert!(said.code != 0, "{said:?}");
    assert_eq!(server.names(), [""; 0]);
    host.run(&format!("zpool create -n tank {device}")).ok();
    assert_eq!(server.names(), [""; 0]);
    // Stranger's objects below the prefix are in the way, and stay.
    let copy = [("tank/letter".to_string(), "dear reader".into())].into_iter().collect();
    server.restore(&copy);
    let said = host.run(&format!("zpool create -f -m none tank {device}")).fails(1);
    assert!(said.contains("letter"), "{said}");
    assert_eq!(server.names(), ["tank/letter"]);
}

/// A second host takes a pool that the first one still has: the first one is told, and writes nothing more.
#[test]
fn a_second_host_fences_the_first() {
    if !can_mount() {
        return;
    }
    let server = Server::new();
    let (first, second, device) = (Host::new(), Host::new(), server.device("tank"));
    let mnt = mountpoint(&first);
    first.run(&format!("zpool create -o failmode=continue -m {} tank {device}", mnt.display())).ok();
    fs::write(mnt.join("kept"), bytes(1, 200_000)).unwrap();
    first.run("zpool sync tank").ok();
    second.run(&format!("zpool import -f -N -d {device} tank")).ok();
    let _ = fs::write(mnt.join("lost"), bytes(2, 200_000));
    let status = first.until("zpool status tank", "SUSPENDED");
    assert!(status.contains("another import has taken over the pool"), "{status}");
    first.run("zpool export -f tank");
    second.run("zfs create tank/new").ok();
    second.run("zpool export tank").ok();
    let bcc = second.run(&format!("zdb -e -p {device} -bcc tank"));
    assert!(bcc.code == 0 && bcc.out.contains("No leaks"), "{bcc:?}");
    second.run(&format!("zpool labelclear {device}")).fails(1);
    assert!(server.names().len() > 1);
    second.run(&format!("zpool labelclear -f {device}")).ok();
    assert_eq!(server.names(), [""; 0]);
}
