//! Encrypted datasets that this program makes and writes, through the real binary. OpenZFS's own `zdb` judges each pool.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::keys::{contents, fed, key_file};
use common::tank::Tank;
use common::{can_mount, skip, used_by_this};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Write;
use std::time::Duration;

const HEX: &str = "df226b439a2fd448ea43a3a44512ef7c534ce6ffd1a881a02c9b5306a1e27ad7";
const OTHER: &str = "00226b439a2fd448ea43a3a44512ef7c534ce6ffd1a881a02c9b5306a1e27ad7";
const PHRASE: &str = "correct horse battery";

#[test]
fn datasets_are_encrypted_as_asked_for() {
    let tank = Tank::unmounted();
    let place = key_file(&tank, "key", HEX);
    let root = format!("-o encryption=on -o keyformat=hex -o keylocation={place}");
    tank.zfs(&format!("create {root} tank/e"));
    tank.zfs("create tank/e/child");
    tank.zfs("create -o encryption=aes-128-ccm tank/e/ccm");
    tank.zfs("create -o encryption=off tank/e/clear");
    tank.zfs("create -V 8M tank/e/vol");
    let phrase = "zfs create -o encryption=aes-192-gcm -o keyformat=passphrase tank/p";
    fed(&tank.session, phrase, format!("{PHRASE}\n").as_bytes()).ok();
    let of = |name: &str| tank.get("encryption,keyformat,encryptionroot,keystatus", name);
    assert_eq!(of("tank/e"), "aes-256-gcm\nhex\ntank/e\navailable");
    assert_eq!(of("tank/e/child"), "aes-256-gcm\nhex\ntank/e\navailable");
    assert_eq!(of("tank/e/ccm"), "aes-128-ccm\nhex\ntank/e\navailable");
    assert_eq!(of("tank/e/clear"), "off\nnone\n-\n-");
    assert_eq!(of("tank/e/vol"), "aes-256-gcm\nhex\ntank/e\navailable");
    assert_eq!(of("tank/p"), "aes-192-gcm\npassphrase\ntank/p\navailable");
    assert_eq!(tank.get("pbkdf2iters,keylocation", "tank/p"), "350000\nprompt");

    for (line, why) in [
        ("create -o encryption=on tank/x", "Keyformat required for new encryption root."),
        (
            "create -o keyformat=raw tank/x",
            "Encryption must be turned on to set encryption properties.",
        ),
        (
            "create -o encryption=on -o keyformat=x tank/x",
            "'keyformat' must be one of 'none | raw | hex | passphrase'",
        ),
        (
            "create -o encryption=on -o keyformat=passphrase -o pbkdf2iters=1000 tank/x",
            "minimum pbkdf2 iterations is 100000",
        ),
    ] {
        assert_eq!(tank.refused(line), format!("cannot create 'tank/x': {why}"), "{line}");
    }
    assert_eq!(
        tank.refused("create -s -V 16M -o volblocksize=16M tank/e/ccm/vol"),
        "cannot create 'tank/e/ccm/vol': volblocksize=16M is too large for encryption=aes-128-ccm, which takes \
         blocks of 8M at most"
    );
    assert_eq!(
        tank.refused("set keylocation=none tank/e"),
        "cannot set property for 'tank/e': keylocation must not be 'none' for encrypted datasets"
    );
    tank.zfs("set keylocation=prompt tank/e");
    assert_eq!(tank.get("keylocation", "tank/e"), "prompt");

    // Without the key nothing is made below.
    tank.zfs("unload-key tank/e");
    assert_eq!(
        tank.refused("create tank/e/x"),
        "cannot create 'tank/e/x': encryption root's key is not loaded or provided"
    );
    // Snapshots take none, and what is destroyed goes without it.
    tank.zfs("snapshot -r tank/e@s");
    tank.zfs("destroy -r tank/e/ccm");
    tank.zfs("rollback tank/e/child@s");
    tank.finish();
}

#[test]
fn keys_change_with_their_datasets() {
    let tank = Tank::unmounted();
    let (one, other) = (key_file(&tank, "one", HEX), key_file(&tank, "other", OTHER));
    tank.zfs(&format!("create -o encryption=on -o keyformat=hex -o keylocation={one} tank/e"));
    tank.zfs("create -p tank/e/a/b");
    tank.zfs("create tank/plain");
    let root = |name: &str| tank.get("encryptionroot", name);

    tank.zfs("snapshot tank/e/a/b@s");
    tank.zfs("clone tank/e/a/b@s tank/e/clone");
    assert_eq!(root("tank/e/clone"), "tank/e");
    let refused = |line: &str| tank.session.run(&format!("zfs {line}")).fails(255);
    assert_eq!(
        refused(&format!("change-key -o keyformat=hex -o keylocation={other} tank/e/clone")),
        "Key change error: Keys cannot be changed on clones."
    );
    assert_eq!(
        tank.refused("rename tank/e/a tank/plain/a"),
        "cannot rename 'tank/e/a': cannot move encrypted child outside of its encryption root"
    );
    tank.zfs("rename tank/e/a tank/e/moved");
    tank.zfs("promote tank/e/clone");
    tank.zfs("destroy tank/e/moved/b");
    tank.zfs("destroy -r tank/e/clone");

    tank.zfs(&format!("change-key -o keyformat=hex -o keylocation={other} tank/e/moved"));
    assert_eq!(root("tank/e/moved"), "tank/e/moved");
    assert_eq!(refused("change-key -i tank/e"), "Key change error: Parent must be encrypted.");
    tank.zfs("rename tank/e/moved tank/plain/own");
    assert_eq!(root("tank/plain/own"), "tank/plain/own");
    tank.zfs("unload-key -a");
    assert_eq!(
        refused(&format!("load-key -L {one} tank/plain/own")),
        "Key load error: Incorrect key provided for 'tank/plain/own'."
    );
    tank.zfs(&format!("load-key -L {other} tank/plain/own"));
    tank.zfs("load-key tank/e");
    tank.zfs("rename tank/plain/own tank/e/own");
    tank.zfs("change-key -i tank/e/own");
    assert_eq!(root("tank/e/own"), "tank/e");
    assert_eq!(tank.get("keylocation", "tank/e/own"), "none");
    // A clone of an encryption root takes its place.
    tank.zfs("snapshot tank/e@root");
    tank.zfs("clone tank/e@root tank/f");
    tank.zfs("promote tank/f");
    assert_eq!(root("tank/e/own"), "tank/f");
    assert_eq!(tank.get("keystatus", "tank/f"), "available");
    tank.zfs("unload-key tank/f");
    assert_eq!(tank.get("keystatus", "tank/e/own"), "unavailable");
    tank.zfs("load-key tank/f");
    tank.finish();
}

#[test]
fn new_datasets_have_no_key_of_destroyed_ones() {
    if !can_mount() {
        return skip("nothing can be mounted here");
    }
    let tank = Tank::new("");
    let place = key_file(&tank, "key", HEX);
    for name in ["tank/e", "tank/f", "tank/g"] {
        let root = format!("-o encryption=on -o keyformat=hex -o keylocation={place}");
        tank.zfs(&format!("create {root} {name}"));
        for child in ["a", "b"] {
            tank.zfs(&format!("create {name}/{child}"));
            assert_eq!(tank.get("mounted", &format!("{name}/{child}")), "yes");
            tank.zfs(&format!("destroy {name}/{child}"));
        }
        tank.zfs(&format!("destroy {name}"));
    }
    tank.finish();
}

#[test]
fn blocks_in_several_pieces_are_encrypted() {
    if !can_mount() {
        return skip("nothing can be mounted here");
    }
    for suite in ["aes-256-gcm", "aes-128-ccm"] {
        let tank = Tank::new("-O compression=off");
        let s = &tank.session;
        s.run("tunables set metaslab_force_ganging=16384 metaslab_force_ganging_pct=60").ok();
        let place = key_file(&tank, "key", HEX);
        let root = format!("-o encryption={suite} -o keyformat=hex -o keylocation={place}");
        tank.zfs(&format!("create {root} tank/e"));
        // All kinds of checksums: some are folded, some are cut.
        let sums = ["fletcher4", "sha256", "sha512"];
        let all: Vec<(std::path::PathBuf, Vec<u8>)> = (0..12)
            .map(|n| (tank.path(&format!("tank/e/file{n}")), contents(n, 700_000)))
            .collect();
        for (n, (path, bytes)) in all.iter().enumerate() {
            tank.zfs(&format!("set checksum={} tank/e", sums[n % sums.len()]));
            fs::write(path, bytes).unwrap();
            s.run("zpool sync tank").ok();
        }
        tank.zfs("unmount tank/e");
        tank.zfs("unload-key tank/e");
        tank.zfs("mount -l tank/e");
        for (path, bytes) in &all {
            assert!(fs::read(path).unwrap() == *bytes, "{suite}: {}", path.display());
        }
        let dir = s.dir.path().to_path_buf();
        s.run("zpool export tank").ok();
        let text = cenote_testpools::zdb(&dir, "tank", &["-b"]);
        let ganged = text.lines().find_map(|l| l.trim().strip_prefix("ganged count:"));
        assert!(ganged.unwrap().trim().parse::<u64>().unwrap() > 20, "{text}");
        cenote_testpools::judge(&dir, "tank");
    }
}

#[test]
fn files_are_written_and_found_again() {
    if !can_mount() {
        return skip("nothing can be mounted here");
    }
    for suite in ["aes-256-gcm", "aes-256-ccm"] {
        let tank = Tank::new("");
        let place = key_file(&tank, "key", HEX);
        let root = format!("-o encryption={suite} -o keyformat=hex -o keylocation={place}");
        tank.zfs(&format!("create {root} -o copies=3 tank/e"));
        tank.zfs("create tank/e/child");
        let files: Vec<(String, Vec<u8>)> = (0..40)
            .map(|n| (format!("tank/e/file{n}"), contents(n, 1000 << (n % 10))))
            .chain([("tank/e/child/large".into(), contents(99, 3 << 20))])
            .collect();
        for (name, bytes) in &files {
            fs::write(tank.path(name), bytes).unwrap();
        }
        tank.zfs("snapshot -r tank/e@before");
        for n in 0..20 {
            fs::remove_file(tank.path(&format!("tank/e/file{n}"))).unwrap();
        }
        tank.zfs("clone tank/e@before tank/clone");
        let same = |tank: &Tank, below: &str| {
            for (name, bytes) in files.iter().filter(|(name, _)| !name.contains("child")) {
                let name = name.replace("tank/e", below);
                assert!(fs::read(tank.path(&name)).unwrap() == *bytes, "{suite}: {name}");
            }
        };
        same(&tank, "tank/clone");
        fs::write(tank.path("tank/clone/more"), contents(7, 100_000)).unwrap();
        let busy = tank.session.run("zfs unload-key tank/e").fails(255);
        assert_eq!(busy, "Key unload error: 'tank/e' is busy.");
        let open = fs::File::open(tank.path("tank/clone/more")).unwrap();
        let busy = tank.session.run("zfs unload-key tank/e").fails(255);
        let by = used_by_this().replace("uses it", "uses 'tank/clone'");
        assert_eq!(busy, format!("Key unload error: 'tank/e' is busy{by}."));
        drop(open);
        tank.zfs("unmount tank/clone");
        tank.zfs("rollback tank/e@before");
        same(&tank, "tank/e");
        tank.zfs("unmount tank/e");
        tank.zfs("unload-key tank/e");
        assert!(tank.session.run("zfs mount tank/e").code != 0);
        tank.zfs("load-key tank/e");
        tank.zfs("mount -a");
        same(&tank, "tank/e");
        same(&tank, "tank/clone");
        assert!(fs::read(tank.path("tank/clone/more")).unwrap() == contents(7, 100_000));
        let large = fs::read(tank.path("tank/e/child/large")).unwrap();
        assert!(large == contents(99, 3 << 20));
        tank.zfs("destroy tank/clone");
        tank.finish();
    }
}

#[test]
fn what_was_synced_is_there_after_a_crash() {
    if !can_mount() {
        return skip("nothing can be mounted here");
    }
    let tank = Tank::new("");
    let place = key_file(&tank, "key", HEX);
    tank.zfs(&format!("create -o encryption=on -o keyformat=hex -o keylocation={place} tank/e"));
    // The log has its first block with the group after the first sync.
    let small = |n: u64| tank.path(&format!("tank/e/small{n}"));
    for n in 0..30 {
        let mut file = fs::File::create(small(n)).unwrap();
        file.write_all(&contents(n, 5000)).unwrap();
        file.sync_all().unwrap();
    }
    let mut large = fs::File::create(tank.path("tank/e/large")).unwrap();
    large.write_all(&contents(77, 1 << 20)).unwrap();
    large.sync_all().unwrap();
    drop(large);
    let daemon = tank.session.daemon().unwrap();
    kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
    while tank.session.daemon().is_some() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (root, dir) = (tank.session.root(), tank.session.dir.path().display().to_string());
    tank.session.run(&format!("zpool import -f -R {root} -d {dir} tank")).ok_but_for_logs();
    // The log waits for its key, through another import as well.
    tank.zfs("set atime=off tank/e");
    tank.session.run("zpool export tank").ok();
    tank.session.run(&format!("zpool import -R {root} -d {dir} tank")).ok_but_for_logs();
    tank.zfs("load-key tank/e");
    tank.zfs("mount tank/e");
    for n in 0..30 {
        assert!(fs::read(small(n)).unwrap() == contents(n, 5000), "{n}");
    }
    assert!(fs::read(tank.path("tank/e/large")).unwrap() == contents(77, 1 << 20));
    tank.finish();
}

#[test]
fn an_unmount_unloads_keys_where_it_is_asked_to() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    let key = key_file(&tank, "key", HEX);
    let encrypted = format!("-o encryption=on -o keyformat=hex -o keylocation={key}");
    tank.zfs(&format!("create {encrypted} tank/a"));
    tank.zfs("create tank/a/child");
    tank.zfs(&format!("create {encrypted} tank/a/new"));
    let keys = || ["tank/a", "tank/a/child", "tank/a/new"].map(|d| tank.get("keystatus", d));
    tank.zfs("unmount -u tank/a/new");
    assert_eq!(keys(), ["available", "available", "unavailable"]);
    tank.zfs("mount -l tank/a/new");
    tank.zfs("unmount -u tank/a");
    assert_eq!(keys(), ["unavailable"; 3]);
    tank.zfs("mount -l -a");
    assert_eq!(keys(), ["available"; 3]);
    // A clone has the key of what it is of.
    tank.zfs("snapshot tank/a/new@1");
    tank.zfs("clone tank/a/new@1 tank/a/clone");
    let said = tank.refused("unmount -u tank/a/new");
    assert!(said.contains("'tank/a/new' is busy."), "{said}");
    assert_eq!(keys(), ["available"; 3]);
    assert_eq!(tank.get("mounted", "tank/a/new"), "yes");
    tank.zfs("unmount -au");
    assert_eq!(keys(), ["unavailable"; 3]);
    assert_eq!(tank.get("mounted", "tank/a/clone"), "no");
    tank.zfs("load-key -a");
    tank.finish();
}

/// Equal blocks of one key are stored once, those of another key apart; each key reads its own.
#[test]
fn equal_blocks_of_one_key_are_stored_once() {
    if !can_mount() {
        return skip("nothing can be mounted here");
    }
    // OpenZFS 2.1 judges tables of the older kind only.
    for (old, suite, dedup) in [
        (true, "aes-256-gcm", "on"),
        (true, "aes-256-ccm", "verify"),
        (false, "aes-128-gcm", "blake3"),
        (false, "aes-256-gcm", "edonr,verify"),
    ] {
        let tank = Tank::new(match old {
            true => "-o feature@fast_dedup=disabled -O compression=lz4",
            false => "-O compression=lz4 -O copies=2",
        });
        let key = key_file(&tank, "key", HEX);
        let how = format!("-o encryption={suite} -o keyformat=hex -o dedup={dedup}");
        tank.zfs(&format!("create {how} -o keylocation={key} tank/e"));
        tank.zfs("create tank/e/child");
        tank.zfs(&format!("create {how} -o keylocation={key} tank/other"));
        let ratio = || {
            tank.session.run("zpool sync tank").ok();
            let said = tank.session.run("zpool get -Hpo value dedupratio tank").ok();
            said.trim_end().to_string()
        };
        let noise = contents(3, 2 << 20);
        let words: Vec<u8> =
            (0..40_000).flat_map(|n| format!("{n} words\n").into_bytes()).collect();
        let data = [noise, words].concat();
        fs::write(tank.path("tank/e/one"), &data).unwrap();
        fs::write(tank.path("tank/e/two"), &data).unwrap();
        assert_eq!(ratio(), "2.00", "{suite} {dedup}");
        // The child has the user's key, and another one of its own; so has the other root.
        fs::write(tank.path("tank/e/child/three"), &data).unwrap();
        fs::write(tank.path("tank/other/four"), &data).unwrap();
        assert_eq!(ratio(), "1.33", "{suite} {dedup}");
        tank.zfs("snapshot tank/e@then");
        tank.zfs(&format!("clone -o dedup={dedup} tank/e@then tank/clone"));
        fs::write(tank.path("tank/clone/five"), &data).unwrap();
        assert_eq!(ratio(), "1.66", "{suite} {dedup}");
        tank.zfs("destroy tank/e/child");
        fs::remove_file(tank.path("tank/other/four")).unwrap();
        fs::write(tank.path("tank/e/two"), b"other").unwrap();
        let (root, dir) = (tank.session.root(), tank.session.dir.path().display().to_string());
        tank.session.run("zpool export tank").ok();
        match old {
            true => cenote_testpools::judge(tank.session.dir.path(), "tank"),
            false => cenote_testpools::try_judge_newer(tank.session.dir.path(), "tank").unwrap(),
        }
        tank.session.run(&format!("zpool import -l -R {root} -d {dir} tank")).ok();
        for file in
            ["tank/e/one", "tank/e/.zfs/snapshot/then/two", "tank/clone/five", "tank/clone/one"]
        {
            assert!(fs::read(tank.path(file)).unwrap() == data, "{suite} {dedup}: {file}");
        }
        tank.session.run("zpool scrub -w tank").ok();
        let status = tank.session.run("zpool status tank").ok();
        assert!(status.contains("with 0 errors") && status.contains("repaired 0B"), "{status}");
        // Written again it is found.
        fs::write(tank.path("tank/e/again"), &data).unwrap();
        fs::remove_file(tank.path("tank/clone/five")).unwrap();
        tank.session.run("zpool sync tank").ok();
        tank.zfs("destroy tank/clone");
        tank.zfs("destroy tank/e@then");
        for file in ["one", "again", "two"] {
            fs::remove_file(tank.path(&format!("tank/e/{file}"))).unwrap();
        }
        tank.session.run("zpool sync tank").ok();
        tank.session.run("zpool sync tank").ok();
        assert_eq!(ratio(), "1.00", "{suite} {dedup}");
        if old {
            tank.finish();
            continue;
        }
        tank.session.run("zpool export tank").ok();
        cenote_testpools::try_judge_newer(tank.session.dir.path(), "tank").unwrap();
    }
}
