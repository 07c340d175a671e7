//! Pools in object stores, by commands: with a server that speaks S3, and with directories.
//!
//! OpenZFS cannot read such pools. Our own `zdb` accounts for every block, a listing for every object; and what is sent to a pool of files is judged by
//! OpenZFS there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use cenote_objects::{Address, Environment, Space, Tunables, connect};
use cenote_teststore::{Fault, Server};
use common::{Done, Session, can_mount};
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
    assert!(
        again.contains("is part of active pool 'tank'") || again.contains("not empty"),
        "{again}"
    );
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
    assert!(
        iostat.contains("requests") && iostat.contains("put") && iostat.contains(&device),
        "{iostat}"
    );
    let refused = host.run("zpool iostat --objects -r tank").fails(2);
    assert!(refused.contains("isn't allowed with --objects"), "{refused}");
    let prometheus = host.run("txgs --prometheus tank").ok();
    let puts = "cenote_store_put_requests_total{pool=\"tank\"} ";
    let puts = prometheus.lines().find_map(|line| line.strip_prefix(puts)).unwrap();
    assert!(puts.parse::<u64>().unwrap() > 3, "{puts}");
    assert!(host.run("txgs --fields").ok().contains("cenote_store_live_bytes"));

    fs::remove_file(mnt.join("file 7")).unwrap();
    host.run("zfs snapshot tank@one").ok();
    host.run("zpool scrub -w tank").ok();
    host.run("zpool export tank").ok();
    let bcc = host.run(&format!("zdb -e -p {device} -bcc tank"));
    assert_eq!(
        (bcc.code, bcc.out.contains("No leaks (block sum matches space maps exactly)")),
        (0, true),
        "{bcc:?}"
    );
    for line in ["zdb -e -p DEV -m tank", "zdb -e -p DEV -d tank", "zdb -l DEV"] {
        let said = host.run(&line.replace("DEV", &device));
        assert_eq!(said.code, 0, "{line}: {said:?}");
        // What keeps OpenZFS from importing it.
        assert!(!line.contains("-l") || said.out.contains("org.cenote:object_vdev"), "{said:?}");
    }

    audit(&server, "tank");

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
    assert_eq!((added.code, added.err.as_str()), (0, ""));
    let more = host.file("more");
    host.run(&format!("zpool add -f tank log {more}")).ok();
    fs::write(mnt.join("file"), bytes(1, 3_000_000)).unwrap();
    fs::File::open(mnt.join("file")).unwrap().sync_all().unwrap();
    let status = host.run("zpool status -P tank").ok();
    for name in [&device, &special, &log, &cache, &more] {
        assert!(status.contains(name.as_str()), "{name}: {status}");
    }
    host.run("zpool export tank").ok();
    let bcc =
        host.run(&format!("zdb -e -p {device} -p {} -bcc tank", host.session.path("d").display()));
    assert!(bcc.code == 0 && bcc.out.contains("No leaks"), "{bcc:?}");
    let import = format!("zpool import -d {device} -d {} tank", host.session.path("d").display());
    host.run(&import).ok();
    assert_eq!(fs::read(mnt.join("file")).unwrap(), bytes(1, 3_000_000));
    // A log device leaves; the store cannot.
    host.run(&format!("zpool remove tank {more}")).ok();
    let (file, mut wrong) = (host.file("new"), Vec::new());
    let other = host.session.path("other");
    fs::create_dir(&other).unwrap();
    for (line, part) in [
        (format!("zpool remove tank {device}"), "operation not supported"),
        (
            format!("zpool attach tank {device} {file}"),
            "an object store is not mirrored or replaced",
        ),
        (
            format!("zpool replace tank {device} {file}"),
            "an object store is not mirrored or replaced",
        ),
        (
            format!("zpool replace tank {log} file://{}", other.display()),
            "can be given to new pools only",
        ),
        (format!("zpool add tank {file}"), "the data of the pool is in an object store"),
        (format!("zpool add tank file://{}", other.display()), "can be given to new pools only"),
        ("zpool checkpoint tank".into(), "object store"),
        ("zpool split tank other".into(), "Source pool must be composed only of mirrors"),
        (format!("zpool offline tank {device}"), "no valid replicas"),
        ("zpool set multihost=on tank".into(), "object store"),
        (format!("zpool trim tank {device}"), "cannot trim"),
        (format!("zpool initialize tank {device}"), "cannot initialize"),
    ] {
        let said = host.run(&line);
        if said.code == 0 || !said.err.contains(part) {
            wrong.push(format!("{line}: {said:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(host.run("zpool status -x").ok().contains("all pools are healthy"));
    host.run("zpool destroy tank").ok();
    // Nothing is left, and the directory can be used again.
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    host.run(&format!("zpool create -m none tank {device}")).ok();
    assert!(fs::read_dir(&dir).unwrap().count() > 0);
    // Not below it.
    let within = dir.join("within");
    fs::create_dir(&within).unwrap();
    let said = host.run(&format!("zpool create -m none other file://{}", within.display()));
    assert!(said.code != 0 && said.err.contains("which a pool has for itself"), "{said:?}");
    fs::remove_dir(&within).unwrap();
    host.run("zpool destroy tank").ok();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    // What is no pool's is not deleted.
    fs::write(dir.join("photo"), "of a heron").unwrap();
    let said = host.run(&format!("zpool labelclear -f {device}")).fails(255);
    assert!(said.contains("failed to clear label"), "{said}");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
}

/// Special and log devices of such a pool are replaced, mirrored and detached as those of others, by hand and by themselves.
#[test]
fn other_devices_are_replaced_and_mirrored() {
    let host = Host::new();
    let dir = host.session.path("objects");
    fs::create_dir(&dir).unwrap();
    let [a, b, c, d, log, second] = ["a", "b", "c", "d", "log", "second"].map(|n| host.file(n));
    host.run("daemon").ok();
    host.run("tunables set zfs_txg_timeout=1").ok();
    host.run(&format!(
        "zpool create -f -o autoreplace=on -m none tank file://{} special mirror {a} {b} log {log}",
        dir.display()
    ))
    .ok();
    host.run("zfs create tank/one").ok();
    host.run(&format!("zpool replace -w tank {a} {c}")).ok();
    host.run(&format!("zpool attach -w tank {log} {second}")).ok();
    host.run(&format!("zpool detach tank {log}")).ok();
    host.run(&format!("zpool attach -w tank {b} {d}")).ok();
    let status = host.run("zpool status -P tank").ok();
    for (name, is_there) in [(&a, false), (&b, true), (&c, true), (&d, true), (&second, true)] {
        assert_eq!(status.contains(&format!("{name} ")), is_there, "{name}: {status}");
    }
    host.run(&format!("zpool detach tank {d}")).ok();
    // One that is lost is replaced by a blank one at its place.
    fs::remove_file(&b).unwrap();
    host.run("zpool set comment=lost tank").ok();
    host.until("zpool status tank", "DEGRADED");
    host.file("new");
    fs::rename(host.session.path("d").join("new"), &b).unwrap();
    host.until("zpool events -v", "resource.fs.zfs.autoreplace");
    host.run("zpool wait tank").ok();
    let events = host.run("zpool events -v").ok();
    assert!(!events.contains("autoreplace_refused"), "{events}");
    host.until("zpool status tank", " state: ONLINE");
    host.run("zpool scrub -w tank").ok();
    assert!(host.run("zpool status tank").ok().contains("scrub repaired 0B"));
    host.run("zpool export tank").ok();
    let bcc = host.run(&format!(
        "zdb -e -p file://{} -p {} -bcc tank",
        dir.display(),
        host.session.path("d").display()
    ));
    assert!(bcc.code == 0 && bcc.out.contains("No leaks"), "{bcc:?}");
}

/// What a user gets wrong is said at once and by name, and leaves nothing.
#[test]
fn wrong_places_are_named() {
    let server = Server::new();
    let host = Host::new();
    let device = server.device("tank");
    let (basket, mut wrong) = (device.replace("bucket/", "basket/"), Vec::new());
    for (name, part) in [
        ("s3://AKID:hunter2@bucket/x", "credentials do not belong"),
        ("s3://bucket/x?secret_access_key=hunter2", "credentials do not belong"),
        ("s3://bucket/x?colour=red", "no option 'colour'"),
        ("ftp://bucket/x", "'ftp://' is no kind of store"),
        ("file://srv/x", "whole path"),
        (basket.as_str(), "the bucket does not exist"),
        ("az://container/x", "has no account"),
        ("s3://bucket/x?endpoint=http://h:99999", "not the address of a server"),
        ("s3://bucket/x?endpoint=http://a::b", "not the address of a server"),
        ("gs://bucket/x?endpoint=http://192.0.2.1:9", "begins with https://"),
        ("az://container/x?account=a&endpoint=http://192.0.2.1:9", "begins with https://"),
    ] {
        let begun = Instant::now();
        for line in ["create -m none tank", "import -d", "labelclear"] {
            let line = format!("zpool {line} {name}");
            let said = host.run(&line);
            let (named, tells) = (said.err.contains(part), said.err.contains("hunter2"));
            let slow = begun.elapsed() > Duration::from_secs(10);
            // A search that finds nothing is no failure, where there is a place to look at.
            let is_place =
                ["does not exist", "no account", "begins with"].iter().any(|p| part.contains(p));
            let failed = said.code != 0 || is_place && line.contains("import");
            if !failed || !named || tells || slow {
                wrong.push(format!("{line}: {said:?} {:?}", begun.elapsed()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
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
    // A folder that was made beforehand is nothing.
    server.restore(&[("tank/".to_string(), "".into())].into());
    host.run(&format!("zpool create -m none tank {device}")).ok();
    // Below a pool there is no other one.
    let said =
        host.run(&format!("zpool create -m none other {}", server.device("tank/x/y"))).fails(1);
    assert!(said.contains("lies below s3://bucket/tank?") && said.contains("for itself"), "{said}");
    host.run("zpool destroy tank").ok();
    assert_eq!(server.names(), ["tank/"]);
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
    first
        .run(&format!("zpool create -o failmode=continue -m {} tank {device}", mnt.display()))
        .ok();
    fs::write(mnt.join("kept"), bytes(1, 200_000)).unwrap();
    first.run("zpool sync tank").ok();
    // Another system is told who had it last; nothing is done to the first one.
    let other = second.shell("ZFS_HOSTID=1234abcd cenote daemon");
    assert_eq!(other.code, 0, "{other:?}");
    let said = second.run(&format!("zpool import -N -d {device} tank")).fails(1);
    assert!(said.contains("previously in use from another system"), "{said}");
    fs::write(mnt.join("kept too"), bytes(2, 200_000)).unwrap();
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

/// The store is away for longer than requests are tried, the daemon is killed, objects of a group that never ended are left: nothing that was
/// acknowledged is lost, and nothing is left over in the end.
#[test]
fn an_outage_and_a_crash() {
    if !can_mount() {
        return;
    }
    let server = Server::new();
    let (host, device) = (Host::new(), server.device("tank"));
    let mnt = mountpoint(&host);
    // Quick times are for what is opened afterwards.
    host.run("daemon").ok();
    host.run("tunables set object_budget_ms=1500 object_grace=0 object_bytes=65536").ok();
    host.run(&format!("zpool create -m {} tank {device}", mnt.display())).ok();
    fs::write(mnt.join("a"), bytes(1, 500_000)).unwrap();
    host.run("zpool sync tank").ok();
    // Once or twice is nothing to anybody.
    for fault in [Fault::Answer(503, "SlowDown"), Fault::Reset, Fault::ResetAfter, Fault::Half] {
        server.inject("*", "tank", 3, fault);
    }
    fs::write(mnt.join("b"), bytes(2, 500_000)).unwrap();
    host.run("zpool sync tank").ok();
    assert!(server.met() >= 4);
    server.heal();
    assert!(host.run("zpool status -x").ok().contains("all pools are healthy"));

    server.inject("*", "tank", u64::MAX, Fault::Answer(503, "SlowDown"));
    fs::write(mnt.join("c"), bytes(3, 500_000)).unwrap();
    let mut sync = host.session.command().args(["zpool", "sync", "tank"]).spawn().unwrap();
    let status = host.until("zpool status tank", "SUSPENDED");
    assert!(status.contains("the store does not serve it"), "{status}");
    server.heal();
    let end = Instant::now() + Duration::from_secs(60);
    while host.run("zpool clear tank").code != 0
        || host.run("zpool status tank").out.contains("SUSPENDED")
    {
        assert!(Instant::now() < end, "{:?}", host.run("zpool status tank"));
        std::thread::sleep(Duration::from_millis(300));
    }
    let _ = sync.wait();
    fs::File::open(mnt.join("c")).unwrap().sync_all().unwrap();
    let figures = host.session.path("figures");
    fs::create_dir(&figures).unwrap();
    host.run(&format!("tunables mount {}", figures.display())).ok();
    let kstat = fs::read_to_string(figures.join("kstat/zfs/tank/objects")).unwrap();
    let retries = kstat.lines().find(|line| line.starts_with("put_retries ")).unwrap();
    assert!(!retries.ends_with(" 0"), "{kstat}");
    host.run(&format!("tunables unmount {}", figures.display())).ok();

    let cache = host.session.path("cache");
    host.run(&format!("zpool set cachefile={} tank", cache.display())).ok();
    // What is being written when the host dies is lost; what was synced is not.
    fs::write(mnt.join("d"), bytes(4, 2_000_000)).unwrap();
    let daemon = host.session.daemon().unwrap();
    let pid = rustix::process::Pid::from_raw(daemon).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while rustix::process::test_kill_process(pid).is_ok() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = std::process::Command::new("umount").arg("-l").arg(&mnt).output();
    let second = Host::new();
    second.run("daemon").ok();
    second.run("tunables set object_grace=0").ok();
    let there = mountpoint(&second);
    // A cache file has the whole name.
    second.run(&format!("zpool import -f -N -c {} tank", cache.display())).ok();
    second.run(&format!("zfs set mountpoint={} tank", there.display())).ok();
    second.run("zfs mount -a");
    for (name, seed) in [("a", 1), ("b", 2), ("c", 3)] {
        assert_eq!(fs::read(there.join(name)).unwrap(), bytes(seed, 500_000), "{name}");
    }
    fs::remove_file(there.join("a")).unwrap();
    second.run("zpool export tank").ok();
    let bcc = second.run(&format!("zdb -e -p {device} -bcc tank"));
    assert!(bcc.code == 0 && bcc.out.contains("No leaks"), "{bcc:?}");
    audit(&server, "tank");
}

/// What is on the server is what the last root names, once what is garbage was deleted.
fn audit(server: &Server, prefix: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let address = Address::parse(&server.device(prefix)).unwrap();
        let store = connect(&address, &Environment::of(&Server::environment())).unwrap();
        let tunables = Tunables { grace: Duration::ZERO, ..Tunables::default() };
        let found = Space::look(store, Default::default(), tunables).await.unwrap();
        let space = found.open("the test").await.unwrap();
        space.sweep().await.unwrap();
        space.tidy().await;
        let audit = space.audit().await.unwrap();
        assert!(audit.missing.is_empty() && audit.left.is_empty(), "{audit:?}");
    });
}

/// A destruction that is interrupted says so, by its code as well, and goes on with the command that it names; what cannot be opened is deleted so too.
#[test]
fn what_is_left_of_a_pool_is_deleted() {
    let server = Server::new();
    let (host, device) = (Host::new(), server.device("tank"));
    host.run("daemon").ok();
    host.run("tunables set object_budget_ms=1500 object_bytes=65536").ok();
    let create = format!("zpool create -O compression=off -m none tank {device}");
    host.run(&create).ok();
    server.inject("DELETE", "tank", u64::MAX, Fault::Answer(503, "SlowDown"));
    let said = host.run("zpool destroy tank").fails(1);
    assert!(said.contains("not all of its objects are deleted"), "{said}");
    assert_eq!(host.run("zpool list -H -o name").ok(), "");
    server.heal();
    assert!(server.names().len() > 1);
    host.run(&format!("zpool labelclear -f {device}")).ok();
    assert_eq!(server.names(), [""; 0]);
    // The pool's root is damaged; then another file has the root's name.
    host.run(&create).ok();
    let mut copy = server.copy();
    host.run(&format!("zpool labelclear -f {device}")).fails(1);
    host.run("zpool export tank").ok();
    let mut root = copy["tank/commit"].to_vec();
    root[2] ^= 0x10;
    copy.insert("tank/commit".into(), root.into());
    server.restore(&copy);
    let said = host.run(&format!("zpool labelclear {device}")).fails(1);
    assert!(said.contains("use '-f' to override") && said.contains("cannot be opened"), "{said}");
    assert_eq!(server.names().len(), copy.len());
    host.run(&format!("zpool labelclear -f {device}")).ok();
    assert_eq!(server.names(), [""; 0]);
    let letter = ("tank/commit".to_string(), "dear reader".into());
    server.restore(&[letter].into());
    host.run(&format!("zpool labelclear -f {device}")).fails(1);
    assert_eq!(server.names(), ["tank/commit"]);
}

/// A label names a store by network: an import sends that store no request.
#[test]
fn a_label_has_no_store_asked() {
    let (server, host) = (Server::new(), Host::new());
    let (disk, special) = (host.file("a"), host.file("b"));
    let device = server.device("tank");
    host.run(&format!("zpool create -f -m none tank {device} special {special}")).ok();
    host.run("zpool export tank").ok();
    fs::remove_file(&disk).unwrap();
    let requests = server.requests();
    let dir = host.session.path("d").display().to_string();
    let found = host.run(&format!("zpool import -d {dir}"));
    assert!(found.out.contains("pool: tank"), "{found:?}");
    host.run(&format!("zpool import -N -d {dir} tank")).fails(1);
    assert_eq!(server.requests(), requests);
    host.run(&format!("zpool import -N -d {dir} -d {device} tank")).ok();
    host.run("zpool destroy tank").ok();
}

/// A pool whose store is away is left out where no network is needed, keeps no others waiting there, and is told of by its cause elsewhere.
#[test]
fn a_store_that_is_away_keeps_no_local_pool_waiting() {
    let (server, host) = (Server::new(), Host::new());
    let (disk, device) = (host.file("a"), server.device("tank"));
    let cache = host.session.path("cache").display().to_string();
    let create = format!("zpool create -o cachefile={cache} -m none");
    host.run(&format!("{create} local {disk}")).ok();
    host.run(&format!("{create} tank {device}")).ok();
    fs::copy(&cache, host.session.path("kept")).unwrap();
    host.run("zpool export -a").ok();
    server.inject("*", "tank", u64::MAX, Fault::Answer(403, "AccessDenied"));
    let kept = host.session.path("kept").display().to_string();
    let requests = server.requests();
    let begun = Instant::now();
    host.run(&format!("zpool import -a --local -N -c {kept}")).ok();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(
        (host.run("zpool list -H -o name").ok().as_str(), server.requests()),
        ("local\n", requests)
    );
    host.run("zpool export local").ok();
    let said = host.run(&format!("zpool import -a -N -c {kept}"));
    assert!(said.err.contains("the credentials do not permit it"), "{said:?}");
    assert_eq!(host.run("zpool list -H -o name").ok(), "local\n");
    server.heal();
    host.run(&format!("zpool import -a -N -c {kept}")).ok();
    assert_eq!(host.run("zpool list -H -o name").ok(), "local\ntank\n");
    host.run("zpool destroy tank").ok();
    host.run("zpool export local").ok();
    cenote_testpools::judge(&host.session.path("d"), "local");
}

/// Where a pool is its name says, whole: variables that are set later move it nowhere.
#[test]
fn a_name_is_whole() {
    let server = Server::new();
    let host = Host::new();
    let (endpoint, device) = (server.endpoint(), server.device("tank"));
    let variables = format!("AWS_ENDPOINT_URL={endpoint} ");
    host.shell(&format!("{variables} cenote zpool create -m none tank s3://bucket/tank")).ok();
    let path = host.run("zpool list -vHP -o name tank").ok();
    assert!(path.contains(&device), "{path}");
    host.run("zpool export tank").ok();
    host.run("daemon stop").ok();
    let other = Server::new();
    let elsewhere = format!("AWS_ENDPOINT_URL={} AWS_REGION=eu-central-1", other.endpoint());
    let import = format!("{elsewhere} cenote zpool import -N -d '{device}' tank");
    host.shell(&import).ok();
    assert_eq!(other.requests().len(), 0);
    host.run("zpool destroy tank").ok();
    assert_eq!(server.names(), [""; 0]);
}
