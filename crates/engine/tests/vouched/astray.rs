//! Walks that meet blocks which satisfy their pointers and lead elsewhere: blocks of dnodes that leave objects out, and devices that may have the
//! right ones and fail some reads.

use super::doubted::{RECORD, Spoilt, changed, fill_small, forged, is_over, on_device};
use super::*;
use rig::joining::replace;

type Blocks = Vec<(BlockPointer, Bookmark)>;

/// Bytes of a dnode, and of what leads from it to other blocks.
const DNODE: usize = 512;
const DNODE_HEAD: usize = 320;

/// The bytes of a block of dnodes that differ from the right ones in that one object is not there, and in bonus buffers, and satisfy its pointer;
/// and which object that is, counted from the first one of the block.
fn without_object(bp: &BlockPointer, right: &[u8]) -> Option<(usize, Vec<u8>)> {
    let file = DmuType::PLAIN_FILE_CONTENTS.0;
    let of_type = |slot: usize| right.get(slot * DNODE).copied();
    // All sums of fletcher4 stay as they are.
    let by = [1, -4, 6, -4, 1].map(|times| times * -i128::from(file));
    let found = (0..right.len() / DNODE).filter(|slot| of_type(*slot) == Some(file));
    let mut tried = found.flat_map(|slot| (1..DNODE / 4).map(move |step| (slot, step)));
    tried.find_map(|(slot, step)| {
        let is_hidden = |i: usize| {
            let at = slot * DNODE + 4 * step * i;
            at % DNODE >= DNODE_HEAD && of_type(at / DNODE) == Some(file)
        };
        let wrong = changed(right, (slot * DNODE, step), &by).filter(|_| (1..5).all(is_hidden))?;
        let salt = Salt::new([0; 32]);
        assert!(verify::matches(bp, &Abd::from_vec(wrong.clone()), &salt).unwrap());
        assert_eq!(wrong[slot * DNODE], 0);
        Some((slot, wrong))
    })
}

/// A pool in which blocks of dnodes on `a` leave files out; those files' blocks.
fn led_astray(devices: &Faulty) -> (Rig, Arc<Engine>, Vec<BlockPointer>, Blocks) {
    let rig = Rig::new(SIZE);
    let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), devices);
    fill_small(&engine);
    engine.sync().unwrap();
    // The blocks of dnodes are younger than what is below them.
    fill(&live(&engine), 900..901, 10);
    engine.sync().unwrap();
    let pool = engine.pool();
    let all = blocks(&pool, &|bp, at| at.objset != 0 && bp.uses_crypt());
    let tree = pool.store().vdevs().clone();
    let (mut wrong, mut hidden) = (Vec::new(), HashSet::new());
    for (bp, at) in &all {
        if bp.object_type() != DmuType::DNODE.0 || bp.level() > 0 {
            continue;
        }
        let right = pool.store().read_many_raw(&[(*bp, *at)]).remove(0).unwrap().bytes().to_vec();
        let Some((slot, now)) = without_object(bp, &right) else { continue };
        Spoilt::default().write((&rig, &["a"]), &tree, bp, (&right, &now));
        hidden.insert((at.objset, at.blkid * (right.len() / DNODE) as u64 + slot as u64));
        wrong.push(*bp);
    }
    let youngest = wrong.iter().map(BlockPointer::birth).min().unwrap();
    let mut below = all;
    below.retain(|(_, at)| hidden.contains(&(at.objset, at.object)));
    below.retain(|(bp, _)| bp.birth() < youngest);
    assert!(below.len() > 10, "{} blocks are hidden", below.len());
    pool.store().drop_caches();
    (rig, engine, wrong, below)
}

/// What is below the right block of dnodes was given to `x`, and `b` may go.
fn all_given(rig: &Rig, engine: &Arc<Engine>, below: &[(BlockPointer, Bookmark)]) {
    let tree = engine.pool().store().vdevs().clone();
    let leaves = tree.leaves();
    assert!(leaves.len() == 2 && leaves.iter().all(|leaf| !leaf.is_behind()));
    for (bp, at) in below {
        let given = on_device(rig, &tree, bp, ("x", 0));
        assert!(given == on_device(rig, &tree, bp, ("b", 0)), "{at} {bp:?}");
    }
}

fn whole(rig: &Rig, engine: Arc<Engine>, devices: Faulty) {
    assert_eq!(scrubbed(&engine).errors, 0);
    read_all(&engine);
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
}

/// A block of dnodes has no right MAC on one side, and the other one cannot be read: what is below the right one stays noted as lacking.
#[test]
fn a_device_stays_that_may_have_the_right_dnodes() {
    let devices = Faulty::default();
    let (rig, engine, wrong, below) = led_astray(&devices);
    let device = devices.device(&rig, "b");
    for dva in wrong.iter().flat_map(BlockPointer::dvas) {
        let at = START + dva.offset;
        device.fail_reads(at..at + dva.asize, u64::MAX);
    }
    replace(&rig, &engine, "b", "x").unwrap();
    is_over(&engine);
    let leaves = engine.pool().store().vdevs().leaves();
    assert_eq!(leaves.len(), 3, "the device left that has the right blocks");
    let new = leaves.iter().find(|leaf| leaf.is_behind()).unwrap();
    let lacks = |bp: &BlockPointer| new.missing().iter().any(|r| r.contains(&bp.physical_birth()));
    assert!(below.iter().all(|(bp, _)| lacks(bp)), "{:?}", new.missing());
    assert!(engine.pool().status().unwrap().scan.unwrap().errors > 0);
    drop(leaves);
    device.repair();
    engine.pool().store().drop_caches();
    engine.assess_resilver().unwrap();
    is_over(&engine);
    all_given(&rig, &engine, &below);
    drop(device);
    whole(&rig, engine, devices);
}

/// Where one side has the block of dnodes with the right MAC a resilver goes by that.
#[test]
fn a_resilver_walks_by_dnodes_with_the_right_mac() {
    let devices = Faulty::default();
    let (rig, engine, _, below) = led_astray(&devices);
    replace(&rig, &engine, "b", "x").unwrap();
    is_over(&engine);
    all_given(&rig, &engine, &below);
    whole(&rig, engine, devices);
}

/// A device that has the right block fails some reads: whichever they are, what another one has is not all that there is.
#[test]
fn a_device_that_fails_some_reads_may_have_the_right_block() {
    let (rig, devices) = (Rig::new(SIZE), Faulty::default());
    let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), &devices);
    fill_small(&engine);
    engine.sync().unwrap();
    let pool = engine.pool();
    let (tree, device) = (pool.store().vdevs().clone(), devices.device(&rig, "b"));
    let indirect = blocks(&pool, &|bp, at| at.objset != 0 && bp.uses_crypt() && bp.level() > 0);
    let forge = |(bp, at): &(BlockPointer, Bookmark)| {
        let right = pool.store().read_many_raw(&[(*bp, *at)]).remove(0).unwrap().bytes().to_vec();
        let now = forged(bp, &right)?;
        Some((*bp, *at, right, now))
    };
    let spoilt: Vec<_> = indirect.iter().filter_map(forge).take(2).collect();
    assert_eq!(spoilt.len(), 2);
    for (bp, at, right, now) in &spoilt {
        Spoilt::default().write((&rig, &["a"]), &tree, bp, (right, now));
        for count in 0..5 {
            for dva in bp.dvas() {
                let from = START + dva.offset;
                device.fail_reads(from..from + bp.psize(), count);
            }
            let stays = pool.store().stays_doubted(bp, *at);
            device.repair();
            assert!(!stays, "{count} reads of the right block fail");
        }
        Spoilt::default().write((&rig, &["b"]), &tree, bp, (right, now));
        assert!(pool.store().stays_doubted(bp, *at));
        let from = START + bp.dva(0).unwrap().offset;
        device.fail_reads(from..from + bp.psize(), 2);
        assert!(!pool.store().stays_doubted(bp, *at));
        device.repair();
        Spoilt::default().write((&rig, &["a", "b"]), &tree, bp, (now, right));
    }
    drop((pool, tree, device));
    whole(&rig, engine, devices);
}

/// A scrub that is given up, while it asks whether blocks that it followed stay as they are, asks no further.
#[test]
fn an_order_ends_what_is_asked_of_doubted_blocks() {
    let (rig, devices) = (Rig::new(SIZE), Faulty::default());
    let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), &devices);
    fill_small(&engine);
    let secret = engine.pool().dsl().find(SECRET).unwrap().unwrap();
    let settings = Settings { record_size: RECORD, ..Settings::default() };
    let many = engine.live(secret.ds_obj).unwrap();
    fill(&FileSystem::open_live(many, settings).unwrap(), 100..250, 3 * RECORD as usize);
    engine.sync().unwrap();
    let pool = engine.pool();
    let (tree, mut spoilt, mut count) = (pool.store().vdevs().clone(), Vec::new(), 0);
    for (bp, at) in blocks(&pool, &|bp, at| at.objset != 0 && bp.uses_crypt() && bp.level() > 0) {
        let right = pool.store().read_many_raw(&[(bp, at)]).remove(0).unwrap().bytes().to_vec();
        let Some(now) = forged(&bp, &right) else { continue };
        Spoilt::default().write((&rig, &["a", "b"]), &tree, &bp, (&right, &now));
        spoilt.push((bp, right, now));
        count += 1;
    }
    assert!(count > 100, "{count}");
    pool.store().drop_caches();
    let (device, within) = (devices.device(&rig, "a"), engine.clone());
    let (told, before) = std::sync::mpsc::channel();
    engine.stop_at(Moment::RoundDoubts, move || {
        within.stop_scrub().unwrap();
        told.send(device.reads()).unwrap();
    });
    engine.scrub().unwrap();
    rig::removing::until("the scrub ends", || !engine.is_scanning());
    let reads = || devices.device(&rig, "a").reads();
    rig::removing::until("the thread rests", || {
        let then = reads();
        std::thread::sleep(Duration::from_millis(200));
        reads() == then
    });
    let more = reads() - before.try_recv().unwrap();
    assert!(more < count / 2, "{more} reads after the order, of {count} blocks");
    for (bp, right, now) in &spoilt {
        Spoilt::default().write((&rig, &["a", "b"]), &tree, bp, (now, right));
    }
    pool.store().drop_caches();
    drop((pool, tree));
    whole(&rig, engine, devices);
}
