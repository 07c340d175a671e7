//! A panic while a thread has the lists of the ARC.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use cenote_format::invariant;
use cenote_format::invariant::caught;
use cenote_format::nvlist::{NvList, NvValue};

fn tree() -> Arc<VdevTree> {
    let mut root = NvList::default();
    root.set("type", NvValue::String("root".into()));
    root.set("id", NvValue::Uint64(0));
    root.set("guid", NvValue::Uint64(1));
    root.set("children", NvValue::NvListArray(Vec::new()));
    VdevTree::build(&root, &mut |_, _| None).unwrap()
}

#[test]
fn a_thread_that_panics_with_the_arc_sounds_the_alarm() {
    let store = Store::new(tree(), 1 << 20);
    // Another pool that uses the same cache.
    let other = Store::with_arc(tree(), store.arc().clone());
    assert_eq!((store.alarm().why(), other.alarm().why()), (None, None));
    let reader = || {
        store.arc().misused(|| {
            let lists = 5;
            invariant!(lists == 4, "{lists} lists");
        });
    };
    assert!(caught(reader).is_err());
    for alarm in [store.alarm(), other.alarm()] {
        assert!(alarm.why().unwrap().ends_with("5 lists"), "{alarm:?}");
    }
    // The next caller gets the cache.
    assert_eq!(store.stats().arc.size, 0);
}

#[test]
fn a_pool_that_goes_while_a_thread_panics_is_no_fault_of_the_arc() {
    let store = Store::new(tree(), 1 << 20);
    let other = Store::with_arc(tree(), store.arc().clone());
    let reader = move || {
        let _gone = other;
        panic!("for the test");
    };
    assert!(caught(reader).is_err());
    assert_eq!(store.alarm().why(), None);
}
