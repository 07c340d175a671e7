//! Log space maps, written txg by txg and read back after each.

use super::rig::{HISTOGRAM, LOGGING, Rig, TWO_WORDS, Top, count};
use super::*;
use cenote_format::encode::zap::{Key, Value};

const OFF: [(&str, u64); 2] = [(HISTOGRAM, 0), (TWO_WORDS, 1)];
/// Ten metaslabs and more.
const TOPS: [Top; 2] = [Top(9, 64 * MIB, 1), Top(12, 64 * MIB, 1)];
const SHIFT: Option<u32> = Some(22);

fn plenty() -> Limits {
    Limits {
        memory: 1 << 30,
        block_pct: 400,
        block_min: 1000,
        block_max: 1 << 17,
        logs: 1000,
        least: 0,
        rows: 1000,
        walk: 5,
    }
}

/// One txg of random work.
fn txg(rig: &mut Rig, most: u64) {
    for _ in 0..rig.random(most) {
        let size = 512 * (1 + rig.random(16));
        let copies = 1 + rig.random(2) as usize;
        rig.alloc(size, copies);
    }
    for _ in 0..rig.random(most) {
        if !rig.live.is_empty() {
            let i = rig.random(rig.live.len() as u64) as usize;
            rig.free(i);
        }
    }
    rig.sync();
}

/// Blocks all over the pool, so that later every metaslab changes.
fn spread(rig: &mut Rig) {
    let mut pieces = 0;
    // Two thirds of the pool.
    let space: u64 = rig.allocator().groups().map(|group| group.space()).sum();
    while pieces < (space >> 16) * 2 / 3 && rig.alloc(64 << 10, 1) {
        pieces += 1;
    }
    rig.sync();
    for _ in 0..pieces / 3 {
        let i = rig.random(rig.live.len() as u64) as usize;
        rig.free(i);
    }
    rig.sync();
}

fn enable(rig: &mut Rig) {
    let zap = map::zap_u64(&mut rig.mos, 1, "features_for_write").unwrap().unwrap();
    let name = Key::Name(LOGGING.as_bytes());
    ZapMut::open(&mut rig.mos, zap).add(&name, &Value::U64(&[0])).unwrap();
}

#[test]
fn every_txg_can_be_opened_as_a_crash_leaves_it() {
    for limits in [plenty as fn() -> Limits, || Limits { least: 3, ..plenty() }] {
        let mut rig = Rig::new(&TOPS, &ALL, SHIFT);
        rig.maps.limits = limits;
        spread(&mut rig);
        let mut logs = 0;
        for i in 0..40 {
            txg(&mut rig, 60);
            let space = rig.check();
            assert!(rig.passes <= 10, "{} passes", rig.passes);
            logs = logs.max(space.logs.len());
            if i % 2 == 0 {
                rig.reopen();
                rig.maps.limits = limits;
                rig.check();
            }
        }
        assert!(logs >= 10, "{logs}");
    }
}

#[test]
fn the_feature_is_enabled_midway() {
    let mut rig = Rig::new(&TOPS, &OFF, SHIFT);
    rig.maps.limits = plenty;
    spread(&mut rig);
    txg(&mut rig, 60);
    assert_eq!(rig.check().logs.len(), 0);
    enable(&mut rig);
    for i in 0..10 {
        txg(&mut rig, 60);
        let space = rig.check();
        assert_eq!((space.log_feature, space.logs.len()), (Some(1), i + 1));
    }
    rig.reopen();
    txg(&mut rig, 60);
    rig.check();
}

#[test]
fn without_the_feature_there_are_no_logs() {
    for features in [&OFF[..], &[(HISTOGRAM, 0), (TWO_WORDS, 0), (LOGGING, 0)]] {
        let mut rig = Rig::new(&TOPS, features, SHIFT);
        for _ in 0..5 {
            txg(&mut rig, 60);
            let space = rig.check();
            assert!(space.logs.is_empty() && space.log_feature.unwrap_or(0) == 0);
        }
    }
}

#[test]
fn hundreds_of_logs() {
    let mut rig = Rig::new(&TOPS, &ALL, SHIFT);
    rig.maps.limits = plenty;
    spread(&mut rig);
    for i in 0..300 {
        txg(&mut rig, 20);
        if i % 50 == 0 {
            rig.check();
        }
    }
    assert!(rig.check().logs.len() > 280);
    rig.reopen();
    rig.maps.limits = || Limits { logs: 100, ..plenty() };
    txg(&mut rig, 20);
    let space = rig.check();
    assert!(space.logs.len() <= 100, "{}", space.logs.len());
    for _ in 0..150 {
        txg(&mut rig, 20);
        assert!(rig.stats.flushed < 20, "{:?}", rig.stats);
    }
    assert!(rig.check().logs.len() <= 100);
}

#[test]
fn limits_are_kept() {
    // Of blocks.
    let mut rig = Rig::new(&TOPS, &ALL, SHIFT);
    let blocks = || Limits { block_min: 24, block_max: 24, ..plenty() };
    rig.maps.limits = blocks;
    spread(&mut rig);
    let mut flushed = Vec::new();
    for _ in 0..100 {
        txg(&mut rig, 40);
        flushed.push(rig.stats.flushed);
        let space = PoolSpace::load(rig.mos.synced(), &rig.config).unwrap();
        let sum: u64 = space.logs.iter().map(|log| log.phys.length.div_ceil(128 << 10)).sum();
        assert!(sum <= 24, "{sum}");
    }
    rig.check();
    // All metaslabs but few: 32 of them in 24 txgs.
    assert!(*flushed.iter().max().unwrap() <= 4, "{flushed:?}");
    // Of memory.
    let memory = || Limits { memory: 40_000, ..plenty() };
    rig.maps.limits = memory;
    for i in 0..60 {
        txg(&mut rig, 60);
        let (_, used) = rig.maps.unflushed.memory();
        assert!(used <= 44_000, "{used}");
        if i % 20 == 0 {
            rig.check();
        }
    }
    rig.check();
}

#[test]
fn everything_is_flushed_if_asked_for() {
    let mut rig = Rig::new(&TOPS, &ALL, SHIFT);
    rig.maps.limits = plenty;
    spread(&mut rig);
    (0..20).for_each(|_| txg(&mut rig, 60));
    assert!(rig.check().logs.len() > 15);
    rig.maps.flush_all();
    rig.sync();
    let space = rig.check();
    // What flushing itself changes is in the log of that txg.
    let txgs: Vec<u64> = space.logs.iter().map(|log| log.txg).collect();
    assert_eq!(txgs, [rig.txg]);
    rig.reopen();
    txg(&mut rig, 60);
    rig.check();
}

#[test]
fn long_maps_are_condensed_when_they_are_flushed() {
    let mut rig = Rig::new(&[Top(9, 64 * MIB, 1)], &ALL, Some(25));
    rig.maps.limits = || Limits { least: 100, ..plenty() };
    let mut condensed = 0;
    for round in 0..16 {
        while rig.live.len() < 12_000 {
            rig.alloc(512, 1);
        }
        rig.sync();
        rig.live.sort_by_key(|d| d.offset);
        let mut i = 0;
        while i < rig.live.len() {
            if (rig.live[i].offset >> 9) % 2 == round % 2 { rig.free(i) } else { i += 1 }
        }
        rig.sync();
        condensed += rig.stats.condensed;
        if round % 4 == 0 || rig.stats.condensed > 0 {
            rig.check();
        }
        // What was freed comes back into circulation.
        for _ in 0..3 {
            rig.alloc(512, 1);
            rig.sync();
            condensed += rig.stats.condensed;
        }
    }
    assert!((1..8).contains(&condensed), "{condensed}");
    rig.check();
    rig.reopen();
    txg(&mut rig, 60);
    rig.check();
}

#[test]
fn an_idle_pool_has_no_new_logs() {
    let mut rig = Rig::new(&TOPS, &ALL, SHIFT);
    rig.maps.limits = plenty;
    txg(&mut rig, 60);
    let before = rig.check().logs.len();
    (0..5).for_each(|_| rig.sync());
    assert_eq!(rig.check().logs.len(), before);
    let allocator = rig.writer.allocator().clone();
    let stats =
        rig.maps.sync_changes(&mut rig.mos, rig.txg + 1, 1, &allocator, &mut count).unwrap();
    assert!(!stats.wrote() && !rig.mos.is_dirty());
}

#[test]
fn loads_merge_what_is_unflushed_while_txgs_are_written() {
    let mut rig = Rig::new(&[Top(9, 64 * MIB, 1)], &ALL, SHIFT);
    rig.maps.limits = || Limits { least: 2, ..plenty() };
    spread(&mut rig);
    let (loader, history) = (rig.maps.loader(), rig.history.clone());
    let store = rig.mos.synced().store().clone();
    let done = AtomicBool::new(false);
    let loads = std::thread::scope(|scope| {
        let work = |ms: u64| {
            let (done, history, store, loader) = (&done, &history, &store, &loader);
            move || {
                let mut loads = 0;
                while !done.load(Ordering::Relaxed) {
                    let ms = (ms + loads) % 13;
                    let (start, size) = (ms << 22, 1 << 22);
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
                loads
            }
        };
        let threads = [scope.spawn(work(0)), scope.spawn(work(7))];
        for _ in 0..80 {
            txg(&mut rig, 60);
        }
        done.store(true, Ordering::Relaxed);
        threads.map(|t| t.join().unwrap())
    });
    assert!(loads.iter().all(|n| *n > 0));
    rig.check();
}
