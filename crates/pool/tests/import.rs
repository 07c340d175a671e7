//! Every sample pool imports, and shows what OpenZFS showed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_format::nvlist::NvList;
use cenote_manifest_check::import;
use cenote_pool::status::{NameStyle, VdevLine};
use cenote_pool::{Candidate, ImportOptions, Pool, PoolStatus, discover, history, time};
use cenote_testpools::TestPool;
use std::collections::BTreeMap;
use std::time::Duration;

fn readonly() -> ImportOptions {
    ImportOptions { readonly: true, force: true, ..ImportOptions::default() }
}

fn only(pool: &TestPool) -> Candidate {
    let mut found = discover(std::slice::from_ref(&pool.dir));
    assert_eq!(found.len(), 1, "{}", pool.name);
    found.remove(0)
}

#[test]
fn all_import() {
    for name in cenote_testpools::names() {
        let c = only(&cenote_testpools::pool(&name));
        assert_eq!(c.name, name);
        match Pool::import(&c, &readonly()) {
            Ok(pool) => assert_eq!(pool.name(), name),
            Err(e) => panic!("{name}: {e}\n{}", e.notes().unwrap_or_default()),
        }
    }
}

/// Values that are not what the manifest has for a reason: it was written while the pool was imported
/// read-write, which draws a load guid, and went on to allocate a little and to move entries
/// between dedup log and dedup table until it was exported.
fn differs_with_time(name: &str, theirs: &str, ours: &str) -> bool {
    let (Ok(theirs), Ok(ours)) = (theirs.parse::<u64>(), ours.parse::<u64>()) else {
        return false;
    };
    match name {
        "load_guid" => true,
        "allocated" | "free" => theirs.abs_diff(ours) <= 1 << 20,
        "dedup_table_size" => theirs.abs_diff(ours) <= 32 << 10,
        "fragmentation" => theirs.abs_diff(ours) <= 2,
        "capacity" => theirs.abs_diff(ours) <= 1,
        _ => false,
    }
}

#[test]
fn properties_and_features_equal_the_manifests() {
    let mut bad = Vec::new();
    for name in cenote_testpools::names().iter() {
        let manifest = cenote_testpools::pool(name).manifest();
        let pool = import(name);
        let strings = |key: &str, prefix: &str| -> BTreeMap<String, String> {
            let map = manifest[key].as_object().unwrap();
            map.iter().map(|(n, v)| (format!("{prefix}{n}"), v.as_str().unwrap().into())).collect()
        };
        let mut wanted = strings("pool_props", "");
        wanted.extend(strings("features", "feature@"));
        wanted.insert("readonly".into(), "on".into());
        let all = pool.get_all();
        let shown: BTreeMap<String, String> =
            all.iter().map(|(n, v)| (n.clone(), v.exact.clone())).collect();
        assert_eq!(shown.len(), all.len());
        assert!(shown.keys().eq(wanted.keys()), "{name}");
        for (n, theirs) in wanted {
            let ours = &shown[&n];
            if *ours != theirs && !differs_with_time(&n, &theirs, ours) {
                bad.push(format!("{name} {n}: {theirs}, here {ours}"));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// The tree as `zpool status` lays it out, with the paths of the machine that made the pools.
fn layout(status: &PoolStatus, pool: &str) -> Vec<String> {
    fn walk(line: &VdevLine, name: String, depth: usize, out: &mut Vec<String>) {
        let note = line.note.as_ref().map(|n| format!(" {n}")).unwrap_or_default();
        let (r, w, c) = line.errors;
        out.push(format!("{:depth$}{name} {} {r} {w} {c}{note}", "", line.state));
        for child in &line.children {
            walk(child, child.name(&NameStyle::default()), depth + 2, out);
        }
    }
    let mut out = Vec::new();
    let t = &status.tree;
    walk(&t.root, pool.into(), 0, &mut out);
    for (title, lines) in [("dedup", &t.dedup), ("special", &t.special), ("logs", &t.logs)] {
        if !lines.is_empty() {
            out.push(title.into());
        }
        lines.iter().for_each(|l| walk(l, l.name(&NameStyle::default()), 2, &mut out));
    }
    if !t.spares.is_empty() {
        out.push("spares".into());
    }
    out.extend(t.spares.iter().map(|l| format!("  {} {}", l.name(&NameStyle::default()), l.state)));
    out
}

/// `/somewhere/NAME.3.img` as the machine that made the pools called it.
fn as_made(line: &str, name: &str) -> String {
    let words = line.split(' ').map(|w| match w.rsplit_once(&format!("/{name}.")) {
        Some((_, file)) => format!("/scratch/{name}/{file}"),
        None => w.to_string(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The parts of a manifest's `status`: text before `config:`, and the lines of the tree with single
/// blanks between columns.
fn manifest_status(lines: &[String]) -> (Vec<String>, Vec<String>) {
    let config = lines.iter().position(|l| l == "config:").unwrap();
    let tree = lines[config + 3..].iter().take_while(|l| !l.is_empty());
    let tree = tree.map(|l| {
        let l = l.trim_start_matches('\t').trim_end();
        let depth = l.len() - l.trim_start().len();
        let words: Vec<&str> = l.split_whitespace().collect();
        format!("{:depth$}{}", "", words.join(" "))
    });
    (lines[..config].to_vec(), tree.collect())
}

#[test]
fn status_equals_the_manifests() {
    for name in cenote_testpools::names().iter() {
        let manifest = cenote_testpools::pool(name).manifest();
        let lines: Vec<String> = serde_json::from_value(manifest["status"].clone()).unwrap();
        let (head, tree) = manifest_status(&lines);
        let pool = import(name);
        let mut status = pool.status().unwrap();
        let quiet = !head.iter().any(|line| line.starts_with("status:"));
        if quiet && let Some(text) = status.texts.status.take() {
            // OpenZFS 2.3, which made the pools, does not know this feature.
            assert!(text.starts_with("Some supported and requested features are not"), "{text}");
            assert!(!pool.features().is_enabled("block_cloning_endian"), "{name}");
            status.texts.action = None;
        }
        let mut shown = format!("  pool: {}\n state: {}\n", status.name, status.state);
        if let Some(text) = &status.texts.status {
            shown += &format!("status: {text}\n");
        }
        if let Some(text) = &status.texts.action {
            shown += &format!("action: {text}\n");
        }
        assert_eq!(status.texts.msgid, None);
        // Times are printed in the zone of the machine that made the pools.
        let ctime = |_: u64| "TIME".to_string();
        assert_eq!(status.scan, None, "{name}");
        if let Some(removal) = &status.removal {
            shown += &format!("{}\n", removal.text(&ctime));
        }
        let head: String = head
            .iter()
            .map(|l| match l.split_once(" on Sat ") {
                Some((before, _)) => format!("{before} on TIME\n"),
                None => format!("{l}\n"),
            })
            .collect();
        assert_eq!(shown, head, "{name}");
        let ours: Vec<String> = layout(&status, name).iter().map(|l| as_made(l, name)).collect();
        assert_eq!(ours, tree, "{name}");
        assert_eq!(status.error_count, 0, "{name}");
    }
}

#[test]
fn histories_begin_with_the_creation() {
    for name in cenote_testpools::names().iter() {
        let records = import(name).history().unwrap();
        let first = records.iter().find_map(|r| r.str("history command")).unwrap();
        assert!(first.starts_with("zpool create"), "{name}: {first}");
        let times: Vec<u64> = records.iter().filter_map(|r| r.u64("history time")).collect();
        assert!(times.is_sorted(), "{name}");
        for r in &records {
            let line = history::format_record(r, true, true, &time::history_time).unwrap();
            assert!(!line.contains("unrecognized"), "{line}");
        }
    }
}

#[test]
fn requests_are_recorded_with_all_that_openzfs_records() {
    let shape = |record: &NvList| -> Vec<_> {
        record.pairs.iter().map(|(n, v)| (n.clone(), std::mem::discriminant(v))).collect()
    };
    let mut compared = 0;
    for name in cenote_testpools::names().iter() {
        for theirs in import(name).history().unwrap() {
            let Some(request) = theirs.str("ioctl") else { continue };
            let input = theirs.list("in_nvl").unwrap().clone();
            let ours = history::ioctl(request, input, 0, Duration::from_millis(1), 0);
            if theirs.list("out_nvl").is_none() {
                assert_eq!(shape(&ours), shape(&theirs), "{name} {request}");
                compared += 1;
            }
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn datasets_know_what_is_available() {
    for name in cenote_testpools::names().iter() {
        let manifest = cenote_testpools::pool(name).manifest();
        let pool = import(name);
        let root = pool.dsl().find(name).unwrap().unwrap();
        let props = &manifest["datasets"][0]["props"];
        let theirs: u64 = props["available"][0].as_str().unwrap().parse().unwrap();
        let ours = pool.dsl().available(&root).unwrap().unwrap();
        assert!(theirs.abs_diff(ours) <= 1 << 20, "{name}: {theirs}, here {ours}");
    }
}
