//! What `-j` prints says the same as the tables, in the shapes of OpenZFS 2.4.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;
use common::{Session, can_mount};
use serde_json::Value;

fn json(session: &Session, line: &str) -> Value {
    let text = session.run(line).ok();
    assert_eq!(text.lines().count(), 1, "{text}");
    let document: Value = serde_json::from_str(&text).unwrap();
    let command: Vec<&str> = line.split(' ').take(2).collect();
    let version = &document["output_version"];
    assert_eq!(version["command"], command.join(" "));
    assert_eq!((&version["vers_major"], &version["vers_minor"]), (&0.into(), &1.into()));
    assert!(text.starts_with("{\"output_version\":{\"command\":"), "{text}");
    document
}

#[test]
fn versions_name_openzfs_first() {
    let session = Session::new();
    let ours = env!("CARGO_PKG_VERSION");
    let (userland, kernel) =
        (format!("zfs-2.4.4-cenote-{ours}"), format!("zfs-kmod-2.4.4-cenote-{ours}"));
    for tool in ["zfs", "zpool"] {
        let text = format!("{userland}\n{kernel}\n");
        assert_eq!(session.run(&format!("{tool} version")).ok(), text);
        assert_eq!(session.run(&format!("{tool} --version")).ok(), text);
        let versions = &json(&session, &format!("{tool} version --json"))["zfs_version"];
        assert_eq!(
            (&versions["userland"], &versions["kernel"]),
            (&userland.as_str().into(), &kernel.as_str().into())
        );
    }
}

#[test]
fn datasets_have_the_values_of_the_tables() {
    let tank = Tank::unmounted();
    tank.zfs("create -o compression=zstd -o com.example:n=12 tank/a");
    tank.zfs("create tank/a/b");
    tank.zfs("snapshot tank/a@s");
    let s = &tank.session;

    let list = json(s, "zfs list -j -t all -o name,used,compression");
    let names: Vec<&str> =
        list["datasets"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, ["tank", "tank/a", "tank/a@s", "tank/a/b"]);
    let a = &list["datasets"]["tank/a"];
    let head: Vec<&str> = a.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(head, ["name", "type", "pool", "createtxg", "properties"]);
    assert_eq!(
        (&a["name"], &a["type"], &a["pool"]),
        (&"tank/a".into(), &"FILESYSTEM".into(), &"tank".into())
    );
    assert_eq!(a["createtxg"], tank.get("createtxg", "tank/a").as_str());
    let used = tank.zfs("list -Ho used tank/a");
    assert_eq!(a["properties"]["used"]["value"], used.trim_end());
    assert_eq!(a["properties"]["used"]["source"]["type"], "NONE");
    assert_eq!(a["properties"]["compression"]["source"]["type"], "LOCAL");
    assert!(a["properties"].get("name").is_none());
    let snapshot = &list["datasets"]["tank/a@s"];
    assert_eq!((&snapshot["dataset"], &snapshot["snapshot_name"]), (&"tank/a".into(), &"s".into()));
    let b = &list["datasets"]["tank/a/b"]["properties"]["compression"];
    assert_eq!(
        (&b["value"], &b["source"]["type"], &b["source"]["data"]),
        (&"zstd".into(), &"INHERITED".into(), &"tank/a".into())
    );

    let get = json(s, "zfs get --json --json-int used,compression,com.example:n tank/a");
    let properties = &get["datasets"]["tank/a"]["properties"];
    assert_eq!(
        properties["used"]["value"].as_u64().unwrap().to_string(),
        tank.get("used", "tank/a")
    );
    assert_eq!(
        (&properties["com.example:n"]["value"], &properties["compression"]["value"]),
        (&12.into(), &"zstd".into())
    );
    assert_eq!(
        get["datasets"]["tank/a"]["createtxg"].as_u64().unwrap().to_string(),
        tank.get("createtxg", "tank/a")
    );
    let local = json(s, "zfs get -j -r -s local compression tank");
    assert_eq!(local["datasets"].as_object().unwrap().len(), 1);
    assert!(
        s.run("zfs list --json-int")
            .fails(2)
            .starts_with("'--json-int' only works with '-j' option\n")
    );
    tank.finish();
}

#[test]
fn pools_have_the_values_of_the_tables() {
    let tank = Tank::unmounted();
    let s = &tank.session;
    let list = json(s, "zpool list -j -o size,health");
    let pool = &list["pools"]["tank"];
    let head: Vec<&str> = pool.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        head,
        ["name", "type", "state", "pool_guid", "txg", "spa_version", "zpl_version", "properties"]
    );
    assert_eq!(
        (&pool["type"], &pool["state"], &pool["spa_version"], &pool["zpl_version"]),
        (&"POOL".into(), &"ONLINE".into(), &"5000".into(), &"5".into())
    );
    assert_eq!(pool["properties"]["size"]["value"], s.run("zpool list -Ho size").ok().trim_end());
    let guid = s.run("zpool get -Ho value guid tank").ok().trim_end().to_string();
    assert_eq!(pool["pool_guid"], guid.as_str());
    let by_guid = json(s, "zpool get -j --json-pool-key-guid --json-int size,ashift tank");
    let properties = &by_guid["pools"][&guid]["properties"];
    assert_eq!(
        properties["size"]["value"].as_u64().unwrap().to_string(),
        s.run("zpool get -Hpo value size tank").ok().trim_end()
    );
    assert!(properties["ashift"]["value"].is_u64());
    let why = s.run("zpool get --json-pool-key-guid size").fails(2);
    assert!(why.starts_with("'--json-pool-key-guid' only works with '-j' option\n"), "{why}");
    tank.finish();
}

#[test]
fn mounts_are_listed() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    let mounted = json(&tank.session, "zfs mount -j");
    let entry = &mounted["datasets"]["tank"];
    assert_eq!(entry["filesystem"], "tank");
    assert_eq!(entry["mountpoint"], tank.path("tank").to_str().unwrap());
    tank.finish();
}
