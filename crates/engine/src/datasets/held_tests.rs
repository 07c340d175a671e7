//! In a suspended pool nothing that ends or begins an intent log waits for the commit that waits for the pool.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::super::background::Background;
use super::super::{Engine, EngineOptions};
use super::*;
use crate::keys::UnloadError;
use cenote_dsl::crypt::KeyError;
use cenote_format::crypt::WrappingKey;
use cenote_pool::{ImportOptions, discover};
use std::sync::mpsc;

const LONG: Duration = Duration::from_secs(60);

fn until(what: &str, done: impl Fn() -> bool) {
    let end = std::time::Instant::now() + LONG;
    while !done() {
        assert!(std::time::Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// `work` ends, though the pool is suspended.
fn ends<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || tell.send(work()).unwrap());
    let done = told.recv_timeout(LONG).unwrap_or_else(|_| panic!("{what} waits"));
    thread.join().unwrap();
    done
}

fn is_refused(what: &str, done: &Result<(), WriteError>) {
    assert!(matches!(done, Err(WriteError::Suspended(_))), "{what}: {done:?}");
}

#[test]
fn logs_are_ended_and_begun_or_it_is_refused() {
    let temp = cenote_testpools::copy("basic");
    let candidate = discover(std::slice::from_ref(&temp.pool.dir)).remove(0);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let engine = Engine::import(&candidate, &options, EngineOptions::default()).unwrap();
    let shared = engine.shared.clone();
    let head = engine.pool().dsl().root().unwrap().ds_obj;
    let live = engine.live(head).unwrap();
    let own = || shared.datasets.open.lock().sets.get(&head).unwrap().1.clone();
    // First no chain is there, then there is one.
    for round in ["without a chain", "with one"] {
        let inside = shared.tx_state.assign(1, false).unwrap();
        live.touch().unwrap();
        own().changed(inside.txg, None);
        let theirs = shared.clone();
        let commit = std::thread::spawn(move || theirs.datasets.commit(&theirs, head, Scope::All));
        until("the commit writes", || own().log.is_in_use());
        shared.tx_state.hold("no device takes anything", false, || ());
        for what in ["suspend", "close", "close all", "freeze", "restart"] {
            let theirs = shared.clone();
            let done = ends(what, move || match what {
                "suspend" => theirs.datasets.suspend_logs(&theirs).map(drop),
                "close" => theirs.datasets.close_log(&theirs, head),
                "close all" => theirs.datasets.close_logs(&theirs),
                _ => {
                    theirs.datasets.begin_logs(&theirs, what == "freeze");
                    Err(WriteError::Suspended(String::new()))
                }
            });
            is_refused(&format!("{round}, {what}"), &done);
        }
        assert!(!commit.is_finished(), "{round}");
        shared.tx_state.resumed(|| true);
        drop(inside);
        commit.join().unwrap().unwrap();
        shared.datasets.reopen_logs();
        // The next one has a chain.
        shared.datasets.begin_logs(&shared, true);
        engine.sync().unwrap();
    }
    // No commit is under way: what would be assigned to a group is refused as well.
    shared.tx_state.hold("no device takes anything", false, || ());
    let theirs = shared.clone();
    is_refused("idle", &ends("idle", move || theirs.datasets.suspend_logs(&theirs).map(drop)));
    shared.tx_state.resumed(|| true);
    drop(live);
    engine.export(false).unwrap();
}

/// A thread of the background that waits for a suspended pool is not waited for.
#[test]
fn a_background_that_waits_keeps_nobody() {
    static GO_ON: AtomicBool = AtomicBool::new(false);
    let temp = cenote_testpools::copy("basic");
    let candidate = discover(std::slice::from_ref(&temp.pool.dir)).remove(0);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let engine = Engine::import(&candidate, &options, EngineOptions::default()).unwrap();
    let shared = engine.shared.clone();
    let own = Background::default();
    own.wake(&shared, "waits", |_| until("the test goes on", || GO_ON.load(Ordering::SeqCst)));
    shared.tx_state.hold("no device takes anything", false, || ());
    is_refused("stop", &own.try_stop(&shared.tx_state));
    shared.tx_state.resumed(|| true);
    GO_ON.store(true, Ordering::SeqCst);
    own.try_stop(&shared.tx_state).unwrap();
    engine.export(false).unwrap();
}

/// However threads of the engine have to do with a dataset, and groups write it: without a user it is not in use.
#[test]
fn the_engine_itself_is_no_user() {
    let temp = cenote_testpools::copy("compat21");
    let candidate = discover(std::slice::from_ref(&temp.pool.dir)).remove(0);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let engine = Engine::import(&candidate, &options, EngineOptions::default()).unwrap();
    let shared = engine.shared.clone();
    let head = engine.pool().dsl().root().unwrap().ds_obj;
    let end = std::time::Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while std::time::Instant::now() < end {
                    drop(shared.datasets.suspend_logs(&shared).unwrap());
                    shared.datasets.begin_logs(&shared, true);
                    shared.datasets.commit(&shared, head, Scope::All).unwrap();
                }
            });
        }
        let mut used = 0;
        while std::time::Instant::now() < end {
            let live = engine.live(head).unwrap();
            live.touch().unwrap();
            let own = shared.datasets.is_used(head);
            drop(live);
            // No user is there from here on, and one was before.
            used += usize::from(!own || (0..100).any(|_| shared.datasets.is_used(head)));
        }
        assert_eq!(used, 0);
    });
    let open = shared.datasets.open.lock();
    assert!(open.sets.values().all(|(_, handle)| handle.lent.load(Ordering::SeqCst) == 0));
    drop(open);
    drop(shared);
    engine.export(false).unwrap();
    cenote_testpools::judge(&temp.pool.dir, &candidate.name);
}

/// A dataset is closed for lack of users while others open it: what they get is never shut under them.
#[test]
fn what_is_opened_while_it_is_closed_is_open() {
    let temp = cenote_testpools::copy("compat21");
    let candidate = discover(std::slice::from_ref(&temp.pool.dir)).remove(0);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let engine = Engine::import(&candidate, &options, EngineOptions::default()).unwrap();
    let head = engine.pool().dsl().root().unwrap().ds_obj;
    let end = std::time::Instant::now() + Duration::from_secs(2);
    let mut closed = 0;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while std::time::Instant::now() < end {
                    engine.live(head).unwrap().touch().unwrap();
                }
            });
        }
        while std::time::Instant::now() < end {
            closed += usize::from(engine.close_if_unused(head).unwrap());
        }
    });
    assert!(closed > 0 && engine.close_if_unused(head).unwrap());
    engine.export(false).unwrap();
    cenote_testpools::judge(&temp.pool.dir, &candidate.name);
}

/// Unloading a key ends, however long a dataset with it is being opened.
#[test]
fn a_key_waits_for_no_opener_for_ever() {
    let temp = cenote_testpools::copy("crypt");
    let candidate = discover(std::slice::from_ref(&temp.pool.dir)).remove(0);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let engine = Engine::import(&candidate, &options, EngineOptions::default()).unwrap();
    let (view, engine) = (engine.pool(), Arc::new(engine));
    let root = view.dsl().find("crypt/rawk").unwrap().unwrap();
    let keys = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pools");
    let key = std::fs::read(keys.join("crypt.raw.key")).unwrap();
    view.dsl().load_key(&root, WrappingKey::from_raw(&key).unwrap()).unwrap();
    let shared = engine.shared.clone();
    let opening = shared.datasets.enter_alone(root.ds_obj).unwrap();
    view.dsl().map_key(root.ds_obj, root.dir_obj).unwrap();
    let unload = || {
        let (engine, root) = (engine.clone(), root.clone());
        ends("unload", move || engine.unload_key(&root))
    };
    assert!(matches!(unload(), Err(UnloadError::Busy(name)) if name == "crypt/rawk"));
    // Nor for the devices that the opener may wait for.
    let begun = std::time::Instant::now();
    let done = std::thread::scope(|scope| {
        let unloading = scope.spawn(unload);
        std::thread::sleep(Duration::from_millis(300));
        shared.tx_state.hold("no device takes anything", false, || ());
        unloading.join().unwrap()
    });
    assert!(matches!(done, Err(UnloadError::Engine(EngineError::Suspended(_)))), "{done:?}");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    shared.tx_state.resumed(|| true);
    drop(opening);
    unload().unwrap();
    assert!(matches!(unload(), Err(UnloadError::Key(KeyError::Unloaded(_)))));
    engine.export(false).unwrap();
    // OpenZFS 2.1's `zdb` does not know a feature of this pool.
}
