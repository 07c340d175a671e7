//! Datasets are created, changed and destroyed by commands, mounted or not. OpenZFS's own `zdb` judges
//! what is left.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;
use common::{Session, can_mount, mounts_below, used_by_this};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::time::Duration;

#[test]
fn create_in_openzfs_words() {
    let tank = Tank::unmounted();
    tank.zfs("create -o compression=zstd-5 -o com.example:note=x tank/a");
    assert_eq!(tank.get("compression,com.example:note", "tank/a"), "zstd-5\nx");
    tank.zfs("create -p tank/b/c/d");
    tank.zfs("create -p tank/b/c/d");
    tank.zfs("create -pp tank/h/x");
    assert_eq!(tank.get("canmount", "tank/h"), "off");
    tank.zfs("create -o casesensitivity=insensitive -o normalization=formD tank/i");
    tank.zfs("create tank/i/j");
    let names = "casesensitivity,normalization,utf8only";
    assert_eq!(tank.get(names, "tank/i/j"), "insensitive\nformD\non");
    assert_eq!(tank.zfs("create -nv -o atime=off tank/z"), "would create tank/z\n\tatime=off\n");
    assert_eq!(
        tank.zfs("create -P -V 10M -b 32K tank/vol"),
        "create\ttank/vol\nproperty\tvolsize\t10485760\nproperty\tvolblocksize\t32768\n\
         property\trefreservation\t13369344\n"
            .replace("13369344", &tank.get("refreservation", "tank/vol"))
    );
    // The letters have the last word.
    tank.zfs("create -s -o volsize=16M -o volblocksize=64K -V 8M -b 32K tank/last");
    tank.zfs("create -s -V 1G tank/sparse");
    assert_eq!(tank.get("volsize,volblocksize", "tank/last"), "8388608\n32768");
    assert_eq!(tank.get("volsize,refreservation", "tank/sparse"), "1073741824\n0");

    for (line, why) in [
        ("create tank", "cannot create 'tank': missing dataset name"),
        ("create tank/a", "cannot create 'tank/a': dataset already exists"),
        ("create tank/x/y", "cannot create 'tank/x/y': parent does not exist"),
        ("create tank/vol/y", "cannot create 'tank/vol/y': parent is not a filesystem"),
        ("create pond/y", "cannot create 'pond/y': no such pool 'pond'"),
        (
            "create tank/a@b",
            "cannot create 'tank/a@b': snapshot delimiter '@' is not expected here",
        ),
        ("create tank/a!", "cannot create 'tank/a!': invalid character '!' in name"),
        ("create -o x tank/y", "missing '=' for property=value argument"),
        ("create -o atime=on -o atime=off tank/y", "property 'atime' specified multiple times"),
        ("create -V 8M -o volsize=16M tank/y", "property 'volsize' specified multiple times"),
        (
            "create -V 8M -b 8k -o volblocksize=32k tank/y",
            "property 'volblocksize' specified multiple times",
        ),
        ("create -o x=y tank/y", "cannot create 'tank/y': invalid property 'x'"),
        ("create -o used=1 tank/y", "cannot create 'tank/y': 'used' is readonly"),
        (
            "create -o recordsize=5K tank/y",
            "cannot create 'tank/y': 'recordsize' must be power of 2 from 512B to 16M",
        ),
        (
            "create -o encryption=on tank/y",
            "cannot create 'tank/y': Keyformat required for new encryption root.",
        ),
        ("create -o reservation=1T tank/y", "cannot create 'tank/y': out of space"),
        ("create -V 1T tank/y", "cannot create 'tank/y': out of space"),
        ("create -V lots tank/y", "bad volume size 'lots': bad numeric value 'lots'"),
        ("create -V 0 tank/y", "cannot create 'tank/y': volume size cannot be zero"),
    ] {
        assert_eq!(tank.refused(line), why, "{line}");
    }
    assert!(
        tank.session.run("zfs create -s tank/y").fails(2).starts_with("'-s' and '-b' can only")
    );
    assert!(tank.session.run("zfs create").fails(2).starts_with("missing filesystem argument"));
    assert!(!tank.names().contains(&"tank/y".to_string()));
    let long = format!("com.example:{}", "a".repeat(243));
    tank.zfs(&format!("set {long}=1 tank/b"));
    assert_eq!(tank.get(&long, "tank/b/c"), "1");
    tank.zfs(&format!("inherit {long} tank/b"));
    assert_eq!(tank.get(&long, "tank/b/c"), "-");
    let longer = format!("{long}a");
    assert_eq!(
        tank.refused(&format!("set {longer}=1 tank/b")),
        format!("cannot set property for 'tank/b': property name '{longer}' is too long")
    );
    let history = tank.session.run("zpool history tank").ok();
    assert!(history.contains(" zfs create -p tank/b/c/d\n"), "{history}");
    tank.finish();
}

#[test]
fn snapshots_and_destroying() {
    let tank = Tank::unmounted();
    for name in ["a", "a/b", "a/b/c", "d"] {
        tank.zfs(&format!("create tank/{name}"));
    }
    tank.zfs("snapshot -r -o com.example:why=test tank/a@one");
    assert_eq!(tank.get("com.example:why", "tank/a/b/c@one"), "test");
    for name in ["two", "three", "four", "five"] {
        tank.zfs(&format!("snapshot tank/a@{name} tank/d@{name}"));
    }
    assert_eq!(
        tank.refused("snapshot tank/d@six tank/a@one"),
        "cannot create snapshot 'tank/a@one': dataset already exists\nno snapshots were created"
    );
    assert!(!tank.names().contains(&"tank/d@six".to_string()), "all or none");
    assert_eq!(
        tank.refused("snapshot tank/d@x tank/d@y"),
        "cannot create snapshots : multiple snapshots of same fs not allowed\n\
         no snapshots were created"
    );
    tank.zfs("snapshot tank/d@x tank/d@x");
    tank.zfs("destroy tank/d@x");
    tank.zfs("rename tank/d@two deux");
    tank.zfs("rename -r tank/a@one @uno");
    assert!(tank.names().contains(&"tank/a/b/c@uno".to_string()));
    assert_eq!(tank.refused("rename tank/d pond"), "cannot create 'pond': missing dataset name");
    assert_eq!(tank.refused("rename tank pond"), "cannot create 'pond': missing dataset name");
    assert_eq!(
        tank.refused("rename tank/d@deux tank/a@deux"),
        "cannot rename to 'tank/a@deux': snapshots must be part of same dataset"
    );
    assert_eq!(
        tank.refused("rename tank/d@deux tank/d@three"),
        "cannot rename 'tank/d@deux': dataset already exists"
    );

    assert_eq!(
        tank.refused("destroy tank/a/b"),
        "cannot destroy 'tank/a/b': filesystem has children\n\
         use '-r' to destroy the following datasets:\n\
         tank/a/b/c@uno\ntank/a/b/c\ntank/a/b@uno"
    );
    assert_eq!(
        tank.refused("destroy tank"),
        "cannot destroy 'tank': operation does not apply to pools\n\
         use 'zfs destroy -r tank' to destroy all datasets in the pool\n\
         use 'zpool destroy tank' to destroy the pool itself"
    );
    assert_eq!(
        tank.refused("destroy tank/d@nine"),
        "could not find any snapshots to destroy; check snapshot names."
    );
    assert_eq!(
        tank.zfs("destroy -nv tank/d@deux%four,five"),
        "would destroy tank/d@deux\nwould destroy tank/d@three\nwould destroy tank/d@four\n\
         would destroy tank/d@five\nwould reclaim 0B\n"
    );
    tank.zfs("destroy tank/d@three%four");
    let left =
        |names: Vec<String>| names.into_iter().filter(|n| n.contains("d@")).collect::<Vec<_>>();
    assert_eq!(left(tank.names()), ["tank/d@deux", "tank/d@five"]);
    assert_eq!(
        tank.zfs("destroy -rv tank/a/b"),
        "will destroy tank/a/b/c@uno\nwill destroy tank/a/b/c\nwill destroy tank/a/b@uno\n\
         will destroy tank/a/b\n"
    );
    tank.zfs("destroy -r tank/a@uno");
    tank.zfs("destroy -r tank");
    assert_eq!(tank.names(), ["tank"]);
    tank.finish();
}

/// Names of snapshots compare as names of files do.
#[test]
fn snapshots_of_a_file_system_where_case_does_not_count() {
    let tank = Tank::unmounted();
    tank.zfs("create -o casesensitivity=insensitive tank/i");
    tank.zfs("snapshot tank/i@Monday");
    let why = tank.refused("snapshot tank/i@MONDAY");
    assert_eq!(why, "cannot create snapshot 'tank/i@MONDAY': dataset already exists");
    assert_eq!(tank.get("name", "tank/i@monday"), "tank/i@Monday");
    tank.zfs("rename tank/i@monDAY tank/i@Tuesday");
    assert_eq!(tank.zfs("list -Ho name -t snapshot"), "tank/i@Tuesday\n");
    tank.zfs("create -o casesensitivity=mixed tank/m");
    tank.zfs("snapshot tank/m@a");
    tank.zfs("snapshot tank/m@A");
    tank.zfs("destroy tank/i@TUESDAY");
    assert_eq!(tank.zfs("list -Ho name -t snapshot"), "tank/m@a\ntank/m@A\n");
    tank.finish();
}

/// A file system that is mounted over others is unmounted before them, and they stay known.
#[test]
fn what_covers_another_mount_goes_first() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create -o canmount=noauto tank/p");
    tank.zfs("create tank/p/c");
    fs::write(tank.path("tank/p/c/inner"), "").unwrap();
    tank.zfs("mount tank/p");
    assert!(!tank.path("tank/p/c").exists());
    // Its path leads nowhere.
    let why = tank.refused("unmount tank/p/c");
    assert!(why.contains("another mount covers it"), "{why}");
    assert_eq!(tank.get("mounted", "tank/p/c"), "yes");
    tank.zfs("unmount tank/p");
    assert_eq!(tank.get("mounted", "tank/p/c"), "no");
    assert_eq!(mounts_below(tank.session.dir.path()).len(), 1);
    tank.zfs("mount tank/p/c");
    assert!(tank.path("tank/p/c/inner").exists());
    // Two with the same mountpoint: each unmounts its own.
    tank.zfs("set mountpoint=/tank/p/c tank/p");
    tank.zfs("mount tank/p");
    fs::write(tank.path("tank/p/c/outer"), "").unwrap();
    assert!(tank.refused("unmount tank/p/c").contains("another mount covers it"));
    tank.zfs("unmount tank/p");
    tank.finish();
}

#[test]
fn what_is_in_use_is_destroyed_by_force_only() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    for name in ["a", "a/b", "c", "c/d"] {
        tank.zfs(&format!("create tank/{name}"));
    }
    tank.zfs("snapshot -r tank/a@one");
    tank.zfs("snapshot -r tank/c@two");
    assert_eq!(
        tank.zfs("destroy -Rv tank/a"),
        "will destroy tank/a/b@one\nwill destroy tank/a/b\nwill destroy tank/a@one\n\
         will destroy tank/a\n"
    );
    assert!(!tank.path("tank/a").exists());
    let file = tank.path("tank/c/d/file");
    fs::write(&file, "kept").unwrap();
    let held = fs::File::open(&file).unwrap();
    for all in ["-r", "-R"] {
        let why = tank.refused(&format!("destroy {all} tank/c"));
        assert!(why.contains("busy"), "{why}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    }
    tank.zfs("destroy -rf tank/c");
    assert_eq!(tank.names(), ["tank"]);
    drop(held);
    tank.finish();
}

/// What is in a dataset from the start has the copies that it inherits or is given.
#[test]
fn copies_hold_from_the_first_block() {
    let tank = Tank::new("-O canmount=off -O mountpoint=none -O copies=2");
    tank.zfs("create tank/two");
    tank.zfs("create -o copies=1 tank/one");
    tank.session.run("zpool export tank").ok();
    for (dataset, copies) in [("tank", 3), ("tank/two", 3), ("tank/one", 2)] {
        let said = objects(&tank, dataset);
        let (_, said) = said.split_once("ZFS master node").unwrap();
        let block = said.lines().find(|line| line.contains(" L0 0:")).unwrap();
        let places = block.split_whitespace().filter(|word| word.starts_with("0:")).count();
        assert_eq!(places, copies, "{dataset}: {block}");
    }
    cenote_testpools::judge(tank.session.dir.path(), "tank");
}

/// What OpenZFS's `zdb` says of the objects of a dataset of the exported pool.
#[track_caller]
fn objects(tank: &Tank, dataset: &str) -> String {
    let said = cenote_testpools::zdb(tank.session.dir.path(), dataset, &["-dddddd"]);
    let (_, said) = said.split_once(&format!("Dataset {dataset} [ZPL]")).unwrap();
    said.to_string()
}

#[test]
fn pointers_are_there_as_often_as_redundant_metadata_says() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("-O compression=off -O recordsize=512");
    // How often blocks of these levels of a file are there.
    let wanted =
        [("all", [2, 2, 1]), ("most", [2, 1, 1]), ("some", [1, 1, 1]), ("none", [1, 1, 1])];
    for (value, _) in wanted {
        tank.zfs(&format!("create -o redundant_metadata={value} tank/{value}"));
        fs::write(tank.path(&format!("tank/{value}/file")), vec![7; 1 << 20]).unwrap();
    }
    tank.session.run("zpool export tank").ok();
    for (value, places) in wanted {
        let said = objects(&tank, &format!("tank/{value}"));
        let (_, said) = said.split_once("ZFS plain file").unwrap();
        for (level, places) in ["L2", "L1", "L0"].into_iter().zip(places) {
            let of_level = |line: &&str| line.split_whitespace().nth(1) == Some(level);
            let block = said.lines().find(of_level).unwrap();
            let is = block.split_whitespace().filter(|word| word.starts_with("0:")).count();
            assert_eq!(is, places, "{value}: {block}");
        }
    }
    cenote_testpools::judge(tank.session.dir.path(), "tank");
}

#[test]
fn attributes_are_where_the_property_says() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    for value in ["sa", "dir"] {
        tank.zfs(&format!("create -o xattr={value} tank/{value}"));
        let file = tank.path(&format!("tank/{value}/file"));
        fs::write(&file, "").unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&file, "user.some", b"thing", flags).unwrap();
    }
    tank.session.run("zpool export tank").ok();
    for (value, in_dnode, in_dir) in [("sa", true, false), ("dir", false, true)] {
        let said = objects(&tank, &format!("tank/{value}"));
        let holds =
            (said.contains("SA xattrs: "), said.lines().any(|l| l.starts_with("\txattr\t")));
        assert_eq!(holds, (in_dnode, in_dir), "{value}: {said}");
    }
    cenote_testpools::judge(tank.session.dir.path(), "tank");
}

/// `standard`: an fsync waits until the change is stable; `always`: every write waits; `disabled`: neither
/// does. The first one waits for a transaction group, with which the intent log starts; then the log does.
#[test]
fn sync_says_who_waits_for_a_group() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    // Nothing else has groups written.
    tank.session.run("tunables set zfs_txg_timeout=1000000").ok();
    let newest = || {
        let line = tank.session.run("txgs -H -p -n 1 tank").ok();
        line.split('\t').nth(1).unwrap().parse::<u64>().unwrap()
    };
    // Each file system begins without a log.
    for (value, write_waits, fsync_waits) in
        [("standard", false, true), ("disabled", false, false), ("always", true, true)]
    {
        tank.zfs(&format!("create tank/{value}"));
        let mut file = fs::File::create(tank.path(&format!("tank/{value}/file"))).unwrap();
        tank.zfs(&format!("set sync={value} tank/{value}"));
        tank.session.run("zpool sync tank").ok();
        let before = newest();
        file.write_all(b"some").unwrap();
        let written = newest();
        file.sync_all().unwrap();
        assert_eq!(written > before, write_waits, "{value}: write");
        assert_eq!(newest() > before, fsync_waits, "{value}: fsync");
        let logged = newest();
        file.write_all(b"more").unwrap();
        file.sync_all().unwrap();
        assert_eq!(newest(), logged, "{value}: fsync with a log");
        // A property that is set leaves the log as it is.
        tank.zfs(&format!("set sync=always tank/{value}"));
        let set = newest();
        file.write_all(b"last").unwrap();
        file.sync_all().unwrap();
        assert_eq!(newest() > set, value == "disabled", "{value}: a log that goes on");
    }
    tank.finish();
}

#[test]
fn reading_is_noted_as_the_properties_say() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    let path = tank.path("tank/file");
    let accessed = || {
        let about = fs::metadata(&path).unwrap();
        (about.atime(), about.atime_nsec())
    };
    // Whether the first read after a change is noted, and the second one.
    for (properties, noted) in [
        ("atime=off relatime=off", [false, false]),
        ("atime=on relatime=off", [true, true]),
        ("atime=on relatime=on", [true, false]),
    ] {
        tank.zfs(&format!("set {properties} tank"));
        fs::write(&path, "something").unwrap();
        let found = [(), ()].map(|()| {
            let before = accessed();
            std::thread::sleep(Duration::from_millis(20));
            let mut file = fs::File::open(&path).unwrap();
            // From the file system, not from what the kernel keeps.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            file.read_exact(&mut [0; 9]).unwrap();
            drop(file);
            accessed() != before
        });
        assert_eq!(found, noted, "{properties}");
    }
    let (last, root) = (accessed(), tank.session.root());
    tank.session.run("zpool export tank").ok();
    let dir = tank.session.path("").display().to_string();
    tank.session.run(&format!("zpool import -d {dir} -R {root} tank")).ok();
    assert_eq!(accessed(), last, "it is on disk");
    tank.finish();
}

#[test]
fn properties_in_openzfs_words() {
    let tank = Tank::unmounted();
    tank.zfs("create tank/a");
    tank.zfs("create tank/a/b");
    tank.zfs("create -V 10M tank/vol");
    tank.zfs("set compression=lz4 atime=off com.example:x=y tank/a");
    assert_eq!(
        tank.zfs("get -Ho property,value,source compression,atime,com.example:x tank/a/b"),
        "compression\tlz4\tinherited from tank/a\natime\toff\tinherited from tank/a\n\
         com.example:x\ty\tinherited from tank/a\n"
    );
    tank.zfs("set com.example:y=2 tank/a/b");
    assert_eq!(
        tank.zfs("get -Ho property com.example:y,atime,com.example:x,type tank/a/b"),
        "com.example:y\natime\ncom.example:x\ntype\n"
    );
    tank.zfs("inherit com.example:y tank/a/b");
    tank.zfs("set quota=20M refquota=15M reservation=5M refreservation=3M tank/a/b");
    assert_eq!(
        tank.get("quota,refquota,reservation,refreservation", "tank/a/b"),
        "20971520\n15728640\n5242880\n3145728"
    );
    let used: u64 = tank.get("used", "tank/a").parse().unwrap();
    assert!(used > 5 << 20, "the reservation is charged: {used}");
    for (line, why) in [
        ("reservation=30M tank/a/b", "size is greater than available space"),
        ("quota=1M tank/a/b", "size is less than current used or reserved space"),
        ("volsize=10001K tank/vol", "'volsize' must be a multiple of volume block size (16K)"),
        ("volsize=8E tank/vol", "volume size exceeds limit for this system"),
        ("volblocksize=8K tank/vol", "'volblocksize' is readonly"),
        ("special_small_blocks=17M tank/a", "'special_small_blocks' must be zero to 16M"),
        ("recordsize=8K tank/vol", "'recordsize' does not apply to datasets of this type"),
        ("version=4 tank/a", "Can not downgrade; already at version 5"),
        ("atime=maybe tank/a", "'atime' must be one of 'on | off'"),
        ("quota=0 tank/a", "use 'none' to disable quota/refquota"),
        (
            "dedup=fletcher4,verify tank/a",
            "'dedup' must be one of 'on | off | verify | sha256[,verify] | sha512[,verify] | skein[,verify] | \
             edonr,verify | blake3[,verify]'",
        ),
    ] {
        let name = line.split(' ').nth(1).unwrap();
        assert_eq!(
            tank.refused(&format!("set {line}")),
            format!("cannot set property for '{name}': {why}"),
            "{line}"
        );
    }
    assert!(tank.session.run("zfs set atime=on").fails(2).starts_with("missing dataset name(s)"));
    tank.zfs("inherit -r com.example:x tank/a");
    tank.zfs("inherit compression tank/a");
    assert_eq!(tank.get("compression,com.example:x", "tank/a"), "on\n-");
    assert_eq!(
        tank.refused("inherit quota tank/a"),
        "'quota' property cannot be inherited\nuse 'zfs set quota=none' to clear\n\
         use 'zfs inherit -S quota' to revert to received value"
    );
    tank.zfs("set quota=none reservation=none refreservation=none tank/a/b");
    let reserved: u64 = tank.get("refreservation", "tank/vol").parse().unwrap();
    tank.zfs("set volsize=20M tank/vol");
    assert_eq!(tank.get("volsize", "tank/vol"), (20 << 20).to_string());
    let more: u64 = tank.get("refreservation", "tank/vol").parse().unwrap();
    // With 1280 blocks there is one more level of indirect blocks.
    assert_eq!(more - reserved, (10 << 20) + (512 << 10));
    tank.zfs("set refreservation=none tank/vol");
    tank.zfs("set refreservation=auto tank/vol");
    assert_eq!(tank.get("refreservation", "tank/vol"), more.to_string());
    // What is read-only keeps its size, and what is reserved for it.
    tank.zfs("set readonly=on tank/vol");
    let why = "cannot set property for 'tank/vol': dataset is read-only";
    for list in ["volsize=30M", "readonly=off volsize=30M com.example:x=y", "volsize=20M"] {
        tank.zfs("set readonly=on tank/vol");
        assert_eq!(tank.refused(&format!("set {list} tank/vol")), why);
        assert_eq!(tank.get("volsize", "tank/vol"), (20 << 20).to_string());
        assert_eq!(tank.get("refreservation", "tank/vol"), more.to_string());
    }
    assert_eq!(tank.get("com.example:x", "tank/vol"), "y");
    tank.zfs("set readonly=off tank/vol");
    tank.zfs("set volsize=30M readonly=on tank/vol");
    assert_eq!(tank.get("volsize", "tank/vol"), (30 << 20).to_string());
    tank.zfs("snapshot tank/a@s");
    tank.zfs("set com.example:of=snapshot tank/a@s");
    assert_eq!(
        tank.refused("set atime=on tank/a@s"),
        "cannot set property for 'tank/a@s': this property can not be modified for snapshots"
    );
    let history = tank.session.run("zpool history -i tank").ok();
    assert!(history.contains("] set tank/a ("), "{history}");
    tank.finish();
}

#[test]
fn mounts_follow_changes() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    tank.zfs("create tank/a/b");
    fs::write(tank.path("tank/a/file"), "first").unwrap();
    fs::write(tank.path("tank/a/b/file"), "below").unwrap();
    // Snapshots show at once, with what was written just before.
    tank.zfs("snapshot tank/a@one");
    fs::write(tank.path("tank/a/file"), "second").unwrap();
    let old = tank.path("tank/a/.zfs/snapshot/one/file");
    assert_eq!(fs::read_to_string(&old).unwrap(), "first");
    assert!(fs::write(&old, "x").is_err());
    tank.zfs("snapshot tank/a@two");
    let mut listed: Vec<_> = fs::read_dir(tank.path("tank/a/.zfs/snapshot"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    listed.sort();
    assert_eq!(listed, ["one", "two"]);
    // A new snapshot of an old name is the new one.
    tank.zfs("destroy tank/a@one");
    assert!(!old.exists());
    tank.zfs("snapshot tank/a@one");
    assert_eq!(fs::read_to_string(&old).unwrap(), "second");
    // Properties take effect at once.
    tank.zfs("set readonly=on tank/a");
    assert!(fs::write(tank.path("tank/a/file"), "third").is_err());
    assert!(fs::write(tank.path("tank/a/b/file"), "third").is_err(), "it is inherited");
    tank.zfs("set readonly=off tank/a");
    fs::write(tank.path("tank/a/file"), "third").unwrap();
    tank.zfs("set exec=off tank");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = tank.path("tank/a/b");
    let line = table.lines().find(|l| l.split(' ').nth(4) == point.to_str()).unwrap();
    assert!(line.contains("noexec"), "{line}");
    tank.zfs("mount -o remount,ro tank/a/b");
    assert!(fs::write(tank.path("tank/a/b/file"), "third").is_err());
    assert_eq!(tank.zfs("get -Ho value,source readonly tank/a/b"), "on\ttemporary\n");
    // Mountpoints follow, with what is below.
    tank.zfs("set mountpoint=/elsewhere tank/a");
    assert_eq!(fs::read_to_string(tank.path("elsewhere/b/file")).unwrap(), "below");
    assert!(!tank.path("tank/a").exists());
    tank.zfs("inherit mountpoint tank/a");
    tank.zfs("rename tank/a tank/c");
    assert_eq!(fs::read_to_string(tank.path("tank/c/b/file")).unwrap(), "below");
    assert_eq!(fs::read_to_string(tank.path("tank/c/.zfs/snapshot/two/file")).unwrap(), "second");
    tank.zfs("rename -u tank/c tank/d");
    assert_eq!(fs::read_to_string(tank.path("tank/c/file")).unwrap(), "third");
    assert_eq!(tank.get("mounted", "tank/d"), "yes");
    tank.zfs("unmount tank/d");
    tank.zfs("mount -a");
    assert_eq!(fs::read_to_string(tank.path("tank/d/file")).unwrap(), "third");
    // What is in use stays.
    let held = fs::File::open(tank.path("tank/d/b/file")).unwrap();
    let b = tank.path("tank/d/b");
    assert_eq!(
        tank.refused("destroy tank/d/b"),
        format!("cannot unmount '{}': pool or dataset is busy{}", b.display(), used_by_this())
    );
    assert_eq!(
        tank.refused("rename tank/d tank/e"),
        format!("cannot unmount '{}': pool or dataset is busy{}", b.display(), used_by_this())
    );
    assert_eq!(fs::read_to_string(tank.path("tank/d/file")).unwrap(), "third");
    drop(held);
    tank.zfs("set canmount=off tank/d/b");
    assert_eq!(tank.get("mounted", "tank/d/b"), "no");
    tank.zfs("create -u tank/x");
    assert_eq!(tank.get("mounted", "tank/x"), "no");
    tank.zfs("destroy -r tank/d");
    assert!(!tank.path("tank/d").exists());
    fs::write(tank.path("tank/left"), vec![1; 100_000]).unwrap();
    tank.finish();
}

#[test]
fn properties_reach_mounts_in_use() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    let (dir, file) = (tank.path("tank/a"), tank.path("tank/a/file"));
    let shows = |option: &str| {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table.lines().find(|l| l.split(' ').nth(4) == dir.to_str()).unwrap();
        line.split(' ').nth(5).unwrap().split(',').any(|o| o == option)
    };
    fs::write(&file, "first").unwrap();
    let held = fs::File::open(&file).unwrap();
    for (property, option) in
        [("exec", "noexec"), ("setuid", "nosuid"), ("devices", "nodev"), ("atime", "noatime")]
    {
        tank.zfs(&format!("set {property}=off tank/a"));
        assert!(shows(option), "{property}");
        tank.zfs(&format!("inherit {property} tank/a"));
        assert!(!shows(option), "{property}");
    }
    tank.zfs("set readonly=on tank/a");
    assert!(shows("ro") && fs::write(&file, "second").is_err());
    tank.zfs("set readonly=off tank/a");
    assert!(shows("rw"));
    fs::write(&file, "second").unwrap();
    let listed = || fs::read_dir(&dir).unwrap().any(|e| e.unwrap().file_name() == ".zfs");
    assert!(!listed() && dir.join(".zfs").exists());
    tank.zfs("set snapdir=visible tank/a");
    assert!(listed());
    tank.zfs("set snapdir=disabled tank/a");
    assert!(!listed() && !dir.join(".zfs").exists());
    tank.zfs("inherit snapdir tank/a");
    assert!(!listed() && dir.join(".zfs").exists());
    // The kernel does not make a mount read-only under a writer; the file system refuses all the same.
    let mut writer = fs::OpenOptions::new().append(true).open(&file).unwrap();
    let why = tank.refused("set readonly=on tank/a");
    let place = dir.display();
    assert!(why.contains(&format!("cannot remount '{place}': pool or dataset is busy")), "{why}");
    assert!(why.contains("property may be set but unable to remount filesystem"), "{why}");
    assert!(writer.write_all(b"third").is_err() && shows("rw"));
    drop(writer);
    tank.zfs("set readonly=on tank/a");
    assert!(shows("ro"));
    drop(held);
    // What was mounted read-only becomes writable in use.
    tank.zfs("unmount tank/a");
    tank.zfs("mount -o ro tank/a");
    let held = fs::File::open(&file).unwrap();
    assert!(shows("ro"));
    tank.zfs("mount -o remount,rw tank/a");
    assert!(shows("rw"));
    fs::write(&file, "third").unwrap();
    drop(held);
    tank.finish();
}

/// What the kernel does not check permissions by cannot be stored either.
#[test]
fn access_lists_count_as_soon_as_they_can_be_set() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    const NOBODY: u32 = 65534;
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    let (dir, file) = (tank.path("tank/a"), tank.path("tank/a/file"));
    fs::write(&file, "secret").unwrap();
    // The owner and `nobody` may read, the group and others may not: it has the mask's bits.
    let entries = [(1, 6, !0), (2, 4, NOBODY), (4, 0, !0), (0x10, 4, !0), (0x20, 0, !0u32)];
    let entry = |(tag, perm, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let list = [2u32.to_le_bytes().to_vec(), entries.into_iter().flat_map(entry).collect()];
    let grant = || {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&file, "system.posix_acl_access", &list.concat(), flags)
    };
    // The directories above are closed to others; one that is open already is not.
    let reads = |user: u32, group: u32| {
        let mut cat = std::process::Command::new("cat");
        cat.arg("/proc/self/fd/0/file").stdin(fs::File::open(&dir).unwrap());
        cat.uid(user).gid(group).output().unwrap().status.success()
    };
    let held = fs::File::open(&file).unwrap();
    let why = tank.refused("set acltype=posix tank/a");
    assert!(why.contains("pool or dataset is busy"), "{why}");
    assert_eq!(grant(), Err(rustix::io::Errno::OPNOTSUPP));
    // Changes of other properties are not affected.
    tank.zfs("set compression=lz4 tank");
    tank.zfs("set atime=off tank/a");
    assert_eq!(grant(), Err(rustix::io::Errno::OPNOTSUPP));
    drop(held);
    tank.zfs("set acltype=posix tank/a");
    grant().unwrap();
    assert!(reads(NOBODY, NOBODY), "the list lets it");
    assert!(!reads(1000, 0) && !reads(1000, 1000), "the list does not");
    // Without lists the mode counts, in which the group has the mask's bits; the file system is in use.
    let held = fs::File::open(&file).unwrap();
    for without in ["set acltype=off tank/a", "inherit acltype tank/a"] {
        tank.zfs(without);
        assert!(!reads(NOBODY, NOBODY) && reads(1000, 0), "{without}");
        assert_eq!(grant(), Err(rustix::io::Errno::OPNOTSUPP));
        tank.zfs("set acltype=posix tank/a");
        assert!(reads(NOBODY, NOBODY) && !reads(1000, 0), "the list counts again");
    }
    drop(held);
    tank.finish();
}

#[test]
fn devices_are_let_go_of_by_force_while_files_are_open() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    let (root, dir) = (tank.session.root(), tank.session.path("").display().to_string());
    for by_force in ["zpool export -f tank", "zfs unmount -f tank"] {
        fs::write(tank.path("tank/file"), "kept").unwrap();
        let mut held = fs::File::open(tank.path("tank/file")).unwrap();
        let dir_held = fs::File::open(tank.path("tank")).unwrap();
        tank.session.run(by_force).ok();
        if by_force.starts_with("zfs") {
            tank.session.run("zpool export tank").ok();
        }
        tank.session.run(&format!("zpool import -d {dir} -R {root} tank")).ok();
        assert!(held.read(&mut [0; 4]).is_err());
        assert_eq!(fs::read(tank.path("tank/file")).unwrap(), b"kept");
        drop(dir_held);
    }
    tank.finish();
}

#[test]
fn directories_of_mountpoints_outlive_an_export() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    fs::write(tank.path("tank/a/file"), "kept").unwrap();
    let (root, dir) = (tank.session.root(), tank.session.path("").display().to_string());
    // Nothing can be made in a file system that is mounted read-only, nor need it be.
    tank.session.run("zpool export tank").ok();
    tank.session.run(&format!("zpool import -d {dir} -R {root} -o ro tank")).ok();
    assert_eq!(fs::read_to_string(tank.path("tank/a/file")).unwrap(), "kept");
    // With the file system its directory goes, also one that cenote did not make.
    tank.session.run("zpool export tank").ok();
    tank.session.run(&format!("zpool import -d {dir} -R {root} tank")).ok();
    tank.zfs("destroy tank/a");
    assert!(!tank.path("tank/a").exists());
    tank.finish();
}

#[test]
fn a_pool_that_is_imported_read_only_stays_as_it_is() {
    let session = Session::new();
    session.import("compat21");
    let why = |line: &str| session.run(&format!("zfs {line}")).fails(1);
    assert_eq!(why("create compat21/x"), "cannot create 'compat21/x': pool is read-only");
    assert_eq!(
        why("set atime=off compat21"),
        "cannot set property for 'compat21': dataset is read-only"
    );
    assert_eq!(
        why("snapshot compat21@x"),
        "cannot create snapshot 'compat21@x': pool is read-only"
    );
}
