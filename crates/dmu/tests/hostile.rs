//! Metadata with any bytes at all, checksums right: no panic, no endless loop, no memory bomb.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use cenote_dmu::zap::{Match, Zap};
use cenote_dmu::{Object, ObjectSet, Seek};
use cenote_store::tamper;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// xorshift64: the same damage in every run.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Changes a few words of a block to values that are likely to hurt, where they are likely to.
fn damage(block: &mut [u8], state: &mut u64) {
    for _ in 0..1 + random(state) % 4 {
        let r = random(state);
        let near = [128, 1024, block.len().max(1)][(r % 3) as usize].min(block.len().max(1));
        let at = (r >> 8) as usize % near;
        let r = random(state);
        let value = [0, u64::MAX, 1, 0xff, 1 << 63, 0x40, r, r & 0xffff][(r >> 60) as usize % 8];
        let width = [1, 2, 4, 8][(r >> 32) as usize % 4].min(block.len() - at);
        block[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

fn use_object(object: &Object) {
    let mut budget = 20_000;
    let _ = object.walk(&mut |_, _, _| {
        budget -= 1;
        if budget == 0 {
            let why = "enough".to_owned();
            return Err(cenote_dmu::Error::Corrupt { objset: 0, object: 0, why });
        }
        Ok(())
    });
    let mut at = 0;
    for what in [Seek::Data, Seek::Hole].into_iter().cycle().take(64) {
        let Ok(Some(next)) = object.seek(at, what) else { break };
        at = next;
    }
    let mut buf = vec![0; 70_000];
    for offset in [0, 100_000, at, u64::MAX / 2, u64::MAX - 7] {
        let _ = object.read(offset, &mut buf);
    }
    let _ = (object.spill(), object.bonus().u64(0));
    if !object.dnode().kind.is_zap() {
        return;
    }
    let Ok(zap) = Zap::open(object) else { return };
    let _ = zap.describe();
    let entries = zap.entries().unwrap_or_default();
    let paged = zap.iter().take(entries.len() + 10_000).filter(Result::is_ok).count();
    assert!(paged <= entries.len() + 10_000);
    for entry in entries.iter().take(200) {
        let _ = zap.lookup(&entry.name);
        let _ = zap.lookup_norm(&entry.name, Match { fold_case: true });
        let _ = zap.lookup_words(&entry.words());
    }
    let _ = zap.lookup(b"a name");
    let _ = zap.lookup_words(&[1, 2, 3]);
    let _ = zap.entries_from(random(&mut 77), 5);
}

fn use_set(set: &Arc<ObjectSet>) {
    let mut from = 0;
    for _ in 0..300 {
        match set.next_object(from) {
            Ok(Some(number)) => {
                if let Ok(object) = set.object(number) {
                    use_object(&object);
                }
                from = number.saturating_add(1);
            }
            Ok(None) => break,
            Err(_) => from = set.next_dnode_block(from),
        }
    }
    for number in [0, u64::MAX, u64::MAX - 1, u64::MAX - 2, u64::MAX - 3] {
        if let Ok(object) = set.special(number) {
            use_object(&object);
        }
    }
}

/// The hook is one for the whole process.
static HOOK: Mutex<()> = Mutex::new(());

#[test]
fn tampered_metadata() {
    let _hook = HOOK.lock();
    let start = Instant::now();
    for name in ["basic", "dedupold", "ldnode", "clones"] {
        let pool = cenote_testpools::pool(name);
        let mos = common::mos(&pool);
        let roots: Vec<_> =
            common::objsets(&mos).iter().map(|s| (s.id(), *s.root_bp())).take(6).collect();
        for round in 0..120u64 {
            let state = AtomicU64::new(0x9e37_79b9_7f4a_7c15 ^ (round << 20));
            // Every fifth block of metadata or so; early rounds only what is not a root block.
            tamper::install(Some(Box::new(move |at, bytes| {
                let mut s = state.load(Ordering::Relaxed);
                let hit = random(&mut s).is_multiple_of(5) && (at.level >= 0 || round % 8 == 7);
                if hit {
                    damage(bytes, &mut s);
                }
                state.store(s, Ordering::Relaxed);
                hit
            })));
            mos.store().drop_caches();
            for (id, bp) in &roots {
                if let Ok(set) = ObjectSet::open(mos.store().clone(), *id, *bp) {
                    use_set(&set);
                }
            }
            tamper::install(None);
            mos.store().drop_caches();
        }
        assert!(start.elapsed() < Duration::from_secs(120), "{name}");
    }
}

/// Fills an indirect block with copies of its first pointer that is not a hole, so that a tree of
/// four blocks looks like one of millions.
fn repeat_first_pointer(block: &mut [u8]) {
    let pointer = |b: &[u8]| b[..16].iter().any(|x| *x != 0);
    if let Some(first) = block.chunks_exact(128).find(|b| pointer(b)).map(<[u8]>::to_vec) {
        block.chunks_exact_mut(128).for_each(|b| b.copy_from_slice(&first));
    }
}

#[test]
fn a_tree_that_reaches_its_blocks_from_everywhere() {
    let _hook = HOOK.lock();
    let pool = cenote_testpools::pool("basic");
    let mos = common::mos(&pool);
    let deep = |set: &Arc<ObjectSet>| {
        let objects = common::objects(set).into_iter().map(|n| set.object(n).unwrap());
        objects.into_iter().find(|o| o.dnode().levels >= 4)
    };
    let object = common::objsets(&mos).iter().find_map(deep).unwrap();
    tamper::install(Some(Box::new(|at, bytes| {
        let hit = at.level > 0 && at.object != 0;
        if hit {
            repeat_first_pointer(bytes);
        }
        hit
    })));
    mos.store().drop_caches();
    let start = Instant::now();
    assert!(object.dnode().max_block > 1 << 20);
    assert_eq!(object.seek(4096, Seek::Data).unwrap(), Some(4096));
    assert_eq!(object.seek(0, Seek::Hole).unwrap(), None);
    let mut seen = 0u64;
    let walked = object.walk(&mut |_, _, _| {
        seen += 1;
        Ok(())
    });
    assert!(walked.is_err_and(|e| e.to_string().contains("linked twice")));
    assert!(seen < 10_000, "{seen}");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    tamper::install(None);
    mos.store().drop_caches();
}

#[test]
fn indirect_blocks_inside_of_pointers() {
    let _hook = HOOK.lock();
    let pool = cenote_testpools::pool("basic");
    let mos = common::mos(&pool);
    let deep = |set: &Arc<ObjectSet>| {
        let objects = common::objects(set).into_iter().map(|n| set.object(n).unwrap());
        objects.into_iter().find(|o| o.dnode().levels >= 4)
    };
    let object = common::objsets(&mos).iter().find_map(deep).unwrap();
    tamper::install(Some(Box::new(|at, bytes| {
        let hit = at.level > 1 && at.object != 0;
        if hit {
            // The bit of word 6 that says "embedded".
            bytes.chunks_exact_mut(128).for_each(|pointer| pointer[52] |= 0x80);
        }
        hit
    })));
    mos.store().drop_caches();
    let walked = object.walk(&mut |_, _, _| Ok(()));
    assert!(walked.is_err_and(|e| e.to_string().ends_with("embedded")));
    assert!(object.seek(0, Seek::Data).is_err());
    tamper::install(None);
    mos.store().drop_caches();
}

#[test]
fn empty_blocks_of_dnodes_without_end() {
    let _hook = HOOK.lock();
    let pool = cenote_testpools::pool("basic");
    let mos = common::mos(&pool);
    let levels = |set: &ObjectSet| set.phys().meta_dnode.levels;
    let sets = common::objsets(&mos);
    let deep = sets.iter().find(|set| levels(set) >= 6).unwrap();
    tamper::install(Some(Box::new(|at, bytes| {
        match at.level {
            // The number of the meta dnode's last block.
            -1 => bytes[16..24].copy_from_slice(&(1u64 << 40).to_le_bytes()),
            0 if at.object == 0 => bytes.fill(0),
            _ if at.object == 0 => repeat_first_pointer(bytes),
            _ => return false,
        }
        true
    })));
    mos.store().drop_caches();
    let start = Instant::now();
    let set = ObjectSet::open(mos.store().clone(), deep.id(), *deep.root_bp()).unwrap();
    assert!(set.max_object() > 1 << 40);
    assert_eq!(set.next_object(1).unwrap(), None);
    assert_eq!(set.next_object(1 << 41).unwrap(), None);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    tamper::install(None);
    mos.store().drop_caches();
}
