//! The intent log and the loss of power: what was committed is there after the import, whatever the crash
//! left of the writes since the last flush.
//!
//! Transaction groups are written only when they are asked for, so that most of what a crash leaves is in the
//! log. Changes are committed one to three at a time. So what is there after a crash is what there was at the
//! last commit before it, and, if the crash came during a commit, some of its changes, in order, the last of
//! which may be made in part.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dsl::write::props::{self, NewValue, Target};
use cenote_dsl::zil::{Item, walk};
use cenote_engine::Engine;
use cenote_engine::create::Redundancy;
use cenote_format::zil::{Body, Record};
use cenote_torture::live::disk::{Disk, Image, Journal, Replay};
use cenote_torture::live::driver::Seed;
use cenote_torture::live::lab::{Logs, Shape, account_for_clones, disks, judge, lab};
use cenote_torture::live::side_by_side;
use cenote_torture::long;
use cenote_zpl::{FileSystem, NewNode, NodeKind, RenameFlags, SetAttr};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use world::{Tree, World, is_between, look, root};

mod devices;
mod world;

const SHAPES: [Shape; 3] = [
    Shape { redundancy: Redundancy::Single, disks: 2, ashift: 9, size: 96 << 20 },
    Shape { redundancy: Redundancy::Mirror, disks: 2, ashift: 12, size: 96 << 20 },
    Shape { redundancy: Redundancy::RaidZ(1), disks: 3, ashift: 12, size: 64 << 20 },
];

/// Sets the property `logbias` of the root dataset.
fn log_for_throughput(engine: &Engine, throughput: bool) {
    let dir = engine.pool().dsl().root().unwrap().ds.dir;
    engine
        .sync_task(move |context| {
            let value = NewValue::Number(throughput.into());
            props::set(&mut context.tx, Target::Dir(dir), "logbias", &value)
        })
        .unwrap();
}

/// What was done, and what there was at each commit, with the number of operations until then.
struct Story {
    first: Vec<Image>,
    journal: Arc<Journal>,
    begun: usize,
    end: usize,
    /// For each commit what there was after each of its changes.
    states: Vec<(usize, Vec<Tree>)>,
}

fn tell(seed: u64, shape: &Shape, steps: usize) -> Story {
    let journal = Arc::new(Journal::default());
    let first = vec![Image::new(shape.size); shape.disks];
    let lab = lab(&disks(&first, Some(&journal)));
    let engine = lab.create_with(shape, Logs::On).unwrap();
    engine.sync().unwrap();
    log_for_throughput(&engine, seed % 3 == 1);
    engine.sync().unwrap();
    let (rng, tree) = (SmallRng::seed_from_u64(seed), Tree::new());
    let fs = root(&engine, seed.is_multiple_of(2));
    let mut world = World { rng, fs, engine: engine.clone(), tree, nameless: Vec::new() };
    let begun = journal.len();
    let mut states = vec![(begun, vec![Tree::new()])];
    // A group is written while changes of the next one are committed, which may give out numbers that were
    // freed in it.
    let mut syncing = None::<std::thread::JoinHandle<()>>;
    for _ in 0..steps {
        if syncing.as_ref().is_none_or(|sync| sync.is_finished()) && world.rng.random_bool(0.3) {
            world.release_all();
            let engine = engine.clone();
            syncing = Some(std::thread::spawn(move || engine.sync().unwrap()));
        }
        let trees = world.step();
        states.push((journal.len(), trees));
    }
    syncing.into_iter().for_each(|sync| sync.join().unwrap());
    let end = journal.len();
    Story { first, journal, begun, end, states }
}

/// A crash.
struct Point {
    at: usize,
    images: Vec<Image>,
    judged: bool,
    /// Crashes during the replays after it.
    again: usize,
}

/// What crashes came to.
#[derive(Default)]
struct Count {
    /// Crashes that left a log.
    logs: AtomicUsize,
    /// Those after which something would be missing without the log.
    needed: AtomicUsize,
    /// Crashes during the replay of such a log.
    again: AtomicUsize,
}

/// Imports the pool and replays its log. Returns the engine, and how many records there were.
fn recover(disks: &[Arc<Disk>]) -> (Arc<Engine>, usize) {
    let lab = lab(disks);
    let engine = lab.import(&lab.find().unwrap()).unwrap();
    let records = AtomicUsize::new(0);
    let count = |_: &str, done: &cenote_zpl::Replayed| {
        records.store(done.records as usize, Ordering::Relaxed);
        true
    };
    assert_eq!(cenote::contents::replay_logs(&engine, &count).unwrap(), []);
    (engine, records.into_inner())
}

/// What is in the file system without its log.
fn without_log(images: &[Image]) -> Tree {
    let pool = lab(&disks(images, None)).look().unwrap();
    let set = pool.dsl().open_objset(&pool.dsl().root().unwrap()).unwrap();
    look(&FileSystem::open_as(set, world::settings(true)).unwrap())
}

fn survive(story: &Story, shape: &Shape, point: &Point, count: &Count) {
    let last = story.states.iter().rposition(|(at, _)| *at <= point.at).unwrap();
    // What was committed, and then as many changes of the next commit as got on disk.
    let committed = || story.states.iter().skip(last).take(1).filter_map(|(_, trees)| trees.last());
    let next = || story.states.iter().skip(last + 1).take(1).flat_map(|(_, trees)| trees);
    let states = || committed().chain(next());
    let check = |tree: &Tree, what: &str| {
        let names = |tree: &Tree| -> Vec<(String, Option<usize>)> {
            let name = |n: &[u8]| String::from_utf8_lossy(n).into_owned();
            tree.iter().map(|(n, c)| (name(n), c.content.as_ref().map(Vec::len))).collect()
        };
        assert!(
            states().any(|state| state == tree)
                || states().zip(states().skip(1)).any(|(a, b)| is_between(tree, a, b)),
            "{shape:?}, crash at {} of {}{what}: {:?}, but after commits {last} and the next {:?}",
            point.at,
            story.end,
            names(tree),
            states().map(names).collect::<Vec<_>>()
        );
    };
    if point.judged {
        judge(&point.images).unwrap();
    }
    let journal = Arc::new(Journal::default());
    let disks = disks(&point.images, Some(&journal));
    let (engine, records) = recover(&disks);
    check(&look(&root(&engine, true)), "");
    let end = journal.len();
    engine.export(false).unwrap();
    account_for_clones(&lab(&disks)).unwrap();
    if point.judged {
        judge(&disks.iter().map(|disk| disk.image()).collect::<Vec<_>>()).unwrap();
    }
    if records == 0 {
        return;
    }
    count.logs.fetch_add(1, Ordering::Relaxed);
    if states().all(|state| *state != without_log(&point.images)) {
        count.needed.fetch_add(1, Ordering::Relaxed);
    }
    // Crashes while the log is claimed, replayed and destroyed, each on the way back from the one before.
    let (mut images, mut journal, mut end) = (point.images.clone(), journal, end);
    let mut rng = SmallRng::seed_from_u64(point.at as u64);
    for round in 0..point.again {
        let mut replay = Replay::new(images.clone(), &journal);
        replay.advance(rng.random_range(0..=end));
        images = replay.crash(rng.random());
        journal = Arc::new(Journal::default());
        let disks = cenote_torture::live::lab::disks(&images, Some(&journal));
        let (engine, _) = recover(&disks);
        check(&look(&root(&engine, true)), &format!(" and {} more during replay", round + 1));
        end = journal.len();
        count.again.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many crashes there are.
struct Plan {
    steps: usize,
    points: usize,
    /// One in so many is judged by OpenZFS's `zdb`.
    judged: usize,
    /// Crashes during the replays after each.
    again: usize,
}

fn crash(seed: u64, shape: &Shape, plan: &Plan) -> Count {
    let _seed = Seed(format!("seed {seed}, {shape:?}"));
    let story = tell(seed, shape, plan.steps);
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x11);
    // At every operation, or at as many as there is time for.
    let all = story.end - story.begun + 1;
    let mut at: Vec<usize> = match plan.points < all {
        true => (0..plan.points).map(|_| rng.random_range(story.begun..=story.end)).collect(),
        false => (story.begun..=story.end).collect(),
    };
    at.sort_unstable();
    let mut replay = Replay::new(story.first.clone(), &story.journal);
    let points = at.into_iter().enumerate().map(|(i, at)| {
        replay.advance(at);
        let judged = i % plan.judged == plan.judged / 2;
        Point { at, images: replay.crash(rng.random()), judged, again: plan.again }
    });
    let count = Count::default();
    side_by_side(points, |point| {
        let _seed = Seed(format!("seed {seed}, {shape:?}"));
        survive(&story, shape, &point, &count);
    });
    count
}

#[test]
fn what_was_committed_is_there_after_any_crash() {
    let (rounds, plan) = match long() {
        true => (20, Plan { steps: 150, points: 1000, judged: 50, again: 2 }),
        false => (3, Plan { steps: 60, points: 200, judged: 100, again: 2 }),
    };
    let all = Count::default();
    for seed in 0..rounds {
        let count = crash(seed, &SHAPES[seed as usize % SHAPES.len()], &plan);
        for (sum, n) in
            [(&all.logs, count.logs), (&all.needed, count.needed), (&all.again, count.again)]
        {
            sum.fetch_add(n.into_inner(), Ordering::Relaxed);
        }
    }
    let [logs, needed, again] = [all.logs, all.needed, all.again].map(AtomicUsize::into_inner);
    println!("{logs} crashes left a log, {needed} needed it, {again} crashes during replay");
    // Without replay something would be missing: the test can fail.
    assert!(needed * 4 > logs && again > 0, "{logs} logs, {needed} of them needed, {again}");
}

/// Each operation is one record, of the type that OpenZFS has for it, and says what it did.
#[test]
fn openzfs_reads_the_records() {
    let shape = &SHAPES[0];
    let disks = disks(&vec![Image::new(shape.size); shape.disks], None);
    let engine = lab(&disks).create_with(shape, Logs::On).unwrap();
    let fs = root(&engine, true);
    let (root, id) = (fs.root(), fs.objset().id());
    let node = |kind| NewNode { kind, mode: 0o640, umask: 0, uid: 5, gid: 6, keep_setgid: true };
    let create = |name: &[u8], kind| fs.create(root, name, &node(kind)).unwrap().ino;
    create(b"first", NodeKind::File);
    // The log starts with this.
    engine.commit(id).unwrap();
    let file = create(b"file", NodeKind::File);
    create(b"dir", NodeKind::Dir);
    create(b"link", NodeKind::Symlink(b"target".to_vec()));
    fs.write(file, 1000, b"some bytes", false).unwrap();
    fs.link(file, root, b"hard").unwrap();
    fs.rename(root, b"hard", root, b"renamed", RenameFlags::default(), &|_| false).unwrap();
    let set = SetAttr { size: Some(500), uid: Some(77), ..SetAttr::default() };
    fs.setattr(file, &set).unwrap();
    fs.allocate(file, 100, 50, cenote_zpl::Allocate::PunchHole).unwrap();
    fs.unlink(root, b"first", &|_| false).unwrap();
    fs.rmdir(root, b"dir", &|_| false).unwrap();
    engine.commit(id).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (i, disk) in disks.iter().enumerate() {
        disk.image().save(&dir.path().join(format!("d{i}")));
    }
    let said = cenote_testpools::zdb(dir.path(), "tank", &["-iiii"]);
    let records = [
        "TX_CREATE",
        "TX_MKDIR",
        "TX_SYMLINK",
        "TX_WRITE",
        "TX_LINK",
        "TX_RENAME",
        "TX_SETATTR",
        "TX_TRUNCATE",
        "TX_REMOVE",
        "TX_RMDIR",
    ];
    for record in records {
        let all = said.lines().filter(|l| l.contains(&format!("{record} "))).count();
        assert!(all >= 1, "{record}: {said}");
    }
    for detail in ["file", "renamed", "target"] {
        assert!(said.contains(detail), "{detail}: {said}");
    }
    engine.export(false).unwrap();
}

/// How many `TX_WRITE` of the root dataset's log point to blocks, and how many have their data, in these images.
fn writes_in_log(images: &[Image]) -> (usize, usize) {
    let pool = lab(&disks(images, None)).look().unwrap();
    let set = pool.dsl().open_objset(&pool.dsl().root().unwrap()).unwrap();
    let (mut pointing, mut holding) = (0, 0);
    walk(pool.store(), &set.phys().zil, &mut |item| {
        if let Item::Record(raw) = item
            && let Ok(Record { body: Body::Write(write), .. }) = Record::decode(&raw)
        {
            match write.data {
                Some(_) => holding += 1,
                None => pointing += 1,
            }
        }
        true
    });
    (pointing, holding)
}

/// Large writes, and with `logbias=throughput` all, are in blocks that are written for good, once: nothing is
/// leaked when they are changed or freed in the same group.
#[test]
fn records_point_to_blocks_that_are_written_for_good() {
    let shape = &SHAPES[0];
    let disks = disks(&vec![Image::new(shape.size); shape.disks], None);
    let engine = lab(&disks).create_with(shape, Logs::On).unwrap();
    let fs = root(&engine, true);
    let id = fs.objset().id();
    let (kind, mode, umask, uid, gid) = (NodeKind::File, 0o644, 0, 1, 2);
    let new = NewNode { kind, mode, umask, uid, gid, keep_setgid: true };
    let create = |name: &[u8]| fs.create(fs.root(), name, &new).unwrap().ino;
    let (a, b, c) = (create(b"a"), create(b"b"), create(b"c"));
    let mut rng = SmallRng::seed_from_u64(5);
    let mut noise = |len| (0..len).map(|_| rng.random()).collect::<Vec<u8>>();
    engine.commit(id).unwrap();
    let images = || disks.iter().map(|disk| disk.image()).collect::<Vec<_>>();
    let txg = engine.pool().uberblock().txg;
    // A small write is in its record, a large one is not, but for its end.
    fs.write(a, 0, &noise(4000), false).unwrap();
    engine.commit_objects(id, &[a]).unwrap();
    assert_eq!(writes_in_log(&images()), (0, 1));
    fs.write(b, 0, &noise((256 << 10) + 100), false).unwrap();
    engine.commit_objects(id, &[b]).unwrap();
    assert_eq!(writes_in_log(&images()), (2, 2));
    // What is changed is written again, what is not is not, and what is removed is nowhere.
    fs.write(b, 0, &noise(128 << 10), false).unwrap();
    engine.commit(id).unwrap();
    fs.write(c, 0, &noise(128 << 10), false).unwrap();
    engine.commit(id).unwrap();
    fs.write(c, 5, b"other", false).unwrap();
    engine.commit(id).unwrap();
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(c, &set).unwrap();
    engine.commit(id).unwrap();
    assert_eq!(writes_in_log(&images()), (4, 3));
    assert_eq!(engine.pool().uberblock().txg, txg, "a commit waited for its group");
    judge(&images()).unwrap();
    let before = look(&fs);
    let crashed = lab(&cenote_torture::live::lab::disks(&images(), None));
    let engine2 = crashed.import(&crashed.find().unwrap()).unwrap();
    assert_eq!(cenote::contents::replay_logs(&engine2, &|_, _| true).unwrap(), []);
    assert!(look(&root(&engine2, true)) == before, "after replay");
    engine2.export(false).unwrap();
    engine.sync().unwrap();
    log_for_throughput(&engine, true);
    fs.write(a, 0, &noise(4000), false).unwrap();
    engine.sync().unwrap();
    fs.write(a, 0, &noise(100), false).unwrap();
    engine.commit(id).unwrap();
    fs.write(a, 0, &noise(100), false).unwrap();
    engine.commit(id).unwrap();
    assert_eq!(writes_in_log(&images()).0, 2);
    engine.export(false).unwrap();
    judge(&images()).unwrap();
}
