use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

fn state(synced: u64, limit: Option<u64>) -> Arc<TxState> {
    let txgs = TxState::new(synced, limit, Timer::default());
    txgs.begin();
    txgs
}

#[test]
fn nothing_is_written_before_groups_begin() {
    let txgs = TxState::new(9, Some(1 << 20), Timer::default());
    txgs.note();
    assert!(txgs.not_begun().is_some());
    let other = txgs.clone();
    let now = Some(Duration::ZERO);
    let turn = std::thread::spawn(move || other.next_work(&|| Duration::ZERO, now));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!turn.is_finished());
    txgs.begin();
    assert_eq!((turn.join().unwrap(), txgs.not_begun()), (Work::Sync, None));
    // An import that fails before that leaves nothing to be written.
    let txgs = TxState::new(9, Some(1 << 20), Timer::default());
    txgs.note();
    txgs.end();
    assert_eq!(txgs.next_work(&|| Duration::ZERO, None), Work::End);
}

#[test]
fn a_change_while_a_group_is_quiesced_is_assigned_to_the_next() {
    let txgs = state(9, Some(1 << 20));
    let first = txgs.assign(1, false).unwrap();
    assert_eq!(first.txg, 10);
    let other = txgs.clone();
    let quiescer = std::thread::spawn(move || other.quiesce(|txg| txg, || ()).0.txg);
    while !txgs.state.lock().quiescing {
        std::thread::yield_now();
    }
    let other = txgs.clone();
    let late = std::thread::spawn(move || other.assign(1, false).unwrap().txg);
    drop(first);
    assert_eq!(quiescer.join().unwrap(), 10);
    assert_eq!(late.join().unwrap(), 11);
    txgs.synced(10);
    assert_eq!((txgs.synced_txg(), txgs.dirty()), (10, 1));
}

#[test]
fn tasks_of_a_group_are_taken_before_the_next_one_has_anything() {
    let txgs = state(9, Some(1 << 20));
    let (entered, other) = (Arc::new(AtomicU64::new(0)), txgs.clone());
    let late = entered.clone();
    let mut writer = None;
    let (.., seen) = txgs.quiesce(
        |_| {
            writer = Some(std::thread::spawn(move || {
                late.store(other.assign(1, false).unwrap().txg, Ordering::SeqCst);
            }));
            std::thread::sleep(Duration::from_millis(20));
        },
        || {
            std::thread::sleep(Duration::from_millis(20));
            entered.load(Ordering::SeqCst)
        },
    );
    writer.unwrap().join().unwrap();
    assert_eq!((seen, entered.load(Ordering::SeqCst)), (0, 11));
}

#[test]
fn nothing_is_delayed_up_to_where_delays_begin() {
    let timer = Timer::simulated();
    let txgs = TxState::new(0, Some(1000), timer.clone());
    txgs.begin();
    for (bytes, delayed) in [(600, false), (300, false), (1, true)] {
        drop(txgs.assign(bytes, false).unwrap());
        assert_eq!(timer.now() > Duration::ZERO, delayed);
    }
}

#[test]
fn at_the_limit_changes_wait_and_ask_for_a_sync() {
    let txgs = state(0, Some(1000));
    drop(txgs.assign(1000, false).unwrap());
    assert_eq!(txgs.next_work(&|| Duration::from_secs(60), None), Work::Sync);
    let other = txgs.clone();
    let waiting = std::thread::spawn(move || other.assign(10, false).unwrap().txg);
    std::thread::sleep(Duration::from_millis(20));
    assert!(!waiting.is_finished());
    let (quiesced, (), ()) = txgs.quiesce(|_| (), || ());
    txgs.synced(quiesced.txg);
    assert_eq!(waiting.join().unwrap(), 2);
}

#[test]
fn a_group_is_quiesced_when_it_has_its_fill() {
    let fill = tunables::DIRTY_DATA_SYNC.default;
    for (limit, fill) in [(fill * 100, fill), (fill, fill / 100 * 20)] {
        let txgs = state(0, Some(limit));
        drop(txgs.assign(fill - 1, false).unwrap());
        assert_eq!(txgs.state.lock().wanted, 0);
        drop(txgs.assign(1, false).unwrap());
        assert_eq!(txgs.next_work(&|| Duration::from_secs(60), None), Work::Sync);
    }
}

#[test]
fn what_was_not_made_dirty_does_not_count() {
    let txgs = state(0, Some(1 << 20));
    let mut hold = txgs.assign(64 << 10, false).unwrap();
    assert_eq!(txgs.dirty(), 64 << 10);
    hold.settle(30_000, 0);
    drop(hold);
    assert_eq!(txgs.dirty(), 30_000);
    // Without an answer the bound counts.
    drop(txgs.assign(5000, false).unwrap());
    assert_eq!(txgs.dirty(), 35_000);
    let mut hold = txgs.assign(64 << 10, false).unwrap();
    hold.settle(0, 0);
    drop(hold);
    assert_eq!(txgs.dirty(), 35_000 + LEAST);
}

#[test]
fn a_few_bytes_count_for_the_block_that_they_make_dirty() {
    let txgs = state(0, Some(1 << 20));
    let write = |made| {
        let mut hold = txgs.assign(LEAST + 20, false).unwrap();
        hold.settle(made, 0);
    };
    write(128 << 10);
    assert_eq!(txgs.dirty(), 128 << 10);
    // More of the same block: it counts once, until what entered is more.
    (0..3).for_each(|_| write(0));
    assert_eq!(txgs.dirty(), 128 << 10);
    (0..40).for_each(|_| write(0));
    assert_eq!(txgs.dirty(), LEAST + 20 + 43 * LEAST);
    // Pointers that are freed count besides.
    let mut hold = txgs.assign(LEAST, true).unwrap();
    hold.settle(0, 10);
    drop(hold);
    assert_eq!(txgs.dirty(), LEAST + 20 + 44 * LEAST + 10 * BLKPTR_SIZE as u64);
}

#[test]
fn nobody_waits_for_an_engine_that_has_ended() {
    let txgs = state(5, Some(1000));
    drop(txgs.assign(1, false).unwrap());
    txgs.end();
    assert!(txgs.assign(1, false).is_err());
    assert_eq!(txgs.next_work(&|| Duration::ZERO, None), Work::Sync);
    let (quiesced, (), ()) = txgs.quiesce(|_| (), || ());
    txgs.synced(quiesced.txg);
    assert_eq!(txgs.next_work(&|| Duration::ZERO, None), Work::End);
    txgs.ended();
    txgs.ask();
    assert!(txgs.wait_synced().is_err() && txgs.wait_for(6).is_ok());
    assert_eq!((txgs.failure(), txgs.closed().as_deref()), (None, Some(EXPORTED)));
}

#[test]
fn a_change_after_a_long_rest_has_its_time() {
    let txgs = state(0, Some(1 << 20));
    let (other, hours) = (txgs.clone(), Arc::new(AtomicU64::new(1)));
    let left = hours.clone();
    let interval = move || Duration::from_secs(3600 * left.load(Ordering::SeqCst));
    let turn = std::thread::spawn(move || other.next_work(&interval, None));
    // The sync thread finds nothing to do and waits for something.
    std::thread::sleep(Duration::from_millis(20));
    drop(txgs.assign(1, false).unwrap());
    std::thread::sleep(Duration::from_millis(20));
    assert!(!turn.is_finished());
    // The time may become shorter while it is waited for.
    hours.store(0, Ordering::SeqCst);
    assert_eq!(turn.join().unwrap(), Work::Sync);
}

#[test]
fn a_failure_reaches_everyone() {
    let txgs = state(0, Some(1000));
    let mut told = 0;
    (0..2).for_each(|_| txgs.fail("device is gone".into(), || told += 1));
    assert_eq!(told, 1);
    assert!(txgs.assign(1, false).is_err());
    assert!(txgs.wait_for(1).is_err());
}

#[test]
fn in_simulated_time_nobody_waits() {
    let timer = Timer::simulated();
    let txgs = TxState::new(0, Some(1000), timer.clone());
    txgs.begin();
    let began = Instant::now();
    for _ in 0..300 {
        drop(txgs.assign(3, false).unwrap());
    }
    // Delays are over at once, and no other time passes.
    drop(txgs.assign(90, false).unwrap());
    let delayed = timer.now();
    assert!(delayed > Duration::ZERO);
    txgs.quiesce(|_| (), || ());
    txgs.synced(1);
    drop(txgs.assign(1, false).unwrap());
    assert_eq!(timer.now(), delayed);
    // The time of a group passes while it is waited for.
    let other = txgs.clone();
    let turn = std::thread::spawn(move || other.next_work(&|| Duration::from_secs(3600), None));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!turn.is_finished());
    timer.sleep(Duration::from_secs(3600));
    assert_eq!(turn.join().unwrap(), Work::Sync);
    assert!(began.elapsed() < Duration::from_secs(60));
}

/// A change that is undone takes back all that it was assigned with, also the least that each counts as.
#[test]
fn a_change_that_is_undone_counts_as_nothing() {
    let txgs = state(9, Some(1 << 20));
    for bytes in [1, LEAST, 40_000] {
        let mut change = txgs.assign(bytes, false).unwrap();
        change.settle(bytes / 2, 0);
        change.undone();
        drop(change);
        assert_eq!(txgs.dirty(), 0, "{bytes}");
    }
}
