//! `zpool attach`, `zpool detach` and `zpool replace` by the real binary, and OpenZFS's `zdb` judges. Where `zdb` is not
//! installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Session;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// A session with a pool `tank` of the files that the line names; other words are those of `zpool create`.
fn pool(line: &str, others: &[&str]) -> Session {
    let s = Session::new();
    others.iter().for_each(|name| blank(&s, name));
    let word = |w: &str| match w.len() {
        1 => {
            blank(&s, w);
            at(&s, w)
        }
        _ => w.to_string(),
    };
    let words: Vec<String> = line.split_whitespace().map(word).collect();
    s.run(&format!("zpool create -m none tank {}", words.join(" "))).ok();
    s
}

/// A new empty device where that of this name was.
fn blank(s: &Session, name: &str) {
    let _ = fs::remove_file(s.path(name));
    File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
}

fn at(s: &Session, name: &str) -> String {
    s.path(name).display().to_string()
}

/// The lines of `zpool status` about the pool and its vdevs: names and states, and of spares what is said of them.
fn shown(s: &Session) -> Vec<String> {
    let text = s.run("zpool status tank").ok();
    let lines = text.lines().skip_while(|l| !l.starts_with("\tNAME")).skip(1);
    let dir = format!("{}/", s.dir.path().display());
    let line = |l: &str| {
        let words: Vec<&str> = l.split_whitespace().collect();
        let spare = matches!(words.get(1), Some(&"AVAIL" | &"INUSE"));
        words[..words.len().min(if spare { 5 } else { 2 })].join(" ").replace(&dir, "")
    };
    lines.take_while(|l| !l.is_empty()).map(line).collect()
}

fn judge(s: &Session) {
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

fn import(s: &Session) {
    s.run(&format!("zpool import -N -d {} tank", s.dir.path().display())).ok();
}

/// Has resilvers stay where they are, or go on.
fn hold_resilvers(s: &Session, hold: bool) {
    s.run(&format!("tunables set zfs_scan_suspend_progress={}", u8::from(hold))).ok();
}

#[test]
fn a_disk_becomes_a_mirror_and_a_disk_again() {
    let s = pool("a", &["b", "c"]);
    let (a, b, c) = (at(&s, "a"), at(&s, "b"), at(&s, "c"));
    s.run(&format!("zpool attach tank {a} {b}")).ok();
    assert_eq!(shown(&s), ["tank ONLINE", "mirror-0 ONLINE", "a ONLINE", "b ONLINE"]);
    let history = s.run("zpool history -i tank").ok();
    assert!(history.contains(&format!("vdev attach attach vdev={b} to vdev={a}")), "{history}");
    assert!(history.contains(&format!("zpool attach tank {a} {b}")), "{history}");
    let events = s.run("zpool events -H").ok();
    assert!(events.contains("sysevent.fs.zfs.vdev_attach"), "{events}");
    judge(&s);
    import(&s);
    s.run(&format!("zpool attach tank mirror-0 {c}")).fails(1);
    s.run(&format!("zpool attach tank {b} {c}")).ok();
    s.run(&format!("zpool detach tank {c}")).ok();
    s.run(&format!("zpool detach tank {b}")).ok();
    assert_eq!(shown(&s), ["tank ONLINE", "a ONLINE"]);
    // What was let go of is free.
    s.run(&format!("zpool add tank {b}")).ok();
    judge(&s);
}

#[test]
fn what_openzfs_refuses_is_refused_in_its_words() {
    let s = pool("mirror a b spare s cache k", &["x"]);
    let (a, x, spare, cache) = (at(&s, "a"), at(&s, "x"), at(&s, "s"), at(&s, "k"));
    let fails = |line: &str, why: &str| {
        assert_eq!(s.run(line).fails(1), why, "{line}");
    };
    fails(&format!("zpool detach tank {x}"), &format!("cannot detach {x}: no such device in pool"));
    fails(
        &format!("zpool detach tank {spare}"),
        &format!("cannot detach {spare}: device is reserved as a hot spare"),
    );
    fails(
        &format!("zpool attach tank {cache} {x}"),
        &format!("cannot attach {x} to {cache}: device is in use as a cache"),
    );
    File::create(s.path("small")).unwrap().set_len(100 << 20).unwrap();
    let small = at(&s, "small");
    fails(
        &format!("zpool replace tank {a} {small}"),
        &format!("cannot replace {a} with {small}: device is too small"),
    );
    fails(
        &format!("zpool attach -o ashift=14 tank {a} {x}"),
        &format!(
            "cannot attach {x} to {a}: The new device cannot have a higher alignment requirement than the \
             top-level vdev."
        ),
    );
    s.run(&format!("zpool attach tank {a}")).fails(2);
    s.run("zpool replace tank").fails(2);
    s.run(&format!("zpool replace tank {a}")).fails(1);
    let one = pool("a", &[]);
    let a = at(&one, "a");
    assert_eq!(
        one.run(&format!("zpool detach tank {a}")).fails(1),
        format!("cannot detach {a}: only applicable to mirror and replacing vdevs")
    );
}

#[test]
fn a_blank_disk_takes_the_place_of_one_that_was_there() {
    let s = pool("raidz a b c", &[]);
    hold_resilvers(&s, true);
    let b = at(&s, "b");
    s.run("zpool export tank").ok();
    blank(&s, "b");
    import(&s);
    s.run(&format!("zpool replace tank {b}")).ok();
    let lines = shown(&s);
    let names: Vec<&str> = lines.iter().map(|l| l.split(' ').next().unwrap()).collect();
    assert_eq!(names[..4], ["tank", "raidz1-0", "a", "replacing-1"], "{lines:?}");
    assert_eq!((lines[5].as_str(), names[6]), ("b ONLINE", "c"), "{lines:?}");
    judge(&s);
    import(&s);
    assert_eq!(shown(&s)[3], "replacing-1 DEGRADED");
    // It is cancelled, and begun anew.
    s.run(&format!("zpool detach tank {b}")).ok();
    assert_eq!(shown(&s).len(), 5);
    judge(&s);
    import(&s);
    blank(&s, "b");
    let absent = shown(&s)[3].split(' ').next().unwrap().to_string();
    s.run(&format!("zpool replace tank {absent} {b}")).ok();
    hold_resilvers(&s, false);
    s.run("zpool wait -t replace tank").ok();
    let well = ["tank ONLINE", "raidz1-0 ONLINE", "a ONLINE", "b ONLINE", "c ONLINE"];
    assert_eq!(shown(&s), well);
    let status = s.run("zpool status tank").ok();
    assert!(status.contains("scan: resilvered "), "{status}");
    judge(&s);
}

#[test]
fn a_disk_is_replaced_and_waited_for() {
    let s = pool("mirror a b", &["x"]);
    let (a, x) = (at(&s, "a"), at(&s, "x"));
    s.run(&format!("zpool replace -w tank {a} {x}")).ok();
    assert_eq!(shown(&s), ["tank ONLINE", "mirror-0 ONLINE", "x ONLINE", "b ONLINE"]);
    // What was replaced is free.
    s.run(&format!("zpool attach -w tank {x} {a}")).ok();
    assert_eq!(shown(&s)[2..], ["x ONLINE", "b ONLINE", "a ONLINE"]);
    judge(&s);
    fs::remove_file(s.path("x")).unwrap();
    fs::remove_file(s.path("b")).unwrap();
    import(&s);
    s.run("zpool status tank").ok();
    judge(&s);
}

#[test]
fn a_spare_steps_in_and_goes_back() {
    let s = pool("mirror a b spare s", &[]);
    let (a, spare) = (at(&s, "a"), at(&s, "s"));
    s.run(&format!("zpool replace -w tank {a} {spare}")).ok();
    let stands_in = [
        "tank ONLINE",
        "mirror-0 ONLINE",
        "spare-0 ONLINE",
        "a ONLINE",
        "s ONLINE",
        "b ONLINE",
        "spares",
        "s INUSE currently in use",
    ];
    assert_eq!(shown(&s), stands_in);
    judge(&s);
    import(&s);
    assert_eq!(shown(&s), stands_in);
    let again = s.run(&format!("zpool replace tank {a} {spare}")).fails(1);
    assert_eq!(again, format!("cannot replace {a} with {spare}: {spare} is busy"));
    s.run(&format!("zpool detach tank {spare}")).ok();
    let idle = ["tank ONLINE", "mirror-0 ONLINE", "a ONLINE", "b ONLINE", "spares", "s AVAIL"];
    assert_eq!(shown(&s), idle);
    judge(&s);
    import(&s);
    assert_eq!(shown(&s), idle);
    // It stays if the device that it stands in for goes.
    s.run(&format!("zpool replace tank {a} {spare}")).ok();
    s.run(&format!("zpool detach tank {a}")).ok();
    assert_eq!(shown(&s), ["tank ONLINE", "mirror-0 ONLINE", "s ONLINE", "b ONLINE"]);
    judge(&s);
    import(&s);
    assert_eq!(shown(&s), ["tank ONLINE", "mirror-0 ONLINE", "s ONLINE", "b ONLINE"]);
    judge(&s);
}

/// A spare that pools share leaves the others when it stays in one of them for good.
#[test]
fn a_spare_that_stays_leaves_other_pools() {
    let s = pool("mirror a b spare s", &["c", "d"]);
    let [a, c, d, spare] = ["a", "c", "d", "s"].map(|name| at(&s, name));
    s.run(&format!("zpool create -m none other {c} spare {spare}")).ok();
    s.run(&format!("zpool create -m none third {d}")).ok();
    let listed = |what: &str| {
        let text = s.run("zpool status other").ok();
        assert_eq!(text.contains("spares"), !what.is_empty(), "{text}");
        assert!(text.contains(what), "{text}");
    };
    listed("AVAIL");
    s.run(&format!("zpool replace -w tank {a} {spare}")).ok();
    listed("INUSE     in use by pool 'tank'");
    // It goes back, and is there for both.
    s.run(&format!("zpool detach tank {spare}")).ok();
    listed("AVAIL");
    s.run(&format!("zpool replace -w tank {a} {spare}")).ok();
    s.run(&format!("zpool detach tank {a}")).ok();
    assert_eq!(shown(&s), ["tank ONLINE", "mirror-0 ONLINE", "s ONLINE", "b ONLINE"]);
    listed("");
    let history = s.run("zpool history -i other").ok();
    assert!(history.contains("vdev remove other vdev (spare)"), "{history}");
    judge(&s);
    s.run("zpool export other").ok();
    s.run("zpool export third").ok();
    cenote_testpools::judge(s.dir.path(), "other");
    s.run(&format!("zpool import -N -d {} other", s.dir.path().display())).ok();
    listed("");
    s.run("zpool export other").ok();
}

/// Overwrites the labels at both ends of a device, and nothing between them.
fn lose_labels(s: &Session, name: &str) {
    let file = File::options().write(true).open(s.path(name)).unwrap();
    for at in [0, (128 << 20) - (512 << 10)] {
        file.write_all_at(&[0; 512 << 10], at).unwrap();
    }
}

/// What it holds may be nowhere else.
#[test]
fn a_device_that_lost_its_labels_stays_in_use() {
    for (shape, options) in [("a", ""), ("raidz a b c", ""), ("raidz a b c", "-s")] {
        let s = pool(shape, &[]);
        let a = at(&s, "a");
        let before = shown(&s);
        s.run("zfs create -V 16M -o refreservation=none tank/v").ok();
        s.run("zpool sync tank").ok();
        lose_labels(&s, "a");
        // It is found in use by the pool's config, or by the device that is open.
        let refusals =
            ["is part of active pool 'tank'", "one or more vdevs refer to the same device"];
        for line in
            [format!("zpool replace {options} -f tank {a}"), format!("zpool replace tank {a} {a}")]
        {
            let said = s.run(&line).fails(1);
            assert!(refusals.iter().any(|why| said.ends_with(why)), "{said}");
            assert_eq!(shown(&s), before, "{line}");
        }
        s.run("zfs create tank/more").ok();
        if shape == "a" {
            s.run("zpool scrub -w tank").ok();
        }
        assert!(s.run("zpool status tank").ok().contains("No known data errors"));
        // The labels are written anew when the config changes.
        s.run("zpool export tank").ok();
        s.run(&format!("zpool import -d {} tank", s.dir.path().display())).ok();
        assert_eq!(shown(&s), before);
        s.run("zfs list tank/v tank/more").ok();
        judge(&s);
    }
}

/// The labels of a device that its pool cannot do without are written anew, and the pool goes on.
#[test]
fn a_reopened_pool_of_one_device_without_labels_goes_on() {
    let s = pool("a", &[]);
    let (a, before) = (at(&s, "a"), shown(&s));
    s.run("zpool sync tank").ok();
    lose_labels(&s, "a");
    s.run(&format!("zdb -l {a}")).fails(2);
    s.run("zpool reopen tank").ok();
    assert_eq!(shown(&s), before);
    s.run(&format!("zdb -l {a}")).ok();
    s.run("zfs create tank/more").ok();
    s.run("zpool export tank").ok();
    s.run(&format!("zpool import -d {} tank", s.dir.path().display())).ok();
    s.run("zfs list tank/more").ok();
    judge(&s);
}

/// A device that was out of use at an import and was brought back since stays in use, and comes back when it was away.
#[test]
fn what_came_back_after_an_import_stays() {
    for (out, back) in [("offline", "online"), ("offline -f", "clear")] {
        let s = pool("mirror a b", &[]);
        let (b, dir) = (at(&s, "b"), s.dir.path().display().to_string());
        s.run(&format!("zpool {out} tank {b}")).ok();
        s.run("zpool export tank").ok();
        s.run(&format!("zpool import -d {dir} tank")).ok();
        s.run(&format!("zpool {back} tank {b}")).ok();
        s.run("zpool wait -t resilver tank").ok();
        s.run("zpool scrub -w tank").ok();
        s.run("zpool reopen tank").ok();
        assert_eq!(shown(&s), ["tank ONLINE", "mirror-0 ONLINE", "a ONLINE", "b ONLINE"]);
        std::fs::rename(&b, format!("{b}.away")).unwrap();
        s.run("zpool reopen tank").ok();
        assert_eq!(shown(&s)[0], "tank DEGRADED");
        std::fs::rename(format!("{b}.away"), &b).unwrap();
        s.run("zpool reopen tank").ok();
        s.run("zpool wait -t resilver tank").ok();
        assert_eq!(shown(&s), ["tank ONLINE", "mirror-0 ONLINE", "a ONLINE", "b ONLINE"]);
        judge(&s);
    }
}

/// A scrub that begins looks at labels.
#[test]
fn a_scrub_finds_a_device_that_lost_its_labels() {
    let s = pool("mirror a b", &[]);
    s.run("zpool sync tank").ok();
    lose_labels(&s, "a");
    s.run("zpool scrub -w tank").ok();
    let seen = shown(&s);
    assert_eq!(seen[..2], ["tank DEGRADED", "mirror-0 DEGRADED"]);
    assert!(seen[2].ends_with("UNAVAIL") && seen[3] == "b ONLINE", "{seen:?}");
    s.run(&format!("zpool replace -w tank {p} {p}", p = at(&s, "a"))).ok();
    judge(&s);
}

#[test]
fn the_sectors_that_a_pool_asks_for_are_for_new_vdevs() {
    let s = pool("raidz a b c", &["d"]);
    s.run("zpool set ashift=13 tank").ok();
    s.run(&format!("zpool replace -w tank {} {}", at(&s, "a"), at(&s, "d"))).ok();
    assert_eq!(shown(&s), ["tank ONLINE", "raidz1-0 ONLINE", "d ONLINE", "b ONLINE", "c ONLINE"]);
    judge(&s);
}
