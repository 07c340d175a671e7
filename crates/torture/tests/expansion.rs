//! Power fails while a RAID-Z vdev is expanded by its own thread, and files are written and made durable beside it. Whatever is left is
//! one pool in which all is that was acknowledged; an import goes on with the expansion to its end, and nothing is missing then
//! either.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_engine::create::{Layout, Redundancy, VdevSpec};
use cenote_engine::{Attach, Engine, tunables};
use cenote_torture::live::disk::{Disk, Image, Journal, Replay};
use cenote_torture::live::lab::{Lab, Logs, disks, judge_newer, keep, lab};
use cenote_torture::live::model::open;
use cenote_torture::long;
use cenote_zpl::{FileSystem, NewNode, NodeKind, Settings};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 80 << 20;
/// Files from before.
const BEFORE: usize = 40;
/// Most files that are written meanwhile.
const MOST: usize = 60;
/// Crashes in the short form.
const CRASHES: usize = 14;
/// Bytes that a group moves while the journal is written, and when an import goes on.
const SMALL: u64 = 512 << 10;
/// See [`SMALL`].
const LARGE: u64 = 64 << 20;

fn images(disks: &[Arc<Disk>]) -> Vec<Image> {
    disks.iter().map(|disk| disk.image()).collect()
}

/// The bytes of a file, which do not compress. Some are small, so that they are in log blocks, others are not.
fn bytes(file: usize) -> Vec<u8> {
    let mut state = (file as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let len = if file.is_multiple_of(3) { 200_000 } else { 20_000 } + file * 7;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(next).collect()
}

fn create(files: &FileSystem, file: usize) {
    let node =
        NewNode { kind: NodeKind::File, mode: 0o644, umask: 0, uid: 0, gid: 0, keep_setgid: false };
    let made = files.create(files.root(), file.to_string().as_bytes(), &node).unwrap();
    files.write(made.ino, 0, &bytes(file), false).unwrap();
}

fn expand(lab: &Lab, engine: &Engine, number: usize) {
    let feature = cenote_format::features::by_name("raidz_expansion").unwrap();
    engine.set_properties(vec![cenote_pool::props::PropChange::Feature(feature)]).unwrap();
    let path = lab.paths().nth(number).unwrap();
    let tops = vec![VdevSpec::new(Redundancy::Single, vec![path])];
    let layout = Layout { tops, ..Layout::default() };
    let new = lab.prepare_to_add(&engine.pool(), &layout).unwrap().into_single().unwrap();
    let beside = engine.pool().store().vdevs().top(0).unwrap().guid();
    engine.attach(Attach { beside, new, replaces: false }).unwrap();
}

/// What happened to a file: the operations after which it was acknowledged, and after which it was removed or about to be.
struct File {
    number: usize,
    kept: usize,
    gone: usize,
}

/// Writes beside an expansion until that ends. The operations between which that was, and the files.
fn work(
    lab: &Lab,
    engine: &Arc<Engine>,
    journal: &Journal,
    new: usize,
) -> (usize, usize, Vec<File>) {
    let head = engine.pool().dsl().root().unwrap().ds_obj;
    let files = FileSystem::open_live(engine.live(head).unwrap(), Settings::default()).unwrap();
    (0..BEFORE).for_each(|file| create(&files, file));
    engine.sync().unwrap();
    let known = |number| File { number, kept: journal.len(), gone: usize::MAX };
    let mut all: Vec<File> = (0..BEFORE).map(known).collect();
    let begin = journal.len();
    expand(lab, engine, new);
    let end = Instant::now() + Duration::from_secs(600);
    while engine.pool().store().vdevs().expanding().is_some() {
        assert!(Instant::now() < end, "{:?}", engine.expansion_waits());
        let number = all.len();
        if number >= BEFORE + MOST {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        create(&files, number);
        if number.is_multiple_of(4) {
            // What it had is free soon, and is given out again.
            let gone = &mut all[number - BEFORE];
            gone.gone = journal.len();
            files.unlink(files.root(), gone.number.to_string().as_bytes(), &|_| false).unwrap();
        }
        engine.commit(head).unwrap();
        all.push(File { number, kept: journal.len(), gone: usize::MAX });
    }
    let done = journal.len();
    drop(files);
    engine.sync().unwrap();
    engine.close(head).unwrap();
    (begin, done, all)
}

/// The files that were there after so many operations are there.
fn check(engine: &Engine, all: &[File], at: usize) -> Result<(), String> {
    let root = engine.pool().dsl().root().map_err(|e| e.to_string())?;
    let files = open(&engine.pool(), &root)?;
    for File { number, .. } in all.iter().filter(|file| file.kept <= at && at < file.gone) {
        let right = bytes(*number);
        let wrong = |why: String| format!("file {number}: {why}");
        let ino = files.lookup(files.root(), number.to_string().as_bytes());
        let ino = ino.map_err(|e| wrong(e.to_string()))?;
        let mut found = vec![0; right.len() + 1];
        let len = files.read(ino, 0, &mut found).map_err(|e| wrong(e.to_string()))?;
        if len != right.len() || !found.starts_with(&right) {
            return Err(wrong(format!("{len} bytes, or others than {}", right.len())));
        }
    }
    Ok(())
}

/// How far the expansion was that a crash left: its state and the sectors that had moved.
type Left = (u64, u64);

fn tune(name: &str, value: u64) {
    tunables::find(name).unwrap().set(value).unwrap();
}

/// Imports what is left and lets nothing move beyond what the scratch area takes, reads it, and has it judged.
fn look_half_way(left: &[Image], all: &[File], at: usize) -> Result<Vec<Image>, String> {
    let disks = disks(left, None);
    let lab = lab(&disks);
    let found = lab.find().ok_or("there is no pool")?;
    tune("raidz_expand_max_reflow_bytes", 1);
    let engine = lab.import(&found).map_err(|e| e.to_string())?;
    let head = engine.pool().dsl().root().map_err(|e| e.to_string())?.ds_obj;
    drop(engine.live(head).map_err(|e| e.to_string())?);
    engine.sync().map_err(|e| e.to_string())?;
    engine.close(head).map_err(|e| e.to_string())?;
    check(&engine, all, at)?;
    engine.export(false).map_err(|e| e.to_string())?;
    drop(engine);
    tune("raidz_expand_max_reflow_bytes", 0);
    judge_newer(&images(&disks))?;
    Ok(images(&disks))
}

/// Imports what is left, reads it, has the expansion end, and reads it again.
fn recover(left: &[Image], all: &[File], at: usize, judged: bool) -> Result<Left, String> {
    let disks = disks(left, None);
    let lab = lab(&disks);
    let found = lab.find().ok_or("there is no pool")?;
    let progress = {
        let pool = lab.look()?;
        let uberblock = pool.uberblock();
        (uberblock.reflow_state(), uberblock.reflow_offset())
    };
    let engine = lab.import(&found).map_err(|e| e.to_string())?;
    // That replays its log, which has moved by now.
    let head = engine.pool().dsl().root().map_err(|e| e.to_string())?.ds_obj;
    drop(engine.live(head).map_err(|e| e.to_string())?);
    engine.sync().map_err(|e| e.to_string())?;
    engine.close(head).map_err(|e| e.to_string())?;
    check(&engine, all, at)?;
    if let Some(why) = engine.expansion_waits() {
        return Err(format!("the expansion waits: {why}"));
    }
    if engine.pool().store().vdevs().expanding().is_some() {
        return Err("the expansion has not ended".into());
    }
    engine.pool().store().drop_caches();
    check(&engine, all, at)?;
    let health = engine.pool().health();
    if health != "ONLINE" {
        return Err(format!("the pool is {health}"));
    }
    engine.export(false).map_err(|e| e.to_string())?;
    drop(engine);
    if judged {
        judge_newer(&images(&disks))?;
    }
    Ok(progress)
}

#[test]
fn power_fails_beside_an_expansion() {
    for (parity, used) in [(1, 3), (2, 4)] {
        let journal = Arc::new(Journal::default());
        let first = vec![Image::new(SIZE); used + 1];
        let all_disks = disks(&first, Some(&journal));
        let lab = lab(&all_disks).on_all_processors();
        let paths: Vec<_> = lab.paths().take(used).collect();
        let tops = vec![VdevSpec::new(Redundancy::RaidZ(parity), paths)];
        let layout = Layout { tops, ..Layout::default() };
        let engine = lab.create_layout(&layout, 12, Logs::On).unwrap();
        tune("raidz_expand_max_copy_bytes", SMALL);
        let (begin, done, all) = work(&lab, &engine, &journal, used);
        engine.export(false).unwrap();
        drop((engine, lab));
        tune("raidz_expand_max_copy_bytes", LARGE);
        recover(&images(&all_disks), &all, usize::MAX - 1, true).unwrap();
        let mut replay = Replay::new(first, &journal);
        let points = if long() { 20 * CRASHES } else { CRASHES };
        let step = ((done - begin) / points).max(1);
        let mut left_at: Vec<Left> = Vec::new();
        for (count, at) in (begin..=done).step_by(step).enumerate() {
            replay.advance(at);
            let left = match count % 3 {
                0 => replay.killed(),
                seed => replay.crash((at as u64) << 8 | seed as u64),
            };
            let judged = long() || count % 6 == 0;
            let whole = match count % 2 {
                0 => {
                    look_half_way(&left, &all, at).and_then(|half| recover(&half, &all, at, judged))
                }
                _ => recover(&left, &all, at, judged),
            };
            match whole {
                Ok(progress) => left_at.push(progress),
                Err(why) => {
                    panic!("raidz{parity}, after {at} of {begin}..{done}: {why}; {}", keep(&left))
                }
            }
        }
        let written = all.len() - BEFORE;
        let mut places = left_at.clone();
        places.sort_unstable();
        places.dedup();
        println!(
            "raidz{parity}: {} operations, {written} files beside it, {places:?}",
            done - begin
        );
        // Crashes were in the midst of it, while something was written.
        let midst = places.iter().filter(|(_, at)| *at > 0).count();
        assert!(midst >= 4 && written >= 20, "{midst} {written}");
    }
}
