//! Crashes of pools that are worked with: what happened, what a loss of power at some point of it
//! leaves, and whether a pool can be had of that which is what it should be and goes on.
//!
//! A pool is made and worked with; its disks note everything: a [`Story`]. Then, for many points of
//! that, the images are made that a crash there could have left: what was flushed, and any part of
//! the rest. Each is imported, compared with what the model says of the transaction group that is
//! newest on it, and written to again. Some crash once more during that, in the import itself or
//! after it. zdb judges a sample: what a crash left, and the pool at the end. OpenZFS's own engine
//! imports a smaller one for writing.

use super::disk::{Disk, Image, Journal, Replay};
use super::driver::{ALL, Committed, Driver, How, Seed};
use super::lab::{Logs, Shape, disks, hand_over, judge, keep, lab};
use super::{Stopped, dedup, side_by_side, space};
use cenote_engine::create::Redundancy;
use cenote_format::label::Uberblock;
use cenote_pool::Pool;
use cenote_pool::discover::Candidate;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Disks that may join a pool that is worked with.
const JOINING: usize = 3;

/// What to do, and how often to crash.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What the pool is made of.
    pub shape: Shape,
    /// What it does about log space maps.
    pub logs: Logs,
    /// Whether the pool is worked with in one thread, so that a seed leads to one result.
    pub in_order: bool,
    /// Changes.
    pub steps: u64,
    /// Of a hundred changes of files, how many more copy than usual; then there are several file systems.
    pub copies: u32,
    /// Which properties are set.
    pub how: How,
    /// Feature that the pool lacks.
    pub without: Option<&'static str>,
    /// Whether the pool is encrypted.
    pub encrypted: bool,
    /// Crashes.
    pub points: usize,
    /// Crashes of which zdb judges what is left; of half of these, or of all if they are all, it judges
    /// the pool in the end too. Of second crashes it judges as large a part as of first
    /// ones.
    pub sample: usize,
}

impl Default for Plan {
    /// Nothing on one disk, with all properties but those of deduplication.
    fn default() -> Plan {
        let shape = Shape { redundancy: Redundancy::Single, disks: 1, ashift: 12, size: 64 << 20 };
        Plan {
            shape,
            logs: Logs::On,
            in_order: true,
            steps: 0,
            copies: 0,
            how: ALL,
            without: None,
            encrypted: false,
            points: 0,
            sample: 0,
        }
    }
}

/// Something that was done, from beginning to end.
pub struct Story {
    first: Vec<Image>,
    journal: Arc<Journal>,
    committed: Committed,
    /// Transaction groups that were committed, each with the number of operations until then.
    known: Vec<(u64, usize)>,
    how: How,
}

impl Story {
    /// The last group that had been committed when so many operations were done.
    fn durable(&self, operations: usize) -> Option<u64> {
        self.known.iter().rev().find(|(_, at)| *at <= operations).map(|(txg, _)| *txg)
    }
}

/// Does `steps` changes, then exports.
fn work(driver: &mut Driver, journal: &Journal, known: &mut Vec<(u64, usize)>, steps: u64) {
    let mut mark = |driver: &Driver| {
        let last = *driver.committed.keys().next_back().unwrap();
        if known.last().is_none_or(|(txg, _)| *txg < last) {
            known.push((last, journal.len()));
        }
    };
    mark(driver);
    for _ in 0..steps {
        driver.step();
        mark(driver);
    }
    driver.settle();
    mark(driver);
}

fn tell(seed: u64, plan: &Plan) -> Story {
    let Plan { shape, logs, steps, .. } = *plan;
    let journal = Arc::new(Journal::default());
    let first = vec![Image::new(shape.size); shape.disks + JOINING];
    let disks = disks(&first, Some(&journal));
    let lab = match plan.in_order {
        true => lab(&disks),
        false => lab(&disks).on_all_processors(),
    };
    let lab = plan.without.iter().fold(lab, |lab, feature| lab.without(feature));
    let lab = lab.encrypted(plan.encrypted);
    let mut driver = Driver::of_new(seed, &lab, lab.create_with(&shape, logs).unwrap(), plan.how);
    driver.largest = 30_000;
    driver.copies = plan.copies;
    let mut known = Vec::new();
    if plan.copies > 0 {
        driver.create_more_filesystems();
    }
    work(&mut driver, &journal, &mut known, steps / 2);
    if logs == Logs::Midway {
        driver.enable_logs();
    }
    work(&mut driver, &journal, &mut known, steps - steps / 2);
    // Exported and imported once in between.
    driver.reimport();
    work(&mut driver, &journal, &mut known, steps / 3);
    let (_, committed) = driver.export();
    Story { first, journal, committed, known, how: plan.how }
}

/// What a crash left of a pool.
pub struct Left {
    /// What is on its disks.
    pub images: Vec<Image>,
    /// Group that was durable; `None` if the pool was not there yet.
    pub durable: Option<u64>,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Figures {
    /// Crashes.
    pub points: AtomicU64,
    /// Crashes that left a pool.
    pub pools: AtomicU64,
    /// Crashes of which zdb judged what was left.
    pub judged: AtomicU64,
    /// Crashes of which OpenZFS's engine went on with what was left.
    pub handed_over: AtomicU64,
    /// Crashes of which zdb judged what there was in the end.
    pub judged_ends: AtomicU64,
    /// Second crashes.
    pub again: AtomicU64,
    /// Second crashes of which zdb judged what there was in the end.
    pub judged_again: AtomicU64,
    /// Crashes that left a pool with cloned blocks.
    pub cloned: AtomicU64,
    /// Crashes that left a pool with blocks that a deduplication table counts several times.
    pub shared: AtomicU64,
    /// Most log space maps that a crash left.
    pub logs: AtomicUsize,
    /// Metaslabs whose free space was compared after crashes.
    pub metaslabs: AtomicUsize,
}

/// The newest group of a pool. `None`: none is on disk, as the power failed while the pool was created.
pub fn newest(found: &Candidate) -> Option<u64> {
    let all = found.devices.iter().flat_map(|d| &d.uberblocks).map(|(_, _, ub)| ub);
    Uberblock::best(all).map(|ub| ub.txg)
}

/// A pool that was imported after a crash.
pub struct Recovered {
    /// Works with it.
    pub driver: Driver,
    /// Group that the crash left.
    pub txg: u64,
    disks: Vec<Arc<Disk>>,
}

impl Recovered {
    /// Exports the pool. Returns what it held at each group.
    ///
    /// # Errors
    /// With `judged`: what zdb finds wrong with it.
    pub fn finish(self, judged: bool) -> Result<Committed, String> {
        let (_, committed) = self.driver.export();
        if judged {
            let images: Vec<Image> = self.disks.iter().map(|d| d.image()).collect();
            judge(&images).map_err(|e| format!("after group {}: {e}", self.txg))?;
        }
        Ok(committed)
    }
}

/// One crash. Returns what the pool holds.
pub fn recover(
    left: &Left,
    committed: &Committed,
    journal: Option<&Arc<Journal>>,
    seed: u64,
) -> Option<Recovered> {
    let disks = disks(&left.images, journal);
    let lab = lab(&disks);
    let wrong = |why: String| panic!("{why}; images in {}", keep(&left.images));
    let found = lab.find();
    let Some((found, txg)) = found.and_then(|c| Some((newest(&c)?, c))).map(|(t, c)| (c, t)) else {
        if let Some(txg) = left.durable {
            wrong(format!("the pool of group {txg} is gone"));
        }
        return None;
    };
    if left.durable.is_some_and(|durable| txg < durable) {
        wrong(format!("group {txg} is the newest, but {:?} was committed", left.durable));
    }
    let engine = match lab.import(&found) {
        Ok(engine) => engine,
        Err(e) => {
            wrong(format!("group {txg} cannot be imported: {e}"));
            return None;
        }
    };
    let Some(states) = committed.get(&txg) else {
        wrong(format!("group {txg} was never committed"));
        return None;
    };
    let mut model = None;
    let mut whys = Vec::new();
    for state in states {
        match state.compare(&engine.pool()) {
            Ok(()) => model = Some(state.clone()),
            Err(e) => whys.push(e),
        }
    }
    let Some(mut model) = model else {
        wrong(format!("group {txg}: {}", whys.join("; ")));
        return None;
    };
    model.close_all();
    let driver = Driver::new(seed, &lab, engine, model, ALL);
    Some(Recovered { driver, txg, disks })
}

/// What to do at one point.
struct Point {
    seed: u64,
    left: Left,
    /// Whether zdb is to judge it.
    judge: bool,
    /// Whether OpenZFS's engine is to go on with it.
    hand_over: bool,
    /// Whether zdb judges the pool in the end.
    judge_end: bool,
    /// Whether it crashes again.
    again: bool,
    /// Whether zdb judges the pool after that.
    judge_again: bool,
}

fn survive(story: &Story, point: &Point, figures: &Figures) {
    figures.points.fetch_add(1, Ordering::Relaxed);
    let journal = Arc::new(Journal::default());
    let recording = point.again.then_some(&journal);
    let Some(mut recovered) = recover(&point.left, &story.committed, recording, point.seed) else {
        return;
    };
    figures.pools.fetch_add(1, Ordering::Relaxed);
    recovered.driver.how = story.how;
    let (driver, txg) = (&mut recovered.driver, recovered.txg);
    let kept = || keep(&point.left.images);
    let has_clones = driver.engine().pool().clone_saved().unwrap() > 0;
    figures.cloned.fetch_add(has_clones.into(), Ordering::Relaxed);
    let as_left = lab(&disks(&point.left.images, None)).look();
    let counts = |pool: &Pool| match story.how.dedup.is_empty() {
        true => Ok(0),
        false => dedup::check(pool).map_err(|Stopped(why)| why),
    };
    let looked = as_left.and_then(|pool| {
        let shared = counts(&pool)?;
        figures.shared.fetch_add((shared > 0).into(), Ordering::Relaxed);
        space::check_promises(&pool)
    });
    if let Err(why) = looked {
        panic!("what a crash left at group {txg}: {why}; images in {}", kept());
    }
    match space::check_metaslabs(driver.engine()) {
        Ok(compared) => {
            figures.metaslabs.fetch_add(compared, Ordering::Relaxed);
        }
        Err(why) => panic!("after a crash at group {txg}: {why}; images in {}", kept()),
    }
    figures.logs.fetch_max(space::logs(driver.engine()), Ordering::Relaxed);
    if point.judge {
        figures.judged.fetch_add(1, Ordering::Relaxed);
        let verdict = judge(&point.left.images);
        assert!(verdict.is_ok(), "after a crash at group {txg}: {verdict:?}");
    }
    if point.hand_over {
        figures.handed_over.fetch_add(1, Ordering::Relaxed);
        let verdict = hand_over(&point.left.images);
        assert!(verdict.is_ok(), "after a crash at group {txg}: {verdict:?}");
    }
    let mut known = Vec::new();
    // Before, all that is known is what had been imported.
    let before = driver.committed.values().next().cloned().unwrap();
    work(driver, &journal, &mut known, 4);
    let same = driver.check();
    assert!(same.is_ok(), "after group {txg}: {same:?}; images in {}", kept());
    if !point.judge_end && !point.again {
        return;
    }
    figures.judged_ends.fetch_add(u64::from(point.judge_end), Ordering::Relaxed);
    let mut committed = match recovered.finish(point.judge_end) {
        Ok(committed) => committed,
        Err(why) => panic!("{why}; images of the crash in {}", kept()),
    };
    if point.again {
        // An import may write more groups than the one that claims intent logs.
        let known_from = committed.keys().next().copied().unwrap_or(txg);
        for group in txg..known_from {
            committed.insert(group, before.clone());
        }
        let first = point.left.images.clone();
        let how = story.how;
        crash_again(&Story { first, journal, committed, known, how }, txg, point, figures);
    }
}

/// Two crashes in what was done after the first, which had left group `first`.
fn crash_again(story: &Story, first: u64, point: &Point, figures: &Figures) {
    let mut rng = SmallRng::seed_from_u64(point.seed);
    for crash in 0..2 {
        figures.again.fetch_add(1, Ordering::Relaxed);
        // Mostly in the first group of the import.
        let most = match crash {
            0 => story.known.first().map_or(0, |(_, at)| *at),
            _ => story.journal.len(),
        };
        let at = rng.random_range(0..=most);
        let mut replay = Replay::new(story.first.clone(), &story.journal);
        replay.advance(at);
        let images = replay.crash(rng.random());
        let left = Left { images, durable: Some(story.durable(at).unwrap_or(first)) };
        let again = recover(&left, &story.committed, None, rng.random());
        let Some(Recovered { mut driver, txg, disks }) = again else { continue };
        driver.how = story.how;
        (0..3).for_each(|_| driver.step());
        let same = driver.check();
        assert!(same.is_ok(), "after group {txg}: {same:?}; images in {}", keep(&left.images));
        if point.judge_again {
            figures.judged_again.fetch_add(1, Ordering::Relaxed);
            if let Err(why) = (Recovered { driver, txg, disks }).finish(true) {
                panic!("{why}; images of the second crash in {}", keep(&left.images));
            }
        }
    }
}

/// Points in a story: half of them anywhere, half where a group is being committed.
fn choose(story: &Story, rng: &mut SmallRng, count: usize) -> Vec<usize> {
    let end = story.journal.len();
    let mut points = BTreeSet::new();
    let commits: Vec<usize> = story.known.iter().map(|(_, at)| *at).chain([end]).collect();
    while points.len() < count.min(end) {
        let point = match rng.random_bool(0.5) {
            true => rng.random_range(0..=end),
            false => {
                let commit = commits[rng.random_range(0..commits.len())];
                commit.saturating_sub(rng.random_range(0..40))
            }
        };
        points.insert(point);
    }
    points.into_iter().collect()
}

/// Tells a story and crashes it.
pub fn matrix(seed: u64, plan: &Plan, figures: &Figures) {
    let _seed = Seed(format!("seed {seed}, {plan:?}"));
    let story = tell(seed, plan);
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xc4a5);
    let points = choose(&story, &mut rng, plan.points);
    let mut replay = Replay::new(story.first.clone(), &story.journal);
    let every = (plan.points / plan.sample.max(1)).max(1);
    // zdb takes its time, most of it for going away.
    let every_end = if every == 1 { 1 } else { 2 * every };
    let points = points.into_iter().enumerate().map(|(i, at)| {
        replay.advance(at);
        let left = Left { images: replay.crash(rng.random()), durable: story.durable(at) };
        let seed = rng.random();
        let again = i % 8 == 3;
        let judge_again = again && (i / 8).is_multiple_of(every);
        let (judge, judge_end) = (i % every == 0, i % every_end == 0);
        let hand_over = i % (4 * every) == every;
        Point { seed, left, judge, hand_over, judge_end, again, judge_again }
    });
    side_by_side(points, |point| {
        let _seed = Seed(format!("seed {seed}, {plan:?}"));
        survive(&story, &point, figures);
    });
}
