//! Opens sample pools as far as this floor needs: labels, devices, meta object set, datasets.
#![allow(dead_code, missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dmu::zap::Zap;
use cenote_dmu::{Error, ObjectSet};
use cenote_format::checksum::Salt;
use cenote_format::dmu::DmuType;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::label::Uberblock;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_store::{BlockError, Store};
use cenote_testpools::TestPool;
use cenote_vdev::{Device, VdevTree, open_device, read_labels};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Pools whose datasets can be read without an indirect vdev's mapping or keys.
pub fn readable() -> Vec<String> {
    cenote_testpools::names().into_iter().filter(|n| n != "removal").collect()
}

/// The meta object set of a pool. The tree is made of what the labels say, each about its
/// own top-level vdev.
pub fn mos(pool: &TestPool) -> Arc<ObjectSet> {
    let mut tops: BTreeMap<u64, NvList> = BTreeMap::new();
    let mut devices: BTreeMap<u64, Arc<dyn Device>> = BTreeMap::new();
    let mut uberblocks: Vec<Uberblock> = Vec::new();
    for file in &pool.files {
        let device = open_device(file).unwrap();
        let Some(labels) = read_labels(&*device).unwrap() else { continue };
        uberblocks.extend(labels.uberblocks.iter().map(|(_, _, u)| u.clone()));
        devices.insert(labels.config.u64("guid").unwrap(), device);
        if let Some(top) = labels.config.list("vdev_tree") {
            tops.insert(top.u64("id").unwrap(), top.clone());
        }
    }
    let last = *tops.keys().last().unwrap();
    let hole = |id: u64| {
        let mut list = NvList::default();
        list.set("type", NvValue::String("hole".into()));
        list.set("id", NvValue::Uint64(id));
        list.set("guid", NvValue::Uint64(0));
        list
    };
    let children = (0..=last).map(|id| tops.remove(&id).unwrap_or_else(|| hole(id))).collect();
    let mut root = NvList::default();
    root.set("type", NvValue::String("root".into()));
    root.set("id", NvValue::Uint64(0));
    root.set("guid", NvValue::Uint64(1));
    root.set("children", NvValue::NvListArray(children));
    let tree = VdevTree::build(&root, &mut |guid, _| devices.get(&guid).cloned()).unwrap();
    let store = Store::new(tree, 64 << 20);
    let best = Uberblock::best(&uberblocks).unwrap();
    let mos = ObjectSet::open(store, 0, best.rootbp).unwrap();
    let directory = Zap::open(&mos.object(1).unwrap()).unwrap();
    if let Some(salt) = directory.lookup(b"org.illumos:checksum_salt").unwrap() {
        mos.store().set_salt(Salt::new(salt.bytes().try_into().unwrap()));
    }
    mos
}

/// All object sets of a pool, the MOS first. Encrypted ones are left out.
pub fn objsets(mos: &Arc<ObjectSet>) -> Vec<Arc<ObjectSet>> {
    let mut out = vec![mos.clone()];
    for number in objects(mos) {
        let object = mos.object(number).unwrap();
        if object.dnode().bonus_kind != DmuType::DSL_DATASET {
            continue;
        }
        let dataset = DslDatasetPhys::decode(&object.bonus()).unwrap();
        let set = match ObjectSet::open(mos.store().clone(), number, dataset.bp) {
            Ok(set) => set,
            Err(Error::Block(BlockError::Encrypted { .. })) => continue,
            Err(e) => panic!("{e}"),
        };
        if !set.root_bp().uses_crypt() {
            out.push(set);
        }
    }
    out
}

/// Numbers of all objects.
pub fn objects(set: &Arc<ObjectSet>) -> Vec<u64> {
    let mut out = Vec::new();
    let mut from = 0;
    while let Some(number) = set.next_object(from).unwrap() {
        out.push(number);
        from = number + 1;
    }
    out
}
