#![allow(dead_code)]
use cenote_dmu::ObjectSet;
use cenote_dmu::zap::Zap;
use cenote_format::label::Uberblock;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::traverse::Subject;
use cenote_store::Store;
use cenote_testpools::TestPool;
use cenote_vdev::*;
use std::collections::BTreeMap;
use std::sync::Arc;

pub struct Opened { pub mos: Arc<ObjectSet>, pub config: NvList, pub uberblock: Uberblock }
impl Opened {
    pub fn subject(&self) -> Subject<'_> { Subject { mos: self.mos.clone(), config: &self.config, uberblock: &self.uberblock } }
}
pub fn open(pool: &TestPool) -> Opened {
    let mut devs = BTreeMap::new();
    let mut tops: BTreeMap<u64, NvList> = BTreeMap::new();
    let mut best: Option<Uberblock> = None;
    let mut count = 0;
    for f in &pool.files {
        let dev = open_device(f).unwrap();
        let Some(l) = read_labels(&*dev).unwrap() else { continue };
        devs.insert(l.config.u64("guid").unwrap(), dev);
        if l.config.u64("txg") == Some(0) { continue; }
        count = l.config.u64("vdev_children").unwrap_or(1);
        let t = l.config.list("vdev_tree").unwrap();
        tops.insert(t.u64("id").unwrap(), t.clone());
        for (_, _, u) in &l.uberblocks {
            if best.as_ref().is_none_or(|b| u.rank() > b.rank()) { best = Some(u.clone()); }
        }
    }
    let mut root = NvList::default();
    root.set("type", NvValue::String("root".into()));
    root.set("id", NvValue::Uint64(0));
    root.set("guid", NvValue::Uint64(1));
    let children = (0..count).map(|i| tops.get(&i).cloned().unwrap_or_else(|| {
        let mut h = NvList::default();
        h.set("type", NvValue::String("hole".into()));
        h.set("id", NvValue::Uint64(i));
        h.set("guid", NvValue::Uint64(0));
        h
    })).collect();
    root.set("children", NvValue::NvListArray(children));
    let tree = VdevTree::build(&root, &mut |g: u64, _: &NvList| devs.get(&g).cloned()).unwrap();
    let store = Store::new(tree, 64 << 20);
    let uberblock = best.unwrap();
    let mos = ObjectSet::open(store.clone(), 0, uberblock.rootbp).unwrap();
    let dir = Zap::open(&mos.object(1).unwrap()).unwrap();
    if let Some(salt) = dir.lookup(b"org.illumos:checksum_salt").unwrap() {
        let mut s = [0; 32];
        for (a, b) in s.iter_mut().zip(salt.bytes()) { *a = b; }
        store.set_salt(cenote_format::checksum::Salt::new(s));
    }
    let o = mos.object(dir.u64(b"config").unwrap().unwrap()).unwrap();
    let len = o.bonus().u64(0).unwrap() as usize;
    let mut data = vec![0; len];
    o.read(0, &mut data).unwrap();
    let config = NvList::decode(&data).unwrap();
    Opened { mos, config, uberblock }
}
