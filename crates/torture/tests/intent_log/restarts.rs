//! Logs that start, end and start again while groups are written and commits are made: at every moment every block is
//! accounted for, and what was acknowledged is there.

use crate::SHAPES;
use crate::world;
use cenote_engine::Engine;
use cenote_engine::change::{Changes, Kind, NewDataset};
use cenote_torture::live::disk::{Image, Journal, Replay};
use cenote_torture::live::driver::Seed;
use cenote_torture::live::lab::{Logs, Plain, account, disks, judge, keep, lab};
use cenote_torture::live::side_by_side;
use cenote_torture::long;
use cenote_zpl::{NewNode, NodeKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// File systems, each with a log.
const DATASETS: [&str; 4] = ["tank", "tank/a", "tank/b", "tank/c"];
const FILE: &[u8] = b"counter";

/// What was acknowledged of a dataset: operations in the journal then, and the number that its file has.
type Acknowledged = Vec<(usize, u64)>;

/// Writes numbers to a file, each of them stable before the next one, until there is an end.
fn count(engine: &Engine, name: &str, journal: &Journal, ends: &AtomicBool) -> Acknowledged {
    let fs = world::open(engine, name, true);
    let (kind, mode, umask, uid, gid) = (NodeKind::File, 0o644, 0, 1, 2);
    let node = NewNode { kind, mode, umask, uid, gid, keep_setgid: true };
    let ino = fs.create(fs.root(), FILE, &node).unwrap().ino;
    let mut all = Acknowledged::new();
    for number in 1.. {
        fs.write(ino, 0, &u64::to_le_bytes(number), false).unwrap();
        engine.commit_objects(fs.objset().id(), &[ino]).unwrap();
        all.push((journal.len(), number));
        if ends.load(Ordering::SeqCst) {
            break;
        }
        std::thread::yield_now();
    }
    all
}

/// The number that the file of a dataset has.
fn counted(engine: &Engine, name: &str) -> u64 {
    let fs = world::open(engine, name, true);
    let Some(entry) = fs.readdir(fs.root(), 0, 100).unwrap().into_iter().find(|e| e.name == FILE)
    else {
        return 0;
    };
    let mut bytes = [0; 8];
    fs.read(entry.ino, 0, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// What was done.
struct Story {
    first: Vec<Image>,
    journal: Arc<Journal>,
    begun: usize,
    acknowledged: Vec<Acknowledged>,
}

/// Ends and restarts all logs `times` times, while groups are written one after another.
fn tell(shape: &crate::Shape, times: usize) -> Story {
    let journal = Arc::new(Journal::default());
    let first = vec![Image::new(shape.size); shape.disks];
    let engine = lab(&disks(&first, Some(&journal))).create_with(shape, Logs::On).unwrap();
    let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
    for name in &DATASETS[1..] {
        let (name, kind, props) = (name.to_string(), Kind::Filesystem, Vec::new());
        changes.create(&NewDataset { name, kind, props }).unwrap();
    }
    engine.sync().unwrap();
    let (begun, ends) = (journal.len(), AtomicBool::new(false));
    let acknowledged = std::thread::scope(|scope| {
        let (engine, journal, ends) = (&engine, &journal, &ends);
        let work = |name: &'static str| scope.spawn(move || count(engine, name, journal, ends));
        let counters: Vec<_> = DATASETS.into_iter().map(work).collect();
        let groups = scope.spawn(move || {
            while !ends.load(Ordering::SeqCst) {
                engine.sync().unwrap();
            }
        });
        (0..times).for_each(|_| engine.sync_task(|_| Ok(())).unwrap());
        ends.store(true, Ordering::SeqCst);
        groups.join().unwrap();
        counters.into_iter().map(|counter| counter.join().unwrap()).collect()
    });
    Story { first, journal, begun, acknowledged }
}

/// Whether what was acknowledged after `at` operations is in these images.
fn check(story: &Story, at: usize, images: &[Image]) -> Result<(), String> {
    let disks = disks(images, None);
    let lab = lab(&disks);
    let engine = lab.import(&lab.find().unwrap()).map_err(|e| e.to_string())?;
    for (name, all) in DATASETS.iter().zip(&story.acknowledged) {
        let stable = all.iter().take_while(|(then, _)| *then <= at).last().map_or(0, |(_, n)| *n);
        let found = counted(&engine, name);
        if found < stable {
            return Err(format!("{name} has {found}, {stable} was acknowledged"));
        }
    }
    engine.export(false).map_err(|e| e.to_string())
}

#[test]
fn logs_restart_without_a_leak_or_a_loss() {
    let (times, most, imported, judged) =
        if long() { (200, 4000, 20, 200) } else { (12, 50, 12, 30) };
    let (points, logs) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for (seed, shape) in SHAPES.iter().enumerate() {
        let story = tell(shape, times);
        let mut replay = Replay::new(story.first.clone(), &story.journal);
        let end = story.journal.len();
        let every = ((end - story.begun) / most).max(1);
        let all = (story.begun..=end).step_by(every).map(|at| {
            replay.advance(at);
            (at, replay.killed(), replay.crash((seed * 1_000_000 + at) as u64))
        });
        side_by_side(all, |(at, killed, crashed)| {
            let _seed = Seed(format!("{shape:?}, after {at} operations"));
            let n = points.fetch_add(1, Ordering::Relaxed);
            // The program dies, or the power goes.
            for (images, how) in [(&killed, "killed"), (&crashed, "crashed")] {
                let checked = account(&lab(&disks(images, None)));
                let checked = checked.and_then(|()| match n.is_multiple_of(imported) {
                    true => check(&story, at, images),
                    false => Ok(()),
                });
                if let Err(why) = checked {
                    panic!("{shape:?}, {how} at {at}: {why}; images in {}", keep(images));
                }
            }
            if n.is_multiple_of(judged) {
                judge(&killed).unwrap();
            }
        });
        logs.fetch_add(story.acknowledged.iter().map(Vec::len).sum(), Ordering::Relaxed);
    }
    println!("{points:?} points, {logs:?} commits");
    assert!(points.into_inner() > 100);
}
