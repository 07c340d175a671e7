//! What an object set holds, as the reading path sees it, with everything checked on the way.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use cenote_dmu::objset::{GROUP_USED, PROJECT_USED, USER_USED};
use cenote_dmu::zap::Zap;
use cenote_dmu::{Object, ObjectSet};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DnodePhys;

/// Pieces of 512 bytes that are not zeros, by number.
pub type Pieces = BTreeMap<u64, Vec<u8>>;
/// Entries of a ZAP: bytes of each integer, and the integers.
pub type Entries = BTreeMap<Vec<u8>, (u8, Vec<u64>)>;

pub fn pieces(at: u64, data: &[u8]) -> impl Iterator<Item = (u64, Vec<u8>)> + '_ {
    let numbered = (at / 512..).zip(data.chunks(512));
    numbered.filter(|(_, p)| p.iter().any(|b| *b != 0)).map(|(n, p)| (n, p.to_vec()))
}

pub struct Seen {
    pub dnode: DnodePhys,
    pub data: Pieces,
    pub spill: Option<Vec<u8>>,
    pub zap: Option<Entries>,
}

/// Walks an object: fill counts and space used are right. `fill`: that of data block `blkid`.
fn walk(object: &Object, fill: &dyn Fn(u64) -> u64, live: &mut HashSet<BlockPointer>) {
    let (dnode, mut used) = (object.dnode(), 0);
    let fan = dnode.indirect_shift - 7;
    let mut below: BTreeMap<(i64, u64), u64> = BTreeMap::new();
    let mut found = Vec::new();
    let mut visit = |level: i64, blkid: u64, bp: &BlockPointer| {
        assert!(live.insert(*bp), "{bp:?} is linked twice");
        used += bp.dvas().map(|d| d.asize).sum::<u64>();
        if level >= 0 {
            *below.entry((level + 1, blkid >> fan)).or_default() += bp.fill();
            found.push((level, blkid, bp.fill()));
        }
        Ok(())
    };
    object.walk(&mut visit).unwrap();
    for (level, blkid, count) in found {
        let expected = if level == 0 { fill(blkid) } else { below[&(level, blkid)] };
        assert_eq!(count, expected, "{object:?}: fill of block {blkid} of level {level}");
    }
    assert_eq!(dnode.used, used, "{object:?}: used");
}

fn zap(object: &Object) -> Option<Entries> {
    if !object.dnode().kind.is_zap() {
        return None;
    }
    let zap = Zap::open(object).unwrap();
    let entries = zap.entries().unwrap();
    assert_eq!(entries.len() as u64, zap.len());
    for e in &entries {
        assert_eq!(zap.lookup(&e.name).unwrap().as_ref(), Some(e));
    }
    assert_eq!(zap.lookup(b"not there at all").unwrap(), None);
    Some(entries.into_iter().map(|e| (e.name, (e.int_size, e.value))).collect())
}

fn see(object: &Object) -> Seen {
    let size = object.dnode().block_size;
    let mut data = Pieces::new();
    let mut visit = |level: i64, blkid: u64, _: &BlockPointer| {
        if level == 0 {
            let block = object.block(blkid)?.unwrap();
            assert!(blkid <= object.dnode().max_block);
            data.extend(pieces(blkid * size, &block.data.bytes()));
        }
        Ok(())
    };
    object.walk(&mut visit).unwrap();
    let spill = object.spill().unwrap().map(|b| b.data.to_vec());
    Seen { dnode: object.dnode().clone(), data, spill, zap: zap(object) }
}

/// Everything in the object set at `set`, which consists of exactly the blocks in `live`.
pub fn everything(set: &Arc<ObjectSet>, live: &HashSet<BlockPointer>) -> BTreeMap<u64, Seen> {
    let mut out = BTreeMap::new();
    let mut reached = HashSet::from([*set.root_bp()]);
    let mut next = 0;
    while let Some(number) = set.next_object(next).unwrap() {
        let object = set.object(number).unwrap();
        walk(&object, &|_| 1, &mut reached);
        out.insert(number, see(&object));
        next = number + 1;
    }
    let in_block = |blkid: u64| out.range(blkid * 32..(blkid + 1) * 32).count() as u64;
    walk(&set.special(0).unwrap(), &in_block, &mut reached);
    for number in [USER_USED, GROUP_USED, PROJECT_USED] {
        if let Ok(object) = set.special(number) {
            walk(&object, &|_| 1, &mut reached);
        }
    }
    assert_eq!(set.root_bp().fill(), out.len() as u64);
    assert_eq!(&reached, live);
    out
}
