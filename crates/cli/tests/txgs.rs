//! `cenote txgs`: tables, JSON and Prometheus' text format say the same of the same groups.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Session;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

/// A session with a pool that has written some transaction groups.
fn with_pool() -> Session {
    let s = Session::new();
    std::fs::create_dir(s.path("dev")).unwrap();
    let file = s.path("dev").join("disk");
    File::create(&file).unwrap().set_len(128 << 20).unwrap();
    s.run(&format!("zpool create -m none tank {}", file.display())).ok();
    for name in ["a", "b", "c"] {
        s.run(&format!("zfs create tank/{name}")).ok();
    }
    s
}

fn json(s: &Session) -> Value {
    serde_json::from_str(&s.run("txgs --json").ok()).unwrap()
}

fn number(of: &Value, name: &str) -> u64 {
    of.get(name).and_then(Value::as_u64).unwrap_or_else(|| panic!("{name} in {of}"))
}

/// The samples of a text in Prometheus' format by name with labels, each of which is declared.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut kinds = BTreeMap::new();
    let (mut helped, mut found, mut last) = (BTreeSet::new(), BTreeMap::new(), String::new());
    for line in text.lines() {
        if let Some(about) = line.strip_prefix("# HELP ") {
            let (name, text) = about.split_once(' ').unwrap();
            assert!(helped.insert(name.to_string()) && !text.is_empty(), "{line}");
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(helped.contains(name), "{line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(kinds.insert(name.to_string(), kind.to_string()).is_none(), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            last = name.into();
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = sample.split_once('{').unwrap();
        assert!(labels.starts_with("pool=\"tank\"") && labels.ends_with("\"}"), "{line}");
        let suffix = name.strip_prefix(last.as_str()).unwrap_or_else(|| panic!("{line}"));
        match kinds[&last].as_str() {
            "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
            _ => assert_eq!(suffix, "", "{line}"),
        }
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(name.chars().all(allowed), "{line}");
        assert!(found.insert(sample.to_string(), value.parse().unwrap()).is_none(), "{line}");
    }
    assert_eq!(kinds.len(), helped.len());
    found
}

#[test]
fn programs_get_all_figures() {
    let s = with_pool();
    let document = json(&s);
    assert_eq!(number(&document, "version"), 1);
    let pool = &document["pools"][0];
    assert_eq!(
        (pool["pool"].as_str(), document["pools"].as_array().unwrap().len()),
        (Some("tank"), 1)
    );
    let txgs = pool["txgs"].as_array().unwrap();
    assert!(txgs.len() >= 3);
    for txg in txgs {
        let passes = txg["pass_figures"].as_array().unwrap();
        assert_eq!(number(txg, "passes"), passes.len() as u64);
        for name in ["metadata_bytes", "metadata_blocks", "data_blocks", "log_space_map_bytes"] {
            let sum: u64 = passes.iter().map(|pass| number(pass, name)).sum();
            assert_eq!(number(txg, name), sum, "{name}");
        }
        assert!(number(txg, "first_pass_time_ns") <= number(txg, "passes_time_ns"));
        assert!(number(txg, "metadata_blocks") > 0 && number(txg, "label_writes") > 0);
    }
    let totals = &pool["totals"];
    let sum: u64 = txgs.iter().map(|txg| number(txg, "metadata_bytes")).sum();
    // There may be one more by the time that these are taken.
    assert!(number(totals, "metadata_bytes") >= sum);
    assert!(number(totals, "groups") >= txgs.len() as u64);
    let latency = &pool["latencies"]["allocation_latency"];
    let buckets = latency["buckets"].as_array().unwrap();
    let sum: u64 = buckets.iter().map(|bucket| number(bucket, "count")).sum();
    assert_eq!(number(latency, "count"), sum);
    assert!(sum > 0 && number(latency, "total_ns") > 0);

    let text = s.run("txgs --prometheus tank").ok();
    let found = samples(&text);
    let of = |name: &str| found[&format!("{name}{{pool=\"tank\"}}")];
    assert!(of("cenote_sync_metadata_bytes_total") >= number(totals, "metadata_bytes") as f64);
    let seconds = number(totals, "total_time_ns") as f64 / 1e9;
    assert!(of("cenote_sync_total_time_seconds_total") >= seconds - 1e-6);
    let name = "cenote_allocation_latency_seconds";
    let counts: Vec<f64> = text
        .lines()
        .filter(|line| line.starts_with(&format!("{name}_bucket")))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
        .collect();
    assert!(counts.is_sorted() && counts.last() == Some(&of(&format!("{name}_count"))), "{text}");
    assert!(text.contains(&format!("{name}_bucket{{pool=\"tank\",le=\"+Inf\"}}")), "{text}");

    // Totals only grow.
    s.run("zpool sync -f tank").ok();
    let later = samples(&s.run("txgs --prometheus").ok());
    for (name, value) in found.iter().filter(|(name, _)| name.contains("_total{")) {
        assert!(later[name] >= *value, "{name}");
    }
    let groups = "cenote_sync_groups_total{pool=\"tank\"}";
    assert!(later[groups] > found[groups]);
    // Every name is explained.
    let fields = s.run("txgs --fields -H").ok();
    let explained: BTreeSet<&str> =
        fields.lines().flat_map(|l| l.split('\t').skip(1).take(2)).collect();
    for name in txgs[0].as_object().unwrap().keys().filter(|name| *name != "pass_figures") {
        assert!(explained.contains(name.as_str()), "{name}");
    }
    for name in found.keys().filter(|name| !name.contains("latency")) {
        assert!(explained.contains(name.split('{').next().unwrap()), "{name}");
    }
    s.run("zpool export tank").ok();
    cenote_testpools::judge(&s.path("dev"), "tank");
}

#[test]
fn people_get_tables() {
    let s = with_pool();
    let text = s.run("txgs").ok();
    let titles: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(titles[..6], ["POOL", "TXG", "DIRTY", "TIME", "PASS1", "PASSES"]);
    for line in text.lines().skip(1) {
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((cells.len(), cells[0]), (titles.len(), "tank"), "{text}");
    }
    let one = s.run("txgs -H -p -n 1 tank").ok();
    let cells: Vec<&str> = one.trim_end().split('\t').collect();
    assert_eq!(cells.len(), titles.len());
    let share: f64 = cells[4].parse().unwrap();
    assert!(share > 0.0 && share <= 100.0, "{one}");
    let passes = s.run("txgs -H -p -n 1 --passes tank").ok();
    assert_eq!(passes.lines().count().to_string(), cells[5]);
    assert!(passes.lines().all(|line| line.split('\t').nth(1) == Some(cells[1])), "{passes}");
    let latency = s.run("txgs -H -p --latency").ok();
    let allocations =
        latency.lines().map(|l| l.split('\t').nth(3).unwrap().parse::<u64>().unwrap());
    assert!(allocations.sum::<u64>() > 0, "{latency}");
    // The second report has nothing that the first one had.
    let twice = s.run("txgs -H -n 1 tank 0.05 2").ok();
    let mut seen = BTreeSet::new();
    assert!(
        twice.lines().all(|l| seen.insert(l.split('\t').nth(1).map(str::to_string))),
        "{twice}"
    );
    s.run("zpool export tank").ok();
    cenote_testpools::judge(&s.path("dev"), "tank");
}

#[test]
fn wrong_requests_are_refused() {
    let s = Session::new();
    assert_eq!(s.run("txgs").fails(1), "no pools available");
    assert!(s.run("txgs --json --prometheus").fails(2).contains("cannot be used with"));
    assert!(s.run("txgs --json -p").fails(2).contains("cannot be used with"));
    assert_eq!(s.run("txgs none").fails(1), "cannot open 'none': no such pool");
    assert_eq!(s.run("txgs tank 0").fails(2), "interval cannot be zero");
    assert!(s.run("txgs --fields tank").fails(2).contains("no operands"));
    s.import("basic");
    let complaint = s.run("txgs basic").fails(1);
    assert_eq!(complaint, "'basic' is read-only: it has no transaction groups");
}
