//! Datasets of other programs (`DMU_OST_OTHER`), as OpenZFS's own test program makes them, beside file
//! systems: nothing tries to mount them, and nothing else suffers from them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use cenote_engine::{Engine, EngineOptions};
use cenote_format::dmu::ObjsetType;
use cenote_pool::{ImportOptions, discover};
use common::tank::Tank;
use common::{can_mount, mounts_below};
use std::fs;
use std::path::Path;

/// `DMU_OST_OTHER`, and a number without a meaning.
const KINDS: [(&str, u64); 2] = [("other", 4), ("unheard", 77)];

/// Adds a dataset of each kind to the exported pool in `dir`.
fn add_other_kinds(dir: &Path) {
    let found = discover(&[dir.to_path_buf()]);
    let engine = Engine::import(&found[0], &ImportOptions::default(), EngineOptions::default());
    let engine = engine.unwrap();
    let root = engine.pool().dsl().root().unwrap().dir_obj;
    for (name, kind) in KINDS {
        let done = engine.sync_task(move |ctx| {
            let made = cenote_dsl::write::dataset::create(&mut ctx.tx, root, name, &[], None)?;
            ctx.create_objset(made.ds_obj, ObjsetType::Other(kind), 1, None, |_| Ok(()))
        });
        done.unwrap();
    }
    engine.export(false).unwrap();
}

#[test]
fn datasets_of_other_kinds_are_not_mounted() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/files");
    fs::write(tank.path("tank/files/one"), "1").unwrap();
    let (dir, root) = (tank.session.dir.path().to_path_buf(), tank.session.root());
    let import = format!("zpool import -R {root} -d {} tank", dir.display());
    tank.session.run("zpool export tank").ok();
    add_other_kinds(&dir);

    // An import mounts the file systems, succeeds and complains about nothing.
    assert_eq!(tank.session.run(&import).ok(), "");
    let mounts = ["tank", "tank/files"].map(|name| tank.path(name).display().to_string());
    assert_eq!(mounts_below(&dir), mounts);
    assert_eq!(fs::read_to_string(tank.path("tank/files/one")).unwrap(), "1");
    tank.zfs("unmount -a");
    assert_eq!(tank.zfs("mount -a"), "");
    assert_eq!(mounts_below(&dir), mounts);

    // They are snapshots' and properties' like any other, and go with the rest.
    tank.zfs("snapshot -r tank@now");
    tank.zfs("set compression=off tank");
    for (name, _) in KINDS {
        assert_eq!(tank.get("mounted,compression", &format!("tank/{name}")), "no\noff");
        tank.zfs(&format!("destroy -r tank/{name}"));
    }
    assert_eq!(tank.names(), ["tank", "tank@now", "tank/files", "tank/files@now"]);
    tank.finish();
}
