//! Pools of every layout are created, exported and judged by OpenZFS's `zdb`, and read again. Where
//! `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dmu::outside::Chance;
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{NewObject, OpenObjectSet, WriteError, ZapMut};
use cenote_engine::create::{CreateSpec, FIRST_TXG, SystemDevices, parse};
use cenote_engine::{CreateRequest, Engine, EngineOptions};
use cenote_format::dmu::DmuType;
use cenote_pool::features::{FeatureChoice, choose_features};
use cenote_pool::props::{PropContext, When};
use cenote_pool::{ImportOptions, Pool, discover, history, props};
use cenote_testpools::{judge, zdb};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

const SIZE: u64 = 64 << 20;

/// A directory of sparse files, and the pool to make of them.
struct Making<'a> {
    dir: tempfile::TempDir,
    ashift: u64,
    features: FeatureChoice<'a>,
    props: &'a [(&'a str, &'a str)],
}

impl Making<'_> {
    fn new(ashift: u64) -> Making<'static> {
        let dir = tempfile::tempdir().unwrap();
        Making { dir, ashift, features: FeatureChoice::default(), props: &[] }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Creates a pool of a layout in which single letters are files, and exports it.
    fn create(&self, line: &str) {
        let word = |word: &str| {
            if word.len() > 1 {
                return word.to_string();
            }
            let path = self.path().join(word);
            std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
            path.display().to_string()
        };
        let args: Vec<String> = line.split_whitespace().map(word).collect();
        let layout = parse(&args).unwrap();
        let (features, _) = choose_features(&self.features).unwrap();
        let context = PropContext {
            when: When::Create,
            version: cenote_pool::version::FEATURES,
            pool: "tank",
            hostid: 1,
            dataset: &|_: &str| None,
        };
        let changes = self.props.iter().map(|(n, v)| props::parse(n, v, &context).unwrap());
        let request = CreateRequest {
            temporary_name: None,
            spec: CreateSpec {
                name: "tank",
                layout: &layout,
                ashift: self.ashift,
                force: true.into(),
                pool: None,
                txg: FIRST_TXG,
                imported: &[],
                devices: &SystemDevices,
                chance: &Chance::default(),
            },
            features: &features,
            props: &changes.collect::<Vec<_>>(),
            root_props: &[],
            encryption: None,
            altroot: None,
            arc_bytes: None,
        };
        let engine = Engine::create(&request, EngineOptions::default(), format).unwrap();
        let command = format!("zpool create tank {line}");
        let note = move |ctx: &mut cenote_engine::SyncContext<'_>| {
            let record = history::command(&command, 0, ctx.tx.now);
            Ok(history::append(ctx.tx.mos, &record)?)
        };
        engine.sync_task(note).unwrap();
        engine.export(false).unwrap();
    }

    fn zdb(&self, args: &[&str]) -> String {
        let text = zdb(self.path(), "tank", args);
        let complaint =
            text.lines().find(|l| ["can't", "cannot", "failed"].iter().any(|b| l.contains(b)));
        assert_eq!(complaint, None, "zdb {args:?}");
        text
    }

    /// OpenZFS finds nothing wrong.
    fn judge(&self) {
        judge(self.path(), "tank");
        self.zdb(&["-Cmuihdddd"]);
    }

    fn open(&self) -> Arc<Pool> {
        let found = discover(&[self.path().to_path_buf()]);
        let found = found.iter().find(|c| c.name == "tank").unwrap();
        let options = ImportOptions { readonly: true, ..ImportOptions::default() };
        Pool::import(found, &options).unwrap()
    }
}

/// A root file system that holds no more than a ZAP.
fn format(os: &mut OpenObjectSet) -> Result<(), WriteError> {
    let format = ZapFormat { salt: 1, ..ZapFormat::default() };
    ZapMut::create(os, &NewObject::new(DmuType::MASTER_NODE, 512), format).map(drop)
}

fn value(pool: &Pool, name: &str) -> String {
    pool.get(name).unwrap().exact
}

fn make(ashift: u64, line: &str) {
    let making = Making::new(ashift);
    making.create(line);
    making.judge();
    let pool = making.open();
    assert_eq!(pool.health(), "ONLINE");
    let history = pool.history().unwrap();
    let command = format!("zpool create tank {line}");
    assert!(history.iter().any(|r| r.str("history command") == Some(command.as_str())));
}

#[test]
fn stripes() {
    make(9, "a");
    make(12, "a b c");
}

#[test]
fn mirrors() {
    make(12, "mirror a b");
    make(9, "mirror a b c mirror d e f");
}

#[test]
fn raidz() {
    make(12, "raidz1 a b c");
    make(9, "raidz2 a b c d");
    make(12, "raidz3 a b c d e");
}

#[test]
fn logs_and_classes() {
    make(9, "mirror a b log mirror c d");
    make(9, "mirror a b special mirror c d dedup mirror e f log g");
}

#[test]
fn spares_and_caches() {
    let making = Making::new(12);
    making.create("mirror a b spare c cache d e");
    making.judge();
    let pool = making.open();
    assert_eq!((pool.spares().len(), pool.caches().len()), (1, 2));
}

#[test]
fn properties_are_set() {
    let making = Making {
        props: &[
            ("comment", "made here"),
            ("failmode", "continue"),
            ("autotrim", "on"),
            ("ashift", "12"),
            ("org.example:who", "me"),
        ],
        ..Making::new(12)
    };
    making.create("a");
    making.judge();
    let pool = making.open();
    for (name, value_set) in making.props {
        assert_eq!(value(&pool, name), *value_set, "{name}");
    }
    let events = pool.history().unwrap();
    let set = |what: &str| events.iter().any(|r| r.str("history internal str") == Some(what));
    assert!(set("comment=made here") && set("failmode=1"));
}

#[test]
fn features_are_chosen() {
    for (features, enabled, not) in [
        (
            FeatureChoice { compatibility: Some("zol-0.6.4"), ..Default::default() },
            vec!["bookmarks", "embedded_data"],
            "large_blocks",
        ),
        (
            FeatureChoice {
                none: true,
                named: &[("allocation_classes".to_string(), true)],
                ..Default::default()
            },
            vec!["allocation_classes"],
            "hole_birth",
        ),
    ] {
        let making = Making { features, ..Making::new(9) };
        making.create("a");
        making.judge();
        let pool = making.open();
        for name in enabled {
            assert_ne!(value(&pool, &format!("feature@{name}")), "disabled", "{name}");
        }
        assert_eq!(value(&pool, &format!("feature@{not}")), "disabled");
    }
}

/// What OpenZFS lists in its compatibility file `openzfs-2.1-linux`.
const OPENZFS_2_1: &str = "allocation_classes async_destroy bookmark_v2 bookmark_written bookmarks \
    device_rebuild device_removal draid edonr embedded_data empty_bpobj enabled_txg encryption \
    extensible_dataset filesystem_limits hole_birth large_blocks large_dnode livelist log_spacemap \
    lz4_compress multi_vdev_crash_dump obsolete_counts project_quota redacted_datasets \
    redaction_bookmarks resilver_defer sha512 skein spacemap_histogram spacemap_v2 \
    userobj_accounting zpool_checkpoint zstd_compress";

/// A new pool has what OpenZFS 2.1 gives it.
#[test]
fn the_default_features_are_those_of_openzfs() {
    let making = Making::new(12);
    making.create("a");
    making.judge();
    let pool = making.open();
    let has: BTreeSet<String> = pool
        .get_all()
        .iter()
        .filter(|(_, value)| value.exact != "disabled")
        .filter_map(|(name, _)| name.strip_prefix("feature@").map(String::from))
        .collect();
    let listed: BTreeSet<String> = OPENZFS_2_1.split_whitespace().map(String::from).collect();
    let missing: Vec<&String> = listed.difference(&has).collect();
    assert_eq!(missing, [""; 0]);
    // A newer feature keeps no other system out as long as it is not active.
    let newer: Vec<&String> = has.difference(&listed).collect();
    let expected = [
        "blake3",
        "block_cloning",
        "block_cloning_endian",
        "fast_dedup",
        "large_microzap",
        "longname",
        "physical_rewrite",
        "redaction_list_spill",
        "zilsaxattr",
    ];
    assert_eq!(newer, expected);
    let state = |name: &str| pool.get(&format!("feature@{name}")).map(|value| value.exact);
    for name in newer {
        assert_eq!(state(name).as_deref(), Some("enabled"), "{name}");
    }
}
