//! Threads that share log blocks of one dataset, beside transaction groups: flushes take a while or fail, and the power goes. What was
//! acknowledged is there.

use crate::records::new;
use crate::world::root;
use cenote_engine::Engine;
use cenote_engine::create::{Class, Layout, Redundancy, VdevSpec};
use cenote_torture::live::disk::{Disk, Image, Journal, Replay};
use cenote_torture::live::driver::Seed;
use cenote_torture::live::lab::{Lab, Logs, account, disks, judge, keep};
use cenote_torture::live::side_by_side;
use cenote_torture::long;
use cenote_vdev::{Device, ReadReq, WriteReq};
use cenote_zpl::NodeKind;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

const SIZE: u64 = 96 << 20;
/// Threads, each with a file of its own in the same file system.
const THREADS: usize = 6;

/// A disk whose flushes take a while, or fail.
struct Late {
    disk: Arc<Disk>,
    rng: Mutex<SmallRng>,
    /// Of so many flushes one fails from when it is to.
    fails: AtomicBool,
}

impl Late {
    fn new(disk: &Arc<Disk>, seed: u64) -> Arc<Late> {
        let (disk, rng) = (disk.clone(), Mutex::new(SmallRng::seed_from_u64(seed)));
        Arc::new(Late { disk, rng, fails: AtomicBool::default() })
    }

    fn wait(&self) {
        let micros = self.rng.lock().random_range(0..800);
        sleep(Duration::from_micros(micros));
    }
}

impl Device for Late {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn path(&self) -> &Path {
        self.disk.path()
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        self.disk.read_batch(reqs);
    }

    fn writable(&self) -> bool {
        true
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        self.disk.write_batch(reqs);
    }

    fn flush(&self) -> io::Result<()> {
        self.wait();
        let fails = self.fails.load(Ordering::SeqCst) && self.rng.lock().random_ratio(1, 4);
        let done = match fails {
            true => Err(io::Error::other("for the test")),
            false => self.disk.flush(),
        };
        self.wait();
        done
    }
}

/// What was acknowledged to a thread: operations in the journal then, and the number that its file has.
type Acknowledged = Vec<(usize, u64)>;

struct Story {
    first: Vec<Image>,
    journal: Arc<Journal>,
    begun: usize,
    acknowledged: Vec<Acknowledged>,
}

fn name(thread: usize) -> Vec<u8> {
    format!("counter{thread}").into_bytes()
}

/// Writes numbers to a file, each of them stable before the next one, until there is an end.
fn count(engine: &Engine, thread: usize, journal: &Journal, ends: &AtomicBool) -> Acknowledged {
    let fs = root(engine, true);
    let ino = fs.create(fs.root(), &name(thread), &new(NodeKind::File)).unwrap().ino;
    let mut all = Acknowledged::new();
    for number in 1.. {
        fs.write(ino, 0, &u64::to_le_bytes(number), false).unwrap();
        engine.commit_objects(fs.objset().id(), &[ino]).unwrap();
        all.push((journal.len(), number));
        if ends.load(Ordering::SeqCst) {
            break;
        }
    }
    all
}

/// A pool of a disk and, `with_log`, a log vdev, whose flushes fail from half of the time on.
fn tell(seed: u64, with_log: bool, groups: usize) -> Story {
    let journal = Arc::new(Journal::default());
    let first = vec![Image::new(SIZE); 1 + usize::from(with_log)];
    let late: Vec<Arc<Late>> =
        disks(&first, Some(&journal)).iter().map(|disk| Late::new(disk, seed)).collect();
    let lab = Lab::new(late.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect());
    let top = |path| VdevSpec::new(Redundancy::Single, vec![path]);
    let mut tops: Vec<VdevSpec> = lab.paths().map(top).collect();
    tops.iter_mut().skip(1).for_each(|log| log.class = Class::Log);
    let engine = lab.create_layout(&Layout { tops, ..Layout::default() }, 12, Logs::On).unwrap();
    let fs = root(&engine, true);
    engine.commit(fs.objset().id()).unwrap();
    let (begun, ends) = (journal.len(), AtomicBool::new(false));
    let acknowledged = std::thread::scope(|scope| {
        let (engine, journal, ends) = (&engine, &journal, &ends);
        let work = |thread| scope.spawn(move || count(engine, thread, journal, ends));
        let counters: Vec<_> = (0..THREADS).map(work).collect();
        for n in 0..groups {
            sleep(Duration::from_millis(15));
            late[late.len() - 1].fails.store(with_log && n * 2 > groups, Ordering::SeqCst);
            engine.sync().unwrap();
        }
        ends.store(true, Ordering::SeqCst);
        counters.into_iter().map(|counter| counter.join().unwrap()).collect()
    });
    Story { first, journal, begun, acknowledged }
}

/// Whether what was acknowledged after `at` operations is in these images.
fn check(story: &Story, at: usize, images: &[Image]) -> Result<(), String> {
    let lab = cenote_torture::live::lab::lab(&disks(images, None));
    let engine = lab.import(&lab.find().unwrap()).map_err(|e| e.to_string())?;
    let fs = root(&engine, true);
    let entries = fs.readdir(fs.root(), 0, 100).unwrap();
    for (thread, all) in story.acknowledged.iter().enumerate() {
        let stable = all.iter().take_while(|(then, _)| *then <= at).last().map_or(0, |(_, n)| *n);
        let mut bytes = [0; 8];
        if let Some(entry) = entries.iter().find(|entry| entry.name == name(thread)) {
            fs.read(entry.ino, 0, &mut bytes).unwrap();
        }
        let found = u64::from_le_bytes(bytes);
        if found < stable {
            return Err(format!("thread {thread} has {found}, {stable} was acknowledged"));
        }
    }
    engine.export(false).map_err(|e| e.to_string())
}

#[test]
fn what_several_threads_committed_is_there_after_any_crash() {
    let (seeds, groups, most, judged) = if long() { (20, 40, 1500, 100) } else { (1, 8, 60, 20) };
    let points = AtomicUsize::new(0);
    for (seed, with_log) in (0..seeds).flat_map(|seed| [(seed, false), (seed, true)]) {
        let story = tell(seed, with_log, groups);
        let mut replay = Replay::new(story.first.clone(), &story.journal);
        let end = story.journal.len();
        let every = ((end - story.begun) / most).max(1);
        let all = (story.begun..=end).step_by(every).map(|at| {
            replay.advance(at);
            (at, replay.crash(seed * 1_000_000 + at as u64))
        });
        side_by_side(all, |(at, images)| {
            let _seed = Seed(format!("seed {seed}, with a log vdev: {with_log}, after {at}"));
            let n = points.fetch_add(1, Ordering::Relaxed);
            let lab = cenote_torture::live::lab::lab(&disks(&images, None));
            let checked = account(&lab).and_then(|()| check(&story, at, &images));
            if let Err(why) = checked {
                panic!("crashed at {at} of {end}: {why}; images in {}", keep(&images));
            }
            if n.is_multiple_of(judged) {
                judge(&images).unwrap();
            }
        });
        let commits: usize = story.acknowledged.iter().map(Vec::len).sum();
        println!("seed {seed}, with a log vdev: {with_log}: {commits} commits");
    }
    assert!(points.into_inner() > 100);
}
