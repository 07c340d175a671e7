//! Tools that people run around ZFS, unchanged, on a pool of ours. `scripts/tools.sh` gets them.
//!
//! The tools run in a mount namespace in which `/usr/sbin/zfs` and `/usr/sbin/zpool` are cenote, since some know
//! no other paths. `docs/tools.md` says which versions were tried, and what they cannot do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;
use common::{can_mount, skip};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools")
}

/// Whether a tool is there, and file systems can be mounted.
fn have(tool: &str) -> bool {
    if !can_mount() {
        return false;
    }
    let there = tools().join(tool).exists();
    if !there {
        skip(&format!("no {tool}: scripts/tools.sh"));
    }
    there
}

/// A mounted pool with two file systems and a file.
fn tank() -> Tank {
    let tank = Tank::new("-O compression=lz4");
    tank.zfs("create tank/data");
    tank.zfs("create tank/data/sub");
    fs::write(tank.path("tank/data/f"), "hello\n").unwrap();
    let bin = tank.session.path("bin");
    fs::create_dir(&bin).unwrap();
    for name in ["zpool", "zfs", "zdb"] {
        symlink(env!("CARGO_BIN_EXE_cenote"), bin.join(name)).unwrap();
    }
    tank
}

/// Runs a line of shell where cenote is `zpool` and `zfs`, and the tools are on the path.
fn try_shell(tank: &Tank, line: &str) -> (i32, String) {
    let tools = tools().canonicalize().unwrap();
    let (bin, here) = (tank.session.path("bin"), tank.session.dir.path());
    let setup = format!(
        "for name in zfs zpool; do\n\
         [ ! -e /usr/sbin/$name ] || mount --bind {cenote} /usr/sbin/$name\n\
         done\n\
         if [ ! -e /usr/share/sanoid ] && [ -e {tools}/debian/usr/share/sanoid ]; then\n\
         mount -t overlay -o lowerdir={tools}/debian/usr/share:/usr/share none /usr/share\n\
         fi\n\
         cd {here}\n{line}\n",
        cenote = env!("CARGO_BIN_EXE_cenote"),
        tools = tools.display(),
        here = here.display(),
    );
    let path = [
        bin.display().to_string(),
        format!("{}/debian/usr/sbin", tools.display()),
        format!("{}/python/bin", tools.display()),
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
    ];
    let mut command = Command::new("unshare");
    command
        .args(["-m", "--propagation", "private", "sh", "-c", &setup])
        .env("PATH", path.join(":"))
        .env("PERL5LIB", tools.join("debian/usr/share/perl5"))
        .env("CENOTE_SOCKET", tank.session.path("socket"))
        .env("HOME", here)
        .env("TZ", "UTC")
        .env("LC_ALL", "C.UTF-8");
    let output = cenote_testpools::output(&mut command);
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text.into_owned())
}

#[track_caller]
fn shell(tank: &Tank, line: &str) -> String {
    let (code, text) = try_shell(tank, line);
    assert_eq!(code, 0, "{line}: {text}");
    text
}

/// Names of snapshots with `part` in their name.
fn snapshots(tank: &Tank, part: &str) -> Vec<String> {
    let all = tank.zfs("list -H -t snapshot -o name -s name");
    all.lines().filter(|name| name.contains(part)).map(String::from).collect()
}

#[test]
fn zfs_auto_snapshot() {
    if !have("debian/usr/sbin/zfs-auto-snapshot") {
        return;
    }
    let tank = tank();
    tank.zfs("set com.sun:auto-snapshot=false tank/data/sub");
    for label in ["one", "two", "three"] {
        // Names end in the minute: other labels are other snapshots.
        let text = shell(&tank, &format!("zfs-auto-snapshot --label={label} --keep=1 //"));
        assert!(text.contains(" created, 0 destroyed, 0 warnings"), "{text}");
    }
    let names = snapshots(&tank, "@zfs-auto-snap_");
    assert_eq!(names.len(), 6, "{names:?}");
    assert!(names.iter().all(|name| !name.contains("/sub@")));
    tank.zfs("snapshot tank/data@zfs-auto-snap_old-2001-01-01-0000");
    // Which is older is told by the second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    shell(&tank, "zfs-auto-snapshot --label=old --keep=1 tank/data");
    assert_eq!(snapshots(&tank, "2001-01-01"), [""; 0]);
    tank.finish();
}

#[test]
fn sanoid() {
    if !have("debian/usr/sbin/sanoid") {
        return;
    }
    let tank = tank();
    let dir = tank.session.path("sanoid");
    fs::create_dir(&dir).unwrap();
    fs::copy(
        tools().join("debian/usr/share/sanoid/sanoid.defaults.conf"),
        dir.join("sanoid.defaults.conf"),
    )
    .unwrap();
    let config = "[tank/data]\nuse_template = few\nrecursive = yes\n\
                  [template_few]\nhourly = 2\ndaily = 1\nmonthly = 0\nyearly = 0\n\
                  autosnap = yes\nautoprune = yes\n";
    fs::write(dir.join("sanoid.conf"), config).unwrap();
    let d = dir.display();
    let sanoid = format!("sanoid --configdir={d} --cache-dir={d}/cache --run-dir={d}/run");
    shell(&tank, &format!("mkdir -p {d}/cache {d}/run; {sanoid} --cron --verbose"));
    assert_eq!(snapshots(&tank, "@autosnap_").len(), 4);
    for (check, said) in [
        ("--monitor-snapshots", "OK: all monitored datasets"),
        ("--monitor-health", "OK ZPOOL tank : ONLINE"),
        ("--monitor-capacity", "OK ZPOOL tank : 0%"),
    ] {
        let text = shell(&tank, &format!("{sanoid} {check}"));
        assert!(text.contains(said), "{check}: {text}");
    }
    let found = shell(&tank, &format!("findoid {}", tank.path("tank/data/f").display()));
    assert!(found.contains("/.zfs/snapshot/autosnap_"), "{found}");
    tank.finish();
}

#[test]
fn zfsnap() {
    if !have("debian/usr/sbin/zfSnap") {
        return;
    }
    if !Path::new("/usr/sbin/zfs").exists() {
        return skip("no /usr/sbin/zfs to stand in for");
    }
    let tank = tank();
    // It asks `zpool status` for scrubs and resilvers.
    shell(&tank, "zfSnap -v -s -S -a 1h -r tank/data");
    assert_eq!(snapshots(&tank, "--1h").len(), 2);
    tank.zfs("snapshot tank/data@2001-01-01_00.00.00--1h");
    shell(&tank, "zfSnap -v -d");
    assert_eq!(snapshots(&tank, "2001-01-01"), [""; 0]);
    assert_eq!(snapshots(&tank, "--1h").len(), 2);
    tank.finish();
}

#[test]
fn python_tools() {
    if !have("python/bin/zfs-autobackup") {
        return;
    }
    let tank = tank();
    tank.zfs("set autobackup:test=true tank/data");
    let text = shell(&tank, "zfs-autobackup test --no-progress --verbose --keep-source 1");
    assert!(text.contains("All operations completed successfully"), "{text}");
    assert_eq!(snapshots(&tank, "@test-").len(), 2);

    let config = "[tank/data]\nhourly = 1\ndaily = 1\nsnap = yes\nclean = yes\n";
    fs::write(tank.session.path("pyznap.conf"), config).unwrap();
    shell(&tank, "pyznap --config pyznap.conf snap");
    assert!(snapshots(&tank, "@pyznap_").len() >= 2);
    let (code, text) = try_shell(&tank, "pyznap --config pyznap.conf snap 2>&1");
    assert!(code == 0 && !text.contains("ERROR"), "{text}");

    shell(
        &tank,
        "bzfs dummy tank/data --recursive --skip-replication --delete-dst-snapshots \
         --include-snapshot-regex '.*hourly.*'",
    );
    assert_eq!(snapshots(&tank, "_hourly"), [""; 0]);
    assert_eq!(snapshots(&tank, "@test-").len(), 2);
    tank.finish();
}

/// Adds a pool that is sent to.
fn backup(tank: &Tank) {
    let disk = tank.session.path("backup");
    fs::File::create(&disk).unwrap().set_len(256 << 20).unwrap();
    let root = "-O canmount=off -O mountpoint=none";
    tank.session.run(&format!("zpool create {root} backup {}", disk.display())).ok();
}

/// Whether the newest snapshot of a dataset is the same on both sides, by its guid.
#[track_caller]
fn assert_same(tank: &Tank, source: &str, target: &str) {
    let newest = |dataset: &str| {
        let list = format!("list -H -t snapshot -o name,guid -s createtxg -d 1 {dataset}");
        let list = tank.zfs(&list);
        let (name, guid) = list.lines().last().unwrap().split_once('\t').unwrap();
        (name.split_once('@').unwrap().1.to_string(), guid.to_string())
    };
    assert_eq!(newest(source), newest(target));
}

fn finish(tank: Tank) {
    tank.session.run("zpool export backup").ok();
    cenote_testpools::judge(tank.session.dir.path(), "backup");
    tank.finish();
}

#[test]
fn syncoid_replicates() {
    if !have("debian/usr/sbin/syncoid") {
        return;
    }
    let tank = tank();
    backup(&tank);
    let syncoid = "syncoid --no-privilege-elevation --compress=none -r tank/data backup/data";
    shell(&tank, syncoid);
    fs::write(tank.path("tank/data/sub/g"), vec![7; 500_000]).unwrap();
    // Names of its snapshots end in the second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    shell(&tank, syncoid);
    assert_same(&tank, "tank/data", "backup/data");
    assert_same(&tank, "tank/data/sub", "backup/data/sub");
    finish(tank);
}

#[test]
fn python_tools_replicate() {
    if !have("python/bin/zfs-autobackup") {
        return;
    }
    let tank = tank();
    backup(&tank);
    tank.zfs("set autobackup:test=true tank/data");
    shell(&tank, "zfs-autobackup test backup --no-progress --verbose");
    fs::write(tank.path("tank/data/g"), vec![7; 500_000]).unwrap();
    // What was written is known once its transaction group is on disk.
    tank.session.run("zpool sync tank").ok();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    shell(&tank, "zfs-autobackup test backup --no-progress --verbose");
    assert_same(&tank, "tank/data", "backup/tank/data");
    assert_eq!(snapshots(&tank, "backup/tank/data@test-").len(), 2);

    tank.zfs("create -u backup/pyznap");
    let config = "[tank/data]\nhourly = 1\nsnap = yes\ndest = backup/pyznap\n";
    fs::write(tank.session.path("pyznap.conf"), config).unwrap();
    shell(&tank, "pyznap --config pyznap.conf snap && pyznap --config pyznap.conf send");
    assert_same(&tank, "tank/data", "backup/pyznap");

    shell(&tank, "bzfs tank/data backup/bzfs --recursive");
    tank.zfs("snapshot -r tank/data@later");
    shell(&tank, "bzfs tank/data backup/bzfs --recursive");
    assert_same(&tank, "tank/data", "backup/bzfs");
    assert_same(&tank, "tank/data/sub", "backup/bzfs/sub");
    finish(tank);
}

#[test]
fn node_exporter() {
    let exporter = "debian/usr/bin/prometheus-node-exporter";
    if !have(exporter) {
        return;
    }
    let tank = tank();
    let figures = tank.session.path("proc/spl");
    fs::create_dir_all(&figures).unwrap();
    let place = figures.display();
    tank.session.run(&format!("tunables mount {place}")).ok();
    let proc = tank.session.path("proc").display().to_string();
    let tool = tools().join(exporter).canonicalize().unwrap();
    let line = format!(
        "{tool} --collector.disable-defaults --collector.zfs --path.procfs={proc} \
         --web.listen-address=127.0.0.1:0 >exporter.log 2>&1 & exporter=$!\n\
         trap 'kill $exporter' EXIT\n\
         for i in $(seq 100); do port=$(sed -n 's/.*127.0.0.1:\\([0-9][0-9]*\\).*/\\1/p' exporter.log | head -n 1)\n\
         [ -n \"$port\" ] && [ \"$port\" != 0 ] && break; sleep 0.1; done\n\
         python3 -c \"import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:$port/metrics').read().decode())\"",
        tool = tool.display(),
    );
    let text = shell(&tank, &line);
    for figure in [
        "node_zfs_arc_hits",
        "node_zfs_arc_size",
        "node_zfs_zil_zil_commit_count",
        "node_zfs_zpool_dataset_nwritten",
    ] {
        assert!(text.lines().any(|line| line.starts_with(figure)), "{figure}: {text}");
    }
    tank.session.run(&format!("tunables unmount {place}")).ok();
    tank.finish();
}

/// The tests of go-zfs, a library of which Docker and others make use, by themselves: they make and destroy a pool.
#[test]
fn go_zfs() {
    if !have("go-zfs/go-zfs.test") {
        return;
    }
    let tank = tank();
    let tool = tools().canonicalize().unwrap().join("go-zfs/go-zfs.test");
    // Its pool is called so, and mounted at the root; the machine's own directories are left alone.
    if Path::new("/test").exists() {
        skip("there is a /test");
        return;
    }
    // One test wants compression to be off by default, as it was before OpenZFS 2.2.
    let which = "^Test([^D]|Di|Datasets)";
    // A daemon in the tool's own mount namespace.
    let line = format!(
        "export CENOTE_SOCKET=$PWD/own; {} -test.v -test.run '{which}'; code=$?\n\
         {} daemon stop; rmdir /test 2>/dev/null; exit $code",
        tool.display(),
        env!("CARGO_BIN_EXE_cenote")
    );
    let (code, text) = try_shell(&tank, &line);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("--- PASS: TestSendSnapshot") && !text.contains("--- FAIL"), "{text}");
    tank.finish();
}
