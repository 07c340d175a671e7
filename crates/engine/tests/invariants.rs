//! Faults planted in a pool that is written to. Each is found before an uberblock leads to it: the pool is suspended,
//! the message names the thing, those that wait get an error, and on disk is the last good state.
//!
//! | subsystem | fault | test |
//! |---|---|---|
//! | space | a free twice | `a_block_that_is_freed_twice` |
//! | | a free of what was never allocated | `a_free_of_what_was_never_allocated` |
//! | space maps | a metaslab flushed twice | `a_metaslab_that_is_flushed_twice` |
//! | accounting | a sum that is off by some bytes | `a_sum_of_what_is_used_that_is_off` |
//! | | blocks killed once more than they were born | `blocks_that_a_dataset_kills_twice` |
//! | | a block of another group | `a_block_that_was_born_in_another_group` |
//! | scan | groups that are not written yet | `a_scan_of_groups_to_come` |
//! | removal | a piece that is mapped twice | `a_piece_that_is_mapped_twice` |
//! | checkpoint | a space map that goes twice | `a_space_map_of_a_checkpoint_that_goes_twice` |
//! | | an update that is lost | `kept_space_that_is_in_no_space_map` |
//! | deduplication | a group that begins twice | `deduplication_tables_that_begin_a_group_twice` |
//! | | a count of references below zero | `a_count_of_references_below_zero` |
//! | | a reference that no pointer has | `a_reference_that_no_pointer_has` |
//! | | an entry that is lost from a log | `an_entry_that_is_lost_from_a_log` |
//! | devices | a leaf that the tree has and the config has not | `a_leaf_that_is_another_one_in_the_config` |
//! | object sets | a change of which half is noted | `a_change_of_which_half_is_noted` |
//! | | a change that does not end | `a_change_that_does_not_end` |
//! | file systems | a stale entry of an orphan | `a_new_file_with_the_number_of_an_orphan` |
//! | | a file freed that has names | `a_file_that_is_freed_and_has_names` |
//! | | an entry that is not counted | `an_entry_of_a_directory_that_is_not_counted` |
//! | | a count of links off by one | `a_file_that_loses_a_link_and_keeps_its_name` |
//! | the group | a number that is wrong | `an_invariant_that_breaks_in_a_group` |
//! | threads | an alarm while a group is written | `an_alarm_of_another_thread_while_a_group_is_written` |
//! | | an alarm between groups | `an_alarm_while_nothing_is_written_suspends_at_once` |
//!
//! What is found within one structure is tested beside it (`planted.rs`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dmu::live::Cost;
use cenote_dmu::write::WriteError;
use cenote_engine::planted::Fault;
use cenote_engine::{Engine, EngineError, SyncContext};
use cenote_format::blkptr::Dva;
use cenote_format::invariant;
use cenote_format::invariant::is_broken;
use cenote_pool::metaslab::PoolSpace;
use rig::Rig;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// What the files of the last good state have.
const LEN: usize = 10_000;

/// A pool with three files on disk, and two that are about to be written.
fn pool(rig: &Rig) -> (Arc<Engine>, u64) {
    let engine = rig.create_cut("a", 12, 20);
    let fs = rig::open(&engine);
    rig::fill(&fs, 0..3, LEN);
    engine.sync().unwrap();
    let head = engine.pool().dsl().root().unwrap().ds_obj;
    rig::fill(&fs, 3..5, LEN);
    (engine, head)
}

/// The pool is suspended, and says so to every caller; what is on disk is the last good state. The two files that were
/// about to be written are there only if a later group than `pool`'s took them along (`written`).
fn judge(rig: &Rig, pool: (Arc<Engine>, u64), last: u64, written: bool) -> String {
    judge_with(rig, pool, last, (written, if written { 5 } else { 3 }))
}

/// The same, of so many files that are on disk.
fn judge_with(
    rig: &Rig,
    pool: (Arc<Engine>, u64),
    last: u64,
    (written, files): (bool, u64),
) -> String {
    let why = judge_blocks_with(rig, pool, last, (written, files));
    rig.judge();
    why
}

/// The same; of objects OpenZFS is not asked, which may be of kinds that it does not know.
fn judge_blocks_with(
    rig: &Rig,
    (engine, head): (Arc<Engine>, u64),
    last: u64,
    (written, files): (bool, u64),
) -> String {
    let why = engine.suspended().expect("the pool goes on");
    assert!(matches!(engine.sync(), Err(EngineError::Suspended(_))));
    assert!(engine.sync_task(|_| Ok(())).is_err());
    let live = engine.live(head).unwrap();
    let cost = Cost { write: 1, ..Cost::default() };
    let change: Result<(), WriteError> = live.transact(cost, |_, _| Ok(()));
    assert!(matches!(change, Err(WriteError::Suspended(_))), "{change:?}");
    assert_eq!(engine.commit(head).is_ok(), written, "stable is what is on disk");
    assert!(matches!(engine.export(false), Err(EngineError::Suspended(_))));
    assert_eq!(engine.pool().uberblock().txg, last);
    drop((live, engine));
    rig.judge_blocks();
    let engine = rig.import();
    assert!(engine.pool().uberblock().txg >= last);
    let fs = rig::open(&engine);
    rig::check(&fs, 0..files, LEN);
    drop(fs);
    engine.export(false).unwrap();
    rig.judge_blocks();
    why
}

/// Plants a fault in the group that is being written. Returns why the pool is suspended.
fn planted(plant: impl FnOnce(&mut SyncContext<'_>) + Send + 'static) -> String {
    let rig = Rig::new(64 << 20);
    let (engine, head) = pool(&rig);
    let last = engine.pool().uberblock().txg;
    let done = engine.sync_task(move |ctx| {
        plant(ctx);
        Ok(())
    });
    assert!(matches!(done, Err(EngineError::Suspended(_))), "{done:?}");
    judge(&rig, (engine, head), last, false)
}

#[test]
fn a_block_that_is_freed_twice() {
    let why = planted(|ctx| {
        // The root block of the file system is freed by this group already.
        let freed = ctx.tx.frees.iter().find(|bp| !bp.is_hole()).copied().unwrap();
        ctx.tx.frees.push(freed);
    });
    assert!(why.contains("vdev 0 metaslab") && why.contains("is freed in group"), "{why}");
}

#[test]
fn a_free_of_what_was_never_allocated() {
    let said = Arc::new(std::sync::Mutex::new(String::new()));
    let says = said.clone();
    let why = planted(move |ctx| {
        let group = ctx.allocator().group(0).unwrap();
        let unloaded = group.metaslabs().iter().filter(|m| !m.is_loaded()).last().unwrap();
        let (id, offset) = (unloaded.id(), unloaded.extent().start);
        let dva = Dva { vdev: 0, offset, asize: 4096, gang: false };
        ctx.allocator().free(ctx.tx.txg, &dva).unwrap();
        let range = format!("vdev 0 metaslab {id}: {offset:#x}-{:#x} was freed", offset + 4096);
        *says.lock().unwrap() = range;
        // As who allocates there would have it loaded.
        assert!(!ctx.allocator().load(0, id));
    });
    let range = said.lock().unwrap().clone();
    assert!(why.contains(&range) && why.contains("and was free already"), "{why}");
}

#[test]
fn a_sum_of_what_is_used_that_is_off() {
    /// Where `dd_used_bytes` is.
    const USED: usize = 40;
    let why = planted(|ctx| {
        let root = ctx.tx.mos.next_object(2).unwrap();
        let mut number = root.unwrap();
        // The directory of the file system: `head_dataset` of it leads back here.
        let dir = loop {
            let dnode = ctx.tx.mos.dnode(number).unwrap();
            let head =
                dnode.bonus.get(8..16).map(|head| u64::from_le_bytes(head.try_into().unwrap()));
            if dnode.bonus_kind == cenote_format::dmu::DmuType::DSL_DIR && head != Some(0) {
                let used = dnode.bonus[USED..USED + 8].try_into().map(u64::from_le_bytes).unwrap();
                if used > 100_000 {
                    break number;
                }
            }
            number = ctx.tx.mos.next_object(number + 1).unwrap().unwrap();
        };
        let (kind, mut bonus) = {
            let dnode = ctx.tx.mos.dnode(dir).unwrap();
            (dnode.bonus_kind, dnode.bonus.clone())
        };
        bonus[USED] ^= 1 << 4;
        ctx.tx.mos.set_bonus(dir, kind, &bonus).unwrap();
    });
    assert!(is_broken(&why) && why.contains("its directory uses"), "{why}");
}

/// Plants a fault in memory, in the group that is being written. Returns why the pool is suspended.
fn fault(fault: Fault) -> String {
    planted(move |ctx| ctx.plant(fault).unwrap())
}

#[test]
fn a_metaslab_that_is_flushed_twice() {
    let why = fault(Fault::FlushedTwice);
    assert!(is_broken(&why) && why.contains("vdev 0 metaslab 0: flushed twice"), "{why}");
}

#[test]
fn a_scan_of_groups_to_come() {
    let why = fault(Fault::ScanBeyond);
    assert!(is_broken(&why) && why.contains("scan 1 of the groups after 0 up to"), "{why}");
}

#[test]
fn a_piece_that_is_mapped_twice() {
    let why = fault(Fault::MappedTwice);
    assert!(
        is_broken(&why) && why.contains("4096 bytes at 0x1000 are mapped after 0x2000"),
        "{why}"
    );
}

#[test]
fn a_space_map_of_a_checkpoint_that_goes_twice() {
    let why = fault(Fault::NoCheckpointMap);
    assert!(is_broken(&why) && why.contains("vdev 0 had no space map of a checkpoint"), "{why}");
}

#[test]
fn deduplication_tables_that_begin_a_group_twice() {
    let why = fault(Fault::GroupAgain);
    assert!(is_broken(&why) && why.contains("deduplication: group"), "{why}");
}

#[test]
fn a_count_of_references_below_zero() {
    let why = fault(Fault::ReferencesBelowZero);
    assert!(is_broken(&why) && why.contains("freed once more than it was written"), "{why}");
}

#[test]
fn a_reference_that_no_pointer_has() {
    let why = fault(Fault::ReferenceTooMany);
    assert!(
        is_broken(&why) && why.contains("had 0 references, of which 0 went and 1 came"),
        "{why}"
    );
}

/// The table goes on as if there had never been a block.
#[test]
fn an_entry_that_is_lost_from_a_log() {
    let rig = Rig::new(64 << 20);
    let (engine, head) = pool(&rig);
    let list = [("dedup".to_string(), "on".to_string())];
    assert!(rig::changes(&engine).set("tank", &list).unwrap().is_empty());
    let fs = rig::open(&engine);
    rig::fill(&fs, 5..6, LEN);
    engine.sync().unwrap();
    drop(fs);
    let last = engine.pool().uberblock().txg;
    let done = engine.sync_task(|ctx| ctx.plant(Fault::LogEntryLost));
    assert!(matches!(done, Err(EngineError::Suspended(_))), "{done:?}");
    let why = judge_blocks_with(&rig, (engine, head), last, (true, 6));
    assert!(is_broken(&why) && why.contains("the logs of sha256 had"), "{why}");
}

#[test]
fn a_leaf_that_is_another_one_in_the_config() {
    let why = fault(Fault::OtherLeaf);
    assert!(is_broken(&why) && why.contains("a tree of the leaves"), "{why}");
}

/// What a checkpoint keeps is freed, and no space map says so: an update that is lost.
#[test]
fn kept_space_that_is_in_no_space_map() {
    let rig = Rig::new(64 << 20);
    let (engine, head) = pool(&rig);
    engine.checkpoint().unwrap();
    let fs = rig::open(&engine);
    rig::fill(&fs, 5..7, LEN);
    let last = engine.pool().uberblock().txg;
    let done = engine.sync_task(|ctx| ctx.plant(Fault::KeptLost));
    assert!(matches!(done, Err(EngineError::Suspended(_))), "{done:?}");
    drop(fs);
    let why = judge_with(&rig, (engine, head), last, (false, 5));
    assert!(is_broken(&why) && why.contains("kept for the checkpoint"), "{why}");
}

/// Plants a fault in what the second group from now on writes of the file system.
fn in_a_later_group(fault: Fault) -> String {
    let rig = Rig::new(64 << 20);
    let (engine, head) = pool(&rig);
    engine.sync_task(move |ctx| ctx.plant(fault)).unwrap();
    let fs = rig::open(&engine);
    rig::fill(&fs, 5..6, LEN);
    engine.sync().unwrap();
    let last = engine.pool().uberblock().txg;
    rig::fill(&fs, 6..7, LEN);
    assert!(engine.sync().is_err());
    drop(fs);
    judge_with(&rig, (engine, head), last, (false, 6))
}

#[test]
fn blocks_that_a_dataset_kills_twice() {
    let why = in_a_later_group(Fault::KilledTwice);
    assert!(is_broken(&why) && why.contains(": pointers to "), "{why}");
    assert!(why.starts_with("broken invariant") && why.contains("are taken of"), "{why}");
}

#[test]
fn a_block_that_was_born_in_another_group() {
    let why = in_a_later_group(Fault::BornElsewhere);
    assert!(is_broken(&why) && why.contains("not written in group"), "{why}");
}

#[test]
fn a_change_that_does_not_end() {
    let rig = Rig::new(64 << 20);
    let (engine, head) = pool(&rig);
    let last = engine.pool().uberblock().txg;
    let live = engine.live(head).unwrap();
    let cost = Cost { write: 1, ..Cost::default() };
    let change = live.transact(cost, |os, _| {
        os.begin_change();
        Ok::<(), WriteError>(())
    });
    drop(live);
    let synced = engine.sync();
    assert!(change.is_err() || synced.is_err(), "{change:?}, {synced:?}");
    let why = judge(&rig, (engine, head), last, false);
    assert!(is_broken(&why) && why.contains("in the middle of 1 changes"), "{why}");
}

/// A file system in which a fault is planted: the change fails, and nothing of the file system is written any more.
fn in_a_file_system(plant: impl FnOnce(&Engine, &cenote_zpl::FileSystem)) -> String {
    let rig = Rig::new(64 << 20);
    let (engine, head) = pool(&rig);
    let fs = rig::open(&engine);
    rig::fill(&fs, 5..6, LEN);
    engine.sync().unwrap();
    fs.unlink(fs.root(), b"file 5", &|_| false).unwrap();
    fs.finish_freeing();
    engine.sync().unwrap();
    let last = engine.pool().uberblock().txg;
    plant(&engine, &fs);
    drop(fs);
    // All that is not on disk is the change that failed.
    judge_with(&rig, (engine, head), last, (true, 5))
}

#[test]
fn a_new_file_with_the_number_of_an_orphan() {
    let why = in_a_file_system(|_, fs| {
        // Whatever number it gets.
        (0..4096).for_each(|ino| fs.plant_orphan(ino));
        assert!(fs.create(fs.root(), b"new", &rig::NODE).is_err());
    });
    assert!(
        why.contains("broken invariant") && why.contains("and an orphan has that number"),
        "{why}"
    );
}

#[test]
fn a_file_that_is_freed_and_has_names() {
    let why = in_a_file_system(|_, fs| {
        let ino = fs.lookup(fs.root(), b"file 1").unwrap();
        assert!(fs.plant_free(ino).is_err());
    });
    assert!(why.contains("broken invariant") && why.contains("is freed, and has names"), "{why}");
}

#[test]
fn an_entry_of_a_directory_that_is_not_counted() {
    let why = in_a_file_system(|_, fs| {
        let ino = fs.lookup(fs.root(), b"file 1").unwrap();
        assert!(fs.plant_entry(fs.root(), b"another", ino).is_err());
    });
    assert!(why.contains("broken invariant") && why.contains("1 entries more"), "{why}");
}

#[test]
fn a_file_that_loses_a_link_and_keeps_its_name() {
    let why = in_a_file_system(|_, fs| {
        let ino = fs.lookup(fs.root(), b"file 1").unwrap();
        assert!(fs.plant_link(ino).is_err());
    });
    assert!(why.contains("broken invariant") && why.contains("1 names more"), "{why}");
}

#[test]
fn an_invariant_that_breaks_in_a_group() {
    let why = planted(|ctx| {
        let txg = ctx.tx.txg;
        invariant!(txg == 1, "group {txg} is not the first");
    });
    assert!(is_broken(&why) && why.contains("is not the first"), "{why}");
}

#[test]
fn an_alarm_of_another_thread_while_a_group_is_written() {
    let why = planted(|ctx| {
        let alarm = ctx.allocator().alarm().clone();
        let thread = move || alarm.guard("planted", || invariant!(1 + 1 == 3, "two is three"));
        assert_eq!(std::thread::spawn(thread).join().unwrap(), None);
    });
    assert!(why.starts_with("thread planted: ") && why.contains("two is three"), "{why}");
}

#[test]
fn an_alarm_while_nothing_is_written_suspends_at_once() {
    let rig = Rig::new(64 << 20);
    let (engine, head) = pool(&rig);
    let last = engine.pool().uberblock().txg;
    let store = engine.pool().mos().store().clone();
    assert_eq!(store.alarm().guard("planted", || invariant!(1 + 1 == 3, "two is three")), None);
    drop(store);
    let why = judge(&rig, (engine, head), last, false);
    assert!(why.starts_with("thread planted: ") && why.contains("two is three"), "{why}");
}

/// What is kept beside an object set is part of a change.
#[test]
fn a_change_of_which_half_is_noted() {
    let rig = Rig::new(64 << 20);
    let (engine, head) = pool(&rig);
    let last = engine.pool().uberblock().txg;
    let live = engine.live(head).unwrap();
    let cost = Cost { write: 1, ..Cost::default() };
    let change = live.transact_then(
        cost,
        |os, _| {
            os.set_flags(os.flags());
            Ok::<(), WriteError>(())
        },
        |()| invariant!(head == 0, "dataset {head} is not noted"),
    );
    assert!(matches!(change, Err(WriteError::Suspended(_))), "{change:?}");
    drop(live);
    let why = judge(&rig, (engine, head), last, false);
    assert!(why.contains(&format!("dataset {head} is not noted")), "{why}");
}

/// Those that wait in other threads are told, and do not hang.
#[test]
fn those_that_wait_are_told() {
    let rig = Rig::new(64 << 20);
    let (engine, head) = pool(&rig);
    let last = engine.pool().uberblock().txg;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope
                .spawn(|| assert!(engine.sync_task(|_| Ok(())).is_err() || engine.sync().is_err()));
            scope.spawn(|| drop(engine.sync()));
        }
        let broken = engine.sync_task(|ctx| {
            let txg = ctx.tx.txg;
            invariant!(txg == 1, "group {txg} is not the first");
            Ok(())
        });
        assert!(broken.is_err());
    });
    let now = engine.pool().uberblock().txg;
    assert!(now >= last);
    judge(&rig, (engine, head), now, now > last);
}

/// The header of a space map on disk counts less than is freed there. The map itself tells what is right: that is no
/// reason to suspend the pool. The header stays wrong, so OpenZFS is not asked.
#[test]
fn a_header_that_counts_too_little_suspends_nothing() {
    /// Where `smp_alloc` is.
    const ALLOC: std::ops::Range<usize> = 16..24;
    let rig = Rig::new(64 << 20);
    let engine = rig.create_cut("a", 12, 20);
    rig::fill(&rig::open(&engine), 0..400, LEN);
    engine.export(false).unwrap();
    drop(engine);
    let engine = rig.import();
    let space = PoolSpace::load(engine.pool().mos(), engine.pool().config()).unwrap();
    let (found, note) = channel();
    let done = engine.sync_task(move |ctx| {
        let (vdev, group) = (&space.vdevs[0], ctx.allocator().group(0).unwrap());
        let loaded = |id: u64| group.metaslabs().get(id as usize).unwrap().is_loaded();
        let unloaded = vdev.metaslabs.iter().filter(|m| !loaded(m.id));
        let chosen = unloaded.max_by_key(|m| vdev.alloc_of(m)).unwrap();
        assert!(vdev.alloc_of(chosen) > 256 << 10);
        let dnode = ctx.tx.mos.dnode(chosen.space_map).unwrap();
        let (kind, mut bonus) = (dnode.bonus_kind, dnode.bonus.clone());
        let less = chosen.flushed_alloc() - vdev.alloc_of(chosen) as i64 + 4096;
        bonus[ALLOC].copy_from_slice(&less.to_le_bytes());
        ctx.tx.mos.set_bonus(chosen.space_map, kind, &bonus).unwrap();
        found.send(chosen.id).unwrap();
        Ok(())
    });
    done.unwrap();
    let id = note.recv().unwrap();
    drop(engine);
    // The second time the header counts less than nothing.
    for (gone, left) in [(100..400, 100..110), (50..110, 50..60)] {
        let engine = rig.import();
        let fs = rig::open(&engine);
        for n in gone.clone() {
            fs.unlink(fs.root(), format!("file {n}").as_bytes(), &|_| false).unwrap();
        }
        (0..6).for_each(|_| engine.sync().unwrap());
        rig::fill(&fs, left.clone(), LEN);
        engine.sync().unwrap();
        assert_eq!(engine.suspended(), None);
        rig::check(&fs, 0..left.end, LEN);
        let off = engine.sync_task(move |ctx| {
            let group = ctx.allocator().group(0).unwrap();
            assert!(group.metaslabs().get(id as usize).unwrap().on_disk().off > 4096);
            Ok(())
        });
        off.unwrap();
        drop(fs);
    }
}
