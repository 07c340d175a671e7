//! Figures as OpenZFS's kstat files, and the tools that read those.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;
use common::{can_mount, skip};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted pool, and the directory of its figures.
fn tank() -> (Tank, PathBuf) {
    let tank = Tank::new("-O compression=off -O recordsize=16K");
    let dir = tank.session.path("figures");
    fs::create_dir(&dir).unwrap();
    tank.session.run(&format!("tunables mount {}", dir.display())).ok();
    let kstat = dir.join("kstat/zfs");
    (tank, kstat)
}

fn finish(tank: Tank) {
    let dir = tank.session.path("figures");
    tank.session.run(&format!("tunables unmount {}", dir.display())).ok();
    tank.finish();
}

/// The figures of a file, and the numbers in its first line.
fn figures(file: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let head: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!((head.len(), head[1], head[2]), (7, "1", "0x01"), "{text}");
    assert_eq!(head[3].parse::<usize>().unwrap(), lines.len() - 2);
    assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["name", "type", "data"]);
    let row = |line: &&str| {
        let mut words = line.splitn(2, ' ');
        let name = words.next().unwrap().to_string();
        let rest = words.next().unwrap().trim_start();
        let (kind, value) = rest.split_once(' ').unwrap();
        assert!(["4", "7"].contains(&kind), "{line}");
        (name, value.trim_start().to_string())
    };
    lines[2..].iter().map(row).collect()
}

fn number(file: &Path, name: &str) -> u64 {
    figures(file)[name].parse().unwrap()
}

/// Drops what the kernel has of a file.
fn read_anew(path: &Path) -> usize {
    let mut file = fs::File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut all = Vec::new();
    file.read_to_end(&mut all).unwrap()
}

#[test]
fn writes_of_intent_logs_are_counted_by_where_their_data_is() {
    if !can_mount() {
        return;
    }
    let (tank, kstat) = tank();
    let n = |of: &BTreeMap<String, String>, name: &str| of[name].parse::<u64>().unwrap();
    let path = tank.path("tank/f");
    fs::write(&path, [1; 1 << 20]).unwrap();
    tank.session.run("zpool sync tank").ok();
    let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Not each commit writes to the log: one beside a group that ends may wait for that.
    let mut logs = |kind: &str, bytes: &[u8]| {
        let (count, sum) = (format!("zil_itx_{kind}_count"), format!("zil_itx_{kind}_bytes"));
        (0..20).any(|_| {
            let before = figures(&kstat.join("zil"));
            file.write_all(bytes).unwrap();
            file.sync_all().unwrap();
            let after = figures(&kstat.join("zil"));
            // How blocks are written is as the last group had it.
            tank.session.run("zpool sync tank").ok();
            n(&after, &count) > n(&before, &count) && n(&after, &sum) > n(&before, &sum)
        })
    };
    assert!(logs("copied", &[7; 3000]));
    tank.zfs("set logbias=throughput tank");
    assert!(logs("indirect", &[8; 160 << 10]));
    drop(file);
    finish(tank);
}

#[test]
fn figures_count_what_is_done() {
    if !can_mount() {
        return;
    }
    let (tank, kstat) = tank();
    let arc = kstat.join("arcstats");
    let before = figures(&kstat.join("zil"));
    let path = tank.path("tank/f");
    let objects = number(&kstat.join("dnodestats"), "dnode_allocate");
    let mut file = fs::File::create(&path).unwrap();
    assert!(number(&kstat.join("dnodestats"), "dnode_allocate") > objects);
    file.write_all(&[7; 300_000]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let after = figures(&kstat.join("zil"));
    let n = |of: &BTreeMap<String, String>, name: &str| of[name].parse::<u64>().unwrap();
    assert!(n(&after, "zil_commit_count") > n(&before, "zil_commit_count"));
    tank.session.run("zpool sync tank").ok();

    // Of the file system: one writer, and what the kernel asked for.
    let objset = fs::read_dir(kstat.join("tank"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(|p| p.file_name().unwrap().to_str().unwrap().starts_with("objset-0x"))
        .unwrap();
    let id: u64 = tank.get("objsetid", "tank").parse().unwrap();
    assert_eq!(objset.file_name().unwrap().to_str().unwrap(), format!("objset-0x{id:x}"));
    assert_eq!(figures(&objset)["dataset_name"], "tank");
    assert_eq!(number(&objset, "nwritten"), 300_000);
    assert!(number(&objset, "writes") >= 1);

    // Through a pool that was just imported all is read from devices, then found.
    let (root, dir) = (tank.session.root(), tank.session.dir.path().display().to_string());
    tank.session.run("zpool export tank").ok();
    assert!(!kstat.join("tank").exists());
    tank.session.run(&format!("zpool import -R {root} -d {dir} tank")).ok();
    let misses = |name: &str| number(&arc, name);
    let (demand, ahead) = (misses("demand_data_misses"), misses("prefetch_data_misses"));
    let looked_for = number(&kstat.join("dnodestats"), "dnode_hold_alloc_hits");
    assert_eq!(read_anew(&path), 300_000);
    assert!(number(&kstat.join("dnodestats"), "dnode_hold_alloc_hits") > looked_for);
    let buffers = figures(&kstat.join("abdstats"));
    assert!(n(&buffers, "linear_data_size") + n(&buffers, "scatter_data_size") >= 300_000);
    assert!(n(&buffers, "linear_cnt") + n(&buffers, "scatter_cnt") > 0);
    let read = misses("demand_data_misses") + misses("prefetch_data_misses") - demand - ahead;
    assert!(read >= 300_000 / (16 << 10), "{read}");
    assert_eq!(number(&objset, "nread"), 300_000);
    let all = figures(&arc);
    let unpacked = figures(&kstat.join("dbufstats"));
    assert!(n(&unpacked, "cache_count") > 0 && n(&unpacked, "cache_size_bytes") >= 512);
    assert!(n(&unpacked, "cache_size_bytes") <= n(&unpacked, "cache_target_bytes"));
    let parts = ["demand_data", "demand_metadata", "prefetch_data", "prefetch_metadata"];
    for what in ["hits", "misses"] {
        let sum: u64 = parts.iter().map(|part| n(&all, &format!("{part}_{what}"))).sum();
        assert_eq!(n(&all, what), sum);
    }
    assert_eq!(
        n(&all, "compressed_size") + n(&all, "overhead_size") + n(&all, "dnode_size"),
        n(&all, "mru_size") + n(&all, "mfu_size") + n(&all, "uncached_size")
    );
    let of_all = ["compressed_size", "overhead_size", "dnode_size", "hdr_size"];
    assert_eq!(n(&all, "size"), of_all.iter().map(|name| n(&all, name)).sum::<u64>());
    assert!(n(&all, "size") <= n(&all, "c") && n(&all, "c") <= n(&all, "c_max"));
    assert!(n(&all, "c_min") <= n(&all, "c") && n(&all, "dnode_size") > 0);
    assert!(n(&all, "memory_all_bytes") > n(&all, "memory_free_bytes"));

    // Of the devices the same as "zpool iostat" knows.
    let io = fs::read_to_string(kstat.join("tank/io")).unwrap();
    let lines: Vec<&str> = io.lines().collect();
    let cells = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    assert_eq!(cells(lines[1])[..4], ["nread", "nwritten", "reads", "writes"]);
    let vdev = tank.session.run("zpool get -Hpo value read_bytes,read_ops tank root").ok();
    let now = cells(lines[2]);
    let vdev: Vec<u64> = vdev.lines().map(|v| v.parse().unwrap()).collect();
    assert!(now[0].parse::<u64>().unwrap() > 0 && now[0].parse::<u64>().unwrap() <= vdev[0]);
    assert!(now[2].parse::<u64>().unwrap() <= vdev[1]);
    assert_eq!(cells(lines[1])[8], "rlentime");
    // A request takes a microsecond at least.
    assert!(now[8].parse::<u64>().unwrap() > 1000 * now[2].parse::<u64>().unwrap(), "{io}");
    let iostats = kstat.join("tank/iostats");
    let written = number(&iostats, "arc_write_bytes");
    fs::write(tank.path("tank/g"), vec![1; 100_000]).unwrap();
    tank.session.run("zpool sync tank").ok();
    assert!(number(&iostats, "arc_write_bytes") >= written + 100_000);
    // Lookups of deduplicated blocks: the first is new, the second is found in the log.
    tank.session.run("zfs set dedup=on tank").ok();
    let ddt = kstat.join("tank/ddt_stats_sha256");
    assert_eq!(number(&ddt, "lookup"), 0);
    for (name, new, existing) in [("h", 1, 0), ("i", 1, 1)] {
        fs::write(tank.path(&format!("tank/{name}")), [7; 5000]).unwrap();
        tank.session.run("zpool sync tank").ok();
        assert_eq!([number(&ddt, "lookup_new"), number(&ddt, "lookup_existing")], [new, existing]);
    }
    assert_eq!([number(&ddt, "lookup_log_hit"), number(&ddt, "log_active_entries")], [1, 1]);
    assert!(number(&kstat.join("dmu_tx"), "dmu_tx_assigned") > 0);
    assert!(fs::read_to_string(kstat.join("tank/reads")).unwrap().contains("UID"));

    // One disk alone is no choice.
    let choices = || {
        let of = figures(&kstat.join("vdev_mirror_stats"));
        n(&of, "preferred_found") + n(&of, "preferred_not_found")
    };
    assert_eq!(choices(), 0);
    let sides = ["m-a", "m-b"].map(|name| tank.session.path(name));
    for side in &sides {
        fs::File::create(side).unwrap().set_len(64 << 20).unwrap();
    }
    let [a, b] = sides.map(|side| side.display().to_string());
    tank.session.run(&format!("zpool create -m none sides mirror {a} {b}")).ok();
    tank.session.run("zpool export sides").ok();
    tank.session.run(&format!("zpool import -N -d {dir} sides")).ok();
    assert!(choices() > 0);
    tank.session.run("zpool export sides").ok();
    finish(tank);
}

/// Reads a file, or writes it, with `O_DIRECT` in one request.
fn directly(path: &Path, write: Option<&[u8]>) -> Vec<u8> {
    use std::os::unix::fs::OpenOptionsExt;
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let mut options = fs::File::options();
    options.custom_flags(direct).read(true).write(write.is_some()).create(write.is_some());
    let mut file = options.open(path).unwrap();
    if let Some(bytes) = write {
        file.write_all(bytes).unwrap();
        return Vec::new();
    }
    let mut bytes = vec![0; 64 << 10];
    let read = file.read(&mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

#[test]
fn direct_requests_pass_by_the_cache() {
    if !can_mount() {
        return;
    }
    const ALL: usize = 64 << 10;
    let (tank, kstat) = tank();
    let (arc, iostats) = (kstat.join("arcstats"), kstat.join("tank/iostats"));
    let path = tank.path("tank/f");
    let counts = || {
        ["read_count", "read_bytes", "write_count", "write_bytes"]
            .map(|name| number(&iostats, &format!("direct_{name}")))
    };
    let misses = || number(&arc, "demand_data_misses") + number(&arc, "prefetch_data_misses");
    let data: Vec<u8> = (0..ALL as u64).map(|i| (i * i / 7 % 251) as u8).collect();
    assert_eq!(counts(), [0; 4]);
    directly(&path, Some(&data));
    assert_eq!(directly(&path, None), data, "what waits for its group is read");
    assert_eq!(counts(), [4, ALL as u64, 4, ALL as u64]);
    tank.session.run("zpool sync tank").ok();
    // Neither the write nor a direct read leaves anything there, and none is a lookup.
    let before = misses();
    for _ in 0..2 {
        assert_eq!(directly(&path, None), data);
    }
    assert_eq!((counts()[0], misses()), (12, before));
    assert_eq!(read_anew(&path), ALL);
    assert_eq!(misses(), before + 4, "nothing was there");
    // What is there is taken from there.
    let reads = || tank.session.run("zpool get -Hpo value read_ops tank root").ok();
    let device = reads();
    assert_eq!(directly(&path, None), data);
    assert_eq!(reads(), device);
    // As any other request.
    tank.zfs("set direct=disabled tank");
    let known = counts();
    directly(&path, Some(&data));
    tank.session.run("zpool sync tank").ok();
    assert_eq!(directly(&path, None), data);
    let before = misses();
    assert_eq!((read_anew(&path), misses()), (ALL, before), "the write has left it there");
    assert_eq!(counts(), known);
    // All requests.
    tank.zfs("set direct=always tank");
    fs::write(tank.path("tank/g"), &data).unwrap();
    assert_eq!(counts()[2..], [8, 2 * ALL as u64]);
    finish(tank);
}

/// Runs a tool where it finds `kstat` and `parameters` under the names that it knows.
fn run_tool(kstat: &Path, line: &str) -> (bool, String) {
    let parameters = kstat.join("../../parameters");
    let script = format!(
        "set -e\n\
         mount -t tmpfs none /proc; mkdir -p /proc/spl/kstat/zfs; mount --bind {} /proc/spl/kstat/zfs\n\
         mount -t tmpfs none /sys; mkdir -p /sys/module/zfs/parameters /sys/module/spl/parameters\n\
         mount --bind {} /sys/module/zfs/parameters\n\
         {line}\n",
        kstat.display(),
        parameters.display()
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
    let output = cenote_testpools::output(&mut command);
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

#[test]
fn arcstat_and_arc_summary_show_them() {
    if !can_mount() {
        return;
    }
    if !Path::new("/usr/sbin/arc_summary").exists() {
        return skip("no arcstat and arc_summary");
    }
    let (tank, kstat) = tank();
    let path = tank.path("tank/f");
    fs::write(&path, vec![7; 2_000_000]).unwrap();
    tank.session.run("zpool sync tank").ok();
    read_anew(&path);
    let (good, text) = run_tool(&kstat, "arcstat -f hits,miss,read,size,c 1 1");
    assert!(good, "{text}");
    let values: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(values.len(), 5, "{text}");
    // Its section "vdev" is about a cache that OpenZFS has not had since 2.2.
    for (section, title) in [
        ("arc", "ARC size (current):"),
        ("archits", "Cache hit ratio:"),
        ("dmu", "DMU prefetch efficiency:"),
        ("l2arc", "L2ARC"),
        ("zil", "ZIL committed transactions:"),
        ("tunables", "zfs_txg_timeout"),
    ] {
        let (good, text) = run_tool(&kstat, &format!("arc_summary -s {section}"));
        assert!(good && text.contains(title), "{section}: {text}");
    }
    finish(tank);
}
