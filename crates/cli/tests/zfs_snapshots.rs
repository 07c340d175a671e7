//! Snapshots are cloned, promoted, held, bookmarked and rolled back to by commands, mounted or not.
//! OpenZFS's own `zdb` judges what is left.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::can_mount;
use common::tank::Tank;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn clones_are_promoted_in_openzfs_words() {
    let tank = Tank::unmounted();
    for name in ["a", "a/b", "v"] {
        tank.zfs(&format!("create tank/{name}"));
    }
    for name in ["one", "two", "three"] {
        tank.zfs(&format!("snapshot tank/a@{name}"));
    }
    tank.zfs("clone -o compression=lz4 -o quota=64M tank/a@two tank/c");
    tank.zfs("clone -p tank/a@two tank/x/y/c");
    tank.zfs("clone -p tank/a@two tank/x/y/c");
    tank.zfs("clone tank/a@one tank/older");
    assert_eq!(tank.get("origin,compression,quota", "tank/c"), "tank/a@two\nlz4\n67108864");
    // A snapshot's clones are in no order.
    let clones_of = |snapshot: &str| {
        let clones = tank.get("clones", snapshot);
        let mut names: Vec<String> = clones.split(',').map(String::from).collect();
        names.sort();
        names
    };
    assert_eq!(clones_of("tank/a@two"), ["tank/c", "tank/x/y/c"]);
    for (line, why) in [
        ("clone tank/a@nine tank/z", "cannot open 'tank/a@nine': dataset does not exist"),
        ("clone tank/a@two tank/c", "cannot create 'tank/c': dataset already exists"),
        ("clone tank/a@two tank/z/z", "cannot create 'tank/z/z': parent does not exist"),
        ("clone tank/a@two pond/z", "cannot create 'pond/z': source and target pools differ"),
        ("clone -o used=1 tank/a@two tank/z", "cannot create 'tank/z': 'used' is readonly"),
        (
            "clone -o encryption=off tank/a@two tank/z",
            "cannot create 'tank/z': Encryption properties must inherit from origin dataset.",
        ),
        ("clone -o reservation=1T tank/a@two tank/z", "cannot create 'tank/z': out of space"),
        ("promote tank/a", "cannot promote 'tank/a': not a cloned filesystem"),
    ] {
        assert_eq!(tank.refused(line), why, "{line}");
    }
    assert!(!tank.names().contains(&"tank/z".to_string()));

    tank.zfs("snapshot tank/c@one");
    assert_eq!(
        tank.refused("promote tank/c"),
        "cannot promote 'tank/c': conflicting snapshot 'one' from parent 'tank/a@two'"
    );
    tank.zfs("rename tank/c@one uno");
    tank.zfs("promote tank/c");
    let snapshots = tank.zfs("list -Ho name -t snapshot");
    assert_eq!(snapshots, "tank/a@three\ntank/c@one\ntank/c@two\ntank/c@uno\n");
    assert_eq!(tank.get("origin", "tank/a"), "tank/c@two");
    assert_eq!(tank.get("origin", "tank/c"), "-");
    assert_eq!(tank.get("origin", "tank/older"), "tank/c@one");
    assert_eq!(clones_of("tank/c@two"), ["tank/a", "tank/x/y/c"]);
    let refused = tank.refused("destroy tank/c@two");
    let mut lines: Vec<&str> = refused.lines().collect();
    assert_eq!(lines.remove(0), "cannot destroy 'tank/c@two': snapshot has dependent clones");
    assert_eq!(lines.remove(0), "use '-R' to destroy the following datasets:");
    lines.sort();
    assert_eq!(lines, ["tank/a", "tank/a/b", "tank/a@three", "tank/x/y/c"]);
    let history = tank.session.run("zpool history -i tank").ok();
    assert!(history.contains("clone tank/c ") && history.contains("promote tank/c "), "{history}");
    // Promoting the other way gives the snapshots back.
    tank.zfs("promote tank/a");
    assert_eq!(tank.get("origin", "tank/c"), "tank/a@two");
    tank.zfs("destroy -R tank/a@two");
    assert_eq!(tank.zfs("list -Ho name -t snapshot"), "tank/a@one\ntank/a@three\n");
    tank.finish();
}

#[test]
fn holds_keep_snapshots() {
    let tank = Tank::unmounted();
    tank.zfs("create -p tank/a/b");
    tank.zfs("snapshot -r tank/a@one");
    tank.zfs("hold keep tank/a@one");
    assert_eq!(
        tank.refused("hold keep tank/a@one"),
        "cannot hold snapshot 'tank/a@one': tag already exists on this dataset"
    );
    assert_eq!(
        tank.refused("hold keep tank/a@nine"),
        "cannot hold snapshot 'tank/a@nine': dataset does not exist"
    );
    assert_eq!(
        tank.refused(&format!("hold {} tank/a@one", "t".repeat(256))),
        "cannot hold snapshot 'tank/a@one': tag too long"
    );
    assert_eq!(tank.refused("hold keep tank/a"), "'tank/a' is not a snapshot");
    // All of a recursive hold, or nothing of it.
    tank.refused("hold -r keep tank/a@one");
    assert_eq!(tank.get("userrefs", "tank/a/b@one"), "0");
    tank.zfs("hold -r more tank/a@one");
    assert_eq!(tank.get("userrefs", "tank/a@one"), "2");
    assert_eq!(tank.zfs("holds -rHp tank/a@one").lines().count(), 3);
    assert_eq!(
        tank.refused("destroy tank/a@one"),
        "cannot destroy snapshot tank/a@one: it's being held. \
         Run 'zfs holds -r tank/a@one' to see holders."
    );
    tank.zfs("destroy -d tank/a@one");
    assert_eq!(tank.get("defer_destroy", "tank/a@one"), "on");
    assert_eq!(
        tank.refused("release none tank/a@one"),
        "cannot release hold from snapshot 'tank/a@one': no such tag on this dataset"
    );
    tank.zfs("release keep tank/a@one");
    tank.zfs("clone tank/a@one tank/c");
    tank.zfs("release -r more tank/a@one");
    assert!(tank.names().contains(&"tank/a@one".to_string()), "the clone keeps it");
    tank.zfs("destroy tank/c");
    assert!(!tank.names().contains(&"tank/a@one".to_string()));
    tank.zfs("hold last tank/a/b@one");
    tank.zfs("destroy -d tank/a/b@one");
    tank.zfs("release last tank/a/b@one");
    assert!(!tank.names().contains(&"tank/a/b@one".to_string()));
    tank.finish();
}

#[test]
fn bookmarks_outlive_snapshots() {
    let tank = Tank::unmounted();
    tank.zfs("create tank/a");
    tank.zfs("create tank/b");
    tank.zfs("snapshot tank/a@one tank/b@one");
    tank.zfs("bookmark tank/a@one tank/a#one");
    tank.zfs("bookmark @one tank/a#again");
    tank.zfs("bookmark tank/a#one #copy");
    assert_eq!(tank.zfs("list -Ho name -t bookmark"), "tank/a#again\ntank/a#copy\ntank/a#one\n");
    assert_eq!(tank.get("guid", "tank/a#copy"), tank.get("guid", "tank/a@one"));
    for (line, why) in [
        ("bookmark tank/a@one tank/a#one", "cannot create bookmark 'tank/a#one': bookmark exists"),
        ("bookmark tank/a@two tank/a#x", "cannot open 'tank/a@two': dataset does not exist"),
        (
            "bookmark tank/b@one tank/a#x",
            "cannot create bookmark 'tank/a#x': source is not an ancestor of the new bookmark's \
             dataset",
        ),
        ("destroy tank/a#nine", "bookmark 'tank/a#nine' does not exist."),
    ] {
        assert_eq!(tank.refused(line), why, "{line}");
    }
    // A clone may have bookmarks of the snapshots that it comes from, also through another clone.
    tank.zfs("snapshot tank/a@later");
    tank.zfs("clone tank/a@one tank/b/c");
    tank.zfs("snapshot tank/b/c@one");
    tank.zfs("clone tank/b/c@one tank/b/c/d");
    tank.zfs("bookmark tank/a@one tank/b/c#from");
    tank.zfs("bookmark tank/a#one tank/b/c/d#from");
    assert_eq!(tank.get("guid", "tank/b/c/d#from"), tank.get("guid", "tank/a@one"));
    assert_eq!(tank.get("written#from", "tank/b/c/d"), "0");
    for line in ["bookmark tank/a@later tank/b/c#x", "bookmark tank/b/c@one tank/a#x"] {
        let why = tank.refused(line);
        assert!(why.ends_with("source is not an ancestor of the new bookmark's dataset"), "{why}");
    }
    tank.zfs("destroy -R tank/b/c");
    tank.zfs("destroy tank/a@later");
    let said = tank.session.run("zfs destroy -r tank/a#one").fails(255);
    assert_eq!(said, "recursive is not supported with bookmark");
    tank.zfs("snapshot tank/a@two");
    tank.zfs("destroy tank/a@one");
    tank.zfs("destroy tank/a#one");
    tank.zfs("destroy tank/a#again");
    tank.zfs("destroy tank/a#copy");
    assert_eq!(tank.zfs("list -Ho name -t bookmark"), "");
    // They move with the snapshots of a promoted clone.
    tank.zfs("bookmark tank/a@two tank/a#two");
    tank.zfs("clone tank/a@two tank/c");
    tank.zfs("promote tank/c");
    assert_eq!(tank.zfs("list -Ho name -t bookmark"), "tank/c#two\n");
    tank.finish();
}

#[test]
fn a_mounted_file_system_is_rolled_back() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    fs::write(tank.path("tank/a/kept"), "old").unwrap();
    tank.zfs("snapshot tank/a@one");
    fs::write(tank.path("tank/a/kept"), "new").unwrap();
    fs::write(tank.path("tank/a/more"), vec![7; 3 << 20]).unwrap();
    tank.zfs("snapshot tank/a@two");
    tank.zfs("bookmark tank/a@two tank/a#two");
    tank.zfs("clone tank/a@two tank/c");
    fs::remove_file(tank.path("tank/a/kept")).unwrap();

    assert_eq!(
        tank.refused("rollback tank/a@one"),
        "cannot rollback to 'tank/a@one': more recent snapshots or bookmarks exist\n\
         use '-r' to force deletion of the following snapshots and bookmarks:\n\
         tank/a@two\ntank/a#two"
    );
    assert_eq!(
        tank.refused("rollback -r tank/a@one"),
        "cannot rollback to 'tank/a@one': clones of previous snapshots exist\n\
         use '-R' to force deletion of the following clones and dependents:\ntank/c"
    );
    tank.refused("rollback tank/a");
    tank.zfs("rollback tank/a@two");
    assert_eq!(fs::read_to_string(tank.path("tank/a/kept")).unwrap(), "new");
    assert_ne!(tank.get("usedbysnapshots", "tank/a"), "0");
    tank.zfs("rollback -R tank/a@one");
    assert_eq!(fs::read_to_string(tank.path("tank/a/kept")).unwrap(), "old");
    assert!(!tank.path("tank/a/more").exists());
    assert_eq!(tank.names(), ["tank", "tank/a", "tank/a@one"]);
    assert_eq!(tank.get("usedbysnapshots,written", "tank/a"), "0\n0");
    fs::write(tank.path("tank/a/after"), "x").unwrap();
    tank.finish();
}

#[test]
fn clones_take_what_is_said_of_them() {
    let tank = Tank::unmounted();
    tank.zfs("create tank/a");
    tank.zfs("snapshot tank/a@one");
    tank.zfs("clone -o version=5 tank/a@one tank/b");
    tank.zfs("create -V 16M tank/full");
    tank.zfs("create -s -V 16M tank/sparse");
    tank.zfs("snapshot tank/sparse@one");
    tank.zfs("clone tank/sparse@one tank/as_it_was");
    tank.zfs("clone -o refreservation=auto tank/sparse@one tank/auto");
    let reserved = |name: &str| tank.get("refreservation", name);
    assert_eq!(reserved("tank/as_it_was"), "0");
    assert_eq!(reserved("tank/auto"), reserved("tank/full"));
    // Without options zdb shows all that there is of the object that was named.
    let shown = tank.session.run("zdb tank/b 1").ok();
    assert!(shown.contains("ZFS master node") && !shown.contains("Dnode slots"), "{shown}");
    assert_ne!(tank.session.run("zdb tank/b 9999").code, 0);
    tank.finish();
}

#[test]
fn nothing_is_rolled_back_to_more_than_its_refquota() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create -o compression=off tank/a");
    fs::write(tank.path("tank/a/file"), vec![1; 2 << 20]).unwrap();
    tank.zfs("snapshot tank/a@one");
    fs::remove_file(tank.path("tank/a/file")).unwrap();
    tank.session.run("zpool sync tank").ok();
    tank.zfs("set refquota=1M tank/a");
    assert_eq!(tank.refused("rollback tank/a@one"), "cannot rollback 'tank/a': out of space");
    assert!(!tank.path("tank/a/file").exists());
    tank.zfs("set refquota=3M tank/a");
    tank.zfs("rollback tank/a@one");
    assert!(tank.path("tank/a/file").exists());
    tank.finish();
}

#[test]
fn a_file_system_in_use_is_rolled_back() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create -o atime=off tank/a");
    fs::create_dir_all(tank.path("tank/a/dir/inner")).unwrap();
    for name in ["file", "dir/inner/kept", "removed"] {
        fs::write(tank.path("tank/a").join(name), "one").unwrap();
    }
    tank.zfs("snapshot tank/a@one");
    let open = |name: &str| {
        let path = tank.path("tank/a").join(name);
        fs::File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    };
    let kept = open("file");
    kept.write_all_at(b"two and more", 0).unwrap();
    let removed = open("removed");
    fs::remove_file(tank.path("tank/a/removed")).unwrap();
    let young = open("young");
    young.write_all_at(b"new", 0).unwrap();
    fs::rename(tank.path("tank/a/dir"), tank.path("tank/a/moved")).unwrap();
    fs::write(tank.path("tank/a/moved/inner/young"), "").unwrap();
    assert!(!tank.path("tank/a/dir").exists());
    // A program works in a directory, and one is mounted in a directory that is not in the snapshot.
    let mut shell = Command::new("sh");
    shell.current_dir(tank.path("tank/a/moved/inner")).args(["-c", "read go; pwd; ls; cat kept"]);
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    tank.zfs("create tank/a/child");
    fs::write(tank.path("tank/a/child/file"), "child").unwrap();
    let inside = fs::File::open(tank.path("tank/a/child/file")).unwrap();

    tank.zfs("rollback tank/a@one");
    let mut text = [0; 16];
    assert_eq!(kept.read_at(&mut text, 0).unwrap(), 3);
    assert_eq!(&text[..3], b"one");
    assert_eq!(removed.read_at(&mut text, 0).unwrap(), 3, "it has its name again");
    let lost = |e: std::io::Error| [5, 116].contains(&e.raw_os_error().unwrap());
    assert!(lost(young.read_at(&mut text, 0).unwrap_err()));
    assert!(lost(young.write_at(b"x", 0).unwrap_err()));
    assert!(!tank.path("tank/a/young").exists() && !tank.path("tank/a/moved").exists());
    assert_eq!(fs::read_to_string(tank.path("tank/a/file")).unwrap(), "one");
    assert_eq!(fs::read_to_string(tank.path("tank/a/dir/inner/kept")).unwrap(), "one");
    shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let told = shell.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.ends_with("kept\none") && !told.contains("young"), "{told}");
    assert_eq!(fs::read_to_string(tank.path("tank/a/child/file")).unwrap(), "child");
    assert_eq!(inside.read_at(&mut text, 0).unwrap(), 5);
    // What goes on goes on.
    kept.write_all_at(b"three", 0).unwrap();
    removed.write_all_at(b"three", 0).unwrap();
    assert_eq!(fs::read_to_string(tank.path("tank/a/removed")).unwrap(), "three");
    assert_eq!(tank.get("mounted", "tank/a"), "yes");
    drop((kept, removed, young, inside));
    // What is mounted inside goes with its directory, and is mounted again at a new one.
    for _ in 0..10 {
        tank.zfs("rollback tank/a@one");
        assert_eq!(fs::read_to_string(tank.path("tank/a/file")).unwrap(), "one");
        assert_eq!(fs::read_to_string(tank.path("tank/a/child/file")).unwrap(), "child");
    }
    assert_eq!(tank.get("usedbysnapshots", "tank/a"), "0");
    tank.finish();
}

#[test]
fn a_file_system_is_rolled_back_while_programs_change_it() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    for file in 0..20 {
        fs::write(tank.path(&format!("tank/a/{file}")), vec![file; 50_000]).unwrap();
    }
    tank.zfs("snapshot tank/a@one");
    let dated = fs::metadata(tank.path("tank/a/.zfs/snapshot")).unwrap().mtime();
    assert_eq!(tank.get("snapshots_changed", "tank/a"), dated.to_string());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..3u8 {
            let (tank, stop) = (&tank, &stop);
            scope.spawn(move || {
                let at = |n: u64| tank.path(&format!("tank/a/{n}"));
                let mut round = u64::from(worker);
                while !stop.load(Ordering::SeqCst) {
                    round += 7;
                    // What fails fails since the file is not there any more.
                    let open = fs::File::options()
                        .write(true)
                        .create(true)
                        .truncate(false)
                        .open(at(round % 40));
                    if let Ok(file) = open {
                        let _ = file.write_all_at(&[worker; 9000], round * 1000 % 60_000);
                        let _ = file.sync_data();
                    }
                    let _ = fs::rename(at(round % 33), at(round % 29));
                    let _ = fs::remove_file(at(round % 31));
                    let _ = fs::read(at(round % 20));
                }
            });
        }
        for _ in 0..8 {
            tank.zfs("rollback tank/a@one");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        stop.store(true, Ordering::SeqCst);
    });
    tank.zfs("rollback tank/a@one");
    for file in 0..20 {
        let found = fs::read(tank.path(&format!("tank/a/{file}"))).unwrap();
        assert!(found == vec![file; 50_000], "{file}");
    }
    assert_eq!(fs::read_dir(tank.path("tank/a")).unwrap().count(), 20);
    assert_eq!(tank.get("usedbysnapshots", "tank/a"), "0");
    tank.finish();
}

#[test]
fn snapshots_are_taken_in_the_control_directory() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    fs::write(tank.path("tank/a/file"), "one").unwrap();
    let at = |name: &str| tank.path("tank/a/.zfs/snapshot").join(name);
    let refused = |done: std::io::Result<()>| done.unwrap_err().raw_os_error().unwrap();
    // Off by default.
    assert_eq!(refused(fs::create_dir(at("one"))), 13);
    tank.session.run("tunables set zfs_admin_snapshot=1").ok();
    fs::create_dir(at("one")).unwrap();
    assert_eq!(fs::read_to_string(at("one/file")).unwrap(), "one");
    assert_eq!(refused(fs::create_dir(at("one"))), 17);
    assert_eq!(refused(fs::create_dir(at("no@name"))), 84);
    fs::write(tank.path("tank/a/file"), "two").unwrap();
    fs::create_dir(at("two")).unwrap();
    assert_eq!(tank.zfs("list -Ho name -t snapshot"), "tank/a@one\ntank/a@two\n");
    fs::rename(at("one"), at("first")).unwrap();
    assert_eq!(fs::read_to_string(at("first/file")).unwrap(), "one");
    assert!(!at("one").exists() && at("two/file").exists());
    assert_eq!(refused(fs::rename(at("first"), at("two"))), 17);
    assert_eq!(refused(fs::rename(at("first"), tank.path("tank/a/out"))), 18);
    let listed = || {
        let names = fs::read_dir(at("")).unwrap().map(|e| e.unwrap().file_name());
        let mut names: Vec<_> = names.map(|n| n.into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(listed(), ["first", "two"]);
    // One that is in use, held or cloned stays.
    let open = fs::File::open(at("two/file")).unwrap();
    assert_eq!(refused(fs::remove_dir(at("two"))), 16);
    drop(open);
    let open = fs::read_dir(at("two")).unwrap();
    assert_eq!(refused(fs::remove_dir(at("two"))), 16);
    assert!(tank.refused("destroy tank/a@two").contains("dataset is busy"));
    assert_eq!(open.count(), 1);
    tank.zfs("hold keep tank/a@two");
    assert_eq!(refused(fs::remove_dir(at("two"))), 16);
    tank.zfs("release keep tank/a@two");
    tank.zfs("clone tank/a@first tank/c");
    assert_eq!(refused(fs::remove_dir(at("first"))), 17);
    fs::remove_dir(at("two")).unwrap();
    assert!(!at("two").exists() && at("first/file").exists());
    assert_eq!(listed(), ["first"]);
    assert_eq!(refused(fs::remove_dir(at("two"))), 2);
    // The name can be used again.
    fs::create_dir(at("two")).unwrap();
    assert_eq!(fs::read_to_string(at("two/file")).unwrap(), "two");
    tank.zfs("destroy tank/a@two");
    assert_eq!(listed(), ["first"]);
    tank.session.run("tunables reset zfs_admin_snapshot").ok();
    assert_eq!(refused(fs::remove_dir(at("first"))), 13);
    tank.finish();
}

/// What a clone has already takes no space when it is written once more with `O_SYNC`, also while transaction groups follow one
/// another closely: then the file nearly always has changes in a group that is not on disk yet.
#[test]
fn what_is_there_already_is_not_written_by_synchronous_writes() {
    const MIB: usize = 1 << 20;
    if !can_mount() {
        return;
    }
    let tank = Tank::new("-O compression=on -O checksum=sha256");
    let mut state = 1_u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let data: Vec<u8> = (0..24 * MIB).map(|_| noise()).collect();
    tank.zfs("create tank/a");
    fs::write(tank.path("tank/a/file"), &data).unwrap();
    tank.session.run("zpool sync").ok();
    tank.zfs("snapshot tank/a@one");
    tank.zfs("clone tank/a@one tank/b");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                tank.session.run("zpool sync").ok();
            }
        });
        let mut options = fs::OpenOptions::new();
        options.write(true).custom_flags(rustix::fs::OFlags::SYNC.bits().cast_signed());
        let file = options.open(tank.path("tank/b/file")).unwrap();
        for (number, part) in data.chunks(MIB).enumerate() {
            file.write_all_at(part, (number * MIB) as u64).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    tank.session.run("zpool sync").ok();
    let used: u64 = tank.get("used", "tank/b").parse().unwrap();
    assert!(used < MIB as u64, "{used}");
    assert!(fs::read(tank.path("tank/b/file")).unwrap() == data);
    tank.finish();
}
