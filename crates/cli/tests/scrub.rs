//! `zpool scrub`, `zpool resilver`, and what `zpool wait` and `zpool status` say of them, by the real binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::Session;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

fn status(s: &Session) -> String {
    s.run("zpool status tank").ok()
}

#[test]
fn a_scrub_from_its_start_to_its_end() {
    let s = Session::mirror();
    for i in 0..20 {
        s.run(&format!("zfs create -o cenote:i={i} tank/d{i}")).ok();
    }
    s.run("zpool export tank").ok();
    let file = File::options().read(true).write(true).open(s.path("a")).unwrap();
    let mut bytes = vec![0; 100 << 20];
    file.read_exact_at(&mut bytes, 5 << 20).unwrap();
    bytes.iter_mut().step_by(777).for_each(|byte| *byte ^= 1);
    file.write_all_at(&bytes, 5 << 20).unwrap();
    let dir = s.dir.path().display().to_string();
    s.run(&format!("zpool import -N -d {dir} tank")).ok();
    s.run("zpool scrub -w tank").ok();
    let text = status(&s);
    assert!(
        text.contains("  scan: scrub repaired ") && text.contains(" with 0 errors on "),
        "{text}"
    );
    assert!(!text.contains("repaired 0B"), "{text}");
    s.run("zpool scrub tank").ok();
    s.run("zpool wait -t scrub tank").ok();
    assert!(status(&s).contains("scan: scrub repaired 0B in 00:00:0"), "{}", status(&s));
    let json = s.run("zpool status -j tank").ok();
    for pair in ["\"function\":\"SCRUB\"", "\"state\":\"FINISHED\""] {
        assert!(json.replace(' ', "").contains(pair), "{json}");
    }
    let history = s.run("zpool history -i tank").ok();
    assert!(history.contains("scan setup func=1 mintxg=0 maxtxg="), "{history}");
    assert!(history.contains("scan done errors=0"), "{history}");
    let events = s.run("zpool events -H").ok();
    for name in ["scrub_start", "scrub_finish"] {
        assert!(events.contains(&format!("sysevent.fs.zfs.{name}")), "{events}");
    }
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

/// `-a` is all pools that are imported, and each of them is told by itself.
#[test]
fn all_pools_are_scrubbed() {
    let s = Session::mirror();
    let c = s.path("c");
    File::create(&c).unwrap().set_len(128 << 20).unwrap();
    s.run(&format!("zpool create -O mountpoint=none other {}", c.display())).ok();
    let both = |what: &str| {
        for pool in ["tank", "other"] {
            let text = s.run(&format!("zpool status {pool}")).ok();
            assert!(text.contains(what), "{pool}: {text}");
        }
    };
    let scrubs = |pool: &str| {
        let history = s.run(&format!("zpool history -i {pool}")).ok();
        history.matches("scan setup func=1 ").count()
    };
    s.run("zpool scrub -aw").ok();
    both("  scan: scrub repaired 0B in ");
    s.run("zpool scrub -a").ok();
    ["tank", "other"]
        .iter()
        .for_each(|pool| drop(s.run(&format!("zpool wait -t scrub {pool}")).ok()));
    both("  scan: scrub repaired 0B in ");
    assert_eq!((scrubs("tank"), scrubs("other")), (2, 2));
    // One that cannot be scrubbed keeps no other one from that.
    let said = s.run("zpool scrub -as").fails(1);
    for pool in ["tank", "other"] {
        let why = format!("cannot cancel scrubbing {pool}: there is no active scrub");
        assert!(said.contains(&why), "{said}");
    }
    let said = s.run("zpool scrub -a tank").fails(2);
    assert!(said.starts_with("cannot give a pool name with -a\n"), "{said}");
    s.run("zpool export other").ok();
    s.run("zpool scrub -aw").ok();
    assert_eq!(scrubs("tank"), 3);
    s.run("zpool export tank").ok();
    for pool in ["tank", "other"] {
        cenote_testpools::judge(s.dir.path(), pool);
    }
    let dir = s.dir.path().display().to_string();
    // Without a pool there is nothing to do.
    s.run("zpool scrub -a").ok();
    s.run(&format!("zpool import -N -d {dir} other")).ok();
    assert_eq!(scrubs("other"), 2);
    s.run("zpool export other").ok();
}

#[test]
fn what_cannot_be_done_is_refused() {
    let s = Session::mirror();
    let fails = |line: &str, why: &str| assert_eq!(s.run(line).fails(1), why, "{line}");
    fails("zpool scrub -s tank", "cannot cancel scrubbing tank: there is no active scrub");
    fails("zpool scrub -p tank", "cannot pause scrubbing tank: there is no active scrub");
    fails("zpool scrub nosuch", "cannot open 'nosuch': no such pool");
    let misused = |line: &str, why: &str| {
        let said = s.run(line).fails(2);
        assert!(said.starts_with(why), "{line}: {said}");
    };
    misused("zpool scrub", "missing pool name argument\n");
    misused("zpool resilver", "missing pool name argument\n");
    misused(
        "zpool scrub -ps tank",
        "invalid option combination: -s and -p are mutually exclusive\n",
    );
    misused(
        "zpool scrub -ws tank",
        "invalid option combination: -w cannot be used with -p or -s\n",
    );
    misused(
        "zpool scrub -es tank",
        "invalid option combination: -e and -s are mutually exclusive\n",
    );
    misused("zpool scrub -S yesterday tank", "Failed to parse the date.\n");
    misused(
        "zpool scrub -S 2026-11-03 -E 2026-11-01 tank",
        "invalid arguments: end date has to be later than start date\n",
    );
    misused(
        "zpool scrub -C -E 2026-11-01 tank",
        "invalid option combination: -C and -S/-E date are mutually exclusive\n",
    );
    // Its log does not tell when blocks were born.
    fails(
        "zpool scrub -ew tank",
        "cannot scrub tank: operation not supported on this type of pool",
    );
    s.run("zpool scrub -w -S 2020-01-01 -E 2026-11-01 tank").ok();
    s.run("zpool resilver tank").ok();
    s.run("zpool scrub -aw").ok();
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

#[test]
fn a_device_that_comes_back_is_resilvered() {
    let s = Session::mirror();
    let b = s.path("b").display().to_string();
    s.run(&format!("zpool offline tank {b}")).ok();
    s.run("zfs create tank/one").ok();
    s.run(&format!("zpool online tank {b}")).ok();
    s.run("zpool wait -t resilver tank").ok();
    let text = status(&s);
    assert!(text.contains("  scan: resilvered ") && !text.contains("awaiting"), "{text}");
    let history = s.run("zpool history -i tank").ok();
    assert!(history.contains("scan setup func=2 mintxg="), "{history}");
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

/// Turns bytes of a file around where `piece` stands.
fn turn(disk: &Path, piece: &[u8]) {
    let mut bytes = std::fs::read(disk).unwrap();
    let other: Vec<u8> = piece.iter().map(|b| !*b).collect();
    let mut found = 0;
    for at in (4 << 20..bytes.len() - piece.len()).step_by(512) {
        let here = &mut bytes[at..at + piece.len()];
        if here == piece || here == other {
            here.iter_mut().for_each(|b| *b = !*b);
            found += 1;
        }
    }
    assert!(found > 0);
    std::fs::write(disk, bytes).unwrap();
}

/// Damaged files are named until a scrub finds them right; `zpool clear` takes counters back, and no names.
#[test]
fn damage_is_named_until_a_scrub_finds_none() {
    let s = Session::new();
    if !common::can_mount() {
        return;
    }
    let (a, root) = (s.path("a"), s.root());
    File::create(&a).unwrap().set_len(128 << 20).unwrap();
    s.run(&format!("zpool create -O compression=off -R {root} tank {}", a.display())).ok();
    let sector: Vec<u8> = (0..512u32).map(|i| (i * 11 + 5) as u8).collect();
    std::fs::write(Path::new(&root).join("tank/damaged"), sector.repeat(20)).unwrap();
    s.run("zpool export tank").ok();
    turn(&a, &sector);
    let import = format!("zpool import -R {root} -d {} tank", s.dir.path().display());
    let named = |is: bool| {
        let text = s.run("zpool status -v tank").ok();
        let end = text.trim_end();
        assert_eq!(end.ends_with(&format!("{root}/tank/damaged")), is, "{text}");
        assert_eq!(end.ends_with("errors: No known data errors"), !is, "{text}");
    };
    s.run(&import).ok();
    named(false);
    s.run("zpool scrub -w tank").ok();
    named(true);
    s.run("zpool clear tank").ok();
    named(true);
    s.run("zpool export tank").ok();
    s.run(&import).ok();
    named(true);
    s.run("zpool export tank").ok();
    turn(&a, &sector);
    s.run(&import).ok();
    named(true);
    s.run("zpool scrub -w tank").ok();
    named(false);
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}
