//! Damage with right checksums: directories, datasets, lists and maps that say anything at all.
//!
//! Every change is one that a decoder accepts more often than not: words of bonus buffers, of
//! maps and of lists become numbers of other objects, so that parents, children, origins,
//! snapshots and sub-lists lead in circles; or they become huge.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dsl::{Dataset, Dsl};
use cenote_format::dmu::DmuType;
use cenote_manifest_check::{import, try_import};
use cenote_pool::Pool;
use cenote_store::{Bookmark, tamper};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Variants per pool.
const VARIANTS: u64 = 120;
/// No variant may take longer than this, in a debug build.
const TIME_LIMIT: Duration = Duration::from_secs(5);
const DNODE: usize = 512;

/// Objects of the MOS whose data belong to this floor.
fn objects_of_interest(pool: &Pool) -> HashSet<u64> {
    let mos = pool.mos();
    let mut found = HashSet::new();
    let mut from = 1;
    while let Some(number) = mos.next_object(from).unwrap() {
        let kind = mos.object(number).unwrap().dnode().kind;
        if (DmuType::DSL_DIR.0..=DmuType::DSL_DATASET.0).contains(&kind.0)
            || [DmuType::BPOBJ, DmuType::DEADLIST, DmuType::BPOBJ_SUBOBJ].contains(&kind)
            || [DmuType::NEXT_CLONES].contains(&kind)
            || kind.is_new()
        {
            found.insert(number);
        }
        from = number + 1;
    }
    found
}

/// A small deterministic generator (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.roll() % n as u64) as usize
    }

    /// A number that leads somewhere, or too far.
    fn word(&mut self, objects: u64) -> u64 {
        match self.roll() % 8 {
            0 => u64::MAX - self.roll() % 4,
            1 => 1 << (self.roll() % 64),
            2 => 0,
            _ => self.roll() % objects,
        }
    }
}

fn put(bytes: &mut [u8], at: usize, word: u64) {
    if let Some(slot) = bytes.get_mut(at..at + 8) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
}

/// Changes some words of the bonus buffers in a block of dnodes.
fn tamper_dnodes(bytes: &mut [u8], dice: &mut Dice, objects: u64) -> bool {
    let mut changed = false;
    for at in (0..bytes.len()).step_by(DNODE) {
        let bonus_kind = bytes.get(at + 4).copied().unwrap_or(0);
        let ours = [DmuType::DSL_DIR, DmuType::DSL_DATASET, DmuType::DEADLIST_HDR];
        let ours = ours.iter().any(|k| k.0 == bonus_kind) || bonus_kind == DmuType::BPOBJ_HDR.0;
        if ours && dice.below(6) == 0 {
            // The first words are the references.
            put(bytes, at + 192 + 8 * dice.below(20), dice.word(objects));
            changed = true;
        }
    }
    changed
}

fn tamper_with(seed: u64, objects: HashSet<u64>, max: u64) -> tamper::Tamper {
    Box::new(move |at: Bookmark, bytes: &mut [u8]| {
        if at.objset != 0 || at.level != 0 {
            return false;
        }
        let mut dice = Dice(seed ^ (at.object << 32) ^ at.blkid);
        if at.object == 0 {
            return tamper_dnodes(bytes, &mut dice, max);
        }
        if !objects.contains(&at.object) || dice.below(3) != 0 {
            return false;
        }
        for _ in 0..=dice.below(4) {
            let words = bytes.len() / 8;
            put(bytes, 8 * dice.below(words.max(1)), dice.word(max));
        }
        true
    })
}

/// Asks everything about a dataset and all below it; returns how many there are.
fn ask_everything(dsl: &Dsl, d: &Dataset) -> usize {
    let _ = dsl.get_all(d);
    let _ = dsl.get(d, "written@s1");
    let _ = dsl.get(d, "userused@0");
    let _ = (dsl.holds(d), dsl.clones(d), dsl.origin(d), dsl.features(d));
    for list in [dsl.deadlist(d).ok(), dsl.livelist(d).ok().flatten()].into_iter().flatten() {
        let _ = dsl.iterate_deadlist(&list, &mut |_| Ok(()));
        let _ = dsl.deadlist_range(&list, 0, u64::MAX);
    }
    let mut count = 1;
    for below in [dsl.snapshots(d), dsl.bookmarks(d), dsl.children(d)].into_iter().flatten() {
        for d in &below {
            assert!(d.name.len() <= 512, "{}", d.name);
            count += ask_everything(dsl, d);
        }
    }
    count
}

#[test]
fn any_metadata_gives_an_answer_or_an_error() {
    let mut answered = 0;
    for name in ["clones", "streams", "legacyd"] {
        let sample = cenote_testpools::pool(name);
        let clean = import(name);
        let objects = objects_of_interest(&clean);
        let max = objects.iter().max().unwrap() + 8;
        assert!(objects.len() > 50);
        for seed in 0..VARIANTS {
            let start = Instant::now();
            tamper::install(Some(tamper_with(seed, objects.clone(), max)));
            if let Ok(pool) = try_import(&sample) {
                for object in 0..max {
                    let _ = pool.dsl().by_object(object);
                }
                if let Ok(root) = pool.dsl().root() {
                    answered += ask_everything(pool.dsl(), &root);
                }
            }
            tamper::install(None);
            let took = start.elapsed();
            assert!(took < TIME_LIMIT, "{name}, seed {seed}: {took:?}");
        }
    }
    // Most variants still have something to tell.
    assert!(answered > 300, "{answered}");
}
