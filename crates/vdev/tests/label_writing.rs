//! Labels as this crate writes them, judged by OpenZFS's `zdb`. Where it is not installed these
//! tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_testpools::{zdb_command, zdb_output};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_format::label::Uberblock;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_vdev::{
    Device, DeviceLabels, LabelState, LabelUpdate, VdevTree, clear_labels, init_labels,
    label_owner, open_device, open_device_rw, read_labels,
};

fn zdb(args: &[&str], file: &Path) -> (bool, String) {
    let mut zdb = zdb_command(args);
    zdb.arg(file);
    let (output, text) = zdb_output(zdb);
    (output.status.success(), text)
}

/// The devices of a pool with their labels, those without any left out.
fn labels(files: &[PathBuf]) -> Vec<(PathBuf, DeviceLabels)> {
    let read = |f: &PathBuf| {
        let labels = read_labels(&*open_device(f).unwrap()).unwrap()?;
        Some((f.clone(), labels))
    };
    files.iter().filter_map(read).collect()
}

/// The pool's tree over devices opened for writing, and the config of each top-level vdev's
/// labels by its id.
fn open_rw(labels: &[(PathBuf, DeviceLabels)]) -> (Arc<VdevTree>, Vec<(u64, NvList)>) {
    let mut tops: HashMap<u64, NvList> = HashMap::new();
    for (_, l) in labels {
        let id = l.config.list("vdev_tree").unwrap().u64("id").unwrap();
        tops.insert(id, l.config.clone());
    }
    let mut tops: Vec<(u64, NvList)> = tops.into_iter().collect();
    tops.sort_by_key(|(id, _)| *id);
    let children = tops.iter().map(|(_, c)| c.list("vdev_tree").unwrap().clone()).collect();
    let pair = |n: &str, v| (n.to_string(), v);
    let config = NvList {
        pairs: vec![
            pair("type", NvValue::String("root".into())),
            pair("guid", NvValue::Uint64(labels[0].1.config.u64("pool_guid").unwrap())),
            pair("children", NvValue::NvListArray(children)),
        ],
    };
    let of_guid = |g: u64| labels.iter().find(|(_, l)| l.config.u64("guid") == Some(g));
    let open = &mut |guid, _: &NvList| of_guid(guid).map(|(f, _)| open_device_rw(f).unwrap());
    (VdevTree::build(&config, open).unwrap(), tops)
}

fn best(labels: &[(PathBuf, DeviceLabels)]) -> Uberblock {
    let all = labels.iter().flat_map(|(_, l)| l.uberblocks.iter().map(|(_, _, u)| u));
    Uberblock::best(all).unwrap().clone()
}

/// What `zdb -l` prints about a label, without the txg and the numbers of labels.
fn config_text(text: &str) -> Vec<&str> {
    let body = text.lines().filter(|l| !l.contains("LABEL") && !l.contains("labels ="));
    body.filter(|l| !l.starts_with("    txg:") && !l.starts_with("---")).collect()
}

/// Labels of real pools are cleared, begun anew and committed at the next transaction group: `zdb`
/// shows the same configs as before, in all four labels, and the new uberblock.
#[test]
fn zdb_reads_what_was_written() {
    for name in ["compat21", "mir3", "rz2", "zilslog"] {
        let pool = cenote_testpools::copy(name);
        let before = labels(&pool.pool.files);
        let text_before: Vec<String> = before.iter().map(|(f, _)| zdb(&["-l"], f).1).collect();
        let mut uberblock = best(&before);
        uberblock.txg += 1;
        for (file, l) in &before {
            let dev = open_device_rw(file).unwrap();
            let owner = label_owner(&*dev).unwrap().unwrap();
            assert_eq!(owner.pool_name.as_deref(), Some(name));
            assert!(matches!(owner.state, LabelState::Active | LabelState::Exported));
            assert_eq!(clear_labels(&*dev).unwrap(), 4);
            assert!(!zdb(&["-l"], file).0, "{name}: no label is left");
            let mut config = l.config.clone();
            config.set("txg", NvValue::Uint64(0));
            init_labels(&*dev, &config).unwrap();
        }
        let (tree, configs) = open_rw(&before);
        let all: Vec<u64> = configs.iter().map(|(id, _)| *id).collect();
        let update = LabelUpdate {
            uberblock: &uberblock,
            uberblock_on: &all,
            labels: &configs,
            multihost: false,
        };
        tree.sync_labels(&update).unwrap();
        drop(tree);
        for ((file, old), text) in before.iter().zip(&text_before) {
            let (ok, after) = zdb(&["-l"], file);
            assert!(ok && after.contains("labels = 0 1 2 3"), "{name}: {after}");
            assert_eq!(config_text(&after), config_text(text), "{name}: {}", file.display());
            assert!(after.contains(&format!("    txg: {}\n", uberblock.txg)));
            let (ok, rings) = zdb(&["-lu"], file);
            assert!(ok && rings.matches("Uberblock[").count() == 1, "{name}: {rings}");
            assert!(rings.contains(&format!("\ttxg = {}\n", uberblock.txg)), "{name}: {rings}");
            let slot_labels = rings.lines().rfind(|l| l.contains("labels = 0 1 2 3"));
            assert!(slot_labels.is_some(), "{name}: {rings}");
            // And so does this crate.
            let dev = open_device(file).unwrap();
            let new = read_labels(&*dev).unwrap().unwrap();
            assert_eq!(new.uberblocks.len(), 4);
            assert!(new.uberblocks.iter().all(|(_, _, u)| *u == uberblock));
            let mut config = old.config.clone();
            config.set("txg", NvValue::Uint64(uberblock.txg));
            assert_eq!(new.labels, [0; 4].map(|_| Some(config.clone())));
        }
    }
}

/// `zdb` opens the pool at the uberblock that was committed.
#[test]
fn zdb_opens_the_pool_at_the_new_uberblock() {
    let pool = cenote_testpools::copy("compat21");
    let before = labels(&pool.pool.files);
    let mut uberblock = best(&before);
    // Software that opened the pool meanwhile would have written the same tree again.
    uberblock.txg += 1;
    uberblock.timestamp += 1;
    let (tree, configs) = open_rw(&before);
    let update = LabelUpdate {
        uberblock: &uberblock,
        uberblock_on: &[0],
        labels: &configs,
        multihost: false,
    };
    tree.sync_labels(&update).unwrap();
    drop(tree);
    let dir = pool.pool.files[0].parent().unwrap();
    let text = cenote_testpools::zdb(dir, "compat21", &["-u"]);
    assert!(text.contains(&format!("\ttxg = {}\n", uberblock.txg)), "{text}");
}

#[test]
fn a_read_only_device_keeps_its_labels() {
    let pool = cenote_testpools::copy("compat21");
    let dev: Arc<dyn Device> = open_device(&pool.pool.files[0]).unwrap();
    let config = read_labels(&*dev).unwrap().unwrap().config;
    assert!(init_labels(&*dev, &config).is_err() && clear_labels(&*dev).is_err());
    assert_eq!(zdb(&["-l"], &pool.pool.files[0]).1.matches("labels = 0 1 2 3").count(), 1);
}
