//! Gang blocks that records of a log point to (`dmu_sync` in a fragmented pool): they are claimed with all that they
//! consist of, replayed and freed.

use crate::{SHAPES, recover};
use cenote_dsl::zil::{self, Item};
use cenote_engine::{Engine, tunables};
use cenote_format::blkptr::BlockPointer;
use cenote_pool::Pool;
use cenote_store::Bookmark;
use cenote_torture::live::disk::{Disk, Image, Journal, Replay};
use cenote_torture::live::lab::{
    Lab, Logs, Shape, by_openzfs, disks, hand_over_and_back, judge, keep, lab,
};
use cenote_torture::live::side_by_side;
use cenote_torture::live::world::{self, look};
use cenote_torture::long;
use cenote_vdev::Device;
use cenote_vdev::inject::FaultyDevice;
use cenote_zpl::{FileSystem, NewNode, NodeKind, Settings};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use std::sync::Arc;

/// Blocks of so many bytes are divided, and so are parts of so many. No other test of this process writes such blocks.
const DIVIDED: u64 = 200 << 10;
/// Its parts are gang blocks again.
const LARGE: usize = 1 << 20;
/// Its parts are not.
const SMALL: usize = 256 << 10;
/// A file that is written over again and again.
const OVERWRITTEN: &str = "overwritten";

/// What a version of the file that is written over has in it: one block.
fn block(version: usize) -> Vec<u8> {
    let mut data = vec![0; LARGE];
    SmallRng::seed_from_u64(version as u64).fill_bytes(&mut data);
    data
}

/// What the file of a version has in it.
fn content(version: usize) -> Vec<u8> {
    let mut data = block(version + 1000);
    data.truncate(if version.is_multiple_of(3) { SMALL } else { LARGE });
    data
}

fn name(version: usize) -> String {
    format!("file{version}")
}

/// A pool whose log records point to gang blocks, and what was done to its disks.
struct Story {
    first: Vec<Image>,
    journal: Arc<Journal>,
    /// Operations until its end, and what is on the disks then.
    end: usize,
    last: Vec<Image>,
    /// Operations before each version was written, and those before it was committed.
    versions: Vec<(usize, usize)>,
}

fn open(engine: &Engine, record_size: usize) -> Arc<FileSystem> {
    let fs = world::root(engine, true);
    fs.set_settings(Settings { record_size: record_size as u64, ..world::settings(true) });
    fs
}

fn create(fs: &FileSystem, name: &str) -> u64 {
    let (kind, mode, umask, uid, gid) = (NodeKind::File, 0o644, 0, 1, 2);
    let node = NewNode { kind, mode, umask, uid, gid, keep_setgid: true };
    fs.create(fs.root(), name.as_bytes(), &node).unwrap().ino
}

/// Each version is a file of its own and what is in one that all write; each is committed.
fn tell(shape: &Shape, versions: usize) -> Story {
    tunables::find("metaslab_force_ganging").unwrap().set(DIVIDED).unwrap();
    tunables::find("metaslab_force_ganging_pct").unwrap().set(100).unwrap();
    let first = vec![Image::new(shape.size); shape.disks];
    let journal = Arc::new(Journal::default());
    let disks = disks(&first, Some(&journal));
    let lab = lab(&disks).without(crate::SA_XATTRS).without(crate::CLONING);
    let engine = lab.create_with(shape, Logs::On).unwrap();
    let fs = open(&engine, LARGE);
    let overwritten = create(&fs, OVERWRITTEN);
    fs.write(overwritten, 0, &block(0), false).unwrap();
    engine.commit(fs.objset().id()).unwrap();
    engine.sync().unwrap();
    let txg = engine.pool().uberblock().txg;
    let written = |version: usize| {
        let begun = journal.len();
        let ino = create(&fs, &name(version));
        fs.write(ino, 0, &content(version), false).unwrap();
        fs.write(overwritten, 0, &block(version), false).unwrap();
        engine.commit_objects(fs.objset().id(), &[ino, overwritten]).unwrap();
        (begun, journal.len())
    };
    let versions = (1..=versions).map(written).collect();
    assert_eq!(engine.pool().uberblock().txg, txg, "a commit waited for its group");
    let last = images(&disks);
    drop(fs);
    let end = journal.len();
    drop(engine);
    Story { first, journal, end, last, versions }
}

fn images(disks: &[Arc<Disk>]) -> Vec<Image> {
    disks.iter().map(|disk| disk.image()).collect()
}

/// The gang blocks that the log of the root dataset points to.
fn gangs(pool: &Pool) -> Vec<BlockPointer> {
    let header = pool.dsl().open_objset(&pool.dsl().root().unwrap()).unwrap().phys().zil;
    let mut found = Vec::new();
    zil::walk(pool.store(), &header, &mut |item| {
        if let Item::Record(record) = item {
            found.extend(record.write_block().filter(BlockPointer::is_gang));
        }
        true
    });
    found
}

/// What is in a gang block, headers and parts.
fn members(pool: &Pool, bp: &BlockPointer) -> Vec<BlockPointer> {
    pool.store().gang_members(bp, Bookmark { objset: 0, object: 0, level: 0, blkid: 0 }).unwrap()
}

/// Whether the files are what a crash after `at` operations may leave.
fn check(story: &Story, engine: &Engine, at: usize) -> Result<(), String> {
    let tree = look(&world::root(engine, true));
    let read = |name: &str| tree.get(name.as_bytes()).and_then(|found| found.seen.content.clone());
    let mut may_be = vec![0];
    for (version, (begun, committed)) in (1..).zip(&story.versions) {
        let found = read(&name(version));
        match found {
            Some(found) if *committed <= at && found == content(version) => may_be = vec![version],
            _ if *committed <= at => return Err(format!("version {version} is not there")),
            _ if *begun <= at => may_be.push(version),
            Some(_) => return Err(format!("version {version} was not written yet")),
            None => {}
        }
    }
    let found = read(OVERWRITTEN).unwrap_or_default();
    match may_be.iter().any(|version| found == block(*version)) {
        true => Ok(()),
        false => Err(format!("what was written over is none of {may_be:?}")),
    }
}

/// Crashes after `at` operations, and in each of `again` imports after that.
fn survive(story: &Story, (at, images, judged): (usize, Vec<Image>, bool), again: usize) {
    let (mut images, mut rng) = (images, SmallRng::seed_from_u64(at as u64));
    for round in 0..=again {
        if judged && round == 0 {
            judge(&images).unwrap();
        }
        let journal = Arc::new(Journal::default());
        let disks = disks(&images, Some(&journal));
        let (engine, _) = recover(&disks, at);
        if let Err(why) = check(story, &engine, at) {
            panic!("crash at {at} and {round} more: {why}; images in {}", keep(&images));
        }
        let end = journal.len();
        engine.export(false).unwrap();
        drop(engine);
        if judged && (round == 0 || round == again) {
            judge(&self::images(&disks)).unwrap();
        }
        let mut replay = Replay::new(images, &journal);
        replay.advance(rng.random_range(0..=end));
        images = replay.crash(rng.random());
    }
}

#[test]
fn gang_blocks_of_logs_survive_any_crash() {
    let (points, again, judged) = if long() { (400, 3, 20) } else { (12, 2, 12) };
    for shape in SHAPES.map(|shape| Shape { size: 192 << 20, ..shape }) {
        let story = tell(&shape, 6);
        let pool = lab(&disks(&story.last, None)).look().unwrap();
        let found = gangs(&pool);
        let nested = |bp: &&BlockPointer| members(&pool, bp).iter().any(BlockPointer::is_gang);
        let nested = found.iter().filter(nested).count();
        assert!(nested > 0 && nested < found.len(), "{nested} of {}", found.len());
        let (begun, end) = (story.versions[0].0, story.end);
        let mut rng = SmallRng::seed_from_u64(7);
        let mut at: Vec<usize> = (1..points).map(|_| rng.random_range(begun..=end)).collect();
        at.push(end);
        at.sort_unstable();
        let mut replay = Replay::new(story.first.clone(), &story.journal);
        let crashes = at.into_iter().enumerate().map(|(i, at)| {
            replay.advance(at);
            (at, replay.crash(rng.random()), i % judged == judged - 1)
        });
        side_by_side(crashes, |crash| survive(&story, crash, again));
    }
}

/// OpenZFS claims what we wrote, and we replay what OpenZFS claimed. What both print of such a log is the same.
#[test]
fn openzfs_claims_gang_blocks_of_logs() {
    let story = tell(&SHAPES[0], 4);
    let claimed = hand_over_and_back(&story.last).unwrap();
    let left = disks(&claimed, None);
    assert!(!gangs(&lab(&left).look().unwrap()).is_empty());
    judge(&claimed).unwrap();
    let (engine, records) = recover(&left, 1);
    assert!(records > 0);
    check(&story, &engine, story.end).unwrap();
    assert!(gangs(&engine.pool()).is_empty());
    engine.export(false).unwrap();
    judge(&images(&left)).unwrap();
}

/// The bytes of a seed, as OpenZFS's engine writes them in tests.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut word).flatten().take(len).collect()
}

/// OpenZFS's engine overwrote a file; its log has gang blocks, which we claim and replay.
#[test]
fn gang_blocks_of_logs_of_openzfs_are_claimed() {
    const BLOCK: u64 = 128 << 10;
    for shape in [SHAPES[0], SHAPES[2]].map(|shape| Shape { size: 128 << 20, ..shape }) {
        let disks = disks(&vec![Image::new(shape.size); shape.disks], None);
        let lab = lab(&disks).without(crate::SA_XATTRS).without(crate::CLONING);
        let engine = lab.create_with(&shape, Logs::On).unwrap();
        let fs = open(&engine, BLOCK as usize);
        let ino = create(&fs, OVERWRITTEN);
        fs.write(ino, 0, &vec![1; LARGE], false).unwrap();
        drop(fs);
        engine.export(false).unwrap();
        let script = format!("import\nlog tank {ino} {BLOCK} {LARGE} 5 1\ncrash\n");
        let left = by_openzfs(&images(&disks), &script).unwrap();
        judge(&left).unwrap();
        let left = self::disks(&left, None);
        assert!(!gangs(&self::lab(&left).look().unwrap()).is_empty());
        let (engine, records) = recover(&left, 8);
        assert!(records > 0);
        let fs = world::root(&engine, true);
        let mut data = vec![0; LARGE];
        assert_eq!(fs.read(ino, 0, &mut data).unwrap(), LARGE);
        assert!(data == noise(5, LARGE));
        drop(fs);
        engine.export(false).unwrap();
        judge(&images(&left)).unwrap();
    }
}

/// A claimed log that is given up goes with all that its gang blocks consist of.
#[test]
fn gang_blocks_of_a_log_that_is_given_up_are_freed() {
    let disks = disks(&tell(&SHAPES[2], 4).last, None);
    let lab = lab(&disks);
    let engine = lab.import(&lab.find().unwrap()).unwrap();
    let dataset = engine.pool().dsl().root().unwrap().ds_obj;
    assert_eq!(engine.waiting_logs(), [dataset]);
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
    let engine = lab.import(&lab.find().unwrap()).unwrap();
    assert!(!gangs(&engine.pool()).is_empty());
    engine.clear_intent_log(dataset).unwrap();
    let tree = look(&world::root(&engine, true));
    assert_eq!(tree.len(), 1);
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
}

/// A lab whose only disk is a copy of this one and can be made to fail.
fn faulty(image: &Image) -> (Arc<Disk>, Arc<FaultyDevice>, Lab) {
    let disk = Disk::new(0, image.clone(), None);
    let faulty = FaultyDevice::new(disk.clone());
    let lab = Lab::new(vec![faulty.clone() as Arc<dyn Device>]);
    (disk, faulty, lab)
}

/// The bytes of the disk that the copies of a header, or of a part, of a gang block begin with.
fn places(bp: &BlockPointer) -> impl Iterator<Item = std::ops::Range<u64>> {
    bp.dvas().map(|dva| dva.offset + cenote_format::LABEL_START).map(|at| at..at + 512)
}

/// A header or a part that cannot be read keeps the pool from being imported, by name, for as long as the device fails;
/// nothing is lost or written. One that is wrong was never written: there the log ends.
#[test]
fn gang_blocks_that_cannot_be_read_are_not_claimed() {
    let shape = Shape { disks: 1, ..SHAPES[0] };
    let story = tell(&shape, 5);
    let pool = lab(&disks(&story.last, None)).look().unwrap();
    let last = *gangs(&pool).last().unwrap();
    let parts = members(&pool, &last);
    let nested = *parts.iter().find(|bp| bp.is_gang()).unwrap();
    let leaf = *parts.iter().rfind(|bp| !bp.is_gang()).unwrap();
    for bp in [last, nested, leaf] {
        let (_, device, lab) = faulty(&story.last[0]);
        places(&bp).for_each(|place| device.fail(place));
        let refused = lab.import(&lab.find().unwrap()).err().unwrap();
        let said = format!("{refused} {}", refused.notes().unwrap_or_default());
        assert!(said.contains("the intent log of dataset"), "{said}");
        device.repair();
        let engine = lab.import(&lab.find().unwrap()).unwrap();
        assert_eq!(cenote::contents::replay_logs(&engine, &|_, _| true).unwrap(), []);
        check(&story, &engine, story.end).unwrap();
        engine.export(false).unwrap();
    }
    for bp in [last, nested, leaf] {
        let (disk, device, lab) = faulty(&story.last[0]);
        places(&bp).for_each(|place| device.corrupt(place, 0x5a));
        let engine = lab.import(&lab.find().unwrap()).unwrap();
        device.repair();
        assert_eq!(cenote::contents::replay_logs(&engine, &|_, _| true).unwrap(), []);
        let committed = story.versions[story.versions.len() - 2].1;
        check(&story, &engine, committed).unwrap();
        assert!(check(&story, &engine, story.end).is_err(), "it was not cut");
        engine.export(false).unwrap();
        judge(&[disk.image()]).unwrap();
    }
}
