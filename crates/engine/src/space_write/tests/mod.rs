//! Space maps written in passes, and read back by the reading path after each txg.
#![allow(clippy::unwrap_used, clippy::panic)]

mod logs;
mod rig;
mod samples;

use super::*;
use cenote_dmu::write::{NewObject, ZapMut};
use cenote_dmu::zap::Zap;
use cenote_format::dmu::DmuType;
use cenote_format::spacemap::{DebugAction, Entry};
use cenote_pool::directory::Directory;
use cenote_pool::spacemap::SpaceMap;
use cenote_store::alloc::{Extent, LoadMetaslab};
use cenote_store::rangetree::RangeTree;
use rig::{CLASSES, HISTOGRAM, LOGGING, Rig, TWO_WORDS, Top, count};
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;
const ALL: [(&str, u64); 4] = [(HISTOGRAM, 0), (TWO_WORDS, 1), (LOGGING, 0), (CLASSES, 0)];

/// All entries of a metaslab's map.
fn entries(rig: &Rig, vdev: u64, ms: usize) -> Vec<Entry> {
    let mos = rig.mos.synced();
    let space = PoolSpace::load(mos, &rig.config).unwrap();
    let v = space.vdev_space(vdev).unwrap();
    let ms = &v.metaslabs[ms];
    let mut out = Vec::new();
    if ms.space_map != 0 {
        let map = SpaceMap::open(mos, ms.space_map, v.region(ms)).unwrap();
        map.for_each_entry(&mut |e| {
            out.push(*e);
            Ok(())
        })
        .unwrap();
    }
    out
}

fn work(rig: &mut Rig, txgs: u64) {
    for _ in 0..txgs {
        for _ in 0..rig.random(60) {
            let size = match rig.random(4) {
                0 => 512 * (1 + rig.random(8)),
                1 => 128 << 10,
                2 => 512 * (1 + rig.random(256)),
                _ => 4096,
            };
            let copies = 1 + rig.random(2) as usize;
            rig.alloc(size, copies);
        }
        for _ in 0..rig.random(50) {
            if !rig.live.is_empty() {
                let i = rig.random(rig.live.len() as u64) as usize;
                rig.free(i);
            }
        }
        rig.sync();
        rig.check();
    }
}

#[test]
fn maps_say_what_the_allocator_did() {
    let layouts: [&[Top]; 4] = [
        &[Top(9, 64 * MIB, 1)],
        &[Top(12, 64 * MIB, 1)],
        &[Top(9, 64 * MIB, 1), Top(12, 96 * MIB, 1)],
        &[Top(12, 64 * MIB, 3)],
    ];
    for (i, layout) in layouts.iter().enumerate() {
        let mut rig = Rig::new(layout, &ALL, None);
        (0..i as u64).for_each(|_| {
            rig.random(1);
        });
        rig.sync();
        rig.check();
        for _ in 0..3 {
            work(&mut rig, 5);
            rig.reopen();
            rig.check();
        }
        work(&mut rig, 3);
    }
}

#[test]
fn loads_are_of_one_txg_while_others_are_written() {
    let mut rig = Rig::new(&[Top(9, 64 * MIB, 1)], &ALL, None);
    rig.sync();
    let (loader, history) = (rig.maps.loader(), rig.history.clone());
    let store = rig.mos.synced().store().clone();
    let done = AtomicBool::new(false);
    let loads = std::thread::scope(|scope| {
        let work = || {
            let mut loads = 0;
            while !done.load(Ordering::Relaxed) {
                for ms in 0..3 {
                    let (start, size) = (ms << 24, 1 << 24);
                    store.drop_caches();
                    let loaded = loader.load(0, ms, Extent { start, size, shift: 9 }).unwrap();
                    let mut free = RangeTree::new();
                    free.add(start, start + size).unwrap();
                    let history = history.lock();
                    for (s, e) in history[&loaded.txg].get(&0).unwrap().iter() {
                        free.clear(s, e);
                    }
                    assert!(loaded.free.finish().iter().eq(free.iter()), "txg {}", loaded.txg);
                    loads += 1;
                }
            }
            loads
        };
        let threads = [scope.spawn(work), scope.spawn(work)];
        for _ in 0..60 {
            for _ in 0..40 {
                rig.alloc(512, 1);
            }
            (0..20).for_each(|i| rig.free(i));
            rig.sync();
        }
        done.store(true, Ordering::Relaxed);
        threads.map(|t| t.join().unwrap())
    });
    assert!(loads.iter().all(|n| *n > 0));
}

#[test]
fn passes_are_few_and_a_quiet_pool_writes_nothing() {
    let mut rig = Rig::new(&[Top(12, 64 * MIB, 1)], &ALL, None);
    rig.sync();
    for _ in 0..10 {
        for _ in 0..30 {
            rig.alloc(4096, 1);
        }
        rig.free(3);
        rig.sync();
        assert!(rig.passes <= 8, "{} passes", rig.passes);
    }
    // What the last txg deferred is freed, which makes a little less to be deferred.
    let blocks: u64 = rig.allocated.values().map(|t| t.space()).sum();
    rig.sync();
    rig.sync();
    let now: u64 = rig.allocated.values().map(|t| t.space()).sum();
    assert!(now <= blocks + 64 * 1024, "{blocks} {now}");
    let stats = rig
        .maps
        .sync_changes(&mut rig.mos, rig.txg, 1, &rig.writer.allocator().clone(), &mut count)
        .unwrap();
    assert!(!stats.wrote());
}

#[test]
fn long_maps_are_condensed() {
    for features in [&[(HISTOGRAM, 0), (TWO_WORDS, 1)][..], &[]] {
        // One metaslab.
        let mut rig = Rig::new(&[Top(9, 64 * MIB, 1)], features, Some(25));
        let mut condensed = 0;
        for _ in 0..3 {
            for _ in 0..12_000 {
                rig.alloc(512, 1);
            }
            rig.sync();
            rig.check();
            for odd in [true, false] {
                rig.live.sort_by_key(|d| (d.vdev, d.offset));
                let all = std::mem::take(&mut rig.live);
                let (free, keep): (Vec<_>, Vec<_>) =
                    all.into_iter().partition(|d| !odd || (d.offset >> 9) % 2 == 1);
                let count = free.len();
                rig.live = free.into_iter().chain(keep).collect();
                (0..count).rev().for_each(|i| rig.free(i));
                rig.sync();
                rig.check();
                condensed += rig.stats.condensed;
            }
            // What was freed comes back into circulation, and joins.
            for _ in 0..4 {
                rig.alloc(512, 1);
                rig.sync();
                rig.check();
                condensed += rig.stats.condensed;
            }
            let length = entries(&rig, 0, 0).len();
            assert!(length < 10_000, "{length}");
        }
        assert!((3..=6).contains(&condensed), "{condensed}");
        rig.reopen();
        work(&mut rig, 2);
    }
}

#[test]
fn maps_of_an_old_form_become_others_when_condensed() {
    let mut rig = Rig::new(&[Top(9, 64 * MIB, 1)], &[(TWO_WORDS, 0)], Some(25));
    for _ in 0..12_000 {
        rig.alloc(512, 1);
    }
    rig.sync();
    let before = rig.check();
    assert!(
        before.vdevs[0].metaslabs.iter().flat_map(|m| &m.header).all(|h| h.histogram.is_none())
    );
    // The feature is enabled.
    let zap = map::zap_u64(&mut rig.mos, 1, "features_for_write").unwrap().unwrap();
    let name = cenote_format::encode::zap::Key::Name(HISTOGRAM.as_bytes());
    let zero = cenote_format::encode::zap::Value::U64(&[0]);
    ZapMut::open(&mut rig.mos, zap).add(&name, &zero).unwrap();
    for odd in [1, 0] {
        let mut i = 0;
        while i < rig.live.len() {
            if (rig.live[i].offset >> 9) % 2 == odd { rig.free(i) } else { i += 1 }
        }
        rig.sync();
        rig.check();
    }
    for _ in 0..4 {
        rig.alloc(512, 1);
        rig.sync();
    }
    let after = rig.check();
    let changed = |(a, b): (&cenote_pool::metaslab::Metaslab, &cenote_pool::metaslab::Metaslab)| {
        b.header.as_ref().is_some_and(|h| h.histogram.is_some()) && a.space_map != 0
    };
    let pairs = before.vdevs[0].metaslabs.iter().zip(&after.vdevs[0].metaslabs);
    assert!(pairs.filter(|pair| changed(*pair)).count() > 0);
}

#[test]
fn entries_are_in_the_form_that_the_features_allow() {
    for two_words in [true, false] {
        let features = [(HISTOGRAM, 0), (TWO_WORDS, u64::from(two_words))];
        let mut rig = Rig::new(&[Top(9, 160 * MIB, 1)], &features, Some(26));
        rig.sync();
        for _ in 0..3 {
            assert!(rig.alloc(16 << 20, 1));
        }
        rig.alloc(512, 1);
        rig.sync();
        rig.check();
        let all: Vec<Entry> = (0..2).flat_map(|ms| entries(&rig, 0, ms)).collect();
        let wide = all.iter().filter(|e| e.words() == 2).count();
        assert_eq!(wide > 0, two_words, "{all:?}");
        let first = all.first().unwrap();
        assert_eq!(*first, Entry::Debug { action: DebugAction::Alloc, pass: 2, txg: 4 });
        rig.free(0);
        rig.sync();
        rig.check();
        let freed = entries(&rig, 0, 0);
        let frees = |e: &&Entry| matches!(e, Entry::Debug { action: DebugAction::Free, txg, pass } if *txg == rig.txg && *pass > 0);
        assert!(freed.iter().filter(frees).count() <= rig.passes as usize);
    }
}

#[test]
fn new_vdevs_have_their_zaps() {
    let mut rig = Rig::new(&[Top(12, 64 * MIB, 3), Top(12, 64 * MIB, 1)], &ALL, None);
    let mut extra = rig.config.list("vdev_tree").unwrap().lists("children").unwrap()[1].clone();
    extra.set("id", cenote_format::nvlist::NvValue::Uint64(2));
    extra.set("alloc_bias", cenote_format::nvlist::NvValue::String("special".into()));
    rig.maps.init_vdev(&mut rig.mos, 4, &mut extra, &mut count).unwrap();
    assert!(rig.maps.init_vdev(&mut rig.mos, 4, &mut extra, &mut count).is_err());
    let mut bad = extra.clone();
    bad.set("id", cenote_format::nvlist::NvValue::Uint64(3));
    bad.set("metaslab_shift", cenote_format::nvlist::NvValue::Uint64(99));
    assert!(rig.maps.init_vdev(&mut rig.mos, 4, &mut bad, &mut count).is_err());
    rig.sync();
    let mos = rig.mos.synced().clone();
    let directory = Directory::open(&mos).unwrap();
    let all = directory.zap_of("com.delphix:vdev_zap_map").unwrap().unwrap();
    let listed = |zap: u64| all.u64(format!("{zap:x}").as_bytes()).unwrap() == Some(zap);
    let tops = rig.config.list("vdev_tree").unwrap().lists("children").unwrap();
    let mut zaps = 0;
    for top in tops.iter().chain([&extra]) {
        zaps += 1;
        assert!(listed(top.u64("com.delphix:vdev_zap_top").unwrap()));
        let array = mos.object(top.u64("metaslab_array").unwrap()).unwrap();
        assert_eq!(array.dnode().kind, DmuType::OBJECT_ARRAY);
        config::for_each_leaf(top, &mut |leaf| {
            zaps += 1;
            assert!(listed(leaf.u64("com.delphix:vdev_zap_leaf").unwrap()));
        });
    }
    assert_eq!((zaps, all.entries().unwrap().len()), (8, 8));
    let bias = Zap::open(&mos.object(extra.u64("com.delphix:vdev_zap_top").unwrap()).unwrap());
    let bias = bias.unwrap().lookup(b"org.zfsonlinux:allocation_bias").unwrap().unwrap();
    assert_eq!((bias.int_size, bias.bytes()), (1, b"special\0".to_vec()));
    assert_eq!(directory.feature_uses(CLASSES).unwrap(), Some(1));
    let classes: Vec<_> = rig
        .maps
        .allocator_vdevs(None, &rig.tree)
        .iter()
        .map(|(c, i)| (*c, i.id, i.width))
        .collect();
    assert_eq!(classes, [(Class::Normal, 0, 2), (Class::Normal, 1, 1), (Class::Special, 2, 1)]);
}

#[test]
fn dirty_time_logs_are_merged() {
    let mut rig = Rig::new(&[Top(12, 64 * MIB, 3)], &ALL, None);
    rig.sync();
    let mut write = |missed: &[(u64, Vec<std::ops::Range<u64>>)]| {
        let txg = rig.txg + 1;
        let mut config = rig.config.clone();
        let Some((_, cenote_format::nvlist::NvValue::NvList(tree))) = config.pairs.first_mut()
        else {
            panic!()
        };
        let changed = write_dtls(&mut rig.mos, txg, 1, tree, missed, &mut count).unwrap();
        rig.config = config;
        let again = rig.mos.is_dirty();
        rig.sync();
        rig.check();
        let all = (101..104).map(|guid| {
            let object = config::number(&rig.leaf(guid), "DTL");
            let log =
                (object != 0).then(|| cenote_pool::dtl::load(rig.mos.synced(), object).unwrap());
            log.unwrap_or_default()
        });
        (changed, again, all.collect::<Vec<_>>())
    };
    assert_eq!(write(&[]), (false, false, vec![vec![], vec![], vec![]]));
    let one = |r: std::ops::Range<u64>| vec![r];
    let first = write(&[(102, vec![5..7, 9..10])]);
    assert_eq!(first, (true, true, vec![vec![], vec![5..7, 9..10], vec![]]));
    let second = write(&[(102, one(7..9)), (103, one(6..7)), (77, one(1..2))]);
    assert_eq!(second, (true, true, vec![vec![], one(5..10), one(6..7)]));
    assert_eq!(write(&[(102, one(6..8))]), (false, false, second.2.clone()));
    let many = (0..3000).map(|i| 100 + 2 * i..101 + 2 * i).collect::<Vec<_>>();
    let third = write(&[(103, many.clone())]);
    assert_eq!((third.0, third.1, third.2[2].len()), (false, true, 3001));
    let twice = write(&[(101, one(3..4)), (103, one(6..7)), (101, one(8..9))]);
    assert_eq!((twice.1, &twice.2[0]), (true, &vec![3..4, 8..9]));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut rig = Rig::new(&[Top(9, 64 * MIB, 1)], &ALL, None);
    rig.sync();
    let mut space = rig.check();
    let mos = rig.mos.synced().clone();
    let open = |space: &PoolSpace, config: &NvList| {
        SpaceMaps::open(space, config, &mos, 4).err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert_eq!(open(&space, &rig.config), "");
    space.vdevs[0].non_allocating = true;
    assert!(open(&space, &rig.config).contains("non-allocating"));
    // An object that is not a space map.
    let plain = rig.mos.allocate(&NewObject::new(DmuType::PLAIN_FILE_CONTENTS, 4096)).unwrap();
    rig.maps.vdevs.get_mut(&0).unwrap().maps.fill(plain);
    rig.alloc(512, 1);
    let allocator = rig.writer.allocator().clone();
    let result = rig.maps.sync_changes(&mut rig.mos, 5, 1, &allocator, &mut count);
    assert!(matches!(result, Err(WriteError::Invalid { .. })));
}
