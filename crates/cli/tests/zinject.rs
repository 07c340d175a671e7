//! Faults that an administrator injects: alarms go off where they should, and all is well once the handlers are gone. OpenZFS's
//! `zdb` judges what is left. Where it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Session, can_mount};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

const NONE: &str = "No handlers registered.\nRun 'zinject -h' for usage information.\n";

/// (state, read, write, checksum errors) of a device.
fn shown(s: &Session, name: &str) -> (String, u64, u64, u64) {
    let text = s.run("zpool status -p tank").ok();
    let path = s.path(name).display().to_string();
    let line = text.lines().find(|l| l.trim_start().starts_with(&path)).unwrap().to_string();
    let words: Vec<&str> = line.split_whitespace().collect();
    let n = |i: usize| words[i].parse().unwrap();
    (words[1].to_string(), n(2), n(3), n(4))
}

/// The matches and injections of the only handler.
fn counts(s: &Session) -> (u64, u64) {
    let text = s.run("zinject").ok();
    let rows: Vec<&str> =
        text.lines().filter(|l| l.trim_start().starts_with(|c: char| c.is_ascii_digit())).collect();
    assert_eq!(rows.len(), 1, "{text}");
    let words: Vec<&str> = rows[0].split_whitespace().rev().collect();
    (words[1].parse().unwrap(), words[0].parse().unwrap())
}

/// A mirror `tank` of `a` and `b`, mounted, with a file.
fn tank(s: &Session) -> String {
    for name in ["a", "b"] {
        File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    let (a, b, root) = (s.path("a"), s.path("b"), s.root());
    let (a, b) = (a.display(), b.display());
    s.run(&format!("zpool create -R {root} -O compression=off tank mirror {a} {b}")).ok();
    let file = format!("{root}/tank/letter");
    fs::write(&file, vec![7; 300_000]).unwrap();
    s.run("zpool sync tank").ok();
    file
}

fn judge(s: &Session) {
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

#[test]
fn handlers_are_listed_and_removed() {
    let s = Session::mirror();
    assert_eq!(s.run("zinject").ok(), NONE);
    let a = s.path("a").display().to_string();
    let said = s.run(&format!("zinject -d {a} -e io -T read -f 50 tank")).ok();
    let vdev = said.lines().find_map(|l| l.strip_prefix("  vdev: ")).unwrap().to_string();
    assert_eq!(
        said,
        format!(
            "Added handler 1 with the following properties:\n  pool: tank\n  vdev: {vdev}\niotype: read\n"
        )
    );
    assert_eq!(s.run(&format!("zinject -q -d {a} -D 25:2 tank")).ok(), "2\n");
    let said = s.run("zinject -b 36:2:0:1f tank").ok();
    assert!(
        said.ends_with(
            "objset: 54\nobject: 2\n  type: 0\n level: 0\n range: [31, 31)\n  dvas: 0x0\n"
        ),
        "{said}"
    );
    s.run("zinject -t spacemap -f 0.0001 tank").ok();
    s.run("zinject -P export -s 1 tank").ok();
    let list = s.run("zinject").ok();
    for line in [
        " ID  POOL             GUID              TYPE   ERROR       FREQ       MATCH   INJECT"
            .to_string(),
        format!("  1  tank             {vdev}  read   io           50.0000%"),
        " ID  POOL             GUID              DELAY (ms)  LANES  FREQ       MATCH   INJECT"
            .into(),
        format!("  2  tank             {vdev}          25      2  100.0000%"),
        "  3  tank             54      2       -         0    0x00  [31, 31]".into(),
        "  4  tank             0       0       spacemap  0    0x00  [0, 0]".into(),
        "  5  tank                 1            export".into(),
    ] {
        assert!(list.contains(&line), "{line}\n{list}");
    }
    assert_eq!(s.run("zinject -c 2").ok(), "removed handler 2\n");
    let gone = s.run("zinject -c 2").fails(1);
    assert_eq!(gone, "failed to remove handler 2: No such file or directory");
    assert_eq!(s.run("zinject -c all").ok(), "removed all registered handlers\n");
    assert_eq!(s.run("zinject").ok(), NONE);
    assert_eq!(s.run("zinject -c all").ok(), "removed all registered handlers\n");
    // With the pool its handlers go.
    s.run(&format!("zinject -d {a} -e io -T read tank")).ok();
    s.run("zpool export tank").ok();
    assert_eq!(s.run("zinject").ok(), NONE);
    s.run(&format!("zpool import -N -d {} tank", s.dir.path().display())).ok();
    s.run("zpool scrub -w tank").ok();
    assert_eq!(shown(&s, "a"), ("ONLINE".into(), 0, 0, 0));
    judge(&s);
}

#[test]
fn what_is_wrong_is_said() {
    let s = Session::mirror();
    let a = s.path("a").display().to_string();
    // Mistakes of code 1 after which the usage is shown; after those of code 2 it always is.
    let with_usage = ["-d X -D 10:1 -T flush tank", "-c x", "-t data f"];
    for (line, code, said) in [
        ("-d X -e io nonsense", 1, "cannot open 'nonsense': no such pool"),
        ("-d /nothing -e io tank", 1, "cannot find device '/nothing' in pool 'tank'"),
        ("-d mirror-0 -e io tank", 1, "cannot inject into 'mirror-0': it is not a single device"),
        ("-d X -e checksum tank", 1, "device error type must be 'io', 'nxio' or 'corrupt'"),
        (
            "-d X -e corrupt tank",
            1,
            "device corrupt errors require io type read and a frequency value",
        ),
        ("-d X -t data tank", 2, "device (-d) incompatible with data error injection"),
        ("-d X", 2, "device (-d) injection requires a single pool name"),
        ("-d X -D 10:1 -T flush tank", 1, "I/O type for a delay must be 'read' or 'write'"),
        ("-d X -D 10:0 tank", 1, "failed to add handler: Invalid argument"),
        (
            "-d X -D 10:1 -e io tank",
            2,
            "delay (-D) incompatible with an error (-e) and with labels (-L)",
        ),
        (
            "-d X -L uber -f 5 tank",
            2,
            "labels (-L) incompatible with an I/O type (-T) and a frequency (-f)",
        ),
        ("-d X -L uber -e dtl tank", 1, "label error type must be 'io' or 'nxio'"),
        ("-c all tank", 2, "extraneous argument to '-c'"),
        ("-c x", 1, "invalid handle id 'x': must be an integer or 'all'"),
        (
            "-b 1:2:3 tank",
            1,
            "bad raw spec '1:2:3': must be of the form 'objset:object:level:blkid'",
        ),
        ("-b 1:2:0:3 nonsense", 1, "failed to add handler: No such file or directory"),
        ("-t data -e nxio /f", 1, "data error type must be 'checksum' or 'io'"),
        ("-t data f", 1, "invalid object 'f': must be full path"),
        ("-t mos nonsense", 1, "failed to add handler: No such file or directory"),
        ("-t dnode -r 0,1 tank:1", 1, "range cannot be specified when type is 'dnode'"),
        (
            "-t data -l 9 tank:1",
            1,
            "failed to add handler: block level exceeds max level of object",
        ),
        ("-P import -s 1 tank", 1, "failed to add handler: pool already imported"),
        ("-P export -s 1 nonsense", 1, "failed to add handler: No such file or directory"),
        ("-s 3 tank", 2, "-s or -g meaningless without -I (ignore writes)"),
        ("-q", 2, "at least one of '-b', '-d', '-t', '-a', '-p', '-I' or '-u' must be specified"),
        ("-a tank", 2, "extraneous argument for '-f'"),
    ] {
        let done = s.run(&format!("zinject {}", line.replace('X', &a)));
        assert_eq!((done.code, done.err.trim_end()), (code, said), "{line}");
        let usage = code == 2 || with_usage.contains(&line);
        assert_eq!((done.out.contains("usage:"), done.out.is_empty()), (usage, !usage), "{line}");
    }
    assert_eq!(s.run("zinject").ok(), NONE);
    assert!(s.run("zinject -h").ok().starts_with("usage:"));
    judge(&s);
}

/// Scrubs the pool. What a device missed is given to it before: a resilver takes the place of a scrub.
fn scrub(s: &Session) {
    for _ in 0..10 {
        s.run("zpool wait -t resilver tank").ok();
        let begun = s.run("zpool scrub -w tank");
        if begun.code == 0 && s.run("zpool status tank").ok().contains("scrub repaired") {
            return;
        }
    }
    panic!("no scrub comes to its end");
}

/// Errors count at the device that has them, and at no other.
#[test]
fn errors_of_a_device_are_its_own() {
    let s = Session::mirror();
    let (a, b) = (s.path("a").display().to_string(), s.path("b").display().to_string());
    s.run("zpool set io_n=1000 tank mirror-0").ok();
    s.run("zpool set checksum_n=1000 tank mirror-0").ok();
    s.run(&format!("zinject -d {a} -e io -T read tank")).ok();
    scrub(&s);
    let (matched, injected) = counts(&s);
    assert!(matched > 0 && matched == injected);
    let (state, reads, writes, wrong) = shown(&s, "a");
    assert!(
        state == "ONLINE" && reads > 0 && (writes, wrong) == (0, 0),
        "{reads} {writes} {wrong}"
    );
    assert_eq!(shown(&s, "b"), ("ONLINE".into(), 0, 0, 0));
    s.run("zinject -c all").ok();
    s.run("zpool clear tank").ok();
    // Wrong bits are checksum errors, and mended.
    s.run(&format!("zinject -d {b} -e corrupt -T read -f 100 tank")).ok();
    // A scrub reads blocks that lie close together with what is between them, where a wrong bit spoils no block.
    for _ in 0..20 {
        scrub(&s);
        if shown(&s, "b").3 > 0 {
            break;
        }
    }
    let (state, reads, writes, wrong) = shown(&s, "b");
    assert!(
        state == "ONLINE" && wrong > 0 && (reads, writes) == (0, 0),
        "{reads} {writes} {wrong}"
    );
    assert_eq!(shown(&s, "a"), ("ONLINE".into(), 0, 0, 0));
    s.run("zinject -c all").ok();
    s.run("zpool clear tank").ok();
    // Writes that fail leave the device behind, and the other one has all.
    s.run(&format!("zinject -d {a} -e io-prefail -T write tank")).ok();
    s.run("zfs create tank/one").ok();
    assert!(shown(&s, "a").2 > 0);
    assert_eq!(shown(&s, "b"), ("ONLINE".into(), 0, 0, 0));
    s.run("zinject -c all").ok();
    s.run("zpool clear tank").ok();
    s.run("zpool wait -t resilver tank").ok();
    scrub(&s);
    for name in ["a", "b"] {
        assert_eq!(shown(&s, name), ("ONLINE".into(), 0, 0, 0));
    }
    judge(&s);
}

/// Errors of a device that joined after the import are too many when those of others are.
#[test]
fn a_device_that_joined_is_diagnosed() {
    let s = Session::mirror();
    File::create(s.path("c")).unwrap().set_len(128 << 20).unwrap();
    let (b, c) = (s.path("b").display().to_string(), s.path("c").display().to_string());
    s.run(&format!("zpool replace -w tank {b} {c}")).ok();
    s.run(&format!("zinject -d {c} -e corrupt -T read -f 100 tank")).ok();
    let mut found = 0;
    while found < 20 {
        scrub(&s);
        found = shown(&s, "c").3;
    }
    assert_eq!(shown(&s, "c").0, "DEGRADED");
    s.run("zinject -c all").ok();
    s.run("zpool clear tank").ok();
    scrub(&s);
    assert_eq!(shown(&s, "c"), ("ONLINE".into(), 0, 0, 0));
    judge(&s);
}

/// A device with too many errors, or one that is gone, goes out of use, and comes back once the handler is gone.
#[test]
fn devices_go_out_of_use() {
    let s = Session::mirror();
    let (a, b) = (s.path("a").display().to_string(), s.path("b").display().to_string());
    s.run(&format!("zinject -d {a} tank")).ok();
    s.run("zfs create tank/one").ok();
    assert_eq!(shown(&s, "a").0, "FAULTED");
    assert_eq!(shown(&s, "b"), ("ONLINE".into(), 0, 0, 0));
    // It cannot be opened as long as the handler is there.
    s.run("zpool clear tank").ok();
    assert_eq!(shown(&s, "a").0, "FAULTED");
    s.run("zinject -c all").ok();
    s.run("zpool clear tank").ok();
    s.run("zpool wait -t resilver tank").ok();
    assert_eq!(shown(&s, "a").0, "ONLINE");
    // By hand.
    s.run(&format!("zinject -d {b} -A degrade tank")).ok();
    assert_eq!(shown(&s, "b").0, "DEGRADED");
    s.run("zpool clear tank").ok();
    s.run(&format!("zinject -d {b} -A fault tank")).ok();
    assert_eq!(shown(&s, "b").0, "FAULTED");
    // The last one with all of the data is degraded instead.
    s.run(&format!("zinject -d {a} -A fault tank")).ok();
    assert_eq!(shown(&s, "a").0, "DEGRADED");
    s.run("zpool clear tank").ok();
    s.run("zpool wait -t resilver tank").ok();
    // A device that counts as one that is needed cannot go.
    s.run(&format!("zinject -d {a} -e dtl tank")).ok();
    let refused = s.run(&format!("zpool offline tank {a}")).fails(1);
    assert_eq!(refused, format!("cannot offline {a}: no valid replicas"));
    s.run("zinject -c all").ok();
    s.run(&format!("zpool offline tank {a}")).ok();
    s.run(&format!("zpool online tank {a}")).ok();
    s.run("zpool wait -t resilver tank").ok();
    judge(&s);
}

#[test]
fn probes_and_labels_fail_by_themselves() {
    let s = Session::mirror();
    let a = s.path("a").display().to_string();
    s.run(&format!("zinject -q -d {a} -e io -T probe tank")).ok();
    s.run("zfs create tank/one").ok();
    assert_eq!(shown(&s, "a").0, "ONLINE");
    s.run(&format!("zinject -q -d {a} -e io -T write tank")).ok();
    s.run("zfs create tank/two").ok();
    assert_eq!(shown(&s, "a").0, "FAULTED");
    s.run("zinject -c all").ok();
    s.run("zpool clear tank").ok();
    s.run("zpool wait -t resilver tank").ok();
    assert_eq!(shown(&s, "a"), ("ONLINE".into(), 0, 0, 0));
    s.run(&format!("zinject -d {a} -L uber tank")).ok();
    s.run("zfs create tank/three").ok();
    let (matched, injected) = counts(&s);
    assert!(matched > 0 && matched == injected);
    assert!(shown(&s, "a").2 > 0);
    s.run("zinject -c all").ok();
    s.run("zpool clear tank").ok();
    s.run("zpool wait -t resilver tank").ok();
    judge(&s);
}

#[test]
fn delays_are_felt_and_end_with_their_handler() {
    let s = Session::mirror();
    let a = s.path("a").display().to_string();
    s.run(&format!("zinject -d {a} -D 150:1 -T write tank")).ok();
    let begun = Instant::now();
    s.run("zfs create tank/one").ok();
    assert!(begun.elapsed() >= Duration::from_millis(150));
    assert!(counts(&s).1 > 0);
    let latency = s.run("zpool iostat -vpl tank").ok();
    let of = |name: &str| {
        let path = s.path(name).display().to_string();
        let line = latency.lines().find(|l| l.trim_start().starts_with(&path)).unwrap();
        line.split_whitespace().nth(8).unwrap().parse::<u64>().unwrap_or(0)
    };
    assert!(of("a") > of("b") && of("a") > 1_000_000, "{latency}");
    s.run("zinject -c all").ok();
    // A wait of minutes is over with its handler.
    s.run(&format!("zinject -d {a} -D 300000:1 tank")).ok();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let change = scope.spawn(|| s.run("zfs create tank/two").ok());
        std::thread::sleep(Duration::from_millis(700));
        assert!(!change.is_finished());
        s.run("zinject -c all").ok();
        change.join().unwrap();
    });
    assert!(begun.elapsed() < Duration::from_secs(100));
    judge(&s);
}

/// A delay of minutes does not hold up the end of its pool.
#[test]
fn pools_end_without_their_handlers() {
    let s = Session::mirror();
    let a = s.path("a").display().to_string();
    let begun = Instant::now();
    s.run(&format!("zinject -d {a} -D 300000:1 tank")).ok();
    s.run("zpool export tank").ok();
    assert_eq!(s.run("zinject").ok(), NONE);
    cenote_testpools::judge(s.dir.path(), "tank");
    s.run(&format!("zpool import -N -d {} tank", s.dir.path().display())).ok();
    s.run(&format!("zinject -d {a} -D 300000:1 tank")).ok();
    s.run("zpool destroy tank").ok();
    assert_eq!(s.run("zinject").ok(), NONE);
    assert!(begun.elapsed() < Duration::from_secs(100));
}

/// A device that has what no other one has is not kept from writing without a word.
#[test]
fn writes_are_dropped_only_where_others_have_them() {
    let s = Session::mirror();
    let (a, b) = (s.path("a").display().to_string(), s.path("b").display().to_string());
    s.run(&format!("zpool offline tank {b}")).ok();
    for kind in ["-T write", ""] {
        let why = s.run(&format!("zinject -d {a} -e noop {kind} tank")).fails(1);
        assert_eq!(why, format!("cannot drop writes of '{a}': no valid replicas"));
    }
    s.run(&format!("zinject -d {a} -e noop -T read tank")).ok();
    s.run("zinject -c all").ok();
    s.run(&format!("zpool online tank {b}")).ok();
    s.run("zpool wait -t resilver tank").ok();
    s.run(&format!("zinject -d {a} -e noop -T write tank")).ok();
    s.run("zinject -c all").ok();
    judge(&s);
}

/// A file that cannot be read is named, and is well once the handler is gone.
#[test]
fn errors_of_data_name_the_file() {
    if !can_mount() {
        return;
    }
    for (error, mirror) in [("checksum", true), ("io", true), ("decompress", false)] {
        let s = Session::new();
        let file = tank(&s);
        if error == "decompress" {
            s.run("zfs set compression=lz4 tank").ok();
            fs::write(&file, b"words ".repeat(50_000)).unwrap();
            s.run("zpool sync tank").ok();
        }
        let right = fs::read(&file).unwrap();
        s.run(&format!("zinject -a -m -t data -e {error} {file}")).ok();
        assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(5), "{error}");
        let (matched, injected) = counts(&s);
        assert!(matched > 0 && matched == injected, "{error}");
        let status = s.run("zpool status -v tank").ok();
        assert!(status.contains("Permanent errors have been detected"), "{error}: {status}");
        assert!(status.contains(&file), "{error}: {status}");
        let (_, reads, _, wrong) = shown(&s, "a");
        assert_eq!(
            (reads > 0, wrong > 0),
            (mirror && error == "io", error == "checksum"),
            "{error}"
        );
        s.run("zinject -c all").ok();
        assert!(fs::read(&file).unwrap() == right);
        s.run("zpool scrub -w tank").ok();
        s.run("zpool scrub -w tank").ok();
        let status = s.run("zpool status -v tank").ok();
        assert!(status.contains("No known data errors"), "{error}: {status}");
        judge(&s);
    }
}

/// One copy of several may be wrong: the other is read, and the device with the wrong one is counted. Only a part of a file is wrong.
#[test]
fn copies_and_ranges_are_chosen() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    let file = tank(&s);
    s.run("zfs create -o copies=2 tank/two").ok();
    let other = format!("{}/tank/two/file", s.root());
    fs::write(&other, vec![9; 200_000]).unwrap();
    s.run("zpool sync tank").ok();
    s.run(&format!("zinject -a -t data -e checksum -C 0 {other}")).ok();
    assert!(fs::read(&other).unwrap() == vec![9; 200_000]);
    assert!(counts(&s).1 > 0 && shown(&s, "a").3 > 0);
    s.run("zinject -c all").ok();
    let said = s.run(&format!("zinject -a -t data -e io -r 128K,128K {file}")).ok();
    assert!(said.contains(" range: [1, 1)\n"), "{said}");
    let opened = File::open(&file).unwrap();
    let mut bytes = vec![0; 1000];
    use std::os::unix::fs::FileExt;
    opened.read_exact_at(&mut bytes, 0).unwrap();
    assert!(opened.read_exact_at(&mut bytes, 140_000).is_err());
    opened.read_exact_at(&mut bytes, 280_000).unwrap();
    drop(opened);
    s.run("zinject -c all").ok();
    // The dnode: there is no such file any more. Others are in another block.
    let many = |n: u32| format!("{}/tank/two/{n}", s.root());
    (0..100).for_each(|n| fs::write(many(n), b"x").unwrap());
    s.run("zpool sync tank").ok();
    s.run(&format!("zinject -a -m -t dnode -e io {}", many(99))).ok();
    assert_eq!(fs::metadata(many(99)).unwrap_err().raw_os_error(), Some(5));
    assert!(fs::metadata(many(0)).is_ok() && counts(&s).1 > 0);
    s.run("zinject -c all").ok();
    assert!(fs::read(many(99)).unwrap() == b"x");
    assert!(fs::read(&file).unwrap() == vec![7; 300_000]);
    s.run("zpool clear tank").ok();
    judge(&s);
}

#[test]
fn imports_and_exports_are_held_up_once() {
    let s = Session::mirror();
    let took = |line: &str| {
        let begun = Instant::now();
        s.run(line).ok();
        begun.elapsed()
    };
    s.run("zinject -P export -s 2 tank").ok();
    let again = s.run("zinject -P export -s 2 tank").fails(1);
    assert_eq!(again, "failed to add handler: a handler already exists");
    assert!(took("zpool export tank") >= Duration::from_secs(2));
    assert_eq!(s.run("zinject").ok(), NONE);
    s.run("zinject -P import -s 2 tank").ok();
    let import = format!("zpool import -N -d {} tank", s.dir.path().display());
    assert!(took(&import) >= Duration::from_secs(2));
    assert_eq!(s.run("zinject").ok(), NONE);
    judge(&s);
}

/// With `-a` a pool that takes long is named, and the ones after it are done meanwhile.
#[test]
fn a_pool_that_takes_long_keeps_no_other_one_waiting() {
    let s = Session::new();
    let names = ["first", "last"];
    for name in names {
        fs::create_dir(s.path(name)).unwrap();
        let disk = s.path(name).join("disk");
        File::create(&disk).unwrap().set_len(128 << 20).unwrap();
        s.run(&format!("zpool create -m none {name} {}", disk.display())).ok();
    }
    let places = names.map(|name| format!("-d {}", s.path(name).display())).join(" ");
    let listed = || s.run("zpool list -Ho name").ok();
    for (moment, line, doing) in [
        ("export", "zpool export -a".to_string(), "exporting"),
        ("import", format!("zpool import -aN {places}"), "importing"),
    ] {
        s.run(&format!("zinject -P {moment} -s 60 first")).ok();
        std::thread::scope(|scope| {
            let begun = Instant::now();
            let all = scope.spawn(|| s.run(&line));
            let wanted = if moment == "export" { "first\n" } else { "last\n" };
            while listed() != wanted {
                assert!(begun.elapsed() < Duration::from_secs(50), "{moment}: {}", listed());
                std::thread::sleep(Duration::from_millis(100));
            }
            assert!(!all.is_finished(), "{moment}");
            s.run("zinject -c all").ok();
            let done = all.join().unwrap();
            let said = format!("still {doing} 'first': devices may not answer\n");
            assert_eq!((done.code, done.err), (0, said), "{moment}");
        });
    }
    assert_eq!(listed(), "first\nlast\n");
    s.run("zpool export -a").ok();
    names.iter().for_each(|name| cenote_testpools::judge(&s.path(name), name));
}

/// Where a device does not give a block of dnodes no file is made in it; later its free numbers are used.
#[test]
fn numbers_of_a_block_that_a_device_did_not_give_are_used_later() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    tank(&s);
    let (root, dir) = (s.root(), s.dir.path().display().to_string());
    let path = |name: String| format!("{root}/tank/{name}");
    let number = |name: String| fs::metadata(path(name)).unwrap().ino();
    (0..300).for_each(|n| fs::write(path(format!("old{n}")), "old").unwrap());
    let block = number("old100".into()) / 32;
    for n in (0..300).filter(|n| n % 3 == 0) {
        fs::remove_file(path(format!("old{n}"))).unwrap();
    }
    s.run("zpool export tank").ok();
    s.run(&format!("zpool import -R {root} -d {dir} tank")).ok();
    let objset = s.run("zfs get -Hpo value objsetid tank").ok().trim().parse::<u64>().unwrap();
    s.run(&format!("zinject -b {objset:x}:0:0:{block:x} -e io tank")).ok();
    (0..200).for_each(|n| fs::write(path(format!("new{n}")), "new").unwrap());
    let log = || fs::read_to_string(s.path("socket.log")).unwrap();
    let said = log();
    assert!(said.contains("a block that cannot be read now"), "{said}");
    assert!(!said.contains("beside damaged ones"), "{said}");
    let inside =
        |name: &str, count: u32| (0..count).any(|n| number(format!("{name}{n}")) / 32 == block);
    assert!(!inside("new", 200));
    s.run("zinject -c all").ok();
    s.run("zpool sync -f tank").ok();
    (0..40).for_each(|n| fs::write(path(format!("more{n}")), "more").unwrap());
    assert!(inside("more", 40), "its numbers are used");
    s.run("zpool clear tank").ok();
    judge(&s);
}
