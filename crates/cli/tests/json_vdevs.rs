//! Vdevs in JSON: `zpool status -j` and `zpool list -v -j`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::Session;
use serde_json::{Map, Value};
use std::fs;

/// A pool with a vdev of every class.
fn varied() -> Session {
    let session = Session::new();
    let disk = |name: &str| {
        fs::File::create(session.path(name)).unwrap().set_len(128 << 20).unwrap();
        session.path(name).display().to_string()
    };
    let (a, b, log, cache, spare, s1, s2) =
        (disk("a"), disk("b"), disk("log"), disk("cache"), disk("spare"), disk("s1"), disk("s2"));
    session
        .run(&format!(
            "zpool create -O canmount=off -O mountpoint=none tank mirror {a} {b} \
             special mirror {s1} {s2} log {log} cache {cache} spare {spare}"
        ))
        .ok();
    session
}

fn finish(session: Session) {
    session.run("zpool export tank").ok();
    cenote_testpools::judge(session.dir.path(), "tank");
}

fn json(session: &Session, line: &str) -> Value {
    serde_json::from_str(&session.run(line).ok()).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn guid(session: &Session, name: &str) -> String {
    let text = session.run("zpool status -g").ok();
    let plain = session.run("zpool status").ok();
    let at = plain.lines().position(|l| l.split_whitespace().next() == Some(name)).unwrap();
    text.lines().nth(at).unwrap().split_whitespace().next().unwrap().to_string()
}

#[test]
fn status_nests_vdevs_by_class() {
    let s = varied();
    let document = json(&s, "zpool status -j");
    let version = &document["output_version"];
    assert_eq!(version["command"], "zpool status");
    assert_eq!((&version["vers_major"], &version["vers_minor"]), (&0.into(), &1.into()));
    let pool = &document["pools"]["tank"];
    assert_eq!(
        keys(pool),
        [
            "name",
            "state",
            "pool_guid",
            "txg",
            "spa_version",
            "zpl_version",
            "vdevs",
            "special",
            "logs",
            "l2cache",
            "spares",
            "error_count"
        ]
    );
    assert_eq!((&pool["state"], &pool["error_count"]), (&"ONLINE".into(), &"0".into()));

    let root = &pool["vdevs"]["tank"];
    assert_eq!(
        (&root["name"], &root["vdev_type"], &root["class"], &root["state"]),
        (&"tank".into(), &"root".into(), &"normal".into(), &"ONLINE".into())
    );
    let size = s.run("zpool list -Hpo size,allocated").ok();
    let exact = json(&s, "zpool status -jp");
    let root = &exact["pools"]["tank"]["vdevs"]["tank"];
    let shown = format!(
        "{}\t{}\n",
        root["total_space"].as_str().unwrap(),
        root["alloc_space"].as_str().unwrap()
    );
    assert_eq!(shown, size);

    let mirror = &root["vdevs"]["mirror-0"];
    assert_eq!(
        keys(mirror),
        [
            "name",
            "vdev_type",
            "guid",
            "class",
            "state",
            "total_space",
            "def_space",
            "rep_dev_size",
            "read_errors",
            "write_errors",
            "checksum_errors",
            "vdevs"
        ]
    );
    assert_eq!(mirror["guid"], guid(&s, "mirror-0").as_str());
    // All metadata is on the special vdev.
    assert!(exact["pools"]["tank"]["special"]["mirror-1"]["alloc_space"].is_string());
    assert_eq!(mirror["def_space"], mirror["total_space"]);
    let a = s.path("a").display().to_string();
    let leaf = &mirror["vdevs"][&a];
    assert_eq!(
        keys(leaf),
        [
            "name",
            "vdev_type",
            "guid",
            "path",
            "class",
            "state",
            "rep_dev_size",
            "phys_space",
            "read_errors",
            "write_errors",
            "checksum_errors",
            "slow_ios"
        ]
    );
    assert_eq!(
        (&leaf["vdev_type"], &leaf["path"], &leaf["state"], &leaf["slow_ios"]),
        (&"file".into(), &a.as_str().into(), &"ONLINE".into(), &"0".into())
    );
    assert_eq!(leaf["phys_space"], (128u64 << 20).to_string());
    // A device in its place has room for the labels as well.
    let bytes = |v: &Value| v.as_str().unwrap().parse::<u64>().unwrap();
    assert_eq!(bytes(&leaf["rep_dev_size"]), bytes(&mirror["rep_dev_size"]) + (9 << 19));

    let s1 = s.path("s1").display().to_string();
    let classes = [
        (&pool["special"]["mirror-1"], "special", "mirror"),
        (&pool["special"]["mirror-1"]["vdevs"][&s1], "special", "file"),
        (&pool["logs"][s.path("log").to_str().unwrap()], "log", "file"),
        (&pool["l2cache"][s.path("cache").to_str().unwrap()], "l2cache", "file"),
        (&pool["spares"][s.path("spare").to_str().unwrap()], "spare", "file"),
    ];
    for (vdev, class, kind) in classes {
        assert_eq!((&vdev["class"], &vdev["vdev_type"]), (&class.into(), &kind.into()));
    }
    assert_eq!(pool["spares"][s.path("spare").to_str().unwrap()]["state"], "AVAIL");
    assert!(pool["l2cache"][s.path("cache").to_str().unwrap()]["total_space"].is_string());
    finish(s);
}

#[test]
fn status_is_flat_exact_or_by_guid_if_asked_for() {
    let s = varied();
    let flat = json(&s, "zpool status -j --json-flat-vdevs");
    let vdevs = &flat["pools"]["tank"]["vdevs"];
    let path = |name: &str| s.path(name).display().to_string();
    for name in ["a", "b", "s1", "s2", "log", "cache", "spare"] {
        assert_eq!(vdevs[&path(name)]["name"], path(name).as_str(), "{vdevs}");
    }
    assert_eq!(vdevs["mirror-0"]["parent"], "tank");
    assert_eq!(vdevs[&path("a")]["parent"], "mirror-0");
    assert_eq!(vdevs[&path("s1")]["parent"], "mirror-1");
    assert!(vdevs["mirror-1"].get("parent").is_none());
    assert!(flat["pools"]["tank"].get("logs").is_none());

    let ints = json(&s, "zpool status -j --json-int --json-pool-key-guid -T u");
    let guid = s.run("zpool get -Ho value guid tank").ok().trim_end().to_string();
    let pool = &ints["pools"][&guid];
    assert_eq!(pool["pool_guid"].as_u64().unwrap().to_string(), guid);
    let root = &pool["vdevs"]["tank"];
    for number in [
        &pool["error_count"],
        &pool["txg"],
        &root["total_space"],
        &root["read_errors"],
        &root["guid"],
        &root["vdevs"]["mirror-0"]["vdevs"][path("a")]["slow_ios"],
        &ints["time"],
    ] {
        assert!(number.is_u64(), "{pool}");
    }
    for option in ["--json-int", "--json-flat-vdevs", "--json-pool-key-guid"] {
        let why = s.run(&format!("zpool status {option}")).fails(2);
        assert!(why.starts_with(&format!("'{option}' only works with '-j' option\n")), "{why}");
    }
    let none = json(&s, "zpool status -jx");
    assert_eq!(none["pools"], Value::Object(Map::new()));
    assert_eq!(s.run("zpool status -j nothing").fails(1), "cannot open 'nothing': no such pool");
    finish(s);
}

#[test]
fn status_says_what_is_wrong() {
    let s = varied();
    let a = s.path("a").display().to_string();
    s.run(&format!("zpool offline tank {a}")).ok();
    let document = json(&s, "zpool status -jxe");
    let pool = &document["pools"]["tank"];
    assert_eq!(pool["state"], "DEGRADED");
    let text = s.run("zpool status").ok();
    for key in ["status", "action"] {
        let shown = pool[key].as_str().unwrap();
        assert!(text.contains(&format!("{key}: {shown}")), "{shown}\n{text}");
    }
    if let Some(id) = pool["msgid"].as_str() {
        let link = format!("https://openzfs.github.io/openzfs-docs/msg/{id}");
        assert_eq!(pool["moreinfo"], link.as_str());
    }
    let mirror = &pool["vdevs"]["tank"]["vdevs"]["mirror-0"];
    assert_eq!(mirror["state"], "DEGRADED");
    assert_eq!(keys(&mirror["vdevs"]), [a.as_str()]);
    assert_eq!(mirror["vdevs"][&a]["state"], "OFFLINE");
    s.run(&format!("zpool online tank {a}")).ok();
    finish(s);
}

#[test]
fn slow_operations_are_counted() {
    let s = varied();
    s.run("tunables set zio_slow_io_ms=1 vdev_simulated_latency=2000000").ok();
    s.run("zpool export tank").ok();
    s.run(&format!("zpool import -N -d {} tank", s.dir.path().display())).ok();
    s.run("zpool sync tank").ok();
    let a = s.path("a").display().to_string();
    let slow = |line: &str| {
        let document = json(&s, line);
        let leaf = &document["pools"]["tank"]["vdevs"]["tank"]["vdevs"]["mirror-0"]["vdevs"][&a];
        leaf["slow_ios"].as_u64().unwrap()
    };
    let before = slow("zpool status -j --json-int");
    assert!(before > 0);
    let text = s.run("zpool status -s").ok();
    let head = text.lines().find(|l| l.contains("NAME")).unwrap();
    assert!(head.ends_with("CKSUM  SLOW"), "{head}");
    let line = |name: &str| {
        text.lines().find(|l| l.split_whitespace().next() == Some(name)).unwrap().to_string()
    };
    assert!(line("mirror-0").ends_with("0     -"));
    let shown = line(&a).split_whitespace().last().unwrap().to_string();
    assert!(shown.parse::<u64>().is_ok_and(|n| n >= before) || shown.ends_with('K'), "{shown}");
    s.run("tunables set zio_slow_io_ms=30000 vdev_simulated_latency=0").ok();
    s.run("zpool clear tank").ok();
    assert_eq!(slow("zpool status -j --json-int"), 0);
    finish(s);
}

#[test]
fn list_shows_vdevs_with_the_values_of_the_table() {
    let s = varied();
    let document = json(&s, "zpool list -v -j -p");
    let vdevs = &document["pools"]["tank"]["vdevs"];
    assert_eq!(keys(vdevs), ["mirror-0", "special", "logs", "l2cache", "spares"]);
    let table = s.run("zpool list -Hpv").ok();
    let path = |name: &str| s.path(name).display().to_string();
    let rows = [
        (&vdevs["mirror-0"], "mirror-0".to_string(), "normal"),
        (&vdevs["mirror-0"]["vdevs"][path("b")], path("b"), "normal"),
        (&vdevs["special"]["mirror-1"], "mirror-1".to_string(), "special"),
        (&vdevs["logs"][path("log")], path("log"), "log"),
        (&vdevs["l2cache"][path("cache")], path("cache"), "l2cache"),
        (&vdevs["spares"][path("spare")], path("spare"), "spare"),
    ];
    let columns = [
        "size",
        "allocated",
        "free",
        "checkpoint",
        "expandsize",
        "fragmentation",
        "capacity",
        "dedupratio",
        "health",
        "altroot",
    ];
    for (vdev, name, class) in rows {
        assert_eq!((&vdev["name"], &vdev["class"]), (&name.as_str().into(), &class.into()));
        let row = table.lines().find(|l| l.split('\t').nth(1) == Some(&name)).unwrap();
        let values: Vec<&str> = row.split('\t').skip(2).collect();
        let shown: Vec<&str> =
            columns.iter().map(|c| vdev["properties"][c]["value"].as_str().unwrap()).collect();
        assert_eq!(shown, values, "{name}");
        assert_eq!(vdev["properties"]["size"]["source"]["type"], "NONE");
    }
    let ints = json(&s, "zpool list -v -j --json-int -o name,size");
    let mirror = &ints["pools"]["tank"]["vdevs"]["mirror-0"];
    assert!(mirror["properties"]["size"]["value"].is_u64() && mirror["guid"].is_u64());
    assert_eq!(keys(&mirror["properties"]), ["size"]);
    finish(s);
}
