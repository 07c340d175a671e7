//! Power fails while a device joins a vdev or leaves one, or while its free space is overwritten and trimmed: what is left is
//! one pool, with the vdevs from before or from after, and nothing is missing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_engine::create::{Layout, NewDevice, Redundancy, VdevSpec};
use cenote_engine::{ActivityRequest, Attach, Engine};
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_pool::discover::on_devices;
use cenote_pool::vdev_props::Activity;
use cenote_torture::live::disk::{Disk, Image, Journal, Replay};
use cenote_torture::live::lab::{Lab, Logs, by_openzfs, disks, judge, judge_newer, lab};
use cenote_torture::live::model::open;
use cenote_torture::long;
use cenote_vdev::{Device, draid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Files that an expansion moves, with several steps.
const FILES: usize = 24;
/// Crashes in the short form of a test.
const CRASHES: usize = 16;
const SIZE: u64 = 80 << 20;

fn images(disks: &[Arc<Disk>]) -> Vec<Image> {
    disks.iter().map(|disk| disk.image()).collect()
}

/// The vdevs of the pool, with the numbers of their disks.
fn shape(engine: &Engine) -> String {
    fn show(vdev: &NvList) -> String {
        let below: Vec<String> = config::children(vdev).iter().map(show).collect();
        match (below.is_empty(), vdev.str("path")) {
            (true, path) => path.unwrap_or("?").trim_start_matches("/torture/d").to_string(),
            (false, _) => format!("{}({})", vdev.str("type").unwrap(), below.join(" ")),
        }
    }
    show(engine.pool().config().list("vdev_tree").unwrap())
}

fn leaf(engine: &Engine, number: usize) -> u64 {
    let path = format!("/torture/d{number}");
    let leaves = engine.pool().store().vdevs().leaves();
    leaves.iter().find(|l| l.path().is_some_and(|p| p.as_os_str() == &*path)).unwrap().guid()
}

fn device(lab: &Lab, engine: &Engine, number: usize) -> NewDevice {
    let path = lab.paths().nth(number).unwrap();
    let tops = vec![VdevSpec::new(Redundancy::Single, vec![path])];
    let layout = Layout { tops, ..Layout::default() };
    lab.prepare_to_add(&engine.pool(), &layout).unwrap().into_single().unwrap()
}

/// What is done to a pool.
#[derive(Clone, Copy, Debug)]
enum Change {
    Attach(usize, usize),
    /// The RAID-Z vdev is expanded.
    Expand(usize),
    Replace(usize, usize),
    /// The same, by a sequential rebuild.
    Rebuild(usize, usize),
    Detach(usize),
    /// A distributed spare steps in, by a sequential rebuild or a resilver.
    StandIn(usize, u64, bool),
    /// It leaves.
    Idle(u64),
}

/// The guid of a distributed spare of the pool.
fn spare(engine: &Engine, number: u64) -> u64 {
    let pool = engine.pool();
    let is_it = |spare: &&NvList| config::number(spare, "spareid") == number;
    config::number(pool.spares().iter().find(is_it).unwrap(), "guid")
}

fn apply(lab: &Lab, engine: &Engine, change: Change) {
    match change {
        Change::Attach(beside, new) | Change::Replace(beside, new) => {
            let replaces = matches!(change, Change::Replace(..));
            let (beside, new) = (leaf(engine, beside), device(lab, engine, new));
            engine.attach(Attach { beside, new, replaces }).unwrap();
        }
        Change::Rebuild(beside, new) => {
            let (beside, new) = (leaf(engine, beside), device(lab, engine, new));
            engine.attach_sequentially(Attach { beside, new, replaces: true }).unwrap();
        }
        Change::Expand(new) => {
            let feature = cenote_format::features::by_name("raidz_expansion").unwrap();
            let change = cenote_pool::props::PropChange::Feature(feature);
            engine.set_properties(vec![change]).unwrap();
            let new = device(lab, engine, new);
            let beside = engine.pool().store().vdevs().top(0).unwrap().guid();
            engine.attach(Attach { beside, new, replaces: false }).unwrap();
        }
        Change::Detach(gone) => engine.detach(leaf(engine, gone), None).unwrap(),
        Change::StandIn(beside, number, rebuilds) => {
            let new = engine.spare(spare(engine, number)).unwrap();
            let attach = Attach { beside: leaf(engine, beside), new, replaces: true };
            match rebuilds {
                true => engine.attach_sequentially(attach).unwrap(),
                false => engine.attach(attach).unwrap(),
            }
        }
        Change::Idle(number) => engine.detach(spare(engine, number), None).unwrap(),
    }
}

/// Imports what is left, reads the file in it, writes to it; the pool's vdevs.
fn recover(left: &[Image], file: &[u8], judged: bool) -> String {
    recover_all(left, &[("file", file)], judged)
}

/// As [`recover`], with all these files.
fn recover_all(left: &[Image], all: &[(&str, &[u8])], judged: bool) -> String {
    let disks = disks(left, None);
    let devices: Vec<Arc<dyn Device>> =
        disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let found = on_devices(&devices);
    assert_eq!(found.len(), 1);
    drop(devices);
    let lab = lab(&disks);
    let engine = lab.import(&found[0]).unwrap();
    let shape = shape(&engine);
    assert_eq!(engine.pool().health(), "ONLINE", "{shape}");
    let root = engine.pool().dsl().root().unwrap();
    let files = open(&engine.pool(), &root).unwrap();
    for (name, file) in all {
        let ino = files.lookup(files.root(), name.as_bytes()).unwrap();
        let mut bytes = vec![0; file.len() + 1];
        assert_eq!(files.read(ino, 0, &mut bytes).unwrap(), file.len(), "{name}");
        assert!(bytes.starts_with(file), "{name}");
    }
    drop(files);
    engine.sync_task(|_| Ok(())).unwrap();
    let expanded = engine.pool().features().is_active("raidz_expansion");
    engine.export(false).unwrap();
    drop(engine);
    match expanded {
        // OpenZFS 2.1 does not know what that is.
        true if judged => judge_newer(&images(&disks)).unwrap(),
        false if judged => judge(&images(&disks)).unwrap(),
        _ => {}
    }
    shape
}

/// Writes a file of bytes that do not compress.
fn fill(engine: &Engine) -> Vec<u8> {
    write(engine, "file", None)
}

/// The same, of a file with this name; another one is removed before.
fn write(engine: &Engine, name: &str, gone: Option<&str>) -> Vec<u8> {
    use cenote_zpl::{FileSystem, NewNode, NodeKind, Settings};
    let root = engine.pool().dsl().root().unwrap();
    let files =
        FileSystem::open_live(engine.live(root.ds_obj).unwrap(), Settings::default()).unwrap();
    let mut state = 1u64;
    let bytes: Vec<u8> = (0..300_000)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect();
    let node =
        NewNode { kind: NodeKind::File, mode: 0o644, umask: 0, uid: 0, gid: 0, keep_setgid: false };
    if let Some(gone) = gone {
        files.unlink(files.root(), gone.as_bytes(), &|_| false).unwrap();
    }
    let file = files.create(files.root(), name.as_bytes(), &node).unwrap();
    files.write(file.ino, 0, &bytes, false).unwrap();
    drop(files);
    engine.sync().unwrap();
    engine.close(root.ds_obj).unwrap();
    bytes
}

fn crashes(redundancy: Redundancy, used: usize, before: &[Change], change: Change) {
    crashes_through(redundancy, used, before, change, None);
}

/// As [`crashes`]; the pool may have the vdevs `between` as well.
fn crashes_through(
    redundancy: Redundancy,
    used: usize,
    before: &[Change],
    change: Change,
    between: Option<&str>,
) {
    let journal = Arc::new(Journal::default());
    let first = vec![Image::new(SIZE); used + 2];
    let all = disks(&first, Some(&journal));
    let lab = lab(&all);
    let paths: Vec<_> = lab.paths().take(used).collect();
    let tops = vec![VdevSpec::new(redundancy, paths)];
    let layout = Layout { tops, ..Layout::default() };
    let engine = lab.create_layout(&layout, 12, Logs::On).unwrap();
    before.iter().for_each(|change| apply(&lab, &engine, *change));
    let file = fill(&engine);
    let (begin, old) = (journal.len(), shape(&engine));
    apply(&lab, &engine, change);
    let (done, new) = (journal.len(), shape(&engine));
    engine.sync_task(|_| Ok(())).unwrap();
    engine.export(false).unwrap();
    drop((engine, lab));
    let by_them = by_openzfs(&images(&all), "import\nsync\nexport\n").unwrap();
    assert_eq!(recover(&by_them, &file, true), new);

    let mut replay = Replay::new(first, &journal);
    let mut shapes: BTreeMap<String, u64> = BTreeMap::new();
    let seeds = if long() { 0..8 } else { 0..1 };
    let step = if long() { 1 } else { ((done - begin) / CRASHES).max(1) };
    for (count, at) in (begin..=done).step_by(step).enumerate() {
        replay.advance(at);
        for seed in seeds.clone() {
            let left = replay.crash((at as u64) << 8 | seed);
            let judged = long() || (count % 12 == 0 && seed == 0);
            *shapes.entry(recover(&left, &file, judged)).or_default() += 1;
        }
    }
    println!("{change:?}, {} operations: {shapes:?}", done - begin);
    // What a replacement is on the way, an import brings to its end.
    shapes.retain(|shape, _| between != Some(shape));
    assert_eq!(shapes.keys().collect::<BTreeSet<_>>(), BTreeSet::from([&old, &new]));
    // What was told to be done is.
    replay.advance(done);
    assert_eq!(recover(&replay.crash(0), &file, false), new);
}

#[test]
fn a_crash_while_a_side_joins() {
    crashes(Redundancy::Single, 1, &[], Change::Attach(0, 1));
    crashes(Redundancy::Mirror, 2, &[], Change::Attach(1, 2));
}

#[test]
fn a_crash_while_a_side_leaves() {
    crashes(Redundancy::Mirror, 2, &[], Change::Detach(0));
    crashes(Redundancy::Mirror, 3, &[], Change::Detach(1));
    crashes(Redundancy::Single, 1, &[Change::Attach(0, 1)], Change::Detach(1));
}

#[test]
fn a_crash_while_a_device_is_replaced() {
    crashes(Redundancy::RaidZ(1), 3, &[], Change::Replace(1, 3));
    let draid = draid::Shape::new(1, 1, 0, 4).unwrap();
    crashes(Redundancy::Draid(draid), 4, &[], Change::Replace(2, 4));
    crashes(Redundancy::Mirror, 2, &[], Change::Replace(0, 2));
    crashes(Redundancy::Single, 1, &[], Change::Replace(0, 1));
    crashes(Redundancy::RaidZ(2), 4, &[Change::Replace(1, 4)], Change::Replace(3, 5));
}

#[test]
fn a_crash_while_a_device_is_rebuilt() {
    cenote_engine::tunables::find("zfs_rebuild_vdev_limit").unwrap().set(1 << 16).unwrap();
    crashes(Redundancy::Mirror, 2, &[], Change::Rebuild(0, 2));
    crashes(Redundancy::Single, 1, &[], Change::Rebuild(0, 1));
    let draid = draid::Shape::new(1, 1, 0, 4).unwrap();
    crashes(Redundancy::Draid(draid), 4, &[], Change::Rebuild(2, 4));
}

#[test]
fn a_crash_while_a_distributed_spare_steps_in_or_leaves() {
    cenote_engine::tunables::find("zfs_rebuild_vdev_limit").unwrap().set(1 << 16).unwrap();
    let draid = Redundancy::Draid(draid::Shape::new(1, 1, 2, 5).unwrap());
    crashes(draid, 5, &[], Change::StandIn(1, 0, true));
    crashes(draid, 5, &[Change::StandIn(1, 0, false)], Change::StandIn(3, 1, false));
    crashes(draid, 5, &[Change::StandIn(2, 1, true)], Change::Idle(1));
    crashes(draid, 5, &[Change::StandIn(0, 0, false)], Change::Replace(4, 5));
    // What the spare stood in for goes, and the spare with a group of its own.
    let between = Some("root(draid(spare(5 draid1-0-0) 1 2 3 4))");
    let before = [Change::StandIn(0, 0, false)];
    crashes_through(draid, 5, &before, Change::Replace(0, 5), between);
}

/// Power fails while a RAID-Z vdev is expanded, and while the import after that goes on with it: at every write the pool is the
/// one from before, or goes on to be the one from after, and all is there.
#[test]
fn a_crash_while_raidz_is_expanded() {
    cenote_engine::tunables::find("raidz_expand_max_copy_bytes").unwrap().set(1 << 20).unwrap();
    for (parity, used) in [(1, 3), (2, 4)] {
        let journal = Arc::new(Journal::default());
        let first = vec![Image::new(SIZE); used + 1];
        let disks_of = disks(&first, Some(&journal));
        let lab = lab(&disks_of);
        let paths: Vec<_> = lab.paths().take(used).collect();
        let tops = vec![VdevSpec::new(Redundancy::RaidZ(parity), paths)];
        let layout = Layout { tops, ..Layout::default() };
        let engine = lab.create_layout(&layout, 12, Logs::On).unwrap();
        let names: Vec<String> = (0..FILES).map(|n| n.to_string()).collect();
        let file = write(&engine, "file", None);
        names.iter().for_each(|name| drop(write(&engine, name, None)));
        // All have the same bytes.
        let mut all: Vec<(&str, &[u8])> = names.iter().map(|n| (n.as_str(), &file[..])).collect();
        all.push(("file", &file));
        let (begin, old) = (journal.len(), shape(&engine));
        apply(&lab, &engine, Change::Expand(used));
        let (done, new) = (journal.len(), shape(&engine));
        assert!(engine.pool().store().vdevs().expanding().is_none(), "it has ended");
        engine.sync_task(|_| Ok(())).unwrap();
        engine.export(false).unwrap();
        drop((engine, lab));
        assert_eq!(recover_all(&images(&disks_of), &all, true), new);
        let mut replay = Replay::new(first, &journal);
        let mut shapes: BTreeMap<String, u64> = BTreeMap::new();
        let seeds = if long() { 0..8 } else { 0..1 };
        let step = if long() { 1 } else { ((done - begin) / (2 * CRASHES)).max(1) };
        for (count, at) in (begin..=done).step_by(step).enumerate() {
            replay.advance(at);
            for seed in seeds.clone() {
                let left = replay.crash((at as u64) << 8 | seed);
                let judged = long() || (count % 4 == 0 && seed == 0);
                *shapes.entry(recover_all(&left, &all, judged)).or_default() += 1;
            }
        }
        println!("raidz{parity}, {} operations: {shapes:?}", done - begin);
        assert_eq!(shapes.keys().collect::<BTreeSet<_>>(), BTreeSet::from([&old, &new]));
    }
}

/// Power fails while free space is overwritten and trimmed, and files come and go. What was under way goes on, with OpenZFS's
/// engine as well.
#[test]
fn a_crash_while_free_space_is_worked_on() {
    for (redundancy, used) in [(Redundancy::Mirror, 2), (Redundancy::RaidZ(1), 3)] {
        let journal = Arc::new(Journal::default());
        let first = vec![Image::new(SIZE); used];
        let all = disks(&first, Some(&journal));
        let lab = lab(&all);
        let tops = vec![VdevSpec::new(redundancy, lab.paths().collect())];
        let layout = Layout { tops, ..Layout::default() };
        let engine = lab.create_layout(&layout, 12, Logs::On).unwrap();
        let (file, shape) = (fill(&engine), shape(&engine));
        write(&engine, "0", None);
        let begin = journal.len();
        for leaf in engine.pool().store().vdevs().leaves() {
            for activity in Activity::ALL {
                engine.activity(activity, leaf.guid(), ActivityRequest::START).unwrap();
            }
        }
        let mut rounds = 0;
        while Activity::ALL.iter().any(|activity| !engine.active(*activity).is_empty()) {
            write(&engine, &(rounds + 1).to_string(), Some(&rounds.to_string()));
            rounds += 1;
        }
        let done = journal.len();
        engine.export(false).unwrap();
        drop((engine, lab));
        let mut replay = Replay::new(first, &journal);
        let step = if long() { 20 } else { ((done - begin) / CRASHES).max(1) };
        for (count, at) in (begin..=done).step_by(step).enumerate() {
            replay.advance(at);
            let left = replay.crash(at as u64);
            let judged = long() || count % 8 == 0;
            assert_eq!(recover(&left, &file, judged), shape);
            if count % 12 == 6 {
                let by_them = by_openzfs(&left, "import\nsync\nexport\n").unwrap();
                assert_eq!(recover(&by_them, &file, true), shape);
            }
        }
        println!("{redundancy:?}: {} operations, {rounds} rounds", done - begin);
    }
}
