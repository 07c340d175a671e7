//! Faults planted in a pool that is written to. Each is found before an uberblock leads to it: the pool is suspended,
//! the message names the thing, those that wait get an error, and on disk is the last good state.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dmu::live::Cost;
use cenote_dmu::write::WriteError;
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
fn judge(rig: &Rig, (engine, head): (Arc<Engine>, u64), last: u64, written: bool) -> String {
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
    rig::check(&fs, 0..if written { 5 } else { 3 }, LEN);
    drop(fs);
    engine.export(false).unwrap();
    rig.judge();
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
