//! Logs that OpenZFS left in the sample pools: finished ones, and one that a crash left, claimed as an
//! import of OpenZFS claims it.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::super::error::EngineError;
use super::super::{Engine, EngineOptions};
use super::*;
use cenote_dsl::write::destroy;
use cenote_dsl::zil::End;
use cenote_format::dmu::DmuType;
use cenote_inspect::traverse::{Options, Subject, Verify, run};
use cenote_pool::config_write::PoolConfig;
use cenote_pool::devices::DeviceSet;
use cenote_pool::metaslab::PoolSpace;
use cenote_pool::{Candidate, ImportOptions, Origin, Pool, discover, import};
use cenote_testpools::TempPool;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

/// `ZIL_REPLAY_NEEDED` and `ZIL_CLAIM_LR_SEQ_VALID`.
const CLAIMED: u64 = 1 | 2;

fn options() -> ImportOptions {
    ImportOptions { force: true, ..ImportOptions::default() }
}

fn candidate(temp: &TempPool) -> Candidate {
    discover(std::slice::from_ref(&temp.pool.dir)).remove(0)
}

fn import_for_writing(temp: &TempPool) -> Arc<Engine> {
    Engine::import(&candidate(temp), &options(), EngineOptions::default()).unwrap()
}

fn import_for_reading(temp: &TempPool) -> Arc<Pool> {
    let options = ImportOptions { readonly: true, ..options() };
    Pool::import(&candidate(temp), &options).unwrap()
}

/// The space maps have exactly the blocks that a walk finds. Not all sample pools can be judged by the `zdb` that is
/// installed: some have features of a later OpenZFS.
fn traverse(temp: &TempPool) {
    let pool = import_for_reading(temp);
    let space = PoolSpace::load(pool.mos(), pool.config()).unwrap();
    let subject =
        Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() };
    let options = Options { verify: Verify::Metadata, leaks: true, workers: 2 };
    let report = run(&subject, &space, &options, &|_| {}, &|| false).unwrap();
    assert!(report.is_clean(), "{}: {:?}", pool.name(), report.leaks);
    assert_eq!(report.found(), report.allocated, "{}", pool.name());
}

/// The heads with a log, and the header.
fn logs(pool: &Pool) -> Vec<(String, u64, ZilHeader)> {
    let dsl = pool.dsl();
    let (mut waiting, mut found) = (vec![dsl.root().unwrap()], Vec::new());
    while let Some(dataset) = waiting.pop() {
        let zil = dsl.open_objset(&dataset).unwrap().phys().zil;
        if !zil.log.is_hole() {
            found.push((dataset.name.clone(), dataset.ds_obj, zil));
        }
        waiting.extend(dsl.children(&dataset).unwrap());
    }
    found
}

/// Claims a block in the space maps; not what is claimed already.
fn claim(context: &SyncContext<'_>, bp: &BlockPointer) {
    for dva in bp.dvas() {
        let (allocator, vdev) = (context.allocator(), u64::from(dva.vdev));
        let group = allocator.groups().find(|g| g.vdev() == vdev).unwrap();
        let extents = group.metaslabs().iter().map(|m| m.extent());
        let inside =
            |e: &cenote_store::alloc::Extent| (e.start..e.start + e.size).contains(&dva.offset);
        let metaslab = extents.into_iter().position(|e| inside(&e)).unwrap() as u64;
        let range = (dva.offset, dva.offset + dva.asize);
        allocator.claim(context.tx.txg, vdev, metaslab, [range].into_iter()).unwrap();
    }
}

/// Claims all that is younger than `last` of a log; the header that says so.
fn claim_log(context: &mut SyncContext<'_>, mut header: ZilHeader, last: u64) -> ZilHeader {
    let (store, mut data) = (context.tx.mos.synced().store().clone(), 0);
    let mut cloned = Vec::new();
    let (mut block, mut record) = (0, 0);
    zil::walk(&store, &header, &mut |item| {
        let bp = match item {
            Item::Block(bp) => {
                block = bp.checksum()[3];
                Some(*bp)
            }
            Item::Record(found) => {
                record = found.seq;
                cloned.extend(found.cloned_blocks());
                found.write_block().inspect(|_| data += 1)
            }
        };
        if let Some(bp) = bp.filter(|bp| bp.logical_birth() > last) {
            claim(context, &bp);
        }
        true
    });
    references::add(&mut context.tx, &cloned).unwrap();
    header.claim_txg = last + 1;
    (header.claim_blk_seq, header.claim_lr_seq, header.flags) = (block, record, CLAIMED);
    header
}

/// Imports `zilmain`, which has logs to be claimed, and claims them.
fn claim_all(temp: &TempPool) -> Vec<(String, u64, ZilHeader)> {
    let candidate = candidate(temp);
    let devices = Arc::new(DeviceSet::new(&candidate, true));
    let imported = import::import(&candidate, &devices, &options()).unwrap();
    let pool = Pool::around(Origin::of(&candidate, &options()), imported, devices);
    let (last, found) = (pool.uberblock().txg, logs(&pool));
    let config = PoolConfig::from_mos(pool.config());
    let options = EngineOptions::default();
    let (core, disk) = Engine::read(&pool, config, &options).unwrap();
    let engine = Engine::assemble(pool, core, last, options, disk).unwrap();
    let heads = found.clone();
    let claimed = move |context: &mut SyncContext<'_>| {
        let headers: Vec<_> = heads.iter().map(|(_, _, h)| claim_log(context, *h, last)).collect();
        for ((_, ds_obj, _), header) in heads.iter().zip(headers) {
            context.set_intent_log(*ds_obj, header)?;
        }
        Ok(())
    };
    engine.shared.queue.begin_with(&engine.shared.tx_state, claimed).unwrap();
    engine.export(false).unwrap();
    found
}

#[test]
fn blocks_of_a_group_that_was_never_on_disk_are_not_freed() {
    let temp = cenote_testpools::copy("clones");
    let pool = import_for_reading(&temp);
    let found = logs(&pool);
    assert_eq!(found.len(), 3);
    for (_, _, header) in found {
        let birth = header.log.logical_birth();
        assert!(birth <= pool.uberblock().txg);
        let freed = |last| allocated(pool.store(), &header, last, &Kept::nothing());
        assert!(freed(birth).first() == Some(&header.log));
        assert!(freed(birth - 1).is_empty() && freed(0).is_empty());
    }
}

#[test]
fn finished_logs_go_at_import_and_are_in_no_snapshot() {
    for (name, volume) in [("clones", "clones/svol"), ("compat21", "compat21/vol")] {
        let temp = cenote_testpools::copy(name);
        let engine = import_for_writing(&temp);
        assert!(logs(&engine.pool()).is_empty());
        // A log that ends is no damage.
        assert_eq!(engine.pool().store().errors(), []);
        let leaves = engine.pool().store().vdevs().leaves();
        assert!(leaves.iter().all(|leaf| leaf.errors() == (0, 0, 0)));
        // A clone would have the log of the head, and free it as well.
        let head = engine.pool().dsl().find(volume).unwrap().unwrap().ds_obj;
        let snapshot = move |context: &mut SyncContext<'_>| {
            cenote_dsl::write::snapshot::snapshot(&mut context.tx, head, "now")
        };
        engine.sync_task(snapshot).unwrap();
        let pool = engine.pool();
        let snapshot = pool.dsl().find(&format!("{volume}@now")).unwrap().unwrap();
        assert!(pool.dsl().open_objset(&snapshot).unwrap().phys().zil.log.is_hole());
        engine.export(false).unwrap();
        traverse(&temp);
        if name == "compat21" {
            cenote_testpools::judge(&temp.pool.dir, name);
        }
    }
}

#[test]
fn a_claimed_log_goes_with_its_dataset() {
    let temp = cenote_testpools::copy("zilmain");
    let found = claim_all(&temp);
    traverse(&temp);
    let engine = import_for_writing(&temp);
    assert_eq!(logs(&engine.pool()).len(), found.len());
    let mut data = 0;
    for (name, ds_obj, _) in found.iter().filter(|(name, ..)| name.contains('/')) {
        assert!(matches!(engine.live(*ds_obj), Err(EngineError::Unsupported(_))), "{name}");
        let ds_obj = *ds_obj;
        let blocks = engine
            .sync_task(move |context| {
                context.check_intent_log(ds_obj)?;
                context.retire(ds_obj)?;
                let before = context.tx.frees.len();
                context.destroy_intent_log(ds_obj, 0)?;
                let freed = context.tx.frees.split_at(before).1.iter();
                let blocks = freed.filter(|bp| bp.object_type() != DmuType::INTENT_LOG.0).count();
                destroy::destroy_head(&mut context.tx, ds_obj)?;
                Ok(blocks)
            })
            .unwrap();
        data += blocks;
    }
    assert!(data > 0);
    engine.export(false).unwrap();
    traverse(&temp);
}

/// Overwrites the first block of a log.
fn damage(temp: &TempPool, header: &ZilHeader) {
    let file = OpenOptions::new().write(true).open(&temp.pool.files[0]).unwrap();
    for dva in header.log.dvas() {
        file.write_all_at(&[0xa5; 512], dva.offset + cenote_format::LABEL_START).unwrap();
    }
}

#[test]
fn a_dataset_whose_claimed_log_cannot_be_read_is_written_to_when_the_log_is_cleared() {
    let temp = cenote_testpools::copy("zilmain");
    let found = claim_all(&temp);
    found.iter().for_each(|(_, _, header)| damage(&temp, header));
    let engine = import_for_writing(&temp);
    for (name, ds_obj, _) in found {
        let Err(EngineError::Unsupported(why)) = engine.live(ds_obj) else {
            panic!("{name} can be written to");
        };
        assert!(why.contains(&name) && why.contains("log that cannot be read"), "{why}");
        let snapshot = move |context: &mut SyncContext<'_>| {
            cenote_dsl::write::snapshot::snapshot(&mut context.tx, ds_obj, "now")
        };
        // A snapshot is of the state before the log.
        engine.sync_task(snapshot).unwrap();
        engine.clear_intent_log(ds_obj).unwrap();
        engine.live(ds_obj).unwrap();
        // It is open, and has no log that could be given up.
        engine.clear_intent_log(ds_obj).unwrap();
    }
    assert!(logs(&engine.pool()).is_empty());
    engine.export(false).unwrap();
}

/// Logs that were replayed go, though the head of one among them cannot be read.
#[test]
fn one_head_keeps_no_other_log() {
    /// There is no such object.
    const BAD: u64 = 1 << 40;
    let temp = cenote_testpools::copy("zilmain");
    let engine = import_for_writing(&temp);
    let waiting = engine.waiting_logs();
    let all = logs(&engine.pool()).len();
    assert!(waiting.len() > 2 && waiting.len() == all);
    let batch = [waiting[0], BAD, waiting[1]];
    let stay = engine.destroy_replayed(&batch, &Arc::default()).unwrap();
    assert_eq!(stay.keys().collect::<Vec<_>>(), [&BAD]);
    assert!(!stay[&BAD].is_empty());
    assert_eq!(engine.waiting_logs(), waiting[2..]);
    assert_eq!(logs(&engine.pool()).len(), all - 2);
    engine.export(false).unwrap();
    traverse(&temp);
}

#[test]
fn a_device_that_fails_is_no_end_of_a_log_and_wrong_bytes_are() {
    let temp = cenote_testpools::copy("zilmain");
    let pool = import_for_reading(&temp);
    let found = logs(&pool);
    let file = OpenOptions::new().write(true).open(&temp.pool.files[0]).unwrap();
    let size = file.metadata().unwrap().len();
    for (name, _, header) in &found {
        let end = || zil::walk(pool.store(), header, &mut |_| true);
        assert_eq!(header.claim_txg, 0);
        let at = header.log.dvas().map(|dva| dva.offset + cenote_format::LABEL_START).min();
        // What is past the end of a device cannot be read.
        file.set_len(at.unwrap()).unwrap();
        assert!(matches!(end(), End::Failed(_)), "{name}");
        // It comes back as zeros.
        file.set_len(size).unwrap();
        assert!(matches!(end(), End::Unreadable), "{name}");
    }
    assert!(!found.is_empty());
}
