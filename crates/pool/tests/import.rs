//! Every sample pool imports, and shows what OpenZFS showed.

use cenote_pool::{Candidate, ImportError, ImportOptions, Pool, discover};
use cenote_testpools::TestPool;
use std::sync::Arc;

fn readonly() -> ImportOptions {
    ImportOptions { readonly: true, force: true, ..ImportOptions::default() }
}

fn only(pool: &TestPool) -> Candidate {
    let mut found = discover(std::slice::from_ref(&pool.dir));
    assert_eq!(found.len(), 1, "{}", pool.name);
    found.remove(0)
}

fn import(name: &str) -> Arc<Pool> {
    let c = only(&cenote_testpools::pool(name));
    Pool::import(&c, &readonly()).unwrap_or_else(|e| panic!("{name}: {e}\n{:?}", e.notes()))
}

#[test]
fn all_import_but_draid() {
    for name in cenote_testpools::names() {
        let c = only(&cenote_testpools::pool(&name));
        assert_eq!(c.name, name);
        match Pool::import(&c, &readonly()) {
            Ok(pool) => {
                assert_eq!(pool.name(), name);
                assert_ne!(name, "dr1");
            }
            Err(ImportError::Unsupported { what, .. }) => {
                assert_eq!((name.as_str(), what.as_str()), ("dr1", "dRAID"));
            }
            Err(e) => panic!("{name}: {e}\n{}", e.notes().unwrap_or_default()),
        }
    }
}

#[test]
fn properties_and_features_equal_the_manifests() {
    // What a read-only import here shows otherwise than a read-write one there.
    let differ = ["readonly", "load_guid"];
    for name in cenote_testpools::names().iter().filter(|n| *n != "dr1") {
        let manifest = cenote_testpools::pool(name).manifest();
        let pool = import(name);
        let all = pool.get_all();
        let shown: Vec<(String, String)> =
            all.iter().map(|(n, v)| (n.clone(), v.exact.clone())).collect();
        let mut wanted = Vec::new();
        for (n, v) in manifest["pool_props"].as_object().unwrap() {
            wanted.push((n.clone(), v.as_str().unwrap().to_string()));
        }
        for (n, v) in manifest["features"].as_object().unwrap() {
            wanted.push((format!("feature@{n}"), v.as_str().unwrap().to_string()));
        }
        let keep = |list: Vec<(String, String)>| {
            list.into_iter().filter(|(n, _)| !differ.contains(&n.as_str())).collect::<Vec<_>>()
        };
        assert_eq!(keep(shown), keep(wanted), "{name}");
        assert_eq!(pool.get("readonly").unwrap().exact, "on");
    }
}
