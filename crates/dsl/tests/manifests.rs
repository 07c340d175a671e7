//! Every dataset of every sample pool, compared with what OpenZFS showed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dsl::deadlist::live_blocks;
use cenote_dsl::{Dataset, DatasetKind, Dsl, Source};
use cenote_format::blkptr::BlockPointer;
use cenote_manifest_check::import_with_keys as import;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The manifest shows them after a replay of the intent log that a read-only import leaves out.
const UNREPLAYED: [&str; 3] = ["fragcrash", "zilmain", "zilslog"];

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn datasets(manifest: &Value) -> &Vec<Value> {
    manifest["datasets"].as_array().unwrap()
}

/// Name, value and source of everything in the manifest.
fn expected(dataset: &Value) -> BTreeMap<String, (String, String)> {
    let props = dataset["props"].as_object().unwrap();
    let word = |v: &Value| v.as_str().unwrap().to_string();
    props.iter().map(|(k, v)| (k.clone(), (word(&v[0]), word(&v[1])))).collect()
}

/// The same of ours; the manifests leave defaults out.
fn found(dsl: &Dsl, d: &Dataset) -> BTreeMap<String, (String, String)> {
    let all = dsl.get_all(d).unwrap();
    all.into_iter()
        .filter(|(_, v)| v.source != Source::Default)
        .map(|(name, v)| (name, (v.exact, v.source.to_string())))
        .collect()
}

fn every_name_below(dsl: &Dsl, d: &Dataset, names: &mut Vec<String>) {
    names.push(d.name.clone());
    names.extend(dsl.snapshots(d).unwrap().into_iter().map(|s| s.name));
    names.extend(dsl.bookmarks(d).unwrap().into_iter().map(|b| b.name));
    for child in dsl.children(d).unwrap() {
        every_name_below(dsl, &child, names);
    }
}

/// What became different between the making of the manifest and that of the image: exporting
/// the pool wrote to its MOS, which the root file system is charged for, and volumes were made
/// visible. Before `extensible_dataset`, the time of the last change of snapshots is forgotten.
fn changed_later(pool: &str, d: &Dataset, property: &str, want: &str, have: &str) -> bool {
    let near = |by: u64| match (want.parse::<u64>(), have.parse::<u64>()) {
        (Ok(a), Ok(b)) => a.abs_diff(b) <= by,
        _ => false,
    };
    let root = !d.name.contains(['/', '@', '#']);
    match property {
        "used" | "usedbychildren" | "logicalused" if root => near(128 << 10),
        "compressratio" if root => true,
        "available" => near(128 << 10),
        "snapdev" => d.kind == DatasetKind::Volume && have == "visible",
        "snapshots_changed" => pool == "legacyd" && have.is_empty(),
        // The samples are of OpenZFS 2.3, which calls the value `on` first; 2.4 calls it `sa`.
        "xattr" => want == "on" && have == "sa",
        _ => false,
    }
}

/// Differences between a dataset and the manifest, as lines.
fn differences(dsl: &Dsl, pool: &str, dataset: &Value) -> Vec<String> {
    let name = text(dataset, "name").unwrap();
    let Some(d) = dsl.find(name).unwrap() else { return vec![format!("{name}: not found")] };
    let (mut want, mut have) = (expected(dataset), found(dsl, &d));
    if UNREPLAYED.contains(&pool) {
        // Only what does not depend on the latest writes.
        let fixed = |k: &String, v: &(String, String)| {
            (v.1 != "-" || v.0.parse::<u64>().is_err()) && !k.ends_with("ratio")
        };
        want.retain(|k, v| fixed(k, v));
        have.retain(|k, v| fixed(k, v));
    }
    let names: BTreeSet<&String> = want.keys().chain(have.keys()).collect();
    let value = |v: Option<&(String, String)>| v.map_or(String::new(), |v| v.0.clone());
    names
        .into_iter()
        .map(|n| (n, want.get(n), have.get(n)))
        .filter(|(n, w, h)| w != h && !changed_later(pool, &d, n, &value(*w), &value(*h)))
        .map(|(n, w, h)| format!("{name} {n}: {h:?}, not {w:?}"))
        .collect()
}

fn mounted_as_in(manifest: &Value, dsl: &Dsl) {
    let mounted: HashSet<String> = datasets(manifest)
        .iter()
        .filter(|d| d["props"]["mounted"][0] == "yes")
        .map(|d| text(d, "name").unwrap().to_string())
        .collect();
    dsl.set_mounts(Arc::new(move |name: &str| {
        mounted.contains(name).then(|| "rw,noatime,xattr".to_string())
    }));
}

#[test]
fn every_property_of_every_dataset_is_as_openzfs_shows_it() {
    let (mut lines, mut compared) = (Vec::new(), 0);
    for name in cenote_testpools::names() {
        let manifest = cenote_testpools::pool(&name).manifest();
        let pool = import(&name);
        let dsl = pool.dsl();
        mounted_as_in(&manifest, dsl);
        for dataset in datasets(&manifest) {
            lines.extend(differences(dsl, &name, dataset));
            compared += 1;
        }
        let mut names = Vec::new();
        every_name_below(dsl, &dsl.root().unwrap(), &mut names);
        names.sort();
        let mut wanted: Vec<_> =
            datasets(&manifest).iter().map(|d| text(d, "name").unwrap().to_string()).collect();
        wanted.sort();
        assert_eq!(names, wanted, "datasets of {name}");
    }
    assert!(compared > 250, "{compared} datasets");
    assert!(lines.is_empty(), "{} differences:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn snapshots_come_in_the_order_of_their_chain() {
    let pool = import("clones");
    let dsl = pool.dsl();
    let gen_ = dsl.find("clones/gen").unwrap().unwrap();
    let snapshots = dsl.snapshots(&gen_).unwrap();
    let names: Vec<_> = snapshots.iter().map(|s| s.name.as_str()).collect();
    let chain = ["gen0", "gen3", "gen4", "gen5", "rsnap"].map(|s| format!("clones/gen@{s}"));
    assert_eq!(names, chain);
    let mut at = gen_.ds.prev_snap;
    for snapshot in snapshots.iter().rev() {
        assert_eq!(snapshot.ds_obj, at);
        assert_eq!(dsl.by_object(at).unwrap().unwrap().name, snapshot.name);
        at = snapshot.ds.prev_snap;
    }
}

#[test]
fn holds_clones_origins_and_bookmarks_are_found() {
    let manifest = cenote_testpools::pool("clones").manifest();
    let pool = import("clones");
    let dsl = pool.dsl();
    for dataset in datasets(&manifest) {
        let name = text(dataset, "name").unwrap();
        let d = dsl.find(name).unwrap().unwrap();
        assert_eq!(d.kind.name(), text(dataset, "type").unwrap());
        let mut tags: Vec<_> = dsl.holds(&d).unwrap().into_iter().map(|h| h.0).collect();
        tags.sort();
        let held = dataset.get("holds").and_then(Value::as_array);
        let held: Vec<_> = held.into_iter().flatten().map(|t| t.as_str().unwrap()).collect();
        assert_eq!(tags, held, "{name}");
        if d.is_head() {
            let origin = dsl.origin(&d).unwrap().map(|o| o.name);
            assert_eq!(origin.as_deref(), text(dataset, "origin"), "{name}");
        }
    }
    let mark = dsl.find("clones/gen#bm1").unwrap().unwrap();
    assert_eq!(mark.kind, DatasetKind::Bookmark);
    assert!(dsl.find("clones/gen#none").unwrap().is_none());
    assert!(dsl.find("clones/gen@none").unwrap().is_none());
    assert!(dsl.find("clones/none").unwrap().is_none());
    assert!(dsl.find("other").unwrap().is_none());
}

#[test]
fn written_since_a_snapshot_adds_up() {
    let pool = import("clones");
    let dsl = pool.dsl();
    let get = |name: &str, prop: &str| {
        let d = dsl.find(name).unwrap().unwrap();
        dsl.get(&d, prop).unwrap().map(|v| v.exact.parse::<u64>().unwrap())
    };
    // Since the snapshot just before, it is the property `written`.
    let written = get("clones/gen@gen5", "written");
    assert!(written.is_some());
    assert_eq!(get("clones/gen@gen5", "written@gen4"), written);
    assert_eq!(get("clones/gen@gen5", "written@clones/gen@gen4"), written);
    // A bookmark remembers as much as the snapshot it was made of.
    assert_eq!(get("clones/gen", "written#bm3"), get("clones/gen", "written@gen3"));
    assert!(get("clones/gen", "written@gen0") >= get("clones/gen", "written@gen3"));
    // A clone has written since its origin what it does not share with it.
    assert!(get("clones/second", "written@clones/live@inclone").is_some());
    assert!(get("clones/second", "written@clones/base@s1").is_some());
    // Later and unrelated snapshots do not count.
    assert_eq!(get("clones/gen@gen4", "written@gen5"), None);
    assert_eq!(get("clones/gen", "written@clones/base@s1"), None);
}

#[test]
fn lists_of_block_pointers_add_up_to_their_sums() {
    for name in ["clones", "removal", "streams", "legacyd"] {
        let pool = import(name);
        let dsl = pool.dsl();
        let manifest = cenote_testpools::pool(name).manifest();
        let mut blocks = 0;
        for dataset in datasets(&manifest) {
            let d = dsl.find(text(dataset, "name").unwrap()).unwrap().unwrap();
            if d.kind == DatasetKind::Bookmark {
                continue;
            }
            let list = dsl.deadlist(&d).unwrap();
            let mut physical = 0;
            dsl.iterate_deadlist(&list, &mut |entry| {
                assert!(!entry.freed);
                blocks += 1;
                physical += if entry.bp.is_embedded() { 0 } else { entry.bp.psize() };
                Ok(())
            })
            .unwrap();
            assert_eq!(physical, list.total.compressed, "{}", d.name);
            assert_eq!(dsl.deadlist_range(&list, 0, u64::MAX).unwrap(), list.total);
        }
        assert!(blocks > 0, "{name}");
    }
}

#[test]
fn the_livelist_of_a_clone_holds_what_the_clone_owns() {
    let pool = import("clones");
    let dsl = pool.dsl();
    let manifest = cenote_testpools::pool("clones").manifest();
    let mut lists = 0;
    for dataset in datasets(&manifest) {
        let d = dsl.find(text(dataset, "name").unwrap()).unwrap().unwrap();
        let Some(list) = dsl.livelist(&d).unwrap() else { continue };
        assert!(dsl.origin(&d).unwrap().is_some(), "{} is no clone", d.name);
        lists += 1;
        // Frees cancel allocations; what remains is the clone's own.
        let (mut allocated, mut freed) = (0i64, 0i64);
        dsl.iterate_deadlist(&list, &mut |entry| {
            let size = entry.bp.dvas().map(|d| d.asize as i64).sum::<i64>();
            *if entry.freed { &mut freed } else { &mut allocated } += size;
            Ok(())
        })
        .unwrap();
        assert_eq!(allocated - freed, d.dir.used as i64, "{}", d.name);
        let mut live = 0;
        for (_, bpobj) in &list.lists {
            let mut add = |bp: &BlockPointer| live += bp.dvas().map(|d| d.asize).sum::<u64>();
            live_blocks(dsl.mos(), *bpobj, &mut add).unwrap();
        }
        assert_eq!(live, d.dir.used, "{}", d.name);
    }
    // As many as zdb counts.
    let zdb = cenote_testpools::pool("clones").zdb_text();
    assert!(zdb.contains(&format!("Verified livelist feature refcount of {lists} is correct")));
}

#[test]
fn user_space_is_accounted() {
    let pool = import("basic");
    let dsl = pool.dsl();
    let root = dsl.root().unwrap();
    let used = dsl.get(&root, "userused@0").unwrap().unwrap();
    assert_eq!(used.source, Source::Local);
    assert!(used.exact.parse::<u64>().unwrap() > 0);
    assert_eq!(dsl.get(&root, "userquota@0").unwrap().unwrap().human, "none");
    assert_eq!(dsl.get(&root, "userused@4000000").unwrap().unwrap().exact, "0");
    assert!(dsl.get(&root, "userused@no such user").unwrap().is_none());
}

#[test]
fn mount_points_follow_the_name_below_where_they_are_set() {
    let pool = import("clones");
    let dsl = pool.dsl();
    let get = |name: &str| {
        let d = dsl.find(name).unwrap().unwrap();
        let v = dsl.get(&d, "mountpoint").unwrap().unwrap();
        (v.human, v.source.to_string())
    };
    let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
    assert_eq!(get("clones/gen"), pair("/clones/gen", "default"));
    assert_eq!(get("clones/off"), pair("none", "local"));
    dsl.set_altroot(Some("/mnt".into()));
    assert_eq!(get("clones"), pair("/mnt/clones", "default"));
    dsl.set_altroot(Some("/".into()));
    assert_eq!(get("clones/gen"), pair("/clones/gen", "default"));
}

#[test]
fn mount_options_override_for_a_time() {
    let pool = import("basic");
    let dsl = pool.dsl();
    dsl.set_mounts(Arc::new(|name: &str| (name == "basic").then(|| "ro,noexec".to_string())));
    let root = dsl.root().unwrap();
    let get = |prop: &str| {
        let v = dsl.get(&root, prop).unwrap().unwrap();
        format!("{} {}", v.exact, v.source)
    };
    assert_eq!(get("readonly"), "on temporary");
    assert_eq!(get("exec"), "off temporary");
    assert_eq!(get("devices"), "on default");
    assert_eq!(get("mounted"), "yes -");
}

#[test]
fn mounts_are_asked_for_once_for_all_properties() {
    let pool = import("basic");
    let (dsl, asked) = (pool.dsl(), Arc::new(AtomicU64::new(0)));
    let count = asked.clone();
    dsl.set_mounts(Arc::new(move |_: &str| {
        count.fetch_add(1, Relaxed);
        Some("ro,noexec".into())
    }));
    let root = dsl.root().unwrap();
    let all = dsl.get_all(&root).unwrap();
    assert_eq!(asked.swap(0, Relaxed), 1);
    let known = |name: &str| (name == "basic").then(|| "ro,noexec".to_string());
    assert_eq!(dsl.get_all_as_mounted(&root, &known).unwrap(), all);
    let shown = dsl.get_as_mounted(&root, "mounted", &|_| None).unwrap().unwrap();
    assert_eq!((shown.exact.as_str(), asked.load(Relaxed)), ("no", 0));
    assert!(all.iter().any(|(name, v)| name == "exec" && v.source == Source::Temporary));
}
