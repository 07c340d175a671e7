//! A model of the cache of objects: the code itself, with atomics, locks and tables by which a scheduler (`shuttle`) lets
//! threads run in many orders.
//!
//! The source is taken in by its path, so that `crate::sync`, `crate::object` and `crate::zap` are what is here.

#![allow(dead_code, missing_docs, unused_imports)] // Of what is taken in.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod sync {
    use shuttle::sync as shuttled;
    pub(crate) use shuttled::atomic::{AtomicU64, Ordering::SeqCst};
    use std::collections::HashMap;
    use std::sync::Arc;

    /// `parking_lot`'s.
    pub(crate) struct RwLock<T>(shuttled::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(of: T) -> RwLock<T> {
            RwLock(shuttled::RwLock::new(of))
        }

        pub(crate) fn read(&self) -> shuttled::RwLockReadGuard<'_, T> {
            self.0.read().unwrap()
        }

        pub(crate) fn write(&self) -> shuttled::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap()
        }
    }

    /// The tables of the ARC: each call takes effect at once, and nothing is pushed out.
    pub(crate) struct Table<T>(shuttled::Mutex<HashMap<u64, Arc<T>>>);

    impl<T> Table<T> {
        pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
            self.0.lock().unwrap().get(&number).cloned()
        }

        pub(crate) fn insert(&self, number: u64, object: Arc<T>, _bytes: usize) {
            self.0.lock().unwrap().insert(number, object);
        }

        pub(crate) fn remove(&self, number: u64) {
            self.0.lock().unwrap().remove(&number);
        }
    }

    /// Where tables come from.
    pub(crate) struct Store;

    impl Store {
        pub(crate) fn table<T>(&self) -> Table<T> {
            Table(shuttled::Mutex::new(HashMap::new()))
        }
    }
}

mod dnode {
    use cenote_format::dmu::DmuType;

    pub(crate) struct Phys {
        pub kind: DmuType,
        pub pointers: Vec<u64>,
        pub bonus: Vec<u8>,
        pub rest: Vec<u8>,
    }

    /// A dnode of a generation.
    pub(crate) struct Dnode {
        pub phys: Phys,
        pub generation: u64,
    }
}

mod zap {
    /// A micro ZAP of a generation.
    pub(crate) struct MicroZap(pub u64);

    impl MicroZap {
        pub(crate) fn memory(&self) -> usize {
            8
        }
    }
}

#[path = "../src/cache.rs"]
mod cache;

use cache::ObjectCache;
use cenote_format::dmu::DmuType;
use dnode::{Dnode, Phys};
use shuttle::thread;
use std::sync::Arc;
use sync::Store;
use zap::MicroZap;

const OBJECT: u64 = 7;

fn dnode(generation: u64) -> Arc<Dnode> {
    Arc::new(Dnode {
        phys: Phys {
            kind: DmuType::DIRECTORY_CONTENTS,
            pointers: Vec::new(),
            bonus: Vec::new(),
            rest: Vec::new(),
        },
        generation,
    })
}

/// Looks at the object as one of a generation: what is in the cache, or else what is on disk, which is kept.
fn look(cache: &ObjectCache, generation: u64) {
    match cache.dnode(OBJECT) {
        Some(found) => assert_eq!(found.generation, generation, "a dnode of another generation"),
        None => cache.keep_dnode(OBJECT, &dnode(generation)),
    }
    match cache.micro_zap(OBJECT) {
        Some(found) => assert_eq!(found.0, generation, "a micro ZAP of another generation"),
        None => cache.keep_micro_zap(OBJECT, &Arc::new(MicroZap(generation))),
    }
}

/// Two generations follow the first one; all are looked at meanwhile. The object changes each time.
fn generations() {
    let mut cache = Arc::new(ObjectCache::new(&Store));
    let mut threads = Vec::new();
    for generation in 0..3 {
        let own = cache.clone();
        threads.push(thread::spawn(move || (0..2).for_each(|_| look(&own, generation))));
        let new = dnode(generation + 1);
        let changed = [(OBJECT, (generation % 2 == 0).then_some(&new))];
        cache = Arc::new(cache.next(&Store, changed.into_iter()));
    }
    look(&cache, 3);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A model that says yes to everything would be of no use: a generation that does not say what changed.
fn a_change_that_is_not_told() {
    let first = ObjectCache::new(&Store);
    first.keep_dnode(OBJECT, &dnode(0));
    look(&first.next(&Store, std::iter::empty()), 1);
}

fn main() {
    const TIMES: usize = 20_000;
    shuttle::check_random(generations, TIMES);
    shuttle::check_pct(generations, TIMES, 3);
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let found = std::panic::catch_unwind(|| shuttle::check_random(a_change_that_is_not_told, 1));
    std::panic::set_hook(quiet);
    assert!(found.is_err(), "the model finds nothing");
    println!("model of the cache of objects: {} orders", 2 * TIMES);
}
