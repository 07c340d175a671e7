//! Livelists as commands show them: `zdb` prints and verifies them as OpenZFS's does, the history says how a
//! clone was destroyed, and what is left to be freed of one survives an export.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::can_mount;
use common::tank::Tank;
use std::fs;
use std::os::unix::fs::FileExt;

/// What OpenZFS's `zdb` prints, and ours; the pool is exported.
fn both(tank: &Tank, options: &str) -> [String; 2] {
    let dir = tank.session.dir.path().to_str().unwrap();
    let mut args = vec!["-e", "-p", dir];
    args.extend(options.split(' '));
    let (output, text) = cenote_testpools::zdb_output(cenote_testpools::zdb_command(&args));
    assert!(output.status.success(), "{text}");
    let ours = tank.session.run(&format!("zdb -e -p {dir} {options}"));
    assert_eq!(ours.code, 0, "{}", ours.err);
    [String::from_utf8_lossy(&output.stdout).into_owned(), ours.out]
}

/// The part about a dataset's livelist: its sub-lists and their entries.
fn livelist(text: &str) -> Vec<&str> {
    let lines = text.lines().skip_while(|l| !l.contains("Livelist:"));
    let ends = |l: &&str| ["    Object", "Dataset", "ZIL"].iter().any(|end| l.starts_with(end));
    lines.take_while(|l| !ends(l)).filter(|l| !l.is_empty()).collect()
}

#[test]
fn zdb_prints_and_verifies_livelists_as_openzfs_does() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("-O recordsize=8K -O compression=off");
    tank.zfs("create tank/a");
    fs::write(tank.path("tank/a/file"), vec![1; 16 << 20]).unwrap();
    tank.zfs("snapshot tank/a@one");
    tank.zfs("clone tank/a@one tank/c");
    tank.session.run("tunables set zfs_livelist_max_entries=40").ok();
    for round in 0..5u8 {
        let file = fs::OpenOptions::new().write(true).open(tank.path("tank/c/file")).unwrap();
        for block in 0..60 {
            file.write_all_at(&[round; 4096], block * 80_000).unwrap();
        }
        drop(file);
        tank.session.run("zpool sync tank").ok();
    }
    tank.session.run("zpool export tank").ok();
    cenote_testpools::judge(tank.session.dir.path(), "tank");
    let [theirs, ours] = both(&tank, "-ddddd tank/c");
    assert_eq!(livelist(&ours), livelist(&theirs));
    let entries = livelist(&ours);
    assert!(entries.len() > 300 && entries.iter().any(|l| l.contains("FREE")), "{entries:?}");
    let nothing = both(&tank, "-y tank");
    assert_eq!(nothing, ["Verifying deleted livelist entries\nVerifying metaslab entries\n"; 2]);

    // One block in each group, and thousands of groups: the export comes first.
    let dir = tank.session.dir.path().to_str().unwrap().to_string();
    tank.session
        .run("tunables set zfs_async_block_max_blocks=1 zfs_livelist_min_percent_shared=0")
        .ok();
    tank.session.run(&format!("zpool import -R {} -d {dir} tank", tank.session.root())).ok();
    fs::write(tank.path("tank/c/more"), vec![2; 32 << 20]).unwrap();
    tank.session.run("zpool sync tank").ok();
    tank.zfs("destroy tank/c");
    tank.session.run("zpool export tank").ok();
    cenote_testpools::judge(tank.session.dir.path(), "tank");
    let [theirs, ours] = both(&tank, "-y -dddd tank");
    let deleted = |text: &str| {
        let about = text.lines().filter(|l| l.contains("Livelist") || l.contains("livelist"));
        about.map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(deleted(&ours), deleted(&theirs));
    assert!(ours.contains("Deleted Livelist: "), "{ours}");

    let tunables =
        "zfs_async_block_max_blocks zfs_livelist_max_entries zfs_livelist_min_percent_shared";
    tank.session.run(&format!("tunables reset {tunables}")).ok();
    tank.session.run(&format!("zpool import -R {} -d {dir} tank", tank.session.root())).ok();
    let history = tank.session.run("zpool history -i tank").ok();
    assert!(history.contains("(livelist, mintxg="), "{history}");
    while tank.session.run("zpool get -Hpo value freeing tank").ok().trim() != "0" {
        tank.session.run("zpool sync tank").ok();
    }
    assert_eq!(fs::read(tank.path("tank/a/file")).unwrap(), vec![1; 16 << 20]);
    tank.finish();
}
