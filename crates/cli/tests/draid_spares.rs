//! Distributed spares of dRAID by the real binary: made and shown, stepping in by hand and by themselves, and going back. OpenZFS's
//! `zdb` and its engine judge at each stage. Where they are not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use cenote_testpools::openzfs;
use common::{Session, can_mount};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A pool `tank` of dRAID over the files `d00`, `d01`, …, with `new0` and so on beside them.
struct Pool {
    s: Session,
    count: usize,
}

impl Pool {
    fn new(words: &str, count: usize) -> Pool {
        let s = Session::new();
        fs::create_dir(s.path("devices")).unwrap();
        let pool = Pool { s, count };
        (0..count).for_each(|i| pool.blank(i));
        let all: Vec<String> = (0..count).map(|i| pool.at(i)).collect();
        let line = format!("zpool create -R {} tank {words} {}", pool.s.root(), all.join(" "));
        pool.run(&line);
        pool
    }

    fn run(&self, line: &str) -> String {
        self.s.run(line).ok()
    }

    fn fails(&self, line: &str) -> String {
        self.s.run(line).fails(1)
    }

    fn dir(&self) -> PathBuf {
        self.s.path("devices")
    }

    fn file(&self, i: usize) -> PathBuf {
        self.dir().join(format!("d{i:02}"))
    }

    fn at(&self, i: usize) -> String {
        self.file(i).display().to_string()
    }

    /// A new empty device where this one was.
    fn blank(&self, i: usize) {
        let _ = fs::remove_file(self.file(i));
        File::create(self.file(i)).unwrap().set_len(160 * MIB).unwrap();
    }

    fn away(&self, i: usize) {
        fs::rename(self.file(i), self.s.path(&format!("away{i}"))).unwrap();
    }

    fn back(&self, i: usize) {
        fs::rename(self.s.path(&format!("away{i}")), self.file(i)).unwrap();
    }

    fn export(&self) {
        self.run("zpool export tank");
    }

    fn import(&self, options: &str) {
        let (root, dir) = (self.s.root(), self.dir());
        self.run(&format!("zpool import {options} -R {root} -d {} tank", dir.display()));
    }

    fn wait(&self) {
        self.run("zpool wait -t replace,resilver tank");
        // After a rebuild.
        self.run("zpool wait -t scrub tank");
    }

    /// The lines of `zpool status` about vdevs and spares: names and states.
    fn shown(&self) -> Vec<String> {
        let text = self.run("zpool status tank");
        let lines = text.lines().skip_while(|l| !l.starts_with("\tNAME")).skip(1);
        let dir = format!("{}/", self.dir().display());
        let line = |l: &str| {
            let words: Vec<&str> = l.split_whitespace().collect();
            let spare = matches!(words.get(1), Some(&"AVAIL" | &"INUSE"));
            words[..words.len().min(if spare { 5 } else { 2 })].join(" ").replace(&dir, "")
        };
        lines.take_while(|l| !l.is_empty()).map(line).collect()
    }

    #[track_caller]
    fn shows(&self, line: &str) {
        let shown = self.shown();
        assert!(shown.iter().any(|l| l == line), "{line}: {shown:#?}");
    }

    /// Waits until `zpool status` shows a line.
    #[track_caller]
    fn comes_to(&self, line: &str) {
        let begun = Instant::now();
        while !self.shown().iter().any(|l| l == line) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{line}: {:#?}", self.shown());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A spare stands in for a device that is out of use.
    fn stands_in(&self, device: usize, way: &str, spare: &str) {
        self.run(&format!("zpool replace {way} -w tank {} {spare}", self.at(device)));
        self.wait();
    }

    /// New devices with these numbers.
    fn more(&self, numbers: Range<usize>) -> Vec<String> {
        numbers.clone().for_each(|i| self.blank(i));
        numbers.map(|i| self.at(i)).collect()
    }

    fn write(&self, numbers: impl IntoIterator<Item = u64>) {
        let name = |n: u64| self.s.path(&format!("root/tank/f{n}"));
        numbers.into_iter().for_each(|n| fs::write(name(n), contents(n)).unwrap());
        self.run("zpool sync tank");
    }

    #[track_caller]
    fn check(&self, numbers: impl IntoIterator<Item = u64>) {
        for n in numbers {
            let read = fs::read(self.s.path(&format!("root/tank/f{n}"))).unwrap();
            assert!(read == contents(n), "file {n}");
        }
    }

    /// A scrub finds nothing wrong.
    #[track_caller]
    fn is_clean(&self) {
        self.run("zpool scrub -w tank");
        let status = self.run("zpool status tank");
        let clean = status.contains("scrub repaired 0B") && status.contains("with 0 errors");
        assert!(clean && status.contains("errors: No known data errors"), "{status}");
        let errors = |l: &&str| {
            l.split_whitespace()
                .nth(4)
                .is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit() && c != '0'))
        };
        let config =
            status.lines().skip_while(|l| !l.starts_with("\tNAME")).take_while(|l| !l.is_empty());
        assert_eq!(config.filter(errors).count(), 0, "{status}");
    }

    /// OpenZFS finds nothing wrong either; the pool is imported anew.
    #[track_caller]
    fn judged(&self) {
        self.export();
        cenote_testpools::judge(&self.dir(), "tank");
        cenote_testpools::try_judge_newer(&self.dir(), "tank").unwrap();
        openzfs(&self.dir(), "tank", "import\nscrub\nexport\n");
        self.import("");
    }

    /// The machine stops.
    fn stops(&self) {
        let daemon = rustix::process::Pid::from_raw(self.s.daemon().unwrap()).unwrap();
        rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
        while rustix::process::test_kill_process(daemon).is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// All files can be read while any `most` neighbours of `devices` are away.
    #[track_caller]
    fn reads_without(
        &self,
        devices: &[usize],
        most: usize,
        files: impl IntoIterator<Item = u64> + Clone,
    ) {
        self.export();
        for gone in devices.windows(most) {
            gone.iter().for_each(|i| self.away(*i));
            self.import("-o readonly=on");
            self.check(files.clone());
            let status = self.run("zpool status tank");
            assert!(status.contains("errors: No known data errors"), "{gone:?}: {status}");
            self.export();
            gone.iter().for_each(|i| self.back(*i));
        }
        self.import("");
    }

    fn others(&self, gone: &[usize]) -> Vec<usize> {
        (0..self.count).filter(|i| !gone.contains(i)).collect()
    }
}

/// The bytes of file number `n`.
fn contents(n: u64) -> Vec<u8> {
    let len = [100, 5000, 200_000, 3 << 20][n as usize % 4] + n as usize;
    (0..len as u64).map(|i| (i * 31 + i / 251 + n * 7) as u8).collect()
}

#[test]
fn spares_are_made_and_shown() {
    if !can_mount() {
        return;
    }
    let p = Pool::new("draid2:4d:11c:1s", 11);
    p.write(0..8);
    p.shows("draid2:4d:11c:1s-0 ONLINE");
    p.shows("draid2-0-0 AVAIL");
    let list = p.run("zpool list -v tank");
    assert!(list.contains("draid2-0-0"), "{list}");
    let json = p.run("zpool status -j tank");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let spare = &json["pools"]["tank"]["spares"]["draid2-0-0"];
    assert_eq!((spare["state"].as_str(), spare["class"].as_str()), (Some("AVAIL"), Some("spare")));
    assert_eq!(
        p.fails("zpool remove tank draid2-0-0"),
        "cannot remove draid2-0-0: dRAID spares cannot be removed"
    );
    p.judged();
    p.check(0..8);
    p.shows("draid2-0-0 AVAIL");
    // Another vdev brings its own.
    let more = p.more(11..16);
    p.run(&format!("zpool add -f tank draid1:2d:5c:2s {}", more.join(" ")));
    for spare in ["draid2-0-0 AVAIL", "draid1-1-0 AVAIL", "draid1-1-1 AVAIL"] {
        p.shows(spare);
    }
    assert_eq!(
        p.fails(&format!("zpool replace tank {} draid1-1-0", p.at(0))),
        format!(
            "cannot replace {} with draid1-1-0: dRAID spares can only replace child devices in their parent's dRAID vdev",
            p.at(0)
        )
    );
    p.write(8..16);
    p.judged();
    p.check(0..16);
}

#[test]
fn a_spare_stands_in_for_a_device_that_is_away() {
    if !can_mount() {
        return;
    }
    for (word, count, parity, way) in [
        ("draid1:2d:6c:1s", 6, 1, "-s"),
        ("draid2:3d:8c:2s", 8, 2, "-s"),
        ("draid1:2d:5c:1s", 5, 1, ""),
    ] {
        let p = Pool::new(word, count);
        let spare = format!("draid{parity}-0-0");
        p.write(0..24);
        let gone = p.at(2);
        p.run(&format!("zpool offline tank {gone}"));
        p.stands_in(2, way, &spare);
        p.shows(&format!("{spare} INUSE currently in use"));
        p.shows(&format!("{spare} ONLINE"));
        p.write(24..32);
        p.check(0..32);
        p.is_clean();
        p.judged();
        p.is_clean();
        p.reads_without(&p.others(&[2]), parity, 0..32);
        assert!(p.fails(&format!("zpool replace tank {} {spare}", p.at(0))).contains("is busy"));
        // A new device takes the place, and the spare goes back.
        p.blank(count);
        p.run(&format!("zpool replace -w tank {gone} {}", p.at(count)));
        p.comes_to(&format!("{spare} AVAIL"));
        p.write(32..36);
        p.is_clean();
        p.judged();
        let mut all = p.others(&[2]);
        all.push(count);
        p.reads_without(&all, parity, 0..36);
    }
}

#[test]
fn a_device_that_comes_back_has_the_spare_go() {
    if !can_mount() {
        return;
    }
    let p = Pool::new("draid1:2d:6c:1s", 6);
    p.write(0..16);
    p.run(&format!("zpool offline tank {}", p.at(1)));
    p.stands_in(1, "-s", "draid1-0-0");
    p.write(16..24);
    p.run(&format!("zpool online tank {}", p.at(1)));
    p.wait();
    p.is_clean();
    p.run("zpool detach tank draid1-0-0");
    p.shows("draid1-0-0 AVAIL");
    assert!(!p.shown().iter().any(|l| l.starts_with("spare-")), "{:?}", p.shown());
    p.write(24..28);
    p.is_clean();
    p.judged();
    p.reads_without(&p.others(&[]), 1, 0..28);
    // It stands in for another one, with what it had before.
    p.run(&format!("zpool offline tank {}", p.at(4)));
    p.stands_in(4, "-s", "draid1-0-0");
    p.is_clean();
    p.reads_without(&p.others(&[4]), 1, 0..28);
    // The device leaves for good: the spare stays in its place, and is a spare still.
    p.run(&format!("zpool detach tank {}", p.at(4)));
    p.shows("draid1-0-0 ONLINE");
    p.shows("draid1-0-0 INUSE currently in use");
    p.write(28..32);
    p.is_clean();
    p.judged();
    p.reads_without(&p.others(&[4]), 1, 0..32);
}

/// With one parity, two devices die one after the other. What the first spare has on the second device is made anew.
#[test]
fn spares_have_places_on_each_other() {
    if !can_mount() {
        return;
    }
    let p = Pool::new("draid1:3d:10c:2s", 10);
    p.write(0..32);
    for (device, spare) in [(3, "draid1-0-1"), (7, "draid1-0-0")] {
        p.run(&format!("zpool offline tank {}", p.at(device)));
        // This is on neither, and known to be.
        p.write(32 + device as u64..33 + device as u64);
        p.stands_in(device, "-s", spare);
        p.shows(&format!("{spare} INUSE currently in use"));
        let history = p.run("zpool history -i tank");
        assert!(!history.contains("resilver") || history.contains("rebuild"), "{history}");
        p.is_clean();
    }
    p.write(50..56);
    p.judged();
    let files = || (0..32).chain([35, 39]).chain(50..56);
    p.check(files());
    p.is_clean();
    p.reads_without(&p.others(&[3, 7]), 1, files());
    // The second one comes back: it lacks what was its own, and what the other spare has there.
    p.run(&format!("zpool online tank {}", p.at(7)));
    p.wait();
    p.run("zpool detach tank draid1-0-0");
    p.is_clean();
    p.judged();
    p.reads_without(&p.others(&[3]), 1, files());
}

#[test]
fn a_spare_steps_in_by_itself() {
    if !can_mount() {
        return;
    }
    let p = Pool::new("draid2:3d:8c:1s", 8);
    p.write(0..16);
    fs::remove_file(p.file(5)).unwrap();
    // It is missed when something is written.
    p.write(16..20);
    p.comes_to("draid2-0-0 INUSE currently in use");
    p.wait();
    let history = p.run("zpool history -i tank");
    assert!(history.contains("vdev attach spare in vdev=draid2-0-0 for vdev="), "{history}");
    assert!(history.contains("rebuild vdev_id=0"), "{history}");
    p.write(20..24);
    p.check(0..24);
    p.is_clean();
    p.judged();
    p.reads_without(&p.others(&[5]), 2, 0..24);
}

/// Either of the two goes on where the other one has stopped.
#[test]
fn openzfs_and_this_take_turns() {
    if !can_mount() {
        return;
    }
    let p = Pool::new("draid1:2d:6c:2s", 6);
    p.write(0..16);
    p.export();
    let make = "import\ndataset tank/set\nwrite tank/set 5 131072 3000000 1\nsync\n";
    openzfs(
        &p.dir(),
        "tank",
        &format!("{make}offline 1\nstand-in rebuild 1 draid1-0-0\nrebuilt\nscrub\nexport\n"),
    );
    p.import("");
    p.shows("draid1-0-0 INUSE currently in use");
    p.check(0..16);
    p.write(16..24);
    p.is_clean();
    p.run(&format!("zpool offline tank {}", p.at(4)));
    p.stands_in(4, "-s", "draid1-0-1");
    p.is_clean();
    p.export();
    cenote_testpools::judge(&p.dir(), "tank");
    openzfs(
        &p.dir(),
        "tank",
        "import\nscrub\ncheck tank/set 5 3000000 1\nwrite tank/set 6 131072 2000000 2\nonline 4\nresilver\nidle draid1-0-1\nexport\n",
    );
    p.import("");
    p.shows("draid1-0-1 AVAIL");
    p.check(0..24);
    p.is_clean();
    p.reads_without(&p.others(&[1]), 1, 0..24);
    p.export();
    openzfs(
        &p.dir(),
        "tank",
        "import\nscrub\ncheck tank/set 5 3000000 1\ncheck tank/set 6 2000000 2\nexport\n",
    );
}

/// Wrong bytes in a spare's place are found and mended.
#[test]
fn what_a_spare_has_is_verified() {
    if !can_mount() {
        return;
    }
    let p = Pool::new("draid1:2d:6c:1s", 6);
    p.write(0..24);
    p.run(&format!("zpool offline tank {}", p.at(0)));
    p.stands_in(0, "-s", "draid1-0-0");
    p.export();
    let spoiled = File::options().write(true).open(p.file(3)).unwrap();
    for at in (4..150).map(|mib| mib * MIB) {
        spoiled.write_all_at(&vec![0xa5; MIB as usize], at).unwrap();
    }
    p.import("");
    p.check(0..24);
    p.run("zpool scrub -w tank");
    let status = p.run("zpool status tank");
    assert!(status.contains("with 0 errors"), "{status}");
    p.run("zpool clear tank");
    p.is_clean();
    p.judged();
    p.reads_without(&p.others(&[0]), 1, 0..24);
}

/// The machine stops while a spare is rebuilt, and while a new device takes the place of what it stands in for.
#[test]
fn crashes_in_between_lose_nothing() {
    if !can_mount() {
        return;
    }
    let p = Pool::new("draid1:2d:6c:1s", 6);
    p.write(0..24);
    p.run(&format!("zpool offline tank {}", p.at(5)));
    p.run("tunables set zfs_scan_suspend_progress=1");
    p.run(&format!("zpool replace -s tank {} draid1-0-0", p.at(5)));
    p.write(24..28);
    p.stops();
    p.import("-f");
    p.shows("draid1-0-0 INUSE currently in use");
    p.wait();
    p.check(0..28);
    p.is_clean();
    p.judged();
    p.reads_without(&p.others(&[5]), 1, 0..28);
    p.blank(6);
    p.run("tunables set zfs_scan_suspend_progress=1");
    p.run(&format!("zpool replace tank {} {}", p.at(5), p.at(6)));
    p.stops();
    // Another system goes on.
    openzfs(&p.dir(), "tank", "import\nresilver\nscrub\nexport\n");
    p.import("");
    p.comes_to("draid1-0-0 AVAIL");
    p.is_clean();
    p.judged();
    let mut all = p.others(&[5]);
    all.push(6);
    p.reads_without(&all, 1, 0..28);
}

/// Each of two vdevs has its spares, and a disk is a spare of both.
#[test]
fn spares_of_two_vdevs_step_in_by_themselves() {
    if !can_mount() {
        return;
    }
    let p = Pool::new("draid1:2d:5c:1s", 5);
    let more = p.more(5..11);
    p.run(&format!("zpool add tank draid1:2d:5c:1s {} spare {}", more[..5].join(" "), more[5]));
    p.write(0..24);
    for (gone, spare) in [(7, "draid1-1-0"), (1, "draid1-0-0"), (6, "d10")] {
        fs::remove_file(p.file(gone)).unwrap();
        p.write(24 + gone as u64..25 + gone as u64);
        p.comes_to(&format!("{spare} INUSE currently in use"));
        p.wait();
    }
    let files = || (0..24).chain([25, 30, 31]);
    p.check(files());
    p.is_clean();
    let list = p.run("zpool list -v tank");
    assert!(list.contains("INUSE") && list.contains("draid1-1-0"), "{list}");
    assert!(p.run("zpool iostat -v tank").contains("draid1-1-0"));
    let json = p.run("zpool status -j tank");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let tank = &json["pools"]["tank"];
    assert_eq!(tank["spares"]["draid1-0-0"]["state"].as_str(), Some("INUSE"), "{json}");
    p.export();
    let found = p.run(&format!("zpool import -d {}", p.dir().display()));
    assert!(found.contains("draid1-0-0") && found.contains("spare-1"), "{found}");
    p.import("");
    p.judged();
    p.check(files());
    p.reads_without(&p.others(&[1, 6, 7, 10]), 1, files());
}

/// A device is away while blocks are written of which it has places of a spare. Whichever of the two wrote them, the other one gives the
/// device what it lacks.
#[test]
fn what_a_device_lacks_of_a_spare_either_of_the_two_knows() {
    if !can_mount() {
        return;
    }
    let p = Pool::new("draid2:2d:7c:1s", 7);
    p.run(&format!("zpool offline tank {}", p.at(1)));
    p.stands_in(1, "-s", "draid2-0-0");
    p.run(&format!("zpool offline tank {}", p.at(3)));
    p.write(0..24);
    p.export();
    let set = "dataset tank/set\n";
    openzfs(
        &p.dir(),
        "tank",
        &format!(
            "import\nonline 3\nresilver\n{set}offline 5\nwrite tank/set 5 131072 9000000 1\nexport\n"
        ),
    );
    cenote_testpools::judge(&p.dir(), "tank");
    p.import("");
    p.check(0..24);
    p.run(&format!("zpool online tank {}", p.at(5)));
    p.wait();
    // Nothing is left to be found wrong, by either of the two.
    p.is_clean();
    p.judged();
    p.is_clean();
    p.reads_without(&p.others(&[1]), 2, 0..24);
    p.export();
    for gone in p.others(&[1]).windows(2) {
        let devices = p.dir();
        gone.iter().for_each(|i| p.away(*i));
        cenote_testpools::judge(&devices, "tank");
        gone.iter().for_each(|i| p.back(*i));
    }
    p.import("");
}
