//! Power fails while a vdev leaves a pool: what is left is one pool, with the vdevs from before or from after, and nothing is
//! missing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_engine::Engine;
use cenote_engine::create::{Layout, Redundancy, VdevSpec};
use cenote_pool::discover::on_devices;
use cenote_torture::live::disk::{Disk, Image, Journal, Replay};
use cenote_torture::live::lab::{Lab, Logs, by_openzfs, disks, judge, lab};
use cenote_torture::live::model::open;
use cenote_torture::long;
use cenote_vdev::Device;
use cenote_zpl::{FileSystem, NewNode, NodeKind, Settings};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Crashes in the short form of a test.
const CRASHES: usize = 16;
const SIZE: u64 = 64 << 20;
const DATA_SIZE: u64 = 256 << 20;
const NODE: NewNode =
    NewNode { kind: NodeKind::File, mode: 0o644, umask: 0, uid: 0, gid: 0, keep_setgid: false };

fn images(disks: &[Arc<Disk>]) -> Vec<Image> {
    disks.iter().map(|disk| disk.image()).collect()
}

fn shape(engine: &Engine) -> String {
    let tree = engine.pool().store().vdevs();
    let kinds: Vec<&str> = tree.root().children().iter().map(|top| top.kind()).collect();
    kinds.join(" ")
}

/// What is in the file `n`: bytes that do not compress.
fn bytes(n: u64) -> Vec<u8> {
    let mut state = n + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..60_000).map(|_| next()).collect()
}

/// Writes the file `n`, and has it made stable if it is to be `logged`.
fn write(engine: &Engine, n: u64, logged: bool) {
    let root = engine.pool().dsl().root().unwrap();
    let live = engine.live(root.ds_obj).unwrap();
    let files = FileSystem::open_live(live, Settings::default()).unwrap();
    let file = files.create(files.root(), format!("f{n}").as_bytes(), &NODE).unwrap();
    files.write(file.ino, 0, &bytes(n), false).unwrap();
    drop(files);
    if logged {
        engine.commit(root.ds_obj).unwrap();
    }
}

/// Imports what is left, reads the first `count` files in it, writes to it; the pool's vdevs.
fn recover(left: &[Image], count: u64, judged: bool) -> String {
    let disks = disks(left, None);
    let devices: Vec<Arc<dyn Device>> =
        disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let found = on_devices(&devices);
    assert_eq!(found.len(), 1);
    drop(devices);
    let engine = lab(&disks).import(&found[0]).unwrap();
    let shape = shape(&engine);
    assert_eq!(engine.pool().health(), "ONLINE", "{shape}");
    let root = engine.pool().dsl().root().unwrap();
    // Logs are replayed.
    engine.live(root.ds_obj).unwrap();
    engine.sync().unwrap();
    let files = open(&engine.pool(), &root).unwrap();
    for n in 0..count {
        let ino = files.lookup(files.root(), format!("f{n}").as_bytes()).unwrap();
        let mut read = vec![0; 60_001];
        assert_eq!(files.read(ino, 0, &mut read).unwrap(), 60_000);
        assert!(read.starts_with(&bytes(n)), "file {n}");
    }
    drop(files);
    write(&engine, 1000, true);
    engine.sync_task(|_| Ok(())).unwrap();
    engine.export(false).unwrap();
    drop(engine);
    if judged {
        judge(&images(&disks)).unwrap();
    }
    shape
}

/// A pool of a disk, and log vdevs.
fn pool(lab: &Lab, logs: &[(Redundancy, usize)], logged: Logs) -> Arc<Engine> {
    let mut paths = lab.paths();
    let mut top =
        |redundancy, count| VdevSpec::new(redundancy, paths.by_ref().take(count).collect());
    let mut tops = vec![top(Redundancy::Single, 1)];
    for (redundancy, count) in logs {
        let class = cenote_engine::create::Class::Log;
        tops.push(VdevSpec { class, ..top(*redundancy, *count) });
    }
    lab.create_layout(&Layout { tops, ..Layout::default() }, 12, logged).unwrap()
}

fn crashes(logs: &[(Redundancy, usize)], gone: u64, logged: Logs) {
    let journal = Arc::new(Journal::default());
    let first = vec![Image::new(SIZE); 1 + logs.iter().map(|(_, n)| n).sum::<usize>()];
    let all = disks(&first, Some(&journal));
    let lab = lab(&all).without("zilsaxattr");
    let engine = pool(&lab, logs, logged);
    // The first commits start the log.
    (0..3).for_each(|n| write(&engine, n, true));
    let (begin, old) = (journal.len(), shape(&engine));
    let vdev = engine.pool().store().vdevs().top(gone).unwrap().guid();
    engine.remove(vdev).unwrap();
    let (done, new) = (journal.len(), shape(&engine));
    write(&engine, 3, true);
    let end = journal.len();
    engine.sync_task(|_| Ok(())).unwrap();
    engine.export(false).unwrap();
    drop((engine, lab));
    let by_them = by_openzfs(&images(&all), "import\nsync\nexport\n").unwrap();
    assert_eq!(recover(&by_them, 4, true), new);

    let mut replay = Replay::new(first, &journal);
    let mut shapes: BTreeMap<String, u64> = BTreeMap::new();
    let seeds = if long() { 0..8 } else { 0..1 };
    let step = if long() { 1 } else { ((end - begin) / CRASHES).max(1) };
    for (count, at) in (begin..=end).step_by(step).enumerate() {
        replay.advance(at);
        for seed in seeds.clone() {
            let left = replay.crash((at as u64) << 8 | seed);
            let judged = long() || (count % 12 == 0 && seed == 0);
            let is = recover(&left, 3, judged);
            // What was told to be done is.
            assert!(at < done || is == new, "{is}");
            if judged {
                // OpenZFS goes on with it as well.
                let theirs = by_openzfs(&left, "import\nsync\nexport\n").unwrap();
                assert_eq!(recover(&theirs, 3, true), is);
            }
            *shapes.entry(is).or_default() += 1;
        }
    }
    println!("{} operations: {shapes:?}", end - begin);
    assert!(shapes.keys().all(|shape| *shape == old || *shape == new), "{shapes:?}");
    replay.advance(end);
    assert_eq!(recover(&replay.crash(0), 4, false), new);
}

/// A pool of disks, of which some leave while files are removed.
fn data_crashes(gone: u64) {
    let journal = Arc::new(Journal::default());
    let first = vec![Image::new(DATA_SIZE); 2];
    let all = disks(&first, Some(&journal));
    let lab = lab(&all).without("zilsaxattr");
    let tops = lab.paths().map(|path| VdevSpec::new(Redundancy::Single, vec![path])).collect();
    let engine = lab.create_layout(&Layout { tops, ..Layout::default() }, 12, Logs::On).unwrap();
    (0..30).for_each(|n| write(&engine, n, false));
    engine.sync().unwrap();
    let begin = journal.len();
    let vdev = engine.pool().store().vdevs().top(gone).unwrap().guid();
    // Everything happens in this thread: when this returns the vdev has left.
    engine.remove(vdev).unwrap();
    let (done, new) = (journal.len(), shape(&engine));
    assert!(new.contains("indirect"), "{new}");
    engine.sync_task(|_| Ok(())).unwrap();
    engine.export(false).unwrap();
    drop((engine, lab));
    let by_them = by_openzfs(&images(&all), "import\nscrub\nexport\n").unwrap();
    assert_eq!(recover(&by_them, 30, true), new);
    let mut replay = Replay::new(first, &journal);
    let mut shapes: BTreeMap<String, u64> = BTreeMap::new();
    let seeds = if long() { 0..8 } else { 0..1 };
    let step = if long() { 1 } else { ((done - begin) / CRASHES).max(1) };
    for (count, at) in (begin..=done).step_by(step).enumerate() {
        replay.advance(at);
        for seed in seeds.clone() {
            let left = replay.crash((at as u64) << 8 | seed);
            let judged = long() || (count % 6 == 0 && seed == 0);
            if judged {
                // OpenZFS goes on with it, if it had begun.
                let theirs = by_openzfs(&left, "import\nend-remove\nexport\n").unwrap();
                *shapes.entry(recover(&theirs, 30, true)).or_default() += 1;
            }
            *shapes.entry(recover(&left, 30, judged)).or_default() += 1;
        }
    }
    println!("{} operations: {shapes:?}", done - begin);
    assert!(shapes.contains_key(&new));
    replay.advance(done);
    assert_eq!(recover(&replay.crash(0), 30, false), new);
}

#[test]
fn a_crash_while_data_leaves() {
    cenote_engine::tunables::find("zfs_remove_max_segment").unwrap().set(20 << 10).unwrap();
    data_crashes(0);
}

#[test]
fn a_crash_while_a_log_leaves() {
    crashes(&[(Redundancy::Single, 1)], 1, Logs::On);
    crashes(&[(Redundancy::Mirror, 2), (Redundancy::Single, 1)], 1, Logs::On);
    crashes(&[(Redundancy::Single, 1), (Redundancy::Single, 1)], 2, Logs::Off);
}
