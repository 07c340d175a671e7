//! Trees of snapshots, clones, promotions, rollbacks and holds, with livelists that are split, condensed and given up
//! all the time, also in a pool from which a vdev was removed; and the loss of power at any moment of that. After each crash the pool is what its last group held,
//! what every dataset counts adds up, OpenZFS's `zdb` finds nothing wrong with blocks and livelists, and it goes on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dsl::tunables::{LIVELIST_MAX_ENTRIES, LIVELIST_MIN_PERCENT_SHARED};
use cenote_engine::create::Redundancy;
use cenote_torture::live::crash::newest;
use cenote_torture::live::disk::{Image, Journal, Replay};
use cenote_torture::live::driver::Seed;
use cenote_torture::live::lab::{Shape, by_openzfs, disks, keep, lab};
use cenote_torture::live::tree::{Committed, Gardener, Tree};
use cenote_torture::live::{side_by_side, space};
use cenote_torture::{Progress, long};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SHAPES: [Shape; 3] = [
    Shape { redundancy: Redundancy::Single, disks: 1, ashift: 9, size: 96 << 20 },
    Shape { redundancy: Redundancy::Mirror, disks: 2, ashift: 12, size: 128 << 20 },
    Shape { redundancy: Redundancy::RaidZ(1), disks: 3, ashift: 9, size: 64 << 20 },
];

/// `zdb` finds nothing wrong, with livelists neither.
fn judge(images: &[Image]) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    for (i, image) in images.iter().enumerate() {
        image.save(&dir.path().join(format!("d{i}")));
    }
    let judged = cenote_testpools::try_judge(dir.path(), "tank")
        .and_then(|()| cenote_testpools::try_zdb(dir.path(), "tank", &["-y"]).map(drop));
    judged.map_err(|why| format!("{why} (images in {:?})", dir.keep()))
}

/// OpenZFS removes a vdev only if there is room for all that it could hold. The disks are sparse.
const TO_BE_REMOVED: Shape =
    Shape { redundancy: Redundancy::Single, disks: 3, ashift: 12, size: 512 << 20 };

/// The disks of a pool from which OpenZFS has removed a vdev, and what it holds.
fn with_a_removed_vdev(seed: u64, steps: usize) -> (Vec<Image>, Tree) {
    let disks = disks(&vec![Image::new(TO_BE_REMOVED.size); TO_BE_REMOVED.disks], None);
    let mut gardener = Gardener::of_new(seed, lab(&disks).create(&TO_BE_REMOVED).unwrap());
    (0..steps).for_each(|_| gardener.step());
    let tree = gardener.export().into_values().next_back().unwrap().pop().unwrap();
    let images: Vec<Image> = disks.iter().map(|d| d.image()).collect();
    // Sometimes an assertion of its own fails while it removes.
    let remove = || by_openzfs(&images, "import\nremove 0\nexport\n");
    let left = (1..6).find_map(|_| remove().ok()).unwrap_or_else(|| remove().unwrap());
    (left, tree)
}

/// What was done, from beginning to end.
struct Story {
    first: Vec<Image>,
    journal: Arc<Journal>,
    committed: Committed,
    /// Groups that were committed, each with the number of operations until then.
    known: Vec<(u64, usize)>,
}

fn tell(seed: u64, steps: usize) -> Story {
    let journal = Arc::new(Journal::default());
    let shape = SHAPES.get(seed as usize % (SHAPES.len() + 1));
    let (first, tree) = match shape {
        Some(shape) => (vec![Image::new(shape.size); shape.disks], Tree::default()),
        None => with_a_removed_vdev(seed, steps / 2),
    };
    let disks = disks(&first, Some(&journal));
    let lab = lab(&disks);
    let mut gardener = match shape {
        Some(shape) => Gardener::of_new(seed, lab.create(shape).unwrap()),
        None => Gardener::new(seed, lab.import(&lab.find().unwrap()).unwrap(), tree),
    };
    let mut known: Vec<(u64, usize)> = Vec::new();
    let mut mark = |gardener: &Gardener| {
        let last = *gardener.committed.keys().next_back().unwrap();
        if known.last().is_none_or(|(txg, _)| *txg < last) {
            known.push((last, journal.len()));
        }
    };
    for step in 0..steps {
        gardener.step();
        mark(&gardener);
        if step == steps / 2 {
            gardener.reimport(&lab);
        }
        if step % 40 == 39 {
            let same = gardener.check();
            assert!(same.is_ok(), "step {step}: {same:?}");
        }
    }
    let committed = gardener.export();
    let images: Vec<Image> = disks.iter().map(|d| d.image()).collect();
    let verdict = judge(&images);
    assert!(verdict.is_ok(), "{verdict:?}");
    Story { first, journal, committed, known }
}

/// What a crash left of a pool is what one of its groups held, and goes on.
fn survive(story: &Story, (at, images, seed): (usize, Vec<Image>, u64), judged: bool) -> bool {
    let durable = story.known.iter().rev().find(|(_, n)| *n <= at).map(|(txg, _)| *txg);
    let disks = disks(&images, None);
    let lab = lab(&disks);
    let wrong = |why: String| -> ! { panic!("{why}; images in {}", keep(&images)) };
    let Some(found) = lab.find().filter(|found| newest(found).is_some()) else {
        if durable.is_some() {
            wrong("the pool is gone".into());
        }
        return false;
    };
    let (engine, pool) = match (lab.look(), lab.import(&found)) {
        (Ok(pool), Ok(engine)) => (engine, pool),
        (_, Err(e)) => wrong(format!("it cannot be imported: {e}")),
        (Err(e), _) => wrong(format!("it cannot be read: {e}")),
    };
    let txg = pool.uberblock().txg;
    if durable.is_some_and(|durable| txg < durable) {
        wrong(format!("group {txg} is the newest, but {durable:?} was committed"));
    }
    let Some(states) = story.committed.get(&txg) else {
        // The first groups make the pool.
        return if durable.is_none() { false } else { wrong(format!("there was no group {txg}")) };
    };
    let mut whys = Vec::new();
    let state = states.iter().rev().find(|state| match state.compare(&pool) {
        Ok(()) => true,
        Err(why) => {
            whys.push(why);
            false
        }
    });
    let Some(state) = state.cloned() else {
        wrong(format!("group {txg}: {}", whys.first().cloned().unwrap_or_default()))
    };
    if judged && let Err(why) = judge(&images) {
        panic!("after a crash at group {txg}: {why}");
    }
    drop(pool);
    if state.is_empty() {
        return true;
    }
    let mut gardener = Gardener::new(seed, engine, state);
    (0..6).for_each(|_| gardener.step());
    let same = gardener.check().and_then(|()| space::check_metaslabs(gardener.engine()).map(drop));
    if let Err(why) = same {
        wrong(format!("after a crash at group {txg}: {why}"));
    }
    gardener.export();
    if judged && let Err(why) = judge(&disks.iter().map(|d| d.image()).collect::<Vec<_>>()) {
        wrong(format!("in the end, after group {txg}: {why}"));
    }
    true
}

/// `CENOTE_SEED` runs a single seed.
#[test]
fn trees_of_clones_survive_crashes() {
    let only = std::env::var("CENOTE_SEED").ok().map(|s| s.parse::<u64>().unwrap());
    let (rounds, steps, points, sample) = if long() { (60, 400, 150, 10) } else { (4, 160, 14, 7) };
    let seeds = only.map_or(0..rounds, |seed| seed..seed + 1);
    let progress = Progress::of("trees of clones", (seeds.end - seeds.start) as usize);
    let pools = AtomicUsize::new(0);
    for seed in seeds {
        let named = || Seed(format!("seed {seed}"));
        let _seed = named();
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x7ee5);
        // Sub-lists that end at once, some that do not; lists that are given up on soon, late and never.
        LIVELIST_MAX_ENTRIES.set([2, 10, 60][rng.random_range(0..3)]).unwrap();
        LIVELIST_MIN_PERCENT_SHARED.set([0, 40, 75][rng.random_range(0..3)]).unwrap();
        let story = tell(seed, steps);
        let mut at: Vec<usize> =
            (0..points).map(|_| rng.random_range(0..=story.journal.len())).collect();
        at.sort_unstable();
        let mut replay = Replay::new(story.first.clone(), &story.journal);
        let crashes = at.into_iter().enumerate().map(|(i, at)| {
            replay.advance(at);
            (i, (at, replay.crash(rng.random()), rng.random()))
        });
        side_by_side(crashes, |(i, crash)| {
            let _seed = named();
            let left = survive(&story, crash, i % sample == sample / 2);
            pools.fetch_add(usize::from(left), Ordering::Relaxed);
        });
        progress.done(format_args!("seed {seed}"));
    }
    LIVELIST_MAX_ENTRIES.reset();
    LIVELIST_MIN_PERCENT_SHARED.reset();
    let pools = pools.into_inner();
    println!("{pools} crashes left a pool");
    assert!(only.is_some() || pools >= points * 2, "only {pools} crashes left a pool");
}
